/* Compiled kernels on disk: key -> machine code. Every failure is harmless: the kernel is compiled
 * again.
 *
 * What is loaded runs on the GPU with the rights of the process, so nothing is taken from a folder
 * or file that somebody else owns or may write, nor through a symbolic link. The checksum is
 * against accidents, not attackers. */
#pragma once
#include "base/alloc.h"
#include "base/calls.h"

#define DAMACY__CACHE_MAX_SIZE (UINT64_C(64) << 20) /* bytes of one entry */

/* Names one entry: 128 bits over everything that the machine code depends on. */
typedef struct damacy__cache_key {
    uint64_t word[2];
} damacy__cache_key;

/* The folder. Constant once open; any thread may load and store. */
typedef struct damacy__cache {
    int folder;     /* -1: no cache */
    char note[256]; /* the folder, or why there is none */
} damacy__cache;

/* Layout of a file: this header, little-endian, then the payload. */
enum { DAMACY__CACHE_HEADER = 48 };
#define DAMACY__CACHE_MAGIC UINT64_C(0x31434d4144005944) /* the last byte tells the version */

static void damacy__cache_open(damacy__cache* cache, const char* path);
static void damacy__cache_close(damacy__cache* cache);
static bool damacy__cache_load(const damacy__cache* cache, damacy__alloc* alloc,
                               const damacy__cache_key* key, uint8_t** bytes, uint64_t* size);
static bool damacy__cache_store(const damacy__cache* cache, const damacy__cache_key* key,
                                const uint8_t* bytes, uint64_t size);
static void damacy__cache_remove(const damacy__cache* cache, const damacy__cache_key* key);

/* A path in the user's cache folder; false when the environment names none. */
static bool damacy__cache_default_path(char* path, size_t size)
{
    const char* base = secure_getenv("XDG_CACHE_HOME");
    const char* home = secure_getenv("HOME");
    int len;

    if (base && base[0] == '/') {
        (void)mkdir(base, 0700);
        len = snprintf(path, size, "%s/damacy", base);
    } else if (home && home[0] == '/') {
        len = snprintf(path, size, "%s/.cache", home);
        if (len < 0 || (size_t)len >= size) {
            return false;
        }
        (void)mkdir(path, 0700);
        len = snprintf(path, size, "%s/.cache/damacy", home);
    } else {
        return false;
    }
    return len > 0 && (size_t)len < size;
}

/* Ours, and nobody else may write. */
static bool damacy__cache_is_private(const struct stat* info)
{
    return info->st_uid == geteuid() && (info->st_mode & 022) == 0;
}

/* Opens the folder, making its last part. path NULL: the user's; "": no cache. Never fails: without
 * a usable folder the cache is empty and stays so, and the note says why. */
static void damacy__cache_open(damacy__cache* cache, const char* path)
{
    char chosen[192];
    struct stat info;

    memset(cache, 0, sizeof *cache);
    cache->folder = -1;
    if (path && path[0] == '\0') {
        (void)snprintf(cache->note, sizeof cache->note, "kernel cache: off");
        return;
    }
    if (!path) {
        if (!damacy__cache_default_path(chosen, sizeof chosen)) {
            (void)snprintf(cache->note, sizeof cache->note,
                           "kernel cache: off, neither XDG_CACHE_HOME nor HOME names a folder");
            return;
        }
        path = chosen;
    }
    (void)mkdir(path, 0700);
    cache->folder =
        damacy__call_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (cache->folder < 0) {
        (void)snprintf(cache->note, sizeof cache->note, "kernel cache: off, %.150s: %s", path,
                       strerror(errno));
        return;
    }
    if (fstat(cache->folder, &info) != 0 || !damacy__cache_is_private(&info)) {
        (void)snprintf(cache->note, sizeof cache->note,
                       "kernel cache: off, %.150s belongs to somebody else or others may write it",
                       path);
        damacy__cache_close(cache);
        return;
    }
    (void)snprintf(cache->note, sizeof cache->note, "kernel cache: %.200s", path);
}

static void damacy__cache_close(damacy__cache* cache)
{
    if (cache->folder >= 0) {
        (void)close(cache->folder);
    }
    cache->folder = -1;
}

static void damacy__cache_name(const damacy__cache_key* key, char name[40])
{
    (void)snprintf(name, 40, "%016" PRIx64 "%016" PRIx64 ".bin", key->word[0], key->word[1]);
}

static bool damacy__cache_read_all(int fd, uint8_t* dst, uint64_t size)
{
    while (size > 0) {
        const ssize_t n = damacy__call_read(fd, dst, (size_t)DAMACY__MIN(size, UINT64_C(1) << 20));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        dst += n;
        size -= (uint64_t)n;
    }
    return true;
}

static bool damacy__cache_write_all(int fd, const uint8_t* src, uint64_t size)
{
    while (size > 0) {
        const ssize_t n = write(fd, src, (size_t)DAMACY__MIN(size, UINT64_C(1) << 20));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        src += n;
        size -= (uint64_t)n;
    }
    return true;
}

static void damacy__cache_header(const damacy__cache_key* key, const uint8_t* bytes, uint64_t size,
                                 uint8_t header[DAMACY__CACHE_HEADER])
{
    damacy__store_u64le(header, DAMACY__CACHE_MAGIC);
    damacy__store_u64le(header + 8, key->word[0]);
    damacy__store_u64le(header + 16, key->word[1]);
    damacy__store_u64le(header + 24, size);
    damacy__store_u64le(header + 32, damacy__hash(bytes, (size_t)size, 0));
    damacy__store_u64le(header + 40, damacy__hash(header, 40, 0));
}

/* Opens an entry for reading; -1 unless it is a private, regular file of a possible size. */
static int damacy__cache_open_entry(const damacy__cache* cache, const char* name, uint64_t* payload)
{
    const int fd =
        damacy__call_open(cache->folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    struct stat info;

    if (fd < 0) {
        return -1;
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || !damacy__cache_is_private(&info) ||
        info.st_size <= DAMACY__CACHE_HEADER ||
        (uint64_t)info.st_size > DAMACY__CACHE_HEADER + DAMACY__CACHE_MAX_SIZE) {
        (void)close(fd);
        return -1;
    }
    *payload = (uint64_t)info.st_size - DAMACY__CACHE_HEADER;
    return fd;
}

/* Gives the payload with a zero byte after it; free with damacy__free(alloc, *bytes, *size + 1).
 * False: there is no entry, or it is damaged; a damaged one is removed. */
static bool damacy__cache_load(const damacy__cache* cache, damacy__alloc* alloc,
                               const damacy__cache_key* key, uint8_t** bytes, uint64_t* size)
{
    uint8_t found[DAMACY__CACHE_HEADER];
    uint8_t wanted[DAMACY__CACHE_HEADER];
    uint64_t payload = 0;
    uint8_t* data;
    bool is_good;
    char name[40];
    int fd;

    damacy__cache_name(key, name);
    fd = cache->folder < 0 ? -1 : damacy__cache_open_entry(cache, name, &payload);
    if (fd < 0) {
        return false;
    }
    data = damacy__new(alloc, payload + 1, uint8_t);
    if (!data) {
        (void)close(fd);
        return false;
    }
    is_good = damacy__cache_read_all(fd, found, sizeof found) &&
              damacy__cache_read_all(fd, data, payload);
    (void)close(fd);
    if (is_good) {
        damacy__cache_header(key, data, payload, wanted);
        is_good = memcmp(found, wanted, sizeof found) == 0;
    }
    if (!is_good) {
        damacy__free(alloc, data, payload + 1);
        damacy__cache_remove(cache, key);
        return false;
    }
    *bytes = data;
    *size = payload;
    return true;
}

/* Writes an entry beside and renames it, so that readers see a whole one or none, whoever else
 * writes or dies meanwhile. False: not stored, nothing left behind. */
static bool damacy__cache_store(const damacy__cache* cache, const damacy__cache_key* key,
                                const uint8_t* bytes, uint64_t size)
{
    uint8_t header[DAMACY__CACHE_HEADER];
    char name[40];
    char draft[80];
    bool is_written;
    int fd;

    if (cache->folder < 0 || size == 0 || size > DAMACY__CACHE_MAX_SIZE) {
        return false;
    }
    damacy__cache_name(key, name);
    damacy__cache_header(key, bytes, size, header);
    (void)snprintf(draft, sizeof draft, "%.32s.%ld.%" PRIx64 ".tmp", name, (long)getpid(),
                   damacy__now_ns());
    fd = damacy__call_open(cache->folder, draft,
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return false;
    }
    is_written = damacy__cache_write_all(fd, header, sizeof header) &&
                 damacy__cache_write_all(fd, bytes, size);
    is_written = close(fd) == 0 && is_written;
    if (is_written && renameat(cache->folder, draft, cache->folder, name) == 0) {
        return true;
    }
    (void)unlinkat(cache->folder, draft, 0);
    return false;
}

static void damacy__cache_remove(const damacy__cache* cache, const damacy__cache_key* key)
{
    char name[40];

    if (cache->folder >= 0) {
        damacy__cache_name(key, name);
        (void)unlinkat(cache->folder, name, 0);
    }
}
