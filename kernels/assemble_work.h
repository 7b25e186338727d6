/* Work of the assemble kernel, made by the host from damacy__copy records (stage/assemble_launch.h)
 * and shared with assemble.cu.
 *
 * A line is a run along the axis of output stride 1, or along the last axis if there is none. A
 * unit is the part of a line that falls into one aligned 16 bytes of output. A tile is
 * DAMACY__ASSEMBLE_TILE units of one job, whatever the shape of chunks and crops, so tiles cost
 * alike. */
#pragma once

#include "kernels/abi.h"

#define DAMACY__ASSEMBLE_TILE 1024u /* units */

/* An axis that lines are numbered along. Dividing x < 2^31 by extent: (x * magic) >> 32 >> shift,
 * or, where extent is a power of two, magic is 0 and shift its logarithm. */
typedef struct damacy__assemble_axis {
    int64_t src_step; /* bytes */
    int64_t dst_step; /* bytes */
    uint32_t extent;
    uint32_t magic;
    uint32_t shift;
    uint32_t zero;
} damacy__assemble_axis;
static_assert(sizeof(damacy__assemble_axis) == 32, "ABI");

typedef struct damacy__assemble_job {
    uint64_t src;     /* address of the first source element, at any alignment; unused for a fill */
    uint64_t dst;     /* address of the first output voxel, aligned to its size */
    uint64_t fill;    /* bits in the source type, if DAMACY__COPY_FILL */
    int64_t src_step; /* bytes between voxels of a line */
    int64_t dst_step; /* bytes between voxels of a line; the size of a voxel: units are whole */
    uint32_t n;       /* voxels of a line, below 2^31 */
    uint32_t units;   /* of a line */
    uint32_t n_lines; /* units * n_lines is below 2^31 */
    uint32_t units_magic, units_shift; /* divide by `units`, as above */
    uint32_t first_axis;
    uint32_t n_axes;       /* beside that of the line, slowest first */
    uint32_t src_dtype;    /* damacy_dtype */
    uint32_t flags;        /* DAMACY__COPY_* */
    uint32_t channel_axis; /* index among the axes, n_axes for that of the line, or NO_CHANNEL */
    uint32_t channel;      /* of the first voxel */
    uint32_t zero;
} damacy__assemble_job;
static_assert(sizeof(damacy__assemble_job) == 88, "ABI");

/* The one parameter of the kernels, passed by value. */
typedef struct damacy__assemble_wave {
    uint64_t jobs; /* const damacy__assemble_job[n_jobs] */
    uint64_t axes; /* const damacy__assemble_axis[] */
    uint64_t
        first_tile;  /* const uint32_t[n_jobs + 1]: number of each job's first tile, and of all */
    uint64_t scale;  /* const float[n_channels], or 0: 1 */
    uint64_t offset; /* const float[n_channels], or 0: 0 */
    uint32_t n_channels; /* 0: no scaling; 1: the same for all */
    uint32_t n_jobs;
    uint32_t n_tiles;
    uint32_t out_dtype; /* damacy_dtype; that of the program, which does not look at it */
} damacy__assemble_wave;
static_assert(sizeof(damacy__assemble_wave) == 56, "ABI");
