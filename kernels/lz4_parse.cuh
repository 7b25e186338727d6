// Finds the sequences of LZ4 blocks, a thread per block: token by token, without a look at literals
// and offsets. Proves that literals lie inside the source and that the block ends with literals and
// makes exactly the bytes that are due.
//
// The chain from one token to the next is the whole cost, and 32 blocks in a warp would wait for
// memory, or for each other's rare cases, at every step. So each thread has a window of shared
// memory that is filled asynchronously, far enough ahead, and takes one byte a step, the same way
// whatever it is.
#pragma once

#include "kernels/bits.cuh"
#include "kernels/lz4_abi.h"

#define DAMACY__LZ4_WINDOW 512u // bytes
#define DAMACY__LZ4_STEPS  16u  // bytes taken between two refills

// Sixteen bytes, both sides aligned, from global to shared memory; complete for this thread once
// all but one of the groups that it has closed are awaited.
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
DAMACY__INLINE void damacy__lz4_copy16(uint8_t* shared, const uint8_t* src)
{
    asm volatile("cp.async.ca.shared.global [%0],[%1],16;" ::"r"(damacy__shared_address(shared)),
                 "l"(src)
                 : "memory");
}
DAMACY__INLINE void damacy__lz4_close_group(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
DAMACY__INLINE void damacy__lz4_await_groups(void)
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}
DAMACY__INLINE void damacy__lz4_await_all(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}
#else
DAMACY__INLINE void damacy__lz4_copy16(uint8_t* shared, const uint8_t* src)
{
    *(damacy__u32x4*)shared = *(const damacy__u32x4*)src;
}
DAMACY__INLINE void damacy__lz4_close_group(void) {}
DAMACY__INLINE void damacy__lz4_await_groups(void) {}
DAMACY__INLINE void damacy__lz4_await_all(void) {}
#endif

// The source as a thread sees it. Pieces of 16 bytes are numbered from the boundary at or below it.
typedef struct damacy__lz4_window {
    uint8_t* ring; // shared, WINDOW bytes
    const uint8_t* base;
    uint32_t begin, end; // the block, from base
    uint32_t asked;      // pieces below it were asked for
    uint32_t asked_before;
    uint32_t ready; // bytes below it, from base, are in the ring
} damacy__lz4_window;

// Gives up what lies below `at`, a position from the base, and asks for what comes next.
DAMACY__INLINE void damacy__lz4_refill(damacy__lz4_window* w, uint32_t at)
{
    const uint32_t piece = at / 16;
    const uint32_t last = damacy__min(piece + DAMACY__LZ4_WINDOW / 16 - 1, (w->end + 15) / 16);
    damacy__lz4_await_groups();
    w->ready = 16 * w->asked_before;
    if (16 * piece >= w->ready) { // too fast, or a long run was skipped: nothing may stay under way
        damacy__lz4_await_all();
        w->ready = 16 * w->asked;
    }
    w->asked_before = w->asked = damacy__max(w->asked, piece);
    for (; w->asked < last; w->asked++) {
        const uint32_t p = 16 * w->asked;
        uint8_t* const to = w->ring + p % DAMACY__LZ4_WINDOW;
        if (p >= w->begin && p + 16 <= w->end)
            damacy__lz4_copy16(to, w->base + p);
        else
            for (uint32_t i = damacy__max(p, w->begin); i < damacy__min(p + 16, w->end); i++)
                to[i - p] = w->base[i];
    }
    damacy__lz4_close_group();
}

enum { // what the next byte is
    DAMACY__LZ4_TOKEN = 0,
    DAMACY__LZ4_MORE_LITERALS = 1, // extends the number of literals
    DAMACY__LZ4_MORE_MATCH = 2     // extends the length of the match
};

// Where a walk stands. Positions count from the window's base.
typedef struct damacy__lz4_walk {
    uint32_t at;
    uint32_t out; // bytes made
    uint32_t state;
    uint32_t n_literals; // so far
    uint32_t nibble;     // of the match, in the token
    uint32_t token;      // the last one
    uint32_t n_tokens;
    uint32_t status;
    bool is_done;
} damacy__lz4_walk;

// Takes one byte, without branches: lanes that are at different places of a sequence stay together.
// Callers see to it that the byte is in the window. Returns whether it was a token.
DAMACY__INLINE bool damacy__lz4_step(const damacy__lz4_window* w, damacy__lz4_walk* k, uint32_t n)
{
    const uint32_t byte = w->ring[k->at % DAMACY__LZ4_WINDOW];
    const bool is_token = k->state == DAMACY__LZ4_TOKEN;
    const bool is_match = k->state == DAMACY__LZ4_MORE_MATCH;
    const bool ends = byte != 255;
    k->token = is_token ? k->at : k->token;
    k->nibble = is_token ? byte & 15 : k->nibble;
    k->n_literals = is_token ? byte >> 4 : is_match ? 0 : k->n_literals + byte;
    k->at++;
    // literals: complete unless the token or the byte says that more bytes come
    const bool has_literals = is_token ? k->n_literals < 15 : !is_match && ends;
    const uint32_t room = n - k->out, left = w->end - k->at;
    const bool too_many = k->n_literals > room;
    const bool too_far = k->n_literals > left;
    const uint32_t literals = has_literals ? k->n_literals : 0;
    const bool is_last = has_literals && literals == left;
    const bool no_offset = has_literals && !is_last && left - literals < 2;
    // match: the bytes of this step, once its literals are over
    const bool has_offset = has_literals && !is_last;
    const uint32_t match = is_match ? byte : has_offset ? k->nibble + 4 : 0;
    k->at += literals + (has_offset ? 2 : 0);
    k->out += literals + match;
    k->state = has_offset ? (k->nibble == 15 ? (uint32_t)DAMACY__LZ4_MORE_MATCH
                                             : (uint32_t)DAMACY__LZ4_TOKEN)
               : is_match ? (ends ? (uint32_t)DAMACY__LZ4_TOKEN : (uint32_t)DAMACY__LZ4_MORE_MATCH)
                          : (uint32_t)DAMACY__LZ4_MORE_LITERALS;
    k->is_done = is_last;
    k->status = too_far || no_offset          ? (uint32_t)DAMACY__JOB_TRUNCATED
                : too_many || k->out > n      ? (uint32_t)DAMACY__JOB_NO_SPACE
                : !is_last && k->at >= w->end ? (uint32_t)DAMACY__JOB_TRUNCATED
                                              : (uint32_t)DAMACY__JOB_OK;
    return is_token;
}

// Lists the tokens of a block of `size` bytes that may make up to n; four are stored at a time.
DAMACY__INLINE void damacy__lz4_list(const uint8_t* src, uint32_t size, uint32_t n, uint8_t* ring,
                                     uint32_t* tokens, damacy__lz4_block* block)
{
    damacy__u32x4 held = {0, 0, 0, 0};
    damacy__lz4_window w;
    damacy__lz4_walk k = {0, 0, DAMACY__LZ4_TOKEN, 0, 0, 0, 0, DAMACY__JOB_OK, false};
    w.ring = ring;
    w.begin = (uint32_t)(uintptr_t)src & 15;
    w.end = w.begin + size;
    w.base = (const uint8_t*)((uintptr_t)src & ~(uintptr_t)15);
    w.asked = w.asked_before = w.ready = 0;
    k.at = w.begin;
    do {
        damacy__lz4_refill(&w, k.at);
        for (uint32_t step = 0; step < DAMACY__LZ4_STEPS; step++) {
            if (k.at >= w.ready || k.is_done || k.status != DAMACY__JOB_OK)
                continue;
            if (damacy__lz4_step(&w, &k, n)) {
                held.x = held.y;
                held.y = held.z;
                held.z = held.w;
                held.w = k.token - w.begin;
                if ((k.n_tokens & 3) == 3)
                    *(damacy__u32x4*)(tokens + (k.n_tokens - 3)) = held;
                k.n_tokens++;
            }
        }
    } while (k.status == DAMACY__JOB_OK && !k.is_done);
    const uint32_t rest = k.n_tokens & 3; // still held, in the last places
    if (rest > 2)
        tokens[k.n_tokens - 3] = held.y;
    if (rest > 1)
        tokens[k.n_tokens - 2] = held.z;
    if (rest > 0)
        tokens[k.n_tokens - 1] = held.w;
    block->n_tokens = k.n_tokens;
    block->n = k.out;
    block->status = k.status;
    block->error_offset = k.token - w.begin;
}

// What a job may produce, or the reason why it cannot start. A size in front of the block becomes
// the one that the job expects.
DAMACY__INLINE uint32_t damacy__lz4_open(damacy__job* job, const uint8_t** src, uint32_t* size,
                                         uint32_t* n, uint32_t* need)
{
    const uint64_t prefix = job->flags & DAMACY__LZ4_SIZE_PREFIX ? 4 : 0;
    const uint64_t capacity =
        job->dst_capacity < DAMACY__JOB_SIZE_MAX ? job->dst_capacity : DAMACY__JOB_SIZE_MAX;
    *src = (const uint8_t*)(uintptr_t)job->src + prefix;
    *need = 0;
    if (job->flags & DAMACY__JOB_SKIP)
        return DAMACY__JOB_SKIPPED;
    if (job->src_size > DAMACY__JOB_SIZE_MAX)
        return DAMACY__JOB_TOO_LARGE;
    if (job->src_size <= prefix)
        return DAMACY__JOB_TRUNCATED;
    if (prefix) {
        const uint8_t* p = *src - prefix;
        const uint32_t stored =
            (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        if (job->expected_size == DAMACY__SIZE_UNKNOWN)
            job->expected_size = stored;
        else if (job->expected_size != stored)
            return DAMACY__JOB_SIZE_MISMATCH;
    }
    *size = (uint32_t)(job->src_size - prefix);
    if (job->expected_size != DAMACY__SIZE_UNKNOWN && job->expected_size > capacity) {
        *need = job->expected_size > ~0u ? ~0u : (uint32_t)job->expected_size;
        return DAMACY__JOB_NO_SPACE;
    }
    *n = (uint32_t)(job->expected_size != DAMACY__SIZE_UNKNOWN ? job->expected_size : capacity);
    return DAMACY__JOB_OK;
}

// Places for the tokens of every lane's job, from one atomic a warp.
DAMACY__INLINE uint64_t damacy__lz4_reserve(const damacy__lz4_wave* wave, uint64_t n, uint32_t lane)
{
    uint64_t sum = n, first = 0;
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint64_t other = damacy__shfl_up(sum, d);
        if (lane >= d)
            sum += other;
    }
    if (lane == 31)
        first = damacy__atomic_add64((uint64_t*)(uintptr_t)wave->n_tokens, sum);
    return damacy__shfl(first, 31) + sum - n;
}

// One job per lane; `index` may be past the last.
DAMACY__INLINE void damacy__lz4_parse_job(const damacy__lz4_wave* wave, uint32_t index,
                                          uint32_t n_jobs, uint32_t lane, uint8_t* ring)
{
    damacy__job job;
    damacy__lz4_block block = {0, 0, 0, DAMACY__JOB_OK, 0};
    const uint8_t* src = nullptr;
    uint32_t size = 0, n = 0;
    uint64_t n_places = 0;
    if (index < n_jobs) {
        job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
        block.status = damacy__lz4_open(&job, &src, &size, &n, &block.n);
        if (block.status == DAMACY__JOB_OK)
            n_places = DAMACY__LZ4_TOKENS((uint64_t)size, (uint64_t)n);
    }
    block.first = damacy__lz4_reserve(wave, n_places, lane);
    if (index >= n_jobs)
        return;
    if (block.status == DAMACY__JOB_OK) {
        if (block.first + n_places > wave->max_tokens) {
            block.status = DAMACY__JOB_NEED_SCRATCH;
        } else {
            damacy__lz4_list(src, size, n, ring, (uint32_t*)(uintptr_t)wave->tokens + block.first,
                             &block);
            const bool is_exact = job.expected_size != DAMACY__SIZE_UNKNOWN;
            if (is_exact && (block.status == DAMACY__JOB_NO_SPACE ||
                             (block.status == DAMACY__JOB_OK && block.n != n)))
                block.status = DAMACY__JOB_SIZE_MISMATCH;
            if (block.status != DAMACY__JOB_OK)
                block.n = 0;
            if (job.flags & DAMACY__LZ4_SIZE_PREFIX)
                block.error_offset += 4;
        }
    }
    ((damacy__lz4_block*)(uintptr_t)wave->blocks)[index] = block;
}
