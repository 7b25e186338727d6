/* The functions of libcuda and libnvrtc that are used, as one table that its owner holds and tests
 * replace.
 *
 * Both libraries are opened at run time by fixed names, so that a program builds and starts without
 * them. Types, constants and prototypes are our own (no CUDA header is needed); a test compares
 * them with cuda.h and nvrtc.h. The libraries are never closed: the driver keeps threads and exit
 * handlers of its own. */
#pragma once
#include "base/error.h"

/* Handles of the driver. Device addresses are uint64_t. */
typedef void* damacy__context;
typedef void* damacy__stream;
typedef void* damacy__event;
typedef void* damacy__module;
typedef void* damacy__function;
typedef void* damacy__graph_handle;
typedef void* damacy__graph_exec;
typedef void* damacy__compilation; /* nvrtcProgram */

/* Results of the driver (CUresult) that are told apart. */
enum {
    DAMACY__CUDA_OK = 0,
    DAMACY__CUDA_INVALID_VALUE = 1,
    DAMACY__CUDA_OUT_OF_MEMORY = 2,
    DAMACY__CUDA_NOT_INITIALIZED = 3,
    DAMACY__CUDA_DEINITIALIZED = 4,
    DAMACY__CUDA_DEVICE_UNAVAILABLE = 46,
    DAMACY__CUDA_NO_DEVICE = 100,
    DAMACY__CUDA_INVALID_DEVICE = 101,
    DAMACY__CUDA_INVALID_IMAGE = 200,
    DAMACY__CUDA_INVALID_CONTEXT = 201,
    DAMACY__CUDA_NO_BINARY = 209,
    DAMACY__CUDA_ECC_UNCORRECTABLE = 214,
    DAMACY__CUDA_INVALID_PTX = 218,
    DAMACY__CUDA_NVLINK_UNCORRECTABLE = 220,
    DAMACY__CUDA_UNSUPPORTED_PTX = 222,
    DAMACY__CUDA_CONTAINED = 226,
    DAMACY__CUDA_NOT_FOUND = 500,
    DAMACY__CUDA_NOT_READY = 600,
    DAMACY__CUDA_ILLEGAL_ADDRESS = 700,
    DAMACY__CUDA_LAUNCH_TIMEOUT = 702,
    DAMACY__CUDA_CONTEXT_IS_DESTROYED = 709,
    DAMACY__CUDA_ASSERT = 710,
    DAMACY__CUDA_ALREADY_REGISTERED = 712,
    DAMACY__CUDA_HARDWARE_STACK = 714,
    DAMACY__CUDA_ILLEGAL_INSTRUCTION = 715,
    DAMACY__CUDA_MISALIGNED_ADDRESS = 716,
    DAMACY__CUDA_INVALID_ADDRESS_SPACE = 717,
    DAMACY__CUDA_INVALID_PC = 718,
    DAMACY__CUDA_LAUNCH_FAILED = 719,
    DAMACY__CUDA_NOT_SUPPORTED = 801,
    DAMACY__CUDA_UNKNOWN = 999
};

/* Attributes of a device (CUdevice_attribute). */
enum {
    DAMACY__ATTRIBUTE_SHARED_PER_BLOCK = 8,
    DAMACY__ATTRIBUTE_MULTIPROCESSORS = 16,
    DAMACY__ATTRIBUTE_L2_BYTES = 38,
    DAMACY__ATTRIBUTE_MAJOR = 75,
    DAMACY__ATTRIBUTE_MINOR = 76,
    DAMACY__ATTRIBUTE_SHARED_PER_MULTIPROCESSOR = 81,
    DAMACY__ATTRIBUTE_HOST_POINTERS = 91, /* of registered memory are those of the device, too */
    DAMACY__ATTRIBUTE_SHARED_PER_BLOCK_OPTIN = 97,
    DAMACY__ATTRIBUTE_HOST_REGISTER = 99,
    DAMACY__ATTRIBUTE_HOST_PAGE_TABLES = 100, /* are the device's; it holds no registered pages */
    DAMACY__ATTRIBUTE_READ_ONLY_REGISTER = 113
};

/* Flags and attributes of streams, events, memory, pointers and functions. */
enum {
    DAMACY__STREAM_NON_BLOCKING = 1,
    DAMACY__CAPTURE_RELAXED = 2,
    DAMACY__EVENT_BLOCKING_SYNC = 1,
    DAMACY__EVENT_DISABLE_TIMING = 2,
    DAMACY__HOST_ALLOC_PORTABLE = 1,
    DAMACY__HOST_ALLOC_MAPPED = 2,
    DAMACY__HOST_REGISTER_PORTABLE = 1,
    DAMACY__HOST_REGISTER_MAPPED = 2,
    DAMACY__HOST_REGISTER_READ_ONLY = 8,
    DAMACY__POINTER_CONTEXT = 1,
    DAMACY__POINTER_MEMORY_TYPE = 2,
    DAMACY__POINTER_DEVICE_ORDINAL = 9,
    DAMACY__MEMORY_TYPE_HOST = 1,
    DAMACY__MEMORY_TYPE_DEVICE = 2,
    DAMACY__FUNCTION_MAX_THREADS = 0,
    DAMACY__FUNCTION_STATIC_SHARED = 1,
    DAMACY__FUNCTION_LOCAL_BYTES = 3,
    DAMACY__FUNCTION_REGISTERS = 4,
    DAMACY__FUNCTION_MAX_DYNAMIC_SHARED = 8
};

/* X(field, symbol, parameters): functions of libcuda.so.1, all returning a CUresult. */
#define DAMACY__CUDA_FUNCTIONS(X)                                                               \
    X(init, cuInit, (unsigned flags))                                                           \
    X(driver_version, cuDriverGetVersion, (int* version))                                       \
    X(error_name, cuGetErrorName, (int code, const char** text))                                \
    X(error_string, cuGetErrorString, (int code, const char** text))                            \
    X(device_count, cuDeviceGetCount, (int* count))                                             \
    X(device_get, cuDeviceGet, (int* device, int ordinal))                                      \
    X(device_name, cuDeviceGetName, (char* name, int size, int device))                         \
    X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, int device))          \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * size, int device))                          \
    X(device_bus_id, cuDeviceGetPCIBusId, (char* text, int size, int device))                   \
    X(primary_retain, cuDevicePrimaryCtxRetain, (damacy__context * context, int device))        \
    X(primary_state, cuDevicePrimaryCtxGetState, (int device, unsigned* flags, int* active))    \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (int device))                              \
    X(context_current, cuCtxGetCurrent, (damacy__context * context))                            \
    X(context_push, cuCtxPushCurrent_v2, (damacy__context context))                             \
    X(context_pop, cuCtxPopCurrent_v2, (damacy__context * context))                             \
    X(context_device, cuCtxGetDevice, (int* device))                                            \
    X(context_priorities, cuCtxGetStreamPriorityRange, (int* least, int* greatest))             \
    X(memory_info, cuMemGetInfo_v2, (size_t * free_size, size_t * total_size))                  \
    X(memory_alloc, cuMemAlloc_v2, (uint64_t * address, size_t size))                           \
    X(memory_free, cuMemFree_v2, (uint64_t address))                                            \
    X(host_alloc, cuMemHostAlloc, (void** ptr, size_t size, unsigned flags))                    \
    X(host_free, cuMemFreeHost, (void* ptr))                                                    \
    X(host_register, cuMemHostRegister_v2, (void* ptr, size_t size, unsigned flags))            \
    X(host_unregister, cuMemHostUnregister, (void* ptr))                                        \
    X(pointer_attribute, cuPointerGetAttribute, (void* value, int attribute, uint64_t address)) \
    X(copy_to_device, cuMemcpyHtoDAsync_v2,                                                     \
      (uint64_t dst, const void* src, size_t size, damacy__stream stream))                      \
    X(copy_to_host, cuMemcpyDtoHAsync_v2,                                                       \
      (void* dst, uint64_t src, size_t size, damacy__stream stream))                            \
    X(copy_on_device, cuMemcpyDtoDAsync_v2,                                                     \
      (uint64_t dst, uint64_t src, size_t size, damacy__stream stream))                         \
    X(fill_bytes, cuMemsetD8Async,                                                              \
      (uint64_t dst, unsigned char value, size_t count, damacy__stream stream))                 \
    X(fill_words, cuMemsetD32Async,                                                             \
      (uint64_t dst, unsigned value, size_t count, damacy__stream stream))                      \
    X(stream_create, cuStreamCreateWithPriority,                                                \
      (damacy__stream * stream, unsigned flags, int priority))                                  \
    X(stream_destroy, cuStreamDestroy_v2, (damacy__stream stream))                              \
    X(stream_query, cuStreamQuery, (damacy__stream stream))                                     \
    X(stream_synchronize, cuStreamSynchronize, (damacy__stream stream))                         \
    X(stream_wait, cuStreamWaitEvent,                                                           \
      (damacy__stream stream, damacy__event event, unsigned flags))                             \
    X(stream_context, cuStreamGetCtx, (damacy__stream stream, damacy__context * context))       \
    X(stream_capturing, cuStreamIsCapturing, (damacy__stream stream, int* status))              \
    X(event_create, cuEventCreate, (damacy__event * event, unsigned flags))                     \
    X(event_destroy, cuEventDestroy_v2, (damacy__event event))                                  \
    X(event_record, cuEventRecord, (damacy__event event, damacy__stream stream))                \
    X(event_query, cuEventQuery, (damacy__event event))                                         \
    X(event_synchronize, cuEventSynchronize, (damacy__event event))                             \
    X(event_elapsed, cuEventElapsedTime,                                                        \
      (float* milliseconds, damacy__event begin, damacy__event end))                            \
    X(launch_host, cuLaunchHostFunc,                                                            \
      (damacy__stream stream, void (*function)(void*), void* context))                          \
    X(module_load, cuModuleLoadData, (damacy__module * module, const void* image))              \
    X(module_unload, cuModuleUnload, (damacy__module module))                                   \
    X(module_function, cuModuleGetFunction,                                                     \
      (damacy__function * function, damacy__module module, const char* name))                   \
    X(function_attribute, cuFuncGetAttribute,                                                   \
      (int* value, int attribute, damacy__function function))                                   \
    X(function_set, cuFuncSetAttribute, (damacy__function function, int attribute, int value))  \
    X(function_occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                          \
      (int* blocks, damacy__function function, int threads, size_t shared_size))                \
    X(launch, cuLaunchKernel,                                                                   \
      (damacy__function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,            \
       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_size,              \
       damacy__stream stream, void** parameters, void** extra))

/* Functions that older drivers lack: NULL there. As in the oldest version that has them. */
#define DAMACY__CUDA_NEW_FUNCTIONS(X)                                                            \
    X(launch_with, cuLaunchKernelEx,                                                             \
      (const struct damacy__launch_config* config, damacy__function function, void** parameters, \
       void** extra))                                                                            \
    X(graph_create, cuGraphCreate, (damacy__graph_handle * graph, unsigned flags))               \
    X(graph_destroy, cuGraphDestroy, (damacy__graph_handle graph))                               \
    X(graph_add, cuGraphAddKernelNode_v2,                                                        \
      (void** node, damacy__graph_handle graph, void* const* after, size_t n_after,              \
       const struct damacy__graph_kernel* kernel))                                               \
    X(graph_attribute, cuGraphKernelNodeSetAttribute,                                            \
      (void* node, int attribute, const void* value))                                            \
    X(graph_instantiate, cuGraphInstantiateWithFlags,                                            \
      (damacy__graph_exec * executable, damacy__graph_handle graph, unsigned long long flags))   \
    X(graph_update, cuGraphExecKernelNodeSetParams_v2,                                           \
      (damacy__graph_exec executable, void* node, const struct damacy__graph_kernel* kernel))    \
    X(graph_launch, cuGraphLaunch, (damacy__graph_exec executable, damacy__stream stream))       \
    X(graph_end, cuGraphExecDestroy, (damacy__graph_exec executable))                            \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))

/* Functions of libnvrtc, all returning an nvrtcResult. */
#define DAMACY__NVRTC_FUNCTIONS(X)                                                          \
    X(nvrtc_version, nvrtcVersion, (int* major, int* minor))                                \
    X(nvrtc_count_archs, nvrtcGetNumSupportedArchs, (int* count))                           \
    X(nvrtc_archs, nvrtcGetSupportedArchs, (int* archs))                                    \
    X(nvrtc_create, nvrtcCreateProgram,                                                     \
      (damacy__compilation * program, const char* text, const char* name, int n_headers,    \
       const char* const* headers, const char* const* names))                               \
    X(nvrtc_compile, nvrtcCompileProgram,                                                   \
      (damacy__compilation program, int n_options, const char* const* options))             \
    X(nvrtc_log_size, nvrtcGetProgramLogSize, (damacy__compilation program, size_t * size)) \
    X(nvrtc_log, nvrtcGetProgramLog, (damacy__compilation program, char* text))             \
    X(nvrtc_cubin_size, nvrtcGetCUBINSize, (damacy__compilation program, size_t * size))    \
    X(nvrtc_cubin, nvrtcGetCUBIN, (damacy__compilation program, char* image))               \
    X(nvrtc_ptx_size, nvrtcGetPTXSize, (damacy__compilation program, size_t * size))        \
    X(nvrtc_ptx, nvrtcGetPTX, (damacy__compilation program, char* text))                    \
    X(nvrtc_destroy, nvrtcDestroyProgram, (damacy__compilation * program))

struct damacy__launch_config;
struct damacy__graph_kernel;

/* Zero: nothing loaded. Constant once loaded; any thread may call through it. */
typedef struct damacy__driver {
#define DAMACY__FIELD(field, symbol, parameters) int(*field) parameters;
    DAMACY__CUDA_FUNCTIONS(DAMACY__FIELD)
    DAMACY__CUDA_NEW_FUNCTIONS(DAMACY__FIELD)
    DAMACY__NVRTC_FUNCTIONS(DAMACY__FIELD)
#undef DAMACY__FIELD
    int version;     /* of CUDA, as the driver counts: 12040 is 12.4 */
    int nvrtc_major; /* 0: libnvrtc is not loaded */
    int nvrtc_minor;
    char nvrtc_name[64]; /* the file it came from */
} damacy__driver;

static damacy_status damacy__driver_load(damacy__driver* driver, damacy_error* err);
static damacy_status damacy__driver_load_nvrtc(damacy__driver* driver, damacy_error* err);

/* Where a function has its place in the table. */
typedef struct damacy__driver_slot {
    const char* symbol;
    size_t offset;
} damacy__driver_slot;

#define DAMACY__SLOT(field, symbol, parameters) {#symbol, offsetof(damacy__driver, field)},

/* Fills n slots from an open library; NULL, or a function that it lacks. */
static const char* damacy__driver_fill(damacy__driver* driver, void* library,
                                       const damacy__driver_slot* slots, size_t n)
{
    const char* missing = NULL;

    for (size_t i = 0; i < n; i++) {
        void* address = dlsym(library, slots[i].symbol);
        /* ISO C has no cast from an object to a function pointer */
        memcpy((char*)driver + slots[i].offset, &address, sizeof address);
        if (!address) {
            missing = slots[i].symbol;
        }
    }
    return missing;
}

/* Opens libcuda.so.1, fills the table and initialises the driver. Changes nothing about contexts.
 * UNSUPPORTED: no driver, a driver too old, or no device: the CPU can be used instead. */
#ifdef DAMACY__DRIVER_LOAD
/* Tests of the whole library define DAMACY__DRIVER_LOAD as a function that fills the table. */
static damacy_status damacy__driver_load(damacy__driver* driver, damacy_error* err)
{
    return DAMACY__DRIVER_LOAD(driver, err);
}
#else
static damacy_status damacy__driver_load(damacy__driver* driver, damacy_error* err)
{
    static const damacy__driver_slot slots[] = {DAMACY__CUDA_FUNCTIONS(DAMACY__SLOT)};
    static const damacy__driver_slot newer[] = {DAMACY__CUDA_NEW_FUNCTIONS(DAMACY__SLOT)};
    damacy__driver table;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const char* missing;
    int code;

    memset(&table, 0, sizeof table);
    if (!library) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "no CUDA driver: %s", dlerror());
    }
    missing = damacy__driver_fill(&table, library, slots, DAMACY__COUNT(slots));
    (void)damacy__driver_fill(&table, library, newer, DAMACY__COUNT(newer));
    if (missing) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "the CUDA driver is too old: libcuda.so.1 has no %s", missing);
    }
    code = table.init(0);
    if (code != DAMACY__CUDA_OK) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "cuInit: error %d%s", code,
                            code == DAMACY__CUDA_NO_DEVICE ? ", no CUDA device" : "");
    }
    if (table.driver_version(&table.version) != DAMACY__CUDA_OK) {
        table.version = 0;
    }
    *driver = table;
    return DAMACY_OK;
}
#endif

/* Fills the NVRTC part of the table from an open library; false when a function is missing. */
static bool damacy__driver_resolve_nvrtc(damacy__driver* driver, void* library)
{
    static const damacy__driver_slot slots[] = {DAMACY__NVRTC_FUNCTIONS(DAMACY__SLOT)};

    return !damacy__driver_fill(driver, library, slots, DAMACY__COUNT(slots)) &&
           driver->nvrtc_version(&driver->nvrtc_major, &driver->nvrtc_minor) == 0 &&
           driver->nvrtc_major > 0;
}

/* Opens libnvrtc. One that the process has loaded already comes first, then those that this driver
 * can run (machine code of a newer major version is refused by an older driver), newest first.
 * UNSUPPORTED: none found. Call it from one thread at a time, before the table is shared. */
#ifdef DAMACY__NVRTC_LOAD
/* As DAMACY__DRIVER_LOAD. */
static damacy_status damacy__driver_load_nvrtc(damacy__driver* driver, damacy_error* err)
{
    return DAMACY__NVRTC_LOAD(driver, err);
}
#else
static damacy_status damacy__driver_load_nvrtc(damacy__driver* driver, damacy_error* err)
{
    static const struct {
        int major;
        const char* name;
    } versions[] = {{13, "libnvrtc.so.13"},
                    {12, "libnvrtc.so.12"},
                    {11, "libnvrtc.so.11.2"},
                    {0, "libnvrtc.so"}};
    static const char* const folders[] = {"", "/usr/local/cuda/lib64/"};
    const int newest = driver->version ? driver->version / 1000 : 99;

    if (driver->nvrtc_major > 0) {
        return DAMACY_OK;
    }
    for (uint32_t pass = 0; pass < 3; pass++) { /* loaded already; fitting; too new */
        for (uint32_t v = 0; v < DAMACY__COUNT(versions); v++) {
            for (uint32_t f = 0; f < DAMACY__COUNT(folders); f++) {
                const bool is_too_new = versions[v].major > newest;
                void* library;
                if (is_too_new != (pass == 2)) {
                    continue;
                }
                (void)snprintf(driver->nvrtc_name, sizeof driver->nvrtc_name, "%s%s", folders[f],
                               versions[v].name);
                library = dlopen(driver->nvrtc_name,
                                 RTLD_NOW | RTLD_LOCAL | (pass == 0 ? RTLD_NOLOAD : 0));
                if (library && damacy__driver_resolve_nvrtc(driver, library)) {
                    return DAMACY_OK;
                }
            }
        }
    }
    driver->nvrtc_major = 0;
    driver->nvrtc_name[0] = '\0';
    return damacy__fail(
        err, DAMACY_UNSUPPORTED,
        "no kernel compiler: none of libnvrtc.so.13, .12, .11.2 was found (CUDA's NVRTC)");
}
#endif
