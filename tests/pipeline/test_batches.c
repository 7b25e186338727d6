/* What push, pop, batches and release promise, on the CPU device and an in-memory store. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tests/test.h"
#include "tests/pipeline/memory_store.h"

static damacy_config config_of(mem_store* m, uint32_t per_batch)
{
    damacy_config c;

    memset(&c, 0, sizeof c);
    c.store = mem_callbacks(m);
    c.device = DAMACY_CPU;
    c.samples_per_batch = per_batch;
    c.io_threads = 4;
    c.decode_threads = 2;
    c.max_host_bytes = UINT64_C(256) << 20;
    return c;
}

static void check_batch(const mem_array* a, const damacy_sample* samples, damacy_batch batch,
                        uint32_t n)
{
    damacy_batch_info_t info;
    size_t voxels = 1;

    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(info.shape[0], n);
    CHECK_EQ(info.dtype, DAMACY_F32);
    for (uint32_t i = 1; i < info.rank; i++) {
        voxels *= (size_t)info.shape[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        CHECK(mem_equal_f32(a, &samples[i], (const float*)info.ptr + i * voxels, 0.0f));
    }
}

TEST(a_zeroed_config_works)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample s = mem_sample(&a, 3, 5, 7, 20);
    damacy_config c;
    damacy_error err;
    damacy_batch batch;
    damacy* d = NULL;

    mem_put_array(m, &a);
    memset(&c, 0, sizeof c);
    c.store = mem_callbacks(m);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    check_batch(&a, &s, batch, 1);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    CHECK_EQ(m->n_open, 0);
    mem_free(m);
}

TEST(create_without_a_config_and_destroy_without_work)
{
    damacy* d = NULL;

    CHECK_EQ(damacy_create(NULL, &d, NULL), DAMACY_OK);
    damacy_destroy(d);
    damacy_destroy(NULL);
    CHECK_EQ(damacy_create(NULL, NULL, NULL), DAMACY_INVAL);
}

TEST(batches_come_in_push_order_with_every_voxel_right)
{
    enum { N = 64 };
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample samples[N];
    damacy_config c = config_of(m, 4);
    uint64_t seed = test_seed();
    damacy_batch none = {0};
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    for (int i = 0; i < N; i++) {
        samples[i] =
            mem_sample(&a, (int64_t)(test_random(&seed) % 25), (int64_t)(test_random(&seed) % 25),
                       (int64_t)(test_random(&seed) % 25), 16);
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, samples, N, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_finish(d), DAMACY_OK);
    for (uint64_t i = 0; i < N / 4; i++) {
        damacy_batch batch;
        damacy_batch_info_t info;
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ(info.id, i);
        check_batch(&a, samples + 4 * i, batch, 4);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    CHECK_EQ(damacy_pop(d, &none, &err), DAMACY_END);
    CHECK_EQ(damacy_pop(d, &none, &err), DAMACY_END);
    damacy_destroy(d);
    mem_free(m);
}

TEST(sharded_arrays_and_missing_chunks_are_exact)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("s.zarr");
    damacy_config c = config_of(m, 2);
    damacy_sample samples[8];
    damacy_error err;
    damacy* d = NULL;

    a.shard[0] = a.shard[1] = 16;
    a.shard[2] = 32;
    a.is_missing_odd = 1;
    a.has_crc = 1;
    a.fill = "42";
    mem_put_array(m, &a);
    for (int i = 0; i < 8; i++) {
        samples[i] = mem_sample(&a, i, 2 * i, 17 - i, 19);
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, samples, 8, NULL, &err), DAMACY_OK);
    for (int i = 0; i < 4; i++) {
        damacy_batch batch;
        damacy_batch_info_t info;
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        for (int k = 0; k < 2; k++) {
            CHECK(
                mem_equal_f32(&a, &samples[2 * i + k], (float*)info.ptr + k * 19 * 19 * 19, 42.0f));
        }
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    damacy_destroy(d);
    mem_free(m);
}

TEST(the_ragged_last_batch_comes_after_finish_and_then_end)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 4);
    damacy_sample s[6];
    damacy_batch batch;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_AGAIN); /* nothing was pushed */
    for (int i = 0; i < 6; i++) {
        s[i] = mem_sample(&a, i, 0, 30 - i, 8);
        CHECK_EQ(damacy_push(d, &s[i], 1, NULL, &err), DAMACY_OK);
    }
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    check_batch(&a, s, batch, 4);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_AGAIN); /* two samples are no batch */
    CHECK_EQ(damacy_pop_timeout(d, 1000000, &batch, &err), DAMACY_TIMEOUT);
    CHECK_EQ(damacy_finish(d), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 1, NULL, &err), DAMACY_SHUTDOWN);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    check_batch(&a, s + 4, batch, 2);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_END);
    damacy_destroy(d);
    mem_free(m);
}

TEST(push_says_how_many_it_took_and_what_is_wrong)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 2);
    damacy_sample s[3];
    damacy_error err;
    damacy* d = NULL;
    size_t n;

    mem_put_array(m, &a);
    mem_pause(m, 1);
    c.lookahead_samples = 4;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    for (int i = 0; i < 3; i++) {
        s[i] = mem_sample(&a, i, i, i, 8);
    }
    CHECK_EQ(damacy_push(d, NULL, 0, &n, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(NULL, s, 1, &n, &err), DAMACY_INVAL);
    s[1].box[2].end++;
    CHECK_EQ(damacy_push(d, s, 3, &n, &err),
             DAMACY_INVAL); /* another shape than the first sample's */
    CHECK_EQ(n, 1);
    CHECK_HAS(err.message, "axis 2");
    CHECK_STR(err.uri, "v.zarr");
    s[1].box[2].end--;
    s[1].rank = 2;
    CHECK_EQ(damacy_push(d, s + 1, 1, &n, &err), DAMACY_RANK);
    s[1].rank = 33;
    CHECK_EQ(damacy_push(d, s + 1, 1, &n, &err), DAMACY_RANK);
    s[1].rank = 3;
    s[1].uri = NULL;
    CHECK_EQ(damacy_push(d, s + 1, 1, &n, &err), DAMACY_INVAL);
    s[1].uri = a.uri;
    s[1].box[0].end = s[1].box[0].begin;
    CHECK_EQ(damacy_push(d, s + 1, 1, &n, &err), DAMACY_INVAL);
    s[1].box[0].end = INT64_MAX;
    s[1].box[0].begin = INT64_MIN;
    CHECK_EQ(damacy_push(d, s + 1, 1, &n, &err), DAMACY_INVAL);
    damacy_destroy(d);
    mem_pause(m, 0);
    mem_free(m);
}

TEST(push_is_refused_with_again_when_the_queue_is_full_and_taken_later)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample s[40];
    damacy_batch batch;
    damacy_error err;
    damacy* d = NULL;
    size_t n;
    size_t total = 0;
    size_t popped = 0;

    mem_put_array(m, &a);
    c.lookahead_samples = 4;
    c.batch_slots = 2;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    for (int i = 0; i < 40; i++) {
        s[i] = mem_sample(&a, i % 20, 3, 4, 16);
    }
    while (popped < 40) {
        if (total < 40) {
            const damacy_status status = damacy_push(d, s + total, 40 - total, &n, &err);
            CHECK(status == DAMACY_AGAIN || total + n == 40);
            total += n;
            CHECK(total <= popped + 4 + 2);
        }
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        check_batch(&a, s + popped, batch, 1);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        popped++;
    }
    damacy_destroy(d);
    mem_free(m);
}

TEST(strings_of_a_sample_are_copied_by_push)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    char uri[16] = "v.zarr";
    damacy_sample s = mem_sample(&a, 0, 0, 0, 8);
    damacy_batch batch;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    s.uri = uri;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    memset(uri, 'x', sizeof uri - 1);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    s.uri = a.uri;
    check_batch(&a, &s, batch, 1);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST(two_batches_are_held_at_once_and_stay_what_they_are)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample s[3];
    damacy_batch b[3];
    damacy_batch_info_t info[3];
    damacy_batch none = {0};
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    for (int i = 0; i < 3; i++) {
        s[i] = mem_sample(&a, i, i, i, 16);
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 3, NULL, &err), DAMACY_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(damacy_pop(d, &b[i], &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(b[i], &info[i]), DAMACY_OK);
    }
    CHECK(info[0].ptr != info[1].ptr && info[1].ptr != info[2].ptr);
    for (int i = 0; i < 3; i++) {
        check_batch(&a, &s[i], b[i], 1);
    }
    CHECK_EQ(damacy_release(b[1]), DAMACY_OK);
    CHECK_EQ(damacy_release(b[1]), DAMACY_INVAL); /* no effect */
    CHECK_EQ(damacy_batch_info(b[1], &info[1]), DAMACY_INVAL);
    CHECK_EQ(damacy_batch_retain(b[0]), DAMACY_OK);
    CHECK_EQ(damacy_release(b[0]), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(b[0], &info[0]), DAMACY_OK);
    CHECK_EQ(damacy_release_event(b[0], NULL), DAMACY_OK);
    CHECK_EQ(damacy_release_stream(b[2], NULL), DAMACY_OK);
    CHECK_EQ(damacy_release(none), DAMACY_INVAL);
    damacy_destroy(d);
    mem_free(m);
}

TEST(pop_returns_again_when_the_caller_holds_every_slot)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample s = mem_sample(&a, 1, 1, 1, 16);
    damacy_batch b[2];
    damacy_batch more;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    c.batch_slots = 2;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    }
    CHECK_EQ(damacy_pop(d, &b[0], &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &b[1], &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &more, &err), DAMACY_AGAIN);
    CHECK_EQ(damacy_try_pop(d, &more, &err), DAMACY_AGAIN);
    CHECK_EQ(damacy_release(b[0]), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &more, &err), DAMACY_OK);
    CHECK_EQ(damacy_release(more), DAMACY_OK);
    CHECK_EQ(damacy_release(b[1]), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST(batches_and_exported_tensors_outlive_destroy)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample s[2];
    damacy_batch b[2];
    damacy_dl_managed_versioned* tensor = NULL;
    damacy_dl_managed* legacy = NULL;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    s[0] = mem_sample(&a, 1, 2, 3, 16);
    s[1] = mem_sample(&a, 4, 5, 6, 16);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 2, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &b[0], &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &b[1], &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_dlpack(b[0], NULL, &tensor, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_dlpack_legacy(b[0], DAMACY_STREAM_NONE, &legacy, &err), DAMACY_OK);
    CHECK_EQ(damacy_release(b[0]), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(b[0], &info), DAMACY_OK); /* the tensors hold it */
    damacy_destroy(d);
    mem_free(m);
    CHECK_EQ(tensor->version.major, 1);
    CHECK_EQ(tensor->flags, 0);
    CHECK_EQ(tensor->dl_tensor.ndim, 4);
    CHECK_EQ(tensor->dl_tensor.device.device_type, 1);
    CHECK_EQ(tensor->dl_tensor.dtype.code, 2);
    CHECK_EQ(tensor->dl_tensor.dtype.bits, 32);
    CHECK_EQ(tensor->dl_tensor.shape[1], 16);
    CHECK_EQ(tensor->dl_tensor.strides[1], 256);
    CHECK(mem_equal_f32(&a, &s[0], (const float*)tensor->dl_tensor.data, 0.0f));
    tensor->deleter(tensor);
    CHECK(mem_equal_f32(&a, &s[0], (const float*)legacy->dl_tensor.data, 0.0f));
    legacy->deleter(legacy);
    check_batch(&a, &s[1], b[1], 1);
    CHECK_EQ(damacy_release(b[1]), DAMACY_OK); /* frees the last of the pipeline */
}

typedef struct popper {
    damacy* d;
    damacy_status status;
} popper;

static void* popper_main(void* context)
{
    popper* p = (popper*)context;
    damacy_batch batch;

    p->status = damacy_pop(p->d, &batch, NULL);
    if (p->status == DAMACY_OK) {
        (void)damacy_release(batch);
    }
    return NULL;
}

TEST(destroy_wakes_a_blocked_pop_with_shutdown)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample s = mem_sample(&a, 1, 1, 1, 16);
    struct timespec t = {0, 30000000};
    pthread_t thread;
    damacy_error err;
    popper p;

    memset(&p, 0, sizeof p);
    mem_put_array(m, &a);
    mem_pause(m, 1);
    CHECK_EQ(damacy_create(&c, &p.d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(p.d, &s, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(pthread_create(&thread, NULL, popper_main, &p), 0);
    nanosleep(&t, NULL);
    mem_pause(m, 0); /* a read that is under way in the store is waited for */
    damacy_destroy(p.d);
    pthread_join(thread, NULL);
    CHECK(p.status == DAMACY_SHUTDOWN || p.status == DAMACY_OK);
    mem_free(m);
}

TEST(each_chunk_is_read_and_decoded_once_per_batch)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 16);
    damacy_sample s[16];
    damacy_stats stats;
    damacy_batch batch;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    for (int i = 0; i < 16; i++) {
        s[i] = mem_sample(&a, i % 4, i % 5, i % 6, 20); /* all touch the same 8 chunks */
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 16, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    check_batch(&a, s, batch, 16);
    damacy_stats_get(d, &stats);
    CHECK_EQ(stats.chunks_decoded, 8);
    CHECK_EQ(stats.chunks_touched, 16 * 8);
    CHECK_EQ(stats.array_misses, 1);
    CHECK_EQ(stats.array_hits, 15);
    CHECK_EQ(stats.samples_pushed, 16);
    CHECK_EQ(stats.batches_delivered, 1);
    CHECK_EQ(stats.read.count, 8);
    damacy_stats_reset(d);
    damacy_stats_get(d, &stats);
    CHECK_EQ(stats.chunks_decoded, 0);
    CHECK_EQ(stats.array_misses, 1); /* kept */
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

/* ---- Allocation ---- */

typedef struct counting {
    uint64_t live;
    uint64_t n;
    uint64_t fail_at; /* 0: never */
    int persistent;
    pthread_mutex_t mutex;
} counting;

static void* counting_alloc(void* user, size_t size, size_t alignment)
{
    counting* c = (counting*)user;
    void* ptr = NULL;
    int fail;

    pthread_mutex_lock(&c->mutex);
    c->n++;
    fail = c->fail_at && (c->n == c->fail_at || (c->persistent && c->n > c->fail_at));
    pthread_mutex_unlock(&c->mutex);
    if (fail ||
        posix_memalign(&ptr, alignment < sizeof(void*) ? sizeof(void*) : alignment, size) != 0) {
        return NULL;
    }
    __atomic_add_fetch(&c->live, size, __ATOMIC_RELAXED);
    return ptr;
}

static void counting_free(void* user, void* ptr, size_t size)
{
    counting* c = (counting*)user;

    __atomic_sub_fetch(&c->live, size, __ATOMIC_RELAXED);
    free(ptr);
}

static void counting_use(counting* c, damacy_config* config)
{
    config->allocator.user = c;
    config->allocator.alloc = counting_alloc;
    config->allocator.free = counting_free;
    config->max_host_bytes = UINT64_C(8) << 20; /* the user's allocator commits what it gives */
}

TEST(steady_state_allocates_nothing)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 4);
    damacy_sample s[4];
    counting counts;
    damacy_error err;
    damacy* d = NULL;
    uint64_t n_before = 0;

    memset(&counts, 0, sizeof counts);
    pthread_mutex_init(&counts.mutex, NULL);
    counting_use(&counts, &c);
    mem_put_array(m, &a);
    for (int i = 0; i < 4; i++) {
        s[i] = mem_sample(&a, i, i, i, 24);
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    for (int round = 0; round < 60; round++) {
        damacy_batch batch;
        CHECK_EQ(damacy_push(d, s, 4, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        if (round == 40) {
            n_before = counts.n;
        }
    }
    CHECK_EQ(counts.n, n_before);
    damacy_destroy(d);
    CHECK_EQ(counts.live, 0);
    mem_free(m);
}

/* One epoch under an allocator that fails; the result is exact or a clean OOM or BUDGET. */
static int epoch_with(counting* counts, mem_store* m, const mem_array* a)
{
    damacy_config c = config_of(m, 2);
    damacy_error err;
    damacy_status status;
    damacy* d = NULL;
    damacy_sample s[6];
    int n_good = 0;

    counting_use(counts, &c);
    for (int i = 0; i < 6; i++) {
        s[i] = mem_sample(a, i, 2 * i, 3 * i, 16);
    }
    status = damacy_create(&c, &d, &err);
    if (status != DAMACY_OK) {
        CHECK(status == DAMACY_OOM || status == DAMACY_BUDGET);
        CHECK(err.message[0] != '\0');
        return 0;
    }
    status = damacy_push(d, s, 6, NULL, &err);
    CHECK(status == DAMACY_OK || status == DAMACY_OOM || status == DAMACY_SHUTDOWN);
    damacy_finish(d);
    for (;;) {
        damacy_batch batch;
        damacy_batch_info_t info;
        status = damacy_pop(d, &batch, &err);
        if (status != DAMACY_OK) {
            break;
        }
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        for (int k = 0; k < info.shape[0]; k++) {
            CHECK(mem_equal_f32(a, &s[n_good + k], (const float*)info.ptr + k * 4096, 0.0f));
        }
        n_good += (int)info.shape[0];
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    CHECK(status == DAMACY_END || status == DAMACY_OOM || status == DAMACY_BUDGET);
    damacy_destroy(d);
    return status == DAMACY_END && n_good == 6;
}

TEST(every_failing_allocation_is_a_clean_error)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("s.zarr");
    counting counts;
    uint64_t n_calls;

    a.shard[0] = a.shard[1] = a.shard[2] = 32;
    mem_put_array(m, &a);
    memset(&counts, 0, sizeof counts);
    pthread_mutex_init(&counts.mutex, NULL);
    CHECK(epoch_with(&counts, m, &a));
    n_calls = counts.n;
    for (int persistent = 0; persistent < 2; persistent++) {
        for (uint64_t k = 1; k <= n_calls + 2; k++) {
            counts.n = 0;
            counts.fail_at = k;
            counts.persistent = persistent;
            (void)epoch_with(&counts, m, &a);
            CHECK_EQ(counts.live, 0);
            CHECK_EQ(m->n_open, 0);
        }
    }
    counts.fail_at = 0;
    CHECK(epoch_with(&counts, m, &a));
    mem_free(m);
}

TEST(the_host_budget_is_kept_and_its_error_shows_the_sum)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 8);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 40);
    damacy_batch batch;
    damacy_stats stats;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    c.max_host_bytes = UINT64_C(5) << 20; /* three slots of 8 x 40^3 x 4 need 6 MB */
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    for (int i = 0; i < 8; i++) {
        CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    }
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_BUDGET);
    CHECK_HAS(err.message, "2048000");
    damacy_stats_get(d, &stats);
    CHECK(stats.host_bytes_committed <= c.max_host_bytes);
    damacy_destroy(d);
    mem_free(m);
}

TEST_MAIN
