// Arrays of every way to the device: raw, checksummed, sparse, Zstandard, LZ4, blosc decoded there,
// blosc decoded on the host; and a consumer that looks at every voxel.
#pragma once
#include "tests/pipeline/fake_gpu.h"
#include "tests/pipeline/memory_store.h"
#include <blosc.h>
#include <lz4.h>
#include <zstd.h>

// A thread sanitizer makes kernels on fibers some twenty times slower.
enum { IS_SLOW = TEST_TSAN };

struct heap_state {
    uint64_t live; // blocks; atomic
};

static void* heap_alloc(void* user, size_t size, size_t alignment)
{
    void* ptr = NULL;
    if (posix_memalign(&ptr, alignment, size) != 0)
        return NULL;
    __atomic_add_fetch(&((heap_state*)user)->live, 1, __ATOMIC_RELAXED);
    return ptr;
}

static void heap_free(void* user, void* ptr, size_t)
{
    __atomic_sub_fetch(&((heap_state*)user)->live, 1, __ATOMIC_RELAXED);
    free(ptr);
}

// ---- arrays ----

enum { EXTENT = 20, CHUNK = 8, CROP = 10, VOXELS = CROP * CROP * CROP };

// How the chunks of an array are stored: codecs is what follows the bytes codec.
struct way {
    const char* uri;
    const char* codecs;
    const char* compressor; // of blosc; "zstd frame", "lz4 block": without blosc; "": none
    const char* data_type;
    int item_size;
    int is_missing_odd;
};

static const way ways[] = {
    {"raw.zarr", "", "", "uint16", 2, 0},
    {"zstd.zarr", "{\"name\":\"zstd\",\"configuration\":{\"level\":3,\"checksum\":false}}",
     "zstd frame", "uint16", 2, 0},
    {"sparse.zarr", "", "", "uint16", 2, 1},
    {"blosc_zstd.zarr",
     "{\"name\":\"blosc\",\"configuration\":{\"cname\":\"zstd\",\"clevel\":5,\"shuffle\":"
     "\"shuffle\",\"typesize\":2,\"blocksize\":0}}",
     "zstd", "uint16", 2, 0},
    {"crc.zarr", "{\"name\":\"crc32c\"}", "", "uint16", 2, 0},
    {"blosc_lz4.zarr",
     "{\"name\":\"blosc\",\"configuration\":{\"cname\":\"lz4\",\"clevel\":5,\"shuffle\":"
     "\"shuffle\",\"typesize\":2,\"blocksize\":0}}",
     "lz4", "uint16", 2, 0},
    {"blosc_zlib.zarr", // which the host decodes
     "{\"name\":\"blosc\",\"configuration\":{\"cname\":\"zlib\",\"clevel\":5,\"shuffle\":"
     "\"shuffle\",\"typesize\":2,\"blocksize\":0}}",
     "zlib", "uint16", 2, 0},
    {"bytes.zarr", "{\"name\":\"zstd\",\"configuration\":{\"level\":3,\"checksum\":true}}",
     "zstd frame", "uint8", 1, 0},
    {"lz4.zarr", "{\"name\":\"numcodecs.lz4\",\"configuration\":{\"acceleration\":1}}", "lz4 block",
     "uint16", 2, 0},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static std::vector<uint8_t> compressed(const way& w, const uint8_t* raw, size_t size)
{
    std::vector<uint8_t> out(size + size / 2 + 1024);
    if (!strcmp(w.compressor, "zstd frame")) {
        ZSTD_CCtx* context = ZSTD_createCCtx();
        ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 3);
        ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, w.item_size == 1);
        out.resize(ZSTD_compress2(context, out.data(), out.size(), raw, size));
        ZSTD_freeCCtx(context);
    } else if (!strcmp(w.compressor, "lz4 block")) { // its size in front
        for (int i = 0; i < 4; i++)
            out[(size_t)i] = (uint8_t)(size >> (8 * i));
        const int n = LZ4_compress_default((const char*)raw, (char*)out.data() + 4, (int)size,
                                           (int)out.size() - 4);
        CHECK(n > 0);
        out.resize((size_t)n + 4);
    } else {
        const int n = blosc_compress_ctx(5, BLOSC_SHUFFLE, (size_t)w.item_size, size, raw,
                                         out.data(), out.size(), w.compressor, 0, 1);
        CHECK(n > 0);
        out.resize((size_t)n);
    }
    return out;
}

// Writes an array in its way.
static mem_array put_way(mem_store* m, const way& w, uint32_t seed, int extent = EXTENT,
                         int chunk = CHUNK)
{
    mem_array a;
    memset(&a, 0, sizeof a);
    a.uri = w.uri;
    a.rank = 3;
    for (int i = 0; i < 3; i++) {
        a.shape[i] = extent;
        a.chunk[i] = chunk;
    }
    a.data_type = w.data_type;
    a.item_size = w.item_size;
    a.seed = seed;
    a.is_missing_odd = w.is_missing_odd;
    a.has_crc = strstr(w.codecs, "crc32c") != NULL;
    mem_put_array(m, &a);
    if (w.compressor[0] == '\0')
        return a;
    const std::string prefix = std::string(w.uri) + "/c/", meta = std::string(w.uri) + "/zarr.json";
    for (int i = 0; i < m->n; i++) {
        mem_object* o = &m->objects[i];
        if (strncmp(o->key, prefix.c_str(), prefix.size()) == 0) {
            const std::vector<uint8_t> bytes = compressed(w, o->bytes, o->size);
            const std::string key = o->key;
            mem_put(m, key.c_str(), bytes.data(), bytes.size());
        }
    }
    const mem_object* o = mem_find(m, meta.c_str());
    std::string text((const char*)o->bytes, o->size);
    const size_t at = text.find("\"little\"}}");
    CHECK(at != std::string::npos);
    text.insert(at + 10, std::string(",") + w.codecs);
    mem_put(m, meta.c_str(), text.data(), text.size());
    return a;
}

// Whichever codec it is.
static void damage(mem_object* o)
{
    o->bytes[o->size - 1] ^= 0x55; // a checksum, or the end of a stream
    memset(o->bytes + o->size / 2, 0xff, o->size / 4);
}

// ---- a scene ----

// Samples of all arrays in turn, and a configuration for them. Pipelines of one scene share one
// machine.
struct scene {
    mem_store* store = mem_new();
    mem_array arrays[WAYS];
    heap_state heap = {0};
    std::vector<damacy_sample> samples;
    std::vector<int> array_of;
    damacy_config config;
    damacy_error err;

    explicit scene(uint32_t n_samples)
    {
        uint64_t seed = 77;
        if (fake::m && !fake::m->is_ending) { // a failed check has left it, perhaps held for ever
            printf("Bail out! The pipeline of the test before is still there.\n");
            fflush(stdout);
            _exit(1);
        }
        enroll_kernels();
        memset(&machine, 0, sizeof machine);
        memset(&config, 0, sizeof config);
        memset(&err, 0, sizeof err);
        machine.device_bytes = 512u << 20;
        machine.n_multiprocessors = 1; // fewer blocks to run
        n_loads = 0;
        for (int i = 0; i < WAYS; i++)
            arrays[i] = put_way(store, ways[i], (uint32_t)i * 1000);
        for (uint32_t i = 0; i < n_samples; i++) {
            const uint64_t room = EXTENT - CROP + 1;
            const int64_t z = (int64_t)(test_random(&seed) % room),
                          y = (int64_t)(test_random(&seed) % room),
                          x = (int64_t)(test_random(&seed) % room);
            array_of.push_back((int)(i % WAYS));
            samples.push_back(mem_sample(&arrays[i % WAYS], z, y, x, CROP));
        }
        config.store = mem_callbacks(store);
        config.device = DAMACY_GPU(0);
        config.samples_per_batch = 4;
        config.io_threads = 2;
        config.decode_threads = 1;
        config.max_gpu_bytes = 48u << 20;
        config.max_host_bytes = 24u << 20;
        config.cache_dir = "";
        config.allocator.user = &heap;
        config.allocator.alloc = heap_alloc;
        config.allocator.free = heap_free;
    }
    ~scene()
    {
        mem_free(store);
    }
    scene(const scene&) = delete;
    scene& operator=(const scene&) = delete;

    // Puts a sample outside its array, so that it fails.
    void move_out(size_t number)
    {
        samples[number].box[0].begin += 1000;
        samples[number].box[0].end += 1000;
    }

    bool voxels_are_right(uint64_t number, const void* voxels) const
    {
        return mem_equal_f32(&arrays[array_of[number]], &samples[number], (const float*)voxels,
                             0.0f);
    }
};

// Waits for a batch as a consumer does, in the device's primary context; these calls never fail on
// purpose.
static int wait_for(const damacy_batch_info_t& info)
{
    damacy__context context = NULL, popped = NULL;
    fake_exempt(1);
    CHECK_EQ(fake::primary_retain(&context, 0), 0);
    CHECK_EQ(fake::context_push(context), 0);
    const int code = fake::event_synchronize(info.ready_event);
    fake::context_pop(&popped);
    fake::primary_release(0);
    fake_exempt(0);
    return code;
}

// How many samples of a batch are OK but wrong, or fail but are not zeros under FILL.
static uint32_t n_wrong(const scene& s, damacy_batch batch, const damacy_batch_info_t& info)
{
    static const float zeros[VOXELS] = {};
    uint32_t n = 0;
    for (uint32_t i = 0; i < info.shape[0]; i++) {
        uint64_t number = 0;
        damacy_status status = DAMACY_OK;
        damacy_error err;
        CHECK_EQ(damacy_batch_sample(batch, i, &number, &status, &err), DAMACY_OK);
        const float* voxels = (const float*)info.ptr + (size_t)i * VOXELS;
        const bool is_right = status == DAMACY_OK
                                  ? s.voxels_are_right(number, voxels)
                                  : memcmp(voxels, zeros, sizeof zeros) == 0 && err.message[0];
        if (!is_right)
            printf("# sample %llu of %s is wrong, status %s\n", (unsigned long long)number,
                   s.samples[number].uri, damacy_status_str(status));
        n += !is_right;
    }
    return n;
}

// What the device and the host still hold once everything was given back.
static uint64_t n_leftovers()
{
    fake_counts c;
    fake_count(&c);
    return c.live_allocations + c.live_pinned + c.live_registered + c.live_streams + c.live_events +
           c.live_graphs + c.live_modules + c.live_compilations + c.live_primary;
}

static void check_no_leftovers(scene& s)
{
    (void)counts_without_misuse();
    CHECK_EQ(n_leftovers(), 0);
    CHECK_EQ(s.heap.live, 0);
    CHECK_EQ(s.store->n_open, 0);
    fake_close();
}

// Pushes all samples, pops and checks all batches. The status that ended it: END when all is well.
// *n_bad counts wrong samples, *n_failed those that say that they failed.
struct epoch {
    damacy_status status = DAMACY_OK;
    uint32_t n_popped = 0, n_bad = 0, n_failed = 0;
    size_t n_pushed = 0;
};

static epoch run_epoch(scene& s, damacy* d)
{
    epoch e;
    bool is_finished = false;
    while (e.status == DAMACY_OK) {
        size_t n = 0;
        if (e.n_pushed < s.samples.size()) {
            e.status = damacy_push(d, s.samples.data() + e.n_pushed, s.samples.size() - e.n_pushed,
                                   &n, &s.err);
            e.n_pushed += n;
            if (e.status == DAMACY_AGAIN || e.status == DAMACY_SHUTDOWN)
                e.status = DAMACY_OK; // pop tells the cause
        } else if (!is_finished) {
            e.status = damacy_finish(d);
            is_finished = true;
        }
        damacy_batch batch;
        damacy_batch_info_t info;
        if (e.status == DAMACY_OK)
            e.status = damacy_pop_timeout(d, UINT64_C(60000000000), &batch, &s.err);
        if (e.status == DAMACY_OK) {
            CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
            CHECK(info.ready_event != NULL);
            if (wait_for(info) == 0)
                e.n_bad += n_wrong(s, batch, info);
            e.n_failed += info.n_failed;
            e.n_popped += (uint32_t)info.shape[0];
            CHECK_EQ(damacy_release(batch), DAMACY_OK);
        }
    }
    return e;
}

// Messages of a pipeline.
struct log_state {
    std::mutex mutex;
    std::string text;
    bool has(const char* part)
    {
        std::lock_guard<std::mutex> lock(mutex);
        return text.find(part) != std::string::npos;
    }
};

static void log_line(void* user, damacy_log_level, const char* message)
{
    log_state* const log = (log_state*)user;
    std::lock_guard<std::mutex> lock(log->mutex);
    log->text += std::string(message) + "\n";
}

static damacy* create(scene& s)
{
    damacy* d = NULL;
    const damacy_status status = damacy_create(&s.config, &d, &s.err);
    if (status != DAMACY_OK)
        printf("# %s\n", s.err.message);
    CHECK_EQ(status, DAMACY_OK);
    return d;
}

// The whole epoch, right to the last voxel.
static void check_epoch(scene& s, damacy* d)
{
    const epoch e = run_epoch(s, d);
    if (e.status != DAMACY_END)
        printf("# %s\n", s.err.message);
    CHECK_EQ(e.status, DAMACY_END);
    CHECK_EQ(e.n_bad, 0);
    CHECK_EQ(e.n_failed, 0);
    CHECK_EQ(e.n_popped, s.samples.size());
}

static damacy_batch pop(scene& s, damacy* d)
{
    damacy_batch batch = {NULL, 0};
    const damacy_status status = damacy_pop_timeout(d, UINT64_C(60000000000), &batch, &s.err);
    if (status != DAMACY_OK)
        printf("# %s\n", s.err.message);
    CHECK_EQ(status, DAMACY_OK);
    return batch;
}

static damacy_batch_info_t info_of(damacy_batch batch)
{
    damacy_batch_info_t info;
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    return info;
}

static void push_all(scene& s, damacy* d)
{
    CHECK_EQ(damacy_push(d, s.samples.data(), s.samples.size(), NULL, &s.err), DAMACY_OK);
    CHECK_EQ(damacy_finish(d), DAMACY_OK);
}

// The next batch comes, is right, and is given back.
static void take(scene& s, damacy* d, uint32_t n_failed = 0)
{
    const damacy_batch batch = pop(s, d);
    const damacy_batch_info_t info = info_of(batch);
    CHECK_EQ(wait_for(info), 0);
    CHECK_EQ(info.n_failed, n_failed);
    CHECK_EQ(n_wrong(s, batch, info), 0);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
}
