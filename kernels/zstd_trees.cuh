// Huffman tree descriptions (RFC 8878 section 4.2.1) to 4-bit weights and a table log. The weights
// of a tree are a serial stream of at most 255 symbols, so a lane decodes them; the table that it
// needs for that, and sums of weights, are made by the whole warp, a tree after the other: with
// many warps a multiprocessor, what counts is how many instructions a tree takes. Shared memory:
// 3.4 KB a warp.
#pragma once

#include "kernels/zstd_common.cuh"

#define DAMACY__ZSTD_TREES_PER_WARP 8u   // at most
#define DAMACY__ZSTD_TREE_MAX       129u // header byte and 128 bytes of weights
#define DAMACY__ZSTD_TREE_WORDS     37u  // that begin anywhere in a word, and two words read ahead

typedef struct damacy__zstd_trees_shared {
    uint32_t weights[DAMACY__ZSTD_TREES_PER_WARP][33]; // odd strides: no bank conflicts
    uint32_t words[DAMACY__ZSTD_TREES_PER_WARP][DAMACY__ZSTD_TREE_WORDS]; // zero padded
    uint16_t states[DAMACY__ZSTD_TREES_PER_WARP][64];
    int8_t counts[DAMACY__ZSTD_TREES_PER_WARP][16]; // of the symbols of the weights' table
} damacy__zstd_trees_shared;
typedef struct damacy__zstd_trees_warps { // of a block of 64 threads
    damacy__zstd_trees_shared warps[2];
} damacy__zstd_trees_warps;

// What a tree's lane works on. Places are addresses in shared memory.
typedef struct damacy__zstd_weights {
    uint32_t out;       // 32 words
    uint32_t words;     // of the description
    uint32_t skew;      // bits of the first word before it
    uint32_t states;    // 64 of 16 bits
    uint32_t counts;    // 16 of 8 bits
    uint32_t n;         // weights so far
    uint32_t word;      // the eight weights being collected
    uint32_t at, end;   // bits of the description with the stream of weights
    uint32_t log;       // of the table of that, 0: there is none
    uint32_t n_symbols; // in it
} damacy__zstd_weights;

// 32 bits of the description from bit `at` up. at < 1120.
DAMACY__INLINE uint32_t damacy__zstd_weight_bits(const damacy__zstd_weights& t, uint32_t at)
{
    const uint32_t bit = at + t.skew, a = t.words + (bit >> 5) * 4;
    return damacy__funnel_right(damacy__lds32(a), damacy__lds32(a + 4), bit & 31);
}

// Appends a weight, of which there are fewer than 255.
DAMACY__INLINE void damacy__zstd_weight_put(damacy__zstd_weights& t, uint32_t weight)
{
    t.word |= weight << (4 * (t.n & 7));
    if ((t.n & 7) == 7) {
        damacy__sts32(t.out + (t.n >> 3) * 4, t.word);
        t.word = 0;
    }
    t.n++;
}

// The counts of the FSE table of the weights, from bit 8 on. Returns the bit after them, or 0.
static __device__ uint32_t damacy__zstd_weight_counts(const damacy__zstd_weights& t, uint32_t end,
                                                      uint32_t& log, uint32_t& n_symbols)
{
    uint32_t at = 12, symbol = 0;

    log = (damacy__zstd_weight_bits(t, 8) & 15) + 5;
    if (log > 6)
        return 0;
    uint32_t n_bits = log + 1;
    int32_t left = (1 << log) + 1, threshold = 1 << log;
    for (uint32_t i = 0; i < 16; i += 4)
        damacy__sts32(t.counts + i, 0);
    while (left > 1 && symbol < 13) {
        if (at > end)
            return 0;
        const uint32_t v = damacy__zstd_weight_bits(t, at);
        const int32_t short_codes = 2 * threshold - 1 - left;
        int32_t x = (int32_t)(v & (uint32_t)(threshold - 1));
        if (x < short_codes) {
            at += n_bits - 1;
        } else {
            x = (int32_t)(v & (uint32_t)(2 * threshold - 1));
            if (x >= threshold)
                x -= short_codes;
            at += n_bits;
        }
        x--; // -1: less than one
        left -= x < 0 ? -x : x;
        damacy__sts8(t.counts + symbol++, (uint32_t)x & 255);
        if (left < 1)
            return 0;
        n_bits = 32 - damacy__clz((uint32_t)left); // as many as `left` has
        threshold = 1 << (n_bits - 1);
        for (uint32_t run = x == 0 ? 3 : 0; run == 3;) { // zero runs
            if (at + 2 > end)
                return 0;
            run = damacy__zstd_weight_bits(t, at) & 3;
            at += 2;
            symbol += run;
            if (symbol > 13)
                return 0;
        }
    }
    n_symbols = symbol;
    return left == 1 && at <= end ? at : 0;
}

// Whose symbol a state is, by the order in which they are dealt out (section 4.1.1); a warp, lane s
// with the number of symbols 0 ... s. `rank` counts without the states at the end, of symbols that
// are less likely than one.
DAMACY__INLINE uint32_t damacy__zstd_weight_symbol(uint32_t upto, uint32_t n_symbols, uint32_t rank)
{
    uint32_t s = 0;

    for (uint32_t i = 0; i + 1 < n_symbols; i++)
        s += damacy__shfl(upto, i) <= rank ? 1 : 0;
    return s;
}

// States of the weights' FSE table: weight | bits << 4 | base << 9. A warp; counts that sum up, so
// that an entry leads to one of the table whatever its bits are.
static __device__ void damacy__zstd_weight_states(uint32_t states, uint32_t counts, uint32_t log,
                                                  uint32_t n_symbols)
{
    const uint32_t lane = damacy__lane(), below = (1u << lane) - 1;
    const uint32_t size = 1u << log, step = (size >> 1) + (size >> 3) + 3;
    const uint32_t count = lane < n_symbols ? damacy__lds8(counts + lane) : 0;
    const uint32_t rare = damacy__ballot(count == 255);
    const uint32_t end = size - damacy__popc(rare);
    const uint32_t upto = damacy__sum_upto(count == 255 ? 0 : count, lane);
    const uint32_t first = count == 255 ? 1 : count; // next state number of a symbol
    uint32_t n_dealt = 0, before[4] = {};

    if (count == 255)
        damacy__sts16(states + 2 * (size - 1 - damacy__popc(rare & below)), lane);
    for (uint32_t j = lane; j < size; j += 32) {
        const uint32_t at = (j * step) & (size - 1), dealt = damacy__ballot(at < end);
        const uint32_t rank = n_dealt + damacy__popc(dealt & below);
        const uint32_t s = damacy__zstd_weight_symbol(upto, n_symbols, rank);
        if (at < end)
            damacy__sts16(states + 2 * at, s);
        n_dealt += damacy__popc(dealt);
    }
    damacy__sync_warp();
    for (uint32_t i = lane; i < size; i += 32) {
        const uint32_t s = damacy__lds16(states + 2 * i) & 15;
        uint32_t same = below, same_before = i < 32 ? 0 : 0xffffffffu; // lanes of this symbol
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t has = damacy__ballot(s >> k & 1);
            same &= s >> k & 1 ? has : ~has;
            same_before &= s >> k & 1 ? before[k] : ~before[k];
            before[k] = has;
        }
        const uint32_t x = damacy__shfl(first, s) + damacy__popc(same) + damacy__popc(same_before);
        const uint32_t n_bits = log - (31 - damacy__clz(x | 1));
        damacy__sts16(states + 2 * i, s | n_bits << 4 | ((x << n_bits) - size) << 9);
    }
}

// Where a lane is in the stream of weights: two states that take turns, as their entries, and the
// next bits, of which the topmost are first.
typedef struct damacy__zstd_weight_walk {
    uint32_t next, after;
    uint32_t high, low;
} damacy__zstd_weight_walk;

// Loads the 64 bits before bit `at` of the description; what lies before its first word is not
// used.
DAMACY__INLINE void damacy__zstd_weight_window(const damacy__zstd_weights& t, uint32_t at,
                                               damacy__zstd_weight_walk& k)
{
    const uint32_t bit = at + t.skew, a = t.words + (bit >> 5) * 4;
    const uint32_t v1 = damacy__lds32(damacy__max(a, t.words + 4) - 4);
    const uint32_t v2 = damacy__lds32(damacy__max(a, t.words + 8) - 8);

    k.high = damacy__funnel_right(v1, damacy__lds32(a), bit & 31);
    k.low = damacy__funnel_right(v2, v1, bit & 31);
}

// The entry after `entry`, whose bits are the topmost of `high`.
DAMACY__INLINE uint32_t damacy__zstd_weight_entry(const damacy__zstd_weights& t, uint32_t entry,
                                                  uint32_t high)
{
    const uint32_t bits = damacy__funnel_left(high, 0, entry >> 4);
    return damacy__lds16((entry >> 8) + t.states + 2 * bits);
}

// Takes n modulo 32 bits.
DAMACY__INLINE void damacy__zstd_weight_skip(damacy__zstd_weight_walk& k, uint32_t n)
{
    k.high = damacy__funnel_left(k.low, k.high, n);
    k.low = damacy__funnel_left(0, k.low, n);
}

// Eight weights, by two, as both states are known. Returns how many bits they have taken, of 48 at
// most.
DAMACY__INLINE uint32_t damacy__zstd_weight_eight(damacy__zstd_weights& t,
                                                  damacy__zstd_weight_walk& k)
{
    uint32_t weights = 0, n_bits = 0;

#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t next = k.next, after = k.after, both = ((next >> 4) + (after >> 4)) & 31;
        const uint32_t behind = damacy__funnel_left(k.low, k.high, next >> 4);
        k.next = damacy__zstd_weight_entry(t, next, k.high);
        k.after = damacy__zstd_weight_entry(t, after, behind);
        damacy__zstd_weight_skip(k, both);
        weights = damacy__funnel_right(weights, next, 4);
        weights = damacy__funnel_right(weights, after, 4);
        n_bits += both;
    }
    damacy__sts32(t.out + (t.n >> 3) * 4, weights);
    t.n += 8;
    return n_bits;
}

// Weights as a stream of two alternating states, read backwards from the end to bit `start`.
static __device__ bool damacy__zstd_weight_stream(damacy__zstd_weights& t)
{
    const uint32_t start = t.at, end = t.end, log = t.log;
    damacy__zstd_weight_walk k;

    if (start >= end)
        return false;
    const uint32_t last = damacy__zstd_weight_bits(t, end - 8) & 255;
    if (!last)
        return false;
    int32_t left = (int32_t)(end - 8 + 31 - damacy__clz(last)) - (int32_t)start;
    if (left < 2 * (int32_t)log)
        return false;
    damacy__zstd_weight_window(t, start + (uint32_t)left, k);
    k.next = damacy__zstd_weight_entry(t, log << 4, k.high); // log bits from the first entry on
    damacy__zstd_weight_skip(k, log);
    k.after = damacy__zstd_weight_entry(t, log << 4, k.high);
    left -= 2 * (int32_t)log;
#pragma unroll 1
    while (left >= 48 && t.n < 248) {
        damacy__zstd_weight_window(t, start + (uint32_t)left, k);
        left -= (int32_t)damacy__zstd_weight_eight(t, k);
    }
    damacy__zstd_weight_window(t, start + (uint32_t)left, k); // 47 bits, or of at most 7 weights
#pragma unroll 1
    while (t.n < 255) {
        const uint32_t entry = k.next, n_bits = entry >> 4 & 31;
        damacy__zstd_weight_put(t, entry & 15);
        left -= (int32_t)n_bits;
        if (left < 0) {
            if (t.n >= 255)
                return false;
            damacy__zstd_weight_put(t, k.after & 15);
            return true;
        }
        k.next = k.after;
        k.after = damacy__zstd_weight_entry(t, entry, k.high);
        damacy__zstd_weight_skip(k, n_bits);
    }
    return false;
}

// The first part of a description of at most `limit` bytes: weights that are not compressed, or
// what their table is made of, into a t without either. Its size goes to `size`; false if it is
// broken.
static __device__ bool damacy__zstd_tree_begin(damacy__zstd_weights& t, uint32_t limit,
                                               uint32_t& size)
{
    const uint32_t header = damacy__zstd_weight_bits(t, 0) & 255;

    size = header >= 128 ? 1 + (header - 126) / 2 : 1 + header;
    if (limit < 1 || size > limit)
        return false;
    if (header >= 128) {
        for (uint32_t i = 0; i < header - 127; i++) { // high nibble first
            const uint32_t byte = damacy__zstd_weight_bits(t, 8 + (i / 2) * 8);
            damacy__zstd_weight_put(t, i & 1 ? byte & 15 : byte >> 4 & 15);
        }
        return true;
    }
    if (header < 2)
        return false;
    uint32_t log;
    t.end = 8 + header * 8;
    const uint32_t at = damacy__zstd_weight_counts(t, t.end, log, t.n_symbols);
    t.at = (at + 7) & ~7u;
    t.log = at ? log : 0;
    return at != 0;
}

// Of a tree's weights: the sum of 2^(weight - 1), and how many are 1 above bit 22; 0 if one is
// larger than 11. A warp.
DAMACY__INLINE uint32_t damacy__zstd_weights_sum(uint32_t eight)
{
    const uint32_t ones = eight ^ 0x11111111u; // their nibbles are 0
    uint32_t sum = 0;

#pragma unroll
    for (uint32_t j = 0; j < 32; j += 4)
        sum += (1u << (eight >> j & 15)) >> 1;
    sum += damacy__popc(~(ones | ones >> 1 | ones >> 2 | ones >> 3) & 0x11111111u) << 22;
    const bool is_large = damacy__any((eight & eight << 1 & 0x88888888u) != 0);
    sum = damacy__warp_sum(sum);
    return is_large ? 0 : sum;
}

// The last part: the weight of the last symbol, which is implied. `sums`: of
// damacy__zstd_weights_sum. Returns the table log (1-11), or 0.
DAMACY__INLINE uint32_t damacy__zstd_tree_end(const damacy__zstd_weights& t, uint32_t sums)
{
    const uint32_t sum = sums & 0x3fffff, log = 32 - damacy__clz(sum);
    const uint32_t rest = (1u << (log & 31)) - sum;

    if (!sum || log > 11 || (rest & (rest - 1)))
        return 0;
    const uint32_t weight = 32 - damacy__clz(rest), n_ones = (sums >> 22) + (weight == 1 ? 1 : 0);
    damacy__sts32(t.out + (t.n >> 3) * 4, t.word | weight << (4 * (t.n & 7)));
    return n_ones < 2 || (n_ones & 1) ? 0 : log;
}

// The trees of a warp, n of them, `spread` lanes each, whose descriptions are in shared memory: the
// table log of this lane's, or 0 if it is broken or not there.
DAMACY__INLINE uint32_t damacy__zstd_trees_some(damacy__zstd_trees_shared& shared, uint32_t n,
                                                uint32_t spread, uint32_t skew, uint32_t limit,
                                                uint32_t& size)
{
    const uint32_t lane = damacy__lane(), k = lane / spread;
    const bool here = k < n && lane % spread == 0;
    damacy__zstd_weights t;
    bool good = false;
    uint32_t sums = 0;

    t.out = damacy__shared_address(shared.weights[k]);
    t.words = damacy__shared_address(shared.words[k]);
    t.skew = skew;
    t.states = damacy__shared_address(shared.states[k]);
    t.counts = damacy__shared_address(shared.counts[k]);
    t.n = t.word = t.log = t.n_symbols = size = 0;
    if (here)
        good = damacy__zstd_tree_begin(t, limit, size);
    damacy__sync_warp();
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t log = damacy__shfl(t.log, i * spread);
        const uint32_t n_symbols = damacy__shfl(t.n_symbols, i * spread);
        if (log)
            damacy__zstd_weight_states(damacy__shared_address(shared.states[i]),
                                       damacy__shared_address(shared.counts[i]), log, n_symbols);
    }
    damacy__sync_warp();
    if (good && t.log)
        good = damacy__zstd_weight_stream(t);
    if (good && (t.n & 7))
        damacy__sts32(t.out + (t.n >> 3) * 4, t.word);
    damacy__sync_warp();
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t sum = damacy__zstd_weights_sum(shared.weights[i][lane]);
        sums = i == k ? sum : sums;
    }
    damacy__sync_warp();
    return good ? damacy__zstd_tree_end(t, sums) : 0;
}

// Trees of the wave, `spread` lanes each: as many as the grid has, at most a warp, as lanes of a
// warp wait for each other.
static __device__ void damacy__zstd_trees_decode(const damacy__zstd_wave& w,
                                                 damacy__zstd_trees_shared& shared)
{
    const uint32_t n = damacy__zstd_counts(w)->n_trees, lane = damacy__lane();
    const uint32_t spread = damacy__zstd_spread(n, 32 / DAMACY__ZSTD_TREES_PER_WARP);
    const uint32_t per = 32 / spread, k = lane / spread, n_warps = gridDim.x * (blockDim.x / 32);
    damacy__zstd_tree* const trees = damacy__zstd_trees(w);

    for (uint32_t first = per * (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32); first < n;
         first += per * n_warps) {
        const uint32_t index = damacy__min(first + k, n - 1), some = damacy__min(per, n - first);
        const uint64_t src = trees[index].src;
        const uint32_t limit = trees[index].limit;
        const uint64_t end = src + damacy__min(limit, DAMACY__ZSTD_TREE_MAX);
        uint32_t size;
        for (uint32_t i = lane % spread; i < DAMACY__ZSTD_TREE_WORDS; i += spread)
            shared.words[k][i] = damacy__load_word_within((src & ~3ull) + 4 * i, src, end);
        for (uint32_t i = lane % spread; i < 32; i += spread)
            shared.weights[k][i] = 0;
        damacy__sync_warp();
        const uint32_t log =
            damacy__zstd_trees_some(shared, some, spread, 8 * (uint32_t)(src & 3), limit, size);
        if (k < some && lane % spread == 0) {
            trees[index].log = damacy__zstd_tree_logs(w)[index] = log;
            trees[index].size = log ? size : 0;
            if (!log)
                damacy__zstd_fail(w, damacy__zstd_blocks(w)[trees[index].block], src,
                                  DAMACY__JOB_BAD_HUFFMAN);
        }
        damacy__sync_warp();
        for (uint32_t i = 0; i < some; i++)
            trees[first + i].weights[lane] = shared.weights[i][lane];
        damacy__sync_warp(); // shared memory is written again
    }
}
