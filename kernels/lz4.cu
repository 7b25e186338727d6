// LZ4 blocks, a warp per block, four warps a CTA. Every lane walks the same sequences and keeps one
// in 32; then each lane copies its own. Source and output go through L1; the newest output bytes
// are in shared memory: 4 x 1,040 bytes. Grid: a warp per entry of the job table.
#include "kernels/lz4_tile.cuh"

// What a job may produce, or the reason why it cannot start. A size in front of the block becomes
// the one that the job expects.
DAMACY__INLINE uint32_t damacy__lz4_open(damacy__job* job, const uint8_t** src, uint32_t* size,
                                         uint32_t* n, uint64_t* need)
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
        *need = job->expected_size;
        return DAMACY__JOB_NO_SPACE;
    }
    *n = (uint32_t)(job->expected_size != DAMACY__SIZE_UNKNOWN ? job->expected_size : capacity);
    return DAMACY__JOB_OK;
}

// Collects sequences, one a lane, until 32 of them, a long one or the end, and executes them.
// `next` is the sequence that the walk has seen last and that no lane holds yet.
DAMACY__INLINE void damacy__lz4_block(damacy__lz4_walk* w, damacy__lz4_tile* t, uint32_t lane)
{
    damacy__lz4_sequence next;
    bool is_held = false; // `next` waits
    while (w->status == DAMACY__JOB_OK && (is_held || !w->is_done)) {
        damacy__lz4_sequence mine = {0, 0, 0, 0, 0};
        uint32_t n = 0;
        while (n < 32) {
            if (!is_held && (w->is_done || !damacy__lz4_walk_next(w, &next)))
                break;
            is_held = true;
            const uint32_t size = next.n_literals + next.n_match;
            if (size > DAMACY__LZ4_LONG || next.out + size - t->begin > DAMACY__LZ4_TILE)
                break;
            if (lane == n)
                mine = next;
            n++;
            is_held = false;
        }
        if (w->status != DAMACY__JOB_OK)
            break;
        if (n != 0) {
            damacy__lz4_batch(t, w, &mine, lane);
            t->end = is_held ? next.out : w->out;
            damacy__lz4_flush(t, lane);
        }
        if (is_held && next.n_literals + next.n_match > DAMACY__LZ4_LONG) {
            damacy__lz4_long(t, w, &next, lane);
            is_held = false;
        }
    }
}

extern "C" __global__ __launch_bounds__(128) void damacy_lz4_decode(damacy__lz4_wave wave)
{
    struct tiles {
        damacy__u32x4 units[4][DAMACY__LZ4_TILE / 16 + 1];
    };
    DAMACY__SHARED(tiles, shared);
    const uint32_t lane = damacy__lane(), warp = threadIdx.x >> 5;
    const uint32_t index = blockIdx.x * 4 + warp;
    const uint32_t n_jobs = damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs);
    if (index >= n_jobs)
        return;
    damacy__job job = ((const damacy__job*)(uintptr_t)wave.jobs)[index];
    damacy__job_result* const result = (damacy__job_result*)(uintptr_t)wave.results + index;
    const uint8_t* src = nullptr;
    uint32_t size = 0, n = 0, at = 0;
    uint64_t produced = 0;
    uint32_t status = damacy__lz4_open(&job, &src, &size, &n, &produced);
    if (status == DAMACY__JOB_OK) {
        const uint32_t first = (uint32_t)(job.dst & 15);
        damacy__lz4_walk w;
        damacy__lz4_tile t;
        damacy__lz4_walk_begin(&w, src, size, first, n);
        t.bytes = (uint8_t*)shared.units[warp];
        t.origin = (uint8_t*)(uintptr_t)(job.dst - first);
        t.high = t.origin + first + n;
        t.first = first;
        t.begin = 0;
        t.end = first;
        damacy__lz4_block(&w, &t, lane);
        damacy__lz4_flush_rest(&t, lane);
        produced = w.out - first;
        status = w.status;
        at = w.at + (job.flags & DAMACY__LZ4_SIZE_PREFIX ? 4u : 0u);
        if (status == DAMACY__JOB_OK && job.expected_size != DAMACY__SIZE_UNKNOWN && produced != n)
            status = DAMACY__JOB_SIZE_MISMATCH;
        if (status == DAMACY__JOB_NO_SPACE && job.expected_size != DAMACY__SIZE_UNKNOWN)
            status = DAMACY__JOB_SIZE_MISMATCH;
        if (status != DAMACY__JOB_OK)
            produced = 0;
    }
    if (lane == 0) {
        result->size = produced;
        result->error_offset = status == DAMACY__JOB_OK ? 0 : at;
        result->zero = 0;
        result->status = status;
    }
}
