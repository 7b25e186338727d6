// src/stage/lz_launch.h and assemble_launch.h on a fake driver whose device runs the kernels on the
// CPU: a wave of blosc chunks of both codecs with LZ4 jobs of the caller's before them, decoded,
// checked and assembled, without a look at anything in between.
#include "gpu/memory.h"
#include "stage/assemble_launch.h"
#include "stage/lz_launch.h"
#include "stage/zstd_launch.h"
#include "tests/device_open.h"
#include "tests/kernel/lz4_block.h"
#include "tests/simt/counts.h"
#include "tests/simt/kernels.h"
#include <blosc.h>

typedef std::vector<uint8_t> bytes;

static damacy__driver driver;
static damacy__alloc heap;
static damacy__device device;
static damacy__compiler compiler;
static damacy__lz_kernels kernels;
static damacy__zstd_kernels zstd;
static damacy__program assemble;
static damacy__stream stream;
static damacy_error err;
static std::vector<std::pair<uint64_t, uint64_t>> taken;
static const damacy__source sources[] = {
    {"kernels/zstd.cu", "1"},     {"kernels/zstd_sequences.cu", "2"}, {"kernels/lz4.cu", "3"},
    {"kernels/blosc.cu", "4"},    {"kernels/copy.cu", "5"},           {"kernels/crc32c.cu", "6"},
    {"kernels/assemble.cu", "7"}, {"kernels/zstd_blosc.cu", "8"}};

static void open_all(uint64_t seed)
{
    fake_config fake = {};
    damacy__device_config config = {};
    damacy__program_spec spec = {};
    const char* defines[1];
    char define[64];
    fake.seed = seed;
    enroll_kernels();
    fake_open(&driver, &fake);
    memset(&heap, 0, sizeof heap);
    memset(&err, 0, sizeof err);
    config.max_bytes = 512 << 20;
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &config, &err), DAMACY_OK);
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    device.n_multiprocessors = 1; // grids of a size that the CPU can run
    CHECK_EQ(
        damacy__compiler_init(&compiler, &heap, &driver, device.architecture, sources, 8, "", &err),
        DAMACY_OK);
    damacy__assemble_program(DAMACY_F32, define, defines, &spec);
    CHECK_EQ(damacy__lz_kernels_start(&kernels, &compiler, &err), DAMACY_OK);
    CHECK_EQ(damacy__zstd_kernels_start(&zstd, &device, &compiler, &err), DAMACY_OK);
    CHECK_EQ(damacy__program_start(&assemble, &compiler, &spec, &err), DAMACY_OK);
    CHECK_EQ(damacy__lz_kernels_finish(&kernels, &device, &err), DAMACY_OK);
    CHECK_EQ(damacy__zstd_kernels_finish(&zstd, &device, &err), DAMACY_OK);
    CHECK_EQ(damacy__program_finish(&assemble, &device, &err), DAMACY_OK);
    CHECK_EQ(damacy__stream_open(&device, false, &stream, &err), DAMACY_OK);
}

static void close_all()
{
    for (auto& x : taken)
        damacy__device_free(&device, x.first, x.second);
    taken.clear();
    damacy__stream_close(&device, stream);
    damacy__program_deinit(&assemble, &device);
    damacy__zstd_kernels_deinit(&zstd, &device);
    damacy__lz_kernels_deinit(&kernels, &device);
    damacy__compiler_deinit(&compiler);
    damacy__device_leave(&device);
    damacy__device_close(&device);
    const fake_counts counts = counts_without_misuse();
    CHECK_EQ(counts.live_allocations, 0);
    CHECK_EQ(heap.live_blocks, 0);
    fake_close();
}

static uint64_t take(uint64_t size)
{
    uint64_t address = 0;
    CHECK_EQ(damacy__device_alloc(&device, size, "test", &address, &err), DAMACY_OK);
    taken.push_back({address, size});
    return address;
}

template <class T> static uint64_t put(const std::vector<T>& v, uint64_t at = 0)
{
    const uint64_t to = at ? at : take(v.size() * sizeof(T) + 1);
    CHECK_EQ(damacy__copy_to_device(&device, to, v.data(), v.size() * sizeof(T), stream, &err),
             DAMACY_OK);
    CHECK_EQ(driver.stream_synchronize(stream), 0);
    return to;
}

template <class T> static std::vector<T> get(uint64_t from, size_t n)
{
    std::vector<T> v(n);
    CHECK_EQ(damacy__copy_to_host(&device, v.data(), from, n * sizeof(T), stream, &err), DAMACY_OK);
    CHECK_EQ(driver.stream_synchronize(stream), 0);
    return v;
}

// 16-bit counts with noise.
static bytes sample(size_t n, uint64_t* seed)
{
    bytes v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = i % 2 ? (uint8_t)(i >> 9) : (uint8_t)(100 + (test_random(seed) >> 59));
    return v;
}

static bytes pack(const bytes& raw, const char* name, int shuffle, size_t block_size)
{
    bytes out(raw.size() + BLOSC_MAX_OVERHEAD);
    const int n = blosc_compress_ctx(5, shuffle, 2, raw.size(), raw.data(), out.data(), out.size(),
                                     name, block_size, 1);
    CHECK(n > 0);
    out.resize((size_t)n);
    return out;
}

static damacy__job job_of(const bytes& src, uint64_t dst, uint64_t n)
{
    damacy__job j = {};
    j.src = put(src);
    j.src_size = src.size();
    j.dst = dst;
    j.dst_capacity = j.expected_size = n;
    return j;
}

// Decodes blosc chunks and plain LZ4 jobs, and assembles what chunk 0 became.
static void run_wave(uint64_t seed, bool corrupt, uint32_t execute)
{
    const size_t chunk_size = 16 * 16 * 16 * 2;
    const uint32_t n_chunks = 6, n_plain = 3;
    std::vector<bytes> raw;
    std::vector<damacy__job> jobs, plain;
    damacy__blosc_limits limits = {};
    damacy__blosc_layout blosc;
    damacy__zstd_limits zstd_limits = {};
    damacy__zstd_layout zstd_layout;

    open_all(seed);
    const uint64_t dst = take(chunk_size * (n_chunks + n_plain));
    for (uint32_t i = 0; i < n_chunks + n_plain; i++) {
        raw.push_back(sample(chunk_size, &seed));
        const uint64_t to = dst + i * chunk_size;
        if (i < n_chunks) {
            jobs.push_back(
                job_of(pack(raw[i], i % 2 ? "zstd" : "lz4", (int)i % 3, i == 2 ? 0 : 2048), to,
                       chunk_size));
        } else {
            plain.push_back(job_of(lz4_block(raw[i], 0), to, chunk_size));
        }
    }
    if (corrupt) {
        jobs[1].expected_size--;
        plain[1].src_size--;
    }
    limits.max_chunks = n_chunks;
    limits.dst_size = n_chunks * chunk_size;
    limits.first_lz4 = n_plain;
    CHECK(damacy__blosc_layout_of(&limits, &blosc));
    zstd_limits.max_jobs = blosc.wave.max_zstd;
    zstd_limits.dst_size = n_chunks * chunk_size;
    zstd_limits.largest_size = chunk_size;
    CHECK_EQ(damacy__zstd_layout_of(&zstd_limits, &zstd_layout, &err), DAMACY_OK);

    damacy__lz_call call = {};
    call.jobs = put(jobs);
    call.n_jobs = put(std::vector<uint32_t>(1, n_chunks));
    call.results = take(n_chunks * sizeof(damacy__job_result));
    call.scratch = take(blosc.size);
    call.stream = stream;
    const uint64_t plain_results_at = call.scratch + blosc.wave.lz4_results;
    put(plain, call.scratch + blosc.wave.lz4_jobs);
    damacy__zstd_call zstd_call = {};
    zstd_call.jobs = call.scratch + blosc.wave.zstd_jobs;
    zstd_call.n_jobs = call.scratch + blosc.wave.n_zstd;
    zstd_call.results = call.scratch + blosc.wave.zstd_results;
    zstd_call.scratch = take(zstd_layout.size);
    const damacy__blosc_wave on_device = damacy__blosc_wave_at(&blosc, &call);
    zstd_call.blosc = &on_device;
    zstd_call.blosc_kernels = kernels.zstd.kernels;
    zstd_call.options.execute = execute;
    zstd_call.stream = stream;
    zstd_call.likely_jobs = 8;
    CHECK_EQ(damacy__blosc_launch_open(&kernels, &device, &blosc, &call, &err), DAMACY_OK);
    CHECK_EQ(damacy__zstd_launch(&zstd, &device, &zstd_layout, &zstd_call, &err), DAMACY_OK);
    CHECK_EQ(damacy__blosc_launch_close(&kernels, &device, &blosc, &call, &err), DAMACY_OK);
    CHECK_EQ(damacy__clear_launch(&kernels, &device, &call, n_chunks, &err), DAMACY_OK);

    // a crop of chunk 0, as f32
    std::vector<uint64_t> memory(damacy__assemble_list_size(2, 4) / 8);
    damacy__assemble_list list;
    damacy__assemble_call assemble_call = {};
    damacy__copy copy = {};
    const damacy__axis axes[3] = {{256, 100, 5}, {16, 10, 10}, {1, 1, 9}};
    const uint64_t out = take(5 * 100 * 4);
    damacy__assemble_list_init(&list, memory.data(), 2, 4, DAMACY_F32);
    damacy__assemble_begin(&list, DAMACY_U16);
    copy.src = dst + 2 * (3 * 256 + 2 * 16 + 1);
    copy.dst = out;
    copy.n_axes = 3;
    copy.src_dtype = DAMACY_U16;
    copy.channel_axis = DAMACY__NO_CHANNEL;
    CHECK(damacy__assemble_add(&list, &copy, axes));
    assemble_call.list = take(memory.size() * 8);
    assemble_call.n_blocks = 3;
    assemble_call.stream = stream;
    CHECK_EQ(damacy__assemble_upload(&list, &device, &assemble_call, &err), DAMACY_OK);
    CHECK_EQ(damacy__assemble_launch(&list, 0, &device, &assemble, &assemble_call, &err),
             DAMACY_OK);

    const auto chunks = get<damacy__blosc_chunk>(on_device.chunks, n_chunks);
    // by execution, where that has whole blocks, and by teams, of streams that are planes
    for (uint32_t i = 0; i < n_chunks; i++)
        CHECK_EQ(chunks[i].n_filtered,
                 chunks[i].filter == DAMACY__BLOSC_FILTER_PLANES || (i == 1 && !corrupt)
                     ? chunk_size / chunks[i].block_size
                     : 0);
    const auto results = get<damacy__job_result>(call.results, n_chunks);
    const auto plain_results = get<damacy__job_result>(plain_results_at, n_plain);
    const auto decoded = get<uint8_t>(dst, chunk_size * (n_chunks + n_plain));
    for (uint32_t i = 0; i < n_chunks + n_plain; i++) {
        const uint32_t status =
            i < n_chunks ? results[i].status : plain_results[i - n_chunks].status;
        if (corrupt && (i == 1 || i == n_chunks + 1)) {
            CHECK(status >= DAMACY__JOB_TRUNCATED);
            continue;
        }
        CHECK_EQ(status, DAMACY__JOB_OK);
        CHECK(memcmp(&decoded[i * chunk_size], raw[i].data(), chunk_size) == 0);
    }
    if (corrupt)
        for (size_t k = 0; k + 1 < chunk_size; k++)
            CHECK_EQ(decoded[chunk_size + k], 0);
    const auto voxels = get<float>(out, 500);
    for (size_t z = 0; z < 5; z++)
        for (size_t y = 0; y < 10; y++)
            for (size_t x = 0; x < 9; x++) {
                const size_t at = 2 * ((z + 3) * 256 + (y + 2) * 16 + x + 1);
                CHECK(voxels[z * 100 + y * 10 + x] == (float)(raw[0][at] | raw[0][at + 1] << 8));
            }
    close_all();
}

TEST(a_wave_of_both_codecs_decodes_and_assembles)
{
    static const uint32_t shapes[] = {DAMACY__ZSTD_EXECUTE_256X4, DAMACY__ZSTD_EXECUTE_128X4_3K,
                                      DAMACY__ZSTD_EXECUTE_128X2_SERIAL,
                                      DAMACY__ZSTD_EXECUTE_64X4_SERIAL,
                                      DAMACY__ZSTD_EXECUTE_256X2_SERIAL};

    for (uint32_t i = 0; i < 5; i++)
        run_wave(test_seed() + 2 * i, false, shapes[i]);
}

TEST(failed_chunks_of_a_wave_are_cleared_and_the_others_right)
{
    run_wave(test_seed() + 1, true, DAMACY__ZSTD_EXECUTE_256X4);
    run_wave(test_seed() + 3, true, DAMACY__ZSTD_EXECUTE_64X4_SERIAL);
}

TEST(checksums_launch)
{
    uint64_t seed = test_seed();
    open_all(seed);
    const uint8_t digits[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9', 0x83, 0x92, 0x06, 0xe3};
    std::vector<damacy__job> jobs(2);
    jobs[0] = job_of(bytes(digits, digits + sizeof digits), 0, 0);
    jobs[1] = jobs[0];
    jobs[1].src_size--;
    damacy__lz_call call = {};
    call.jobs = put(jobs);
    call.n_jobs = put(std::vector<uint32_t>(1, 2));
    call.results = take(2 * sizeof(damacy__job_result));
    call.stream = stream;
    CHECK_EQ(damacy__crc32c_launch(&kernels, &device, &call, 2, &err), DAMACY_OK);
    const auto results = get<damacy__job_result>(call.results, 2);
    CHECK_EQ(results[0].status, DAMACY__JOB_OK);
    CHECK_EQ(results[0].size, 9);
    CHECK_EQ(results[1].status, DAMACY__JOB_BAD_CHECKSUM);
    close_all();
}

// Blocks of LZ4, on a device of one multiprocessor; the last is of `most` bytes, which is told.
static void run_blocks(uint32_t n, uint64_t n_launches, size_t most = 3000, bool is_told = false,
                       size_t size = 3000)
{
    uint64_t seed = test_seed();
    std::vector<damacy__job> jobs;
    std::vector<bytes> raw;
    fake_counts before, after;
    open_all(seed);
    const uint64_t all = (n - 1) * size + most, dst = take(all);
    for (uint32_t i = 0; i < n; i++) {
        raw.push_back(sample(i + 1 == n ? most : size, &seed));
        jobs.push_back(job_of(lz4_block(raw[i], 0), dst + i * size, raw[i].size()));
    }
    damacy__lz_call call = {};
    call.likely_size = is_told ? all : 0;
    call.likely_most = is_told ? most : 0;
    call.jobs = put(jobs);
    call.n_jobs = put(std::vector<uint32_t>(1, n));
    call.results = take(n * sizeof(damacy__job_result));
    call.stream = stream;
    fake_count(&before);
    CHECK_EQ(damacy__lz4_launch(&kernels, &device, &call, n, &err), DAMACY_OK);
    fake_count(&after);
    CHECK_EQ(after.n_launches - before.n_launches, n_launches);
    const auto results = get<damacy__job_result>(call.results, n);
    const auto decoded = get<uint8_t>(dst, all);
    for (uint32_t i = 0; i < n; i++) {
        CHECK_EQ(results[i].status, DAMACY__JOB_OK);
        CHECK(memcmp(&decoded[i * size], raw[i].data(), raw[i].size()) == 0);
    }
    close_all();
}

TEST(few_blocks_of_lz4_are_for_teams)
{
    run_blocks(DAMACY__LZ4_TEAM8_PER, 3);
    run_blocks(DAMACY__LZ4_TEAM8_PER + 1, 3);
    run_blocks(DAMACY__LZ4_TEAM_PER, 3);
    run_blocks(DAMACY__LZ4_TEAM_PER + 1, 2);
}

TEST(blocks_of_lz4_much_larger_than_others_are_for_teams)
{
    const uint32_t n = DAMACY__LZ4_TEAM_PER + 1;
    run_blocks(n, 3, DAMACY__LZ4_TEAM_LEAST, true);
    run_blocks(n, 2, DAMACY__LZ4_TEAM_LEAST - 1, true);
    run_blocks(n, 2, DAMACY__LZ4_TEAM_LEAST, false);
    run_blocks(n - 1, 3, DAMACY__LZ4_TEAM_LEAST, true);
}

TEST(waves_of_large_blocks_of_lz4_may_be_for_teams)
{
    const uint32_t n = DAMACY__LZ4_TEAM_PER + 1, most = DAMACY__LZ4_TEAM_SOME_PER;
    const size_t size = DAMACY__LZ4_TEAM_SOME_SIZE;
    run_blocks(n, 3, size, true, size);
    run_blocks(n, 2, size, false, size);
    run_blocks(n, 2, size - 1, true, size - 1);
    run_blocks(most, 3, size, true, size);
    run_blocks(most + 1, 2, size, true, size);
}

TEST(a_few_large_blocks_of_lz4_are_for_relays)
{
    const uint32_t n = DAMACY__LZ4_TEAM_PER + 1;
    const size_t size = DAMACY__LZ4_RELAY_LEAST;
    run_blocks(DAMACY__LZ4_RELAY_PER, 4, size, true, size);
    run_blocks(DAMACY__LZ4_RELAY_PER, 3, size, false, size);
    run_blocks(DAMACY__LZ4_RELAY_PER, 3, size - 1, true, size - 1);
    run_blocks(DAMACY__LZ4_RELAY_PER + 1, 3, size, true, size);
    run_blocks(n, 4, size, true);
    run_blocks(n, 3, size - 1, true);
}

// Its shared memory does not find room everywhere.
TEST(relays_are_for_devices_that_hold_them)
{
    damacy__lz4_wave wave = {};
    damacy__lz_call call = {};
    damacy__device one = {};

    call.likely_most = DAMACY__LZ4_RELAY_LEAST;
    wave.max_jobs = wave.team_most = one.n_multiprocessors = 1;
    one.shared_per_block = DAMACY__LZ4_RELAY_SHARED;
    CHECK_EQ(damacy__lz4_relay_size(&one, &call, &wave), DAMACY__LZ4_RELAY_LEAST);
    one.shared_per_block--;
    CHECK_EQ(damacy__lz4_relay_size(&one, &call, &wave), 0);
}

// 88 of a size on 132 multiprocessors are, 89 are not; nor are any that others are not.
TEST(blocks_that_shrink_are_for_relays_where_they_are_few)
{
    damacy__lz4_wave wave = {};
    damacy__lz_call call = {};
    damacy__device one = {};
    const uint32_t size = 4u << 20;

    one.n_multiprocessors = 132;
    wave.relay_size = DAMACY__LZ4_RELAY_LEAST;
    call.likely_size = 88ull * size;
    CHECK(damacy__lz4_relay_shrunk(&one, &call, &wave) <= size);
    call.likely_size = 89ull * size;
    CHECK(damacy__lz4_relay_shrunk(&one, &call, &wave) > size);
    call.likely_size = 0;
    CHECK_EQ(damacy__lz4_relay_shrunk(&one, &call, &wave), wave.relay_size);
    call.likely_size = UINT64_MAX;
    CHECK_EQ(damacy__lz4_relay_shrunk(&one, &call, &wave), UINT32_MAX);
}

// On one multiprocessor: of all output a twelfth, but no small ones.
TEST(the_size_of_blocks_for_teams_is_a_part_of_all_output)
{
    const uint64_t least = DAMACY__LZ4_TEAM_LEAST, never = DAMACY__LZ4_TEAM_NEVER;
    const struct {
        uint64_t all, most, size;
    } cases[] = {{0, 0, never},
                 {0, 1 << 20, never},
                 {1 << 20, least, least},
                 {1 << 20, least - 1, never},
                 {1 << 23, 699050, 699050},
                 {1 << 23, 699049, never},
                 {UINT64_MAX, UINT64_MAX, never}};
    damacy__device one = {};

    one.n_multiprocessors = 1;
    for (const auto& c : cases) {
        damacy__lz_call call = {};
        call.likely_size = c.all;
        call.likely_most = c.most;
        CHECK_EQ(damacy__lz4_team_size(&one, &call), c.size);
    }
}

// Of 16 KiB each, for chunks as large as those of the wave are on average, if that is known.
TEST(parts_of_blosc_chunks_are_of_this_wave)
{
    damacy__blosc_limits limits = {};
    damacy__blosc_layout layout;
    damacy__lz_call call = {};
    limits.max_chunks = 1000;
    limits.dst_size = 1000 * 65536;
    CHECK(damacy__blosc_layout_of(&limits, &layout));
    CHECK_EQ(damacy__blosc_wave_at(&layout, &call).parts, 4);
    layout.wave.max_jobs = 2;
    CHECK_EQ(damacy__blosc_wave_at(&layout, &call).parts, 256); // unknown: at most
    call.likely_size = 2 * 65536;
    CHECK_EQ(damacy__blosc_wave_at(&layout, &call).parts, 4);
    call.likely_size = 2 * 4194303;
    CHECK_EQ(damacy__blosc_wave_at(&layout, &call).parts, 255);
    call.likely_size = 1;
    CHECK_EQ(damacy__blosc_wave_at(&layout, &call).parts, 1);
}

TEST(sizes_that_overflow_are_refused)
{
    damacy__blosc_limits limits = {};
    damacy__blosc_layout blosc;
    limits.max_chunks = 5;
    limits.dst_size = UINT64_MAX / 2;
    CHECK(!damacy__blosc_layout_of(&limits, &blosc));
}

TEST_MAIN
