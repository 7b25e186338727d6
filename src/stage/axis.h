/* One axis of a crop to pieces that each lie in one chunk, or outside the array.
 *
 * The bounds policy is resolved here and nowhere else: clamping gives pieces that repeat one voxel
 * (step 0), reflection gives pieces that run backwards (step -1). */
#pragma once
#include "format/layout.h"
#include "stage/vector.h"

typedef struct damacy__piece {
    int64_t dst;    /* first voxel in the crop */
    int64_t extent; /* voxels, at least 1 */
    int64_t src;    /* its voxel in the array; unused when chunk is -1 */
    int64_t chunk;  /* chunk number along the axis; -1: outside, to be filled */
    int32_t step;   /* +1, 0 or -1 voxels of the array per voxel of the crop */
} damacy__piece;

DAMACY__VECTOR(damacy__piece, damacy__pieces)

static bool damacy__axis_pieces(damacy__pieces* pieces, damacy__alloc* alloc,
                                damacy_interval interval, int64_t shape, int64_t chunk,
                                damacy_bounds bounds);

/* Cuts a run of voxels at chunk borders. */
static bool damacy__axis_run(damacy__pieces* pieces, damacy__alloc* alloc, int64_t dst,
                             int64_t extent, int64_t src, int32_t step, int64_t chunk)
{
    while (extent > 0) {
        damacy__piece* piece = damacy__pieces_push(pieces, alloc);
        const int64_t within = src % chunk;
        const int64_t room = step == 0 ? extent : step > 0 ? chunk - within : within + 1;
        if (!piece) {
            return false;
        }
        piece->dst = dst;
        piece->extent = DAMACY__MIN(extent, room);
        piece->src = src;
        piece->chunk = src / chunk;
        piece->step = step;
        dst += piece->extent;
        extent -= piece->extent;
        src += step * piece->extent;
    }
    return true;
}

/* A piece that lies outside the array. */
static bool damacy__axis_outside(damacy__pieces* pieces, damacy__alloc* alloc, int64_t dst,
                                 int64_t extent)
{
    damacy__piece* piece;

    if (extent <= 0) {
        return true;
    }
    piece = damacy__pieces_push(pieces, alloc);
    if (!piece) {
        return false;
    }
    piece->dst = dst;
    piece->extent = extent;
    piece->chunk = -1;
    return true;
}

/* Mirrors at the border voxels, which are not repeated: runs of n - 1 voxels up and down. */
static bool damacy__axis_reflect(damacy__pieces* pieces, damacy__alloc* alloc,
                                 damacy_interval interval, int64_t shape, int64_t chunk)
{
    const int64_t extent = interval.end - interval.begin;
    const int64_t period = 2 * (shape - 1);
    int64_t dst = 0;

    if (shape == 1) {
        return damacy__axis_run(pieces, alloc, 0, extent, 0, 0, chunk);
    }
    while (dst < extent) {
        int64_t at = (interval.begin + dst) % period;
        int64_t n;
        if (at < 0) {
            at += period;
        }
        if (at < shape - 1) { /* rising from at to shape - 2 */
            n = DAMACY__MIN(extent - dst, shape - 1 - at);
            if (!damacy__axis_run(pieces, alloc, dst, n, at, 1, chunk)) {
                return false;
            }
        } else { /* falling from period - at to 1 */
            n = DAMACY__MIN(extent - dst, period - at);
            if (!damacy__axis_run(pieces, alloc, dst, n, period - at, -1, chunk)) {
                return false;
            }
        }
        dst += n;
    }
    return true;
}

/* Appends the pieces of one axis in ascending dst. The interval is not empty and its ends differ by
 * less than 2^62; under REJECT it lies inside the array (the caller has checked). An axis without
 * voxels lies wholly outside. False when memory is out. */
static bool damacy__axis_pieces(damacy__pieces* pieces, damacy__alloc* alloc,
                                damacy_interval interval, int64_t shape, int64_t chunk,
                                damacy_bounds bounds)
{
    const int64_t extent = interval.end - interval.begin;
    const int64_t begin = DAMACY__MAX(interval.begin, 0);
    const int64_t end = DAMACY__MIN(interval.end, shape);
    const int64_t n_before = DAMACY__MIN(DAMACY__MAX(-interval.begin, 0), extent);
    const int64_t n_inside = DAMACY__MAX(end - begin, 0);
    const int64_t n_after = extent - n_before - n_inside;

    if (shape == 0) {
        return damacy__axis_outside(pieces, alloc, 0, extent);
    }
    if (bounds == DAMACY_BOUNDS_REFLECT) {
        return damacy__axis_reflect(pieces, alloc, interval, shape, chunk);
    }
    if (bounds == DAMACY_BOUNDS_CLAMP) {
        return damacy__axis_run(pieces, alloc, 0, n_before, 0, 0, chunk) &&
               damacy__axis_run(pieces, alloc, n_before, n_inside, begin, 1, chunk) &&
               damacy__axis_run(pieces, alloc, n_before + n_inside, n_after, shape - 1, 0, chunk);
    }
    return damacy__axis_outside(pieces, alloc, 0, n_before) &&
           damacy__axis_run(pieces, alloc, n_before, n_inside, begin, 1, chunk) &&
           damacy__axis_outside(pieces, alloc, n_before + n_inside, n_after);
}
