// kernels/lz4_team.cuh and lz4_team_tokens.cuh on the CPU: the tokens of a part against a walk from
// one to the next, whatever its bytes are; that teams leave nothing of right blocks; that warps
// wait for each other.
#include "bench/rows_of_ids.h"
#include "tests/kernel/lz4_block.h"
#include "tests/kernel/lz4_run.h"
#include "tests/test.h"

typedef std::vector<uint8_t> bytes;
typedef damacy__lz4_team<128, 2> team4;
typedef damacy__lz4_team<256, 2> team8;

// Bytes that are tokens with long and short lengths: `kind` of how often they are 15 and 255.
static bytes part_of(unsigned kind, size_t n, uint64_t* seed)
{
    bytes v(n);
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = test_random(seed) >> 20;
        const uint8_t low = (uint8_t)(r >> 8 & 3 ? r % 5 : 15), any = (uint8_t)(r >> 16);
        switch (kind % 6) {
        case 0:
            v[i] = any;
            break;
        case 1: // short sequences
            v[i] = (uint8_t)((r >> 12 & 1) << 4 | (r >> 13 & 3));
            break;
        case 2: // lengths of more than one byte
            v[i] = r >> 24 & 1 ? 255 : any;
            break;
        case 3:
            v[i] = (uint8_t)(low | (r >> 28 & 15 ? 0 : 0xf0));
            break;
        case 4: // matches of more than one byte, close to each other
            v[i] = i % 7 == 0 ? 0x0f : i % 7 == 3 ? 255 : 0;
            break;
        default:
            v[i] = r >> 24 & 63 ? 255 : any;
        }
    }
    return v;
}

// Where tokens start from byte `at` on, below `end`.
static std::vector<uint32_t> walk(const bytes& v, size_t at, size_t end)
{
    std::vector<uint32_t> tokens;
    while (at < end) {
        const uint8_t token = v[at];
        size_t n = token >> 4;
        bool goes_on = n == 15;
        tokens.push_back((uint32_t)at++);
        for (; goes_on && at < end; at++) {
            n += v[at];
            goes_on = v[at] == 255;
        }
        if (goes_on)
            break;
        at += n + 2;
        for (goes_on = (token & 15) == 15; goes_on && at < end; at++)
            goes_on = v[at] == 255;
    }
    return tokens;
}

// Finds the tokens of a part from byte `at` of a source on, of a block that makes `limit` bytes.
template <class S>
static std::vector<uint32_t> find(const bytes& src, uint32_t limit, uint32_t at,
                                  damacy__lz4_tokens* t)
{
    std::vector<uint32_t> tokens;
    simt::launch(dim3(1), dim3(S::THREADS), S::SIZE, [&] {
        const uint32_t base = damacy__shared_address(simt::dynamic_shared());
        damacy__lz4_state s = {};
        damacy__lz4_tokens mine;
        s.src = src.data();
        s.size = (uint32_t)src.size();
        s.limit = limit;
        damacy__lz4_team_find<S>(&s, &mine, base, at);
        if (threadIdx.x == 0) {
            *t = mine;
            for (uint32_t i = 0; i < mine.n_tokens; i++)
                tokens.push_back(damacy__lds16(base + S::TOKENS + 2 * i) - mine.begin + at);
        }
    });
    return tokens;
}

template <class S> static void compare_tokens(uint64_t* seed)
{
    for (unsigned i = 0; i < 300; i++) {
        const size_t n = 1 + (size_t)(test_random(seed) % (i % 3 ? 20000 : 300));
        const bytes src = part_of(i, n, seed);
        const uint32_t at = (uint32_t)(i % 4 ? test_random(seed) % n : 0);
        damacy__lz4_tokens t;
        const uint32_t limit = i / 6 % 2 ? 16u * (uint32_t)n : 0; // or not: it shrinks so much
        const auto tokens = find<S>(src, limit, at, &t);
        CHECK(t.end > t.begin && t.end <= S::PART && t.begin < 16);
        CHECK(t.end - t.begin == n - at || t.end == S::PART);
        CHECK_EQ(t.is_last, t.end - t.begin == n - at);
        CHECK(tokens == walk(src, at, at + t.end - t.begin));
    }
}

TEST(tokens_of_any_bytes_are_those_of_a_walk)
{
    uint64_t seed = test_seed();
    compare_tokens<team4>(&seed);
    compare_tokens<team8>(&seed);
}

// One block by a team alone.
static damacy__job_result run_alone(const bytes& src, uint32_t team, bytes* out)
{
    damacy__job job = {};
    damacy__job_result result = {};
    damacy__lz4_wave wave = {};
    const uint32_t n = 1;
    job.src = (uint64_t)(uintptr_t)src.data();
    job.src_size = src.size();
    job.dst = (uint64_t)(uintptr_t)out->data();
    job.dst_capacity = job.expected_size = out->size();
    wave.jobs = (uint64_t)(uintptr_t)&job;
    wave.n_jobs = (uint64_t)(uintptr_t)&n;
    wave.results = (uint64_t)(uintptr_t)&result;
    wave.max_jobs = wave.team_most = 1;
    wave.team_size = DAMACY__LZ4_TEAM_NEVER;
    lz4_run_team(wave, team);
    return result;
}

// Teams alone decode what is packed of `raw`.
static void teams_give(const bytes& raw, int level)
{
    const bytes src = lz4_block(raw, level);
    for (const uint32_t team : {4u, 8u}) {
        bytes out(raw.size());
        const damacy__job_result result = run_alone(src, team, &out);
        CHECK_EQ(result.status, DAMACY__JOB_OK);
        CHECK_EQ(result.size, raw.size());
        CHECK(out == raw);
    }
}

// Values with 1 to 7 bits of noise, of 8 or 16 bits; or their high bits alone; or long runs.
static bytes volume(unsigned kind, size_t n, uint64_t* seed)
{
    bytes v(n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t noise = (uint32_t)(test_random(seed) >> 40) >> (24 - (1 + kind % 7));
        const uint32_t x = 100 + (uint32_t)(i >> 9) % 50 + noise;
        v[i] = (uint8_t)(kind % 4 == 0   ? x
                         : kind % 4 == 1 ? (i & 1 ? x >> 8 : x)
                         : kind % 4 == 2 ? x >> 6
                                         : i / 3000 * 7);
    }
    return v;
}

// Zeros with some values in between, as labels have them: short sequences beside long ones.
static bytes labels(size_t n, uint64_t* seed)
{
    bytes v;
    while (v.size() < n) {
        v.insert(v.end(), (size_t)(test_random(seed) % 30000), 0);
        for (size_t k = (size_t)(test_random(seed) % 700); k > 0; k--)
            v.push_back((uint8_t)(test_random(seed) % 5));
        if (test_random(seed) % 4 == 0)
            for (size_t k = (size_t)(test_random(seed) % 20000); k > 0; k--)
                v.push_back((uint8_t)(test_random(seed) >> 56));
    }
    v.resize(n);
    return v;
}

TEST(teams_decode_long_sequences_among_short_ones)
{
    uint64_t seed = test_seed();
    for (unsigned i = 0; i < 32; i++) {
        const size_t n = 1 + (size_t)(test_random(&seed) % (i % 4 == 1 ? 2000000 : 300000));
        const bytes raw = i % 4 == 0   ? bytes(n, (uint8_t)i)
                          : i % 4 == 1 ? rows_of_ids(n, [&] { return test_random(&seed); })
                                       : labels(n, &seed);
        teams_give(raw, i % 3 == 2 ? 9 : 0);
    }
}

TEST(teams_leave_nothing_of_right_blocks)
{
    uint64_t seed = test_seed();
    for (unsigned i = 0; i < 24; i++) {
        const bytes raw = volume(i, 1 + (size_t)(test_random(&seed) % 150000), &seed);
        teams_give(raw, i % 3 == 2 ? 9 : 0);
    }
}

// Of a wave that is not for teams as a whole: those with room for so many bytes, and no other.
TEST(teams_take_blocks_of_their_size_and_leave_all_others)
{
    uint64_t seed = test_seed();
    const uint32_t n = 9;
    for (const uint32_t team : {4u, 8u}) {
        std::vector<bytes> raw, packed, out;
        std::vector<damacy__job> jobs(n);
        std::vector<damacy__job_result> results(n);
        damacy__lz4_wave wave = {};
        for (uint32_t i = 0; i < n; i++) {
            raw.push_back(volume(i, i % 3 == 2 ? 9000 + i : 8999 - 900 * i, &seed));
            packed.push_back(lz4_block(raw[i], 0));
            out.push_back(bytes(raw[i].size(), 0xa5));
            results[i].status = DAMACY__JOB_NOT_RUN;
        }
        for (uint32_t i = 0; i < n; i++) {
            jobs[i] = damacy__job();
            jobs[i].src = (uint64_t)(uintptr_t)packed[i].data();
            jobs[i].src_size = packed[i].size();
            jobs[i].dst = (uint64_t)(uintptr_t)out[i].data();
            jobs[i].dst_capacity = jobs[i].expected_size = out[i].size();
        }
        wave.jobs = (uint64_t)(uintptr_t)jobs.data();
        wave.n_jobs = (uint64_t)(uintptr_t)&n;
        wave.results = (uint64_t)(uintptr_t)results.data();
        wave.max_jobs = n;
        for (const uint32_t size : {DAMACY__LZ4_TEAM_NEVER, 9000u}) {
            wave.team_size = size;
            lz4_run_team(wave, team);
            for (uint32_t i = 0; i < n; i++) {
                const bool is_done = size == 9000 && i % 3 == 2;
                CHECK_EQ(results[i].status, is_done ? DAMACY__JOB_OK : DAMACY__JOB_NOT_RUN);
                CHECK_EQ(out[i] == raw[i], is_done);
            }
        }
    }
}

// The kind of a wave is that of 32 of its jobs; DAMACY__LZ4_WARPS are held by a multiprocessor
// here.
TEST(teams_have_waves_that_shrink_as_they_like_it)
{
    const uint32_t held = DAMACY__LZ4_WARPS, never = DAMACY__LZ4_TEAM_NEVER;
    const struct {
        uint32_t n, n_multiprocessors;
        uint64_t size, room; // of each
        uint32_t team_size;
    } cases[] = {
        {100, 0, 64 * 100, 64 * 202, 0},
        {100, 0, 64 * 100, 64 * 201, never},
        {1, 0, 64 * 100, 64 * 202, 0},
        {101, 0, 64 * 100, 64 * 202, never},
        {10, 0, 64 * 100, 64 * 202, 0},
        {9, 0, 64 * 100, 64 * 100, 0},
        {100, 0, 64 * 9, 64 * 239, 0},
        {100, 0, 64 * 9, 64 * 240, never},
        {100, 0, 0, 0, never},
        {100, 0, 0, ~0ull, never},
        {100, 0, ~0ull, ~0ull, never},
        {100, 0, 1ull << 30, ~0ull, never},
        {100, 0, (1ull << 29) - 1, ~0ull, 0},
        {held + 1, 1, 64, 64, 0},
        {held, 1, 64, 64, never},
        {held * 5 / 4, 1, 64, 64, 0},
        {held * 5 / 4 + 1, 1, 64, 64, never},
        {2 * held + 1, 2, 64, 64, 0},
        {2 * held + 1, 1, 64, 64, never},
    };
    lz4_shrunk_times = 24;
    for (const auto& c : cases) {
        std::vector<damacy__job> jobs(c.n);
        damacy__lz4_wave wave = {};
        for (damacy__job& j : jobs) {
            j.src_size = c.size;
            j.dst_capacity = c.room;
        }
        wave.jobs = (uint64_t)(uintptr_t)jobs.data();
        wave.max_jobs = c.n;
        wave.team_most = 9;
        wave.team_some = 100;
        wave.team_shrink = 2;
        wave.team_size = never;
        wave.n_multiprocessors = c.n_multiprocessors;
        uint32_t found[32];
        simt::launch(dim3(1), dim3(32), 0,
                     [&] { found[threadIdx.x] = damacy__lz4_team_room(&wave, c.n); });
        for (const uint32_t f : found) {
            CHECK_EQ(f, c.team_size);
        }
    }
}

// Streams of a blosc block are neighbours, a plane each, of which one shrinks and the others do not.
TEST(a_wave_of_planes_is_not_taken_for_one_of_them)
{
    lz4_shrunk_times = 24;
    for (const uint32_t width : {2u, 4u, 8u}) {
        for (uint32_t shrinks = 0; shrinks < width; shrinks++) {
            std::vector<damacy__job> jobs(1024);
            damacy__lz4_wave wave = {};
            for (size_t i = 0; i < jobs.size(); i++) {
                jobs[i].dst_capacity = 64 * 1600;
                jobs[i].src_size = i % width == shrinks ? 64 * 100 : 64 * 1600;
            }
            wave.jobs = (uint64_t)(uintptr_t)jobs.data();
            wave.team_some = 1024;
            wave.team_shrink = 2;
            wave.team_size = DAMACY__LZ4_TEAM_NEVER;
            uint32_t found[32];
            simt::launch(dim3(1), dim3(32), 0,
                         [&] { found[threadIdx.x] = damacy__lz4_team_room(&wave, 1024); });
            CHECK_EQ(found[0], DAMACY__LZ4_TEAM_NEVER);
        }
    }
}

// A block whose sources all lie before their own step, so that no links are followed.
static bytes far_block(size_t* size, uint64_t* seed)
{
    bytes src = {0xf0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 90};
    *size = 0;
    for (unsigned i = 0; i < 6000; i++) {
        const bool is_last = i == 5999;
        const size_t n_literals = i == 0    ? 15 + 12 * 255 + 90
                                  : is_last ? 13
                                            : (size_t)(test_random(seed) % 14);
        const size_t n_match = 4 + (size_t)(test_random(seed) % 14);
        if (i != 0)
            src.push_back((uint8_t)(n_literals << 4 | (is_last ? 0 : n_match - 4)));
        for (size_t k = 0; k < n_literals; k++)
            src.push_back((uint8_t)(test_random(seed) >> 56));
        *size += n_literals;
        if (is_last)
            break;
        const size_t least = 1100, most = std::min<size_t>(*size, 65535);
        const size_t offset = least + (size_t)(test_random(seed) % (most - least));
        src.push_back((uint8_t)offset);
        src.push_back((uint8_t)(offset >> 8));
        *size += i == 0 ? 4 : n_match;
    }
    return src;
}

TEST(warps_of_a_team_wait_for_each_other)
{
    uint64_t seed = test_seed();
    for (const uint32_t team : {4u, 8u}) {
        size_t size;
        const bytes src = far_block(&size, &seed);
        bytes out(size), expected(size);
        simt::races races(simt::SHARED_MAX);
        CHECK_EQ(LZ4_decompress_safe((const char*)src.data(), (char*)expected.data(),
                                     (int)src.size(), (int)size),
                 (int)size);
        simt::g.watch = &races;
        CHECK_EQ(run_alone(src, team, &out).status, DAMACY__JOB_OK);
        simt::g.watch = nullptr;
        CHECK(out == expected);
        if (races.found)
            fprintf(stderr, "# team of %u: %s\n", team, races.first.c_str());
        CHECK_EQ(races.found, 0);
        CHECK(races.accesses > 300000);
    }
}

TEST_MAIN
