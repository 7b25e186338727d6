/* The loops that convert rows of voxels, one per step of a conversion; cast.h has the rules and
 * chooses the steps.
 *
 * NaN is told by its bits, so that -ffast-math in the including program changes nothing. Loops that
 * are common have a second form for AVX2: whole blocks, the last of which may do some elements once
 * more. */
#pragma once
#include "base/error.h"

/* Converts n elements; src and dst are contiguous, of any alignment, and do not overlap. */
typedef void (*damacy__row)(void* dst, const void* src, size_t n);

/* The processor's own instructions, beside the plain loops; tests turn them off. Every one with
 * AVX2 converts halves, too. (One target for all: gcc takes as long to get ready for another as to
 * compile thirty functions.) */
#if defined(__x86_64__) && !defined(DAMACY__PORTABLE)
#define DAMACY__X86         1
#define DAMACY__TARGET_WIDE __attribute__((target("avx2,f16c")))
#else
#define DAMACY__X86 0
#endif

/* Many compilers' -O2 leaves such loops scalar; -O3 costs twice the time and finds no more. */
#if defined(__GNUC__) && !defined(__clang__)
#define DAMACY__VECTORIZE \
    __attribute__((optimize("O1", "tree-loop-vectorize", "vect-cost-model=dynamic")))
#else
#define DAMACY__VECTORIZE
#endif

DAMACY__ALWAYS_INLINE uint32_t damacy__f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DAMACY__ALWAYS_INLINE float damacy__f32_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

DAMACY__ALWAYS_INLINE uint64_t damacy__f64_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DAMACY__ALWAYS_INLINE double damacy__f64_of(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Picks by masks: a branch around float operations would keep loops scalar. */
DAMACY__ALWAYS_INLINE uint32_t damacy__select(bool condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)condition;

    return (yes & mask) | (no & ~mask);
}

DAMACY__ALWAYS_INLINE float damacy__f16_to_f32(uint16_t half)
{
    const uint32_t rest = half & 0x7fffu;
    const uint32_t normal = (rest << 13) + (112u << 23);
    /* No subnormal float takes part, so that a program that flushes them changes nothing. */
    const uint32_t subnormal = damacy__f32_bits((float)(int32_t)rest * 5.9604644775390625e-8f);
    const uint32_t finite = damacy__select(rest < 0x400u, subnormal, normal);
    const uint32_t quiet = damacy__select(rest > 0x7c00u, 0x7fc00000u, 0x7f800000u);
    const uint32_t special = quiet | (rest << 13);

    return damacy__f32_of(((half & 0x8000u) << 16) |
                          damacy__select(rest >= 0x7c00u, special, finite));
}

DAMACY__ALWAYS_INLINE uint16_t damacy__f32_to_f16(float value)
{
    const uint32_t bits = damacy__f32_bits(value);
    const uint32_t rest = bits & 0x7fffffffu;
    const uint32_t normal = (rest + 0xfffu + ((rest >> 13) & 1u) - (112u << 23)) >> 13;
    /* 0.5 has the ulp of a subnormal half: the sum's mantissa is the rounded result. */
    const uint32_t subnormal = damacy__f32_bits(damacy__f32_of(rest) + 0.5f) - 0x3f000000u;
    const uint32_t finite = damacy__select(rest < 0x38800000u, subnormal, normal);
    const uint32_t bounded = damacy__select(rest >= 0x47800000u, 0x7c00u, finite);
    const uint32_t nan = 0x7e00u | ((rest >> 13) & 0x3ffu);

    return (uint16_t)((bits >> 16 & 0x8000u) | damacy__select(rest > 0x7f800000u, nan, bounded));
}

DAMACY__ALWAYS_INLINE float damacy__bf16_to_f32(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;

    return damacy__f32_of(bits | damacy__select((bits & 0x7fffffffu) > 0x7f800000u, 0x400000u, 0u));
}

DAMACY__ALWAYS_INLINE uint16_t damacy__f32_to_bf16(float value)
{
    const uint32_t bits = damacy__f32_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40u;

    return (uint16_t)damacy__select((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded);
}

/* Rounds to odd: the smaller magnitude, with the last bit set when anything was lost. */
DAMACY__ALWAYS_INLINE float damacy__f64_to_f32_odd(double value)
{
    const uint64_t bits = damacy__f64_bits(value);
    const uint64_t mantissa = bits & UINT64_C(0xfffffffffffff);
    const uint32_t sign = (uint32_t)(bits >> 32) & 0x80000000u;
    const int32_t exponent = (int32_t)(bits >> 52 & 0x7ff) - (1023 - 127);
    uint32_t rest;

    if (exponent == 0x7ff - (1023 - 127)) {
        rest = 0x7f800000u | (mantissa ? 0x400000u | (uint32_t)(mantissa >> 29) : 0u);
    } else if (exponent >= 255) {
        rest = 0x7f7fffffu;
    } else if (exponent >= 1) {
        rest = (uint32_t)exponent << 23 | (uint32_t)(mantissa >> 29) |
               ((mantissa & 0x1fffffffu) != 0 ? 1u : 0u);
    } else if (exponent > -34) {
        const uint64_t whole = mantissa | UINT64_C(1) << 52;
        const uint32_t shift = (uint32_t)(30 - exponent);
        rest = (uint32_t)(whole >> shift) | ((whole & ((UINT64_C(1) << shift) - 1)) != 0 ? 1u : 0u);
    } else {
        rest = (bits << 1) != 0 ? 1u : 0u;
    }
    return damacy__f32_of(sign | rest);
}

DAMACY__ALWAYS_INLINE float damacy__u64_to_f32_odd(uint64_t value)
{
    uint32_t shift;

    if (value < UINT64_C(1) << 24) {
        return (float)(int32_t)value;
    }
    shift = 40u - (uint32_t)__builtin_clzll(value);
    return damacy__f32_of(
        ((shift + 23u + 127u) << 23) + ((uint32_t)(value >> shift) & 0x7fffffu) +
        (((value >> shift) & 1u) == 0 && (value & ((UINT64_C(1) << shift) - 1)) != 0 ? 1u : 0u));
}

DAMACY__ALWAYS_INLINE float damacy__i64_to_f32_odd(int64_t value)
{
    const float magnitude =
        damacy__u64_to_f32_odd(value < 0 ? 0 - (uint64_t)value : (uint64_t)value);

    return value < 0 ? -magnitude : magnitude;
}

/* Widens; a signalling NaN becomes quiet, as the hardware has it. */
DAMACY__ALWAYS_INLINE double damacy__f32_to_f64(float value)
{
    const uint32_t bits = damacy__f32_bits(value);
    const uint32_t rest = bits & 0x7fffffffu;

    if (rest > 0x7f800000u) {
        return damacy__f64_of((uint64_t)(bits & 0x80000000u) << 32 | UINT64_C(0x7ff8000000000000) |
                              (uint64_t)(rest & 0x7fffffu) << 29);
    }
    return (double)value;
}

/* Truncates and clamps; limit is the first whole number above the range. */
#define DAMACY__F64_TO_INT(name, type, low, limit, high)                     \
    DAMACY__ALWAYS_INLINE type damacy__f64_to_##name(double value)           \
    {                                                                        \
        if ((damacy__f64_bits(value) << 1) > UINT64_C(0xffe0000000000000)) { \
            return 0;                                                        \
        }                                                                    \
        if (value >= (limit)) {                                              \
            return (high);                                                   \
        }                                                                    \
        return value <= (double)(low) ? (type)(low) : (type)(value);         \
    }
DAMACY__F64_TO_INT(u64, uint64_t, 0, 18446744073709551616.0, UINT64_MAX)
DAMACY__F64_TO_INT(i64, int64_t, INT64_MIN, 9223372036854775808.0, INT64_MAX)
#undef DAMACY__F64_TO_INT

/* A row function: S x is the source element, value the output element of type D. */
#define DAMACY__ROW_BODY(name, S, D, value)                                                  \
    DAMACY__ALWAYS_INLINE void damacy__row_body_##name(void* __restrict dst,                 \
                                                       const void* __restrict src, size_t n) \
    {                                                                                        \
        uint8_t* to = (uint8_t*)dst;                                                         \
        const uint8_t* from = (const uint8_t*)src;                                           \
        for (size_t i = 0; i < n; i++) {                                                     \
            S x;                                                                             \
            D y;                                                                             \
            memcpy(&x, from + i * sizeof x, sizeof x);                                       \
            y = (value);                                                                     \
            memcpy(to + i * sizeof y, &y, sizeof y);                                         \
        }                                                                                    \
    }
#define DAMACY__ROW(name, S, D, value)                                                             \
    DAMACY__ROW_BODY(name, S, D, value)                                                            \
    __attribute__((noinline)) static void damacy__row_##name(void* dst, const void* src, size_t n) \
    {                                                                                              \
        damacy__row_body_##name(dst, src, n);                                                      \
    }
/* The common ones: on x86-64 they have a second form below, elsewhere compilers see to it. */
#if DAMACY__X86
#define DAMACY__FAST_ROW(name, S, D, value) DAMACY__ROW(name, S, D, value)
#define DAMACY__WIDE(name)                  damacy__row_wide_##name
DAMACY__ALWAYS_INLINE bool damacy__cpu_is_wide(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}
#else
#define DAMACY__FAST_ROW(name, S, D, value)                                                \
    DAMACY__ROW_BODY(name, S, D, value)                                                    \
    DAMACY__VECTORIZE static void damacy__row_##name(void* dst, const void* src, size_t n) \
    {                                                                                      \
        damacy__row_body_##name(dst, src, n);                                              \
    }
#define DAMACY__WIDE(name) damacy__row_##name
DAMACY__ALWAYS_INLINE bool damacy__cpu_is_wide(void)
{
    return false;
}
#endif
#define DAMACY__NARROW(name) damacy__row_##name
#define DAMACY__PICK(name)   (damacy__cpu_is_wide() ? DAMACY__WIDE(name) : damacy__row_##name)

/* To f32: exact for the first five, rounded to nearest for the others. */
DAMACY__FAST_ROW(u8_f32, uint8_t, float, (float)(int32_t)x)
DAMACY__FAST_ROW(i8_f32, int8_t, float, (float)(int32_t)x)
DAMACY__FAST_ROW(u16_f32, uint16_t, float, (float)(int32_t)x)
DAMACY__FAST_ROW(i16_f32, int16_t, float, (float)(int32_t)x)
DAMACY__FAST_ROW(bf16_f32, uint16_t, float, damacy__bf16_to_f32(x))
DAMACY__FAST_ROW(i32_f32, int32_t, float, (float)x)
DAMACY__FAST_ROW(f64_f32, double, float, (float)x)
DAMACY__ROW(i64_f32, int64_t, float, (float)x)
DAMACY__ROW(u64_f32, uint64_t, float, (float)x)

/* To f32, rounded to odd. */
DAMACY__ROW(i64_odd, int64_t, float, damacy__i64_to_f32_odd(x))
DAMACY__ROW(u64_odd, uint64_t, float, damacy__u64_to_f32_odd(x))
DAMACY__ROW(f64_odd, double, float, damacy__f64_to_f32_odd(x))

DAMACY__FAST_ROW(f32_bf16, float, uint16_t, damacy__f32_to_bf16(x))
DAMACY__ROW(f32_f64, float, double, damacy__f32_to_f64(x))
DAMACY__ROW(i64_f64, int64_t, double, (double)x)
DAMACY__ROW(u64_f64, uint64_t, double, (double)x)

DAMACY__FAST_ROW(f16_f32, uint16_t, float, damacy__f16_to_f32(x))
DAMACY__FAST_ROW(f32_f16, float, uint16_t, damacy__f32_to_f16(x))

DAMACY__FAST_ROW(bool_bool, uint8_t, uint8_t, x != 0)
DAMACY__ROW(f64_bool, double, uint8_t, (damacy__f64_bits(x) << 1) != 0)
DAMACY__ROW(f64_i64, double, int64_t, damacy__f64_to_i64(x))
DAMACY__ROW(f64_u64, double, uint64_t, damacy__f64_to_u64(x))

/* To i64: exact but for the last, which clamps. */
DAMACY__ROW(u8_i64, uint8_t, int64_t, x)
DAMACY__ROW(u16_i64, uint16_t, int64_t, x)
DAMACY__ROW(u32_i64, uint32_t, int64_t, x)
DAMACY__ROW(i8_i64, int8_t, int64_t, x)
DAMACY__ROW(i16_i64, int16_t, int64_t, x)
DAMACY__ROW(i32_i64, int32_t, int64_t, x)
DAMACY__ROW(u64_i64, uint64_t, int64_t, x > INT64_MAX ? INT64_MAX : (int64_t)x)

#define DAMACY__CLAMP(type, low, high) \
    (x < (low) ? (type)(low) : x > (high) ? (type)(high) : (type)x)
DAMACY__ROW(i64_u8, int64_t, uint8_t, DAMACY__CLAMP(uint8_t, 0, UINT8_MAX))
DAMACY__ROW(i64_u16, int64_t, uint16_t, DAMACY__CLAMP(uint16_t, 0, UINT16_MAX))
DAMACY__ROW(i64_u32, int64_t, uint32_t, DAMACY__CLAMP(uint32_t, 0, (int64_t)UINT32_MAX))
DAMACY__ROW(i64_u64, int64_t, uint64_t, x < 0 ? 0 : (uint64_t)x)
DAMACY__ROW(i64_i8, int64_t, int8_t, DAMACY__CLAMP(int8_t, INT8_MIN, INT8_MAX))
DAMACY__ROW(i64_i16, int64_t, int16_t, DAMACY__CLAMP(int16_t, INT16_MIN, INT16_MAX))
DAMACY__ROW(i64_i32, int64_t, int32_t, DAMACY__CLAMP(int32_t, INT32_MIN, INT32_MAX))
DAMACY__ROW(i64_bool, int64_t, uint8_t, x != 0)
#undef DAMACY__CLAMP

DAMACY__FAST_ROW(swap2, uint16_t, uint16_t, __builtin_bswap16(x))
DAMACY__FAST_ROW(swap4, uint32_t, uint32_t, __builtin_bswap32(x))
DAMACY__FAST_ROW(swap8, uint64_t, uint64_t, __builtin_bswap64(x))

#if DAMACY__X86
typedef int64_t damacy__two_words __attribute__((vector_size(16)));
typedef int64_t damacy__four_words __attribute__((vector_size(32)));
typedef int32_t damacy__eight_ints __attribute__((vector_size(32)));
typedef float damacy__eight_floats __attribute__((vector_size(32)));

/* The same for AVX2, chosen at run time: blocks of `count` elements, x of type X, become y of type
 * Y, four blocks a turn; the last block may hold some elements once more. Instructions are named,
 * as compilers take several times as long to find them in a loop, and the upper halves of registers
 * are cleaned, which compilers do at -O2 alone. */
#define DAMACY__WIDE_ROW(name, S, D, count, X, Y, ...)                                            \
    DAMACY__TARGET_WIDE                                                                           \
    DAMACY__ALWAYS_INLINE void damacy__block_##name(uint8_t* dst, const uint8_t* src, size_t i)   \
    {                                                                                             \
        X x;                                                                                      \
        Y y;                                                                                      \
        memcpy(&x, src + i * sizeof(S), sizeof x);                                                \
        __VA_ARGS__                                                                               \
        memcpy(dst + i * sizeof(D), &y, sizeof y);                                                \
    }                                                                                             \
    DAMACY__TARGET_WIDE static void damacy__row_wide_##name(void* dst, const void* src, size_t n) \
    {                                                                                             \
        const uint8_t* from = (const uint8_t*)src;                                                \
        uint8_t* to = (uint8_t*)dst;                                                              \
        size_t i = 0;                                                                             \
        if (n < (count)) {                                                                        \
            damacy__row_##name(dst, src, n);                                                      \
            return;                                                                               \
        }                                                                                         \
        for (; n - i >= 4 * (count); i += 4 * (count)) {                                          \
            damacy__block_##name(to, from, i);                                                    \
            damacy__block_##name(to, from, i + (count));                                          \
            damacy__block_##name(to, from, i + 2 * (count));                                      \
            damacy__block_##name(to, from, i + 3 * (count));                                      \
        }                                                                                         \
        for (; i < n; i += (count)) {                                                             \
            damacy__block_##name(to, from, DAMACY__MIN(i, n - (count)));                          \
        }                                                                                         \
        __builtin_ia32_vzeroupper();                                                              \
    }
#define DAMACY__MAKE_Y(code, x) __asm__(code : "=x"(y) : "x"(x))

DAMACY__WIDE_ROW(u8_f32, uint8_t, float, 8, int64_t, damacy__eight_floats,
                 DAMACY__MAKE_Y("vpmovzxbd %1, %0\n\tvcvtdq2ps %0, %0", x);)
DAMACY__WIDE_ROW(i8_f32, int8_t, float, 8, int64_t, damacy__eight_floats,
                 DAMACY__MAKE_Y("vpmovsxbd %1, %0\n\tvcvtdq2ps %0, %0", x);)
DAMACY__WIDE_ROW(u16_f32, uint16_t, float, 8, damacy__two_words, damacy__eight_floats,
                 DAMACY__MAKE_Y("vpmovzxwd %1, %0\n\tvcvtdq2ps %0, %0", x);)
DAMACY__WIDE_ROW(i16_f32, int16_t, float, 8, damacy__two_words, damacy__eight_floats,
                 DAMACY__MAKE_Y("vpmovsxwd %1, %0\n\tvcvtdq2ps %0, %0", x);)
DAMACY__WIDE_ROW(i32_f32, int32_t, float, 8, damacy__eight_ints, damacy__eight_floats,
                 DAMACY__MAKE_Y("vcvtdq2ps %1, %0", x);)
DAMACY__WIDE_ROW(f64_f32, double, float, 4, damacy__four_words, damacy__two_words,
                 DAMACY__MAKE_Y("vcvtpd2psy %1, %0", x);)
DAMACY__WIDE_ROW(f16_f32, uint16_t, float, 8, damacy__two_words, damacy__eight_floats,
                 DAMACY__MAKE_Y("vcvtph2ps %1, %0", x);)
DAMACY__WIDE_ROW(f32_f16, float, uint16_t, 8, damacy__eight_floats, damacy__two_words,
                 DAMACY__MAKE_Y("vcvtps2ph $0, %1, %0", x);) /* 0: to nearest, ties to even */
DAMACY__WIDE_ROW(bf16_f32, uint16_t, float, 8, damacy__two_words, damacy__eight_ints,
                 DAMACY__MAKE_Y("vpmovzxwd %1, %0\n\tvpslld $16, %0, %0", x);
                 y |= ((y & 0x7fffffff) > 0x7f800000) & 0x400000;)
DAMACY__WIDE_ROW(f32_bf16, float, uint16_t, 8, damacy__eight_ints, damacy__two_words,
                 const damacy__eight_ints is_nan = (x & 0x7fffffff) > 0x7f800000;
                 const damacy__eight_ints high = (x >> 16) & 0xffff;
                 const damacy__eight_ints carry = ((x & 0xffff) + 0x7fff + (high & 1)) >> 16;
                 const damacy__eight_ints z = (high + (carry & ~is_nan)) | (is_nan & 0x40);
                 DAMACY__MAKE_Y("vpackusdw %1, %1, %t0\n\tvpermq $8, %t0, %t0", z);)
#undef DAMACY__MAKE_Y

#define DAMACY__WIDE_SAME(name, T, op, low, high)                                        \
    DAMACY__WIDE_ROW(name, T, T, 32 / sizeof(T), damacy__four_words, damacy__four_words, \
                     const damacy__four_words z = {low, high, low, high};                \
                     __asm__(op " %2, %1, %0"                                            \
                             : "=x"(y)                                                   \
                             : "x"(x), "x"(z));)
DAMACY__WIDE_SAME(bool_bool, uint8_t, "vpminub", 0x0101010101010101, 0x0101010101010101)
DAMACY__WIDE_SAME(swap2, uint16_t, "vpshufb", 0x0607040502030001, 0x0e0f0c0d0a0b0809)
DAMACY__WIDE_SAME(swap4, uint32_t, "vpshufb", 0x0405060700010203, 0x0c0d0e0f08090a0b)
DAMACY__WIDE_SAME(swap8, uint64_t, "vpshufb", 0x0001020304050607, 0x08090a0b0c0d0e0f)
#undef DAMACY__WIDE_SAME
#undef DAMACY__WIDE_ROW
#endif
