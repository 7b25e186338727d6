/* Copy records made ready for the loops of host_assemble.h: strides in bytes, the steps of the
 * conversion, and the axes in the order in which they are walked, the one with output stride 1
 * innermost. */
#pragma once
#include "kernels/assemble_abi.h"
#include "stage/cast.h"

/* Scale and offset of float outputs. */
typedef struct damacy__affine {
    const float* scale;  /* [n_channels], or NULL: 1 */
    const float* offset; /* [n_channels], or NULL: 0 */
    uint32_t n_channels; /* 1: the same for all channels */
} damacy__affine;

/* A flag beside DAMACY__COPY_SWAP, for the CPU alone: the batch is larger than the caches, so its
 * lines are written past them. Rows of 64 voxels of f32 come out twice as fast; a small batch that
 * is used at once is better off without. */
#define DAMACY__COPY_STREAM 0x80000000u

enum {
    DAMACY__BLOCK = 512,     /* elements that pass through the steps at once: buffers stay in L1 */
    DAMACY__TILE_ROW = 64,   /* elements of a row of a tile */
    DAMACY__TILE_BYTES = 64, /* one element of each row of a tile: a cache line of the source */
    DAMACY__COPY_AXES = DAMACY_MAX_RANK + 2
};

/* A copy record made ready: strides in bytes, the axes in the order of the walk. */
typedef struct damacy__copy_walk {
    damacy__cast cast; /* source to output; with affine: source to f32 */
    damacy__cast tail; /* with affine: f32 to output */
    const damacy__affine* affine;
    damacy__row swap; /* NULL: none */
    uint64_t src, dst;
    uint64_t splat; /* the one value, if is_splat */
    uint64_t extent[DAMACY__COPY_AXES];
    uint64_t src_stride[DAMACY__COPY_AXES]; /* modulo 2^64: negative strides wrap */
    uint64_t dst_stride[DAMACY__COPY_AXES];
    uint32_t out_size; /* bytes per output element */
    uint32_t n_axes;
    uint32_t channel_axis; /* DAMACY__NO_CHANNEL: none that matters */
    uint32_t channel;
    uint32_t tile_rows; /* rows along axis n_axes - 2 that are turned at once; 0: no tiles */
    bool is_direct;     /* one step at most, both sides contiguous along the last axis */
    bool is_splat;      /* a line is one value, again and again */
    bool is_stream;     /* the output is contiguous along the last axis and bypasses the caches */
} damacy__copy_walk;

/* Exchanges two axes of the walk. */
static void damacy__walk_exchange(damacy__copy_walk* walk, uint32_t a, uint32_t b)
{
    uint64_t* const fields[3] = {walk->extent, walk->src_stride, walk->dst_stride};

    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t kept = fields[i][a];
        fields[i][a] = fields[i][b];
        fields[i][b] = kept;
    }
    if (walk->channel_axis == a || walk->channel_axis == b) {
        walk->channel_axis = a + b - walk->channel_axis;
    }
}

/* Puts the axis of the shortest output stride last, and turns tiles where that pays. */
static void damacy__walk_order(damacy__copy_walk* walk)
{
    const uint32_t last = walk->n_axes - 1;
    const uint64_t size = walk->cast.src_size;

    for (uint32_t i = 0; i < last && walk->dst_stride[last] != walk->out_size; i++) {
        if (walk->dst_stride[i] == walk->out_size) {
            damacy__walk_exchange(walk, i, last);
        }
    }
    if (walk->src_stride[last] == size || walk->src_stride[last] == 0 ||
        walk->src_stride[last] == 0 - size || walk->extent[last] < 4) {
        return;
    }
    for (uint32_t i = 0; i < last; i++) {
        if (walk->src_stride[i] == size && walk->extent[i] >= 4) {
            damacy__walk_exchange(walk, i, last - 1);
            walk->tile_rows = DAMACY__TILE_BYTES / walk->cast.src_size;
            return;
        }
    }
}

static void damacy__walk_init(damacy__copy_walk* walk, const damacy__copy* copy,
                              const damacy__axis* axes, damacy_dtype out,
                              const damacy__affine* affine)
{
    const damacy_dtype src = (damacy_dtype)copy->src_dtype;
    const bool is_fill = (copy->flags & DAMACY__COPY_FILL) != 0;

    memset(walk, 0, sizeof *walk);
    if (affine) {
        assert(damacy__cast_is_float(out));
        damacy__cast_choose_f32(&walk->cast, src);
        damacy__cast_choose_from_f32(&walk->tail, out);
    } else {
        damacy__cast_choose(&walk->cast, src, out);
    }
    walk->out_size = damacy__cast_size(out);
    walk->affine = affine;
    if ((copy->flags & DAMACY__COPY_SWAP) && !is_fill && walk->cast.src_size > 1) {
        walk->swap = damacy__row_swap(walk->cast.src_size);
    }
    walk->src = is_fill ? (uint64_t)(uintptr_t)&copy->fill : copy->src;
    walk->dst = copy->dst;
    walk->n_axes = copy->n_axes;
    walk->channel = copy->channel;
    walk->channel_axis = affine && affine->n_channels > 1 ? copy->channel_axis : DAMACY__NO_CHANNEL;
    for (uint32_t i = 0; i < copy->n_axes; i++) {
        walk->extent[i] = axes[i].extent;
        walk->src_stride[i] = is_fill ? 0 : (uint64_t)axes[i].src_stride * walk->cast.src_size;
        walk->dst_stride[i] = (uint64_t)axes[i].dst_stride * walk->out_size;
    }
    damacy__walk_order(walk);
}
