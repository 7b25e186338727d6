/* Layouts: strides of transposed and sharded arrays against a reference that follows the codecs
 * step by step. */
#include "tests/test.h"
#include "format/zarr.h"

static damacy__alloc heap;

enum { RANK = 3 };

/* A three-axis array. Axes of the shard and of the chunk are found by applying each order in turn.
 */
typedef struct setup {
    int64_t object[RANK];
    const char* outer[2]; /* orders before the sharding or bytes codec; NULL: none */
    int64_t inner[RANK];  /* in the axes of the sharding codec; 0: not sharded */
    const char* within[2];
    const char* after; /* codecs after the sharding codec, such as ",\"zstd\"" */
} setup;

static size_t put_orders(char* text, size_t capacity, const char* const* orders)
{
    size_t size = 0;

    for (int i = 0; i < 2 && orders[i]; i++) {
        size += (size_t)snprintf(text + size, capacity - size,
                                 "{\"name\":\"transpose\",\"configuration\":{\"order\":%s}},",
                                 orders[i]);
    }
    return size;
}

static damacy_status open_setup(const setup* s, const char* type, damacy__document* out,
                                damacy_error* err)
{
    char codecs[2048];
    char text[4096];
    size_t size = put_orders(codecs, sizeof codecs, s->outer);
    int n;

    if (s->inner[0]) {
        size += (size_t)snprintf(
            codecs + size, sizeof codecs - size,
            "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[%d,%d,%d],"
            "\"index_codecs\":[\"bytes\",\"crc32c\"],\"codecs\":[",
            (int)s->inner[0], (int)s->inner[1], (int)s->inner[2]);
        size += put_orders(codecs + size, sizeof codecs - size, s->within);
        size += (size_t)snprintf(codecs + size, sizeof codecs - size,
                                 "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"big\"}}]}}");
    } else {
        size += (size_t)snprintf(codecs + size, sizeof codecs - size,
                                 "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"big\"}}");
    }
    size += (size_t)snprintf(codecs + size, sizeof codecs - size, "%s", s->after);
    n = snprintf(
        text, sizeof text,
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[50,60,70],\"data_type\":\"%s\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[%d,%d,%d]}},"
        "\"chunk_key_encoding\":\"default\",\"fill_value\":0,\"codecs\":[%s]}",
        type, (int)s->object[0], (int)s->object[1], (int)s->object[2], codecs);
    CHECK(n > 0 && (size_t)n < sizeof text);
    memset(err, 0, sizeof *err);
    return damacy__zarr_parse(&heap, damacy__span_of(text, (size_t)n), out, err);
}

/* B[b] = A[a] with b[i] = a[order[i]]: shape and one position go through the orders. */
static void follow(const char* const* orders, int64_t* shape, int64_t* position)
{
    for (int i = 0; i < 2 && orders[i]; i++) {
        const char* p = orders[i];
        int64_t new_shape[RANK];
        int64_t new_position[RANK];

        for (int k = 0; k < RANK; k++) {
            const int axis = !strcmp(p, "\"C\"")   ? k
                             : !strcmp(p, "\"F\"") ? RANK - 1 - k
                                                   : p[1 + 2 * k] - '0';
            new_shape[k] = shape[axis];
            new_position[k] = position[axis];
        }
        memcpy(shape, new_shape, sizeof new_shape);
        memcpy(position, new_position, sizeof new_position);
    }
}

static int64_t c_order(const int64_t* shape, const int64_t* position)
{
    return (position[0] * shape[1] + position[1]) * shape[2] + position[2];
}

/* For every voxel of an object: the chunk's number in the index and the element in the chunk. */
static void check_voxels(const setup* s, const damacy__layout* layout)
{
    int64_t v[RANK];

    for (v[0] = 0; v[0] < s->object[0]; v[0]++) {
        for (v[1] = 0; v[1] < s->object[1]; v[1]++) {
            for (v[2] = 0; v[2] < s->object[2]; v[2]++) {
                int64_t shape[RANK] = {s->object[0], s->object[1], s->object[2]};
                int64_t at[RANK] = {v[0], v[1], v[2]};
                int64_t grid[RANK];
                int64_t chunk[RANK] = {0, 0, 0};
                int64_t entry = 0;
                int64_t element = 0;
                int64_t got_entry = 0;
                int64_t got_element = 0;

                follow(s->outer, shape, at);
                if (s->inner[0]) {
                    for (int i = 0; i < RANK; i++) {
                        grid[i] = shape[i] / s->inner[i];
                        chunk[i] = at[i] / s->inner[i];
                        at[i] %= s->inner[i];
                        shape[i] = s->inner[i];
                    }
                    entry = c_order(grid, chunk);
                    follow(s->within, shape, at);
                }
                element = c_order(shape, at);
                for (int i = 0; i < RANK; i++) {
                    got_entry += v[i] / layout->chunk_shape[i] * (int64_t)layout->index_stride[i];
                    got_element += v[i] % layout->chunk_shape[i] * layout->chunk_stride[i];
                }
                CHECK_EQ(got_entry, entry);
                CHECK_EQ(got_element, element);
            }
        }
    }
}

static const char* const orders[] = {NULL,      "[0,1,2]", "[0,2,1]", "[1,0,2]", "[1,2,0]",
                                     "[2,0,1]", "[2,1,0]", "\"C\"",   "\"F\""};

TEST(strides_follow_every_transposition_of_a_plain_chunk)
{
    for (size_t i = 0; i < 9; i++) {
        for (size_t k = 0; k < 9; k++) {
            setup s = {{3, 4, 5}, {NULL, NULL}, {0, 0, 0}, {NULL, NULL}, ",\"zstd\""};
            damacy__document d;
            damacy_error err;

            s.outer[0] = orders[i];
            s.outer[1] = orders[i] ? orders[k] : NULL;
            CHECK_EQ(open_setup(&s, "uint16", &d, &err), DAMACY_OK);
            CHECK_EQ(d.layout.is_sharded, 0);
            CHECK_EQ(d.layout.is_nested, 0);
            CHECK_EQ(d.layout.n_entries, 1);
            CHECK_EQ(d.layout.big_endian, 1);
            CHECK_EQ(d.layout.chunk_size, 120);
            CHECK_EQ(d.layout.index_size, 0);
            CHECK(d.layout.chunk_chain.codecs == d.chain.codecs);
            check_voxels(&s, &d.layout);
            damacy__document_deinit(&d, &heap);
        }
    }
}

TEST(strides_follow_every_transposition_before_and_within_a_shard)
{
    size_t n = 0;

    for (size_t i = 0; i < 9; i++) {
        for (size_t j = 0; j < 9; j += 4) {
            for (size_t k = 0; k < 9; k++) {
                setup s = {{4, 6, 10}, {NULL, NULL}, {0, 0, 0}, {NULL, NULL}, ""};
                int64_t shape[RANK] = {4, 6, 10};
                int64_t at[RANK] = {0, 0, 0};
                damacy__document d;
                damacy_error err;

                s.outer[0] = orders[i];
                s.outer[1] = orders[i] ? orders[j] : NULL;
                s.within[0] = orders[k];
                follow(s.outer, shape, at);
                for (int a = 0; a < RANK; a++) {
                    s.inner[a] = shape[a] / (shape[a] == 10 ? 5 : 2);
                }
                CHECK_EQ(open_setup(&s, "float32", &d, &err), DAMACY_OK);
                CHECK_EQ(d.layout.is_sharded, 1);
                CHECK_EQ(d.layout.is_nested, 0);
                CHECK_EQ(d.layout.n_entries, 20);
                CHECK_EQ(d.layout.index_size, 20 * 16 + 4);
                CHECK_EQ(d.layout.chunk_shape[0], 2);
                CHECK_EQ(d.layout.chunk_shape[1], 3);
                CHECK_EQ(d.layout.chunk_shape[2], 2);
                CHECK_EQ(d.layout.chunk_size, 48);
                check_voxels(&s, &d.layout);
                damacy__document_deinit(&d, &heap);
                n++;
            }
        }
    }
    CHECK_EQ(n, 243);
    CHECK_EQ(heap.live_blocks, 0);
}

TEST(a_compressed_shard_is_one_nested_chunk)
{
    static const char* const after[] = {",\"zstd\"", ",\"crc32c\"", ",\"gzip\",\"crc32c\""};

    for (size_t i = 0; i < 3; i++) {
        setup s = {{4, 6, 10}, {"[1,2,0]", NULL}, {3, 5, 2}, {"[2,0,1]", NULL}, ""};
        damacy__document d;
        damacy_error err;

        s.after = after[i];
        CHECK_EQ(open_setup(&s, "uint16", &d, &err), DAMACY_OK);
        CHECK_EQ(d.layout.is_sharded, 0);
        CHECK_EQ(d.layout.is_nested, 1);
        CHECK_EQ(d.layout.big_endian, 0);
        CHECK_EQ(d.layout.n_entries, 1);
        CHECK_EQ(d.layout.index_size, 0);
        CHECK(d.layout.sharding == NULL);
        CHECK_EQ(d.layout.chunk_size, 480);
        CHECK_EQ(d.layout.chunk_shape[0], 4);
        CHECK_EQ(d.layout.chunk_shape[2], 10);
        CHECK_EQ(d.layout.chunk_stride[0], 60); /* C order of the array's axes */
        CHECK_EQ(d.layout.chunk_stride[1], 10);
        CHECK_EQ(d.layout.chunk_stride[2], 1);
        CHECK(d.layout.chunk_chain.codecs == d.chain.codecs);
        CHECK_EQ(d.layout.chunk_chain.n, d.chain.n);
        damacy__document_deinit(&d, &heap);
    }
}

TEST(a_shard_within_a_shard_is_addressed_at_the_outer_level)
{
    static const char text[] =
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[50,60,70],\"data_type\":\"uint16\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[8,12,20]}},"
        "\"chunk_key_encoding\":\"default\",\"fill_value\":0,\"codecs\":["
        "{\"name\":\"transpose\",\"configuration\":{\"order\":[1,2,0]}},"
        "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[6,10,4],"
        "\"index_codecs\":[\"bytes\"],\"index_location\":\"start\",\"codecs\":["
        "{\"name\":\"transpose\",\"configuration\":{\"order\":[2,1,0]}},"
        "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[2,5,3],"
        "\"index_codecs\":[\"bytes\",\"crc32c\"],\"codecs\":[{\"name\":\"bytes\","
        "\"configuration\":{\"endian\":\"big\"}},\"zstd\"]}}]}}]}";
    damacy__document d;
    damacy_error err;
    const damacy__sharding* inner;

    CHECK_EQ(damacy__zarr_parse(&heap, damacy__span_of(text, sizeof text - 1), &d, &err),
             DAMACY_OK);
    CHECK_EQ(d.layout.is_sharded, 1);
    CHECK_EQ(d.layout.is_nested, 1);
    CHECK_EQ(d.layout.big_endian, 0);
    CHECK_EQ(d.layout.index_at_start, 1);
    CHECK_EQ(d.layout.index_has_crc, 0);
    CHECK_EQ(d.layout.n_entries, 8);
    CHECK_EQ(d.layout.index_size, 128);
    /* The shard's axes are the array's 1, 2, 0: its chunks of 6 x 10 x 4 are 4 x 6 x 10 there. */
    CHECK_EQ(d.layout.chunk_shape[0], 4);
    CHECK_EQ(d.layout.chunk_shape[1], 6);
    CHECK_EQ(d.layout.chunk_shape[2], 10);
    CHECK_EQ(d.layout.chunk_stride[1], 40); /* C order of what the inner chain sees */
    CHECK_EQ(d.layout.chunk_stride[2], 4);
    CHECK_EQ(d.layout.chunk_stride[0], 1);
    CHECK_EQ(d.layout.index_stride[1], 4);
    CHECK_EQ(d.layout.index_stride[2], 2);
    CHECK_EQ(d.layout.index_stride[0], 1);
    CHECK_EQ(d.layout.chunk_chain.n, 2);
    inner = d.layout.chunk_chain.codecs[1].sharding;
    CHECK(inner != NULL);
    CHECK_EQ(inner->grid[0], 2); /* of 4 x 10 x 6 */
    CHECK_EQ(inner->grid[1], 2);
    CHECK_EQ(inner->grid[2], 2);
    CHECK_EQ(inner->n_entries, 8);
    CHECK_EQ(inner->index_size, 132);
    CHECK_EQ(inner->chunk_chain.n, 2);
    damacy__document_deinit(&d, &heap);
    CHECK_EQ(heap.live_blocks, 0);
}

TEST(the_index_location_and_checksum_are_those_of_the_outer_shard)
{
    setup s = {{4, 6, 10}, {NULL, NULL}, {2, 3, 5}, {NULL, NULL}, ""};
    damacy__document d;
    damacy_error err;

    CHECK_EQ(open_setup(&s, "uint8", &d, &err), DAMACY_OK);
    CHECK_EQ(d.layout.index_at_start, 0);
    CHECK_EQ(d.layout.index_has_crc, 1);
    CHECK_EQ(d.layout.big_endian, 0); /* one byte */
    CHECK_EQ(d.layout.index_chain.n, 2);
    CHECK(d.layout.sharding == d.chain.codecs[0].sharding);
    damacy__document_deinit(&d, &heap);
}

TEST_MAIN
