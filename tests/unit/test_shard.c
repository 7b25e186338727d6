/* Shard indexes: the boundary grid of offsets and sizes, checksums, byte order, transposed indexes.
 */
#include "tests/test.h"
#include "format/shard.h"

enum { MAX_ENTRIES = 24 };

/* A sharding record over a grid, with codecs of its index. */
typedef struct shard {
    damacy__sharding sharding;
    damacy__codec codecs[8];
} shard;

static void shard_init(shard* s, uint32_t rank, const int64_t* grid, bool big, uint32_t n_crc)
{
    memset(s, 0, sizeof *s);
    s->sharding.n_entries = 1;
    for (uint32_t i = 0; i < rank; i++) {
        s->sharding.grid[i] = grid[i];
        s->sharding.n_entries *= (uint64_t)grid[i];
    }
    s->codecs[0].kind = DAMACY__CODEC_BYTES;
    s->codecs[0].big_endian = big;
    for (uint32_t i = 0; i < n_crc; i++) {
        s->codecs[1 + i].kind = DAMACY__CODEC_CRC32C;
    }
    s->sharding.index_chain.codecs = s->codecs;
    s->sharding.index_chain.n = 1 + n_crc;
    s->sharding.index_size = 16 * s->sharding.n_entries + 4 * n_crc;
}

static void put(uint8_t* bytes, uint64_t element, uint64_t value, bool big)
{
    damacy__store_u64le(bytes + 8 * element, big ? __builtin_bswap64(value) : value);
}

/* Appends n checksums, each over all before it. */
static size_t seal(uint8_t* bytes, size_t size, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        damacy__store_u32le(bytes + size, damacy__crc32c(bytes, size));
        size += 4;
    }
    return size;
}

/* Decodes from a block of exactly that size; extents stay untouched on failure. */
static damacy_status decode(const shard* s, uint32_t rank, const uint8_t* bytes, size_t size,
                            uint64_t object_size, damacy__extent* extents, damacy_error* err)
{
    uint8_t* exact = (uint8_t*)malloc(size ? size : 1);
    damacy_status status;

    CHECK(exact != NULL);
    memcpy(exact, bytes, size);
    memset(extents, 0x5a, MAX_ENTRIES * sizeof extents[0]);
    memset(err, 0, sizeof *err);
    status = damacy__shard_decode(&s->sharding, rank, damacy__span_of(exact, size), object_size,
                                  extents, err);
    free(exact);
    for (uint64_t i = status == DAMACY_OK ? s->sharding.n_entries : 0; i < MAX_ENTRIES; i++) {
        CHECK(extents[i].offset == UINT64_C(0x5a5a5a5a5a5a5a5a));
        CHECK(extents[i].size == UINT64_C(0x5a5a5a5a5a5a5a5a));
    }
    return status;
}

TEST(every_boundary_of_offset_and_size_gets_its_verdict)
{
    enum { OBJECT = 1000 };
    const uint64_t values[20] = {0,
                                 1,
                                 36,
                                 OBJECT - 36,
                                 OBJECT - 1,
                                 OBJECT,
                                 OBJECT + 1,
                                 INT32_MAX,
                                 UINT64_C(1) << 31,
                                 UINT32_MAX,
                                 UINT64_C(1) << 32,
                                 UINT64_C(1) << 53,
                                 INT64_MAX,
                                 UINT64_C(1) << 63,
                                 (UINT64_C(1) << 63) + 1,
                                 UINT64_MAX - OBJECT,
                                 UINT64_MAX - OBJECT + 1,
                                 UINT64_MAX - OBJECT + 2,
                                 UINT64_MAX - 1,
                                 UINT64_MAX};
    enum { CRC_OK, CRC_BAD, CRC_ABSENT, CRC_DOUBLE };
    const int64_t grid[] = {3};
    size_t n = 0;
    size_t n_ok = 0;

    for (size_t a = 0; a < 20; a++) {
        for (size_t b = 0; b < 20; b++) {
            for (uint32_t variant = 0; variant < 16; variant++) {
                const uint32_t crc = variant & 3;
                const uint32_t number = variant & 4 ? 2 : 0;
                const uint32_t at_start = variant >> 3;
                const uint32_t n_crc = crc == CRC_ABSENT ? 0 : crc == CRC_DOUBLE ? 2 : 1;
                const bool wraps = values[b] > UINT64_MAX - values[a];
                const bool is_missing = values[a] == UINT64_MAX && values[b] == UINT64_MAX;
                const bool is_good =
                    crc != CRC_BAD &&
                    (is_missing || (values[a] != UINT64_MAX && values[b] != UINT64_MAX && !wraps &&
                                    values[a] + values[b] <= OBJECT));
                damacy__extent extents[MAX_ENTRIES];
                uint8_t bytes[64];
                uint64_t offset = 12345;
                damacy_error err;
                size_t size;
                shard s;

                shard_init(&s, 1, grid, false, n_crc);
                s.sharding.index_at_start = at_start;
                for (uint32_t i = 0; i < 3; i++) {
                    put(bytes, 2 * i, i == number ? values[a] : 100 + i, false);
                    put(bytes, 2 * i + 1, i == number ? values[b] : 10 + i, false);
                }
                size = seal(bytes, 48, n_crc);
                if (crc == CRC_BAD) {
                    bytes[48 + (a + b) % 4] ^= (uint8_t)(1u << (a & 7));
                }
                CHECK_EQ(damacy__shard_locate(&s.sharding, OBJECT, &offset, &err), DAMACY_OK);
                CHECK_EQ(offset, at_start ? 0 : OBJECT - size);
                CHECK_EQ(decode(&s, 1, bytes, size, OBJECT, extents, &err),
                         is_good ? DAMACY_OK : DAMACY_DECODE);
                if (is_good) {
                    CHECK(extents[number].offset == values[a] && extents[number].size == values[b]);
                    CHECK(extents[1].offset == 101 && extents[1].size == 11);
                    n_ok++;
                } else if (crc == CRC_BAD) {
                    CHECK_HAS(err.message, "checksum");
                } else {
                    char text[32];
                    (void)snprintf(text, sizeof text, "chunk %u", number);
                    CHECK_HAS(err.message, text);
                    CHECK_HAS(err.message, values[a] == UINT64_MAX ? "a size but no offset"
                                           : values[b] == UINT64_MAX
                                               ? "an offset but no size"
                                               : "outside the object of 1000");
                }
                n++;
            }
        }
    }
    printf("# %zu of %zu are valid\n", n_ok, n);
    CHECK_EQ(n, 6400);
}

TEST(the_index_must_fit_into_the_object)
{
    const int64_t grid[] = {2, 2};
    uint64_t offset;
    damacy_error err;
    shard s;

    for (uint32_t at_start = 0; at_start < 2; at_start++) {
        shard_init(&s, 2, grid, false, 1);
        s.sharding.index_at_start = at_start;
        for (uint64_t size = 0; size < 200; size++) {
            damacy_status status;

            offset = 777;
            status = damacy__shard_locate(&s.sharding, size, &offset, &err);

            CHECK_EQ(status, size < 68 ? DAMACY_DECODE : DAMACY_OK);
            CHECK_EQ(offset, size < 68 ? 777 : at_start ? 0 : size - 68);
        }
        CHECK_EQ(damacy__shard_locate(&s.sharding, 0, &offset, &err), DAMACY_DECODE);
        CHECK_HAS(err.message, "0 bytes cannot hold its index of 68");
    }
}

TEST(an_index_of_another_size_is_refused)
{
    const int64_t grid[] = {2};
    damacy__extent extents[MAX_ENTRIES];
    uint8_t bytes[100] = {0};
    damacy_error err;
    shard s;

    shard_init(&s, 1, grid, false, 1);
    CHECK_EQ(seal(bytes, 32, 1), 36);
    for (size_t size = 0; size < sizeof bytes; size++) {
        CHECK_EQ(decode(&s, 1, bytes, size, 1000, extents, &err),
                 size == 36 ? DAMACY_OK : DAMACY_DECODE);
    }
}

TEST(every_flipped_bit_is_caught_by_each_checksum)
{
    const int64_t grid[] = {4};
    damacy__extent extents[MAX_ENTRIES];
    uint8_t bytes[100];
    damacy_error err;
    shard s;

    for (uint32_t n_crc = 1; n_crc <= 3; n_crc++) {
        size_t size;

        shard_init(&s, 1, grid, false, n_crc);
        for (uint64_t i = 0; i < 8; i++) {
            put(bytes, i, i * 3, false);
        }
        size = seal(bytes, 64, n_crc);
        CHECK_EQ(decode(&s, 1, bytes, size, 1000, extents, &err), DAMACY_OK);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            CHECK_EQ(decode(&s, 1, bytes, size, UINT64_MAX, extents, &err), DAMACY_DECODE);
            CHECK_HAS(err.message, "checksum");
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

TEST(a_checksum_over_another_range_is_refused)
{
    const int64_t grid[] = {2};
    damacy__extent extents[MAX_ENTRIES];
    uint8_t bytes[64] = {0};
    damacy_error err;
    shard s;

    shard_init(&s, 1, grid, false, 1);
    put(bytes, 1, 5, false);
    for (size_t first = 0; first < 32; first += 8) {
        for (size_t size = 8; first + size <= 32; size += 8) {
            damacy__store_u32le(bytes + 32, damacy__crc32c(bytes + first, size));
            CHECK_EQ(decode(&s, 1, bytes, 36, 1000, extents, &err),
                     first == 0 && size == 32 ? DAMACY_OK : DAMACY_DECODE);
        }
    }
    damacy__store_u32le(bytes + 32, __builtin_bswap32(damacy__crc32c(bytes, 32)));
    CHECK_EQ(decode(&s, 1, bytes, 36, 1000, extents, &err), DAMACY_DECODE);
}

TEST(both_byte_orders_are_read)
{
    const int64_t grid[] = {3};
    damacy__extent extents[MAX_ENTRIES];
    uint8_t bytes[64];
    damacy_error err;
    shard s;

    for (int big = 0; big < 2; big++) {
        shard_init(&s, 1, grid, big, 1);
        for (uint64_t i = 0; i < 6; i++) {
            put(bytes, i, i == 4 || i == 5 ? UINT64_MAX : 0x10203040 + i, big);
        }
        CHECK_EQ(decode(&s, 1, bytes, seal(bytes, 48, 1), UINT64_C(1) << 40, extents, &err),
                 DAMACY_OK);
        CHECK_EQ(extents[0].offset, 0x10203040);
        CHECK_EQ(extents[1].size, 0x10203043);
        CHECK(extents[2].offset == UINT64_MAX && extents[2].size == UINT64_MAX);
    }
}

TEST(overlaps_gaps_disorder_and_the_index_itself_are_legal)
{
    const int64_t grid[] = {6};
    const uint64_t entries[] = {900, 100, 0, 1000, 0, 1000, 1000, 0, 500, 1, 400, 200};
    damacy__extent extents[MAX_ENTRIES];
    uint8_t bytes[128];
    damacy_error err;
    shard s;

    shard_init(&s, 1, grid, false, 1);
    for (uint64_t i = 0; i < 12; i++) {
        put(bytes, i, entries[i], false);
    }
    CHECK_EQ(decode(&s, 1, bytes, seal(bytes, 96, 1), 1000, extents, &err), DAMACY_OK);
    CHECK_EQ(extents[3].offset, 1000);
    CHECK_EQ(extents[3].size, 0);
}

/* Fills an index of a grid as its codecs say, element by element through the orders. */
static void encode_transposed(const shard* s, uint32_t rank, uint32_t n_orders, bool big,
                              uint8_t* bytes)
{
    for (uint64_t i = 0; i < s->sharding.n_entries; i++) {
        for (uint64_t pair = 0; pair < 2; pair++) {
            uint64_t shape[5];
            uint64_t at[5];
            uint64_t rest = i;
            uint64_t element = 0;

            for (uint32_t k = rank; k-- > 0;) {
                shape[k] = (uint64_t)s->sharding.grid[k];
                at[k] = rest % shape[k];
                rest /= shape[k];
            }
            shape[rank] = 2;
            at[rank] = pair;
            for (uint32_t c = 0; c < n_orders; c++) {
                uint64_t new_shape[5];
                uint64_t new_at[5];
                for (uint32_t k = 0; k <= rank; k++) {
                    new_shape[k] = shape[s->codecs[c].order[k]];
                    new_at[k] = at[s->codecs[c].order[k]];
                }
                memcpy(shape, new_shape, sizeof shape);
                memcpy(at, new_at, sizeof at);
            }
            for (uint32_t k = 0; k <= rank; k++) {
                element = element * shape[k] + at[k];
            }
            put(bytes, element, pair ? i + 1 : 1000 + 10 * i, big);
        }
    }
}

TEST(transposed_indexes_come_out_in_c_order)
{
    const int64_t grid[] = {2, 3, 4};
    uint64_t state = test_seed();

    for (int round = 0; round < 400; round++) {
        const uint32_t rank = (uint32_t)(round % 4);
        const uint32_t n_orders = 1 + (uint32_t)(test_random(&state) % 3);
        const bool big = test_random(&state) & 1;
        damacy__extent extents[MAX_ENTRIES];
        uint8_t bytes[16 * MAX_ENTRIES + 4];
        damacy_error err;
        size_t size;
        shard s;

        shard_init(&s, rank, grid, big, 1);
        memmove(s.codecs + n_orders, s.codecs, 2 * sizeof s.codecs[0]);
        for (uint32_t c = 0; c < n_orders; c++) {
            s.codecs[c].kind = DAMACY__CODEC_TRANSPOSE;
            for (uint32_t k = 0; k <= rank; k++) { /* a random permutation */
                const uint32_t other = (uint32_t)(test_random(&state) % (k + 1));
                s.codecs[c].order[k] = s.codecs[c].order[other];
                s.codecs[c].order[other] = k;
            }
        }
        s.sharding.index_chain.n = n_orders + 2;
        encode_transposed(&s, rank, n_orders, big, bytes);
        size = seal(bytes, 16 * s.sharding.n_entries, 1);
        CHECK_EQ(decode(&s, rank, bytes, size, 100000, extents, &err), DAMACY_OK);
        for (uint64_t i = 0; i < s.sharding.n_entries; i++) {
            CHECK_EQ(extents[i].offset, 1000 + 10 * i);
            CHECK_EQ(extents[i].size, i + 1);
        }
    }
}

TEST(a_large_index_is_decoded)
{
    enum { N = 1 << 20 };
    const int64_t grid[] = {1024, 1024};
    uint8_t* bytes = (uint8_t*)malloc(16 * N + 4);
    damacy__extent* extents = (damacy__extent*)malloc(N * sizeof *extents);
    damacy_error err;
    size_t size;
    shard s;

    CHECK(bytes && extents);
    shard_init(&s, 2, grid, false, 1);
    for (uint64_t i = 0; i < N; i++) {
        put(bytes, 2 * i, i << 20, false);
        put(bytes, 2 * i + 1, i, false);
    }
    size = seal(bytes, 16 * N, 1);
    CHECK_EQ(damacy__shard_decode(&s.sharding, 2, damacy__span_of(bytes, size), UINT64_C(1) << 40,
                                  extents, &err),
             DAMACY_OK);
    CHECK_EQ(extents[N - 1].offset, (uint64_t)(N - 1) << 20);
    CHECK_EQ(extents[N - 1].size, N - 1);
    free(extents);
    free(bytes);
}

TEST_MAIN
