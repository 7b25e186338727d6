// The serial part of sequence decoding (RFC 8878 section 3.1.1.3.2): state walks. A lane walks one
// block; what a step begins with goes to a queue as {position, entries of the three states}, and
// nothing else is done here, because the walk is what the whole stage waits for. It runs past the
// last sequence, to the end of a batch. The walk of the wide shape is in zstd_fse_wide.cuh.
//
// Surprising: bits are never checked while walking. A lane that leaves its stream reads zeros or
// the bits of an old batch, and every table entry leads to an entry of the same table, so it stays
// in bounds; the position after the last sequence shows it.
#pragma once

#include "kernels/zstd_fse_table.cuh"

// hi:lo >> s, 0 where s > 63: the shift of a step that is repeated with care may be wild.
DAMACY__INLINE uint64_t damacy__fse_shift_right(uint32_t lo, uint32_t hi, uint32_t s)
{
#ifdef __CUDACC__
    uint64_t v;
    asm("shr.b64 %0,%1,%2;" : "=l"(v) : "l"((uint64_t)hi << 32 | lo), "r"(s));
    return v;
#else
    return s > 63 ? 0 : ((uint64_t)hi << 32 | lo) >> s;
#endif
}

// How the shared memory of a CTA is laid out: bytes of a table entry, log2 of the bytes of a row,
// and sequences between two barriers. A row holds one entry of every block, so lanes never share a
// bank and a state is the byte address of its entry.
//
//   entry of 4 bytes    width | base << ROW_LOG | code << 18 | (a + width) << 24
//   entry of 8 bytes    {width | (a + width) << 8 | a << 16 | code << 24,
//                        base << ROW_LOG | where the block's entries begin in a row}
//
// where a is the number of extra bits, width the number of bits of the next state and base its
// smallest value, always a multiple of 1 << width.
template <int ENTRY_, int ROW_LOG_, int BATCH_, bool BY_SEQUENCE_ = false>
struct damacy__fse_shape {
    static constexpr uint32_t ENTRY = ENTRY_, ROW_LOG = ROW_LOG_, BATCH = BATCH_;
    static constexpr bool BY_SEQUENCE = BY_SEQUENCE_; // records, of sequences or of segments
    static constexpr uint32_t LANES = (1u << ROW_LOG) / ENTRY;
    static constexpr uint32_t TOGETHER = 16 / ENTRY; // tables that a warp builds at once
    static constexpr bool WIDE = ENTRY >= 8;
    static constexpr uint32_t MASK = 0x1ffu << ROW_LOG, MASK_OF = 0xffu << ROW_LOG;

    // Ring of big-endian words of a lane: four batches of sequences of 89 bits and, in the narrow
    // shape, the one before, whose windows are looked at once more. In the wide shape it holds the
    // 64 bits {low word, high word} from every 16th bit on, so that one load makes a window, in
    // rows of all lanes.
    static constexpr uint32_t RING_WORDS = 16 * BATCH, RING_LOG = WIDE ? ROW_LOG + 1 : ROW_LOG;
    static constexpr uint32_t RING_MASK = (RING_WORDS - 1) << RING_LOG;
    static constexpr uint32_t WINDOW_MASK = (2 * RING_WORDS - 1) << ROW_LOG; // wide shape
    // Bytes of the ring to a bit of the stream.
    static constexpr uint32_t STEP = (1u << ROW_LOG) / (WIDE ? 16 : 32);
    static constexpr uint32_t RING_SIZE =
        WIDE ? RING_WORDS * 16 * LANES : (RING_WORDS + 2) * 4 * LANES;
    static constexpr uint32_t QUEUE_SIZE = BATCH * 16 * LANES; // one part
    static constexpr uint32_t QUEUE_PARTS = WIDE ? 4 : 2;
    static constexpr uint32_t RECORDS_SIZE = BATCH * 16 * LANES; // one part: 2 records a sequence
    static constexpr uint32_t RECORDS_PARTS = WIDE ? 4 : 2;
    static constexpr uint32_t RECORDS_LANE = BATCH * 16;

    // Places in shared memory.
    static constexpr uint32_t CONSTANTS = 0;  // 114 words
    static constexpr uint32_t CONTROL = 464;  // plan, group: 32 bytes
    static constexpr uint32_t POSITION = 496; // 2 x u32 a lane
    static constexpr uint32_t COPY =
        POSITION + 8 * LANES;                            // 2 x {address, records, sequences} a lane
    static constexpr uint32_t STATE = COPY + 32 * LANES; // 32 bytes a lane
    static constexpr uint32_t RING = STATE + 32 * LANES;
    static constexpr uint32_t QUEUE = RING + RING_SIZE;
    static constexpr uint32_t RECORDS = (QUEUE + QUEUE_PARTS * QUEUE_SIZE + 255) & ~255u;
    static constexpr uint32_t COUNT = // 2 x u32 a lane, wide shape
        RECORDS + RECORDS_PARTS * RECORDS_SIZE;
    static constexpr uint32_t TABLES = (COUNT + (WIDE ? 8 * LANES : 0) + 127) & ~127u;
    static constexpr uint32_t LL = TABLES, ML = LL + (512u << ROW_LOG), OF = ML + (512u << ROW_LOG);
    static constexpr uint32_t SIZE = OF + (256u << ROW_LOG);
    static constexpr uint32_t COUNTS = RING; // before the walk: 3 tables a lane
    static constexpr uint32_t BUILD = COUNTS + 3 * LANES * DAMACY__FSE_COUNTS;
    static constexpr uint32_t BUILD_SIZE = TOGETHER * DAMACY__FSE_BUILD; // a warp
    static constexpr uint32_t BUILDERS =                                 // warps
        (TABLES - BUILD) / BUILD_SIZE < 8 ? (TABLES - BUILD) / BUILD_SIZE : 8;
    static_assert(RING % 16 == 0 && QUEUE % 16 == 0, "alignment");
    static_assert(BUILDERS > 0 && BUILD % 8 == 0, "scratch");
    static_assert(WIDE || RING_WORDS >= 5 * BATCH * 89 / 32 + 12, "ring"); // and some to spare
    static_assert(LANES <= 32 && (BATCH == 8 || BATCH == 16 || (WIDE && BATCH == 32)), "shape");

    static __device__ __forceinline__ uint32_t table_at(uint32_t table)
    {
        return table == DAMACY__ZSTD_LL ? LL : table == DAMACY__ZSTD_OF ? OF : ML;
    }

    // What the entries of a symbol have in common, and one of them.
    static __device__ __forceinline__ uint32_t entry_kind(uint32_t extra, uint32_t code)
    {
        return WIDE ? extra << 16 | code << 24 : code << 18 | extra << 24;
    }
    static __device__ __forceinline__ damacy__u32x2 entry_of(uint32_t slot, uint32_t kind,
                                                             uint32_t width, uint32_t base)
    {
        damacy__u32x2 v;
        v.x = (kind | width | base << ROW_LOG) + (width << 24);
        v.y = slot * ENTRY | base << ROW_LOG;
        if (WIDE)
            v.x = kind | width | ((kind >> 16 & 255) + width) << 8;
        return v;
    }
    // Entries of TOGETHER neighbouring slots.
    static __device__ __forceinline__ void entries_write(uint32_t at, const damacy__u32x2* v)
    {
        damacy__u32x4 all;
        all.x = v[0].x;
        all.y = WIDE ? v[0].y : v[1].x;
        all.z = WIDE ? v[1].x : v[2 % TOGETHER].x;
        all.w = WIDE ? v[1].y : v[3 % TOGETHER].x;
        damacy__sts128(at, all);
    }
};

// Of a lane that walks: row addresses of the three states and the bit position, counted from the
// 16-byte boundary at or after the end of the stream.
struct damacy__fse_walk {
    uint32_t ll, ml, of, at;
};

struct damacy__fse_window {
    uint32_t w0, w1, w2;
};

// Addresses at which the places of a lane begin: its column in the tables (relative to a table) and
// its part of the ring. Passed through a shuffle so that the compiler keeps them in registers.
struct damacy__fse_lane {
    uint32_t column, ring;
};

template <class S> DAMACY__INLINE damacy__fse_lane damacy__fse_lane_init(uint32_t shared)
{
    const uint32_t lane = damacy__lane(), ring = shared + S::RING;
    damacy__fse_lane self;
    self.column = damacy__shfl(lane * S::ENTRY & ((1u << S::ROW_LOG) - 1), lane);
    self.ring = ring + (S::WIDE ? lane * 8 & (8 * S::LANES - 1) : lane * 4 & (4 * S::LANES - 1));
    self.ring = damacy__shfl(self.ring, lane);
    return self;
}

// Address of word `row` of the ring, given as a number shifted to S::RING_LOG.
template <class S> DAMACY__INLINE uint32_t damacy__fse_row_at(uint32_t row, uint32_t ring)
{
    return (row & S::RING_MASK) + ring;
}

// Address in the ring of the word with bit `at`.
template <class S> DAMACY__INLINE uint32_t damacy__fse_ring_at(uint32_t at, uint32_t ring)
{
    static_assert(S::RING_LOG >= 5, "a row of the ring has at least 8 words");
    return damacy__fse_row_at<S>(at << (S::RING_LOG - 5), ring);
}

template <class S> DAMACY__INLINE damacy__fse_window damacy__fse_window_load(uint32_t at)
{
    damacy__fse_window w;
    w.w0 = damacy__lds32(at);
    w.w1 = damacy__lds32(at + 4 * S::LANES);
    w.w2 = damacy__lds32(at + 8 * S::LANES);
    return w;
}

// The 64 bits from bit `at` on.
template <class S> DAMACY__INLINE damacy__u32x2 damacy__fse_bits_load(uint32_t at, uint32_t ring)
{
    damacy__u32x2 bits; // {low, high word}
    if (S::WIDE) {
        const damacy__u32x2 v = damacy__lds64((at * S::STEP & S::WINDOW_MASK) + ring);
        const damacy__u32x2 w = damacy__lds64(((at + 32) * S::STEP & S::WINDOW_MASK) + ring);
        bits.y = damacy__funnel_left(v.x, v.y, at & 15);
        bits.x = damacy__funnel_left(w.x, v.x, at & 15);
    } else {
        const damacy__fse_window v = damacy__fse_window_load<S>(damacy__fse_ring_at<S>(at, ring));
        bits.y = damacy__funnel_left(v.w1, v.w0, at);
        bits.x = damacy__funnel_left(v.w2, v.w1, at);
    }
    return bits;
}

DAMACY__INLINE void damacy__fse_queue_write(uint32_t at, uint32_t hi, uint32_t lo, uint32_t codes,
                                            uint32_t of)
{
    damacy__u32x4 v;
    v.x = hi;
    v.y = lo;
    v.z = codes;
    v.w = of;
    damacy__sts128(at, v);
}

// An entry in parts: the number of extra bits, that of bits of the next state, and its base.
struct damacy__fse_entry {
    uint32_t extra, width, base;
};

// Of an entry of a table of the narrow shape.
template <class S> DAMACY__INLINE damacy__fse_entry damacy__fse_entry_parts(uint32_t v)
{
    damacy__fse_entry e;
    e.width = v & 31;
    e.extra = (v >> 24) - e.width;
    e.base = v & S::MASK;
    return e;
}

// Takes the next state from the top bits of x.
template <class S>
DAMACY__INLINE uint32_t damacy__fse_next(const damacy__fse_entry* e, uint32_t* x, uint32_t column)
{
    const uint32_t bits = e->width ? *x >> (32 - e->width) : 0;
    *x <<= e->width;
    return e->base | bits << S::ROW_LOG | column;
}

// A store of the lanes that walk, see damacy__fse_sts32_if.
#ifdef __CUDACC__
DAMACY__INLINE void damacy__fse_sts128_if(bool here, uint32_t at, uint32_t x, uint32_t y,
                                          uint32_t z, uint32_t w)
{
    asm volatile(
        "{.reg .pred p; setp.ne.u32 p,%5,0; @p st.shared.v4.u32 [%0],{%1,%2,%3,%4};}" ::"r"(at),
        "r"(x), "r"(y), "r"(z), "r"(w), "r"((uint32_t)here)
        : "memory");
}
#else
DAMACY__INLINE void damacy__fse_sts128_if(bool here, uint32_t at, uint32_t x, uint32_t y,
                                          uint32_t z, uint32_t w)
{
    if (here)
        damacy__fse_queue_write(at, x, y, z, w);
}
#endif

// a + b, computed before what it is used for: a sum of four would wait for all of them.
DAMACY__INLINE uint32_t damacy__fse_sum(uint32_t a, uint32_t b)
{
#ifdef __CUDACC__
    uint32_t sum;
    asm("add.u32 %0,%1,%2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
#else
    return a + b;
#endif
}

// What a step begins with: four words from the one with the position on, and entries.
struct damacy__fse_inputs {
    uint32_t word[4];
    uint32_t ll, ml, of;
};

template <class S>
DAMACY__INLINE void damacy__fse_walk_entries(damacy__fse_inputs* e, const damacy__fse_walk* w,
                                             uint32_t shared)
{
    e->ll = damacy__lds32(shared + S::LL + w->ll);
    e->ml = damacy__lds32(shared + S::ML + w->ml);
    e->of = damacy__lds32(shared + S::OF + w->of);
}

// Address of the word two behind that with bit `at`.
template <class S>
DAMACY__INLINE uint32_t damacy__fse_walk_behind(uint32_t at, uint32_t shared, uint32_t column)
{
    return shared + S::RING + (((at + 64) * S::STEP & S::RING_MASK) | column);
}

template <class S>
DAMACY__INLINE void damacy__fse_walk_load(damacy__fse_inputs* e, const damacy__fse_walk* w,
                                          uint32_t shared, uint32_t column)
{
    const uint32_t at = shared + S::RING + ((w->at * S::STEP & S::RING_MASK) | column);
    const uint32_t behind = damacy__fse_walk_behind<S>(w->at, shared, column);
    e->word[0] = damacy__lds32(at);
    e->word[1] = damacy__lds32(at + 4 * S::LANES);
    e->word[2] = damacy__lds32(behind);
    e->word[3] = damacy__lds32(behind + 4 * S::LANES);
    damacy__fse_walk_entries<S>(e, w, shared);
}

// The first two words after a move of less than 64 bits: of one word if the lowest bit that counts
// words has changed, else of two if the next one has.
DAMACY__INLINE void damacy__fse_words_move(uint32_t (&to)[4], const uint32_t (&w)[4],
                                           uint32_t before, uint32_t at)
{
#ifdef __CUDACC__
    asm("{.reg .pred one,two; .reg .u32 t,changed; xor.b32 changed,%6,%7;"
        " and.b32 t,changed,32; setp.ne.u32 one,t,0; and.b32 t,changed,64; setp.ne.u32 two,t,0;"
        " selp.u32 %0,%4,%2,two; selp.u32 %1,%5,%3,two;"
        " selp.u32 %0,%3,%0,one; selp.u32 %1,%4,%1,one;}"
        : "=&r"(to[0]), "=&r"(to[1])
        : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(before), "r"(at));
#else
    const uint32_t changed = before ^ at, n = changed & 32 ? 1 : changed & 64 ? 2 : 0;
    to[0] = w[n];
    to[1] = w[n + 1];
#endif
}

// One batch for sequences of at most 64 - ROW_LOG bits; false if one was larger, and then states
// and queue are rubbish. About 32 instructions a step: every one counts, and so does when the loads
// are issued, which a step waits for. Of the window two words are those of the step before, moved.
// The chain: entry, sum, two shifts, a shift, select. Bits end where the next position is, so that
// the next states come last; three widths and ROW_LOG may be 33 bits. The order of what follows the
// sums is that of many which the compiler makes the shortest step of.
template <class S>
DAMACY__INLINE bool damacy__fse_walk_fast(bool here, damacy__fse_walk* walk,
                                          damacy__fse_inputs* inputs, uint32_t shared,
                                          uint32_t column, uint32_t queue)
{
    constexpr uint32_t R = S::ROW_LOG, LESS = 0xff000000u; // by the last byte
    uint32_t negative = 0, before = 0;
    damacy__fse_walk w = *walk;
    damacy__fse_inputs next = *inputs;

    DAMACY__UNROLL for (uint32_t k = 0; k < S::BATCH; k++)
    {
        const damacy__fse_inputs e = next;
        const uint32_t at = w.at;
        const uint32_t hi = damacy__funnel_left(e.word[1], e.word[0], at);
        const uint32_t lo = damacy__funnel_left(e.word[2], e.word[1], at);
        const uint32_t down =
            damacy__dot4(e.ll, LESS, damacy__dot4(e.ml, LESS, damacy__dot4(e.of, LESS, 64 - R)));
        const uint32_t both = e.of + e.ml;
        const uint64_t bits = damacy__fse_shift_right(lo, hi, down);
        const uint32_t x = (uint32_t)bits, above = (uint32_t)(bits >> 32);
        w.at = at + (64 - R) - down;
        w.of = (x & damacy__mask_bits(R, e.of)) | ((e.of & S::MASK_OF) | column);
        w.ml = (damacy__funnel_right(x, 0, e.of) & damacy__mask_bits(R, e.ml)) |
               ((e.ml & S::MASK) | column);
        w.ll = (damacy__funnel_right(x, above, both) & damacy__mask_bits(R, e.ll)) |
               ((e.ll & S::MASK) | column);
        if (k & 1)
            negative |= before | down;
        before = down;
        damacy__fse_sts128_if(here, queue + k * 16 * S::LANES, at, e.ll, e.ml, e.of);
        if (k + 1 < S::BATCH)
            damacy__fse_walk_entries<S>(&next, &w, shared);
        damacy__fse_words_move(next.word, e.word, at, w.at);
        const uint32_t behind = damacy__fse_walk_behind<S>(w.at, shared, column);
        next.word[3] = damacy__lds32(behind + 4 * S::LANES);
        next.word[2] = damacy__lds32(behind);
    }
    *walk = w;
    *inputs = next;
    return (int32_t)negative >= 0;
}

// The same from the first place of the queue, exact whatever the widths; returns {position,
// states}. Kept out of the way of the walk.
template <class S>
static __device__ __noinline__ damacy__u32x4 damacy__fse_walk_careful(uint32_t shared,
                                                                      uint32_t column,
                                                                      uint32_t ring, uint32_t queue)
{
    damacy__u32x4 after = {0, column, column, column};
    damacy__u32x4 q = damacy__lds128(queue);
    DAMACY__NOUNROLL for (uint32_t k = 0; k < S::BATCH; k++)
    {
        const damacy__fse_entry l = damacy__fse_entry_parts<S>(q.y);
        const damacy__fse_entry m = damacy__fse_entry_parts<S>(q.z);
        const damacy__fse_entry o = damacy__fse_entry_parts<S>(q.w);
        damacy__sts128(queue + k * 16 * S::LANES, q);
        const uint32_t at = q.x + l.extra + m.extra + o.extra;
        uint32_t x = damacy__fse_bits_load<S>(at, ring).y;
        after.x = q.x = at + l.width + m.width + o.width;
        after.y = damacy__fse_next<S>(&l, &x, column);
        after.z = damacy__fse_next<S>(&m, &x, column);
        after.w = damacy__fse_next<S>(&o, &x, column);
        q.y = damacy__lds32(shared + S::LL + after.y);
        q.z = damacy__lds32(shared + S::ML + after.z);
        q.w = damacy__lds32(shared + S::OF + after.w);
    }
    return after;
}

// Walks batch `batch` of a block of n sequences; all lanes. What the next batch begins with is
// loaded before the barrier, so that it does not wait for both, but after the branch, which would
// wait for it. No vote: it takes longer than a branch.
template <class S>
DAMACY__INLINE void damacy__fse_walk_batch(damacy__fse_walk* w, damacy__fse_inputs* inputs,
                                           uint32_t shared, damacy__fse_lane self, uint32_t n,
                                           uint32_t batch)
{
    const uint32_t lane = damacy__lane();
    const uint32_t queue = shared + S::QUEUE + (batch & 1) * S::QUEUE_SIZE + lane * 16;
    const bool is_lane = S::LANES == 32 || lane < S::LANES;
    const bool good = damacy__fse_walk_fast<S>(is_lane, w, inputs, shared, self.column, queue);
    if (!good && n > batch * S::BATCH) {
        const damacy__u32x4 after =
            damacy__fse_walk_careful<S>(shared, self.column, self.ring, queue);
        w->at = after.x;
        w->ll = after.y;
        w->ml = after.z;
        w->of = after.w;
        damacy__fse_walk_load<S>(inputs, w, shared, self.column);
    } else {
        damacy__fse_walk_entries<S>(inputs, w, shared);
    }
}

// ---- input: what the feeder puts into the ring

// Of a lane that feeds: the next 16 bytes end at `end` (a multiple of 16); the stream is [lo, hi).
struct damacy__fse_feed {
    uint64_t end, lo, hi;
    uint32_t filled, pending; // words in the ring, chunks loaded and not yet stored
    damacy__u32x4 chunk[4];
    damacy__u32x2 last; // the last two words in the ring
};

// The 16 bytes that end at `end`, a chunk across an edge of the stream: those outside are 0 and are
// not read. Kept small: it runs twice a stream, and the feeder shares the instruction cache
// (damacy__load_u32x4_within here: the stage takes 4 % longer).
static __device__ __noinline__ damacy__u32x4 damacy__fse_chunk_edge(uint64_t lo, uint64_t hi,
                                                                    uint64_t end)
{
    damacy__u32x4 v = {0, 0, 0, 0};
    if (end <= lo)
        return v;
    DAMACY__NOUNROLL for (uint32_t i = 1; i <= 16; i++)
    {
        const uint64_t at = end - i;
        const uint32_t byte = at >= lo && at < hi ? *(const uint8_t*)(uintptr_t)at : 0;
        v.w = v.w << 8 | v.z >> 24;
        v.z = v.z << 8 | v.y >> 24;
        v.y = v.y << 8 | v.x >> 24;
        v.x = v.x << 8 | byte;
    }
    return v;
}

DAMACY__INLINE bool damacy__fse_chunk_inside(const damacy__fse_feed* f, uint64_t end)
{
    return end - 16 >= f->lo && end <= f->hi;
}

// Loads the 16 bytes that end at `end` if `wanted`. One instruction, so that nothing waits for it
// before the chunk is stored, a batch later.
DAMACY__INLINE void damacy__fse_chunk_load(damacy__u32x4* v, uint64_t end, bool wanted)
{
#ifdef __CUDACC__
    asm volatile("{.reg .pred p; setp.ne.u32 p,%5,0;"
                 " @p ld.global.nc" DAMACY__AHEAD ".v4.u32 {%0,%1,%2,%3},[%4];}"
                 : "+r"(v->x), "+r"(v->y), "+r"(v->z), "+r"(v->w)
                 : "l"(end - 16), "r"((uint32_t)wanted));
#else
    if (wanted)
        *v = *(const damacy__u32x4*)(uintptr_t)(end - 16);
#endif
}

template <class S>
DAMACY__INLINE void damacy__fse_chunk_store(uint32_t filled, damacy__u32x4 v, damacy__u32x2 last,
                                            uint32_t ring)
{
    const uint32_t at = damacy__fse_row_at<S>(filled << S::RING_LOG, ring);
    if (!S::WIDE) {
        damacy__sts32(at, v.w);
        damacy__sts32(at + 4 * S::LANES, v.z);
        damacy__sts32(at + 8 * S::LANES, v.y);
        damacy__sts32(at + 12 * S::LANES, v.x);
        if (at == ring) { // the two rows after the last repeat the first two
            damacy__sts32(ring + S::RING_WORDS * 4 * S::LANES, v.w);
            damacy__sts32(ring + (S::RING_WORDS + 1) * 4 * S::LANES, v.z);
        }
    } else {
        // Words k - 2 ... k + 3: what begins in the first four is complete now.
        const uint32_t words[6] = {last.x, last.y, v.w, v.z, v.y, v.x};
        DAMACY__UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            const uint32_t to = damacy__fse_row_at<S>((filled + i - 2) << S::RING_LOG, ring);
            damacy__sts64(to, words[i + 1], words[i]);
            damacy__sts64(to + S::ENTRY * S::LANES,
                          damacy__funnel_left(words[i + 2], words[i + 1], 16),
                          damacy__funnel_left(words[i + 1], words[i], 16));
        }
    }
}

// Chunks on their way to the ring: n from word `first` on. In the narrow shape `end` of a feeder
// stays where the stream ends, word 0.
struct damacy__fse_flight {
    uint32_t first, n;
    damacy__u32x4 chunk[4];
};

DAMACY__INLINE uint64_t damacy__fse_word_end(const damacy__fse_feed* f, uint32_t word)
{
    return f->end - 4ull * word;
}

DAMACY__INLINE void damacy__fse_flight_load(damacy__fse_flight* c, const damacy__fse_feed* f,
                                            uint32_t first, uint32_t n)
{
    DAMACY__UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        const uint64_t end = damacy__fse_word_end(f, first + 4 * i);
        damacy__fse_chunk_load(&c->chunk[i], end, i < n && damacy__fse_chunk_inside(f, end));
    }
    c->first = first;
    c->n = n;
}

template <class S>
DAMACY__INLINE void damacy__fse_flight_store(damacy__fse_flight* c, const damacy__fse_feed* f,
                                             uint32_t ring)
{
    const damacy__u32x2 none = {0, 0};

    DAMACY__UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        if (i < c->n) {
            const uint64_t end = damacy__fse_word_end(f, c->first + 4 * i);
            if (!damacy__fse_chunk_inside(f, end))
                c->chunk[i] = damacy__fse_chunk_edge(f->lo, f->hi, end);
            damacy__fse_chunk_store<S>(c->first + 4 * i, c->chunk[i], none, ring);
        }
    }
    c->n = 0;
}

// Words that four batches from position `at` may use, in whole chunks: what a step asks for is
// stored two steps later and used by the batch after that, which loads four words of the next.
template <class S> DAMACY__INLINE uint32_t damacy__fse_want(uint32_t at)
{
    return ((at >> 5) + (4 * S::BATCH * 89 + 31) / 32 + 4 + 3) & ~3u;
}

// Fills the ring with 16 words from every `step` on of [first, end) and waits for them: at the
// start, where warps share the work, and after very wide sequences.
template <class S>
static __device__ __noinline__ void damacy__fse_feed_now(uint64_t stream_end, uint64_t lo,
                                                         uint64_t hi, uint32_t first, uint32_t end,
                                                         uint32_t step, uint32_t ring)
{
    damacy__fse_feed f;
    damacy__fse_flight c;
    f.end = stream_end;
    f.lo = lo;
    f.hi = hi;
    for (uint32_t word = first; word < end; word += step) {
        damacy__fse_flight_load(&c, &f, word, damacy__min((end - word) / 4, 4));
        damacy__fse_flight_store<S>(&c, &f, ring);
    }
}

// The first half of a step: stores what was asked for two steps before, and so many of the words
// [first, end) that may be used now that at most 16 are left. Returns the first of these.
template <class S>
DAMACY__INLINE uint32_t damacy__fse_feed_store(const damacy__fse_feed* f, damacy__fse_flight* c,
                                               uint32_t first, uint32_t end, uint32_t ring)
{
    damacy__fse_flight_store<S>(c, f, ring);
    if (end - first <= 16)
        return first;
    damacy__fse_feed_now<S>(f->end, f->lo, f->hi, first, end - 16, 16, ring);
    return end - 16;
}

// The second half, for which nobody waits.
DAMACY__INLINE void damacy__fse_feed_load(const damacy__fse_feed* f, damacy__fse_flight* c,
                                          uint32_t first, uint32_t end)
{
    damacy__fse_flight_load(c, f, first, (end - first) / 4);
    const uint64_t ahead = damacy__fse_word_end(f, end);
    if (ahead >= f->lo + 1024 && ahead <= f->hi)
        damacy__prefetch_l2((const void*)(uintptr_t)(ahead - 1024));
}
