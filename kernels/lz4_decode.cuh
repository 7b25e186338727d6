// Decodes LZ4 blocks, a warp each, in one pass without scratch. A part of the source is brought
// into shared memory and its tokens are found; 64 sequences at a time, two a lane, become a map of
// output bytes to source bytes; then each lane copies one byte of 32 neighbours, window by window.
//
// The surprising rule: a window is copied in one step, so a byte whose source lies in its own
// window takes the source of that one instead, until it has left the window.
#pragma once

#include "kernels/lz4_long.cuh"
#include "kernels/lz4_tokens.cuh"

#define DAMACY__LZ4_FLUSH 512u // bytes of the tile that go out before the next batch

typedef struct damacy__lz4_sequence {
    uint32_t literals;
    uint32_t n_literals;
    uint32_t n_match; // 0 in the last sequence only
    uint32_t offset;
    uint32_t next; // where the next token would be
} damacy__lz4_sequence;

// Runs of a sequence: its literals and its match, if there are any.
DAMACY__INLINE uint32_t damacy__lz4_runs(const damacy__lz4_sequence* q)
{
    return (q->n_literals != 0) + (q->n_match != 0);
}

// Two bytes at `at`, an offset.
DAMACY__INLINE uint32_t damacy__lz4_peek_offset(uint32_t memory, uint32_t at)
{
    return damacy__lz4_peek(memory, at) | damacy__lz4_peek(memory, at + 1) << 8;
}

// Reads the sequence of the token at `at`. False if it does not end in the part, which ends the
// block if is_last.
DAMACY__INLINE bool damacy__lz4_read(uint32_t memory, uint32_t at, uint32_t end, bool is_last,
                                     damacy__lz4_sequence* q)
{
    const uint32_t token = damacy__lz4_peek(memory, at++);
    uint32_t n = token >> 4;
    if (n == 15) {
        const uint32_t byte = damacy__lz4_peek(memory, at++);
        n += byte;
        if (byte == 255)
            n += damacy__lz4_more(memory, &at, end);
    }
    q->literals = at;
    q->n_literals = n;
    q->n_match = q->offset = 0;
    at += n;
    q->next = at;
    if (at >= end)
        return at == end && is_last;
    q->offset = damacy__lz4_peek_offset(memory, at);
    at += 2;
    n = (token & 15) + 4;
    if (n == 19) {
        const uint32_t byte = damacy__lz4_peek(memory, at++);
        n += byte;
        if (byte == 255)
            n += damacy__lz4_more(memory, &at, end);
    }
    q->n_match = n;
    q->next = at;
    return at <= end;
}

// The same if it is quick: with one more byte of a length at most, and an end inside the part.
// False if it is not that; q says nothing then.
DAMACY__INLINE bool damacy__lz4_read_quickly(uint32_t memory, uint32_t at, uint32_t end,
                                             damacy__lz4_sequence* q)
{
    const uint32_t token = damacy__lz4_peek(memory, at), byte = damacy__lz4_peek(memory, at + 1);
    const bool is_longer = token >= 0xf0, goes_on = (token & 15) == 15;
    q->literals = at + (is_longer ? 2 : 1);
    q->n_literals = (token >> 4) + (is_longer ? byte : 0);
    const uint32_t to = damacy__min(q->literals + q->n_literals, end);
    const uint32_t more = damacy__lz4_peek(memory, to + 2);
    q->offset = damacy__lz4_peek_offset(memory, to);
    q->n_match = (token & 15) + 4 + (goes_on ? more : 0);
    q->next = to + (goes_on ? 3 : 2);
    return q->next < end && !(is_longer && byte == 255) && !(goes_on && more == 255);
}

// Writes whole units of the tile to global memory and moves the tile on.
DAMACY__INLINE void damacy__lz4_flush(damacy__lz4_state* s, uint32_t memory, uint32_t lane)
{
    const uint32_t whole = s->end & ~15u, begin = s->end & ~31u;
    const uint32_t bytes = memory + DAMACY__LZ4_BYTES;
    for (uint32_t x = s->flushed + 16 * lane; x < whole; x += 16 * 32) {
        const uint32_t from = bytes + (x - s->begin);
        if (x >= s->first)
            *(damacy__u32x4*)(s->origin + x) = damacy__lds128(from);
        else
            for (uint32_t i = s->first; i < 16; i++)
                s->origin[i] = (uint8_t)damacy__lds8(from + i);
    }
    const uint32_t rest = damacy__lds8(bytes + (begin - s->begin) + lane);
    damacy__sync_warp();
    damacy__sts8(bytes + lane, rest);
    s->flushed = whole;
    s->begin = begin;
    damacy__sync_warp();
}

// The same to the last byte.
DAMACY__INLINE void damacy__lz4_flush_all(damacy__lz4_state* s, uint32_t memory, uint32_t lane)
{
    damacy__lz4_flush(s, memory, lane);
    const uint32_t x = s->flushed + lane;
    if (x < s->end && x >= s->first)
        s->origin[x] = (uint8_t)damacy__lz4_peek(memory, x - s->begin);
}

// Marks where a run of the tile begins, at byte y, and says where its bytes come from.
DAMACY__INLINE void damacy__lz4_run_at(uint32_t memory, uint32_t y, uint32_t run, uint32_t delta)
{
    damacy__shared_or(memory + DAMACY__LZ4_WINDOWS + y / 32 * 8, 1u << (y % 32));
    damacy__sts32(memory + DAMACY__LZ4_DELTA + 4 * run, delta);
}

// Fills the table of runs from the first n sequences of the warp: a lane's begin at byte y.
DAMACY__INLINE void damacy__lz4_map(uint32_t memory, const damacy__lz4_sequence* q, uint32_t y,
                                    uint32_t n, uint32_t lane)
{
    const uint32_t windows = memory + DAMACY__LZ4_WINDOWS + 8 * lane;
    uint32_t run = 1 + 2 * DAMACY__LZ4_EACH * lane;
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++)
        run -= damacy__popc(damacy__ballot(q[k].n_literals == 0) & ((1u << lane) - 1));
    damacy__sts32(windows, 0);
    damacy__sync_warp();
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++) {
        if (DAMACY__LZ4_EACH * lane + k >= n)
            break;
        if (q[k].n_literals != 0) {
            damacy__lz4_run_at(memory, y, run, q[k].literals - y + DAMACY__LZ4_BIAS);
            y += q[k].n_literals;
            run++;
        }
        if (q[k].n_match != 0) {
            damacy__lz4_run_at(memory, y, run, DAMACY__LZ4_BIAS - q[k].offset);
            y += q[k].n_match;
            run++;
        }
    }
    damacy__sync_warp();
    const uint32_t bits = damacy__lds32(windows);
    const uint32_t runs = damacy__sum_upto(damacy__popc(bits), lane);
    const uint32_t all = damacy__shfl(runs, 31);
    damacy__sts32(windows + 4, 4 * (runs - damacy__popc(bits)));
    if (lane < DAMACY__LZ4_N_WINDOWS - 32)
        damacy__sts64(windows + 8 * 32, 0, 4 * all);
    damacy__sync_warp();
}

// Where bytes of N windows from `first` on come from, plus BIAS: lane's byte of each. Bytes below
// `low` are complete.
template <uint32_t N>
DAMACY__INLINE void damacy__lz4_sources(uint32_t memory, uint32_t first, uint32_t low,
                                        uint32_t lane, uint32_t* q)
{
    const uint32_t here = (2u << lane) - 1;
    uint32_t lows[N];
    bool is_inside = false;
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        const damacy__u32x2 window =
            damacy__lds64(memory + DAMACY__LZ4_WINDOWS + first / 32 * 8 + 8 * k);
        const uint32_t run = 4 * damacy__popc(window.x & here) + window.y;
        lows[k] = (k == 0 ? low : first + 32 * k) + DAMACY__LZ4_BIAS;
        q[k] = first + 32 * k + lane + damacy__lds32(memory + DAMACY__LZ4_DELTA + run);
        is_inside = is_inside || q[k] - lows[k] < 32;
    }
    // each step takes the source of the source, so that ways of up to 32 are gone in 5
    for (uint32_t step = 0; step < 5 && damacy__any(is_inside); step++) {
        is_inside = false;
#pragma unroll
        for (uint32_t k = 0; k < N; k++) {
            const uint32_t other = damacy__shfl(q[k], q[k] & 31);
            if (q[k] - lows[k] < 32)
                q[k] = other;
            is_inside = is_inside || q[k] - lows[k] < 32;
        }
    }
}

// Loads v, a byte that lies before the tile, if q, its place in the tile plus BIAS, is below BIAS.
// `base`: the address of q = 0 in the output.
DAMACY__INLINE void damacy__lz4_far(uint32_t* v, uint64_t base, uint32_t q)
{
#ifdef __CUDACC__
    asm volatile("{.reg .pred p; setp.lt.u32 p,%1,%3; @p ld.global.u8 %0,[%2];}"
                 : "+r"(*v)
                 : "r"(q), "l"(base + q), "n"(DAMACY__LZ4_BIAS));
#else
    if (q < DAMACY__LZ4_BIAS)
        *v = *(const uint8_t*)(uintptr_t)(base + q);
#endif
}

// The same of a byte of the tile or the part, if q is not below BIAS.
DAMACY__INLINE void damacy__lz4_near(uint32_t* v, uint32_t memory, uint32_t q)
{
#ifdef __CUDACC__
    asm volatile("{.reg .pred p; setp.ge.u32 p,%1,%3; @p ld.shared.u8 %0,[%2];}"
                 : "+r"(*v)
                 : "r"(q), "r"(memory + DAMACY__LZ4_BYTES - DAMACY__LZ4_BIAS + q),
                   "n"(DAMACY__LZ4_BIAS));
#else
    if (q >= DAMACY__LZ4_BIAS)
        *v = damacy__lz4_peek(memory, q - DAMACY__LZ4_BIAS);
#endif
}

// Makes N windows of the tile from `first` on, of which bytes below `low` are complete. `base`: the
// address of the tile's first byte in the output, less BIAS.
template <uint32_t N>
DAMACY__INLINE void damacy__lz4_make(uint32_t memory, uint64_t base, uint32_t first, uint32_t low,
                                     uint32_t lane)
{
    const uint32_t to = memory + DAMACY__LZ4_BYTES + first + lane;
    uint32_t q[N], v[N];
    damacy__lz4_sources<N>(memory, first, low, lane, q);
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        v[k] = 0;
        damacy__lz4_far(&v[k], base, q[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        damacy__lz4_near(&v[k], memory, q[k]);
        if (k != 0 || first + lane >= low) // bytes that are complete may be read now
            damacy__sts8(to + 32 * k, v[k]);
        damacy__sync_warp();
    }
}

// Makes bytes [from, to) of the tile, which the table of runs describes, in groups of windows. What
// is above `to` in the last group gets any bytes. `base` as above.
DAMACY__INLINE void damacy__lz4_copy(uint32_t memory, uint64_t base, uint32_t from, uint32_t to,
                                     uint32_t lane)
{
    uint32_t low = from, first = from & ~31u;
    if (from == to) // a last sequence without literals
        return;
    for (; first + 64 < to; first += 128) {
        damacy__lz4_make<4>(memory, base, first, low, lane);
        low = first + 128;
    }
    if (first < to)
        damacy__lz4_make<2>(memory, base, first, low, lane);
}

// Ends the job if one of a lane's first n sequences, which begin at byte y of the tile, is wrong.
// Of the last part of the block, `end` is where that ends.
DAMACY__INLINE bool damacy__lz4_refuse(damacy__lz4_state* s, const damacy__lz4_sequence* q,
                                       const uint32_t* tokens, uint32_t y, uint32_t n, uint32_t end,
                                       bool is_last)
{
    uint32_t status = DAMACY__JOB_OK, at = 0, x = s->begin + y;
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++) {
        const uint32_t to = x + q[k].n_literals;
        const bool has_match = q[k].n_match != 0;
        const bool is_over = to + q[k].n_match > s->limit;
        const bool is_cut = is_last && has_match && q[k].next == end;
        const bool is_bad = has_match && q[k].offset - 1 >= to - s->first;
        if (k < n && status == DAMACY__JOB_OK && (is_over || is_cut || is_bad)) {
            status = is_over  ? (uint32_t)DAMACY__JOB_NO_SPACE
                     : is_bad ? (uint32_t)DAMACY__JOB_BAD_OFFSET
                              : (uint32_t)DAMACY__JOB_TRUNCATED;
            at = tokens[k] - s->part;
        }
        x = to + q[k].n_match;
    }
    const uint32_t bads = damacy__ballot(status != DAMACY__JOB_OK);
    if (bads) {
        const uint32_t first = damacy__ctz(bads);
        at = damacy__shfl(at, first);
        (void)damacy__lz4_fail(s, damacy__shfl(status, first), at);
    }
    return bads != 0;
}

// Reads a lane's sequences, of the tokens from `i` on in a list of n: those of the part that are
// whole, up to the first that is not. Returns how many; the others are empty.
DAMACY__INLINE uint32_t damacy__lz4_read_each(uint32_t memory, damacy__lz4_sequence* q,
                                              uint32_t* tokens, uint32_t i, uint32_t n,
                                              uint32_t end, bool is_last)
{
    bool is_whole[DAMACY__LZ4_EACH];
    uint32_t count = 0;
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++) {
        tokens[k] = damacy__lds16(memory + DAMACY__LZ4_TOKENS + 2 * damacy__min(i + k, n - 1));
        is_whole[k] = damacy__lz4_read_quickly(memory, tokens[k], end, &q[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++) {
        if (!is_whole[k])
            is_whole[k] = damacy__lz4_read(memory, tokens[k], end, is_last, &q[k]);
        if (i + k < n && is_whole[k] && count == k)
            count++;
        else
            q[k].n_literals = q[k].n_match = 0;
    }
    return count;
}

// A batch of up to 64 sequences, of the tokens from `i` on in a list of n. Returns how many were
// executed: 0 if the next does not end in the part or is too long for the tile, or if the status
// says why.
DAMACY__INLINE uint32_t damacy__lz4_batch(damacy__lz4_state* s, uint32_t memory, uint32_t i,
                                          uint32_t n, uint32_t end, bool is_last, uint32_t* next,
                                          uint32_t lane)
{
    damacy__lz4_sequence q[DAMACY__LZ4_EACH];
    uint32_t tokens[DAMACY__LZ4_EACH], size = 0;
    if (s->end - s->begin >= DAMACY__LZ4_FLUSH)
        damacy__lz4_flush(s, memory, lane);
    const uint64_t base = (uint64_t)(uintptr_t)s->origin + s->begin;
    const uint32_t from = s->end - s->begin, ahead = s->begin - s->first;
    const uint32_t n_whole =
        damacy__lz4_read_each(memory, q, tokens, i + DAMACY__LZ4_EACH * lane, n, end, is_last);
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++)
        size += q[k].n_literals + q[k].n_match;
    const uint32_t y = from + damacy__sum_upto(size, lane) - size;
    uint32_t to = y, n_mine = 0, after = 0; // of those that find room in the tile
    bool is_odd = false;                    // one may be wrong
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++) {
        const uint32_t match = to + q[k].n_literals, past = match + q[k].n_match;
        if (n_mine == k && k < n_whole && past <= DAMACY__LZ4_TILE) {
            to = past;
            after = q[k].next;
            n_mine = k + 1;
            is_odd = is_odd || q[k].offset - 1 >= match + ahead;
            if (match < q[k].offset)
                damacy__prefetch_l2((const void*)(uintptr_t)(base + match - q[k].offset));
        }
    }
    is_odd = is_odd || to > s->limit - s->begin || (is_last && after == end);
    const uint32_t shorts = damacy__ballot(n_mine < DAMACY__LZ4_EACH);
    const uint32_t last_lane = shorts ? damacy__ctz(shorts) : 31;
    const uint32_t count = DAMACY__LZ4_EACH * last_lane + damacy__shfl(n_mine, last_lane);
    if (damacy__any(is_odd) &&
        damacy__lz4_refuse(s, q, tokens, y, lane <= last_lane ? n_mine : 0, end, is_last))
        return 0;
    if (count == 0)
        return 0;
    damacy__lz4_map(memory, q, y, count, lane);
    const uint32_t last = (count - 1) / DAMACY__LZ4_EACH, until = damacy__shfl(to, last);
    s->end = s->begin + until;
    *next = damacy__shfl(after, last);
    damacy__lz4_copy(memory, base - DAMACY__LZ4_BIAS, from, until, lane);
    return count;
}

// Executes the sequences of a part as far as they end in it. *at: from its first token to the first
// that is not done. Returns how many were done.
DAMACY__INLINE uint32_t damacy__lz4_part(damacy__lz4_state* s, uint32_t memory, uint32_t* at,
                                         uint32_t lane)
{
    const uint32_t size = damacy__min(s->size - *at, DAMACY__LZ4_PART);
    const uint32_t room = DAMACY__LZ4_TILE + DAMACY__LZ4_GAP;
    const uint32_t begin =
        room + damacy__lz4_fetch(s, memory + DAMACY__LZ4_BYTES + room, *at, size, lane);
    const uint32_t end = begin + size;
    const bool is_last = *at + size == s->size;
    const uint32_t tokens = memory + DAMACY__LZ4_TOKENS;
    uint32_t n = 0, n_done = 0, next = begin;
    bool is_stuck = false;
    s->part = begin - *at;
    damacy__lz4_mark(memory, begin, end, lane);
    for (uint32_t first = 0; first < size && !is_stuck; first += 1024) {
        uint32_t i = 0;
        n = damacy__lz4_list(memory, begin, first, n, lane);
        while (!is_stuck && (n - i >= DAMACY__LZ4_BATCH || (first + 1024 >= size && i < n))) {
            const uint32_t count = damacy__lz4_batch(s, memory, i, n, end, is_last, &next, lane);
            is_stuck = count == 0;
            i += count;
            n_done += count;
        }
        uint32_t rest[DAMACY__LZ4_EACH];
#pragma unroll
        for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++)
            rest[k] =
                damacy__lds16(tokens + 2 * damacy__min(i + 32 * k + lane, DAMACY__LZ4_LIST - 1));
        damacy__sync_warp();
#pragma unroll
        for (uint32_t k = 0; k < DAMACY__LZ4_EACH; k++)
            damacy__sts16(tokens + 2 * (32 * k + lane), rest[k]);
        n -= i;
        damacy__sync_warp();
    }
    *at = next - s->part;
    return n_done;
}

// Continues the tile where the output in global memory ends.
DAMACY__INLINE void damacy__lz4_retile(damacy__lz4_state* s, uint32_t memory, uint32_t lane)
{
    s->begin = s->end & ~31u;
    s->flushed = s->end & ~15u;
    damacy__sync_warp();
    const uint32_t x = s->begin + lane;
    if (x < s->end && x >= s->first)
        damacy__sts8(memory + DAMACY__LZ4_BYTES + lane, s->origin[x]);
    damacy__sync_warp();
}

// All sequences of a block from `at` on: parts where tokens are close, one by one where they are
// far apart.
DAMACY__INLINE void damacy__lz4_run(damacy__lz4_state* s, uint32_t memory, uint32_t at,
                                    uint32_t lane)
{
    // In a block that shrinks to a 32nd most are some hundred bytes long. In others one is taken
    // alone at first, unless it is known already that they are close.
    const uint32_t cost = damacy__lz4_shrinks(s, 32) ? 0 : DAMACY__LZ4_SPARSE;
    int32_t credit = at == 0 || cost == 0 ? (int32_t)DAMACY__LZ4_SPARSE : 0;
    if (lane == 0)
        damacy__sts32(memory + DAMACY__LZ4_DELTA, DAMACY__LZ4_BIAS); // of batches before: itself
    damacy__lz4_retile(s, memory, lane);
    while (at < s->size && s->status == DAMACY__JOB_OK) {
        const uint32_t before = at;
        if (credit > 0) {
            damacy__lz4_flush_all(s, memory, lane);
            damacy__lz4_long(s, &at, &credit, cost, lane);
            if (credit > 0 && !damacy__lz4_one(s, &at, lane))
                return;
            damacy__lz4_retile(s, memory, lane);
        } else {
            const uint32_t n_done = damacy__lz4_part(s, memory, &at, lane);
            if (at == before)
                credit = 1;
            else if (n_done < (at - before) / DAMACY__LZ4_SPARSE)
                credit = 4 * DAMACY__LZ4_SPARSE;
        }
    }
    damacy__lz4_flush_all(s, memory, lane);
}

// Warps that one multiprocessor should hold, for registers to be given out by.
#ifndef DAMACY__LZ4_WARPS
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#define DAMACY__LZ4_WARPS 28
#else
#define DAMACY__LZ4_WARPS 16
#endif
#endif

// Whether teams are faster at a wave of n than a warp a block, by 32 of its jobs: if blocks shrink,
// but not to a few long sequences, or if there are a few blocks more than warps are held. Streams
// of up to 8 planes take turns in a table, and so do those that are looked at.
DAMACY__INLINE bool damacy__lz4_is_team_kind(const damacy__lz4_wave* wave, uint32_t n)
{
    const uint32_t held = DAMACY__LZ4_WARPS * wave->n_multiprocessors;
    const uint32_t lane = damacy__lane(), first = (uint32_t)((uint64_t)n * lane / 32);
    const damacy__job* const job =
        (const damacy__job*)(uintptr_t)wave->jobs + damacy__min((first & ~7u) | (lane & 7), n - 1);
    const uint64_t most = DAMACY__JOB_SIZE_MAX;
    const uint64_t room = job->dst_capacity < most ? job->dst_capacity : most;
    const uint64_t size = job->src_size < most ? job->src_size : most;
    const uint64_t rooms = damacy__warp_sum((uint32_t)(room / 64)); // below 2^30
    const uint64_t sizes = damacy__warp_sum((uint32_t)(size / 64) + 1);

    return (n > held && n - held <= held / 4) ||
           (rooms >= wave->team_shrink * sizes && rooms < DAMACY__LZ4_SHRUNK * sizes);
}

// The room from which on a job of a wave of n is for teams, before damacy_lz4. All of a warp.
DAMACY__INLINE uint32_t damacy__lz4_team_room(const damacy__lz4_wave* wave, uint32_t n)
{
    return n <= wave->team_most || (n <= wave->team_some && damacy__lz4_is_team_kind(wave, n))
               ? 0
               : wave->team_size;
}

// One job, by one warp, or the rest of it. is_there: shared memory is where `memory` says; if not,
// what is not done yet gets no result. team_size: the room from which on teams have a job.
DAMACY__INLINE void damacy__lz4_job(const damacy__lz4_wave* wave, uint32_t memory, bool is_there,
                                    uint32_t team_size, uint32_t index, uint32_t lane)
{
    const damacy__job_result* const result =
        (const damacy__job_result*)(uintptr_t)wave->results + index;
    damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
    damacy__lz4_state s;
    uint32_t n, at = 0;
    const bool is_team = job.dst_capacity >= team_size;
    damacy__lz4_begin(&job, &s, &n);
    const bool is_begun =
        wave->is_begun && (damacy__lz4_is_sparse(&s) || damacy__lz4_is_shrunk(&s));
    if (s.status == DAMACY__JOB_OK && (is_team || is_begun) && !damacy__lz4_resume(result, &s, &at))
        return;
    if (s.status == DAMACY__JOB_OK && !is_there)
        (void)damacy__lz4_fail(&s, DAMACY__JOB_UNSUPPORTED, at);
    if (s.status == DAMACY__JOB_OK)
        damacy__lz4_run(&s, memory, at, lane);
    damacy__lz4_finish(wave, index, &s, lane);
}
