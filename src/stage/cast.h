/* Voxels of one type to voxels of another: the rules, and loops over contiguous rows.
 *
 * The rules; kernels/assemble.cu follows them bit for bit and tests/data/cast_cases.h holds
 * examples:
 *
 *   same type       bits untouched, signalling NaN included; but bool is always 0 or 1
 *   bool to any     a byte that is not 0 is 1
 *   any to bool     x != 0, so NaN is true and -0.0 is false
 *   int to int      clamped to the range of the output
 *   int to float    one rounding, to nearest, ties to even; too large is infinity
 *
 *   float to int    towards zero, then clamped; infinities clamp, NaN is 0
 *
 *   float to float  one rounding, to nearest, ties to even, subnormals kept, too large is infinity.
 *                   NaN stays NaN: its sign and the top bits of its payload are kept, the quiet bit
 *                   is set
 *
 *   byte order      a big-endian source is swapped first
 *
 *   fill            the fill value's bits, in the source type, go through the same conversion
 *
 * Scale and offset (float outputs only): the source goes to f32 by the rules above (bits untouched
 * if it is f32), is multiplied by the scale and rounded, the offset is added and rounded (never
 * fused; a missing scale is 1, a missing offset is 0.0, which turns -0.0 into 0.0), a NaN result
 * becomes 0x7fc00000, and the f32 goes to the output by the rules above.
 *
 * The surprising rule: there is no loop per pair of types. Rows pass through f32, f64, i64 or u64.
 * What f32 cannot hold exactly but must end as f16 or bf16 passes through f32 rounded to odd (the
 * last bit is set when anything was lost), so that the one rounding that counts is the last. NaN is
 * told by its bits, so that -ffast-math in the including program changes nothing. */
#pragma once
#include "base/error.h"

/* Converts n elements; src and dst are contiguous, of any alignment, and do not overlap. */
typedef void (*damacy__row)(void* dst, const void* src, size_t n);

/* The processor's own instructions, beside the plain loops; tests turn them off. */
#if defined(__x86_64__) && !defined(DAMACY__PORTABLE)
#define DAMACY__X86 1
#else
#define DAMACY__X86 0
#endif

#define DAMACY__INLINE static inline __attribute__((always_inline))
#if defined(__GNUC__) && !defined(__clang__)
#define DAMACY__VECTORIZE __attribute__((optimize("O3"))) /* -O2 leaves such loops scalar */
#else
#define DAMACY__VECTORIZE
#endif

DAMACY__INLINE uint32_t damacy__f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DAMACY__INLINE float damacy__f32_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

DAMACY__INLINE uint64_t damacy__f64_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DAMACY__INLINE double damacy__f64_of(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Picks by masks: a branch around float operations would keep loops scalar. */
DAMACY__INLINE uint32_t damacy__select(bool condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)condition;

    return (yes & mask) | (no & ~mask);
}

DAMACY__INLINE float damacy__f16_to_f32(uint16_t half)
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

DAMACY__INLINE uint16_t damacy__f32_to_f16(float value)
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

DAMACY__INLINE float damacy__bf16_to_f32(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;

    return damacy__f32_of(bits | damacy__select((bits & 0x7fffffffu) > 0x7f800000u, 0x400000u, 0u));
}

DAMACY__INLINE uint16_t damacy__f32_to_bf16(float value)
{
    const uint32_t bits = damacy__f32_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40u;

    return (uint16_t)damacy__select((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded);
}

/* Rounds to odd: the smaller magnitude, with the last bit set when anything was lost. */
DAMACY__INLINE float damacy__f64_to_f32_odd(double value)
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

DAMACY__INLINE float damacy__u64_to_f32_odd(uint64_t value)
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

DAMACY__INLINE float damacy__i64_to_f32_odd(int64_t value)
{
    const float magnitude =
        damacy__u64_to_f32_odd(value < 0 ? 0 - (uint64_t)value : (uint64_t)value);

    return value < 0 ? -magnitude : magnitude;
}

/* Widens; a signalling NaN becomes quiet, as the hardware has it. */
DAMACY__INLINE double damacy__f32_to_f64(float value)
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
    DAMACY__INLINE type damacy__f64_to_##name(double value)                  \
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
#define DAMACY__ROW_BODY(name, S, D, value)                                           \
    DAMACY__INLINE void damacy__row_body_##name(void* dst, const void* src, size_t n) \
    {                                                                                 \
        uint8_t* to = (uint8_t*)dst;                                                  \
        const uint8_t* from = (const uint8_t*)src;                                    \
        for (size_t i = 0; i < n; i++) {                                              \
            S x;                                                                      \
            D y;                                                                      \
            memcpy(&x, from + i * sizeof x, sizeof x);                                \
            y = (value);                                                              \
            memcpy(to + i * sizeof y, &y, sizeof y);                                  \
        }                                                                             \
    }
#define DAMACY__ROW(name, S, D, value)                                   \
    DAMACY__ROW_BODY(name, S, D, value)                                  \
    static void damacy__row_##name(void* dst, const void* src, size_t n) \
    {                                                                    \
        damacy__row_body_##name(dst, src, n);                            \
    }
/* The common ones, on x86-64 once more as vector code for AVX2, which is chosen at run time. */
#if DAMACY__X86
#define DAMACY__FAST_ROW(name, S, D, value)                                                \
    DAMACY__ROW(name, S, D, value)                                                         \
    DAMACY__VECTORIZE __attribute__((target("avx2"))) static void damacy__row_wide_##name( \
        void* dst, const void* src, size_t n)                                              \
    {                                                                                      \
        damacy__row_body_##name(dst, src, n);                                              \
    }
#define DAMACY__WIDE(name) damacy__row_wide_##name
DAMACY__INLINE bool damacy__cpu_is_wide(void)
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
DAMACY__INLINE bool damacy__cpu_is_wide(void)
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

#if DAMACY__X86
DAMACY__ROW(f16_f32, uint16_t, float, damacy__f16_to_f32(x))
DAMACY__ROW(f32_f16, float, uint16_t, damacy__f32_to_f16(x))

/* The processor's own conversions keep the same rules. Every one with AVX2 has them. */
typedef int16_t damacy__eight_halves __attribute__((vector_size(16)));
typedef float damacy__eight_floats __attribute__((vector_size(32)));

__attribute__((target("avx2,f16c"))) static void damacy__row_wide_f16_f32(void* dst,
                                                                          const void* src, size_t n)
{
    size_t i = 0;

    for (; n - i >= 8; i += 8) {
        damacy__eight_halves x;
        damacy__eight_floats y;
        memcpy(&x, (const uint8_t*)src + 2 * i, sizeof x);
        y = __builtin_ia32_vcvtph2ps256(x);
        memcpy((uint8_t*)dst + 4 * i, &y, sizeof y);
    }
    __builtin_ia32_vzeroupper(); /* compilers leave it out before a tail call */
    damacy__row_f16_f32((uint8_t*)dst + 4 * i, (const uint8_t*)src + 2 * i, n - i);
}

__attribute__((target("avx2,f16c"))) static void damacy__row_wide_f32_f16(void* dst,
                                                                          const void* src, size_t n)
{
    size_t i = 0;

    for (; n - i >= 8; i += 8) {
        damacy__eight_floats x;
        damacy__eight_halves y;
        memcpy(&x, (const uint8_t*)src + 4 * i, sizeof x);
        y = __builtin_ia32_vcvtps2ph256(x, 0); /* 0: to nearest, ties to even */
        memcpy((uint8_t*)dst + 2 * i, &y, sizeof y);
    }
    __builtin_ia32_vzeroupper();
    damacy__row_f32_f16((uint8_t*)dst + 2 * i, (const uint8_t*)src + 4 * i, n - i);
}
#else
DAMACY__FAST_ROW(f16_f32, uint16_t, float, damacy__f16_to_f32(x))
DAMACY__FAST_ROW(f32_f16, float, uint16_t, damacy__f32_to_f16(x))
#endif

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

enum { DAMACY__CAST_STEPS = 4 };

/* A conversion: the output of each step is the source of the next. No step: bits are copied. */
typedef struct damacy__cast {
    damacy__row steps[DAMACY__CAST_STEPS];
    uint32_t sizes[DAMACY__CAST_STEPS]; /* bytes per element after each step */
    uint32_t n_steps;
    uint32_t src_size; /* bytes per element */
    uint32_t out_size;
} damacy__cast;

static void damacy__cast_choose(damacy__cast* cast, damacy_dtype src, damacy_dtype out);
static void damacy__cast_choose_f32(damacy__cast* cast, damacy_dtype src);
static void damacy__cast_choose_from_f32(damacy__cast* cast, damacy_dtype out);

/* Bytes per element. */
static uint32_t damacy__cast_size(damacy_dtype dtype)
{
    static const uint8_t sizes[DAMACY_NATIVE] = {4, 2, 2, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

    return sizes[dtype];
}

static inline void damacy__cast_add(damacy__cast* cast, damacy__row row, uint32_t size)
{
    assert(row && cast->n_steps < DAMACY__CAST_STEPS);
    cast->steps[cast->n_steps] = row;
    cast->sizes[cast->n_steps++] = size;
}

static inline bool damacy__cast_is_float(damacy_dtype dtype)
{
    return dtype <= DAMACY_F64;
}

/* Tables in the order of damacy_dtype: f32 bf16 f16 f64, u8 u16 u32 u64, i8 i16 i32 i64, bool. */

/* To f32 in one step; NULL: f32 itself, and what goes through i64 or u8. */
static damacy__row damacy__row_to_f32(damacy_dtype src)
{
#define DAMACY__TABLE(P)                                                                      \
    {                                                                                         \
        NULL, P(bf16_f32), P(f16_f32), P(f64_f32), P(u8_f32), P(u16_f32), NULL,               \
            damacy__row_u64_f32, P(i8_f32), P(i16_f32), P(i32_f32), damacy__row_i64_f32, NULL \
    }
    static const damacy__row rows[2][DAMACY_NATIVE] = {DAMACY__TABLE(DAMACY__NARROW),
                                                       DAMACY__TABLE(DAMACY__WIDE)};
#undef DAMACY__TABLE

    return rows[damacy__cpu_is_wide()][src];
}

/* To i64; NULL for i64 itself and for floats. bool has become 0 or 1 before. */
static damacy__row damacy__row_to_i64(damacy_dtype src)
{
    static const damacy__row rows[DAMACY_NATIVE] = {NULL,
                                                    NULL,
                                                    NULL,
                                                    NULL,
                                                    damacy__row_u8_i64,
                                                    damacy__row_u16_i64,
                                                    damacy__row_u32_i64,
                                                    damacy__row_u64_i64,
                                                    damacy__row_i8_i64,
                                                    damacy__row_i16_i64,
                                                    damacy__row_i32_i64,
                                                    NULL,
                                                    damacy__row_u8_i64};

    return rows[src];
}

/* From i64 to a narrower whole number, u64 or bool; NULL for i64 itself and for floats. */
static damacy__row damacy__row_from_i64(damacy_dtype out)
{
    static const damacy__row rows[DAMACY_NATIVE] = {NULL,
                                                    NULL,
                                                    NULL,
                                                    NULL,
                                                    damacy__row_i64_u8,
                                                    damacy__row_i64_u16,
                                                    damacy__row_i64_u32,
                                                    damacy__row_i64_u64,
                                                    damacy__row_i64_i8,
                                                    damacy__row_i64_i16,
                                                    damacy__row_i64_i32,
                                                    NULL,
                                                    damacy__row_i64_bool};

    return rows[out];
}

/* Reverses the bytes of elements of 2, 4 or 8 bytes. */
static damacy__row damacy__row_swap(uint32_t size)
{
    return size == 2 ? DAMACY__PICK(swap2) : size == 4 ? DAMACY__PICK(swap4) : DAMACY__PICK(swap8);
}

/* Starts a conversion that first goes to f32, rounded to nearest. */
static void damacy__cast_choose_f32(damacy__cast* cast, damacy_dtype src)
{
    damacy_dtype from = src;

    memset(cast, 0, sizeof *cast);
    cast->src_size = damacy__cast_size(src);
    cast->out_size = sizeof(float);
    if (src == DAMACY_BOOL) {
        damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
        from = DAMACY_U8;
    } else if (src == DAMACY_U32) {
        damacy__cast_add(cast, damacy__row_u32_i64, 8);
        from = DAMACY_I64;
    }
    if (from != DAMACY_F32) {
        damacy__cast_add(cast, damacy__row_to_f32(from), sizeof(float));
    }
}

/* Adds the step from f32 to a float output. */
static void damacy__cast_choose_from_f32(damacy__cast* cast, damacy_dtype out)
{
    cast->out_size = damacy__cast_size(out);
    if (out == DAMACY_F16) {
        damacy__cast_add(cast, DAMACY__PICK(f32_f16), 2);
    } else if (out == DAMACY_BF16) {
        damacy__cast_add(cast, DAMACY__PICK(f32_bf16), 2);
    } else if (out == DAMACY_F64) {
        damacy__cast_add(cast, damacy__row_f32_f64, 8);
    }
}

/* Whole numbers and bool among each other: all through i64. */
static void damacy__cast_choose_int(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    if (src == DAMACY_BOOL) {
        damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
    }
    if (src != DAMACY_I64) {
        damacy__cast_add(cast, damacy__row_to_i64(src), 8);
    }
    if (out != DAMACY_I64) {
        damacy__cast_add(cast, damacy__row_from_i64(out), cast->out_size);
    }
}

/* Floats to whole numbers: f64, then u64, or i64 and narrower. */
static void damacy__cast_choose_truncate(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    if (src != DAMACY_F64) {
        damacy__cast_choose_f32(cast, src);
        damacy__cast_add(cast, damacy__row_f32_f64, 8);
    }
    cast->out_size = damacy__cast_size(out);
    if (out == DAMACY_BOOL) {
        damacy__cast_add(cast, damacy__row_f64_bool, 1);
    } else if (out == DAMACY_U64) {
        damacy__cast_add(cast, damacy__row_f64_u64, 8);
    } else {
        damacy__cast_add(cast, damacy__row_f64_i64, 8);
        if (out != DAMACY_I64) {
            damacy__cast_add(cast, damacy__row_from_i64(out), cast->out_size);
        }
    }
}

/* What f32 does not hold exactly, to another float than f32. False: it does hold the source. */
static bool damacy__cast_choose_wide(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    const bool is_narrow = out != DAMACY_F64;

    if (src == DAMACY_I32 || src == DAMACY_U32) {
        damacy__cast_add(cast, damacy__row_to_i64(src), 8);
    } else if (src != DAMACY_I64 && src != DAMACY_U64 && src != DAMACY_F64) {
        return false;
    }
    if (src == DAMACY_F64) {
        damacy__cast_add(cast, damacy__row_f64_odd, sizeof(float));
    } else if (src == DAMACY_U64) {
        damacy__cast_add(cast, is_narrow ? damacy__row_u64_odd : damacy__row_u64_f64,
                         is_narrow ? sizeof(float) : sizeof(double));
    } else {
        damacy__cast_add(cast, is_narrow ? damacy__row_i64_odd : damacy__row_i64_f64,
                         is_narrow ? sizeof(float) : sizeof(double));
    }
    if (is_narrow) {
        damacy__cast_choose_from_f32(cast, out);
    }
    return true;
}

/* Chooses the steps; neither type is DAMACY_NATIVE. */
static void damacy__cast_choose(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    memset(cast, 0, sizeof *cast);
    cast->src_size = damacy__cast_size(src);
    cast->out_size = damacy__cast_size(out);
    if (src == out) {
        if (src == DAMACY_BOOL) {
            damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
        }
    } else if (!damacy__cast_is_float(out)) {
        if (damacy__cast_is_float(src)) {
            damacy__cast_choose_truncate(cast, src, out);
        } else {
            damacy__cast_choose_int(cast, src, out);
        }
    } else if (out == DAMACY_F32 || !damacy__cast_choose_wide(cast, src, out)) {
        damacy__cast_choose_f32(cast, src);
        damacy__cast_choose_from_f32(cast, out);
    }
}
