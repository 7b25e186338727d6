// The serial part of sequence decoding (RFC 8878 section 3.1.1.3.2): state walks. A lane walks one
// block; what a step consumes goes to a queue as {64-bit window, codes and extra bits of the three
// states}, and nothing else is done here, because the walk is what the whole stage waits for. The
// walk of the wide shape is in zstd_fse_wide.cuh.
//
// Surprising: bits are never checked while walking. A lane that leaves its stream reads zeros or
// the bits of an old batch, and every table entry leads to an entry of the same table, so it stays
// in bounds; the position after the last sequence shows it.
#pragma once

#include "kernels/zstd_fse_table.cuh"

// Loads that stay in the order in which they are written: the walk waits for them in that order.
#ifdef __CUDACC__
DAMACY__INLINE uint32_t damacy__fse_lds32(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.volatile.shared.u32 %0,[%1];" : "=r"(v) : "r"(at));
    return v;
}
#else
#define damacy__fse_lds32 damacy__lds32
#endif

// Low word of hi:lo >> s, 0 where s > 63: the shift of a step that is repeated with care may be
// wild.
DAMACY__INLINE uint32_t damacy__fse_shift_right(uint32_t lo, uint32_t hi, uint32_t s)
{
#ifdef __CUDACC__
    uint64_t v;
    asm("shr.b64 %0,%1,%2;" : "=l"(v) : "l"((uint64_t)hi << 32 | lo), "r"(s));
    return (uint32_t)v;
#else
    return s > 63 ? 0u : (uint32_t)(((uint64_t)hi << 32 | lo) >> s);
#endif
}

// High word of hi:lo << s, s < 64.
DAMACY__INLINE uint32_t damacy__fse_shift_left(uint32_t lo, uint32_t hi, uint32_t s)
{
    return (uint32_t)((((uint64_t)hi << 32 | lo) << s) >> 32);
}

// How the shared memory of a CTA is laid out: bytes of a table entry, log2 of the bytes of a row,
// and sequences between two barriers. A row holds one entry of every block, so lanes never share a
// bank and a state is the byte address of its entry.
//
//   entry of 4 bytes    a | (a + width) << 8 | code << 16 | base << (BASE_SHIFT + ROW_LOG); of an
//                       offset, whose code is a, with the column of its lane << BASE_SHIFT instead
//   entry of 8 bytes    {a + width (LL: 64 - ROW_LOG - a - width),
//                        width | base << ROW_LOG | a << 16 | code << 24}
//
// where a is the number of extra bits, width the number of bits of the next state and base its
// smallest value, always a multiple of 1 << width.
template <int ENTRY_, int ROW_LOG_, int BATCH_> struct damacy__fse_shape {
    static constexpr uint32_t ENTRY = ENTRY_, ROW_LOG = ROW_LOG_, BATCH = BATCH_;
    static constexpr uint32_t LANES = (1u << ROW_LOG) / ENTRY;
    static constexpr uint32_t TOGETHER = 16 / ENTRY; // tables that a warp builds at once
    static constexpr bool WIDE = ENTRY >= 8;
    static constexpr uint32_t BASE_SHIFT = ROW_LOG < 6 ? 22 - ROW_LOG : 16;
    static constexpr uint32_t MASK = 0x1ffu << ROW_LOG, MASK_OF = 0xffu << ROW_LOG;

    // Ring of big-endian words of a lane: three batches of sequences of 89 bits and, in the narrow
    // shape, the one before, whose windows are looked at once more. In the wide shape
    // it holds the 64 bits {low word, high word} from every 16th bit on, so that one load makes a
    // window, in rows of all lanes.
    static constexpr uint32_t RING_WORDS = 16 * BATCH, RING_LOG = WIDE ? ROW_LOG + 1 : ROW_LOG;
    static constexpr uint32_t RING_MASK = (RING_WORDS - 1) << RING_LOG;
    static constexpr uint32_t WINDOW_MASK = (2 * RING_WORDS - 1) << ROW_LOG; // wide shape
    static constexpr uint32_t UNIT = (1u << ROW_LOG) / 16;                   // of a row, a bit
    static constexpr uint32_t RING_SIZE =
        WIDE ? RING_WORDS * 16 * LANES : (RING_WORDS + 2) * 4 * LANES;
    static constexpr uint32_t QUEUE_SIZE = BATCH * 16 * LANES; // one part
    static constexpr uint32_t QUEUE_PARTS = WIDE ? 4 : 2;
    static constexpr uint32_t RECORDS_SIZE = BATCH * 16 * LANES; // one part: 2 records a sequence
    static constexpr uint32_t RECORDS_PARTS = WIDE ? 4 : 2;
    static constexpr uint32_t RECORDS_LANE = BATCH * 16;

    // Places in shared memory.
    static constexpr uint32_t CONSTANTS = 0;  // 94 words
    static constexpr uint32_t CONTROL = 384;  // plan, group: 28 bytes
    static constexpr uint32_t POSITION = 416; // 2 x u32 a lane
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
    static_assert(WIDE || RING_WORDS >= 4 * BATCH * 89 / 32 + 12, "ring"); // and some to spare
    static_assert(LANES <= 32 && (BATCH == 8 || BATCH == 16 || (WIDE && BATCH == 32)), "shape");

    static __device__ __forceinline__ uint32_t table_at(uint32_t table)
    {
        return table == DAMACY__ZSTD_LL ? LL : table == DAMACY__ZSTD_OF ? OF : ML;
    }

    // What the entries of a symbol have in common, and one of them.
    static __device__ __forceinline__ uint32_t entry_kind(uint32_t table, uint32_t column,
                                                          uint32_t extra, uint32_t code)
    {
        if (WIDE)
            return extra << 16 | code << 24;
        return extra | extra << 8 | (table == DAMACY__ZSTD_OF ? column << BASE_SHIFT : code << 16);
    }
    static __device__ __forceinline__ damacy__u32x2 entry_of(uint32_t table, uint32_t kind,
                                                             uint32_t width, uint32_t base)
    {
        const uint32_t taken = (kind >> 16 & 255) + width; // wide shape
        damacy__u32x2 v;
        v.x = table == DAMACY__ZSTD_LL ? 64 - ROW_LOG - taken : taken;
        v.y = kind | width | base << ROW_LOG;
        if (!WIDE)
            v.x = v.y = kind + (width << 8) + (base << (BASE_SHIFT + ROW_LOG));
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
    w.w0 = damacy__fse_lds32(at);
    w.w1 = damacy__fse_lds32(at + 4 * S::LANES);
    w.w2 = damacy__fse_lds32(at + 8 * S::LANES);
    return w;
}

// The 64 bits from bit `at` on.
template <class S> DAMACY__INLINE damacy__u32x2 damacy__fse_bits_load(uint32_t at, uint32_t ring)
{
    damacy__u32x2 bits; // {low, high word}
    if (S::WIDE) {
        const damacy__u32x2 v = damacy__lds64((at * S::UNIT & S::WINDOW_MASK) + ring);
        const damacy__u32x2 w = damacy__lds64(((at + 32) * S::UNIT & S::WINDOW_MASK) + ring);
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

// An entry in parts. `packed`: extra bits in byte 0, code, but not of an offset, in the low 6 bits
// of byte 2.
struct damacy__fse_entry {
    uint32_t extra, width, base, packed;
};

template <class S> DAMACY__INLINE damacy__fse_entry damacy__fse_entry_load(uint32_t at)
{
    damacy__fse_entry e;
    if (S::WIDE) {
        const uint32_t v = damacy__lds64(at).y;
        e.extra = v >> 16 & 255;
        e.width = v & 31;
        e.base = v & S::MASK;
        e.packed = e.extra | v >> 24 << 16;
    } else {
        const uint32_t v = damacy__lds32(at);
        e.extra = v & 255;
        e.width = (v >> 8 & 255) - e.extra;
        e.base = v >> S::BASE_SHIFT & S::MASK;
        e.packed = v;
    }
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

// What fills a batch after the last sequence: literal length code 0, match length code 57, which
// stands for nothing (see DAMACY__FSE_WORDS), and repeat offset 2.
#define DAMACY__FSE_FILLER 0x390000u

// One batch, exact whatever the widths. `end` receives the position after sequence `last`, whose
// next states do not exist, when it is in the batch.
template <class S>
static __device__ void damacy__fse_walk_careful(damacy__fse_walk* w, uint32_t shared,
                                                damacy__fse_lane self, uint32_t queue,
                                                uint32_t last, uint32_t* end)
{
    DAMACY__NOUNROLL for (uint32_t k = 0; k < S::BATCH; k++)
    {
        const damacy__fse_entry l = damacy__fse_entry_load<S>(shared + S::LL + w->ll);
        const damacy__fse_entry m = damacy__fse_entry_load<S>(shared + S::ML + w->ml);
        const damacy__fse_entry o = damacy__fse_entry_load<S>(shared + S::OF + w->of);
        damacy__fse_queue_write(queue + k * 16 * S::LANES, w->at, k > last ? 0 : l.packed,
                                k > last ? DAMACY__FSE_FILLER : m.packed, k > last ? 0 : o.packed);
        w->at += l.extra + m.extra + o.extra;
        if (k == last)
            *end = w->at;
        uint32_t x = damacy__fse_bits_load<S>(w->at, self.ring).y;
        w->ll = damacy__fse_next<S>(&l, &x, self.column);
        w->ml = damacy__fse_next<S>(&m, &x, self.column);
        w->of = damacy__fse_next<S>(&o, &x, self.column);
        w->at += l.width + m.width + o.width;
    }
}

// One batch for sequences of at most 64 bits; false if one was larger, and then states and queue
// are rubbish. 33 instructions a step: every one counts. Entries are loaded first: there is work to
// do with them until the window is there. That goes to the queue as its position, as the extracting
// warps have time to look it up again.
template <class S>
DAMACY__INLINE bool damacy__fse_walk_fast(damacy__fse_walk* w, uint32_t shared,
                                          damacy__fse_lane self, uint32_t queue)
{
    constexpr uint32_t R = S::ROW_LOG;
    uint32_t ll = w->ll, ml = w->ml, of = w->of, c = w->at, overflow = 0, widest = 0;
    uint32_t row = c << (R - 5); // of c in the ring

    DAMACY__UNROLL for (uint32_t k = 0; k < S::BATCH; k++)
    {
        const uint32_t el = damacy__fse_lds32(shared + S::LL + ll);
        const uint32_t em = damacy__fse_lds32(shared + S::ML + ml);
        const uint32_t eo = damacy__fse_lds32(shared + S::OF + of);
        const damacy__fse_window v =
            damacy__fse_window_load<S>(shared + S::RING + ((row & S::RING_MASK) | self.column));
        const uint32_t hi = damacy__funnel_left(v.w1, v.w0, c);
        const uint32_t lo = damacy__funnel_left(v.w2, v.w1, c);
        damacy__fse_queue_write(queue + k * 16 * S::LANES, c, el, em, eo);
        const uint32_t sum = el + em + eo, next = damacy__dot4(sum, 0x100, c);
        const uint32_t nl = damacy__dot4(el, 0x1ff, R); // R + width
        const uint32_t nm = damacy__dot4(em, 0x1ff, nl), no = damacy__dot4(eo, 0x1ff, nm);
        const uint32_t x = damacy__fse_shift_left(lo, hi, sum & 255);
        ll = (damacy__funnel_left(x, 0, nl) & (0xffffffffu << R)) | // the top bits of x
             ((el >> S::BASE_SHIFT & S::MASK) | self.column);
        ml = (damacy__funnel_left(x, 0, nm) & damacy__mask_bits(R, nm - nl)) |
             ((em >> S::BASE_SHIFT & S::MASK) | self.column);
        of = (damacy__funnel_left(x, 0, no) & damacy__mask_bits(R, no - nm)) | eo >> S::BASE_SHIFT;
        overflow |= no;
        widest = damacy__max(widest, next - c);
        row = damacy__dot4(sum, 0x100u << (R - 5), row);
        c = next;
    }
    w->ll = ll;
    w->ml = ml;
    w->of = of;
    w->at = c;
    return !(overflow & 32) && widest <= 64;
}

// Puts what fills a batch after sequence `last` of one that was walked fast. Returns the position
// after that sequence.
template <class S> DAMACY__INLINE uint32_t damacy__fse_walk_end(uint32_t queue, uint32_t last)
{
    const damacy__u32x4 v = damacy__lds128(queue + last * 16 * S::LANES);

    DAMACY__NOUNROLL for (uint32_t k = last + 1; k < S::BATCH; k++)
        damacy__fse_queue_write(queue + k * 16 * S::LANES, v.x, 0, DAMACY__FSE_FILLER, 0);
    return v.x + (v.y & 255) + (v.z & 255) + (v.w & 255);
}

// Walks batch `batch` of a block of n sequences and publishes the position; all lanes.
template <class S>
DAMACY__INLINE void damacy__fse_walk_batch(damacy__fse_walk* w, uint32_t shared,
                                           damacy__fse_lane self, uint32_t n, uint32_t batch,
                                           uint32_t* end)
{
    const uint32_t lane = damacy__lane(), done = batch * S::BATCH, last = n - done - 1;
    const uint32_t queue = shared + S::QUEUE + (batch & 1) * S::QUEUE_SIZE + lane * 16;
    const damacy__fse_walk before = *w;
    const bool here = S::LANES == 32 || lane < S::LANES;
    const bool good = here && damacy__fse_walk_fast<S>(w, shared, self, queue);
    const bool is_wide = here && !good && n > done, is_last = here && last < S::BATCH;
    if (damacy__any(is_wide || is_last)) { // the same for all lanes: a warp that stays together
        if (is_wide) {
            *w = before;
            damacy__fse_walk_careful<S>(w, shared, self, queue, last, end);
        } else if (is_last) {
            *end = damacy__fse_walk_end<S>(queue, last);
        }
        damacy__sync_warp();
    }
    if (here)
        damacy__sts32(shared + S::POSITION + ((batch + 1) & 1) * 4 * S::LANES + lane * 4, w->at);
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
// not read. Kept small: it runs twice a stream, and the feeder shares the instruction cache.
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
                 " @p ld.global.nc.v4.u32 {%0,%1,%2,%3},[%4];}"
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

template <class S> DAMACY__INLINE void damacy__fse_feed_store(damacy__fse_feed* f, uint32_t ring)
{
    DAMACY__UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        if (i < f->pending) {
            if (!damacy__fse_chunk_inside(f, f->end - 16 * i))
                f->chunk[i] = damacy__fse_chunk_edge(f->lo, f->hi, f->end - 16 * i);
            damacy__fse_chunk_store<S>(f->filled + 4 * i, f->chunk[i], f->last, ring);
            f->last.x = f->chunk[i].y;
            f->last.y = f->chunk[i].x;
        }
    }
    f->filled += 4 * f->pending;
    f->end -= 16 * f->pending;
    f->pending = 0;
}

DAMACY__INLINE void damacy__fse_feed_load(damacy__fse_feed* f, uint32_t n)
{
    DAMACY__UNROLL for (uint32_t i = 0; i < 4; i++) damacy__fse_chunk_load(
        &f->chunk[i], f->end - 16 * i, i < n && damacy__fse_chunk_inside(f, f->end - 16 * i));
    f->pending = n;
}

// Stores what the last call loaded, then loads what three batches from position `at` may use; more
// than 16 words only after very wide sequences or at the start, and then they are waited for.
template <class S>
DAMACY__INLINE void damacy__fse_feed_step(damacy__fse_feed* f, uint32_t at, uint32_t ring)
{
    const uint32_t want = (at >> 5) + (3 * S::BATCH * 89 + 31) / 32 + 3;

    damacy__fse_feed_store<S>(f, ring);
    while ((int32_t)(want - f->filled) > 16) {
        damacy__fse_feed_load(f, 4);
        damacy__fse_feed_store<S>(f, ring);
    }
    const int32_t need = (int32_t)(want - f->filled);
    damacy__fse_feed_load(f, need > 0 ? (uint32_t)(need + 3) / 4 : 0);
    if (f->end >= f->lo + 1024 && f->end <= f->hi)
        damacy__prefetch_l2((const void*)(uintptr_t)(f->end - 1024));
}
