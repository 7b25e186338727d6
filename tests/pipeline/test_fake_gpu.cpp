// The whole library with its GPU side, on the fake driver: the same voxels as were written.
#include "tests/pipeline/gpu_scene.h"

TEST(every_voxel_is_right_through_the_kernels)
{
    scene s(32);
    damacy* d = NULL;
    fake_counts counts;
    CHECK_EQ(damacy_create(&s.config, &d, &s.err), DAMACY_OK);
    CHECK_EQ(damacy_device(d), DAMACY_GPU(0));
    const epoch e = run_epoch(s, d);
    if (e.status != DAMACY_END)
        printf("# %s\n", s.err.message);
    CHECK_EQ(e.status, DAMACY_END);
    CHECK_EQ(e.n_bad, 0);
    CHECK_EQ(e.n_failed, 0);
    CHECK_EQ(e.n_popped, 32);
    fake_count(&counts);
    printf("# %llu calls, %llu launches, %llu bytes at most\n", (unsigned long long)counts.n_calls,
           (unsigned long long)counts.n_launches, (unsigned long long)counts.most_bytes);
    CHECK(counts.most_bytes <= s.config.max_gpu_bytes);
    damacy_destroy(d);
    check_no_leftovers(s);
}

TEST_MAIN
