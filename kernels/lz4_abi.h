/* Records of the LZ4 block decoder, shared by the host and lz4.cu. A job's source is one LZ4 block,
 * or, with DAMACY__LZ4_SIZE_PREFIX, its decoded size as 32 bits little-endian and then the block.
 * One entry, damacy_lz4, decodes a table of jobs. */
#pragma once

#include "kernels/abi.h"

enum { DAMACY__LZ4_SIZE_PREFIX = 0x100 }; /* damacy__job.flags */

/* The one parameter, passed by value. */
typedef struct damacy__lz4_wave {
    uint64_t jobs;    /* const damacy__job[max_jobs] */
    uint64_t n_jobs;  /* const uint32_t: jobs in the table; above max_jobs counts as max_jobs */
    uint64_t results; /* damacy__job_result[max_jobs] */
    uint32_t max_jobs;
    uint32_t zero;
} damacy__lz4_wave;
static_assert(sizeof(damacy__lz4_wave) == 32, "ABI");
