/* LZ4 blocks on the host: what the reference writes comes back, and on damaged blocks the decoder
 * says what a decoder of one byte at a time says. */
#include "codec/lz4.h"
#include "tests/test.h"
#include <lz4.h>
#include <lz4hc.h>

static damacy_error err;

/* Copies that end where they end, so that ASan sees each byte too far. */
static damacy_status decode(const uint8_t* src, size_t size, uint8_t* out, size_t n)
{
    uint8_t* copy = (uint8_t*)malloc(size ? size : 1);
    uint8_t* dst = (uint8_t*)malloc(n ? n : 1);
    damacy_status status;

    CHECK(copy && dst);
    memcpy(copy, src, size);
    memset(dst, 0xa5, n);
    err.message[0] = 0;
    err.offset = UINT64_MAX;
    status = damacy__lz4_decode(damacy__span_of(copy, size), dst, n, &err);
    CHECK(status == DAMACY_OK || status == DAMACY_DECODE);
    CHECK(status == DAMACY_OK || err.message[0] != 0);
    CHECK(status == DAMACY_OK || err.offset == UINT64_MAX || err.offset <= size);
    memcpy(out, dst, n);
    free(dst);
    free(copy);
    return status;
}

/* The format in the fewest lines: one byte at a time. 1: a block, 0: not, -1: an offset of 0. */
static int model(const uint8_t* src, size_t size, uint8_t* dst, size_t room)
{
    size_t at = 0;
    size_t n = 0;

    while (at < size) {
        const uint8_t token = src[at++];
        size_t length = token >> 4;
        size_t offset;
        for (uint8_t more = length == 15 ? 255 : 0; more == 255; length += more) {
            if (at == size) {
                return 0;
            }
            more = src[at++];
        }
        for (; length > 0; length--) {
            if (at == size || n == room) {
                return 0;
            }
            dst[n++] = src[at++];
        }
        if (at == size) {
            return n == room;
        }
        if (size - at < 2) {
            return 0;
        }
        offset = src[at] | (size_t)src[at + 1] << 8;
        at += 2;
        length = (token & 15) + 4u;
        for (uint8_t more = length == 19 ? 255 : 0; more == 255; length += more) {
            if (at == size) {
                return 0;
            }
            more = src[at++];
        }
        for (; length > 0; length--) {
            if (offset == 0 || offset > n || n == room) {
                return offset == 0 ? -1 : 0;
            }
            dst[n] = dst[n - offset];
            n++;
        }
    }
    return 0;
}

enum { MOST = 70000 };
static uint8_t content[MOST];
static uint8_t packed[2 * MOST];
static uint8_t ours[MOST];
static uint8_t theirs[MOST];

/* Bytes of one of several kinds. */
static void fill(uint64_t* state, size_t n)
{
    const uint64_t kind = test_random(state) % 6;
    const uint64_t period = 1 + test_random(state) % 40;

    for (size_t i = 0; i < n; i++) {
        const uint64_t r = test_random(state) >> 8;
        content[i] = kind == 0   ? 0
                     : kind == 1 ? (uint8_t)r
                     : kind == 2 ? (uint8_t)(i % period * 37)
                     : kind == 3 ? (uint8_t)(r % 16 ? (i / 2 % 2 ? 1 : 200) : r >> 8)
                     : kind == 4 ? (uint8_t)(r % 3)
                                 : (uint8_t)(i >= 300 && r % 8 ? content[i - 300] : r >> 8);
    }
}

static size_t pack(uint64_t* state, size_t n)
{
    const uint64_t level = test_random(state) % 4;
    const int size = level == 3 ? LZ4_compress_HC((const char*)content, (char*)packed, (int)n,
                                                  (int)sizeof packed, 9)
                                : LZ4_compress_fast((const char*)content, (char*)packed, (int)n,
                                                    (int)sizeof packed, (int)(1 + 10 * level));
    CHECK(size > 0);
    return (size_t)size;
}

TEST(lz4_decodes_what_the_reference_writes)
{
    uint64_t state = test_seed();

    for (int round = 0; round < 3000; round++) {
        const size_t n =
            round < 300 ? (size_t)round : test_random(&state) % (round % 50 ? 2000 : MOST);
        size_t size;
        fill(&state, n);
        size = pack(&state, n);
        CHECK_EQ(decode(packed, size, ours, n), DAMACY_OK);
        CHECK(memcmp(ours, content, n) == 0);
        CHECK_EQ(decode(packed, size, ours, n + 1), DAMACY_DECODE);
        if (n) {
            CHECK_EQ(decode(packed, size, ours, n - 1), DAMACY_DECODE);
        }
        CHECK_EQ(decode(packed, size - 1, ours, n), DAMACY_DECODE);
    }
}

TEST(lz4_refuses_every_prefix)
{
    uint64_t state = test_seed();

    for (int round = 0; round < 20; round++) {
        size_t size;
        fill(&state, 1500);
        size = pack(&state, 1500);
        for (size_t n = 0; n < size; n++) {
            CHECK_EQ(decode(packed, n, ours, 1500), DAMACY_DECODE);
        }
    }
}

TEST(lz4_judges_damaged_blocks_as_the_format_does)
{
    uint64_t state = test_seed();
    size_t accepted = 0;

    for (int round = 0; round < 200000; round++) {
        static size_t size;
        static size_t n;
        uint8_t damaged[1200];
        if (round % 50 == 0) {
            n = test_random(&state) % 1000;
            fill(&state, n);
            size = pack(&state, n);
        }
        CHECK(size <= sizeof damaged);
        memcpy(damaged, packed, size);
        for (uint64_t k = 1 + test_random(&state) % 3; k > 0; k--) {
            const uint64_t r = test_random(&state);
            damaged[(r >> 16) % size] =
                r & 1 ? (uint8_t)(r >> 8)
                      : (uint8_t)(damaged[(r >> 16) % size] ^ 1u << (r >> 8 & 7));
        }
        {
            const int good = model(damaged, size, theirs, n);
            const damacy_status status = decode(damaged, size, ours, n);
            CHECK_EQ(status == DAMACY_OK, good == 1);
            CHECK(good != 1 || memcmp(ours, theirs, n) == 0);
            accepted += good == 1;
            /* the reference also demands the writers' rules about a block's end, and lets an offset
             * of 0 pass */
            if (LZ4_decompress_safe((const char*)damaged, (char*)theirs, (int)size, (int)n) ==
                (int)n) {
                CHECK(good == -1 || (good == 1 && memcmp(ours, theirs, n) == 0));
            }
        }
    }
    printf("# %zu of 200000 damaged blocks are blocks\n", accepted);
    CHECK(accepted > 100);
}

TEST(lz4_copies_every_offset_and_length_right)
{
    for (size_t offset = 1; offset <= 40; offset++) {
        for (size_t length = 4; length <= 90; length++) {
            for (size_t rest = 0; rest <= 400; rest += rest < 20 ? 1 : 95) {
                uint8_t src[1024]; /* 400 more: far from both ends, where fewer checks are due */
                uint8_t expected[1024];
                size_t at = 0;
                size_t n = offset + length + rest;
                src[at++] =
                    (uint8_t)((offset < 15 ? offset : 15) << 4 | (length < 19 ? length - 4 : 15));
                if (offset >= 15) {
                    src[at++] = (uint8_t)(offset - 15);
                }
                for (size_t i = 0; i < offset; i++) {
                    src[at++] = expected[i] = (uint8_t)(i * 7 + 1);
                }
                src[at++] = (uint8_t)offset;
                src[at++] = 0;
                if (length >= 19) {
                    src[at++] = (uint8_t)(length - 19);
                }
                src[at++] = (uint8_t)((rest < 15 ? rest : 15) << 4);
                if (rest >= 15 + 255) {
                    src[at++] = 255;
                }
                if (rest >= 15) {
                    src[at++] = (uint8_t)((rest - 15) % 255);
                }
                for (size_t i = 0; i < length; i++) {
                    expected[offset + i] = expected[i];
                }
                for (size_t i = 0; i < rest; i++) {
                    src[at++] = expected[offset + length + i] = (uint8_t)(100 + i % 100);
                }
                CHECK_EQ(decode(src, at, ours, n), DAMACY_OK);
                CHECK(memcmp(ours, expected, n) == 0);
            }
        }
    }
}

typedef struct rule {
    const char* bytes;
    size_t size;
    size_t n;
    uint64_t offset;
    const char* word;
} rule;

#define RULE(text, n, offset, word)            \
    {                                          \
        text, sizeof text - 1, n, offset, word \
    }

TEST(lz4_errors_say_what_and_where)
{
    static const rule rules[] = {
        RULE("", 0, 0, "no bytes"),
        RULE("\xf0", 20, 1, "length is cut short"),
        RULE("\xf0\xff\xff", 20, 3, "length is cut short"),
        RULE("\x20x", 2, 1, "literals beyond the end"),
        RULE("\x20xy", 1, 1, "literals beyond the end"),
        RULE("\x20xy\x01", 9, 3, "offset is cut short"),
        RULE("\x20xy\x00\x00\x10z", 7, 3, "offset before the start"),
        RULE("\x20xy\x03\x00\x10z", 7, 3, "offset before the start"),
        RULE("\x2fxy\x02\x00\xff", 300, 6, "length is cut short"),
        RULE("\x2fxy\x02\x00\xff\x00\x10z", 100, 7, "match beyond the end"),
        RULE("\x20xy\x02\x00", 6, 5, "no final literals"),
        RULE("\x20xy", 3, 0, "decoded to 2 bytes, 3 are due"),
    };

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        CHECK_EQ(decode((const uint8_t*)rules[i].bytes, rules[i].size, ours, rules[i].n),
                 DAMACY_DECODE);
        CHECK_HAS(err.message, rules[i].word);
        CHECK_EQ(err.offset == UINT64_MAX ? 0 : err.offset, rules[i].offset);
    }
    CHECK_EQ(decode((const uint8_t*)"\0", 1, ours, 0), DAMACY_OK);
}

TEST_MAIN
