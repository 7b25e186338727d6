// Places of things: shares of scratch for jobs, lists of blocks by work, and, once sequences are
// decoded, the output positions and incoming repeat offsets of blocks. The surprising rule: repeat
// offsets of a block are maps of the three before it (offset k minus d, or a plain offset), and
// maps compose, so that blocks are decoded independently and joined by a scan.
#pragma once

#include "kernels/zstd_common.cuh"

// ---- allocate: one block of 1024 threads ----

typedef struct damacy__zstd_totals {
    uint64_t n_literal_bytes, n_records;
    uint32_t n_frames, n_blocks, n_trees;
} damacy__zstd_totals;

typedef struct damacy__zstd_allocate_shared {
    damacy__zstd_totals warps[32]; // sums, then what is before each warp
    damacy__zstd_totals base;
    uint32_t n_refused;
    bool fits;
} damacy__zstd_allocate_shared;

DAMACY__INLINE void damacy__zstd_totals_add(damacy__zstd_totals& a, const damacy__zstd_totals& b)
{
    a.n_literal_bytes += b.n_literal_bytes;
    a.n_records += b.n_records;
    a.n_frames += b.n_frames;
    a.n_blocks += b.n_blocks;
    a.n_trees += b.n_trees;
}

DAMACY__INLINE void damacy__zstd_totals_subtract(damacy__zstd_totals& a,
                                                 const damacy__zstd_totals& b)
{
    a.n_literal_bytes -= b.n_literal_bytes;
    a.n_records -= b.n_records;
    a.n_frames -= b.n_frames;
    a.n_blocks -= b.n_blocks;
    a.n_trees -= b.n_trees;
}

// 4,096 jobs with smaller counts, and what was placed before them, have sums of 32 bits. A job with
// larger ones gets more literals than any scratch holds, so that its 4,096 are placed one by one.
#define DAMACY__ZSTD_COUNT_MAX (1u << 19)

DAMACY__INLINE damacy__zstd_totals damacy__zstd_totals_clamp(damacy__zstd_totals t)
{
    if (damacy__max(damacy__max(t.n_frames, t.n_blocks), t.n_trees) >= DAMACY__ZSTD_COUNT_MAX) {
        t = damacy__zstd_totals{};
        t.n_literal_bytes = 1ull << 51;
    }
    return t;
}

// Of a job, in as few accesses as there can be: a single multiprocessor makes them for all jobs.
DAMACY__INLINE damacy__zstd_totals damacy__zstd_totals_load(const damacy__zstd_span* s)
{
    const damacy__u32x4 a = ((const damacy__u32x4*)s)[0], b = ((const damacy__u32x4*)s)[1];
    return {a.x | (uint64_t)a.y << 32, a.z | (uint64_t)a.w << 32, b.x, b.y, b.z};
}

// Sum over this lane and the lanes below it.
DAMACY__INLINE damacy__zstd_totals damacy__zstd_totals_scan(damacy__zstd_totals t)
{
    for (uint32_t d = 1; d < 32; d *= 2) {
        damacy__zstd_totals o;
        o.n_literal_bytes = damacy__shfl_up(t.n_literal_bytes, d);
        o.n_records = damacy__shfl_up(t.n_records, d);
        o.n_frames = damacy__shfl_up(t.n_frames, d);
        o.n_blocks = damacy__shfl_up(t.n_blocks, d);
        o.n_trees = damacy__shfl_up(t.n_trees, d);
        if (damacy__lane() >= d)
            damacy__zstd_totals_add(t, o);
    }
    return t;
}

DAMACY__INLINE bool damacy__zstd_totals_fit(const damacy__zstd_wave& w,
                                            const damacy__zstd_totals& t)
{
    return t.n_records <= w.max_records && // so that the sum below cannot wrap
           t.n_literal_bytes <= 8 * (w.max_records - t.n_records) && t.n_frames <= w.max_frames &&
           t.n_blocks <= w.max_blocks && t.n_trees <= w.max_blocks;
}

// Places a job whose share, with n_records, comes after `at`.
DAMACY__INLINE void damacy__zstd_span_place(const damacy__zstd_wave& w, damacy__zstd_span* s,
                                            uint64_t n_records, const damacy__zstd_totals& at)
{
    const uint64_t first_record = w.max_records - at.n_records - n_records;
    damacy__u32x4 a, b;
    a.x = (uint32_t)at.n_literal_bytes;
    a.y = (uint32_t)(at.n_literal_bytes >> 32);
    a.z = (uint32_t)first_record;
    a.w = (uint32_t)(first_record >> 32);
    b.x = at.n_frames;
    b.y = at.n_blocks;
    b.z = at.n_trees;
    b.w = 0;
    ((damacy__u32x4*)s)[2] = a;
    ((damacy__u32x4*)s)[3] = b;
}

// Places jobs [first, first + n) one by one from `base`: a job that does not fit takes no room.
static __device__ void damacy__zstd_allocate_each(const damacy__zstd_wave& w, uint32_t first,
                                                  uint32_t n, damacy__zstd_totals& base,
                                                  uint32_t& n_refused)
{
    for (uint32_t i = first; i < first + n; i++) {
        damacy__zstd_span* const s = damacy__zstd_spans(w) + i;
        const damacy__zstd_totals own = damacy__zstd_totals_load(s);
        damacy__zstd_totals next = base;
        damacy__zstd_totals_add(next, own);
        if (damacy__zstd_totals_fit(w, own) && damacy__zstd_totals_fit(w, next)) {
            damacy__zstd_span_place(w, s, own.n_records, base);
            base = next;
        } else {
            *s = damacy__zstd_span{};
            damacy__zstd_errors(w)[i] = DAMACY__JOB_NEED_SCRATCH;
            n_refused++;
        }
    }
}

// Sums of warps become what is before each; all of them go to the base if they fit. One whole warp
// calls it.
static __device__ void damacy__zstd_allocate_warps(const damacy__zstd_wave& w,
                                                   damacy__zstd_allocate_shared& shared)
{
    const uint32_t lane = damacy__lane();
    const damacy__zstd_totals mine = shared.warps[lane];
    damacy__zstd_totals at = damacy__zstd_totals_scan(mine);

    damacy__zstd_totals_add(at, shared.base);
    damacy__sync_warp(); // the base has been read
    if (lane == 31) {
        shared.fits = damacy__zstd_totals_fit(w, at);
        if (shared.fits)
            shared.base = at;
    }
    damacy__zstd_totals_subtract(at, mine);
    shared.warps[lane] = at;
}

static __device__ void damacy__zstd_allocate(const damacy__zstd_wave& w,
                                             damacy__zstd_allocate_shared& shared)
{
    constexpr uint32_t PER = 4; // jobs of a thread at once
    const uint32_t n = damacy__zstd_n_jobs(w), tid = threadIdx.x, warp = tid / 32;
    const uint32_t per = damacy__min((n + blockDim.x - 1) / blockDim.x, PER);

    if (tid == 0) {
        shared.base = damacy__zstd_totals{};
        shared.n_refused = 0;
    }
    for (uint32_t first = 0; first < n; first += PER * blockDim.x) {
        damacy__zstd_totals mine = {}, at, own[PER];
#pragma unroll
        for (uint32_t k = 0; k < PER; k++) {
            const uint32_t i = first + 32 * (per * warp + k) + damacy__lane();
            own[k] = damacy__zstd_totals{};
            if (k < per && i < n)
                own[k] =
                    damacy__zstd_totals_clamp(damacy__zstd_totals_load(damacy__zstd_spans(w) + i));
            damacy__zstd_totals_add(mine, own[k]);
        }
        at = damacy__zstd_totals_scan(mine);
        if (damacy__lane() == 31)
            shared.warps[warp] = at;
        damacy__sync_block();
        if (warp == 0)
            damacy__zstd_allocate_warps(w, shared);
        damacy__sync_block();
        if (shared.fits) {
            damacy__zstd_totals_add(at, shared.warps[warp]);
            damacy__zstd_totals_subtract(at, mine);
#pragma unroll
            for (uint32_t k = 0; k < PER; k++) {
                const uint32_t i = first + 32 * (per * warp + k) + damacy__lane();
                if (k >= per || i >= n)
                    break;
                damacy__zstd_span_place(w, damacy__zstd_spans(w) + i, own[k].n_records, at);
                damacy__zstd_totals_add(at, own[k]);
            }
        } else if (tid == 0) {
            damacy__zstd_allocate_each(w, first, damacy__min(PER * blockDim.x, n - first),
                                       shared.base, shared.n_refused);
        }
        damacy__sync_block(); // the sums are written again
    }
    if (tid == 0) {
        damacy__zstd_counters c = {};
        c.n_literal_bytes = shared.base.n_literal_bytes;
        c.n_records = shared.base.n_records;
        c.n_frames = shared.base.n_frames;
        c.n_blocks = shared.base.n_blocks;
        c.n_trees = shared.base.n_trees;
        c.n_refused = shared.n_refused;
        *damacy__zstd_counts(w) = c;
    }
}

// ---- order: one or two blocks of 1024 threads ----

#define DAMACY__ZSTD_BUCKETS          80u
#define DAMACY__ZSTD_SEQUENCE_BUCKETS 1024u
#define DAMACY__ZSTD_ORDER_AHEAD      8u // items of a thread at once

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

// An entry of a list: which list (LISTS: none) and its size class there. Nobody looks for errors,
// as the stages may run at the same time: what a job has is decoded whatever else it has, and which
// error is reported does not depend on which comes first.
typedef struct damacy__zstd_order_key {
    uint32_t list, bucket;
} damacy__zstd_order_key;

// Of a block among those with sequences.
DAMACY__INLINE damacy__zstd_order_key damacy__zstd_order_sequences(const damacy__zstd_block& b)
{
    damacy__zstd_order_key key = {DAMACY__ZSTD_LISTS, 0};

    if (b.type == DAMACY__ZSTD_SEQUENCES) {
        key.list = DAMACY__ZSTD_LIST_SEQUENCES;
        key.bucket = damacy__zstd_sequence_bucket(b.n_sequences);
    }
    return key;
}

// Of a block among those with Huffman literals.
DAMACY__INLINE damacy__zstd_order_key damacy__zstd_order_literals(const damacy__zstd_wave& w,
                                                                  const damacy__zstd_block& b,
                                                                  bool is_early)
{
    damacy__zstd_order_key key = {DAMACY__ZSTD_LISTS, 0};

    if (b.type >= DAMACY__ZSTD_LITERALS && b.literal_type >= DAMACY__ZSTD_LITERALS_HUFFMAN) {
        const uint32_t log = damacy__zstd_trees(w)[b.tree].log;
        const bool early = is_early && b.type == DAMACY__ZSTD_SEQUENCES;
        key.list = (early ? (uint32_t)DAMACY__ZSTD_LIST_EARLY : (uint32_t)DAMACY__ZSTD_LIST_LATE) +
                   (log <= 9 ? 0 : log - 9);
        key.bucket = damacy__zstd_bucket(b.n_literals);
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
                                            uint32_t n_blocks, bool is_early,
                                            damacy__zstd_order_key* keys)
{
#pragma unroll
    for (uint32_t k = 0; k < DAMACY__ZSTD_ORDER_AHEAD; k++, i += blockDim.x) {
        keys[k].list = DAMACY__ZSTD_LISTS;
        keys[k].bucket = 0;
        if (i < n)
            keys[k] = i >= n_blocks ? damacy__zstd_order_frame(damacy__zstd_frames(w)[i - n_blocks])
                      : w.flags & DAMACY__ZSTD_FLAG_LITERALS
                          ? damacy__zstd_order_literals(w, damacy__zstd_blocks(w)[i], is_early)
                          : damacy__zstd_order_sequences(damacy__zstd_blocks(w)[i]);
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
// record of these. (Text has 0.4, dim microscopy 0.4 to 0.6; with 0.95 nothing is gained.)
DAMACY__INLINE bool damacy__zstd_order_is_early(const damacy__zstd_wave& w)
{
    const damacy__zstd_counters* const c = damacy__zstd_counts(w);

    return w.flags & DAMACY__ZSTD_FLAG_EARLY &&
           (!(w.flags & DAMACY__ZSTD_FLAG_EARLY_FEW) || 4 * c->n_literal_bytes < 3 * c->n_records);
}

// The lists. Early literals are to have what sequences leave, so theirs come after those have
// begun. Of two blocks of threads each makes a list, unless it is those of literals.
static __device__ void damacy__zstd_order(const damacy__zstd_wave& w,
                                          damacy__zstd_order_shared& shared)
{
    const uint32_t n_blocks = damacy__zstd_counts(w)->n_blocks, tid = threadIdx.x, warp = tid / 32;
    const bool literals = w.flags & DAMACY__ZSTD_FLAG_LITERALS;
    const bool is_first = blockIdx.x == 0, is_last = literals || gridDim.x == 1 || !is_first;
    const uint32_t begin = is_first ? tid : n_blocks + tid;
    const uint32_t n = n_blocks + (literals || !is_last ? 0 : damacy__zstd_counts(w)->n_frames);
    const bool is_early = literals && damacy__zstd_order_is_early(w);
    const uint32_t step = DAMACY__ZSTD_ORDER_AHEAD * blockDim.x;
    damacy__zstd_order_key keys[DAMACY__ZSTD_ORDER_AHEAD];
    uint32_t* const cursor = (uint32_t*)&shared;

    if (blockIdx.x > 1 || (literals && !is_first))
        return;
    if (is_early && tid == 0)
        damacy__zstd_order_after_fse(w);
    for (uint32_t i = tid; i < sizeof shared / 4; i += blockDim.x)
        cursor[i] = 0;
    damacy__sync_block();
    for (uint32_t i = begin; i < n; i += step) {
        damacy__zstd_order_keys(w, i, n, n_blocks, is_early, keys);
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
            damacy__zstd_order_keys(w, i, n, n_blocks, is_early, keys);
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

// Sizes of the frames of a job; returns the size of the job, or NO_ERROR's value if a frame differs
// from its header or the sum passes the limit. All lanes return the same.
static __device__ uint64_t damacy__zstd_resolve_sizes(const damacy__zstd_wave& w,
                                                      const damacy__zstd_span& span)
{
    uint64_t total = 0;
    bool bad = false;

    for (uint32_t i = 0; i < span.n_frames; i++) {
        damacy__zstd_frame* const f = damacy__zstd_frames(w) + span.first_frame + i;
        uint64_t size = 0;
        uint32_t n_records = 0;
        for (uint32_t k = damacy__lane(); k < f->n_blocks; k += 32) {
            const damacy__zstd_block& b = damacy__zstd_blocks(w)[f->first_block + k];
            size += b.size;
            n_records += b.type == DAMACY__ZSTD_SEQUENCES ? b.n_records : 0;
        }
        for (uint32_t d = 16; d; d /= 2) {
            size += damacy__shfl_xor(size, d);
            n_records += damacy__shfl_xor(n_records, d);
        }
        bad = bad || (f->content_size != DAMACY__SIZE_UNKNOWN && f->content_size != size);
        total += size;
        damacy__sync_warp();
        if (damacy__lane() == 0) {
            f->size = (uint32_t)size;
            f->n_records = n_records;
        }
    }
    damacy__sync_warp();
    return bad ? DAMACY__ZSTD_NO_ERROR : total;
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

static __device__ void damacy__zstd_resolve_job(const damacy__zstd_wave& w, uint32_t index)
{
    const damacy__job& job = damacy__zstd_jobs(w)[index];
    const damacy__zstd_span span = damacy__zstd_spans(w)[index];
    const uint64_t capacity =
        job.dst_capacity < DAMACY__JOB_SIZE_MAX ? job.dst_capacity : DAMACY__JOB_SIZE_MAX;
    uint64_t dst = job.dst;

    if (damacy__zstd_errors(w)[index] != DAMACY__ZSTD_NO_ERROR)
        return; // its blocks stay without a place
    const uint64_t size = damacy__zstd_resolve_sizes(w, span);
    const bool wrong = size == DAMACY__ZSTD_NO_ERROR ||
                       (job.expected_size != DAMACY__SIZE_UNKNOWN && size != job.expected_size);
    damacy__sync_warp(); // every lane has read the error word
    if (wrong || size > capacity) {
        if (damacy__lane() == 0)
            damacy__zstd_errors(w)[index] =
                wrong ? (uint64_t)DAMACY__JOB_SIZE_MISMATCH : size << 8 | DAMACY__JOB_NO_SPACE;
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
