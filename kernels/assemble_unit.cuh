// One unit of the assemble kernel: the source elements that belong to 16 bytes of output are
// loaded, converted and stored. Loads touch the elements' bytes only, at any alignment.
#pragma once

#include "kernels/assemble_abi.h"
#include "kernels/assemble_work.h"
#include "kernels/bytes.cuh"
#include "kernels/cast.cuh"

// An element of 1, 2, 4 or 8 bytes at any address.
DAMACY__INLINE uint64_t damacy__load_element(uint64_t at, uint32_t size)
{
    if ((at & (size - 1)) == 0) {
        if (size == 1)
            return *(const uint8_t*)(uintptr_t)at;
        if (size == 2)
            return *(const uint16_t*)(uintptr_t)at;
        if (size == 4)
            return *(const uint32_t*)(uintptr_t)at;
        return *(const uint64_t*)(uintptr_t)at;
    }
    uint64_t raw = 0;
    for (uint32_t i = 0; i < size; i++)
        raw |= (uint64_t) * (const uint8_t*)(uintptr_t)(at + i) << (8 * i);
    return raw;
}

DAMACY__INLINE void damacy__store_element(uint64_t at, uint32_t size, uint64_t bits)
{
    if (size == 1)
        *(uint8_t*)(uintptr_t)at = (uint8_t)bits;
    else if (size == 2)
        *(uint16_t*)(uintptr_t)at = (uint16_t)bits;
    else if (size == 4)
        *(uint32_t*)(uintptr_t)at = (uint32_t)bits;
    else
        *(uint64_t*)(uintptr_t)at = bits;
}

// N words from an address that is no multiple of 4: whole words inside, parts of one before and of
// one after.
template <uint32_t N> DAMACY__INLINE void damacy__load_words_skewed(uint64_t at, uint32_t* w)
{
    const uint32_t skew = (uint32_t)at & 3;
    const uint64_t base = at - skew;
    uint32_t low = 0, high = 0;
    if (skew == 2) {
        low = (uint32_t) * (const uint16_t*)(uintptr_t)at << 16;
        high = *(const uint16_t*)(uintptr_t)(base + 4 * N);
    } else {
        for (uint32_t i = skew; i < 4; i++)
            low |= (uint32_t) * (const uint8_t*)(uintptr_t)(base + i) << (8 * i);
        for (uint32_t i = 0; i < skew; i++)
            high |= (uint32_t) * (const uint8_t*)(uintptr_t)(base + 4 * N + i) << (8 * i);
    }
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t next = i + 1 < N ? *(const uint32_t*)(uintptr_t)(base + 4 * (i + 1)) : high;
        w[i] = damacy__funnel_right(low, next, 8 * skew);
        low = next;
    }
}

// N words from an address at any alignment, touching exactly 4 * N bytes.
template <uint32_t N> DAMACY__INLINE void damacy__load_words(uint64_t at, uint32_t* w)
{
    if constexpr (N % 4 == 0) {
        if ((at & 15) == 0) {
#pragma unroll
            for (uint32_t i = 0; i < N; i += 4) {
                const damacy__u32x4 v = *(const damacy__u32x4*)(uintptr_t)(at + 4 * i);
                w[i] = v.x;
                w[i + 1] = v.y;
                w[i + 2] = v.z;
                w[i + 3] = v.w;
            }
            return;
        }
    }
    if constexpr (N % 2 == 0) {
        if ((at & 7) == 0) {
#pragma unroll
            for (uint32_t i = 0; i < N; i += 2) {
                const damacy__u32x2 v = *(const damacy__u32x2*)(uintptr_t)(at + 4 * i);
                w[i] = v.x;
                w[i + 1] = v.y;
            }
            return;
        }
    }
    if ((at & 3) == 0) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            w[i] = *(const uint32_t*)(uintptr_t)(at + 4 * i);
    } else {
        damacy__load_words_skewed<N>(at, w);
    }
}

// Reverses the low `size` bytes.
DAMACY__INLINE uint64_t damacy__swap_bytes(uint64_t raw, uint32_t size)
{
    const uint32_t low = (uint32_t)raw, high = (uint32_t)(raw >> 32);
    if (size == 2)
        return damacy__bytes(low, 0, 0x4401) & 0xffff;
    if (size == 4)
        return damacy__bytes(low, 0, 0x0123);
    if (size == 8)
        return (uint64_t)damacy__bytes(low, 0, 0x0123) << 32 | damacy__bytes(high, 0, 0x0123);
    return raw;
}

// Voxels [first, last) of a line: where it starts on both sides, and the channel of its voxel 0.
typedef struct damacy__line {
    uint64_t src;
    uint64_t dst;
    uint32_t channel;
    uint32_t channel_step; // 1 along the line of a channel axis
} damacy__line;

DAMACY__INLINE damacy__linear damacy__linear_of(const damacy__assemble_wave* wave, uint32_t channel)
{
    const uint32_t c = wave->n_channels > 1 ? channel : 0;
    damacy__linear r;
    r.scale = wave->scale ? ((const float*)(uintptr_t)wave->scale)[c] : 1.0f;
    r.offset = wave->offset ? ((const float*)(uintptr_t)wave->offset)[c] : 0.0f;
    return r;
}

// A voxel of which the bits are at hand.
template <uint32_t S>
DAMACY__INLINE uint64_t damacy__voxel(const damacy__assemble_wave* wave, uint64_t raw, bool swap,
                                      uint32_t out, const damacy__line* line, uint32_t j)
{
    if (swap)
        raw = damacy__swap_bytes(raw, damacy__type_size(S));
    if (damacy__type_is_float(out) && wave->n_channels != 0)
        return damacy__convert_linear<S>(
            raw, out, damacy__linear_of(wave, line->channel + j * line->channel_step));
    return damacy__convert<S>(raw, out);
}

// Voxels [first, last) one by one.
template <uint32_t S>
DAMACY__INLINE void damacy__unit_slow(const damacy__assemble_wave* wave,
                                      const damacy__assemble_job* job, const damacy__line* line,
                                      uint32_t first, uint32_t last, uint32_t out)
{
    const bool is_fill = (job->flags & DAMACY__COPY_FILL) != 0;
    const bool swap = !is_fill && (job->flags & DAMACY__COPY_SWAP) != 0;
    for (uint32_t j = first; j < last; j++) {
        const uint64_t raw =
            is_fill ? job->fill
                    : damacy__load_element(line->src + (uint64_t)((int64_t)j * job->src_step),
                                           damacy__type_size(S));
        damacy__store_element(line->dst + (uint64_t)((int64_t)j * job->dst_step),
                              damacy__type_size(out),
                              damacy__voxel<S>(wave, raw, swap, out, line, j));
    }
}

// An element at an aligned address.
template <uint32_t SIZE> DAMACY__INLINE uint64_t damacy__load_aligned(uint64_t at)
{
    if constexpr (SIZE == 1)
        return *(const uint8_t*)(uintptr_t)at;
    else if constexpr (SIZE == 2)
        return *(const uint16_t*)(uintptr_t)at;
    else if constexpr (SIZE == 4)
        return *(const uint32_t*)(uintptr_t)at;
    else
        return *(const uint64_t*)(uintptr_t)at;
}

// Elements [a, b) of a unit, one by one, packed as they would be side by side; the others are 0.
template <uint32_t SIZE, uint32_t COUNT>
DAMACY__INLINE void damacy__gather(uint64_t at, int64_t step, uint32_t a, uint32_t b, uint32_t* in)
{
    constexpr uint32_t n_words = (COUNT * SIZE + 3) / 4;
    const bool is_aligned = (at & (SIZE - 1)) == 0; // a step is a multiple of SIZE
#pragma unroll
    for (uint32_t i = 0; i < n_words; i++)
        in[i] = 0;
#pragma unroll
    for (uint32_t j = 0; j < COUNT; j++) {
        if (j < a || j >= b)
            continue;
        const uint64_t p = at + (uint64_t)((int64_t)j * step);
        const uint64_t raw =
            is_aligned ? damacy__load_aligned<SIZE>(p) : damacy__load_element(p, SIZE);
        in[j * SIZE / 4] |= (uint32_t)raw << (8 * (j * SIZE % 4));
        if constexpr (SIZE == 8)
            in[2 * j + 1] = (uint32_t)(raw >> 32);
    }
}

// Positions [a, b) of the unit of which position 0 is voxel `first` of the line, perhaps one before
// it. The output runs along the line, position 0 at an aligned address.
template <uint32_t S, uint32_t D>
DAMACY__INLINE void damacy__unit(const damacy__assemble_wave* wave, const damacy__assemble_job* job,
                                 const damacy__line* line, int64_t first, uint32_t a, uint32_t b)
{
    constexpr uint32_t size = damacy__type_size(S), out_size = damacy__type_size(D);
    constexpr uint32_t count = 16 / out_size, n_words = (count * size + 3) / 4;
    const bool is_fill = (job->flags & DAMACY__COPY_FILL) != 0;
    const bool swap = !is_fill && (job->flags & DAMACY__COPY_SWAP) != 0;
    const bool is_whole = b - a == count;
    const uint64_t at = line->src + (uint64_t)(first * job->src_step);
    const uint64_t to = line->dst + (uint64_t)(first * (int64_t)out_size);
    uint32_t in[n_words];
    uint32_t result[4] = {0, 0, 0, 0};
    if (is_fill) {
#pragma unroll
        for (uint32_t i = 0; i < n_words; i++)
            in[i] = size == 1   ? (uint32_t)(job->fill & 255) * 0x01010101u
                    : size == 2 ? (uint32_t)(job->fill & 65535) * 0x00010001u
                                : (uint32_t)(size == 8 && i % 2 ? job->fill >> 32 : job->fill);
    } else if (count * size >= 4 && is_whole && job->src_step == (int64_t)size) {
        damacy__load_words<n_words>(at, in);
    } else {
        damacy__gather<size, count>(at, job->src_step, a, b, in);
    }
#pragma unroll
    for (uint32_t j = 0; j < count; j++) {
        uint64_t raw = in[j * size / 4] >> (8 * (j * size % 4));
        if (size == 1)
            raw &= 255;
        if (size == 2)
            raw &= 65535;
        if constexpr (size == 8)
            raw |= (uint64_t)in[2 * j + 1] << 32;
        if (damacy__type_is_float(D) && wave->n_channels > 1 && (j < a || j >= b))
            continue; // no channel to look up
        const uint64_t bits =
            damacy__voxel<S>(wave, raw, swap, D, line, (uint32_t)(first + (int64_t)j));
        if constexpr (out_size == 8) {
            result[2 * j] = (uint32_t)bits;
            result[2 * j + 1] = (uint32_t)(bits >> 32);
        } else {
            const uint32_t mask = out_size == 4 ? ~0u : (1u << (8 * out_size % 32)) - 1;
            result[j * out_size / 4] |= ((uint32_t)bits & mask) << (8 * (j * out_size % 4));
        }
    }
    if (is_whole) {
        damacy__u32x4 v;
        v.x = result[0];
        v.y = result[1];
        v.z = result[2];
        v.w = result[3];
        *(damacy__u32x4*)(uintptr_t)to = v;
        return;
    }
#pragma unroll
    for (uint32_t j = 0; j < count; j++) {
        uint64_t bits = result[j * out_size / 4] >> (8 * (j * out_size % 4));
        if constexpr (out_size == 8)
            bits |= (uint64_t)result[2 * j + 1] << 32;
        if (j >= a && j < b)
            damacy__store_element(to + j * out_size, out_size, bits);
    }
}
