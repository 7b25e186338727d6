/* s25 to s29: what is stored, missing, damaged or cut short, and what that becomes. */
#include "tests/pipeline/semantics.h"
#include <blosc.h>
#include <math.h>
#include <zstd.h>

TEST(s25_what_is_not_stored_is_the_fill_value)
{
    static const struct {
        const char* data_type;
        int item_size;
        const char* fill;
        float value;
    } cases[] = {{"uint16", 2, "0", 0.0f},
                 {"int16", 2, "-1", -1.0f},
                 {"uint16", 2, "42", 42.0f},
                 {"float32", 4, "\"NaN\"", NAN},
                 {"float32", 4, "\"-Infinity\"", -INFINITY},
                 {"float64", 8, "0.5", 0.5f}};
    static float got[20 * 20 * 20];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int sharded = 0; sharded < 3; sharded++) {
            mem_store* m = mem_new();
            mem_array a = mem_plain("f.zarr");
            damacy_config c = config_of(m, 1);
            damacy_sample s = mem_sample(&a, 10, 11, 12, 20);
            damacy_error err;
            size_t n = 0;
            size_t n_filled = 0;
            int64_t at[4];
            a.data_type = cases[i].data_type;
            a.item_size = cases[i].item_size;
            a.fill = cases[i].fill;
            a.is_missing_odd = 1;
            for (int k = 0; k < 3 && sharded; k++) {
                a.shard[k] = sharded == 1 ? 32 : 16; /* 16: whole shards are missing */
            }
            mem_put_array(m, &a);
            CHECK_EQ(read_one(m, &c, &s, got, sizeof got, &err), DAMACY_OK);
            for (at[0] = 10; at[0] < 30; at[0]++) {
                for (at[1] = 11; at[1] < 31; at[1]++) {
                    for (at[2] = 12; at[2] < 32; at[2]++) {
                        const float v = got[n++];
                        if (mem_chunk_number(&a, at) % 2 == 1) {
                            CHECK(isnan(cases[i].value) ? isnan(v) : v == cases[i].value);
                            n_filled++;
                        } else if (a.item_size == 2 && cases[i].value >= 0) {
                            CHECK(v == (float)mem_value(&a, at));
                        }
                    }
                }
            }
            CHECK(n_filled > 0 && n_filled < n);
            mem_free(m);
        }
    }
}

static mem_array shard_of(const char* uri, int index_at_start)
{
    mem_array a = mem_plain(uri);

    a.shard[0] = a.shard[1] = a.shard[2] = 32;
    a.index_at_start = index_at_start;
    return a;
}

enum { INDEX_SIZE = 16 * 8 + 4 };

/* Writes an entry of the first shard's index, and its checksum anew. */
static void set_entry(mem_store* m, const mem_array* a, int entry, uint64_t offset, uint64_t size)
{
    char key[64];
    mem_object* o;
    uint8_t* index;
    uint32_t crc;

    (void)snprintf(key, sizeof key, "%s/c/0/0/0", a->uri);
    o = mem_find(m, key);
    index = o->bytes + (a->index_at_start ? 0 : o->size - INDEX_SIZE);
    memcpy(index + 16 * entry, &offset, 8);
    memcpy(index + 16 * entry + 8, &size, 8);
    crc = mem_crc32c(index, INDEX_SIZE - 4);
    memcpy(index + INDEX_SIZE - 4, &crc, 4);
}

TEST(s26_a_damaged_shard_is_an_error_of_its_index)
{
    const uint64_t none = UINT64_MAX;

    for (int start = 0; start < 2; start++) {
        mem_store* m = mem_new();
        mem_array a = shard_of("s.zarr", start);
        damacy_config c = config_of(m, 1);
        damacy_sample s = mem_sample(&a, 0, 0, 0, 16);
        damacy_error err;
        mem_object* o;
        size_t size;
        uint8_t* index;
        mem_put_array(m, &a);
        o = mem_find(m, "s.zarr/c/0/0/0");
        size = o->size;
        index = o->bytes + (start ? 0 : size - INDEX_SIZE);
        for (int i = 0; i < INDEX_SIZE; i += 11) {
            index[i] ^= 0x10;
            CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_DECODE);
            CHECK_EQ(err.stage, DAMACY_STAGE_INDEX);
            CHECK_STR(err.chunk, "c/0/0/0");
            index[i] ^= 0x10;
        }
        for (size_t cut = 0; cut < INDEX_SIZE; cut += 33) {
            o->size = cut; /* shorter than the index, and empty */
            CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_DECODE);
        }
        o->size = size;
        set_entry(m, &a, 0, none, 8192); /* half a sentinel */
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_DECODE);
        set_entry(m, &a, 0, 0, none);
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_DECODE);
        set_entry(m, &a, 0, size - 8191, 8192); /* a byte too far */
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_DECODE);
        set_entry(m, &a, 0, 0, 0); /* no bytes for a chunk that has some */
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_DECODE);
        set_entry(m, &a, 0, none, none); /* a whole one */
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_OK);
        o->fault = DAMACY_IO;
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_IO);
        o->fault = DAMACY_OK;
        mem_free(m);
    }
}

/* ---- many layouts in one batch ---- */

static size_t encode_zstd(void* context, uint64_t number, const uint8_t* raw, size_t n,
                          uint8_t* out)
{
    ZSTD_CCtx* z = ZSTD_createCCtx();
    size_t size;

    (void)ZSTD_CCtx_setParameter(z, ZSTD_c_compressionLevel, (int)(number % 7));
    (void)ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, context != NULL);
    size = ZSTD_compress2(z, out, 2 * n + 65536, raw, n);
    (void)ZSTD_freeCCtx(z);
    return size;
}

static size_t encode_blosc(void* context, uint64_t number, const uint8_t* raw, size_t n,
                           uint8_t* out)
{
    const int item = *(const int*)context;
    const int size = blosc_compress_ctx(5, (int)(number % 3), (size_t)item, n, raw, out,
                                        n + BLOSC_MAX_OVERHEAD, "zstd", 0, 1);

    return size > 0 ? (size_t)size : 0;
}

#define ZSTD_CODECS(sum) \
    "[" SCENE_BYTES ",{\"name\":\"zstd\",\"configuration\":{\"level\":3,\"checksum\":" sum "}}]"
#define BLOSC_CODECS(type)                                                                     \
    "[" SCENE_BYTES ",{\"name\":\"blosc\",\"configuration\":{\"cname\":\"zstd\",\"clevel\":5," \
    "\"shuffle\":\"shuffle\",\"typesize\":" type ",\"blocksize\":0}}]"

static int scene_equal_f32(const scene* s, const damacy_interval* box, const float* got)
{
    for (int64_t z = box[0].begin; z < box[0].end; z++) {
        for (int64_t y = box[1].begin; y < box[1].end; y++) {
            for (int64_t x = box[2].begin; x < box[2].end; x++) {
                const size_t i = (size_t)((z * s->shape[1] + y) * s->shape[2] + x);
                uint32_t value = 0;
                memcpy(&value, s->voxels + i * (size_t)s->item_size, (size_t)s->item_size);
                if (*got++ != (float)value) {
                    return 0;
                }
            }
        }
    }
    return 1;
}

TEST(s27_all_layouts_codecs_and_types_share_a_batch)
{
    enum { SCENES = 4, SHARDS = 3, N = 28 };
    static const int64_t shape[3] = {33, 34, 35};
    static const int64_t chunk[3] = {16, 17, 18};
    static int item[SCENES] = {2, 1, 4, 2};
    static const char* const types[SCENES] = {"uint16", "uint8", "int32", "uint16"};
    static const char* const uris[SCENES] = {"zstd", "blosc1", "blosc4", "sum"};
    mem_store* m = mem_new();
    uint64_t seed = test_seed();
    scene scenes[SCENES];
    mem_array arrays[SHARDS];
    damacy_config c = config_of(m, N);
    damacy_sample samples[N];
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;

    for (int i = 0; i < SCENES; i++) {
        scenes[i] = scene_make(uris[i], 3, shape, chunk, types[i], item[i], 0, &seed);
        scenes[i].codecs = i == 0   ? ZSTD_CODECS("false")
                           : i == 1 ? BLOSC_CODECS("1")
                           : i == 2 ? BLOSC_CODECS("4")
                                    : ZSTD_CODECS("true");
        scenes[i].encode = i == 0 || i == 3 ? encode_zstd : encode_blosc;
        scenes[i].context = i == 0 ? NULL : &item[i];
        scene_put(m, &scenes[i]);
    }
    for (int i = 0; i < SHARDS; i++) {
        arrays[i] = i == 2 ? mem_plain("plain") : shard_of(i ? "start" : "end", i);
        arrays[i].seed = 100u * (uint32_t)i;
        mem_put_array(m, &arrays[i]);
    }
    for (int i = 0; i < N; i++) {
        const int k = i % (SCENES + SHARDS);
        samples[i] = mem_sample(&arrays[0], i % 13, i % 11, i % 7, 20);
        samples[i].uri = k < SCENES ? uris[k] : arrays[k - SCENES].uri;
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, samples, N, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    for (int i = 0; i < N; i++) {
        const int k = i % (SCENES + SHARDS);
        const float* got = (const float*)info.ptr + i * 8000;
        CHECK(k < SCENES ? scene_equal_f32(&scenes[k], samples[i].box, got)
                         : mem_equal_f32(&arrays[k - SCENES], &samples[i], got, 0.0f));
    }
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    for (int i = 0; i < SCENES; i++) {
        free(scenes[i].voxels);
    }
    mem_free(m);
}

/* Ours: cut data behind an intact index is an error for raw chunks too. */
TEST(s28_data_cut_behind_an_intact_index_is_an_error)
{
    mem_store* m = mem_new();
    mem_array a = shard_of("s.zarr", 1);
    damacy_config c = config_of(m, 1);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 32);
    damacy_error err;
    mem_object* o;
    size_t size;

    mem_put_array(m, &a);
    o = mem_find(m, "s.zarr/c/0/0/0");
    size = o->size;
    for (size_t cut = 1; cut < size - INDEX_SIZE; cut += 4099) {
        o->size = size - cut;
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_DECODE);
        CHECK_HAS(err.chunk, "c/0/0/0");
        CHECK_HAS(err.message, "outside");
    }
    o->size = size;
    o->read_fault = 2; /* the size is promised, the bytes end early */
    o->n_reads = 0;
    CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_IO);
    o->read_fault = 0;
    CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_OK);
    mem_free(m);
}

TEST(s28_a_cut_frame_is_an_error)
{
    static const int64_t shape[3] = {16, 16, 16};
    mem_store* m = mem_new();
    uint64_t seed = test_seed();
    scene s = scene_make("z", 3, shape, shape, "uint16", 2, 0, &seed);
    damacy_error err;
    mem_object* o;
    size_t size;

    s.codecs = ZSTD_CODECS("false");
    s.encode = encode_zstd;
    scene_put(m, &s);
    o = mem_find(m, "z/c/0/0/0");
    size = o->size;
    for (size_t cut = 1; cut <= size; cut += size / 11) {
        o->size = size - cut;
        CHECK_EQ(scene_status(m, &s, &err), DAMACY_DECODE);
        CHECK_STR(err.chunk, "c/0/0/0");
    }
    o->size = size;
    CHECK_EQ(scene_status(m, &s, &err), DAMACY_OK);
    free(s.voxels);
    mem_free(m);
}

/* Ours: with a checksum in the frame, a flipped bit is an error unless the voxels are right anyway;
 * without one the decoded size at least is that of the chunk. */
TEST(s29_a_flipped_bit_under_a_checksum_never_gives_wrong_voxels)
{
    static const int64_t shape[3] = {10, 11, 12};
    static int yes = 1;
    mem_store* m = mem_new();
    uint64_t seed = test_seed();
    scene s = scene_make("z", 3, shape, shape, "uint16", 2, 0, &seed);
    mem_object* o;
    int n_told = 0;
    int n = 0;

    s.codecs = ZSTD_CODECS("true");
    s.encode = encode_zstd;
    s.context = &yes;
    scene_put(m, &s);
    o = mem_find(m, "z/c/0/0/0");
    for (size_t bit = 0; bit < 8 * o->size; bit += 1 + test_random(&seed) % (o->size / 6)) {
        damacy_interval box[4];
        damacy_error err;
        damacy_status status;
        int is_equal = 0;
        scene_whole(&s, box);
        o->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        status = scene_read(m, &s, box, &is_equal, &err);
        o->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(status == DAMACY_OK ? is_equal
                                  : status == DAMACY_DECODE || status == DAMACY_UNSUPPORTED);
        if (status != DAMACY_OK) {
            CHECK_STR(err.chunk, "c/0/0/0");
            n_told++;
        }
        n++;
    }
    printf("# %d of %d flips told\n", n_told, n);
    CHECK(n_told * 10 > n * 9);
    free(s.voxels);
    mem_free(m);
}

TEST_MAIN
