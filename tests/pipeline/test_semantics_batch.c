/* s32, s33, s36 to s39, s41 and s42: the life of batches and exported tensors. s34 and s35, which
 * wait for events of a GPU, are in test_semantics_gpu.cpp. */
#include "tests/pipeline/semantics.h"

typedef struct bench {
    mem_store* m;
    mem_array a;
    damacy_config c;
    damacy_sample s[8];
    damacy* d;
    damacy_error err;
} bench;

static void bench_open(bench* b, uint32_t slots, damacy_dtype dtype)
{
    memset(b, 0, sizeof *b);
    b->m = mem_new();
    b->a = mem_plain("v.zarr");
    mem_put_array(b->m, &b->a);
    b->c = config_of(b->m, 1);
    b->c.batch_slots = slots;
    b->c.dtype = dtype;
    CHECK_EQ(damacy_create(&b->c, &b->d, &b->err), DAMACY_OK);
    for (int i = 0; i < 8; i++) {
        b->s[i] = mem_sample(&b->a, 2 * i, i, 3 * i, 16);
    }
    CHECK_EQ(damacy_push(b->d, b->s, 8, NULL, &b->err), DAMACY_OK);
}

static damacy_batch bench_pop(bench* b)
{
    damacy_batch batch;

    CHECK_EQ(damacy_pop(b->d, &batch, &b->err), DAMACY_OK);
    return batch;
}

static void bench_close(bench* b)
{
    damacy_destroy(b->d);
    CHECK_EQ(b->m->n_open, 0);
    mem_free(b->m);
}

/* Ours: INVAL, and nothing is written. */
TEST(s32_a_released_batch_has_no_info)
{
    bench b;
    damacy_batch batch;
    damacy_batch none = {0};
    damacy_batch_info_t info;
    uint8_t voxels[4];

    bench_open(&b, 3, DAMACY_F32);
    batch = bench_pop(&b);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(info.size, 4 * 4096);
    CHECK_EQ(info.device, DAMACY_CPU);
    CHECK(info.ready_event == NULL && info.ready_stream == NULL);
    CHECK_EQ((uintptr_t)info.ptr % 256, 0);
    CHECK_EQ(damacy_batch_info(batch, NULL), DAMACY_INVAL);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    memset(&info, 0x5a, sizeof info);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_INVAL);
    CHECK_EQ(((const uint8_t*)&info)[0], 0x5a);
    CHECK_EQ(damacy_batch_info(none, &info), DAMACY_INVAL);
    CHECK_EQ(damacy_batch_sample(batch, 0, NULL, NULL, &b.err), DAMACY_INVAL);
    CHECK_EQ(damacy_batch_failed(batch, 0, &b.err), DAMACY_INVAL);
    CHECK_EQ(damacy_batch_read(batch, voxels, sizeof voxels, &b.err), DAMACY_INVAL);
    CHECK_EQ(damacy_batch_retain(batch), DAMACY_INVAL);
    bench_close(&b);
}

TEST(s33_a_second_or_foreign_release_has_no_effect)
{
    bench b;
    bench other;
    damacy_batch batch;
    damacy_batch next;
    damacy_batch wrong;
    damacy_batch none = {0};
    damacy_batch_info_t info;

    bench_open(&b, 2, DAMACY_F32);
    bench_open(&other, 2, DAMACY_F32);
    batch = bench_pop(&b);
    CHECK_EQ(damacy_release(none), DAMACY_INVAL);
    CHECK_EQ(damacy_release_event(none, NULL), DAMACY_INVAL);
    CHECK_EQ(damacy_release_stream(none, NULL), DAMACY_INVAL);
    wrong = batch;
    wrong.id += 1000; /* never popped */
    CHECK_EQ(damacy_release(wrong), DAMACY_INVAL);
    wrong.id = batch.id;
    wrong.core = bench_pop(&other).core;
    CHECK_EQ(damacy_release(wrong), DAMACY_OK); /* the other pipeline's batch 0 */
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    next = bench_pop(&b); /* may take the same slot */
    CHECK_EQ(damacy_release(batch), DAMACY_INVAL);
    CHECK_EQ(damacy_release_event(batch, NULL), DAMACY_INVAL);
    CHECK_EQ(damacy_release_stream(batch, NULL), DAMACY_INVAL);
    CHECK(batch_is(next, &b.a, &b.s[1], 1, 0.0f));
    CHECK_EQ(damacy_release(next), DAMACY_OK);
    bench_close(&b);
    bench_close(&other);
}

static void* release_main(void* context)
{
    const damacy_batch batch = *(const damacy_batch*)context;

    return damacy_release(batch) == DAMACY_OK ? context : NULL;
}

/* Ours: holding every slot is told with AGAIN, never waited out. */
TEST(s36_a_release_on_another_thread_lets_the_pipeline_go_on)
{
    bench b;
    damacy_batch held[2];
    damacy_batch more;
    pthread_t thread;
    void* result = NULL;

    bench_open(&b, 2, DAMACY_F32);
    held[0] = bench_pop(&b);
    held[1] = bench_pop(&b);
    CHECK_EQ(damacy_pop(b.d, &more, &b.err), DAMACY_AGAIN);
    CHECK_EQ(damacy_pop_timeout(b.d, 3000000, &more, &b.err), DAMACY_TIMEOUT);
    CHECK_EQ(pthread_create(&thread, NULL, release_main, &held[0]), 0);
    CHECK_EQ(damacy_pop_timeout(b.d, UINT64_C(20000000000), &more, &b.err), DAMACY_OK);
    pthread_join(thread, &result);
    CHECK(result != NULL);
    CHECK(batch_is(more, &b.a, &b.s[2], 1, 0.0f));
    CHECK(batch_is(held[1], &b.a, &b.s[1], 1, 0.0f));
    CHECK_EQ(damacy_release(more), DAMACY_OK);
    CHECK_EQ(damacy_release(held[1]), DAMACY_OK);
    bench_close(&b);
}

/* Ours: batches are independent. */
TEST(s37_every_held_batch_is_its_own)
{
    bench b;
    damacy_batch held[4];

    bench_open(&b, 4, DAMACY_F32);
    for (int i = 0; i < 4; i++) {
        held[i] = bench_pop(&b);
    }
    for (int i = 3; i >= 0; i--) {
        damacy_batch_info_t info;
        CHECK_EQ(damacy_batch_info(held[i], &info), DAMACY_OK);
        CHECK_EQ(info.id, i);
        CHECK(batch_is(held[i], &b.a, &b.s[i], 1, 0.0f));
        CHECK_EQ(damacy_release(held[i]), DAMACY_OK);
    }
    for (int i = 4; i < 8; i++) { /* no slot was lost */
        held[i - 4] = bench_pop(&b);
    }
    for (int i = 4; i < 8; i++) {
        CHECK(batch_is(held[i - 4], &b.a, &b.s[i], 1, 0.0f));
        CHECK_EQ(damacy_release(held[i - 4]), DAMACY_OK);
    }
    bench_close(&b);
}

typedef struct popper {
    damacy* d;
    damacy_status status;
    int has_returned; /* atomic */
} popper;

static void* popper_main(void* context)
{
    popper* p = (popper*)context;
    damacy_batch batch;

    p->status = damacy_pop(p->d, &batch, NULL);
    __atomic_store_n(&p->has_returned, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void* destroy_main(void* context)
{
    damacy_destroy((damacy*)context);
    return NULL;
}

/* Ours: the popper leaves with SHUTDOWN while the store still keeps the read waiting; destroy
 * returns once the read has ended. */
TEST(s38_destroy_wakes_a_blocked_pop_with_shutdown)
{
    bench b;
    popper p;
    pthread_t popping;
    pthread_t destroying;

    memset(&b, 0, sizeof b);
    memset(&p, 0, sizeof p);
    b.m = mem_new();
    b.a = mem_plain("v.zarr");
    mem_put_array(b.m, &b.a);
    mem_pause(b.m, 1);
    b.c = config_of(b.m, 1);
    CHECK_EQ(damacy_create(&b.c, &p.d, &b.err), DAMACY_OK);
    b.s[0] = mem_sample(&b.a, 1, 1, 1, 16);
    CHECK_EQ(damacy_push(p.d, b.s, 1, NULL, &b.err), DAMACY_OK);
    CHECK_EQ(pthread_create(&popping, NULL, popper_main, &p), 0);
    usleep(20000); /* it blocks by now, or will see that the pipeline is going */
    CHECK_EQ(__atomic_load_n(&p.has_returned, __ATOMIC_ACQUIRE), 0);
    CHECK_EQ(pthread_create(&destroying, NULL, destroy_main, p.d), 0);
    WAIT_FOR(__atomic_load_n(&p.has_returned, __ATOMIC_ACQUIRE));
    CHECK_EQ(p.status, DAMACY_SHUTDOWN);
    mem_pause(b.m, 0);
    pthread_join(popping, NULL);
    pthread_join(destroying, NULL);
    CHECK_EQ(b.m->n_open, 0);
    mem_free(b.m);
}

TEST(s39_destroy_amid_work_with_held_batches_is_clean)
{
    uint64_t seed = test_seed();

    for (int i = 0; i < 12; i++) {
        bench b;
        damacy_batch held[2];
        damacy_dl_managed* tensor = NULL;
        bench_open(&b, 4, DAMACY_F32);
        __atomic_store_n(&b.m->delay_us, (unsigned)(test_random(&seed) % 2000), __ATOMIC_RELAXED);
        held[0] = bench_pop(&b);
        held[1] = bench_pop(&b);
        CHECK_EQ(damacy_batch_dlpack_legacy(held[0], NULL, &tensor, &b.err), DAMACY_OK);
        if (i % 3 == 0) {
            CHECK_EQ(damacy_release(held[0]), DAMACY_OK);
        }
        damacy_destroy(b.d); /* four batches are in the making or ready */
        CHECK_EQ(b.m->n_open, 0);
        CHECK(batch_is(held[1], &b.a, &b.s[1], 1, 0.0f));
        CHECK(mem_equal_f32(&b.a, &b.s[0], (const float*)tensor->dl_tensor.data, 0.0f));
        if (i % 3 != 0) {
            CHECK_EQ(damacy_release(held[0]), DAMACY_OK);
        }
        tensor->deleter(tensor);
        CHECK_EQ(damacy_release(held[1]), DAMACY_OK);
        mem_free(b.m);
    }
}

TEST(s41_a_batch_is_exported_as_often_as_wanted_in_both_forms)
{
    static const struct {
        damacy_dtype dtype;
        int code;
        int bits;
    } types[] = {{DAMACY_F32, 2, 32}, {DAMACY_BF16, 4, 16}, {DAMACY_F16, 2, 16},
                 {DAMACY_F64, 2, 64}, {DAMACY_U8, 1, 8},    {DAMACY_U16, 1, 16},
                 {DAMACY_U32, 1, 32}, {DAMACY_U64, 1, 64},  {DAMACY_I8, 0, 8},
                 {DAMACY_I16, 0, 16}, {DAMACY_I32, 0, 32},  {DAMACY_I64, 0, 64},
                 {DAMACY_BOOL, 6, 8}};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        bench b;
        damacy_batch batch;
        damacy_batch_info_t info;
        damacy_dl_managed_versioned* one = NULL;
        damacy_dl_managed_versioned* two = NULL;
        damacy_dl_managed* legacy = NULL;
        bench_open(&b, 3, types[i].dtype);
        batch = bench_pop(&b);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ(damacy_batch_dlpack(batch, NULL, &one, &b.err), DAMACY_OK);
        CHECK_EQ(damacy_batch_dlpack(batch, DAMACY_STREAM_NONE, &two, &b.err), DAMACY_OK);
        CHECK_EQ(damacy_batch_dlpack_legacy(batch, NULL, &legacy, &b.err), DAMACY_OK);
        CHECK(one != two && one->dl_tensor.data == info.ptr && two->dl_tensor.data == info.ptr);
        CHECK_EQ(one->version.major, 1);
        CHECK_EQ(one->flags, 0);
        CHECK_EQ(one->dl_tensor.ndim, 4);
        CHECK_EQ(one->dl_tensor.shape[0], 1);
        CHECK_EQ(one->dl_tensor.shape[3], 16);
        CHECK_EQ(one->dl_tensor.byte_offset, 0);
        CHECK_EQ(one->dl_tensor.device.device_type, 1);
        CHECK_EQ(one->dl_tensor.dtype.lanes, 1);
        CHECK_EQ(one->dl_tensor.dtype.code, types[i].code);
        CHECK_EQ(legacy->dl_tensor.dtype.code, types[i].code);
        CHECK_EQ(legacy->dl_tensor.dtype.bits, types[i].bits);
        one->deleter(one);
        two->deleter(two);
        legacy->deleter(legacy);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        legacy = NULL;
        CHECK_EQ(damacy_batch_dlpack_legacy(batch, NULL, &legacy, &b.err), DAMACY_INVAL);
        CHECK_EQ(damacy_batch_dlpack(batch, NULL, &one, &b.err), DAMACY_INVAL);
        CHECK(legacy == NULL);
        CHECK_EQ(damacy_batch_dlpack(batch, NULL, NULL, &b.err), DAMACY_INVAL);
        bench_close(&b);
    }
}

/* Each tensor is freed by its own deleter, once, in any order, before or after everything else. */
TEST(s42_a_tensor_outlives_batch_and_pipeline_and_keeps_its_slot)
{
    bench b;
    damacy_batch batch;
    damacy_batch more;
    damacy_dl_managed_versioned* tensor = NULL;
    damacy_dl_managed_versioned* unused = NULL;

    bench_open(&b, 2, DAMACY_F32);
    batch = bench_pop(&b);
    CHECK_EQ(damacy_batch_dlpack(batch, NULL, &tensor, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_batch_dlpack(batch, NULL, &unused, &b.err), DAMACY_OK);
    unused->deleter(unused); /* nobody consumed it */
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    CHECK_EQ(damacy_release(batch), DAMACY_INVAL); /* the tensor's reference is its own */
    for (int i = 1; i < 8; i++) {                  /* the other slot does all the work */
        more = bench_pop(&b);
        CHECK(batch_is(more, &b.a, &b.s[i], 1, 0.0f));
        CHECK_EQ(damacy_release(more), DAMACY_OK);
    }
    damacy_destroy(b.d);
    CHECK(mem_equal_f32(&b.a, &b.s[0], (const float*)tensor->dl_tensor.data, 0.0f));
    tensor->deleter(tensor);
    CHECK_EQ(b.m->n_open, 0);
    mem_free(b.m);
}

TEST_MAIN
