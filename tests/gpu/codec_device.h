// Batches of frames through damacy_codec_*, on whatever driver the codec has: uploaded at skewed
// addresses between canaries, decompressed, fetched back. The program has included damacy.h with
// its implementation, the driver's test double before that if it wants one.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

typedef std::vector<uint8_t> codec_bytes;

struct codec_frame {
    codec_bytes src;
    uint64_t capacity = 0;
    uint32_t status = 0xeeeeeeee;
    uint64_t size = 0;
    uint64_t error_offset = 0;
    codec_bytes out;
    bool is_clean = true; // nothing around the output was written
};

enum { CODEC_CANARY = 64, CODEC_POISON = 0xa5 };

// How a batch is run.
struct codec_options {
    uint32_t skew = 0;         // of sources and outputs
    bool is_measured = false;  // limits of this very batch, instead of sizes alone
    uint64_t scratch_size = 0; // other than asked for
    const damacy_codec_limits* limits = nullptr;
    uint32_t n_present = UINT32_MAX; // not all frames are there
    // queues the work that it is given once, then runs it, perhaps several times, and waits
    std::function<void(const std::function<void()>&)> around;
};

struct codec_machine {
    damacy_codec* codec = nullptr;
    damacy_codec_kind kind = DAMACY_CODEC_ZSTD;
    damacy_error err = {};
    damacy__stream stream = nullptr;
    std::vector<uint64_t> held;

    damacy_status open(damacy_codec_kind of, const damacy_config* config)
    {
        kind = of;
        const damacy_status status = damacy_codec_create(of, config, &codec, &err);
        if (status == DAMACY_OK) {
            must(damacy__device_enter(&codec->device, &err));
            must(damacy__stream_open(&codec->device, false, &stream, &err));
            codec->graphs.is_eager = true; // or a batch that comes once would have none
            // tests/gpu/sanitize.sh names and counts launches: kernel by kernel there
            codec->graphs.is_refused = getenv("DAMACY_TEST_SMALL") != nullptr;
        }
        return status;
    }

    void close()
    {
        damacy__stream_close(&codec->device, stream);
        damacy__device_leave(&codec->device);
        damacy_codec_destroy(codec);
        codec = nullptr;
    }

    void must(damacy_status status)
    {
        if (status != DAMACY_OK) {
            printf("# %s\n", err.message);
            CHECK_EQ(status, DAMACY_OK);
        }
    }

    uint64_t take(uint64_t size)
    {
        uint64_t address = 0;
        CHECK_EQ(codec->driver.memory_alloc(&address, size ? size : 1), 0);
        held.push_back(address);
        return address;
    }

    void give_all()
    {
        for (const uint64_t address : held) {
            CHECK_EQ(codec->driver.memory_free(address), 0);
        }
        held.clear();
    }

    void sync()
    {
        CHECK_EQ(codec->driver.stream_synchronize(stream), 0);
    }

    template <class T> uint64_t put(const std::vector<T>& v)
    {
        const uint64_t to = take(v.size() * sizeof(T));
        if (!v.empty()) {
            CHECK_EQ(codec->driver.copy_to_device(to, v.data(), v.size() * sizeof(T), stream), 0);
            sync();
        }
        return to;
    }

    template <class T> std::vector<T> get(uint64_t from, size_t n)
    {
        std::vector<T> v(n);
        if (n) {
            CHECK_EQ(codec->driver.copy_to_host(v.data(), from, n * sizeof(T), stream), 0);
            sync();
        }
        return v;
    }

    damacy_codec_batch upload(const std::vector<codec_frame>& frames, uint32_t skew,
                              std::vector<uint64_t>* dsts, uint64_t* slab, uint64_t* slab_size);
    damacy_status run(std::vector<codec_frame>& frames, const codec_options& options);
};

template <class T> static T* codec_ptr(uint64_t address)
{
    return (T*)(uintptr_t)address;
}

// Everything that the call reads and writes, on the device.
inline damacy_codec_batch codec_machine::upload(const std::vector<codec_frame>& frames,
                                                uint32_t skew, std::vector<uint64_t>* dsts,
                                                uint64_t* slab, uint64_t* slab_size)
{
    const size_t n = frames.size();
    std::vector<uint64_t> srcs, src_sizes, capacities;
    codec_bytes in;
    uint64_t size = 0;

    dsts->clear();
    for (size_t i = 0; i < n; i++) {
        in.resize(in.size() + (skew + 3 * i) % 16);
        srcs.push_back(in.size());
        src_sizes.push_back(frames[i].src.size());
        in.insert(in.end(), frames[i].src.begin(), frames[i].src.end());
        size += CODEC_CANARY + (5 * skew + i) % 16;
        dsts->push_back(size);
        capacities.push_back(frames[i].capacity);
        size += frames[i].capacity + CODEC_CANARY;
    }
    const uint64_t base = put(in);
    *slab_size = size;
    *slab = take(size);
    CHECK_EQ(codec->driver.fill_bytes(*slab, CODEC_POISON, size ? size : 1, stream), 0);
    for (size_t i = 0; i < n; i++) {
        srcs[i] += base;
        (*dsts)[i] += *slab;
    }
    damacy_codec_batch b;
    memset(&b, 0, sizeof b);
    b.n_frames = (uint32_t)n;
    b.srcs = codec_ptr<const void* const>(put(srcs));
    b.src_sizes = codec_ptr<uint64_t>(put(src_sizes));
    b.dsts = codec_ptr<void* const>(put(*dsts));
    b.capacities = codec_ptr<uint64_t>(put(capacities));
    b.sizes = codec_ptr<uint64_t>(put(std::vector<uint64_t>(n, 0xee)));
    b.statuses = codec_ptr<uint32_t>(put(std::vector<uint32_t>(n, 0xeeeeeeee)));
    b.error_offsets = codec_ptr<uint64_t>(put(std::vector<uint64_t>(n, 0xee)));
    return b;
}

// The frames' results are filled in, and the outputs' surroundings looked at.
inline damacy_status codec_machine::run(std::vector<codec_frame>& frames,
                                        const codec_options& options)
{
    const size_t n = frames.size();
    std::vector<uint64_t> dsts;
    uint64_t slab = 0, slab_size = 0, scratch_size = 0;
    damacy_codec_limits limits;
    damacy_status status = DAMACY_OK;
    damacy_codec_batch b = upload(frames, options.skew, &dsts, &slab, &slab_size);

    memset(&limits, 0, sizeof limits);
    limits.max_frames = (uint32_t)n;
    limits.max_frame_size = 1;
    for (const codec_frame& f : frames) {
        limits.max_frame_size = std::max(limits.max_frame_size, f.capacity);
        limits.total_size += f.capacity;
    }
    if (options.n_present != UINT32_MAX) {
        b.n_present = codec_ptr<uint32_t>(put(std::vector<uint32_t>(1, options.n_present)));
    }
    if (options.is_measured) {
        must(damacy_codec_measure(codec, &b, stream, &limits, &err));
    }
    if (options.limits) {
        limits = *options.limits;
    }
    must(damacy_codec_scratch_size(kind, &limits, &scratch_size, &err));
    if (options.scratch_size) {
        scratch_size = options.scratch_size;
    }
    void* const scratch = codec_ptr<void>(take(scratch_size));
    CHECK_EQ(codec->driver.fill_bytes((uint64_t)(uintptr_t)scratch, 0xcc,
                                      std::min<uint64_t>(scratch_size, 64 << 20), stream),
             0);
    const std::function<void()> work = [&] {
        status = damacy_codec_decompress(codec, &b, &limits, scratch, scratch_size, stream, &err);
    };
    if (options.around) {
        sync();
        options.around(work);
    } else {
        work();
    }
    sync();
    const codec_bytes all = get<uint8_t>(slab, slab_size);
    const std::vector<uint32_t> statuses = get<uint32_t>((uint64_t)(uintptr_t)b.statuses, n);
    const std::vector<uint64_t> sizes = get<uint64_t>((uint64_t)(uintptr_t)b.sizes, n);
    const std::vector<uint64_t> offsets = get<uint64_t>((uint64_t)(uintptr_t)b.error_offsets, n);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        codec_frame& f = frames[i];
        const uint64_t begin = dsts[i] - slab, end = begin + f.capacity;
        f.status = statuses[i];
        f.size = sizes[i];
        f.error_offset = offsets[i];
        f.is_clean = true;
        for (; at < end + CODEC_CANARY; at++) {
            f.is_clean = f.is_clean && ((at >= begin && at < end) || all[at] == CODEC_POISON);
        }
        const uint64_t size = f.status == DAMACY_FRAME_OK ? std::min(f.size, f.capacity) : 0;
        f.out.assign(all.begin() + (long)begin, all.begin() + (long)(begin + size));
    }
    give_all();
    return status;
}
