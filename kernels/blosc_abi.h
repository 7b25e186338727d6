/* Records of the blosc1 decoder, shared by the host, blosc.cu and the Zstandard decoder.
 *
 * A wave turns a table of containers into jobs of other decoders. In this order, on one stream:
 *
 * - begin zeroes the counters, sets the LZ4 and Zstandard job counts to first_lz4 and first_zstd;
 * - parse, a warp per chunk, 32 a CTA, checks the container and appends its streams to the three
 *   tables: those of the LZ4 and Zstandard decoders, and moves, which the latter makes beside;
 * - unfilter writes results, where the status of a chunk is that of its first stream that failed,
 *   and undoes byte and bit shuffle, scratch -> output; byte shuffle of frames of Zstandard may be
 *   undone by execution already, that of blocks of LZ4 streams by the team that decoded the last.
 *
 * The surprising rule: a chunk whose share of a table or of the scratch does not fit takes nothing
 * and gets NEED_SCRATCH, so every count stays within its table. */
#pragma once

#include "kernels/abi.h"

/* Bytes of a container's header. */
#define DAMACY__BLOSC_START 16u

/* The largest damacy__move that parse makes, for balance. */
#define DAMACY__MOVE_MAX 65536u

/* unfilter: blocks of threads that a multiprocessor is to hold, which is half of those launched for
 * it, and output bytes that one handles at a time. */
#define DAMACY__UNFILTER_HELD  4u
#define DAMACY__UNFILTER_PIECE 16384u

/* Block sizes that c-blosc accepts: (INT_MAX - 255 * 4) / 3. */
#define DAMACY__BLOSC_BLOCK_SIZE_MAX 715827542u

enum {                              /* damacy__blosc_chunk.codec: the table of its jobs */
       DAMACY__BLOSC_JOBS_NONE = 0, /* no stream needs a decoder */
       DAMACY__BLOSC_JOBS_LZ4 = 1,
       DAMACY__BLOSC_JOBS_ZSTD = 2
};

enum { /* damacy__blosc_chunk.filter */
       DAMACY__BLOSC_FILTER_NONE = 0,
       DAMACY__BLOSC_FILTER_BYTES = 1,
       DAMACY__BLOSC_FILTER_BITS = 2,
       /* Of bytes, and each stream of a whole block is a plane, one byte of all elements: those
        * that are stored are read from the source, without a move. Elements of 2, 4 or 8 bytes, a
        * multiple of 8 of them in a block, and an output that 16 divides. */
       DAMACY__BLOSC_FILTER_PLANES = 3
};

/* What parse found in a chunk. */
typedef struct damacy__blosc_chunk {
    uint64_t image;      /* where its streams go: the output, or scratch when there is a filter */
    uint64_t dst;        /* the output */
    uint32_t size;       /* decoded bytes */
    uint32_t block_size; /* decoded bytes of every block but perhaps the last */
    uint32_t type_size;
    uint32_t filter;
    uint32_t codec;
    uint32_t
        first_job; /* in the codec's table; its jobs are neighbours, in the order of the data */
    uint32_t n_jobs;
    uint32_t status; /* DAMACY__JOB_OK, or why there are no jobs */
    uint32_t error_offset;
    uint32_t n_filtered; /* blocks that are in the output, unshuffled, by whom JOB_SHUFFLED and
                          * LZ4_PLANE (lz4_abi.h) name */
    uint64_t src;        /* the container */
    uint32_t src_size;
    uint32_t n_apart; /* of FILTER_PLANES: streams of whole blocks that stay in the source */
} damacy__blosc_chunk;
static_assert(sizeof(damacy__blosc_chunk) == 72, "ABI");

/* damacy__job.flags of a Zstandard job: the stream is a whole block with byte shuffle, as are those
 * of all jobs of chunk `tag`. Who executes it may undo the shuffle as well. */
enum { DAMACY__JOB_SHUFFLED = 0x200 };

typedef struct damacy__blosc_counters {
    uint64_t n_scratch_bytes; /* used of the scratch, multiples of 256 */
    uint32_t n_moves;
    uint32_t zero;
} damacy__blosc_counters;
static_assert(sizeof(damacy__blosc_counters) == 16, "ABI");

/* The one parameter of every entry, passed by value. */
typedef struct damacy__blosc_wave {
    uint64_t jobs;         /* const damacy__job[max_jobs]: containers */
    uint64_t n_jobs;       /* const uint32_t; above max_jobs counts as max_jobs */
    uint64_t results;      /* damacy__job_result[max_jobs] */
    uint64_t chunks;       /* damacy__blosc_chunk[max_jobs] */
    uint64_t counters;     /* damacy__blosc_counters */
    uint64_t moves;        /* damacy__move[max_moves] */
    uint64_t lz4_jobs;     /* damacy__job[max_lz4]; entries below first_lz4 are not ours */
    uint64_t n_lz4;        /* uint32_t */
    uint64_t lz4_results;  /* damacy__job_result[max_lz4] */
    uint64_t zstd_jobs;    /* damacy__job[max_zstd]; entries below first_zstd are not ours */
    uint64_t n_zstd;       /* uint32_t */
    uint64_t zstd_results; /* damacy__job_result[max_zstd] */
    uint64_t scratch;      /* 256-byte aligned */
    uint64_t
        scratch_size; /* bytes; the sum of the decoded sizes, each rounded up to 256, is enough */
    uint32_t max_jobs, max_moves, max_lz4, max_zstd;
    uint32_t first_lz4, first_zstd;
    uint32_t parts; /* unfilter: shares of a chunk, at least 1 */
    uint32_t zero;
} damacy__blosc_wave;
static_assert(sizeof(damacy__blosc_wave) == 144, "ABI");
