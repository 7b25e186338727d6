// Entry points of the stages that decode and execute sequences, a program of their own so that the
// two halves of the decoder compile at the same time. See zstd_abi.h for what they do, zstd.cu for
// the rest.
#include "kernels/zstd_tables.cuh"
#include "kernels/zstd_fse.cuh"
#include "kernels/zstd_exec.cuh"
#include "kernels/zstd_exec_link.cuh"
#include "kernels/zstd_exec_relay.cuh"

// Four lanes to a warp per block.
extern "C" __global__ __launch_bounds__(64) void damacy_zstd_tables(damacy__zstd_wave w)
{
    DAMACY__SHARED(damacy__zstd_tables_shared, shared);
    damacy__zstd_tables(w, shared);
}

// One block of threads a multiprocessor; DAMACY__SHARED_MAX bytes of shared memory.
extern "C" __global__ __launch_bounds__(256, 1) void damacy_zstd_fse(damacy__zstd_wave w)
{
    DAMACY__DYNAMIC_SHARED(shared);
    damacy__zstd_fse<false>(w, shared);
}

// The same for few blocks: half as many registers, DAMACY__ZSTD_FSE_LATENCY_SHARED bytes of shared
// memory, or DAMACY__SHARED_MAX if that is less.
extern "C" __global__ __launch_bounds__(256, 1) void damacy_zstd_fse_few(damacy__zstd_wave w)
{
    DAMACY__DYNAMIC_SHARED(shared);
    damacy__fse_run_even<damacy__fse_latency<false>>(w, damacy__shared_address(shared));
}

// Block of threads per frame; DAMACY__ZSTD_EXECUTE_SHARED bytes of shared memory, or
// _SERIAL_SHARED.
DAMACY__EXECUTE_ENTRY(damacy_zstd_execute_1024x3, 1024X3, 1, false, false)
DAMACY__EXECUTE_ENTRY(damacy_zstd_execute_256x4, 256X4, 4, false, false)
DAMACY__EXECUTE_ENTRY(damacy_zstd_execute_128x4, 128X4, 8, false, false)
DAMACY__EXECUTE_ENTRY(damacy_zstd_execute_128x4_3k, 128X4_3K, 8, false, false)
DAMACY__EXECUTE_ENTRY(damacy_zstd_execute_128x2, 128X2, 8, false, false)
DAMACY__EXECUTE_ENTRY(damacy_zstd_execute_128x2_serial, 128X2_SERIAL, 8, true, false)
DAMACY__EXECUTE_ENTRY(damacy_zstd_execute_64x4_serial, 64X4_SERIAL, 16, true, false)

// Frames that all blocks of threads share, in two steps; DAMACY__ZSTD_RELAY_SHARED bytes of shared
// memory for the second, which is one of two kernels.
DAMACY__RELAY_CUT_ENTRY(damacy_zstd_cut, damacy__relay_best)
DAMACY__RELAY_ENTRY(damacy_zstd_relay, damacy__relay_best, DAMACY__ZSTD_RELAY_PER)
DAMACY__RELAY_ENTRY(damacy_zstd_relay_wide, damacy__relay_wide, 1)

// The blocks of a few large frames at once, in two steps.
extern "C" __global__ __launch_bounds__(256) void damacy_zstd_link(damacy__zstd_wave w)
{
    damacy__zstd_link(w);
}
extern "C" __global__ __launch_bounds__(256) void damacy_zstd_jump(damacy__zstd_wave w)
{
    damacy__zstd_jump(w);
}
