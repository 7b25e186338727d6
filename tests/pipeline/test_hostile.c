/* Stores that claim much and hold little, and files that may not be read: everything ends soon,
 * within the budget, with an error that says what it was. */
#include "tests/pipeline/semantics.h"
#include "tests/pipeline/local_files.h"
#include <sys/wait.h>
#include <zstd.h>

static damacy_status read_document(const char* text, int64_t extent, damacy_stats* stats,
                                   damacy_error* err)
{
    mem_store* m = mem_new();
    damacy_config c = config_of(m, 1);
    damacy_sample s;
    damacy_batch batch;
    damacy_status status;
    damacy* d = NULL;

    c.max_host_bytes = UINT64_C(8) << 20;
    c.dtype = DAMACY_U8;
    mem_put(m, "b/zarr.json", text, strlen(text));
    mem_put(m, "b/c/0/0", "small", 5);
    memset(&s, 0, sizeof s);
    s.uri = "b";
    s.rank = 2;
    s.box[0].end = s.box[1].end = extent;
    CHECK_EQ(damacy_create(&c, &d, err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, err), DAMACY_OK);
    status = damacy_pop(d, &batch, err);
    if (status == DAMACY_OK) {
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    damacy_stats_get(d, stats);
    CHECK(stats->host_bytes_committed <= c.max_host_bytes);
    damacy_destroy(d);
    CHECK_EQ(m->n_open, 0);
    mem_free(m);
    return status;
}

/* A few bytes that ask for terabytes. */
TEST(documents_that_claim_huge_chunks_cost_no_memory)
{
    static const char format[] =
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[%s],\"data_type\":\"uint8\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[%s]}},"
        "\"chunk_key_encoding\":{\"name\":\"default\"},\"fill_value\":0,\"codecs\":[%s]}";
    static const struct {
        const char* shape;
        const char* chunk;
        const char* codecs;
        const char* part; /* of the message */
    } cases[] = {
        {"1048576,1048576", "1048576,1048576", "\"bytes\",\"zstd\"", "2147483648"},
        {"2147483648,4294967295", "2147483648,4294967295", "\"bytes\"", "2147483648"},
        {"1048576,1048576", "1048576,1048576",
         "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[1,1],\"codecs\":["
         "\"bytes\"],\"index_codecs\":[\"bytes\"]}}",
         "16777216 chunks"},
        {"8192,8192", "8192,8192",
         "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[8192,8192],\"codecs\":"
         "["
         "\"bytes\",\"zstd\"],\"index_codecs\":[\"bytes\",\"crc32c\"]}},\"gzip\"",
         "67108"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1200];
        damacy_stats stats;
        damacy_error err;
        damacy_status status;
        (void)snprintf(text, sizeof text, format, cases[i].shape, cases[i].chunk, cases[i].codecs);
        status = read_document(text, 4, &stats, &err);
        printf("# %s: %s\n", damacy_status_str(status), err.message);
        CHECK(status == DAMACY_BUDGET || status == DAMACY_UNSUPPORTED || status == DAMACY_DECODE);
        CHECK_HAS(err.message, cases[i].part);
    }
}

/* Thirteen bytes that decode to a whole chunk, and a shard whose entries are all those bytes. */
TEST(amplification_is_bounded_by_what_the_metadata_says)
{
    enum { CHUNK = 1 << 17, N = 64 };
    mem_store* m = mem_new();
    damacy_config c = config_of(m, 1);
    const size_t index_size = 16 * N;
    uint8_t* bytes = (uint8_t*)malloc(CHUNK + index_size);
    uint8_t* raw = (uint8_t*)calloc(CHUNK, 1);
    char text[1024];
    damacy_sample s;
    damacy_error err;
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_stats stats;
    damacy* d = NULL;
    size_t n;

    memset(raw, 0x2a, CHUNK);
    n = ZSTD_compress(bytes, CHUNK, raw, CHUNK, 19);
    CHECK(!ZSTD_isError(n) && n < 100);
    for (uint64_t i = 0; i < N; i++) {
        const uint64_t entry[2] = {0, n}; /* all of them the same extent: legal */
        memcpy(bytes + n + 16 * i, entry, 16);
    }
    mem_put(m, "b/c/0", bytes, n + index_size);
    (void)snprintf(
        text, sizeof text,
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[%d],\"data_type\":\"uint8\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[%d]}},"
        "\"chunk_key_encoding\":{\"name\":\"default\"},\"fill_value\":0,\"codecs\":[{"
        "\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[%d],\"codecs\":"
        "[\"bytes\",\"zstd\"],\"index_codecs\":[\"bytes\"]}}]}",
        CHUNK * N, CHUNK * N, CHUNK);
    mem_put(m, "b/zarr.json", text, strlen(text));
    memset(&s, 0, sizeof s);
    s.uri = "b";
    s.rank = 1;
    s.box[0].end = CHUNK * N;
    c.dtype = DAMACY_U8;
    c.batch_slots = 2;
    c.max_host_bytes = UINT64_C(48) << 20; /* 8 MiB decoded from under 100 bytes */
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    for (size_t i = 0; i < (size_t)CHUNK * N; i++) {
        CHECK_EQ(((const uint8_t*)info.ptr)[i], 0x2a);
    }
    damacy_stats_get(d, &stats);
    CHECK(stats.host_bytes_committed <= c.max_host_bytes);
    CHECK(stats.read.bytes_in < 1000); /* read once */
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    free(raw);
    free(bytes);
    mem_free(m);
}

/* Where both versions describe an array, the newer one counts. */
TEST(of_two_versions_of_metadata_the_newer_one_counts)
{
    static const char old[] =
        "{\"zarr_format\":2,\"shape\":[1,1,1],\"chunks\":[1,1,1],\"dtype\":\"|u1\",\"compressor\":"
        "null,\"fill_value\":0,\"order\":\"C\",\"filters\":null}";
    mem_array a = mem_plain("v.zarr");
    damacy_error err;

    folder_begin();
    put_array_files(&a);
    put_file("v.zarr/.zarray", old, sizeof old - 1);
    CHECK_EQ(read_file(&a, in_folder("v.zarr"), 5, 8, &err), DAMACY_OK);
    put_file("v.zarr/zarr.json", "{", 1); /* broken is not missing */
    CHECK_EQ(read_file(&a, in_folder("v.zarr"), 0, 1, &err), DAMACY_DECODE);
    CHECK_EQ(unlink(in_folder("v.zarr/zarr.json")), 0);
    CHECK_EQ(read_file(&a, in_folder("v.zarr"), 5, 8, &err), DAMACY_INVAL); /* 1 x 1 x 1 now */
    folder_end();
}

/* Files that this user may not read are errors, never missing chunks. */
TEST(files_without_permission_are_errors)
{
    static const char* const names[] = {"v.zarr/c/0/0/0", "v.zarr/c/0", "v.zarr/zarr.json"};
    mem_array a = mem_plain("v.zarr");

    for (int i = 0; i < 3; i++) {
        int code = -1;
        pid_t child;
        folder_begin();
        CHECK_EQ(chmod(folder, 0755), 0);
        put_array_files(&a);
        CHECK_EQ(chmod(in_folder(names[i]), 0), 0);
        (void)fflush(stdout);
        child = fork();
        if (child == 0) { /* root may read everything */
            damacy_error err;
            damacy_status status;
            if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) {
                _exit(77);
            }
            status = read_file(&a, in_folder("v.zarr"), 0, 8, &err);
            printf("# %s: %s\n", damacy_status_str(status), err.message);
            (void)fflush(stdout);
            _exit(status == DAMACY_IO && strstr(err.message, "EACCES") ? 0 : 1);
        }
        CHECK(child > 0);
        CHECK_EQ(waitpid(child, &code, 0), child);
        CHECK_EQ(chmod(in_folder(names[i]), 0755), 0);
        folder_end();
        if (WIFEXITED(code) && WEXITSTATUS(code) == 77) {
            SKIP("this user can neither read less nor become another one");
        }
        CHECK(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    }
}

TEST_MAIN
