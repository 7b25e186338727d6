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

/* Adds the bytes that follow a length whose field is full, up to the first below 255. */
static inline bool damacy__lz4_length(const uint8_t** in, const uint8_t* end, size_t* length)
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

/* Copies n bytes in steps of 16, up to 15 too many: there is room for 16 more. Source and
 * destination do not overlap within 16 bytes. */
static inline void damacy__lz4_copy(uint8_t* dst, const uint8_t* src, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        memcpy(dst + i, src + i, 16);
    }
}

/* Copies n bytes from `offset` bytes back, which may overlap; room: bytes that may be written, at
 * least n. */
static inline void damacy__lz4_match(uint8_t* dst, size_t offset, size_t n, size_t room)
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

/* Decodes sequences of few literals and short matches far from both ends, until one is not; these
 * need the fewest checks, and are most. */
static inline void damacy__lz4_short_run(const uint8_t** in, const uint8_t* in_end, uint8_t** out,
                                         const uint8_t* out_end, const uint8_t* dst)
{
    enum { DAMACY__FAR = 320 }; /* a sequence takes at most 274 bytes and writes at most 304 */
    /* By offset: times this the pattern fills 8 bytes, and after them lies so far back again. */
    static const uint64_t fill[8] = {
        0,
        UINT64_C(0x0101010101010101),
        UINT64_C(0x0001000100010001),
        UINT64_C(0x0001000001000001),
        UINT64_C(0x0000000100000001),
        UINT64_C(0x0000010000000001),
        UINT64_C(0x0001000000000001),
        UINT64_C(0x0100000000000001),
    };
    static const uint8_t back[8] = {0, 8, 8, 9, 8, 10, 12, 14};
    const uint8_t* at = *in;
    uint8_t* to = *out;

    while (in_end - at >= DAMACY__FAR && out_end - to >= DAMACY__FAR) {
        const uint32_t token = at[0];
        const uint8_t* literals = at + 1;
        size_t n = token >> 4;
        size_t offset;
        if (n == 15) {
            n += *literals++;
            memcpy(to, literals, 32); /* most are no longer */
            if (n > 32) {
                damacy__lz4_copy(to + 32, literals + 32, n - 32);
            }
        } else {
            memcpy(to, literals, 16);
        }
        offset = damacy__load_u16le(literals + n);
        if (n == 270 || (token & 15) == 15 || offset == 0 || offset > (size_t)(to - dst) + n) {
            break; /* what was copied is copied again */
        }
        at = literals + n + 2;
        to += n;
        if (offset < 8) {
            const uint64_t once =
                damacy__load_u64le(to - offset) & ((UINT64_C(1) << 8 * offset) - 1);
            damacy__store_u64le(to, once * fill[offset]);
            offset = back[offset];
        } else {
            memcpy(to, to - offset, 8);
        }
        memcpy(to + 8, to + 8 - offset, 8);
        memcpy(to + 16, to + 16 - offset, 2);
        to += (token & 15) + 4;
    }
    *in = at;
    *out = to;
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
