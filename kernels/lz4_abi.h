/* Records of the LZ4 block decoder, shared by the host and lz4.cu. A job's source is one LZ4 block,
 * or, with DAMACY__LZ4_SIZE_PREFIX, its decoded size as 32 bits little-endian and then the block.
 *
 * A wave, in this order, on one stream:
 *
 *   begin     zeroes the counter
 *   parse     warp per job: finds the sequences of the block
 *   execute   CTA per job: copies literals and matches, checks offsets and lengths, writes results
 */
#pragma once

#include "kernels/abi.h"

enum { DAMACY__LZ4_SIZE_PREFIX = 0x100 }; /* damacy__job.flags */

/* What parse found in a job. */
typedef struct damacy__lz4_block {
    uint64_t first; /* index of its first token */
    uint32_t n_tokens;
    uint32_t n;      /* bytes that may be made, with is_exact must be; with NO_SPACE the need */
    uint32_t status; /* DAMACY__JOB_OK, or why there is nothing to execute */
    uint32_t error_offset;
    uint32_t is_exact;
    uint32_t zero;
} damacy__lz4_block;
static_assert(sizeof(damacy__lz4_block) == 32, "ABI");

/* Most tokens of a block: each but the last takes 3 bytes and makes 4. A job's tokens take a
 * multiple of 4 places. */
#define DAMACY__LZ4_TOKENS(src_size, n) (((src_size) / 3 < (n) / 4 ? (src_size) / 3 : (n) / 4) + 2)

/* The one parameter of every entry, passed by value. */
typedef struct damacy__lz4_wave {
    uint64_t jobs;       /* const damacy__job[max_jobs] */
    uint64_t n_jobs;     /* const uint32_t: jobs in the table; above max_jobs counts as max_jobs */
    uint64_t results;    /* damacy__job_result[max_jobs] */
    uint64_t blocks;     /* damacy__lz4_block[max_jobs] */
    uint64_t tokens;     /* uint32_t[max_tokens]: places of tokens in their blocks */
    uint64_t n_tokens;   /* uint64_t: places taken; may pass max_tokens */
    uint64_t max_tokens; /* the sum of LZ4_TOKENS is enough; a job that finds no room gets
                            NEED_SCRATCH */
    uint32_t max_jobs;
    uint32_t zero;
} damacy__lz4_wave;
static_assert(sizeof(damacy__lz4_wave) == 64, "ABI");
