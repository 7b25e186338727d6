/* The command line of damacy as a record, and the line that says what failed.
 *
 * The surprising rule: DAMACY_NATIVE is the default type here, where the library's is f32: cat
 * prints what is stored. */
#pragma once
#include "damacy.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char* command;
    const char* uri;
    const char* output; /* NULL: standard output */
    const char* box;
    damacy_config config;
    int is_json;
    int as_text; /* one element per line */
} options;

static void print_help(void)
{
    (void)printf(
        "usage: damacy info URI [--json] [--level K]\n"
        "           shape, type, chunks, codecs and levels\n"
        "       damacy cat URI [--box a:b,c:d,...] [--dtype native|f32|...] [--level K]\n"
        "                  [--device auto|cpu|cuda|N] [--oob reject|fill|clamp|reflect]\n"
        "                  [-o FILE]\n"
        "           the voxels, in C order; --oob says what lies outside the array;\n"
        "           FILE appears when it is whole, with numpy's header if it ends in .npy\n"
        "       damacy verify URI [--level K]\n"
        "           reads and decodes every chunk, prints the bad ones\n"
        "       damacy --array_path=PATH\n"
        "           elements in C order, one per line\n"
        "       damacy --help, damacy --version\n"
        "types: f32 bf16 f16 f64 u8 u16 u32 u64 i8 i16 i32 i64 bool\n"
        "exit status: 0, 1 when something fails (or verify finds a bad chunk), 2 for bad "
        "usage\n");
}

/* Refuses the command line: "WHAT: NAME", or WHAT alone. */
static int refuse(const char* what, const char* name)
{
    (void)fprintf(stderr, "damacy: %s%s%s (usage: damacy --help)\n", what, name ? ": " : "",
                  name ? name : "");
    return 2;
}

static int failed(damacy_status status, const damacy_error* err)
{
    const size_t len = strlen(err->uri);
    const int is_named = len > 0 && !err->chunk[0] && strncmp(err->message, err->uri, len) == 0;

    (void)fprintf(stderr, "damacy: %s: %s%s%s%s%s\n", damacy_status_str(status),
                  is_named ? "" : err->uri, err->chunk[0] ? " " : "", err->chunk,
                  !is_named && (len > 0 || err->chunk[0]) ? ": " : "", err->message);
    return 1;
}

/* A whole non-negative number; -1 otherwise. */
static int64_t number_of(const char* text)
{
    char* end = NULL;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && value >= 0 ? (int64_t)value : -1;
}

static int parse_dtype(const char* text, damacy_dtype* out)
{
    static const struct {
        const char* name;
        damacy_dtype dtype;
    } names[] = {{"f32", DAMACY_F32},  {"bf16", DAMACY_BF16}, {"f16", DAMACY_F16},
                 {"f64", DAMACY_F64},  {"u8", DAMACY_U8},     {"u16", DAMACY_U16},
                 {"u32", DAMACY_U32},  {"u64", DAMACY_U64},   {"i8", DAMACY_I8},
                 {"i16", DAMACY_I16},  {"i32", DAMACY_I32},   {"i64", DAMACY_I64},
                 {"bool", DAMACY_BOOL}};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i].name) == 0 ||
            strcmp(text, damacy_dtype_str(names[i].dtype)) == 0) { /* float32: Zarr's name */
            *out = names[i].dtype;
            return 1;
        }
    }
    *out = DAMACY_NATIVE;
    return strcmp(text, "native") == 0;
}

static int parse_device(const char* text, int32_t* out)
{
    const int64_t ordinal = number_of(text);

    if (strcmp(text, "auto") == 0) {
        *out = DAMACY_AUTO;
    } else if (strcmp(text, "cpu") == 0) {
        *out = DAMACY_CPU;
    } else if (strcmp(text, "cuda") == 0) {
        *out = DAMACY_GPU(0);
    } else if (ordinal >= 0 && ordinal < 4096) {
        *out = DAMACY_GPU((int32_t)ordinal);
    } else {
        return 0;
    }
    return 1;
}

static int parse_bounds(const char* text, damacy_bounds* out)
{
    static const char* const names[] = {"reject", "fill", "clamp", "reflect"};

    for (int i = 0; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (damacy_bounds)i;
            return 1;
        }
    }
    return 0;
}

/* One option with its value; returns how many arguments it took, or 0 after saying what is wrong.
 */
static int parse_option(options* o, const char* name, const char* value)
{
    static const char* const names[] = {"--box", "-o", "--level", "--dtype", "--device", "--oob"};
    int64_t level;
    int which = 0;
    int is_right = 1;

    if (strcmp(name, "--json") == 0) {
        o->is_json = 1;
        return 1;
    }
    while (which < 6 && strcmp(name, names[which]) != 0) {
        which++;
    }
    if (which == 6) {
        return (void)refuse("no such option", name), 0;
    }
    if (!value) {
        return (void)refuse("a value is missing after", name), 0;
    }
    switch (which) {
    case 0:
        o->box = value;
        break;
    case 1:
        o->output = value;
        is_right = value[0] != '\0';
        break;
    case 2:
        level = number_of(value);
        o->config.level = (uint32_t)level;
        is_right = level >= 0 && level <= 1000;
        break;
    case 3:
        is_right = parse_dtype(value, &o->config.dtype);
        break;
    case 4:
        is_right = parse_device(value, &o->config.device);
        break;
    default:
        is_right = parse_bounds(value, &o->config.bounds);
    }
    if (!is_right) {
        (void)fprintf(stderr, "damacy: %s cannot be '%s' (usage: damacy --help)\n", name, value);
    }
    return is_right ? 2 : 0;
}

/* 0 after saying what is wrong. */
static int parse(options* o, int argc, char** argv)
{
    memset(o, 0, sizeof *o);
    o->config.dtype = DAMACY_NATIVE;
    if (argc == 2 && strncmp(argv[1], "--array_path=", 13) == 0) {
        o->command = "cat";
        o->uri = argv[1] + 13;
        o->as_text = 1;
        return 1;
    }
    if (argc < 2) {
        return (void)refuse("a command is missing", NULL), 0;
    }
    o->command = argv[1];
    if (strcmp(o->command, "info") != 0 && strcmp(o->command, "cat") != 0 &&
        strcmp(o->command, "verify") != 0) {
        return (void)refuse("no such command", o->command), 0;
    }
    for (int i = 2; i < argc;) {
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            const int n = parse_option(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
            if (n == 0) {
                return 0;
            }
            i += n;
        } else if (!o->uri) {
            o->uri = argv[i++];
        } else {
            return (void)refuse("more than one URI", argv[i]), 0;
        }
    }
    return o->uri ? 1 : ((void)refuse("a URI is missing", NULL), 0);
}
