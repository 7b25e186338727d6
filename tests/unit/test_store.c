/* The store: what is there, what is missing, what has changed, and callers' stores. */
#include "tests/unit/store_scene.h"

TEST(store_reads_exactly_what_is_asked_for)
{
    make_files();
    start(NULL);
    CHECK_EQ(epoch(&error), DAMACY_OK);
    CHECK_EQ(calls.n_opens, N_FILES);
    stop();
    remove_files();
}

TEST(store_read_beyond_the_end_is_an_error_with_numbers)
{
    uint8_t bytes[64];
    damacy__root* root = NULL;
    damacy__object* object = NULL;

    make_files();
    start(NULL);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &root, &error), DAMACY_OK);
    CHECK_EQ(damacy__store_open(&store, root, "c/0", &object, &error), DAMACY_OK);
    CHECK_EQ(damacy__store_read(&store, object, FILE_SIZE - 63, bytes, 64, &error), DAMACY_IO);
    CHECK_HAS(error.message, "wanted 64 bytes at 2937, the object ends at 3000");
    CHECK_EQ(error.offset, FILE_SIZE - 63);
    CHECK_EQ(damacy__store_read(&store, object, UINT64_MAX, bytes, 64, &error), DAMACY_IO);
    CHECK_EQ(damacy__store_read(&store, object, FILE_SIZE + 1, bytes, 0, &error), DAMACY_IO);
    CHECK_EQ(damacy__store_read(&store, object, FILE_SIZE, bytes, 0, &error), DAMACY_OK);
    CHECK_EQ(damacy__store_read(&store, object, FILE_SIZE - 64, bytes, 64, &error), DAMACY_OK);
    CHECK_EQ(truncate(at("a.zarr/c/0"), 100), 0); /* while it is open */
    CHECK_EQ(damacy__store_read(&store, object, 90, bytes, 64, &error), DAMACY_IO);
    CHECK_HAS(error.message, "a.zarr/c/0: wanted 64 bytes at 90, the object ends at 100");
    damacy__store_close(&store, object);
    CHECK_EQ(damacy__store_open(&store, root, "c/0", &object, &error), DAMACY_OK);
    CHECK_EQ(damacy__object_size(object), 100);
    damacy__store_close(&store, object);
    damacy__store_root_release(&store, root);
    stop();
    remove_files();
}

TEST(store_names_what_is_wrong_with_a_root)
{
    damacy__root* root = NULL;
    char uri[300];

    make_files();
    start(NULL);
    CHECK_EQ(damacy__store_root(&store, at("no.zarr"), &root, &error), DAMACY_NOTFOUND);
    CHECK_HAS(error.message, "no.zarr: there is no such folder");
    CHECK_EQ(damacy__store_root(&store, at("a.zarr/c/0"), &root, &error), DAMACY_NOTFOUND);
    CHECK_HAS(error.message, "not a folder");
    CHECK_EQ(damacy__store_root(&store, "s3://b/a.zarr", &root, &error), DAMACY_UNSUPPORTED);
    CHECK_EQ(damacy__store_root(&store, "", &root, &error), DAMACY_INVAL);
    CHECK(root == NULL);
    (void)snprintf(uri, sizeof uri, "file://%s/", at("a.zarr"));
    CHECK_EQ(damacy__store_root(&store, uri, &root, &error), DAMACY_OK);
    damacy__store_root_release(&store, root);
    stop();
    remove_files();
}

TEST(store_only_absent_objects_are_missing)
{
    damacy__root* root = NULL;
    damacy__object* object = NULL;

    make_files();
    CHECK(symlink("gone", at("a.zarr/link")) == 0);
    CHECK(mkfifo(at("a.zarr/fifo"), 0600) == 0);
    start(NULL);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &root, &error), DAMACY_OK);
    CHECK_EQ(damacy__store_open(&store, root, "c/99", &object, &error), DAMACY_NOTFOUND);
    CHECK_HAS(error.message, "a.zarr/c/99: there is no such object");
    CHECK_EQ(damacy__store_open(&store, root, "d/1/2/3", &object, &error), DAMACY_NOTFOUND);
    CHECK_EQ(damacy__store_open(&store, root, "c/0/1", &object, &error), DAMACY_IO);
    CHECK_HAS(error.message, "ENOTDIR");
    CHECK_EQ(damacy__store_open(&store, root, "c", &object, &error), DAMACY_IO);
    CHECK_HAS(error.message, "not a regular file but a folder");
    CHECK_EQ(damacy__store_open(&store, root, "fifo", &object, &error), DAMACY_IO);
    CHECK_HAS(error.message, "FIFO");
    CHECK_EQ(damacy__store_open(&store, root, "link", &object, &error), DAMACY_IO);
    CHECK_EQ(damacy__store_open(&store, root, "../b", &object, &error), DAMACY_INVAL);
    CHECK(object == NULL);
    remove_files(); /* the whole array goes while it is in use */
    CHECK_EQ(damacy__store_open(&store, root, "c/3", &object, &error), DAMACY_IO);
    CHECK_HAS(error.message, "removed or replaced");
    damacy__store_root_release(&store, root);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &root, &error), DAMACY_NOTFOUND);
    stop();
}

TEST(store_notices_a_replaced_file_and_folder)
{
    uint8_t byte;
    uint64_t stamp;
    damacy__root* root = NULL;
    damacy__root* again = NULL;
    damacy__object* object = NULL;

    make_files();
    start(NULL);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &root, &error), DAMACY_OK);
    CHECK_EQ(damacy__store_open(&store, root, "c/0", &object, &error), DAMACY_OK);
    stamp = damacy__object_stamp(object);
    damacy__store_close(&store, object);
    write_file("new", 77, FILE_SIZE + 1);
    CHECK_EQ(rename(at("new"), at("a.zarr/c/0")), 0);
    CHECK_EQ(damacy__store_open(&store, root, "c/0", &object, &error), DAMACY_OK); /* was idle */
    CHECK_EQ(damacy__object_size(object), FILE_SIZE + 1);
    CHECK(damacy__object_stamp(object) != stamp);
    write_file("new", 78, FILE_SIZE);
    CHECK_EQ(rename(at("new"), at("a.zarr/c/0")), 0);
    CHECK_EQ(damacy__store_read(&store, object, 5, &byte, 1, &error), DAMACY_OK);
    CHECK_EQ(byte, byte_of(77, 5)); /* still the file that was opened */
    (void)damacy__handles_drop_idle(&store.handles);
    CHECK_EQ(damacy__store_read(&store, object, 5, &byte, 1, &error), DAMACY_IO);
    CHECK_HAS(error.message, "a.zarr/c/0: the object was removed or replaced while in use");
    damacy__store_close(&store, object);
    CHECK_EQ(read_file(root, 78, &error), DAMACY_NOTFOUND);
    CHECK_EQ(damacy__store_open(&store, root, "c/0", &object, &error), DAMACY_OK);
    CHECK_EQ(damacy__object_size(object), FILE_SIZE);
    damacy__store_close(&store, object);
    CHECK_EQ(rename(at("a.zarr"), at("old.zarr")), 0);
    CHECK(mkdir(at("a.zarr"), 0700) == 0);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &again, &error), DAMACY_OK);
    CHECK(again != root);
    CHECK_EQ(damacy__store_open(&store, again, "c/1", &object, &error), DAMACY_NOTFOUND);
    CHECK_EQ(read_file(root, 1, &error), DAMACY_OK);
    (void)damacy__handles_drop_idle(&store.handles);
    CHECK_EQ(read_file(root, 2, &error), DAMACY_IO);
    CHECK_HAS(error.message, "the folder was removed or replaced");
    damacy__store_root_release(&store, root);
    damacy__store_root_release(&store, again);
    stop();
    remove_files();
}

TEST(store_names_of_any_length_leave_room_for_the_cause)
{
    damacy__root root;
    char text[DAMACY__NAME_TEXT];
    char path[DAMACY__PATH_SIZE];
    char key[600];

    memset(&root, 0, sizeof root);
    root.path = path;
    for (size_t n = 1; n < 600; n += 7) {
        for (size_t m = 1; m < 600; m += 13) {
            memset(path, 'p', n);
            path[n] = '\0';
            root.path_len = n;
            memset(key, 'k', m - 1);
            key[m - 1] = 'e';
            key[m] = '\0';
            damacy__store_name(&root, key, text);
            CHECK(strlen(text) < sizeof text);
            CHECK(text[strlen(text) - 1] == 'e');
            CHECK(n + m < 200 ? strlen(text) == n + m + 1 : strlen(text) >= 200);
            damacy__store_name(&root, NULL, text);
            CHECK(n < 200 ? strcmp(text, path) == 0 : text[strlen(text) - 1] == 'p');
        }
    }
}

TEST(store_steady_state_allocates_nothing)
{
    damacy__root* root = NULL;
    uint64_t n_calls;

    make_files();
    start(NULL);
    store.max_idle = 4;
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &root, &error), DAMACY_OK);
    for (uint32_t i = 0; i < 2 * N_FILES; i++) {
        CHECK_EQ(read_file(root, i % N_FILES, &error), DAMACY_OK);
    }
    n_calls = alloc.n_calls;
    for (uint32_t i = 0; i < 10 * N_FILES; i++) {
        CHECK_EQ(read_file(root, i * 7 % N_FILES, &error), DAMACY_OK);
    }
    CHECK_EQ(alloc.n_calls, n_calls);
    CHECK(store.n_idle <= 4);
    damacy__store_root_release(&store, root);
    stop();
    remove_files();
}

TEST(store_delays_every_open_and_read_by_the_model)
{
    damacy_config config;
    damacy__root* root = NULL;
    uint64_t first;

    memset(&config, 0, sizeof config);
    config.debug_latency.base_ns = 1000;
    config.debug_latency.mu = 8;
    config.debug_latency.sigma = 1;
    config.debug_latency.seed = 5;
    make_files();
    start(&config);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &root, &error), DAMACY_OK);
    CHECK_EQ(read_file(root, 0, &error), DAMACY_OK);
    CHECK_EQ(calls.n_slept, 3); /* an open and two reads */
    CHECK(calls.slept_ns > 3000);
    CHECK_EQ(read_file(root, 0, &error), DAMACY_OK);
    CHECK_EQ(calls.n_slept, 5); /* it was open */
    damacy__store_root_release(&store, root);
    stop();
    first = damacy__latency_ns(&config.debug_latency, 0);
    CHECK_EQ(damacy__latency_ns(&config.debug_latency, 0), first);
    config.debug_latency.seed = 6;
    CHECK(damacy__latency_ns(&config.debug_latency, 0) != first);
    remove_files();
}

TEST(latency_has_the_mean_floor_and_cap_of_the_model)
{
    damacy_latency model;
    double sum = 0;
    int n_capped = 0;

    memset(&model, 0, sizeof model);
    model.base_ns = 100;
    CHECK_EQ(damacy__latency_ns(&model, 7), 100);
    model.base_ns = 0;
    model.mu = 10;
    model.sigma = 0.5;
    for (uint64_t i = 0; i < 20000; i++) {
        sum += (double)damacy__latency_ns(&model, i);
    }
    sum /= 20000; /* exp(10 + 0.125) = 24959 */
    CHECK(sum > 24300 && sum < 25600);
    model.base_ns = 5000;
    model.cap_ns = 20000;
    for (uint64_t i = 0; i < 2000; i++) {
        const uint64_t ns = damacy__latency_ns(&model, i);
        CHECK(ns >= 5000 && ns <= 20000);
        n_capped += ns == 20000;
    }
    CHECK(n_capped > 1000);
    model.cap_ns = 10; /* below the base: the base holds */
    CHECK_EQ(damacy__latency_ns(&model, 0), 5000);
    model.cap_ns = 0;
    model.mu = 1e300;
    CHECK(damacy__latency_ns(&model, 0) > UINT64_C(1000000000000000000));
    model.mu = -1e300;
    CHECK_EQ(damacy__latency_ns(&model, 0), 5000);
    model.base_ns = UINT64_MAX;
    model.mu = 40;
    CHECK_EQ(damacy__latency_ns(&model, 0), UINT64_MAX);
}

/* A caller's store of one object, "mem://x/c/0", whose answers are chosen by the test. */
typedef struct memory_store {
    damacy_status open_status;
    damacy_status read_status;
    size_t most;   /* bytes per read */
    size_t excess; /* claimed beyond what was asked */
    uint64_t size; /* claimed */
    int n_open;    /* open now */
    int n_opened;  /* ever */
    char last_key[64];
} memory_store;

static damacy_status memory_open(void* user, const char* key, void** object, uint64_t* size)
{
    memory_store* m = (memory_store*)user;

    (void)snprintf(m->last_key, sizeof m->last_key, "%s", key);
    if (m->open_status != DAMACY_OK) {
        return m->open_status;
    }
    if (strncmp(key, "mem://x/c/", 10) != 0) {
        return DAMACY_NOTFOUND;
    }
    m->n_open++;
    m->n_opened++;
    *object = m;
    *size = m->size;
    return DAMACY_OK;
}

static damacy_status memory_read(void* user, void* object, uint64_t offset, void* dst, size_t size,
                                 size_t* n_read)
{
    memory_store* m = (memory_store*)user;
    size_t n = offset < FILE_SIZE ? (size_t)(FILE_SIZE - offset) : 0;

    CHECK(object == m);
    n = DAMACY__MIN(DAMACY__MIN(n, m->most), size);
    for (size_t i = 0; i < n; i++) {
        ((uint8_t*)dst)[i] = byte_of(0, offset + i);
    }
    *n_read = n + m->excess;
    return m->read_status;
}

static void memory_close(void* user, void* object)
{
    CHECK(object == user);
    ((memory_store*)user)->n_open--;
}

TEST(store_of_the_caller_gets_prefixed_keys_and_is_not_trusted)
{
    static const damacy_status odd[] = {DAMACY_AGAIN, DAMACY_END, (damacy_status)99,
                                        (damacy_status)-1};
    memory_store m;
    damacy_config config;
    char key[32];
    damacy__root* root = NULL;
    damacy__object* object = NULL;

    memset(&m, 0, sizeof m);
    memset(&config, 0, sizeof config);
    m.most = 70;
    m.size = FILE_SIZE;
    config.store.user = &m;
    config.store.open = memory_open;
    config.store.read_at = memory_read;
    config.store.close = memory_close;
    start(&config);
    CHECK_EQ(damacy__store_root(&store, "mem://x/", &root, &error), DAMACY_OK);
    CHECK_EQ(read_file(root, 0, &error), DAMACY_OK);
    CHECK_STR(m.last_key, "mem://x/c/0");
    CHECK_EQ(read_file(root, 0, &error), DAMACY_OK);
    CHECK_EQ(m.n_opened, 1);
    CHECK_EQ(damacy__store_open(&store, root, "zarr.json", &object, &error), DAMACY_NOTFOUND);
    CHECK_EQ(damacy__store_open(&store, root, "../zarr.json", &object, &error), DAMACY_INVAL);
    m.excess = 1;
    CHECK_EQ(read_file(root, 0, &error), DAMACY_IO);
    m.excess = 0;
    for (uint32_t i = 0; i < DAMACY__COUNT(odd); i++) {
        m.read_status = odd[i];
        CHECK_EQ(read_file(root, 0, &error), DAMACY_IO);
        m.read_status = DAMACY_OK;
        m.open_status = odd[i];
        CHECK_EQ(damacy__store_open(&store, root, "c/7", &object, &error), DAMACY_IO);
        m.open_status = DAMACY_OK;
    }
    m.read_status = DAMACY_NOTFOUND; /* it was there when it was opened */
    CHECK_EQ(read_file(root, 0, &error), DAMACY_IO);
    CHECK_HAS(error.message, "mem://x/c/0");
    m.read_status = DAMACY_OOM;
    CHECK_EQ(read_file(root, 0, &error), DAMACY_OOM);
    m.read_status = DAMACY_OK;
    m.size = FILE_SIZE + 50;
    CHECK_EQ(damacy__store_open(&store, root, "c/1", &object, &error), DAMACY_OK);
    {
        uint8_t bytes[80];
        CHECK_EQ(damacy__store_read(&store, object, FILE_SIZE - 20, bytes, 40, &error), DAMACY_IO);
        CHECK_HAS(error.message, "wanted 40 bytes at 2980, the object ends at 3000");
    }
    damacy__store_close(&store, object);
    for (uint32_t i = 0; i < 200; i++) {
        CHECK_EQ(damacy__store_open(&store, root, key_of(i, key), &object, &error), DAMACY_OK);
        damacy__store_close(&store, object);
    }
    CHECK(m.n_open <= 64);
    damacy__store_root_release(&store, root);
    stop();
    CHECK_EQ(m.n_open, 0);
}

TEST(store_relative_roots_stay_put_when_the_program_moves)
{
    char before[512];
    damacy__root* root = NULL;

    CHECK(getcwd(before, sizeof before) != NULL);
    make_files();
    start(NULL);
    CHECK_EQ(chdir(base), 0);
    CHECK_EQ(damacy__store_root(&store, "a.zarr", &root, &error), DAMACY_OK);
    CHECK_EQ(chdir("/"), 0);
    CHECK_EQ(read_file(root, 0, &error), DAMACY_OK);
    (void)damacy__handles_drop_idle(&store.handles);
    CHECK_EQ(read_file(root, 1, &error), DAMACY_OK);
    damacy__store_root_release(&store, root);
    CHECK_EQ(chdir(before), 0);
    stop();
    remove_files();
}

TEST_MAIN
