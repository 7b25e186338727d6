/* Forms of stored data that writers rarely produce but formats allow, through the whole library and
 * compared byte for byte; what usual writers produce is compared in tests/conformance. */
#include "tests/pipeline/semantics.h"
#include <blosc.h>
#include <zlib.h>
#include <zstd.h>

#define CODEC(name) "{\"name\":\"" name "\"}"

/* ---- Zstandard (RFC 8878 section 3.1) ---- */

enum { ONE_FRAME, MANY_FRAMES, SKIPPABLE_AROUND, WITHOUT_SIZE, WITH_CHECKSUM, MIXED, ZSTD_FORMS };

static size_t put_frame(uint8_t* out, size_t room, const uint8_t* raw, size_t n, int sized, int sum)
{
    ZSTD_CCtx* z = ZSTD_createCCtx();
    size_t size;

    (void)ZSTD_CCtx_setParameter(z, ZSTD_c_contentSizeFlag, sized);
    (void)ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, sum);
    size = ZSTD_compress2(z, out, room, raw, n);
    (void)ZSTD_freeCCtx(z);
    CHECK(!ZSTD_isError(size));
    return size;
}

/* A skippable frame of n bytes that are no frame. */
static size_t put_skippable(uint8_t* out, uint32_t n, int nibble)
{
    const uint32_t magic = 0x184d2a50u + (uint32_t)nibble;

    memcpy(out, &magic, 4);
    memcpy(out + 4, &n, 4);
    memset(out + 8, 0x28, n);
    return 8 + n;
}

static size_t encode_zstd(void* context, uint64_t number, const uint8_t* raw, size_t n,
                          uint8_t* out)
{
    const int form = *(const int*)context;
    const int many = form == MANY_FRAMES || form == MIXED;
    const int skips = form == SKIPPABLE_AROUND || form == MIXED;
    size_t size = 0;
    size_t done = 0;

    while (done < n || done == 0) {
        const size_t step = many ? n / 5 + 1 : n;
        const size_t part = step < n - done ? step : n - done;
        if (skips) {
            size += put_skippable(out + size, (uint32_t)(number * 7 % 300), (int)(number % 16));
        }
        size += put_frame(out + size, 2 * n + 4096, raw + done, part,
                          form != WITHOUT_SIZE && !(form == MIXED && done % 2),
                          form == WITH_CHECKSUM || form == MIXED);
        done += part;
    }
    if (skips) {
        size += put_skippable(out + size, 0, 15);
    }
    return size;
}

TEST(zstd_frames_of_every_form_decode_to_the_chunk)
{
    static const int64_t shape[3] = {50, 45, 70};
    static const int64_t chunk[3] = {32, 45, 64}; /* several blocks each */
    uint64_t seed = test_seed();
    mem_store* m = mem_new();

    for (int form = 0; form < ZSTD_FORMS; form++) {
        for (int kind = 0; kind < 3; kind++) {
            scene s = scene_make("zstd", 3, shape, chunk, "uint16", 2, kind, &seed);
            s.codecs = "[" SCENE_BYTES "," CODEC("zstd") "]";
            s.encode = encode_zstd;
            s.context = &form;
            CHECK(scene_is_exact(m, &s));
            free(s.voxels);
        }
    }
    mem_free(m);
}

/* The decoded size is that of the chunk, whatever the frames say. */
TEST(zstd_frames_of_another_total_size_are_refused)
{
    static const int64_t shape[1] = {5000};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();
    scene s = scene_make("zstd", 1, shape, shape, "uint8", 1, 0, &seed);

    s.codecs = "[\"bytes\",\"zstd\"]";
    scene_put(m, &s);
    for (int by = -2; by <= 2; by++) {
        for (int sized = 0; sized < 2; sized++) {
            uint8_t raw[5002] = {0};
            uint8_t out[8192];
            size_t size;
            damacy_error err;
            memcpy(raw, s.voxels, 5000);
            size = put_frame(out, sizeof out, raw, 2500, sized, 1);
            size +=
                put_frame(out + size, sizeof out - size, raw + 2500, (size_t)(2500 + by), sized, 1);
            mem_put(m, "zstd/c/0", out, size);
            CHECK_EQ(scene_status(m, &s, &err), by == 0 ? DAMACY_OK : DAMACY_DECODE);
        }
    }
    free(s.voxels);
    mem_free(m);
}

/* ---- blosc ---- */

typedef struct blosc_how {
    const char* compressor;
    int shuffle;
    int typesize;
    int blocksize;
    int level;
} blosc_how;

static size_t encode_blosc(void* context, uint64_t number, const uint8_t* raw, size_t n,
                           uint8_t* out)
{
    const blosc_how* how = (const blosc_how*)context;
    const int size =
        blosc_compress_ctx(how->level, how->shuffle, (size_t)how->typesize, n, raw, out,
                           n + BLOSC_MAX_OVERHEAD, how->compressor, (size_t)how->blocksize, 1);

    (void)number;
    CHECK(size > 0);
    return (size_t)size;
}

/* Every compressor and filter, with streams split by byte and not, blocks that do not divide the
 * chunk, and chunks stored as they are. */
TEST(blosc_chunks_of_every_form_decode_to_the_chunk)
{
    static const char* const compressors[] = {"zstd", "lz4", "lz4hc", "zlib"};
    static const int modes[] = {BLOSC_ALWAYS_SPLIT, BLOSC_NEVER_SPLIT, BLOSC_FORWARD_COMPAT_SPLIT};
    static const int64_t shape[2] = {90, 131};
    static const int64_t chunk[2] = {61, 67};
    uint64_t seed = test_seed();
    int n_split = 0;
    int n_unsplit = 0;
    int n_stored = 0;
    mem_store* m = mem_new();

    for (int i = 0; i < 4 * 3 * 3 * 2; i++) {
        blosc_how how;
        scene s;
        const uint8_t* first;
        how.compressor = compressors[i % 4];
        how.shuffle = i / 4 % 3;
        how.typesize = i % 2 ? 4 : 2;
        how.blocksize = 2048;
        how.level = i % 7 == 6 ? 0 : 5;
        blosc_set_splitmode(modes[i / 12 % 3]);
        s = scene_make("blosc", 2, shape, chunk, i % 2 ? "float32" : "uint16", how.typesize, i / 36,
                       &seed);
        s.codecs = "[" SCENE_BYTES "," CODEC("blosc") "]"; /* the header says all there is */
        s.encode = encode_blosc;
        s.context = &how;
        CHECK(scene_is_exact(m, &s));
        first = mem_find(m, "blosc/c/0/0")->bytes;
        n_stored += (first[2] & 2) != 0;
        n_split += (first[2] & 0x12) == 0;
        n_unsplit += (first[2] & 0x12) == 0x10;
        free(s.voxels);
    }
    blosc_set_splitmode(BLOSC_FORWARD_COMPAT_SPLIT);
    printf("# %d split, %d not, %d stored\n", n_split, n_unsplit, n_stored);
    CHECK(n_split > 4 && n_unsplit > 4 && n_stored > 4);
    mem_free(m);
}

/* ---- gzip (RFC 1952: members follow each other) ---- */

static size_t encode_members(void* context, uint64_t number, const uint8_t* raw, size_t n,
                             uint8_t* out)
{
    size_t size = 0;
    size_t done = 0;

    (void)context;
    while (done < n) {
        const size_t part = n - done < n / 3 + 1 ? n - done : n / 3 + 1;
        z_stream z;
        memset(&z, 0, sizeof z);
        CHECK_EQ(deflateInit2(&z, (int)(number % 10), Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY),
                 Z_OK);
        z.next_in = (Bytef*)(uintptr_t)(raw + done);
        z.avail_in = (uInt)part;
        z.next_out = out + size;
        z.avail_out = (uInt)(2 * n + 4096);
        CHECK_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
        size += z.total_out;
        (void)deflateEnd(&z);
        done += part;
    }
    return size;
}

TEST(gzip_members_make_one_chunk)
{
    static const int64_t shape[2] = {77, 91};
    static const int64_t chunk[2] = {40, 33};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();

    for (int kind = 0; kind < 3; kind++) {
        scene s = scene_make("gzip", 2, shape, chunk, "int32", 4, kind, &seed);
        s.codecs = "[" SCENE_BYTES "," CODEC("gzip") "]";
        s.encode = encode_members;
        CHECK(scene_is_exact(m, &s));
        free(s.voxels);
    }
    mem_free(m);
}

/* ---- crc32c as a data codec, bytes without configuration, names as short hands ---- */

static size_t encode_sum(void* context, uint64_t number, const uint8_t* raw, size_t n, uint8_t* out)
{
    const uint32_t crc = mem_crc32c(raw, n);

    (void)context;
    (void)number;
    memcpy(out, raw, n);
    memcpy(out + n, &crc, 4);
    return n + 4;
}

TEST(crc32c_is_compared_for_every_bit_of_a_chunk)
{
    static const int64_t shape[1] = {40};
    uint64_t seed = test_seed();
    mem_store* m = mem_new();
    scene s = scene_make("sum", 1, shape, shape, "uint8", 1, 1, &seed);
    mem_object* o;

    s.codecs = "[\"bytes\",\"crc32c\"]"; /* a type of one byte has no byte order to configure */
    s.encode = encode_sum;
    CHECK(scene_is_exact(m, &s));
    o = mem_find(m, "sum/c/0");
    for (size_t bit = 0; bit < 8 * o->size; bit += 5) {
        damacy_error err;
        o->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_EQ(scene_status(m, &s, &err), DAMACY_DECODE);
        CHECK_HAS(err.message, "crc32c");
        o->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(s.voxels);
    mem_free(m);
}

/* ---- what is kept, and what is refused by name ---- */

TEST(names_and_attributes_are_kept_as_they_are_written)
{
    static const char text[] =
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[4,6],\"data_type\":\"bfloat16\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[2,3]}},"
        "\"chunk_key_encoding\":\"default\",\"fill_value\":\"0x7fc1\",\"codecs\":[{\"name\":"
        "\"bytes\",\"configuration\":{\"endian\":\"big\"}},\"zstd\"],\"dimension_names\":[\"t\","
        "null],\"attributes\":{\"a\": [1.0, 1e2, \"\\u00e9\"]},\"mine\":{\"must_understand\":"
        "false}}";
    mem_store* m = mem_new();
    damacy_config c = config_of(m, 1);
    damacy_array_info_t info;
    damacy_array* array = NULL;
    damacy_error err;

    mem_put(m, "k/zarr.json", text, sizeof text - 1);
    CHECK_EQ(damacy_array_open(&c, "k", &array, &err), DAMACY_OK);
    damacy_array_info(array, &info);
    CHECK_EQ(info.dtype, DAMACY_BF16);
    CHECK_EQ(info.is_big_endian, 1);
    CHECK_EQ(info.fill_value[0] | info.fill_value[1] << 8, 0x7fc1);
    CHECK_STR(info.codecs, "bytes,zstd");
    CHECK_STR(info.dimension_names[0], "t");
    CHECK(info.dimension_names[1] == NULL);
    CHECK_STR(info.attributes, "{\"a\": [1.0, 1e2, \"\\u00e9\"]}");
    CHECK(info.group_attributes == NULL);
    damacy_array_close(array);
    CHECK_EQ(m->n_open, 0);
    mem_free(m);
}

TEST(what_must_be_understood_and_is_not_is_refused_by_name)
{
    static const struct {
        const char* from;
        const char* to;
        const char* name;
    } cases[] = {
        {"\"uint16\"", "\"complex64\"", "complex64"},
        {"\"uint16\"", "\"r24\"", "r24"},
        {"\"regular\"", "\"rectilinear\"", "rectilinear"},
        {"\"default\"", "\"suffix\"", "suffix"},
        {"\"zstd\"", "\"numcodecs.bz2\"", "numcodecs.bz2"},
        {"\"zstd\"", "{\"name\":\"zfp\",\"must_understand\":false}", "zfp"},
        {"\"mine\":{\"must_understand\":false}", "\"mine\":{}", "mine"},
        {"\"mine\":{\"must_understand\":false}", "\"storage_transformers\":[\"x1\"]", "x1"}};
    static const char base[] =
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[4,6],\"data_type\":\"uint16\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[2,3]}},"
        "\"chunk_key_encoding\":{\"name\":\"default\"},\"fill_value\":0,\"codecs\":[" SCENE_BYTES
        ",\"zstd\"],\"mine\":{\"must_understand\":false}}";
    mem_store* m = mem_new();
    damacy_config c = config_of(m, 1);
    damacy_array* array = NULL;
    damacy_error err;

    mem_put(m, "k/zarr.json", base, sizeof base - 1);
    CHECK_EQ(damacy_array_open(&c, "k", &array, &err), DAMACY_OK);
    damacy_array_close(array);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char* at = strstr(base, cases[i].from);
        char text[1024];
        CHECK(at != NULL);
        (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - base), base, cases[i].to,
                       at + strlen(cases[i].from));
        mem_put(m, "k/zarr.json", text, strlen(text));
        CHECK_EQ(damacy_array_open(&c, "k", &array, &err), DAMACY_UNSUPPORTED);
        CHECK_HAS(err.message, cases[i].name);
        CHECK_STR(err.chunk, "zarr.json");
    }
    mem_free(m);
}

TEST_MAIN
