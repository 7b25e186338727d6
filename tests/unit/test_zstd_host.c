/* Zstandard on the host: every valid frame byte for byte, every verdict on broken ones, and what
 * the walk over headers says before libzstd sees a byte. */
#include "codec/zstd.h"
#include "corpus.h"

static corpus frames;
static damacy__libraries libraries;
static damacy__zstd zstd;
static damacy__alloc alloc;
static damacy_error err;

/* What decodes: libzstd, our own decoder, or the first with the second behind it, as in a pipeline.
 */
enum { LIBRARY, OWN, BOTH };

static void begin(int which, bool skip_checksums)
{
    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    memset(&zstd, 0, sizeof zstd);
    memset(&alloc, 0, sizeof alloc);
    zstd.alloc = which == LIBRARY ? NULL : &alloc;
    if (which == OWN) {
        zstd.is_open = true; /* as if libzstd were missing */
        zstd.skip_checksums = skip_checksums;
    }
    if (damacy__zstd_open(&zstd, &libraries, skip_checksums, &err) != DAMACY_OK) {
        SKIP("libzstd.so.1 is not there");
    }
}

static void end(void)
{
    damacy__zstd_close(&zstd);
    damacy__libraries_deinit(&libraries);
    CHECK_EQ(alloc.live_bytes, 0);
}

/* Decodes a copy that ends where it ends, so that ASan sees each byte too far. *n: in, room; out,
 * bytes. */
static damacy_status decode_free(const uint8_t* src, size_t size, uint8_t** out, uint64_t* n)
{
    uint8_t* copy = (uint8_t*)malloc(size ? size : 1);
    uint8_t* dst = (uint8_t*)malloc(*n ? (size_t)*n : 1);
    damacy_status status;

    CHECK(copy && dst);
    memcpy(copy, src, size);
    err.message[0] = 0;
    err.offset = UINT64_MAX;
    status = damacy__zstd_decode(&zstd, damacy__span_of(copy, size), dst, *n, n, &err);
    CHECK(status == DAMACY_OK || (strlen(err.message) > 10 && err.status == status));
    CHECK(status == DAMACY_OK || err.offset == UINT64_MAX || err.offset <= size);
    free(copy);
    *out = dst;
    return status;
}

/* Demands exactly n bytes. */
static damacy_status decode_exact(const void* src, size_t size, uint64_t n)
{
    uint8_t* copy = (uint8_t*)malloc(size ? size : 1);
    uint8_t* dst = (uint8_t*)malloc(n ? (size_t)n : 1);
    damacy_status status;

    CHECK(copy && dst);
    memcpy(copy, src, size);
    err.offset = UINT64_MAX;
    status = damacy__zstd_decode(&zstd, damacy__span_of(copy, size), dst, n, NULL, &err);
    free(dst);
    free(copy);
    return status;
}

static void valid_set(const char* name, size_t expected)
{
    corpus_load(&frames, name);
    CHECK_EQ(frames.n, expected);
    for (size_t i = 0; i < frames.n; i++) {
        const corpus_file* f = &frames.files[i];
        const uint64_t size = strtoull(f->cells[3], NULL, 10);
        const uint32_t crc = (uint32_t)strtoul(f->cells[4], NULL, 16);
        uint8_t* bare = (uint8_t*)malloc(f->size);

        for (int strip = 0; strip < 2; strip++) {
            uint8_t* out = NULL;
            uint64_t n = size;
            CHECK(bare != NULL);
            memcpy(bare, f->ptr, f->size);
            CHECK(bare[4] & 4);
            bare[4] = (uint8_t)(bare[4] & ~(strip ? 4 : 0));
            CHECK_EQ(decode_free(bare, f->size - (strip ? 4 : 0), &out, &n), DAMACY_OK);
            CHECK_EQ(n, size);
            CHECK_EQ(damacy__crc32c(out, size), crc);
            free(out);
            CHECK_EQ(decode_exact(bare, f->size - (strip ? 4 : 0), size), DAMACY_OK);
            CHECK_EQ(decode_exact(bare, f->size - (strip ? 4 : 0), size + 1), DAMACY_DECODE);
            if (size) {
                CHECK_EQ(decode_exact(bare, f->size - (strip ? 4 : 0), size - 1), DAMACY_DECODE);
            }
        }
        free(bare);
    }
    corpus_unload(&frames);
}

TEST(zstd_decodes_every_generated_frame_with_and_without_checksum)
{
    for (int which = LIBRARY; which <= BOTH; which++) {
        begin(which, false);
        valid_set("A_big_s1", 21);
        valid_set("B_cs17_s1", 300);
        valid_set("C_cs14_s1001", 300);
        valid_set("D_smallblk_s2001", 300);
        end();
    }
}

typedef struct known {
    const char* name;
    const char* why;
} known;

/* Where our own decoder differs from the rule on purpose: the same files as on the GPU. */
static const known own_crafted[] = {
    {"hdr_empty", "no bytes at all: an object of 0 bytes is an error for us"},
    {NULL, NULL},
};

static const known own_fuzz[] = {
    {"b5f31ad94db0f7eb6ae58b75763b4e241dd51978", "raw or RLE block above the block limit"},
    {"eedc09ffc380cc08a630d1fffa4432828222153f", "raw or RLE block above the block limit"},
    {"78e70cc1266a2b8460a31185fd91be9d977e4452", "Huffman streams that end before their symbols"},
    {"cf9e09c0b57930e6d1eb6c1277675711a6254829", "Huffman stream with bits left over"},
    {NULL, NULL},
};

/* Where libzstd may differ besides: it accepts, and no header shows why it should not. Which of
 * these do depends on its version. */
static const known library_crafted[] = {
    {"hdr_empty", "as above"},
    {"seq_bits_extra", "bits left over in a sequence stream: accepted before libzstd 1.5.6"},
    {"seq_ml_131074", "a block that gives more than 128 KiB: libzstd checks the room only"},
    {"seq_out_131073", "the same"},
    {"seq_off_zero", "an offset of 0: taken as 1 before libzstd 1.5.6"},
    {NULL, NULL},
};

static const known library_fuzz[] = {
    {"b5f31ad94db0f7eb6ae58b75763b4e241dd51978", "as above"},
    {"eedc09ffc380cc08a630d1fffa4432828222153f", "as above"},
    {"78e70cc1266a2b8460a31185fd91be9d977e4452", "as above; accepted by libzstd 1.5.6"},
    {"57f5381b908ba2667b9066431711373db09be23a", "accepted by libzstd 1.5.4"},
    {"b23ffdf646983c8e784f9f947ef079ec3409ce9d", "accepted by libzstd 1.5.4"},
    {NULL, NULL},
};

static bool is_known(const known* list, const char* name)
{
    for (; list->name; list++) {
        if (strcmp(list->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Compares the verdict on each file with the rule; returns how many of the known ones differ. */
static int verdicts(const char* name, const char* newer, const known* list, size_t expected)
{
    const bool has_spec = newer == NULL;
    const size_t version = has_spec ? 6 : 5; /* column of libzstd 1.5.6's verdict */
    int wrong = 0;
    int differ = 0;

    corpus_load(&frames, name);
    CHECK_EQ(frames.n, expected);
    for (size_t i = 0; i < frames.n; i++) {
        const corpus_file* f = &frames.files[i];
        const char* spec = has_spec ? f->cells[2] : "any";
        const bool accept = strcmp(strcmp(spec, "any") == 0 ? f->cells[version] : spec, "ok") == 0;
        uint64_t n = 16 << 20;
        uint8_t* out = NULL;
        const bool accepted = decode_free(f->ptr, f->size, &out, &n) == DAMACY_OK;
        bool same = accept == accepted;

        if (same && accepted && strcmp(f->cells[version], "ok") == 0) {
            same = n == strtoull(f->cells[version + 1], NULL, 10) &&
                   damacy__crc32c(out, (size_t)n) == strtoul(f->cells[version + 2], NULL, 16);
        }
        free(out);
        if (same) {
            continue;
        }
        printf("# %s: %s, the rule is %s (%s)\n", f->name, accepted ? "accepted" : err.message,
               accept ? "ok" : "err", is_known(list, f->name) ? "known" : "NEW");
        differ += is_known(list, f->name);
        wrong += !is_known(list, f->name);
    }
    corpus_unload(&frames);
    CHECK_EQ(wrong, 0);
    return differ;
}

TEST(zstd_follows_the_specification_on_crafted_frames)
{
    begin(OWN, false);
    CHECK_EQ(verdicts("zstd_crafted", NULL, own_crafted, 215), 1);
    end();
    begin(BOTH, false);
    printf("# libzstd %s: %d known differences\n", ZSTD_versionString(),
           verdicts("zstd_crafted", NULL, library_crafted, 215));
    end();
}

TEST(zstd_agrees_with_libzstd_156_on_fuzzed_inputs)
{
    begin(OWN, false);
    CHECK_EQ(verdicts("zstd_fuzz", "1.5.6", own_fuzz, 1230), 4);
    end();
    begin(BOTH, false);
    printf("# libzstd %s: %d known differences\n", ZSTD_versionString(),
           verdicts("zstd_fuzz", "1.5.6", library_fuzz, 1230));
    end();
}

/* 300 bytes that compress, one block. */
static size_t small_frame(uint8_t* out, size_t capacity, int checksum, uint8_t* content)
{
    ZSTD_CCtx* c = ZSTD_createCCtx();
    size_t n;

    for (size_t i = 0; i < 300; i++) {
        content[i] = (uint8_t)(i * i % 7 + i / 50);
    }
    (void)ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, checksum);
    n = ZSTD_compress2(c, out, capacity, content, 300);
    ZSTD_freeCCtx(c);
    CHECK(!ZSTD_isError(n) && n < 300);
    return n;
}

TEST(zstd_refuses_every_prefix_and_every_trailing_byte)
{
    uint8_t content[300];
    uint8_t frame[600] = {0};
    size_t size;

    begin(OWN, false);
    for (int checksum = 0; checksum < 2; checksum++) {
        size = small_frame(frame, sizeof frame, checksum, content);
        CHECK_EQ(decode_exact(frame, size, 300), DAMACY_OK);
        for (size_t n = 0; n < size; n++) {
            CHECK_EQ(decode_exact(frame, n, 300), DAMACY_DECODE);
            CHECK(err.message[0] != 0);
        }
        for (size_t n = 1; n <= 8; n++) {
            memset(frame + size, 0, n);
            CHECK_EQ(decode_exact(frame, size + n, 300), DAMACY_DECODE);
            CHECK_EQ(err.offset, size);
        }
    }
    end();
}

TEST(zstd_with_a_checksum_never_gives_wrong_bytes_for_a_flipped_bit)
{
    uint8_t content[300];
    uint8_t frame[600];
    uint8_t out[300];
    size_t size;

    begin(BOTH, false);
    size = small_frame(frame, sizeof frame, 1, content);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        frame[bit / 8] = (uint8_t)(frame[bit / 8] ^ (1u << bit % 8));
        if (damacy__zstd_decode(&zstd, damacy__span_of(frame, size), out, 300, NULL, &err) ==
            DAMACY_OK) {
            CHECK(memcmp(out, content, 300) == 0);
            CHECK(bit / 8 <= 5); /* only fields that change nothing, such as the unused bit */
        }
        frame[bit / 8] = (uint8_t)(frame[bit / 8] ^ (1u << bit % 8));
    }
    end();
}

TEST(zstd_ignores_checksums_only_when_asked_and_every_time)
{
    uint8_t content[300];
    uint8_t frame[600];
    size_t size;

    for (int skip = 0; skip < 2; skip++) {
        begin(BOTH, skip != 0);
        size = small_frame(frame, sizeof frame, 1, content);
        frame[size - 1] ^= 1;
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(decode_exact(frame, size, 300), skip ? DAMACY_OK : DAMACY_DECODE);
        }
        CHECK_EQ(decode_exact(frame, size - 1, 300), DAMACY_DECODE); /* its place is demanded */
        end();
    }
}

/* A frame of bytes, the status, the offset and a word of the message. */
typedef struct rule {
    const char* bytes;
    size_t size;
    uint64_t expected;
    damacy_status status;
    uint64_t offset;
    const char* word;
} rule;

#define RULE(text, expected, status, offset, word)            \
    {                                                         \
        text, sizeof text - 1, expected, status, offset, word \
    }

TEST(zstd_headers_are_judged_before_libzstd_with_the_place)
{
    /* magic, descriptor 0x20: single segment, 1-byte content size */
    static const rule rules[] = {
        RULE("\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x", 1, DAMACY_OK, 0, ""),
        RULE("\x28\xb5\x2f\xfd\x30\x01\x09\x00\x00x", 1, DAMACY_OK, 0, ""), /* unused bit */
        RULE("\x28\xb5\x2f\xfd\x28\x01\x09\x00\x00x", 1, DAMACY_DECODE, 4, "reserved bit"),
        RULE("\x28\xb5\x2f\xfd\x21\x05\x01\x09\x00\x00x", 1, DAMACY_UNSUPPORTED, 4, "dictionary 5"),
        RULE("\x28\xb5\x2f\xfd\x21\x00\x01\x09\x00\x00x", 1, DAMACY_OK, 0, ""),
        RULE("\x28\xb5\x2f\xfd\x00\xb0\x09\x00\x00x", 1, DAMACY_UNSUPPORTED, 5, "2^32"),
        RULE("\x28\xb5\x2f\xfd\x00\x50\x09\x00\x00x", 1, DAMACY_OK, 0, ""), /* no content size */
        RULE("\x28\xb5\x2f\xfd\x00\x50\x09\x00\x00x", 2, DAMACY_DECODE, 0, "to 1 bytes"),
        RULE("\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\xff\x09\x00\x00x", 1, DAMACY_DECODE,
             4, "impossible content size"),
        RULE("\x28\xb5\x2f\xfd\x20\x02\x09\x00\x00x", 1, DAMACY_DECODE, 0,
             "holds 2 bytes, the chunk has 1"),
        RULE("\x28\xb5\x2f\xfd\x20\x01\x0f\x00\x00x", 1, DAMACY_DECODE, 6, "reserved type"),
        RULE("\x28\xb5\x2f\xfd\x20\x01\x11\x00\x00xx", 1, DAMACY_DECODE, 6, "block size limit"),
        RULE("\x28\xb5\x2f\xfd\x20\x01\x08\x00\x00x", 1, DAMACY_DECODE, 10, "cut short"),
        RULE("\x28\xb5\x2f\xfd\x20\x40\x15\x00\x00\x03\x00", 64, DAMACY_DECODE, 9, "literals"),
        RULE("\x28\xb5\x2f\xfd\x20\x40\x2d\x00\x00\x13\x40\x00x\x00", 64, DAMACY_DECODE, 9, "tree"),
        RULE("\x28\xb5\x2f\xfd\x20\x40\x2d\x00\x00\x08x\x01\x03\x80", 64, DAMACY_DECODE, 12,
             "reserved bits"),
        RULE("\x28\xb5\x2f\xfd\x20\x40\x2d\x00\x00\x08x\x01\x0c\x80", 64, DAMACY_DECODE, 12,
             "table"),
        RULE("\x28\xb5\x2f\xfd\x20\x40\x2d\x00\x00\x08x\x16\x00\x80", 64, DAMACY_DECODE, 11,
             "more sequences"),
        RULE("\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00xy", 1, DAMACY_DECODE, 10, "no frame"),
        RULE("\x50\x2a\x4d\x18\x02\x00\x00\x00yz\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x", 1,
             DAMACY_OK, 0, ""),
        RULE("\x5f\x2a\x4d\x18\xff\xff\xff\xffyz", 1, DAMACY_DECODE, 0, "skippable"),
        RULE("\x5f\x2a\x4d\x18\x00\x00", 1, DAMACY_DECODE, 0, "skippable"),
        RULE("\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x", 2,
             DAMACY_OK, 0, ""),
        RULE("\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x", 1,
             DAMACY_DECODE, 0, "holds 2"),
        RULE("\x1e\xb5\x2f\xfd\x20\x01\x09\x00\x00x", 1, DAMACY_DECODE, 0, "magic"), /* v0.1 */
        RULE("\x27\xb5\x2f\xfd\x20\x01\x09\x00\x00x", 1, DAMACY_DECODE, 0, "magic"), /* v0.7 */
        RULE("\x37\xa4\x30\xec\x20\x01\x09\x00\x00x", 1, DAMACY_DECODE, 0,
             "magic"), /* dictionary */
        RULE("", 1, DAMACY_DECODE, 0, "no bytes"),
    };

    begin(BOTH, false);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const rule* r = &rules[i];
        const damacy_status status = decode_exact(r->bytes, r->size, r->expected);
        if (status != r->status) {
            printf("# rule %zu: %s\n", i, status == DAMACY_OK ? "accepted" : err.message);
        }
        CHECK_EQ(status, r->status);
        if (status != DAMACY_OK) {
            CHECK_HAS(err.message, r->word);
            CHECK_EQ(err.offset == UINT64_MAX ? 0 : err.offset, r->offset);
        }
    }
    end();
}

TEST(zstd_golden_files_are_judged_by_the_specification)
{
    static const struct {
        const char* name;
        damacy_status status;
        bool depends; /* on the version of libzstd */
    } golden[] = {
        {"block-128k.zst", DAMACY_OK, false},
        {"empty-block.zst", DAMACY_OK, false},
        {"rle-first-block.zst", DAMACY_OK, false},
        {"zeroSeq_2B.zst", DAMACY_OK, true},
        {"off0.bin.zst", DAMACY_DECODE, true},
        {"truncated_huff_state.zst", DAMACY_DECODE, true},
        {"zeroSeq_extraneous.zst", DAMACY_DECODE, false},
    };

    begin(BOTH, false);
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        char path[64];
        size_t size = 0;
        uint64_t n = 4 << 20;
        uint8_t* out = NULL;
        uint8_t* src;
        damacy_status status;

        (void)snprintf(path, sizeof path, "zstd_golden/%s", golden[i].name);
        src = corpus_read(path, "", &size);
        CHECK(src != NULL);
        status = decode_free(src, size, &out, &n);
        if (status != golden[i].status) {
            printf("# %s: %s with libzstd %s\n", golden[i].name,
                   status == DAMACY_OK ? "accepted" : err.message, ZSTD_versionString());
            CHECK(golden[i].depends);
        }
        free(src);
        free(out);
    }
    end();
}

TEST(library_that_is_missing_is_named_with_its_codec)
{
    void* target = NULL;
    void* handle = NULL;
    damacy__symbol symbol = {"damacy_no_such_function", NULL};

    symbol.target = &target;
    CHECK_EQ(damacy__library_open("libnot-there.so.7", "zstd", &symbol, 1, &handle, &err),
             DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "libnot-there.so.7");
    CHECK_HAS(err.message, "zstd");
    CHECK_EQ(damacy__library_open("libc.so.6", "zstd", &symbol, 1, &handle, &err),
             DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "libc.so.6");
    CHECK_HAS(err.message, "damacy_no_such_function");
    CHECK(handle == NULL);
}

TEST_MAIN
