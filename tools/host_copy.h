/* A batch's voxels in host memory, wherever they are; for the demo, the benchmarks and tests.
 *
 * A batch on a GPU is copied through libcuda, found at run time, once its ready event has passed.
 */
#pragma once
#include "damacy.h"
#include <dlfcn.h>
#include <stdbool.h>

typedef struct host_copy {
    void* driver; /* libcuda */
    int (*event_synchronize)(void* event);
    int (*copy)(void* dst, unsigned long long src, size_t size);
    int (*set_current)(void* context);
    void* context; /* the primary context of the batches' GPU */
} host_copy;

/* Makes the GPU's primary context current on this thread, so that pipelines and copies use it. */
static bool host_copy_open(host_copy* c, int ordinal)
{
    int (*init)(unsigned flags);
    int (*retain)(void** context, int device);

    c->driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!c->driver) {
        return false;
    }
    *(void**)(void*)&init = dlsym(c->driver, "cuInit");
    *(void**)(void*)&retain = dlsym(c->driver, "cuDevicePrimaryCtxRetain");
    *(void**)(void*)&c->set_current = dlsym(c->driver, "cuCtxSetCurrent");
    *(void**)(void*)&c->event_synchronize = dlsym(c->driver, "cuEventSynchronize");
    *(void**)(void*)&c->copy = dlsym(c->driver, "cuMemcpyDtoH_v2");
    return init && retain && c->set_current && c->event_synchronize && c->copy && init(0) == 0 &&
           retain(&c->context, ordinal) == 0 && c->set_current(c->context) == 0;
}

/* Waits until the batch is made. */
static bool host_copy_wait(host_copy* c, const damacy_batch_info_t* info)
{
    return info->device == DAMACY_CPU || ((c->driver || host_copy_open(c, info->device - 1)) &&
                                          c->event_synchronize(info->ready_event) == 0);
}

/* The batch's voxels: its own memory on the CPU, else a copy in space, which has info->size bytes.
 * NULL when that fails. */
static const void* host_copy_get(host_copy* c, const damacy_batch_info_t* info, void* space)
{
    if (info->device == DAMACY_CPU) {
        return info->ptr;
    }
    if (!host_copy_wait(c, info) ||
        c->copy(space, (unsigned long long)(uintptr_t)info->ptr, info->size) != 0) {
        return NULL;
    }
    return space;
}
