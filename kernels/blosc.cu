// blosc1 containers: headers and block tables -> jobs of the LZ4 and Zstandard decoders and moves;
// afterwards statuses, and the filters. See blosc_abi.h for the order of the entries.
#include "kernels/blosc_finish.cuh"
#include "kernels/lz4_abi.h"

// A container whose header was accepted.
typedef struct damacy__container {
    const uint8_t* src;
    uint32_t src_size; // as the header says it, too
    uint32_t size;     // decoded
    uint32_t block_size;
    uint32_t n_blocks; // 0: the bytes after the header are the chunk, or it is empty
    uint32_t type_size;
    uint32_t filter;
    uint32_t codec;
    bool is_split; // every whole block has a stream per byte of an element
} damacy__container;

// First error of a container: byte << 8 | status. The smallest counts.
DAMACY__INLINE uint64_t damacy__blosc_error(uint64_t at, uint32_t status)
{
    return at << 8 | status;
}

// Codec, shuffle and splitting, from the flags.
DAMACY__INLINE uint64_t damacy__blosc_flags(damacy__container* c)
{
    const uint32_t flags = c->src[2], codec = flags >> 5;
    if (codec == 1)
        c->codec = DAMACY__BLOSC_JOBS_LZ4;
    else if (codec == 4)
        c->codec = DAMACY__BLOSC_JOBS_ZSTD;
    else
        return damacy__blosc_error(2, DAMACY__JOB_UNSUPPORTED);
    c->filter = DAMACY__BLOSC_FILTER_NONE;
    if (flags & 1 && c->type_size > 1)
        c->filter = DAMACY__BLOSC_FILTER_BYTES;
    if (flags & 4)
        c->filter = DAMACY__BLOSC_FILTER_BITS;
    c->is_split = !(flags & 0x10) && c->type_size <= 16 && c->block_size / c->type_size >= 128;
    // A block of which the streams leave a rest has bytes that no stream gives.
    if (c->is_split && c->block_size % c->type_size != 0)
        return damacy__blosc_error(3, DAMACY__JOB_BAD_HEADER);
    return DAMACY__BLOSC_NO_ERROR;
}

// Checks the header against the job and fills *c.
DAMACY__INLINE uint64_t damacy__blosc_open(const damacy__job* job, damacy__container* c)
{
    const uint8_t* const p = (const uint8_t*)(uintptr_t)job->src;
    c->src = p;
    c->n_blocks = 0;
    c->filter = DAMACY__BLOSC_FILTER_NONE;
    c->codec = DAMACY__BLOSC_JOBS_NONE;
    c->is_split = false;
    c->src_size = c->size = c->block_size = c->type_size = 0;
    if (job->flags & DAMACY__JOB_SKIP)
        return damacy__blosc_error(0, DAMACY__JOB_SKIPPED);
    if (job->src_size > DAMACY__JOB_SIZE_MAX)
        return damacy__blosc_error(0, DAMACY__JOB_TOO_LARGE);
    if (job->src_size < DAMACY__BLOSC_START)
        return damacy__blosc_error(job->src_size, DAMACY__JOB_TRUNCATED);
    if (p[0] != 2) // 3 to 6 are written by c-blosc2
        return damacy__blosc_error(0, p[0] > 2 && p[0] < 7 ? DAMACY__JOB_UNSUPPORTED
                                                           : DAMACY__JOB_BAD_MAGIC);
    if (p[1] != 1)
        return damacy__blosc_error(1, DAMACY__JOB_BAD_HEADER);
    c->type_size = p[3];
    c->size = damacy__load_u32(p + 4);
    c->block_size = damacy__load_u32(p + 8);
    c->src_size = damacy__load_u32(p + 12);
    if (p[2] & 8 || (p[2] & 5) == 5 || p[2] >> 5 > 4)
        return damacy__blosc_error(2, DAMACY__JOB_BAD_HEADER);
    if (c->type_size == 0)
        return damacy__blosc_error(3, DAMACY__JOB_BAD_HEADER);
    if (c->size > DAMACY__JOB_SIZE_MAX ||
        (job->expected_size != DAMACY__SIZE_UNKNOWN && c->size != job->expected_size))
        return damacy__blosc_error(4, DAMACY__JOB_SIZE_MISMATCH);
    if (c->size > job->dst_capacity)
        return damacy__blosc_error(4, DAMACY__JOB_NO_SPACE);
    if (c->src_size != job->src_size)
        return damacy__blosc_error(12, c->src_size > job->src_size ? DAMACY__JOB_TRUNCATED
                                                                   : DAMACY__JOB_TRAILING);
    if (c->size == 0)
        return DAMACY__BLOSC_NO_ERROR;
    if (p[2] & 2) // stored; the filter flags say nothing then
        return c->src_size - DAMACY__BLOSC_START == c->size
                   ? DAMACY__BLOSC_NO_ERROR
                   : damacy__blosc_error(12, DAMACY__JOB_SIZE_MISMATCH);
    if (c->block_size == 0 || c->block_size > c->size ||
        c->block_size > DAMACY__BLOSC_BLOCK_SIZE_MAX)
        return damacy__blosc_error(8, DAMACY__JOB_BAD_HEADER);
    c->n_blocks = (c->size - 1) / c->block_size + 1;
    if (c->n_blocks > (c->src_size - DAMACY__BLOSC_START) / 4)
        return damacy__blosc_error(c->src_size, DAMACY__JOB_TRUNCATED);
    return damacy__blosc_flags(c);
}

// Whether the filter is FILTER_PLANES, of an accepted container whose output is at dst.
DAMACY__INLINE bool damacy__blosc_has_planes(const damacy__container* c, uint64_t dst)
{
    const bool is_usual = c->type_size == 2 || c->type_size == 4 || c->type_size == 8;
    return is_usual && c->is_split && c->codec == DAMACY__BLOSC_JOBS_LZ4 &&
           c->filter == DAMACY__BLOSC_FILTER_BYTES && c->block_size / c->type_size % 8 == 0 &&
           dst % 16 == 0;
}

// What parse reserved for a chunk, and what is still free of it.
typedef struct damacy__blosc_place {
    damacy__job* jobs;
    damacy__move* moves;
    uint64_t image;
    uint32_t flags, tag; // of every job
    uint32_t n_jobs, nth; // of the block; of them, those that are appended
} damacy__blosc_place;

// Appends a move, in parts.
DAMACY__INLINE void damacy__blosc_move(damacy__move** moves, uint64_t src, uint64_t dst,
                                       uint32_t size)
{
    for (uint32_t at = 0; at < size; at += DAMACY__MOVE_MAX) {
        damacy__move* const move = (*moves)++;
        move->src = src + at;
        move->dst = dst + at;
        move->size = damacy__min(size - at, DAMACY__MOVE_MAX);
    }
}

DAMACY__INLINE uint32_t damacy__blosc_n_moves(uint32_t size)
{
    return (size + DAMACY__MOVE_MAX - 1) / DAMACY__MOVE_MAX;
}

// Flags of the next job of a block, which is a plane.
DAMACY__INLINE uint32_t damacy__blosc_plane_flags(damacy__blosc_place* place)
{
    return DAMACY__LZ4_PLANE | place->nth++ << DAMACY__LZ4_PLANE_NTH |
           place->n_jobs << DAMACY__LZ4_PLANE_OF;
}

// Walks the streams of one block: counts them, or, with a place, writes their jobs and moves.
DAMACY__INLINE uint64_t damacy__blosc_block(const damacy__container* c, uint32_t block,
                                            uint32_t* n_jobs, uint32_t* n_moves,
                                            damacy__blosc_place* place)
{
    const uint32_t entry = DAMACY__BLOSC_START + 4 * block;
    const uint32_t start = block * c->block_size; // below c->size
    const uint32_t size = damacy__min(c->size - start, c->block_size);
    const uint32_t n_streams = c->is_split && size == c->block_size ? c->type_size : 1;
    const uint32_t stream_size = size / n_streams;
    const bool has_planes = c->filter == DAMACY__BLOSC_FILTER_PLANES && n_streams > 1;
    uint32_t at = damacy__load_u32(c->src + entry);
    if (at < DAMACY__BLOSC_START + 4 * c->n_blocks || at >= c->src_size)
        return damacy__blosc_error(entry, DAMACY__JOB_BAD_BLOCK);
    for (uint32_t i = 0; i < n_streams; i++) {
        if (c->src_size - at < 4)
            return damacy__blosc_error(at, DAMACY__JOB_TRUNCATED);
        const uint32_t packed = damacy__load_u32(c->src + at);
        if (packed == 0 || packed > DAMACY__JOB_SIZE_MAX)
            return damacy__blosc_error(at, DAMACY__JOB_BAD_BLOCK);
        if (packed > c->src_size - at - 4)
            return damacy__blosc_error(at, DAMACY__JOB_TRUNCATED);
        at += 4;
        const uint64_t src = (uint64_t)(uintptr_t)c->src + at;
        const bool is_stored = packed == stream_size;
        if (place) {
            const uint64_t dst = place->image + start + (uint64_t)i * stream_size;
            if (is_stored && !has_planes)
                damacy__blosc_move(&place->moves, src, dst, packed);
            if (!is_stored) {
                damacy__job* const job = place->jobs++;
                job->src = src;
                job->dst = dst;
                job->src_size = packed;
                job->dst_capacity = stream_size;
                job->expected_size = stream_size;
                job->flags = place->flags | (has_planes ? damacy__blosc_plane_flags(place) : 0);
                job->tag = place->tag;
            }
        }
        if (!is_stored)
            *n_jobs += 1;
        else if (!has_planes)
            *n_moves += damacy__blosc_n_moves(packed);
        at += packed;
    }
    return DAMACY__BLOSC_NO_ERROR;
}

// Takes n of a count that may not pass max. One lane calls it.
DAMACY__INLINE bool damacy__blosc_take(uint32_t* count, uint32_t n, uint32_t max, uint32_t* first)
{
    uint32_t seen = *(volatile uint32_t*)count;
    for (;;) { // each turn of another caller makes the count grow
        if (seen > max || n > max - seen)
            return false;
        const uint32_t old = damacy__atomic_cas(count, seen, seen + n);
        if (old == seen)
            break;
        seen = old;
    }
    *first = seen;
    return true;
}

// A chunk's share of each table.
typedef struct damacy__blosc_share {
    uint64_t image;
    uint32_t first_job, n_jobs;
    uint32_t first_move, n_moves;
} damacy__blosc_share;

// What the chunks of a CTA need, and then where each one's part begins; NONE: the chunk takes its
// own. Thousands of warps at one counter wait for each other; a CTA of chunks asks once.
#define DAMACY__BLOSC_GROUP 32u
#define DAMACY__BLOSC_NONE  0xffffffffffffffffull
enum { DAMACY__BLOSC_SCRATCH = 0, DAMACY__BLOSC_ZSTD, DAMACY__BLOSC_LZ4, DAMACY__BLOSC_MOVES };
typedef struct damacy__blosc_group {
    uint64_t part[4][DAMACY__BLOSC_GROUP];
} damacy__blosc_group;

DAMACY__INLINE uint64_t damacy__blosc_image_size(const damacy__container* c)
{
    return c->filter != DAMACY__BLOSC_FILTER_NONE ? ((uint64_t)c->size + 255) & ~255ull : 0;
}

// Takes n bytes of the scratch if they are there. One lane calls it.
DAMACY__INLINE bool damacy__blosc_take_scratch(const damacy__blosc_wave* wave, uint64_t n,
                                               uint64_t* first)
{
    uint64_t* const count = &((damacy__blosc_counters*)(uintptr_t)wave->counters)->n_scratch_bytes;
    uint64_t seen = *(volatile uint64_t*)count;
    for (;;) {
        if (seen > wave->scratch_size || n > wave->scratch_size - seen)
            return false;
        const uint64_t old = damacy__atomic_cas64(count, seen, seen + n);
        if (old == seen)
            break;
        seen = old;
    }
    *first = seen;
    return true;
}

// The same for a group of chunks: it adds first and compares then, because groups that come at the
// same time would compare in turns. What does not fit is given back; meanwhile nobody else finds
// room. Only where all groups together cannot make the sum wrap.
DAMACY__INLINE bool damacy__blosc_take_group(uint32_t* count, uint32_t n, uint32_t max,
                                             uint32_t* first)
{
    if (n > max)
        return false;
    if (n > (0xffffffffu - max) / gridDim.x)
        return damacy__blosc_take(count, n, max, first);
    *first = damacy__atomic_add(count, n);
    if (*first <= max && n <= max - *first)
        return true;
    (void)damacy__atomic_add(count, 0 - n);
    return false;
}

// Takes n of table `which` for a whole group; NONE if that much is not left.
DAMACY__INLINE uint64_t damacy__blosc_take_all(const damacy__blosc_wave* wave, uint32_t which,
                                               uint64_t n)
{
    damacy__blosc_counters* const counters = (damacy__blosc_counters*)(uintptr_t)wave->counters;
    uint32_t* const count = which == DAMACY__BLOSC_ZSTD  ? (uint32_t*)(uintptr_t)wave->n_zstd
                            : which == DAMACY__BLOSC_LZ4 ? (uint32_t*)(uintptr_t)wave->n_lz4
                                                         : &counters->n_moves;
    const uint32_t max = which == DAMACY__BLOSC_ZSTD  ? wave->max_zstd
                         : which == DAMACY__BLOSC_LZ4 ? wave->max_lz4
                                                      : wave->max_moves;
    uint32_t first = 0;
    if (n == 0)
        return 0;
    if (which != DAMACY__BLOSC_SCRATCH)
        return n <= max && damacy__blosc_take_group(count, (uint32_t)n, max, &first)
                   ? first
                   : DAMACY__BLOSC_NONE;
    const uint64_t old = damacy__atomic_add64(&counters->n_scratch_bytes, n); // n is below 2^37
    if (old <= wave->scratch_size && n <= wave->scratch_size - old)
        return old;
    (void)damacy__atomic_add64(&counters->n_scratch_bytes, 0 - n);
    return DAMACY__BLOSC_NONE;
}

// Needs become places. Once a table lacks room for all, the chunks take what comes after
// themselves: so none is left with jobs or moves that it cannot use. One whole warp calls it.
DAMACY__INLINE void damacy__blosc_group_take(const damacy__blosc_wave* wave,
                                             damacy__blosc_group* group)
{
    const uint32_t lane = damacy__lane();
    bool fits = true;
    for (uint32_t which = 0; which < 4; which++) {
        const uint64_t n = group->part[which][lane];
        uint64_t sum = n, first = DAMACY__BLOSC_NONE;
        for (uint32_t d = 1; d < 32; d *= 2) {
            const uint64_t other = damacy__shfl_up(sum, d);
            if (lane >= d)
                sum += other;
        }
        if (lane == 31 && fits)
            first = damacy__blosc_take_all(wave, which, sum);
        first = damacy__shfl(first, 31);
        fits = first != DAMACY__BLOSC_NONE;
        group->part[which][lane] = fits ? first + sum - n : DAMACY__BLOSC_NONE;
    }
}

// Reserves what the chunk needs and its group has not given it, all or nothing. One lane calls it.
DAMACY__INLINE bool damacy__blosc_reserve(const damacy__blosc_wave* wave,
                                          const damacy__container* c,
                                          const damacy__blosc_group* group, uint32_t member,
                                          damacy__blosc_share* s)
{
    damacy__blosc_counters* const counters = (damacy__blosc_counters*)(uintptr_t)wave->counters;
    const bool is_zstd = c->codec == DAMACY__BLOSC_JOBS_ZSTD;
    damacy__job* const jobs = damacy__blosc_jobs(wave, c->codec);
    uint32_t* const n_jobs = (uint32_t*)(uintptr_t)(is_zstd ? wave->n_zstd : wave->n_lz4);
    const uint32_t max_jobs = is_zstd ? wave->max_zstd : wave->max_lz4;
    const uint64_t size = damacy__blosc_image_size(c);
    uint64_t scratch = group->part[DAMACY__BLOSC_SCRATCH][member];
    const uint64_t job = group->part[is_zstd ? DAMACY__BLOSC_ZSTD : DAMACY__BLOSC_LZ4][member];
    const uint64_t move = group->part[DAMACY__BLOSC_MOVES][member];
    s->first_job = (uint32_t)job;
    s->first_move = (uint32_t)move;
    if (size) {
        if (scratch == DAMACY__BLOSC_NONE && !damacy__blosc_take_scratch(wave, size, &scratch))
            return false;
        s->image = wave->scratch + scratch;
    }
    if (s->n_jobs == 0)
        s->first_job = 0;
    else if (job == DAMACY__BLOSC_NONE &&
             !damacy__blosc_take(n_jobs, s->n_jobs, max_jobs, &s->first_job))
        return false;
    if (s->n_moves == 0) {
        s->first_move = 0;
    } else if (move == DAMACY__BLOSC_NONE && !damacy__blosc_take(&counters->n_moves, s->n_moves,
                                                                 wave->max_moves, &s->first_move)) {
        for (uint32_t i = 0; i < s->n_jobs; i++)
            jobs[s->first_job + i].flags = DAMACY__JOB_SKIP;
        return false;
    }
    return true;
}

// Sum of v over the lanes below, and over all.
DAMACY__INLINE uint32_t damacy__blosc_sum_below(uint32_t v, uint32_t lane, uint32_t* total)
{
    uint32_t sum = v;
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = damacy__shfl_up(sum, d);
        if (lane >= d)
            sum += other;
    }
    *total = damacy__shfl(sum, 31);
    return sum - v;
}

// Counts the streams of all blocks, a lane each, and finds the first error.
DAMACY__INLINE uint64_t damacy__blosc_count(const damacy__container* c, uint32_t lane,
                                            damacy__blosc_share* s)
{
    uint64_t error = DAMACY__BLOSC_NO_ERROR;
    uint32_t n_jobs = 0, n_moves = 0;
    for (uint32_t b = lane; b < c->n_blocks; b += 32) {
        const uint64_t e = damacy__blosc_block(c, b, &n_jobs, &n_moves, nullptr);
        error = e < error ? e : error;
    }
    if (c->n_blocks == 0 && lane == 0)
        n_moves = damacy__blosc_n_moves(c->size);
    (void)damacy__blosc_sum_below(n_jobs, lane, &s->n_jobs);
    (void)damacy__blosc_sum_below(n_moves, lane, &s->n_moves);
    return damacy__blosc_least(error);
}

// Writes the jobs and moves of all blocks, in order.
DAMACY__INLINE void damacy__blosc_write(const damacy__blosc_wave* wave, const damacy__container* c,
                                        const damacy__blosc_share* s, uint32_t flags, uint32_t tag,
                                        uint32_t lane)
{
    damacy__job* jobs = damacy__blosc_jobs(wave, c->codec) + s->first_job;
    damacy__move* moves = (damacy__move*)(uintptr_t)wave->moves + s->first_move;
    if (c->n_blocks == 0) {
        for (uint32_t at = lane * DAMACY__MOVE_MAX; at < c->size; at += 32 * DAMACY__MOVE_MAX) {
            damacy__move* move = moves + at / DAMACY__MOVE_MAX;
            damacy__blosc_move(&move, (uint64_t)(uintptr_t)c->src + DAMACY__BLOSC_START + at,
                               s->image + at, damacy__min(c->size - at, DAMACY__MOVE_MAX));
        }
        return;
    }
    for (uint32_t first = 0; first < c->n_blocks; first += 32) {
        const uint32_t b = first + lane;
        uint32_t n_jobs = 0, n_moves = 0, all_jobs, all_moves;
        if (b < c->n_blocks)
            (void)damacy__blosc_block(c, b, &n_jobs, &n_moves, nullptr);
        damacy__blosc_place place;
        place.jobs = jobs + damacy__blosc_sum_below(n_jobs, lane, &all_jobs);
        place.moves = moves + damacy__blosc_sum_below(n_moves, lane, &all_moves);
        place.image = s->image;
        place.flags = flags;
        place.tag = tag;
        place.n_jobs = n_jobs;
        place.nth = 0;
        if (b < c->n_blocks)
            (void)damacy__blosc_block(c, b, &n_jobs, &n_moves, &place);
        jobs += all_jobs;
        moves += all_moves;
    }
}

extern "C" __global__ __launch_bounds__(32) void damacy_blosc_begin(damacy__blosc_wave wave)
{
    if (threadIdx.x != 0)
        return;
    damacy__blosc_counters* const counters = (damacy__blosc_counters*)(uintptr_t)wave.counters;
    counters->n_scratch_bytes = 0;
    counters->n_moves = 0;
    counters->zero = 0;
    if (wave.n_lz4)
        *(uint32_t*)(uintptr_t)wave.n_lz4 = wave.first_lz4;
    if (wave.n_zstd)
        *(uint32_t*)(uintptr_t)wave.n_zstd = wave.first_zstd;
}

// Flags for the jobs of a chunk.
DAMACY__INLINE uint32_t damacy__blosc_job_flags(const damacy__job* job, const damacy__container* c,
                                                const damacy__blosc_share* s)
{
    const bool is_whole = c->codec == DAMACY__BLOSC_JOBS_ZSTD && !c->is_split &&
                          c->filter == DAMACY__BLOSC_FILTER_BYTES && s->n_moves == 0;
    return (job->flags & DAMACY__JOB_NO_CHECKSUM) | (is_whole ? (uint32_t)DAMACY__JOB_SHUFFLED : 0);
}

// Planes of whole blocks that stay in the source. What of such a chunk is moved is its rest.
DAMACY__INLINE uint32_t damacy__blosc_n_apart(const damacy__container* c,
                                              const damacy__blosc_share* s)
{
    const uint32_t n_whole = c->n_blocks ? c->size / c->block_size : 0;
    const bool is_rest_job = n_whole < c->n_blocks && s->n_moves == 0;
    return c->filter == DAMACY__BLOSC_FILTER_PLANES
               ? n_whole * c->type_size - (s->n_jobs - is_rest_job)
               : 0;
}

// Writes what was found. One lane calls it.
DAMACY__INLINE void damacy__blosc_tell(damacy__blosc_chunk* chunk, const damacy__container* c,
                                       const damacy__blosc_share* s, uint64_t dst, uint64_t error)
{
    const bool failed = error != DAMACY__BLOSC_NO_ERROR;
    chunk->image = s->image;
    chunk->dst = dst;
    chunk->size = c->size;
    chunk->block_size = c->block_size;
    chunk->type_size = c->type_size;
    chunk->filter = c->filter;
    chunk->codec = c->codec;
    chunk->first_job = s->first_job;
    chunk->n_jobs = failed ? 0 : s->n_jobs;
    chunk->status = failed ? (uint32_t)(error & 255) : (uint32_t)DAMACY__JOB_OK;
    chunk->error_offset = failed ? (uint32_t)(error >> 8) : 0;
    chunk->n_filtered = 0;
    chunk->src = (uint64_t)(uintptr_t)c->src;
    chunk->src_size = c->src_size;
    chunk->n_apart = failed ? 0 : damacy__blosc_n_apart(c, s);
}

// Warp per chunk, a group a CTA.
extern "C" __global__
    __launch_bounds__(32 * DAMACY__BLOSC_GROUP) void damacy_blosc_parse(damacy__blosc_wave wave)
{
    DAMACY__SHARED(damacy__blosc_group, group);
    const uint32_t lane = damacy__lane(), member = threadIdx.x >> 5;
    const uint32_t index = blockIdx.x * DAMACY__BLOSC_GROUP + member;
    const bool here = index < damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs);
    const damacy__job* const job =
        (const damacy__job*)(uintptr_t)wave.jobs + (here ? index : 0); // not read if not here
    damacy__container c;
    damacy__blosc_share share;
    uint64_t error = DAMACY__BLOSC_NO_ERROR;
    share.image = 0;
    share.first_job = share.n_jobs = share.first_move = share.n_moves = 0;
    if (here) {
        share.image = job->dst;
        error = damacy__blosc_open(job, &c);
        if (error == DAMACY__BLOSC_NO_ERROR && damacy__blosc_has_planes(&c, job->dst))
            c.filter = DAMACY__BLOSC_FILTER_PLANES;
        if (error == DAMACY__BLOSC_NO_ERROR)
            error = damacy__blosc_count(&c, lane, &share);
    }
    const bool asks = here && error == DAMACY__BLOSC_NO_ERROR;
    if (lane < 4) {
        const bool is_other =
            asks &&
            lane == (c.codec == DAMACY__BLOSC_JOBS_ZSTD ? DAMACY__BLOSC_LZ4 : DAMACY__BLOSC_ZSTD);
        group.part[lane][member] = !asks || is_other               ? 0
                                   : lane == DAMACY__BLOSC_SCRATCH ? damacy__blosc_image_size(&c)
                                   : lane == DAMACY__BLOSC_MOVES   ? share.n_moves
                                                                   : share.n_jobs;
    }
    damacy__sync_block();
    if (member == 0)
        damacy__blosc_group_take(&wave, &group);
    damacy__sync_block();
    if (!here)
        return;
    if (error == DAMACY__BLOSC_NO_ERROR) {
        bool fits = true;
        if (lane == 0)
            fits = damacy__blosc_reserve(&wave, &c, &group, member, &share);
        share.image = damacy__shfl(share.image, 0);
        share.first_job = damacy__shfl(share.first_job, 0);
        share.first_move = damacy__shfl(share.first_move, 0);
        if (damacy__all(fits))
            damacy__blosc_write(&wave, &c, &share, damacy__blosc_job_flags(job, &c, &share), index,
                                lane);
        else
            error = damacy__blosc_error(0, DAMACY__JOB_NEED_SCRATCH);
    }
    if (lane == 0)
        damacy__blosc_tell((damacy__blosc_chunk*)(uintptr_t)wave.chunks + index, &c, &share,
                           job->dst, error);
}

// Any grid. Results first, a warp a chunk; then the parts of all chunks, of which each CTA takes
// its share, one after another.
extern "C" __global__
    __launch_bounds__(256,
                      DAMACY__UNFILTER_HELD) void damacy_blosc_unfilter(damacy__blosc_wave wave)
{
    DAMACY__SHARED(damacy__blosc_addresses, planes);
    const uint32_t n = damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs);
    const uint32_t parts = n < 1u << 23 ? wave.parts : 1; // at most 256: n_parts has 32 bits
    const uint32_t n_parts = n * parts, per = n_parts / gridDim.x, rest = n_parts % gridDim.x;
    for (uint32_t i = (threadIdx.x >> 5) * gridDim.x + blockIdx.x; i < n;
         i += (blockDim.x >> 5) * gridDim.x)
        damacy__blosc_finish(&wave, i);
    const uint32_t begin = blockIdx.x * per + damacy__min(blockIdx.x, rest);
    const uint32_t end = begin + per + (blockIdx.x < rest);
    for (uint32_t at = begin; at < end;) {
        const uint32_t first = at % parts, here = damacy__min(end - at, parts - first);
        damacy__blosc_unfilter(&wave, at / parts, parts, first, first + here,
                               damacy__shared_address(&planes));
        at += here;
    }
}
