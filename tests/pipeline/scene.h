/* Arrays of given voxels in an in-memory store, written through any codec that a test supplies, and
 * read back as crops: what a pipeline delivers is compared byte for byte with what was put in. */
#ifndef DAMACY_TEST_SCENE_H
#define DAMACY_TEST_SCENE_H
#include "tests/pipeline/memory_store.h"

/* Encodes the raw bytes of one chunk (little-endian, C order); returns the stored size. */
typedef size_t (*scene_encode)(void* context, uint64_t number, const uint8_t* raw, size_t n,
                               uint8_t* out);

typedef struct scene {
    const char* uri;
    int rank;
    int64_t shape[4];
    int64_t chunk[4];
    const char* data_type;
    int item_size;
    const char* codecs;   /* JSON list */
    const char* encoding; /* JSON of chunk_key_encoding; NULL: default with "/" */
    const char* prefix;   /* of chunk keys: "c"; "" for version 2 keys */
    char separator;
    scene_encode encode;
    void* context;
    uint8_t* voxels; /* C order */
} scene;

#define SCENE_BYTES "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}}"

static damacy_config scene_config(mem_store* m, uint32_t per_batch, damacy_on_error on_error)
{
    damacy_config c;

    memset(&c, 0, sizeof c);
    c.store = mem_callbacks(m);
    c.device = DAMACY_CPU;
    c.samples_per_batch = per_batch;
    c.on_error = on_error;
    c.io_threads = 3;
    c.decode_threads = 2;
    c.max_host_bytes = UINT64_C(64) << 20; /* a sanitizer sets less up faster */
    return c;
}

static size_t scene_n_voxels(const scene* s)
{
    size_t n = 1;

    for (int i = 0; i < s->rank; i++) {
        n *= (size_t)s->shape[i];
    }
    return n;
}

/* An array with voxels that compress (kind 0), that do not (1), or mixed by place (2). */
__attribute__((unused)) static scene scene_make(const char* uri, int rank, const int64_t* shape,
                                                const int64_t* chunk, const char* data_type,
                                                int item_size, int kind, uint64_t* seed)
{
    scene s;
    size_t n;

    memset(&s, 0, sizeof s);
    s.uri = uri;
    s.rank = rank;
    memcpy(s.shape, shape, (size_t)rank * sizeof shape[0]);
    memcpy(s.chunk, chunk, (size_t)rank * sizeof chunk[0]);
    s.data_type = data_type;
    s.item_size = item_size;
    s.codecs = "[" SCENE_BYTES "]";
    s.prefix = "c";
    s.separator = '/';
    n = scene_n_voxels(&s);
    s.voxels = (uint8_t*)malloc(n * (size_t)item_size + 1);
    for (size_t i = 0; i < n; i++) {
        uint64_t value = i / 3 % 1000 + (test_random(seed) & 7);
        if (kind == 1 || (kind == 2 && i / 4096 % 2)) {
            value = test_random(seed);
        }
        for (int b = 0; b < item_size; b++) {
            s.voxels[i * (size_t)item_size + (size_t)b] = (uint8_t)(value >> (8 * b));
        }
    }
    return s;
}

/* Copies the chunk at a grid position out of the array; 0xa5 beyond the border. */
static void scene_chunk(const scene* s, const int64_t* position, uint8_t* raw)
{
    const size_t item = (size_t)s->item_size;
    int64_t within[4] = {0, 0, 0, 0};
    size_t n = 0;
    int axis;

    for (;;) {
        size_t number = 0;
        int inside = 1;
        for (int i = 0; i < s->rank; i++) {
            const int64_t at = position[i] * s->chunk[i] + within[i];
            number = number * (size_t)s->shape[i] + (size_t)at;
            inside = inside && at < s->shape[i];
        }
        if (inside) {
            memcpy(raw + n, s->voxels + number * item, item);
        } else {
            memset(raw + n, 0xa5, item);
        }
        n += item;
        for (axis = s->rank - 1; axis >= 0 && ++within[axis] == s->chunk[axis]; axis--) {
            within[axis] = 0;
        }
        if (axis < 0) {
            return;
        }
    }
}

static void scene_key(const scene* s, const int64_t* position, char* key, size_t size)
{
    size_t len = (size_t)snprintf(key, size, "%s/%s", s->uri, s->prefix);

    for (int i = 0; i < s->rank; i++) {
        const char join[2] = {i == 0 && s->prefix[0] == '\0' ? '\0' : s->separator, '\0'};
        len += (size_t)snprintf(key + len, size - len, "%s%lld", join, (long long)position[i]);
    }
    if (s->rank == 0 && s->prefix[0] == '\0') {
        (void)snprintf(key + len, size - len, "0");
    }
}

static void scene_put_metadata(mem_store* m, const scene* s)
{
    char shape[128];
    char chunk[128];
    char text[4096];
    char key[256];

    mem_text_list(shape, sizeof shape, s->shape, s->rank);
    mem_text_list(chunk, sizeof chunk, s->chunk, s->rank);
    (void)snprintf(text, sizeof text,
                   "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[%s],\"data_type\":\"%s\","
                   "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[%s]}},"
                   "\"chunk_key_encoding\":%s,\"fill_value\":0,\"codecs\":%s,\"attributes\":{}}",
                   shape, s->data_type, chunk,
                   s->encoding ? s->encoding
                               : "{\"name\":\"default\",\"configuration\":{\"separator\":\"/\"}}",
                   s->codecs);
    (void)snprintf(key, sizeof key, "%s/zarr.json", s->uri);
    mem_put(m, key, text, strlen(text));
}

/* Writes the metadata and every chunk. */
static void scene_put(mem_store* m, const scene* s)
{
    int64_t position[4] = {0, 0, 0, 0};
    size_t size = (size_t)s->item_size;
    uint64_t number = 0;
    uint8_t* raw;
    uint8_t* stored;
    int axis;

    for (int i = 0; i < s->rank; i++) {
        size *= (size_t)s->chunk[i];
    }
    raw = (uint8_t*)malloc(size);
    stored = (uint8_t*)malloc(2 * size + 65536);
    scene_put_metadata(m, s);
    for (;;) {
        size_t n = size;
        char key[256];
        scene_chunk(s, position, raw);
        if (s->encode) {
            n = s->encode(s->context, number, raw, size, stored);
        }
        scene_key(s, position, key, sizeof key);
        mem_put(m, key, s->encode ? stored : raw, n);
        number++;
        for (axis = s->rank - 1; axis >= 0; axis--) {
            if (++position[axis] * s->chunk[axis] < s->shape[axis]) {
                break;
            }
            position[axis] = 0;
        }
        if (axis < 0) {
            break;
        }
    }
    free(raw);
    free(stored);
}

/* Whether a batch's voxels, of the array's own type, are those of a box. */
static int scene_equal(const scene* s, const damacy_interval* box, const uint8_t* got)
{
    const size_t item = (size_t)s->item_size;
    int64_t at[4] = {0, 0, 0, 0};
    size_t n = 0;
    int axis;

    for (int i = 0; i < s->rank; i++) {
        at[i] = box[i].begin;
    }
    for (;;) {
        size_t number = 0;
        for (int i = 0; i < s->rank; i++) {
            number = number * (size_t)s->shape[i] + (size_t)at[i];
        }
        if (memcmp(got + n, s->voxels + number * item, item) != 0) {
            printf("# %s: voxel %zu differs\n", s->uri, number);
            return 0;
        }
        n += item;
        for (axis = s->rank - 1; axis >= 0 && ++at[axis] == box[axis].end; axis--) {
            at[axis] = box[axis].begin;
        }
        if (axis < 0) {
            return 1;
        }
    }
}

/* Reads one box through a pipeline of its own, in the array's type, and compares it. */
static damacy_status scene_read(mem_store* m, const scene* s, const damacy_interval* box,
                                int* is_equal, damacy_error* err)
{
    damacy_config c = scene_config(m, 1, DAMACY_ON_ERROR_STOP);
    damacy_sample sample;
    damacy_batch batch;
    damacy_status status;
    damacy* d = NULL;

    memset(&sample, 0, sizeof sample);
    sample.uri = s->uri;
    sample.rank = (uint32_t)s->rank;
    memcpy(sample.box, box, (size_t)s->rank * sizeof box[0]);
    c.dtype = DAMACY_NATIVE;
    status = damacy_create(&c, &d, err);
    if (status == DAMACY_OK) {
        status = damacy_push(d, &sample, 1, NULL, err);
    }
    if (status == DAMACY_OK) {
        status = damacy_pop(d, &batch, err);
    }
    if (status == DAMACY_OK) {
        damacy_batch_info_t info;
        (void)damacy_batch_info(batch, &info);
        *is_equal = scene_equal(s, box, (const uint8_t*)info.ptr);
        (void)damacy_release(batch);
    }
    damacy_destroy(d);
    return status;
}

static void scene_whole(const scene* s, damacy_interval* box)
{
    for (int i = 0; i < s->rank; i++) {
        box[i].begin = 0;
        box[i].end = s->shape[i];
    }
}

/* The status of reading the whole array; OK only when every voxel is right. */
static damacy_status scene_status(mem_store* m, const scene* s, damacy_error* err)
{
    damacy_interval box[4];
    damacy_status status;
    int is_equal = 0;

    scene_whole(s, box);
    status = scene_read(m, s, box, &is_equal, err);
    if (status == DAMACY_OK && !is_equal) {
        return (damacy_status)-1;
    }
    if (status != DAMACY_OK) {
        printf("# %s: %s: %s\n", s->uri, err->chunk, err->message);
    }
    return status;
}

/* Writes the array and reads it whole and as a crop that starts and ends inside chunks. */
__attribute__((unused)) static int scene_is_exact(mem_store* m, const scene* s)
{
    damacy_interval box[4];
    damacy_error err;
    int is_equal = 0;

    scene_put(m, s);
    if (scene_status(m, s, &err) != DAMACY_OK) {
        return 0;
    }
    for (int i = 0; i < s->rank; i++) {
        box[i].begin = s->shape[i] / 3;
        box[i].end = s->shape[i] - s->shape[i] / 5;
    }
    return scene_read(m, s, box, &is_equal, &err) == DAMACY_OK && is_equal;
}
#endif
