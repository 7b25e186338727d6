/* gzip and zlib streams on the host: what libz writes comes back, members add up, and every cut,
 * flipped bit and byte too many is an error that says where. */
#include "codec/gzip.h"
#include "tests/test.h"
#include <zlib.h>

enum { MOST = 40000 };
static uint8_t content[MOST];
static uint8_t packed[2 * MOST];
static uint8_t out[MOST + 1];
static damacy__libraries libraries;
static damacy_error err;

/* window_bits: 15 zlib, 31 gzip. */
static size_t pack(const uint8_t* src, size_t n, int level, int window_bits, uint8_t* dst,
                   size_t room)
{
    z_stream z;

    memset(&z, 0, sizeof z);
    CHECK(deflateInit2(&z, level, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    z.next_in = (Bytef*)(uintptr_t)src;
    z.avail_in = (uInt)n;
    z.next_out = dst;
    z.avail_out = (uInt)room;
    CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
    (void)deflateEnd(&z);
    return room - z.avail_out;
}

static damacy_status decode(bool is_gzip, const uint8_t* src, size_t size, size_t room, uint64_t* n)
{
    uint8_t* copy = (uint8_t*)malloc(size ? size : 1);
    uint8_t* dst = (uint8_t*)malloc(room ? room : 1);
    damacy_status status;

    CHECK(copy && dst && room <= sizeof out);
    memcpy(copy, src, size);
    err.message[0] = 0;
    err.offset = UINT64_MAX;
    status = damacy__inflate(&libraries, is_gzip, damacy__span_of(copy, size), dst, room, n, &err);
    CHECK(status == DAMACY_OK || (err.message[0] && err.offset <= size));
    memcpy(out, dst, room);
    free(dst);
    free(copy);
    return status;
}

static void fill(uint64_t* state, size_t n)
{
    const uint64_t kind = test_random(state) % 3;

    for (size_t i = 0; i < n; i++) {
        const uint64_t r = test_random(state) >> 8;
        content[i] = kind == 0 ? 0 : kind == 1 ? (uint8_t)r : (uint8_t)(r % 5 + i / 100);
    }
}

TEST(gzip_and_zlib_decode_what_libz_writes)
{
    uint64_t state = test_seed();

    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    for (int round = 0; round < 400; round++) {
        const size_t n = round < 40 ? (size_t)round : test_random(&state) % MOST;
        const bool is_gzip = round & 1;
        uint64_t got = 0;
        size_t size;
        fill(&state, n);
        size = pack(content, n, round % 10, is_gzip ? 31 : 15, packed, sizeof packed);
        CHECK_EQ(decode(is_gzip, packed, size, n, &got), DAMACY_OK);
        CHECK_EQ(got, n);
        CHECK(memcmp(out, content, n) == 0);
        CHECK_EQ(decode(is_gzip, packed, size, n + 1, &got), DAMACY_OK);
        CHECK_EQ(got, n); /* the caller compares */
        if (n) {
            CHECK_EQ(decode(is_gzip, packed, size, n - 1, &got), DAMACY_DECODE);
        }
        CHECK_EQ(decode(!is_gzip, packed, size, n, &got), DAMACY_DECODE);
    }
    damacy__libraries_deinit(&libraries);
}

TEST(gzip_members_are_one_stream_and_zlib_has_one)
{
    uint64_t state = test_seed();

    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    for (int is_gzip = 0; is_gzip < 2; is_gzip++) {
        uint64_t got = 0;
        size_t size;
        size_t first;
        fill(&state, 3000);
        first = pack(content, 1000, 6, is_gzip ? 31 : 15, packed, sizeof packed);
        size = first + pack(content + 1000, 0, 6, is_gzip ? 31 : 15, packed + first, 1000);
        size +=
            pack(content + 1000, 2000, 1, is_gzip ? 31 : 15, packed + size, sizeof packed - size);
        CHECK_EQ(decode(is_gzip, packed, size, 3000, &got), is_gzip ? DAMACY_OK : DAMACY_DECODE);
        CHECK(!is_gzip || (got == 3000 && memcmp(out, content, 3000) == 0));
        CHECK(is_gzip || err.offset == first);
        CHECK_EQ(decode(is_gzip, packed, size, 2999, &got), DAMACY_DECODE);
        CHECK_EQ(decode(is_gzip, packed, size - 1, 3000, &got), DAMACY_DECODE);
        packed[first] = 0; /* what follows the first member is no member */
        CHECK_EQ(decode(is_gzip, packed, first + 1, 3000, &got), DAMACY_DECODE);
        CHECK_EQ(decode(is_gzip, packed, first + 20, 3000, &got), DAMACY_DECODE);
    }
    damacy__libraries_deinit(&libraries);
}

TEST(gzip_header_fields_are_skipped)
{
    /* FEXTRA, FNAME, FCOMMENT and FHCRC, then a stored block "hi" */
    uint8_t bytes[64] = {0x1f, 0x8b, 8, 0x1e, 0, 0, 0, 0, 0, 3, 2, 0, 'a', 'b', 'n', 0, 'c', 0};
    const uint8_t rest[] = {1, 2, 0, 0xfd, 0xff, 'h', 'i'};
    uint64_t got = 0;
    uint32_t crc = (uint32_t)crc32(0, bytes, 18);

    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    bytes[18] = (uint8_t)crc;
    bytes[19] = (uint8_t)(crc >> 8);
    memcpy(bytes + 20, rest, sizeof rest);
    crc = (uint32_t)crc32(0, rest + 5, 2);
    damacy__store_u32le(bytes + 27, crc);
    damacy__store_u32le(bytes + 31, 2);
    CHECK_EQ(decode(true, bytes, 35, 2, &got), DAMACY_OK);
    CHECK(got == 2 && memcmp(out, "hi", 2) == 0);
    bytes[18] ^= 1;
    CHECK_EQ(decode(true, bytes, 35, 2, &got), DAMACY_DECODE);
    damacy__libraries_deinit(&libraries);
}

TEST(gzip_refuses_cuts_and_never_gives_wrong_bytes_for_a_flipped_bit)
{
    uint64_t state = test_seed();
    uint64_t got = 0;
    size_t n_accepted = 0;

    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    for (int is_gzip = 0; is_gzip < 2; is_gzip++) {
        size_t size;
        fill(&state, 500);
        size = pack(content, 500, 6, is_gzip ? 31 : 15, packed, sizeof packed);
        for (size_t n = 0; n < size; n++) {
            CHECK_EQ(decode(is_gzip, packed, n, 500, &got), DAMACY_DECODE);
            CHECK_HAS(err.message, "cut short");
        }
        for (size_t bit = 0; bit < 8 * size; bit++) {
            packed[bit / 8] = (uint8_t)(packed[bit / 8] ^ (1u << bit % 8));
            if (decode(is_gzip, packed, size, 500, &got) == DAMACY_OK) {
                CHECK(got == 500 && memcmp(out, content, 500) == 0);
                n_accepted++; /* times and names in the header, bits behind the last block */
            }
            packed[bit / 8] = (uint8_t)(packed[bit / 8] ^ (1u << bit % 8));
        }
    }
    printf("# %zu flips change nothing\n", n_accepted);
    CHECK(n_accepted < 80);
    damacy__libraries_deinit(&libraries);
}

TEST(gzip_errors_say_what_is_wrong)
{
    uint64_t got = 0;
    size_t size;

    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    memset(content, 7, 300);
    size = pack(content, 300, 6, 31, packed, sizeof packed);
    packed[size - 8] ^= 1;
    CHECK_EQ(decode(true, packed, size, 300, &got), DAMACY_DECODE);
    CHECK_HAS(err.message, "gzip: incorrect data check");
    packed[size - 8] ^= 1;
    packed[size - 4] ^= 1;
    CHECK_EQ(decode(true, packed, size, 300, &got), DAMACY_DECODE);
    CHECK_HAS(err.message, "gzip: incorrect length check");
    packed[size - 4] ^= 1;
    CHECK_EQ(decode(true, packed, size, 200, &got), DAMACY_DECODE);
    CHECK_HAS(err.message, "gzip: more than the 200 bytes due");
    CHECK_EQ(decode(true, (const uint8_t*)"hello there", 11, 200, &got), DAMACY_DECODE);
    CHECK_HAS(err.message, "gzip: incorrect header check");
    size = pack(content, 300, 6, 15, packed, sizeof packed);
    CHECK_EQ(decode(false, packed, size, 300, &got), DAMACY_OK);
    memcpy(packed + size, "xyz", 3);
    CHECK_EQ(decode(false, packed, size + 3, 300, &got), DAMACY_DECODE);
    CHECK_HAS(err.message, "zlib: 3 bytes behind the end");
    CHECK_EQ(err.offset, size);
    CHECK_EQ(decode(false, (const uint8_t*)"\x78\xbb\0\0\0\1\0\0\0\0", 10, 300, &got),
             DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "dictionary");
    damacy__libraries_deinit(&libraries);
}

TEST_MAIN
