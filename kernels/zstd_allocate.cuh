// Shares of a wave's scratch for its jobs: frames, blocks, trees, bytes of literals and records,
// each job's side by side. Jobs are taken in parts: count leaves the sums of each part, and who
// fills a part adds up those of all others first, so that nothing runs in between.
//
// The surprising rule: how many records a block makes is not known before it is decoded. Where all
// that there may be have no room, every job gets room for as many as are likely, and the sequence
// stage finds more for a block that needs it.
#pragma once

#include "kernels/zstd_common.cuh"

// Jobs [first, end) of part `index`, and how many parts there are: at least one. All have as many,
// a power of two, but for the last.
typedef struct damacy__zstd_part {
    uint32_t index, n_parts, first, end;
} damacy__zstd_part;

DAMACY__INLINE damacy__zstd_part damacy__zstd_part_of(uint32_t n_jobs, uint32_t index)
{
    const uint32_t last = n_jobs ? n_jobs - 1 : 0, n_bits = 32 - damacy__clz(last | 1);
    const uint32_t log = n_bits > DAMACY__ZSTD_PARTS_LOG + DAMACY__ZSTD_PART_LOG
                             ? n_bits - DAMACY__ZSTD_PARTS_LOG
                             : DAMACY__ZSTD_PART_LOG;
    damacy__zstd_part p;

    p.index = index;
    p.n_parts = (last >> log) + 1;
    p.first = index << log;
    p.end = damacy__min(p.first + (1u << log), n_jobs);
    return p;
}

// Threads of a block that a job of the part has, as a logarithm: at most a warp. With fewer one of
// them works, and no more than four in a warp, if there is room, because they wait for each other.
#define DAMACY__ZSTD_SPREAD_WARP 5u
DAMACY__INLINE uint32_t damacy__zstd_spread_of(const damacy__zstd_part& p)
{
    const uint32_t n = p.end - p.first;
    uint32_t log = n <= blockDim.x / 32 ? DAMACY__ZSTD_SPREAD_WARP : 3;

    while (log > 0 && n << log > blockDim.x)
        log--;
    return log;
}

DAMACY__INLINE damacy__zstd_sum* damacy__zstd_sums(const damacy__zstd_wave& w)
{
    return (damacy__zstd_sum*)(uintptr_t)w.sums;
}

DAMACY__INLINE void damacy__zstd_sum_add(damacy__zstd_sum& a, const damacy__zstd_sum& b)
{
    a.n_literal_bytes += b.n_literal_bytes;
    a.n_records += b.n_records;
    a.n_likely += b.n_likely;
    a.n_frames += b.n_frames;
    a.n_blocks += b.n_blocks;
    a.n_trees += b.n_trees;
}

DAMACY__INLINE void damacy__zstd_sum_subtract(damacy__zstd_sum& a, const damacy__zstd_sum& b)
{
    a.n_literal_bytes -= b.n_literal_bytes;
    a.n_records -= b.n_records;
    a.n_likely -= b.n_likely;
    a.n_frames -= b.n_frames;
    a.n_blocks -= b.n_blocks;
    a.n_trees -= b.n_trees;
}

// Sums of all parts have 32 bits if those of one have fewer than these. One with more gets more
// literals than any scratch holds, so that its jobs are placed one by one.
#define DAMACY__ZSTD_COUNT_MAX (1u << 22)
#define DAMACY__ZSTD_BYTES_MAX (1ull << 48)

DAMACY__INLINE damacy__zstd_sum damacy__zstd_sum_clamp(damacy__zstd_sum t)
{
    const uint32_t most = damacy__max(damacy__max(t.n_frames, t.n_blocks), t.n_trees);

    if (most >= DAMACY__ZSTD_COUNT_MAX || t.n_literal_bytes >= DAMACY__ZSTD_BYTES_MAX) {
        t = damacy__zstd_sum{};
        t.n_literal_bytes = DAMACY__ZSTD_BYTES_MAX;
    }
    return t;
}

// What a job needs.
DAMACY__INLINE damacy__zstd_sum damacy__zstd_sum_of(const damacy__zstd_span& s)
{
    damacy__zstd_sum t = {};

    t.n_literal_bytes = s.n_literal_bytes;
    t.n_records = s.n_records;
    t.n_likely = s.n_records - 16ull * s.n_spared;
    t.n_frames = s.n_frames;
    t.n_blocks = s.n_blocks;
    t.n_trees = s.n_trees;
    return t;
}

// Adds it to a sum.
DAMACY__INLINE void damacy__zstd_sum_take(damacy__zstd_sum& sum, const damacy__zstd_span& s)
{
    damacy__zstd_sum_add(sum, damacy__zstd_sum_clamp(damacy__zstd_sum_of(s)));
    sum = damacy__zstd_sum_clamp(sum);
}

// What one in the table needs, whose places another block of threads may write now.
DAMACY__INLINE damacy__zstd_sum damacy__zstd_sum_at(const damacy__zstd_wave& w, uint32_t job)
{
    const damacy__u32x4* const from = (const damacy__u32x4*)(damacy__zstd_spans(w) + job);
    const damacy__u32x4 a = from[0], b = from[1];
    damacy__zstd_span s = {};

    s.n_literal_bytes = a.x | (uint64_t)a.y << 32;
    s.n_records = a.z | (uint64_t)a.w << 32;
    s.n_frames = b.x;
    s.n_blocks = b.y;
    s.n_trees = b.z;
    s.n_spared = b.w;
    return damacy__zstd_sum_of(s);
}

// Over a warp. Each value is below 2^53.
DAMACY__INLINE uint64_t damacy__zstd_sum64_warp(uint64_t v)
{
    const uint32_t low = damacy__warp_sum((uint32_t)v & 0x3ffffff);
    const uint32_t high = damacy__warp_sum((uint32_t)(v >> 26));
    return low + ((uint64_t)high << 26);
}

DAMACY__INLINE damacy__zstd_sum damacy__zstd_sum_warp(const damacy__zstd_sum& t)
{
    damacy__zstd_sum sum = {};

    sum.n_literal_bytes = damacy__zstd_sum64_warp(t.n_literal_bytes);
    sum.n_records = damacy__zstd_sum64_warp(t.n_records);
    sum.n_likely = damacy__zstd_sum64_warp(t.n_likely);
    sum.n_frames = damacy__warp_sum(t.n_frames);
    sum.n_blocks = damacy__warp_sum(t.n_blocks);
    sum.n_trees = damacy__warp_sum(t.n_trees);
    return sum;
}

// Over this lane and the lanes below it, if the first n have some.
DAMACY__INLINE damacy__zstd_sum damacy__zstd_sum_scan(damacy__zstd_sum t, uint32_t n)
{
#pragma unroll 1 // fewer instructions to fetch: most have not run before
    for (uint32_t d = 1; d < 32 && d < n; d *= 2) {
        damacy__zstd_sum o = {};
        o.n_literal_bytes = damacy__shfl_up(t.n_literal_bytes, d);
        o.n_records = damacy__shfl_up(t.n_records, d);
        o.n_frames = damacy__shfl_up(t.n_frames, d);
        o.n_blocks = damacy__shfl_up(t.n_blocks, d);
        o.n_trees = damacy__shfl_up(t.n_trees, d);
        if (damacy__lane() >= d)
            damacy__zstd_sum_add(t, o);
    }
    return t;
}

// What blocks of threads share.
typedef struct damacy__zstd_place_shared {
    damacy__zstd_sum all[4], before[4]; // of warps
    bool is_tight;
} damacy__zstd_place_shared;

// Leaves the sums of a part, of which each thread has some. All threads; `sums`: of warps.
DAMACY__INLINE void damacy__zstd_sum_tell(const damacy__zstd_wave& w, const damacy__zstd_part& p,
                                          damacy__zstd_sum mine, damacy__zstd_sum* sums)
{
    mine = damacy__zstd_sum_warp(mine);
    if (damacy__lane() == 0)
        sums[threadIdx.x / 32] = mine;
    damacy__sync_block();
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (uint32_t i = 1; i < blockDim.x / 32; i++)
            damacy__zstd_sum_add(mine, sums[i]);
        damacy__zstd_sums(w)[p.index] = damacy__zstd_sum_clamp(mine);
    }
    damacy__sync_block(); // they are written again
}

// Whether that much is there; n_records are those that jobs get room for.
DAMACY__INLINE bool damacy__zstd_sum_fits(const damacy__zstd_wave& w, const damacy__zstd_sum& t)
{
    return t.n_records <= w.max_records && // so that the sum below cannot wrap
           t.n_literal_bytes <= 8 * (w.max_records - t.n_records) && t.n_frames <= w.max_frames &&
           t.n_blocks <= w.max_blocks && t.n_trees <= w.max_blocks;
}

// Places a job whose share, with n_records, comes after `at`.
DAMACY__INLINE void damacy__zstd_span_place(const damacy__zstd_wave& w, uint32_t job,
                                            uint64_t n_records, const damacy__zstd_sum& at)
{
    damacy__u32x4* const to = (damacy__u32x4*)(damacy__zstd_spans(w) + job);
    const uint64_t first_record = w.max_records - at.n_records - n_records;
    damacy__u32x4 a, b;
    a.x = (uint32_t)at.n_literal_bytes;
    a.y = (uint32_t)(at.n_literal_bytes >> 32);
    a.z = (uint32_t)first_record;
    a.w = (uint32_t)(first_record >> 32);
    b.x = at.n_frames;
    b.y = at.n_blocks;
    b.z = at.n_trees;
    b.w = 1; // is_placed
    to[2] = a;
    to[3] = b;
}

// The jobs of a part one by one from `base`: one that does not fit takes no room. is_mine: they are
// placed, or refused; else they are only counted. One thread.
DAMACY__INLINE void damacy__zstd_place_each(const damacy__zstd_wave& w, const damacy__zstd_part& p,
                                            bool is_mine, bool is_tight, damacy__zstd_sum& base,
                                            uint32_t& n_refused)
{
    for (uint32_t i = p.first; i < p.end; i++) {
        damacy__zstd_sum own = damacy__zstd_sum_at(w, i), next = base;
        own.n_records = is_tight ? own.n_likely : own.n_records;
        damacy__zstd_sum_add(next, own);
        const bool fits = damacy__zstd_sum_fits(w, own) && damacy__zstd_sum_fits(w, next);
        if (is_mine && fits)
            damacy__zstd_span_place(w, i, own.n_records, base);
        else if (is_mine)
            damacy__zstd_errors(w)[i] = DAMACY__JOB_NEED_SCRATCH;
        if (fits)
            base = next;
        else
            n_refused++;
    }
}

// A part where not all jobs of the wave have room: behind what those before it have taken, which
// each block of threads finds out for itself. Returns what is taken then. One thread.
DAMACY__INLINE damacy__zstd_sum damacy__zstd_place_some(const damacy__zstd_wave& w,
                                                        const damacy__zstd_part& p, bool is_tight,
                                                        uint32_t& n_refused)
{
    const uint32_t n = damacy__zstd_n_jobs(w);
    damacy__zstd_sum base = {};

    n_refused = 0;
    for (uint32_t i = 0; i <= p.index; i++) {
        damacy__zstd_sum next = damacy__zstd_sums(w)[i];
        next.n_records = is_tight ? next.n_likely : next.n_records;
        const bool fits = damacy__zstd_sum_fits(w, next);
        damacy__zstd_sum_add(next, base);
        if (i < p.index && fits && damacy__zstd_sum_fits(w, next))
            base = next;
        else
            damacy__zstd_place_each(w, damacy__zstd_part_of(n, i), i == p.index, is_tight, base,
                                    n_refused);
    }
    return base;
}

// A part where all have room, behind `base`. A warp does.
DAMACY__INLINE void damacy__zstd_place_all(const damacy__zstd_wave& w, const damacy__zstd_part& p,
                                           bool is_tight, damacy__zstd_sum base)
{
    for (uint32_t first = p.first; first < p.end; first += 32) {
        const uint32_t i = first + damacy__lane();
        damacy__zstd_sum own = {};
        if (i < p.end)
            own = damacy__zstd_sum_at(w, i);
        own.n_records = is_tight ? own.n_likely : own.n_records;
        damacy__zstd_sum at = damacy__zstd_sum_scan(own, p.end - first);
        damacy__zstd_sum_add(at, base);
        if (p.end - first > 32) {
            base.n_literal_bytes = damacy__shfl(at.n_literal_bytes, 31);
            base.n_records = damacy__shfl(at.n_records, 31);
            base.n_frames = damacy__shfl(at.n_frames, 31);
            base.n_blocks = damacy__shfl(at.n_blocks, 31);
            base.n_trees = damacy__shfl(at.n_trees, 31);
        }
        damacy__zstd_sum_subtract(at, own);
        if (i < p.end)
            damacy__zstd_span_place(w, i, own.n_records, at);
    }
}

// The counters of the wave, of which all else is 0. A warp does; `all` and n_refused: the first
// lane's.
DAMACY__INLINE void damacy__zstd_place_tell(const damacy__zstd_wave& w, const damacy__zstd_sum& all,
                                            bool is_tight, uint32_t n_refused)
{
    damacy__zstd_counters* const c = damacy__zstd_counts(w);

    for (uint32_t i = damacy__lane(); i < sizeof *c / 4; i += 32)
        ((uint32_t*)c)[i] = 0;
    damacy__sync_warp();
    if (damacy__lane() != 0)
        return;
    c->n_literal_bytes = all.n_literal_bytes;
    c->n_records = all.n_records;
    c->n_frames = all.n_frames;
    c->n_blocks = all.n_blocks;
    c->n_trees = all.n_trees;
    c->n_refused = n_refused;
    c->is_tight = is_tight;
}

// The jobs of a part, once each warp has left sums of all parts and of those before it. A warp
// does. The last part's leaves the counters.
static __device__ void damacy__zstd_place_jobs(const damacy__zstd_wave& w,
                                               const damacy__zstd_part& p,
                                               damacy__zstd_place_shared& shared)
{
    damacy__zstd_sum all = shared.all[0], before = shared.before[0];
    uint32_t n_refused = 0;

#pragma unroll 1
    for (uint32_t i = 1; i < blockDim.x / 32; i++) {
        damacy__zstd_sum_add(all, shared.all[i]);
        damacy__zstd_sum_add(before, shared.before[i]);
    }
    const bool is_tight = all.n_literal_bytes + 8 * all.n_records > 8 * w.max_records;
    if (is_tight) {
        all.n_records = all.n_likely;
        before.n_records = before.n_likely;
    }
    if (damacy__zstd_sum_fits(w, all))
        damacy__zstd_place_all(w, p, is_tight, before);
    else if (damacy__lane() == 0)
        all = damacy__zstd_place_some(w, p, is_tight, n_refused);
    if (p.index + 1 == p.n_parts)
        damacy__zstd_place_tell(w, all, is_tight, n_refused);
    if (damacy__lane() == 0)
        shared.is_tight = is_tight;
}

// Places the jobs of a part; returns whether not all records that there may be have room. All
// threads, up to four warps; behind it they see the places.
DAMACY__INLINE bool damacy__zstd_place_part(const damacy__zstd_wave& w, const damacy__zstd_part& p,
                                            damacy__zstd_place_shared& shared)
{
    damacy__zstd_sum all = {}, before = {};

#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < p.n_parts; i += blockDim.x) {
        const damacy__zstd_sum sum = damacy__zstd_sums(w)[i];
        damacy__zstd_sum_add(all, sum);
        if (i < p.index)
            damacy__zstd_sum_add(before, sum);
    }
    all = damacy__zstd_sum_warp(all);
    before = damacy__zstd_sum_warp(before);
    damacy__sync_block(); // those of the part before have been read
    if (damacy__lane() == 0) {
        shared.all[threadIdx.x / 32] = all;
        shared.before[threadIdx.x / 32] = before;
    }
    damacy__sync_block();
    if (threadIdx.x < 32)
        damacy__zstd_place_jobs(w, p, shared);
    damacy__sync_block();
    return shared.is_tight;
}
