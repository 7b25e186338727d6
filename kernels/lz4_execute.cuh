// Executes the sequences of one LZ4 block with a CTA: a thread per sequence. Literals, and matches
// that reach back before the tile, are gathered from global memory into a tile of shared memory
// that holds the newest output; then one warp runs the matches that read the tile itself, in order;
// then the tile goes out, 16 bytes a thread. parse has proved all that concerns the
// source only.
#pragma once

#include "kernels/bytes.cuh"
#include "kernels/lz4_abi.h"

#define DAMACY__LZ4_LONG  256u // a longer sequence goes straight to the output, by the whole CTA
#define DAMACY__LZ4_SHORT 16u  // a longer run is copied by a warp, a shorter one by its thread
#define DAMACY__LZ4_NONE  0xffffffffu

template <uint32_t WARPS> struct damacy__lz4_shared {
    static constexpr uint32_t tile_size = WARPS * 512; // bytes that a batch may make
    damacy__u32x4 tiles[2]
                       [tile_size / 16 + 2]; // the newest bytes, and room to read beyond; in turn
    uint32_t near_out[WARPS * 32];           // matches that read the tile
    uint32_t near_n[WARPS * 32];
    uint32_t near_offset[WARPS * 32];
    uint32_t size[WARPS];       // output bytes of a warp's sequences
    uint32_t first_long[WARPS]; // lane of its first long one, or 32
    uint32_t taken[WARPS];      // sequences of the batch
    uint32_t taken_size[WARPS]; // their bytes
    uint32_t n_near[WARPS];
    uint32_t bad[WARPS]; // the first bad sequence of a warp, or NONE
};

// Output positions count from the 16-byte boundary at or below the first output byte, which is
// `first`. Bytes in [begin, end) are in the tile, those below in global memory.
typedef struct damacy__lz4_state {
    const uint8_t* src;
    uint32_t size; // of the block
    uint8_t* origin;
    uint8_t* high;  // end of the output range
    uint32_t limit; // position of it
    uint8_t* tile;  // the current one
    uint32_t first;
    uint32_t begin; // a multiple of 16
    uint32_t end;
} damacy__lz4_state;

typedef struct damacy__lz4_sequence {
    uint32_t literals; // where they are in the block
    uint32_t n_literals;
    uint32_t n_match; // 0 in the last sequence only
    uint32_t offset;
} damacy__lz4_sequence;

// The sequence of the token at `at`, which parse has checked.
DAMACY__INLINE damacy__lz4_sequence damacy__lz4_read(const damacy__lz4_state* s, uint32_t at)
{
    damacy__lz4_sequence r;
    const uint32_t token = s->src[at++];
    uint32_t byte = 255;
    r.n_literals = token >> 4;
    if (r.n_literals == 15)
        while (byte == 255) {
            byte = s->src[at++];
            r.n_literals += byte;
        }
    r.literals = at;
    at += r.n_literals;
    r.n_match = r.offset = 0;
    if (at == s->size)
        return r;
    r.offset = (uint32_t)s->src[at] | (uint32_t)s->src[at + 1] << 8;
    r.n_match = (token & 15) + 4;
    if (r.n_match == 19)
        for (at += 2, byte = 255; byte == 255;) {
            byte = s->src[at++];
            r.n_match += byte;
        }
    return r;
}

// Bytes of each thread's run, n of them from base + at, to output position x: short ones by the
// thread, others by its warp. Reads stay inside [low, high).
DAMACY__INLINE void damacy__lz4_fetch(const damacy__lz4_state* s, uint32_t x, const uint8_t* base,
                                      uint32_t at, uint32_t n, const uint8_t* low,
                                      const uint8_t* high, uint32_t lane)
{
    uint32_t wide = damacy__ballot(n > DAMACY__LZ4_SHORT);
    if (n <= DAMACY__LZ4_SHORT) {
        uint8_t* dst = s->tile + (x - s->begin);
        for (uint32_t k = 0; k < n; k += 8) {
            const uint32_t m = damacy__min(n - k, 8);
            damacy__scatter8(dst + k, damacy__gather8(base + at + k, m, low, high), m);
        }
    }
    while (wide) {
        const uint32_t from = damacy__ctz(wide);
        uint8_t* const dst = s->tile + (damacy__shfl(x, from) - s->begin);
        const uint8_t* const src = base + damacy__shfl(at, from);
        const uint32_t size = damacy__shfl(n, from);
        wide &= wide - 1;
        for (uint32_t k = lane; k < size; k += 32)
            dst[k] = src[k];
    }
}

// Up to eight bytes of output, from position q on, of the tile or below it.
DAMACY__INLINE damacy__u32x2 damacy__lz4_recent(const damacy__lz4_state* s, uint32_t q, uint32_t n)
{
    if (q >= s->begin) { // words of shared memory; the bytes above n do not matter
        const uint32_t at = q - s->begin, skew = at & 3;
        const uint32_t* const words = (const uint32_t*)(s->tile + (at - skew));
        const uint32_t w0 = words[0], w1 = words[1], w2 = words[2];
        damacy__u32x2 r;
        r.x = damacy__funnel_right(w0, w1, 8 * skew);
        r.y = damacy__funnel_right(w1, w2, 8 * skew);
        return r;
    }
    damacy__u32x2 r = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t p = q + i;
        const uint32_t byte = p < s->begin ? s->origin[p] : s->tile[p - s->begin];
        if (i < 4)
            r.x |= byte << (8 * i);
        else
            r.y |= byte << (8 * i - 32);
    }
    return r;
}

// Copies n bytes of output from position q to x; source and target may overlap. One thread.
DAMACY__INLINE void damacy__lz4_repeat(const damacy__lz4_state* s, uint32_t x, uint32_t q,
                                       uint32_t n)
{
    const uint32_t offset = x - q;
    uint8_t* const dst = s->tile + (x - s->begin);
    if (offset >= 8) {
        for (uint32_t k = 0; k < n; k += 8) {
            const uint32_t m = damacy__min(n - k, 8);
            damacy__scatter8(dst + k, damacy__lz4_recent(s, q + k, m), m);
        }
        return;
    }
    // the largest multiple of the offset that eight bytes hold, over and over
    const uint32_t step = 8 - 8 % offset;
    damacy__u32x2 v = damacy__lz4_recent(s, q, offset);
    uint64_t pattern = (uint64_t)v.y << 32 | v.x;
    pattern &= ~0ull >> (64 - 8 * offset);
    for (uint32_t have = offset; have < 8; have *= 2)
        pattern |= pattern << (8 * have);
    v.x = (uint32_t)pattern;
    v.y = (uint32_t)(pattern >> 32);
    for (uint32_t k = 0; k < n; k += step)
        damacy__scatter8(dst + k, v, damacy__min(n - k, step));
}

// Matches whose source is in the tile or reaches into it, by one warp, 32 at a time in order. A
// match can run once all below its source's end is complete, and the first that waits always can.
template <uint32_t WARPS>
DAMACY__INLINE void damacy__lz4_near(const damacy__lz4_state* s,
                                     const damacy__lz4_shared<WARPS>* shared, uint32_t total,
                                     uint32_t lane)
{
    for (uint32_t first = 0; first < total; first += 32) {
        uint32_t i = first + lane, x = 0, n = 0, q = 0, source_end = 0;
        bool is_waiting = i < total;
        if (is_waiting) {
            uint32_t warp = 0;
            while (i >= shared->n_near[warp])
                i -= shared->n_near[warp++];
            i += 32 * warp;
            x = shared->near_out[i];
            n = shared->near_n[i];
            q = x - shared->near_offset[i];
            source_end = damacy__min(x, q + n);
        }
        uint32_t waiting = damacy__ballot(is_waiting);
        while (waiting) {
            const uint32_t complete = damacy__shfl(x, damacy__ctz(waiting));
            if (is_waiting && source_end <= complete) {
                damacy__lz4_repeat(s, x, q, n);
                is_waiting = false;
            }
            damacy__sync_warp();
            waiting = damacy__ballot(is_waiting);
        }
    }
}

// Writes whole units of the tile; the rest begins the other tile.
template <uint32_t WARPS>
DAMACY__INLINE void damacy__lz4_flush(damacy__lz4_state* s, damacy__lz4_shared<WARPS>* shared)
{
    const uint32_t whole = s->end & ~15u;
    uint8_t* const other =
        (uint8_t*)shared->tiles[s->tile == (const uint8_t*)shared->tiles[0] ? 1 : 0];
    for (uint32_t x = s->begin + 16 * threadIdx.x; x < whole; x += 16 * 32 * WARPS) {
        if (x >= s->first)
            *(damacy__u32x4*)(s->origin + x) = *(const damacy__u32x4*)(s->tile + (x - s->begin));
        else
            for (uint32_t i = s->first; i < 16; i++)
                s->origin[i] = s->tile[i];
    }
    if (threadIdx.x < s->end - whole)
        other[threadIdx.x] = s->tile[whole - s->begin + threadIdx.x];
    s->tile = other;
    s->begin = whole;
}

// What the tile holds after a flush, below 16 bytes, to the output.
DAMACY__INLINE void damacy__lz4_flush_rest(const damacy__lz4_state* s)
{
    const uint32_t x = s->begin + threadIdx.x;
    if (x < s->end && x >= s->first)
        s->origin[x] = s->tile[threadIdx.x];
}

// One sequence in global memory, by the whole CTA. The tile was flushed.
DAMACY__INLINE void damacy__lz4_copy_long(damacy__lz4_state* s, const damacy__lz4_sequence* q)
{
    uint8_t* const dst = s->origin + s->end + q->n_literals;
    damacy__sync_block(); // the rest is in the tile
    damacy__lz4_flush_rest(s);
    damacy__copy_group(s->origin + s->end, s->src + q->literals, q->n_literals, threadIdx.x,
                       blockDim.x);
    damacy__sync_block();
    if (q->offset >= q->n_match) {
        damacy__copy_group(dst, dst - q->offset, q->n_match, threadIdx.x, blockDim.x);
    } else { // the bytes before the match, again and again
        const uint32_t step = blockDim.x % q->offset;
        uint32_t from = threadIdx.x % q->offset;
        for (uint32_t k = threadIdx.x; k < q->n_match; k += blockDim.x) {
            dst[k] = (dst - q->offset)[from];
            from += step;
            if (from >= q->offset)
                from -= q->offset;
        }
    }
    damacy__sync_block();
    s->end += q->n_literals + q->n_match;
    s->begin = s->end & ~15u;
    if (threadIdx.x < s->end - s->begin && s->begin + threadIdx.x >= s->first)
        s->tile[threadIdx.x] = s->origin[s->begin + threadIdx.x];
}

// This thread's token of the batch that begins with sequence i; any value if there is none.
DAMACY__INLINE uint32_t damacy__lz4_token(const uint32_t* tokens, uint32_t n_tokens, uint32_t i)
{
    return tokens[damacy__min(i + threadIdx.x, n_tokens - 1)];
}

// A bad sequence: twice its token, and 1 if it makes more than may be made, 0 if its match starts
// before the data. The smallest counts.
DAMACY__INLINE uint32_t damacy__lz4_bad(uint32_t token, bool is_over)
{
    return 2 * token + (is_over ? 1 : 0);
}

// Sequences [i, i + 32 * WARPS) as far as they fit the tile: returns how many were executed, or
// NONE if one is bad, which *bad then names. *next_token is this thread's, of this batch
// and then of the next, which is loaded ahead.
template <uint32_t WARPS>
DAMACY__INLINE uint32_t damacy__lz4_batch(damacy__lz4_state* s, damacy__lz4_shared<WARPS>* shared,
                                          const uint32_t* tokens, uint32_t n_tokens, uint32_t i,
                                          uint32_t* next_token, uint32_t* bad)
{
    const uint32_t lane = damacy__lane(), warp = threadIdx.x >> 5;
    damacy__lz4_sequence q = {0, 0, 0, 0};
    const uint32_t token = *next_token;
    const bool is_valid = threadIdx.x < n_tokens - i;
    *next_token = damacy__lz4_token(tokens, n_tokens, i + 32 * WARPS);
    if (is_valid) {
        if (lane == 31)
            damacy__prefetch_l2(s->src + damacy__min(token + 1024 * WARPS, s->size - 1));
        q = damacy__lz4_read(s, token);
    }
    // where its output starts
    const uint32_t size = q.n_literals + q.n_match;
    uint32_t sum = damacy__min(size, DAMACY__LZ4_LONG); // nothing after a longer one is looked at
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = damacy__shfl_up(sum, d);
        if (lane >= d)
            sum += other;
    }
    const uint32_t longs = damacy__ballot(size > DAMACY__LZ4_LONG);
    const uint32_t first_long = longs ? damacy__ctz(longs) : 32;
    if (lane == 31) {
        shared->size[warp] = sum;
        shared->first_long[warp] = first_long;
    }
    damacy__sync_block(); // also: the tile flushed before can be read in global memory
    uint32_t x = s->end + sum - damacy__min(size, DAMACY__LZ4_LONG);
    bool is_taken = is_valid && lane < first_long;
    for (uint32_t w = 0; w < warp; w++) {
        x += shared->size[w];
        is_taken = is_taken && shared->first_long[w] == 32;
    }
    const bool is_over = is_taken && x + size > s->limit;
    is_taken = is_taken && !is_over && x + size - s->begin <= damacy__lz4_shared<WARPS>::tile_size;
    if (!is_taken)
        q.n_literals = q.n_match = 0;

    damacy__lz4_fetch(s, x, s->src, q.literals, q.n_literals, s->src, s->src + s->size, lane);
    const uint32_t to = x + q.n_literals;
    const bool is_bad = q.n_match != 0 && q.offset - 1 >= to - s->first;
    const bool is_far = !is_bad && to - q.offset + q.n_match <= s->begin;
    damacy__lz4_fetch(s, to, s->origin, to - q.offset, is_far ? q.n_match : 0, s->origin + s->first,
                      s->high, lane);
    const uint32_t nears = damacy__ballot(q.n_match != 0 && !is_far && !is_bad);
    if (nears >> lane & 1) {
        const uint32_t k = 32 * warp + damacy__popc(nears & ((1u << lane) - 1));
        shared->near_out[k] = to;
        shared->near_n[k] = q.n_match;
        shared->near_offset[k] = q.offset;
    }
    const uint32_t takens = damacy__ballot(is_taken), bads = damacy__ballot(is_bad || is_over);
    const uint32_t last = takens ? 31 - damacy__clz(takens) : 0;
    const uint32_t taken_size = damacy__shfl(sum, last);
    const uint32_t first_bad =
        damacy__shfl(damacy__lz4_bad(token, is_over), bads ? damacy__ctz(bads) : 0);
    if (lane == 0) {
        shared->taken[warp] = damacy__popc(takens);
        shared->taken_size[warp] = takens ? taken_size : 0;
        shared->n_near[warp] = damacy__popc(nears);
        shared->bad[warp] = bads ? first_bad : DAMACY__LZ4_NONE;
    }
    damacy__sync_block();
    uint32_t n = 0, n_near = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        n += shared->taken[w];
        n_near += shared->n_near[w];
        s->end += shared->taken_size[w];
        *bad = damacy__min(*bad, shared->bad[w]);
    }
    if (*bad != DAMACY__LZ4_NONE)
        return DAMACY__LZ4_NONE;
    if (n_near != 0) {
        if (warp == 0)
            damacy__lz4_near<WARPS>(s, shared, n_near, lane);
        damacy__sync_block();
    }
    if (n != 0)
        damacy__lz4_flush<WARPS>(s, shared);
    return n;
}

// All sequences of a block. Returns the first bad one, or NONE.
template <uint32_t WARPS>
DAMACY__INLINE uint32_t damacy__lz4_run(damacy__lz4_state* s, damacy__lz4_shared<WARPS>* shared,
                                        const uint32_t* tokens, uint32_t n_tokens)
{
    uint32_t bad = DAMACY__LZ4_NONE;
    uint32_t token = damacy__lz4_token(tokens, n_tokens, 0);
    s->tile = (uint8_t*)shared->tiles[0];
    for (uint32_t i = 0; i < n_tokens;) {
        uint32_t n = damacy__lz4_batch<WARPS>(s, shared, tokens, n_tokens, i, &token, &bad);
        if (n == DAMACY__LZ4_NONE)
            return bad;
        if (n == 0) { // the next one is long
            const damacy__lz4_sequence q = damacy__lz4_read(s, tokens[i]);
            const bool is_over =
                q.n_literals > s->limit - s->end || q.n_match > s->limit - s->end - q.n_literals;
            if (is_over || (q.n_match != 0 && q.offset - 1 >= s->end + q.n_literals - s->first))
                return damacy__lz4_bad(tokens[i], is_over);
            damacy__lz4_copy_long(s, &q);
            n = 1;
        }
        i += n;
        if (n != 32 * WARPS)
            token = damacy__lz4_token(tokens, n_tokens, i);
    }
    damacy__sync_block(); // the rest is in the tile
    damacy__lz4_flush_rest(s);
    return DAMACY__LZ4_NONE;
}

// One job. Thread 0 writes the result.
template <uint32_t WARPS>
DAMACY__INLINE void damacy__lz4_execute_job(const damacy__lz4_wave* wave,
                                            damacy__lz4_shared<WARPS>* shared, uint32_t index)
{
    const damacy__job* const job = (const damacy__job*)(uintptr_t)wave->jobs + index;
    const damacy__lz4_block block = ((const damacy__lz4_block*)(uintptr_t)wave->blocks)[index];
    const uint32_t prefix = job->flags & DAMACY__LZ4_SIZE_PREFIX ? 4 : 0;
    uint32_t status = block.status;
    uint64_t at = block.error_offset;
    uint32_t size = block.n; // the need, if it does not fit
    if (status == DAMACY__JOB_OK) {
        damacy__lz4_state s;
        s.src = (const uint8_t*)(uintptr_t)job->src + prefix;
        s.size = (uint32_t)job->src_size - prefix;
        s.first = (uint32_t)(job->dst & 15);
        s.origin = (uint8_t*)(uintptr_t)(job->dst - s.first);
        s.limit = s.first + block.n;
        s.high = s.origin + s.limit;
        s.begin = 0;
        s.end = s.first;
        const uint32_t bad = damacy__lz4_run<WARPS>(
            &s, shared, (const uint32_t*)(uintptr_t)wave->tokens + block.first, block.n_tokens);
        size = s.end - s.first;
        if (bad != DAMACY__LZ4_NONE) {
            status = bad & 1 ? (uint32_t)DAMACY__JOB_NO_SPACE : (uint32_t)DAMACY__JOB_BAD_OFFSET;
            at = bad / 2 + prefix;
            size = 0;
        }
        if (block.is_exact &&
            (status == DAMACY__JOB_NO_SPACE || (status == DAMACY__JOB_OK && size != block.n))) {
            status = DAMACY__JOB_SIZE_MISMATCH;
            at = bad == DAMACY__LZ4_NONE ? job->src_size : at;
            size = 0;
        }
    }
    if (threadIdx.x == 0) {
        damacy__job_result* const result = (damacy__job_result*)(uintptr_t)wave->results + index;
        result->size = status == DAMACY__JOB_OK || status == DAMACY__JOB_NO_SPACE ? size : 0;
        result->error_offset = status == DAMACY__JOB_OK ? 0 : at;
        result->zero = 0;
        result->status = status;
    }
}
