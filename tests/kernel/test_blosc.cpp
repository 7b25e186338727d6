// kernels/blosc.cu and shuffle.cuh on the CPU against libblosc: parse, the LZ4 kernel, libzstd in
// the place of the Zstandard kernels, moves and unfilter, as one wave.
#include "tests/kernel/lz4_run.h"
#include "kernels/blosc.cu"
#include "kernels/zstd.cu"
#include "tests/test.h"
#include <blosc.h>
#include <lz4.h>
#include <zstd.h>
#include <cstddef>
#include <string>

typedef std::vector<uint8_t> bytes;

// Memory whose end is the end of an allocation, so that ASan sees reads and writes beyond it.
struct range {
    std::unique_ptr<uint8_t[]> block;
    uint8_t* ptr;
    size_t size, skew;
    range(size_t n, size_t before) : block(new uint8_t[n + before + (n + before == 0)])
    {
        ptr = block.get() + before;
        size = n;
        skew = before;
        memset(block.get(), 0xa5, n + before);
    }
    bool is_clean_before() const
    {
        for (size_t i = 0; i < skew; i++)
            if (block[i] != 0xa5)
                return false;
        return true;
    }
};

struct chunk {
    bytes src;
    uint64_t expected;
    uint64_t capacity;
    uint32_t flags = 0;
    bytes out;                 // after the wave
    damacy__job_result result; // after the wave
};

struct limits {
    uint32_t jobs = 4096, moves = 4096;
    uint64_t scratch = ~0ull; // as much as is documented to be enough
    uint32_t parts = 3;
    uint32_t way = 4; // of LZ4, one of the first four; 4: by the number of streams
    uint32_t n_multiprocessors = 0;
};

// What is there once streams have been decoded, before what is left is unfiltered.
struct findings {
    uint32_t n_moves = 0;
    std::vector<damacy__blosc_chunk> records;
};

static uint32_t zstd_status(const damacy__job& job)
{
    if (job.flags & DAMACY__JOB_SKIP)
        return DAMACY__JOB_SKIPPED;
    const size_t n = ZSTD_decompress((void*)(uintptr_t)job.dst, (size_t)job.dst_capacity,
                                     (const void*)(uintptr_t)job.src, (size_t)job.src_size);
    if (ZSTD_isError(n))
        return DAMACY__JOB_BAD_BLOCK;
    return n == job.expected_size ? DAMACY__JOB_OK : DAMACY__JOB_SIZE_MISMATCH;
}

// As the Zstandard decoder does beside its own.
static void make_moves(const damacy__blosc_wave& wave)
{
    damacy__zstd_counters none = {};
    damacy__zstd_wave w = {};
    w.counters = (uint64_t)(uintptr_t)&none;
    w.moves = wave.moves;
    w.n_moves = wave.counters + offsetof(damacy__blosc_counters, n_moves);
    w.max_moves = wave.max_moves;
    simt::launch(dim3(3), dim3(256), [&] { damacy_zstd_place(w); });
}

// Runs the chunks as one wave. Checks that nothing outside their outputs was written.
static void run(std::vector<chunk>& chunks, unsigned skew = 0, limits limit = limits(),
                findings* found = nullptr)
{
    const uint32_t n = (uint32_t)chunks.size();
    std::vector<damacy__job> jobs(n), lz4_jobs(limit.jobs), zstd_jobs(limit.jobs);
    std::vector<damacy__job_result> results(n), lz4_results(limit.jobs), zstd_results(limit.jobs);
    std::vector<damacy__blosc_chunk> records(n);
    std::vector<damacy__move> moves(limit.moves);
    std::vector<range> sources, outputs;
    void* scratch = nullptr;
    uint32_t n_lz4 = 77, n_zstd = 77, count = n;
    damacy__blosc_counters counters;
    damacy__blosc_wave wave;

    if (limit.scratch == ~0ull) {
        limit.scratch = 0;
        for (const chunk& c : chunks)
            limit.scratch += (c.capacity + 255) & ~255ull;
    }
    CHECK(posix_memalign(&scratch, 256, (size_t)limit.scratch + 256) == 0);
    memset(&wave, 0, sizeof wave);
    memset(&counters, 0xee, sizeof counters);
    for (uint32_t i = 0; i < n; i++) {
        sources.emplace_back(chunks[i].src.size(), (skew + i) % 3);
        outputs.emplace_back((size_t)chunks[i].capacity, skew);
        if (!chunks[i].src.empty())
            memcpy(sources[i].ptr, chunks[i].src.data(), chunks[i].src.size());
        jobs[i].src = (uint64_t)(uintptr_t)sources[i].ptr;
        jobs[i].src_size = chunks[i].src.size();
        jobs[i].dst = (uint64_t)(uintptr_t)outputs[i].ptr;
        jobs[i].dst_capacity = chunks[i].capacity;
        jobs[i].expected_size = chunks[i].expected;
        jobs[i].flags = chunks[i].flags;
        results[i].status = DAMACY__JOB_NOT_RUN;
    }
    for (auto& job : lz4_jobs)
        memset(&job, 0xee, sizeof job);
    zstd_jobs = lz4_jobs;
    wave.jobs = (uint64_t)(uintptr_t)jobs.data();
    wave.n_jobs = (uint64_t)(uintptr_t)&count;
    wave.results = (uint64_t)(uintptr_t)results.data();
    wave.chunks = (uint64_t)(uintptr_t)records.data();
    wave.counters = (uint64_t)(uintptr_t)&counters;
    wave.moves = (uint64_t)(uintptr_t)moves.data();
    wave.lz4_jobs = (uint64_t)(uintptr_t)lz4_jobs.data();
    wave.n_lz4 = (uint64_t)(uintptr_t)&n_lz4;
    wave.lz4_results = (uint64_t)(uintptr_t)lz4_results.data();
    wave.zstd_jobs = (uint64_t)(uintptr_t)zstd_jobs.data();
    wave.n_zstd = (uint64_t)(uintptr_t)&n_zstd;
    wave.zstd_results = (uint64_t)(uintptr_t)zstd_results.data();
    wave.scratch = (uint64_t)(uintptr_t)scratch;
    wave.scratch_size = limit.scratch;
    wave.max_jobs = n;
    wave.max_moves = limit.moves;
    wave.max_lz4 = wave.max_zstd = limit.jobs;
    wave.parts = limit.parts;

    simt::launch(dim3(1), dim3(32), [&] { damacy_blosc_begin(wave); });
    simt::launch(dim3((n + 31) / 32), dim3(1024), [&] { damacy_blosc_parse(wave); });
    CHECK(n_lz4 <= limit.jobs && n_zstd <= limit.jobs && counters.n_moves <= limit.moves);
    if (n_lz4)
        lz4_run(lz4_jobs.data(), lz4_results.data(), &n_lz4, n_lz4,
                lz4_ways[limit.way < 4 ? limit.way : n_lz4 % 4], records.data(),
                limit.n_multiprocessors);
    if (found) {
        found->n_moves = counters.n_moves;
        found->records = records;
    }
    for (uint32_t i = 0; i < n_zstd; i++) {
        memset(&zstd_results[i], 0, sizeof zstd_results[i]);
        zstd_results[i].status = zstd_status(zstd_jobs[i]);
    }
    if (counters.n_moves)
        make_moves(wave);
    simt::launch(dim3(1 + skew % 5), dim3(256), [&] { damacy_blosc_unfilter(wave); }); // any grid
    free(scratch);
    for (uint32_t i = 0; i < n; i++) {
        CHECK(outputs[i].is_clean_before());
        chunks[i].out.assign(outputs[i].ptr, outputs[i].ptr + chunks[i].capacity);
        chunks[i].result = results[i];
    }
}

// 16-bit counts with noise, in elements of `width` bytes: compressible, but not all of it.
static bytes sample(size_t n, unsigned width, unsigned kind, uint64_t* seed)
{
    bytes v(n);
    for (size_t i = 0; i < n; i++) {
        const size_t byte = i % width, element = i / width;
        const uint8_t noise = (uint8_t)(test_random(seed) >> 58);
        v[i] = kind == 2   ? (uint8_t)(test_random(seed) >> 56)
               : kind == 1 ? (uint8_t)(element * (byte + 1) >> (3 * byte % 20))
               : byte == 0 ? (uint8_t)(100 + noise)
                           : (uint8_t)(element >> (4 + byte % 20));
    }
    return v;
}

static bytes pack(const bytes& raw, const char* name, int level, int shuffle, unsigned width,
                  size_t block_size)
{
    bytes out(raw.size() + BLOSC_MAX_OVERHEAD);
    const int n = blosc_compress_ctx(level, shuffle, width, raw.size(), raw.data(), out.data(),
                                     out.size(), name, block_size, 1);
    out.resize(n > 0 ? (size_t)n : 0);
    return out;
}

// A writer of our own, for small blocks with split streams, which libblosc does not make. bits: bit
// shuffle instead of byte shuffle.
static bytes write(const bytes& raw, unsigned width, size_t block_size, bool split, bool bits)
{
    const size_t n_blocks = (raw.size() + block_size - 1) / block_size;
    bytes out = {2, 1, (uint8_t)(0x20 | (split ? 0 : 0x10) | (bits ? 4 : 1)), (uint8_t)width};
    const auto put = [&](size_t at, size_t v) {
        if (out.size() < at + 4)
            out.resize(at + 4);
        for (unsigned k = 0; k < 4; k++)
            out[at + k] = (uint8_t)(v >> (8 * k));
    };
    put(4, raw.size());
    put(8, block_size);
    put(16 + 4 * n_blocks - 4, 0);
    for (size_t b = 0; b < n_blocks; b++) {
        const size_t start = b * block_size;
        const size_t size = raw.size() - start < block_size ? raw.size() - start : block_size;
        const size_t n = size / width;
        bytes block(raw.begin() + (ptrdiff_t)start, raw.begin() + (ptrdiff_t)(start + size));
        const bytes plain = block;
        if (!bits)
            for (size_t i = 0; i < n * width; i++)
                block[i % width * n + i / width] = plain[i];
        else if (n != 0 && n % 8 == 0)
            for (size_t row = 0; row < 8 * width; row++)
                for (size_t i = 0; i < n; i++) {
                    uint8_t& x = block[row * (n / 8) + i / 8];
                    if (i % 8 == 0)
                        x = 0;
                    x = (uint8_t)(x | (plain[i * width + row / 8] >> (row % 8) & 1) << (i % 8));
                }
        const bool is_split =
            split && width <= 16 && block_size / width >= 128 && size == block_size;
        const size_t n_streams = is_split ? width : 1, stream = size / n_streams;
        put(16 + 4 * b, out.size());
        for (size_t k = 0; k < n_streams; k++) {
            bytes packed(stream + 1000);
            int got = LZ4_compress_default((const char*)&block[k * stream], (char*)packed.data(),
                                           (int)stream, (int)packed.size());
            if (got <= 0 || (size_t)got >= stream) {
                got = (int)stream;
                memcpy(packed.data(), &block[k * stream], stream);
            }
            put(out.size(), (size_t)got);
            out.insert(out.end(), packed.begin(), packed.begin() + got);
        }
    }
    put(12, out.size());
    return out;
}

static chunk chunk_of(const bytes& src, size_t n)
{
    chunk c;
    c.src = src;
    c.expected = c.capacity = n;
    return c;
}

// Runs chunks that must decode to raw.
static void check_wave(std::vector<chunk>& chunks, const std::vector<bytes>& raw, unsigned skew)
{
    run(chunks, skew);
    for (size_t i = 0; i < chunks.size(); i++) {
        CHECK_EQ(chunks[i].result.status, DAMACY__JOB_OK);
        CHECK_EQ(chunks[i].result.size, raw[i].size());
        CHECK(chunks[i].out == raw[i]);
    }
    chunks.clear();
}

TEST(all_codecs_filters_and_widths_decode_to_their_bytes)
{
    uint64_t seed = test_seed();
    const char* names[] = {"lz4", "lz4hc", "zstd"};
    const unsigned widths[] = {1, 2, 3, 4, 7, 8, 12, 16, 17, 255};
    const size_t sizes[] = {1, 127, 128, 1000, 4096, 10007, 40000};
    unsigned turn = 0;

    for (const char* name : names)
        for (int shuffle = 0; shuffle < 3; shuffle++)
            for (unsigned width : widths) {
                std::vector<chunk> chunks;
                std::vector<bytes> raw;
                for (size_t n : sizes) {
                    turn++;
                    raw.push_back(sample(n, width, turn % 7 == 0 ? 2 : turn % 2, &seed));
                    const size_t block_size = turn % 3 == 0 ? 0 : turn % 3 == 1 ? 4096 : 1024;
                    chunks.push_back(chunk_of(
                        pack(raw.back(), name, 1 + (int)turn % 9, shuffle, width, block_size), n));
                }
                check_wave(chunks, raw, turn % 4 == 0 ? 16 : turn % 23);
            }
}

TEST(a_partial_last_block_uses_its_own_plane_length)
{
    uint64_t seed = test_seed();
    for (int shuffle = 1; shuffle < 3; shuffle++)
        for (const char* name : {"lz4", "zstd"}) {
            std::vector<chunk> chunks;
            std::vector<bytes> raw;
            for (size_t side : {20, 27, 33, 36}) { // cubes of uint16 that no block size divides
                raw.push_back(sample(side * side * side * 2, 2, 0, &seed));
                chunks.push_back(
                    chunk_of(pack(raw.back(), name, 5, shuffle, 2, 8192), raw.back().size()));
            }
            check_wave(chunks, raw, 0);
        }
}

TEST(split_streams_and_short_blocks_decode_to_their_bytes)
{
    uint64_t seed = test_seed();
    for (unsigned width : {1u, 2u, 3u, 4u, 8u, 16u, 17u})
        for (unsigned mode = 0; mode < 4; mode++) {
            std::vector<chunk> chunks;
            std::vector<bytes> raw;
            for (size_t n : {100u, 128u * width, 127u * width, 1000u * width + 3, 5000u * width}) {
                const size_t block_size = n < 640u * width ? n : 640u * width;
                bytes expected(n);
                raw.push_back(sample(n, width, n % 2, &seed));
                const bytes packed = write(raw.back(), width, block_size, mode & 1, mode & 2);
                CHECK_EQ(blosc_decompress_ctx(packed.data(), expected.data(), n, 1), (int)n);
                CHECK(expected == raw.back());
                chunks.push_back(chunk_of(packed, n));
            }
            check_wave(chunks, raw, width);
        }
}

TEST(a_stored_container_is_copied_although_its_flags_name_a_filter)
{
    uint64_t seed = test_seed();
    std::vector<chunk> chunks;
    std::vector<bytes> raw;
    for (size_t n : {5, 100, 4096, 70000, 200000})
        for (int shuffle = 1; shuffle < 3; shuffle++) {
            raw.push_back(sample(n, 2, 2, &seed));
            const bytes packed = pack(raw.back(), "lz4", 5, shuffle, 2, 0);
            CHECK(packed[2] & 2);
            CHECK(packed[2] & 5);
            chunks.push_back(chunk_of(packed, n));
        }
    check_wave(chunks, raw, 7);
}

TEST(bit_shuffle_is_undone_only_in_blocks_of_whole_groups_of_eight)
{
    uint64_t seed = test_seed();
    std::vector<chunk> chunks;
    std::vector<bytes> raw;
    for (unsigned width : {1u, 2u, 4u, 3u})
        for (size_t n : {1600u, 1604u, 1607u, 1608u, 99u * 99 * 3, 6144u, 6148u}) {
            raw.push_back(sample(n * width, width, 0, &seed));
            chunks.push_back(chunk_of(pack(raw.back(), "zstd", 3, 2, width, 2048), n * width));
        }
    check_wave(chunks, raw, 16);
}

TEST(large_pieces_go_through_every_fast_path)
{
    uint64_t seed = test_seed();
    for (int shuffle = 1; shuffle < 3; shuffle++) {
        std::vector<chunk> chunks;
        std::vector<bytes> raw;
        for (unsigned width : {1u, 2u, 4u, 8u}) {
            const size_t odd = 24008 * width; // bits of 3,001 bytes a row
            raw.push_back(sample(70000, width, 0, &seed));
            chunks.push_back(chunk_of(pack(raw.back(), "lz4", 5, shuffle, width, 65536), 70000));
            raw.push_back(sample(odd, width, 0, &seed));
            chunks.push_back(chunk_of(pack(raw.back(), "lz4", 5, shuffle, width, odd), odd));
        }
        check_wave(chunks, raw, 16);
    }
}

// Counts in elements of `width` bytes: the low byte is noise, which blosc stores, the next is not.
static bytes noisy(size_t n, unsigned width, uint64_t* seed)
{
    bytes raw(n * width);
    for (size_t i = 0; i < n; i++) {
        raw[i * width] = (uint8_t)test_random(seed);
        raw[i * width + 1] = (uint8_t)(i / 3 % 7);
    }
    return raw;
}

TEST(blocks_of_planes_are_unshuffled_by_teams_without_moves)
{
    uint64_t seed = test_seed();
    for (unsigned width : {2u, 4u, 8u})
        for (uint32_t turn = 0; turn < 6; turn++) {
            const bool is_few = turn == 5; // for the multiprocessors
            const bool by_teams = !is_few && turn > 0 && width < 8;
            std::vector<chunk> chunks;
            std::vector<bytes> raw;
            limits limit;
            findings found;
            for (size_t n : {2048u, 5000u, 4104u}) { // whole blocks alone; and with a rest
                raw.push_back(noisy(n, width, &seed));
                chunks.push_back(
                    chunk_of(write(raw.back(), width, 1024 * width, true, false), n * width));
            }
            limit.way = turn < 4 ? turn : 1;
            if (turn >= 4) { // as many multiprocessors as they are enough for, and one more
                uint32_t n_jobs = 0;
                run(chunks, 0, limit, &found);
                for (const damacy__blosc_chunk& c : found.records)
                    n_jobs += c.n_jobs;
                limit.n_multiprocessors = n_jobs / (width - 1) + is_few;
                found = findings();
            }
            run(chunks, 0, limit, &found);
            CHECK(found.n_moves <= 2); // rests alone
            for (size_t i = 0; i < chunks.size(); i++) {
                const damacy__blosc_chunk& c = found.records[i];
                CHECK(c.filter == DAMACY__BLOSC_FILTER_PLANES && c.n_jobs >= 2);
                CHECK(c.n_apart == c.size / c.block_size); // the low bytes
                CHECK(c.n_filtered == (by_teams ? c.size / c.block_size : 0));
                CHECK(chunks[i].result.status == DAMACY__JOB_OK && chunks[i].out == raw[i]);
            }
        }
}

TEST(a_block_with_a_wrong_plane_is_refused_and_others_are_not)
{
    uint64_t seed = test_seed();
    for (uint32_t way = 0; way < 3; way++) {
        std::vector<chunk> chunks;
        std::vector<bytes> raw;
        limits limit;
        findings found;
        for (size_t i = 0; i < 3; i++) {
            raw.push_back(noisy(4096, 4, &seed));
            chunks.push_back(chunk_of(write(raw.back(), 4, 8192, true, false), 4096 * 4));
        }
        bytes& src = chunks[1].src; // a match of the last plane from beyond what is there
        uint32_t at = damacy__load_u32(&src[DAMACY__BLOSC_START]) + 4;
        for (uint32_t k = 0; k < 3; k++)
            at += damacy__load_u32(&src[at - 4]) + 4;
        const uint32_t n_literals = src[at] >> 4;
        CHECK(n_literals < 15);
        src[at + 1 + n_literals] = src[at + 2 + n_literals] = 255;
        limit.way = way;
        run(chunks, 0, limit, &found);
        for (size_t i = 0; i < 3; i++) {
            CHECK(found.records[i].filter == DAMACY__BLOSC_FILTER_PLANES);
            CHECK(found.records[i].n_filtered == (way == 0 ? 0 : i == 1 ? 1 : 2));
            CHECK(i == 1 ? chunks[1].result.status == DAMACY__JOB_BAD_OFFSET
                         : chunks[i].result.status == DAMACY__JOB_OK && chunks[i].out == raw[i]);
        }
    }
}

TEST(mixed_chunks_of_one_wave_do_not_touch_each_other)
{
    uint64_t seed = test_seed();
    std::vector<chunk> chunks;
    std::vector<bytes> raw;
    for (unsigned i = 0; i < 13; i++) {
        raw.push_back(sample(3000 + 511 * i, 2, i % 3, &seed));
        chunks.push_back(chunk_of(i & 1 ? pack(raw[i], "zstd", 5, (int)i % 3, 2, 1024)
                                        : write(raw[i], 2, 1024, i & 2, i & 4),
                                  raw[i].size()));
    }
    chunks[4].src[20] ^= 0x40; // a block offset
    chunks[9].src[0] = 9;
    run(chunks, 5);
    for (unsigned i = 0; i < 13; i++) {
        if (i == 4 || i == 9) {
            CHECK(chunks[i].result.status >= DAMACY__JOB_TRUNCATED);
        } else {
            CHECK_EQ(chunks[i].result.status, DAMACY__JOB_OK);
            CHECK(chunks[i].out == raw[i]);
        }
    }
}

TEST(the_error_of_a_stream_is_placed_in_the_container)
{
    uint64_t seed = test_seed();
    const bytes raw = sample(8192, 2, 0, &seed);
    std::vector<chunk> chunks;
    chunks.push_back(chunk_of(write(raw, 2, 2048, true, false), raw.size()));
    chunks.push_back(chunks[0]);
    bytes& src = chunks[0].src;
    // the first compressed stream of block 2, which comes after a stored one
    const uint32_t stream = damacy__load_u32(&src[8]) / 2;
    uint32_t at = damacy__load_u32(&src[16 + 4 * 2]);
    CHECK(!(src[2] & 0x10) && damacy__load_u32(&src[at]) == stream);
    at += 4 + stream;
    CHECK(damacy__load_u32(&src[at]) < stream);
    src[at + 4] = 0xff; // its first token claims very many literals
    src[at + 5] = 0xff;
    src[at + 6] = 0xff;
    src[at + 7] = 0xff;
    src[at + 8] = 0xff;
    src[at + 9] = 0xff;
    run(chunks);
    CHECK_EQ(chunks[0].result.status, DAMACY__JOB_TRUNCATED);
    CHECK_EQ(chunks[0].result.error_offset, at + 4);
    CHECK_EQ(chunks[0].result.size, 0);
    CHECK(chunks[1].out == raw);
}

static uint32_t status_of(const bytes& src, uint64_t expected, uint64_t capacity)
{
    std::vector<chunk> chunks(1);
    chunks[0].src = src;
    chunks[0].expected = expected;
    chunks[0].capacity = capacity;
    run(chunks);
    return chunks[0].result.status;
}

static bytes with(bytes v, size_t at, std::initializer_list<uint8_t> what)
{
    for (uint8_t x : what)
        v[at++] = x;
    return v;
}

TEST(headers_are_checked_field_by_field)
{
    uint64_t seed = test_seed();
    const bytes raw = sample(4096, 2, 0, &seed);
    const bytes lz4 = write(raw, 2, 1024, true, false);
    const uint32_t first = 16 + 4 * 4;
    const uint8_t size = (uint8_t)lz4.size(), size1 = (uint8_t)(lz4.size() >> 8);
    const struct {
        const char* what;
        bytes src;
        uint32_t status;
    } cases[] = {
        {"valid", lz4, DAMACY__JOB_OK},
        {"version 0", with(lz4, 0, {0}), DAMACY__JOB_BAD_MAGIC},
        {"version 1", with(lz4, 0, {1}), DAMACY__JOB_BAD_MAGIC},
        {"c-blosc2", with(lz4, 0, {5}), DAMACY__JOB_UNSUPPORTED},
        {"version 255", with(lz4, 0, {255}), DAMACY__JOB_BAD_MAGIC},
        {"codec version", with(lz4, 1, {2}), DAMACY__JOB_BAD_HEADER},
        {"reserved flag", with(lz4, 2, {0x29}), DAMACY__JOB_BAD_HEADER},
        {"both shuffles", with(lz4, 2, {0x25}), DAMACY__JOB_BAD_HEADER},
        {"blosclz", with(lz4, 2, {0x01}), DAMACY__JOB_UNSUPPORTED},
        {"snappy", with(lz4, 2, {0x41}), DAMACY__JOB_UNSUPPORTED},
        {"zlib", with(lz4, 2, {0x61}), DAMACY__JOB_UNSUPPORTED},
        {"codec 5", with(lz4, 2, {0xa1}), DAMACY__JOB_BAD_HEADER},
        {"stored, wrong size", with(lz4, 2, {0x23}), DAMACY__JOB_SIZE_MISMATCH},
        {"width 0", with(lz4, 3, {0}), DAMACY__JOB_BAD_HEADER},
        {"splits leave a rest", with(lz4, 3, {3}), DAMACY__JOB_BAD_HEADER},
        {"size 4095", with(lz4, 4, {0xff, 0x0f}), DAMACY__JOB_SIZE_MISMATCH},
        {"size 2^31", with(lz4, 4, {0, 0, 0, 0x80}), DAMACY__JOB_SIZE_MISMATCH},
        {"block 0", with(lz4, 8, {0, 0, 0, 0}), DAMACY__JOB_BAD_HEADER},
        {"block above the chunk", with(lz4, 8, {1, 16, 0, 0}), DAMACY__JOB_BAD_HEADER},
        {"negative block", with(lz4, 8, {0, 0, 0, 0x80}), DAMACY__JOB_BAD_HEADER},
        {"blocks of 1 byte", with(lz4, 8, {1, 0, 0, 0}), DAMACY__JOB_TRUNCATED},
        {"bytes claimed too many", with(lz4, 12, {(uint8_t)(size + 1), size1}),
         DAMACY__JOB_TRUNCATED},
        {"bytes claimed too few", with(lz4, 12, {(uint8_t)(size - 1), size1}),
         DAMACY__JOB_TRAILING},
        {"block in the table", with(lz4, 16, {(uint8_t)(first - 1), 0, 0, 0}),
         DAMACY__JOB_BAD_BLOCK},
        {"negative block place", with(lz4, 16, {0, 0, 0, 0x80}), DAMACY__JOB_BAD_BLOCK},
        {"block at the end", with(lz4, 16, {size, size1, 0, 0}), DAMACY__JOB_BAD_BLOCK},
        {"block 3 bytes before the end", with(lz4, 16, {(uint8_t)(size - 3), size1, 0, 0}),
         DAMACY__JOB_TRUNCATED},
        {"stream size 0", with(lz4, first, {0, 0, 0, 0}), DAMACY__JOB_BAD_BLOCK},
        {"stream size -1", with(lz4, first, {255, 255, 255, 255}), DAMACY__JOB_BAD_BLOCK},
        {"stream past the end", with(lz4, first, {0, 255, 0, 0}), DAMACY__JOB_TRUNCATED},
    };
    CHECK(size > 3 && size < 255 && size1 < 255);
    for (const auto& c : cases) {
        const uint32_t status = status_of(c.src, 4096, 4096);
        if (status != c.status)
            printf("# %s\n", c.what);
        CHECK_EQ(status, c.status);
    }
    CHECK_EQ(status_of(lz4, 4096, 4095), DAMACY__JOB_NO_SPACE);
    CHECK_EQ(status_of(lz4, DAMACY__SIZE_UNKNOWN, 5000), DAMACY__JOB_OK);
    CHECK_EQ(status_of({2, 1, 0x33, 1, 0, 0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0}, 0, 0), DAMACY__JOB_OK);
    for (size_t n = 0; n < lz4.size(); n++)
        CHECK_EQ(status_of(bytes(lz4.begin(), lz4.begin() + (ptrdiff_t)n), 4096, 4096),
                 DAMACY__JOB_TRUNCATED);
}

TEST(blocks_may_lie_in_any_order)
{
    uint64_t seed = test_seed();
    const bytes raw = sample(4096, 1, 0, &seed);
    const bytes packed = pack(raw, "zstd", 5, 0, 1, 1024);
    bytes turned(packed.begin(), packed.begin() + 32);
    for (unsigned i = 4; i-- > 0;) { // the last block first
        const uint32_t at = damacy__load_u32(&packed[16 + 4 * i]);
        const uint32_t n = 4 + damacy__load_u32(&packed[at]);
        turned[16 + 4 * i] = (uint8_t)turned.size();
        turned[17 + 4 * i] = (uint8_t)(turned.size() >> 8);
        turned.insert(turned.end(), packed.begin() + at, packed.begin() + at + n);
    }
    std::vector<chunk> chunks = {chunk_of(turned, 4096)};
    CHECK(turned.size() == packed.size());
    check_wave(chunks, {raw}, 0);
}

TEST(what_does_not_fit_a_table_gets_need_scratch_and_the_rest_decodes)
{
    uint64_t seed = test_seed();
    for (unsigned turn = 0; turn < 12; turn++) {
        std::vector<chunk> chunks;
        std::vector<bytes> raw;
        limits limit;
        if (turn % 3 == 0)
            limit.jobs = 3 + turn;
        else if (turn % 3 == 1)
            limit.moves = 1 + turn;
        else
            limit.scratch = 256 * turn;
        for (unsigned i = 0; i < 9; i++) {
            raw.push_back(sample(512 + 300 * i, 2, i % 2 ? 0 : 1, &seed));
            chunks.push_back(chunk_of(write(raw[i], 2, 512, true, false), raw[i].size()));
        }
        unsigned n_failed = 0;
        run(chunks, turn % 3 == 1, limit); // unaligned outputs have no planes without moves
        for (unsigned i = 0; i < 9; i++) {
            n_failed += chunks[i].result.status == DAMACY__JOB_NEED_SCRATCH;
            if (chunks[i].result.status != DAMACY__JOB_NEED_SCRATCH) {
                CHECK_EQ(chunks[i].result.status, DAMACY__JOB_OK);
                CHECK(chunks[i].out == raw[i]);
            }
        }
        CHECK(n_failed > 0);
    }
}

TEST(mutated_containers_agree_with_the_reference_or_are_refused)
{
    uint64_t seed = test_seed();
    unsigned n_ok = 0;
    for (unsigned round = 0; round < 60; round++) {
        std::vector<chunk> chunks;
        for (unsigned i = 0; i < 16; i++) {
            const unsigned width = 1 + (unsigned)(test_random(&seed) % 4);
            const size_t n = 300 + (size_t)(test_random(&seed) % 3000);
            const bytes raw = sample(n, width, i % 2, &seed);
            bytes packed =
                i % 3 ? write(raw, width, n < 512u * width ? n : 512u * width, i & 1, i & 2)
                      : pack(raw, "zstd", 5, (int)i % 3, width, 512);
            const size_t reach = test_random(&seed) & 1 ? 48 : packed.size();
            const size_t at =
                (size_t)(test_random(&seed) % (reach < packed.size() ? reach : packed.size()));
            packed[at] = test_random(&seed) & 1
                             ? (uint8_t)(packed[at] ^ 1u << (test_random(&seed) % 8))
                             : (uint8_t)test_random(&seed);
            chunks.push_back(chunk_of(packed, n));
        }
        run(chunks, round % 20);
        for (const chunk& c : chunks) {
            if (c.result.status != DAMACY__JOB_OK)
                continue;
            if (c.src[2] & 2) { // stored: we do not look at the block size, the reference does
                CHECK(memcmp(c.out.data(), &c.src[16], c.out.size()) == 0);
                continue;
            }
            // what passed our checks is safe to give to the reference
            bytes expected(c.out.size());
            n_ok++;
            CHECK_EQ(blosc_decompress_ctx(c.src.data(), expected.data(), expected.size(), 1),
                     (int)expected.size());
            CHECK(expected == c.out);
        }
    }
    CHECK(n_ok > 50);
}

TEST(files_of_other_versions_decode_as_the_reference_does)
{
    static const char* const names[] = {"1.11.1-blosclz",
                                        "1.11.1-lz4",
                                        "1.11.1-lz4hc",
                                        "1.11.1-zlib",
                                        "1.11.1-zstd",
                                        "1.14.0-blosclz",
                                        "1.14.0-lz4",
                                        "1.14.0-lz4hc",
                                        "1.14.0-zlib",
                                        "1.14.0-zstd",
                                        "1.18.0-blosclz-bitshuffle",
                                        "1.18.0-blosclz",
                                        "1.18.0-lz4-bitshuffle",
                                        "1.18.0-lz4",
                                        "1.18.0-lz4hc",
                                        "1.18.0-zlib",
                                        "1.18.0-zstd",
                                        "1.3.0-blosclz",
                                        "1.3.0-lz4",
                                        "1.3.0-lz4hc",
                                        "1.3.0-zlib",
                                        "1.7.0-blosclz",
                                        "1.7.0-lz4",
                                        "1.7.0-lz4hc",
                                        "1.7.0-zlib"};
    for (const char* name : names) {
        const std::string path = std::string("tests/corpus/blosc1/blosc-") + name + ".cdata";
        FILE* file = fopen(path.c_str(), "rb");
        if (!file)
            SKIP("run from the repository's root");
        bytes src(1 << 20);
        src.resize(fread(src.data(), 1, src.size(), file));
        fclose(file);
        const size_t n = damacy__load_u32(&src[4]);
        std::vector<chunk> chunks = {chunk_of(src, n)};
        run(chunks);
        if (strstr(name, "blosclz") || strstr(name, "zlib")) {
            CHECK_EQ(chunks[0].result.status, DAMACY__JOB_UNSUPPORTED);
            continue;
        }
        bytes expected(n);
        CHECK_EQ(blosc_decompress_ctx(src.data(), expected.data(), n, 1), (int)n);
        CHECK_EQ(chunks[0].result.status, DAMACY__JOB_OK);
        CHECK(chunks[0].out == expected);
    }
}

TEST_MAIN
