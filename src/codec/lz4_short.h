/* The loop of the LZ4 decoder that most sequences go through. Source: lz4_Block_format.md. */
#pragma once
#include "base/base.h"

/* Copies n bytes in steps of 16, up to 15 too many: there is room for 16 more. Source and
 * destination do not overlap within 16 bytes. */
DAMACY__ALWAYS_INLINE void damacy__lz4_copy(uint8_t* dst, const uint8_t* src, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        memcpy(dst + i, src + i, 16);
    }
}

/* Decodes sequences of few literals and short matches far from both ends, until one is not; these
 * need the fewest checks, and are most. *in and *out move on. */
static void damacy__lz4_short_run(const uint8_t** in, const uint8_t* in_end, uint8_t** out,
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
