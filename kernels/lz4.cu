// LZ4 blocks, a warp, a team of warps or several teams each. See lz4_abi.h, lz4_sparse.cuh,
// lz4_shrunk.cuh, lz4_relay.cuh, lz4_team.cuh and lz4_decode.cuh.
#include "kernels/lz4_decode.cuh"
#include "kernels/lz4_sparse.cuh"
#include "kernels/lz4_relay.cuh"
#include "kernels/lz4_team.cuh"

// Grid: a CTA, one warp, per entry of the job table, or fewer. Shared memory: LZ4_SHARED.
extern "C" __global__ __launch_bounds__(32,
                                        DAMACY__LZ4_WARPS) void damacy_lz4(damacy__lz4_wave wave)
{
    DAMACY__DYNAMIC_SHARED(shared);
    const uint32_t n = damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs);
    const uint32_t memory = DAMACY__DYNAMIC_BASE(shared);
    const bool is_there = memory == damacy__shared_address(shared);
    if (blockIdx.x >= n)
        return;
    const uint32_t team_size = damacy__lz4_team_room(&wave, n);
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        damacy__lz4_job(&wave, memory, is_there, team_size, i, threadIdx.x);
        damacy__sync_warp(); // before shared memory is used again
    }
}

// The same with four warps a CTA, for where there often is nothing to do: the device is done sooner
// with fewer CTAs. Grid: one per four entries of the job table, or fewer. Shared memory: four times
// LZ4_SHARED.
#define DAMACY__LZ4_FOURS_HELD (DAMACY__LZ4_WARPS / 4) // that one multiprocessor should hold

extern "C" __global__
    __launch_bounds__(128, DAMACY__LZ4_FOURS_HELD) void damacy_lz4_fours(damacy__lz4_wave wave)
{
    DAMACY__DYNAMIC_SHARED(shared);
    const uint32_t n = damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs);
    const uint32_t member = threadIdx.x >> 5;
    const uint32_t memory = damacy__shared_address(shared) + DAMACY__LZ4_SHARED * member;
    if (4 * blockIdx.x + member >= n)
        return;
    const uint32_t team_size = damacy__lz4_team_room(&wave, n);
    for (uint32_t i = 4 * blockIdx.x + member; i < n; i += 4 * gridDim.x) {
        damacy__lz4_job(&wave, memory, true, team_size, i, damacy__lane());
        damacy__sync_warp(); // before shared memory is used again
    }
}

// CTAs that one multiprocessor should hold of the kernel for blocks of long sequences.
#ifndef DAMACY__LZ4_PAIRS
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#define DAMACY__LZ4_PAIRS 16
#else
#define DAMACY__LZ4_PAIRS 8
#endif
#endif

static_assert(sizeof(damacy__lz4_pair) == DAMACY__LZ4_SPARSE_SHARED, "host's view");

// Grid: a CTA, two warps, per two entries of the job table, or fewer. Shared memory:
// LZ4_SPARSE_SHARED.
extern "C" __global__
    __launch_bounds__(64, DAMACY__LZ4_PAIRS) void damacy_lz4_sparse(damacy__lz4_wave wave)
{
    DAMACY__DYNAMIC_SHARED(shared);
    damacy__lz4_pair* const pair = (damacy__lz4_pair*)(void*)shared;
    const uint32_t n = damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs);
    const uint32_t member = threadIdx.x >> 5;
    if (2 * blockIdx.x + member >= n)
        return;
    const uint32_t team_size = damacy__lz4_team_room(&wave, n);
    for (uint32_t i = 2 * blockIdx.x + member; i < n; i += 2 * gridDim.x)
        damacy__lz4_sparse_job(&wave, &pair->stages[member], team_size, i, damacy__lane());
}

// Grid: a CTA per entry of the job table, or fewer. Shared memory: LZ4_TEAM4_SHARED, or _TEAM8_.
// Registers are given out for as many as that lets a multiprocessor of 228 KB hold.
#define DAMACY__LZ4_TEAM_ENTRY(name, n_warps, per)                                               \
    static_assert(damacy__lz4_team<32 * n_warps, 2>::SIZE == DAMACY__LZ4_TEAM##n_warps##_SHARED, \
                  "host's view");                                                                \
    extern "C" __global__ __launch_bounds__(32 * n_warps, per) void name(damacy__lz4_wave wave)  \
    {                                                                                            \
        DAMACY__DYNAMIC_SHARED(shared);                                                          \
        damacy__lz4_team_wave<damacy__lz4_team<32 * n_warps, 2>>(&wave, shared);                 \
    }

DAMACY__LZ4_TEAM_ENTRY(damacy_lz4_team4, 4, 8)
DAMACY__LZ4_TEAM_ENTRY(damacy_lz4_team8, 8, 4)

// Grid: any; best as many blocks of threads as run at once. Shared memory: LZ4_RELAY_SHARED.
typedef damacy__lz4_relay<DAMACY__LZ4_RELAY_THREADS, 24> damacy__lz4_relay_shape;
static_assert(damacy__lz4_relay_shape::SIZE == DAMACY__LZ4_RELAY_SHARED, "host's view");

extern "C" __global__ __launch_bounds__(DAMACY__LZ4_RELAY_THREADS,
                                        2) void damacy_lz4_relay(damacy__lz4_wave wave)
{
    DAMACY__DYNAMIC_SHARED(shared);
    damacy__lz4_relay_wave<damacy__lz4_relay_shape>(&wave, shared);
}
