/* Writes sharded Zarr v3 arrays of rank 3 from a callback, for the demo and the benchmarks.
 *
 * Chunks are compressed on all CPUs with libzstd, found at run time, as plain zstd frames or as
 * blosc containers with byte shuffle and zstd streams, or with libblosc, found likewise, as it
 * packs them. The library under test has no part in this. */
#pragma once
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct zarr_spec {
    const char* path; /* folder of the array; its parent exists */
    int64_t shape[3];
    int64_t chunk[3]; /* divides shard */
    int64_t shard[3];
    const char* dtype; /* of Zarr, such as "uint16" */
    size_t item_size;
    bool is_blosc;
    int level;          /* of zstd, blosc's n stands for 2 n - 1; of libblosc where that packs */
    size_t blosc_block; /* bytes; 0: libblosc chooses */
    /* A codec of libblosc, such as "lz4", for what is_blosc packs; NULL: zstd, by this file. */
    const char* libblosc;
    /* Writes the voxels of a box, C order, to dst. Called from several threads at once. The box may
     * reach beyond the array; those voxels are arbitrary. */
    void (*fill)(void* user, const int64_t begin[3], const int64_t extent[3], void* dst);
    void* user;
} zarr_spec;

typedef struct zarr_result {
    uint64_t size_voxels;
    uint64_t size_stored;
    char message[512]; /* "" on success */
} zarr_result;

/* The functions of libzstd that are used. */
typedef struct zarr_zstd {
    void* (*create)(void);
    size_t (*destroy)(void* context);
    size_t (*bound)(size_t size);
    size_t (*compress)(void* context, void* dst, size_t room, const void* src, size_t size,
                       int level);
    unsigned (*is_error)(size_t code);
} zarr_zstd;

/* blosc_compress_ctx. */
typedef int zarr_libblosc(int level, int shuffle, size_t width, size_t size, const void* src,
                          void* dst, size_t room, const char* codec, size_t block, int n_threads);

typedef struct zarr_writer {
    const zarr_spec* spec;
    zarr_zstd zstd;
    zarr_libblosc* libblosc;
    int64_t grid[3];       /* shards per axis */
    pthread_mutex_t mutex; /* guards next and result */
    int64_t next;
    zarr_result* result;
} zarr_writer;

static bool zarr_zstd_open(zarr_zstd* zstd)
{
    void* library = dlopen("libzstd.so.1", RTLD_NOW);

    if (!library) {
        return false;
    }
    *(void**)(void*)&zstd->create = dlsym(library, "ZSTD_createCCtx");
    *(void**)(void*)&zstd->destroy = dlsym(library, "ZSTD_freeCCtx");
    *(void**)(void*)&zstd->bound = dlsym(library, "ZSTD_compressBound");
    *(void**)(void*)&zstd->compress = dlsym(library, "ZSTD_compressCCtx");
    *(void**)(void*)&zstd->is_error = dlsym(library, "ZSTD_isError");
    return zstd->create && zstd->destroy && zstd->bound && zstd->compress && zstd->is_error;
}

static zarr_libblosc* zarr_libblosc_open(void)
{
    void* const library = dlopen("libblosc.so.1", RTLD_NOW);
    zarr_libblosc* found = NULL;

    if (library) {
        *(void**)(void*)&found = dlsym(library, "blosc_compress_ctx");
    }
    return found;
}

static void zarr_put(uint8_t* dst, uint64_t value, int size)
{
    for (int i = 0; i < size; i++) {
        dst[i] = (uint8_t)(value >> (8 * i));
    }
}

/* CRC-32C (RFC 3720). */
static uint32_t zarr_crc32c(const uint8_t* bytes, size_t size)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1)));
        }
    }
    return ~crc;
}

/* A blosc 1 container of unsplit zstd streams over shuffled blocks; returns its size, 0 on failure.
 */
static size_t zarr_blosc(const zarr_writer* w, void* context, const uint8_t* src, size_t size,
                         uint8_t* dst, size_t room, uint8_t* scratch)
{
    const size_t width = w->spec->item_size;
    const size_t block = w->spec->blosc_block < size ? w->spec->blosc_block : size;
    const size_t n_blocks = (size + block - 1) / block;
    size_t at = 16 + 4 * n_blocks;

    for (size_t i = 0; i < n_blocks; i++) {
        const uint8_t* from = src + i * block;
        const size_t length = i * block + block <= size ? block : size - i * block;
        const size_t n = length / width;
        size_t stored;

        for (size_t byte = 0; byte < width; byte++) {
            for (size_t k = 0; k < n; k++) {
                scratch[byte * n + k] = from[k * width + byte];
            }
        }
        memcpy(scratch + n * width, from + n * width, length - n * width);
        stored = w->zstd.compress(context, dst + at + 4, room - at - 4, scratch, length,
                                  w->spec->level * 2 - 1);
        if (w->zstd.is_error(stored)) {
            return 0;
        }
        if (stored >= length) {
            memcpy(dst + at + 4, scratch, length);
            stored = length;
        }
        zarr_put(dst + 16 + 4 * i, at, 4);
        zarr_put(dst + at, stored, 4);
        at += 4 + stored;
    }
    dst[0] = 2; /* c-blosc 1 */
    dst[1] = 1;
    dst[2] = 4 << 5 | 0x10 | 0x01; /* zstd, not split, byte shuffle */
    dst[3] = (uint8_t)width;
    if (at >= size + 16) { /* stored as it is */
        dst[2] |= 0x02;
        memcpy(dst + 16, src, size);
        at = size + 16;
    }
    zarr_put(dst + 4, size, 4);
    zarr_put(dst + 8, block, 4);
    zarr_put(dst + 12, at, 4);
    return at;
}

/* Space of one thread. */
typedef struct zarr_space {
    uint8_t* voxels;
    uint8_t* scratch;
    uint8_t* shard;
    void* context;
} zarr_space;

/* One chunk, from space->voxels to dst; its size, 0 on failure. */
static size_t zarr_pack(const zarr_writer* w, const zarr_space* space, size_t size, uint8_t* dst,
                        size_t room)
{
    const zarr_spec* const s = w->spec;
    size_t stored;

    if (s->is_blosc && s->libblosc) {
        const int n = w->libblosc(s->level, 1, s->item_size, size, space->voxels, dst, room,
                                  s->libblosc, s->blosc_block, 1);
        return n > 0 ? (size_t)n : 0;
    }
    if (s->is_blosc) {
        return zarr_blosc(w, space->context, space->voxels, size, dst, room, space->scratch);
    }
    stored = w->zstd.compress(space->context, dst, room, space->voxels, size, s->level);
    return w->zstd.is_error(stored) ? 0 : stored;
}

static void zarr_fail(zarr_writer* w, const char* what, const char* path)
{
    const int code = errno;

    pthread_mutex_lock(&w->mutex);
    (void)snprintf(w->result->message, sizeof w->result->message, "%s: %s: %s", path, what,
                   strerror(code));
    pthread_mutex_unlock(&w->mutex);
}

/* Makes the folders of a file. */
static void zarr_make_folders(const char* path)
{
    char part[1024];

    for (size_t i = 1; path[i] && i < sizeof part; i++) {
        if (path[i] == '/') {
            memcpy(part, path, i);
            part[i] = 0;
            (void)mkdir(part, 0777);
        }
    }
}

static bool zarr_write_file(zarr_writer* w, const char* path, const void* bytes, size_t size)
{
    FILE* file;

    zarr_make_folders(path);
    file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size) {
        zarr_fail(w, "cannot write", path);
        if (file) {
            (void)fclose(file);
        }
        return false;
    }
    if (fclose(file) != 0) {
        zarr_fail(w, "cannot write", path);
        return false;
    }
    return true;
}

static bool zarr_write_shard(zarr_writer* w, int64_t number, zarr_space* space)
{
    const zarr_spec* const s = w->spec;
    const size_t size_chunk = (size_t)(s->chunk[0] * s->chunk[1] * s->chunk[2]) * s->item_size;
    const int64_t at[3] = {number / (w->grid[1] * w->grid[2]), number / w->grid[2] % w->grid[1],
                           number % w->grid[2]};
    const int64_t n[3] = {s->shard[0] / s->chunk[0], s->shard[1] / s->chunk[1],
                          s->shard[2] / s->chunk[2]};
    const int64_t n_chunks = n[0] * n[1] * n[2];
    const size_t room = w->zstd.bound(size_chunk) + 1024 + size_chunk / 64;
    uint8_t* const index = (uint8_t*)malloc((size_t)n_chunks * 16 + 4);
    char path[1024];
    size_t end = 0;
    bool is_fine = index != NULL;

    for (int64_t i = 0; i < n_chunks && is_fine; i++) {
        const int64_t in_shard[3] = {i / (n[1] * n[2]), i / n[2] % n[1], i % n[2]};
        int64_t begin[3];
        bool is_inside = true;
        size_t stored;

        for (int axis = 0; axis < 3; axis++) {
            begin[axis] = at[axis] * s->shard[axis] + in_shard[axis] * s->chunk[axis];
            is_inside = is_inside && begin[axis] < s->shape[axis];
        }
        memset(index + 16 * i, 0xff, 16);
        if (!is_inside) {
            continue;
        }
        s->fill(s->user, begin, s->chunk, space->voxels);
        stored = zarr_pack(w, space, size_chunk, space->shard + end, room);
        is_fine = stored != 0;
        zarr_put(index + 16 * i, end, 8);
        zarr_put(index + 16 * i + 8, stored, 8);
        end += stored;
    }
    if (is_fine) {
        zarr_put(index + 16 * n_chunks, zarr_crc32c(index, (size_t)n_chunks * 16), 4);
        memcpy(space->shard + end, index, (size_t)n_chunks * 16 + 4);
        end += (size_t)n_chunks * 16 + 4;
        (void)snprintf(path, sizeof path, "%s/c/%lld/%lld/%lld", s->path, (long long)at[0],
                       (long long)at[1], (long long)at[2]);
        is_fine = zarr_write_file(w, path, space->shard, end);
        pthread_mutex_lock(&w->mutex);
        w->result->size_stored += end;
        pthread_mutex_unlock(&w->mutex);
    } else {
        zarr_fail(w, "cannot compress", s->path);
    }
    free(index);
    return is_fine;
}

static void* zarr_thread(void* argument)
{
    zarr_writer* const w = (zarr_writer*)argument;
    const zarr_spec* const s = w->spec;
    const size_t size_chunk = (size_t)(s->chunk[0] * s->chunk[1] * s->chunk[2]) * s->item_size;
    const size_t n_chunks =
        (size_t)(s->shard[0] * s->shard[1] * s->shard[2]) * s->item_size / size_chunk;
    zarr_space space = {NULL, NULL, NULL, NULL};

    space.voxels = (uint8_t*)malloc(size_chunk);
    space.scratch = (uint8_t*)malloc(size_chunk);
    space.shard = (uint8_t*)malloc((n_chunks + 1) *
                                   (w->zstd.bound(size_chunk) + 1024 + size_chunk / 64 + 32));
    space.context = w->zstd.create();
    for (;;) {
        int64_t number;

        pthread_mutex_lock(&w->mutex);
        number = w->result->message[0] ? INT64_MAX : w->next++;
        pthread_mutex_unlock(&w->mutex);
        if (number >= w->grid[0] * w->grid[1] * w->grid[2]) {
            break;
        }
        if (!space.voxels || !space.scratch || !space.shard || !space.context) {
            errno = ENOMEM;
            zarr_fail(w, "shard", s->path);
        } else {
            (void)zarr_write_shard(w, number, &space);
        }
    }
    if (space.context) {
        (void)w->zstd.destroy(space.context);
    }
    free(space.shard);
    free(space.scratch);
    free(space.voxels);
    return NULL;
}

static bool zarr_write_metadata(zarr_writer* w)
{
    const zarr_spec* const s = w->spec;
    char codec[256];
    char text[2048];
    char path[1024];
    int len;

    if (s->is_blosc) {
        (void)snprintf(codec, sizeof codec,
                       "{\"name\":\"blosc\",\"configuration\":{\"cname\":\"%s\",\"clevel\":%d,"
                       "\"shuffle\":\"shuffle\","
                       "\"typesize\":%zu,\"blocksize\":%zu}}",
                       s->libblosc ? s->libblosc : "zstd", s->level, s->item_size, s->blosc_block);
    } else {
        (void)snprintf(codec, sizeof codec,
                       "{\"name\":\"zstd\",\"configuration\":{\"level\":%d,\"checksum\":false}}",
                       s->level);
    }
    len = snprintf(
        text, sizeof text,
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[%lld,%lld,%lld],\"data_type\":\"%"
        "s\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[%lld,%lld,%lld]}}"
        ","
        "\"chunk_key_encoding\":{\"name\":\"default\",\"configuration\":{\"separator\":\"/\"}},"
        "\"fill_value\":0,\"dimension_names\":[\"z\",\"y\",\"x\"],"
        "\"codecs\":[{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[%lld,%lld,%"
        "lld],"
        "\"codecs\":[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}},%s],"
        "\"index_codecs\":[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}},"
        "{\"name\":\"crc32c\"}],\"index_location\":\"end\"}}],\"attributes\":{}}\n",
        (long long)s->shape[0], (long long)s->shape[1], (long long)s->shape[2], s->dtype,
        (long long)s->shard[0], (long long)s->shard[1], (long long)s->shard[2],
        (long long)s->chunk[0], (long long)s->chunk[1], (long long)s->chunk[2], codec);
    (void)snprintf(path, sizeof path, "%s/zarr.json", s->path);
    return zarr_write_file(w, path, text, (size_t)len);
}

/* Writes one array; false: result->message tells why. */
static bool zarr_write(const zarr_spec* spec, zarr_result* result)
{
    const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    const long n_threads = n_cpus < 1 ? 1 : n_cpus < 64 ? n_cpus : 64;
    pthread_t threads[64];
    zarr_writer w;

    memset(&w, 0, sizeof w);
    memset(result, 0, sizeof *result);
    w.spec = spec;
    w.result = result;
    pthread_mutex_init(&w.mutex, NULL);
    if (!zarr_zstd_open(&w.zstd)) {
        (void)snprintf(result->message, sizeof result->message, "libzstd.so.1 was not found: %s",
                       dlerror());
        return false;
    }
    if (spec->is_blosc && spec->libblosc && !(w.libblosc = zarr_libblosc_open())) {
        (void)snprintf(result->message, sizeof result->message, "libblosc.so.1 was not found: %s",
                       dlerror());
        return false;
    }
    result->size_voxels = spec->item_size;
    for (int axis = 0; axis < 3; axis++) {
        w.grid[axis] = (spec->shape[axis] + spec->shard[axis] - 1) / spec->shard[axis];
        result->size_voxels *= (uint64_t)spec->shape[axis];
    }
    if (zarr_write_metadata(&w)) {
        long n = 0;
        while (n < n_threads && pthread_create(&threads[n], NULL, zarr_thread, &w) == 0) {
            n++;
        }
        if (n == 0) {
            (void)zarr_thread(&w);
        }
        while (n > 0) {
            pthread_join(threads[--n], NULL);
        }
    }
    pthread_mutex_destroy(&w.mutex);
    return result->message[0] == 0;
}
