// Which lists a block goes to and its size class there, worked out when the block is filled: the
// lists are made by a block of threads each, which read these keys alone.
#pragma once

#include "kernels/zstd_common.cuh"

#define DAMACY__ZSTD_BUCKETS          80u
#define DAMACY__ZSTD_SEQUENCE_BUCKETS 1024u

// Size class of n, four to an octave, largest first.
DAMACY__INLINE uint32_t damacy__zstd_bucket(uint32_t n)
{
    const uint32_t log = 31 - damacy__clz(n | 1);
    const uint32_t size_class = 4 * log + ((n << 2 >> log) & 3);
    return DAMACY__ZSTD_BUCKETS - 1 - damacy__min(size_class, DAMACY__ZSTD_BUCKETS - 1);
}

// Number of sequences, 64 classes to an octave: blocks that are decoded side by side take as long
// as the largest of them.
DAMACY__INLINE uint32_t damacy__zstd_sequence_bucket(uint32_t n)
{
    const uint32_t log = 31 - damacy__clz(n | 1);
    const uint32_t size_class = 64 * log + ((n << 6 >> log) & 63);
    return DAMACY__ZSTD_SEQUENCE_BUCKETS - 1 -
           damacy__min(size_class, DAMACY__ZSTD_SEQUENCE_BUCKETS - 1);
}

// Nobody looks for errors, as the stages may run at the same time: what a job has is decoded
// whatever else it has, and which error is reported does not depend on which comes first.
DAMACY__INLINE damacy__zstd_key damacy__zstd_key_of(const damacy__zstd_block& b)
{
    damacy__zstd_key key = {0, b.tree};

    if (b.type == DAMACY__ZSTD_SEQUENCES)
        key.what |= DAMACY__ZSTD_KEY_SEQUENCES | damacy__zstd_sequence_bucket(b.n_sequences);
    if (b.type >= DAMACY__ZSTD_LITERALS && b.literal_type >= DAMACY__ZSTD_LITERALS_HUFFMAN)
        key.what |= DAMACY__ZSTD_KEY_LITERALS | damacy__zstd_bucket(b.n_literals) << 16;
    return key;
}

DAMACY__INLINE void damacy__zstd_key_store(const damacy__zstd_wave& w, uint32_t block,
                                           const damacy__zstd_key& key)
{
    ((damacy__u32x2*)(uintptr_t)w.keys)[block] = {key.what, key.tree};
}

DAMACY__INLINE damacy__zstd_key damacy__zstd_key_load(const damacy__zstd_wave& w, uint32_t block)
{
    const damacy__u32x2 key = ((const damacy__u32x2*)(uintptr_t)w.keys)[block];
    return {key.x, key.y};
}
