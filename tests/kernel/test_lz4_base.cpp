// kernels/lz4.cu where shared memory does not begin where the program was compiled for: what needs
// it is refused by name, and what was finished without it stays.
#define DAMACY__DYNAMIC_BASE(shared) (damacy__shared_address(shared) + 16u)
#include "tests/kernel/lz4_block.h"
#include "tests/kernel/lz4_run.h"
#include "tests/test.h"

typedef std::vector<uint8_t> bytes;

static bytes noise(size_t n, uint64_t* seed)
{
    bytes v(n);
    for (auto& x : v)
        x = (uint8_t)(test_random(seed) >> 56);
    return v;
}

// Many short sequences.
static bytes dense(size_t n, uint64_t* seed)
{
    bytes v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = i % 9 < 5 ? (uint8_t)(i % 9) : (uint8_t)(test_random(seed) >> 56);
    return v;
}

// One wave of blocks of these contents, with `missing` bytes less room for each than it needs.
static std::vector<damacy__job_result> decode(const std::vector<bytes>& contents, size_t missing,
                                              uint32_t team, std::vector<bytes>* outputs)
{
    const uint32_t n = (uint32_t)contents.size();
    std::vector<damacy__job> jobs(n);
    std::vector<damacy__job_result> results(n);
    std::vector<bytes> blocks;

    memset(jobs.data(), 0, n * sizeof jobs[0]);
    memset(results.data(), 0xee, n * sizeof results[0]);
    for (uint32_t i = 0; i < n; i++) {
        blocks.push_back(lz4_block(contents[i], 0));
        CHECK(!blocks[i].empty());
        outputs->push_back(bytes(contents[i].size(), 0xa5));
    }
    for (uint32_t i = 0; i < n; i++) {
        jobs[i].src = (uint64_t)(uintptr_t)blocks[i].data();
        jobs[i].src_size = blocks[i].size();
        jobs[i].dst = (uint64_t)(uintptr_t)(*outputs)[i].data();
        jobs[i].expected_size = contents[i].size();
        jobs[i].dst_capacity = contents[i].size() - missing;
    }
    lz4_run(jobs.data(), results.data(), &n, n, {true, team, false});
    return results;
}

static void refuses_what_needs_shared_memory(uint32_t team)
{
    uint64_t seed = test_seed();
    const bytes stored = noise(70000, &seed), dense_end = dense(5000, &seed);
    bytes begun = noise(120000, &seed);
    std::vector<bytes> outputs;

    begun.insert(begun.end(), dense_end.begin(), dense_end.end());
    const auto results = decode({stored, dense_end, begun, stored}, 0, team, &outputs);
    for (const uint32_t i : {0u, 3u}) {
        CHECK_EQ(results[i].status, DAMACY__JOB_OK);
        CHECK_EQ(results[i].size, stored.size());
        CHECK(outputs[i] == stored);
    }
    CHECK_EQ(results[1].status, DAMACY__JOB_UNSUPPORTED);
    CHECK_EQ(results[1].error_offset, 0);
    CHECK(outputs[1] == bytes(dense_end.size(), 0xa5));
    CHECK_EQ(results[2].status, DAMACY__JOB_UNSUPPORTED); // and where it goes on
    CHECK(results[2].error_offset >= 120000);
}

TEST(what_needs_shared_memory_is_refused_and_nothing_else)
{
    for (const uint32_t team : {0u, 4u, 8u})
        refuses_what_needs_shared_memory(team);
}

// What could be decoded nowhere says so, not that it could not be decoded here.
TEST(an_error_that_was_found_before_stays)
{
    uint64_t seed = test_seed();
    for (const uint32_t team : {0u, 4u, 8u}) {
        std::vector<bytes> outputs;
        const auto results = decode({noise(70000, &seed), dense(5000, &seed)}, 1, team, &outputs);

        CHECK_EQ(results[0].status, DAMACY__JOB_NO_SPACE);
        CHECK_EQ(results[0].size, 70000);
        CHECK_EQ(results[1].status, DAMACY__JOB_NO_SPACE);
        CHECK_EQ(results[1].size, 5000);
    }
}

TEST_MAIN
