// s04, s05, s34 and s35, and the device's sides of s06, s08 and s39, on the fake driver.
#include "tests/pipeline/fake_gpu.h"
#include "tests/pipeline/memory_store.h"
#include <atomic>
#include <thread>

// A machine that is open before any pipeline is, and one array.
struct bench {
    mem_store* store = mem_new();
    mem_array array;
    damacy_config config;
    damacy_sample samples[8];
    damacy__driver driver;
    damacy_error err;

    explicit bench(uint32_t n_devices = 1)
    {
        enroll_kernels();
        memset(&machine, 0, sizeof machine);
        memset(&config, 0, sizeof config);
        memset(&err, 0, sizeof err);
        memset(&driver, 0, sizeof driver);
        machine.device_bytes = 512u << 20;
        machine.n_devices = n_devices;
        n_loads = 0;
        (void)load_fake(&driver, &err);
        array = mem_plain("v.zarr");
        for (int i = 0; i < 3; i++) {
            array.shape[i] = 24;
            array.chunk[i] = 8;
        }
        mem_put_array(store, &array);
        for (int i = 0; i < 8; i++)
            samples[i] = mem_sample(&array, i, 2 * i, 14 - 2 * i, 8);
        config.store = mem_callbacks(store);
        config.device = DAMACY_GPU(0);
        config.samples_per_batch = 1;
        config.batch_slots = 2;
        config.io_threads = 2;
        config.decode_threads = 1;
        config.max_gpu_bytes = 64u << 20;
        config.max_host_bytes = 64u << 20;
        config.cache_dir = "";
    }
    ~bench()
    {
        mem_free(store);
    }
    bench(const bench&) = delete;
    bench& operator=(const bench&) = delete;

    // Whether a batch has one sample, read through the library.
    bool is_right(damacy_batch batch, int i)
    {
        std::vector<float> voxels(512);
        return damacy_batch_read(batch, voxels.data(), voxels.size() * 4, &err) == DAMACY_OK &&
               mem_equal_f32(&array, &samples[i], voxels.data(), 0.0f);
    }
    // Makes a pipeline, looks at one batch and ends it.
    damacy_status run_once(int32_t* device)
    {
        damacy* d = NULL;
        damacy_batch batch;
        damacy_status status = damacy_create(&config, &d, &err);
        if (status != DAMACY_OK) {
            CHECK(d == NULL);
            return status;
        }
        *device = damacy_device(d);
        CHECK_EQ(damacy_push(d, samples, 1, NULL, &err), DAMACY_OK);
        status = damacy_pop(d, &batch, &err);
        if (status == DAMACY_OK) {
            CHECK(is_right(batch, 0));
            CHECK_EQ(damacy_release(batch), DAMACY_OK);
        }
        damacy_destroy(d);
        return status;
    }
    void end()
    {
        const fake_counts counts = counts_without_misuse();
        CHECK_EQ(counts.live_allocations + counts.live_pinned + counts.live_registered, 0);
        CHECK_EQ(
            counts.live_streams + counts.live_events + counts.live_modules + counts.live_graphs, 0);
        CHECK_EQ(counts.live_primary, 0);
        CHECK_EQ(store->n_open, 0);
        fake_close();
    }
};

static damacy__context current_context()
{
    damacy__context context = NULL;
    CHECK_EQ(fake::context_current(&context), 0);
    return context;
}

// Ours: AUTO falls back to GPU 0 where no context is current; a context of another device is left
// alone.
TEST(s04_the_device_is_the_one_that_is_named_or_the_current_one)
{
    bench b(2);
    damacy__context popped = NULL;
    int32_t device = 99;
    b.config.device = DAMACY_AUTO;
    CHECK_EQ(b.run_once(&device), DAMACY_OK);
    CHECK_EQ(device, DAMACY_GPU(0));
    CHECK(current_context() == NULL);
    b.config.device = DAMACY_GPU(1);
    CHECK_EQ(b.run_once(&device), DAMACY_OK);
    CHECK_EQ(device, DAMACY_GPU(1));
    CHECK(current_context() == NULL);
    b.config.device = DAMACY_GPU(2);
    CHECK_EQ(b.run_once(&device), DAMACY_UNSUPPORTED);
    CHECK_HAS(b.err.message, "no GPU 2");
    b.config.device = DAMACY_CPU;
    CHECK_EQ(b.run_once(&device), DAMACY_OK);
    CHECK_EQ(device, DAMACY_CPU);

    damacy__context own = fake_context(1);
    CHECK_EQ(fake::context_push(own), 0);
    b.config.device = DAMACY_AUTO;
    CHECK_EQ(b.run_once(&device), DAMACY_OK);
    CHECK_EQ(device, DAMACY_GPU(1));
    b.config.device = DAMACY_GPU(0);
    CHECK_EQ(b.run_once(&device), DAMACY_OK);
    CHECK_EQ(device, DAMACY_GPU(0));
    b.config.device = DAMACY_GPU(2);
    CHECK_EQ(b.run_once(&device), DAMACY_UNSUPPORTED);
    CHECK(current_context() == own);
    CHECK_EQ(fake::context_pop(&popped), 0);
    b.end();
}

TEST(s05_the_current_context_of_the_caller_is_kept_by_every_call)
{
    bench b(2);
    for (int with = 0; with < 2; with++) {
        damacy__context own = with ? fake_context(1) : NULL, popped = NULL;
        damacy* d = NULL;
        damacy_batch batch, none = {};
        damacy_batch_info_t info;
        damacy_stats stats;
        damacy_dl_managed* tensor = NULL;
        std::vector<float> voxels(512);
        if (own)
            CHECK_EQ(fake::context_push(own), 0);
#define KEEPS(call, expected)            \
    do {                                 \
        CHECK_EQ(call, expected);        \
        CHECK(current_context() == own); \
    } while (0)
        b.config.device = DAMACY_GPU(7);
        KEEPS(damacy_create(&b.config, &d, &b.err), DAMACY_UNSUPPORTED);
        b.config.device = DAMACY_GPU(0);
        b.config.max_gpu_bytes = 4096; // too little: told with the first batch
        KEEPS(damacy_create(&b.config, &d, &b.err), DAMACY_OK);
        KEEPS(damacy_push(d, b.samples, 1, NULL, &b.err), DAMACY_OK);
        KEEPS(damacy_pop(d, &batch, &b.err), DAMACY_BUDGET);
        KEEPS((damacy_destroy(d), 0), 0);
        b.config.max_gpu_bytes = 64u << 20;
        KEEPS(damacy_create(&b.config, &d, &b.err), DAMACY_OK);
        KEEPS(damacy_pop(d, &batch, &b.err), DAMACY_AGAIN);
        KEEPS(damacy_pop_timeout(d, 1000, &batch, &b.err), DAMACY_TIMEOUT);
        KEEPS(damacy_push(d, b.samples, 3, NULL, &b.err), DAMACY_OK);
        KEEPS(damacy_pop(d, &batch, &b.err), DAMACY_OK);
        KEEPS(damacy_batch_info(batch, &info), DAMACY_OK);
        KEEPS(damacy_batch_read(batch, voxels.data(), 7, &b.err), DAMACY_INVAL);
        KEEPS(damacy_batch_read(batch, voxels.data(), voxels.size() * 4, &b.err), DAMACY_OK);
        KEEPS(damacy_batch_dlpack_legacy(batch, NULL, &tensor, &b.err), DAMACY_OK);
        KEEPS((tensor->deleter(tensor), 0), 0);
        KEEPS((damacy_stats_get(d, &stats), 0), 0);
        CHECK(stats.gpu_bytes_committed > 0);
        KEEPS(damacy_release_stream(batch, NULL), DAMACY_OK);
        KEEPS(damacy_release_event(none, NULL), DAMACY_INVAL);
        KEEPS(damacy_pop(d, &batch, &b.err), DAMACY_OK);
        KEEPS(damacy_release_event(batch, &b), DAMACY_CUDA);
        KEEPS(damacy_release(batch), DAMACY_OK);
        KEEPS(damacy_pop(d, &batch, &b.err), DAMACY_OK);
        KEEPS((damacy_destroy(d), 0), 0);
        KEEPS(damacy_release(batch), DAMACY_OK); // frees the device's memory
        if (own)
            CHECK_EQ(fake::context_pop(&popped), 0);
    }
    // The event that is none was counted as wrong use, as it should be.
    fake_counts counts;
    fake_count(&counts);
    CHECK_EQ(counts.misuse, 2);
    CHECK_EQ(
        counts.live_allocations + counts.live_streams + counts.live_events + counts.live_graphs, 0);
    fake_close();
}

TEST(s06_the_device_budget_is_kept_or_refused_with_the_sum)
{
    int n_right = 0, n_refused = 0;
    for (uint64_t budget = 256u << 10; budget <= 256u << 20; budget += budget / 2) {
        bench b;
        fake_counts counts;
        int32_t device = 0;
        b.config.max_gpu_bytes = budget;
        const damacy_status status = b.run_once(&device);
        fake_count(&counts);
        CHECK(counts.most_bytes <= budget);
        if (status != DAMACY_OK) {
            CHECK_EQ(status, DAMACY_BUDGET);
            CHECK_HAS(b.err.message, "max_gpu_bytes");
            const std::string number = std::to_string(budget);
            CHECK_HAS(b.err.message, number.c_str());
            CHECK_EQ(n_right, 0); // more is never worse
            if (n_refused++ % 4 == 0)
                printf("# %s\n", b.err.message);
        } else {
            n_right++;
        }
        b.end();
    }
    printf("# %d right, %d refused\n", n_right, n_refused);
    CHECK(n_right > 0 && n_refused > 0);
}

// Ours: what is committed follows the budget alone, and never grows once batches flow.
TEST(s08_a_smaller_device_budget_shrinks_what_is_committed)
{
    uint64_t last = UINT64_MAX;
    for (uint64_t budget = 320u << 20; budget >= 80u << 20; budget /= 2) {
        bench b;
        damacy* d = NULL;
        damacy_batch batch;
        damacy_stats stats, later;
        b.config.max_gpu_bytes = budget;
        CHECK_EQ(damacy_create(&b.config, &d, &b.err), DAMACY_OK);
        CHECK_EQ(damacy_push(d, b.samples, 4, NULL, &b.err), DAMACY_OK);
        for (int i = 0; i < 4; i++) {
            CHECK_EQ(damacy_pop(d, &batch, &b.err), DAMACY_OK);
            CHECK(b.is_right(batch, i));
            damacy_stats_get(d, i == 0 ? &stats : &later);
            CHECK_EQ(damacy_release(batch), DAMACY_OK);
        }
        CHECK_EQ(later.gpu_bytes_committed, stats.gpu_bytes_committed);
        printf("# %llu of %llu bytes\n", (unsigned long long)stats.gpu_bytes_committed,
               (unsigned long long)budget);
        CHECK(stats.gpu_bytes_committed <= budget && stats.gpu_bytes_committed < last);
        last = stats.gpu_bytes_committed;
        damacy_destroy(d);
        b.end();
    }
}

// A stream of the consumer's that is busy from work() until `is_done`, and an event behind that.
// (The first batch waits for all that runs: kernels are loaded before it.)
struct consumer {
    damacy__context context = NULL;
    damacy__stream stream = NULL;
    damacy__event event = NULL;
    std::atomic<bool> is_done{false};

    consumer()
    {
        CHECK_EQ(fake::primary_retain(&context, 0), 0);
        CHECK_EQ(fake::context_push(context), 0);
        CHECK_EQ(fake::stream_create(&stream, 1, 0), 0);
        CHECK_EQ(fake::event_create(&event, 2), 0);
    }
    void work()
    {
        {
            fake::guard lock(fake::m->mutex);
            fake::operation op;
            op.run = [this] {
                while (!is_done)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
            };
            fake::enqueue(fake::find_stream(stream), std::move(op));
        }
        CHECK_EQ(fake::event_record(event, stream), 0);
    }
    void end()
    {
        damacy__context popped = NULL;
        is_done = true;
        if (event)
            CHECK_EQ(fake::event_destroy(event), 0);
        CHECK_EQ(fake::stream_destroy(stream), 0);
        CHECK_EQ(fake::context_pop(&popped), 0);
        CHECK_EQ(fake::primary_release(0), 0);
    }
};

// Ours: only the slot that was released waits; the event may be destroyed at once.
TEST(s34_a_slot_is_written_again_only_after_the_consumers_event)
{
    for (int way = 0; way < 3; way++) { // an event, a stream, the stream of the configuration
        bench b;
        consumer user;
        damacy* d = NULL;
        damacy_batch first, second, third;
        damacy_batch_info_t info;
        if (way == 2)
            b.config.cuda_stream = user.stream;
        CHECK_EQ(damacy_create(&b.config, &d, &b.err), DAMACY_OK);
        CHECK_EQ(damacy_push(d, b.samples, 3, NULL, &b.err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &first, &b.err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &second, &b.err), DAMACY_OK);
        user.work();
        CHECK(b.is_right(first, 0) && b.is_right(second, 1));
        CHECK_EQ(damacy_batch_info(first, &info), DAMACY_OK);
        std::vector<uint8_t> before((const uint8_t*)info.ptr, (const uint8_t*)info.ptr + info.size);
        CHECK_EQ(way == 0   ? damacy_release_event(first, user.event)
                 : way == 1 ? damacy_release_stream(first, user.stream)
                            : damacy_release(first),
                 DAMACY_OK);
        if (way == 0) {
            CHECK_EQ(fake::event_destroy(user.event), 0);
            user.event = NULL;
        }
        CHECK_EQ(damacy_release_event(first, NULL), DAMACY_INVAL); // released already
        CHECK_EQ(damacy_pop_timeout(d, 30000000, &third, &b.err), DAMACY_TIMEOUT);
        CHECK(memcmp(before.data(), info.ptr, before.size()) == 0); // the consumer reads on
        CHECK(b.is_right(second, 1));
        user.is_done = true;
        CHECK_EQ(damacy_pop(d, &third, &b.err), DAMACY_OK);
        CHECK(b.is_right(third, 2));
        CHECK_EQ(damacy_release_event(third, NULL), DAMACY_OK); // NULL: a plain release
        CHECK_EQ(damacy_release(second), DAMACY_OK);
        damacy_destroy(d);
        user.end();
        b.end();
    }
}

// Ours: the batch stays held, since its voxels may still be in use.
TEST(s35_an_event_that_is_none_is_told_and_the_batch_stays_held)
{
    bench b;
    damacy* d = NULL;
    damacy_batch batch, more;
    damacy_batch_info_t info;
    CHECK_EQ(damacy_create(&b.config, &d, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, b.samples, 4, NULL, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_release_event(batch, &b), DAMACY_CUDA);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK(b.is_right(batch, 0));
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    for (int i = 1; i < 4; i++) {
        CHECK_EQ(damacy_pop(d, &more, &b.err), DAMACY_OK);
        CHECK(b.is_right(more, i));
        CHECK_EQ(damacy_release(more), DAMACY_OK);
    }
    damacy_destroy(d);
    fake_close();
}

TEST(s39_destroy_with_work_in_flight_and_an_open_event_is_clean)
{
    bench b;
    consumer user;
    damacy* d = NULL;
    damacy_batch first, held;
    damacy_dl_managed* tensor = NULL;
    CHECK_EQ(damacy_create(&b.config, &d, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, b.samples, 8, NULL, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &first, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &held, &b.err), DAMACY_OK);
    user.work();
    CHECK_EQ(damacy_batch_dlpack_legacy(held, DAMACY_STREAM_NONE, &tensor, &b.err), DAMACY_OK);
    CHECK_EQ(damacy_release_event(first, user.event), DAMACY_OK); // not over yet
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        user.is_done = true;
    });
    damacy_destroy(d);
    later.join();
    CHECK(b.is_right(held, 1));
    CHECK_EQ(damacy_release(held), DAMACY_OK);
    CHECK(mem_equal_f32(&b.array, &b.samples[1], (const float*)tensor->dl_tensor.data, 0.0f));
    tensor->deleter(tensor);
    user.end();
    b.end();
}

TEST_MAIN
