// One wave of kernels/lz4.cu on the CPU, with the memory that it needs.
#pragma once
#include "tests/simt/simt.h"
#include "kernels/lz4.cu"
#include <memory>

// few: the entry for few jobs. max_tokens: of scratch; UINT64_MAX: as much as is documented to be
// enough.
static void lz4_run(const damacy__job* jobs, damacy__job_result* results, const uint32_t* n_jobs,
                    uint32_t max_jobs, bool few = false, uint64_t max_tokens = ~0ull)
{
    std::unique_ptr<damacy__lz4_block[]> blocks(new damacy__lz4_block[max_jobs]);
    uint64_t n_tokens = 77;
    damacy__lz4_wave wave;

    if (max_tokens == ~0ull) {
        max_tokens = 0;
        for (uint32_t i = 0; i < max_jobs && i < *n_jobs; i++) {
            const uint64_t n = jobs[i].expected_size != DAMACY__SIZE_UNKNOWN ? jobs[i].expected_size
                                                                             : jobs[i].dst_capacity;
            if (!(jobs[i].flags & DAMACY__JOB_SKIP))
                max_tokens += DAMACY__LZ4_TOKENS(jobs[i].src_size, n);
        }
    }
    std::unique_ptr<uint32_t[]> tokens(new uint32_t[max_tokens + 1]);
    memset(&wave, 0, sizeof wave);
    wave.jobs = (uint64_t)(uintptr_t)jobs;
    wave.n_jobs = (uint64_t)(uintptr_t)n_jobs;
    wave.results = (uint64_t)(uintptr_t)results;
    wave.blocks = (uint64_t)(uintptr_t)blocks.get();
    wave.tokens = (uint64_t)(uintptr_t)tokens.get();
    wave.n_tokens = (uint64_t)(uintptr_t)&n_tokens;
    wave.max_tokens = max_tokens;
    wave.max_jobs = max_jobs;
    simt::launch(dim3(1), dim3(32), [&] { damacy_lz4_begin(wave); });
    simt::launch(dim3(max_jobs), dim3(32), [&] { damacy_lz4_parse(wave); });
    if (few)
        simt::launch(dim3(max_jobs), dim3(128), [&] { damacy_lz4_execute_few(wave); });
    else
        simt::launch(dim3(max_jobs), dim3(32), [&] { damacy_lz4_execute(wave); });
}
