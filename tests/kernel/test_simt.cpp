// The fiber shim itself: collectives give the GPU's results, broken kernels are found and named.
#include "tests/simt/simt.h"
#include "tests/test.h"
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

// ---- kernels ----

struct warp_results {
    uint32_t up, down, bits, wrap, ballot, any, all, match, sum, most, least, same, xors;
    uint64_t wide;
    int all_same;
};

static __global__ void collectives(warp_results* out)
{
    const uint32_t full = 0xffffffffu, t = threadIdx.x, lane = t & 31;
    warp_results r;
    r.up = __shfl_up_sync(full, t, 3);
    r.down = __shfl_down_sync(full, t, 5);
    r.bits = __shfl_xor_sync(full, t, 9);
    r.wrap = __shfl_sync(full, t, lane + 1, 8);
    r.wide = __shfl_sync(full, (uint64_t)t << 40, 7);
    r.ballot = __ballot_sync(full, lane % 3 == 0);
    r.any = __any_sync(full, lane == 31);
    r.all = __all_sync(full, lane < 31);
    r.match = __match_any_sync(full, lane & 3);
    r.same = __match_all_sync(full, 5u, &r.all_same);
    r.sum = __reduce_add_sync(full, t);
    r.most = __reduce_max_sync(full, t);
    r.least = __reduce_min_sync(full, t);
    r.xors = __reduce_xor_sync(full, 1u << lane);
    out[blockIdx.x * blockDim.x + t] = r;
}

// Two halves of a warp shuffle apart from each other, at different lines and different often.
static __global__ void halves(uint32_t* out)
{
    const uint32_t lane = threadIdx.x & 31;
    uint32_t v = lane;
    if (lane < 16) {
        for (int i = 0; i < 5; i++)
            v = __shfl_xor_sync(0x0000ffffu, v, 1);
    } else {
        for (int i = 0; i < 2; i++)
            v = __shfl_xor_sync(0xffff0000u, v, 2);
    }
    __syncwarp();
    out[threadIdx.x] = v;
}

struct tile {
    uint32_t v[256];
};

static __global__ void reverse(uint32_t* data, bool barrier)
{
    tile& s = *simt::shared<tile>(__LINE__);
    s.v[threadIdx.x] = data[blockIdx.x * 256 + threadIdx.x];
    if (barrier)
        __syncthreads();
    data[blockIdx.x * 256 + threadIdx.x] = s.v[255 - threadIdx.x];
}

static __global__ void one_skips_the_barrier(uint32_t* data)
{
    if (threadIdx.x != 7)
        __syncthreads(); // LINE_SKIPPED
    data[threadIdx.x] = 1;
}

static __global__ void one_skips_the_collective(uint32_t* data)
{
    const uint32_t lane = threadIdx.x & 31;
    if (lane != 9)
        data[threadIdx.x] = __shfl_sync(0xffffffffu, lane, 0);
    __syncthreads();
}

static __global__ void lane_outside_its_mask(uint32_t* data)
{
    data[threadIdx.x] = __ballot_sync(0x0000ffffu, 1);
}

static __global__ void two_places(uint32_t* data)
{
    if (threadIdx.x < 64)
        __syncthreads();
    else
        __syncthreads();
    data[threadIdx.x] = 1;
}

// Warps 0-1 make values, warps 2-3 use them, in two turns over two named barriers.
static __global__ void pipeline(uint32_t* out)
{
    tile& s = *simt::shared<tile>(__LINE__);
    const uint32_t t = threadIdx.x;
    for (uint32_t turn = 0; turn < 4; turn++) {
        if (t < 64) {
            if (turn > 0)
                simt::named_barrier(2, 128, __LINE__);
            s.v[t] = turn * 1000 + t;
            simt::named_barrier(1, 128, __LINE__);
        } else {
            simt::named_barrier(1, 128, __LINE__);
            out[turn * 64 + t - 64] = s.v[127 - t];
            if (turn < 3)
                simt::named_barrier(2, 128, __LINE__);
        }
    }
}

static __global__ void barrier_counts_wrong(uint32_t* out)
{
    if (threadIdx.x < 64)
        simt::named_barrier(1, 96, __LINE__);
    out[threadIdx.x] = 1;
}

static __global__ void votes_of_block(uint32_t* out)
{
    out[threadIdx.x * 3] = (uint32_t)__syncthreads_count(threadIdx.x % 5 == 0);
    out[threadIdx.x * 3 + 1] = (uint32_t)__syncthreads_or(threadIdx.x == 70);
    out[threadIdx.x * 3 + 2] = (uint32_t)__syncthreads_and(threadIdx.x < 95);
}

static __global__ void place(uint64_t* out)
{
    const uint64_t block = blockIdx.x + gridDim.x * (blockIdx.y + (uint64_t)gridDim.y * blockIdx.z);
    const uint64_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread]++;
}

static __global__ void uses_dynamic(uint8_t* out, uint32_t size)
{
    uint8_t* const s = simt::dynamic_shared();
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x)
        s[i] = (uint8_t)(i * 3);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x)
        out[i] = s[size - 1 - i];
}

static __global__ void counts(uint32_t* counter, uint32_t* max)
{
    const uint32_t mine = atomicAdd(counter, 2u);
    atomicMax(max, mine);
    __syncthreads();
}

static __global__ void deep(uint32_t* out)
{
    volatile uint32_t big[8192]; // 32 KiB of stack
    for (uint32_t i = 0; i < 8192; i += 512)
        big[i] = threadIdx.x + i;
    __syncthreads();
    out[threadIdx.x] = big[512] - 512;
}

static __global__ void greedy_warp(uint32_t* out)
{
    tile& s = *simt::shared<tile>(__LINE__);
    if (threadIdx.x < 32) {
        for (int i = 0; i < 20; i++)
            __syncwarp();
        if (threadIdx.x == 0)
            s.v[0] = 77;
    }
    // a barrier is missing here
    if (threadIdx.x >= 32) {
        for (int i = 0; i < 40; i++)
            __syncwarp();
        out[threadIdx.x] = s.v[0];
    }
}

// ---- tests ----

TEST(warp_collectives_give_the_results_of_the_gpu)
{
    std::vector<warp_results> out(2 * 96);
    simt::g.seed = test_seed();
    simt::launch(dim3(2), dim3(96), [&] { collectives(out.data()); });
    for (uint32_t i = 0; i < out.size(); i++) {
        const uint32_t t = i % 96, lane = t & 31, base = t & ~31u;
        const warp_results& r = out[i];
        CHECK_EQ(r.up, lane < 3 ? t : t - 3);
        CHECK_EQ(r.down, lane + 5 > 31 ? t : t + 5);
        CHECK_EQ(r.bits, t ^ 9);
        CHECK_EQ(r.wrap, base + (lane & ~7u) + ((lane + 1) & 7));
        CHECK(r.wide == (uint64_t)(base + 7) << 40);
        CHECK_EQ(r.ballot, 0x49249249u);
        CHECK_EQ(r.any, 1);
        CHECK_EQ(r.all, 0);
        CHECK_EQ(r.match, 0x11111111u << (lane & 3));
        CHECK_EQ(r.same, 0xffffffffu);
        CHECK_EQ(r.all_same, 1);
        CHECK_EQ(r.sum, 32 * base + 496);
        CHECK_EQ(r.most, base + 31);
        CHECK_EQ(r.least, base);
        CHECK_EQ(r.xors, 0xffffffffu);
    }
}

TEST(parts_of_a_warp_with_own_masks_do_not_disturb_each_other)
{
    for (uint64_t seed = 1; seed < 50; seed++) {
        uint32_t out[64];
        simt::g.seed = seed;
        simt::launch(dim3(1), dim3(64), [&] { halves(out); });
        for (uint32_t t = 0; t < 64; t++)
            CHECK_EQ(out[t], (t & 31) < 16 ? ((t & 31) ^ 1) : (t & 31));
    }
}

TEST(partial_last_warp_votes_without_the_missing_lanes)
{
    uint32_t ballot = 0, all = 0, sum = 0;
    simt::launch(dim3(1), dim3(40), [&] {
        const uint32_t b = __ballot_sync(0xffffffffu, 1), a = __all_sync(0xffffffffu, 1);
        const uint32_t s = __reduce_add_sync(0xffffffffu, threadIdx.x);
        if (threadIdx.x == 39) {
            ballot = b;
            all = a;
            sum = s;
        }
    });
    CHECK_EQ(ballot, 255);
    CHECK_EQ(all, 1);
    CHECK_EQ(sum, 35 * 8 + 4);
}

TEST(barrier_makes_shared_memory_visible_for_every_schedule)
{
    for (uint64_t seed = 1; seed < 100; seed++) {
        std::vector<uint32_t> data(512);
        for (uint32_t i = 0; i < 512; i++)
            data[i] = i * 7;
        simt::g.seed = seed;
        simt::launch(dim3(2), dim3(256), [&] { reverse(data.data(), true); });
        for (uint32_t i = 0; i < 512; i++)
            CHECK_EQ(data[i], ((i & 256) + 255 - (i & 255)) * 7);
    }
}

TEST(missing_barrier_gives_a_wrong_result)
{
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        std::vector<uint32_t> data(256);
        for (uint32_t i = 0; i < 256; i++)
            data[i] = i;
        simt::g.seed = seed;
        simt::launch(dim3(1), dim3(256), [&] { reverse(data.data(), false); });
        for (uint32_t i = 0; i < 256; i++)
            if (data[i] != 255 - i) {
                wrong++;
                break;
            }
    }
    CHECK_EQ(wrong, 20);
}

TEST(missing_barrier_between_warps_that_run_ahead_is_found)
{
    int right = 0, wrong = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint32_t out[64] = {0};
        simt::g.seed = seed;
        simt::launch(dim3(1), dim3(64), [&] { greedy_warp(out); });
        right += out[40] == 77;
        wrong += out[40] != 77;
    }
    CHECK(right > 10);
    CHECK(wrong > 10);
}

TEST(same_seed_gives_the_same_schedule)
{
    uint32_t order[3][128];
    for (int run = 0; run < 3; run++) {
        uint32_t n = 0;
        simt::g.seed = run == 2 ? 99 : 5;
        simt::launch(dim3(1), dim3(128), [&] { order[run][n++] = threadIdx.x; });
    }
    CHECK(memcmp(order[0], order[1], sizeof order[0]) == 0);
    CHECK(memcmp(order[0], order[2], sizeof order[0]) != 0);
}

TEST(named_barriers_order_producers_and_consumers)
{
    for (uint64_t seed = 1; seed < 100; seed++) {
        uint32_t out[256];
        simt::g.seed = seed;
        simt::launch(dim3(1), dim3(128), [&] { pipeline(out); });
        for (uint32_t i = 0; i < 256; i++)
            CHECK_EQ(out[i], i / 64 * 1000 + 63 - i % 64);
    }
}

// Warp 0 writes, warp 1 reads, and warp 0 writes again: with a barrier between if `waits`, with one
// behind if `returns`.
static uint64_t races_of(bool waits, bool returns)
{
    simt::races races(simt::SHARED_MAX);
    simt::g.watch = &races;
    simt::launch(dim3(1), dim3(64), 64, [&] {
        if (threadIdx.x < 32) {
            *simt::shared_at(threadIdx.x, 1, true) = 1;
            simt::named_arrive(1, 64, __LINE__);
            if (returns)
                simt::named_barrier(2, 64, __LINE__);
            *simt::shared_at(threadIdx.x, 1, true) = 2;
        } else {
            if (waits)
                simt::named_barrier(1, 64, __LINE__);
            (void)*simt::shared_at(63 - threadIdx.x, 1, false);
            if (returns)
                simt::named_arrive(2, 64, __LINE__);
        }
    });
    simt::g.watch = nullptr;
    return races.found;
}

TEST(accesses_that_no_barrier_orders_are_found)
{
    CHECK_EQ(races_of(true, true), 0);
    CHECK(races_of(false, true) > 0);
    CHECK(races_of(true, false) > 0);
}

TEST(barriers_of_the_block_vote)
{
    uint32_t out[96 * 3];
    simt::launch(dim3(1), dim3(96), [&] { votes_of_block(out); });
    for (uint32_t t = 0; t < 96; t++) {
        CHECK_EQ(out[t * 3], 20);
        CHECK_EQ(out[t * 3 + 1], 1);
        CHECK_EQ(out[t * 3 + 2], 0);
    }
}

TEST(grids_and_blocks_have_three_axes)
{
    std::vector<uint64_t> out(3 * 4 * 5 * 4 * 3 * 2);
    simt::launch(dim3(3, 4, 5), dim3(4, 3, 2), [&] { place(out.data()); });
    for (uint64_t n : out)
        CHECK_EQ(n, 1);
}

// Each block has the next number and waits for the block that has the one before.
static __global__ void relay(uint32_t* next, uint32_t* done, std::vector<uint32_t>* order)
{
    uint32_t& mine = *simt::shared<uint32_t>(__LINE__);
    if (threadIdx.x == 0) {
        mine = (*next)++;
        __nanosleep(100);
        while (*(volatile uint32_t*)done < mine)
            __nanosleep(100);
        order->push_back(mine);
    }
    __syncthreads();
    if (threadIdx.x == 40) {
        __nanosleep(100);
        (*done)++;
    }
}

TEST(blocks_that_run_together_wait_for_each_other)
{
    for (unsigned n_resident = 1; n_resident <= 6; n_resident++) {
        uint32_t next = 0, done = 0;
        std::vector<uint32_t> order;
        simt::g.seed = n_resident;
        simt::launch_together(dim3(5), dim3(64), 16, n_resident,
                              [&] { relay(&next, &done, &order); });
        CHECK_EQ(done, 5);
        CHECK(order == std::vector<uint32_t>({0, 1, 2, 3, 4}));
    }
}

TEST(dynamic_shared_memory_has_the_size_of_the_launch)
{
    std::vector<uint8_t> out(100001);
    simt::launch(dim3(1), dim3(64), out.size(), [&] {
        uses_dynamic(out.data(), (uint32_t)out.size());
        CHECK_EQ((uintptr_t)simt::dynamic_shared() % 1024, 0);
    });
    for (uint32_t i = 0; i < out.size(); i++)
        CHECK_EQ(out[i], (uint8_t)((out.size() - 1 - i) * 3));
}

TEST(shared_memory_starts_as_garbage_in_every_block)
{
    uint32_t zeros = 0;
    simt::launch(dim3(4), dim3(32), [&] {
        tile& s = *simt::shared<tile>(__LINE__);
        if (threadIdx.x == 0)
            for (uint32_t i = 0; i < 256; i++)
                zeros += s.v[i] == 0;
        __syncwarp();
        for (uint32_t i = threadIdx.x; i < 256; i += 32)
            s.v[i] = 0;
    });
    CHECK(zeros < 4);
}

TEST(deep_stacks_fit)
{
    uint32_t out[1024];
    simt::launch(dim3(1), dim3(1024), [&] { deep(out); });
    for (uint32_t t = 0; t < 1024; t++)
        CHECK_EQ(out[t], t);
}

TEST(several_host_threads_launch_at_once)
{
    uint32_t counter = 0, max = 0;
    std::vector<std::thread> threads;
    for (uint64_t i = 1; i <= 4; i++)
        threads.emplace_back([&, i] {
            simt::g.seed = i;
            for (int k = 0; k < 20; k++)
                simt::launch(dim3(2), dim3(64), [&] { counts(&counter, &max); });
        });
    for (std::thread& t : threads)
        t.join();
    CHECK_EQ(counter, 4 * 20 * 2 * 64 * 2);
    CHECK_EQ(max, counter - 2);
}

TEST(kernels_run_by_name_from_an_array_of_parameters)
{
    static uint32_t got;
    struct local {
        static void kernel(uint32_t* out, uint32_t a, uint64_t b)
        {
            *out = a + (uint32_t)b;
        }
    };
    simt::enroll("add", local::kernel);
    const simt::kernel k = simt::kernels()["add"];
    uint32_t* out = &got;
    uint32_t a = 40;
    uint64_t b = 2;
    void* params[] = {&out, &a, &b};
    CHECK_EQ(k.n_params, 3);
    const std::function<void()> thread = k.bind(k.function, params);
    a = 0;
    simt::launch(dim3(1), dim3(1), thread);
    CHECK_EQ(got, 42);
}

TEST(bit_functions_agree_with_their_definitions)
{
    uint64_t seed = test_seed();
    for (int i = 0; i < 2000; i++) {
        const uint32_t a = (uint32_t)test_random(&seed), b = (uint32_t)test_random(&seed);
        const uint32_t s = b & 63;
        const uint64_t v = (uint64_t)b << 32 | a;
        uint32_t reversed = 0;
        for (int k = 0; k < 32; k++)
            reversed |= (a >> k & 1) << (31 - k);
        CHECK_EQ(__brev(a), reversed);
        CHECK_EQ(__brevll(v), (uint64_t)__brev(a) << 32 | __brev(b));
        CHECK_EQ(__funnelshift_l(a, b, s), (uint32_t)(v << (s & 31) >> 32));
        CHECK_EQ(__funnelshift_r(a, b, s), (uint32_t)(v >> (s & 31)));
        CHECK_EQ(__funnelshift_rc(a, b, s), s >= 32 ? b : (uint32_t)(v >> s));
        CHECK_EQ(__funnelshift_lc(a, b, s), s >= 32 ? a : (uint32_t)(v << s >> 32));
        CHECK_EQ(__umulhi(a, b), (uint32_t)((uint64_t)a * b >> 32));
        CHECK_EQ(__byte_perm(a, b, 0x3210), a);
        CHECK_EQ(__byte_perm(a, b, 0x7654), b);
        CHECK_EQ(__byte_perm(a, b, 0x0123), __builtin_bswap32(a));
        CHECK_EQ(__byte_perm(a, b, 0x5432), (uint32_t)(v >> 16));
    }
    CHECK_EQ(__clz(0), 32);
    CHECK_EQ(__clz(1), 31);
    CHECK_EQ(__clzll(1), 63);
    CHECK_EQ(__ffs(0), 0);
    CHECK_EQ(__ffs(8), 4);
    CHECK_EQ(__dp4a(0x01020304u, 0x01010101u, 5u), 15);
    CHECK_EQ(__dp4a((int)0xff020304, 0x01010101, 5), 13);
    CHECK_EQ(__mul24(0xffffff, 2), -2);
    CHECK_EQ(__float2uint_rz(-1.0f), 0);
    CHECK_EQ(__float2uint_rz(5e9f), 0xffffffffu);
    CHECK_EQ(__float2int_rz(NAN), 0);
}

// Runs a kernel in a child; what it wrote on stderr when it died of SIGABRT, else "".
template <class F> static std::string dying(F launch)
{
    int ends[2];
    std::string text;
    char part[512];
    CHECK(pipe(ends) == 0);
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        launch();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
        text.append(part, (size_t)n);
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : text;
}

TEST(barrier_that_one_thread_skips_is_reported_with_its_line)
{
    uint32_t data[128];
    const std::string text =
        dying([&] { simt::launch(dim3(1), dim3(128), [&] { one_skips_the_barrier(data); }); });
    CHECK_HAS(text.c_str(), "deadlock");
    CHECK_HAS(text.c_str(), "test_simt.cpp line 69");
}

TEST(collective_that_one_lane_skips_is_reported)
{
    uint32_t data[128];
    const std::string text =
        dying([&] { simt::launch(dim3(1), dim3(128), [&] { one_skips_the_collective(data); }); });
    CHECK_HAS(text.c_str(), "divergent");
}

TEST(lane_outside_its_own_mask_is_reported)
{
    uint32_t data[32];
    const std::string text =
        dying([&] { simt::launch(dim3(1), dim3(32), [&] { lane_outside_its_mask(data); }); });
    CHECK_HAS(text.c_str(), "not in its own mask");
}

TEST(block_barrier_at_two_places_is_reported)
{
    uint32_t data[128];
    const std::string text =
        dying([&] { simt::launch(dim3(1), dim3(128), [&] { two_places(data); }); });
    CHECK_HAS(text.c_str(), "divergent");
}

TEST(named_barrier_without_its_threads_is_reported)
{
    uint32_t data[128];
    const std::string text =
        dying([&] { simt::launch(dim3(1), dim3(128), [&] { barrier_counts_wrong(data); }); });
    CHECK_HAS(text.c_str(), "simt: ");
}

TEST(shared_memory_beyond_any_gpu_is_reported)
{
    const std::string text =
        dying([&] { simt::launch(dim3(1), dim3(32), 240 * 1024, [&] { __syncthreads(); }); });
    CHECK_HAS(text.c_str(), "more shared memory");
}

TEST(access_past_shared_memory_is_found_by_the_sanitizer)
{
#if TEST_ASAN
    const std::string text = dying([&] {
        simt::launch(dim3(1), dim3(32), 1000,
                     [&] { simt::dynamic_shared()[1000 + (threadIdx.x == 3)] = 1; });
    });
    CHECK_HAS(text.c_str(), "AddressSanitizer");
    const std::string past = dying([&] {
        simt::launch(dim3(1), dim3(32), [&] {
            tile& s = *simt::shared<tile>(__LINE__);
            volatile uint32_t at = 256;
            s.v[at] = 1;
        });
    });
    CHECK(!past.empty());
#else
    SKIP("built without AddressSanitizer");
#endif
}

TEST_MAIN
