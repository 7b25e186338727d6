/* The frames of tests/corpus for tests in C: an archive, and the CSV file that says what each of
 * its files must decode to. Run from the repository root, or set DAMACY_CORPUS. */
#pragma once
#include "base/crc32c.h"
#include "tests/test.h"
#include <zstd.h>

enum { CORPUS_CELLS = 12 };

typedef struct corpus_file {
    char name[104];
    const uint8_t* ptr; /* inside the archive */
    size_t size;
    char* cells[CORPUS_CELLS]; /* its line of the CSV; cells[0] is the name; NULL without a line */
} corpus_file;

typedef struct corpus {
    uint8_t* tar;
    char* csv;
    corpus_file files[1300];
    size_t n;
} corpus;

static void corpus_path(char* out, size_t size, const char* name, const char* suffix)
{
    const char* root = getenv("DAMACY_CORPUS");

    (void)snprintf(out, size, "%s/%s%s", root ? root : "tests/corpus", name, suffix);
}

/* A whole file and a final zero, malloc'ed; NULL if it is not there. */
static uint8_t* corpus_read(const char* name, const char* suffix, size_t* size)
{
    char path[512];
    uint8_t* bytes = NULL;
    FILE* file;

    corpus_path(path, sizeof path, name, suffix);
    file = fopen(path, "rb");
    if (file) {
        (void)fseek(file, 0, SEEK_END);
        *size = (size_t)ftell(file);
        rewind(file);
        bytes = (uint8_t*)calloc(1, *size + 1);
        if (bytes && fread(bytes, 1, *size, file) != *size) {
            free(bytes);
            bytes = NULL;
        }
        (void)fclose(file);
    }
    return bytes;
}

/* The archive's bytes; NULL if it is not there. */
static uint8_t* corpus_unpack(const char* name, size_t* size)
{
    size_t n = 0;
    uint8_t* packed = corpus_read(name, ".tar.zst", &n);
    ZSTD_DStream* stream = ZSTD_createDStream();
    ZSTD_inBuffer in = {packed, n, 0};
    size_t capacity = 64 << 20;
    ZSTD_outBuffer out = {packed ? malloc(capacity) : NULL, capacity, 0};
    size_t code = 1;

    while (out.dst && in.pos < in.size && !ZSTD_isError(code) && out.pos < out.size) {
        code = ZSTD_decompressStream(stream, &out, &in);
    }
    ZSTD_freeDStream(stream);
    free(packed);
    *size = out.pos;
    return (uint8_t*)out.dst;
}

static int corpus_compare(const void* a, const void* b)
{
    return strcmp(((const corpus_file*)a)->name, ((const corpus_file*)b)->name);
}

/* Joins the lines of the CSV to the files, which are sorted. */
static void corpus_join(corpus* c)
{
    char* line = strtok(c->csv, "\n");

    while ((line = strtok(NULL, "\n")) != NULL) {
        corpus_file key;
        corpus_file* file;
        char* cell = line;
        const size_t length = strcspn(line, ",");

        (void)snprintf(key.name, sizeof key.name, "%.*s", (int)length, line);
        file = (corpus_file*)bsearch(&key, c->files, c->n, sizeof key, corpus_compare);
        for (size_t i = 0; file && i < CORPUS_CELLS && cell; i++) {
            char* comma = strchr(cell, ',');
            file->cells[i] = cell;
            cell = comma ? comma + 1 : NULL;
            if (comma) {
                *comma = 0;
            }
        }
    }
}

/* Fails the test if the archive or its CSV is not there. Suffixes ".zst" of names are cut off. */
static void corpus_load(corpus* c, const char* name)
{
    size_t size = 0;
    size_t csv_size = 0;

    memset(c, 0, sizeof *c);
    c->tar = corpus_unpack(name, &size);
    c->csv = (char*)corpus_read(name, ".csv", &csv_size);
    CHECK(c->tar != NULL && c->csv != NULL);
    for (size_t at = 0; at + 512 <= size && c->tar[at];) {
        const char* header = (const char*)c->tar + at;
        const size_t n = (size_t)strtoull(header + 124, NULL, 8);
        CHECK(n <= size - at - 512);
        if (header[156] == '0' || header[156] == 0) {
            corpus_file* file = &c->files[c->n++];
            const char* slash = strrchr(header, '/');
            CHECK(c->n < sizeof c->files / sizeof c->files[0]);
            (void)snprintf(file->name, sizeof file->name, "%.100s", slash ? slash + 1 : header);
            file->ptr = c->tar + at + 512;
            file->size = n;
        }
        at += 512 + (n + 511) / 512 * 512;
    }
    for (size_t i = 0; i < c->n && strncmp(name, "zstd_", 5) == 0; i++) {
        char* dot = strstr(c->files[i].name, ".zst");
        if (dot) {
            *dot = 0;
        }
    }
    qsort(c->files, c->n, sizeof c->files[0], corpus_compare);
    corpus_join(c);
}

static void corpus_unload(corpus* c)
{
    free(c->tar);
    free(c->csv);
}
