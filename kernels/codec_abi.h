/* The one parameter of the entries of codec.cu: a batch of frames in the caller's device arrays,
 * and where the table of jobs that the decoders read is made of it. */
#pragma once

#include "kernels/abi.h"

enum { /* damacy__codec_frames.kind, numbered as damacy_codec_kind */
       DAMACY__FRAMES_ZSTD = 0,
       DAMACY__FRAMES_LZ4 = 1,
       DAMACY__FRAMES_LZ4_SIZED = 2,
       DAMACY__FRAMES_BLOSC = 3
};

/* What measure adds up; zeroed before. Frames with broken headers count with what was walked of
 * them, or not at all: they take nothing of the decoders' scratch. */
typedef struct damacy__codec_totals {
    uint64_t size; /* decoded bytes, at most the capacities, or those where headers tell less */
    uint64_t n_work_bytes; /* Zstandard: literals and records */
    uint64_t n_blocks;     /* Zstandard */
    uint64_t n_frames;     /* Zstandard: inside the caller's frames, which may hold several */
    uint64_t n_streams;    /* blosc: one for a stored chunk */
    uint32_t largest;      /* of the sizes above */
    uint32_t n_headers;    /* Zstandard: the most of one frame or stream */
} damacy__codec_totals;
static_assert(sizeof(damacy__codec_totals) == 48, "ABI");

typedef struct damacy__codec_frames {
    uint64_t srcs;          /* const uint64_t[n]: addresses */
    uint64_t src_sizes;     /* const uint64_t[n]: bytes */
    uint64_t dsts;          /* const uint64_t[n]: addresses */
    uint64_t capacities;    /* const uint64_t[n]: bytes; measure: or 0 */
    uint64_t sizes;         /* uint64_t[n], or 0 */
    uint64_t statuses;      /* uint32_t[n], or 0 */
    uint64_t error_offsets; /* uint64_t[n], or 0 */
    uint64_t count;         /* const uint32_t: frames, if fewer than n; or 0 */
    uint64_t jobs;          /* damacy__job[n] */
    uint64_t n_jobs;        /* uint32_t */
    uint64_t results;       /* damacy__job_result[n] */
    uint64_t totals;        /* measure: damacy__codec_totals */
    uint32_t n;
    uint32_t flags; /* of every job */
    uint32_t kind;
    uint32_t n_zeroed; /* gather: words that it sets to 0 */
    uint64_t zeroed;   /* uint32_t[n_zeroed] */
} damacy__codec_frames;
static_assert(sizeof(damacy__codec_frames) == 120, "ABI");
