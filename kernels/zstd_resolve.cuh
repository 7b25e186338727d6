// Places of things: once sequences are decoded, the output positions and incoming repeat offsets of
// blocks. The surprising rule: repeat offsets of a block are maps of
// the three before it (offset k minus d, or a plain offset), and maps compose, so that blocks are
// decoded independently and joined by a scan.
#pragma once

#include "kernels/zstd_common.cuh"

// An entry of a map of repeat offsets: a plain offset (0 = broken), or MAP | k << 29 | d for
// "incoming offset k minus d". d stays far below 2^29: 32 blocks of 43690 sequences.
#define DAMACY__ZSTD_MAP 0x80000000u

typedef struct damacy__zstd_map {
    uint32_t r[3];
} damacy__zstd_map;

DAMACY__INLINE uint32_t damacy__zstd_map_entry(uint32_t d)
{
    return d >= DAMACY__ZSTD_D_SYMBOLIC
               ? DAMACY__ZSTD_MAP | damacy__min(d >> 18 & 3, 2) << 29 | (~d & 0x3ffffu)
               : d;
}

// Entry `after` of a map applied to what the map `before` produces.
DAMACY__INLINE uint32_t damacy__zstd_map_apply(const damacy__zstd_map& before, uint32_t after)
{
    if (!(after & DAMACY__ZSTD_MAP))
        return after;
    const uint32_t k = after >> 29 & 3, d = after & 0x1fffffffu;
    const uint32_t r = k == 0 ? before.r[0] : k == 1 ? before.r[1] : before.r[2];
    if (r & DAMACY__ZSTD_MAP)
        return r + d;
    return r > d ? r - d : 0;
}

DAMACY__INLINE damacy__zstd_map damacy__zstd_map_compose(const damacy__zstd_map& before,
                                                         const damacy__zstd_map& after)
{
    damacy__zstd_map m;
    for (uint32_t k = 0; k < 3; k++)
        m.r[k] = damacy__zstd_map_apply(before, after.r[k]);
    return m;
}

// Map of block i, the identity for a block without sequences.
DAMACY__INLINE damacy__zstd_map damacy__zstd_map_of(const damacy__zstd_block* b)
{
    damacy__zstd_map m;
    for (uint32_t k = 0; k < 3; k++)
        m.r[k] = b && b->type == DAMACY__ZSTD_SEQUENCES ? damacy__zstd_map_entry(b->repeat_out[k])
                                                        : DAMACY__ZSTD_MAP | k << 29;
    return m;
}

// What the sizes of a job's blocks say. All lanes have the same.
typedef struct damacy__zstd_sizes {
    uint64_t total;
    bool is_wrong; // that of a frame is not what its header states, or a block with sequences has
                   // none, as these are broken, which has been reported
} damacy__zstd_sizes;

// Sizes of the frames of a job, which are kept in them.
static __device__ damacy__zstd_sizes damacy__zstd_resolve_sizes(const damacy__zstd_wave& w,
                                                                const damacy__zstd_span& span)
{
    damacy__zstd_sizes all = {0, false};
    bool is_broken = false;

    for (uint32_t i = 0; i < span.n_frames; i++) {
        damacy__zstd_frame* const f = damacy__zstd_frames(w) + span.first_frame + i;
        uint64_t size = 0;
        uint32_t n_records = 0;
        for (uint32_t k = damacy__lane(); k < f->n_blocks; k += 32) {
            const damacy__zstd_block& b = damacy__zstd_blocks(w)[f->first_block + k];
            const bool has_records = b.type == DAMACY__ZSTD_SEQUENCES;
            size += b.size;
            n_records += has_records ? b.n_records : 0;
            is_broken = is_broken || (has_records && b.size == 0);
        }
        for (uint32_t d = 16; d; d /= 2) {
            size += damacy__shfl_xor(size, d);
            n_records += damacy__shfl_xor(n_records, d);
        }
        all.is_wrong = all.is_wrong ||
                       (f->content_size != DAMACY__SIZE_UNKNOWN && f->content_size != size);
        all.total += size;
        damacy__sync_warp();
        if (damacy__lane() == 0) {
            f->size = (uint32_t)size;
            f->n_records = n_records;
        }
    }
    damacy__sync_warp();
    all.is_wrong = damacy__ballot(is_broken || all.is_wrong) != 0;
    return all;
}

// Places the blocks of a frame whose first output byte is at dst.
static __device__ void damacy__zstd_resolve_frame(const damacy__zstd_wave& w, damacy__zstd_frame* f,
                                                  uint64_t dst)
{
    const uint32_t lane = damacy__lane(), n = f->n_blocks;
    damacy__zstd_block* const blocks = damacy__zstd_blocks(w) + f->first_block;
    damacy__zstd_map carry = {{1, 4, 8}};
    uint32_t position = 0;

    for (uint32_t first = 0; first < n; first += 32) {
        damacy__zstd_block* const b = first + lane < n ? blocks + first + lane : 0;
        const uint32_t size = b ? b->size : 0;
        damacy__zstd_map map = damacy__zstd_map_of(b), before;
        uint32_t end = size;
        for (uint32_t d = 1; d < 32; d *= 2) {
            damacy__zstd_map o;
            for (uint32_t k = 0; k < 3; k++)
                o.r[k] = damacy__shfl_up(map.r[k], d);
            const uint32_t e = damacy__shfl_up(end, d);
            if (lane >= d) {
                map = damacy__zstd_map_compose(o, map);
                end += e;
            }
        }
        map = damacy__zstd_map_compose(carry, map); // plain offsets from here on
        for (uint32_t k = 0; k < 3; k++) {
            before.r[k] = damacy__shfl_up(map.r[k], 1);
            if (lane == 0)
                before.r[k] = carry.r[k];
        }
        if (b) {
            b->position = position + end - size;
            b->dst = dst + b->position;
            for (uint32_t k = 0; k < 3; k++)
                b->repeat_in[k] = before.r[k];
            if (b->type == DAMACY__ZSTD_LITERALS)
                b->literals = b->dst;
        }
        for (uint32_t k = 0; k < 3; k++)
            carry.r[k] = damacy__shfl(map.r[k], 31);
        position += damacy__shfl(end, 31);
    }
}

// Literals may be under way meanwhile, so that nobody looks for their errors here: which one is
// reported does not depend on who comes first. The blocks of a job that is wrong stay without a
// place. One that could not be counted has no frames.
static __device__ void damacy__zstd_resolve_job(const damacy__zstd_wave& w, uint32_t index)
{
    const damacy__job& job = damacy__zstd_jobs(w)[index];
    const damacy__zstd_span span = damacy__zstd_spans(w)[index];
    if (!span.is_placed)
        return;
    const uint64_t capacity =
        job.dst_capacity < DAMACY__JOB_SIZE_MAX ? job.dst_capacity : DAMACY__JOB_SIZE_MAX;
    const damacy__zstd_sizes sizes = damacy__zstd_resolve_sizes(w, span);
    const bool is_wrong = sizes.is_wrong || (job.expected_size != DAMACY__SIZE_UNKNOWN &&
                                             sizes.total != job.expected_size);
    uint64_t dst = job.dst;

    if (span.n_frames == 0)
        return;
    if (is_wrong || sizes.total > capacity) {
        const uint64_t word = is_wrong ? (uint64_t)DAMACY__JOB_SIZE_MISMATCH
                                       : sizes.total << 8 | DAMACY__JOB_NO_SPACE;
        if (damacy__lane() == 0)
            damacy__atomic_min64(&damacy__zstd_errors(w)[index], DAMACY__ZSTD_LAST_ERROR | word);
        return;
    }
    for (uint32_t i = 0; i < span.n_frames; i++) {
        damacy__zstd_frame* const f = damacy__zstd_frames(w) + span.first_frame + i;
        damacy__zstd_resolve_frame(w, f, dst);
        damacy__sync_warp();
        if (damacy__lane() == 0)
            f->dst = dst;
        dst += f->size;
    }
}
