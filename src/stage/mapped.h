/* Local files whose page cache a GPU reads, by its copy engine or a kernel: whole files, mapped and
 * registered with the driver once they have been asked for often enough, until others need the
 * room.
 *
 * The CPU never looks at the mapped bytes: a file that was cut short would end the process. Files
 * are told apart by what they are (damacy__file_id), so a replaced file is another file. All of it
 * is an offer: a file that is not taken is read, and nothing is wrong with it. */
#pragma once
#include "gpu/memory.h"
#include "store/store.h"

enum {
    DAMACY__MAPPED_MAX_FILES = 4096,
    DAMACY__MAPPED_SHARE = 8,      /* a file is mapped once one part in so many was asked for */
    DAMACY__MAPPED_KEEP = 32,      /* batches that a file is not used for before it makes room */
    DAMACY__MAPPED_REFUSALS = 8,   /* of the driver, after which it is not asked any more */
    DAMACY__MAPPED_LEAST = 1 << 20 /* bytes of a file: below, mapping costs more than reading */
};

typedef enum damacy__mapped_state {
    DAMACY__MAPPED_COUNTED = 0, /* not mapped: what is asked for is counted */
    DAMACY__MAPPED_OPENING,     /* one thread registers it, the others read */
    DAMACY__MAPPED_READY,
    DAMACY__MAPPED_REFUSED /* the driver does not take it */
} damacy__mapped_state;

/* One version of one file. Guarded by the table's mutex, but for the mapping of a READY one. */
typedef struct damacy__mapped_file {
    damacy__entry entry; /* first; in the table unless is_stale */
    damacy__file_id id;
    uint32_t state;
    uint32_t n_users; /* reads whose bytes lie in the mapping */
    bool is_stale;    /* closed when the last user leaves */
    uint64_t asked;   /* bytes, since the last attempt to map it */
    uint64_t batch;   /* the last one that used it */
    damacy__mapping mapping;
    struct damacy__mapped_file* next; /* of the spare ones, or of those to be closed */
} damacy__mapped_file;

/* Zeroed: takes no file. */
typedef struct damacy__mapped {
    damacy__device* device; /* set at init, then constant, as is what follows */
    damacy__store* store;
    uint64_t max_bytes;
    uint64_t least; /* bytes of a file; tests lower it before the first read */
    void (*notify)(void* context, const damacy_error* why); /* the driver's first refusal */
    void* notify_context;
    uint32_t n_files;
    damacy__mapped_file* files;
    damacy__mutex mutex;
    damacy__table table;          /* guarded by mutex, as is what follows */
    damacy__mapped_file* spare;   /* records that are free */
    damacy__mapped_file* closing; /* mappings that nobody uses, for the next thread to close */
    uint64_t n_bytes;             /* of files that are mapped or being mapped */
    uint32_t n_refused;           /* by the driver, since the last that it took */
    bool was_refused;             /* once at least */
    bool is_off;                  /* it takes none */
} damacy__mapped;

static damacy_status damacy__mapped_init(damacy__mapped* mapped, damacy__device* device,
                                         damacy__store* store, uint64_t max_bytes,
                                         damacy_error* err);
static void damacy__mapped_deinit(damacy__mapped* mapped);
static damacy_status damacy__mapped_take(damacy__mapped* mapped, damacy__object* object,
                                         uint64_t size, uint64_t batch, damacy__mapped_file** out,
                                         damacy_error* err);
static void damacy__mapped_give(damacy__mapped* mapped, damacy__mapped_file* file);
static void damacy__mapped_forget(damacy__mapped* mapped, uint64_t stamp);

/* store: of local files. max_bytes: of all mapped files; too few for any: the table stays zeroed.
 * The caller may set notify afterwards. */
static damacy_status damacy__mapped_init(damacy__mapped* mapped, damacy__device* device,
                                         damacy__store* store, uint64_t max_bytes,
                                         damacy_error* err)
{
    const uint64_t most = 2 * (max_bytes / DAMACY__MAPPED_LEAST);
    const uint32_t n = (uint32_t)DAMACY__MIN(most, (uint64_t)DAMACY__MAPPED_MAX_FILES);
    damacy__alloc* alloc = device->alloc;
    damacy__mapped made;

    if (n == 0) {
        return DAMACY_OK;
    }
    memset(&made, 0, sizeof made);
    made.device = device;
    made.store = store;
    made.max_bytes = max_bytes;
    made.least = DAMACY__MAPPED_LEAST;
    made.n_files = n;
    made.files = damacy__new(alloc, n, damacy__mapped_file);
    if (!made.files) {
        return damacy__fail(err, DAMACY_OOM, "records of %u mapped files", n);
    }
    if (damacy__table_init(&made.table, alloc, n, err) != DAMACY_OK) {
        damacy__free(alloc, made.files, n);
        return err->status;
    }
    if (damacy__mutex_init(&made.mutex, err) != DAMACY_OK) {
        damacy__table_deinit(&made.table, alloc);
        damacy__free(alloc, made.files, n);
        return err->status;
    }
    for (uint32_t i = n; i-- > 0;) {
        made.files[i].next = made.spare;
        made.spare = &made.files[i];
    }
    *mapped = made;
    return DAMACY_OK;
}

/* Closes all files. No copy from them is under way, and no thread calls any more. */
static void damacy__mapped_deinit(damacy__mapped* mapped)
{
    damacy__alloc* alloc;

    if (!mapped->device) {
        return;
    }
    alloc = mapped->device->alloc;
    for (uint32_t i = 0; i < mapped->n_files; i++) {
        assert(mapped->files[i].n_users == 0);
        damacy__mapping_close(mapped->device, &mapped->files[i].mapping);
    }
    damacy__table_deinit(&mapped->table, alloc);
    damacy__free(alloc, mapped->files, mapped->n_files);
    damacy__mutex_deinit(&mapped->mutex);
    memset(mapped, 0, sizeof *mapped);
}

/* Puts a mapping that nobody uses on the list of those to be closed. The mutex is held. */
static void damacy__mapped_retire(damacy__mapped* mapped, damacy__mapped_file* file)
{
    if (!file->is_stale) {
        file->is_stale = true;
        damacy__table_remove(&mapped->table, &file->entry);
    }
    if (file->state == DAMACY__MAPPED_READY) {
        mapped->n_bytes -= file->mapping.map_size;
        file->next = mapped->closing;
        mapped->closing = file;
    } else {
        file->next = mapped->spare;
        mapped->spare = file;
    }
}

/* Closes what is to be closed; the driver takes its time, so no lock is held. */
static void damacy__mapped_sweep(damacy__mapped* mapped)
{
    for (;;) {
        damacy__mapped_file* file;
        damacy__lock(&mapped->mutex);
        file = mapped->closing;
        if (file) {
            mapped->closing = file->next;
        }
        damacy__unlock(&mapped->mutex);
        if (!file) {
            return;
        }
        damacy__mapping_close(mapped->device, &file->mapping);
        damacy__lock(&mapped->mutex);
        file->next = mapped->spare;
        mapped->spare = file;
        damacy__unlock(&mapped->mutex);
    }
}

/* The record of a file, perhaps a new one; NULL: there are too many mapped ones. The mutex is held.
 */
static damacy__mapped_file* damacy__mapped_find(damacy__mapped* mapped, const damacy__file_id* id,
                                                uint64_t hash)
{
    enum { DAMACY__MAPPED_LOOK = 64 }; /* records that are looked at to find one to use again */
    damacy__entry* at = damacy__table_first(&mapped->table, hash);
    damacy__mapped_file* file;

    for (; at; at = damacy__table_next(at)) {
        file = (damacy__mapped_file*)(void*)at;
        if (damacy__file_id_equal(&file->id, id)) {
            damacy__table_touch(&mapped->table, at);
            return file;
        }
    }
    at = mapped->table.oldest;
    for (uint32_t i = 0; !mapped->spare && at && i < DAMACY__MAPPED_LOOK; i++) {
        file = (damacy__mapped_file*)(void*)at;
        at = at->newer;
        if (file->state == DAMACY__MAPPED_COUNTED || file->state == DAMACY__MAPPED_REFUSED) {
            damacy__mapped_retire(mapped, file);
        }
    }
    file = mapped->spare;
    if (file) {
        mapped->spare = file->next;
        memset(file, 0, sizeof *file);
        file->id = *id;
        damacy__table_insert(&mapped->table, &file->entry, hash);
    }
    return file;
}

/* Whether size more bytes may be mapped; files that were not used for long make room, all that is
 * needed or none. The mutex is held. */
static bool damacy__mapped_make_room(damacy__mapped* mapped, uint64_t size, uint64_t batch)
{
    const damacy__alloc* alloc = mapped->device->alloc;
    const uint64_t live = __atomic_load_n(&alloc->live_bytes, __ATOMIC_RELAXED);
    const uint64_t most = alloc->budget ? alloc->budget - alloc->budget / 8 : UINT64_MAX;
    uint64_t idle = 0;

    for (uint32_t round = 0; round < 2; round++) {
        damacy__entry* at = mapped->table.oldest;
        uint64_t over = 0; /* what is too much */
        if (mapped->n_bytes + size > mapped->max_bytes) {
            over = mapped->n_bytes + size - mapped->max_bytes;
        }
        over = DAMACY__MAX(over, live + size > most ? live + size - most : 0);
        for (uint64_t found = 0; at && found < over;) {
            damacy__mapped_file* file = (damacy__mapped_file*)(void*)at;
            at = at->newer;
            if (file->state == DAMACY__MAPPED_READY && file->n_users == 0 &&
                file->batch + DAMACY__MAPPED_KEEP < batch) {
                found += file->mapping.map_size;
                if (round == 1) {
                    damacy__mapped_retire(mapped, file);
                }
            }
            idle = found;
        }
        if (idle < over) {
            return false;
        }
    }
    return true;
}

/* Maps and registers a file if it is in memory; why->status tells what the driver said. A file that
 * is cut short later keeps the pages that are registered now. */
static damacy_status damacy__mapped_open(damacy__mapped* mapped, damacy__object* object,
                                         damacy__mapping* out, damacy_error* why, damacy_error* err)
{
    const uint64_t size = damacy__object_size(object);
    const damacy__os* os = &mapped->store->os;
    int fd = -1;

    DAMACY__TRY(damacy__object_borrow(mapped->store, object, &fd, err));
    if (os->cached(os->user, fd, size) && damacy__device_enter(mapped->device, why) == DAMACY_OK) {
        (void)damacy__mapping_open(mapped->device, fd, 0, size, out, why);
        damacy__device_leave(mapped->device);
    }
    damacy__object_return(mapped->store, object);
    return DAMACY_OK;
}

/* Ends OPENING: the file is READY and this thread's, or goes on as it was. */
static damacy_status damacy__mapped_make(damacy__mapped* mapped, damacy__object* object,
                                         uint64_t map_size, damacy__mapped_file* file,
                                         damacy__mapped_file** out, damacy_error* err)
{
    damacy__mapping mapping;
    damacy_error why;
    damacy_status status;
    bool is_refused;
    bool is_first;

    memset(&mapping, 0, sizeof mapping);
    memset(&why, 0, sizeof why);
    damacy__mapped_sweep(mapped);
    status = damacy__mapped_open(mapped, object, &mapping, &why, err);
    is_refused = why.status == DAMACY_UNSUPPORTED;
    damacy__lock(&mapped->mutex);
    is_first = is_refused && !mapped->was_refused;
    mapped->was_refused = mapped->was_refused || is_refused;
    file->mapping = mapping;
    if (mapping.map) {
        file->state = DAMACY__MAPPED_READY;
        file->n_users++;
        mapped->n_refused = 0;
        *out = file;
    } else {
        mapped->n_bytes -= map_size;
        file->state = is_refused ? DAMACY__MAPPED_REFUSED : DAMACY__MAPPED_COUNTED;
        mapped->n_refused += is_refused ? 1 : 0;
        mapped->is_off = mapped->n_refused >= DAMACY__MAPPED_REFUSALS;
        if (file->is_stale) {
            damacy__mapped_retire(mapped, file);
        }
    }
    damacy__unlock(&mapped->mutex);
    if (is_first && mapped->notify) {
        mapped->notify(mapped->notify_context, &why);
    }
    return status;
}

/* The mapping of an object, of which the caller wants size bytes; *out stays NULL where the bytes
 * are to be read. End with damacy__mapped_give. IO: the file is not any more what was opened. */
static damacy_status damacy__mapped_take(damacy__mapped* mapped, damacy__object* object,
                                         uint64_t size, uint64_t batch, damacy__mapped_file** out,
                                         damacy_error* err)
{
    const uint64_t file_size = damacy__object_size(object);
    const uint64_t map_size = damacy__align_up(file_size, (uint64_t)sysconf(_SC_PAGESIZE));
    damacy__mapped_file* file = NULL;
    damacy_status status;
    bool is_mine = false;
    bool is_ready;
    int fd = -1;

    if (!mapped->device || file_size < mapped->least || map_size > mapped->max_bytes) {
        return DAMACY_OK;
    }
    damacy__lock(&mapped->mutex);
    if (!mapped->is_off) {
        file = damacy__mapped_find(mapped, &object->id, damacy__object_stamp(object));
    }
    is_ready = file && file->state == DAMACY__MAPPED_READY;
    if (file) {
        file->batch = DAMACY__MAX(file->batch, batch);
        file->n_users += is_ready ? 1 : 0;
        file->asked += size;
    }
    if (file && file->state == DAMACY__MAPPED_COUNTED &&
        file->asked >= file_size / DAMACY__MAPPED_SHARE) {
        file->asked = 0;
        is_mine = damacy__mapped_make_room(mapped, map_size, batch);
        if (is_mine) {
            file->state = DAMACY__MAPPED_OPENING;
            mapped->n_bytes += map_size;
        }
    }
    damacy__unlock(&mapped->mutex);
    if (is_mine) {
        return damacy__mapped_make(mapped, object, map_size, file, out, err);
    }
    if (!is_ready) {
        return DAMACY_OK;
    }
    status = damacy__object_borrow(mapped->store, object, &fd, err);
    if (status != DAMACY_OK) {
        damacy__mapped_give(mapped, file);
        return status;
    }
    damacy__object_return(mapped->store, object);
    *out = file;
    return DAMACY_OK;
}

/* The bytes were sent, or are not wanted any more. Never calls the driver. */
static void damacy__mapped_give(damacy__mapped* mapped, damacy__mapped_file* file)
{
    damacy__lock(&mapped->mutex);
    file->n_users--;
    if (file->n_users == 0 && file->is_stale) {
        damacy__mapped_retire(mapped, file);
    }
    damacy__unlock(&mapped->mutex);
}

/* The file of this stamp was replaced or is gone: its mapping goes once nobody uses it, so that its
 * place on the disk is not held. */
static void damacy__mapped_forget(damacy__mapped* mapped, uint64_t stamp)
{
    damacy__entry* at;

    if (!mapped->device) {
        return;
    }
    damacy__lock(&mapped->mutex);
    at = damacy__table_first(&mapped->table, stamp);
    while (at) {
        damacy__mapped_file* file = (damacy__mapped_file*)(void*)at;
        at = damacy__table_next(at);
        if (file->n_users == 0 && file->state != DAMACY__MAPPED_OPENING) {
            damacy__mapped_retire(mapped, file);
        } else {
            file->is_stale = true;
            damacy__table_remove(&mapped->table, &file->entry);
        }
    }
    damacy__unlock(&mapped->mutex);
    damacy__mapped_sweep(mapped);
}
