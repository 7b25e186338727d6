// The order list of the sequence stage, most sequences first -> groups of blocks, which CTAs take
// by ticket, but for wide ones among narrow ones: those are for the first CTAs, as neighbours share
// an instruction cache that does not hold the code of both shapes. A group takes as long as its
// largest block, and a step of the wide shape less than two thirds as long as one of the narrow
// shape, which takes four times as many blocks. So wide groups are for the large blocks that are
// left when all CTAs have had the same number of narrow groups and too few are left to keep all of
// them busy; small ones fill what is idle meanwhile.
//
// Surprising: every CTA makes the plan for itself, out of the same few sizes, and so they agree.
#pragma once

#include "kernels/zstd_common.cuh"

// Cycles of a step, measured on an H200: they are only compared.
#define DAMACY__FSE_NARROW_STEP 98.0f
#define DAMACY__FSE_WIDE_STEP   61.0f

#define DAMACY__FSE_ROUNDS  4u // of narrow groups, at the end, that are looked at
#define DAMACY__FSE_SAMPLES 8u // a lane

// Blocks [wide, wide_end) are in wide groups of n_wide_lanes, one to a CTA, all others in groups of
// n_lanes, which are wide too if n_wide_lanes is 0.
struct damacy__fse_plan {
    uint32_t n, n_lanes, n_wide_lanes;
    uint32_t wide, wide_end; // the first is a multiple of n_lanes
};

struct damacy__fse_part {
    uint32_t first, n; // n is 0 after the last group
    bool is_wide;
};

DAMACY__INLINE void damacy__fse_plan_save(const damacy__fse_plan* p, uint32_t at)
{
    damacy__sts32(at, p->n);
    damacy__sts32(at + 4, p->n_lanes);
    damacy__sts32(at + 8, p->n_wide_lanes);
    damacy__sts32(at + 12, p->wide);
    damacy__sts32(at + 16, p->wide_end);
}

DAMACY__INLINE damacy__fse_plan damacy__fse_plan_load(uint32_t at)
{
    damacy__fse_plan p;
    p.n = damacy__lds32(at);
    p.n_lanes = damacy__lds32(at + 4);
    p.n_wide_lanes = damacy__lds32(at + 8);
    p.wide = damacy__lds32(at + 12);
    p.wide_end = damacy__lds32(at + 16);
    return p;
}

DAMACY__INLINE uint32_t damacy__fse_narrow_before(const damacy__fse_plan* p)
{
    return p->wide / p->n_lanes;
}

// The group of a ticket.
DAMACY__INLINE damacy__fse_part damacy__fse_narrow_part(const damacy__fse_plan* p, uint32_t ticket)
{
    const uint32_t n_before = damacy__fse_narrow_before(p);
    damacy__fse_part part;

    part.is_wide = p->n_wide_lanes == 0;
    part.first =
        ticket < n_before ? ticket * p->n_lanes : p->wide_end + (ticket - n_before) * p->n_lanes;
    part.n = part.first < p->n ? damacy__min(p->n_lanes, p->n - part.first) : 0;
    return part;
}

// The wide group of a CTA: there are no more than CTAs.
DAMACY__INLINE damacy__fse_part damacy__fse_wide_part(const damacy__fse_plan* p, uint32_t cta)
{
    damacy__fse_part part;

    part.is_wide = true;
    part.first = p->wide + cta * p->n_wide_lanes;
    part.n = part.first < p->wide_end ? damacy__min(p->n_wide_lanes, p->wide_end - part.first) : 0;
    return part;
}

// Whether narrow groups are to be full rather than many: a step takes as long however many lanes
// walk, and the multiprocessors that have no group decode literals or other waves meanwhile.
DAMACY__INLINE bool damacy__fse_is_full(const damacy__zstd_wave& w)
{
    return w.flags & (DAMACY__ZSTD_FLAG_EARLY | DAMACY__ZSTD_FLAG_FSE_THROUGHPUT);
}

// All blocks in one shape, in groups as small as the grid allows, or, if is_full, full ones where
// these would be more than a quarter full.
DAMACY__INLINE damacy__fse_plan damacy__fse_plan_even(uint32_t n, uint32_t lanes, bool is_wide,
                                                      bool is_full)
{
    const uint32_t share = (n + gridDim.x - 1) / gridDim.x;
    damacy__fse_plan p;

    p.n = n;
    p.n_lanes = is_full && 4 * share > lanes ? lanes : damacy__max(damacy__min(share, lanes), 1);
    p.n_wide_lanes = is_wide ? 0 : p.n_lanes;
    p.wide = p.wide_end = 0;
    return p;
}

// Sequences of a block of the order list; 0 past its end.
DAMACY__INLINE uint32_t damacy__fse_size_at(const damacy__zstd_wave& w, uint32_t n, uint32_t i)
{
    const uint32_t* order = (const uint32_t*)(uintptr_t)w.sequence_order;
    return i < n ? damacy__zstd_blocks(w)[order[i]].n_sequences : 0;
}

// Wide groups from block `first` on, where a round of narrow groups begins and `largest` is the
// size: returns the cycles that they save, 0 if none, and where they end. `size` holds every
// step-th size from `base` on, a lane's one after another.
DAMACY__INLINE float damacy__fse_plan_from(const uint32_t* size, uint32_t base, uint32_t step,
                                           uint32_t n, uint32_t lanes, uint32_t wide_lanes,
                                           uint32_t first, uint32_t largest, uint32_t* wide_end)
{
    constexpr float NARROW = DAMACY__FSE_NARROW_STEP, WIDE = DAMACY__FSE_WIDE_STEP;
    const float wide_time = WIDE * (float)largest;
    const float weight = (float)step / (float)gridDim.x;
    uint32_t end = 0, all = 0, large = 0;

    for (uint32_t k = 0; k < DAMACY__FSE_SAMPLES; k++) {
        const uint32_t i = base + (damacy__lane() * DAMACY__FSE_SAMPLES + k) * step;
        const bool is_large = NARROW * (float)size[k] > wide_time;
        end += i < first || (i < n && is_large);
        all += i < first ? 0 : size[k];
        large += i >= first && is_large ? size[k] : 0;
    }
    for (uint32_t d = 16; d; d /= 2) {
        end += damacy__shfl_xor(end, d);
        all += damacy__shfl_xor(all, d);
        large += damacy__shfl_xor(large, d);
    }
    end = damacy__max(damacy__min(base + end * step, n), first); // the first that is not large
    if (n - first <= wide_lanes * gridDim.x) {
        end = n;
        large = all;
    }
    if (end - first > wide_lanes * gridDim.x) // CTAs would take more than one
        return 0;
    const float narrow_busy = NARROW * weight * (float)all / (float)lanes;
    const float busy = WIDE * weight * (float)large / (float)wide_lanes +
                       NARROW * weight * (float)(all - large) / (float)lanes;
    const float narrow_time = NARROW * (float)largest;
    const float before = narrow_time > narrow_busy ? narrow_time : narrow_busy;
    *wide_end = end;
    return before - (wide_time > busy ? wide_time : busy);
}

// Narrow groups of up to `lanes` blocks, and wide ones of up to `wide_lanes` where that is soonest.
static __device__ damacy__fse_plan damacy__fse_plan_mixed(const damacy__zstd_wave& w, uint32_t n,
                                                          uint32_t lanes, uint32_t wide_lanes)
{
    const uint32_t lane = damacy__lane(), round = lanes * gridDim.x;
    const uint32_t n_rounds = (n + round - 1) / round;
    const uint32_t base = round * (n_rounds - damacy__min(n_rounds, DAMACY__FSE_ROUNDS));
    const uint32_t samples = 32 * DAMACY__FSE_SAMPLES;
    const uint32_t step = damacy__max((n - base + samples - 1) / samples, 1);
    const uint32_t largest =
        damacy__fse_size_at(w, n, lane < DAMACY__FSE_ROUNDS ? base + lane * round : n);
    uint32_t size[DAMACY__FSE_SAMPLES];
    damacy__fse_plan p = damacy__fse_plan_even(n, lanes, false, damacy__fse_is_full(w));
    float best = 0;

    for (uint32_t k = 0; k < DAMACY__FSE_SAMPLES; k++)
        size[k] = damacy__fse_size_at(w, n, base + (lane * DAMACY__FSE_SAMPLES + k) * step);
    for (uint32_t r = 0; r < DAMACY__FSE_ROUNDS; r++) {
        const uint32_t first = base + r * round;
        const uint32_t here = damacy__shfl(largest, r);
        uint32_t end = 0;
        if (first >= n)
            break;
        const float gain =
            damacy__fse_plan_from(size, base, step, n, lanes, wide_lanes, first, here, &end);
        if (gain > best && gain > 0.05f * DAMACY__FSE_NARROW_STEP * (float)here) {
            best = gain;
            p.wide = first;
            p.wide_end = end;
        }
    }
    if (best > 0) {
        const uint32_t n_wide = p.wide_end - p.wide;
        p.n_lanes = lanes;
        p.n_wide_lanes =
            p.wide_end < n ? wide_lanes : damacy__max((n_wide + gridDim.x - 1) / gridDim.x, 1);
    }
    return p;
}
