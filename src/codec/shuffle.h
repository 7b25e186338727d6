/* Undoes blosc's two shuffles over one block. Source: c-blosc README_CHUNK_FORMAT.rst and its
 * shuffle filters' documented layout.
 *
 * Byte shuffle keeps byte j of every element together; bit shuffle keeps bit k of byte j of every
 * element together. What is left over behind the last whole element is stored as it is; a bit
 * shuffle of a number of elements that is no multiple of 8 was not done at all. */
#pragma once
#include "base/base.h"

static void damacy__unshuffle(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width);
static void damacy__unshuffle_bits(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width);

/* Vectors of 16 bytes, which compilers turn into what the processor has; in memory at any address.
 */
typedef uint8_t damacy__bytes_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t damacy__pairs_8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t damacy__quads_4 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t damacy__words_2 __attribute__((vector_size(16), aligned(1), may_alias));

/* The elements of two vectors in turns: those of their lower halves, those of their upper ones. */
#if defined(__clang__) || __GNUC__ >= 12
#define DAMACY__MIX(T, a, b, ...) __builtin_shufflevector((T)(a), (T)(b), __VA_ARGS__)
#else
#define DAMACY__MIX(T, a, b, ...) __extension__(__builtin_shuffle((T)(a), (T)(b), (T){__VA_ARGS__}))
#endif
#define DAMACY__LOW_1(a, b) \
    DAMACY__MIX(damacy__bytes_16, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define DAMACY__HIGH_1(a, b)                                                                      \
    DAMACY__MIX(damacy__bytes_16, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, \
                31)
#define DAMACY__LOW_2(a, b)  DAMACY__MIX(damacy__pairs_8, a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define DAMACY__HIGH_2(a, b) DAMACY__MIX(damacy__pairs_8, a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define DAMACY__LOW_4(a, b)  DAMACY__MIX(damacy__quads_4, a, b, 0, 4, 1, 5)
#define DAMACY__HIGH_4(a, b) DAMACY__MIX(damacy__quads_4, a, b, 2, 6, 3, 7)

/* 16 elements of 2 bytes a step. Returns the elements done. */
static size_t damacy__unshuffle_2(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        const damacy__bytes_16 a = *(const damacy__bytes_16*)(src + i);
        const damacy__bytes_16 b = *(const damacy__bytes_16*)(src + n + i);
        damacy__bytes_16* const to = (damacy__bytes_16*)(dst + 2 * i);
        to[0] = DAMACY__LOW_1(a, b);
        to[1] = DAMACY__HIGH_1(a, b);
    }
    return i;
}

/* Bytes of four planes, `row` apart, side by side: 16 groups of 4. */
DAMACY__ALWAYS_INLINE void damacy__mix_4(damacy__pairs_8* out, const uint8_t* planes, size_t row)
{
    const damacy__bytes_16 a = *(const damacy__bytes_16*)planes;
    const damacy__bytes_16 b = *(const damacy__bytes_16*)(planes + row);
    const damacy__bytes_16 c = *(const damacy__bytes_16*)(planes + 2 * row);
    const damacy__bytes_16 d = *(const damacy__bytes_16*)(planes + 3 * row);
    const damacy__bytes_16 ab[2] = {DAMACY__LOW_1(a, b), DAMACY__HIGH_1(a, b)};
    const damacy__bytes_16 cd[2] = {DAMACY__LOW_1(c, d), DAMACY__HIGH_1(c, d)};

    out[0] = DAMACY__LOW_2(ab[0], cd[0]);
    out[1] = DAMACY__HIGH_2(ab[0], cd[0]);
    out[2] = DAMACY__LOW_2(ab[1], cd[1]);
    out[3] = DAMACY__HIGH_2(ab[1], cd[1]);
}

/* 16 elements of 4 bytes a step. */
static size_t damacy__unshuffle_4(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        damacy__mix_4((damacy__pairs_8*)(dst + 4 * i), src + i, n);
    }
    return i;
}

/* 16 elements of 8 bytes a step. */
static size_t damacy__unshuffle_8(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        damacy__quads_4* const to = (damacy__quads_4*)(dst + 8 * i);
        damacy__pairs_8 a[4];
        damacy__pairs_8 b[4];
        damacy__mix_4(a, src + i, n);
        damacy__mix_4(b, src + 4 * n + i, n);
        for (size_t k = 0; k < 4; k++) {
            to[2 * k] = DAMACY__LOW_4(a[k], b[k]);
            to[2 * k + 1] = DAMACY__HIGH_4(a[k], b[k]);
        }
    }
    return i;
}

/* dst[i * width + j] = src[j * n + i]; the tail as it is. width 1 copies. */
static void damacy__unshuffle(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width)
{
    enum { DAMACY__STRIPE = 256 };
    const size_t n = size / width;
    size_t first = width == 2   ? damacy__unshuffle_2(dst, src, n)
                   : width == 4 ? damacy__unshuffle_4(dst, src, n)
                   : width == 8 ? damacy__unshuffle_8(dst, src, n)
                                : 0;

    for (; first < n; first += DAMACY__STRIPE) {
        const size_t end = DAMACY__MIN(first + DAMACY__STRIPE, n);
        for (uint32_t j = 0; j < width; j++) {
            const uint8_t* plane = src + j * n;
            uint8_t* to = dst + first * width + j;
            for (size_t i = first; i < end; i++, to += width) {
                *to = plane[i];
            }
        }
    }
    memcpy(dst + n * width, src + n * width, size - n * width);
}

/* Transposes an 8 x 8 matrix of bits, row r in byte r, in each element of 64 bits. */
#define DAMACY__TRANSPOSE_BITS(name, T)                    \
    DAMACY__ALWAYS_INLINE T name(T x)                      \
    {                                                      \
        T t = (x ^ x >> 7) & UINT64_C(0x00aa00aa00aa00aa); \
                                                           \
        x ^= t ^ t << 7;                                   \
        t = (x ^ x >> 14) & UINT64_C(0x0000cccc0000cccc);  \
        x ^= t ^ t << 14;                                  \
        t = (x ^ x >> 28) & UINT64_C(0x00000000f0f0f0f0);  \
        return x ^ t ^ t << 28;                            \
    }
DAMACY__TRANSPOSE_BITS(damacy__transpose_bits, uint64_t)
DAMACY__TRANSPOSE_BITS(damacy__transpose_bits_2, damacy__words_2)
#undef DAMACY__TRANSPOSE_BITS

/* 16 bytes of each of 8 planes, which lie `row` bytes apart, to one byte of 128 elements. */
DAMACY__ALWAYS_INLINE void damacy__unshuffle_bits_128(uint8_t* dst, const uint8_t* planes,
                                                      size_t row)
{
    damacy__words_2* const to = (damacy__words_2*)dst;
    damacy__pairs_8 a[4];
    damacy__pairs_8 b[4];

    damacy__mix_4(a, planes, row);
    damacy__mix_4(b, planes + 4 * row, row);
    for (size_t k = 0; k < 4; k++) {
        to[2 * k] = damacy__transpose_bits_2((damacy__words_2)DAMACY__LOW_4(a[k], b[k]));
        to[2 * k + 1] = damacy__transpose_bits_2((damacy__words_2)DAMACY__HIGH_4(a[k], b[k]));
    }
}

/* 512 elements of up to 16 bytes a step, through bytes of the same kind side by side. Returns the
 * elements done. */
static size_t damacy__unshuffle_bits_512(uint8_t* dst, const uint8_t* src, size_t n, uint32_t width)
{
    enum { DAMACY__STEP = 512 };
    uint8_t between[16 * DAMACY__STEP];
    size_t i = 0;

    for (; width <= 16 && i + DAMACY__STEP <= n; i += DAMACY__STEP) {
        uint8_t* to = width == 1 ? dst + i : between;
        for (uint32_t j = 0; j < width; j++) {
            for (size_t k = 0; k < DAMACY__STEP; k += 128) {
                damacy__unshuffle_bits_128(to + j * DAMACY__STEP + k,
                                           src + 8 * j * (n / 8) + (i + k) / 8, n / 8);
            }
        }
        if (width > 1) {
            damacy__unshuffle(dst + i * width, between, (size_t)DAMACY__STEP * width, width);
        }
    }
    return i;
}

/* Bit k of byte j of element i is bit i % 8 of src[(8 j + k) * (n / 8) + i / 8]. */
static void damacy__unshuffle_bits(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width)
{
    const size_t n = size / width;
    const size_t row = n / 8;
    size_t first = 0;

    if (n % 8 != 0) {
        memcpy(dst, src, size);
        return;
    }
    first = damacy__unshuffle_bits_512(dst, src, n, width) / 8;
    for (uint32_t j = 0; j < width; j++) {
        const uint8_t* planes = src + 8 * j * row;
        for (size_t g = first; g < row; g++) {
            uint64_t bits = 0;
            for (uint32_t k = 0; k < 8; k++) {
                bits |= (uint64_t)planes[k * row + g] << (8 * k);
            }
            bits = damacy__transpose_bits(bits);
            for (uint32_t i = 0; i < 8; i++) {
                dst[(8 * g + i) * width + j] = (uint8_t)(bits >> (8 * i));
            }
        }
    }
    memcpy(dst + n * width, src + n * width, size - n * width);
}
