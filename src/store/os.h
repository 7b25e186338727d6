/* The few calls to the operating system that the store makes, through a table that tests replace.
 *
 * Calls return -errno instead of setting errno. The wrappers repeat what is transient: EINTR,
 * EAGAIN with growing pauses, and short reads; all of it bounded, so that an endless fault becomes
 * an error. */
#pragma once
#include "base/alloc.h"
#include "base/calls.h"

typedef struct damacy__os {
    void* user;
    /* resolve 0: openat, else openat2 with these RESOLVE_ flags. A descriptor or -errno. */
    int (*open)(void* user, int folder, const char* path, int flags, uint64_t resolve);
    int (*stat)(void* user, int fd, struct stat* out);
    int64_t (*read)(void* user, int fd, void* dst, size_t size, uint64_t offset);
    int (*close)(void* user, int fd);
    /* Whether the first size bytes of a file are in memory, as far as a few samples tell. */
    bool (*cached)(void* user, int fd, uint64_t size);
    void (*sleep)(void* user, uint64_t ns);
} damacy__os;

/* From <linux/openat2.h>, which older systems lack. */
#define DAMACY__RESOLVE_NO_MAGICLINKS UINT64_C(0x02)
#define DAMACY__RESOLVE_NO_SYMLINKS   UINT64_C(0x04)
#define DAMACY__RESOLVE_BENEATH       UINT64_C(0x08)

enum {
    DAMACY__TRIES_INTERRUPTED = 1000, /* EINTR in a row */
    DAMACY__TRIES_AGAIN = 10,         /* EAGAIN in a row: 0.1 s of pauses in all */
    DAMACY__ERRNO_TEXT = 32
};

static void damacy__os_init(damacy__os* os);
static const char* damacy__errno_text(int code, char* text);

static int damacy__os_call_open(void* user, int folder, const char* path, int flags,
                                uint64_t resolve)
{
    int fd;

    (void)user;
    if (resolve == 0) {
        fd = damacy__call_open(folder, path, flags, 0);
    } else {
#if defined(SYS_openat2)
        struct {
            uint64_t flags;
            uint64_t mode;
            uint64_t resolve;
        } how;
        how.flags = (uint64_t)flags;
        how.mode = 0;
        how.resolve = resolve;
        fd = (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
#else
        fd = -1;
        errno = ENOSYS;
#endif
    }
    return fd >= 0 ? fd : -errno;
}

static int damacy__os_call_stat(void* user, int fd, struct stat* out)
{
    (void)user;
    return fstat(fd, out) == 0 ? 0 : -errno;
}

static int64_t damacy__os_call_read(void* user, int fd, void* dst, size_t size, uint64_t offset)
{
    const ssize_t n = damacy__call_read_at(fd, dst, size, offset);

    (void)user;
    return n >= 0 ? (int64_t)n : -(int64_t)errno;
}

static int damacy__os_call_close(void* user, int fd)
{
    (void)user;
    return close(fd) == 0 ? 0 : -errno;
}

/* Whether one byte can be had without waiting for storage: 1, 0, or -errno where that is not told.
 */
static int damacy__os_probe(int fd, uint64_t offset)
{
#if defined(SYS_preadv2)
    const long no_wait = 8; /* RWF_NOWAIT */
    uint8_t byte;
    struct iovec part;

    part.iov_base = &byte;
    part.iov_len = 1;
    if (syscall(SYS_preadv2, fd, &part, 1, (long)offset, (long)(offset >> 32), no_wait) == 1) {
        return 1;
    }
    return errno == EAGAIN ? 0 : -errno;
#else
    (void)fd;
    (void)offset;
    return -ENOSYS;
#endif
}

/* The same for the page at offset of a mapped file, which is not touched. */
static bool damacy__os_probe_map(uint8_t* map, uint64_t offset)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char is_there = 0;

    return mincore(map + (offset & ~(page - 1)), (size_t)page, &is_there) == 0 && (is_there & 1);
}

/* File systems in memory do not know reads that never wait; there mincore tells. */
static bool damacy__os_call_cached(void* user, int fd, uint64_t size)
{
    enum { DAMACY__PROBES = 32 };
    const uint64_t last = size - (size ? 1 : 0);
    uint8_t* map = NULL;
    int told = size ? 1 : 0;

    (void)user;
    for (uint32_t i = 0; i < DAMACY__PROBES && told == 1; i++) {
        const uint64_t at = i + 1 == DAMACY__PROBES ? last : last / (DAMACY__PROBES - 1) * i;
        told = damacy__os_probe(fd, at);
        if (told < 0 && !map) {
            map = (uint8_t*)mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
            if (map == (uint8_t*)MAP_FAILED) {
                return false;
            }
        }
        told = told < 0 ? damacy__os_probe_map(map, at) : told;
    }
    if (map) {
        (void)munmap(map, (size_t)size);
    }
    return told == 1;
}

static void damacy__os_call_sleep(void* user, uint64_t ns)
{
    struct timespec rest;

    (void)user;
    rest.tv_sec = (time_t)(ns / UINT64_C(1000000000));
    rest.tv_nsec = (long)(ns % UINT64_C(1000000000));
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
    }
}

static void damacy__os_init(damacy__os* os)
{
    os->user = NULL;
    os->open = damacy__os_call_open;
    os->stat = damacy__os_call_stat;
    os->read = damacy__os_call_read;
    os->close = damacy__os_call_close;
    os->cached = damacy__os_call_cached;
    os->sleep = damacy__os_call_sleep;
}

/* Such as "EACCES (errno 13)", into text[DAMACY__ERRNO_TEXT]. */
static const char* damacy__errno_text(int code, char* text)
{
#define DAMACY__NAMED(name) \
    {                       \
        name, #name         \
    }
    static const struct {
        int code;
        const char* name;
    } names[] = {DAMACY__NAMED(EACCES),       DAMACY__NAMED(EAGAIN),    DAMACY__NAMED(EBADF),
                 DAMACY__NAMED(EBUSY),        DAMACY__NAMED(EDQUOT),    DAMACY__NAMED(EFAULT),
                 DAMACY__NAMED(EFBIG),        DAMACY__NAMED(EHOSTDOWN), DAMACY__NAMED(EINTR),
                 DAMACY__NAMED(EINVAL),       DAMACY__NAMED(EIO),       DAMACY__NAMED(EISDIR),
                 DAMACY__NAMED(ELOOP),        DAMACY__NAMED(EMFILE),    DAMACY__NAMED(ENAMETOOLONG),
                 DAMACY__NAMED(ENFILE),       DAMACY__NAMED(ENODEV),    DAMACY__NAMED(ENOENT),
                 DAMACY__NAMED(ENOMEM),       DAMACY__NAMED(ENOSYS),    DAMACY__NAMED(ENOTCONN),
                 DAMACY__NAMED(ENOTDIR),      DAMACY__NAMED(ENXIO),     DAMACY__NAMED(EOPNOTSUPP),
                 DAMACY__NAMED(EOVERFLOW),    DAMACY__NAMED(EPERM),     DAMACY__NAMED(EREMOTEIO),
                 DAMACY__NAMED(ESPIPE),       DAMACY__NAMED(ESTALE),    DAMACY__NAMED(ETIMEDOUT),
                 DAMACY__NAMED(ETXTBSY),      DAMACY__NAMED(EXDEV),     DAMACY__NAMED(ECONNREFUSED),
                 DAMACY__NAMED(EHOSTUNREACH), DAMACY__NAMED(ESHUTDOWN), DAMACY__NAMED(EUCLEAN)};
#undef DAMACY__NAMED

    for (size_t i = 0; i < DAMACY__COUNT(names); i++) {
        if (names[i].code == code) {
            (void)snprintf(text, DAMACY__ERRNO_TEXT, "%s (errno %d)", names[i].name, code);
            return text;
        }
    }
    (void)snprintf(text, DAMACY__ERRNO_TEXT, "errno %d", code);
    return text;
}

/* Whether a call that failed with -code is to be repeated. */
static bool damacy__os_again(const damacy__os* os, int code, uint32_t* n_tries)
{
    ++*n_tries;
    if (code == EINTR) {
        return *n_tries < DAMACY__TRIES_INTERRUPTED;
    }
    if (code == EAGAIN && *n_tries <= DAMACY__TRIES_AGAIN) {
        os->sleep(os->user, UINT64_C(100000) << (*n_tries - 1));
        return true;
    }
    return false;
}

static int damacy__os_open(const damacy__os* os, int folder, const char* path, int flags,
                           uint64_t resolve)
{
    uint32_t n_tries = 0;
    int fd;

    do {
        fd = os->open(os->user, folder, path, flags | O_CLOEXEC, resolve);
    } while (fd < 0 && damacy__os_again(os, -fd, &n_tries));
    return fd;
}

static int damacy__os_stat(const damacy__os* os, int fd, struct stat* out)
{
    uint32_t n_tries = 0;
    int code;

    do {
        code = os->stat(os->user, fd, out);
    } while (code < 0 && damacy__os_again(os, -code, &n_tries));
    return code;
}

/* Reads size bytes, or up to the end; *n_read tells how many. 0 or -errno. */
static int damacy__os_read(const damacy__os* os, int fd, void* dst, size_t size, uint64_t offset,
                           size_t* n_read)
{
    uint32_t n_tries = 0;
    size_t done = 0;
    int code = 0;

    while (done < size) {
        const int64_t n = os->read(os->user, fd, (uint8_t*)dst + done, size - done, offset + done);
        if (n > 0) {
            assert((uint64_t)n <= size - done);
            done += (size_t)n;
            n_tries = 0;
        } else if (n == 0) {
            break;
        } else if (!damacy__os_again(os, (int)-n, &n_tries)) {
            code = (int)n;
            break;
        }
    }
    *n_read = done;
    return code;
}
