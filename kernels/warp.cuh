// Everything in the kernels that is not plain C++: lanes, collectives, atomics, shared memory and
// inline PTX, each with a C fallback for tests that run kernels on the CPU (tests/simt/simt.h).
// Collectives are macros so that the CPU side can name the caller's line when lanes diverge.
// Blocks are one-dimensional. A shared address is a 32-bit byte address; on the CPU it counts
// from the start of the block's dynamic shared memory.
#pragma once

#include "kernels/abi.h"

#define DAMACY__FULL 0xffffffffu
#ifdef __CUDACC__
#define DAMACY__INLINE static __device__ __forceinline__
#else
#define DAMACY__INLINE static inline
#endif

typedef struct alignas(8) damacy__u32x2 {
    uint32_t x, y;
} damacy__u32x2;
typedef struct alignas(16) damacy__u32x4 {
    uint32_t x, y, z, w;
} damacy__u32x4;

// ---- collectives ----
#define damacy__sync_block()           __syncthreads()
#define damacy__sync_warp()            __syncwarp(DAMACY__FULL)
#define damacy__sync_warp_of(mask)     __syncwarp(mask)
#define damacy__ballot(p)              __ballot_sync(DAMACY__FULL, (p))
#define damacy__ballot_of(mask, p)     __ballot_sync((mask), (p))
#define damacy__any(p)                 __any_sync(DAMACY__FULL, (p))
#define damacy__all(p)                 __all_sync(DAMACY__FULL, (p))
#define damacy__shfl(v, lane)          __shfl_sync(DAMACY__FULL, (v), (lane))
#define damacy__shfl_of(mask, v, lane) __shfl_sync((mask), (v), (lane))
#define damacy__shfl_up(v, d)          __shfl_up_sync(DAMACY__FULL, (v), (d))
#define damacy__shfl_down(v, d)        __shfl_down_sync(DAMACY__FULL, (v), (d))
#define damacy__shfl_xor(v, d)         __shfl_xor_sync(DAMACY__FULL, (v), (d))
#define damacy__match_any(v)           __match_any_sync(DAMACY__FULL, (v))
// The sum of a warp's values.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define damacy__warp_sum(v) damacy__warp_sum_by_turns(v)
static __device__ __forceinline__ uint32_t damacy__warp_sum_by_turns(uint32_t v)
{
    for (uint32_t d = 1; d < 32; d *= 2)
        v += __shfl_xor_sync(DAMACY__FULL, v, d);
    return v;
}
#else
#define damacy__warp_sum(v) __reduce_add_sync(DAMACY__FULL, (v))
#endif
// Barrier `id` (1-15) of the first `threads` threads that come, a multiple of 32; those that only
// arrive do not wait.
#ifdef __CUDACC__
#define damacy__named_barrier(what, id, threads)                                                   \
    asm volatile(what " %0, %1;" ::"r"((uint32_t)(id)), "r"((uint32_t)(threads)) : "memory")
#define damacy__sync_some(id, threads)   damacy__named_barrier("barrier.sync", id, threads)
#define damacy__arrive_some(id, threads) damacy__named_barrier("barrier.arrive", id, threads)
// The same where the warp is known to be together.
#define damacy__sync_together(id, threads)   damacy__named_barrier("bar.sync", id, threads)
#define damacy__arrive_together(id, threads) damacy__named_barrier("bar.arrive", id, threads)
#else
#define damacy__sync_together(id, threads)   damacy__sync_some(id, threads)
#define damacy__arrive_together(id, threads) damacy__arrive_some(id, threads)
#define damacy__sync_some(id, threads)       simt::named_barrier((id), (threads), __LINE__)
#define damacy__arrive_some(id, threads)     simt::named_arrive((id), (threads), __LINE__)
#endif

// One static struct per kernel; `extern` memory sized at launch, aligned to 1024 where it matters.
#ifdef __CUDACC__
#define DAMACY__SHARED(type, name)   __shared__ type name
#define DAMACY__DYNAMIC_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]
#else
#define DAMACY__SHARED(type, name)   type& name = *simt::shared<type>(__LINE__)
#define DAMACY__DYNAMIC_SHARED(name) uint8_t* const name = simt::dynamic_shared()
#endif

// Bytes of dynamic shared memory that the launch gave.
DAMACY__INLINE uint32_t damacy__dynamic_shared_size(void)
{
#ifdef __CUDACC__
    uint32_t size;
    asm("mov.u32 %0,%%dynamic_smem_size;" : "=r"(size));
    return size;
#else
    return (uint32_t)simt::g.dynamic_size;
#endif
}

// The largest dynamic shared memory of a block by architecture, for kernels that adapt.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define DAMACY__SHARED_MAX 65536
#elif defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define DAMACY__SHARED_MAX 101376
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define DAMACY__SHARED_MAX 166912
#else
#define DAMACY__SHARED_MAX 232448
#endif

DAMACY__INLINE uint32_t damacy__lane(void)
{
    return threadIdx.x & 31;
}

// The number of the multiprocessor that runs this block of threads; 2 k and 2 k + 1 are neighbours.
// (On the CPU any number, as nothing may depend on it but speed.)
DAMACY__INLINE uint32_t damacy__multiprocessor(void)
{
#ifdef __CUDACC__
    uint32_t id;
    asm volatile("mov.u32 %0,%%smid;" : "=r"(id));
    return id;
#else
    return (uint32_t)(simt::random() % (2 * gridDim.x));
#endif
}

DAMACY__INLINE uint32_t damacy__min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

DAMACY__INLINE uint32_t damacy__max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

// Sum of v over the lanes of the warp up to this one, `lane`; all lanes come.
DAMACY__INLINE uint32_t damacy__sum_upto(uint32_t v, uint32_t lane)
{
#pragma unroll
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = damacy__shfl_up(v, d);
        if (lane >= d)
            v += other;
    }
    return v;
}

// ---- bits ----
#ifdef __CUDACC__
// High word of hi:lo << (s mod 32), and low word of hi:lo >> (s mod 32).
DAMACY__INLINE uint32_t damacy__funnel_left(uint32_t lo, uint32_t hi, uint32_t s)
{
    return __funnelshift_l(lo, hi, s);
}
DAMACY__INLINE uint32_t damacy__funnel_right(uint32_t lo, uint32_t hi, uint32_t s)
{
    return __funnelshift_r(lo, hi, s);
}
// Bytes of b:a chosen by the four low nibbles of `select`; bit 3 of a nibble repeats the sign bit.
DAMACY__INLINE uint32_t damacy__bytes(uint32_t a, uint32_t b, uint32_t select)
{
    uint32_t r;
    asm("prmt.b32 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
    return r;
}
DAMACY__INLINE uint32_t damacy__clz(uint32_t x)
{
    return (uint32_t)__clz((int)x);
}
DAMACY__INLINE uint32_t damacy__popc(uint32_t x)
{
    return (uint32_t)__popc(x);
}
DAMACY__INLINE uint32_t damacy__ctz(uint32_t x)
{
    return (uint32_t)__ffs((int)x) - 1;
}
// c + sum of unsigned bytes of a times signed bytes of b.
DAMACY__INLINE uint32_t damacy__dot4(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("dp4a.u32.s32 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// The lower 16 bits of a, and c.
DAMACY__INLINE uint32_t damacy__add_low_half(uint32_t a, uint32_t c)
{
    uint32_t r;
    asm("dp2a.lo.u32.u32 %0,%1,1,%2;" : "=r"(r) : "r"(a), "r"(c));
    return r;
}
// `width` mod 32 one bits from bit `at` mod 32.
DAMACY__INLINE uint32_t damacy__mask_bits(uint32_t at, uint32_t width)
{
    uint32_t r;
    asm("bmsk.wrap.b32 %0,%1,%2;" : "=r"(r) : "r"(at), "r"(width));
    return r;
}
#else
DAMACY__INLINE uint32_t damacy__funnel_left(uint32_t lo, uint32_t hi, uint32_t s)
{
    return (uint32_t)(((((uint64_t)hi << 32) | lo) << (s & 31)) >> 32);
}
DAMACY__INLINE uint32_t damacy__funnel_right(uint32_t lo, uint32_t hi, uint32_t s)
{
    return (uint32_t)((((uint64_t)hi << 32) | lo) >> (s & 31));
}
DAMACY__INLINE uint32_t damacy__bytes(uint32_t a, uint32_t b, uint32_t select)
{
    const uint64_t v = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t n = select >> (4 * i) & 15;
        uint32_t byte = (uint32_t)(v >> (8 * (n & 7))) & 255;
        if (n & 8)
            byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}
DAMACY__INLINE uint32_t damacy__clz(uint32_t x)
{
    return x ? (uint32_t)__builtin_clz(x) : 32u;
}
DAMACY__INLINE uint32_t damacy__popc(uint32_t x)
{
    return (uint32_t)__builtin_popcount(x);
}
DAMACY__INLINE uint32_t damacy__ctz(uint32_t x)
{
    return (uint32_t)__builtin_ffs((int)x) - 1;
}
DAMACY__INLINE uint32_t damacy__dot4(uint32_t a, uint32_t b, uint32_t c)
{
    for (uint32_t i = 0; i < 32; i += 8)
        c += (a >> i & 255) * (uint32_t)(int32_t)(int8_t)(b >> i & 255);
    return c;
}
DAMACY__INLINE uint32_t damacy__add_low_half(uint32_t a, uint32_t c)
{
    return (a & 0xffff) + c;
}
DAMACY__INLINE uint32_t damacy__mask_bits(uint32_t at, uint32_t width)
{
    return ((1u << (width & 31)) - 1) << (at & 31);
}
#endif

// 16 bytes out of five words, from bit s modulo 32 of the first on.
DAMACY__INLINE damacy__u32x4 damacy__funnel_right4(uint32_t w0, uint32_t w1, uint32_t w2,
                                                   uint32_t w3, uint32_t w4, uint32_t s)
{
    damacy__u32x4 v;
    v.x = damacy__funnel_right(w0, w1, s);
    v.y = damacy__funnel_right(w1, w2, s);
    v.z = damacy__funnel_right(w2, w3, s);
    v.w = damacy__funnel_right(w3, w4, s);
    return v;
}

// ---- atomics on global or shared memory: relaxed, they order nothing ----
#ifdef __CUDACC__
typedef unsigned long long damacy__atomic64; // the type that the 64-bit functions take
#else
typedef uint64_t damacy__atomic64;
#endif

template <class T> DAMACY__INLINE T damacy__atomic_load(const T* p) // of 32 or 64 bits
{
#ifdef __CUDACC__
    return *(const volatile T*)p;
#else
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}
template <class T> DAMACY__INLINE void damacy__atomic_store(T* p, T v)
{
#ifdef __CUDACC__
    *(volatile T*)p = v;
#else
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
#endif
}
DAMACY__INLINE uint32_t damacy__atomic_add(uint32_t* p, uint32_t v)
{
    return atomicAdd(p, v);
}
DAMACY__INLINE uint64_t damacy__atomic_add64(uint64_t* p, uint64_t v)
{
    return atomicAdd((damacy__atomic64*)p, (damacy__atomic64)v);
}
DAMACY__INLINE void damacy__atomic_min64(uint64_t* p, uint64_t v)
{
    atomicMin((damacy__atomic64*)p, (damacy__atomic64)v);
}
DAMACY__INLINE uint32_t damacy__atomic_or(uint32_t* p, uint32_t v)
{
    return atomicOr(p, v);
}
DAMACY__INLINE uint32_t damacy__atomic_max(uint32_t* p, uint32_t v)
{
    return atomicMax(p, v);
}
DAMACY__INLINE uint32_t damacy__atomic_cas(uint32_t* p, uint32_t expected, uint32_t v)
{
    return atomicCAS(p, expected, v);
}
DAMACY__INLINE uint64_t damacy__atomic_cas64(uint64_t* p, uint64_t expected, uint64_t v)
{
    return atomicCAS((damacy__atomic64*)p, (damacy__atomic64)expected, (damacy__atomic64)v);
}

// Orders what this thread and those that it has met at a barrier have done before and what it does
// after, for the whole device.
DAMACY__INLINE void damacy__device_fence(void)
{
    __threadfence();
}

// A load before all that this thread, and those that it meets at a barrier then, do after it; and a
// store behind all that they have done before; for the whole device. Of 32 or 64 bits.
#ifdef __CUDACC__
DAMACY__INLINE uint32_t damacy__acquire(const uint32_t* p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DAMACY__INLINE uint64_t damacy__acquire(const uint64_t* p)
{
    uint64_t v;
    asm volatile("ld.acquire.gpu.global.u64 %0,[%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
DAMACY__INLINE void damacy__release(uint32_t* p, uint32_t v)
{
    asm volatile("st.release.gpu.global.u32 [%0],%1;" ::"l"(p), "r"(v) : "memory");
}
DAMACY__INLINE void damacy__release(uint64_t* p, uint64_t v)
{
    asm volatile("st.release.gpu.global.u64 [%0],%1;" ::"l"(p), "l"(v) : "memory");
}
#define DAMACY__PAUSE() __nanosleep(32) // in a loop that waits for another block of threads
#else
template <class T> DAMACY__INLINE T damacy__acquire(const T* p)
{
    return *p;
}
template <class T> DAMACY__INLINE void damacy__release(T* p, T v)
{
    *p = v;
}
#define DAMACY__PAUSE() simt::yield(__LINE__)
#endif

#define DAMACY__POLLS 0x8000000u // pauses of such a loop: many seconds, so that it ends

// ---- global memory: cache hints ----
// Of a load whose neighbours are wanted soon: L2 asks memory for all 256 bytes.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define DAMACY__AHEAD ".L2::128B"
#else
#define DAMACY__AHEAD ".L2::256B"
#endif
#ifdef __CUDACC__
DAMACY__INLINE damacy__u32x4 damacy__load_u32x4_once(const void* p) // read-only data, 16-aligned
{
    damacy__u32x4 v;
    asm volatile("ld.global.nc" DAMACY__AHEAD ".v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DAMACY__INLINE void damacy__store_u32x4(uint64_t a, damacy__u32x4 v) // 16-aligned
{
    asm volatile("st.global.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(a), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
DAMACY__INLINE uint32_t damacy__load_u32_stream(const uint32_t* p) // will not be read again
{
    return __ldcs(p);
}
DAMACY__INLINE damacy__u32x2 damacy__load_u32x2_stream(const damacy__u32x2* p)
{
    damacy__u32x2 v;
    asm volatile("ld.global.cs.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
// Nobody reads it soon: what is in caches stays there.
DAMACY__INLINE void damacy__store_u32x4_stream(damacy__u32x4* p, damacy__u32x4 v)
{
    asm volatile("st.global.cs.v4.u32 [%0],{%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
DAMACY__INLINE void damacy__prefetch_l2(const void* p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
#else
DAMACY__INLINE void damacy__store_u32x4(uint64_t a, damacy__u32x4 v)
{
    *(damacy__u32x4*)(uintptr_t)a = v;
}
DAMACY__INLINE damacy__u32x4 damacy__load_u32x4_once(const void* p)
{
    return *(const damacy__u32x4*)p;
}
DAMACY__INLINE uint32_t damacy__load_u32_stream(const uint32_t* p)
{
    return *p;
}
DAMACY__INLINE damacy__u32x2 damacy__load_u32x2_stream(const damacy__u32x2* p)
{
    return *p;
}
DAMACY__INLINE void damacy__store_u32x4_stream(damacy__u32x4* p, damacy__u32x4 v)
{
    *p = v;
}
DAMACY__INLINE void damacy__prefetch_l2(const void* p)
{
    (void)p;
}
#endif

// ---- shared memory by 32-bit address ----
// Where dynamic shared memory begins. On compute capability 9.0 it is known, if the kernel has no
// other shared memory, and as a constant it is part of every address: 3 to 4 % of the time of what
// is bound by instructions. Who takes it compares it with damacy__shared_address.
#ifndef DAMACY__DYNAMIC_BASE // tests set it wrong
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define DAMACY__DYNAMIC_BASE(shared) 1024u
#else
#define DAMACY__DYNAMIC_BASE(shared) damacy__shared_address(shared)
#endif
#endif
#ifdef __CUDACC__
DAMACY__INLINE uint32_t damacy__shared_address(const void* p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
DAMACY__INLINE uint32_t damacy__lds8(uint32_t a)
{
    uint32_t v;
    asm volatile("ld.shared.u8 %0,[%1];" : "=r"(v) : "r"(a));
    return v;
}
DAMACY__INLINE uint32_t damacy__lds16(uint32_t a)
{
    uint32_t v;
    asm volatile("ld.shared.u16 %0,[%1];" : "=r"(v) : "r"(a));
    return v;
}
DAMACY__INLINE uint32_t damacy__lds32(uint32_t a)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0,[%1];" : "=r"(v) : "r"(a));
    return v;
}
DAMACY__INLINE damacy__u32x2 damacy__lds64(uint32_t a)
{
    damacy__u32x2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "r"(a));
    return v;
}
DAMACY__INLINE damacy__u32x4 damacy__lds128(uint32_t a)
{
    damacy__u32x4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(a)
                 : "memory");
    return v;
}
DAMACY__INLINE void damacy__sts8(uint32_t a, uint32_t v)
{
    asm volatile("st.shared.u8 [%0],%1;" ::"r"(a), "r"(v));
}
DAMACY__INLINE void damacy__sts16(uint32_t a, uint32_t v)
{
    asm volatile("st.shared.u16 [%0],%1;" ::"r"(a), "h"((uint16_t)v));
}
DAMACY__INLINE void damacy__sts32(uint32_t a, uint32_t v)
{
    asm volatile("st.shared.u32 [%0],%1;" ::"r"(a), "r"(v));
}
DAMACY__INLINE void damacy__sts64(uint32_t a, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(a), "r"(x), "r"(y));
}
DAMACY__INLINE void damacy__sts128(uint32_t a, damacy__u32x4 v)
{
    asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
DAMACY__INLINE void damacy__shared_or(uint32_t a, uint32_t v)
{
    asm volatile("red.shared.or.b32 [%0],%1;" ::"r"(a), "r"(v));
}
// Returns what was there.
DAMACY__INLINE uint32_t damacy__shared_add(uint32_t a, uint32_t n)
{
    uint32_t v;
    asm volatile("atom.relaxed.cta.shared.add.u32 %0,[%1],%2;" : "=r"(v) : "r"(a), "r"(n));
    return v;
}
// Keeps the compiler from moving ordinary accesses of shared memory across: use it where such
// accesses and the ones by address touch the same bytes without a barrier between.
DAMACY__INLINE void damacy__shared_fence(void)
{
    asm volatile("" ::: "memory");
}
#else
DAMACY__INLINE uint32_t damacy__shared_address(const void* p)
{
    return (uint32_t)((const uint8_t*)p - simt::dynamic_shared());
}
DAMACY__INLINE uint32_t damacy__lds8(uint32_t a)
{
    return *simt::shared_at(a, 1, false);
}
DAMACY__INLINE uint32_t damacy__lds16(uint32_t a)
{
    return *(const uint16_t*)simt::shared_at(a, 2, false);
}
DAMACY__INLINE uint32_t damacy__lds32(uint32_t a)
{
    return *(const uint32_t*)simt::shared_at(a, 4, false);
}
DAMACY__INLINE damacy__u32x2 damacy__lds64(uint32_t a)
{
    return *(const damacy__u32x2*)simt::shared_at(a, 8, false);
}
DAMACY__INLINE damacy__u32x4 damacy__lds128(uint32_t a)
{
    return *(const damacy__u32x4*)simt::shared_at(a, 16, false);
}
DAMACY__INLINE void damacy__sts8(uint32_t a, uint32_t v)
{
    *simt::shared_at(a, 1, true) = (uint8_t)v;
}
DAMACY__INLINE void damacy__sts16(uint32_t a, uint32_t v)
{
    *(uint16_t*)simt::shared_at(a, 2, true) = (uint16_t)v;
}
DAMACY__INLINE void damacy__sts32(uint32_t a, uint32_t v)
{
    *(uint32_t*)simt::shared_at(a, 4, true) = v;
}
DAMACY__INLINE void damacy__sts64(uint32_t a, uint32_t x, uint32_t y)
{
    damacy__u32x2 v;
    v.x = x;
    v.y = y;
    *(damacy__u32x2*)simt::shared_at(a, 8, true) = v;
}
DAMACY__INLINE void damacy__sts128(uint32_t a, damacy__u32x4 v)
{
    *(damacy__u32x4*)simt::shared_at(a, 16, true) = v;
}
DAMACY__INLINE void damacy__shared_or(uint32_t a, uint32_t v)
{
    *(uint32_t*)simt::shared_at(a, 4, true, true) |= v;
}
DAMACY__INLINE uint32_t damacy__shared_add(uint32_t a, uint32_t n)
{
    uint32_t* const at = (uint32_t*)simt::shared_at(a, 4, true, true);
    const uint32_t v = *at;
    *at = v + n;
    return v;
}
DAMACY__INLINE void damacy__shared_fence(void) {}
#endif
