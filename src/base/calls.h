/* Calls to the operating system that glibc checks as it compiles with _FORTIFY_SOURCE, which it can
 * only where it optimises: cold modules call these instead. As the calls themselves, errno
 * included. */
#pragma once
#include "base/base.h"

/* mode counts where flags create a file. */
static int damacy__call_open(int folder, const char* path, int flags, mode_t mode)
{
    return openat(folder, path, flags, mode);
}

static ssize_t damacy__call_read(int fd, void* dst, size_t size)
{
    return read(fd, dst, size);
}

static ssize_t damacy__call_read_at(int fd, void* dst, size_t size, uint64_t offset)
{
    return pread(fd, dst, size, (off_t)offset);
}

/* The absolute path of the working directory; false: it has none, or not in size bytes. */
static bool damacy__call_folder(char* path, size_t size)
{
    return getcwd(path, size) != NULL;
}
