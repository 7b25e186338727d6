// LZ4 blocks that shrink to little, by a warp each: sequences of some hundred bytes one after
// another, which are read in shared memory and written to the output in global memory.
#pragma once

#include "kernels/lz4_long.cuh"

#define DAMACY__LZ4_WOUND 512u // bytes of a match that are copied from before it, at most
#define DAMACY__LZ4_LEAST 64u  // bytes of one that is copied in units of 16, if they do not overlap

// The first n bytes of a match, all from the `offset` bytes before it, by the warp: a byte a lane
// and step, four steps under way.
DAMACY__INLINE void damacy__lz4_wind(uint8_t* dst, uint32_t offset, uint32_t n, uint32_t lane)
{
    uint32_t x = lane, step = 32; // from place to place, modulo the offset
    if (offset <= 32) {
        const uint32_t inverse = 0xffff / offset + 1;
        x -= (x * inverse >> 16) * offset;
        step -= (step * inverse >> 16) * offset;
    }
    for (uint32_t i = lane; i < n; i += 128) {
        uint8_t v[4] = {0, 0, 0, 0};
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            if (i + 32 * k < n)
                v[k] = *(dst + x - offset);
            x += step;
            x -= x >= offset ? offset : 0;
        }
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            if (i + 32 * k < n)
                dst[i + 32 * k] = v[k];
    }
}

// A run of n bytes, 32 or more, whose period, 1, 2, 4, 8 or 16, is `offset`, by the warp: what 16
// bytes of it are is put together once.
DAMACY__INLINE void damacy__lz4_run_of(uint8_t* dst, uint32_t offset, uint32_t n, uint32_t lane)
{
    const uint32_t head = (0 - (uint32_t)(uintptr_t)dst) & 15, n_units = (n - head) / 16;
    const uint32_t rest = head + 16 * n_units; // lanes up to 15 fill the head, others the rest
    const uint32_t i = lane < 16 ? lane : rest + lane - 16;
    const bool has = lane < 16 ? lane < head : i < n;
    const uint8_t byte = *(dst + (i & (offset - 1)) - offset);
    uint32_t some = *(dst + ((head + lane) & (offset - 1)) - offset);
    some |= damacy__shfl_down(some, 1) << 8;
    some |= damacy__shfl_down(some, 2) << 16;
    damacy__u32x4 unit;
    unit.x = damacy__shfl(some, 0);
    unit.y = damacy__shfl(some, 4);
    unit.z = damacy__shfl(some, 8);
    unit.w = damacy__shfl(some, 12);
    for (uint32_t k = lane; k < n_units; k += 32)
        *(damacy__u32x4*)(dst + head + 16 * k) = unit;
    if (has)
        dst[i] = byte;
}

// A match of n bytes, by the warp, of an output that begins at `low`.
DAMACY__INLINE void damacy__lz4_match(uint8_t* dst, const uint8_t* low, uint32_t offset, uint32_t n,
                                      uint32_t lane)
{
    const uint32_t m = damacy__min(n, DAMACY__LZ4_WOUND);
    if (n <= 32) {
        uint32_t x = lane;
        if (offset < n) // most often a power of two
            x = (offset & (offset - 1)) == 0 ? lane & (offset - 1) : lane % offset;
        if (lane < n)
            dst[lane] = *(dst + x - offset);
    } else if (offset <= 16 && (offset & (offset - 1)) == 0) {
        damacy__lz4_run_of(dst, offset, n, lane);
    } else if (n >= DAMACY__LZ4_LEAST && n <= offset) {
        damacy__lz4_units(dst, dst - offset, n, low, dst + n, lane);
    } else {
        damacy__lz4_wind(dst, offset, m, lane);
        if (n > m) { // the rest is as far behind as whole offsets bring
            damacy__sync_warp();
            damacy__lz4_repeat(dst + m, offset < m ? m / offset * offset : offset, n - m, lane);
        }
    }
    damacy__sync_warp();
}

// Eight bytes of shared memory from `a` on.
DAMACY__INLINE damacy__u32x2 damacy__lz4_window(uint32_t a)
{
    const uint32_t at = a & ~3u, skew = 8 * (a & 3);
    const uint32_t x = damacy__lds32(at), y = damacy__lds32(at + 4), z = damacy__lds32(at + 8);
    damacy__u32x2 w;
    w.x = damacy__funnel_right(x, y, skew);
    w.y = damacy__funnel_right(y, z, skew);
    return w;
}

// Sequences of a part of the source, of which byte 0 of the block were at shared address `part`,
// and which ends before byte `end` of the block. *at: from the first to the first that is not done,
// as it does not end 8 bytes before that, has long lengths or is wrong.
DAMACY__INLINE void damacy__lz4_shrunk_part(damacy__lz4_state* s, uint32_t part, uint32_t end,
                                            uint32_t* at, uint32_t lane)
{
    while (*at + 8 < end) {
        damacy__u32x2 w = damacy__lz4_window(part + *at);
        uint32_t n = w.x >> 4 & 15, m = (w.x & 15) + 4, used = 2;
        uint32_t from = *at + 1, most = 4; // bytes of a length that are in the window, at most
        if (n == 15) {
            n += w.x >> 8 & 255;
            from++;
            if (n == 15 + 255)
                return;
        }
        const uint32_t p = from + n, skew = 8 * (p - *at);
        if (p + 8 >= end)
            return;
        if (skew <= 24) {
            w.x = damacy__funnel_right(w.x, w.y, skew);
            w.y >>= skew;
            most = skew == 24 ? 3 : 4;
        } else {
            w = damacy__lz4_window(part + p);
        }
        const uint32_t offset = w.x & 0xffff, room = s->limit - s->end;
        if (m == 19) {
            const uint32_t bytes = damacy__funnel_right(w.x, w.y, 16);
            const uint32_t k = bytes == ~0u ? 4 : damacy__ctz(~bytes) / 8;
            if (k >= most)
                return;
            m += 255 * k + (bytes >> 8 * k & 255);
            used += k + 1;
        }
        if (n > room || m > room - n || offset - 1 >= s->end + n - s->first)
            return;
        uint8_t* const dst = s->origin + s->end;
        for (uint32_t i = lane; i < n; i += 32)
            dst[i] = (uint8_t)damacy__lds8(part + from + i);
        damacy__sync_warp(); // the literals are there
        damacy__lz4_match(dst + n, s->origin + s->first, offset, m, lane);
        s->end += n + m;
        *at = p + used;
    }
}

// All sequences of a block. memory: a shared address that 16 divides, of `fill` and 32 bytes.
DAMACY__INLINE void damacy__lz4_shrunk(damacy__lz4_state* s, uint32_t memory, uint32_t fill,
                                       uint32_t lane)
{
    uint32_t at = 0, part = 0, end = 0;
    while (at < s->size) {
        if (end != s->size && at + 64 >= end) { // little of a part is left
            const uint32_t size = damacy__min(s->size - at, fill);
            damacy__sync_warp();
            part = memory + damacy__lz4_fetch(s, memory, at, size, lane) - at;
            end = at + size;
        }
        damacy__lz4_shrunk_part(s, part, end, &at, lane);
        if ((end == s->size || at + 64 < end) && !damacy__lz4_one(s, &at, lane))
            return;
    }
}
