/* A file that appears when it is whole: bytes go to FILE.<process>.part beside it, which takes the
 * name of FILE at the end, or goes away if anything fails or the program is stopped by a signal.
 *
 * The surprising rule: what is no regular file (a pipe, /dev/stdout) is written as it stands. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct output {
    FILE* file;
    char path[PATH_MAX];      /* where it goes, links followed */
    char part[PATH_MAX + 32]; /* "": it is written as it stands */
} output;

/* For the signal handler, which may look at nothing else: the file to remove, or "". */
static char output_part[PATH_MAX + 32];

static void output_interrupted(int number)
{
    if (output_part[0]) {
        (void)unlink(output_part);
    }
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* Opens the file, NULL: standard output. False: errno says why. */
static int output_open(output* o, const char* path)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct stat there;
    int fd;
    int is_there;

    o->file = stdout;
    o->part[0] = '\0';
    if (!path) {
        return 1;
    }
    is_there = stat(path, &there) == 0;
    if (is_there && !S_ISREG(there.st_mode)) {
        return (o->file = fopen(path, "wb")) != NULL;
    }
    if (is_there ? !realpath(path, o->path) || access(o->path, W_OK) != 0
                 : snprintf(o->path, sizeof o->path, "%s", path) >= (int)sizeof o->path) {
        return 0;
    }
    (void)snprintf(o->part, sizeof o->part, "%s.%ld.part", o->path, (long)getpid());
    fd = open(o->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return 0;
    }
    memcpy(output_part, o->part, sizeof output_part);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        if (signal(signals[i], output_interrupted) == SIG_IGN) {
            (void)signal(signals[i], SIG_IGN);
        }
    }
    if (is_there) {
        (void)fchmod(fd, there.st_mode & 0777);
    }
    o->file = fdopen(fd, "wb");
    if (!o->file) {
        (void)close(fd);
        (void)unlink(o->part);
    }
    return o->file != NULL;
}

/* Gives the file its name if all went well so far, else removes it. False: errno says why it does
 * not keep what was written. */
static int output_close(output* o, int is_good)
{
    int error = 0;

    if (fflush(o->file) != 0) {
        error = errno;
    }
    if (o->file != stdout && fclose(o->file) != 0 && error == 0) {
        error = errno;
    }
    if (o->part[0]) {
        if (is_good && error == 0 && rename(o->part, o->path) != 0) {
            error = errno;
        }
        if (!is_good || error != 0) {
            (void)unlink(o->part);
        }
        output_part[0] = '\0';
    }
    errno = error;
    return error == 0;
}
