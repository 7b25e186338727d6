// Entry points of the stages that decode and execute sequences, a program of their own so that the
// two halves of the decoder compile at the same time. See zstd_abi.h for what they do, zstd.cu for
// the rest.
#include "kernels/zstd_tables.cuh"
#include "kernels/zstd_fse.cuh"

// Thread per block.
extern "C" __global__ __launch_bounds__(128) void damacy_zstd_tables(damacy__zstd_wave w)
{
    const uint32_t n = damacy__zstd_counts(w)->n_blocks;

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        damacy__zstd_tables_block(w, i);
}

// One block of threads a multiprocessor; DAMACY__SHARED_MAX bytes of shared memory.
extern "C" __global__ __launch_bounds__(256, 1) void damacy_zstd_fse(damacy__zstd_wave w)
{
    DAMACY__DYNAMIC_SHARED(shared);
    damacy__zstd_fse(w, shared);
}
