// Waves of blosc chunks of shuffled voxels through damacy_codec_*, some of them damaged. The
// program has included tests/test.h, blosc.h and tests/gpu/codec_device.h.
#pragma once

// `rare` decides how dense the chunks are: high bytes are those `row` voxels before but for one in
// so many; the lowest bytes are noise.
struct codec_wave {
    unsigned n, n_voxels, row, rare;
    unsigned bits;         // shuffled by bits is one chunk in so many; 0: none
    unsigned n_blocks = 1; // of a chunk, a frame each
    const char* codec = "zstd";
    unsigned width = 2; // bytes of a voxel
    unsigned step = 1;  // voxels that one chunk has more than the one before
    bool is_measured = false; // limits of this very wave, whose streams are smaller than is usual
};

static codec_bytes codec_voxels(const codec_wave& wave, size_t n, uint64_t* seed)
{
    const size_t w = wave.width;
    codec_bytes v(w * n);
    for (size_t i = 0; i < n; i++) {
        const bool is_new = i < wave.row || (test_random(seed) >> 33) % wave.rare == 0;
        for (size_t k = 0; k < w; k++) {
            v[w * i + k] =
                k == 0 || is_new ? (uint8_t)(test_random(seed) >> 56) : v[w * (i - wave.row) + k];
        }
    }
    return v;
}

// One in seven is damaged; what is decoded of those is what c-blosc makes of them.
static void check_codec_wave(codec_machine& m, const codec_wave& wave, uint64_t* seed)
{
    const unsigned n_kinds = 24;
    std::vector<codec_frame> frames(wave.n);
    std::vector<codec_bytes> raw, packed;

    for (unsigned i = 0; i < n_kinds; i++) {
        const bool is_bits = wave.bits && i % wave.bits == wave.bits - 1;
        raw.push_back(codec_voxels(wave, wave.n_voxels + wave.step * i, seed));
        packed.push_back(codec_bytes(raw[i].size() + 4096));
        packed[i].resize((size_t)blosc_compress_ctx(
            5, is_bits ? 2 : 1, wave.width, raw[i].size(), raw[i].data(), packed[i].data(),
            packed[i].size(), wave.codec, raw[i].size() / wave.n_blocks, 1));
    }
    for (unsigned i = 0; i < wave.n; i++) {
        codec_frame& f = frames[i];
        f.src = packed[i % n_kinds];
        f.capacity = raw[i % n_kinds].size();
        if (i % 7 == 6) {
            f.src[16 + (test_random(seed) >> 33) % (f.src.size() - 16)] ^=
                (uint8_t)(1 << (test_random(seed) >> 61));
        }
    }
    codec_options options;
    options.is_measured = wave.is_measured;
    m.must(m.run(frames, options));
    for (unsigned i = 0; i < wave.n; i++) {
        const codec_frame& f = frames[i];
        codec_bytes expected = raw[i % n_kinds];
        CHECK(f.is_clean);
        if (i % 7 == 6 && f.status != DAMACY_FRAME_OK) {
            continue;
        }
        CHECK_EQ(f.status, DAMACY_FRAME_OK);
        if (i % 7 == 6) {
            CHECK_EQ(blosc_decompress_ctx(f.src.data(), expected.data(), expected.size(), 1),
                     (int)expected.size());
        }
        CHECK(f.out == expected);
    }
}

// Waves like this one whose streams are planes, by LZ4, with a rest that is no whole block, and
// whole; of an odd number of voxels more there are no planes. The lowest bytes are stored.
static void check_waves_of_planes(codec_machine& m, codec_wave wave, uint64_t* seed)
{
    wave.codec = "lz4";
    wave.is_measured = true;
    for (const unsigned width : {2u, 4u, 8u}) {
        for (const unsigned step : {32u, 8u, 1u}) {
            wave.width = width;
            wave.step = step;
            check_codec_wave(m, wave, seed);
        }
    }
}
