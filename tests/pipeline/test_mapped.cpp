// Files that a GPU copies from the page cache, on the fake driver, whose mapped files the CPU
// cannot read: the same voxels as by reading, used when it should be, never when it cannot.
#include "tests/pipeline/fake_gpu.h"
#include "tests/pipeline/memory_store.h"
#include <blosc.h>
#include <string>
#include <zstd.h>

// A thread sanitizer makes kernels on fibers some twenty times slower.
static const bool is_slow = TEST_TSAN;

// ---- a scene: arrays in files ----

enum { RAW, SHARDED, SHARDED_ZSTD, ZSTD, OF_ZSTD, OF_LZ4, OF_ZLIB, CRC, KINDS };
static const char* const kind_names[] = {"raw",        "sharded",   "sharded_zstd", "zstd",
                                         "blosc_zstd", "blosc_lz4", "blosc_zlib",   "crc"};

static std::vector<uint8_t> encode(int kind, const uint8_t* raw, size_t n)
{
    static const char* const inner[] = {"", "", "", "", "zstd", "lz4", "zlib", ""};
    std::vector<uint8_t> out(2 * n + 65536);
    if (kind == ZSTD) {
        out.resize(ZSTD_compress(out.data(), out.size(), raw, n, 3));
    } else if (*inner[kind]) {
        const int size = blosc_compress_ctx(5, BLOSC_SHUFFLE, 2, n, raw, out.data(), out.size(),
                                            inner[kind], 0, 1);
        CHECK(size > 0);
        out.resize((size_t)size);
    } else {
        out.assign(raw, raw + n);
    }
    return out;
}

// A shard whose chunks are compressed, with a few bytes between them, as writers that align leave.
static std::vector<uint8_t> compress_shard(const uint8_t* raw, size_t n, size_t n_chunks)
{
    const size_t index_size = 16 * n_chunks + 4;
    std::vector<uint8_t> out, index(raw + n - index_size, raw + n);
    for (size_t i = 0; i < n_chunks; i++) {
        uint64_t at, size;
        memcpy(&at, &index[16 * i], 8);
        memcpy(&size, &index[16 * i + 8], 8);
        if (at == UINT64_MAX)
            continue;
        const std::vector<uint8_t> chunk = encode(ZSTD, raw + at, size);
        at = out.size();
        size = chunk.size();
        memcpy(&index[16 * i], &at, 8);
        memcpy(&index[16 * i + 8], &size, 8);
        out.insert(out.end(), chunk.begin(), chunk.end());
        out.insert(out.end(), 1 + 37 * i % 11, 0xee);
    }
    const uint32_t crc = mem_crc32c(index.data(), index_size - 4);
    memcpy(&index[index_size - 4], &crc, 4);
    out.insert(out.end(), index.begin(), index.end());
    return out;
}

static void write_file(const std::string& path, const void* bytes, size_t size)
{
    for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
        mkdir(path.substr(0, at).c_str(), 0777);
    FILE* f = fopen(path.c_str(), "wb");
    CHECK(f != NULL);
    CHECK_EQ(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

static std::string read_file(const std::string& path)
{
    std::string out;
    FILE* f = fopen(path.c_str(), "rb");
    CHECK(f != NULL);
    for (int c; (c = fgetc(f)) != EOF;)
        out += (char)c;
    fclose(f);
    return out;
}

static bool all_in_memory(void*, int, uint64_t)
{
    return true;
}

static bool none_in_memory(void*, int, uint64_t)
{
    return false;
}

struct scene {
    std::string base, uris[KINDS];
    mem_array arrays[KINDS];
    std::vector<damacy_sample> samples;
    std::vector<int> kinds; // of the samples
    damacy_config config;
    damacy_error err;
    damacy* d = NULL;
    damacy_stats stats;
    uint32_t n_checked = 0; // samples

    explicit scene(uint32_t per_batch = 4)
    {
        char folder[] = "/tmp/damacy-mapped-XXXXXX";
        CHECK(mkdtemp(folder) != NULL);
        base = folder;
        enroll_kernels();
        memset(&machine, 0, sizeof machine);
        n_loads = 0;
        machine.device_bytes = 512u << 20;
        for (int i = 0; i < KINDS; i++) {
            uris[i] = base + "/" + kind_names[i] + ".zarr";
            write(i, (uint32_t)i * 1000);
        }
        memset(&config, 0, sizeof config);
        memset(&err, 0, sizeof err);
        config.device = DAMACY_GPU(0);
        config.mapping = DAMACY_MAPPING_ON;
        config.samples_per_batch = per_batch;
        config.io_threads = 3;
        config.decode_threads = 1;
        config.max_gpu_bytes = 48u << 20;
        config.max_host_bytes = 256u << 20;
        config.max_cache_bytes = 1; // each batch asks for its bytes
        config.cache_dir = "";
    }
    ~scene()
    {
        CHECK(d == NULL);
        CHECK_EQ(system(("rm -rf '" + base + "'").c_str()), 0);
    }
    void write(int kind, uint32_t seed)
    {
        mem_store* m = mem_new();
        mem_array& a = arrays[kind];
        a = mem_plain(uris[kind].c_str());
        a.seed = seed;
        a.has_crc = kind == CRC;
        for (int axis = 0; axis < 3 && (kind == SHARDED || kind == SHARDED_ZSTD); axis++)
            a.shard[axis] = 32;
        mem_put_array(m, &a);
        const bool is_blosc = kind == OF_ZSTD || kind == OF_LZ4 || kind == OF_ZLIB;
        for (int i = 0; i < m->n; i++) {
            const mem_object* o = &m->objects[i];
            if (strstr(o->key, "zarr.json")) {
                std::string text((const char*)o->bytes, o->size);
                const size_t at = text.find("\"little\"}}") + 10;
                if (kind == ZSTD || kind == SHARDED_ZSTD)
                    text.insert(
                        at,
                        ",{\"name\":\"zstd\",\"configuration\":{\"level\":3,\"checksum\":false}}");
                if (is_blosc)
                    text.insert(
                        at,
                        ",{\"name\":\"blosc\",\"configuration\":{\"cname\":\"zstd\",\"clevel\":5,"
                        "\"shuffle\":\"shuffle\",\"typesize\":2,\"blocksize\":0}}");
                write_file(o->key, text.data(), text.size());
            } else {
                const std::vector<uint8_t> bytes = kind == SHARDED_ZSTD
                                                       ? compress_shard(o->bytes, o->size, 8)
                                                       : encode(kind, o->bytes, o->size);
                write_file(o->key, bytes.data(), bytes.size());
            }
        }
        mem_free(m);
    }
    std::string file(int kind, const char* key) const
    {
        return uris[kind] + "/c/" + key;
    }
    void add(int kind, int z, int y, int x)
    {
        samples.push_back(mem_sample(&arrays[kind], z, y, x, 12));
        kinds.push_back(kind);
    }
    void add_random(int kind, uint32_t n)
    {
        uint64_t seed = 77 + (uint64_t)kind;
        for (uint32_t i = 0; i < n; i++) {
            const int z = (int)(test_random(&seed) % 28), y = (int)(test_random(&seed) % 28);
            add(kind, z, y, (int)(test_random(&seed) % 28));
        }
    }
    // Files of any size are mapped, and all are in memory.
    void create()
    {
        CHECK_EQ(damacy_create(&config, &d, &err), DAMACY_OK);
        d->core.mapped.least = 1;
        d->core.store.os.cached = all_in_memory;
    }
    // Pushes the next n samples, pops and checks their batch.
    damacy_status batch(uint32_t n)
    {
        damacy_batch batch;
        damacy_batch_info_t info;
        size_t n_taken = 0;
        damacy_status status = damacy_push(d, samples.data() + n_checked, n, &n_taken, &err);
        if (status == DAMACY_OK)
            status = damacy_pop_timeout(d, UINT64_C(200000000000), &batch, &err);
        if (status == DAMACY_OK) {
            check(batch, n);
            CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
            CHECK_EQ(damacy_release(batch), DAMACY_OK);
        }
        damacy_stats_get(d, &stats);
        return status;
    }
    void check(damacy_batch batch, uint32_t n)
    {
        damacy_batch_info_t info;
        damacy__context context = NULL, popped = NULL;
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ((uint32_t)info.shape[0], n);
        CHECK_EQ(fake::primary_retain(&context, 0), 0);
        CHECK_EQ(fake::context_push(context), 0);
        CHECK_EQ(fake::event_synchronize(info.ready_event), 0);
        fake::context_pop(&popped);
        fake::primary_release(0);
        for (uint32_t i = 0; i < n; i++, n_checked++)
            CHECK(mem_equal_f32(&arrays[kinds[n_checked]], &samples[n_checked],
                                (const float*)info.ptr + i * 12 * 12 * 12, 0.0f));
    }
    // All samples in batches of 4.
    void run()
    {
        while (n_checked < samples.size()) {
            const damacy_status status = batch(4);
            if (status != DAMACY_OK)
                printf("# %s: %s\n", damacy_status_str(status), err.message);
            CHECK_EQ(status, DAMACY_OK);
        }
    }
    void end()
    {
        damacy_destroy(d);
        d = NULL;
        const fake_counts counts = counts_without_misuse();
        CHECK_EQ(counts.live_allocations, 0);
        CHECK_EQ(counts.live_pinned, 0);
        CHECK_EQ(counts.live_registered, 0);
        CHECK_EQ(counts.live_streams, 0);
        CHECK_EQ(counts.live_events, 0);
        CHECK_EQ(counts.live_primary, 0);
        fake_close();
    }
};

// Registrations of files that are held now.
static uint32_t n_mapped(scene& s)
{
    uint32_t n = 0;
    damacy__mapped* mapped = &s.d->core.mapped;
    damacy__lock(&mapped->mutex);
    for (uint32_t i = 0; i < mapped->n_files; i++)
        n += mapped->files[i].mapping.map != NULL;
    damacy__unlock(&mapped->mutex);
    return n;
}

// ---- what is mapped ----

TEST(every_codec_gives_the_same_voxels_mapped_and_read)
{
    for (int kind = 0; kind < KINDS; kind++) {
        if (is_slow && (kind == OF_ZSTD || kind == OF_LZ4)) // minutes of simulated kernels
            continue;
        for (int is_off = 0; is_off < 2; is_off++) {
            scene s;
            s.add_random(kind, kind == SHARDED || kind == SHARDED_ZSTD
                                   ? 12
                                   : 4); // simulated kernels of blosc are slow
            s.config.mapping = is_off ? DAMACY_MAPPING_OFF : DAMACY_MAPPING_ON;
            s.create();
            s.run();
            printf("# %s: %llu of %llu bytes mapped\n", kind_names[kind],
                   (unsigned long long)s.stats.bytes_mapped,
                   (unsigned long long)s.stats.read.bytes_in);
            const bool can = kind != CRC && kind != OF_ZLIB;
            CHECK_EQ(s.stats.bytes_mapped > 0, can && !is_off);
            CHECK(s.stats.bytes_mapped <= s.stats.read.bytes_in);
            s.end();
        }
    }
}

TEST(small_copies_go_by_a_kernel_from_memory_that_it_reads_and_by_the_copy_engine_else)
{
    for (int is_off = 0; is_off < 2; is_off++) {
        for (int way = 0; way < 3; way++) {
            const bool cannot = way == 1;
            fake_counts counts;
            scene s;
            s.add_random(RAW, 8);
            s.add_random(SHARDED, 8);
            s.config.mapping = is_off ? DAMACY_MAPPING_OFF : DAMACY_MAPPING_ON;
            machine.cannot_read_host = cannot;
            machine.lacks_new_functions = way == 2;
            s.create();
            s.run();
            fake_count(&counts);
            CHECK_EQ(s.stats.bytes_mapped > 0, !is_off);
            CHECK_EQ(counts.n_gathers > 0, !cannot);
            CHECK_EQ(counts.n_mapped > 0, !is_off && cannot);
            s.end();
        }
    }
}

TEST(chunks_with_checksums_are_mapped_when_those_are_skipped)
{
    scene s;
    s.add_random(CRC, 8);
    s.config.skip_checksums = 1;
    s.create();
    s.run();
    CHECK(s.stats.bytes_mapped > 0);
    s.end();
}

TEST(a_file_is_mapped_once_and_only_after_an_eighth_of_it_was_asked_for)
{
    scene s(1);
    // The first shard's 8 chunks of 8192 bytes: one of them is not quite an eighth of the file.
    for (int i = 0; i < 12; i++)
        s.add(SHARDED, 0, 0, 0);
    s.create();
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 0);
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 8192);
    CHECK_EQ(n_mapped(s), 1);
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 2 * 8192);
    CHECK_EQ(n_mapped(s), 1);
    CHECK_EQ(s.stats.read.bytes_in, 3 * 8192);
    s.end();
}

TEST(small_files_are_read)
{
    scene s;
    s.add_random(RAW, 8);
    s.create();
    s.d->core.mapped.least = 8193;
    s.run();
    CHECK_EQ(s.stats.bytes_mapped, 0);
    s.end();
}

TEST(a_file_that_is_not_in_memory_is_read_and_tried_again_later)
{
    scene s(1);
    for (int i = 0; i < 4; i++)
        s.add(RAW, 0, 0, 0);
    s.create();
    s.d->core.store.os.cached = none_in_memory;
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 0);
    CHECK_EQ(n_mapped(s), 0);
    s.d->core.store.os.cached = all_in_memory;
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 8192);
    s.end();
}

TEST(a_custom_store_is_never_mapped)
{
    mem_store* m = mem_new();
    scene s(1);
    mem_array a = mem_plain("x.zarr");
    mem_put_array(m, &a);
    a.seed = s.arrays[RAW].seed = 0;
    s.config.store = mem_callbacks(m);
    s.samples.push_back(mem_sample(&a, 0, 0, 0, 12));
    s.kinds.push_back(RAW);
    CHECK_EQ(damacy_create(&s.config, &s.d, &s.err), DAMACY_OK);
    CHECK(s.d->core.mapped.device == NULL);
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 0);
    s.end();
    mem_free(m);
}

// ---- limits ----

TEST(mapped_files_stay_within_their_share_and_the_rest_is_read)
{
    scene s;
    s.add_random(RAW, 48);
    s.create();
    CHECK(s.d->core.mapped.max_bytes <= s.config.max_host_bytes / 2);
    s.d->core.mapped.max_bytes = 3 * 8192;
    s.run();
    CHECK_EQ(n_mapped(s), 3);
    CHECK_EQ(s.d->core.mapped.n_bytes, 3 * 8192);
    CHECK(s.stats.bytes_mapped > 0);
    CHECK(s.stats.bytes_mapped < s.stats.read.bytes_in);
    s.end();
}

TEST(mapped_files_leave_an_eighth_of_the_host_budget)
{
    scene s(1);
    for (int i = 0; i < 4; i++)
        s.add(RAW, 0, 0, i < 2 ? 0 : 16);
    s.create();
    s.d->core.mapped.least = 8193;
    CHECK_EQ(s.batch(1), DAMACY_OK); // all other memory is made
    s.d->core.mapped.least = 1;
    const uint64_t pinned = s.d->core.gpu->device.pinned;
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(n_mapped(s), 1);
    CHECK_EQ(s.d->core.gpu->device.pinned - pinned, 8192);
    s.d->core.alloc.budget =
        s.stats.host_bytes_committed + (1 << 20); // less than an eighth is left
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(n_mapped(s), 1);
    s.d->core.alloc.budget = s.config.max_host_bytes;
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(n_mapped(s), 2);
    s.end();
}

TEST(files_that_were_not_used_for_long_make_room)
{
    scene s(1);
    s.add(RAW, 0, 0, 0);
    for (int i = 0; i < 40; i++)
        s.add(RAW, 0, 0, 16);
    s.create();
    s.d->core.mapped.max_bytes = 8192;
    for (int i = 0; i < 41; i++) {
        CHECK_EQ(s.batch(1), DAMACY_OK);
        CHECK_EQ(n_mapped(s), 1);
        const bool is_other = i > DAMACY__MAPPED_KEEP;
        CHECK_EQ(s.stats.bytes_mapped,
                 is_other ? 8192 * (uint64_t)(i - DAMACY__MAPPED_KEEP + 1) : 8192);
    }
    s.end();
}

TEST(records_run_out_and_are_used_again)
{
    scene s;
    s.add_random(RAW, 48);
    s.create();
    s.d->core.store.os.cached = none_in_memory;
    damacy__mapped* mapped = &s.d->core.mapped;
    while (mapped->spare->next) // one is left
        mapped->spare = mapped->spare->next;
    s.run();
    CHECK_EQ(s.stats.bytes_mapped, 0);
    CHECK_EQ(mapped->table.n_entries + (mapped->spare != NULL), 1);
    s.end();
}

// ---- files that change ----

// Maps the first chunk's file of an array; then `change` happens to it.
static void replaced(void (*change)(const std::string& path), const char* message)
{
    scene s(1);
    for (int i = 0; i < 4; i++)
        s.add(RAW, 0, 0, 0);
    s.create();
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 8192);
    CHECK_EQ(n_mapped(s), 1);
    change(s.file(RAW, "0/0/0"));
    CHECK_EQ(s.batch(1), DAMACY_IO);
    printf("# %s: %s\n", s.err.chunk, s.err.message);
    CHECK_HAS(s.err.message, message);
    CHECK(strcmp(s.err.chunk, "c/0/0/0") == 0);
    CHECK_EQ(n_mapped(s), 0);
    s.end();
}

TEST(a_file_that_is_renamed_over_is_an_error_and_its_mapping_goes)
{
    replaced(
        [](const std::string& path) {
            const std::string bytes = read_file(path);
            write_file(path + ".new", bytes.data(), bytes.size());
            CHECK_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
        },
        "was replaced since its index was read");
}

TEST(a_file_that_is_written_anew_is_an_error_and_its_mapping_goes)
{
    replaced(
        [](const std::string& path) {
            const std::string bytes = read_file(path);
            usleep(20000); // clocks of file systems are coarse
            write_file(path, bytes.data(), bytes.size());
        },
        "was replaced since its index was read");
}

TEST(a_file_that_is_cut_short_is_an_error_and_its_mapping_goes)
{
    replaced([](const std::string& path) { CHECK_EQ(truncate(path.c_str(), 100), 0); },
             "was replaced since its index was read");
}

TEST(a_file_that_is_deleted_is_an_error_and_its_mapping_goes)
{
    replaced([](const std::string& path) { CHECK_EQ(unlink(path.c_str()), 0); },
             "is gone since its index was read");
}

TEST(a_file_that_changes_while_others_hold_it_open_is_an_error)
{
    scene s(1);
    for (int i = 0; i < 4; i++)
        s.add(RAW, 0, 0, 0);
    s.create();
    CHECK_EQ(s.batch(1), DAMACY_OK);
    damacy__root* root = NULL;
    damacy__object* object = NULL;
    CHECK_EQ(damacy__store_root(&s.d->core.store, s.uris[RAW].c_str(), &root, &s.err), DAMACY_OK);
    CHECK_EQ(damacy__store_open(&s.d->core.store, root, "c/0/0/0", &object, &s.err), DAMACY_OK);
    CHECK_EQ(truncate(s.file(RAW, "0/0/0").c_str(), 100), 0);
    CHECK_EQ(s.batch(1), DAMACY_IO);
    CHECK_HAS(s.err.message, "was changed while in use");
    damacy__store_close(&s.d->core.store, object);
    damacy__store_root_release(&s.d->core.store, root);
    s.end();
}

TEST(a_file_that_is_cut_short_before_its_copy_runs_harms_nobody)
{
    scene s(1);
    damacy_batch batch;
    size_t n = 0;
    for (int i = 0; i < 4; i++)
        s.add(RAW, 0, 0, 0);
    s.create();
    CHECK_EQ(s.batch(1), DAMACY_OK);
    fake_hold(1);
    CHECK_EQ(damacy_push(s.d, s.samples.data(), 1, &n, &s.err), DAMACY_OK);
    for (int i = 0; i < 5000; i++) {
        damacy_stats_get(s.d, &s.stats);
        if (s.stats.bytes_mapped == 2 * 8192)
            break;
        usleep(1000);
    }
    CHECK_EQ(s.stats.bytes_mapped, 2 * 8192);
    CHECK_EQ(truncate(s.file(RAW, "0/0/0").c_str(), 100), 0);
    fake_hold(0);
    // On a GPU the registered pages keep their bytes; here they read as zeros.
    CHECK_EQ(damacy_pop_timeout(s.d, UINT64_C(200000000000), &batch, &s.err), DAMACY_OK);
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    s.end();
}

// ---- a driver that refuses ----

static int n_logged;

static void count_refusals(void*, damacy_log_level, const char* text)
{
    if (strstr(text, "files are read, not mapped"))
        __atomic_add_fetch(&n_logged, 1, __ATOMIC_RELAXED);
}

TEST(files_that_the_driver_refuses_are_read_it_is_said_once_and_not_tried_for_ever)
{
    scene s;
    n_logged = 0;
    s.add_random(RAW, 48);
    machine.cannot_register = 1;
    s.config.logger.log = count_refusals;
    s.create();
    s.run();
    CHECK_EQ(s.stats.bytes_mapped, 0);
    CHECK_EQ(n_logged, 1);
    CHECK(s.d->core.mapped.is_off);
    CHECK(s.d->core.mapped.n_refused <= DAMACY__MAPPED_REFUSALS + s.config.io_threads);
    s.end();
}

TEST(one_refusal_is_remembered_for_that_file_alone)
{
    scene s(1);
    s.add(RAW, 0, 0, 0);
    s.add(RAW, 0, 0, 0);
    s.add(RAW, 0, 0, 16);
    s.create();
    s.d->core.mapped.least = 8193;
    s.add(RAW, 0, 0, 0);
    CHECK_EQ(s.batch(1), DAMACY_OK); // the waves' memory is made and registered
    s.d->core.mapped.least = 1;
    fake_fail("host_register", 0, 1);
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 0);
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 8192);
    CHECK_EQ(s.batch(1), DAMACY_OK);
    CHECK_EQ(s.stats.bytes_mapped, 8192);
    CHECK(!s.d->core.mapped.is_off);
    s.end();
}

// Files are read, where the device says this of itself.
static void not_asked(int fake_config::*what)
{
    scene s;
    s.add_random(RAW, 8);
    machine.*what = 1;
    CHECK_EQ(damacy_create(&s.config, &s.d, &s.err), DAMACY_OK);
    CHECK(s.d->core.mapped.device == NULL);
    s.run();
    CHECK_EQ(s.stats.bytes_mapped, 0);
    s.end();
}

TEST(a_device_that_cannot_read_mapped_files_is_not_asked)
{
    not_asked(&fake_config::cannot_register_read_only);
}

// There the pages of a file that is cut short are gone for the device, too.
TEST(a_device_that_goes_by_the_hosts_page_tables_is_not_asked)
{
    not_asked(&fake_config::has_host_page_tables);
}

// ---- ends ----

TEST(destroying_with_copies_from_mapped_files_in_flight_leaves_nothing)
{
    for (int round = 0; round < (is_slow ? 2 : 8); round++) {
        scene s;
        size_t n = 0;
        for (int i = 0; i < 4; i++)
            s.add_random(i == 3 ? SHARDED : i, 8);
        s.create();
        fake_slow(200000);
        CHECK_EQ(damacy_push(s.d, s.samples.data(), s.samples.size(), &n, &s.err), DAMACY_OK);
        usleep((useconds_t)round * 3000);
        s.end();
    }
}

TEST(a_lost_device_with_mapped_files_ends_cleanly)
{
    for (uint64_t nth = 0; nth < 6; nth++) {
        scene s;
        s.add_random(RAW, 8);
        s.add_random(ZSTD, 8);
        s.create();
        CHECK_EQ(s.batch(4), DAMACY_OK);
        fake_fail("copy_to_device", nth, 700);
        damacy_status status = DAMACY_OK;
        for (int i = 0; i < 3 && status == DAMACY_OK; i++)
            status = s.batch(4);
        CHECK_EQ(status, DAMACY_DEVICE_LOST);
        damacy_destroy(s.d);
        s.d = NULL;
        fake_counts counts;
        fake_count(&counts);
        CHECK_EQ(counts.live_allocations, 0);
        CHECK_EQ(counts.live_registered, 0);
        fake_close();
    }
}

TEST_MAIN
