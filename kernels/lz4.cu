// LZ4 blocks: parse lists the tokens, a thread per block; execute copies, a CTA per block. See
// lz4_abi.h.
#include "kernels/lz4_execute.cuh"
#include "kernels/lz4_parse.cuh"

extern "C" __global__ __launch_bounds__(32) void damacy_lz4_begin(damacy__lz4_wave wave)
{
    if (threadIdx.x == 0)
        *(uint64_t*)(uintptr_t)wave.n_tokens = 0;
}

// Grid: 32 jobs a CTA, which is one warp, so that few jobs still use all multiprocessors.
extern "C" __global__ __launch_bounds__(32) void damacy_lz4_parse(damacy__lz4_wave wave)
{
    const uint32_t n_jobs = damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs);
    if (blockIdx.x * 32 < n_jobs)
        damacy__lz4_parse_job(&wave, blockIdx.x * 32 + threadIdx.x, n_jobs, threadIdx.x);
}

// Grid: a CTA per entry of the job table. Shared memory: 5.9 KiB.
extern "C" __global__ __launch_bounds__(128) void damacy_lz4_execute(damacy__lz4_wave wave)
{
    DAMACY__SHARED(damacy__lz4_shared<4>, shared);
    if (blockIdx.x < damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs))
        damacy__lz4_execute_job<4>(&wave, &shared, blockIdx.x);
}

// The same for few jobs: 16 warps each. Shared memory: 23 KiB.
extern "C" __global__ __launch_bounds__(512) void damacy_lz4_execute_few(damacy__lz4_wave wave)
{
    DAMACY__SHARED(damacy__lz4_shared<16>, shared);
    if (blockIdx.x < damacy__min(*(const uint32_t*)(uintptr_t)wave.n_jobs, wave.max_jobs))
        damacy__lz4_execute_job<16>(&wave, &shared, blockIdx.x);
}
