// kernels/crc32c.cu on the CPU against a checksum computed bit by bit.
#include "tests/simt/simt.h"
#include "kernels/crc32c.cu"
#include "tests/test.h"

static uint32_t reference(const uint8_t* p, size_t n)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

// Bytes with their checksum at the end of an allocation, at any alignment.
struct sealed {
    std::unique_ptr<uint8_t[]> block;
    uint8_t* ptr;
    size_t size;
    sealed(size_t n, size_t skew, uint64_t* seed) : block(new uint8_t[n + skew + 4]), size(n + 4)
    {
        ptr = block.get() + skew;
        for (size_t i = 0; i < n; i++)
            ptr[i] = (uint8_t)(test_random(seed) >> 56);
        const uint32_t crc = reference(ptr, n);
        for (unsigned i = 0; i < 4; i++)
            ptr[n + i] = (uint8_t)(crc >> (8 * i));
    }
};

static std::vector<damacy__job_result> run(const std::vector<sealed>& ranges, uint32_t flags = 0)
{
    std::vector<damacy__job> jobs(ranges.size());
    std::vector<damacy__job_result> results(ranges.size());
    const uint32_t n = (uint32_t)ranges.size();
    for (size_t i = 0; i < ranges.size(); i++) {
        memset(&jobs[i], 0, sizeof jobs[i]);
        jobs[i].src = (uint64_t)(uintptr_t)ranges[i].ptr;
        jobs[i].src_size = ranges[i].size;
        jobs[i].flags = flags;
        results[i].status = DAMACY__JOB_NOT_RUN;
    }
    simt::launch(dim3(3), dim3(256), [&] {
        damacy_crc32c((uint64_t)(uintptr_t)jobs.data(), (uint64_t)(uintptr_t)results.data(),
                      (uint64_t)(uintptr_t)&n, n);
    });
    return results;
}

TEST(the_check_value_of_the_standard_is_met)
{
    uint64_t seed = 1;
    std::vector<sealed> ranges;
    ranges.emplace_back(9, 1, &seed);
    const uint8_t bytes[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9', 0x83, 0x92, 0x06, 0xe3};
    memcpy(ranges[0].ptr, bytes, sizeof bytes);
    CHECK_EQ(run(ranges)[0].status, DAMACY__JOB_OK);
}

TEST(sizes_and_alignments_of_all_kinds_are_right)
{
    uint64_t seed = test_seed();
    std::vector<sealed> ranges;
    for (size_t n = 0; n < 300; n++)
        ranges.emplace_back(n, n / 3 % 5, &seed);
    for (size_t n : {1000, 1023, 1024, 1025, 4095, 32767, 32768, 32769, 100003})
        for (size_t skew = 0; skew < 4; skew++)
            ranges.emplace_back(n, skew, &seed);
    const auto results = run(ranges);
    for (size_t i = 0; i < ranges.size(); i++) {
        CHECK_EQ(results[i].status, DAMACY__JOB_OK);
        CHECK_EQ(results[i].size, ranges[i].size - 4);
    }
}

TEST(every_flipped_bit_is_found)
{
    uint64_t seed = test_seed();
    for (size_t n : {1u, 7u, 133u, 2050u}) {
        std::vector<sealed> ranges;
        for (unsigned i = 0; i < 200; i++) {
            ranges.emplace_back(n, i % 4, &seed);
            if (i % 5)
                ranges[i].ptr[test_random(&seed) % (n + 4)] ^= (uint8_t)(1u << (i % 8));
        }
        const auto results = run(ranges);
        for (unsigned i = 0; i < 200; i++) {
            CHECK_EQ(results[i].status, i % 5 ? DAMACY__JOB_BAD_CHECKSUM : DAMACY__JOB_OK);
            CHECK_EQ(results[i].size, i % 5 ? 0 : n);
        }
    }
}

TEST(too_short_a_range_is_truncated_and_flags_are_followed)
{
    uint64_t seed = test_seed();
    std::vector<sealed> ranges;
    for (unsigned i = 0; i < 4; i++) {
        ranges.emplace_back(10, 0, &seed);
        ranges[i].size = i;
    }
    ranges.emplace_back(10, 0, &seed);
    ranges[4].ptr[0] ^= 1;
    auto results = run(ranges);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(results[i].status, DAMACY__JOB_TRUNCATED);
    CHECK_EQ(results[4].status, DAMACY__JOB_BAD_CHECKSUM);
    CHECK_EQ(run(ranges, DAMACY__JOB_NO_CHECKSUM)[4].status, DAMACY__JOB_OK);
    CHECK_EQ(run(ranges, DAMACY__JOB_SKIP)[4].status, DAMACY__JOB_SKIPPED);
}

TEST_MAIN
