// src/stage/zstd_launch.h on a fake driver whose device runs the kernels on the CPU: the layout
// holds what it promises, every choice of kernels decodes, waves on two streams do not mix.
#include "gpu/memory.h"
#include "stage/zstd_launch.h"
#include "tests/device_open.h"
#include "tests/simt/counts.h"
#include "tests/simt/kernels.h"
#include "tests/kernel/zstd_corpus.h"

static damacy__driver driver;
static damacy__alloc heap;
static damacy__device device;
static damacy__compiler compiler;
static damacy__zstd_kernels kernels;
static damacy_error err;
static const damacy__source sources[] = {{"kernels/zstd.cu", "front"},
                                         {"kernels/zstd_sequences.cu", "back"}};

static void open_all(uint64_t seed)
{
    fake_config fake = {};
    damacy__device_config config = {};
    fake.seed = seed;
    enroll_kernels();
    fake_open(&driver, &fake);
    memset(&heap, 0, sizeof heap);
    memset(&err, 0, sizeof err);
    memset(&kernels, 0, sizeof kernels);
    config.max_bytes = 512 << 20;
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &config, &err), DAMACY_OK);
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    device.n_multiprocessors = 2; // grids of a size that the CPU can run
    CHECK_EQ(
        damacy__compiler_init(&compiler, &heap, &driver, device.architecture, sources, 2, "", &err),
        DAMACY_OK);
}

static void close_all()
{
    damacy__zstd_kernels_deinit(&kernels, &device);
    damacy__compiler_deinit(&compiler);
    damacy__device_leave(&device);
    damacy__device_close(&device);
    const fake_counts counts = counts_without_misuse();
    CHECK_EQ(counts.live_allocations, 0);
    CHECK_EQ(counts.live_streams, 0);
    CHECK_EQ(counts.live_events, 0);
    CHECK_EQ(heap.live_blocks, 0);
    fake_close();
}

// Device memory of one wave of frames.
struct wave {
    std::vector<corpus_file> files;
    damacy__zstd_layout layout = {};
    damacy__zstd_call call = {};
    uint64_t src = 0, src_size = 0, dst = 0, dst_size = 0;
    std::vector<uint64_t> at;

    void open(const std::vector<corpus_file>& all, bool has_links, uint32_t n_parts = 0)
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
            j.dst_capacity = j.expected_size = strtoull(f.row.at("bytes").c_str(), nullptr, 10);
            limits.largest_size = DAMACY__MAX(limits.largest_size, j.dst_capacity);
            at.push_back(dst_size);
            dst_size += j.dst_capacity;
            in.insert(in.end(), f.content.begin(), f.content.end());
            jobs.push_back(j);
        }
        src_size = in.size();
        src = take(src_size);
        dst = take(dst_size);
        for (damacy__job& j : jobs) {
            j.src += src;
            j.dst += dst;
        }
        const uint32_t n = (uint32_t)jobs.size();
        limits.max_jobs = n;
        limits.dst_size = dst_size;
        limits.has_links = has_links;
        limits.n_parts = n_parts;
        CHECK_EQ(damacy__zstd_layout_of(&limits, &layout, &err), DAMACY_OK);
        CHECK_EQ(damacy__stream_open(&device, false, &call.stream, &err), DAMACY_OK);
        call.jobs = take(n * sizeof(damacy__job));
        call.n_jobs = take(4);
        call.results = take(n * sizeof(damacy__job_result));
        call.scratch = take(layout.size);
        put(src, in.data(), in.size());
        put(call.jobs, jobs.data(), n * sizeof(damacy__job));
        put(call.n_jobs, &n, 4);
    }

    uint64_t take(uint64_t size)
    {
        uint64_t address = 0;
        CHECK_EQ(damacy__device_alloc(&device, size, "wave", &address, &err), DAMACY_OK);
        return address;
    }

    void put(uint64_t to, const void* from, uint64_t size)
    {
        CHECK_EQ(damacy__copy_to_device(&device, to, from, size, call.stream, &err), DAMACY_OK);
        CHECK_EQ(driver.stream_synchronize(call.stream), 0);
    }

    void launch()
    {
        CHECK_EQ(damacy__zstd_launch(&kernels, &device, &layout, &call, &err), DAMACY_OK);
    }

    void check()
    {
        bytes out(dst_size);
        std::vector<damacy__job_result> results(files.size());
        CHECK_EQ(damacy__copy_to_host(&device, out.data(), dst, dst_size, call.stream, &err),
                 DAMACY_OK);
        CHECK_EQ(damacy__copy_to_host(&device, results.data(), call.results,
                                      results.size() * sizeof(damacy__job_result), call.stream,
                                      &err),
                 DAMACY_OK);
        CHECK_EQ(driver.stream_synchronize(call.stream), 0);
        for (size_t i = 0; i < files.size(); i++) {
            CHECK_EQ(results[i].status, DAMACY__JOB_OK);
            CHECK_EQ(corpus_crc32c(out.data() + at[i], results[i].size),
                     strtoull(files[i].row.at("crc32c").c_str(), nullptr, 16));
        }
    }

    void close()
    {
        const uint64_t n = files.size();
        damacy__device_free(&device, src, src_size);
        damacy__device_free(&device, dst, dst_size);
        damacy__device_free(&device, call.jobs, n * sizeof(damacy__job));
        damacy__device_free(&device, call.n_jobs, 4);
        damacy__device_free(&device, call.results, n * sizeof(damacy__job_result));
        damacy__device_free(&device, call.scratch, layout.size);
        damacy__stream_close(&device, call.stream);
    }
};

static std::vector<corpus_file> some(const char* name, size_t first, size_t n)
{
    std::vector<corpus_file> files = corpus_load(name);
    CHECK(files.size() >= first + n);
    return std::vector<corpus_file>(files.begin() + (long)first, files.begin() + (long)(first + n));
}

TEST(zstd_launch_decodes_with_every_choice_of_kernels)
{
    const uint32_t executions[] = {0,
                                   DAMACY__ZSTD_EXECUTE_LINKS,
                                   DAMACY__ZSTD_EXECUTE_1024X3,
                                   DAMACY__ZSTD_EXECUTE_256X4,
                                   DAMACY__ZSTD_EXECUTE_128X4,
                                   DAMACY__ZSTD_EXECUTE_128X4_3K,
                                   DAMACY__ZSTD_EXECUTE_128X2,
                                   DAMACY__ZSTD_EXECUTE_128X2_SERIAL,
                                   DAMACY__ZSTD_EXECUTE_64X4_SERIAL,
                                   DAMACY__ZSTD_EXECUTE_RELAY,
                                   DAMACY__ZSTD_EXECUTE_WIDE,
                                   DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE};
    open_all(3);
    CHECK_EQ(damacy__zstd_kernels_start(&kernels, &device, &compiler, &err), DAMACY_OK);
    CHECK_EQ(damacy__zstd_kernels_finish(&kernels, &device, &err), DAMACY_OK);
    for (uint32_t i = 0; i < 12; i++) {
        wave w;
        w.open(some("C_cs14_s1001", i * 6, 6), i < 2);
        w.call.options.literals = i % 4;
        w.call.options.early = i % 2 ? DAMACY__ZSTD_FLAG_EARLY : 0;
        w.call.options.early |= i % 4 == 1 ? DAMACY__ZSTD_FLAG_EARLY_FEW : 0;
        w.call.options.fse = i % 3 ? DAMACY__ZSTD_FLAG_FSE_LATENCY << i % 3 >> 1 : 0;
        w.call.n_concurrent = i >= 4 ? 2 : 0; // a small grid
        w.call.n_held = i / 2 % 3;            // more than there are, too
        w.call.options.execute = executions[i];
        w.call.options.apart = i % 3 == 2 ? DAMACY__ZSTD_FLAG_APART : 0;
        w.call.options.turns = i % 2 ? DAMACY__ZSTD_FLAG_TURNS : 0;
        w.call.likely_size = i < 5 ? 6 * DAMACY__ZSTD_BLOCK_MAX : 6; // of 11 bits: lanes_of_11
        w.launch();
        w.check();
        w.close();
    }
    close_all();
}

// What is chosen for n jobs of `size` bytes in one of n_concurrent waves: flags, of them shapes,
// one of execution for frames at least, and how literals are decoded. `missing`: shapes for which
// the device has too little shared memory.
struct chosen {
    uint32_t flags, literals;
};
static chosen all_chosen_for(uint32_t n, uint64_t size, uint32_t n_concurrent,
                             const damacy__blosc_wave* blosc, uint32_t missing = 0,
                             uint64_t most = 0)
{
    damacy__zstd_kernels all = {};
    damacy__zstd_call call = {};
    damacy__zstd_pass run = {};

    device.n_multiprocessors = 132;
    all.has_split4 = true;
    all.tiles = DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_256X4 |
                DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X4_3K |
                DAMACY__ZSTD_EXECUTE_128X2 | DAMACY__ZSTD_EXECUTE_128X2_SERIAL |
                DAMACY__ZSTD_EXECUTE_64X4_SERIAL | DAMACY__ZSTD_EXECUTE_RELAY |
                DAMACY__ZSTD_EXECUTE_WIDE;
    all.tiles &= ~missing;
    call.n_concurrent = n_concurrent;
    call.blosc = blosc;
    run.kernels = &all;
    run.device = &device;
    run.call = &call;
    run.n_jobs = n;
    run.n_blocks = n + (uint32_t)(n * size / DAMACY__ZSTD_BLOCK_MAX);
    run.size_each = size;
    run.size_most = DAMACY__MAX(size, most);
    damacy__zstd_choose(&run);
    CHECK(run.wave.flags & all.tiles);
    return {run.wave.flags, run.options.literals};
}
static uint32_t chosen_for(uint32_t n, uint64_t size, uint32_t n_concurrent,
                           const damacy__blosc_wave* blosc)
{
    return all_chosen_for(n, size, n_concurrent, blosc).flags;
}
static uint32_t shapes_of(uint32_t n, uint64_t size, bool has_company,
                          const damacy__blosc_wave* blosc)
{
    return chosen_for(n, size, has_company ? 2 : 1, blosc) & 0xffff0000u;
}

// Whatever number of jobs: shapes that undo a filter are there to be had, but the jobs are frames,
// for hundreds of which there is one by one warp. Records are of sequences where all shapes can
// read them, which links cannot.
TEST(zstd_launch_takes_shapes_and_records_of_blosc_for_blosc_alone)
{
    const damacy__blosc_wave blosc = {};
    const uint32_t by_sequence = DAMACY__ZSTD_FLAG_BY_SEQUENCE;

    for (const uint32_t n :
         {1u, 49u, 50u, 79u, 80u, 200u, 201u, 601u, 1056u, 1057u, 1201u, 100000u}) {
        const uint32_t serial = n <= 79     ? 0
                                : n <= 1056 ? DAMACY__ZSTD_EXECUTE_128X2_SERIAL
                                            : DAMACY__ZSTD_EXECUTE_64X4_SERIAL;
        CHECK_EQ(shapes_of(n, 0, false, nullptr) & DAMACY__ZSTD_EXECUTE_SERIAL, serial);
        CHECK_EQ((shapes_of(n, 0, false, &blosc) & DAMACY__ZSTD_EXECUTE_SERIAL) != 0, n >= 50);
        CHECK_EQ(chosen_for(n, 0, 1, nullptr) & by_sequence, 0);
        CHECK_EQ(chosen_for(n, 0, 1, &blosc) & by_sequence, by_sequence);
        CHECK_EQ(chosen_for(n, 9 << 20, 1, &blosc) & by_sequence, by_sequence);
    }
}

// If these are of few large blocks, and alone. Streams are guessed, of 256 KiB, so 132 are of 33
// MiB; there is one kernel where the other could have nothing to do.
TEST(zstd_launch_shares_large_chunks_of_blosc_among_multiprocessors)
{
    const damacy__blosc_wave blosc = {};
    const uint64_t k = 1024, m = k * k;
    const uint32_t relay = DAMACY__ZSTD_EXECUTE_RELAY, wide = DAMACY__ZSTD_EXECUTE_WIDE;
    const struct {
        uint32_t n; // streams
        uint64_t most;
        uint32_t relays;
    } cases[] = {{1, 192 * k - 1, 0},    {1, 192 * k, wide},
                 {44, 256 * k, wide},    {45, 256 * k, relay},
                 {45, m, relay | wide},  {79, 192 * k, relay},
                 {80, 768 * k - 1, 0},   {80, 768 * k, relay | wide},
                 {179, m, relay | wide}, {180, m, relay},
                 {1056, m, relay},       {1059, m, relay},
                 {1060, m, 0},           {8000, 64 * m, relay | wide}};

    for (const auto& c : cases) {
        const uint64_t size = DAMACY__MIN(c.most, 256 * k);
        const uint32_t all = all_chosen_for(c.n, size, 1, &blosc, 0, c.most).flags;
        CHECK_EQ(all & (relay | wide), c.relays);
        CHECK((all & DAMACY__ZSTD_EXECUTE_1024X3) || c.n > 200 || c.relays == wide);
        CHECK(!(all & DAMACY__ZSTD_EXECUTE_1024X3) || c.n <= 200 || c.relays);
        CHECK_EQ(all & (DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_LINKS), 0);
        CHECK(!(all_chosen_for(c.n, size, 2, &blosc, 0, c.most).flags & (relay | wide)));
        CHECK(!(all_chosen_for(c.n, size, 1, &blosc, relay | wide, c.most).flags & (relay | wide)));
    }
}

// Of these one is for frames that are dense.
TEST(zstd_launch_takes_what_a_device_of_little_shared_memory_has)
{
    const uint32_t large =
        DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE;
    const uint32_t dense =
        DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X4_3K;

    for (const uint32_t n : {1u, 79u, 80u, 150u, 200u, 201u, 1001u}) {
        for (const uint32_t n_concurrent : {1u, 2u}) {
            CHECK(all_chosen_for(n, 262144, n_concurrent, nullptr, large).flags & dense);
            CHECK(all_chosen_for(n, 9 << 20, n_concurrent, nullptr, large).flags & dense);
        }
    }
}

// By lanes where multiprocessors are full of them, by all warps of a block of threads a stream
// where most multiprocessors have no block.
TEST(zstd_launch_decodes_literals_by_shares_unless_blocks_are_many)
{
    const damacy__blosc_wave blosc = {};

    for (const uint32_t n : {1u, 66u}) {
        CHECK_EQ(all_chosen_for(n, 262144, 1, nullptr).literals, DAMACY__ZSTD_SPLIT4);
        CHECK_EQ(all_chosen_for(n, 262144, 1, &blosc).literals, DAMACY__ZSTD_SPLIT4);
    }
    for (const uint32_t n : {67u, 512u, 2048u, 2899u}) {
        CHECK_EQ(all_chosen_for(n, 262144, 1, nullptr).literals, DAMACY__ZSTD_SPLIT);
    }
    CHECK_EQ(all_chosen_for(2900, 262144, 1, nullptr).literals, DAMACY__ZSTD_LANES);
    CHECK_EQ(all_chosen_for(724, 1048576, 1, nullptr).literals, DAMACY__ZSTD_SPLIT);
    CHECK_EQ(all_chosen_for(725, 1048576, 1, nullptr).literals, DAMACY__ZSTD_LANES);
    CHECK_EQ(all_chosen_for(100000, 262144, 1, &blosc).literals, DAMACY__ZSTD_SPLIT);
    CHECK_EQ(all_chosen_for(66, 262144, 2, nullptr).literals, DAMACY__ZSTD_SPLIT4);
    CHECK_EQ(all_chosen_for(67, 262144, 2, nullptr).literals, DAMACY__ZSTD_SPLIT_SMALL);
    CHECK_EQ(all_chosen_for(2900, 262144, 2, nullptr).literals, DAMACY__ZSTD_LANES);
    CHECK_EQ(all_chosen_for(100000, 262144, 2, &blosc).literals, DAMACY__ZSTD_SPLIT_SMALL);
}

TEST(zstd_launch_takes_small_blocks_of_threads_beside_other_waves)
{
    const damacy__blosc_wave blosc = {};
    const uint32_t serial = DAMACY__ZSTD_EXECUTE_128X2_SERIAL;

    for (const uint32_t n : {151u, 200u, 201u, 300u}) {
        CHECK_EQ(shapes_of(n, 262144, true, nullptr), DAMACY__ZSTD_EXECUTE_256X4 | serial);
    }
    for (const uint32_t n : {301u, 512u, 1000u}) {
        CHECK_EQ(shapes_of(n, 262144, true, nullptr),
                 DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X4_3K | serial);
    }
    for (const uint32_t n : {1u, 79u, 80u, 150u}) {
        CHECK_EQ(shapes_of(n, 262144, true, nullptr),
                 DAMACY__ZSTD_EXECUTE_1024X3 | (n < 80 ? 0 : serial));
    }
    CHECK(chosen_for(75, 262144, 4, nullptr) & DAMACY__ZSTD_EXECUTE_1024X3);
    CHECK(chosen_for(76, 262144, 4, nullptr) & DAMACY__ZSTD_EXECUTE_256X4);
    CHECK(chosen_for(2, 262144, UINT32_MAX, nullptr) & DAMACY__ZSTD_EXECUTE_256X4);
    for (const uint32_t n : {4u, 60u, 113u, 150u}) { // large ones, too
        CHECK_EQ(shapes_of(n, 9 << 20, true, nullptr),
                 DAMACY__ZSTD_EXECUTE_1024X3 | (n < 80 ? 0 : serial));
    }
    CHECK_EQ(shapes_of(151, 1 << 20, true, nullptr), DAMACY__ZSTD_EXECUTE_256X4 | serial);
    for (const uint32_t n : {301u, 1000u}) {
        CHECK_EQ(shapes_of(n, 384 << 10, true, nullptr),
                 DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_256X4 | serial);
        CHECK_EQ(shapes_of(n, (384 << 10) - 1, true, nullptr),
                 DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X4_3K | serial);
    }
    CHECK_EQ(shapes_of(2000, 262144, true, nullptr),
             DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X4_3K |
                 DAMACY__ZSTD_EXECUTE_128X2 | DAMACY__ZSTD_EXECUTE_64X4_SERIAL);
    CHECK_EQ(shapes_of(2000, 1 << 20, true, nullptr), shapes_of(2000, 262144, true, nullptr));
    CHECK(shapes_of(128, 262144, true, &blosc) & DAMACY__ZSTD_EXECUTE_1024X3);
    CHECK(shapes_of(512, 262144, true, &blosc) & DAMACY__ZSTD_EXECUTE_256X2_SERIAL);
}

// For many short segments; of those of all others there is one.
TEST(zstd_launch_takes_large_blocks_of_threads_for_thousands_of_large_frames)
{
    const uint32_t rest = DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X2;

    for (const uint32_t n : {1001u, 1057u, 50000u}) {
        const uint32_t serial =
            n <= 1056 ? DAMACY__ZSTD_EXECUTE_128X2_SERIAL : DAMACY__ZSTD_EXECUTE_64X4_SERIAL;
        CHECK_EQ(shapes_of(n, (384 << 10) - 1, false, nullptr),
                 rest | serial | DAMACY__ZSTD_EXECUTE_128X4_3K);
        CHECK_EQ(shapes_of(n, 384 << 10, false, nullptr),
                 rest | serial | DAMACY__ZSTD_EXECUTE_256X4);
    }
}

// Up to two a multiprocessor.
TEST(zstd_launch_shares_large_frames_among_multiprocessors)
{
    const uint32_t relay = DAMACY__ZSTD_EXECUTE_RELAY;

    for (const uint32_t n : {133u, 200u, 201u, 264u}) {
        CHECK_EQ(shapes_of(n, 1 << 20, false, nullptr), relay | DAMACY__ZSTD_EXECUTE_128X2_SERIAL);
        CHECK_EQ(shapes_of(n, (1 << 20) - 1, false, nullptr) & relay, 0);
        CHECK_EQ(shapes_of(n, 1 << 20, true, nullptr) & relay, 0);
    }
    CHECK_EQ(shapes_of(100, 9 << 20, false, nullptr),
             relay | DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_128X2_SERIAL);
    CHECK_EQ(shapes_of(79, 9 << 20, false, nullptr), relay | DAMACY__ZSTD_EXECUTE_WIDE);
    CHECK_EQ(shapes_of(265, 9 << 20, false, nullptr),
             DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_128X2_SERIAL);
}

// On 132 multiprocessors: if the largest frame is more than one of 264 parts of all output, and
// more than three times the mean. What the others are executed by is as without it for many frames.
TEST(zstd_launch_executes_frames_much_larger_than_others_beside_them)
{
    const uint64_t k = 1024, m = k * k;
    const damacy__blosc_wave blosc = {};
    const struct {
        uint32_t n;
        uint64_t size, most;
        bool is_apart;
    } cases[] = {{512, 256 * k, 4 * m, true},     {512, 256 * k, 256 * k, false},
                 {512, 256 * k, 768 * k, false},  {512, 256 * k, 768 * k + 1, true},
                 {4000, 256 * k, 3 * m, false},   {4000, 256 * k, 4 * m, true},
                 {9, 64 * k, 512 * k, true},      {8, 64 * k, 512 * k, false},
                 {9, 64 * k, 512 * k - 1, false}, {2112, 64 * k, 512 * k, false},
                 {2111, 64 * k, 512 * k, true},   {100, m, 9 * m, true}};
    const uint32_t apart = DAMACY__ZSTD_FLAG_APART, relays = DAMACY__ZSTD_EXECUTE_RELAY;

    for (const auto& c : cases) {
        const uint32_t flags = all_chosen_for(c.n, c.size, 1, nullptr, 0, c.most).flags;
        CHECK_EQ((flags & apart) != 0, c.is_apart);
        if (c.is_apart) {
            CHECK(!(flags & (relays | DAMACY__ZSTD_EXECUTE_WIDE)));
            CHECK(flags & (DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_128X4));
        }
        CHECK(!(all_chosen_for(c.n, c.size, 2, nullptr, 0, c.most).flags & apart));
        CHECK(!(all_chosen_for(c.n, c.size, 1, &blosc, 0, c.most).flags & apart));
        CHECK(!(all_chosen_for(c.n, c.size, 1, nullptr, relays, c.most).flags & apart));
    }
}

TEST(zstd_launch_decodes_literals_of_11_bits_by_lanes_if_early_or_of_small_frames)
{
    damacy__zstd_pass run = {};

    for (const uint64_t size : {uint64_t(1), uint64_t(65535), uint64_t(65536), uint64_t(9 << 20)}) {
        run.size_each = size;
        CHECK(damacy__zstd_lanes_of_11(&run, true));
        CHECK_EQ(damacy__zstd_lanes_of_11(&run, false), size < 65536);
    }
}

// Groups of 8 blocks of all waves, for 132 multiprocessors.
TEST(zstd_launch_takes_sequences_for_few_blocks_beside_other_waves_where_all_find_room)
{
    const uint32_t few = DAMACY__ZSTD_FLAG_FSE_LATENCY, many = DAMACY__ZSTD_FLAG_FSE_THROUGHPUT;
    const struct {
        uint32_t n, size, n_concurrent, flag;
    } cases[] = {{1, 262144, 2, few},   {300, 262144, 2, few},  {512, 262144, 2, many},
                 {128, 262144, 4, few}, {200, 262144, 4, many}, {300, 65536, 4, many},
                 {256, 65536, 4, few},  {9, 9 << 20, 2, many},  {8, 9 << 20, 2, few},
                 {100, 0, 2, few},      {700, 0, 2, many},      {1, 262144, 1000, many},
                 {1, 262144, 1, 0},     {512, 262144, 0, 0}};
    const damacy__blosc_wave blosc = {};

    for (const auto& c : cases) {
        CHECK_EQ(chosen_for(c.n, c.size, c.n_concurrent, nullptr) & (few | many), c.flag);
        CHECK_EQ(chosen_for(c.n, c.size, c.n_concurrent, &blosc) & (few | many),
                 c.n_concurrent > 1 ? many : 0);
    }
}

// A part of a block is one: the grid of sequences beside other waves has to hold them all at once.
TEST(zstd_launch_counts_the_blocks_of_each_frame)
{
    const struct {
        uint32_t n, size, n_blocks;
    } cases[] = {{512, 167000, 1024}, {512, 262144, 1024}, {512, 262145, 1536},
                 {300, 1000, 300},    {300, 0, 300},       {4, 9 << 20, 288}};
    damacy__zstd_pass run = {};

    for (const auto& c : cases) {
        run.n_jobs = c.n;
        run.size_each = c.size;
        CHECK_EQ(damacy__zstd_likely_blocks(&run), c.n_blocks);
    }
}

// On 132 multiprocessors. Somewhat more frames than run at once take turns.
TEST(zstd_launch_gives_turns_to_somewhat_more_frames_than_run_at_once)
{
    const struct {
        uint32_t n, flag, grid, blosc_grid;
    } cases[] = {{528, DAMACY__ZSTD_EXECUTE_256X4, 528, 1200},
                 {529, DAMACY__ZSTD_EXECUTE_256X4, 528, 528},
                 {791, DAMACY__ZSTD_EXECUTE_256X4, 528, 528},
                 {792, DAMACY__ZSTD_EXECUTE_256X4, 792, 1200},
                 {1056, DAMACY__ZSTD_EXECUTE_128X4_3K, 1056, 4224},
                 {1057, DAMACY__ZSTD_EXECUTE_128X4_3K, 1056, 1056},
                 {1583, DAMACY__ZSTD_EXECUTE_128X4, 1056, 1056},
                 {1584, DAMACY__ZSTD_EXECUTE_128X4, 1584, 6336},
                 {60, DAMACY__ZSTD_EXECUTE_1024X3, 60, 240},
                 {200, DAMACY__ZSTD_EXECUTE_1024X3, 200, 264},
                 {201, DAMACY__ZSTD_EXECUTE_1024X3, 201, 264}};
    const damacy__blosc_wave blosc = {};
    damacy__zstd_call call = {};
    damacy__zstd_pass run = {};

    device.n_multiprocessors = 132;
    run.device = &device;
    run.call = &call;
    for (const auto& c : cases)
        for (uint32_t i = 0; i < DAMACY__ZSTD_TILES; i++) {
            const damacy__zstd_tile tile = damacy__zstd_tile_of(i);
            if (tile.flag != c.flag)
                continue;
            run.n_jobs = c.n;
            run.options.turns = 0;
            call.blosc = nullptr;
            CHECK_EQ(damacy__zstd_tile_grid(&run, tile), c.grid);
            call.blosc = &blosc;
            CHECK_EQ(damacy__zstd_tile_grid(&run, tile), c.blosc_grid);
            run.options.turns = DAMACY__ZSTD_FLAG_TURNS;
            CHECK_EQ(damacy__zstd_tile_grid(&run, tile), (c.n + 2) / 3);
        }
}

// 210 frames of which 208 run at once, and of which 8 do: then they wait in line.
TEST(zstd_launch_shares_frames_among_blocks_of_threads_if_they_are_somewhat_more)
{
    const std::vector<corpus_file> three = some("C_cs14_s1001", 0, 3);
    std::vector<corpus_file> files;
    for (uint32_t i = 0; i < 210; i++) {
        files.push_back(three[i % 3]);
    }
    for (const uint32_t n_multiprocessors : {52u, 2u}) {
        damacy__zstd_counters counters = {};
        wave w;
        open_all(n_multiprocessors);
        device.n_multiprocessors = n_multiprocessors;
        CHECK_EQ(damacy__zstd_kernels_start(&kernels, &device, &compiler, &err), DAMACY_OK);
        CHECK_EQ(damacy__zstd_kernels_finish(&kernels, &device, &err), DAMACY_OK);
        w.open(files, false);
        w.launch();
        w.check();
        CHECK_EQ(damacy__copy_to_host(&device, &counters, w.layout.wave.counters + w.call.scratch,
                                      sizeof counters, w.call.stream, &err),
                 DAMACY_OK);
        CHECK_EQ(driver.stream_synchronize(w.call.stream), 0);
        CHECK_EQ(counters.n_execute, 210);
        CHECK_EQ(counters.n_taken, n_multiprocessors == 52 ? 210 : 0);
        w.close();
        close_all();
    }
}

TEST(zstd_launch_works_with_the_shared_memory_of_small_devices)
{
    for (const uint32_t size : {65536u, 101376u}) {
        wave w;
        open_all(size);
        device.shared_per_block = size;
        CHECK_EQ(damacy__zstd_kernels_start(&kernels, &device, &compiler, &err), DAMACY_OK);
        CHECK_EQ(damacy__zstd_kernels_finish(&kernels, &device, &err), DAMACY_OK);
        device.shared_per_block = 232448; // the sequence stage here is that of the largest device
        for (const uint32_t i : {DAMACY__ZSTD_FSE, DAMACY__ZSTD_FSE_FEW}) {
            CHECK_EQ(damacy__kernel_allow_shared(&kernels.back.kernels[i], &device, 232448, &err),
                     DAMACY_OK);
        }
        w.open(some("D_smallblk_s2001", 3, 6), false);
        w.call.options.literals = DAMACY__ZSTD_SPLIT4; // not there: another is taken
        w.call.options.execute = DAMACY__ZSTD_EXECUTE_1024X3;
        w.launch();
        w.check();
        w.close();
        close_all();
    }
}

TEST(zstd_launch_keeps_waves_on_two_streams_apart)
{
    for (const size_t first : {40u, 63u}) {
        open_all(first);
        CHECK_EQ(damacy__zstd_kernels_start(&kernels, &device, &compiler, &err), DAMACY_OK);
        CHECK_EQ(damacy__zstd_kernels_finish(&kernels, &device, &err), DAMACY_OK);
        wave a, b;
        a.open(some("C_cs14_s1001", first, 5), false);
        b.open(some("D_smallblk_s2001", first, 5), false);
        a.call.options.literals = b.call.options.literals = DAMACY__ZSTD_LANES;
        a.launch(); // these share side streams and events
        b.launch();
        a.launch(); // a second time in the same scratch
        a.check();
        b.check();
        a.close();
        b.close();
        close_all();
    }
}

// Launches of one decoding of w: all, and those with a wish for shared memory and L1.
static fake_counts launches_of(wave& w)
{
    fake_counts before, after;
    fake_count(&before);
    w.launch();
    w.check();
    fake_count(&after);
    after.n_launches -= before.n_launches;
    after.n_divided -= before.n_divided;
    return after;
}

TEST(zstd_launch_wishes_for_divisions_under_which_waves_share_multiprocessors)
{
    open_all(11);
    CHECK_EQ(damacy__zstd_kernels_start(&kernels, &device, &compiler, &err), DAMACY_OK);
    CHECK_EQ(damacy__zstd_kernels_finish(&kernels, &device, &err), DAMACY_OK);
    wave w;
    w.open(some("C_cs14_s1001", 20, 5), false);
    w.call.options.execute = DAMACY__ZSTD_EXECUTE_128X4;
    for (const uint32_t how : {DAMACY__ZSTD_LANES, DAMACY__ZSTD_SPLIT}) {
        w.call.options.literals = how;
        w.call.n_concurrent = 2;
        fake_counts n = launches_of(w);
        CHECK_EQ(n.n_launches - n.n_divided, 1); // sequences, which take all shared memory
        w.call.n_concurrent = 1;
        n = launches_of(w);
        CHECK(n.n_divided >= 1 && n.n_divided <= 4); // execution, literals by lanes
        CHECK_EQ(n.n_divided == 1, how == DAMACY__ZSTD_SPLIT);
    }
    damacy__driver older = driver;
    older.launch_with = NULL;
    device.driver = &older;
    w.call.n_concurrent = 2;
    const fake_counts n = launches_of(w);
    CHECK_EQ(n.n_divided, 0);
    CHECK(n.n_launches > 10);
    device.driver = &driver;
    w.close();
    close_all();
}

TEST(zstd_launch_decodes_parts_one_after_another_in_one_scratch)
{
    for (const uint32_t n_parts : {2u, 3u, 7u, 100u}) {
        open_all(7 + n_parts);
        CHECK_EQ(damacy__zstd_kernels_start(&kernels, &device, &compiler, &err), DAMACY_OK);
        CHECK_EQ(damacy__zstd_kernels_finish(&kernels, &device, &err), DAMACY_OK);
        wave w;
        w.open(some("C_cs14_s1001", n_parts, 7), false, n_parts);
        CHECK_EQ(w.layout.max_jobs, 7);
        CHECK_EQ(w.layout.wave.max_jobs, n_parts == 2 ? 4 : n_parts == 3 ? 3 : 1);
        w.call.is_alone = n_parts == 3;
        w.launch();
        w.check();
        w.close();
        close_all();
    }
}

TEST(zstd_launch_passes_errors_of_the_driver_on)
{
    static const char* const functions[] = {"launch", "launch_with", "event_record", "stream_wait"};
    for (const char* const function : functions) {
        for (uint64_t nth = 0; nth < 20; nth += 3) {
            open_all(5 + nth);
            CHECK_EQ(damacy__zstd_kernels_start(&kernels, &device, &compiler, &err), DAMACY_OK);
            CHECK_EQ(damacy__zstd_kernels_finish(&kernels, &device, &err), DAMACY_OK);
            wave w;
            w.open(some("C_cs14_s1001", 1, 2), false);
            w.call.options.literals = DAMACY__ZSTD_LANES;
            fake_fail(function, nth, DAMACY__CUDA_OUT_OF_MEMORY);
            const damacy_status status =
                damacy__zstd_launch(&kernels, &device, &w.layout, &w.call, &err);
            CHECK(status == DAMACY_OK || status == DAMACY_OOM || status == DAMACY_CUDA);
            CHECK(status == DAMACY_OK || err.message[0] != 0);
            CHECK_EQ(driver.stream_synchronize(w.call.stream), 0);
            fake_fail(NULL, UINT64_MAX, 0);
            w.close();
            close_all();
        }
    }
}

TEST(zstd_layout_holds_the_largest_job_or_refuses_the_budget)
{
    damacy__zstd_limits limits = {};
    damacy__zstd_layout layout = {};
    limits.max_jobs = 100;
    limits.dst_size = 100 << 20;
    limits.largest_size = 1 << 20;
    CHECK_EQ(damacy__zstd_layout_of(&limits, &layout, &err), DAMACY_OK);
    CHECK(layout.size <= limits.dst_size / 100 * 262 + (2 << 20));
    CHECK_EQ(layout.size % 256, 0);
    CHECK_EQ(layout.wave.max_records % 16, 0);
    limits.n_parts = 4;
    CHECK_EQ(damacy__zstd_layout_of(&limits, &layout, &err), DAMACY_OK);
    CHECK(layout.size <= limits.dst_size / 4 * 5);
    CHECK(8 * layout.wave.max_records >= limits.dst_size / 4 / 8 * 35); // whatever the data are
    CHECK_EQ(layout.wave.max_jobs, 25);
    CHECK_EQ(layout.dst_size, limits.dst_size);
    limits.n_parts = 0;
    limits.scratch_size = 16 << 20;
    CHECK_EQ(damacy__zstd_layout_of(&limits, &layout, &err), DAMACY_OK);
    CHECK(layout.size <= limits.scratch_size);
    CHECK(8 * layout.wave.max_records >= limits.largest_size * 4);
    limits.scratch_size = 3 << 20;
    CHECK_EQ(damacy__zstd_layout_of(&limits, &layout, &err), DAMACY_BUDGET);
    CHECK_HAS(err.message, "scratch of 3145728 bytes");
    limits.scratch_size = 0;
    limits.max_jobs = 0;
    CHECK_EQ(damacy__zstd_layout_of(&limits, &layout, &err), DAMACY_INVAL);
    limits.max_jobs = 1;
    limits.dst_size = UINT64_MAX;
    CHECK_EQ(damacy__zstd_layout_of(&limits, &layout, &err), DAMACY_INVAL);
}

TEST_MAIN
