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

#define DAMACY__BLOSC_ENTRY(name, threads, segments, tile, chunk, is_serial, per, variant)         \
    extern "C" __global__ __launch_bounds__(threads, per) void name(damacy__zstd_wave w)           \
    {                                                                                              \
        DAMACY__DYNAMIC_SHARED(shared);                                                            \
        damacy__zstd_execute<threads, segments, tile, chunk, is_serial, true>(w, variant, shared); \
    }
DAMACY__BLOSC_ENTRY(damacy_zstd_blosc_1024x3, 1024, 3, 16384, 8, false, 1,
                    DAMACY__ZSTD_EXECUTE_1024X3)
DAMACY__BLOSC_ENTRY(damacy_zstd_blosc_256x4, 256, 4, 7168, 8, false, 4, DAMACY__ZSTD_EXECUTE_256X4)
DAMACY__BLOSC_ENTRY(damacy_zstd_blosc_128x4_3k, 128, 4, 3072, 8, false, 8,
                    DAMACY__ZSTD_EXECUTE_128X4_3K)
DAMACY__BLOSC_ENTRY(damacy_zstd_blosc_128x2_serial, 128, 2, 6144, 16, true, 8,
                    DAMACY__ZSTD_EXECUTE_128X2_SERIAL)
DAMACY__BLOSC_ENTRY(damacy_zstd_blosc_64x4_serial, 64, 4, 4096, 16, true, 16,
                    DAMACY__ZSTD_EXECUTE_64X4_SERIAL)
DAMACY__BLOSC_ENTRY(damacy_zstd_blosc_256x2_serial, 256, 2, 6144, 16, true, 4,
                    DAMACY__ZSTD_EXECUTE_256X2_SERIAL)
