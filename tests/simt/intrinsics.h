// CUDA device functions that concern one thread only, for tests/simt/simt.h: bits, atomics, cache
// hints, reinterpretation, arithmetic with fixed rounding. Results are those of the GPU, bit for
// bit.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

// ---- bits ----

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline unsigned __brev(unsigned x)
{
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
static inline unsigned long long __brevll(unsigned long long x)
{
    return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s)
{
    return (unsigned)((((unsigned long long)hi << 32 | lo) << (s & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s)
{
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (s & 31));
}
static inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned s)
{
    return s >= 32 ? lo : __funnelshift_l(lo, hi, s);
}
static inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned s)
{
    return s >= 32 ? hi : __funnelshift_r(lo, hi, s);
}
// Bit 3 of a selector is ignored here, as the CUDA function documents; prmt.b32 repeats the sign.
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select)
{
    const unsigned long long v = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (unsigned i = 0; i < 4; i++)
        r |= (unsigned)(v >> (8 * (select >> (4 * i) & 7)) & 255) << (8 * i);
    return r;
}

// ---- integers ----

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline int __mulhi(int a, int b)
{
    return (int)((long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(__extension__(unsigned __int128) a * b >> 64);
}
static inline int __mul24(int a, int b)
{
    const long long x = (int)((unsigned)a << 8) >> 8, y = (int)((unsigned)b << 8) >> 8;
    return (int)(x * y);
}
static inline unsigned __umul24(unsigned a, unsigned b)
{
    return (a & 0xffffffu) * (b & 0xffffffu);
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (unsigned i = 0; i < 32; i += 8)
        c += (a >> i & 255) * (b >> i & 255);
    return c;
}
static inline int __dp4a(int a, int b, int c)
{
    unsigned sum = (unsigned)c;
    for (unsigned i = 0; i < 32; i += 8)
        sum +=
            (unsigned)((int)(signed char)((unsigned)a >> i) * (int)(signed char)((unsigned)b >> i));
    return (int)sum;
}
static inline unsigned __sad(int a, int b, unsigned c)
{
    return (a > b ? (unsigned)a - (unsigned)b : (unsigned)b - (unsigned)a) + c;
}
static inline unsigned __usad(unsigned a, unsigned b, unsigned c)
{
    return (a > b ? a - b : b - a) + c;
}
#define SIMT_MIN_MAX(type)                 \
    static inline type min(type a, type b) \
    {                                      \
        return b < a ? b : a;              \
    }                                      \
    static inline type max(type a, type b) \
    {                                      \
        return a < b ? b : a;              \
    }
SIMT_MIN_MAX(int)
SIMT_MIN_MAX(unsigned)
SIMT_MIN_MAX(long)
SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long)
SIMT_MIN_MAX(unsigned long long)
#undef SIMT_MIN_MAX

// ---- floating point ----

template <class To, class From> static inline To simt_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __uint_as_float(unsigned x)
{
    return simt_bits<float>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return simt_bits<unsigned>(x);
}
static inline float __int_as_float(int x)
{
    return simt_bits<float>(x);
}
static inline int __float_as_int(float x)
{
    return simt_bits<int>(x);
}
static inline double __longlong_as_double(long long x)
{
    return simt_bits<double>(x);
}
static inline long long __double_as_longlong(double x)
{
    return simt_bits<long long>(x);
}
// volatile: never contracted into one rounding
static inline float __fadd_rn(float a, float b)
{
    volatile float r = a + b;
    return r;
}
static inline float __fsub_rn(float a, float b)
{
    volatile float r = a - b;
    return r;
}
static inline float __fmul_rn(float a, float b)
{
    volatile float r = a * b;
    return r;
}
static inline float __fdiv_rn(float a, float b)
{
    volatile float r = a / b;
    return r;
}
static inline double __dadd_rn(double a, double b)
{
    volatile double r = a + b;
    return r;
}
static inline double __dmul_rn(double a, double b)
{
    volatile double r = a * b;
    return r;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}
static inline double __fma_rn(double a, double b, double c)
{
    return std::fma(a, b, c);
}
static inline float __double2float_rn(double x)
{
    return (float)x;
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __ull2float_rn(unsigned long long x)
{
    return (float)x;
}
static inline float __ll2float_rn(long long x)
{
    return (float)x;
}
// Conversions of the GPU saturate and turn NaN into 0 (32 bits) instead of being undefined.
static inline unsigned __float2uint_rz(float x)
{
    return x >= 4294967296.0f ? 0xffffffffu : x > 0.0f ? (unsigned)x : 0u;
}
static inline int __float2int_rz(float x)
{
    return x >= 2147483648.0f    ? 0x7fffffff
           : x >= -2147483648.0f ? (int)x
           : x < 0               ? -0x7fffffff - 1
                                 : 0;
}
static inline int __float2int_rn(float x)
{
    return __float2int_rz(std::nearbyint(x));
}
static inline unsigned __float2uint_rn(float x)
{
    return __float2uint_rz(std::nearbyint(x));
}

// ---- memory ----

#define SIMT_LOAD(name)                                 \
    template <class T> static inline T name(const T* p) \
    {                                                   \
        return *p;                                      \
    }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldlu)
SIMT_LOAD(__ldcv)
#undef SIMT_LOAD
template <class T> static inline void __stcs(T* p, T v)
{
    *p = v;
}
template <class T> static inline void __stcg(T* p, T v)
{
    *p = v;
}
template <class T> static inline void __stwb(T* p, T v)
{
    *p = v;
}
template <class T> static inline void __stwt(T* p, T v)
{
    *p = v;
}
static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Truly atomic: launches of several host threads may touch the same device memory.
#define SIMT_ATOMIC(name, expression)                                                \
    template <class T, class V> static inline T name(T* p, V value)                  \
    {                                                                                \
        const T v = (T)value;                                                        \
        T old, next;                                                                 \
        __atomic_load(p, &old, __ATOMIC_RELAXED);                                    \
        do {                                                                         \
            next = (T)(expression);                                                  \
        } while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, \
                                            __ATOMIC_RELAXED));                      \
        return old;                                                                  \
    }
SIMT_ATOMIC(atomicAdd, old + v)
SIMT_ATOMIC(atomicSub, old - v)
SIMT_ATOMIC(atomicMin, old < v ? old : v)
SIMT_ATOMIC(atomicMax, old > v ? old : v)
SIMT_ATOMIC(atomicAnd, old& v)
SIMT_ATOMIC(atomicOr, old | v)
SIMT_ATOMIC(atomicXor, old ^ v)
SIMT_ATOMIC(atomicExch, v)
SIMT_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
SIMT_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
SIMT_ATOMIC(atomicAdd_block, old + v)
SIMT_ATOMIC(atomicMin_block, old < v ? old : v)
SIMT_ATOMIC(atomicMax_block, old > v ? old : v)
SIMT_ATOMIC(atomicOr_block, old | v)
#undef SIMT_ATOMIC
template <class T, class V, class W> static inline T atomicCAS(T* p, V expected, W value)
{
    T old = (T)expected;
    __atomic_compare_exchange_n(p, &old, (T)value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}

static inline long long clock64()
{
#ifdef __x86_64__
    return (long long)__builtin_ia32_rdtsc();
#else
    static thread_local long long ticks;
    return ++ticks;
#endif
}
