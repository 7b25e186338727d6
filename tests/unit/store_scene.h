/* A store on real files in a new folder, through system calls that count and fail when told to. */
#ifndef DAMACY_TEST_STORE_SCENE_H
#define DAMACY_TEST_STORE_SCENE_H
#include "tests/test.h"
#include "store/store.h"

enum { N_FILES = 48, FILE_SIZE = 3000 };

static char base[256];
static damacy__alloc alloc;
static damacy__store store;
static damacy_error error;
static int n_failed; /* files of the last epoch that could not be read */

/* What the faulty calls count and do. All of it atomic: several threads may call. */
static struct {
    int live;      /* descriptors that are open */
    int most_live; /* and the most that were */
    int n_calls;   /* opens, stats, reads and closes */
    int n_opens;   /* of objects */
    int n_slept;   /* pauses */
    uint64_t slept_ns;
    int fault_at;     /* number of the call that fails; -1: none */
    int fault_kind;   /* errno, or one of the below */
    int fault_rounds; /* calls that fail from there on */
    int slow_open;    /* opens take a millisecond */
} calls;

enum { FAULT_ONE_BYTE = 1001, FAULT_HALF = 1002, FAULT_END = 1003 };

/* The fault of this call, or 0. */
static int fault(void)
{
    const int n = __atomic_fetch_add(&calls.n_calls, 1, __ATOMIC_RELAXED);

    return calls.fault_at >= 0 && n >= calls.fault_at && n < calls.fault_at + calls.fault_rounds
               ? calls.fault_kind
               : 0;
}

static int faulty_open(void* user, int folder, const char* path, int flags, uint64_t resolve)
{
    const int code = fault();
    int fd;

    if (code > 0 && code < 1000) {
        return -code;
    }
    if (calls.slow_open) {
        damacy__os_call_sleep(NULL, 1000000);
    }
    fd = damacy__os_call_open(user, folder, path, flags, resolve);
    if (fd >= 0) {
        const int live = __atomic_add_fetch(&calls.live, 1, __ATOMIC_RELAXED);
        int most = __atomic_load_n(&calls.most_live, __ATOMIC_RELAXED);
        while (live > most && !__atomic_compare_exchange_n(&calls.most_live, &most, live, false,
                                                           __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        }
        if (!(flags & O_PATH)) {
            __atomic_add_fetch(&calls.n_opens, 1, __ATOMIC_RELAXED);
        }
    }
    return fd;
}

static int faulty_stat(void* user, int fd, struct stat* out)
{
    const int code = fault();

    return code > 0 && code < 1000 ? -code : damacy__os_call_stat(user, fd, out);
}

static int64_t faulty_read(void* user, int fd, void* dst, size_t size, uint64_t offset)
{
    const int code = fault();

    if (code > 0 && code < 1000) {
        return -code;
    }
    if (code == FAULT_END) {
        return 0;
    }
    size = code == FAULT_ONE_BYTE ? 1 : code == FAULT_HALF ? (size + 1) / 2 : size;
    return damacy__os_call_read(user, fd, dst, size, offset);
}

static int faulty_close(void* user, int fd)
{
    (void)fault();
    __atomic_sub_fetch(&calls.live, 1, __ATOMIC_RELAXED);
    return damacy__os_call_close(user, fd);
}

static void count_sleep(void* user, uint64_t ns)
{
    (void)user;
    __atomic_add_fetch(&calls.n_slept, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&calls.slept_ns, ns, __ATOMIC_RELAXED);
}

static const char* at(const char* name)
{
    static char paths[4][512];
    static int next;
    char* path = paths[next++ & 3];

    (void)snprintf(path, 512, "%s/%s", base, name);
    return path;
}

static uint8_t byte_of(uint32_t file, uint64_t offset)
{
    return (uint8_t)(file * 37 + offset * 11 + (offset >> 8));
}

static void write_file(const char* name, uint32_t number, size_t size)
{
    FILE* file = fopen(at(name), "wb");

    CHECK(file != NULL);
    for (size_t i = 0; i < size; i++) {
        CHECK(fputc(byte_of(number, i), file) != EOF);
    }
    CHECK(fclose(file) == 0);
}

/* Into key[32]. */
static const char* key_of(uint32_t number, char* key)
{
    (void)snprintf(key, 32, "c/%u", number);
    return key;
}

static void make_files(void)
{
    (void)snprintf(base, sizeof base, "/tmp/damacy-store-XXXXXX");
    CHECK(mkdtemp(base) != NULL);
    CHECK(mkdir(at("a.zarr"), 0700) == 0 && mkdir(at("a.zarr/c"), 0700) == 0);
    for (uint32_t i = 0; i < N_FILES; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "a.zarr/c/%u", i);
        write_file(name, i, FILE_SIZE);
    }
}

static void remove_files(void)
{
    char command[300];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", base);
    CHECK(system(command) == 0);
}

static void start(const damacy_config* config)
{
    static damacy_config zero;

    memset(&alloc, 0, sizeof alloc);
    memset(&error, 0, sizeof error);
    memset(&calls, 0, sizeof calls);
    calls.fault_at = -1;
    CHECK_EQ(damacy__store_init(&store, &alloc, config ? config : &zero, &error), DAMACY_OK);
    store.os.open = faulty_open;
    store.os.stat = faulty_stat;
    store.os.read = faulty_read;
    store.os.close = faulty_close;
    store.os.sleep = count_sleep;
}

/* Nothing is left: the rule of every test. */
static void stop(void)
{
    damacy__store_deinit(&store);
    CHECK_EQ(calls.live, 0);
    CHECK_EQ(alloc.live_blocks, 0);
    CHECK_EQ(alloc.live_bytes, 0);
}

/* Opens, reads two pieces, compares and closes. */
static damacy_status read_file(damacy__root* root, uint32_t number, damacy_error* err)
{
    uint8_t bytes[FILE_SIZE];
    char key[32];
    damacy__object* object = NULL;
    damacy_status status;

    DAMACY__TRY(damacy__store_open(&store, root, key_of(number, key), &object, err));
    status = damacy__object_size(object) == FILE_SIZE ? DAMACY_OK : DAMACY_DECODE;
    if (status == DAMACY_OK) {
        status = damacy__store_read(&store, object, 1000, bytes + 1000, FILE_SIZE - 1000, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__store_read(&store, object, 0, bytes, 1000, err);
    }
    damacy__store_close(&store, object);
    for (uint32_t i = 0; i < FILE_SIZE && status == DAMACY_OK; i++) {
        status = bytes[i] == byte_of(number, i) ? DAMACY_OK : DAMACY_DECODE;
    }
    return status;
}

/* One array from opening to closing; the first status that is not OK. */
static damacy_status epoch(damacy_error* err)
{
    damacy__root* root = NULL;
    damacy_status first = DAMACY_OK;

    n_failed = 0;
    DAMACY__TRY(damacy__store_root(&store, at("a.zarr"), &root, err));
    for (uint32_t i = 0; i < N_FILES; i++) {
        damacy_error mine;
        damacy_status status;
        memset(&mine, 0, sizeof mine);
        status = read_file(root, i, &mine);
        n_failed += status != DAMACY_OK;
        if (status != DAMACY_OK && first == DAMACY_OK) {
            first = status;
            *err = mine;
        }
    }
    damacy__store_root_release(&store, root);
    return first;
}
#endif
