/* One file beneath a folder: opened without leaving the folder, and only if it is a regular file.
 *
 * The kernel does the walk (openat2). Where it cannot, each component is opened by itself and a
 * symbolic link is an error even if it stays inside. Hard links cannot be told from files. */
#pragma once
#include "store/os.h"
#include "store/uri.h"

/* Tells one version of a file from another. */
typedef struct damacy__file_id {
    uint64_t device;
    uint64_t inode;
    uint64_t size; /* bytes */
    int64_t modified_s;
    int64_t modified_ns;
} damacy__file_id;

static int damacy__file_open(const damacy__os* os, int folder, const char* key, bool follow_outside,
                             bool* lacks_openat2);
static int damacy__file_missing(const damacy__os* os, int folder, const char* key,
                                bool follow_outside, bool* lacks_openat2, bool* is_there);
static int damacy__file_check(const damacy__os* os, int fd, damacy__file_id* id, mode_t* mode);

static damacy__file_id damacy__file_id_of(const struct stat* info)
{
    damacy__file_id id;

    id.device = (uint64_t)info->st_dev;
    id.inode = (uint64_t)info->st_ino;
    id.size = (uint64_t)info->st_size;
    id.modified_s = (int64_t)info->st_mtim.tv_sec;
    id.modified_ns = (int64_t)info->st_mtim.tv_nsec;
    return id;
}

static bool damacy__file_id_equal(const damacy__file_id* a, const damacy__file_id* b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->modified_s == b->modified_s && a->modified_ns == b->modified_ns;
}

static const char* damacy__file_kind(mode_t mode)
{
    return S_ISREG(mode)    ? "file"
           : S_ISDIR(mode)  ? "folder"
           : S_ISFIFO(mode) ? "FIFO"
           : S_ISSOCK(mode) ? "socket"
           : S_ISLNK(mode)  ? "symbolic link"
                            : "device";
}

/* Flags of the file itself: a FIFO must not block, a terminal must not become ours. */
enum { DAMACY__FILE_FLAGS = O_RDONLY | O_NONBLOCK | O_NOCTTY };

/* A folder below another, not through a symbolic link: its descriptor or -errno. */
static int damacy__file_step(const damacy__os* os, int folder, const char* name)
{
    struct stat info;
    const int fd = damacy__os_open(os, folder, name, O_PATH | O_NOFOLLOW, 0);
    int code;

    if (fd < 0) {
        return fd;
    }
    code = damacy__os_stat(os, fd, &info);
    if (code == 0 && !S_ISDIR(info.st_mode)) {
        code = S_ISLNK(info.st_mode) ? -ELOOP : -ENOTDIR;
    }
    if (code < 0) {
        (void)os->close(os->user, fd);
        return code;
    }
    return fd;
}

/* The walk for kernels before 5.6, and for sandboxes that do not allow openat2. */
static int damacy__file_walk(const damacy__os* os, int folder, const char* key)
{
    char name[NAME_MAX + 1];
    int at = folder;

    for (;;) {
        const size_t len = strcspn(key, "/");
        int next = -ENAMETOOLONG;
        if (len <= NAME_MAX) {
            memcpy(name, key, len);
            name[len] = '\0';
            next = key[len] ? damacy__file_step(os, at, name)
                            : damacy__os_open(os, at, name, DAMACY__FILE_FLAGS | O_NOFOLLOW, 0);
        }
        if (at != folder) {
            (void)os->close(os->user, at);
        }
        if (next < 0 || key[len] == '\0') {
            return next;
        }
        at = next;
        key += len + 1;
    }
}

/* A descriptor or -errno: -ENOENT is a missing object, -EXDEV and -ELOOP are links that lead
 * outside or in circles. The key has been checked. *lacks_openat2 (atomic) is set once the kernel
 * says so. */
static int damacy__file_open(const damacy__os* os, int folder, const char* key, bool follow_outside,
                             bool* lacks_openat2)
{
    if (follow_outside) {
        return damacy__os_open(os, folder, key, DAMACY__FILE_FLAGS, 0);
    }
    if (!__atomic_load_n(lacks_openat2, __ATOMIC_RELAXED)) {
        const int fd = damacy__os_open(os, folder, key, DAMACY__FILE_FLAGS,
                                       DAMACY__RESOLVE_BENEATH | DAMACY__RESOLVE_NO_MAGICLINKS);
        if (fd != -ENOSYS && fd != -EPERM) {
            return fd;
        }
        __atomic_store_n(lacks_openat2, true, __ATOMIC_RELAXED);
    }
    return damacy__file_walk(os, folder, key);
}

/* The longest part of the key that exists decides: -ENOENT when what follows it is not there at
 * all, -ENOLINK when it is a link that leads nowhere. */
static int damacy__file_missing_part(const damacy__os* os, int folder, const char* key,
                                     uint64_t resolve)
{
    char part[DAMACY__PATH_SIZE];
    size_t len = 0;

    for (;;) {
        int fd;
        len += strcspn(key + len, "/");
        memcpy(part, key, len);
        part[len] = '\0';
        fd = damacy__os_open(os, folder, part, O_PATH, resolve);
        if (fd == -ENOENT) {
            fd = damacy__os_open(os, folder, part, O_PATH | O_NOFOLLOW, resolve);
            if (fd < 0) {
                return fd;
            }
            (void)os->close(os->user, fd);
            return -ENOLINK;
        }
        if (fd < 0) {
            return fd;
        }
        (void)os->close(os->user, fd);
        if (key[len] == '\0') {
            return -EAGAIN; /* it has appeared */
        }
        len++;
    }
}

/* What a failed open with -ENOENT means, as missing data must not be confused with lost data:
 * -ENOENT when there is no such object, -ENOLINK when a link on the way leads nowhere, another
 * -errno. The root folder itself may be gone: then *is_there is false. */
static int damacy__file_missing(const damacy__os* os, int folder, const char* key,
                                bool follow_outside, bool* lacks_openat2, bool* is_there)
{
    const uint64_t beneath =
        follow_outside ? 0 : DAMACY__RESOLVE_BENEATH | DAMACY__RESOLVE_NO_MAGICLINKS;
    const bool can_resolve = !__atomic_load_n(lacks_openat2, __ATOMIC_RELAXED);
    struct stat info;
    int code = damacy__os_stat(os, folder, &info);

    if (code < 0) {
        return code == -ENOENT ? -EIO : code;
    }
    *is_there = info.st_nlink > 0;
    if (!follow_outside && !can_resolve) {
        return -ENOENT; /* the walk has seen every component, and no links */
    }
    if (can_resolve) { /* one call settles the usual case, a path without links */
        code = damacy__os_open(os, folder, key, O_PATH | O_NOFOLLOW,
                               beneath | DAMACY__RESOLVE_NO_SYMLINKS);
        if (code == -ENOENT) {
            return code;
        }
        if (code >= 0) {
            (void)os->close(os->user, code);
        }
    }
    return damacy__file_missing_part(os, folder, key, beneath);
}

/* 0 and the identity of a regular file; -EBADF and *mode when it is something else; or -errno. */
static int damacy__file_check(const damacy__os* os, int fd, damacy__file_id* id, mode_t* mode)
{
    struct stat info;
    const int code = damacy__os_stat(os, fd, &info);

    *mode = S_IFREG;
    if (code < 0) {
        return code;
    }
    *mode = info.st_mode;
    if (!S_ISREG(info.st_mode) || info.st_size < 0) {
        return -EBADF;
    }
    *id = damacy__file_id_of(&info);
    return 0;
}
