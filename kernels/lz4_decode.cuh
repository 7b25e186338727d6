// Decodes LZ4 blocks, a warp each, in one pass without scratch. A part of the source is brought
// into shared memory and its tokens are found; 32 sequences at a time become a map of output bytes
// to source bytes; then each lane copies one byte of 32 neighbours, window by window.
//
// The surprising rule: a window is copied in one step, so a byte whose source lies in its own
// window takes the source of that one instead, until it has left the window.
#pragma once

#include "kernels/lz4_long.cuh"
#include "kernels/lz4_tokens.cuh"

#define DAMACY__LZ4_FLUSH 512u // bytes of the tile that go out before the next batch
#ifndef DAMACY__LZ4_GROUP
#define DAMACY__LZ4_GROUP 4u // windows at a time, for loads to overlap
#endif

typedef struct damacy__lz4_sequence {
    uint32_t literals;
    uint32_t n_literals;
    uint32_t n_match; // 0 in the last sequence only
    uint32_t offset;
    uint32_t next; // where the next token would be
} damacy__lz4_sequence;

// Reads the sequence of the token at `at`. False if it does not end in the part, which ends the
// block if is_last.
DAMACY__INLINE bool damacy__lz4_read(const damacy__lz4_shared* shared, uint32_t at, uint32_t end,
                                     bool is_last, damacy__lz4_sequence* q)
{
    const uint32_t token = shared->bytes[at++];
    uint32_t n = token >> 4;
    if (n == 15) {
        const uint32_t byte = shared->bytes[at++];
        n += byte;
        if (byte == 255)
            n += damacy__lz4_more(shared, &at, end);
    }
    q->literals = at;
    q->n_literals = n;
    q->n_match = q->offset = 0;
    at += n;
    q->next = at;
    if (at >= end)
        return at == end && is_last;
    q->offset = (uint32_t)shared->bytes[at] | (uint32_t)shared->bytes[at + 1] << 8;
    at += 2;
    n = (token & 15) + 4;
    if (n == 19) {
        const uint32_t byte = shared->bytes[at++];
        n += byte;
        if (byte == 255)
            n += damacy__lz4_more(shared, &at, end);
    }
    q->n_match = n;
    q->next = at;
    return at <= end;
}

// Writes whole units of the tile to global memory and moves the tile on.
DAMACY__INLINE void damacy__lz4_flush(damacy__lz4_state* s, damacy__lz4_shared* shared,
                                      uint32_t lane)
{
    const uint32_t whole = s->end & ~15u, begin = s->end & ~31u;
    for (uint32_t x = s->flushed + 16 * lane; x < whole; x += 16 * 32) {
        const uint8_t* const from = shared->bytes + (x - s->begin);
        if (x >= s->first)
            *(damacy__u32x4*)(s->origin + x) = *(const damacy__u32x4*)from;
        else
            for (uint32_t i = s->first; i < 16; i++)
                s->origin[i] = from[i];
    }
    const uint8_t rest = shared->bytes[begin - s->begin + lane];
    damacy__sync_warp();
    shared->bytes[lane] = rest;
    s->flushed = whole;
    s->begin = begin;
    damacy__sync_warp();
}

// The same to the last byte.
DAMACY__INLINE void damacy__lz4_flush_all(damacy__lz4_state* s, damacy__lz4_shared* shared,
                                          uint32_t lane)
{
    damacy__lz4_flush(s, shared, lane);
    const uint32_t x = s->flushed + lane;
    if (x < s->end && x >= s->first)
        s->origin[x] = shared->bytes[x - s->begin];
}

// Fills the table of runs from the sequences of n lanes: x is where a lane's output starts.
DAMACY__INLINE void damacy__lz4_map(const damacy__lz4_state* s, damacy__lz4_shared* shared,
                                    const damacy__lz4_sequence* q, uint32_t x, uint32_t n,
                                    uint32_t lane)
{
    const uint32_t y = x - s->begin, to = y + q->n_literals;
    const uint32_t empties = damacy__ballot(q->n_literals == 0);
    uint32_t run = 1 + 2 * lane - damacy__popc(empties & ((1u << lane) - 1));
    shared->windows[lane].x = 0;
    damacy__sync_warp();
    if (lane < n) {
        if (q->n_literals != 0) {
            (void)damacy__atomic_or(&shared->windows[y / 32].x, 1u << (y % 32));
            shared->delta[run] = (int32_t)(q->literals - y);
            run++;
        }
        if (q->n_match != 0) {
            (void)damacy__atomic_or(&shared->windows[to / 32].x, 1u << (to % 32));
            shared->delta[run] = -(int32_t)q->offset;
        }
    }
    damacy__sync_warp();
    damacy__u32x2 window;
    window.x = shared->windows[lane].x;
    const uint32_t runs = damacy__sum_upto(damacy__popc(window.x), lane);
    window.y = runs - damacy__popc(window.x);
    shared->windows[lane] = window;
    if (lane == 31) {
        window.x = 0;
        window.y = runs;
#pragma unroll
        for (uint32_t w = 32; w < 36; w++)
            shared->windows[w] = window;
    }
    damacy__sync_warp();
}

// Where bytes of the windows from `first` on come from: lane's byte of each. Bytes below `low` are
// complete.
DAMACY__INLINE void damacy__lz4_sources(const damacy__lz4_shared* shared, uint32_t first,
                                        uint32_t low, uint32_t lane, int32_t* q)
{
    const uint32_t here = (2u << lane) - 1;
    int32_t lows[DAMACY__LZ4_GROUP];
    bool is_inside = false;
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__LZ4_GROUP; k++) {
        const damacy__u32x2 window = shared->windows[first / 32 + k];
        lows[k] = (int32_t)(k == 0 ? low : first + 32 * k);
        q[k] = (int32_t)(first + 32 * k + lane) +
               shared->delta[damacy__popc(window.x & here) + window.y];
        is_inside = is_inside || (uint32_t)(q[k] - lows[k]) < 32;
    }
    // each step takes the source of the source, so that ways of up to 32 are gone in 5
    for (uint32_t step = 0; step < 5 && damacy__any(is_inside); step++) {
        is_inside = false;
#pragma unroll
        for (uint32_t k = 0; k < DAMACY__LZ4_GROUP; k++) {
            const int32_t other = damacy__shfl(q[k], (uint32_t)q[k] & 31);
            if ((uint32_t)(q[k] - lows[k]) < 32)
                q[k] = other;
            is_inside = is_inside || (uint32_t)(q[k] - lows[k]) < 32;
        }
    }
}

// Makes bytes [from, to) of the tile, which the table of runs describes, in groups of windows. What
// is above `to` in the last group gets any bytes.
DAMACY__INLINE void damacy__lz4_copy(const damacy__lz4_state* s, damacy__lz4_shared* shared,
                                     uint32_t from, uint32_t to, uint32_t lane)
{
    const uint8_t* const base = s->origin + s->begin;
    uint32_t low = from;
    if (from == to) // a last sequence without literals
        return;
    for (uint32_t first = from & ~31u; first < to; first += 32 * DAMACY__LZ4_GROUP) {
        int32_t q[DAMACY__LZ4_GROUP];
        uint8_t v[DAMACY__LZ4_GROUP];
        damacy__lz4_sources(shared, first, low, lane, q);
#pragma unroll
        for (uint32_t k = 0; k < DAMACY__LZ4_GROUP; k++) {
            v[k] = 0;
            if (q[k] < 0)
                v[k] = *(base + q[k]);
        }
#pragma unroll
        for (uint32_t k = 0; k < DAMACY__LZ4_GROUP; k++) {
            if (q[k] >= 0)
                v[k] = shared->bytes[q[k]];
            if (k != 0 || first + lane >= low) // bytes that are complete may be read now
                shared->bytes[first + 32 * k + lane] = v[k];
            damacy__sync_warp();
        }
        low = first + 32 * DAMACY__LZ4_GROUP;
    }
}

// Up to 32 sequences, of the tokens from `i` on in a list of n. Returns how many were executed: 0
// if the next does not end in the part or is too long for the tile, or if the status says why.
DAMACY__INLINE uint32_t damacy__lz4_batch(damacy__lz4_state* s, damacy__lz4_shared* shared,
                                          uint32_t i, uint32_t n, uint32_t end, bool is_last,
                                          uint32_t* next, uint32_t lane)
{
    damacy__lz4_sequence q = {0, 0, 0, 0, 0};
    if (s->end - s->begin >= DAMACY__LZ4_FLUSH)
        damacy__lz4_flush(s, shared, lane);
    const uint32_t token = shared->tokens[damacy__min(i + lane, n - 1)];
    const bool is_whole = lane < n - i && damacy__lz4_read(shared, token, end, is_last, &q);
    const uint32_t size = is_whole ? q.n_literals + q.n_match : 0;
    const uint32_t sum = damacy__sum_upto(size, lane), x = s->end + sum - size;
    const uint32_t takens = damacy__ballot(is_whole && s->end + sum - s->begin <= DAMACY__LZ4_TILE);
    const uint32_t n_taken = damacy__ctz(~takens) & 63; // the first lanes; of all 32: ctz is ~0
    const uint32_t count = n_taken == 63 ? 32 : n_taken;
    const bool is_taken = lane < count;
    const bool is_over = x + size > s->limit;
    const bool is_cut = is_last && q.n_match != 0 && q.next == end;
    const bool is_bad = q.n_match != 0 && q.offset - 1 >= x + q.n_literals - s->first;
    const uint32_t bads = damacy__ballot(is_taken && (is_over || is_cut || is_bad));
    if (bads) {
        const uint32_t status = is_over  ? (uint32_t)DAMACY__JOB_NO_SPACE
                                : is_bad ? (uint32_t)DAMACY__JOB_BAD_OFFSET
                                         : (uint32_t)DAMACY__JOB_TRUNCATED;
        const uint32_t first = damacy__ctz(bads);
        const uint32_t at = damacy__shfl(token - s->part, first);
        (void)damacy__lz4_fail(s, damacy__shfl(status, first), at);
        return 0;
    }
    if (count == 0)
        return 0;
    const uint32_t source = x + q.n_literals - q.offset;
    if (is_taken && q.n_match != 0 && source < s->begin)
        damacy__prefetch_l2(s->origin + source);
    if (!is_taken)
        q.n_literals = q.n_match = q.offset = 0;
    damacy__lz4_map(s, shared, &q, x, count, lane);
    const uint32_t from = s->end - s->begin;
    s->end += damacy__shfl(sum, count - 1);
    *next = damacy__shfl(q.next, count - 1);
    damacy__lz4_copy(s, shared, from, s->end - s->begin, lane);
    return count;
}

// Brings the part of the block from `at` on into shared memory; returns its first place there.
DAMACY__INLINE uint32_t damacy__lz4_load(damacy__lz4_state* s, damacy__lz4_shared* shared,
                                         uint32_t at, uint32_t size, uint32_t lane)
{
    const uint64_t low = (uint64_t)(uintptr_t)s->src, high = low + s->size;
    const uint64_t base = (low + at) & ~15ull;
    const uint32_t skew = (uint32_t)(low + at - base), n_units = (skew + size + 15) / 16;
    damacy__u32x4* const units =
        (damacy__u32x4*)(shared->bytes + DAMACY__LZ4_TILE + DAMACY__LZ4_GAP);
    const damacy__u32x2 inside = damacy__lz4_edges(units, base, n_units, low, high, lane);
    const uint32_t from = inside.x, to = inside.y;
    const damacy__u32x4* const whole = (const damacy__u32x4*)(uintptr_t)base;
#pragma unroll 8
    for (uint32_t i = from + lane; i < to; i += 32)
        units[i] = whole[i];
    if (at + size < s->size)
        damacy__prefetch_l2(s->src + damacy__min(at + size + 128 * lane, s->size - 1));
    damacy__sync_warp();
    return DAMACY__LZ4_TILE + DAMACY__LZ4_GAP + skew;
}

// Executes the sequences of a part as far as they end in it. *at: from its first token to the first
// that is not done. Returns how many were done.
DAMACY__INLINE uint32_t damacy__lz4_part(damacy__lz4_state* s, damacy__lz4_shared* shared,
                                         uint32_t* at, uint32_t lane)
{
    const uint32_t size = damacy__min(s->size - *at, DAMACY__LZ4_PART);
    const uint32_t begin = damacy__lz4_load(s, shared, *at, size, lane), end = begin + size;
    const bool is_last = *at + size == s->size;
    uint32_t n = 0, n_done = 0, next = begin;
    bool is_stuck = false;
    s->part = begin - *at;
    damacy__lz4_mark(shared, begin, end, lane);
    for (uint32_t first = 0; first < size && !is_stuck; first += 1024) {
        uint32_t i = 0;
        n = damacy__lz4_list(shared, begin, first, n, lane);
        while (!is_stuck && (n - i >= 32 || (first + 1024 >= size && i < n))) {
            const uint32_t count = damacy__lz4_batch(s, shared, i, n, end, is_last, &next, lane);
            is_stuck = count == 0;
            i += count;
            n_done += count;
        }
        const uint16_t rest = shared->tokens[damacy__min(i + lane, 375)];
        damacy__sync_warp();
        shared->tokens[lane] = rest;
        n -= i;
        damacy__sync_warp();
    }
    *at = next - s->part;
    return n_done;
}

// Continues the tile where the output in global memory ends.
DAMACY__INLINE void damacy__lz4_retile(damacy__lz4_state* s, damacy__lz4_shared* shared,
                                       uint32_t lane)
{
    s->begin = s->end & ~31u;
    s->flushed = s->end & ~15u;
    damacy__sync_warp();
    const uint32_t x = s->begin + lane;
    if (x < s->end && x >= s->first)
        shared->bytes[lane] = s->origin[x];
    damacy__sync_warp();
}

// All sequences of a block from `at` on: parts where tokens are close, one by one where they are
// far apart.
DAMACY__INLINE void damacy__lz4_run(damacy__lz4_state* s, damacy__lz4_shared* shared, uint32_t at,
                                    uint32_t lane)
{
    // at first one sequence is taken alone, unless it is known already that they are close
    int32_t credit = at == 0 ? (int32_t)DAMACY__LZ4_SPARSE : 0;
    if (lane == 0)
        shared->delta[0] = 0; // bytes of batches before are their own source
    damacy__lz4_retile(s, shared, lane);
    while (at < s->size && s->status == DAMACY__JOB_OK) {
        const uint32_t before = at;
        if (credit > 0) {
            damacy__lz4_flush_all(s, shared, lane);
            damacy__lz4_long(s, &at, &credit, lane);
            if (credit > 0 && !damacy__lz4_one(s, &at, lane))
                return;
            damacy__lz4_retile(s, shared, lane);
        } else {
            const uint32_t n_done = damacy__lz4_part(s, shared, &at, lane);
            if (at == before)
                credit = 1;
            else if (n_done < (at - before) / DAMACY__LZ4_SPARSE)
                credit = 4 * DAMACY__LZ4_SPARSE;
        }
    }
    damacy__lz4_flush_all(s, shared, lane);
}

// One job, by one warp, or the rest of it.
DAMACY__INLINE void damacy__lz4_job(const damacy__lz4_wave* wave, damacy__lz4_shared* shared,
                                    uint32_t index, uint32_t lane)
{
    const damacy__job_result* const result =
        (const damacy__job_result*)(uintptr_t)wave->results + index;
    damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
    damacy__lz4_state s;
    uint32_t n, at = 0;
    damacy__lz4_begin(&job, &s, &n);
    if (wave->is_begun && damacy__lz4_is_sparse(&s)) {
        if (result->status != DAMACY__LZ4_GOES_ON)
            return;
        at = (uint32_t)result->error_offset;
        s.end = (uint32_t)result->size;
    }
    if (s.status == DAMACY__JOB_OK)
        damacy__lz4_run(&s, shared, at, lane);
    damacy__lz4_finish(wave, index, &s, lane);
}
