/* Reads a volume from somewhere else than files: the three functions of a damacy_store. Here the
 * "somewhere" is memory: a Zarr v3 array of 4 x 4 numbers that this program makes itself.
 *
 *     cc -O2 -o custom_store custom_store.c && ./custom_store
 *     0 1 2 3
 *     10 11 12 13
 *     20 21 22 23
 *     30 31 32 33 */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include <stdio.h>
#include <string.h>

typedef struct object {
    const char* key;
    const void* bytes;
    uint64_t size;
} object;

typedef struct memory {
    object objects[2];
    int n_opened; /* counted atomically: several threads open at once */
} memory;

/* A key is the uri of the sample, a slash, and the name inside the array. */
static damacy_status memory_open(void* user, const char* key, void** out, uint64_t* size)
{
    memory* const m = (memory*)user;

    for (int i = 0; i < 2; i++) {
        if (strcmp(m->objects[i].key, key) == 0) {
            __atomic_fetch_add(&m->n_opened, 1, __ATOMIC_RELAXED);
            *out = &m->objects[i];
            *size = m->objects[i].size;
            return DAMACY_OK;
        }
    }
    return DAMACY_NOTFOUND; /* for a chunk this means: the fill value */
}

static damacy_status memory_read_at(void* user, void* opened, uint64_t offset, void* dst,
                                    size_t size, size_t* n_read)
{
    const object* const o = (const object*)opened;

    (void)user;
    *n_read = 0;
    if (offset < o->size) {
        *n_read = size < o->size - offset ? size : (size_t)(o->size - offset);
        memcpy(dst, (const char*)o->bytes + offset, *n_read);
    }
    return DAMACY_OK;
}

static void memory_close(void* user, void* opened)
{
    (void)user;
    (void)opened; /* nothing is held */
}

int main(void)
{
    static const char metadata[] =
        "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":[4,4],\"data_type\":\"uint8\","
        "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":[4,4]}},"
        "\"chunk_key_encoding\":{\"name\":\"default\",\"configuration\":{\"separator\":\"/\"}},"
        "\"fill_value\":0,\"codecs\":[{\"name\":\"bytes\"}]}";
    static const unsigned char chunk[16] = {0,  1,  2,  3,  10, 11, 12, 13,
                                            20, 21, 22, 23, 30, 31, 32, 33};
    memory m = {{{"table/zarr.json", metadata, sizeof metadata - 1}, {"table/c/0/0", chunk, 16}},
                0};
    damacy_config config = {0};
    damacy_sample sample = {0};
    damacy_error err;
    float values[16];

    config.store.user = &m;
    config.store.open = memory_open;
    config.store.read_at = memory_read_at;
    config.store.close = memory_close;
    sample.uri = "table";
    sample.rank = 2;
    sample.box[0].end = 4;
    sample.box[1].end = 4;
    if (damacy_read(&config, &sample, values, sizeof values, &err) != DAMACY_OK) {
        fprintf(stderr, "custom_store: %s: %s\n", damacy_status_str(err.status), err.message);
        return 1;
    }
    for (int i = 0; i < 16; i++) {
        printf("%g%c", (double)values[i], i % 4 == 3 ? '\n' : ' ');
    }
    return 0;
}
