// LZ4 blocks: parse lists the tokens, a warp per block; execute copies, one or four warps per
// block. See lz4_abi.h.
#include "kernels/lz4_execute.cuh"
#include "kernels/lz4_parse.cuh"

// CTAs that one multiprocessor can run at a time, for registers to be given out by.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#define DAMACY__LZ4_CTAS 32
#else
#define DAMACY__LZ4_CTAS 16
#endif

extern "C" __global__ __launch_bounds__(32) void damacy_lz4_begin(damacy__lz4_wave wave)
{
    if (threadIdx.x == 0)
        *(uint64_t*)(uintptr_t)wave.n_tokens = 0;
}

// Grid: a CTA, one warp, per entry of the job table. Shared memory: 19 KiB.
extern "C" __global__ __launch_bounds__(32) void damacy_lz4_parse(damacy__lz4_wave wave)
{
    DAMACY__SHARED(damacy__lz4_parse_shared, shared);
    if (blockIdx.x < damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs))
        damacy__lz4_parse_job(&wave, &shared, blockIdx.x, threadIdx.x);
}

// Grid: a CTA, one warp, per entry of the job table. Shared memory: 1.5 KiB.
extern "C" __global__ __launch_bounds__(32, 16) void damacy_lz4_execute(damacy__lz4_wave wave)
{
    DAMACY__SHARED(damacy__lz4_shared<1>, shared);
    if (blockIdx.x < damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs))
        damacy__lz4_execute_job<1>(&wave, &shared, blockIdx.x);
}

// The same for few jobs: four warps each. Shared memory: 5.8 KiB.
extern "C" __global__ __launch_bounds__(128, 4) void damacy_lz4_execute_few(damacy__lz4_wave wave)
{
    DAMACY__SHARED(damacy__lz4_shared<4>, shared);
    if (blockIdx.x < damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs))
        damacy__lz4_execute_job<4>(&wave, &shared, blockIdx.x);
}
