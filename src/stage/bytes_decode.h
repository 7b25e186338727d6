/* The bytes-to-bytes part of a codec chain, undone on the host.
 *
 * One codec decodes straight into its destination; several pass through two scratch buffers that
 * grow to what was needed and stay. A checksum is compared and cut off without a copy. No
 * intermediate result may be larger than what encoders can make of the chunk's known size. */
#pragma once
#include "base/crc32c.h"
#include "codec/blosc.h"
#include "format/layout.h"

/* Memory that grows. */
typedef struct damacy__scratch {
    uint8_t* ptr;
    uint64_t size;
} damacy__scratch;

/* What one worker decodes with. */
typedef struct damacy__decoder {
    damacy__libraries* libraries;
    damacy__alloc* alloc;
    bool skip_checksums;
    damacy__zstd zstd;
    damacy__scratch between[2]; /* results between codecs */
    damacy__scratch block;      /* a shuffled blosc block */
} damacy__decoder;

static damacy_status damacy__decoder_init(damacy__decoder* decoder, damacy__libraries* libraries,
                                          damacy__alloc* alloc, bool skip_checksums,
                                          damacy_error* err);
static void damacy__decoder_deinit(damacy__decoder* decoder);
static damacy_status damacy__bytes_decode(damacy__decoder* decoder, const damacy__codec* codecs,
                                          uint32_t n, damacy__span src, uint8_t* dst,
                                          uint64_t capacity, uint64_t* size, damacy_error* err);

static damacy_status damacy__decoder_init(damacy__decoder* decoder, damacy__libraries* libraries,
                                          damacy__alloc* alloc, bool skip_checksums,
                                          damacy_error* err)
{
    (void)err;
    memset(decoder, 0, sizeof *decoder);
    decoder->libraries = libraries;
    decoder->alloc = alloc;
    decoder->zstd.alloc = alloc;
    decoder->skip_checksums = skip_checksums;
    return DAMACY_OK;
}

static damacy_status damacy__scratch_reserve(damacy__scratch* scratch, damacy__alloc* alloc,
                                             uint64_t size, damacy_error* err)
{
    uint8_t* ptr;

    if (size <= scratch->size) {
        return DAMACY_OK;
    }
    ptr = damacy__new(alloc, size, uint8_t);
    if (!ptr) {
        return damacy__fail(err, DAMACY_OOM, "%" PRIu64 " bytes to decode in", size);
    }
    damacy__free(alloc, scratch->ptr, scratch->size);
    scratch->ptr = ptr;
    scratch->size = size;
    return DAMACY_OK;
}

/* A zeroed record is left alone. */
static void damacy__decoder_deinit(damacy__decoder* decoder)
{
    damacy__zstd_close(&decoder->zstd);
    for (uint32_t i = 0; i < 2; i++) {
        if (decoder->between[i].ptr) {
            damacy__free(decoder->alloc, decoder->between[i].ptr, decoder->between[i].size);
        }
    }
    if (decoder->block.ptr) {
        damacy__free(decoder->alloc, decoder->block.ptr, decoder->block.size);
    }
    memset(decoder, 0, sizeof *decoder);
}

/* Compares and cuts off a CRC-32C. */
static damacy_status damacy__decode_crc32c(const damacy__decoder* decoder, damacy__span* src,
                                           damacy_error* err)
{
    uint32_t stored;
    uint32_t computed;

    if (src->size < 4) {
        return damacy__fail(err, DAMACY_DECODE, "crc32c: %zu bytes cannot hold a checksum",
                            src->size);
    }
    src->size -= 4;
    if (decoder->skip_checksums) {
        return DAMACY_OK;
    }
    err->offset = src->size;
    stored = damacy__load_u32le(src->ptr + src->size);
    computed = damacy__crc32c(src->ptr, src->size);
    if (stored != computed) {
        return damacy__fail(err, DAMACY_DECODE,
                            "crc32c: checksum is %08" PRIx32 ", the %zu bytes give %08" PRIx32,
                            stored, src->size, computed);
    }
    err->offset = UINT64_MAX;
    return DAMACY_OK;
}

/* size NULL: exactly capacity bytes are demanded; as for all that follow. */
static damacy_status damacy__decode_blosc(damacy__decoder* decoder, damacy__span src, uint8_t* dst,
                                          uint64_t capacity, uint64_t* size, damacy_error* err)
{
    damacy__blosc_tools tools;
    damacy__blosc blosc = {0};

    DAMACY__TRY(damacy__blosc_parse(src, size ? UINT64_MAX : capacity, &blosc, err));
    if (blosc.size > capacity) {
        return damacy__fail(err, DAMACY_DECODE,
                            "blosc: the header says %u bytes, at most %" PRIu64 " are due",
                            blosc.size, capacity);
    }
    tools.libraries = decoder->libraries;
    tools.zstd = &decoder->zstd;
    tools.skip_checksums = decoder->skip_checksums;
    DAMACY__TRY(damacy__scratch_reserve(&decoder->block, decoder->alloc,
                                        damacy__blosc_scratch(&blosc), err));
    tools.scratch = decoder->block.ptr;
    if (size) {
        *size = blosc.size;
    }
    return damacy__blosc_decode(&tools, &blosc, src, dst, err);
}

static damacy_status damacy__decode_lz4(damacy__span src, uint8_t* dst, uint64_t capacity,
                                        uint64_t* size, damacy_error* err)
{
    uint32_t stored;

    if (src.size < 4) {
        return damacy__fail(err, DAMACY_DECODE, "lz4: %zu bytes cannot hold the size in front",
                            src.size);
    }
    stored = damacy__load_u32le(src.ptr);
    if (stored > capacity || (!size && stored != capacity)) {
        return damacy__fail(err, DAMACY_DECODE,
                            "lz4: the size in front is %u bytes, %s%" PRIu64 " are due", stored,
                            size ? "at most " : "", capacity);
    }
    if (size) {
        *size = stored;
    }
    if (damacy__lz4_decode(damacy__span_of(src.ptr + 4, src.size - 4), dst, stored, err) !=
        DAMACY_OK) {
        err->offset += err->offset == UINT64_MAX ? 0 : 4;
        return err->status;
    }
    return DAMACY_OK;
}

static damacy_status damacy__decode_inflate(damacy__decoder* decoder, bool is_gzip,
                                            damacy__span src, uint8_t* dst, uint64_t capacity,
                                            uint64_t* size, damacy_error* err)
{
    uint64_t n = 0;

    DAMACY__TRY(damacy__inflate(decoder->libraries, is_gzip, src, dst, capacity, &n, err));
    if (!size && n != capacity) {
        return damacy__fail(err, DAMACY_DECODE,
                            "%s: decoded to %" PRIu64 " bytes, the chunk has %" PRIu64,
                            is_gzip ? "gzip" : "zlib", n, capacity);
    }
    if (size) {
        *size = n;
    }
    return DAMACY_OK;
}

/* One codec. */
static damacy_status damacy__decode_step(damacy__decoder* decoder, uint32_t kind, damacy__span src,
                                         uint8_t* dst, uint64_t capacity, uint64_t* size,
                                         damacy_error* err)
{
    switch (kind) {
    case DAMACY__CODEC_ZSTD:
        DAMACY__TRY(
            damacy__zstd_open(&decoder->zstd, decoder->libraries, decoder->skip_checksums, err));
        return damacy__zstd_decode(&decoder->zstd, src, dst, capacity, size, err);
    case DAMACY__CODEC_BLOSC:
        return damacy__decode_blosc(decoder, src, dst, capacity, size, err);
    case DAMACY__CODEC_GZIP:
    case DAMACY__CODEC_ZLIB:
        return damacy__decode_inflate(decoder, kind == DAMACY__CODEC_GZIP, src, dst, capacity, size,
                                      err);
    case DAMACY__CODEC_LZ4:
        return damacy__decode_lz4(src, dst, capacity, size, err);
    default:
        return damacy__fail(err, DAMACY_UNSUPPORTED, "codec %u has no decoder on the host", kind);
    }
}

/* Undoes n bytes-to-bytes codecs (given in the order of encoding). size NULL: exactly capacity
 * bytes at dst; else at most as many, and their number in *size. err->offset is a place in the
 * stored bytes; a place in an intermediate result is left out. */
static damacy_status damacy__bytes_decode(damacy__decoder* decoder, const damacy__codec* codecs,
                                          uint32_t n, damacy__span src, uint8_t* dst,
                                          uint64_t capacity, uint64_t* size, damacy_error* err)
{
    const uint8_t* const stored = src.ptr;
    uint32_t n_left = 0; /* codecs before this one that change bytes */
    uint32_t turn = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_left += codecs[i].kind != DAMACY__CODEC_CRC32C;
    }
    err->offset = UINT64_MAX;
    for (uint32_t i = n; i-- > 0;) {
        uint64_t room = capacity + 4 * (uint64_t)i;
        uint8_t* to = dst;
        uint64_t got = 0;
        bool is_exact;
        damacy_status status;
        if (codecs[i].kind == DAMACY__CODEC_CRC32C) {
            status = damacy__decode_crc32c(decoder, &src, err);
            if (status != DAMACY_OK) {
                err->offset = src.ptr == stored ? err->offset : UINT64_MAX;
                return status;
            }
            continue;
        }
        n_left--;
        is_exact = n_left == 0 && !size; /* only checksums are left, of 4 bytes each */
        if (i > 0) {
            room += n_left * (capacity / 64 + 65536);
            DAMACY__TRY(
                damacy__scratch_reserve(&decoder->between[turn], decoder->alloc, room, err));
            to = decoder->between[turn].ptr;
            turn ^= 1;
        }
        status = damacy__decode_step(decoder, codecs[i].kind, src, to, room, is_exact ? NULL : &got,
                                     err);
        if (status != DAMACY_OK) {
            err->offset = src.ptr == stored ? err->offset : UINT64_MAX;
            return status;
        }
        src = damacy__span_of(to, (size_t)(is_exact ? room : got));
    }
    if (src.size > capacity || (!size && src.size != capacity)) {
        return damacy__fail(err, DAMACY_DECODE, "%zu decoded bytes, %s%" PRIu64 " are due",
                            src.size, size ? "at most " : "", capacity);
    }
    if (src.ptr != dst && src.size) {
        memcpy(dst, src.ptr, src.size);
    }
    if (size) {
        *size = src.size;
    }
    return DAMACY_OK;
}
