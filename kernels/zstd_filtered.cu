// Execution of Zstandard frames that are blosc blocks, whose byte shuffle it undoes: entries of
// zstd_sequences.cu with that at their end, a program of their own as they would slow others down.
#include "kernels/zstd_exec.cuh"

#define DAMACY__FILTERED_ENTRY(name, threads, segments, tile, chunk, per_multiprocessor, variant) \
    extern "C" __global__ __launch_bounds__(threads, per_multiprocessor) void name(               \
        damacy__zstd_wave w)                                                                      \
    {                                                                                             \
        DAMACY__DYNAMIC_SHARED(shared);                                                           \
        damacy__zstd_execute<threads, segments, tile, chunk, true>(w, variant, shared);           \
    }
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_256x4, 256, 4, 7168, 8, 4, DAMACY__ZSTD_EXECUTE_256X4)
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_128x4, 128, 4, 4096, 8, 8, DAMACY__ZSTD_EXECUTE_128X4)
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_128x4_3k, 128, 4, 3072, 8, 8,
                       DAMACY__ZSTD_EXECUTE_128X4_3K)
DAMACY__FILTERED_ENTRY(damacy_zstd_filtered_128x2, 128, 2, 4096, 16, 8, DAMACY__ZSTD_EXECUTE_128X2)
