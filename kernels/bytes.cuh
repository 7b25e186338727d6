// Loads and copies at any alignment that touch no byte outside the range they are given: aligned
// words in the interior, single bytes at the edges.
#pragma once

#include "kernels/warp.cuh"

// The n bytes at p, 1 to 8 of them, little-endian; what lies above them is unspecified. Reads only
// inside [low, high), which holds those bytes.
DAMACY__INLINE damacy__u32x2 damacy__gather8(const uint8_t* p, uint32_t n, const uint8_t* low,
                                             const uint8_t* high)
{
    const uint64_t at = (uint64_t)(uintptr_t)p;
    const uint32_t skew = (uint32_t)(at & 7);
    damacy__u32x2 r;
    if (at - skew >= (uint64_t)(uintptr_t)low && at - skew + 16 <= (uint64_t)(uintptr_t)high) {
        const damacy__u32x2* words = (const damacy__u32x2*)(uintptr_t)(at - skew);
        const damacy__u32x2 a = words[0];
        damacy__u32x2 b = {0, 0};
        if (skew + n > 8)
            b = words[1];
        const bool is_high = skew >= 4;
        const uint32_t w0 = is_high ? a.y : a.x, w1 = is_high ? b.x : a.y;
        r.x = damacy__funnel_right(w0, w1, 8 * skew);
        r.y = damacy__funnel_right(w1, is_high ? b.y : b.x, 8 * skew);
        return r;
    }
    r.x = r.y = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i < 4)
            r.x |= (uint32_t)p[i] << (8 * i);
        else
            r.y |= (uint32_t)p[i] << (8 * i - 32);
    }
    return r;
}

// n bytes, 1 to 8, to dst at any alignment.
DAMACY__INLINE void damacy__scatter8(uint8_t* dst, damacy__u32x2 v, uint32_t n)
{
    dst[0] = (uint8_t)v.x;
    if (n > 1)
        dst[1] = (uint8_t)(v.x >> 8);
    if (n > 2)
        dst[2] = (uint8_t)(v.x >> 16);
    if (n > 3)
        dst[3] = (uint8_t)(v.x >> 24);
    if (n > 4) {
        dst[4] = (uint8_t)v.y;
        if (n > 5)
            dst[5] = (uint8_t)(v.y >> 8);
        if (n > 6)
            dst[6] = (uint8_t)(v.y >> 16);
        if (n > 7)
            dst[7] = (uint8_t)(v.y >> 24);
    }
}

// Sixteen bytes at any p with low <= p and p + 16 <= high. Reads only inside [low, high).
DAMACY__INLINE damacy__u32x4 damacy__load16(const uint8_t* p, const uint8_t* low,
                                            const uint8_t* high)
{
    const uint64_t at = (uint64_t)(uintptr_t)p;
    const uint32_t skew = (uint32_t)(at & 3);
    damacy__u32x4 r;
    if ((at & 15) == 0)
        return *(const damacy__u32x4*)p;
    if (at - skew >= (uint64_t)(uintptr_t)low && at + 20 - skew <= (uint64_t)(uintptr_t)high) {
        const uint32_t* words = (const uint32_t*)(uintptr_t)(at - skew);
        const uint32_t w0 = words[0], w1 = words[1], w2 = words[2], w3 = words[3], w4 = words[4];
        r = damacy__funnel_right4(w0, w1, w2, w3, w4, 8 * skew);
        return r;
    }
    uint32_t w[4] = {0, 0, 0, 0};
    for (uint32_t i = 0; i < 16; i++)
        w[i / 4] |= (uint32_t)p[i] << (8 * (i % 4));
    r.x = w[0];
    r.y = w[1];
    r.z = w[2];
    r.w = w[3];
    return r;
}

// Threads 0 ... step - 1, of which the caller is `me`, copy size bytes between ranges that do not
// overlap.
DAMACY__INLINE void damacy__copy_group(uint8_t* dst, const uint8_t* src, uint64_t size, uint32_t me,
                                       uint32_t step)
{
    uint64_t head = (0 - (uint64_t)(uintptr_t)dst) & 15;
    if (head > size)
        head = size;
    for (uint64_t i = me; i < head; i += step)
        dst[i] = src[i];
    const uint64_t n_units = (size - head) / 16;
    const uint8_t* const high = src + size;
#pragma unroll 2
    for (uint64_t i = me; i < n_units; i += step)
        *(damacy__u32x4*)(dst + head + 16 * i) = damacy__load16(src + head + 16 * i, src, high);
    for (uint64_t i = head + 16 * n_units + me; i < size; i += step)
        dst[i] = src[i];
}
