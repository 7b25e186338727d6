/* Many threads at once on one pipeline, and on two: what each thread sees is right, nothing is
 * lost, and the thread sanitizer sees no race. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tests/test.h"
#include "tests/pipeline/scene.h"
#include <unistd.h>

enum {
    SIDE = 8,
    VOXELS = SIDE * SIDE * SIDE,
    PUSHERS = 4,
    POPPERS = 3,
    EACH = 300, /* samples per pusher */
    PER_BATCH = 4
};

/* One pipeline under test; every count is atomic. */
typedef struct stress {
    mem_store* m;
    mem_array arrays[2];
    damacy* d;
    uint8_t seen[PUSHERS * EACH]; /* by sample number */
    uint64_t n_batches;
    uint64_t n_samples;
    uint64_t n_wrong;
    uint64_t n_pushing;
    uint64_t seed;
    int tensor; /* export batches too */
} stress;

typedef struct helper {
    pthread_t thread;
    stress* s;
    uint64_t number;
} helper;

static void add(uint64_t* counter, uint64_t n)
{
    __atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

static void stress_init(stress* s, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->m = mem_new();
    s->seed = seed;
    for (int i = 0; i < 2; i++) {
        s->arrays[i] = mem_plain(i ? "shard" : "plain");
        s->arrays[i].has_crc = i; /* one whose chunks are decoded and kept, one of plain bytes */
        for (int k = 0; k < 3 && i; k++) {
            s->arrays[i].shard[k] = 32;
        }
        mem_put_array(s->m, &s->arrays[i]);
    }
}

static damacy_config stress_config(const stress* s)
{
    damacy_config c = scene_config(s->m, PER_BATCH, DAMACY_ON_ERROR_STOP);

    c.io_threads = 8;
    c.decode_threads = 3;
    c.lookahead_samples = 32;
    c.batch_slots = 5;
    c.max_host_bytes = UINT64_C(16) << 20;
    c.max_cache_bytes = UINT64_C(8192) * 10; /* fewer chunks than the array has */
    return c;
}

static void* push_main(void* context)
{
    helper* h = (helper*)context;
    uint64_t seed = h->s->seed + 1000 * (h->number + 1);
    int n = 0;

    while (n < EACH) {
        damacy_sample samples[3];
        size_t n_taken = 0;
        const size_t want = (size_t)(n + 3 <= EACH ? 1 + test_random(&seed) % 3 : 1);
        damacy_status status;
        for (size_t i = 0; i < want; i++) {
            samples[i] = mem_sample(
                &h->s->arrays[test_random(&seed) % 2], (int64_t)(test_random(&seed) % 33),
                (int64_t)(test_random(&seed) % 33), (int64_t)(test_random(&seed) % 33), SIDE);
        }
        status = damacy_push(h->s->d, samples, want, &n_taken, NULL);
        n += (int)n_taken;
        if (status == DAMACY_AGAIN) {
            usleep(200);
        } else if (status != DAMACY_OK) {
            return NULL; /* stopping */
        }
    }
    if (__atomic_sub_fetch(&h->s->n_pushing, 1, __ATOMIC_ACQ_REL) == 0) {
        (void)damacy_finish(h->s->d);
    }
    return NULL;
}

/* Reads a held batch: every voxel of a crop follows from its first one. */
static void look(stress* s, damacy_batch batch)
{
    damacy_batch_info_t info;

    if (damacy_batch_info(batch, &info) != DAMACY_OK || info.n_failed != 0) {
        add(&s->n_wrong, 1);
        return;
    }
    for (uint32_t i = 0; i < info.shape[0]; i++) {
        const float* voxels = (const float*)info.ptr + (size_t)i * VOXELS;
        const uint32_t first = (uint32_t)voxels[0];
        uint64_t number = 0;
        damacy_status status;
        for (uint32_t k = 0; k < VOXELS; k++) {
            const uint32_t z = k / 64;
            const uint32_t y = k / 8 % 8;
            const uint32_t expected = (first + 7 * ((z * 40 + y) * 40 + k % 8)) & 0xffff;
            if (voxels[k] != (float)expected) {
                add(&s->n_wrong, 1);
                break;
            }
        }
        if (damacy_batch_sample(batch, i, &number, &status, NULL) != DAMACY_OK ||
            status != DAMACY_OK || number >= PUSHERS * EACH ||
            __atomic_exchange_n(&s->seen[number], 1, __ATOMIC_RELAXED) != 0) {
            add(&s->n_wrong, 1);
        }
    }
    add(&s->n_batches, 1);
    add(&s->n_samples, (uint64_t)info.shape[0]);
}

typedef struct late {
    pthread_t thread;
    damacy_batch batch;
} late;

/* Another thread holds a reference for a while. */
static void* late_main(void* context)
{
    late* l = (late*)context;
    damacy_batch_info_t info;
    float sum = 0;

    usleep(300);
    if (damacy_batch_info(l->batch, &info) == DAMACY_OK) {
        for (int i = 0; i < VOXELS; i++) {
            sum += ((const float*)info.ptr)[i];
        }
    }
    (void)damacy_release(l->batch);
    return sum < 0 ? context : NULL;
}

static void* pop_main(void* context)
{
    helper* h = (helper*)context;
    stress* s = h->s;
    uint64_t seed = s->seed + 77 * (h->number + 1);
    damacy_batch held = {0};
    late other;

    other.batch.core = NULL;
    for (;;) {
        damacy_batch batch;
        damacy_dl_managed_versioned* tensor = NULL;
        const uint64_t way = test_random(&seed) % 4;
        damacy_status status;
        if (way == 0) {
            status = damacy_try_pop(s->d, &batch, NULL);
        } else if (way == 1) {
            status = damacy_pop_timeout(s->d, 1000000, &batch, NULL);
        } else {
            status = damacy_pop(s->d, &batch, NULL);
        }
        if (status == DAMACY_AGAIN || status == DAMACY_TIMEOUT) {
            if (held.core) {
                (void)damacy_release(held);
                held.core = NULL;
            }
            usleep(100);
            continue;
        }
        if (status != DAMACY_OK) {
            break;
        }
        look(s, batch);
        if (s->tensor && test_random(&seed) % 3 == 0 &&
            damacy_batch_dlpack(batch, NULL, &tensor, NULL) == DAMACY_OK) {
            tensor->deleter(tensor);
        }
        if (!other.batch.core && test_random(&seed) % 3 == 0 &&
            damacy_batch_retain(batch) == DAMACY_OK) {
            other.batch = batch;
            if (pthread_create(&other.thread, NULL, late_main, &other) != 0) {
                (void)damacy_release(batch);
                other.batch.core = NULL;
            }
        } else if (other.batch.core) {
            pthread_join(other.thread, NULL);
            other.batch.core = NULL;
        }
        if (!held.core && test_random(&seed) % 2) {
            held = batch; /* at most one per popper: fewer than there are slots */
        } else if (damacy_release(batch) != DAMACY_OK) {
            add(&s->n_wrong, 1);
        }
    }
    if (held.core) {
        (void)damacy_release(held);
    }
    if (other.batch.core) {
        pthread_join(other.thread, NULL);
    }
    return NULL;
}

static void start(helper* helpers, int n, stress* s, void* (*function)(void*))
{
    for (int i = 0; i < n; i++) {
        helpers[i].s = s;
        helpers[i].number = (uint64_t)i;
        CHECK_EQ(pthread_create(&helpers[i].thread, NULL, function, &helpers[i]), 0);
    }
}

static void join(helper* helpers, int n)
{
    for (int i = 0; i < n; i++) {
        pthread_join(helpers[i].thread, NULL);
    }
}

static void check_all(const stress* s)
{
    CHECK_EQ(s->n_wrong, 0);
    CHECK_EQ(s->n_samples, PUSHERS * EACH);
    CHECK_EQ(s->n_batches, PUSHERS * EACH / PER_BATCH);
    for (int i = 0; i < PUSHERS * EACH; i++) {
        CHECK(s->seen[i]);
    }
    CHECK_EQ(s->m->n_open, 0);
}

TEST(several_pushers_and_poppers_with_holds_lose_nothing)
{
    stress s;
    helper pushers[PUSHERS];
    helper poppers[POPPERS];
    damacy_config c;

    stress_init(&s, test_seed());
    c = stress_config(&s);
    s.n_pushing = PUSHERS;
    s.tensor = 1;
    CHECK_EQ(damacy_create(&c, &s.d, NULL), DAMACY_OK);
    start(pushers, PUSHERS, &s, push_main);
    start(poppers, POPPERS, &s, pop_main);
    join(pushers, PUSHERS);
    join(poppers, POPPERS);
    damacy_destroy(s.d);
    check_all(&s);
    mem_free(s.m);
}

TEST(two_pipelines_at_once_do_not_meet)
{
    stress s[2];
    helper pushers[2][PUSHERS];
    helper poppers[2][POPPERS];

    for (int i = 0; i < 2; i++) {
        damacy_config c;
        stress_init(&s[i], test_seed() + (uint64_t)i * 99);
        c = stress_config(&s[i]);
        s[i].n_pushing = PUSHERS;
        CHECK_EQ(damacy_create(&c, &s[i].d, NULL), DAMACY_OK);
        start(pushers[i], PUSHERS, &s[i], push_main);
        start(poppers[i], POPPERS, &s[i], pop_main);
    }
    for (int i = 0; i < 2; i++) {
        join(pushers[i], PUSHERS);
        join(poppers[i], POPPERS);
        damacy_destroy(s[i].d);
        check_all(&s[i]);
        mem_free(s[i].m);
    }
}

/* Pops until SHUTDOWN, holding what comes. Context: the stress; result: the last batch. */
typedef struct holder {
    pthread_t thread;
    damacy* d;
    damacy_batch held;
    damacy_status last;
    uint32_t ready; /* atomic */
} holder;

static void* hold_main(void* context)
{
    holder* h = (holder*)context;

    for (;;) {
        damacy_batch batch;
        __atomic_store_n(&h->ready, 1, __ATOMIC_RELEASE);
        h->last = damacy_pop_timeout(h->d, UINT64_C(60000000000), &batch, NULL);
        if (h->last != DAMACY_OK) {
            return NULL;
        }
        if (h->held.core) {
            (void)damacy_release(h->held);
        }
        h->held = batch;
    }
}

TEST(destroy_while_busy_wakes_poppers_and_keeps_what_they_hold)
{
    enum { ROUNDS = 30 };
    uint64_t seed = test_seed();

    for (int round = 0; round < ROUNDS; round++) {
        stress s;
        damacy_config c;
        damacy_sample samples[32];
        holder holders[2];

        stress_init(&s, seed);
        c = stress_config(&s);
        s.m->delay_us = (unsigned)(test_random(&seed) % 400);
        CHECK_EQ(damacy_create(&c, &s.d, NULL), DAMACY_OK);
        for (int i = 0; i < 32; i++) {
            samples[i] = mem_sample(&s.arrays[i % 2], i, i, 32 - i, SIDE);
        }
        CHECK_EQ(damacy_push(s.d, samples, 32, NULL, NULL), DAMACY_OK);
        for (int i = 0; i < 2; i++) {
            memset(&holders[i], 0, sizeof holders[i]);
            holders[i].d = s.d;
            CHECK_EQ(pthread_create(&holders[i].thread, NULL, hold_main, &holders[i]), 0);
        }
        for (int i = 0; i < 2; i++) {
            while (!__atomic_load_n(&holders[i].ready, __ATOMIC_ACQUIRE)) {
                usleep(100);
            }
        }
        usleep((useconds_t)(1000 + test_random(&seed) % 4000)); /* both have entered pop */
        damacy_destroy(s.d);
        for (int i = 0; i < 2; i++) {
            pthread_join(holders[i].thread, NULL);
            CHECK_EQ(holders[i].last, DAMACY_SHUTDOWN);
            if (holders[i].held.core) {
                damacy_batch_info_t info;
                const float* voxels;
                CHECK_EQ(damacy_batch_info(holders[i].held, &info), DAMACY_OK);
                voxels = (const float*)info.ptr;
                CHECK_EQ(((uint32_t)voxels[0] + 7) & 0xffff, (uint32_t)voxels[1]);
                CHECK_EQ(damacy_release(holders[i].held), DAMACY_OK);
            }
        }
        CHECK_EQ(s.m->n_open, 0);
        mem_free(s.m);
    }
}

TEST(pop_timeout_ends_in_time_and_loses_nothing)
{
    stress s;
    damacy_config c;
    damacy_sample sample;
    damacy_batch batch;
    damacy_batch_info_t info;
    uint64_t n_timeouts = 0;
    damacy_status status;

    stress_init(&s, test_seed());
    c = stress_config(&s);
    c.samples_per_batch = 1;
    CHECK_EQ(damacy_create(&c, &s.d, NULL), DAMACY_OK);
    CHECK_EQ(damacy_pop_timeout(s.d, 0, &batch, NULL), DAMACY_TIMEOUT);
    CHECK_EQ(damacy_pop_timeout(s.d, 2000000, &batch, NULL), DAMACY_TIMEOUT);
    sample = mem_sample(&s.arrays[0], 1, 2, 3, SIDE);
    mem_pause(s.m, 1);
    CHECK_EQ(damacy_push(s.d, &sample, 1, NULL, NULL), DAMACY_OK);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(damacy_pop_timeout(s.d, 500000, &batch, NULL), DAMACY_TIMEOUT);
    }
    mem_pause(s.m, 0);
    while ((status = damacy_pop_timeout(s.d, 500000, &batch, NULL)) == DAMACY_TIMEOUT) {
        n_timeouts++;
        CHECK(n_timeouts < 100000);
    }
    CHECK_EQ(status, DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK(mem_equal_f32(&s.arrays[0], &sample, (const float*)info.ptr, 0));
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(s.d);
    mem_free(s.m);
}

/* A release from another thread makes a blocked pipeline go on. */
static void* release_main(void* context)
{
    usleep(5000);
    return damacy_release(*(damacy_batch*)context) == DAMACY_OK ? NULL : context;
}

TEST(a_release_on_another_thread_lets_the_pipeline_go_on)
{
    stress s;
    damacy_config c;
    damacy_sample sample;
    damacy_batch held[2];
    damacy_batch batch;
    pthread_t thread;
    void* result = NULL;

    stress_init(&s, test_seed());
    c = stress_config(&s);
    c.samples_per_batch = 1;
    c.batch_slots = 2;
    sample = mem_sample(&s.arrays[1], 1, 2, 3, SIDE);
    CHECK_EQ(damacy_create(&c, &s.d, NULL), DAMACY_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(damacy_push(s.d, &sample, 1, NULL, NULL), DAMACY_OK);
    }
    CHECK_EQ(damacy_pop(s.d, &held[0], NULL), DAMACY_OK);
    CHECK_EQ(damacy_pop(s.d, &held[1], NULL), DAMACY_OK);
    CHECK_EQ(damacy_pop(s.d, &batch, NULL), DAMACY_AGAIN); /* the caller holds every slot */
    CHECK_EQ(pthread_create(&thread, NULL, release_main, &held[0]), 0);
    CHECK_EQ(damacy_pop_timeout(s.d, UINT64_C(60000000000), &batch, NULL), DAMACY_OK);
    pthread_join(thread, &result);
    CHECK(result == NULL);
    CHECK_EQ(damacy_release(held[1]), DAMACY_OK);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(s.d);
    mem_free(s.m);
}

TEST_MAIN
