// The sequence stage for few blocks (wide shape): a block is one chain of states, so the walk does
// as little as it can, and all that is no chain is done by 32 lanes, four a block.
//
// Surprising: the walk leaves where it was, {position, states}, not what it read: the next warp
// reads the tables and the stream again. It runs past the last sequence, to the end of the batch;
// who reads the queue knows how many sequences there are.
#pragma once

#include "kernels/zstd_fse_extract.cuh"

// Place of a batch in the queue, where a stage leaves for the next what it made of a sequence.
template <class S> DAMACY__INLINE uint32_t damacy__fse_wide_queue(uint32_t shared, uint32_t batch)
{
    return shared + S::QUEUE + (batch & (S::QUEUE_PARTS - 1)) * S::QUEUE_SIZE;
}

// Loads of the lanes that walk. Predicated: lanes that are not there cost no bank conflicts. Not
// volatile: a loop with such loads gets a YIELD, which costs 40 cycles.
#ifdef __CUDACC__
DAMACY__INLINE void damacy__fse_lds64_if(bool here, damacy__u32x2* v, uint32_t at)
{
    asm volatile("{.reg .pred p; setp.ne.u32 p,%3,0; @p ld.shared.v2.u32 {%0,%1},[%2];}"
                 : "+r"(v->x), "+r"(v->y)
                 : "r"(at), "r"((uint32_t)here));
}
#else
DAMACY__INLINE void damacy__fse_lds64_if(bool here, damacy__u32x2* v, uint32_t at)
{
    if (here)
        *v = damacy__lds64(at);
}
#endif

DAMACY__INLINE damacy__fse_entry damacy__fse_wide_entry_load(uint32_t at)
{
    const damacy__u32x2 v = damacy__lds64(at);
    damacy__fse_entry e;
    e.extra = v.x >> 16 & 255;
    e.width = v.x & 31;
    e.base = v.y;
    return e;
}

// What a step begins with: entries of the three states and the 64 bits at or before the position.
struct damacy__fse_loads {
    damacy__u32x2 of, ml, ll, bits;
};

template <class S>
DAMACY__INLINE void damacy__fse_wide_load(bool here, damacy__fse_loads* next,
                                          const damacy__fse_walk* w, uint32_t shared, uint32_t part)
{
    damacy__fse_lds64_if(here, &next->of, shared + S::OF + w->of);
    damacy__fse_lds64_if(here, &next->ml, shared + S::ML + w->ml);
    damacy__fse_lds64_if(here, &next->ll, shared + S::LL + w->ll);
    damacy__fse_lds64_if(here, &next->bits,
                         shared + S::RING + ((w->at * S::STEP & S::WINDOW_MASK) | part));
}

// One batch for sequences of at most 49 - ROW_LOG bits; false if one was larger, and then states
// and queue are rubbish. The chain of a step: entry, sum, shift, shift, select. Loops of 2, 4 and 8
// steps took longer. here_mask: here as a mask, as a predicate is known 13 cycles later. What the
// next batch begins with is not loaded.
template <class S>
DAMACY__INLINE bool damacy__fse_wide_fast(bool here, uint32_t here_mask, damacy__fse_walk* walk,
                                          damacy__fse_loads* loads, uint32_t shared, uint32_t part,
                                          uint32_t queue)
{
    constexpr uint32_t R = S::ROW_LOG, LESS = 0xff00u; // by the second byte
    uint32_t negative = 0, before = 0;
    damacy__fse_walk w = *walk;
    damacy__fse_loads e = *loads;

    DAMACY__UNROLL for (uint32_t k = 0; k < S::BATCH; k++)
    {
        damacy__fse_sts128_if(here, queue + k * 16 * S::LANES, w.at, w.ll, w.ml, w.of);
        const uint32_t most = 64 - R - (w.at & 15), both = e.of.x + e.ml.x;
        const uint32_t down = damacy__dot4(
            e.ll.x, LESS, damacy__dot4(e.ml.x, LESS, damacy__dot4(e.of.x, LESS, most)));
        const uint32_t x = (uint32_t)damacy__fse_shift_right(e.bits.x, e.bits.y, down);
        w.at = damacy__fse_sum(w.at, most) - down;
        w.of = (x & damacy__mask_bits(R, e.of.x)) | e.of.y;
        w.ml = (damacy__funnel_right(x, 0, e.of.x) & damacy__mask_bits(R, e.ml.x)) | e.ml.y;
        w.ll = (damacy__funnel_right(x, 0, both) & damacy__mask_bits(R, e.ll.x)) | e.ll.y;
        if (k & 1)
            negative |= before | down;
        before = down;
        if (k + 1 < S::BATCH)
            damacy__fse_wide_load<S>(here, &e, &w, shared, part);
    }
    *walk = w;
    *loads = e;
    return (int32_t)(negative & here_mask) >= 0;
}

// The same from the state in the first place of the queue, exact whatever the widths; the state
// after it goes to `result`. Kept out of the way of the walk, which runs in a small cache.
template <class S>
static __device__ __noinline__ void damacy__fse_wide_careful(uint32_t shared, uint32_t column,
                                                             uint32_t ring, uint32_t queue,
                                                             uint32_t result)
{
    damacy__u32x4 w = damacy__lds128(queue);
    DAMACY__NOUNROLL for (uint32_t k = 0; k < S::BATCH; k++)
    {
        const damacy__fse_entry l = damacy__fse_wide_entry_load(shared + S::LL + w.y);
        const damacy__fse_entry m = damacy__fse_wide_entry_load(shared + S::ML + w.z);
        const damacy__fse_entry o = damacy__fse_wide_entry_load(shared + S::OF + w.w);
        damacy__sts128(queue + k * 16 * S::LANES, w);
        uint32_t at = w.x + l.extra + m.extra + o.extra;
        uint32_t x = damacy__fse_bits_load<S>(at, ring).y;
        w.y = damacy__fse_next<S>(&l, &x, column);
        w.z = damacy__fse_next<S>(&m, &x, column);
        w.w = damacy__fse_next<S>(&o, &x, column);
        w.x = at + l.width + m.width + o.width;
    }
    damacy__sts128(result, w);
}

// Walks batch `batch` of a block of n sequences and publishes the position; all lanes. What the
// next batch begins with is loaded before the barrier, so that it does not wait for both, but after
// the branch, which would wait for it. No vote: it takes longer than a branch.
template <class S>
DAMACY__INLINE void damacy__fse_wide_walk(damacy__fse_walk* w, damacy__fse_loads* loads,
                                          uint32_t shared, damacy__fse_lane self, uint32_t n,
                                          uint32_t batch)
{
    const uint32_t lane = damacy__lane();
    const uint32_t part = self.ring - shared - S::RING; // its bits are not in RING_MASK
    const uint32_t queue = damacy__fse_wide_queue<S>(shared, batch) + lane * 16;
    const bool here = n > batch * S::BATCH;
    const uint32_t here_mask = (uint32_t)((int32_t)(batch * S::BATCH - n) >> 31);
    const bool good = damacy__fse_wide_fast<S>(here, here_mask, w, loads, shared, part, queue);
    const uint32_t position = shared + S::POSITION + ((batch + 1) & 1) * 4 * S::LANES + lane * 4;
    if (!good) {
        const uint32_t result = shared + S::STATE + (lane & (S::LANES - 1)) * 32;
        damacy__fse_wide_careful<S>(shared, self.column, self.ring, queue, result);
        const damacy__u32x4 after = damacy__lds128(result);
        w->at = after.x;
        w->ll = after.y;
        w->ml = after.z;
        w->of = after.w;
    }
    damacy__fse_wide_load<S>(here, loads, w, shared, part);
    damacy__fse_sts32_if(here, position, w->at);
}

// What a lane of the second stage saw of its sequences.
struct damacy__fse_seen {
    uint32_t max_offset, walked; // largest offset value, position after the last sequence
};

// Sequences of a batch that a lane of the second and third stage has, one after another, and those
// that it looks at together: more would be code that does not stay in the instruction cache.
#define DAMACY__FSE_SHARE(S) (S::BATCH * S::LANES / 32)
#define DAMACY__FSE_TOGETHER 4u

// The second stage, all lanes of a warp: {position, states} becomes {literal length, match length,
// choice, offset}; a sequence that is not there moves nothing. `left` of them are there.
template <class S>
DAMACY__INLINE void damacy__fse_wide_some_values(damacy__fse_seen* seen, uint32_t shared,
                                                 damacy__fse_lane self, uint32_t queue,
                                                 bool is_walked, uint32_t left)
{
    constexpr uint32_t N = DAMACY__FSE_TOGETHER;
    const uint32_t constants = shared + S::CONSTANTS;
    damacy__u32x4 q[N];
    damacy__u32x2 v[N];
    uint32_t el[N], em[N], eo[N], ll[N], ml[N];

    DAMACY__UNROLL for (uint32_t i = 0; i < N; i++)
    {
        q[i] = damacy__lds128(queue + i * 16 * S::LANES);
        if (!is_walked) // the walk left nothing here
            q[i].x = q[i].y = q[i].z = q[i].w = 0;
    }
    DAMACY__UNROLL for (uint32_t i = 0; i < N; i++)
    {
        v[i] = damacy__fse_bits_load<S>(q[i].x, self.ring);
        el[i] = damacy__lds32(shared + S::LL + q[i].y);
        em[i] = damacy__lds32(shared + S::ML + q[i].z);
        eo[i] = damacy__lds32(shared + S::OF + q[i].w);
    }
    DAMACY__UNROLL for (uint32_t i = 0; i < N; i++)
    {
        ll[i] = damacy__lds32(constants + (el[i] >> 22 & 0xfc));
        ml[i] = damacy__lds32(constants + 144 + (em[i] >> 22 & 0xfc));
    }
    DAMACY__UNROLL for (uint32_t i = 0; i < N; i++)
    {
        const uint32_t hi = v[i].y, lo = v[i].x;
        const uint32_t o = eo[i] >> 16, m = em[i] >> 16, l = el[i] >> 16; // extra bits mod 32
        const uint32_t rest = damacy__funnel_left(lo, hi, o);
        const uint32_t value = damacy__funnel_left(hi, 1, o);
        const uint32_t last = damacy__funnel_left(lo << (o & 31), rest, m);
        const bool here = left > i;
        const bool is_new = value > 3;
        const uint32_t literals = here ? ll[i] + damacy__funnel_left(last, 0, l) : 0;
        const uint32_t length = here ? ml[i] + damacy__funnel_left(rest, 0, m) : 0;
        const uint32_t which = value - (literals ? 1 : 0);
        const uint32_t choice = !here ? 0 : is_new ? 16 : (which & 3) * 4;
        const uint32_t offset = !here ? 0 : is_new ? value - 3 : which == 3 ? 0xffffffffu : 0u;
        damacy__fse_queue_write(queue + i * 16 * S::LANES, literals, length,
                                damacy__lds32(constants + 4 * DAMACY__FSE_CHOICES + choice),
                                offset);
        if (here) {
            seen->max_offset = damacy__max(seen->max_offset, value);
            seen->walked = q[i].x + (o & 31) + (m & 31) + (l & 31); // of the last one it stays
        }
    }
}

template <class S>
DAMACY__INLINE void damacy__fse_wide_values(damacy__fse_seen* seen, uint32_t shared,
                                            damacy__fse_lane self, uint32_t n, uint32_t batch)
{
    constexpr uint32_t SHARE = DAMACY__FSE_SHARE(S), N = DAMACY__FSE_TOGETHER;
    const uint32_t lane = damacy__lane(), j = lane & (S::LANES - 1), part = lane / S::LANES;
    const uint32_t done = batch * S::BATCH + part * SHARE, left = n > done ? n - done : 0;
    const uint32_t queue =
        damacy__fse_wide_queue<S>(shared, batch) + part * SHARE * 16 * S::LANES + j * 16;

    DAMACY__NOUNROLL for (uint32_t i = 0; i < SHARE; i += N)
        damacy__fse_wide_some_values<S>(seen, shared, self, queue + i * 16 * S::LANES,
                                        n > batch * S::BATCH, left > i ? left - i : 0);
}

// Sums of a block before the next batch, the same in its four lanes.
struct damacy__fse_sums {
    uint32_t start, literals; // as in damacy__fse_state
    uint32_t too_long;        // not 0: the block was
};

// The third stage, all lanes of a warp: sums, and records but for the offsets of matches. Leaves
// {where the high word of the record goes, that word less 4 times the offset, choice, offset}.
template <class S>
DAMACY__INLINE void damacy__fse_wide_records(damacy__fse_sums* s, uint32_t shared, uint32_t batch)
{
    constexpr uint32_t EACH = S::BY_SEQUENCE ? 1 : 4; // a literal, in `literals`
    constexpr uint32_t SHARE = DAMACY__FSE_SHARE(S), N = DAMACY__FSE_TOGETHER;
    constexpr uint32_t WRAP = S::RECORDS_LANE - 8;
    const uint32_t lane = damacy__lane(), j = lane & (S::LANES - 1), part = lane / S::LANES;
    const uint32_t queue =
        damacy__fse_wide_queue<S>(shared, batch) + part * SHARE * 16 * S::LANES + j * 16;
    const uint32_t records = shared + S::RECORDS +
                             (batch & (S::RECORDS_PARTS - 1)) * S::RECORDS_SIZE +
                             j * S::RECORDS_LANE;
    uint32_t lengths = 0, literals = 0; // of a batch less than 2^24; above them, records

    DAMACY__UNROLL for (uint32_t i = 0; i < SHARE; i++)
    {
        const damacy__u32x2 q = damacy__lds64(queue + i * 16 * S::LANES);
        lengths += q.x + q.y + ((q.x && !S::BY_SEQUENCE ? 1u << 24 : 0) + (q.y ? 1u << 24 : 0));
        literals += q.x;
    }
    uint32_t all_lengths = lengths, all_literals = literals;
    for (uint32_t d = S::LANES; d < 32; d *= 2) {
        const uint32_t a = damacy__shfl_up(all_lengths, d), b = damacy__shfl_up(all_literals, d);
        all_lengths += lane >= d ? a : 0;
        all_literals += lane >= d ? b : 0;
    }
    uint32_t start = s->start + ((all_lengths - lengths) & 0xffffff);
    uint32_t from = s->literals + EACH * (all_literals - literals);
    uint32_t at = (((all_lengths - lengths) >> 24) + j) * 8;
    DAMACY__NOUNROLL for (uint32_t i0 = 0; i0 < SHARE; i0 += N)
    {
        const uint32_t first = queue + i0 * 16 * S::LANES;
        damacy__u32x4 q[N];
        DAMACY__UNROLL for (uint32_t i = 0; i < N; i++) q[i] =
            damacy__lds128(first + i * 16 * S::LANES);
        DAMACY__UNROLL for (uint32_t i = 0; i < N; i++)
        {
            const uint32_t ll = q[i].x, ml = q[i].y;
            const uint64_t both = (uint64_t)from * 131072u + start;
            const uint64_t run = (uint64_t)ll * 131072u + ((uint64_t)from << 32 | start);
            if (ll && !S::BY_SEQUENCE)
                damacy__sts64(records + (at & WRAP), (uint32_t)run, (uint32_t)(run >> 32));
            start += ll;
            from += EACH * ll;
            at += ll && !S::BY_SEQUENCE ? 8 : 0;
            const uint64_t copy = (uint64_t)ml * 131072u + (0xffffffff00000000ull | start);
            const uint64_t record = S::BY_SEQUENCE ? both : copy;
            const uint32_t to = records + (at & WRAP), place = first + i * 16 * S::LANES;
            if (ml)
                damacy__sts32(to, (uint32_t)record);
            damacy__fse_queue_write(place, ml ? to + 4 : place, (uint32_t)(record >> 32), q[i].z,
                                    q[i].w);
            start += ml;
            at += 8;
        }
    }
    all_lengths = damacy__shfl(all_lengths, 32 - S::LANES + j);
    all_literals = damacy__shfl(all_literals, 32 - S::LANES + j);
    s->start += all_lengths & 0xffffff;
    s->literals += EACH * all_literals;
    s->too_long |= s->start + (S::BY_SEQUENCE ? 0 : 1u << 17) > 1u << 17;
    if (part == 0)
        damacy__sts32(shared + S::COUNT + (batch & 1) * 4 * S::LANES + 4 * j, all_lengths >> 24);
}

// The fourth stage, a lane a block: offsets, which are a chain through the repeat offsets.
template <class S>
DAMACY__INLINE void damacy__fse_wide_offsets(damacy__fse_state* s, uint32_t shared,
                                             uint64_t records, uint32_t capacity, uint32_t batch)
{
    const uint32_t lane = damacy__lane(), first = s->n_records;
    const uint32_t queue = damacy__fse_wide_queue<S>(shared, batch) + lane * 16;
    const uint32_t info = shared + S::COPY + (batch & 1) * 16 * S::LANES + lane * 16;
    const bool symbolic = damacy__max(damacy__max(s->r1, s->r2), s->r3) >= DAMACY__ZSTD_D_SYMBOLIC;
    uint32_t r1 = s->r1, r2 = s->r2, r3 = s->r3, least = s->min_offset;

    s->n_records += damacy__lds32(shared + S::COUNT + (batch & 1) * 4 * S::LANES + 4 * lane);
    if (symbolic)
        s->symbolic = s->n_records;
    DAMACY__NOUNROLL for (uint32_t k0 = 0; k0 < S::BATCH; k0 += 8)
    {
        damacy__u32x4 v[8];
        DAMACY__UNROLL for (uint32_t i = 0; i < 8; i++) v[i] =
            damacy__lds128(queue + (k0 + i) * 16 * S::LANES);
        DAMACY__UNROLL for (uint32_t i = 0; i < 8; i++)
        {
            const uint32_t use1 = damacy__bytes(v[i].z, 0, 0x8888);
            const uint32_t use2 = damacy__bytes(v[i].z, 0, 0x9999);
            const uint32_t use3 = damacy__bytes(v[i].z, 0, 0xaaaa);
            const uint32_t still = damacy__bytes(v[i].z, 0, 0xbbbb), still3 = still | use2;
            const uint32_t offset = ((r1 & use1) | (r2 & use2) | (r3 & use3)) + v[i].w;
            r3 = (r3 & still3) | (r2 & ~still3);
            r2 = (r2 & still) | (r1 & ~still);
            r1 = offset;
            least = damacy__min(least, offset);
            damacy__sts32(v[i].x, v[i].y + 4 * offset);
        }
    }
    s->r1 = r1;
    s->r2 = r2;
    s->r3 = r3;
    s->min_offset = least;
    // What exceeds the capacity is counted alone, see damacy__fse_find_room.
    const uint64_t to = records + 8ull * first;
    damacy__fse_queue_write(info, (uint32_t)to, (uint32_t)(to >> 32),
                            damacy__min(s->n_records, capacity) - damacy__min(first, capacity), 0);
}

// ---- input: four lanes a block, each a chunk of 16 bytes for every 16 sequences of a batch

template <class S>
DAMACY__INLINE void damacy__fse_wide_feed_store(damacy__fse_feed* f, uint32_t ring)
{
    constexpr uint32_t CHUNKS = S::BATCH / 16;
    const uint32_t lane = damacy__lane(), j = lane & (S::LANES - 1), part = lane / S::LANES;
    const uint32_t newest = ((f->pending - 1) & 3) * S::LANES + j;
    damacy__u32x2 before = f->last, last = f->last;

    DAMACY__UNROLL for (uint32_t c = 0; c < CHUNKS; c++)
    {
        const uint64_t end = f->end - 16 * (part + 4 * c);
        if (part + 4 * c < f->pending && !damacy__fse_chunk_inside(f, end))
            f->chunk[c] = damacy__fse_chunk_edge(f->lo, f->hi, end);
    }
    damacy__sync_warp();
    DAMACY__UNROLL for (uint32_t c = 0; c < CHUNKS; c++)
    {
        const damacy__u32x4 v = f->chunk[c];
        damacy__u32x2 up, here;
        up.x = damacy__shfl_up(v.y, S::LANES);
        up.y = damacy__shfl_up(v.x, S::LANES);
        if (part + 4 * c < f->pending)
            damacy__fse_chunk_store<S>(f->filled + 4 * (part + 4 * c), v, part ? up : before, ring);
        before.x = damacy__shfl(v.y, 3 * S::LANES + j);
        before.y = damacy__shfl(v.x, 3 * S::LANES + j);
        here.x = damacy__shfl(v.y, newest);
        here.y = damacy__shfl(v.x, newest);
        if (f->pending > 4 * c)
            last = here;
    }
    damacy__sync_warp();
    f->last = last;
    f->filled += 4 * f->pending;
    f->end -= 16 * f->pending;
    f->pending = 0;
}

template <class S> DAMACY__INLINE void damacy__fse_wide_feed_load(damacy__fse_feed* f, uint32_t n)
{
    const uint32_t part = damacy__lane() / S::LANES;

    DAMACY__UNROLL for (uint32_t c = 0; c < S::BATCH / 16; c++)
    {
        const uint32_t k = part + 4 * c;
        const uint64_t end = f->end - 16 * k;
        damacy__fse_chunk_load(&f->chunk[c], end, k < n && damacy__fse_chunk_inside(f, end));
    }
    f->pending = n;
}

// As damacy__fse_feed_step, all lanes, for four batches: the walk looks one batch ahead.
template <class S>
DAMACY__INLINE void damacy__fse_wide_feed_step(damacy__fse_feed* f, bool here, uint32_t at,
                                               uint32_t ring)
{
    const uint32_t want = (at >> 5) + (4 * S::BATCH * 89 + 31) / 32 + 3;

    static_assert(!S::WIDE || (S::LANES == 8 && S::BATCH % 16 == 0), "four lanes a block");
    damacy__fse_wide_feed_store<S>(f, ring);
    for (;;) {
        const bool more = here && (int32_t)(want - f->filled) > (int32_t)S::BATCH;
        if (!damacy__any(more))
            break;
        damacy__fse_wide_feed_load<S>(f, more ? S::BATCH / 4 : 0);
        damacy__fse_wide_feed_store<S>(f, ring);
    }
    const int32_t need = here ? (int32_t)(want - f->filled) : 0;
    damacy__fse_wide_feed_load<S>(f, need > 0 ? (uint32_t)(need + 3) / 4 : 0);
    const uint64_t ahead = f->end - 1024 - 16 * (damacy__lane() / S::LANES);
    if (ahead >= f->lo && f->end <= f->hi)
        damacy__prefetch_l2((const void*)(uintptr_t)ahead);
}
