// Huffman-coded literals (RFC 8878 section 4.2.2): tables, and one stream per lane.
//
// A stream is read backwards through a ring of 32 words a lane in shared memory, word-interleaved
// over the warp (no bank conflicts), filled by 32-byte granules; one granule at most is loaded per
// round of 32 symbols, at one point for all lanes, so that decoding hides the latency. Table
// entries are {bits : 8, symbol : 8}: the entry itself is the shift amount of a funnel shift. The
// surprising rule: nothing is checked while decoding. Trip counts come from the header, indices are
// in range by construction, bytes outside the job read as zero, and one comparison at the end (bits
// used = bits there) finds every corruption.
#pragma once

#include "kernels/zstd_huffman_table.cuh"

#define DAMACY__ZSTD_RING_WORDS 35u // 32 and 3 mirrored
#define DAMACY__ZSTD_RING_SIZE  (DAMACY__ZSTD_RING_WORDS * 128u)
#define DAMACY__ZSTD_STAGE_SIZE 1024u // output of a warp: 32 bytes a lane
static_assert(DAMACY__ZSTD_LANE_SIZE == DAMACY__ZSTD_RING_SIZE + DAMACY__ZSTD_STAGE_SIZE,
              "host's view");

// A reader of one stream. Bit positions count down from `top`, the first 32-byte boundary at or
// above the end of the stream.
typedef struct damacy__zstd_stream {
    uint32_t at;     // bits used
    uint32_t mask;   // 255, or 0 to freeze `at`
    uint32_t filled; // granules in the ring so far
    uint32_t n;      // granules of the stream
    uint32_t ring;   // shared address of the lane's column
    uint32_t table;  // shared address of the table, a multiple of its size
    uint64_t top;    // address
    uint64_t lo, hi; // bytes that may be read: the job's source
} damacy__zstd_stream;

typedef struct damacy__zstd_granule {
    damacy__u32x4 high, low;
} damacy__zstd_granule;

// True if the next granule lies inside the stream, so that it can be loaded without a check.
DAMACY__INLINE bool damacy__zstd_ring_ahead(const damacy__zstd_stream& s)
{
    return s.filled < (s.at >> 8) + 4 && s.filled + 1 < s.n && s.filled != 0;
}

// Loads the next granule if `on`. All lanes: the barrier behind the loads, behind which the stage
// may be written again, keeps the compiler from sinking them to their use.
DAMACY__INLINE damacy__zstd_granule damacy__zstd_granule_load(const damacy__zstd_stream& s, bool on)
{
    damacy__zstd_granule g;
    const uint64_t a = s.top - 32ull * s.filled;
#ifdef __CUDACC__
    asm volatile("{.reg .pred q; setp.ne.u32 q,%9,0;"
                 "@q ld.global" DAMACY__AHEAD ".v4.u32 {%0,%1,%2,%3},[%8+-16];"
                 "@q ld.global" DAMACY__AHEAD ".v4.u32 {%4,%5,%6,%7},[%8+-32];"
                 "bar.warp.sync 0xffffffff;}"
                 : "=&r"(g.high.x), "=&r"(g.high.y), "=&r"(g.high.z), "=&r"(g.high.w),
                   "=&r"(g.low.x), "=&r"(g.low.y), "=&r"(g.low.z), "=&r"(g.low.w)
                 : "l"(a), "r"((uint32_t)on)
                 : "memory");
#else
    g = damacy__zstd_granule{};
    damacy__sync_warp();
    if (on) {
        g.high = damacy__load_u32x4_once((const void*)(uintptr_t)(a - 16));
        g.low = damacy__load_u32x4_once((const void*)(uintptr_t)(a - 32));
    }
#endif
    return g;
}

DAMACY__INLINE void damacy__zstd_ring_put(damacy__zstd_stream& s, const damacy__zstd_granule& g)
{
    const uint32_t a = s.ring + ((s.filled & 3) << 10);

    damacy__sts32(a, g.high.w);
    damacy__sts32(a + 128, g.high.z);
    damacy__sts32(a + 256, g.high.y);
    damacy__sts32(a + 384, g.high.x);
    damacy__sts32(a + 512, g.low.w);
    damacy__sts32(a + 640, g.low.z);
    damacy__sts32(a + 768, g.low.y);
    damacy__sts32(a + 896, g.low.x);
    if ((s.filled & 3) == 0) { // a window may run over the end of the ring
        damacy__sts32(a + 4096, g.high.w);
        damacy__sts32(a + 4224, g.high.z);
        damacy__sts32(a + 4352, g.high.y);
    }
    s.filled++;
}

// Loads and stores the next granule; the first and the last may pass the ends of the source.
DAMACY__INLINE void damacy__zstd_ring_take(damacy__zstd_stream& s)
{
    const uint64_t a = s.top - 32ull * s.filled;
    damacy__zstd_granule g;

    if (a - 32 >= s.lo && a <= s.hi) {
        g.high = damacy__load_u32x4_once((const void*)(uintptr_t)(a - 16));
        g.low = damacy__load_u32x4_once((const void*)(uintptr_t)(a - 32));
    } else {
        g.high = damacy__load_u32x4_within(a - 16, s.lo, s.hi);
        g.low = damacy__load_u32x4_within(a - 32, s.lo, s.hi);
    }
    damacy__zstd_ring_put(s, g);
}

// Fills the ring as far as it goes.
DAMACY__INLINE void damacy__zstd_ring_fill(damacy__zstd_stream& s)
{
    while (s.filled < (s.at >> 8) + 4 && s.filled < s.n)
        damacy__zstd_ring_take(s);
}

// Makes sure of the next `bits` bits, at most 512.
DAMACY__INLINE void damacy__zstd_ring_need(damacy__zstd_stream& s, uint32_t bits)
{
    while (s.filled * 256 < s.at + bits && s.filled < s.n)
        damacy__zstd_ring_take(s);
}

DAMACY__INLINE void damacy__zstd_ring_start(damacy__zstd_stream& s)
{
    s.filled = s.at >> 8;
    damacy__zstd_ring_fill(s);
}

// Opens the stream [begin, end), not empty; sets the position at which it has to end. False if it
// has no end mark.
DAMACY__INLINE bool damacy__zstd_stream_open(damacy__zstd_stream& s, uint64_t begin, uint64_t end,
                                             uint32_t& target)
{
    const uint32_t last = *(const uint8_t*)(uintptr_t)(end - 1);

    s.top = (end + 31) & ~31ull;
    s.n = (uint32_t)((s.top - (begin & ~31ull)) >> 5);
    s.mask = 255;
    s.at = (uint32_t)(s.top - end) * 8 + (last ? damacy__clz(last) - 23 : 0);
    target = (uint32_t)(s.top - begin) * 8;
    return last != 0;
}

// The bits of x turned so that its top LOG bits are where a table's address has them.
template <int LOG> DAMACY__INLINE uint32_t damacy__zstd_turned(uint32_t x)
{
    return damacy__funnel_left(x, x, LOG + 1);
}

// The table's entry for a turned x. One more turn, by the entry, makes x ready for the next symbol:
// that is all that a symbol waits for besides the table.
template <int LOG> DAMACY__INLINE uint32_t damacy__zstd_entry(uint32_t table, uint32_t x)
{
    return damacy__lds16(table | (x & ((2u << LOG) - 2)));
}

// Look-ups that fit into 32 bits.
template <int LOG> struct damacy__zstd_per {
    static constexpr int N = 32 / LOG > 3 ? 3 : 32 / LOG;
};

// And those from one window: 64 bits are enough for six short ones.
template <int LOG> struct damacy__zstd_batch {
    static constexpr int N = 6 * LOG <= 64 ? 6 : 8;
    static constexpr bool LONG = N * LOG > 64; // 96 bits
};

// Bits of a stream in registers, the first ones in word[0].
typedef struct damacy__zstd_window {
    uint32_t word[3];
} damacy__zstd_window;

// N words of the stream from that with bit `at` on. FLAT: they lie one behind the other.
template <bool FLAT, int N>
DAMACY__INLINE void damacy__zstd_words(const damacy__zstd_stream& s, uint32_t at, uint32_t (&v)[5])
{
    const uint32_t a = s.ring + (FLAT ? at >> 3 & ~3u : (at & 0x3e0) << 2);

#pragma unroll
    for (uint32_t k = 0; k < (N == 5 && !FLAT ? 4 : N); k++)
        v[k] = damacy__lds32(a + (FLAT ? 4 : 128) * k);
    if (N == 5 && !FLAT) // three words are repeated behind the ring
        v[4] = damacy__lds32(s.ring + (((at + 128) & 0x3e0) << 2));
}

// The bits at s.at; LONG: 96 instead of 64 of them.
template <bool LONG, bool FLAT>
DAMACY__INLINE damacy__zstd_window damacy__zstd_window_at(const damacy__zstd_stream& s)
{
    uint32_t v[5] = {};
    damacy__zstd_words<FLAT, LONG ? 4 : 3>(s, s.at, v);
    const uint32_t w0 = v[0], w1 = v[1], w2 = v[2], w3 = v[3];
    damacy__zstd_window w;

    w.word[0] = damacy__funnel_left(w1, w0, s.at);
    w.word[1] = damacy__funnel_left(w2, w1, s.at);
    w.word[2] = damacy__funnel_left(w3, w2, s.at);
    return w;
}

// Drops the bits that the low five of `used` count, which becomes 0, and turns those that follow.
template <int LOG>
DAMACY__INLINE uint32_t damacy__zstd_window_next(damacy__zstd_window& w, uint32_t& used)
{
    w.word[0] = damacy__funnel_left(w.word[1], w.word[0], used);
    w.word[1] = damacy__funnel_left(w.word[2], w.word[1], used);
    w.word[2] = damacy__funnel_left(0, w.word[2], used);
    used = 0;
    return damacy__zstd_turned<LOG>(w.word[0]);
}

// One symbol.
template <int LOG> DAMACY__INLINE uint32_t damacy__zstd_symbol(damacy__zstd_stream& s)
{
    const damacy__zstd_window w = damacy__zstd_window_at<false, false>(s);
    const uint32_t e = damacy__zstd_entry<LOG>(s.table, damacy__zstd_turned<LOG>(w.word[0]));
    s.at += e & s.mask;
    return e >> 8;
}

// N look-ups from the window, and the window after them, whose bits are asked for two look-ups
// before its place is known, as they would take as long as those to come. LAST: none after them.
// Four words hold a window of 64 bits, five one of 96.
template <int LOG, int FIRST, int N, bool LAST, bool FLAT = false>
DAMACY__INLINE void damacy__zstd_some(damacy__zstd_stream& s, damacy__zstd_window& w,
                                      uint32_t (&entry)[32])
{
    constexpr int PER = damacy__zstd_per<LOG>::N;
    constexpr int WORDS = damacy__zstd_batch<LOG>::LONG ? 5 : 4;
    static_assert(N >= 2 && N * LOG <= (WORDS - 2) * 32, "window");
    uint32_t x = 0, sum = 0, used = 0, at = 0;
    uint32_t v[5] = {};

#pragma unroll
    for (int j = 0; j < N; j++) {
        if (j % PER == 0)
            x = damacy__zstd_window_next<LOG>(w, used);
        const uint32_t e = damacy__zstd_entry<LOG>(s.table, x);
        if (!LAST && j == N - 2) {
            at = s.at + (sum & s.mask);
            damacy__zstd_words<FLAT, WORDS>(s, at, v);
        }
        sum += e;
        used += e;
        entry[FIRST + j] = e;
        x = damacy__funnel_left(x, x, e);
    }
    s.at += sum & s.mask;
    if (!LAST) {
        const uint32_t more = entry[FIRST + N - 2] + entry[FIRST + N - 1]; // modulo 32
#pragma unroll
        for (int k = 0; k < WORDS - 1; k++)
            v[k] = damacy__funnel_left(v[k + 1], v[k], at);
#pragma unroll
        for (int k = 0; k < WORDS - 2; k++)
            w.word[k] = damacy__funnel_left(v[k + 1], v[k], more);
    }
}

// The symbols of 16 entries.
DAMACY__INLINE damacy__u32x4 damacy__zstd_symbols(const uint32_t* e)
{
    uint32_t out[4];
    damacy__u32x4 v;

#pragma unroll
    for (int k = 0; k < 4; k++) // byte 1 of each entry is the symbol
        out[k] = damacy__bytes(damacy__bytes(e[4 * k], e[4 * k + 1], 0x51),
                               damacy__bytes(e[4 * k + 2], e[4 * k + 3], 0x51), 0x5410);
    v.x = out[0];
    v.y = out[1];
    v.z = out[2];
    v.w = out[3];
    return v;
}

// 32 symbols to the lane's place in the stage.
template <int LOG>
DAMACY__INLINE void damacy__zstd_thirty_two(damacy__zstd_stream& s, uint32_t write)
{
    constexpr int N = damacy__zstd_batch<LOG>::N; // 6 or 8
    damacy__zstd_window w = damacy__zstd_window_at<damacy__zstd_batch<LOG>::LONG, false>(s);
    uint32_t e[32];

    damacy__zstd_some<LOG, 0, N, false>(s, w, e);
    damacy__zstd_some<LOG, N, N, false>(s, w, e);
    damacy__zstd_some<LOG, 2 * N, N, false>(s, w, e);
    damacy__zstd_some<LOG, N == 8 ? 24 : 18, N, N == 8>(s, w, e);
    if (N == 6) {
        damacy__zstd_some<LOG, 24, 6, false>(s, w, e);
        damacy__zstd_some<LOG, 30, 2, true>(s, w, e);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        damacy__sts128(write ^ (16u * (uint32_t)half), damacy__zstd_symbols(e + 16 * half));
}

// One round: 32 symbols of each lane that acts. Two lanes write a stream's 32 bytes, a whole
// sector.
template <int LOG>
DAMACY__INLINE void damacy__zstd_round(damacy__zstd_stream& s, bool acts, uint32_t who,
                                       uint32_t stage, uint64_t p0, uint64_t p1)
{
    const uint32_t lane = damacy__lane();
    const uint32_t write = stage + lane * 32 + (lane & 4) * 4; // swizzled: no bank conflicts
    const uint32_t read = (stage + lane * 16) ^ ((lane & 8) * 2);

    s.mask = acts ? 255 : 0;
    const bool ahead = acts && damacy__zstd_ring_ahead(s);
    const damacy__zstd_granule g = damacy__zstd_granule_load(s, ahead);
    damacy__zstd_thirty_two<LOG>(s, write);
    if (ahead)
        damacy__zstd_ring_put(s, g);
    damacy__sync_warp();
    const damacy__u32x4 v0 = damacy__lds128(read), v1 = damacy__lds128(read + 512);
    if (who >> (lane >> 1) & 1)
        damacy__store_u32x4(p0, v0);
    if (who >> (16 + (lane >> 1)) & 1)
        damacy__store_u32x4(p1, v1);
    damacy__zstd_ring_need(s, 352);
}

// Decodes the symbols of bytes [dst, end). Whole warps call this; idle lanes have dst == end.
template <int LOG>
DAMACY__INLINE void damacy__zstd_stream_decode(damacy__zstd_stream& s, uint64_t dst, uint64_t end,
                                               uint32_t stage)
{
    const uint32_t lane = damacy__lane();
    uint32_t head = (uint32_t)(0 - dst) & 31;

    if (head > end - dst)
        head = (uint32_t)(end - dst);
    for (; head; head--)
        *(uint8_t*)(uintptr_t)dst++ = (uint8_t)damacy__zstd_symbol<LOG>(s);
    damacy__zstd_ring_fill(s);
    const uint32_t n = (uint32_t)((end - dst) >> 5);
    uint64_t p0 = damacy__shfl(dst, lane >> 1) + 16 * (lane & 1);
    uint64_t p1 = damacy__shfl(dst, 16 + (lane >> 1)) + 16 * (lane & 1);
    dst += 32ull * n;
    for (uint32_t i = 0;; i++) { // as many rounds as the longest stream has
        const uint32_t who = damacy__ballot(i < n);
        if (!who)
            break;
        damacy__zstd_round<LOG>(s, i < n, who, stage, p0, p1);
        p0 += 32;
        p1 += 32;
    }
    s.mask = 255;
    while (dst < end)
        *(uint8_t*)(uintptr_t)dst++ = (uint8_t)damacy__zstd_symbol<LOG>(s);
}

// A literals section that is ready to decode.
typedef struct damacy__zstd_section {
    uint64_t src, dst; // the streams (a jump table first if there are four), the output
    uint32_t size, n;  // bytes at src, literals
    uint32_t n_streams, tree, log;
    uint64_t lo, hi; // source of the job
} damacy__zstd_section;

// The section of block `index`. False if the block is dead or its tree is broken.
DAMACY__INLINE bool damacy__zstd_section_of(const damacy__zstd_wave& w, uint32_t index,
                                            damacy__zstd_section& c)
{
    const damacy__zstd_block& b = damacy__zstd_blocks(w)[index];
    const damacy__zstd_tree& tree = damacy__zstd_trees(w)[b.tree];
    const uint32_t skip = b.literal_type == DAMACY__ZSTD_LITERALS_HUFFMAN ? tree.size : 0;
    const damacy__job& job = damacy__zstd_jobs(w)[damacy__zstd_frames(w)[b.frame].job];

    c.src = b.literal_src + skip;
    c.size = b.literal_size - damacy__min(skip, b.literal_size);
    c.dst = b.literals;
    c.n = b.n_literals;
    c.n_streams = b.n_streams;
    c.tree = b.tree;
    c.log = tree.log;
    c.lo = job.src;
    c.hi = job.src + job.src_size;
    return c.dst != 0 && tree.log != 0;
}

// The list of sections by table log (k: 0 is <= 9) that this launch decodes, and its length.
DAMACY__INLINE const uint32_t* damacy__zstd_section_list(const damacy__zstd_wave& w, uint32_t k,
                                                         uint32_t& n)
{
    const damacy__zstd_counters* const c = damacy__zstd_counts(w);
    const bool late = w.flags & DAMACY__ZSTD_FLAG_LATE;
    const uint64_t list = k == 0   ? w.literal_order[0]
                          : k == 1 ? w.literal_order[1]
                                   : w.literal_order[2];

    n = late ? c->n_late_blocks[k] : c->n_literal_blocks[k];
    return (const uint32_t*)(uintptr_t)list + (late ? w.max_blocks - n : 0);
}

// Stream k of a section: its bytes [begin, end), its first output byte and its number of symbols.
// False if the section is malformed.
DAMACY__INLINE bool damacy__zstd_section_stream(const damacy__zstd_section& c, uint32_t k,
                                                uint64_t& begin, uint64_t& end, uint64_t& dst,
                                                uint32_t& n)
{
    begin = c.src;
    end = c.src + c.size;
    dst = c.dst;
    n = c.n;
    if (c.n_streams == 1)
        return c.size >= 1;
    if (c.size < 10 || c.n < 6)
        return false;
    const uint8_t* const jump = (const uint8_t*)(uintptr_t)c.src;
    const uint32_t s0 = (uint32_t)jump[0] | (uint32_t)jump[1] << 8;
    const uint32_t s1 = (uint32_t)jump[2] | (uint32_t)jump[3] << 8;
    const uint32_t s2 = (uint32_t)jump[4] | (uint32_t)jump[5] << 8;
    const uint32_t quarter = (c.n + 3) / 4;
    if (6 + s0 + s1 + s2 >= c.size || !s0 || !s1 || !s2 || 3 * quarter > c.n)
        return false;
    const uint32_t at = 6 + (k > 0 ? s0 : 0) + (k > 1 ? s1 : 0) + (k > 2 ? s2 : 0);
    begin = c.src + at;
    end = k == 0 ? begin + s0 : k == 1 ? begin + s1 : k == 2 ? begin + s2 : c.src + c.size;
    dst = c.dst + (uint64_t)k * quarter;
    n = k < 3 ? quarter : c.n - 3 * quarter;
    return true;
}

// ---- many blocks: lane = stream, 8 blocks a warp ----

// Sections for tables of one size: of one list, or of two.
typedef struct damacy__zstd_sections {
    const uint32_t *list, *more;
    uint32_t n, n_list; // of both; of the first
} damacy__zstd_sections;

template <int LOG>
DAMACY__INLINE damacy__zstd_sections damacy__zstd_sections_of(const damacy__zstd_wave& w)
{
    const bool both = w.flags & DAMACY__ZSTD_FLAG_NINE_AS_TEN;
    damacy__zstd_sections all;

    all.list = damacy__zstd_section_list(w, LOG - 9, all.n_list);
    all.more = all.list;
    all.n = LOG == 9 && both ? 0 : all.n_list;
    if (LOG == 10 && both) {
        all.more = damacy__zstd_section_list(w, 0, all.n);
        all.n += all.n_list;
    }
    return all;
}

// One warp decodes 8 sections from `first` on. tables: 16 << LOG bytes, aligned to
// 2 << LOG; ring: LANE_SIZE bytes, aligned to 16.
template <int LOG>
DAMACY__INLINE void damacy__zstd_literals_eight(const damacy__zstd_wave& w,
                                                const damacy__zstd_sections& all, uint32_t first,
                                                uint8_t* tables, uint8_t* ring)
{
    const uint32_t lane = damacy__lane(), index = first + (lane >> 2);
    damacy__zstd_section c = {};
    damacy__zstd_stream s = {};
    uint64_t begin = 0, end = 0, dst = 0;
    uint32_t block = 0, count = 0, target = 0;
    bool alive = false;

    if (index < all.n) {
        block = index < all.n_list ? all.list[index] : all.more[index - all.n_list];
        alive = damacy__zstd_section_of(w, block, c) && c.log <= LOG;
    }
    if (!alive)
        c.log = 0;
    uint32_t weights[8];
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) { // all are asked for at once
        const uint32_t tree = damacy__shfl(c.tree, 4 * k), log = damacy__shfl(c.log, 4 * k);
        weights[k] = log ? damacy__zstd_trees(w)[tree].weights[lane] : 0;
    }
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        const uint32_t log = damacy__shfl(c.log, 4 * k);
        if (log)
            damacy__zstd_table_build((uint16_t*)(tables + k * (2u << LOG)), ring, weights[k], log,
                                     LOG, 0, 1);
    }
    bool runs = alive && (lane & 3) < c.n_streams;
    bool good = true;
    if (runs) {
        good = damacy__zstd_section_stream(c, lane & 3, begin, end, dst, count) &&
               damacy__zstd_stream_open(s, begin, end, target);
        runs = good;
    }
    s.ring = damacy__shared_address(ring) + lane * 4;
    s.table = damacy__shared_address(tables) + (lane >> 2) * (2u << LOG);
    s.lo = c.lo;
    s.hi = c.hi;
    if (runs)
        damacy__zstd_ring_start(s);
    else
        dst = count = 0;
    damacy__sync_warp();
    damacy__zstd_stream_decode<LOG>(s, dst, dst + count,
                                    damacy__shared_address(ring) + DAMACY__ZSTD_RING_SIZE);
    if (!good || (runs && s.at != target))
        damacy__zstd_fail(w, damacy__zstd_blocks(w)[block], c.src, DAMACY__JOB_BAD_LITERALS);
    damacy__sync_warp(); // the tables may be built again
}

// The sections of one table log, by CTAs of one warp. Its rings come first, then its tables,
// aligned to the size of one.
template <int LOG>
DAMACY__INLINE void damacy__zstd_literals_lanes(const damacy__zstd_wave& w, uint8_t* shared)
{
    const uint32_t base = damacy__shared_address(shared), align = 2u << LOG;
    const uint32_t tables = ((base + DAMACY__ZSTD_LANE_SIZE + align - 1) & ~(align - 1)) - base;
    const damacy__zstd_sections all = damacy__zstd_sections_of<LOG>(w);

    for (uint32_t i = blockIdx.x; 8 * i < all.n; i += gridDim.x)
        damacy__zstd_literals_eight<LOG>(w, all, 8 * i, shared + tables, shared);
}
