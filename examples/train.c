/* A small network that learns, on crops streamed from a volume, to take the noise out of it.
 *
 *     ./run demo                                   (writes a volume to learn from)
 *     cc -O2 -o train train.c -lm && ./train build/demo-data/organoid.zarr/nuclei
 *
 * Self-supervised, after Noise2Self: in each crop every 27th voxel is hidden behind the mean of its
 * neighbours, and three convolutions of 3 x 3 x 3 guess what the microscope counted there. Noise
 * cannot be guessed, structure can: what remains is the image without its noise.
 *
 * It is built like a game: init, then frame after frame, then shutdown. A frame pushes crops as
 * long as there is room, pops one batch, learns from it where it lies and hands it back; on a GPU
 * nothing waits in between, streams and events keep the order. The arithmetic is one text: the C
 * compiler compiles it for the CPU, NVRTC for the GPU. Batches are equal on both to the last bit,
 * and so are, step by step, the losses.
 *
 *     train [--steps N] [--device auto|cpu|0|1|...] [--seed N] VOLUME */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "train_gpu.h"
#include "train_net.h"
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 4, N_BUFFERS = 2 * (LAYERS + 1) + 6, MAX_THREADS = 64 };
static const int64_t crop[3] = {16, 32, 32};

typedef struct app {
    const char* volume;
    const char* device;
    int n_steps;
    uint64_t random;       /* state of the network's numbers */
    uint64_t random_crops; /* of its own, as crops are drawn when there is room for them */

    damacy* d;
    damacy_array* array;
    damacy_array_info_t info;
    damacy_sample next; /* to be pushed */
    int n_pushed;
    bool is_finished;

    net t; /* its pointers are the device's */
    gpu g; /* context NULL: the CPU */
    int n_threads;
    int step;
    double first_loss; /* as shares of the loss of the neighbours' mean, which says how hard */
    double last_loss;  /* the batches were */
    double begin;      /* of the first frame, s */
} app;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t next_random(uint64_t* state) /* splitmix64 */
{
    uint64_t v = *state += UINT64_C(0x9e3779b97f4a7c15);

    v = (v ^ v >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    v = (v ^ v >> 27) * UINT64_C(0x94d049bb133111eb);
    return v ^ v >> 31;
}

/* One step of the work on the CPU: each thread takes its share of the items. */
typedef struct share {
    const net* t;
    work what;
    int layer;
    int begin;
    int end;
} share;

static void* share_do(void* of)
{
    const share* const s = (const share*)of;

    for (int i = s->begin; i < s->end; i++) {
        do_item(s->t, s->what, s->layer, i);
    }
    return NULL;
}

static bool run(app* a, work what, int layer)
{
    const int n = n_items(&a->t, what, layer);
    share shares[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool is_started[MAX_THREADS] = {false};

    if (a->g.context) {
        void* parameters[] = {&a->t, &what, &layer};
        const unsigned blocks = (unsigned)((n + 127) / 128);
        return cuda(&a->g,
                    a->g.cuLaunchKernel(a->g.function, blocks, 1, 1, 128, 1, 1, 0, a->g.stream,
                                        parameters, NULL),
                    "launch");
    }
    for (int i = 0; i < a->n_threads; i++) {
        shares[i].t = &a->t;
        shares[i].what = what;
        shares[i].layer = layer;
        shares[i].begin = (int)((int64_t)n * i / a->n_threads);
        shares[i].end = (int)((int64_t)n * (i + 1) / a->n_threads);
        is_started[i] = i > 0 && pthread_create(&threads[i], NULL, share_do, &shares[i]) == 0;
    }
    for (int i = 0; i < a->n_threads; i++) { /* what got no thread is done here */
        if (!is_started[i]) {
            (void)share_do(&shares[i]);
        }
    }
    for (int i = 1; i < a->n_threads; i++) {
        if (is_started[i]) {
            (void)pthread_join(threads[i], NULL);
        }
    }
    return true;
}

/* Forward, backward, and the weights moved: one step on the batch at t.batch. */
static bool learn(app* a)
{
    bool is_fine;

    for (int axis = 0; axis < 3; axis++) {
        a->t.hidden[axis] = (int)(next_random(&a->random) % 3);
    }
    a->t.per_voxel = (real)1;
    for (int axis = 0; axis < 3; axis++) {
        a->t.per_voxel /= (real)((crop[axis] - a->t.hidden[axis] + 2) / 3);
    }
    a->t.per_voxel /= (real)SAMPLES;
    a->t.mean_rate = (real)(1 / (1 - pow(0.9, a->step + 1)));
    a->t.square_rate = (real)(1 / (1 - pow(0.99, a->step + 1)));
    is_fine = run(a, WORK_HIDE, 0);
    for (int layer = 0; layer < LAYERS; layer++) {
        is_fine = is_fine && run(a, WORK_FORWARD, layer);
    }
    is_fine = is_fine && run(a, WORK_LOSS, 0);
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        is_fine =
            is_fine && run(a, WORK_WEIGHTS, layer) && (layer == 0 || run(a, WORK_BACKWARD, layer));
    }
    return is_fine && run(a, WORK_ADAM, 0);
}

/* Memory of the device for n numbers, zero; the pointer is the device's. */
static bool buffer_new(app* a, size_t n, real** out)
{
    uint64_t address = 0;

    if (!a->g.context) {
        *out = (real*)calloc(n, sizeof(real));
        return *out != NULL;
    }
    if (!cuda(&a->g, a->g.cuMemAlloc_v2(&address, n * sizeof(real)), "memory") ||
        !cuda(&a->g, a->g.cuMemsetD8Async(address, 0, n * sizeof(real), a->g.stream), "memset")) {
        return false;
    }
    *out = (real*)(uintptr_t)address;
    return true;
}

static void buffer_free(app* a, real* ptr)
{
    if (!a->g.context) {
        free(ptr);
    } else if (ptr) {
        (void)a->g.cuMemFree_v2((uint64_t)(uintptr_t)ptr);
    }
}

static bool buffer_write(app* a, real* dst, const real* src, size_t n)
{
    if (!a->g.context) {
        memcpy(dst, src, n * sizeof(real));
        return true;
    }
    return cuda(&a->g,
                a->g.cuMemcpyHtoDAsync_v2((uint64_t)(uintptr_t)dst, src, n * sizeof(real),
                                          a->g.stream),
                "copy to the GPU") &&
           cuda(&a->g, a->g.cuStreamSynchronize(a->g.stream), "copy to the GPU");
}

static bool buffer_read(app* a, real* dst, const real* src, size_t n)
{
    if (!a->g.context) {
        memcpy(dst, src, n * sizeof(real));
        return true;
    }
    return cuda(&a->g,
                a->g.cuMemcpyDtoHAsync_v2(dst, (uint64_t)(uintptr_t)src, n * sizeof(real),
                                          a->g.stream),
                "copy from the GPU") &&
           cuda(&a->g, a->g.cuStreamSynchronize(a->g.stream), "copy from the GPU");
}

/* The network's memory and its first weights: uniform, of variance 2 / inputs. */
static bool net_init(app* a)
{
    net* const t = &a->t;
    const size_t padded = (size_t)SAMPLES * (size_t)((crop[0] + 2) * (crop[1] + 2) * (crop[2] + 2));
    real weights[N_WEIGHTS];
    bool is_fine = true;

    t->n = SAMPLES;
    t->depth = (int)crop[0];
    t->height = (int)crop[1];
    t->width = (int)crop[2];
    t->rate = (real)0.005;
    for (int layer = 0; layer <= LAYERS; layer++) {
        is_fine = is_fine && buffer_new(a, padded * (size_t)channels_at(layer), &t->x[layer]) &&
                  buffer_new(a, padded * (size_t)channels_at(layer), &t->gradient[layer]);
    }
    is_fine = is_fine && buffer_new(a, N_WEIGHTS, &t->weights) &&
              buffer_new(a, (size_t)(N_WEIGHTS * t->n * t->depth), &t->parts) &&
              buffer_new(a, N_WEIGHTS, &t->slope) && buffer_new(a, N_WEIGHTS, &t->mean) &&
              buffer_new(a, N_WEIGHTS, &t->square) &&
              buffer_new(a, (size_t)(2 * t->n * t->depth * t->height), &t->losses);
    for (int layer = 0; layer < LAYERS; layer++) {
        const int n_in = channels_at(layer) * TAPS;
        for (int i = 0; i < weights_of(layer); i++) {
            const double uniform =
                ldexp((double)(next_random(&a->random) >> 11), -52) - 1; /* -1..1 */
            const double most = i % (n_in + 1) == n_in ? 0 : sqrt(6.0 / n_in);
            weights[weights_before(layer) + i] = (real)(uniform * most);
        }
    }
    return is_fine && buffer_write(a, t->weights, weights, N_WEIGHTS);
}

static void net_deinit(app* a)
{
    net* const t = &a->t;

    for (int layer = 0; layer <= LAYERS; layer++) {
        buffer_free(a, t->x[layer]);
        buffer_free(a, t->gradient[layer]);
    }
    buffer_free(a, t->weights);
    buffer_free(a, t->parts);
    buffer_free(a, t->slope);
    buffer_free(a, t->mean);
    buffer_free(a, t->square);
    buffer_free(a, t->losses);
}

static bool complain(const damacy_error* err)
{
    fprintf(stderr, "train: %s: %s\n", damacy_status_str(err->status), err->message);
    return false;
}

/* Somewhere in the volume; axes before the last three (time, channel) at 0. */
static void choose_crop(app* a)
{
    const uint32_t lead = a->info.rank - 3;

    a->next.uri = a->volume;
    a->next.rank = a->info.rank;
    for (uint32_t axis = 0; axis < a->info.rank; axis++) {
        const int64_t extent = axis < lead ? 1 : crop[axis - lead];
        const uint64_t room = axis < lead ? 1 : (uint64_t)(a->info.shape[axis] - extent + 1);
        a->next.box[axis].begin = (int64_t)(next_random(&a->random_crops) % room);
        a->next.box[axis].end = a->next.box[axis].begin + extent;
    }
}

/* Mean and spread of the volume, from some crops, so that the network sees numbers around 0. */
static bool measure(app* a, float* scale, float* offset)
{
    enum { CROPS = 16 };
    const size_t n = (size_t)(crop[0] * crop[1] * crop[2]);
    float* const voxels = (float*)malloc(n * sizeof(float));
    damacy_error err;
    double sum = 0;
    double squares = 0;
    bool is_fine = voxels != NULL;

    for (int k = 0; is_fine && k < CROPS; k++) {
        choose_crop(a);
        is_fine = damacy_read(NULL, &a->next, voxels, n * sizeof(float), &err) == DAMACY_OK ||
                  complain(&err);
        for (size_t i = 0; is_fine && i < n; i++) {
            sum += (double)voxels[i];
            squares += (double)voxels[i] * (double)voxels[i];
        }
    }
    free(voxels);
    sum /= (double)(CROPS * n);
    squares = squares / (double)(CROPS * n) - sum * sum;
    *scale = squares > 0 ? (float)(1 / sqrt(squares)) : 1.0f;
    *offset = (float)-sum * *scale;
    return is_fine;
}

/* Opens the volume, starts the pipeline, brings up the network on the pipeline's device. */
static bool init(app* a)
{
    damacy_config config = {0};
    damacy_error err;
    float scale;
    float offset;

    if (damacy_array_open(NULL, a->volume, &a->array, &err) != DAMACY_OK) {
        return complain(&err);
    }
    damacy_array_info(a->array, &a->info);
    for (uint32_t axis = 0; axis < 3; axis++) {
        if (a->info.rank < 3 || a->info.shape[a->info.rank - 3 + axis] < crop[axis]) {
            fprintf(stderr, "train: %s is too small for crops of %d x %d x %d\n", a->volume,
                    (int)crop[0], (int)crop[1], (int)crop[2]);
            return false;
        }
    }
    if (!measure(a, &scale, &offset)) {
        return false;
    }
    config.samples_per_batch = SAMPLES;
    config.n_channels = 1; /* voxel * scale + offset */
    config.scale = &scale;
    config.offset = &offset;
    config.device = strcmp(a->device, "auto") == 0  ? DAMACY_AUTO
                    : strcmp(a->device, "cpu") == 0 ? DAMACY_CPU
                                                    : DAMACY_GPU(atoi(a->device));
    if (damacy_create(&config, &a->d, &err) != DAMACY_OK) {
        return complain(&err);
    }
    if (damacy_device(a->d) != DAMACY_CPU &&
        !gpu_open(&a->g, damacy_device(a->d) - 1, train_text, "train")) {
        return false;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    a->n_threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
    a->n_threads = a->n_threads < 1 ? 1 : a->n_threads > MAX_THREADS ? MAX_THREADS : a->n_threads;
    printf("%d weights, %d steps of %d crops, on %s\n", (int)N_WEIGHTS, a->n_steps, (int)SAMPLES,
           a->g.context ? "the GPU" : "the CPU");
    choose_crop(a);
    a->begin = now();
    return net_init(a);
}

/* Pushes until there is no room or no more is wanted. Never blocks. */
static bool feed(app* a)
{
    damacy_error err;

    while (a->n_pushed < a->n_steps * SAMPLES) {
        const damacy_status status = damacy_push(a->d, &a->next, 1, NULL, &err);
        if (status == DAMACY_AGAIN) {
            return true; /* the same crop next time */
        }
        if (status != DAMACY_OK) {
            return complain(&err);
        }
        a->n_pushed++;
        choose_crop(a);
    }
    if (!a->is_finished) {
        a->is_finished = damacy_finish(a->d) == DAMACY_OK;
    }
    return true;
}

/* Prints the losses since the last report; the only time a frame waits for the GPU. */
static bool report(app* a, int n_since)
{
    const int n = a->t.n * a->t.depth * a->t.height;
    real* const rows = (real*)malloc(2 * (size_t)n * sizeof(real));
    double sum[2] = {0, 0};

    if (!rows || !buffer_read(a, rows, a->t.losses, 2 * (size_t)n)) {
        free(rows);
        return false;
    }
    for (int i = 0; i < 2 * n; i++) {
        sum[i % 2] += (double)rows[i];
    }
    free(rows);
    a->last_loss = sum[0] / sum[1];
    a->first_loss = a->first_loss > 0 ? a->first_loss : a->last_loss;
    printf("step %5d  loss %.6f, %.3f of what the neighbours' mean loses\n", a->step,
           sum[0] / n_since, a->last_loss);
    return isfinite(a->last_loss);
}

/* One turn of the loop: feed, take a batch, learn from it, give it back. A game would call
 * damacy_try_pop, and draw while there is none. */
static bool frame(app* a)
{
    const int every = a->n_steps < 20 ? 1 : a->n_steps / 20;
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;
    bool is_fine;

    if (!feed(a)) {
        return false;
    }
    if (damacy_pop(a->d, &batch, &err) != DAMACY_OK) {
        return complain(&err);
    }
    (void)damacy_batch_info(batch, &info);
    a->t.batch = (const float*)info.ptr; /* where it is; on a GPU perhaps still in the making: */
    is_fine = !a->g.context ||
              cuda(&a->g, a->g.cuStreamWaitEvent(a->g.stream, info.ready_event, 0), "wait");
    a->t.is_first = a->step % every == 0;
    is_fine = is_fine && learn(a);
    (void)damacy_release_stream(batch, a->g.stream); /* its slot is reused behind our kernels */
    a->step++;
    if (is_fine && (a->step % every == 0 || a->step == a->n_steps)) {
        is_fine = report(a, (a->step - 1) % every + 1);
    }
    return is_fine;
}

static void shutdown(app* a)
{
    damacy_stats stats;

    if (a->step == a->n_steps) {
        const double seconds = now() - a->begin;
        damacy_stats_get(a->d, &stats);
        printf("from %.3f to %.3f of what the neighbours' mean loses; %.1f s, %.0f crops/s, "
               "%.0f%% of the time waited for data\n",
               a->first_loss, a->last_loss, seconds, a->n_pushed / seconds,
               (double)stats.pop_wait.total_ns * 1e-7 / seconds);
    }
    damacy_destroy(a->d);
    damacy_array_close(a->array);
    net_deinit(a);
    gpu_close(&a->g);
}

static bool read_options(app* a, int argc, char** argv)
{
    a->n_steps = 300;
    a->device = "auto";
    a->random = 1;
    for (int i = 1; i < argc; i++) {
        const bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--steps") == 0 && has_value) {
            a->n_steps = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--seed") == 0 && has_value) {
            a->random = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--device") == 0 && has_value) {
            a->device = argv[++i];
        } else if (argv[i][0] != '-' && !a->volume) {
            a->volume = argv[i];
        } else {
            return false;
        }
    }
    a->random_crops = ~a->random;
    return a->volume && a->n_steps > 0;
}

int main(int argc, char** argv)
{
    static app a;
    bool is_fine;

    if (!read_options(&a, argc, argv)) {
        fprintf(stderr, "usage: train [--steps N] [--device auto|cpu|0|1|...] [--seed N] VOLUME\n");
        return 2;
    }
    is_fine = init(&a);
    while (is_fine && a.step < a.n_steps) {
        is_fine = frame(&a);
    }
    shutdown(&a);
    return is_fine ? 0 : 1;
}
