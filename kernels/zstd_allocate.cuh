// Shares of a wave's scratch for its jobs, by blocks of 1024 threads, which take parts of the jobs
// one after another: frames, blocks, trees, bytes of literals and records, each job's side by side.
// The surprising rule: how many records a block makes is not known before it is decoded. Where all
// that there may be have no room, every job gets room for as many as are likely, and the sequence
// stage finds more for a block that needs it. Whether it is so, the first part decides for all, as
// jobs that find no room ask for none any more.
#pragma once

#include "kernels/zstd_common.cuh"

typedef struct damacy__zstd_totals {
    uint64_t n_literal_bytes, n_records;
    uint32_t n_frames, n_blocks, n_trees;
} damacy__zstd_totals;

typedef struct damacy__zstd_allocate_shared {
    damacy__zstd_totals warps[32]; // sums, then what is before each warp
    damacy__zstd_totals base;
    uint64_t n_bytes[32]; // of literals and records, of warps
    uint32_t n_refused, part;
    bool fits;
} damacy__zstd_allocate_shared;

// Jobs that a block of threads places, n of them.
typedef struct damacy__zstd_part {
    uint32_t index, n;
    bool is_last, is_tight;
} damacy__zstd_part;

DAMACY__INLINE void damacy__zstd_totals_add(damacy__zstd_totals& a, const damacy__zstd_totals& b)
{
    a.n_literal_bytes += b.n_literal_bytes;
    a.n_records += b.n_records;
    a.n_frames += b.n_frames;
    a.n_blocks += b.n_blocks;
    a.n_trees += b.n_trees;
}

DAMACY__INLINE void damacy__zstd_totals_subtract(damacy__zstd_totals& a,
                                                 const damacy__zstd_totals& b)
{
    a.n_literal_bytes -= b.n_literal_bytes;
    a.n_records -= b.n_records;
    a.n_frames -= b.n_frames;
    a.n_blocks -= b.n_blocks;
    a.n_trees -= b.n_trees;
}

// A part of jobs with smaller counts, and what was placed before them, have sums of 32 bits. A job
// with larger ones gets more literals than any scratch holds, so that its part is placed one by
// one.
#define DAMACY__ZSTD_COUNT_MAX (1u << 19)

DAMACY__INLINE damacy__zstd_totals damacy__zstd_totals_clamp(damacy__zstd_totals t)
{
    if (damacy__max(damacy__max(t.n_frames, t.n_blocks), t.n_trees) >= DAMACY__ZSTD_COUNT_MAX) {
        t = damacy__zstd_totals{};
        t.n_literal_bytes = 1ull << 51;
    }
    return t;
}

// Of a job, in as few accesses as there can be: one multiprocessor makes them for thousands.
DAMACY__INLINE damacy__zstd_totals damacy__zstd_totals_load(const damacy__zstd_span* s,
                                                            bool is_tight)
{
    const damacy__u32x4 a = ((const damacy__u32x4*)s)[0], b = ((const damacy__u32x4*)s)[1];
    const uint64_t spared = is_tight ? 16ull * b.w : 0;
    return {a.x | (uint64_t)a.y << 32, (a.z | (uint64_t)a.w << 32) - spared, b.x, b.y, b.z};
}

// Whether not all records that there may be have room. All threads.
DAMACY__INLINE bool damacy__zstd_is_tight(const damacy__zstd_wave& w, uint32_t n,
                                          damacy__zstd_allocate_shared& shared)
{
    uint64_t n_bytes = 0;

#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const damacy__zstd_totals own = damacy__zstd_totals_load(damacy__zstd_spans(w) + i, false);
        n_bytes += own.n_literal_bytes + 8 * own.n_records;
    }
    for (uint32_t d = 16; d; d /= 2)
        n_bytes += damacy__shfl_xor(n_bytes, d);
    if (damacy__lane() == 0)
        shared.n_bytes[threadIdx.x / 32] = n_bytes;
    damacy__sync_block();
    n_bytes = 0;
    for (uint32_t i = 0; i < blockDim.x / 32; i++)
        n_bytes += shared.n_bytes[i];
    return n_bytes > 8 * w.max_records;
}

// Sum over this lane and the lanes below it.
DAMACY__INLINE damacy__zstd_totals damacy__zstd_totals_scan(damacy__zstd_totals t)
{
    for (uint32_t d = 1; d < 32; d *= 2) {
        damacy__zstd_totals o;
        o.n_literal_bytes = damacy__shfl_up(t.n_literal_bytes, d);
        o.n_records = damacy__shfl_up(t.n_records, d);
        o.n_frames = damacy__shfl_up(t.n_frames, d);
        o.n_blocks = damacy__shfl_up(t.n_blocks, d);
        o.n_trees = damacy__shfl_up(t.n_trees, d);
        if (damacy__lane() >= d)
            damacy__zstd_totals_add(t, o);
    }
    return t;
}

DAMACY__INLINE bool damacy__zstd_totals_fit(const damacy__zstd_wave& w,
                                            const damacy__zstd_totals& t)
{
    return t.n_records <= w.max_records && // so that the sum below cannot wrap
           t.n_literal_bytes <= 8 * (w.max_records - t.n_records) && t.n_frames <= w.max_frames &&
           t.n_blocks <= w.max_blocks && t.n_trees <= w.max_blocks;
}

// Places a job whose share, with n_records, comes after `at`.
DAMACY__INLINE void damacy__zstd_span_place(const damacy__zstd_wave& w, damacy__zstd_span* s,
                                            uint64_t n_records, const damacy__zstd_totals& at)
{
    const uint64_t first_record = w.max_records - at.n_records - n_records;
    damacy__u32x4 a, b;
    a.x = (uint32_t)at.n_literal_bytes;
    a.y = (uint32_t)(at.n_literal_bytes >> 32);
    a.z = (uint32_t)first_record;
    a.w = (uint32_t)(first_record >> 32);
    b.x = at.n_frames;
    b.y = at.n_blocks;
    b.z = at.n_trees;
    b.w = 0;
    ((damacy__u32x4*)s)[2] = a;
    ((damacy__u32x4*)s)[3] = b;
}

// Places jobs [first, first + n) one by one from `base`: a job that does not fit takes no room.
static __device__ void damacy__zstd_allocate_each(const damacy__zstd_wave& w, uint32_t first,
                                                  uint32_t n, bool is_tight,
                                                  damacy__zstd_totals& base, uint32_t& n_refused)
{
    for (uint32_t i = first; i < first + n; i++) {
        damacy__zstd_span* const s = damacy__zstd_spans(w) + i;
        const damacy__zstd_totals own = damacy__zstd_totals_load(s, is_tight);
        damacy__zstd_totals next = base;
        damacy__zstd_totals_add(next, own);
        if (damacy__zstd_totals_fit(w, own) && damacy__zstd_totals_fit(w, next)) {
            damacy__zstd_span_place(w, s, own.n_records, base);
            base = next;
        } else {
            *s = damacy__zstd_span{};
            damacy__zstd_errors(w)[i] = DAMACY__JOB_NEED_SCRATCH;
            n_refused++;
        }
    }
}

// What has been placed before the part. Behind damacy__zstd_chain_wait and a barrier.
DAMACY__INLINE damacy__zstd_totals damacy__zstd_placed(const damacy__zstd_wave& w, uint32_t part)
{
    const damacy__zstd_counters* const c = damacy__zstd_counts(w);
    damacy__zstd_totals t = {};

    if (part != 0) {
        t.n_literal_bytes = damacy__atomic_load(&c->n_literal_bytes);
        t.n_records = damacy__atomic_load(&c->n_records);
        t.n_frames = damacy__atomic_load(&c->n_frames);
        t.n_blocks = damacy__atomic_load(&c->n_blocks);
        t.n_trees = damacy__atomic_load(&c->n_trees);
    }
    return t;
}

// Zeroes the counters, but for those that blocks of threads take parts by and share.
DAMACY__INLINE void damacy__zstd_allocate_zero(const damacy__zstd_wave& w)
{
    damacy__zstd_counters* const counts = damacy__zstd_counts(w);
    uint32_t* const word = (uint32_t*)counts + threadIdx.x;

    if (threadIdx.x < sizeof *counts / 4 && word != &counts->jobs.n_taken &&
        word != &counts->jobs.n_done && word != &counts->is_tight)
        *word = 0;
}

// Leaves what has been placed to the next part or stage. One thread.
static __device__ void damacy__zstd_allocate_leave(const damacy__zstd_wave& w,
                                                   const damacy__zstd_allocate_shared& shared,
                                                   const damacy__zstd_part& p)
{
    damacy__zstd_counters* const c = damacy__zstd_counts(w);

    c->n_literal_bytes = shared.base.n_literal_bytes;
    c->n_records = shared.base.n_records;
    c->n_frames = shared.base.n_frames;
    c->n_blocks = shared.base.n_blocks;
    c->n_trees = shared.base.n_trees;
    if (shared.n_refused)
        damacy__atomic_add(&c->n_refused, shared.n_refused);
    if (!p.is_last)
        damacy__zstd_chain_tell(&c->jobs.n_done, p.index);
}

// Sums of warps become what is before each; all of them go to the base, and are left to the next
// part, if they fit. The first warp calls it.
static __device__ void damacy__zstd_allocate_warps(const damacy__zstd_wave& w,
                                                   damacy__zstd_allocate_shared& shared,
                                                   const damacy__zstd_part& p)
{
    const uint32_t lane = damacy__lane();
    const damacy__zstd_totals mine = shared.warps[lane];
    damacy__zstd_totals at = damacy__zstd_totals_scan(mine);

    damacy__zstd_chain_wait(&damacy__zstd_counts(w)->jobs.n_done, p.index);
    damacy__sync_warp();
    const damacy__zstd_totals before = damacy__zstd_placed(w, p.index);
    damacy__zstd_totals_add(at, before);
    damacy__sync_warp(); // that has been read
    if (lane == 31) {
        shared.fits = damacy__zstd_totals_fit(w, at);
        shared.base = shared.fits ? at : before;
        if (shared.fits)
            damacy__zstd_allocate_leave(w, shared, p);
    }
    damacy__zstd_totals_subtract(at, mine);
    shared.warps[lane] = at;
}

// Places the jobs of a part; all threads.
static __device__ void damacy__zstd_allocate_part(const damacy__zstd_wave& w,
                                                  damacy__zstd_allocate_shared& shared,
                                                  const damacy__zstd_part& p)
{
    constexpr uint32_t PER = DAMACY__ZSTD_JOBS_PART / 1024; // jobs of a thread
    const uint32_t first = p.index * DAMACY__ZSTD_JOBS_PART, n = p.n;
    const uint32_t tid = threadIdx.x, warp = tid / 32;
    const uint32_t per = damacy__min((n + blockDim.x - 1) / blockDim.x, PER);
    damacy__zstd_totals mine = {}, at, own[PER];

    if (p.index == 0)
        damacy__zstd_allocate_zero(w);
    if (tid == 0)
        shared.n_refused = 0;
#pragma unroll
    for (uint32_t k = 0; k < PER; k++) {
        const uint32_t i = 32 * (per * warp + k) + damacy__lane();
        own[k] = damacy__zstd_totals{};
        if (k < per && i < n)
            own[k] = damacy__zstd_totals_clamp(
                damacy__zstd_totals_load(damacy__zstd_spans(w) + first + i, p.is_tight));
        damacy__zstd_totals_add(mine, own[k]);
    }
    at = damacy__zstd_totals_scan(mine);
    if (damacy__lane() == 31)
        shared.warps[warp] = at;
    damacy__sync_block();
    if (warp == 0)
        damacy__zstd_allocate_warps(w, shared, p);
    damacy__sync_block();
    if (!shared.fits) {
        if (tid == 0) {
            damacy__zstd_allocate_each(w, first, n, p.is_tight, shared.base, shared.n_refused);
            damacy__zstd_allocate_leave(w, shared, p);
        }
        return;
    }
    damacy__zstd_totals_add(at, shared.warps[warp]);
    damacy__zstd_totals_subtract(at, mine);
#pragma unroll
    for (uint32_t k = 0; k < PER; k++) {
        const uint32_t i = 32 * (per * warp + k) + damacy__lane();
        if (k >= per || i >= n)
            break;
        damacy__zstd_span_place(w, damacy__zstd_spans(w) + first + i, own[k].n_records, at);
        damacy__zstd_totals_add(at, own[k]);
    }
}

// What the first part has decided, by it; else waits for it. All threads.
DAMACY__INLINE bool damacy__zstd_agree(const damacy__zstd_wave& w, uint32_t n, uint32_t part,
                                       damacy__zstd_allocate_shared& shared)
{
    uint32_t* const is_tight = &damacy__zstd_counts(w)->is_tight;

    if (part == 0) {
        const bool mine = damacy__zstd_is_tight(w, n, shared);
        if (threadIdx.x == 0)
            damacy__atomic_store(is_tight, mine);
        return mine;
    }
    if (threadIdx.x == 0)
        while (damacy__atomic_load(is_tight) == DAMACY__ZSTD_NONE) // the first part is under way
            __nanosleep(32);
    damacy__sync_block();
    return damacy__atomic_load(is_tight);
}

static __device__ void damacy__zstd_allocate(const damacy__zstd_wave& w,
                                             damacy__zstd_allocate_shared& shared)
{
    const uint32_t n = damacy__zstd_n_jobs(w), size = DAMACY__ZSTD_JOBS_PART;
    const uint32_t n_parts = damacy__zstd_parts(n, size);
    damacy__zstd_part p;

    for (p.index = blockIdx.x;; p.index += gridDim.x) {
        if (n_parts > 1)
            p.index = damacy__zstd_chain_next(&damacy__zstd_counts(w)->jobs.n_taken, &shared.part);
        if (p.index >= n_parts)
            return;
        p.n = damacy__min(n - p.index * size, size);
        p.is_last = p.index + 1 == n_parts;
        p.is_tight = damacy__zstd_agree(w, n, p.index, shared);
        damacy__zstd_allocate_part(w, shared, p);
    }
}
