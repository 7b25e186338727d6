// Execution of Zstandard frames that are blosc blocks, whose byte shuffle it undoes: entries of
// zstd_sequences.cu with that at their end, a program of their own as they would slow others down.
#include "kernels/zstd_exec.cuh"

#define DAMACY__FILTERED_ENTRY(name, threads, segments, tile, chunk, is_serial, per, variant)      \
    extern "C" __global__ __launch_bounds__(threads, per) void name(damacy__zstd_wave w)           \
    {                                                                                              \
        DAMACY__DYNAMIC_SHARED(shared);                                                            \
        damacy__zstd_execute<threads, segments, tile, chunk, is_serial, true>(w, variant, shared); \
    }
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_256x4, 256, 4, 7168, 8, false, 4,
                       DAMACY__ZSTD_EXECUTE_256X4)
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_128x4_3k, 128, 4, 3072, 8, false, 8,
                       DAMACY__ZSTD_EXECUTE_128X4_3K)
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_128x2_serial, 128, 2, 6144, 16, true, 8,
                       DAMACY__ZSTD_EXECUTE_128X2_SERIAL)
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_64x4_serial, 64, 4, 4096, 16, true, 16,
                       DAMACY__ZSTD_EXECUTE_64X4_SERIAL)
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_256x2_serial, 256, 2, 6144, 16, true, 4,
                       DAMACY__ZSTD_EXECUTE_256X2_SERIAL)
