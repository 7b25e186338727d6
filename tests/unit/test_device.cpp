// Device and memory on the fake driver: contexts stay as they were, budgets hold, errors are told.
#include "gpu/memory.h"
#include "tests/device_open.h"
#include "tests/simt/counts.h"
#include <sys/wait.h>

static damacy__driver driver;
static damacy__alloc heap;
static damacy__device device;
static damacy_error err;

static void start(const fake_config& config)
{
    fake_open(&driver, &config);
    memset(&heap, 0, sizeof heap);
    memset(&device, 0, sizeof device);
    memset(&err, 0, sizeof err);
}

static void open_device(uint64_t max_bytes)
{
    damacy__device_config config = {};
    config.max_bytes = max_bytes;
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &config, &err), DAMACY_OK);
}

// Closes everything; nothing is left over, nothing was called wrongly.
static void finish()
{
    damacy__device_close(&device);
    const fake_counts counts = counts_without_misuse();
    CHECK_EQ(counts.live_allocations, 0);
    CHECK_EQ(counts.live_pinned, 0);
    CHECK_EQ(counts.live_registered, 0);
    CHECK_EQ(counts.live_streams, 0);
    CHECK_EQ(counts.live_events, 0);
    CHECK_EQ(counts.live_primary, 0);
    CHECK_EQ(heap.live_bytes, 0);
    CHECK_EQ(heap.live_blocks, 0);
    fake_close();
}

static damacy__context current_context()
{
    damacy__context c = NULL;
    driver.context_current(&c);
    return c;
}

// Fills, copies there, on the device and back on two streams that wait for each other.
static damacy_status round_trip(uint64_t size)
{
    damacy_status status;
    damacy__pinned in = {}, out = {};
    damacy__stream a = NULL, b = NULL;
    damacy__event event = NULL;
    uint64_t x = 0, y = 0;

    status = damacy__device_enter(&device, &err);
    if (status != DAMACY_OK)
        return status;
#define STEP(call)           \
    if (status == DAMACY_OK) \
        status = call;
    STEP(damacy__pinned_alloc(&device, size, "in", &in, &err))
    STEP(damacy__pinned_alloc(&device, size, "out", &out, &err))
    STEP(damacy__device_alloc(&device, size, "x", &x, &err))
    STEP(damacy__device_alloc(&device, size, "y", &y, &err))
    STEP(damacy__stream_open(&device, true, &a, &err))
    STEP(damacy__stream_open(&device, false, &b, &err))
    STEP(damacy__event_open(&device, false, &event, &err))
    if (status == DAMACY_OK)
        for (uint64_t i = 0; i < size; i++)
            in.ptr[i] = (uint8_t)(i * 7);
    STEP(damacy__fill_device(&device, y, 9, size, a, &err))
    STEP(damacy__copy_to_device(&device, x, in.ptr, size, a, &err))
    STEP(damacy__copy_on_device(&device, y, x, size / 2, a, &err))
    STEP(damacy__event_record(&device, event, a, &err))
    STEP(damacy__stream_await(&device, b, event, &err))
    STEP(damacy__copy_to_host(&device, out.ptr, y, size, b, &err))
    STEP(damacy__event_record(&device, event, b, &err))
    STEP(damacy__event_await(&device, event, 10000000000u, &err))
    if (status == DAMACY_OK)
        for (uint64_t i = 0; i < size; i++)
            if (out.ptr[i] != (i < size / 2 ? (uint8_t)(i * 7) : 9))
                status = DAMACY_DECODE;
    damacy__event_close(&device, event);
    damacy__stream_close(&device, b);
    damacy__stream_close(&device, a);
    damacy__device_free(&device, y, size);
    damacy__device_free(&device, x, size);
    damacy__pinned_free(&device, &out);
    damacy__pinned_free(&device, &in);
    damacy__device_leave(&device);
    return status;
}

TEST(bytes_go_there_and_back)
{
    start({});
    open_device(0);
    CHECK_EQ(device.architecture, 90);
    CHECK_STR(device.name, "Fake GPU 0");
    CHECK_EQ(device.budget, 1u << 28);
    CHECK_EQ(round_trip(100000), DAMACY_OK);
    CHECK_EQ(device.committed, 0);
    CHECK_EQ(device.pinned, 0);
    finish();
}

TEST(bytes_go_there_and_back_in_every_order_of_the_streams)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        fake_config config = {};
        config.is_stepped = 1;
        config.seed = seed;
        start(config);
        open_device(0);
        CHECK_EQ(round_trip(1000), DAMACY_OK);
        finish();
    }
}

TEST(current_context_of_the_caller_is_kept_when_things_go_well)
{
    start({});
    damacy__context own = fake_context(0);
    CHECK(current_context() == NULL);
    damacy__device_config config = {};
    config.device = DAMACY_GPU(0);
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &config, &err), DAMACY_OK);
    CHECK(current_context() == NULL);
    CHECK_EQ(driver.context_push(own), 0);
    CHECK_EQ(round_trip(100), DAMACY_OK);
    CHECK(current_context() == own);
    CHECK(device.context != own);
    damacy__device_close(&device);
    CHECK(current_context() == own);
    finish();
}

TEST(auto_takes_the_current_context)
{
    start({});
    damacy__context own = fake_context(0);
    CHECK_EQ(driver.context_push(own), 0);
    open_device(0);
    CHECK(device.context == own);
    CHECK(!device.owns_primary);
    CHECK_EQ(round_trip(100), DAMACY_OK);
    finish();
}

TEST(primary_context_that_is_current_is_kept_alive)
{
    fake_config config = {};
    config.n_devices = 2;
    start(config);
    damacy__context primary = NULL, popped = NULL;
    CHECK_EQ(driver.primary_retain(&primary, 1), 0);
    CHECK_EQ(driver.context_push(primary), 0);
    open_device(0);
    CHECK(device.context == primary);
    CHECK_EQ(device.ordinal, 1);
    CHECK(device.owns_primary);
    CHECK_EQ(driver.context_pop(&popped), 0);
    CHECK_EQ(driver.primary_release(1), 0);
    CHECK_EQ(round_trip(100), DAMACY_OK);
    finish();
}

TEST(context_and_stream_of_the_caller_are_used)
{
    fake_config config = {};
    config.n_devices = 2;
    start(config);
    damacy__context own = fake_context(1), popped = NULL;
    damacy__stream stream = NULL;
    damacy__device_config wanted = {};
    wanted.context = own;
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &wanted, &err), DAMACY_OK);
    CHECK_EQ(device.ordinal, 1);
    CHECK(device.context == own);
    damacy__device_close(&device);

    CHECK_EQ(driver.context_push(own), 0);
    CHECK_EQ(driver.stream_create(&stream, 1, 0), 0);
    CHECK_EQ(driver.context_pop(&popped), 0);
    memset(&wanted, 0, sizeof wanted);
    wanted.stream = stream;
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &wanted, &err), DAMACY_OK);
    CHECK(device.context == own);
    damacy__device_close(&device);
    wanted.device = DAMACY_GPU(0); // and the context is on GPU 1
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &wanted, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "GPU 0 is asked for");
    CHECK_EQ(driver.stream_destroy(stream), 0);
    finish();
}

TEST(missing_and_too_old_gpus_are_named)
{
    fake_config config = {};
    start(config);
    damacy__device_config wanted = {};
    wanted.device = DAMACY_GPU(3);
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &wanted, &err), DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "no GPU 3");
    finish();
    config.architecture = 70;
    start(config);
    wanted.device = 0;
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &wanted, &err), DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "compute capability 7.0");
    finish();
}

TEST(budget_of_device_memory_is_hard_and_told_with_numbers)
{
    start({});
    open_device(1000);
    uint64_t a = 0, b = 0;
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__device_alloc(&device, 600, "slots", &a, &err), DAMACY_OK);
    CHECK_EQ(device.committed, 600);
    CHECK_EQ(damacy__device_alloc(&device, 401, "scratch", &b, &err), DAMACY_BUDGET);
    CHECK_HAS(err.message, "scratch needs 401 bytes");
    CHECK_HAS(err.message, "600 of max_gpu_bytes = 1000");
    CHECK_EQ(b, 0);
    CHECK_EQ(damacy__device_alloc(&device, 400, "scratch", &b, &err), DAMACY_OK);
    CHECK_EQ(device.committed, 1000);
    damacy__device_free(&device, a, 600);
    damacy__device_free(&device, b, 400);
    CHECK_EQ(device.committed, 0);
    damacy__device_leave(&device);
    finish();
}

TEST(full_gpu_is_told_with_numbers_and_is_no_loss)
{
    fake_config config = {};
    config.device_bytes = 1 << 20;
    start(config);
    open_device(1u << 30);
    uint64_t a = 0;
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__device_alloc(&device, 1 << 21, "slots", &a, &err), DAMACY_OOM);
    CHECK_HAS(err.message, "slots needs 2097152 bytes");
    CHECK_HAS(err.message, "1048576 of 1048576 on GPU 0 are free");
    CHECK_EQ(device.committed, 0);
    CHECK_EQ(damacy__device_alloc(&device, 1 << 19, "slots", &a, &err), DAMACY_OK);
    damacy__device_free(&device, a, 1 << 19);
    damacy__device_leave(&device);
    finish();
}

TEST(pinned_memory_falls_back_step_by_step_and_counts_as_host_memory)
{
    for (int step = 0; step < 3; step++) {
        fake_config config = {};
        config.cannot_register = step > 0;
        config.pinned_bytes = step == 2 ? 10 : 0;
        start(config);
        open_device(0);
        damacy__pinned pinned = {};
        CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
        CHECK_EQ(damacy__pinned_alloc(&device, 5000000, "ring", &pinned, &err), DAMACY_OK);
        CHECK_EQ(pinned.kind, step == 0   ? DAMACY__PINNED_PAGES
                              : step == 1 ? DAMACY__PINNED_DRIVER
                                          : DAMACY__PINNED_PAGEABLE);
        CHECK_EQ(heap.live_bytes, 5000000);
        CHECK_EQ(device.pinned, step == 2 ? 0 : 5000000);
        for (uint32_t i = 0; i < 5000000; i += 1000)
            CHECK_EQ(pinned.ptr[i], 0);
        memset(pinned.ptr, 1, 5000000);
        damacy__pinned_free(&device, &pinned);
        damacy__device_leave(&device);
        finish();
    }
}

TEST(pinned_memory_respects_the_host_budget)
{
    start({});
    open_device(0);
    heap.budget = 1000000;
    damacy__pinned pinned = {};
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__pinned_alloc(&device, 1000001, "ring", &pinned, &err), DAMACY_BUDGET);
    CHECK_HAS(err.message, "ring needs 1000001 bytes of max_host_bytes = 1000000");
    CHECK_EQ(pinned.kind, DAMACY__PINNED_NONE);
    damacy__device_leave(&device);
    finish();
}

// A file of n bytes that exists only as long as it is open.
static int temporary_file(uint64_t n)
{
    char path[] = "/tmp/damacy-map-XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    unlink(path);
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)(i * 31);
        CHECK(write(fd, &byte, 1) == 1);
    }
    return fd;
}

TEST(mapped_file_is_read_by_the_copy_engine_at_any_offset)
{
    start({});
    open_device(0);
    heap.budget = 1 << 20;
    const int fd = temporary_file(20000);
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    for (uint64_t offset : {0u, 1u, 4096u, 5000u, 12287u}) {
        damacy__mapping map = {};
        uint64_t x = 0;
        uint8_t out[3000];
        CHECK_EQ(damacy__mapping_open(&device, fd, offset, 3000, &map, &err), DAMACY_OK);
        CHECK_EQ(map.offset, offset);
        CHECK(heap.live_bytes >= 3000);
        CHECK_EQ(damacy__device_alloc(&device, 3000, "x", &x, &err), DAMACY_OK);
        CHECK_EQ(damacy__copy_to_device(&device, x, map.ptr, 3000, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy__copy_to_host(&device, out, x, 3000, NULL, &err), DAMACY_OK);
        for (uint64_t i = 0; i < 3000; i++)
            CHECK_EQ(out[i], (uint8_t)((offset + i) * 31));
        damacy__device_free(&device, x, 3000);
        damacy__mapping_close(&device, &map);
        CHECK(map.ptr == NULL);
        CHECK_EQ(heap.live_bytes, 0);
    }
    damacy__device_leave(&device);
    close(fd);
    finish();
}

TEST(truncated_mapped_file_does_not_end_the_process)
{
    start({});
    open_device(0);
    const int fd = temporary_file(12000);
    damacy__mapping map = {};
    uint64_t x = 0;
    uint8_t out[12000];
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__mapping_open(&device, fd, 0, 12000, &map, &err), DAMACY_OK);
    CHECK_EQ(ftruncate(fd, 100), 0);
    CHECK_EQ(damacy__device_alloc(&device, 12000, "x", &x, &err), DAMACY_OK);
    CHECK_EQ(damacy__copy_to_device(&device, x, map.ptr, 12000, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy__copy_to_host(&device, out, x, 12000, NULL, &err), DAMACY_OK);
    damacy__device_free(&device, x, 12000);
    damacy__mapping_close(&device, &map);
    damacy__device_leave(&device);
    close(fd);
    finish();
}

TEST(mapping_that_cannot_be_had_is_unsupported_or_over_budget_and_holds_nothing)
{
    fake_config config = {};
    config.cannot_register_read_only = 1;
    start(config);
    open_device(0);
    const int fd = temporary_file(100);
    damacy__mapping map = {};
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__mapping_open(&device, fd, 0, 100, &map, &err), DAMACY_UNSUPPORTED);
    device.can_register_files = true;
    CHECK_EQ(damacy__mapping_open(&device, -1, 0, 100, &map, &err), DAMACY_UNSUPPORTED);
    heap.budget = 100;
    CHECK_EQ(damacy__mapping_open(&device, fd, 0, 100, &map, &err), DAMACY_BUDGET);
    heap.budget = 0;
    fake_fail("host_register", 0, 801);
    CHECK_EQ(damacy__mapping_open(&device, fd, 0, 100, &map, &err), DAMACY_UNSUPPORTED);
    CHECK_EQ(damacy__mapping_open(&device, fd, UINT64_MAX - 5, 100, &map, &err), DAMACY_INVAL);
    CHECK(map.map == NULL);
    damacy__device_leave(&device);
    close(fd);
    finish();
}

TEST(sticky_error_loses_the_device_and_only_frees_follow)
{
    for (int code : {700, 702, 709, 714, 719}) {
        fake_counts counts;
        start({});
        open_device(0);
        damacy__pinned pinned = {};
        damacy__stream stream = NULL;
        damacy__event event = NULL;
        uint64_t x = 0;
        bool done = true;
        CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
        CHECK_EQ(damacy__device_alloc(&device, 100, "x", &x, &err), DAMACY_OK);
        CHECK_EQ(damacy__pinned_alloc(&device, 100, "p", &pinned, &err), DAMACY_OK);
        CHECK_EQ(damacy__stream_open(&device, false, &stream, &err), DAMACY_OK);
        CHECK_EQ(damacy__event_open(&device, false, &event, &err), DAMACY_OK);
        fake_fail("copy_to_device", 0, code);
        CHECK_EQ(damacy__copy_to_device(&device, x, pinned.ptr, 100, stream, &err),
                 DAMACY_DEVICE_LOST);
        CHECK_HAS(err.message, "first seen at copy of 100 bytes to the GPU");
        CHECK_EQ(damacy__fill_device(&device, x, 1, 100, stream, &err), DAMACY_DEVICE_LOST);
        CHECK_HAS(err.message, "must be restarted");
        CHECK_EQ(damacy__event_record(&device, event, stream, &err), DAMACY_DEVICE_LOST);
        CHECK_EQ(damacy__event_done(&device, event, &done, &err), DAMACY_DEVICE_LOST);
        CHECK_EQ(damacy__event_await(&device, event, 0, &err), DAMACY_DEVICE_LOST);
        CHECK_EQ(damacy__device_alloc(&device, 100, "x", &x, &err), DAMACY_DEVICE_LOST);
        CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_DEVICE_LOST);
        damacy__device_leave(&device);
        damacy__event_close(&device, event);
        damacy__stream_close(&device, stream);
        damacy__device_free(&device, x, 100);
        damacy__pinned_free(&device, &pinned);
        fake_count(&counts);
        CHECK_EQ(counts.n_after_lost, 0);
        finish();
    }
}

TEST(error_of_a_kernel_surfaces_at_a_later_wait)
{
    start({});
    open_device(0);
    damacy__event event = NULL;
    simt::enroll(
        "nothing", +[](uint32_t) {});
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__event_open(&device, false, &event, &err), DAMACY_OK);
    damacy__module module = NULL;
    damacy__function function = NULL;
    uint32_t n = 3;
    void* parameters[] = {&n};
    CHECK_EQ(driver.module_load(&module, "FAKE CUBIN\n"), 0);
    CHECK_EQ(driver.module_function(&function, module, "nothing"), 0);
    fake_hold(1);
    fake_fail_kernel(0, 700);
    CHECK_EQ(driver.launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL), 0);
    CHECK_EQ(damacy__event_record(&device, event, NULL, &err), DAMACY_OK);
    bool done = true;
    CHECK_EQ(damacy__event_done(&device, event, &done, &err), DAMACY_OK);
    CHECK(!done);
    fake_hold(0);
    CHECK_EQ(damacy__event_await(&device, event, 0, &err), DAMACY_DEVICE_LOST);
    CHECK_HAS(err.message, "CUDA_ERROR_ILLEGAL_ADDRESS");
    CHECK_EQ(driver.module_unload(module), 700);
    damacy__device_leave(&device);
    damacy__event_close(&device, event);
    finish();
}

// Work that has been queued and cannot run yet.
struct queued {
    damacy__pinned bytes = {};
    damacy__stream stream = NULL;
    damacy__event event = NULL;
    uint64_t x = 0;
};

// Bytes of the device on their way to the host; the context is current from here on.
static void queue(queued* q)
{
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__pinned_alloc(&device, 100, "bytes", &q->bytes, &err), DAMACY_OK);
    CHECK_EQ(damacy__device_alloc(&device, 100, "x", &q->x, &err), DAMACY_OK);
    CHECK_EQ(damacy__stream_open(&device, false, &q->stream, &err), DAMACY_OK);
    CHECK_EQ(damacy__event_open(&device, false, &q->event, &err), DAMACY_OK);
    fake_hold(1);
    CHECK_EQ(damacy__fill_device(&device, q->x, 9, 100, q->stream, &err), DAMACY_OK);
    CHECK_EQ(damacy__copy_to_host(&device, q->bytes.ptr, q->x, 100, q->stream, &err), DAMACY_OK);
}

static void unqueue(queued* q)
{
    damacy__event_close(&device, q->event);
    damacy__stream_close(&device, q->stream);
    damacy__device_free(&device, q->x, 100);
    damacy__pinned_free(&device, &q->bytes);
}

TEST(stalled_device_is_given_up_after_the_deadline_and_never_called_again)
{
    fake_counts before, after;
    start({});
    open_device(0);
    damacy__event event = NULL;
    uint64_t x = 0;
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__event_open(&device, false, &event, &err), DAMACY_OK);
    CHECK_EQ(damacy__device_alloc(&device, 100, "x", &x, &err), DAMACY_OK);
    fake_hold(1);
    CHECK_EQ(damacy__event_record(&device, event, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy__event_await(&device, event, 20000000, &err), DAMACY_DEVICE_LOST);
    CHECK_HAS(err.message, "no progress for 20 ms");
    damacy__device_leave(&device);
    fake_count(&before);
    damacy__event_close(&device, event);
    damacy__device_free(&device, x, 100);
    damacy__device_close(&device);
    fake_count(&after);
    CHECK_EQ(after.n_calls, before.n_calls);
    CHECK_EQ(heap.live_bytes, 0);
    fake_close();
}

TEST(wait_after_a_failure_ends_when_the_work_does_not)
{
    for (int can_record = 0; can_record < 2; can_record++) {
        fake_counts before, after;
        queued q;
        start({});
        open_device(0);
        queue(&q);
        if (!can_record)
            fake_fail("event_record", 0, DAMACY__CUDA_INVALID_VALUE);
        CHECK_EQ(damacy__stream_settle(&device, q.stream, q.event, 20000000, &err),
                 DAMACY_DEVICE_LOST);
        CHECK_HAS(err.message, "no progress for 20 ms");
        CHECK_EQ(fake_failures_left(), 0);
        damacy__device_leave(&device);
        fake_count(&before);
        CHECK_EQ(damacy__stream_settle(&device, q.stream, q.event, 20000000, &err),
                 DAMACY_DEVICE_LOST);
        unqueue(&q);
        damacy__device_close(&device);
        fake_count(&after);
        CHECK_EQ(after.n_calls, before.n_calls);
        fake_close();
    }
}

TEST(wait_after_a_failure_ends_with_the_work_whatever_call_fails)
{
    for (const char* call : {"", "event_record", "event_query", "stream_query"}) {
        queued q;
        start({});
        open_device(0);
        queue(&q);
        fake_slow(10000000);
        fake_hold(0);
        if (*call)
            fake_fail(call, 0, DAMACY__CUDA_INVALID_VALUE);
        if (!strcmp(call, "stream_query"))
            fake_fail("event_record", 0, DAMACY__CUDA_INVALID_VALUE);
        CHECK_EQ(damacy__stream_settle(&device, q.stream, q.event, 10000000000u, &err), DAMACY_OK);
        CHECK_EQ(fake_failures_left(), 0);
        CHECK_EQ(driver.stream_query(q.stream), 0);
        CHECK_EQ(q.bytes.ptr[99], 9);
        damacy__device_leave(&device);
        unqueue(&q);
        finish();
    }
}

TEST(forked_child_is_refused_and_frees_nothing)
{
    start({});
    open_device(0);
    uint64_t x = 0;
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(damacy__device_alloc(&device, 100, "x", &x, &err), DAMACY_OK);
    damacy__device_leave(&device);
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fake_counts before = fake::m->counts;
        int wrong = damacy__device_enter(&device, &err) != DAMACY_INVAL;
        damacy__device_free(&device, x, 100);
        damacy__device_close(&device);
        wrong += fake::m->counts.n_calls != before.n_calls;
        _exit(wrong);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    damacy__device_free(&device, x, 100);
    damacy__device_leave(&device);
    finish();
}

TEST(any_call_may_fail_once_without_leaks_or_a_changed_context)
{
    uint32_t runs = 0;
    for (int code : {1, 2, 3, 46, 209, 214, 218, 700, 702, 719}) {
        for (uint64_t nth = 0;; nth++, runs++) {
            fake_config config = {};
            fake_counts counts;
            config.is_stepped = 1;
            config.seed = nth + 1;
            start(config);
            damacy__context own = fake_context(0);
            CHECK_EQ(driver.context_push(own), 0);
            damacy__device_config wanted = {};
            wanted.device = DAMACY_GPU(0);
            fake_fail(NULL, nth, code);
            damacy_status status = damacy__device_open(&device, &driver, &heap, &wanted, &err);
            if (status == DAMACY_OK) {
                const damacy_status first = round_trip(1000);
                if (first != DAMACY_OK)
                    CHECK(err.message[0] != 0);
                if (damacy__device_state(&device) != DAMACY__DEVICE_ALIVE)
                    CHECK_EQ(round_trip(1000), DAMACY_DEVICE_LOST);
                else if (first != DAMACY_OK)
                    CHECK_EQ(round_trip(1000), DAMACY_OK); // the next one works
            }
            CHECK(fake::current.size() == 1 && fake::current.back() == own);
            fake_count(&counts);
            CHECK_EQ(counts.n_after_lost, 0);
            if (counts.misuse)
                printf("# call %llu (%s) gives %d: %s\n", (unsigned long long)nth,
                       fake_call_name(nth), code, counts.first_misuse);
            CHECK_EQ(counts.misuse, 0);
            const bool happened = nth + 1 < counts.n_calls; // the push above was a call, too
            // a free that fails is ignored: its object may be left over, on the device only
            damacy__device_close(&device);
            CHECK_EQ(heap.live_bytes, 0);
            CHECK_EQ(heap.live_blocks, 0);
            fake_close();
            if (!happened)
                break;
        }
    }
    printf("# %u runs\n", runs);
    CHECK(runs > 400);
}

TEST(device_is_found_and_looked_at_before_it_has_a_context)
{
    fake_counts counts;
    damacy__device_config wanted = {};
    start({});
    CHECK_EQ(damacy__device_find(&device, &driver, &heap, &wanted, &err), DAMACY_OK);
    fake_count(&counts);
    CHECK_EQ(counts.live_primary, 0);
    CHECK(device.architecture >= 75 && device.n_multiprocessors > 0);
    CHECK(!damacy__device_enter_to_free(&device)); // nothing of it can be there
    CHECK_EQ(damacy__device_connect(&device, &err), DAMACY_OK);
    fake_count(&counts);
    CHECK_EQ(counts.live_primary, 1);
    CHECK(device.context != NULL && device.budget > 0);
    finish();
}

TEST_MAIN
