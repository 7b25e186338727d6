/* Decompresses Zstandard frames that are in GPU memory, without a pipeline, on a stream of this
 * program's; then the same from a CUDA graph. Neither nvcc nor a CUDA header is needed: what it
 * wants of the driver it declares itself.
 *
 *     cc -O2 -o codec codec.c && ./codec
 *     1024 frames of 262144 bytes, ratio 2.50, 683 MB of scratch
 *     on a stream: 96.2 GB/s, every byte as it was
 *     from a graph: 96.9 GB/s, every byte as it was
 *
 * Exits with 77, and says why, where there is no GPU or no libzstd to make frames with. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_FRAMES = 1024, N_DISTINCT = 64, SIZE = 262144, ROUNDS = 10 };

/* X(symbol, parameters): functions of libcuda.so.1; device addresses are uint64_t. */
#define DRIVER(X)                                                                        \
    X(cuInit, (unsigned flags))                                                          \
    X(cuDevicePrimaryCtxRetain, (void** context, int device))                            \
    X(cuCtxSetCurrent, (void* context))                                                  \
    X(cuMemAlloc_v2, (uint64_t * address, size_t size))                                  \
    X(cuMemcpyHtoD_v2, (uint64_t dst, const void* src, size_t size))                     \
    X(cuMemcpyDtoH_v2, (void* dst, uint64_t src, size_t size))                           \
    X(cuMemsetD8_v2, (uint64_t dst, unsigned char value, size_t size))                   \
    X(cuStreamCreate, (void** stream, unsigned flags))                                   \
    X(cuStreamSynchronize, (void* stream))                                               \
    X(cuStreamBeginCapture_v2, (void* stream, int mode))                                 \
    X(cuStreamEndCapture, (void* stream, void** graph))                                  \
    X(cuGraphInstantiateWithFlags, (void** made, void* graph, unsigned long long flags)) \
    X(cuGraphLaunch, (void* graph, void* stream))

typedef struct driver {
#define FIELD(symbol, parameters) int(*symbol) parameters;
    DRIVER(FIELD)
} driver;

typedef struct job {
    driver cuda;
    void* stream;
    void* graph; /* NULL: call the codec */
    damacy_codec* codec;
    damacy_codec_batch batch;
    damacy_codec_limits limits;
    uint64_t scratch, scratch_size, out, statuses;
    unsigned char* raw;  /* N_DISTINCT * SIZE: frame i is raw frame i % N_DISTINCT */
    unsigned char* copy; /* N_FRAMES * SIZE */
} job;

static void must(int code, const char* what)
{
    if (code != 0) {
        fprintf(stderr, "codec: %s: CUDA error %d\n", what, code);
        exit(1);
    }
}

static void must_work(damacy_status status, const damacy_error* err)
{
    if (status != DAMACY_OK) {
        fprintf(stderr, "codec: %s\n", err->message);
        exit(1);
    }
}

static int skip(const char* why)
{
    printf("codec: skipped, %s\n", why);
    return 77;
}

static uint64_t put(job* j, const void* bytes, size_t size)
{
    uint64_t address = 0;

    must(j->cuda.cuMemAlloc_v2(&address, size), "cuMemAlloc");
    if (bytes) {
        must(j->cuda.cuMemcpyHtoD_v2(address, bytes, size), "cuMemcpyHtoD");
    }
    return address;
}

/* Makes the frames and puts everything on the device. False: no libzstd. */
static int prepare(job* j)
{
    static uint64_t srcs[N_FRAMES], sizes[N_FRAMES], dsts[N_FRAMES], capacities[N_FRAMES];
    void* const library = dlopen("libzstd.so.1", RTLD_NOW);
    size_t (*compress)(void*, size_t, const void*, size_t, int) = NULL;
    void* const symbol = library ? dlsym(library, "ZSTD_compress") : NULL;
    unsigned char* const packed = (unsigned char*)malloc(2 * SIZE);
    uint32_t noise = 1;

    if (!symbol || !packed || !j->raw || !j->copy) {
        return 0;
    }
    memcpy(&compress, &symbol, sizeof compress);
    for (size_t i = 0; i < (size_t)N_DISTINCT * SIZE; i += 2) { /* dim 16-bit microscopy */
        noise = noise * 1664525u + 1013904223u;
        j->raw[i] = (unsigned char)(100 + (noise >> 28) + (noise >> 24 & 15));
    }
    j->out = put(j, NULL, (size_t)N_FRAMES * SIZE);
    for (size_t i = 0; i < N_FRAMES; i++) {
        if (i < N_DISTINCT) {
            sizes[i] = compress(packed, 2 * SIZE, j->raw + i * SIZE, SIZE, 3);
            srcs[i] = put(j, packed, sizes[i]);
        }
        srcs[i] = srcs[i % N_DISTINCT]; /* sources may be shared, outputs not */
        sizes[i] = sizes[i % N_DISTINCT];
        dsts[i] = j->out + i * SIZE;
        capacities[i] = SIZE;
    }
    free(packed);
    j->statuses = put(j, NULL, N_FRAMES * sizeof(uint32_t));
    j->batch.n_frames = N_FRAMES;
    j->batch.srcs = (const void* const*)(uintptr_t)put(j, srcs, sizeof srcs);
    j->batch.src_sizes = (const uint64_t*)(uintptr_t)put(j, sizes, sizeof sizes);
    j->batch.dsts = (void* const*)(uintptr_t)put(j, dsts, sizeof dsts);
    j->batch.capacities = (const uint64_t*)(uintptr_t)put(j, capacities, sizeof capacities);
    j->batch.statuses = (uint32_t*)(uintptr_t)j->statuses;
    j->limits.max_frames = N_FRAMES;
    j->limits.max_frame_size = SIZE;
    printf("%d frames of %d bytes, ratio %.2f, ", N_FRAMES, SIZE, (double)SIZE / (double)sizes[0]);
    return 1;
}

/* Queues the batch once. */
static void launch(job* j)
{
    damacy_error err;

    if (j->graph) {
        must(j->cuda.cuGraphLaunch(j->graph, j->stream), "cuGraphLaunch");
    } else {
        must_work(damacy_codec_decompress(j->codec, &j->batch, &j->limits,
                                          (void*)(uintptr_t)j->scratch, j->scratch_size, j->stream,
                                          &err),
                  &err);
    }
}

/* Times some rounds and compares what the last one wrote. */
static int run(job* j, const char* how)
{
    static uint32_t statuses[N_FRAMES];
    struct timespec begin, end;
    double seconds;
    int n_bad = 0;

    must(j->cuda.cuMemsetD8_v2(j->out, 0xa5, (size_t)N_FRAMES * SIZE), "cuMemsetD8");
    launch(j);
    must(j->cuda.cuStreamSynchronize(j->stream), "cuStreamSynchronize");
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < ROUNDS; i++) {
        launch(j);
    }
    must(j->cuda.cuStreamSynchronize(j->stream), "cuStreamSynchronize");
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    must(j->cuda.cuMemcpyDtoH_v2(statuses, j->statuses, sizeof statuses), "cuMemcpyDtoH");
    must(j->cuda.cuMemcpyDtoH_v2(j->copy, j->out, (size_t)N_FRAMES * SIZE), "cuMemcpyDtoH");
    for (size_t i = 0; i < N_FRAMES; i++) {
        if (statuses[i] != DAMACY_FRAME_OK ||
            memcmp(j->copy + i * SIZE, j->raw + i % N_DISTINCT * SIZE, SIZE) != 0) {
            fprintf(stderr, "codec: frame %d: %s\n", (int)i, damacy_frame_status_str(statuses[i]));
            n_bad++;
        }
    }
    printf("%s: %.1f GB/s, %s\n", how, 1e-9 * ROUNDS * N_FRAMES * SIZE / seconds,
           n_bad ? "but not as they were" : "every byte as it was");
    return n_bad != 0;
}

static int load(driver* cuda)
{
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    void* symbol;

#define RESOLVE(name, parameters)                       \
    symbol = library ? dlsym(library, #name) : NULL;    \
    memcpy((void*)&cuda->name, &symbol, sizeof symbol); \
    if (!symbol) {                                      \
        return 0;                                       \
    }
    DRIVER(RESOLVE)
    return cuda->cuInit(0) == 0;
}

int main(void)
{
    static job j;
    damacy_error err;
    void* context = NULL;
    void* graph = NULL;
    int bad;

    if (damacy_codec_create(DAMACY_CODEC_ZSTD, NULL, &j.codec, &err) != DAMACY_OK) {
        return err.status == DAMACY_UNSUPPORTED ? skip(err.message)
                                                : (fprintf(stderr, "codec: %s\n", err.message), 1);
    }
    if (!load(&j.cuda)) {
        return skip("the driver lacks a function");
    }
    must(j.cuda.cuDevicePrimaryCtxRetain(&context, damacy_codec_device(j.codec) - 1), "context");
    must(j.cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(j.cuda.cuStreamCreate(&j.stream, 1), "cuStreamCreate");
    j.raw = (unsigned char*)calloc(N_DISTINCT, SIZE);
    j.copy = (unsigned char*)malloc((size_t)N_FRAMES * SIZE);
    if (!prepare(&j)) {
        return skip("no libzstd to make frames with");
    }
    must_work(damacy_codec_scratch_size(DAMACY_CODEC_ZSTD, &j.limits, &j.scratch_size, &err), &err);
    j.scratch = put(&j, NULL, j.scratch_size);
    printf("%.0f MB of scratch\n", 1e-6 * (double)j.scratch_size);
    bad = run(&j, "on a stream");
    must(j.cuda.cuStreamBeginCapture_v2(j.stream, 0), "cuStreamBeginCapture");
    launch(&j);
    must(j.cuda.cuStreamEndCapture(j.stream, &graph), "cuStreamEndCapture");
    must(j.cuda.cuGraphInstantiateWithFlags(&j.graph, graph, 0), "cuGraphInstantiate");
    bad |= run(&j, "from a graph");
    damacy_codec_destroy(j.codec); /* the rest goes with the process */
    return bad;
}
