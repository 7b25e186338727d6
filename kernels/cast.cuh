// Converts one voxel, bit for bit as src/stage/cast.h says. A voxel travels as its bits, in 32 bits
// or, for types of 8 bytes, in 64. Every source first becomes a number of one of five kinds, which
// hold it exactly; the output is rounded once, from there.
#pragma once

#include "kernels/warp.cuh"

enum { // damacy_dtype
    DAMACY__TYPE_F32 = 0,
    DAMACY__TYPE_BF16 = 1,
    DAMACY__TYPE_F16 = 2,
    DAMACY__TYPE_F64 = 3,
    DAMACY__TYPE_U8 = 4,
    DAMACY__TYPE_U16 = 5,
    DAMACY__TYPE_U32 = 6,
    DAMACY__TYPE_U64 = 7,
    DAMACY__TYPE_I8 = 8,
    DAMACY__TYPE_I16 = 9,
    DAMACY__TYPE_I32 = 10,
    DAMACY__TYPE_I64 = 11,
    DAMACY__TYPE_BOOL = 12,
    DAMACY__TYPES = 13
};

enum {                    // kinds of number
    DAMACY__KIND_I32 = 0, // i8, i16, i32, u8, u16, bool
    DAMACY__KIND_I64 = 1, // i64, u32
    DAMACY__KIND_U64 = 2,
    DAMACY__KIND_F32 = 3, // f32, f16, bf16, as the bits of an f32
    DAMACY__KIND_F64 = 4
};

#ifdef __CUDACC__
#define DAMACY__CONSTEXPR static __device__ constexpr
#else
#define DAMACY__CONSTEXPR static constexpr
#endif

DAMACY__CONSTEXPR uint32_t damacy__type_size(uint32_t type)
{
    return type == DAMACY__TYPE_U8 || type == DAMACY__TYPE_I8 || type == DAMACY__TYPE_BOOL ? 1
           : type == DAMACY__TYPE_U16 || type == DAMACY__TYPE_I16 || type == DAMACY__TYPE_F16 ||
                   type == DAMACY__TYPE_BF16
               ? 2
           : type == DAMACY__TYPE_U64 || type == DAMACY__TYPE_I64 || type == DAMACY__TYPE_F64 ? 8
                                                                                              : 4;
}

DAMACY__CONSTEXPR bool damacy__type_is_float(uint32_t type)
{
    return type <= DAMACY__TYPE_F64;
}

DAMACY__CONSTEXPR uint32_t damacy__type_kind(uint32_t type)
{
    return type == DAMACY__TYPE_F64                               ? DAMACY__KIND_F64
           : type <= DAMACY__TYPE_F16                             ? DAMACY__KIND_F32
           : type == DAMACY__TYPE_U64                             ? DAMACY__KIND_U64
           : type == DAMACY__TYPE_U32 || type == DAMACY__TYPE_I64 ? DAMACY__KIND_I64
                                                                  : DAMACY__KIND_I32;
}

// ---- reinterpretation ----
DAMACY__INLINE float damacy__as_f32(uint32_t bits)
{
    return __uint_as_float(bits);
}
DAMACY__INLINE uint32_t damacy__of_f32(float value)
{
    return __float_as_uint(value);
}
DAMACY__INLINE double damacy__as_f64(uint64_t bits)
{
    return __longlong_as_double((long long)bits);
}
DAMACY__INLINE uint64_t damacy__of_f64(double value)
{
    return (uint64_t)__double_as_longlong(value);
}

// ---- floats to floats, NaN by hand: the hardware makes them all one ----
DAMACY__INLINE uint32_t damacy__half_to_f32(uint32_t half)
{
    const uint32_t rest = half & 0x7fffu;
    const uint32_t normal = (rest << 13) + (112u << 23);
    const uint32_t subnormal = damacy__of_f32((float)(int32_t)rest * 5.9604644775390625e-8f);
    const uint32_t finite = rest < 0x400u ? subnormal : normal;
    const uint32_t special = 0x7f800000u | rest << 13 | (rest > 0x7c00u ? 0x400000u : 0u);
    return (half & 0x8000u) << 16 | (rest >= 0x7c00u ? special : finite);
}

DAMACY__INLINE uint32_t damacy__f32_to_half(uint32_t bits)
{
    const uint32_t rest = bits & 0x7fffffffu;
    const uint32_t nan = (bits >> 16 & 0x8000u) | 0x7e00u | (rest >> 13 & 0x3ffu);
#ifdef __CUDACC__
    uint16_t rounded;
    asm("cvt.rn.f16.f32 %0,%1;" : "=h"(rounded) : "f"(damacy__as_f32(bits)));
    return rest > 0x7f800000u ? nan : (uint32_t)rounded;
#else
    const uint32_t normal = (rest + 0xfffu + (rest >> 13 & 1u) - (112u << 23)) >> 13;
    // 0.5 has the ulp of a subnormal half: the sum's mantissa is the rounded result
    const uint32_t subnormal = damacy__of_f32(damacy__as_f32(rest) + 0.5f) - 0x3f000000u;
    const uint32_t finite = rest < 0x38800000u ? subnormal : normal;
    const uint32_t bounded = rest >= 0x47800000u ? 0x7c00u : finite;
    return rest > 0x7f800000u ? nan : (bits >> 16 & 0x8000u) | bounded;
#endif
}

DAMACY__INLINE uint32_t damacy__bfloat_to_f32(uint32_t bfloat)
{
    const uint32_t bits = bfloat << 16;
    return bits | ((bits & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0u);
}

DAMACY__INLINE uint32_t damacy__f32_to_bfloat(uint32_t bits)
{
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded;
}

DAMACY__INLINE uint64_t damacy__f32_to_double(uint32_t bits)
{
    const uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint64_t)(bits & 0x80000000u) << 32 | 0x7ff8000000000000ull |
               (uint64_t)(rest & 0x7fffffu) << 29;
    return damacy__of_f64((double)damacy__as_f32(bits));
}

DAMACY__INLINE uint32_t damacy__double_to_f32(uint64_t bits)
{
    if (bits << 1 > 0xffe0000000000000ull)
        return (uint32_t)(bits >> 32 & 0x80000000u) | 0x7fc00000u |
               ((uint32_t)(bits >> 29) & 0x3fffffu);
    return damacy__of_f32((float)damacy__as_f64(bits));
}

// ---- rounding to odd: the smaller magnitude, with the last bit set when anything was lost ----
DAMACY__INLINE uint32_t damacy__double_to_f32_odd(uint64_t bits)
{
    const uint64_t mantissa = bits & 0xfffffffffffffull;
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
        const uint64_t whole = mantissa | 1ull << 52;
        const uint32_t shift = (uint32_t)(30 - exponent);
        rest = (uint32_t)(whole >> shift) | ((whole & ((1ull << shift) - 1)) != 0 ? 1u : 0u);
    } else {
        rest = bits << 1 != 0 ? 1u : 0u;
    }
    return sign | rest;
}

DAMACY__INLINE uint32_t damacy__u64_to_f32_odd(uint64_t value)
{
    if (value < 1u << 24)
        return damacy__of_f32((float)(int32_t)value);
    const uint32_t high = (uint32_t)(value >> 32);
    const uint32_t zeros = high ? damacy__clz(high) : 32 + damacy__clz((uint32_t)value);
    const uint32_t shift = 40u - zeros;
    const bool is_even = (value >> shift & 1) == 0;
    const bool is_lossy = (value & ((1ull << shift) - 1)) != 0;
    return ((shift + 23u + 127u) << 23) + ((uint32_t)(value >> shift) & 0x7fffffu) +
           (is_even && is_lossy ? 1u : 0u);
}

DAMACY__INLINE uint32_t damacy__i64_to_f32_odd(int64_t value)
{
    return value < 0 ? 0x80000000u | damacy__u64_to_f32_odd(0 - (uint64_t)value)
                     : damacy__u64_to_f32_odd((uint64_t)value);
}

// ---- a source to its number ----

// The number of a 32-bit source (kinds I32 and F32), and of any source, widened to 64 bits.
template <uint32_t S> DAMACY__INLINE uint32_t damacy__number32(uint32_t raw)
{
    if constexpr (S == DAMACY__TYPE_F16)
        return damacy__half_to_f32(raw);
    else if constexpr (S == DAMACY__TYPE_BF16)
        return damacy__bfloat_to_f32(raw);
    else if constexpr (S == DAMACY__TYPE_I8)
        return (uint32_t)(int32_t)(int8_t)raw;
    else if constexpr (S == DAMACY__TYPE_I16)
        return (uint32_t)(int32_t)(int16_t)raw;
    else if constexpr (S == DAMACY__TYPE_BOOL)
        return raw != 0;
    else
        return raw;
}

// ---- a number to an output ----

// Truncates towards zero and clamps; NaN is 0. limit is the first whole number above the range.
template <class T> DAMACY__INLINE T damacy__truncate(double value, double low, double limit, T high)
{
    if (damacy__of_f64(value) << 1 > 0xffe0000000000000ull)
        return 0;
    if (value >= limit)
        return high;
    return value <= low ? (T)low : (T)value;
}

template <class T> DAMACY__INLINE T damacy__truncate32(float value, float low, float limit, T high)
{
    if ((damacy__of_f32(value) & 0x7fffffffu) > 0x7f800000u)
        return 0;
    if (value >= limit)
        return high;
    return value <= low ? (T)low : (T)value;
}

template <uint32_t K> DAMACY__INLINE uint64_t damacy__number_to_int(uint64_t x, uint32_t out)
{
    // ranges of u8 ... i64, in the order of damacy_dtype
    const bool is_signed = out >= DAMACY__TYPE_I8;
    const uint32_t bits = 8 * damacy__type_size(out);
    const uint64_t most = ~0ull >> (64 - bits + (is_signed ? 1 : 0));
    const int64_t least = is_signed ? -(int64_t)most - 1 : 0;
    if constexpr (K == DAMACY__KIND_I32 || K == DAMACY__KIND_I64) {
        const int64_t v = K == DAMACY__KIND_I32 ? (int64_t)(int32_t)(uint32_t)x : (int64_t)x;
        if (v < least)
            return (uint64_t)least;
        return v > 0 && (uint64_t)v > most ? most : (uint64_t)v;
    } else if constexpr (K == DAMACY__KIND_U64) {
        return x > most ? most : x;
    } else if constexpr (K == DAMACY__KIND_F32) {
        const float v = damacy__as_f32((uint32_t)x),
                    limit = (float)most + (bits < 24 ? 1.0f : 0.0f);
        if (is_signed)
            return (uint64_t)damacy__truncate32<int64_t>(v, (float)least, limit, (int64_t)most);
        return damacy__truncate32<uint64_t>(v, 0.0f, limit, most);
    } else {
        const double v = damacy__as_f64(x), limit = (double)most + (bits < 53 ? 1.0 : 0.0);
        if (is_signed)
            return (uint64_t)damacy__truncate<int64_t>(v, (double)least, limit, (int64_t)most);
        return damacy__truncate<uint64_t>(v, 0.0, limit, most);
    }
}

// To the bits of an f32: to nearest, or to odd for what will be rounded once more.
template <uint32_t K, bool ODD> DAMACY__INLINE uint32_t damacy__number_to_f32(uint64_t x)
{
    if constexpr (K == DAMACY__KIND_F32) {
        return (uint32_t)x;
    } else if constexpr (ODD) {
        if constexpr (K == DAMACY__KIND_F64)
            return damacy__double_to_f32_odd(x);
        else if constexpr (K == DAMACY__KIND_U64)
            return damacy__u64_to_f32_odd(x);
        else
            return damacy__i64_to_f32_odd(K == DAMACY__KIND_I32 ? (int64_t)(int32_t)(uint32_t)x
                                                                : (int64_t)x);
    } else {
        if constexpr (K == DAMACY__KIND_F64)
            return damacy__double_to_f32(x);
        else if constexpr (K == DAMACY__KIND_U64)
            return damacy__of_f32((float)x);
        else if constexpr (K == DAMACY__KIND_I64)
            return damacy__of_f32((float)(int64_t)x);
        else
            return damacy__of_f32((float)(int32_t)(uint32_t)x);
    }
}

// The bits of an f32 to a float output.
DAMACY__INLINE uint64_t damacy__f32_to_out(uint32_t bits, uint32_t out)
{
    if (out == DAMACY__TYPE_F16)
        return damacy__f32_to_half(bits);
    if (out == DAMACY__TYPE_BF16)
        return damacy__f32_to_bfloat(bits);
    if (out == DAMACY__TYPE_F64)
        return damacy__f32_to_double(bits);
    return bits;
}

// A number of kind K to the bits of an output of another type than the source.
template <uint32_t K> DAMACY__INLINE uint64_t damacy__number_to_out(uint64_t x, uint32_t out)
{
    if (out == DAMACY__TYPE_BOOL) {
        if (K == DAMACY__KIND_F32)
            return (uint32_t)x << 1 != 0;
        return K == DAMACY__KIND_F64 ? x << 1 != 0 : x != 0;
    }
    if (!damacy__type_is_float(out))
        return damacy__number_to_int<K>(x, out);
    if (out == DAMACY__TYPE_F64) {
        if constexpr (K == DAMACY__KIND_F64)
            return x;
        else if constexpr (K == DAMACY__KIND_F32)
            return damacy__f32_to_double((uint32_t)x);
        else if constexpr (K == DAMACY__KIND_U64)
            return damacy__of_f64((double)x);
        else if constexpr (K == DAMACY__KIND_I64)
            return damacy__of_f64((double)(int64_t)x);
        else
            return damacy__of_f64((double)(int32_t)(uint32_t)x);
    }
    if (out == DAMACY__TYPE_F32)
        return damacy__number_to_f32<K, false>(x);
    return damacy__f32_to_out(damacy__number_to_f32<K, true>(x), out);
}

// ---- a voxel ----

// Scale and offset of one voxel: an f32 times scale, rounded, plus offset, rounded.
typedef struct damacy__linear {
    float scale;
    float offset;
} damacy__linear;

DAMACY__INLINE uint32_t damacy__apply(uint32_t bits, damacy__linear linear)
{
    const float scaled = __fmul_rn(damacy__as_f32(bits), linear.scale);
    const uint32_t r = damacy__of_f32(__fadd_rn(scaled, linear.offset));
    return (r & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : r;
}

// The bits of a voxel of type S, in the low bytes of raw, to those of type `out`.
template <uint32_t S> DAMACY__INLINE uint64_t damacy__convert(uint64_t raw, uint32_t out)
{
    constexpr uint32_t K = damacy__type_kind(S);
    if (S == out)
        return S == DAMACY__TYPE_BOOL ? (uint64_t)(raw != 0) : raw;
    if constexpr (K == DAMACY__KIND_I32 || K == DAMACY__KIND_F32) {
        // what fits 16 bits is exact in f32: no rounding to odd
        if (damacy__type_size(S) <= 2 && damacy__type_is_float(out) && out != DAMACY__TYPE_F64)
            return damacy__f32_to_out(
                damacy__number_to_f32<K, false>(damacy__number32<S>((uint32_t)raw)), out);
        return damacy__number_to_out<K>(damacy__number32<S>((uint32_t)raw), out);
    } else {
        return damacy__number_to_out<K>(raw, out);
    }
}

template <uint32_t S>
DAMACY__INLINE uint64_t damacy__convert_linear(uint64_t raw, uint32_t out, damacy__linear linear)
{
    constexpr uint32_t K = damacy__type_kind(S);
    uint32_t bits;
    if constexpr (K == DAMACY__KIND_I32 || K == DAMACY__KIND_F32)
        bits = damacy__number_to_f32<K, false>(damacy__number32<S>((uint32_t)raw));
    else
        bits = damacy__number_to_f32<K, false>(raw);
    return damacy__f32_to_out(damacy__apply(bits, linear), out);
}
