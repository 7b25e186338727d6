// damacy_codec_* on the fake driver, whose device runs the kernels on the CPU: every kind of frame,
// sizes, limits, scratch, hostile frames among good ones, capture.
#include "tests/pipeline/codec_scene.h"
#include "tests/gpu/codec_waves.h"

TEST(every_kind_decodes_with_scratch_of_either_query)
{
    for (const damacy_codec_kind kind : kinds) {
        codec_machine m = open_codec(kind);
        CHECK_EQ(damacy_codec_device(m.codec), DAMACY_GPU(0));
        for (int pass = 0; pass < 4; pass++) {
            scene s = make_scene(kind, pass < 2 ? 11 : 3, 5 + (uint64_t)pass);
            codec_options o;
            o.is_measured = pass % 2;
            o.skew = (uint32_t)pass;
            m.must(m.run(s.frames, o));
            for (size_t i = 0; i < s.frames.size(); i++) {
                CHECK(is_right(s.frames[i], s.raw[i]));
            }
        }
        close_codec(m);
    }
}

TEST(a_frame_that_fails_leaves_its_neighbours_alone)
{
    for (const damacy_codec_kind kind : kinds) {
        codec_machine m = open_codec(kind);
        uint64_t seed = 99;
        scene s = make_scene(kind, 12, 7);
        for (size_t i = 0; i < 12; i += 2) { // cut, flip, too little room
            codec_frame& f = s.frames[i];
            if (i % 6 == 0) {
                f.src.resize(f.src.size() / 2);
            } else if (i % 6 == 2) {
                f.src[f.src.size() / 2] ^= (uint8_t)(1 + (test_random(&seed) >> 57));
            } else {
                f.capacity /= 2;
            }
        }
        for (int pass = 0; pass < 2; pass++) {
            codec_options o;
            o.is_measured = pass;
            o.skew = 9;
            m.must(m.run(s.frames, o));
            for (size_t i = 0; i < 12; i++) {
                const codec_frame& f = s.frames[i];
                if (i % 2) {
                    CHECK(is_right(f, s.raw[i]));
                    continue;
                }
                CHECK(f.is_clean);
                CHECK(f.status != DAMACY_FRAME_NOT_RUN && f.status <= DAMACY_FRAME_TRAILING);
                if (i % 6 == 0) {
                    CHECK(f.status != DAMACY_FRAME_OK);
                }
                if (i % 6 == 4) {
                    CHECK_EQ(f.status, DAMACY_FRAME_NO_SPACE);
                    CHECK(f.size == s.raw[i].size() || (kind == DAMACY_CODEC_LZ4 && f.size == 0));
                }
                CHECK(strcmp(damacy_frame_status_str(f.status), "unknown") != 0);
            }
        }
        close_codec(m);
    }
}

// As many frames as shapes of execution of their own begin with, of every density.
TEST(waves_of_shuffled_blosc_of_every_density_decode)
{
#if TEST_TSAN
    SKIP("the thread sanitizer of clang 14 breaks down after so many fibers");
#endif
    static const codec_wave waves[] = {{210, 700, 64, 40, 4},    {210, 700, 64, 40, 0},
                                       {70, 2800, 64, 40, 0, 4}, {140, 700, 64, 40, 0},
                                       {610, 700, 64, 40, 4},    {610, 700, 64, 5, 4},
                                       {1210, 700, 64, 20, 4}};
    codec_machine m = open_codec(DAMACY_CODEC_BLOSC);
    uint64_t seed = test_seed();

    for (const codec_wave& wave : waves) {
        check_codec_wave(m, wave, &seed);
    }
    close_codec(m);
}

// By teams, by teams as they shrink, by a warp each.
TEST(waves_of_shuffled_blosc_of_lz4_decode)
{
    uint64_t seed = test_seed();
    codec_machine m = open_codec(DAMACY_CODEC_BLOSC);
    for (const unsigned n : {2u, 9u, 40u}) {
        check_waves_of_planes(m, {n, 1024, 128, 10, 0, 4}, &seed);
    }
    close_codec(m);
}

TEST(sizes_come_from_headers)
{
    for (const damacy_codec_kind kind : kinds) {
        codec_machine m = open_codec(kind);
        scene s = make_scene(kind, 9, 21);
        std::vector<uint64_t> dsts;
        uint64_t slab, slab_size;
        s.frames[4].src.resize(3); // no header
        damacy_codec_batch b = m.upload(s.frames, 3, &dsts, &slab, &slab_size);
        b.dsts = NULL; // not looked at
        b.capacities = NULL;
        m.must(damacy_codec_sizes(m.codec, &b, m.stream, &m.err));
        const std::vector<uint64_t> sizes = m.get<uint64_t>((uint64_t)(uintptr_t)b.sizes, 9);
        for (size_t i = 0; i < 9; i++) {
            if (i != 4) {
                CHECK_EQ(sizes[i], s.raw[i].size());
            } else {
                CHECK_EQ(sizes[i], DAMACY_SIZE_UNKNOWN);
            }
        }
        b.sizes = NULL;
        CHECK_EQ(damacy_codec_sizes(m.codec, &b, m.stream, &m.err), DAMACY_INVAL);
        CHECK_HAS(m.err.message, "sizes");
        close_codec(m);
    }
}

TEST(frames_in_a_row_and_frames_without_a_size_are_decoded)
{
    codec_machine m = open_codec(DAMACY_CODEC_ZSTD);
    uint64_t seed = 3;
    const bytes a = sample(5000, &seed), b = sample(70000, &seed);
    bytes both = a, out(100000);
    codec_frame f, g;
    both.insert(both.end(), b.begin(), b.end());
    f.src = pack(DAMACY_CODEC_ZSTD, a, 0);
    const bytes skippable = {0x52, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3},
                second = pack(DAMACY_CODEC_ZSTD, b, 1);
    f.src.insert(f.src.end(), skippable.begin(), skippable.end());
    f.src.insert(f.src.end(), second.begin(), second.end());
    f.capacity = both.size() + 100;
    ZSTD_CCtx* const c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    out.resize(ZSTD_compress2(c, out.data(), out.size(), b.data(), b.size()));
    ZSTD_freeCCtx(c);
    g.src = out;
    g.capacity = b.size();
    for (int pass = 0; pass < 2; pass++) {
        std::vector<codec_frame> frames = {f, g, f, g};
        codec_options o;
        o.is_measured = pass;
        frames[3].src[frames[3].src.size() - 1] ^= 1; // of the checksum
        m.must(m.run(frames, o));
        CHECK(is_right(frames[0], both));
        CHECK(is_right(frames[1], b));
        CHECK(is_right(frames[2], both));
        CHECK_EQ(frames[3].status, DAMACY_FRAME_BAD_CHECKSUM);
    }
    close_codec(m);
}

TEST(what_does_not_fit_the_scratch_says_so)
{
    codec_machine m = open_codec(DAMACY_CODEC_ZSTD);
    scene s = make_scene(DAMACY_CODEC_ZSTD, 30, 4);
    damacy_codec_limits limits;
    uint64_t least = 0;
    codec_options o;
    uint32_t n_ok = 0, n_refused = 0;
    memset(&limits, 0, sizeof limits);
    limits.max_frames = 30;
    limits.max_frame_size = 30000;
    limits.total_size = 30000; // a promise that is broken: there are 30 times as many bytes
    o.limits = &limits;
    m.must(m.run(s.frames, o));
    for (size_t i = 0; i < 30; i++) {
        CHECK(s.frames[i].is_clean);
        if (s.frames[i].status == DAMACY_FRAME_OK) {
            CHECK(is_right(s.frames[i], s.raw[i]));
            n_ok++;
        } else {
            CHECK_EQ(s.frames[i].status, DAMACY_FRAME_NEED_SCRATCH);
            CHECK_EQ(s.frames[i].size, 0);
            n_refused++;
        }
    }
    printf("# %u decoded, %u refused\n", n_ok, n_refused);
    CHECK(n_ok > 0 && n_refused > 0);
    m.must(damacy_codec_scratch_size(DAMACY_CODEC_ZSTD, &limits, &least, &m.err));
    o.scratch_size = least - 256;
    CHECK_EQ(m.run(s.frames, o), DAMACY_BUDGET);
    CHECK_HAS(m.err.message, "scratch of");
    CHECK_EQ(s.frames[0].status, 0xeeeeeeee); // nothing ran
    for (const damacy_codec_kind kind : kinds) {
        codec_machine other = open_codec(kind);
        scene t = make_scene(kind, 5, 6);
        codec_options p;
        const bool has_tables_only = kind == DAMACY_CODEC_LZ4 || kind == DAMACY_CODEC_LZ4_SIZED;
        for (const uint64_t size : {1, 255, 256, 767, has_tables_only ? 767 : 5000}) {
            p.scratch_size = size;
            CHECK_EQ(other.run(t.frames, p), DAMACY_BUDGET);
        }
        other.close();
    }
    close_codec(m);
}

TEST(parts_of_a_batch_take_turns_in_a_smaller_scratch)
{
    codec_machine m = open_codec(DAMACY_CODEC_ZSTD);
    for (const uint32_t n_parts : {2u, 5u, 64u}) {
        scene s = make_scene(DAMACY_CODEC_ZSTD, 30, 8 + n_parts);
        damacy_codec_limits limits;
        uint64_t whole = 0, part = 0;
        codec_options o;
        memset(&limits, 0, sizeof limits);
        limits.max_frames = 40; // the last parts have no frames
        limits.max_frame_size = 30000;
        m.must(damacy_codec_scratch_size(DAMACY_CODEC_ZSTD, &limits, &whole, &m.err));
        limits.n_parts = n_parts;
        m.must(damacy_codec_scratch_size(DAMACY_CODEC_ZSTD, &limits, &part, &m.err));
        CHECK(n_parts == 2 || part < whole);
        o.limits = &limits;
        m.must(m.run(s.frames, o));
        for (size_t i = 0; i < 30; i++) {
            CHECK(s.frames[i].is_clean);
            CHECK_EQ(s.frames[i].status, DAMACY_FRAME_OK);
            CHECK(is_right(s.frames[i], s.raw[i]));
        }
    }
    close_codec(m);
}

// Kernel by kernel first, then by a graph, whose parameters change with the batch; in parts, and
// beside other batches with and without branches.
TEST(batches_that_come_again_are_launched_by_graphs)
{
#if TEST_TSAN
    SKIP("the thread sanitizer of clang 14 breaks down after so many fibers");
#endif
    for (const damacy_codec_kind kind : kinds) {
        for (const uint32_t n_concurrent : {0u, 2u, 500u}) {
            codec_machine m = open_codec(kind);
            fake_counts counts;
            m.codec->graphs.is_eager = false;
            for (uint64_t pass = 0; pass < 5; pass++) {
                scene s = make_scene(kind, 5 + pass % 2, 300 + pass);
                damacy_codec_limits limits;
                codec_options o;
                memset(&limits, 0, sizeof limits);
                limits.max_frames = 6;
                limits.max_frame_size = 30000;
                limits.n_concurrent = n_concurrent;
                limits.n_parts = n_concurrent == 2 && kind == DAMACY_CODEC_ZSTD ? 2 : 0;
                o.limits = &limits;
                m.must(m.run(s.frames, o));
                for (size_t i = 0; i < s.frames.size(); i++) {
                    CHECK(is_right(s.frames[i], s.raw[i]));
                }
                fake_count(&counts);
                CHECK_EQ(counts.n_graph_launches, pass);
            }
            CHECK(counts.n_graphs >= 1 && counts.n_graphs <= 3);
            CHECK(counts.n_updates > 0);
            close_codec(m);
        }
    }
}

TEST(batches_decode_whatever_of_graphs_the_driver_refuses)
{
    static const char* const functions[] = {"graph_create", "graph_add",    "graph_instantiate",
                                            "graph_update", "graph_launch", "capture_mode"};
    for (const char* const function : functions) {
        codec_machine m = open_codec(DAMACY_CODEC_BLOSC);
        fake_fail(function, 0, DAMACY__CUDA_OUT_OF_MEMORY);
        for (uint64_t pass = 0; pass < 3; pass++) {
            scene s = make_scene(DAMACY_CODEC_BLOSC, 5, 400 + pass);
            codec_options o;
            m.must(m.run(s.frames, o));
            for (size_t i = 0; i < s.frames.size(); i++) {
                CHECK(is_right(s.frames[i], s.raw[i]));
            }
        }
        CHECK(m.codec->graphs.is_refused);
        close_codec(m);
    }
}

// With a block less, the last frame that needs it is refused; with a little less for records, none,
// as fewer of them come than may; with half as much, some.
TEST(measured_limits_are_what_the_batch_needs)
{
    codec_machine m = open_codec(DAMACY_CODEC_ZSTD);
    scene s = make_scene(DAMACY_CODEC_ZSTD, 11, 13);
    std::vector<uint64_t> dsts;
    uint64_t slab, slab_size;
    damacy_codec_limits limits, less;
    const damacy_codec_batch b = m.upload(s.frames, 0, &dsts, &slab, &slab_size);
    m.must(damacy_codec_measure(m.codec, &b, m.stream, &limits, &m.err));
    uint64_t total = 0;
    for (const codec_frame& f : s.frames) {
        total += f.capacity;
    }
    CHECK_EQ(limits.max_frames, 11);
    CHECK_EQ(limits.total_size, total);
    CHECK_EQ(limits.max_blocks, 11);
    for (int pass = 0; pass < 4; pass++) {
        codec_options o;
        uint32_t n_refused = 0;
        less = limits;
        less.work_size -= pass == 1 ? 512 : pass == 3 ? less.work_size / 2 : 0;
        less.max_blocks -= pass == 2 ? 1 : 0;
        o.limits = &less;
        m.must(m.run(s.frames, o));
        for (size_t i = 0; i < 11; i++) {
            if (s.frames[i].status == DAMACY_FRAME_NEED_SCRATCH) {
                n_refused++;
            } else {
                CHECK(is_right(s.frames[i], s.raw[i]));
            }
        }
        CHECK(pass == 3 ? n_refused > 1 && n_refused < 11 : n_refused == (pass == 2 ? 1 : 0));
    }
    close_codec(m);
}

// Every frame in an allocation of its own, so that a sanitizer sees what is read beside it.
TEST(headers_of_hostile_frames_are_read_within_bounds)
{
    uint64_t seed = 4242;
    for (const damacy_codec_kind kind : kinds) {
        codec_machine m = open_codec(kind);
        scene s = make_scene(kind, 60, 17);
        std::vector<uint64_t> srcs, sizes, dsts, capacities;
        damacy_codec_limits limits;
        damacy_codec_batch b;
        uint64_t size = 0;
        for (size_t i = 0; i < 60; i++) {
            bytes& v = s.frames[i].src;
            for (unsigned k = 0; k <= i % 3; k++) {
                const size_t most = i % 2 ? v.size() : std::min<size_t>(v.size(), 24);
                v[(test_random(&seed) >> 33) % most] = (uint8_t)(test_random(&seed) >> 56);
            }
            if (i % 4 == 0) {
                v.resize((test_random(&seed) >> 33) % std::min<size_t>(v.size(), 40));
            }
            srcs.push_back(m.put(v));
            sizes.push_back(v.size());
            dsts.push_back(m.take(s.frames[i].capacity));
            capacities.push_back(s.frames[i].capacity);
        }
        memset(&b, 0, sizeof b);
        b.n_frames = 60;
        b.srcs = codec_ptr<const void* const>(m.put(srcs));
        b.src_sizes = codec_ptr<uint64_t>(m.put(sizes));
        b.dsts = codec_ptr<void* const>(m.put(dsts));
        b.capacities = codec_ptr<uint64_t>(m.put(capacities));
        b.sizes = codec_ptr<uint64_t>(m.take(60 * 8));
        b.statuses = codec_ptr<uint32_t>(m.take(60 * 4));
        m.must(damacy_codec_sizes(m.codec, &b, m.stream, &m.err));
        const std::vector<uint64_t> told = m.get<uint64_t>((uint64_t)(uintptr_t)b.sizes, 60);
        m.must(damacy_codec_measure(m.codec, &b, m.stream, &limits, &m.err));
        m.must(damacy_codec_scratch_size(kind, &limits, &size, &m.err));
        m.must(damacy_codec_decompress(m.codec, &b, &limits, codec_ptr<void>(m.take(size)), size,
                                       m.stream, &m.err));
        const std::vector<uint32_t> statuses = m.get<uint32_t>((uint64_t)(uintptr_t)b.statuses, 60);
        const std::vector<uint64_t> made = m.get<uint64_t>((uint64_t)(uintptr_t)b.sizes, 60);
        uint32_t n_ok = 0;
        for (size_t i = 0; i < 60; i++) {
            CHECK(statuses[i] != DAMACY_FRAME_NOT_RUN && statuses[i] != DAMACY_FRAME_NEED_SCRATCH);
            n_ok += statuses[i] == DAMACY_FRAME_OK;
            if (statuses[i] == DAMACY_FRAME_OK && told[i] != DAMACY_SIZE_UNKNOWN) {
                CHECK_EQ(told[i], made[i]);
            }
        }
        printf("# kind %d: %u of 60 decoded\n", (int)kind, n_ok);
        close_codec(m);
    }
}

TEST(a_batch_may_hold_fewer_frames_than_the_host_knows)
{
    for (const damacy_codec_kind kind : kinds) {
        codec_machine m = open_codec(kind);
        scene s = make_scene(kind, 6, 8);
        codec_options o;
        o.n_present = 4;
        m.must(m.run(s.frames, o));
        for (size_t i = 0; i < 6; i++) {
            if (i < 4) {
                CHECK(is_right(s.frames[i], s.raw[i]));
            } else {
                CHECK_EQ(s.frames[i].status, 0xeeeeeeee);
                CHECK_EQ(s.frames[i].size, 0xee);
            }
        }
        close_codec(m);
    }
}

TEST(misuse_is_refused_by_name)
{
    codec_machine m = open_codec(DAMACY_CODEC_ZSTD);
    scene s = make_scene(DAMACY_CODEC_ZSTD, 2, 8);
    std::vector<uint64_t> dsts;
    uint64_t slab, slab_size, size = 0;
    damacy_codec_limits limits;
    damacy_codec* codec = NULL;
    damacy_config config;
    memset(&limits, 0, sizeof limits);
    memset(&config, 0, sizeof config);
    const damacy_codec_batch good = m.upload(s.frames, 0, &dsts, &slab, &slab_size);
    damacy_codec_batch b = good;
    CHECK_EQ(damacy_codec_scratch_size(DAMACY_CODEC_ZSTD, &limits, &size, &m.err), DAMACY_INVAL);
    CHECK_HAS(m.err.message, "max_frame_size");
    limits.max_frame_size = UINT64_C(1) << 31;
    CHECK_EQ(damacy_codec_scratch_size(DAMACY_CODEC_LZ4, &limits, &size, NULL), DAMACY_INVAL);
    limits.max_frame_size = 30000;
    m.must(damacy_codec_scratch_size(DAMACY_CODEC_ZSTD, &limits, &size, &m.err)); // no frames
    CHECK(size > 0);
    limits.max_frames = 2;
    limits.total_size = UINT64_MAX;
    CHECK_EQ(damacy_codec_scratch_size(DAMACY_CODEC_BLOSC, &limits, &size, NULL), DAMACY_INVAL);
    limits.total_size = 0;
    m.must(damacy_codec_scratch_size(DAMACY_CODEC_ZSTD, &limits, &size, &m.err));
    char* const scratch = codec_ptr<char>(m.take(size + 256));
#define REFUSED(text, at)                                                               \
    CHECK_EQ(damacy_codec_decompress(m.codec, &b, &limits, at, size, m.stream, &m.err), \
             DAMACY_INVAL);                                                             \
    CHECK_HAS(m.err.message, text);                                                     \
    b = good
    b.n_frames = 3;
    REFUSED("max_frames", scratch);
    b.srcs = NULL;
    REFUSED("srcs", scratch);
    b.capacities = NULL;
    REFUSED("capacities", scratch);
    b.sizes = (uint64_t*)((char*)b.sizes + 4);
    REFUSED("aligned", scratch);
    REFUSED("scratch", scratch + 128);
    REFUSED("scratch", (void*)NULL);
    CHECK_EQ(damacy_codec_decompress(NULL, &b, &limits, scratch, size, m.stream, NULL),
             DAMACY_INVAL);
    b.n_frames = 0; // no frames: nothing is looked at
    m.must(damacy_codec_decompress(m.codec, &b, NULL, NULL, 0, m.stream, &m.err));
    m.must(damacy_codec_sizes(m.codec, &b, m.stream, &m.err));
    m.must(damacy_codec_measure(m.codec, &b, m.stream, &limits, &m.err));
    CHECK_EQ(limits.max_frames, 0);
    config.device = DAMACY_CPU;
    CHECK_EQ(damacy_codec_create(DAMACY_CODEC_LZ4, &config, &codec, &m.err), DAMACY_UNSUPPORTED);
    CHECK(codec == NULL);
    CHECK_EQ(damacy_codec_create(DAMACY_CODEC_LZ4, NULL, NULL, NULL), DAMACY_INVAL);
    config.device = DAMACY_GPU(3);
    CHECK_EQ(damacy_codec_create(DAMACY_CODEC_LZ4, &config, &codec, &m.err), DAMACY_UNSUPPORTED);
    damacy_codec_destroy(NULL);
    close_codec(m);
}

TEST(the_context_is_the_one_given_or_current_and_stays_as_it_was)
{
    for (int is_given = 0; is_given < 2; is_given++) {
        enroll_kernels();
        memset(&machine, 0, sizeof machine);
        machine.n_devices = 2;
        CHECK_EQ(load_fake(&table, NULL), 0);
        damacy__context mine = fake_context(1), other = fake_context(0), now = NULL;
        codec_machine m;
        damacy_config config;
        damacy_codec_limits limits;
        std::vector<uint64_t> dsts;
        uint64_t slab, slab_size, size = 0;
        memset(&config, 0, sizeof config);
        config.cache_dir = "";
        config.cuda_context = is_given ? mine : NULL;
        CHECK_EQ(fake::context_push(is_given ? other : mine), 0);
        m.must(m.open(DAMACY_CODEC_LZ4, &config));
        m.codec->device.n_multiprocessors = 1;
        CHECK_EQ(damacy_codec_device(m.codec), DAMACY_GPU(1));
        scene s = make_scene(DAMACY_CODEC_LZ4, 3, 5);
        const damacy_codec_batch b = m.upload(s.frames, 0, &dsts, &slab, &slab_size);
        CHECK_EQ(fake::context_push(other), 0); // what the caller uses meanwhile
        m.must(damacy_codec_measure(m.codec, &b, m.stream, &limits, &m.err));
        m.must(damacy_codec_scratch_size(DAMACY_CODEC_LZ4, &limits, &size, &m.err));
        void* const scratch = codec_ptr<void>(m.take(size));
        m.must(damacy_codec_decompress(m.codec, &b, &limits, scratch, size, m.stream, &m.err));
        CHECK_EQ(fake::context_current(&now), 0);
        CHECK(now == other);
        CHECK_EQ(fake::context_pop(&now), 0);
        const std::vector<uint32_t> statuses = m.get<uint32_t>((uint64_t)(uintptr_t)b.statuses, 3);
        CHECK(statuses[0] == DAMACY_FRAME_OK && statuses[2] == DAMACY_FRAME_OK);
        m.give_all();
        m.close();
        CHECK_EQ(fake::context_current(&now), 0);
        CHECK(now == (is_given ? other : mine));
        CHECK_EQ(fake::context_pop(&now), 0);
        fake_counts counts;
        fake_count(&counts);
        CHECK_EQ(counts.misuse, 0);
        CHECK_EQ(counts.live_primary, 0);
        fake_close();
        has_machine = false;
    }
}

TEST(frames_without_an_address_are_skipped)
{
    for (const damacy_codec_kind kind : kinds) {
        codec_machine m = open_codec(kind);
        scene s = make_scene(kind, 5, 8);
        std::vector<uint64_t> dsts;
        uint64_t slab, slab_size, size = 0;
        damacy_codec_limits limits;
        damacy_codec_batch b = m.upload(s.frames, 0, &dsts, &slab, &slab_size);
        std::vector<uint64_t> srcs = m.get<uint64_t>((uint64_t)(uintptr_t)b.srcs, 5);
        srcs[1] = 0;
        dsts[3] = 0;
        b.srcs = codec_ptr<const void* const>(m.put(srcs));
        b.dsts = codec_ptr<void* const>(m.put(dsts));
        m.must(damacy_codec_measure(m.codec, &b, m.stream, &limits, &m.err));
        m.must(damacy_codec_scratch_size(kind, &limits, &size, &m.err));
        m.must(damacy_codec_decompress(m.codec, &b, &limits, codec_ptr<void>(m.take(size)), size,
                                       m.stream, &m.err));
        const std::vector<uint32_t> statuses = m.get<uint32_t>((uint64_t)(uintptr_t)b.statuses, 5);
        for (size_t i = 0; i < 5; i++) {
            CHECK_EQ(statuses[i], i % 2 ? DAMACY_FRAME_SKIPPED : DAMACY_FRAME_OK);
        }
        close_codec(m);
    }
}

// The graph is launched twice, the second time over poisoned outputs.
TEST(a_captured_batch_runs_whenever_its_graph_does)
{
#if TEST_TSAN
    SKIP("the thread sanitizer of clang 14 breaks down after so many fibers");
#endif
    for (const damacy_codec_kind kind : kinds) {
        for (int many = 0; many < 2; many++) { // the second time as if there were many blocks
            codec_machine m = open_codec(kind);
            scene s = make_scene(kind, 5, 31);
            damacy_codec_limits large;
            codec_options o;
            uint64_t n_runs = 0;
            memset(&large, 0, sizeof large);
            large.max_frames = 9;
            large.max_frame_size = 200 << 20;
            large.total_size = 600 << 20;
            o.limits = many ? &large : NULL;
            o.around = [&](const std::function<void()>& work) {
                fake_capture_begin(m.stream);
                work();
                const std::vector<fake::operation> graph = fake_capture_end();
                m.sync();
                for (n_runs = 0; n_runs < 2; n_runs++) {
                    fake_replay(graph, m.stream);
                    m.sync();
                }
            };
            m.must(m.run(s.frames, o));
            CHECK_EQ(n_runs, 2);
            for (size_t i = 0; i < s.frames.size(); i++) {
                CHECK(is_right(s.frames[i], s.raw[i]));
            }
            if (many) { // and without a capture: side streams
                o.around = nullptr;
                m.must(m.run(s.frames, o));
                for (size_t i = 0; i < s.frames.size(); i++) {
                    CHECK(is_right(s.frames[i], s.raw[i]));
                }
            }
            close_codec(m);
        }
    }
}

TEST(measuring_is_refused_while_the_stream_captures)
{
    codec_machine m = open_codec(DAMACY_CODEC_ZSTD);
    scene s = make_scene(DAMACY_CODEC_ZSTD, 2, 31);
    std::vector<uint64_t> dsts;
    uint64_t slab, slab_size;
    damacy_codec_limits limits;
    const damacy_codec_batch b = m.upload(s.frames, 0, &dsts, &slab, &slab_size);
    m.sync();
    fake_capture_begin(m.stream);
    const damacy_status status = damacy_codec_measure(m.codec, &b, m.stream, &limits, &m.err);
    CHECK(fake_capture_end().empty());
    CHECK_EQ(status, DAMACY_INVAL);
    CHECK_HAS(m.err.message, "captures");
    close_codec(m);
}

TEST(verdicts_are_those_of_the_host)
{
#if TEST_TSAN
    SKIP("the thread sanitizer of clang 14 breaks down after so many fibers");
#endif
    codec_machine m = open_codec(DAMACY_CODEC_ZSTD);
    std::vector<corpus_file> files = corpus_load("zstd_crafted");
    const std::vector<corpus_file> fuzz = corpus_load("zstd_fuzz");
    damacy__alloc heap;
    damacy__zstd host;
    damacy_error err;
    memset(&heap, 0, sizeof heap);
    memset(&host, 0, sizeof host);
    host.alloc = &heap; // our own decoder, as if libzstd were missing
    host.is_open = true;
    CHECK(files.size() > 200);
    for (size_t i = 0; i < fuzz.size(); i += 30) {
        files.push_back(fuzz[i]);
    }
    files.erase(std::remove_if(files.begin(), files.end(),
                               [](const corpus_file& f) { return f.content.size() > 20000; }),
                files.end());
    for (size_t first = 0; first < files.size(); first += 60) {
        std::vector<codec_frame> frames;
        codec_options o;
        o.is_measured = first % 120 == 0;
        for (size_t i = first; i < std::min(files.size(), first + 60); i += 2) {
            codec_frame f;
            f.src = files[i].content;
            f.capacity = 140000;
            frames.push_back(f);
        }
        m.must(m.run(frames, o));
        for (size_t k = 0; k < frames.size(); k++) {
            const codec_frame& f = frames[k];
            bytes out(f.capacity);
            uint64_t size = 0;
            const damacy_status status =
                damacy__zstd_decode(&host, damacy__span_of(f.src.data(), f.src.size()), out.data(),
                                    f.capacity, &size, &err);
            CHECK(f.is_clean);
            if ((status == DAMACY_OK) != (f.status == DAMACY_FRAME_OK)) {
                printf("# %s: host %s, device %s\n", files[first + 2 * k].name.c_str(),
                       status == DAMACY_OK ? "ok" : err.message, damacy_frame_status_str(f.status));
            }
            CHECK_EQ(status == DAMACY_OK, f.status == DAMACY_FRAME_OK);
            if (status == DAMACY_OK) {
                out.resize(size);
                CHECK(f.out == out);
            }
        }
    }
    damacy__zstd_close(&host);
    close_codec(m);
}

TEST(errors_of_the_driver_are_passed_on_and_nothing_leaks)
{
    for (uint64_t nth = 0; nth < 24; nth++) {
        damacy_config config;
        damacy_codec* codec = NULL;
        damacy_error err;
        fake_counts counts;
        memset(&config, 0, sizeof config);
        memset(&machine, 0, sizeof machine);
        config.cache_dir = "";
        enroll_kernels();
        CHECK_EQ(load_fake(&table, NULL), 0);
        fake_fail(NULL, 3 * nth, nth % 2 ? 2 : 1);
        const damacy_status status = damacy_codec_create(kinds[nth % 4], &config, &codec, &err);
        CHECK((status == DAMACY_OK) == (codec != NULL));
        CHECK(status == DAMACY_OK || err.message[0]);
        damacy_codec_destroy(codec);
        fake_count(&counts);
        CHECK_EQ(counts.misuse, 0);
        CHECK_EQ(counts.live_streams, 0);
        CHECK_EQ(counts.live_events, 0);
        CHECK_EQ(counts.live_modules, 0);
        CHECK_EQ(counts.live_primary, 0);
        fake_close();
        has_machine = false;
    }
}

TEST(codec_whose_kernels_are_in_the_cache_needs_no_compiler)
{
    char folder[] = "/tmp/damacy-codec-XXXXXX";
    if (fake_program_path()[0] != '/') {
        SKIP("the program was not started by its whole path");
    }
    CHECK(mkdtemp(folder) != NULL);
    for (const damacy_codec_kind kind : {DAMACY_CODEC_ZSTD, DAMACY_CODEC_BLOSC}) {
        for (int run = 0; run < 2; run++) {
            codec_machine m;
            damacy_config config;
            enroll_kernels();
            memset(&machine, 0, sizeof machine);
            memset(&config, 0, sizeof config);
            machine.device_bytes = UINT64_C(8) << 30;
            config.cache_dir = folder;
            n_nvrtc_loads = 0;
            m.must(m.open(kind, &config));
            CHECK_EQ(n_nvrtc_loads, run == 0);
            close_codec(m);
        }
    }
    const std::string remove = std::string("rm -r ") + folder;
    CHECK_EQ(system(remove.c_str()), 0);
}

TEST_MAIN
