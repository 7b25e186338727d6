/* Records of assembling, shared by the host and the kernels: what goes from a decoded chunk, or
 * from a constant, into a sample of a batch. Plain C that is also C++ for NVRTC.
 *
 * A copy walks n_axes nested axes, the last one fastest. Voxel (i0, i1, ...) comes from source
 * element sum(i * src_stride) and goes to output element sum(i * dst_stride), both relative to the
 * record's addresses. Crops, transposition, clamping (src_stride 0) and reflection (src_stride < 0)
 * are all just strides; the planner guarantees that every element lies inside the chunk and inside
 * the sample, and that no two records of a batch write the same output voxel. */
#pragma once
#include "kernels/abi.h"

typedef struct damacy__axis {
    int64_t src_stride; /* elements */
    int64_t dst_stride; /* elements */
    uint64_t extent;    /* voxels, at least 1 */
} damacy__axis;
static_assert(sizeof(damacy__axis) == 24, "ABI");

enum {
    DAMACY__COPY_SWAP = 1, /* source elements are big-endian */
    DAMACY__COPY_FILL = 2  /* no source: the 8 bytes of fill, in the source type, little-endian */
};
#define DAMACY__NO_CHANNEL 0xffffffffu

typedef struct damacy__copy {
    uint64_t src;          /* address of the element at index 0 of every axis; unused for a fill */
    uint64_t dst;          /* address of the output voxel at index 0 of every axis */
    uint64_t fill;         /* bits of the fill value in the source type, if COPY_FILL */
    uint32_t first_axis;   /* index into the batch's array of damacy__axis */
    uint32_t n_axes;       /* at least 1; adjacent axes that run on have been merged */
    uint32_t src_dtype;    /* damacy_dtype */
    uint32_t flags;        /* DAMACY__COPY_* */
    uint32_t channel_axis; /* which of the n_axes is the channel axis, or DAMACY__NO_CHANNEL */
    uint32_t channel;      /* channel at index 0 of that axis, or the channel of the whole record */
    uint32_t n_voxels_low; /* product of the extents, low and high halves */
    uint32_t n_voxels_high;
} damacy__copy;
static_assert(sizeof(damacy__copy) == 56, "ABI");
