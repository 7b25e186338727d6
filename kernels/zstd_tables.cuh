// Finds where the FSE table descriptions of a block lie (RFC 8878 section 4.1.1): they follow each
// other without lengths, so each is walked, one thread per block. Whoever needs a table then reads
// its description on its own, and a block that repeats one reads it from the block that defined it.
#pragma once

#include "kernels/zstd_common.cuh"

// 16 bits or more of a description from bit `at`; bytes past the limit are zero.
DAMACY__INLINE uint32_t damacy__zstd_table_bits(const uint8_t* src, uint32_t limit, uint32_t at)
{
    const uint32_t byte = at >> 3;
    uint32_t v = 0;

    for (uint32_t i = 0; i < 3; i++)
        if (byte + i < limit)
            v |= (uint32_t)src[byte + i] << (8 * i);
    return v >> (at & 7);
}

// Bytes of the description at src, at most `limit`; 0 if it is broken.
static __device__ uint32_t damacy__zstd_table_size(const uint8_t* src, uint32_t limit,
                                                   uint32_t max_symbol, uint32_t max_log)
{
    const uint32_t log = (damacy__zstd_table_bits(src, limit, 0) & 15) + 5;
    int32_t left = (1 << log) + 1, threshold = 1 << log;
    uint32_t width = log + 1, at = 4, symbol = 0;

    if (log > max_log)
        return 0;
    while (left > 1 && symbol <= max_symbol) {
        const int32_t v = (int32_t)damacy__zstd_table_bits(src, limit, at);
        const int32_t short_codes = 2 * threshold - 1 - left;
        int32_t count = v & (threshold - 1);
        if (count < short_codes) {
            at += width - 1;
        } else {
            count = v & (2 * threshold - 1);
            if (count >= threshold)
                count -= short_codes;
            at += width;
        }
        count--; // -1: less than one
        left -= count < 0 ? -count : count;
        symbol++;
        for (uint32_t run = count == 0 ? 3 : 0; run == 3 && symbol <= max_symbol;) {
            run = damacy__zstd_table_bits(src, limit, at) & 3; // zeros that follow
            at += 2;
            symbol += run;
        }
        while (left < threshold && threshold > 1) {
            width--;
            threshold >>= 1;
        }
    }
    const uint32_t size = (at + 7) / 8;
    return left == 1 && symbol <= max_symbol + 1 && size <= limit ? size : 0;
}

// Sets table_at, bits_at and bits_size of block `index` if it has sequences.
static __device__ void damacy__zstd_tables_block(const damacy__zstd_wave& w, uint32_t index)
{
    damacy__zstd_block& b = damacy__zstd_blocks(w)[index];
    const uint8_t* const src = (const uint8_t*)(uintptr_t)b.sequence_src;
    uint32_t at = 0;
    bool good = true;

    if (b.type != DAMACY__ZSTD_SEQUENCES)
        return;
    for (uint32_t t = 0; t < 3 && good; t++) {
        const uint32_t mode = b.modes >> (2 * t) & 3, limit = b.sequence_size - at;
        const uint32_t max_symbol = t == DAMACY__ZSTD_LL ? 35 : t == DAMACY__ZSTD_OF ? 31 : 52;
        uint32_t size = 0;
        if (mode == DAMACY__ZSTD_PREDEFINED || mode == DAMACY__ZSTD_MODE_REPEAT)
            continue;
        if (mode == DAMACY__ZSTD_MODE_FSE)
            size =
                damacy__zstd_table_size(src + at, limit, max_symbol, t == DAMACY__ZSTD_OF ? 8 : 9);
        else if (limit && src[at] <= max_symbol)
            size = 1;
        b.table_at[t] = at;
        at += size;
        good = size != 0;
    }
    good = good && at < b.sequence_size;
    b.bits_at = at;
    b.bits_size = good ? b.sequence_size - at : 0;
    if (!good)
        damacy__zstd_fail(w, b, b.sequence_src + at, DAMACY__JOB_BAD_TABLE);
}
