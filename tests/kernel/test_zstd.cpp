// The Zstandard kernels on the CPU against libzstd and the corpora: every valid frame byte for
// byte, every verdict on broken ones, and no byte outside the ranges of a job.
#define ZSTD_STATIC_LINKING_ONLY
#include "tests/kernel/zstd_wave.h"
#include "tests/kernel/zstd_unlikely.h"
#include "tests/test.h"
#include <algorithm>

// Decodes files as waves of `per_wave` jobs; `check` sees each job with its file.
template <class F>
static void decode_all(const std::vector<corpus_file>& files, size_t per_wave,
                       const wave_options& options, bool strip, F check)
{
    wave_options o = options;

    for (size_t first = 0; first < files.size(); first += per_wave) {
        const size_t n = std::min(per_wave, files.size() - first);
        std::vector<wave_job> jobs(n);
        for (size_t i = 0; i < n; i++) {
            const corpus_file& f = files[first + i];
            jobs[i].src = strip ? corpus_without_checksum(f.content) : f.content;
            jobs[i].skew = (unsigned)((first + i) * 5 % 16);
            check(f, jobs[i], true);
        }
        o.seed = options.seed + first;
        const std::string wrong = wave_run(jobs, o);
        if (!wrong.empty()) {
            printf("# wave of %s: %s\n", files[first].name.c_str(), wrong.c_str());
            CHECK(wrong.empty());
        }
        for (size_t i = 0; i < n; i++) {
            check(files[first + i], jobs[i], false);
        }
    }
}

static uint64_t number(const corpus_row& row, const char* column, int base = 10)
{
    const corpus_row::const_iterator i = row.find(column);
    return i == row.end() ? 0 : strtoull(i->second.c_str(), nullptr, base);
}

static void valid_set(const char* name, size_t expected, bool strip, const wave_options& o,
                      size_t every = 1)
{
    std::vector<corpus_file> files = corpus_load(name);
    CHECK_EQ(files.size(), expected);
    if (every > 1) {
        std::vector<corpus_file> some;
        for (size_t i = 0; i < files.size(); i += every) {
            some.push_back(files[i]);
        }
        files = some;
    }
    printf("# %s: %zu of %zu frames%s\n", name, files.size(), expected, strip ? ", stripped" : "");
    decode_all(files, 24, o, strip, [](const corpus_file& f, wave_job& j, bool before) {
        const uint64_t size = number(f.row, "bytes");
        if (before) {
            j.capacity = size;
            j.expected = f.name.size() & 1 ? size : DAMACY__SIZE_UNKNOWN;
            return;
        }
        if (j.result.status != DAMACY__JOB_OK || !j.canary || j.out.size() != size ||
            corpus_crc32c(j.out.data(), j.out.size()) != number(f.row, "crc32c", 16)) {
            printf("# %s: status %u at %llu, size %zu\n", f.name.c_str(), j.result.status,
                   (unsigned long long)j.result.error_offset, j.out.size());
            CHECK(!"frame decoded");
        }
    });
}

// What libzstd 1.5.6 says of an input: accepted with so many bytes and that crc, or refused.
struct verdict {
    bool accepts;
    uint64_t size;
    uint32_t crc;
};

static verdict verdict_of(const corpus_row& row)
{
    verdict v;
    v.accepts = row.at("libzstd156") == "ok";
    v.size = number(row, "bytes156");
    v.crc = (uint32_t)number(row, "crc156", 16);
    return v;
}

static bool agrees(const wave_job& j, const verdict& v)
{
    const bool ok = j.result.status == DAMACY__JOB_OK;
    return j.canary && ok == v.accepts &&
           (!ok || (j.out.size() == v.size && corpus_crc32c(j.out.data(), j.out.size()) == v.crc));
}

// Every kernel has its turn. All 921 frames, with and without checksums, take minutes under
// sanitizers, so large ones are sampled; DAMACY_TEST_FULL=1 takes all.
TEST(zstd_decodes_the_generated_frames)
{
    const bool full = getenv("DAMACY_TEST_FULL") != nullptr;
    wave_options o;

    valid_set("D_smallblk_s2001", 300, false, o);
    o.flags = DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_FLAG_FSE_LATENCY;
    valid_set("C_cs14_s1001", 300, false, o, full ? 1 : 3);
    o.literals = WAVE_SPLIT;
    o.flags = DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_FLAG_FSE_THROUGHPUT;
    valid_set("C_cs14_s1001", 300, true, o);
    o.literals = WAVE_SPLIT4;
    o.flags = DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_FLAG_FSE_LATENCY;
    valid_set("B_cs17_s1", 300, false, o, full ? 1 : 9);
    o.flags = DAMACY__ZSTD_EXECUTE_LINKS | DAMACY__ZSTD_EXECUTE_1024X3;
    valid_set("A_big_s1", 21, true, o, full ? 1 : 10);
    o.flags = DAMACY__ZSTD_EXECUTE_WIDE;
    valid_set("C_cs14_s1001", 300, true, o, full ? 1 : 9);
    o.flags = DAMACY__ZSTD_EXECUTE_128X2;
    valid_set("C_cs14_s1001", 300, true, o, full ? 1 : 9);
    for (const uint32_t serial :
         {DAMACY__ZSTD_EXECUTE_128X2_SERIAL, DAMACY__ZSTD_EXECUTE_64X4_SERIAL}) {
        o.flags = serial;
        valid_set("C_cs14_s1001", 300, true, o, full ? 1 : 9);
        valid_set("A_big_s1", 21, false, o, full ? 1 : 10);
    }
    o.flags = DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE;
    valid_set("A_big_s1", 21, false, o, full ? 1 : 10);
    o.flags = DAMACY__ZSTD_EXECUTE_RELAY;
    valid_set("D_smallblk_s2001", 300, true, o, full ? 1 : 5);
    valid_set("C_cs14_s1001", 300, false, o, full ? 1 : 9);
    valid_set("A_big_s1", 21, false, o, full ? 1 : 10);
    for (uint32_t i = 0; i < 8; i++) { // as for blosc
        static const uint32_t shapes[] = {
            DAMACY__ZSTD_EXECUTE_128X2_SERIAL, DAMACY__ZSTD_EXECUTE_64X4_SERIAL,
            DAMACY__ZSTD_EXECUTE_256X2_SERIAL, DAMACY__ZSTD_EXECUTE_128X4_3K,
            DAMACY__ZSTD_EXECUTE_256X4,        DAMACY__ZSTD_EXECUTE_1024X3,
            DAMACY__ZSTD_EXECUTE_RELAY,        DAMACY__ZSTD_EXECUTE_WIDE};
        o.literals = (int)(i % 3);
        o.flags = DAMACY__ZSTD_FLAG_BY_SEQUENCE | shapes[i] |
                  (i % 2 ? DAMACY__ZSTD_FLAG_FSE_LATENCY : DAMACY__ZSTD_FLAG_FSE_THROUGHPUT);
        valid_set("D_smallblk_s2001", 300, i % 2, o, full ? 1 : 9);
        valid_set("C_cs14_s1001", 300, i % 2, o, full ? 1 : 9);
        valid_set(i % 2 ? "A_big_s1" : "B_cs17_s1", i % 2 ? 21 : 300, false, o,
                  full    ? 1
                  : i % 2 ? 21
                          : 30);
    }
    if (full) {
        o.literals = WAVE_SPLIT4;
        o.flags = DAMACY__ZSTD_EXECUTE_1024X3;
        valid_set("D_smallblk_s2001", 300, true, o);
        valid_set("C_cs14_s1001", 300, false, o);
        valid_set("B_cs17_s1", 300, true, o);
        valid_set("A_big_s1", 21, false, o);
    }
}

// The 'spec' column decides; 'any' leaves it to libzstd 1.5.6.
TEST(zstd_follows_the_specification_on_crafted_frames)
{
    const std::vector<corpus_file> files = corpus_load("zstd_crafted");
    wave_options o;
    int wrong = 0;

    CHECK_EQ(files.size(), 215);
    for (int literals = WAVE_LANES; literals <= WAVE_SPLIT4; literals++) {
        o.literals = literals;
        decode_all(files, 72, o, false, [&](const corpus_file& f, wave_job& j, bool before) {
            verdict v = verdict_of(f.row);
            if (f.row.at("spec") != "any") {
                v.accepts = f.row.at("spec") == "ok";
            }
            if (before) {
                j.capacity = v.accepts ? v.size : 300000;
            } else if (!agrees(j, v)) {
                printf("# %s: status %u, %zu bytes; specification %s, libzstd %s\n", f.name.c_str(),
                       j.result.status, j.out.size(), f.row.at("spec").c_str(),
                       f.row.at("libzstd156").c_str());
                wrong++;
            }
        });
    }
    CHECK_EQ(wrong, 0);
}

// Inputs that libzstd 1.5.6 accepts and the specification does not; we refuse them on purpose.
static const char* const deliberate[] = {
    // raw or RLE block larger than min(window, 128 KiB), which one-shot libzstd does not check
    "b5f31ad94db0f7eb6ae58b75763b4e241dd51978",
    "eedc09ffc380cc08a630d1fffa4432828222153f",
    // Huffman stream whose last symbol leaves 8 bits unread; libzstd's two-symbol decoder may not
    // see
    "cf9e09c0b57930e6d1eb6c1277675711a6254829",
    // Huffman streams that end long before their symbols do; libzstd 1.5.4 refuses it as well
    "78e70cc1266a2b8460a31185fd91be9d977e4452",
    nullptr,
};

// With both kinds of records.
static void check_fuzzed(uint32_t flags)
{
    const std::vector<corpus_file> files = corpus_load("zstd_fuzz");
    wave_options o;
    int wrong = 0, differences = 0;

    CHECK_EQ(files.size(), 1230);
    o.literals = WAVE_SPLIT;
    o.flags = flags;
    decode_all(files, 128, o, false, [&](const corpus_file& f, wave_job& j, bool before) {
        const verdict v = verdict_of(f.row);
        if (before) {
            j.capacity = v.accepts ? v.size : 300000;
            return;
        }
        for (const char* const* d = deliberate; *d; d++) {
            if (f.name == *d && v.accepts && j.result.status != DAMACY__JOB_OK && j.canary) {
                differences++;
                return;
            }
        }
        if (!agrees(j, v)) {
            printf("# %s: status %u at %llu, %zu bytes; libzstd %s %llu\n", f.name.c_str(),
                   j.result.status, (unsigned long long)j.result.error_offset, j.out.size(),
                   f.row.at("libzstd156").c_str(), (unsigned long long)v.size);
            wrong++;
        }
    });
    CHECK_EQ(wrong, 0);
    CHECK(differences <= 12);
}

TEST(zstd_agrees_with_libzstd_on_fuzzed_inputs)
{
    check_fuzzed(DAMACY__ZSTD_EXECUTE_128X4_3K);
    check_fuzzed(DAMACY__ZSTD_EXECUTE_128X2_SERIAL);
    check_fuzzed(DAMACY__ZSTD_FLAG_BY_SEQUENCE | DAMACY__ZSTD_EXECUTE_64X4_SERIAL);
}

// ---- jobs and waves ----

static bytes compressed(const bytes& content, int level, bool checksum, bool is_sized = true)
{
    ZSTD_CCtx* const c = ZSTD_createCCtx();
    bytes out(ZSTD_compressBound(content.size()));
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, is_sized);
    ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, checksum);
    out.resize(ZSTD_compress2(c, out.data(), out.size(), content.data(), content.size()));
    ZSTD_freeCCtx(c);
    return out;
}

static uint32_t noise_state = 1;
static uint32_t noise()
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return noise_state >> 8;
}

// 16-bit samples around a level, some of them zero: literals and short matches.
static bytes volume(size_t size, uint32_t spread)
{
    bytes b(size);
    for (size_t i = 0; i + 1 < size; i += 2) {
        const uint32_t v = noise() % 3 ? 400 + noise() % spread + noise() % spread : 0;
        b[i] = (uint8_t)v;
        b[i + 1] = (uint8_t)(v >> 8);
    }
    return b;
}

static wave_job job_of(const bytes& src, uint64_t capacity)
{
    wave_job j;
    j.src = src;
    j.capacity = capacity;
    return j;
}

static bytes joined(std::initializer_list<bytes> parts)
{
    bytes all;
    for (const bytes& p : parts) {
        all.insert(all.end(), p.begin(), p.end());
    }
    return all;
}

// Two frames much larger than the others, which have a list of their own, and one of these broken.
TEST(zstd_decodes_frames_much_larger_than_others_beside_them)
{
    std::vector<bytes> contents;
    std::vector<wave_job> jobs;
    damacy__zstd_counters counters;
    wave_options o;

    for (uint32_t i = 0; i < 40; i++) {
        contents.push_back(volume(i == 11 ? 500000 : i == 30 ? 300000 : 1000 + 40 * i, 30));
        jobs.push_back(job_of(compressed(contents[i], 3, i % 2), contents[i].size()));
        jobs[i].skew = i % 16;
    }
    o.counters = &counters;
    o.flags = DAMACY__ZSTD_FLAG_APART | DAMACY__ZSTD_EXECUTE_256X4;
    for (o.seed = 1; o.seed < 5; o.seed++) {
        const bool is_broken = o.seed == 4;
        if (is_broken)
            jobs[11].src.resize(jobs[11].src.size() - 9);
        o.literals = (int)(o.seed % 3);
        CHECK(wave_run(jobs, o).empty());
        CHECK_EQ(counters.n_apart, is_broken ? 1 : 2);
        for (uint32_t i = 0; i < jobs.size(); i++) {
            CHECK(jobs[i].canary);
            CHECK_EQ(jobs[i].result.status == DAMACY__JOB_OK, !(is_broken && i == 11));
            CHECK_EQ(jobs[i].out == contents[i], !(is_broken && i == 11));
        }
    }
}

// Symbols of one alphabet: if they are 16, their codes have 4 bits each and never synchronise.
static bytes symbols(size_t size, uint32_t n)
{
    bytes b(size);
    for (uint8_t& v : b) {
        v = (uint8_t)(noise() % n);
    }
    return b;
}

// Bytes whose codes have 4 and 8 bits, so that a decoder in the middle of one never finds another.
static bytes two_lengths(size_t size)
{
    bytes b(size);
    for (uint8_t& v : b) {
        const uint32_t kind = noise() % 16;
        v = (uint8_t)(kind < 15 ? kind : 16 + noise() % 16);
    }
    return b;
}

// Stretches of nearly one value, whose code has one bit, between such of many values, whose codes
// are long: shares of as many bits differ in their symbols, and some have more than a slot.
static bytes dense_and_sparse(size_t size, size_t stretch)
{
    bytes b(size);
    for (size_t i = 0; i < size; i++) {
        const bool is_sparse = i / stretch % 2 == 0;
        b[i] = (uint8_t)(is_sparse && noise() % 32 ? 7 : noise() % 200);
    }
    return b;
}

// A frame of one block that holds its content as literals, whatever matches there are.
static bytes as_literals(const bytes& content)
{
    ZSTD_CCtx* const c = ZSTD_createCCtx();
    ZSTD_Sequence all = {};
    bytes out(ZSTD_compressBound(content.size()));
    all.litLength = (unsigned)content.size();
    ZSTD_CCtx_setParameter(c, ZSTD_c_blockDelimiters, ZSTD_sf_explicitBlockDelimiters);
    out.resize(
        ZSTD_compressSequences(c, out.data(), out.size(), &all, 1, content.data(), content.size()));
    ZSTD_freeCCtx(c);
    return out;
}

// Of codes of one bit each a share has no more than a slot holds, or a round would end in its
// first.
template <class S> static void check_shares_of_one_bit()
{
    for (const uint32_t left : {1u, 100u, 5000u, 8192u, 32768u}) {
        damacy__zstd_shares h = {};
        h.unit = 1;
        h.least = S::LEAST_SMALL;
        h.most = S::SHARE;
        CHECK(damacy__zstd_share_size<S>(h, left, left) <= S::SLOT);
    }
}

TEST(zstd_shares_of_one_bit_a_symbol_fit_their_slots)
{
    check_shares_of_one_bit<damacy__zstd_split_shape<DAMACY__ZSTD_SHAPE_SPLIT>>();
    check_shares_of_one_bit<damacy__zstd_split_shape<DAMACY__ZSTD_SHAPE_SPLIT_SMALL>>();
    check_shares_of_one_bit<damacy__zstd_split_shape<DAMACY__ZSTD_SHAPE_SPLIT4>>();
}

// Shares that hold more symbols than there is room for, where the codes change from long to short
// and back, streams of few bytes, and such that end everywhere in a unit of 16 bytes. Warps of a
// stream read from each other what barriers have handed over.
TEST(zstd_decodes_literals_whose_codes_change_within_a_stream)
{
    for (const int literals : {WAVE_LANES, WAVE_SPLIT, WAVE_SPLIT_SMALL, WAVE_SPLIT4}) {
        std::vector<bytes> contents;
        std::vector<wave_job> jobs;
        wave_options o;
        for (const size_t stretch : {300u, 2000u, 9000u, 40000u}) {
            contents.push_back(dense_and_sparse(131072, stretch));
            contents.push_back(dense_and_sparse(2 * stretch + 997, stretch));
        }
        for (size_t size = 1100; size < 1500; size += 23) {
            contents.push_back(dense_and_sparse(size, 200));
        }
        contents.push_back(dense_and_sparse(131071, 1)); // one bit or long, in turns
        for (const bytes& content : contents) {
            jobs.push_back(job_of(as_literals(content), content.size()));
            CHECK(jobs.back().src.size() < content.size()); // Huffman-coded
            jobs.back().skew = (unsigned)(5 * jobs.size()) % 16;
        }
        simt::races races(simt::SHARED_MAX);
        o.literals = literals;
        o.races = literals == WAVE_LANES ? nullptr : &races;
        CHECK(wave_run(jobs, o).empty());
        for (size_t i = 0; i < jobs.size(); i++) {
            CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
            CHECK(jobs[i].out == contents[i] && jobs[i].canary);
        }
        if (races.found) {
            fprintf(stderr, "# literals %d: %s\n", literals, races.first.c_str());
        }
        CHECK_EQ(races.found, 0);
        CHECK(literals == WAVE_LANES || races.accesses > 1000000);
    }
}

// Waves with few and with many literals for each sequence: whether they are early depends on it.
TEST(zstd_decodes_literals_with_every_kernel)
{
    std::vector<std::vector<bytes>> waves;
    for (const uint32_t spread : {4u, 30u, 120u, 600u, 20000u}) { // table logs up to 11
        waves.push_back({volume(700, spread), volume(5000, spread), volume(140001, spread)});
    }
    waves.push_back({symbols(131070, 2), symbols(131056, 16), symbols(131055, 17)});
    waves.push_back({symbols(131000, 90), bytes(100000, 7)});
    waves.push_back({symbols(131001, 64), symbols(100003, 128), two_lengths(131002)});
    for (int run = 0; run < 2 * (WAVE_SPLIT4 + 1); run++) {
        for (const std::vector<bytes>& contents : waves) {
            std::vector<wave_job> jobs;
            wave_options o;
            for (const bytes& content : contents) {
                jobs.push_back(job_of(compressed(content, 1, true), content.size()));
                jobs.back().skew = (unsigned)(5 * jobs.size() + content.size()) % 16;
            }
            o.literals = run / 2;
            o.seed = (uint64_t)(run % 2 + 1); // early, before the sequences or after them
            CHECK(wave_run(jobs, o).empty());
            for (size_t i = 0; i < jobs.size(); i++) {
                CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
                CHECK(jobs[i].out == contents[i] && jobs[i].canary);
            }
        }
    }
}

// A share of a stream may end in a symbol whose bits are the first of the input's next granule: in
// this frame it does at one of 32 places.
TEST(zstd_decodes_literals_in_shares_at_any_place_of_the_input)
{
    bytes src, content(131072);
    FILE* file = fopen("tests/corpus/literals_at_a_granule.zst", "rb");

    CHECK(file != nullptr);
    for (int byte; (byte = fgetc(file)) != EOF;) {
        src.push_back((bytes::value_type)byte);
    }
    (void)fclose(file);
    CHECK_EQ(ZSTD_decompress(content.data(), content.size(), src.data(), src.size()), 131072);
    for (const int literals : {WAVE_LANES, WAVE_SPLIT, WAVE_SPLIT_SMALL, WAVE_SPLIT4}) {
        std::vector<wave_job> jobs;
        wave_options o;
        for (unsigned skew = 0; skew < 32; skew += TEST_ASAN ? 5 : 1) { // it takes long with that
            jobs.push_back(job_of(src, content.size()));
            jobs.back().skew = skew;
        }
        o.literals = literals;
        CHECK(wave_run(jobs, o).empty());
        for (const wave_job& j : jobs) {
            CHECK_EQ(j.result.status, DAMACY__JOB_OK);
            CHECK(j.out == content && j.canary);
        }
    }
}

TEST(zstd_joins_frames_and_skips_skippable_ones)
{
    const bytes a = volume(3000, 50), b = volume(90001, 900);
    const bytes skippable = {0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3};
    const bytes one = compressed(a, 3, true), two = compressed(b, 3, false);
    std::vector<wave_job> jobs(1, job_of(joined({skippable, one, two, skippable, one}), 96001));
    jobs.push_back(job_of(skippable, 0));
    jobs.push_back(job_of(joined({one, {1}}), 3000));
    jobs.push_back(job_of(joined({one, {1, 2, 3, 4, 5}}), 3000));
    jobs[0].expected = 96001;

    for (const uint32_t flags : {DAMACY__ZSTD_EXECUTE_128X4_3K, DAMACY__ZSTD_EXECUTE_RELAY}) {
        wave_options o;
        o.flags = flags;
        CHECK(wave_run(jobs, o).empty());
        CHECK_EQ(jobs[0].result.status, DAMACY__JOB_OK);
        CHECK(jobs[0].out == joined({a, b, a}) && jobs[0].canary);
        CHECK_EQ(jobs[1].result.status, DAMACY__JOB_OK);
        CHECK_EQ(jobs[1].result.size, 0);
        CHECK_EQ(jobs[2].result.status, DAMACY__JOB_TRAILING);
        CHECK_EQ(jobs[2].result.error_offset, one.size());
        CHECK_EQ(jobs[3].result.status, DAMACY__JOB_TRAILING);
    }
}

TEST(zstd_demands_the_expected_size_and_the_capacity)
{
    const bytes content = volume(5000, 50);
    const bytes frame = compressed(content, 3, true);
    const bytes unsized = compressed(content, 3, false, false); // no content size in the header
    for (const bytes& src : {frame, unsized}) {
        std::vector<wave_job> jobs(7, job_of(src, 5000));
        jobs[0].expected = 5000;
        jobs[1].expected = 4999;
        jobs[2].capacity = 6000;
        jobs[2].expected = 5001;
        jobs[3].capacity = 4999;
        jobs[4].capacity = 0;
        jobs[5].expected = 5001; // beyond the capacity
        jobs[6].flags = DAMACY__JOB_SKIP;
        CHECK(wave_run(jobs, wave_options()).empty());
        CHECK_EQ(jobs[0].result.status, DAMACY__JOB_OK);
        CHECK(jobs[0].out == content);
        CHECK_EQ(jobs[1].result.status, DAMACY__JOB_SIZE_MISMATCH);
        CHECK_EQ(jobs[2].result.status, DAMACY__JOB_SIZE_MISMATCH);
        CHECK_EQ(jobs[3].result.status, DAMACY__JOB_NO_SPACE);
        CHECK_EQ(jobs[3].result.size, 5000);
        CHECK_EQ(jobs[4].result.status, DAMACY__JOB_NO_SPACE);
        CHECK_EQ(jobs[5].result.status, DAMACY__JOB_NO_SPACE);
        CHECK_EQ(jobs[5].result.size, 5001);
        CHECK_EQ(jobs[6].result.status, DAMACY__JOB_SKIPPED);
        for (const wave_job& j : jobs) {
            CHECK(j.canary);
        }
    }
}

TEST(zstd_verifies_checksums_unless_told_not_to)
{
    const bytes content = volume(70000, 9);
    for (const size_t size : {0u, 1u, 5u, 31u, 32u, 33u, 255u, 256u, 300u, 511u, 512u, 513u, 1023u,
                              1024u, 1543u, 4607u, 4608u, 5120u, 70000u}) {
        const bytes part(content.begin(), content.begin() + (long)size);
        const bytes good = compressed(part, 1, true);
        bytes bad = good;
        bad[bad.size() - 2] ^= 0x10;
        std::vector<wave_job> jobs;
        for (const unsigned skew : {0u, (unsigned)size % 16, 3u, 8u}) { // 8 divides some outputs
            for (const bytes& frame : {good, bad, bad}) {
                jobs.push_back(job_of(frame, size));
                jobs.back().skew = skew;
            }
            jobs.back().flags = DAMACY__JOB_NO_CHECKSUM;
        }
        CHECK(wave_run(jobs, wave_options()).empty());
        for (size_t i = 0; i < jobs.size(); i += 3) {
            CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
            CHECK_EQ(jobs[i + 1].result.status, DAMACY__JOB_BAD_CHECKSUM);
            CHECK_EQ(jobs[i + 1].result.error_offset, bad.size() - 4);
            CHECK_EQ(jobs[i + 2].result.status, DAMACY__JOB_OK);
            CHECK(jobs[i].out == part && jobs[i + 2].out == part);
        }
    }
}

TEST(zstd_reports_what_does_not_fit_scratch_and_decodes_the_rest)
{
    const bytes content = volume(60000, 60);
    const bytes frame = compressed(content, 3, true);
    wave_options o;
    uint64_t refused = 0, first = 0;

    for (int run = 0; run < 3; run++) {
        std::vector<wave_job> jobs(12, job_of(frame, content.size()));
        uint64_t now = 0;
        o.seed = (uint64_t)run + 5;
        o.max_records = 3 * 45056; // for a few of them
        CHECK(wave_run(jobs, o).empty());
        for (size_t i = 0; i < jobs.size(); i++) {
            CHECK(jobs[i].canary);
            if (jobs[i].result.status == DAMACY__JOB_NEED_SCRATCH) {
                now |= 1ull << i;
            } else {
                CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
                CHECK(jobs[i].out == content);
            }
        }
        refused |= now;
        CHECK(run == 0 || now == first); // the same jobs every time
        first = now;
    }
    CHECK(refused != 0 && refused != 4095);
}

// How many jobs were refused; all others are right.
static uint32_t check_refused(const std::vector<wave_job>& jobs, const std::vector<bytes>& contents)
{
    uint32_t n_refused = 0;
    for (size_t i = 0; i < jobs.size(); i++) {
        CHECK(jobs[i].canary);
        if (jobs[i].result.status == DAMACY__JOB_NEED_SCRATCH) {
            n_refused++;
            continue;
        }
        CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
        CHECK(jobs[i].out == contents[i]);
    }
    return n_refused;
}

// Records for which a pool has room that holds just what was placed.
static uint64_t records_placed(const damacy__zstd_counters& c)
{
    return c.n_records + (c.n_literal_bytes + 127) / 128 * 16; // a multiple of 16
}

// A frame twelve times in waves that have room for so many records.
struct room_scene {
    bytes content, frame;
    std::vector<bytes> contents;
    std::vector<wave_job> jobs;
    damacy__zstd_counters counters = {};
    wave_options o;

    room_scene(uint64_t data, uint64_t seed, int literals)
        : content(volume(60000, data)), frame(compressed(content, 3, true)), contents(12, content),
          jobs(12, job_of(frame, content.size()))
    {
        o.counters = &counters;
        o.seed = seed;
        o.literals = literals;
    }
    // Room for n records, 0: for all that there may be. Returns how many are refused.
    uint32_t decode(uint64_t n)
    {
        o.max_records = n;
        CHECK(wave_run(jobs, o).empty());
        return check_refused(jobs, contents);
    }
};

TEST(zstd_makes_room_for_likely_records_where_not_all_have_room)
{
    for (int run = 0; run < 6; run++) {
        room_scene s(60, (uint64_t)run + 50, run % 3);
        CHECK_EQ(s.decode(0), 0);
        CHECK_EQ(s.counters.is_tight, 0u);
        const uint64_t most = records_placed(s.counters);
        CHECK_EQ(s.decode(most), 0);
        CHECK_EQ(s.counters.is_tight, 0u);
        CHECK_EQ(s.decode(most - 16), 0);
        CHECK_EQ(s.counters.is_tight, 1u);
        const uint64_t likely = records_placed(s.counters);
        CHECK(likely < most - 16);
        CHECK_EQ(s.decode(likely), 0);
        CHECK_EQ(s.counters.n_more_records, 0u); // what is likely was right
        CHECK_EQ(s.decode(likely - 16), 1);
    }
}

// How many records of sequences there are is known before they are decoded.
TEST(zstd_makes_room_for_all_records_of_sequences)
{
    for (int run = 0; run < 6; run++) {
        room_scene s(60, (uint64_t)run + 50, run % 3);
        s.o.flags = DAMACY__ZSTD_EXECUTE_128X4;
        CHECK_EQ(s.decode(0), 0);
        const uint64_t of_segments = s.counters.n_records;
        s.o.flags = DAMACY__ZSTD_FLAG_BY_SEQUENCE | DAMACY__ZSTD_EXECUTE_128X2_SERIAL;
        CHECK_EQ(s.decode(0), 0);
        CHECK(s.counters.n_records < of_segments * 3 / 4);
        const uint64_t all = records_placed(s.counters);
        CHECK_EQ(s.decode(all), 0);
        CHECK_EQ(s.counters.is_tight + s.counters.n_more_records, 0u);
        CHECK_EQ(s.decode(all - 16), 1);
        CHECK_EQ(s.counters.n_more_records, 0u);
    }
}

TEST(zstd_decodes_blocks_of_more_records_than_were_likely)
{
    const std::vector<corpus_file> all = corpus_load("C_cs14_s1001");
    damacy__zstd_counters counters = {};
    uint64_t n_more = 0;

    for (int run = 0; run < 4; run++) {
        std::vector<wave_job> jobs;
        wave_options o;
        o.counters = &counters;
        o.percent_short = run < 2 ? 100 : 30;
        o.seed = (uint64_t)run + 70;
        o.literals = run % 3;
        o.flags = (run % 2 ? DAMACY__ZSTD_FLAG_FSE_LATENCY : DAMACY__ZSTD_FLAG_FSE_THROUGHPUT) |
                  (run < 2 ? DAMACY__ZSTD_EXECUTE_128X4 : DAMACY__ZSTD_EXECUTE_RELAY);
        for (size_t i = (size_t)run; i < all.size(); i += 7) {
            jobs.push_back(job_of(all[i].content, number(all[i].row, "bytes")));
        }
        CHECK(wave_run(jobs, o).empty());
        n_more += counters.n_more_records;
        for (size_t i = 0; i < jobs.size(); i++) {
            const corpus_file& f = all[(size_t)run + 7 * i];
            CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
            CHECK(jobs[i].canary);
            CHECK_EQ(corpus_crc32c(jobs[i].out.data(), jobs[i].out.size()),
                     number(f.row, "crc32c", 16));
        }
    }
    CHECK(n_more > 1000);
}

// Tables that say that hardly a sequence has literals, where each has some.
TEST(zstd_decodes_frames_whose_tables_are_no_measure)
{
    uint64_t seed = test_seed();
    damacy__zstd_counters counters = {};

    for (int run = 0; run < 6; run++) {
        std::vector<bytes> contents;
        std::vector<wave_job> jobs;
        wave_options o;
        for (uint32_t i = 0; i < 20; i++) {
            const bytes frame =
                i % 4 == 3 ? compressed(volume(9000, i + 1), 3, true)
                           : unlikely_frame(60 + (uint32_t)test_random(&seed) % 700, &seed);
            bytes content(20000);
            const size_t size =
                ZSTD_decompress(content.data(), content.size(), frame.data(), frame.size());
            CHECK(!ZSTD_isError(size));
            content.resize(size);
            contents.push_back(content);
            jobs.push_back(job_of(frame, size));
        }
        o.seed = (uint64_t)run + 30;
        o.counters = &counters;
        o.flags = DAMACY__ZSTD_EXECUTE_128X4 |
                  (run % 2 ? DAMACY__ZSTD_FLAG_FSE_LATENCY : DAMACY__ZSTD_FLAG_FSE_THROUGHPUT);
        CHECK(wave_run(jobs, o).empty());
        CHECK_EQ(counters.is_tight + counters.n_more_records, 0u);
        const uint64_t most = records_placed(counters);
        uint32_t n_refused = 0;
        for (const uint64_t percent : {100u, 160u, 90u, 70u}) { // the last: less than is needed
            o.max_records = (percent == 100 ? most - 16 : most * percent / 100) & ~15ull;
            CHECK(wave_run(jobs, o).empty());
            CHECK_EQ(counters.is_tight, percent > 100 ? 0u : 1u);
            CHECK(percent > 100 || counters.n_more_records > 0);
            n_refused += check_refused(jobs, contents);
        }
        CHECK(n_refused > 0);
        for (wave_job& j : jobs) { // alone it has room, in what all records that there may be take
            std::vector<wave_job> one(1, j);
            if (j.result.status != DAMACY__JOB_NEED_SCRATCH) {
                continue;
            }
            CHECK(wave_run(one, o).empty());
            CHECK_EQ(one[0].result.status, DAMACY__JOB_OK);
            CHECK(one[0].out == contents[(size_t)(&j - jobs.data())]);
        }
    }
}

TEST(zstd_reports_blocks_of_more_records_than_have_room)
{
    uint32_t n_refused = 0;

    for (int run = 0; run < 6; run++) {
        room_scene s(61, (uint64_t)run + 90, 0);
        CHECK_EQ(s.decode(0), 0);
        const uint64_t more = run % 2 ? s.counters.n_records / 24 & ~15ull : 0; // half of a job's
        s.o.percent_short = 50;
        n_refused += s.decode(records_placed(s.counters) + more);
    }
    CHECK(n_refused > 6 && n_refused < 6 * 12);
}

TEST(zstd_bounds_the_walk_over_headers)
{
    bytes bomb = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58}; // a frame of empty raw blocks
    for (int i = 0; i < 30000; i++) {
        bomb.insert(bomb.end(), {0, 0, 0});
    }
    bomb.insert(bomb.end(), {1, 0, 0});
    const bytes content = volume(3000, 50);
    std::vector<wave_job> jobs = {job_of(bomb, 10), job_of(compressed(content, 3, true), 3000)};
    wave_options o;
    o.max_blocks = 100;
    CHECK(wave_run(jobs, o).empty());
    CHECK_EQ(jobs[0].result.status, DAMACY__JOB_NEED_SCRATCH);
    CHECK_EQ(jobs[1].result.status, DAMACY__JOB_OK);
    o.max_blocks = 20000;
    CHECK(wave_run(jobs, o).empty());
    CHECK_EQ(jobs[0].result.status, DAMACY__JOB_OK);
    CHECK_EQ(jobs[0].result.size, 0);
}

// ---- broken data ----

// Whatever we accept libzstd accepts with the same bytes. It is laxer in one way that is common:
// its fast Huffman loops do not check that a stream ends where its symbols do. n_lax counts the
// rest. With both kinds of records, which leave the same.
static void check_broken(std::vector<wave_job>& jobs, const bytes& original, uint64_t seed,
                         uint64_t* n_lax)
{
    std::vector<wave_job> again = jobs;
    wave_options o;
    o.seed = seed;
    o.literals = (int)(seed % 3);
    o.flags = DAMACY__ZSTD_FLAG_BY_SEQUENCE | (seed % 3 == 0   ? DAMACY__ZSTD_EXECUTE_RELAY
                                               : seed % 3 == 1 ? DAMACY__ZSTD_EXECUTE_128X2_SERIAL
                                                               : DAMACY__ZSTD_EXECUTE_256X4);
    CHECK(wave_run(again, o).empty());
    o.flags = seed % 2 ? DAMACY__ZSTD_EXECUTE_128X4_3K : DAMACY__ZSTD_EXECUTE_RELAY;
    CHECK(wave_run(jobs, o).empty());
    for (size_t i = 0; i < jobs.size(); i++) {
        CHECK(again[i].canary);
        CHECK_EQ(again[i].result.status, jobs[i].result.status);
        CHECK_EQ(again[i].result.error_offset, jobs[i].result.error_offset);
        CHECK(again[i].out == jobs[i].out);
    }
    for (const wave_job& j : jobs) {
        bytes out(original.size() + 1);
        const size_t n = ZSTD_decompress(out.data(), out.size(), j.src.data(), j.src.size());
        CHECK(j.canary);
        if (j.result.status == DAMACY__JOB_OK) {
            CHECK(!ZSTD_isError(n) && n == j.out.size());
            CHECK(n == 0 || memcmp(out.data(), j.out.data(), n) == 0);
        } else if (!ZSTD_isError(n) && n <= original.size() &&
                   j.result.status != DAMACY__JOB_BAD_LITERALS) {
            ++*n_lax;
        }
    }
}

TEST(zstd_refuses_every_truncation)
{
    const bytes content = volume(1200, 40);
    const bytes frame = compressed(content, 3, false);
    std::vector<wave_job> jobs;
    uint64_t n_lax = 0;

    for (size_t n = 1; n < frame.size(); n++) {
        jobs.push_back(job_of(bytes(frame.begin(), frame.begin() + (long)n), content.size()));
        jobs.back().skew = (unsigned)n % 16;
    }
    check_broken(jobs, content, 2, &n_lax);
    for (const wave_job& j : jobs) {
        CHECK(j.result.status >= DAMACY__JOB_TRUNCATED);
    }
    CHECK_EQ(n_lax, 0);
}

TEST(zstd_decodes_or_refuses_flipped_bits_as_libzstd_does)
{
    const bytes content = volume(2500, 300);
    const bytes frames[] = {compressed(content, 1, false), compressed(content, 19, false)};
    uint64_t n = 0, n_lax = 0;

    for (uint64_t i = 0; i < 2; i++) {
        const bytes& frame = frames[i];
        std::vector<wave_job> jobs;
        for (size_t bit = 0; bit < 8 * frame.size(); bit += bit < 1024 ? 3 : 61) {
            jobs.push_back(job_of(frame, content.size()));
            jobs.back().src[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        n += jobs.size();
        check_broken(jobs, content, 4 + i, &n_lax);
    }
    printf("# %llu flips; libzstd %s is laxer in other ways on %llu\n", (unsigned long long)n,
           ZSTD_versionString(), (unsigned long long)n_lax);
    CHECK(n_lax * 100 <= n);
}

// Frames with several faults, without a content size, for outputs of the wrong size: literals are
// decoded before the sequences, beside them, after blocks have places or with the late ones.
TEST(zstd_reports_the_same_error_in_whatever_order_stages_run)
{
    const bytes content = volume(5000, 300);
    const bytes frame = compressed(content, 3, false, false);
    std::vector<wave_job> jobs, first;
    size_t n_literals = 0, n_sizes = 0;

    for (size_t i = 0; i < 160; i++) {
        wave_job j = job_of(frame, content.size() - (i % 5 == 1 ? 1 : 0));
        j.expected = i % 5 == 2 ? content.size() - 2 : DAMACY__SIZE_UNKNOWN;
        for (size_t k = 0; k < i % 4; k++) { // most of a frame are its literals
            j.src[10 + noise() % (j.src.size() - 10)] ^= (uint8_t)(1 + noise() % 255);
        }
        if (i % 3 == 0) {
            j.src.insert(j.src.end(), frame.begin(), frame.end());
            j.capacity += content.size();
        }
        jobs.push_back(j);
    }
    for (int run = 0; run < 3 * 4; run++) {
        wave_options o;
        o.literals = run / 4;
        o.seed = 1 + (uint64_t)run;
        CHECK(wave_run(jobs, o).empty());
        if (run == 0) {
            first = jobs;
        }
        for (size_t i = 0; i < jobs.size(); i++) {
            const damacy__job_result &a = first[i].result, &b = jobs[i].result;
            CHECK_EQ(a.status, b.status);
            CHECK_EQ(a.size, b.size);
            CHECK_EQ(a.error_offset, b.error_offset);
            CHECK(jobs[i].canary && jobs[i].out == first[i].out);
        }
    }
    for (const wave_job& j : first) {
        n_literals += j.result.status == DAMACY__JOB_BAD_LITERALS;
        n_sizes +=
            j.result.status == DAMACY__JOB_SIZE_MISMATCH || j.result.status == DAMACY__JOB_NO_SPACE;
    }
    CHECK(n_literals > 20 && n_sizes > 10);
}

TEST(zstd_checksum_catches_every_flip)
{
    const bytes content = volume(1800, 80);
    const bytes frame = compressed(content, 3, true);
    std::vector<wave_job> jobs;

    for (size_t bit = 0; bit < 8 * frame.size(); bit += 11) {
        jobs.push_back(job_of(frame, content.size()));
        jobs.back().src[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(wave_run(jobs, wave_options()).empty());
    for (const wave_job& j : jobs) {
        CHECK(j.result.status != DAMACY__JOB_OK || j.out == content);
    }
}

TEST(zstd_bad_jobs_leave_their_neighbours_alone)
{
    const std::vector<corpus_file> crafted = corpus_load("zstd_crafted");
    const std::vector<corpus_file> good = corpus_load("D_smallblk_s2001");
    std::vector<wave_job> jobs;
    CHECK(!crafted.empty() && !good.empty());
    for (size_t i = 0; i < 96; i++) {
        const corpus_file& f = i % 4 ? good[i % 60] : crafted[i * 2 % crafted.size()];
        jobs.push_back(job_of(f.content, i % 4 ? number(f.row, "bytes") : 1000));
    }
    for (uint64_t seed = 1; seed <= 4; seed++) {
        wave_options o;
        o.seed = seed;
        if (seed == 4) {
            o.flags = DAMACY__ZSTD_EXECUTE_RELAY;
        }
        CHECK(wave_run(jobs, o).empty());
        for (size_t i = 0; i < jobs.size(); i++) {
            CHECK(jobs[i].canary);
            if (i % 4) {
                CHECK_EQ(jobs[i].result.status, DAMACY__JOB_OK);
                CHECK_EQ(corpus_crc32c(jobs[i].out.data(), jobs[i].out.size()),
                         number(good[i % 60].row, "crc32c", 16));
            }
        }
    }
}

TEST_MAIN
