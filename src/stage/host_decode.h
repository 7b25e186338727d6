/* One stored chunk to its voxels, on the host.
 *
 * The result is layout->chunk_size bytes exactly, or an error. Shards inside a chunk (is_nested)
 * are undone level by level through temporary arrays: rare, right, and not fast. err->offset is a
 * place in the stored chunk, where one is known. */
#pragma once
#include "format/shard.h"
#include "stage/bytes_decode.h"

static bool damacy__host_decode_is_identity(const damacy__layout* layout);
static damacy_status damacy__host_decode(damacy__decoder* decoder, const damacy__layout* layout,
                                         damacy__span stored, uint8_t* dst, damacy_error* err);

/* Number of the array-to-bytes codec of a chain. */
static uint32_t damacy__chain_middle(const damacy__chain* chain)
{
    uint32_t i = 0;

    while (i < chain->n && chain->codecs[i].kind == DAMACY__CODEC_TRANSPOSE) {
        i++;
    }
    assert(i < chain->n);
    return i;
}

/* Whether the stored bytes are the voxels, so that nothing needs to be decoded. */
static bool damacy__host_decode_is_identity(const damacy__layout* layout)
{
    return !layout->is_nested &&
           damacy__chain_middle(&layout->chunk_chain) + 1 == layout->chunk_chain.n;
}

/* An array on its way through a nested chain: C order of shape. */
typedef struct damacy__nest {
    damacy__decoder* decoder;
    uint32_t rank;
    uint32_t item_size;
    uint64_t fill;
} damacy__nest;

static damacy_status damacy__nest_decode(const damacy__nest* nest, const damacy__chain* chain,
                                         const int64_t* shape, damacy__span stored, uint8_t* dst,
                                         uint32_t depth, damacy_error* err);

static uint64_t damacy__nest_size(const damacy__nest* nest, const int64_t* shape)
{
    uint64_t n = nest->item_size;

    for (uint32_t i = 0; i < nest->rank; i++) {
        n *= (uint64_t)shape[i];
    }
    return n;
}

/* Copies a box of elements between two strided arrays, the last axis innermost. */
static void damacy__nest_copy(const damacy__nest* nest, const int64_t* extent, uint8_t* dst,
                              const int64_t* dst_stride, const uint8_t* src,
                              const int64_t* src_stride, bool swap)
{
    int64_t at[DAMACY_MAX_RANK] = {0};
    const uint32_t size = nest->item_size;
    uint32_t axis;

    for (;;) {
        int64_t to = 0;
        int64_t from = 0;
        for (uint32_t i = 0; i < nest->rank; i++) {
            to += at[i] * dst_stride[i];
            from += at[i] * src_stride[i];
        }
        for (uint32_t b = 0; b < size; b++) {
            dst[to * size + b] = src[from * size + (swap ? size - 1 - b : b)];
        }
        for (axis = nest->rank; axis > 0 && ++at[axis - 1] == extent[axis - 1]; axis--) {
            at[axis - 1] = 0;
        }
        if (axis == 0) {
            return;
        }
    }
}

/* The chunks of one shard into an array of the shard's shape; missing ones are the fill value. */
static damacy_status damacy__nest_shard(const damacy__nest* nest, const damacy__sharding* sharding,
                                        const int64_t* shape, damacy__span shard, uint8_t* dst,
                                        uint32_t depth, damacy_error* err)
{
    damacy__alloc* alloc = nest->decoder->alloc;
    const uint64_t chunk_size = damacy__nest_size(nest, sharding->chunk_shape);
    damacy__extent* extents = damacy__new(alloc, sharding->n_entries, damacy__extent);
    uint8_t* chunk = damacy__new(alloc, chunk_size, uint8_t);
    int64_t shard_stride[DAMACY_MAX_RANK];
    int64_t chunk_stride[DAMACY_MAX_RANK];
    uint64_t index_at = 0;
    damacy_status status = DAMACY_OK;

    if (!extents || !chunk) {
        status = damacy__fail(err, DAMACY_OOM, "a nested shard of %" PRIu64 " chunks",
                              sharding->n_entries);
        goto done;
    }
    damacy__strides(shape, nest->rank, shard_stride);
    damacy__strides(sharding->chunk_shape, nest->rank, chunk_stride);
    status = damacy__shard_locate(sharding, shard.size, &index_at, err);
    if (status == DAMACY_OK) {
        status = damacy__shard_decode(
            sharding, nest->rank,
            damacy__span_of(shard.ptr + index_at, (size_t)sharding->index_size), shard.size,
            extents, err);
    }
    for (uint64_t k = 0; k < sharding->n_entries && status == DAMACY_OK; k++) {
        uint64_t rest = k;
        int64_t to = 0;
        for (uint32_t i = nest->rank; i-- > 0;) {
            to += (int64_t)(rest % (uint64_t)sharding->grid[i]) * sharding->chunk_shape[i] *
                  shard_stride[i];
            rest /= (uint64_t)sharding->grid[i];
        }
        if (extents[k].offset == UINT64_MAX) {
            for (uint64_t b = 0; b < chunk_size; b++) {
                chunk[b] = (uint8_t)(nest->fill >> (8 * (b % nest->item_size)));
            }
        } else {
            status = damacy__nest_decode(
                nest, &sharding->chunk_chain, sharding->chunk_shape,
                damacy__span_of(shard.ptr + extents[k].offset, (size_t)extents[k].size), chunk,
                depth + 1, err);
        }
        if (status == DAMACY_OK) {
            damacy__nest_copy(nest, sharding->chunk_shape, dst + to * nest->item_size, shard_stride,
                              chunk, chunk_stride, false);
        } else {
            err->offset += err->offset == UINT64_MAX ? 0 : extents[k].offset;
            status = damacy__fail(err, status, "nested chunk %" PRIu64 ": %s", k, err->message);
        }
    }
done:
    damacy__free(alloc, chunk, chunk_size);
    damacy__free(alloc, extents, sharding->n_entries);
    return status;
}

/* What the array-to-bytes codec wrote, to elements in C order of `shape`, which that codec sees. */
static damacy_status damacy__nest_middle(const damacy__nest* nest, const damacy__codec* codec,
                                         const int64_t* shape, damacy__span bytes, uint8_t* dst,
                                         uint32_t depth, damacy_error* err)
{
    const uint64_t size = damacy__nest_size(nest, shape);
    int64_t stride[DAMACY_MAX_RANK];

    if (codec->kind == DAMACY__CODEC_SHARDING) {
        return damacy__nest_shard(nest, codec->sharding, shape, bytes, dst, depth, err);
    }
    if (bytes.size != size) {
        return damacy__fail(err, DAMACY_DECODE, "%zu decoded bytes, the chunk has %" PRIu64,
                            bytes.size, size);
    }
    damacy__strides(shape, nest->rank, stride);
    damacy__nest_copy(nest, shape, dst, stride, bytes.ptr, stride, codec->big_endian != 0);
    return DAMACY_OK;
}

/* Most bytes that an encoded shard may have: its chunks, badly compressed, and its index, per
 * level. */
static uint64_t damacy__nest_room(const damacy__nest* nest, const damacy__codec* codec,
                                  const int64_t* shape)
{
    const uint64_t size = damacy__nest_size(nest, shape);

    if (codec->kind == DAMACY__CODEC_BYTES) {
        return size;
    }
    return 2 * size + codec->sharding->index_size + 1024 * codec->sharding->n_entries + 65536;
}

/* One chain: bytes to bytes, the array-to-bytes codec, and the transpositions, undone in this
 * order. */
static damacy_status damacy__nest_decode(const damacy__nest* nest, const damacy__chain* chain,
                                         const int64_t* shape, damacy__span stored, uint8_t* dst,
                                         uint32_t depth, damacy_error* err)
{
    damacy__alloc* alloc = nest->decoder->alloc;
    const uint32_t middle = damacy__chain_middle(chain);
    const uint64_t size = damacy__nest_size(nest, shape);
    uint32_t axes[DAMACY_MAX_RANK];
    int64_t seen[DAMACY_MAX_RANK];
    int64_t extent[DAMACY_MAX_RANK] = {0};
    int64_t stride[DAMACY_MAX_RANK];
    int64_t seen_stride[DAMACY_MAX_RANK] = {0};
    uint64_t room;
    uint8_t* bytes = NULL;
    uint8_t* encoded = NULL;
    uint64_t n = 0;
    damacy_status status;

    if (depth > DAMACY__MAX_SHARD_LEVELS) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "shards nested more than %u deep",
                            DAMACY__MAX_SHARD_LEVELS);
    }
    for (uint32_t i = 0; i < nest->rank; i++) {
        axes[i] = i;
    }
    (void)damacy__chain_axes(chain, nest->rank, axes);
    for (uint32_t i = 0; i < nest->rank; i++) {
        seen[i] = shape[axes[i]];
    }
    room = damacy__nest_room(nest, &chain->codecs[middle], seen);
    encoded = damacy__new(alloc, size, uint8_t);
    bytes = middle + 1 < chain->n ? damacy__new(alloc, room, uint8_t) : NULL;
    if (!encoded || (middle + 1 < chain->n && !bytes)) {
        status = damacy__fail(err, DAMACY_OOM, "a nested chunk of %" PRIu64 " bytes", size);
        goto done;
    }
    status = DAMACY_OK;
    if (bytes) {
        status = damacy__bytes_decode(nest->decoder, chain->codecs + middle + 1,
                                      chain->n - middle - 1, stored, bytes, room, &n, err);
        stored = damacy__span_of(bytes, (size_t)n);
    }
    if (status == DAMACY_OK) {
        status =
            damacy__nest_middle(nest, &chain->codecs[middle], seen, stored, encoded, depth, err);
        err->offset = bytes ? UINT64_MAX : err->offset; /* a place in `bytes` says nothing */
    }
    if (status == DAMACY_OK) {
        damacy__strides(shape, nest->rank, stride);
        damacy__strides(seen, nest->rank, seen_stride);
        for (uint32_t i = 0; i < nest->rank; i++) {
            extent[i] = seen[i];
            seen[i] = stride[axes[i]];
        }
        damacy__nest_copy(nest, extent, dst, seen, encoded, seen_stride, false);
    }
done:
    damacy__free(alloc, bytes, room);
    damacy__free(alloc, encoded, size);
    return status;
}

/* Decodes one stored chunk to exactly layout->chunk_size bytes at dst. */
static damacy_status damacy__host_decode(damacy__decoder* decoder, const damacy__layout* layout,
                                         damacy__span stored, uint8_t* dst, damacy_error* err)
{
    const damacy__chain* chain = &layout->chunk_chain;
    const uint32_t middle = damacy__chain_middle(chain);

    err->offset = UINT64_MAX;
    if (layout->is_nested) {
        damacy__nest nest;
        nest.decoder = decoder;
        nest.rank = layout->rank;
        nest.item_size = layout->item_size;
        nest.fill = layout->fill;
        return damacy__nest_decode(
            &nest, chain, layout->is_sharded ? layout->sharding->chunk_shape : layout->object_shape,
            stored, dst, 0, err);
    }
    return damacy__bytes_decode(decoder, chain->codecs + middle + 1, chain->n - middle - 1, stored,
                                dst, layout->chunk_size, NULL, err);
}
