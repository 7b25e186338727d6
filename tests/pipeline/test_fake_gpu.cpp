// The whole library with its GPU side, on the fake driver: the same voxels, the caller's context as
// it was, clean ends whatever call of the driver fails.
#include "tests/simt/simt.h"
#include <assert.h>

// The library holds the kernels' records, too: theirs live in a namespace here.
namespace kernels {
#include "kernels/assemble.cu"
#include "kernels/blosc.cu"
#include "kernels/copy.cu"
#include "kernels/crc32c.cu"
#include "kernels/lz4.cu"
#include "kernels/zstd.cu"
#include "kernels/zstd_sequences.cu"
} // namespace kernels
#undef DAMACY__INLINE

struct damacy__driver;
struct damacy_error;
static int load_fake(damacy__driver* driver, damacy_error* err);
#define DAMACY__DRIVER_LOAD (damacy_status) load_fake
#define DAMACY_IMPLEMENTATION
#include "damacy.h"

#include "tests/simt/driver.h"
#include "tests/test.h"
#include "tests/pipeline/memory_store.h"
#include <zstd.h>

static fake_config machine;

static int load_fake(damacy__driver* driver, damacy_error*)
{
    fake_open(driver, &machine);
    return DAMACY_OK;
}

static void enroll_kernels()
{
    using namespace kernels;
#define KERNEL(name) simt::enroll(#name, name)
    KERNEL(damacy_assemble);
    KERNEL(damacy_blosc_begin);
    KERNEL(damacy_blosc_parse);
    KERNEL(damacy_blosc_finish);
    KERNEL(damacy_blosc_unfilter);
    KERNEL(damacy_copy);
    KERNEL(damacy_crc32c);
    KERNEL(damacy_lz4_begin);
    KERNEL(damacy_lz4_parse);
    KERNEL(damacy_lz4_execute);
    KERNEL(damacy_lz4_execute_few);
    KERNEL(damacy_clear_failed);
    KERNEL(damacy_zstd_count);
    KERNEL(damacy_zstd_allocate);
    KERNEL(damacy_zstd_fill);
    KERNEL(damacy_zstd_trees);
    KERNEL(damacy_zstd_order);
    KERNEL(damacy_zstd_resolve);
    KERNEL(damacy_zstd_literals_lanes9);
    KERNEL(damacy_zstd_literals_lanes10);
    KERNEL(damacy_zstd_literals_lanes11);
    KERNEL(damacy_zstd_literals_split32);
    KERNEL(damacy_zstd_literals_split128);
    KERNEL(damacy_zstd_place);
    KERNEL(damacy_zstd_finish);
    KERNEL(damacy_zstd_tables);
    KERNEL(damacy_zstd_fse);
    KERNEL(damacy_zstd_execute_1024x2);
    KERNEL(damacy_zstd_execute_256x4);
    KERNEL(damacy_zstd_execute_256x2);
    KERNEL(damacy_zstd_execute_128x2);
    KERNEL(damacy_zstd_link);
    KERNEL(damacy_zstd_jump);
}

// ---- a scene ------------------------------------------------------------------------------------

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

// Compresses the chunks of an array that mem_put_array has written.
static void compress(mem_store* m, const char* uri)
{
    const std::string prefix = std::string(uri) + "/c/";
    for (int i = 0; i < m->n; i++) {
        mem_object* o = &m->objects[i];
        if (strncmp(o->key, prefix.c_str(), prefix.size()) == 0) {
            std::vector<uint8_t> out(ZSTD_compressBound(o->size));
            out.resize(ZSTD_compress(out.data(), out.size(), o->bytes, o->size, 3));
            memcpy(o->bytes, out.data(), out.size()); // it has become smaller
            CHECK(out.size() < o->size);
            o->size = out.size();
        }
    }
    mem_object* meta = mem_find(m, (std::string(uri) + "/zarr.json").c_str());
    CHECK(meta != NULL);
    std::string text((const char*)meta->bytes, meta->size);
    const size_t at = text.find("\"little\"}}");
    CHECK(at != std::string::npos);
    text.insert(at + 10, ",{\"name\":\"zstd\",\"configuration\":{\"level\":3,\"checksum\":false}}");
    mem_put(m, (std::string(uri) + "/zarr.json").c_str(), text.data(), text.size());
}

struct scene {
    mem_store* store;
    mem_array arrays[3];
    heap_state heap;
    std::vector<damacy_sample> samples;
    damacy_config config;
    damacy_error err;

    explicit scene(uint32_t n_samples, bool is_stepped = false)
    {
        enroll_kernels();
        memset(&machine, 0, sizeof machine);
        machine.is_stepped = is_stepped;
        machine.device_bytes = 512u << 20;
        heap.live = 0;
        store = mem_new();
        static const char* const names[] = {"raw.zarr", "zstd.zarr", "crc.zarr"};
        for (int i = 0; i < 3; i++) {
            arrays[i] = mem_plain(names[i]);
            arrays[i].seed = (uint32_t)i * 1000;
            arrays[i].has_crc = i == 2;
            if (i == 1) { // so that there are matches to find
                arrays[i].data_type = "uint8";
                arrays[i].item_size = 1;
            }
            mem_put_array(store, &arrays[i]);
        }
        compress(store, "zstd.zarr");
        uint64_t seed = 77;
        for (uint32_t i = 0; i < n_samples; i++) {
            const int64_t z = (int64_t)(test_random(&seed) % 28),
                          y = (int64_t)(test_random(&seed) % 28),
                          x = (int64_t)(test_random(&seed) % 28);
            samples.push_back(mem_sample(&arrays[i % 3], z, y, x, 12));
        }
        memset(&config, 0, sizeof config);
        memset(&err, 0, sizeof err);
        config.store = mem_callbacks(store);
        config.device = DAMACY_GPU(0);
        config.samples_per_batch = 4;
        config.io_threads = 2;
        config.decode_threads = 1;
        config.max_gpu_bytes = 256u << 20;
        config.max_host_bytes = 64u << 20;
        config.cache_dir = "";
        config.allocator.user = &heap;
        config.allocator.alloc = heap_alloc;
        config.allocator.free = heap_free;
    }
    ~scene()
    {
        mem_free(store);
    }
};

// The voxels of a batch, through the test's own use of the driver; they are ready.
static bool batch_is_right(scene& s, const damacy_batch_info_t& info, uint32_t first)
{
    const size_t voxels = 12 * 12 * 12;
    for (uint32_t i = 0; i < info.shape[0]; i++) {
        const damacy_sample& sample = s.samples[first + i];
        if (!mem_equal_f32(&s.arrays[(first + i) % 3], &sample, (const float*)info.ptr + i * voxels,
                           0.0f))
            return false;
    }
    return true;
}

// Waits for a batch as a consumer does. The context of the library's device, here the primary one.
static int wait_for(const damacy_batch_info_t& info)
{
    damacy__context context = NULL, popped = NULL;
    CHECK_EQ(fake::primary_retain(&context, 0), 0);
    CHECK_EQ(fake::context_push(context), 0);
    const int code = fake::event_synchronize(info.ready_event);
    fake::context_pop(&popped);
    fake::primary_release(0);
    return code;
}

static void check_no_leftovers(scene& s)
{
    fake_counts counts;
    fake_count(&counts);
    if (counts.misuse)
        printf("# %s\n", counts.first_misuse);
    CHECK_EQ(counts.misuse, 0);
    CHECK_EQ(counts.live_allocations, 0);
    CHECK_EQ(counts.live_pinned, 0);
    CHECK_EQ(counts.live_registered, 0);
    CHECK_EQ(counts.live_streams, 0);
    CHECK_EQ(counts.live_events, 0);
    CHECK_EQ(counts.live_modules, 0);
    CHECK_EQ(counts.live_compilations, 0);
    CHECK_EQ(counts.live_primary, 0);
    CHECK_EQ(s.heap.live, 0);
    CHECK_EQ(s.store->n_open, 0);
    fake_close();
}

// Pushes all samples, pops and checks all batches. The status that ended it: END when all is well.
static damacy_status run_epoch(scene& s, damacy* d)
{
    size_t pushed = 0;
    uint32_t popped = 0;
    damacy_status status = DAMACY_OK;
    bool is_finished = false;
    while (status == DAMACY_OK) {
        size_t n = 0;
        if (pushed < s.samples.size()) {
            status =
                damacy_push(d, s.samples.data() + pushed, s.samples.size() - pushed, &n, &s.err);
            pushed += n;
            status = status == DAMACY_AGAIN ? DAMACY_OK : status;
        } else if (!is_finished) {
            status = damacy_finish(d);
            is_finished = true;
        }
        damacy_batch batch;
        damacy_batch_info_t info;
        if (status == DAMACY_OK)
            status = damacy_pop_timeout(d, UINT64_C(20000000000), &batch, &s.err);
        if (status == DAMACY_OK) {
            CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
            CHECK(info.ready_event != NULL);
            const int code = wait_for(info);
            if (code == 0)
                CHECK(batch_is_right(s, info, popped));
            popped += (uint32_t)info.shape[0];
            CHECK_EQ(damacy_release(batch), DAMACY_OK);
        }
    }
    if (status == DAMACY_END)
        CHECK_EQ(popped, s.samples.size());
    return status;
}

// ---- tests --------------------------------------------------------------------------------------

TEST(every_voxel_is_right_through_the_kernels)
{
    scene s(24);
    damacy* d = NULL;
    fake_counts counts;
    CHECK_EQ(damacy_create(&s.config, &d, &s.err), DAMACY_OK);
    CHECK_EQ(damacy_device(d), DAMACY_GPU(0));
    const uint64_t begin = damacy__now_ns();
    const damacy_status status = run_epoch(s, d);
    printf("# %s: %s, %.0f ms\n", damacy_status_str(status), s.err.message,
           (double)(damacy__now_ns() - begin) * 1e-6);
    fake_count(&counts);
    printf("# %llu calls, %llu launches, %llu bytes at most\n", (unsigned long long)counts.n_calls,
           (unsigned long long)counts.n_launches, (unsigned long long)counts.most_bytes);
    CHECK_EQ(status, DAMACY_END);
    CHECK(counts.most_bytes <= s.config.max_gpu_bytes);
    damacy_destroy(d);
    check_no_leftovers(s);
}

TEST_MAIN
