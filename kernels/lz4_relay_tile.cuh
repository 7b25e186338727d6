// A tile of the output of a part of a large LZ4 block (lz4_relay.cuh): a map of its runs, then its
// bytes, step by step. The surprising rule: a byte whose source lies before the tile and is not
// done has no value yet, but how far before the tile it is, and so have all that are copied from
// it.
#pragma once

#include "kernels/lz4_relay_part.cuh"

// Puts a run, bytes [from, to) of the part's output, into the map of the tile [begin, end). `run`:
// its number; `first`: that of the tile's first run. `delta`: from a byte to its source; of
// literals from byte 0 of the tile.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_run_at(uint32_t base, uint32_t from, uint32_t to,
                                             uint32_t begin, uint32_t end, uint32_t run,
                                             uint32_t first, uint32_t delta)
{
    if (to <= begin || from >= end)
        return;
    const uint32_t y = damacy__max(from, begin) - begin;
    damacy__shared_or(base + S::WINDOWS + y / 32 * 8, 1u << (y % 32));
    damacy__sts32(base + S::DELTA + 4 * (run - first), delta);
    if (to > end) // the next tile begins in it
        damacy__sts32(base + S::CONTROL + DAMACY__LZ4_RELAY_RUN, run);
    else if (to == end)
        damacy__sts32(base + S::CONTROL + DAMACY__LZ4_RELAY_RUN, run + 1);
}

template <class S>
DAMACY__INLINE void damacy__lz4_relay_put(uint32_t base, const damacy__lz4_sequence* q, uint32_t y,
                                          uint32_t begin, uint32_t end, uint32_t run,
                                          uint32_t first)
{
    const uint32_t match = y + q->n_literals;
    if (q->n_literals != 0)
        damacy__lz4_relay_run_at<S>(base, y, match, begin, end, run++, first,
                                    DAMACY__LZ4_LITERAL + q->literals + begin - y);
    if (q->n_match != 0)
        damacy__lz4_relay_run_at<S>(base, match, match + q->n_match, begin, end, run, first,
                                    0 - q->offset);
}

// Puts a thread's sequences into the map of bytes [begin, end) of the part's output. One that goes
// on behind it is kept, as its lengths may have many bytes.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_put_all(damacy__lz4_leg* leg, uint32_t base, uint32_t begin,
                                              uint32_t end, uint32_t first)
{
    while (leg->next < leg->past && leg->y < end) {
        if (leg->is_held != leg->next + 1)
            damacy__lz4_relay_read<S>(leg, base, leg->next, &leg->held);
        leg->is_held = leg->next + 1;
        damacy__lz4_relay_put<S>(base, &leg->held, leg->y, begin, end, leg->run, first);
        const uint32_t past = leg->y + leg->held.n_literals + leg->held.n_match;
        if (past > end)
            break;
        leg->y = past;
        leg->run += damacy__lz4_runs(&leg->held);
        leg->next++;
    }
}

// Makes that map. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_map(damacy__lz4_leg* leg, uint32_t base, uint32_t begin,
                                          uint32_t end)
{
    const uint32_t windows = base + S::WINDOWS + 8 * threadIdx.x, control = base + S::CONTROL;
    const uint32_t first = begin == 0 ? 0 : damacy__lds32(control + DAMACY__LZ4_RELAY_RUN);
    if (threadIdx.x < S::TILE / 32)
        damacy__sts32(windows, 0);
    damacy__sync_block(); // and all know `first`
    damacy__lz4_relay_put_all<S>(leg, base, begin, end, first);
    if (threadIdx.x == S::THREADS - 1) {
        const damacy__u32x4 last = damacy__lds128(control + DAMACY__LZ4_RELAY_LAST);
        damacy__lz4_sequence q;
        q.literals = last.x;
        q.n_literals = last.y;
        q.n_match = last.z;
        q.offset = last.w;
        damacy__lz4_relay_put<S>(base, &q, leg->size - last.y - last.z, begin, end, leg->runs,
                                 first);
    }
    damacy__sync_block();
    const uint32_t count = threadIdx.x < S::TILE / 32 ? damacy__popc(damacy__lds32(windows)) : 0;
    const uint32_t before = damacy__lz4_team_sum<S>(count, base + S::SUMS);
    if (threadIdx.x < S::TILE / 32)
        damacy__sts32(windows + 4, base + S::DELTA + 4 * before - 4);
    damacy__sync_block();
}

// Where a thread's bytes of the step from byte r of the tile on come from: literals are places of
// BYTES with LITERAL; else bytes of the tile, below 0 before it.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_sources(uint32_t base, uint32_t r, uint32_t n, uint32_t* q)
{
    damacy__lz4_team_deltas<S>(base, r, q);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t i = r + S::THREADS * k + threadIdx.x;
        q[k] = i < n ? i + q[k] : DAMACY__LZ4_LITERAL;
    }
}

// A byte of a literal, or of the tile; or how far before the tile it is. Of the step from r on.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_relay_byte(const damacy__lz4_state* s,
                                               const damacy__lz4_leg* leg, uint32_t base,
                                               uint32_t q, uint32_t* v)
{
    if (q < S::TILE) {
        *v = damacy__lds8(base + S::OUT + (leg->tile & 15) + q);
        return damacy__lds16(base + S::PENDING + 2 * q);
    }
    if (q >= 0xffff0000u)
        return 0 - q;
    q -= DAMACY__LZ4_LITERAL;
    *v = q < leg->filled ? damacy__lds8(base + S::BYTES + q) : s->src[q - leg->t.origin];
    return 0;
}

// Makes n bytes of the tile, or says how far before it they come from where that is not done.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_make(const damacy__lz4_state* s, const damacy__lz4_leg* leg,
                                           uint32_t base, uint32_t n)
{
    const uint32_t known = damacy__lds32(base + S::CONTROL + DAMACY__LZ4_RELAY_KNOWN);
    const uint32_t out = base + S::OUT + (leg->tile & 15);
    uint32_t parity = 0;
    for (uint32_t r = 0; r < n; r += S::STEP) {
        const uint32_t links = base + S::LINKS + (parity ^= 4 * S::STEP);
        uint32_t q[4], p[4], v[4];
        bool is_inside = false;
        damacy__lz4_relay_sources<S>(base, r, n, q);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            v[k] = 0;
            damacy__lz4_link_store(links, S::THREADS * k + threadIdx.x, q[k]);
            is_inside = is_inside || q[k] - r < S::STEP;
        }
        damacy__sync_block(); // all links are there, and all bytes of the step before
        if (is_inside)
            damacy__lz4_team_chase<S>(links, r, q);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            p[k] = damacy__lz4_relay_byte<S>(s, leg, base, q[k], &v[k]);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t from = leg->tile - p[k];
            p[k] = from < known ? 0 : p[k];
            damacy__lz4_team_far(&v[k], s->origin, from, known);
        }
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t i = r + S::THREADS * k + threadIdx.x;
            damacy__sts8(out + i, v[k]);
            damacy__sts16(base + S::PENDING + 2 * i, p[k]);
        }
    }
}

// Loads a thread's bytes of the tile that come from places below `done`, of those that are waited
// for.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_load(const damacy__lz4_state* s, const damacy__lz4_leg* leg,
                                           uint32_t base, uint32_t n, uint32_t done)
{
    const uint32_t out = base + S::OUT + (leg->tile & 15) + threadIdx.x;
    const uint32_t pending = base + S::PENDING + 2 * threadIdx.x;
    uint32_t v[S::ROWS], bits = 0; // of rows that are loaded: all at once
#pragma unroll
    for (uint32_t k = 0; k < S::ROWS; k++)
        v[k] = S::THREADS * k + threadIdx.x < n ? damacy__lds16(pending + 2 * S::THREADS * k) : 0;
#pragma unroll
    for (uint32_t k = 0; k < S::ROWS; k++) {
        const uint32_t from = leg->tile - v[k]; // what is not waited for is not below `done`
        bits |= from < done ? 1u << k : 0;
        damacy__lz4_team_far(&v[k], s->origin, from, done);
    }
#pragma unroll
    for (uint32_t k = 0; k < S::ROWS; k++)
        if (bits >> k & 1) {
            damacy__sts8(out + S::THREADS * k, v[k]);
            damacy__sts16(pending + 2 * S::THREADS * k, 0);
        }
}

// Writes the n bytes of the tile to the output.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_flush(const damacy__lz4_state* s, const damacy__lz4_leg* leg,
                                            uint32_t base, uint32_t n)
{
    const uint32_t skew = leg->tile & 15, end = skew + n, whole = end & ~15u;
    uint8_t* const to = s->origin + (leg->tile - skew);
    for (uint32_t x = (skew ? 16 : 0) + 16 * threadIdx.x; x + 16 <= end; x += 16 * S::THREADS)
        *(damacy__u32x4*)(to + x) = damacy__lds128(base + S::OUT + x);
    if (threadIdx.x < 16 && skew && threadIdx.x >= skew && threadIdx.x < end)
        to[threadIdx.x] = (uint8_t)damacy__lds8(base + S::OUT + threadIdx.x);
    const uint32_t x = whole + threadIdx.x;
    if ((whole || !skew) && x < end)
        to[x] = (uint8_t)damacy__lds8(base + S::OUT + x);
}

// Makes bytes [begin, end) of the part's output. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_tile(const damacy__lz4_state* s, damacy__lz4_leg* leg,
                                           uint32_t* words, uint32_t base, uint32_t begin,
                                           uint32_t end)
{
    const uint32_t n = end - begin, known = base + S::CONTROL + DAMACY__LZ4_RELAY_KNOWN;
    if (threadIdx.x == 0)
        damacy__sts32(known, damacy__acquire(words + DAMACY__LZ4_RELAY_DONE));
    damacy__lz4_relay_map<S>(leg, base, begin, end);
    damacy__lz4_relay_make<S>(s, leg, base, n);
    damacy__sync_block(); // all have read KNOWN
    if (damacy__lds32(known) < leg->tile) {
        damacy__sync_block();
        if (threadIdx.x == 0)
            damacy__sts32(known, damacy__acquire(words + DAMACY__LZ4_RELAY_DONE));
        damacy__sync_block();
        damacy__lz4_relay_load<S>(s, leg, base, n, damacy__lds32(known));
        if (threadIdx.x == 0)
            damacy__lz4_relay_wait(words, leg->tile);
        damacy__sync_block();
        damacy__lz4_relay_load<S>(s, leg, base, n, leg->tile);
        damacy__sync_block();
    }
    damacy__lz4_relay_flush<S>(s, leg, base, n);
    damacy__sync_block();
    if (threadIdx.x == 0)
        damacy__release(words + DAMACY__LZ4_RELAY_DONE, leg->tile + n);
}
