/* The normalised description of an array: everything that planning, reading and decoding need, in the
 * axes of the array, however the metadata expressed it.
 *
 * An object is one cell of the chunk grid: one stored chunk, or one shard. A chunk is the unit of
 * decoding: the object itself, or an inner chunk of the outermost shard. Transpositions before and inside
 * the sharding codec, and transposed shard indexes, are folded into the strides here, so that no other
 * module knows about them. */
#pragma once
#include "base/alloc.h"

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

struct damacy__sharding;

/* One codec of a chain. */
typedef struct damacy__codec {
    uint32_t kind;
    uint32_t big_endian;              /* BYTES */
    uint32_t order[DAMACY_MAX_RANK];  /* TRANSPOSE: encoded axis i is decoded axis order[i] */
    struct damacy__sharding* sharding; /* SHARDING; owned by the document */
} damacy__codec;

/* Codecs in the order of encoding: array to array, array to bytes, bytes to bytes. */
typedef struct damacy__chain {
    damacy__codec* codecs;
    uint32_t n;
} damacy__chain;

/* The sharding codec. chunk_shape is in the axes that the codec sees (after transpositions before it). */
typedef struct damacy__sharding {
    int64_t chunk_shape[DAMACY_MAX_RANK];
    damacy__chain chunk_chain;
    damacy__chain index_chain; /* only codecs of fixed size: bytes, transpose, crc32c */
    uint32_t index_at_start;
} damacy__sharding;

/* Where and how the index of an object that is a shard lies. The index is n_entries pairs of
 * (offset, size), 64 bits each; pair k of the array-axis order described by index_stride below is found
 * at element entry_stride * k of the decoded index once its own transpositions are undone. */
typedef struct damacy__layout {
    uint32_t rank;
    damacy_dtype dtype;
    uint32_t item_size;              /* bytes per voxel */
    uint32_t big_endian;             /* of decoded chunks; always 0 when is_nested */
    uint64_t fill;                   /* bits of the fill value, little-endian, in the source type */
    int64_t shape[DAMACY_MAX_RANK];
    int64_t object_shape[DAMACY_MAX_RANK]; /* the chunk grid's chunk_shape */
    int64_t chunk_shape[DAMACY_MAX_RANK];  /* equals object_shape without sharding */
    int64_t chunk_stride[DAMACY_MAX_RANK]; /* elements between neighbours along each array axis in a
                                              decoded chunk */
    uint64_t chunk_size;                   /* bytes of a decoded chunk */

    uint32_t is_sharded; /* chunks are addressed through an index */
    uint32_t is_nested;  /* chunk_chain holds a sharding codec: decoded whole, by recursion */
    uint32_t index_at_start;
    uint32_t index_has_crc;
    uint64_t n_entries;                      /* chunks per object; 1 without sharding */
    uint64_t index_size;                     /* bytes as stored */
    uint64_t index_stride[DAMACY_MAX_RANK];  /* entry number = sum(chunk position in object * stride) */

    uint32_t key_is_v2;     /* key encoding "v2": no leading "c" */
    char key_separator;     /* '/' or '.' */
    damacy__chain index_chain; /* of the shard; belongs to the document */
    damacy__chain chunk_chain; /* how a chunk is decoded; belongs to the document */
} damacy__layout;
