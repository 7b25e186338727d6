// Frame checksums (XXH64, seed 0, low 32 bits; RFC 8878 section 3.1.1) and the results of jobs.
// Four lanes take a job: its frames one after another, an accumulator of the hash each. A hash is
// one chain from a frame's first byte to its last, so that few jobs have a warp each: all lanes
// multiply the inputs, and what is left to the chain is what depends on the round before.
#pragma once

#include "kernels/zstd_common.cuh"

#define DAMACY__XXH64_P1 0x9e3779b185ebca87ull
#define DAMACY__XXH64_P1_INVERSE 0x887493432badb37ull // P1 times it is 1
#define DAMACY__XXH64_P2 0xc2b2ae3d27d4eb4full
#define DAMACY__XXH64_P3 0x165667b19e3779f9ull
#define DAMACY__XXH64_P4 0x85ebca77c2b2ae63ull
#define DAMACY__XXH64_P5 0x27d4eb2f165667c5ull

DAMACY__INLINE uint64_t damacy__rotate64(uint64_t v, uint32_t n)
{
    return v << n | v >> (64 - n);
}

DAMACY__INLINE uint64_t damacy__xxh64_round(uint64_t acc, uint64_t input)
{
    return damacy__rotate64(acc + input * DAMACY__XXH64_P2, 31) * DAMACY__XXH64_P1;
}

// Eight bytes at any address of [lo, hi) that holds all of them.
DAMACY__INLINE uint64_t damacy__load_u64_at(uint64_t a, uint64_t lo, uint64_t hi)
{
    if (!(a & 7))
        return *(const uint64_t*)(uintptr_t)a;
    const uint64_t word = a & ~3ull;
    const uint32_t shift = (uint32_t)(a & 3) * 8;
    const uint32_t w0 = damacy__load_word_within(word, lo, hi);
    const uint32_t w1 = damacy__load_word_within(word + 4, lo, hi);
    const uint32_t w2 = shift ? damacy__load_word_within(word + 8, lo, hi) : 0;
    return (uint64_t)damacy__funnel_right(w1, w2, shift) << 32 |
           damacy__funnel_right(w0, w1, shift);
}

// What follows the stripes: at most 31 bytes from `at` to `end`.
static __device__ uint64_t damacy__xxh64_finish(uint64_t h, uint64_t at, uint64_t end)
{
    for (; end - at >= 8; at += 8) {
        h ^= damacy__xxh64_round(0, damacy__load_le((const uint8_t*)(uintptr_t)at, 8));
        h = damacy__rotate64(h, 27) * DAMACY__XXH64_P1 + DAMACY__XXH64_P4;
    }
    if (end - at >= 4) {
        h ^= damacy__load_u32((const uint8_t*)(uintptr_t)at) * DAMACY__XXH64_P1;
        h = damacy__rotate64(h, 23) * DAMACY__XXH64_P2 + DAMACY__XXH64_P3;
        at += 4;
    }
    for (; at < end; at++) {
        h ^= *(const uint8_t*)(uintptr_t)at * DAMACY__XXH64_P5;
        h = damacy__rotate64(h, 11) * DAMACY__XXH64_P1;
    }
    h = (h ^ h >> 33) * DAMACY__XXH64_P2;
    h = (h ^ h >> 29) * DAMACY__XXH64_P3;
    return h ^ h >> 32;
}

// Stripes of 32 bytes that are loaded at once, while those before them are hashed, and bytes ahead
// of them that L2 is asked for: a round waits for the one before, and is not to wait for memory.
#define DAMACY__XXH64_GROUP 16u
#define DAMACY__XXH64_AHEAD 4096u

// A lane's inputs of a group.
struct damacy__xxh64_inputs {
    uint64_t v[DAMACY__XXH64_GROUP];
};

DAMACY__INLINE void damacy__xxh64_load(damacy__xxh64_inputs* to, const uint64_t* from)
{
#pragma unroll
    for (uint32_t j = 0; j < DAMACY__XXH64_GROUP; j++)
        to->v[j] = from[4 * j];
}

// Hashes n groups of stripes from src on, a multiple of 8; lane `k` of four.
DAMACY__INLINE uint64_t damacy__xxh64_groups(uint64_t acc, uint64_t src, uint32_t n, uint32_t k)
{
    constexpr uint32_t SIZE = 32 * DAMACY__XXH64_GROUP;
    const uint64_t* from = (const uint64_t*)(uintptr_t)src + k;
    damacy__xxh64_inputs now, next;

    if (n)
        damacy__xxh64_load(&next, from);
#pragma unroll 2
    for (uint32_t left = n; left; left--) {
        now = next;
        from += SIZE / 8;
        if (left > 1)
            damacy__xxh64_load(&next, from);
        if (left > DAMACY__XXH64_AHEAD / SIZE) // a line of 128 bytes by each lane
            damacy__prefetch_l2((const uint8_t*)(from - k) + DAMACY__XXH64_AHEAD - SIZE +
                                SIZE / 4 * k);
#pragma unroll
        for (uint32_t j = 0; j < DAMACY__XXH64_GROUP; j++)
            acc = damacy__xxh64_round(acc, now.v[j]);
    }
    return acc;
}

// Stripes whose inputs a warp multiplies at once, and what becomes of them.
#define DAMACY__XXH64_PASS 32u

struct damacy__xxh64_products {
    uint64_t v[2][4 * DAMACY__XXH64_PASS]; // of this pass and the next
};

// A round from what the one before has rotated, not yet multiplied by P1, and its input times P2.
DAMACY__INLINE damacy__u32x2 damacy__xxh64_step(damacy__u32x2 rotated, uint64_t product)
{
    constexpr uint32_t LO = (uint32_t)DAMACY__XXH64_P1, HI = (uint32_t)(DAMACY__XXH64_P1 >> 32);
    const uint64_t wide = (uint64_t)rotated.x * LO + product; // by one instruction
    const uint32_t lo = (uint32_t)wide;
    const uint32_t hi = (uint32_t)(wide >> 32) + (rotated.x * HI + rotated.y * LO);

    return {damacy__funnel_left(hi, lo, 31), damacy__funnel_left(lo, hi, 31)};
}

// Hashes n passes from src on, a multiple of 8; n is not 0. All lanes of a warp; acc: by their two
// low bits. Without a branch, so that what is to be multiplied next fills the chain's waiting.
static __device__ uint64_t damacy__xxh64_passes(uint64_t acc, uint64_t src, uint32_t n,
                                                damacy__xxh64_products* products)
{
    constexpr uint32_t EACH = DAMACY__XXH64_PASS / 8; // inputs a lane
    constexpr uint32_t SIZE = 32 * DAMACY__XXH64_PASS;
    const uint32_t lane = damacy__lane();
    const uint64_t* from = (const uint64_t*)(uintptr_t)src + lane;
    const uint64_t begin = acc * DAMACY__XXH64_P1_INVERSE;
    damacy__u32x2 rotated = {(uint32_t)begin, (uint32_t)(begin >> 32)};
    uint64_t next[EACH];

    for (uint32_t j = 0; j < EACH; j++)
        products->v[n & 1][lane + 32 * j] = from[32 * j] * DAMACY__XXH64_P2;
    from += n > 1 ? SIZE / 8 : 0; // behind the last one, that again
    for (uint32_t j = 0; j < EACH; j++)
        next[j] = from[32 * j];
    for (uint32_t left = n; left; left--) {
        const uint64_t* const now = products->v[left & 1] + (lane & 3);
        uint64_t product[EACH];
        damacy__sync_warp();
        from += left > 2 ? SIZE / 8 : 0;
        if (left > DAMACY__XXH64_AHEAD / SIZE && lane < SIZE / 128) // a line of 128 bytes
            damacy__prefetch_l2((const uint8_t*)(from - lane) + DAMACY__XXH64_AHEAD - SIZE +
                                128 * lane);
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            product[j] = next[j] * DAMACY__XXH64_P2;
            next[j] = from[32 * j];
        }
#pragma unroll
        for (uint32_t j = 0; j < DAMACY__XXH64_PASS; j++)
            rotated = damacy__xxh64_step(rotated, now[4 * j]);
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++)
            products->v[~left & 1][lane + 32 * j] = product[j];
    }
    damacy__sync_warp(); // before the next one writes
    return ((uint64_t)rotated.y << 32 | rotated.x) * DAMACY__XXH64_P1;
}

// XXH64 of [src, src + n), by the four lanes of `group` (a mask); lane `k` of them. All four return
// the hash. If there are products, by a whole warp, whose groups do the same.
static __device__ uint64_t damacy__xxh64(uint64_t src, uint32_t n, uint32_t group, uint32_t k,
                                         damacy__xxh64_products* products)
{
    constexpr uint32_t AHEAD = 8; // stripes at once where inputs lie anywhere
    const uint32_t n_stripes = n / 32;
    const uint32_t n_passes = src & 7 || !products ? 0 : n_stripes / DAMACY__XXH64_PASS;
    const uint32_t n_groups = src & 7 || products ? 0 : n_stripes / DAMACY__XXH64_GROUP;
    const uint64_t end = src + n;
    uint64_t acc = k == 0   ? DAMACY__XXH64_P1 + DAMACY__XXH64_P2
                   : k == 1 ? DAMACY__XXH64_P2
                   : k == 2 ? 0
                            : 0 - DAMACY__XXH64_P1;
    uint64_t h;
    uint32_t i = n_groups * DAMACY__XXH64_GROUP + n_passes * DAMACY__XXH64_PASS;

    if (n_passes)
        acc = damacy__xxh64_passes(acc, src, n_passes, products);
    acc = damacy__xxh64_groups(acc, src, n_groups, k);
    for (; i + AHEAD <= n_stripes; i += AHEAD) {
        uint64_t input[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++)
            input[j] = damacy__load_u64_at(src + 32ull * (i + j) + 8 * k, src, end);
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++)
            acc = damacy__xxh64_round(acc, input[j]);
    }
    for (; i < n_stripes; i++)
        acc = damacy__xxh64_round(acc, damacy__load_u64_at(src + 32ull * i + 8 * k, src, end));
    const uint32_t first = damacy__lane() & ~3u;
    const uint64_t v1 = damacy__shfl_of(group, acc, first);
    const uint64_t v2 = damacy__shfl_of(group, acc, first + 1);
    const uint64_t v3 = damacy__shfl_of(group, acc, first + 2);
    const uint64_t v4 = damacy__shfl_of(group, acc, first + 3);
    if (n_stripes) {
        h = damacy__rotate64(v1, 1) + damacy__rotate64(v2, 7) + damacy__rotate64(v3, 12) +
            damacy__rotate64(v4, 18);
        h = (h ^ damacy__xxh64_round(0, v1)) * DAMACY__XXH64_P1 + DAMACY__XXH64_P4;
        h = (h ^ damacy__xxh64_round(0, v2)) * DAMACY__XXH64_P1 + DAMACY__XXH64_P4;
        h = (h ^ damacy__xxh64_round(0, v3)) * DAMACY__XXH64_P1 + DAMACY__XXH64_P4;
        h = (h ^ damacy__xxh64_round(0, v4)) * DAMACY__XXH64_P1 + DAMACY__XXH64_P4;
    } else {
        h = DAMACY__XXH64_P5;
    }
    return damacy__xxh64_finish(h + n, src + 32ull * n_stripes, end);
}

// Verifies the checksums of job `index` and writes its result. Called by whole groups of four
// lanes, with a job each, or with products by a whole warp.
static __device__ void damacy__zstd_finish_job(const damacy__zstd_wave& w, uint32_t index,
                                               damacy__xxh64_products* products)
{
    const uint32_t lane = damacy__lane(), group = 15u << (lane & ~3u);
    const damacy__job& job = damacy__zstd_jobs(w)[index];
    const damacy__zstd_span& span = damacy__zstd_spans(w)[index];
    uint64_t error = damacy__zstd_errors(w)[index], size = 0;

    for (uint32_t i = 0; i < span.n_frames && error == DAMACY__ZSTD_NO_ERROR; i++) {
        const damacy__zstd_frame& f = damacy__zstd_frames(w)[span.first_frame + i];
        size += f.size;
        if (!f.checksum || (job.flags & DAMACY__JOB_NO_CHECKSUM))
            continue;
        const uint32_t found = (uint32_t)damacy__xxh64(f.dst, f.size, group, lane & 3, products);
        if (found != damacy__load_u32((const uint8_t*)(uintptr_t)f.checksum))
            error = (f.checksum - job.src) << 8 | DAMACY__JOB_BAD_CHECKSUM;
    }
    if ((lane & (products ? 31 : 3)) == 0)
        damacy__zstd_result(w, index, error, size);
}
