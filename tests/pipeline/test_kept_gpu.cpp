// Decoded chunks that a pipeline keeps on the device for later batches, on the fake driver: the
// same voxels with and without, each chunk read and decoded once where there is room, nothing kept
// that failed, and every batch ends that waits for another's chunk. (On the CPU: test_kept.c.)
#include "tests/pipeline/gpu_scene.h"
#include <thread>
#include <unistd.h>

// Statistics of a good epoch, which is had so many times, on a device of so many bytes.
static damacy_stats stats_of(uint64_t max_cache_bytes, int n_epochs = 1, uint64_t device_bytes = 0)
{
    scene s(IS_SLOW ? 9 : 18);
    const size_t n = s.samples.size();
    damacy_stats stats;
    fake_counts counts;
    for (size_t i = n; i < n * (size_t)n_epochs; i++) {
        s.samples.push_back(s.samples[i - n]);
        s.array_of.push_back(s.array_of[i - n]);
    }
    machine.device_bytes = device_bytes ? device_bytes : machine.device_bytes;
    s.config.max_cache_bytes = max_cache_bytes;
    damacy* d = create(s);
    check_epoch(s, d);
    damacy_stats_get(d, &stats);
    fake_count(&counts);
    CHECK_EQ(stats.gpu_bytes_committed, counts.live_bytes);
    CHECK(counts.most_bytes <= s.config.max_gpu_bytes);
    damacy_destroy(d);
    check_no_leftovers(s);
    return stats;
}

// Of every way, those among them that are not decoded at all, and those that the host decodes.
TEST(second_epoch_reads_and_decodes_nothing)
{
    const damacy_stats once = stats_of(0), twice = stats_of(0, 2);
    CHECK(once.chunks_decoded > 0);
    CHECK_EQ(twice.chunks_decoded, once.chunks_decoded);
    CHECK_EQ(twice.read.bytes_in, once.read.bytes_in);
    CHECK_EQ(twice.decode.bytes_out, once.decode.bytes_out);
    CHECK(twice.chunks_kept > once.chunks_kept);
}

TEST(voxels_are_the_same_with_all_some_and_no_chunks_kept)
{
    enum { FEW = 12 * 4096 };
    uint64_t n_all = 0;
    for (const uint64_t size : {1, (int)FEW, 0}) {
        const damacy_stats stats = stats_of(size, 2);
        n_all = n_all ? n_all : stats.chunks_decoded;
        CHECK_EQ(stats.chunks_decoded + stats.chunks_kept, n_all);
        CHECK_EQ(stats.chunks_kept != 0, size != 1);
        CHECK(size == 0 ? stats.cache_bytes > FEW : stats.cache_bytes == size - size % 4096);
    }
}

// The device has a third of what the budget leaves: half of that is taken, or, where a size is
// named that it does not have, a quarter of that.
TEST(device_with_little_memory_keeps_fewer_chunks)
{
    const uint64_t none = stats_of(1).gpu_bytes_committed;
    const uint64_t left = stats_of(0).gpu_bytes_committed - none;
    for (const bool is_named : {false, true}) {
        const uint64_t most = is_named ? left / 4 : left / 6;
        const damacy_stats stats = stats_of(is_named ? left : 0, 2, none + left / 3);
        CHECK(stats.cache_bytes <= most && stats.cache_bytes > most - 4096);
        CHECK_EQ(stats.gpu_bytes_committed, none + stats.cache_bytes);
        CHECK(stats.chunks_kept > 0);
    }
}

// Two batches of the same samples of one array, whose bytes come once the first read is let go.
struct two_batches {
    scene s{4 * WAYS};
    log_state log;
    damacy* d = NULL;
    explicit two_batches(int way)
    {
        const damacy_sample sample = mem_sample(&s.arrays[way], 0, 1, 2, CROP);
        s.samples.assign(8, sample);
        s.array_of.assign(8, way);
        s.config.on_error = DAMACY_ON_ERROR_FILL;
        s.config.logger.user = &log;
        s.config.logger.log = log_line;
        mem_pause(s.store, 1);
        d = create(s);
        CHECK_EQ(damacy_push(d, s.samples.data(), 8, NULL, &s.err), DAMACY_OK);
        damacy_stats stats;
        do { // both are planned
            usleep(100);
            damacy_stats_get(d, &stats);
        } while (stats.plan.count < 2 || !__atomic_load_n(&s.store->n_waiting, __ATOMIC_ACQUIRE));
        CHECK_EQ(stats.chunks_decoded, 8);
        CHECK_EQ(stats.chunks_kept, 8);
    }
    uint32_t reads() const
    {
        uint32_t n = 0;
        for (int i = 0; i < s.store->n; i++)
            n += strstr(s.store->objects[i].key, "/c/") ? (uint32_t)s.store->objects[i].n_reads : 0;
        return n;
    }
    void end()
    {
        damacy_destroy(d);
        check_no_leftovers(s);
    }
};

TEST(batches_on_their_way_share_one_read_and_one_decoding)
{
    for (int way : {0, 1, 3, 6, 8}) {
        two_batches t(way);
        mem_pause(t.s.store, 0);
        take(t.s, t.d);
        take(t.s, t.d);
        CHECK_EQ(t.reads(), 8);
        t.end();
    }
}

// Found by the host before it is sent, by the device, or by the host that decodes it.
TEST(damaged_chunk_is_not_kept_and_fails_all_batches_that_wait_for_it)
{
    for (int way : {4, 7, 3, 6}) {
        two_batches t(way);
        mem_object* o = mem_find(t.s.store, (std::string(ways[way].uri) + "/c/0/0/0").c_str());
        const std::vector<uint8_t> good(o->bytes, o->bytes + o->size);
        damacy_error err;
        damage(o);
        mem_pause(t.s.store, 0);
        for (int i = 0; i < 2; i++) {
            const damacy_batch batch = pop(t.s, t.d);
            CHECK_EQ(info_of(batch).n_failed, 4);
            for (uint32_t k = 0; k < 4; k++) {
                CHECK_EQ(damacy_batch_failed(batch, k, &err), DAMACY_OK);
                CHECK_EQ(err.status, DAMACY_DECODE);
                CHECK_STR(err.uri, ways[way].uri);
                CHECK_STR(err.chunk, "c/0/0/0");
                CHECK_EQ(err.sample, 4 * i + k);
            }
            CHECK_EQ(damacy_release(batch), DAMACY_OK);
        }
        memcpy(o->bytes, good.data(), good.size());
        t.s.samples.insert(t.s.samples.end(), t.s.samples.begin(), t.s.samples.begin() + 4);
        t.s.array_of.insert(t.s.array_of.end(), 4, way);
        CHECK_EQ(damacy_push(t.d, t.s.samples.data() + 8, 4, NULL, &err), DAMACY_OK);
        take(t.s, t.d);
        CHECK_EQ(t.reads(), 9);
        t.end();
    }
}

TEST(batches_that_wait_end_with_the_device)
{
    for (const char* call : {"launch", "event_record", "copy_to_host"}) {
        two_batches t(1);
        damacy_batch batch;
        damacy_status status;
        fake_fail(call, 0, 719);
        mem_pause(t.s.store, 0);
        do {
            status = damacy_pop_timeout(t.d, UINT64_C(60000000000), &batch, &t.s.err);
            if (status == DAMACY_OK) {
                CHECK_EQ(info_of(batch).n_failed, 4);
                CHECK_EQ(damacy_release(batch), DAMACY_OK);
            }
        } while (status == DAMACY_OK);
        CHECK_EQ(status, DAMACY_DEVICE_LOST);
        t.end();
    }
}

TEST(destroy_gives_up_batches_that_wait)
{
    two_batches t(3);
    std::thread reader([&] {
        usleep(20000); // destroy is under way then
        mem_pause(t.s.store, 0);
    });
    damacy_destroy(t.d);
    reader.join();
    CHECK(!t.log.has(".zarr")); // errors name their array
    check_no_leftovers(t.s);
}

TEST_MAIN
