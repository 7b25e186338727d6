/* Runs copy records on the CPU: voxels of a decoded chunk, or a fill value, into a sample of a
 * batch.
 *
 * Axes may come in any order: the one with output stride 1 is walked innermost, and where the
 * source runs along another axis (a transposed chunk) a tile is turned at a time, so that whole
 * cache lines are used on both sides. The rules of conversion are those of cast.h. Source addresses
 * need no alignment. */
#pragma once
#include "stage/host_rows.h"

static void damacy__host_copy(const damacy__copy* copy, const damacy__axis* axes,
                              damacy_dtype out_dtype, const damacy__affine* affine);

#if DAMACY__X86
/* Past the caches: whole lines of the output are written without being read first. The caller
 * orders the writes. */
#define DAMACY__STREAM_ROW(name, size, widen)                                                  \
    DAMACY__TARGET_WIDE static void damacy__row_stream_##name(void* dst, const void* src,      \
                                                              size_t n)                        \
    {                                                                                          \
        const size_t head = (size_t)(0 - (uintptr_t)dst) % 64 / sizeof(float);                 \
        size_t i = head;                                                                       \
        if (n < head + 16 || (uintptr_t)dst % sizeof(float) != 0) {                            \
            damacy__row_wide_##name(dst, src, n);                                              \
            return;                                                                            \
        }                                                                                      \
        if (head) {                                                                            \
            damacy__row_wide_##name(dst, src, head);                                           \
        }                                                                                      \
        for (; n - i >= 16; i += 16) {                                                         \
            const uint8_t* from = (const uint8_t*)src + i * (size);                            \
            float* to = (float*)dst + i;                                                       \
            __asm__ volatile(widen " (%1), %%ymm0\n\t" widen " (%1,%2,8), %%ymm1\n\t"          \
                                   "vcvtdq2ps %%ymm0, %%ymm0\n\t"                              \
                                   "vcvtdq2ps %%ymm1, %%ymm1\n\t"                              \
                                   "vmovntps %%ymm0, (%0)\n\t"                                 \
                                   "vmovntps %%ymm1, 32(%0)"                                   \
                             :                                                                 \
                             : "r"(to), "r"(from), "r"((size_t)(size))                         \
                             : "xmm0", "xmm1", "memory");                                      \
        }                                                                                      \
        __builtin_ia32_vzeroupper();                                                           \
        if (i < n) {                                                                           \
            damacy__row_wide_##name((float*)dst + i, (const uint8_t*)src + i * (size), n - i); \
        }                                                                                      \
    }
DAMACY__STREAM_ROW(u8_f32, 1, "vpmovzxbd")
DAMACY__STREAM_ROW(i8_f32, 1, "vpmovsxbd")
DAMACY__STREAM_ROW(u16_f32, 2, "vpmovzxwd")
DAMACY__STREAM_ROW(i16_f32, 2, "vpmovsxwd")
#undef DAMACY__STREAM_ROW
#endif

/* From src to f32 past the caches; NULL: there is no such loop. */
static damacy__row damacy__row_stream(damacy_dtype src)
{
#if DAMACY__X86
    if (damacy__cpu_is_wide()) {
        return src == DAMACY_U16   ? damacy__row_stream_u16_f32
               : src == DAMACY_U8  ? damacy__row_stream_u8_f32
               : src == DAMACY_I16 ? damacy__row_stream_i16_f32
               : src == DAMACY_I8  ? damacy__row_stream_i8_f32
                                   : NULL;
    }
#endif
    (void)src;
    return NULL;
}

/* Where the next step writes: the end, if it is the last, else the buffer that does not hold the
 * row. */
DAMACY__ALWAYS_INLINE void* damacy__row_target(uint64_t (*buffers)[DAMACY__BLOCK], const void* row,
                                               void* end, uint32_t n_left)
{
    return n_left == 1 && end ? end : row == (void*)buffers[0] ? buffers[1] : buffers[0];
}

/* Up to DAMACY__BLOCK elements through all steps. */
static void damacy__copy_block(const damacy__copy_walk* walk, uint64_t dst, uint64_t src,
                               uint64_t src_stride, size_t n, uint32_t channel)
{
    uint64_t buffers[2][DAMACY__BLOCK];
    const uint64_t dst_stride = walk->dst_stride[walk->n_axes - 1];
    const bool is_row = dst_stride == walk->out_size;
    void* const end = is_row && !walk->is_stream ? (void*)(uintptr_t)dst : NULL;
    const void* row = (const void*)(uintptr_t)src;
    uint32_t n_left = (walk->swap ? 1u : 0u) + walk->cast.n_steps + walk->tail.n_steps;
    void* to = NULL;

    if (src_stride != walk->cast.src_size) {
        damacy__copy_strided((uint64_t)(uintptr_t)buffers[0], walk->cast.src_size, src, src_stride,
                             n, walk->cast.src_size);
        row = to = buffers[0];
    }
    if (walk->swap) {
        to = damacy__row_target(buffers, row, end, n_left--);
        walk->swap(to, row, n);
        row = to;
    }
    for (uint32_t i = 0; i < walk->cast.n_steps; i++) {
        to = damacy__row_target(buffers, row, end, n_left--);
        walk->cast.steps[i](to, row, n);
        row = to;
    }
    if (walk->affine) {
        if (!to) { /* f32 as it is stored */
            to = end && n_left == 0 ? end : buffers[0];
            memcpy(to, row, n * sizeof(float));
            row = to;
        }
        damacy__row_affine(walk, (float*)to, n, channel);
        if (walk->tail.n_steps) {
            to = damacy__row_target(buffers, row, end, n_left);
            walk->tail.steps[0](to, row, n);
            row = to;
        }
    }
    if (!is_row) {
        damacy__copy_strided(dst, dst_stride, (uint64_t)(uintptr_t)row, walk->out_size, n,
                             walk->out_size);
    } else if (walk->is_stream) {
        damacy__stream_copy((uint8_t*)(uintptr_t)dst, (const uint8_t*)row, n * walk->out_size);
    } else if (row != end) {
        memcpy(end, row, n * walk->out_size);
    }
}

/* One line of one value. */
static void damacy__copy_splat(const damacy__copy_walk* walk, uint64_t dst, uint64_t n)
{
    uint64_t block[DAMACY__BLOCK];

    if (!walk->is_stream) {
        damacy__splat((void*)(uintptr_t)dst, &walk->splat, (size_t)n, walk->out_size);
        return;
    }
    damacy__splat(block, &walk->splat, (size_t)DAMACY__MIN(n, (uint64_t)DAMACY__BLOCK),
                  walk->out_size);
    for (uint64_t at = 0; at < n; at += DAMACY__BLOCK) {
        damacy__stream_copy((uint8_t*)(uintptr_t)(dst + at * walk->out_size), (const uint8_t*)block,
                            (size_t)DAMACY__MIN(n - at, (uint64_t)DAMACY__BLOCK) * walk->out_size);
    }
}

/* One line along the last axis; direct ones that damacy__copy_run leaves are for the stream. */
static void damacy__copy_line(const damacy__copy_walk* walk, uint64_t dst, uint64_t src,
                              uint32_t channel)
{
    const uint32_t last = walk->n_axes - 1;
    const uint64_t n = walk->extent[last];

    if (walk->is_splat) {
        damacy__copy_splat(walk, dst, n);
        return;
    }
    if (walk->is_direct) {
        damacy__stream_copy((uint8_t*)(uintptr_t)dst, (const uint8_t*)(uintptr_t)src,
                            (size_t)n * walk->out_size);
        return;
    }
    for (uint64_t at = 0; at < n; at += DAMACY__BLOCK) {
        damacy__copy_block(walk, dst + at * walk->dst_stride[last],
                           src + at * walk->src_stride[last], walk->src_stride[last],
                           (size_t)DAMACY__MIN(n - at, (uint64_t)DAMACY__BLOCK),
                           walk->channel_axis == last ? channel + (uint32_t)at : channel);
    }
}

/* The last two axes, where the source runs along the first of them. */
static void damacy__copy_tiles(const damacy__copy_walk* walk, uint64_t dst, uint64_t src,
                               uint32_t channel)
{
    uint64_t tile[DAMACY__TILE_ROW * DAMACY__TILE_BYTES / 8];
    const uint32_t last = walk->n_axes - 1;
    const uint32_t size = walk->cast.src_size;

    for (uint64_t y = 0; y < walk->extent[last - 1]; y += walk->tile_rows) {
        const uint64_t n_rows = DAMACY__MIN(walk->extent[last - 1] - y, (uint64_t)walk->tile_rows);
        for (uint64_t x = 0; x < walk->extent[last]; x += DAMACY__TILE_ROW) {
            const uint64_t n = DAMACY__MIN(walk->extent[last] - x, (uint64_t)DAMACY__TILE_ROW);
            damacy__turn(tile, src + x * walk->src_stride[last] + y * size, walk->src_stride[last],
                         (size_t)n, (size_t)n_rows, size);
            for (uint64_t row = 0; row < n_rows; row++) {
                const uint64_t step = walk->channel_axis == last       ? x
                                      : walk->channel_axis == last - 1 ? y + row
                                                                       : 0;
                damacy__copy_block(
                    walk, dst + x * walk->dst_stride[last] + (y + row) * walk->dst_stride[last - 1],
                    (uint64_t)(uintptr_t)tile + row * DAMACY__TILE_ROW * size, size, (size_t)n,
                    channel + (uint32_t)step);
            }
        }
    }
}

/* All lines, or all tiles, of the outer axes. */
static void damacy__copy_run(const damacy__copy_walk* walk)
{
    uint64_t index[DAMACY__COPY_AXES] = {0};
    const uint32_t n_outer = walk->n_axes - (walk->tile_rows ? 2u : 1u);
    const damacy__row row = walk->is_direct && walk->cast.n_steps ? walk->cast.steps[0] : NULL;
    const bool is_bytes = walk->is_direct && !row && !walk->is_stream;
    const size_t n = (size_t)walk->extent[walk->n_axes - 1];
    uint64_t src = walk->src;
    uint64_t dst = walk->dst;

    for (;;) {
        const uint32_t channel =
            walk->channel +
            (walk->channel_axis < n_outer ? (uint32_t)index[walk->channel_axis] : 0u);
        uint32_t axis = n_outer;
        if (row) {
            row((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, n);
        } else if (is_bytes) {
            memcpy((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, n * walk->out_size);
        } else if (walk->tile_rows) {
            damacy__copy_tiles(walk, dst, src, channel);
        } else {
            damacy__copy_line(walk, dst, src, channel);
        }
        for (;;) {
            if (axis == 0) {
                return;
            }
            axis--;
            if (++index[axis] < walk->extent[axis]) {
                src += walk->src_stride[axis];
                dst += walk->dst_stride[axis];
                break;
            }
            index[axis] = 0;
            src -= walk->src_stride[axis] * (walk->extent[axis] - 1);
            dst -= walk->dst_stride[axis] * (walk->extent[axis] - 1);
        }
    }
}

/* Runs one record. axes are the record's own, copy->n_axes of them; src_dtype is a real type;
 * out_dtype DAMACY_NATIVE stands for it. affine NULL: no scaling; else the output is a float type.
 * Any thread; records of different outputs may run at once. */
static void damacy__host_copy(const damacy__copy* copy, const damacy__axis* axes,
                              damacy_dtype out_dtype, const damacy__affine* affine)
{
    const damacy_dtype out = out_dtype == DAMACY_NATIVE ? (damacy_dtype)copy->src_dtype : out_dtype;
    damacy__copy_walk walk;

    assert(copy->n_axes >= 1 && copy->n_axes <= DAMACY__COPY_AXES &&
           copy->src_dtype < DAMACY_NATIVE);
    damacy__walk_init(&walk, copy, axes, out, affine);
    if (walk.dst_stride[walk.n_axes - 1] == walk.out_size) {
        const bool is_row = walk.src_stride[walk.n_axes - 1] == walk.cast.src_size;
        walk.is_direct = is_row && !walk.swap && !affine && walk.cast.n_steps <= 1;
        walk.is_splat =
            (copy->flags & DAMACY__COPY_FILL) && walk.channel_axis == DAMACY__NO_CHANNEL;
    }
    if (walk.is_splat) {
        damacy__copy_block(&walk, (uint64_t)(uintptr_t)&walk.splat, walk.src, walk.cast.src_size, 1,
                           walk.channel);
    }
    if ((copy->flags & DAMACY__COPY_STREAM) && walk.dst_stride[walk.n_axes - 1] == walk.out_size) {
        const damacy__row row =
            out == DAMACY_F32 ? damacy__row_stream((damacy_dtype)copy->src_dtype) : NULL;
        walk.is_stream = true;
        walk.is_direct = walk.is_direct && (row || walk.cast.n_steps == 0);
        if (walk.is_direct && row) {
            walk.cast.steps[0] = row;
        }
    }
    damacy__copy_run(&walk);
    if (walk.is_stream) {
        damacy__stream_copy_end();
    }
}
