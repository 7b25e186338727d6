/* The cache of compiled kernels: what is stored comes back, and nothing else ever does. */
#include "gpu/cache.h"
#include "tests/test.h"
#include <sys/wait.h>

static damacy__alloc heap;
static char folder[128];

/* A fresh private folder, with `folder`/cache as the cache. */
static void open_cache(damacy__cache* cache)
{
    char path[160];

    (void)snprintf(folder, sizeof folder, "%s/damacy-cache-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(path, sizeof path, "%s/cache", folder);
    damacy__cache_open(cache, path);
    memset(&heap, 0, sizeof heap);
}

static void close_cache(damacy__cache* cache)
{
    char command[200];

    damacy__cache_close(cache);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK_EQ(system(command), 0);
    CHECK_EQ(heap.live_blocks, 0);
    CHECK_EQ(heap.live_bytes, 0);
}

static const damacy__cache_key key_a = {{1, 2}};
static const damacy__cache_key key_b = {{1, 3}};
static const uint8_t bytes_a[] = "some machine code";

static void path_of(const damacy__cache_key* key, char path[200])
{
    char name[40];

    damacy__cache_name(key, name);
    (void)snprintf(path, 200, "%s/cache/%s", folder, name);
}

/* 1: found and right, 0: not found, -1: wrong bytes. */
static int look(const damacy__cache* cache, const damacy__cache_key* key)
{
    uint8_t* bytes = NULL;
    uint64_t size = 0;
    int verdict = 0;

    if (damacy__cache_load(cache, &heap, key, &bytes, &size)) {
        verdict = size == sizeof bytes_a && memcmp(bytes, bytes_a, sizeof bytes_a) == 0 &&
                          bytes[size] == 0
                      ? 1
                      : -1;
        damacy__free(&heap, bytes, size + 1);
    }
    return verdict;
}

static uint32_t count_files(void)
{
    char path[200];
    struct dirent* entry;
    uint32_t n = 0;
    DIR* dir;

    (void)snprintf(path, sizeof path, "%s/cache", folder);
    dir = opendir(path);
    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        n += entry->d_name[0] != '.';
    }
    closedir(dir);
    return n;
}

TEST(what_is_stored_comes_back_under_its_own_key_only)
{
    damacy__cache cache;

    open_cache(&cache);
    CHECK(cache.folder >= 0);
    CHECK_EQ(look(&cache, &key_a), 0);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    CHECK_EQ(look(&cache, &key_a), 1);
    CHECK_EQ(look(&cache, &key_b), 0);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    CHECK_EQ(count_files(), 1);
    damacy__cache_remove(&cache, &key_a);
    CHECK_EQ(look(&cache, &key_a), 0);
    close_cache(&cache);
}

TEST(folder_and_files_are_private)
{
    damacy__cache cache;
    struct stat info;
    char path[200];

    open_cache(&cache);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    CHECK(fstat(cache.folder, &info) == 0);
    CHECK_EQ(info.st_mode & 077, 0);
    path_of(&key_a, path);
    CHECK(stat(path, &info) == 0);
    CHECK_EQ(info.st_mode & 0177, 0);
    close_cache(&cache);
}

TEST(every_flipped_bit_and_every_truncation_is_noticed_and_removed)
{
    damacy__cache cache;
    char path[200];
    uint8_t good[DAMACY__CACHE_HEADER + sizeof bytes_a];
    int fd;

    open_cache(&cache);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    path_of(&key_a, path);
    fd = open(path, O_RDONLY);
    CHECK_EQ(read(fd, good, sizeof good), sizeof good);
    close(fd);
    for (uint32_t bit = 0; bit < 8 * sizeof good; bit++) {
        uint8_t bad[sizeof good];
        memcpy(bad, good, sizeof good);
        bad[bit / 8] = (uint8_t)(bad[bit / 8] ^ 1 << bit % 8);
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        CHECK_EQ(write(fd, bad, sizeof bad), sizeof bad);
        close(fd);
        CHECK_EQ(look(&cache, &key_a), 0);
        CHECK_EQ(count_files(), 0);
    }
    for (uint32_t size = 0; size < sizeof good; size++) {
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        CHECK_EQ(write(fd, good, size), size);
        close(fd);
        CHECK_EQ(look(&cache, &key_a), 0);
    }
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600); /* a byte too many */
    CHECK(write(fd, good, sizeof good) == sizeof good && write(fd, good, 1) == 1);
    close(fd);
    CHECK_EQ(look(&cache, &key_a), 0);
    close_cache(&cache);
}

TEST(entry_stored_under_another_name_is_refused)
{
    damacy__cache cache;
    char from[200];
    char to[200];

    open_cache(&cache);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    path_of(&key_a, from);
    path_of(&key_b, to);
    CHECK(rename(from, to) == 0);
    CHECK_EQ(look(&cache, &key_b), 0);
    close_cache(&cache);
}

TEST(symbolic_link_is_not_followed)
{
    damacy__cache cache;
    char from[200];
    char to[200];

    open_cache(&cache);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    path_of(&key_a, from);
    (void)snprintf(to, sizeof to, "%s/elsewhere", folder);
    CHECK(rename(from, to) == 0);
    CHECK(symlink(to, from) == 0);
    CHECK_EQ(look(&cache, &key_a), 0);
    /* a store replaces the link and leaves its target alone */
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, 5));
    CHECK_EQ(access(to, F_OK), 0);
    close_cache(&cache);
}

TEST(file_that_others_may_write_is_not_used)
{
    damacy__cache cache;
    char path[200];

    open_cache(&cache);
    path_of(&key_a, path);
    for (uint32_t bits = 0; bits < 2; bits++) {
        CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
        CHECK(chmod(path, bits ? 0602 : 0620) == 0);
        CHECK_EQ(look(&cache, &key_a), 0);
        CHECK(chmod(path, 0600) == 0);
        CHECK_EQ(look(&cache, &key_a), 1);
    }
    close_cache(&cache);
}

TEST(file_of_another_owner_is_not_used)
{
    damacy__cache cache;
    char path[200];

    if (geteuid() != 0) {
        SKIP("only root can give a file away");
    }
    open_cache(&cache);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    path_of(&key_a, path);
    CHECK(chown(path, 12345, 12345) == 0);
    CHECK_EQ(look(&cache, &key_a), 0);
    close_cache(&cache);
}

TEST(fifo_directory_and_huge_file_are_not_used_and_do_not_block)
{
    damacy__cache cache;
    char path[200];
    int fd;

    open_cache(&cache);
    path_of(&key_a, path);
    CHECK(mkfifo(path, 0600) == 0);
    CHECK_EQ(look(&cache, &key_a), 0);
    CHECK(unlink(path) == 0);
    CHECK(mkdir(path, 0700) == 0);
    CHECK_EQ(look(&cache, &key_a), 0);
    CHECK(!damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    CHECK(rmdir(path) == 0);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK(ftruncate(fd, (off_t)DAMACY__CACHE_MAX_SIZE + 1000) == 0);
    close(fd);
    CHECK_EQ(look(&cache, &key_a), 0);
    close_cache(&cache);
}

TEST(folder_that_others_may_write_is_not_used)
{
    damacy__cache cache;
    char path[200];

    open_cache(&cache);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    damacy__cache_close(&cache);
    (void)snprintf(path, sizeof path, "%s/cache", folder);
    CHECK(chmod(path, 0777) == 0);
    damacy__cache_open(&cache, path);
    CHECK_EQ(cache.folder, -1);
    CHECK_HAS(cache.note, "others may write");
    CHECK_EQ(look(&cache, &key_a), 0);
    CHECK(!damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    damacy__cache_remove(&cache, &key_a);
    close_cache(&cache);
}

TEST(folder_that_is_a_link_a_file_or_cannot_be_made_is_not_used)
{
    damacy__cache cache;
    char path[200];
    char link[200];
    int fd;

    open_cache(&cache);
    damacy__cache_close(&cache);
    (void)snprintf(path, sizeof path, "%s/cache", folder);
    (void)snprintf(link, sizeof link, "%s/link", folder);
    CHECK(symlink(path, link) == 0);
    damacy__cache_open(&cache, link);
    CHECK_EQ(cache.folder, -1);
    (void)snprintf(link, sizeof link, "%s/file", folder);
    fd = open(link, O_WRONLY | O_CREAT, 0600);
    close(fd);
    damacy__cache_open(&cache, link);
    CHECK_EQ(cache.folder, -1);
    CHECK_HAS(cache.note, "off");
    (void)snprintf(link, sizeof link, "%s/not/there/yet", folder);
    damacy__cache_open(&cache, link);
    CHECK_EQ(cache.folder, -1);
    damacy__cache_open(&cache, "/proc/damacy");
    CHECK_EQ(cache.folder, -1);
    damacy__cache_open(&cache, "");
    CHECK_EQ(cache.folder, -1);
    close_cache(&cache);
}

TEST(folder_is_found_through_the_environment)
{
    damacy__cache cache;
    char path[200];
    struct stat info;

    open_cache(&cache);
    damacy__cache_close(&cache);
    setenv("XDG_CACHE_HOME", folder, 1);
    damacy__cache_open(&cache, NULL);
    (void)snprintf(path, sizeof path, "%s/damacy", folder);
    CHECK(cache.folder >= 0);
    CHECK(stat(path, &info) == 0);
    damacy__cache_close(&cache);
    setenv("XDG_CACHE_HOME", "relative", 1); /* must be absolute to count */
    setenv("HOME", folder, 1);
    damacy__cache_open(&cache, NULL);
    (void)snprintf(path, sizeof path, "%s/.cache/damacy", folder);
    CHECK(cache.folder >= 0);
    CHECK(stat(path, &info) == 0);
    damacy__cache_close(&cache);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    damacy__cache_open(&cache, NULL);
    CHECK_EQ(cache.folder, -1);
    CHECK_HAS(cache.note, "neither");
    close_cache(&cache);
}

TEST(full_disk_leaves_nothing_behind)
{
    damacy__cache cache;
    struct rlimit limit;
    struct rlimit before;
    int status = 0;
    pid_t child;

    open_cache(&cache);
    getrlimit(RLIMIT_FSIZE, &before);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        limit = before;
        limit.rlim_cur = 20; /* less than the header: write fails with EFBIG */
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        _exit(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a) ? 1 : 0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(count_files(), 0);
    close_cache(&cache);
}

TEST(read_only_folder_still_serves)
{
    damacy__cache cache;
    char path[200];

    if (geteuid() == 0) {
        SKIP("root may write anywhere");
    }
    open_cache(&cache);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    (void)snprintf(path, sizeof path, "%s/cache", folder);
    CHECK(chmod(path, 0500) == 0);
    CHECK_EQ(look(&cache, &key_a), 1);
    CHECK(!damacy__cache_store(&cache, &key_b, bytes_a, sizeof bytes_a));
    CHECK(chmod(path, 0700) == 0);
    close_cache(&cache);
}

static void* store_often(void* context)
{
    const damacy__cache* cache = (const damacy__cache*)context;

    for (int i = 0; i < 200; i++) {
        (void)damacy__cache_store(cache, &key_a, bytes_a, sizeof bytes_a);
    }
    return NULL;
}

TEST(readers_see_a_whole_entry_or_none_while_others_write)
{
    damacy__cache cache;
    pthread_t threads[3];
    int wrong = 0;

    open_cache(&cache);
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&threads[i], NULL, store_often, &cache) == 0);
    }
    for (int i = 0; i < 500; i++) {
        wrong += look(&cache, &key_a) < 0;
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(look(&cache, &key_a), 1);
    CHECK_EQ(count_files(), 1);
    close_cache(&cache);
}

TEST(no_memory_is_a_miss)
{
    damacy__cache cache;

    open_cache(&cache);
    CHECK(damacy__cache_store(&cache, &key_a, bytes_a, sizeof bytes_a));
    heap.budget = 4;
    CHECK_EQ(look(&cache, &key_a), 0);
    heap.budget = 0;
    CHECK_EQ(look(&cache, &key_a), 1);
    close_cache(&cache);
}

TEST_MAIN
