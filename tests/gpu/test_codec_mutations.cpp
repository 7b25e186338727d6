// Damaged lz4 blocks and blosc chunks by the thousands through damacy_codec_*: what a real device
// decodes, the host decodes, to the same bytes, and nothing outside an output is ever touched.
//
// DAMACY_TEST_MUTATIONS (30000) of each kind; TEST_SEED repeats a run.
#define DAMACY_IMPLEMENTATION
#include "damacy.h"

#include "tests/test.h"
#include "tests/gpu/codec_frames.h"

// What the host makes of a frame, "" if it refuses it: liblz4, and where that insists on five
// literals at the end, which the format only asks of encoders, the library's own decoder.
static bytes on_the_host(damacy_codec_kind kind, const codec_frame& f, damacy__blosc_tools* tools)
{
    bytes out(f.capacity + 1); // never empty
    damacy_error err;
    if (kind == DAMACY_CODEC_BLOSC) {
        damacy__blosc blosc;
        const damacy__span src = damacy__span_of(f.src.data(), f.src.size());
        if (damacy__blosc_parse(src, UINT64_MAX, &blosc, &err) != DAMACY_OK ||
            blosc.size > f.capacity) {
            return {};
        }
        bytes scratch(damacy__blosc_scratch(&blosc) + 1);
        tools->scratch = scratch.data();
        if (damacy__blosc_decode(tools, &blosc, src, out.data(), &err) != DAMACY_OK) {
            return {};
        }
        out.resize(blosc.size);
        return out;
    }
    const size_t skip = kind == DAMACY_CODEC_LZ4_SIZED ? 4 : 0;
    if (f.src.size() <= skip) {
        return {};
    }
    const int size = LZ4_decompress_safe((const char*)f.src.data() + skip, (char*)out.data(),
                                         (int)(f.src.size() - skip), (int)f.capacity);
    uint64_t claimed = 0;
    for (size_t i = 0; i < skip; i++) {
        claimed |= (uint64_t)f.src[i] << 8 * i;
    }
    if (size >= 0 && (!skip || claimed == (uint64_t)size)) {
        out.resize((size_t)size);
        return out;
    }
    const damacy__span block = damacy__span_of(f.src.data() + skip, f.src.size() - skip);
    const bool is_good = f.status == DAMACY_FRAME_OK && (!skip || claimed == f.size) &&
                         damacy__lz4_decode(block, out.data(), f.size, &err) == DAMACY_OK;
    out.resize(is_good ? f.size : 0);
    return out;
}

TEST(codec_gpu_decodes_no_damaged_lz4_or_blosc_otherwise_than_the_host)
{
    const char* const wanted = getenv("DAMACY_TEST_MUTATIONS");
    const uint64_t n = wanted ? strtoull(wanted, nullptr, 10) : 30000;
    uint64_t seed = test_seed();
    damacy__libraries libraries;
    damacy__zstd zstd;
    damacy__blosc_tools tools;
    damacy_error err;
    memset(&zstd, 0, sizeof zstd);
    memset(&tools, 0, sizeof tools);
    CHECK_EQ(damacy__libraries_init(&libraries, &err), DAMACY_OK);
    CHECK_EQ(damacy__zstd_open(&zstd, &libraries, false, &err), DAMACY_OK);
    tools.libraries = &libraries;
    tools.zstd = &zstd;
    for (const damacy_codec_kind kind : others) {
        codec_machine m;
        damacy_config config;
        memset(&config, 0, sizeof config);
        if (m.open(kind, &config) != DAMACY_OK) {
            printf("# %s\n", m.err.message);
            damacy__zstd_close(&zstd);
            damacy__libraries_deinit(&libraries);
            SKIP("no CUDA device");
        }
        uint64_t n_decoded = 0, n_stricter = 0, n_wrong = 0;
        std::vector<bytes> whole;
        std::vector<size_t> sizes;
        for (unsigned i = 0; i < 500; i++) {
            sizes.push_back(1 + (test_random(&seed) >> 50));
            whole.push_back(pack(kind, sample(sizes.back(), i, &seed), i));
        }
        for (uint64_t first = 0; first < n; first += 10000) {
            std::vector<codec_frame> frames((size_t)std::min<uint64_t>(10000, n - first));
            codec_options o;
            for (codec_frame& f : frames) {
                const size_t i = (size_t)(test_random(&seed) >> 33) % whole.size();
                const uint64_t how = test_random(&seed) >> 40;
                f.src = whole[i];
                f.capacity = sizes[i] + (how & 1 ? how % 64 : 0);
                for (uint64_t k = 0; k <= how % 3; k++) {
                    const size_t near = k ? f.src.size() : std::min<size_t>(f.src.size(), 40);
                    f.src[(test_random(&seed) >> 33) % near] ^=
                        (uint8_t)(how & 8 ? 1 << (test_random(&seed) >> 61)
                                          : test_random(&seed) >> 56);
                }
                if (how % 16 == 2) {
                    f.src.resize(1 + (test_random(&seed) >> 33) % f.src.size());
                }
            }
            o.skew = (uint32_t)(first / 10000);
            m.must(m.run(frames, o));
            for (const codec_frame& f : frames) {
                const bytes host = on_the_host(kind, f, &tools);
                const bool ok = f.status == DAMACY_FRAME_OK;
                n_decoded += ok;
                n_stricter += !ok && !host.empty();
                n_wrong += !f.is_clean || (ok && f.out != host);
            }
        }
        printf("# kind %d: %llu mutations, %llu decode, %llu on the host alone, %llu wrong\n",
               (int)kind, (unsigned long long)n, (unsigned long long)n_decoded,
               (unsigned long long)n_stricter, (unsigned long long)n_wrong);
        CHECK_EQ(n_wrong, 0);
        CHECK(n_decoded * 50 > n && n_decoded < n - n / 10);
        m.close();
    }
    damacy__zstd_close(&zstd);
    damacy__libraries_deinit(&libraries);
}

TEST_MAIN
