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

#if defined(__x86_64__)
/* 16 elements of 2 bytes a step. Returns the elements done. */
static size_t damacy__unshuffle_2(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        const __m128i a = _mm_loadu_si128((const __m128i*)(const void*)(src + i));
        const __m128i b = _mm_loadu_si128((const __m128i*)(const void*)(src + n + i));
        _mm_storeu_si128((__m128i*)(void*)(dst + 2 * i), _mm_unpacklo_epi8(a, b));
        _mm_storeu_si128((__m128i*)(void*)(dst + 2 * i + 16), _mm_unpackhi_epi8(a, b));
    }
    return i;
}

/* 16 elements of 4 bytes a step. */
static size_t damacy__unshuffle_4(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m128i v[4];
        __m128i low[2];
        __m128i high[2];
        for (size_t j = 0; j < 4; j++) {
            v[j] = _mm_loadu_si128((const __m128i*)(const void*)(src + j * n + i));
        }
        for (size_t j = 0; j < 2; j++) {
            low[j] = _mm_unpacklo_epi8(v[2 * j], v[2 * j + 1]);
            high[j] = _mm_unpackhi_epi8(v[2 * j], v[2 * j + 1]);
        }
        _mm_storeu_si128((__m128i*)(void*)(dst + 4 * i), _mm_unpacklo_epi16(low[0], low[1]));
        _mm_storeu_si128((__m128i*)(void*)(dst + 4 * i + 16), _mm_unpackhi_epi16(low[0], low[1]));
        _mm_storeu_si128((__m128i*)(void*)(dst + 4 * i + 32), _mm_unpacklo_epi16(high[0], high[1]));
        _mm_storeu_si128((__m128i*)(void*)(dst + 4 * i + 48), _mm_unpackhi_epi16(high[0], high[1]));
    }
    return i;
}

/* 16 elements of 8 bytes a step: three rounds of interleaving. */
static size_t damacy__unshuffle_8(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m128i a[8];
        __m128i b[8];
        for (size_t j = 0; j < 8; j++) {
            a[j] = _mm_loadu_si128((const __m128i*)(const void*)(src + j * n + i));
        }
        for (size_t j = 0; j < 4; j++) {
            b[2 * j] = _mm_unpacklo_epi8(a[2 * j], a[2 * j + 1]);
            b[2 * j + 1] = _mm_unpackhi_epi8(a[2 * j], a[2 * j + 1]);
        }
        for (size_t j = 0; j < 2; j++) { /* b[0],b[2]: bytes 0-3 of the first 8 elements */
            a[4 * j] = _mm_unpacklo_epi16(b[j], b[2 + j]);
            a[4 * j + 1] = _mm_unpackhi_epi16(b[j], b[2 + j]);
            a[4 * j + 2] = _mm_unpacklo_epi16(b[4 + j], b[6 + j]);
            a[4 * j + 3] = _mm_unpackhi_epi16(b[4 + j], b[6 + j]);
        }
        for (size_t j = 0; j < 2; j++) {
            for (size_t k = 0; k < 2; k++) {
                uint8_t* to = dst + 8 * i + 64 * j + 32 * k;
                _mm_storeu_si128((__m128i*)(void*)to,
                                 _mm_unpacklo_epi32(a[4 * j + k], a[4 * j + 2 + k]));
                _mm_storeu_si128((__m128i*)(void*)(to + 16),
                                 _mm_unpackhi_epi32(a[4 * j + k], a[4 * j + 2 + k]));
            }
        }
    }
    return i;
}
#endif

/* dst[i * width + j] = src[j * n + i]; the tail as it is. width 1 copies. */
static void damacy__unshuffle(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width)
{
    enum { DAMACY__STRIPE = 256 };
    const size_t n = size / width;
    size_t first = 0;

#if defined(__x86_64__)
    first = width == 2   ? damacy__unshuffle_2(dst, src, n)
            : width == 4 ? damacy__unshuffle_4(dst, src, n)
            : width == 8 ? damacy__unshuffle_8(dst, src, n)
                         : 0;
#endif
    for (; first < n; first += DAMACY__STRIPE) {
        const size_t end = DAMACY__MIN(first + DAMACY__STRIPE, n);
        for (uint32_t j = 0; j < width; j++) {
            const uint8_t* plane = src + j * n;
            for (size_t i = first; i < end; i++) {
                dst[i * width + j] = plane[i];
            }
        }
    }
    memcpy(dst + n * width, src + n * width, size - n * width);
}

/* Transposes an 8 x 8 matrix of bits, row r in byte r. */
static inline uint64_t damacy__transpose_bits(uint64_t x)
{
    uint64_t t = (x ^ x >> 7) & UINT64_C(0x00aa00aa00aa00aa);

    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & UINT64_C(0x0000cccc0000cccc);
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & UINT64_C(0x00000000f0f0f0f0);
    return x ^ t ^ t << 28;
}

#if defined(__x86_64__)
/* damacy__transpose_bits of both halves. */
static inline __m128i damacy__transpose_bits_2(__m128i x)
{
    __m128i t = _mm_and_si128(_mm_xor_si128(x, _mm_srli_epi64(x, 7)),
                              _mm_set1_epi64x(INT64_C(0x00aa00aa00aa00aa)));

    x = _mm_xor_si128(x, _mm_xor_si128(t, _mm_slli_epi64(t, 7)));
    t = _mm_and_si128(_mm_xor_si128(x, _mm_srli_epi64(x, 14)),
                      _mm_set1_epi64x(INT64_C(0x0000cccc0000cccc)));
    x = _mm_xor_si128(x, _mm_xor_si128(t, _mm_slli_epi64(t, 14)));
    t = _mm_and_si128(_mm_xor_si128(x, _mm_srli_epi64(x, 28)),
                      _mm_set1_epi64x(INT64_C(0x00000000f0f0f0f0)));
    return _mm_xor_si128(x, _mm_xor_si128(t, _mm_slli_epi64(t, 28)));
}

/* 16 bytes of each of 8 planes, which lie `row` bytes apart, to one byte of 128 elements. */
static inline void damacy__unshuffle_bits_128(uint8_t* dst, const uint8_t* planes, size_t row)
{
    __m128i a[8];
    __m128i b[8];

    for (size_t k = 0; k < 8; k++) {
        a[k] = _mm_loadu_si128((const __m128i*)(const void*)(planes + k * row));
    }
    for (size_t k = 0; k < 4; k++) { /* b[2k], b[2k + 1]: planes 2k and 2k + 1 of bytes 0-7, 8-15 */
        b[2 * k] = _mm_unpacklo_epi8(a[2 * k], a[2 * k + 1]);
        b[2 * k + 1] = _mm_unpackhi_epi8(a[2 * k], a[2 * k + 1]);
    }
    for (size_t k = 0; k < 2; k++) { /* a[4k + q]: planes 4k to 4k + 3 of bytes 4q to 4q + 3 */
        a[4 * k] = _mm_unpacklo_epi16(b[4 * k], b[4 * k + 2]);
        a[4 * k + 1] = _mm_unpackhi_epi16(b[4 * k], b[4 * k + 2]);
        a[4 * k + 2] = _mm_unpacklo_epi16(b[4 * k + 1], b[4 * k + 3]);
        a[4 * k + 3] = _mm_unpackhi_epi16(b[4 * k + 1], b[4 * k + 3]);
    }
    for (size_t q = 0; q < 4; q++) {
        const __m128i low = _mm_unpacklo_epi32(a[q], a[4 + q]);
        const __m128i high = _mm_unpackhi_epi32(a[q], a[4 + q]);
        _mm_storeu_si128((__m128i*)(void*)(dst + 32 * q), damacy__transpose_bits_2(low));
        _mm_storeu_si128((__m128i*)(void*)(dst + 32 * q + 16), damacy__transpose_bits_2(high));
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
#endif

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
#if defined(__x86_64__)
    first = damacy__unshuffle_bits_512(dst, src, n, width) / 8;
#endif
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
