/* Limits of a wave of Zstandard jobs -> how much scratch it takes and what lies where in it.
 *
 * The surprising rule: scratch is sized for typical data, not for the worst; a job that does not
 * fit is reported as DAMACY__JOB_NEED_SCRATCH and costs the others nothing, and every job of up to
 * largest_size whose blocks average at least 1 KiB of output fits in a wave of its own. One that
 * does not, or has more empty blocks than a wave may have blocks, is for the host. */
#pragma once
#include "base/error.h"
#include "kernels/zstd_abi.h"

/* What a wave may hold. */
typedef struct damacy__zstd_limits {
    uint32_t max_jobs;
    uint64_t dst_size;     /* output bytes of all jobs together */
    uint64_t largest_size; /* output bytes of the largest job */
    uint64_t scratch_size; /* bytes of scratch; 0: as much as typical data needs */
    bool has_links;        /* room for links, 4 bytes per output byte: faster for up to 8 jobs */
    uint32_t max_blocks;   /* blocks, and frames, of all jobs; 0: as many as typical data have */
    uint64_t pool_size;    /* bytes of literals and records; 0: as typical data need */
    uint32_t n_parts;      /* waves in which the jobs are decoded, one after another in the same
                              scratch, which then holds any of them; 0: one */
} damacy__zstd_limits;

/* A wave's records and where they lie. */
typedef struct damacy__zstd_layout {
    uint64_t size;          /* bytes of scratch, a multiple of 256; needs no initial content */
    uint64_t dst_size;      /* of the limits */
    uint32_t max_jobs;      /* of the limits; a part has those of the wave */
    damacy__zstd_wave wave; /* addresses count from the start of the scratch */
} damacy__zstd_layout;

static damacy_status damacy__zstd_layout_of(const damacy__zstd_limits* limits,
                                            damacy__zstd_layout* out, damacy_error* err);

/* Takes n records of `size` bytes at the next multiple of 256; false on overflow. */
static bool damacy__zstd_reserve(uint64_t* at, uint64_t n, uint64_t size, uint64_t* out)
{
    uint64_t bytes;

    *out = *at;
    if (!damacy__mul(n, size, &bytes) || !damacy__add(*at, bytes, at) ||
        *at > DAMACY__SIZE_UNKNOWN - 256) {
        return false;
    }
    *at = damacy__align_up(*at, 256);
    return true;
}

/* Everything but the pool of literals and records and the links. */
static bool damacy__zstd_take_tables(damacy__zstd_wave* w, uint64_t* at)
{
    return damacy__zstd_reserve(at, w->max_jobs, sizeof(uint64_t), &w->errors) &&
           damacy__zstd_reserve(at, w->max_jobs, sizeof(damacy__zstd_span), &w->spans) &&
           damacy__zstd_reserve(at, DAMACY__ZSTD_PARTS, sizeof(damacy__zstd_sum), &w->sums) &&
           damacy__zstd_reserve(at, 1, sizeof(damacy__zstd_counters), &w->counters) &&
           damacy__zstd_reserve(at, w->max_frames, sizeof(damacy__zstd_frame), &w->frames) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(damacy__zstd_block), &w->blocks) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(damacy__zstd_tree), &w->trees) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(damacy__zstd_key), &w->keys) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->logs) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->sequence_order) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->literal_order[0]) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->literal_order[1]) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->literal_order[2]) &&
           damacy__zstd_reserve(at, w->max_frames, sizeof(uint32_t), &w->execute_list);
}

/* Bytes of literals and records: at least what one job can need, 16 bytes a sequence of at least 3
 * with one literal, else 2.42 times the output. That holds dim microscopy, the densest of common
 * data. Where all records that there may be have no room, kernels make it for those that are
 * likely: 215 sequences and 115 literals per KB of level 3 take 2.1 KB instead of 2.7, 131 and 357
 * of level 19 take 2.4. */
static uint64_t damacy__zstd_pool_least(const damacy__zstd_limits* limits)
{
    if (limits->pool_size) {
        return damacy__align_up(limits->pool_size, 256);
    }
    return damacy__align_up(limits->largest_size / 8 * 35 + 65536, 256);
}

static uint64_t damacy__zstd_pool_typical(const damacy__zstd_limits* limits)
{
    const uint64_t typical = damacy__align_up(limits->dst_size / 50 * 121, 256);

    return limits->pool_size ? damacy__zstd_pool_least(limits)
                             : DAMACY__MAX(typical, damacy__zstd_pool_least(limits));
}

static damacy_status damacy__zstd_layout_one(const damacy__zstd_limits* limits,
                                             damacy__zstd_layout* out, damacy_error* err)
{
    damacy__zstd_layout l;
    const uint64_t blocks = limits->max_blocks
                                ? limits->max_blocks
                                : 2ull * limits->max_jobs + limits->dst_size / 16384 +
                                      limits->largest_size / 1024 + 256;
    const uint64_t frames = limits->max_blocks ? limits->max_blocks : 2ull * limits->max_jobs + 256;
    uint64_t pool, at = 0;

    memset(&l, 0, sizeof l);
    if (limits->max_jobs == 0 || limits->max_jobs > (1u << 30) || blocks > (1u << 30) ||
        limits->dst_size >> 50 || limits->pool_size >> 50 ||
        limits->largest_size > DAMACY__JOB_SIZE_MAX) {
        return damacy__fail(err, DAMACY_INVAL,
                            "a wave of %u Zstandard jobs, %llu output bytes, the largest %llu",
                            limits->max_jobs, (unsigned long long)limits->dst_size,
                            (unsigned long long)limits->largest_size);
    }
    l.dst_size = limits->dst_size;
    l.wave.max_jobs = limits->max_jobs;
    l.wave.max_frames = (uint32_t)frames;
    l.wave.max_blocks = (uint32_t)blocks;
    if (!damacy__zstd_take_tables(&l.wave, &at)) {
        return damacy__fail(err, DAMACY_INVAL, "the scratch of %u Zstandard jobs overflows",
                            limits->max_jobs);
    }
    if (limits->has_links) {
        l.wave.links = at;
        l.wave.links_size = damacy__align_up(4 * limits->dst_size + 1024, 256);
        at += l.wave.links_size;
    }
    at += 256; /* the pool has 64 spare bytes on both sides */
    pool = damacy__zstd_pool_typical(limits);
    if (limits->scratch_size) {
        const uint64_t least = damacy__zstd_pool_least(limits);
        if (limits->scratch_size < at + least + 256) {
            return damacy__fail(err, DAMACY_BUDGET,
                                "scratch of %llu bytes for %u Zstandard jobs, the largest of %llu "
                                "bytes, needs %llu",
                                (unsigned long long)limits->scratch_size, limits->max_jobs,
                                (unsigned long long)limits->largest_size,
                                (unsigned long long)(at + least + 256));
        }
        pool = (limits->scratch_size - at - 256) & ~255ull;
    }
    l.wave.literals = at;
    l.wave.records = at;
    l.wave.max_records = pool / 8;
    l.size = at + pool + 256;
    *out = l;
    return DAMACY_OK;
}

/* The limits of one of several parts. Nine halves of the output hold whatever its jobs are, see
 * damacy__zstd_pool_least, and a block per KiB. */
static damacy__zstd_limits damacy__zstd_limits_part(const damacy__zstd_limits* all)
{
    damacy__zstd_limits part = *all;

    part.max_jobs = (uint32_t)damacy__div_up(all->max_jobs, all->n_parts);
    part.dst_size = DAMACY__MIN(all->dst_size, part.max_jobs * all->largest_size);
    part.pool_size = part.dst_size / 2 * 9 + 65536;
    if (all->pool_size) {
        part.pool_size = DAMACY__MIN(all->pool_size, part.pool_size);
    }
    if (all->max_blocks == 0) {
        part.max_blocks =
            (uint32_t)DAMACY__MIN(2ull * part.max_jobs + part.dst_size / 1024 + 256, 1ull << 30);
    }
    return part;
}

/* INVAL: sizes that no device has. BUDGET: scratch_size does not hold the largest job. */
static damacy_status damacy__zstd_layout_of(const damacy__zstd_limits* limits,
                                            damacy__zstd_layout* out, damacy_error* err)
{
    damacy__zstd_limits part;

    if (limits->n_parts < 2 || limits->max_jobs < 2 || limits->dst_size >> 50 ||
        limits->largest_size > DAMACY__JOB_SIZE_MAX || limits->max_jobs > (1u << 30)) {
        part = *limits;
    } else {
        part = damacy__zstd_limits_part(limits);
    }
    DAMACY__TRY(damacy__zstd_layout_one(&part, out, err));
    out->dst_size = limits->dst_size;
    out->max_jobs = limits->max_jobs;
    return DAMACY_OK;
}
