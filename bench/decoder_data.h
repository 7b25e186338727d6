// What bench/decoder.cpp decodes: content of several kinds, packed by the reference libraries; and
// the interface of nvCOMP 6 that it is measured against, found with dlopen.
#pragma once
#include "bench/rows_of_ids.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <map>
#include <string>
#include <thread>
#include <vector>

typedef std::vector<uint8_t> bytes;

template <class F> static void parallel(size_t n, F f)
{
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); t++) {
        threads.emplace_back([&] {
            for (size_t i; (i = next++) < n;) {
                f(i);
            }
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
}

// The reference libraries, as far as they are here.
struct libraries {
    size_t (*zstd_pack)(void*, size_t, const void*, size_t, int) = nullptr;
    size_t (*zstd_unpack)(void*, size_t, const void*, size_t) = nullptr;
    void* (*zstd_create)() = nullptr;
    size_t (*zstd_set)(void*, int, int) = nullptr;
    size_t (*zstd_pack_as_set)(void*, void*, size_t, const void*, size_t) = nullptr;
    size_t (*zstd_free)(void*) = nullptr;
    int (*lz4_pack)(const char*, char*, int, int) = nullptr;
    int (*lz4_unpack)(const char*, char*, int, int) = nullptr;
    int (*blosc_pack)(int, int, size_t, size_t, const void*, void*, size_t, const char*, size_t,
                      int) = nullptr;
    int (*blosc_unpack)(const void*, void*, size_t, int) = nullptr;

    void open()
    {
        void* zstd = dlopen("libzstd.so.1", RTLD_NOW);
        void* lz4 = dlopen("liblz4.so.1", RTLD_NOW);
        void* blosc = dlopen("libblosc.so.1", RTLD_NOW);
        find(zstd, "ZSTD_compress", &zstd_pack);
        find(zstd, "ZSTD_decompress", &zstd_unpack);
        find(zstd, "ZSTD_createCCtx", &zstd_create);
        find(zstd, "ZSTD_CCtx_setParameter", &zstd_set);
        find(zstd, "ZSTD_compress2", &zstd_pack_as_set);
        find(zstd, "ZSTD_freeCCtx", &zstd_free);
        find(lz4, "LZ4_compress_default", &lz4_pack);
        find(lz4, "LZ4_decompress_safe", &lz4_unpack);
        find(blosc, "blosc_compress_ctx", &blosc_pack);
        find(blosc, "blosc_decompress_ctx", &blosc_unpack);
    }

    // A frame with a checksum; 0 if it does not fit.
    size_t zstd_pack_checked(bytes* to, const uint8_t* src, uint64_t size, int level) const
    {
        enum { ZSTD_C_LEVEL = 100, ZSTD_C_CHECKSUM = 201 }; // zstd.h
        void* const context = zstd_create();
        (void)zstd_set(context, ZSTD_C_LEVEL, level);
        (void)zstd_set(context, ZSTD_C_CHECKSUM, 1);
        const size_t n = zstd_pack_as_set(context, to->data(), to->size(), src, size);
        (void)zstd_free(context);
        return n;
    }

    template <class F> static void find(void* library, const char* name, F* f)
    {
        void* const symbol = library ? dlsym(library, name) : nullptr;
        memcpy((void*)f, &symbol, sizeof symbol);
    }
};

struct random_source {
    uint64_t s;
    explicit random_source(uint64_t seed) : s(seed * 0x9E3779B97F4A7C15u + 1)
    {
        for (int i = 0; i < 8; i++) {
            (void)next();
        }
    }
    uint64_t next()
    {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        return s * 0x2545F4914F6CDD1Du;
    }
    double unit()
    {
        return ((double)(next() >> 11) + 0.5) / 9007199254740992.0;
    }
    double normal()
    {
        return std::sqrt(-2.0 * std::log(unit())) * std::cos(6.283185307179586 * unit());
    }
};

// Microscopy of blobs with photon noise, uint16, planes of 256 x 256. dim: few photons above a
// camera's offset; bright: many; denoised: smooth, the background set to zero.
static bytes make_volume(const std::string& kind, size_t size)
{
    enum { SIDE = 256 };
    const size_t plane = SIDE * SIDE * 2, depth = (size + plane - 1) / plane;
    struct blob {
        double x, y, z, r, light;
    };
    std::vector<blob> blobs;
    random_source random(7);
    const double light = kind == "dim" ? 150 : kind == "bright" ? 2500 : 1200;
    bytes out(depth * plane);

    for (size_t i = 0; i < (kind == "denoised" ? 120 : 200) * (depth + 255) / 256; i++) {
        blobs.push_back({random.unit() * SIDE, random.unit() * SIDE, random.unit() * (double)depth,
                         3 + random.unit() * 9, light * (0.3 + random.unit())});
    }
    parallel(depth, [&](size_t z) {
        std::vector<double> image(SIDE * SIDE);
        random_source noise(1000 + z);
        const double ground = kind == "dim" ? 8 : kind == "bright" ? 600 : 0;
        for (int i = 0; i < SIDE * SIDE; i++) {
            image[i] =
                ground * (1 + 0.3 * std::sin(0.02 * (i % SIDE)) * std::cos(0.015 * (i / SIDE)));
        }
        for (const blob& b : blobs) {
            const double dz = (double)z - b.z;
            if (std::fabs(dz) > 3 * b.r) {
                continue;
            }
            for (int y = std::max(0, (int)(b.y - 3 * b.r));
                 y <= std::min<int>(SIDE - 1, (int)(b.y + 3 * b.r)); y++) {
                for (int x = std::max(0, (int)(b.x - 3 * b.r));
                     x <= std::min<int>(SIDE - 1, (int)(b.x + 3 * b.r)); x++) {
                    const double d = (x - b.x) * (x - b.x) + (y - b.y) * (y - b.y) + dz * dz;
                    image[y * SIDE + x] += b.light * std::exp(-d / (2 * b.r * b.r));
                }
            }
        }
        for (int i = 0; i < SIDE * SIDE; i++) {
            const double e = image[i];
            double v = kind == "denoised"
                           ? e + 3 * noise.normal() * std::sqrt(e > 1 ? e / 50 : 0.02)
                           : 100.5 + (e + std::sqrt(e) * noise.normal()) * 2 + 3.2 * noise.normal();
            v = kind == "denoised" && v < 6 ? 0 : v;
            const uint16_t voxel = (uint16_t)std::min(65535.0, std::max(0.0, v));
            memcpy(&out[z * plane + 2 * (size_t)i], &voxel, 2);
        }
    });
    out.resize(size);
    return out;
}

// Sentences of a vocabulary with a natural distribution, some of which come back.
static bytes make_text(size_t size)
{
    random_source random(11);
    std::vector<std::string> words;
    bytes out;

    for (int i = 0; i < 6000; i++) {
        std::string word;
        for (int k = 2 + (int)(random.unit() * random.unit() * 10); k > 0; k--) {
            word += "etaoinshrdlucmfwypvbgk"[(int)(22 * random.unit() * random.unit())];
        }
        words.push_back(word);
    }
    while (out.size() < size) {
        if (out.size() > 4096 && random.unit() < 0.02) { // a phrase again
            const size_t len = 20 + random.next() % 100,
                         back = len + random.next() % std::min<size_t>(out.size() - len, 60000);
            for (size_t i = 0; i < len; i++) {
                out.push_back(out[out.size() - back]);
            }
        }
        const std::string& word = words[(size_t)(6000 * std::pow(random.unit(), 3.0))];
        out.insert(out.end(), word.begin(), word.end());
        const double u = random.unit();
        if (u < 0.1) {
            out.push_back(u < 0.04 ? '.' : ',');
        }
        out.push_back(u > 0.98 ? '\n' : ' ');
    }
    out.resize(size);
    return out;
}

// A file in pieces of 64 KiB, until there are `most` bytes; empty if it cannot be read.
static bytes read_file(const std::string& path, size_t most)
{
    FILE* file = fopen(path.c_str(), "rb");
    uint8_t part[65536];
    bytes out;

    for (size_t n; file && out.size() < most && (n = fread(part, 1, sizeof part, file)) > 0;) {
        out.insert(out.end(), part, part + n);
    }
    if (file) {
        fclose(file);
    }
    return out;
}

static bytes make_binary(size_t size)
{
    bytes out;

    for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/bin"}) {
        DIR* dir = opendir(folder);
        for (const dirent* e; dir && out.size() < size && (e = readdir(dir)) != nullptr;) {
            const bytes file = read_file(std::string(folder) + "/" + e->d_name, 4u << 20);
            out.insert(out.end(), file.begin(), file.end());
        }
        if (dir) {
            closedir(dir);
        }
    }
    while (!out.empty() && out.size() < size) {
        out.insert(out.end(), out.begin(),
                   out.begin() + (ptrdiff_t)std::min(out.size(), size - out.size()));
    }
    out.resize(size);
    return out;
}

// Voxels of type T of planes of 256 x 256, each what `voxel` says of x, y, z and a plane's noise.
template <class T, class F> static bytes make_planes(size_t size, F voxel)
{
    enum { SIDE = 256 };
    const size_t plane = SIDE * SIDE * sizeof(T), depth = (size + plane - 1) / plane;
    bytes out(depth * plane);

    parallel(depth, [&](size_t z) {
        random_source noise(1000 + z);
        for (size_t i = 0; i < SIDE * SIDE; i++) {
            const T v = voxel((int)(i % SIDE), (int)(i / SIDE), (int)z, &noise);
            memcpy(&out[z * plane + i * sizeof(T)], &v, sizeof(T));
        }
    });
    out.resize(size);
    return out;
}

// A smooth field.
static double field_at(double x, double y, double z)
{
    return std::sin(0.031 * x + 0.7 * std::sin(0.013 * y)) +
           std::cos(0.027 * y + 0.5 * std::sin(0.021 * z)) + std::sin(0.017 * (x + y + z));
}

// The number of the nearest of points, one in each cube of `side` voxels.
static uint32_t cell_at(int side, int x, int y, int z)
{
    double least = 1e9;
    uint64_t id = 0;

    for (int i = 0; i < 27; i++) {
        const int cx = x / side + i % 3 - 1, cy = y / side + i / 3 % 3 - 1,
                  cz = z / side + i / 9 - 1;
        random_source random(((uint64_t)(cx + 1) << 40) + ((uint64_t)(cy + 1) << 20) +
                             (uint64_t)(cz + 1));
        const double dx = (cx + random.unit()) * side - x, dy = (cy + random.unit()) * side - y,
                     dz = (cz + random.unit()) * side - z, d = dx * dx + dy * dy + dz * dz;
        if (d < least) {
            least = d;
            id = random.next() >> 40;
        }
    }
    return (uint32_t)id;
}

// Lines of 512 values of four bits, each with four others than the one before.
static bytes make_rows(size_t size)
{
    random_source random(13);
    bytes line, out;

    for (int i = 0; i < 512; i++) {
        line.push_back((uint8_t)(random.next() >> 60));
    }
    while (out.size() < size) {
        for (int i = 0; i < 4; i++) {
            line[random.next() >> 55] = (uint8_t)(random.next() >> 60);
        }
        out.insert(out.end(), line.begin(), line.end());
    }
    out.resize(size);
    return out;
}

// What shrinks to little when it is packed, besides labels: a mask of bytes, cells with ids of 64
// bits, small ones of 32, floats of a computed field in steps of 0.02, spots of 16 bits in the
// dark, lines that are nearly alike. Empty: no such kind.
static bytes make_little(const std::string& kind, size_t size)
{
    typedef random_source* noise;

    if (kind == "mask") {
        return make_planes<uint8_t>(size, [](int x, int y, int z, noise) {
            return (uint8_t)(field_at(2 * x, 2 * y, 2 * z) > 1.2 ? 255 : 0);
        });
    }
    if (kind == "cells64") {
        return make_planes<uint64_t>(
            size, [](int x, int y, int z, noise) { return (uint64_t)cell_at(48, x, y, z); });
    }
    if (kind == "cells32") {
        return make_planes<uint32_t>(
            size, [](int x, int y, int z, noise) { return cell_at(12, x, y, z); });
    }
    if (kind == "floats") {
        return make_planes<float>(size, [](int x, int y, int z, noise) {
            return (float)(std::round(50 * field_at(x, y, z)) / 50);
        });
    }
    if (kind == "spots") {
        return make_planes<uint16_t>(size, [](int, int, int, noise n) {
            return (uint16_t)(n->unit() < 0.01 ? 100 + n->next() % 1000 : 0);
        });
    }
    return kind == "rows" ? make_rows(size) : bytes();
}

// `data`: of the kind "file", which is not empty.
static bytes make_content(const std::string& kind, size_t size, const bytes& data)
{
    bytes out(size);

    if (kind == "file") {
        for (size_t i = 0; i < size; i++) {
            out[i] = data[i % data.size()];
        }
        return out;
    }
    if (kind == "zeros") {
        return out;
    }
    if (kind == "text") {
        return make_text(size);
    }
    if (kind == "binary") {
        return make_binary(size);
    }
    if (kind == "labels") {
        random_source random(5);
        return rows_of_ids(size, [&] { return random.next(); });
    }
    const bytes little = make_little(kind, size);
    if (!little.empty()) {
        return little;
    }
    if (kind == "half-random" || kind == "random") {
        parallel((size + 0xffff) >> 16, [&](size_t part) {
            random_source random(part + 1);
            for (size_t i = part << 16; i + 1 < std::min(size, (part + 1) << 16); i += 2) {
                const uint64_t r = random.next();
                const uint16_t voxel = kind == "random" || (r >> 40 & 1) ? (uint16_t)(r >> 44) : 0;
                memcpy(&out[i], &voxel, 2);
            }
        });
        return out;
    }
    return make_volume(kind, size);
}

struct frames {
    bytes content; // of all different frames
    std::vector<bytes> packed;
    std::vector<uint64_t> at, sizes; // of each in the content
    size_t n_usual = 0;              // of them; large ones come behind
    std::string missing;

    // The frame at place i of a batch of n: large ones are spread evenly.
    size_t at_place(uint32_t i, uint32_t n, uint32_t n_large) const
    {
        const uint64_t large = (uint64_t)i * n_large / n;

        if (n_large && (i == 0 || (uint64_t)(i - 1) * n_large / n != large)) {
            return n_usual + large % (packed.size() - n_usual);
        }
        return i % n_usual;
    }

    size_t content_size() const
    {
        return content.size();
    }
    size_t packed_size() const
    {
        size_t size = 0;
        for (const bytes& p : packed) {
            size += p.size();
        }
        return size;
    }
};

// How blosc packs chunks of `own` bytes.
struct blosc_way {
    const char* codec;
    size_t block; // bytes; 0: as blosc likes them
    int shuffle;  // 0: none, 1: of bytes, 2: of bits
    size_t type_size;
};

// From a row's codec: blosc, then any of -split (blocks of 64 KiB), -auto, -lz4 (which is -auto,
// too), -bit, -plain and -1, -4, -8 (bytes of an element; else 2).
static blosc_way way_of(const std::string& codec, uint64_t own)
{
    const auto has = [&](const char* word) { return codec.find(word) != std::string::npos; };
    blosc_way way = {has("-lz4") ? "lz4" : "zstd", (size_t)own, 1, 2};

    if (has("-split") || has("-auto") || has("-lz4")) {
        way.block = has("-split") ? 65536 : 0;
    }
    if (has("-bit") || has("-plain")) {
        way.shuffle = has("-bit") ? 2 : 0;
    }
    if (codec.size() > 2 && codec[codec.size() - 2] == '-') {
        way.type_size = (size_t)(codec.back() - '0');
    }
    return way;
}

static frames make_frames(const libraries& libs, const std::string& kind, const std::string& codec,
                          int level, uint64_t size, uint64_t large, const bytes& data)
{
    const size_t m = std::max<size_t>(3, (48u << 20) / size);
    const size_t n_large = large ? std::max<size_t>(2, (32u << 20) / large) : 0;
    const bool is_blosc = codec.rfind("blosc", 0) == 0;
    frames f;

    if (is_blosc ? !libs.blosc_pack : codec == "lz4" ? !libs.lz4_pack : !libs.zstd_pack) {
        f.missing = is_blosc         ? "no libblosc.so.1"
                    : codec == "lz4" ? "no liblz4.so.1"
                                     : "no libzstd.so.1";
        return f;
    }
    f.content = make_content(kind, m * size + n_large * large, data);
    f.packed.resize(m + n_large);
    f.n_usual = m;
    for (size_t i = 0; i < m + n_large; i++) {
        f.at.push_back(i < m ? i * size : m * size + (i - m) * large);
        f.sizes.push_back(i < m ? size : large);
    }
    parallel(m + n_large, [&](size_t i) {
        const uint8_t* src = &f.content[f.at[i]];
        const uint64_t own = f.sizes[i];
        bytes& dst = f.packed[i];
        dst.resize(own + own / 64 + 4096);
        size_t n;
        if (is_blosc) {
            const blosc_way way = way_of(codec, own);
            n = (size_t)libs.blosc_pack(level, way.shuffle, way.type_size, own, src, dst.data(),
                                        dst.size(), way.codec, way.block, 1);
        } else if (codec == "lz4") {
            n = (size_t)libs.lz4_pack((const char*)src, (char*)dst.data(), (int)own,
                                      (int)dst.size());
        } else if (codec == "zstd-checksum") {
            n = libs.zstd_pack_checked(&dst, src, own, level);
        } else {
            n = libs.zstd_pack(dst.data(), dst.size(), src, own, level);
        }
        dst.resize(n <= dst.size() ? n : 0);
        dst.shrink_to_fit();
    });
    return f;
}

static bool host_decode(const libraries& libs, const bytes& src, const std::string& codec,
                        bytes* dst)
{
    if (codec.rfind("blosc", 0) == 0) {
        return libs.blosc_unpack(src.data(), dst->data(), dst->size(), 1) == (int)dst->size();
    }
    return codec == "lz4"
               ? libs.lz4_unpack((const char*)src.data(), (char*)dst->data(), (int)src.size(),
                                 (int)dst->size()) == (int)dst->size()
               : libs.zstd_unpack(dst->data(), dst->size(), src.data(), src.size()) == dst->size();
}

// GB/s of the reference library on all cores.
static double host_rate(const libraries& libs, const frames& f, const std::string& codec,
                        uint64_t size)
{
    const size_t repeats = 1 + (size_t)((256u << 20) / f.content_size());
    const auto begin = std::chrono::steady_clock::now();
    std::atomic<bool> is_fine{true};

    parallel(std::min<size_t>(f.packed.size(), std::thread::hardware_concurrency()), [&](size_t t) {
        bytes dst(size);
        for (size_t r = 0; r < repeats; r++) {
            for (size_t i = t; i < f.packed.size(); i += std::thread::hardware_concurrency()) {
                is_fine = is_fine && host_decode(libs, f.packed[i], codec, &dst);
            }
        }
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return is_fine ? (double)(repeats * f.content_size()) / seconds / 1e9 : 0;
}

// Milliseconds of one call on one core: the median of 21.
static double host_call(const libraries& libs, const frames& f, uint64_t size)
{
    std::vector<double> times;
    bytes dst(size);

    for (int i = 0; i < 21; i++) {
        const auto begin = std::chrono::steady_clock::now();
        (void)host_decode(libs, f.packed[(size_t)i % f.packed.size()], "zstd", &dst);
        times.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
                .count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// nvCOMP's low-level batched interface. Both option structures are 64 bytes, of which zeros are the
// defaults.
struct nvcomp_api {
    struct opts {
        uint8_t reserved[64]; // a zero backend: its own choice
    };
    typedef int (*temp_size)(size_t n, size_t largest, opts, size_t* size, size_t total,
                             void* stream);
    typedef int (*decompress)(const void* const* srcs, const size_t* src_sizes,
                              const size_t* capacities, size_t* sizes, size_t n, void* scratch,
                              size_t scratch_size, void* const* dsts, opts, int* statuses,
                              void* stream);
    temp_size zstd_size = nullptr, lz4_size = nullptr;
    decompress zstd = nullptr, lz4 = nullptr;

    bool open(const std::string& path)
    {
        void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "nvCOMP: %s\n", path.empty() ? "no --nvcomp=FILE" : dlerror());
            return false;
        }
        zstd_size = (temp_size)dlsym(library, "nvcompBatchedZstdDecompressGetTempSize");
        zstd = (decompress)dlsym(library, "nvcompBatchedZstdDecompressAsync");
        lz4_size = (temp_size)dlsym(library, "nvcompBatchedLZ4DecompressGetTempSize");
        lz4 = (decompress)dlsym(library, "nvcompBatchedLZ4DecompressAsync");
        return zstd_size && zstd && lz4_size && lz4;
    }
};
