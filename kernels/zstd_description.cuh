// Reads descriptions of FSE tables (RFC 8878 section 4.1.1): the probability of one symbol after
// another in as few bits as the rest allows, without a length of their own. One lane reads one;
// three words are held, of which one is asked for long before it is due.
#pragma once

#include "kernels/bits.cuh"
#include "kernels/zstd_abi.h"

DAMACY__INLINE uint32_t damacy__zstd_max_symbol(uint32_t table)
{
    return table == DAMACY__ZSTD_LL ? 35u : table == DAMACY__ZSTD_OF ? 31u : 52u;
}

DAMACY__INLINE uint32_t damacy__zstd_max_log(uint32_t table)
{
    return table == DAMACY__ZSTD_OF ? 8u : 9u;
}

// A reader; Words::load(i) is word i of what it reads, for any i.
template <class Words> struct damacy__zstd_description {
    Words words;
    uint32_t at; // bits
    uint32_t low, high, next;
};

template <class Words>
DAMACY__INLINE void damacy__zstd_description_start(damacy__zstd_description<Words>& d, uint32_t at)
{
    d.at = at;
    d.low = d.words.load(at >> 5);
    d.high = d.words.load((at >> 5) + 1);
    d.next = d.words.load((at >> 5) + 2);
}

// The next 32 bits.
template <class Words>
DAMACY__INLINE uint32_t damacy__zstd_description_bits(const damacy__zstd_description<Words>& d)
{
    return damacy__funnel_right(d.low, d.high, d.at & 31);
}

// Steps over n bits, at most 32.
template <class Words>
DAMACY__INLINE void damacy__zstd_description_skip(damacy__zstd_description<Words>& d, uint32_t n)
{
    const uint32_t word = d.at >> 5;

    d.at += n;
    if (d.at >> 5 != word) {
        d.low = d.high;
        d.high = d.next;
        d.next = d.words.load((d.at >> 5) + 2);
    }
}

// Reads the description at d of a table, sets the count of each symbol that is not 0 (-1: less than
// one) and *log. Returns its bytes, at most `limit`; 0 when the log is too large, the probabilities
// do not sum to 1, a symbol is too large or the description does not fit.
template <class Words, class Counts>
static __device__ uint32_t damacy__zstd_description_read(damacy__zstd_description<Words>& d,
                                                         uint32_t limit, uint32_t table,
                                                         const Counts& counts, uint32_t* log)
{
    const uint32_t start = d.at, max_symbol = damacy__zstd_max_symbol(table);
    uint32_t symbol = 0;

    *log = (damacy__zstd_description_bits(d) & 15) + 5;
    if (*log > damacy__zstd_max_log(table))
        return 0;
    int32_t left = (1 << *log) + 1;
    damacy__zstd_description_skip(d, 4);
    while (left > 1 && symbol <= max_symbol) {
        const uint32_t width = 32 - damacy__clz((uint32_t)left);
        const int32_t threshold = 1 << (width - 1), short_codes = 2 * threshold - 1 - left;
        const int32_t v = (int32_t)damacy__zstd_description_bits(d);
        const int32_t low = v & (threshold - 1), all = v & (2 * threshold - 1);
        const bool is_short = low < short_codes;
        const int32_t count = (is_short ? low : all >= threshold ? all - short_codes : all) - 1;
        damacy__zstd_description_skip(d, width - is_short);
        left -= count < 0 ? -count : count;
        counts.set(symbol++, count);
        for (uint32_t run = count == 0 ? 3 : 0; run == 3 && symbol <= max_symbol;) {
            run = damacy__zstd_description_bits(d) & 3; // zeros that follow
            damacy__zstd_description_skip(d, 2);
            symbol += run;
        }
    }
    const uint32_t size = (d.at - start + 7) / 8;
    return left == 1 && symbol <= max_symbol + 1 && size <= limit ? size : 0;
}
