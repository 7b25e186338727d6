// kernels/lz4.cu on the CPU against liblz4: every block that it accepts must decode to its bytes,
// and whatever it refuses must be refused, without a byte outside the job's ranges.
#define DAMACY__LZ4_RATIO 0u // the kernel for long sequences begins with every block
#include "bench/rows_of_ids.h"
#include "tests/kernel/lz4_block.h"
#include "tests/kernel/lz4_run.h"
#include "tests/test.h"
#include <lz4.h>
#include <string>

typedef std::vector<uint8_t> bytes;

// Exact-size heap copies, so that ASan sees any access beside them; `skew` shifts the alignment.
struct placed {
    uint8_t* block;
    uint8_t* ptr;
    size_t size;
    placed(size_t n, size_t skew) : block((uint8_t*)malloc(n + skew + 1)), size(n)
    {
        // the end of the range is the end of the allocation
        free(block);
        block = (uint8_t*)malloc(n + skew > 0 ? n + skew : 1);
        memset(block, 0xa5, n + skew);
        ptr = block + skew;
    }
    placed(const placed&) = delete;
    ~placed()
    {
        free(block);
    }
};

struct outcome {
    damacy__job_result result;
    bytes out;
    bool canary; // bytes before and after the output range are untouched
};

// Decodes one block between two neighbours that must come out right.
static outcome decode_one_way(const bytes& src, uint64_t expected, uint64_t capacity,
                              uint32_t flags, unsigned skew, lz4_way way)
{
    static const uint8_t good[] = {0x40, 'a', 'b', 'c', 'd'};
    placed in(src.size(), skew % 5), out((size_t)capacity, 16 + skew % 17);
    uint8_t neighbours[2][4];
    damacy__job jobs[3];
    damacy__job_result results[3];
    uint32_t n = 3;
    outcome o;

    if (!src.empty())
        memcpy(in.ptr, src.data(), src.size());
    memset(jobs, 0, sizeof jobs);
    memset(results, 0xee, sizeof results);
    for (unsigned i = 0; i < 3; i += 2) {
        jobs[i].src = (uint64_t)(uintptr_t)good;
        jobs[i].src_size = sizeof good;
        jobs[i].dst = (uint64_t)(uintptr_t)neighbours[i / 2];
        jobs[i].dst_capacity = jobs[i].expected_size = 4;
    }
    jobs[1].src = (uint64_t)(uintptr_t)in.ptr;
    jobs[1].src_size = src.size();
    jobs[1].dst = (uint64_t)(uintptr_t)out.ptr;
    jobs[1].dst_capacity = capacity;
    jobs[1].expected_size = expected;
    jobs[1].flags = flags;

    lz4_run(jobs, results, &n, 3, way);

    o.result = results[1];
    o.out.assign(out.ptr, out.ptr + capacity);
    o.canary = true;
    for (const uint8_t* p = out.block; p < out.ptr; p++)
        o.canary = o.canary && *p == 0xa5;
    for (unsigned i = 0; i < 2; i++)
        o.canary = o.canary && results[2 * i].status == DAMACY__JOB_OK &&
                   results[2 * i].size == 4 && memcmp(neighbours[i], "abcd", 4) == 0;
    return o;
}

// The same by all ways, which must agree. A sanitizer, with which it takes three times as long,
// sees the first way and a third of the others, each block's next ones.
static outcome decode(const bytes& src, uint64_t expected, uint64_t capacity, uint32_t flags,
                      unsigned skew)
{
    const outcome first = decode_one_way(src, expected, capacity, flags, skew, lz4_ways[0]);
    static size_t n_blocks = 0;
    const size_t step = TEST_ASAN || TEST_TSAN ? 3 : 1;
    CHECK(first.canary);
    for (size_t i = 1 + n_blocks++ % step; i < sizeof lz4_ways / sizeof lz4_ways[0]; i += step) {
        const outcome o = decode_one_way(src, expected, capacity, flags, skew, lz4_ways[i]);
        CHECK(o.canary);
        CHECK_EQ(o.result.status, first.result.status);
        CHECK_EQ(o.result.size, first.result.size);
        CHECK_EQ(o.result.error_offset, first.result.error_offset);
        CHECK(o.result.status != DAMACY__JOB_OK || o.out == first.out);
    }
    return first;
}

// Bytes of many kinds: noise, runs, text-like, 16-bit counts with noise, periods.
static bytes sample(unsigned kind, size_t n, uint64_t* seed)
{
    bytes v(n);
    uint64_t s = *seed;
    switch (kind % 8) {
    case 0:
        for (auto& x : v)
            x = (uint8_t)(test_random(&s) >> 56);
        break;
    case 1:
        break;
    case 2:
        for (size_t i = 0; i < n; i++)
            v[i] = (uint8_t)(i / 7 * 31 + i % 3);
        break;
    case 3: // 16-bit values with noise in few bits
        for (size_t i = 0; i < n; i++)
            v[i] = i & 1 ? 0 : (uint8_t)(100 + (test_random(&s) >> 61) + (test_random(&s) >> 62));
        break;
    case 4: // half of the values zero
        for (size_t i = 0; i + 1 < n; i += 2)
            if (test_random(&s) >> 63) {
                v[i] = (uint8_t)(test_random(&s) >> 56);
                v[i + 1] = (uint8_t)(test_random(&s) >> 56);
            }
        break;
    case 5: { // words from a small dictionary
        char words[64][12];
        for (auto& w : words) {
            const size_t len = 2 + (size_t)(test_random(&s) >> 61);
            for (size_t i = 0; i < sizeof w; i++)
                w[i] = i < len ? (char)('a' + (test_random(&s) >> 40) % 26) : 0;
        }
        for (size_t i = 0; i < n;) {
            const char* w = words[(test_random(&s) >> 40) % 64];
            for (; *w && i < n; w++)
                v[i++] = (uint8_t)*w;
            if (i < n)
                v[i++] = ' ';
        }
        break;
    }
    case 6: { // a long period with defects
        const size_t period = 1 + (size_t)(test_random(&s) % 900);
        for (size_t i = 0; i < n; i++)
            v[i] = i < period ? (uint8_t)(test_random(&s) >> 56) : v[i - period];
        for (size_t i = 0; i < n / 300; i++)
            v[(size_t)(test_random(&s) % n)] ^= 1;
        break;
    }
    default: // noise with long equal stretches
        for (size_t i = 0; i < n;) {
            size_t len = 1 + (size_t)(test_random(&s) % 700);
            const bool run = test_random(&s) >> 63;
            const uint8_t x = (uint8_t)(test_random(&s) >> 56);
            for (; len > 0 && i < n; len--)
                v[i++] = run ? x : (uint8_t)(test_random(&s) >> 56);
        }
    }
    *seed = s;
    return v;
}

TEST(blocks_of_all_kinds_and_sizes_decode_to_their_bytes)
{
    uint64_t seed = test_seed();
    const size_t sizes[] = {1,   2,   5,   12,  13,   14,   31,    64,    65,
                            255, 270, 271, 300, 1000, 4096, 20011, 65536, 70000};
    unsigned turn = 0;

    for (unsigned kind = 0; kind < 8; kind++)
        for (size_t n : sizes) {
            const bytes raw = sample(kind, n, &seed);
            const int levels[] = {0, -7, 3, 12};
            const bytes packed = lz4_block(raw, levels[turn % 4]);
            const outcome o = decode(packed, n, n, 0, turn++);
            CHECK_EQ(o.result.status, DAMACY__JOB_OK);
            CHECK_EQ(o.result.size, n);
            CHECK(o.out == raw);
            CHECK(o.canary);
        }
}

TEST(size_prefix_is_demanded_and_compared)
{
    uint64_t seed = test_seed();
    const bytes raw = sample(3, 5000, &seed);
    const bytes block = lz4_block(raw, 0);
    bytes packed = {0x88, 0x13, 0, 0};
    packed.insert(packed.end(), block.begin(), block.end());
    outcome o = decode(packed, 5000, 5000, DAMACY__LZ4_SIZE_PREFIX, 3);
    CHECK_EQ(o.result.status, DAMACY__JOB_OK);
    CHECK(o.out == raw);
    o = decode(packed, DAMACY__SIZE_UNKNOWN, 6000, DAMACY__LZ4_SIZE_PREFIX, 3);
    CHECK_EQ(o.result.status, DAMACY__JOB_OK);
    CHECK_EQ(o.result.size, 5000);
    o = decode(packed, 4999, 5000, DAMACY__LZ4_SIZE_PREFIX, 3);
    CHECK_EQ(o.result.status, DAMACY__JOB_SIZE_MISMATCH);
    packed[0]--;
    o = decode(packed, DAMACY__SIZE_UNKNOWN, 6000, DAMACY__LZ4_SIZE_PREFIX, 3);
    CHECK_EQ(o.result.status, DAMACY__JOB_SIZE_MISMATCH);
    for (size_t n = 0; n < 5; n++) {
        o = decode(bytes(packed.begin(), packed.begin() + (ptrdiff_t)n), DAMACY__SIZE_UNKNOWN, 6000,
                   DAMACY__LZ4_SIZE_PREFIX, 0);
        CHECK(o.result.status != DAMACY__JOB_OK && o.canary);
    }
}

TEST(sizes_that_do_not_fit_are_named)
{
    uint64_t seed = test_seed();
    const bytes raw = sample(5, 3000, &seed);
    const bytes packed = lz4_block(raw, 0);
    outcome o = decode(packed, 3000, 2999, 0, 1);
    CHECK_EQ(o.result.status, DAMACY__JOB_NO_SPACE);
    CHECK_EQ(o.result.size, 3000);
    o = decode(packed, DAMACY__SIZE_UNKNOWN, 2999, 0, 1);
    CHECK_EQ(o.result.status, DAMACY__JOB_NO_SPACE);
    o = decode(packed, 2999, 3000, 0, 1);
    CHECK_EQ(o.result.status, DAMACY__JOB_SIZE_MISMATCH);
    o = decode(packed, 3001, 3001, 0, 1);
    CHECK_EQ(o.result.status, DAMACY__JOB_SIZE_MISMATCH);
    o = decode(packed, DAMACY__SIZE_UNKNOWN, 4000, 0, 1);
    CHECK_EQ(o.result.status, DAMACY__JOB_OK);
    CHECK_EQ(o.result.size, 3000);
    o = decode(bytes(1, 0), 0, 0, 0, 1);
    CHECK_EQ(o.result.status, DAMACY__JOB_OK);
    o = decode(bytes(), 0, 0, 0, 1);
    CHECK_EQ(o.result.status, DAMACY__JOB_TRUNCATED);
    o = decode(packed, 3000, 3000, DAMACY__JOB_SKIP, 1);
    CHECK_EQ(o.result.status, DAMACY__JOB_SKIPPED);
}

TEST(malformed_blocks_are_refused_by_name)
{
    const struct {
        uint32_t status;
        uint64_t expected;
        bytes src;
    } cases[] = {
        {DAMACY__JOB_BAD_OFFSET, 10, {0x10, 'x', 0, 0, 0x50, 1, 2, 3, 4, 5}}, // offset 0
        {DAMACY__JOB_BAD_OFFSET, 10, {0x10, 'x', 2, 0, 0x50, 1, 2, 3, 4, 5}}, // before the data
        {DAMACY__JOB_BAD_OFFSET, 9, {0x00, 1, 0, 0x50, 1, 2, 3, 4, 5}},       // nothing there yet
        {DAMACY__JOB_TRUNCATED, 40, {0x10, 'x', 1}},                          // half an offset
        {DAMACY__JOB_TRUNCATED, 40, {0x1f, 'x', 1, 0}},                       // match length
        {DAMACY__JOB_TRUNCATED, 4000, {0x1f, 'x', 1, 0, 255, 255}},
        {DAMACY__JOB_SIZE_MISMATCH, 40, {0x1f, 'x', 1, 0, 255, 255, 0, 0x50, 1, 2, 3, 4, 5}},
        {DAMACY__JOB_TRUNCATED, 40, {0xf0}},
        {DAMACY__JOB_TRUNCATED, 40, {0xf0, 3}},
        {DAMACY__JOB_TRUNCATED, 40, {0x80, 1, 2, 3}},
        {DAMACY__JOB_TRUNCATED, 9, {0x14, 'x', 1, 0}},             // ends with a match
        {DAMACY__JOB_OK, 13, {0x14, 'x', 1, 0, 0x40, 1, 2, 3, 4}}, // few last literals
        {DAMACY__JOB_OK, 9, {0x14, 'x', 1, 0, 0x00}},
        {DAMACY__JOB_OK, 13, {0x13, 'x', 1, 0, 0x50, 1, 2, 3, 4, 5}},
    };
    for (const auto& c : cases) {
        const outcome o = decode(c.src, c.expected, c.expected, 0, 2);
        CHECK_EQ(o.result.status, c.status);
        CHECK(o.canary);
    }
}

// The format, byte by byte: whether src is a block of n bytes, and which.
static bool reference(const bytes& src, size_t n, bytes* out)
{
    size_t at = 0;
    out->clear();
    const auto length = [&](size_t nibble, size_t* v) {
        *v = nibble;
        for (uint8_t b = 255; nibble == 15 && b == 255; *v += b) {
            if (at == src.size())
                return false;
            b = src[at++];
        }
        return true;
    };
    while (at < src.size()) {
        const uint8_t token = src[at++];
        size_t v;
        if (!length(token >> 4, &v) || v > src.size() - at || v > n - out->size())
            return false;
        out->insert(out->end(), src.begin() + (ptrdiff_t)at, src.begin() + (ptrdiff_t)(at + v));
        at += v;
        if (at == src.size())
            return out->size() == n;
        if (src.size() - at < 2)
            return false;
        const size_t offset = src[at] | (size_t)src[at + 1] << 8;
        at += 2;
        if (!length(token & 15, &v) || offset == 0 || offset > out->size() ||
            v + 4 > n - out->size())
            return false;
        for (v += 4; v > 0; v--)
            out->push_back((*out)[out->size() - offset]);
    }
    return false;
}

// liblz4 refuses matches and literals that end too near to the end of a block; otherwise all agree.
static void compare(const bytes& src, size_t n, unsigned skew)
{
    bytes expected, library(n + 1);
    const bool accepted = reference(src, n, &expected);
    const outcome o = decode(src, n, n, 0, skew);
    CHECK(o.canary);
    CHECK_EQ(o.result.status == DAMACY__JOB_OK, accepted);
    if (!accepted) {
        CHECK(o.result.error_offset <= src.size());
        return;
    }
    CHECK(o.out == expected);
    if (LZ4_decompress_safe((const char*)src.data(), (char*)library.data(), (int)src.size(),
                            (int)n) == (int)n) {
        library.resize(n);
        CHECK(o.out == library);
    }
}

TEST(every_prefix_is_refused)
{
    uint64_t seed = test_seed();
    for (unsigned kind = 2; kind < 8; kind++) {
        const bytes raw = sample(kind, 700, &seed);
        const bytes packed = lz4_block(raw, 0);
        for (size_t n = 0; n < packed.size(); n += 1 + n / 64) {
            const outcome o = decode(bytes(packed.begin(), packed.begin() + (ptrdiff_t)n), 700, 700,
                                     0, (unsigned)n);
            CHECK(o.result.status != DAMACY__JOB_OK);
            CHECK(o.canary);
        }
    }
}

TEST(mutated_blocks_agree_with_the_reference)
{
    uint64_t seed = test_seed();
    for (unsigned i = 0; i < 1500; i++) {
        const size_t n = 20 + (size_t)(test_random(&seed) % (i % 10 == 0 ? 4000 : 400));
        const bytes raw = sample((unsigned)(test_random(&seed) % 8), n, &seed);
        bytes packed = lz4_block(raw, i % 3 ? 0 : 9);
        for (unsigned k = (unsigned)(test_random(&seed) % 3); k + 1 > 0 && k < 3; k--) {
            const size_t at = (size_t)(test_random(&seed) % packed.size());
            switch (test_random(&seed) % 4) {
            case 0:
                packed[at] ^= (uint8_t)(1u << (test_random(&seed) % 8));
                break;
            case 1:
                packed[at] = (uint8_t)test_random(&seed);
                break;
            case 2:
                packed.erase(packed.begin() + (ptrdiff_t)at);
                break;
            default:
                packed.insert(packed.begin() + (ptrdiff_t)at,
                              (uint8_t)(test_random(&seed) & 1 ? 255 : 0));
            }
            if (packed.empty())
                packed.push_back(0);
        }
        compare(packed, n, i);
    }
}

// Sequences of 3 bytes, so dense that they are decoded in parts of the source, then one with long
// lengths at every place around the end of a part.
TEST(lengths_across_the_end_of_a_part_are_read_to_their_end)
{
    for (unsigned long_literals = 0; long_literals < 2; long_literals++)
        for (size_t place = DAMACY__LZ4_PART - 12; place < DAMACY__LZ4_PART + 28; place++) {
            bytes src = {0x40, 'a', 'b', 'c', 'd', 4, 0}, expected;
            for (size_t i = 0; i < place % 3; i++) // so far they are one by one
                src.insert(src.end(), {0x10, (uint8_t)i, 2, 0});
            while (src.size() < place)
                src.insert(src.end(), {0x00, 4, 0});
            if (long_literals) {
                src.insert(src.end(), {0xf0, 255, 30});
                for (unsigned i = 0; i < 300; i++)
                    src.push_back((uint8_t)(i * 7));
                src.insert(src.end(), {9, 0});
            }
            src.insert(src.end(), {0x0f, 3, 0, 255, 255, 100, 0x02, 1, 0, 0x0f, 5, 0, 255, 0});
            src.insert(src.end(), {0x50, 1, 2, 3, 4, 5});
            for (unsigned more = 0; more < 2; more++) {
                CHECK(reference(src, 1u << 20, &expected) || !expected.empty());
                compare(src, expected.size(), (unsigned)place);
                while (src.size() < place + DAMACY__LZ4_PART + 1000) // the part is not the last
                    src.insert(src.end() - 6, {0x00, 4, 0});
            }
        }
}

static void put_length(bytes* src, size_t n)
{
    for (; n >= 255; n -= 255)
        src->push_back(255);
    src->push_back((uint8_t)n);
}

static void put_sequence(bytes* src, size_t n_literals, size_t offset, size_t n_match,
                         uint64_t* seed)
{
    const size_t m = n_match ? n_match - 4 : 0;
    src->push_back((uint8_t)((n_literals < 15 ? n_literals : 15) << 4 | (m < 15 ? m : 15)));
    if (n_literals >= 15)
        put_length(src, n_literals - 15);
    for (size_t i = 0; i < n_literals; i++)
        src->push_back((uint8_t)(test_random(seed) >> 56));
    if (n_match == 0)
        return;
    src->push_back((uint8_t)offset);
    src->push_back((uint8_t)(offset >> 8));
    if (m >= 15)
        put_length(src, m - 15);
}

// Long sequences, which are walked one after another, and every place of one with long lengths
// around the end of a part; a match or literals of more than a part; a wrong offset there.
TEST(long_sequences_go_on_behind_the_end_of_a_part)
{
    static const size_t more[][2] = {{14, 4},  {15, 18},   {300, 19},   {255 + 15, 4 + 15 + 255},
                                     {40, 90}, {900, 600}, {9000, 5000}};
    uint64_t seed = test_seed();
    for (size_t i = 0; i < 2 * 7 * 46; i++) {
        const size_t end = DAMACY__LZ4_TASTE + (i < 7 * 46 ? 0 : DAMACY__LZ4_FILL);
        const size_t place = end - 40 + i / 7 % 46;
        bytes src, expected;
        while (src.size() + 400 < place)
            put_sequence(&src, 200, 1 + test_random(&seed) % 200, 4 + i % 3, &seed);
        put_sequence(&src, place - src.size() - 5, 200, 4, &seed); // to place, or a byte beside it
        put_sequence(&src, more[i % 7][0], i % 4 ? 150 : 3, more[i % 7][1], &seed);
        put_sequence(&src, 100, 90, 5, &seed);
        put_sequence(&src, 5 + i % 4, 0, 0, &seed);
        CHECK(!reference(src, 1u << 20, &expected)); // fewer bytes, which are these
        const size_t n = expected.size();
        compare(src, n, (unsigned)i);
        src[src.size() - 8 - i % 4] = (uint8_t)(i % 2 ? 0 : 255); // of the last offset
        src[src.size() - 7 - i % 4] = (uint8_t)(i % 2 ? 0 : 255);
        compare(src, n, (unsigned)i);
    }
}

TEST(matches_of_more_than_64_kib_decode_to_their_bytes)
{
    uint64_t seed = test_seed();
    for (size_t n_match : {65535u, 65536u, 65539u, 200000u}) {
        bytes src, expected;
        put_sequence(&src, 300, 7, 9, &seed);
        put_sequence(&src, 200, 5, n_match, &seed);
        put_sequence(&src, 100, 300, 40, &seed);
        put_sequence(&src, 6, 0, 0, &seed);
        CHECK(reference(src, n_match + 655, &expected));
        compare(src, n_match + 655, 3);
    }
}

// Periods of every length, with and without a whole number of them in 16 bytes, at every alignment.
TEST(runs_of_every_period_and_alignment_decode_to_their_bytes)
{
    uint64_t seed = test_seed();
    for (size_t offset = 1; offset <= 33; offset++)
        for (size_t n_match : {300u, 530u, 545u, 1100u, 5000u}) {
            bytes src, expected;
            const size_t n_literals = offset + test_random(&seed) % 16;
            const size_t n = n_match + test_random(&seed) % 40;
            put_sequence(&src, n_literals, offset, n, &seed);
            put_sequence(&src, 3, 1 + test_random(&seed) % 40, 20, &seed);
            put_sequence(&src, 6, 0, 0, &seed);
            CHECK(reference(src, n_literals + n + 29, &expected));
            compare(src, n_literals + n + 29, (unsigned)offset);
        }
}

// Matches of every length and offset, after literals that are long and then short, or in turns.
TEST(long_and_short_sequences_in_any_order_decode_to_their_bytes)
{
    static const size_t lengths[] = {0, 1, 14, 15, 16, 40, 63, 64, 65, 269, 270, 271, 900, 7000};
    uint64_t seed = test_seed();
    for (unsigned i = 0; i < 150; i++) {
        const uint64_t likely = i % 3 == 0 ? 14 : i % 3 == 1 ? 6 : 3; // of the lengths
        bytes src, expected;
        size_t n = 0;
        for (unsigned k = 0; k < 200 && src.size() < 24000; k++) {
            const bool is_turn = i % 4 == 3 && (k / 20) % 2;
            const size_t n_literals =
                lengths[test_random(&seed) % (is_turn ? 2 : likely)] + (k == 0 ? 1 : 0);
            const size_t far = test_random(&seed) % 3 ? 40 : 9000, before = n + n_literals;
            const size_t offset = 1 + (size_t)(test_random(&seed) % (before < far ? before : far));
            const size_t n_match = 4 + (test_random(&seed) % 4 ? test_random(&seed) % 5
                                                               : lengths[test_random(&seed) % 14]);
            put_sequence(&src, n_literals, offset, n_match, &seed);
            n = before + n_match;
        }
        const size_t n_last = 5 + (i % 20 == 0 ? 9000 : i % 7);
        put_sequence(&src, n_last, 0, 0, &seed);
        CHECK(reference(src, n + n_last, &expected));
        compare(src, expected.size(), i);
        const size_t at = test_random(&seed) % src.size(); // wrong ones among them
        src[at] = (uint8_t)(src[at] + 1 + test_random(&seed) % 255);
        compare(src, expected.size(), i);
        src.resize(at + 1);
        compare(src, expected.size(), i);
    }
}

// Matches of every length that a block that shrinks to little may have, with periods of every kind,
// one behind the other so that they begin at every place, a few literals between them.
TEST(short_runs_in_blocks_that_shrink_to_little_decode_to_their_bytes)
{
    uint64_t seed = test_seed();
    for (unsigned i = 0; i < 40; i++) {
        bytes src, expected;
        size_t n = 0;
        for (unsigned k = 0; k < 120; k++) {
            const size_t n_literals = k == 0 ? 40 : test_random(&seed) % 8 ? 0 : 1 + k % 5;
            const uint64_t kind = test_random(&seed) % 4;
            const size_t offset = kind == 0   ? (size_t)1 << (test_random(&seed) % 6)
                                  : kind == 1 ? 1 + test_random(&seed) % 40
                                              : 1 + test_random(&seed) % (n + n_literals);
            const size_t n_match = 4 + test_random(&seed) % (k % 3 ? 600 : 60);
            put_sequence(&src, n_literals, offset, n_match, &seed);
            n += n_literals + n_match;
        }
        put_sequence(&src, 5, 0, 0, &seed);
        n += 5;
        CHECK(24 * src.size() <= n);
        CHECK(reference(src, n, &expected));
        compare(src, n, i);
    }
}

// Sequences of some hundred bytes, one after another: right blocks, wrong ones and cut ones.
TEST(blocks_that_shrink_to_little_decode_to_their_bytes)
{
    uint64_t seed = test_seed();
    for (unsigned i = 0; i < 60; i++) {
        const bytes raw = rows_of_ids(1 + (size_t)(test_random(&seed) % 150000),
                                      [&] { return test_random(&seed); });
        bytes src = lz4_block(raw, i % 3 == 2 ? 9 : 0);
        CHECK(raw.size() < 20000 || 32 * src.size() <= raw.size());
        compare(src, raw.size(), i);
        const size_t at = test_random(&seed) % src.size();
        src[at] = (uint8_t)(src[at] + 1 + test_random(&seed) % 255);
        compare(src, raw.size(), i);
        src.resize(at + 1);
        compare(src, raw.size(), i);
    }
}

TEST(the_job_count_is_read_on_the_device)
{
    static const uint8_t good[] = {0x40, 'a', 'b', 'c', 'd'};
    uint8_t out[8][4];
    damacy__job jobs[8];
    damacy__job_result results[8];
    memset(jobs, 0, sizeof jobs);
    memset(results, 0, sizeof results);
    memset(out, 0, sizeof out);
    for (unsigned i = 0; i < 8; i++) {
        results[i].status = DAMACY__JOB_NOT_RUN;
        jobs[i].src = (uint64_t)(uintptr_t)good;
        jobs[i].src_size = sizeof good;
        jobs[i].dst = (uint64_t)(uintptr_t)out[i];
        jobs[i].dst_capacity = jobs[i].expected_size = 4;
    }
    for (uint32_t n : {0u, 5u, 900u}) {
        lz4_run(jobs, results, &n, 8);
        for (unsigned i = 0; i < 8; i++)
            CHECK_EQ(results[i].status, i < n ? DAMACY__JOB_OK : DAMACY__JOB_NOT_RUN);
    }
}

TEST_MAIN
