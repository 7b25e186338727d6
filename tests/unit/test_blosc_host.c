/* blosc chunks on the host: what c-blosc writes with any parameters comes back, files of its old
 * versions too, and no damaged byte of a chunk is believed. */
#include "codec/blosc.h"
#include "corpus.h"
#include <blosc.h>

enum { MOST = 1 << 18 };
static uint8_t content[MOST];
static uint8_t packed[2 * MOST];
static uint8_t theirs[MOST];
static uint8_t ours[4000000];
static damacy__libraries libraries;
static damacy__zstd zstd;
static damacy_error err;

static void begin(void)
{
    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    memset(&zstd, 0, sizeof zstd);
}

static void end(void)
{
    damacy__zstd_close(&zstd);
    damacy__libraries_deinit(&libraries);
}

/* Copies that end where they end, so that ASan sees each byte too far. */
static damacy_status decode(const uint8_t* src, size_t size, size_t n)
{
    uint8_t* copy = (uint8_t*)malloc(size ? size : 1);
    uint8_t* dst = (uint8_t*)malloc(n ? n : 1);
    damacy__blosc_tools tools;
    damacy__blosc blosc = {0};
    damacy_status status;

    CHECK(copy && dst && n <= sizeof ours);
    memcpy(copy, src, size);
    memset(dst, 0xa5, n);
    memset(&tools, 0, sizeof tools);
    memset(&err, 0, sizeof err);
    err.offset = UINT64_MAX;
    tools.libraries = &libraries;
    tools.zstd = &zstd;
    status = damacy__blosc_parse(damacy__span_of(copy, size), n, &blosc, &err);
    if (status == DAMACY_OK) {
        const size_t scratch = damacy__blosc_scratch(&blosc);
        CHECK(scratch <= n);
        tools.scratch = (uint8_t*)malloc(scratch ? scratch : 1);
        CHECK(tools.scratch != NULL);
        status = damacy__blosc_decode(&tools, &blosc, damacy__span_of(copy, size), dst, &err);
        free(tools.scratch);
    }
    CHECK(status == DAMACY_OK || (err.status == status && strncmp(err.message, "blosc", 5) == 0));
    CHECK(status == DAMACY_OK || err.offset == UINT64_MAX || err.offset <= size);
    memcpy(ours, dst, n);
    free(dst);
    free(copy);
    return status;
}

TEST(blosc_decodes_the_files_of_old_versions)
{
    static const char* const versions[] = {"1.3.0", "1.7.0", "1.11.1", "1.14.0", "1.18.0"};
    static const char* const codecs[] = {
        "blosclz", "lz4", "lz4hc", "zlib", "zstd", "lz4-bitshuffle", "blosclz-bitshuffle"};
    int n = 0;

    begin();
    for (size_t v = 0; v < DAMACY__COUNT(versions); v++) {
        for (size_t c = 0; c < DAMACY__COUNT(codecs); c++) {
            char path[96];
            size_t size = 0;
            uint8_t* src;
            (void)snprintf(path, sizeof path, "blosc1/blosc-%s-%s.cdata", versions[v], codecs[c]);
            src = corpus_read(path, "", &size);
            if (!src) {
                continue;
            }
            n++;
            if (strncmp(codecs[c], "blosclz", 7) == 0) {
                CHECK_EQ(decode(src, size, sizeof ours), DAMACY_UNSUPPORTED);
                CHECK_HAS(err.message, "unsupported inner codec \"blosclz\"");
            } else {
                CHECK_EQ(decode(src, size, sizeof ours), DAMACY_OK);
                for (uint32_t i = 0; i < 1000000; i++) {
                    CHECK_EQ(damacy__load_u32le(ours + 4 * i), i);
                }
                CHECK_EQ(decode(src, size, sizeof ours - 1), DAMACY_DECODE);
            }
            free(src);
        }
    }
    CHECK_EQ(n, 25);
    end();
}

static void fill(uint64_t* state, size_t n)
{
    const uint64_t kind = test_random(state) % 5;

    for (size_t i = 0; i < n; i++) {
        const uint64_t r = test_random(state) >> 8;
        content[i] = kind == 0   ? 0
                     : kind == 1 ? (uint8_t)r
                     : kind == 2 ? (uint8_t)(i / 4 >> i % 4 * 8)
                     : kind == 3 ? (uint8_t)(i % 2 ? r % 2 : r % 60)
                                 : (uint8_t)(i % 3000 < 2000 ? r % 4 : r);
    }
}

typedef struct parameters {
    const char* name;
    int level;
    int shuffle;
    size_t width;
    size_t n;
    size_t block_size;
} parameters;

static size_t pack(const parameters* p, int threads)
{
    const int size = blosc_compress_ctx(p->level, p->shuffle, p->width, p->n, content, packed,
                                        sizeof packed, p->name, p->block_size, threads);
    CHECK(size > 0);
    return (size_t)size;
}

static void check(const parameters* p, int threads)
{
    const size_t size = pack(p, threads);
    const bool stored = (packed[2] & 2) != 0;

    if (!stored && p->n && (packed[2] >> 5 == 0 || packed[2] >> 5 == 2)) {
        CHECK_EQ(decode(packed, size, p->n), DAMACY_UNSUPPORTED);
        return;
    }
    if (decode(packed, size, p->n) != DAMACY_OK || memcmp(ours, content, p->n) != 0) {
        printf("# %s level %d shuffle %d width %zu size %zu block %zu: %s\n", p->name, p->level,
               p->shuffle, p->width, p->n, p->block_size, err.message);
        CHECK(false);
    }
    CHECK_EQ(decode(packed, size, p->n + 1), DAMACY_DECODE);
    CHECK_EQ(decode(packed, size - 1, p->n), DAMACY_DECODE);
    packed[size] = 0;
    CHECK_EQ(decode(packed, size + 1, p->n), DAMACY_DECODE);
}

static const char* const names[] = {"blosclz", "lz4", "lz4hc", "zlib", "zstd"};

TEST(blosc_decodes_what_c_blosc_writes_with_any_parameters)
{
    uint64_t state = test_seed();
    parameters p;

    begin();
    for (int round = 0; round < 4000; round++) {
        p.name = names[round % 20 ? 1 + test_random(&state) % 4 : 0];
        p.level = (int)(test_random(&state) % 10);
        p.shuffle = (int)(test_random(&state) % 3);
        p.width = test_random(&state) % 18;
        p.width = p.width == 0 ? 255 : p.width;
        p.n = test_random(&state) % (round % 40 ? 6000 : MOST);
        p.block_size = test_random(&state) % 3 ? 0 : 1 + test_random(&state) % 5000;
        if (round % 16 == 0) { /* HC and zstd's high levels are slow */
            p.n = 16 * p.width * (1 + test_random(&state) % 40);
        }
        if (p.n > 20000 && p.level > 5) {
            p.level = 5;
        }
        fill(&state, p.n);
        check(&p, 1 + (int)(test_random(&state) % 2));
    }
    end();
}

TEST(blosc_decodes_every_codec_level_shuffle_and_width)
{
    uint64_t state = test_seed();
    parameters p;

    begin();
    for (size_t name = 1; name < DAMACY__COUNT(names); name++) {
        for (p.level = 0; p.level < 10; p.level++) {
            for (p.shuffle = 0; p.shuffle < 3; p.shuffle++) {
                for (p.width = 1; p.width <= 18; p.width++) {
                    p.name = names[name];
                    p.width = p.width == 18 ? 255 : p.width;
                    p.n = 2560 + p.width + test_random(&state) % 300;
                    p.block_size = 1024;
                    fill(&state, p.n);
                    check(&p, 1);
                    p.width = p.width == 255 ? 18 : p.width;
                }
            }
        }
    }
    end();
}

TEST(blosc_decodes_every_small_size)
{
    uint64_t state = test_seed();
    parameters p;

    begin();
    memset(&p, 0, sizeof p);
    for (p.n = 0; p.n <= 130; p.n++) {
        for (size_t name = 1; name < DAMACY__COUNT(names); name++) {
            for (p.shuffle = 0; p.shuffle < 3; p.shuffle++) {
                p.name = names[name];
                p.level = 5;
                p.width = 1 + test_random(&state) % 8;
                fill(&state, p.n);
                check(&p, 1);
            }
        }
    }
    end();
}

/* Large enough for the vector loops, their ends and the tails. */
TEST(shuffles_are_undone_as_defined)
{
    enum { N = 9000 };
    uint64_t state = test_seed();

    for (uint32_t width = 1; width <= 40; width++) {
        for (int round = 0; round < 12; round++) {
            const size_t size = test_random(&state) % N + (round < 6 ? 0 : width);
            const size_t n = size / width;
            uint8_t* dst = (uint8_t*)malloc(size ? size : 1);
            CHECK(dst != NULL);
            for (size_t i = 0; i < size; i++) {
                content[i] = (uint8_t)(test_random(&state) >> 8);
            }
            memcpy(theirs, content, size);
            for (size_t i = 0; i < n; i++) {
                for (size_t j = 0; j < width; j++) {
                    theirs[i * width + j] = content[j * n + i];
                }
            }
            damacy__unshuffle(dst, content, size, width);
            CHECK(memcmp(dst, theirs, size) == 0);
            memcpy(theirs, content, size);
            for (size_t i = 0; i < n && n % 8 == 0; i++) {
                for (size_t j = 0; j < width; j++) {
                    uint32_t byte = 0;
                    for (size_t k = 0; k < 8; k++) {
                        byte |= (content[(8 * j + k) * (n / 8) + i / 8] >> i % 8 & 1u) << k;
                    }
                    theirs[i * width + j] = (uint8_t)byte;
                }
            }
            damacy__unshuffle_bits(dst, content, size, width);
            CHECK(memcmp(dst, theirs, size) == 0);
            free(dst);
        }
    }
    for (uint32_t width = 1; width <= 18; width++) { /* whole steps and a rest */
        const size_t n = 1024 + 8 * width;
        for (size_t i = 0; i < n * width; i++) {
            content[i] = (uint8_t)(test_random(&state) >> 8);
        }
        damacy__unshuffle_bits(ours, content, n * width, width);
        for (size_t i = 0; i < n; i++) {
            for (size_t b = 0; b < 8 * (size_t)width; b++) {
                CHECK_EQ(ours[i * width + b / 8] >> b % 8 & 1,
                         content[b * (n / 8) + i / 8] >> i % 8 & 1);
            }
        }
    }
}

/* What is accepted of a changed chunk, c-blosc accepts with the same bytes. */
static void judge(const uint8_t* src, size_t size, size_t n, size_t* n_accepted)
{
    size_t claimed = 0;

    if (decode(src, size, n) != DAMACY_OK) {
        return;
    }
    ++*n_accepted;
    CHECK(blosc_cbuffer_validate(src, size, &claimed) == 0);
    CHECK_EQ(claimed, n);
    if (src[2] & 2) { /* stored: c-blosc looks at the block size even so */
        CHECK(memcmp(ours, src + 16, n) == 0);
        return;
    }
    memset(theirs, 0xa5, n);
    CHECK_EQ(blosc_decompress_ctx(src, theirs, n, 1), n);
    CHECK(memcmp(ours, theirs, n) == 0);
}

static size_t container(int which, size_t* n)
{
    static const parameters kinds[] = {
        {"lz4", 5, 1, 4, 2600, 1024},  {"zstd", 5, 2, 2, 2600, 1024}, {"zlib", 5, 1, 2, 2600, 1024},
        {"zstd", 1, 1, 4, 3000, 3000}, {"lz4", 0, 1, 4, 600, 0},      {"lz4", 9, 2, 1, 2048, 512},
    };
    uint64_t state = 77;

    for (size_t i = 0; i < kinds[which].n; i++) {
        content[i] = (uint8_t)(i % 4 ? 0 : test_random(&state) % 50);
    }
    *n = kinds[which].n;
    return pack(&kinds[which], 1);
}

TEST(blosc_believes_no_changed_header_byte)
{
    size_t n_accepted = 0;
    size_t n_bytes = 0;

    begin();
    for (int which = 0; which < 6; which++) {
        size_t n = 0;
        const size_t size = container(which, &n);
        const size_t n_blocks = packed[2] & 2 ? 0
                                              : (n + damacy__load_u32le(packed + 8) - 1) /
                                                    damacy__load_u32le(packed + 8);
        for (size_t at = 0; at < 16 + 4 * n_blocks + (n_blocks ? 4 : 0); at++) {
            const uint8_t old = packed[at];
            for (unsigned value = 0; value < 256; value++) {
                packed[at] = (uint8_t)value;
                judge(packed, size, n, &n_accepted);
                n_bytes++;
            }
            packed[at] = old;
        }
    }
    printf("# %zu of %zu changes accepted\n", n_accepted, n_bytes);
    CHECK(n_accepted > 0 && n_accepted < n_bytes / 4);
    end();
}

TEST(blosc_refuses_every_prefix)
{
    begin();
    for (int which = 0; which < 6; which++) {
        size_t n = 0;
        const size_t size = container(which, &n);
        for (size_t cut = 0; cut < size; cut++) {
            uint8_t saved[4];
            CHECK_EQ(decode(packed, cut, n), DAMACY_DECODE);
            if (cut < 16) {
                continue;
            }
            memcpy(saved, packed + 12, 4); /* and with a header that says so */
            damacy__store_u32le(packed + 12, (uint32_t)cut);
            CHECK_EQ(decode(packed, cut, n), DAMACY_DECODE);
            memcpy(packed + 12, saved, 4);
        }
    }
    end();
}

TEST(blosc_survives_random_damage)
{
    uint64_t state = test_seed();
    size_t n_accepted = 0;

    begin();
    for (int round = 0; round < 60000; round++) {
        static size_t size;
        static size_t n;
        uint8_t saved[3][2];
        size_t places[3];
        if (round % 10000 == 0) {
            size = container(round / 10000, &n);
        }
        for (int k = 0; k < 3; k++) {
            const uint64_t r = test_random(&state);
            places[k] = 16 + (r >> 20) % (size - 16);
            saved[k][0] = packed[places[k]];
            packed[places[k]] =
                r & 1 ? (uint8_t)(r >> 8) : (uint8_t)(saved[k][0] ^ 1u << (r >> 8 & 7));
        }
        n_accepted += decode(packed, size, n) == DAMACY_OK;
        for (int k = 3; k-- > 0;) {
            packed[places[k]] = saved[k][0];
        }
    }
    printf("# %zu of 60000 accepted\n", n_accepted);
    end();
}

/* Values at the edges of each 32-bit field of a chunk. */
TEST(blosc_refuses_fields_at_their_edges)
{
    static const int64_t edges[] = {
        0,     1,       3,          4,          15,        16,         17,         27,        28,
        29,    127,     128,        1023,       1024,      1025,       2599,       2600,      2601,
        65535, 1 << 20, 0x2aaaaaa0, 0x7fffffef, INT32_MAX, 0x80000000, 0xfffffff0, UINT32_MAX};
    size_t n_accepted = 0;

    begin();
    for (int which = 0; which < 6; which++) {
        size_t n = 0;
        const size_t size = container(which, &n);
        for (size_t field = 4; field + 4 <= size && field < 48; field += 4) {
            uint8_t saved[4];
            memcpy(saved, packed + field, 4);
            for (size_t e = 0; e < DAMACY__COUNT(edges); e++) {
                damacy__store_u32le(packed + field, (uint32_t)edges[e]);
                judge(packed, size, n, &n_accepted);
                damacy__store_u32le(packed + field, (uint32_t)size + (uint32_t)edges[e] - 16);
                judge(packed, size, n, &n_accepted);
            }
            memcpy(packed + field, saved, 4);
        }
    }
    printf("# %zu accepted\n", n_accepted);
    end();
}

/* A chunk of two blocks of 8 bytes, made by hand. */
static size_t by_hand(uint8_t* out, uint8_t flags, uint8_t width)
{
    static const uint8_t bytes[] = {
        2,  1, 0, 1, 16,  0,   0,   0,   8,   0,   0,   0,
        48, 0, 0, 0, 36,  0,   0,   0,   24,  0,   0,   0, /* starts, the second block first */
        8,  0, 0, 0, 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p',
        8,  0, 0, 0, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'};

    memcpy(out, bytes, sizeof bytes);
    out[2] = flags;
    out[3] = width;
    return sizeof bytes;
}

TEST(blosc_rules_of_the_format_hold)
{
    uint8_t src[64];
    size_t size;

    begin();
    size = by_hand(src, 0x20, 1);
    CHECK_EQ(decode(src, size, 16), DAMACY_OK); /* starts count from the chunk's first byte */
    CHECK(memcmp(ours, "abcdefghijklmnop", 16) == 0);
    size = by_hand(src, 0x21, 2);
    CHECK_EQ(decode(src, size, 16), DAMACY_OK);
    CHECK(memcmp(ours, "aebfcgdhimjnkolp", 16) == 0);
    size = by_hand(src, 0x21, 1);
    CHECK_EQ(decode(src, size, 16), DAMACY_OK); /* bytes have nothing to shuffle */
    CHECK(memcmp(ours, "abcdefghijklmnop", 16) == 0);
    size = by_hand(src, 0x21, 3);
    CHECK_EQ(decode(src, size, 16), DAMACY_OK); /* the tail stays where it is */
    CHECK(memcmp(ours, "acebdfghikmjlnop", 16) == 0);
    size = by_hand(src, 0x24, 2);
    CHECK_EQ(decode(src, size, 16), DAMACY_OK); /* 4 elements: no multiple of 8, never shuffled */
    CHECK(memcmp(ours, "abcdefghijklmnop", 16) == 0);
    size = by_hand(src, 0x24, 9);
    CHECK_EQ(decode(src, size, 16), DAMACY_OK); /* not one element */
    CHECK(memcmp(ours, "abcdefghijklmnop", 16) == 0);
    size = by_hand(src, 0x20, 1);
    src[16] = 24; /* both blocks from the same bytes */
    CHECK_EQ(decode(src, size, 16), DAMACY_OK);
    CHECK(memcmp(ours, "ijklmnopijklmnop", 16) == 0);
    end();
}

typedef struct rule {
    size_t at;
    uint8_t value;
    damacy_status status;
    uint64_t offset; /* UINT64_MAX: none */
    const char* word;
} rule;

TEST(blosc_errors_say_what_and_where)
{
    static const rule rules[] = {
        {0, 1, DAMACY_DECODE, UINT64_MAX, "format version 1"},
        {0, 3, DAMACY_UNSUPPORTED, UINT64_MAX, "c-blosc2"},
        {0, 5, DAMACY_UNSUPPORTED, UINT64_MAX, "c-blosc2"},
        {0, 255, DAMACY_DECODE, UINT64_MAX, "format version 255"},
        {1, 2, DAMACY_DECODE, UINT64_MAX, "version 2 of the inner codec"},
        {2, 0x00, DAMACY_UNSUPPORTED, UINT64_MAX, "\"blosclz\""},
        {2, 0x40, DAMACY_UNSUPPORTED, UINT64_MAX, "\"snappy\""},
        {2, 0xa0, DAMACY_DECODE, UINT64_MAX, "unknown inner codec 5"},
        {2, 0x28, DAMACY_DECODE, 2, "reserved flags"},
        {2, 0x25, DAMACY_DECODE, 2, "reserved flags"},
        {2, 0x22, DAMACY_DECODE, 4, "stored size"},
        {3, 0, DAMACY_DECODE, 3, "element size of 0"},
        {4, 17, DAMACY_DECODE, UINT64_MAX, "says 17 bytes, the chunk has 16"},
        {8, 0, DAMACY_DECODE, 8, "block size"},
        {8, 17, DAMACY_DECODE, 8, "block size"},
        {8, 1, DAMACY_DECODE, 8, "no room for the block starts"},
        {12, 47, DAMACY_DECODE, UINT64_MAX, "says 47 stored bytes, there are 48"},
        {16, 23, DAMACY_DECODE, 16, "block start outside"},
        {20, 49, DAMACY_DECODE, 20, "block start outside"},
        {19, 255, DAMACY_DECODE, 16, "block start outside"},
        {20, 46, DAMACY_DECODE, 46, "cut short"},
        {36, 0, DAMACY_DECODE, 36, "impossible"},
        {36, 9, DAMACY_DECODE, 36, "impossible"},
        {39, 128, DAMACY_DECODE, 36, "impossible"},
        {36, 7, DAMACY_DECODE, 40,
         "stream of 7 bytes at byte 40: lz4: decoded to 6 bytes, 8 are due"},
    };
    uint8_t src[64];

    begin();
    for (size_t i = 0; i < DAMACY__COUNT(rules); i++) {
        const size_t size = by_hand(src, 0x20, 1);
        src[rules[i].at] = rules[i].value;
        CHECK_EQ(decode(src, size, 16), rules[i].status);
        CHECK_HAS(err.message, rules[i].word);
        CHECK_EQ(err.offset, rules[i].offset);
    }
    end();
}

TEST_MAIN
