// One wave of frames decoded on a real device, for the tests of its Zstandard decoder: canaries
// around every output, odd addresses, allocations apart; what came out is looked at by all cores.
#pragma once
#include "tests/gpu/zstd_device.h"
#include "tests/kernel/zstd_corpus.h"
#include <thread>

// Calls f(i) for each i below n, on up to 16 threads.
template <typename F> static void in_parallel(size_t n, const F& f)
{
    const size_t n_threads = std::max(1u, std::min(16u, std::thread::hardware_concurrency()));
    std::vector<std::thread> threads;
    for (size_t t = 0; t < n_threads; t++) {
        threads.emplace_back([&f, n, n_threads, t] {
            for (size_t i = t; i < n; i += n_threads) {
                f(i);
            }
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
}

static zstd_device* gpu()
{
    static zstd_device device;
    static int state; // 1 open, -1 none
    if (!state) {
        state = device.open() == DAMACY_OK ? 1 : -1;
        if (state < 0) {
            printf("# %s\n", device.err.message);
        }
    }
    return state > 0 ? &device : nullptr;
}

struct device_job {
    bytes src;
    uint64_t capacity = 0;
    damacy__job_result result = {0, 0, 0, 0};
    bytes out;
    bool canary = true;
};

enum { CANARY = 256 };

// What memory of the device holds before a wave: outputs, and scratch.
static uint8_t fill_of_outputs = 0xa5, fill_of_scratch = 0xcc;

// Bytes of literals and records that a wave has room for; 0: as many as typical data need.
static uint64_t pool_of_waves;

// Blocks, and frames, for which scratch has room; 0: as many as are likely.
static uint32_t blocks_of_waves;

// Whether launches are told how large all outputs are together, and the largest.
static bool is_told_sizes;

// Takes over what became of a job: memory holds its output, from begin on, between the canaries.
static void inspect(device_job& j, const damacy__job_result& result, const uint8_t* memory,
                    uint64_t size, uint64_t begin)
{
    const uint8_t* const out = memory + begin;
    const auto is_whole = [](uint8_t byte) { return byte == fill_of_outputs; };
    j.result = result;
    j.canary = std::all_of(memory, out, is_whole) &&
               std::all_of(out + j.capacity, memory + size, is_whole);
    j.out.assign(out, out + (result.status == DAMACY__JOB_OK ? result.size : 0));
}

// Decodes the jobs as one wave. skew shifts input and output addresses; is_apart gives every input
// and output an allocation of its own.
static void decode(zstd_device& g, std::vector<device_job>& jobs,
                   const damacy__zstd_options& options, unsigned skew, bool is_apart)
{
    const uint32_t n = (uint32_t)jobs.size();
    std::vector<damacy__job> table(n);
    std::vector<uint64_t> in(n), out(n), in_size(n), out_size(n);
    uint64_t src_size = 0, dst_size = 0, largest = 0;
    damacy__zstd_limits limits = {};
    damacy__zstd_layout layout = {};
    damacy__zstd_call call = {};

    for (uint32_t i = 0; i < n; i++) {
        in_size[i] = jobs[i].src.size() + 16;
        out_size[i] = jobs[i].capacity + 2 * CANARY + 16;
        in[i] = is_apart ? g.take(in_size[i]) : src_size;
        out[i] = is_apart ? g.take(out_size[i]) : dst_size;
        src_size += in_size[i];
        dst_size += out_size[i];
        largest = std::max(largest, jobs[i].capacity);
    }
    const uint64_t src = is_apart ? 0 : g.take(src_size), dst = is_apart ? 0 : g.take(dst_size);
    if (!is_apart) {
        bytes slab(src_size);
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t at = in[i] + (skew + i) % 16;
            std::copy(jobs[i].src.begin(), jobs[i].src.end(), slab.begin() + (long)at);
        }
        g.upload(src, slab.data(), src_size);
        g.check(damacy__fill_device(&g.device, dst, fill_of_outputs, dst_size, g.stream, &g.err));
    }
    for (uint32_t i = 0; i < n; i++) {
        table[i].src = src + in[i] + (skew + i) % 16;
        table[i].src_size = jobs[i].src.size();
        table[i].dst = dst + out[i] + CANARY + (skew * 3 + i) % 16;
        table[i].dst_capacity = jobs[i].capacity;
        table[i].expected_size = DAMACY__SIZE_UNKNOWN;
        if (is_apart) {
            g.upload(table[i].src, jobs[i].src.data(), jobs[i].src.size());
            g.check(damacy__fill_device(&g.device, out[i], fill_of_outputs, out_size[i], g.stream,
                                        &g.err));
        }
    }
    limits.max_jobs = n;
    limits.dst_size = std::max<uint64_t>(dst_size, 64 << 20); // hostile headers claim much
    limits.largest_size = std::max<uint64_t>(largest, 8 << 20);
    limits.has_links = options.execute & DAMACY__ZSTD_EXECUTE_LINKS;
    limits.pool_size = pool_of_waves;
    limits.max_blocks = blocks_of_waves;
    g.check(damacy__zstd_layout_of(&limits, &layout, &g.err));
    const uint64_t jobs_dev = g.take(n * sizeof(damacy__job)), count_dev = g.take(4);
    const uint64_t results_dev = g.take(n * sizeof(damacy__job_result));
    call.scratch = g.take(layout.size);
    g.check(damacy__fill_device(&g.device, call.scratch, fill_of_scratch, layout.size, g.stream,
                                &g.err));
    g.upload(jobs_dev, table.data(), n * sizeof(damacy__job));
    g.upload(count_dev, &n, 4);
    call.jobs = jobs_dev;
    call.n_jobs = count_dev;
    call.results = results_dev;
    call.stream = g.stream;
    call.options = options;
    call.likely_size = is_told_sizes ? dst_size : 0;
    call.likely_most = is_told_sizes ? largest : 0;
    g.check(damacy__zstd_launch(&g.kernels, &g.device, &layout, &call, &g.err));
    g.sync();
    std::vector<damacy__job_result> results(n);
    g.fetch(results.data(), results_dev, n * sizeof(damacy__job_result));
    bytes all(is_apart ? 0 : dst_size);
    if (!is_apart) {
        g.fetch(all.data(), dst, dst_size);
        in_parallel(n, [&](size_t i) {
            inspect(jobs[i], results[i], &all[out[i]], out_size[i], table[i].dst - dst - out[i]);
        });
    }
    for (uint32_t i = 0; i < n && is_apart; i++) {
        all.resize(out_size[i]);
        g.fetch(all.data(), out[i], out_size[i]);
        inspect(jobs[i], results[i], all.data(), out_size[i], table[i].dst - out[i]);
        g.give(in[i], in_size[i]);
        g.give(out[i], out_size[i]);
    }
    if (!is_apart) {
        g.give(src, src_size);
        g.give(dst, dst_size);
    }
    g.give(jobs_dev, n * sizeof(damacy__job));
    g.give(count_dev, 4);
    g.give(results_dev, n * sizeof(damacy__job_result));
    g.give(call.scratch, layout.size);
}

static uint32_t noise_state = 12345;
static uint32_t noise()
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return noise_state >> 8;
}

// Photon noise above an offset, as 16-bit voxels: short matches, few literals, many sequences.
static bytes dim_volume(size_t size)
{
    bytes out(size);
    for (size_t i = 0; i + 1 < size; i += 2) {
        uint32_t v = 96;
        for (uint32_t bits = noise(); bits; bits &= bits - 1) {
            v++;
        }
        out[i] = (uint8_t)v;
    }
    return out;
}
