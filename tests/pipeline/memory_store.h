/* An in-memory store for pipeline tests, and a writer of small Zarr v3 arrays into it.
 *
 * A voxel's value is its C-order number in the array times 7 plus the array's seed, cut to the
 * type, so any crop can be checked without the writer. Faults are set per key. */
#ifndef DAMACY_TEST_MEMORY_STORE_H
#define DAMACY_TEST_MEMORY_STORE_H
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEM_KEYS 4096

typedef struct mem_object {
    char key[200];
    uint8_t* bytes;
    size_t size;
    uint64_t hole;       /* zeros in front of the bytes that are not kept */
    damacy_status fault; /* of open, if not OK */
    int read_fault;      /* 1: read_at fails, 2: read_at ends early, 3: first reads are short */
    uint64_t n_opens;
    uint64_t n_reads;
} mem_object;

typedef struct mem_store {
    mem_object objects[MEM_KEYS];
    int n;
    int n_open;       /* handles open now */
    uint64_t n_reads; /* of chunk data and metadata */
    uint64_t n_bytes;
    unsigned delay_us; /* of every read; atomic */
    pthread_mutex_t mutex;
    pthread_cond_t resume;
    int paused;             /* reads of keys with "/c/" wait, */
    const char* paused_uri; /* of all arrays, or of this one alone */
    int n_waiting; /* such reads; atomic */
} mem_store;

static mem_store* mem_new(void)
{
    mem_store* m = (mem_store*)calloc(1, sizeof *m);

    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->resume, NULL);
    return m;
}

__attribute__((unused)) static void mem_free(mem_store* m)
{
    for (int i = 0; i < m->n; i++) {
        free(m->objects[i].bytes);
    }
    pthread_cond_destroy(&m->resume);
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

__attribute__((unused)) static void mem_pause(mem_store* m, int paused)
{
    pthread_mutex_lock(&m->mutex);
    m->paused = paused;
    pthread_cond_broadcast(&m->resume);
    pthread_mutex_unlock(&m->mutex);
}

static mem_object* mem_find(mem_store* m, const char* key)
{
    for (int i = 0; i < m->n; i++) {
        if (strcmp(m->objects[i].key, key) == 0) {
            return &m->objects[i];
        }
    }
    return NULL;
}

/* Stores a copy of bytes under key, replacing what is there. */
static mem_object* mem_put(mem_store* m, const char* key, const void* bytes, size_t size)
{
    mem_object* o = mem_find(m, key);

    if (!o) {
        if (m->n == MEM_KEYS) {
            abort();
        }
        o = &m->objects[m->n++];
        (void)snprintf(o->key, sizeof o->key, "%s", key);
    }
    free(o->bytes);
    o->bytes = (uint8_t*)malloc(size ? size : 1);
    if (size) {
        memcpy(o->bytes, bytes, size);
    }
    o->size = size;
    return o;
}

static damacy_status mem_open(void* user, const char* key, void** object, uint64_t* size)
{
    mem_store* m = (mem_store*)user;
    mem_object* o;
    damacy_status status = DAMACY_OK;

    pthread_mutex_lock(&m->mutex);
    o = mem_find(m, key);
    if (!o) {
        status = DAMACY_NOTFOUND;
    } else if (o->fault != DAMACY_OK) {
        status = o->fault;
    } else {
        o->n_opens++;
        m->n_open++;
        *object = o;
        *size = o->hole + o->size;
    }
    pthread_mutex_unlock(&m->mutex);
    return status;
}

static damacy_status mem_read_at(void* user, void* object, uint64_t offset, void* dst, size_t size,
                                 size_t* n_read)
{
    mem_store* m = (mem_store*)user;
    mem_object* o = (mem_object*)object;
    size_t n;
    const unsigned delay_us = __atomic_load_n(&m->delay_us, __ATOMIC_RELAXED);
    damacy_status status = DAMACY_OK;

    pthread_mutex_lock(&m->mutex);
    while (m->paused && strstr(o->key, "/c/") &&
           (!m->paused_uri || strncmp(o->key, m->paused_uri, strlen(m->paused_uri)) == 0)) {
        __atomic_add_fetch(&m->n_waiting, 1, __ATOMIC_RELEASE);
        pthread_cond_wait(&m->resume, &m->mutex);
        __atomic_sub_fetch(&m->n_waiting, 1, __ATOMIC_RELAXED);
    }
    m->n_reads++;
    o->n_reads++;
    if (offset < o->hole) {
        n = o->hole - offset < size ? (size_t)(o->hole - offset) : size;
    } else {
        n = offset - o->hole >= o->size ? 0 : o->size - (size_t)(offset - o->hole);
        n = n < size ? n : size;
    }
    if (o->read_fault == 1) {
        status = DAMACY_IO;
    } else if (o->read_fault == 2) {
        n = n / 2;
        if (o->n_reads > 1) {
            n = 0;
        }
    } else if (o->read_fault == 3 && n > 1) {
        n = 1 + n / 3;
    }
    if (status == DAMACY_OK && n) {
        if (offset < o->hole) {
            memset(dst, 0, n);
        } else {
            memcpy(dst, o->bytes + (offset - o->hole), n);
        }
    }
    m->n_bytes += n;
    *n_read = n;
    pthread_mutex_unlock(&m->mutex);
    if (delay_us) {
        struct timespec t;
        t.tv_sec = 0;
        t.tv_nsec = (long)delay_us * 1000;
        nanosleep(&t, NULL);
    }
    return status;
}

static void mem_close(void* user, void* object)
{
    mem_store* m = (mem_store*)user;

    (void)object;
    pthread_mutex_lock(&m->mutex);
    m->n_open--;
    pthread_mutex_unlock(&m->mutex);
}

static damacy_store mem_callbacks(mem_store* m)
{
    damacy_store store;

    memset(&store, 0, sizeof store);
    store.user = m;
    store.open = mem_open;
    store.read_at = mem_read_at;
    store.close = mem_close;
    return store;
}

/* CRC-32C of a few bytes, bit by bit. */
static uint32_t mem_crc32c(const uint8_t* p, size_t n)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) {
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        }
    }
    return crc ^ 0xffffffffu;
}

/* What mem_array writes; zero means the plain choice. */
typedef struct mem_array {
    const char* uri;
    int rank;
    int64_t shape[4];
    int64_t chunk[4];
    int64_t shard[4];      /* 0: not sharded */
    const char* data_type; /* "uint16" */
    int item_size;         /* 2 */
    uint32_t seed;
    const char* fill;   /* JSON; "0" */
    int has_crc;        /* chunks end in a crc32c */
    int is_missing_odd; /* chunks with an odd number are not stored */
    int index_at_start;
} mem_array;

static uint64_t mem_value(const mem_array* a, const int64_t* at)
{
    uint64_t number = 0;

    for (int i = 0; i < a->rank; i++) {
        number = number * (uint64_t)a->shape[i] + (uint64_t)at[i];
    }
    number = number * 7 + a->seed;
    return a->item_size == 8 ? number : number & ((UINT64_C(1) << (8 * a->item_size)) - 1);
}

/* The C-order number of the chunk that holds a voxel. */
static uint64_t mem_chunk_number(const mem_array* a, const int64_t* at)
{
    uint64_t number = 0;

    for (int i = 0; i < a->rank; i++) {
        number = number * (uint64_t)((a->shape[i] + a->chunk[i] - 1) / a->chunk[i]) +
                 (uint64_t)(at[i] / a->chunk[i]);
    }
    return number;
}

static size_t mem_encode_chunk(const mem_array* a, const int64_t* origin, uint8_t* out)
{
    int64_t within[4] = {0, 0, 0, 0};
    size_t n = 0;
    int axis;

    for (;;) {
        int64_t at[4];
        uint64_t value;
        int inside = 1;
        for (int i = 0; i < a->rank; i++) {
            at[i] = origin[i] + within[i];
            inside = inside && at[i] < a->shape[i];
        }
        value = inside ? mem_value(a, at) : UINT64_C(0xa5a5a5a5a5a5a5a5);
        for (int b = 0; b < a->item_size; b++) {
            out[n++] = (uint8_t)(value >> (8 * b));
        }
        for (axis = a->rank - 1; axis >= 0 && ++within[axis] == a->chunk[axis]; axis--) {
            within[axis] = 0;
        }
        if (axis < 0) {
            break;
        }
    }
    if (a->has_crc) {
        const uint32_t crc = mem_crc32c(out, n);
        memcpy(out + n, &crc, 4);
        n += 4;
    }
    return n;
}

static void mem_text_list(char* text, size_t size, const int64_t* values, int n)
{
    size_t len = 0;

    text[0] = '\0';
    for (int i = 0; i < n; i++) {
        len +=
            (size_t)snprintf(text + len, size - len, "%s%lld", i ? "," : "", (long long)values[i]);
    }
}

static void mem_put_metadata(mem_store* m, const mem_array* a)
{
    char shape[128];
    char chunk[128];
    char grid[128];
    char inner[512];
    char codecs[1200];
    char text[2400];
    char key[256];
    const int is_sharded = a->shard[0] != 0;

    mem_text_list(shape, sizeof shape, a->shape, a->rank);
    mem_text_list(chunk, sizeof chunk, a->chunk, a->rank);
    mem_text_list(grid, sizeof grid, is_sharded ? a->shard : a->chunk, a->rank);
    (void)snprintf(inner, sizeof inner,
                   "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}}%s",
                   a->has_crc ? ",{\"name\":\"crc32c\"}" : "");
    if (is_sharded) {
        (void)snprintf(
            codecs, sizeof codecs,
            "{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[%s],"
            "\"codecs\":[%s],\"index_codecs\":[{\"name\":\"bytes\",\"configuration\":"
            "{\"endian\":\"little\"}},{\"name\":\"crc32c\"}],\"index_location\":\"%s\"}}",
            chunk, inner, a->index_at_start ? "start" : "end");
    } else {
        (void)snprintf(codecs, sizeof codecs, "%s", inner);
    }
    (void)snprintf(
        text, sizeof text,
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[%s],\"data_type\":\"%s\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[%s]}},"
        "\"chunk_key_encoding\":{\"name\":\"default\",\"configuration\":{\"separator\":\"/\"}},"
        "\"fill_value\":%s,\"codecs\":[%s],\"attributes\":{}}",
        shape, a->data_type, grid, a->fill ? a->fill : "0", codecs);
    (void)snprintf(key, sizeof key, "%s/zarr.json", a->uri);
    mem_put(m, key, text, strlen(text));
}

/* Key of the object that holds a grid position. */
static void mem_key(const mem_array* a, const int64_t* position, char* key, size_t size)
{
    size_t len = (size_t)snprintf(key, size, "%s/c", a->uri);

    for (int i = 0; i < a->rank; i++) {
        len += (size_t)snprintf(key + len, size - len, "/%lld", (long long)position[i]);
    }
}

/* Writes one object: a chunk, or a shard of chunks with its index. */
static void mem_put_object(mem_store* m, const mem_array* a, const int64_t* position)
{
    const int is_sharded = a->shard[0] != 0;
    int64_t inner[4] = {0, 0, 0, 0};
    int64_t per[4];
    size_t chunk_size = (size_t)a->item_size;
    size_t n_entries = 1;
    size_t n = 0;
    size_t entry = 0;
    size_t stored = 0;
    size_t index_size;
    size_t index_at;
    uint8_t* bytes;
    uint8_t* index;
    char key[256];
    int axis;

    for (int i = 0; i < a->rank; i++) {
        per[i] = is_sharded ? a->shard[i] / a->chunk[i] : 1;
        chunk_size *= (size_t)a->chunk[i];
        n_entries *= (size_t)per[i];
    }
    index_size = is_sharded ? 16 * n_entries + 4 : 0;
    bytes = (uint8_t*)calloc(1, (chunk_size + 4) * n_entries + index_size);
    index = (uint8_t*)malloc(index_size + 1);
    memset(index, 0xff, index_size + 1);
    n = a->index_at_start ? index_size : 0;
    for (;;) {
        int64_t origin[4];
        int outside = 0;
        for (int i = 0; i < a->rank; i++) {
            origin[i] = (position[i] * per[i] + inner[i]) * a->chunk[i];
            outside = outside || origin[i] >= a->shape[i];
        }
        if (!outside && !(a->is_missing_odd && mem_chunk_number(a, origin) % 2 == 1)) {
            const uint64_t offset = n;
            const uint64_t size = mem_encode_chunk(a, origin, bytes + n);
            memcpy(index + 16 * entry, &offset, is_sharded ? 8 : 0);
            memcpy(index + 16 * entry + 8, &size, is_sharded ? 8 : 0);
            n += (size_t)size;
            stored++;
        }
        entry++;
        for (axis = a->rank - 1; axis >= 0 && ++inner[axis] == per[axis]; axis--) {
            inner[axis] = 0;
        }
        if (axis < 0) {
            break;
        }
    }
    if (is_sharded) {
        const uint32_t crc = mem_crc32c(index, index_size - 4);
        memcpy(index + index_size - 4, &crc, 4);
        index_at = a->index_at_start ? 0 : n;
        memcpy(bytes + index_at, index, index_size);
        n += a->index_at_start ? 0 : index_size;
    }
    mem_key(a, position, key, sizeof key);
    if (stored) {
        mem_put(m, key, bytes, n);
    }
    free(index);
    free(bytes);
}

/* Writes the metadata and all objects of an array. */
static void mem_put_array(mem_store* m, const mem_array* a)
{
    const int is_sharded = a->shard[0] != 0;
    int64_t position[4] = {0, 0, 0, 0};
    int axis;

    mem_put_metadata(m, a);
    for (int i = 0; i < a->rank; i++) {
        if (a->shape[i] == 0) {
            return;
        }
    }
    for (;;) {
        mem_put_object(m, a, position);
        for (axis = a->rank - 1; axis >= 0; axis--) {
            const int64_t cell = is_sharded ? a->shard[axis] : a->chunk[axis];
            if (++position[axis] * cell < a->shape[axis]) {
                break;
            }
            position[axis] = 0;
        }
        if (axis < 0) {
            break;
        }
    }
}

/* A 3-D uint16 array of 40 x 40 x 40 in chunks of 16: the plain case. */
static mem_array mem_plain(const char* uri)
{
    mem_array a;

    memset(&a, 0, sizeof a);
    a.uri = uri;
    a.rank = 3;
    for (int i = 0; i < 3; i++) {
        a.shape[i] = 40;
        a.chunk[i] = 16;
    }
    a.data_type = "uint16";
    a.item_size = 2;
    return a;
}

static damacy_sample mem_sample(const mem_array* a, int64_t z, int64_t y, int64_t x, int64_t extent)
{
    const int64_t begin[3] = {z, y, x};
    damacy_sample s;

    memset(&s, 0, sizeof s);
    s.uri = a->uri;
    s.rank = 3;
    for (int i = 0; i < 3; i++) {
        s.box[i].begin = begin[i];
        s.box[i].end = begin[i] + extent;
    }
    return s;
}

/* Whether n voxels at f32 equal the crop of a 3-D array; missing odd chunks are `fill`. */
static int mem_equal_f32(const mem_array* a, const damacy_sample* s, const float* voxels,
                         float fill)
{
    size_t n = 0;
    int64_t at[4];

    for (at[0] = s->box[0].begin; at[0] < s->box[0].end; at[0]++) {
        for (at[1] = s->box[1].begin; at[1] < s->box[1].end; at[1]++) {
            for (at[2] = s->box[2].begin; at[2] < s->box[2].end; at[2]++) {
                float expected = (float)mem_value(a, at);
                if (a->is_missing_odd && mem_chunk_number(a, at) % 2 == 1) {
                    expected = fill;
                }
                if (voxels[n++] != expected) {
                    return 0;
                }
            }
        }
    }
    return 1;
}
#endif
