/* Many copies of pinned memory to the device, handed to the driver in one call where it can do
 * that: they then run side by side instead of each waiting for the one before, which counts for
 * copies of less than a few MiB. */
#pragma once
#include "gpu/device.h"

/* The driver's CUmemcpyAttributes. */
typedef struct damacy__copy_attributes {
    int source_order; /* DAMACY__COPY_IN_STREAM_ORDER: the source is read when the stream gets there
                       */
    int source_place[2];
    int destination_place[2];
    unsigned flags;
} damacy__copy_attributes;

enum { DAMACY__COPY_IN_STREAM_ORDER = 1, DAMACY__COPIES = 1024 /* in one call */ };

/* One thread's. Zeroed: none. */
typedef struct damacy__copies {
    uint64_t* dst; /* COPIES of each */
    uint64_t* src;
    size_t* size;
    uint32_t n;
    bool is_refused; /* by the driver, once: it is not asked again */
} damacy__copies;

static damacy_status damacy__copies_init(damacy__copies* copies, damacy__alloc* alloc,
                                         damacy_error* err);
static void damacy__copies_deinit(damacy__copies* copies, damacy__alloc* alloc);
static damacy_status damacy__copies_add(damacy__copies* copies, damacy__device* device,
                                        uint64_t dst_dev, const void* src, uint64_t size,
                                        damacy__stream stream, damacy_error* err);
static damacy_status damacy__copies_flush(damacy__copies* copies, damacy__device* device,
                                          damacy__stream stream, damacy_error* err);

static damacy_status damacy__copies_init(damacy__copies* copies, damacy__alloc* alloc,
                                         damacy_error* err)
{
    memset(copies, 0, sizeof *copies);
    copies->dst = damacy__new(alloc, DAMACY__COPIES, uint64_t);
    copies->src = damacy__new(alloc, DAMACY__COPIES, uint64_t);
    copies->size = damacy__new(alloc, DAMACY__COPIES, size_t);
    if (!copies->dst || !copies->src || !copies->size) {
        damacy__copies_deinit(copies, alloc);
        return damacy__fail(err, DAMACY_OOM, "records of %d copies", DAMACY__COPIES);
    }
    return DAMACY_OK;
}

static void damacy__copies_deinit(damacy__copies* copies, damacy__alloc* alloc)
{
    damacy__free(alloc, copies->dst, DAMACY__COPIES);
    damacy__free(alloc, copies->src, DAMACY__COPIES);
    damacy__free(alloc, copies->size, DAMACY__COPIES);
    memset(copies, 0, sizeof *copies);
}

/* Queues what was added. The bytes stay untouched until the stream has passed. */
static damacy_status damacy__copies_flush(damacy__copies* copies, damacy__device* device,
                                          damacy__stream stream, damacy_error* err)
{
    const damacy__driver* driver = device->driver;
    const uint32_t n = copies->n;
    damacy__copy_attributes attributes;
    uint64_t total = 0;
    size_t first = 0;
    size_t failed = 0;
    int code;

    copies->n = 0;
    DAMACY__TRY(damacy__device_alive(device, err));
    if (n > 1 && driver->copy_batch && !copies->is_refused) {
        for (uint32_t i = 0; i < n; i++) {
            total += copies->size[i];
        }
        memset(&attributes, 0, sizeof attributes);
        attributes.source_order = DAMACY__COPY_IN_STREAM_ORDER;
        code = driver->copy_batch(copies->dst, copies->src, copies->size, n, &attributes, &first, 1,
                                  &failed, stream);
        if (code == DAMACY__CUDA_OK || damacy__cuda_is_sticky(code)) {
            return damacy__device_check(
                device, code, err, "%u copies of %" PRIu64 " bytes in all to the GPU", n, total);
        }
        copies->is_refused = true; /* one by one it may work; sending twice does no harm */
    }
    for (uint32_t i = 0; i < n; i++) {
        DAMACY__TRY(damacy__copy_to_device(device, copies->dst[i],
                                           (const void*)(uintptr_t)copies->src[i], copies->size[i],
                                           stream, err));
    }
    return DAMACY_OK;
}

/* Adds one copy; all together follow no order. */
static damacy_status damacy__copies_add(damacy__copies* copies, damacy__device* device,
                                        uint64_t dst_dev, const void* src, uint64_t size,
                                        damacy__stream stream, damacy_error* err)
{
    if (copies->n == DAMACY__COPIES) {
        DAMACY__TRY(damacy__copies_flush(copies, device, stream, err));
    }
    copies->dst[copies->n] = dst_dev;
    copies->src[copies->n] = (uint64_t)(uintptr_t)src;
    copies->size[copies->n] = (size_t)size;
    copies->n++;
    return DAMACY_OK;
}
