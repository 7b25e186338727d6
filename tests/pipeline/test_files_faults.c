/* Local files while the world changes: signals, forks, few descriptors, files that are replaced,
 * truncated, deleted or written while they are read. */
#include "tests/pipeline/semantics.h"
#include "tests/pipeline/local_files.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { N_SAMPLES = 48, PER_BATCH = 4, SIDE = 16, VOXELS = SIDE * SIDE * SIDE };

/* While threads are joined, no signal for this thread where the thread sanitizer watches: in
 * pthread_join it calls a handler at once, and where the C library frees the thread's memory in
 * there, the handler waits for a lock of the sanitizer that this thread holds (clang 14). Nothing
 * else holds them back: without that sanitizer signals come at every place. `how`: SIG_BLOCK or
 * SIG_UNBLOCK. */
static void hold_signals(int how)
{
    sigset_t set;

    if (!TEST_TSAN) {
        return;
    }
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigaddset(&set, SIGUSR1);
    (void)pthread_sigmask(how, &set, NULL);
}

/* Two arrays as files, in many small ones and in shards, and samples of both. */
typedef struct world {
    mem_array arrays[2];
    char uris[2][300];
    damacy_sample samples[N_SAMPLES];
} world;

static void world_make(world* w, uint64_t* seed)
{
    memset(w, 0, sizeof *w);
    folder_begin();
    for (int i = 0; i < 2; i++) {
        mem_array* a = &w->arrays[i];
        *a = mem_plain(i ? "shards.zarr" : "chunks.zarr");
        a->seed = 500u * (uint32_t)i;
        for (int k = 0; k < 3; k++) {
            a->chunk[k] = 8;
            a->shard[k] = i ? 16 : 0;
        }
        put_array_files(a);
        (void)snprintf(w->uris[i], sizeof w->uris[i], "%s/%s", folder, a->uri);
    }
    for (int i = 0; i < N_SAMPLES; i++) {
        w->samples[i] =
            mem_sample(&w->arrays[i % 2], (int64_t)(test_random(seed) % 25),
                       (int64_t)(test_random(seed) % 25), (int64_t)(test_random(seed) % 25), SIDE);
        w->samples[i].uri = w->uris[i % 2];
    }
}

/* Whether all samples of a held batch are right; the first one has the number `first`. */
static int batch_matches(const world* w, damacy_batch batch, int first)
{
    damacy_batch_info_t info;

    if (damacy_batch_info(batch, &info) != DAMACY_OK || info.n_failed != 0) {
        return 0;
    }
    for (int k = 0; k < (int)info.shape[0]; k++) {
        if (!mem_equal_f32(&w->arrays[(first + k) % 2], &w->samples[first + k],
                           (const float*)info.ptr + k * VOXELS, 0.0f)) {
            return 0;
        }
    }
    return 1;
}

/* Everything once; 0: all right, else the number of the line that was not. */
static int epoch(const world* w, uint32_t io_threads, void (*midway)(damacy* d, void* context),
                 void* context)
{
    damacy_config c = files_config(PER_BATCH, DAMACY_ON_ERROR_STOP);
    damacy_error err;
    damacy* d = NULL;
    int line = 0;

    c.io_threads = io_threads;
    if (damacy_create(&c, &d, &err) != DAMACY_OK ||
        damacy_push(d, w->samples, N_SAMPLES, NULL, &err) != DAMACY_OK) {
        printf("# %s\n", err.message);
        line = __LINE__;
    }
    for (int i = 0; i < N_SAMPLES && !line; i += PER_BATCH) {
        damacy_batch batch;
        const damacy_status status = damacy_pop(d, &batch, &err);
        if (status != DAMACY_OK) {
            printf("# %s: %s\n", err.uri, err.message);
            line = __LINE__;
        } else {
            line = batch_matches(w, batch, i) ? 0 : __LINE__;
            if (midway && i == 2 * PER_BATCH) {
                midway(d, context);
            }
            line = damacy_release(batch) == DAMACY_OK ? line : __LINE__;
        }
    }
    hold_signals(SIG_BLOCK);
    damacy_destroy(d);
    hold_signals(SIG_UNBLOCK);
    return line;
}

TEST(an_epoch_of_files_leaves_no_descriptor_open)
{
    uint64_t seed = test_seed();
    const int n = n_descriptors();
    world w;

    world_make(&w, &seed);
    CHECK_EQ(epoch(&w, 4, NULL, NULL), 0);
    CHECK_EQ(n_descriptors(), n);
    folder_end();
}

/* s48: a process that may open 24 files reads arrays of some 150. */
TEST(s48_an_epoch_works_with_24_descriptors)
{
    uint64_t seed = test_seed();
    int code = -1;
    pid_t child;
    world w;

    world_make(&w, &seed);
    (void)fflush(stdout);
    child = fork(); /* the limit is the process's */
    if (child == 0) {
        const struct rlimit limit = {24, 24};
        int line = setrlimit(RLIMIT_NOFILE, &limit) == 0 ? 0 : __LINE__;
        for (uint32_t n = 1; n <= 32 && !line; n *= 4) {
            line = epoch(&w, n, NULL, NULL);
        }
        (void)fflush(stdout);
        _exit(line ? 1 : 0);
    }
    CHECK(child > 0);
    CHECK_EQ(waitpid(child, &code, 0), child);
    CHECK(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    folder_end();
}

static uint64_t n_signals; /* atomic */

static void on_signal(int number)
{
    (void)number;
    __atomic_add_fetch(&n_signals, 1, __ATOMIC_RELAXED);
}

typedef struct storm {
    pthread_t target;
    int is_over; /* atomic */
} storm;

/* Signals for one thread, as fast as it goes. */
static void* storm_main(void* context)
{
    storm* s = (storm*)context;

    while (!__atomic_load_n(&s->is_over, __ATOMIC_RELAXED)) {
        (void)pthread_kill(s->target, SIGUSR1);
        usleep(50);
    }
    return NULL;
}

/* Handlers without SA_RESTART: every call that can be interrupted is. The threads of the library
 * block signals; opening arrays, verifying and waiting happen on this one. */
TEST(a_storm_of_signals_disturbs_nothing)
{
    uint64_t seed = test_seed();
    struct sigaction action;
    struct sigaction before[2];
    const struct itimerval fast = {{0, 300}, {0, 300}};
    const struct itimerval none = {{0, 0}, {0, 0}};
    damacy_config c = files_config(1, DAMACY_ON_ERROR_STOP);
    damacy_verify_result result;
    damacy_error err;
    pthread_t thread;
    storm s;
    world w;

    world_make(&w, &seed);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    CHECK_EQ(sigaction(SIGALRM, &action, &before[0]), 0);
    CHECK_EQ(sigaction(SIGUSR1, &action, &before[1]), 0);
    memset(&s, 0, sizeof s);
    s.target = pthread_self();
    CHECK_EQ(pthread_create(&thread, NULL, storm_main, &s), 0);
    CHECK_EQ(setitimer(ITIMER_REAL, &fast, NULL), 0);
    for (int i = 0; i < 6; i++) {
        damacy_array* array = NULL;
        const int line = epoch(&w, 4, NULL, NULL);
        CHECK_EQ(line, 0);
        CHECK_EQ(damacy_array_open(&c, w.uris[i % 2], &array, &err), DAMACY_OK);
        hold_signals(SIG_BLOCK);
        damacy_array_close(array);
        CHECK_EQ(damacy_verify(&c, w.uris[i % 2], NULL, NULL, &result, &err), DAMACY_OK);
        hold_signals(SIG_UNBLOCK);
        CHECK_EQ(result.n_bad, 0);
        CHECK_EQ(result.n_chunks, 125);
    }
    CHECK_EQ(setitimer(ITIMER_REAL, &none, NULL), 0);
    __atomic_store_n(&s.is_over, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("# %llu signals\n", (unsigned long long)n_signals);
    CHECK(n_signals > 50);
    (void)sigaction(SIGALRM, &before[0], NULL);
    (void)sigaction(SIGUSR1, &before[1], NULL);
    folder_end();
}

static void fork_midway(damacy* d, void* context)
{
    pid_t* child = (pid_t*)context;

    (void)fflush(stdout);
    *child = fork();
    if (*child == 0) {
        damacy_batch batch;
        damacy_error err;
        const int ok = damacy_pop(d, &batch, &err) == DAMACY_INVAL &&
                       damacy_try_pop(d, &batch, &err) == DAMACY_INVAL &&
                       damacy_finish(d) == DAMACY_INVAL;
        damacy_destroy(d);
        _exit(ok ? 0 : 1); /* closes its copies of the descriptors */
    }
}

TEST(a_fork_amid_an_epoch_disturbs_neither_process)
{
    uint64_t seed = test_seed();
    world w;

    world_make(&w, &seed);
    for (int i = 0; i < 4; i++) {
        pid_t child = -1;
        int code = -1;
        CHECK_EQ(epoch(&w, 4, fork_midway, &child), 0);
        CHECK(child > 0);
        CHECK_EQ(waitpid(child, &code, 0), child);
        CHECK(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    }
    folder_end();
}

/* Descriptors are not inherited by programs that the process starts. */
TEST(files_are_closed_when_another_program_starts)
{
    uint64_t seed = test_seed();
    damacy_config c = files_config(PER_BATCH, DAMACY_ON_ERROR_STOP);
    damacy_batch batch;
    damacy_error err;
    damacy* d = NULL;
    world w;
    const int before = n_descriptors();
    int n_open = 0;

    world_make(&w, &seed);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, w.samples, PER_BATCH, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK(n_descriptors() > before); /* they are kept for the next batch */
    for (int fd = 0; fd < 1024; fd++) {
        char path[64];
        char target[600];
        ssize_t n;
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        n = readlink(path, target, sizeof target - 1);
        if (n > 0) {
            target[n] = '\0';
            if (strncmp(target, folder, strlen(folder)) == 0) {
                CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
                n_open++;
            }
        }
    }
    CHECK(n_open > 0);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    folder_end();
}

/* ---- files that change ---- */

/* Reads the sample again and again through one pipeline until its status is `wanted`; every batch
 * that is delivered as good has the voxels of one array or the other, never a mixture. */
static damacy_status settle(damacy* d, const damacy_sample* s, const mem_array* old,
                            const mem_array* fresh, damacy_status wanted, damacy_error* err)
{
    damacy_status status = DAMACY_OK;

    for (int i = 0; i < 10; i++) {
        damacy_batch batch;
        damacy_batch_info_t info;
        CHECK_EQ(damacy_push(d, s, 1, NULL, err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ(damacy_batch_sample(batch, 0, NULL, &status, err), DAMACY_OK);
        if (status == DAMACY_OK) {
            CHECK(mem_equal_f32(old, s, (const float*)info.ptr, 0.0f) ||
                  mem_equal_f32(fresh, s, (const float*)info.ptr, 0.0f));
            status =
                mem_equal_f32(fresh, s, (const float*)info.ptr, 0.0f) ? DAMACY_OK : DAMACY_AGAIN;
        }
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        if (status == wanted) {
            return status;
        }
    }
    return status;
}

/* A shard that is replaced by a rename, as writers do: an error that says so for the batch that had
 * the old index, the new voxels after that. */
TEST(a_replaced_file_is_noticed_and_then_read_anew)
{
    mem_array a = mem_plain("s.zarr");
    mem_array b;
    damacy_config c = files_config(1, DAMACY_ON_ERROR_FILL);
    damacy_sample s;
    damacy_error err;
    damacy_batch batch;
    damacy* d = NULL;
    mem_store* m = mem_new();
    mem_object* o;
    char uri[300];

    folder_begin();
    a.shard[0] = a.shard[1] = a.shard[2] = 32;
    put_array_files(&a);
    b = a;
    b.seed = 31337;
    b.index_at_start = 0;
    mem_put_array(m, &b);
    o = mem_find(m, "s.zarr/c/0/0/0");
    (void)snprintf(uri, sizeof uri, "%s/s.zarr", folder);
    s = mem_sample(&a, 0, 0, 0, 20);
    s.uri = uri;
    c.batch_slots = 2;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK(batch_is(batch, &a, &s, 1, 0.0f));
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    put_file("new", o->bytes, o->size);
    CHECK_EQ(rename(in_folder("new"), in_folder("s.zarr/c/0/0/0")), 0);
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_failed(batch, 0, &err), DAMACY_OK);
    CHECK_EQ(err.status, DAMACY_IO);
    CHECK_HAS(err.message, "replaced");
    CHECK_HAS(err.chunk, "c/0/0/0");
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    CHECK_EQ(settle(d, &s, &a, &b, DAMACY_OK, &err), DAMACY_OK);
    CHECK_EQ(unlink(in_folder("s.zarr/c/0/0/0")), 0); /* gone: an error, then fill values */
    CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_failed(batch, 0, &err), DAMACY_OK);
    CHECK_EQ(err.status, DAMACY_IO);
    CHECK_HAS(err.message, "gone");
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    folder_end();
    mem_free(m);
}

/* A writer that truncates and writes files in place while they are read. */
typedef struct writer {
    const mem_object* old;
    const mem_object* fresh;
    char path[400];
    int is_over; /* atomic */
} writer;

static void* writer_main(void* context)
{
    writer* w = (writer*)context;
    uint64_t seed = 99;

    while (!__atomic_load_n(&w->is_over, __ATOMIC_RELAXED)) {
        const mem_object* o = test_random(&seed) % 2 ? w->old : w->fresh;
        char path[450];
        int fd;
        (void)snprintf(path, sizeof path, "%s.new", w->path);
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (fd >= 0 && write(fd, o->bytes, o->size) == (ssize_t)o->size) {
            (void)rename(path, w->path);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
        if (test_random(&seed) % 4 == 0) {
            (void)truncate(w->path, (off_t)(test_random(&seed) % o->size));
        }
        usleep((unsigned)(test_random(&seed) % 2000));
    }
    return NULL;
}

TEST(files_that_are_truncated_and_replaced_all_the_time_never_mix)
{
    mem_array arrays[2] = {mem_plain("s.zarr"), mem_plain("s.zarr")};
    mem_store* stores[2] = {mem_new(), mem_new()};
    damacy_config c = files_config(1, DAMACY_ON_ERROR_FILL);
    damacy_sample s;
    damacy_error err;
    damacy* d = NULL;
    pthread_t thread;
    char uri[300];
    writer w;
    int n_good = 0;
    int n_told = 0;

    folder_begin();
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 3; k++) {
            arrays[i].shard[k] = 48;
        }
        arrays[i].seed = i ? 31337 : 0;
        arrays[i].has_crc = 1;
        mem_put_array(stores[i], &arrays[i]);
    }
    put_files(stores[0]);
    memset(&w, 0, sizeof w);
    w.old = mem_find(stores[0], "s.zarr/c/0/0/0");
    w.fresh = mem_find(stores[1], "s.zarr/c/0/0/0");
    (void)snprintf(w.path, sizeof w.path, "%s/s.zarr/c/0/0/0", folder);
    (void)snprintf(uri, sizeof uri, "%s/s.zarr", folder);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(pthread_create(&thread, NULL, writer_main, &w), 0);
    for (int i = 0; i < 300; i++) {
        damacy_batch batch;
        damacy_batch_info_t info;
        damacy_status status;
        s = mem_sample(&arrays[0], i % 20, i % 19, i % 18, 20);
        s.uri = uri;
        CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ(damacy_batch_sample(batch, 0, NULL, &status, &err), DAMACY_OK);
        if (status == DAMACY_OK) {
            const float* got = (const float*)info.ptr;
            CHECK(mem_equal_f32(&arrays[0], &s, got, 0.0f) ||
                  mem_equal_f32(&arrays[1], &s, got, 0.0f));
            n_good++;
        } else {
            CHECK(status == DAMACY_IO || status == DAMACY_DECODE);
            n_told++;
        }
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    __atomic_store_n(&w.is_over, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("# %d good, %d told\n", n_good, n_told);
    CHECK(n_good + n_told == 300);
    damacy_destroy(d);
    for (int i = 0; i < 2; i++) {
        mem_free(stores[i]);
    }
    folder_end();
}

TEST_MAIN
