/* .zarray, .zgroup and .zattrs of Zarr version 2: verdicts, what the document becomes, prefixes,
 * mutations, failing allocations. */
#include "tests/test.h"
#include "format/zarr2.h"

static damacy__alloc heap;

static const char* const base[][2] = {
    {"zarr_format", "2"},
    {"shape", "[100,80]"},
    {"chunks", "[10,20]"},
    {"dtype", "\"<u2\""},
    {"fill_value", "0"},
    {"order", "\"C\""},
    {"filters", "null"},
    {"dimension_separator", "\"/\""},
    {"compressor",
     "{\"id\":\"blosc\",\"cname\":\"lz4\",\"clevel\":5,\"shuffle\":1,\"blocksize\":0}"},
};

/* The base document with one member replaced, added (if the base lacks it) or left out (NULL). */
static size_t make(char* text, size_t capacity, const char* member, const char* value)
{
    const size_t n_base = sizeof base / sizeof base[0];
    bool found = false;
    size_t size = 0;
    const char* separator = "{";

    for (size_t i = 0; i <= n_base; i++) {
        const bool is_it = i == n_base ? !found && member : member && !strcmp(base[i][0], member);
        const char* key = i == n_base ? member : base[i][0];

        found = found || is_it;
        if ((i == n_base && !is_it) || (is_it && !value)) {
            continue;
        }
        size += (size_t)snprintf(text + size, capacity - size, "%s\"%s\":%s", separator, key,
                                 is_it ? value : base[i][1]);
        separator = ",";
        CHECK(size < capacity);
    }
    size += (size_t)snprintf(text + size, capacity - size, "}");
    CHECK(size < capacity);
    return size;
}

static damacy_status parse(const char* text, size_t size, const char* attributes,
                           damacy__document* out, damacy_error* err)
{
    char* exact = (char*)malloc(size ? size : 1);
    damacy_status status;

    CHECK(exact != NULL);
    memcpy(exact, text, size);
    memset(err, 0, sizeof *err);
    status = damacy__zarr2_parse(&heap, damacy__span_of(exact, size),
                                 damacy__span_of(attributes, strlen(attributes)), out, err);
    memset(exact, 0xee, size);
    free(exact);
    CHECK((status == DAMACY_OK) == (err->message[0] == '\0'));
    return status;
}

static damacy_status verdict(const char* text, size_t size, const char* attributes,
                             damacy_error* err)
{
    damacy__document document;
    const damacy_status status = parse(text, size, attributes, &document, err);

    if (status == DAMACY_OK) {
        damacy__document_deinit(&document, &heap);
    }
    CHECK_EQ(heap.live_blocks, 0);
    CHECK_EQ(heap.live_bytes, 0);
    return status;
}

static void open_with(const char* member, const char* value, damacy__document* out)
{
    char text[2048];
    damacy_error err;

    CHECK_EQ(parse(text, make(text, sizeof text, member, value), "", out, &err), DAMACY_OK);
}

static const struct {
    const char* member;
    const char* value;
    damacy_status status;
    const char* message;
} cases[] = {
    {"zarr_format", "2", DAMACY_OK, ""},
    {"zarr_format", NULL, DAMACY_DECODE, "no \"zarr_format\""},
    {"zarr_format", "3", DAMACY_DECODE, "not the integer 2"},
    {"zarr_format", "1", DAMACY_DECODE, "not the integer 2"},
    {"zarr_format", "\"2\"", DAMACY_DECODE, "not the integer 2"},
    {"zarr_format", "2.0", DAMACY_DECODE, "not the integer 2"},
    {"shape", "[]", DAMACY_DECODE, "chunks has 2 axes, the array has 0"},
    {"shape", "null", DAMACY_DECODE, "shape is not"},
    {"shape", "[-1,2]", DAMACY_DECODE, "shape[0] is -1"},
    {"shape", "[0,80]", DAMACY_OK, ""},
    {"shape", "[4294967296,4294967296]", DAMACY_UNSUPPORTED, "2^63"},
    {"shape", "[1,2,3]", DAMACY_DECODE, "chunks has 2 axes"},
    {"chunks", NULL, DAMACY_DECODE, "no \"chunks\""},
    {"chunks", "[0,20]", DAMACY_DECODE, "chunks[0] is 0"},
    {"chunks", "true", DAMACY_DECODE, "chunks is not"},
    {"chunks", "[10]", DAMACY_DECODE, "chunks has 1 axes"},
    {"chunks", "[1073741825,1]", DAMACY_UNSUPPORTED, "2147483648"},
    {"chunks", "[9223372036854775807,9223372036854775807]", DAMACY_UNSUPPORTED, "2147483648"},
    {"dtype", NULL, DAMACY_DECODE, "no \"dtype\""},
    {"dtype", "\"<u8\"", DAMACY_OK, ""},
    {"dtype", "\">f4\"", DAMACY_OK, ""},
    {"dtype", "\"|u1\"", DAMACY_OK, ""},
    {"dtype", "\"<u1\"", DAMACY_OK, ""},
    {"dtype", "\"|b1\"", DAMACY_OK, ""},
    {"dtype", "\"bfloat16\"", DAMACY_OK, ""},
    {"dtype", "\"|u2\"", DAMACY_DECODE, "byte order"},
    {"dtype", "\"|f4\"", DAMACY_DECODE, "byte order"},
    {"dtype", "\"=u2\"", DAMACY_UNSUPPORTED, "\"=u2\""},
    {"dtype", "\"u2\"", DAMACY_UNSUPPORTED, "\"u2\""},
    {"dtype", "\"uint16\"", DAMACY_UNSUPPORTED, "\"uint16\""},
    {"dtype", "\"<u3\"", DAMACY_UNSUPPORTED, "\"<u3\""},
    {"dtype", "\"<u22\"", DAMACY_UNSUPPORTED, "\"<u22\""},
    {"dtype", "\"<u2\\u0000\"", DAMACY_UNSUPPORTED, "\"<u2\""},
    {"dtype", "\"<f16\"", DAMACY_UNSUPPORTED, "\"<f16\""},
    {"dtype", "\"<c8\"", DAMACY_UNSUPPORTED, "\"<c8\""},
    {"dtype", "\"<M8[ns]\"", DAMACY_UNSUPPORTED, "\"<M8[ns]\""},
    {"dtype", "\"<m8[s]\"", DAMACY_UNSUPPORTED, "\"<m8[s]\""},
    {"dtype", "\"|S4\"", DAMACY_UNSUPPORTED, "\"|S4\""},
    {"dtype", "\"<U2147483648\"", DAMACY_UNSUPPORTED, "\"<U2147483648\""},
    {"dtype", "\"|V2\"", DAMACY_UNSUPPORTED, "\"|V2\""},
    {"dtype", "\"|O\"", DAMACY_UNSUPPORTED, "\"|O\""},
    {"dtype", "\"\"", DAMACY_UNSUPPORTED, "\"\""},
    {"dtype", "null", DAMACY_UNSUPPORTED, "null"},
    {"dtype", "[[\"a\",\"<u2\"]]", DAMACY_UNSUPPORTED, "unsupported data type"},
    {"fill_value", NULL, DAMACY_DECODE, "no \"fill_value\""},
    {"fill_value", "null", DAMACY_OK, ""},
    {"fill_value", "65535", DAMACY_OK, ""},
    {"fill_value", "65536", DAMACY_DECODE, "fill_value 65536"},
    {"fill_value", "\"7\"", DAMACY_OK, ""},
    {"fill_value", "\"7.0\"", DAMACY_OK, ""},
    {"fill_value", "\"-7\"", DAMACY_DECODE, "fill_value -7"},
    {"fill_value", "\"7x\"", DAMACY_DECODE, "fill_value 7x"},
    {"fill_value", "\"\"", DAMACY_DECODE, "fill_value"},
    {"fill_value", "\"-\"", DAMACY_DECODE, "fill_value"},
    {"fill_value", "\"0000000000000000000000000000000000000000000000000000000000000000000\"",
     DAMACY_DECODE, "fill_value"},
    {"fill_value", "[3]", DAMACY_OK, ""},
    {"fill_value", "[3,3]", DAMACY_DECODE, "fill_value"},
    {"fill_value", "[]", DAMACY_DECODE, "fill_value"},
    {"fill_value", "\"NaN\"", DAMACY_DECODE, "fill_value NaN"},
    {"fill_value", "\"AAA=\"", DAMACY_DECODE, "fill_value AAA="},
    {"order", NULL, DAMACY_DECODE, "no \"order\""},
    {"order", "\"F\"", DAMACY_OK, ""},
    {"order", "\"A\"", DAMACY_DECODE, "order is \"A\""},
    {"order", "null", DAMACY_DECODE, "order is \"null\""},
    {"filters", NULL, DAMACY_DECODE, "no \"filters\""},
    {"filters", "[]", DAMACY_OK, ""},
    {"filters", "{}", DAMACY_DECODE, "filters is neither"},
    {"filters", "[{\"id\":\"bitround\",\"keepbits\":5}]", DAMACY_OK, ""},
    {"filters", "[{\"id\":\"delta\",\"dtype\":\"<u2\"}]", DAMACY_UNSUPPORTED, "filter \"delta\""},
    {"filters", "[{\"id\":\"shuffle\",\"elementsize\":2}]", DAMACY_UNSUPPORTED,
     "filter \"shuffle\""},
    {"filters", "[{\"id\":\"crc32\"}]", DAMACY_UNSUPPORTED, "filter \"crc32\""},
    {"filters", "[{\"id\":\"zlib\"}]", DAMACY_UNSUPPORTED, "filter \"zlib\""},
    {"filters", "[{\"id\":\"bitround\"},{\"id\":\"x\\ny\"}]", DAMACY_UNSUPPORTED, "\"x?y\""},
    {"filters", "[3]", DAMACY_DECODE, "without an id"},
    {"filters", "[{}]", DAMACY_DECODE, "without an id"},
    {"compressor", NULL, DAMACY_DECODE, "no \"compressor\""},
    {"compressor", "null", DAMACY_OK, ""},
    {"compressor", "{\"id\":\"zstd\",\"level\":3,\"checksum\":true}", DAMACY_OK, ""},
    {"compressor", "{\"id\":\"zlib\",\"level\":\"1\"}", DAMACY_OK, ""},
    {"compressor", "{\"id\":\"gzip\"}", DAMACY_OK, ""},
    {"compressor", "{\"id\":\"lz4\"}", DAMACY_OK, ""},
    {"compressor", "{\"id\":\"blosc\",\"typesize\":null}", DAMACY_OK, ""},
    {"compressor", "{\"id\":\"bz2\"}", DAMACY_UNSUPPORTED, "compressor \"bz2\""},
    {"compressor", "{\"id\":\"lzma\"}", DAMACY_UNSUPPORTED, "compressor \"lzma\""},
    {"compressor", "{\"id\":\"zfpy\"}", DAMACY_UNSUPPORTED, "compressor \"zfpy\""},
    {"compressor", "{}", DAMACY_DECODE, "compressor is neither"},
    {"compressor", "{\"id\":null}", DAMACY_DECODE, "compressor is neither"},
    {"compressor", "\"zstd\"", DAMACY_DECODE, "compressor is neither"},
    {"compressor", "[]", DAMACY_DECODE, "compressor is neither"},
    {"dimension_separator", NULL, DAMACY_OK, ""},
    {"dimension_separator", "\".\"", DAMACY_OK, ""},
    {"dimension_separator", "\"\\/\"", DAMACY_OK, ""},
    {"dimension_separator", "\"\"", DAMACY_DECODE, "dimension_separator"},
    {"dimension_separator", "\"//\"", DAMACY_DECODE, "dimension_separator"},
    {"dimension_separator", "\"../\"", DAMACY_DECODE, "dimension_separator is \"../\""},
    {"dimension_separator", "null", DAMACY_DECODE, "dimension_separator"},
    {"dimension_separator", "\".\\u0000\"", DAMACY_DECODE, "dimension_separator"},
    {"_nczarr_array", "{\"a\":1}", DAMACY_OK, ""},
    {"foo", "42", DAMACY_OK, ""},
};

TEST(every_document_gets_its_verdict)
{
    size_t n_wrong = 0;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        damacy_error err;
        const size_t size = make(text, sizeof text, cases[i].member, cases[i].value);
        const damacy_status status = verdict(text, size, "", &err);

        if (status != cases[i].status || !strstr(err.message, cases[i].message)) {
            printf("# %s %s: %d \"%s\"\n", cases[i].member, cases[i].value ? cases[i].value : "-",
                   (int)status, err.message);
            n_wrong++;
        }
    }
    CHECK_EQ(n_wrong, 0);
}

TEST(the_document_says_what_the_text_says)
{
    char text[2048];
    damacy__document d;
    damacy_error err;
    const size_t size = make(text, sizeof text, NULL, NULL);

    CHECK_EQ(parse(text, size, "{\"a\":1,\"_ARRAY_DIMENSIONS\":[\"y\",\"x\"]}", &d, &err),
             DAMACY_OK);
    CHECK_EQ(d.node, DAMACY__NODE_ARRAY);
    CHECK_EQ(d.zarr_format, 2);
    CHECK_STR(d.codecs, "bytes,blosc");
    CHECK_STR(d.data_type, "<u2");
    CHECK_STR(d.attributes, "{\"a\":1,\"_ARRAY_DIMENSIONS\":[\"y\",\"x\"]}");
    CHECK_STR(d.dimension_names[0], "y");
    CHECK_STR(d.dimension_names[1], "x");
    CHECK_EQ(d.layout.dtype, DAMACY_U16);
    CHECK_EQ(d.layout.key_is_v2, 1);
    CHECK_EQ(d.layout.key_separator, '/');
    CHECK_EQ(d.layout.chunk_shape[1], 20);
    CHECK_EQ(d.layout.chunk_stride[0], 20);
    CHECK_EQ(d.layout.chunk_stride[1], 1);
    CHECK_EQ(d.layout.is_sharded, 0);
    CHECK_EQ(d.layout.n_entries, 1);
    damacy__document_deinit(&d, &heap);
    CHECK_EQ(heap.live_blocks, 0);
}

TEST(order_f_reverses_the_strides)
{
    damacy__document d;

    open_with("order", "\"F\"", &d);
    CHECK_EQ(d.layout.chunk_stride[0], 1);
    CHECK_EQ(d.layout.chunk_stride[1], 10);
    CHECK_STR(d.codecs, "transpose,bytes,blosc");
    damacy__document_deinit(&d, &heap);
}

TEST(the_byte_order_is_that_of_the_type)
{
    static const struct {
        const char* dtype;
        uint32_t big;
        damacy_dtype type;
    } types[] = {
        {"\"<u2\"", 0, DAMACY_U16}, {"\">u2\"", 1, DAMACY_U16},       {"\">u1\"", 0, DAMACY_U8},
        {"\"|i1\"", 0, DAMACY_I8},  {"\">i8\"", 1, DAMACY_I64},       {"\">f2\"", 1, DAMACY_F16},
        {"\"<f8\"", 0, DAMACY_F64}, {"\"bfloat16\"", 0, DAMACY_BF16}, {"\"|b1\"", 0, DAMACY_BOOL},
        {"\">i4\"", 1, DAMACY_I32}, {"\"<i2\"", 0, DAMACY_I16},       {"\">u4\"", 1, DAMACY_U32},
        {"\"<u8\"", 0, DAMACY_U64}, {"\">f4\"", 1, DAMACY_F32},
    };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        damacy__document d;
        open_with("dtype", types[i].dtype, &d);
        CHECK_EQ(d.layout.big_endian, types[i].big);
        CHECK_EQ(d.layout.dtype, types[i].type);
        CHECK_EQ(d.layout.chunk_size, 200 * damacy__dtype_size(types[i].type));
        damacy__document_deinit(&d, &heap);
    }
}

TEST(fill_values_of_either_form_are_exact)
{
    damacy__document d;

    open_with("fill_value", "\"513\"", &d);
    CHECK_EQ(d.layout.fill, 513);
    damacy__document_deinit(&d, &heap);
    open_with("fill_value", "[513]", &d);
    CHECK_EQ(d.layout.fill, 513);
    damacy__document_deinit(&d, &heap);
    open_with("fill_value", "null", &d);
    CHECK_EQ(d.layout.fill, 0);
    damacy__document_deinit(&d, &heap);
}

TEST(bare_nan_is_a_fill_value_of_floats)
{
    static const char text[] =
        "{\"zarr_format\":2,\"shape\":[4],\"chunks\":[2],\"dtype\":\"<f4\",\"fill_value\":NaN,"
        "\"order\":\"C\",\"filters\":null,\"compressor\":null}";
    damacy__document d;
    damacy_error err;

    CHECK_EQ(parse(text, sizeof text - 1, "", &d, &err), DAMACY_OK);
    CHECK_EQ(d.layout.fill, 0x7fc00000);
    CHECK_EQ(d.layout.key_separator, '.');
    damacy__document_deinit(&d, &heap);
}

TEST(a_group_is_recognised_with_its_attributes)
{
    static const char text[] = "{\"zarr_format\":2}";
    damacy__document d;
    damacy_error err;

    CHECK_EQ(parse(text, sizeof text - 1, "{\"multiscales\":[]}", &d, &err), DAMACY_OK);
    CHECK_EQ(d.node, DAMACY__NODE_GROUP);
    CHECK_STR(d.attributes, "{\"multiscales\":[]}");
    damacy__document_deinit(&d, &heap);
    CHECK_EQ(parse(text, sizeof text - 1, "", &d, &err), DAMACY_OK);
    CHECK_STR(d.attributes, "{}");
    damacy__document_deinit(&d, &heap);
}

TEST(attributes_are_checked_but_free)
{
    static const struct {
        const char* text;
        damacy_status status;
        const char* name; /* of axis 0 */
    } attributes[] = {
        {"{}", DAMACY_OK, NULL},
        {"{\"_ARRAY_DIMENSIONS\":[\"y\"]}", DAMACY_OK, NULL},
        {"{\"_ARRAY_DIMENSIONS\":[\"y\",1]}", DAMACY_OK, NULL},
        {"{\"_ARRAY_DIMENSIONS\":\"yx\"}", DAMACY_OK, NULL},
        {"{\"_ARRAY_DIMENSIONS\":[\"y\",\"x\\u0000\"]}", DAMACY_OK, NULL},
        {"{\"_ARRAY_DIMENSIONS\":[\"y\",\"\"]}", DAMACY_OK, "y"},
        {"[]", DAMACY_DECODE, NULL},
        {"{\"a\":1,\"a\":2}", DAMACY_DECODE, NULL},
        {"{\"a\":NaN,\"b\":-Infinity}", DAMACY_OK, NULL},
        {"{\"a\":nan}", DAMACY_DECODE, NULL},
        {"{", DAMACY_DECODE, NULL},
    };

    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        char text[2048];
        damacy__document d;
        damacy_error err;
        const size_t size = make(text, sizeof text, NULL, NULL);

        CHECK_EQ(parse(text, size, attributes[i].text, &d, &err), attributes[i].status);
        if (attributes[i].status == DAMACY_OK) {
            CHECK((d.dimension_names[0] != NULL) == (attributes[i].name != NULL));
            damacy__document_deinit(&d, &heap);
        }
        CHECK_EQ(heap.live_blocks, 0);
    }
}

TEST(prefixes_and_mutations_are_survived)
{
    uint64_t state = test_seed();
    char text[2048];
    damacy_error err;
    size_t size = make(text, sizeof text, NULL, NULL);

    for (size_t n = 0; n < size; n++) {
        CHECK_EQ(verdict(text, n, "", &err), DAMACY_DECODE);
    }
    for (int round = 0; round < 30000; round++) {
        size = make(text, sizeof text, cases[test_random(&state) % DAMACY__COUNT(cases)].member,
                    cases[test_random(&state) % DAMACY__COUNT(cases)].value);
        for (int i = 0; i < 2; i++) {
            const uint64_t random = test_random(&state);
            text[random % size] =
                random & 256 ? (char)(random >> 16) : "[]{}\",:019"[(random >> 16) % 10];
        }
        (void)verdict(text, size, "{\"_ARRAY_DIMENSIONS\":[\"a\",\"b\"]}", &err);
    }
}

static int n_allowed;

static void* failing_alloc(void* user, size_t size, size_t alignment)
{
    void* ptr = NULL;

    (void)user;
    return n_allowed-- > 0 && posix_memalign(&ptr, alignment < 8 ? 8 : alignment, size) == 0 ? ptr
                                                                                             : NULL;
}

static void plain_free(void* user, void* ptr, size_t size)
{
    (void)user;
    (void)size;
    free(ptr);
}

TEST(each_failing_allocation_is_reported_and_leaks_nothing)
{
    static const char attributes[] = "{\"_ARRAY_DIMENSIONS\":[\"y\",\"x\"]}";
    damacy__alloc failing = {0};
    char text[2048];
    const size_t size = make(text, sizeof text, "order", "\"F\"");
    int n = 0;

    failing.user.alloc = failing_alloc;
    failing.user.free = plain_free;
    for (;; n++) {
        damacy__document d;
        damacy_error err;
        damacy_status status;

        n_allowed = n;
        status = damacy__zarr2_parse(&failing, damacy__span_of(text, size),
                                     damacy__span_of(attributes, sizeof attributes - 1), &d, &err);
        if (status == DAMACY_OK) {
            damacy__document_deinit(&d, &failing);
            CHECK_EQ(failing.live_blocks, 0);
            break;
        }
        CHECK_EQ(status, DAMACY_OOM);
        CHECK_EQ(failing.live_blocks, 0);
        CHECK_EQ(failing.live_bytes, 0);
    }
    CHECK(n >= 11);
}

TEST_MAIN
