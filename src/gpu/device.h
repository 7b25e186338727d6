/* One CUDA device: which context is used, how errors are told, streams, events and copies.
 *
 * Functions that talk to the driver want the device's context current: a thread calls
 * damacy__device_enter before and damacy__device_leave after, which push and pop, so that the
 * caller's own current context is never changed. After a sticky error the device is lost: every
 * function fails at once with DAMACY_DEVICE_LOST and the driver is called for frees only; after a
 * stall it is not called at all. */
#pragma once
#include "base/sync.h"
#include "gpu/driver.h"

enum { DAMACY__DEVICE_ALIVE = 0, DAMACY__DEVICE_LOST = 1, DAMACY__DEVICE_STALLED = 2 };

/* Which device to use. Zero: the current context, else the primary context of GPU 0. */
typedef struct damacy__device_config {
    int32_t device;     /* DAMACY_AUTO or DAMACY_GPU(n) */
    void* context;      /* the caller's CUcontext, or NULL */
    void* stream;       /* the caller's CUstream, whose context is used, or NULL */
    uint64_t max_bytes; /* of device memory; 0: a quarter of what is free */
} damacy__device_config;

typedef struct damacy__device {
    /* set by open, then constant */
    const damacy__driver* driver;
    damacy__alloc* alloc; /* host memory, and the budget that pinned memory counts against */
    damacy__context context;
    int handle;  /* CUdevice */
    int ordinal; /* among the devices that the process sees */
    bool owns_primary;
    bool can_register_files;
    pid_t pid;
    char name[64];
    char bus_id[16];       /* "0000:1b:00.0" */
    uint32_t architecture; /* 90 is compute capability 9.0 */
    uint32_t n_multiprocessors;
    uint32_t shared_per_block; /* bytes, the most that a block may ask for */
    uint32_t shared_per_multiprocessor;
    uint64_t l2_size;
    uint64_t total_size; /* bytes of device memory */
    int priority_least;
    int priority_greatest;
    uint64_t budget; /* bytes of device memory that may be taken */

    uint64_t committed; /* atomic: bytes of device memory taken */
    uint64_t pinned;    /* atomic: bytes of pinned and registered host memory */
    uint32_t state;     /* atomic: DAMACY__DEVICE_* */
    damacy__mutex mutex;
    char lost_message[320]; /* guarded by mutex: the first sticky error */
} damacy__device;

static damacy_status damacy__device_open(damacy__device* device, const damacy__driver* driver,
                                         damacy__alloc* alloc, const damacy__device_config* config,
                                         damacy_error* err);
static void damacy__device_close(damacy__device* device);
static damacy_status damacy__device_enter(damacy__device* device, damacy_error* err);
static void damacy__device_leave(damacy__device* device);
static bool damacy__device_enter_to_free(damacy__device* device);
static damacy_status damacy__device_check(damacy__device* device, int code, damacy_error* err,
                                          const char* format, ...)
    __attribute__((format(printf, 4, 5)));
static damacy_status damacy__device_alive(damacy__device* device, damacy_error* err);
static damacy_status damacy__stream_open(damacy__device* device, bool is_urgent,
                                         damacy__stream* stream, damacy_error* err);
static void damacy__stream_close(damacy__device* device, damacy__stream stream);
static damacy_status damacy__event_open(damacy__device* device, bool has_time, damacy__event* event,
                                        damacy_error* err);
static void damacy__event_close(damacy__device* device, damacy__event event);
static damacy_status damacy__event_record(damacy__device* device, damacy__event event,
                                          damacy__stream stream, damacy_error* err);
static damacy_status damacy__event_done(damacy__device* device, damacy__event event, bool* done,
                                        damacy_error* err);
static damacy_status damacy__event_await(damacy__device* device, damacy__event event,
                                         uint64_t timeout_ns, damacy_error* err);
static damacy_status damacy__stream_await(damacy__device* device, damacy__stream stream,
                                          damacy__event event, damacy_error* err);
static damacy_status damacy__copy_to_device(damacy__device* device, uint64_t dst_dev,
                                            const void* src, uint64_t size, damacy__stream stream,
                                            damacy_error* err);
static damacy_status damacy__copy_to_host(damacy__device* device, void* dst, uint64_t src_dev,
                                          uint64_t size, damacy__stream stream, damacy_error* err);
static damacy_status damacy__copy_on_device(damacy__device* device, uint64_t dst_dev,
                                            uint64_t src_dev, uint64_t size, damacy__stream stream,
                                            damacy_error* err);
static damacy_status damacy__fill_device(damacy__device* device, uint64_t dst_dev, uint8_t value,
                                         uint64_t size, damacy__stream stream, damacy_error* err);

/* ---- errors ---- */

/* The driver says so once and for ever: nothing works on the context, or at all, afterwards. */
static bool damacy__cuda_is_sticky(int code)
{
    return code == DAMACY__CUDA_DEINITIALIZED || code == DAMACY__CUDA_DEVICE_UNAVAILABLE ||
           code == DAMACY__CUDA_ECC_UNCORRECTABLE || code == DAMACY__CUDA_NVLINK_UNCORRECTABLE ||
           code == DAMACY__CUDA_CONTAINED || code == DAMACY__CUDA_ILLEGAL_ADDRESS ||
           code == DAMACY__CUDA_LAUNCH_TIMEOUT || code == DAMACY__CUDA_CONTEXT_IS_DESTROYED ||
           code == DAMACY__CUDA_ASSERT ||
           (code >= DAMACY__CUDA_HARDWARE_STACK && code <= DAMACY__CUDA_LAUNCH_FAILED) ||
           code == DAMACY__CUDA_UNKNOWN;
}

static uint32_t damacy__device_state(damacy__device* device)
{
    return __atomic_load_n(&device->state, __ATOMIC_ACQUIRE);
}

/* Enters a final state; the first one stays. */
static void damacy__device_give_up(damacy__device* device, uint32_t state, const char* message)
{
    damacy__lock(&device->mutex);
    if (damacy__device_state(device) == DAMACY__DEVICE_ALIVE) {
        (void)snprintf(device->lost_message, sizeof device->lost_message, "%s", message);
        __atomic_store_n(&device->state, state, __ATOMIC_RELEASE);
    }
    damacy__unlock(&device->mutex);
}

static damacy_status damacy__device_lost(damacy__device* device, damacy_error* err)
{
    char text[sizeof device->lost_message];

    damacy__lock(&device->mutex);
    memcpy(text, device->lost_message, sizeof text);
    damacy__unlock(&device->mutex);
    return damacy__fail(err, DAMACY_DEVICE_LOST,
                        "GPU %d is lost, the process must be restarted: %s", device->ordinal, text);
}

/* DEVICE_LOST once a sticky error was seen, INVAL in a child that forked from the owner. */
static damacy_status damacy__device_alive(damacy__device* device, damacy_error* err)
{
    return damacy__device_state(device) == DAMACY__DEVICE_ALIVE ? DAMACY_OK
                                                                : damacy__device_lost(device, err);
}

/* "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" */
static void damacy__cuda_describe(const damacy__driver* driver, int code, char* text, size_t size)
{
    const char* name = NULL;
    const char* words = NULL;

    if (driver->error_name(code, &name) != DAMACY__CUDA_OK || !name) {
        name = "CUDA error";
    }
    if (driver->error_string(code, &words) != DAMACY__CUDA_OK || !words) {
        words = "unknown";
    }
    (void)snprintf(text, size, "%s (%d): %s", name, code, words);
}

/* Turns a result of the driver into a status; the text says what was tried. A sticky result makes
 * the device lost. */
static damacy_status damacy__device_check(damacy__device* device, int code, damacy_error* err,
                                          const char* format, ...)
{
    char what[160];
    char why[120];
    char message[sizeof what + sizeof why + 4];
    va_list args;

    if (code == DAMACY__CUDA_OK) {
        return DAMACY_OK;
    }
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    damacy__cuda_describe(device->driver, code, why, sizeof why);
    (void)snprintf(message, sizeof message, "%s: %s", what, why);
    if (damacy__cuda_is_sticky(code)) {
        char seen[sizeof message + 16];
        (void)snprintf(seen, sizeof seen, "first seen at %s", message);
        damacy__device_give_up(device, DAMACY__DEVICE_LOST, seen);
        return damacy__device_lost(device, err);
    }
    return damacy__fail(err, code == DAMACY__CUDA_OUT_OF_MEMORY ? DAMACY_OOM : DAMACY_CUDA, "%s",
                        message);
}

/* For results that change nothing else: a sticky one is not lost. Returns whether the call worked.
 */
static bool damacy__device_note(damacy__device* device, int code, const char* what)
{
    damacy_error unused;

    return damacy__device_check(device, code, &unused, "%s", what) == DAMACY_OK;
}

/* ---- context ---- */

/* Makes the device's context current on this thread, above the one that is. INVAL: forked child. */
static damacy_status damacy__device_enter(damacy__device* device, damacy_error* err)
{
    if (getpid() != device->pid) {
        return damacy__fail(err, DAMACY_INVAL,
                            "GPU %d was opened by process %ld: a forked child cannot use it",
                            device->ordinal, (long)device->pid);
    }
    DAMACY__TRY(damacy__device_alive(device, err));
    return damacy__device_check(device, device->driver->context_push(device->context), err,
                                "cuCtxPushCurrent");
}

/* Undoes a successful enter, whatever happened between. */
static void damacy__device_leave(damacy__device* device)
{
    damacy__context popped;

    (void)device->driver->context_pop(&popped);
}

/* Like enter, for frees: works on a lost device too; false when the driver must not be called. */
static bool damacy__device_enter_to_free(damacy__device* device)
{
    return device->driver && getpid() == device->pid &&
           damacy__device_state(device) != DAMACY__DEVICE_STALLED &&
           damacy__device_note(device, device->driver->context_push(device->context),
                               "cuCtxPushCurrent");
}

/* Takes the primary context of the device; it is made when nobody has made it yet. */
static damacy_status damacy__device_retain(damacy__device* device, int ordinal, damacy_error* err)
{
    int count = 0;

    DAMACY__TRY(damacy__device_check(device, device->driver->device_count(&count), err,
                                     "cuDeviceGetCount"));
    if (ordinal < 0 || ordinal >= count) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "no GPU %d: the process sees %d", ordinal,
                            count);
    }
    device->ordinal = ordinal;
    DAMACY__TRY(damacy__device_check(device, device->driver->device_get(&device->handle, ordinal),
                                     err, "cuDeviceGet"));
    DAMACY__TRY(damacy__device_check(
        device, device->driver->primary_retain(&device->context, device->handle), err,
        "no context on GPU %d", ordinal));
    device->owns_primary = true;
    return DAMACY_OK;
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
    return damacy__device_retain(device, config->device == DAMACY_AUTO ? 0 : config->device - 1,
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
                                     DAMACY__ATTRIBUTE_READ_ONLY_REGISTER};
    uint32_t values[DAMACY__COUNT(attributes)];

    for (uint32_t i = 0; i < DAMACY__COUNT(attributes); i++) {
        DAMACY__TRY(damacy__device_attribute(device, attributes[i], &values[i], err));
    }
    device->architecture = values[0] * 10 + values[1];
    device->n_multiprocessors = values[2];
    device->shared_per_block = values[3];
    device->shared_per_multiprocessor = values[4];
    device->l2_size = values[5];
    device->can_register_files = values[6] != 0 && values[7] != 0;
    if (device->n_multiprocessors == 0 || device->shared_per_block == 0) {
        return damacy__fail(err, DAMACY_CUDA,
                            "GPU %d (%s): the driver tells %u multiprocessors and %u bytes of "
                            "shared memory",
                            device->ordinal, device->name, device->n_multiprocessors,
                            device->shared_per_block);
    }
    return DAMACY_OK;
}

/* Asks for what the other modules want to know. The context is current. */
static damacy_status damacy__device_inspect(damacy__device* device, uint64_t max_bytes,
                                            damacy_error* err)
{
    const damacy__driver* driver = device->driver;
    size_t free_size = 0;
    size_t total_size = 0;

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
    DAMACY__TRY(damacy__device_check(
        device, driver->context_priorities(&device->priority_least, &device->priority_greatest),
        err, "cuCtxGetStreamPriorityRange"));
    DAMACY__TRY(damacy__device_check(device, driver->memory_info(&free_size, &total_size), err,
                                     "cuMemGetInfo"));
    device->total_size = total_size;
    device->budget = max_bytes ? max_bytes : free_size / 4;
    return DAMACY_OK;
}

/* Chooses a context and looks at its device. On failure nothing is held. UNSUPPORTED: the device
 * cannot be used, the CPU can. */
static damacy_status damacy__device_open(damacy__device* device, const damacy__driver* driver,
                                         damacy__alloc* alloc, const damacy__device_config* config,
                                         damacy_error* err)
{
    damacy_status status;

    memset(device, 0, sizeof *device);
    DAMACY__TRY(damacy__mutex_init(&device->mutex, err));
    device->driver = driver;
    device->alloc = alloc;
    device->pid = getpid();
    status = damacy__device_choose(device, config, err);
    if (status == DAMACY_OK) {
        status = damacy__device_enter(device, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__device_inspect(device, config->max_bytes, err);
        damacy__device_leave(device);
    }
    if (status != DAMACY_OK) {
        damacy__device_close(device);
    }
    return status;
}

/* Gives the context back. All memory, streams and events have been freed before. Zeroed: no effect.
 */
static void damacy__device_close(damacy__device* device)
{
    if (!device->driver) {
        return;
    }
    if (device->owns_primary && getpid() == device->pid &&
        damacy__device_state(device) != DAMACY__DEVICE_STALLED) {
        (void)device->driver->primary_release(device->handle);
    }
    damacy__mutex_deinit(&device->mutex);
    memset(device, 0, sizeof *device);
}

/* ---- streams and events ---- */

/* A stream that does not wait for the legacy default stream; urgent ones overtake others. */
static damacy_status damacy__stream_open(damacy__device* device, bool is_urgent,
                                         damacy__stream* stream, damacy_error* err)
{
    damacy__stream made = NULL;

    DAMACY__TRY(damacy__device_alive(device, err));
    DAMACY__TRY(
        damacy__device_check(device,
                             device->driver->stream_create(&made, DAMACY__STREAM_NON_BLOCKING,
                                                           is_urgent ? device->priority_greatest
                                                                     : device->priority_least),
                             err, "cuStreamCreateWithPriority"));
    *stream = made;
    return DAMACY_OK;
}

static void damacy__stream_close(damacy__device* device, damacy__stream stream)
{
    if (stream && damacy__device_enter_to_free(device)) {
        (void)damacy__device_note(device, device->driver->stream_destroy(stream),
                                  "cuStreamDestroy");
        damacy__device_leave(device);
    }
}

/* has_time: the event can be used with cuEventElapsedTime. */
static damacy_status damacy__event_open(damacy__device* device, bool has_time, damacy__event* event,
                                        damacy_error* err)
{
    damacy__event made = NULL;

    DAMACY__TRY(damacy__device_alive(device, err));
    DAMACY__TRY(damacy__device_check(
        device,
        device->driver->event_create(&made,
                                     DAMACY__EVENT_BLOCKING_SYNC |
                                         (has_time ? 0u : (unsigned)DAMACY__EVENT_DISABLE_TIMING)),
        err, "cuEventCreate"));
    *event = made;
    return DAMACY_OK;
}

static void damacy__event_close(damacy__device* device, damacy__event event)
{
    if (event && damacy__device_enter_to_free(device)) {
        (void)damacy__device_note(device, device->driver->event_destroy(event), "cuEventDestroy");
        damacy__device_leave(device);
    }
}

static damacy_status damacy__event_record(damacy__device* device, damacy__event event,
                                          damacy__stream stream, damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return damacy__device_check(device, device->driver->event_record(event, stream), err,
                                "cuEventRecord");
}

/* Whether the work before the last record has run. An event that was never recorded is done. */
static damacy_status damacy__event_done(damacy__device* device, damacy__event event, bool* done,
                                        damacy_error* err)
{
    int code;

    DAMACY__TRY(damacy__device_alive(device, err));
    code = device->driver->event_query(event);
    if (code != DAMACY__CUDA_NOT_READY) {
        DAMACY__TRY(
            damacy__device_check(device, code, err, "work on the GPU (seen at cuEventQuery)"));
    }
    *done = code == DAMACY__CUDA_OK;
    return DAMACY_OK;
}

/* Waits on the host. After timeout_ns (0: never) the device counts as stalled: a kernel that hangs
 * cannot be ended, and every further call of the driver could block for ever. */
static damacy_status damacy__event_await(damacy__device* device, damacy__event event,
                                         uint64_t timeout_ns, damacy_error* err)
{
    const uint64_t begin = damacy__now_ns();
    uint64_t pause_ns = 10000;

    for (;;) {
        bool done = false;
        struct timespec pause;
        DAMACY__TRY(damacy__event_done(device, event, &done, err));
        if (done) {
            return DAMACY_OK;
        }
        if (timeout_ns && damacy__now_ns() - begin > timeout_ns) {
            char message[96];
            (void)snprintf(message, sizeof message,
                           "no progress for %" PRIu64 " ms (a kernel or copy hangs)",
                           timeout_ns / 1000000);
            damacy__device_give_up(device, DAMACY__DEVICE_STALLED, message);
            return damacy__device_lost(device, err);
        }
        pause.tv_sec = 0;
        pause.tv_nsec = (long)pause_ns;
        (void)nanosleep(&pause, NULL);
        pause_ns = DAMACY__MIN(pause_ns + pause_ns / 4, UINT64_C(200000));
    }
}

/* Makes later work of the stream wait for the event, without blocking the host. */
static damacy_status damacy__stream_await(damacy__device* device, damacy__stream stream,
                                          damacy__event event, damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return damacy__device_check(device, device->driver->stream_wait(stream, event, 0), err,
                                "cuStreamWaitEvent");
}

/* ---- copies: queued on the stream, in order ---- */

/* src stays untouched until the stream has passed: a copy from pinned memory only reads it then. */
static damacy_status damacy__copy_to_device(damacy__device* device, uint64_t dst_dev,
                                            const void* src, uint64_t size, damacy__stream stream,
                                            damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return size == 0
               ? DAMACY_OK
               : damacy__device_check(
                     device, device->driver->copy_to_device(dst_dev, src, (size_t)size, stream),
                     err, "copy of %" PRIu64 " bytes to the GPU", size);
}

static damacy_status damacy__copy_to_host(damacy__device* device, void* dst, uint64_t src_dev,
                                          uint64_t size, damacy__stream stream, damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return size == 0 ? DAMACY_OK
                     : damacy__device_check(
                           device, device->driver->copy_to_host(dst, src_dev, (size_t)size, stream),
                           err, "copy of %" PRIu64 " bytes from the GPU", size);
}

static damacy_status damacy__copy_on_device(damacy__device* device, uint64_t dst_dev,
                                            uint64_t src_dev, uint64_t size, damacy__stream stream,
                                            damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return size == 0
               ? DAMACY_OK
               : damacy__device_check(
                     device, device->driver->copy_on_device(dst_dev, src_dev, (size_t)size, stream),
                     err, "copy of %" PRIu64 " bytes on the GPU", size);
}

static damacy_status damacy__fill_device(damacy__device* device, uint64_t dst_dev, uint8_t value,
                                         uint64_t size, damacy__stream stream, damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return size == 0 ? DAMACY_OK
                     : damacy__device_check(
                           device, device->driver->fill_bytes(dst_dev, value, (size_t)size, stream),
                           err, "fill of %" PRIu64 " bytes on the GPU", size);
}
