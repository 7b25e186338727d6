/* Metadata and bytes of one array, fetched from its store: blocking calls, made on reader threads
 * or, for inspection, on the caller's.
 *
 * A uri names an array, or an NGFF multiscale group, of which one level is taken; its objects are
 * then opened beneath the group. Only an object that the store says is not there counts as missing;
 * any other failure is an error, never fill values. */
#pragma once
#include "format/key.h"
#include "format/ngff.h"
#include "format/shard.h"
#include "format/zarr.h"
#include "format/zarr2.h"
#include "stage/plan.h"
#include "store/children.h"

typedef struct damacy__fetch_options {
    uint32_t level; /* of a multiscale group */
} damacy__fetch_options;

enum {
    DAMACY__METADATA_MAX = 1 << 20, /* bytes of one document */
    DAMACY__FETCH_KEY = (int)DAMACY__NGFF_MAX_PATH + (int)DAMACY__KEY_CAPACITY + 2
};

/* What there is to know about an array before its chunks are read. */
typedef struct damacy__fetched {
    damacy__root* root; /* of what the uri names; counted */
    char* prefix;       /* "" or "<level path>/": in front of every key */
    damacy__document document;
    const damacy__layout* layout; /* of document */
    damacy__ngff ngff;            /* n_levels 0: the uri names the array */
    char* group_attributes;       /* JSON text; NULL: the uri names the array */
    uint32_t level;
    uint64_t document_size; /* bytes of metadata that were read */
} damacy__fetched;

static damacy_status damacy__fetch_array(damacy__store* store, damacy__alloc* alloc,
                                         const char* uri, const damacy__fetch_options* options,
                                         damacy__fetched* out, damacy_error* err);
static void damacy__fetched_deinit(damacy__fetched* fetched, damacy__alloc* alloc,
                                   damacy__store* store);
static damacy_status damacy__fetch_index(damacy__store* store, damacy__alloc* alloc,
                                         const damacy__fetched* fetched, uint64_t number,
                                         damacy__index* out, damacy_error* err);
static damacy_status damacy__fetch_object(damacy__store* store, const damacy__fetched* fetched,
                                          const int64_t* chunk, const damacy__index* index,
                                          damacy__object** out, damacy_error* err);
static damacy_status damacy__fetch_bytes(damacy__store* store, const damacy__fetched* fetched,
                                         const int64_t* chunk, const damacy__index* index,
                                         uint64_t offset, void* dst, uint64_t size,
                                         damacy_error* err);
static void damacy__fetch_chunk_name(const damacy__layout* layout, const int64_t* chunk, char* text,
                                     size_t size);

/* Frees what a fetch gave, whole or in part. */
static void damacy__fetched_deinit(damacy__fetched* fetched, damacy__alloc* alloc,
                                   damacy__store* store)
{
    damacy__document_deinit(&fetched->document, alloc);
    damacy__ngff_deinit(&fetched->ngff, alloc);
    damacy__text_free(alloc, fetched->group_attributes);
    damacy__text_free(alloc, fetched->prefix);
    if (fetched->root) {
        damacy__store_root_release(store, fetched->root);
    }
    memset(fetched, 0, sizeof *fetched);
}

/* Opens prefix + name. */
static damacy_status damacy__fetch_open(damacy__store* store, const damacy__fetched* fetched,
                                        const char* name, damacy__object** out, damacy_error* err)
{
    char key[DAMACY__FETCH_KEY];

    (void)snprintf(key, sizeof key, "%s%s", fetched->prefix ? fetched->prefix : "", name);
    return damacy__store_open(store, fetched->root, key, out, err);
}

/* The bytes of prefix + name, to be freed by the caller also on failure. */
static damacy_status damacy__fetch_text(damacy__store* store, damacy__alloc* alloc,
                                        const damacy__fetched* fetched, const char* name,
                                        uint8_t** text, uint64_t* size, damacy_error* err)
{
    damacy__object* object = NULL;
    damacy_status status = damacy__fetch_open(store, fetched, name, &object, err);

    *size = 0;
    if (status == DAMACY_OK) {
        *size = damacy__object_size(object);
        if (*size > DAMACY__METADATA_MAX) {
            status = damacy__fail(err, DAMACY_UNSUPPORTED,
                                  "%s of %" PRIu64 " bytes; at most %d are read", name, *size,
                                  DAMACY__METADATA_MAX);
            *size = 0;
        }
    }
    *text = status == DAMACY_OK ? damacy__new(alloc, *size, uint8_t) : NULL;
    if (status == DAMACY_OK && !*text) {
        status = damacy__fail(err, DAMACY_OOM, "%s of %" PRIu64 " bytes", name, *size);
    }
    if (status == DAMACY_OK) {
        status = damacy__store_read(store, object, 0, *text, (size_t)*size, err);
    }
    if (object) {
        damacy__store_close(store, object);
    }
    if (status != DAMACY_OK) {
        damacy__error_where(err, DAMACY_STAGE_METADATA, NULL, name);
    }
    return status;
}

/* Version 2 keeps attributes beside the node's document, in a file that need not be there. */
static damacy_status damacy__fetch_version2(damacy__store* store, damacy__alloc* alloc,
                                            damacy__fetched* fetched, const char* name,
                                            damacy_error* err)
{
    uint8_t* text = NULL;
    uint8_t* attributes = NULL;
    uint64_t size = 0;
    uint64_t attributes_size = 0;
    const damacy_error before = *err;
    damacy_status status = damacy__fetch_text(store, alloc, fetched, name, &text, &size, err);

    if (status == DAMACY_OK) {
        status = damacy__fetch_text(store, alloc, fetched, ".zattrs", &attributes, &attributes_size,
                                    err);
        if (status == DAMACY_NOTFOUND) {
            *err = before;
            status = DAMACY_OK;
        }
    }
    if (status == DAMACY_OK) {
        status = damacy__zarr2_parse(alloc, damacy__span_of(text, (size_t)size),
                                     damacy__span_of(attributes, (size_t)attributes_size),
                                     &fetched->document, err);
        if (status != DAMACY_OK) {
            damacy__error_where(err, DAMACY_STAGE_METADATA, NULL, name);
        }
        fetched->document_size += size + attributes_size;
    }
    damacy__free(alloc, text, size);
    damacy__free(alloc, attributes, attributes_size);
    return status;
}

/* Reads and parses the node at prefix: zarr.json, else .zarray, else .zgroup (Zarr v2, "Metadata").
 */
static damacy_status damacy__fetch_document(damacy__store* store, damacy__alloc* alloc,
                                            damacy__fetched* fetched, damacy_error* err)
{
    static const char* const names[] = {".zarray", ".zgroup"};
    const damacy_error before = *err;
    damacy_error missing;
    uint8_t* text = NULL;
    uint64_t size = 0;
    damacy_status status =
        damacy__fetch_text(store, alloc, fetched, "zarr.json", &text, &size, err);

    if (status == DAMACY_OK) {
        fetched->document_size += size;
        status =
            damacy__zarr_parse(alloc, damacy__span_of(text, (size_t)size), &fetched->document, err);
        if (status != DAMACY_OK) {
            damacy__error_where(err, DAMACY_STAGE_METADATA, NULL, "zarr.json");
        }
    }
    damacy__free(alloc, text, size);
    missing = *err; /* what is said when there is none of them */
    for (uint32_t i = 0; i < DAMACY__COUNT(names) && status == DAMACY_NOTFOUND; i++) {
        *err = before;
        status = damacy__fetch_version2(store, alloc, fetched, names[i], err);
        if (status == DAMACY_NOTFOUND) {
            *err = missing;
        }
    }
    return status;
}

/* Adds to an error about a group what lies below it and can be opened. */
static damacy_status damacy__fetch_suggest(const damacy__store* store, const damacy__root* root,
                                           damacy_error* err)
{
    char reason[sizeof err->message];
    char names[220];

    damacy__store_children(store, root, names, sizeof names);
    if (names[0] == '\0') {
        return err->status;
    }
    (void)snprintf(reason, sizeof reason, "%s", err->message);
    return damacy__fail(err, err->status, "%.160s; below it lie %s", reason, names);
}

/* The document is a group's: goes on to the array of the level that is asked for. */
static damacy_status damacy__fetch_level(damacy__store* store, damacy__alloc* alloc,
                                         const damacy__fetch_options* options,
                                         damacy__fetched* fetched, damacy_error* err)
{
    char prefix[DAMACY__NGFF_MAX_PATH + 2];
    const char* attributes = fetched->document.attributes;

    damacy_status status = damacy__ngff_parse(
        alloc, damacy__span_of(attributes, strlen(attributes)), &fetched->ngff, err);
    if (status == DAMACY_NOTFOUND) {
        return damacy__fetch_suggest(store, fetched->root, err);
    }
    DAMACY__TRY(status);
    if (options->level >= fetched->ngff.n_levels) {
        return damacy__fail(err, DAMACY_INVAL, "level %u; the image has %u levels", options->level,
                            fetched->ngff.n_levels);
    }
    fetched->level = options->level;
    (void)snprintf(prefix, sizeof prefix, "%s/", fetched->ngff.paths[options->level]);
    fetched->prefix = damacy__alloc_text(alloc, prefix, strlen(prefix));
    if (!fetched->prefix) {
        return damacy__fail(err, DAMACY_OOM, "path of level %u", options->level);
    }
    fetched->group_attributes = fetched->document.attributes;
    fetched->document.attributes = NULL;
    damacy__document_deinit(&fetched->document, alloc);
    DAMACY__TRY(damacy__fetch_document(store, alloc, fetched, err));
    if (fetched->document.node != DAMACY__NODE_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "level %u, %s, is no array", options->level,
                            prefix);
    }
    if (fetched->ngff.n_axes != 0 && fetched->ngff.n_axes != fetched->document.layout.rank) {
        return damacy__fail(err, DAMACY_DECODE, "level %u has %u axes, its multiscales name %u",
                            options->level, fetched->document.layout.rank, fetched->ngff.n_axes);
    }
    return DAMACY_OK;
}

/* Everything about the array that a uri names. On failure *out holds nothing. */
static damacy_status damacy__fetch_array(damacy__store* store, damacy__alloc* alloc,
                                         const char* uri, const damacy__fetch_options* options,
                                         damacy__fetched* out, damacy_error* err)
{
    damacy_status status;

    memset(out, 0, sizeof *out);
    status = damacy__store_root(store, uri, &out->root, err);
    if (status == DAMACY_OK) {
        status = damacy__fetch_document(store, alloc, out, err);
    }
    if (status == DAMACY_OK && out->document.node == DAMACY__NODE_GROUP) {
        status = damacy__fetch_level(store, alloc, options, out, err);
    } else if (status == DAMACY_OK && options->level != 0) {
        status = damacy__fail(err, DAMACY_INVAL, "level %u of a plain array, which has none",
                              options->level);
    }
    if (status != DAMACY_OK) {
        damacy__fetched_deinit(out, alloc, store);
        return status;
    }
    out->layout = &out->document.layout;
    return DAMACY_OK;
}

/* Reads and decodes the index of an open shard. */
static damacy_status damacy__fetch_shard(damacy__store* store, damacy__alloc* alloc,
                                         const damacy__layout* layout, damacy__object* object,
                                         damacy__extent* extents, damacy_error* err)
{
    const uint64_t size = layout->index_size;
    uint64_t offset = 0;
    uint8_t* bytes = damacy__new(alloc, size, uint8_t);
    damacy_status status;

    if (!bytes) {
        return damacy__fail(err, DAMACY_OOM, "a shard index of %" PRIu64 " bytes", size);
    }
    status = damacy__shard_locate(layout->sharding, damacy__object_size(object), &offset, err);
    if (status == DAMACY_OK) {
        status = damacy__store_read(store, object, offset, bytes, (size_t)size, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__shard_decode(layout->sharding, layout->rank,
                                      damacy__span_of(bytes, (size_t)size),
                                      damacy__object_size(object), extents, err);
    }
    damacy__free(alloc, bytes, size);
    return status;
}

/* Grid position of an object from its C-order number. */
static void damacy__fetch_position(const damacy__layout* layout, uint64_t number, int64_t* position)
{
    for (uint32_t i = layout->rank; i-- > 0;) {
        const uint64_t n =
            damacy__div_up((uint64_t)layout->shape[i], (uint64_t)layout->object_shape[i]);
        position[i] = (int64_t)(number % n);
        number /= n;
    }
}

/* Where the chunks of an object lie; extents stay NULL when the object is not stored. */
static damacy_status damacy__fetch_index(damacy__store* store, damacy__alloc* alloc,
                                         const damacy__fetched* fetched, uint64_t number,
                                         damacy__index* out, damacy_error* err)
{
    const damacy__layout* layout = fetched->layout;
    int64_t position[DAMACY_MAX_RANK];
    char key[DAMACY__KEY_CAPACITY];
    damacy__object* object = NULL;
    damacy__extent* extents;
    damacy_status status;

    damacy__fetch_position(layout, number, position);
    DAMACY__TRY(damacy__key_write(layout, position, key, sizeof key, err));
    status = damacy__fetch_open(store, fetched, key, &object, err);
    if (status == DAMACY_NOTFOUND) {
        err->message[0] = '\0';
        return DAMACY_OK;
    }
    if (status != DAMACY_OK) {
        damacy__error_where(err, DAMACY_STAGE_INDEX, NULL, key);
        return status;
    }
    extents = damacy__new(alloc, layout->n_entries, damacy__extent);
    if (!extents) {
        status = damacy__fail(err, DAMACY_OOM, "an index of %" PRIu64 " chunks", layout->n_entries);
    } else if (layout->is_sharded) {
        status = damacy__fetch_shard(store, alloc, layout, object, extents, err);
    } else {
        extents[0].size = damacy__object_size(object);
    }
    if (status == DAMACY_OK) {
        out->extents = extents;
        out->n = layout->n_entries;
        out->object_size = damacy__object_size(object);
        out->stamp = damacy__object_stamp(object);
    } else {
        damacy__free(alloc, extents, layout->n_entries);
        damacy__error_where(err, DAMACY_STAGE_INDEX, NULL, key);
    }
    damacy__store_close(store, object);
    return status;
}

static void damacy__fetch_object_of(const damacy__layout* layout, const int64_t* chunk,
                                    int64_t* object)
{
    for (uint32_t i = 0; i < layout->rank; i++) {
        object[i] = chunk[i] / (layout->object_shape[i] / layout->chunk_shape[i]);
    }
}

/* An index that does not fit its object any more. */
static void damacy__index_expire(const damacy__index* index)
{
    damacy__index* shared = (damacy__index*)(uintptr_t)index; /* its one atomic field */

    __atomic_store_n(&shared->is_stale, 1, __ATOMIC_RELAXED);
}

/* Opens the object that holds a chunk; end with damacy__store_close. An object that was replaced
 * since its index was read is an error, not a mixture; samples that come later get its new index.
 */
static damacy_status damacy__fetch_object(damacy__store* store, const damacy__fetched* fetched,
                                          const int64_t* chunk, const damacy__index* index,
                                          damacy__object** out, damacy_error* err)
{
    int64_t position[DAMACY_MAX_RANK];
    char key[DAMACY__KEY_CAPACITY];
    damacy__object* object = NULL;
    damacy_status status;

    damacy__fetch_object_of(fetched->layout, chunk, position);
    DAMACY__TRY(damacy__key_write(fetched->layout, position, key, sizeof key, err));
    status = damacy__fetch_open(store, fetched, key, &object, err);
    if (status == DAMACY_NOTFOUND) {
        damacy__index_expire(index);
        return damacy__fail(err, DAMACY_IO, "%s is gone since its index was read", key);
    }
    if (status != DAMACY_OK) {
        return status;
    }
    if (damacy__object_size(object) != index->object_size ||
        damacy__object_stamp(object) != index->stamp) {
        damacy__index_expire(index);
        damacy__store_close(store, object);
        return damacy__fail(err, DAMACY_IO, "%s was replaced since its index was read", key);
    }
    *out = object;
    return DAMACY_OK;
}

/* Bytes of the object that holds a chunk. */
static damacy_status damacy__fetch_bytes(damacy__store* store, const damacy__fetched* fetched,
                                         const int64_t* chunk, const damacy__index* index,
                                         uint64_t offset, void* dst, uint64_t size,
                                         damacy_error* err)
{
    damacy__object* object = NULL;
    damacy_status status;

    DAMACY__TRY(damacy__fetch_object(store, fetched, chunk, index, &object, err));
    status = damacy__store_read(store, object, offset, dst, (size_t)size, err);
    damacy__store_close(store, object);
    return status;
}

/* "c/0/1", or "c/0/1[3,0]" for a chunk at that place in a shard. */
static void damacy__fetch_chunk_name(const damacy__layout* layout, const int64_t* chunk, char* text,
                                     size_t size)
{
    int64_t object[DAMACY_MAX_RANK];
    damacy_error ignored;
    size_t len;

    memset(&ignored, 0, sizeof ignored);
    damacy__fetch_object_of(layout, chunk, object);
    text[0] = '\0';
    if (damacy__key_write(layout, object, text, size, &ignored) != DAMACY_OK) {
        (void)snprintf(text, size, "a chunk");
    }
    if (!layout->is_sharded) {
        return;
    }
    len = strlen(text);
    for (uint32_t i = 0; i < layout->rank && len + 1 < size; i++) {
        const int64_t n = layout->object_shape[i] / layout->chunk_shape[i];
        len += (size_t)snprintf(text + len, size - len, "%s%" PRId64, i ? "," : "[", chunk[i] % n);
    }
    if (len + 1 < size) {
        (void)snprintf(text + len, size - len, layout->rank ? "]" : "[]");
    }
}
