// Walks a job, frames and blocks (RFC 8878 section 3.1), by one thread or, where there are enough
// for all jobs, by one warp. The walk runs twice, first to count and to check every rule that needs
// no entropy decoding, then to fill the tables. A warp goes from block header to block header with
// all lanes and looks into up to 32 blocks at once. The surprising rule: blocks without output
// (empty raw and RLE blocks, compressed blocks without literals and sequences) leave no record, so
// that scratch is bounded by content and not by headers.
#pragma once

#include "kernels/zstd_allocate.cuh"
#include "kernels/zstd_header.cuh"
#include "kernels/zstd_key.cuh"

// Takes the next record of each table that the block needs, in the walk that fills.
static __device__ bool damacy__zstd_store_block(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                                const damacy__zstd_span& room,
                                                damacy__zstd_block& b,
                                                const damacy__zstd_block_share& share)
{
    const uint32_t index = k.n.first_block + k.n.n_blocks;

    // false only if the source changed since it was counted
    if (k.n.n_blocks >= room.n_blocks || k.n.n_frames >= room.n_frames ||
        k.n.n_literal_bytes + share.n_literal_bytes > room.n_literal_bytes ||
        k.n.n_records + share.n_records > room.n_records ||
        k.n.n_trees + share.own_tree > room.n_trees)
        return false;
    if (share.own_tree) {
        damacy__zstd_tree* const tree = damacy__zstd_trees(w) + k.tree;
        tree->src = b.literal_src;
        tree->limit = b.literal_size;
        tree->block = index;
        tree->size = 0;
        tree->log = 0;
    }
    b.frame = k.n.first_frame + k.n.n_frames;
    b.tree = k.tree;
    b.max_size = k.max_size;
    b.first_record = k.n.first_record + k.n.n_records;
    if (share.n_literal_bytes)
        b.literals = w.literals + k.n.first_literal_byte + k.n.n_literal_bytes;
    else if (b.literal_type == DAMACY__ZSTD_LITERALS_RAW)
        b.literals = b.literal_src;
    damacy__zstd_blocks(w)[index] = b;
    damacy__zstd_key_store(w, index, damacy__zstd_key_of(b));
    return true;
}

// Adds a block to the counts.
DAMACY__INLINE void damacy__zstd_count_block(damacy__zstd_walk& k,
                                             const damacy__zstd_block_share& share)
{
    k.n.n_blocks++;
    k.n.n_literal_bytes += share.n_literal_bytes;
    k.n.n_records += share.n_records;
    k.n.n_spared += share.n_spared;
    k.n.n_trees += share.own_tree;
}

// The blocks of a frame, one after another.
template <bool FILL>
static __device__ bool
damacy__zstd_blocks_by_thread(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                              const damacy__zstd_span& room, uint32_t& n_sequence_blocks)
{
    damacy__zstd_block_header h = {};
    damacy__zstd_block b;
    damacy__zstd_block_share share;

    while (!h.is_last) { // every pass takes at least three bytes
        if (!damacy__zstd_block_open(w, k, h) || !damacy__zstd_block_read(k, h, b, share))
            return false;
        if (!share.is_kept)
            continue;
        n_sequence_blocks += b.type == DAMACY__ZSTD_SEQUENCES;
        if (FILL && !damacy__zstd_store_block(w, k, room, b, share))
            return damacy__zstd_stop(k, 0, DAMACY__JOB_BAD_HEADER);
        damacy__zstd_count_block(k, share);
    }
    return true;
}

// Which lanes' blocks define a tree and tables.
typedef struct damacy__zstd_defines {
    uint32_t tree, tables[3];
} damacy__zstd_defines;

DAMACY__INLINE damacy__zstd_defines damacy__zstd_defines_of(bool is_good,
                                                            const damacy__zstd_block& b,
                                                            const damacy__zstd_block_share& share)
{
    const bool has_tables = is_good && b.type == DAMACY__ZSTD_SEQUENCES;
    damacy__zstd_defines d;

    d.tree = damacy__ballot(is_good && share.own_tree);
#pragma unroll
    for (uint32_t t = 0; t < 3; t++)
        d.tables[t] =
            damacy__ballot(has_tables && (b.modes >> (2 * t) & 3) != DAMACY__ZSTD_MODE_REPEAT);
    return d;
}

// Reads the block of each lane that has one. A block may use the tree and the tables of one before
// it: they are taken to be there first, and a block that misses one is read again. Returns the
// lanes whose blocks are wrong; the first of them, and its error, is right.
DAMACY__INLINE uint32_t damacy__zstd_read_all(const damacy__zstd_walk& k, bool has,
                                              const damacy__zstd_block_header& h,
                                              damacy__zstd_walk& mine, damacy__zstd_block& b,
                                              damacy__zstd_block_share& share,
                                              damacy__zstd_defines& defines)
{
    const uint32_t below = (1u << damacy__lane()) - 1;
    bool is_good = true;

    mine = k;
    mine.error = DAMACY__ZSTD_NO_ERROR;
    mine.at = h.at;
    mine.tree = mine.tables[0] = mine.tables[1] = mine.tables[2] = 0;
    b = damacy__zstd_block{};
    share = damacy__zstd_block_share{};
    if (has)
        is_good = damacy__zstd_block_read(mine, h, b, share);
    defines = damacy__zstd_defines_of(has && is_good, b, share);
    mine.tree = defines.tree & below ? 0 : k.tree;
    bool misses =
        mine.tree == DAMACY__ZSTD_NONE && b.literal_type == DAMACY__ZSTD_LITERALS_TREELESS;
#pragma unroll
    for (uint32_t t = 0; t < 3; t++) {
        mine.tables[t] = defines.tables[t] & below ? 0 : k.tables[t];
        misses |= mine.tables[t] == DAMACY__ZSTD_NONE && b.type == DAMACY__ZSTD_SEQUENCES &&
                  (b.modes >> (2 * t) & 3) == DAMACY__ZSTD_MODE_REPEAT;
    }
    if (has && (misses || !is_good)) { // whatever the error is, one that comes before counts
        mine.error = DAMACY__ZSTD_NO_ERROR;
        mine.at = h.at;
        is_good = damacy__zstd_block_read(mine, h, b, share);
    }
    return damacy__ballot(has && !is_good);
}

// Sum over the lanes below, and over all.
DAMACY__INLINE uint32_t damacy__zstd_sum_below(uint32_t v, uint32_t& total)
{
    const uint32_t sum = damacy__sum_upto(v, damacy__lane());

    total = damacy__shfl(sum, 31);
    return sum - v;
}

// The last of those in `who` up to this lane (`upto`: these lanes), as the place it has among
// `all`; `before` if there is none.
DAMACY__INLINE uint32_t damacy__zstd_last_of(uint32_t who, uint32_t all, uint32_t upto,
                                             uint32_t first, uint32_t before)
{
    const uint32_t lanes = who & upto;
    return lanes ? first + damacy__popc(all & ((1u << (31 - damacy__clz(lanes))) - 1)) : before;
}

// Gives the blocks of all lanes their places, stores them if FILL, and brings the walk behind them.
template <bool FILL>
DAMACY__INLINE bool
damacy__zstd_take_all(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                      const damacy__zstd_span& room, damacy__zstd_walk& mine, damacy__zstd_block& b,
                      const damacy__zstd_block_share& share, const damacy__zstd_defines& defines)
{
    const uint32_t below = (1u << damacy__lane()) - 1, upto = below << 1 | 1;
    const uint32_t kept = damacy__ballot(share.is_kept);
    const uint32_t first = k.n.first_block + k.n.n_blocks, tree = k.n.first_tree + k.n.n_trees;
    uint32_t n_literal_bytes, n_records;
    bool fits = true;

    mine.n = k.n;
    mine.n.n_blocks += damacy__popc(kept & below);
    mine.n.n_trees += damacy__popc(defines.tree & below);
    mine.n.n_literal_bytes += damacy__zstd_sum_below(share.n_literal_bytes, n_literal_bytes);
    mine.n.n_records += damacy__zstd_sum_below(share.n_records, n_records);
    mine.tree = damacy__zstd_last_of(defines.tree, defines.tree, upto, tree, k.tree);
    k.tree = damacy__zstd_last_of(defines.tree, defines.tree, DAMACY__FULL, tree, k.tree);
#pragma unroll
    for (uint32_t t = 0; t < 3; t++) {
        const uint32_t who = defines.tables[t];
        if (b.type == DAMACY__ZSTD_SEQUENCES)
            b.tables[t] = damacy__zstd_last_of(who, kept, upto, first, k.tables[t]);
        k.tables[t] = damacy__zstd_last_of(who, kept, DAMACY__FULL, first, k.tables[t]);
    }
    if (FILL && share.is_kept)
        fits = damacy__zstd_store_block(w, mine, room, b, share);
    if (FILL && !damacy__all(fits))
        return damacy__zstd_stop(k, 0, DAMACY__JOB_BAD_HEADER);
    k.n.n_blocks += damacy__popc(kept);
    k.n.n_trees += damacy__popc(defines.tree);
    k.n.n_literal_bytes += n_literal_bytes;
    k.n.n_records += n_records;
    if (!FILL)
        k.n.n_spared += damacy__warp_sum(share.n_spared);
    return true;
}

// The blocks of a frame by a warp, whose lanes all have the same walk.
template <bool FILL>
static __device__ bool damacy__zstd_blocks_by_warp(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                                   const damacy__zstd_span& room,
                                                   uint32_t& n_sequence_blocks)
{
    damacy__zstd_block_header h = {}, own = {};
    damacy__zstd_walk mine;
    damacy__zstd_block b;
    damacy__zstd_block_share share;
    damacy__zstd_defines defines;

    while (!h.is_last) {
        bool is_open = true;
        uint32_t n = 0;
        while (n < 32 && !h.is_last && is_open) {
            is_open = damacy__zstd_block_open(w, k, h);
            if (!is_open)
                break;
            if (n++ == damacy__lane())
                own = h;
            k.at = h.end;
        }
        const bool has = damacy__lane() < n;
        const uint32_t wrong = damacy__zstd_read_all(k, has, own, mine, b, share, defines);
        if (wrong) {
            k.error = damacy__shfl(mine.error, 31 - damacy__clz(wrong & (0 - wrong)));
            return false;
        }
        if (!is_open)
            return false;
        n_sequence_blocks += damacy__popc(damacy__ballot(b.type == DAMACY__ZSTD_SEQUENCES && has));
        if (!damacy__zstd_take_all<FILL>(w, k, room, mine, b, share, defines))
            return false;
    }
    return true;
}

// One frame after its magic number.
template <bool FILL, bool WARP>
static __device__ bool damacy__zstd_frame_step(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                               const damacy__zstd_span& room, uint32_t job)
{
    const uint64_t n_records = k.n.n_records;
    damacy__zstd_frame f = {};
    bool has_checksum = false;

    f.job = job;
    f.first_block = k.n.first_block + k.n.n_blocks;
    k.tree = k.tables[0] = k.tables[1] = k.tables[2] = DAMACY__ZSTD_NONE;
    if (!damacy__zstd_frame_header(k, f.content_size, has_checksum))
        return false;
    if (f.content_size == DAMACY__SIZE_UNKNOWN)
        k.known = 0;
    else
        k.content += f.content_size;
    if (!(WARP ? damacy__zstd_blocks_by_warp<FILL>(w, k, room, f.n_sequence_blocks)
               : damacy__zstd_blocks_by_thread<FILL>(w, k, room, f.n_sequence_blocks)))
        return false;
    f.n_blocks = k.n.first_block + k.n.n_blocks - f.first_block;
    if (has_checksum) {
        if (!damacy__zstd_has(k, 4))
            return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
        f.checksum = (uint64_t)(uintptr_t)(k.src + k.at);
        k.at += 4;
    }
    if (FILL) {
        if (k.n.n_frames >= room.n_frames)
            return damacy__zstd_stop(k, 0, DAMACY__JOB_BAD_HEADER);
        f.n_records = (uint32_t)(k.n.n_records - n_records);
        if (!WARP || damacy__lane() == 0)
            damacy__zstd_frames(w)[k.n.first_frame + k.n.n_frames] = f;
    }
    k.n.n_frames++;
    return true;
}

// The frames and skippable frames of a job, up to its end (section 3.1).
template <bool FILL, bool WARP>
static __device__ bool damacy__zstd_walk_job(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                             const damacy__zstd_span& room, uint32_t job)
{
    bool first = true;

    while (k.at < k.size) { // every pass takes at least eight bytes
        const uint32_t bad =
            first ? (uint32_t)DAMACY__JOB_BAD_MAGIC : (uint32_t)DAMACY__JOB_TRAILING;
        if (!damacy__zstd_next(w, k))
            return false;
        if (!damacy__zstd_has(k, 4))
            return damacy__zstd_stop(k, k.at, first ? (uint32_t)DAMACY__JOB_TRUNCATED : bad);
        const uint32_t magic = damacy__load_u32(k.src + k.at);
        if ((magic & ~15u) == 0x184d2a50u) {
            if (!damacy__zstd_has(k, 8))
                return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
            const uint32_t skip = damacy__load_u32(k.src + k.at + 4);
            if (skip > k.size - k.at - 8)
                return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
            k.at += 8 + skip;
        } else if (magic == 0xfd2fb528u) {
            k.at += 4;
            if (!damacy__zstd_frame_step<FILL, WARP>(w, k, room, job))
                return false;
        } else {
            return damacy__zstd_stop(k, k.at, bad);
        }
        first = false;
    }
    return true;
}

DAMACY__INLINE void damacy__zstd_walk_begin(damacy__zstd_walk& k, const damacy__job& job)
{
    k.src = (const uint8_t*)(uintptr_t)job.src;
    k.size = (uint32_t)job.src_size;
    k.at = 0;
    k.error = DAMACY__ZSTD_NO_ERROR;
    k.content = 0;
    k.known = 1;
    k.n_headers = 0;
    k.is_tight = 0;
    k.by_sequence = 0;
    k.max_size = 0;
    k.ahead = damacy__zstd_glance{};
    k.n = damacy__zstd_span{};
}

// Checks and counts one job. The counts of a broken job are 0.
template <bool WARP>
static __device__ damacy__zstd_span damacy__zstd_count_job(const damacy__zstd_wave& w,
                                                           uint32_t index, uint64_t& error)
{
    const damacy__job job = damacy__zstd_jobs(w)[index];
    const uint64_t capacity =
        job.dst_capacity < DAMACY__JOB_SIZE_MAX ? job.dst_capacity : DAMACY__JOB_SIZE_MAX;
    const uint64_t expected = job.expected_size;
    damacy__zstd_walk k;

    error = DAMACY__ZSTD_NO_ERROR;
    if (job.flags & DAMACY__JOB_SKIP)
        error = DAMACY__JOB_SKIPPED;
    else if (job.src_size > DAMACY__JOB_SIZE_MAX)
        error = DAMACY__JOB_TOO_LARGE;
    else if (expected != DAMACY__SIZE_UNKNOWN && expected > capacity)
        error = (expected >> 55 ? 0 : expected << 8) | DAMACY__JOB_NO_SPACE;
    if (error != DAMACY__ZSTD_NO_ERROR)
        return damacy__zstd_span{};
    damacy__zstd_walk_begin(k, job);
    k.by_sequence = w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE;
    if (damacy__zstd_walk_job<false, WARP>(w, k, k.n, index) && k.known) {
        if (expected != DAMACY__SIZE_UNKNOWN && k.content != expected)
            damacy__zstd_stop(k, 0, DAMACY__JOB_SIZE_MISMATCH);
        else if (k.content > capacity)
            damacy__zstd_stop(k, k.content >> 55 ? 0 : k.content, DAMACY__JOB_NO_SPACE);
    }
    error = k.error;
    return error == DAMACY__ZSTD_NO_ERROR ? k.n : damacy__zstd_span{};
}

// Counts the jobs of a part, 2^spread threads each; returns the sums of those that this one has
// counted.
DAMACY__INLINE damacy__zstd_sum damacy__zstd_count_part(const damacy__zstd_wave& w,
                                                        const damacy__zstd_part& p, uint32_t spread)
{
    const bool is_first = (threadIdx.x & ((1u << spread) - 1)) == 0;
    damacy__zstd_sum sum = {};

    if (spread < DAMACY__ZSTD_SPREAD_WARP && !is_first)
        return sum;
    for (uint32_t i = p.first + (threadIdx.x >> spread); i < p.end; i += blockDim.x >> spread) {
        uint64_t error;
        const damacy__zstd_span span = spread < DAMACY__ZSTD_SPREAD_WARP
                                           ? damacy__zstd_count_job<false>(w, i, error)
                                           : damacy__zstd_count_job<true>(w, i, error);
        if (!is_first)
            continue;
        damacy__zstd_spans(w)[i] = span;
        damacy__zstd_errors(w)[i] = error;
        damacy__zstd_result(w, i, DAMACY__JOB_NOT_RUN, 0);
        damacy__zstd_sum_take(sum, span);
    }
    return sum;
}

// Gives the records that a walk left out a harmless content: only if the source changed after it
// was counted.
static __device__ void damacy__zstd_fill_rest(const damacy__zstd_wave& w, uint32_t index,
                                              const damacy__zstd_walk& k,
                                              const damacy__zstd_span& span)
{
    for (uint32_t i = k.n.n_frames; i < span.n_frames; i++) {
        damacy__zstd_frame f = {};
        f.job = index;
        f.first_block = span.first_block;
        damacy__zstd_frames(w)[span.first_frame + i] = f;
    }
    for (uint32_t i = k.n.n_blocks; i < span.n_blocks; i++) {
        damacy__zstd_block b = {};
        b.frame = span.first_frame;
        damacy__zstd_blocks(w)[span.first_block + i] = b;
        damacy__zstd_key_store(w, span.first_block + i, damacy__zstd_key_of(b));
    }
    for (uint32_t i = k.n.n_trees; i < span.n_trees; i++) {
        damacy__zstd_tree* const tree = damacy__zstd_trees(w) + span.first_tree + i;
        tree->src = damacy__zstd_jobs(w)[index].src;
        tree->limit = 0;
        tree->block = span.first_block;
        tree->size = tree->log = 0;
    }
}

// Fills the tables of one job whose share has been placed; else there is nothing to do.
template <bool WARP>
static __device__ void damacy__zstd_fill_job(const damacy__zstd_wave& w, uint32_t index,
                                             bool is_tight)
{
    const damacy__job job = damacy__zstd_jobs(w)[index];
    damacy__zstd_span span = damacy__zstd_spans(w)[index];
    damacy__zstd_walk k;

    if (!span.is_placed || span.n_frames == 0)
        return;
    damacy__zstd_walk_begin(k, job);
    k.by_sequence = w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE;
    k.is_tight = is_tight;
    span.n_records -= k.is_tight ? 16ull * span.n_spared : 0;
    k.n.first_frame = span.first_frame;
    k.n.first_block = span.first_block;
    k.n.first_tree = span.first_tree;
    k.n.first_literal_byte = span.first_literal_byte;
    k.n.first_record = span.first_record;
    if (!damacy__zstd_walk_job<true, WARP>(w, k, span, index) || k.n.n_blocks != span.n_blocks ||
        k.n.n_frames != span.n_frames || k.n.n_trees != span.n_trees) {
        damacy__zstd_stop(k, 0, DAMACY__JOB_BAD_HEADER);
        if (WARP)
            damacy__sync_warp(); // what other lanes stored is written over
        if (!WARP || damacy__lane() == 0) {
            damacy__zstd_errors(w)[index] = k.error;
            damacy__zstd_fill_rest(w, index, k, span);
        }
    }
}

// Of the jobs of a part, 2^spread threads each. One loop for both walks: with a loop each, that by
// a warp took 12 instead of 7 us for 512 jobs of two blocks (and that by threads 8 instead of 12
// for 4,096 of one).
DAMACY__INLINE void damacy__zstd_fill_part(const damacy__zstd_wave& w, const damacy__zstd_part& p,
                                           uint32_t spread, bool is_tight)
{
    if (spread < DAMACY__ZSTD_SPREAD_WARP && (threadIdx.x & ((1u << spread) - 1)) != 0)
        return;
    for (uint32_t i = p.first + (threadIdx.x >> spread); i < p.end; i += blockDim.x >> spread) {
        if (spread < DAMACY__ZSTD_SPREAD_WARP)
            damacy__zstd_fill_job<false>(w, i, is_tight);
        else
            damacy__zstd_fill_job<true>(w, i, is_tight);
    }
}
