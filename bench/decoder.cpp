// Decompression alone: batches of frames in device memory, through damacy_codec_*, beside nvCOMP on
// the same buffers and libzstd on all cores.
//
//     ./run bench decoder [--quick | --sizes | --data=FILE | --rows=FILE] [--only=TEXT]
//                         [--stages] [--json=FILE] [--nvcomp=libnvcomp.so.6]
//
//     c++ -std=c++17 -O2 -D_GNU_SOURCE -I. bench/decoder.cpp -lpthread -ldl
//
// GB/s are 10^9 bytes of output per second: the median of 21 batches after 3, between CUDA events.
// Buffers are larger than the L2 cache, or several are used in turn. Every output is compared with
// its content. A "stream" is a sequence of batches on 1 to 6 CUDA streams with scratch of their
// own, as a pipeline runs them. --data: voxels of yours, read from a file, as uint16 where blosc
// shuffles them. --rows: rows of yours, as decoder_rows.h says. nvCOMP's column is empty without
// --nvcomp; libzstd, liblz4 and libblosc are found with dlopen, and rows that need a missing one
// are left out aloud.
#define DAMACY_IMPLEMENTATION
#include "damacy.h"

#include "bench/decoder_data.h"
#include "bench/decoder_rows.h"
#include <functional>

// A batch and its buffers, as both decoders take them.
struct wave {
    uint32_t n = 0;
    std::vector<size_t> which;    // frame of each
    std::vector<uint64_t> places; // in the output
    uint64_t src_size = 0, dst_size = 0;
    uint64_t src = 0, dst = 0, srcs = 0, src_sizes = 0, dsts = 0, capacities = 0, sizes = 0,
             statuses = 0;
    uint64_t scratch = 0, scratch_size = 0, nv_scratch = 0, nv_scratch_size = 0;
};

// What a row came to.
struct result {
    double ms = 0, nv_ms = 0;           // of a batch; nv_ms 0: not measured
    double scratch = 0, nv_scratch = 0; // bytes per byte of output
    double host = 0;                    // GB/s of the library on all cores
    bool is_measured = false;           // the scratch, by reading headers
    bool is_right = true, is_nvcomp_right = true;
};

typedef std::function<void(wave&, damacy__stream)> decoder;

struct bench {
    options option;
    libraries libs;
    nvcomp_api nvcomp;
    bool has_nvcomp = false;
    damacy_codec* codecs[4] = {};
    damacy_codec* main = nullptr; // whose driver is used
    damacy__stream streams[6] = {};
    damacy_error err = {};
    std::map<std::string, frames> packed;
    bytes data; // of --data
    FILE* json = nullptr;
    bool has_wrong = false;

    void must(bool is_fine, const char* what)
    {
        if (!is_fine) {
            fprintf(stderr, "decoder: %s: %s\n", what, err.message);
            exit(1);
        }
    }

    uint64_t take(uint64_t size)
    {
        uint64_t address = 0;
        const int code = main->driver.memory_alloc(&address, size ? size : 1);
        if (code) {
            (void)snprintf(err.message, sizeof err.message, "%llu bytes, code %d",
                           (unsigned long long)size, code);
        }
        must(code == 0, "device memory");
        return address;
    }

    void give(uint64_t address)
    {
        if (address) {
            must(main->driver.memory_free(address) == 0, "cuMemFree");
        }
    }

    void send(uint64_t to, const void* from, uint64_t size)
    {
        must(main->driver.copy_to_device(to, from, size, streams[0]) == 0, "cuMemcpyHtoD");
        sync();
    }

    void fetch(void* to, uint64_t from, uint64_t size)
    {
        must(main->driver.copy_to_host(to, from, size, streams[0]) == 0, "cuMemcpyDtoH");
        sync();
    }

    void sync()
    {
        must(main->driver.stream_synchronize(streams[0]) == 0, "cuStreamSynchronize");
    }

    template <class T> uint64_t put(const std::vector<T>& v)
    {
        const uint64_t to = take(v.size() * sizeof(T));
        send(to, v.data(), v.size() * sizeof(T));
        return to;
    }

    bool open();
    void close();
    const frames& pack(const row& r);
    void run(const row& r);
    void load(const row& r, const frames& f, wave* w);
    void unload(wave* w);
    bool verify(const frames& f, const wave& w, bool is_nvcomp, uint32_t* n_need);
    double batches(std::vector<wave>& waves, const decoder& f);
    double stream_of(std::vector<wave>& waves, uint32_t n_streams, const decoder& f);
    void ours(damacy_codec_kind kind, const damacy_codec_limits& limits, wave& w,
              damacy__stream stream);
    void fit(const row& r, const frames& f, std::vector<wave>& waves, damacy_codec_limits* limits,
             result* of);
    void theirs(const row& r, const frames& f, std::vector<wave>& waves, result* of);
    void stages(const row& r, const frames& f, const wave& w, const damacy_codec_limits& of);
    void time_stages(damacy__zstd_layout* layout, damacy__zstd_call* call);
    void tell(const row& r, const std::string& name, const frames& f, const result& of);
};

static damacy_codec_kind kind_of(const row& r)
{
    return r.codec.rfind("zstd", 0) == 0 ? DAMACY_CODEC_ZSTD
           : r.codec == "lz4"            ? DAMACY_CODEC_LZ4
                                         : DAMACY_CODEC_BLOSC;
}

bool bench::open()
{
    damacy_config config = {};
    int major = 0;

    config.device = DAMACY_GPU(0);
    for (int kind : {DAMACY_CODEC_ZSTD, DAMACY_CODEC_LZ4, DAMACY_CODEC_BLOSC}) {
        if (damacy_codec_create((damacy_codec_kind)kind, &config, &codecs[kind], &err) !=
            DAMACY_OK) {
            fprintf(stderr, "decoder: %s\n", err.message);
            return false;
        }
    }
    main = codecs[0];
    must(damacy__device_enter(&main->device, &err) == DAMACY_OK, "context");
    for (damacy__stream& s : streams) {
        must(damacy__stream_open(&main->device, false, &s, &err) == DAMACY_OK, "stream");
    }
    has_nvcomp = nvcomp.open(option.nvcomp);
    (void)main->driver.driver_version(&major);
    printf("%s, driver %d, %u threads\n", main->device.name, major,
           std::thread::hardware_concurrency());
    return true;
}

void bench::close()
{
    for (damacy__stream s : streams) {
        if (s) {
            damacy__stream_close(&main->device, s);
        }
    }
    if (main) {
        damacy__device_leave(&main->device);
    }
    for (damacy_codec* codec : codecs) {
        damacy_codec_destroy(codec);
    }
}

const frames& bench::pack(const row& r)
{
    const std::string key = r.kind + "/" + r.codec + "/" + std::to_string(r.level) + "/" +
                            std::to_string(r.size) + "/" + std::to_string(r.large);
    auto found = packed.find(key);

    if (found == packed.end()) {
        packed.clear(); // rows of one kind stand together
        found =
            packed.emplace(key, make_frames(libs, r.kind, r.codec, r.level, r.size, r.large, data))
                .first;
    }
    return found->second;
}

// Copies of the frames, each at a place of its own.
void bench::load(const row& r, const frames& f, wave* w)
{
    std::vector<uint64_t> srcs(r.n), src_sizes(r.n), dsts(r.n), capacities(r.n);

    w->n = r.n;
    w->src_size = 0;
    for (uint32_t i = 0; i < r.n; i++) {
        const size_t which = f.at_place(i, r.n, r.n_large);
        srcs[i] = w->src_size;
        src_sizes[i] = f.packed[which].size();
        w->src_size += (src_sizes[i] + 15) / 16 * 16; // nvCOMP asks for aligned frames
        dsts[i] = w->dst_size;
        capacities[i] = f.sizes[which];
        w->dst_size += f.sizes[which];
        w->which.push_back(which);
        w->places.push_back(dsts[i]);
    }
    bytes slab(w->src_size);
    parallel(r.n,
             [&](size_t i) { memcpy(&slab[srcs[i]], f.packed[w->which[i]].data(), src_sizes[i]); });
    w->src = put(slab);
    w->dst = take(w->dst_size);
    for (uint32_t i = 0; i < r.n; i++) {
        srcs[i] += w->src;
        dsts[i] += w->dst;
    }
    w->srcs = put(srcs);
    w->src_sizes = put(src_sizes);
    w->dsts = put(dsts);
    w->capacities = put(capacities);
    w->sizes = take(8 * r.n);
    w->statuses = take(4 * r.n);
}

void bench::unload(wave* w)
{
    for (uint64_t address : {w->src, w->dst, w->srcs, w->src_sizes, w->dsts, w->capacities,
                             w->sizes, w->statuses, w->scratch, w->nv_scratch}) {
        give(address);
    }
    *w = wave();
}

// n_need: frames that the scratch did not hold, which is no error of theirs.
bool bench::verify(const frames& f, const wave& w, bool is_nvcomp, uint32_t* n_need)
{
    bytes out(w.dst_size);
    std::vector<uint32_t> statuses(w.n);
    std::atomic<uint32_t> wrong{0}, need{0};

    fetch(out.data(), w.dst, w.dst_size);
    fetch(statuses.data(), w.statuses, 4 * w.n);
    parallel(w.n, [&](size_t i) {
        if (statuses[i] == DAMACY_FRAME_NEED_SCRATCH && !is_nvcomp) {
            need++;
        } else if (statuses[i] != 0 ||
                   memcmp(&out[w.places[i]], &f.content[f.at[w.which[i]]], f.sizes[w.which[i]])) {
            wrong++;
        }
    });
    must(main->driver.fill_bytes(w.dst, 0xa5, w.dst_size, streams[0]) == 0, "cuMemsetD8");
    sync();
    *n_need = need;
    return wrong == 0;
}

// Milliseconds of a batch.
double bench::batches(std::vector<wave>& waves, const decoder& f)
{
    std::vector<float> times;
    damacy__event begin = nullptr, end = nullptr;

    must(damacy__event_open(&main->device, true, &begin, &err) == DAMACY_OK, "event");
    must(damacy__event_open(&main->device, true, &end, &err) == DAMACY_OK, "event");
    for (int i = 0; i < 24; i++) {
        float ms = 0;
        must(main->driver.event_record(begin, streams[0]) == 0, "cuEventRecord");
        f(waves[i % waves.size()], streams[0]);
        must(main->driver.event_record(end, streams[0]) == 0, "cuEventRecord");
        sync();
        must(main->driver.event_elapsed(&ms, begin, end) == 0, "cuEventElapsedTime");
        if (i >= 3) {
            times.push_back(ms);
        }
    }
    damacy__event_close(&main->device, begin);
    damacy__event_close(&main->device, end);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Milliseconds of a batch within a long sequence of them.
double bench::stream_of(std::vector<wave>& waves, uint32_t n_streams, const decoder& f)
{
    enum { N = 48 };
    std::vector<double> times;

    for (int run = 0; run < 4; run++) {
        sync();
        const uint64_t begin = damacy__now_ns();
        for (int i = 0; i < N; i++) {
            f(waves[i % n_streams], streams[i % n_streams]);
        }
        for (uint32_t k = 0; k < n_streams; k++) {
            must(main->driver.stream_synchronize(streams[k]) == 0, "cuStreamSynchronize");
        }
        if (run > 0) {
            times.push_back((double)(damacy__now_ns() - begin) / 1e6 / N);
        }
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Prints the milliseconds of each kernel.
void bench::time_stages(damacy__zstd_layout* layout, damacy__zstd_call* call)
{
    static const char* const names[] = {"parse",   "prep",  "fse",  "+lits",
                                        "resolve", "place", "exec", "finish"};
    damacy__event marks[DAMACY__ZSTD_STAGES], begin;
    std::vector<float> times[DAMACY__ZSTD_STAGES];

    must(damacy__event_open(&main->device, true, &begin, &err) == DAMACY_OK, "event");
    for (damacy__event& e : marks) {
        must(damacy__event_open(&main->device, true, &e, &err) == DAMACY_OK, "event");
    }
    call->marks = marks;
    for (int run = 0; run < 8; run++) {
        must(main->driver.event_record(begin, streams[0]) == 0, "cuEventRecord");
        must(damacy__zstd_launch(&main->kernels.zstd, &main->device, layout, call, &err) ==
                 DAMACY_OK,
             "launch");
        sync();
        for (int k = 0; k < DAMACY__ZSTD_STAGES && run; k++) {
            float ms = 0;
            main->driver.event_elapsed(&ms, k ? marks[k - 1] : begin, marks[k]);
            times[k].push_back(ms);
        }
    }
    printf("%52s", "ms:");
    for (int k = 0; k < DAMACY__ZSTD_STAGES; k++) {
        std::sort(times[k].begin(), times[k].end());
        printf(" %s %.3f", names[k], times[k][times[k].size() / 2]);
    }
    printf("\n");
    for (damacy__event& e : marks) {
        damacy__event_close(&main->device, e);
    }
    damacy__event_close(&main->device, begin);
}

// The kernels of the Zstandard decoder on a batch, one by one.
void bench::stages(const row& r, const frames& f, const wave& w, const damacy_codec_limits& of)
{
    std::vector<damacy__job> jobs(r.n);
    damacy__zstd_limits limits = {};
    damacy__zstd_layout layout = {};
    damacy__zstd_call call = {};
    uint64_t at = w.src;

    for (uint32_t i = 0; i < r.n; i++) {
        memset(&jobs[i], 0, sizeof jobs[i]);
        jobs[i].src = at;
        jobs[i].src_size = f.packed[w.which[i]].size();
        jobs[i].dst = w.dst + w.places[i];
        jobs[i].dst_capacity = jobs[i].expected_size = f.sizes[w.which[i]];
        at += (jobs[i].src_size + 15) / 16 * 16;
    }
    limits.max_jobs = r.n;
    limits.dst_size = w.dst_size;
    limits.largest_size = std::max(r.size, r.large);
    limits.max_blocks = of.max_blocks;
    limits.pool_size = of.work_size;
    if (damacy__zstd_layout_of(&limits, &layout, &err) != DAMACY_OK ||
        layout.size > w.scratch_size) {
        return;
    }
    call.jobs = put(jobs);
    call.n_jobs = put(std::vector<uint32_t>(1, r.n));
    call.results = take(r.n * sizeof(damacy__job_result));
    call.scratch = w.scratch;
    call.stream = streams[0];
    time_stages(&layout, &call);
    give(call.jobs);
    give(call.n_jobs);
    give(call.results);
}

// A batch as the codec interface takes it.
static damacy_codec_batch batch_of(const wave& w)
{
    damacy_codec_batch b;

    memset(&b, 0, sizeof b);
    b.n_frames = w.n;
    b.srcs = (const void* const*)(uintptr_t)w.srcs;
    b.src_sizes = (const uint64_t*)(uintptr_t)w.src_sizes;
    b.dsts = (void* const*)(uintptr_t)w.dsts;
    b.capacities = (const uint64_t*)(uintptr_t)w.capacities;
    b.sizes = (uint64_t*)(uintptr_t)w.sizes;
    b.statuses = (uint32_t*)(uintptr_t)w.statuses;
    return b;
}

void bench::ours(damacy_codec_kind kind, const damacy_codec_limits& limits, wave& w,
                 damacy__stream stream)
{
    const damacy_codec_batch b = batch_of(w);

    must(damacy_codec_decompress(codecs[kind], &b, &limits, (void*)(uintptr_t)w.scratch,
                                 w.scratch_size, stream, &err) == DAMACY_OK,
         "damacy_codec_decompress");
}

// Takes scratch for all waves: of the size for typical data, or where that is too little, of the
// size that headers ask for.
void bench::fit(const row& r, const frames& f, std::vector<wave>& waves,
                damacy_codec_limits* limits, result* of)
{
    const damacy_codec_kind kind = kind_of(r);

    limits->max_frames = r.n;
    limits->max_frame_size = std::max(r.size, r.large);
    limits->total_size = waves[0].dst_size;
    for (;;) {
        uint32_t n_need = 0;
        limits->n_concurrent = r.streams;
        limits->n_parts = r.parts;
        for (wave& w : waves) {
            must(damacy_codec_scratch_size(kind, limits, &w.scratch_size, &err) == DAMACY_OK,
                 "scratch size");
            w.scratch = take(w.scratch_size);
        }
        ours(kind, *limits, waves[0], streams[0]);
        sync();
        of->is_right = verify(f, waves[0], false, &n_need);
        if (n_need == 0 || of->is_measured) {
            return;
        }
        const damacy_codec_batch b = batch_of(waves[0]);
        must(damacy_codec_measure(codecs[kind], &b, streams[0], limits, &err) == DAMACY_OK,
             "measure");
        of->is_measured = true;
        for (wave& w : waves) {
            give(w.scratch);
        }
    }
}

// nvCOMP on the same buffers; takes our scratch away.
void bench::theirs(const row& r, const frames& f, std::vector<wave>& waves, result* of)
{
    const bool is_zstd = kind_of(r) == DAMACY_CODEC_ZSTD;
    nvcomp_api::opts opts = {};
    bool is_fine = true;
    uint32_t need = 0;

    for (wave& w : waves) {
        size_t size = 0;
        give(w.scratch);
        w.scratch = 0;
        is_fine &= (is_zstd ? nvcomp.zstd_size : nvcomp.lz4_size)(
                       r.n, std::max(r.size, r.large), opts, &size, w.dst_size, streams[0]) == 0;
        w.nv_scratch_size = size;
        w.nv_scratch = take(size);
    }
    const auto decode = [&](wave& w, damacy__stream stream) {
        is_fine &=
            (is_zstd ? nvcomp.zstd : nvcomp.lz4)(
                (const void* const*)(uintptr_t)w.srcs, (const size_t*)(uintptr_t)w.src_sizes,
                (const size_t*)(uintptr_t)w.capacities, (size_t*)(uintptr_t)w.sizes, w.n,
                (void*)(uintptr_t)w.nv_scratch, w.nv_scratch_size, (void* const*)(uintptr_t)w.dsts,
                opts, (int*)(uintptr_t)w.statuses, stream) == 0;
    };
    of->nv_ms = r.streams ? stream_of(waves, r.streams, decode) : batches(waves, decode);
    of->nv_scratch = (double)waves[0].nv_scratch_size / (double)waves[0].dst_size;
    of->is_nvcomp_right = is_fine && verify(f, waves[0], true, &need);
}

// The line of a row, and its record.
void bench::tell(const row& r, const std::string& name, const frames& f, const result& of)
{
    const double gb = (double)size_of(r) / 1e6;

    printf("%s ratio %5.2f  %7.1f GB/s %9.3f ms  scratch %4.2f%s", name.c_str(),
           (double)f.content_size() / (double)f.packed_size(), gb / of.ms, of.ms, of.scratch,
           of.is_measured ? "*" : " ");
    if (of.nv_ms > 0) {
        printf("  nvCOMP %6.1f%s  x%5.1f (scratch %4.2f)", gb / of.nv_ms,
               of.is_nvcomp_right ? "" : " WRONG", of.nv_ms / of.ms, of.nv_scratch);
    }
    printf("  host %5.1f", of.host);
    if (r.goal > 0) {
        printf("  goal x%.1f", r.goal);
    }
    printf("  %s%s\n", r.note.c_str(), of.is_right ? "" : "  WRONG");
    if (r.n == 1) {
        printf("%52s one libzstd call on one core: %.3f ms\n", "", host_call(libs, f, r.size));
    }
    if (json) {
        fprintf(json,
                "%s{\"kind\":\"%s\",\"codec\":\"%s\",\"level\":%d,\"frame\":%llu,\"frames\":%u,"
                "\"streams\":%u,\"parts\":%u,\"n_large\":%u,\"large\":%llu,"
                "\"gb_s\":%.2f,\"ms\":%.4f,\"scratch\":%.3f,"
                "\"nvcomp_gb_s\":%.2f,\"host_gb_s\":%.2f,\"right\":%s}",
                ftell(json) > 1 ? ",\n" : "", r.kind.c_str(), r.codec.c_str(), r.level,
                (unsigned long long)r.size, r.n, r.streams, r.parts, r.n_large,
                (unsigned long long)r.large, gb / of.ms, of.ms, of.scratch,
                of.nv_ms > 0 ? gb / of.nv_ms : 0.0, of.host, of.is_right ? "true" : "false");
    }
    fflush(stdout);
}

void bench::run(const row& r)
{
    const frames& f = pack(r);
    const damacy_codec_kind kind = kind_of(r);
    const std::string name = name_of(r);
    result of;

    if (f.packed.empty()) {
        printf("%s  left out: %s\n", name.c_str(), f.missing.c_str());
        return;
    }
    // Small batches take turns with others, so that the L2 cache does not keep them.
    const uint32_t n_waves =
        r.streams ? r.streams : (uint32_t)std::min<uint64_t>(21, 1 + (128u << 20) / size_of(r));
    std::vector<wave> waves(n_waves);
    damacy_codec_limits limits = {};
    for (wave& w : waves) {
        load(r, f, &w);
    }
    fit(r, f, waves, &limits, &of);
    const auto decode = [&](wave& w, damacy__stream stream) { ours(kind, limits, w, stream); };
    of.ms = r.streams ? stream_of(waves, r.streams, decode) : batches(waves, decode);
    of.scratch = (double)waves[0].scratch_size / (double)waves[0].dst_size;
    for (wave& w : waves) {
        uint32_t need = 0;
        of.is_right &= verify(f, w, false, &need) && need == 0;
    }
    if (option.stages && kind == DAMACY_CODEC_ZSTD && !r.streams && !r.parts) {
        stages(r, f, waves[0], limits);
    }
    if (has_nvcomp && kind != DAMACY_CODEC_BLOSC) {
        theirs(r, f, waves, &of);
    }
    of.host = r.n_large ? 0 : host_rate(libs, f, r.codec, r.size);
    has_wrong |= !of.is_right;
    tell(r, name, f, of);
    for (wave& w : waves) {
        unload(&w);
    }
}

int main(int argc, char** argv)
{
    bench b;

    for (int i = 1; i < argc; i++) {
        if (!parse(&b.option, argv[i])) {
            fprintf(stderr, "decoder: no such option: %s\n", argv[i]);
            return 2;
        }
    }
    b.libs.open();
    if (!b.option.data.empty() && (b.data = read_file(b.option.data, SIZE_MAX)).size() < 65536) {
        fprintf(stderr, "decoder: %s: cannot be read, or less than 64 KiB\n",
                b.option.data.c_str());
        return 2;
    }
    std::vector<row> rows;
    if (!choose_rows(b.option, b.data.size(), &rows)) {
        fprintf(stderr, "decoder: %s: no rows, or not as bench/decoder_rows.h says\n",
                b.option.rows.c_str());
        return 2;
    }
    const bool has_gpu = b.open();
    if (!b.option.json.empty() && has_gpu) {
        b.json = fopen(b.option.json.c_str(), "w");
        if (!b.json) {
            fprintf(stderr, "decoder: cannot write %s\n", b.option.json.c_str());
            return 1;
        }
        fprintf(b.json, "[");
    }
    for (const row& r : rows) {
        const std::string name = r.kind + " " + r.codec + (r.streams ? " stream" : "");
        if (name.find(b.option.only) == std::string::npos || (!has_gpu && r.streams)) {
            continue;
        }
        if (has_gpu) {
            b.run(r);
        } else {
            const frames& f = b.pack(r);
            printf("%-12s %-11s L%-2d %7.0f KiB  ratio %5.2f  host %5.1f GB/s\n", r.kind.c_str(),
                   r.codec.c_str(), r.level, (double)r.size / 1024.0,
                   f.packed.empty() ? 0.0 : (double)f.content_size() / (double)f.packed_size(),
                   f.packed.empty() || r.n_large ? 0.0 : host_rate(b.libs, f, r.codec, r.size));
            fflush(stdout);
        }
    }
    b.close();
    if (b.json) {
        fprintf(b.json, "]\n");
        fclose(b.json);
    }
    return b.has_wrong ? 1 : 0;
}
