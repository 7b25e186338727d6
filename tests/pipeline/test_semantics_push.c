/* s10 to s18: what push takes and refuses, and what pop answers when there is nothing wrong. */
#include "tests/pipeline/semantics.h"

typedef struct bench {
    mem_store* m;
    mem_array a;
    damacy_config c;
    damacy* d;
    damacy_error err;
} bench;

static void bench_open(bench* b, uint32_t per_batch, uint32_t lookahead, uint32_t slots)
{
    memset(b, 0, sizeof *b);
    b->m = mem_new();
    b->a = mem_plain("v.zarr");
    mem_put_array(b->m, &b->a);
    b->c = config_of(b->m, per_batch);
    b->c.lookahead_samples = lookahead;
    b->c.batch_slots = slots;
    CHECK_EQ(damacy_create(&b->c, &b->d, &b->err), DAMACY_OK);
}

static void bench_close(bench* b)
{
    damacy_destroy(b->d);
    CHECK_EQ(b->m->n_open, 0);
    mem_free(b->m);
}

TEST(s10_push_of_nothing_is_ok_and_of_null_is_not)
{
    bench b;
    damacy_sample s;
    size_t n = 77;

    bench_open(&b, 1, 0, 0);
    s = mem_sample(&b.a, 0, 0, 0, 8);
    CHECK_EQ(damacy_push(b.d, &s, 0, &n, &b.err), DAMACY_OK);
    CHECK_EQ(n, 0);
    CHECK_EQ(damacy_push(b.d, NULL, 0, NULL, NULL), DAMACY_OK);
    n = 77;
    CHECK_EQ(damacy_push(NULL, &s, 1, &n, &b.err), DAMACY_INVAL);
    CHECK_EQ(n, 0);
    CHECK_EQ(damacy_push(b.d, NULL, 1, &n, &b.err), DAMACY_INVAL);
    CHECK_HAS(b.err.message, "samples");
    CHECK_EQ(damacy_finish(NULL), DAMACY_INVAL);
    bench_close(&b);
}

/* Ours: rank 0 is a sample of an array without axes. */
TEST(s11_a_malformed_sample_is_refused_at_push)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 8);
    damacy_sample bad = s;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    c.sample_rank = 3;
    c.sample_shape[0] = c.sample_shape[1] = c.sample_shape[2] = 8;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    bad.uri = NULL;
    CHECK_EQ(damacy_push(d, &bad, 1, NULL, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "uri");
    bad.uri = "";
    CHECK_EQ(damacy_push(d, &bad, 1, NULL, &err), DAMACY_INVAL);
    for (uint32_t rank = 0; rank < 40; rank++) {
        bad = s;
        for (uint32_t i = 3; i < DAMACY_MAX_RANK; i++) {
            bad.box[i].end = 8;
        }
        bad.rank = rank;
        if (rank != 3) {
            CHECK_EQ(damacy_push(d, &bad, 1, NULL, &err), DAMACY_RANK);
            CHECK_HAS(err.message, "axes");
        }
    }
    for (int axis = 0; axis < 3; axis++) {
        for (int by = -8; by <= 1; by++) {
            char name[32];
            bad = s;
            bad.box[axis].end += by;
            (void)snprintf(name, sizeof name, "axis %d", axis);
            if (by != 0) {
                CHECK_EQ(damacy_push(d, &bad, 1, NULL, &err), DAMACY_INVAL);
                CHECK_HAS(err.message, name);
            }
        }
    }
    bad = s;
    bad.box[1].begin = 8;
    bad.box[1].end = 0;
    CHECK_EQ(damacy_push(d, &bad, 1, NULL, &err), DAMACY_INVAL);
    bad.box[1].begin = INT64_MIN;
    bad.box[1].end = INT64_MAX;
    CHECK_EQ(damacy_push(d, &bad, 1, NULL, &err), DAMACY_INVAL);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK); /* nothing of this broke it */
    CHECK_EQ(pop_is(d, &a, &s, 1, &err), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST(s12_the_offending_sample_is_named_and_those_before_it_are_taken)
{
    bench b;
    damacy_sample s[4];
    size_t n = 0;

    bench_open(&b, 1, 0, 0);
    for (int i = 0; i < 4; i++) {
        s[i] = mem_sample(&b.a, i, i, i, 8);
    }
    s[2].box[1].end++;
    CHECK_EQ(damacy_push(b.d, s, 4, &n, &b.err), DAMACY_INVAL);
    CHECK_EQ(n, 2);
    CHECK_HAS(b.err.message, "axis 1");
    CHECK_STR(b.err.uri, "v.zarr");
    s[2].box[1].end--;
    CHECK_EQ(damacy_push(b.d, s + n, 2, &n, &b.err), DAMACY_OK);
    CHECK_EQ(n, 2);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(pop_is(b.d, &b.a, &s[i], 1, &b.err), DAMACY_OK);
    }
    bench_close(&b);
}

typedef struct refusal {
    int is_refusing; /* atomic */
} refusal;

static void* refusal_alloc(void* user, size_t size, size_t alignment)
{
    void* ptr = NULL;

    if (__atomic_load_n(&((refusal*)user)->is_refusing, __ATOMIC_ACQUIRE)) {
        return NULL;
    }
    alignment = alignment < sizeof(void*) ? sizeof(void*) : alignment;
    return posix_memalign(&ptr, alignment, size) == 0 ? ptr : NULL;
}

static void refusal_free(void* user, void* ptr, size_t size)
{
    (void)user;
    (void)size;
    free(ptr);
}

TEST(s12_a_first_sample_that_is_not_taken_fixes_no_shape)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample big = mem_sample(&a, 0, 0, 0, 9);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 8);
    refusal r = {0};
    damacy_error err;
    damacy* d = NULL;
    size_t n = 5;

    mem_put_array(m, &a);
    c.allocator.user = &r;
    c.allocator.alloc = refusal_alloc;
    c.allocator.free = refusal_free;
    c.max_host_bytes = UINT64_C(8) << 20;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    __atomic_store_n(&r.is_refusing, 1, __ATOMIC_RELEASE);
    CHECK_EQ(damacy_push(d, &big, 1, &n, &err), DAMACY_OOM);
    CHECK_EQ(n, 0);
    __atomic_store_n(&r.is_refusing, 0, __ATOMIC_RELEASE);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(pop_is(d, &a, &s, 1, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &big, 1, NULL, &err), DAMACY_INVAL);
    damacy_destroy(d);
    mem_free(m);
}

/* The queue holds lookahead_samples beyond the batches that are planned: one per slot. */
TEST(s13_a_full_queue_answers_again_and_takes_the_rest_after_a_pop)
{
    enum { LOOKAHEAD = 6, PER_BATCH = 2, SLOTS = 2, MOST = LOOKAHEAD + PER_BATCH * SLOTS };
    bench b;
    damacy_sample s[40];
    size_t total = 0;
    size_t n = 0;

    bench_open(&b, PER_BATCH, LOOKAHEAD, SLOTS);
    for (int i = 0; i < 40; i++) {
        s[i] = mem_sample(&b.a, i % 20, i % 7, i % 3, 16);
    }
    mem_pause(b.m, 1);
    for (int i = 0; i < 20000 && total < MOST; i++) {
        const damacy_status status = damacy_push(b.d, s + total, 40 - total, &n, &b.err);
        CHECK_EQ(status, DAMACY_AGAIN);
        total += n;
        usleep(500);
    }
    CHECK_EQ(total, MOST);
    for (int i = 0; i < 20; i++) {
        usleep(500);
        CHECK_EQ(damacy_push(b.d, s + total, 40 - total, &n, &b.err), DAMACY_AGAIN);
        CHECK_EQ(n, 0);
        CHECK_HAS(b.err.message, "6 samples are queued");
    }
    mem_pause(b.m, 0);
    CHECK_EQ(pop_is(b.d, &b.a, s, PER_BATCH, &b.err), DAMACY_OK);
    for (int i = 0; i < 20000 && total < MOST + PER_BATCH; i++) {
        (void)damacy_push(b.d, s + total, MOST + PER_BATCH - total, &n, &b.err);
        total += n;
        usleep(500);
    }
    CHECK_EQ(total, MOST + PER_BATCH);
    for (size_t i = PER_BATCH; i < total; i += PER_BATCH) {
        CHECK_EQ(pop_is(b.d, &b.a, s + i, PER_BATCH, &b.err), DAMACY_OK);
    }
    bench_close(&b);
}

TEST(s14_after_a_failure_every_push_is_shutdown)
{
    bench b;
    damacy_sample s;
    damacy_sample bad;
    size_t n;

    bench_open(&b, 1, 0, 0);
    s = mem_sample(&b.a, 0, 0, 0, 8);
    bad = s;
    bad.uri = "absent.zarr";
    CHECK_EQ(damacy_push(b.d, &bad, 1, NULL, &b.err), DAMACY_OK);
    CHECK_EQ(pop_is(b.d, &b.a, &s, 1, &b.err), DAMACY_NOTFOUND);
    for (int i = 0; i < 3; i++) {
        n = 9;
        CHECK_EQ(damacy_push(b.d, &s, 1, &n, &b.err), DAMACY_SHUTDOWN);
        CHECK_EQ(n, 0);
        CHECK_HAS(b.err.message, "failed");
    }
    bench_close(&b);
}

TEST(s15_what_a_uri_says_never_matters_to_push)
{
    static const char* const uris[] = {"absent.zarr", "../../etc", "http://example.org/a.zarr",
                                       "a//b/./c",    "%zz",       "\x01\x02\x7f",
                                       "v.zarr/c/0",  "file:",     "s3://bucket/key"};
    char* huge = (char*)malloc(100001);

    memset(huge, 'x', 100000);
    huge[100000] = '\0';
    for (int local = 0; local < 2; local++) {
        for (size_t i = 0; i <= sizeof uris / sizeof uris[0]; i++) {
            bench b;
            damacy_sample s;
            damacy_status status;
            damacy_batch batch;
            bench_open(&b, 1, 0, 0);
            if (local) {
                damacy_destroy(b.d);
                memset(&b.c.store, 0, sizeof b.c.store);
                CHECK_EQ(damacy_create(&b.c, &b.d, &b.err), DAMACY_OK);
            }
            s = mem_sample(&b.a, 0, 0, 0, 8);
            s.uri = i < sizeof uris / sizeof uris[0] ? uris[i] : huge;
            CHECK_EQ(damacy_push(b.d, &s, 1, NULL, &b.err), DAMACY_OK);
            status = damacy_pop(b.d, &batch, &b.err);
            CHECK(status == DAMACY_NOTFOUND || status == DAMACY_INVAL ||
                  status == DAMACY_UNSUPPORTED || status == DAMACY_IO);
            CHECK_EQ(b.err.sample, 0);
            CHECK(b.err.uri[0] != '\0' && b.err.message[0] != '\0');
            bench_close(&b);
        }
    }
    free(huge);
}

TEST(s16_with_nothing_pushed_pop_is_again_at_once)
{
    bench b;
    damacy_batch batch = {0};
    damacy_sample s;

    bench_open(&b, 1, 0, 0);
    CHECK_EQ(damacy_pop(b.d, &batch, &b.err), DAMACY_AGAIN);
    CHECK_EQ(damacy_try_pop(b.d, &batch, NULL), DAMACY_AGAIN);
    CHECK(batch.core == NULL); /* untouched */
    s = mem_sample(&b.a, 0, 0, 0, 8);
    CHECK_EQ(damacy_push(b.d, &s, 1, NULL, &b.err), DAMACY_OK);
    CHECK_EQ(pop_is(b.d, &b.a, &s, 1, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_pop(b.d, &batch, &b.err), DAMACY_AGAIN); /* all consumed and released */
    CHECK_EQ(damacy_pop(NULL, &batch, &b.err), DAMACY_INVAL);
    CHECK_EQ(damacy_pop(b.d, NULL, &b.err), DAMACY_INVAL);
    CHECK_EQ(damacy_finish(b.d), DAMACY_OK);
    CHECK_EQ(damacy_pop(b.d, &batch, &b.err), DAMACY_END);
    bench_close(&b);
}

TEST(s17_batches_come_in_push_order_and_are_numbered_from_0)
{
    enum { N = 60, PER_BATCH = 3 };
    bench b;
    damacy_sample s[N];
    uint64_t seed = test_seed();

    bench_open(&b, PER_BATCH, 0, 5);
    b.m->delay_us = 200;
    for (int i = 0; i < N; i++) {
        s[i] =
            mem_sample(&b.a, (int64_t)(test_random(&seed) % 25), (int64_t)(test_random(&seed) % 25),
                       (int64_t)(test_random(&seed) % 25), 16);
    }
    CHECK_EQ(damacy_push(b.d, s, N, NULL, &b.err), DAMACY_OK);
    for (uint64_t i = 0; i < N / PER_BATCH; i++) {
        damacy_batch batch;
        damacy_batch_info_t info;
        CHECK_EQ(damacy_pop(b.d, &batch, &b.err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ(info.id, i);
        CHECK_EQ(info.rank, 4);
        CHECK_EQ(info.shape[0], PER_BATCH);
        for (uint32_t k = 0; k < PER_BATCH; k++) {
            damacy_status status;
            uint64_t number;
            CHECK_EQ(damacy_batch_sample(batch, k, &number, &status, &b.err), DAMACY_OK);
            CHECK_EQ(number, PER_BATCH * i + k);
        }
        CHECK(batch_is(batch, &b.a, s + PER_BATCH * i, PER_BATCH, 0.0f));
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    bench_close(&b);
}

/* Ours: nobody is left waiting. AGAIN says that another call is needed; finish brings the rest. */
TEST(s18_fewer_samples_than_a_batch_never_block)
{
    bench b;
    damacy_sample s[3];
    damacy_batch batch;

    bench_open(&b, 4, 0, 0);
    for (int i = 0; i < 3; i++) {
        s[i] = mem_sample(&b.a, i, 2 * i, 3 * i, 8);
    }
    CHECK_EQ(damacy_push(b.d, s, 3, NULL, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_pop(b.d, &batch, &b.err), DAMACY_AGAIN);
    CHECK_EQ(damacy_pop_timeout(b.d, 2000000, &batch, &b.err), DAMACY_TIMEOUT);
    CHECK_EQ(damacy_pop_timeout(b.d, 0, &batch, &b.err), DAMACY_TIMEOUT);
    CHECK_EQ(damacy_finish(b.d), DAMACY_OK);
    CHECK_EQ(pop_is(b.d, &b.a, s, 3, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_pop(b.d, &batch, &b.err), DAMACY_END);
    bench_close(&b);
}

TEST_MAIN
