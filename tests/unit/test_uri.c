/* Names to paths. */
#include "tests/test.h"
#include "store/uri.h"

static char path[DAMACY__PATH_SIZE];
static damacy_error error;

static damacy_status parse(const char* uri)
{
    memset(&error, 0, sizeof error);
    (void)snprintf(path, sizeof path, "untouched");
    return damacy__uri_path(uri, path, &error);
}

#define CHECK_PATH(uri, want)    \
    do {                         \
        CHECK_EQ(parse(uri), 0); \
        CHECK_STR(path, want);   \
    } while (0)
#define CHECK_BAD(uri, status, part)    \
    do {                                \
        CHECK_EQ(parse(uri), status);   \
        CHECK_HAS(error.message, part); \
    } while (0)

TEST(uri_plain_paths_are_taken_as_they_are)
{
    CHECK_PATH("/data/a.zarr", "/data/a.zarr");
    CHECK_PATH("a.zarr", "a.zarr");
    CHECK_PATH("../b/a.zarr", "../b/a.zarr");
    CHECK_PATH("a%20b", "a%20b");
    CHECK_PATH("a:b", "a:b");
    CHECK_PATH("a?b#c", "a?b#c");
    CHECK_PATH("a\\b", "a\\b");
    CHECK_PATH("\xff\xfe", "\xff\xfe");
    CHECK_PATH("1://x", "1://x"); /* a scheme begins with a letter */
}

TEST(uri_slashes_at_the_end_are_cut)
{
    CHECK_PATH("/data/a.zarr/", "/data/a.zarr");
    CHECK_PATH("a///", "a");
    CHECK_PATH("/", "/");
    CHECK_PATH("///", "/");
    CHECK_PATH("file:///a/b//", "/a/b");
}

TEST(uri_file_scheme_is_decoded)
{
    CHECK_PATH("file:///data/a.zarr", "/data/a.zarr");
    CHECK_PATH("FILE:///data", "/data");
    CHECK_PATH("file:/data", "/data");
    CHECK_PATH("file://localhost/data", "/data");
    CHECK_PATH("file://LOCALHOST/data", "/data");
    CHECK_PATH("file:///a%20b%2Fc%2fd", "/a b/c/d");
    CHECK_PATH("file:///%ff%41", "/\xff"
                                 "A");
    CHECK_PATH("file:///%25", "/%");
}

TEST(uri_malformed_file_uris_are_refused)
{
    CHECK_BAD("file:///a%00b", DAMACY_INVAL, "%00");
    CHECK_BAD("file:///a%", DAMACY_INVAL, "two hexadecimal digits");
    CHECK_BAD("file:///a%4", DAMACY_INVAL, "two hexadecimal digits");
    CHECK_BAD("file:///a%4g", DAMACY_INVAL, "two hexadecimal digits");
    CHECK_BAD("file:///a%-1", DAMACY_INVAL, "two hexadecimal digits");
    CHECK_BAD("file://server/a", DAMACY_INVAL, "\"server\"");
    CHECK_BAD("file://localhosts/a", DAMACY_INVAL, "localhosts");
    CHECK_BAD("file://", DAMACY_INVAL, "absolute");
    CHECK_BAD("file://localhost", DAMACY_INVAL, "absolute");
    CHECK_BAD("file:a", DAMACY_INVAL, "absolute");
    CHECK_BAD("file:", DAMACY_INVAL, "absolute");
    CHECK_BAD("file:///a?b", DAMACY_INVAL, "%3F");
    CHECK_BAD("file:///a#b", DAMACY_INVAL, "%23");
}

TEST(uri_other_schemes_are_unsupported_by_name)
{
    static const char* const schemes[] = {"http", "https", "s3", "gs",     "az",
                                          "HTTP", "zip",   "hf", "memory", "s3+http"};

    for (size_t i = 0; i < DAMACY__COUNT(schemes); i++) {
        char uri[64];
        char part[64];
        (void)snprintf(uri, sizeof uri, "%s://bucket/a.zarr", schemes[i]);
        (void)snprintf(part, sizeof part, "\"%s\"", schemes[i]);
        CHECK_BAD(uri, DAMACY_UNSUPPORTED, part);
    }
}

TEST(uri_empty_and_too_long_are_refused)
{
    static char long_uri[2 * DAMACY__PATH_SIZE];

    CHECK_BAD("", DAMACY_INVAL, "empty");
    memset(long_uri, 'a', sizeof long_uri - 1);
    CHECK_BAD(long_uri, DAMACY_INVAL, "longer than 4095");
    long_uri[DAMACY__PATH_SIZE] = '\0';
    CHECK_BAD(long_uri, DAMACY_INVAL, "longer than 4095");
    long_uri[DAMACY__PATH_SIZE - 1] = '\0';
    CHECK_EQ(parse(long_uri), DAMACY_OK);
    memset(long_uri, 'b', sizeof long_uri - 1);
    long_uri[0] = 'x';
    memcpy(long_uri + 1, "://", 3);
    long_uri[4000] = '\0';
    CHECK_BAD(long_uri, DAMACY_UNSUPPORTED, "\"x\"");
    memset(long_uri, 'z', 3000);
    memcpy(long_uri + 3000, "://", 3); /* a scheme longer than any message */
    CHECK_BAD(long_uri, DAMACY_UNSUPPORTED, "zzz");
}

TEST(uri_control_bytes_do_not_reach_messages)
{
    CHECK_EQ(parse("file://\x1b[31m\n/a"), DAMACY_INVAL);
    CHECK(strchr(error.message, 0x1b) == NULL);
    CHECK(strchr(error.message, '\n') == NULL);
}

TEST(uri_prefix_of_a_callers_store_is_opaque)
{
    memset(&error, 0, sizeof error);
    CHECK_EQ(damacy__uri_prefix("s3://bucket/%00/../x//", path, &error), DAMACY_OK);
    CHECK_STR(path, "s3://bucket/%00/../x");
    CHECK_EQ(damacy__uri_prefix("", path, &error), DAMACY_INVAL);
}

TEST(keys_go_only_down)
{
    static const char* const good[] = {"zarr.json", ".zarray", "c/0/1", "0.0",     "c",
                                       "...",       "..a/b",   "a/..b", "a\\..\\b"};
    static const char* const bad[] = {"",      "..",     ".",    "../a", "a/..",  "a/../b",
                                      "a/./b", "/a",     "a/",   "a//b", "/",     "//",
                                      "./a",   "a/..//", "..//", "../.", "a/b/.."};
    static char long_key[DAMACY__PATH_SIZE + 1];

    for (size_t i = 0; i < DAMACY__COUNT(good); i++) {
        CHECK_EQ(damacy__key_check(good[i], &error), DAMACY_OK);
    }
    for (size_t i = 0; i < DAMACY__COUNT(bad); i++) {
        CHECK_EQ(damacy__key_check(bad[i], &error), DAMACY_INVAL);
    }
    memset(long_key, 'k', DAMACY__PATH_SIZE);
    CHECK_EQ(damacy__key_check(long_key, &error), DAMACY_INVAL);
}

TEST_MAIN
