/* One CUDA device: how errors are told, whose context is current, streams, events and copies.
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

/* The longest wait for work that was queued: copies and kernels take milliseconds. */
#define DAMACY__STALL_NS UINT64_C(60000000000)

typedef struct damacy__device {
    /* set by open, then constant */
    const damacy__driver* driver;
    damacy__alloc* alloc; /* host memory, and the budget that pinned memory counts against */
    damacy__context context;
    int handle;  /* CUdevice */
    int ordinal; /* among the devices that the process sees */
    bool owns_primary;
    bool can_register_files;
    bool can_read_host; /* kernels read pinned memory and mapped files by the host's addresses */
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
static damacy_status damacy__stream_done(damacy__device* device, damacy__stream stream, bool* done,
                                         damacy_error* err);
static void damacy__device_stall(damacy__device* device, uint64_t waited_ns);
static damacy_status damacy__event_await(damacy__device* device, damacy__event event,
                                         uint64_t timeout_ns, damacy_error* err);
static damacy_status damacy__stream_await(damacy__device* device, damacy__stream stream,
                                          damacy__event event, damacy_error* err);
static damacy_status damacy__stream_settle(damacy__device* device, damacy__stream stream,
                                           damacy__event event, uint64_t timeout_ns,
                                           damacy_error* err);
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
    return device->context && getpid() == device->pid &&
           damacy__device_state(device) != DAMACY__DEVICE_STALLED &&
           damacy__device_note(device, device->driver->context_push(device->context),
                               "cuCtxPushCurrent");
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

/* What a query says: done, not yet, or why it never will be. */
static damacy_status damacy__device_answer(damacy__device* device, int code, const char* call,
                                           bool* done, damacy_error* err)
{
    *done = code == DAMACY__CUDA_OK;
    return code == DAMACY__CUDA_NOT_READY
               ? DAMACY_OK
               : damacy__device_check(device, code, err, "work on the GPU (seen at %s)", call);
}

/* Whether the work before the last record has run. An event that was never recorded is done. */
static damacy_status damacy__event_done(damacy__device* device, damacy__event event, bool* done,
                                        damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return damacy__device_answer(device, device->driver->event_query(event), "cuEventQuery", done,
                                 err);
}

/* Whether nothing is queued on the stream any more. */
static damacy_status damacy__stream_done(damacy__device* device, damacy__stream stream, bool* done,
                                         damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return damacy__device_answer(device, device->driver->stream_query(stream), "cuStreamQuery",
                                 done, err);
}

/* Gives the device up after a wait of that long: a kernel that hangs cannot be ended, and every
 * further call of the driver could block for ever. */
static void damacy__device_stall(damacy__device* device, uint64_t waited_ns)
{
    char message[96];

    (void)snprintf(message, sizeof message,
                   "no progress for %" PRIu64 " ms (a kernel or copy hangs)", waited_ns / 1000000);
    damacy__device_give_up(device, DAMACY__DEVICE_STALLED, message);
}

/* Waits on the host for the event or, if it is NULL, until nothing is queued on the stream. After
 * timeout_ns (0: never) the device counts as stalled. asks_again: a query that fails ends the
 * wait only if the device is lost. */
static damacy_status damacy__device_await(damacy__device* device, damacy__event event,
                                          damacy__stream stream, bool asks_again,
                                          uint64_t timeout_ns, damacy_error* err)
{
    const uint64_t begin = damacy__now_ns();
    uint64_t pause_ns = 10000;

    for (;;) {
        bool done = false;
        struct timespec pause;
        const damacy_status status = event ? damacy__event_done(device, event, &done, err)
                                           : damacy__stream_done(device, stream, &done, err);
        if (done || status == DAMACY_DEVICE_LOST || (status != DAMACY_OK && !asks_again)) {
            return status;
        }
        if (timeout_ns && damacy__now_ns() - begin > timeout_ns) {
            damacy__device_stall(device, timeout_ns);
            return damacy__device_lost(device, err);
        }
        pause.tv_sec = 0;
        pause.tv_nsec = (long)pause_ns;
        (void)nanosleep(&pause, NULL);
        pause_ns = DAMACY__MIN(pause_ns + pause_ns / 4, UINT64_C(200000));
    }
}

/* Waits on the host, with the limit of damacy__device_await. A query that fails ends the wait. */
static damacy_status damacy__event_await(damacy__device* device, damacy__event event,
                                         uint64_t timeout_ns, damacy_error* err)
{
    return damacy__device_await(device, event, NULL, false, timeout_ns, err);
}

/* Makes later work of the stream wait for the event, without blocking the host. */
static damacy_status damacy__stream_await(damacy__device* device, damacy__stream stream,
                                          damacy__event event, damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    return damacy__device_check(device, device->driver->stream_wait(stream, event, 0), err,
                                "cuStreamWaitEvent");
}

/* After a failure: waits until what was queued has run, so that memory of the host's is its owner's
 * again. Records the event, so that work that others queue meanwhile is not waited for; where that
 * fails, the whole stream is. OK, or DEVICE_LOST: the device does nothing more, or it did not end
 * within timeout_ns, counts as stalled and may still write. */
static damacy_status damacy__stream_settle(damacy__device* device, damacy__stream stream,
                                           damacy__event event, uint64_t timeout_ns,
                                           damacy_error* err)
{
    damacy_error ignored;
    const bool is_marked = damacy__event_record(device, event, stream, &ignored) == DAMACY_OK;

    (void)damacy__device_await(device, is_marked ? event : NULL, stream, true, timeout_ns,
                               &ignored);
    return damacy__device_alive(device, err);
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
