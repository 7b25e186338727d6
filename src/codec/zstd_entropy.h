/* Literals of Zstandard: Huffman streams (RFC 8878 section 4.2), one or four side by side, by the
 * trees of zstd_tables.h. */
#pragma once
#include "codec/zstd_tables.h"

/* Up to 5 symbols from one word: 5 codes of 11 bits. */
static inline void damacy__zstd_symbols_5(const uint16_t* tree, uint32_t shift,
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

/* The literals section at *at; leaves the literals in z and moves *at behind them. */
static damacy_status damacy__zstd_literals(damacy__zstd_scalar* z, const uint8_t** at,
                                           damacy_error* err)
{
    const uint8_t* const start = *at;
    const uint32_t type = start[0] & 3;
    const uint32_t format = start[0] >> 2 & 3;
    const bool is_coded = type >= 2;
    const uint32_t n_bits = format < 2 ? 10 : format == 2 ? 14 : 18;
    const uint32_t n_header = is_coded ? (n_bits * 2 + 4) / 8 : format & 1 ? format / 2 + 2 : 1;
    damacy__zstd_bits bits = {NULL, 0};
    uint64_t header = 0;
    damacy__span src;

    for (uint32_t i = 0; i < n_header; i++) {
        header |= (uint64_t)start[i] << (8 * i);
    }
    src.ptr = start + n_header;
    z->literals = z->buffer;
    if (!is_coded) {
        z->n_literals = (size_t)(header >> (n_header == 1 ? 3 : 4));
        src.size = type == 0 ? z->n_literals : 1;
        if (type == 0) {
            memcpy(z->buffer, src.ptr, z->n_literals);
        } else {
            memset(z->buffer, src.ptr[0], z->n_literals);
        }
        *at = src.ptr + src.size;
        return DAMACY_OK;
    }
    z->n_literals = (size_t)(header >> 4 & ((1u << n_bits) - 1));
    src.size = (size_t)(header >> (4 + n_bits));
    *at = src.ptr + src.size;
    if (type == 2) {
        const size_t size = damacy__zstd_tree_read(z, src);
        if (size == 0) {
            return damacy__zstd_scalar_refuse(z, src.ptr, "a broken Huffman tree", err);
        }
        src = damacy__span_of(src.ptr + size, src.size - size);
    }
    if (format == 0 ? !damacy__zstd_bits_open(&bits, src.ptr, src.size) ||
                          !damacy__zstd_symbols(z, bits, z->buffer, 0, z->n_literals)
                    : !damacy__zstd_symbols_4(z, src, z->buffer, z->n_literals)) {
        return damacy__zstd_scalar_refuse(z, src.ptr, "broken Huffman streams", err);
    }
    return DAMACY_OK;
}
