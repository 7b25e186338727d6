/* Threads, locks and a task pool.
 *
 * Tasks are records that their owner embeds (no allocation to submit one); a job must stay alive
 * until its function has run. Every thread that is made here blocks all signals, so that none of
 * the host program's handlers runs on it. */
#pragma once
#include "base/alloc.h"

typedef struct damacy__mutex {
    pthread_mutex_t handle;
} damacy__mutex;

typedef struct damacy__condition {
    pthread_cond_t handle; /* waits on CLOCK_MONOTONIC */
} damacy__condition;

/* Work for a pool. Set function and context, then submit. */
typedef struct damacy__task {
    void (*function)(void* context, uint32_t worker); /* worker: index of the running thread */
    void* context;
    struct damacy__task* next; /* in the list that holds it */
} damacy__task;

/* Tasks in line; whoever owns the line guards it. */
typedef struct damacy__task_list {
    damacy__task* first;
    damacy__task* last;
} damacy__task_list;

typedef struct damacy__pool {
    damacy__alloc* alloc;
    pthread_t* threads;
    uint32_t n_threads;
    uint32_t n_capacity;
    char name[12];
    damacy__mutex mutex;
    damacy__condition wake;
    damacy__task_list tasks[2]; /* guarded by mutex; [0] before [1] */
    uint32_t n_started;         /* guarded by mutex: gives each thread its index */
    uint32_t n_idle;            /* guarded by mutex */
    bool stop;                  /* guarded by mutex: queued jobs still run */
} damacy__pool;

enum { DAMACY__URGENT = 0, DAMACY__NORMAL = 1 };

static damacy_status damacy__mutex_init(damacy__mutex* mutex, damacy_error* err);
static damacy_status damacy__condition_init(damacy__condition* condition, damacy_error* err);
static bool damacy__condition_wait_until(damacy__condition* condition, damacy__mutex* mutex,
                                         uint64_t deadline_ns);
static damacy_status damacy__thread_start(pthread_t* thread, const char* name,
                                          void* (*function)(void*), void* context,
                                          damacy_error* err);
static damacy_status damacy__pool_init(damacy__pool* pool, damacy__alloc* alloc, uint32_t n_threads,
                                       const char* name, damacy_error* err);
static void damacy__pool_submit(damacy__pool* pool, damacy__task* job, int priority);
static void damacy__pool_deinit(damacy__pool* pool);

static damacy_status damacy__mutex_init(damacy__mutex* mutex, damacy_error* err)
{
    const int code = pthread_mutex_init(&mutex->handle, NULL);

    return code == 0 ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "no mutex: errno %d", code);
}

static inline void damacy__mutex_deinit(damacy__mutex* mutex)
{
    pthread_mutex_destroy(&mutex->handle);
}
static inline void damacy__lock(damacy__mutex* mutex)
{
    pthread_mutex_lock(&mutex->handle);
}
static inline void damacy__unlock(damacy__mutex* mutex)
{
    pthread_mutex_unlock(&mutex->handle);
}

static damacy_status damacy__condition_init(damacy__condition* condition, damacy_error* err)
{
    pthread_condattr_t attributes;
    int code = pthread_condattr_init(&attributes);

    if (code == 0) {
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        code = pthread_cond_init(&condition->handle, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    return code == 0 ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "no condition: errno %d", code);
}

static inline void damacy__condition_deinit(damacy__condition* condition)
{
    pthread_cond_destroy(&condition->handle);
}
static inline void damacy__wait(damacy__condition* condition, damacy__mutex* mutex)
{
    pthread_cond_wait(&condition->handle, &mutex->handle);
}
static inline void damacy__signal(damacy__condition* condition)
{
    pthread_cond_signal(&condition->handle);
}
static inline void damacy__broadcast(damacy__condition* condition)
{
    pthread_cond_broadcast(&condition->handle);
}

/* Waits until woken or until damacy__now_ns() reaches the deadline; false when that has passed. */
static bool damacy__condition_wait_until(damacy__condition* condition, damacy__mutex* mutex,
                                         uint64_t deadline_ns)
{
    struct timespec until;

    until.tv_sec = (time_t)(deadline_ns / UINT64_C(1000000000));
    until.tv_nsec = (long)(deadline_ns % UINT64_C(1000000000));
    return pthread_cond_timedwait(&condition->handle, &mutex->handle, &until) != ETIMEDOUT;
}

/* Starts a joinable thread that blocks all signals. The name is cut to 15 bytes. */
static damacy_status damacy__thread_start(pthread_t* thread, const char* name,
                                          void* (*function)(void*), void* context,
                                          damacy_error* err)
{
    sigset_t all;
    sigset_t before;
    char short_name[16];
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(thread, NULL, function, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        return damacy__fail(err, DAMACY_OOM, "cannot start thread %s: errno %d", name, code);
    }
    (void)snprintf(short_name, sizeof short_name, "%.15s", name);
    pthread_setname_np(*thread, short_name);
    return DAMACY_OK;
}

/* ---- lines of tasks ---- */

static void damacy__tasks_append(damacy__task_list* list, damacy__task* task)
{
    task->next = NULL;
    if (list->last) {
        list->last->next = task;
    } else {
        list->first = task;
    }
    list->last = task;
}

/* The first one, or NULL. */
static damacy__task* damacy__tasks_take(damacy__task_list* list)
{
    damacy__task* task = list->first;

    if (task) {
        list->first = task->next;
        if (!list->first) {
            list->last = NULL;
        }
    }
    return task;
}

/* Puts all of `before` in front, and leaves that empty. */
static void damacy__tasks_prepend(damacy__task_list* list, damacy__task_list* before)
{
    if (before->first) {
        before->last->next = list->first;
        list->first = before->first;
        list->last = list->last ? list->last : before->last;
        before->first = before->last = NULL;
    }
}

/* ---- the pool ---- */

/* Next job in priority order, or NULL once the pool stops and nothing is queued. Holds the mutex.
 */
static damacy__task* damacy__pool_take(damacy__pool* pool)
{
    for (;;) {
        for (int p = 0; p < 2; p++) {
            damacy__task* job = damacy__tasks_take(&pool->tasks[p]);
            if (job) {
                return job;
            }
        }
        if (pool->stop) {
            return NULL;
        }
        pool->n_idle++;
        damacy__wait(&pool->wake, &pool->mutex);
        pool->n_idle--;
    }
}

static void* damacy__pool_main(void* context)
{
    damacy__pool* pool = (damacy__pool*)context;
    uint32_t worker;

    damacy__lock(&pool->mutex);
    worker = pool->n_started++;
    for (;;) {
        damacy__task* job = damacy__pool_take(pool);
        if (!job) {
            break;
        }
        damacy__unlock(&pool->mutex);
        job->function(job->context, worker);
        damacy__lock(&pool->mutex);
    }
    damacy__unlock(&pool->mutex);
    return NULL;
}

/* Starts n_threads threads. On failure those already started are joined and nothing is held. A
 * zeroed pool may be passed to damacy__pool_deinit. */
static damacy_status damacy__pool_init(damacy__pool* pool, damacy__alloc* alloc, uint32_t n_threads,
                                       const char* name, damacy_error* err)
{
    memset(pool, 0, sizeof *pool);
    (void)snprintf(pool->name, sizeof pool->name, "%s", name);
    pool->threads = damacy__new(alloc, n_threads, pthread_t);
    if (!pool->threads) {
        return damacy__fail(err, DAMACY_OOM, "pool %s of %u threads", name, n_threads);
    }
    pool->alloc = alloc;
    pool->n_capacity = n_threads;
    if (damacy__mutex_init(&pool->mutex, err) != DAMACY_OK) {
        damacy__free(alloc, pool->threads, n_threads);
        memset(pool, 0, sizeof *pool);
        return DAMACY_OOM;
    }
    if (damacy__condition_init(&pool->wake, err) != DAMACY_OK) {
        damacy__mutex_deinit(&pool->mutex);
        damacy__free(alloc, pool->threads, n_threads);
        memset(pool, 0, sizeof *pool);
        return DAMACY_OOM;
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        char thread_name[32];
        (void)snprintf(thread_name, sizeof thread_name, "%s-%u", name, i);
        if (damacy__thread_start(&pool->threads[i], thread_name, damacy__pool_main, pool, err) !=
            DAMACY_OK) {
            damacy__pool_deinit(pool);
            return DAMACY_OOM;
        }
        pool->n_threads++;
    }
    return DAMACY_OK;
}

/* Queues a job; never blocks, never fails. Any thread, jobs of the pool included. */
static void damacy__pool_submit(damacy__pool* pool, damacy__task* job, int priority)
{
    damacy__lock(&pool->mutex);
    damacy__tasks_append(&pool->tasks[priority], job);
    if (pool->n_idle > 0) {
        damacy__signal(&pool->wake);
    }
    damacy__unlock(&pool->mutex);
}

/* Runs what is queued, joins the threads and frees. A zeroed pool is left alone. */
static void damacy__pool_deinit(damacy__pool* pool)
{
    if (!pool->threads) {
        return;
    }
    damacy__lock(&pool->mutex);
    pool->stop = true;
    damacy__broadcast(&pool->wake);
    damacy__unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->n_threads; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    damacy__condition_deinit(&pool->wake);
    damacy__mutex_deinit(&pool->mutex);
    damacy__free(pool->alloc, pool->threads, pool->n_capacity);
    memset(pool, 0, sizeof *pool);
}
