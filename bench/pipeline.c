/* Measures the pipeline on a scenario: random crops of the arrays that bench/dataset.c wrote.
 *
 *     pipeline DIR [--arrays=8] [--crop=128,128,128] [--batch=128] [--batches=50] [--warmup=5]
 *              [--seed=1234] [--dtype=float32] [--device=auto|cpu|gpu] [--lookahead=512]
 *              [--io-threads=0] [--decode-threads=0] [--slots=0] [--gpu-mb=0] [--host-mb=0]
 *              [--cache-mb=] [--hold-ms=0] [--reads=0] [--bypass] [--mapping] [--no-mapping]
 *              [--latency=base_ns,mu,sigma,cap_ns,seed]
 *
 * The headline is batches x samples x crop voxels x output bytes / 1e6 / wall seconds, the wall
 * measured after the warm-up. JSON goes to stdout, a table to stderr. Crops come from xorshift64*,
 * so that a peer can read the same ones: the array is next % arrays, then per axis begin = next %
 * (shape - crop + 1). A consumer waits for each batch and gives it back. With --reads=N, on a GPU,
 * it does not wait: a stream of its own reads the batch N times, behind which it is given back. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tools/host_copy.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A consumer's stream on the GPU, and where it copies batches. */
typedef struct reader {
    void* stream; /* NULL: not opened */
    unsigned long long space;
    int (*stream_create)(void** stream, unsigned flags);
    int (*stream_wait)(void* stream, void* event, unsigned flags);
    int (*alloc)(unsigned long long* ptr, size_t size);
    int (*copy)(unsigned long long dst, unsigned long long src, size_t size, void* stream);
} reader;

typedef struct bench {
    const char* folder;
    int n_arrays;
    int64_t crop[3];
    int batch;
    int batches;
    int warmup;
    uint64_t seed;
    long hold_ms;
    long reads;
    damacy_config config;

    char (*uris)[1024];
    int64_t shape[3];
    size_t source_size; /* bytes per voxel in the arrays */
    damacy_sample* samples;
    host_copy copy;
    reader consumer;

    double seconds_init;
    double seconds_first; /* until the first batch */
    double seconds_wall;
    double seconds_push;
    double seconds_pop;
    double sum_first; /* of the first batch's voxels (f32), to compare with a peer */
    int32_t device;
    damacy_stats stats;
} bench;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t next_random(uint64_t* state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static const char* value_of(const char* argument, const char* name)
{
    const size_t len = strlen(name);

    return strncmp(argument, name, len) == 0 && argument[len] == '=' ? argument + len + 1 : NULL;
}

/* What create and the first batch spend their time on. */
static void print_times(void* user, damacy_log_level level, const char* message)
{
    (void)user;
    if (level >= DAMACY_LOG_WARN || strncmp(message, "time: ", 6) == 0 ||
        strncmp(message, "device: ", 8) == 0) {
        (void)fprintf(stderr, "%s\n", message);
    }
}

static bool parse_dtype(const char* text, damacy_dtype* dtype)
{
    for (int i = 0; i <= DAMACY_NATIVE; i++) {
        if (strcmp(damacy_dtype_str((damacy_dtype)i), text) == 0) {
            *dtype = (damacy_dtype)i;
            return true;
        }
    }
    return false;
}

static bool parse_one(bench* b, const char* argument)
{
    damacy_config* const c = &b->config;
    damacy_latency* const l = &c->debug_latency;
    const char* value;

    if ((value = value_of(argument, "--arrays")) != NULL) {
        b->n_arrays = atoi(value);
    } else if ((value = value_of(argument, "--crop")) != NULL) {
        return sscanf(value, "%" SCNd64 ",%" SCNd64 ",%" SCNd64, &b->crop[0], &b->crop[1],
                      &b->crop[2]) == 3;
    } else if ((value = value_of(argument, "--batch")) != NULL) {
        b->batch = atoi(value);
    } else if ((value = value_of(argument, "--batches")) != NULL) {
        b->batches = atoi(value);
    } else if ((value = value_of(argument, "--warmup")) != NULL) {
        b->warmup = atoi(value);
    } else if ((value = value_of(argument, "--seed")) != NULL) {
        b->seed = strtoull(value, NULL, 0);
    } else if ((value = value_of(argument, "--dtype")) != NULL) {
        return parse_dtype(value, &c->dtype);
    } else if ((value = value_of(argument, "--device")) != NULL) {
        c->device = strcmp(value, "cpu") == 0   ? DAMACY_CPU
                    : strcmp(value, "gpu") == 0 ? DAMACY_GPU(0)
                                                : DAMACY_AUTO;
    } else if ((value = value_of(argument, "--lookahead")) != NULL) {
        c->lookahead_samples = (uint32_t)atoi(value);
    } else if ((value = value_of(argument, "--io-threads")) != NULL) {
        c->io_threads = (uint32_t)atoi(value);
    } else if ((value = value_of(argument, "--decode-threads")) != NULL) {
        c->decode_threads = (uint32_t)atoi(value);
    } else if ((value = value_of(argument, "--slots")) != NULL) {
        c->batch_slots = (uint32_t)atoi(value);
    } else if ((value = value_of(argument, "--gpu-mb")) != NULL) {
        c->max_gpu_bytes = strtoull(value, NULL, 0) << 20;
    } else if ((value = value_of(argument, "--host-mb")) != NULL) {
        c->max_host_bytes = strtoull(value, NULL, 0) << 20;
    } else if ((value = value_of(argument, "--cache-mb")) != NULL) {
        c->max_cache_bytes = strtoull(value, NULL, 0) << 20;
        c->max_cache_bytes = c->max_cache_bytes ? c->max_cache_bytes : 1; /* 0: none */
    } else if ((value = value_of(argument, "--hold-ms")) != NULL) {
        b->hold_ms = atol(value);
    } else if ((value = value_of(argument, "--reads")) != NULL) {
        b->reads = atol(value);
    } else if ((value = value_of(argument, "--latency")) != NULL) {
        return sscanf(value, "%" SCNu64 ",%lf,%lf,%" SCNu64 ",%" SCNu64, &l->base_ns, &l->mu,
                      &l->sigma, &l->cap_ns, &l->seed) == 5;
    } else if (strcmp(argument, "--bypass") == 0) {
        c->debug_bypass_decode = 1;
    } else if (strcmp(argument, "--no-mapping") == 0) {
        c->mapping = DAMACY_MAPPING_OFF;
    } else if (strcmp(argument, "--mapping") == 0) {
        c->mapping = DAMACY_MAPPING_ON;
    } else if (argument[0] != '-') {
        b->folder = argument;
    } else {
        return false;
    }
    return true;
}

static bool parse(bench* b, int argc, char** argv)
{
    b->n_arrays = 8;
    b->crop[0] = b->crop[1] = b->crop[2] = 128;
    b->batch = 128;
    b->batches = 50;
    b->warmup = 5;
    b->seed = 1234;
    b->config.lookahead_samples = 512;
    for (int i = 1; i < argc; i++) {
        if (!parse_one(b, argv[i])) {
            (void)fprintf(stderr, "pipeline: %s: see the first comment of bench/pipeline.c\n",
                          argv[i]);
            return false;
        }
    }
    b->config.samples_per_batch = (uint32_t)b->batch;
    return b->folder && b->n_arrays > 0 && b->batch > 0 && b->batches > 0 && b->warmup >= 0;
}

/* Names of the arrays, and the crops of all batches, warm-up first. */
static bool choose(bench* b)
{
    const size_t n = (size_t)(b->warmup + b->batches) * (size_t)b->batch;
    damacy_array* array;
    damacy_array_info_t info;
    damacy_error err;
    uint64_t state = b->seed;

    b->uris = (char(*)[1024])calloc((size_t)b->n_arrays, sizeof *b->uris);
    b->samples = (damacy_sample*)calloc(n, sizeof *b->samples);
    if (!b->uris || !b->samples) {
        return false;
    }
    for (int i = 0; i < b->n_arrays; i++) {
        (void)snprintf(b->uris[i], sizeof b->uris[i], "%s/z%03d/scale0/image", b->folder, i);
    }
    if (damacy_array_open(NULL, b->uris[0], &array, &err) != DAMACY_OK) {
        (void)fprintf(stderr, "pipeline: %s: %s\n", b->uris[0], err.message);
        return false;
    }
    damacy_array_info(array, &info);
    memcpy(b->shape, info.shape, sizeof b->shape);
    b->source_size = damacy_dtype_size(info.dtype);
    damacy_array_close(array);
    for (size_t i = 0; i < n; i++) {
        b->samples[i].uri = b->uris[next_random(&state) % (uint64_t)b->n_arrays];
        b->samples[i].rank = 3;
        for (int axis = 0; axis < 3; axis++) {
            damacy_interval* const interval = &b->samples[i].box[axis];

            if (b->crop[axis] > b->shape[axis]) {
                (void)fprintf(stderr, "pipeline: the crop is larger than the arrays\n");
                return false;
            }
            interval->begin =
                (int64_t)(next_random(&state) % (uint64_t)(b->shape[axis] - b->crop[axis] + 1));
            interval->end = interval->begin + b->crop[axis];
        }
    }
    return true;
}

/* Adds up the voxels of an f32 batch, outside the measured time. */
static double sum_of(bench* b, const damacy_batch_info_t* info)
{
    float* const space = (float*)malloc(info->size);
    const float* const voxels = space ? (const float*)host_copy_get(&b->copy, info, space) : NULL;
    double sum = 0;

    for (uint64_t i = 0; voxels && i < info->size / sizeof(float); i++) {
        sum += (double)voxels[i];
    }
    free(space);
    return sum;
}

/* In the context that host_copy has made current. */
static bool reader_open(reader* r, host_copy* c, const damacy_batch_info_t* info)
{
    if (!c->driver && !host_copy_open(c, info->device - 1)) {
        return false;
    }
    *(void**)(void*)&r->stream_create = dlsym(c->driver, "cuStreamCreate");
    *(void**)(void*)&r->stream_wait = dlsym(c->driver, "cuStreamWaitEvent");
    *(void**)(void*)&r->alloc = dlsym(c->driver, "cuMemAlloc_v2");
    *(void**)(void*)&r->copy = dlsym(c->driver, "cuMemcpyDtoDAsync_v2");
    return r->stream_create && r->stream_wait && r->alloc && r->copy &&
           r->alloc(&r->space, info->size) == 0 && r->stream_create(&r->stream, 1) == 0;
}

/* What a consumer does with a batch. */
static bool consume(bench* b, damacy_batch batch, const damacy_batch_info_t* info)
{
    reader* r = &b->consumer;

    if (b->hold_ms) {
        (void)usleep((useconds_t)b->hold_ms * 1000);
    }
    if (info->device == DAMACY_CPU || b->reads == 0) {
        return damacy_release(batch) == DAMACY_OK;
    }
    if ((!r->stream && !reader_open(r, &b->copy, info)) ||
        r->stream_wait(r->stream, info->ready_event, 0) != 0) {
        return false;
    }
    for (long i = 0; i < b->reads; i++) {
        if (r->copy(r->space, (unsigned long long)(uintptr_t)info->ptr, info->size, r->stream)) {
            return false;
        }
    }
    return damacy_release_stream(batch, r->stream) == DAMACY_OK;
}

static bool stream(bench* b, damacy* d)
{
    const size_t n = (size_t)(b->warmup + b->batches) * (size_t)b->batch;
    double begin = now();
    size_t pushed = 0;
    damacy_error err;

    for (int done = 0; done < b->warmup + b->batches; done++) {
        damacy_batch batch;
        damacy_batch_info_t info;
        damacy_status status = DAMACY_OK;
        double t = now();

        if (done == b->warmup) {
            damacy_stats_reset(d);
            b->seconds_push = b->seconds_pop = 0;
            begin = t;
        }
        if (pushed < n) {
            size_t taken = 0;

            status = damacy_push(d, b->samples + pushed, n - pushed, &taken, &err);
            pushed += taken;
            if (pushed == n) {
                status = damacy_finish(d);
            }
        }
        b->seconds_push += now() - t;
        t = now();
        if (status == DAMACY_OK || status == DAMACY_AGAIN) {
            status = damacy_pop(d, &batch, &err);
        }
        if (status != DAMACY_OK) {
            (void)fprintf(stderr, "pipeline: %s: %s: %s\n", damacy_status_str(status), err.uri,
                          err.message);
            return false;
        }
        (void)damacy_batch_info(batch, &info);
        if (b->reads == 0 && !host_copy_wait(&b->copy, &info)) {
            (void)fprintf(stderr, "pipeline: cannot wait for the GPU\n");
            return false;
        }
        b->seconds_pop += now() - t;
        if (done == 0) {
            b->seconds_first = now() - begin;
            if (info.dtype == DAMACY_F32 && b->warmup > 0) {
                b->sum_first = sum_of(b, &info);
            }
        }
        if (!consume(b, batch, &info)) {
            (void)fprintf(stderr, "pipeline: the batch cannot be read on the GPU\n");
            return false;
        }
    }
    b->seconds_wall = now() - begin;
    damacy_stats_get(d, &b->stats);
    return true;
}

static void print_stage(const char* name, const damacy_metric* m, double wall, bool is_last)
{
    const double seconds = (double)m->total_ns / 1e9;

    (void)fprintf(stderr, "  %-10s %10" PRIu64 " %11.1f %11.1f %11.2f %11.2f %11.2f\n", name,
                  m->count, (double)m->bytes_in / 1e6, (double)m->bytes_out / 1e6, seconds,
                  seconds / wall, (double)m->bytes_out / 1e9 / wall);
    printf("    {\"name\":\"%s\",\"count\":%" PRIu64
           ",\"ms_total\":%.3f,\"ms_best\":%.3f,\"input_bytes\":%" PRIu64
           ",\"output_bytes\":%" PRIu64 "}%s\n",
           name, m->count, (double)m->total_ns / 1e6, (double)m->best_ns / 1e6, m->bytes_in,
           m->bytes_out, is_last ? "" : ",");
}

static void print(const bench* b)
{
    const damacy_stats* const s = &b->stats;
    const double voxels =
        (double)b->batches * b->batch * (double)(b->crop[0] * b->crop[1] * b->crop[2]);
    const size_t out_size =
        b->config.dtype == DAMACY_NATIVE ? b->source_size : damacy_dtype_size(b->config.dtype);
    const double rate = voxels * (double)out_size / 1e6 / b->seconds_wall;

    printf("{\n  \"device\":\"%s\",\n  "
           "\"timings_ms\":{\"init\":%.1f,\"time_to_first_batch\":%.1f,\"wall\":%.1f,"
           "\"consumer_push\":%.1f,\"consumer_pop_wait\":%.1f},\n  \"stages\":[\n",
           b->device == DAMACY_CPU ? "cpu" : "gpu", b->seconds_init * 1e3, b->seconds_first * 1e3,
           b->seconds_wall * 1e3, b->seconds_push * 1e3, b->seconds_pop * 1e3);
    (void)fprintf(
        stderr,
        "  stage           count       MB in      MB out    thread s     threads   GB/s wall\n");
    print_stage("metadata", &s->metadata, b->seconds_wall, false);
    print_stage("plan", &s->plan, b->seconds_wall, false);
    print_stage("read", &s->read, b->seconds_wall, false);
    print_stage("transfer", &s->transfer, b->seconds_wall, false);
    print_stage("decode", &s->decode, b->seconds_wall, false);
    print_stage("assemble", &s->assemble, b->seconds_wall, true);
    printf(
        "  ],\n  \"bytes_mapped\":%" PRIu64 ",\"chunks_touched\":%" PRIu64
        ",\"chunks_decoded\":%" PRIu64 ",\"chunks_kept\":%" PRIu64 ",\"cache_bytes\":%" PRIu64
        ",\"read_amplification\":%.4f,"
        "\"decode_amplification\":%.4f,\n  \"host_bytes\":%" PRIu64 ",\"gpu_bytes\":%" PRIu64
        ",\n  \"sum_first_batch\":%.1f,\n  \"source_mb_s\":%.1f,\n  \"throughput_mb_s\":%.1f\n}\n",
        s->bytes_mapped, s->chunks_touched, s->chunks_decoded, s->chunks_kept, s->cache_bytes,
        s->read_amplification, s->decode_amplification, s->host_bytes_committed,
        s->gpu_bytes_committed, b->sum_first,
        voxels * (double)b->source_size / 1e6 / b->seconds_wall, rate);
    (void)fprintf(
        stderr,
        "  create %.0f ms, first batch %.0f ms, wall %.2f s; read amplification %.2f, "
        "decode amplification %.2f; %.0f%% of the bytes from mapped files\n"
        "  %" PRIu64 " MiB for decoded chunks, which gave %.0f%% of the chunks of batches\n"
        "  %.1f MB/s of %s batches (%.1f MB/s of source voxels)\n",
        b->seconds_init * 1e3, b->seconds_first * 1e3, b->seconds_wall, s->read_amplification,
        s->decode_amplification, 100 * (double)s->bytes_mapped / ((double)s->read.bytes_in + 1),
        s->cache_bytes >> 20,
        100 * (double)s->chunks_kept / ((double)s->chunks_kept + (double)s->chunks_decoded + 1e-9),
        rate, damacy_dtype_str(b->config.dtype),
        voxels * (double)b->source_size / 1e6 / b->seconds_wall);
}

int main(int argc, char** argv)
{
    static bench b;
    damacy* d = NULL;
    damacy_error err;
    double begin;
    bool is_fine;

    if (!parse(&b, argc, argv) || !choose(&b)) {
        return 2;
    }
    b.config.logger.log = print_times;
    begin = now();
    if (damacy_create(&b.config, &d, &err) != DAMACY_OK) {
        (void)fprintf(stderr, "pipeline: %s\n", err.message);
        return 1;
    }
    b.seconds_init = now() - begin;
    b.device = damacy_device(d);
    is_fine = stream(&b, d);
    damacy_destroy(d);
    if (is_fine) {
        print(&b);
    }
    free(b.samples);
    free(b.uris);
    return is_fine ? 0 : 1;
}
