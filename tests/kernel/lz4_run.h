// One wave of kernels/lz4.cu on the CPU, by any of the ways that it may take.
#pragma once
#include "tests/simt/simt.h"
static uint32_t lz4_shrunk_times; // as the kernels' number, or 0: all blocks are taken for such
#define DAMACY__LZ4_SHRUNK lz4_shrunk_times
#include "kernels/lz4.cu"

struct lz4_way {
    bool is_sparse_first; // else as streams of blosc go
    uint32_t team;        // warps, 0 if none
    bool is_shrunk;       // as if all blocks shrank to little
    uint32_t team_size;   // room of the blocks that are for teams; 0: all are
    uint32_t team_shrink; // teams have waves that shrink so many times; 0: whatever they do
    uint32_t relay_size;  // room of the blocks that are for relays; 0: none
};

// All of them, the first four as streams of blosc go.
static const lz4_way lz4_ways[] = {
    {false, 0, false, 0, 0}, {false, 4, false, 0, 0}, {false, 8, false, 0, 0},
    {false, 4, false, 0, 1}, {true, 0, false, 0, 0},  {true, 4, false, 0, 0},
    {true, 8, false, 0, 0},  {true, 0, true, 0, 0},   {true, 8, false, 5, 0},
    {true, 8, true, 5, 0},   {true, 4, false, 0, 2},  {true, 8, false, 0, 0, 3000}};

// The kernel for teams of 4 or 8 warps.
static void lz4_run_team(const damacy__lz4_wave& wave, uint32_t team)
{
    const dim3 grid(1 + wave.max_jobs / 2);
    if (team == 4)
        simt::launch(grid, dim3(128), DAMACY__LZ4_TEAM4_SHARED, [&] { damacy_lz4_team4(wave); });
    else
        simt::launch(grid, dim3(256), DAMACY__LZ4_TEAM8_SHARED, [&] { damacy_lz4_team8(wave); });
}

static void lz4_run(const damacy__job* jobs, damacy__job_result* results, const uint32_t* n_jobs,
                    uint32_t max_jobs, lz4_way way = {true, 0, false, 0, 0},
                    damacy__blosc_chunk* chunks = nullptr, uint32_t n_multiprocessors = 0)
{
    damacy__lz4_wave wave;

    memset(&wave, 0, sizeof wave);
    wave.jobs = (uint64_t)(uintptr_t)jobs;
    wave.n_jobs = (uint64_t)(uintptr_t)n_jobs;
    wave.results = (uint64_t)(uintptr_t)results;
    wave.max_jobs = max_jobs;
    wave.chunks = (uint64_t)(uintptr_t)chunks;
    wave.n_multiprocessors = n_multiprocessors;
    wave.team_most = way.team && way.team_size == 0 && way.team_shrink == 0 ? max_jobs : 0;
    wave.team_some = way.team_shrink ? max_jobs : 0;
    wave.team_shrink = way.team_shrink;
    wave.team_size = way.team_size ? way.team_size : DAMACY__LZ4_TEAM_NEVER;
    wave.relay_size = way.relay_size;
    lz4_shrunk_times = way.is_shrunk ? 0 : 24;
    if (way.is_sparse_first)
        simt::launch(dim3((max_jobs + 1) / 2), dim3(64), DAMACY__LZ4_SPARSE_SHARED,
                     [&] { damacy_lz4_sparse(wave); });
    wave.is_begun = way.is_sparse_first;
    bool is_large = false;
    for (uint32_t i = 0; i < max_jobs; i++)
        is_large = is_large || jobs[i].dst_capacity >= way.relay_size;
    if (way.relay_size && is_large)
        simt::launch(dim3(2), dim3(DAMACY__LZ4_RELAY_THREADS), DAMACY__LZ4_RELAY_SHARED,
                     [&] { damacy_lz4_relay(wave); });
    if (way.team)
        lz4_run_team(wave, way.team);
    if (way.is_sparse_first)
        simt::launch(dim3(max_jobs), dim3(32), DAMACY__LZ4_SHARED, [&] { damacy_lz4(wave); });
    else
        simt::launch(dim3(1 + max_jobs / 8), dim3(128), 4 * DAMACY__LZ4_SHARED,
                     [&] { damacy_lz4_fours(wave); });
}
