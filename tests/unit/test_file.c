/* Files beneath a folder: links, special files and the walk for kernels without openat2. */
#include "tests/test.h"
#include "store/file.h"
#include <sys/socket.h>
#include <sys/un.h>

static char base[256];
static damacy__os os;
static bool lacks_openat2;
static int root = -1;

static int without_openat2(void* user, int folder, const char* path, int flags, uint64_t resolve)
{
    return resolve ? -ENOSYS : damacy__os_call_open(user, folder, path, flags, resolve);
}

static int forbidden_openat2(void* user, int folder, const char* path, int flags, uint64_t resolve)
{
    return resolve ? -EPERM : damacy__os_call_open(user, folder, path, flags, resolve);
}

static const char* at(const char* name)
{
    static char paths[4][512];
    static int next;
    char* path = paths[next++ & 3];

    (void)snprintf(path, 512, "%s/%s", base, name);
    return path;
}

static void write_file(const char* name, const char* text)
{
    FILE* file = fopen(at(name), "wb");

    CHECK(file != NULL);
    CHECK(fwrite(text, 1, strlen(text), file) == strlen(text));
    CHECK(fclose(file) == 0);
}

static void setup(void)
{
    struct sockaddr_un address;
    int fd;

    damacy__os_init(&os);
    lacks_openat2 = false;
    (void)snprintf(base, sizeof base, "/tmp/damacy-file-XXXXXX");
    CHECK(mkdtemp(base) != NULL);
    CHECK(mkdir(at("root"), 0700) == 0 && mkdir(at("root/c"), 0700) == 0);
    CHECK(mkdir(at("root/c/0"), 0700) == 0);
    CHECK(mkdir(at("outside"), 0700) == 0);
    write_file("outside/secret", "secret");
    write_file("root/c/0/1", "chunk");
    write_file("root/plain", "plain");
    CHECK(symlink("c/0/1", at("root/inside")) == 0);
    CHECK(symlink("c", at("root/folder")) == 0);
    CHECK(symlink("../outside/secret", at("root/outside")) == 0);
    CHECK(symlink("../outside", at("root/outside_folder")) == 0);
    CHECK(symlink("/etc/hostname", at("root/absolute")) == 0);
    CHECK(symlink("/proc/self/environ", at("root/environ")) == 0);
    CHECK(symlink("/proc/self/root", at("root/magic")) == 0);
    CHECK(symlink("loop", at("root/loop")) == 0);
    CHECK(symlink("nowhere", at("root/dangling")) == 0);
    CHECK(symlink("no/where", at("root/dangling_folder")) == 0);
    CHECK(mkfifo(at("root/fifo"), 0600) == 0);
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", at("root/socket"));
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr*)(void*)&address, sizeof address) == 0);
    CHECK(close(fd) == 0);
    root = open(at("root"), O_PATH | O_DIRECTORY | O_CLOEXEC);
    CHECK(root >= 0);
}

static void teardown(void)
{
    char command[300];

    CHECK(close(root) == 0);
    (void)snprintf(command, sizeof command, "rm -rf '%s'", base);
    CHECK(system(command) == 0);
}

/* Opens and checks as the store does: 0 or the error. */
static int try_open(const char* key, bool follow)
{
    damacy__file_id id;
    bool is_there = true;
    mode_t mode = 0;
    int code;
    const int fd = damacy__file_open(&os, root, key, follow, &lacks_openat2);

    if (fd == -ENOENT) {
        code = damacy__file_missing(&os, root, key, follow, &lacks_openat2, &is_there);
        CHECK(is_there);
        return -code;
    }
    if (fd < 0) {
        return -fd;
    }
    code = damacy__file_check(&os, fd, &id, &mode);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(close(fd) == 0);
    if (code == 0) {
        CHECK(id.size == 5 || id.size == 6 || follow);
    }
    return -code;
}

static void check_common(void)
{
    CHECK_EQ(try_open("plain", false), 0);
    CHECK_EQ(try_open("c/0/1", false), 0);
    CHECK_EQ(try_open("missing", false), ENOENT);
    CHECK_EQ(try_open("c/0/2", false), ENOENT);
    CHECK_EQ(try_open("c/9/9/9", false), ENOENT);
    CHECK_EQ(try_open("plain/x", false), ENOTDIR);
    CHECK_EQ(try_open("c/0/1/x/y", false), ENOTDIR);
    CHECK_EQ(try_open("c", false), EBADF);
    CHECK_EQ(try_open("fifo", false), EBADF);
    CHECK_EQ(try_open("socket", false), ENXIO);
    CHECK_EQ(try_open("loop", false), ELOOP);
    CHECK(try_open("outside", false) == EXDEV || lacks_openat2);
    CHECK(try_open("outside_folder/secret", false) == EXDEV || lacks_openat2);
    CHECK(try_open("absolute", false) == EXDEV || lacks_openat2);
    CHECK(try_open("environ", false) == EXDEV || lacks_openat2);
    CHECK(try_open("magic/etc/hostname", false) == EXDEV || lacks_openat2);
}

TEST(file_links_may_stay_inside_but_not_leave)
{
    setup();
    if (try_open("plain", false) == 0 && lacks_openat2) {
        teardown();
        SKIP("this kernel or sandbox has no openat2");
    }
    check_common();
    CHECK_EQ(try_open("inside", false), 0);
    CHECK_EQ(try_open("folder/0/1", false), 0);
    CHECK_EQ(try_open("folder/0/2", false), ENOENT);
    CHECK(!lacks_openat2);
    teardown();
}

/* Lost data behind a link must not look like a chunk that was never written. */
TEST(file_behind_a_dangling_link_is_not_missing)
{
    setup();
    if (try_open("plain", false) == 0 && lacks_openat2) {
        teardown();
        SKIP("this kernel or sandbox has no openat2");
    }
    for (int follow = 0; follow < 2; follow++) {
        CHECK_EQ(try_open("dangling", follow), ENOLINK);
        CHECK_EQ(try_open("dangling/0", follow), ENOLINK);
        CHECK_EQ(try_open("dangling_folder/0/1", follow), ENOLINK);
        CHECK_EQ(try_open("missing", follow), ENOENT);
        CHECK_EQ(try_open("folder/7/7", follow), ENOENT);
    }
    os.open = without_openat2; /* following, on an old kernel */
    CHECK_EQ(try_open("dangling_folder/0/1", true), ENOLINK);
    CHECK_EQ(try_open("folder/7/7", true), ENOENT);
    CHECK_EQ(try_open("folder/0/1", true), 0);
    teardown();
}

static void check_walk(void)
{
    static const char* const links[] = {
        "inside",   "folder/0/1", "outside",  "outside_folder/secret",
        "absolute", "environ",    "dangling", "magic/etc/hostname",
        "loop",     "dangling/0", "folder/7"};

    check_common();
    CHECK(lacks_openat2);
    for (size_t i = 0; i < DAMACY__COUNT(links); i++) {
        CHECK_EQ(try_open(links[i], false), ELOOP);
    }
}

TEST(file_without_openat2_no_link_is_followed)
{
    char key[300];

    setup();
    os.open = without_openat2;
    check_walk();
    memset(key, 'k', sizeof key);
    key[299] = '\0';
    CHECK_EQ(try_open(key, false), ENAMETOOLONG);
    teardown();
    setup();
    os.open = forbidden_openat2;
    check_walk();
    teardown();
}

TEST(file_links_lead_out_when_that_is_allowed)
{
    setup();
    CHECK_EQ(try_open("outside", true), 0);
    CHECK_EQ(try_open("outside_folder/secret", true), 0);
    CHECK_EQ(try_open("inside", true), 0);
    CHECK_EQ(try_open("loop", true), ELOOP);
    CHECK_EQ(try_open("missing", true), ENOENT);
    CHECK_EQ(try_open("fifo", true), EBADF);
    teardown();
}

TEST(file_identity_tells_versions_apart)
{
    damacy__file_id a;
    damacy__file_id b;
    mode_t mode;
    int fd;

    setup();
    fd = damacy__file_open(&os, root, "plain", false, &lacks_openat2);
    CHECK(fd >= 0 && damacy__file_check(&os, fd, &a, &mode) == 0);
    CHECK(damacy__file_check(&os, fd, &b, &mode) == 0 && damacy__file_id_equal(&a, &b));
    CHECK(close(fd) == 0);
    write_file("root/new", "plain");
    CHECK(rename(at("root/new"), at("root/plain")) == 0);
    fd = damacy__file_open(&os, root, "plain", false, &lacks_openat2);
    CHECK(fd >= 0 && damacy__file_check(&os, fd, &b, &mode) == 0);
    CHECK(!damacy__file_id_equal(&a, &b));
    CHECK(close(fd) == 0);
    teardown();
}

TEST(file_no_descriptor_is_left_behind)
{
    int before;
    int after;

    setup();
    before = dup(root);
    CHECK(close(before) == 0);
    for (int way = 0; way < 2; way++) {
        os.open = way ? without_openat2 : damacy__os_call_open;
        lacks_openat2 = false;
        check_common();
        (void)try_open("dangling", true);
        (void)try_open("folder/7/7", true);
    }
    after = dup(root);
    CHECK(close(after) == 0);
    CHECK_EQ(after, before); /* the lowest free number */
    teardown();
}

/* A new file of a megabyte, written to storage; a descriptor, and the file has no name any more. */
static int big_file(const char* folder)
{
    static char bytes[1 << 20];
    char path[64];
    int fd;

    memset(bytes, 7, sizeof bytes);
    (void)snprintf(path, sizeof path, "%s/damacy-file-XXXXXX", folder);
    fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(unlink(path) == 0);
    CHECK(write(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    CHECK(fsync(fd) == 0);
    return fd;
}

TEST(a_file_is_in_memory_after_it_was_written_and_not_after_it_was_dropped)
{
    const int fd = big_file("/tmp");
    char byte;

    damacy__os_init(&os);
    CHECK(os.cached(os.user, fd, 1 << 20));
    CHECK(os.cached(os.user, fd, 1));
    CHECK(!os.cached(os.user, fd, 0));
    CHECK(!os.cached(os.user, -1, 1 << 20));
    CHECK(!os.cached(os.user, fd, 2 << 20)); /* it ends before */
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0 || damacy__os_probe(fd, 1 << 19) != 0) {
        CHECK(close(fd) == 0);
        SKIP("the file system of /tmp keeps what it is told to drop");
    }
    CHECK(!os.cached(os.user, fd, 1 << 20));
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) == 0);
    CHECK(pread(fd, &byte, 1, 0) == 1); /* a part of it */
    CHECK(!os.cached(os.user, fd, 1 << 20));
    CHECK(close(fd) == 0);
}

TEST(a_file_of_a_file_system_in_memory_is_in_memory)
{
    int fd;

    if (access("/dev/shm", W_OK) != 0) {
        SKIP("no /dev/shm");
    }
    damacy__os_init(&os);
    fd = big_file("/dev/shm");
    CHECK(os.cached(os.user, fd, 1 << 20));
    CHECK(close(fd) == 0);
}

TEST_MAIN
