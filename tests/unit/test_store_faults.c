/* The store under faults: every system call, every allocation, few descriptors, many threads. */
#include "tests/unit/store_scene.h"

static bool is_transient(int kind, bool once)
{
    switch (kind) {
    case FAULT_ONE_BYTE:
    case FAULT_HALF:
        return true;
    case EINTR:
    case EAGAIN:
    case ESTALE:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return once;
    default:
        return false;
    }
}

TEST(store_survives_every_fault_at_every_call)
{
    static const int kinds[] = {EIO,    EINTR,          EAGAIN,     ESTALE,   EMFILE,
                                ENFILE, ENOENT,         EACCES,     ENOMEM,   ETIMEDOUT,
                                EISDIR, FAULT_ONE_BYTE, FAULT_HALF, FAULT_END};
    int n_calls;
    int n_runs = 0;
    int n_clean = 0;

    make_files();
    start(NULL);
    CHECK_EQ(epoch(&error), DAMACY_OK);
    n_calls = calls.n_calls;
    stop();
    for (uint32_t k = 0; k < DAMACY__COUNT(kinds); k++) {
        for (int once = 0; once < 2; once++) {
            for (int n = 0; n < n_calls; n++) {
                damacy_status status;
                start(NULL);
                calls.fault_at = n;
                calls.fault_kind = kinds[k];
                calls.fault_rounds = once ? 1 : 1 << 30;
                status = epoch(&error);
                CHECK(!once || n_failed <= 1); /* the others are exact */
                n_runs++;
                n_clean += status == DAMACY_OK;
                if (status != DAMACY_OK &&
                    (is_transient(kinds[k], once) || status == DAMACY_DECODE)) {
                    printf("# kind %d, call %d, once %d: %d %s\n", kinds[k], n, once, status,
                           error.message);
                    CHECK(false);
                }
                if (status == DAMACY_NOTFOUND) { /* an answer that the system really gave */
                    CHECK(kinds[k] == ENOENT);
                } else if (status != DAMACY_OK) {
                    CHECK(status == DAMACY_IO || (status == DAMACY_OOM && kinds[k] == ENOMEM));
                    CHECK_HAS(error.message, "a.zarr");
                }
                calls.fault_at = -1;
                CHECK_EQ(epoch(&error), DAMACY_OK); /* the same store works again */
                stop();
            }
        }
    }
    printf("# %d runs, %d of them without an error\n", n_runs, n_clean);
    remove_files();
}

TEST(store_fault_messages_name_object_offset_and_errno)
{
    damacy__root* root = NULL;
    damacy__object* object = NULL;
    uint8_t bytes[10];

    make_files();
    start(NULL);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &root, &error), DAMACY_OK);
    calls.fault_at = 0;
    calls.fault_rounds = 1 << 30;
    calls.fault_kind = EACCES;
    CHECK_EQ(damacy__store_open(&store, root, "c/1", &object, &error), DAMACY_IO);
    CHECK_HAS(error.message, "a.zarr");
    CHECK_HAS(error.message, "EACCES (errno 13)");
    calls.fault_at = -1;
    CHECK_EQ(damacy__store_open(&store, root, "c/1", &object, &error), DAMACY_OK);
    calls.fault_at = 0;
    calls.fault_kind = EIO;
    CHECK_EQ(damacy__store_read(&store, object, 7, bytes, 10, &error), DAMACY_IO);
    CHECK_HAS(error.message, "a.zarr/c/1: cannot read 10 bytes at 7: EIO (errno 5)");
    CHECK_EQ(error.offset, 7);
    calls.fault_kind = 700; /* no name */
    CHECK_EQ(damacy__store_read(&store, object, 7, bytes, 10, &error), DAMACY_IO);
    CHECK_HAS(error.message, "errno 700");
    damacy__store_close(&store, object);
    damacy__store_root_release(&store, root);
    stop();
    remove_files();
}

typedef struct crowd {
    damacy__root* root;
    uint32_t number;
    uint32_t n_rounds;
    int n_failed; /* atomic */
} crowd;

static void* crowd_open_same(void* context)
{
    crowd* c = (crowd*)context;
    damacy_error err;

    memset(&err, 0, sizeof err);
    if (read_file(c->root, c->number, &err) != DAMACY_OK) {
        __atomic_add_fetch(&c->n_failed, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void run_crowd(crowd* c, uint32_t n, void* (*function)(void*))
{
    pthread_t threads[16];

    for (uint32_t i = 0; i < n; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, function, c), 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
}

TEST(store_opens_once_for_eight_threads_and_retries_what_failed)
{
    crowd c;

    memset(&c, 0, sizeof c);
    make_files();
    start(NULL);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &c.root, &error), DAMACY_OK);
    calls.slow_open = 1;
    run_crowd(&c, 8, crowd_open_same);
    CHECK_EQ(c.n_failed, 0);
    CHECK_EQ(calls.n_opens, 1);
    c.number = 99;
    run_crowd(&c, 8, crowd_open_same);
    CHECK_EQ(c.n_failed, 8);
    write_file("a.zarr/c/99", 99, FILE_SIZE);
    CHECK_EQ(read_file(c.root, 99, &error), DAMACY_OK);
    damacy__store_root_release(&store, c.root);
    stop();
    remove_files();
}

static void* crowd_read_all(void* context)
{
    crowd* c = (crowd*)context;
    damacy_error err;
    uint64_t state = (uint64_t)__atomic_add_fetch(&c->number, 1, __ATOMIC_RELAXED) + 12345;

    memset(&err, 0, sizeof err);
    for (uint32_t i = 0; i < c->n_rounds; i++) {
        if (read_file(c->root, (uint32_t)(test_random(&state) % N_FILES), &err) != DAMACY_OK) {
            printf("# %s\n", err.message);
            __atomic_add_fetch(&c->n_failed, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

TEST(store_works_with_24_descriptors_and_keeps_its_limit)
{
    struct rlimit before;
    struct rlimit few;
    damacy__object* objects[N_FILES];
    crowd c;
    char key[32];
    uint8_t byte = 0;

    memset(&c, 0, sizeof c);
    c.n_rounds = 200;
    make_files();
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 24;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    start(NULL);
    CHECK(store.handles.max_open <= 12);
    store.handles.max_open = 6; /* fewer than there are files and threads */
    store.handles.max_operations = 3;
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &c.root, &error), DAMACY_OK);
    for (uint32_t i = 0; i < N_FILES; i++) { /* more open objects than descriptors */
        CHECK_EQ(damacy__store_open(&store, c.root, key_of(i, key), &objects[i], &error),
                 DAMACY_OK);
    }
    run_crowd(&c, 8, crowd_read_all);
    for (uint32_t i = 0; i < N_FILES; i++) {
        CHECK_EQ(damacy__store_read(&store, objects[i], i, &byte, 1, &error), DAMACY_OK);
        CHECK_EQ(byte, byte_of(i, i));
        damacy__store_close(&store, objects[i]);
    }
    CHECK_EQ(c.n_failed, 0);
    CHECK(calls.most_live <= 6);
    CHECK(calls.n_opens > N_FILES); /* they did come and go */
    damacy__store_root_release(&store, c.root);
    stop();
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    remove_files();
}

TEST(store_gives_up_idle_descriptors_when_the_program_has_them_all)
{
    struct rlimit before;
    struct rlimit few;
    int held[64];
    int n = 0;
    damacy__root* root = NULL;

    make_files();
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 32;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    start(NULL);
    CHECK_EQ(damacy__store_root(&store, at("a.zarr"), &root, &error), DAMACY_OK);
    CHECK_EQ(read_file(root, 0, &error), DAMACY_OK);
    while (n < 64 && (held[n] = dup(2)) >= 0) { /* the host program takes all the others */
        n++;
    }
    CHECK_EQ(read_file(root, 1, &error), DAMACY_OK); /* by closing an idle one */
    for (int i = 0; i < n; i++) {
        CHECK_EQ(close(held[i]), 0);
    }
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    damacy__store_root_release(&store, root);
    stop();
    remove_files();
}

static void* failing_alloc(void* user, size_t size, size_t alignment)
{
    int* left = (int*)user;
    void* ptr = NULL;

    if (*left == 0) {
        return NULL;
    }
    --*left;
    return posix_memalign(&ptr, alignment, size) == 0 ? ptr : NULL;
}

static void plain_free(void* user, void* ptr, size_t size)
{
    (void)user;
    (void)size;
    free(ptr);
}

TEST(store_out_of_memory_is_an_error_at_every_allocation)
{
    static damacy_config zero;
    int n = 0;
    damacy_status status = DAMACY_OOM;

    make_files();
    for (; status != DAMACY_OK; n++) {
        int left = n;
        CHECK(n < 1000);
        memset(&alloc, 0, sizeof alloc);
        memset(&error, 0, sizeof error);
        alloc.user.user = &left;
        alloc.user.alloc = failing_alloc;
        alloc.user.free = plain_free;
        status = damacy__store_init(&store, &alloc, &zero, &error);
        if (status == DAMACY_OK) {
            status = epoch(&error);
        }
        CHECK(status == DAMACY_OK || (status == DAMACY_OOM && error.message[0]));
        damacy__store_deinit(&store);
        CHECK_EQ(alloc.live_bytes, 0);
    }
    CHECK(n > 10);
    remove_files();
}

TEST_MAIN
