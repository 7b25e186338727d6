// Sequence execution on the CPU against a scalar executor: random, real and adversarial records of
// both kinds, every variant, outputs at any alignment in allocations of their exact size, other
// blocks between those with sequences, bad offsets among good frames.
#include "tests/simt/simt.h"
#include "kernels/zstd_exec.cuh"
#include "kernels/zstd_exec_link.cuh"
#include "kernels/zstd_exec_relay.cuh"
#include "kernels/zstd_place.cuh"
#include "tests/test.h"
#include <algorithm>
#include <memory>
#include <vector>

typedef std::vector<uint8_t> bytes;

// A block: its records and literals, or (no records) bytes that are in the output already.
struct block {
    std::vector<uint64_t> records;
    bytes literals;
    uint32_t size;
};

// A frame that is built up segment by segment together with its expected output.
struct frame {
    std::vector<block> blocks;
    bytes expected;
    bool bad = false;

    void begin()
    {
        blocks.push_back(block{{}, {}, 0});
    }
    void stored(const bytes& b)
    {
        begin();
        blocks.back().size = (uint32_t)b.size();
        expected.insert(expected.end(), b.begin(), b.end());
    }
    void literals(const bytes& b)
    {
        block& x = blocks.back();
        if (b.empty())
            return;
        x.records.push_back(x.size | (uint64_t)(b.size() - 1) << 17 |
                            (uint64_t)(DAMACY__ZSTD_D_LITERALS | x.literals.size()) << 34);
        x.literals.insert(x.literals.end(), b.begin(), b.end());
        x.size += (uint32_t)b.size();
        expected.insert(expected.end(), b.begin(), b.end());
    }
    void match(uint32_t offset, uint32_t n)
    {
        block& x = blocks.back();
        x.records.push_back(x.size | (uint64_t)(n - 1) << 17 | (uint64_t)offset << 34);
        x.size += n;
        bad = bad || offset == 0 || offset > expected.size();
        for (uint32_t i = 0; i < n; i++)
            expected.push_back(bad ? 0 : expected[expected.size() - offset]);
    }
    uint32_t room() const
    {
        return DAMACY__ZSTD_BLOCK_MAX - blocks.back().size;
    }
};

// The records of a block, of sequences: a run of literals and the match behind it.
static std::vector<uint64_t> sequences_of(const block& x)
{
    std::vector<uint64_t> out;
    uint64_t literals = 0, run = DAMACY__ZSTD_NONE; // where the run at hand begins, and its place
    uint64_t run_literals = 0;
    for (const uint64_t record : x.records) {
        const uint64_t start = record & 0x1ffff, d = record >> 34;
        if (run == DAMACY__ZSTD_NONE) {
            run = start;
            run_literals = literals;
        }
        if (d & DAMACY__ZSTD_D_LITERALS) {
            literals += (record >> 17 & 0x1ffff) + 1;
            continue;
        }
        out.push_back(run | run_literals << 17 | d << 34);
        run = DAMACY__ZSTD_NONE;
    }
    if (run != DAMACY__ZSTD_NONE)
        out.push_back(run | run_literals << 17);
    return out;
}

static bytes noise(uint64_t* seed, size_t n)
{
    bytes b(n);
    for (uint8_t& x : b)
        x = (uint8_t)test_random(seed);
    return b;
}

// ---- variants ----

typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_1024X3> tile_1024x3;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_256X4> tile_256x4;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_128X4> tile_128x4;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_128X4_3K> tile_128x4_3k;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_128X2> tile_128x2;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_128X2_SERIAL, true> serial_128x2;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_64X4_SERIAL, true> serial_64x4;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_1024X3, false, true> blosc_1024x3;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_256X4, false, true> blosc_256x4;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_128X4_3K, false, true> blosc_128x4_3k;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_128X2_SERIAL, true, true> blosc_128x2;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_64X4_SERIAL, true, true> blosc_64x4;
typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_256X2_SERIAL, true, true> blosc_256x2;

template <class shape>
static void run_shape(const damacy__zstd_wave& w, uint32_t variant, uint32_t n_blocks)
{
    simt::launch(dim3(n_blocks), dim3(shape::THREADS), shape::SIZE, [&] {
        DAMACY__DYNAMIC_SHARED(shared);
        damacy__zstd_execute<shape>(w, variant, shared);
    });
}
// The one shape that is launched, frames in turns: each is given back at the end of a block if
// another waits. Blocks of threads go on by turns, too.
static uint64_t n_blocks_before; // that were done when a frame was taken the last time
template <class shape, uint32_t VARIANT> static void run_turns(const damacy__zstd_wave& wave)
{
    damacy__zstd_wave w = wave;
    const unsigned n = 1 + (unsigned)(simt::random() % 5);
    w.flags = VARIANT | DAMACY__ZSTD_FLAG_TURNS;
    simt::launch_together(dim3(n), dim3(shape::THREADS), shape::SIZE,
                          1 + (unsigned)(simt::random() % n), [&] {
                              DAMACY__DYNAMIC_SHARED(shared);
                              damacy__zstd_execute<shape>(w, VARIANT, shared);
                          });
    const damacy__zstd_counters& c = *damacy__zstd_counts(w);
    CHECK_EQ(c.n_taken, c.n_execute);
    CHECK_EQ(c.n_ended, c.n_execute);
    for (uint32_t i = 0; i < c.n_execute; i++) {
        CHECK(*damacy__turn_of(w, i) & DAMACY__TURN_TAKEN);
        n_blocks_before += *damacy__turn_of(w, i) >> 1;
    }
}
// The one shape that is launched, in turns or not.
template <class shape, uint32_t VARIANT> static void run_alone(const damacy__zstd_wave& wave)
{
    if (simt::random() % 2) {
        run_turns<shape, VARIANT>(wave);
        return;
    }
    damacy__zstd_wave w = wave;
    w.flags = VARIANT | (simt::random() % 2 ? DAMACY__ZSTD_FLAG_SHARED : 0);
    run_shape<shape>(w, VARIANT, 1 + (uint32_t)(simt::random() % 5));
}
// By 8 blocks of threads, and how many frames these have shared or taken in line.
static uint32_t grid_flag, n_taken, next_entry;
static void run_grid(const damacy__zstd_wave& wave)
{
    damacy__zstd_wave w = wave;
    w.flags = DAMACY__ZSTD_FLAG_BY_SEQUENCE | DAMACY__ZSTD_EXECUTE_64X4_SERIAL | grid_flag;
    run_shape<blosc_64x4>(w, DAMACY__ZSTD_EXECUTE_64X4_SERIAL, 8);
    n_taken = damacy__zstd_counts(w)->n_taken;
    next_entry = damacy__zstd_counts(w)->next_entry;
}
static void run_links(const damacy__zstd_wave& wave)
{
    damacy__zstd_wave w = wave;
    w.flags = DAMACY__ZSTD_EXECUTE_LINKS;
    simt::launch(dim3(3), dim3(DAMACY__LINK_THREADS), [&] { damacy__zstd_link(w); });
    simt::launch(dim3(5), dim3(DAMACY__LINK_THREADS), [&] { damacy__zstd_jump(w); });
}
// Blocks of threads go on by turns, n_resident at a time.
template <class shape>
static void run_relay_of(const damacy__zstd_wave& wave, unsigned n, unsigned n_resident)
{
    damacy__zstd_wave w = wave;
    w.flags = (w.flags & DAMACY__ZSTD_FLAG_APART) |
              (shape::BY_SEQUENCE ? DAMACY__ZSTD_FLAG_BY_SEQUENCE : 0) |
              (shape::IS_WIDE ? DAMACY__ZSTD_EXECUTE_WIDE : DAMACY__ZSTD_EXECUTE_RELAY);
    const unsigned n_warps = 1 + (unsigned)(simt::random() % 4);
    simt::launch(dim3(1 + (unsigned)(simt::random() % 4)), dim3(32 * n_warps),
                 [&] { damacy__zstd_cut<shape>(w); });
    simt::launch_together(dim3(n), dim3(shape::THREADS), shape::RELAY_SIZE, n_resident, [&] {
        DAMACY__DYNAMIC_SHARED(shared);
        damacy__zstd_relay<shape>(w, shared);
    });
}
template <class shape> static void run_relay(const damacy__zstd_wave& w)
{
    const unsigned n = 1 + (unsigned)(simt::random() % 6);
    run_relay_of<shape>(w, n, 1 + (unsigned)(simt::random() % n));
}
template <class shape> static void run_relay_crowd(const damacy__zstd_wave& w)
{
    run_relay_of<shape>(w, simt::random() % 2 ? 7 : 13, 5);
}
// Both, of which one has frames at most.
template <class best, class wide> static void run_relays(const damacy__zstd_wave& w)
{
    simt::launch(dim3(2), dim3(1024), [&] { damacy__zstd_cut<best>(w); });
    const auto relay = [&](auto t) {
        simt::launch(dim3(2), dim3(decltype(t)::THREADS), decltype(t)::RELAY_SIZE, [&] {
            DAMACY__DYNAMIC_SHARED(shared);
            damacy__zstd_relay<decltype(t)>(w, shared);
        });
    };
    relay(best());
    relay(wide());
}
// As a launcher does: all of them, one after another.
static void run_all(const damacy__zstd_wave& wave)
{
    static const uint32_t flags[] = {
        DAMACY__ZSTD_EXECUTE_LINKS | DAMACY__ZSTD_EXECUTE_128X4_3K,
        DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_128X4,
        DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X4_3K,
        DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_128X2 | DAMACY__ZSTD_EXECUTE_128X2_SERIAL,
        DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_64X4_SERIAL,
        DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_RELAY,
        DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE};
    damacy__zstd_wave w = wave;
    w.flags = flags[simt::random() % 7];
    simt::launch(dim3(2), dim3(DAMACY__LINK_THREADS), [&] { damacy__zstd_link(w); });
    simt::launch(dim3(2), dim3(DAMACY__LINK_THREADS), [&] { damacy__zstd_jump(w); });
    run_shape<tile_256x4>(w, DAMACY__ZSTD_EXECUTE_256X4, 2);
    run_shape<tile_128x4>(w, DAMACY__ZSTD_EXECUTE_128X4, 2);
    run_shape<tile_128x4_3k>(w, DAMACY__ZSTD_EXECUTE_128X4_3K, 2);
    run_shape<tile_128x2>(w, DAMACY__ZSTD_EXECUTE_128X2, 2);
    run_shape<serial_128x2>(w, DAMACY__ZSTD_EXECUTE_128X2_SERIAL, 2);
    run_shape<serial_64x4>(w, DAMACY__ZSTD_EXECUTE_64X4_SERIAL, 2);
    run_shape<tile_1024x3>(w, DAMACY__ZSTD_EXECUTE_1024X3, 2);
    run_relays<damacy__relay_best, damacy__relay_wide>(w);
}
// The same of blosc chunks.
static void run_blosc_all(const damacy__zstd_wave& wave)
{
    static const uint32_t flags[] = {DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_256X4 |
                                         DAMACY__ZSTD_EXECUTE_256X2_SERIAL,
                                     DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_RELAY |
                                         DAMACY__ZSTD_EXECUTE_WIDE |
                                         DAMACY__ZSTD_EXECUTE_128X2_SERIAL,
                                     DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_SERIAL,
                                     DAMACY__ZSTD_EXECUTE_128X4_3K | DAMACY__ZSTD_EXECUTE_SERIAL};
    damacy__zstd_wave w = wave;
    w.flags = DAMACY__ZSTD_FLAG_BY_SEQUENCE | flags[simt::random() % 4];
    run_shape<blosc_1024x3>(w, DAMACY__ZSTD_EXECUTE_1024X3, 2);
    run_shape<blosc_256x4>(w, DAMACY__ZSTD_EXECUTE_256X4, 2);
    run_shape<blosc_128x4_3k>(w, DAMACY__ZSTD_EXECUTE_128X4_3K, 2);
    run_shape<blosc_128x2>(w, DAMACY__ZSTD_EXECUTE_128X2_SERIAL, 2);
    run_shape<blosc_64x4>(w, DAMACY__ZSTD_EXECUTE_64X4_SERIAL, 2);
    run_shape<blosc_256x2>(w, DAMACY__ZSTD_EXECUTE_256X2_SERIAL, 2);
    run_relays<damacy__relay_blosc, damacy__relay_blosc_wide>(w);
}
struct variant {
    void (*run)(const damacy__zstd_wave& w);
    bool by_sequence; // its records are of sequences
    uint32_t tile;    // bytes, of one of its shapes
    void (*run_turns)(const damacy__zstd_wave& w) = nullptr; // likewise, if frames can take turns
};
template <class shape, uint32_t VARIANT> static variant alone()
{
    return {run_alone<shape, VARIANT>, shape::BY_SEQUENCE, shape::TILE, run_turns<shape, VARIANT>};
}
template <class shape>
static variant relayed(void (*run)(const damacy__zstd_wave& w) = run_relay<shape>)
{
    return {run, shape::BY_SEQUENCE, shape::TILE};
}
static const variant everything = {run_all, false, 4096},
                     all_of_blosc = {run_blosc_all, true, 6144};
static const variant variants[] = {alone<tile_256x4, DAMACY__ZSTD_EXECUTE_256X4>(),
                                   alone<tile_128x4, DAMACY__ZSTD_EXECUTE_128X4>(),
                                   alone<tile_128x4_3k, DAMACY__ZSTD_EXECUTE_128X4_3K>(),
                                   alone<tile_1024x3, DAMACY__ZSTD_EXECUTE_1024X3>(),
                                   {run_links, false, 3072},
                                   everything,
                                   relayed<damacy__relay_best>(),
                                   relayed<damacy__relay_wide>(),
                                   relayed<damacy__relay_blosc>(),
                                   relayed<damacy__relay_blosc_wide>(),
                                   alone<tile_128x2, DAMACY__ZSTD_EXECUTE_128X2>(),
                                   alone<serial_128x2, DAMACY__ZSTD_EXECUTE_128X2_SERIAL>(),
                                   alone<serial_64x4, DAMACY__ZSTD_EXECUTE_64X4_SERIAL>(),
                                   alone<blosc_128x2, DAMACY__ZSTD_EXECUTE_128X2_SERIAL>(),
                                   alone<blosc_64x4, DAMACY__ZSTD_EXECUTE_64X4_SERIAL>(),
                                   alone<blosc_256x2, DAMACY__ZSTD_EXECUTE_256X2_SERIAL>(),
                                   alone<blosc_256x4, DAMACY__ZSTD_EXECUTE_256X4>(),
                                   alone<blosc_128x4_3k, DAMACY__ZSTD_EXECUTE_128X4_3K>(),
                                   alone<blosc_1024x3, DAMACY__ZSTD_EXECUTE_1024X3>(),
                                   all_of_blosc};
static const uint32_t n_variants = sizeof variants / sizeof variants[0];

// ---- harness ----

// Executes the frames, a job each, and compares bytes and errors. `skew`: of the first output.
static void check_frames(const std::vector<frame>& frames, const variant& v, uint32_t skew)
{
    const uint32_t n = (uint32_t)frames.size();
    std::vector<std::unique_ptr<uint8_t[]>> outputs, literals;
    std::vector<damacy__job> jobs(n);
    std::vector<damacy__zstd_frame> table(n);
    std::vector<damacy__zstd_span> spans(n);
    std::vector<damacy__zstd_block> blocks;
    std::vector<uint64_t> records, errors(n, DAMACY__ZSTD_NO_ERROR);
    std::vector<uint32_t> list;
    size_t total = 0;
    memset((void*)jobs.data(), 0, n * sizeof jobs[0]);
    memset((void*)table.data(), 0, n * sizeof table[0]);
    memset((void*)spans.data(), 0, n * sizeof spans[0]);
    for (uint32_t i = 0; i < n; i++) {
        const frame& f = frames[i];
        const uint32_t at = (skew + i) % 16;
        outputs.emplace_back(new uint8_t[at + f.expected.size()]);
        uint8_t* dst = outputs.back().get() + at;
        memset(outputs.back().get(), 0xa5, at + f.expected.size());
        table[i].dst = (uint64_t)(uintptr_t)dst;
        table[i].job = i;
        table[i].first_block = (uint32_t)blocks.size();
        table[i].n_blocks = (uint32_t)f.blocks.size();
        table[i].size = (uint32_t)f.expected.size();
        spans[i].n_frames = 1;
        uint32_t position = 0;
        for (const block& x : f.blocks) {
            damacy__zstd_block b;
            memset((void*)&b, 0, sizeof b);
            b.frame = i;
            b.type = x.records.empty() ? DAMACY__ZSTD_RAW : DAMACY__ZSTD_SEQUENCES;
            b.size = x.size;
            b.position = position;
            b.dst = table[i].dst + position;
            if (x.records.empty()) {
                memcpy(dst + position, f.expected.data() + position, x.size);
            } else {
                // three bytes on either side: literals in a source have them too
                literals.emplace_back(new uint8_t[x.literals.size() + 6 + i % 4]);
                uint8_t* p = literals.back().get() + 3 + i % 4;
                if (!x.literals.empty())
                    memcpy(p, x.literals.data(), x.literals.size());
                b.literals = (uint64_t)(uintptr_t)p;
                b.n_literals = (uint32_t)x.literals.size();
                records.resize((records.size() + 15) & ~(size_t)15);
                b.first_record = records.size();
                const std::vector<uint64_t> own = v.by_sequence ? sequences_of(x) : x.records;
                b.n_records = (uint32_t)own.size();
                records.insert(records.end(), own.begin(), own.end());
                table[i].n_records += b.n_records;
                table[i].n_sequence_blocks++;
            }
            position += x.size;
            blocks.push_back(b);
        }
        if (table[i].n_sequence_blocks)
            list.push_back(i);
        total += (f.expected.size() + 3) & ~(size_t)3;
    }
    for (size_t i = list.size(); i > 1; i--)
        std::swap(list[i - 1], list[simt::random() % i]);
    std::vector<uint32_t> links(total, 0xdeadbeef), order(blocks.size(), 0xdeadbeef);
    std::vector<damacy__zstd_tree> trees(blocks.size());
    damacy__zstd_counters counters;
    damacy__zstd_wave w;
    memset(&counters, 0, sizeof counters);
    memset(&w, 0, sizeof w);
    counters.n_execute = (uint32_t)list.size();
    w.jobs = (uint64_t)(uintptr_t)jobs.data();
    w.errors = (uint64_t)(uintptr_t)errors.data();
    w.spans = (uint64_t)(uintptr_t)spans.data();
    w.counters = (uint64_t)(uintptr_t)&counters;
    w.frames = (uint64_t)(uintptr_t)table.data();
    w.blocks = (uint64_t)(uintptr_t)blocks.data();
    w.records = (uint64_t)(uintptr_t)records.data();
    w.execute_list = (uint64_t)(uintptr_t)list.data();
    w.sequence_order = (uint64_t)(uintptr_t)order.data();
    w.trees = (uint64_t)(uintptr_t)trees.data();
    w.links = (uint64_t)(uintptr_t)links.data();
    w.links_size = 4 * total;
    simt::launch(dim3(1), dim3(32), [&] { damacy__zstd_place_density(w); });
    v.run(w);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = (skew + i) % 16;
        const uint8_t* out = outputs[i].get();
        for (uint32_t k = 0; k < at; k++)
            CHECK_EQ(out[k], 0xa5);
        CHECK_EQ(errors[i] & 255, frames[i].bad ? (uint64_t)DAMACY__JOB_BAD_OFFSET : 255u);
        if (!frames[i].bad)
            for (size_t k = 0; k < frames[i].expected.size(); k++)
                if (out[at + k] != frames[i].expected[k]) {
                    printf("# frame %u of %u byte %zu of %zu\n", i, n, k,
                           frames[i].expected.size());
                    CHECK_EQ(out[at + k], frames[i].expected[k]);
                }
    }
}

// ---- frames ----

// Kinds: short matches, long ones, deep chains, overlaps, mostly literals.
static frame random_frame(uint64_t* seed, uint32_t kind, uint32_t size)
{
    frame f;
    while (f.expected.size() < size) {
        if (test_random(seed) % 4 == 0)
            f.stored(noise(seed, 1 + test_random(seed) % 100));
        f.begin();
        const uint32_t n =
            std::min<uint32_t>(size - (uint32_t)f.expected.size(), 1 + test_random(seed) % 30000);
        const size_t end = f.expected.size() + n;
        f.literals(noise(seed, 1 + test_random(seed) % 20));
        while (f.expected.size() < end && f.room() > 3000) {
            const uint64_t r = test_random(seed);
            const uint32_t have = (uint32_t)f.expected.size();
            uint32_t offset = 1 + (uint32_t)(r % have), length = 3 + (uint32_t)(r >> 32) % 6;
            if (kind == 1) {
                length = 3 + (uint32_t)(r >> 32) % 2000;
            } else if (kind == 2) {
                offset = 1 + (uint32_t)(r % std::min<uint32_t>(have, 12));
            } else if (kind == 3) {
                offset = 1 + (uint32_t)(r % std::min<uint32_t>(have, 40));
                length = 3 + (uint32_t)(r >> 32) % 300;
            }
            f.match(offset, length);
            const uint32_t n_literals = kind == 4 ? r >> 50 & 1023 : r >> 62 ? 0 : r >> 58 & 7;
            f.literals(noise(seed, n_literals));
        }
    }
    return f;
}

TEST(random_records_execute_as_by_a_scalar_loop)
{
    uint64_t seed = test_seed();
    for (uint32_t round = 0; round < 32; round++) {
        std::vector<frame> frames;
        for (uint32_t i = 0; i < 10; i++)
            frames.push_back(random_frame(
                &seed, (round + i) % 5, i % 3 ? (uint32_t)(test_random(&seed) % 3000) + 1 : 20000));
        simt::g.seed = seed;
        check_frames(frames, variants[round % n_variants], round);
    }
}

// With the inverse that the host takes, and with all that a device's reciprocal may lead to.
TEST(remainders_of_short_offsets_come_from_their_inverse)
{
    for (uint32_t offset = 1; offset < 32; offset++) {
        const uint32_t least = (16384 + offset - 1) / offset;
        CHECK(damacy__exec_inverse(offset) - least <= 1 && 16384 / offset + 1 - least <= 1);
        for (uint32_t inverse = least; inverse <= 16384 / offset + 1; inverse++)
            for (uint32_t k = 0; k <= 128; k++)
                CHECK_EQ(damacy__exec_modulo(k, offset, inverse), k % offset);
    }
}

// Matches of every kind of length with sources of every kind of distance, most in their own tile
// and many next to each other, now reading what the one before has copied, now what several have.
TEST(matches_that_read_their_own_tile_give_what_a_scalar_loop_does)
{
    uint64_t seed = test_seed();
    for (uint32_t v = 0; v < n_variants; v++) {
        std::vector<frame> frames;
        for (uint32_t i = 0; i < 6; i++) {
            frame f;
            f.begin();
            f.literals(noise(&seed, 1 + test_random(&seed) % 200));
            while (f.expected.size() < 24000) {
                const uint32_t r = (uint32_t)test_random(&seed), longest = i % 3 ? i % 3 : 4;
                const uint32_t lengths[] = {3 + r % 6, 9 + r % 24, 33 + r % 96, 129 + r % 400};
                const uint32_t far = (uint32_t)test_random(&seed);
                const uint32_t distances[] = {1 + far % 31, 32 + far % 96, 128 + far % 500,
                                              1 + far % 5000};
                f.match(std::min<uint32_t>(distances[r >> 20 & 3], (uint32_t)f.expected.size()),
                        lengths[(r >> 8) % longest]);
                if ((r >> 16) % 4 == 0)
                    f.literals(noise(&seed, 1 + (r >> 24) % (i < 3 ? 4 : 40)));
            }
            frames.push_back(f);
        }
        simt::g.seed = seed;
        check_frames(frames, variants[v], v);
    }
}

TEST(overlaps_of_every_offset_and_length_at_every_alignment)
{
    uint64_t seed = test_seed();
    for (uint32_t v = 0; v < n_variants; v++) {
        std::vector<frame> frames;
        for (uint32_t offset = 1; offset <= 40; offset++) {
            frame f;
            f.begin();
            f.literals(noise(&seed, offset));
            for (uint32_t n = 3; n < 80 && f.room() > 400; n += 1 + offset % 3) {
                f.match(offset, n);
                if (n % 4 == 0)
                    f.literals(noise(&seed, 1 + n % 5));
                if (n % 16 == 0)
                    f.match(offset, 300);
            }
            frames.push_back(f);
        }
        simt::g.seed = seed;
        check_frames(frames, variants[v], 3 * v);
    }
}

TEST(matches_that_begin_a_tile_read_the_end_of_the_one_before)
{
    uint64_t seed = test_seed();
    for (uint32_t v = 0; v < n_variants; v++) {
        std::vector<frame> frames;
        for (uint32_t n : {9u, 40u, 265u, 2000u})
            for (uint32_t gap : {0u, 1u, 7u, 15u, 16u, 31u}) {
                frame f;
                f.begin();
                f.literals(noise(&seed, variants[v].tile));
                for (uint32_t k = 0; k < 3; k++) {
                    f.match(n + gap, n);
                    f.literals(noise(&seed, variants[v].tile - n));
                }
                frames.push_back(f);
            }
        simt::g.seed = seed;
        check_frames(frames, variants[v], 5 * v);
    }
}

TEST(matches_that_go_on_over_tiles_repeat)
{
    uint64_t seed = test_seed();
    for (uint32_t v = 0; v < n_variants; v++) {
        std::vector<frame> frames;
        for (uint32_t offset : {1u, 2u, 3u, 5u, 8u, 15u, 16u, 31u, 100u, 1000u, 3071u, 4096u, 4097u,
                                7168u, 9999u, 16385u}) {
            frame f;
            f.begin();
            f.literals(noise(&seed, offset + (uint32_t)test_random(&seed) % 20));
            f.match(offset, 20000 + (uint32_t)test_random(&seed) % 40000);
            f.literals(noise(&seed, 1 + offset % 40));
            f.match(offset, 3 + (uint32_t)test_random(&seed) % 17000);
            frames.push_back(f);
        }
        simt::g.seed = seed;
        check_frames(frames, variants[v], 7 * v);
    }
}

// Of frames of 4 KB, half with 100 and half with 300 records per KB, of which the last have blocks
// without sequences.
TEST(densities_of_a_wave_are_the_mean_of_its_frames_and_that_of_the_first)
{
    for (uint32_t n : {0u, 1u, 2u, 31u, 32u, 640u, 6400u}) {
        std::vector<damacy__zstd_frame> frames(n); // zero
        std::vector<damacy__zstd_block> blocks(2); // zero
        std::vector<uint32_t> list(n);
        damacy__zstd_counters counters;
        damacy__zstd_wave w;
        memset(&counters, 0, sizeof counters);
        memset(&w, 0, sizeof w);
        for (uint32_t i = 0; i < n; i++) {
            list[i] = n - 1 - i;
            frames[i].size = 4096;
            frames[i].n_records = i < n / 2 ? 400 : 1200;
            frames[i].first_block = i < n / 2 ? 0 : 1;
        }
        blocks[0].type = DAMACY__ZSTD_SEQUENCES;
        blocks[0].n_literals = 512;
        blocks[0].size = blocks[1].size = 4096;
        blocks[1].type = DAMACY__ZSTD_RAW;
        counters.n_execute = n;
        w.counters = (uint64_t)(uintptr_t)&counters;
        w.frames = (uint64_t)(uintptr_t)frames.data();
        w.blocks = (uint64_t)(uintptr_t)blocks.data();
        w.execute_list = (uint64_t)(uintptr_t)list.data();
        simt::launch(dim3(1), dim3(32), [&] { damacy__zstd_place_density(w); });
        const uint32_t all = std::min(n, 32u), few = all / 2;
        CHECK_EQ(counters.density, all ? (100 * few + 300 * (all - few)) / all : 0);
        CHECK_EQ(counters.most_dense, all ? 300 : 0);
        CHECK_EQ(counters.mean_size, all ? 4096 : 0);
        CHECK_EQ(counters.literals, all ? (128 * few + 1024 * (all - few)) / all : 0);
    }
}

// Frames in the order of the list: how many of how many records; sizes of 512 KiB but for the last
// ones. n_records: of the wave.
struct apart_case {
    std::vector<std::pair<uint32_t, uint32_t>> records;
    uint64_t n_records;
    uint32_t n_small, n_apart;
};

static void check_apart(const apart_case& c)
{
    std::vector<damacy__zstd_frame> frames;
    std::vector<damacy__zstd_block> blocks(1); // zero
    damacy__zstd_counters counters;
    damacy__zstd_wave w;
    memset(&counters, 0, sizeof counters);
    memset(&w, 0, sizeof w);
    for (const auto& r : c.records)
        for (uint32_t i = 0; i < r.first; i++) {
            damacy__zstd_frame f;
            memset((void*)&f, 0, sizeof f);
            f.n_records = r.second;
            f.size = 512 << 10;
            frames.push_back(f);
        }
    const uint32_t n = (uint32_t)frames.size(), first = 3; // of the table in the list
    frames.insert(frames.begin(), first, damacy__zstd_frame());
    std::vector<uint32_t> list(n), apart(n, 0xdeadbeef);
    for (uint32_t i = 0; i < n; i++)
        list[i] = first + i;
    for (uint32_t i = 0; i < c.n_small; i++)
        frames[first + n - 1 - i].size = 2 * DAMACY__ZSTD_BLOCK_MAX;
    counters.n_execute = n;
    counters.n_records = c.n_records;
    w.flags = DAMACY__ZSTD_FLAG_APART;
    w.counters = (uint64_t)(uintptr_t)&counters;
    w.frames = (uint64_t)(uintptr_t)frames.data();
    w.blocks = (uint64_t)(uintptr_t)blocks.data();
    w.keys = (uint64_t)(uintptr_t)apart.data();
    w.execute_list = (uint64_t)(uintptr_t)list.data();
    simt::launch(dim3(1), dim3(32), [&] { damacy__zstd_place_density(w); });
    CHECK_EQ(counters.n_apart, c.n_apart);
    CHECK_EQ(counters.n_execute, n - c.n_apart);
    for (uint32_t i = 0; i < c.n_apart; i++)
        CHECK_EQ(apart[i], first + i);
    list.resize(counters.n_execute);
    if (list.empty()) {
        CHECK_EQ(counters.most_dense, 0);
    } else {
        const damacy__zstd_frame& most = frames[first + c.n_apart];
        CHECK_EQ(counters.most_dense, most.n_records / 16 * 1024 / (most.size / 16));
    }
    std::sort(list.begin(), list.end());
    for (uint32_t i = 0; i < list.size(); i++)
        CHECK_EQ(list[i], first + c.n_apart + i);
}

// More than one of 264 parts of all records, and of three parts of what the largest has.
TEST(frames_much_larger_than_others_are_listed_apart)
{
    check_apart({{}, 0, 0, 0});
    check_apart({{{1, 9000}}, 9000, 0, 1});
    check_apart({{{700, 9000}}, 700 * 9000, 0, 0});
    check_apart({{{31, 90000}, {50, 9000}}, 100000, 0, 31});
    check_apart({{{32, 90000}, {50, 9000}}, 100000, 0, 32});
    check_apart({{{33, 90000}, {50, 9000}}, 100000, 0, 33});
    check_apart({{{33, 90000}, {50, 9000}}, 90000 * 264, 0, 0});
    check_apart({{{33, 90000}, {50, 9000}}, 90000 * 264 - 1, 0, 33});
    check_apart({{{100, 90000}, {3, 9000}}, 100000, 0, 100});
    check_apart({{{64, 90000}}, 100000, 0, 64});
    check_apart({{{5, 90000}, {5, 30001}, {5, 30000}}, 100000, 0, 10});
    check_apart({{{5, 90000}, {5, 80000}}, 100000, 5, 5});
    check_apart({{{5, 90000}}, 100000, 5, 0});
}

// Of n frames of a wave with these flags, densities and literals.
static void check_variant(uint32_t flags, uint32_t n, uint32_t density, uint32_t most_dense,
                          uint32_t literals, uint32_t expected, uint32_t mean_size = 262144)
{
    static const uint32_t shapes[] = {
        DAMACY__ZSTD_EXECUTE_1024X3,     DAMACY__ZSTD_EXECUTE_256X4,
        DAMACY__ZSTD_EXECUTE_128X4,      DAMACY__ZSTD_EXECUTE_128X4_3K,
        DAMACY__ZSTD_EXECUTE_128X2,      DAMACY__ZSTD_EXECUTE_128X2_SERIAL,
        DAMACY__ZSTD_EXECUTE_64X4_SERIAL};
    std::vector<damacy__zstd_frame> frames(1);
    std::vector<uint32_t> list(n); // zero
    damacy__zstd_counters counters;
    damacy__zstd_wave w;
    memset(&counters, 0, sizeof counters);
    memset(&w, 0, sizeof w);
    counters.n_execute = n;
    counters.density = density;
    counters.most_dense = most_dense;
    counters.literals = literals;
    counters.mean_size = mean_size;
    w.flags = flags;
    w.counters = (uint64_t)(uintptr_t)&counters;
    w.frames = (uint64_t)(uintptr_t)frames.data();
    w.execute_list = (uint64_t)(uintptr_t)list.data();
    const uint32_t whole = damacy__exec_wave_variant(w);
    const bool is_one = n > 200 || flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE ||
                        (expected & DAMACY__ZSTD_EXECUTE_SERIAL && density <= 90);
    for (uint32_t i : {0u, n / 2, n - 1})
        CHECK_EQ(damacy__exec_variant(w, whole, i), expected);
    for (uint32_t shape : shapes) // of few frames each may have some
        CHECK_EQ(damacy__exec_is_idle(whole, shape), is_one && shape != expected);
    CHECK(!damacy__exec_is_idle(whole, expected));
}

// By how many frames they are and how dense, if that shape is launched.
TEST(hundreds_of_frames_go_by_one_shape)
{
    static const uint32_t hundreds =
        DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X2;
    static const uint32_t thousands =
        DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X4_3K | DAMACY__ZSTD_EXECUTE_128X2;
    static const uint32_t beside = DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X4_3K;
    static const struct {
        uint32_t flags, n, density, most_dense, variant;
    } cases[] = {{hundreds, 600, 20, 20, DAMACY__ZSTD_EXECUTE_256X4},
                 {hundreds, 601, 90, 170, DAMACY__ZSTD_EXECUTE_128X2},
                 {hundreds, 601, 91, 170, DAMACY__ZSTD_EXECUTE_128X4},
                 {hundreds, 601, 20, 171, DAMACY__ZSTD_EXECUTE_256X4},
                 {hundreds, 1000, 170, 171, DAMACY__ZSTD_EXECUTE_256X4},
                 {hundreds, 1000, 170, 170, DAMACY__ZSTD_EXECUTE_128X4},
                 {hundreds, 1000, 171, 170, DAMACY__ZSTD_EXECUTE_256X4},
                 {thousands, 1001, 90, 400, DAMACY__ZSTD_EXECUTE_128X2},
                 {thousands, 1001, 91, 400, DAMACY__ZSTD_EXECUTE_128X4},
                 {thousands, 50000, 170, 400, DAMACY__ZSTD_EXECUTE_128X4},
                 {thousands, 50000, 171, 171, DAMACY__ZSTD_EXECUTE_128X4_3K},
                 {DAMACY__ZSTD_EXECUTE_128X4, 512, 300, 300, DAMACY__ZSTD_EXECUTE_128X4},
                 {beside, 512, 171, 171, DAMACY__ZSTD_EXECUTE_128X4_3K},
                 {beside, 512, 170, 300, DAMACY__ZSTD_EXECUTE_128X4},
                 {beside, 1000, 20, 20, DAMACY__ZSTD_EXECUTE_128X4},
                 {DAMACY__ZSTD_EXECUTE_256X4, 800, 20, 20, DAMACY__ZSTD_EXECUTE_256X4},
                 {DAMACY__ZSTD_EXECUTE_1024X3, 200, 20, 20, DAMACY__ZSTD_EXECUTE_1024X3}};

    for (const auto& c : cases)
        check_variant(c.flags, c.n, c.density, c.most_dense, 64, c.variant);
}

// From 384 KiB on, where that is launched.
TEST(hundreds_of_large_frames_go_by_one_shape)
{
    static const uint32_t beside = DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_256X4;
    static const uint32_t alone = beside | DAMACY__ZSTD_EXECUTE_128X2;
    static const struct {
        uint32_t flags, n, mean_size, density, most_dense, variant;
    } cases[] = {{alone, 1000, 393216, 141, 141, DAMACY__ZSTD_EXECUTE_256X4},
                 {alone, 1000, 393216, 140, 170, DAMACY__ZSTD_EXECUTE_128X4},
                 {alone, 1000, 393215, 141, 141, DAMACY__ZSTD_EXECUTE_128X4},
                 {alone, 601, 393216, 90, 170, DAMACY__ZSTD_EXECUTE_128X2},
                 {alone, 600, 393216, 90, 170, DAMACY__ZSTD_EXECUTE_256X4},
                 {alone, 1001, 393216, 141, 141, DAMACY__ZSTD_EXECUTE_256X4},
                 {alone, 1001, 393216, 140, 400, DAMACY__ZSTD_EXECUTE_128X4},
                 {beside, 301, 393216, 141, 141, DAMACY__ZSTD_EXECUTE_256X4},
                 {beside, 1000, 393216, 140, 170, DAMACY__ZSTD_EXECUTE_128X4},
                 {beside, 301, 393216, 20, 171, DAMACY__ZSTD_EXECUTE_256X4},
                 {beside, 301, 393215, 170, 170, DAMACY__ZSTD_EXECUTE_128X4}};

    for (const auto& c : cases)
        check_variant(c.flags, c.n, c.density, c.most_dense, 64, c.variant, c.mean_size);
}

// Where a shape for them is launched: by how many they are, how dense, and by their literals.
TEST(frames_that_shrink_to_little_go_by_one_warp)
{
    static const uint32_t small = DAMACY__ZSTD_EXECUTE_128X2_SERIAL;
    static const uint32_t large = DAMACY__ZSTD_EXECUTE_64X4_SERIAL;
    static const uint32_t few = DAMACY__ZSTD_EXECUTE_1024X3 | small;
    static const uint32_t relay = DAMACY__ZSTD_EXECUTE_RELAY | small;
    static const uint32_t hundreds = DAMACY__ZSTD_EXECUTE_256X4 | small;
    static const uint32_t thousand = hundreds | DAMACY__ZSTD_EXECUTE_128X2;
    static const uint32_t beside = DAMACY__ZSTD_EXECUTE_128X4 | small;
    static const uint32_t thousands =
        DAMACY__ZSTD_EXECUTE_128X4_3K | DAMACY__ZSTD_EXECUTE_128X2 | large;
    static const struct {
        uint32_t flags, n, density, literals, variant;
    } cases[] = {{few, 80, 5, 64, small},
                 {few, 80, 5, 65, DAMACY__ZSTD_EXECUTE_1024X3},
                 {few, 132, 6, 64, DAMACY__ZSTD_EXECUTE_1024X3},
                 {few, 133, 30, 64, small},
                 {few, 200, 31, 64, DAMACY__ZSTD_EXECUTE_1024X3},
                 {few | relay, 100, 5, 64, small},
                 {few | relay, 100, 6, 64, DAMACY__ZSTD_EXECUTE_RELAY},
                 {relay, 133, 5, 64, small},
                 {relay, 264, 6, 64, DAMACY__ZSTD_EXECUTE_RELAY},
                 {small | DAMACY__ZSTD_EXECUTE_WIDE, 264, 6, 64, DAMACY__ZSTD_EXECUTE_RELAY},
                 {hundreds, 101, 30, 64, small},
                 {hundreds, 101, 31, 64, DAMACY__ZSTD_EXECUTE_256X4},
                 {hundreds, 201, 30, 64, small},
                 {hundreds, 600, 31, 64, DAMACY__ZSTD_EXECUTE_256X4},
                 {hundreds, 600, 30, 65, DAMACY__ZSTD_EXECUTE_256X4},
                 {thousand, 601, 90, 64, small},
                 {thousand, 1000, 90, 65, DAMACY__ZSTD_EXECUTE_256X4},
                 {thousand, 1000, 91, 0, DAMACY__ZSTD_EXECUTE_256X4},
                 {beside, 512, 90, 64, small},
                 {beside, 512, 91, 64, DAMACY__ZSTD_EXECUTE_128X4},
                 {thousands, 1001, 90, 64, large},
                 {thousands, 50000, 90, 65, DAMACY__ZSTD_EXECUTE_128X2},
                 {thousands, 50000, 0, 0, large},
                 {thousands | small, 50000, 0, 0, large},
                 {thousands | small, 1000, 0, 0, small},
                 {large, 1000, 0, 0, large},
                 {small, 200, 200, 200, small}};

    for (const auto& c : cases)
        check_variant(c.flags, c.n, c.density, 300, c.literals, c.variant);
}

// Of blosc chunks: by how many frames they are and how dense, if that shape is launched.
TEST(frames_of_blosc_chunks_go_by_one_shape)
{
    static const uint32_t all = DAMACY__ZSTD_EXECUTE_128X4_3K | DAMACY__ZSTD_EXECUTE_SERIAL;
    static const uint32_t few = DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_SERIAL;
    static const uint32_t least = DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_256X4 |
                                  DAMACY__ZSTD_EXECUTE_256X2_SERIAL;
    static const uint32_t none = DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_64X4_SERIAL;
    static const uint32_t large = few | DAMACY__ZSTD_EXECUTE_1024X3;
    static const struct {
        uint32_t flags, n, density, variant;
    } cases[] = {{large, 132, 95, DAMACY__ZSTD_EXECUTE_1024X3},
                 {large, 133, 95, DAMACY__ZSTD_EXECUTE_256X2_SERIAL},
                 {large, 1201, 95, DAMACY__ZSTD_EXECUTE_64X4_SERIAL},
                 {DAMACY__ZSTD_EXECUTE_1024X3, 500, 20, DAMACY__ZSTD_EXECUTE_1024X3},
                 {all, 1, 95, DAMACY__ZSTD_EXECUTE_128X2_SERIAL},
                 {all, 1, 96, DAMACY__ZSTD_EXECUTE_128X4_3K},
                 {all, 1200, 0, DAMACY__ZSTD_EXECUTE_128X2_SERIAL},
                 {all, 1200, 96, DAMACY__ZSTD_EXECUTE_128X4_3K},
                 {all, 1201, 0, DAMACY__ZSTD_EXECUTE_64X4_SERIAL},
                 {all, 1201, 95, DAMACY__ZSTD_EXECUTE_64X4_SERIAL},
                 {all, 1201, 96, DAMACY__ZSTD_EXECUTE_128X4_3K},
                 {few, 512, 95, DAMACY__ZSTD_EXECUTE_256X2_SERIAL},
                 {few, 512, 96, DAMACY__ZSTD_EXECUTE_256X4},
                 {none, 512, 20, DAMACY__ZSTD_EXECUTE_256X4},
                 {few, 2048, 20, DAMACY__ZSTD_EXECUTE_64X4_SERIAL},
                 {few, 2048, 120, DAMACY__ZSTD_EXECUTE_256X4},
                 {least, 132, 95, DAMACY__ZSTD_EXECUTE_1024X3},
                 {least, 133, 95, DAMACY__ZSTD_EXECUTE_256X2_SERIAL},
                 {least, 200, 96, DAMACY__ZSTD_EXECUTE_1024X3},
                 {least, 201, 96, DAMACY__ZSTD_EXECUTE_256X4},
                 {least, 3000, 20, DAMACY__ZSTD_EXECUTE_256X2_SERIAL},
                 {least, 3000, 96, DAMACY__ZSTD_EXECUTE_256X4}};

    for (const auto& c : cases)
        check_variant(DAMACY__ZSTD_FLAG_BY_SEQUENCE | c.flags, c.n, c.density, 0, 0, c.variant);
}

// Of these large ones by relays, which are one of two kernels if both are launched.
TEST(large_frames_of_blosc_chunks_go_by_relays)
{
    static const uint32_t relay = DAMACY__ZSTD_EXECUTE_RELAY, mib = 1 << 20;
    static const uint32_t few = DAMACY__ZSTD_EXECUTE_1024X3;
    static const uint32_t many = DAMACY__ZSTD_EXECUTE_256X2_SERIAL;
    static const uint32_t all = relay | few | many | DAMACY__ZSTD_EXECUTE_256X4;
    static const uint32_t wide = DAMACY__ZSTD_EXECUTE_WIDE;
    static const struct {
        uint32_t n, mean_size, density, variant;
    } cases[] = {{1, mib / 16 * 3, 5, relay},      {79, mib / 16 * 3, 200, relay},
                 {79, mib / 16 * 3 - 1, 200, few}, {80, 2 * mib - 1, 40, few},
                 {80, 2 * mib, 40, relay},         {132, 2 * mib, 20, relay},
                 {133, mib / 4 * 3, 21, relay},    {264, mib / 4 * 3, 21, relay},
                 {133, mib / 4 * 3 - 1, 21, many}, {265, 16 * mib, 21, many},
                 {133, 2 * mib - 1, 20, many},     {200, 2 * mib, 20, relay},
                 {201, 2 * mib, 20, many}};

    for (const auto& c : cases) {
        const uint32_t flags = DAMACY__ZSTD_FLAG_BY_SEQUENCE | all;
        check_variant(flags, c.n, c.density, 0, 0, c.variant, c.mean_size);
        check_variant(flags ^ relay ^ wide, c.n, c.density, 0, 0, c.variant, c.mean_size);
        check_variant(DAMACY__ZSTD_FLAG_BY_SEQUENCE | wide, c.n, c.density, 0, 0, relay,
                      c.mean_size);
    }
    for (const uint32_t n : {1u, 44u, 45u, 264u}) {
        damacy__zstd_counters counters;
        damacy__zstd_wave w;
        const uint32_t list = 0;
        memset(&counters, 0, sizeof counters);
        memset(&w, 0, sizeof w);
        counters.n_execute = n;
        w.counters = (uint64_t)(uintptr_t)&counters;
        w.execute_list = (uint64_t)(uintptr_t)&list;
        for (const uint32_t kernels : {relay, wide, relay | wide}) {
            w.flags = DAMACY__ZSTD_FLAG_BY_SEQUENCE | kernels;
            CHECK_EQ(damacy__exec_is_wide(w), kernels == wide || (kernels != relay && n <= 44));
        }
    }
}

TEST(waves_of_many_frames_of_all_kinds_execute)
{
    uint64_t seed = test_seed();
    for (uint32_t n : {601u, 1000u, 1001u, 1201u})
        for (uint32_t round = 0; round < 4; round++) {
            std::vector<frame> frames;
            for (uint32_t i = 0; i < n; i++)
                frames.push_back(random_frame(&seed, i % (2 + round), 1 + i % 300));
            simt::g.seed = seed;
            check_frames(frames, round % 2 ? everything : all_of_blosc, round);
        }
}

TEST(adversarial_frames_execute)
{
    uint64_t seed = test_seed();
    std::vector<frame> frames;
    frame f;
    f.begin(); // the deepest chain: each match reads the one before
    f.literals(noise(&seed, 3));
    while (f.room() > 3)
        f.match(3, 3);
    frames.push_back(f);
    f = frame();
    f.begin(); // one match of the longest kind
    f.literals(noise(&seed, 1));
    f.match(1, DAMACY__ZSTD_BLOCK_MAX - 1);
    f.begin(); // from the start of the frame, over a whole block
    f.match(DAMACY__ZSTD_BLOCK_MAX, DAMACY__ZSTD_BLOCK_MAX);
    frames.push_back(f);
    f = frame();
    f.begin(); // as many literals as a block with a sequence can have
    f.literals(noise(&seed, DAMACY__ZSTD_BLOCK_MAX - 3));
    f.match(70000, 3);
    f.stored(noise(&seed, 5));
    f.begin();
    f.literals(noise(&seed, 1));
    frames.push_back(f);
    for (uint32_t i = 0; i < 16; i++) { // every match starts at the frame's first bytes
        f = frame();
        f.begin();
        f.literals(noise(&seed, 9));
        while (f.expected.size() < 9000)
            f.match((uint32_t)f.expected.size() - i % 5, 3 + i);
        frames.push_back(f);
        f = frame(); // tiny blocks, each in a unit of its own or sharing it with its neighbours
        for (uint32_t k = 0; k < 40; k++) {
            if (k % 3 == i % 3)
                f.stored(noise(&seed, 1 + (k + i) % 18));
            f.begin();
            f.literals(noise(&seed, 1 + (k * i) % 7));
            f.match(1 + k % (uint32_t)f.expected.size(), 3 + (k + i) % 20);
        }
        frames.push_back(f);
    }
    for (uint32_t v = 0; v < n_variants; v++) {
        simt::g.seed = seed + v;
        check_frames(frames, variants[v], v);
    }
}

TEST(bad_offsets_fail_their_job_alone)
{
    uint64_t seed = test_seed();
    for (uint32_t round = 0; round < 32; round++) {
        std::vector<frame> frames;
        for (uint32_t i = 0; i < 12; i++) {
            frame f = random_frame(&seed, i % 5, 1 + (uint32_t)(test_random(&seed) % 3000));
            if (i % 3 == 1) {
                const uint32_t have = (uint32_t)f.expected.size();
                static const uint32_t offsets[] = {
                    0, 1, 2, 100000, DAMACY__ZSTD_OFFSET_MAX, DAMACY__ZSTD_D_SYMBOLIC};
                const uint32_t k = (uint32_t)(test_random(&seed) % 6);
                f.begin();
                f.match(k == 1 || k == 2 ? have + k : offsets[k], 3 + (uint32_t)i * 50);
                f.match(5, 70);
                f.literals(noise(&seed, 10));
            }
            frames.push_back(f);
        }
        simt::g.seed = seed;
        check_frames(frames, variants[round % n_variants], round);
    }
}

// Blocks of a frame by one block of threads after the other, each at any alignment, with matches
// of what others have written; one frame fails in its second block, one has a block alone.
TEST(frames_in_turns_execute_as_without)
{
    uint64_t seed = test_seed();
    for (uint32_t round = 0; round < 8; round++) {
        uint32_t n_shapes = 0;
        for (const variant& v : variants) {
            if (!v.run_turns)
                continue;
            std::vector<frame> frames;
            n_shapes++;
            n_blocks_before = 0;
            for (uint32_t i = 0; i < 9; i++) {
                frame f;
                for (uint32_t k = 0; k < (i == 4 ? 1 : 2 + (round + i) % 5); k++) {
                    if (test_random(&seed) % 3 == 0)
                        f.stored(noise(&seed, 1 + test_random(&seed) % 40));
                    f.begin();
                    f.literals(noise(&seed, 1 + test_random(&seed) % 70));
                    if (i == 7 && k == 1)
                        f.match((uint32_t)f.expected.size() + 1, 50);
                    for (uint32_t m = 0; m < 40 + round * 30; m++) {
                        f.match(1 + (uint32_t)(test_random(&seed) % f.expected.size()),
                                3 + (uint32_t)(test_random(&seed) % 90));
                        f.literals(noise(&seed, test_random(&seed) % 5));
                    }
                }
                if (i % 3 == 0)
                    f.stored(noise(&seed, 20));
                frames.push_back(f);
            }
            simt::g.seed = seed + round;
            check_frames(frames, {v.run_turns, v.by_sequence, v.tile}, round);
            CHECK(n_blocks_before > 0);
        }
        CHECK_EQ(n_shapes, 13);
    }
}

// Blocks of threads share frames if these are up to half as many again and they are told to, else
// take the next in line: to look for one that waits takes longer than a short frame.
TEST(frames_are_shared_if_they_are_somewhat_more_than_blocks_of_threads)
{
    static const struct {
        uint32_t n, flag, n_taken, next_entry;
    } cases[] = {
        {9, DAMACY__ZSTD_FLAG_SHARED, 9, DAMACY__ZSTD_NONE},
        {11, DAMACY__ZSTD_FLAG_SHARED, 11, DAMACY__ZSTD_NONE},
        {12, DAMACY__ZSTD_FLAG_SHARED, 0, 12 + 8}, // each looks once more than it finds one
        {40, DAMACY__ZSTD_FLAG_SHARED, 0, 40 + 8},
        {8, DAMACY__ZSTD_FLAG_SHARED, 0, 0},
        {9, 0, 0, 9 + 8},
        {40, 0, 0, 40 + 8},
        {8, 0, 0, 0},
        {9, DAMACY__ZSTD_FLAG_TURNS, 9, DAMACY__ZSTD_NONE}};
    uint64_t seed = test_seed();

    CHECK_EQ(DAMACY__ZSTD_FLAG_SHARED, 0x20u);
    for (const auto& c : cases) {
        std::vector<frame> frames;
        for (uint32_t i = 0; i < c.n; i++) {
            frame f;
            f.begin();
            f.literals(noise(&seed, 1 + test_random(&seed) % 70));
            f.match(1 + (uint32_t)(test_random(&seed) % f.expected.size()), 9);
            frames.push_back(f);
        }
        grid_flag = c.flag;
        simt::g.seed = seed;
        check_frames(frames, {run_grid, true, blosc_64x4::TILE}, c.n);
        CHECK_EQ(n_taken, c.n_taken);
        if (c.next_entry != DAMACY__ZSTD_NONE)
            CHECK_EQ(next_entry, c.next_entry);
    }
}

// Frames are given back if fewer than one waits for two that are executed, in one round and a part.
TEST(turns_are_due_while_few_frames_wait)
{
    static const struct {
        uint32_t n, n_taken, n_ended, flags;
        bool is_due;
    } cases[] = {
        {660, 528, 0, 0, true},    {791, 528, 0, 0, true},       {792, 528, 0, 0, false},
        {1000, 528, 0, 0, false},  {528, 528, 0, 0, false},      {528, 528, 400, 0, false},
        {1000, 800, 272, 0, true}, {4600, 4224, 3168, 0, false}, {1760, 1704, 700, 0, true},
        {700, 690, 345, 0, false}, {700, 690, 339, 0, true},     {1, 1, 0, 0x40, false},
        {1000, 1, 0, 0x40, true},  {1000, 1000, 0, 0x40, false}, {1000, 1001, 0, 0, false}};

    CHECK_EQ(DAMACY__ZSTD_FLAG_TURNS, 0x40u);
    const dim3 grid(4000); // of which the most frames are somewhat more
    for (const auto& c : cases) {
        damacy__zstd_counters counters;
        damacy__zstd_wave w;
        bool is_due = false;
        memset(&counters, 0, sizeof counters);
        memset(&w, 0, sizeof w);
        counters.n_execute = c.n;
        counters.n_taken = c.n_taken;
        counters.n_ended = c.n_ended;
        w.counters = (uint64_t)(uintptr_t)&counters;
        w.flags = c.flags | DAMACY__ZSTD_FLAG_SHARED;
        simt::launch(grid, dim3(1), [&] { is_due = damacy__turn_is_due(w); });
        CHECK_EQ(is_due, c.is_due);
        w.flags = 0; // in line
        simt::launch(grid, dim3(1), [&] { is_due = damacy__turn_is_due(w); });
        CHECK(!is_due);
    }
}

// A greedy matcher: real data has chains, repeats and lengths that random records lack.
static frame find_matches(const bytes& data, uint32_t min_match)
{
    std::vector<uint32_t> table(1 << 15, DAMACY__ZSTD_NONE);
    frame f;
    f.begin();
    size_t pending = 0; // first literal that is not in a record
    for (size_t at = 0; at < data.size();) {
        uint32_t hash = 0, n = 0;
        if (at + min_match <= data.size())
            for (uint32_t k = 0; k < min_match; k++)
                hash = (hash ^ data[at + k]) * 0x9e3779b1u;
        const uint32_t before = table[hash >> 17];
        table[hash >> 17] = (uint32_t)at;
        while (before != DAMACY__ZSTD_NONE && at + n < data.size() &&
               data[before + n] == data[at + n] && n < 3000)
            n++;
        if (f.blocks.back().size + (at - pending) + 3000 > DAMACY__ZSTD_BLOCK_MAX) {
            f.literals(bytes(data.begin() + (long)pending, data.begin() + (long)at));
            pending = at;
            f.begin();
        }
        if (n < min_match) {
            at++;
            continue;
        }
        f.literals(bytes(data.begin() + (long)pending, data.begin() + (long)at));
        f.match((uint32_t)at - before, n);
        at += n;
        pending = at;
    }
    f.literals(bytes(data.begin() + (long)pending, data.end()));
    return f;
}

TEST(matches_of_real_data_execute_to_the_data)
{
    uint64_t seed = test_seed();
    for (uint32_t v = 0; v < n_variants; v++) {
        std::vector<frame> frames;
        for (uint32_t i = 0; i < 4; i++) {
            bytes data;
            while (data.size() < 150000) {
                const uint64_t r = test_random(&seed);
                if (i < 2) {
                    data.push_back((uint8_t)(100 + (r & 7) + (r >> 4 & 7) * i));
                    data.push_back(0);
                } else {
                    const size_t n = 1 + (r & 31), at = data.empty() ? 0 : (r >> 8) % data.size();
                    const bool copy = r >> 62 != 0 && !data.empty();
                    for (size_t k = 0; k < n; k++)
                        data.push_back(copy ? data[at + k] : (uint8_t)(r >> k));
                }
            }
            const frame f = find_matches(data, 3 + i % 2);
            CHECK(f.expected == data);
            frames.push_back(f);
        }
        simt::g.seed = seed;
        check_frames(frames, variants[v], v);
    }
}

// Two frames much larger than others, and these, by kernels that run one after the other.
static uint32_t n_apart_frames;
static void run_apart(const damacy__zstd_wave& wave)
{
    damacy__zstd_wave w = wave;
    uint32_t* const list = (uint32_t*)(uintptr_t)w.execute_list;
    std::vector<uint64_t> keys(damacy__zstd_counts(w)->n_execute);
    w.keys = (uint64_t)(uintptr_t)keys.data();
    w.flags = DAMACY__ZSTD_FLAG_APART | DAMACY__ZSTD_EXECUTE_256X4;
    std::sort(list, list + keys.size(), [&](uint32_t a, uint32_t b) {
        return damacy__zstd_frames(w)[a].n_records > damacy__zstd_frames(w)[b].n_records;
    });
    simt::launch(dim3(1), dim3(32), [&] { damacy__zstd_place_density(w); });
    n_apart_frames = damacy__zstd_counts(w)->n_apart;
    run_relay<damacy__relay_wide>(w);
    run_shape<tile_256x4>(w, DAMACY__ZSTD_EXECUTE_256X4, 2);
}

TEST(frames_much_larger_than_others_are_executed_beside_them)
{
    uint64_t seed = test_seed();
    for (uint32_t round = 0; round < 3; round++) {
        std::vector<frame> frames;
        for (uint32_t i = 0; i < 40; i++)
            frames.push_back(random_frame(&seed, i % 5, i % 20 == 7 ? 280000 : 300));
        if (round == 2) { // bad ones, of both kinds
            for (const uint32_t i : {5u, 7u}) {
                frames[i].begin();
                frames[i].match((uint32_t)frames[i].expected.size() + 1, 70);
            }
        }
        simt::g.seed = seed;
        check_frames(frames, {run_apart, false, 7168}, round);
        CHECK_EQ(n_apart_frames, 2);
    }
}

// Fewer where segments are short.
TEST(blocks_of_threads_that_help_large_frames_are_few)
{
    for (const uint32_t n_records : {0u, 140u, 141u, 300u}) {
        damacy__zstd_frame f;
        const uint32_t list = 0;
        damacy__zstd_wave w;
        memset((void*)&f, 0, sizeof f);
        memset(&w, 0, sizeof w);
        f.size = 1024;
        f.n_records = n_records;
        w.frames = (uint64_t)(uintptr_t)&f;
        w.execute_list = w.keys = (uint64_t)(uintptr_t)&list;
        for (const uint32_t flags : {0u, DAMACY__ZSTD_FLAG_APART}) {
            w.flags = flags;
            CHECK_EQ(damacy__relay_blocks(w, 5), n_records > 140 ? 15 : 60);
        }
    }
}

// Many blocks of threads for few frames: the tiles before are under way when a tile begins.
TEST(tiles_of_a_frame_that_many_share_execute_in_any_order)
{
    uint64_t seed = test_seed();
    for (uint32_t round = 0; round < 6; round++) {
        std::vector<frame> frames;
        for (uint32_t i = 0; i < 1 + round % 3; i++)
            frames.push_back(random_frame(&seed, (round + i) % 5, 200000));
        frame f;
        f.begin(); // each tile needs the end of the one before
        f.literals(noise(&seed, 5));
        while (f.room() > 400)
            f.match(5, 3 + (uint32_t)(test_random(&seed) % 300));
        frames.push_back(f);
        if (round == 5) { // one that fails on the way
            frames[0].begin();
            frames[0].match((uint32_t)frames[0].expected.size() + 1, 70);
            frames[0].match(3, 100000);
            frames[0].literals(noise(&seed, 20000));
        }
        simt::g.seed = seed;
        check_frames(frames, relayed<damacy__relay_best>(run_relay_crowd<damacy__relay_best>),
                     round);
        simt::g.seed = seed;
        check_frames(frames, relayed<damacy__relay_blosc>(run_relay_crowd<damacy__relay_blosc>),
                     round);
    }
}

// A frame of matches that do not read their tile; sources of some are in the tile before.
static frame far_frame(uint64_t* seed)
{
    frame f;
    f.begin();
    f.literals(noise(seed, 40000));
    while (f.room() > 200) {
        f.literals(noise(seed, test_random(seed) % 50));
        f.match(17000 + (uint32_t)(test_random(seed) % 20000),
                3 + (uint32_t)(test_random(seed) % 90));
    }
    return f;
}
static void check_barriers(const std::vector<frame>& frames, const variant& v, uint64_t seed)
{
    simt::races races(simt::SHARED_MAX);
    simt::g.seed = seed;
    simt::g.watch = &races;
    check_frames(frames, v, 5);
    simt::g.watch = nullptr;
    if (races.found)
        fprintf(stderr, "# tiles of %u bytes: %s\n", v.tile, races.first.c_str());
    CHECK_EQ(races.found, 0);
    CHECK(races.accesses > 100000);
}
template <class shape> static void run_relay_one(const damacy__zstd_wave& w)
{
    run_relay_of<shape>(w, 1, 1);
}
template <class shape> static variant relay_one()
{
    return relayed<shape>(run_relay_one<shape>);
}
template <class shape, uint32_t VARIANT> static void run_two(const damacy__zstd_wave& wave)
{
    damacy__zstd_wave w = wave;
    w.flags = VARIANT;
    run_shape<shape>(w, VARIANT, 2);
}
template <class shape, uint32_t VARIANT> static variant two()
{
    return {run_two<shape, VARIANT>, shape::BY_SEQUENCE, shape::TILE};
}
// Links are shortened by several lanes at once, which is meant, so shapes that have them get frames
// without; a tile's own matches are in order where one warp copies them.
TEST(barriers_order_what_warps_of_execution_hand_over_in_shared_memory)
{
    static const variant with_links[] = {relay_one<damacy__relay_best>(),
                                         relay_one<damacy__relay_wide>(),
                                         relay_one<damacy__relay_blosc>(),
                                         relay_one<damacy__relay_blosc_wide>(),
                                         two<tile_1024x3, DAMACY__ZSTD_EXECUTE_1024X3>(),
                                         two<tile_256x4, DAMACY__ZSTD_EXECUTE_256X4>(),
                                         two<tile_128x4, DAMACY__ZSTD_EXECUTE_128X4>(),
                                         two<tile_128x2, DAMACY__ZSTD_EXECUTE_128X2>(),
                                         two<blosc_1024x3, DAMACY__ZSTD_EXECUTE_1024X3>(),
                                         two<blosc_256x4, DAMACY__ZSTD_EXECUTE_256X4>(),
                                         two<blosc_128x4_3k, DAMACY__ZSTD_EXECUTE_128X4_3K>()};
    static const variant serial[] = {two<serial_128x2, DAMACY__ZSTD_EXECUTE_128X2_SERIAL>(),
                                     two<serial_64x4, DAMACY__ZSTD_EXECUTE_64X4_SERIAL>(),
                                     two<blosc_128x2, DAMACY__ZSTD_EXECUTE_128X2_SERIAL>(),
                                     two<blosc_64x4, DAMACY__ZSTD_EXECUTE_64X4_SERIAL>(),
                                     two<blosc_256x2, DAMACY__ZSTD_EXECUTE_256X2_SERIAL>()};
    uint64_t seed = test_seed();
    for (const variant& v : with_links)
        check_barriers({far_frame(&seed), far_frame(&seed)}, v, seed);
    for (const variant& v : serial) {
        std::vector<frame> frames(1, far_frame(&seed));
        for (uint32_t kind = 0; kind < 5; kind++)
            frames.push_back(random_frame(&seed, kind, 60000));
        check_barriers(frames, v, seed);
    }
}

TEST_MAIN
