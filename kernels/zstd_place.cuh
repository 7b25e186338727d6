// What needs no entropy decoding: raw and RLE blocks go to the output, RLE literals to scratch, and
// symbolic repeat offsets become plain ones. A block of threads per zstd block, and then per move
// of stored streams. It also sees how dense the frames are, which execution's shapes go by.
#pragma once

#include "kernels/blosc_abi.h"
#include "kernels/zstd_common.cuh"

// Copies n bytes between any addresses with 16-byte stores and 4-byte loads that stay inside the
// source. The whole block of threads calls this.
static __device__ void damacy__copy_block(uint64_t dst, uint64_t src, uint32_t n)
{
    const uint64_t end = dst + n, lo = src, hi = src + n;
    const uint64_t body = damacy__min(n, (uint32_t)(0 - dst) & 15) + dst;
    const uint32_t n_units = (uint32_t)((end - body) >> 4);
    const uint64_t tail = body + 16ull * n_units;

    if (threadIdx.x < body - dst)
        ((uint8_t*)(uintptr_t)dst)[threadIdx.x] = ((const uint8_t*)(uintptr_t)src)[threadIdx.x];
    if (threadIdx.x < end - tail)
        ((uint8_t*)(uintptr_t)tail)[threadIdx.x] =
            ((const uint8_t*)(uintptr_t)(src + (tail - dst)))[threadIdx.x];
    for (uint32_t i = threadIdx.x; i < n_units; i += blockDim.x) {
        const uint64_t from = src + (body - dst) + 16ull * i, a = from & ~3ull;
        const uint32_t shift = (uint32_t)(from & 3) * 8;
        damacy__u32x4 v;
        if (!(from & 15)) {
            v = damacy__load_u32x4_once((const void*)(uintptr_t)from);
        } else {
            const uint32_t w0 = damacy__load_word_within(a, lo, hi);
            const uint32_t w1 = damacy__load_word_within(a + 4, lo, hi);
            const uint32_t w2 = damacy__load_word_within(a + 8, lo, hi);
            const uint32_t w3 = damacy__load_word_within(a + 12, lo, hi);
            const uint32_t w4 = shift ? damacy__load_word_within(a + 16, lo, hi) : 0;
            v = damacy__funnel_right4(w0, w1, w2, w3, w4, shift);
        }
        *(damacy__u32x4*)(uintptr_t)(body + 16ull * i) = v;
    }
}

// Sets n bytes at dst to `byte`.
static __device__ void damacy__fill_block(uint64_t dst, uint32_t byte, uint32_t n)
{
    const uint64_t end = dst + n;
    const uint64_t body = damacy__min(n, (uint32_t)(0 - dst) & 15) + dst;
    const uint32_t n_units = (uint32_t)((end - body) >> 4);
    const uint64_t tail = body + 16ull * n_units;
    damacy__u32x4 v;

    v.x = v.y = v.z = v.w = byte * 0x01010101u;
    if (threadIdx.x < body - dst)
        ((uint8_t*)(uintptr_t)dst)[threadIdx.x] = (uint8_t)byte;
    if (threadIdx.x < end - tail)
        ((uint8_t*)(uintptr_t)tail)[threadIdx.x] = (uint8_t)byte;
    for (uint32_t i = threadIdx.x; i < n_units; i += blockDim.x)
        *(damacy__u32x4*)(uintptr_t)(body + 16ull * i) = v;
}

// Rewrites the symbolic offsets of a block's first records.
static __device__ void damacy__zstd_place_offsets(const damacy__zstd_wave& w,
                                                  const damacy__zstd_block& b)
{
    uint64_t* const records = (uint64_t*)(uintptr_t)w.records + b.first_record;
    const uint32_t n = damacy__min(b.n_symbolic, damacy__min(b.n_records, b.record_capacity));

    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint64_t record = records[i];
        const uint32_t d = (uint32_t)(record >> 34);
        if (d >= DAMACY__ZSTD_D_LITERALS || d < DAMACY__ZSTD_D_SYMBOLIC)
            continue;
        const uint32_t k = d >> 18 & 3, minus = ~d & 0x3ffffu;
        const uint32_t before = k == 0 ? b.repeat_in[0] : k == 1 ? b.repeat_in[1] : b.repeat_in[2];
        if (before <= minus) { // offset 0, or a repeat offset that was broken before
            damacy__zstd_fail(w, b, b.sequence_src, DAMACY__JOB_BAD_OFFSET);
            continue;
        }
        records[i] = (record & 0x3ffffffffull) | (uint64_t)(before - minus) << 34;
    }
}

// Takes the frames that are much larger than others off the execute list, whose last entries come
// to their places; a warp does. Returns how many.
static __device__ uint32_t damacy__zstd_place_apart(const damacy__zstd_wave& w)
{
    damacy__zstd_counters* const counts = damacy__zstd_counts(w);
    uint32_t* const list = (uint32_t*)(uintptr_t)w.execute_list;
    uint32_t* const apart = (uint32_t*)(uintptr_t)w.keys;
    const uint32_t n = counts->n_execute, lane = damacy__lane();
    const uint64_t most = n ? damacy__zstd_frames(w)[list[0]].n_records : 0;
    const uint64_t least =
        damacy__max(counts->n_records / DAMACY__ZSTD_APART, most / DAMACY__ZSTD_APART_LEAST);
    uint32_t n_apart = 0, found = 32;

    while (found == 32 && n_apart < n) {
        const uint32_t i = n_apart + lane;
        bool is_large = false;
        if (i < n) {
            const damacy__zstd_frame& f = damacy__zstd_frames(w)[list[i]];
            is_large = f.size > 2 * DAMACY__ZSTD_BLOCK_MAX && f.n_records > least;
            if (is_large)
                apart[i] = list[i];
        }
        const uint32_t others = ~damacy__ballot(is_large);
        found = others ? damacy__ctz(others) : 32;
        n_apart += found;
    }
    damacy__sync_warp();
    for (uint32_t i = lane; i < n_apart && i < n - n_apart; i += 32)
        list[i] = list[n - 1 - i];
    damacy__sync_warp();
    if (lane == 0) {
        counts->n_apart = n_apart;
        counts->n_execute = n - n_apart;
    }
    damacy__sync_warp();
    return n_apart;
}

// Records per KB of the frames to execute, from up to 32 of them, bytes of literals per KB of their
// first blocks, records of the first, which has most, and how large they are; a warp does.
static __device__ void damacy__zstd_place_density(const damacy__zstd_wave& w)
{
    damacy__zstd_counters* const counts = damacy__zstd_counts(w);
    const uint32_t n_apart = w.flags & DAMACY__ZSTD_FLAG_APART ? damacy__zstd_place_apart(w) : 0;
    const uint32_t n_all = counts->n_execute, n = damacy__min(n_all, 32);
    const uint32_t first = n_apart < n_all ? n_apart : 0; // has most, if some are apart
    uint32_t size = 0, n_records = 0, block_size = 0, n_literals = 0;

    if (damacy__lane() < n) {
        const uint32_t i = (uint32_t)((uint64_t)n_all * damacy__lane() / n) + first;
        const damacy__zstd_frame& f =
            damacy__zstd_frames(w)[((const uint32_t*)(uintptr_t)w.execute_list)[i % n_all]];
        const damacy__zstd_block& b = damacy__zstd_blocks(w)[f.first_block];
        size = f.size / 16; // so that 32 bits hold the sum
        n_records = f.size ? f.n_records / 16 : 0;
        block_size = b.size;
        n_literals = b.type == DAMACY__ZSTD_SEQUENCES ? b.n_literals : b.size;
    }
    const uint32_t all_size = damacy__warp_sum(size), all_records = damacy__warp_sum(n_records);
    const uint32_t blocks = damacy__warp_sum(block_size), literals = damacy__warp_sum(n_literals);
    if (damacy__lane() == 0) {
        counts->density = damacy__zstd_density(all_records, all_size);
        counts->literals = damacy__zstd_density(literals, blocks);
        counts->most_dense = damacy__zstd_density(n_records, size);
        counts->mean_size = n ? (uint32_t)(16ull * all_size / n) : 0;
    }
}

static __device__ void damacy__zstd_place(const damacy__zstd_wave& w)
{
    const uint32_t n = damacy__zstd_counts(w)->n_blocks;

    if (blockIdx.x == 0 && threadIdx.x < 32)
        damacy__zstd_place_density(w);
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const damacy__zstd_block& b = damacy__zstd_blocks(w)[i];
        if (b.dst == 0)
            continue;
        if (b.type == DAMACY__ZSTD_RAW)
            damacy__copy_block(b.dst, b.src, b.size);
        else if (b.type == DAMACY__ZSTD_RLE)
            damacy__fill_block(b.dst, *(const uint8_t*)(uintptr_t)b.src, b.size);
        else if (b.type == DAMACY__ZSTD_SEQUENCES) {
            if (b.literal_type == DAMACY__ZSTD_LITERALS_RLE)
                damacy__fill_block(b.literals, *(const uint8_t*)(uintptr_t)b.literal_src,
                                   b.n_literals);
            damacy__zstd_place_offsets(w, b);
        }
    }
    if (w.moves == 0)
        return;
    const uint32_t n_moves = damacy__min(*(const uint32_t*)(uintptr_t)w.n_moves, w.max_moves);
    for (uint32_t i = blockIdx.x; i < n_moves; i += gridDim.x) {
        const damacy__move move = ((const damacy__move*)(uintptr_t)w.moves)[i];
        damacy__copy_block(move.dst, move.src, (uint32_t)move.size);
    }
}
