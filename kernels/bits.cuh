// Loads of little-endian numbers at any address, never outside the bytes they are told to read.
#pragma once

#include "kernels/warp.cuh"

// The first n (0-8) bytes at p as a number.
DAMACY__INLINE uint64_t damacy__load_le(const uint8_t* p, uint32_t n)
{
    uint64_t v = 0;
    for (uint32_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

DAMACY__INLINE uint32_t damacy__load_u32(const uint8_t* p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

// Up to 4 bytes from p below end, the rest zero.
DAMACY__INLINE uint32_t damacy__load_u32_until(const uint8_t* p, const uint8_t* end)
{
    uint32_t v = 0;
    for (uint32_t i = 0; i < 4; i++)
        if (p + i < end)
            v |= (uint32_t)p[i] << (8 * i);
    return v;
}

// The aligned word at address a (a multiple of 4) with the bytes outside [lo, hi) zero and unread.
DAMACY__INLINE uint32_t damacy__load_word_within(uint64_t a, uint64_t lo, uint64_t hi)
{
    uint32_t v = 0;
    if (a >= lo && a + 4 <= hi)
        return *(const uint32_t*)(uintptr_t)a;
    for (uint32_t i = 0; i < 4; i++)
        if (a + i >= lo && a + i < hi)
            v |= (uint32_t) * (const uint8_t*)(uintptr_t)(a + i) << (8 * i);
    return v;
}

// The 16 aligned bytes at address a (a multiple of 16), as above. Not inlined: for edges.
static __device__ __noinline__ damacy__u32x4 damacy__load_u32x4_within(uint64_t a, uint64_t lo,
                                                                       uint64_t hi)
{
    damacy__u32x4 v;
    if (a >= lo && a + 16 <= hi)
        return *(const damacy__u32x4*)(uintptr_t)a;
    v.x = damacy__load_word_within(a, lo, hi);
    v.y = damacy__load_word_within(a + 4, lo, hi);
    v.z = damacy__load_word_within(a + 8, lo, hi);
    v.w = damacy__load_word_within(a + 12, lo, hi);
    return v;
}
