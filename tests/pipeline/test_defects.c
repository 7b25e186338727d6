/* Thirteen ways to deliver wrong voxels without an error, each shown not to happen. The writers are
 * c-blosc and libzstd; what comes out is compared byte for byte with what went in. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tests/test.h"
#include "tests/pipeline/scene.h"
#include <blosc.h>
#include <zstd.h>

typedef struct blosc_how {
    const char* compressor;
    int shuffle;
    int typesize;
    int blocksize;
    int clevel;
} blosc_how;

static size_t encode_blosc(void* context, uint64_t number, const uint8_t* raw, size_t n,
                           uint8_t* out)
{
    const blosc_how* how = (const blosc_how*)context;
    int size;

    (void)number;
    size = blosc_compress_ctx(how->clevel, how->shuffle, (size_t)how->typesize, n, raw, out,
                              n + BLOSC_MAX_OVERHEAD, how->compressor, (size_t)how->blocksize, 1);
    return size > 0 ? (size_t)size : 0;
}

/* Metadata says one layout; the header of each chunk says what holds. */
static const char* blosc_codecs(const blosc_how* how, char* text, size_t size)
{
    static const char* const shuffles[] = {"noshuffle", "shuffle", "bitshuffle"};

    (void)snprintf(text, size,
                   "[" SCENE_BYTES ",{\"name\":\"blosc\",\"configuration\":{\"cname\":\"%s\","
                   "\"clevel\":%d,\"shuffle\":\"%s\",\"typesize\":%d,\"blocksize\":%d}}]",
                   how->compressor, how->clevel, shuffles[how->shuffle], how->typesize,
                   how->blocksize);
    return text;
}

static const char* const compressors[] = {"zstd", "lz4", "lz4hc", "zlib"};

static size_t encode_zstd(void* context, uint64_t number, const uint8_t* raw, size_t n,
                          uint8_t* out)
{
    (void)context;
    (void)number;
    return ZSTD_compress(out, 2 * n + 65536, raw, n, 3);
}

TEST(w1_a_partial_last_blosc_block_is_unshuffled_by_its_own_length)
{
    static const struct {
        const char* data_type;
        int item_size;
    } types[] = {{"uint16", 2}, {"float32", 4}, {"float64", 8}};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();

    for (int shuffle = 0; shuffle <= 2; shuffle++) {
        for (size_t t = 0; t < 3; t++) {
            for (size_t k = 0; k < 4; k++) {
                const int64_t shape[3] = {30, 25, 21};
                const int64_t chunk[3] = {20, 25, 11};
                blosc_how how = {compressors[k], shuffle, types[t].item_size, 4096, 5};
                char codecs[512];
                scene s = scene_make("w1", 3, shape, chunk, types[t].data_type, types[t].item_size,
                                     0, &seed);
                s.codecs = blosc_codecs(&how, codecs, sizeof codecs);
                s.encode = encode_blosc;
                s.context = &how;
                CHECK(5500 * types[t].item_size % 4096 != 0);
                CHECK(scene_is_exact(m, &s));
                free(s.voxels);
            }
        }
    }
    mem_free(m);
}

TEST(w2_a_memcpyed_blosc_chunk_is_taken_from_behind_its_header)
{
    uint64_t seed = test_seed();
    mem_store* m = mem_new();

    for (int clevel = 0; clevel <= 5; clevel += 5) {
        const int64_t shape[3] = {24, 24, 24};
        const int64_t chunk[3] = {16, 16, 16};
        blosc_how how = {"zstd", BLOSC_SHUFFLE, 2, 1024, clevel};
        char codecs[512];
        scene s = scene_make("w2", 3, shape, chunk, "uint16", 2, clevel ? 1 : 0, &seed);
        s.codecs = blosc_codecs(&how, codecs, sizeof codecs);
        s.encode = encode_blosc;
        s.context = &how;
        CHECK(scene_is_exact(m, &s));
        CHECK(mem_find(m, "w2/c/0/0/0")->bytes[2] & BLOSC_MEMCPYED);
        free(s.voxels);
    }
    mem_free(m);
}

TEST(w3_bitshuffle_of_blocks_whose_elements_are_no_multiple_of_8)
{
    static const int blocksizes[] = {0, 1002, 2050, 4098};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();

    for (size_t i = 0; i < 4; i++) {
        for (int kind = 0; kind <= 2; kind++) {
            const int64_t shape[3] = {99, 99, 3};
            blosc_how how = {i % 2 ? "lz4" : "zstd", BLOSC_BITSHUFFLE, 2, blocksizes[i], 5};
            char codecs[512];
            scene s = scene_make("w3", 3, shape, shape, "uint16", 2, kind, &seed);
            s.codecs = blosc_codecs(&how, codecs, sizeof codecs);
            s.encode = encode_blosc;
            s.context = &how;
            CHECK(scene_is_exact(m, &s));
            free(s.voxels);
        }
    }
    mem_free(m);
}

TEST(w4_every_chunk_key_encoding_finds_the_chunks)
{
    static const struct {
        const char* json;
        const char* prefix;
        char separator;
    } cases[] = {{"{\"name\":\"default\"}", "c", '/'},
                 {"{\"name\":\"default\",\"configuration\":{\"separator\":\"/\"}}", "c", '/'},
                 {"{\"name\":\"default\",\"configuration\":{\"separator\":\".\"}}", "c", '.'},
                 {"{\"name\":\"v2\"}", "", '.'},
                 {"{\"name\":\"v2\",\"configuration\":{\"separator\":\".\"}}", "", '.'},
                 {"{\"name\":\"v2\",\"configuration\":{\"separator\":\"/\"}}", "", '/'}};
    uint64_t seed = test_seed();

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int rank = 0; rank <= 3; rank++) {
            const int64_t shape[3] = {20, 9, 11};
            const int64_t chunk[3] = {7, 4, 5};
            mem_store* m = mem_new();
            scene s = scene_make("w4", rank, shape, chunk, "uint16", 2, 1, &seed);
            s.encoding = cases[i].json;
            s.prefix = cases[i].prefix;
            s.separator = cases[i].separator;
            CHECK(scene_is_exact(m, &s));
            free(s.voxels);
            mem_free(m);
        }
    }
}

/* Context: bytes per voxel. */
static size_t encode_swapped(void* context, uint64_t number, const uint8_t* raw, size_t n,
                             uint8_t* out)
{
    const size_t item = *(const size_t*)context;

    (void)number;
    for (size_t i = 0; i < n; i++) {
        out[i] = raw[i / item * item + item - 1 - i % item];
    }
    return n;
}

static size_t encode_swapped_zstd(void* context, uint64_t number, const uint8_t* raw, size_t n,
                                  uint8_t* out)
{
    uint8_t* swapped = (uint8_t*)malloc(n);
    const size_t size = ZSTD_compress(out, 2 * n + 65536, swapped,
                                      encode_swapped(context, number, raw, n, swapped), 1);

    free(swapped);
    return size;
}

TEST(w5_big_endian_voxels_are_swapped)
{
    static const struct {
        const char* data_type;
        size_t item_size;
    } types[] = {{"uint16", 2},  {"int16", 2},   {"float16", 2}, {"uint32", 4}, {"int32", 4},
                 {"float32", 4}, {"float64", 8}, {"int64", 8},   {"uint8", 1}};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const int64_t shape[3] = {17, 13, 9};
        const int64_t chunk[3] = {8, 13, 4};
        size_t item = types[i].item_size;
        scene s = scene_make("w5", 3, shape, chunk, types[i].data_type, (int)item, 0, &seed);
        s.context = &item;
        s.codecs = "[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"big\"}}]";
        s.encode = encode_swapped;
        CHECK(scene_is_exact(m, &s));
        s.codecs = "[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"big\"}},"
                   "{\"name\":\"zstd\",\"configuration\":{\"level\":1,\"checksum\":false}}]";
        s.encode = encode_swapped_zstd;
        CHECK(scene_is_exact(m, &s));
        free(s.voxels);
    }
    mem_free(m);
}

typedef struct transpose_how {
    int order[3];
    int64_t chunk[3];
    size_t item;
    int is_sharded; /* one inner chunk per half of the first encoded axis */
} transpose_how;

/* Axis j of what is stored is axis order[j] of the array (Zarr v3, transpose codec). */
static size_t encode_transposed(void* context, uint64_t number, const uint8_t* raw, size_t n,
                                uint8_t* out)
{
    const transpose_how* how = (const transpose_how*)context;
    int64_t at[3];
    size_t done = 0;

    (void)number;
    for (int64_t i = 0; i < how->chunk[how->order[0]]; i++) {
        for (int64_t j = 0; j < how->chunk[how->order[1]]; j++) {
            for (int64_t k = 0; k < how->chunk[how->order[2]]; k++) {
                at[how->order[0]] = i;
                at[how->order[1]] = j;
                at[how->order[2]] = k;
                memcpy(out + done,
                       raw + (size_t)((at[0] * how->chunk[1] + at[1]) * how->chunk[2] + at[2]) *
                                 how->item,
                       how->item);
                done += how->item;
            }
        }
    }
    if (how->is_sharded) {
        const uint64_t half = done / 2;
        const uint64_t index[4] = {0, half, half, half};
        uint32_t crc;
        memcpy(out + done, index, 32);
        crc = mem_crc32c(out + done, 32);
        memcpy(out + done + 32, &crc, 4);
        done += 36;
    }
    return n ? done : 0;
}

TEST(w6_transpose_is_obeyed_in_every_order)
{
    static const int orders[][3] = {{2, 0, 1}, {1, 2, 0}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();

    for (size_t i = 0; i < 5; i++) {
        const int64_t shape[3] = {11, 17, 13};
        transpose_how how = {{orders[i][0], orders[i][1], orders[i][2]}, {4, 6, 8}, 2, 0};
        char codecs[256];
        scene s = scene_make("w6", 3, shape, how.chunk, "uint16", 2, 1, &seed);
        (void)snprintf(
            codecs, sizeof codecs,
            "[{\"name\":\"transpose\",\"configuration\":{\"order\":[%d,%d,%d]}}," SCENE_BYTES "]",
            how.order[0], how.order[1], how.order[2]);
        s.codecs = codecs;
        s.encode = encode_transposed;
        s.context = &how;
        CHECK(scene_is_exact(m, &s));
        free(s.voxels);
    }
    mem_free(m);
}

TEST(w6_transpose_outside_sharding_is_obeyed)
{
    static const int orders[][3] = {{2, 0, 1}, {1, 2, 0}};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();

    for (size_t i = 0; i < 2; i++) {
        const int64_t shape[3] = {11, 17, 13};
        transpose_how how = {{orders[i][0], orders[i][1], orders[i][2]}, {4, 6, 8}, 2, 1};
        char codecs[700];
        scene s = scene_make("w6", 3, shape, how.chunk, "uint16", 2, 1, &seed);
        (void)snprintf(
            codecs, sizeof codecs,
            "[{\"name\":\"transpose\",\"configuration\":{\"order\":[%d,%d,%d]}},"
            "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":"
            "[%lld,%lld,%lld],\"codecs\":[" SCENE_BYTES "],\"index_codecs\":[" SCENE_BYTES
            ",{\"name\":\"crc32c\"}],\"index_location\":\"end\"}}]",
            how.order[0], how.order[1], how.order[2], (long long)how.chunk[how.order[0]] / 2,
            (long long)how.chunk[how.order[1]], (long long)how.chunk[how.order[2]]);
        s.codecs = codecs;
        s.encode = encode_transposed;
        s.context = &how;
        CHECK(scene_is_exact(m, &s));
        free(s.voxels);
    }
    mem_free(m);
}

/* zstd and then crc32c. */
static size_t encode_zstd_crc(void* context, uint64_t number, const uint8_t* raw, size_t n,
                              uint8_t* out)
{
    const size_t size = encode_zstd(context, number, raw, n, out);
    const uint32_t crc = mem_crc32c(out, size);

    memcpy(out + size, &crc, 4);
    return size + 4;
}

TEST(w7_a_checksum_behind_the_compressor_is_compared)
{
    const int64_t shape[3] = {20, 20, 20};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();
    scene s = scene_make("w7", 3, shape, shape, "uint16", 2, 0, &seed);
    damacy_error err;
    mem_object* o;

    s.codecs =
        "[" SCENE_BYTES ",{\"name\":\"zstd\",\"configuration\":{\"level\":3,\"checksum\":false}},"
        "{\"name\":\"crc32c\"}]";
    s.encode = encode_zstd_crc;
    CHECK(scene_is_exact(m, &s));
    o = mem_find(m, "w7/c/0/0/0");
    for (size_t i = 1; i <= 4; i++) {
        o->bytes[o->size - i] ^= 0x10;
        CHECK_EQ(scene_status(m, &s, &err), DAMACY_DECODE);
        CHECK_STR(err.chunk, "c/0/0/0");
        CHECK_HAS(err.message, "crc32c");
        o->bytes[o->size - i] ^= 0x10;
    }
    o->bytes[o->size / 2] ^= 1;
    CHECK_EQ(scene_status(m, &s, &err), DAMACY_DECODE);
    o->bytes[o->size / 2] ^= 1;
    o->size -= 4; /* a frame without its checksum */
    CHECK_EQ(scene_status(m, &s, &err), DAMACY_DECODE);
    free(s.voxels);
    mem_free(m);
}

TEST(w8_a_short_read_is_never_taken_for_data)
{
    const int64_t shape[3] = {20, 20, 20};
    const int64_t chunk[3] = {10, 20, 20};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();
    scene s = scene_make("w8", 3, shape, chunk, "uint16", 2, 1, &seed);
    damacy_error err;
    mem_object* o;

    CHECK(scene_is_exact(m, &s));
    o = mem_find(m, "w8/c/1/0/0");
    o->read_fault = 3; /* comes in pieces */
    CHECK_EQ(scene_status(m, &s, &err), DAMACY_OK);
    o->read_fault = 2; /* ends early, after promising its whole size */
    o->n_reads = 0;
    CHECK_EQ(scene_status(m, &s, &err), DAMACY_IO);
    CHECK_STR(err.chunk, "c/1/0/0");
    CHECK(err.offset != UINT64_MAX);
    o->read_fault = 0;
    for (size_t cut = 1; cut <= 8000; cut = cut * 2 + 1) { /* is shorter than it must be */
        const size_t size = o->size;
        o->size -= cut;
        CHECK_EQ(scene_status(m, &s, &err), DAMACY_DECODE);
        CHECK_STR(err.chunk, "c/1/0/0");
        o->size = size;
    }
    CHECK_EQ(scene_status(m, &s, &err), DAMACY_OK);
    free(s.voxels);
    mem_free(m);
}

TEST(w9_a_chunk_of_another_decoded_size_is_refused)
{
    static const size_t wrong[] = {0, 1, 15998, 15999, 16001, 16002, 32000};
    const int64_t shape[3] = {20, 20, 20};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();
    scene s = scene_make("w9", 3, shape, shape, "uint16", 2, 0, &seed);
    uint8_t* longer = (uint8_t*)calloc(1, 40000);
    uint8_t* stored = (uint8_t*)malloc(200000);
    blosc_how how = {"lz4", BLOSC_SHUFFLE, 2, 0, 5};
    char codecs[512];
    damacy_error err;

    memcpy(longer, s.voxels, 16000);
    for (int kind = 0; kind < 3; kind++) {
        s.codecs = "[" SCENE_BYTES "]";
        s.encode = NULL;
        if (kind == 1) {
            s.codecs = "[" SCENE_BYTES
                       ",{\"name\":\"zstd\",\"configuration\":{\"level\":3,\"checksum\":false}}]";
            s.encode = encode_zstd;
        } else if (kind == 2) {
            s.codecs = blosc_codecs(&how, codecs, sizeof codecs);
            s.encode = encode_blosc;
            s.context = &how;
        }
        CHECK(scene_is_exact(m, &s));
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            size_t n = wrong[i];
            memcpy(stored, longer, n);
            if (kind == 1) {
                n = encode_zstd(NULL, 0, longer, n, stored);
            } else if (kind == 2) {
                n = encode_blosc(&how, 0, longer, n, stored);
            }
            mem_put(m, "w9/c/0/0/0", stored, n);
            CHECK_EQ(scene_status(m, &s, &err), DAMACY_DECODE);
            CHECK_STR(err.chunk, "c/0/0/0");
        }
    }
    free(longer);
    free(stored);
    free(s.voxels);
    mem_free(m);
}

static size_t encode_blosc_varied(void* context, uint64_t number, const uint8_t* raw, size_t n,
                                  uint8_t* out)
{
    static const int typesizes[] = {1, 2, 4, 8, 2, 3, 16};
    static const int blocksizes[] = {0, 512, 4096, 1000, 0, 777, 2048, 65536};
    blosc_how how;

    how.compressor = compressors[number % 4];
    how.shuffle = (int)(number / 2 % 3);
    how.typesize = typesizes[number % 7];
    how.blocksize = blocksizes[number % 8];
    how.clevel = (int)(number % 10);
    return encode_blosc(&how, (uint64_t)(context != NULL), raw, n, out);
}

TEST(w10_blosc_layout_is_taken_from_each_chunk)
{
    const int64_t shape[3] = {40, 44, 37};
    const int64_t chunk[3] = {8, 9, 10};
    blosc_how how = {"zstd", BLOSC_SHUFFLE, 2, 0, 5};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();
    char codecs[512];

    for (int kind = 0; kind <= 2; kind++) {
        scene s = scene_make("w10", 3, shape, chunk, "uint16", 2, kind, &seed);
        s.codecs = blosc_codecs(&how, codecs, sizeof codecs);
        s.encode = encode_blosc_varied;
        CHECK(scene_is_exact(m, &s));
        free(s.voxels);
    }
    mem_free(m);
}

TEST(w11_odd_sizes_of_mixed_types_share_a_batch)
{
    enum { N = 24 };
    static const char* const uris[] = {"u8", "u16", "u32", "i64"};
    static const char* const types[] = {"uint8", "uint16", "uint32", "int64"};
    mem_store* m = mem_new();
    damacy_config c = scene_config(m, N, DAMACY_ON_ERROR_STOP);
    mem_array arrays[4];
    damacy_sample samples[N];
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;

    for (int i = 0; i < 4; i++) {
        arrays[i] = mem_plain(uris[i]);
        arrays[i].data_type = types[i];
        arrays[i].item_size = 1 << i;
        arrays[i].seed = (uint32_t)i * 31;
        for (int k = 0; k < 3; k++) {
            arrays[i].shape[k] = 40 + 3 * i;
            arrays[i].chunk[k] = 33;
        }
        mem_put_array(m, &arrays[i]);
    }
    for (int i = 0; i < N; i++) {
        samples[i] = mem_sample(&arrays[i % 4], i % 7, i % 5, i % 3, 33);
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, samples, N, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    for (int i = 0; i < N; i++) {
        CHECK(mem_equal_f32(&arrays[i % 4], &samples[i],
                            (const float*)info.ptr + (size_t)i * 33 * 33 * 33, 0));
    }
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST(w12_chunks_beyond_4_gib_of_a_shard_are_exact)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("w12");
    damacy_config c = scene_config(m, 1, DAMACY_ON_ERROR_STOP);
    damacy_sample sample = mem_sample(&a, 5, 6, 7, 24);
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;
    mem_object* o;
    uint64_t hole = (UINT64_C(4) << 30) + 12345;

    for (int i = 0; i < 3; i++) {
        a.shape[i] = a.shard[i] = 32;
    }
    mem_put_array(m, &a);
    o = mem_find(m, "w12/c/0/0/0");
    for (size_t i = 0; i < 8; i++) { /* moves every chunk behind a hole; half of them far more */
        uint8_t* at = o->bytes + o->size - 132 + 16 * i;
        uint64_t offset;
        memcpy(&offset, at, 8);
        offset += hole;
        memcpy(at, &offset, 8);
    }
    {
        const uint32_t crc = mem_crc32c(o->bytes + o->size - 132, 128);
        memcpy(o->bytes + o->size - 4, &crc, 4);
    }
    o->hole = hole;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &sample, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK(mem_equal_f32(&a, &sample, (const float*)info.ptr, 0));
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST(w12_voxels_beyond_4_gib_of_an_array_are_exact)
{
    mem_store* m = mem_new();
    scene s;
    damacy_config c = scene_config(m, 1, DAMACY_ON_ERROR_STOP);
    const int64_t place = (INT64_C(1) << 34) + 1000;
    uint16_t chunk[1024];
    uint16_t got[2048];
    damacy_sample sample;
    damacy_error err;

    memset(&s, 0, sizeof s);
    s.uri = "w12";
    s.rank = 1;
    s.shape[0] = INT64_C(1) << 36;
    s.chunk[0] = 1024;
    s.data_type = "uint16";
    s.codecs = "[" SCENE_BYTES "]";
    scene_put_metadata(m, &s);
    for (int i = 0; i < 1024; i++) {
        chunk[i] = (uint16_t)(i * 3 + 1);
    }
    mem_put(m, "w12/c/16777216", chunk, sizeof chunk); /* 2^34 / 1024 */
    memset(&sample, 0, sizeof sample);
    sample.uri = "w12";
    sample.rank = 1;
    sample.box[0].begin = place - 1024;
    sample.box[0].end = place + 1024;
    c.dtype = DAMACY_U16;
    CHECK_EQ(damacy_read(&c, &sample, got, sizeof got, &err), DAMACY_OK);
    for (int64_t i = 0; i < 2048; i++) {
        const int64_t at = place - 1024 + i - (INT64_C(1) << 34);
        CHECK_EQ(got[i], at >= 0 && at < 1024 ? chunk[at] : 0);
    }
    mem_free(m);
}

TEST(w13_a_held_batch_is_never_written_again)
{
    enum { SIDE = 16, VOXELS = SIDE * SIDE * SIDE };
    mem_store* m = mem_new();
    mem_array a = mem_plain("w13");
    damacy_config c = scene_config(m, 1, DAMACY_ON_ERROR_STOP);
    damacy_sample samples[66];
    damacy_batch held[2];
    damacy_batch_info_t info[2];
    damacy_batch batch;
    damacy_error err;
    damacy* d = NULL;

    mem_put_array(m, &a);
    c.batch_slots = 3;
    for (int i = 0; i < 66; i++) {
        samples[i] = mem_sample(&a, i % 25, (i * 7) % 25, (i * 11) % 25, SIDE);
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, samples, 4, NULL, &err), DAMACY_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(damacy_pop(d, &held[i], &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(held[i], &info[i]), DAMACY_OK);
    }
    for (int i = 2; i < 66; i++) {
        damacy_batch_info_t other;
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &other), DAMACY_OK);
        CHECK(other.ptr != info[0].ptr && other.ptr != info[1].ptr);
        CHECK(mem_equal_f32(&a, &samples[i], (const float*)other.ptr, 0));
        CHECK(mem_equal_f32(&a, &samples[0], (const float*)info[0].ptr, 0));
        CHECK(mem_equal_f32(&a, &samples[1], (const float*)info[1].ptr, 0));
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        if (i + 2 < 66) {
            CHECK_EQ(damacy_push(d, &samples[i + 2], 1, NULL, &err), DAMACY_OK);
        }
    }
    CHECK_EQ(damacy_release(held[0]), DAMACY_OK);
    CHECK_EQ(damacy_release(held[1]), DAMACY_OK);
    damacy_destroy(d);
    mem_free(m);
}

TEST_MAIN
