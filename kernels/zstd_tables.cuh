// Finds where the FSE table descriptions of a block lie (RFC 8878 section 4.1.1): they follow each
// other without lengths, so each is walked, by one lane of those that fetch them to shared memory.
// Whoever needs a table then reads its description on its own, and a block that repeats one reads
// it from the block that defined it.
#pragma once

#include "kernels/zstd_common.cuh"
#include "kernels/zstd_description.cuh"

// Three descriptions have 191 bytes at most: 36, 32 and 53 symbols of up to 10, 9 and 10 bits and
// two of a run of zeros, a third of a symbol's two bits more. They begin anywhere in a word, and
// two words are read ahead.
#define DAMACY__ZSTD_TABLE_WORDS  52u
#define DAMACY__ZSTD_TABLE_SPREAD 4u        // fewest lanes of a block
typedef struct damacy__zstd_tables_shared { // of a block of 64 threads
    uint32_t words[2][32 / DAMACY__ZSTD_TABLE_SPREAD][DAMACY__ZSTD_TABLE_WORDS + 1];
} damacy__zstd_tables_shared;

// What a reader of the words in shared memory wants: no more than are there, and no counts.
struct damacy__zstd_table_words {
    const uint32_t* words;
    __device__ __forceinline__ uint32_t load(uint32_t i) const
    {
        return words[damacy__min(i, DAMACY__ZSTD_TABLE_WORDS)];
    }
};

struct damacy__zstd_no_counts {
    __device__ __forceinline__ void set(uint32_t, int32_t) const
    {
    }
};

// Sets table_at, bits_at and bits_size of a block with sequences, whose descriptions begin `skew`
// bytes after words.
static __device__ void damacy__zstd_tables_block(const damacy__zstd_wave& w, damacy__zstd_block& b,
                                                 const uint32_t* words, uint32_t skew)
{
    damacy__zstd_description<damacy__zstd_table_words> d;
    uint32_t at = 0, log;
    bool good = true;

    d.words.words = words;
    for (uint32_t t = 0; t < 3 && good; t++) {
        const uint32_t mode = b.modes >> (2 * t) & 3, limit = b.sequence_size - at;
        uint32_t size = 0;
        if (mode == DAMACY__ZSTD_PREDEFINED || mode == DAMACY__ZSTD_MODE_REPEAT)
            continue;
        damacy__zstd_description_start(d, 8 * (skew + at));
        if (mode == DAMACY__ZSTD_MODE_FSE)
            size = damacy__zstd_description_read(d, limit, t, damacy__zstd_no_counts(), &log);
        else if (limit && (damacy__zstd_description_bits(d) & 255) <= damacy__zstd_max_symbol(t))
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

// All blocks of the wave, `spread` lanes each: as many as the grid has, at most a warp. Of a warp's
// blocks each waits for the longest.
static __device__ void damacy__zstd_tables(const damacy__zstd_wave& w,
                                           damacy__zstd_tables_shared& shared)
{
    const uint32_t n = damacy__zstd_counts(w)->n_blocks, lane = damacy__lane();
    const uint32_t n_warps = gridDim.x * (blockDim.x / 32);
    const uint32_t warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const uint32_t spread = damacy__zstd_spread(n, DAMACY__ZSTD_TABLE_SPREAD);
    const uint32_t per = 32 / spread, k = lane / spread;
    uint32_t* const words = shared.words[threadIdx.x / 32][k];
    for (uint32_t first = warp * per; first < n; first += n_warps * per) {
        damacy__zstd_block* const b = damacy__zstd_blocks(w) + damacy__min(first + k, n - 1);
        const bool here = first + k < n && b->type == DAMACY__ZSTD_SEQUENCES;
        const uint64_t src = b->sequence_src, end = src + b->sequence_size;
        if (here)
            for (uint32_t i = lane % spread; i <= DAMACY__ZSTD_TABLE_WORDS; i += spread)
                words[i] = damacy__load_word_within((src & ~3ull) + 4 * i, src, end);
        damacy__sync_warp();
        if (here && lane % spread == 0)
            damacy__zstd_tables_block(w, *b, words, (uint32_t)(src & 3));
        damacy__sync_warp(); // the words are written again
    }
}
