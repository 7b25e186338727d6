/* Huffman streams of Zstandard (RFC 8878 section 4.2), one or four side by side, by the trees of
 * zstd_tables.h. */
#pragma once
#include "codec/zstd_tables.h"

/* Up to 5 symbols from one word: 5 codes of 11 bits. */
DAMACY__ALWAYS_INLINE void damacy__zstd_symbols_5(const uint16_t* tree, uint32_t shift,
                                                  damacy__zstd_bits* bits, uint8_t* dst)
{
    uint64_t word = damacy__zstd_bits_word(bits);
    uint32_t used = 0;

    for (uint32_t k = 0; k < 5; k++) {
        const uint32_t code = tree[word >> shift];
        dst[k] = (uint8_t)(code >> 8);
        word <<= code & 15;
        used += code & 15;
    }
    bits->left -= used;
}

/* The symbols from i to n of a stream, using up all its bits. */
static bool damacy__zstd_symbols(const damacy__zstd_scalar* z, damacy__zstd_bits bits, uint8_t* dst,
                                 size_t i, size_t n)
{
    const uint32_t shift = 64 - z->tree_log;

    for (; i + 5 <= n && bits.left >= 55; i += 5) {
        damacy__zstd_symbols_5(z->tree, shift, &bits, dst + i);
    }
    for (; i < n && bits.left > 0; i++) {
        const uint32_t code = z->tree[damacy__zstd_bits_word(&bits) >> shift];
        dst[i] = (uint8_t)(code >> 8);
        bits.left -= code & 15;
    }
    return i == n && bits.left == 0;
}

/* Four streams, whose sizes the jump table gives (section 3.1.1.3.1.6), side by side as far as all
 * have symbols left. */
static bool damacy__zstd_symbols_4(const damacy__zstd_scalar* z, damacy__span src, uint8_t* dst,
                                   size_t n)
{
    const uint32_t shift = 64 - z->tree_log;
    const size_t part = (n + 3) / 4;
    damacy__zstd_bits bits[4] = {{NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    bool is_good = true;
    size_t at = 6;
    size_t done = 0;

    if (src.size < 6 || 3 * part > n) {
        return false;
    }
    for (uint32_t i = 0; i < 4; i++) {
        const size_t rest = src.size - at;
        const size_t size = i < 3 ? damacy__load_u16le(src.ptr + 2 * i) : rest;
        if (size > rest || !damacy__zstd_bits_open(&bits[i], src.ptr + at, size)) {
            return false;
        }
        at += size;
    }
    while (done + 5 <= n - 3 * part && bits[0].left >= 55 && bits[1].left >= 55 &&
           bits[2].left >= 55 && bits[3].left >= 55) {
        for (uint32_t i = 0; i < 4; i++) {
            damacy__zstd_symbols_5(z->tree, shift, &bits[i], dst + i * part + done);
        }
        done += 5;
    }
    for (uint32_t i = 0; i < 4; i++) {
        is_good =
            damacy__zstd_symbols(z, bits[i], dst + i * part, done, i < 3 ? part : n - 3 * part) &&
            is_good;
    }
    return is_good;
}
