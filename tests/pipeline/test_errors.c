/* What a failing sample costs, and what its error says: policies, bounds, and storage that
 * misbehaves. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tests/test.h"
#include "tests/pipeline/memory_store.h"

static damacy_config config_of(mem_store* m, uint32_t per_batch, damacy_on_error on_error)
{
    damacy_config c;

    memset(&c, 0, sizeof c);
    c.store = mem_callbacks(m);
    c.device = DAMACY_CPU;
    c.samples_per_batch = per_batch;
    c.on_error = on_error;
    c.io_threads = 4;
    c.decode_threads = 2;
    c.max_host_bytes = UINT64_C(256) << 20;
    return c;
}

/* Pushes one sample and pops it; the pipeline is new each time. */
static damacy_status one(mem_store* m, const damacy_sample* s, damacy_bounds bounds,
                         damacy_dtype dtype, void* out, size_t size, damacy_error* err)
{
    damacy_config c = config_of(m, 1, DAMACY_ON_ERROR_STOP);
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_status status;
    damacy* d = NULL;

    c.bounds = bounds;
    c.dtype = dtype;
    CHECK_EQ(damacy_create(&c, &d, err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 1, NULL, err), DAMACY_OK);
    status = damacy_pop(d, &batch, err);
    if (status == DAMACY_OK) {
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK(!out || info.size == size);
        if (out) {
            memcpy(out, info.ptr, size);
        }
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    damacy_destroy(d);
    CHECK_EQ(m->n_open, 0);
    return status;
}

TEST(stop_delivers_what_came_before_the_bad_sample_and_then_its_error)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("good.zarr");
    damacy_config c = config_of(m, 1, DAMACY_ON_ERROR_STOP);
    damacy_sample s[3];
    damacy_batch batch;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    for (int i = 0; i < 3; i++) {
        s[i] = mem_sample(&a, i, i, i, 16);
    }
    s[1].uri = "absent.zarr";
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 3, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_NOTFOUND);
        CHECK_EQ(err.sample, 1);
        CHECK_EQ(err.stage, DAMACY_STAGE_METADATA);
        CHECK_STR(err.uri, "absent.zarr");
    }
    CHECK_EQ(damacy_push(d, s, 1, NULL, &err), DAMACY_SHUTDOWN);
    damacy_destroy(d);
    mem_free(m);
}

TEST(fill_delivers_every_batch_with_a_status_per_sample)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("good.zarr");
    mem_array b = mem_plain("bad.zarr");
    damacy_config c = config_of(m, 3, DAMACY_ON_ERROR_FILL);
    damacy_sample s[3];
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;
    damacy_status status;
    uint64_t number;

    b.fill = "9";
    mem_put_array(m, &a);
    mem_put_array(m, &b);
    mem_find(m, "bad.zarr/c/1/1/1")->size -= 2;
    s[0] = mem_sample(&a, 1, 2, 3, 16);
    s[1] = mem_sample(&b, 10, 10, 10, 16);
    s[2] = mem_sample(&b, 0, 0, 0, 16); /* does not touch the bad chunk */
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 3, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(info.n_failed, 1);
    CHECK_EQ(info.shape[0], 3);
    CHECK(mem_equal_f32(&a, &s[0], (float*)info.ptr, 0));
    CHECK(mem_equal_f32(&b, &s[2], (float*)info.ptr + 2 * 4096, 0));
    for (int i = 0; i < 4096; i++) {
        CHECK(((float*)info.ptr)[4096 + i] == 9.0f);
    }
    CHECK_EQ(damacy_batch_sample(batch, 0, &number, &status, &err), DAMACY_OK);
    CHECK_EQ(status, DAMACY_OK);
    CHECK_EQ(damacy_batch_sample(batch, 1, &number, &status, &err), DAMACY_OK);
    CHECK_EQ(number, 1);
    CHECK_EQ(status, DAMACY_DECODE);
    CHECK_EQ(err.sample, 1);
    CHECK_STR(err.uri, "bad.zarr");
    CHECK_STR(err.chunk, "c/1/1/1");
    CHECK_EQ(damacy_batch_failed(batch, 0, &err), DAMACY_OK);
    CHECK_EQ(err.sample, 1);
    CHECK_EQ(damacy_batch_failed(batch, 1, &err), DAMACY_INVAL);
    CHECK_EQ(damacy_batch_sample(batch, 3, &number, &status, &err), DAMACY_INVAL);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST(skip_delivers_shorter_batches_of_good_samples)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("good.zarr");
    damacy_config c = config_of(m, 4, DAMACY_ON_ERROR_SKIP);
    damacy_sample s[8];
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_status status;
    damacy_error err;
    damacy* d = NULL;
    uint64_t number;

    mem_put_array(m, &a);
    for (int i = 0; i < 8; i++) {
        s[i] = mem_sample(&a, i, i, i, 16);
    }
    s[1].uri = "absent.zarr";
    for (int i = 4; i < 8; i++) {
        s[i].uri = "absent.zarr";
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 8, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(info.shape[0], 3);
    CHECK_EQ(info.n_failed, 1);
    CHECK(mem_equal_f32(&a, &s[0], (float*)info.ptr, 0));
    CHECK(mem_equal_f32(&a, &s[2], (float*)info.ptr + 4096, 0));
    CHECK(mem_equal_f32(&a, &s[3], (float*)info.ptr + 2 * 4096, 0));
    CHECK_EQ(damacy_batch_sample(batch, 1, &number, &status, NULL), DAMACY_OK);
    CHECK_EQ(number, 2);
    CHECK_EQ(damacy_batch_failed(batch, 0, &err), DAMACY_OK);
    CHECK_EQ(err.sample, 1);
    CHECK_EQ(err.status, DAMACY_NOTFOUND);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(info.shape[0], 0);
    CHECK_EQ(info.n_failed, 4);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST(a_crop_outside_its_array_follows_the_bounds_policy)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample s = mem_sample(&a, -3, 20, 30, 20);
    static uint16_t out[20 * 20 * 20];
    damacy_error err;

    a.fill = "77";
    mem_put_array(m, &a);
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_U16, NULL, 0, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "axis 0");
    CHECK_STR(err.uri, "v.zarr");
    for (int bounds = DAMACY_BOUNDS_FILL; bounds <= DAMACY_BOUNDS_REFLECT; bounds++) {
        size_t n = 0;
        CHECK_EQ(one(m, &s, (damacy_bounds)bounds, DAMACY_U16, out, sizeof out, &err), DAMACY_OK);
        for (int64_t z = -3; z < 17; z++) {
            for (int64_t y = 20; y < 40; y++) {
                for (int64_t x = 30; x < 50; x++) {
                    int64_t at[4] = {z, y, x, 0};
                    const int outside = z < 0 || x > 39;
                    if (bounds == DAMACY_BOUNDS_CLAMP) {
                        at[0] = z < 0 ? 0 : z;
                        at[2] = x > 39 ? 39 : x;
                    } else if (bounds == DAMACY_BOUNDS_REFLECT) {
                        at[0] = z < 0 ? -z : z;
                        at[2] = x > 39 ? 78 - x : x;
                    }
                    CHECK_EQ(out[n],
                             bounds == DAMACY_BOUNDS_FILL && outside ? 77 : mem_value(&a, at));
                    n++;
                }
            }
        }
    }
    mem_free(m);
}

TEST(rank_and_type_mismatches_are_told_by_name)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    mem_array b = mem_plain("u8.zarr");
    damacy_config c = config_of(m, 1, DAMACY_ON_ERROR_FILL);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 8);
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;

    b.data_type = "uint8";
    b.item_size = 1;
    mem_put_array(m, &a);
    mem_put_array(m, &b);
    s.rank = 2;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_RANK);
    CHECK_HAS(err.message, "3 axes");
    c.dtype = DAMACY_NATIVE;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    s.rank = 3;
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    s.uri = b.uri;
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(info.dtype, DAMACY_U16);
    CHECK_EQ(info.n_failed, 0);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_failed(batch, 0, &err), DAMACY_OK);
    CHECK_EQ(err.status, DAMACY_DTYPE);
    CHECK_HAS(err.message, "uint8");
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST(short_reads_are_invisible_and_a_truncated_object_is_an_error)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample s = mem_sample(&a, 10, 10, 10, 16);
    damacy_error err;
    mem_object* o;

    mem_put_array(m, &a);
    o = mem_find(m, "v.zarr/c/1/1/1");
    o->read_fault = 3;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_OK);
    o->read_fault = 2; /* the size is promised, the bytes do not come */
    o->n_reads = 0;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_IO);
    CHECK_STR(err.chunk, "c/1/1/1");
    CHECK_EQ(err.stage, DAMACY_STAGE_READ);
    o->read_fault = 1;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_IO);
    o->read_fault = 0;
    o->fault = DAMACY_IO;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_IO);
    o->fault = DAMACY_OK;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_OK);
    mem_free(m);
}

TEST(a_damaged_shard_index_fails_its_samples_and_no_others)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("s.zarr");
    damacy_sample s = mem_sample(&a, 0, 0, 0, 16);
    damacy_sample far = mem_sample(&a, 33, 33, 33, 7);
    damacy_error err;
    mem_object* o;

    a.shard[0] = a.shard[1] = a.shard[2] = 32;
    mem_put_array(m, &a);
    o = mem_find(m, "s.zarr/c/0/0/0");
    o->bytes[o->size - 9] ^= 1;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_DECODE);
    CHECK_EQ(err.stage, DAMACY_STAGE_INDEX);
    CHECK_HAS(err.chunk, "c/0/0/0");
    CHECK_EQ(one(m, &far, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_OK);
    o->size = 20;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_DECODE);
    o->size = 0;
    CHECK_EQ(one(m, &s, DAMACY_BOUNDS_REJECT, DAMACY_F32, NULL, 0, &err), DAMACY_DECODE);
    mem_free(m);
}

TEST(a_failed_fetch_is_tried_again_later)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1, DAMACY_ON_ERROR_FILL);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 16);
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;
    int n_failed = 1;

    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    for (int i = 0; i < 12 && n_failed; i++) {
        CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        n_failed = (int)info.n_failed;
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        if (i == 0) {
            CHECK_EQ(n_failed, 1);
            mem_put_array(m, &a);
        }
    }
    CHECK_EQ(n_failed, 0);
    damacy_destroy(d);
    mem_free(m);
}

TEST(every_config_error_names_its_field)
{
    static const struct {
        const char* part;
        int field;
    } cases[] = {
        {"lookahead_samples", 0}, {"batch_slots", 1},    {"dtype", 2},          {"bounds", 3},
        {"on_error", 4},          {"device", 5},         {"io_threads", 6},     {"sample_shape", 7},
        {"sample_rank", 8},       {"numa_node", 9},      {"store", 10},         {"allocator", 11},
        {"n_channels", 12},       {"debug_latency", 13}, {"max_host_bytes", 14}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        damacy_config c;
        damacy_config resolved;
        damacy_error err;
        damacy* d = NULL;
        memset(&c, 0, sizeof c);
        c.samples_per_batch = 8;
        switch (cases[i].field) {
        case 0:
            c.lookahead_samples = 7;
            break;
        case 1:
            c.batch_slots = 1;
            break;
        case 2:
            c.dtype = (damacy_dtype)14;
            break;
        case 3:
            c.bounds = (damacy_bounds)4;
            break;
        case 4:
            c.on_error = (damacy_on_error)3;
            break;
        case 5:
            c.device = -2;
            break;
        case 6:
            c.io_threads = 100000;
            break;
        case 7:
            c.sample_rank = 1;
            break;
        case 8:
            c.sample_rank = 33;
            break;
        case 9:
            c.numa = DAMACY_NUMA_PIN;
            c.numa_node = -1;
            break;
        case 10:
            c.store.open = mem_open;
            break;
        case 11:
            c.allocator.user = &c;
            c.allocator.free = (void (*)(void*, void*, size_t))1;
            break;
        case 12:
            c.n_channels = 2;
            c.dtype = DAMACY_U8;
            break;
        case 13:
            c.debug_latency.sigma = -1;
            break;
        default:
            c.max_host_bytes = 5;
            break;
        }
        CHECK_EQ(damacy_config_resolve(&c, &resolved, &err), DAMACY_INVAL);
        CHECK_HAS(err.message, cases[i].part);
        CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_INVAL);
        CHECK(d == NULL);
        CHECK_HAS(err.message, cases[i].part);
    }
}

TEST(many_io_threads_start_on_few_cpus)
{
    damacy_config c;
    damacy_error err;
    damacy* d = NULL;

    memset(&c, 0, sizeof c);
    c.io_threads = 64;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    damacy_destroy(d);
}

TEST_MAIN
