/* Creating a pipeline when the system refuses threads, mutexes or conditions, and ending a process
 * with one alive. */
#include <pthread.h>
#include <stdlib.h>

static int n_calls; /* to the functions below since fail_at was set */
static int fail_at; /* 0: never */

static int is_refused(void)
{
    return ++n_calls == fail_at;
}

static int refusing_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                           void* context)
{
    return is_refused() ? 11 : pthread_create(thread, attributes, run, context); /* EAGAIN */
}

static int refusing_mutex(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes)
{
    return is_refused() ? 12 : pthread_mutex_init(mutex, attributes); /* ENOMEM */
}

static int refusing_condition(pthread_cond_t* condition, const pthread_condattr_t* attributes)
{
    return is_refused() ? 12 : pthread_cond_init(condition, attributes);
}

#define pthread_create     refusing_create
#define pthread_mutex_init refusing_mutex
#define pthread_cond_init  refusing_condition
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#undef pthread_create
#undef pthread_mutex_init
#undef pthread_cond_init

#include "tests/pipeline/semantics.h"
#include <dirent.h>
#include <sys/wait.h>

static int n_threads(void)
{
    DIR* folder = opendir("/proc/self/task");
    int n = 0;

    CHECK(folder != NULL);
    while (readdir(folder)) {
        n++;
    }
    (void)closedir(folder);
    return n - 2;
}

typedef struct heap {
    uint64_t live;
} heap;

static void* heap_alloc(void* user, size_t size, size_t alignment)
{
    void* ptr = NULL;

    alignment = alignment < sizeof(void*) ? sizeof(void*) : alignment;
    if (posix_memalign(&ptr, alignment, size) != 0) {
        return NULL;
    }
    __atomic_add_fetch(&((heap*)user)->live, 1, __ATOMIC_RELAXED);
    return ptr;
}

static void heap_free(void* user, void* ptr, size_t size)
{
    (void)size;
    __atomic_sub_fetch(&((heap*)user)->live, 1, __ATOMIC_RELAXED);
    free(ptr);
}

TEST(every_thread_mutex_and_condition_that_is_refused_is_a_clean_error)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample s = mem_sample(&a, 1, 2, 3, 16);
    damacy_config c = config_of(m, 1);
    heap h = {0};
    int n_refused = 0;
    int before;

    mem_put_array(m, &a);
    {
        damacy_error err;
        CHECK_EQ(read_one(m, &c, &s, NULL, 0, &err), DAMACY_OK); /* sanitizers start theirs */
        before = n_threads();
    }
    c.allocator.user = &h;
    c.allocator.alloc = heap_alloc;
    c.allocator.free = heap_free;
    c.max_host_bytes = UINT64_C(4) << 20;
    for (int k = 1;; k++) {
        damacy_error err;
        damacy* d = NULL;
        damacy_status status;
        n_calls = 0;
        fail_at = k;
        status = damacy_create(&c, &d, &err);
        fail_at = 0;
        if (status == DAMACY_OK) { /* all calls were made */
            CHECK(n_calls < k);
            CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
            CHECK_EQ(pop_is(d, &a, &s, 1, &err), DAMACY_OK);
            damacy_destroy(d);
            break;
        }
        CHECK_EQ(status, DAMACY_OOM);
        CHECK(d == NULL && err.message[0] != '\0');
        WAIT_FOR(n_threads() == before); /* a joined thread may be listed for a moment */
        CHECK_EQ(h.live, 0);
        n_refused++;
    }
    printf("# %d calls refused\n", n_refused);
    CHECK(n_refused > 10);
    WAIT_FOR(n_threads() == before);
    CHECK_EQ(h.live, 0);
    CHECK_EQ(m->n_open, 0);
    mem_free(m);
}

static damacy* alive;        /* in the child of the test below */
static damacy_batch in_exit; /* held */

static void at_exit(void)
{
    damacy_error err;
    damacy_batch batch;

    (void)damacy_try_pop(alive, &batch, &err);
    (void)damacy_release(in_exit);
}

TEST(a_process_may_end_with_a_pipeline_at_work)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");

    mem_put_array(m, &a);
    m->delay_us = 300;
    for (int i = 0; i < 6; i++) {
        int code = -1;
        pid_t child;
        (void)fflush(stdout);
        child = fork();
        if (child == 0) {
            damacy_config c = config_of(m, 1);
            damacy_sample s[20];
            damacy_error err;
            (void)atexit(at_exit);
            for (int k = 0; k < 20; k++) {
                s[k] = mem_sample(&a, k, k, k, 16);
            }
            if (damacy_create(&c, &alive, &err) != DAMACY_OK ||
                damacy_push(alive, s, 20, NULL, &err) != DAMACY_OK ||
                damacy_pop(alive, &in_exit, &err) != DAMACY_OK) {
                _exit(1);
            }
            usleep((unsigned)i * 500);
            exit(43);
        }
        CHECK(child > 0);
        CHECK_EQ(waitpid(child, &code, 0), child);
        CHECK(WIFEXITED(code) && WEXITSTATUS(code) == 43);
    }
    mem_free(m);
}

TEST_MAIN
