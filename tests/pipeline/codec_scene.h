// damacy_codec_* on the fake driver: the kernels, a codec on a device of the test's, frames of
// every kind.
#pragma once
#include "tests/simt/kernels.h"
#include "tests/simt/simt.h"
#include <assert.h>

struct damacy__driver;
struct damacy_error;
static int load_fake(damacy__driver* driver, damacy_error* err);
static int load_fake_nvrtc(damacy__driver* driver, damacy_error* err);
#define DAMACY__DRIVER_LOAD (damacy_status) load_fake
#define DAMACY__NVRTC_LOAD  (damacy_status) load_fake_nvrtc
#define DAMACY_IMPLEMENTATION
#include "damacy.h"

#include "tests/simt/counts.h"
#include "tests/gpu/codec_device.h"
#include "tests/kernel/zstd_corpus.h"
#include <blosc.h>
#include <lz4.h>

static fake_config machine;
static damacy__driver table;
static bool has_machine;

static int load_fake(damacy__driver* driver, damacy_error*)
{
    if (!has_machine) {
        fake_open(&table, &machine);
    }
    has_machine = true;
    *driver = table;
    driver->nvrtc_major = driver->nvrtc_minor = 0; // opened when it is needed
    return DAMACY_OK;
}

static uint32_t n_nvrtc_loads;

static int load_fake_nvrtc(damacy__driver* driver, damacy_error*)
{
    if (driver->nvrtc_major == 0) {
        __atomic_add_fetch(&n_nvrtc_loads, 1, __ATOMIC_RELAXED);
        driver->nvrtc_major = 13;
    }
    return DAMACY_OK;
}

static codec_machine open_codec(damacy_codec_kind kind)
{
    codec_machine m;
    damacy_config config;
    enroll_kernels();
    memset(&machine, 0, sizeof machine);
    machine.device_bytes = UINT64_C(8) << 30;
    memset(&config, 0, sizeof config);
    config.cache_dir = "";
    m.must(m.open(kind, &config));
    m.codec->device.n_multiprocessors = 1; // grids of a size that the CPU can run
    return m;
}

static void close_codec(codec_machine& m)
{
    m.give_all();
    m.close();
    const fake_counts counts = counts_without_misuse();
    CHECK_EQ(counts.live_allocations, 0);
    CHECK_EQ(counts.live_streams, 0);
    CHECK_EQ(counts.live_events, 0);
    CHECK_EQ(counts.live_modules, 0);
    CHECK_EQ(counts.live_compilations, 0);
    CHECK_EQ(counts.live_graphs, 0);
    CHECK_EQ(counts.live_primary, 0);
    fake_close();
    has_machine = false;
}

// ---- frames of every kind ----

// 16-bit counts with noise, and a run now and then.
static bytes sample(size_t n, uint64_t* seed)
{
    bytes v(n);
    for (size_t i = 0; i < n; i++) {
        v[i] = i % 2 ? (uint8_t)(i >> 9) : (uint8_t)(100 + (test_random(seed) >> 59));
        if (i % 1000 > 900) {
            v[i] = 7;
        }
    }
    return v;
}

static bytes pack(damacy_codec_kind kind, const bytes& raw, unsigned variant)
{
    static const char* const inner[] = {"zstd", "lz4", "lz4hc"};
    bytes out(raw.size() * 2 + 1000);
    size_t n = 0, at = 0;
    if (kind == DAMACY_CODEC_ZSTD) {
        n = ZSTD_compress(out.data(), out.size(), raw.data(), raw.size(),
                          (int)(variant % 3) * 3 + 1);
    } else if (kind == DAMACY_CODEC_BLOSC) {
        n = (size_t)blosc_compress_ctx(5, (int)variant % 3, 2, raw.size(), raw.data(), out.data(),
                                       out.size(), inner[variant / 3 % 3], variant % 2 ? 0 : 8192,
                                       1);
    } else {
        at = kind == DAMACY_CODEC_LZ4_SIZED ? 4 : 0;
        for (size_t i = 0; i < at; i++) {
            out[i] = (uint8_t)(raw.size() >> 8 * i);
        }
        n = at + (size_t)LZ4_compress_default((const char*)raw.data(), (char*)out.data() + at,
                                              (int)raw.size(), (int)(out.size() - at));
    }
    CHECK(n > at && n <= out.size());
    out.resize(n);
    return out;
}

struct scene {
    std::vector<bytes> raw;
    std::vector<codec_frame> frames;
};

static scene make_scene(damacy_codec_kind kind, size_t n, uint64_t seed)
{
    scene s;
    for (size_t i = 0; i < n; i++) {
        codec_frame f;
        s.raw.push_back(sample(1 + (test_random(&seed) >> 40) % 30000, &seed));
        f.src = pack(kind, s.raw.back(), (unsigned)i);
        f.capacity = s.raw.back().size();
        s.frames.push_back(f);
    }
    return s;
}

static bool is_right(const codec_frame& f, const bytes& raw)
{
    const bool right = f.status == DAMACY_FRAME_OK && f.is_clean && f.size == raw.size() &&
                       f.out == raw && f.error_offset == 0;
    if (!right) {
        printf("# %s at %llu, %llu of %zu bytes, clean %d\n", damacy_frame_status_str(f.status),
               (unsigned long long)f.error_offset, (unsigned long long)f.size, raw.size(),
               (int)f.is_clean);
    }
    return right;
}

static const damacy_codec_kind kinds[] = {DAMACY_CODEC_ZSTD, DAMACY_CODEC_LZ4,
                                          DAMACY_CODEC_LZ4_SIZED, DAMACY_CODEC_BLOSC};
