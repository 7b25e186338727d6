// Brings the host's bytes to the device, and clears the output of chunks that failed, so that
// nothing of an earlier chunk shows.
#include "kernels/bits.cuh"

// The 16 bytes at `at`, a multiple of 16, some of which lie in [lo, hi). The others are of the same
// page, which the device reads as well; on the CPU they are left alone.
DAMACY__INLINE damacy__u32x4 damacy__load_around(uint64_t at, uint64_t lo, uint64_t hi)
{
#ifdef __CUDACC__
    (void)lo;
    (void)hi;
    return damacy__load_u32x4_once((const void*)(uintptr_t)at);
#else
    return damacy__load_u32x4_within(at, lo, hi);
#endif
}

// Bytes skew ... skew + 15 of b:a.
DAMACY__INLINE damacy__u32x4 damacy__join(damacy__u32x4 a, damacy__u32x4 b, uint32_t skew)
{
    uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (uint32_t i = 0; i < 6; i++)
        w[i] = skew & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (uint32_t i = 0; i < 5; i++)
        w[i] = skew & 4 ? w[i + 1] : w[i];
    return damacy__funnel_right4(w[0], w[1], w[2], w[3], w[4], 8 * (skew & 3));
}

// A move by one warp, with four loads under way in each lane: memory of the host is microseconds
// away. Every byte crosses the bus once, in aligned loads of 16 bytes, whose parts lanes exchange.
static __device__ void damacy__gather_move(uint64_t dst, uint64_t src, uint32_t n)
{
    const uint32_t lane = damacy__lane(), head = damacy__min(n, (uint32_t)(0 - dst) & 15);
    const uint32_t n_vectors = (n - head) >> 4, tail = (n - head) & 15;
    const uint64_t hi = src + n, skew = (src + head) & 15, from = src + head - skew;
    const uint32_t n_loads = n_vectors + (n_vectors && skew ? 1 : 0);
    const uint64_t to = dst + head;

    if (lane < head)
        ((uint8_t*)(uintptr_t)dst)[lane] = ((const uint8_t*)(uintptr_t)src)[lane];
    if (lane < tail)
        ((uint8_t*)(uintptr_t)(dst + n - tail))[lane] =
            ((const uint8_t*)(uintptr_t)(hi - tail))[lane];
    for (uint32_t at = lane; at < n_vectors + lane; at += 128) {
        damacy__u32x4 v[5];
#pragma unroll
        for (uint32_t i = 0; i < 5; i++) { // of the last one lane 0 alone has a use
            v[i].x = v[i].y = v[i].z = v[i].w = 0;
            if (at + 32 * i < n_loads && (i < 4 || lane == 0))
                v[i] = damacy__load_around(from + 16ull * (at + 32 * i), src, hi);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const damacy__u32x4 give = lane == 0 ? v[i + 1] : v[i];
            damacy__u32x4 next;
            next.x = damacy__shfl(give.x, (lane + 1) & 31);
            next.y = damacy__shfl(give.y, (lane + 1) & 31);
            next.z = damacy__shfl(give.z, (lane + 1) & 31);
            next.w = damacy__shfl(give.w, (lane + 1) & 31);
            if (at + 32 * i < n_vectors)
                *(damacy__u32x4*)(uintptr_t)(to + 16ull * (at + 32 * i)) =
                    damacy__join(v[i], next, (uint32_t)skew);
        }
    }
}

// A warp per move, over a grid of any size. Sources and the table may be memory of the host that
// the device reads.
extern "C" __global__ __launch_bounds__(DAMACY__GATHER_THREADS) void damacy_gather(uint64_t moves,
                                                                                  uint32_t n)
{
    const uint32_t n_warps = blockDim.x / 32;
    for (uint32_t i = blockIdx.x * n_warps + threadIdx.x / 32; i < n; i += gridDim.x * n_warps) {
        const damacy__move move = ((const damacy__move*)(uintptr_t)moves)[i];
        damacy__gather_move(move.dst, move.src, (uint32_t)move.size);
    }
}

// A CTA per job, over a grid of any size: zeroes the expected output of jobs whose status is not
// OK.
extern "C" __global__ __launch_bounds__(256) void damacy_clear_failed(uint64_t jobs,
                                                                      uint64_t results, uint64_t n,
                                                                      uint32_t max)
{
    const uint32_t count = damacy__min(*(const uint32_t*)(uintptr_t)n, max);
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const damacy__job job = ((const damacy__job*)(uintptr_t)jobs)[i];
        if (((const damacy__job_result*)(uintptr_t)results)[i].status == DAMACY__JOB_OK)
            continue;
        const uint64_t size =
            job.expected_size < job.dst_capacity ? job.expected_size : job.dst_capacity;
        uint8_t* const dst = (uint8_t*)(uintptr_t)job.dst;
        for (uint64_t k = threadIdx.x; k < size; k += blockDim.x)
            dst[k] = 0;
    }
}
