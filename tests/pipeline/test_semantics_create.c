/* s01 to s09: what creating a pipeline promises. s04 and s05 need a GPU's contexts and are in
 * test_semantics_gpu.cpp, as are the device's sides of s06 and s08. */
#include "tests/pipeline/semantics.h"

/* Ours: a missing configuration means all defaults. */
TEST(s01_out_is_null_on_every_failure_and_no_config_means_defaults)
{
    damacy_config c;
    damacy_error err;
    damacy* d = (damacy*)&c;

    memset(&c, 0, sizeof c);
    c.device = DAMACY_CPU;
    c.batch_slots = 1;
    CHECK_EQ(damacy_create(&c, NULL, &err), DAMACY_INVAL);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_INVAL);
    CHECK(d == NULL);
    CHECK_EQ(err.stage, DAMACY_STAGE_CONFIG);
    CHECK_EQ(damacy_create(&c, &d, NULL), DAMACY_INVAL);
    c.batch_slots = 0;
    d = (damacy*)&c;
    c.max_host_bytes = UINT64_C(1) << 20; /* valid, but too little for so many samples */
    c.lookahead_samples = 1 << 20;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_BUDGET);
    CHECK(d == NULL);
    CHECK_HAS(err.message, "max_host_bytes 1048576");
    CHECK_EQ(damacy_create(NULL, &d, &err), DAMACY_OK);
    damacy_destroy(d);
}

/* Ours: zero is each field's default; everything out of range is named. */
TEST(s02_values_out_of_range_are_refused_by_name)
{
    static const char* const names[] = {"lookahead_samples",
                                        "samples_per_batch",
                                        "sample_rank",
                                        "sample_shape[0]",
                                        "sample_shape[2]",
                                        "too large",
                                        "io_threads",
                                        "decode_threads",
                                        "batch_slots",
                                        "max_read_bytes",
                                        "max_host_bytes",
                                        "dtype",
                                        "bounds",
                                        "on_error",
                                        "numa",
                                        "gds",
                                        "device",
                                        "numa_node",
                                        "debug_latency",
                                        "debug_latency",
                                        "channel_axis",
                                        "channel_axis"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        damacy_config c;
        damacy_config resolved;
        damacy_error err;
        damacy* d = NULL;
        memset(&c, 0, sizeof c);
        memset(&resolved, 0x5a, sizeof resolved);
        c.sample_rank = 3;
        c.sample_shape[0] = c.sample_shape[1] = c.sample_shape[2] = 8;
        c.samples_per_batch = 4;
        c.lookahead_samples = i == 0 ? 3 : 0;
        c.samples_per_batch = i == 1 ? UINT32_MAX : 4;
        c.sample_rank = i == 2 ? DAMACY_MAX_RANK + 1 : 3;
        c.sample_shape[0] = i == 3 ? -1 : i == 5 ? INT64_MAX / 2 : 8;
        c.sample_shape[2] = i == 4 ? 0 : 8;
        c.io_threads = i == 6 ? 1025 : 0;
        c.decode_threads = i == 7 ? 1025 : 0;
        c.batch_slots = i == 8 ? 65 : 0;
        c.max_read_bytes = i == 9 ? 4095 : 0;
        c.max_host_bytes = i == 10 ? 4096 : 0;
        c.dtype = i == 11 ? (damacy_dtype)-1 : DAMACY_F32;
        c.bounds = i == 12 ? (damacy_bounds)17 : DAMACY_BOUNDS_REJECT;
        c.on_error = i == 13 ? (damacy_on_error)-3 : DAMACY_ON_ERROR_STOP;
        c.numa = i == 14 ? (damacy_numa)3 : i == 17 ? DAMACY_NUMA_PIN : DAMACY_NUMA_AUTO;
        c.gds = i == 15 ? (damacy_gds)9 : DAMACY_GDS_AUTO;
        c.device = i == 16 ? INT32_MIN : DAMACY_CPU;
        c.numa_node = i == 17 ? -1 : 0;
        c.debug_latency.mu = i == 18 ? (double)INFINITY : 0;
        c.debug_latency.sigma = i == 19 ? -0.5 : 0;
        c.n_channels = i >= 20 ? 2 : 0;
        c.channel_axis = i == 20 ? 3 : 0;
        CHECK_EQ(damacy_config_resolve(&c, &resolved, &err), DAMACY_INVAL);
        CHECK_HAS(err.message, names[i]);
        CHECK_EQ(((const uint8_t*)&resolved)[0], 0x5a); /* untouched */
        CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_INVAL);
        CHECK(d == NULL);
        CHECK_HAS(err.message, names[i]);
    }
}

TEST(s02_zero_is_the_default_and_the_edges_of_each_range_work)
{
    damacy_config c;
    damacy_config resolved;
    damacy_error err;

    memset(&c, 0, sizeof c);
    CHECK_EQ(damacy_config_resolve(&c, &resolved, &err), DAMACY_OK);
    CHECK_EQ(resolved.samples_per_batch, 1);
    CHECK_EQ(resolved.lookahead_samples, 64);
    CHECK_EQ(resolved.batch_slots, 3);
    const uint32_t readers = resolved.decode_threads / 4 * 3; /* of one thread per CPU */
    CHECK_EQ(resolved.io_threads, readers < 8 ? 8 : readers > 16 ? 16 : readers);
    CHECK_EQ(resolved.max_read_bytes, 4 << 20);
    CHECK(resolved.decode_threads >= 1);
    CHECK(resolved.max_host_bytes > 0 && resolved.max_host_bytes <= UINT64_C(8) << 30);
    CHECK_EQ(damacy_config_resolve(NULL, &resolved, &err), DAMACY_OK);
    c.samples_per_batch = 64;
    c.lookahead_samples = 64;
    c.sample_rank = DAMACY_MAX_RANK;
    for (int i = 0; i < DAMACY_MAX_RANK; i++) {
        c.sample_shape[i] = 1;
    }
    c.batch_slots = 2;
    c.io_threads = c.decode_threads = 1024;
    c.max_read_bytes = 4096;
    c.max_host_bytes = UINT64_C(1) << 20;
    CHECK_EQ(damacy_config_resolve(&c, &resolved, &err), DAMACY_OK);
    CHECK_EQ(resolved.lookahead_samples, 64);
}

/* Ours: there are no caches to size. What a look-ahead pins is kept, however much that is. */
TEST(s03_no_look_ahead_is_too_long_for_the_caches)
{
    enum { ARRAYS = 200, N = 600 };
    mem_store* m = mem_new();
    damacy_config c = config_of(m, 5);
    static mem_array arrays[ARRAYS];
    static char uris[ARRAYS][32];
    static damacy_sample samples[N];
    damacy_stats stats;
    damacy_error err;
    damacy* d = NULL;

    for (int i = 0; i < ARRAYS; i++) {
        (void)snprintf(uris[i], sizeof uris[i], "a%d.zarr", i);
        arrays[i] = mem_plain(uris[i]);
        arrays[i].seed = (uint32_t)i;
        arrays[i].shape[0] = arrays[i].shape[1] = arrays[i].shape[2] = 8;
        arrays[i].chunk[0] = arrays[i].chunk[1] = arrays[i].chunk[2] = 4;
        arrays[i].shard[0] = arrays[i].shard[1] = arrays[i].shard[2] = 8;
        mem_put_array(m, &arrays[i]);
    }
    for (int i = 0; i < N; i++) {
        samples[i] = mem_sample(&arrays[i % ARRAYS], i % 3, i % 5, i % 4, 4);
    }
    c.lookahead_samples = N;
    c.max_host_bytes = UINT64_C(8) << 20;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, samples, N, NULL, &err), DAMACY_OK);
    for (int i = 0; i < N; i += 5) {
        damacy_batch batch;
        damacy_batch_info_t info;
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        for (int k = 0; k < 5; k++) {
            CHECK(mem_equal_f32(&arrays[(i + k) % ARRAYS], &samples[i + k],
                                (const float*)info.ptr + k * 64, 0.0f));
        }
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    damacy_stats_get(d, &stats);
    CHECK_EQ(stats.array_misses, ARRAYS); /* each was fetched once */
    CHECK(stats.host_bytes_committed <= c.max_host_bytes);
    damacy_destroy(d);
    mem_free(m);
}

/* Whatever the budget: a right batch within it, or an error that shows the sum. */
TEST(s06_the_host_budget_is_kept_or_refused_with_the_sum)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample s = mem_sample(&a, 1, 2, 3, 32);
    int n_right = 0;
    int n_refused = 0;

    mem_put_array(m, &a);
    for (uint64_t budget = UINT64_C(1) << 20; budget <= UINT64_C(6) << 20; budget += 98304) {
        damacy_config c = config_of(m, 4);
        damacy_sample samples[4] = {s, s, s, s};
        damacy_stats stats;
        damacy_error err;
        damacy_status status;
        damacy* d = NULL;
        c.max_host_bytes = budget;
        c.batch_slots = 2;
        c.lookahead_samples = 8;
        status = damacy_create(&c, &d, &err);
        if (status == DAMACY_OK) {
            CHECK_EQ(damacy_push(d, samples, 4, NULL, &err), DAMACY_OK);
            status = pop_is(d, &a, samples, 4, &err);
        }
        damacy_stats_get(d, &stats);
        CHECK(stats.host_bytes_committed <= budget);
        if (status != DAMACY_OK) {
            CHECK_EQ(status, DAMACY_BUDGET);
        }
        if (status == DAMACY_BUDGET) {
            char sum[32];
            (void)snprintf(sum, sizeof sum, "%llu", (unsigned long long)budget);
            CHECK_HAS(err.message, "max_host_bytes");
            CHECK_HAS(err.message, sum);
            CHECK_EQ(n_right, 0); /* more is never worse */
            n_refused++;
        } else {
            n_right++;
        }
        damacy_destroy(d);
    }
    CHECK(n_right > 0 && n_refused > 0);
    CHECK_EQ(m->n_open, 0);
    mem_free(m);
}

/* Ours: ON without GPUDirect Storage is refused by name, the environment changes nothing. */
TEST(s07_gds_on_is_refused_where_it_is_not_available)
{
    damacy_config c;
    damacy_error err;
    damacy* d = NULL;

    memset(&c, 0, sizeof c);
    CHECK_EQ(c.gds, DAMACY_GDS_AUTO);
    c.device = DAMACY_CPU;
    CHECK_EQ(setenv("DAMACY_GDS_ENABLE", "1", 1), 0);
    c.gds = DAMACY_GDS_ON;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_UNSUPPORTED);
    CHECK(d == NULL);
    CHECK_HAS(err.message, "GPUDirect");
    c.gds = DAMACY_GDS_AUTO;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    damacy_destroy(d);
    c.gds = DAMACY_GDS_OFF;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    damacy_destroy(d);
    unsetenv("DAMACY_GDS_ENABLE");
}

/* Ours: no limit on chunks to set. What is committed follows the budget alone. */
TEST(s08_a_smaller_budget_shrinks_what_is_committed)
{
    mem_store* m = mem_new();
    uint64_t last = UINT64_MAX;

    for (uint64_t budget = UINT64_C(64) << 20; budget >= UINT64_C(2) << 20; budget /= 2) {
        damacy_config c = config_of(m, 1);
        damacy_stats stats;
        damacy_error err;
        damacy* d = NULL;
        c.max_host_bytes = budget;
        CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
        damacy_stats_get(d, &stats);
        CHECK(stats.host_bytes_committed > 0 && stats.host_bytes_committed < last);
        CHECK(stats.host_bytes_committed <= budget);
        last = stats.host_bytes_committed;
        damacy_destroy(d);
    }
    mem_free(m);
}

/* Ours: threads wait for storage, so there may be more than CPUs. */
TEST(s09_more_io_threads_than_cpus_start)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample s = mem_sample(&a, 3, 5, 7, 20);
    static const uint32_t counts[] = {1, 64, 256};

    mem_put_array(m, &a);
    for (int i = 0; i < 3; i++) {
        damacy_config c = config_of(m, 1);
        damacy_error err;
        damacy* d = NULL;
        c.io_threads = counts[i];
        CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
        CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
        CHECK_EQ(pop_is(d, &a, &s, 1, &err), DAMACY_OK);
        damacy_destroy(d);
    }
    mem_free(m);
}

TEST_MAIN
