// Measures the Zstandard decoder on a device, stage by stage.
//
//     c++ -std=c++17 -O2 -D_GNU_SOURCE -I. -Isrc bench/zstd_stages.cpp -lzstd -lpthread -ldl
//     ./a.out KIND:FILE:LEVEL:FRAME_KIB:FRAMES[,FRAMES...][:LITERALS.FSE.EXECUTE] ...
//
// FILE is cut into frames and compressed; frames are repeated, with copies of their own, up to
// FRAMES. Prints the median of 11 runs: milliseconds and GB/s of output for each stage and the sum,
// and the scratch as a multiple of the output. Every output is compared with its content.
#include "tests/gpu/zstd_device.h"
#include <atomic>
#include <thread>
#include <zstd.h>

typedef std::vector<uint8_t> bytes;

template <class F> static void parallel(size_t n, F f)
{
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 16; t++) {
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

static bytes read_file(const std::string& path)
{
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    const std::string s = all.str();
    return bytes(s.begin(), s.end());
}

struct scenario {
    std::string kind, file, frames;
    int level = 3;
    unsigned kib = 256;
    damacy__zstd_options options = {};
};

// One number of frames.
static void measure(zstd_device& g, const scenario& s, const std::vector<bytes>& packed,
                    const bytes& content, uint32_t n)
{
    const uint64_t frame = (uint64_t)s.kib << 10, m = packed.size();
    std::vector<damacy__job> table(n);
    uint64_t src_size = 0;
    damacy__zstd_limits limits = {};
    damacy__zstd_layout layout = {};
    damacy__zstd_call call = {};

    for (uint32_t i = 0; i < n; i++) {
        src_size += packed[i % m].size();
    }
    bytes slab(src_size);
    const uint64_t dst_size = n * frame, src = g.take(src_size), dst = g.take(dst_size);
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bytes& p = packed[i % m];
        memcpy(&slab[at], p.data(), p.size());
        table[i].src = src + at;
        table[i].src_size = p.size();
        table[i].dst = dst + i * frame;
        table[i].dst_capacity = table[i].expected_size = frame;
        table[i].flags = 0;
        table[i].tag = 0;
        at += p.size();
    }
    g.upload(src, slab.data(), src_size);
    limits.max_jobs = n;
    limits.dst_size = dst_size;
    limits.largest_size = frame;
    limits.has_links = n <= 16;
    g.check(damacy__zstd_layout_of(&limits, &layout, &g.err));
    const uint64_t jobs = g.take(n * sizeof(damacy__job)), count = g.take(4);
    const uint64_t results = g.take(n * sizeof(damacy__job_result));
    call.scratch = g.take(layout.size);
    g.upload(jobs, table.data(), n * sizeof(damacy__job));
    g.upload(count, &n, 4);
    call.jobs = jobs;
    call.n_jobs = count;
    call.results = results;
    call.stream = g.stream;
    call.options = s.options;
    damacy__event marks[DAMACY__ZSTD_STAGES], begin;
    for (damacy__event& e : marks) {
        g.check(damacy__event_open(&g.device, true, &e, &g.err));
    }
    g.check(damacy__event_open(&g.device, true, &begin, &g.err));
    call.marks = marks;
    std::vector<float> times[DAMACY__ZSTD_STAGES + 1];
    g.check(damacy__fill_device(&g.device, dst, 0xa5, dst_size, g.stream, &g.err));
    for (int run = 0; run < 12; run++) {
        g.check(damacy__event_record(&g.device, begin, g.stream, &g.err));
        g.check(damacy__zstd_launch(&g.kernels, &g.device, &layout, &call, &g.err));
        g.sync();
        for (int k = 0; k <= DAMACY__ZSTD_STAGES && run; k++) {
            float ms = 0;
            const bool all = k == DAMACY__ZSTD_STAGES;
            g.driver.event_elapsed(&ms, all || k == 0 ? begin : marks[k - 1],
                                   all ? marks[k - 1] : marks[k]);
            times[k].push_back(ms);
        }
    }
    call.marks = nullptr; // the whole wave without events between
    std::vector<float> whole;
    for (int run = 0; run < 11; run++) {
        float ms = 0;
        g.check(damacy__event_record(&g.device, begin, g.stream, &g.err));
        g.check(damacy__zstd_launch(&g.kernels, &g.device, &layout, &call, &g.err));
        g.check(damacy__event_record(&g.device, marks[0], g.stream, &g.err));
        g.sync();
        g.driver.event_elapsed(&ms, begin, marks[0]);
        whole.push_back(ms);
    }
    bytes out(dst_size);
    g.fetch(out.data(), dst, dst_size);
    std::vector<damacy__job_result> r(n);
    g.fetch(r.data(), results, n * sizeof(damacy__job_result));
    std::atomic<uint32_t> wrong{0}, refused{0};
    parallel(n, [&](size_t i) {
        refused += r[i].status == DAMACY__JOB_NEED_SCRATCH;
        wrong += r[i].status != DAMACY__JOB_NEED_SCRATCH &&
                 (r[i].status != DAMACY__JOB_OK ||
                  memcmp(&out[i * frame], &content[i % m * frame], frame) != 0);
    });
    damacy__zstd_counters counters;
    g.fetch(&counters, layout.wave.counters + call.scratch, sizeof counters);
    const double gb = (double)dst_size / 1e6;
    printf("%-6s L%d %5u KiB x %5u ratio %.2f", s.kind.c_str(), s.level, s.kib, n,
           (double)dst_size / (double)src_size);
    static const char* const names[] = {"parse", "prep", "fse",    "+lits", "resolve",
                                        "place", "exec", "finish", "sum"};
    for (int k = 0; k <= DAMACY__ZSTD_STAGES; k++) {
        std::sort(times[k].begin(), times[k].end());
        printf(" | %s %.3f", names[k], times[k][times[k].size() / 2]);
    }
    std::sort(whole.begin(), whole.end());
    const float ms = whole[whole.size() / 2];
    printf(
        " | whole %.3f ms = %.1f GB/s | scratch %.2f used %.2f, blocks %u seq %u lit %u %u %u%s\n",
        ms, gb / ms, (double)layout.size / (double)dst_size,
        (double)(counters.n_literal_bytes + 8 * counters.n_records) / (double)dst_size,
        counters.n_blocks, counters.n_sequence_blocks, counters.n_literal_blocks[0],
        counters.n_literal_blocks[1], counters.n_literal_blocks[2], wrong ? " WRONG" : "");
    if (wrong || refused) {
        printf("  wrong %u, need scratch %u of %u\n", wrong.load(), refused.load(), n);
    }
    fflush(stdout);
    for (damacy__event& e : marks) {
        damacy__event_close(&g.device, e);
    }
    damacy__event_close(&g.device, begin);
    g.give(src, src_size);
    g.give(dst, dst_size);
    g.give(jobs, n * sizeof(damacy__job));
    g.give(count, 4);
    g.give(results, n * sizeof(damacy__job_result));
    g.give(call.scratch, layout.size);
}

static void run(zstd_device& g, const scenario& s)
{
    const bytes content = read_file(s.file);
    const uint64_t frame = (uint64_t)s.kib << 10, m = content.size() / frame;
    std::vector<bytes> packed(m);

    if (m == 0) {
        printf("%s: shorter than a frame\n", s.file.c_str());
        return;
    }
    parallel(m, [&](size_t i) {
        packed[i].resize(ZSTD_compressBound(frame));
        packed[i].resize(
            ZSTD_compress(packed[i].data(), packed[i].size(), &content[i * frame], frame, s.level));
    });
    std::stringstream list(s.frames);
    for (std::string n; std::getline(list, n, ',');) {
        measure(g, s, packed, content, (uint32_t)std::stoul(n));
    }
}

int main(int argc, char** argv)
{
    zstd_device g;

    if (g.open() != DAMACY_OK) {
        fprintf(stderr, "%s\n", g.err.message);
        return 1;
    }
    printf("%s, libzstd %s\n", g.device.name, ZSTD_versionString());
    for (int i = 1; i < argc; i++) {
        std::stringstream cells(argv[i]);
        std::string level, kib, choice;
        scenario s;
        std::getline(cells, s.kind, ':');
        std::getline(cells, s.file, ':');
        std::getline(cells, level, ':');
        std::getline(cells, kib, ':');
        std::getline(cells, s.frames, ':');
        std::getline(cells, choice, ':');
        s.level = atoi(level.c_str());
        s.kib = (unsigned)atoi(kib.c_str());
        sscanf(choice.c_str(), "%u.%x.%x", &s.options.literals, &s.options.fse, &s.options.execute);
        run(g, s);
    }
    g.close();
    return 0;
}
