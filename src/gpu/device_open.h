/* Which CUDA device and context are used: those of the caller, or the primary context of a GPU.
 *
 * Finding a device is quick; connecting makes its context when nobody has, which takes longer than
 * all else of a start. Between the two is time for what needs the architecture alone. */
#pragma once
#include "gpu/device.h"

/* Which device to use. Zero: the current context, else the primary context of GPU 0. */
typedef struct damacy__device_config {
    int32_t device;     /* DAMACY_AUTO or DAMACY_GPU(n) */
    void* context;      /* the caller's CUcontext, or NULL */
    void* stream;       /* the caller's CUstream, whose context is used, or NULL */
    uint64_t max_bytes; /* of device memory; 0: a quarter of what is free */
} damacy__device_config;

static damacy_status damacy__device_find(damacy__device* device, const damacy__driver* driver,
                                         damacy__alloc* alloc, const damacy__device_config* config,
                                         damacy_error* err);
static damacy_status damacy__device_connect(damacy__device* device, damacy_error* err);

/* Finds the device whose primary context connect takes. */
static damacy_status damacy__device_number(damacy__device* device, int ordinal, damacy_error* err)
{
    int count = 0;

    DAMACY__TRY(damacy__device_check(device, device->driver->device_count(&count), err,
                                     "cuDeviceGetCount"));
    if (ordinal < 0 || ordinal >= count) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "no GPU %d: the process sees %d", ordinal,
                            count);
    }
    device->ordinal = ordinal;
    return damacy__device_check(device, device->driver->device_get(&device->handle, ordinal), err,
                                "cuDeviceGet");
}

/* Finds the device of a context that the caller has made. If it is the primary one, keeps it alive.
 */
static damacy_status damacy__device_adopt(damacy__device* device, damacy__context context,
                                          int32_t wanted, damacy_error* err)
{
    const damacy__driver* driver = device->driver;
    damacy__context primary = NULL;
    unsigned flags = 0;
    int is_active = 0;
    int code;

    DAMACY__TRY(damacy__device_check(device, driver->context_push(context), err,
                                     "the context given cannot be used"));
    code = driver->context_device(&device->handle);
    (void)driver->context_pop(&primary);
    DAMACY__TRY(damacy__device_check(device, code, err, "cuCtxGetDevice"));
    device->context = context;
    device->ordinal = device->handle; /* the driver numbers its devices by ordinal */
    if (wanted > 0 && DAMACY_GPU(device->ordinal) != wanted) {
        return damacy__fail(err, DAMACY_INVAL,
                            "GPU %d is asked for, but the context given is on GPU %d", wanted - 1,
                            device->ordinal);
    }
    if (damacy__device_note(device, driver->primary_state(device->handle, &flags, &is_active),
                            "cuDevicePrimaryCtxGetState") &&
        is_active && driver->primary_retain(&primary, device->handle) == DAMACY__CUDA_OK) {
        device->owns_primary = primary == context;
        if (!device->owns_primary) {
            (void)driver->primary_release(device->handle);
        }
    }
    return DAMACY_OK;
}

static damacy_status damacy__device_choose(damacy__device* device,
                                           const damacy__device_config* config, damacy_error* err)
{
    damacy__context context = config->context;

    if (!context && config->stream) {
        DAMACY__TRY(damacy__device_check(device,
                                         device->driver->stream_context(config->stream, &context),
                                         err, "the stream given cannot be used"));
    }
    if (!context && config->device == DAMACY_AUTO &&
        !damacy__device_note(device, device->driver->context_current(&context),
                             "cuCtxGetCurrent")) {
        context = NULL;
    }
    if (context) {
        return damacy__device_adopt(device, context, config->device, err);
    }
    return damacy__device_number(device, config->device == DAMACY_AUTO ? 0 : config->device - 1,
                                 err);
}

static damacy_status damacy__device_attribute(damacy__device* device, int attribute, uint32_t* out,
                                              damacy_error* err)
{
    int value = 0;

    DAMACY__TRY(damacy__device_check(
        device, device->driver->device_attribute(&value, attribute, device->handle), err,
        "cuDeviceGetAttribute %d", attribute));
    *out = value > 0 ? (uint32_t)value : 0;
    return DAMACY_OK;
}

/* What launches and compilations are chosen by. Nothing is assumed: a device that seems to have no
 * multiprocessors would be given empty grids. */
static damacy_status damacy__device_measure(damacy__device* device, damacy_error* err)
{
    static const int attributes[] = {DAMACY__ATTRIBUTE_MAJOR,
                                     DAMACY__ATTRIBUTE_MINOR,
                                     DAMACY__ATTRIBUTE_MULTIPROCESSORS,
                                     DAMACY__ATTRIBUTE_SHARED_PER_BLOCK_OPTIN,
                                     DAMACY__ATTRIBUTE_SHARED_PER_MULTIPROCESSOR,
                                     DAMACY__ATTRIBUTE_L2_BYTES,
                                     DAMACY__ATTRIBUTE_HOST_REGISTER,
                                     DAMACY__ATTRIBUTE_READ_ONLY_REGISTER,
                                     DAMACY__ATTRIBUTE_HOST_POINTERS,
                                     DAMACY__ATTRIBUTE_HOST_PAGE_TABLES};
    uint32_t values[DAMACY__COUNT(attributes)];

    for (uint32_t i = 0; i < DAMACY__COUNT(attributes); i++) {
        DAMACY__TRY(damacy__device_attribute(device, attributes[i], &values[i], err));
    }
    device->architecture = values[0] * 10 + values[1];
    device->n_multiprocessors = values[2];
    device->shared_per_block = values[3];
    device->shared_per_multiprocessor = values[4];
    device->l2_size = values[5];
    /* By the process's page tables a page that is gone would be an error of the device's. */
    device->can_register_files = values[6] != 0 && values[7] != 0 && values[9] == 0;
    device->can_read_host = values[8] != 0;
    if (device->n_multiprocessors == 0 || device->shared_per_block == 0) {
        return damacy__fail(err, DAMACY_CUDA,
                            "GPU %d (%s): the driver tells %u multiprocessors and %u bytes of "
                            "shared memory",
                            device->ordinal, device->name, device->n_multiprocessors,
                            device->shared_per_block);
    }
    return DAMACY_OK;
}

/* Asks for what the other modules want to know; wants no context. */
static damacy_status damacy__device_inspect(damacy__device* device, damacy_error* err)
{
    const damacy__driver* driver = device->driver;

    DAMACY__TRY(damacy__device_check(
        device, driver->device_name(device->name, (int)sizeof device->name, device->handle), err,
        "cuDeviceGetName"));
    DAMACY__TRY(damacy__device_check(
        device, driver->device_bus_id(device->bus_id, (int)sizeof device->bus_id, device->handle),
        err, "cuDeviceGetPCIBusId"));
    DAMACY__TRY(damacy__device_measure(device, err));
    if (device->architecture < 75) {
        return damacy__fail(
            err, DAMACY_UNSUPPORTED, "GPU %d (%s) has compute capability %u.%u, 7.5 is needed",
            device->ordinal, device->name, device->architecture / 10, device->architecture % 10);
    }
    return DAMACY_OK;
}

/* Chooses a device and looks at it, without making a context: that takes long, and what needs the
 * architecture alone can be done meanwhile. On failure nothing is held. UNSUPPORTED: the device
 * cannot be used, the CPU can. */
static damacy_status damacy__device_find(damacy__device* device, const damacy__driver* driver,
                                         damacy__alloc* alloc, const damacy__device_config* config,
                                         damacy_error* err)
{
    damacy_status status;

    memset(device, 0, sizeof *device);
    DAMACY__TRY(damacy__mutex_init(&device->mutex, err));
    device->driver = driver;
    device->alloc = alloc;
    device->pid = getpid();
    device->budget = config->max_bytes;
    status = damacy__device_choose(device, config, err);
    if (status == DAMACY_OK) {
        status = damacy__device_inspect(device, err);
    }
    if (status != DAMACY_OK) {
        damacy__device_close(device);
    }
    return status;
}

/* Memory and priorities. The context is current. */
static damacy_status damacy__device_measure_context(damacy__device* device, damacy_error* err)
{
    const damacy__driver* driver = device->driver;
    size_t free_size = 0;
    size_t total_size = 0;

    DAMACY__TRY(damacy__device_check(
        device, driver->context_priorities(&device->priority_least, &device->priority_greatest),
        err, "cuCtxGetStreamPriorityRange"));
    DAMACY__TRY(damacy__device_check(device, driver->memory_info(&free_size, &total_size), err,
                                     "cuMemGetInfo"));
    device->total_size = total_size;
    if (device->budget == 0) {
        device->budget = free_size / 4;
    }
    return DAMACY_OK;
}

/* Takes the primary context of the device that was found, unless the caller's is used; it is made
 * when nobody has made it yet. On failure the device can still only be closed. */
static damacy_status damacy__device_connect(damacy__device* device, damacy_error* err)
{
    damacy_status status;

    if (!device->context) {
        DAMACY__TRY(damacy__device_check(
            device, device->driver->primary_retain(&device->context, device->handle), err,
            "no context on GPU %d", device->ordinal));
        device->owns_primary = true;
    }
    DAMACY__TRY(damacy__device_enter(device, err));
    status = damacy__device_measure_context(device, err);
    damacy__device_leave(device);
    return status;
}
