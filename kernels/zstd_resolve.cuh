// Places of things: lists of blocks by work, and, once sequences are decoded, the output positions
// and incoming repeat offsets of blocks. The surprising rule: repeat offsets of a block are maps of
// the three before it (offset k minus d, or a plain offset), and maps compose, so that blocks are
// decoded independently and joined by a scan.
#pragma once

#include "kernels/zstd_key.cuh"

// ---- order: one to three blocks of 1024 threads ----

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

// An entry of a list: which list (LISTS: none) and its size class there.
typedef struct damacy__zstd_order_key {
    uint32_t list, bucket;
} damacy__zstd_order_key;

// Of a block among those with sequences.
DAMACY__INLINE damacy__zstd_order_key damacy__zstd_order_sequences(const damacy__zstd_wave& w,
                                                                   uint32_t block)
{
    const damacy__zstd_key own = damacy__zstd_key_load(w, block);
    damacy__zstd_order_key key = {DAMACY__ZSTD_LISTS, own.what & 0xffff};

    if (own.what & DAMACY__ZSTD_KEY_SEQUENCES)
        key.list = DAMACY__ZSTD_LIST_SEQUENCES;
    return key;
}

// Of a block among those with Huffman literals.
DAMACY__INLINE damacy__zstd_order_key
damacy__zstd_order_literals(const damacy__zstd_wave& w, uint32_t block, bool is_early)
{
    const damacy__zstd_key own = damacy__zstd_key_load(w, block);
    damacy__zstd_order_key key = {DAMACY__ZSTD_LISTS, own.what >> 16 & 0xff};

    if (own.what & DAMACY__ZSTD_KEY_LITERALS) {
        const uint32_t log =
            w.flags & DAMACY__ZSTD_FLAG_ONE_LIST ? 0 : damacy__zstd_tree_logs(w)[own.tree];
        const bool early = is_early && own.what & DAMACY__ZSTD_KEY_SEQUENCES;
        key.list = (early ? (uint32_t)DAMACY__ZSTD_LIST_EARLY : (uint32_t)DAMACY__ZSTD_LIST_LATE) +
                   (log <= 9 ? 0 : log - 9);
    }
    return key;
}

// Of a frame among those to execute.
DAMACY__INLINE damacy__zstd_order_key damacy__zstd_order_frame(const damacy__zstd_frame& f)
{
    damacy__zstd_order_key key = {DAMACY__ZSTD_LISTS, 0};

    if (f.n_sequence_blocks) {
        key.list = DAMACY__ZSTD_LIST_EXECUTE;
        key.bucket = damacy__zstd_bucket(f.n_records);
    }
    return key;
}

// Counts become places; one warp a list.
static __device__ void damacy__zstd_order_places(const damacy__zstd_wave& w, uint32_t* cursor,
                                                 uint32_t list)
{
    constexpr uint32_t PER = (DAMACY__ZSTD_BUCKETS + 31) / 32;
    damacy__zstd_counters* const c = damacy__zstd_counts(w);
    const uint32_t lane = damacy__lane(), first = PER * lane;
    uint32_t counts[PER], mine = 0, at = 0;

#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        counts[i] = first + i < DAMACY__ZSTD_BUCKETS ? cursor[first + i] : 0;
        mine += counts[i];
    }
    const uint32_t sum = damacy__sum_upto(mine, lane), n = damacy__shfl(sum, 31);
    if (list >= DAMACY__ZSTD_LIST_LATE)
        at = w.max_blocks - n;
    if (lane == 0)
        *(list >= DAMACY__ZSTD_LIST_LATE    ? &c->n_late_blocks[list - DAMACY__ZSTD_LIST_LATE]
          : list >= DAMACY__ZSTD_LIST_EARLY ? &c->n_literal_blocks[list - DAMACY__ZSTD_LIST_EARLY]
                                            : &c->n_execute) = n;
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
                                                          uint32_t* cursor)
{
    const uint32_t lane = damacy__lane();
    uint32_t at = 0;

    for (uint32_t i = lane; i < DAMACY__ZSTD_SEQUENCE_BUCKETS; i += 32) {
        const uint32_t count = cursor[i], sum = damacy__sum_upto(count, lane);
        cursor[i] = at + sum - count;
        at += damacy__shfl(sum, 31);
    }
    if (lane == 0)
        damacy__zstd_counts(w)->n_sequence_blocks = at;
}

DAMACY__INLINE uint32_t* damacy__zstd_order_list(const damacy__zstd_wave& w, uint32_t list)
{
    const uint64_t at = list == DAMACY__ZSTD_LIST_SEQUENCES ? w.sequence_order
                        : list == DAMACY__ZSTD_LIST_EXECUTE
                            ? w.execute_list
                            : w.literal_order[(list - DAMACY__ZSTD_LIST_EARLY) % 3];
    return (uint32_t*)(uintptr_t)at;
}

// The keys of items i, i + step, ..., blocks or frames behind them, all asked for at once.
DAMACY__INLINE void damacy__zstd_order_keys(const damacy__zstd_wave& w, uint32_t i, uint32_t n,
                                            uint32_t n_blocks, bool literals, bool is_early,
                                            damacy__zstd_order_key* keys)
{
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__ZSTD_ORDER_AHEAD; k++, i += blockDim.x) {
        keys[k].list = DAMACY__ZSTD_LISTS;
        keys[k].bucket = 0;
        if (i < n)
            keys[k] = i >= n_blocks ? damacy__zstd_order_frame(damacy__zstd_frames(w)[i - n_blocks])
                      : literals    ? damacy__zstd_order_literals(w, i, is_early)
                                    : damacy__zstd_order_sequences(w, i);
    }
}

// Those items are counted or, with WRITE, put into their lists.
template <bool WRITE>
DAMACY__INLINE void damacy__zstd_order_items(const damacy__zstd_wave& w,
                                             damacy__zstd_order_shared& shared, uint32_t i,
                                             uint32_t n_blocks, const damacy__zstd_order_key* keys)
{
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__ZSTD_ORDER_AHEAD; k++, i += blockDim.x) {
        const damacy__zstd_order_key key = keys[k];
        if (key.list == DAMACY__ZSTD_LISTS)
            continue;
        const uint32_t at = damacy__atomic_add(key.list == DAMACY__ZSTD_LIST_SEQUENCES
                                                   ? &shared.sequences[key.bucket]
                                                   : &shared.cursor[key.list][key.bucket],
                                               1);
        if (WRITE)
            damacy__zstd_order_list(w, key.list)[at] = i < n_blocks ? i : i - n_blocks;
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

// The lists: of two blocks of threads the first makes that of sequences, the second that of frames;
// a third one, or the first where it is asked for no others, those of literals. Early literals are
// to have what sequences leave, so that lists that wait for trees wait until these have begun, too.
static __device__ void damacy__zstd_order(const damacy__zstd_wave& w,
                                          damacy__zstd_order_shared& shared)
{
    const uint32_t n_blocks = damacy__zstd_counts(w)->n_blocks, tid = threadIdx.x, warp = tid / 32;
    const bool again = w.flags & DAMACY__ZSTD_FLAG_LITERALS;
    const bool is_one = w.flags & DAMACY__ZSTD_FLAG_ONE_LIST;
    const bool literals = again || blockIdx.x == 2;
    const bool is_first = blockIdx.x == 0, is_last = literals || gridDim.x == 1 || !is_first;
    const uint32_t begin = is_first || literals ? tid : n_blocks + tid;
    const uint32_t n = n_blocks + (literals || !is_last ? 0 : damacy__zstd_counts(w)->n_frames);
    const bool is_early = literals && damacy__zstd_order_is_early(w);
    const uint32_t step = DAMACY__ZSTD_ORDER_AHEAD * blockDim.x;
    damacy__zstd_order_key keys[DAMACY__ZSTD_ORDER_AHEAD];
    uint32_t* const cursor = (uint32_t*)&shared;

    if (again ? !is_first : blockIdx.x > (is_one ? 2 : 1))
        return;
    if (is_early && !is_one && tid == 0)
        damacy__zstd_order_after_fse(w);
    for (uint32_t i = tid; i < sizeof shared / 4; i += blockDim.x)
        cursor[i] = 0;
    damacy__sync_block();
    for (uint32_t i = begin; i < n; i += step) {
        damacy__zstd_order_keys(w, i, n, n_blocks, literals, is_early, keys);
        damacy__zstd_order_items<false>(w, shared, i, n_blocks, keys);
    }
    damacy__sync_block();
    if (warp == DAMACY__ZSTD_LIST_SEQUENCES && !literals && is_first)
        damacy__zstd_order_sequence_places(w, shared.sequences);
    else if (warp != DAMACY__ZSTD_LIST_SEQUENCES && warp < DAMACY__ZSTD_LISTS && is_last &&
             literals == (warp >= DAMACY__ZSTD_LIST_EARLY))
        damacy__zstd_order_places(w, shared.cursor[warp], warp);
    damacy__sync_block();
    for (uint32_t i = begin; i < n; i += step) {
        if (n - begin > step) // else they are there
            damacy__zstd_order_keys(w, i, n, n_blocks, literals, is_early, keys);
        damacy__zstd_order_items<true>(w, shared, i, n_blocks, keys);
    }
}

// ---- resolve: a warp per job ----

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
