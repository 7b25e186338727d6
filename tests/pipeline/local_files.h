/* Arrays of an in-memory store written to a new folder, for tests of local files. After damacy.h
 * and tests/test.h. */
#ifndef DAMACY_TEST_LOCAL_FILES_H
#define DAMACY_TEST_LOCAL_FILES_H
#include "tests/pipeline/memory_store.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[200]; /* of this test; removed by folder_end */

__attribute__((unused)) static void folder_begin(void)
{
    (void)snprintf(folder, sizeof folder, "%s/damacy-files-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(folder) != NULL);
}

__attribute__((unused)) static void folder_end(void)
{
    char command[300];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK_EQ(system(command), 0);
}

/* "<folder>/<name>", good until the eighth call after this one. */
__attribute__((unused)) static char* in_folder(const char* name)
{
    static char paths[8][512];
    static int next;
    char* path = paths[next++ & 7];

    (void)snprintf(path, 512, "%s/%s", folder, name);
    return path;
}

__attribute__((unused)) static void put_file(const char* name, const void* bytes, size_t size)
{
    char* path = in_folder(name);
    int fd;

    for (char* p = path + strlen(folder) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        (void)mkdir(path, 0777);
        *p = '/';
    }
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, bytes, size), size);
    (void)close(fd);
}

/* Everything that a store holds. */
__attribute__((unused)) static void put_files(const mem_store* m)
{
    for (int i = 0; i < m->n; i++) {
        put_file(m->objects[i].key, m->objects[i].bytes, m->objects[i].size);
    }
}

/* The array, as files. */
__attribute__((unused)) static void put_array_files(const mem_array* a)
{
    mem_store* m = mem_new();

    mem_put_array(m, a);
    put_files(m);
    mem_free(m);
}

/* A configuration for local files on the CPU. */
__attribute__((unused)) static damacy_config files_config(uint32_t per_batch,
                                                          damacy_on_error on_error)
{
    damacy_config c;

    memset(&c, 0, sizeof c);
    c.device = DAMACY_CPU;
    c.samples_per_batch = per_batch;
    c.on_error = on_error;
    c.io_threads = 4;
    c.decode_threads = 2;
    c.max_host_bytes = UINT64_C(64) << 20;
    return c;
}

/* One crop as f32, checked; the status, or -1 for wrong voxels. */
__attribute__((unused)) static damacy_status
read_file(const mem_array* a, const char* uri, int64_t at, int64_t extent, damacy_error* err)
{
    damacy_config c = files_config(1, DAMACY_ON_ERROR_STOP);
    damacy_sample s = mem_sample(a, at, at, at, extent);
    const size_t n = (size_t)(extent * extent * extent);
    float* voxels = (float*)malloc(n * sizeof voxels[0]);
    damacy_status status;

    s.uri = uri;
    status = damacy_read(&c, &s, voxels, n * sizeof voxels[0], err);
    if (status == DAMACY_OK && !mem_equal_f32(a, &s, voxels, 0.0f)) {
        status = (damacy_status)-1;
    }
    free(voxels);
    return status;
}

/* Descriptors that this process has open. */
__attribute__((unused)) static int n_descriptors(void)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

#endif
