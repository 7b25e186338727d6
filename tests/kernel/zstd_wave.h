// Runs the kernels of the Zstandard decoder on the CPU over a table of jobs, stage by stage, with
// every table, input and output in an allocation of its own, so that ASan sees each byte too far.
#pragma once
#include "tests/simt/simt.h"
#include "kernels/zstd.cu"
#include "kernels/zstd_blosc.cu"
#include "kernels/zstd_sequences.cu"
#include "tests/kernel/zstd_corpus.h"

enum { WAVE_LANES = 0, WAVE_SPLIT = 1, WAVE_SPLIT_SMALL = 2, WAVE_SPLIT4 = 3 };

struct wave_options {
    int literals = WAVE_LANES;
    uint32_t flags = DAMACY__ZSTD_EXECUTE_128X4_3K; // of the wave: shapes of fse and execute
    uint32_t max_blocks = 0, max_frames = 0;        // 0: as many as any data needs
    uint64_t max_records = 0;
    uint64_t seed = 1;
    uint32_t percent_short = 0; // of blocks get less room for records than was found likely
    simt::races* races = nullptr;              // of literals by shares
    damacy__zstd_counters* counters = nullptr; // out
};

struct wave_job {
    bytes src;
    uint64_t capacity = 0;
    uint64_t expected = DAMACY__SIZE_UNKNOWN;
    uint32_t flags = 0;
    unsigned skew = 0; // of input and output addresses, 0-15
    // out
    damacy__job_result result = {0, 0, 0, 0};
    bytes out;
    bool canary = true; // the bytes around the output are untouched
};

// An allocation that ends where its content ends, `skew` bytes after a multiple of 64.
struct wave_memory {
    uint8_t* block = nullptr;
    uint8_t* ptr = nullptr;
    wave_memory(size_t size, size_t skew, uint8_t fill)
    {
        if (posix_memalign((void**)&block, 64, size + skew ? size + skew : 1) != 0) {
            abort();
        }
        memset(block, fill, size + skew);
        ptr = block + skew;
    }
    wave_memory(const wave_memory&) = delete;
    wave_memory(wave_memory&& o) noexcept : block(o.block), ptr(o.ptr)
    {
        o.block = o.ptr = nullptr;
    }
    ~wave_memory()
    {
        free(block);
    }
};

enum { WAVE_CANARY = 64 };

// The invariants of records of sequences that zstd_abi.h promises. Empty, or what is broken.
static inline std::string wave_check_sequences(const damacy__zstd_wave& w,
                                               const damacy__zstd_block& b)
{
    const uint64_t* const records = (const uint64_t*)(uintptr_t)w.records + b.first_record;

    if (b.n_records != b.n_sequences && b.n_records != b.n_sequences + 1) {
        return "not a record a sequence";
    }
    for (uint32_t i = 0; i < b.n_records; i++) {
        const bool is_last = i + 1 == b.n_records, is_tail = i == b.n_sequences;
        const uint64_t start = records[i] & 0x1ffff, at = records[i] >> 17 & 0x1ffff;
        const uint64_t end = is_last ? b.size : records[i + 1] & 0x1ffff;
        const uint64_t literal_end = is_last ? b.n_literals : records[i + 1] >> 17 & 0x1ffff;
        const uint64_t n_match = end - start - (literal_end - at);
        if (i == 0 && (start || at)) {
            return "the first record does not start at 0";
        }
        if (end <= start || literal_end < at || literal_end - at > end - start) {
            return "starts or positions of literals do not grow";
        }
        if (is_tail ? n_match != 0 || records[i] >> 34 != 0
                    : n_match < 3 || records[i] >> 34 == 0) {
            return "a match is too short, or its offset 0";
        }
    }
    return b.size > b.max_size ? "the sum of records is wrong" : "";
}

// The same of segments.
static inline std::string wave_check_block(const damacy__zstd_wave& w, const damacy__zstd_block& b)
{
    const uint64_t* const records = (const uint64_t*)(uintptr_t)w.records + b.first_record;
    uint64_t at = 0, literal = 0;

    for (uint32_t i = 0; i < b.n_records; i++) {
        const uint64_t start = records[i] & 0x1ffff, n = (records[i] >> 17 & 0x1ffff) + 1;
        const uint64_t d = records[i] >> 34;
        if (start != at) {
            return "a record does not start where the last ended";
        }
        if (d & DAMACY__ZSTD_D_LITERALS) {
            if ((d & 0x1ffff) != literal) {
                return "literal runs are not in order";
            }
            literal += n;
        } else if (d == 0) {
            return "offset 0";
        }
        at += n;
    }
    if (at != b.size || literal != b.n_literals || at > b.max_size) {
        return "the sum of records or literals is wrong";
    }
    return "";
}

static inline std::string wave_check_records(const damacy__zstd_wave& w)
{
    const damacy__zstd_counters& c = *damacy__zstd_counts(w);
    for (uint32_t i = 0; i < c.n_blocks; i++) {
        const damacy__zstd_block& b = damacy__zstd_blocks(w)[i];
        const uint32_t job = damacy__zstd_frames(w)[b.frame].job;
        if (b.type != DAMACY__ZSTD_SEQUENCES ||
            damacy__zstd_errors(w)[job] != DAMACY__ZSTD_NO_ERROR) {
            continue;
        }
        const std::string wrong = b.n_records > b.record_capacity ? "more records than capacity"
                                  : w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE
                                      ? wave_check_sequences(w, b)
                                      : wave_check_block(w, b);
        if (!wrong.empty()) {
            return wrong;
        }
    }
    return "";
}

static inline dim3 wave_grid(uint32_t most) // persistent grids must work at any size
{
    return dim3((unsigned)(1 + simt::random() % most));
}

// Checksums and results, by four lanes a job, and of few jobs by a warp each, which has to find the
// same.
static inline void wave_finish(const damacy__zstd_wave& w, uint32_t n, std::string* wrong)
{
    const size_t size = n * sizeof(damacy__job_result);
    void* const results = (void*)(uintptr_t)w.results;

    simt::launch(wave_grid(3), dim3(128), 0, [&] { damacy_zstd_finish(w); });
    if (n > 200)
        return;
    const bytes by_lanes((const uint8_t*)results, (const uint8_t*)results + size);
    memset(results, 0xee, size);
    simt::launch(dim3(n + 1), dim3(32), 0, [&] { damacy_zstd_finish(w); });
    if (memcmp(results, by_lanes.data(), size) != 0 && wrong->empty())
        *wrong = "a warp finds other results than four lanes";
}

static inline void wave_literals(damacy__zstd_wave w, int how, simt::races* races)
{
    const dim3 grid = races ? dim3(1) : wave_grid(3);
    const bool is_eleven_split = how == WAVE_LANES && simt::random() % 2;

    simt::g.watch = races;
    if (how == WAVE_LANES) {
        w.flags |= simt::random() % 2 ? DAMACY__ZSTD_FLAG_NINE_AS_TEN : 0;
        simt::launch(wave_grid(3), dim3(32), DAMACY__ZSTD_LANES9_SHARED,
                     [&] { damacy_zstd_literals_lanes9(w); });
        simt::launch(wave_grid(3), dim3(32), DAMACY__ZSTD_LANES10_SHARED,
                     [&] { damacy_zstd_literals_lanes10(w); });
    } else {
        w.flags |= DAMACY__ZSTD_FLAG_ONE_LIST;
    }
    if (how == WAVE_LANES && !is_eleven_split) {
        simt::launch(wave_grid(3), dim3(32), DAMACY__ZSTD_LANES11_SHARED,
                     [&] { damacy_zstd_literals_lanes11(w); });
    } else if (how == WAVE_SPLIT || is_eleven_split) {
        simt::launch(grid, dim3(128), DAMACY__ZSTD_SPLIT_SHARED(DAMACY__ZSTD_SHAPE_SPLIT),
                     [&] { damacy_zstd_literals_split(w); });
    } else if (how == WAVE_SPLIT_SMALL) {
        simt::launch(grid, dim3(128), DAMACY__ZSTD_SPLIT_SHARED(DAMACY__ZSTD_SHAPE_SPLIT_SMALL),
                     [&] { damacy_zstd_literals_split_small(w); });
    } else {
        simt::launch(grid, dim3(512), DAMACY__ZSTD_SPLIT_SHARED(DAMACY__ZSTD_SHAPE_SPLIT4),
                     [&] { damacy_zstd_literals_split4(w); });
    }
    simt::g.watch = nullptr;
}

// Blocks with too little room for records, in `percent` of all cases.
static inline void wave_take_room(const damacy__zstd_wave& w, uint32_t percent)
{
    for (uint32_t i = 0; i < damacy__zstd_counts(w)->n_blocks && percent; i++) {
        damacy__zstd_block& b = damacy__zstd_blocks(w)[i];
        if (b.type == DAMACY__ZSTD_SEQUENCES && simt::random() % 100 < percent) {
            b.record_capacity = (uint32_t)(simt::random() % (b.record_capacity + 1));
        }
    }
}

// The first lists, with that of literals by shares.
static inline void wave_order(damacy__zstd_wave w, int how, uint32_t early)
{
    const bool is_one = how != WAVE_LANES;
    w.flags |= is_one ? DAMACY__ZSTD_FLAG_ONE_LIST | early : 0;
    simt::launch(is_one ? dim3(3) : wave_grid(3), dim3(1024), 0, [&] { damacy_zstd_order(w); });
}

// What needs no places of blocks: trees, lists and, if they are early, literals.
static inline std::string wave_early(damacy__zstd_wave w, const wave_options& o, uint32_t early)
{
    const int how = o.literals;
    const damacy__zstd_counters& c = *damacy__zstd_counts(w);
    w.flags |= early;
    simt::launch(wave_grid(3), dim3(64), 0, [&] { damacy_zstd_trees(w); });
    if (how == WAVE_LANES) {
        w.flags |= DAMACY__ZSTD_FLAG_LITERALS;
        simt::launch(dim3(1), dim3(1024), 0, [&] { damacy_zstd_order(w); });
    }
    if (!(early & DAMACY__ZSTD_FLAG_EARLY))
        return "";
    wave_literals(w, how, o.races);
    const uint32_t eighths = w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE ? 9 : 6;
    const bool are_few = 8 * c.n_literal_bytes < eighths * c.n_records;
    const bool may_be = are_few || !(w.flags & DAMACY__ZSTD_FLAG_EARLY_FEW);
    for (const uint32_t n : c.n_literal_blocks) {
        if (n && !may_be)
            return "literals are early although they are many";
    }
    for (uint32_t i = 0; i < c.n_late_blocks[0] && may_be; i++) {
        const uint32_t* const late = (const uint32_t*)(uintptr_t)w.literal_order[0] + w.max_blocks;
        if (damacy__zstd_blocks(w)[late[-1 - (int)i]].type == DAMACY__ZSTD_SEQUENCES)
            return "literals are late although they are few";
    }
    return "";
}

// Sequences to records, in the shape and of the kind that the wave's flags name.
static inline void wave_fse(const damacy__zstd_wave& w)
{
    const bool by_sequence = w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE;
    const bool is_few = w.flags & DAMACY__ZSTD_FLAG_FSE_LATENCY;
    void (*const kernel)(damacy__zstd_wave) = by_sequence && is_few ? damacy_zstd_blosc_fse_few
                                              : by_sequence         ? damacy_zstd_blosc_fse
                                              : is_few              ? damacy_zstd_fse_few
                                                                    : damacy_zstd_fse;
    simt::launch(wave_grid(2), dim3(256),
                 is_few ? DAMACY__ZSTD_FSE_LATENCY_SHARED : DAMACY__SHARED_MAX, [&] { kernel(w); });
}

// A shape of execution: its kernels for records of segments and of sequences, null where there is
// none.
struct wave_shape {
    uint32_t flag, threads, shared;
    void (*kernel)(damacy__zstd_wave);
    void (*blosc_kernel)(damacy__zstd_wave);
};
static const wave_shape wave_shapes[] = {
    {DAMACY__ZSTD_EXECUTE_1024X3, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_1024X3),
     damacy_zstd_execute_1024x3, damacy_zstd_blosc_1024x3},
    {DAMACY__ZSTD_EXECUTE_256X4, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_256X4),
     damacy_zstd_execute_256x4, damacy_zstd_blosc_256x4},
    {DAMACY__ZSTD_EXECUTE_128X4, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_128X4),
     damacy_zstd_execute_128x4, nullptr},
    {DAMACY__ZSTD_EXECUTE_128X4_3K, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_128X4_3K),
     damacy_zstd_execute_128x4_3k, damacy_zstd_blosc_128x4_3k},
    {DAMACY__ZSTD_EXECUTE_128X2, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_128X2),
     damacy_zstd_execute_128x2, nullptr},
    {DAMACY__ZSTD_EXECUTE_128X2_SERIAL, DAMACY__ZSTD_SERIAL_NEEDS(DAMACY__ZSTD_SHAPE_128X2_SERIAL),
     damacy_zstd_execute_128x2_serial, damacy_zstd_blosc_128x2_serial},
    {DAMACY__ZSTD_EXECUTE_64X4_SERIAL, DAMACY__ZSTD_SERIAL_NEEDS(DAMACY__ZSTD_SHAPE_64X4_SERIAL),
     damacy_zstd_execute_64x4_serial, damacy_zstd_blosc_64x4_serial},
    {DAMACY__ZSTD_EXECUTE_256X2_SERIAL, DAMACY__ZSTD_SERIAL_NEEDS(DAMACY__ZSTD_SHAPE_256X2_SERIAL),
     nullptr, damacy_zstd_blosc_256x2_serial}};

// Runs the variants of execution that the wave's flags name.
static inline void wave_execute(const damacy__zstd_wave& w)
{
    if (w.flags & DAMACY__ZSTD_EXECUTE_LINKS) {
        simt::launch(wave_grid(3), dim3(256), 0, [&] { damacy_zstd_link(w); });
        simt::launch(wave_grid(3), dim3(256), 0, [&] { damacy_zstd_jump(w); });
    }
    const uint32_t relays = DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE;
    if (w.flags & relays) { // blocks of threads that pass on tiles, by turns
        const unsigned n = 1 + (unsigned)(simt::random() % 4);
        const unsigned n_resident = 1 + (unsigned)(simt::random() % n);
        const bool by_sequence = w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE;
        const auto cut = by_sequence ? damacy_zstd_blosc_cut : damacy_zstd_cut;
        const auto relay = by_sequence ? damacy_zstd_blosc_relay : damacy_zstd_relay;
        const auto wide = by_sequence ? damacy_zstd_blosc_relay_wide : damacy_zstd_relay_wide;
        simt::launch(wave_grid(3), dim3(1024), 0, [&] { cut(w); });
        simt::launch_together(dim3(n), dim3(damacy__relay_best::THREADS),
                              damacy__relay_best::RELAY_SIZE, n_resident, [&] { relay(w); });
        simt::launch_together(dim3(n), dim3(damacy__relay_wide::THREADS),
                              damacy__relay_wide::RELAY_SIZE, n_resident, [&] { wide(w); });
    }
    if (w.flags & DAMACY__ZSTD_FLAG_APART) {
        damacy__zstd_wave apart = w;
        const unsigned n = 1 + (unsigned)(simt::random() % 4);
        apart.flags |= DAMACY__ZSTD_EXECUTE_WIDE;
        simt::launch(wave_grid(3), dim3(1024), 0, [&] { damacy_zstd_cut(apart); });
        simt::launch_together(dim3(n), dim3(damacy__relay_wide::THREADS),
                              damacy__relay_wide::RELAY_SIZE, 1 + (unsigned)(simt::random() % n),
                              [&] { damacy_zstd_relay_wide(apart); });
    }
    for (const wave_shape& shape : wave_shapes) {
        const auto kernel =
            w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE ? shape.blosc_kernel : shape.kernel;
        if (w.flags & shape.flag) {
            simt::launch(wave_grid(3), dim3(shape.threads), shape.shared, [&] { kernel(w); });
        }
    }
}

// Decodes the jobs as one wave. Returns what an invariant between stages says, or "".
static inline std::string wave_run(std::vector<wave_job>& jobs, const wave_options& o)
{
    const uint32_t n = (uint32_t)jobs.size();
    uint64_t src_size = 0, most_records = 16, most_literals = 32, links_size = 0;
    std::vector<wave_memory> in, out;
    std::vector<damacy__job> table(n);
    damacy__zstd_wave w;
    std::string wrong;

    for (uint32_t i = 0; i < n; i++) {
        wave_job& j = jobs[i];
        in.emplace_back(j.src.size(), j.skew, (uint8_t)0x77);
        if (!j.src.empty()) {
            memcpy(in.back().ptr, j.src.data(), j.src.size());
        }
        out.emplace_back((size_t)j.capacity + 2 * WAVE_CANARY, j.skew * 7 % 16, (uint8_t)0xa5);
        table[i].src = (uint64_t)(uintptr_t)in.back().ptr;
        table[i].src_size = j.src.size();
        table[i].dst = (uint64_t)(uintptr_t)(out.back().ptr + WAVE_CANARY);
        table[i].dst_capacity = j.capacity;
        table[i].expected_size = j.expected;
        table[i].flags = j.flags;
        table[i].tag = 0;
        src_size += j.src.size();
        links_size += o.flags & DAMACY__ZSTD_EXECUTE_LINKS ? 4 * (j.capacity + 4) : 0;
        // no legal block has more
        most_records += (j.src.size() / 5 + 1) * (2 * DAMACY__ZSTD_SEQUENCES_MAX + 17);
        most_literals += (j.src.size() / 5 + 1) * DAMACY__ZSTD_BLOCK_MAX;
    }
    memset(&w, 0, sizeof w);
    w.max_jobs = n;
    w.max_frames = o.max_frames ? o.max_frames : (uint32_t)(src_size / 9 + 1);
    w.max_blocks = o.max_blocks ? o.max_blocks : (uint32_t)(src_size / 4 + 1);
    w.max_records = o.max_records
                        ? o.max_records
                        : std::min<uint64_t>(most_records + most_literals / 8, 16 << 20) & ~15ull;
    w.flags = o.flags;
    wave_memory results(n * sizeof(damacy__job_result), 0, 0xee), errors(8ull * n, 0, 0xee);
    wave_memory spans(n * sizeof(damacy__zstd_span), 0, 0xee);
    wave_memory sums(DAMACY__ZSTD_PARTS * sizeof(damacy__zstd_sum), 0, 0xee);
    wave_memory counters(sizeof(damacy__zstd_counters), 0, 0xee);
    wave_memory frames(w.max_frames * sizeof(damacy__zstd_frame), 0, 0xee);
    wave_memory blocks(w.max_blocks * sizeof(damacy__zstd_block), 0, 0xee);
    wave_memory trees(w.max_blocks * sizeof(damacy__zstd_tree), 0, 0xee);
    wave_memory keys(w.max_blocks * sizeof(damacy__zstd_key), 0, 0xee);
    wave_memory logs(4ull * w.max_blocks, 0, 0xee);
    wave_memory order0(4ull * w.max_blocks, 0, 0xee), order1(4ull * w.max_blocks, 0, 0xee);
    wave_memory order2(4ull * w.max_blocks, 0, 0xee), order3(4ull * w.max_blocks, 0, 0xee);
    wave_memory list(4ull * w.max_frames, 0, 0xee);
    wave_memory pool((size_t)w.max_records * 8 + 128, 0, 0xee);
    wave_memory links((size_t)links_size, 0, 0xee);
    w.jobs = (uint64_t)(uintptr_t)table.data();
    w.n_jobs = (uint64_t)(uintptr_t)&n;
    w.results = (uint64_t)(uintptr_t)results.ptr;
    w.errors = (uint64_t)(uintptr_t)errors.ptr;
    w.spans = (uint64_t)(uintptr_t)spans.ptr;
    w.sums = (uint64_t)(uintptr_t)sums.ptr;
    w.counters = (uint64_t)(uintptr_t)counters.ptr;
    w.frames = (uint64_t)(uintptr_t)frames.ptr;
    w.blocks = (uint64_t)(uintptr_t)blocks.ptr;
    w.trees = (uint64_t)(uintptr_t)trees.ptr;
    w.keys = (uint64_t)(uintptr_t)keys.ptr;
    w.logs = (uint64_t)(uintptr_t)logs.ptr;
    w.sequence_order = (uint64_t)(uintptr_t)order0.ptr;
    w.literal_order[0] = (uint64_t)(uintptr_t)order1.ptr;
    w.literal_order[1] = (uint64_t)(uintptr_t)order2.ptr;
    w.literal_order[2] = (uint64_t)(uintptr_t)order3.ptr;
    w.execute_list = (uint64_t)(uintptr_t)list.ptr;
    w.links = (uint64_t)(uintptr_t)links.ptr;
    w.links_size = links_size;
    w.literals = w.records = (uint64_t)(uintptr_t)pool.ptr + 64;

    simt::g.seed = o.seed * 2 + 1;
    const dim3 walkers(simt::random() % 2 ? 128 : 32); // a warp for each job, or fewer threads
    simt::launch(wave_grid(3), walkers, 0, [&] { damacy_zstd_count(w); });
    simt::launch(wave_grid(3), walkers, 0, [&] { damacy_zstd_fill(w); });
    wave_take_room(w, o.percent_short);
    const uint32_t few = simt::random() % 2 ? DAMACY__ZSTD_FLAG_EARLY_FEW : 0; // alone: nothing
    const uint32_t early = few | (o.seed % 4 == 1 || o.seed % 4 == 2 ? DAMACY__ZSTD_FLAG_EARLY : 0);
    // neither waits for the other, nor do places of blocks wait for literals by shares
    const bool is_first = o.seed % 2, is_last = o.seed % 4 == 2 && o.literals != WAVE_LANES;
    const bool is_between = !is_first && !is_last;
    wave_order(w, o.literals, early);
    if (is_first)
        wrong = wave_early(w, o, early);
    simt::launch(wave_grid(3), dim3(64), 0, [&] { damacy_zstd_tables(w); });
    wave_fse(w);
    if (is_between)
        wrong = wave_early(w, o, early);
    simt::launch(wave_grid(3), dim3(128), 0, [&] { damacy_zstd_resolve(w); });
    if (!is_between)
        simt::launch(wave_grid(3), dim3(256), 0, [&] { damacy_zstd_place(w); });
    if (is_last)
        wrong = wave_early(w, o, early);
    w.flags |= DAMACY__ZSTD_FLAG_LATE;
    wave_literals(w, o.literals, o.races);
    w.flags &= ~DAMACY__ZSTD_FLAG_LATE;
    if (is_between)
        simt::launch(wave_grid(3), dim3(256), 0, [&] { damacy_zstd_place(w); });
    if (wrong.empty())
        wrong = wave_check_records(w);
    wave_execute(w);
    wave_finish(w, n, &wrong);
    if (o.counters)
        *o.counters = *damacy__zstd_counts(w);
    for (uint32_t i = 0; i < n; i++) {
        wave_job& j = jobs[i];
        const uint8_t* const p = out[i].ptr;
        j.result = ((const damacy__job_result*)results.ptr)[i];
        j.canary = true;
        for (size_t k = 0; k < WAVE_CANARY; k++) {
            j.canary = j.canary && p[k] == 0xa5 && p[WAVE_CANARY + j.capacity + k] == 0xa5;
        }
        j.out.assign(p + WAVE_CANARY,
                     p + WAVE_CANARY + (j.result.status == DAMACY__JOB_OK ? j.result.size : 0));
    }
    return wrong;
}
