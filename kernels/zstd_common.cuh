// Access to the tables of a wave, and the one way to report an error.
#pragma once

#include "kernels/bits.cuh"
#include "kernels/zstd_abi.h"

DAMACY__INLINE const damacy__job* damacy__zstd_jobs(const damacy__zstd_wave& w)
{
    return (const damacy__job*)(uintptr_t)w.jobs;
}
DAMACY__INLINE damacy__zstd_frame* damacy__zstd_frames(const damacy__zstd_wave& w)
{
    return (damacy__zstd_frame*)(uintptr_t)w.frames;
}
DAMACY__INLINE damacy__zstd_block* damacy__zstd_blocks(const damacy__zstd_wave& w)
{
    return (damacy__zstd_block*)(uintptr_t)w.blocks;
}
DAMACY__INLINE damacy__zstd_tree* damacy__zstd_trees(const damacy__zstd_wave& w)
{
    return (damacy__zstd_tree*)(uintptr_t)w.trees;
}
DAMACY__INLINE uint32_t* damacy__zstd_tree_logs(const damacy__zstd_wave& w)
{
    return (uint32_t*)(uintptr_t)w.logs;
}
DAMACY__INLINE damacy__zstd_span* damacy__zstd_spans(const damacy__zstd_wave& w)
{
    return (damacy__zstd_span*)(uintptr_t)w.spans;
}
DAMACY__INLINE damacy__zstd_counters* damacy__zstd_counts(const damacy__zstd_wave& w)
{
    return (damacy__zstd_counters*)(uintptr_t)w.counters;
}
DAMACY__INLINE uint64_t* damacy__zstd_errors(const damacy__zstd_wave& w)
{
    return (uint64_t*)(uintptr_t)w.errors;
}

// Threads per item of n, a power of two: as many as the grid has, at least `least` and at most a
// warp. If they are fewer, one of them works, because items in a warp would wait for each other.
DAMACY__INLINE uint32_t damacy__zstd_spread(uint32_t n, uint32_t least)
{
    const uint64_t n_threads = (uint64_t)gridDim.x * blockDim.x;
    uint32_t spread = 32;

    while (spread > least && (uint64_t)n * spread > n_threads)
        spread /= 2;
    return spread;
}

// Jobs in the table of this wave.
DAMACY__INLINE uint32_t damacy__zstd_n_jobs(const damacy__zstd_wave& w)
{
    const uint32_t n = *(const uint32_t*)(uintptr_t)w.n_jobs;
    return n > w.first_job ? damacy__min(n - w.first_job, w.max_jobs) : 0;
}

// ---- parts of a table, one after another: each adds to the sums that the one before has left ----

DAMACY__INLINE uint32_t damacy__zstd_parts(uint32_t n, uint32_t size)
{
    return n <= size ? 1 : (n - 1) / size + 1;
}

// The part that a block of threads takes next: all parts before it have been taken. All of its
// threads call this; `told`: a word of shared memory.
DAMACY__INLINE uint32_t damacy__zstd_chain_next(uint32_t* n_taken, uint32_t* told)
{
    damacy__sync_block(); // it is not in use
    if (threadIdx.x == 0)
        *told = damacy__atomic_add(n_taken, 1);
    damacy__sync_block();
    const uint32_t part = *told;
    damacy__sync_block();
    return part;
}

// Waits for the sums of the part before. The first thread does, and a barrier follows.
DAMACY__INLINE void damacy__zstd_chain_wait(const uint32_t* n_done, uint32_t part)
{
    if (part == 0 || threadIdx.x != 0)
        return;
    while (damacy__atomic_load(n_done) != part) // it is under way, and waits for none behind it
        DAMACY__PAUSE();
    damacy__device_fence();
}

// Tells the next part that sums are there. Who has written them does, or one thread behind a
// barrier.
DAMACY__INLINE void damacy__zstd_chain_tell(uint32_t* n_done, uint32_t part)
{
    damacy__device_fence();
    damacy__atomic_store(n_done, part + 1);
}

// Records for which a block with that capacity takes room.
DAMACY__INLINE uint32_t damacy__zstd_record_room(uint32_t capacity)
{
    return (capacity + 15u) & ~15u;
}

// Records per KB of output.
DAMACY__INLINE uint32_t damacy__zstd_density(uint32_t n_records, uint32_t size)
{
    return (uint32_t)(1024ull * n_records / (size ? size : 1));
}

// Lowers the error word of a job. `at` is the address of the source byte at fault; one outside the
// source counts as its first byte.
DAMACY__INLINE void damacy__zstd_fail_job(const damacy__zstd_wave& w, uint32_t job, uint64_t at,
                                          uint32_t status)
{
    const damacy__job& j = damacy__zstd_jobs(w)[job];
    const uint64_t offset = at - j.src <= j.src_size ? at - j.src : 0;
    damacy__atomic_min64(&damacy__zstd_errors(w)[job], offset << 8 | status);
}

// The same for the job of a block.
DAMACY__INLINE void damacy__zstd_fail(const damacy__zstd_wave& w, const damacy__zstd_block& block,
                                      uint64_t at, uint32_t status)
{
    damacy__zstd_fail_job(w, damacy__zstd_frames(w)[block.frame].job, at, status);
}

// The result of a job from its error word; size is what its frames hold.
DAMACY__INLINE void damacy__zstd_result(const damacy__zstd_wave& w, uint32_t index, uint64_t error,
                                        uint64_t size)
{
    damacy__job_result r = {};

    if (error == DAMACY__ZSTD_NO_ERROR) {
        r.status = DAMACY__JOB_OK;
        r.size = size;
    } else {
        const uint64_t value = (error & ~DAMACY__ZSTD_LAST_ERROR) >> 8;
        r.status = (uint32_t)(error & 255);
        if (r.status == DAMACY__JOB_NO_SPACE)
            r.size = value;
        else
            r.error_offset = value;
    }
    ((damacy__job_result*)(uintptr_t)w.results)[index] = r;
}
