// Executes LZ4 sequences with one warp: a lane per sequence, into a tile of shared memory that
// holds the newest output bytes, flushed 16 bytes a lane. Whatever comes here was proved by
// lz4_walk.cuh, so nothing is checked again.
#pragma once

#include "kernels/bytes.cuh"
#include "kernels/lz4_walk.cuh"

#define DAMACY__LZ4_TILE  1024u // bytes that a batch of sequences may produce
#define DAMACY__LZ4_LONG  256u  // a longer sequence goes straight to the output
#define DAMACY__LZ4_SHORT 24u   // a longer run is copied by the whole warp

// Output positions count from the 16-byte boundary at or below the first output byte. Bytes in
// [begin, end) are in the tile; those below begin are in global memory.
typedef struct damacy__lz4_tile {
    uint8_t* bytes;  // shared, TILE + 16
    uint8_t* origin; // output position 0; bytes below `first` are not ours
    uint8_t* high;   // end of the output range
    uint32_t first;
    uint32_t begin; // a multiple of 16
    uint32_t end;
} damacy__lz4_tile;

// Writes whole units of 16 bytes and keeps the rest.
DAMACY__INLINE void damacy__lz4_flush(damacy__lz4_tile* t, uint32_t lane)
{
    const uint32_t whole = t->end & ~15u;
    for (uint32_t x = t->begin + 16 * lane; x < whole; x += 16 * 32) {
        if (x >= t->first)
            *(damacy__u32x4*)(t->origin + x) = *(const damacy__u32x4*)(t->bytes + (x - t->begin));
        else
            for (uint32_t i = t->first; i < 16; i++)
                t->origin[i] = t->bytes[i];
    }
    if (whole != t->begin) {
        uint8_t keep = 0;
        if (lane < t->end - whole)
            keep = t->bytes[whole - t->begin + lane];
        damacy__sync_warp();
        if (lane < t->end - whole)
            t->bytes[lane] = keep;
        t->begin = whole;
    }
    damacy__sync_warp();
}

// After a flush: writes the rest, too. The tile keeps it.
DAMACY__INLINE void damacy__lz4_flush_rest(const damacy__lz4_tile* t, uint32_t lane)
{
    const uint32_t x = t->begin + lane;
    if (x < t->end && x >= t->first)
        t->origin[x] = t->bytes[lane];
    damacy__sync_warp();
}

// n bytes from global memory, which low and high bound, to output position x in the tile.
DAMACY__INLINE void damacy__lz4_fetch(const damacy__lz4_tile* t, uint32_t x, const uint8_t* src,
                                      uint32_t n, const uint8_t* low, const uint8_t* high)
{
    uint8_t* dst = t->bytes + (x - t->begin);
    for (uint32_t k = 0; k < n; k += 8) {
        const uint32_t m = damacy__min(n - k, 8);
        damacy__scatter8(dst + k, damacy__gather8(src + k, m, low, high), m);
    }
}

// The same by the whole warp, for each lane that has a bit in `mask`.
DAMACY__INLINE void damacy__lz4_fetch_wide(const damacy__lz4_tile* t, uint32_t mask, uint32_t x,
                                           const uint8_t* base, uint32_t at, uint32_t n,
                                           uint32_t lane)
{
    while (mask) {
        const uint32_t from = damacy__ctz(mask);
        const uint32_t to = damacy__shfl(x, from) - t->begin;
        const uint8_t* src = base + damacy__shfl(at, from);
        const uint32_t size = damacy__shfl(n, from);
        mask &= mask - 1;
        for (uint32_t k = lane; k < size; k += 32)
            t->bytes[to + k] = src[k];
    }
}

// Copies n bytes from output position q to x, one lane, byte by byte: source and target may
// overlap, and the source may start in global memory and go on in the tile.
DAMACY__INLINE void damacy__lz4_repeat(const damacy__lz4_tile* t, uint32_t q, uint32_t x,
                                       uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t from = q + k;
        t->bytes[x - t->begin + k] = from < t->begin ? t->origin[from] : t->bytes[from - t->begin];
    }
}

// Executes one sequence per lane; idle lanes have no literals and no match. The sequences follow
// one another from t->end on and fit the tile.
DAMACY__INLINE void damacy__lz4_batch(damacy__lz4_tile* t, const damacy__lz4_walk* w,
                                      const damacy__lz4_sequence* s, uint32_t lane)
{
    const bool wide = s->n_literals > DAMACY__LZ4_SHORT;
    const uint32_t wides = damacy__ballot(wide);
    if (!wide && s->n_literals != 0)
        damacy__lz4_fetch(t, s->out, w->src + s->literals, s->n_literals, w->src, w->src + w->size);
    damacy__lz4_fetch_wide(t, wides, s->out, w->src, s->literals, s->n_literals, lane);

    // matches that read only what is in global memory
    const uint32_t x = s->out + s->n_literals;
    const uint32_t q = x - s->offset;
    const bool is_far = s->n_match != 0 && q + s->n_match <= t->begin;
    const uint32_t fars = damacy__ballot(is_far && s->n_match > DAMACY__LZ4_SHORT);
    if (is_far && s->n_match <= DAMACY__LZ4_SHORT)
        damacy__lz4_fetch(t, x, t->origin + q, s->n_match, t->origin + t->first, t->high);
    damacy__lz4_fetch_wide(t, fars, x, t->origin, q, s->n_match, lane);
    damacy__sync_warp();

    // The others wait for the matches before them: everything below the first that is still to do
    // is complete, so that one can always run.
    bool is_waiting = s->n_match != 0 && !is_far;
    const uint32_t source_end = s->offset < s->n_match ? x : q + s->n_match;
    uint32_t waiting = damacy__ballot(is_waiting);
    while (waiting) {
        const uint32_t complete = damacy__shfl(x, damacy__ctz(waiting));
        if (is_waiting && source_end <= complete) {
            damacy__lz4_repeat(t, q, x, s->n_match);
            is_waiting = false;
        }
        damacy__sync_warp();
        waiting = damacy__ballot(is_waiting);
    }
}

// Executes one long sequence, the same in every lane, in global memory.
DAMACY__INLINE void damacy__lz4_long(damacy__lz4_tile* t, const damacy__lz4_walk* w,
                                     const damacy__lz4_sequence* s, uint32_t lane)
{
    uint8_t* const dst = t->origin + s->out + s->n_literals;
    damacy__lz4_flush(t, lane);
    damacy__lz4_flush_rest(t, lane);
    damacy__copy_group(t->origin + s->out, w->src + s->literals, s->n_literals, lane, 32);
    damacy__sync_warp();
    if (s->offset >= s->n_match) {
        damacy__copy_group(dst, dst - s->offset, s->n_match, lane, 32);
    } else { // the bytes before the match, again and again
        const uint32_t step = 32 % s->offset;
        uint32_t from = lane % s->offset;
        for (uint32_t k = lane; k < s->n_match; k += 32) {
            dst[k] = (dst - s->offset)[from];
            from += step;
            if (from >= s->offset)
                from -= s->offset;
        }
    }
    damacy__sync_warp();
    t->end = s->out + s->n_literals + s->n_match;
    t->begin = t->end & ~15u;
    if (lane < t->end - t->begin && t->begin + lane >= t->first)
        t->bytes[lane] = t->origin[t->begin + lane];
    damacy__sync_warp();
}
