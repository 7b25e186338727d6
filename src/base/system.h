/* Every system header of the implementation, in one place.
 *
 * damacy.h defines _GNU_SOURCE before its first include when DAMACY_IMPLEMENTATION is set. A system
 * header that was included earlier without it hides pread, openat2's flags and pthread names, so
 * that is an error here instead of a puzzle later. */
#pragma once

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include <assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if defined(__GLIBC__) && !defined(__USE_GNU)
#error "include damacy.h first in this file, or compile with -D_GNU_SOURCE"
#endif
