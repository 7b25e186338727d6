/* s40 and s43 to s50: endless sources, statistics, messages, and how storage is used. */
#include "tests/pipeline/semantics.h"
#include <sys/wait.h>

/* ---- endless sources ---- */

typedef struct source {
    const mem_array* a;
    uint64_t n_pulled;
} source;

static damacy_sample source_next(source* s)
{
    const int64_t i = (int64_t)s->n_pulled++;

    return mem_sample(s->a, i % 24, i * 7 % 24, i * 5 % 24, 16);
}

/* An endless source is pulled one sample ahead at most: what was not taken is kept, never lost. A
 * source that ends in the middle of a batch leaves the others to go on. */
TEST(s40_endless_sources_are_pulled_as_far_as_there_is_room)
{
    enum { PER_BATCH = 3, LOOKAHEAD = 6, SLOTS = 2, BATCHES = 40 };
    mem_store* m = mem_new();
    mem_array arrays[2];
    source sources[2];
    damacy_sample samples[PER_BATCH * BATCHES + 64];
    damacy_sample pending = {0};
    damacy_config c = config_of(m, PER_BATCH);
    uint64_t n_pushed = 0;
    int has_pending = 0;
    damacy_error err;
    damacy* d = NULL;

    for (int i = 0; i < 2; i++) {
        arrays[i] = mem_plain(i ? "b.zarr" : "a.zarr"); /* the same voxels */
        mem_put_array(m, &arrays[i]);
        sources[i].a = &arrays[i];
        sources[i].n_pulled = 0;
    }
    c.lookahead_samples = LOOKAHEAD;
    c.batch_slots = SLOTS;
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    for (uint64_t popped = 0; popped < BATCHES; popped++) {
        damacy_status status = DAMACY_OK;
        while (status == DAMACY_OK) {
            if (!has_pending) { /* the second source takes over where the first one ends */
                pending = source_next(&sources[n_pushed >= 61 ? 1 : 0]);
                has_pending = 1;
            }
            status = damacy_push(d, &pending, 1, NULL, &err);
            if (status == DAMACY_OK) {
                samples[n_pushed++] = pending;
                has_pending = 0;
            }
        }
        CHECK_EQ(status, DAMACY_AGAIN);
        CHECK(n_pushed <= popped * PER_BATCH + LOOKAHEAD + SLOTS * PER_BATCH);
        CHECK_EQ(pop_is(d, &arrays[0], samples + popped * PER_BATCH, PER_BATCH, &err), DAMACY_OK);
    }
    CHECK_EQ(sources[0].n_pulled, 61);
    CHECK(sources[0].n_pulled + sources[1].n_pulled <= n_pushed + 1);
    damacy_destroy(d);
    mem_free(m);
}

TEST(s43_statistics_advance_and_reset_keeps_what_it_says)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, 2);
    damacy_sample s[4];
    damacy_stats before;
    damacy_stats stats;
    damacy_error err;
    damacy* d = NULL;

    c.max_cache_bytes = 1; /* each batch decodes for itself */
    a.has_crc = 1;
    mem_put_array(m, &a);
    for (int i = 0; i < 4; i++) {
        s[i] = mem_sample(&a, 2, 3, 4, 16);
    }
    memset(&stats, 0x5a, sizeof stats);
    damacy_stats_get(NULL, &stats);
    CHECK_EQ(stats.plan.count + stats.samples_pushed + stats.host_bytes_committed, 0);
    damacy_stats_get(NULL, NULL);
    damacy_stats_reset(NULL);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    damacy_stats_get(d, &before);
    CHECK(before.host_bytes_committed > 0);
    CHECK_EQ(before.gpu_bytes_committed, 0);
    CHECK_EQ(damacy_push(d, s, 4, NULL, &err), DAMACY_OK);
    CHECK_EQ(pop_is(d, &a, s, 2, &err), DAMACY_OK);
    CHECK_EQ(pop_is(d, &a, s + 2, 2, &err), DAMACY_OK);
    damacy_stats_get(d, &stats);
    CHECK(stats.host_bytes_committed > before.host_bytes_committed); /* the slots */
    CHECK_EQ(stats.samples_pushed, 4);
    CHECK_EQ(stats.batches_delivered, 2);
    CHECK_EQ(stats.samples_failed, 0);
    CHECK_EQ(stats.plan.count, 2);
    CHECK_EQ(stats.chunks_touched, 4 * 8);
    CHECK_EQ(stats.chunks_decoded, 2 * 8);
    CHECK_EQ(stats.read.count, 2 * 8);
    CHECK_EQ(stats.read.bytes_in, 2 * 8 * 8196);
    CHECK_EQ(stats.decode.count, 2 * 8);
    CHECK(stats.read.total_ns >= stats.read.best_ns && stats.read.best_ns > 0);
    CHECK(stats.metadata.count >= 1 && stats.pop_wait.count >= 2);
    CHECK_EQ(stats.voxels_delivered, 4 * 4096);
    CHECK(stats.read_amplification > 0.999 && stats.read_amplification < 1.001);
    CHECK(stats.decode_amplification > 3.99 && stats.decode_amplification < 4.01); /* 8 / 2 */
    CHECK_EQ(stats.assemble.count, 2 * 8);
    for (int i = 0; i < 2; i++) {
        damacy_stats after;
        damacy_stats_reset(d);
        damacy_stats_get(d, &after);
        CHECK_EQ(after.samples_pushed + after.batches_delivered + after.read.count, 0);
        CHECK_EQ(after.plan.best_ns, 0);
        CHECK_EQ(after.host_bytes_committed, stats.host_bytes_committed);
        CHECK_EQ(after.array_misses, stats.array_misses);
        CHECK_EQ(after.array_hits, stats.array_hits);
        CHECK_EQ(after.index_misses, stats.index_misses);
    }
    damacy_destroy(d);
    mem_free(m);
}

/* Ours: damacy_config_resolve says early what create would. */
TEST(s44_a_configuration_is_judged_without_a_pipeline)
{
    damacy_config c;
    damacy_config once;
    damacy_config twice;
    damacy_error err;
    char text[4096];
    char small[8];
    size_t len;

    memset(&c, 0, sizeof c);
    c.samples_per_batch = 5;
    c.device = DAMACY_CPU;
    CHECK_EQ(damacy_config_resolve(&c, &once, &err), DAMACY_OK);
    CHECK_EQ(damacy_config_resolve(&once, &twice, &err), DAMACY_OK);
    CHECK_EQ(twice.lookahead_samples, once.lookahead_samples);
    CHECK_EQ(twice.max_host_bytes, once.max_host_bytes);
    CHECK_EQ(twice.decode_threads, once.decode_threads);
    CHECK_EQ(damacy_config_resolve(&c, NULL, &err), DAMACY_INVAL);
    len = damacy_config_describe(&c, text, sizeof text);
    CHECK_EQ(len, strlen(text));
    CHECK_HAS(text, "samples_per_batch");
    CHECK_HAS(text, "5");
    CHECK_EQ(damacy_config_describe(&c, small, sizeof small), len);
    CHECK_EQ(strlen(small), sizeof small - 1);
    CHECK_EQ(damacy_config_describe(&c, NULL, 0), len);
    c.bounds = (damacy_bounds)-1;
    (void)damacy_config_describe(&c, text, sizeof text);
    CHECK_HAS(text, "bounds");
    CHECK(damacy_config_describe(NULL, text, sizeof text) > 0);
}

/* ---- messages ---- */

typedef struct messages {
    pthread_mutex_t mutex;
    int n;
    int n_warnings;
    int n_below;
    damacy_log_level level;
    char last[600];
} messages;

static void messages_take(void* user, damacy_log_level level, const char* text)
{
    messages* l = (messages*)user;

    pthread_mutex_lock(&l->mutex);
    l->n++;
    l->n_below += level < l->level;
    if (level == DAMACY_LOG_WARN) {
        l->n_warnings++;
        (void)snprintf(l->last, sizeof l->last, "%s", text);
    }
    pthread_mutex_unlock(&l->mutex);
}

/* Messages come from the library's threads; a forked child can still end, and its calls are
 * refused. */
TEST(s45_messages_reach_the_logger_and_a_fork_harms_nobody)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample s = mem_sample(&a, 0, 0, 0, 16);

    mem_put_array(m, &a);
    mem_find(m, "v.zarr/c/0/0/0")->read_fault = 1;
    for (int level = DAMACY_LOG_DEBUG; level <= DAMACY_LOG_ERROR; level++) {
        damacy_config c = scene_config(m, 1, DAMACY_ON_ERROR_FILL);
        messages l;
        damacy_batch batch;
        damacy_batch_info_t info;
        damacy_error err;
        damacy* d = NULL;
        pid_t child;
        int code = -1;
        memset(&l, 0, sizeof l);
        pthread_mutex_init(&l.mutex, NULL);
        l.level = (damacy_log_level)level;
        c.log_level = (damacy_log_level)level;
        c.logger.user = &l;
        c.logger.log = messages_take;
        CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
        CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        (void)fflush(stdout);
        child = fork();
        if (child == 0) {
            const int ok = damacy_push(d, &s, 1, NULL, &err) == DAMACY_INVAL &&
                           strstr(err.message, "forked") &&
                           damacy_pop(d, &batch, &err) == DAMACY_INVAL &&
                           damacy_finish(d) == DAMACY_INVAL &&
                           damacy_batch_info(batch, &info) == DAMACY_INVAL &&
                           damacy_batch_failed(batch, 0, &err) == DAMACY_INVAL &&
                           damacy_release(batch) == DAMACY_INVAL;
            damacy_destroy(d);
            _exit(ok ? 42 : 1);
        }
        CHECK(child > 0);
        CHECK_EQ(waitpid(child, &code, 0), child);
        CHECK(WIFEXITED(code) && WEXITSTATUS(code) == 42);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        CHECK_EQ(damacy_push(d, &s, 1, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        damacy_destroy(d);
        CHECK_EQ(l.n_below, 0);
        CHECK_EQ(l.n_warnings, level <= DAMACY_LOG_WARN ? 2 : 0);
        if (level <= DAMACY_LOG_WARN) {
            CHECK_HAS(l.last, "sample 1");
            CHECK_HAS(l.last, "v.zarr");
            CHECK_HAS(l.last, "c/0/0/0");
        } else {
            CHECK_EQ(l.n, 0);
        }
        pthread_mutex_destroy(&l.mutex);
    }
    mem_free(m);
}

/* ---- reads ---- */

typedef struct log_entry {
    const mem_object* object;
    uint64_t offset;
    uint64_t size;
} log_entry;

typedef struct read_log {
    mem_store* m;
    pthread_mutex_t mutex;
    int n;
    uint64_t n_opens_of_metadata;
    log_entry entries[4096];
} read_log;

static damacy_status log_open(void* user, const char* key, void** object, uint64_t* size)
{
    read_log* l = (read_log*)user;

    if (strstr(key, "zarr.json")) {
        pthread_mutex_lock(&l->mutex);
        l->n_opens_of_metadata++;
        pthread_mutex_unlock(&l->mutex);
    }
    return mem_open(l->m, key, object, size);
}

static damacy_status log_read_at(void* user, void* object, uint64_t offset, void* dst, size_t size,
                                 size_t* n_read)
{
    read_log* l = (read_log*)user;

    if (strstr(((mem_object*)object)->key, "/c/")) {
        pthread_mutex_lock(&l->mutex);
        if (l->n < 4096) {
            l->entries[l->n].object = (const mem_object*)object;
            l->entries[l->n].offset = offset;
            l->entries[l->n++].size = size;
        }
        pthread_mutex_unlock(&l->mutex);
    }
    return mem_read_at(l->m, object, offset, dst, size, n_read);
}

static void log_close(void* user, void* object)
{
    mem_close(((read_log*)user)->m, object);
}

static read_log* log_new(mem_store* m, damacy_config* c)
{
    read_log* l = (read_log*)calloc(1, sizeof *l);

    l->m = m;
    pthread_mutex_init(&l->mutex, NULL);
    c->store.user = l;
    c->store.open = log_open;
    c->store.read_at = log_read_at;
    c->store.close = log_close;
    c->io_threads = 1; /* so that the order of reads is the order of issue */
    return l;
}

static void log_free(read_log* l)
{
    pthread_mutex_destroy(&l->mutex);
    free(l);
}

enum { CHUNK_BYTES = 16 * 16 * 16 * 2, INDEX_BYTES = 16 * 8 + 4 };

/* Ours: small gaps are read over, too. */
TEST(s46_reads_are_sorted_joined_and_bounded_and_shards_take_turns)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("a.zarr");
    mem_array b;
    damacy_config c = config_of(m, 2);
    damacy_sample s[2];
    damacy_error err;
    damacy* d = NULL;

    a.shape[0] = a.shape[1] = a.shape[2] = 32;
    a.shard[0] = a.shard[1] = a.shard[2] = 32;
    b = a;
    b.uri = "b.zarr";
    b.is_missing_odd = 1;
    mem_put_array(m, &a);
    mem_put_array(m, &b);
    s[0] = mem_sample(&a, 0, 0, 0, 32);
    s[1] = mem_sample(&b, 0, 0, 0, 32);
    for (uint64_t most = CHUNK_BYTES; most <= 16 * CHUNK_BYTES; most *= 2) {
        read_log* l = log_new(m, &c);
        uint64_t wanted[2] = {8 * CHUNK_BYTES, 4 * CHUNK_BYTES};
        int n_reads[2] = {0, 0};
        uint64_t last[2] = {0, 0};
        damacy_batch batch;
        damacy_batch_info_t info;
        c.max_read_bytes = most;
        CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
        CHECK_EQ(damacy_push(d, s, 2, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK(mem_equal_f32(&a, &s[0], (const float*)info.ptr, 0.0f));
        CHECK(mem_equal_f32(&b, &s[1], (const float*)info.ptr + 32768, 0.0f));
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
        damacy_destroy(d);
        for (int i = 0; i < l->n; i++) {
            const log_entry* e = &l->entries[i];
            const int k = strncmp(e->object->key, "b.zarr", 6) == 0;
            if (e->size == INDEX_BYTES) {
                continue;
            }
            CHECK(e->size <= most);       /* bounded */
            CHECK_EQ(e->offset, last[k]); /* sorted, each byte once */
            last[k] = e->offset + e->size;
            if (n_reads[1 - k] < (int)(wanted[1 - k] / most)) { /* the other still has some */
                CHECK(n_reads[k] <= n_reads[1 - k]);            /* turns */
            }
            n_reads[k]++;
        }
        for (int k = 0; k < 2; k++) { /* joined: chunks that are missing hold nothing up */
            CHECK_EQ(last[k], wanted[k]);
            CHECK_EQ(n_reads[k], most >= wanted[k] ? 1 : (int)(wanted[k] / most));
        }
        log_free(l);
    }
    s[0] = mem_sample(&a, 0, 0, 0, 16); /* chunks 0 and 2 of an x-y plane: a gap of one chunk */
    s[0].box[1].end = 32;
    c.samples_per_batch = 1;
    c.max_read_bytes = 0;
    {
        read_log* l = log_new(m, &c);
        int n = 0;
        CHECK_EQ(read_one(m, &c, s, NULL, 0, &err), DAMACY_OK);
        for (int i = 0; i < l->n; i++) {
            n += l->entries[i].size != INDEX_BYTES;
        }
        CHECK_EQ(n, 1);
        log_free(l);
    }
    mem_free(m);
}

TEST(s47_metadata_is_fetched_once_and_a_failure_stays_while_it_is_in_use)
{
    enum { N = 20 };
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = scene_config(m, N, DAMACY_ON_ERROR_FILL);
    read_log* l = log_new(m, &c);
    damacy_sample s[N];
    damacy_stats stats;
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;
    uint64_t n_before;

    mem_put_array(m, &a);
    for (int i = 0; i < N; i++) {
        s[i] = mem_sample(&a, i, i, i, 8);
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, N, NULL, &err), DAMACY_OK);
    CHECK_EQ(pop_is(d, &a, s, N, &err), DAMACY_OK);
    damacy_stats_get(d, &stats);
    CHECK_EQ(l->n_opens_of_metadata, 1);
    CHECK_EQ(stats.array_misses, 1);
    CHECK_EQ(stats.array_hits, N - 1);
    CHECK_EQ(stats.index_misses, 8); /* the chunks that the crops touch */
    for (int i = 0; i < N; i++) {
        s[i].uri = "w.zarr"; /* not there yet */
    }
    CHECK_EQ(damacy_push(d, s, N, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(info.n_failed, N);
    damacy_stats_get(d, &stats);
    CHECK_EQ(stats.array_misses, 2); /* one attempt, one answer for all */
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    a.uri = "w.zarr";
    mem_put_array(m, &a);
    n_before = l->n_opens_of_metadata;
    for (int round = 0; round < 12; round++) { /* slots that still pin the failure go first */
        CHECK_EQ(damacy_push(d, s, N, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK(info.n_failed == N || info.n_failed == 0);
        if (info.n_failed == 0) {
            break;
        }
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    CHECK_EQ(info.n_failed, 0);
    CHECK(l->n_opens_of_metadata > n_before);
    CHECK(batch_is(batch, &a, s, N, 0.0f));
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    damacy_destroy(d);
    log_free(l);
    mem_free(m);
}

TEST(s48_an_object_is_opened_once_and_a_failed_open_is_tried_again)
{
    enum { N = 64 };
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = scene_config(m, 4, DAMACY_ON_ERROR_FILL);
    damacy_sample s[N];
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    damacy* d = NULL;

    for (int i = 0; i < 3; i++) {
        a.shard[i] = 48; /* one object */
    }
    mem_put_array(m, &a);
    mem_find(m, "v.zarr/c/0/0/0")->fault = DAMACY_IO;
    c.io_threads = 8;
    for (int i = 0; i < N; i++) {
        s[i] = mem_sample(&a, i % 24, i % 23, i % 22, 16);
    }
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, 4, NULL, &err), DAMACY_OK);
    CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
    CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
    CHECK_EQ(info.n_failed, 4);
    CHECK_EQ(damacy_batch_failed(batch, 3, &err), DAMACY_OK);
    CHECK_EQ(err.status, DAMACY_IO);
    CHECK_STR(err.chunk, "c/0/0/0");
    CHECK_EQ(damacy_release(batch), DAMACY_OK);
    mem_find(m, "v.zarr/c/0/0/0")->fault = DAMACY_OK;
    info.n_failed = 4;
    for (int i = 0; i < 12 && info.n_failed != 0; i++) {
        CHECK_EQ(damacy_push(d, s, 4, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    CHECK_EQ(info.n_failed, 0);
    CHECK_EQ(damacy_push(d, s, N, NULL, &err), DAMACY_OK);
    for (int i = 0; i < N; i += 4) {
        CHECK_EQ(pop_is(d, &a, s + i, 4, &err), DAMACY_OK);
    }
    CHECK_EQ(mem_find(m, "v.zarr/c/0/0/0")->n_opens, 1); /* by eight threads, for 16 batches */
    damacy_destroy(d);
    CHECK_EQ(m->n_open, 0);
    mem_free(m);
}

/* More bytes than the buffers hold go through them in parts; batches still come in order. */
TEST(s49_a_batch_larger_than_the_buffers_is_made_in_parts)
{
    enum { SIDE = 96, PER_BATCH = 8, BATCHES = 3 };
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_config c = config_of(m, PER_BATCH);
    damacy_sample s[PER_BATCH * BATCHES];
    damacy_stats stats;
    damacy_error err;
    damacy* d = NULL;

    for (int i = 0; i < 3; i++) {
        a.shape[i] = SIDE;
        a.chunk[i] = 12;
        a.shard[i] = 48;
    }
    a.has_crc = 1;
    mem_put_array(m, &a);                 /* 1.7 MB, all of it in each batch */
    c.max_host_bytes = UINT64_C(8) << 20; /* 1 MB for what is read, 2 MB for what is decoded */
    c.max_cache_bytes = 1;
    c.batch_slots = 2;
    c.dtype = DAMACY_U8; /* slots of 0.9 MB each */
    for (int i = 0; i < PER_BATCH * BATCHES; i++) {
        s[i] = mem_sample(&a, 48 * (i & 1), 24 * (i & 2), 12 * (i & 4), 48);
    }
    a.data_type = "uint8";
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    CHECK_EQ(damacy_push(d, s, PER_BATCH * BATCHES, NULL, &err), DAMACY_OK);
    for (int i = 0; i < BATCHES; i++) {
        damacy_batch batch;
        damacy_batch_info_t info;
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ(info.id, i);
        CHECK_EQ(info.n_failed, 0);
        for (int k = 0; k < PER_BATCH; k++) {
            const damacy_sample* one = &s[i * PER_BATCH + k];
            const uint8_t* got = (const uint8_t*)info.ptr + (size_t)k * 48 * 48 * 48;
            for (size_t n = 0; n < 48 * 48 * 48; n++) {
                const int64_t at[4] = {one->box[0].begin + (int64_t)(n / 2304),
                                       one->box[1].begin + (int64_t)(n / 48 % 48),
                                       one->box[2].begin + (int64_t)(n % 48), 0};
                const uint64_t v = mem_value(&a, at) & 0xffff;
                CHECK_EQ(got[n], v > 255 ? 255 : v); /* casts saturate */
            }
        }
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    damacy_stats_get(d, &stats);
    CHECK(stats.host_bytes_committed <= c.max_host_bytes);
    CHECK(stats.read.bytes_in / BATCHES > c.max_host_bytes / 8 * 3 / 2);
    damacy_destroy(d);
    mem_free(m);
}

/* Every open and read of the storage waits for base_ns at least. */
TEST(s50_injected_latency_has_its_floor_and_changes_no_voxel)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    damacy_sample s = mem_sample(&a, 3, 4, 5, 20);
    damacy_config c = config_of(m, 1);
    damacy_config resolved;
    damacy_error err;
    static float voxels[20 * 20 * 20];
    struct timespec begin;
    struct timespec end;
    double ns;

    mem_put_array(m, &a);
    c.debug_latency.base_ns = 3000000;
    c.debug_latency.mu = 11; /* 60 us */
    c.debug_latency.sigma = 1;
    c.debug_latency.cap_ns = 20000000;
    for (uint64_t seed = 0; seed < 3; seed++) {
        c.debug_latency.seed = seed;
        (void)clock_gettime(CLOCK_MONOTONIC, &begin);
        CHECK_EQ(read_one(m, &c, &s, voxels, sizeof voxels, &err), DAMACY_OK);
        (void)clock_gettime(CLOCK_MONOTONIC, &end);
        ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
        CHECK(ns >= 4 * 3e6); /* metadata: open, read; a chunk: open, read: one after the other */
        CHECK(mem_equal_f32(&a, &s, voxels, 0.0f));
    }
    c.debug_latency.sigma = (double)NAN;
    CHECK_EQ(damacy_config_resolve(&c, &resolved, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "debug_latency");
    c.debug_latency.sigma = 0;
    c.debug_latency.mu = -(double)INFINITY;
    CHECK_EQ(damacy_config_resolve(&c, &resolved, &err), DAMACY_INVAL);
    mem_free(m);
}

static void messages_open(messages* l, damacy_config* c)
{
    memset(l, 0, sizeof *l);
    pthread_mutex_init(&l->mutex, NULL);
    l->level = c->log_level = DAMACY_LOG_WARN;
    c->logger.user = l;
    c->logger.log = messages_take;
}

/* Pushes the sample so often, and takes every batch. */
static void push_often(damacy* d, const damacy_sample* s, int n)
{
    damacy_batch batch;
    damacy_error err;

    for (int i = 0; i < n; i++) {
        CHECK_EQ(damacy_push(d, s, 1, NULL, &err), DAMACY_OK);
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_OK);
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
}

TEST(an_error_that_comes_again_is_told_at_every_doubling)
{
    mem_store* m = mem_new();
    mem_array a = mem_plain("v.zarr");
    const damacy_sample bad = mem_sample(&a, 0, 0, 0, 16), worse = mem_sample(&a, 16, 0, 0, 16);
    damacy_config c = scene_config(m, 1, DAMACY_ON_ERROR_FILL);
    damacy_error err;
    damacy* d = NULL;
    messages l;

    mem_put_array(m, &a);
    mem_find(m, "v.zarr/c/0/0/0")->read_fault = 1;
    mem_find(m, "v.zarr/c/1/0/0")->read_fault = 1;
    messages_open(&l, &c);
    CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
    push_often(d, &bad, 63);
    CHECK_EQ(l.n_warnings, 6);
    CHECK_HAS(l.last, "sample 31 and 31 before it: v.zarr c/0/0/0: ");
    push_often(d, &worse, 1); /* another one is told at once */
    CHECK_EQ(l.n_warnings, 7);
    CHECK_HAS(l.last, "sample 63: v.zarr c/1/0/0: ");
    push_often(d, &bad, 1);
    CHECK_EQ(l.n_warnings, 8);
    CHECK_HAS(l.last, "sample 64 and 63 before it: v.zarr c/0/0/0: ");
    push_often(d, &bad, 1100); /* told: 128, 256, 512; past the thousandth only what doubles both */
    CHECK_EQ(l.n_warnings, 11);
    damacy_destroy(d);
    mem_free(m);
}

TEST(an_array_of_which_nothing_is_stored_is_told_once)
{
    for (int n_stored = 0; n_stored < 2; n_stored++) {
        mem_store* m = mem_new();
        mem_array a = mem_plain("v.zarr");
        damacy_sample s = mem_sample(&a, 0, 0, 0, 40);
        damacy_config c = scene_config(m, 1, DAMACY_ON_ERROR_STOP);
        damacy_error err;
        damacy* d = NULL;
        messages l;

        mem_put_array(m, &a);
        for (int i = 0; i < m->n; i++) { /* keys of another form than the metadata says */
            if (strstr(m->objects[i].key, "/c/") &&
                !(n_stored && strcmp(m->objects[i].key, "v.zarr/c/2/2/2") == 0)) {
                m->objects[i].key[strlen("v.zarr/c")] = '.';
            }
        }
        messages_open(&l, &c);
        CHECK_EQ(damacy_create(&c, &d, &err), DAMACY_OK);
        push_often(d, &s, 20);
        CHECK_EQ(l.n_warnings, n_stored ? 0 : 1);
        if (!n_stored) {
            CHECK_HAS(l.last, "v.zarr: nothing but fill values so far: 27 times");
        }
        damacy_destroy(d);
        mem_free(m);
    }
}

TEST_MAIN
