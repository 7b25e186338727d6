// kernels/lz4_relay.cuh on the CPU, in a shape of small parts and tiles: that relays alone decode
// right blocks, however many take part; that teams have all of a wave where they should; that wrong
// blocks come out as without relays.
#include "tests/kernel/lz4_block.h"
#include "tests/kernel/lz4_run.h"
#include "tests/test.h"
#include <algorithm>

typedef std::vector<uint8_t> bytes;
typedef damacy__lz4_relay<128, 4> relay; // parts of 4 KiB at most, tiles of 512 bytes
// Times as many blocks of threads as blocks, from which on parts are small.
static constexpr uint32_t MANY = DAMACY__LZ4_RELAY_FEW;

struct wave_of {
    std::vector<bytes> src, out;
    std::vector<damacy__job> jobs;
    std::vector<damacy__job_result> results;
    uint32_t n = 0;
    uint32_t shrunk = 1; // room from which on blocks that shrink much are for relays

    // Places are at any alignment; `size`: of the output.
    void add(const bytes& block, size_t size)
    {
        const size_t skew = src.size() % 19;
        damacy__job job = {};
        bytes in(skew, 0xff);
        in.insert(in.end(), block.begin(), block.end());
        src.push_back(in);
        out.push_back(bytes(size + 64, 0xa5));
        job.src = (uint64_t)(uintptr_t)(src.back().data() + skew);
        job.src_size = block.size();
        job.dst = (uint64_t)(uintptr_t)(out.back().data() + 16 + skew);
        job.dst_capacity = job.expected_size = size;
        jobs.push_back(job);
        n++;
    }
    uint8_t* begin(size_t i)
    {
        return out[i].data() + 16 + i % 19;
    }
    // Nothing beside the output was written.
    bool is_clean(size_t i)
    {
        uint8_t* const end = begin(i) + jobs[i].dst_capacity;
        return std::all_of(out[i].data(), begin(i), [](uint8_t b) { return b == 0xa5; }) &&
               std::all_of(end, out[i].data() + out[i].size(), [](uint8_t b) { return b == 0xa5; });
    }
    // All are decoded, to `raw`.
    void check_right(const std::vector<bytes>& raw)
    {
        for (size_t i = 0; i < raw.size(); i++) {
            CHECK_EQ(results[i].status, DAMACY__JOB_OK);
            CHECK_EQ(results[i].size, raw[i].size());
            CHECK_EQ(results[i].error_offset, 0);
            CHECK(memcmp(begin(i), raw[i].data(), raw[i].size()) == 0);
            CHECK(is_clean(i));
        }
    }
    // Runs `n_blocks` blocks of threads, then, if asked for, the kernels behind.
    void run(uint32_t n_blocks, int goes_on)
    {
        damacy__lz4_wave wave = {};
        results.assign(n, damacy__job_result{1, 2, 3, 4});
        wave.jobs = (uint64_t)(uintptr_t)jobs.data();
        wave.n_jobs = (uint64_t)(uintptr_t)&n;
        wave.results = (uint64_t)(uintptr_t)results.data();
        wave.max_jobs = wave.team_most = n;
        wave.team_size = DAMACY__LZ4_TEAM_NEVER;
        wave.relay_size = 1;
        wave.relay_shrunk = shrunk;
        lz4_shrunk_times = 24;
        simt::launch(dim3((n + 1) / 2), dim3(64), DAMACY__LZ4_SPARSE_SHARED,
                     [&] { damacy_lz4_sparse(wave); });
        wave.is_begun = 1;
        simt::launch(dim3(n_blocks), dim3(relay::THREADS), relay::SIZE,
                     [&] { damacy__lz4_relay_wave<relay>(&wave, simt::dynamic_shared()); });
        if (!goes_on)
            return;
        lz4_run_team(wave, 8);
        if (goes_on == 1)
            return;
        simt::launch(dim3(n), dim3(32), DAMACY__LZ4_SHARED, [&] { damacy_lz4(wave); });
    }
};

// Bytes that LZ4 shrinks 1.1 to 70 times, of several kinds.
static bytes raw_of(unsigned kind, size_t n, uint64_t* seed)
{
    bytes v(n);
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = test_random(seed) >> 24;
        switch (kind % 8) {
        case 0: // 16-bit values with noise in few bits
            v[i] = i & 1 ? 0 : (uint8_t)(100 + (r & 7) + (r >> 8 & 3));
            break;
        case 1: // half of the values zero
            v[i] = (i / 2 * 2654435761u >> 7 & 1) ? (uint8_t)r : 0;
            break;
        case 2: // runs of all periods beside noise
            v[i] = i % 3000 < 1500 && i >= 3000 ? v[i - 1 - i / 3000 % 21] : (uint8_t)(r & 63);
            break;
        case 3: // long runs of literals between far repeats
            v[i] = i >= 5000 && i % 5000 < 2500 ? v[i - 4321] : (uint8_t)r;
            break;
        case 4: // a line of 200 bytes again and again, with a change now and then
            v[i] = i >= 200 && (r & 63) ? v[i - 200] : (uint8_t)r;
            break;
        case 5: // runs of up to a few hundred bytes
            v[i] = i && (r & 127) ? v[i - 1] : (uint8_t)(r >> 8 & 3);
            break;
        case 6: // and of a thousand
            v[i] = i && (r & 511) ? v[i - 1] : (uint8_t)(r >> 16);
            break;
        default: // short sequences
            v[i] = (uint8_t)(r & 1 ? 'a' : (r >> 1 & 3) * 5);
        }
    }
    return v;
}

TEST(relays_alone_decode_right_blocks)
{
    uint64_t seed = test_seed();
    for (const uint32_t n_blocks : {1u, 3u, 7u, MANY * 10}) {
        std::vector<bytes> raw;
        wave_of w;
        for (unsigned i = 0; i < 10; i++) {
            raw.push_back(raw_of(i, 20000 + (size_t)(test_random(&seed) % 60000), &seed));
            w.add(lz4_block(raw[i], i % 3 == 0 ? 0 : i % 3 == 1 ? 9 : -20), raw[i].size());
        }
        w.run(n_blocks, 0);
        w.check_right(raw);
    }
}

// A sequence of n_literals and a match; with 0 bytes of a match the last one.
static void put_sequence(bytes* src, bytes* raw, size_t n_literals, size_t n_match, size_t offset,
                         uint64_t* seed)
{
    const size_t at = src->size();
    src->push_back(0);
    uint8_t token = 0;
    const auto put_length = [&](size_t n) {
        for (n -= 15; n >= 255; n -= 255)
            src->push_back(255);
        src->push_back((uint8_t)n);
    };
    token = (uint8_t)(std::min<size_t>(n_literals, 15) << 4);
    if (n_literals >= 15)
        put_length(n_literals);
    for (size_t i = 0; i < n_literals; i++) {
        const uint8_t byte = (uint8_t)(test_random(seed) >> 40);
        src->push_back(byte);
        raw->push_back(byte);
    }
    if (n_match) {
        src->push_back((uint8_t)offset);
        src->push_back((uint8_t)(offset >> 8));
        token = (uint8_t)(token | std::min<size_t>(n_match - 4, 15));
        if (n_match - 4 >= 15)
            put_length(n_match - 4);
        for (size_t i = 0; i < n_match; i++)
            raw->push_back((*raw)[raw->size() - offset]);
    }
    (*src)[at] = token;
}

// Literals and matches of any length, also over several parts and tiles, at any place of a part.
TEST(sequences_longer_than_parts_and_tiles_decode_to_their_bytes)
{
    uint64_t seed = test_seed();
    const size_t lengths[] = {0, 1, 14, 15, 16, 269, 270, 500, 511, 512, 2047, 2048, 5000};
    for (const uint32_t n_blocks : {5u, MANY * 24}) {
        wave_of w;
        std::vector<bytes> raw(24);
        for (auto& r : raw) {
            bytes src;
            for (unsigned k = 0; k < 60; k++) {
                const uint64_t x = test_random(&seed) >> 16;
                const size_t n = lengths[x % (x >> 20 & 7 ? 6 : 13)] + (k == 0);
                const size_t m = 4 + lengths[(x >> 8) % (x >> 24 & 7 ? 6 : 13)];
                const size_t most = std::min<size_t>(r.size() + n, 65535);
                const size_t far = x >> 27 & 1 ? most : std::min<size_t>(most, 9);
                put_sequence(&src, &r, n, m, 1 + (size_t)((x >> 28) % far), &seed);
            }
            put_sequence(&src, &r, 5 + lengths[test_random(&seed) % 13], 0, 0, &seed);
            w.add(src, r.size());
        }
        w.run(n_blocks, 0);
        w.check_right(raw);
    }
}

// The literals that end a block are shared by parts, wherever they and their lengths begin and end.
TEST(literals_that_end_a_block_are_shared_by_parts)
{
    uint64_t seed = test_seed();
    for (const uint32_t n_blocks : {1u, 4u, MANY * 40}) {
        wave_of w;
        std::vector<bytes> raw(40);
        for (unsigned i = 0; i < raw.size(); i++) {
            bytes src;
            const unsigned before = i % 4 == 0 ? 0 : (unsigned)(test_random(&seed) >> 58);
            for (unsigned k = 0; k < before; k++)
                put_sequence(&src, &raw[i], 1 + (size_t)(test_random(&seed) % 200), 4 + k, 1,
                             &seed);
            // up to the end of a part, a byte more or less, or any number
            const size_t part = relay::PART * (2 + src.size() / relay::PART) - i % 19;
            const size_t n = i % 3 ? 5 + (size_t)(test_random(&seed) % (i % 7 ? 50000 : 1100000))
                                   : part - src.size() + i % 5;
            put_sequence(&src, &raw[i], n, 0, 0, &seed);
            w.add(src, raw[i].size());
        }
        w.run(n_blocks, 0);
        w.check_right(raw);
    }
}

// Of literals that end a block all but the last bytes have room, or are there.
TEST(literals_without_room_and_cut_ones_are_refused)
{
    uint64_t seed = test_seed();
    for (const uint32_t n_blocks : {3u, MANY * 12}) {
        wave_of w;
        for (unsigned i = 0; i < 12; i++) {
            bytes src, raw;
            put_sequence(&src, &raw, 100, 8, 5, &seed);
            put_sequence(&src, &raw, 20000 + 900 * i, 0, 0, &seed);
            if (i % 2)
                src.resize(src.size() - 1 - 700 * i);
            w.add(src, raw.size() - (i % 2 ? 0 : 1 + 700 * i));
        }
        w.run(n_blocks, 2);
        for (unsigned i = 0; i < 12; i++) {
            CHECK(w.results[i].status != DAMACY__JOB_OK);
            CHECK(w.is_clean(i));
        }
    }
}

// A block that shrinks too much for relays, and is short or long for a team.
TEST(teams_have_all_blocks_of_a_wave_with_others)
{
    uint64_t seed = test_seed();
    for (const size_t others : {3000u, 400000u}) {
        std::vector<bytes> raw;
        wave_of w;
        for (unsigned i = 0; i < 4; i++) {
            raw.push_back(i == 2 ? bytes(others) : raw_of(i, 20000, &seed));
            if (i == 2) // shrinks about 8 times
                for (size_t k = 0; k < others; k++)
                    raw[2][k] = (uint8_t)(k % 100 < 6 ? test_random(&seed) >> 50 : 0);
            w.add(lz4_block(raw[i], 0), raw[i].size());
        }
        w.shrunk = 0xffffffff;
        w.run(3, 0);
        for (unsigned i = 0; i < 4; i++)
            if (i != 2)
                CHECK_EQ(w.results[i].status,
                         others > 100000 ? (int)DAMACY__LZ4_GOES_ON : (int)DAMACY__JOB_OK);
        w.run(3, 1);
        for (unsigned i = 0; i < 4; i++) {
            CHECK_EQ(w.results[i].status, DAMACY__JOB_OK);
            CHECK(memcmp(w.begin(i), raw[i].data(), raw[i].size()) == 0);
        }
    }
}

TEST(wrong_blocks_are_refused_as_without_relays_and_cost_others_nothing)
{
    uint64_t seed = test_seed();
    for (unsigned round = 0; round < 24; round++) {
        std::vector<bytes> raw;
        wave_of w, without;
        for (unsigned i = 0; i < 6; i++) {
            raw.push_back(raw_of(i + round, 9000 + (size_t)(test_random(&seed) % 9000), &seed));
            bytes src = lz4_block(raw[i], 0);
            if (i % 3 == 2) { // many literals to its end
                raw[i].clear();
                src.clear();
                for (unsigned k = 0; k < 60; k++)
                    put_sequence(&src, &raw[i], 1 + k, 4 + k, 1 + k / 2, &seed);
                put_sequence(&src, &raw[i], 9000 + (size_t)(test_random(&seed) % 9000), 0, 0,
                             &seed);
            }
            size_t size = raw[i].size();
            if (i % 2 == 0) { // damaged, cut, or with less or more room
                const size_t at = (size_t)(test_random(&seed) % src.size());
                if (round % 4 == 0)
                    src[at] = (uint8_t)(test_random(&seed) >> 50);
                else if (round % 4 == 1)
                    src.resize(1 + at);
                else if (round % 4 == 2)
                    src[at] = src[std::min(at + 1, src.size() - 1)] = 0;
                else
                    size -= 1 + (size_t)(test_random(&seed) % 200);
            }
            w.add(src, size);
            without.add(src, size);
        }
        w.run(round % 8 < 4 ? 4 : MANY * 6, 2);
        without.results.resize(without.n);
        lz4_run(without.jobs.data(), without.results.data(), &without.n, without.n);
        for (size_t i = 0; i < raw.size(); i++) {
            CHECK_EQ(w.results[i].status, without.results[i].status);
            CHECK_EQ(w.results[i].size, without.results[i].size);
            CHECK_EQ(w.results[i].error_offset, without.results[i].error_offset);
            CHECK(i % 2 == 0 || w.results[i].status == DAMACY__JOB_OK);
            CHECK(w.results[i].status != DAMACY__JOB_OK ||
                  memcmp(w.begin(i), without.begin(i), w.jobs[i].dst_capacity) == 0);
            CHECK(w.is_clean(i));
        }
    }
}

TEST_MAIN
