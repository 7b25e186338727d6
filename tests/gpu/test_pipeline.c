/* The whole library on a real device: the CPU's voxels, under load, with little memory, beside a
 * consumer's own streams and contexts, and after a fault. Skips aloud without a device.
 *
 * TEST_SOAK_SECONDS (30) is how long random configurations run; TEST_SEED repeats a run;
 * DAMACY_TEST_SMALL shortens what a sanitizer slows down; DAMACY_TEST_LINE_INFO lets it tell lines
 * of kernels. */
#ifndef DAMACY_TEST_ON_FAKE_GPU
#define DAMACY_IMPLEMENTATION
#define DAMACY__LINE_INFO (getenv("DAMACY_TEST_LINE_INFO") != NULL)
#include "damacy.h"
#include "tests/test.h"
#endif
#include "tests/pipeline/local_files.h"
#include "tests/pipeline/scene.h"
#include "tools/zarr_write.h"
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static damacy__driver cuda; /* for the consumer's own calls */
static char gpu_note[240];

#ifndef DAMACY_TEST_ON_FAKE_GPU
/* A context of the caller's own beside the primary one; it becomes current. */
static int test_context_create(void** context)
{
    int (*create)(void**, unsigned, int) = NULL;
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    void* address = library ? dlsym(library, "cuCtxCreate_v2") : NULL;

    memcpy(&create, &address, sizeof address);
    return create ? create(context, 0, 0) : -1;
}

static int test_context_destroy(void* context)
{
    int (*destroy)(void*) = NULL;
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    void* address = library ? dlsym(library, "cuCtxDestroy_v2") : NULL;

    memcpy(&destroy, &address, sizeof address);
    return destroy ? destroy(context) : -1;
}
#endif

/* Whether there is a device that the library can use. */
static int has_gpu(void)
{
    static int state; /* 1 yes, -1 no */
    damacy_config config;
    damacy_error err;
    damacy* d = NULL;

    if (!state) {
        memset(&config, 0, sizeof config);
        config.device = DAMACY_GPU(0);
        state = damacy_create(&config, &d, &err) == DAMACY_OK &&
                        damacy__driver_load(&cuda, &err) == DAMACY_OK
                    ? 1
                    : -1;
        damacy_destroy(d);
        (void)snprintf(gpu_note, sizeof gpu_note, "no GPU: %.200s", state < 0 ? err.message : "");
    }
    return state > 0;
}

#define NEED_GPU()      \
    if (!has_gpu()) {   \
        SKIP(gpu_note); \
    }

static void ok(int code)
{
    if (code) {
        printf("# a call of the consumer's to CUDA: error %d\n", code);
    }
    CHECK_EQ(code, 0);
}

/* The primary context, current on this thread until leave(). */
static void enter(void)
{
    void* context = NULL;

    ok(cuda.primary_retain(&context, 0));
    ok(cuda.context_push(context));
}

static void leave(void)
{
    void* context = NULL;

    ok(cuda.context_pop(&context));
    ok(cuda.primary_release(0));
}

/* ---- arrays ---- */

typedef struct coder {
    zarr_writer writer;
    zarr_spec spec;
    void* context;
    int is_blosc;
    uint8_t scratch[1 << 20];
} coder;

static coder coders[2];

static size_t encode(void* user, uint64_t number, const uint8_t* raw, size_t n, uint8_t* out)
{
    coder* c = (coder*)user;

    (void)number;
    return c->is_blosc ? zarr_blosc(&c->writer, c->context, raw, n, out, 2 * n + 65536, c->scratch)
                       : c->writer.zstd.compress(c->context, out, 2 * n + 65536, raw, n, 3);
}

static coder* coder_of(int is_blosc, int item_size)
{
    coder* c = &coders[is_blosc];

    if (!c->context) {
        CHECK(zarr_zstd_open(&c->writer.zstd));
        c->context = c->writer.zstd.create();
    }
    c->is_blosc = is_blosc;
    c->spec.item_size = (size_t)item_size;
    c->spec.blosc_block = 16384;
    c->spec.level = 3;
    c->writer.spec = &c->spec;
    return c;
}

enum { RAW, ZSTD, BLOSC, N_CODECS };

typedef struct kind {
    const char* name;
    int size;
} kind;

static const kind kinds[] = {{"uint8", 1}, {"uint16", 2},  {"int16", 2},  {"uint32", 4},
                             {"int64", 8}, {"float32", 4}, {"float64", 8}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* An array of one type and codec in the store. The voxels are the caller's to free. */
static scene put_array(mem_store* m, const char* uri, const kind* k, int codec, int64_t extent,
                       int64_t chunk, uint64_t* seed)
{
    const int64_t shape[3] = {extent, extent + 5, extent};
    const int64_t chunks[3] = {chunk, chunk, chunk};
    scene s = scene_make(uri, 3, shape, chunks, k->name, k->size, 2, seed);

    if (codec != RAW) {
        s.codecs = codec == ZSTD
                       ? "[" SCENE_BYTES ",{\"name\":\"zstd\",\"configuration\":{\"level\":3,"
                         "\"checksum\":false}}]"
                       : "[" SCENE_BYTES ",{\"name\":\"blosc\",\"configuration\":{\"cname\":"
                         "\"zstd\",\"clevel\":3,\"shuffle\":\"shuffle\",\"typesize\":2,"
                         "\"blocksize\":0}}]";
        s.encode = encode;
        s.context = coder_of(codec == BLOSC, k->size);
    }
    if (k->name[0] == 'f') { /* finite values, so that conversions can be compared by bytes */
        const size_t n = scene_n_voxels(&s);
        for (size_t i = 0; i < n; i++) {
            const double value = (double)(i % 5003) - 1000.25;
            const float narrow = (float)value;
            memcpy(s.voxels + i * (size_t)k->size, k->size == 4 ? (const void*)&narrow : &value,
                   (size_t)k->size);
        }
    }
    scene_put(m, &s);
    return s;
}

static damacy_sample crop_of(const scene* s, const int64_t* extent, uint64_t* seed)
{
    damacy_sample sample;

    memset(&sample, 0, sizeof sample);
    sample.uri = s->uri;
    sample.rank = 3;
    for (int i = 0; i < 3; i++) {
        sample.box[i].begin =
            (int64_t)(test_random(seed) % (uint64_t)(s->shape[i] - extent[i] + 1));
        sample.box[i].end = sample.box[i].begin + extent[i];
    }
    return sample;
}

static damacy_config gpu_config(mem_store* m)
{
    damacy_config c = scene_config(m, 4, DAMACY_ON_ERROR_STOP);

    c.device = DAMACY_GPU(0);
    c.max_gpu_bytes = UINT64_C(1) << 30;
    return c;
}

static damacy_stats read_stats; /* of the last read_all */

/* All batches of some samples, one after another, in memory that the caller frees. */
static uint8_t* read_all(damacy_config config, int32_t device, const damacy_sample* samples,
                         size_t n, size_t* size)
{
    damacy_error err;
    damacy* d = NULL;
    uint8_t* all = NULL;
    damacy_status status;
    size_t taken = 0;

    memset(&err, 0, sizeof err);
    config.device = device;
    status = damacy_create(&config, &d, &err);
    if (status == DAMACY_OK) {
        status = damacy_push(d, samples, n, &taken, &err);
    }
    *size = 0;
    while (status == DAMACY_OK) {
        damacy_batch batch;
        damacy_batch_info_t info;
        (void)damacy_finish(d);
        status = damacy_pop(d, &batch, &err);
        if (status == DAMACY_OK) {
            CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
            all = (uint8_t*)realloc(all, *size + info.size);
            CHECK_EQ(damacy_batch_read(batch, all + *size, info.size, &err), DAMACY_OK);
            *size += info.size;
            (void)damacy_release(batch);
        }
    }
    if (status != DAMACY_END) {
        printf("# %s: %s\n", damacy_status_str(status), err.message);
    }
    CHECK_EQ(status, DAMACY_END);
    CHECK_EQ(taken, n);
    damacy_stats_get(d, &read_stats);
    damacy_destroy(d);
    return all;
}

TEST(the_gpu_gives_the_bytes_of_the_cpu)
{
    static const damacy_dtype outs[] = {DAMACY_F32, DAMACY_BF16, DAMACY_NATIVE, DAMACY_I16};
    static const int64_t extent[3] = {40, 33, 37};
    const int is_small = getenv("DAMACY_TEST_SMALL") != NULL; /* under a sanitizer */
    uint64_t seed = test_seed();
    int n = 0;

    NEED_GPU();
    for (int k = is_small ? 1 : 0; k < (is_small ? 2 : N_KINDS); k++) {
        for (int codec = 0; codec < N_CODECS; codec++) {
            mem_store* m = mem_new();
            scene s = put_array(m, "a.zarr", &kinds[k], codec, 70, 24, &seed);
            damacy_sample samples[10];
            for (int i = 0; i < 10; i++) {
                samples[i] = crop_of(&s, extent, &seed);
            }
            for (size_t o = 0; o < (is_small ? 1 : sizeof outs / sizeof outs[0]); o++) {
                damacy_config config = gpu_config(m);
                size_t size[2] = {0, 0};
                uint8_t* bytes[2];
                config.dtype = outs[o];
                config.max_gpu_bytes = (n % 3 && !is_small ? UINT64_C(512) : UINT64_C(64)) << 20;
                bytes[0] = read_all(config, DAMACY_CPU, samples, 10, &size[0]);
                bytes[1] = read_all(config, DAMACY_GPU(0), samples, 10, &size[1]);
                CHECK_EQ(size[0], size[1]);
                if (memcmp(bytes[0], bytes[1], size[0]) != 0) {
                    printf("# %s, codec %d, output %s\n", kinds[k].name, codec,
                           damacy_dtype_str(outs[o]));
                }
                CHECK(memcmp(bytes[0], bytes[1], size[0]) == 0);
                if (outs[o] == DAMACY_NATIVE) {
                    CHECK(scene_equal(&s, samples[0].box, bytes[1]));
                }
                free(bytes[0]);
                free(bytes[1]);
                n++;
            }
            free(s.voxels);
            mem_free(m);
        }
    }
    printf("# %d pairs\n", n);
}

/* Files of more than 1 MiB, which is the least that is mapped. */
TEST(mapped_files_give_the_bytes_of_the_cpu)
{
    static const int64_t extent[3] = {60, 33, 77};
    uint64_t seed = test_seed();
    uint64_t n_mapped = 0;

    NEED_GPU();
    for (int codec = RAW; codec <= ZSTD; codec++) {
        mem_store* m = mem_new();
        scene s = put_array(m, "a.zarr", &kinds[1], codec, 150, codec == RAW ? 84 : 150, &seed);
        damacy_config config = gpu_config(m);
        damacy_sample samples[40];
        size_t size[2] = {0, 0};
        uint8_t* bytes[2];
        const char* uri;
        folder_begin();
        put_files(m);
        uri = in_folder("a.zarr");
        memset(&config.store, 0, sizeof config.store);
        config.mapping = DAMACY_MAPPING_ON;
        config.max_host_bytes = UINT64_C(512) << 20;
        for (int i = 0; i < 40; i++) {
            samples[i] = crop_of(&s, extent, &seed);
            samples[i].uri = uri;
        }
        bytes[0] = read_all(config, DAMACY_CPU, samples, 40, &size[0]);
        bytes[1] = read_all(config, DAMACY_GPU(0), samples, 40, &size[1]);
        printf("# %llu of %llu bytes mapped\n", (unsigned long long)read_stats.bytes_mapped,
               (unsigned long long)read_stats.read.bytes_in);
        n_mapped += read_stats.bytes_mapped;
        CHECK_EQ(size[0], size[1]);
        CHECK(memcmp(bytes[0], bytes[1], size[0]) == 0);
        free(bytes[0]);
        free(bytes[1]);
        free(s.voxels);
        mem_free(m);
        folder_end();
    }
    if (n_mapped == 0) {
        SKIP("files are not mapped here; voxels agree");
    }
}

/* ---- soak ---- */

/* Holds the consumer's stream up, as work of its own would. */
static void dawdle(void* user)
{
    struct timespec t;

    (void)user;
    t.tv_sec = 0;
    t.tv_nsec = 300000;
    (void)nanosleep(&t, NULL);
}

/* What a consumer keeps of a batch: a copy made on its own stream, which is looked at later. */
typedef struct kept {
    uint64_t dev;
    uint64_t size;
    size_t first; /* sample */
    uint32_t n_samples;
} kept;

/* Copies the batch away on the consumer's stream and gives it back in one of the ways, all before
 * the copy has run. */
static void keep_and_release(damacy_batch batch, void* stream, int way, kept* k)
{
    damacy_batch_info_t info;
    damacy_dl_managed_versioned* tensor = NULL;
    damacy_error err;

    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    ok(cuda.memory_alloc(&k->dev, info.size));
    k->size = info.size;
    k->n_samples = (uint32_t)info.shape[0];
    if (way == 3) {
        CHECK_EQ(damacy_batch_dlpack(batch, stream, &tensor, &err), DAMACY_OK);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    } else {
        ok(cuda.stream_wait(stream, info.ready_event, 0));
    }
    ok(cuda.launch_host(stream, dawdle, NULL));
    ok(cuda.copy_on_device(k->dev, (uint64_t)(uintptr_t)info.ptr, info.size, stream));
    if (way == 0) {
        ok(cuda.stream_synchronize(stream));
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    } else if (way == 1) {
        void* event = NULL;
        ok(cuda.event_create(&event, 2));
        ok(cuda.event_record(event, stream));
        CHECK_EQ(damacy_release_event(batch, event), DAMACY_OK);
        ok(cuda.event_destroy(event));
    } else if (way == 2) {
        CHECK_EQ(damacy_release_stream(batch, stream), DAMACY_OK);
    } else {
        tensor->deleter(tensor);
    }
}

/* Streams n samples of an array with a consumer on a stream of its own. way: how batches go back;
 * -1: each in another way. */
static void consume(damacy_config config, const scene* s, size_t n, const int64_t* extent, int way,
                    uint64_t* seed)
{
    damacy_sample* samples = (damacy_sample*)calloc(n, sizeof *samples);
    kept* all = (kept*)calloc(n, sizeof *all);
    damacy_status status;
    damacy_error err;
    damacy* d = NULL;
    void* stream = NULL;
    size_t pushed = 0, popped = 0, n_batches = 0;
    uint8_t* host;

    memset(&err, 0, sizeof err);
    for (size_t i = 0; i < n; i++) {
        samples[i] = crop_of(s, extent, seed);
    }
    enter();
    ok(cuda.stream_create(&stream, 1, 0));
    config.dtype = DAMACY_NATIVE;
    status = damacy_create(&config, &d, &err);
    while (status == DAMACY_OK) {
        damacy_batch batch;
        size_t taken = 0;
        status = damacy_push(d, samples + pushed, n - pushed, &taken, &err);
        pushed += taken;
        if (status == DAMACY_AGAIN || status == DAMACY_OK) {
            status = pushed == n ? damacy_finish(d) : DAMACY_OK;
        }
        if (pushed == n && status == DAMACY_OK) {
            status = DAMACY_SHUTDOWN; /* nothing more to push */
        }
        if (status == DAMACY_OK || status == DAMACY_SHUTDOWN) {
            status = damacy_pop(d, &batch, &err);
        }
        if (status == DAMACY_OK) {
            all[n_batches].first = popped;
            keep_and_release(batch, stream, way < 0 ? (int)(test_random(seed) % 4) : way,
                             &all[n_batches]);
            popped += all[n_batches++].n_samples;
        }
    }
    if (status != DAMACY_END) {
        printf("# %s: %s\n", damacy_status_str(status), err.message);
    }
    CHECK_EQ(status, DAMACY_END);
    CHECK_EQ(popped, n);
    damacy_destroy(d);
    ok(cuda.stream_synchronize(stream));
    for (size_t b = 0; b < n_batches; b++) {
        host = (uint8_t*)malloc(all[b].size);
        ok(cuda.copy_to_host(host, all[b].dev, all[b].size, stream));
        ok(cuda.stream_synchronize(stream));
        for (uint32_t i = 0; i < all[b].n_samples; i++) {
            CHECK(scene_equal(s, samples[all[b].first + i].box,
                              host + all[b].size / all[b].n_samples * i));
        }
        free(host);
        ok(cuda.memory_free(all[b].dev));
    }
    ok(cuda.stream_destroy(stream));
    leave();
    free(all);
    free(samples);
}

TEST(soak_of_random_configurations)
{
    const char* text = getenv("TEST_SOAK_SECONDS");
    const time_t end = time(NULL) + (text ? atoi(text) : 30);
    uint64_t seed = test_seed();
    int rounds = 0;

    NEED_GPU();
    while (rounds == 0 || time(NULL) < end) {
        mem_store* m = mem_new();
        const int codec = (int)(test_random(&seed) % N_CODECS);
        const int64_t chunk = 8 + (int64_t)(test_random(&seed) % 40);
        scene s = put_array(m, "a.zarr", &kinds[test_random(&seed) % N_KINDS], codec,
                            48 + (int64_t)(test_random(&seed) % 80), chunk, &seed);
        damacy_config config = gpu_config(m);
        int64_t extent[3];
        for (int i = 0; i < 3; i++) {
            extent[i] = 1 + (int64_t)(test_random(&seed) % (uint64_t)s.shape[i]);
        }
        config.samples_per_batch = 1 + (uint32_t)(test_random(&seed) % 9);
        config.batch_slots = 2 + (uint32_t)(test_random(&seed) % 4);
        config.lookahead_samples = 64;
        config.max_gpu_bytes = (UINT64_C(256) + test_random(&seed) % 1024) << 20;
        config.max_host_bytes = UINT64_C(256) << 20; /* for plans of tens of thousands of chunks */
        config.max_cache_bytes = test_random(&seed) % 3 ? test_random(&seed) % (8u << 20) : 0;
        consume(config, &s, 20 + test_random(&seed) % 100, extent, -1, &seed);
        free(s.voxels);
        mem_free(m);
        rounds++;
    }
    printf("# %d configurations\n", rounds);
}

TEST(events_of_a_foreign_stream_hold_the_slot_under_load)
{
    static const int64_t extent[3] = {64, 64, 64};
    uint64_t seed = test_seed();
    mem_store* m;
    scene s;

    NEED_GPU();
    m = mem_new();
    s = put_array(m, "a.zarr", &kinds[1], ZSTD, 100, 32, &seed);
    for (int way = 1; way <= 3; way++) { /* event, stream, the deleter of a tensor */
        damacy_config config = gpu_config(m);
        config.batch_slots = 2;
        consume(config, &s, 160, extent, way, &seed);
    }
    free(s.voxels);
    mem_free(m);
}

/* Holds a stream until the flag is set. */
static void hold(void* user)
{
    while (!__atomic_load_n((int*)user, __ATOMIC_ACQUIRE)) {
        dawdle(NULL);
    }
}

/* Whether a batch comes within 20 s and its sample is right. */
static int take_good(damacy* d, const scene* s, const damacy_sample* sample, damacy_batch* batch)
{
    static uint8_t voxels[64 * 64 * 64 * 2];
    damacy_error err;

    return damacy_pop_timeout(d, UINT64_C(20000000000), batch, &err) == DAMACY_OK &&
           damacy_batch_read(*batch, voxels, sizeof voxels, &err) == DAMACY_OK &&
           scene_equal(s, sample->box, voxels);
}

/* Batch 1, whose bytes come late, is there before the consumer's stream goes on, which holds the
 * slot of batch 2. */
static void take_while_held(damacy* d, mem_store* m, const scene* s, const damacy_sample* samples,
                            void* stream)
{
    static int is_open;
    damacy_batch batch;
    int is_good;

    CHECK(take_good(d, &s[0], &samples[0], &batch));
    while (__atomic_load_n(&m->n_waiting, __ATOMIC_ACQUIRE) == 0) {
        dawdle(NULL);
    }
    __atomic_store_n(&is_open, 0, __ATOMIC_RELEASE);
    ok(cuda.launch_host(stream, hold, &is_open));
    CHECK_EQ(damacy_release_stream(batch, stream), DAMACY_OK);
    for (int i = 0; i < 300; i++) { /* 0.1 s, in which batch 2 could have been queued */
        dawdle(NULL);
    }
    mem_pause(m, 0);
    is_good = take_good(d, &s[1], &samples[1], &batch);
    __atomic_store_n(&is_open, 1, __ATOMIC_RELEASE);
    CHECK(is_good);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    for (int i = 2; i < 4; i++) {
        CHECK(take_good(d, &s[i % 2], &samples[i], &batch));
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
}

/* Nothing that the driver is asked for in between may wait for all that runs. Batch 1 is the first
 * with blosc. The second time all kernels are in the cache. */
TEST(batch_comes_while_the_consumers_stream_waits_for_it)
{
    static const int64_t extent[3] = {64, 64, 64};
    uint64_t seed = test_seed();

    NEED_GPU();
    for (int round = 0; round < 2; round++) {
        mem_store* m = mem_new();
        damacy_config config = gpu_config(m);
        scene s[2];
        damacy_sample samples[4];
        damacy_error err;
        damacy* d = NULL;
        void* stream = NULL;

        s[0] = put_array(m, "a.zarr", &kinds[1], ZSTD, 100, 32, &seed);
        s[1] = put_array(m, "b.zarr", &kinds[1], BLOSC, 100, 32, &seed);
        for (int i = 0; i < 4; i++) {
            samples[i] = crop_of(&s[i % 2], extent, &seed);
        }
        config.dtype = DAMACY_NATIVE;
        config.samples_per_batch = 1;
        config.batch_slots = 2;
        config.io_threads = 64; /* all chunks of batch 1 wait, and those of batch 2 do not */
        m->paused_uri = "b.zarr";
        mem_pause(m, 1);
        enter();
        ok(cuda.stream_create(&stream, 1, 0));
        CHECK_EQ(damacy_create(&config, &d, &err), DAMACY_OK);
        CHECK_EQ(damacy_push(d, samples, 4, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_finish(d), DAMACY_OK);
        take_while_held(d, m, s, samples, stream);
        damacy_destroy(d);
        ok(cuda.stream_destroy(stream));
        leave();
        free(s[0].voxels);
        free(s[1].voxels);
        mem_free(m);
    }
}

/* ---- resources ---- */

static size_t free_device_bytes(void)
{
    size_t n_free = 0, n_total = 0;

    ok(cuda.memory_info(&n_free, &n_total));
    return n_free;
}

TEST(fifty_pipelines_leave_no_device_memory_taken)
{
    static const int64_t extent[3] = {20, 20, 20};
    uint64_t seed = test_seed();
    mem_store* m;
    scene s;
    size_t before = 0, after;

    NEED_GPU();
    m = mem_new();
    s = put_array(m, "a.zarr", &kinds[1], BLOSC, 40, 16, &seed);
    enter();
    for (int i = 0; i < 52; i++) {
        damacy_config config = gpu_config(m);
        damacy_error err;
        damacy* d = NULL;
        size_t size = 0;
        if (i == 2) { /* the driver keeps some for itself once kernels have run */
            before = free_device_bytes();
        }
        config.max_gpu_bytes = UINT64_C(256) << 20;
        if (i % 3 == 0) { /* destroyed with work under way */
            damacy_sample samples[12];
            for (int k = 0; k < 12; k++) {
                samples[k] = crop_of(&s, extent, &seed);
            }
            CHECK_EQ(damacy_create(&config, &d, &err), DAMACY_OK);
            CHECK_EQ(damacy_push(d, samples, 12, NULL, &err), DAMACY_OK);
            damacy_destroy(d);
        } else {
            damacy_sample sample = crop_of(&s, extent, &seed);
            free(read_all(config, DAMACY_GPU(0), &sample, 1, &size));
        }
    }
    after = free_device_bytes();
    for (int i = 0; i < 100 && after + (2u << 20) < before; i++) {
        usleep(100000); /* other programs' memory comes and goes, too */
        after = free_device_bytes();
    }
    leave();
    printf("# %zu bytes free before, %zu after\n", before, after);
    CHECK(after + (2u << 20) >= before);
    free(s.voxels);
    mem_free(m);
}

TEST(too_little_device_memory_is_an_error_with_the_sum_and_no_harm)
{
    static const int64_t extent[3] = {20, 20, 20};
    uint64_t seed = test_seed();
    damacy_sample sample;
    damacy_error err;
    damacy* d = NULL;
    damacy_batch batch;
    mem_store* m;
    scene s;
    size_t size = 0, n_free = 0, n_total = 0;

    NEED_GPU();
    m = mem_new();
    s = put_array(m, "a.zarr", &kinds[1], ZSTD, 40, 16, &seed);
    sample = crop_of(&s, extent, &seed);
    for (int round = 0; round < 2; round++) {
        damacy_config config = gpu_config(m);
        damacy_sample wanted = sample;
        config.samples_per_batch = 1;
        config.max_gpu_bytes = 1 << 20;
        if (round == 1) { /* more than the device has */
            enter();
            ok(cuda.memory_info(&n_free, &n_total));
            leave();
            config.max_gpu_bytes = UINT64_C(1) << 45;
            config.bounds = DAMACY_BOUNDS_FILL;
            wanted.box[0].end = wanted.box[0].begin + (int64_t)(n_total >> 21);
            wanted.box[1].end = wanted.box[1].begin + 1024;
            wanted.box[2].end = wanted.box[2].begin + 512; /* of 4 bytes */
        }
        CHECK_EQ(damacy_create(&config, &d, &err), DAMACY_OK);
        CHECK_EQ(damacy_push(d, &wanted, 1, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), round ? DAMACY_OOM : DAMACY_BUDGET);
        printf("# %s\n", err.message);
        CHECK_HAS(err.message, round ? "are free" : "1048576");
        damacy_destroy(d);
        config = gpu_config(m);
        free(read_all(config, DAMACY_GPU(0), &sample, 1, &size)); /* what fits works */
        CHECK(size > 0);
    }
    free(s.voxels);
    mem_free(m);
}

/* ---- contexts ---- */

static void check_current(const void* expected)
{
    void* now = NULL;

    ok(cuda.context_current(&now));
    CHECK(now == expected);
}

/* Every call of a pipeline's life leaves the context current that was. */
static void check_life(mem_store* m, const scene* s, void* current, uint64_t* seed)
{
    static const int64_t extent[3] = {20, 20, 20};
    damacy_config config = gpu_config(m);
    damacy_dl_managed_versioned* tensor = NULL;
    damacy_sample sample = crop_of(s, extent, seed);
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy_stats stats;
    damacy* d = NULL;
    uint8_t bytes[4 * 20 * 20 * 20];

    config.samples_per_batch = 1;
    CHECK_EQ(damacy_create(&config, &d, &err), DAMACY_OK);
    check_current(current);
    CHECK_EQ(damacy_push(d, &sample, 1, NULL, &err), DAMACY_OK);
    check_current(current);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    check_current(current);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(damacy_batch_read(batch, bytes, sizeof bytes, &err), DAMACY_OK);
    check_current(current);
    CHECK_EQ(damacy_batch_dlpack(batch, NULL, &tensor, &err), DAMACY_OK);
    check_current(current);
    tensor->deleter(tensor);
    check_current(current);
    CHECK_EQ(damacy_release_stream(batch, info.ready_stream), DAMACY_OK);
    check_current(current);
    damacy_stats_get(d, &stats);
    CHECK(stats.gpu_bytes_committed > 0);
    damacy_destroy(d);
    check_current(current);
    config.max_gpu_bytes = 1 << 20;
    CHECK_EQ(damacy_create(&config, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, &sample, 1, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_BUDGET);
    check_current(current);
    damacy_destroy(d);
    config.device = DAMACY_GPU(4000);
    CHECK(damacy_create(&config, &d, &err) != DAMACY_OK);
    check_current(current);
}

TEST(the_callers_context_stays_as_it_was)
{
    uint64_t seed = test_seed();
    mem_store* m;
    scene s;
    void* own = NULL;
    void* popped = NULL;

    NEED_GPU();
    m = mem_new();
    s = put_array(m, "a.zarr", &kinds[1], ZSTD, 40, 16, &seed);
    check_life(m, &s, NULL, &seed);
    ok(test_context_create(&own));
    check_life(m, &s, own, &seed);
    ok(cuda.context_pop(&popped));
    CHECK(popped == own);
    ok(test_context_destroy(own));
    free(s.voxels);
    mem_free(m);
}

typedef struct pair_side {
    damacy_config config;
    const damacy_sample* samples;
    uint8_t* bytes;
    size_t size;
    damacy_status status;
} pair_side;

/* As read_all, on a thread of its own: without CHECK, which belongs to the test's thread. */
static void* pair_main(void* argument)
{
    pair_side* side = (pair_side*)argument;
    damacy_error err;
    damacy* d = NULL;

    side->status = damacy_create(&side->config, &d, &err);
    if (side->status == DAMACY_OK) {
        side->status = damacy_push(d, side->samples, 48, NULL, &err);
        (void)damacy_finish(d);
    }
    while (side->status == DAMACY_OK) {
        damacy_batch batch;
        damacy_batch_info_t info;
        side->status = damacy_pop(d, &batch, &err);
        if (side->status == DAMACY_OK) {
            (void)damacy_batch_info(batch, &info);
            side->bytes = (uint8_t*)realloc(side->bytes, side->size + info.size);
            side->status = damacy_batch_read(batch, side->bytes + side->size, info.size, &err);
            side->size += info.size;
            (void)damacy_release(batch);
        }
    }
    if (side->status != DAMACY_END) {
        printf("# %s: %s\n", damacy_status_str(side->status), err.message);
    }
    damacy_destroy(d);
    return NULL;
}

TEST(two_pipelines_work_at_once_in_two_contexts)
{
    static const int64_t extent[3] = {48, 48, 48};
    uint64_t seed = test_seed();
    damacy_sample samples[48];
    pair_side sides[2];
    pthread_t threads[2];
    uint8_t* expected;
    size_t size = 0;
    mem_store* m;
    scene s;
    void* own = NULL;
    void* popped = NULL;

    NEED_GPU();
    m = mem_new();
    s = put_array(m, "a.zarr", &kinds[1], BLOSC, 80, 32, &seed);
    for (int i = 0; i < 48; i++) {
        samples[i] = crop_of(&s, extent, &seed);
    }
    expected = read_all(gpu_config(m), DAMACY_CPU, samples, 48, &size);
    ok(test_context_create(&own));
    ok(cuda.context_pop(&popped));
    for (int round = 0; round < (getenv("DAMACY_TEST_SMALL") ? 1 : 3); round++) {
        memset(sides, 0, sizeof sides);
        for (int i = 0; i < 2; i++) {
            sides[i].config = gpu_config(m);
            sides[i].samples = samples;
            sides[i].config.cuda_context = i ? own : NULL;
            CHECK_EQ(pthread_create(&threads[i], NULL, pair_main, &sides[i]), 0);
        }
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
        }
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(sides[i].status, DAMACY_END);
            CHECK_EQ(sides[i].size, size);
            CHECK(memcmp(sides[i].bytes, expected, size) == 0);
            free(sides[i].bytes);
        }
    }
    ok(test_context_destroy(own));
    free(expected);
    free(s.voxels);
    mem_free(m);
}

/* ---- a lost device ---- */

#ifndef DAMACY_TEST_ON_FAKE_GPU
/* In a process of its own: a kernel of the consumer's faults in the context of a busy pipeline.
 * Returns 0 when every later call says so. */
static int lost_child(void)
{
    static const char ptx[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                              ".visible .entry fault()\n{\n.reg .u64 %a;\n.reg .u32 %v;\n"
                              "mov.u64 %a, 16;\nmov.u32 %v, 1;\nst.global.u32 [%a], %v;\nret;\n}\n";
    static const int64_t extent[3] = {20, 20, 20};
    uint64_t seed = 5;
    mem_store* m = mem_new();
    scene s = put_array(m, "a.zarr", &kinds[1], ZSTD, 40, 16, &seed);
    damacy_config config = gpu_config(m);
    damacy_sample samples[40];
    damacy_batch batch, held;
    damacy_status status;
    damacy_error err;
    damacy* d = NULL;
    void *module = NULL, *function = NULL;
    uint8_t bytes[4 * 4 * 20 * 20 * 20];

    alarm(60); /* a hang ends the child */
    for (int i = 0; i < 40; i++) {
        samples[i] = crop_of(&s, extent, &seed);
    }
    if (!has_gpu() || damacy_create(&config, &d, &err) != DAMACY_OK ||
        damacy_push(d, samples, 40, NULL, &err) != DAMACY_OK ||
        damacy_pop(d, &held, &err) != DAMACY_OK) {
        return 10;
    }
    enter();
    if (cuda.module_load(&module, ptx) || cuda.module_function(&function, module, "fault") ||
        cuda.launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) {
        return 11;
    }
    (void)cuda.stream_synchronize(NULL);
    for (int i = 0; i < 100; i++) { /* what was ready may still come */
        status = damacy_pop(d, &batch, &err);
        if (status != DAMACY_OK) {
            break;
        }
        (void)damacy_release(batch);
    }
    printf("# %s: %s\n", damacy_status_str(status), err.message);
    if (status != DAMACY_DEVICE_LOST || damacy_pop(d, &batch, &err) != DAMACY_DEVICE_LOST ||
        damacy_push(d, samples, 1, NULL, &err) != DAMACY_DEVICE_LOST ||
        damacy_batch_read(held, bytes, sizeof bytes, &err) != DAMACY_DEVICE_LOST ||
        damacy_release(held) != DAMACY_OK) {
        return 12;
    }
    damacy_destroy(d);
    d = NULL;
    status = damacy_create(&config, &d, &err); /* the process cannot use the device any more */
    printf("# a new pipeline: %s: %s\n", damacy_status_str(status), err.message);
    damacy_destroy(d);
    return status == DAMACY_OK ? 13 : 0;
}

TEST(after_a_fault_every_call_says_that_the_device_is_lost)
{
    int code = 0;
    pid_t child;

    NEED_GPU();
    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        (void)setenv("DAMACY_LOST_CHILD", "1", 1);
        (void)execl("/proc/self/exe", "test_pipeline", (char*)NULL);
        _exit(20);
    }
    CHECK(waitpid(child, &code, 0) == child);
    if (!WIFEXITED(code) || WEXITSTATUS(code) != 0) {
        printf("# the child ended with %d, signal %d\n", WEXITSTATUS(code), WTERMSIG(code));
    }
    CHECK(WIFEXITED(code));
    CHECK_EQ(WEXITSTATUS(code), 0);
}

int main(int argc, char** argv)
{
    return getenv("DAMACY_LOST_CHILD") ? lost_child() : test_main(argc, argv);
}
#endif
