// Entries of zstd_sequences.cu for Zstandard frames that are blosc blocks: records are of
// sequences, and execution undoes the byte shuffle. A program of their own, as they would slow
// others down.
#include "kernels/zstd_exec.cuh"
#include "kernels/zstd_exec_relay.cuh"
#include "kernels/zstd_fse.cuh"

extern "C" __global__ __launch_bounds__(256, 1) void damacy_zstd_blosc_fse(damacy__zstd_wave w)
{
    DAMACY__DYNAMIC_SHARED(shared);
    damacy__zstd_fse<true>(w, shared);
}
extern "C" __global__ __launch_bounds__(256, 1) void damacy_zstd_blosc_fse_few(damacy__zstd_wave w)
{
    DAMACY__DYNAMIC_SHARED(shared);
    damacy__fse_run_even<damacy__fse_latency<true>>(w, damacy__shared_address(shared));
}

DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_1024x3, 1024X3, 1, false, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_256x4, 256X4, 4, false, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_128x4_3k, 128X4_3K, 8, false, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_128x2_serial, 128X2_SERIAL, 8, true, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_64x4_serial, 64X4_SERIAL, 16, true, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_256x2_serial, 256X2_SERIAL, 4, true, true)

// Large ones that all blocks of threads share, as in zstd_sequences.cu; their shuffle is left to
// damacy_blosc_unfilter.
DAMACY__RELAY_CUT_ENTRY(damacy_zstd_blosc_cut, damacy__relay_blosc)
DAMACY__RELAY_ENTRY(damacy_zstd_blosc_relay, damacy__relay_blosc, DAMACY__ZSTD_RELAY_PER)
DAMACY__RELAY_ENTRY(damacy_zstd_blosc_relay_wide, damacy__relay_blosc_wide, 1)
