/* How fast chunks decode on one core of this machine, beside the libraries themselves in the same
 * run: GB/s of decoded bytes by processor time, each chunk at its best of several rounds that take
 * turns, and the ratio.
 *
 *   cc -O2 -I. bench/decode_host.c -o decode_host -ldl -lpthread -lm && ./decode_host [rounds]
 *
 * Chunks of 256 KiB: shot-noise microscopy, half-random samples, and text-like bytes, packed by the
 * libraries found here (libzstd, liblz4, libz, libblosc; without one its rows are left out). */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"

enum { CHUNK = 256 << 10, N_CHUNKS = 64, PACKED = 2 * CHUNK };

typedef size_t (*zstd_compress_fn)(void*, size_t, const void*, size_t, int);
typedef size_t (*zstd_decompress_fn)(void*, void*, size_t, const void*, size_t);
typedef void* (*zstd_create_fn)(void);
typedef int (*lz4_compress_fn)(const char*, char*, int, int);
typedef int (*lz4_decompress_fn)(const char*, char*, int, int);
typedef int (*z_compress_fn)(uint8_t*, unsigned long*, const uint8_t*, unsigned long, int);
typedef int (*z_uncompress_fn)(uint8_t*, unsigned long*, const uint8_t*, unsigned long);
typedef int (*blosc_compress_fn)(int, int, size_t, size_t, const void*, void*, size_t, const char*,
                                 size_t, int);
typedef int (*blosc_decompress_fn)(const void*, void*, size_t, int);

/* What the libraries offer; NULL where one is missing. */
typedef struct peers {
    zstd_compress_fn zstd_compress;
    zstd_decompress_fn zstd_decompress;
    void* zstd_context;
    lz4_compress_fn lz4_compress;
    lz4_decompress_fn lz4_decompress;
    z_compress_fn z_compress;
    z_uncompress_fn z_uncompress;
    blosc_compress_fn blosc_compress;
    blosc_decompress_fn blosc_decompress;
} peers;

typedef struct row {
    const char* name;
    uint32_t kind; /* damacy__codec_kind */
    const char* inner;
    int level;
    int shuffle;
    int width;
} row;

static uint8_t content[N_CHUNKS][CHUNK];
static uint8_t packed[N_CHUNKS][PACKED];
static size_t sizes[N_CHUNKS];
static uint8_t out[CHUNK];

static void find(void* target, const char* soname, const char* name)
{
    void* handle = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    void* address = handle ? dlsym(handle, name) : NULL;

    memcpy(target, &address, sizeof address);
}

static void open_peers(peers* p)
{
    zstd_create_fn create = NULL;

    memset(p, 0, sizeof *p);
    find(&create, "libzstd.so.1", "ZSTD_createDCtx");
    find(&p->zstd_compress, "libzstd.so.1", "ZSTD_compress");
    find(&p->zstd_decompress, "libzstd.so.1", "ZSTD_decompressDCtx");
    p->zstd_context = create ? create() : NULL;
    find(&p->lz4_compress, "liblz4.so.1", "LZ4_compress_default");
    find(&p->lz4_decompress, "liblz4.so.1", "LZ4_decompress_safe");
    find(&p->z_compress, "libz.so.1", "compress2");
    find(&p->z_uncompress, "libz.so.1", "uncompress");
    find(&p->blosc_compress, "libblosc.so.1", "blosc_compress_ctx");
    find(&p->blosc_decompress, "libblosc.so.1", "blosc_decompress_ctx");
}

/* kind 0: photons around a dim level; 1: half noise, half zero; 2: words. */
static void fill(int kind)
{
    static const char* const words[] = {"chunk ",  "shard ",  "voxel ",   "of the ",
                                        "index, ", "and ",    "batch ",   "streams ",
                                        "a ",      "codec. ", "decodes ", "to "};
    uint64_t state = 1;

    for (size_t c = 0; c < N_CHUNKS; c++) {
        for (size_t i = 0; i < CHUNK;) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            if (kind == 2) {
                const char* word = words[state >> 33 & 0xffffff ? (state >> 40) % 12 : 0];
                for (; *word && i < CHUNK; word++) {
                    content[c][i++] = (uint8_t)*word;
                }
                continue;
            }
            {
                const uint64_t r = state >> 20;
                const uint32_t noise = (uint32_t)((r & 15) + (r >> 4 & 15) + (r >> 8 & 15));
                const uint32_t v = kind == 0 ? 90 + noise : r >> 40 & 1 ? (uint32_t)r & 0xffff : 0;
                content[c][i] = (uint8_t)v;
                content[c][i + 1] = (uint8_t)(v >> 8);
                i += 2;
            }
        }
    }
}

/* Packs all chunks as the row says; false: the library is missing. */
static bool pack(const peers* p, const row* r)
{
    for (size_t c = 0; c < N_CHUNKS; c++) {
        unsigned long z_size = PACKED;
        int n = 0;
        if (r->kind == DAMACY__CODEC_ZSTD && p->zstd_compress && p->zstd_context) {
            sizes[c] = p->zstd_compress(packed[c], PACKED, content[c], CHUNK, r->level);
        } else if (r->kind == DAMACY__CODEC_LZ4 && p->lz4_compress && p->lz4_decompress) {
            damacy__store_u32le(packed[c], CHUNK);
            n = p->lz4_compress((const char*)content[c], (char*)packed[c] + 4, CHUNK, PACKED - 4);
            sizes[c] = (size_t)n + 4;
        } else if (r->kind == DAMACY__CODEC_ZLIB && p->z_compress && p->z_uncompress) {
            (void)p->z_compress(packed[c], &z_size, content[c], CHUNK, r->level);
            sizes[c] = z_size;
        } else if (r->kind == DAMACY__CODEC_BLOSC && p->blosc_compress && p->blosc_decompress) {
            n = p->blosc_compress(r->level, r->shuffle, (size_t)r->width, CHUNK, content[c],
                                  packed[c], PACKED, r->inner, 0, 1);
            sizes[c] = (size_t)n;
        } else {
            return false;
        }
    }
    return true;
}

/* Decodes one chunk with the library alone. */
static bool decode_peer(const peers* p, const row* r, size_t c)
{
    unsigned long n = CHUNK;

    if (r->kind == DAMACY__CODEC_ZSTD) {
        return p->zstd_decompress(p->zstd_context, out, CHUNK, packed[c], sizes[c]) == CHUNK;
    }
    if (r->kind == DAMACY__CODEC_LZ4) {
        return p->lz4_decompress((const char*)packed[c] + 4, (char*)out, (int)sizes[c] - 4,
                                 CHUNK) == CHUNK;
    }
    if (r->kind == DAMACY__CODEC_ZLIB) {
        return p->z_uncompress(out, &n, packed[c], (unsigned long)sizes[c]) == 0 && n == CHUNK;
    }
    return p->blosc_decompress(packed[c], out, CHUNK, 1) == CHUNK;
}

/* This thread's time on the processor, so that other programs count for little. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Decodes one chunk with ours (side 0) or the library and checks it; its time, or 0 for an error.
 */
static uint64_t time_chunk(const peers* p, const row* r, damacy__decoder* decoder,
                           const damacy__layout* layout, size_t c, int side)
{
    damacy_error err;
    const uint64_t start = cpu_ns();
    const bool is_good =
        side ? decode_peer(p, r, c)
             : damacy__host_decode(decoder, layout, damacy__span_of(packed[c], sizes[c]), out,
                                   &err) == DAMACY_OK;
    const uint64_t took = cpu_ns() - start;

    if (!is_good || memcmp(out, content[c], CHUNK) != 0) {
        printf("%s: chunk %zu: %s\n", r->name, c,
               is_good ? "wrong bytes"
               : side  ? "refused by the library"
                       : err.message);
        return 0;
    }
    return took ? took : 1;
}

/* Prints a row: GB/s of ours, of the library, and the ratio, each chunk at its best round. False:
 * wrong bytes. */
static bool measure(const peers* p, const row* r, damacy__decoder* decoder, int rounds)
{
    uint64_t sums[2] = {0, 0};
    damacy__codec codecs[2];
    damacy__layout layout;
    uint64_t stored = 0;

    memset(codecs, 0, sizeof codecs);
    memset(&layout, 0, sizeof layout);
    codecs[0].kind = DAMACY__CODEC_BYTES;
    codecs[1].kind = r->kind;
    layout.chunk_chain.codecs = codecs;
    layout.chunk_chain.n = 2;
    layout.chunk_size = CHUNK;
    for (size_t c = 0; c < N_CHUNKS; c++) {
        uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
        for (int round = 0; round < 2 * rounds; round++) {
            const uint64_t took = time_chunk(p, r, decoder, &layout, c, round & 1);
            if (took == 0) {
                return false;
            }
            best[round & 1] = DAMACY__MIN(best[round & 1], took);
        }
        sums[0] += best[0];
        sums[1] += best[1];
        stored += sizes[c];
    }
    printf("  %-34s %6.2f  %7.2f %7.2f %7.2f\n", r->name, (double)N_CHUNKS * CHUNK / (double)stored,
           (double)N_CHUNKS * CHUNK / (double)sums[0], (double)N_CHUNKS * CHUNK / (double)sums[1],
           (double)sums[1] / (double)sums[0]);
    return true;
}

int main(int argc, char** argv)
{
    static const char* const kinds[] = {"dim uint16", "half-random uint16", "text"};
    static const row rows[] = {
        {"zstd level 1", DAMACY__CODEC_ZSTD, "", 1, 0, 0},
        {"zstd level 3", DAMACY__CODEC_ZSTD, "", 3, 0, 0},
        {"lz4", DAMACY__CODEC_LZ4, "", 0, 0, 0},
        {"zlib level 1", DAMACY__CODEC_ZLIB, "", 1, 0, 0},
        {"blosc lz4 5, shuffle 2", DAMACY__CODEC_BLOSC, "lz4", 5, 1, 2},
        {"blosc lz4 5, bit shuffle 2", DAMACY__CODEC_BLOSC, "lz4", 5, 2, 2},
        {"blosc lz4 5, bit shuffle 1", DAMACY__CODEC_BLOSC, "lz4", 5, 2, 1},
        {"blosc lz4 5, shuffle 4", DAMACY__CODEC_BLOSC, "lz4", 5, 1, 4},
        {"blosc lz4 5, shuffle 8", DAMACY__CODEC_BLOSC, "lz4", 5, 1, 8},
        {"blosc zstd 5, shuffle 2", DAMACY__CODEC_BLOSC, "zstd", 5, 1, 2},
        {"blosc zstd 1, bit shuffle 2", DAMACY__CODEC_BLOSC, "zstd", 1, 2, 2},
        {"blosc zlib 1, shuffle 2", DAMACY__CODEC_BLOSC, "zlib", 1, 1, 2},
    };
    const int rounds = argc > 1 ? atoi(argv[1]) : 8;
    damacy__libraries libraries;
    damacy__alloc alloc;
    damacy__decoder decoder;
    damacy_error err;
    bool is_good = true;
    peers p;

    memset(&alloc, 0, sizeof alloc);
    if (damacy__libraries_init(&libraries, &err) != DAMACY_OK ||
        damacy__decoder_init(&decoder, &libraries, &alloc, false, &err) != DAMACY_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    open_peers(&p);
    printf("GB/s of decoded bytes, one core, %d chunks of %d KiB, best of %d\n", N_CHUNKS,
           CHUNK >> 10, rounds);
    for (int kind = 0; kind < 3; kind++) {
        printf("%-36s %6s  %7s %7s %7s\n", kinds[kind], "ratio", "damacy", "library", "x");
        fill(kind);
        for (size_t i = 0; i < DAMACY__COUNT(rows); i++) {
            if (pack(&p, &rows[i])) {
                is_good = measure(&p, &rows[i], &decoder, rounds) && is_good;
            } else {
                printf("  %-34s its library is not here\n", rows[i].name);
            }
        }
    }
    damacy__decoder_deinit(&decoder);
    damacy__libraries_deinit(&libraries);
    return is_good ? 0 : 1;
}
