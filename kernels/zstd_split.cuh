// Huffman-coded literals by shares: W warps decode one stream, a block of threads the four of a
// section. In a round each lane decodes a share of the stream's next bits to a slot of its own in
// shared memory; when all lanes know how many symbols they have found, the slots go to their places
// in the output, one behind the other.
//
// A share begins somewhere in a code. Huffman codes synchronise themselves, so a lane starts WARM
// bits early; whoever finds that the lane before it ended elsewhere than it began decodes again
// from there. So the result is exact for any data, and each symbol is decoded once.
#pragma once

#include "kernels/zstd_huffman.cuh"

#define DAMACY__ZSTD_LOG       11 // of the table: the few bits more cost less than more kernels
#define DAMACY__ZSTD_LOG_SMALL 9  // of a table whose shares may have fewer bits

// Of DAMACY__ZSTD_SHAPE_SPLIT and its like: warps a stream, most symbols and bits of a share.
template <uint32_t W_, uint32_t SLOT_, uint32_t SHARE_> struct damacy__zstd_split_shape {
    static constexpr uint32_t W = W_, SLOT = SLOT_, SHARE = SHARE_;
    static constexpr uint32_t PART_SIZE = DAMACY__ZSTD_PART_SIZE(SHARE);
    static constexpr uint32_t SLOT_SIZE = DAMACY__ZSTD_SLOT_SIZE(SLOT);
    static constexpr uint32_t SHARES_SIZE = PART_SIZE + 32 * SLOT_SIZE; // all that a warp has
    // Fewest bits of a share, which have the 16 symbols that copying needs though it may begin up
    // to one bit less than the longest code before a boundary, or all codes may be of one length;
    // and of one bit at most as many as a slot holds, but where others have ten and more.
    static constexpr uint32_t LEAST = 192, LEAST_SMALL = SLOT < LEAST ? SLOT : LEAST;
    static_assert(LEAST - LEAST % DAMACY__ZSTD_LOG >= 17 * DAMACY__ZSTD_LOG - 1, "16 symbols");
    static_assert(LEAST_SMALL - LEAST_SMALL % DAMACY__ZSTD_LOG_SMALL >=
                      17 * DAMACY__ZSTD_LOG_SMALL - 1,
                  "16 symbols");
    static_assert(SLOT_SIZE % 32 == 16 && SLOT % 32 == 0, "bank conflicts");
    static_assert(SHARE % 64 == 32, "as damacy__zstd_share_size");
};

// What a warp works with: a part of the stream, the slots of its lanes and, behind them, those of
// the next warp of the stream. Addresses in shared memory.
typedef struct damacy__zstd_shares {
    uint32_t part, slots;
    uint32_t told;  // what the warps of the stream tell each other: 4 words a warp, then 2
    uint32_t warp;  // of those of the stream
    uint32_t unit;  // all codes have so many bits; 1 if they differ
    uint32_t least; // bits of a share, at least
    uint32_t most;  // and at most
} damacy__zstd_shares;

// The first place in dynamic shared memory whose address is a multiple of n, a power of two: at
// most n - 1024 bytes on.
DAMACY__INLINE uint8_t* damacy__zstd_align(uint8_t* shared, uint32_t n)
{
    return shared + ((0 - damacy__shared_address(shared)) & (n - 1));
}

// Eight entries from a boundary on: moves `at` to the first boundary at or after `limit` or, if
// that lies behind them, to the last; returns the symbols on the way.
DAMACY__INLINE uint32_t damacy__zstd_boundary(const uint32_t* entry, uint32_t& at, uint32_t limit)
{
    uint32_t n = 0;

#pragma unroll
    for (int j = 0; j < 8; j++) {
        const bool before = at < limit;
        at += before ? entry[j] & 255 : 0;
        n += before ? 1 : 0;
    }
    return n;
}

// Steps from wherever s.at is to the first boundary, as it seems from there, at or after `start`.
DAMACY__INLINE void damacy__zstd_share_warm(damacy__zstd_stream& s, uint32_t start)
{
    damacy__zstd_window w = damacy__zstd_window_at<true, true>(s);

#pragma unroll 1
    while (s.at < start) {
        const uint32_t from = s.at;
        uint32_t e[32];
        damacy__zstd_some<DAMACY__ZSTD_LOG, 0, 8, false, true>(s, w, e);
        if (s.at > start) {
            s.at = from;
            damacy__zstd_boundary(e, s.at, start);
        }
    }
}

// Decodes from the boundary s.at on to the slot, to the first boundary at or after `limit`, but no
// more symbols than a slot holds. Returns their number.
template <class S>
DAMACY__INLINE uint32_t damacy__zstd_share_decode(damacy__zstd_stream& s, uint32_t limit,
                                                  uint32_t slot)
{
    constexpr int LOG = DAMACY__ZSTD_LOG;
    damacy__zstd_window w = damacy__zstd_window_at<true, true>(s);
    uint32_t n = 0;

#pragma unroll 1
    while (s.at < limit && n < S::SLOT) {
        const uint32_t from = s.at;
        uint32_t e[32];
        damacy__zstd_some<LOG, 0, 8, false, true>(s, w, e);
        const uint32_t middle = s.at;
        damacy__zstd_some<LOG, 8, 8, false, true>(s, w, e);
        damacy__sts128(slot + n, damacy__zstd_symbols(e));
        n += 16;
        if (s.at > limit) { // which of them are the last ones
            const bool more = middle < limit;
            uint32_t last[8];
            for (int j = 0; j < 8; j++)
                last[j] = more ? e[8 + j] : e[j];
            s.at = more ? middle : from;
            n += damacy__zstd_boundary(last, s.at, limit) - (more ? 8 : 16);
        }
    }
    return n;
}

// Brings the stream's bits [from, to) and those that decoding looks at behind them to shared memory
// and makes s.ring such that s.at finds them there. All lanes.
DAMACY__INLINE void damacy__zstd_part_load(damacy__zstd_stream& s, uint32_t part, uint32_t from,
                                           uint32_t to)
{
    const uint32_t first = from >> 7, n = ((to + DAMACY__ZSTD_PART_AHEAD) >> 7) + 1 - first;

#pragma unroll 1
    for (uint32_t i = damacy__lane(); i < n; i += 4 * 32) {
        damacy__u32x4 v[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint64_t a = s.top - 16ull * (first + i + 32 * k + 1);
            v[k].x = v[k].y = v[k].z = v[k].w = 0;
            if (i + 32 * k < n && a >= s.lo && a + 16 <= s.hi)
                v[k] = damacy__load_u32x4_once((const void*)(uintptr_t)a);
            else if (i + 32 * k < n)
                v[k] = damacy__load_u32x4_within(a, s.lo, s.hi);
        }
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            damacy__u32x4 turned;
            turned.x = v[k].w;
            turned.y = v[k].z;
            turned.z = v[k].y;
            turned.w = v[k].x;
            if (i + 32 * k < n)
                damacy__sts128(part + 16 * (i + 32 * k), turned);
        }
    }
    s.ring = part - 16 * first;
}

// Behind the n symbols of each slot, the first 16 of the next one; a slot with fewer is the last
// one, and no warp writes what another reads. All lanes; is_last: the warp has no other behind it.
template <class S>
DAMACY__INLINE void damacy__zstd_slots_join(uint32_t slot, uint32_t n, bool is_last)
{
    const damacy__u32x4 own = damacy__lds128(slot);
    const uint32_t at = slot + (n & ~3u), s = 8 * (n & 3);
    damacy__u32x4 next;

    next.x = damacy__shfl_down(own.x, 1);
    next.y = damacy__shfl_down(own.y, 1);
    next.z = damacy__shfl_down(own.z, 1);
    next.w = damacy__shfl_down(own.w, 1);
    if (!is_last && damacy__lane() == 31)
        next = damacy__lds128(slot + S::SLOT_SIZE);
    if (n >= 16) {
        damacy__sts32(at, (damacy__lds32(at) & ((1u << s) - 1)) | next.x << s);
        damacy__sts32(at + 4, damacy__funnel_left(next.x, next.y, s));
        damacy__sts32(at + 8, damacy__funnel_left(next.y, next.z, s));
        damacy__sts32(at + 12, damacy__funnel_left(next.z, next.w, s));
        if (s)
            damacy__sts32(at + 16, damacy__funnel_left(next.w, 0, s));
    }
    damacy__sync_warp();
}

// The 16 bytes at any address of shared memory.
DAMACY__INLINE damacy__u32x4 damacy__zstd_slot_read(uint32_t at)
{
    const damacy__u32x4 a = damacy__lds128(at & ~15u), b = damacy__lds128((at & ~15u) + 16);
    const bool by8 = at & 8, by4 = at & 4;
    const uint32_t v0 = by8 ? a.z : a.x, v1 = by8 ? a.w : a.y, v2 = by8 ? b.x : a.z;
    const uint32_t v3 = by8 ? b.y : a.w, v4 = by8 ? b.z : b.x, v5 = by8 ? b.w : b.y;

    return damacy__funnel_right4(by4 ? v1 : v0, by4 ? v2 : v1, by4 ? v3 : v2, by4 ? v4 : v3,
                                 by4 ? v5 : v4, 8 * (at & 3));
}

// Slots of a warp to the output at dst: its own n bytes and, to fill a unit of 16, some of those
// behind them, of which there are `all` with its own. What comes before the first unit is of the
// warp before, if there is one. start: where the lane's slot begins, n for those without symbols.
// All lanes.
template <class S>
DAMACY__INLINE void damacy__zstd_slots_copy(uint32_t slots, uint32_t start, uint32_t n,
                                            uint32_t all, uint64_t dst, bool is_first)
{
    const uint32_t lane = damacy__lane(), skip = damacy__min((uint32_t)(0 - dst) & 15, all);
    const uint32_t span = n > skip ? n - skip : 0;
    const uint32_t units = damacy__min((span + 15) / 16, (all - skip) / 16);
    const uint32_t tail = 16 * units < span ? all - skip - 16 * units : 0;

    if (is_first && lane < skip)
        *(uint8_t*)(uintptr_t)(dst + lane) = (uint8_t)damacy__lds8(slots + lane);
#pragma unroll 1
    for (uint32_t u = 0; u < units; u += 32) {
        const uint32_t first = skip + 16 * u, at = first + 16 * lane;
        const uint32_t last = damacy__min(first + 16 * 31, n - 1);
        uint32_t slot = damacy__popc(damacy__ballot(start <= first)) - 1;
        uint32_t begin = damacy__shfl(start, slot);
        const uint32_t end = damacy__popc(damacy__ballot(start <= last));
        for (uint32_t i = slot + 1; i < end; i++) {
            const uint32_t next = damacy__shfl(start, i);
            slot = next <= at ? i : slot;
            begin = next <= at ? next : begin;
        }
        if (u + lane < units)
            damacy__store_u32x4(dst + at,
                                damacy__zstd_slot_read(slots + slot * S::SLOT_SIZE + at - begin));
    }
    const uint32_t at = skip + 16 * units;
    const uint32_t slot = damacy__popc(damacy__ballot(start <= at && start < n)) - 1;
    const uint32_t begin = damacy__shfl(start, slot & 31);
    if (lane < tail)
        *(uint8_t*)(uintptr_t)(dst + at + lane) =
            (uint8_t)damacy__lds8(slots + slot * S::SLOT_SIZE + at - begin + lane);
}

// Bits of a share in the next round: all rounds of `bits` and `left` symbols alike, and, so that
// lanes read from banks of their own, an odd number of words.
template <class S>
DAMACY__INLINE uint32_t damacy__zstd_share_size(const damacy__zstd_shares& h, uint32_t bits,
                                                uint32_t left)
{
    constexpr uint32_t N = 32 * S::W, FULL = N * (S::SLOT - 24); // to spare: shares differ
    const uint32_t by_symbols = (left + FULL - 1) / FULL;
    const uint32_t by_bits = (bits + N * h.most - 1) / (N * h.most);
    const uint32_t all = N * damacy__max(damacy__max(by_symbols, by_bits), 1);
    const uint32_t size = damacy__max((bits + all - 1) / all, h.least);

    if (h.unit > 1)
        return size / h.unit * h.unit;
    return size > h.least ? ((size - 33) | 63) + 33 : size;
}

// Barrier of the warps of a stream.
template <int W> DAMACY__INLINE void damacy__zstd_stream_sync()
{
    if (W == 1)
        damacy__sync_warp();
    else
        damacy__sync_some(1 + threadIdx.x / (32 * W), 32 * W);
}

// Where the lane before this one ended, and the number of the last lane whose share is of use: the
// first one that is full, if one is.
template <int W>
DAMACY__INLINE uint32_t damacy__zstd_shares_meet(const damacy__zstd_shares& h, uint32_t end,
                                                 bool is_full, uint32_t& last)
{
    const uint32_t lane = damacy__lane(), full = damacy__ballot(is_full);
    uint32_t before = damacy__shfl_up(end, 1);

    last = full ? 32 * h.warp + damacy__ctz(full) : 32 * W - 1;
    if (W > 1) {
        if (lane == 31)
            damacy__sts32(h.told + 4 * h.warp, end);
        if (lane == 0)
            damacy__sts32(h.told + 4 * (W + h.warp), last);
        damacy__zstd_stream_sync<W>();
        if (lane == 0 && h.warp)
            before = damacy__lds32(h.told + 4 * (h.warp - 1));
        for (uint32_t k = 0; k < W; k++)
            last = damacy__min(last, damacy__lds32(h.told + 4 * (W + k)));
    }
    return before;
}

// Whether a lane of the stream has to decode again.
template <int W>
DAMACY__INLINE bool damacy__zstd_shares_any(const damacy__zstd_shares& h, bool walks)
{
    uint32_t any = damacy__ballot(walks);

    if (W > 1) {
        if (damacy__lane() == 0)
            damacy__sts32(h.told + 4 * (2 * W + h.warp), any);
        damacy__zstd_stream_sync<W>();
        for (uint32_t k = 0; k < W; k++)
            any |= damacy__lds32(h.told + 4 * (2 * W + k));
    }
    return any != 0;
}

// Decodes the lane's share [from, limit) from wherever s.at is, and again until it begins where the
// one before it ends. Returns the symbols, 0 for a lane behind the last one of use.
template <class S>
DAMACY__INLINE uint32_t damacy__zstd_shares_decode(damacy__zstd_stream& s,
                                                   const damacy__zstd_shares& h, uint32_t from,
                                                   uint32_t limit, uint32_t& start, uint32_t& last)
{
    const uint32_t lane = 32 * h.warp + damacy__lane();
    const uint32_t slot = h.slots + damacy__lane() * S::SLOT_SIZE;
    uint32_t n = 0;

    damacy__zstd_share_warm(s, from);
    start = s.at;
#pragma unroll 1
    for (bool walks = true;;) {
        if (walks)
            n = damacy__zstd_share_decode<S>(s, limit, slot);
        damacy__sync_warp();
        const uint32_t before = damacy__zstd_shares_meet<S::W>(h, s.at, s.at < limit, last);
        walks = lane && lane <= last && before != start;
        if (!damacy__zstd_shares_any<S::W>(h, walks))
            break;
        if (walks)
            s.at = start = before;
    }
    return lane <= last ? n : 0;
}

// What a round has found, and where it ends.
typedef struct damacy__zstd_round_end {
    uint32_t before, total; // symbols of the warps before this one, of all
    uint32_t pos;           // the next boundary
    uint32_t used;          // bits of the last share
} damacy__zstd_round_end;

// n: symbols of the warp; the share of this lane, of `used` bits up to `end`, counts if it is the
// last one.
template <int W>
DAMACY__INLINE damacy__zstd_round_end damacy__zstd_shares_sum(const damacy__zstd_shares& h,
                                                              uint32_t n, uint32_t last,
                                                              uint32_t end, uint32_t used)
{
    damacy__zstd_round_end r;

    if (W == 1) {
        r.before = 0;
        r.total = n;
        r.pos = damacy__shfl(end, last);
        r.used = damacy__shfl(used, last);
        return r;
    }
    if (damacy__lane() == 0)
        damacy__sts32(h.told + 4 * (3 * W + h.warp), n);
    if (32 * h.warp + damacy__lane() == last) {
        damacy__sts32(h.told + 4 * (4 * W), end);
        damacy__sts32(h.told + 4 * (4 * W + 1), used);
    }
    damacy__zstd_stream_sync<W>();
    r.before = r.total = 0;
    for (uint32_t k = 0; k < W; k++) {
        const uint32_t v = damacy__lds32(h.told + 4 * (3 * W + k));
        r.before += k < h.warp ? v : 0;
        r.total += v;
    }
    r.pos = damacy__lds32(h.told + 4 * (4 * W));
    r.used = damacy__lds32(h.told + 4 * (4 * W + 1));
    return r;
}

// One round: decodes shares from the boundary `pos` on and writes up to `left` symbols to dst.
// Returns the next boundary and how many symbols lie before it. All lanes of a stream, with the
// same values.
template <class S>
DAMACY__INLINE uint32_t damacy__zstd_shares_round(damacy__zstd_stream& s, damacy__zstd_shares& h,
                                                  uint32_t pos, uint32_t target, uint64_t dst,
                                                  uint32_t left, uint32_t& total)
{
    const uint32_t lane = damacy__lane(), number = 32 * h.warp + lane;
    const uint32_t size = damacy__zstd_share_size<S>(h, target - pos, left);
    const uint32_t from = damacy__min(pos + number * size, target);
    const uint32_t limit = damacy__min(from + size, target);
    const uint32_t warm = h.unit > 1 || from == target ? 0 : DAMACY__ZSTD_WARM;
    uint32_t start, last;

    s.at = from > pos + warm ? from - warm : pos;
    damacy__zstd_part_load(s, h.part, damacy__shfl(s.at, 0), damacy__shfl(limit, 31));
    damacy__sync_warp();
    const uint32_t n = damacy__zstd_shares_decode<S>(s, h, from, limit, start, last);
    const uint32_t until = damacy__sum_upto(n, lane), own = damacy__shfl(until, 31);
    damacy__sync_warp();
    const damacy__zstd_round_end r =
        damacy__zstd_shares_sum<S::W>(h, own, last, s.at, s.at - start);
    const uint32_t written = damacy__min(r.total, left) - damacy__min(r.before, left);
    damacy__zstd_slots_join<S>(h.slots + lane * S::SLOT_SIZE, n, h.warp == S::W - 1);
    damacy__zstd_slots_copy<S>(h.slots, until - n, damacy__min(own, written), written,
                               dst + r.before, h.warp == 0);
    damacy__zstd_stream_sync<S::W>(); // slots and part are used again
    h.most = last < 32 * S::W - 1 ? damacy__max(r.used / 8 * 7, h.least)
                                  : damacy__min(2 * h.most, S::SHARE);
    total = r.total;
    return r.pos;
}

// Decodes the section of one block of the wave.
template <class S>
DAMACY__INLINE void damacy__zstd_split_block(const damacy__zstd_wave& w, uint32_t block,
                                             uint8_t* memory)
{
    const uint32_t tid = threadIdx.x, warp = tid / 32, stream = warp / S::W;
    uint16_t* const table = (uint16_t*)memory;
    uint8_t* const own = memory + (2u << DAMACY__ZSTD_LOG) + stream * S::W * S::SHARES_SIZE;
    damacy__zstd_section c;
    damacy__zstd_stream s = {};
    damacy__zstd_shares h;
    uint64_t begin = 0, end = 0, dst = 0;
    uint32_t count = 0, target = 0;

    if (!damacy__zstd_section_of(w, block, c) || c.log > DAMACY__ZSTD_LOG)
        return; // the whole block of threads
    for (uint32_t i = 128 * tid; i < c.size; i += 128 * 128 * S::W)
        damacy__prefetch_l2((const void*)(uintptr_t)(c.src + i));
    h.warp = warp % S::W;
    damacy__zstd_table_build(table, own + h.warp * S::PART_SIZE,
                             damacy__zstd_trees(w)[c.tree].weights[tid & 31], c.log,
                             DAMACY__ZSTD_LOG, warp, 4 * S::W);
    damacy__sync_block();
    if (stream >= c.n_streams)
        return;
    s.table = damacy__shared_address(table);
    s.lo = c.lo;
    s.hi = c.hi;
    h.part = damacy__shared_address(own) + h.warp * S::PART_SIZE;
    h.slots = damacy__shared_address(own) + S::W * S::PART_SIZE + h.warp * 32 * S::SLOT_SIZE;
    h.told = s.table + (2u << DAMACY__ZSTD_LOG) + 4 * S::W * S::SHARES_SIZE +
             stream * (DAMACY__ZSTD_SPLIT_TOLD / 4);
    const bool differs = (table[0] ^ table[(1u << DAMACY__ZSTD_LOG) - 1]) & 255; // sorted by length
    h.unit = differs ? 1 : c.log;
    h.least = c.log > DAMACY__ZSTD_LOG_SMALL ? S::LEAST : S::LEAST_SMALL;
    h.most = S::SHARE;
    bool good = damacy__zstd_section_stream(c, stream, begin, end, dst, count) &&
                damacy__zstd_stream_open(s, begin, end, target);
    uint32_t pos = s.at;
    while (good && pos < target && count) {
        uint32_t n;
        pos = damacy__zstd_shares_round<S>(s, h, pos, target, dst, count, n);
        good = n <= count;
        dst += n;
        count -= n;
    }
    if (!(good && pos == target && count == 0) && damacy__lane() == 0)
        damacy__zstd_fail(w, damacy__zstd_blocks(w)[block], c.src, DAMACY__JOB_BAD_LITERALS);
}

// Sections of all table logs, of the one list that FLAG_ONE_LIST makes, or those of 11 bits.
template <class S>
DAMACY__INLINE void damacy__zstd_literals_split(const damacy__zstd_wave& w, uint8_t* memory)
{
    memory = damacy__zstd_align(memory, 2u << DAMACY__ZSTD_LOG);
    static_assert(4 * (4 * S::W + 2) <= DAMACY__ZSTD_SPLIT_TOLD / 4 && DAMACY__ZSTD_LOG == 11,
                  "host's view");
    const uint32_t which = w.flags & DAMACY__ZSTD_FLAG_ONE_LIST ? 0 : 2;
    uint32_t n;
    const uint32_t* const list = damacy__zstd_section_list(w, which, n);

    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        damacy__zstd_split_block<S>(w, list[i], memory);
        damacy__sync_block(); // shared memory is used again
    }
}
