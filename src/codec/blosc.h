/* blosc chunks (format of c-blosc 1) on the host. Source: Zarr v3 codecs/blosc and c-blosc
 * README_CHUNK_FORMAT.rst.
 *
 * The metadata's configuration is only a record of how the chunk was written: everything here comes
 * from the chunk's own header. Block starts count from the start of the chunk, in any order. Of a
 * stored chunk only the sizes are looked at. */
#pragma once
#include "codec/gzip.h"
#include "codec/lz4.h"
#include "codec/shuffle.h"
#include "codec/zstd.h"

enum { DAMACY__BLOSC_HEADER = 16 };

typedef enum damacy__blosc_inner {
    DAMACY__BLOSC_BLOSCLZ = 0,
    DAMACY__BLOSC_LZ4 = 1,
    DAMACY__BLOSC_SNAPPY = 2,
    DAMACY__BLOSC_ZLIB = 3,
    DAMACY__BLOSC_ZSTD = 4
} damacy__blosc_inner;

/* The 16-byte header, checked. */
typedef struct damacy__blosc {
    uint32_t inner; /* damacy__blosc_inner */
    uint32_t width; /* bytes per element, 1 to 255 */
    uint32_t size;  /* decoded bytes */
    uint32_t block_size;
    uint32_t n_blocks;
    bool is_stored; /* the bytes behind the header are the data, unshuffled */
    bool is_shuffled;
    bool is_bit_shuffled;
    bool is_split_allowed;
} damacy__blosc;

/* What decoding needs of its worker. */
typedef struct damacy__blosc_tools {
    damacy__libraries* libraries;
    damacy__zstd* zstd;
    bool skip_checksums;
    uint8_t* scratch; /* of damacy__blosc_scratch() bytes */
} damacy__blosc_tools;

static damacy_status damacy__blosc_parse(damacy__span src, uint64_t expected, damacy__blosc* out,
                                         damacy_error* err);
static inline uint32_t damacy__blosc_scratch(const damacy__blosc* blosc);
static damacy_status damacy__blosc_decode(const damacy__blosc_tools* tools,
                                          const damacy__blosc* blosc, damacy__span src,
                                          uint8_t* dst, damacy_error* err);

static damacy_status damacy__blosc_refuse(damacy_error* err, size_t at, const char* what)
{
    err->offset = at;
    return damacy__fail(err, DAMACY_DECODE, "blosc: %s at byte %zu", what, at);
}

/* Names versions and codecs that are not covered. */
static damacy_status damacy__blosc_check_kind(const damacy__blosc* b, uint8_t version,
                                              uint8_t version_inner, damacy_error* err)
{
    if (version >= 3 && version <= 6) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "blosc: a chunk of c-blosc2 (format %u)",
                            version);
    }
    if (version != 2) {
        return damacy__fail(err, DAMACY_DECODE, "blosc: format version %u, not 2", version);
    }
    if (!b->is_stored && (b->inner == DAMACY__BLOSC_BLOSCLZ || b->inner == DAMACY__BLOSC_SNAPPY)) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "blosc: unsupported inner codec \"%s\"",
                            b->inner == DAMACY__BLOSC_SNAPPY ? "snappy" : "blosclz");
    }
    if (b->inner > DAMACY__BLOSC_ZSTD) {
        return damacy__fail(err, DAMACY_DECODE, "blosc: unknown inner codec %u", b->inner);
    }
    if (version_inner != 1) {
        return damacy__fail(err, DAMACY_DECODE, "blosc: version %u of the inner codec, not 1",
                            version_inner);
    }
    return DAMACY_OK;
}

/* Reads and checks the header and the room for block starts. expected UINT64_MAX: any size. */
static damacy_status damacy__blosc_parse(damacy__span src, uint64_t expected, damacy__blosc* out,
                                         damacy_error* err)
{
    damacy__blosc b;
    uint8_t flags;

    memset(&b, 0, sizeof b);
    if (src.size < DAMACY__BLOSC_HEADER) {
        return damacy__blosc_refuse(err, 0, "the header is cut short");
    }
    flags = src.ptr[2];
    b.inner = flags >> 5;
    b.is_shuffled = (flags & 1) != 0;
    b.is_stored = (flags & 2) != 0;
    b.is_bit_shuffled = (flags & 4) != 0;
    b.is_split_allowed = (flags & 0x10) == 0;
    b.width = src.ptr[3];
    b.size = damacy__load_u32le(src.ptr + 4);
    b.block_size = damacy__load_u32le(src.ptr + 8);
    DAMACY__TRY(damacy__blosc_check_kind(&b, src.ptr[0], src.ptr[1], err));
    if ((flags & 8) || (b.is_shuffled && b.is_bit_shuffled)) {
        return damacy__blosc_refuse(err, 2, "reserved flags are set");
    }
    if (damacy__load_u32le(src.ptr + 12) != src.size) {
        return damacy__fail(err, DAMACY_DECODE,
                            "blosc: the header says %u stored bytes, there are %zu",
                            damacy__load_u32le(src.ptr + 12), src.size);
    }
    if (expected != UINT64_MAX && b.size != expected) {
        return damacy__fail(err, DAMACY_DECODE,
                            "blosc: the header says %u bytes, the chunk has %" PRIu64, b.size,
                            expected);
    }
    if (b.width == 0) {
        return damacy__blosc_refuse(err, 3, "an element size of 0");
    }
    if (b.size > INT32_MAX - DAMACY__BLOSC_HEADER) {
        return damacy__blosc_refuse(err, 4, "a size of 2 GiB or more");
    }
    if (b.is_stored && b.size + DAMACY__BLOSC_HEADER != src.size) {
        return damacy__blosc_refuse(err, 4, "a stored size that does not match");
    }
    if (b.size == 0 || b.is_stored) {
        *out = b;
        return DAMACY_OK;
    }
    if (b.block_size == 0 || b.block_size > (INT32_MAX - 255 * 4) / 3 || b.block_size > b.size) {
        return damacy__blosc_refuse(err, 8, "an impossible block size");
    }
    b.n_blocks = (b.size + b.block_size - 1) / b.block_size;
    if (b.n_blocks > (src.size - DAMACY__BLOSC_HEADER) / 4) {
        return damacy__blosc_refuse(err, 8, "no room for the block starts");
    }
    *out = b;
    return DAMACY_OK;
}

/* Bytes of scratch that decoding needs: a block whose shuffle is to be undone. */
static inline uint32_t damacy__blosc_scratch(const damacy__blosc* blosc)
{
    return blosc->n_blocks && (blosc->is_shuffled || blosc->is_bit_shuffled) ? blosc->block_size
                                                                             : 0;
}

/* One compressed stream to exactly size bytes. */
static damacy_status damacy__blosc_stream(const damacy__blosc_tools* tools, uint32_t inner,
                                          damacy__span src, uint8_t* dst, size_t size,
                                          damacy_error* err)
{
    uint64_t n = 0;

    if (inner == DAMACY__BLOSC_LZ4) {
        return damacy__lz4_decode(src, dst, size, err);
    }
    if (inner == DAMACY__BLOSC_ZSTD) {
        DAMACY__TRY(damacy__zstd_open(tools->zstd, tools->libraries, tools->skip_checksums, err));
        return damacy__zstd_decode(tools->zstd, src, dst, size, NULL, err);
    }
    DAMACY__TRY(damacy__inflate(tools->libraries, false, src, dst, size, &n, err));
    if (n != size) {
        return damacy__fail(err, DAMACY_DECODE, "zlib: decoded to %" PRIu64 " bytes, %zu are due",
                            n, size);
    }
    return DAMACY_OK;
}

/* The streams of one block, one after another, into to; the block's shuffle is still there. */
static damacy_status damacy__blosc_streams(const damacy__blosc_tools* tools, const damacy__blosc* b,
                                           damacy__span src, size_t at, uint32_t n_streams,
                                           uint32_t stream_size, uint8_t* to, damacy_error* err)
{
    for (uint32_t i = 0; i < n_streams; i++) {
        uint32_t stored;
        if (src.size - at < 4) {
            return damacy__blosc_refuse(err, at, "a stream is cut short");
        }
        stored = damacy__load_u32le(src.ptr + at);
        at += 4;
        if (stored == 0 || stored > src.size - at) {
            return damacy__blosc_refuse(err, at - 4, "a stream's size is impossible");
        }
        if (stored == stream_size) {
            memcpy(to + (size_t)i * stream_size, src.ptr + at, stored);
        } else {
            damacy_status status;
            err->offset = 0; /* of the stream, until what is inside it says more */
            status = damacy__blosc_stream(tools, b->inner, damacy__span_of(src.ptr + at, stored),
                                          to + (size_t)i * stream_size, stream_size, err);
            if (status != DAMACY_OK) {
                err->offset += at;
                return damacy__fail(err, status, "blosc stream of %u bytes at byte %zu: %s", stored,
                                    at, err->message);
            }
        }
        at += stored;
    }
    return DAMACY_OK;
}

/* One block: streams, then the shuffle undone. */
static damacy_status damacy__blosc_decode_block(const damacy__blosc_tools* tools,
                                                const damacy__blosc* b, damacy__span src,
                                                uint32_t block, uint8_t* dst, damacy_error* err)
{
    const uint32_t rest = b->size % b->block_size;
    const bool is_leftover = block + 1 == b->n_blocks && rest != 0;
    const uint32_t size = is_leftover ? rest : b->block_size;
    const uint32_t start = damacy__load_u32le(src.ptr + DAMACY__BLOSC_HEADER + 4 * (size_t)block);
    const bool is_split =
        b->is_split_allowed && b->width <= 16 && size / b->width >= 128 && !is_leftover;
    const uint32_t n_streams = is_split ? b->width : 1;
    const bool bytes = b->is_shuffled && b->width > 1;
    const bool bits = b->is_bit_shuffled && size >= b->width;
    uint8_t* to = bytes || bits ? tools->scratch : dst;

    if (start < DAMACY__BLOSC_HEADER + 4 * (size_t)b->n_blocks || start > src.size) {
        return damacy__blosc_refuse(err, DAMACY__BLOSC_HEADER + 4 * (size_t)block,
                                    "a block start outside the chunk");
    }
    if (size % n_streams != 0) {
        return damacy__blosc_refuse(err, 8, "a block that does not split evenly");
    }
    DAMACY__TRY(damacy__blosc_streams(tools, b, src, start, n_streams, size / n_streams, to, err));
    if (bytes) {
        damacy__unshuffle(dst, to, size, b->width);
    } else if (bits) {
        damacy__unshuffle_bits(dst, to, size, b->width);
    }
    err->offset = UINT64_MAX;
    return DAMACY_OK;
}

/* Decodes a parsed chunk to blosc->size bytes. */
static damacy_status damacy__blosc_decode(const damacy__blosc_tools* tools,
                                          const damacy__blosc* blosc, damacy__span src,
                                          uint8_t* dst, damacy_error* err)
{
    if (blosc->is_stored) {
        memcpy(dst, src.ptr + DAMACY__BLOSC_HEADER, blosc->size);
        return DAMACY_OK;
    }
    for (uint32_t i = 0; i < blosc->n_blocks; i++) {
        DAMACY__TRY(damacy__blosc_decode_block(tools, blosc, src, i,
                                               dst + (size_t)i * blosc->block_size, err));
    }
    return DAMACY_OK;
}
