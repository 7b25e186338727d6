/* The GPU of train.c: libcuda and libnvrtc opened at run time, so that the program builds and
 * starts without them, and the kernel's text compiled for the device that is there. */
#pragma once
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRAIN_CUDA(X)                                                                         \
    X(cuInit, (unsigned flags))                                                               \
    X(cuGetErrorString, (int code, const char** text))                                        \
    X(cuDeviceGetAttribute, (int* value, int attribute, int device))                          \
    X(cuDevicePrimaryCtxRetain, (void** context, int device))                                 \
    X(cuDevicePrimaryCtxRelease_v2, (int device))                                             \
    X(cuCtxPushCurrent_v2, (void* context))                                                   \
    X(cuCtxPopCurrent_v2, (void** context))                                                   \
    X(cuStreamCreateWithPriority, (void** stream, unsigned flags, int priority))              \
    X(cuStreamDestroy_v2, (void* stream))                                                     \
    X(cuStreamSynchronize, (void* stream))                                                    \
    X(cuStreamWaitEvent, (void* stream, void* event, unsigned flags))                         \
    X(cuMemAlloc_v2, (uint64_t * address, size_t size))                                       \
    X(cuMemFree_v2, (uint64_t address))                                                       \
    X(cuMemsetD8Async, (uint64_t dst, unsigned char value, size_t n, void* stream))           \
    X(cuMemcpyHtoDAsync_v2, (uint64_t dst, const void* src, size_t size, void* stream))       \
    X(cuMemcpyDtoHAsync_v2, (void* dst, uint64_t src, size_t size, void* stream))             \
    X(cuModuleLoadData, (void** module, const void* image))                                   \
    X(cuModuleUnload, (void* module))                                                         \
    X(cuModuleGetFunction, (void** function, void* module, const char* name))                 \
    X(cuLaunchKernel, (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, \
                       void* stream, void** parameters, void** extra))
#define TRAIN_NVRTC(X)                                                                        \
    X(nvrtcCreateProgram, (void** program, const char* text, const char* name, int n_headers, \
                           const char* const* headers, const char* const* names))             \
    X(nvrtcCompileProgram, (void* program, int n_options, const char* const* options))        \
    X(nvrtcGetProgramLogSize, (void* program, size_t* size))                                  \
    X(nvrtcGetProgramLog, (void* program, char* text))                                        \
    X(nvrtcGetCUBINSize, (void* program, size_t* size))                                       \
    X(nvrtcGetCUBIN, (void* program, char* image))                                            \
    X(nvrtcDestroyProgram, (void** program))

typedef struct gpu {
#define TRAIN_FIELD(name, parameters) int(*name) parameters;
    TRAIN_CUDA(TRAIN_FIELD)
    TRAIN_NVRTC(TRAIN_FIELD)
#undef TRAIN_FIELD
    int ordinal;
    bool is_retained;
    void* context;
    void* stream; /* ours: batches are waited for on it, and released behind it */
    void* module;
    void* function;
} gpu;

/* A call that has to work; says which did not. */
static bool cuda(const gpu* g, int code, const char* what)
{
    const char* text = "?";

    if (code != 0) {
        (void)g->cuGetErrorString(code, &text);
        fprintf(stderr, "train: %s: error %d, %s\n", what, code, text);
    }
    return code == 0;
}

static bool gpu_find(gpu* g)
{
    static const char* const compilers[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                            "/usr/local/cuda/lib64/libnvrtc.so"};
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* compiler = NULL;
    const char* missing = NULL;

    for (int i = 0; i < 4 && !compiler; i++) {
        compiler = dlopen(compilers[i], RTLD_NOW);
    }
    if (!driver || !compiler) {
        fprintf(stderr, "train: %s\n", dlerror());
        return false;
    }
#define TRAIN_FIND(name, parameters)                                                              \
    *(void**)(void*)&g->name = dlsym(strncmp(#name, "nvrtc", 5) == 0 ? compiler : driver, #name); \
    missing = g->name ? missing : #name;
    TRAIN_CUDA(TRAIN_FIND)
    TRAIN_NVRTC(TRAIN_FIND)
#undef TRAIN_FIND
    if (missing) {
        fprintf(stderr, "train: this CUDA has no %s\n", missing);
    }
    return !missing;
}

/* A CUDA text to machine code of this GPU. -fmad=false: rounding as in C. */
static bool gpu_compile(gpu* g, const char* text, char** image)
{
    char arch[40];
    const char* options[] = {arch, "-default-device", "-fmad=false", "-Dreal=float"};
    void* program = NULL;
    size_t size = 0;
    int major = 0;
    int minor = 0;
    bool is_fine;

    if (!cuda(g, g->cuDeviceGetAttribute(&major, 75, g->ordinal), "compute capability") ||
        !cuda(g, g->cuDeviceGetAttribute(&minor, 76, g->ordinal), "compute capability")) {
        return false;
    }
    (void)snprintf(arch, sizeof arch, "-arch=sm_%d%d", major, minor);
    is_fine = g->nvrtcCreateProgram(&program, text, "train.cu", 0, NULL, NULL) == 0 &&
              g->nvrtcCompileProgram(program, 4, options) == 0 &&
              g->nvrtcGetCUBINSize(program, &size) == 0 && (*image = (char*)malloc(size)) != NULL &&
              g->nvrtcGetCUBIN(program, *image) == 0;
    if (!is_fine && program && g->nvrtcGetProgramLogSize(program, &size) == 0) {
        char* log = (char*)calloc(1, size + 1);
        if (log && g->nvrtcGetProgramLog(program, log) == 0) {
            fprintf(stderr, "train: the kernel does not compile:\n%s\n", log);
        }
        free(log);
    }
    (void)g->nvrtcDestroyProgram(&program);
    return is_fine;
}

/* Its primary context, made current, with a stream and the kernel. */
static bool gpu_open(gpu* g, int ordinal, const char* text, const char* name)
{
    char* image = NULL;
    bool is_fine;

    g->ordinal = ordinal;
    if (!gpu_find(g) || !cuda(g, g->cuInit(0), "cuInit") ||
        !cuda(g, g->cuDevicePrimaryCtxRetain(&g->context, ordinal), "primary context")) {
        return false;
    }
    g->is_retained = true;
    is_fine = cuda(g, g->cuCtxPushCurrent_v2(g->context), "cuCtxPushCurrent") &&
              cuda(g, g->cuStreamCreateWithPriority(&g->stream, 1, 0), "stream") &&
              gpu_compile(g, text, &image) &&
              cuda(g, g->cuModuleLoadData(&g->module, image), "cuModuleLoadData") &&
              cuda(g, g->cuModuleGetFunction(&g->function, g->module, name), name);
    free(image);
    return is_fine;
}

static void gpu_close(gpu* g)
{
    if (!g->is_retained) {
        return;
    }
    (void)(g->module && g->cuModuleUnload(g->module));
    (void)(g->stream && g->cuStreamDestroy_v2(g->stream));
    (void)g->cuCtxPopCurrent_v2(&g->context);
    (void)g->cuDevicePrimaryCtxRelease_v2(g->ordinal);
}
