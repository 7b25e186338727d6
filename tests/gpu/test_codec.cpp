// damacy_codec_* on a real device: the corpora through the public interface, other kinds of frames
// made here, graphs, streams and threads side by side.
#define DAMACY_IMPLEMENTATION
#define DAMACY__LINE_INFO (getenv("DAMACY_TEST_LINE_INFO") != NULL)
#include "damacy.h"

#include "tests/test.h"
#include "tests/gpu/codec_frames.h"
#include "tests/gpu/codec_waves.h"
#include "tests/gpu/driver_symbol.h"
#include <thread>

// One codec of each kind, made when first asked for; NULL without a device.
static codec_machine* gpu(damacy_codec_kind kind)
{
    static codec_machine machines[4];
    static int states[4]; // 1 open, -1 none
    codec_machine& m = machines[kind];
    if (!states[kind]) {
        damacy_config config;
        memset(&config, 0, sizeof config);
        states[kind] = m.open(kind, &config) == DAMACY_OK ? 1 : -1;
        if (states[kind] < 0) {
            printf("# %s\n", m.err.message);
        }
    }
    return states[kind] > 0 ? &m : nullptr;
}

#define NEED(kind)              \
    if (!gpu(kind)) {           \
        SKIP("no CUDA device"); \
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

static codec_frame frame_of(const corpus_file& f, bool strip)
{
    codec_frame c;
    c.src = strip ? corpus_without_checksum(f.content) : f.content;
    c.capacity = number(f.row, "bytes", 10);
    return c;
}

static bool is_right(const codec_frame& c, const corpus_file& f)
{
    const bool right = c.status == DAMACY_FRAME_OK && c.is_clean &&
                       c.out.size() == number(f.row, "bytes", 10) &&
                       corpus_crc32c(c.out.data(), c.out.size()) == number(f.row, "crc32c", 16);
    if (!right) {
        printf("# %s: %s at %llu, %zu bytes, clean %d\n", f.name.c_str(),
               damacy_frame_status_str(c.status), (unsigned long long)c.error_offset, c.out.size(),
               (int)c.is_clean);
    }
    return right;
}

// Frames of generators are denser than typical data and have smaller blocks: without a measurement
// they get more of everything.
static damacy_codec_limits roomy(const std::vector<codec_frame>& frames)
{
    damacy_codec_limits limits;
    memset(&limits, 0, sizeof limits);
    limits.max_frames = (uint32_t)frames.size();
    limits.max_frame_size = 8 << 20;
    for (const codec_frame& f : frames) {
        limits.total_size += 3 * f.capacity;
    }
    limits.total_size = std::max<uint64_t>(limits.total_size, 64 << 20);
    limits.max_blocks = 8192 + 16 * limits.max_frames;
    return limits;
}

static void valid_batches(const std::vector<corpus_file>& files, size_t per_batch, bool strip,
                          codec_options o)
{
    for (size_t first = 0; first < files.size(); first += per_batch) {
        const size_t n = std::min(per_batch, files.size() - first);
        std::vector<codec_frame> frames;
        for (size_t i = 0; i < n; i++) {
            frames.push_back(frame_of(files[first + i], strip));
        }
        const damacy_codec_limits limits = roomy(frames);
        o.limits = o.is_measured ? nullptr : &limits;
        gpu(DAMACY_CODEC_ZSTD)->must(gpu(DAMACY_CODEC_ZSTD)->run(frames, o));
        for (size_t i = 0; i < n; i++) {
            CHECK(is_right(frames[i], files[first + i]));
        }
    }
}

TEST(codec_gpu_decodes_every_valid_zstd_frame)
{
    NEED(DAMACY_CODEC_ZSTD)
    const std::vector<corpus_file> files = valid_frames(1000);
    CHECK_EQ(files.size(), 921);
    for (int pass = 0; pass < 4; pass++) {
        codec_options o;
        o.is_measured = pass & 1;
        o.skew = 5 * (uint32_t)pass;
        valid_batches(files, pass & 2 ? 921 : 7, pass == 1 || pass == 2, o);
    }
}

// Bad frames among good ones: verdicts as on the CPU, the good ones right every time.
static void hostile(const char* name, bool is_measured)
{
    const std::vector<corpus_file> bad = corpus_load(name), good = valid_frames(20);
    const bool has_spec = strstr(name, "crafted") != nullptr;
    std::vector<codec_frame> frames;
    std::vector<const corpus_file*> files;
    uint64_t n_laxer = 0;
    codec_options o;

    for (size_t i = 0; i < bad.size(); i++) {
        const bool ok = bad[i].row.at("libzstd156") == "ok";
        codec_frame c;
        c.src = bad[i].content;
        c.capacity = ok ? number(bad[i].row, "bytes156", 10) : 300000;
        frames.push_back(c);
        files.push_back(&bad[i]);
        frames.push_back(frame_of(good[i % good.size()], false));
        files.push_back(&good[i % good.size()]);
    }
    const damacy_codec_limits limits = roomy(frames);
    o.is_measured = is_measured;
    o.limits = is_measured ? nullptr : &limits;
    o.skew = 7;
    gpu(DAMACY_CODEC_ZSTD)->must(gpu(DAMACY_CODEC_ZSTD)->run(frames, o));
    for (size_t i = 0; i < frames.size(); i++) {
        const corpus_row& row = files[i]->row;
        const codec_frame& f = frames[i];
        CHECK(f.is_clean);
        if (i % 2) {
            CHECK(is_right(f, *files[i]));
            continue;
        }
        bool ok = row.at("libzstd156") == "ok";
        if (has_spec && row.at("spec") != "any") {
            ok = row.at("spec") == "ok";
        }
        if (f.status == DAMACY_FRAME_OK) {
            CHECK(ok);
            CHECK_EQ(f.out.size(), number(row, "bytes156", 10));
            CHECK_EQ(corpus_crc32c(f.out.data(), f.out.size()), number(row, "crc156", 16));
        } else if (ok) {
            printf("# %s: %s\n", files[i]->name.c_str(), damacy_frame_status_str(f.status));
            n_laxer++;
        }
    }
    CHECK(n_laxer <= (has_spec ? 0u : 4u)); // the deliberate differences of tests/kernel
}

TEST(codec_gpu_refuses_hostile_zstd_frames_and_spares_the_good_ones)
{
    NEED(DAMACY_CODEC_ZSTD)
    for (int is_measured = 0; is_measured < 2; is_measured++) {
        hostile("zstd_crafted", is_measured);
        hostile("zstd_fuzz", is_measured);
    }
}

// ---- graphs ----

struct graph_driver {
    int (*begin)(damacy__stream, int);
    int (*end)(damacy__stream, void**);
    int (*instantiate)(void**, void*, unsigned long long);
    int (*launch)(void*, damacy__stream);
    int (*destroy)(void*);
    int (*destroy_executable)(void*);
};

static graph_driver load_graphs()
{
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    graph_driver g;
    CHECK(driver_symbol(library, "cuStreamBeginCapture_v2", (void*)&g.begin) &&
          driver_symbol(library, "cuStreamEndCapture", (void*)&g.end) &&
          driver_symbol(library, "cuGraphInstantiateWithFlags", (void*)&g.instantiate) &&
          driver_symbol(library, "cuGraphLaunch", (void*)&g.launch) &&
          driver_symbol(library, "cuGraphDestroy", (void*)&g.destroy) &&
          driver_symbol(library, "cuGraphExecDestroy", (void*)&g.destroy_executable));
    return g;
}

// Captures in the strictest mode, in which a forbidden call of any thread ends the capture.
static std::function<void(const std::function<void()>&)> in_a_graph(codec_machine& m, int n_runs)
{
    return [&m, n_runs](const std::function<void()>& work) {
        const graph_driver g = load_graphs();
        void *graph = nullptr, *executable = nullptr;
        CHECK_EQ(g.begin(m.stream, 0), 0);
        work();
        CHECK_EQ(g.end(m.stream, &graph), 0);
        CHECK_EQ(g.instantiate(&executable, graph, 0), 0);
        for (int i = 0; i < n_runs; i++) {
            CHECK_EQ(g.launch(executable, m.stream), 0);
        }
        m.sync();
        CHECK_EQ(g.destroy_executable(executable), 0);
        CHECK_EQ(g.destroy(graph), 0);
    };
}

TEST(codec_gpu_runs_in_a_captured_graph)
{
    NEED(DAMACY_CODEC_ZSTD)
    const std::vector<corpus_file> files = valid_frames(60);
    for (const size_t per_batch : {5, 240}) {
        codec_options o;
        o.around = in_a_graph(*gpu(DAMACY_CODEC_ZSTD), 3);
        o.is_measured = per_batch == 240;
        valid_batches(files, per_batch, false, o);
    }
}

// Nothing of a new codec has run, and what is left to load must not end the capture.
TEST(codec_gpu_captures_the_first_batch_of_a_codec)
{
    NEED(DAMACY_CODEC_ZSTD)
    const std::vector<corpus_file> files = valid_frames(10);
    std::vector<codec_frame> frames;
    codec_machine m;
    codec_options o;
    m.must(m.open(DAMACY_CODEC_ZSTD, NULL));
    for (const corpus_file& f : files) {
        frames.push_back(frame_of(f, false));
    }
    const damacy_codec_limits limits = roomy(frames);
    o.limits = &limits;
    o.around = in_a_graph(m, 1);
    m.must(m.run(frames, o));
    for (size_t i = 0; i < files.size(); i++) {
        CHECK(is_right(frames[i], files[i]));
    }
    m.close();
}

// So many blocks that literals are decoded on side streams, but not in a capture.
TEST(codec_gpu_decodes_thousands_of_frames_with_and_without_a_graph)
{
    NEED(DAMACY_CODEC_ZSTD)
    std::vector<corpus_file> files = valid_frames(1000), many;
    while (many.size() < 4500) {
        many.insert(many.end(), files.begin(), files.end());
    }
    for (int pass = 0; pass < 3; pass++) {
        codec_options o;
        if (pass) {
            o.around = in_a_graph(*gpu(DAMACY_CODEC_ZSTD), 2);
        }
        o.is_measured = pass != 1;
        valid_batches(many, many.size(), false, o);
    }
}

// Kernel by kernel, then by a graph with parameters of each batch, then by a graph of its own; few
// frames and many, alone and beside other batches.
TEST(codec_gpu_launches_by_graphs_what_comes_again)
{
    NEED(DAMACY_CODEC_ZSTD)
    const std::vector<corpus_file> files = valid_frames(400);
    codec_machine m;
    m.must(m.open(DAMACY_CODEC_ZSTD, NULL));
    m.codec->graphs.is_eager = m.codec->graphs.is_refused = false;
    for (const uint32_t n_concurrent : {1u, 3u}) {
        for (const size_t n : {1, 60, 330}) {
            for (size_t pass = 0; pass < 6; pass++) {
                std::vector<codec_frame> frames;
                codec_options o;
                for (size_t i = 0; i < n; i++) {
                    frames.push_back(frame_of(files[i + 10 * (pass % 4)], false));
                }
                damacy_codec_limits limits = roomy(frames);
                limits.n_concurrent = n_concurrent;
                o.limits = &limits;
                o.skew = (uint32_t)pass;
                m.must(m.run(frames, o));
                for (size_t i = 0; i < n; i++) {
                    CHECK(is_right(frames[i], files[i + 10 * (pass % 4)]));
                }
            }
        }
    }
    CHECK(!m.codec->graphs.is_refused);
    CHECK(m.codec->graphs.clock >= 20); // launches by graphs
    m.close();
}

// ---- other kinds ----

TEST(codec_gpu_decodes_lz4_and_blosc_with_scratch_of_either_query)
{
    NEED(DAMACY_CODEC_LZ4)
    static const unsigned n_frames[2][4] = {{60, 700, 6000, 3000}, {60, 540, 1100, 1400}};
    const char* const small = getenv("DAMACY_TEST_SMALL"); // under a sanitizer; 2: under racecheck
    const int shift = !small ? 48 : strcmp(small, "2") == 0 ? 56 : 52;
    uint64_t seed = 12; // LZ4 by teams of 8 warps, of 4, and by a warp each: from 1,321 on
    for (const damacy_codec_kind kind : others) {
        NEED(kind)
        for (int pass = 0; pass < 4; pass++) {
            std::vector<codec_frame> frames;
            std::vector<bytes> raw;
            codec_options o;
            for (unsigned i = 0; i < n_frames[small != nullptr][pass]; i++) {
                const size_t n = 1 + (test_random(&seed) >> (i % 50 ? shift : shift - 5));
                codec_frame f;
                raw.push_back(sample(n, i, &seed));
                f.src = pack(kind, raw.back(), i);
                f.capacity = n;
                frames.push_back(f);
            }
            o.is_measured = pass & 1;
            o.skew = (uint32_t)pass;
            if (pass > 1) {
                o.around = in_a_graph(*gpu(kind), 2);
            }
            gpu(kind)->must(gpu(kind)->run(frames, o));
            for (size_t i = 0; i < frames.size(); i++) {
                const codec_frame& f = frames[i];
                if (f.status != DAMACY_FRAME_OK || f.out != raw[i]) {
                    printf("# kind %d, frame %zu of %zu bytes: %s\n", (int)kind, i, raw[i].size(),
                           damacy_frame_status_str(f.status));
                }
                CHECK_EQ(f.status, DAMACY_FRAME_OK);
                CHECK(f.is_clean && f.out == raw[i]);
            }
        }
    }
}

// Bytes of several kinds: short sequences, half a block of literals that end it, few long
// sequences, lines nearly alike, runs.
static bytes large_block(unsigned kind, size_t n, uint64_t* seed)
{
    bytes v(n);
    for (size_t k = 0; k < n; k++) {
        const uint64_t x = test_random(seed);
        const uint8_t noise = (uint8_t)(x >> 56);
        if (kind == 3)
            v[k] = k % 700 < 60 && k > 700 ? v[k - 700] : noise;
        else if (kind == 4)
            v[k] = k >= 512 && (x & 127) ? v[k - 512] : noise;
        else if (kind == 5)
            v[k] = k && (x & 255) ? v[k - 1] : noise;
        else if (kind % 2 == 0 && k > n / 2)
            v[k] = noise;
        else
            v[k] = k & 1 ? 0 : (uint8_t)(100 + (x >> 60));
    }
    return v;
}

// By several teams each, more and less, so that parts are large and small. One has a byte too
// little room.
TEST(codec_gpu_decodes_large_blocks_of_lz4_and_refuses_one_without_room)
{
    NEED(DAMACY_CODEC_LZ4)
    const bool is_small = getenv("DAMACY_TEST_SMALL") != nullptr; // under a sanitizer
    uint64_t seed = 7;
    for (const unsigned n : is_small ? std::vector<unsigned>{2} : std::vector<unsigned>{6, 60}) {
        std::vector<codec_frame> frames;
        std::vector<bytes> raw;
        for (unsigned i = 0; i < n; i++) {
            const size_t size = is_small ? 0 : 40000 + (size_t)(test_random(&seed) % 300000);
            codec_frame f;
            raw.push_back(large_block(is_small ? 4 * i : i % 6, 262144 + size, &seed));
            f.src = pack(DAMACY_CODEC_LZ4, raw[i], i);
            f.capacity = raw[i].size() - (i == 1);
            frames.push_back(f);
        }
        gpu(DAMACY_CODEC_LZ4)->must(gpu(DAMACY_CODEC_LZ4)->run(frames, codec_options()));
        for (size_t i = 0; i < frames.size(); i++) {
            CHECK_EQ(frames[i].status == DAMACY_FRAME_OK, i != 1);
            CHECK(frames[i].is_clean && (i == 1 || frames[i].out == raw[i]));
        }
    }
}

// So many frames, and of such densities, that each shape of execution for them has its turn.
TEST(codec_gpu_decodes_waves_of_shuffled_blosc_of_every_density)
{
    NEED(DAMACY_CODEC_BLOSC)
    const bool is_small = getenv("DAMACY_TEST_SMALL") != nullptr; // under a sanitizer
    uint64_t seed = 5;
    for (const unsigned n : {1300u, 700u, 500u, 160u, 90u, 20u}) {
        for (const unsigned rare : {150u, 10u, 3u}) {
            const codec_wave wave = {n,    is_small ? 4096u : 32768u, 256,
                                     rare, rare == 10 ? 2u : 0u,      n < 100 ? 4u : 1u};
            check_codec_wave(*gpu(DAMACY_CODEC_BLOSC), wave, &seed);
        }
    }
}

// By a warp each, by teams of 4 warps, and of 8.
TEST(codec_gpu_decodes_waves_of_shuffled_blosc_of_lz4)
{
    NEED(DAMACY_CODEC_BLOSC)
    const bool is_small = getenv("DAMACY_TEST_SMALL") != nullptr; // under a sanitizer
    uint64_t seed = 7;
    for (const unsigned n : {3000u, 1300u, 90u}) {
        check_waves_of_planes(*gpu(DAMACY_CODEC_BLOSC),
                              {n, is_small ? 2048u : 8192u, 256, 10, n == 90 ? 3u : 0u, 4}, &seed);
    }
}

// Large ones, which all multiprocessors share, by two shapes, or of which each has a block of
// threads, by how many they are and how dense; the last of all by records of segments.
TEST(codec_gpu_decodes_large_chunks_of_shuffled_blosc)
{
    NEED(DAMACY_CODEC_BLOSC)
    const char* const small = getenv("DAMACY_TEST_SMALL"); // under a sanitizer; 2: under racecheck
    const codec_wave all[] = {{9, 98304, 1024, 100, 2},       {45, 98304, 1024, 100, 0},
                              {240, 1u << 19, 1024, 10, 0},   {240, 1u << 19, 1024, 200, 0},
                              {150, 1u << 20, 1024, 200, 0},  {100, 1u << 20, 1024, 10, 3},
                              {100, 1u << 19, 1024, 10, 0},   {60, 1u << 20, 1024, 10, 0},
                              {60, 1u << 20, 1024, 10, 0, 4}, {40, 1u << 20, 1024, 10, 0},
                              {5, 1u << 20, 1024, 10, 2},     {1, 1u << 20, 1024, 10, 0}};
    const size_t n = !small ? sizeof all / sizeof all[0] : strcmp(small, "2") == 0 ? 1 : 2;
    uint64_t seed = 6;

    for (size_t i = 0; i < n; i++) {
        check_codec_wave(*gpu(DAMACY_CODEC_BLOSC), all[i], &seed);
    }
}

TEST(codec_gpu_refuses_hostile_lz4_and_blosc_and_spares_the_good_ones)
{
    NEED(DAMACY_CODEC_LZ4)
    uint64_t seed = 77;
    for (const damacy_codec_kind kind : others) {
        NEED(kind)
        for (int pass = 0; pass < 2; pass++) {
            std::vector<codec_frame> frames;
            std::vector<bytes> raw;
            codec_options o;
            uint64_t n_refused = 0;
            for (unsigned i = 0; i < 2000; i++) {
                codec_frame f;
                raw.push_back(sample(1 + (test_random(&seed) >> 50), i / 2, &seed));
                f.src = pack(kind, raw.back(), i / 2);
                f.capacity = raw.back().size();
                for (unsigned k = 0; i % 2 && k <= i % 3; k++) {
                    f.src[(test_random(&seed) >> 33) % f.src.size()] ^=
                        (uint8_t)(1 << (test_random(&seed) >> 61));
                }
                if (i % 10 == 1) {
                    f.src.resize(1 + (test_random(&seed) >> 33) % f.src.size());
                }
                frames.push_back(f);
            }
            o.is_measured = pass;
            gpu(kind)->must(gpu(kind)->run(frames, o));
            for (size_t i = 0; i < frames.size(); i++) {
                CHECK(frames[i].is_clean);
                if (i % 2 == 0) {
                    CHECK_EQ(frames[i].status, DAMACY_FRAME_OK);
                    CHECK(frames[i].out == raw[i]);
                }
                n_refused += frames[i].status != DAMACY_FRAME_OK;
            }
            printf("# kind %d: %llu of 1000 refused\n", (int)kind, (unsigned long long)n_refused);
            CHECK(n_refused > 100);
        }
    }
}

TEST(codec_gpu_tells_sizes_of_every_kind)
{
    NEED(DAMACY_CODEC_LZ4)
    uint64_t seed = 3;
    for (const damacy_codec_kind kind : others) {
        NEED(kind)
        codec_machine& m = *gpu(kind);
        std::vector<codec_frame> frames(300);
        std::vector<uint64_t> dsts;
        uint64_t slab, slab_size;
        for (unsigned i = 0; i < 300; i++) {
            const bytes raw = sample(1 + (test_random(&seed) >> 48), i, &seed);
            frames[i].src = pack(kind, raw, i);
            frames[i].capacity = raw.size();
        }
        const damacy_codec_batch b = m.upload(frames, 1, &dsts, &slab, &slab_size);
        m.must(damacy_codec_sizes(m.codec, &b, m.stream, &m.err));
        const std::vector<uint64_t> sizes = m.get<uint64_t>((uint64_t)(uintptr_t)b.sizes, 300);
        for (size_t i = 0; i < 300; i++) {
            CHECK_EQ(sizes[i], frames[i].capacity);
        }
        m.give_all();
    }
}

// Four threads with streams and scratch of their own share one codec.
TEST(codec_gpu_serves_four_threads_at_a_time)
{
    NEED(DAMACY_CODEC_ZSTD)
    const std::vector<corpus_file> files = valid_frames(60);
    std::vector<codec_frame> results[4];
    std::vector<std::thread> threads;
    damacy_status statuses[4];
    codec_machine machines[4];
    for (int t = 0; t < 4; t++) {
        machines[t].codec = gpu(DAMACY_CODEC_ZSTD)->codec;
        machines[t].must(damacy__stream_open(&machines[t].codec->device, false, &machines[t].stream,
                                             &machines[t].err));
    }
    for (int t = 0; t < 4; t++) {
        threads.emplace_back([&, t] {
            codec_machine& m = machines[t];
            damacy_error err;
            statuses[t] = damacy__device_enter(&m.codec->device, &err);
            for (int run = 0; run < 8 && statuses[t] == DAMACY_OK; run++) {
                codec_options o;
                o.skew = (uint32_t)(run + 4 * t);
                results[t].clear();
                for (size_t i = 0; i < files.size(); i++) {
                    results[t].push_back(
                        frame_of(files[(i + 17 * (size_t)t) % files.size()], false));
                }
                const damacy_codec_limits limits = roomy(results[t]);
                o.limits = &limits;
                statuses[t] = m.run(results[t], o);
            }
            damacy__device_leave(&m.codec->device);
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    for (int t = 0; t < 4; t++) {
        CHECK_EQ(statuses[t], DAMACY_OK);
        CHECK_EQ(results[t].size(), files.size());
        for (size_t i = 0; i < files.size(); i++) {
            CHECK(is_right(results[t][i], files[(i + 17 * (size_t)t) % files.size()]));
        }
        damacy__stream_close(&machines[t].codec->device, machines[t].stream);
    }
}

// A large frame whose size the host does not know is measured, and its blocks fill a wave.
TEST(codec_gpu_measures_what_a_budget_would_refuse)
{
    NEED(DAMACY_CODEC_ZSTD)
    codec_machine& m = *gpu(DAMACY_CODEC_ZSTD);
    std::vector<codec_frame> frames(1);
    codec_options o;
    bytes raw(4 << 20), packed(16 << 20);
    ZSTD_CCtx* const c = ZSTD_createCCtx();
    size_t at = 0;
    uint64_t seed = 5;
    for (size_t i = 0; i < raw.size(); i++) {
        raw[i] = (uint8_t)(test_random(&seed) >> 60);
    }
    for (size_t i = 0; i < raw.size(); i += 300) { // many tiny blocks
        ZSTD_inBuffer in = {raw.data() + i, std::min<size_t>(300, raw.size() - i), 0};
        ZSTD_outBuffer out = {packed.data() + at, packed.size() - at, 0};
        CHECK(!ZSTD_isError(
            ZSTD_compressStream2(c, &out, &in, i + 300 >= raw.size() ? ZSTD_e_end : ZSTD_e_flush)));
        at += out.pos;
    }
    ZSTD_freeCCtx(c);
    packed.resize(at);
    frames[0].src = packed;
    frames[0].capacity = raw.size();
    m.must(m.run(frames, o));
    CHECK_EQ(frames[0].status, DAMACY_FRAME_NEED_SCRATCH);
    CHECK(frames[0].is_clean);
    o.is_measured = true;
    m.must(m.run(frames, o));
    CHECK_EQ(frames[0].status, DAMACY_FRAME_OK);
    CHECK(frames[0].out == raw);
}

TEST_MAIN
