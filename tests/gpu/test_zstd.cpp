// The Zstandard decoder on a real device against the corpora: valid frames alone and in large
// waves, hostile ones among good ones, canaries around every output, every choice of kernels.
#include "tests/gpu/zstd_device.h"
#include "tests/kernel/zstd_corpus.h"
#include "tests/test.h"

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
    bytes slab(src_size + dst_size);
    if (!is_apart) {
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t at = in[i] + (skew + i) % 16;
            std::copy(jobs[i].src.begin(), jobs[i].src.end(), slab.begin() + (long)at);
        }
        g.upload(src, slab.data(), src_size);
        g.check(damacy__fill_device(&g.device, dst, 0xa5, dst_size, g.stream, &g.err));
    }
    for (uint32_t i = 0; i < n; i++) {
        table[i].src = src + in[i] + (skew + i) % 16;
        table[i].src_size = jobs[i].src.size();
        table[i].dst = dst + out[i] + CANARY + (skew * 3 + i) % 16;
        table[i].dst_capacity = jobs[i].capacity;
        table[i].expected_size = DAMACY__SIZE_UNKNOWN;
        if (is_apart) {
            g.upload(table[i].src, jobs[i].src.data(), jobs[i].src.size());
            g.check(damacy__fill_device(&g.device, out[i], 0xa5, out_size[i], g.stream, &g.err));
        }
    }
    limits.max_jobs = n;
    limits.dst_size = std::max<uint64_t>(dst_size, 64 << 20); // hostile headers claim much
    limits.largest_size = std::max<uint64_t>(largest, 8 << 20);
    limits.has_links = options.execute & DAMACY__ZSTD_EXECUTE_LINKS;
    g.check(damacy__zstd_layout_of(&limits, &layout, &g.err));
    const uint64_t jobs_dev = g.take(n * sizeof(damacy__job)), count_dev = g.take(4);
    const uint64_t results_dev = g.take(n * sizeof(damacy__job_result));
    call.scratch = g.take(layout.size);
    g.check(damacy__fill_device(&g.device, call.scratch, 0xcc, layout.size, g.stream, &g.err));
    g.upload(jobs_dev, table.data(), n * sizeof(damacy__job));
    g.upload(count_dev, &n, 4);
    call.jobs = jobs_dev;
    call.n_jobs = count_dev;
    call.results = results_dev;
    call.stream = g.stream;
    call.options = options;
    g.check(damacy__zstd_launch(&g.kernels, &g.device, &layout, &call, &g.err));
    g.sync();
    std::vector<damacy__job_result> results(n);
    g.fetch(results.data(), results_dev, n * sizeof(damacy__job_result));
    bytes all(dst_size);
    if (!is_apart) {
        g.fetch(all.data(), dst, dst_size);
    }
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        device_job& j = jobs[i];
        if (is_apart) {
            g.fetch(&all[at], out[i], out_size[i]);
        }
        const uint64_t begin = table[i].dst - dst - out[i];
        j.result = results[i];
        j.canary = true;
        for (uint64_t k = 0; k < out_size[i]; k++) {
            if ((k < begin || k >= begin + j.capacity) && all[at + k] != 0xa5) {
                j.canary = false;
                break;
            }
        }
        const uint64_t size = j.result.status == DAMACY__JOB_OK ? j.result.size : 0;
        j.out.assign(all.begin() + (long)(at + begin), all.begin() + (long)(at + begin + size));
        at += out_size[i];
        if (is_apart) {
            g.give(in[i], in_size[i]);
            g.give(out[i], out_size[i]);
        }
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

static uint64_t number(const corpus_row& row, const char* column, int base)
{
    const corpus_row::const_iterator i = row.find(column);
    return i == row.end() ? 0 : strtoull(i->second.c_str(), nullptr, base);
}

// The valid frames of the corpora, at most n of each.
static std::vector<corpus_file> valid_frames(size_t most)
{
    std::vector<corpus_file> all;
    for (const char* const name : {"B_cs17_s1", "C_cs14_s1001", "D_smallblk_s2001", "A_big_s1"}) {
        std::vector<corpus_file> files = corpus_load(name);
        files.resize(std::min(files.size(), most));
        all.insert(all.end(), files.begin(), files.end());
    }
    return all;
}

static bool is_right(const device_job& j, const corpus_file& f)
{
    const bool right = j.result.status == DAMACY__JOB_OK && j.canary &&
                       j.out.size() == number(f.row, "bytes", 10) &&
                       corpus_crc32c(j.out.data(), j.out.size()) == number(f.row, "crc32c", 16);
    if (!right) {
        printf("# %s: status %u at %llu, %zu bytes, canary %d\n", f.name.c_str(), j.result.status,
               (unsigned long long)j.result.error_offset, j.out.size(), (int)j.canary);
    }
    return right;
}

static device_job job_of(const corpus_file& f, bool strip, uint64_t capacity)
{
    device_job j;
    j.src = strip ? corpus_without_checksum(f.content) : f.content;
    j.capacity = capacity;
    return j;
}

static void valid_waves(const std::vector<corpus_file>& files, size_t per_wave,
                        const damacy__zstd_options& o, unsigned skew, bool strip, bool is_apart)
{
    for (size_t first = 0; first < files.size(); first += per_wave) {
        const size_t n = std::min(per_wave, files.size() - first);
        std::vector<device_job> jobs;
        for (size_t i = 0; i < n; i++) {
            const corpus_file& f = files[first + i];
            jobs.push_back(job_of(f, strip, number(f.row, "bytes", 10)));
        }
        decode(*gpu(), jobs, o, skew, is_apart);
        for (size_t i = 0; i < n; i++) {
            CHECK(is_right(jobs[i], files[first + i]));
        }
    }
}

TEST(zstd_gpu_decodes_every_valid_frame)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    const std::vector<corpus_file> files = valid_frames(1000);
    damacy__zstd_options o = {};
    CHECK_EQ(files.size(), 921);
    valid_waves(files, 921, o, 0, false, false);
    valid_waves(files, 921, o, 5, true, false);
    valid_waves(files, 32, o, 11, false, false);
}

TEST(zstd_gpu_gives_the_same_bytes_with_every_kernel)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    const std::vector<corpus_file> files = valid_frames(150), few = valid_frames(8);
    const uint32_t executions[] = {DAMACY__ZSTD_EXECUTE_1024X2, DAMACY__ZSTD_EXECUTE_256X4,
                                   DAMACY__ZSTD_EXECUTE_256X2, DAMACY__ZSTD_EXECUTE_128X2};
    damacy__zstd_options o = {};
    for (uint32_t literals = DAMACY__ZSTD_LANES; literals <= DAMACY__ZSTD_SPLIT128; literals++) {
        for (uint32_t fse = DAMACY__ZSTD_FLAG_FSE_LATENCY; fse <= DAMACY__ZSTD_FLAG_FSE_THROUGHPUT;
             fse *= 2) {
            o.literals = literals;
            o.fse = fse;
            o.execute = executions[(literals + fse / 256) % 4];
            valid_waves(files, 500, o, literals, literals & 1, false);
        }
    }
    for (const uint32_t execute : executions) {
        o.execute = execute;
        valid_waves(files, 500, o, execute % 13, false, false);
    }
    o.execute = DAMACY__ZSTD_EXECUTE_LINKS;
    valid_waves(few, 16, o, 3, false, false);
}

// Bad frames among good ones: verdicts as on the CPU, the good ones right every time.
static void hostile(const char* name, size_t every, bool is_apart, size_t per_wave)
{
    const std::vector<corpus_file> bad = corpus_load(name), good = valid_frames(20);
    const bool has_spec = strstr(name, "crafted") != nullptr;
    uint64_t n_laxer = 0;
    damacy__zstd_options o = {};

    for (size_t first = 0; first < bad.size(); first += per_wave * every) {
        std::vector<device_job> jobs;
        std::vector<const corpus_file*> files;
        for (size_t i = first; i < std::min(bad.size(), first + per_wave * every); i += every) {
            const corpus_file& b = bad[i];
            const corpus_file& g = good[i % good.size()];
            const bool ok = b.row.at("libzstd156") == "ok";
            jobs.push_back(job_of(b, false, ok ? number(b.row, "bytes156", 10) : 300000));
            files.push_back(&b);
            jobs.push_back(job_of(g, false, number(g.row, "bytes", 10)));
            files.push_back(&g);
        }
        o.literals = 1 + (uint32_t)(first / per_wave) % 3;
        decode(*gpu(), jobs, o, (unsigned)first % 16, is_apart);
        for (size_t i = 0; i < jobs.size(); i++) {
            const corpus_row& row = files[i]->row;
            CHECK(jobs[i].canary);
            if (i % 2) {
                CHECK(is_right(jobs[i], *files[i]));
                continue;
            }
            bool ok = row.at("libzstd156") == "ok";
            if (has_spec && row.at("spec") != "any") {
                ok = row.at("spec") == "ok";
            }
            if (jobs[i].result.status == DAMACY__JOB_OK) {
                CHECK(ok);
                CHECK_EQ(jobs[i].out.size(), number(row, "bytes156", 10));
                CHECK_EQ(corpus_crc32c(jobs[i].out.data(), jobs[i].out.size()),
                         number(row, "crc156", 16));
            } else if (ok) {
                n_laxer++;
            }
        }
    }
    CHECK(n_laxer <= (has_spec ? 0u : 4u)); // the deliberate differences of tests/kernel
}

TEST(zstd_gpu_refuses_hostile_frames_and_spares_the_good_ones)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    hostile("zstd_crafted", 1, false, 215);
    hostile("zstd_fuzz", 1, false, 410);
}

TEST(zstd_gpu_stays_inside_separate_allocations)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    damacy__zstd_options o = {};
    valid_waves(valid_frames(40), 80, o, 0, false, true);
    hostile("zstd_crafted", 2, true, 60);
    hostile("zstd_fuzz", 5, true, 130);
}

TEST(zstd_gpu_repeats_itself)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    const std::vector<corpus_file> files = valid_frames(60), bad = corpus_load("zstd_crafted");
    std::vector<device_job> jobs, first;
    damacy__zstd_options o = {};
    for (size_t i = 0; i < files.size() && i < bad.size(); i++) {
        jobs.push_back(job_of(files[i], false, number(files[i].row, "bytes", 10)));
        jobs.push_back(job_of(bad[i], false, 100000));
    }
    for (int run = 0; run < 50; run++) {
        decode(*gpu(), jobs, o, 0, false);
        if (run == 0) {
            first = jobs;
        }
        for (size_t i = 0; i < jobs.size(); i++) {
            CHECK_EQ(jobs[i].result.status, first[i].result.status);
            CHECK_EQ(jobs[i].result.error_offset, first[i].result.error_offset);
            CHECK(jobs[i].out == first[i].out);
        }
    }
}

TEST_MAIN
