// The walk over headers by a warp against that by one thread: the same counts, errors and tables
// for valid and for broken jobs.
#include "tests/simt/simt.h"
#include "kernels/zstd.cu"
#include "tests/kernel/zstd_corpus.h"
#include "tests/test.h"
#include <algorithm>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

// What a walk leaves.
struct parsed {
    std::vector<uint64_t> errors;
    std::vector<damacy__zstd_span> spans;
    std::vector<damacy__zstd_frame> frames;
    std::vector<damacy__zstd_block> blocks;
    std::vector<damacy__zstd_tree> trees;
    std::vector<damacy__zstd_key> keys;
    damacy__zstd_counters counters = {};
};

template <class T> static uint64_t at(std::vector<T>& v)
{
    return (uint64_t)(uintptr_t)v.data();
}

template <class T> static bool same(const std::vector<T>& a, const std::vector<T>& b)
{
    return memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Three times the job, by a block of threads that has a warp for each, or one of a single warp.
static parsed parse(const bytes& src, bool by_warp, uint32_t max_blocks,
                    uint64_t max_records = 1u << 24)
{
    enum { N = 3 };
    const uint32_t n = N;
    const dim3 threads(by_warp ? 128 : 32);
    std::vector<damacy__job> jobs(N);
    std::vector<damacy__job_result> results(N);
    std::vector<damacy__zstd_sum> sums(DAMACY__ZSTD_PARTS);
    damacy__zstd_wave w = {};
    parsed p;

    p.errors.resize(N);
    p.spans.resize(N);
    p.frames.resize(max_blocks);
    p.blocks.resize(max_blocks);
    p.trees.resize(max_blocks);
    p.keys.resize(max_blocks, {0xeeeeeeee, 0xeeeeeeee});
    memset((void*)p.blocks.data(), 0xee, max_blocks * sizeof p.blocks[0]);
    memset((void*)p.trees.data(), 0xee, max_blocks * sizeof p.trees[0]);
    for (damacy__job& j : jobs) {
        j = damacy__job{};
        j.src = (uint64_t)(uintptr_t)src.data();
        j.src_size = src.size();
        j.dst_capacity = 1u << 30;
        j.expected_size = DAMACY__SIZE_UNKNOWN;
    }
    w.jobs = at(jobs);
    w.n_jobs = (uint64_t)(uintptr_t)&n;
    w.results = at(results);
    w.errors = at(p.errors);
    w.spans = at(p.spans);
    w.sums = at(sums);
    w.counters = (uint64_t)(uintptr_t)&p.counters;
    w.frames = at(p.frames);
    w.blocks = at(p.blocks);
    w.trees = at(p.trees);
    w.keys = at(p.keys);
    w.literals = w.records = 1u << 20; // nothing is there: a walk only hands places out
    w.max_jobs = N;
    w.max_frames = w.max_blocks = max_blocks;
    w.max_records = max_records;
    simt::launch(dim3(1), threads, 0, [&] { damacy_zstd_count(w); });
    simt::launch(dim3(1), threads, 0, [&] { damacy_zstd_fill(w); });
    return p;
}

// Compares both walks; returns the first error word.
static uint64_t check(const bytes& src, uint32_t max_blocks, uint64_t max_records = 1u << 24)
{
    const parsed a = parse(src, false, max_blocks, max_records);
    const parsed b = parse(src, true, max_blocks, max_records);

    CHECK(same(a.errors, b.errors));
    CHECK(same(a.spans, b.spans));
    CHECK(same(a.frames, b.frames));
    CHECK(same(a.blocks, b.blocks));
    CHECK(same(a.trees, b.trees));
    CHECK(same(a.keys, b.keys));
    CHECK_EQ(memcmp(&a.counters, &b.counters, sizeof a.counters), 0);
    return b.errors[0];
}

// `size` bytes of words, some of which come again.
static bytes words(size_t size, uint64_t* seed)
{
    bytes out;

    while (out.size() < size) {
        const uint64_t r = test_random(seed);
        for (uint64_t i = 0; i < 3 + r % 7; i++) {
            out.push_back((uint8_t)('a' + (r >> (8 + i) & 15)));
        }
    }
    out.resize(size);
    return out;
}

static bytes pack(const bytes& content, int level)
{
    bytes out(ZSTD_compressBound(content.size()));
    const size_t n = ZSTD_compress(out.data(), out.size(), content.data(), content.size(), level);
    CHECK(!ZSTD_isError(n));
    out.resize(n);
    return out;
}

// Where the blocks of a frame begin.
static std::vector<size_t> block_starts(const bytes& frame)
{
    std::vector<size_t> starts;
    size_t next = ZSTD_frameHeaderSize(frame.data(), frame.size());
    uint32_t header = 0;

    while (!(header & 1)) {
        starts.push_back(next);
        header = (uint32_t)frame[next] | (uint32_t)frame[next + 1] << 8 |
                 (uint32_t)frame[next + 2] << 16;
        next += 3 + ((header >> 1 & 3) == 1 ? 1 : header >> 3);
    }
    return starts;
}

TEST(a_warp_finds_what_a_thread_finds_in_frames_of_many_blocks)
{
    uint64_t seed = test_seed();
    for (const size_t size : {0u, 1u, 131072u, 131073u, 4194304u, 4194305u, 8650752u}) {
        const bytes frame = pack(words(size, &seed), 1);
        bytes twice = frame;
        twice.insert(twice.end(), frame.begin(), frame.end());
        CHECK_EQ(check(frame, 1024), DAMACY__ZSTD_NO_ERROR);
        CHECK_EQ(check(twice, 1024), DAMACY__ZSTD_NO_ERROR);
        CHECK_EQ(check(twice, 3),
                 size > 131072 ? (uint64_t)DAMACY__JOB_NEED_SCRATCH : DAMACY__ZSTD_NO_ERROR);
    }
}

TEST(blocks_get_room_for_likely_records_where_not_all_have_room)
{
    uint64_t seed = test_seed();
    for (const size_t size : {5000u, 131072u, 4194305u}) {
        const bytes frame = pack(words(size, &seed), 3);
        const parsed most = parse(frame, true, 1024);
        const uint64_t n_records = most.counters.n_records;
        const uint64_t n_least = n_records + (most.counters.n_literal_bytes + 127) / 128 * 16;
        CHECK_EQ(most.counters.is_tight, 0u);
        CHECK_EQ(parse(frame, true, 1024, n_least).counters.n_records, n_records);
        const parsed likely = parse(frame, true, 1024, n_least - 16);
        CHECK_EQ(likely.counters.is_tight, 1u);
        CHECK_EQ(likely.counters.n_refused, 0u);
        CHECK_EQ(likely.counters.n_records, n_records - 3 * 16ull * most.spans[0].n_spared);
        CHECK(likely.counters.n_records < n_records);
        uint64_t next = n_least - 16 - likely.counters.n_records;
        std::vector<damacy__zstd_block> blocks(likely.blocks.begin(),
                                               likely.blocks.begin() + likely.counters.n_blocks);
        std::sort(blocks.begin(), blocks.end(),
                  [](const damacy__zstd_block& a, const damacy__zstd_block& b) {
                      return a.first_record < b.first_record;
                  });
        for (const damacy__zstd_block& b : blocks) { // one after another, to the end
            if (b.type != DAMACY__ZSTD_SEQUENCES)
                continue;
            CHECK_EQ(b.first_record, next);
            CHECK(b.record_capacity > b.n_sequences);
            next += (b.record_capacity + 15) & ~15u;
        }
        CHECK_EQ(next, n_least - 16);
        CHECK_EQ(check(frame, 1024, n_least - 16), DAMACY__ZSTD_NO_ERROR);
    }
}

TEST(a_warp_finds_what_a_thread_finds_in_small_blocks)
{
    const std::vector<corpus_file> files = corpus_load("D_smallblk_s2001");
    CHECK(files.size() > 8);
    for (size_t i = 0; i < files.size(); i += 8) {
        CHECK_EQ(check(files[i].content, 8192), DAMACY__ZSTD_NO_ERROR);
    }
}

TEST(a_warp_reports_the_error_that_a_thread_reports)
{
    uint64_t seed = test_seed();
    const std::vector<corpus_file> files = corpus_load("D_smallblk_s2001");
    const bytes large = pack(words(5000000, &seed), 1);
    const std::vector<size_t> starts = block_starts(large);
    uint32_t n_wrong = 0, n_kinds = 0;
    std::vector<bool> seen(256);

    for (int i = 0; i < 600; i++) {
        bytes src = i % 3 ? files[test_random(&seed) % files.size()].content : large;
        if (i % 3 == 0) { // in the headers of some block
            const size_t start = starts[test_random(&seed) % starts.size()];
            src[std::min(src.size() - 1, start + test_random(&seed) % 9)] ^=
                (uint8_t)(1u << test_random(&seed) % 8);
        }
        for (uint64_t k = test_random(&seed) % 4; k; k--) {
            src[test_random(&seed) % src.size()] ^= (uint8_t)(1u << test_random(&seed) % 8);
        }
        if (i % 5 == 0) {
            src.resize(test_random(&seed) % src.size());
        }
        const uint64_t error = check(src, 8192);
        n_wrong += error != DAMACY__ZSTD_NO_ERROR;
        n_kinds += error != DAMACY__ZSTD_NO_ERROR && !seen[error & 255];
        seen[error & 255] = true;
    }
    printf("# %u of 600 are refused, for %u reasons\n", n_wrong, n_kinds);
    CHECK(n_wrong > 100);
    CHECK(n_kinds >= 4);
}

// More jobs than parts have at least, more blocks and frames than a thread of order takes at once.
TEST(jobs_of_a_large_wave_are_placed_side_by_side_and_listed_once)
{
    enum { N = 4200 };
    uint64_t seed = test_seed();
    const bytes src = pack(words(300, &seed), 3);
    const uint32_t n = N;
    for (const uint32_t max_blocks : {(uint32_t)N, 3000u}) {
        std::vector<damacy__job> jobs(N);
        std::vector<damacy__job_result> results(N);
        std::vector<uint64_t> errors(N);
        std::vector<damacy__zstd_sum> sums(DAMACY__ZSTD_PARTS);
        std::vector<damacy__zstd_span> spans(N);
        std::vector<damacy__zstd_frame> frames(max_blocks);
        std::vector<damacy__zstd_block> blocks(max_blocks);
        std::vector<damacy__zstd_tree> trees(max_blocks);
        std::vector<damacy__zstd_key> keys(max_blocks);
        std::vector<uint32_t> order(max_blocks), list(max_blocks);
        std::vector<bool> is_taken(max_blocks);
        damacy__zstd_counters counters;
        damacy__zstd_wave w = {};
        for (damacy__job& j : jobs) {
            j = damacy__job{};
            j.src = (uint64_t)(uintptr_t)src.data();
            j.src_size = src.size();
            j.dst_capacity = j.expected_size = 300;
        }
        w.jobs = at(jobs);
        w.n_jobs = (uint64_t)(uintptr_t)&n;
        w.results = at(results);
        w.errors = at(errors);
        w.spans = at(spans);
        w.sums = at(sums);
        w.counters = (uint64_t)(uintptr_t)&counters;
        w.frames = at(frames);
        w.blocks = at(blocks);
        w.trees = at(trees);
        w.keys = at(keys);
        w.sequence_order = at(order);
        w.execute_list = at(list);
        w.literals = w.records = 1u << 20;
        w.max_jobs = N;
        w.max_frames = w.max_blocks = max_blocks;
        w.max_records = 1u << 24;
        simt::launch(dim3(4), dim3(128), 0, [&] { damacy_zstd_count(w); });
        simt::launch(dim3(5), dim3(64), 0, [&] { damacy_zstd_fill(w); });
        simt::launch(dim3(max_blocks == N ? 2 : 1), dim3(1024), 0, [&] { damacy_zstd_order(w); });
        CHECK_EQ(counters.n_blocks, max_blocks);
        CHECK_EQ(counters.n_frames, max_blocks);
        CHECK_EQ(counters.n_refused, N - max_blocks);
        CHECK_EQ(counters.n_sequence_blocks, max_blocks);
        CHECK_EQ(counters.n_execute, max_blocks);
        CHECK_EQ(counters.n_records, max_blocks * spans[0].n_records);
        std::sort(order.begin(), order.end());
        std::sort(list.begin(), list.end());
        for (uint32_t i = 0; i < N; i++) {
            CHECK_EQ(errors[i],
                     i < max_blocks ? DAMACY__ZSTD_NO_ERROR : (uint64_t)DAMACY__JOB_NEED_SCRATCH);
            CHECK_EQ(spans[i].is_placed, i < max_blocks ? 1u : 0u);
            if (i >= max_blocks) {
                continue;
            }
            CHECK_EQ(order[i], i);
            CHECK_EQ(list[i], i);
            const uint32_t place = spans[i].first_block;
            CHECK(place < max_blocks && !is_taken[place]);
            is_taken[place] = true;
            CHECK_EQ(spans[i].first_frame, place);
            CHECK_EQ(spans[i].first_literal_byte, place * spans[0].n_literal_bytes);
            CHECK_EQ(spans[i].first_record, w.max_records - (place + 1) * spans[0].n_records);
        }
    }
}

TEST(each_job_is_in_one_of_few_parts)
{
    for (const uint32_t n : {0u, 1u, 3u, 4u, 5u, 2047u, 2048u, 2049u, 4096u, 65535u, 65536u, 65537u,
                             1u << 20, 1u << 30}) {
        const uint32_t n_parts = damacy__zstd_part_of(n, 0).n_parts;
        uint32_t next = 0;
        CHECK(n_parts >= 1 && n_parts <= DAMACY__ZSTD_PARTS);
        for (uint32_t i = 0; i < n_parts; i++) {
            const damacy__zstd_part p = damacy__zstd_part_of(n, i);
            CHECK_EQ(p.first, next);
            CHECK(p.end > p.first || n == 0);
            CHECK(p.end - p.first >= 1u << DAMACY__ZSTD_PART_LOG || p.end == n);
            next = p.end;
        }
        CHECK_EQ(next, n);
    }
}

// Jobs of a frame each and of these numbers of blocks, placed by `n_threads` blocks of threads, of
// which half are there at the same time, at most eight.
struct placed {
    std::vector<damacy__zstd_span> spans;
    std::vector<uint64_t> errors;
    damacy__zstd_counters counters = {};
};

static void place_parts(const damacy__zstd_wave& w)
{
    DAMACY__SHARED(damacy__zstd_place_shared, shared);
    for (uint32_t index = blockIdx.x;; index += gridDim.x) {
        const damacy__zstd_part p = damacy__zstd_part_of(damacy__zstd_n_jobs(w), index);
        if (index >= p.n_parts)
            return;
        (void)damacy__zstd_place_part(w, p, shared);
    }
}

static placed place(const std::vector<uint32_t>& n_blocks, uint32_t max_blocks,
                    uint32_t n_threads = 1, uint64_t max_records = 1u << 24)
{
    const uint32_t n = (uint32_t)n_blocks.size();
    std::vector<damacy__zstd_sum> sums(DAMACY__ZSTD_PARTS, damacy__zstd_sum{});
    placed p;
    damacy__zstd_wave w = {};

    p.spans.resize(n);
    p.errors.resize(n, DAMACY__ZSTD_NO_ERROR);
    for (uint32_t i = 0; i < n; i++) {
        p.spans[i] = damacy__zstd_span{};
        p.spans[i].n_frames = 1;
        p.spans[i].n_blocks = p.spans[i].n_trees = n_blocks[i];
        p.spans[i].n_records = 160;
        p.spans[i].n_spared = 5;
    }
    for (uint32_t i = 0; i < damacy__zstd_part_of(n, 0).n_parts; i++) { // as count leaves them
        const damacy__zstd_part part = damacy__zstd_part_of(n, i);
        for (uint32_t k = part.first; k < part.end; k++)
            damacy__zstd_sum_take(sums[i], p.spans[k]);
    }
    w.n_jobs = (uint64_t)(uintptr_t)&n;
    w.errors = at(p.errors);
    w.spans = at(p.spans);
    w.sums = at(sums);
    w.counters = (uint64_t)(uintptr_t)&p.counters;
    w.max_jobs = w.max_frames = n;
    w.max_blocks = max_blocks;
    w.max_records = max_records;
    memset((void*)&p.counters, 0xee, sizeof p.counters);
    simt::launch_together(dim3(n_threads), dim3(n_threads % 2 ? 128 : 64), 0,
                          std::min((n_threads + 1) / 2, 8u), [&] { place_parts(w); });
    return p;
}

// A batch in two parts had room for 528,640 blocks, and its jobs were placed by one thread: their
// places are then in the order of the jobs.
TEST(jobs_are_placed_side_by_side_however_much_room_there_is)
{
    uint64_t seed = test_seed();
    std::vector<uint32_t> n_blocks(5000);

    for (uint32_t& n : n_blocks) {
        n = 1 + (uint32_t)(test_random(&seed) % 40);
    }
    const placed few = place(n_blocks, 210000);
    CHECK_EQ(few.counters.n_refused, 0);
    CHECK_EQ(few.spans[1].first_block, few.spans[0].n_blocks);
    for (const uint32_t max_blocks : {(1u << 19) - 1, 1u << 19, 1u << 20, 1u << 30}) {
        const placed many = place(n_blocks, max_blocks);
        CHECK_EQ(many.counters.n_blocks, few.counters.n_blocks);
        CHECK(same(many.spans, few.spans));
        CHECK(same(many.errors, few.errors));
    }
}

// Parts of the jobs by blocks of threads that are there one after another, at the same time, or
// are more than there are parts. Where not all fit, all are placed job by job that may not.
TEST(jobs_are_placed_alike_by_one_block_of_threads_and_by_several)
{
    uint64_t seed = test_seed();
    std::vector<uint32_t> n_blocks(20 * DAMACY__ZSTD_PARTS + 77);

    for (uint32_t& n : n_blocks) {
        n = 1 + (uint32_t)(test_random(&seed) % 9);
    }
    for (const uint32_t max_blocks : {100000u, 25000u, 7500u}) {
        // The last: not all records have room, but those of all jobs that are not refused would.
        const uint64_t max_records = max_blocks == 7500 ? 160 * (n_blocks.size() - 200) : 1u << 24;
        const placed one = place(n_blocks, max_blocks, 1, max_records);
        CHECK_EQ(one.counters.n_refused != 0, max_blocks != 100000);
        CHECK_EQ(one.counters.is_tight, max_blocks == 7500);
        for (const uint32_t n_threads : {2u, 5u, 64u, 511u, 700u}) {
            const placed several = place(n_blocks, max_blocks, n_threads, max_records);
            CHECK_EQ(several.counters.n_blocks, one.counters.n_blocks);
            CHECK_EQ(several.counters.is_tight, one.counters.is_tight);
            CHECK_EQ(several.counters.n_refused, one.counters.n_refused);
            CHECK_EQ(several.counters.n_sequence_blocks, 0);
            CHECK(same(several.spans, one.spans));
            CHECK(same(several.errors, one.errors));
        }
    }
}

TEST(jobs_of_very_many_blocks_are_placed_where_there_is_room)
{
    std::vector<uint32_t> n_blocks(5000, 1);

    n_blocks[0] = n_blocks[1000] = 1u << 19;
    n_blocks[4500] = 400000;
    for (const uint32_t max_blocks : {1u << 21, 1u << 20, (1u << 20) + 4997, 600000u}) {
        const placed p = place(n_blocks, max_blocks);
        uint64_t n_placed = 0, n_refused = 0;
        std::vector<std::pair<uint32_t, uint32_t>> places;
        for (uint32_t i = 0; i < n_blocks.size(); i++) {
            if (p.errors[i] == DAMACY__ZSTD_NO_ERROR) {
                CHECK_EQ(p.spans[i].n_blocks, n_blocks[i]);
                places.push_back({p.spans[i].first_block, n_blocks[i]});
                n_placed += n_blocks[i];
            } else {
                CHECK_EQ(p.errors[i], (uint64_t)DAMACY__JOB_NEED_SCRATCH);
                CHECK(n_blocks[i] > 1); // the others find room before and after it
                n_refused++;
            }
        }
        CHECK_EQ(p.counters.n_blocks, n_placed);
        CHECK_EQ(p.counters.n_refused, n_refused);
        CHECK_EQ(n_refused, max_blocks == 1u << 21 ? 0 : max_blocks == 600000 ? 2 : 1);
        std::sort(places.begin(), places.end());
        uint32_t next = 0;
        for (const auto& one : places) { // side by side, without gaps
            CHECK_EQ(one.first, next);
            next += one.second;
        }
    }
}

// Thousands of jobs may have one source, of millions of empty blocks.
TEST(counts_whose_sum_has_more_than_32_bits_do_not_fit)
{
    enum { N = 4096 };
    for (uint32_t i = 0; i < 6; i++) {
        const uint32_t per_job = i % 3 == 0 ? 1u << 20 : i % 3 == 1 ? 1u << 22 : 0xffffffffu;
        const placed p = place(std::vector<uint32_t>(N, per_job), i < 3 ? 1000 : 1u << 19);
        CHECK_EQ(p.counters.n_refused, N);
        CHECK_EQ(p.counters.n_blocks, 0);
        for (uint32_t k = 0; k < N; k++) {
            CHECK_EQ(p.errors[k], DAMACY__JOB_NEED_SCRATCH);
            CHECK_EQ(p.spans[k].is_placed, 0);
        }
    }
}

// Blocks and frames whose keys are drawn, listed by order.
struct listed {
    std::vector<damacy__zstd_key> keys;
    std::vector<uint32_t> logs, sequences, literals[3], execute;
    std::vector<damacy__zstd_frame> frames;
    damacy__zstd_counters counters = {};
    damacy__zstd_wave w = {};

    listed(uint32_t n_blocks, uint32_t n_frames, uint64_t* seed)
        : keys(n_blocks), logs(n_blocks), sequences(n_blocks), execute(n_frames), frames(n_frames)
    {
        for (uint32_t i = 0; i < n_blocks; i++) {
            const uint32_t r = (uint32_t)test_random(seed);
            keys[i].what = (r & 0xc0000000u) | (r & 3) * 300 | (r >> 8 & 31) << 16;
            keys[i].tree = (r >> 16) % std::min(n_blocks, 8u);
            logs[i] = 8 + i % 4;
        }
        for (damacy__zstd_frame& f : frames) {
            const uint32_t r = (uint32_t)test_random(seed);
            f = damacy__zstd_frame{};
            f.n_sequence_blocks = r & 3;
            f.n_records = r >> 8 & 0xfff;
        }
        for (uint32_t i = 0; i < 3; i++) {
            literals[i].resize(n_blocks);
            w.literal_order[i] = at(literals[i]);
        }
        w.keys = at(keys);
        w.logs = at(logs);
        w.frames = at(frames);
        w.sequence_order = at(sequences);
        w.execute_list = at(execute);
        w.counters = (uint64_t)(uintptr_t)&counters;
        w.max_blocks = n_blocks;
        counters.n_blocks = n_blocks;
        counters.n_frames = n_frames;
        counters.n_records = 1; // few literals: the early ones are early
    }

    void order(uint32_t flags, uint32_t n_threads)
    {
        damacy__zstd_wave v = w;
        v.flags = flags;
        simt::launch_together(dim3(n_threads), dim3(1024), 0, (n_threads + 1) / 2,
                              [&] { damacy_zstd_order(v); });
    }
};

// Whether a list is of parts, each with all items of a part of n for which `bucket` is not NONE, in
// order. `backwards`: the first part is the last.
template <class F>
static bool is_listed(const uint32_t* list, uint32_t n_listed, uint32_t n, bool backwards, F bucket)
{
    uint32_t place = 0;
    for (uint32_t first = 0; first < n; first += DAMACY__ZSTD_LIST_PART) {
        const uint32_t end = std::min(n, first + DAMACY__ZSTD_LIST_PART);
        std::vector<uint32_t> want;
        for (uint32_t i = first; i < end; i++) {
            if (bucket(i) != DAMACY__ZSTD_NONE) {
                want.push_back(i);
            }
        }
        place += (uint32_t)want.size();
        if (place > n_listed) {
            return false;
        }
        const uint32_t* const from =
            list + (backwards ? n_listed - place : place - (uint32_t)want.size());
        std::vector<uint32_t> got(from, from + want.size());
        for (size_t i = 1; i < got.size(); i++) {
            if (got[i] >= n || bucket(got[i - 1]) > bucket(got[i])) {
                return false;
            }
        }
        std::sort(got.begin(), got.end());
        if (got != want) {
            return false;
        }
    }
    return place == n_listed;
}

TEST(lists_have_each_block_and_frame_once_by_any_number_of_blocks_of_threads)
{
    uint64_t seed = test_seed();
    const uint32_t part = DAMACY__ZSTD_LIST_PART, early = DAMACY__ZSTD_FLAG_EARLY;
    const uint32_t sizes[][2] = {
        {0, 0}, {1, 1}, {part, 5}, {part + 1, 2 * part + 3}, {3 * part, 9}};

    for (const auto& size : sizes) {
        for (const uint32_t n_threads : {1u, 2u, 3u, 7u, 12u}) {
            for (const bool is_one : {false, true}) {
                listed l(size[0], size[1], &seed);
                const damacy__zstd_counters& c = l.counters;
                l.order(is_one ? DAMACY__ZSTD_FLAG_ONE_LIST | early : 0, n_threads);
                if (!is_one) {
                    l.counters.ticket[0] = 1; // sequences have begun
                    l.order(DAMACY__ZSTD_FLAG_LITERALS | early, (n_threads + 1) / 2);
                }
                CHECK(is_listed(
                    l.sequences.data(), c.n_sequence_blocks, size[0], false, [&](uint32_t i) {
                        return l.keys[i].what & DAMACY__ZSTD_KEY_SEQUENCES ? l.keys[i].what & 0xffff
                                                                           : DAMACY__ZSTD_NONE;
                    }));
                CHECK(is_listed(l.execute.data(), c.n_execute, size[1], false, [&](uint32_t i) {
                    return l.frames[i].n_sequence_blocks
                               ? damacy__zstd_bucket(l.frames[i].n_records)
                               : DAMACY__ZSTD_NONE;
                }));
                for (uint32_t k = 0; k < 6; k++) {
                    const auto bucket = [&](uint32_t i) {
                        const damacy__zstd_key key = l.keys[i];
                        const uint32_t log = is_one ? 9 : std::max(l.logs[key.tree], 9u);
                        const bool here = key.what & DAMACY__ZSTD_KEY_LITERALS &&
                                          !(key.what & DAMACY__ZSTD_KEY_SEQUENCES) == (k >= 3) &&
                                          log == 9 + k % 3;
                        return here ? key.what >> 16 & 0xff : DAMACY__ZSTD_NONE;
                    };
                    const uint32_t n = k < 3 ? c.n_literal_blocks[k] : c.n_late_blocks[k - 3];
                    const uint32_t* const list =
                        l.literals[k % 3].data() + (k < 3 ? 0 : l.literals[0].size() - n);
                    CHECK(n <= size[0] && is_listed(list, n, size[0], k >= 3, bucket));
                }
            }
        }
    }
}

TEST_MAIN
