// Huffman-coded literals when few blocks are in flight: a block of threads decodes one section, S
// lanes a stream. Pass A finds the first code boundary and the number of symbols of each lane's
// share; a lane starts WARM bits early, because Huffman codes synchronise themselves, and wrong
// guesses are repaired until all boundaries agree, so that the result is exact for any data. Pass B
// decodes. One 128 KB section: 0.057 ms with 128 lanes a stream, 1.07 ms with one.
#pragma once

#include "kernels/zstd_huffman.cuh"

#define DAMACY__ZSTD_STEP_LOG 12 // of the table that steps over one or two symbols
// Bits. Of libzstd's codes in microscopy and noise one of 30 to 1,000 shares has not synchronised
// after 256, one of 170 to none after 512.
#define DAMACY__ZSTD_WARM   384u
#define DAMACY__ZSTD_MIDDLE 512u // where a share that is walked again may turn out to be right

// What the lanes tell each other.
template <int S> struct damacy__zstd_split_shared {
    uint32_t end[4 * S], count[4 * S];
    uint32_t bad;
};

// The first place in dynamic shared memory whose address is a multiple of n, a power of two: at
// most n - 1024 bytes on.
DAMACY__INLINE uint8_t* damacy__zstd_align(uint8_t* shared, uint32_t n)
{
    return shared + ((0 - damacy__shared_address(shared)) & (n - 1));
}

// Steps over N windows of STEP_LOG bits; adds the symbols to n.
template <int N>
DAMACY__INLINE void damacy__zstd_steps(damacy__zstd_stream& s, uint32_t step_table, uint32_t& n)
{
    const uint32_t table = s.table;
    uint32_t entry[N];

    s.table = step_table;
    const uint32_t sum = damacy__zstd_lookups<DAMACY__ZSTD_STEP_LOG, N>(s, entry);
    s.table = table;
    s.at += sum & 255; // N * STEP_LOG < 256
    n += sum >> 8;     // N * 2 symbols
}

// Decodes without output up to the first boundary at or after `limit`; returns the symbols. The
// last symbol may begin just before the limit, so that its bits must be there, too.
template <int LOG>
DAMACY__INLINE uint32_t damacy__zstd_run(damacy__zstd_stream& s, uint32_t step_table,
                                         uint32_t limit)
{
    constexpr uint32_t STEP = DAMACY__ZSTD_STEP_LOG;
    uint32_t n = 0;

    while (s.at + 16 * STEP <= limit) {
        const bool ahead = damacy__zstd_ring_ahead(s);
        const damacy__zstd_granule g = damacy__zstd_granule_load<false>(s, ahead);
#pragma unroll
        for (int k = 0; k < 2; k++)
            damacy__zstd_steps<8>(s, step_table, n);
        if (ahead)
            damacy__zstd_ring_put(s, g);
        damacy__zstd_ring_need(s, 17 * STEP);
    }
    while (s.at + 4 * STEP <= limit)
        damacy__zstd_steps<4>(s, step_table, n);
    while (s.at + STEP <= limit)
        damacy__zstd_steps<1>(s, step_table, n);
    while (s.at < limit) {
        damacy__zstd_symbol<LOG>(s);
        n++;
    }
    damacy__zstd_ring_fill(s);
    return n;
}

// A lane's share of a stream in pass A: [from, limit) with a checkpoint inside.
typedef struct damacy__zstd_share {
    uint32_t start, middle, limit; // bit positions: first boundary (at first about where),
                                   // checkpoint, end of share
    uint32_t at_middle, end;       // boundaries reached there
    uint32_t n_before, n_after;    // symbols up to the checkpoint and after it
} damacy__zstd_share;

// Walks to the three places of a share, from the first on, or `again` from the second: to `start`,
// where symbols do not count, to the checkpoint and to the end. One loop, as the code of a walk is
// 6 KB: sequences beside it, and other blocks' walks, are in the same cache of instructions.
template <int LOG>
DAMACY__INLINE void damacy__zstd_share_walk(damacy__zstd_stream& s, uint32_t step_table,
                                            damacy__zstd_share& a, bool again)
{
#pragma unroll 1
    for (uint32_t k = again ? 1 : 0; k < 3; k++) {
        const uint32_t from = s.at, to = k == 0 ? a.start : k == 1 ? a.middle : a.limit;
        const uint32_t n = damacy__zstd_run<LOG>(s, step_table, to);
        if (k == 1) {
            a.start = from;
            a.n_before = n;
            if (again && s.at == a.at_middle) // synchronised: the rest was right
                return;
            a.at_middle = s.at;
        } else if (k == 2) {
            a.n_after = n;
            a.end = s.at;
        }
    }
}

// First guess of the boundaries, and where to begin to walk. Codes that all have `unit` bits, if
// that is not 1, begin at multiples of it, and never synchronise from another place.
template <int S>
DAMACY__INLINE void damacy__zstd_share_guess(damacy__zstd_stream& s, uint32_t lane, uint32_t target,
                                             uint32_t unit, damacy__zstd_share& a)
{
    const uint32_t first = s.at, even = target > first ? (target - first + S - 1) / S : 1;
    const uint32_t size = (even + unit - 1) / unit * unit;
    const uint32_t warm = unit > 1 ? 0 : DAMACY__ZSTD_WARM;

    a.start = damacy__min(first + lane * size, target);
    a.limit = lane == S - 1 ? target : damacy__min(first + (lane + 1) * size, target);
    a.middle = damacy__min(a.start + DAMACY__ZSTD_MIDDLE, a.limit);
    s.at = a.start > first + warm ? a.start - warm : first;
}

// Eight neighbouring entries of the table that walks two symbols at a time, from number `first` on.
template <int LOG>
DAMACY__INLINE damacy__u32x4 damacy__zstd_steps_eight(uint32_t table, uint32_t first)
{
    constexpr uint32_t STEP = DAMACY__ZSTD_STEP_LOG;
    static_assert(LOG + 1 == STEP, "two entries begin with the same bits of the table");
    const damacy__u32x2 four = damacy__lds64(table + first);
    uint32_t n1[8], n2[8], out[4];

#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        n1[i] = (i < 4 ? four.x : four.y) >> (i & 2) * 8 & 255;
        n2[i] = damacy__lds16(table + ((first + i) << n1[i] & ((1u << STEP) - 2))) & 255;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 2) {
        const uint32_t a = n1[i] + n2[i], b = n1[i + 1] + n2[i + 1];
        out[i / 2] = (a <= STEP ? a | 512 : n1[i] | 256) | (b <= STEP ? b | 512 : n1[i + 1] | 256)
                                                               << 16;
    }
    damacy__u32x4 v;
    v.x = out[0];
    v.y = out[1];
    v.z = out[2];
    v.w = out[3];
    return v;
}

// Fills that table; all threads.
template <int LOG, int S>
DAMACY__INLINE void damacy__zstd_steps_build(uint32_t table, uint32_t step_table)
{
    for (uint32_t v = 8 * threadIdx.x; v < 1u << DAMACY__ZSTD_STEP_LOG; v += 8 * 4 * S)
        damacy__sts128(step_table + 2 * v, damacy__zstd_steps_eight<LOG>(table, v));
    damacy__sync_block();
}

// Walks shares; those that did not synchronise again, from where the one before them ends.
template <int LOG, int S>
DAMACY__INLINE void damacy__zstd_shares_walk(damacy__zstd_stream& s, uint32_t step_table, bool runs,
                                             damacy__zstd_split_shared<S>& shared,
                                             damacy__zstd_share& a)
{
    const uint32_t tid = threadIdx.x, lane = tid % S;
    bool walks = runs;

#pragma unroll 1
    for (uint32_t r = 0; r <= S + 1; r++) {
        if (walks) {
            damacy__zstd_ring_start(s);
            damacy__zstd_share_walk<LOG>(s, step_table, a, r > 0);
        }
        shared.end[tid] = a.end;
        damacy__sync_block();
        walks = runs && lane && shared.end[tid - 1] != a.start;
        if (walks)
            s.at = shared.end[tid - 1];
        if (damacy__sync_count(walks) == 0)
            break;
    }
}

// The symbols of a lane's stream before its share, which has `mine`. Marks the section as bad where
// a stream ends elsewhere than at target or has not `count` symbols.
template <int S>
DAMACY__INLINE uint32_t damacy__zstd_shares_count(damacy__zstd_split_shared<S>& shared,
                                                  const damacy__zstd_share& a, uint32_t mine,
                                                  bool runs, uint32_t target, uint32_t count)
{
    const uint32_t tid = threadIdx.x, lane = tid % S;
    uint32_t before = 0, total = 0;

    shared.count[tid] = mine;
    if (runs && lane == S - 1 && a.end != target)
        shared.bad = 1;
    damacy__sync_block();
    for (uint32_t k = 0; k < S; k++) {
        const uint32_t v = shared.count[tid / S * S + k];
        before += k < lane ? v : 0;
        total += v;
    }
    if (runs && total != count)
        shared.bad = 1;
    damacy__sync_block();
    return before;
}

// What a lane stores: whole 32-byte units, so that it fills whole sectors. own: where its share of
// n symbols goes; last: the end of its stream's place.
template <int S>
DAMACY__INLINE void damacy__zstd_share_range(uint64_t own, uint64_t last, uint32_t n,
                                             uint64_t& from, uint64_t& until)
{
    const uint32_t lane = threadIdx.x % S;

    from = lane == 0 ? own : (own + 31) & ~31ull;
    until = lane == S - 1 ? last : (own + n + 31) & ~31ull;
    if (until > last)
        until = last;
}

// Decodes the section of one block of the wave.
template <int LOG, int S>
DAMACY__INLINE void damacy__zstd_split_block(const damacy__zstd_wave& w, uint32_t block,
                                             uint8_t* memory, damacy__zstd_split_shared<S>& shared)
{
    const uint32_t tid = threadIdx.x, stream = tid / S, lane = tid % S;
    uint16_t* const step = (uint16_t*)memory;
    uint16_t* const table = step + (1u << DAMACY__ZSTD_STEP_LOG);
    uint8_t* const ring = (uint8_t*)(table + (1u << LOG)) + (tid / 32) * DAMACY__ZSTD_LANE_SIZE;
    const uint32_t step_table = damacy__shared_address(step);
    damacy__zstd_section c;
    damacy__zstd_stream s = {};
    damacy__zstd_share a = {};
    uint64_t begin = 0, end = 0, dst = 0;
    uint32_t count = 0, target = 0;

    if (!damacy__zstd_section_of(w, block, c) || c.log > LOG)
        return; // the whole block of threads
    for (uint32_t i = 128 * tid; i < c.size; i += 128 * 4 * S)
        damacy__prefetch_l2((const void*)(uintptr_t)(c.src + i));
    if (tid == 0)
        shared.bad = 0;
    if (tid < 128)
        damacy__zstd_table_build(table, ring, damacy__zstd_trees(w)[c.tree].weights[tid & 31],
                                 c.log, LOG, tid / 32, 4);
    damacy__sync_block();
    s.ring = damacy__shared_address(ring) + (tid & 31) * 4;
    s.table = damacy__shared_address(table);
    damacy__zstd_steps_build<LOG, S>(s.table, step_table);
    const bool differs = (table[0] ^ table[(1u << LOG) - 1]) & 255; // sorted by length
    s.lo = c.lo;
    s.hi = c.hi;
    bool runs = stream < c.n_streams;
    if (runs && !(damacy__zstd_section_stream(c, stream, begin, end, dst, count) &&
                  damacy__zstd_stream_open(s, begin, end, target))) {
        shared.bad = 1;
        runs = false;
    }
    if (runs)
        damacy__zstd_share_guess<S>(s, lane, target, differs ? 1 : c.log, a);
    damacy__zstd_shares_walk<LOG>(s, step_table, runs, shared, a);
    const uint32_t mine = a.n_before + a.n_after;
    const uint32_t before = damacy__zstd_shares_count(shared, a, mine, runs, target, count);
    if (shared.bad) {
        if (tid == 0)
            damacy__zstd_fail(w, damacy__zstd_blocks(w)[block], c.src, DAMACY__JOB_BAD_LITERALS);
        return;
    }
    uint64_t from = 0, until = 0; // pass B
    uint32_t skip = 0;
    if (runs) {
        const uint64_t own = dst + before;
        damacy__zstd_share_range<S>(own, dst + count, mine, from, until);
        if (from < until) {
            skip = (uint32_t)(from - own);
            s.at = a.start;
            damacy__zstd_ring_start(s);
        } else {
            from = until = 0;
        }
    }
    damacy__sync_warp();
    damacy__zstd_stream_decode<LOG>(s, skip, from, until,
                                    damacy__shared_address(ring) + DAMACY__ZSTD_RING_SIZE);
}

// Sections of all table logs, of the one list that FLAG_ONE_LIST makes, in one table size: the few
// bits more cost less than more kernels.
template <int S>
DAMACY__INLINE void damacy__zstd_literals_split(const damacy__zstd_wave& w, uint8_t* memory)
{
    memory = damacy__zstd_align(memory, 2u << DAMACY__ZSTD_STEP_LOG);
    damacy__zstd_split_shared<S>& shared = *(
        damacy__zstd_split_shared<S>*)(memory + DAMACY__ZSTD_SPLIT_SHARED(S) - 7168 - 32 * S - 16);
    static_assert(sizeof shared <= 32 * S + 16 && DAMACY__ZSTD_STEP_LOG == 12, "host's view");
    uint32_t n;
    const uint32_t* const list = damacy__zstd_section_list(w, 0, n);

    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        damacy__zstd_split_block<11, S>(w, list[i], memory, shared);
        damacy__sync_block(); // shared memory is used again
    }
}
