// The Zstandard decoder on a real device against the corpora: valid frames
// alone and in large waves, hostile ones among good ones, canaries around every
// output, every choice of kernels.
#include "bench/rows_of_ids.h"
#include "tests/gpu/driver_symbol.h"
#include "tests/gpu/zstd_wave.h"
#include "tests/kernel/zstd_unlikely.h"
#include "tests/test.h"
#include <zstd.h>

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

// More than execution has blocks of threads, which take them in line, and than one lists.
TEST(zstd_gpu_decodes_many_small_frames)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    const std::vector<corpus_file> files = corpus_load("C_cs14_s1001");
    std::vector<corpus_file> many;
    const size_t n =
        std::max(64u * (unsigned)gpu()->device.n_multiprocessors, 2 * DAMACY__ZSTD_LIST_PART) + 500;
    for (size_t i = 0; many.size() < n; i++) {
        const corpus_file& f = files[i % files.size()];
        if (number(f.row, "bytes", 10) <= 4096) {
            many.push_back(f);
        }
    }
    blocks_of_waves = 4 * (uint32_t)many.size(); // they have up to 14 each
    valid_waves(many, many.size(), damacy__zstd_options(), 9, false, false);
    blocks_of_waves = 0;
}

// So many that one warp copies what a tile has of its own, in both shapes, also where large frames
// would be shared.
TEST(zstd_gpu_decodes_frames_that_shrink_to_little)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    uint64_t seed = test_seed();
    for (const size_t n : {90, 150, 201, 650, 1100}) {
        std::vector<bytes> contents(20);
        std::vector<device_job> jobs(n);
        for (bytes& content : contents) {
            content = rows_of_ids((n == 150 ? 1 << 20 : 1) + (size_t)(test_random(&seed) % 200000),
                                  [&] { return test_random(&seed); });
        }
        for (size_t i = 0; i < n; i++) {
            const bytes& content = contents[i % 20];
            jobs[i].capacity = content.size();
            jobs[i].src.resize(ZSTD_compressBound(content.size()));
            jobs[i].src.resize(ZSTD_compress(jobs[i].src.data(), jobs[i].src.size(), content.data(),
                                             content.size(), i % 20 < 10 ? 1 : 9));
        }
        decode(*gpu(), jobs, damacy__zstd_options(), (unsigned)n, false);
        for (size_t i = 0; i < n; i++) {
            CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
            CHECK(jobs[i].canary && jobs[i].out == contents[i % 20]);
        }
    }
}

TEST(zstd_gpu_gives_the_same_bytes_with_every_kernel)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    const std::vector<corpus_file> files = valid_frames(150), few = valid_frames(8);
    const uint32_t executions[] = {
        DAMACY__ZSTD_EXECUTE_1024X3,     DAMACY__ZSTD_EXECUTE_256X4,
        DAMACY__ZSTD_EXECUTE_128X4,      DAMACY__ZSTD_EXECUTE_128X4_3K,
        DAMACY__ZSTD_EXECUTE_RELAY,      DAMACY__ZSTD_EXECUTE_WIDE,
        DAMACY__ZSTD_EXECUTE_128X2,      DAMACY__ZSTD_EXECUTE_128X2_SERIAL,
        DAMACY__ZSTD_EXECUTE_64X4_SERIAL};
    damacy__zstd_options o = {};
    for (uint32_t literals = DAMACY__ZSTD_LANES; literals <= DAMACY__ZSTD_SPLIT4; literals++) {
        for (uint32_t fse = DAMACY__ZSTD_FLAG_FSE_LATENCY; fse <= DAMACY__ZSTD_FLAG_FSE_THROUGHPUT;
             fse *= 2) {
            o.literals = literals;
            o.fse = fse;
            o.execute = executions[(literals + fse / 256) % 9];
            valid_waves(files, 500, o, literals, literals & 1, false);
        }
    }
    for (const uint32_t execute : executions) {
        o.execute = execute;
        valid_waves(files, 500, o, execute % 13, false, false);
        o.turns = DAMACY__ZSTD_FLAG_TURNS;
        valid_waves(files, 500, o, execute % 11, false, false);
        o.turns = 0;
    }
    o.execute = DAMACY__ZSTD_EXECUTE_LINKS;
    valid_waves(few, 16, o, 3, false, false);
}

// Each kernel once on little data: what a tool that watches every access can
// bear.
TEST(zstd_gpu_decodes_a_small_wave_with_every_kernel)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    std::vector<corpus_file> files = corpus_load("C_cs14_s1001");
    const std::vector<corpus_file> blocks = corpus_load("D_smallblk_s2001");
    files.resize(5);
    files.insert(files.end(), blocks.begin(), blocks.begin() + 2);
    for (const uint32_t literals :
         {DAMACY__ZSTD_LANES, DAMACY__ZSTD_SPLIT, DAMACY__ZSTD_SPLIT_SMALL, DAMACY__ZSTD_SPLIT4}) {
        damacy__zstd_options o = {};
        o.literals = literals;
        valid_waves(files, files.size(), o, literals, false, false);
    }
    for (uint32_t fse = DAMACY__ZSTD_FLAG_FSE_LATENCY; fse <= DAMACY__ZSTD_FLAG_FSE_THROUGHPUT;
         fse *= 2) {
        damacy__zstd_options o = {};
        o.fse = fse;
        valid_waves(files, files.size(), o, 1, true, false);
    }
    for (const uint32_t execute :
         {DAMACY__ZSTD_EXECUTE_1024X3, DAMACY__ZSTD_EXECUTE_256X4, DAMACY__ZSTD_EXECUTE_128X4,
          DAMACY__ZSTD_EXECUTE_128X4_3K, DAMACY__ZSTD_EXECUTE_LINKS, DAMACY__ZSTD_EXECUTE_RELAY,
          DAMACY__ZSTD_EXECUTE_WIDE, DAMACY__ZSTD_EXECUTE_128X2, DAMACY__ZSTD_EXECUTE_128X2_SERIAL,
          DAMACY__ZSTD_EXECUTE_64X4_SERIAL}) {
        damacy__zstd_options o = {};
        o.execute = execute;
        valid_waves(files, files.size(), o, 7, false, false);
        o.turns = DAMACY__ZSTD_FLAG_TURNS;
        valid_waves(files, files.size(), o, 3, false, false);
    }
}

// Kernels read whole words, of which some bytes may never have been written:
// they must not count.
TEST(zstd_gpu_gives_the_same_whatever_memory_held)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    const std::vector<corpus_file> files = valid_frames(40);
    damacy__zstd_options o = {};
    for (const uint32_t fill : {0x00u, 0xffu, 0x5au}) {
        fill_of_scratch = (uint8_t)fill;
        fill_of_outputs = (uint8_t)~fill;
        for (const size_t per_wave : {files.size(), (size_t)20, (size_t)1}) {
            valid_waves(files, per_wave, o, fill, false, per_wave == 20);
        }
    }
    fill_of_scratch = 0xcc;
    fill_of_outputs = 0xa5;
}

// Bad frames among good ones: verdicts as on the CPU, the good ones right every
// time.
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

// Waves with ever less room for records: first for all that there may be, then for those that are
// likely, which is too little for every third frame, whose tables are no measure.
TEST(zstd_gpu_finds_room_for_more_records_than_were_likely)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    uint64_t seed = test_seed();
    std::vector<device_job> jobs(400);
    std::vector<bytes> contents(jobs.size());
    uint64_t size = 0;
    uint32_t n_whole = 0, n_short = 0;

    for (size_t i = 0; i < jobs.size(); i++) {
        bytes& content = contents[i];
        content = dim_volume(131072);
        if (i % 3 == 0) {
            jobs[i].src = unlikely_frame(60 + (uint32_t)test_random(&seed) % 6900, &seed);
            content.resize(ZSTD_decompress(content.data(), content.size(), jobs[i].src.data(),
                                           jobs[i].src.size()));
        } else {
            jobs[i].src.resize(ZSTD_compressBound(content.size()));
            jobs[i].src.resize(ZSTD_compress(jobs[i].src.data(), jobs[i].src.size(), content.data(),
                                             content.size(), 3));
        }
        jobs[i].capacity = content.size();
        size += content.size();
    }
    for (uint32_t tenths = 44; tenths; tenths -= 2) {
        damacy__zstd_options options = {};
        uint32_t n_refused = 0;
        options.fse = tenths % 4 ? DAMACY__ZSTD_FLAG_FSE_LATENCY : DAMACY__ZSTD_FLAG_FSE_THROUGHPUT;
        pool_of_waves = size / 10 * tenths;
        decode(*gpu(), jobs, options, tenths, false);
        for (size_t i = 0; i < jobs.size(); i++) {
            CHECK(jobs[i].canary);
            if (jobs[i].result.status == DAMACY__JOB_NEED_SCRATCH) {
                n_refused++;
            } else {
                CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
                CHECK(jobs[i].out == contents[i]);
            }
        }
        n_whole += n_refused == 0;
        n_short += n_refused != 0;
        printf("# room for %.1f bytes per byte: %u of %zu refused\n", tenths / 10.0, n_refused,
               jobs.size());
    }
    pool_of_waves = 0;
    CHECK(n_whole > 8 && n_short > 2);
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

// A wave that stays on the device, to be launched again and again.
struct resident {
    std::vector<corpus_file> files;
    damacy__zstd_layout layout = {};
    damacy__zstd_call call = {};
    std::vector<uint64_t> at, held, held_size;
    uint64_t dst = 0, dst_size = 0;

    uint64_t take(zstd_device& g, uint64_t size)
    {
        held.push_back(g.take(size));
        held_size.push_back(size);
        return held.back();
    }

    void open(zstd_device& g, const std::vector<corpus_file>& all)
    {
        damacy__zstd_limits limits = {};
        std::vector<damacy__job> jobs;
        bytes in;
        files = all;
        for (const corpus_file& f : files) {
            damacy__job j = {};
            j.src = in.size();
            j.src_size = f.content.size();
            j.dst = dst_size;
            j.dst_capacity = j.expected_size = number(f.row, "bytes", 10);
            limits.largest_size = std::max(limits.largest_size, j.dst_capacity);
            at.push_back(dst_size);
            dst_size += j.dst_capacity;
            in.insert(in.end(), f.content.begin(), f.content.end());
            jobs.push_back(j);
        }
        const uint64_t src = take(g, in.size());
        const uint32_t n = (uint32_t)jobs.size();
        dst = take(g, dst_size);
        for (damacy__job& j : jobs) {
            j.src += src;
            j.dst += dst;
        }
        limits.max_jobs = n;
        limits.dst_size = 3 * dst_size; // frames of a generator need more than typical data
        limits.largest_size = 8 << 20;
        g.check(damacy__zstd_layout_of(&limits, &layout, &g.err));
        call.jobs = take(g, n * sizeof(damacy__job));
        call.n_jobs = take(g, 4);
        call.results = take(g, n * sizeof(damacy__job_result));
        call.scratch = take(g, layout.size);
        g.check(damacy__stream_open(&g.device, false, &call.stream, &g.err));
        g.upload(src, in.data(), in.size());
        g.upload(call.jobs, jobs.data(), n * sizeof(damacy__job));
        g.upload(call.n_jobs, &n, 4);
    }

    // Forgets the last output.
    void reset(zstd_device& g)
    {
        g.check(damacy__fill_device(&g.device, dst, 0xa5, dst_size, call.stream, &g.err));
        g.check(damacy__fill_device(&g.device, call.results, 0xee,
                                    files.size() * sizeof(damacy__job_result), call.stream,
                                    &g.err));
    }

    void launch(zstd_device& g)
    {
        g.check(damacy__zstd_launch(&g.kernels, &g.device, &layout, &call, &g.err));
    }

    bool is_right(zstd_device& g)
    {
        bytes out(dst_size);
        std::vector<damacy__job_result> results(files.size());
        CHECK_EQ(g.driver.stream_synchronize(call.stream), 0);
        g.fetch(out.data(), dst, dst_size);
        g.fetch(results.data(), call.results, results.size() * sizeof(damacy__job_result));
        for (size_t i = 0; i < files.size(); i++) {
            if (results[i].status != DAMACY__JOB_OK ||
                corpus_crc32c(&out[at[i]], results[i].size) != number(files[i].row, "crc32c", 16)) {
                printf("# %s: status %u\n", files[i].name.c_str(), results[i].status);
                return false;
            }
        }
        return true;
    }

    void close(zstd_device& g)
    {
        for (size_t i = 0; i < held.size(); i++) {
            g.give(held[i], held_size[i]);
        }
        damacy__stream_close(&g.device, call.stream);
    }
};

TEST(zstd_gpu_runs_in_a_captured_graph)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    zstd_device& g = *gpu();
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*begin)(damacy__stream, int) = nullptr;
    int (*end)(damacy__stream, void**) = nullptr;
    int (*instantiate)(void**, void*, unsigned long long) = nullptr;
    int (*run)(void*, damacy__stream) = nullptr;
    CHECK(driver_symbol(library, "cuStreamBeginCapture_v2", (void*)&begin) &&
          driver_symbol(library, "cuStreamEndCapture", (void*)&end) &&
          driver_symbol(library, "cuGraphInstantiateWithFlags", (void*)&instantiate) &&
          driver_symbol(library, "cuGraphLaunch", (void*)&run));
    for (uint32_t literals = DAMACY__ZSTD_LANES; literals <= DAMACY__ZSTD_SPLIT4; literals++) {
        void *graph = nullptr, *executable = nullptr;
        resident r;
        r.open(g, valid_frames(30));
        r.call.options.literals = literals;
        CHECK_EQ(begin(r.call.stream, 0),
                 0); // global mode: any forbidden call fails
        r.launch(g);
        CHECK_EQ(end(r.call.stream, &graph), 0);
        CHECK_EQ(instantiate(&executable, graph, 0), 0);
        for (int k = 0; k < 3; k++) {
            r.reset(g);
            CHECK_EQ(run(executable, r.call.stream), 0);
            CHECK(r.is_right(g));
        }
        r.close(g);
    }
}

TEST(zstd_gpu_keeps_waves_on_four_streams_apart)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    zstd_device& g = *gpu();
    resident waves[4];
    for (size_t i = 0; i < 4; i++) {
        std::vector<corpus_file> files = valid_frames(60);
        std::rotate(files.begin(), files.begin() + (long)(i * 17), files.end());
        waves[i].open(g, files);
        waves[i].call.options.literals = 1 + (uint32_t)i % 3;
    }
    for (int k = 0; k < 20; k++) {
        for (resident& w : waves) {
            w.reset(g);
            w.launch(g);
        }
        for (resident& w : waves) {
            CHECK(k % 5 || w.is_right(g));
        }
    }
    for (resident& w : waves) {
        w.close(g);
    }
}

// Bytes of frame i of n: one in five is large, of few one of all.
static size_t size_among(size_t i, size_t n, size_t large)
{
    const size_t step = n < 30 ? n : n / 5;
    return i % step == 1 ? large + 70001 * (i / step) : 4096 + 300 * (i % 50);
}

// Some frames of a wave are much larger than the others, of short segments or of long ones.
TEST(zstd_gpu_decodes_frames_much_larger_than_others_beside_them)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    const char* const small = getenv("DAMACY_TEST_SMALL"); // under a sanitizer; 2: under racecheck
    const size_t most = !small ? 2000 : strcmp(small, "2") == 0 ? 9 : 199;
    for (const size_t n : {9, 30, 199, 201, 700, 1501}) {
        std::vector<device_job> jobs(n);
        std::vector<bytes> contents(n);
        damacy__zstd_options o = {};
        if (n > most) {
            break;
        }
        for (size_t i = 0; i < n; i++) {
            contents[i] = dim_volume(size_among(i, n, small ? 1 << 20 : 3 << 20));
            for (size_t k = 0; k < contents[i].size() && n % 2; k++) {
                contents[i][k] = (uint8_t)(k % 97 < 90 ? k % 97 + k / 4096 : contents[i][k]);
            }
        }
        in_parallel(n, [&](size_t i) {
            jobs[i].src.resize(ZSTD_compressBound(contents[i].size()));
            jobs[i].src.resize(ZSTD_compress(jobs[i].src.data(), jobs[i].src.size(),
                                             contents[i].data(), contents[i].size(), 3));
            jobs[i].capacity = contents[i].size();
        });
        is_told_sizes = true;
        for (unsigned run = 0; run < 3; run++) {
            o.literals = run;
            decode(*gpu(), jobs, o, run, false);
            for (size_t i = 0; i < n; i++) {
                CHECK(jobs[i].canary);
                CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
                CHECK(jobs[i].out == contents[i]);
            }
        }
        is_told_sizes = false;
    }
}

// Says on its own line which choice of kernels is wrong.
TEST(zstd_gpu_decodes_few_large_frames_with_every_kernel)
{
    if (!gpu()) {
        SKIP("no CUDA device");
    }
    const uint32_t executions[] = {0, DAMACY__ZSTD_EXECUTE_1024X3, DAMACY__ZSTD_EXECUTE_LINKS,
                                   DAMACY__ZSTD_EXECUTE_RELAY, DAMACY__ZSTD_EXECUTE_WIDE};
    size_t n_wrong_choices = 0;
    for (const size_t n : {1, 2, 7}) {
        std::vector<bytes> contents(n), frames(n);
        for (size_t k = 0; k < n; k++) {
            contents[k] = dim_volume(262144);
            frames[k].resize(ZSTD_compressBound(262144));
            frames[k].resize(
                ZSTD_compress(frames[k].data(), frames[k].size(), contents[k].data(), 262144, 3));
        }
        for (uint32_t choice = 0; choice < 4 * DAMACY__COUNT(executions); choice++) {
            damacy__zstd_options o = {};
            o.literals = choice % 4;
            o.execute = executions[choice / 4];
            size_t n_wrong = 0;
            uint32_t status = 0;
            for (unsigned run = 0; run < 5; run++) {
                std::vector<device_job> jobs(n);
                for (size_t k = 0; k < n; k++) {
                    jobs[k].src = frames[k];
                    jobs[k].capacity = 262144;
                }
                decode(*gpu(), jobs, o, run, false);
                for (const device_job& j : jobs) {
                    const size_t k = (size_t)(&j - jobs.data());
                    status = std::max(status, j.result.status);
                    n_wrong +=
                        !j.canary || j.result.status != DAMACY__JOB_OK || j.out != contents[k];
                }
            }
            if (n_wrong) {
                printf("# %zu frames, literals %u, execute %x: %zu of %zu wrong, "
                       "status %u\n",
                       n, o.literals, o.execute, n_wrong, 5 * n, status);
            }
            n_wrong_choices += n_wrong != 0;
        }
    }
    CHECK_EQ(n_wrong_choices, 0);
}

TEST_MAIN
