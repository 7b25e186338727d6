/* Stored chunks to voxels on the host: chains of codecs in any order, shards within shards, and
 * what a chunk of the wrong size, a wrong checksum or a lack of memory gives. */
#include "stage/host_decode.h"
#include "tests/test.h"
#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

enum { MOST = 1 << 16, ROOM = 8 * MOST };

static damacy__libraries libraries;
static damacy__alloc alloc;
static damacy__decoder decoder;
static damacy_error err;
static uint64_t state;

static void begin(bool skip_checksums)
{
    memset(&alloc, 0, sizeof alloc);
    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    CHECK_EQ(damacy__decoder_init(&decoder, &libraries, &alloc, skip_checksums, &err), DAMACY_OK);
}

static void end(void)
{
    damacy__decoder_deinit(&decoder);
    damacy__libraries_deinit(&libraries);
    CHECK_EQ(alloc.live_bytes, 0);
    CHECK_EQ(alloc.live_blocks, 0);
}

/* Encodes bytes by one codec; dst has ROOM bytes. */
static size_t encode_step(uint32_t kind, const uint8_t* src, size_t n, uint8_t* dst)
{
    uLongf z_size = ROOM;
    size_t size = 0;

    if (kind == DAMACY__CODEC_ZSTD) {
        size = ZSTD_compress(dst, ROOM, src, n, 1);
        CHECK(!ZSTD_isError(size));
    } else if (kind == DAMACY__CODEC_ZLIB) {
        CHECK(compress2(dst, &z_size, src, n, 1) == Z_OK);
        size = z_size;
    } else if (kind == DAMACY__CODEC_GZIP) {
        z_stream z;
        memset(&z, 0, sizeof z);
        CHECK(deflateInit2(&z, 1, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) == Z_OK);
        z.next_in = (Bytef*)(uintptr_t)src;
        z.avail_in = (uInt)n;
        z.next_out = dst;
        z.avail_out = ROOM;
        CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
        size = z.total_out;
        (void)deflateEnd(&z);
    } else if (kind == DAMACY__CODEC_LZ4) {
        damacy__store_u32le(dst, (uint32_t)n);
        size = 4 + (size_t)LZ4_compress_default((const char*)src, (char*)dst + 4, (int)n, ROOM - 4);
    } else if (kind == DAMACY__CODEC_BLOSC) { /* a stored chunk */
        const uint8_t header[4] = {2, 1, 0x22, 1};
        memcpy(dst, header, 4);
        damacy__store_u32le(dst + 4, (uint32_t)n);
        damacy__store_u32le(dst + 8, (uint32_t)n);
        damacy__store_u32le(dst + 12, (uint32_t)n + 16);
        memcpy(dst + 16, src, n);
        size = n + 16;
    } else {
        CHECK_EQ(kind, DAMACY__CODEC_CRC32C);
        memcpy(dst, src, n);
        damacy__store_u32le(dst + n, damacy__crc32c(src, n));
        size = n + 4;
    }
    return size;
}

/* The bytes-to-bytes codecs from `first` on, in place. */
static size_t encode_bytes(const damacy__chain* chain, uint32_t first, uint8_t* bytes, size_t n)
{
    uint8_t* other = (uint8_t*)malloc(ROOM);

    CHECK(other != NULL);
    for (uint32_t i = first; i < chain->n; i++) {
        n = encode_step(chain->codecs[i].kind, bytes, n, other);
        memcpy(bytes, other, n);
    }
    free(other);
    return n;
}

static const uint32_t kinds[] = {DAMACY__CODEC_ZSTD, DAMACY__CODEC_BLOSC, DAMACY__CODEC_GZIP,
                                 DAMACY__CODEC_ZLIB, DAMACY__CODEC_LZ4,   DAMACY__CODEC_CRC32C};

/* An array of n bytes, one chunk, the bytes codec and then the codecs given. */
static void make_layout(damacy__layout* layout, damacy__codec* codecs, const uint32_t* which,
                        uint32_t n_which, int64_t n)
{
    damacy__chain chain;

    memset(layout, 0, sizeof *layout);
    memset(codecs, 0, (n_which + 1) * sizeof *codecs);
    codecs[0].kind = DAMACY__CODEC_BYTES;
    for (uint32_t i = 0; i < n_which; i++) {
        codecs[1 + i].kind = which[i];
    }
    chain.codecs = codecs;
    chain.n = n_which + 1;
    layout->rank = 1;
    layout->item_size = 1;
    layout->shape[0] = layout->object_shape[0] = n;
    CHECK_EQ(damacy__layout_resolve(layout, &chain, &err), DAMACY_OK);
    CHECK_EQ(layout->chunk_size, n);
}

static uint8_t voxels[MOST];
static uint8_t stored[ROOM];
static uint8_t decoded[MOST];

static void fill(size_t n)
{
    for (size_t i = 0; i < n; i++) {
        voxels[i] = (uint8_t)(test_random(&state) >> 8) & (i % 3 ? 3 : 63);
    }
}

/* Copies that end where they end, so that ASan sees each byte too far. */
static damacy_status decode(const damacy__layout* layout, const uint8_t* src, size_t size)
{
    uint8_t* copy = (uint8_t*)malloc(size ? size : 1);
    uint8_t* dst = (uint8_t*)malloc(layout->chunk_size);
    damacy_status status;

    CHECK(copy && dst && layout->chunk_size <= MOST);
    memcpy(copy, src, size);
    memset(dst, 0xa5, layout->chunk_size);
    memset(&err, 0, sizeof err);
    err.offset = UINT64_MAX;
    status = damacy__host_decode(&decoder, layout, damacy__span_of(copy, size), dst, &err);
    CHECK(status == DAMACY_OK || (err.status == status && err.message[0]));
    CHECK(status == DAMACY_OK || err.offset == UINT64_MAX || err.offset <= size);
    memcpy(decoded, dst, layout->chunk_size);
    free(dst);
    free(copy);
    return status;
}

TEST(host_decode_undoes_chains_of_up_to_three_codecs)
{
    const size_t n_kinds = DAMACY__COUNT(kinds);
    damacy__codec codecs[8];
    damacy__layout layout;

    state = test_seed();
    begin(false);
    for (size_t i = 0; i < (n_kinds + 1) * n_kinds * n_kinds; i++) {
        const uint32_t which[3] = {kinds[i % n_kinds], kinds[i / n_kinds % n_kinds],
                                   kinds[i / n_kinds / n_kinds % n_kinds]};
        const uint32_t n_which = i < n_kinds ? 1 : i < n_kinds * n_kinds ? 2 : 3;
        const size_t n = 1 + test_random(&state) % 9000;
        size_t size;
        make_layout(&layout, codecs, which, n_which, (int64_t)n);
        CHECK(!damacy__host_decode_is_identity(&layout));
        fill(n);
        memcpy(stored, voxels, n);
        size = encode_bytes(&layout.chunk_chain, 1, stored, n);
        CHECK_EQ(decode(&layout, stored, size), DAMACY_OK);
        CHECK(memcmp(decoded, voxels, n) == 0);
        CHECK_EQ(decode(&layout, stored, size - 1), DAMACY_DECODE);
        stored[size] = 0;
        CHECK_EQ(decode(&layout, stored, size + 1), DAMACY_DECODE);
        layout.chunk_size++;
        CHECK_EQ(decode(&layout, stored, size), DAMACY_DECODE);
        layout.chunk_size -= 2;
        if (layout.chunk_size) {
            CHECK_EQ(decode(&layout, stored, size), DAMACY_DECODE);
        }
    }
    end();
}

TEST(host_decode_copies_chunks_without_codecs)
{
    damacy__codec codecs[2];
    damacy__layout layout;

    begin(false);
    make_layout(&layout, codecs, NULL, 0, 100);
    codecs[0].big_endian = 1; /* not undone here */
    CHECK(damacy__host_decode_is_identity(&layout));
    fill(100);
    CHECK_EQ(decode(&layout, voxels, 100), DAMACY_OK);
    CHECK(memcmp(decoded, voxels, 100) == 0);
    CHECK_EQ(decode(&layout, voxels, 99), DAMACY_DECODE);
    CHECK_HAS(err.message, "99 decoded bytes, 100 are due");
    CHECK_EQ(decode(&layout, voxels, 101), DAMACY_DECODE);
    end();
}

TEST(host_decode_verifies_checksums_unless_told_not_to)
{
    const uint32_t which[] = {DAMACY__CODEC_ZSTD, DAMACY__CODEC_CRC32C};
    const uint32_t inside[] = {DAMACY__CODEC_CRC32C, DAMACY__CODEC_ZSTD};
    damacy__codec codecs[4];
    damacy__layout layout;
    size_t size;

    for (int skip = 0; skip < 2; skip++) {
        begin(skip != 0);
        make_layout(&layout, codecs, which, 2, 500);
        fill(500);
        memcpy(stored, voxels, 500);
        size = encode_bytes(&layout.chunk_chain, 1, stored, 500);
        stored[size - 1] ^= 1;
        CHECK_EQ(decode(&layout, stored, size), skip ? DAMACY_OK : DAMACY_DECODE);
        if (!skip) {
            CHECK_HAS(err.message, "crc32c: checksum is");
            CHECK_EQ(err.offset, size - 4);
        }
        CHECK_EQ(decode(&layout, stored, 3), DAMACY_DECODE);
        make_layout(&layout, codecs, inside, 2, 500);
        memcpy(stored, voxels, 500);
        damacy__store_u32le(stored + 500, damacy__crc32c(voxels, 500) ^ 1);
        size = encode_step(DAMACY__CODEC_ZSTD, stored, 504, stored + MOST);
        CHECK_EQ(decode(&layout, stored + MOST, size), skip ? DAMACY_OK : DAMACY_DECODE);
        CHECK_EQ(err.offset, UINT64_MAX); /* a place in what zstd gave is no place in the object */
        end();
    }
}

TEST(host_decode_bounds_what_lies_between_codecs)
{
    const uint32_t which[] = {DAMACY__CODEC_LZ4, DAMACY__CODEC_GZIP};
    damacy__codec codecs[4];
    damacy__layout layout;
    uint8_t* big = (uint8_t*)calloc(1, 32 << 20);
    uLongf size = ROOM;
    z_stream z;

    begin(false);
    alloc.budget = 1 << 20;
    make_layout(&layout, codecs, which, 2, 1000);
    CHECK(big != NULL);
    memset(&z, 0, sizeof z);
    CHECK(deflateInit2(&z, 1, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    z.next_in = big;
    z.avail_in = 32 << 20;
    z.next_out = stored;
    z.avail_out = ROOM;
    CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
    size = z.total_out;
    (void)deflateEnd(&z);
    free(big);
    CHECK_EQ(decode(&layout, stored, size), DAMACY_DECODE);
    CHECK_HAS(err.message, "gzip: more than the");
    end();
}

TEST(host_decode_allocates_nothing_once_warm)
{
    const uint32_t which[] = {DAMACY__CODEC_ZSTD, DAMACY__CODEC_LZ4, DAMACY__CODEC_CRC32C};
    damacy__codec codecs[4];
    damacy__layout layout;
    uint64_t n_calls = 0;

    begin(false);
    make_layout(&layout, codecs, which, 3, 5000);
    for (int i = 0; i < 4; i++) {
        size_t size;
        fill(5000);
        memcpy(stored, voxels, 5000);
        size = encode_bytes(&layout.chunk_chain, 1, stored, 5000);
        CHECK_EQ(decode(&layout, stored, size), DAMACY_OK);
        CHECK(i == 0 || alloc.n_calls == n_calls);
        n_calls = alloc.n_calls;
    }
    CHECK(n_calls > 0);
    end();
}

/* ---- shards within shards ---- */

/* Memory of one random array document. */
typedef struct document {
    damacy__codec codecs[64];
    damacy__sharding shardings[4];
    uint32_t n_codecs;
    uint32_t n_shardings;
    uint32_t rank;
    uint32_t item_size;
    uint64_t fill;
} document;

static document made;

static damacy__codec* add_codec(damacy__chain* chain, uint32_t kind)
{
    damacy__codec* codec = &made.codecs[made.n_codecs++];

    CHECK(made.n_codecs <= DAMACY__COUNT(made.codecs));
    memset(codec, 0, sizeof *codec);
    codec->kind = kind;
    chain->n++;
    return codec;
}

static void add_transpose(damacy__chain* chain, uint32_t rank)
{
    damacy__codec* codec = add_codec(chain, DAMACY__CODEC_TRANSPOSE);

    for (uint32_t i = 0; i < rank; i++) {
        const uint32_t other = (uint32_t)(test_random(&state) % (i + 1));
        codec->order[i] = codec->order[other];
        codec->order[other] = i;
    }
}

static void add_index_chain(damacy__sharding* sharding)
{
    damacy__chain* chain = &sharding->index_chain;

    chain->codecs = &made.codecs[made.n_codecs];
    if (test_random(&state) % 4 == 0) {
        add_transpose(chain, made.rank + 1);
    }
    add_codec(chain, DAMACY__CODEC_BYTES)->big_endian = test_random(&state) % 4 == 0;
    sharding->index_size = 16 * sharding->n_entries;
    if (test_random(&state) % 2) {
        (void)add_codec(chain, DAMACY__CODEC_CRC32C);
        sharding->index_size += 4;
    }
}

/* A random chain for an array of `shape`, sharded `levels` deep. The loop makes one level a turn.
 */
static void make_chain(damacy__chain* chain, const int64_t* shape, uint32_t levels)
{
    int64_t seen[DAMACY_MAX_RANK];

    memcpy(seen, shape, sizeof seen);
    for (;; levels--) {
        uint32_t axes[DAMACY_MAX_RANK];
        int64_t before[DAMACY_MAX_RANK];
        damacy__sharding* sharding = NULL;
        memset(chain, 0, sizeof *chain);
        chain->codecs = &made.codecs[made.n_codecs];
        for (uint64_t n = test_random(&state) % 3; n > 0; n--) {
            add_transpose(chain, made.rank);
        }
        if (levels > 0) {
            sharding = &made.shardings[made.n_shardings++];
            memset(sharding, 0, sizeof *sharding);
            add_codec(chain, DAMACY__CODEC_SHARDING)->sharding = sharding;
        } else {
            add_codec(chain, DAMACY__CODEC_BYTES)->big_endian = test_random(&state) % 3 == 0;
        }
        for (uint32_t i = 0; i < made.rank; i++) {
            axes[i] = i;
            before[i] = seen[i];
        }
        (void)damacy__chain_axes(chain, made.rank, axes);
        for (uint64_t n = test_random(&state) % 3; n > 0; n--) {
            (void)add_codec(chain, kinds[test_random(&state) % DAMACY__COUNT(kinds)]);
        }
        if (!sharding) {
            return;
        }
        sharding->n_entries = 1;
        for (uint32_t i = 0; i < made.rank; i++) {
            seen[i] = before[axes[i]];
            sharding->grid[i] = seen[i] % 3 == 0 ? 3 : seen[i] % 2 == 0 ? 2 : 1;
            seen[i] /= sharding->grid[i];
            sharding->chunk_shape[i] = seen[i];
            sharding->n_entries *= (uint64_t)sharding->grid[i];
        }
        sharding->index_at_start = (uint32_t)(test_random(&state) % 2);
        add_index_chain(sharding);
        chain = &sharding->chunk_chain;
    }
}

static size_t n_missing;

static size_t encode(const damacy__chain* chain, const int64_t* shape, uint8_t* array,
                     uint8_t* out);

static uint64_t count(const int64_t* shape)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < made.rank; i++) {
        n *= (uint64_t)shape[i];
    }
    return n;
}

/* Stores an index of the sharding's form. */
static size_t encode_index(const damacy__sharding* s, const uint64_t* pairs, uint8_t* out)
{
    uint64_t strides[DAMACY_MAX_RANK + 1];
    const bool big = damacy__shard_is_big_endian(s);

    damacy__shard_strides(s, made.rank, strides);
    for (uint64_t k = 0; k < 2 * s->n_entries; k++) {
        uint64_t rest = k / 2;
        uint64_t at = k % 2 * strides[made.rank];
        for (uint32_t i = made.rank; i-- > 0;) {
            at += rest % (uint64_t)s->grid[i] * strides[i];
            rest /= (uint64_t)s->grid[i];
        }
        damacy__store_u64le(out + 8 * at, big ? __builtin_bswap64(pairs[k]) : pairs[k]);
    }
    if (s->index_size % 16) {
        damacy__store_u32le(out + 16 * s->n_entries, damacy__crc32c(out, 16 * s->n_entries));
    }
    return s->index_size;
}

/* Copies chunk k out of an array, or into it. */
static void copy_chunk(const damacy__sharding* s, const int64_t* shape, uint64_t k, uint8_t* array,
                       uint8_t* chunk, bool out)
{
    for (uint64_t e = 0; e < count(s->chunk_shape); e++) {
        uint64_t rest_k = k;
        uint64_t rest = e;
        uint64_t at = 0;
        uint64_t stride = made.item_size;
        for (uint32_t i = made.rank; i-- > 0;) {
            at += stride * (rest_k % (uint64_t)s->grid[i] * (uint64_t)s->chunk_shape[i] +
                            rest % (uint64_t)s->chunk_shape[i]);
            rest_k /= (uint64_t)s->grid[i];
            rest /= (uint64_t)s->chunk_shape[i];
            stride *= (uint64_t)shape[i];
        }
        memcpy(out ? chunk + e * made.item_size : array + at,
               out ? array + at : chunk + e * made.item_size, made.item_size);
    }
}

/* The array as a shard: chunks in descending order, gaps between them, some left out. The array
 * becomes what the shard will be read as. */
static size_t encode_shard(const damacy__sharding* s, const int64_t* shape, uint8_t* array,
                           uint8_t* out)
{
    const uint64_t n = count(s->chunk_shape);
    uint64_t* pairs = (uint64_t*)calloc(2 * s->n_entries, 8);
    uint8_t* chunk = (uint8_t*)malloc(n * made.item_size);
    size_t at = s->index_at_start ? s->index_size : 0;

    CHECK(pairs && chunk);
    for (uint64_t k = s->n_entries; k-- > 0;) {
        pairs[2 * k] = pairs[2 * k + 1] = UINT64_MAX;
        if (test_random(&state) % 4 == 0) {
            n_missing++;
            for (uint64_t e = 0; e < n; e++) {
                memcpy(chunk + e * made.item_size, &made.fill, made.item_size);
            }
        } else {
            copy_chunk(s, shape, k, array, chunk, true);
            memset(out + at, 0xee, 3);
            at += test_random(&state) % 3;
            pairs[2 * k] = at;
            pairs[2 * k + 1] = encode(&s->chunk_chain, s->chunk_shape, chunk, out + at);
            at += pairs[2 * k + 1];
        }
        copy_chunk(s, shape, k, array, chunk, false);
    }
    at += encode_index(s, pairs, s->index_at_start ? out : out + at);
    at -= s->index_at_start ? s->index_size : 0;
    free(chunk);
    free(pairs);
    return at;
}

/* Moves elements between an array and its transposed form. */
static void transpose(const int64_t* shape, const uint32_t* axes, uint8_t* array, uint8_t* seen,
                      bool forward)
{
    int64_t strides[DAMACY_MAX_RANK];

    damacy__strides(shape, made.rank, strides);
    for (uint64_t e = 0; e < count(shape); e++) {
        uint64_t rest = e;
        uint64_t at = 0;
        for (uint32_t i = made.rank; i-- > 0;) {
            at += rest % (uint64_t)shape[axes[i]] * (uint64_t)strides[axes[i]];
            rest /= (uint64_t)shape[axes[i]];
        }
        memcpy(forward ? seen + e * made.item_size : array + at * made.item_size,
               forward ? array + at * made.item_size : seen + e * made.item_size, made.item_size);
    }
}

static size_t encode(const damacy__chain* chain, const int64_t* shape, uint8_t* array, uint8_t* out)
{
    const size_t size = count(shape) * made.item_size;
    uint8_t* seen = (uint8_t*)malloc(size);
    uint8_t* bytes = (uint8_t*)malloc(ROOM);
    int64_t seen_shape[DAMACY_MAX_RANK];
    uint32_t axes[DAMACY_MAX_RANK];
    uint32_t middle;
    size_t n = size;

    CHECK(seen && bytes);
    for (uint32_t i = 0; i < made.rank; i++) {
        axes[i] = i;
    }
    middle = damacy__chain_axes(chain, made.rank, axes);
    for (uint32_t i = 0; i < made.rank; i++) {
        seen_shape[i] = shape[axes[i]];
    }
    transpose(shape, axes, array, seen, true);
    if (chain->codecs[middle].kind == DAMACY__CODEC_SHARDING) {
        n = encode_shard(chain->codecs[middle].sharding, seen_shape, seen, bytes);
        transpose(shape, axes, array, seen, false);
    } else {
        for (size_t i = 0; i < size; i++) {
            const size_t last = made.item_size - 1;
            bytes[i] = seen[chain->codecs[middle].big_endian
                                ? i / (last + 1) * (last + 1) + last - i % (last + 1)
                                : i];
        }
    }
    n = encode_bytes(chain, middle + 1, bytes, n);
    CHECK(n <= ROOM / 2);
    memcpy(out, bytes, n);
    free(seen);
    free(bytes);
    return n;
}

/* A random nested document and its one object; the layout may address the outermost shard's chunks,
 * then the object is one of those. */
static size_t make_nested(damacy__layout* layout)
{
    damacy__chain chain;
    const uint32_t sizes[] = {1, 2, 4, 8};
    int64_t shape[DAMACY_MAX_RANK] = {0};

    for (;;) {
        memset(&made, 0, sizeof made);
        memset(layout, 0, sizeof *layout);
        made.rank = 1 + (uint32_t)(test_random(&state) % 3);
        made.item_size = sizes[test_random(&state) % 4];
        made.fill = test_random(&state) >> (64 - 8 * made.item_size);
        for (uint32_t i = 0; i < made.rank; i++) {
            shape[i] = 1 + (int64_t)(test_random(&state) % 12);
        }
        make_chain(&chain, shape, 1 + (uint32_t)(test_random(&state) % 3));
        layout->rank = made.rank;
        layout->item_size = made.item_size;
        layout->fill = made.fill;
        memcpy(layout->object_shape, shape, sizeof shape);
        CHECK_EQ(damacy__layout_resolve(layout, &chain, &err), DAMACY_OK);
        if (layout->is_nested) {
            break;
        }
    }
    for (size_t i = 0; i < layout->chunk_size; i++) {
        voxels[i] = (uint8_t)(test_random(&state) >> 8);
    }
    return encode(&layout->chunk_chain,
                  layout->is_sharded ? layout->sharding->chunk_shape : layout->object_shape, voxels,
                  stored);
}

TEST(host_decode_undoes_shards_within_chunks)
{
    damacy__layout layout;

    state = test_seed();
    n_missing = 0;
    begin(false);
    for (int round = 0; round < 1500; round++) {
        const size_t size = make_nested(&layout);
        CHECK(!damacy__host_decode_is_identity(&layout));
        CHECK_EQ(decode(&layout, stored, size), DAMACY_OK);
        CHECK(memcmp(decoded, voxels, layout.chunk_size) == 0);
    }
    printf("# %zu chunks were missing\n", n_missing);
    CHECK(n_missing > 1000);
    end();
}

TEST(host_decode_survives_damaged_nested_chunks)
{
    damacy__layout layout;
    size_t n_accepted = 0;
    size_t n_named = 0;

    state = test_seed();
    begin(false);
    alloc.budget = 64 << 20;
    for (int round = 0; round < 400; round++) {
        const size_t size = make_nested(&layout);
        for (int k = 0; k < 25; k++) {
            const uint64_t r = test_random(&state);
            const size_t at = (r >> 16) % size;
            const uint8_t old = stored[at];
            stored[at] = r & 1 ? (uint8_t)(r >> 8) : (uint8_t)(old ^ 1u << (r >> 8 & 7));
            if (decode(&layout, stored, size) == DAMACY_OK) {
                n_accepted++;
            } else if (made.shardings[0].index_size % 16 == 0 && strstr(err.message, "outside")) {
                n_named += strncmp(err.message, "nested chunk ", 13) == 0;
            }
            stored[at] = old;
        }
        (void)decode(&layout, stored, test_random(&state) % size);
        CHECK_EQ(decode(&layout, stored, size), DAMACY_OK);
        CHECK(memcmp(decoded, voxels, layout.chunk_size) == 0);
    }
    printf("# %zu of 10000 accepted\n", n_accepted);
    CHECK(n_named > 0); /* an index two levels down: the message says of which chunk */
    end();
}

/* The k-th allocation fails. */
static int64_t n_until_failure;

static void* failing_alloc(void* user, size_t size, size_t alignment)
{
    void* ptr = NULL;

    (void)user;
    if (n_until_failure-- <= 0) {
        return NULL;
    }
    return posix_memalign(&ptr, alignment, size) == 0 ? ptr : NULL;
}

static void failing_free(void* user, void* ptr, size_t size)
{
    (void)user;
    (void)size;
    free(ptr);
}

TEST(host_decode_says_when_memory_ends_and_leaks_none)
{
    damacy__layout layout;
    size_t n_failed = 0;

    state = test_seed();
    for (int round = 0; round < 20; round++) {
        bool is_done = false;
        const size_t size = make_nested(&layout);
        for (int64_t k = 0; !is_done; k++) {
            damacy_status status;
            begin(false);
            alloc.user.alloc = failing_alloc;
            alloc.user.free = failing_free;
            n_until_failure = k;
            status = decode(&layout, stored, size);
            is_done = status == DAMACY_OK;
            CHECK(is_done || status == DAMACY_OOM);
            n_failed += !is_done;
            end();
        }
        CHECK(memcmp(decoded, voxels, layout.chunk_size) == 0);
    }
    printf("# %zu failures\n", n_failed);
    CHECK(n_failed > 100);
}

TEST_MAIN
