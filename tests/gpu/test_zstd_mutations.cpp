// Damaged Zstandard frames by the thousands, in waves that fill a real device: what it accepts
// libzstd accepts, with the same bytes, and nothing outside an output is ever touched.
//
// DAMACY_TEST_MUTATIONS (100000, which take some seconds) is how many. TEST_SEED repeats a run. The
// first frame that is judged wrongly is left in the folder for temporary files.
#include "tests/gpu/zstd_wave.h"
#include "tests/test.h"
#include <zstd.h>

enum { PER_WAVE = 12500, CAPACITY = 20000, N_STATUSES = 32 };

// What came of a mutation, beside libzstd's verdict.
enum { BOTH_REFUSE, BOTH_DECODE, ONLY_LIBZSTD_DECODES, WRONG };

// The frames that are damaged: every structure of the format, with and without a checksum, and
// frames as images make them.
static std::vector<bytes> undamaged()
{
    std::vector<bytes> all;
    for (const char* const name : {"C_cs14_s1001", "D_smallblk_s2001", "zstd_crafted"}) {
        for (const corpus_file& f : corpus_load(name)) {
            // libzstd before 1.5.6 refuses this legal one
            if (f.content.size() < 10 || f.name.find("seq_0_2byte") != std::string::npos) {
                continue;
            }
            all.push_back(f.content);
            all.push_back(corpus_without_checksum(f.content));
        }
    }
    for (int k = 0; k < 64; k++) {
        const bytes content = dim_volume((size_t)64 << k % 9);
        bytes frame(ZSTD_compressBound(content.size()));
        frame.resize(
            ZSTD_compress(frame.data(), frame.size(), content.data(), content.size(), 1 + k % 19));
        all.push_back(frame);
    }
    return all;
}

// Flips, changed bytes, splices, cuts; most often near the beginning, where the headers are.
static bytes damaged(const bytes& frame, const bytes& other, uint64_t* random)
{
    bytes b = frame;
    for (uint64_t n = 1 + (test_random(random) >> 40) % 3; n; n--) {
        const uint64_t r = test_random(random) >> 16;
        const size_t most = r % 4 ? b.size() : std::min<size_t>(b.size(), 40);
        const size_t at = (size_t)(r >> 8) % most;
        switch (r >> 2 & 3) {
        case 0:
            b[at] ^= (uint8_t)(1 << (r >> 4) % 8);
            break;
        case 1:
            b[at] = (uint8_t)(test_random(random) >> 32);
            break;
        case 2:
            for (size_t k = at; k < std::min(at + 4, b.size()); k++) {
                b[k] = other[k % other.size()];
            }
            break;
        default:
            if ((r >> 4 & 3) == 0 && b.size() > 8) {
                b.resize(4 + (size_t)(r >> 8) % (b.size() - 4));
            }
        }
    }
    return b;
}

static int judge(const device_job& j)
{
    bytes out(CAPACITY);
    const size_t size = ZSTD_decompress(out.data(), out.size(), j.src.data(), j.src.size());
    const bool ok = !ZSTD_isError(size);
    if (!j.canary) {
        return WRONG;
    }
    if (j.result.status != DAMACY__JOB_OK) {
        return ok ? ONLY_LIBZSTD_DECODES : BOTH_REFUSE;
    }
    out.resize(ok ? size : 0);
    return ok && out == j.out ? BOTH_DECODE : WRONG;
}

static void keep(const device_job& j)
{
    const char* const folder = getenv("TMPDIR");
    const std::string path = std::string(folder ? folder : "/tmp") + "/mutation.zst";
    FILE* const f = fopen(path.c_str(), "wb");
    if (f) {
        fwrite(j.src.data(), 1, j.src.size(), f);
        fclose(f);
    }
    printf("# %s: status %u, %zu bytes, canary %d\n", path.c_str(), j.result.status, j.out.size(),
           (int)j.canary);
}

TEST(zstd_gpu_accepts_no_mutation_that_libzstd_refuses)
{
    static zstd_device g;
    if (g.open() != DAMACY_OK) {
        printf("# %s\n", g.err.message);
        SKIP("no CUDA device");
    }
    const char* const wanted = getenv("DAMACY_TEST_MUTATIONS");
    const uint64_t n = wanted ? strtoull(wanted, nullptr, 10) : 100000;
    const uint64_t seed = test_seed();
    const std::vector<bytes> frames = undamaged();
    uint64_t counts[4] = {0, 0, 0, 0}, stricter[N_STATUSES] = {0};

    for (uint64_t first = 0; first < n; first += PER_WAVE) {
        std::vector<device_job> jobs((size_t)std::min<uint64_t>(PER_WAVE, n - first));
        std::vector<int> verdicts(jobs.size());
        const uint64_t wave = first / PER_WAVE;
        damacy__zstd_options o = {};
        o.literals = (uint32_t)(wave % (DAMACY__ZSTD_SPLIT4 + 1)); // 0: what is chosen by itself
        o.fse = wave % 3 ? DAMACY__ZSTD_FLAG_FSE_LATENCY << wave % 3 >> 1 : 0;
        in_parallel(jobs.size(), [&](size_t i) {
            uint64_t random = seed + (first + i) * UINT64_C(0x9e3779b97f4a7c15) + 1;
            const bytes& frame = frames[(size_t)(test_random(&random) >> 20) % frames.size()];
            const bytes& other = frames[(size_t)(test_random(&random) >> 20) % frames.size()];
            jobs[i].src = damaged(frame, other, &random);
            jobs[i].capacity = CAPACITY;
        });
        decode(g, jobs, o, (unsigned)wave, false);
        in_parallel(jobs.size(), [&](size_t i) { verdicts[i] = judge(jobs[i]); });
        for (size_t i = 0; i < jobs.size(); i++) {
            if (verdicts[i] == WRONG && counts[WRONG] == 0) {
                printf("# mutation %llu\n", (unsigned long long)(first + i));
                keep(jobs[i]);
            }
            counts[verdicts[i]]++;
            stricter[std::min<uint32_t>(jobs[i].result.status, N_STATUSES - 1)] +=
                verdicts[i] == ONLY_LIBZSTD_DECODES;
        }
    }
    printf("# %llu mutations: %llu decode, %llu are refused, libzstd %s decodes %llu more\n",
           (unsigned long long)n, (unsigned long long)counts[BOTH_DECODE],
           (unsigned long long)counts[BOTH_REFUSE], ZSTD_versionString(),
           (unsigned long long)counts[ONLY_LIBZSTD_DECODES]);
    for (int i = 0; i < N_STATUSES; i++) {
        if (stricter[i]) {
            printf("#   refused here alone, status %d: %llu\n", i, (unsigned long long)stricter[i]);
        }
    }
    CHECK_EQ(counts[WRONG], 0);
    CHECK(counts[BOTH_DECODE] * 20 > n && counts[BOTH_REFUSE] * 5 > n); // it tests both
    // Damaged Huffman codes whose bits end by chance decode there; the format forbids them.
    CHECK((counts[ONLY_LIBZSTD_DECODES] - stricter[DAMACY__JOB_BAD_LITERALS]) * 20 <= n);
    g.close();
}

TEST_MAIN
