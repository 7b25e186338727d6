/* Records of the LZ4 block decoder, shared by the host and lz4.cu. A job's source is one LZ4 block,
 * or, with DAMACY__LZ4_SIZE_PREFIX, its decoded size as 32 bits little-endian and then the block.
 * damacy_lz4 decodes a table of jobs, a warp each. damacy_lz4_sparse may run before it, on the same
 * wave: of blocks that are hardly compressed it decodes the sequences as long as they are long,
 * and blocks that shrink to little it decodes whole, unless the wave is for teams. It is faster at
 * both. Behind that, damacy_lz4_team4 or damacy_lz4_team8 may run, by teams of as many warps a
 * block, which are faster where blocks are few; and before these damacy_lz4_relay, of which several
 * share each of a few large blocks.
 *
 * The surprising rule: results of blocks that these leave in between say where the next goes on. */
#pragma once

#include "kernels/abi.h"

enum { /* damacy__job.flags */
       DAMACY__LZ4_SIZE_PREFIX = 0x100,
       /* A plane of a whole block of the blosc chunk `tag`, whose filter is FILTER_PLANES: number
        * flags >> NTH & 15 of the flags >> OF & 15 jobs of its block, which are neighbours. Teams
        * count, from bit DONE of the first one's on, those that are done, and the last may undo the
        * shuffle. */
       DAMACY__LZ4_PLANE = 0x400,
       DAMACY__LZ4_PLANE_NTH = 16,
       DAMACY__LZ4_PLANE_OF = 20,
       DAMACY__LZ4_PLANE_DONE = 24,
       /* Of a block that is for relays, from there on: how many parts have been taken. */
       DAMACY__LZ4_RELAY_PARTS = 0x10000
};

/* damacy__job_result.status between the kernels: at error_offset of the block, and of the
 * output at `size`, counted from the 16-byte boundary at or below it. */
enum { DAMACY__LZ4_GOES_ON = 0x7fff };

/* Blocks of threads, four warps each, of damacy_lz4_fours for each multiprocessor: more than it
 * holds at once, as some are done sooner. */
#define DAMACY__LZ4_FOURS_PER 28u

/* Dynamic shared memory of a warp of damacy_lz4 and damacy_lz4_fours, and of a block of threads of
 * the others. */
#define DAMACY__LZ4_SHARED        7600u
#define DAMACY__LZ4_SPARSE_SHARED 9920u
#define DAMACY__LZ4_TEAM4_SHARED  25392u
#define DAMACY__LZ4_TEAM8_SHARED  42272u
#define DAMACY__LZ4_RELAY_SHARED  104752u

/* Most jobs of a wave, for each multiprocessor, that teams take: of blocks, of streams of blosc,
 * and as many as are expected where teams are of 8 warps. */
#define DAMACY__LZ4_TEAM_PER       10u
#define DAMACY__LZ4_TEAM_BLOSC_PER 16u
#define DAMACY__LZ4_TEAM8_PER      4u
#define DAMACY__LZ4_TEAMS_PER      32u /* launched, more than are held: some are done sooner */
/* The same of waves that shrink so many times at least, which have long sequences: of blocks that
 * are so large, of streams of blosc. */
#define DAMACY__LZ4_TEAM_SOME_PER       32u
#define DAMACY__LZ4_TEAM_SHRINK         4u
#define DAMACY__LZ4_TEAM_SOME_SIZE      32768u /* bytes */
#define DAMACY__LZ4_TEAM_BLOSC_SOME_PER 64u
#define DAMACY__LZ4_TEAM_BLOSC_SHRINK   2u
#define DAMACY__LZ4_TEAM_PARTS     12u /* of all output, for each multiprocessor: one is large */
#define DAMACY__LZ4_TEAM_LEAST     131072u     /* bytes */
#define DAMACY__LZ4_TEAM_NEVER     0xffffffffu /* team_size: none for its size */

/* Threads of a block of damacy_lz4_relay; most jobs of a wave that it may be for, and, if all are
 * large, most for each multiprocessor; the least room of a large one, in bytes; and how many times
 * they shrink at most, and where they are few. */
#define DAMACY__LZ4_RELAY_THREADS 512
#define DAMACY__LZ4_RELAY_JOBS    4096u
#define DAMACY__LZ4_RELAY_PER     1u
#define DAMACY__LZ4_RELAY_LEAST   262144u
#define DAMACY__LZ4_RELAY_SHRINK  6u
#define DAMACY__LZ4_RELAY_SHRUNK  128u

/* The one parameter, passed by value. */
typedef struct damacy__lz4_wave {
    uint64_t jobs;    /* damacy__job[max_jobs]; flags alone are written, of planes and for relays */
    uint64_t n_jobs;  /* const uint32_t: jobs in the table; above max_jobs counts as max_jobs */
    uint64_t results; /* damacy__job_result[max_jobs] */
    uint32_t max_jobs;
    uint32_t is_begun;  /* 1: damacy_lz4_sparse has run */
    /* Jobs for teams, which run before damacy_lz4: all of a wave of up to team_most; all of one of
     * up to team_some if they shrink team_shrink times or more, or are a few more than warps that
     * n_multiprocessors hold (0: not for that); and those with room for team_size bytes or more. */
    uint32_t team_most, team_some, team_shrink, team_size;
    uint32_t n_multiprocessors;
    /* Jobs with room for relay_size bytes or more are for relays (0: none are), those that shrink
     * more than others with room for relay_shrunk. */
    uint32_t relay_size, relay_shrunk;
    uint32_t zero;
    uint64_t chunks; /* damacy__blosc_chunk[], of planes; 0: there are none */
} damacy__lz4_wave;
static_assert(sizeof(damacy__lz4_wave) == 72, "ABI");
