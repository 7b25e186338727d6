/* A program of the CUDA Runtime API that takes batches from a pipeline: its own stream waits for a
 * batch, works on it, and gives it back without a stop of the host.
 *
 *     cc -O2 -I/usr/local/cuda/include -o runtime runtime.c -L/usr/local/cuda/lib64 -lcudart
 *     ./runtime volume.zarr
 *     8 batches of 4 crops, 33554432 voxels: the same as on the CPU
 *
 * The library uses the device's primary context, as the runtime does, so that pointers, streams and
 * events of either are good in both. Exits with 77, and says why, where there is no GPU. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BATCHES = 8, N_CROPS = 4 };

static void must(cudaError_t code, const char* what)
{
    if (code != cudaSuccess) {
        fprintf(stderr, "runtime: %s: %s\n", what, cudaGetErrorString(code));
        exit(1);
    }
}

static void must_work(damacy_status status, const damacy_error* err)
{
    if (status != DAMACY_OK) {
        fprintf(stderr, "runtime: %s: %s\n", damacy_status_str(status), err->message);
        exit(1);
    }
}

/* A crop of half the volume's extent, anywhere in it. */
static void choose(const damacy_array_info_t* volume, damacy_sample* crop)
{
    crop->uri = volume->uri;
    crop->rank = volume->rank;
    for (uint32_t axis = 0; axis < volume->rank; axis++) {
        const int64_t extent = (volume->shape[axis] + 1) / 2;
        crop->box[axis].begin = rand() % (volume->shape[axis] - extent + 1);
        crop->box[axis].end = crop->box[axis].begin + extent;
    }
}

/* What a training step does: here the batch is copied to memory of ours, and that to the host. */
static void consume(damacy* d, cudaStream_t stream, float* mine, float* host, size_t size)
{
    damacy_batch batch;
    damacy_batch_info_t info;
    damacy_error err;

    must_work(damacy_pop(d, &batch, &err), &err);
    must_work(damacy_batch_info(batch, &info), &err);
    must(cudaStreamWaitEvent(stream, (cudaEvent_t)info.ready_event, 0), "cudaStreamWaitEvent");
    must(cudaMemcpyAsync(mine, info.ptr, size, cudaMemcpyDeviceToDevice, stream), "cudaMemcpy");
    must_work(damacy_release_stream(batch, stream), &err); /* reused once the copy has run */
    must(cudaMemcpyAsync(host, mine, size, cudaMemcpyDeviceToHost, stream), "cudaMemcpy");
}

static int skip(const char* why)
{
    printf("runtime: skipped, %s\n", why);
    return 77;
}

int main(int argc, char** argv)
{
    static damacy_sample crops[N_BATCHES * N_CROPS];
    damacy_config config = {0};
    damacy_array* array;
    damacy_array_info_t volume;
    damacy_error err;
    damacy* d;
    cudaStream_t stream;
    float *mine, *host, *expected;
    size_t n = 1; /* voxels of a crop */
    size_t n_bad = 0;
    int n_devices = 0;

    const cudaError_t found = cudaGetDeviceCount(&n_devices);
    if (found != cudaSuccess || n_devices == 0) {
        return skip(found == cudaSuccess ? "no CUDA device" : cudaGetErrorString(found));
    }
    must(cudaSetDevice(0), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    config.device = DAMACY_GPU(0);
    config.samples_per_batch = N_CROPS;
    config.lookahead_samples = N_BATCHES * N_CROPS;
    must_work(damacy_array_open(&config, argc > 1 ? argv[1] : "volume.zarr", &array, &err), &err);
    damacy_array_info(array, &volume);
    for (size_t i = 0; i < N_BATCHES * N_CROPS; i++) {
        choose(&volume, &crops[i]);
    }
    for (uint32_t axis = 0; axis < volume.rank; axis++) {
        n *= (size_t)(crops[0].box[axis].end - crops[0].box[axis].begin);
    }
    must(cudaMalloc((void**)(void*)&mine, N_CROPS * n * sizeof(float)), "cudaMalloc");
    must(cudaMallocHost((void**)(void*)&host, N_CROPS * n * sizeof(float)), "cudaMallocHost");
    expected = (float*)malloc(n * sizeof(float));

    must_work(damacy_create(&config, &d, &err), &err);
    must_work(damacy_push(d, crops, N_BATCHES * N_CROPS, NULL, &err), &err);
    must_work(damacy_finish(d), &err);
    config.device = DAMACY_CPU; /* for the comparison */
    for (size_t b = 0; b < N_BATCHES && expected; b++) {
        consume(d, stream, mine, host, N_CROPS * n * sizeof(float));
        must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        for (size_t i = 0; i < N_CROPS; i++) {
            must_work(
                damacy_read(&config, &crops[b * N_CROPS + i], expected, n * sizeof(float), &err),
                &err);
            n_bad += memcmp(host + i * n, expected, n * sizeof(float)) != 0;
        }
    }
    printf("%d batches of %d crops, %zu voxels: %s\n", N_BATCHES, N_CROPS, N_BATCHES * N_CROPS * n,
           n_bad ? "NOT the same as on the CPU" : "the same as on the CPU");
    damacy_destroy(d);
    damacy_array_close(array);
    must(cudaFree(mine), "cudaFree"); /* the context outlives the pipeline */
    must(cudaFreeHost(host), "cudaFreeHost");
    must(cudaStreamDestroy(stream), "cudaStreamDestroy");
    free(expected);
    return n_bad != 0;
}
