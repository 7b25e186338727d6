// Huffman tree descriptions (RFC 8878 section 4.2.1) to 4-bit weights and a table log. The weights
// of a tree are a serial stream of at most 255 symbols, so a lane decodes them, and what it waits
// for is kept short. Shared memory: 3.4 KB a warp.
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
    uint32_t out;    // 32 words
    uint32_t words;  // of the description
    uint32_t skew;   // bits of the first word before it
    uint32_t states; // 64 of 16 bits
    uint32_t counts; // 16 of 8 bits
    uint32_t n;      // weights so far
    uint32_t sum;    // of 2^(weight - 1)
    uint32_t n_ones; // weights equal to 1
    uint32_t most;   // largest weight
    uint32_t word;   // the eight weights being collected
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
    t.n_ones += weight == 1;
    t.sum += (1u << weight) >> 1;
    t.most = damacy__max(t.most, weight);
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

// States of the weights' FSE table: weight | bits << 4 | base << 8.
static __device__ bool damacy__zstd_weight_states(const damacy__zstd_weights& t, uint32_t log,
                                                  uint32_t n_symbols)
{
    const uint32_t size = 1u << log, step = (size >> 1) + (size >> 3) + 3;
    uint64_t low = 0, high = 0; // the next state number of each symbol, 7 bits
    uint32_t end = size, at = 0;

    for (uint32_t s = 0; s < n_symbols; s++) {
        const uint32_t count = damacy__lds8(t.counts + s);
        const uint64_t first = count == 255 ? 1 : count;
        if (count == 255)
            damacy__sts16(t.states + 2 * --end, s); // at most `size`: the counts summed up
        low |= s < 8 ? first << (8 * s) : 0;
        high |= s < 8 ? 0 : first << (8 * (s - 8));
    }
    for (uint32_t s = 0; s < n_symbols; s++) {
        const uint32_t count = damacy__lds8(t.counts + s);
        for (uint32_t k = count == 255 ? 0 : count; k; k--) {
            damacy__sts16(t.states + 2 * at, s);
            do
                at = (at + step) & (size - 1);
            while (at >= end && end); // a full cycle of `size` steps at most
        }
    }
    if (at)
        return false;
    for (uint32_t i = 0; i < size; i++) {
        const uint32_t s = damacy__lds16(t.states + 2 * i) & 15, shift = 8 * (s & 7);
        const uint32_t x = (uint32_t)((s < 8 ? low : high) >> shift) & 255;
        const uint32_t n_bits = log - (31 - damacy__clz(x | 1));
        low += s < 8 ? 1ull << shift : 0;
        high += s < 8 ? 0 : 1ull << shift;
        damacy__sts16(t.states + 2 * i, s | n_bits << 4 | ((x << n_bits) - size) << 8);
    }
    return true;
}

// Where a lane is in the stream of weights: two states that take turns, as their entries, and the
// bits around `at` in registers.
typedef struct damacy__zstd_weight_walk {
    uint32_t next, after;      // entries of the two states
    uint32_t at, a;            // the lowest bit read, from the first word on; address of its word
    uint32_t high, low, below; // the words above, at and below it
} damacy__zstd_weight_walk;

// Steps n <= 12 bits back and returns 32 bits from there on.
DAMACY__INLINE uint32_t damacy__zstd_weight_back(const damacy__zstd_weights& t,
                                                 damacy__zstd_weight_walk& k, uint32_t n)
{
    if ((k.at & 31) < n) { // on to the word below
        k.high = k.low;
        k.low = k.below;
        k.a -= 4;
        k.below = damacy__lds32(k.a > t.words ? k.a - 4 : k.a);
    }
    k.at -= n;
    return damacy__funnel_right(k.low, k.high, k.at & 31);
}

// The entry of the state that `entry` and its bits lead to.
DAMACY__INLINE uint32_t damacy__zstd_weight_entry(const damacy__zstd_weights& t, uint32_t entry,
                                                  uint32_t bits)
{
    const uint32_t state = (entry >> 8) + (bits & ((1u << (entry >> 4 & 15)) - 1));
    return damacy__lds16(t.states + 2 * (state & 63));
}

// Weights as a stream of two alternating states, read backwards from the end to bit `start`: two at
// a time, as both states are known, until the last few.
static __device__ bool damacy__zstd_weight_stream(damacy__zstd_weights& t, uint32_t start,
                                                  uint32_t end, uint32_t log)
{
    const uint32_t size = 1u << log;
    damacy__zstd_weight_walk k;

    if (start >= end)
        return false;
    const uint32_t last = damacy__zstd_weight_bits(t, end - 8) & 255;
    if (!last)
        return false;
    int32_t left = (int32_t)(end - 8 + 31 - damacy__clz(last)) - (int32_t)start;
    if (left < 2 * (int32_t)log)
        return false;
    left -= 2 * (int32_t)log;
    k.at = start + t.skew + (uint32_t)left;
    k.a = t.words + (k.at >> 5) * 4;
    k.high = damacy__lds32(k.a + 4);
    k.low = damacy__lds32(k.a);
    k.below = damacy__lds32(k.a > t.words ? k.a - 4 : k.a);
    const uint32_t bits = damacy__funnel_right(k.low, k.high, k.at & 31);
    k.next = damacy__lds16(t.states + 2 * (bits >> log & (size - 1)));
    k.after = damacy__lds16(t.states + 2 * (bits & (size - 1)));
    while (t.n < 254) {
        const uint32_t n_next = k.next >> 4 & 15, n_after = k.after >> 4 & 15;
        if (left < (int32_t)(n_next + n_after))
            break;
        left -= (int32_t)(n_next + n_after);
        damacy__zstd_weight_put(t, k.next & 15);
        damacy__zstd_weight_put(t, k.after & 15);
        const uint32_t both = damacy__zstd_weight_back(t, k, n_next + n_after);
        k.next = damacy__zstd_weight_entry(t, k.next, both >> n_after);
        k.after = damacy__zstd_weight_entry(t, k.after, both);
    }
    while (t.n < 255) {
        const uint32_t entry = k.next, n_bits = entry >> 4 & 15;
        damacy__zstd_weight_put(t, entry & 15);
        left -= (int32_t)n_bits;
        if (left < 0) {
            if (t.n >= 255)
                return false;
            damacy__zstd_weight_put(t, k.after & 15);
            return true;
        }
        k.next = k.after;
        k.after = damacy__zstd_weight_entry(t, entry, damacy__zstd_weight_back(t, k, n_bits));
    }
    return false;
}

// Decodes one description of at most `limit` bytes. Returns the table log (1-11), or 0.
static __device__ uint32_t damacy__zstd_tree_decode(damacy__zstd_weights& t, uint32_t limit,
                                                    uint32_t& size)
{
    const uint32_t header = damacy__zstd_weight_bits(t, 0) & 255;

    t.n = t.sum = t.n_ones = t.most = t.word = 0;
    size = header >= 128 ? 1 + (header - 126) / 2 : 1 + header;
    if (limit < 1 || size > limit)
        return 0;
    if (header >= 128) {
        for (uint32_t i = 0; i < header - 127; i++) { // high nibble first
            const uint32_t byte = damacy__zstd_weight_bits(t, 8 + (i / 2) * 8);
            damacy__zstd_weight_put(t, i & 1 ? byte & 15 : byte >> 4 & 15);
        }
    } else {
        uint32_t log, n_symbols, end = 8 + header * 8;
        if (header < 2)
            return 0;
        const uint32_t at = damacy__zstd_weight_counts(t, end, log, n_symbols);
        if (!at || !damacy__zstd_weight_states(t, log, n_symbols) ||
            !damacy__zstd_weight_stream(t, (at + 7) & ~7u, end, log))
            return 0;
    }
    if (!t.sum || t.most > 11)
        return 0;
    const uint32_t log = 32 - damacy__clz(t.sum), rest = (1u << log) - t.sum;
    if (log > 11 || (rest & (rest - 1)))
        return 0;
    const uint32_t weight = 32 - damacy__clz(rest); // of the last symbol, which is implied
    t.n_ones += weight == 1;
    t.word |= weight << (4 * (t.n & 7));
    damacy__sts32(t.out + (t.n >> 3) * 4, t.word);
    return t.n_ones < 2 || (t.n_ones & 1) ? 0 : log;
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
        const uint32_t index = damacy__min(first + k, n - 1);
        const bool here = first + k < n;
        const uint64_t src = trees[index].src;
        const uint32_t limit = trees[index].limit;
        const uint64_t end = src + damacy__min(limit, DAMACY__ZSTD_TREE_MAX);
        for (uint32_t i = lane % spread; i < DAMACY__ZSTD_TREE_WORDS; i += spread)
            shared.words[k][i] = damacy__load_word_within((src & ~3ull) + 4 * i, src, end);
        for (uint32_t i = lane % spread; i < 32; i += spread)
            shared.weights[k][i] = 0;
        damacy__sync_warp();
        if (here && lane % spread == 0) {
            damacy__zstd_weights t;
            uint32_t size;
            t.out = damacy__shared_address(shared.weights[k]);
            t.words = damacy__shared_address(shared.words[k]);
            t.skew = 8 * (uint32_t)(src & 3);
            t.states = damacy__shared_address(shared.states[k]);
            t.counts = damacy__shared_address(shared.counts[k]);
            const uint32_t log = damacy__zstd_tree_decode(t, limit, size);
            trees[index].log = damacy__zstd_tree_logs(w)[index] = log;
            trees[index].size = log ? size : 0;
            if (!log)
                damacy__zstd_fail(w, damacy__zstd_blocks(w)[trees[index].block], src,
                                  DAMACY__JOB_BAD_HUFFMAN);
        }
        damacy__sync_warp();
        for (uint32_t i = 0; i < damacy__min(per, n - first); i++)
            trees[first + i].weights[lane] = shared.weights[i][lane];
        damacy__sync_warp(); // shared memory is written again
    }
}
