/* s19 to s24, s30 and s31: which status a bad sample has, what it costs, and what is no error. */
#include "tests/pipeline/semantics.h"
#include <zlib.h>

/* Ours: a bad sample costs no batch before it, and with FILL and SKIP none at all. */
TEST(s19_a_bad_sample_costs_no_other_batch)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("good.zarr");
    damacy_sample s[3];

    mem_put_array(m, &a);
    for (int i = 0; i < 3; i++) {
        s[i] = mem_sample(&a, i, i, i, 16);
    }
    s[1].uri = "absent.zarr";
    for (int policy = DAMACY_ON_ERROR_STOP; policy <= DAMACY_ON_ERROR_SKIP; policy++) {
        damacy_config c = scene_config(m, 1, (damacy_on_error)policy);
        damacy_batch batch;
        damacy_batch_info_t info;
        damacy_error err;
        damacy* d = NULL;
        CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
        CHECK_EQ(damacy_push(d, s, 3, NULL, &err), DAMACY_OK);
        CHECK_EQ(pop_is(d, &a, &s[0], 1, &err), DAMACY_OK);
        if (policy == DAMACY_ON_ERROR_STOP) {
            CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_NOTFOUND);
            CHECK_EQ(err.sample, 1);
        } else {
            CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
            CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
            CHECK_EQ(info.n_failed, 1);
            CHECK_EQ(info.shape[0], policy == DAMACY_ON_ERROR_SKIP ? 0 : 1);
            CHECK_EQ(damacy_batch_failed(batch, 0, &err), DAMACY_OK);
            CHECK_EQ(err.status, DAMACY_NOTFOUND);
            CHECK_EQ(damacy_release(batch), DAMACY_OK);
            CHECK_EQ(pop_is(d, &a, &s[2], 1, &err), DAMACY_OK);
        }
        damacy_destroy(d);
    }
    mem_free(m);
}

static damacy_status status_of_metadata(mem_store* m, const char* text, damacy_error* err)
{
    mem_array a = mem_plain("m.zarr");
    damacy_sample s = mem_sample(&a, 0, 0, 0, 8);
    damacy_config c = config_of(m, 1);

    if (text) {
        mem_put(m, "m.zarr/zarr.json", text, strlen(text));
    }
    return read_one(m, &c, &s, NULL, 0, err);
}

#define ARRAY_BEFORE                                                                           \
    "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[40,40,40],\"data_type\":\""         \
    "uint16\",\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[16,16," \
    "16]}},\"chunk_key_encoding\":{\"name\":\"default\"},\"fill_value\":0,\"codecs\":["
#define BYTES_LE "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}}"

/* Ours: what is valid and not covered is UNSUPPORTED and named; broken is DECODE. */
TEST(s20_missing_broken_and_unsupported_metadata_are_told_apart)
{
    mem_store* m = mem_new();
    damacy_error err;

    CHECK_EQ(status_of_metadata(m, NULL, &err), DAMACY_NOTFOUND);
    CHECK_STR(err.uri, "m.zarr");
    CHECK_EQ(err.stage, DAMACY_STAGE_METADATA);
    CHECK_EQ(status_of_metadata(m, "", &err), DAMACY_DECODE);
    CHECK_EQ(status_of_metadata(m, "{", &err), DAMACY_DECODE);
    CHECK_STR(err.chunk, "zarr.json");
    CHECK_EQ(status_of_metadata(m, ARRAY_BEFORE BYTES_LE "]", &err), DAMACY_DECODE);
    CHECK_EQ(status_of_metadata(m, ARRAY_BEFORE "]}", &err), DAMACY_DECODE);
    CHECK_EQ(status_of_metadata(m, "{\"zarr_format\":3,\"node_type\":\"group\"}", &err),
             DAMACY_NOTFOUND); /* a group, but of no image */
    CHECK_HAS(err.message, "multiscales");
    CHECK_EQ(status_of_metadata(m, ARRAY_BEFORE BYTES_LE ",{\"name\":\"pcodec\"}]}", &err),
             DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "pcodec");
    CHECK_EQ(status_of_metadata(m, ARRAY_BEFORE BYTES_LE "]}", &err), DAMACY_OK);
    mem_free(m);
}

static size_t gzip_encode(void* context, uint64_t number, const uint8_t* raw, size_t n,
                          uint8_t* out)
{
    z_stream z;

    (void)context;
    memset(&z, 0, sizeof z);
    CHECK_EQ(deflateInit2(&z, 1 + (int)(number % 9), Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
             Z_OK);
    z.next_in = (Bytef*)(uintptr_t)raw;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)(2 * n + 65536);
    CHECK_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
    (void)deflateEnd(&z);
    return (size_t)z.total_out;
}

/* Ours: gzip and bool are read. */
TEST(s20_gzip_and_bool_are_read)
{
    const int64_t shape[3] = {20, 21, 22};
    const int64_t chunk[3] = {8, 8, 8};
    mem_store* m = mem_new();
    uint64_t seed = test_seed();
    scene gzip = scene_make("gzip", 3, shape, chunk, "uint16", 2, 2, &seed);
    scene truth = scene_make("bool", 3, shape, chunk, "bool", 1, 0, &seed);

    gzip.codecs = "[" SCENE_BYTES ",{\"name\":\"gzip\",\"configuration\":{\"level\":5}}]";
    gzip.encode = gzip_encode;
    CHECK(scene_is_exact(m, &gzip));
    for (size_t i = 0; i < scene_n_voxels(&truth); i++) {
        truth.voxels[i] &= 1;
    }
    scene_put(m, &truth);
    { /* the fill value of a bool is one */
        mem_object* o = mem_find(m, "bool/zarr.json");
        char text[2048];
        char* at;
        (void)snprintf(text, sizeof text, "%.*s", (int)o->size, (const char*)o->bytes);
        at = strstr(text, "\"fill_value\":0");
        CHECK(at != NULL);
        (void)memmove(at + 18, at + 14, strlen(at + 14) + 1);
        memcpy(at + 13, "false", 5);
        mem_put(m, "bool/zarr.json", text, strlen(text));
    }
    {
        damacy_error err;
        CHECK_EQ(scene_status(m, &truth, &err), DAMACY_OK);
    }
    free(gzip.voxels);
    free(truth.voxels);
    mem_free(m);
}

/* Ours: every core type is read. */
TEST(s21_every_type_is_read)
{
    static const struct {
        const char* name;
        int size;
        damacy_dtype dtype;
    } types[] = {
        {"int8", 1, DAMACY_I8},     {"uint8", 1, DAMACY_U8},    {"int16", 2, DAMACY_I16},
        {"uint16", 2, DAMACY_U16},  {"int32", 4, DAMACY_I32},   {"uint32", 4, DAMACY_U32},
        {"int64", 8, DAMACY_I64},   {"uint64", 8, DAMACY_U64},  {"float16", 2, DAMACY_F16},
        {"float32", 4, DAMACY_F32}, {"float64", 8, DAMACY_F64}, {"bfloat16", 2, DAMACY_BF16}};
    static uint8_t got[16 * 16 * 16 * 8];

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        mem_store* m = mem_new();
        mem_array a = mem_plain("t.zarr");
        damacy_sample s = mem_sample(&a, 9, 10, 11, 16);
        damacy_config c = config_of(m, 1);
        damacy_error err;
        size_t n = 0;
        int64_t at[4];
        a.data_type = types[i].name;
        a.item_size = types[i].size;
        a.seed = 0xfffffff0u;
        mem_put_array(m, &a);
        c.dtype = DAMACY_NATIVE;
        CHECK_EQ(read_one(m, &c, &s, got, 4096 * (size_t)types[i].size, &err), DAMACY_OK);
        for (at[0] = 9; at[0] < 25; at[0]++) {
            for (at[1] = 10; at[1] < 26; at[1]++) {
                for (at[2] = 11; at[2] < 27; at[2]++) {
                    const uint64_t value = mem_value(&a, at);
                    for (int b = 0; b < types[i].size; b++) {
                        CHECK_EQ(got[n++], (uint8_t)(value >> (8 * b)));
                    }
                }
            }
        }
        c.dtype = DAMACY_F32; /* and cast */
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_OK);
        mem_free(m);
    }
}

TEST(s22_a_box_beyond_the_array_is_inval_and_another_rank_is_rank)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 1);
    damacy_error err;

    mem_put_array(m, &a);
    for (int axis = 0; axis < 3; axis++) {
        damacy_sample s = mem_sample(&a, 0, 0, 0, 40);
        char name[32];
        (void)snprintf(name, sizeof name, "axis %d", axis);
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_OK); /* exactly the array */
        s.box[axis].end = 41;
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_INVAL);
        CHECK_HAS(err.message, name);
        CHECK_EQ(err.stage, DAMACY_STAGE_PLAN);
        s.box[axis].begin = -1;
        s.box[axis].end = 39;
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_INVAL);
        CHECK_HAS(err.message, "[0, 40)");
        s.rank = 2;
        s.box[axis].begin = 0;
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_RANK);
        CHECK_HAS(err.message, "3 axes");
        CHECK_STR(err.uri, "v.zarr");
    }
    mem_free(m);
}

/* Ours: as many shards as it takes, up to a million objects. */
TEST(s23_a_sample_may_touch_many_shards)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("many.zarr");
    mem_array line;
    damacy_config c = config_of(m, 1);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 40);
    static float voxels[40 * 40 * 40];
    damacy_error err;

    for (int i = 0; i < 3; i++) {
        a.chunk[i] = 2;
        a.shard[i] = 4;
    }
    mem_put_array(m, &a); /* 1,000 shards of 8 chunks */
    CHECK_EQ(read_one(m, &c, &s, voxels, sizeof voxels, &err), DAMACY_OK);
    CHECK(mem_equal_f32(&a, &s, voxels, 0.0f));

    memset(&line, 0, sizeof line);
    line.uri = "line.zarr";
    line.rank = 1;
    line.shape[0] = (1 << 20) + 1;
    line.chunk[0] = 1;
    line.data_type = "uint8";
    line.item_size = 1;
    mem_put_metadata(m, &line);
    s.uri = line.uri;
    s.rank = 1;
    s.box[0].end = line.shape[0];
    CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "1048576 objects");
    CHECK_STR(err.uri, "line.zarr");
    mem_free(m);
}

TEST(s24_a_chunk_beyond_the_budget_is_refused_and_many_chunks_are_not)
{
    mem_store* m = mem_new();
    mem_array big = mem_plain("big.zarr");
    mem_array line;
    damacy_config c = config_of(m, 1);
    damacy_sample s = mem_sample(&big, 0, 0, 0, 8);
    static uint16_t voxels[40000];
    damacy_error err;

    for (int i = 0; i < 3; i++) {
        big.shape[i] = big.chunk[i] = 128;
    }
    mem_put_array(m, &big);
    c.max_host_bytes = UINT64_C(8) << 20;
    CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_BUDGET);
    CHECK_STR(err.uri, "big.zarr");
    CHECK_HAS(err.message, "4194304"); /* the chunk's bytes */
    CHECK_HAS(err.message, "max_host_bytes");
    c.max_host_bytes = UINT64_C(64) << 20;
    CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_OK);

    memset(&line, 0, sizeof line); /* 20,000 chunks of 2 voxels in one shard */
    line.uri = "line.zarr";
    line.rank = 1;
    line.shape[0] = line.shard[0] = 40000;
    line.chunk[0] = 2;
    line.data_type = "uint16";
    line.item_size = 2;
    mem_put_array(m, &line);
    s.uri = line.uri;
    s.rank = 1;
    s.box[0].end = 40000;
    c.dtype = DAMACY_U16;
    CHECK_EQ(read_one(m, &c, &s, voxels, sizeof voxels, &err), DAMACY_OK);
    for (uint32_t i = 0; i < 40000; i++) {
        CHECK_EQ(voxels[i], (uint16_t)(7 * i));
    }
    mem_free(m);
}

TEST(s30_with_stop_an_error_stays)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("good.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 8);
    damacy_sample bad = s;
    damacy_batch batch = {0};
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    bad.uri = "absent.zarr";
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &bad, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    for (int i = 0; i < 4; i++) {
        damacy_error e;
        CHECK_EQ(damacy_pop(d, &batch, &e), DAMACY_NOTFOUND);
        CHECK_EQ(e.sample, 0);
        CHECK_EQ(damacy_try_pop(d, &batch, &e), DAMACY_NOTFOUND);
        CHECK_EQ(damacy_pop_timeout(d, 1000000000, &batch, &e), DAMACY_NOTFOUND);
        CHECK_STR(e.uri, "absent.zarr");
        CHECK(batch.core == NULL);
        if (i == 1) {
            CHECK_EQ(damacy_finish(d), DAMACY_OK); /* changes nothing */
        }
    }
    damacy_destroy(d);
    mem_free(m);
}

typedef struct popper {
    pthread_t thread;
    damacy* d;
    damacy_status status;
    damacy_error err;
} popper;

static void* popper_main(void* context)
{
    popper* p = (popper*)context;
    damacy_batch batch;

    p->status = damacy_pop(p->d, &batch, &p->err);
    return NULL;
}

TEST(s31_the_first_failure_wins_and_wakes_everybody)
{
    enum { POPPERS = 4 };
    mem_store* m = mem_new();
    mem_array a = mem_plain("a.zarr");
    mem_array b = mem_plain("b.zarr");
    damacy_config c = config_of(m, 1);
    damacy_sample s[2];
    popper poppers[POPPERS];
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    mem_put_array(m, &b);
    mem_find(m, "a.zarr/c/0/0/0")->read_fault = 1;
    mem_find(m, "b.zarr/c/0/0/0")->size = 7; /* fails differently, and sooner */
    s[0] = mem_sample(&a, 0, 0, 0, 8);
    s[1] = mem_sample(&b, 0, 0, 0, 8);
    mem_pause(m, 1);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 2, NULL, &err), DAMACY_OK);
    for (int i = 0; i < POPPERS; i++) {
        memset(&poppers[i], 0, sizeof poppers[i]);
        poppers[i].d = d;
        CHECK_EQ(pthread_create(&poppers[i].thread, NULL, popper_main, &poppers[i]), 0);
    }
    usleep(20000); /* so that most of them wait; any order gives the same */
    mem_pause(m, 0);
    for (int i = 0; i < POPPERS; i++) {
        pthread_join(poppers[i].thread, NULL);
        CHECK_EQ(poppers[i].status, DAMACY_IO);
        CHECK_EQ(poppers[i].err.sample, 0);
        CHECK_STR(poppers[i].err.uri, "a.zarr");
        CHECK_STR(poppers[i].err.chunk, "c/0/0/0");
    }
    damacy_destroy(d);
    mem_free(m);
}

TEST_MAIN
