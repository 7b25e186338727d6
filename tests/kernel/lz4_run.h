// One wave of kernels/lz4.cu on the CPU.
#pragma once
#include "tests/simt/simt.h"
#include "kernels/lz4.cu"

static void lz4_run(const damacy__job* jobs, damacy__job_result* results, const uint32_t* n_jobs,
                    uint32_t max_jobs)
{
    damacy__lz4_wave wave;

    memset(&wave, 0, sizeof wave);
    wave.jobs = (uint64_t)(uintptr_t)jobs;
    wave.n_jobs = (uint64_t)(uintptr_t)n_jobs;
    wave.results = (uint64_t)(uintptr_t)results;
    wave.max_jobs = max_jobs;
    simt::launch(dim3(max_jobs), dim3(32), [&] { damacy_lz4(wave); });
}
