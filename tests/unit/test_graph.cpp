// Batches as graphs: kernels run in an order that streams and events would give, what comes again
// is launched by a graph, and whatever the driver refuses is left to be queued kernel by kernel.
#include "gpu/graph.h"
#include "gpu/memory.h"
#include "tests/device_open.h"
#include "tests/simt/counts.h"

static damacy__driver driver;
static damacy__alloc heap;
static damacy__device device;
static damacy_error err;
static damacy__graphs graphs;
static damacy__kernel steps[2];
static uint64_t values; // device memory
static const damacy__graph_key no_key = {};

// values[to] = 3 * values[from] + add: the order of two on one value shows.
struct step {
    int64_t* values;
    uint32_t from, to;
    int64_t add;
};

static void run_step(step s)
{
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        s.values[s.to] = 3 * s.values[s.from] + s.add;
    }
}

static void start(uint64_t seed, fake_config config = {})
{
    damacy__device_config wanted = {};
    damacy__module module = NULL;
    config.seed = seed;
    simt::enroll("damacy_test_step", run_step);
    fake_open(&driver, &config);
    memset(&heap, 0, sizeof heap);
    memset(&err, 0, sizeof err);
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &wanted, &err), DAMACY_OK);
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
    CHECK_EQ(driver.module_load(&module, "FAKE CUBIN\n"), 0);
    memset(steps, 0, sizeof steps);
    for (damacy__kernel& k : steps) {
        k.name = "damacy_test_step";
        CHECK_EQ(driver.module_function(&k.function, module, k.name), 0);
    }
    CHECK_EQ(damacy__device_alloc(&device, 64 * 8, "values", &values, &err), DAMACY_OK);
    CHECK_EQ(damacy__fill_device(&device, values, 0, 64 * 8, NULL, &err), DAMACY_OK);
    damacy__graphs_init(&graphs, &device, &heap);
}

static void finish()
{
    damacy__graphs_deinit(&graphs, &device);
    damacy__device_free(&device, values, 64 * 8);
    damacy__device_leave(&device);
    damacy__device_close(&device);
    const fake_counts counts = counts_without_misuse();
    CHECK_EQ(counts.live_graphs, 0);
    CHECK_EQ(counts.live_allocations, 0);
    CHECK_EQ(heap.live_blocks, 0);
    fake_close();
}

static int64_t value(uint32_t i)
{
    int64_t all[64];
    CHECK_EQ(damacy__copy_to_host(&device, all, values, sizeof all, NULL, &err), DAMACY_OK);
    CHECK_EQ(driver.stream_synchronize(NULL), 0);
    return all[i];
}

static void queue(damacy__graph_draft* draft, damacy__stream stream, uint32_t from, uint32_t to,
                  int64_t add, uint32_t which = 0, uint32_t division = 0)
{
    step s = {(int64_t*)(uintptr_t)values, from, to, add};
    damacy__grid grid = damacy__grid_of(1, 32, 0);
    grid.division = division;
    CHECK_EQ(damacy__queue_kernel(draft, &steps[which], &device, &grid, stream, &s, sizeof s, &err),
             DAMACY_OK);
}

static void* const STREAM = NULL; // the legacy stream, as a caller's
static void* const SIDES[] = {(void*)0x100, (void*)0x200};

static void record(damacy__graph_draft* draft, void* event, void* stream)
{
    CHECK_EQ(damacy__queue_record(draft, &device, event, stream, &err), DAMACY_OK);
}

static void await(damacy__graph_draft* draft, void* stream, void* event)
{
    CHECK_EQ(damacy__queue_wait(draft, &device, stream, event, &err), DAMACY_OK);
}

// 0 begins, two sides go on, all meet; `forgets`: the stream does not wait for that side.
static damacy__graph_draft* draft_fork(int64_t add, int forgets = -1)
{
    damacy__graph_draft* draft = damacy__graphs_begin(&graphs);
    void *const fork = (void*)0x300, *const joins[] = {(void*)0x400, (void*)0x500};
    CHECK(draft);
    queue(draft, STREAM, 0, 0, add);
    record(draft, fork, STREAM);
    for (int i = 0; i < 2; i++) {
        await(draft, SIDES[i], fork);
        queue(draft, SIDES[i], 0, 1 + (uint32_t)i, 10 + i);
        queue(draft, SIDES[i], 1 + (uint32_t)i, 1 + (uint32_t)i, 20 + i);
        record(draft, joins[i], SIDES[i]);
    }
    queue(draft, STREAM, 0, 3, 5);
    for (int i = 0; i < 2; i++)
        if (i != forgets)
            await(draft, STREAM, joins[i]);
    queue(draft, STREAM, 1, 4, 1);
    queue(draft, STREAM, 2, 5, 2);
    return draft;
}

// What these come to if values[0] is x before.
static void check_fork(int64_t x, int64_t add)
{
    const int64_t y = 3 * x + add;
    CHECK_EQ(value(0), y);
    CHECK_EQ(value(3), 3 * y + 5);
    CHECK_EQ(value(4), 3 * (3 * (3 * y + 10) + 20) + 1);
    CHECK_EQ(value(5), 3 * (3 * (3 * y + 11) + 21) + 2);
}

TEST(kernels_of_a_graph_wait_for_what_streams_and_events_order)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        start(seed);
        graphs.is_eager = true;
        draft_fork((int64_t)seed);
        CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
        check_fork(0, (int64_t)seed);
        finish();
    }
}

TEST(a_wait_that_is_missing_shows)
{
    int n_wrong = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        start(seed);
        graphs.is_eager = true;
        draft_fork(7, 1);
        CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
        n_wrong += value(5) != 3 * (3 * (3 * 7 + 11) + 21) + 2;
        finish();
    }
    CHECK(n_wrong > 0 && n_wrong < 40);
}

TEST(edges_are_those_that_others_do_not_imply)
{
    start(1);
    const damacy__graph_draft* draft = draft_fork(1);
    CHECK_EQ(draft->n_nodes, 8);
    CHECK_EQ(draft->nodes[0].after, 0);
    CHECK_EQ(draft->nodes[1].after, 1 << 0);
    CHECK_EQ(draft->nodes[2].after, 1 << 1);
    CHECK_EQ(draft->nodes[3].after, 1 << 0);
    CHECK_EQ(draft->nodes[5].after, 1 << 0);
    CHECK_EQ(draft->nodes[6].after, 1 << 2 | 1 << 4 | 1 << 5);
    CHECK_EQ(draft->nodes[7].after, 1 << 6);
    damacy__graph_draft* again = damacy__graphs_begin(&graphs);
    queue(again, STREAM, 0, 1, 1);
    record(again, SIDES[1], STREAM);
    queue(again, STREAM, 1, 2, 1);
    await(again, STREAM, SIDES[1]); // what the stream has passed anyway
    queue(again, STREAM, 2, 3, 1);
    CHECK_EQ(again->nodes[2].after, 1 << 1);
    finish();
}

TEST(without_a_draft_kernels_events_and_waits_go_to_the_driver)
{
    start(3);
    damacy__stream side = NULL;
    damacy__event event = NULL;
    CHECK_EQ(damacy__stream_open(&device, false, &side, &err), DAMACY_OK);
    CHECK_EQ(damacy__event_open(&device, false, &event, &err), DAMACY_OK);
    queue(NULL, STREAM, 0, 0, 4);
    record(NULL, event, STREAM);
    await(NULL, side, event);
    queue(NULL, side, 0, 1, 1);
    CHECK_EQ(driver.stream_synchronize(side), 0);
    CHECK_EQ(value(1), 13);
    fake_counts counts;
    fake_count(&counts);
    CHECK_EQ(counts.n_launches, 2);
    CHECK_EQ(counts.n_graphs, 0);
    damacy__event_close(&device, event);
    damacy__stream_close(&device, side);
    finish();
}

TEST(what_comes_again_is_launched_by_a_graph_with_parameters_of_its_own)
{
    start(5);
    fake_counts counts;
    int64_t x = 0;
    for (int64_t i = 0; i < 10; i++) {
        draft_fork(i);
        const bool is_queued = damacy__graphs_launch(&graphs, &device, &no_key, STREAM);
        CHECK_EQ(is_queued, i > 0); // the first time a graph would take longer
        if (is_queued) {
            check_fork(x, i);
            x = 3 * x + i;
        }
    }
    fake_count(&counts);
    CHECK_EQ(counts.n_graphs, 1);
    CHECK_EQ(counts.n_graph_launches, 9);
    CHECK_EQ(counts.n_updates, 8); // of the one kernel whose parameter changes
    draft_fork(9);
    CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM)); // as it is
    draft_fork(3);
    CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM)); // known: a graph of its own
    draft_fork(9);
    CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    fake_count(&counts);
    CHECK_EQ(counts.n_graphs, 2);
    CHECK_EQ(counts.n_updates, 8);
    CHECK_EQ(value(0), 3 * (3 * (3 * x + 9) + 3) + 9);
    finish();
}

TEST(a_graph_is_known_by_the_key_of_what_it_launched_last)
{
    start(15);
    graphs.is_eager = true;
    damacy__graph_key keys[2];
    memset(keys, 0, sizeof keys);
    for (uint64_t i = 0; i < 2; i++)
        keys[i].words[DAMACY__GRAPH_KEY - 1] = 1 + i;
    CHECK(!damacy__graphs_again(&graphs, &device, &keys[0], STREAM));
    draft_fork(4);
    CHECK(damacy__graphs_launch(&graphs, &device, &keys[0], STREAM));
    CHECK(damacy__graphs_again(&graphs, &device, &keys[0], STREAM));
    CHECK(!damacy__graphs_again(&graphs, &device, &keys[1], STREAM));
    check_fork(4, 4); // twice
    draft_fork(5);
    CHECK(damacy__graphs_launch(&graphs, &device, &keys[1], STREAM)); // by the same graph
    CHECK(!damacy__graphs_again(&graphs, &device, &keys[0], STREAM));
    CHECK(damacy__graphs_again(&graphs, &device, &keys[1], STREAM));
    check_fork(3 * (3 * 4 + 4) + 5, 5);
    draft_fork(6);
    CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    CHECK(!damacy__graphs_again(&graphs, &device, &keys[1], STREAM));
    fake_counts counts;
    fake_count(&counts);
    CHECK_EQ(counts.n_graphs, 1);
    CHECK_EQ(counts.n_graph_launches, 5);
    CHECK_EQ(counts.n_updates, 2);
    fake_fail("graph_launch", 0, DAMACY__CUDA_OUT_OF_MEMORY);
    draft_fork(7);
    CHECK(!damacy__graphs_launch(&graphs, &device, &keys[0], STREAM));
    CHECK(!damacy__graphs_again(&graphs, &device, &keys[0], STREAM));
    finish();
}

TEST(branches_of_a_draft_go_on_beside_its_streams)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        start(seed);
        graphs.is_eager = true;
        damacy__graph_draft* draft = damacy__graphs_begin(&graphs);
        queue(draft, STREAM, 0, 0, 1);
        const damacy__stream a = damacy__draft_branch(draft, STREAM);
        const damacy__stream b = damacy__draft_branch(draft, STREAM);
        CHECK(a != b && a != STREAM && b != STREAM);
        queue(draft, a, 0, 1, 2);
        queue(draft, STREAM, 0, 2, 3);
        queue(draft, b, 0, 3, 4);
        CHECK_EQ(draft->nodes[1].after, 1);
        CHECK_EQ(draft->nodes[2].after, 1);
        CHECK_EQ(draft->nodes[3].after, 1);
        damacy__draft_join(draft, STREAM, a);
        queue(draft, STREAM, 1, 4, 5);
        CHECK_EQ(draft->nodes[4].after, 1 << 1 | 1 << 2);
        damacy__draft_join(draft, STREAM, b);
        queue(draft, STREAM, 3, 5, 6);
        CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
        CHECK_EQ(value(2), 6);
        CHECK_EQ(value(4), 3 * (3 * 1 + 2) + 5);
        CHECK_EQ(value(5), 3 * (3 * 1 + 4) + 6);
        finish();
    }
}

TEST(launches_under_way_keep_their_parameters)
{
    start(6);
    graphs.is_eager = true;
    fake_hold(1);
    for (int64_t i = 1; i <= 3; i++) {
        draft_fork(i);
        CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    }
    fake_hold(0);
    check_fork(3 * (3 * 0 + 1) + 2, 3);
    finish();
}

TEST(other_kernels_edges_or_divisions_are_other_graphs)
{
    start(7);
    graphs.is_eager = true;
    fake_counts counts;
    for (uint32_t i = 0; i < 8; i++) {
        damacy__graph_draft* draft = damacy__graphs_begin(&graphs);
        queue(draft, STREAM, 0, 1, 1, i % 2, i / 2 % 2 ? 50 : 0);
        queue(draft, i / 4 ? STREAM : SIDES[0], 0, 2, 1);
        CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
        CHECK_EQ(value(1), 1);
    }
    fake_count(&counts);
    CHECK_EQ(counts.n_graphs, 8);
    CHECK_EQ(counts.n_updates, 0);
    CHECK_EQ(counts.n_divided, 4);
    finish();
}

TEST(the_graph_that_was_used_longest_ago_makes_room)
{
    start(8);
    graphs.is_eager = true;
    fake_counts counts;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t n = 1; n <= DAMACY__GRAPHS + 3u; n++) {
            damacy__graph_draft* draft = damacy__graphs_begin(&graphs);
            for (uint32_t i = 0; i < n; i++)
                queue(draft, STREAM, i, i + 1, 1);
            CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
            CHECK_EQ(value(n), 3 * value(n - 1) + 1);
        }
    }
    fake_count(&counts);
    CHECK_EQ(counts.live_graphs, 2 * DAMACY__GRAPHS);
    CHECK_EQ(counts.n_graphs, 2 * (DAMACY__GRAPHS + 3));
    finish();
}

TEST(what_finds_no_room_in_a_draft_is_left_to_the_caller)
{
    start(9);
    graphs.is_eager = true;
    damacy__graph_draft* draft = damacy__graphs_begin(&graphs);
    for (int i = 0; i <= DAMACY__GRAPH_NODES; i++)
        queue(draft, STREAM, 0, 1, 1);
    CHECK(!damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    draft = damacy__graphs_begin(&graphs);
    queue(draft, STREAM, 0, 1, 1);
    for (uintptr_t i = 0; i < DAMACY__GRAPH_LANES; i++)
        record(draft, (void*)(0x1000 + 16 * i), STREAM);
    CHECK(!damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    draft = damacy__graphs_begin(&graphs);
    uint8_t large[DAMACY__GRAPH_PARAMETER + 8] = {0};
    const damacy__grid grid = damacy__grid_of(1, 32, 0), none = damacy__grid_of(0, 32, 0);
    CHECK_EQ(
        damacy__queue_kernel(draft, &steps[0], &device, &grid, STREAM, large, sizeof large, &err),
        DAMACY_OK);
    CHECK(!damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    draft = damacy__graphs_begin(&graphs);
    CHECK_EQ(damacy__queue_kernel(draft, &steps[0], &device, &none, STREAM, large, 8, &err),
             DAMACY_OK);
    CHECK_EQ(draft->n_nodes, 0); // an empty grid does nothing
    CHECK(!damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    fake_counts counts;
    fake_count(&counts);
    CHECK_EQ(counts.n_launches, 0);
    finish();
}

TEST(a_graph_that_the_driver_refuses_is_the_last_that_is_tried)
{
    static const char* const functions[] = {"graph_create",      "graph_add",    "graph_attribute",
                                            "graph_instantiate", "capture_mode", "graph_update",
                                            "graph_launch"};
    for (const char* const function : functions) {
        for (uint64_t nth = 0; nth < 2; nth++) {
            start(10 + nth);
            graphs.is_eager = true;
            fake_fail(function, nth, DAMACY__CUDA_OUT_OF_MEMORY);
            int64_t x = 0;
            uint32_t n = 0;
            bool is_queued = true;
            for (; n < 4 && is_queued; n++) {
                damacy__graph_draft* draft = damacy__graphs_begin(&graphs);
                CHECK(draft);
                queue(draft, STREAM, 0, 0, n, 0, 50);
                queue(draft, STREAM, 0, 1, n, 0, n == 3 ? 60 : 50);
                is_queued = damacy__graphs_launch(&graphs, &device, &no_key, STREAM);
                x = is_queued ? 3 * x + n : x;
                CHECK_EQ(value(0), x);
            }
            CHECK(!is_queued || nth == 1); // the second exchange of modes, back, may fail
            if (!is_queued) {
                fake_counts counts;
                CHECK(!damacy__graphs_begin(&graphs));
                fake_count(&counts);
                CHECK(counts.live_graphs <= 2); // those that work
            }
            CHECK_EQ(fake_failures_left(), 0);
            int mode = 0; // is as it was, but where setting it back was refused
            CHECK_EQ(driver.capture_mode(&mode), 0);
            CHECK(mode == 0 || (!strcmp(function, "capture_mode") && nth == 1));
            finish();
        }
    }
}

TEST(a_division_that_is_not_known_is_none)
{
    for (const int code : {DAMACY__CUDA_INVALID_VALUE, DAMACY__CUDA_NOT_SUPPORTED}) {
        start(11);
        graphs.is_eager = true;
        fake_fail("graph_attribute", 0, code);
        queue(damacy__graphs_begin(&graphs), STREAM, 0, 1, 8, 0, 50);
        CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
        CHECK_EQ(value(1), 8);
        finish();
    }
}

TEST(a_lost_device_gets_no_graph_and_frees_what_it_has)
{
    start(12);
    graphs.is_eager = true;
    draft_fork(1);
    CHECK(damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    check_fork(0, 1);
    draft_fork(2);
    fake_fail("graph_launch", 0, DAMACY__CUDA_ILLEGAL_ADDRESS);
    CHECK(!damacy__graphs_launch(&graphs, &device, &no_key, STREAM));
    CHECK_EQ(damacy__device_alive(&device, &err), DAMACY_DEVICE_LOST);
    CHECK(!damacy__graphs_begin(&graphs));
    finish();
}

TEST(older_drivers_and_machines_without_memory_have_no_graphs)
{
    fake_config older = {};
    older.lacks_new_functions = 1;
    start(13, older);
    CHECK(!damacy__graphs_begin(&graphs));
    finish();
    start(14);
    damacy__graphs_deinit(&graphs, &device);
    CHECK(!damacy__graphs_begin(&graphs));
    heap.budget = heap.live_bytes + sizeof(damacy__graph_draft) + 1;
    damacy__graphs_init(&graphs, &device, &heap);
    CHECK(!damacy__graphs_begin(&graphs));
    finish();
}

TEST_MAIN
