/* Local files through the whole library: levels of images, the reader of one box, the tool that
 * verifies, names and links, and what stands in place of a chunk. */
#define main damacy_tool_main
int damacy_tool_main(int argc, char** argv);
#include "tools/damacy.c"
#undef main
#include "tests/pipeline/semantics.h"
#include "tests/pipeline/local_files.h"
#include <sys/socket.h>
#include <sys/un.h>

TEST(levels_of_an_image_are_read_from_files)
{
    static const char group[] =
        "{\"zarr_format\":3,\"node_type\":\"group\",\"attributes\":{\"mine\":[1.50,null],\"ome\":{"
        "\"version\":\"0.5\","
        "\"multiscales\":[{\"axes\":[{\"name\":\"z\",\"type\":\"space\"},{\"name\":\"y\",\"type\":"
        "\"space\"},{\"name\":\"x\",\"type\":\"space\"}],\"datasets\":[{\"path\":\"s0\","
        "\"coordinateTransformations\":[{\"type\":\"scale\",\"scale\":[2,0.5,0.5]}]},{\"path\":"
        "\"low/s1\",\"coordinateTransformations\":[{\"type\":\"scale\",\"scale\":[4,1,1]}]}]}]}}}";
    mem_array arrays[2] = {mem_plain("i.zarr/s0"), mem_plain("i.zarr/low/s1")};
    damacy_config c = files_config(1, DAMACY_ON_ERROR_STOP);
    damacy_sample s = mem_sample(&arrays[0], 3, 4, 5, 16);
    static float voxels[16 * 16 * 16];
    damacy_array_info_t info;
    damacy_array* array = NULL;
    damacy_error err;

    folder_begin();
    put_file("i.zarr/zarr.json", group, sizeof group - 1);
    for (int i = 0; i < 2; i++) {
        arrays[i].seed = 1000u * (uint32_t)i;
        for (int k = 0; k < 3; k++) {
            arrays[i].shape[k] = 40 >> i;
        }
        put_array_files(&arrays[i]);
    }
    s.uri = in_folder("i.zarr");
    s.box[2].begin = 1;
    s.box[2].end = 17;
    s.box[1] = s.box[0] = s.box[2];
    for (uint32_t level = 0; level < 2; level++) {
        c.level = level;
        CHECK_EQ(damacy_read(&c, &s, voxels, sizeof voxels, &err), DAMACY_OK);
        CHECK(mem_equal_f32(&arrays[level], &s, voxels, 0.0f));
        CHECK_EQ(damacy_array_open(&c, s.uri, &array, &err), DAMACY_OK);
        damacy_array_info(array, &info);
        CHECK_EQ(info.n_levels, 2);
        CHECK_EQ(info.level, level);
        CHECK_EQ(info.shape[0], 40 >> level);
        CHECK_STR(info.levels[1].path, "low/s1");
        CHECK(info.levels[1].scale[0] == 4.0 && info.levels[0].scale[2] == 0.5);
        CHECK_STR(info.axis_names[1], "y");
        CHECK_HAS(info.group_attributes, "\"mine\":[1.50,null]"); /* kept as they are written */
        CHECK_STR(info.attributes, "{}");                         /* the array's own */
        damacy_array_close(array);
    }
    c.level = 2;
    CHECK_EQ(damacy_read(&c, &s, voxels, sizeof voxels, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "2 levels");
    folder_end();
}

TEST(a_group_that_is_no_image_names_what_lies_below_it)
{
    static const char group[] = "{\"zarr_format\":3,\"node_type\":\"group\"}";
    mem_array a = mem_plain("r.zarr/nuclei");
    damacy_config c = files_config(1, DAMACY_ON_ERROR_STOP);
    damacy_array* array = NULL;
    damacy_error err;
    char name[64];

    folder_begin();
    put_file("r.zarr/zarr.json", group, sizeof group - 1);
    CHECK_EQ(damacy_array_open(&c, in_folder("r.zarr"), &array, &err), DAMACY_NOTFOUND);
    CHECK_HAS(err.message, "no multiscales");
    CHECK(strstr(err.message, "below") == NULL);
    put_array_files(&a);
    put_file("r.zarr/membranes/.zgroup", "{}", 2);
    put_file("r.zarr/notes/readme.txt", "-", 1);        /* no node */
    put_file("r.zarr/\nforged line/zarr.json", "-", 1); /* no name that a message could hold */
    CHECK_EQ(damacy_array_open(&c, in_folder("r.zarr"), &array, &err), DAMACY_NOTFOUND);
    CHECK_HAS(err.message, "no multiscales; below it lie membranes, nuclei");
    CHECK(strstr(err.message, "more") == NULL && strstr(err.message, "forged") == NULL);
    for (int i = 20; i > 0; i--) {
        (void)snprintf(name, sizeof name, "r.zarr/a%02d/zarr.json", i);
        put_file(name, group, sizeof group - 1);
    }
    CHECK_EQ(damacy_array_open(&c, in_folder("r.zarr"), &array, &err), DAMACY_NOTFOUND);
    CHECK_HAS(err.message, "below it lie a01, a02, a03, a04, a05, a06 and 16 more");
    folder_end();
}

TEST(a_box_that_does_not_fit_its_destination_is_refused_untouched)
{
    mem_array a = mem_plain("v.zarr");
    damacy_config c = files_config(7, DAMACY_ON_ERROR_SKIP);
    damacy_sample s = mem_sample(&a, 1, 2, 3, 8);
    static float voxels[513];
    damacy_error err;

    folder_begin();
    put_array_files(&a);
    s.uri = in_folder("v.zarr");
    for (size_t size = 0; size <= sizeof voxels; size += size < 2040 ? 255 : 1) {
        memset(voxels, 0x5a, sizeof voxels);
        if (size == 2048) {
            CHECK_EQ(damacy_read(&c, &s, voxels, size, &err), DAMACY_OK);
            CHECK(mem_equal_f32(&a, &s, voxels, 0.0f));
        } else {
            CHECK_EQ(damacy_read(&c, &s, voxels, size, &err), DAMACY_INVAL);
            CHECK_HAS(err.message, "2048");
            for (size_t i = 0; i < sizeof voxels; i++) {
                CHECK_EQ(((const uint8_t*)voxels)[i], 0x5a);
            }
        }
        CHECK_EQ(((const uint8_t*)voxels)[2048], 0x5a);
    }
    CHECK_EQ(damacy_read(&c, NULL, voxels, 2048, &err), DAMACY_INVAL);
    CHECK_EQ(damacy_read(&c, &s, NULL, 2048, &err), DAMACY_INVAL);
    s.rank = 33;
    CHECK_EQ(damacy_read(&c, &s, voxels, 2048, &err), DAMACY_RANK);
    folder_end();
}

/* What the tool prints for these arguments, and its exit code. */
static int tool(const char* command, const char* uri, char* out, size_t size)
{
    char name[] = "damacy";
    char* path = in_folder("output");
    char* args[4];
    const int saved = dup(1);
    FILE* file;
    int code;

    args[0] = name;
    args[1] = (char*)(uintptr_t)command;
    args[2] = (char*)(uintptr_t)uri;
    args[3] = NULL;
    (void)fflush(stdout);
    CHECK(freopen(path, "w", stdout) != NULL);
    code = damacy_tool_main(3, args);
    (void)fflush(stdout);
    CHECK(dup2(saved, 1) == 1);
    (void)close(saved);
    file = fopen(path, "r");
    CHECK(file != NULL);
    out[fread(out, 1, size - 1, file)] = '\0';
    (void)fclose(file);
    return code;
}

TEST(the_tool_finds_a_flipped_byte_by_key_and_offset)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("s.zarr");
    char out[4096];
    char place[64];
    mem_object* o;

    folder_begin();
    a.shard[0] = a.shard[1] = a.shard[2] = 32;
    a.has_crc = 1;
    mem_put_array(m, &a);
    put_files(m);
    CHECK_EQ(tool("verify", in_folder("s.zarr"), out, sizeof out), 0);
    CHECK_HAS(out, "27 chunks, 0 not stored, 0 bad");
    o = mem_find(m, "s.zarr/c/0/0/0");
    o->bytes[2 * 8196 + 77] ^= 0x20; /* in the third chunk, which is [0,1,0] */
    put_files(m);
    CHECK_EQ(tool("verify", in_folder("s.zarr"), out, sizeof out), 1);
    CHECK_HAS(out, "27 chunks, 0 not stored, 1 bad");
    (void)snprintf(place, sizeof place, "c/0/0/0[0,1,0] at byte %d: decode error", 2 * 8196 + 8192);
    CHECK_HAS(out, place); /* the checksum's place in the shard */
    o->bytes[2 * 8196 + 77] ^= 0x20;
    o->bytes[o->size - 3] ^= 1; /* in the checksum of the index */
    put_files(m);
    CHECK_EQ(tool("verify", in_folder("s.zarr"), out, sizeof out), 1);
    CHECK_HAS(out, "c/0/0/0");
    CHECK_HAS(out, "19 chunks, 0 not stored, 1 bad");
    CHECK_EQ(tool("verify", in_folder("none.zarr"), out, sizeof out), 1);
    folder_end();
    mem_free(m);
}

TEST(links_may_not_lead_out_of_the_root_unless_that_is_allowed)
{
    mem_array a = mem_plain("v.zarr");
    damacy_config c = files_config(1, DAMACY_ON_ERROR_STOP);
    damacy_sample s = mem_sample(&a, 0, 0, 0, 16);
    static float voxels[16 * 16 * 16];
    damacy_error err;

    folder_begin();
    put_array_files(&a);
    s.uri = in_folder("v.zarr");
    CHECK_EQ(rename(in_folder("v.zarr/c/0/0/0"), in_folder("v.zarr/elsewhere")), 0);
    CHECK_EQ(symlink("../../../elsewhere", in_folder("v.zarr/c/0/0/0")), 0); /* inside */
    CHECK_EQ(damacy_read(&c, &s, voxels, sizeof voxels, &err), DAMACY_OK);
    CHECK_EQ(rename(in_folder("v.zarr/elsewhere"), in_folder("outside")), 0);
    CHECK_EQ(damacy_read(&c, &s, voxels, sizeof voxels, &err), DAMACY_IO); /* dangling */
    CHECK_EQ(unlink(in_folder("v.zarr/c/0/0/0")), 0);
    CHECK_EQ(symlink("../../../../outside", in_folder("v.zarr/c/0/0/0")), 0);
    CHECK_EQ(damacy_read(&c, &s, voxels, sizeof voxels, &err), DAMACY_IO);
    CHECK_HAS(err.message, "follow_outside_links");
    CHECK_STR(err.chunk, "c/0/0/0");
    c.follow_outside_links = 1;
    CHECK_EQ(damacy_read(&c, &s, voxels, sizeof voxels, &err), DAMACY_OK);
    CHECK(mem_equal_f32(&a, &s, voxels, 0.0f));
    CHECK_EQ(symlink("v.zarr", in_folder("alias")), 0); /* the root itself may be a link */
    c.follow_outside_links = 0;
    s.uri = in_folder("alias");
    s.box[0].begin += 16;
    s.box[0].end += 16;
    CHECK_EQ(damacy_read(&c, &s, voxels, sizeof voxels, &err), DAMACY_OK);
    folder_end();
}

TEST(a_uri_may_climb_and_what_metadata_names_may_not)
{
    static const char group[] =
        "{\"zarr_format\":3,\"node_type\":\"group\",\"attributes\":{\"ome\":{\"version\":\"0.5\","
        "\"multiscales\":[{\"axes\":[{\"name\":\"z\"},{\"name\":\"y\"},{\"name\":\"x\"}],"
        "\"datasets\":[{\"path\":\"%s\",\"coordinateTransformations\":[{\"type\":\"scale\","
        "\"scale\":[1,1,1]}]}]}]}}}";
    static const char* const paths[] = {"../v.zarr", "a/../../v.zarr", "..",
                                        "/v.zarr",   "./v.zarr",       "\\u002e\\u002e/v.zarr"};
    mem_array a = mem_plain("v.zarr");
    damacy_error err;
    char text[1024];

    folder_begin();
    put_array_files(&a);
    put_file("sub/file", "x", 1);
    CHECK_EQ(read_file(&a, in_folder("sub/../v.zarr"), 3, 8, &err), DAMACY_OK);
    CHECK_EQ(read_file(&a, in_folder("v.zarr///"), 3, 8, &err), DAMACY_OK);
    CHECK_EQ(read_file(&a, in_folder("absent/../v.zarr"), 3, 8, &err), DAMACY_NOTFOUND);
    CHECK_EQ(read_file(&a, in_folder("sub/file"), 3, 8, &err), DAMACY_NOTFOUND);
    CHECK_EQ(read_file(&a, in_folder("v.zarr/zarr.json"), 3, 8, &err), DAMACY_NOTFOUND);
    (void)snprintf(text, sizeof text, "file://%s/sub/%%2e%%2E/v%%2ezarr", folder);
    CHECK_EQ(read_file(&a, text, 3, 8, &err), DAMACY_OK);
    (void)snprintf(text, sizeof text, "file://elsewhere%s/v.zarr", folder);
    CHECK_EQ(read_file(&a, text, 3, 8, &err), DAMACY_INVAL);
    CHECK_EQ(read_file(&a, "s3://bucket/v.zarr", 3, 8, &err), DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "s3");
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        damacy_status status;
        char* at;
        (void)snprintf(text, sizeof text, "%s", group);
        at = strstr(text, "%s");
        CHECK(at != NULL);
        (void)snprintf(at, sizeof text - (size_t)(at - text), "%s%s", paths[i],
                       strstr(group, "%s") + 2);
        put_file("g.zarr/zarr.json", text, strlen(text));
        status = read_file(&a, in_folder("g.zarr"), 3, 8, &err);
        CHECK(status == DAMACY_DECODE || status == DAMACY_INVAL || status == DAMACY_UNSUPPORTED);
        CHECK_HAS(err.message, "path");
    }
    folder_end();
}

/* In place of a chunk; nothing of this is a missing chunk, and nothing may block. */
TEST(what_is_no_regular_file_is_an_error_never_fill_values)
{
    static const char* const kinds[] = {"fifo", "directory", "socket", "device", "circle", "file"};
    mem_array a = mem_plain("v.zarr");
    damacy_error err;

    for (int i = 0; i < 6; i++) {
        char* path;
        struct sockaddr_un address;
        int fd = -1;
        folder_begin();
        put_array_files(&a);
        path = in_folder("v.zarr/c/0/0/0");
        CHECK_EQ(unlink(path), 0);
        CHECK_EQ(read_file(&a, in_folder("v.zarr"), 16, 8, &err), DAMACY_OK);
        if (i == 0) {
            CHECK_EQ(mkfifo(path, 0666), 0);
        } else if (i == 1) {
            CHECK_EQ(mkdir(path, 0777), 0);
        } else if (i == 2) {
            memset(&address, 0, sizeof address);
            address.sun_family = AF_UNIX;
            if (strlen(path) < sizeof address.sun_path) {
                memcpy(address.sun_path, path, strlen(path) + 1);
                fd = socket(AF_UNIX, SOCK_STREAM, 0);
                CHECK_EQ(bind(fd, (const struct sockaddr*)&address, sizeof address), 0);
            }
        } else if (i == 3) {
            CHECK_EQ(symlink("/dev/zero", path), 0);
        } else if (i == 4) {
            CHECK_EQ(symlink("0", path), 0);
        } else { /* a file where a folder of the way should be */
            CHECK_EQ(rename(in_folder("v.zarr/c/0/0"), in_folder("moved")), 0);
            put_file("v.zarr/c/0/0", "x", 1);
        }
        if (i != 2 || fd >= 0) {
            const damacy_status status = read_file(&a, in_folder("v.zarr"), 0, 8, &err);
            printf("# %s: %s\n", kinds[i], err.message);
            CHECK_EQ(status, DAMACY_IO);
            CHECK_STR(err.chunk, "c/0/0/0");
        }
        if (i == 3) { /* a device stays one, wherever links may lead */
            damacy_config c = files_config(1, DAMACY_ON_ERROR_STOP);
            damacy_sample s = mem_sample(&a, 0, 0, 0, 8);
            static float voxels[512];
            c.follow_outside_links = 1;
            s.uri = in_folder("v.zarr");
            CHECK_EQ(damacy_read(&c, &s, voxels, sizeof voxels, &err), DAMACY_IO);
            CHECK_HAS(err.message, "not a regular file");
        }
        if (fd >= 0) {
            (void)close(fd);
        }
        folder_end();
    }
}

TEST(files_that_are_too_short_or_too_long_are_errors)
{
    mem_array a = mem_plain("v.zarr");
    damacy_error err;
    char path[300];

    folder_begin();
    put_array_files(&a);
    (void)snprintf(path, sizeof path, "%s/v.zarr/c/0/0/0", folder);
    for (int64_t size = 0; size <= 8193; size += size < 8190 ? 819 : 1) {
        CHECK_EQ(truncate(path, size), 0);
        if (size == 8192) {
            continue; /* the right size with zeros at its end: nothing can tell */
        }
        CHECK_EQ(read_file(&a, in_folder("v.zarr"), 0, 8, &err), DAMACY_DECODE);
        CHECK_STR(err.chunk, "c/0/0/0");
    }
    if (truncate(path, INT64_C(1) << 42) == 0) { /* nothing of that size is allocated */
        CHECK_EQ(read_file(&a, in_folder("v.zarr"), 0, 8, &err), DAMACY_DECODE);
        CHECK_HAS(err.message, "4398046511104");
    }
    CHECK_EQ(truncate(in_folder("v.zarr/zarr.json"), INT64_C(1) << 21), 0);
    CHECK_EQ(read_file(&a, in_folder("v.zarr"), 0, 8, &err), DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "2097152");
    CHECK_EQ(truncate(in_folder("v.zarr/zarr.json"), 100), 0);
    CHECK_EQ(read_file(&a, in_folder("v.zarr"), 0, 8, &err), DAMACY_DECODE);
    folder_end();
}

TEST_MAIN
