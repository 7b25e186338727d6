// Frames of the kinds besides Zstandard, made by their own libraries.
#pragma once
#include "bench/rows_of_ids.h"
#include "tests/gpu/codec_device.h"
#include "tests/kernel/zstd_corpus.h"
#include <blosc.h>
#include <lz4.h>
#include <lz4hc.h>

static bytes sample(size_t n, unsigned kind, uint64_t* seed)
{
    if (kind % 8 == 5) { // shrinks to little, in sequences of some hundred bytes
        return rows_of_ids(n, [&] { return test_random(seed); });
    }
    bytes v(n);
    for (size_t i = 0; i < n; i++) {
        v[i] = kind % 4 == 0   ? (uint8_t)(test_random(seed) >> 56)
               : kind % 4 == 1 ? (uint8_t)(i / 700)
               : i % 2         ? (uint8_t)(i >> 9)
                               : (uint8_t)(100 + (test_random(seed) >> 59));
    }
    return v;
}

static bytes pack(damacy_codec_kind kind, const bytes& raw, unsigned variant)
{
    static const char* const inner[] = {"zstd", "lz4", "lz4hc"};
    bytes out(raw.size() + raw.size() / 100 + 1000);
    size_t n = 0, at = 0;
    if (kind == DAMACY_CODEC_BLOSC) {
        n = (size_t)blosc_compress_ctx(
            1 + (int)variant % 9, (int)variant % 3, (size_t)1 << variant % 4, raw.size(),
            raw.data(), out.data(), out.size(), inner[variant / 3 % 3], variant % 2 ? 0 : 8192, 1);
    } else {
        at = kind == DAMACY_CODEC_LZ4_SIZED ? 4 : 0;
        for (size_t i = 0; i < at; i++) {
            out[i] = (uint8_t)(raw.size() >> 8 * i);
        }
        char* const to = (char*)out.data() + at;
        const int room = (int)(out.size() - at), size = (int)raw.size();
        n = at + (size_t)(variant % 2
                              ? LZ4_compress_default((const char*)raw.data(), to, size, room)
                              : LZ4_compress_HC((const char*)raw.data(), to, size, room, 6));
    }
    CHECK(n > at && n <= out.size());
    out.resize(n);
    return out;
}

static const damacy_codec_kind others[] = {DAMACY_CODEC_LZ4, DAMACY_CODEC_LZ4_SIZED,
                                           DAMACY_CODEC_BLOSC};
