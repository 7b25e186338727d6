// The command line of bench/decoder.cpp and its rows: which frames, how many, what is hoped for.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <string>
#include <vector>

struct options {
    bool quick = false, sizes = false, stages = false;
    std::string only, json, nvcomp, data, rows;
};

// One argument; false: no such option.
static bool parse(options* o, const std::string& a)
{
    if (a == "--quick") {
        o->quick = true;
    } else if (a == "--sizes") {
        o->sizes = true;
    } else if (a == "--stages") {
        o->stages = true;
    } else if (a.rfind("--only=", 0) == 0) {
        o->only = a.substr(7);
    } else if (a.rfind("--json=", 0) == 0) {
        o->json = a.substr(7);
    } else if (a.rfind("--nvcomp=", 0) == 0) {
        o->nvcomp = a.substr(9);
    } else if (a.rfind("--data=", 0) == 0) {
        o->data = a.substr(7);
    } else if (a.rfind("--rows=", 0) == 0) {
        o->rows = a.substr(7);
    } else {
        return false;
    }
    return true;
}

struct row {
    std::string kind, codec; // codec: zstd, zstd-checksum, lz4, blosc, blosc-{split,auto,bit,lz4}
    int level;
    uint64_t size; // of a frame
    uint32_t n;
    uint32_t streams; // 0: one batch after another
    double goal;      // times nvCOMP's; 0: none
    std::string note;
    uint32_t parts = 0;   // of a batch, in one scratch
    uint32_t n_large = 0; // of the frames: these are of `large` bytes each
    uint64_t large = 0;
};

// Bytes of output of a batch.
static uint64_t size_of(const row& r)
{
    return (r.n - r.n_large) * r.size + r.n_large * r.large;
}

// What a row is called in the table.
static std::string name_of(const row& r)
{
    char name[160];
    std::string more = "     ";

    if (r.n_large) {
        more = " " + std::to_string(r.n_large) + " of " + std::to_string(r.large >> 10);
    } else if (r.streams || r.parts) {
        more = r.streams ? " on " + std::to_string(r.streams) : " in " + std::to_string(r.parts);
    }
    (void)snprintf(name, sizeof name, "%-11s %-13s L%-2d %7.0f KiB x %5u%s", r.kind.c_str(),
                   r.codec.c_str(), r.level, (double)r.size / 1024.0, r.n, more.c_str());
    return name;
}

// LZ4, alone and in chunks of blosc.
static void add_lz4(std::vector<row>* to)
{
    const uint64_t k = 1024, m = k * k;
    std::vector<row>& rows = *to;

    for (const char* kind : {"dim", "half-random", "denoised", "bright"}) {
        rows.push_back({kind, "blosc-lz4", 5, 256 * k, 1024, 0, 0, "Zarr 2's default"});
        rows.push_back({kind, "blosc-lz4", 5, 256 * k, 2500, 0, 0, "more than teams' most"});
        rows.push_back({kind, "lz4", 1, 64 * k, 16384, 0, 2, ""});
    }
    rows.push_back({"random", "lz4", 1, 64 * k, 16384, 0, 0, "goal: copy speed"});
    rows.push_back({"zeros", "lz4", 1, 64 * k, 16384, 0, 0, ""});
    rows.push_back({"zeros", "lz4", 1, 64 * k, 512, 0, 0, ""});
    rows.push_back({"dim", "lz4", 1, m, 256, 0, 0, ""});
    for (const char* kind : {"dim", "half-random", "denoised", "text"}) {
        rows.push_back({kind, "lz4", 1, 4 * m, 64, 0, 0, "several teams a block"});
    }
}

// Labels, and what else shrinks to little.
static void add_little(std::vector<row>* to)
{
    const uint64_t k = 1024, m = k * k;
    std::vector<row>& rows = *to;

    rows.push_back({"labels", "lz4", 1, 64 * k, 512, 0, 0, "long sequences among short ones"});
    rows.push_back({"labels", "lz4", 1, m, 256, 0, 0, ""});
    rows.push_back({"labels", "lz4", 1, 64 * k, 16384, 0, 0, ""});
    rows.push_back({"labels", "blosc-lz4", 5, 256 * k, 1024, 0, 0, ""});
    rows.push_back({"labels", "blosc", 5, 256 * k, 1024, 0, 0, ""});
    rows.push_back({"labels", "zstd", 3, 256 * k, 4096, 0, 0, ""});
    rows.push_back({"labels", "zstd", 3, 256 * k, 200, 0, 0, "a wave while reading is the limit"});
    rows.push_back({"labels", "zstd", 3, 256 * k, 200, 2, 0, ""});
    for (const char* kind : {"mask", "cells64", "cells32", "floats", "spots", "rows"}) {
        rows.push_back({kind, "zstd", 3, 256 * k, 2048, 0, 0, "shrinks to little"});
        rows.push_back({kind, "lz4", 1, 64 * k, 8192, 0, 0, ""});
    }
}

// Waves whose frames are of two sizes.
static void add_mixed(std::vector<row>* to)
{
    const uint64_t k = 1024, m = k * k;
    const auto add = [&](const char* kind, const char* codec, uint64_t size, uint32_t n,
                         uint64_t large, uint32_t n_large) {
        const int level = strcmp(codec, "lz4") == 0 ? 1 : 3;
        to->push_back(
            {kind, codec, level, size, n + n_large, 0, 0, "of two sizes", 0, n_large, large});
    };

    add("dim", "zstd", 64 * k, 2000, 8 * m, 4);
    for (const char* kind : {"dim", "text", "denoised", "half-random", "bright", "labels"}) {
        add(kind, "zstd", 256 * k, 512, 16 * m, 8);
    }
    add("dim", "lz4", 64 * k, 2000, 8 * m, 4);
    add("labels", "lz4", 64 * k, 2000, 8 * m, 4);
}

// Frames with checksums.
static void add_checked(std::vector<row>* to)
{
    const uint64_t k = 1024;

    for (const char* kind : {"dim", "half-random"}) {
        to->push_back({kind, "zstd-checksum", 3, 256 * k, 512, 0, 0, ""});
        to->push_back({kind, "zstd-checksum", 3, 256 * k, 4096, 0, 0, ""});
    }
    to->push_back({"text", "zstd-checksum", 3, 9216 * k, 82, 0, 0, ""});
}

// The rows that decide.
static std::vector<row> quick_rows()
{
    const uint64_t k = 1024, m = k * k;
    std::vector<row> rows = {{"text", "zstd", 3, 167 * 1000, 4600, 0, 3, ""},
                             {"text", "zstd", 3, 9 * m, 82, 0, 20, ""},
                             {"dim", "zstd", 3, 9 * m, 113, 0, 18, ""},
                             {"dim", "zstd", 3, m, 1000, 0, 5, ""},
                             {"dim", "zstd", 3, 256 * k, 1, 0, 0, "goal: twice one libzstd call"},
                             {"dim", "zstd", 3, 256 * k, 512, 0, 7, ""},
                             {"dim", "zstd", 3, 256 * k, 4096, 0, 0, "goal: scratch 2.5"},
                             {"dim", "zstd", 3, 256 * k, 4096, 0, 0, "", 2},
                             {"dim", "zstd", 3, 256 * k, 4096, 0, 0, "", 4}};
    const auto streams = [&](const char* kind, double goal) {
        for (const uint32_t s : {1u, 2u, 3u, 4u, 6u}) {
            rows.push_back({kind, "zstd", 3, 256 * k, 512, s, goal, ""});
        }
        for (const uint32_t s : {1u, 2u}) { // what arrives while a wave is decoded is the next
            rows.push_back({kind, "zstd", 3, 256 * k, 2048, s, 0, "4 of 512 gathered"});
        }
    };
    streams("dim", 15);
    rows.push_back({"half-random", "zstd", 3, 256 * k, 512, 0, 9, ""});
    rows.push_back({"half-random", "zstd", 3, 256 * k, 4096, 0, 3.5, "the reference scenario"});
    streams("half-random", 12);
    rows.push_back({"denoised", "zstd", 3, 256 * k, 512, 0, 6, ""});
    rows.push_back({"denoised", "zstd", 3, 256 * k, 4096, 0, 0, ""});
    streams("denoised", 10);
    rows.push_back({"bright", "zstd", 3, m, 1000, 0, 7, ""});
    rows.push_back({"bright", "zstd", 1, m, 1000, 0, 0, "goal: 500 GB/s"});
    rows.push_back({"half-random", "zstd", 3, 16 * k, 32768, 0, 0, "small frames"});
    for (const char* kind : {"half-random", "dim", "text", "labels"}) {
        rows.push_back({kind, "zstd", 3, 4 * k, 65536, 0, 0, "small frames"});
    }
    rows.push_back({"random", "zstd", 3, m, 1000, 0, 0, "raw blocks, goal: copy speed"});
    rows.push_back({"zeros", "zstd", 3, m, 1000, 0, 0, "run blocks, goal: copy speed"});
    rows.push_back({"zeros", "zstd", 3, 256 * k, 4096, 0, 0, "half run blocks, half a match each"});
    rows.push_back({"binary", "zstd", 3, 256 * k, 1000, 0, 0, "frames that differ"});
    for (const char* kind : {"dim", "half-random", "denoised", "bright"}) {
        for (const char* codec : {"blosc", "blosc-split", "blosc-bit"}) {
            rows.push_back({kind, codec, 5, 256 * k, 1024, 0, 0, "goal: 200 GB/s"});
        }
        for (const int level : {1, 2, 3}) { // blocks of 32, 64, 128 KiB by zstd 1, 3, 5
            rows.push_back({kind, "blosc-auto", level, 256 * k, 1024, 0, 0, "goal: 200 GB/s"});
        }
    }
    for (const uint32_t s : {1u, 2u, 4u}) { // few large frames beside others
        rows.push_back({"text", "zstd", 3, 4 * m, 20, s, 0, ""});
    }
    add_lz4(&rows);
    add_little(&rows);
    add_mixed(&rows);
    add_checked(&rows);
    return rows;
}

// Kinds of data by level and size of frame, about 512 MiB a batch, of blosc chunks half of that: to
// see whether some size, number or level takes much longer a byte than its neighbours.
static std::vector<row> size_rows()
{
    std::vector<row> rows;
    const auto add = [&](const char* kind, const char* codec, int level, uint64_t kib, uint64_t all,
                         uint32_t streams) {
        rows.push_back(
            {kind, codec, level, kib << 10, (uint32_t)(all / (kib << 10)), streams, 0, ""});
    };

    for (const char* kind : {"dim", "bright", "denoised", "half-random", "text"}) {
        for (int level : {1, 3, 9}) {
            for (uint64_t kib : {16u, 64u, 256u, 1024u, 2048u}) {
                add(kind, "zstd", level, kib, 512u << 20, 0);
            }
        }
        for (const uint32_t streams : {1u, 2u, 4u}) { // few large ones, beside others
            add(kind, "zstd", 3, 4096, 80u << 20, streams);
        }
    }
    for (const char* kind : {"dim", "half-random"}) {
        for (uint64_t kib : {64u, 256u, 1024u, 4096u}) {
            for (int level : {1, 2, 3, 5, 7}) {
                add(kind, "blosc-auto", level, kib, 256u << 20, 0);
            }
            add(kind, "blosc-lz4", 5, kib, 256u << 20, 0);
            add(kind, "lz4", 1, kib, 256u << 20, 0);
        }
    }
    return rows;
}

// Frames of a file, which is repeated, but no byte of it within a frame.
static std::vector<row> data_rows(uint64_t file_size)
{
    const uint64_t k = 1024;
    std::vector<row> rows;
    const auto add = [&](const char* codec, int level, uint64_t size, uint64_t batch) {
        if (size <= file_size) {
            rows.push_back({"file", codec, level, size, (uint32_t)(batch / size), 0, 0, ""});
        }
    };
    for (uint64_t size : {64 * k, 256 * k, 1024 * k}) {
        for (int level : {1, 3, 9, 19}) {
            add("zstd", level, size, 512 * k * k);
        }
    }
    for (const char* codec : {"blosc", "blosc-split", "blosc-bit"}) {
        add(codec, 5, 256 * k, 256 * k * k);
    }
    add("lz4", 1, 64 * k, 1024 * k * k);
    return rows;
}

// Rows of a file, a line each: kind codec level bytes frames, then s and how many streams, or l and
// how many large frames come besides, of how many bytes: "dim lz4 1 65536 2000 l4:8388608".
static bool read_rows(const std::string& path, std::vector<row>* rows)
{
    FILE* const file = fopen(path.c_str(), "r");
    char line[256];
    bool is_read = file != nullptr;

    while (is_read && fgets(line, sizeof line, file)) {
        char kind[32], codec[32], more[64] = "";
        unsigned long long size = 0, large = 0;
        row r = {};
        const int n =
            sscanf(line, "%31s %31s %d %llu %u %63s", kind, codec, &r.level, &size, &r.n, more);
        if (n <= 0 || line[0] == '#') {
            continue;
        }
        is_read = n >= 5 && size > 0 && r.n > 0 &&
                  (n == 5 || sscanf(more, "s%u", &r.streams) == 1 ||
                   sscanf(more, "l%u:%llu", &r.n_large, &large) == 2);
        r.kind = kind;
        r.codec = codec;
        r.size = size;
        r.large = large;
        r.n += r.n_large;
        rows->push_back(r);
    }
    if (file) {
        fclose(file);
    }
    return is_read && !rows->empty();
}

static std::vector<row> all_rows()
{
    std::vector<row> rows = quick_rows();
    const uint64_t k = 1024;

    for (const char* kind : {"dim", "bright", "denoised", "half-random", "text", "binary"}) {
        for (int level : {1, 3, 9, 19}) {
            for (uint64_t size : {64 * k, 256 * k, 1024 * k, 4096 * k, 9216 * k}) {
                for (uint32_t n : {1u, 10u, 100u, 1000u, 10000u}) {
                    if (n * size <= (uint64_t)3 << 30) {
                        rows.push_back({kind, "zstd", level, size, n, 0, 0, ""});
                    }
                }
            }
        }
    }
    return rows;
}

// The rows that the command line asks for. False: they cannot be read.
static bool choose_rows(const options& o, uint64_t file_size, std::vector<row>* rows)
{
    if (!o.rows.empty()) {
        return read_rows(o.rows, rows);
    }
    *rows = file_size > 0 ? data_rows(file_size)
            : o.quick     ? quick_rows()
            : o.sizes     ? size_rows()
                          : all_rows();
    return true;
}
