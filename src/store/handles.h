/* A bounded set of open descriptors: the ones that nobody is using are closed, oldest first, when
 * room is needed, and opened again by their owner when it needs them.
 *
 * An operation says that it begins before it takes any handle, and takes at most two; so many
 * operations may run that every one of them can always get its two, which is why waiting here
 * cannot deadlock. */
#pragma once
#include "base/sync.h"
#include "store/os.h"

enum { DAMACY__HANDLES_PER_OPERATION = 2 };

/* Embedded in its owner; zeroed: closed. Guarded by the set's mutex. */
typedef struct damacy__handle {
    struct damacy__handle* newer; /* in the list of open handles */
    struct damacy__handle* older;
    int fd;           /* if is_open */
    uint32_t n_users; /* operations that use fd now */
    bool is_open;
    bool is_opening; /* an operation is opening it */
    bool is_broken;  /* closed when the last user leaves */
} damacy__handle;

typedef struct damacy__handles {
    const damacy__os* os;
    uint32_t max_open;       /* set at init, then constant */
    uint32_t max_operations; /* as above */
    damacy__mutex mutex;
    damacy__condition changed;
    damacy__handle* newest; /* guarded by mutex, as is what follows */
    damacy__handle* oldest;
    uint32_t n_open;       /* open or being opened */
    uint32_t n_operations; /* begun and not ended */
    uint32_t n_waiting;    /* threads that wait for changed */
} damacy__handles;

static damacy_status damacy__handles_init(damacy__handles* set, const damacy__os* os,
                                          uint32_t max_open, damacy_error* err);
static void damacy__handles_deinit(damacy__handles* set);
static void damacy__handles_begin(damacy__handles* set);
static void damacy__handles_end(damacy__handles* set);
static uint32_t damacy__handles_drop_idle(damacy__handles* set);
static bool damacy__handle_take(damacy__handles* set, damacy__handle* handle, int* fd);
static bool damacy__handle_take_open(damacy__handles* set, damacy__handle* handle, int* fd);
static void damacy__handle_put(damacy__handles* set, damacy__handle* handle, int fd);
static void damacy__handle_release(damacy__handles* set, damacy__handle* handle, bool is_broken);
static void damacy__handle_close(damacy__handles* set, damacy__handle* handle);

/* os is used and kept; max_open is at least 4. */
static damacy_status damacy__handles_init(damacy__handles* set, const damacy__os* os,
                                          uint32_t max_open, damacy_error* err)
{
    memset(set, 0, sizeof *set);
    set->os = os;
    set->max_open = DAMACY__MAX(max_open, 4);
    set->max_operations = set->max_open / DAMACY__HANDLES_PER_OPERATION;
    DAMACY__TRY(damacy__mutex_init(&set->mutex, err));
    if (damacy__condition_init(&set->changed, err) != DAMACY_OK) {
        damacy__mutex_deinit(&set->mutex);
        return DAMACY_OOM;
    }
    return DAMACY_OK;
}

/* All handles have been closed by their owners. */
static void damacy__handles_deinit(damacy__handles* set)
{
    assert(set->n_open == 0 && set->n_operations == 0);
    damacy__condition_deinit(&set->changed);
    damacy__mutex_deinit(&set->mutex);
}

static void damacy__handles_wait(damacy__handles* set)
{
    set->n_waiting++;
    damacy__wait(&set->changed, &set->mutex);
    set->n_waiting--;
}

static void damacy__handles_notify(damacy__handles* set)
{
    if (set->n_waiting) {
        damacy__broadcast(&set->changed);
    }
}

/* Begins an operation; waits while too many run. */
static void damacy__handles_begin(damacy__handles* set)
{
    damacy__lock(&set->mutex);
    while (set->n_operations >= set->max_operations) {
        damacy__handles_wait(set);
    }
    set->n_operations++;
    damacy__unlock(&set->mutex);
}

static void damacy__handles_end(damacy__handles* set)
{
    damacy__lock(&set->mutex);
    set->n_operations--;
    damacy__handles_notify(set);
    damacy__unlock(&set->mutex);
}

static void damacy__handles_unlink(damacy__handles* set, damacy__handle* handle)
{
    if (handle->newer) {
        handle->newer->older = handle->older;
    } else {
        set->newest = handle->older;
    }
    if (handle->older) {
        handle->older->newer = handle->newer;
    } else {
        set->oldest = handle->newer;
    }
    handle->newer = handle->older = NULL;
}

static void damacy__handles_link(damacy__handles* set, damacy__handle* handle)
{
    handle->newer = NULL;
    handle->older = set->newest;
    if (set->newest) {
        set->newest->newer = handle;
    } else {
        set->oldest = handle;
    }
    set->newest = handle;
}

/* Takes the oldest idle descriptor out of the set, for the caller to close; -1 when all are in use.
 * The mutex is held. */
static int damacy__handles_evict(damacy__handles* set)
{
    for (damacy__handle* handle = set->oldest; handle; handle = handle->newer) {
        if (handle->n_users == 0) {
            damacy__handles_unlink(set, handle);
            handle->is_open = false;
            set->n_open--;
            return handle->fd;
        }
    }
    return -1;
}

/* Closes all idle descriptors; how many those were. */
static uint32_t damacy__handles_drop_idle(damacy__handles* set)
{
    uint32_t n = 0;

    for (;;) {
        int fd;
        damacy__lock(&set->mutex);
        fd = damacy__handles_evict(set);
        damacy__unlock(&set->mutex);
        if (fd < 0) {
            return n;
        }
        (void)set->os->close(set->os->user, fd);
        n++;
    }
}

/* Counts another user of an open handle. The mutex is held. */
static void damacy__handle_use(damacy__handles* set, damacy__handle* handle)
{
    handle->n_users++;
    if (set->newest != handle) {
        damacy__handles_unlink(set, handle);
        damacy__handles_link(set, handle);
    }
}

/* True: *fd may be used until damacy__handle_release. False: the caller opens a descriptor, for
 * which there is room now, and calls damacy__handle_put; meanwhile others wait. */
static bool damacy__handle_take(damacy__handles* set, damacy__handle* handle, int* fd)
{
    int evicted = -1;

    damacy__lock(&set->mutex);
    while (handle->is_opening || handle->is_broken) {
        damacy__handles_wait(set);
    }
    if (handle->is_open) {
        damacy__handle_use(set, handle);
        *fd = handle->fd;
        damacy__unlock(&set->mutex);
        return true;
    }
    if (set->n_open >= set->max_open) {
        evicted = damacy__handles_evict(set);
    }
    set->n_open++;
    handle->is_opening = true;
    damacy__unlock(&set->mutex);
    if (evicted >= 0) {
        (void)set->os->close(set->os->user, evicted);
    }
    return false;
}

/* As damacy__handle_take when the handle is open; otherwise false, and nothing has changed. */
static bool damacy__handle_take_open(damacy__handles* set, damacy__handle* handle, int* fd)
{
    bool is_open;

    damacy__lock(&set->mutex);
    is_open = handle->is_open && !handle->is_broken;
    if (is_open) {
        damacy__handle_use(set, handle);
        *fd = handle->fd;
    }
    damacy__unlock(&set->mutex);
    return is_open;
}

/* Ends the opening: the caller uses fd from now on, or it is negative and the handle stays closed.
 */
static void damacy__handle_put(damacy__handles* set, damacy__handle* handle, int fd)
{
    damacy__lock(&set->mutex);
    handle->is_opening = false;
    if (fd >= 0) {
        handle->fd = fd;
        handle->is_open = true;
        handle->n_users = 1;
        damacy__handles_link(set, handle);
    } else {
        set->n_open--;
    }
    damacy__handles_notify(set);
    damacy__unlock(&set->mutex);
}

/* Ends a use. A broken handle is closed when its last user leaves; until then others wait for it.
 */
static void damacy__handle_release(damacy__handles* set, damacy__handle* handle, bool is_broken)
{
    int fd = -1;

    damacy__lock(&set->mutex);
    handle->is_broken = handle->is_broken || is_broken;
    handle->n_users--;
    if (handle->n_users == 0 && handle->is_broken) {
        damacy__handles_unlink(set, handle);
        handle->is_open = handle->is_broken = false;
        set->n_open--;
        fd = handle->fd;
        damacy__handles_notify(set);
    }
    damacy__unlock(&set->mutex);
    if (fd >= 0) {
        (void)set->os->close(set->os->user, fd);
    }
}

/* Closes a handle that nobody uses; its owner may be freed then. */
static void damacy__handle_close(damacy__handles* set, damacy__handle* handle)
{
    int fd = -1;

    damacy__lock(&set->mutex);
    assert(handle->n_users == 0 && !handle->is_opening);
    if (handle->is_open) {
        damacy__handles_unlink(set, handle);
        handle->is_open = false;
        set->n_open--;
        fd = handle->fd;
    }
    damacy__unlock(&set->mutex);
    if (fd >= 0) {
        (void)set->os->close(set->os->user, fd);
    }
}
