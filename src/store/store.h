/* Names to bytes: roots (the folder of an array or group) and the objects beneath them, from local
 * files or from the caller's own store. Every call blocks; any number of threads may call at once.
 *
 * Opening the same object twice gives one object, opened once. Descriptors come and go beneath open
 * objects (handles.h), so that few are enough for any number of objects; a file that turns out to
 * be another one than was opened first is an error, never a mixture of old and new bytes. */
#pragma once
#include "store/open.h"

static damacy_status damacy__store_init(damacy__store* store, damacy__alloc* alloc,
                                        const damacy_config* config, damacy_error* err);
static void damacy__store_deinit(damacy__store* store);
static damacy_status damacy__store_root(damacy__store* store, const char* uri, damacy__root** out,
                                        damacy_error* err);
static void damacy__store_root_release(damacy__store* store, damacy__root* root);
static damacy_status damacy__store_open(damacy__store* store, damacy__root* root, const char* key,
                                        damacy__object** out, damacy_error* err);
static void damacy__store_close(damacy__store* store, damacy__object* object);
static damacy_status damacy__store_read(damacy__store* store, damacy__object* object,
                                        uint64_t offset, void* dst, size_t size, damacy_error* err);

/* Bytes of an open object, as it was when it was opened. */
static inline uint64_t damacy__object_size(const damacy__object* object)
{
    return object->id.size;
}

/* Differs between versions of a file, so that an index read from one is not used with another. For
 * the caller's own store only the size tells. */
static inline uint64_t damacy__object_stamp(const damacy__object* object)
{
    return damacy__hash(&object->id, sizeof object->id, 0);
}

static bool damacy__store_is_custom(const damacy__store* store)
{
    return store->custom.open != NULL;
}

/* Half of what the process may open, within reason; the rest is the host program's. */
static uint32_t damacy__store_max_open(uint32_t io_threads)
{
    const uint64_t most = DAMACY__MAX(UINT64_C(4) * io_threads, 1024);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 64;
    }
    return (uint32_t)DAMACY__MAX(DAMACY__MIN((uint64_t)limit.rlim_cur / 2, most), 4);
}

/* config is a resolved one; alloc outlives the store. A zeroed store may be passed to deinit. */
static damacy_status damacy__store_init(damacy__store* store, damacy__alloc* alloc,
                                        const damacy_config* config, damacy_error* err)
{
    damacy_status status;

    memset(store, 0, sizeof *store);
    damacy__os_init(&store->os);
    store->custom = config->store;
    store->latency = config->debug_latency;
    store->follow_outside_links = config->follow_outside_links != 0;
    DAMACY__TRY(damacy__handles_init(&store->handles, &store->os,
                                     damacy__store_max_open(config->io_threads), err));
    store->max_idle = damacy__store_is_custom(store) ? 64 : store->handles.max_open;
    status = damacy__mutex_init(&store->mutex, err);
    if (status != DAMACY_OK) {
        goto no_mutex;
    }
    status = damacy__condition_init(&store->opened, err);
    if (status != DAMACY_OK) {
        goto no_condition;
    }
    status = damacy__table_init(&store->roots, alloc, 1024, err);
    if (status == DAMACY_OK) {
        status = damacy__table_init(&store->objects, alloc, 2 * store->max_idle, err);
    }
    if (status == DAMACY_OK) {
        store->alloc = alloc;
        return DAMACY_OK;
    }
    damacy__table_deinit(&store->roots, alloc);
    damacy__condition_deinit(&store->opened);
no_condition:
    damacy__mutex_deinit(&store->mutex);
no_mutex:
    damacy__handles_deinit(&store->handles);
    memset(store, 0, sizeof *store);
    return status;
}

static void damacy__object_free(damacy__store* store, damacy__object* object)
{
    damacy__free(store->alloc, object->key, object->key_capacity);
    damacy__free(store->alloc, object, 1);
}

/* Drops a reference; the root is freed with the last one, the objects' included. */
static void damacy__store_root_release(damacy__store* store, damacy__root* root)
{
    bool is_last;

    damacy__lock(&store->mutex);
    root->n_refs--;
    is_last = root->n_refs == 0;
    if (is_last && !root->is_stale) {
        damacy__table_remove(&store->roots, &root->entry);
    }
    damacy__unlock(&store->mutex);
    if (is_last) {
        damacy__handle_close(&store->handles, &root->handle);
        damacy__free(store->alloc, root->path, root->path_len + 1);
        damacy__free(store->alloc, root, 1);
    }
}

/* Ends an object that has no reference and is not in the table; its record may serve again. */
static void damacy__object_discard(damacy__store* store, damacy__object* object)
{
    damacy__root* root = object->root;
    bool is_kept;

    if (damacy__store_is_custom(store)) {
        if (object->is_known) {
            store->custom.close(store->custom.user, object->custom);
        }
    } else {
        damacy__handle_close(&store->handles, &object->handle);
    }
    damacy__lock(&store->mutex);
    is_kept = store->n_spare < store->max_idle;
    if (is_kept) {
        object->spare = store->spare;
        store->spare = object;
        store->n_spare++;
    }
    damacy__unlock(&store->mutex);
    if (!is_kept) {
        damacy__object_free(store, object);
    }
    if (root) {
        damacy__store_root_release(store, root);
    }
}

/* Closes what is idle and frees. No root or object may be in use. A zeroed store is left alone. */
static void damacy__store_deinit(damacy__store* store)
{
    if (!store->alloc) {
        return;
    }
    while (store->objects.oldest) {
        damacy__object* object = (damacy__object*)(void*)store->objects.oldest;
        assert(object->n_refs == 0);
        damacy__table_remove(&store->objects, &object->entry);
        damacy__object_discard(store, object);
    }
    while (store->spare) {
        damacy__object* object = store->spare;
        store->spare = object->spare;
        damacy__object_free(store, object);
    }
    assert(store->roots.n_entries == 0);
    damacy__table_deinit(&store->objects, store->alloc);
    damacy__table_deinit(&store->roots, store->alloc);
    damacy__condition_deinit(&store->opened);
    damacy__mutex_deinit(&store->mutex);
    damacy__handles_deinit(&store->handles);
    memset(store, 0, sizeof *store);
}

/* The absolute path of a uri, or the prefix of the caller's store, into path[DAMACY__PATH_SIZE]. */
static damacy_status damacy__store_path(const damacy__store* store, const char* uri, char* path,
                                        damacy_error* err)
{
    char relative[DAMACY__PATH_SIZE];
    char cause[DAMACY__ERRNO_TEXT];
    size_t folder;
    size_t len;

    if (damacy__store_is_custom(store)) {
        return damacy__uri_prefix(uri, path, err);
    }
    DAMACY__TRY(damacy__uri_path(uri, relative, err));
    len = strlen(relative);
    if (relative[0] == '/') {
        memcpy(path, relative, len + 1);
        return DAMACY_OK;
    }
    /* Later changes of the working directory must not matter. */
    if (!damacy__call_folder(path, DAMACY__PATH_SIZE)) {
        return damacy__fail(err, DAMACY_IO, "%.100s: no working directory: %s", uri,
                            damacy__errno_text(errno, cause));
    }
    folder = strlen(path);
    if (folder + 1 + len >= DAMACY__PATH_SIZE) {
        return damacy__fail(err, DAMACY_INVAL, "%.100s: its absolute path is longer than %d bytes",
                            uri, DAMACY__PATH_SIZE - 1);
    }
    path[folder] = '/';
    memcpy(path + folder + 1, relative, len + 1);
    return DAMACY_OK;
}

/* A reference to the root of a path, which may be new. */
static damacy_status damacy__root_acquire(damacy__store* store, const char* path,
                                          damacy__root** out, damacy_error* err)
{
    const size_t len = strlen(path);
    const uint64_t hash = damacy__hash(path, len, 0);
    damacy__root* fresh = damacy__new(store->alloc, 1, damacy__root);
    damacy__root* found = NULL;
    damacy__entry* at;

    if (fresh) {
        fresh->path = damacy__alloc_text(store->alloc, path, len);
        fresh->path_len = len;
    }
    if (!fresh || !fresh->path) {
        damacy__free(store->alloc, fresh, 1);
        return damacy__fail(err, DAMACY_OOM, "no memory for a root");
    }
    damacy__lock(&store->mutex);
    for (at = damacy__table_first(&store->roots, hash); at && !found; at = damacy__table_next(at)) {
        damacy__root* root = (damacy__root*)(void*)at;
        found = root->path_len == len && memcmp(root->path, path, len) == 0 ? root : NULL;
    }
    if (!found) {
        damacy__table_insert(&store->roots, &fresh->entry, hash);
        found = fresh;
        fresh = NULL;
    }
    found->n_refs++;
    *out = found;
    damacy__unlock(&store->mutex);
    if (fresh) {
        damacy__free(store->alloc, fresh->path, len + 1);
        damacy__free(store->alloc, fresh, 1);
    }
    return DAMACY_OK;
}

/* Opens the folder of an array or group, or names a prefix of the caller's store; end with
 * damacy__store_root_release. NOTFOUND, IO, INVAL, UNSUPPORTED, OOM. */
static damacy_status damacy__store_root(damacy__store* store, const char* uri, damacy__root** out,
                                        damacy_error* err)
{
    char path[DAMACY__PATH_SIZE];

    DAMACY__TRY(damacy__store_path(store, uri, path, err));
    for (uint32_t n_tries = 0;; n_tries++) {
        bool is_same = true;
        damacy__root* root = NULL;
        damacy_status status;
        DAMACY__TRY(damacy__root_acquire(store, path, &root, err));
        if (damacy__store_is_custom(store)) {
            *out = root;
            return DAMACY_OK;
        }
        status = damacy__root_verify(store, root, &is_same, err);
        if (status == DAMACY_OK && is_same) {
            *out = root;
            return DAMACY_OK;
        }
        damacy__root_forget(store, root);
        if (status == DAMACY_OK && n_tries == 2) {
            char name[DAMACY__NAME_TEXT];
            status = damacy__fail(err, DAMACY_IO, "%s: the folder is being replaced",
                                  damacy__store_name(root, NULL, name));
        }
        damacy__store_root_release(store, root);
        DAMACY__TRY(status);
    }
}

static damacy__object* damacy__object_find(const damacy__store* store, const damacy__root* root,
                                           const char* key, uint64_t hash)
{
    damacy__entry* at = damacy__table_first(&store->objects, hash);

    for (; at; at = damacy__table_next(at)) {
        damacy__object* object = (damacy__object*)(void*)at;
        if (object->root == root && strcmp(object->key, key) == 0) {
            return object;
        }
    }
    return NULL;
}

/* A spare record with room for a key; NULL: none. The mutex is held. */
static damacy__object* damacy__object_from_spare(damacy__store* store, size_t key_size)
{
    damacy__object* object = store->spare;

    if (!object || object->key_capacity < key_size) {
        return NULL;
    }
    store->spare = object->spare;
    store->n_spare--;
    return object;
}

static damacy__object* damacy__object_new(damacy__store* store, size_t key_size)
{
    enum { DAMACY__KEY_ROOM = 128 }; /* so that records fit most other keys too */
    const size_t capacity = DAMACY__MAX(key_size, (size_t)DAMACY__KEY_ROOM);
    damacy__object* object = damacy__new(store->alloc, 1, damacy__object);

    if (object) {
        object->key = damacy__new(store->alloc, capacity, char);
        object->key_capacity = capacity;
        if (!object->key) {
            damacy__free(store->alloc, object, 1);
            return NULL;
        }
    }
    return object;
}

/* A record for a key in the table, OPENING, with one reference. The mutex is held. */
static void damacy__object_insert(damacy__store* store, damacy__object* object, damacy__root* root,
                                  const char* key, uint64_t hash)
{
    char* const text = object->key;
    const size_t capacity = object->key_capacity;

    memset(object, 0, sizeof *object);
    object->key = text;
    object->key_capacity = capacity;
    memcpy(text, key, strlen(key) + 1);
    object->root = root;
    object->n_refs = 1;
    root->n_refs++;
    damacy__table_insert(&store->objects, &object->entry, hash);
}

/* A reference to the object of a key. *is_mine: the caller opens it, ends with
 * damacy__object_settle; else nobody does any more. */
static damacy_status damacy__object_acquire(damacy__store* store, damacy__root* root,
                                            const char* key, damacy__object** out, bool* is_mine,
                                            damacy_error* err)
{
    const size_t len = strlen(key);
    const uint64_t hash = damacy__hash(key, len, (uint64_t)(uintptr_t)root);
    damacy__object* fresh = NULL;
    damacy__object* object;

    damacy__lock(&store->mutex);
    while (!(object = damacy__object_find(store, root, key, hash))) {
        if (!fresh) {
            fresh = damacy__object_from_spare(store, len + 1);
        }
        if (fresh) {
            damacy__object_insert(store, fresh, root, key, hash);
            damacy__unlock(&store->mutex);
            *out = fresh;
            *is_mine = true;
            return DAMACY_OK;
        }
        damacy__unlock(&store->mutex);
        fresh = damacy__object_new(store, len + 1);
        if (!fresh) {
            return damacy__fail(err, DAMACY_OOM, "no memory for object %.200s", key);
        }
        damacy__lock(&store->mutex);
    }
    *is_mine = object->n_refs == 0;
    if (*is_mine) {
        store->n_idle--;
        object->state = DAMACY__OBJECT_OPENING;
    }
    object->n_refs++;
    while (!*is_mine && object->state == DAMACY__OBJECT_OPENING) {
        damacy__wait(&store->opened, &store->mutex);
    }
    damacy__unlock(&store->mutex);
    *out = object;
    if (fresh) {
        damacy__object_free(store, fresh);
    }
    return DAMACY_OK;
}

/* Ends opening: wakes those who wait for it. */
static void damacy__object_settle(damacy__store* store, damacy__object* object,
                                  damacy_status status, const damacy_error* err)
{
    damacy__lock(&store->mutex);
    object->state = DAMACY__OBJECT_READY;
    if (status != DAMACY_OK) {
        object->state = DAMACY__OBJECT_FAILED;
        object->status = status;
        memcpy(object->message, err->message, sizeof object->message);
        if (!object->is_stale) {
            object->is_stale = true;
            damacy__table_remove(&store->objects, &object->entry);
        }
    }
    damacy__broadcast(&store->opened);
    damacy__unlock(&store->mutex);
}

/* What the caller's store may answer; anything else is an IO error. */
static damacy_status damacy__custom_status(damacy_status status)
{
    switch (status) {
    case DAMACY_OK:
    case DAMACY_NOTFOUND:
    case DAMACY_OOM:
    case DAMACY_UNSUPPORTED:
    case DAMACY_TIMEOUT:
        return status;
    default:
        return DAMACY_IO;
    }
}

/* Opens an object of the caller's store; an idle one is open still. */
static damacy_status damacy__object_open_custom(damacy__store* store, damacy__object* object,
                                                damacy_error* err)
{
    char key[2 * DAMACY__PATH_SIZE];
    char name[DAMACY__NAME_TEXT];
    void* custom = NULL;
    uint64_t size = 0;
    damacy_status status;

    if (object->is_known) {
        return DAMACY_OK;
    }
    (void)snprintf(key, sizeof key, "%s/%s", object->root->path, object->key);
    damacy__store_delay(store);
    status = store->custom.open(store->custom.user, key, &custom, &size);
    if (status != DAMACY_OK) {
        return damacy__fail(err, damacy__custom_status(status),
                            status == DAMACY_NOTFOUND
                                ? "%s: there is no such object (store.open returned %d)"
                                : "%s: store.open returned %d",
                            damacy__store_name(object->root, object->key, name), (int)status);
    }
    object->custom = custom;
    object->id.size = size;
    object->is_known = true;
    return DAMACY_OK;
}

/* Drops a reference. The last user's object stays for the next one, unless it is stale; the oldest
 * such object goes when there are too many. */
static void damacy__store_close(damacy__store* store, damacy__object* object)
{
    damacy__object* ended = NULL;

    damacy__lock(&store->mutex);
    object->n_refs--;
    if (object->n_refs == 0 && object->is_stale) {
        ended = object;
    } else if (object->n_refs == 0) {
        store->n_idle++;
        damacy__table_touch(&store->objects, &object->entry);
        if (store->n_idle > store->max_idle) {
            damacy__entry* at = store->objects.oldest;
            while (((damacy__object*)(void*)at)->n_refs != 0) {
                at = at->newer;
            }
            ended = (damacy__object*)(void*)at;
            damacy__table_remove(&store->objects, at);
            store->n_idle--;
        }
    }
    damacy__unlock(&store->mutex);
    if (ended) {
        damacy__object_discard(store, ended);
    }
}

/* Opens an object by its key beneath root; end with damacy__store_close. NOTFOUND: there is none,
 * and nothing else means that. IO, INVAL (a bad key), OOM; of the caller's store also UNSUPPORTED,
 * TIMEOUT. */
static damacy_status damacy__store_open(damacy__store* store, damacy__root* root, const char* key,
                                        damacy__object** out, damacy_error* err)
{
    damacy__object* object = NULL;
    bool is_mine = false;
    damacy_status status = DAMACY_OK;

    DAMACY__TRY(damacy__key_check(key, err));
    DAMACY__TRY(damacy__object_acquire(store, root, key, &object, &is_mine, err));
    if (is_mine) {
        status = damacy__store_is_custom(store) ? damacy__object_open_custom(store, object, err)
                                                : damacy__object_refresh(store, object, err);
        damacy__object_settle(store, object, status, err);
    } else if (object->state == DAMACY__OBJECT_FAILED) {
        status = damacy__fail(err, object->status, "%s", object->message);
    }
    if (status != DAMACY_OK) {
        damacy__store_close(store, object);
        return status;
    }
    *out = object;
    return DAMACY_OK;
}

static damacy_status damacy__object_read_custom(damacy__store* store, damacy__object* object,
                                                uint64_t offset, void* dst, size_t size,
                                                damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    size_t done = 0;

    damacy__store_name(object->root, object->key, name);
    while (done < size) {
        size_t n = 0;
        const damacy_status status =
            store->custom.read_at(store->custom.user, object->custom, offset + done,
                                  (uint8_t*)dst + done, size - done, &n);
        if (status != DAMACY_OK || n > size - done) {
            err->offset = offset + done;
            return damacy__fail(
                err,
                status == DAMACY_NOTFOUND || status == DAMACY_OK ? DAMACY_IO
                                                                 : damacy__custom_status(status),
                "%s: store.read_at of %zu bytes at %" PRIu64 " returned %d with %zu bytes", name,
                size - done, offset + done, (int)status, n);
        }
        if (n == 0) {
            return damacy__object_fail_short(object, offset, size, offset + done, err);
        }
        done += n;
    }
    return DAMACY_OK;
}

/* Fills dst with exactly size bytes from offset on, or fails: IO, OOM; of the caller's store also
 * UNSUPPORTED, TIMEOUT. err->offset is set. */
static damacy_status damacy__store_read(damacy__store* store, damacy__object* object,
                                        uint64_t offset, void* dst, size_t size, damacy_error* err)
{
    damacy_status status;

    if (offset > object->id.size || size > object->id.size - offset) {
        return damacy__object_fail_short(object, offset, size, object->id.size, err);
    }
    if (size == 0) {
        return DAMACY_OK;
    }
    damacy__store_delay(store);
    if (damacy__store_is_custom(store)) {
        return damacy__object_read_custom(store, object, offset, dst, size, err);
    }
    damacy__handles_begin(&store->handles);
    status = damacy__object_read_file(store, object, offset, dst, size, err);
    damacy__handles_end(&store->handles);
    return status;
}
