/* The stored index of a shard -> where each of its chunks lies (Zarr v3 sharding_indexed codec).
 *
 * Both byte orders, transposed indexes, any number of checksums, at either end of the object.
 * Extents come out in C order of the shard's grid and lie within the object; they may overlap,
 * leave gaps and be in any order, and a chunk of 0 bytes is for its decoder to refuse. */
#pragma once
#include "base/alloc.h"
#include "base/crc32c.h"
#include "format/layout.h"

static damacy_status damacy__shard_locate(const damacy__sharding* sharding, uint64_t object_size,
                                          uint64_t* offset, damacy_error* err);
static damacy_status damacy__shard_decode(const damacy__sharding* sharding, uint32_t rank,
                                          damacy__span index, uint64_t object_size,
                                          damacy__extent* extents, damacy_error* err);

/* Where the index starts in an object of object_size bytes; it is sharding->index_size bytes long.
 */
static damacy_status damacy__shard_locate(const damacy__sharding* sharding, uint64_t object_size,
                                          uint64_t* offset, damacy_error* err)
{
    if (object_size < sharding->index_size) {
        return damacy__fail(err, DAMACY_DECODE,
                            "a shard of %" PRIu64 " bytes cannot hold its index of %" PRIu64,
                            object_size, sharding->index_size);
    }
    *offset = sharding->index_at_start ? 0 : object_size - sharding->index_size;
    return DAMACY_OK;
}

/* Checks and takes off the checksums, the outermost first. */
static damacy_status damacy__shard_check(const damacy__chain* chain, damacy__span* index,
                                         damacy_error* err)
{
    for (uint32_t i = chain->n; i-- > 0 && chain->codecs[i].kind == DAMACY__CODEC_CRC32C;) {
        uint32_t stored;
        uint32_t computed;

        index->size -= 4;
        stored = damacy__load_u32le(index->ptr + index->size);
        computed = damacy__crc32c(index->ptr, index->size);
        if (stored != computed) {
            return damacy__fail(err, DAMACY_DECODE,
                                "shard index: checksum is %08" PRIx32 ", its bytes give %08" PRIx32,
                                stored, computed);
        }
    }
    return DAMACY_OK;
}

/* Elements between neighbours of the encoded index along each axis of the grid, and, last, between
 * offset and size. */
static void damacy__shard_strides(const damacy__sharding* sharding, uint32_t rank, uint64_t* out)
{
    const damacy__chain* chain = &sharding->index_chain;
    uint32_t axes[DAMACY_MAX_RANK + 1];
    uint64_t stride = 1;

    for (uint32_t i = 0; i <= rank; i++) {
        axes[i] = i;
    }
    for (uint32_t c = 0; c < chain->n && chain->codecs[c].kind == DAMACY__CODEC_TRANSPOSE; c++) {
        uint32_t before[DAMACY_MAX_RANK + 1];
        memcpy(before, axes, sizeof before);
        for (uint32_t i = 0; i <= rank; i++) {
            axes[i] = before[chain->codecs[c].order[i]];
        }
    }
    for (uint32_t i = rank + 1; i-- > 0;) {
        out[axes[i]] = stride;
        stride *= axes[i] == rank ? 2 : (uint64_t)sharding->grid[axes[i]];
    }
}

static bool damacy__shard_is_big_endian(const damacy__sharding* sharding)
{
    for (uint32_t i = 0; i < sharding->index_chain.n; i++) {
        if (sharding->index_chain.codecs[i].kind == DAMACY__CODEC_BYTES) {
            return sharding->index_chain.codecs[i].big_endian != 0;
        }
    }
    return false;
}

static uint64_t damacy__shard_load(const uint8_t* src, bool is_big_endian)
{
    return is_big_endian ? damacy__load_u64be(src) : damacy__load_u64le(src);
}

static damacy_status damacy__extent_check(damacy__extent extent, uint64_t number,
                                          uint64_t object_size, damacy_error* err)
{
    uint64_t end;

    if (extent.offset == UINT64_MAX && extent.size == UINT64_MAX) {
        return DAMACY_OK;
    }
    if (extent.offset == UINT64_MAX || extent.size == UINT64_MAX) {
        return damacy__fail(err, DAMACY_DECODE, "shard index: chunk %" PRIu64 " has %s but no %s",
                            number, extent.offset == UINT64_MAX ? "a size" : "an offset",
                            extent.offset == UINT64_MAX ? "offset" : "size");
    }
    if (!damacy__add(extent.offset, extent.size, &end) || end > object_size) {
        return damacy__fail(err, DAMACY_DECODE,
                            "shard index: chunk %" PRIu64 " at %" PRIu64 " of %" PRIu64
                            " bytes lies outside the object of %" PRIu64,
                            number, extent.offset, extent.size, object_size);
    }
    return DAMACY_OK;
}

/* index: the sharding->index_size bytes as stored. extents: room for sharding->n_entries; untouched
 * on failure. object_size: bytes of the whole shard. */
static damacy_status damacy__shard_decode(const damacy__sharding* sharding, uint32_t rank,
                                          damacy__span index, uint64_t object_size,
                                          damacy__extent* extents, damacy_error* err)
{
    const bool is_big_endian = damacy__shard_is_big_endian(sharding);
    uint64_t strides[DAMACY_MAX_RANK + 1];

    if (index.size != sharding->index_size) {
        return damacy__fail(err, DAMACY_DECODE, "shard index of %zu bytes, %" PRIu64 " are wanted",
                            index.size, sharding->index_size);
    }
    DAMACY__TRY(damacy__shard_check(&sharding->index_chain, &index, err));
    damacy__shard_strides(sharding, rank, strides);
    for (uint32_t pass = 0; pass < 2; pass++) { /* first check, then write */
        int64_t position[DAMACY_MAX_RANK] = {0};
        uint64_t at = 0; /* element of the offset */

        for (uint64_t i = 0; i < sharding->n_entries; i++) {
            damacy__extent extent;
            extent.offset = damacy__shard_load(index.ptr + 8 * at, is_big_endian);
            extent.size = damacy__shard_load(index.ptr + 8 * (at + strides[rank]), is_big_endian);
            if (pass == 0) {
                DAMACY__TRY(damacy__extent_check(extent, i, object_size, err));
            } else {
                extents[i] = extent;
            }
            for (uint32_t k = rank; k-- > 0;) {
                at += strides[k];
                if (++position[k] < sharding->grid[k]) {
                    break;
                }
                at -= strides[k] * (uint64_t)sharding->grid[k];
                position[k] = 0;
            }
        }
    }
    return DAMACY_OK;
}
