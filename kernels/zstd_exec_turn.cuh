// Which frame a CTA executes next. Where frames are more than CTAs, each takes the next in line.
// Where they are somewhat more than the CTAs that run at once, the last of them would have the
// device for themselves. So they take turns: a CTA that has done a quarter of its frame gives it
// back at the end of a block and takes one that waits, and all come to their ends at about the same
// time.
//
// A frame's `turn` says who may have it: its blocks that are done << 1, and TAKEN while a CTA has
// it, or when it has ended.
//
// Surprising: nobody waits, and no frame is forgotten. Who gives a frame back looks for one
// afterwards. n_taken may be too high only by those that have still to do so; so the last CTA that
// looks sees the right number, and finds what others have left.
#pragma once

#include "kernels/zstd_exec_copy.cuh"

#define DAMACY__TURN_TAKEN 1u

// The frame that a CTA has: entry of the execute list, NONE if there is none, and how many of its
// blocks are done.
struct damacy__turn {
    uint32_t entry, n_done;
};

// Whether CTAs share the frames of a wave or take them in line; `whole`: the variant that has all
// of them, 0 if none.
DAMACY__INLINE bool damacy__turn_is_open(const damacy__zstd_wave& w, uint32_t whole)
{
    return (whole && gridDim.x < damacy__zstd_counts(w)->n_execute) ||
           w.flags & DAMACY__ZSTD_FLAG_TURNS;
}

// Which of both: only somewhat more frames than CTAs are shared, as to look for one that waits
// takes longer than a short frame. (Of blosc chunks the device alone knows how many they are.)
// Asked here and not at the head of each frame, with the above: there it gives all of execution
// other registers, and frames of long segments took 3 to 28 % longer.
DAMACY__INLINE bool damacy__turn_is_in_line(const damacy__zstd_wave& w)
{
    const bool is_shared = w.flags & DAMACY__ZSTD_FLAG_SHARED &&
                           2ull * damacy__zstd_counts(w)->n_execute < 3ull * gridDim.x;
    return !is_shared && !(w.flags & DAMACY__ZSTD_FLAG_TURNS);
}

DAMACY__INLINE uint32_t damacy__turn_frame(const damacy__zstd_wave& w, uint32_t entry)
{
    return ((const uint32_t*)(uintptr_t)w.execute_list)[entry];
}

DAMACY__INLINE uint32_t* damacy__turn_of(const damacy__zstd_wave& w, uint32_t entry)
{
    return &damacy__zstd_frames(w)[damacy__turn_frame(w, entry)].turn;
}

// Whether frames are to be given back, as others wait: fewer than one for two that are executed,
// and of a wave of fewer than two rounds, as each turn empties an L1. One thread asks.
DAMACY__INLINE bool damacy__turn_is_due(const damacy__zstd_wave& w)
{
    const damacy__zstd_counters* const c = damacy__zstd_counts(w);
    const uint32_t n = c->n_execute, n_taken = damacy__atomic_load(&c->n_taken);
    const uint64_t n_executed = n_taken - damacy__atomic_load(&c->n_ended);

    return n_taken < n && !damacy__turn_is_in_line(w) &&
           (w.flags & DAMACY__ZSTD_FLAG_TURNS ||
            (2ull * (n - n_taken) < n_executed && n < 2 * n_executed));
}

// Takes a frame if its turn is still this one. One lane; the CTA has it after a barrier.
DAMACY__INLINE bool damacy__turn_take(const damacy__zstd_wave& w, uint32_t entry, uint32_t turn)
{
    if (damacy__atomic_cas(damacy__turn_of(w, entry), turn, turn | DAMACY__TURN_TAKEN) != turn)
        return false;
    damacy__atomic_add(&damacy__zstd_counts(w)->n_taken, 1);
    if (turn) // another CTA has written
        damacy__device_fence();
    return true;
}

// Takes a frame that waits, the first one from `first` on, modulo their number. A warp does.
DAMACY__INLINE void damacy__turn_find(const damacy__zstd_wave& w, uint32_t first,
                                      damacy__turn* found)
{
    damacy__zstd_counters* const c = damacy__zstd_counts(w);
    const uint32_t n = c->n_execute, lane = damacy__lane();

    for (uint32_t k = 0; k < n; k += 32) {
        const uint32_t entry = (uint32_t)(((uint64_t)first + k + lane) % n);
        const uint32_t turn = k + lane < n ? damacy__atomic_load(damacy__turn_of(w, entry)) : 1;
        uint32_t waiting = damacy__ballot(!(turn & DAMACY__TURN_TAKEN));
        for (; waiting; waiting &= waiting - 1) {
            const uint32_t l = damacy__ctz(waiting);
            const bool is_mine = lane == l && damacy__turn_take(w, entry, turn);
            if (is_mine && k + lane > 0) // the next one looks behind it
                damacy__atomic_max(&c->next_entry, first + k + lane + 1);
            if (damacy__any(is_mine)) {
                found->entry = damacy__shfl(entry, l);
                found->n_done = damacy__shfl(turn, l) >> 1;
                return;
            }
        }
    }
}

// A frame for the CTA: the next in line, or, if they are shared, entry `own` if nobody has begun
// it, else one that waits; each CTA looks from another entry on. All threads call it; `at`: 8 bytes
// of shared memory.
DAMACY__INLINE void damacy__turn_next(const damacy__zstd_wave& w, uint32_t own, uint32_t at,
                                      damacy__turn* next)
{
    damacy__zstd_counters* const c = damacy__zstd_counts(w);

    next->entry = DAMACY__ZSTD_NONE;
    next->n_done = 0;
    if (threadIdx.x < 32) {
        const bool is_first = damacy__lane() == 0;
        if (damacy__turn_is_in_line(w)) {
            if (is_first)
                next->entry = damacy__atomic_add(&c->next_entry, 1);
        } else if (damacy__any(is_first && own < c->n_execute && damacy__turn_take(w, own, 0))) {
            next->entry = own;
            if (is_first)
                damacy__atomic_max(&c->next_entry, own + 1);
        } else {
            const uint32_t from = is_first ? damacy__atomic_add(&c->next_entry, 1) : 0;
            const bool none = damacy__atomic_load(&c->n_taken) >= c->n_execute;
            if (!damacy__any(is_first && none))
                damacy__turn_find(w, damacy__shfl(from, 0), next);
        }
        if (is_first)
            damacy__sts64(at, next->entry, next->n_done);
    }
    damacy__sync_block();
    const damacy__u32x2 v = damacy__lds64(at);
    damacy__sync_block();
    next->entry = v.x;
    next->n_done = v.y;
}

// Gives a frame back of which `before` blocks were and `n_done` are done, or ends it. One thread,
// after a barrier.
DAMACY__INLINE void damacy__turn_give(const damacy__zstd_wave& w, uint32_t entry, uint32_t before,
                                      uint32_t n_done)
{
    damacy__zstd_counters* const c = damacy__zstd_counts(w);

    if (damacy__turn_is_in_line(w))
        return;
    if (n_done == damacy__zstd_frames(w)[damacy__turn_frame(w, entry)].n_blocks) {
        damacy__atomic_add(&c->n_ended, 1);
        return;
    }
    damacy__device_fence();
    damacy__atomic_add(damacy__turn_of(w, entry), ((n_done - before) << 1) - DAMACY__TURN_TAKEN);
    damacy__atomic_add(&c->n_taken, 0u - 1);
}
