// The whole library with its GPU side, on the fake driver: budgets, gates of slots, DLPack,
// contexts, damaged chunks, and where the kernels come from.
#include "tests/pipeline/gpu_scene.h"
#include <memory>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

TEST(every_voxel_is_right_through_the_kernels)
{
    scene s(IS_SLOW ? 18 : 36);
    damacy* d = create(s);
    fake_counts counts;
    CHECK_EQ(damacy_device(d), DAMACY_GPU(0));
    check_epoch(s, d);
    fake_count(&counts);
    printf("# %llu calls, %llu launches, %llu bytes at most\n", (unsigned long long)counts.n_calls,
           (unsigned long long)counts.n_launches, (unsigned long long)counts.most_bytes);
    damacy_destroy(d);
    check_no_leftovers(s);
}

// Leaves the samples of one array.
static void keep_array(scene& s, const char* uri)
{
    for (size_t i = s.samples.size(); i-- > 0;) {
        if (strcmp(s.arrays[s.array_of[i]].uri, uri)) {
            s.samples.erase(s.samples.begin() + (long)i);
            s.array_of.erase(s.array_of.begin() + (long)i);
        }
    }
}

// Whichever codec it is.
TEST(statistics_count_the_bytes_that_waves_have_decoded)
{
    for (const char* uri : {"zstd.zarr", "lz4.zarr", "blosc_lz4.zarr"}) {
        scene s(4 * WAYS);
        damacy_stats stats;
        keep_array(s, uri);
        damacy* d = create(s);
        check_epoch(s, d);
        damacy_stats_get(d, &stats);
        CHECK(stats.chunks_decoded > 0);
        CHECK_EQ(stats.decode.bytes_out, stats.chunks_decoded * CHUNK * CHUNK * CHUNK * 2);
        damacy_destroy(d);
        check_no_leftovers(s);
    }
}

// A block of threads parses 32 chunks; there are fewer here.
TEST(grids_of_blosc_waves_are_of_the_wave_and_not_of_the_largest)
{
    scene s(4 * WAYS);
    fake_counts counts;
    keep_array(s, "blosc_lz4.zarr");
    damacy* d = create(s);
    check_epoch(s, d);
    fake_count(&counts);
    CHECK_EQ(counts.most_parse, 1);
    damacy_destroy(d);
    check_no_leftovers(s);
}

// ---- budgets ----

TEST(device_memory_stays_within_the_budget_and_is_what_statistics_say)
{
    for (uint64_t mib : {40, 64, 150, 400}) {
        if (IS_SLOW && mib != 64)
            continue;
        scene s(16);
        s.config.max_gpu_bytes = mib << 20;
        s.config.max_host_bytes = 128u << 20;
        s.config.samples_per_batch = 3;
        damacy* d = create(s);
        damacy_stats stats;
        fake_counts counts;
        check_epoch(s, d);
        damacy_stats_get(d, &stats);
        fake_count(&counts);
        CHECK_EQ(stats.gpu_bytes_committed, counts.live_bytes);
        CHECK(counts.most_bytes <= s.config.max_gpu_bytes);
        CHECK(stats.host_bytes_committed <= s.config.max_host_bytes);
        damacy_destroy(d);
        check_no_leftovers(s);
    }
}

TEST(budget_that_is_too_small_is_told_with_the_sum)
{
    for (uint64_t bytes : {UINT64_C(1), UINT64_C(1) << 20, UINT64_C(20) << 20}) {
        scene s(4);
        s.config.max_gpu_bytes = bytes;
        damacy* d = create(s);
        damacy_batch batch;
        char number[32];
        push_all(s, d);
        CHECK_EQ(damacy_pop(d, &batch, &s.err), DAMACY_BUDGET);
        snprintf(number, sizeof number, "%llu", (unsigned long long)bytes);
        CHECK_HAS(s.err.message, number);
        CHECK_HAS(s.err.message, "3 batch slots");
        damacy_destroy(d);
        check_no_leftovers(s);
    }
}

TEST(device_that_is_full_is_told_and_harms_nothing)
{
    scene s(4);
    machine.device_bytes = 30u << 20; // less than the budget
    damacy* d = create(s);
    damacy_batch batch;
    push_all(s, d);
    CHECK_EQ(damacy_pop(d, &batch, &s.err), DAMACY_OOM);
    CHECK_HAS(s.err.message, "are free");
    damacy_destroy(d);
    check_no_leftovers(s);
}

// ---- gates ----

// Work of the consumer's that runs once a test says so.
struct latch {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;
    void open()
    {
        std::lock_guard<std::mutex> lock(mutex);
        is_open = true;
        changed.notify_all();
    }
};

static void await_latch(void* user)
{
    latch* const l = (latch*)user;
    std::unique_lock<std::mutex> lock(l->mutex);
    l->changed.wait(lock, [&] { return l->is_open; });
}

// A stream of the consumer's in a context; calls are the test's own.
static damacy__stream open_stream(damacy__context context)
{
    damacy__stream stream = NULL;
    damacy__context popped;
    fake_exempt(1);
    CHECK_EQ(fake::context_push(context), 0);
    CHECK_EQ(fake::stream_create(&stream, 1, 0), 0);
    fake::context_pop(&popped);
    return stream;
}

static damacy__context primary_context()
{
    damacy__context context = NULL;
    fake_exempt(1);
    CHECK_EQ(fake::primary_retain(&context, 0), 0);
    return context;
}

static void hold_stream(damacy__context context, damacy__stream stream, latch* l)
{
    damacy__context popped;
    CHECK_EQ(fake::context_push(context), 0);
    CHECK_EQ(fake::launch_host(stream, await_latch, l), 0);
    fake::context_pop(&popped);
}

static void close_stream(damacy__context context, damacy__stream stream)
{
    damacy__context popped;
    CHECK_EQ(fake::context_push(context), 0);
    CHECK_EQ(fake::stream_synchronize(stream), 0);
    CHECK_EQ(fake::stream_destroy(stream), 0);
    fake::context_pop(&popped);
    fake_exempt(0);
}

enum { BY_EVENT, BY_STREAM, BY_TENSOR, BY_FOREIGN_STREAM, N_WAYS_BACK };

// Gives a batch back while a stream of the consumer's still reads it.
static void give_back(damacy_batch batch, int way, damacy__context context, damacy__stream stream)
{
    damacy_error err;
    if (way == BY_EVENT) {
        damacy__event event = NULL;
        damacy__context popped;
        CHECK_EQ(fake::context_push(context), 0);
        CHECK_EQ(fake::event_create(&event, 2), 0);
        CHECK_EQ(fake::event_record(event, stream), 0);
        CHECK_EQ(damacy_release_event(batch, event), DAMACY_OK);
        CHECK_EQ(fake::event_destroy(event), 0);
        fake::context_pop(&popped);
    } else if (way == BY_TENSOR) {
        damacy_dl_managed_versioned* tensor = NULL;
        CHECK_EQ(damacy_batch_dlpack(batch, stream, &tensor, &err), DAMACY_OK);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        tensor->deleter(tensor);
    } else {
        CHECK_EQ(damacy_release_stream(batch, stream), DAMACY_OK);
    }
}

// Waits until the device has been given nothing for a while.
static void wait_for_launches()
{
    fake_counts before, now;
    int quiet = 0;
    fake_count(&before);
    while (quiet < 20) {
        usleep(5000);
        fake_count(&now);
        quiet = now.n_launches == before.n_launches ? quiet + 1 : 0;
        before = now;
    }
}

// The first batch of a pipeline, and consumers that read it in a context: the primary one, unless
// another is given.
struct held_batch {
    scene& s;
    damacy* d;
    const bool is_primary;
    const damacy__context context;
    damacy_batch batch;
    damacy_batch_info_t info;
    std::vector<char> before;
    std::vector<damacy__stream> streams;
    held_batch(scene& of, damacy* pipeline, damacy__context foreign = NULL)
        : s(of), d(pipeline), is_primary(!foreign), context(foreign ? foreign : primary_context())
    {
        batch = pop(s, d);
        info = info_of(batch);
        CHECK_EQ(wait_for(info), 0);
        before.assign((char*)info.ptr, (char*)info.ptr + info.size);
    }
    // A stream that reads it until the latch opens.
    damacy__stream read(latch* l)
    {
        streams.push_back(open_stream(context));
        hold_stream(context, streams.back(), l);
        return streams.back();
    }
    void check_unwritten() const
    {
        wait_for_launches();
        CHECK(memcmp(before.data(), info.ptr, before.size()) == 0);
    }
    void end()
    {
        for (damacy__stream stream : streams) {
            fake_exempt(1);
            close_stream(context, stream);
        }
        if (is_primary)
            fake::primary_release(0);
        damacy_destroy(d);
        check_no_leftovers(s);
    }
};

TEST(slot_waits_for_what_the_consumer_has_queued_and_others_go_on)
{
    for (int way = 0; way < N_WAYS_BACK; way++) {
        scene s(24);
        latch l;
        damacy* d = create(s);
        push_all(s, d);
        held_batch first(s, d, way == BY_FOREIGN_STREAM ? fake_context(0) : NULL);
        give_back(first.batch, way, first.context, first.read(&l));
        for (int i = 0; i < 2; i++) // those in the other slots come
            take(s, d);
        first.check_unwritten();
        l.open();
        for (int i = 0; i < 3; i++)
            take(s, d);
        first.end();
    }
}

TEST(two_consumers_of_a_batch_are_both_waited_for)
{
    for (int way : {(int)BY_EVENT, (int)BY_STREAM}) {
        scene s(8);
        latch slow, quick;
        s.config.batch_slots = 2;
        s.config.samples_per_batch = 2;
        damacy* d = create(s);
        push_all(s, d);
        held_batch first(s, d);
        damacy__stream a = first.read(&slow), b = first.read(&quick);
        CHECK_EQ(damacy_batch_retain(first.batch), DAMACY_OK);
        give_back(first.batch, BY_STREAM, first.context, a);
        give_back(first.batch, way, first.context, b);
        quick.open(); // the last gate opens, the first does not
        take(s, d);
        first.check_unwritten();
        slow.open();
        for (int i = 0; i < 2; i++)
            take(s, d);
        first.end();
    }
}

// More than a slot has room for; whoever is last.
TEST(many_consumers_of_a_batch_are_all_waited_for)
{
    enum { N = 7 };
    for (int last = 0; last < N; last++) {
        scene s(6);
        latch latches[N];
        s.config.batch_slots = 2;
        s.config.samples_per_batch = 2;
        damacy* d = create(s);
        push_all(s, d);
        held_batch first(s, d);
        for (int i = 0; i < N; i++) {
            first.read(&latches[i]);
            if (i > 0)
                CHECK_EQ(damacy_batch_retain(first.batch), DAMACY_OK);
        }
        for (int i = 0; i < N; i++)
            give_back(first.batch, i % 2 ? BY_EVENT : BY_STREAM, first.context, first.streams[i]);
        take(s, d);
        for (int i = 0; i < N; i++)
            if (i != last)
                latches[i].open();
        first.check_unwritten();
        latches[last].open();
        take(s, d);
        first.end();
    }
}

TEST(batch_without_one_good_sample_waits_for_the_gate_before_it_is_filled)
{
    scene s(8);
    latch l;
    s.config.on_error = DAMACY_ON_ERROR_FILL;
    s.config.samples_per_batch = 1;
    s.config.batch_slots = 2;
    for (size_t i = 2; i < s.samples.size(); i += 2)
        s.move_out(i);
    damacy* d = create(s);
    push_all(s, d);
    held_batch first(s, d); // slot 0; sample 2 will follow it there
    give_back(first.batch, BY_STREAM, first.context, first.read(&l));
    const damacy_batch second = pop(s, d);
    CHECK_EQ(n_wrong(s, second, info_of(second)), 0);
    first.check_unwritten();
    l.open();
    CHECK_EQ(damacy_release(second), DAMACY_OK);
    for (int i = 2; i < 8; i++)
        take(s, d, i % 2 == 0); // it may still be filled when it comes
    first.end();
}

// The third batch has no sample, so that nothing of it waits for the gate: the next one there does.
TEST(gate_outlives_a_batch_that_writes_nothing)
{
    scene s(6);
    latch l;
    s.config.on_error = DAMACY_ON_ERROR_SKIP;
    s.config.samples_per_batch = 1;
    s.config.batch_slots = 2;
    s.move_out(2);
    damacy* d = create(s);
    push_all(s, d);
    held_batch first(s, d);
    give_back(first.batch, BY_STREAM, first.context, first.read(&l));
    const damacy_batch second = pop(s, d), third = pop(s, d);
    CHECK(info_of(third).ptr == first.info.ptr && info_of(third).shape[0] == 0);
    CHECK_EQ(damacy_release(second), DAMACY_OK);
    CHECK_EQ(damacy_release(third), DAMACY_OK);
    const damacy_batch fourth = pop(s, d); // in the other slot, so that the fifth has this one
    first.check_unwritten();
    CHECK_EQ(damacy_release(fourth), DAMACY_OK);
    l.open();
    for (int i = 4; i < 6; i++)
        take(s, d);
    first.end();
}

// What batch 2 is made of: chunks that the device decodes, nothing, so that it is filled, more
// chunks that the host decodes than there is space for, as of batch 1, or chunks that are kept.
enum { ON_DEVICE, FILLED, ON_HOST, KEPT, N_KINDS };

// Batch 1 waits for its bytes, batch 2 for a gate of slot 0, which a consumer's stream holds.
struct held_slot {
    scene s{4};
    latch l;
    damacy* d = NULL;
    std::unique_ptr<held_batch> first;
    explicit held_slot(int kind)
    {
        s.config.on_error = DAMACY_ON_ERROR_FILL;
        s.config.samples_per_batch = 1;
        s.config.batch_slots = 2;
        if (kind == FILLED)
            s.move_out(2);
        if (kind == KEPT) {
            s.samples[2] = s.samples[0];
            s.array_of[2] = s.array_of[0];
        }
        for (int i = 1; i < 3 && kind == ON_HOST; i++) {
            const int chunk = 52; // 275 KiB; a quarter of the host's bytes is for eight
            way w = ways[6];
            w.uri = i == 1 ? "one.zarr" : "two.zarr";
            s.arrays[i] = put_way(s.store, w, (uint32_t)i, 2 * chunk, chunk);
            s.samples[i] = mem_sample(&s.arrays[i], chunk - 5, chunk - 5, chunk - 5, CROP);
            s.config.max_host_bytes = 8u << 20;
            s.config.io_threads = 10; // eight of them wait
        }
        s.store->paused_uri = s.samples[1].uri;
        mem_pause(s.store, 1);
        d = create(s);
        push_all(s, d);
        first.reset(new held_batch(s, d));
        while (__atomic_load_n(&s.store->n_waiting, __ATOMIC_ACQUIRE) == 0) // batch 1 has slot 1
            usleep(100);
        give_back(first->batch, BY_STREAM, first->context, first->read(&l));
        wait_for_launches(); // of batch 2, if any
        CHECK_EQ(fake_waiting_streams(), 0);
        fake_exempt(0);
    }
};

TEST(batch_waits_for_no_gate_of_a_later_one)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        held_slot h(kind);
        mem_pause(h.s.store, 0);
        take(h.s, h.d);
        h.l.open();
        for (int i = 2; i < 4; i++)
            take(h.s, h.d, kind == FILLED && i == 2);
        h.first->end();
    }
}

TEST(batch_that_waits_for_a_gate_ends_with_the_device)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        held_slot h(kind);
        scene& s = h.s;
        damacy_batch batch;
        damacy_status status;
        fake_fail("event_query", 0, 400); // asked of the gate, as no wave is under way
        while (fake_failures_left() != 0)
            usleep(100);
        mem_pause(s.store, 0);
        do {
            status = damacy_pop_timeout(h.d, UINT64_C(60000000000), &batch, &s.err);
            if (status == DAMACY_OK) {
                CHECK_EQ(info_of(batch).n_failed, 1);
                CHECK_EQ(damacy_release(batch), DAMACY_OK);
            }
        } while (status == DAMACY_OK);
        CHECK_EQ(status, DAMACY_CUDA);
        h.l.open();
        h.first->end();
    }
}

TEST(batch_that_waits_for_a_gate_is_given_up_by_destroy)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        held_slot h(kind);
        mem_pause(h.s.store, 0);
        std::thread opener([&] {
            usleep(20000); // destroy may wait for what is queued
            h.l.open();
        });
        damacy_destroy(h.d);
        opener.join();
        h.first->d = NULL;
        h.first->end();
    }
}

// A consumer's work on a batch does not wait for waves of later ones, which are on the stream that
// batches are made on; what is overwritten there is made by it.
TEST(batch_is_ready_without_what_is_queued_for_later_ones)
{
    scene s(24);
    s.config.on_error = DAMACY_ON_ERROR_FILL;
    s.move_out(9);
    damacy* d = create(s);
    push_all(s, d);
    for (int i = 0; i < 6; i++) {
        const damacy_batch batch = pop(s, d);
        const damacy_batch_info_t info = info_of(batch);
        CHECK_EQ(info.n_failed, i == 2);
        CHECK_EQ(fake_stream_of(info.ready_event) == info.ready_stream, i == 2);
        CHECK_EQ(wait_for(info), 0);
        CHECK_EQ(n_wrong(s, batch, info), 0);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    damacy_destroy(d);
    check_no_leftovers(s);
}

// ---- DLPack ----

TEST(tensor_is_ordered_after_the_batch_on_every_kind_of_stream)
{
    scene s(24);
    damacy* d = create(s);
    push_all(s, d);
    damacy__context context = primary_context();
    damacy__stream own = open_stream(context);
    void* const streams[] = {NULL, (void*)1, (void*)2, own, DAMACY_STREAM_NONE};
    fake_exempt(0);
    for (void* stream : streams) {
        const damacy_batch batch = pop(s, d);
        const damacy_batch_info_t info = info_of(batch);
        damacy_dl_managed_versioned* tensor = NULL;
        damacy_dl_managed* legacy = NULL;
        CHECK_EQ(damacy_batch_dlpack(batch, stream, &tensor, &s.err), DAMACY_OK);
        CHECK_EQ(damacy_batch_dlpack_legacy(batch, stream, &legacy, &s.err), DAMACY_OK);
        CHECK(tensor->version.major == 1 && tensor->dl_tensor.data == info.ptr);
        CHECK(legacy->dl_tensor.data == info.ptr && legacy->dl_tensor.device.device_type == 2);
        CHECK_EQ(tensor->dl_tensor.device.device_id, 0);
        CHECK_EQ(tensor->dl_tensor.ndim, 4);
        CHECK_EQ(tensor->dl_tensor.shape[1], CROP);
        CHECK_EQ(tensor->dl_tensor.strides[0], VOXELS);
        CHECK(tensor->dl_tensor.dtype.code == 2 && tensor->dl_tensor.dtype.bits == 32);
        CHECK_EQ(n_wrong(s, batch, info), 0);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        legacy->deleter(legacy);
        tensor->deleter(tensor);
        CHECK_EQ(damacy_batch_info(batch, NULL), DAMACY_INVAL);
    }
    const damacy_batch batch = pop(s, d);
    damacy_dl_managed_versioned* tensor = NULL;
    fake_fail("stream_wait", 0, 400);
    CHECK_EQ(damacy_batch_dlpack(batch, own, &tensor, &s.err), DAMACY_CUDA);
    CHECK(tensor == NULL);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    CHECK_EQ(damacy_release(batch), DAMACY_INVAL);
    fake_exempt(1);
    close_stream(context, own);
    fake::primary_release(0);
    damacy_destroy(d);
    check_no_leftovers(s);
}

TEST(tensors_outlive_their_pipeline)
{
    scene s(12);
    damacy* d = create(s);
    push_all(s, d);
    damacy_dl_managed_versioned* tensors[3];
    uint64_t first = 0;
    for (int i = 0; i < 3; i++) {
        const damacy_batch batch = pop(s, d);
        CHECK_EQ(damacy_batch_dlpack(batch, i ? NULL : DAMACY_STREAM_NONE, &tensors[i], &s.err),
                 DAMACY_OK);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    damacy_destroy(d);
    CHECK(s.heap.live > 0);
    for (int i = 0; i < 3; i++) {
        const float* voxels = (const float*)tensors[i]->dl_tensor.data;
        for (int k = 0; k < 4; k++)
            CHECK(s.voxels_are_right(first++, voxels + k * VOXELS));
        std::thread([&] { tensors[i]->deleter(tensors[i]); }).join(); // on any thread
    }
    check_no_leftovers(s);
}

// ---- contexts ----

TEST(no_call_changes_the_callers_context)
{
    scene s(8);
    damacy* d = create(s); // opens the machine
    damacy__context own = fake_context(0), popped = NULL;
    CHECK_EQ(fake::context_push(own), 0);
#define STAYS(call)                                                      \
    do {                                                                 \
        call;                                                            \
        CHECK(fake::current.size() == 1 && fake::current.back() == own); \
    } while (0)
    damacy* other = NULL;
    damacy_config wrong = s.config;
    wrong.device = DAMACY_GPU(7);
    STAYS(CHECK_EQ(damacy_create(&wrong, &other, &s.err), DAMACY_UNSUPPORTED));
    fake_fail("stream_create", 1, 2);
    STAYS(CHECK_EQ(damacy_create(&s.config, &other, &s.err), DAMACY_OOM));
    STAYS(push_all(s, d));
    damacy_batch batch;
    STAYS(batch = pop(s, d));
    damacy_batch_info_t info;
    STAYS(info = info_of(batch));
    std::vector<char> bytes(info.size);
    STAYS(CHECK_EQ(damacy_batch_read(batch, bytes.data(), bytes.size(), &s.err), DAMACY_OK));
    fake_fail("copy_to_host", 0, 1);
    STAYS(CHECK_EQ(damacy_batch_read(batch, bytes.data(), bytes.size(), &s.err), DAMACY_CUDA));
    damacy_dl_managed_versioned* tensor = NULL;
    STAYS(CHECK_EQ(damacy_batch_dlpack(batch, NULL, &tensor, &s.err), DAMACY_OK));
    STAYS(tensor->deleter(tensor));
    fake_fail("event_record", 0, 1);
    STAYS(CHECK_EQ(damacy_release_stream(batch, NULL), DAMACY_CUDA)); // it is still held
    STAYS(CHECK_EQ(damacy_release_stream(batch, NULL), DAMACY_OK));
    STAYS(batch = pop(s, d));
    STAYS(CHECK_EQ(damacy_release(batch), DAMACY_OK));
    STAYS(damacy_destroy(d));
    fake::context_pop(&popped);
    check_no_leftovers(s);
}

TEST(pipelines_work_side_by_side_in_several_contexts)
{
    scene s(16);
    damacy* d[2] = {create(s), NULL};
    damacy__context own = fake_context(0);

    std::vector<std::thread> threads;
    s.config.cuda_context = own;
    d[1] = create(s);
    std::vector<std::vector<char>> bytes(2);
    std::vector<damacy_status> statuses(2);
    for (int i = 0; i < 2; i++)
        threads.emplace_back([&, i] {
            damacy_error err;
            damacy_batch batch;
            damacy_batch_info_t info;
            statuses[i] = damacy_push(d[i], s.samples.data(), s.samples.size(), NULL, &err);
            damacy_finish(d[i]);
            while (statuses[i] == DAMACY_OK &&
                   (statuses[i] = damacy_pop(d[i], &batch, &err)) == DAMACY_OK) {
                damacy_batch_info(batch, &info);
                const size_t at = bytes[i].size();
                bytes[i].resize(at + info.size);
                statuses[i] = damacy_batch_read(batch, &bytes[i][at], info.size, &err);
                damacy_release(batch);
            }
        });
    for (auto& t : threads)
        t.join();
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(statuses[i], DAMACY_END);
        CHECK_EQ(bytes[i].size(), s.samples.size() * VOXELS * sizeof(float));
        for (size_t k = 0; k < s.samples.size(); k++)
            CHECK(s.voxels_are_right(k, &bytes[i][k * VOXELS * sizeof(float)]));
        damacy_destroy(d[i]);
    }
    check_no_leftovers(s);
}

// ---- damaged chunks ----

static bool touches_first_chunk(const damacy_sample& sample)
{
    return sample.box[0].begin < CHUNK && sample.box[1].begin < CHUNK &&
           sample.box[2].begin < CHUNK;
}

TEST(damaged_chunk_fails_its_samples_alone_under_every_policy)
{
    for (int way : {1, 3, 4, 5, 6, 7, 8}) {
        for (int policy = 0; policy <= DAMACY_ON_ERROR_SKIP; policy++) {
            if (IS_SLOW && (way + policy) % 4)
                continue;
            scene s(IS_SLOW ? 18 : 27);
            s.config.on_error = (damacy_on_error)policy;
            for (size_t i = 0; i < s.samples.size(); i++) {
                if (s.array_of[i] != way)
                    continue;
                for (int k = 0; k < 3; k++) { // one of three touches the first chunk
                    s.samples[i].box[k].begin = i / WAYS == 1 ? 0 : CHUNK;
                    s.samples[i].box[k].end = s.samples[i].box[k].begin + CROP;
                }
            }
            mem_object* o = mem_find(s.store, (std::string(ways[way].uri) + "/c/0/0/0").c_str());
            CHECK(o != NULL);
            if (way == 8) {
                o->bytes[0] ^= 1; // the size in front: nothing else of it is checked
            } else {
                damage(o);
            }
            damacy* d = create(s);
            const epoch e = run_epoch(s, d);
            CHECK_EQ(e.n_bad, 0);
            if (policy == DAMACY_ON_ERROR_STOP) {
                CHECK_EQ(e.status, DAMACY_DECODE);
                CHECK_EQ(e.n_popped, (uint32_t)(WAYS + way) / 4 * 4);
                CHECK_EQ(s.err.sample, WAYS + way);
                CHECK_STR(s.err.uri, ways[way].uri);
                CHECK_STR(s.err.chunk, "c/0/0/0");
            } else {
                CHECK_EQ(e.status, DAMACY_END);
                CHECK_EQ(e.n_failed, 1);
                CHECK_EQ(e.n_popped, s.samples.size() - (policy == DAMACY_ON_ERROR_SKIP));
            }
            damacy_destroy(d);
            check_no_leftovers(s);
        }
    }
}

TEST(destroy_before_chunks_are_read_tells_of_no_damage)
{
    scene s(27);
    log_state log;
    s.config.logger.user = &log;
    s.config.logger.log = log_line;
    mem_pause(s.store, 1);
    damacy* d = create(s);
    push_all(s, d);
    while (__atomic_load_n(&s.store->n_waiting, __ATOMIC_ACQUIRE) == 0)
        usleep(1000);
    std::thread reader([&] {
        usleep(50000); // destroy is under way then
        mem_pause(s.store, 0);
    });
    damacy_destroy(d);
    reader.join();
    CHECK(!log.has(".zarr")); // errors name their array
    check_no_leftovers(s);
}

// ---- where kernels come from ----

TEST(without_a_kernel_compiler_auto_is_the_cpu_and_a_gpu_is_refused)
{
    scene s(8);
    log_state log;
    machine.has_no_nvrtc = 1;
    s.config.logger.user = &log;
    s.config.logger.log = log_line;
    s.config.device = DAMACY_AUTO;
    damacy* d = create(s);
    CHECK_EQ(damacy_device(d), DAMACY_CPU);
    CHECK(log.has("device: CPU, since no kernel compiler here"));
    damacy_destroy(d);
    s.config.device = DAMACY_GPU(0);
    CHECK_EQ(damacy_create(&s.config, &d, &s.err), DAMACY_UNSUPPORTED);
    CHECK_HAS(s.err.message, "no kernel compiler here");
    CHECK(d == NULL);
    check_no_leftovers(s);
}

TEST(compiler_that_fails_means_the_cpu_for_auto_and_an_error_for_a_gpu)
{
    for (const char* call : {"nvrtc_compile", "nvrtc_archs", "module_load", "nvrtc_cubin"}) {
        scene s(4);
        log_state log;
        s.config.logger.user = &log;
        s.config.logger.log = log_line;
        s.config.device = DAMACY_AUTO;
        fake_fail_at_open(call, 0, 218);
        damacy* d = create(s);
        CHECK_EQ(damacy_device(d), DAMACY_CPU);
        CHECK(log.has("device: CPU, since "));
        damacy_destroy(d);
        CHECK_EQ(s.heap.live, 0);
        check_no_leftovers(s);
        n_loads = 0;
        s.config.device = DAMACY_GPU(0);
        fake_fail_at_open(call, 0, 218);
        d = create(s);
        const epoch e = run_epoch(s, d);
        CHECK_EQ(e.status, DAMACY_CUDA);
        CHECK(s.err.message[0] != '\0');
        damacy_destroy(d);
        check_no_leftovers(s);
    }
}

TEST(kernels_in_the_cache_need_no_compiler)
{
    char folder[] = "/tmp/damacy-fake-XXXXXX";
    const char* const path = fake_program_path();
    CHECK(path[0] != 0);
    if (path[0] != '/')
        SKIP("the program was not started by its whole path");
    CHECK(mkdtemp(folder) != NULL);
    for (int run = 0; run < 4; run++) {
        scene s(8);
        fake_counts counts;
        machine.has_no_nvrtc = run == 2; // warm, it does not even have to be there
        s.config.cache_dir = folder;
        n_nvrtc_loads = 0;
        if (run == 3) { // a note that is cut short
            const std::string shorten =
                std::string("for f in ") + folder + "/*; do truncate -s 100 \"$f\"; done";
            CHECK_EQ(system(shorten.c_str()), 0);
        }
        damacy* d = create(s);
        const bool is_cold = run == 0 || run == 3;
        CHECK_EQ(n_nvrtc_loads, is_cold);
        s.config.cache_dir = "";
        const epoch e = run_epoch(s, d);
        CHECK_EQ(e.status, DAMACY_END);
        CHECK_EQ(e.n_bad, 0);
        fake_count(&counts);
        if (is_cold)
            CHECK(counts.n_compiled >= 7);
        damacy_destroy(d);
        check_no_leftovers(s);
    }
    const std::string remove = std::string("rm -r ") + folder;
    CHECK_EQ(system(remove.c_str()), 0);
}

TEST_MAIN
