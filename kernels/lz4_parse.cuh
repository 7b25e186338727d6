// Finds the sequences of LZ4 blocks, a thread per block: token by token, without a look at literals
// and offsets, so that the chain from one token to the next is one load. Proves that literals lie
// inside the source and that the block ends with literals and makes exactly the bytes that are due.
#pragma once

#include "kernels/warp.cuh"
#include "kernels/lz4_abi.h"

// Adds the bytes that extend a length; false when they run out of the source or pass `most`.
DAMACY__INLINE bool damacy__lz4_extend(const uint8_t* src, uint32_t size, uint32_t* at, uint32_t* n,
                                       uint32_t most, uint32_t* status)
{
    uint32_t byte;
    do {
        if (*at >= size) {
            *status = DAMACY__JOB_TRUNCATED;
            return false;
        }
        byte = src[(*at)++];
        *n += byte;
        if (*n > most) {
            *status = DAMACY__JOB_NO_SPACE;
            return false;
        }
    } while (byte == 255);
    return true;
}

// One token's way to the next. *at and *out advance; at == size afterwards: it was the last.
DAMACY__INLINE uint32_t damacy__lz4_advance(const uint8_t* src, uint32_t size, uint32_t n,
                                            uint32_t* at, uint32_t* out)
{
    uint32_t p = *at, status = DAMACY__JOB_OK;
    if (p >= size)
        return DAMACY__JOB_TRUNCATED;
    const uint32_t token = src[p++];
    const uint32_t room = n - *out;
    uint32_t n_literals = token >> 4, n_match = (token & 15) + 4;
    if (n_literals == 15 && !damacy__lz4_extend(src, size, &p, &n_literals, room, &status))
        return status;
    if (n_literals > size - p)
        return DAMACY__JOB_TRUNCATED;
    if (n_literals > room)
        return DAMACY__JOB_NO_SPACE;
    p += n_literals;
    if (p == size) { // the last sequence is literals only
        *at = p;
        *out += n_literals;
        return DAMACY__JOB_OK;
    }
    if (size - p < 2)
        return DAMACY__JOB_TRUNCATED;
    p += 2;
    if (n_match == 19 && !damacy__lz4_extend(src, size, &p, &n_match, room, &status))
        return status;
    if (n_match > room - n_literals)
        return DAMACY__JOB_NO_SPACE;
    if (p == size)
        return DAMACY__JOB_TRUNCATED;
    *at = p;
    *out += n_literals + n_match;
    return DAMACY__JOB_OK;
}

// Lists the tokens of a block of `size` bytes that may make up to n; four are stored at a time.
DAMACY__INLINE void damacy__lz4_list(const uint8_t* src, uint32_t size, uint32_t n,
                                     uint32_t* tokens, damacy__lz4_block* block)
{
    uint32_t at = 0, out = 0, k = 0;
    damacy__u32x4 held = {0, 0, 0, 0};
    do {
        const uint32_t token = at;
        block->status = damacy__lz4_advance(src, size, n, &at, &out);
        if (block->status != DAMACY__JOB_OK)
            break;
        held.x = held.y;
        held.y = held.z;
        held.z = held.w;
        held.w = token;
        if ((k & 3) == 3)
            *(damacy__u32x4*)(tokens + (k - 3)) = held;
        k++;
        if ((token ^ at) & ~127u) // a new cache line
            damacy__prefetch_l2(src + damacy__min(at + 512, size - 1));
    } while (at != size);
    const uint32_t rest = k & 3; // still held, in the last places
    if (rest > 2)
        tokens[k - 3] = held.y;
    if (rest > 1)
        tokens[k - 2] = held.z;
    if (rest > 0)
        tokens[k - 1] = held.w;
    block->n_tokens = k;
    block->n = out;
    block->error_offset = at;
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
                                          uint32_t n_jobs, uint32_t lane)
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
            damacy__lz4_list(src, size, n, (uint32_t*)(uintptr_t)wave->tokens + block.first,
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
