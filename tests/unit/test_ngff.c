/* NGFF multiscales: versions 0.1 to 0.5, scales and translations, hostile paths and documents. */
#include "tests/test.h"
#include "format/ngff.h"

static damacy__alloc heap;

static damacy_status parse(const char* text, damacy__ngff* out, damacy_error* err)
{
    const size_t size = strlen(text);
    char* exact = (char*)malloc(size ? size : 1);
    damacy_status status;

    CHECK(exact != NULL);
    memcpy(exact, text, size);
    memset(err, 0, sizeof *err);
    status = damacy__ngff_parse(&heap, damacy__span_of(exact, size), out, err);
    free(exact);
    return status;
}

#define AXES                                                                                \
    "\"axes\":[{\"name\":\"t\",\"type\":\"time\",\"unit\":\"second\"},"                     \
    "{\"name\":\"y\",\"type\":\"space\",\"unit\":\"micrometer\"},{\"name\":\"x\",\"type\":" \
    "\"space\"}]"
#define LEVELS                                                                                    \
    "\"datasets\":[{\"path\":\"0\",\"coordinateTransformations\":[{\"type\":\"scale\",\"scale\":" \
    "[1,0.5,0.25]}]},{\"path\":\"s/1\",\"coordinateTransformations\":[{\"type\":\"scale\","       \
    "\"scale\":[1,1,0.5]},{\"type\":\"translation\",\"translation\":[0,0.25,-1e-1]}]}]"

TEST(version_0_5_is_read_below_ome)
{
    damacy__ngff n;
    damacy_error err;

    CHECK_EQ(
        parse("{\"ome\":{\"version\":\"0.5\",\"multiscales\":[{" AXES "," LEVELS "}]}}", &n, &err),
        DAMACY_OK);
    CHECK_STR(n.version, "0.5");
    CHECK_EQ(n.n_axes, 3);
    CHECK_STR(n.axis_names[0], "t");
    CHECK_STR(n.axis_types[0], "time");
    CHECK_STR(n.axis_units[1], "micrometer");
    CHECK(n.axis_units[2] == NULL);
    CHECK_EQ(n.n_levels, 2);
    CHECK_STR(n.levels[0].path, "0");
    CHECK_STR(n.levels[1].path, "s/1");
    CHECK(n.levels[0].scale[1] == 0.5 && n.levels[0].scale[2] == 0.25);
    CHECK(n.levels[0].translation[1] == 0);
    CHECK(n.levels[1].scale[2] == 0.5 && n.levels[1].translation[1] == 0.25);
    CHECK(n.levels[1].translation[2] == -0.1);
    CHECK(n.levels[0].scale[3] == 1);
    damacy__ngff_deinit(&n, &heap);
    CHECK_EQ(heap.live_blocks, 0);
}

TEST(version_0_4_is_read_at_the_root)
{
    damacy__ngff n;
    damacy_error err;

    CHECK_EQ(parse("{\"multiscales\":[{\"version\":\"0.4\"," AXES "," LEVELS "}],\"omero\":{}}", &n,
                   &err),
             DAMACY_OK);
    CHECK_STR(n.version, "0.4");
    CHECK_EQ(n.n_levels, 2);
    damacy__ngff_deinit(&n, &heap);
}

TEST(earlier_versions_have_names_or_no_axes)
{
    damacy__ngff n;
    damacy_error err;

    CHECK_EQ(parse("{\"multiscales\":[{\"version\":\"0.3\",\"axes\":[\"z\",\"y\",\"x\"],"
                   "\"datasets\":[{\"path\":"
                   "\"0\"}]}]}",
                   &n, &err),
             DAMACY_OK);
    CHECK_EQ(n.n_axes, 3);
    CHECK_STR(n.axis_names[2], "x");
    CHECK(n.axis_types[2] == NULL);
    damacy__ngff_deinit(&n, &heap);
    CHECK_EQ(
        parse("{\"multiscales\":[{\"datasets\":[{\"path\":\"0\"},{\"path\":\"1\"}]}]}", &n, &err),
        DAMACY_OK);
    CHECK(n.version == NULL);
    CHECK_EQ(n.n_axes, 0);
    CHECK_EQ(n.n_levels, 2);
    CHECK(n.levels[1].scale[0] == 1);
    damacy__ngff_deinit(&n, &heap);
}

TEST(transformations_of_the_image_come_after_those_of_the_level)
{
    damacy__ngff n;
    damacy_error err;

    CHECK_EQ(parse("{\"ome\":{\"multiscales\":[{" AXES
                   ",\"coordinateTransformations\":[{\"type\":\"scale\","
                   "\"scale\":[10,10,10]},{\"type\":\"identity\"},{\"type\":\"translation\","
                   "\"translation\":"
                   "[1,2,3]}]," LEVELS "}]}}",
                   &n, &err),
             DAMACY_OK);
    CHECK(n.levels[1].scale[0] == 10 && n.levels[1].scale[2] == 5);
    CHECK(n.levels[1].translation[0] == 1 && n.levels[0].translation[0] == 1);
    CHECK(n.levels[1].translation[1] == 4.5);
    CHECK(n.levels[1].translation[2] == 2);
    damacy__ngff_deinit(&n, &heap);
}

static const struct {
    const char* text;
    damacy_status status;
    const char* message;
} refused[] = {
    {"", DAMACY_DECODE, "invalid JSON"},
    {"{}", DAMACY_NOTFOUND, "no multiscales"},
    {"[]", DAMACY_NOTFOUND, "no multiscales"},
    {"{\"ome\":3}", DAMACY_NOTFOUND, "no multiscales"},
    {"{\"ome\":{\"plate\":{\"wells\":[]}}}", DAMACY_NOTFOUND, "plate"},
    {"{\"plate\":{}}", DAMACY_NOTFOUND, "plate"},
    {"{\"well\":{}}", DAMACY_NOTFOUND, "well"},
    {"{\"ome\":{\"bioformats2raw.layout\":3}}", DAMACY_NOTFOUND, "several images"},
    {"{\"multiscales\":{}}", DAMACY_DECODE, "multiscales is not an array"},
    {"{\"multiscales\":[]}", DAMACY_DECODE, "multiscales is not an array"},
    {"{\"multiscales\":[3]}", DAMACY_DECODE, "multiscales[0]"},
    {"{\"multiscales\":[{}]}", DAMACY_DECODE, "datasets"},
    {"{\"multiscales\":[{\"datasets\":[]}]}", DAMACY_DECODE, "datasets"},
    {"{\"multiscales\":[{\"datasets\":{}}]}", DAMACY_DECODE, "datasets"},
    {"{\"multiscales\":[{\"datasets\":[3]}]}", DAMACY_DECODE, "no path"},
    {"{\"multiscales\":[{\"datasets\":[{}]}]}", DAMACY_DECODE, "no path"},
    {"{\"multiscales\":[{\"datasets\":[{\"path\":null}]}]}", DAMACY_DECODE, "no path"},
    {"{\"multiscales\":[{\"datasets\":[{\"path\":0}]}]}", DAMACY_DECODE, "path is not a string"},
    {"{\"multiscales\":[{\"axes\":[],\"datasets\":[{\"path\":\"0\"}]}]}", DAMACY_DECODE, "axes"},
    {"{\"multiscales\":[{\"axes\":[1],\"datasets\":[{\"path\":\"0\"}]}]}", DAMACY_DECODE,
     "axes[0]"},
    {"{\"multiscales\":[{\"axes\":[{}],\"datasets\":[{\"path\":\"0\"}]}]}", DAMACY_DECODE,
     "no name"},
    {"{\"multiscales\":[{\"axes\":[{\"name\":1}],\"datasets\":[{\"path\":\"0\"}]}]}", DAMACY_DECODE,
     "name is not a string"},
    {"{\"multiscales\":[{\"axes\":[{\"name\":\"x\\u0000\"}],\"datasets\":[{\"path\":\"0\"}]}]}",
     DAMACY_DECODE, "zero character"},
    {"{\"multiscales\":[{\"coordinateSystems\":[],\"datasets\":[{\"path\":\"0\"}]}]}",
     DAMACY_UNSUPPORTED, "0.6"},
};

TEST(documents_that_name_no_image_are_refused_with_a_reason)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        damacy__ngff n;
        damacy_error err;
        const damacy_status status = parse(refused[i].text, &n, &err);

        if (status != refused[i].status) {
            printf("# %s: %d %s\n", refused[i].text, (int)status, err.message);
        }
        CHECK_EQ(status, refused[i].status);
        CHECK_HAS(err.message, refused[i].message);
        CHECK_EQ(heap.live_blocks, 0);
    }
}

TEST(wrong_transformations_are_refused)
{
    static const struct {
        const char* text;
        damacy_status status;
        const char* message;
    } cases[] = {
        {"{}", DAMACY_DECODE, "not an array"},
        {"[3]", DAMACY_DECODE, "no type"},
        {"[{}]", DAMACY_DECODE, "no type"},
        {"[{\"type\":3}]", DAMACY_DECODE, "no type"},
        {"[{\"type\":\"affine\"}]", DAMACY_UNSUPPORTED, "\"affine\""},
        {"[{\"type\":\"scale\"}]", DAMACY_DECODE, "scale is not an array of 3"},
        {"[{\"type\":\"scale\",\"path\":\"x\"}]", DAMACY_DECODE, "scale is not an array"},
        {"[{\"type\":\"scale\",\"scale\":[1,1]}]", DAMACY_DECODE, "array of 3"},
        {"[{\"type\":\"scale\",\"scale\":[1,1,1,1]}]", DAMACY_DECODE, "array of 3"},
        {"[{\"type\":\"scale\",\"scale\":[1,\"1\",1]}]", DAMACY_DECODE, "scale[1] is 1"},
        {"[{\"type\":\"scale\",\"scale\":[1,1,1e400]}]", DAMACY_DECODE, "scale[2] is 1e400"},
        {"[{\"type\":\"translation\",\"translation\":[0,null,0]}]", DAMACY_DECODE,
         "translation[1] is null"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        damacy__ngff n;
        damacy_error err;

        (void)snprintf(
            text, sizeof text,
            "{\"multiscales\":[{\"axes\":[\"z\",\"y\",\"x\"],\"datasets\":[{\"path\":\"0\","
            "\"coordinateTransformations\":%s}]}]}",
            cases[i].text);
        CHECK_EQ(parse(text, &n, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].message);
        CHECK_EQ(heap.live_blocks, 0);
    }
}

TEST(paths_out_of_the_group_are_refused)
{
    static const struct {
        const char* path;
        int ok;
    } cases[] = {
        {"0", 1},
        {"s0/data", 1},
        {"...", 1},
        {"..a", 1},
        {"a..", 1},
        {".a", 1},
        {"a b", 1},
        {"%2e%2e", 1},
        {"\\u00e9", 1},
        {"a.b/c.d", 1},
        {"", 0},
        {"/", 0},
        {"/0", 0},
        {"0/", 0},
        {"//host", 0},
        {"a//b", 0},
        {".", 0},
        {"..", 0},
        {"./0", 0},
        {"../0", 0},
        {"a/../../b", 0},
        {"a/..", 0},
        {"a/.", 0},
        {"a/./b", 0},
        {"a\\\\b", 0},
        {"..\\\\x", 0},
        {"a\\u0000b", 0},
        {"a\\nb", 0},
        {"\\u001b[2J", 0},
        {"a\\u007f", 0},
        {"\\u002e\\u002e\\u002f0", 0},
        {"\\/etc", 0},
        {"x/\\u002e./y", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        damacy__ngff n;
        damacy_error err;
        damacy_status status;

        (void)snprintf(text, sizeof text, "{\"multiscales\":[{\"datasets\":[{\"path\":\"%s\"}]}]}",
                       cases[i].path);
        status = parse(text, &n, &err);
        if (status != (cases[i].ok ? DAMACY_OK : DAMACY_DECODE)) {
            printf("# path %s\n", cases[i].path);
        }
        CHECK_EQ(status, cases[i].ok ? DAMACY_OK : DAMACY_DECODE);
        if (status == DAMACY_OK) {
            damacy__ngff_deinit(&n, &heap);
        }
        CHECK_EQ(heap.live_blocks, 0);
    }
}

TEST(long_paths_and_many_levels_are_limited)
{
    static char text[70000];
    damacy__ngff n;
    damacy_error err;

    for (size_t len = 1023; len <= 1025; len++) {
        size_t size =
            (size_t)snprintf(text, sizeof text, "{\"multiscales\":[{\"datasets\":[{\"path\":\"");
        memset(text + size, 'a', len);
        (void)snprintf(text + size + len, sizeof text - size - len, "\"}]}]}");
        CHECK_EQ(parse(text, &n, &err), len <= 1024 ? DAMACY_OK : DAMACY_DECODE);
        if (len <= 1024) {
            damacy__ngff_deinit(&n, &heap);
        }
    }
    for (int n_levels = 1024; n_levels <= 1025; n_levels++) {
        size_t size = (size_t)snprintf(text, sizeof text, "{\"multiscales\":[{\"datasets\":[");
        for (int i = 0; i < n_levels; i++) {
            size += (size_t)snprintf(text + size, sizeof text - size, "%s{\"path\":\"%d\"}",
                                     i ? "," : "", i);
        }
        (void)snprintf(text + size, sizeof text - size, "]}]}");
        CHECK_EQ(parse(text, &n, &err), n_levels <= 1024 ? DAMACY_OK : DAMACY_DECODE);
        if (n_levels <= 1024) {
            CHECK_STR(n.levels[1023].path, "1023");
            damacy__ngff_deinit(&n, &heap);
        }
    }
    CHECK_EQ(heap.live_blocks, 0);
}

static const char whole[] = "{\"ome\":{\"version\":\"0.5\",\"multiscales\":[{" AXES "," LEVELS
                            "}]},\"x\":[1,{\"y\":null}]}";

TEST(prefixes_and_mutations_are_survived)
{
    uint64_t state = test_seed();
    char text[sizeof whole];
    damacy__ngff n;
    damacy_error err;

    for (size_t len = 0; len + 1 < sizeof whole; len++) {
        memcpy(text, whole, len);
        text[len] = '\0';
        CHECK_EQ(parse(text, &n, &err), DAMACY_DECODE);
    }
    for (int round = 0; round < 30000; round++) {
        memcpy(text, whole, sizeof whole);
        for (int i = 0; i < 2; i++) {
            const uint64_t random = test_random(&state);
            text[random % (sizeof whole - 1)] =
                random & 256 ? (char)(random >> 16 | 1) : "[]{}\",:.019"[random >> 16 & 7];
        }
        if (parse(text, &n, &err) == DAMACY_OK) {
            damacy__ngff_deinit(&n, &heap);
        }
        CHECK_EQ(heap.live_blocks, 0);
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
    damacy__alloc failing = {0};
    int n = 0;

    failing.user.alloc = failing_alloc;
    failing.user.free = plain_free;
    for (;; n++) {
        damacy__ngff ngff;
        damacy_error err;
        damacy_status status;

        n_allowed = n;
        status =
            damacy__ngff_parse(&failing, damacy__span_of(whole, sizeof whole - 1), &ngff, &err);
        if (status == DAMACY_OK) {
            damacy__ngff_deinit(&ngff, &failing);
            CHECK_EQ(failing.live_blocks, 0);
            break;
        }
        CHECK_EQ(status, DAMACY_OOM);
        CHECK_EQ(failing.live_blocks, 0);
        CHECK_EQ(failing.live_bytes, 0);
    }
    CHECK(n > 10);
}

TEST_MAIN
