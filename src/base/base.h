/* Small pure helpers: checked arithmetic, spans, little-endian loads and stores.
 *
 * damacy__add and damacy__mul return false on overflow and leave *out unspecified: every sum or
 * product of numbers that come from input goes through them. */
#pragma once
#include "base/system.h"

/* For functions that some builds of the implementation do not use. */
#define DAMACY__UNUSED __attribute__((unused))

/* For helpers of loops: functions of warm and cold modules are inlined into others only so. */
#define DAMACY__ALWAYS_INLINE static inline __attribute__((always_inline))

/* A fifth of the modules holds the loops over bytes, voxels and copies; the rest need not cost
 * compile time. In damacy.h (src/modules.txt), cold modules run once per array, sample, read, block
 * or chunk and are left as they are; warm ones have loops that -Og makes as fast if their helpers
 * are DAMACY__ALWAYS_INLINE. gcc takes a quarter of the time so, clang 40 %, and only where they
 * optimise. */
#if defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__) && defined(__clang__)
#define DAMACY__COLD_BEGIN _Pragma("clang optimize off")
#define DAMACY__COLD_END   _Pragma("clang optimize on")
#define DAMACY__WARM_BEGIN
#define DAMACY__WARM_END
#elif defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define DAMACY__WARM_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"Og\")")
#define DAMACY__WARM_END   _Pragma("GCC pop_options")
#define DAMACY__COLD_BEGIN \
    _Pragma("GCC push_options") _Pragma("GCC optimize(\"O0\", \"omit-frame-pointer\")")
#define DAMACY__COLD_END DAMACY__WARM_END
#else
#define DAMACY__COLD_BEGIN
#define DAMACY__COLD_END
#define DAMACY__WARM_BEGIN
#define DAMACY__WARM_END
#endif

#define DAMACY__COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DAMACY__MIN(a, b)    ((a) < (b) ? (a) : (b))
#define DAMACY__MAX(a, b)    ((a) > (b) ? (a) : (b))

/* Untrusted or constant bytes that somebody else owns. */
typedef struct damacy__span {
    const uint8_t* ptr;
    size_t size; /* bytes */
} damacy__span;

static inline bool damacy__add(uint64_t a, uint64_t b, uint64_t* out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool damacy__mul(uint64_t a, uint64_t b, uint64_t* out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Product of n extents, all of them >= 0; false on overflow of int64_t. */
static inline bool damacy__product(const int64_t* extents, uint32_t n, uint64_t* out)
{
    uint64_t product = 1;
    bool zero = false;

    for (uint32_t i = 0; i < n; i++) {
        if (extents[i] == 0) {
            zero = true;
        } else if (extents[i] < 0 || !damacy__mul(product, (uint64_t)extents[i], &product)) {
            return false;
        }
    }
    *out = zero ? 0 : product;
    return product <= INT64_MAX;
}

/* Rounds up to a multiple of a power of two; the caller has checked that it cannot overflow. */
static inline uint64_t damacy__align_up(uint64_t value, uint64_t power)
{
    return (value + power - 1) & ~(power - 1);
}

static inline uint64_t damacy__div_up(uint64_t value, uint64_t divisor)
{
    return value / divisor + (value % divisor != 0);
}

static inline damacy__span damacy__span_of(const void* ptr, size_t size)
{
    damacy__span span;

    span.ptr = (const uint8_t*)ptr;
    span.size = size;
    return span;
}

static inline uint16_t damacy__load_u16le(const void* src)
{
    const uint8_t* p = (const uint8_t*)src;

    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t damacy__load_u32le(const void* src)
{
    const uint8_t* p = (const uint8_t*)src;

    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t damacy__load_u64le(const void* src)
{
    const uint8_t* p = (const uint8_t*)src;

    return (uint64_t)damacy__load_u32le(p) | (uint64_t)damacy__load_u32le(p + 4) << 32;
}

static inline uint64_t damacy__load_u64be(const void* src)
{
    return __builtin_bswap64(damacy__load_u64le(src));
}

DAMACY__UNUSED static inline void damacy__store_u32le(void* dst, uint32_t value)
{
    uint8_t* p = (uint8_t*)dst;

    for (uint32_t i = 0; i < 4; i++) {
        p[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline void damacy__store_u64le(void* dst, uint64_t value)
{
    uint8_t* p = (uint8_t*)dst;

    for (uint32_t i = 0; i < 8; i++) {
        p[i] = (uint8_t)(value >> (8 * i));
    }
}

/* Mixes bytes into 64 bits (FNV-1a with a final avalanche): for tables, not for security. */
static inline uint64_t damacy__hash(const void* src, size_t size, uint64_t seed)
{
    const uint8_t* p = (const uint8_t*)src;
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ seed;

    for (size_t i = 0; i < size; i++) {
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    }
    h ^= h >> 32;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Monotonic clock, nanoseconds. */
static inline uint64_t damacy__now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}
