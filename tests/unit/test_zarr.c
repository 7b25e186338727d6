/* zarr.json: boundary documents with their verdicts, what a document becomes, every prefix,
 * mutations, failing allocations. */
#include "tests/test.h"
#include "format/zarr.h"
#include "zarr_cases.h"

static damacy__alloc heap;

#define SHARD                                                                                     \
    "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[5,10],\"codecs\":[" BYTES \
    ",{\"name\":\"zstd\",\"configuration\":{\"level\":3,\"checksum\":false}}],\"index_codecs\":"  \
    "[" BYTES ",{\"name\":\"crc32c\"}],\"index_location\":\"end\"}}"

#define CODECS  "[" BYTES_ZSTD "]"
#define SHARDED "[" SHARD "]"

static const char* const base[][2] = {
    {"zarr_format", "3"},
    {"node_type", "\"array\""},
    {"shape", "[100,80]"},
    {"data_type", "\"uint16\""},
    {"chunk_grid", "{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[10,20]}}"},
    {"chunk_key_encoding", "{\"name\":\"default\",\"configuration\":{\"separator\":\"/\"}}"},
    {"fill_value", "0"},
    {"codecs", CODECS},
    {"attributes", "{\"unit\":\"nm\"}"},
    {"dimension_names", "[\"y\",\"x\"]"},
    {"storage_transformers", "[]"},
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

static damacy_status parse_exact(const char* text, size_t size, damacy__document* out,
                                 damacy_error* err)
{
    char* exact = (char*)malloc(size ? size : 1); /* so that a sanitizer sees reads beyond it */
    damacy_status status;

    CHECK(exact != NULL);
    memcpy(exact, text, size);
    memset(err, 0, sizeof *err);
    status = damacy__zarr_parse(&heap, damacy__span_of(exact, size), out, err);
    memset(exact, 0xee, size); /* a document does not need its text */
    free(exact);
    CHECK((status == DAMACY_OK) == (err->message[0] == '\0'));
    return status;
}

static damacy_status verdict(const char* text, size_t size, damacy_error* err)
{
    damacy__document document;
    damacy__document untouched;
    damacy_status status;

    memset(&document, 0x5a, sizeof document);
    memset(&untouched, 0x5a, sizeof untouched);
    status = parse_exact(text, size, &document, err);
    if (status == DAMACY_OK) {
        damacy__document_deinit(&document, &heap);
    } else {
        CHECK(memcmp(&document, &untouched, sizeof document) == 0);
    }
    CHECK_EQ(heap.live_blocks, 0);
    CHECK_EQ(heap.live_bytes, 0);
    return status;
}

static void open_with(const char* member, const char* value, damacy__document* out)
{
    char text[8192];
    damacy_error err;
    const size_t size = make(text, sizeof text, member, value);
    const damacy_status status = parse_exact(text, size, out, &err);

    if (status != DAMACY_OK) {
        printf("# %s\n", err.message);
    }
    CHECK_EQ(status, DAMACY_OK);
}

TEST(every_boundary_document_gets_its_verdict)
{
    const size_t n = sizeof zarr_cases / sizeof zarr_cases[0];
    size_t n_wrong = 0;

    for (size_t i = 0; i < n; i++) {
        const zarr_case* const c = &zarr_cases[i];
        char text[8192];
        damacy_error err;
        damacy_status status;
        size_t size;

        if (c->member[0]) {
            size = make(text, sizeof text, c->member, c->value);
        } else {
            size = (size_t)snprintf(text, sizeof text, "%s", c->value);
        }
        status = verdict(text, size, &err);
        if (status != c->status || !strstr(err.message, c->message)) {
            printf("# %s: status %d, not %d: \"%s\" wants \"%s\"\n", c->name, (int)status,
                   (int)c->status, err.message, c->message);
            n_wrong++;
        }
    }
    printf("# %zu documents\n", n);
    CHECK_EQ(n_wrong, 0);
    CHECK(n >= 400);
}

TEST(zero_bytes_end_no_text)
{
    char text[8192];
    damacy_error err;
    size_t size = make(text, sizeof text, "codecs", SHARDED);

    text[size++] = '\0';
    CHECK_EQ(verdict(text, size, &err), DAMACY_DECODE);
    size = make(text, sizeof text, "codecs", SHARDED);
    text[size / 2] = '\0';
    CHECK_EQ(verdict(text, size, &err), DAMACY_DECODE);
    CHECK_EQ(verdict("\0", 1, &err), DAMACY_DECODE);
}

TEST(long_lists_are_refused)
{
    static char list[100000];
    static char text[110000];
    damacy_error err;
    size_t size = 1;

    list[0] = '[';
    for (int i = 0; i < 1000; i++) {
        size += (size_t)snprintf(list + size, sizeof list - size, "%s\"bytes\"", i ? "," : "");
    }
    list[size++] = ']';
    list[size] = '\0';
    CHECK_EQ(verdict(text, make(text, sizeof text, "codecs", list), &err), DAMACY_UNSUPPORTED);
    size = 1;
    for (int i = 0; i < 40000; i++) {
        size += (size_t)snprintf(list + size, sizeof list - size, "%s1", i ? "," : "");
    }
    list[size++] = ']';
    list[size] = '\0';
    CHECK_EQ(verdict(text, make(text, sizeof text, "shape", list), &err), DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "40000 axes");
    CHECK_EQ(verdict(text, make(text, sizeof text, "dimension_names", list), &err), DAMACY_DECODE);
}

TEST(every_prefix_of_a_document_is_malformed)
{
    char text[8192];
    const size_t size = make(text, sizeof text, "codecs", SHARDED);

    for (size_t n = 0; n < size; n++) {
        damacy_error err;
        CHECK_EQ(verdict(text, n, &err), DAMACY_DECODE);
    }
}

TEST(removing_any_token_is_survived)
{
    char text[8192];
    char cut[8192];
    const size_t size = make(text, sizeof text, "codecs", SHARDED);

    for (size_t first = 0; first < size; first++) {
        for (size_t n = 1; n <= 12 && first + n <= size; n++) {
            damacy_error err;
            memcpy(cut, text, first);
            memcpy(cut + first, text + first + n, size - first - n);
            (void)verdict(cut, size - n, &err);
        }
    }
}

TEST(random_mutations_are_survived)
{
    static const char bits[] = "[]{},:\"\\0123456789-+.eEtfn \x80\xff";
    uint64_t state = test_seed();
    size_t n_ok = 0;

    for (int round = 0; round < 60000; round++) {
        char text[8192];
        const zarr_case* const c = &zarr_cases[test_random(&state) % DAMACY__COUNT(zarr_cases)];
        size_t size = c->member[0] ? make(text, sizeof text, c->member, c->value)
                                   : make(text, sizeof text, "codecs", SHARDED);
        const uint64_t n = 1 + test_random(&state) % 3;
        damacy_error err;

        for (uint64_t i = 0; i < n; i++) {
            const size_t at = test_random(&state) % size;
            const uint64_t random = test_random(&state);
            if (random % 4 == 0) {
                text[at] = (char)(random >> 8);
            } else if (random % 4 == 1) {
                text[at] = bits[(random >> 8) % (sizeof bits - 1)];
            } else if (random % 4 == 2) {
                const size_t from = (random >> 8) % size;
                const size_t len = DAMACY__MIN((random >> 40) % 40, size - DAMACY__MAX(at, from));
                memmove(text + at, text + from, len);
            } else {
                text[at] = (char)(text[at] ^ (1 << (random >> 8 & 7)));
            }
        }
        n_ok += verdict(text, size, &err) == DAMACY_OK;
    }
    printf("# %zu of 60000 are still valid\n", n_ok);
    CHECK(n_ok > 100);
}

TEST(the_document_says_what_the_text_says)
{
    damacy__document d;

    open_with("codecs", SHARDED, &d);
    CHECK_EQ(d.node, DAMACY__NODE_ARRAY);
    CHECK_EQ(d.zarr_format, 3);
    CHECK_STR(d.attributes, "{\"unit\":\"nm\"}");
    CHECK_STR(d.data_type, "uint16");
    CHECK_STR(d.codecs, "sharding_indexed(bytes,zstd)");
    CHECK_STR(d.dimension_names[0], "y");
    CHECK_STR(d.dimension_names[1], "x");
    CHECK(d.dimension_names[2] == NULL);
    CHECK_EQ(d.layout.rank, 2);
    CHECK_EQ(d.layout.shape[0], 100);
    CHECK_EQ(d.layout.shape[1], 80);
    CHECK_EQ(d.layout.object_shape[0], 10);
    CHECK_EQ(d.layout.chunk_shape[0], 5);
    CHECK_EQ(d.layout.chunk_shape[1], 10);
    CHECK_EQ(d.layout.dtype, DAMACY_U16);
    CHECK_EQ(d.layout.item_size, 2);
    CHECK_EQ(d.layout.is_sharded, 1);
    CHECK_EQ(d.layout.is_nested, 0);
    CHECK_EQ(d.layout.index_has_crc, 1);
    CHECK_EQ(d.layout.index_at_start, 0);
    CHECK_EQ(d.layout.n_entries, 4);
    CHECK_EQ(d.layout.index_size, 68);
    CHECK_EQ(d.layout.key_is_v2, 0);
    CHECK_EQ(d.layout.key_separator, '/');
    damacy__document_deinit(&d, &heap);
    CHECK_EQ(heap.live_blocks, 0);
}

TEST(attributes_are_kept_as_text)
{
    damacy__document d;

    open_with("attributes", "{ \"a\" : [ 1.50, \"\\u00e9\" ] }", &d);
    CHECK_STR(d.attributes, "{ \"a\" : [ 1.50, \"\\u00e9\" ] }");
    damacy__document_deinit(&d, &heap);
    open_with("attributes", NULL, &d);
    CHECK_STR(d.attributes, "{}");
    damacy__document_deinit(&d, &heap);
}

TEST(a_group_is_recognised_with_its_attributes)
{
    static const char text[] = "{\"zarr_format\":3,\"node_type\":\"group\",\"attributes\":{\"ome\":"
                               "{\"version\":\"0.5\"}}}";
    damacy__document d;
    damacy_error err;

    CHECK_EQ(parse_exact(text, sizeof text - 1, &d, &err), DAMACY_OK);
    CHECK_EQ(d.node, DAMACY__NODE_GROUP);
    CHECK_STR(d.attributes, "{\"ome\":{\"version\":\"0.5\"}}");
    damacy__document_deinit(&d, &heap);
}

TEST(codecs_are_summed_up)
{
    static const char* const cases[][2] = {
        {"[\"bytes\"]", "bytes"},
        {"[\"bytes\",\"zstd\",\"crc32c\"]", "bytes,zstd,crc32c"},
        {"[\"blosc\"]", "bytes,blosc"},
        {"[\"numcodecs.bitround\",\"endian\",\"numcodecs.zlib\"]", "bytes,zlib"},
        {"[{\"name\":\"transpose\",\"configuration\":{\"order\":\"F\"}},\"bytes\",\"gzip\"]",
         "transpose,bytes,gzip"},
        {"[" SHARD ",\"zstd\"]", "sharding_indexed(bytes,zstd),zstd"},
        {"[{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[10,10],\"codecs\":"
         "[" SHARD ",\"gzip\"],\"index_codecs\":[\"bytes\"]}}]",
         "sharding_indexed(sharding_indexed(bytes,zstd),gzip)"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        damacy__document d;
        open_with("codecs", cases[i][0], &d);
        CHECK_STR(d.codecs, cases[i][1]);
        damacy__document_deinit(&d, &heap);
    }
}

TEST(a_summary_is_cut_to_its_room)
{
    static const char whole[] = "sharding_indexed(bytes,zstd),zstd";
    damacy__document d;

    open_with("codecs", "[" SHARD ",\"zstd\"]", &d);
    for (size_t capacity = 1; capacity < 40; capacity++) {
        const size_t len = DAMACY__MIN(capacity, sizeof whole) - 1;
        char* text = (char*)malloc(capacity);

        CHECK(text != NULL);
        memset(text, 'x', capacity);
        damacy__chain_summary(&d.chain, text, capacity);
        CHECK_EQ(strlen(text), len);
        CHECK(memcmp(text, whole, len) == 0);
        free(text);
    }
    damacy__document_deinit(&d, &heap);
}

TEST(byte_order_is_kept_where_it_matters)
{
    static const struct {
        const char* codecs;
        uint32_t big;
    } cases[] = {
        {"[\"bytes\"]", 0},
        {"[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}}]", 0},
        {"[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"big\"}}]", 1},
        {"[{\"name\":\"endian\",\"configuration\":{\"endian\":\"big\"}},\"zstd\"]", 1},
    };
    char text[8192];
    damacy__document d;
    damacy_error err;
    char* at;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        open_with("codecs", cases[i].codecs, &d);
        CHECK_EQ(d.layout.big_endian, cases[i].big);
        damacy__document_deinit(&d, &heap);
    }
    for (int raw = 0; raw < 2; raw++) { /* one byte, or raw bytes: there is no order */
        (void)make(text, sizeof text, "codecs", cases[2].codecs);
        at = strstr(text, "\"uint16\"");
        CHECK(at != NULL);
        memcpy(at, raw ? "\"r16\"   " : "\"uint8\" ", 8);
        if (raw) {
            at = strstr(text, "\"fill_value\":0");
            CHECK(at != NULL);
            memmove(at + 18, at + 14, strlen(at + 14) + 1);
            memcpy(at, "\"fill_value\":[1,2]", 18);
        }
        CHECK_EQ(parse_exact(text, strlen(text), &d, &err), DAMACY_OK);
        CHECK_EQ(d.layout.big_endian, 0);
        CHECK_EQ(d.layout.fill, raw ? 0x0201 : 0);
        damacy__document_deinit(&d, &heap);
    }
}

TEST(every_type_opens_with_its_size)
{
    for (size_t i = 0; i < DAMACY__COUNT(damacy__dtypes); i++) {
        char text[8192];
        char value[32];
        damacy__document d;
        damacy_error err;
        char* at;

        (void)snprintf(value, sizeof value, "\"%s\"", damacy__dtypes[i].name);
        (void)make(text, sizeof text, "data_type", value);
        at = strstr(text, "\"fill_value\":0,");
        CHECK(at != NULL);
        memmove(at + 18, at + 15, strlen(at + 15) + 1);
        memcpy(at, "\"fill_value\":null,", 18);
        CHECK_EQ(parse_exact(text, strlen(text), &d, &err), DAMACY_OK);
        CHECK_EQ(d.layout.dtype, damacy__dtypes[i].dtype);
        CHECK_EQ(d.layout.item_size, damacy__dtype_size(damacy__dtypes[i].dtype));
        CHECK_EQ(d.layout.chunk_size, 200 * d.layout.item_size);
        CHECK_STR(d.data_type, damacy__dtypes[i].name);
        damacy__document_deinit(&d, &heap);
    }
}

TEST(rank_0_and_rank_32_open)
{
    static const char text0[] =
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[],\"data_type\":\"float32\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[]}},"
        "\"chunk_key_encoding\":\"default\",\"fill_value\":\"NaN\",\"codecs\":[\"bytes\"]}";
    char ones[128] = "[1";
    char order[256] = "[31";
    char text[2048];
    damacy__document d;
    damacy_error err;
    int size;

    CHECK_EQ(parse_exact(text0, sizeof text0 - 1, &d, &err), DAMACY_OK);
    CHECK_EQ(d.layout.rank, 0);
    CHECK_EQ(d.layout.chunk_size, 4);
    CHECK_EQ(d.layout.fill, 0x7fc00000);
    damacy__document_deinit(&d, &heap);
    for (int i = 1; i < 32; i++) {
        (void)snprintf(ones + strlen(ones), sizeof ones - strlen(ones), ",1");
        (void)snprintf(order + strlen(order), sizeof order - strlen(order), ",%d", 31 - i);
    }
    size = snprintf(
        text, sizeof text,
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":%s],\"data_type\":\"uint8\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":%s]}},"
        "\"chunk_key_encoding\":\"v2\",\"fill_value\":0,\"codecs\":[{\"name\":\"transpose\","
        "\"configuration\":{\"order\":%s]}},{\"name\":\"sharding_indexed\",\"configuration\":{"
        "\"chunk_shape\":%s],\"codecs\":[\"bytes\"],\"index_codecs\":[{\"name\":\"transpose\","
        "\"configuration\":{\"order\":%s,32]}},\"bytes\"]}}]}",
        ones, ones, order, ones, order);
    CHECK(size > 0 && (size_t)size < sizeof text);
    CHECK_EQ(parse_exact(text, (size_t)size, &d, &err), DAMACY_OK);
    CHECK_EQ(d.layout.rank, 32);
    CHECK_EQ(d.layout.n_entries, 1);
    CHECK_EQ(d.layout.index_size, 16);
    damacy__document_deinit(&d, &heap);
    CHECK_EQ(heap.live_blocks, 0);
}

TEST(shards_of_too_many_chunks_are_refused_before_memory_is_taken)
{
    static const char* const grids[][2] = {{"[4096,4096]", "OK"},
                                           {"[4096,4097]", "no"},
                                           {"[1073741825,1]", "no"},
                                           {"[4294967296,4294967296]", "no"}};
    char text[8192];
    char codecs[1024];
    damacy_error err;

    (void)snprintf(codecs, sizeof codecs,
                   "[{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[1,1],"
                   "\"codecs\":[\"bytes\"],\"index_codecs\":[\"bytes\"]}}]");
    for (size_t i = 0; i < 4; i++) {
        char grid[256];
        char* at;
        size_t size;

        (void)snprintf(grid, sizeof grid,
                       "{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":%s}}",
                       grids[i][0]);
        (void)make(text, sizeof text, "chunk_grid", grid);
        at = strstr(text, CODECS);
        CHECK(at != NULL);
        size = strlen(at + strlen(CODECS));
        memmove(at + strlen(codecs), at + strlen(CODECS), size + 1);
        memcpy(at, codecs, strlen(codecs));
        heap.n_calls = 0;
        CHECK_EQ(verdict(text, strlen(text), &err),
                 grids[i][1][0] == 'O' ? DAMACY_OK : DAMACY_UNSUPPORTED);
        CHECK(grids[i][1][0] == 'O' || strstr(err.message, "16777216 chunks"));
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
    char text[8192];
    char codecs[2048];
    damacy__alloc failing = {0};
    size_t size;
    int n = 0;

    (void)snprintf(codecs, sizeof codecs,
                   "[{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[10,10],"
                   "\"codecs\":[%s],\"index_codecs\":[\"bytes\"]}},\"zstd\"]",
                   SHARD);
    size = make(text, sizeof text, "codecs", codecs);
    failing.user.alloc = failing_alloc;
    failing.user.free = plain_free;
    for (;; n++) {
        damacy__document d;
        damacy_error err;
        damacy_status status;

        n_allowed = n;
        status = damacy__zarr_parse(&failing, damacy__span_of(text, size), &d, &err);
        if (status == DAMACY_OK) {
            damacy__document_deinit(&d, &failing);
            CHECK_EQ(failing.live_blocks, 0);
            break;
        }
        CHECK_EQ(status, DAMACY_OOM);
        CHECK_EQ(failing.live_blocks, 0);
        CHECK_EQ(failing.live_bytes, 0);
    }
    CHECK(n >= 13);
}

TEST_MAIN
