// One wave of kernels/lz4.cu on the CPU: by the kernel for long sequences and the one for the rest,
// or by the one for streams of blosc.
#pragma once
#include "tests/simt/simt.h"
#include "kernels/lz4.cu"

static void lz4_run(const damacy__job* jobs, damacy__job_result* results, const uint32_t* n_jobs,
                    uint32_t max_jobs, bool is_sparse_first = true)
{
    damacy__lz4_wave wave;

    memset(&wave, 0, sizeof wave);
    wave.jobs = (uint64_t)(uintptr_t)jobs;
    wave.n_jobs = (uint64_t)(uintptr_t)n_jobs;
    wave.results = (uint64_t)(uintptr_t)results;
    wave.max_jobs = max_jobs;
    if (!is_sparse_first) {
        simt::launch(dim3(1 + max_jobs / 8), dim3(128), 4 * DAMACY__LZ4_SHARED,
                     [&] { damacy_lz4_fours(wave); });
        return;
    }
    simt::launch(dim3((max_jobs + 1) / 2), dim3(64), DAMACY__LZ4_SPARSE_SHARED,
                 [&] { damacy_lz4_sparse(wave); });
    wave.is_begun = 1;
    simt::launch(dim3(max_jobs), dim3(32), DAMACY__LZ4_SHARED, [&] { damacy_lz4(wave); });
}
