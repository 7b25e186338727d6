// Sequence decoding: the sequences of each block become records (zstd_abi.h), of the kind that the
// shape says, the block's size and its outgoing repeat offsets.
//
// A persistent CTA of 256 threads takes groups of up to LANES blocks, most sequences first
// (zstd_fse_plan.cuh), one lane each. All warps build tables; then they work as a pipeline of
// batches (zstd_fse_pipeline.cuh). Two shapes: throughput (entries of 4 bytes, up to 32 blocks) and
// latency (8 bytes, 8 blocks, the shortest chain). Everything is checked at the end of a block, not
// on the way: see zstd_fse_walk.cuh.
#pragma once

#include "kernels/zstd_common.cuh"
#include "kernels/zstd_fse_pipeline.cuh"
#include "kernels/zstd_fse_plan.cuh"

// Counts of the tables of the group, one lane a table; then the tables, some to a warp.
template <class S>
DAMACY__INLINE void damacy__fse_tables(const damacy__zstd_wave& w, const uint32_t* order,
                                       uint32_t n, uint32_t shared)
{
    const uint32_t tid = threadIdx.x, warp = tid / 32;

    for (uint32_t i = tid; i < 8 * n; i += DAMACY__FSE_THREADS) { // what the rings begin with
        const damacy__zstd_block* b = damacy__zstd_blocks(w) + order[i / 8];
        if (b->bits_size > 128 * (i & 7))
            damacy__prefetch_l2((const void*)(uintptr_t)(b->sequence_src + b->bits_at +
                                                         b->bits_size - 1 - 128 * (i & 7)));
    }
    // Spread over the warps: lanes of one wait for each other.
    for (uint32_t i = warp + damacy__lane() * (DAMACY__FSE_THREADS / 32); i < 3 * n;
         i += DAMACY__FSE_THREADS)
        damacy__fse_counts(damacy__zstd_blocks(w), order[i / 3], i % 3,
                           shared + S::COUNTS + i * DAMACY__FSE_COUNTS);
    damacy__sync_block();
    for (uint32_t i = warp; warp < S::BUILDERS && i < 3 * S::LANES / S::TOGETHER;
         i += S::BUILDERS) {
        const uint32_t first = i / 3 * S::TOGETHER;
        const uint32_t counts = shared + S::COUNTS + (3 * first + i % 3) * DAMACY__FSE_COUNTS;
        uint32_t logs[S::TOGETHER];
        DAMACY__UNROLL for (uint32_t u = 0; u < S::TOGETHER; u++) logs[u] =
            first + u < n ? damacy__lds16(counts + u * 3 * DAMACY__FSE_COUNTS + DAMACY__FSE_LOG_AT)
                          : DAMACY__FSE_BAD;
        damacy__fse_build<S>(shared, i % 3, first, logs, counts,
                             shared + S::BUILD + warp * S::BUILD_SIZE);
    }
    damacy__sync_block();
}

// The block of this lane and whether it can be decoded.
template <class S>
DAMACY__INLINE void damacy__fse_block_init(damacy__fse_block* b, const damacy__zstd_wave& w,
                                           const uint32_t* order, uint32_t n, uint32_t shared)
{
    const uint32_t lane = damacy__lane();
    b->block = 0;
    b->stream = b->end = 0;
    b->n = b->logs[0] = b->logs[1] = b->logs[2] = 0;
    b->status = DAMACY__JOB_OK;
    if (lane >= n)
        return;
    damacy__zstd_block* block = damacy__zstd_blocks(w) + order[lane];
    if (block->state == DAMACY__ZSTD_DECODED) // others of the group are decoded again
        return;
    b->block = block;
    b->stream = block->sequence_src + block->bits_at;
    b->end = b->stream + block->bits_size;
    b->n = block->n_sequences;
    for (uint32_t t = 0; t < 3; t++) {
        b->logs[t] = damacy__lds16(shared + S::COUNTS + (lane * 3 + t) * DAMACY__FSE_COUNTS +
                                   DAMACY__FSE_LOG_AT);
        if (b->logs[t] == DAMACY__FSE_BAD)
            b->status = DAMACY__JOB_BAD_TABLE;
    }
    if (b->status == DAMACY__JOB_OK &&
        (block->bits_size == 0 || *(const uint8_t*)(uintptr_t)(b->end - 1) == 0))
        b->status = DAMACY__JOB_BAD_SEQUENCES; // no end mark
    if (b->status != DAMACY__JOB_OK)
        b->n = b->logs[0] = b->logs[1] = b->logs[2] = 0;
}

// The first states, from the top of the stream.
template <class S>
DAMACY__INLINE void damacy__fse_walk_begin(damacy__fse_walk* w, damacy__fse_lane self,
                                           const damacy__fse_block* b)
{
    damacy__fse_entry first = {0, 0, 0};
    uint32_t x = damacy__fse_bits_load<S>(w->at, self.ring).y;

    first.width = b->logs[DAMACY__ZSTD_LL];
    w->ll = damacy__fse_next<S>(&first, &x, self.column);
    first.width = b->logs[DAMACY__ZSTD_OF];
    w->of = damacy__fse_next<S>(&first, &x, self.column);
    first.width = b->logs[DAMACY__ZSTD_ML];
    w->ml = damacy__fse_next<S>(&first, &x, self.column);
    w->at += b->logs[0] + b->logs[1] + b->logs[2];
}

// Brings the results of the warps together in the first lanes of warp 0: the state of a block and
// its largest offset; returns the position after its last sequence.
template <class S>
DAMACY__INLINE uint32_t damacy__fse_wide_results(const damacy__fse_role<S>* r, uint32_t shared,
                                                 damacy__fse_state* s, uint32_t* max_offset)
{
    const uint32_t warp = threadIdx.x / 32, lane = damacy__lane();
    const uint32_t results = shared + S::QUEUE + 16 * (lane & (S::LANES - 1));
    uint32_t most = r->seen.max_offset, walked = r->seen.walked;

    if (warp == 1) {
        for (uint32_t d = S::LANES; d < 32; d *= 2) {
            most = damacy__max(most, damacy__shfl_xor(most, d));
            walked = damacy__max(walked, damacy__shfl_xor(walked, d)); // positions only grow
        }
        if (lane < S::LANES)
            damacy__sts64(results, most, walked);
    }
    if (warp == 5 && lane < S::LANES)
        damacy__fse_queue_write(results + 16 * S::LANES, r->sums.start, r->sums.literals,
                                r->sums.too_long ? 0x80000000u : 0, 0);
    if (warp == 2 && lane < S::LANES)
        damacy__fse_state_save(&r->state, shared + S::STATE + lane * 32);
    damacy__sync_block();
    damacy__fse_state_load(s, shared + S::STATE + (lane & (S::LANES - 1)) * 32);
    const damacy__u32x2 seen = damacy__lds64(results);
    const damacy__u32x4 sums = damacy__lds128(results + 16 * S::LANES);
    s->start = sums.x;
    s->literals = sums.y;
    s->symbolic |= sums.z;
    *max_offset = seen.x;
    return seen.y;
}

// Fills the rings and the first states.
template <class S>
DAMACY__INLINE void damacy__fse_role_init(damacy__fse_role<S>* r, const damacy__zstd_wave& w,
                                          const damacy__fse_block* b, uint32_t shared,
                                          damacy__fse_lane self)
{
    const uint32_t warp = threadIdx.x / 32, lane = damacy__lane();
    const uint32_t skip = b->n ? 8 * (uint32_t)((0 - b->end) & 15) +
                                     damacy__clz(*(const uint8_t*)(uintptr_t)(b->end - 1)) - 24 + 1
                               : 0;

    r->walk.ll = r->walk.ml = r->walk.of = self.column;
    r->walk.at = skip;
    r->capacity = b->n ? b->block->record_capacity : 0;
    r->records = b->n ? w.records + 8 * b->block->first_record : 0;
    for (uint32_t k = 0; k < S::BATCH; k++)
        r->values.value[k] = r->values.ll[k] = r->values.ml[k] = 0;
    damacy__fse_state_init<S>(&r->state);
    r->sums.start = r->state.start;
    r->sums.literals = r->state.literals;
    r->sums.too_long = r->seen.max_offset = r->seen.walked = 0;
    if (warp == 1 && lane < S::LANES)
        damacy__fse_state_save(&r->state, shared + S::STATE + lane * 32);
    if (warp == 3 || (warp == 4 && !S::WIDE)) {
        const uint32_t from = S::WIDE ? lane & (S::LANES - 1) : lane; // several lanes a block
        r->feed.end = damacy__shfl((b->end + 15) & ~15ull, from);
        r->feed.lo = damacy__shfl(b->stream, from);
        r->feed.hi = damacy__shfl(b->end, from);
        r->feed.filled = r->feed.pending = r->feed.last.x = r->feed.last.y = 0;
        for (uint32_t i = 0; i < 4; i++)
            r->feed.chunk[i].x = r->feed.chunk[i].y = r->feed.chunk[i].z = r->feed.chunk[i].w = 0;
        if (S::WIDE) {
            damacy__fse_wide_feed_step<S>(&r->feed, damacy__shfl(b->n, from) != 0,
                                          damacy__shfl(skip, from), self.ring);
            damacy__fse_wide_feed_store<S>(&r->feed, self.ring);
        } else if (warp == 3 && lane < S::LANES && b->n) {
            r->feed.filled = damacy__fse_want<S>(skip);
        }
    }
    if (!S::WIDE && lane < S::LANES && b->n)
        damacy__fse_feed_now<S>((b->end + 15) & ~15ull, b->stream, b->end, 16 * warp,
                                damacy__fse_want<S>(skip), 16 * (DAMACY__FSE_THREADS / 32),
                                self.ring);
    damacy__sync_block();
    if (warp == 0) {
        damacy__fse_walk_begin<S>(&r->walk, self, b);
        if (lane < S::LANES)
            damacy__sts32(shared + S::POSITION + 4 * lane, r->walk.at);
    }
    damacy__sync_block();
}

// Of the word at S::CONTROL + 28: the wide group of this CTA is taken; the last group is to be
// decoded again.
#define DAMACY__FSE_WIDE_TAKEN 1u
#define DAMACY__FSE_AGAIN      2u
#define DAMACY__FSE_LEAVES     4u // this CTA takes none

// Decodes blocks order[0 ... n).
template <class S>
static __device__ void damacy__fse_group(const damacy__zstd_wave& w, const uint32_t* order,
                                         uint32_t n, uint32_t shared)
{
    const uint32_t warp = threadIdx.x / 32, lane = damacy__lane();
    const damacy__fse_lane self = damacy__fse_lane_init<S>(shared);
    damacy__fse_block b;
    damacy__fse_role<S> r;

    damacy__fse_tables<S>(w, order, n, shared);
    damacy__fse_block_init<S>(&b, w, order, n, shared);
    uint32_t most = b.n;
    for (uint32_t d = 16; d; d /= 2)
        most = damacy__max(most, damacy__shfl_xor(most, d));
    damacy__sync_block(); // counts become the ring
    damacy__fse_role_init<S>(&r, w, &b, shared, self);
    const uint32_t n_batches = (most + S::BATCH - 1) / S::BATCH;
    if (S::WIDE)
        damacy__fse_wide_pipeline<S>(&r, shared, self, &b, n_batches);
    else
        damacy__fse_pipeline<S>(&r, shared, self, &b, n_batches);
    damacy__sync_block();
    damacy__fse_state s;
    uint32_t walked, max_offset;
    if (S::WIDE) {
        walked = damacy__fse_wide_results<S>(&r, shared, &s, &max_offset);
    } else {
        const uint32_t results = shared + S::QUEUE + 8 * (lane & (S::LANES - 1));
        if (lane < S::LANES && (warp == 1 || warp == 2))
            damacy__sts64(results + warp * 8 * S::LANES, r.seen.max_offset, r.seen.walked);
        damacy__sync_block();
        const damacy__u32x2 one = damacy__lds64(results + 8 * S::LANES);
        const damacy__u32x2 two = damacy__lds64(results + 16 * S::LANES);
        damacy__fse_state_load(&s, shared + S::STATE + (lane & (S::LANES - 1)) * 32);
        max_offset = damacy__max(one.x, two.x);
        walked = damacy__max(one.y, two.y); // one of them saw the last sequence
    }
    if (warp == 0) {
        damacy__fse_state_open<S>(&s);
        const bool again =
            b.block &&
            damacy__fse_finish<S>(w, &b, &s, damacy__fse_verdict(&b, &s, walked, max_offset),
                                  S::WIDE ? 1 : S::BATCH);
        if (damacy__any(again) && lane == 0)
            damacy__sts32(shared + S::CONTROL + 28,
                          damacy__lds32(shared + S::CONTROL + 28) | DAMACY__FSE_AGAIN);
    }
}

// The next group: its place and number of blocks to shared memory. One thread.
template <class S>
DAMACY__INLINE void damacy__fse_choose(const damacy__zstd_wave& w, uint32_t shared, uint32_t flags)
{
    const damacy__fse_plan plan = damacy__fse_plan_load(shared + S::CONTROL);
    uint32_t* ticket = &damacy__zstd_counts(w)->ticket[0];
    const damacy__fse_part wide = damacy__fse_wide_part(&plan, blockIdx.x);
    const bool has_wide = wide.n && !(flags & DAMACY__FSE_WIDE_TAKEN);
    damacy__fse_part part = wide;

    if (flags & DAMACY__FSE_LEAVES) {
        damacy__sts32(shared + S::CONTROL + 24, 0);
        return;
    }
    if (!has_wide || damacy__atomic_add(ticket, 0) < damacy__fse_narrow_before(&plan))
        part = damacy__fse_narrow_part(&plan, damacy__atomic_add(ticket, 1));
    if (part.n == 0 && has_wide)
        part = wide;
    if (part.is_wide)
        damacy__sts32(shared + S::CONTROL + 28, DAMACY__FSE_WIDE_TAKEN);
    damacy__sts32(shared + S::CONTROL + 20, part.first);
    damacy__sts32(shared + S::CONTROL + 24, part.n << 1 | (part.is_wide ? 1 : 0));
}

// Takes the next group, or the last one again: warp 0 does, for all.
template <class S>
DAMACY__INLINE damacy__fse_part damacy__fse_take(const damacy__zstd_wave& w, uint32_t shared)
{
    damacy__fse_part part;

    damacy__sync_block();
    if (threadIdx.x == 0) {
        const uint32_t flags = damacy__lds32(shared + S::CONTROL + 28);
        if (flags & DAMACY__FSE_AGAIN)
            damacy__sts32(shared + S::CONTROL + 28, flags & ~DAMACY__FSE_AGAIN);
        else
            damacy__fse_choose<S>(w, shared, flags);
    }
    damacy__sync_block();
    part.first = damacy__lds32(shared + S::CONTROL + 20);
    part.n = damacy__lds32(shared + S::CONTROL + 24);
    part.is_wide = part.n & 1;
    part.n >>= 1;
    return part;
}

// How often who leaves looks whether all groups are taken, about 0.1 ms on a GPU, where a look
// takes long enough; on the CPU others run in between.
#define DAMACY__FSE_LOOKS 512u
#ifdef __CUDACC__
#define DAMACY__FSE_PAUSE() ((void)0)
#else
#define DAMACY__FSE_PAUSE() simt::yield(__LINE__)
#endif

// Whether this CTA leaves its multiprocessor to literals, as narrow groups are fewer than CTAs.
// Those that stay are neighbours: two multiprocessors share a cache of instructions, and a walk
// beside other code takes a sixth longer. As many as there are groups stay wherever they are. Who
// leaves waits until they have begun, though not for ever, as where it has been the next CTA would
// begin, and those that are still at other work get none. Not beside other waves, where CTAs begin
// as they find room, but then literals are not early, either. One thread asks, once.
DAMACY__INLINE bool damacy__fse_leaves(const damacy__zstd_wave& w, const damacy__fse_plan* p)
{
    const uint32_t n_groups = (p->n + p->n_lanes - 1) / p->n_lanes;

    if (p->n_wide_lanes == 0 || p->wide_end > p->wide || n_groups >= gridDim.x ||
        !(w.flags & DAMACY__ZSTD_FLAG_EARLY))
        return false;
    const bool leaves =
        damacy__multiprocessor() >= ((n_groups + 1) & ~1u) &&
        damacy__atomic_add(&damacy__zstd_counts(w)->n_left, 1) < gridDim.x - n_groups;
    for (uint32_t i = 0; leaves && i < DAMACY__FSE_LOOKS &&
                         damacy__atomic_load(&damacy__zstd_counts(w)->ticket[0]) < n_groups;
         i++)
        DAMACY__FSE_PAUSE();
    return leaves;
}

// A whole CTA: groups of the plan that warp 0 has, wide ones in shape W.
template <class S, class W>
static __device__ void damacy__fse_run(const damacy__zstd_wave& w, const damacy__fse_plan& plan,
                                       uint32_t shared)
{
    const uint32_t* order = (const uint32_t*)(uintptr_t)w.sequence_order;

    static_assert(S::CONSTANTS == W::CONSTANTS && S::CONTROL == W::CONTROL, "for both");
    for (uint32_t i = threadIdx.x; i < DAMACY__FSE_WORDS; i += DAMACY__FSE_THREADS)
        damacy__sts32(shared + S::CONSTANTS + 4 * i, damacy__fse_constant(i));
    if (threadIdx.x == 0) {
        damacy__fse_plan_save(&plan, shared + S::CONTROL);
        damacy__sts32(shared + S::CONTROL + 28,
                      damacy__fse_leaves(w, &plan) ? DAMACY__FSE_LEAVES : 0);
    }
    for (;;) {
        const damacy__fse_part part = damacy__fse_take<S>(w, shared);
        if (part.n == 0)
            return;
        // Through a shuffle, so that places of both shapes are not computed before the loop.
        const uint32_t here = damacy__shfl(shared, 0);
        if (part.is_wide && W::WIDE)
            damacy__fse_group<W>(w, order + part.first, part.n, here);
        else if (!S::WIDE)
            damacy__fse_group<S>(w, order + part.first, part.n, here);
    }
}

// The same in one shape.
template <class S>
static __device__ void damacy__fse_run_even(const damacy__zstd_wave& w, uint32_t shared)
{
    const uint32_t n = damacy__zstd_counts(w)->n_sequence_blocks;
    const bool is_full = !S::WIDE && damacy__fse_is_full(w);
    damacy__fse_run<S, S>(w, damacy__fse_plan_even(n, S::LANES, S::WIDE, is_full), shared);
}

// Shapes by shared memory. Without room for 16 blocks or more there is one shape of fewer lanes.
#if DAMACY__SHARED_MAX >= 232448
#define DAMACY__FSE_HAS_LATENCY 1
template <bool BY_SEQUENCE> using damacy__fse_latency = damacy__fse_shape<8, 6, 32, BY_SEQUENCE>;
template <bool BY_SEQUENCE> // 32 blocks
using damacy__fse_throughput = damacy__fse_shape<4, 7, 16, BY_SEQUENCE>;
#elif DAMACY__SHARED_MAX >= 166912
#define DAMACY__FSE_HAS_LATENCY 1
template <bool BY_SEQUENCE> using damacy__fse_latency = damacy__fse_shape<8, 6, 16, BY_SEQUENCE>;
template <bool BY_SEQUENCE> // 16 blocks
using damacy__fse_throughput = damacy__fse_shape<4, 6, 16, BY_SEQUENCE>;
#elif DAMACY__SHARED_MAX >= 101376
template <bool BY_SEQUENCE> // 16 blocks
using damacy__fse_throughput = damacy__fse_shape<4, 6, 8, BY_SEQUENCE>;
template <bool BY_SEQUENCE> using damacy__fse_latency = damacy__fse_throughput<BY_SEQUENCE>;
#else
template <bool BY_SEQUENCE> // 8 blocks
using damacy__fse_throughput = damacy__fse_shape<4, 5, 16, BY_SEQUENCE>;
template <bool BY_SEQUENCE> using damacy__fse_latency = damacy__fse_throughput<BY_SEQUENCE>;
#endif
static_assert(damacy__fse_throughput<false>::SIZE <= DAMACY__SHARED_MAX, "shared memory");
static_assert(damacy__fse_latency<false>::SIZE <= DAMACY__ZSTD_FSE_LATENCY_SHARED, "host's view");

// The stage. Grid: one CTA of DAMACY__FSE_THREADS a multiprocessor; dynamic shared memory: all that
// a CTA may have (DAMACY__SHARED_MAX). BY_SEQUENCE: as FLAG_BY_SEQUENCE of the wave.
template <bool BY_SEQUENCE>
static __device__ void damacy__zstd_fse(const damacy__zstd_wave& w, uint8_t* shared)
{
#ifdef DAMACY__FSE_HAS_LATENCY
    typedef damacy__fse_throughput<BY_SEQUENCE> narrow;
    typedef damacy__fse_latency<BY_SEQUENCE> wide;
    const uint32_t n = damacy__zstd_counts(w)->n_sequence_blocks;
    const uint32_t lanes = narrow::LANES, wide_lanes = wide::LANES;
    damacy__fse_plan plan;

    if (w.flags & DAMACY__ZSTD_FLAG_FSE_THROUGHPUT)
        plan = damacy__fse_plan_even(n, lanes, false, true);
    else if (n <= wide_lanes * gridDim.x)
        plan = damacy__fse_plan_even(n, wide_lanes, true, false);
    else if (threadIdx.x < 32)
        plan = damacy__fse_plan_mixed(w, n, lanes, wide_lanes);
    damacy__fse_run<narrow, wide>(w, plan, damacy__shared_address(shared));
#else
    damacy__fse_run_even<damacy__fse_throughput<BY_SEQUENCE>>(w, damacy__shared_address(shared));
#endif
}
