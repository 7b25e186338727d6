/* Faults of storage and memory at every call of a whole epoch: exactly the samples that need what
 * failed fail, all others are exact, none is lost, and nothing stays open or allocated. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tests/test.h"
#include "tests/pipeline/scene.h"

/* Threads cost more under the thread sanitizer: fewer calls are tried. */
#define STRIDE (TEST_TSAN ? 5u : 1u)

enum { N_SAMPLES = 24, PER_BATCH = 3, SIDE = 16, VOXELS = SIDE * SIDE * SIDE, FILL = 9 };

typedef enum fault_kind {
    FAULT_IO,
    FAULT_NOTFOUND,
    FAULT_OOM,
    FAULT_TIMEOUT,
    FAULT_UNSUPPORTED,
    FAULT_ODD_STATUS, /* none that a store may return */
    FAULT_SHORT,      /* reads: half; invisible */
    FAULT_ONE_BYTE,   /* reads: one byte; invisible */
    FAULT_END,        /* reads: nothing, as if the object ended */
    FAULT_LONG        /* reads: more than was asked for */
} fault_kind;

/* A store in front of the memory store that fails a chosen call, and an allocator likewise. */
typedef struct faults {
    mem_store* m;
    uint64_t n_opens; /* atomic, as are the other counts */
    uint64_t n_reads;
    uint64_t n_allocs;
    int64_t n_live;    /* blocks */
    int is_open;       /* fail opens; else reads */
    uint64_t at;       /* number of the call, from 1; 0: none */
    int is_persistent; /* every call from then on */
    fault_kind kind;
    uint64_t alloc_at; /* 0: none */
    int alloc_is_persistent;
    uint64_t n_injected;
    char key[200]; /* of the failed call, if it is one; guarded by the store's mutex */
} faults;

static damacy_status status_of(fault_kind kind)
{
    switch (kind) {
    case FAULT_NOTFOUND:
        return DAMACY_NOTFOUND;
    case FAULT_OOM:
        return DAMACY_OOM;
    case FAULT_TIMEOUT:
        return DAMACY_TIMEOUT;
    case FAULT_UNSUPPORTED:
        return DAMACY_UNSUPPORTED;
    case FAULT_ODD_STATUS:
        return (damacy_status)77;
    default:
        return DAMACY_IO;
    }
}

static int is_hit(const faults* f, uint64_t number)
{
    return f->at && (f->is_persistent ? number >= f->at : number == f->at);
}

static void note(faults* f, const char* key)
{
    pthread_mutex_lock(&f->m->mutex);
    f->n_injected++;
    (void)snprintf(f->key, sizeof f->key, "%s", key);
    pthread_mutex_unlock(&f->m->mutex);
}

static damacy_status fault_open(void* user, const char* key, void** object, uint64_t* size)
{
    faults* f = (faults*)user;
    const uint64_t number = __atomic_add_fetch(&f->n_opens, 1, __ATOMIC_RELAXED);

    if (f->is_open && is_hit(f, number)) {
        note(f, key);
        return status_of(f->kind);
    }
    return mem_open(f->m, key, object, size);
}

static damacy_status fault_read(void* user, void* object, uint64_t offset, void* dst, size_t size,
                                size_t* n_read)
{
    faults* f = (faults*)user;
    const uint64_t number = __atomic_add_fetch(&f->n_reads, 1, __ATOMIC_RELAXED);

    if (f->is_open || !is_hit(f, number)) {
        return mem_read_at(f->m, object, offset, dst, size, n_read);
    }
    note(f, ((mem_object*)object)->key);
    switch (f->kind) {
    case FAULT_SHORT:
        return mem_read_at(f->m, object, offset, dst, (size + 1) / 2, n_read);
    case FAULT_ONE_BYTE:
        return mem_read_at(f->m, object, offset, dst, 1, n_read);
    case FAULT_END:
        *n_read = 0;
        return DAMACY_OK;
    case FAULT_LONG:
        *n_read = size + 1;
        return DAMACY_OK;
    default:
        return status_of(f->kind);
    }
}

static void fault_close(void* user, void* object)
{
    mem_close(((faults*)user)->m, object);
}

static void* fault_alloc(void* user, size_t size, size_t alignment)
{
    faults* f = (faults*)user;
    const uint64_t number = __atomic_add_fetch(&f->n_allocs, 1, __ATOMIC_RELAXED);
    void* ptr = NULL;

    if (f->alloc_at && (f->alloc_is_persistent ? number >= f->alloc_at : number == f->alloc_at)) {
        return NULL;
    }
    if (posix_memalign(&ptr, alignment < sizeof(void*) ? sizeof(void*) : alignment, size) != 0) {
        return NULL;
    }
    __atomic_add_fetch(&f->n_live, 1, __ATOMIC_RELAXED);
    return ptr;
}

static void fault_free(void* user, void* ptr, size_t size)
{
    (void)size;
    __atomic_sub_fetch(&((faults*)user)->n_live, 1, __ATOMIC_RELAXED);
    free(ptr);
}

static const char* const uris[3] = {"plain", "shard", "crc"};

/* What an epoch reads: a plain array, a sharded one, and one with checksums and an index at the
 * start. */
typedef struct world {
    mem_store* m;
    mem_array arrays[3];
    damacy_sample samples[N_SAMPLES];
} world;

static void world_make(world* w)
{
    w->m = mem_new();
    for (int i = 0; i < 3; i++) {
        w->arrays[i] = mem_plain(uris[i]);
        w->arrays[i].fill = "9";
        w->arrays[i].seed = (uint32_t)i * 1000;
        for (int k = 0; k < 3 && i > 0; k++) {
            w->arrays[i].shard[k] = 32;
        }
        w->arrays[i].has_crc = w->arrays[i].index_at_start = i == 2;
        mem_put_array(w->m, &w->arrays[i]);
    }
    for (int i = 0; i < N_SAMPLES; i++) {
        w->samples[i] =
            mem_sample(&w->arrays[i % 3], (i * 5) % 25, (i * 7) % 25, (i * 3) % 25, SIDE);
    }
}

static damacy_config world_config(faults* f, damacy_on_error on_error)
{
    damacy_config c = scene_config(f->m, PER_BATCH, on_error);

    c.store.user = f;
    c.store.open = fault_open;
    c.store.read_at = fault_read;
    c.store.close = fault_close;
    c.allocator.user = f;
    c.allocator.alloc = fault_alloc;
    c.allocator.free = fault_free;
    c.max_host_bytes = UINT64_C(8) << 20;
    c.batch_slots = 2;
    return c;
}

/* Whether a sample needs an object: its array's metadata, or a chunk or shard that it touches. */
static int needs(const world* w, int number, const char* key)
{
    const damacy_sample* s = &w->samples[number];
    const mem_array* a = &w->arrays[number % 3];
    const int64_t cell = a->shard[0] ? a->shard[0] : a->chunk[0];
    const size_t len = strlen(a->uri);
    long long at[3];

    if (strncmp(key, a->uri, len) != 0 || key[len] != '/') {
        return 0;
    }
    if (strcmp(key + len, "/zarr.json") == 0) {
        return 1;
    }
    if (sscanf(key + len, "/c/%lld/%lld/%lld", &at[0], &at[1], &at[2]) != 3) {
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        if (at[i] < s->box[i].begin / cell || at[i] > (s->box[i].end - 1) / cell) {
            return 0;
        }
    }
    return 1;
}

static int is_all(const float* voxels, float value)
{
    for (int i = 0; i < VOXELS; i++) {
        if (voxels[i] != value) {
            return 0;
        }
    }
    return 1;
}

/* What became of an epoch. */
typedef struct outcome {
    uint64_t n_pushed;
    uint64_t n_ok;
    uint64_t n_failed;
    damacy_status end;   /* what the last pop returned */
    uint64_t end_sample; /* of its error */
    damacy_status create;
} outcome;

/* Checks one sample that was delivered as good. A store that says NOTFOUND for a chunk says that it
 * is missing: then the chunk's voxels, and no others, are the fill value. */
static void check_good(const world* w, const faults* f, int number, const float* voxels)
{
    const mem_array* a = &w->arrays[number % 3];
    const damacy_sample* s = &w->samples[number];
    const int may_lack = f->is_open && f->kind == FAULT_NOTFOUND && f->n_injected > 0;
    size_t n = 0;
    int64_t at[4];

    if (!may_lack) {
        CHECK(mem_equal_f32(a, s, voxels, 0));
        return;
    }
    for (at[0] = s->box[0].begin; at[0] < s->box[0].end; at[0]++) {
        for (at[1] = s->box[1].begin; at[1] < s->box[1].end; at[1]++) {
            for (at[2] = s->box[2].begin; at[2] < s->box[2].end; at[2]++) {
                const float value = voxels[n++];
                CHECK(value == (float)mem_value(a, at) || value == (float)FILL);
            }
        }
    }
}

/* One batch: numbers go on from *next, good samples are exact, bad ones need what failed. */
static void check_batch(const world* w, const faults* f, damacy_batch batch, uint64_t* next,
                        outcome* out)
{
    damacy_batch_info_t info;
    damacy_error err;
    uint32_t n_bad = 0;
    uint64_t last = *next;

    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    for (uint32_t i = 0; i < info.shape[0]; i++) {
        damacy_status status;
        uint64_t number;
        const float* voxels = (const float*)info.ptr + (size_t)i * VOXELS;
        CHECK_EQ(damacy_batch_sample(batch, i, &number, &status, &err), DAMACY_OK);
        CHECK(number >= last && number < N_SAMPLES);
        last = number + 1;
        if (status == DAMACY_OK) {
            check_good(w, f, (int)number, voxels);
            out->n_ok++;
        } else {
            n_bad++;
            CHECK(is_all(voxels, FILL) || is_all(voxels, 0)); /* 0: the metadata failed */
        }
    }
    for (uint32_t i = 0; i < info.n_failed; i++) {
        CHECK_EQ(damacy_batch_failed(batch, i, &err), DAMACY_OK);
        CHECK(err.sample >= *next && err.sample < N_SAMPLES);
        CHECK_STR(err.uri, uris[err.sample % 3]);
        CHECK(err.message[0] != '\0' && err.stage != DAMACY_STAGE_NONE);
        if (!f->is_persistent && !f->alloc_at) {
            CHECK(needs(w, (int)err.sample, f->key));
        }
        out->n_failed++;
    }
    CHECK(n_bad == 0 || n_bad == info.n_failed);
    *next += PER_BATCH;
    CHECK(last <= *next);
}

/* Runs an epoch. An OOM of push is tried again a few times. */
static outcome epoch(const world* w, faults* f, damacy_on_error on_error)
{
    damacy_config c = world_config(f, on_error);
    damacy_batch batch;
    damacy_error err;
    outcome out;
    uint64_t next = 0;
    damacy* d = NULL;

    memset(&out, 0, sizeof out);
    out.create = damacy_create(&c, &d, &err);
    for (int tries = 0; d && out.n_pushed < N_SAMPLES && tries < 5; tries++) {
        size_t n_taken = 0;
        const damacy_status status = damacy_push(d, w->samples + out.n_pushed,
                                                 N_SAMPLES - (size_t)out.n_pushed, &n_taken, &err);
        out.n_pushed += n_taken;
        CHECK(status == DAMACY_OK || status == DAMACY_OOM || status == DAMACY_SHUTDOWN);
    }
    if (d) {
        CHECK_EQ(damacy_finish(d), DAMACY_OK);
    }
    while (d && (out.end = damacy_pop(d, &batch, &err)) == DAMACY_OK) {
        check_batch(w, f, batch, &next, &out);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    out.end_sample = err.sample;
    for (int i = 0; d && i < 2; i++) {
        CHECK_EQ(damacy_pop(d, &batch, &err), out.end);
    }
    damacy_destroy(d);
    CHECK_EQ(f->m->n_open, 0);
    CHECK_EQ(f->n_live, 0);
    return out;
}

static faults faults_of(const world* w)
{
    faults f;

    memset(&f, 0, sizeof f);
    f.m = w->m;
    return f;
}

TEST(without_faults_the_epoch_is_exact)
{
    world w;
    faults f;
    outcome o;

    world_make(&w);
    f = faults_of(&w);
    o = epoch(&w, &f, DAMACY_ON_ERROR_STOP);
    CHECK_EQ(o.n_ok, N_SAMPLES);
    CHECK_EQ(o.end, DAMACY_END);
    mem_free(w.m);
}

/* Fails call k of opens or reads, for all k and kinds; returns how many epochs that took. */
static uint64_t every_call(const world* w, int is_open, int is_persistent)
{
    static const fault_kind open_kinds[] = {FAULT_IO,      FAULT_NOTFOUND,    FAULT_OOM,
                                            FAULT_TIMEOUT, FAULT_UNSUPPORTED, FAULT_ODD_STATUS};
    static const fault_kind read_kinds[] = {FAULT_IO,    FAULT_NOTFOUND,   FAULT_OOM,
                                            FAULT_SHORT, FAULT_ONE_BYTE,   FAULT_END,
                                            FAULT_LONG,  FAULT_ODD_STATUS, FAULT_TIMEOUT};
    const size_t n_kinds = is_open ? sizeof open_kinds / sizeof open_kinds[0]
                                   : sizeof read_kinds / sizeof read_kinds[0];
    uint64_t n_epochs = 0;

    for (size_t i = 0; i < n_kinds; i++) {
        const fault_kind kind = is_open ? open_kinds[i] : read_kinds[i];
        for (uint64_t k = 1;; k += (is_persistent ? 7u : 3u) * STRIDE) {
            faults f = faults_of(w);
            outcome o;
            int is_invisible = kind == FAULT_SHORT || kind == FAULT_ONE_BYTE;
            f.is_open = is_open;
            f.is_persistent = is_persistent;
            f.kind = kind;
            f.at = k;
            o = epoch(w, &f, DAMACY_ON_ERROR_FILL);
            n_epochs++;
            CHECK_EQ(o.n_pushed, N_SAMPLES);
            CHECK_EQ(o.n_ok + o.n_failed, N_SAMPLES);
            CHECK_EQ(o.end, DAMACY_END);
            if (f.n_injected == 0) {
                CHECK_EQ(o.n_failed, 0);
                break;
            }
            if (is_open && kind == FAULT_NOTFOUND) {
                is_invisible = strstr(f.key, "/c/") != NULL; /* a missing chunk */
                CHECK(f.is_persistent || (o.n_failed > 0) == !is_invisible);
            } else {
                CHECK((o.n_failed > 0) == !is_invisible);
            }
        }
    }
    return n_epochs;
}

TEST(an_open_that_fails_once_fails_only_the_samples_that_need_it)
{
    world w;

    world_make(&w);
    printf("# %llu epochs\n", (unsigned long long)every_call(&w, 1, 0));
    mem_free(w.m);
}

TEST(a_read_that_fails_once_fails_only_the_samples_that_need_it)
{
    world w;

    world_make(&w);
    printf("# %llu epochs\n", (unsigned long long)every_call(&w, 0, 0));
    mem_free(w.m);
}

TEST(opens_that_fail_from_some_call_on_lose_no_sample)
{
    world w;

    world_make(&w);
    printf("# %llu epochs\n", (unsigned long long)every_call(&w, 1, 1));
    mem_free(w.m);
}

TEST(reads_that_fail_from_some_call_on_lose_no_sample)
{
    world w;

    world_make(&w);
    printf("# %llu epochs\n", (unsigned long long)every_call(&w, 0, 1));
    mem_free(w.m);
}

TEST(stop_names_the_first_bad_sample_and_delivers_all_batches_before_it)
{
    world w;

    world_make(&w);
    for (uint64_t k = 1; k < 60; k++) {
        faults f = faults_of(&w);
        outcome o;
        int first = 0;
        f.at = k;
        o = epoch(&w, &f, DAMACY_ON_ERROR_STOP);
        if (f.n_injected == 0) {
            CHECK_EQ(o.end, DAMACY_END);
            continue;
        }
        CHECK_EQ(o.end, DAMACY_IO);
        while (!needs(&w, first, f.key)) {
            first++;
        }
        CHECK(o.end_sample >= (uint64_t)first);
        CHECK(needs(&w, (int)o.end_sample, f.key));
        CHECK_EQ(o.n_ok, o.end_sample / PER_BATCH * PER_BATCH);
        CHECK_EQ(o.n_failed, 0);
    }
    mem_free(w.m);
}

TEST(skip_leaves_out_the_bad_samples_and_counts_them)
{
    world w;

    world_make(&w);
    for (uint64_t k = 1; k < 60; k++) {
        faults f = faults_of(&w);
        outcome o;
        f.at = k;
        f.is_open = k % 2 == 0;
        o = epoch(&w, &f, DAMACY_ON_ERROR_SKIP);
        CHECK_EQ(o.end, DAMACY_END);
        CHECK_EQ(o.n_ok + o.n_failed, N_SAMPLES);
        CHECK((o.n_failed > 0) == (f.n_injected > 0));
    }
    mem_free(w.m);
}

/* After a failed allocation: what was delivered is right, and the end is END or a memory error. */
static void check_short_of_memory(const outcome* o)
{
    CHECK(o->create == DAMACY_OK || o->create == DAMACY_OOM || o->create == DAMACY_BUDGET);
    if (o->create != DAMACY_OK) {
        return;
    }
    CHECK(o->end == DAMACY_END || o->end == DAMACY_OOM || o->end == DAMACY_BUDGET);
    if (o->end == DAMACY_END) {
        CHECK_EQ(o->n_ok + o->n_failed, o->n_pushed);
    } else {
        CHECK(o->n_ok + o->n_failed < N_SAMPLES);
    }
}

TEST(every_allocation_that_fails_is_survived_with_nothing_left_behind)
{
    world w;
    uint64_t n_epochs = 0;

    world_make(&w);
    for (int is_persistent = 0; is_persistent < 2; is_persistent++) {
        for (uint64_t k = 1;; k += 3u * STRIDE) {
            faults f = faults_of(&w);
            outcome o;
            f.alloc_at = k;
            f.alloc_is_persistent = is_persistent;
            o = epoch(&w, &f, DAMACY_ON_ERROR_FILL);
            n_epochs++;
            if (f.n_allocs < k) {
                CHECK_EQ(o.n_ok, N_SAMPLES);
                break;
            }
            check_short_of_memory(&o);
        }
    }
    printf("# %llu epochs\n", (unsigned long long)n_epochs);
    {
        faults f = faults_of(&w);
        const outcome o = epoch(&w, &f, DAMACY_ON_ERROR_STOP); /* a fresh one is as good as new */
        CHECK_EQ(o.n_ok, N_SAMPLES);
    }
    mem_free(w.m);
}

TEST(failing_allocations_and_reads_together_lose_and_leak_nothing)
{
    uint64_t seed = test_seed();
    world w;

    world_make(&w);
    for (uint32_t i = 0; i < 300u / STRIDE; i++) {
        faults f = faults_of(&w);
        outcome o;
        f.alloc_at = 1 + test_random(&seed) % 400;
        f.alloc_is_persistent = test_random(&seed) % 8 == 0;
        f.is_open = (int)(test_random(&seed) % 2);
        f.at = 1 + test_random(&seed) % 120;
        f.is_persistent = test_random(&seed) % 4 == 0;
        f.kind = (fault_kind)(test_random(&seed) % (f.is_open ? 6 : 10));
        o = epoch(&w, &f, test_random(&seed) % 2 ? DAMACY_ON_ERROR_FILL : DAMACY_ON_ERROR_SKIP);
        check_short_of_memory(&o);
    }
    mem_free(w.m);
}

TEST_MAIN
