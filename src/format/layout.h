/* The normalised description of an array: everything that planning, reading and decoding need, in
 * the axes of the array, however the metadata expressed it.
 *
 * An object is one cell of the chunk grid: one stored chunk, or one shard. A chunk is the unit of
 * decoding: the object itself, or an inner chunk of the outermost shard. Transpositions before and
 * inside the sharding codec are folded into the strides here, and transposed shard indexes are
 * undone when an index is decoded, so that no other module knows about them. */
#pragma once
#include "base/error.h"

typedef enum damacy__codec_kind {
    DAMACY__CODEC_BYTES = 1, /* array to bytes */
    DAMACY__CODEC_SHARDING,  /* array to bytes; sharding is set */
    DAMACY__CODEC_TRANSPOSE, /* array to array; order is set */
    DAMACY__CODEC_ZSTD,      /* bytes to bytes from here on */
    DAMACY__CODEC_BLOSC,
    DAMACY__CODEC_GZIP, /* RFC 1952 */
    DAMACY__CODEC_ZLIB, /* RFC 1950 */
    DAMACY__CODEC_LZ4,  /* 32-bit little-endian size, then an LZ4 block */
    DAMACY__CODEC_CRC32C
} damacy__codec_kind;

/* One codec of a chain. */
typedef struct damacy__codec {
    uint32_t kind;
    uint32_t big_endian; /* BYTES */
    /* TRANSPOSE: encoded axis i is decoded axis order[i]. A shard index has one more axis. */
    uint32_t order[DAMACY_MAX_RANK + 1];
    struct damacy__sharding* sharding; /* SHARDING; owned by the document */
} damacy__codec;

/* Codecs in the order of encoding: array to array, array to bytes, bytes to bytes. */
typedef struct damacy__chain {
    damacy__codec* codecs;
    uint32_t n;
} damacy__chain;

/* The sharding codec, in the axes that it sees (after transpositions before it). */
typedef struct damacy__sharding {
    int64_t chunk_shape[DAMACY_MAX_RANK];
    int64_t grid[DAMACY_MAX_RANK]; /* chunks along each axis */
    uint64_t n_entries;            /* chunks in a shard */
    uint64_t index_size;           /* bytes as stored */
    damacy__chain chunk_chain;
    damacy__chain index_chain; /* only codecs of fixed size: bytes, transpose, crc32c */
    uint32_t index_at_start;
} damacy__sharding;

/* Where a chunk lies in its object; both fields all ones: it is not stored. */
typedef struct damacy__extent {
    uint64_t offset; /* bytes from the start of the object */
    uint64_t size;   /* bytes */
} damacy__extent;

typedef struct damacy__layout {
    uint32_t rank;
    damacy_dtype dtype;
    uint32_t item_size;  /* bytes per voxel */
    uint32_t big_endian; /* of decoded chunks; always 0 when is_nested */
    uint64_t fill;       /* bits of the fill value, little-endian, in the source type */
    int64_t shape[DAMACY_MAX_RANK];
    int64_t object_shape[DAMACY_MAX_RANK]; /* the chunk grid's chunk_shape */
    int64_t chunk_shape[DAMACY_MAX_RANK];  /* equals object_shape without sharding */
    /* Elements between neighbours along each array axis in a decoded chunk. */
    int64_t chunk_stride[DAMACY_MAX_RANK];
    uint64_t chunk_size; /* bytes of a decoded chunk */

    uint32_t is_sharded; /* chunks are addressed through an index */
    /* chunk_chain holds a sharding codec: the chunk is decoded whole, level by level, into
     * little-endian elements in C order of the axes that chunk_chain sees. */
    uint32_t is_nested;
    const damacy__sharding* sharding; /* when is_sharded; belongs to the document */
    uint32_t index_at_start;          /* of the outermost sharding, as is what follows */
    uint32_t index_has_crc;
    uint64_t n_entries;  /* chunks per object; 1 without sharding */
    uint64_t index_size; /* bytes as stored; 0 without sharding */
    /* Number of a chunk in the decoded index: sum of its position in the object times this. */
    uint64_t index_stride[DAMACY_MAX_RANK];

    uint32_t key_is_v2;        /* key encoding "v2": no leading "c" */
    char key_separator;        /* '/' or '.' */
    damacy__chain index_chain; /* of the shard; belongs to the document */
    damacy__chain chunk_chain; /* how a chunk is decoded; belongs to the document */
} damacy__layout;

/* What a document may ask for at most; larger is refused as unsupported. */
#define DAMACY__MAX_CHUNK_SIZE   (UINT64_C(1) << 31) /* bytes, decoded */
#define DAMACY__MAX_ENTRIES      (UINT64_C(1) << 24) /* chunks in a shard: an index of 256 MiB */
#define DAMACY__MAX_CODECS       32u                 /* of one chain */
#define DAMACY__MAX_SHARD_LEVELS 4u                  /* shards within shards */

static damacy_status damacy__layout_resolve(damacy__layout* layout, const damacy__chain* chain,
                                            damacy_error* err);

/* Elements between neighbours along each axis of a C-order array. The product fits. */
static inline void damacy__strides(const int64_t* shape, uint32_t rank, int64_t* strides)
{
    int64_t stride = 1;

    for (uint32_t i = rank; i-- > 0;) {
        strides[i] = stride;
        stride *= shape[i];
    }
}

/* Composes the transpositions at the start of a chain: its array-to-bytes codec sees array axis
 * axes[i] as axis i. axes comes in as what the chain sees. Returns the number of that codec. */
static uint32_t damacy__chain_axes(const damacy__chain* chain, uint32_t rank, uint32_t* axes)
{
    uint32_t i = 0;

    for (; i < chain->n && chain->codecs[i].kind == DAMACY__CODEC_TRANSPOSE; i++) {
        uint32_t before[DAMACY_MAX_RANK];

        memcpy(before, axes, rank * sizeof axes[0]);
        for (uint32_t k = 0; k < rank; k++) {
            axes[k] = before[chain->codecs[i].order[k]];
        }
    }
    assert(i < chain->n);
    return i;
}

/* The chunk is laid out in C order of the axes given: axis i of the chunk is array axis axes[i]. */
static void damacy__layout_set_strides(damacy__layout* layout, const uint32_t* axes)
{
    int64_t shape[DAMACY_MAX_RANK];
    int64_t strides[DAMACY_MAX_RANK];

    for (uint32_t i = 0; i < layout->rank; i++) {
        shape[i] = layout->chunk_shape[axes[i]];
    }
    damacy__strides(shape, layout->rank, strides);
    for (uint32_t i = 0; i < layout->rank; i++) {
        layout->chunk_stride[axes[i]] = strides[i];
    }
}

/* Makes the inner chunks of a sharding codec, which sees array axis axes[i] as axis i, the chunks.
 */
static void damacy__layout_enter_shard(damacy__layout* layout, const damacy__sharding* sharding,
                                       const uint32_t* axes)
{
    int64_t strides[DAMACY_MAX_RANK];

    damacy__strides(sharding->grid, layout->rank, strides);
    for (uint32_t i = 0; i < layout->rank; i++) {
        layout->chunk_shape[axes[i]] = sharding->chunk_shape[i];
        layout->index_stride[axes[i]] = (uint64_t)strides[i];
    }
    for (uint32_t i = 0; i < sharding->index_chain.n; i++) {
        layout->index_has_crc |= sharding->index_chain.codecs[i].kind == DAMACY__CODEC_CRC32C;
    }
    layout->is_sharded = 1;
    layout->sharding = sharding;
    layout->index_at_start = sharding->index_at_start;
    layout->n_entries = sharding->n_entries;
    layout->index_size = sharding->index_size;
    layout->index_chain = sharding->index_chain;
    layout->chunk_chain = sharding->chunk_chain;
}

/* Fills everything from chunk_shape to index_stride, and the chains, from the array's codecs. rank,
 * item_size and object_shape are set; chain was checked against them when it was parsed. Bytes-to-
 * bytes codecs around a shard leave no part of it addressable: then the object is the chunk. */
static damacy_status damacy__layout_resolve(damacy__layout* layout, const damacy__chain* chain,
                                            damacy_error* err)
{
    uint32_t axes[DAMACY_MAX_RANK];
    uint32_t chunk_axes[DAMACY_MAX_RANK]; /* as chunk_chain sees them */
    const damacy__codec* codec;
    uint32_t at;
    uint64_t n;

    for (uint32_t i = 0; i < DAMACY_MAX_RANK; i++) {
        axes[i] = i;
    }
    for (uint32_t i = 0; i < layout->rank; i++) {
        layout->chunk_shape[i] = layout->object_shape[i];
        layout->index_stride[i] = 0;
    }
    memcpy(chunk_axes, axes, sizeof axes);
    layout->n_entries = 1;
    layout->chunk_chain = *chain;
    at = damacy__chain_axes(chain, layout->rank, axes);
    codec = &chain->codecs[at];
    if (codec->kind == DAMACY__CODEC_SHARDING && at + 1 == chain->n) {
        damacy__layout_enter_shard(layout, codec->sharding, axes);
        memcpy(chunk_axes, axes, sizeof axes);
        at = damacy__chain_axes(&layout->chunk_chain, layout->rank, axes);
        codec = &layout->chunk_chain.codecs[at];
    }
    layout->is_nested = codec->kind == DAMACY__CODEC_SHARDING;
    layout->big_endian = codec->kind == DAMACY__CODEC_BYTES && codec->big_endian;
    if (!damacy__product(layout->chunk_shape, layout->rank, &n) ||
        !damacy__mul(n, layout->item_size, &layout->chunk_size) ||
        layout->chunk_size > DAMACY__MAX_CHUNK_SIZE) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "a chunk of more than %" PRIu64 " bytes is not supported",
                            DAMACY__MAX_CHUNK_SIZE);
    }
    damacy__layout_set_strides(layout, layout->is_nested ? chunk_axes : axes);
    return DAMACY_OK;
}
