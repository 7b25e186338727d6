/* Decoded chunks that the CPU device keeps for later batches: the same voxels with and without,
 * each chunk decoded once where there is room, nothing kept that failed, no budget exceeded. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tests/test.h"
#include "tests/pipeline/scene.h"

enum {
    SIDE = 8,
    VOXELS = SIDE * SIDE * SIDE,
    BATCHES = 60,
    PER_BATCH = 4,
    CHUNK = 16 * 16 * 16 * 2,
    FEW = 5 * CHUNK /* room for a few chunks */
};

/* Two arrays of 27 chunks, one of them sharded; chunks end in a checksum, so they are decoded. */
static mem_store* make(mem_array* arrays)
{
    mem_store* m = mem_new();

    for (int i = 0; i < 2; i++) {
        arrays[i] = mem_plain(i ? "shard" : "plain");
        arrays[i].has_crc = 1;
        for (int k = 0; k < 3 && i; k++) {
            arrays[i].shard[k] = 32;
        }
        mem_put_array(m, &arrays[i]);
    }
    return m;
}

static damacy_config config_of(mem_store* m, uint64_t max_cache_bytes)
{
    damacy_config c = scene_config(m, PER_BATCH, DAMACY_ON_ERROR_FILL);

    c.max_cache_bytes = max_cache_bytes;
    c.max_host_bytes = UINT64_C(32) << 20;
    c.sample_rank = 3;
    for (int i = 0; i < 3; i++) {
        c.sample_shape[i] = SIDE;
    }
    return c;
}

/* Pops a batch of the given crops and compares it; how many of its samples failed. */
static uint32_t pop_equal(damacy* d, const mem_array* const* arrays, const damacy_sample* samples)
{
    damacy_batch batch;
    damacy_batch_info_t info;
    uint32_t n_failed = UINT32_MAX;
    damacy_error err;

    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    n_failed = info.n_failed;
    for (uint32_t i = 0; i < PER_BATCH; i++) {
        damacy_status status = DAMACY_OK;
        CHECK_EQ(damacy_batch_sample(batch, i, NULL, &status, &err), DAMACY_OK);
        if (status == DAMACY_OK) {
            CHECK(mem_equal_f32(arrays[i], &samples[i], (const float*)info.ptr + i * VOXELS, 0));
        }
    }
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    return n_failed;
}

/* Chunks of a 3-D array that some crop touches, each marked once. */
static void mark(const mem_array* a, const damacy_sample* s, uint8_t* touched)
{
    int64_t at[3];

    for (int corner = 0; corner < 8; corner++) {
        for (int i = 0; i < 3; i++) {
            at[i] = corner >> i & 1 ? s->box[i].end - 1 : s->box[i].begin;
        }
        touched[mem_chunk_number(a, at)] = 1;
    }
}

/* Streams random crops and compares all of them; *n_distinct: chunks that they touch. */
static damacy_stats stream(uint64_t max_cache_bytes, uint64_t* n_distinct)
{
    mem_array arrays[2];
    mem_store* m = make(arrays);
    const damacy_config c = config_of(m, max_cache_bytes);
    damacy_sample samples[BATCHES * PER_BATCH];
    const mem_array* which[BATCHES * PER_BATCH];
    uint8_t touched[2][27] = {{0}};
    uint64_t seed = test_seed();
    size_t n_pushed = 0;
    damacy* d = NULL;
    damacy_stats stats;

    CHECK_EQ(damacy_create(&c, &d, NULL), DAMACY_OK);
    for (int i = 0; i < BATCHES * PER_BATCH; i++) {
        which[i] = &arrays[test_random(&seed) % 2];
        samples[i] = mem_sample(which[i], (int64_t)(test_random(&seed) % 33),
                                (int64_t)(test_random(&seed) % 33),
                                (int64_t)(test_random(&seed) % 33), SIDE);
        mark(which[i], &samples[i], touched[which[i] != arrays]);
    }
    for (int i = 0; i < BATCHES; i++) {
        size_t n = 0;
        (void)damacy_push(d, samples + n_pushed, BATCHES * PER_BATCH - n_pushed, &n, NULL);
        n_pushed += n;
        CHECK_EQ(pop_equal(d, which + i * PER_BATCH, samples + i * PER_BATCH), 0);
    }
    damacy_stats_get(d, &stats);
    CHECK(stats.host_bytes_committed <= c.max_host_bytes);
    for (int i = 0; i < 54; i++) {
        *n_distinct += touched[i / 27][i % 27];
    }
    damacy_destroy(d);
    CHECK_EQ(m->n_open, 0);
    mem_free(m);
    return stats;
}

TEST(voxels_are_the_same_with_all_some_and_no_chunks_kept)
{
    uint64_t n[3] = {0, 0, 0};
    const damacy_stats all = stream(0, &n[0]);
    const damacy_stats some = stream(FEW, &n[1]);
    const damacy_stats none = stream(1, &n[2]);

    CHECK_EQ(all.chunks_decoded, n[0]);
    CHECK(some.chunks_decoded > n[1]);
    CHECK(none.chunks_decoded > n[2]);
    CHECK(some.chunks_kept > 0);
    CHECK_EQ(none.chunks_kept, 0);
    CHECK_EQ(all.chunks_decoded + all.chunks_kept, none.chunks_decoded);
    CHECK_EQ(some.chunks_decoded + some.chunks_kept, none.chunks_decoded);
    CHECK_EQ(all.decode.count, all.chunks_decoded);
    CHECK_EQ(some.decode.count, some.chunks_decoded);
    CHECK(all.decode_amplification < none.decode_amplification);
    CHECK_EQ(none.cache_bytes, 0);
    CHECK(some.cache_bytes > FEW / 2 && some.cache_bytes <= FEW);
    CHECK(none.host_bytes_committed < some.host_bytes_committed);
    CHECK(some.host_bytes_committed < all.host_bytes_committed);
}

/* A batch of four crops in the chunk at the origin of an array. */
static void push_origin(damacy* d, const mem_array* a, damacy_sample* samples,
                        const mem_array** which)
{
    for (int i = 0; i < PER_BATCH; i++) {
        which[i] = a;
        samples[i] = mem_sample(a, i, i, i, SIDE);
    }
    CHECK_EQ(damacy_push(d, samples, PER_BATCH, NULL, NULL), DAMACY_OK);
}

TEST(batches_in_flight_share_one_read_and_one_decoding)
{
    mem_array arrays[2];
    mem_store* m = make(arrays);
    const damacy_config c = config_of(m, FEW);
    damacy_sample samples[PER_BATCH];
    const mem_array* which[PER_BATCH];
    damacy* d = NULL;
    damacy_stats stats;

    CHECK_EQ(damacy_create(&c, &d, NULL), DAMACY_OK);
    mem_pause(m, 1);
    for (int i = 0; i < 3; i++) {
        push_origin(d, &arrays[0], samples, which);
    }
    mem_pause(m, 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(pop_equal(d, which, samples), 0);
    }
    damacy_stats_get(d, &stats);
    CHECK_EQ(stats.chunks_decoded, 1);
    CHECK_EQ(stats.chunks_kept, 2);
    CHECK_EQ(mem_find(m, "plain/c/0/0/0")->n_reads, 1);
    damacy_destroy(d);
    mem_free(m);
}

TEST(a_damaged_chunk_is_not_kept_and_fails_all_batches_that_wait_for_it)
{
    mem_array arrays[2];
    mem_store* m = make(arrays);
    const damacy_config c = config_of(m, 0);
    damacy_sample samples[PER_BATCH];
    const mem_array* which[PER_BATCH];
    mem_object* object = mem_find(m, "plain/c/0/0/0");
    damacy* d = NULL;
    damacy_stats stats;

    CHECK_EQ(damacy_create(&c, &d, NULL), DAMACY_OK);
    object->bytes[100] ^= 1;
    mem_pause(m, 1);
    push_origin(d, &arrays[0], samples, which);
    push_origin(d, &arrays[0], samples, which);
    mem_pause(m, 0);
    CHECK_EQ(pop_equal(d, which, samples), PER_BATCH);
    CHECK_EQ(pop_equal(d, which, samples), PER_BATCH);
    object->bytes[100] ^= 1;
    for (int i = 0; i < 2; i++) {
        push_origin(d, &arrays[0], samples, which);
        CHECK_EQ(pop_equal(d, which, samples), 0);
    }
    damacy_stats_get(d, &stats);
    CHECK(stats.chunks_kept > 0);
    CHECK_EQ(stats.samples_failed, 2 * PER_BATCH);
    damacy_destroy(d);
    mem_free(m);
}

TEST(a_read_that_failed_is_not_kept_and_nothing_of_that_object_is_from_then_on)
{
    mem_array arrays[2];
    mem_store* m = make(arrays);
    const damacy_config c = config_of(m, 0);
    damacy_sample samples[PER_BATCH];
    const mem_array* which[PER_BATCH];
    mem_object* object = mem_find(m, "shard/c/0/0/0");
    uint64_t n_kept;
    damacy* d = NULL;
    damacy_stats stats;

    CHECK_EQ(damacy_create(&c, &d, NULL), DAMACY_OK);
    push_origin(d, &arrays[1], samples, which); /* keeps the shard's first chunk */
    CHECK_EQ(pop_equal(d, which, samples), 0);
    push_origin(d, &arrays[1], samples, which);
    CHECK_EQ(pop_equal(d, which, samples), 0);
    damacy_stats_get(d, &stats);
    n_kept = stats.chunks_kept;
    CHECK_EQ(n_kept, 1);

    object->read_fault = 1;
    for (int i = 0; i < PER_BATCH; i++) { /* the chunk behind it */
        samples[i] = mem_sample(&arrays[1], i, i, 16 + i, SIDE);
    }
    CHECK_EQ(damacy_push(d, samples, PER_BATCH, NULL, NULL), DAMACY_OK);
    CHECK_EQ(pop_equal(d, which, samples), PER_BATCH);
    push_origin(d, &arrays[1], samples, which); /* what was kept counts no more */
    CHECK_EQ(pop_equal(d, which, samples), PER_BATCH);
    object->read_fault = 0;
    push_origin(d, &arrays[1], samples, which);
    CHECK_EQ(pop_equal(d, which, samples), 0);
    damacy_stats_get(d, &stats);
    CHECK_EQ(stats.chunks_kept, n_kept);
    damacy_destroy(d);
    mem_free(m);
}

TEST(batches_of_known_chunks_read_and_allocate_nothing)
{
    mem_array arrays[2];
    mem_store* m = make(arrays);
    const damacy_config c = config_of(m, 0);
    damacy_sample samples[PER_BATCH];
    const mem_array* which[PER_BATCH];
    uint64_t n_calls = 0;
    uint64_t n_reads = 0;
    damacy* d = NULL;

    CHECK_EQ(damacy_create(&c, &d, NULL), DAMACY_OK);
    for (int i = 0; i < 60; i++) {
        if (i == 40) { /* every place of the queue was used */
            n_calls = __atomic_load_n(&d->core.alloc.n_calls, __ATOMIC_RELAXED);
            n_reads = m->n_reads;
        }
        push_origin(d, &arrays[0], samples, which);
        CHECK_EQ(pop_equal(d, which, samples), 0);
    }
    CHECK_EQ(__atomic_load_n(&d->core.alloc.n_calls, __ATOMIC_RELAXED), n_calls);
    CHECK_EQ(m->n_reads, n_reads);
    damacy_destroy(d);
    mem_free(m);
}

/* With every budget from nothing to enough, what is refused is refused by name, and what works is
 * right. */
TEST(a_small_budget_keeps_less_and_is_not_exceeded)
{
    uint64_t n_works = 0;

    for (uint64_t mib = 1; mib <= 8; mib++) {
        mem_array arrays[2];
        mem_store* m = make(arrays);
        damacy_config c = config_of(m, 0);
        damacy_sample samples[PER_BATCH];
        const mem_array* which[PER_BATCH];
        damacy* d = NULL;
        damacy_error err;
        damacy_stats stats;
        c.max_host_bytes = mib << 20;
        if (damacy_create(&c, &d, &err) != DAMACY_OK) {
            CHECK_HAS(err.message, "max_host_bytes");
            mem_free(m);
            continue;
        }
        n_works++;
        for (int i = 0; i < 3; i++) {
            push_origin(d, &arrays[1], samples, which);
            CHECK_EQ(pop_equal(d, which, samples), 0);
        }
        damacy_stats_get(d, &stats);
        CHECK(stats.host_bytes_committed <= c.max_host_bytes);
        damacy_destroy(d);
        mem_free(m);
    }
    CHECK(n_works > 0);
}

TEST_MAIN
