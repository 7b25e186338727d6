/* LZ4 blocks on the host: our own decoder, so that hostile bytes meet nothing but checked copies.
 *
 * Two containers: a bare block whose decoded size is known from outside (inside blosc), and
 * numcodecs' form, a 32-bit little-endian decoded size and then the block. Source:
 * lz4_Block_format.md. */
#pragma once
#include "base/error.h"
#include "codec/lz4_short.h"

static damacy_status damacy__lz4_decode(damacy__span src, uint8_t* dst, size_t size,
                                        damacy_error* err);

static damacy_status damacy__lz4_refuse(damacy_error* err, size_t at, const char* what)
{
    err->offset = at;
    return damacy__fail(err, DAMACY_DECODE, "lz4: %s at byte %zu", what, at);
}

/* Adds the bytes that follow a length whose field is full, up to the first below 255. */
DAMACY__ALWAYS_INLINE bool damacy__lz4_length(const uint8_t** in, const uint8_t* end,
                                              size_t* length)
{
    uint8_t byte = 255;

    while (byte == 255) {
        if (*in == end) {
            return false;
        }
        byte = *(*in)++;
        *length += byte;
    }
    return true;
}

/* Copies n bytes from `offset` bytes back, which may overlap; room: bytes that may be written, at
 * least n. */
DAMACY__ALWAYS_INLINE void damacy__lz4_match(uint8_t* dst, size_t offset, size_t n, size_t room)
{
    const uint8_t* from = dst - offset;

    if (offset == 1) {
        memset(dst, from[0], n);
    } else if (room - n >= 16 && offset >= 16) {
        damacy__lz4_copy(dst, from, n);
    } else if (room - n >= 16) {
        if (offset < 8) { /* after 8 bytes the same pattern lies a multiple of offset back */
            for (size_t i = 0; i < 8; i++) {
                dst[i] = from[i];
            }
            offset *= (7 + offset) / offset;
        } else {
            memcpy(dst, from, 8);
        }
        for (size_t i = 8; i < n; i += 8) {
            memcpy(dst + i, dst + i - offset, 8);
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            dst[i] = from[i];
        }
    }
}

/* Decodes one block to exactly size bytes, using up exactly src. */
static damacy_status damacy__lz4_decode(damacy__span src, uint8_t* dst, size_t size,
                                        damacy_error* err)
{
    const uint8_t* in = src.ptr;
    const uint8_t* const in_end = in + src.size;
    uint8_t* out = dst;
    uint8_t* const out_end = dst + size;

    if (src.size == 0) {
        return damacy__lz4_refuse(err, 0, "no bytes");
    }
    for (;;) {
        uint32_t token;
        size_t n;
        size_t offset;
        damacy__lz4_short_run(&in, in_end, &out, out_end, dst);
        token = *in++;
        n = token >> 4;
        if (n == 15 && !damacy__lz4_length(&in, in_end, &n)) {
            return damacy__lz4_refuse(err, (size_t)(in - src.ptr), "a length is cut short");
        }
        if (n > (size_t)(in_end - in) || n > (size_t)(out_end - out)) {
            return damacy__lz4_refuse(err, (size_t)(in - src.ptr), "literals beyond the end");
        }
        if ((size_t)(in_end - in) - n >= 16 && (size_t)(out_end - out) - n >= 16) {
            damacy__lz4_copy(out, in, n);
        } else {
            memcpy(out, in, n);
        }
        in += n;
        out += n;
        if (in == in_end) {
            break; /* the last sequence has literals only */
        }
        if (in_end - in < 2) {
            return damacy__lz4_refuse(err, (size_t)(in - src.ptr), "an offset is cut short");
        }
        offset = damacy__load_u16le(in);
        in += 2;
        if (offset == 0 || offset > (size_t)(out - dst)) {
            return damacy__lz4_refuse(err, (size_t)(in - src.ptr) - 2,
                                      "an offset before the start");
        }
        n = (token & 15) + 4;
        if (n == 19 && !damacy__lz4_length(&in, in_end, &n)) {
            return damacy__lz4_refuse(err, (size_t)(in - src.ptr), "a length is cut short");
        }
        if (n > (size_t)(out_end - out)) {
            return damacy__lz4_refuse(err, (size_t)(in - src.ptr), "a match beyond the end");
        }
        damacy__lz4_match(out, offset, n, (size_t)(out_end - out));
        out += n;
        if (in == in_end) {
            return damacy__lz4_refuse(err, src.size, "no final literals");
        }
    }
    if (out != out_end) {
        return damacy__fail(err, DAMACY_DECODE, "lz4: decoded to %zu bytes, %zu are due",
                            (size_t)(out - dst), size);
    }
    return DAMACY_OK;
}
