/* LZ4 blocks on the host: our own decoder, so that hostile bytes meet nothing but checked copies.
 *
 * Two containers: a bare block whose decoded size is known from outside (inside blosc), and
 * numcodecs' form, a 32-bit little-endian decoded size and then the block. Source:
 * lz4_Block_format.md. */
#pragma once
#include "base/error.h"

static damacy_status damacy__lz4_decode(damacy__span src, uint8_t* dst, size_t size,
                                        damacy_error* err);

static damacy_status damacy__lz4_refuse(damacy_error* err, size_t at, const char* what)
{
    err->offset = at;
    return damacy__fail(err, DAMACY_DECODE, "lz4: %s at byte %zu", what, at);
}

/* A length: 15 in the token is followed by bytes that add up to the first below 255. */
static inline bool damacy__lz4_length(damacy__span src, size_t* at, size_t* length)
{
    uint8_t byte = 255;

    if (*length < 15) {
        return true;
    }
    while (byte == 255) {
        if (*at == src.size) {
            return false;
        }
        byte = src.ptr[(*at)++];
        *length += byte;
    }
    return true;
}

/* Copies n bytes from `offset` bytes back, which may overlap; there is room. */
static inline void damacy__lz4_match(uint8_t* dst, size_t offset, size_t n)
{
    const uint8_t* from = dst - offset;

    if (offset >= n) {
        memcpy(dst, from, n);
    } else if (offset == 1) {
        memset(dst, from[0], n);
    } else {
        /* Doubles what is there: each step copies as much as lies before dst. */
        while (n > offset) {
            memcpy(dst, from, offset);
            dst += offset;
            n -= offset;
            offset *= 2;
        }
        memcpy(dst, from, n);
    }
}

/* Decodes one block to exactly size bytes, using up exactly src. */
static damacy_status damacy__lz4_decode(damacy__span src, uint8_t* dst, size_t size,
                                        damacy_error* err)
{
    size_t at = 0;
    size_t n = 0;

    if (src.size == 0) {
        return damacy__lz4_refuse(err, 0, "no bytes");
    }
    while (at < src.size) {
        const uint8_t token = src.ptr[at++];
        size_t literals = token >> 4;
        size_t match = token & 15;
        size_t offset;
        if (!damacy__lz4_length(src, &at, &literals)) {
            return damacy__lz4_refuse(err, at, "a length is cut short");
        }
        if (literals > src.size - at || literals > size - n) {
            return damacy__lz4_refuse(err, at, "literals beyond the end");
        }
        memcpy(dst + n, src.ptr + at, literals);
        n += literals;
        at += literals;
        if (at == src.size) {
            break; /* the last sequence has literals only */
        }
        if (src.size - at < 2) {
            return damacy__lz4_refuse(err, at, "an offset is cut short");
        }
        offset = damacy__load_u16le(src.ptr + at);
        at += 2;
        if (offset == 0 || offset > n) {
            return damacy__lz4_refuse(err, at - 2, "an offset before the start");
        }
        if (!damacy__lz4_length(src, &at, &match)) {
            return damacy__lz4_refuse(err, at, "a length is cut short");
        }
        match += 4;
        if (match > size - n) {
            return damacy__lz4_refuse(err, at, "a match beyond the end");
        }
        damacy__lz4_match(dst + n, offset, match);
        n += match;
        if (at == src.size) {
            return damacy__lz4_refuse(err, at, "no final literals");
        }
    }
    if (n != size) {
        return damacy__fail(err, DAMACY_DECODE, "lz4: decoded to %zu bytes, %zu are due", n, size);
    }
    return DAMACY_OK;
}
