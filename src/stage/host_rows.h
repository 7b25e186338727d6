/* The loops of host_assemble.h over the elements of one line or one tile: copied by size, turned,
 * filled with one value, written past the caches, scaled. */
#pragma once
#include "stage/host_walk.h"

#define DAMACY__BY_SIZE(size, F) \
    switch (size) {              \
    case 1:                      \
        F(uint8_t) break;        \
    case 2:                      \
        F(uint16_t) break;       \
    case 4:                      \
        F(uint32_t) break;       \
    default:                     \
        F(uint64_t) break;       \
    }

/* n elements, some bytes apart on either side. */
static void damacy__copy_strided(uint64_t dst, uint64_t dst_stride, uint64_t src,
                                 uint64_t src_stride, size_t n, uint32_t size)
{
#define DAMACY__COPY_STRIDED(T)                                                \
    for (size_t i = 0; i < n; i++, dst += dst_stride, src += src_stride) {     \
        memcpy((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, sizeof(T)); \
    }
    DAMACY__BY_SIZE(size, DAMACY__COPY_STRIDED)
#undef DAMACY__COPY_STRIDED
}

/* Turns a tile: n columns, stride apart, of n_rows contiguous elements each, become n_rows rows. */
static void damacy__turn(void* dst, uint64_t src, uint64_t stride, size_t n, size_t n_rows,
                         uint32_t size)
{
#define DAMACY__TURN(T)                                                         \
    for (size_t i = 0; i < n; i++, src += stride) {                             \
        for (size_t row = 0; row < n_rows; row++) {                             \
            memcpy((uint8_t*)dst + (row * DAMACY__TILE_ROW + i) * sizeof(T),    \
                   (const void*)(uintptr_t)(src + row * sizeof(T)), sizeof(T)); \
        }                                                                       \
    }
    DAMACY__BY_SIZE(size, DAMACY__TURN)
#undef DAMACY__TURN
}

/* n times the size bytes at value. */
static void damacy__splat(void* dst, const void* value, size_t n, uint32_t size)
{
    typedef uint64_t pair __attribute__((vector_size(16)));
    uint8_t* const to = (uint8_t*)dst;
    const size_t n_bytes = n * size;
    uint64_t word = 0;
    pair x;

    memcpy(&word, value, size);
    word *= size == 8 ? 1 : UINT64_MAX / ((UINT64_C(1) << 8 * size) - 1);
    x[0] = x[1] = word;
    if (n_bytes < sizeof x) {
        memcpy(to, &x, n_bytes);
        return;
    }
    for (size_t i = 0; i < n_bytes - sizeof x; i += sizeof x) {
        memcpy(to + i, &x, sizeof x);
    }
    memcpy(to + n_bytes - sizeof x, &x, sizeof x); /* some of them again */
}

/* Copies to memory that will not be read soon. The writes are ordered by damacy__stream_copy_end.
 */
static void damacy__stream_copy(uint8_t* dst, const uint8_t* src, size_t size)
{
#if DAMACY__X86
    typedef float quad __attribute__((vector_size(16)));
    const size_t head = (size_t)(0 - (uintptr_t)dst) % 64;

    if (size >= head + 64) {
        memcpy(dst, src, head);
        dst += head;
        src += head;
        size -= head;
        for (; size >= 64; size -= 64, dst += 64, src += 64) {
            for (uint32_t i = 0; i < 64; i += 16) {
                quad x;
                memcpy(&x, src + i, sizeof x);
                __asm__ volatile("movntps %1, %0" : "=m"(*(quad*)(void*)(dst + i)) : "x"(x));
            }
        }
    }
#endif
    memcpy(dst, src, size);
}

static void damacy__stream_copy_end(void)
{
#if DAMACY__X86
    __asm__ volatile("sfence" : : : "memory");
#endif
}

/* Multiplying and adding are functions of their own that are never inlined, so that no compiler
 * flag can fuse them: the device rounds twice as well. step 0: the same for all elements. */
__attribute__((noinline)) static void damacy__row_scale(float* row, size_t n, const float* scale,
                                                        size_t step)
{
    for (size_t i = 0; i < n; i++, scale += step) {
        row[i] *= *scale;
    }
}

DAMACY__ALWAYS_INLINE float damacy__plain_nan(float value)
{
    const uint32_t bits = damacy__f32_bits(value);

    return damacy__f32_of((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits);
}

__attribute__((noinline)) static void damacy__row_offset(float* row, size_t n, const float* offset,
                                                         size_t step)
{
    for (size_t i = 0; i < n; i++, offset += step) {
        row[i] = damacy__plain_nan(row[i] + *offset);
    }
}

#if DAMACY__X86
/* Both at once, for one channel; the empty assembly between them is what keeps them apart. */
DAMACY__TARGET_WIDE static size_t damacy__row_affine_wide(float* row, size_t n, float scale,
                                                          float offset)
{
    const damacy__eight_floats scales = {scale, scale, scale, scale, scale, scale, scale, scale};
    const damacy__eight_floats offsets = {offset, offset, offset, offset,
                                          offset, offset, offset, offset};
    size_t i = 0;

    for (; n - i >= 8; i += 8) {
        damacy__eight_floats y;
        damacy__eight_ints bits;
        damacy__eight_ints is_nan;
        memcpy(&y, row + i, sizeof y);
        y *= scales;
        __asm__("" : "+x"(y));
        y += offsets;
        memcpy(&bits, &y, sizeof bits);
        is_nan = (bits & 0x7fffffff) > 0x7f800000;
        bits = (bits & ~is_nan) | (is_nan & 0x7fc00000);
        memcpy(row + i, &bits, sizeof bits);
    }
    __builtin_ia32_vzeroupper();
    return i;
}
#endif

/* Scales a row of f32; the channel of element i is channel, or channel + i. */
static void damacy__row_affine(const damacy__copy_walk* walk, float* row, size_t n,
                               uint32_t channel)
{
    static const float none[2] = {1.0f, 0.0f};
    const damacy__affine* affine = walk->affine;
    const uint32_t first = affine->n_channels > 1 ? channel : 0;
    const bool is_each = walk->channel_axis == walk->n_axes - 1;

    assert(first < affine->n_channels);
#if DAMACY__X86
    if (!is_each && damacy__cpu_is_wide()) {
        const size_t done =
            damacy__row_affine_wide(row, n, affine->scale ? affine->scale[first] : none[0],
                                    affine->offset ? affine->offset[first] : none[1]);
        row += done;
        n -= done;
    }
#endif
    damacy__row_scale(row, n, affine->scale ? affine->scale + first : &none[0],
                      is_each && affine->scale ? 1 : 0);
    damacy__row_offset(row, n, affine->offset ? affine->offset + first : &none[1],
                       is_each && affine->offset ? 1 : 0);
}
