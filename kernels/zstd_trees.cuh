// Huffman tree descriptions (RFC 8878 section 4.2.1) to 4-bit weights and a table log. A warp takes
// eight trees, a lane each: the weights are a serial stream of at most 255 symbols.
// Shared memory: 4.9 KB a warp.
#pragma once

#include "kernels/zstd_common.cuh"

#define DAMACY__ZSTD_TREES_PER_WARP 8u
#define DAMACY__ZSTD_TREE_MAX       129u // header byte and 128 bytes of weights

typedef struct damacy__zstd_trees_shared {
    uint32_t weights[DAMACY__ZSTD_TREES_PER_WARP][33]; // odd strides: no bank conflicts
    uint32_t bytes[DAMACY__ZSTD_TREES_PER_WARP][37];   // descriptions, zero padded
    uint16_t tables[DAMACY__ZSTD_TREES_PER_WARP][82];  // 64 states, then counts of 16 symbols
} damacy__zstd_trees_shared;

// What a tree's lane works on.
typedef struct damacy__zstd_weights {
    uint32_t* out;       // 32 words
    const uint32_t* src; // 37 words, zero padded
    uint16_t* table;     // 82 entries
    uint32_t n;          // weights so far
    uint32_t sum;        // of 2^(weight - 1)
    uint32_t n_ones;     // weights equal to 1
    uint32_t word;       // the eight weights being collected
} damacy__zstd_weights;

// 32 bits of the description from bit `at` up. at < 1152.
DAMACY__INLINE uint32_t damacy__zstd_weight_bits(const damacy__zstd_weights& t, uint32_t at)
{
    return damacy__funnel_right(t.src[at >> 5], t.src[(at >> 5) + 1], at);
}

// Appends a weight; false if there are too many or it is too large.
DAMACY__INLINE bool damacy__zstd_weight_put(damacy__zstd_weights& t, uint32_t weight)
{
    if (t.n >= 255 || weight > 11)
        return false;
    t.word |= weight << (4 * (t.n & 7));
    if ((t.n & 7) == 7) {
        t.out[t.n >> 3] = t.word;
        t.word = 0;
    }
    t.n++;
    t.n_ones += weight == 1;
    t.sum += (1u << weight) >> 1;
    return true;
}

// The counts of the FSE table of the weights, from bit 8 on. Returns the bit after them, or 0.
static __device__ uint32_t damacy__zstd_weight_counts(const damacy__zstd_weights& t, uint32_t end,
                                                      uint32_t& log, uint32_t& n_symbols)
{
    uint16_t* const count = t.table + 64;
    uint32_t at = 12, symbol = 0;

    log = (damacy__zstd_weight_bits(t, 8) & 15) + 5;
    if (log > 6)
        return 0;
    uint32_t n_bits = log + 1;
    int32_t left = (1 << log) + 1, threshold = 1 << log;
    for (uint32_t i = 0; i < 16; i++)
        count[i] = 0;
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
        count[symbol++] = (uint16_t)x;
        if (left < 1)
            return 0;
        while (left < threshold) {
            n_bits--;
            threshold >>= 1;
        }
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
    uint16_t* const state = t.table;
    uint16_t* const next = t.table + 64;
    const uint32_t size = 1u << log, step = (size >> 1) + (size >> 3) + 3;
    uint32_t high = size, at = 0;

    for (uint32_t s = 0; s < n_symbols; s++)
        if (next[s] == 0xffff)
            state[--high] = (uint16_t)s; // at most `size` of them: the counts summed up
    for (uint32_t s = 0; s < n_symbols; s++) {
        uint32_t k = next[s];
        if (k == 0xffff) {
            next[s] = 1;
            continue;
        }
        for (; k; k--) {
            state[at & 63] = (uint16_t)s;
            do
                at = (at + step) & (size - 1);
            while (at >= high && high); // a full cycle of `size` steps at most
        }
    }
    if (at)
        return false;
    for (uint32_t i = 0; i < size; i++) {
        const uint32_t s = state[i] & 15, x = next[s]++;
        const uint32_t n_bits = log - (31 - damacy__clz(x | 1));
        state[i] = (uint16_t)(s | n_bits << 4 | ((x << n_bits) - size) << 8);
    }
    return true;
}

// Weights as a stream of two alternating states, read backwards from the end to bit `start`.
static __device__ bool damacy__zstd_weight_stream(damacy__zstd_weights& t, uint32_t start,
                                                  uint32_t end, uint32_t log)
{
    const uint32_t size = 1u << log;
    const uint32_t last = damacy__zstd_weight_bits(t, end - 8) & 255;

    if (start >= end || !last)
        return false;
    int32_t left = (int32_t)(end - 8 + 31 - damacy__clz(last)) - (int32_t)start;
    if (left < 2 * (int32_t)log)
        return false;
    left -= (int32_t)log;
    uint32_t s1 = damacy__zstd_weight_bits(t, start + (uint32_t)left) & (size - 1);
    left -= (int32_t)log;
    uint32_t s2 = damacy__zstd_weight_bits(t, start + (uint32_t)left) & (size - 1);
    for (uint32_t i = 0; i < 256; i++) { // every pass puts a weight
        const uint32_t entry = t.table[s1 & 63], n_bits = entry >> 4 & 15;
        if (!damacy__zstd_weight_put(t, entry & 15))
            return false;
        if (left < (int32_t)n_bits)
            return damacy__zstd_weight_put(t, t.table[s2 & 63] & 15);
        left -= (int32_t)n_bits;
        const uint32_t bits = damacy__zstd_weight_bits(t, start + (uint32_t)left);
        s1 = s2;
        s2 = (entry >> 8) + (bits & ((1u << n_bits) - 1));
    }
    return false;
}

// Decodes one description of at most `limit` bytes. Returns the table log (1-11), or 0.
static __device__ uint32_t damacy__zstd_tree_decode(damacy__zstd_weights& t, uint32_t limit,
                                                    uint32_t& size)
{
    const uint32_t header = t.src[0] & 255;

    t.n = t.sum = t.n_ones = t.word = 0;
    for (uint32_t i = 0; i < 32; i++)
        t.out[i] = 0;
    size = header >= 128 ? 1 + (header - 126) / 2 : 1 + header;
    if (limit < 1 || size > limit)
        return 0;
    if (header >= 128) {
        for (uint32_t i = 0; i < header - 127; i++) { // high nibble first
            const uint32_t byte = damacy__zstd_weight_bits(t, 8 + (i / 2) * 8);
            if (!damacy__zstd_weight_put(t, i & 1 ? byte & 15 : byte >> 4 & 15))
                return 0;
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
    if (!t.sum)
        return 0;
    const uint32_t log = 32 - damacy__clz(t.sum), rest = (1u << log) - t.sum;
    if (log > 11 || (rest & (rest - 1)))
        return 0;
    const uint32_t weight = 32 - damacy__clz(rest); // of the last symbol, which is implied
    t.n_ones += weight == 1;
    t.word |= weight << (4 * (t.n & 7));
    t.out[t.n >> 3] = t.word;
    return t.n_ones < 2 || (t.n_ones & 1) ? 0 : log;
}

// Trees [first, first + 8) of the wave, by one warp.
static __device__ void damacy__zstd_trees_decode(const damacy__zstd_wave& w,
                                                 damacy__zstd_trees_shared& shared, uint32_t first)
{
    const uint32_t n = damacy__zstd_counts(w)->n_trees, lane = damacy__lane(), k = lane >> 2;
    damacy__zstd_tree* const trees = damacy__zstd_trees(w);
    const uint32_t index = first + k;
    const uint8_t* src = 0;
    uint32_t limit = 0;

    if (index < n) {
        src = (const uint8_t*)(uintptr_t)trees[index].src;
        limit = trees[index].limit;
    }
    uint8_t* const bytes = (uint8_t*)shared.bytes[k];
    for (uint32_t i = lane & 3; i < 4 * 37; i += 4) // bytes: any alignment, no read past the end
        bytes[i] = i < damacy__min(limit, DAMACY__ZSTD_TREE_MAX) ? src[i] : 0;
    damacy__sync_warp();
    if (index < n && !(lane & 3)) {
        damacy__zstd_weights t;
        uint32_t size;
        t.out = shared.weights[k];
        t.src = shared.bytes[k];
        t.table = shared.tables[k];
        const uint32_t log = damacy__zstd_tree_decode(t, limit, size);
        trees[index].log = log;
        trees[index].size = log ? size : 0;
        if (!log)
            damacy__zstd_fail(w, damacy__zstd_blocks(w)[trees[index].block], trees[index].src,
                              DAMACY__JOB_BAD_HUFFMAN);
    }
    damacy__sync_warp();
    for (uint32_t i = 0; i < DAMACY__ZSTD_TREES_PER_WARP; i++)
        if (first + i < n)
            trees[first + i].weights[lane] = shared.weights[i][lane];
}
