// kernels/copy.cu on the CPU, and moves, which kernels/zstd.cu makes.
#include "tests/simt/simt.h"
#include "kernels/copy.cu"
#include "kernels/zstd.cu"
#include "tests/test.h"
#include <vector>

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

TEST(moves_take_any_alignment)
{
    uint64_t seed = test_seed();
    for (unsigned i = 0; i < 300; i++) {
        const size_t n = (size_t)(test_random(&seed) % (i % 20 ? 100 : 20000));
        range src(n, i % 17), dst(n, i / 17 % 17);
        for (size_t k = 0; k < n; k++)
            src.ptr[k] = (uint8_t)(test_random(&seed) >> 56);
        damacy__move move = {(uint64_t)(uintptr_t)src.ptr, (uint64_t)(uintptr_t)dst.ptr, n};
        uint32_t count = i % 2 ? 1 : 7; // more than there is room for
        damacy__zstd_counters none = {};
        damacy__zstd_wave w = {};
        w.counters = (uint64_t)(uintptr_t)&none;
        w.moves = (uint64_t)(uintptr_t)&move;
        w.n_moves = (uint64_t)(uintptr_t)&count;
        w.max_moves = 1;
        simt::launch(dim3(2), dim3(256), [&] { damacy_zstd_place(w); });
        CHECK(dst.is_clean_before());
        CHECK(n == 0 || memcmp(src.ptr, dst.ptr, n) == 0);
    }
}

TEST(bytes_of_the_host_are_gathered_at_any_alignment)
{
    uint64_t seed = test_seed();
    for (unsigned i = 0; i < 400; i++) {
        const unsigned n = 1 + i % 9;
        std::vector<range> src, dst;
        std::vector<damacy__move> moves;
        for (unsigned k = 0; k < n; k++) {
            const size_t size = (size_t)(test_random(&seed) %
                                         (i % 10 == 0 ? DAMACY__GATHER_MAX + 1 : 80u + i * 16));
            src.emplace_back(size, (size_t)(test_random(&seed) % 33));
            dst.emplace_back(size, (size_t)(test_random(&seed) % 33));
            for (size_t b = 0; b < size; b++)
                src[k].ptr[b] = (uint8_t)(test_random(&seed) >> 56);
            moves.push_back(damacy__move{(uint64_t)(uintptr_t)src[k].ptr,
                                         (uint64_t)(uintptr_t)dst[k].ptr, size});
        }
        simt::launch(dim3(1 + i % 3), dim3(DAMACY__GATHER_THREADS),
                     [&] { damacy_gather((uint64_t)(uintptr_t)moves.data(), n); });
        for (unsigned k = 0; k < n; k++) {
            CHECK(dst[k].is_clean_before());
            CHECK(dst[k].size == 0 || memcmp(src[k].ptr, dst[k].ptr, dst[k].size) == 0);
        }
    }
}

TEST(outputs_of_failed_jobs_are_cleared)
{
    uint8_t out[3][40];
    damacy__job jobs[3];
    damacy__job_result results[3];
    uint32_t n = 3;
    memset(out, 1, sizeof out);
    memset(jobs, 0, sizeof jobs);
    memset(results, 0, sizeof results);
    for (unsigned i = 0; i < 3; i++) {
        jobs[i].dst = (uint64_t)(uintptr_t)out[i];
        jobs[i].dst_capacity = 40;
        jobs[i].expected_size = 30;
    }
    results[1].status = DAMACY__JOB_BAD_OFFSET;
    simt::launch(dim3(1), dim3(32), [&] {
        damacy_clear_failed((uint64_t)(uintptr_t)jobs, (uint64_t)(uintptr_t)results,
                            (uint64_t)(uintptr_t)&n, 3);
    });
    for (unsigned k = 0; k < 40; k++) {
        CHECK_EQ(out[0][k], 1);
        CHECK_EQ(out[1][k], k < 30 ? 0 : 1);
        CHECK_EQ(out[2][k], 1);
    }
}

TEST_MAIN
