// Sequence execution for a few large frames, too few for a CTA each: every block at once, by links
// in device memory. The first kernel writes, for each output byte, its literal or a link to its
// source; the second follows links to a literal. Links lead to lower bytes, so they end; as in a
// tile they are shortened while others follow them. A link that the L1 cache still has is an older
// one, which leads to the same literal in more steps.
#pragma once

#include "kernels/zstd_exec_copy.cuh"

#define DAMACY__LINK_THREADS 256

DAMACY__INLINE uint32_t damacy__link_load(const uint32_t* p)
{
#ifdef __CUDACC__
    uint32_t v;
    asm volatile("ld.global.u32 %0,[%1];" : "=r"(v) : "l"(p));
    return v;
#else
    return *p;
#endif
}

DAMACY__INLINE void damacy__link_store(uint32_t* p, uint32_t v)
{
#ifdef __CUDACC__
    asm volatile("st.global.u32 [%0],%1;" ::"l"(p), "r"(v));
#else
    *p = v;
#endif
}

// A segment of a block: to[i] and links of the frame's bytes at ... at + n - 1.
struct damacy__link_segment {
    uint32_t at, n, d;
};

// Lane `me` of `step` writes its share of a segment. `links` and `dst` belong to the frame.
DAMACY__INLINE void damacy__link_segment_write(damacy__link_segment s, uint32_t* links,
                                               uint8_t* dst, const uint8_t* literals, uint32_t me,
                                               uint32_t step)
{
    if (s.d & DAMACY__ZSTD_D_LITERALS) {
        for (uint32_t i = me; i < s.n; i += step) {
            dst[s.at + i] = literals[(s.d & 0x1ffff) + i];
            links[s.at + i] = s.at + i;
        }
    } else {
        for (uint32_t i = me; i < s.n; i += step)
            links[s.at + i] = s.at - s.d + (s.d < s.n ? i % s.d : i);
    }
}

// Part `part` of `n_parts` of a block with sequences.
static __device__ void damacy__link_block(const damacy__zstd_wave& w, const damacy__zstd_block& b,
                                          uint8_t* dst, uint32_t* links, uint32_t part,
                                          uint32_t n_parts)
{
    const uint64_t* records = (const uint64_t*)(uintptr_t)w.records + b.first_record;
    const uint8_t* literals = (const uint8_t*)(uintptr_t)b.literals;
    const uint32_t lane = damacy__lane(), n_warps = n_parts * (DAMACY__LINK_THREADS / 32);
    const uint32_t warp = part * (DAMACY__LINK_THREADS / 32) + threadIdx.x / 32;

    for (uint32_t k = warp * 32; k < b.n_records; k += n_warps * 32) {
        const uint64_t record = k + lane < b.n_records ? records[k + lane] : 0;
        damacy__link_segment s;
        s.at = b.position + ((uint32_t)record & 0x1ffff);
        s.n = k + lane < b.n_records ? (uint32_t)(record >> 17 & 0x1ffff) + 1 : 0;
        s.d = (uint32_t)(record >> 34);
        if (!(s.d & DAMACY__ZSTD_D_LITERALS) && s.d - 1 >= s.at && s.n) {
            damacy__zstd_fail(w, b, b.sequence_src, DAMACY__JOB_BAD_OFFSET);
            for (uint32_t i = 0; i < s.n; i++) // every byte has a link, or the chase would not end
                links[s.at + i] = s.at + i;
            s.n = 0;
        }
        uint32_t longer = damacy__ballot(s.n > 32);
        if (s.n <= 32)
            damacy__link_segment_write(s, links, dst, literals, 0, 1);
        damacy__sync_warp();
        while (longer) {
            const uint32_t l = damacy__ctz(longer);
            damacy__link_segment one;
            one.at = damacy__shfl(s.at, l);
            one.n = damacy__shfl(s.n, l);
            one.d = damacy__shfl(s.d, l);
            longer &= longer - 1;
            damacy__link_segment_write(one, links, dst, literals, lane, 32);
        }
    }
}

// First kernel. Grid: any; blocks of the frames are shared out, in parts if there are fewer of them
// than CTAs.
static __device__ void damacy__zstd_link(const damacy__zstd_wave& w)
{
    const uint32_t n = damacy__min(damacy__zstd_counts(w)->n_execute, DAMACY__ZSTD_LINK_FRAMES);
    const uint32_t* list = (const uint32_t*)(uintptr_t)w.execute_list;
    const uint32_t whole = damacy__exec_wave_variant(w);
    uint32_t n_blocks = 0;

    if (n != damacy__zstd_counts(w)->n_execute)
        return;
    for (uint32_t i = 0; i < n; i++)
        n_blocks += damacy__zstd_frames(w)[list[i]].n_blocks;
    const uint32_t n_parts = n_blocks < gridDim.x ? gridDim.x / damacy__max(n_blocks, 1) : 1;
    for (uint32_t item = blockIdx.x; item < n_blocks * n_parts; item += gridDim.x) {
        uint32_t i = 0, block = item / n_parts;
        const uint32_t part = item % n_parts;
        while (block >= damacy__zstd_frames(w)[list[i]].n_blocks)
            block -= damacy__zstd_frames(w)[list[i++]].n_blocks;
        const damacy__zstd_frame& f = damacy__zstd_frames(w)[list[i]];
        if (damacy__exec_variant(w, whole, i) != DAMACY__ZSTD_EXECUTE_LINKS || f.dst == 0)
            continue;
        const damacy__zstd_block& b = damacy__zstd_blocks(w)[f.first_block + block];
        uint32_t* links = (uint32_t*)(uintptr_t)w.links + damacy__exec_link_at(w, i);
        if (b.type == DAMACY__ZSTD_SEQUENCES)
            damacy__link_block(w, b, (uint8_t*)(uintptr_t)f.dst, links, part, n_parts);
        else // is in the output
            for (uint32_t k = part * DAMACY__LINK_THREADS + threadIdx.x; k < b.size;
                 k += n_parts * DAMACY__LINK_THREADS)
                links[b.position + k] = b.position + k;
    }
}

// Follows the links of bytes x ... x + 3 as far as `n`, and writes those that had one.
DAMACY__INLINE void damacy__link_chase4(uint8_t* dst, uint32_t* links, uint32_t x, uint32_t n,
                                        uint32_t size)
{
    uint32_t at[4], linked = 0;

    DAMACY__EXEC_UNROLL for (uint32_t k = 0; k < 4; k++)
    {
        at[k] = k < n ? damacy__link_load(links + x + k) : x + k;
        if (at[k] != x + k)
            linked |= 1u << k;
    }
    uint32_t going = linked;
    for (uint32_t hop = 0; going && hop < size; hop++) {
        uint32_t next[4];
        DAMACY__EXEC_UNROLL for (uint32_t k = 0; k < 4; k++) next[k] =
            going >> k & 1 ? damacy__link_load(links + at[k]) : at[k];
        DAMACY__EXEC_UNROLL for (uint32_t k = 0; k < 4; k++)
        {
            if (next[k] == at[k])
                going &= ~(1u << k);
            else if (hop & 1)
                damacy__link_store(links + x + k, next[k]);
            at[k] = next[k];
        }
    }
    // A byte without a link may be read by others now: it is not written.
    const uint32_t b0 = dst[at[0]], b1 = n > 1 ? dst[at[1]] : 0, b2 = n > 2 ? dst[at[2]] : 0;
    const uint32_t b3 = n > 3 ? dst[at[3]] : 0;
    if (linked == 15 && ((uint64_t)(uintptr_t)(dst + x) & 3) == 0) {
        *(uint32_t*)(dst + x) = b0 | b1 << 8 | b2 << 16 | b3 << 24;
        return;
    }
    if (linked & 1)
        dst[x] = (uint8_t)b0;
    if (linked & 2)
        dst[x + 1] = (uint8_t)b1;
    if (linked & 4)
        dst[x + 2] = (uint8_t)b2;
    if (linked & 8)
        dst[x + 3] = (uint8_t)b3;
}

// Second kernel. Grid: any.
static __device__ void damacy__zstd_jump(const damacy__zstd_wave& w)
{
    const uint32_t n = damacy__min(damacy__zstd_counts(w)->n_execute, DAMACY__ZSTD_LINK_FRAMES);
    const uint32_t* list = (const uint32_t*)(uintptr_t)w.execute_list;
    const uint32_t whole = damacy__exec_wave_variant(w);

    if (n != damacy__zstd_counts(w)->n_execute)
        return;
    for (uint32_t i = 0; i < n; i++) {
        const damacy__zstd_frame& f = damacy__zstd_frames(w)[list[i]];
        if (damacy__exec_variant(w, whole, i) != DAMACY__ZSTD_EXECUTE_LINKS || f.dst == 0)
            continue;
        uint8_t* dst = (uint8_t*)(uintptr_t)f.dst;
        uint32_t* links = (uint32_t*)(uintptr_t)w.links + damacy__exec_link_at(w, i);
        for (uint64_t x = 4ull * (blockIdx.x * DAMACY__LINK_THREADS + threadIdx.x); x < f.size;
             x += 4ull * gridDim.x * DAMACY__LINK_THREADS)
            damacy__link_chase4(dst, links, (uint32_t)x, damacy__min(4, f.size - (uint32_t)x),
                                f.size);
    }
}
