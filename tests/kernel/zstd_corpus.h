// The corpora of tests/corpus: archives of frames and the CSV files that say what each must decode
// to. Run from the repository root, or set DAMACY_CORPUS.
#pragma once
#include "tests/test.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>
#include <zstd.h>

typedef std::vector<uint8_t> bytes;
typedef std::map<std::string, std::string> corpus_row; // column -> value

struct corpus_file {
    std::string name;
    bytes content;
    corpus_row row; // empty without a line in the CSV
};

static inline std::string corpus_path(const std::string& name)
{
    const char* const root = getenv("DAMACY_CORPUS");
    return std::string(root ? root : "tests/corpus") + "/" + name;
}

static inline bytes corpus_read(const std::string& path)
{
    bytes b;
    FILE* const f = fopen(path.c_str(), "rb");
    uint8_t chunk[65536];
    size_t n;

    if (!f) {
        return b;
    }
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        b.insert(b.end(), chunk, chunk + n);
    }
    fclose(f);
    return b;
}

// One-shot libzstd; the archives are of our own making.
static inline bytes corpus_inflate(const bytes& src)
{
    bytes out;
    ZSTD_DStream* const d = ZSTD_createDStream();
    ZSTD_inBuffer in = {src.data(), src.size(), 0};
    uint8_t chunk[65536];

    while (in.pos < in.size) {
        ZSTD_outBuffer to = {chunk, sizeof chunk, 0};
        if (ZSTD_isError(ZSTD_decompressStream(d, &to, &in))) {
            out.clear();
            break;
        }
        out.insert(out.end(), chunk, chunk + to.pos);
    }
    ZSTD_freeDStream(d);
    return out;
}

// The regular files of an archive; names without folders.
static inline std::vector<corpus_file> corpus_untar(const bytes& tar)
{
    std::vector<corpus_file> files;

    for (size_t at = 0; at + 512 <= tar.size() && tar[at];) {
        const char* const header = (const char*)&tar[at];
        const size_t size = (size_t)strtoull(std::string(header + 124, 12).c_str(), nullptr, 8);
        std::string name(header, strnlen(header, 100));
        if (size > tar.size() - at - 512) {
            break;
        }
        if (header[156] == '0' || header[156] == 0) {
            corpus_file f;
            f.name = name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1);
            f.content.assign(tar.begin() + (long)at + 512, tar.begin() + (long)(at + 512 + size));
            files.push_back(f);
        }
        at += 512 + (size + 511) / 512 * 512;
    }
    return files;
}

static inline std::vector<std::string> corpus_split(const std::string& line)
{
    std::vector<std::string> cells(1);
    for (const char c : line) {
        if (c == ',') {
            cells.push_back("");
        } else if (c != '\r') {
            cells.back() += c;
        }
    }
    return cells;
}

// Archive NAME.tar.zst with the lines of NAME.csv. Fails the test if one is not there.
static inline std::vector<corpus_file> corpus_load(const std::string& name)
{
    std::vector<corpus_file> files =
        corpus_untar(corpus_inflate(corpus_read(corpus_path(name + ".tar.zst"))));
    const bytes csv = corpus_read(corpus_path(name + ".csv"));
    std::map<std::string, corpus_row> rows;
    std::vector<std::string> columns;
    std::string line;

    CHECK(!files.empty() && !csv.empty());
    for (const uint8_t c : csv) {
        if (c != '\n') {
            line += (char)c;
            continue;
        }
        const std::vector<std::string> cells = corpus_split(line);
        if (columns.empty()) {
            columns = cells;
        } else {
            for (size_t i = 0; i < cells.size() && i < columns.size(); i++) {
                rows[cells[0]][columns[i]] = cells[i];
            }
        }
        line.clear();
    }
    for (corpus_file& f : files) {
        std::string key = f.name;
        if (!rows.count(key) && key.rfind('.') != std::string::npos) {
            key = key.substr(0, key.rfind('.'));
        }
        f.row = rows[key];
    }
    return files;
}

static inline uint32_t corpus_crc32c(const uint8_t* p, size_t n)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) {
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
        }
    }
    return ~crc;
}

// The frame without its checksum: flag cleared, last four bytes dropped (one frame with one).
static inline bytes corpus_without_checksum(const bytes& frame)
{
    bytes b = frame;
    if (b.size() > 9 && (b[4] & 4)) {
        b[4] = (uint8_t)(b[4] & ~4);
        b.resize(b.size() - 4);
    }
    return b;
}
