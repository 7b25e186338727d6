// Every call of the driver fails once, in each of several ways, while batches of all kinds of
// chunks are made: what is delivered as OK is right, what fails says why, everything ends and is
// given back. A sample of the failures by default, TEST_ALL=1 for all of them.
#include "tests/pipeline/gpu_scene.h"
#include <signal.h>
#include <unistd.h>

enum { SAMPLED = IS_SLOW ? 12 : 80 };

struct failing {
    std::string function;
    uint64_t nth;
    int code;
};
static char now_failing[128];

static void on_alarm(int)
{
    const char words[] = "# no end within the time given: ";
    if (write(1, words, sizeof words - 1) < 0 || write(1, now_failing, strlen(now_failing)) < 0)
        _exit(3);
    _exit(2);
}

// Functions whose refusal leaves the object where it was: nobody could take it back.
static bool is_free(const std::string& f)
{
    return f == "memory_free" || f == "host_free" || f == "host_unregister" ||
           f == "stream_destroy" || f == "event_destroy" || f == "module_unload" ||
           f == "primary_release" || f == "context_push";
}

static bool is_nvrtc(const std::string& f)
{
    return f.compare(0, 5, "nvrtc") == 0;
}

static bool is_fatal(const failing& f)
{
    return !is_nvrtc(f.function) && damacy__cuda_is_sticky(f.code);
}

// Every call of a lost pipeline says so; releasing what is held works.
static void check_lost(scene& s, damacy* d)
{
    damacy_batch batch;
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(damacy_try_pop(d, &batch, &s.err), DAMACY_DEVICE_LOST);
        CHECK_EQ(damacy_pop(d, &batch, &s.err), DAMACY_DEVICE_LOST);
        CHECK_HAS(s.err.message, "first seen at");
        CHECK_EQ(damacy_push(d, s.samples.data(), 1, &n, &s.err), DAMACY_DEVICE_LOST);
        CHECK_EQ(n, 0);
    }
}

// One epoch during which one call fails. False: the call did not come.
static bool run_failing(scene& s, const failing& f)
{
    damacy* d = NULL;
    epoch e;
    fake_counts counts;
    s.err.message[0] = '\0';
    n_loads = 0;
    snprintf(now_failing, sizeof now_failing, "call %llu of %s with %d\n",
             (unsigned long long)f.nth, f.function.c_str(), f.code);
    alarm(120);
    fake_fail_at_open(f.function.c_str(), f.nth, f.code);
    e.status = damacy_create(&s.config, &d, &s.err);
    if (e.status == DAMACY_OK) {
        e = run_epoch(s, d);
        if (e.status == DAMACY_END) {
            CHECK_EQ(e.n_popped, s.samples.size());
            CHECK_EQ(e.n_failed, s.config.on_error == DAMACY_ON_ERROR_FILL ? 1 : 0);
        } else if (is_fatal(f)) {
            CHECK_EQ(e.status, DAMACY_DEVICE_LOST);
            check_lost(s, d);
        }
    } else {
        CHECK(d == NULL);
        CHECK(!is_fatal(f) || e.status == DAMACY_DEVICE_LOST);
    }
    CHECK_EQ(e.n_bad, 0);
    CHECK(e.status != DAMACY_OK && e.status != DAMACY_AGAIN && e.status != DAMACY_TIMEOUT &&
          e.status != DAMACY_INVAL && e.status != DAMACY_SHUTDOWN);
    CHECK(s.err.message[0] != '\0');
    damacy_destroy(d);
    const bool has_come = fake_failures_left() == 0;
    (void)counts_without_misuse();
    fake_count(&counts);
    CHECK_EQ(s.heap.live, 0);
    CHECK_EQ(s.store->n_open, 0);
    CHECK(counts.n_after_lost <= 2); // other threads may just have been on their way
    CHECK(n_leftovers() <= (has_come && is_free(f.function) ? 1u : 0u));
    fake_close();
    alarm(0);
    return has_come;
}

// Says which failure it was.
static bool run_named(scene& s, const failing& f, uint64_t* n_run)
{
    jmp_buf outer;
    memcpy(&outer, &test_jump, sizeof outer);
    if (setjmp(test_jump) != 0) {
        printf("# that was %s", now_failing);
        memcpy(&test_jump, &outer, sizeof outer);
        longjmp(test_jump, 1);
    }
    const bool has_come = run_failing(s, f);
    memcpy(&test_jump, &outer, sizeof outer);
    ++*n_run;
    return has_come;
}

// How often each function is called in an epoch without failures.
static std::map<std::string, uint64_t> call_counts(scene& s)
{
    std::map<std::string, uint64_t> n;
    damacy* d = NULL;
    fake_counts counts;
    n_loads = 0;
    CHECK_EQ(damacy_create(&s.config, &d, &s.err), DAMACY_OK);
    const epoch e = run_epoch(s, d);
    if (e.status != DAMACY_END)
        printf("# %s\n", s.err.message);
    CHECK_EQ(e.status, DAMACY_END);
    CHECK_EQ(e.n_bad, 0);
    damacy_destroy(d);
    fake_count(&counts);
    for (uint64_t i = 0; i < counts.n_calls; i++)
        n[fake_call_name(i)]++;
    check_no_leftovers(s);
    return n;
}

static void run_all(scene& s)
{
    static const int codes[] = {DAMACY__CUDA_OUT_OF_MEMORY, DAMACY__CUDA_INVALID_VALUE,
                                DAMACY__CUDA_ILLEGAL_ADDRESS, DAMACY__CUDA_LAUNCH_FAILED,
                                DAMACY__CUDA_ECC_UNCORRECTABLE};
    const std::map<std::string, uint64_t> n = call_counts(s);
    const bool is_all = getenv("TEST_ALL") != NULL;
    uint64_t seed = test_seed(), n_run = 0, n_come = 0;
    std::vector<failing> all;
    for (const auto& f : n) {
        const uint64_t most = f.first == "event_query" ? 40 : f.second + 2; // polling has no number
        for (uint64_t nth = 0; nth < most; nth++)
            for (int code : codes)
                all.push_back(failing{f.first, nth, code});
    }
    signal(SIGALRM, on_alarm);
    for (size_t i = 0; i < all.size() && !is_all; i++)
        std::swap(all[i], all[i + test_random(&seed) % (all.size() - i)]);
    // Of few, half may by chance lie behind the last call: then more are taken, twice as many at
    // most.
    for (size_t i = 0;
         i < all.size() && (is_all || i < SAMPLED / 2 || (i < SAMPLED && n_come <= n_run / 2)); i++)
        n_come += run_named(s, all[i], &n_run);
    printf("# %llu of %llu failures, %llu came\n", (unsigned long long)n_run,
           (unsigned long long)all.size(), (unsigned long long)n_come);
    CHECK(n_come > n_run / 2);
}

TEST(any_call_may_fail_once_in_any_way)
{
    scene s(12);
    run_all(s);
}

// A device that seems to have no multiprocessors was once given empty grids: batches of old bytes.
TEST(what_the_driver_does_not_tell_of_the_device_is_not_guessed)
{
    scene s(4);
    uint64_t n_run = 0;
    for (const char* function : {"device_attribute", "device_name", "memory_info"})
        for (uint64_t nth = 0; run_named(s, failing{function, nth, 1}, &n_run); nth++)
            CHECK(strlen(s.err.message) > 20);
    for (uint64_t nth = 0; nth < 200; nth += 7)
        run_named(s, failing{"function_attribute", nth, 1}, &n_run);
    CHECK(n_run > 10);
}

TEST(any_call_may_fail_once_beside_a_damaged_chunk)
{
    scene s(12);
    s.config.on_error = DAMACY_ON_ERROR_FILL;
    s.samples[1].box[0].begin = s.samples[1].box[1].begin = s.samples[1].box[2].begin = 0;
    for (int i = 0; i < 3; i++)
        s.samples[1].box[i].end = CROP;
    for (size_t i = 0; i < s.samples.size(); i++) // nobody else wants chunk 0 of that array
        if (i != 1 && s.array_of[i] == 1)
            for (int k = 0; k < 3; k++) {
                s.samples[i].box[k].begin = CHUNK;
                s.samples[i].box[k].end = CHUNK + CROP;
            }
    mem_object* o = mem_find(s.store, "zstd.zarr/c/0/0/0");
    CHECK(o != NULL);
    memset(o->bytes + 4, 0xff, o->size - 4);
    run_all(s);
}

// A call fails once copies are queued. Nothing ends before they have read their bytes: these may
// lie in memory that is read into again.
TEST(bytes_on_their_way_stay_until_they_have_arrived)
{
    scene s(4);
    damacy* d = NULL;
    damacy_batch batch;
    size_t n = 0;
    n_loads = 0;
    CHECK_EQ(damacy_create(&s.config, &d, &s.err), DAMACY_OK);
    fake_hold(1);
    fake_fail("stream_wait", 0, DAMACY__CUDA_INVALID_VALUE);
    CHECK_EQ(damacy_push(d, s.samples.data(), s.samples.size(), &n, &s.err), DAMACY_OK);
    for (int i = 0; i < 60000 && fake_failures_left() > 0; i++)
        usleep(1000);
    CHECK_EQ(damacy_pop_timeout(d, UINT64_C(100000000), &batch, &s.err), DAMACY_TIMEOUT);
    fake_hold(0);
    CHECK_EQ(damacy_pop_timeout(d, UINT64_C(60000000000), &batch, &s.err), DAMACY_CUDA);
    damacy_destroy(d);
    check_no_leftovers(s);
}

// The same, but they never arrive: the device counts as stalled and is not called again, not even
// to give anything back.
TEST(bytes_that_never_arrive_after_a_failure_are_given_up)
{
    scene s(4);
    damacy* d = NULL;
    damacy_batch batch;
    fake_counts before, after;
    size_t n = 0;
    n_loads = 0;
    CHECK_EQ(damacy_create(&s.config, &d, &s.err), DAMACY_OK);
    d->core.gpu->patience_ns = 50000000;
    fake_hold(1);
    fake_fail("stream_wait", 0, DAMACY__CUDA_INVALID_VALUE);
    CHECK_EQ(damacy_push(d, s.samples.data(), s.samples.size(), &n, &s.err), DAMACY_OK);
    CHECK_EQ(damacy_pop_timeout(d, UINT64_C(60000000000), &batch, &s.err), DAMACY_CUDA);
    CHECK_EQ(fake_failures_left(), 0);
    fake_count(&before);
    damacy_destroy(d);
    fake_count(&after);
    CHECK_EQ(after.n_calls, before.n_calls);
    fake_hold(0);
    CHECK_EQ(s.heap.live, 0);
    CHECK_EQ(s.store->n_open, 0);
    fake_close();
}

// Pinned memory of the caller's, into which a copy that was queued would still write.
TEST(a_read_that_fails_leaves_the_callers_memory_alone)
{
    scene s(4);
    damacy* d = NULL;
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy__context context = NULL;
    void* dst = NULL;
    size_t n = 0;
    n_loads = 0;
    CHECK_EQ(damacy_create(&s.config, &d, &s.err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s.samples.data(), s.samples.size(), &n, &s.err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &s.err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(fake::primary_retain(&context, 0), 0);
    CHECK_EQ(fake::context_push(context), 0);
    CHECK_EQ(fake::host_alloc(&dst, info.size, 0), 0);
    fake_slow(20000000);
    fake_fail("event_record", 0, DAMACY__CUDA_INVALID_VALUE);
    CHECK_EQ(damacy_batch_read(batch, dst, info.size, &s.err), DAMACY_CUDA);
    fake_slow(0);
    {
        fake::guard lock(fake::m->mutex);
        CHECK(fake::all_idle());
    }
    CHECK_EQ(damacy_batch_read(batch, dst, info.size, &s.err), DAMACY_OK);
    CHECK(s.voxels_are_right(0, dst));
    CHECK_EQ(fake::host_free(dst), 0);
    CHECK_EQ(fake::context_pop(&context), 0);
    CHECK_EQ(fake::primary_release(0), 0);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    check_no_leftovers(s);
}

// A kernel that faults: whichever it is, nothing that was delivered is wrong.
TEST(any_kernel_may_fault)
{
    scene s(8);
    const bool is_all = getenv("TEST_ALL") != NULL;
    uint64_t seed = test_seed();
    for (uint64_t i = 0; i < (is_all ? 120 : SAMPLED / 4); i++) {
        damacy* d = NULL;
        n_loads = 0;
        CHECK_EQ(damacy_create(&s.config, &d, &s.err), DAMACY_OK);
        fake_fail_kernel(is_all ? i : test_random(&seed) % 60, 700);
        const epoch e = run_epoch(s, d);
        CHECK_EQ(e.n_bad, 0);
        CHECK(e.status == DAMACY_END || e.status == DAMACY_DEVICE_LOST);
        if (e.status == DAMACY_DEVICE_LOST)
            check_lost(s, d);
        damacy_destroy(d);
        (void)counts_without_misuse();
        CHECK_EQ(s.heap.live, 0);
        fake_close();
    }
}

TEST_MAIN
