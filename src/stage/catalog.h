/* Arrays and shard indexes by name: fetched once, ahead of need, by the reader threads, and kept
 * while in use and, up to a limit of bytes, after that.
 *
 * Asking for an entry pins it and never blocks; when a fetch ends the catalog calls `notify`
 * without holding its lock. A failed entry stays as long as it is pinned, so that everybody who
 * asked sees the same error, and is fetched anew after that. */
#pragma once
#include "base/sync.h"
#include "base/table.h"
#include "stage/fetch.h"
#include "stage/metric.h"

typedef enum damacy__fetch_state {
    DAMACY__FETCHING = 0,
    DAMACY__READY,
    DAMACY__FAILED
} damacy__fetch_state;

enum { DAMACY__SUSPECT = 256 }; /* uses of chunks, or all of an array's if it has fewer */

/* One array (at one level), found by uri. */
typedef struct damacy__array_entry {
    damacy__entry entry; /* first: the table's */
    damacy__task task;
    struct damacy__catalog* catalog;
    char* uri;
    size_t uri_len;
    uint32_t n_pins; /* guarded by the catalog's mutex; index entries pin their array */
    uint32_t
        state; /* atomic damacy__fetch_state; what follows is constant once it is not FETCHING */
    damacy__fetched fetched;
    damacy_error error;
    uint64_t n_missing; /* scheduler thread only, as are the next two: uses of chunks */
    uint64_t n_present;
    bool is_suspect; /* a warning was given that none is there */
} damacy__array_entry;

/* The index of one object of an array, found by the array and the object's number in the grid. */
typedef struct damacy__index_entry {
    damacy__entry entry;
    damacy__task task;
    struct damacy__catalog* catalog;
    damacy__array_entry* array;
    uint64_t number; /* C order in the grid of objects */
    uint32_t n_pins; /* guarded by the catalog's mutex */
    uint32_t state;  /* atomic, as above */
    damacy__index index;
    uint64_t n_bytes; /* of this entry */
    damacy_error* error;
} damacy__index_entry;

typedef struct damacy__catalog {
    damacy__alloc* alloc;
    damacy__store* store;
    damacy__pool* pool; /* that runs the fetches */
    damacy__fetch_options options;
    uint64_t
        max_bytes; /* of unpinned and pinned index entries together; pinned ones may exceed it */
    void (*notify)(void* context);
    void* notify_context;
    damacy__metric_clock* clock; /* of fetches */

    damacy__mutex mutex;
    damacy__table arrays; /* guarded by mutex, as is what follows */
    damacy__table indexes;
    uint64_t n_bytes;
    uint64_t n_serials; /* given to indexes so far */
    uint64_t array_hits, array_misses, index_hits, index_misses;
} damacy__catalog;

static damacy_status damacy__catalog_init(damacy__catalog* catalog, damacy_error* err);
static void damacy__catalog_deinit(damacy__catalog* catalog);
static damacy_status damacy__catalog_array(damacy__catalog* catalog, const char* uri,
                                           damacy__array_entry** out, damacy_error* err);
static damacy_status damacy__catalog_index(damacy__catalog* catalog, damacy__array_entry* array,
                                           uint64_t number, damacy__index_entry** out,
                                           damacy_error* err);
static void damacy__catalog_unpin_array(damacy__catalog* catalog, damacy__array_entry* entry);
static void damacy__catalog_unpin_index(damacy__catalog* catalog, damacy__index_entry* entry);

static inline uint32_t damacy__fetch_state_of(const uint32_t* state)
{
    return __atomic_load_n(state, __ATOMIC_ACQUIRE);
}

/* The caller has set alloc, store, pool, options, max_bytes, notify, clock. */
static damacy_status damacy__catalog_init(damacy__catalog* catalog, damacy_error* err)
{
    damacy_status status = damacy__mutex_init(&catalog->mutex, err);

    if (status != DAMACY_OK) {
        return status;
    }
    status = damacy__table_init(&catalog->arrays, catalog->alloc, 1024, err);
    if (status == DAMACY_OK) {
        status = damacy__table_init(&catalog->indexes, catalog->alloc, 16384, err);
    }
    if (status != DAMACY_OK) {
        damacy__table_deinit(&catalog->arrays, catalog->alloc);
        damacy__mutex_deinit(&catalog->mutex);
    }
    return status;
}

static void damacy__array_entry_free(damacy__catalog* catalog, damacy__array_entry* entry)
{
    damacy__fetched_deinit(&entry->fetched, catalog->alloc, catalog->store);
    damacy__free(catalog->alloc, entry->uri, entry->uri_len + 1);
    damacy__free(catalog->alloc, entry, 1);
}

static void damacy__index_entry_free(damacy__catalog* catalog, damacy__index_entry* entry)
{
    damacy__free(catalog->alloc, entry->index.extents, entry->index.n);
    damacy__free(catalog->alloc, entry->error, 1);
    damacy__free(catalog->alloc, entry, 1);
}

/* Frees everything; no fetch may be under way. A zeroed catalog is left alone. */
static void damacy__catalog_deinit(damacy__catalog* catalog)
{
    if (!catalog->arrays.buckets) {
        return;
    }
    while (catalog->indexes.oldest) {
        damacy__index_entry* entry = (damacy__index_entry*)(void*)catalog->indexes.oldest;
        damacy__table_remove(&catalog->indexes, &entry->entry);
        damacy__index_entry_free(catalog, entry);
    }
    while (catalog->arrays.oldest) {
        damacy__array_entry* entry = (damacy__array_entry*)(void*)catalog->arrays.oldest;
        damacy__table_remove(&catalog->arrays, &entry->entry);
        damacy__array_entry_free(catalog, entry);
    }
    damacy__table_deinit(&catalog->indexes, catalog->alloc);
    damacy__table_deinit(&catalog->arrays, catalog->alloc);
    damacy__mutex_deinit(&catalog->mutex);
    memset(catalog, 0, sizeof *catalog);
}

/* Drops unpinned indexes, oldest first, until the limit is kept, and a few of the unpinned arrays
 * beyond a fixed number. Returns with the entries unlinked in *victims, to be freed without the
 * lock. */
static damacy__index_entry* damacy__catalog_trim(damacy__catalog* catalog,
                                                 damacy__array_entry** array_victims)
{
    enum { DAMACY__ARRAYS_KEPT = 1024 };
    damacy__index_entry* victims = NULL;
    damacy__entry* at = catalog->indexes.oldest;
    uint32_t n_steps = 0;

    while (at && catalog->n_bytes > catalog->max_bytes && n_steps++ < 64) {
        damacy__index_entry* entry = (damacy__index_entry*)(void*)at;
        at = at->newer;
        if (entry->n_pins == 0) {
            damacy__table_remove(&catalog->indexes, &entry->entry);
            catalog->n_bytes -= entry->n_bytes;
            entry->array->n_pins--;
            entry->entry.chain = victims ? &victims->entry : NULL;
            victims = entry;
        }
    }
    n_steps = 0;
    for (at = catalog->arrays.oldest;
         at && catalog->arrays.n_entries > DAMACY__ARRAYS_KEPT && n_steps++ < 64;) {
        damacy__array_entry* entry = (damacy__array_entry*)(void*)at;
        at = at->newer;
        if (entry->n_pins == 0) {
            damacy__table_remove(&catalog->arrays, &entry->entry);
            entry->entry.chain = *array_victims ? &(*array_victims)->entry : NULL;
            *array_victims = entry;
        }
    }
    return victims;
}

/* Keeps the limits; takes the lock itself. */
static void damacy__catalog_keep_limits(damacy__catalog* catalog)
{
    damacy__array_entry* arrays = NULL;
    damacy__index_entry* indexes;

    damacy__lock(&catalog->mutex);
    indexes = damacy__catalog_trim(catalog, &arrays);
    damacy__unlock(&catalog->mutex);
    while (indexes) {
        damacy__index_entry* next = (damacy__index_entry*)(void*)indexes->entry.chain;
        damacy__index_entry_free(catalog, indexes);
        indexes = next;
    }
    while (arrays) {
        damacy__array_entry* next = (damacy__array_entry*)(void*)arrays->entry.chain;
        damacy__array_entry_free(catalog, arrays);
        arrays = next;
    }
}

/* Runs on a reader thread. */
static void damacy__array_fetch(void* context, uint32_t worker)
{
    damacy__array_entry* entry = (damacy__array_entry*)context;
    damacy__catalog* catalog = entry->catalog;
    const uint64_t start = damacy__now_ns();
    damacy_status status;

    (void)worker;
    status = damacy__fetch_array(catalog->store, catalog->alloc, entry->uri, &catalog->options,
                                 &entry->fetched, &entry->error);
    if (status != DAMACY_OK) {
        (void)damacy__alloc_explain(catalog->alloc, &entry->error);
        damacy__error_where(&entry->error, DAMACY_STAGE_METADATA, entry->uri, NULL);
    }
    damacy__metric_add(catalog->clock, damacy__now_ns() - start, entry->fetched.document_size, 0);
    __atomic_store_n(&entry->state, status == DAMACY_OK ? DAMACY__READY : DAMACY__FAILED,
                     __ATOMIC_RELEASE);
    damacy__catalog_unpin_array(catalog, entry);
    catalog->notify(catalog->notify_context);
}

static damacy__array_entry* damacy__catalog_find_array(damacy__catalog* catalog, const char* uri,
                                                       size_t len, uint64_t hash)
{
    damacy__entry* at = damacy__table_first(&catalog->arrays, hash);

    for (; at; at = damacy__table_next(at)) {
        damacy__array_entry* entry = (damacy__array_entry*)(void*)at;
        if (entry->uri_len == len && memcmp(entry->uri, uri, len) == 0) {
            return entry;
        }
    }
    return NULL;
}

/* An array that is known, pinned; NULL: it is not. Holds the mutex. */
static damacy__array_entry* damacy__catalog_pin_array(damacy__catalog* catalog, const char* uri,
                                                      size_t len, uint64_t hash)
{
    damacy__array_entry* entry = damacy__catalog_find_array(catalog, uri, len, hash);

    if (entry) {
        entry->n_pins++;
        catalog->array_hits++;
        damacy__table_touch(&catalog->arrays, &entry->entry);
    }
    return entry;
}

/* An entry that is in no table yet; NULL: no memory. */
static damacy__array_entry* damacy__array_entry_new(damacy__catalog* catalog, const char* uri,
                                                    size_t len)
{
    damacy__array_entry* entry = damacy__new(catalog->alloc, 1, damacy__array_entry);

    if (!entry) {
        return NULL;
    }
    entry->uri = damacy__alloc_text(catalog->alloc, uri, len);
    if (!entry->uri) {
        damacy__free(catalog->alloc, entry, 1);
        return NULL;
    }
    entry->catalog = catalog;
    entry->uri_len = len;
    entry->n_pins = 2; /* the caller's and the fetch's */
    entry->error.sample = entry->error.offset = UINT64_MAX;
    entry->task.function = damacy__array_fetch;
    entry->task.context = entry;
    return entry;
}

/* Pins the array of a uri, starting its fetch if it is new. OOM only; other failures are the
 * entry's. Memory is taken without the lock: of two threads that ask for a new array at once, the
 * second throws its entry away. */
static damacy_status damacy__catalog_array(damacy__catalog* catalog, const char* uri,
                                           damacy__array_entry** out, damacy_error* err)
{
    const size_t len = strlen(uri);
    const uint64_t hash = damacy__hash(uri, len, 1);
    damacy__array_entry* fresh;
    damacy__array_entry* entry;

    damacy__lock(&catalog->mutex);
    entry = damacy__catalog_pin_array(catalog, uri, len, hash);
    damacy__unlock(&catalog->mutex);
    if (entry) {
        *out = entry;
        return DAMACY_OK;
    }
    fresh = damacy__array_entry_new(catalog, uri, len);
    if (!fresh) {
        (void)damacy__fail(err, DAMACY_OOM, "%.100s: no memory for its metadata", uri);
        return damacy__alloc_explain(catalog->alloc, err);
    }
    damacy__lock(&catalog->mutex);
    entry = damacy__catalog_pin_array(catalog, uri, len, hash);
    if (!entry) {
        catalog->array_misses++;
        damacy__table_insert(&catalog->arrays, &fresh->entry, hash);
    }
    damacy__unlock(&catalog->mutex);
    if (entry) {
        damacy__array_entry_free(catalog, fresh);
    } else {
        entry = fresh;
        damacy__pool_submit(catalog->pool, &entry->task, DAMACY__URGENT);
    }
    *out = entry;
    return DAMACY_OK;
}

/* Runs on a reader thread. */
static void damacy__index_fetch(void* context, uint32_t worker)
{
    damacy__index_entry* entry = (damacy__index_entry*)context;
    damacy__catalog* catalog = entry->catalog;
    const uint64_t start = damacy__now_ns();
    damacy_error error;
    damacy_status status;

    (void)worker;
    damacy__error_init(&error, DAMACY_STAGE_NONE);
    status = damacy__fetch_index(catalog->store, catalog->alloc, &entry->array->fetched,
                                 entry->number, &entry->index, &error);
    if (status != DAMACY_OK) {
        (void)damacy__alloc_explain(catalog->alloc, &error);
        damacy__error_where(&error, DAMACY_STAGE_INDEX, entry->array->uri, NULL);
        entry->error = damacy__new(catalog->alloc, 1, damacy_error);
        if (entry->error) {
            *entry->error = error;
        }
    }
    damacy__metric_add(catalog->clock, damacy__now_ns() - start, 16 * entry->index.n, 0);
    damacy__lock(&catalog->mutex);
    entry->n_bytes += entry->index.n * sizeof(damacy__extent);
    catalog->n_bytes += entry->index.n * sizeof(damacy__extent);
    damacy__unlock(&catalog->mutex);
    __atomic_store_n(&entry->state, status == DAMACY_OK ? DAMACY__READY : DAMACY__FAILED,
                     __ATOMIC_RELEASE);
    damacy__catalog_unpin_index(catalog, entry);
    catalog->notify(catalog->notify_context);
}

/* An index that is known, pinned; NULL: it is not. Holds the mutex. */
static damacy__index_entry* damacy__catalog_pin_index(damacy__catalog* catalog,
                                                      const damacy__array_entry* array,
                                                      uint64_t number, uint64_t hash)
{
    damacy__entry* at = damacy__table_first(&catalog->indexes, hash);

    for (; at; at = damacy__table_next(at)) {
        damacy__index_entry* entry = (damacy__index_entry*)(void*)at;
        if (entry->array == array && entry->number == number &&
            !__atomic_load_n(&entry->index.is_stale, __ATOMIC_RELAXED)) {
            entry->n_pins++;
            catalog->index_hits++;
            damacy__table_touch(&catalog->indexes, &entry->entry);
            return entry;
        }
    }
    return NULL;
}

/* Pins the index of an object; the array is READY. OOM only; other failures are the entry's. Memory
 * is taken without the lock, as for arrays. */
static damacy_status damacy__catalog_index(damacy__catalog* catalog, damacy__array_entry* array,
                                           uint64_t number, damacy__index_entry** out,
                                           damacy_error* err)
{
    const uint64_t hash = damacy__hash(&number, sizeof number, (uint64_t)(uintptr_t)array);
    damacy__index_entry* fresh;
    damacy__index_entry* entry;

    damacy__lock(&catalog->mutex);
    entry = damacy__catalog_pin_index(catalog, array, number, hash);
    damacy__unlock(&catalog->mutex);
    if (entry) {
        *out = entry;
        return DAMACY_OK;
    }
    fresh = damacy__new(catalog->alloc, 1, damacy__index_entry);
    if (!fresh) {
        (void)damacy__fail(err, DAMACY_OOM, "%.100s: no memory for a shard index", array->uri);
        return damacy__alloc_explain(catalog->alloc, err);
    }
    fresh->catalog = catalog;
    fresh->array = array;
    fresh->number = number;
    fresh->n_pins = 2; /* the caller's and the fetch's */
    fresh->n_bytes = sizeof *fresh;
    fresh->task.function = damacy__index_fetch;
    fresh->task.context = fresh;
    damacy__lock(&catalog->mutex);
    entry = damacy__catalog_pin_index(catalog, array, number, hash);
    if (!entry) {
        fresh->index.serial = ++catalog->n_serials;
        array->n_pins++;
        catalog->index_misses++;
        catalog->n_bytes += sizeof *fresh;
        damacy__table_insert(&catalog->indexes, &fresh->entry, hash);
    }
    damacy__unlock(&catalog->mutex);
    if (entry) {
        damacy__index_entry_free(catalog, fresh);
    } else {
        entry = fresh;
        damacy__pool_submit(catalog->pool, &entry->task, DAMACY__URGENT);
        damacy__catalog_keep_limits(catalog);
    }
    *out = entry;
    return DAMACY_OK;
}

/* Drops a pin; a failed array that nobody pins is forgotten. */
static void damacy__catalog_unpin_array(damacy__catalog* catalog, damacy__array_entry* entry)
{
    bool forget;

    damacy__lock(&catalog->mutex);
    entry->n_pins--;
    forget = entry->n_pins == 0 && damacy__fetch_state_of(&entry->state) == DAMACY__FAILED;
    if (forget) {
        damacy__table_remove(&catalog->arrays, &entry->entry);
    }
    damacy__unlock(&catalog->mutex);
    if (forget) {
        damacy__array_entry_free(catalog, entry);
    }
}

/* Drops a pin; a failed index that nobody pins is forgotten. */
static void damacy__catalog_unpin_index(damacy__catalog* catalog, damacy__index_entry* entry)
{
    bool forget;

    damacy__lock(&catalog->mutex);
    entry->n_pins--;
    forget = entry->n_pins == 0 && (damacy__fetch_state_of(&entry->state) == DAMACY__FAILED ||
                                    __atomic_load_n(&entry->index.is_stale, __ATOMIC_RELAXED));
    if (forget) {
        damacy__table_remove(&catalog->indexes, &entry->entry);
        catalog->n_bytes -= entry->n_bytes;
        entry->array->n_pins--;
    }
    damacy__unlock(&catalog->mutex);
    if (forget) {
        damacy__index_entry_free(catalog, entry);
    }
}
