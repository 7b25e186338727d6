/* Roots and objects to descriptors: opening, opening again, and reading, for local files.
 *
 * What has been opened once must be the same file when it is opened again: a root by device and
 * inode, an object by size and time of change as well. Resources that run out (descriptors, memory)
 * are first taken from idle handles. A read never reports a missing object: that would pass for
 * missing data. */
#pragma once
#include "store/record.h"

static damacy_status damacy__root_use(damacy__store* store, damacy__root* root, int* fd,
                                      damacy_error* err);
static damacy_status damacy__root_verify(damacy__store* store, damacy__root* root, bool* is_same,
                                         damacy_error* err);
static damacy_status damacy__object_refresh(damacy__store* store, damacy__object* object,
                                            damacy_error* err);
static damacy_status damacy__object_read_file(damacy__store* store, damacy__object* object,
                                              uint64_t offset, void* dst, size_t size,
                                              damacy_error* err);
static damacy_status damacy__object_borrow(damacy__store* store, damacy__object* object, int* fd,
                                           damacy_error* err);
static void damacy__object_return(damacy__store* store, damacy__object* object);

/* How often a call was repeated, by cause. */
typedef struct damacy__relief {
    uint32_t n_full; /* EMFILE, ENFILE */
    uint32_t n_memory;
    uint32_t n_stale;
    uint32_t n_again; /* after all the pauses, and when an object appeared while it was missed */
} damacy__relief;

/* Makes room after a call failed with code; whether it is worth repeating. */
static bool damacy__store_relieve(damacy__store* store, int code, damacy__relief* relief)
{
    enum { DAMACY__TRIES_FULL = 8 }; /* a quarter of a second of pauses */

    switch (code) {
    case EMFILE:
    case ENFILE:
        if (relief->n_full == DAMACY__TRIES_FULL) {
            return false;
        }
        if (damacy__handles_drop_idle(&store->handles) == 0) {
            store->os.sleep(store->os.user, UINT64_C(1000000) << relief->n_full);
        }
        relief->n_full++;
        return true;
    case ENOMEM:
        (void)damacy__handles_drop_idle(&store->handles);
        return relief->n_memory++ == 0;
    case ESTALE:
        return relief->n_stale++ == 0;
    case EAGAIN:
        return relief->n_again++ == 0;
    default:
        return false;
    }
}

static void damacy__store_delay(damacy__store* store)
{
    if (damacy__latency_is_set(&store->latency)) {
        const uint64_t number = __atomic_fetch_add(&store->n_calls, 1, __ATOMIC_RELAXED);
        store->os.sleep(store->os.user, damacy__latency_ns(&store->latency, number));
    }
}

/* Takes a root out of the table, so that the next caller gets a new one. */
static void damacy__root_forget(damacy__store* store, damacy__root* root)
{
    damacy__lock(&store->mutex);
    if (!root->is_stale) {
        root->is_stale = true;
        damacy__table_remove(&store->roots, &root->entry);
    }
    damacy__unlock(&store->mutex);
}

/* The same for an object that is in use. */
static void damacy__object_forget(damacy__store* store, damacy__object* object)
{
    damacy__lock(&store->mutex);
    if (!object->is_stale) {
        object->is_stale = true;
        damacy__table_remove(&store->objects, &object->entry);
    }
    damacy__unlock(&store->mutex);
}

/* Opens the folder anew: a descriptor, or -errno. */
static int damacy__root_open(damacy__store* store, const damacy__root* root, struct stat* info)
{
    damacy__relief relief = {0, 0, 0, 0};

    for (;;) {
        const int fd = damacy__os_open(&store->os, AT_FDCWD, root->path, O_PATH | O_DIRECTORY, 0);
        const int code = fd < 0 ? fd : damacy__os_stat(&store->os, fd, info);
        if (code >= 0) {
            return fd;
        }
        if (fd >= 0) {
            (void)store->os.close(store->os.user, fd);
        }
        if (!damacy__store_relieve(store, -code, &relief)) {
            return code;
        }
    }
}

/* Whether a folder is the one that was opened first; the first one is remembered. */
static bool damacy__root_is_same(damacy__store* store, damacy__root* root, const struct stat* info)
{
    bool is_same;

    damacy__lock(&store->mutex);
    if (!root->is_known) {
        root->is_known = true;
        root->device = (uint64_t)info->st_dev;
        root->inode = (uint64_t)info->st_ino;
    }
    is_same = root->device == (uint64_t)info->st_dev && root->inode == (uint64_t)info->st_ino;
    damacy__unlock(&store->mutex);
    return is_same;
}

static damacy_status damacy__root_fail_replaced(damacy__store* store, damacy__root* root,
                                                damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];

    damacy__root_forget(store, root);
    return damacy__fail(err, DAMACY_IO, "%s: the folder was removed or replaced while in use",
                        damacy__store_name(root, NULL, name));
}

/* The descriptor of a root, until damacy__handle_release. Inside an operation. */
static damacy_status damacy__root_use(damacy__store* store, damacy__root* root, int* fd,
                                      damacy_error* err)
{
    struct stat info;
    int got;

    if (damacy__handle_take(&store->handles, &root->handle, fd)) {
        return DAMACY_OK;
    }
    got = damacy__root_open(store, root, &info);
    if (got >= 0 && !damacy__root_is_same(store, root, &info)) {
        (void)store->os.close(store->os.user, got);
        damacy__handle_put(&store->handles, &root->handle, -1);
        return damacy__root_fail_replaced(store, root, err);
    }
    damacy__handle_put(&store->handles, &root->handle, got);
    if (got < 0) {
        return got == -ENOENT || got == -ENOTDIR ? damacy__root_fail_replaced(store, root, err)
                                                 : damacy__root_fail(root, -got, err);
    }
    *fd = got;
    return DAMACY_OK;
}

/* Whether the path still leads to the folder that was opened first. */
static damacy_status damacy__root_verify(damacy__store* store, damacy__root* root, bool* is_same,
                                         damacy_error* err)
{
    struct stat info;
    int fd;

    damacy__handles_begin(&store->handles);
    fd = damacy__root_open(store, root, &info);
    if (fd >= 0) {
        *is_same = damacy__root_is_same(store, root, &info);
        (void)store->os.close(store->os.user, fd);
    }
    damacy__handles_end(&store->handles);
    return fd >= 0 ? DAMACY_OK : damacy__root_fail(root, -fd, err);
}

/* Opens the file of an object. Inside an operation; uses one handle, the root's, beside its own. */
static damacy_status damacy__object_open_file(damacy__store* store, damacy__object* object,
                                              int* out, damacy__file_id* id, damacy_error* err)
{
    damacy__relief relief = {0, 0, 0, 0};

    damacy__store_delay(store);
    for (;;) {
        mode_t mode = 0;
        bool is_there = true;
        int folder = -1;
        int code;
        int fd;
        DAMACY__TRY(damacy__root_use(store, object->root, &folder, err));
        fd = damacy__file_open(&store->os, folder, object->key, store->follow_outside_links,
                               &store->lacks_openat2);
        code = fd < 0 ? fd : damacy__file_check(&store->os, fd, id, &mode);
        if (fd == -ENOENT) {
            code =
                damacy__file_missing(&store->os, folder, object->key, store->follow_outside_links,
                                     &store->lacks_openat2, &is_there);
        }
        damacy__handle_release(&store->handles, &object->root->handle, code == -ESTALE);
        if (code >= 0) {
            *out = fd;
            return DAMACY_OK;
        }
        if (fd >= 0) {
            (void)store->os.close(store->os.user, fd);
        }
        if (!is_there) {
            return damacy__root_fail_replaced(store, object->root, err);
        }
        if (!damacy__store_relieve(store, -code, &relief)) {
            return damacy__object_fail(object, -code, mode, err);
        }
    }
}

/* Whether an idle object's descriptor is still open and its file unchanged. */
static bool damacy__object_is_fresh(damacy__store* store, damacy__object* object)
{
    struct stat info;
    damacy__file_id id;
    bool is_fresh = false;
    int fd;

    if (!object->is_known || !damacy__handle_take_open(&store->handles, &object->handle, &fd)) {
        return false;
    }
    if (damacy__os_stat(&store->os, fd, &info) == 0) {
        id = damacy__file_id_of(&info);
        is_fresh = info.st_nlink > 0 && damacy__file_id_equal(&id, &object->id);
    }
    damacy__handle_release(&store->handles, &object->handle, !is_fresh);
    return is_fresh;
}

/* Opens an object that nobody uses, new or idle, and learns what it is now. */
static damacy_status damacy__object_refresh(damacy__store* store, damacy__object* object,
                                            damacy_error* err)
{
    damacy_status status = DAMACY_OK;
    damacy__file_id id;
    int fd = -1;

    memset(&id, 0, sizeof id);
    damacy__handles_begin(&store->handles);
    if (!damacy__object_is_fresh(store, object)) {
        damacy__handle_close(&store->handles, &object->handle);
        if (!damacy__handle_take(&store->handles, &object->handle, &fd)) {
            status = damacy__object_open_file(store, object, &fd, &id, err);
            damacy__handle_put(&store->handles, &object->handle, status == DAMACY_OK ? fd : -1);
            if (status == DAMACY_OK) {
                object->id = id;
                object->is_known = true;
                damacy__handle_release(&store->handles, &object->handle, false);
            }
        }
    }
    damacy__handles_end(&store->handles);
    return status;
}

/* The descriptor of an object in use, until damacy__handle_release. Inside an operation. */
static damacy_status damacy__object_use(damacy__store* store, damacy__object* object, int* fd,
                                        damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    damacy_status status;
    damacy__file_id id;
    int got = -1;

    if (damacy__handle_take(&store->handles, &object->handle, fd)) {
        return DAMACY_OK;
    }
    memset(&id, 0, sizeof id);
    status = damacy__object_open_file(store, object, &got, &id, err);
    if (status == DAMACY_OK && !damacy__file_id_equal(&id, &object->id)) {
        (void)store->os.close(store->os.user, got);
        status = DAMACY_NOTFOUND;
    }
    damacy__handle_put(&store->handles, &object->handle, status == DAMACY_OK ? got : -1);
    if (status == DAMACY_NOTFOUND) {
        damacy__object_forget(store, object);
        return damacy__fail(err, DAMACY_IO, "%s: the object was removed or replaced while in use",
                            damacy__store_name(object->root, object->key, name));
    }
    *fd = got;
    return status;
}

/* Exactly size bytes, which lie inside the object as it was opened. */
static damacy_status damacy__object_read_file(damacy__store* store, damacy__object* object,
                                              uint64_t offset, void* dst, size_t size,
                                              damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    char cause[DAMACY__ERRNO_TEXT];
    damacy__relief relief = {0, 0, 0, 0};
    size_t n = 0;
    int code;

    do {
        int fd = -1;
        DAMACY__TRY(damacy__object_use(store, object, &fd, err));
        code = damacy__os_read(&store->os, fd, dst, size, offset, &n);
        damacy__handle_release(&store->handles, &object->handle, code == -ESTALE);
    } while (code < 0 && damacy__store_relieve(store, -code, &relief));
    if (code < 0) {
        err->offset = offset + n;
        return damacy__fail(err, code == -ENOMEM ? DAMACY_OOM : DAMACY_IO,
                            "%s: cannot read %zu bytes at %" PRIu64 ": %s",
                            damacy__store_name(object->root, object->key, name), size, offset,
                            damacy__errno_text(-code, cause));
    }
    if (n < size) { /* cut since it was opened */
        damacy__object_forget(store, object);
        return damacy__object_fail_short(object, offset, size, offset + n, err);
    }
    return DAMACY_OK;
}

/* The descriptor of a local file in use, until damacy__object_return, after a look whether the file
 * still is as it was opened. For those who read it in ways of their own; counts as one read. */
static damacy_status damacy__object_borrow(damacy__store* store, damacy__object* object, int* fd,
                                           damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    struct stat info;
    damacy__file_id id;
    damacy_status status;

    damacy__store_delay(store);
    damacy__handles_begin(&store->handles);
    status = damacy__object_use(store, object, fd, err);
    if (status == DAMACY_OK) {
        memset(&id, 0, sizeof id);
        if (damacy__os_stat(&store->os, *fd, &info) == 0) {
            id = damacy__file_id_of(&info);
        }
        if (damacy__file_id_equal(&id, &object->id)) {
            return DAMACY_OK;
        }
        damacy__handle_release(&store->handles, &object->handle, true);
        damacy__object_forget(store, object);
        status = damacy__fail(err, DAMACY_IO, "%s: the object was changed while in use",
                              damacy__store_name(object->root, object->key, name));
    }
    damacy__handles_end(&store->handles);
    return status;
}

static void damacy__object_return(damacy__store* store, damacy__object* object)
{
    damacy__handle_release(&store->handles, &object->handle, false);
    damacy__handles_end(&store->handles);
}
