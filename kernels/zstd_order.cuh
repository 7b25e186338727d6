// Lists of blocks and frames by work, most first. A block of threads sorts a part of a table.
//
// The surprising rule: a list is of parts side by side, each in its order, so that no more than one
// number goes from part to part. Where parts are several, lists are long, and what the order is for
// (neighbours are alike, the smallest come last) holds of each part.
#pragma once

#include "kernels/zstd_key.cuh"

#define DAMACY__ZSTD_ORDER_AHEAD 8u // items of a thread at once

enum { // lists
    DAMACY__ZSTD_LIST_SEQUENCES = 0,
    DAMACY__ZSTD_LIST_EXECUTE = 1,
    DAMACY__ZSTD_LIST_EARLY = 2, // three, by table log
    DAMACY__ZSTD_LIST_LATE = 5,  // three, by table log
    DAMACY__ZSTD_LISTS = 8       // also: none
};

typedef struct damacy__zstd_order_shared {
    uint32_t cursor[DAMACY__ZSTD_LISTS][DAMACY__ZSTD_BUCKETS];
    uint32_t sequences[DAMACY__ZSTD_SEQUENCE_BUCKETS]; // instead of the first list's above
} damacy__zstd_order_shared;

// An entry of a list: which list, 16 bits up, and its size class there.
#define DAMACY__ZSTD_ORDER_NONE ((uint32_t)DAMACY__ZSTD_LISTS << 16)

// Of a block among those with sequences.
DAMACY__INLINE uint32_t damacy__zstd_order_sequences(const damacy__zstd_wave& w, uint32_t block)
{
    const uint32_t what = damacy__zstd_key_load(w, block).what;

    return what & DAMACY__ZSTD_KEY_SEQUENCES
               ? (uint32_t)DAMACY__ZSTD_LIST_SEQUENCES << 16 | (what & 0xffff)
               : DAMACY__ZSTD_ORDER_NONE;
}

// Of a block among those with Huffman literals.
DAMACY__INLINE uint32_t damacy__zstd_order_literals(const damacy__zstd_wave& w, uint32_t block,
                                                    bool is_early)
{
    const damacy__zstd_key own = damacy__zstd_key_load(w, block);

    if (!(own.what & DAMACY__ZSTD_KEY_LITERALS))
        return DAMACY__ZSTD_ORDER_NONE;
    const uint32_t log =
        w.flags & DAMACY__ZSTD_FLAG_ONE_LIST ? 0 : damacy__zstd_tree_logs(w)[own.tree];
    const bool early = is_early && own.what & DAMACY__ZSTD_KEY_SEQUENCES;
    const uint32_t list =
        (early ? (uint32_t)DAMACY__ZSTD_LIST_EARLY : (uint32_t)DAMACY__ZSTD_LIST_LATE);
    return (list + (log <= 9 ? 0 : log - 9)) << 16 | (own.what >> 16 & 0xff);
}

// Of a frame among those to execute.
DAMACY__INLINE uint32_t damacy__zstd_order_frame(const damacy__zstd_frame& f)
{
    return f.n_sequence_blocks
               ? (uint32_t)DAMACY__ZSTD_LIST_EXECUTE << 16 | damacy__zstd_bucket(f.n_records)
               : DAMACY__ZSTD_ORDER_NONE;
}

// Counts become places, behind those of the part before; one warp a list.
static __device__ void damacy__zstd_order_places(const damacy__zstd_wave& w, uint32_t* cursor,
                                                 uint32_t list, bool is_first)
{
    constexpr uint32_t PER = (DAMACY__ZSTD_BUCKETS + 31) / 32;
    damacy__zstd_counters* const c = damacy__zstd_counts(w);
    const uint32_t lane = damacy__lane(), first = PER * lane;
    uint32_t* const n_listed =
        list >= DAMACY__ZSTD_LIST_LATE    ? &c->n_late_blocks[list - DAMACY__ZSTD_LIST_LATE]
        : list >= DAMACY__ZSTD_LIST_EARLY ? &c->n_literal_blocks[list - DAMACY__ZSTD_LIST_EARLY]
                                          : &c->n_execute;
    uint32_t counts[PER], mine = 0;

#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        counts[i] = first + i < DAMACY__ZSTD_BUCKETS ? cursor[first + i] : 0;
        mine += counts[i];
    }
    const uint32_t sum = damacy__sum_upto(mine, lane), n = damacy__shfl(sum, 31);
    const uint32_t before = is_first ? 0 : damacy__atomic_load(n_listed);
    uint32_t at = list >= DAMACY__ZSTD_LIST_LATE ? w.max_blocks - before - n : before;
    damacy__sync_warp(); // that has been read
    if (lane == 0)
        *n_listed = before + n;
    at += sum - mine;
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        if (first + i < DAMACY__ZSTD_BUCKETS)
            cursor[first + i] = at;
        at += counts[i];
    }
}

// The same for blocks with sequences; one warp.
static __device__ void damacy__zstd_order_sequence_places(const damacy__zstd_wave& w,
                                                          uint32_t* cursor, bool is_first)
{
    const uint32_t lane = damacy__lane();
    uint32_t* const n_listed = &damacy__zstd_counts(w)->n_sequence_blocks;
    uint32_t at = is_first ? 0 : damacy__atomic_load(n_listed);
    damacy__sync_warp(); // that has been read

    for (uint32_t i = lane; i < DAMACY__ZSTD_SEQUENCE_BUCKETS; i += 32) {
        const uint32_t count = cursor[i], sum = damacy__sum_upto(count, lane);
        cursor[i] = at + sum - count;
        at += damacy__shfl(sum, 31);
    }
    if (lane == 0)
        *n_listed = at;
}

DAMACY__INLINE uint32_t* damacy__zstd_order_list(const damacy__zstd_wave& w, uint32_t list)
{
    const uint64_t at = list == DAMACY__ZSTD_LIST_SEQUENCES ? w.sequence_order
                        : list == DAMACY__ZSTD_LIST_EXECUTE
                            ? w.execute_list
                            : w.literal_order[(list - DAMACY__ZSTD_LIST_EARLY) % 3];
    return (uint32_t*)(uintptr_t)at;
}

// What a block of threads does: a part of what one kind of lists is made of.
typedef struct damacy__zstd_order_task {
    uint32_t what; // SEQUENCES, EXECUTE, or EARLY for all lists of literals
    uint32_t first, end;
    bool is_first, is_last, is_early;
} damacy__zstd_order_task;

// The keys of items i, i + blockDim.x, ... of a part, all asked for at once.
DAMACY__INLINE void damacy__zstd_order_keys(const damacy__zstd_wave& w,
                                            const damacy__zstd_order_task& t, uint32_t i,
                                            uint32_t* keys)
{
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__ZSTD_ORDER_AHEAD; k++, i += blockDim.x) {
        keys[k] = DAMACY__ZSTD_ORDER_NONE;
        if (i < t.end)
            keys[k] = t.what == DAMACY__ZSTD_LIST_EXECUTE
                          ? damacy__zstd_order_frame(damacy__zstd_frames(w)[i])
                      : t.what == DAMACY__ZSTD_LIST_EARLY
                          ? damacy__zstd_order_literals(w, i, t.is_early)
                          : damacy__zstd_order_sequences(w, i);
    }
}

// Those items are counted or, with WRITE, put into their lists.
template <bool WRITE>
DAMACY__INLINE void damacy__zstd_order_items(const damacy__zstd_wave& w,
                                             damacy__zstd_order_shared& shared, uint32_t i,
                                             const uint32_t* keys)
{
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__ZSTD_ORDER_AHEAD; k++, i += blockDim.x) {
        const uint32_t list = keys[k] >> 16, bucket = keys[k] & 0xffff;
        if (list == DAMACY__ZSTD_LISTS)
            continue;
        const uint32_t at =
            damacy__atomic_add(list == DAMACY__ZSTD_LIST_SEQUENCES ? &shared.sequences[bucket]
                                                                   : &shared.cursor[list][bucket],
                               1);
        if (WRITE)
            damacy__zstd_order_list(w, list)[at] = i;
    }
}

// Waits until the sequence stage has begun, though not for ever: it may be queued behind.
DAMACY__INLINE void damacy__zstd_order_after_fse(const damacy__zstd_wave& w)
{
    const damacy__zstd_counters* const c = damacy__zstd_counts(w);

    for (uint32_t i = 0; i < 256 && damacy__atomic_load(&c->n_sequence_blocks) &&
                         !damacy__atomic_load(&c->ticket[0]);
         i++) {
    }
}

// Whether literals are decoded beside the sequences. By lanes they take long wherever they find
// room, so they gain only if they are done before the last sequences are: with few bytes for each
// record, 0.75 of segments or 1.125 of sequences, which are two thirds as many. (Of segments text
// has 0.4, dim microscopy 0.4 to 0.6; with 0.95 nothing is gained.)
DAMACY__INLINE bool damacy__zstd_order_is_early(const damacy__zstd_wave& w)
{
    const damacy__zstd_counters* const c = damacy__zstd_counts(w);
    const uint32_t eighths = w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE ? 9 : 6;

    return w.flags & DAMACY__ZSTD_FLAG_EARLY && (!(w.flags & DAMACY__ZSTD_FLAG_EARLY_FEW) ||
                                                 8 * c->n_literal_bytes < eighths * c->n_records);
}

// A task, by all threads.
static __device__ void damacy__zstd_order_part(const damacy__zstd_wave& w,
                                               damacy__zstd_order_shared& shared,
                                               const damacy__zstd_order_task& t, uint32_t* n_done)
{
    const uint32_t tid = threadIdx.x, warp = tid / 32;
    const uint32_t begin = t.first + tid, step = DAMACY__ZSTD_ORDER_AHEAD * blockDim.x;
    const bool literals = t.what == DAMACY__ZSTD_LIST_EARLY;
    uint32_t keys[DAMACY__ZSTD_ORDER_AHEAD];
    uint32_t* const cursor = (uint32_t*)&shared;

    damacy__sync_block(); // the part before is done
    for (uint32_t i = tid; i < sizeof shared / 4; i += blockDim.x)
        cursor[i] = 0;
    damacy__sync_block();
    for (uint32_t i = begin; i < t.end; i += step) {
        damacy__zstd_order_keys(w, t, i, keys);
        damacy__zstd_order_items<false>(w, shared, i, keys);
    }
    damacy__zstd_chain_wait(n_done, t.first / DAMACY__ZSTD_LIST_PART);
    damacy__sync_block();
    if (warp == DAMACY__ZSTD_LIST_SEQUENCES && t.what == warp)
        damacy__zstd_order_sequence_places(w, shared.sequences, t.is_first);
    else if (literals ? warp >= DAMACY__ZSTD_LIST_EARLY && warp < DAMACY__ZSTD_LISTS
                      : warp == DAMACY__ZSTD_LIST_EXECUTE && t.what == warp)
        damacy__zstd_order_places(w, shared.cursor[warp], warp, t.is_first);
    damacy__sync_block();
    if (tid == 0 && !t.is_last)
        damacy__zstd_chain_tell(n_done, t.first / DAMACY__ZSTD_LIST_PART);
    for (uint32_t i = begin; i < t.end; i += step) {
        if (t.end - begin > step) // else they are there
            damacy__zstd_order_keys(w, t, i, keys);
        damacy__zstd_order_items<true>(w, shared, i, keys);
    }
}

// The lists of blocks with sequences and of frames, with ONE_LIST those of literals as well;
// else those of literals alone, in a pass of their own. Early literals are to have what sequences
// leave, so that lists that wait for trees wait until these have begun, too. Parts are taken in
// turn, so that who waits for the one before does so for a block of threads that is there.
static __device__ void damacy__zstd_order(const damacy__zstd_wave& w,
                                          damacy__zstd_order_shared& shared)
{
    damacy__zstd_counters* const counts = damacy__zstd_counts(w);
    const uint32_t n_blocks = counts->n_blocks, n_frames = counts->n_frames;
    const bool again = w.flags & DAMACY__ZSTD_FLAG_LITERALS;
    const bool is_one = w.flags & DAMACY__ZSTD_FLAG_ONE_LIST;
    const uint32_t n_kinds = again ? 1 : is_one ? 3 : 2;
    const uint32_t n_parts =
        damacy__zstd_parts(damacy__max(n_blocks, n_frames), DAMACY__ZSTD_LIST_PART);
    uint32_t i = blockIdx.x;

    if (again && !is_one && threadIdx.x == 0 && damacy__zstd_order_is_early(w))
        damacy__zstd_order_after_fse(w);
    for (;; i += gridDim.x) {
        damacy__zstd_order_task t;
        if (n_parts > 1)
            i = damacy__zstd_chain_next(&counts->n_lists_taken[again], &shared.cursor[0][0]);
        if (i >= n_kinds * n_parts)
            return;
        t.what = again ? (uint32_t)DAMACY__ZSTD_LIST_EARLY : i % n_kinds;
        t.first = i / n_kinds * DAMACY__ZSTD_LIST_PART;
        t.end = t.what == DAMACY__ZSTD_LIST_EXECUTE ? n_frames : n_blocks;
        t.end = damacy__min(t.end, t.first + DAMACY__ZSTD_LIST_PART);
        t.is_first = i < n_kinds;
        t.is_last = i / n_kinds + 1 == n_parts;
        t.is_early = t.what == DAMACY__ZSTD_LIST_EARLY && damacy__zstd_order_is_early(w);
        damacy__zstd_order_part(w, shared, t, &counts->n_lists_done[t.what]);
    }
}
