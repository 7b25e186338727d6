// Entries of zstd_sequences.cu for Zstandard frames that are blosc blocks: records are of
// sequences, and execution undoes the byte shuffle. A program of their own, as they would slow
// others down.
#include "kernels/zstd_exec.cuh"
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

DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_1024x3, DAMACY__ZSTD_EXECUTE_1024X3, 1, 1024, 3, 16384, 8,
                      false, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_256x4, DAMACY__ZSTD_EXECUTE_256X4, 4, 256, 4, 7168, 8,
                      false, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_128x4_3k, DAMACY__ZSTD_EXECUTE_128X4_3K, 8, 128, 4, 3072, 8,
                      false, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_128x2_serial, DAMACY__ZSTD_EXECUTE_128X2_SERIAL, 8, 128, 2,
                      6144, 16, true, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_64x4_serial, DAMACY__ZSTD_EXECUTE_64X4_SERIAL, 16, 64, 4,
                      4096, 16, true, true)
DAMACY__EXECUTE_ENTRY(damacy_zstd_blosc_256x2_serial, DAMACY__ZSTD_EXECUTE_256X2_SERIAL, 4, 256, 2,
                      6144, 16, true, true)
