// Entry points of the Zstandard decoder; zstd_abi.h says in which order they run and what each
// leaves. Every entry takes the wave by value, reads all counts from the device and works with any
// grid of at least one block.
#include "kernels/zstd_parse.cuh"
#include "kernels/zstd_trees.cuh"
#include "kernels/zstd_order.cuh"
#include "kernels/zstd_resolve.cuh"
#include "kernels/zstd_split.cuh"
#include "kernels/zstd_place.cuh"
#include "kernels/zstd_checksum.cuh"

// A block of threads per part of the jobs, which have a warp each, or a thread: checks headers,
// counts, resets results.
extern "C" __global__ __launch_bounds__(128) void damacy_zstd_count(damacy__zstd_wave w)
{
    DAMACY__SHARED(damacy__zstd_place_shared, shared);
    const uint32_t n = damacy__zstd_n_jobs(w);

    for (uint32_t index = blockIdx.x;; index += gridDim.x) {
        const damacy__zstd_part p = damacy__zstd_part_of(n, index);
        if (index >= p.n_parts)
            return;
        damacy__zstd_sum_tell(w, p, damacy__zstd_count_part(w, p, damacy__zstd_spread_of(p)),
                              shared.all);
    }
}

// The same: fills the tables, once all that the part has are placed.
extern "C" __global__ __launch_bounds__(128) void damacy_zstd_fill(damacy__zstd_wave w)
{
    DAMACY__SHARED(damacy__zstd_place_shared, shared);
    const uint32_t n = damacy__zstd_n_jobs(w);

    for (uint32_t index = blockIdx.x;; index += gridDim.x) {
        const damacy__zstd_part p = damacy__zstd_part_of(n, index);
        if (index >= p.n_parts)
            return;
        const bool is_tight = damacy__zstd_place_part(w, p, shared);
        damacy__zstd_fill_part(w, p, damacy__zstd_spread_of(p), is_tight);
    }
}

// Four lanes to a warp per tree.
extern "C" __global__ __launch_bounds__(64) void damacy_zstd_trees(damacy__zstd_wave w)
{
    DAMACY__SHARED(damacy__zstd_trees_warps, shared);
    damacy__zstd_trees_decode(w, shared.warps[threadIdx.x / 32]);
}

// One to three blocks of 1024 threads per LIST_PART blocks or frames.
extern "C" __global__ __launch_bounds__(1024, 1) void damacy_zstd_order(damacy__zstd_wave w)
{
    DAMACY__SHARED(damacy__zstd_order_shared, shared);
    damacy__zstd_order(w, shared);
}

// Warp per job.
extern "C" __global__ __launch_bounds__(128) void damacy_zstd_resolve(damacy__zstd_wave w)
{
    const uint32_t n = damacy__zstd_n_jobs(w), n_warps = blockDim.x / 32;

    for (uint32_t i = blockIdx.x * n_warps + threadIdx.x / 32; i < n; i += gridDim.x * n_warps)
        damacy__zstd_resolve_job(w, i);
}

// Literals when many blocks are in flight: a warp per eight blocks, for tables of up to 9, 10 and
// 11 bits. Three entries, because shared memory decides how many warps fit: the host runs them side
// by side. With 12 as the most that a multiprocessor runs of lanes10, the compiler does not save
// registers for 32.
extern "C" __global__ __launch_bounds__(32) void damacy_zstd_literals_lanes9(damacy__zstd_wave w)
{
    DAMACY__DYNAMIC_SHARED(memory);
    damacy__zstd_literals_lanes<9>(w, memory);
}
extern "C" __global__ __launch_bounds__(32,
                                        12) void damacy_zstd_literals_lanes10(damacy__zstd_wave w)
{
    DAMACY__DYNAMIC_SHARED(memory);
    damacy__zstd_literals_lanes<10>(w, memory);
}
extern "C" __global__ __launch_bounds__(32) void damacy_zstd_literals_lanes11(damacy__zstd_wave w)
{
    DAMACY__DYNAMIC_SHARED(memory);
    damacy__zstd_literals_lanes<11>(w, memory);
}

// Literals when fewer blocks are in flight: a block of threads per block, one or four warps a
// stream.
extern "C" __global__ __launch_bounds__(128, 4) void damacy_zstd_literals_split(damacy__zstd_wave w)
{
    typedef damacy__zstd_split_shape<DAMACY__ZSTD_SHAPE_SPLIT> shape;
    DAMACY__DYNAMIC_SHARED(memory);
    damacy__zstd_literals_split<shape>(w, memory);
}
extern "C" __global__
    __launch_bounds__(128, 4) void damacy_zstd_literals_split_small(damacy__zstd_wave w)
{
    typedef damacy__zstd_split_shape<DAMACY__ZSTD_SHAPE_SPLIT_SMALL> shape;
    DAMACY__DYNAMIC_SHARED(memory);
    damacy__zstd_literals_split<shape>(w, memory);
}
#if DAMACY__SHARED_MAX >= 232448
extern "C" __global__ __launch_bounds__(512,
                                        1) void damacy_zstd_literals_split4(damacy__zstd_wave w)
{
    typedef damacy__zstd_split_shape<DAMACY__ZSTD_SHAPE_SPLIT4> shape;
    DAMACY__DYNAMIC_SHARED(memory);
    damacy__zstd_literals_split<shape>(w, memory);
}
#endif

// Block of threads per zstd block.
extern "C" __global__ __launch_bounds__(256) void damacy_zstd_place(damacy__zstd_wave w)
{
    damacy__zstd_place(w);
}

// A warp per job if there are as many blocks of threads as jobs, else four lanes, first those of as
// many blocks of threads as there are.
extern "C" __global__ __launch_bounds__(128) void damacy_zstd_finish(damacy__zstd_wave w)
{
    DAMACY__SHARED(damacy__xxh64_products, products);
    const uint32_t n = damacy__zstd_n_jobs(w), step = gridDim.x * (blockDim.x / 4);

    if (n <= gridDim.x) {
        if (blockIdx.x < n && threadIdx.x < 32)
            damacy__zstd_finish_job(w, blockIdx.x, &products);
        return;
    }
    for (uint32_t i = blockIdx.x + gridDim.x * (threadIdx.x / 4); i < n; i += step)
        damacy__zstd_finish_job(w, i, nullptr);
}
