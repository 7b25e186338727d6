
#if defined(DAMACY_IMPLEMENTATION) && !defined(_GNU_SOURCE)

#define _GNU_SOURCE 1

#endif

/* ==== src/api.h ==== */
/* damacy.h: streams crops of Zarr and OME-NGFF arrays as training batches.
 *
 * In one file of a program:
 *
 *     #define DAMACY_IMPLEMENTATION
 *     #include "damacy.h"
 *
 * and cc app.c. Everywhere else include it plainly. DAMACY_STATIC, defined before every include,
 * makes all functions static. C11 or C++11 and later; Linux; glibc >= 2.34 needs no library on the
 * link line.
 *
 * The life of a pipeline: damacy_create, damacy_push crops, damacy_finish, damacy_pop batches and
 * damacy_release each, damacy_destroy. Shapes and boxes follow the axis order of the array's
 * metadata, slowest axis first; a batch is [sample, axis 0, axis 1, ...] in C order. Extents count
 * voxels, sizes count bytes. Every function may be called from any thread at any time, but nothing
 * may be called on a pipeline during or after its damacy_destroy, except that a blocked damacy_pop
 * returns and that batches stay valid until they are released.
 *
 * Functions return a damacy_status; those with `err` fill it on failure (it may be NULL). Outputs
 * are untouched on failure. */
#ifndef DAMACY_H
#define DAMACY_H
#include <stddef.h>
#include <stdint.h>

#ifndef DAMACY_API
#ifdef DAMACY_STATIC
#define DAMACY_API __attribute__((unused)) static
#else
#define DAMACY_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define DAMACY_VERSION_MAJOR 0
#define DAMACY_VERSION_MINOR 1
#define DAMACY_VERSION_PATCH 0
#define DAMACY_MAX_RANK      32 /* axes of an array; a batch has one more */

/* ---- Status and errors ------------------------------------------------------------------------
 */

typedef enum damacy_status {
    DAMACY_OK = 0,
    DAMACY_AGAIN = 1,    /* nothing ready, or no room, now */
    DAMACY_INVAL = 2,    /* an argument, or a crop outside its array */
    DAMACY_NOTFOUND = 3, /* no array or object there */
    DAMACY_DTYPE = 4,    /* the array's data type does not fit */
    DAMACY_RANK = 5,     /* number of axes differs */
    DAMACY_IO = 6,       /* open or read failed, or an object ends too early */
    DAMACY_DECODE = 7,   /* malformed metadata or data, wrong size, wrong checksum */
    DAMACY_CUDA = 8,     /* the CUDA driver or NVRTC refused */
    DAMACY_OOM = 9,      /* out of memory or threads */
    DAMACY_BUDGET = 10,  /* max_host_bytes or max_gpu_bytes is too small; the message has the sum */
    DAMACY_SHUTDOWN = 11,    /* the pipeline is being destroyed or has failed */
    DAMACY_END = 12,         /* every pushed sample was delivered after damacy_finish */
    DAMACY_UNSUPPORTED = 13, /* valid, but not covered: the message names the feature */
    DAMACY_DEVICE_LOST = 14, /* a sticky CUDA error: the process must be restarted */
    DAMACY_TIMEOUT = 15      /* damacy_pop_timeout ran out */
} damacy_status;

/* Where an error happened. */
typedef enum damacy_stage {
    DAMACY_STAGE_NONE = 0,
    DAMACY_STAGE_CONFIG,
    DAMACY_STAGE_METADATA,
    DAMACY_STAGE_INDEX, /* shard index */
    DAMACY_STAGE_PLAN,
    DAMACY_STAGE_READ,
    DAMACY_STAGE_TRANSFER,
    DAMACY_STAGE_DECODE,
    DAMACY_STAGE_ASSEMBLE,
    DAMACY_STAGE_BATCH
} damacy_stage;

/* What went wrong and where. Zero it or not before a call; a failing function fills it whole. */
typedef struct damacy_error {
    damacy_status status;
    damacy_stage stage;
    uint64_t sample; /* number of the sample, counted from 0 in push order; UINT64_MAX: none */
    uint64_t offset; /* byte offset in the object; UINT64_MAX: none */
    char uri[256];   /* the array; cut if longer; "" if none */
    char
        chunk[128]; /* key of the object or chunk, such as "c/0/1" or "c/0/1[3,0]" inside a shard */
    char message[384]; /* the cause in words, with names and numbers */
} damacy_error;

/* A short name such as "decode error"; "unknown" for other values. */
DAMACY_API const char* damacy_status_str(damacy_status status);
DAMACY_API const char* damacy_stage_str(damacy_stage stage);

/* ---- Data types -------------------------------------------------------------------------------
 */

typedef enum damacy_dtype {
    DAMACY_F32 = 0,
    DAMACY_BF16 = 1,
    DAMACY_F16 = 2,
    DAMACY_F64 = 3,
    DAMACY_U8 = 4,
    DAMACY_U16 = 5,
    DAMACY_U32 = 6,
    DAMACY_U64 = 7,
    DAMACY_I8 = 8,
    DAMACY_I16 = 9,
    DAMACY_I32 = 10,
    DAMACY_I64 = 11,
    DAMACY_BOOL = 12,
    DAMACY_NATIVE = 13 /* as output type only: the type of the first array */
} damacy_dtype;

/* Bytes per element; 0 for DAMACY_NATIVE and other values. */
DAMACY_API size_t damacy_dtype_size(damacy_dtype dtype);
/* "f32", "bf16", "u16", ..., "native". */
DAMACY_API const char* damacy_dtype_str(damacy_dtype dtype);

/* ---- Hooks the caller may supply --------------------------------------------------------------
 */

/* Host memory. alloc returns size bytes aligned to a power of two <= 4096, or NULL; free gets the
 * same size. Both may be called from several threads at once and must not call the library. */
typedef struct damacy_allocator {
    void* user;
    void* (*alloc)(void* user, size_t size, size_t alignment);
    void (*free)(void* user, void* ptr, size_t size);
} damacy_allocator;

typedef enum damacy_log_level {
    DAMACY_LOG_DEBUG = 0,
    DAMACY_LOG_INFO = 1,
    DAMACY_LOG_WARN = 2,
    DAMACY_LOG_ERROR = 3
} damacy_log_level;

/* Receives messages of one pipeline, on whichever thread made them, several at once. The text is
 * the library's and ends with the call. The library itself never prints. */
typedef struct damacy_logger {
    void* user;
    void (*log)(void* user, damacy_log_level level, const char* message);
} damacy_logger;

/* Where objects come from, instead of local files. A key is "<uri>/<name>", such as
 * "volume.zarr/c/0/0/0". All functions may be called from several threads at once, block, and must
 * not call the library. open     DAMACY_NOTFOUND when there is no such object; size receives its
 * bytes. read_at  fills dst with [offset, offset + size); *n_read < size only at the object's end.
 *   close    ends the use of an object. */
typedef struct damacy_store {
    void* user;
    damacy_status (*open)(void* user, const char* key, void** object, uint64_t* size);
    damacy_status (*read_at)(void* user, void* object, uint64_t offset, void* dst, size_t size,
                             size_t* n_read);
    void (*close)(void* user, void* object);
} damacy_store;

/* ---- Configuration ----------------------------------------------------------------------------
 */

/* What happens to voxels of a crop that lie outside its array. */
typedef enum damacy_bounds {
    DAMACY_BOUNDS_REJECT = 0, /* the sample fails with DAMACY_INVAL */
    DAMACY_BOUNDS_FILL,       /* the array's fill value */
    DAMACY_BOUNDS_CLAMP,      /* the nearest voxel of the array */
    DAMACY_BOUNDS_REFLECT /* mirrored about the border voxels, which are not repeated: 2 1 | 0 1 2
                           */
} damacy_bounds;

/* What happens when a sample fails. */
typedef enum damacy_on_error {
    DAMACY_ON_ERROR_STOP = 0, /* earlier batches are delivered, then every pop returns the error */
    DAMACY_ON_ERROR_FILL, /* the sample's voxels are the fill value (0 if unknown); its status tells
                           */
    DAMACY_ON_ERROR_SKIP  /* the sample is left out: the batch holds fewer samples */
} damacy_on_error;

typedef enum damacy_numa {
    DAMACY_NUMA_AUTO = 0, /* the node of the device, if the machine has several */
    DAMACY_NUMA_OFF,
    DAMACY_NUMA_PIN /* threads run on numa_node */
} damacy_numa;

typedef enum damacy_gds {
    DAMACY_GDS_AUTO = 0, /* GPUDirect Storage where it is available and pays */
    DAMACY_GDS_ON,
    DAMACY_GDS_OFF
} damacy_gds;

#define DAMACY_AUTO   0         /* device: current CUDA context, else GPU 0, else CPU */
#define DAMACY_CPU    (-1)      /* device: host memory */
#define DAMACY_GPU(n) ((n) + 1) /* device: CUDA ordinal n, an error if it cannot be used */

/* Injected delay of every open and read, for measuring what look-ahead hides:
 * base_ns + exp(mu + sigma * N(0,1)) ns, at most cap_ns (0: no cap). All zero: none. */
typedef struct damacy_latency {
    uint64_t base_ns;
    double mu;
    double sigma;
    uint64_t cap_ns;
    uint64_t seed;
} damacy_latency;

/* All zero is a working configuration: each field's default is stated. */
typedef struct damacy_config {
    uint32_t
        sample_rank; /* axes of a crop; 0: taken, with the shape, from the first pushed sample */
    int64_t sample_shape[DAMACY_MAX_RANK]; /* voxels per axis */
    uint32_t samples_per_batch;            /* 0: 1 */
    uint32_t lookahead_samples;            /* samples that wait inside; 0: max(4 batches, 64) */
    uint32_t batch_slots;                  /* batches in the making or held; 0: 3; at least 2 */
    damacy_dtype dtype;                    /* of batches; 0: f32. NATIVE: that of the first array */
    int32_t device;                        /* DAMACY_AUTO, DAMACY_CPU or DAMACY_GPU(n) */
    damacy_bounds bounds;
    damacy_on_error on_error;
    uint32_t
        level; /* resolution level, where a uri names an NGFF multiscale group; 0: the full one */

    /* out = (float)voxel * scale[c] + offset[c], c the index along channel_axis, for float outputs.
     * n_channels 0: off; 1: the same for all. scale NULL: 1; offset NULL: 0. Copied at create. */
    uint32_t n_channels;
    uint32_t channel_axis;
    const float* scale;
    const float* offset;

    uint64_t max_gpu_bytes;  /* device memory, hard; 0: a quarter of what is free at create */
    uint64_t max_host_bytes; /* host memory, hard; 0: a quarter of the machine's, at most 8 GiB */
    uint64_t max_read_bytes; /* of one coalesced read; 0: 4 MiB */
    uint32_t io_threads;     /* 0: 16 */
    uint32_t decode_threads; /* workers that decode and assemble on the host; 0: one per CPU */

    damacy_store store;         /* open NULL: local files */
    damacy_allocator allocator; /* alloc NULL: malloc */
    damacy_logger logger;       /* log NULL: silent */
    damacy_log_level log_level; /* messages below it are not made; 0: all */

    void* cuda_context;    /* CUcontext to use; NULL: as device says */
    void* cuda_stream;     /* CUstream whose work precedes and follows batches; NULL: own streams */
    const char* cache_dir; /* of compiled kernels; NULL: $XDG_CACHE_HOME/damacy; "": none */

    damacy_numa numa;
    int32_t numa_node;
    damacy_gds gds;

    uint8_t skip_checksums;       /* 1: crc32c and frame checksums are not compared */
    uint8_t follow_outside_links; /* 1: symbolic links may leave the store's root folder */
    uint8_t debug_bypass_decode; /* 1: reads happen, decoding does not; voxels are the fill value */
    damacy_latency debug_latency;
} damacy_config;

/* Fills in every default and checks the whole; *resolved is what damacy_create would use, but for
 * the device's own limits. DAMACY_INVAL names the field, the value and the remedy. */
DAMACY_API damacy_status damacy_config_resolve(const damacy_config* config, damacy_config* resolved,
                                               damacy_error* err);

/* Writes one line per resolved field into text, cut to size and zero-terminated. Returns the length
 * that it would need. A configuration that does not resolve gives its error's message. */
DAMACY_API size_t damacy_config_describe(const damacy_config* config, char* text, size_t size);

/* ---- Pipeline ---------------------------------------------------------------------------------
 */

typedef struct damacy damacy;

typedef struct damacy_interval {
    int64_t begin; /* first voxel */
    int64_t end;   /* one past the last */
} damacy_interval;

/* One crop of one array. */
typedef struct damacy_sample {
    const char*
        uri; /* local folder of the array or NGFF group, "file:///..." too; copied by push */
    uint32_t rank;
    damacy_interval box[DAMACY_MAX_RANK];
} damacy_sample;

/* Starts a pipeline. config NULL: all defaults. *out is NULL on failure.
 * INVAL, BUDGET, OOM, CUDA, UNSUPPORTED (a GPU was asked for and there is none). */
DAMACY_API damacy_status damacy_create(const damacy_config* config, damacy** out,
                                       damacy_error* err);

/* Stops threads, drops what is in flight, wakes poppers with DAMACY_SHUTDOWN. Batches that are
 * held, and exported tensors, stay valid until they are released. NULL is allowed. Waits for reads
 * that are under way in the operating system. */
DAMACY_API void damacy_destroy(damacy* d);

/* Queues samples, in order, without blocking; copies what it takes. *n_taken (may be NULL) receives
 * how many. AGAIN: no room for the sample at *n_taken. INVAL, RANK: that sample is malformed or has
 * another shape than the pipeline's; those before it were taken. SHUTDOWN: failed, finished or
 * being destroyed. Errors of stores surface with the batch. */
DAMACY_API damacy_status damacy_push(damacy* d, const damacy_sample* samples, size_t n,
                                     size_t* n_taken, damacy_error* err);

/* No more samples come: the last batch is delivered even if it is not full; then DAMACY_END. */
DAMACY_API damacy_status damacy_finish(damacy* d);

/* A batch: a value that names one reference. A zeroed one names nothing. */
typedef struct damacy_batch {
    struct damacy__core* core;
    uint64_t id;
} damacy_batch;

/* The next batch, in push order; the caller owns one reference.
 *   pop          blocks until a batch, an error, END or SHUTDOWN. AGAIN when none can come without
 *                another call: fewer samples than a batch are pushed and damacy_finish was not
 * called, or the caller holds every slot. try_pop      never blocks: AGAIN. pop_timeout  blocks at
 * most timeout_ns: TIMEOUT. A failing sample is reported as config.on_error says. On the GPU the
 * batch may still be in the making: order work after info.ready_event. */
DAMACY_API damacy_status damacy_pop(damacy* d, damacy_batch* out, damacy_error* err);
DAMACY_API damacy_status damacy_try_pop(damacy* d, damacy_batch* out, damacy_error* err);
DAMACY_API damacy_status damacy_pop_timeout(damacy* d, uint64_t timeout_ns, damacy_batch* out,
                                            damacy_error* err);

typedef struct damacy_batch_info_t {
    void* ptr;     /* voxels, [n_samples, sample shape...], C order, 256-byte aligned */
    uint64_t size; /* bytes */
    damacy_dtype dtype;
    int32_t device; /* DAMACY_CPU or DAMACY_GPU(n) */
    uint32_t rank;  /* axes of shape, the sample axis included */
    int64_t shape[DAMACY_MAX_RANK + 1];
    uint64_t id;        /* 0, 1, 2, ... in delivery order */
    uint32_t n_failed;  /* samples whose status is not OK */
    void* ready_stream; /* CUstream on which the batch is made; NULL on the CPU */
    void* ready_event;  /* CUevent: the voxels are valid after it; NULL on the CPU */
} damacy_batch_info_t;

/* INVAL when the batch was released. */
DAMACY_API damacy_status damacy_batch_info(damacy_batch batch, damacy_batch_info_t* out);

/* The number (in push order) of the batch's i-th sample, and what became of it; err receives the
 * cause when *status is not OK. INVAL: no such batch or sample. For SKIP, samples that were left
 * out are not counted here; see damacy_batch_failed. */
DAMACY_API damacy_status damacy_batch_sample(damacy_batch batch, uint32_t i, uint64_t* number,
                                             damacy_status* status, damacy_error* err);

/* The cause of the batch's i-th failed sample, i < info.n_failed, in push order. */
DAMACY_API damacy_status damacy_batch_failed(damacy_batch batch, uint32_t i, damacy_error* err);

/* Adds a reference. */
DAMACY_API damacy_status damacy_batch_retain(damacy_batch batch);

/* Drops a reference; with the last one the slot is reused. INVAL, and no effect, when the batch was
 * released already. The event and stream forms reuse the slot only after the CUevent, or after what
 * is queued in the CUstream now; on the CPU they are plain releases. */
DAMACY_API damacy_status damacy_release(damacy_batch batch);
DAMACY_API damacy_status damacy_release_event(damacy_batch batch, void* event);
DAMACY_API damacy_status damacy_release_stream(damacy_batch batch, void* stream);

/* The device of the pipeline: DAMACY_CPU or DAMACY_GPU(n). */
DAMACY_API int32_t damacy_device(const damacy* d);

/* ---- DLPack -----------------------------------------------------------------------------------
 */

/* The structures of DLPack 1.0, bit for bit, under our own names so that dlpack.h can be included
 * beside this file: cast damacy_dl_managed_versioned* to DLManagedTensorVersioned*, and
 * damacy_dl_managed* to DLManagedTensor* (the form before 1.0). */
typedef struct damacy_dl_tensor {
    void* data;
    struct {
        int32_t device_type; /* 1 CPU, 2 CUDA */
        int32_t device_id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code; /* 0 int, 1 uint, 2 float, 4 bfloat, 6 bool */
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
} damacy_dl_tensor;

typedef struct damacy_dl_managed {
    damacy_dl_tensor dl_tensor;
    void* manager_ctx;
    void (*deleter)(struct damacy_dl_managed* self);
} damacy_dl_managed;

typedef struct damacy_dl_managed_versioned {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void* manager_ctx;
    void (*deleter)(struct damacy_dl_managed_versioned* self);
    uint64_t flags;
    damacy_dl_tensor dl_tensor;
} damacy_dl_managed_versioned;

#define DAMACY_STREAM_NONE ((void*)(intptr_t)-1) /* no ordering wanted */

/* Exports a batch without a copy. The tensor holds a reference of its own and outlives the batch's
 * release and damacy_destroy; its deleter, callable from any thread, drops it. `stream` is the
 * consumer's CUstream by the DLPack protocol (NULL or 1 legacy default, 2 per-thread default,
 * DAMACY_STREAM_NONE): it is made to wait for the batch; ignored on the CPU. INVAL, OOM, CUDA. */
DAMACY_API damacy_status damacy_batch_dlpack(damacy_batch batch, void* stream,
                                             damacy_dl_managed_versioned** out, damacy_error* err);
DAMACY_API damacy_status damacy_batch_dlpack_legacy(damacy_batch batch, void* stream,
                                                    damacy_dl_managed** out, damacy_error* err);

/* ---- Inspection and one-shot reads ------------------------------------------------------------
 */

typedef struct damacy_array damacy_array;

/* One resolution level of an NGFF multiscale image. */
typedef struct damacy_level {
    const char* path;                    /* relative to the group */
    double scale[DAMACY_MAX_RANK];       /* physical size of a voxel per axis; 1 if not given */
    double translation[DAMACY_MAX_RANK]; /* physical position of voxel 0; 0 if not given */
} damacy_level;

/* Everything here belongs to the damacy_array. */
typedef struct damacy_array_info_t {
    const char* uri;
    uint32_t rank;
    int64_t shape[DAMACY_MAX_RANK];
    int64_t chunk_shape[DAMACY_MAX_RANK]; /* the unit of decoding, in array axes */
    int64_t
        shard_shape[DAMACY_MAX_RANK]; /* the unit of storage; equals chunk_shape without sharding */
    int32_t is_sharded;
    damacy_dtype dtype;
    int32_t is_big_endian;
    uint8_t fill_value[8]; /* bits, little-endian, dtype's size */
    uint32_t zarr_format;
    const char* codecs;     /* such as "sharding_indexed(transpose,bytes,zstd)" */
    const char* data_type;  /* as the metadata says it */
    const char* attributes; /* JSON text of the attributes; "{}" if none */
    const char* dimension_names[DAMACY_MAX_RANK]; /* NULL where there is none */
    const char* axis_names[DAMACY_MAX_RANK];      /* of NGFF; NULL where there is none */
    const char* axis_units[DAMACY_MAX_RANK];      /* of NGFF; NULL where there is none */
    uint32_t n_levels;                            /* 0: opened as a plain array */
    uint32_t level;
    const damacy_level* levels;
} damacy_array_info_t;

/* Reads the metadata at uri: an array, or an NGFF multiscale group, whose level config.level is
 * taken. Of config (may be NULL) level, store, allocator and link policy are used. Blocks on
 * storage. NOTFOUND, IO, DECODE, UNSUPPORTED, OOM. */
DAMACY_API damacy_status damacy_array_open(const damacy_config* config, const char* uri,
                                           damacy_array** out, damacy_error* err);
DAMACY_API void damacy_array_info(const damacy_array* array, damacy_array_info_t* out);
DAMACY_API void damacy_array_close(damacy_array* array);

/* Reads one box into host memory: dst is C order, [box extents], of config.dtype (NATIVE allowed),
 * dst_size bytes, which must fit exactly. Uses config (may be NULL) as damacy_create would, on the
 * CPU. Blocks. A failing chunk is an error whatever on_error says. */
DAMACY_API damacy_status damacy_read(const damacy_config* config, const damacy_sample* sample,
                                     void* dst, size_t dst_size, damacy_error* err);

/* One finding of damacy_verify. The error's strings end with the call. */
typedef void (*damacy_finding)(void* user, const damacy_error* finding);

typedef struct damacy_verify_result {
    uint64_t n_chunks;  /* decoded and checked */
    uint64_t n_missing; /* not stored: fill value */
    uint64_t n_bad;
    uint64_t size_stored;  /* bytes read */
    uint64_t size_decoded; /* bytes */
} damacy_verify_result;

/* Reads every shard index and chunk of an array and checks sizes and checksums; calls finding (may
 * be NULL) for each that is bad. OK also when there are findings. Blocks. */
DAMACY_API damacy_status damacy_verify(const damacy_config* config, const char* uri,
                                       damacy_finding finding, void* user,
                                       damacy_verify_result* out, damacy_error* err);

/* ---- Statistics -------------------------------------------------------------------------------
 */

typedef struct damacy_metric {
    uint64_t count;
    uint64_t total_ns; /* summed over threads */
    uint64_t best_ns;  /* 0 when count is 0 */
    uint64_t bytes_in;
    uint64_t bytes_out;
} damacy_metric;

typedef struct damacy_stats {
    damacy_metric metadata; /* documents and shard indexes: fetch and parse */
    damacy_metric plan;     /* per batch */
    damacy_metric read;     /* per coalesced read; bytes_out: compressed bytes that were wanted */
    damacy_metric transfer; /* host to device */
    damacy_metric decode;   /* per chunk on the CPU, per wave on a GPU */
    damacy_metric assemble; /* per chunk on the CPU, per wave on a GPU */
    damacy_metric pop_wait; /* time that poppers waited */
    uint64_t samples_pushed;
    uint64_t batches_delivered;
    uint64_t samples_failed;
    uint64_t chunks_touched; /* summed over samples: decodes without sharing */
    uint64_t chunks_decoded; /* each distinct chunk once per batch */
    uint64_t chunks_missing; /* not stored: fill value */
    uint64_t array_hits, array_misses;
    uint64_t index_hits, index_misses;
    uint64_t host_bytes_committed;
    uint64_t gpu_bytes_committed;
    uint64_t voxels_delivered;
    double read_amplification;   /* bytes read / compressed bytes of the chunks that were wanted */
    double decode_amplification; /* bytes decoded / bytes delivered in the source type */
} damacy_stats;

/* d NULL: zeros. Reset keeps committed bytes and cache hits and misses. */
DAMACY_API void damacy_stats_get(const damacy* d, damacy_stats* out);
DAMACY_API void damacy_stats_reset(damacy* d);

#ifdef __cplusplus
}
#endif
#endif /* DAMACY_H */

#if defined(DAMACY_IMPLEMENTATION) && !defined(DAMACY_IMPLEMENTATION_DONE)

#define DAMACY_IMPLEMENTATION_DONE

/* ==== src/base/system.h ==== */
/* Every system header of the implementation, in one place.
 *
 * damacy.h defines _GNU_SOURCE before its first include when DAMACY_IMPLEMENTATION is set. A system
 * header that was included earlier without it hides pread, openat2's flags and pthread names, so
 * that is an error here instead of a puzzle later. */

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif
#include <assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#if defined(__GLIBC__) && !defined(__USE_GNU)
#error "include damacy.h first in this file, or compile with -D_GNU_SOURCE"
#endif

/* ==== src/base/base.h ==== */
/* Small pure helpers: checked arithmetic, spans, little-endian loads and stores.
 *
 * damacy__add and damacy__mul return false on overflow and leave *out unspecified: every sum or
 * product of numbers that come from input goes through them. */

#define DAMACY__COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define DAMACY__MIN(a, b)    ((a) < (b) ? (a) : (b))
#define DAMACY__MAX(a, b)    ((a) > (b) ? (a) : (b))

/* Untrusted or constant bytes that somebody else owns. */
typedef struct damacy__span {
    const uint8_t* ptr;
    size_t size; /* bytes */
} damacy__span;

static inline bool damacy__add(uint64_t a, uint64_t b, uint64_t* out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool damacy__mul(uint64_t a, uint64_t b, uint64_t* out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Product of n extents, all of them >= 0; false on overflow of int64_t. */
static inline bool damacy__product(const int64_t* extents, uint32_t n, uint64_t* out)
{
    uint64_t product = 1;
    bool zero = false;

    for (uint32_t i = 0; i < n; i++) {
        if (extents[i] == 0) {
            zero = true;
        } else if (extents[i] < 0 || !damacy__mul(product, (uint64_t)extents[i], &product)) {
            return false;
        }
    }
    *out = zero ? 0 : product;
    return product <= INT64_MAX;
}

/* Rounds up to a multiple of a power of two; the caller has checked that it cannot overflow. */
static inline uint64_t damacy__align_up(uint64_t value, uint64_t power)
{
    return (value + power - 1) & ~(power - 1);
}

static inline uint64_t damacy__div_up(uint64_t value, uint64_t divisor)
{
    return value / divisor + (value % divisor != 0);
}

static inline damacy__span damacy__span_of(const void* ptr, size_t size)
{
    damacy__span span;

    span.ptr = (const uint8_t*)ptr;
    span.size = size;
    return span;
}

static inline uint16_t damacy__load_u16le(const void* src)
{
    const uint8_t* p = (const uint8_t*)src;

    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t damacy__load_u32le(const void* src)
{
    const uint8_t* p = (const uint8_t*)src;

    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t damacy__load_u64le(const void* src)
{
    const uint8_t* p = (const uint8_t*)src;

    return (uint64_t)damacy__load_u32le(p) | (uint64_t)damacy__load_u32le(p + 4) << 32;
}

static inline uint64_t damacy__load_u64be(const void* src)
{
    return __builtin_bswap64(damacy__load_u64le(src));
}

static inline void damacy__store_u32le(void* dst, uint32_t value)
{
    uint8_t* p = (uint8_t*)dst;

    for (uint32_t i = 0; i < 4; i++) {
        p[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline void damacy__store_u64le(void* dst, uint64_t value)
{
    uint8_t* p = (uint8_t*)dst;

    for (uint32_t i = 0; i < 8; i++) {
        p[i] = (uint8_t)(value >> (8 * i));
    }
}

/* Mixes bytes into 64 bits (FNV-1a with a final avalanche): for tables, not for security. */
static inline uint64_t damacy__hash(const void* src, size_t size, uint64_t seed)
{
    const uint8_t* p = (const uint8_t*)src;
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ seed;

    for (size_t i = 0; i < size; i++) {
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    }
    h ^= h >> 32;
    h *= UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Monotonic clock, nanoseconds. */
static inline uint64_t damacy__now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* ==== src/base/error.h ==== */
/* Makes errors: damacy__fail is the only function that writes a damacy_error's message, so a
 * breakpoint there stops at every failure. Non-printable bytes of file names and metadata are
 * escaped. */

/* Returns from the calling function when `call` fails. Only where nothing is held. */
#define DAMACY__TRY(call)                                \
    do {                                                 \
        const damacy_status damacy__try_status = (call); \
        if (damacy__try_status != DAMACY_OK) {           \
            return damacy__try_status;                   \
        }                                                \
    } while (0)

static void damacy__copy_escaped(char* dst, size_t capacity, const char* src);
static damacy_status damacy__fail(damacy_error* err, damacy_status status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
static void damacy__error_where(damacy_error* err, damacy_stage stage, const char* uri,
                                const char* chunk);

/* Copies text, cutting it to capacity and replacing control bytes and bytes that are not ASCII by
 * '?'. */
static void damacy__copy_escaped(char* dst, size_t capacity, const char* src)
{
    size_t n = 0;

    for (; src[n] != '\0' && n + 1 < capacity; n++) {
        dst[n] = (src[n] < 0x20 || src[n] > 0x7e) ? '?' : src[n];
    }
    dst[n] = '\0';
}

/* Sets status and message and returns status. The place (stage, sample, uri, chunk, offset) is
 * kept. */
static damacy_status damacy__fail(damacy_error* err, damacy_status status, const char* format, ...)
{
    char text[sizeof err->message];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    err->status = status;
    damacy__copy_escaped(err->message, sizeof err->message, text);
    return status;
}

/* Adds the place to an error, where it is not set yet. NULL leaves a field as it is. */
static void damacy__error_where(damacy_error* err, damacy_stage stage, const char* uri,
                                const char* chunk)
{
    if (err->stage == DAMACY_STAGE_NONE) {
        err->stage = stage;
    }
    if (uri && err->uri[0] == '\0') {
        damacy__copy_escaped(err->uri, sizeof err->uri, uri);
    }
    if (chunk && err->chunk[0] == '\0') {
        damacy__copy_escaped(err->chunk, sizeof err->chunk, chunk);
    }
}

/* ==== src/base/alloc.h ==== */
/* Host memory: typed, counted allocation through the user's allocator, under a byte budget.
 *
 * Every block is zeroed. damacy__new returns NULL when the product overflows, the budget is reached
 * or the allocator fails; the caller turns that into DAMACY_OOM or DAMACY_BUDGET with a message.
 * Free takes the count, so that the live bytes are exact without a header in front of the block. */

typedef struct damacy__alloc {
    damacy_allocator user; /* alloc == NULL: malloc and free */
    uint64_t budget;       /* bytes; 0 = none; set at create, then constant */
    uint64_t live_bytes;   /* atomic */
    uint64_t live_blocks;  /* atomic */
    uint64_t n_calls;      /* atomic: allocations asked for; steady state leaves it unchanged */
} damacy__alloc;

#define damacy__new(alloc, n, type) \
    ((type*)damacy__alloc_take(alloc, (uint64_t)(n), sizeof(type), 64))
#define damacy__free(alloc, ptr, n) damacy__alloc_give(alloc, ptr, (uint64_t)(n) * sizeof *(ptr))

static void* damacy__alloc_take(damacy__alloc* alloc, uint64_t n, uint64_t size,
                                uint64_t alignment);
static void damacy__alloc_give(damacy__alloc* alloc, void* ptr, uint64_t size);
static char* damacy__alloc_text(damacy__alloc* alloc, const char* text, size_t len);

/* Takes size bytes off the budget; false when it is reached. */
static bool damacy__alloc_charge(damacy__alloc* alloc, uint64_t size)
{
    const uint64_t live = __atomic_add_fetch(&alloc->live_bytes, size, __ATOMIC_RELAXED);

    if (alloc->budget != 0 && live > alloc->budget) {
        __atomic_sub_fetch(&alloc->live_bytes, size, __ATOMIC_RELAXED);
        return false;
    }
    return true;
}

/* n * size zeroed bytes; a count of 0 still gives a block. Alignment: a power of two, at most 4096.
 */
static void* damacy__alloc_take(damacy__alloc* alloc, uint64_t n, uint64_t size, uint64_t alignment)
{
    uint64_t bytes;
    void* ptr = NULL;

    __atomic_add_fetch(&alloc->n_calls, 1, __ATOMIC_RELAXED);
    if (!damacy__mul(n, size, &bytes) || bytes > INT64_MAX - 4096) {
        return NULL;
    }
    if (!damacy__alloc_charge(alloc, bytes)) {
        return NULL;
    }
    if (alloc->user.alloc) {
        ptr = alloc->user.alloc(alloc->user.user, (size_t)(bytes ? bytes : 1), (size_t)alignment);
        if (ptr) {
            memset(ptr, 0, (size_t)bytes);
        }
    } else if (bytes >= 65536) {
        /* calloc gives untouched pages of zeros: a large block costs memory only once it is used.
         */
        void* raw = calloc(1, (size_t)(bytes + alignment + sizeof(void*)));
        if (raw) {
            const uintptr_t at = (uintptr_t)raw + sizeof(void*) + alignment - 1;
            ptr = (void*)(at & ~(uintptr_t)(alignment - 1));
            ((void**)ptr)[-1] = raw;
        }
    } else if (posix_memalign(&ptr, (size_t)alignment, (size_t)(bytes ? bytes : 1)) != 0) {
        ptr = NULL;
    } else {
        memset(ptr, 0, (size_t)bytes);
    }
    if (!ptr) {
        __atomic_sub_fetch(&alloc->live_bytes, bytes, __ATOMIC_RELAXED);
        return NULL;
    }
    __atomic_add_fetch(&alloc->live_blocks, 1, __ATOMIC_RELAXED);
    return ptr;
}

/* Returns a block of size bytes; NULL is ignored. */
static void damacy__alloc_give(damacy__alloc* alloc, void* ptr, uint64_t size)
{
    if (!ptr) {
        return;
    }
    __atomic_sub_fetch(&alloc->live_bytes, size, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&alloc->live_blocks, 1, __ATOMIC_RELAXED);
    if (alloc->user.alloc) {
        alloc->user.free(alloc->user.user, ptr, (size_t)(size ? size : 1));
    } else if (size >= 65536) {
        free(((void**)ptr)[-1]);
    } else {
        free(ptr);
    }
}

/* A copy of len bytes of text with a final zero; free with damacy__free(alloc, text, len + 1). */
static char* damacy__alloc_text(damacy__alloc* alloc, const char* text, size_t len)
{
    char* copy = damacy__new(alloc, len + 1, char);

    if (copy && len) {
        memcpy(copy, text, len);
    }
    return copy;
}

/* ==== src/base/arena.h ==== */
/* Two allocators of offsets inside one range of bytes that is made once and never grows.
 *
 * A ring gives space in order and takes it back in any order; it is what reads pass through. An
 * arena gives the lowest place that fits, so that a few short-lived blocks stay in warm caches.
 * Neither touches the bytes, so both serve device memory too; neither locks, their owner does. */

typedef struct damacy__ring_block {
    uint64_t offset;
    uint64_t size; /* with what was skipped at the end of the range */
    bool is_free;
} damacy__ring_block;

typedef struct damacy__ring {
    damacy__ring_block* blocks; /* a circular queue in order of allocation */
    uint64_t n_capacity;        /* a power of two */
    uint64_t first;             /* sequence number of the oldest block */
    uint64_t next;              /* sequence number of the next block */
    uint64_t size;              /* bytes of the range */
    uint64_t head;              /* where the next block starts */
    uint64_t n_bytes;           /* in use, skipped ends included */
} damacy__ring;

static damacy_status damacy__ring_init(damacy__ring* ring, damacy__alloc* alloc, uint64_t size,
                                       uint64_t n_blocks, damacy_error* err);
static void damacy__ring_deinit(damacy__ring* ring, damacy__alloc* alloc);
static bool damacy__ring_take(damacy__ring* ring, uint64_t size, uint64_t* offset,
                              uint64_t* ticket);
static void damacy__ring_give(damacy__ring* ring, uint64_t ticket);

static damacy_status damacy__ring_init(damacy__ring* ring, damacy__alloc* alloc, uint64_t size,
                                       uint64_t n_blocks, damacy_error* err)
{
    uint64_t n = 16;

    while (n < n_blocks) {
        n *= 2;
    }
    memset(ring, 0, sizeof *ring);
    ring->blocks = damacy__new(alloc, n, damacy__ring_block);
    if (!ring->blocks) {
        return damacy__fail(err, DAMACY_OOM, "ring of %" PRIu64 " blocks", n);
    }
    ring->n_capacity = n;
    ring->size = size;
    return DAMACY_OK;
}

static void damacy__ring_deinit(damacy__ring* ring, damacy__alloc* alloc)
{
    damacy__free(alloc, ring->blocks, ring->n_capacity);
    memset(ring, 0, sizeof *ring);
}

/* Gives size bytes (the caller has rounded up to its alignment); false when there is no room now. A
 * block never wraps: what is left at the end of the range is skipped with it. */
static bool damacy__ring_take(damacy__ring* ring, uint64_t size, uint64_t* offset, uint64_t* ticket)
{
    uint64_t skipped = 0;
    damacy__ring_block* block;

    if (ring->n_bytes == 0) {
        ring->head = 0;
    }
    if (size > ring->size || ring->next - ring->first == ring->n_capacity) {
        return false;
    }
    if (size > ring->size - ring->head) {
        skipped = ring->size - ring->head;
    }
    if (skipped + size > ring->size - ring->n_bytes) {
        return false;
    }
    block = &ring->blocks[ring->next & (ring->n_capacity - 1)];
    block->offset = skipped ? 0 : ring->head;
    block->size = skipped + size;
    block->is_free = false;
    ring->head = block->offset + size;
    ring->n_bytes += block->size;
    *offset = block->offset;
    *ticket = ring->next++;
    return true;
}

/* Takes a block back; its bytes are reused once all older blocks are back too. */
static void damacy__ring_give(damacy__ring* ring, uint64_t ticket)
{
    ring->blocks[ticket & (ring->n_capacity - 1)].is_free = true;
    while (ring->first != ring->next) {
        damacy__ring_block* block = &ring->blocks[ring->first & (ring->n_capacity - 1)];
        if (!block->is_free) {
            break;
        }
        ring->n_bytes -= block->size;
        ring->first++;
    }
}

enum { DAMACY__ARENA_BLOCKS = 2048 };

typedef struct damacy__arena_block {
    uint64_t offset;
    uint64_t size;
} damacy__arena_block;

/* Blocks in use, sorted by offset. */
typedef struct damacy__arena {
    damacy__arena_block* blocks;
    uint32_t n_blocks;
    uint64_t size;
} damacy__arena;

static damacy_status damacy__arena_init(damacy__arena* arena, damacy__alloc* alloc, uint64_t size,
                                        damacy_error* err)
{
    memset(arena, 0, sizeof *arena);
    arena->blocks = damacy__new(alloc, DAMACY__ARENA_BLOCKS, damacy__arena_block);
    if (!arena->blocks) {
        return damacy__fail(err, DAMACY_OOM, "arena");
    }
    arena->size = size;
    return DAMACY_OK;
}

static void damacy__arena_deinit(damacy__arena* arena, damacy__alloc* alloc)
{
    damacy__free(alloc, arena->blocks, DAMACY__ARENA_BLOCKS);
    memset(arena, 0, sizeof *arena);
}

/* The lowest free range of size bytes; false when there is none now. */
static bool damacy__arena_take(damacy__arena* arena, uint64_t size, uint64_t* offset)
{
    uint64_t at = 0;
    uint32_t i = 0;

    if (arena->n_blocks == DAMACY__ARENA_BLOCKS || size > arena->size) {
        return false;
    }
    while (i < arena->n_blocks && arena->blocks[i].offset - at < size) {
        at = arena->blocks[i].offset + arena->blocks[i].size;
        i++;
    }
    if (i == arena->n_blocks && arena->size - at < size) {
        return false;
    }
    memmove(&arena->blocks[i + 1], &arena->blocks[i],
            (arena->n_blocks - i) * sizeof arena->blocks[0]);
    arena->blocks[i].offset = at;
    arena->blocks[i].size = size;
    arena->n_blocks++;
    *offset = at;
    return true;
}

static void damacy__arena_give(damacy__arena* arena, uint64_t offset)
{
    uint32_t i = 0;

    while (i < arena->n_blocks && arena->blocks[i].offset != offset) {
        i++;
    }
    assert(i < arena->n_blocks);
    arena->n_blocks--;
    memmove(&arena->blocks[i], &arena->blocks[i + 1],
            (arena->n_blocks - i) * sizeof arena->blocks[0]);
}

/* ==== src/base/crc32c.h ==== */
/* CRC-32C (RFC 3720 appendix B.4), as stored by Zarr's crc32c codec and shard indexes.
 *
 * On x86-64 with SSE4.2 the crc32 instruction runs on three parts at once, which hides its latency;
 * the parts are joined by multiplying with powers of x modulo the polynomial. Elsewhere: a table.
 */

/* Polynomial 0x1EDC6F41, bits reflected. */
#define DAMACY__CRC32C_POLYNOMIAL UINT32_C(0x82F63B78)

static uint32_t damacy__crc32c(const void* src, size_t size);

/* The checksum register after one byte, for each value of it. */
static const uint32_t damacy__crc32c_table[256] = {
    0x00000000, 0xf26b8303, 0xe13b70f7, 0x1350f3f4, 0xc79a971f, 0x35f1141c, 0x26a1e7e8, 0xd4ca64eb,
    0x8ad958cf, 0x78b2dbcc, 0x6be22838, 0x9989ab3b, 0x4d43cfd0, 0xbf284cd3, 0xac78bf27, 0x5e133c24,
    0x105ec76f, 0xe235446c, 0xf165b798, 0x030e349b, 0xd7c45070, 0x25afd373, 0x36ff2087, 0xc494a384,
    0x9a879fa0, 0x68ec1ca3, 0x7bbcef57, 0x89d76c54, 0x5d1d08bf, 0xaf768bbc, 0xbc267848, 0x4e4dfb4b,
    0x20bd8ede, 0xd2d60ddd, 0xc186fe29, 0x33ed7d2a, 0xe72719c1, 0x154c9ac2, 0x061c6936, 0xf477ea35,
    0xaa64d611, 0x580f5512, 0x4b5fa6e6, 0xb93425e5, 0x6dfe410e, 0x9f95c20d, 0x8cc531f9, 0x7eaeb2fa,
    0x30e349b1, 0xc288cab2, 0xd1d83946, 0x23b3ba45, 0xf779deae, 0x05125dad, 0x1642ae59, 0xe4292d5a,
    0xba3a117e, 0x4851927d, 0x5b016189, 0xa96ae28a, 0x7da08661, 0x8fcb0562, 0x9c9bf696, 0x6ef07595,
    0x417b1dbc, 0xb3109ebf, 0xa0406d4b, 0x522bee48, 0x86e18aa3, 0x748a09a0, 0x67dafa54, 0x95b17957,
    0xcba24573, 0x39c9c670, 0x2a993584, 0xd8f2b687, 0x0c38d26c, 0xfe53516f, 0xed03a29b, 0x1f682198,
    0x5125dad3, 0xa34e59d0, 0xb01eaa24, 0x42752927, 0x96bf4dcc, 0x64d4cecf, 0x77843d3b, 0x85efbe38,
    0xdbfc821c, 0x2997011f, 0x3ac7f2eb, 0xc8ac71e8, 0x1c661503, 0xee0d9600, 0xfd5d65f4, 0x0f36e6f7,
    0x61c69362, 0x93ad1061, 0x80fde395, 0x72966096, 0xa65c047d, 0x5437877e, 0x4767748a, 0xb50cf789,
    0xeb1fcbad, 0x197448ae, 0x0a24bb5a, 0xf84f3859, 0x2c855cb2, 0xdeeedfb1, 0xcdbe2c45, 0x3fd5af46,
    0x7198540d, 0x83f3d70e, 0x90a324fa, 0x62c8a7f9, 0xb602c312, 0x44694011, 0x5739b3e5, 0xa55230e6,
    0xfb410cc2, 0x092a8fc1, 0x1a7a7c35, 0xe811ff36, 0x3cdb9bdd, 0xceb018de, 0xdde0eb2a, 0x2f8b6829,
    0x82f63b78, 0x709db87b, 0x63cd4b8f, 0x91a6c88c, 0x456cac67, 0xb7072f64, 0xa457dc90, 0x563c5f93,
    0x082f63b7, 0xfa44e0b4, 0xe9141340, 0x1b7f9043, 0xcfb5f4a8, 0x3dde77ab, 0x2e8e845f, 0xdce5075c,
    0x92a8fc17, 0x60c37f14, 0x73938ce0, 0x81f80fe3, 0x55326b08, 0xa759e80b, 0xb4091bff, 0x466298fc,
    0x1871a4d8, 0xea1a27db, 0xf94ad42f, 0x0b21572c, 0xdfeb33c7, 0x2d80b0c4, 0x3ed04330, 0xccbbc033,
    0xa24bb5a6, 0x502036a5, 0x4370c551, 0xb11b4652, 0x65d122b9, 0x97baa1ba, 0x84ea524e, 0x7681d14d,
    0x2892ed69, 0xdaf96e6a, 0xc9a99d9e, 0x3bc21e9d, 0xef087a76, 0x1d63f975, 0x0e330a81, 0xfc588982,
    0xb21572c9, 0x407ef1ca, 0x532e023e, 0xa145813d, 0x758fe5d6, 0x87e466d5, 0x94b49521, 0x66df1622,
    0x38cc2a06, 0xcaa7a905, 0xd9f75af1, 0x2b9cd9f2, 0xff56bd19, 0x0d3d3e1a, 0x1e6dcdee, 0xec064eed,
    0xc38d26c4, 0x31e6a5c7, 0x22b65633, 0xd0ddd530, 0x0417b1db, 0xf67c32d8, 0xe52cc12c, 0x1747422f,
    0x49547e0b, 0xbb3ffd08, 0xa86f0efc, 0x5a048dff, 0x8ecee914, 0x7ca56a17, 0x6ff599e3, 0x9d9e1ae0,
    0xd3d3e1ab, 0x21b862a8, 0x32e8915c, 0xc083125f, 0x144976b4, 0xe622f5b7, 0xf5720643, 0x07198540,
    0x590ab964, 0xab613a67, 0xb831c993, 0x4a5a4a90, 0x9e902e7b, 0x6cfbad78, 0x7fab5e8c, 0x8dc0dd8f,
    0xe330a81a, 0x115b2b19, 0x020bd8ed, 0xf0605bee, 0x24aa3f05, 0xd6c1bc06, 0xc5914ff2, 0x37faccf1,
    0x69e9f0d5, 0x9b8273d6, 0x88d28022, 0x7ab90321, 0xae7367ca, 0x5c18e4c9, 0x4f48173d, 0xbd23943e,
    0xf36e6f75, 0x0105ec76, 0x12551f82, 0xe03e9c81, 0x34f4f86a, 0xc69f7b69, 0xd5cf889d, 0x27a40b9e,
    0x79b737ba, 0x8bdcb4b9, 0x988c474d, 0x6ae7c44e, 0xbe2da0a5, 0x4c4623a6, 0x5f16d052, 0xad7d5351,
};

/* Feeds bytes into the register, byte by byte. */
static uint32_t damacy__crc32c_bytes(uint32_t crc, const uint8_t* p, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        crc = damacy__crc32c_table[(crc ^ p[i]) & 0xff] ^ crc >> 8;
    }
    return crc;
}

#if defined(__x86_64__)

/* Bytes of each of the three parts, and what n zero bytes do to the register: multiply it by
 * x^(8n) modulo the polynomial. */
#define DAMACY__CRC32C_PART  4096
#define DAMACY__CRC32C_SKIP1 UINT32_C(0x35d73a62) /* n = 4096 */
#define DAMACY__CRC32C_SKIP2 UINT32_C(0x28461564) /* n = 8192 */

/* Product of two polynomials, bits reflected (bit 31 is x^0). */
static uint32_t damacy__crc32c_multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (uint32_t i = 0; i < 32; i++) {
        product ^= b & (uint32_t) - (int32_t)(a >> 31);
        a <<= 1;
        b = b >> 1 ^ (DAMACY__CRC32C_POLYNOMIAL & (uint32_t) - (int32_t)(b & 1));
    }
    return product;
}

__attribute__((target("sse4.2"))) static uint32_t damacy__crc32c_fast(uint32_t crc,
                                                                      const uint8_t* p, size_t size)
{
    while (size >= 3 * DAMACY__CRC32C_PART) {
        uint64_t a = crc;
        uint64_t b = 0;
        uint64_t c = 0;
        for (size_t i = 0; i < DAMACY__CRC32C_PART; i += 8) {
            uint64_t words[3];
            memcpy(&words[0], p + i, 8);
            memcpy(&words[1], p + i + DAMACY__CRC32C_PART, 8);
            memcpy(&words[2], p + i + 2 * DAMACY__CRC32C_PART, 8);
            a = __builtin_ia32_crc32di(a, words[0]);
            b = __builtin_ia32_crc32di(b, words[1]);
            c = __builtin_ia32_crc32di(c, words[2]);
        }
        crc = damacy__crc32c_multiply((uint32_t)a, DAMACY__CRC32C_SKIP2) ^
              damacy__crc32c_multiply((uint32_t)b, DAMACY__CRC32C_SKIP1) ^ (uint32_t)c;
        p += 3 * DAMACY__CRC32C_PART;
        size -= 3 * DAMACY__CRC32C_PART;
    }
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = (uint32_t)__builtin_ia32_crc32di(crc, word);
    }
    for (; size > 0; p++, size--) {
        crc = __builtin_ia32_crc32qi(crc, *p);
    }
    return crc;
}
#endif

static uint32_t damacy__crc32c(const void* src, size_t size)
{
    const uint8_t* p = (const uint8_t*)src;

#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
        return ~damacy__crc32c_fast(UINT32_MAX, p, size);
    }
#endif
    return ~damacy__crc32c_bytes(UINT32_MAX, p, size);
}

/* ==== src/base/table.h ==== */
/* An intrusive hash table with a least-recently-used list: keys to records that the owner embeds.
 *
 * The table allocates only its buckets, at init. Records are found by a 64-bit hash and a
 * comparison that the caller supplies; the table takes no lock, its owner does. */

/* Embed as the first member of a record. */
typedef struct damacy__entry {
    struct damacy__entry* chain; /* next in the bucket */
    struct damacy__entry* newer; /* towards the most recently used */
    struct damacy__entry* older;
    uint64_t hash;
} damacy__entry;

typedef struct damacy__table {
    damacy__entry** buckets;
    uint64_t n_buckets; /* a power of two */
    uint64_t n_entries;
    damacy__entry* newest;
    damacy__entry* oldest;
} damacy__table;

/* n_expected sets the number of buckets; more entries than that only make chains longer. */
static damacy_status damacy__table_init(damacy__table* table, damacy__alloc* alloc,
                                        uint64_t n_expected, damacy_error* err)
{
    uint64_t n = 16;

    while (n < n_expected && n < (UINT64_C(1) << 24)) {
        n *= 2;
    }
    memset(table, 0, sizeof *table);
    table->buckets = damacy__new(alloc, n, damacy__entry*);
    if (!table->buckets) {
        return damacy__fail(err, DAMACY_OOM, "table of %" PRIu64 " buckets", n);
    }
    table->n_buckets = n;
    return DAMACY_OK;
}

/* Frees the buckets; the records belong to their owner. */
static void damacy__table_deinit(damacy__table* table, damacy__alloc* alloc)
{
    damacy__free(alloc, table->buckets, table->n_buckets);
    memset(table, 0, sizeof *table);
}

static void damacy__table_unlink(damacy__table* table, damacy__entry* entry)
{
    if (entry->newer) {
        entry->newer->older = entry->older;
    } else {
        table->newest = entry->older;
    }
    if (entry->older) {
        entry->older->newer = entry->newer;
    } else {
        table->oldest = entry->newer;
    }
    entry->newer = entry->older = NULL;
}

static void damacy__table_link(damacy__table* table, damacy__entry* entry)
{
    entry->newer = NULL;
    entry->older = table->newest;
    if (table->newest) {
        table->newest->newer = entry;
    } else {
        table->oldest = entry;
    }
    table->newest = entry;
}

/* First entry of the hash's chain; walk with damacy__table_next and compare keys. */
static damacy__entry* damacy__table_first(const damacy__table* table, uint64_t hash)
{
    damacy__entry* entry = table->buckets[hash & (table->n_buckets - 1)];

    while (entry && entry->hash != hash) {
        entry = entry->chain;
    }
    return entry;
}

static damacy__entry* damacy__table_next(const damacy__entry* entry)
{
    damacy__entry* next = entry->chain;

    while (next && next->hash != entry->hash) {
        next = next->chain;
    }
    return next;
}

static void damacy__table_insert(damacy__table* table, damacy__entry* entry, uint64_t hash)
{
    damacy__entry** bucket = &table->buckets[hash & (table->n_buckets - 1)];

    entry->hash = hash;
    entry->chain = *bucket;
    *bucket = entry;
    damacy__table_link(table, entry);
    table->n_entries++;
}

/* Marks an entry as the most recently used. */
static void damacy__table_touch(damacy__table* table, damacy__entry* entry)
{
    if (table->newest != entry) {
        damacy__table_unlink(table, entry);
        damacy__table_link(table, entry);
    }
}

static void damacy__table_remove(damacy__table* table, damacy__entry* entry)
{
    damacy__entry** at = &table->buckets[entry->hash & (table->n_buckets - 1)];

    while (*at != entry) {
        at = &(*at)->chain;
    }
    *at = entry->chain;
    entry->chain = NULL;
    damacy__table_unlink(table, entry);
    table->n_entries--;
}

/* ==== src/base/sync.h ==== */
/* Threads, locks and a task pool.
 *
 * Tasks are records that their owner embeds (no allocation to submit one); a job must stay alive
 * until its function has run. Every thread that is made here blocks all signals, so that none of
 * the host program's handlers runs on it. */

typedef struct damacy__mutex {
    pthread_mutex_t handle;
} damacy__mutex;

typedef struct damacy__condition {
    pthread_cond_t handle; /* waits on CLOCK_MONOTONIC */
} damacy__condition;

/* Work for a pool. Set function and context, then submit. */
typedef struct damacy__task {
    void (*function)(void* context, uint32_t worker); /* worker: index of the running thread */
    void* context;
    struct damacy__task* next; /* guarded by the pool's mutex */
} damacy__task;

typedef struct damacy__pool {
    damacy__alloc* alloc;
    pthread_t* threads;
    uint32_t n_threads;
    uint32_t n_capacity;
    char name[12];
    damacy__mutex mutex;
    damacy__condition wake;
    damacy__task* head[2]; /* guarded by mutex; [0] before [1] */
    damacy__task* tail[2]; /* guarded by mutex */
    uint32_t n_started;   /* guarded by mutex: gives each thread its index */
    uint32_t n_idle;      /* guarded by mutex */
    bool stop;            /* guarded by mutex: queued jobs still run */
} damacy__pool;

enum { DAMACY__URGENT = 0, DAMACY__NORMAL = 1 };

static damacy_status damacy__mutex_init(damacy__mutex* mutex, damacy_error* err);
static damacy_status damacy__condition_init(damacy__condition* condition, damacy_error* err);
static bool damacy__condition_wait_until(damacy__condition* condition, damacy__mutex* mutex,
                                         uint64_t deadline_ns);
static damacy_status damacy__thread_start(pthread_t* thread, const char* name,
                                          void* (*function)(void*), void* context,
                                          damacy_error* err);
static damacy_status damacy__pool_init(damacy__pool* pool, damacy__alloc* alloc, uint32_t n_threads,
                                       const char* name, damacy_error* err);
static void damacy__pool_submit(damacy__pool* pool, damacy__task* job, int priority);
static void damacy__pool_deinit(damacy__pool* pool);

static damacy_status damacy__mutex_init(damacy__mutex* mutex, damacy_error* err)
{
    const int code = pthread_mutex_init(&mutex->handle, NULL);

    return code == 0 ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "no mutex: errno %d", code);
}

static inline void damacy__mutex_deinit(damacy__mutex* mutex)
{
    pthread_mutex_destroy(&mutex->handle);
}
static inline void damacy__lock(damacy__mutex* mutex)
{
    pthread_mutex_lock(&mutex->handle);
}
static inline void damacy__unlock(damacy__mutex* mutex)
{
    pthread_mutex_unlock(&mutex->handle);
}

static damacy_status damacy__condition_init(damacy__condition* condition, damacy_error* err)
{
    pthread_condattr_t attributes;
    int code = pthread_condattr_init(&attributes);

    if (code == 0) {
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        code = pthread_cond_init(&condition->handle, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    return code == 0 ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "no condition: errno %d", code);
}

static inline void damacy__condition_deinit(damacy__condition* condition)
{
    pthread_cond_destroy(&condition->handle);
}
static inline void damacy__wait(damacy__condition* condition, damacy__mutex* mutex)
{
    pthread_cond_wait(&condition->handle, &mutex->handle);
}
static inline void damacy__signal(damacy__condition* condition)
{
    pthread_cond_signal(&condition->handle);
}
static inline void damacy__broadcast(damacy__condition* condition)
{
    pthread_cond_broadcast(&condition->handle);
}

/* Waits until woken or until damacy__now_ns() reaches the deadline; false when that has passed. */
static bool damacy__condition_wait_until(damacy__condition* condition, damacy__mutex* mutex,
                                         uint64_t deadline_ns)
{
    struct timespec until;

    until.tv_sec = (time_t)(deadline_ns / UINT64_C(1000000000));
    until.tv_nsec = (long)(deadline_ns % UINT64_C(1000000000));
    return pthread_cond_timedwait(&condition->handle, &mutex->handle, &until) != ETIMEDOUT;
}

/* Starts a joinable thread that blocks all signals. The name is cut to 15 bytes. */
static damacy_status damacy__thread_start(pthread_t* thread, const char* name,
                                          void* (*function)(void*), void* context,
                                          damacy_error* err)
{
    sigset_t all;
    sigset_t before;
    char short_name[16];
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(thread, NULL, function, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        return damacy__fail(err, DAMACY_OOM, "cannot start thread %s: errno %d", name, code);
    }
    (void)snprintf(short_name, sizeof short_name, "%.15s", name);
    pthread_setname_np(*thread, short_name);
    return DAMACY_OK;
}

/* Next job in priority order, or NULL once the pool stops and nothing is queued. Holds the mutex.
 */
static damacy__task* damacy__pool_take(damacy__pool* pool)
{
    for (;;) {
        for (int p = 0; p < 2; p++) {
            damacy__task* job = pool->head[p];
            if (job) {
                pool->head[p] = job->next;
                if (!job->next) {
                    pool->tail[p] = NULL;
                }
                return job;
            }
        }
        if (pool->stop) {
            return NULL;
        }
        pool->n_idle++;
        damacy__wait(&pool->wake, &pool->mutex);
        pool->n_idle--;
    }
}

static void* damacy__pool_main(void* context)
{
    damacy__pool* pool = (damacy__pool*)context;
    uint32_t worker;

    damacy__lock(&pool->mutex);
    worker = pool->n_started++;
    for (;;) {
        damacy__task* job = damacy__pool_take(pool);
        if (!job) {
            break;
        }
        damacy__unlock(&pool->mutex);
        job->function(job->context, worker);
        damacy__lock(&pool->mutex);
    }
    damacy__unlock(&pool->mutex);
    return NULL;
}

/* Starts n_threads threads. On failure those already started are joined and nothing is held. A
 * zeroed pool may be passed to damacy__pool_deinit. */
static damacy_status damacy__pool_init(damacy__pool* pool, damacy__alloc* alloc, uint32_t n_threads,
                                       const char* name, damacy_error* err)
{
    memset(pool, 0, sizeof *pool);
    (void)snprintf(pool->name, sizeof pool->name, "%s", name);
    pool->threads = damacy__new(alloc, n_threads, pthread_t);
    if (!pool->threads) {
        return damacy__fail(err, DAMACY_OOM, "pool %s of %u threads", name, n_threads);
    }
    pool->alloc = alloc;
    pool->n_capacity = n_threads;
    if (damacy__mutex_init(&pool->mutex, err) != DAMACY_OK) {
        damacy__free(alloc, pool->threads, n_threads);
        memset(pool, 0, sizeof *pool);
        return DAMACY_OOM;
    }
    if (damacy__condition_init(&pool->wake, err) != DAMACY_OK) {
        damacy__mutex_deinit(&pool->mutex);
        damacy__free(alloc, pool->threads, n_threads);
        memset(pool, 0, sizeof *pool);
        return DAMACY_OOM;
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        char thread_name[32];
        (void)snprintf(thread_name, sizeof thread_name, "%s-%u", name, i);
        if (damacy__thread_start(&pool->threads[i], thread_name, damacy__pool_main, pool, err) !=
            DAMACY_OK) {
            damacy__pool_deinit(pool);
            return DAMACY_OOM;
        }
        pool->n_threads++;
    }
    return DAMACY_OK;
}

/* Queues a job; never blocks, never fails. Any thread, jobs of the pool included. */
static void damacy__pool_submit(damacy__pool* pool, damacy__task* job, int priority)
{
    damacy__lock(&pool->mutex);
    job->next = NULL;
    if (pool->tail[priority]) {
        pool->tail[priority]->next = job;
    } else {
        pool->head[priority] = job;
    }
    pool->tail[priority] = job;
    if (pool->n_idle > 0) {
        damacy__signal(&pool->wake);
    }
    damacy__unlock(&pool->mutex);
}

/* Runs what is queued, joins the threads and frees. A zeroed pool is left alone. */
static void damacy__pool_deinit(damacy__pool* pool)
{
    if (!pool->threads) {
        return;
    }
    damacy__lock(&pool->mutex);
    pool->stop = true;
    damacy__broadcast(&pool->wake);
    damacy__unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->n_threads; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    damacy__condition_deinit(&pool->wake);
    damacy__mutex_deinit(&pool->mutex);
    damacy__free(pool->alloc, pool->threads, pool->n_capacity);
    memset(pool, 0, sizeof *pool);
}

/* ==== kernels/abi.h ==== */
/* Types, job records and status codes shared by the host and every kernel: plain C that is also
 * C++ for NVRTC, which has no standard headers. Addresses are uint64_t because the host must not
 * dereference them; a kernel casts once, at the top. Sizes are in bytes unless named otherwise.
 * Kernels and this file include each other by the path from the repository root. */

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#else
#include <assert.h>
#include <stdint.h>
#endif

/* A size that is not known before decoding. */
#define DAMACY__SIZE_UNKNOWN 0xffffffffffffffffull

/* Most bytes that one job may produce or consume. */
#define DAMACY__JOB_SIZE_MAX 0x7fffffffull

/* One piece of work of a decoder: bytes in, bytes out. Any alignment, any size; neither range may
 * overlap the output of another job. A table of jobs may be written by the host or by a kernel
 * that runs earlier on the same stream. */
typedef struct damacy__job {
    uint64_t src;      /* device address of the first compressed byte */
    uint64_t dst;      /* device address of the first output byte */
    uint64_t src_size; /* at most DAMACY__JOB_SIZE_MAX */
    uint64_t
        dst_capacity; /* bytes that may be written at dst; more than the maximum is the maximum */
    uint64_t expected_size; /* output bytes demanded exactly, or DAMACY__SIZE_UNKNOWN */
    uint32_t flags;         /* DAMACY__JOB_* flags */
    uint32_t tag;           /* the caller's; kernels do not read it */
} damacy__job;
static_assert(sizeof(damacy__job) == 48, "ABI");

enum {
    DAMACY__JOB_NO_CHECKSUM = 1, /* checksums in the data are not verified */
    DAMACY__JOB_SKIP = 2 /* nothing is read or written; the result says DAMACY__JOB_SKIPPED */
};

/* What became of a job. The status is written last. */
typedef struct damacy__job_result {
    uint64_t size;         /* output bytes, 0 unless the status is OK; see also NO_SPACE */
    uint64_t error_offset; /* byte of the source at which the first error was noticed */
    uint32_t status;       /* one of DAMACY__JOB_OK ... */
    uint32_t zero;
} damacy__job_result;
static_assert(sizeof(damacy__job_result) == 24, "ABI");

/* Status of a job. Every code but OK leaves the output range with unspecified bytes (never bytes
 * from outside the source), and no code ever concerns another job. Ordered: codes below
 * TRUNCATED say nothing about the data. */
enum {
    DAMACY__JOB_OK = 0,
    DAMACY__JOB_NOT_RUN = 1,      /* the kernels did not reach the job */
    DAMACY__JOB_SKIPPED = 2,      /* the job asked for it, or what made the job had failed */
    DAMACY__JOB_NEED_SCRATCH = 3, /* scratch was too small: run the job again in a smaller wave */
    DAMACY__JOB_TOO_LARGE = 4,    /* source above DAMACY__JOB_SIZE_MAX */
    DAMACY__JOB_NO_SPACE = 5,     /* output does not fit; size holds the need where it is known */
    DAMACY__JOB_UNSUPPORTED = 6,  /* a legal feature that is not implemented (dictionary, ...) */
    DAMACY__JOB_TRUNCATED = 16,   /* source ends inside a structure */
    DAMACY__JOB_BAD_MAGIC = 17,
    DAMACY__JOB_BAD_HEADER = 18,
    DAMACY__JOB_BAD_BLOCK = 19,
    DAMACY__JOB_BAD_LITERALS = 20,
    DAMACY__JOB_BAD_HUFFMAN = 21,
    DAMACY__JOB_BAD_TABLE = 22,
    DAMACY__JOB_BAD_SEQUENCES = 23,
    DAMACY__JOB_BAD_OFFSET = 24, /* a match starts before the data */
    DAMACY__JOB_SIZE_MISMATCH =
        25, /* decoded size is not the size in the frame or the one demanded */
    DAMACY__JOB_BAD_CHECKSUM = 26,
    DAMACY__JOB_TRAILING = 27 /* bytes after the end that are not a frame */
};

/* ==== kernels/assemble_abi.h ==== */
/* Records of assembling, shared by the host and the kernels: what goes from a decoded chunk, or
 * from a constant, into a sample of a batch. Plain C that is also C++ for NVRTC.
 *
 * A copy walks n_axes nested axes, the last one fastest. Voxel (i0, i1, ...) comes from source
 * element sum(i * src_stride) and goes to output element sum(i * dst_stride), both relative to the
 * record's addresses. Crops, transposition, clamping (src_stride 0) and reflection (src_stride < 0)
 * are all just strides; the planner guarantees that every element lies inside the chunk and inside
 * the sample, and that no two records of a batch write the same output voxel. */

typedef struct damacy__axis {
    int64_t src_stride; /* elements */
    int64_t dst_stride; /* elements */
    uint64_t extent;    /* voxels, at least 1 */
} damacy__axis;
static_assert(sizeof(damacy__axis) == 24, "ABI");

enum {
    DAMACY__COPY_SWAP = 1, /* source elements are big-endian */
    DAMACY__COPY_FILL = 2  /* no source: the 8 bytes of fill, in the source type, little-endian */
};
#define DAMACY__NO_CHANNEL 0xffffffffu

typedef struct damacy__copy {
    uint64_t src;          /* address of the element at index 0 of every axis; unused for a fill */
    uint64_t dst;          /* address of the output voxel at index 0 of every axis */
    uint64_t fill;         /* bits of the fill value in the source type, if COPY_FILL */
    uint32_t first_axis;   /* index into the batch's array of damacy__axis */
    uint32_t n_axes;       /* at least 1; adjacent axes that run on have been merged */
    uint32_t src_dtype;    /* damacy_dtype */
    uint32_t flags;        /* DAMACY__COPY_* */
    uint32_t channel_axis; /* which of the n_axes is the channel axis, or DAMACY__NO_CHANNEL */
    uint32_t channel;      /* channel at index 0 of that axis, or the channel of the whole record */
    uint32_t n_voxels_low; /* product of the extents, low and high halves */
    uint32_t n_voxels_high;
} damacy__copy;
static_assert(sizeof(damacy__copy) == 56, "ABI");

/* ==== src/format/layout.h ==== */
/* The normalised description of an array: everything that planning, reading and decoding need, in
 * the axes of the array, however the metadata expressed it.
 *
 * An object is one cell of the chunk grid: one stored chunk, or one shard. A chunk is the unit of
 * decoding: the object itself, or an inner chunk of the outermost shard. Transpositions before and
 * inside the sharding codec are folded into the strides here, and transposed shard indexes are
 * undone when an index is decoded, so that no other module knows about them. */

typedef enum damacy__codec_kind {
    DAMACY__CODEC_BYTES = 1, /* array to bytes */
    DAMACY__CODEC_SHARDING,  /* array to bytes; sharding is set */
    DAMACY__CODEC_TRANSPOSE, /* array to array; order is set */
    DAMACY__CODEC_ZSTD,      /* bytes to bytes from here on */
    DAMACY__CODEC_BLOSC,
    DAMACY__CODEC_GZIP, /* RFC 1952 */
    DAMACY__CODEC_ZLIB, /* RFC 1950 */
    DAMACY__CODEC_LZ4,  /* 32-bit little-endian size, then an LZ4 block */
    DAMACY__CODEC_CRC32C
} damacy__codec_kind;

/* One codec of a chain. */
typedef struct damacy__codec {
    uint32_t kind;
    uint32_t big_endian; /* BYTES */
    /* TRANSPOSE: encoded axis i is decoded axis order[i]. A shard index has one more axis. */
    uint32_t order[DAMACY_MAX_RANK + 1];
    struct damacy__sharding* sharding; /* SHARDING; owned by the document */
} damacy__codec;

/* Codecs in the order of encoding: array to array, array to bytes, bytes to bytes. */
typedef struct damacy__chain {
    damacy__codec* codecs;
    uint32_t n;
} damacy__chain;

/* The sharding codec, in the axes that it sees (after transpositions before it). */
typedef struct damacy__sharding {
    int64_t chunk_shape[DAMACY_MAX_RANK];
    int64_t grid[DAMACY_MAX_RANK]; /* chunks along each axis */
    uint64_t n_entries;            /* chunks in a shard */
    uint64_t index_size;           /* bytes as stored */
    damacy__chain chunk_chain;
    damacy__chain index_chain; /* only codecs of fixed size: bytes, transpose, crc32c */
    uint32_t index_at_start;
} damacy__sharding;

/* Where a chunk lies in its object; both fields all ones: it is not stored. */
typedef struct damacy__extent {
    uint64_t offset; /* bytes from the start of the object */
    uint64_t size;   /* bytes */
} damacy__extent;

typedef struct damacy__layout {
    uint32_t rank;
    damacy_dtype dtype;
    uint32_t item_size;  /* bytes per voxel */
    uint32_t big_endian; /* of decoded chunks; always 0 when is_nested */
    uint64_t fill;       /* bits of the fill value, little-endian, in the source type */
    int64_t shape[DAMACY_MAX_RANK];
    int64_t object_shape[DAMACY_MAX_RANK]; /* the chunk grid's chunk_shape */
    int64_t chunk_shape[DAMACY_MAX_RANK];  /* equals object_shape without sharding */
    /* Elements between neighbours along each array axis in a decoded chunk. */
    int64_t chunk_stride[DAMACY_MAX_RANK];
    uint64_t chunk_size; /* bytes of a decoded chunk */

    uint32_t is_sharded; /* chunks are addressed through an index */
    /* chunk_chain holds a sharding codec: the chunk is decoded whole, level by level, into
     * little-endian elements in C order of the axes that chunk_chain sees. */
    uint32_t is_nested;
    const damacy__sharding* sharding; /* when is_sharded; belongs to the document */
    uint32_t index_at_start;          /* of the outermost sharding, as is what follows */
    uint32_t index_has_crc;
    uint64_t n_entries;  /* chunks per object; 1 without sharding */
    uint64_t index_size; /* bytes as stored; 0 without sharding */
    /* Number of a chunk in the decoded index: sum of its position in the object times this. */
    uint64_t index_stride[DAMACY_MAX_RANK];

    uint32_t key_is_v2;        /* key encoding "v2": no leading "c" */
    char key_separator;        /* '/' or '.' */
    damacy__chain index_chain; /* of the shard; belongs to the document */
    damacy__chain chunk_chain; /* how a chunk is decoded; belongs to the document */
} damacy__layout;

/* What a document may ask for at most; larger is refused as unsupported. */
#define DAMACY__MAX_CHUNK_SIZE   (UINT64_C(1) << 31) /* bytes, decoded */
#define DAMACY__MAX_ENTRIES      (UINT64_C(1) << 24) /* chunks in a shard: an index of 256 MiB */
#define DAMACY__MAX_CODECS       32u                 /* of one chain */
#define DAMACY__MAX_SHARD_LEVELS 4u                  /* shards within shards */

static damacy_status damacy__layout_resolve(damacy__layout* layout, const damacy__chain* chain,
                                            damacy_error* err);

/* Elements between neighbours along each axis of a C-order array. The product fits. */
static inline void damacy__strides(const int64_t* shape, uint32_t rank, int64_t* strides)
{
    int64_t stride = 1;

    for (uint32_t i = rank; i-- > 0;) {
        strides[i] = stride;
        stride *= shape[i];
    }
}

/* Composes the transpositions at the start of a chain: its array-to-bytes codec sees array axis
 * axes[i] as axis i. axes comes in as what the chain sees. Returns the number of that codec. */
static uint32_t damacy__chain_axes(const damacy__chain* chain, uint32_t rank, uint32_t* axes)
{
    uint32_t i = 0;

    for (; i < chain->n && chain->codecs[i].kind == DAMACY__CODEC_TRANSPOSE; i++) {
        uint32_t before[DAMACY_MAX_RANK];

        memcpy(before, axes, rank * sizeof axes[0]);
        for (uint32_t k = 0; k < rank; k++) {
            axes[k] = before[chain->codecs[i].order[k]];
        }
    }
    assert(i < chain->n);
    return i;
}

/* The chunk is laid out in C order of the axes given: axis i of the chunk is array axis axes[i]. */
static void damacy__layout_set_strides(damacy__layout* layout, const uint32_t* axes)
{
    int64_t shape[DAMACY_MAX_RANK];
    int64_t strides[DAMACY_MAX_RANK];

    for (uint32_t i = 0; i < layout->rank; i++) {
        shape[i] = layout->chunk_shape[axes[i]];
    }
    damacy__strides(shape, layout->rank, strides);
    for (uint32_t i = 0; i < layout->rank; i++) {
        layout->chunk_stride[axes[i]] = strides[i];
    }
}

/* Makes the inner chunks of a sharding codec, which sees array axis axes[i] as axis i, the chunks.
 */
static void damacy__layout_enter_shard(damacy__layout* layout, const damacy__sharding* sharding,
                                       const uint32_t* axes)
{
    int64_t strides[DAMACY_MAX_RANK];

    damacy__strides(sharding->grid, layout->rank, strides);
    for (uint32_t i = 0; i < layout->rank; i++) {
        layout->chunk_shape[axes[i]] = sharding->chunk_shape[i];
        layout->index_stride[axes[i]] = (uint64_t)strides[i];
    }
    for (uint32_t i = 0; i < sharding->index_chain.n; i++) {
        layout->index_has_crc |= sharding->index_chain.codecs[i].kind == DAMACY__CODEC_CRC32C;
    }
    layout->is_sharded = 1;
    layout->sharding = sharding;
    layout->index_at_start = sharding->index_at_start;
    layout->n_entries = sharding->n_entries;
    layout->index_size = sharding->index_size;
    layout->index_chain = sharding->index_chain;
    layout->chunk_chain = sharding->chunk_chain;
}

/* Fills everything from chunk_shape to index_stride, and the chains, from the array's codecs. rank,
 * item_size and object_shape are set; chain was checked against them when it was parsed. Bytes-to-
 * bytes codecs around a shard leave no part of it addressable: then the object is the chunk. */
static damacy_status damacy__layout_resolve(damacy__layout* layout, const damacy__chain* chain,
                                            damacy_error* err)
{
    uint32_t axes[DAMACY_MAX_RANK];
    uint32_t chunk_axes[DAMACY_MAX_RANK]; /* as chunk_chain sees them */
    const damacy__codec* codec;
    uint32_t at;
    uint64_t n;

    for (uint32_t i = 0; i < DAMACY_MAX_RANK; i++) {
        axes[i] = i;
    }
    for (uint32_t i = 0; i < layout->rank; i++) {
        layout->chunk_shape[i] = layout->object_shape[i];
        layout->index_stride[i] = 0;
    }
    memcpy(chunk_axes, axes, sizeof axes);
    layout->n_entries = 1;
    layout->chunk_chain = *chain;
    at = damacy__chain_axes(chain, layout->rank, axes);
    codec = &chain->codecs[at];
    if (codec->kind == DAMACY__CODEC_SHARDING && at + 1 == chain->n) {
        damacy__layout_enter_shard(layout, codec->sharding, axes);
        memcpy(chunk_axes, axes, sizeof axes);
        at = damacy__chain_axes(&layout->chunk_chain, layout->rank, axes);
        codec = &layout->chunk_chain.codecs[at];
    }
    layout->is_nested = codec->kind == DAMACY__CODEC_SHARDING;
    layout->big_endian = codec->kind == DAMACY__CODEC_BYTES && codec->big_endian;
    if (!damacy__product(layout->chunk_shape, layout->rank, &n) ||
        !damacy__mul(n, layout->item_size, &layout->chunk_size) ||
        layout->chunk_size > DAMACY__MAX_CHUNK_SIZE) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "a chunk of more than %" PRIu64 " bytes is not supported",
                            DAMACY__MAX_CHUNK_SIZE);
    }
    damacy__layout_set_strides(layout, layout->is_nested ? chunk_axes : axes);
    return DAMACY_OK;
}

/* ==== src/format/jsmn.h ==== */
/* jsmn: text that is known to be JSON -> a flat array of tokens with parent links.
 *
 * Vendored from jsmn 1.1.0 (https://github.com/zserge/jsmn) under the licence below. Changes:
 * names are prefixed, strict mode and parent links are always on, a lone primitive may end with the
 * text, counting without tokens is gone. Not safe alone: it accepts much that is not JSON, and its
 * time grows with depth; json.h scans the text first. */
/*
 * MIT License
 *
 * Copyright (c) 2010 Serge Zaitsev
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in
 * all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */

typedef enum damacy__jsmn_type {
    DAMACY__JSMN_UNDEFINED = 0,
    DAMACY__JSMN_OBJECT = 1,
    DAMACY__JSMN_ARRAY = 2,
    DAMACY__JSMN_STRING = 3,
    DAMACY__JSMN_PRIMITIVE = 4 /* number, true, false, null */
} damacy__jsmn_type;

/* Why damacy__jsmn_parse failed. */
enum {
    DAMACY__JSMN_NOMEM = -1, /* not enough tokens */
    DAMACY__JSMN_INVAL = -2, /* invalid character */
    DAMACY__JSMN_PART = -3   /* the text ends too early */
};

/* One value or key. Strings: the text between the quotes. The value of a key is its only child. */
typedef struct damacy__jsmn_token {
    damacy__jsmn_type type;
    int32_t start;  /* byte offset */
    int32_t end;    /* byte offset of what follows */
    int32_t size;   /* children */
    int32_t parent; /* token; -1: none */
} damacy__jsmn_token;

typedef struct damacy__jsmn {
    uint32_t pos;     /* offset in the text */
    uint32_t toknext; /* next token to fill */
    int32_t toksuper; /* the enclosing token; -1: none */
} damacy__jsmn;

static int32_t damacy__jsmn_parse(damacy__jsmn* parser, const char* text, size_t len,
                                  damacy__jsmn_token* tokens, uint32_t n_tokens);

/* The next unused token, or NULL. */
static damacy__jsmn_token* damacy__jsmn_take(damacy__jsmn* parser, damacy__jsmn_token* tokens,
                                             uint32_t n_tokens)
{
    damacy__jsmn_token* token;

    if (parser->toknext >= n_tokens) {
        return NULL;
    }
    token = &tokens[parser->toknext++];
    token->start = token->end = -1;
    token->size = 0;
    token->parent = -1;
    return token;
}

static int32_t damacy__jsmn_primitive(damacy__jsmn* parser, const char* text, size_t len,
                                      damacy__jsmn_token* tokens, uint32_t n_tokens)
{
    const uint32_t start = parser->pos;
    damacy__jsmn_token* token;

    for (; parser->pos < len; parser->pos++) {
        const char c = text[parser->pos];
        if (c == '\t' || c == '\r' || c == '\n' || c == ' ' || c == ',' || c == ']' || c == '}') {
            break;
        }
        if (c < 32 || c == 127) {
            parser->pos = start;
            return DAMACY__JSMN_INVAL;
        }
    }
    token = damacy__jsmn_take(parser, tokens, n_tokens);
    if (!token) {
        parser->pos = start;
        return DAMACY__JSMN_NOMEM;
    }
    token->type = DAMACY__JSMN_PRIMITIVE;
    token->start = (int32_t)start;
    token->end = (int32_t)parser->pos;
    token->parent = parser->toksuper;
    parser->pos--;
    return 0;
}

static int32_t damacy__jsmn_string(damacy__jsmn* parser, const char* text, size_t len,
                                   damacy__jsmn_token* tokens, uint32_t n_tokens)
{
    const uint32_t start = parser->pos;

    for (parser->pos++; parser->pos < len; parser->pos++) {
        const char c = text[parser->pos];
        if (c == '"') {
            damacy__jsmn_token* token = damacy__jsmn_take(parser, tokens, n_tokens);
            if (!token) {
                parser->pos = start;
                return DAMACY__JSMN_NOMEM;
            }
            token->type = DAMACY__JSMN_STRING;
            token->start = (int32_t)(start + 1);
            token->end = (int32_t)parser->pos;
            token->parent = parser->toksuper;
            return 0;
        }
        if (c == '\\' && parser->pos + 1 < len) {
            parser->pos++; /* whatever is escaped: the scan has seen it */
        }
    }
    parser->pos = start;
    return DAMACY__JSMN_PART;
}

static int32_t damacy__jsmn_open(damacy__jsmn* parser, char c, damacy__jsmn_token* tokens,
                                 uint32_t n_tokens)
{
    damacy__jsmn_token* token = damacy__jsmn_take(parser, tokens, n_tokens);

    if (!token) {
        return DAMACY__JSMN_NOMEM;
    }
    if (parser->toksuper != -1) {
        damacy__jsmn_token* super = &tokens[parser->toksuper];
        if (super->type == DAMACY__JSMN_OBJECT) {
            return DAMACY__JSMN_INVAL; /* an object or array cannot be a key */
        }
        super->size++;
        token->parent = parser->toksuper;
    }
    token->type = c == '{' ? DAMACY__JSMN_OBJECT : DAMACY__JSMN_ARRAY;
    token->start = (int32_t)parser->pos;
    parser->toksuper = (int32_t)parser->toknext - 1;
    return 0;
}

static int32_t damacy__jsmn_close(damacy__jsmn* parser, char c, damacy__jsmn_token* tokens)
{
    const damacy__jsmn_type type = c == '}' ? DAMACY__JSMN_OBJECT : DAMACY__JSMN_ARRAY;
    damacy__jsmn_token* token;

    if (parser->toknext < 1) {
        return DAMACY__JSMN_INVAL;
    }
    token = &tokens[parser->toknext - 1];
    while (token->start == -1 || token->end != -1) { /* at most as many steps as the depth */
        if (token->parent == -1) {
            return DAMACY__JSMN_INVAL;
        }
        token = &tokens[token->parent];
    }
    if (token->type != type) {
        return DAMACY__JSMN_INVAL;
    }
    token->end = (int32_t)parser->pos + 1;
    parser->toksuper = token->parent;
    return 0;
}

/* A string, or a primitive, which cannot be a key. */
static int32_t damacy__jsmn_scalar(damacy__jsmn* parser, const char* text, size_t len,
                                   damacy__jsmn_token* tokens, uint32_t n_tokens)
{
    int32_t result;

    if (text[parser->pos] == '"') {
        result = damacy__jsmn_string(parser, text, len, tokens, n_tokens);
    } else {
        if (parser->toksuper != -1) {
            const damacy__jsmn_token* super = &tokens[parser->toksuper];
            if (super->type == DAMACY__JSMN_OBJECT ||
                (super->type == DAMACY__JSMN_STRING && super->size != 0)) {
                return DAMACY__JSMN_INVAL;
            }
        }
        result = damacy__jsmn_primitive(parser, text, len, tokens, n_tokens);
    }
    if (result == 0 && parser->toksuper != -1) {
        tokens[parser->toksuper].size++;
    }
    return result;
}

/* Fills tokens in the order of the text. Returns their number, or one of the errors above. parser
 * is zeroed but for toksuper = -1. len fits int32_t. */
static int32_t damacy__jsmn_parse(damacy__jsmn* parser, const char* text, size_t len,
                                  damacy__jsmn_token* tokens, uint32_t n_tokens)
{
    for (; parser->pos < len; parser->pos++) {
        const char c = text[parser->pos];
        int32_t result = 0;

        switch (c) {
        case '{':
        case '[':
            result = damacy__jsmn_open(parser, c, tokens, n_tokens);
            break;
        case '}':
        case ']':
            result = damacy__jsmn_close(parser, c, tokens);
            break;
        case '\t':
        case '\r':
        case '\n':
        case ' ':
            break;
        case ':':
            parser->toksuper = (int32_t)parser->toknext - 1;
            break;
        case ',':
            if (parser->toksuper != -1 && tokens[parser->toksuper].type != DAMACY__JSMN_ARRAY &&
                tokens[parser->toksuper].type != DAMACY__JSMN_OBJECT) {
                parser->toksuper = tokens[parser->toksuper].parent;
            }
            break;
        default:
            result = damacy__jsmn_scalar(parser, text, len, tokens, n_tokens);
        }
        if (result < 0) {
            return result;
        }
    }
    for (uint32_t i = parser->toknext; i-- > 0;) {
        if (tokens[i].start != -1 && tokens[i].end == -1) {
            return DAMACY__JSMN_PART; /* an object or array that is not closed */
        }
    }
    return (int32_t)parser->toknext;
}

/* ==== src/format/json_scan.h ==== */
/* JSON text -> the number of its tokens, or where and why it is not JSON (RFC 8259).
 *
 * One pass without recursion: grammar, escapes, UTF-8, and depth, of which one bit per level is
 * kept. Lone surrogates are refused, as they have no UTF-8 form. */

typedef struct damacy__json_scan {
    const uint8_t* text;
    size_t size;
    size_t at;
    const char* problem; /* set with false */
    uint32_t n_tokens;
} damacy__json_scan;

static bool damacy__json_refuse(damacy__json_scan* scan, const char* problem)
{
    scan->problem = problem;
    return false;
}

static inline bool damacy__json_is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static bool damacy__json_scan_digits(damacy__json_scan* scan)
{
    const size_t start = scan->at;

    while (scan->at < scan->size && damacy__json_is_digit(scan->text[scan->at])) {
        scan->at++;
    }
    return scan->at > start || damacy__json_refuse(scan, "digit expected");
}

static bool damacy__json_scan_number(damacy__json_scan* scan)
{
    size_t start;

    if (scan->text[scan->at] == '-') {
        scan->at++;
    }
    start = scan->at;
    if (!damacy__json_scan_digits(scan)) {
        return false;
    }
    if (scan->text[start] == '0' && scan->at - start > 1) {
        return damacy__json_refuse(scan, "number with a leading zero");
    }
    if (scan->at < scan->size && scan->text[scan->at] == '.') {
        scan->at++;
        if (!damacy__json_scan_digits(scan)) {
            return false;
        }
    }
    if (scan->at < scan->size && (scan->text[scan->at] | 0x20) == 'e') {
        scan->at++;
        if (scan->at < scan->size && (scan->text[scan->at] == '+' || scan->text[scan->at] == '-')) {
            scan->at++;
        }
        return damacy__json_scan_digits(scan);
    }
    return true;
}

static bool damacy__json_scan_word(damacy__json_scan* scan, const char* word)
{
    const size_t len = strlen(word);

    if (len > scan->size - scan->at || memcmp(scan->text + scan->at, word, len) != 0) {
        return damacy__json_refuse(scan, "value expected");
    }
    scan->at += len;
    return true;
}

/* Four hexadecimal digits at p; UINT32_MAX if they are not. */
static uint32_t damacy__json_hex4(const uint8_t* p)
{
    uint32_t value = 0;

    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t c = p[i];
        const uint8_t lower = c | 0x20;
        if (damacy__json_is_digit(c)) {
            value = value << 4 | (uint32_t)(c - '0');
        } else if (lower >= 'a' && lower <= 'f') {
            value = value << 4 | (uint32_t)(lower - 'a' + 10);
        } else {
            return UINT32_MAX;
        }
    }
    return value;
}

/* At a backslash. Surrogates must come in pairs: a lone one has no UTF-8 form. */
static bool damacy__json_scan_escape(damacy__json_scan* scan)
{
    const uint8_t* p = scan->text + scan->at;
    const size_t left = scan->size - scan->at;
    uint32_t code;

    if (left < 2) {
        return damacy__json_refuse(scan, "string does not end");
    }
    if (p[1] != 'u') {
        if (p[1] == '\0' || !strchr("\"\\/bfnrt", p[1])) {
            return damacy__json_refuse(scan, "unknown escape");
        }
        scan->at += 2;
        return true;
    }
    if (left < 6 || (code = damacy__json_hex4(p + 2)) == UINT32_MAX) {
        return damacy__json_refuse(scan, "\\u wants four hexadecimal digits");
    }
    scan->at += 6;
    if (code < 0xd800 || code > 0xdfff) {
        return true;
    }
    if (code > 0xdbff || left < 12 || p[6] != '\\' || p[7] != 'u' ||
        (damacy__json_hex4(p + 8) & ~UINT32_C(0x3ff)) != 0xdc00) {
        return damacy__json_refuse(scan, "surrogate without its other half");
    }
    scan->at += 6;
    return true;
}

/* Bytes of the UTF-8 sequence at p, whose first byte is not ASCII; 0 if it is malformed, overlong,
 * a surrogate or beyond U+10FFFF (RFC 3629 section 4). */
static uint32_t damacy__json_utf8(const uint8_t* p, size_t left)
{
    const uint8_t first = p[0];
    const uint32_t n = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    uint8_t low = 0x80;
    uint8_t high = 0xbf;

    if (first < 0xc2 || first > 0xf4 || left < n) {
        return 0;
    }
    low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : low;
    high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : high;
    if (p[1] < low || p[1] > high) {
        return 0;
    }
    for (uint32_t i = 2; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}

/* At the opening quote. */
static bool damacy__json_scan_string(damacy__json_scan* scan)
{
    scan->at++;
    while (scan->at < scan->size) {
        const uint8_t c = scan->text[scan->at];
        if (c == '"') {
            scan->at++;
            return true;
        }
        if (c == '\\') {
            if (!damacy__json_scan_escape(scan)) {
                return false;
            }
        } else if (c >= 0x80) {
            const uint32_t n = damacy__json_utf8(scan->text + scan->at, scan->size - scan->at);
            if (n == 0) {
                return damacy__json_refuse(scan, "invalid UTF-8");
            }
            scan->at += n;
        } else if (c < 0x20) {
            return damacy__json_refuse(scan, "control character in a string");
        } else {
            scan->at++;
        }
    }
    return damacy__json_refuse(scan, "string does not end");
}

static bool damacy__json_scan_scalar(damacy__json_scan* scan)
{
    const uint8_t c = scan->text[scan->at];

    if (c == '"') {
        return damacy__json_scan_string(scan);
    }
    if (c == '-' || damacy__json_is_digit(c)) {
        return damacy__json_scan_number(scan);
    }
    return damacy__json_scan_word(scan, c == 't' ? "true" : c == 'f' ? "false" : "null");
}

static void damacy__json_scan_space(damacy__json_scan* scan)
{
    while (scan->at < scan->size) {
        const uint8_t c = scan->text[scan->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
            return;
        }
        scan->at++;
    }
}

/* At a key: takes it and the colon. */
static bool damacy__json_scan_key(damacy__json_scan* scan)
{
    if (scan->text[scan->at] != '"') {
        return damacy__json_refuse(scan, "key expected");
    }
    if (!damacy__json_scan_string(scan)) {
        return false;
    }
    damacy__json_scan_space(scan);
    if (scan->at == scan->size || scan->text[scan->at] != ':') {
        return damacy__json_refuse(scan, "':' expected");
    }
    scan->at++;
    return true;
}

/* Checks the whole text and counts its tokens. *too_deep tells a limit from malformed text. */
static bool damacy__json_scan_text(damacy__json_scan* scan, uint32_t max_depth, bool* too_deep)
{
    enum { DAMACY__WANT_VALUE, DAMACY__WANT_FIRST, DAMACY__WANT_KEY, DAMACY__WANT_REST } want;
    uint64_t objects = 0; /* bit 0: the innermost container is an object */
    uint32_t depth = 0;

    want = DAMACY__WANT_VALUE;
    for (;;) {
        uint8_t c;

        damacy__json_scan_space(scan);
        if (scan->at == scan->size) {
            return (depth == 0 && want == DAMACY__WANT_REST) ||
                   damacy__json_refuse(scan, "the text ends too early");
        }
        c = scan->text[scan->at];
        if (want == DAMACY__WANT_REST && depth == 0) {
            return damacy__json_refuse(scan, "something follows the value");
        }
        if (want != DAMACY__WANT_VALUE && want != DAMACY__WANT_KEY && (c == ']' || c == '}')) {
            if ((c == '}') != (objects & 1)) {
                return damacy__json_refuse(scan, "brackets do not match");
            }
            scan->at++;
            objects >>= 1;
            depth--;
            want = DAMACY__WANT_REST;
        } else if (want == DAMACY__WANT_REST) {
            if (c != ',') {
                return damacy__json_refuse(scan, "',' or a closing bracket expected");
            }
            scan->at++;
            want = objects & 1 ? DAMACY__WANT_KEY : DAMACY__WANT_VALUE;
        } else if (want == DAMACY__WANT_KEY || (want == DAMACY__WANT_FIRST && (objects & 1))) {
            if (!damacy__json_scan_key(scan)) {
                return false;
            }
            scan->n_tokens++;
            want = DAMACY__WANT_VALUE;
        } else if (c == '[' || c == '{') {
            if (depth == max_depth) {
                *too_deep = true;
                return false;
            }
            scan->at++;
            scan->n_tokens++;
            objects = objects << 1 | (c == '{');
            depth++;
            want = DAMACY__WANT_FIRST;
        } else {
            if (!damacy__json_scan_scalar(scan)) {
                return false;
            }
            scan->n_tokens++;
            want = DAMACY__WANT_REST;
        }
    }
}

/* ==== src/format/json.h ==== */
/* JSON text (RFC 8259) -> tokens, and questions about them.
 *
 * A linear scan checks the whole grammar, UTF-8, depth and size before the tokenizer runs, which is
 * neither strict nor linear by itself. Keys and strings are compared after decoding their escapes.
 * The text is borrowed and must outlive the record. */

#define DAMACY__JSON_MAX_DEPTH  32u        /* default; at most 64: one bit each while scanning */
#define DAMACY__JSON_MAX_SIZE   (1u << 20) /* default, bytes */
#define DAMACY__JSON_SIZE_LIMIT (1u << 30) /* offsets are 32 bits */
#define DAMACY__JSON_NONE       UINT32_MAX

typedef enum damacy__json_kind {
    DAMACY__JSON_ABSENT = 0, /* what DAMACY__JSON_NONE is */
    DAMACY__JSON_OBJECT,
    DAMACY__JSON_ARRAY,
    DAMACY__JSON_STRING,
    DAMACY__JSON_NUMBER,
    DAMACY__JSON_TRUE,
    DAMACY__JSON_FALSE,
    DAMACY__JSON_NULL
} damacy__json_kind;

typedef struct damacy__json_limits {
    uint32_t max_depth; /* 0: default */
    size_t max_size;    /* bytes; 0: default */
} damacy__json_limits;

/* A parsed text. Values are numbers of tokens; 0 is the root. */
typedef struct damacy__json {
    const char* text;
    damacy__jsmn_token* tokens;
    uint32_t* n_within; /* tokens of each value, itself included */
    uint32_t n_tokens;
} damacy__json;

static damacy_status damacy__json_parse(damacy__json* json, damacy__alloc* alloc, damacy__span text,
                                        const damacy__json_limits* limits, damacy_error* err);
static void damacy__json_deinit(damacy__json* json, damacy__alloc* alloc);
static damacy_status damacy__json_refuse_duplicates(const damacy__json* json, damacy__alloc* alloc,
                                                    damacy_error* err);
static damacy__json_kind damacy__json_kind_of(const damacy__json* json, uint32_t value);
static uint32_t damacy__json_member(const damacy__json* json, uint32_t object, const char* key);
static bool damacy__json_equals(const damacy__json* json, uint32_t value, const char* text);
static size_t damacy__json_decode(const damacy__json* json, uint32_t value, char* dst,
                                  size_t capacity);
static damacy_status damacy__json_text(const damacy__json* json, uint32_t value,
                                       damacy__alloc* alloc, char** out, damacy_error* err);
static bool damacy__json_u64(const damacy__json* json, uint32_t value, uint64_t* out);
static damacy__span damacy__json_source(const damacy__json* json, uint32_t value);

static damacy_status damacy__json_check(damacy__span text, const damacy__json_limits* limits,
                                        uint32_t* n_tokens, damacy_error* err)
{
    const size_t max_size = limits && limits->max_size ? limits->max_size : DAMACY__JSON_MAX_SIZE;
    const uint32_t max_depth =
        limits && limits->max_depth ? limits->max_depth : DAMACY__JSON_MAX_DEPTH;
    damacy__json_scan scan = {0};
    bool too_deep = false;

    assert(max_depth <= 64 && max_size <= DAMACY__JSON_SIZE_LIMIT);
    if (text.size > max_size) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "JSON of %zu bytes exceeds the limit of %zu",
                            text.size, max_size);
    }
    scan.text = text.ptr;
    scan.size = text.size;
    if (damacy__json_scan_text(&scan, max_depth, &too_deep)) {
        *n_tokens = scan.n_tokens;
        return DAMACY_OK;
    }
    if (too_deep) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "JSON at byte %zu is nested deeper than %u levels", scan.at, max_depth);
    }
    return damacy__fail(err, DAMACY_DECODE, "invalid JSON at byte %zu: %s", scan.at, scan.problem);
}

/* limits may be NULL. A byte order mark is skipped. On success free with damacy__json_deinit. */
static damacy_status damacy__json_parse(damacy__json* json, damacy__alloc* alloc, damacy__span text,
                                        const damacy__json_limits* limits, damacy_error* err)
{
    damacy__json parsed = {0};
    damacy__jsmn parser = {0};
    int32_t n;

    if (text.size >= 3 && memcmp(text.ptr, "\xef\xbb\xbf", 3) == 0) {
        text.ptr += 3;
        text.size -= 3;
    }
    DAMACY__TRY(damacy__json_check(text, limits, &parsed.n_tokens, err));
    parsed.text = (const char*)text.ptr;
    parsed.tokens = damacy__new(alloc, parsed.n_tokens, damacy__jsmn_token);
    parsed.n_within = damacy__new(alloc, parsed.n_tokens, uint32_t);
    if (!parsed.tokens || !parsed.n_within) {
        damacy__json_deinit(&parsed, alloc);
        return damacy__fail(err, DAMACY_OOM, "JSON of %zu bytes", text.size);
    }
    parser.toksuper = -1;
    n = damacy__jsmn_parse(&parser, parsed.text, text.size, parsed.tokens, parsed.n_tokens);
    if (n < 0 || (uint32_t)n != parsed.n_tokens) {
        damacy__json_deinit(&parsed, alloc);
        return damacy__fail(err, DAMACY_DECODE, "invalid JSON: tokenizer returned %d", n);
    }
    for (uint32_t i = parsed.n_tokens; i-- > 0;) {
        const int32_t parent = parsed.tokens[i].parent;
        parsed.n_within[i]++;
        if (parent >= 0) {
            parsed.n_within[parent] += parsed.n_within[i];
        }
    }
    *json = parsed;
    return DAMACY_OK;
}

static void damacy__json_deinit(damacy__json* json, damacy__alloc* alloc)
{
    damacy__free(alloc, json->tokens, json->n_tokens);
    damacy__free(alloc, json->n_within, json->n_tokens);
    memset(json, 0, sizeof *json);
}

static damacy__json_kind damacy__json_kind_of(const damacy__json* json, uint32_t value)
{
    if (value == DAMACY__JSON_NONE) {
        return DAMACY__JSON_ABSENT;
    }
    switch (json->tokens[value].type) {
    case DAMACY__JSMN_OBJECT:
        return DAMACY__JSON_OBJECT;
    case DAMACY__JSMN_ARRAY:
        return DAMACY__JSON_ARRAY;
    case DAMACY__JSMN_STRING:
        return DAMACY__JSON_STRING;
    default:
        break;
    }
    switch (json->text[json->tokens[value].start]) {
    case 't':
        return DAMACY__JSON_TRUE;
    case 'f':
        return DAMACY__JSON_FALSE;
    case 'n':
        return DAMACY__JSON_NULL;
    default:
        return DAMACY__JSON_NUMBER;
    }
}

/* Elements of an array, members of an object. */
static inline uint32_t damacy__json_count(const damacy__json* json, uint32_t value)
{
    return (uint32_t)json->tokens[value].size;
}

/* First element, or first key; DAMACY__JSON_NONE when there is none. The value of key k is k + 1.
 */
static inline uint32_t damacy__json_first(const damacy__json* json, uint32_t container)
{
    return json->tokens[container].size ? container + 1 : DAMACY__JSON_NONE;
}

/* The element or key after this one. */
static inline uint32_t damacy__json_next(const damacy__json* json, uint32_t container,
                                         uint32_t child)
{
    const uint32_t next = child + json->n_within[child];

    return next < container + json->n_within[container] ? next : DAMACY__JSON_NONE;
}

/* The value of a member by its decoded key; DAMACY__JSON_NONE when absent or not an object. */
static uint32_t damacy__json_member(const damacy__json* json, uint32_t object, const char* key)
{
    if (damacy__json_kind_of(json, object) != DAMACY__JSON_OBJECT) {
        return DAMACY__JSON_NONE;
    }
    for (uint32_t k = damacy__json_first(json, object); k != DAMACY__JSON_NONE;
         k = damacy__json_next(json, object, k)) {
        if (damacy__json_equals(json, k, key)) {
            return k + 1;
        }
    }
    return DAMACY__JSON_NONE;
}

/* The text of a value as written: strings without their quotes and with their escapes. */
static damacy__span damacy__json_source(const damacy__json* json, uint32_t value)
{
    const damacy__jsmn_token* token = &json->tokens[value];

    return damacy__span_of(json->text + token->start, (size_t)(token->end - token->start));
}

static uint32_t damacy__json_encode_utf8(uint32_t code, char* dst)
{
    if (code < 0x80) {
        dst[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        dst[0] = (char)(0xc0 | code >> 6);
        dst[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        dst[0] = (char)(0xe0 | code >> 12);
        dst[1] = (char)(0x80 | (code >> 6 & 0x3f));
        dst[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    dst[0] = (char)(0xf0 | code >> 18);
    dst[1] = (char)(0x80 | (code >> 12 & 0x3f));
    dst[2] = (char)(0x80 | (code >> 6 & 0x3f));
    dst[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* One character, or one byte of a longer one, from checked text. Returns the bytes read. */
static uint32_t damacy__json_unescape(const uint8_t* p, char dst[4], uint32_t* n)
{
    static const char names[] = "bfnrt";
    static const char codes[] = "\b\f\n\r\t";
    const char* name;
    uint32_t code;

    *n = 1;
    if (p[0] != '\\') {
        dst[0] = (char)p[0];
        return 1;
    }
    if (p[1] != 'u') {
        name = strchr(names, p[1]);
        dst[0] = name ? codes[name - names] : (char)p[1];
        return 2;
    }
    code = damacy__json_hex4(p + 2);
    if (code >= 0xd800 && code <= 0xdbff) {
        code = 0x10000 + ((code & 0x3ff) << 10) + (damacy__json_hex4(p + 8) & 0x3ff);
        *n = damacy__json_encode_utf8(code, dst);
        return 12;
    }
    *n = damacy__json_encode_utf8(code, dst);
    return 6;
}

/* A string or key, decoded, equals text. */
static bool damacy__json_equals(const damacy__json* json, uint32_t value, const char* text)
{
    const size_t len = strlen(text);
    damacy__span source;
    size_t at = 0;
    size_t n_equal = 0;

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_STRING) {
        return false;
    }
    source = damacy__json_source(json, value);
    while (at < source.size) {
        char decoded[4];
        uint32_t n;

        at += damacy__json_unescape(source.ptr + at, decoded, &n);
        if (n > len - n_equal || memcmp(text + n_equal, decoded, n) != 0) {
            return false;
        }
        n_equal += n;
    }
    return n_equal == len;
}

/* Decodes a string or key. Returns its size in bytes, of which the first capacity are written,
 * without a final zero. */
static size_t damacy__json_decode(const damacy__json* json, uint32_t value, char* dst,
                                  size_t capacity)
{
    const damacy__span source = damacy__json_source(json, value);
    size_t at = 0;
    size_t size = 0;

    while (at < source.size) {
        char decoded[4];
        uint32_t n;

        at += damacy__json_unescape(source.ptr + at, decoded, &n);
        for (uint32_t i = 0; i < n; i++, size++) {
            if (size < capacity) {
                dst[size] = decoded[i];
            }
        }
    }
    return size;
}

/* A string as zero-terminated text; free it with its length + 1. A zero inside is refused. */
static damacy_status damacy__json_text(const damacy__json* json, uint32_t value,
                                       damacy__alloc* alloc, char** out, damacy_error* err)
{
    const size_t size = damacy__json_decode(json, value, NULL, 0);
    char* text = damacy__new(alloc, size + 1, char);

    if (!text) {
        return damacy__fail(err, DAMACY_OOM, "string of %zu bytes", size);
    }
    (void)damacy__json_decode(json, value, text, size);
    if (memchr(text, '\0', size)) {
        damacy__free(alloc, text, size + 1);
        return damacy__fail(err, DAMACY_DECODE, "string with a zero character");
    }
    *out = text;
    return DAMACY_OK;
}

/* For messages: a string decoded, anything else as written; cut to capacity, with a final zero. */
static inline const char* damacy__json_show(const damacy__json* json, uint32_t value, char* dst,
                                            size_t capacity)
{
    const damacy__span source = damacy__json_source(json, value);
    size_t size = source.size;

    if (damacy__json_kind_of(json, value) == DAMACY__JSON_STRING) {
        size = damacy__json_decode(json, value, dst, capacity - 1);
    } else {
        memcpy(dst, source.ptr, DAMACY__MIN(size, capacity - 1));
    }
    dst[DAMACY__MIN(size, capacity - 1)] = '\0';
    return dst;
}

/* An integer without fraction or exponent, from 0 to 2^64-1; -0 is 0. */
static bool damacy__json_u64(const damacy__json* json, uint32_t value, uint64_t* out)
{
    damacy__span source;
    uint64_t number = 0;

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_NUMBER) {
        return false;
    }
    source = damacy__json_source(json, value);
    if (source.size == 2 && memcmp(source.ptr, "-0", 2) == 0) {
        *out = 0;
        return true;
    }
    for (size_t i = 0; i < source.size; i++) {
        if (!damacy__json_is_digit(source.ptr[i]) || !damacy__mul(number, 10, &number) ||
            !damacy__add(number, (uint64_t)(source.ptr[i] - '0'), &number)) {
            return false;
        }
    }
    *out = number;
    return true;
}

/* A key and where it belongs, for sorting. */
typedef struct damacy__json_name {
    uint64_t hash; /* of the decoded key; equal ones are compared in full */
    uint32_t object;
    uint32_t key;
} damacy__json_name;

/* A string, decoded byte by byte. */
typedef struct damacy__json_reader {
    damacy__span source;
    size_t at;
    char bytes[4];
    uint32_t n;
    uint32_t i;
} damacy__json_reader;

/* The next byte, or -1. */
static int damacy__json_read(damacy__json_reader* reader)
{
    if (reader->i == reader->n) {
        if (reader->at == reader->source.size) {
            return -1;
        }
        reader->at +=
            damacy__json_unescape(reader->source.ptr + reader->at, reader->bytes, &reader->n);
        reader->i = 0;
    }
    return (uint8_t)reader->bytes[reader->i++];
}

/* Order of two keys, decoded: negative, 0 or positive. */
static int damacy__json_key_order(const damacy__json* json, uint32_t a, uint32_t b)
{
    damacy__json_reader readers[2];
    int bytes[2];

    memset(readers, 0, sizeof readers);
    readers[0].source = damacy__json_source(json, a);
    readers[1].source = damacy__json_source(json, b);
    do {
        bytes[0] = damacy__json_read(&readers[0]);
        bytes[1] = damacy__json_read(&readers[1]);
    } while (bytes[0] == bytes[1] && bytes[0] >= 0);
    return bytes[0] - bytes[1];
}

/* FNV-1a of a key, decoded. */
static uint64_t damacy__json_key_hash(const damacy__json* json, uint32_t key)
{
    damacy__json_reader reader;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    int byte;

    memset(&reader, 0, sizeof reader);
    reader.source = damacy__json_source(json, key);
    while ((byte = damacy__json_read(&reader)) >= 0) {
        hash = (hash ^ (uint64_t)byte) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static int damacy__json_name_order(const damacy__json* json, const damacy__json_name* a,
                                   const damacy__json_name* b)
{
    if (a->object != b->object) {
        return a->object < b->object ? -1 : 1;
    }
    if (a->hash != b->hash) {
        return a->hash < b->hash ? -1 : 1;
    }
    return damacy__json_key_order(json, a->key, b->key);
}

/* Merges sorted runs until one is left; returns which of the two arrays holds it. */
static damacy__json_name* damacy__json_sort(const damacy__json* json, damacy__json_name* names,
                                            damacy__json_name* other, size_t n)
{
    for (size_t run = 1; run < n; run *= 2) {
        damacy__json_name* const from = names;
        for (size_t first = 0; first < n; first += 2 * run) {
            const size_t middle = DAMACY__MIN(first + run, n);
            const size_t end = DAMACY__MIN(first + 2 * run, n);
            size_t a = first;
            size_t b = middle;
            for (size_t i = first; i < end; i++) {
                const bool take_a =
                    b == end ||
                    (a < middle && damacy__json_name_order(json, &from[a], &from[b]) <= 0);
                other[i] = take_a ? from[a++] : from[b++];
            }
        }
        names = other;
        other = from;
    }
    return names;
}

/* Refuses an object that has a key twice, at any depth: readers disagree on which one counts. */
static damacy_status damacy__json_refuse_duplicates(const damacy__json* json, damacy__alloc* alloc,
                                                    damacy_error* err)
{
    const size_t capacity = json->n_tokens;
    damacy__json_name* const names = damacy__new(alloc, capacity * 2, damacy__json_name);
    const damacy__json_name* sorted;
    damacy_status status = DAMACY_OK;
    size_t n = 0;

    if (!names) {
        return damacy__fail(err, DAMACY_OOM, "keys of a JSON text");
    }
    for (uint32_t i = 1; i < json->n_tokens; i++) {
        const uint32_t parent = (uint32_t)json->tokens[i].parent;
        if (json->tokens[parent].type == DAMACY__JSMN_OBJECT && json->tokens[parent].size > 1) {
            names[n].hash = damacy__json_key_hash(json, i);
            names[n].object = parent;
            names[n].key = i;
            n++;
        }
    }
    sorted = damacy__json_sort(json, names, names + capacity, n);
    for (size_t i = 1; i < n && status == DAMACY_OK; i++) {
        if (damacy__json_name_order(json, &sorted[i - 1], &sorted[i]) == 0) {
            char key[64];
            status = damacy__fail(err, DAMACY_DECODE, "the key \"%s\" appears twice in an object",
                                  damacy__json_show(json, sorted[i].key, key, sizeof key));
        }
    }
    damacy__free(alloc, names, capacity * 2);
    return status;
}

/* ==== src/format/decimal.h ==== */
/* A decimal number as JSON writes it -> the bits of the nearest binary floating-point value.
 *
 * Rounds once, half to even, straight into the wanted format: going through double first would
 * round twice. Exact for any number of digits and any exponent; does not depend on the locale. */

/* IEEE 754 binary interchange formats, and bfloat16. */
typedef struct damacy__float_format {
    uint32_t n_exponent; /* bits */
    uint32_t n_fraction; /* bits, without the hidden one */
} damacy__float_format;

/* What the text says: 0.d1d2d3... * 10^point. */
typedef struct damacy__decimal {
    uint8_t digits[800]; /* more cannot change the rounding of a double, but for being nonzero */
    uint32_t n;          /* without leading and trailing zeros */
    int64_t point;
    bool is_negative;
    bool has_more; /* a nonzero digit was dropped */
} damacy__decimal;

enum { DAMACY__DECIMAL_LIMBS = 144 }; /* 10^1200 and 64 bits of result */

/* An unsigned integer, 32 bits per limb, lowest first. */
typedef struct damacy__big {
    uint32_t limbs[DAMACY__DECIMAL_LIMBS];
    uint32_t n; /* without leading zeros */
} damacy__big;

static bool damacy__decimal_to_float(damacy__span text, damacy__float_format format,
                                     uint64_t* bits);

static void damacy__decimal_digit(damacy__decimal* decimal, uint8_t digit, bool is_integer)
{
    if (decimal->n == 0 && digit == 0) {
        decimal->point -= !is_integer; /* leading zeros only move the point */
        return;
    }
    decimal->point += is_integer;
    if (decimal->n < sizeof decimal->digits) {
        decimal->digits[decimal->n++] = digit;
    } else {
        decimal->has_more = decimal->has_more || digit != 0;
    }
}

/* text is a JSON number. */
static void damacy__decimal_parse(damacy__decimal* decimal, damacy__span text)
{
    size_t i = 0;
    int64_t exponent = 0;
    bool is_integer = true;
    bool is_negative = false;

    memset(decimal, 0, sizeof *decimal);
    if (text.ptr[0] == '-') {
        decimal->is_negative = true;
        i++;
    }
    for (; i < text.size && (text.ptr[i] | 0x20) != 'e'; i++) {
        if (text.ptr[i] == '.') {
            is_integer = false;
        } else {
            damacy__decimal_digit(decimal, (uint8_t)(text.ptr[i] - '0'), is_integer);
        }
    }
    for (i++; i < text.size; i++) {
        if (text.ptr[i] == '-') {
            is_negative = true;
        } else if (text.ptr[i] != '+' && exponent < INT64_C(100000000000)) {
            exponent = exponent * 10 + (text.ptr[i] - '0');
        }
    }
    decimal->point += is_negative ? -exponent : exponent;
    while (decimal->n > 0 && decimal->digits[decimal->n - 1] == 0) {
        decimal->n--;
    }
}

/* big = big * factor + more. */
static void damacy__big_multiply(damacy__big* big, uint32_t factor, uint32_t more)
{
    uint64_t carry = more;

    for (uint32_t i = 0; i < big->n; i++) {
        carry += (uint64_t)big->limbs[i] * factor;
        big->limbs[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) {
        assert(big->n < DAMACY__DECIMAL_LIMBS);
        big->limbs[big->n++] = (uint32_t)carry;
    }
}

/* big = big / divisor; true when there is a remainder. */
static bool damacy__big_divide(damacy__big* big, uint32_t divisor)
{
    uint64_t rest = 0;

    for (uint32_t i = big->n; i-- > 0;) {
        rest = rest << 32 | big->limbs[i];
        big->limbs[i] = (uint32_t)(rest / divisor);
        rest %= divisor;
    }
    while (big->n > 0 && big->limbs[big->n - 1] == 0) {
        big->n--;
    }
    return rest != 0;
}

/* Shifts up by whole limbs. */
static void damacy__big_raise(damacy__big* big, uint32_t n)
{
    assert(big->n + n <= DAMACY__DECIMAL_LIMBS);
    memmove(big->limbs + n, big->limbs, big->n * sizeof big->limbs[0]);
    memset(big->limbs, 0, n * sizeof big->limbs[0]);
    big->n += n;
}

/* The highest 64 bits, the highest of them set; *exponent is that of the lowest of them. */
static uint64_t damacy__big_top(const damacy__big* big, int32_t* exponent, bool* has_more)
{
    const uint32_t n_zeros = (uint32_t)__builtin_clz(big->limbs[big->n - 1]);
    uint64_t top = 0;
    uint32_t i;

    for (i = 0; i < 2; i++) {
        top = top << 32 | (i < big->n ? big->limbs[big->n - 1 - i] : 0);
    }
    if (n_zeros) {
        const uint32_t third = big->n > 2 ? big->limbs[big->n - 3] : 0;
        top = top << n_zeros | third >> (32 - n_zeros);
        *has_more = *has_more || (uint32_t)(third << n_zeros) != 0;
    } else if (big->n > 2) {
        *has_more = *has_more || big->limbs[big->n - 3] != 0;
    }
    for (i = 3; i < big->n; i++) {
        *has_more = *has_more || big->limbs[big->n - 1 - i] != 0;
    }
    *exponent = (int32_t)big->n * 32 - 64 - (int32_t)n_zeros;
    return top;
}

/* Rounds (top + something below 1 if has_more) * 2^exponent, top's highest bit set. False when it
 * does not fit. */
static bool damacy__float_round(uint64_t top, int32_t exponent, bool has_more,
                                damacy__float_format format, uint64_t* bits)
{
    const int32_t bias = (1 << (format.n_exponent - 1)) - 1;
    const int32_t power = exponent + 63; /* the value is 1.xxx * 2^power */
    const int32_t n_below = power < 1 - bias ? 1 - bias - power : 0; /* subnormal: bits lost */
    const int32_t n_kept = (int32_t)format.n_fraction + 1 - n_below;
    const uint64_t half = UINT64_C(1) << 63;
    uint64_t kept = 0;
    uint64_t rest = top;

    if (n_kept < 0) {
        *bits = 0;
        return true;
    }
    if (n_kept > 0) {
        kept = top >> (64 - n_kept);
        rest = top << n_kept;
    }
    if (rest > half || (rest == half && (has_more || (kept & 1)))) {
        kept++; /* may carry into the exponent, as it should */
    }
    if (n_below == 0) {
        kept += ((uint64_t)(power + bias - 1)) << format.n_fraction;
    }
    *bits = kept;
    return kept >> format.n_fraction < (UINT64_C(1) << format.n_exponent) - 1;
}

/* text is a JSON number. False when its magnitude rounds to infinity. */
static bool damacy__decimal_to_float(damacy__span text, damacy__float_format format, uint64_t* bits)
{
    damacy__decimal decimal;
    damacy__big big;
    int64_t power;
    uint64_t magnitude = 0;
    uint64_t top;
    int32_t exponent;
    uint32_t n_raised = 0;

    damacy__decimal_parse(&decimal, text);
    if (decimal.n > 0 && decimal.point > 400) {
        return false;
    }
    if (decimal.n > 0 && decimal.point >= -400) {
        big.n = 0;
        for (uint32_t i = 0; i < decimal.n; i++) {
            damacy__big_multiply(&big, 10, decimal.digits[i]);
        }
        power = decimal.point - (int64_t)decimal.n; /* value = big * 10^power */
        for (; power > 0; power--) {
            damacy__big_multiply(&big, 10, 0);
        }
        if (power < 0) {
            /* 10^9 < 2^30: enough limbs that more than 64 bits are left after dividing. */
            n_raised = (uint32_t)(-power * 10 / 3 / 32) + 4;
            n_raised -= DAMACY__MIN(n_raised, big.n - 1);
            damacy__big_raise(&big, n_raised);
        }
        for (; power < 0; power = power <= -9 ? power + 9 : power + 1) {
            decimal.has_more |= damacy__big_divide(&big, power <= -9 ? 1000000000 : 10);
        }
        top = damacy__big_top(&big, &exponent, &decimal.has_more);
        exponent -= (int32_t)n_raised * 32;
        if (!damacy__float_round(top, exponent, decimal.has_more, format, &magnitude)) {
            return false;
        }
    }
    if (decimal.is_negative) {
        magnitude |= UINT64_C(1) << (format.n_exponent + format.n_fraction);
    }
    *bits = magnitude;
    return true;
}

/* ==== src/format/dtype.h ==== */
/* Data types: names of Zarr v3 and sizes.
 *
 * Raw types (r8 to r64) are read as unsigned integers of the same size, least significant byte
 * first, whatever byte order the codec states: their bytes have no order. */

/* A data type of an array. */
typedef struct damacy__dtype {
    const char* name; /* in Zarr metadata */
    damacy_dtype dtype;
    bool is_raw;
} damacy__dtype;

static const damacy__dtype damacy__dtypes[] = {
    {"bool", DAMACY_BOOL, false},     {"int8", DAMACY_I8, false},
    {"int16", DAMACY_I16, false},     {"int32", DAMACY_I32, false},
    {"int64", DAMACY_I64, false},     {"uint8", DAMACY_U8, false},
    {"uint16", DAMACY_U16, false},    {"uint32", DAMACY_U32, false},
    {"uint64", DAMACY_U64, false},    {"float16", DAMACY_F16, false},
    {"float32", DAMACY_F32, false},   {"float64", DAMACY_F64, false},
    {"bfloat16", DAMACY_BF16, false}, {"r8", DAMACY_U8, true},
    {"r16", DAMACY_U16, true},        {"r32", DAMACY_U32, true},
    {"r64", DAMACY_U64, true},
};

static size_t damacy__dtype_size(damacy_dtype dtype);
static const char* damacy__dtype_str(damacy_dtype dtype);

/* Bytes per element; 0 for DAMACY_NATIVE and other values. */
static size_t damacy__dtype_size(damacy_dtype dtype)
{
    switch (dtype) {
    case DAMACY_BOOL:
    case DAMACY_U8:
    case DAMACY_I8:
        return 1;
    case DAMACY_BF16:
    case DAMACY_F16:
    case DAMACY_U16:
    case DAMACY_I16:
        return 2;
    case DAMACY_F32:
    case DAMACY_U32:
    case DAMACY_I32:
        return 4;
    case DAMACY_F64:
    case DAMACY_U64:
    case DAMACY_I64:
        return 8;
    case DAMACY_NATIVE:
        return 0;
    }
    return 0;
}

/* The name in Zarr metadata; "native", or "unknown" for other values. */
static const char* damacy__dtype_str(damacy_dtype dtype)
{
    for (size_t i = 0; i < DAMACY__COUNT(damacy__dtypes); i++) {
        if (damacy__dtypes[i].dtype == dtype) {
            return damacy__dtypes[i].name;
        }
    }
    return dtype == DAMACY_NATIVE ? "native" : "unknown";
}

/* ==== src/format/fill.h ==== */
/* fill_value of array metadata -> its exact bits in the array's type.
 *
 * Integers never pass through a floating-point number, and floating-point values are rounded once,
 * into their own type. A value that the type cannot hold is refused, not clipped. */

static damacy_status damacy__fill_parse(const damacy__json* json, uint32_t value,
                                        const damacy__dtype* type, uint64_t* bits,
                                        damacy_error* err);

static bool damacy__dtype_is_float(damacy_dtype dtype)
{
    return dtype == DAMACY_F16 || dtype == DAMACY_BF16 || dtype == DAMACY_F32 ||
           dtype == DAMACY_F64;
}

static damacy__float_format damacy__fill_format(damacy_dtype dtype)
{
    damacy__float_format format;

    format.n_exponent = dtype == DAMACY_F16 ? 5 : dtype == DAMACY_F64 ? 11 : 8;
    format.n_fraction = (uint32_t)damacy__dtype_size(dtype) * 8 - 1 - format.n_exponent;
    return format;
}

/* A number without exponent and with only zeros after the point, within the type. Both forms occur:
 * writers that keep everything as doubles say 0.0. */
static bool damacy__fill_integer(damacy__span text, damacy_dtype dtype, uint64_t* bits)
{
    const bool is_signed =
        dtype == DAMACY_I8 || dtype == DAMACY_I16 || dtype == DAMACY_I32 || dtype == DAMACY_I64;
    const uint32_t n_bits = (uint32_t)damacy__dtype_size(dtype) * 8;
    const uint64_t mask = n_bits == 64 ? UINT64_MAX : (UINT64_C(1) << n_bits) - 1;
    const bool is_negative = text.ptr[0] == '-';
    const uint64_t limit = is_signed ? (mask >> 1) + is_negative : is_negative ? 0 : mask;
    uint64_t number = 0;
    size_t i = is_negative;

    for (; i < text.size && damacy__json_is_digit(text.ptr[i]); i++) {
        if (!damacy__mul(number, 10, &number) ||
            !damacy__add(number, (uint64_t)(text.ptr[i] - '0'), &number)) {
            return false;
        }
    }
    if (i < text.size && text.ptr[i] == '.') {
        for (i++; i < text.size && text.ptr[i] == '0'; i++) {
        }
    }
    if (i < text.size || number > limit) {
        return false;
    }
    *bits = (is_negative ? 0 - number : number) & mask;
    return true;
}

/* "NaN", "Infinity", "-Infinity", or the bits as "0x" and 1 to 2 * size hexadecimal digits. */
static bool damacy__fill_float_name(const damacy__json* json, uint32_t value, damacy_dtype dtype,
                                    uint64_t* bits)
{
    const damacy__float_format format = damacy__fill_format(dtype);
    const uint64_t infinity = ((UINT64_C(1) << format.n_exponent) - 1) << format.n_fraction;
    char text[24];
    size_t size;
    uint64_t number = 0;

    if (damacy__json_equals(json, value, "NaN")) {
        *bits = infinity | UINT64_C(1) << (format.n_fraction - 1);
        return true;
    }
    if (damacy__json_equals(json, value, "Infinity")) {
        *bits = infinity;
        return true;
    }
    if (damacy__json_equals(json, value, "-Infinity")) {
        *bits = infinity | UINT64_C(1) << (format.n_exponent + format.n_fraction);
        return true;
    }
    size = damacy__json_decode(json, value, text, sizeof text);
    if (size < 3 || size > 2 + 2 * damacy__dtype_size(dtype) || memcmp(text, "0x", 2) != 0) {
        return false;
    }
    for (size_t i = 2; i < size; i++) {
        const uint8_t c = (uint8_t)text[i];
        const uint8_t lower = c | 0x20;
        if (!damacy__json_is_digit(c) && (lower < 'a' || lower > 'f')) {
            return false;
        }
        number = number << 4 | (uint64_t)(damacy__json_is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    *bits = number;
    return true;
}

/* Raw types: an array of bytes. */
static bool damacy__fill_raw(const damacy__json* json, uint32_t value, damacy_dtype dtype,
                             uint64_t* bits)
{
    uint64_t number = 0;
    uint32_t i = 0;

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, value) != damacy__dtype_size(dtype)) {
        return false;
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v), i++) {
        uint64_t byte;
        if (!damacy__json_u64(json, v, &byte) || byte > 255) {
            return false;
        }
        number |= byte << 8 * i;
    }
    *bits = number;
    return true;
}

static bool damacy__fill_bits(const damacy__json* json, uint32_t value, const damacy__dtype* type,
                              uint64_t* bits)
{
    const damacy__json_kind kind = damacy__json_kind_of(json, value);

    if (type->is_raw) {
        return damacy__fill_raw(json, value, type->dtype, bits);
    }
    if (type->dtype == DAMACY_BOOL && (kind == DAMACY__JSON_TRUE || kind == DAMACY__JSON_FALSE)) {
        *bits = kind == DAMACY__JSON_TRUE;
        return true;
    }
    if (kind == DAMACY__JSON_NUMBER) {
        const damacy__span text = damacy__json_source(json, value);
        if (damacy__dtype_is_float(type->dtype)) {
            return damacy__decimal_to_float(text, damacy__fill_format(type->dtype), bits);
        }
        return damacy__fill_integer(text, type->dtype, bits) &&
               (type->dtype != DAMACY_BOOL || *bits <= 1);
    }
    return kind == DAMACY__JSON_STRING && damacy__dtype_is_float(type->dtype) &&
           damacy__fill_float_name(json, value, type->dtype, bits);
}

/* bits: little-endian, in the low bytes. null, which some writers store, means 0. */
static damacy_status damacy__fill_parse(const damacy__json* json, uint32_t value,
                                        const damacy__dtype* type, uint64_t* bits,
                                        damacy_error* err)
{
    uint64_t parsed = 0;
    char text[64];

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_NULL &&
        !damacy__fill_bits(json, value, type, &parsed)) {
        return damacy__fail(err, DAMACY_DECODE, "fill_value %s is not a value of type %s",
                            damacy__json_show(json, value, text, sizeof text), type->name);
    }
    *bits = parsed;
    return DAMACY_OK;
}

/* ==== src/format/extension.h ==== */
/* The points at which Zarr v3 metadata can be extended: data type, chunk grid, chunk key encoding
 * and codecs -> name and configuration (Zarr v3 core, "Extension definition").
 *
 * A string "x" is short for {"name": "x"}. Members that are not understood are refused by name, as
 * they may change what the bytes mean. */

typedef struct damacy__extension {
    uint32_t name;          /* a string */
    uint32_t configuration; /* an object, or DAMACY__JSON_NONE */
    bool may_be_ignored;    /* must_understand is false */
} damacy__extension;

static damacy_status damacy__extension_parse(const damacy__json* json, uint32_t value,
                                             const char* what, damacy__extension* out,
                                             damacy_error* err);
static damacy_status damacy__members_check(const damacy__json* json, uint32_t object,
                                           const char* const* known, const char* what,
                                           damacy_error* err);
static damacy_status damacy__extents_parse(const damacy__json* json, uint32_t value,
                                           const char* what, int64_t least, uint32_t rank,
                                           int64_t* out, damacy_error* err);

/* Refuses members whose key is not in the list, which ends with NULL. object may be
 * DAMACY__JSON_NONE. */
static damacy_status damacy__members_check(const damacy__json* json, uint32_t object,
                                           const char* const* known, const char* what,
                                           damacy_error* err)
{
    char text[64];

    if (object == DAMACY__JSON_NONE) {
        return DAMACY_OK;
    }
    for (uint32_t k = damacy__json_first(json, object); k != DAMACY__JSON_NONE;
         k = damacy__json_next(json, object, k)) {
        uint32_t i = 0;
        while (known[i] && !damacy__json_equals(json, k, known[i])) {
            i++;
        }
        if (!known[i]) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "%s: unknown member \"%s\"", what,
                                damacy__json_show(json, k, text, sizeof text));
        }
    }
    return DAMACY_OK;
}

/* what names the place in messages. */
static damacy_status damacy__extension_parse(const damacy__json* json, uint32_t value,
                                             const char* what, damacy__extension* out,
                                             damacy_error* err)
{
    static const char* const known[] = {"name", "configuration", "must_understand", NULL};
    damacy__extension extension = {0};
    damacy__json_kind kind = damacy__json_kind_of(json, value);
    char text[64];

    extension.name = value;
    extension.configuration = DAMACY__JSON_NONE;
    if (kind == DAMACY__JSON_OBJECT) {
        DAMACY__TRY(damacy__members_check(json, value, known, what, err));
        extension.name = damacy__json_member(json, value, "name");
        extension.configuration = damacy__json_member(json, value, "configuration");
        kind = damacy__json_kind_of(json, damacy__json_member(json, value, "must_understand"));
        if (kind != DAMACY__JSON_ABSENT && kind != DAMACY__JSON_TRUE &&
            kind != DAMACY__JSON_FALSE) {
            return damacy__fail(err, DAMACY_DECODE, "%s: must_understand is not true or false",
                                what);
        }
        extension.may_be_ignored = kind == DAMACY__JSON_FALSE;
    } else if (kind != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "%s is neither a name nor an object", what);
    }
    if (damacy__json_kind_of(json, extension.name) != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "%s has no name", what);
    }
    if (extension.configuration != DAMACY__JSON_NONE &&
        damacy__json_kind_of(json, extension.configuration) != DAMACY__JSON_OBJECT) {
        return damacy__fail(err, DAMACY_DECODE, "%s \"%s\": configuration is not an object", what,
                            damacy__json_show(json, extension.name, text, sizeof text));
    }
    *out = extension;
    return DAMACY_OK;
}

/* An array of rank integers, each at least `least`. */
static damacy_status damacy__extents_parse(const damacy__json* json, uint32_t value,
                                           const char* what, int64_t least, uint32_t rank,
                                           int64_t* out, damacy_error* err)
{
    uint32_t i = 0;
    char text[64];

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "%s is not an array of integers", what);
    }
    if (damacy__json_count(json, value) != rank) {
        return damacy__fail(err, DAMACY_DECODE, "%s has %u axes, the array has %u", what,
                            damacy__json_count(json, value), rank);
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v), i++) {
        uint64_t number;
        if (!damacy__json_u64(json, v, &number) || number > INT64_MAX || (int64_t)number < least) {
            return damacy__fail(err, DAMACY_DECODE,
                                "%s[%u] is %s, not an integer from %" PRId64 " to 2^63 - 1", what,
                                i, damacy__json_show(json, v, text, sizeof text), least);
        }
        out[i] = (int64_t)number;
    }
    return DAMACY_OK;
}

/* ==== src/format/codec.h ==== */
/* The "codecs" member of array metadata -> a chain, with every rule on order and configuration.
 *
 * Configurations of compressors are only a record of what the writer did, and are not read:
 * decoding goes by the header of the compressed bytes. Everything else is checked, and what is not
 * known is refused by name. Shards within shards make a list of chains, not a tree, so nothing
 * recurses. */

/* Which of the three kinds of codec. */
typedef enum damacy__codec_stage {
    DAMACY__ARRAY_TO_ARRAY = 0,
    DAMACY__ARRAY_TO_BYTES,
    DAMACY__BYTES_TO_BYTES
} damacy__codec_stage;

typedef struct damacy__codec_name {
    const char* name;
    uint32_t kind; /* 0: decoding changes nothing */
    damacy__codec_stage stage;
} damacy__codec_name;

/* "endian" is an older name of "bytes". The numcodecs names mean the formats that numcodecs writes;
 * bitround only rounds when encoding. */
static const damacy__codec_name damacy__codec_names[] = {
    {"bytes", DAMACY__CODEC_BYTES, DAMACY__ARRAY_TO_BYTES},
    {"endian", DAMACY__CODEC_BYTES, DAMACY__ARRAY_TO_BYTES},
    {"sharding_indexed", DAMACY__CODEC_SHARDING, DAMACY__ARRAY_TO_BYTES},
    {"transpose", DAMACY__CODEC_TRANSPOSE, DAMACY__ARRAY_TO_ARRAY},
    {"bitround", 0, DAMACY__ARRAY_TO_ARRAY},
    {"numcodecs.bitround", 0, DAMACY__ARRAY_TO_ARRAY},
    {"zstd", DAMACY__CODEC_ZSTD, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.zstd", DAMACY__CODEC_ZSTD, DAMACY__BYTES_TO_BYTES},
    {"blosc", DAMACY__CODEC_BLOSC, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.blosc", DAMACY__CODEC_BLOSC, DAMACY__BYTES_TO_BYTES},
    {"gzip", DAMACY__CODEC_GZIP, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.gzip", DAMACY__CODEC_GZIP, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.zlib", DAMACY__CODEC_ZLIB, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.lz4", DAMACY__CODEC_LZ4, DAMACY__BYTES_TO_BYTES},
    {"crc32c", DAMACY__CODEC_CRC32C, DAMACY__BYTES_TO_BYTES},
};

/* What a chain encodes. */
typedef struct damacy__chain_input {
    const char* what; /* "codecs" or "index_codecs" */
    uint32_t rank;
    bool has_byte_order; /* elements of several bytes whose order matters */
    bool is_index;
} damacy__chain_input;

static damacy_status damacy__codecs_parse(const damacy__json* json, uint32_t value,
                                          damacy__alloc* alloc, const damacy__chain_input* input,
                                          const int64_t* shape, damacy__chain* out,
                                          damacy_error* err);
static void damacy__chain_deinit(damacy__chain* chain, damacy__alloc* alloc);
static void damacy__chain_summary(const damacy__chain* chain, char* text, size_t capacity);

/* A chain under construction. */
typedef struct damacy__chain_draft {
    damacy__codec codecs[DAMACY__MAX_CODECS + 1]; /* and "bytes", where a writer left it out */
    uint32_t n;
    uint32_t sharding; /* configuration of the sharding codec; DAMACY__JSON_NONE: there is none */
} damacy__chain_draft;

/* Without "endian" the order is little, as zarr-python reads it. */
static damacy_status damacy__codec_bytes(const damacy__json* json, uint32_t configuration,
                                         const damacy__chain_input* input, damacy__codec* codec,
                                         damacy_error* err)
{
    static const char* const known[] = {"endian", NULL};
    const uint32_t endian = damacy__json_member(json, configuration, "endian");
    char text[64];

    DAMACY__TRY(damacy__members_check(json, configuration, known, "codec \"bytes\"", err));
    if (damacy__json_equals(json, endian, "big")) {
        codec->big_endian = input->has_byte_order;
    } else if (endian != DAMACY__JSON_NONE && !damacy__json_equals(json, endian, "little")) {
        return damacy__fail(err, DAMACY_DECODE,
                            "codec \"bytes\": endian is %s, not \"little\" or \"big\"",
                            damacy__json_show(json, endian, text, sizeof text));
    }
    return DAMACY_OK;
}

/* order: a permutation, or the older "C" (as it is) and "F" (axes reversed). */
static damacy_status damacy__codec_transpose(const damacy__json* json, uint32_t configuration,
                                             uint32_t rank, damacy__codec* codec, damacy_error* err)
{
    static const char* const known[] = {"order", NULL};
    const uint32_t order = damacy__json_member(json, configuration, "order");
    const bool is_reversed = damacy__json_equals(json, order, "F");
    uint64_t seen = 0;
    uint32_t i = 0;

    DAMACY__TRY(damacy__members_check(json, configuration, known, "codec \"transpose\"", err));
    if (is_reversed || damacy__json_equals(json, order, "C")) {
        for (; i < rank; i++) {
            codec->order[i] = is_reversed ? rank - 1 - i : i;
        }
        return DAMACY_OK;
    }
    if (damacy__json_kind_of(json, order) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, order) != rank) {
        return damacy__fail(err, DAMACY_DECODE,
                            "codec \"transpose\": order is not a permutation of %u axes", rank);
    }
    for (uint32_t v = damacy__json_first(json, order); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, order, v), i++) {
        uint64_t axis;
        if (!damacy__json_u64(json, v, &axis) || axis >= rank || (seen >> axis & 1)) {
            return damacy__fail(err, DAMACY_DECODE,
                                "codec \"transpose\": order is not a permutation of %u axes", rank);
        }
        seen |= UINT64_C(1) << axis;
        codec->order[i] = (uint32_t)axis;
    }
    return DAMACY_OK;
}

/* Adds one codec to the draft. *stage is that of the codec before it. */
static damacy_status damacy__codec_parse(const damacy__json* json, uint32_t value,
                                         const damacy__chain_input* input,
                                         damacy__chain_draft* draft, damacy__codec_stage* stage,
                                         damacy_error* err)
{
    damacy__extension extension;
    const damacy__codec_name* found = NULL;
    damacy__codec* codec;
    char name[64];

    DAMACY__TRY(damacy__extension_parse(json, value, "codec", &extension, err));
    for (size_t i = 0; i < DAMACY__COUNT(damacy__codec_names); i++) {
        if (damacy__json_equals(json, extension.name, damacy__codec_names[i].name)) {
            found = &damacy__codec_names[i];
        }
    }
    if (!found) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported codec \"%s\"",
                            damacy__json_show(json, extension.name, name, sizeof name));
    }
    if (found->stage < *stage ||
        (found->stage == DAMACY__ARRAY_TO_BYTES && *stage == DAMACY__ARRAY_TO_BYTES)) {
        return damacy__fail(err, DAMACY_DECODE, "%s: codec \"%s\" cannot follow the one before it",
                            input->what, found->name);
    }
    if (input->is_index && found->kind != DAMACY__CODEC_BYTES &&
        found->kind != DAMACY__CODEC_TRANSPOSE && found->kind != DAMACY__CODEC_CRC32C) {
        return damacy__fail(err, DAMACY_DECODE,
                            "index_codecs: codec \"%s\" does not have a fixed size", found->name);
    }
    if (found->stage == DAMACY__BYTES_TO_BYTES && *stage == DAMACY__ARRAY_TO_ARRAY) {
        if (input->is_index) {
            return damacy__fail(err, DAMACY_DECODE, "index_codecs: codec \"bytes\" is missing");
        }
        draft->codecs[draft->n++].kind = DAMACY__CODEC_BYTES; /* as GDAL writes it */
    }
    *stage = found->stage;
    if (found->kind == 0) {
        return DAMACY_OK;
    }
    codec = &draft->codecs[draft->n++];
    codec->kind = found->kind;
    if (found->kind == DAMACY__CODEC_BYTES) {
        return damacy__codec_bytes(json, extension.configuration, input, codec, err);
    }
    if (found->kind == DAMACY__CODEC_TRANSPOSE) {
        return damacy__codec_transpose(json, extension.configuration, input->rank, codec, err);
    }
    if (found->kind == DAMACY__CODEC_SHARDING) {
        if (extension.configuration == DAMACY__JSON_NONE) {
            return damacy__fail(err, DAMACY_DECODE,
                                "codec \"sharding_indexed\" has no configuration");
        }
        draft->sharding = extension.configuration;
    }
    return DAMACY_OK;
}

/* Parses one list of codecs; a sharding codec is left empty, its configuration in *sharding. */
static damacy_status damacy__chain_parse(const damacy__json* json, uint32_t value,
                                         damacy__alloc* alloc, const damacy__chain_input* input,
                                         damacy__chain* out, uint32_t* sharding, damacy_error* err)
{
    damacy__chain_draft draft;
    damacy__codec_stage stage = DAMACY__ARRAY_TO_ARRAY;
    damacy__codec* codecs;

    memset(&draft, 0, sizeof draft);
    draft.sharding = DAMACY__JSON_NONE;
    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, value) == 0) {
        return damacy__fail(err, DAMACY_DECODE, "%s is not an array of at least one codec",
                            input->what);
    }
    if (damacy__json_count(json, value) > DAMACY__MAX_CODECS) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "%s: more than %u codecs are not supported",
                            input->what, DAMACY__MAX_CODECS);
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v)) {
        DAMACY__TRY(damacy__codec_parse(json, v, input, &draft, &stage, err));
    }
    if (stage == DAMACY__ARRAY_TO_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE,
                            "%s: no codec turns the array into bytes, such as \"bytes\"",
                            input->what);
    }
    codecs = damacy__new(alloc, draft.n, damacy__codec);
    if (!codecs) {
        return damacy__fail(err, DAMACY_OOM, "%s", input->what);
    }
    memcpy(codecs, draft.codecs, draft.n * sizeof codecs[0]);
    out->codecs = codecs;
    out->n = draft.n;
    *sharding = draft.sharding;
    return DAMACY_OK;
}

/* Chunk shape, grid and index location of a sharding codec that sees an array of this shape. */
static damacy_status damacy__sharding_parse(const damacy__json* json, uint32_t configuration,
                                            uint32_t rank, const int64_t* shape,
                                            damacy__sharding* out, damacy_error* err)
{
    static const char* const known[] = {"chunk_shape", "codecs", "index_codecs", "index_location",
                                        NULL};
    const uint32_t location = damacy__json_member(json, configuration, "index_location");

    DAMACY__TRY(
        damacy__members_check(json, configuration, known, "codec \"sharding_indexed\"", err));
    DAMACY__TRY(damacy__extents_parse(json, damacy__json_member(json, configuration, "chunk_shape"),
                                      "chunk_shape of \"sharding_indexed\"", 1, rank,
                                      out->chunk_shape, err));
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] % out->chunk_shape[i] != 0) {
            return damacy__fail(err, DAMACY_DECODE,
                                "axis %u: inner chunks of %" PRId64
                                " do not divide a shard of %" PRId64,
                                i, out->chunk_shape[i], shape[i]);
        }
        out->grid[i] = shape[i] / out->chunk_shape[i];
    }
    if (!damacy__product(out->grid, rank, &out->n_entries) ||
        out->n_entries > DAMACY__MAX_ENTRIES) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "a shard of more than %" PRIu64 " chunks is not supported",
                            DAMACY__MAX_ENTRIES);
    }
    out->index_at_start = damacy__json_equals(json, location, "start");
    if (location != DAMACY__JSON_NONE && !out->index_at_start &&
        !damacy__json_equals(json, location, "end")) {
        return damacy__fail(err, DAMACY_DECODE,
                            "index_location of \"sharding_indexed\" is not \"start\" or \"end\"");
    }
    return DAMACY_OK;
}

/* Shape that the array-to-bytes codec of a chain sees. */
static void damacy__chain_shape(const damacy__chain* chain, uint32_t rank, const int64_t* shape,
                                int64_t* out)
{
    uint32_t axes[DAMACY_MAX_RANK];

    for (uint32_t i = 0; i < rank; i++) {
        axes[i] = i;
    }
    (void)damacy__chain_axes(chain, rank, axes);
    for (uint32_t i = 0; i < rank; i++) {
        out[i] = shape[axes[i]];
    }
}

/* Fills the sharding codec of a chain. *inner receives the configuration of the one within. */
static damacy_status damacy__shard_level_parse(const damacy__json* json, uint32_t configuration,
                                               damacy__alloc* alloc,
                                               const damacy__chain_input* input,
                                               const int64_t* shape, damacy__sharding* out,
                                               uint32_t* inner, damacy_error* err)
{
    damacy__chain_input index_input = {0};
    uint32_t none;

    index_input.what = "index_codecs";
    index_input.rank = input->rank + 1;
    index_input.has_byte_order = true;
    index_input.is_index = true;
    DAMACY__TRY(damacy__sharding_parse(json, configuration, input->rank, shape, out, err));
    DAMACY__TRY(damacy__chain_parse(json, damacy__json_member(json, configuration, "index_codecs"),
                                    alloc, &index_input, &out->index_chain, &none, err));
    out->index_size = out->n_entries * 16;
    for (uint32_t i = 0; i < out->index_chain.n; i++) {
        out->index_size += out->index_chain.codecs[i].kind == DAMACY__CODEC_CRC32C ? 4 : 0;
    }
    return damacy__chain_parse(json, damacy__json_member(json, configuration, "codecs"), alloc,
                               input, &out->chunk_chain, inner, err);
}

static damacy__codec* damacy__chain_sharding(const damacy__chain* chain)
{
    for (uint32_t i = 0; i < chain->n; i++) {
        if (chain->codecs[i].kind == DAMACY__CODEC_SHARDING) {
            return &chain->codecs[i];
        }
    }
    return NULL;
}

/* shape: of a cell of the chunk grid, in the axes of the array. */
static damacy_status damacy__codecs_parse(const damacy__json* json, uint32_t value,
                                          damacy__alloc* alloc, const damacy__chain_input* input,
                                          const int64_t* shape, damacy__chain* out,
                                          damacy_error* err)
{
    damacy__chain chain = {0};
    damacy__chain* at = &chain;
    int64_t seen[DAMACY_MAX_RANK] = {0};
    uint32_t configuration = DAMACY__JSON_NONE;
    uint32_t level = 0;
    damacy_status status = damacy__chain_parse(json, value, alloc, input, at, &configuration, err);

    memcpy(seen, shape, input->rank * sizeof seen[0]);
    while (status == DAMACY_OK && configuration != DAMACY__JSON_NONE) {
        damacy__sharding* sharding;
        int64_t outer[DAMACY_MAX_RANK];

        if (level++ == DAMACY__MAX_SHARD_LEVELS) {
            status = damacy__fail(err, DAMACY_UNSUPPORTED,
                                  "shards within shards beyond %u levels are not supported",
                                  DAMACY__MAX_SHARD_LEVELS);
            break;
        }
        sharding = damacy__new(alloc, 1, damacy__sharding);
        if (!sharding) {
            status = damacy__fail(err, DAMACY_OOM, "%s", input->what);
            break;
        }
        damacy__chain_sharding(at)->sharding = sharding;
        memcpy(outer, seen, sizeof outer);
        damacy__chain_shape(at, input->rank, outer, seen);
        status = damacy__shard_level_parse(json, configuration, alloc, input, seen, sharding,
                                           &configuration, err);
        memcpy(seen, sharding->chunk_shape, sizeof seen);
        at = &sharding->chunk_chain;
    }
    if (status != DAMACY_OK) {
        damacy__chain_deinit(&chain, alloc);
        return status;
    }
    *out = chain;
    return DAMACY_OK;
}

/* Frees a chain and the shards within it. */
static void damacy__chain_deinit(damacy__chain* chain, damacy__alloc* alloc)
{
    damacy__chain at = *chain;

    memset(chain, 0, sizeof *chain);
    while (at.codecs) {
        const damacy__codec* const codec = damacy__chain_sharding(&at);
        damacy__sharding* const sharding = codec ? codec->sharding : NULL;
        damacy__chain next = {0};

        if (sharding) {
            next = sharding->chunk_chain;
            damacy__free(alloc, sharding->index_chain.codecs, sharding->index_chain.n);
            damacy__free(alloc, sharding, 1);
        }
        damacy__free(alloc, at.codecs, at.n);
        at = next;
    }
}

/* Text such as "transpose,sharding_indexed(bytes,zstd)", cut to capacity. */
static void damacy__chain_summary(const damacy__chain* chain, char* text, size_t capacity)
{
    const damacy__chain* chains[DAMACY__MAX_SHARD_LEVELS + 1];
    uint32_t next[DAMACY__MAX_SHARD_LEVELS + 1] = {0};
    uint32_t level = 0;
    size_t size = 0;

    chains[0] = chain;
    text[0] = '\0';
    for (;;) {
        const char* name = "";
        const damacy__codec* codec;

        if (next[level] == chains[level]->n) {
            if (level == 0) {
                return;
            }
            level--;
            size += (size_t)snprintf(text + size, capacity - size, ")");
        } else {
            codec = &chains[level]->codecs[next[level]++];
            for (size_t i = DAMACY__COUNT(damacy__codec_names); i-- > 0;) {
                if (damacy__codec_names[i].kind == codec->kind) {
                    name = damacy__codec_names[i].name;
                }
            }
            size += (size_t)snprintf(text + size, capacity - size, "%s%s%s",
                                     next[level] > 1 ? "," : "", name, codec->sharding ? "(" : "");
            if (codec->sharding) {
                chains[++level] = &codec->sharding->chunk_chain;
                next[level] = 0;
            }
        }
        size = DAMACY__MIN(size, capacity - 1);
    }
}

/* ==== src/format/zarr.h ==== */
/* zarr.json -> a document: the layout of an array, or a group, with its attributes as text.
 *
 * Follows the Zarr v3 core specification; what the document asks for is honoured or refused by
 * name. The document owns all that it points to and does not need the text any more. */

typedef enum damacy__node { DAMACY__NODE_ARRAY = 1, DAMACY__NODE_GROUP } damacy__node;

/* Texts end with a zero and are NULL where there is none. */
typedef struct damacy__document {
    uint32_t node;         /* damacy__node */
    uint32_t zarr_format;  /* 3 */
    damacy__layout layout; /* of an array, as is what follows, but for attributes */
    damacy__chain chain;   /* all codecs */
    char* attributes;      /* JSON text of an object; "{}" if none */
    char* data_type;       /* as the metadata says it */
    char* codecs;          /* such as "sharding_indexed(transpose,bytes,zstd)" */
    char* dimension_names[DAMACY_MAX_RANK];
} damacy__document;

static damacy_status damacy__zarr_parse(damacy__alloc* alloc, damacy__span text,
                                        damacy__document* out, damacy_error* err);
static void damacy__document_deinit(damacy__document* document, damacy__alloc* alloc);

/* What the functions below share. */
typedef struct damacy__zarr_parser {
    const damacy__json* json;
    damacy__alloc* alloc;
    damacy__document* document;
    const damacy__dtype* type;
} damacy__zarr_parser;

static void damacy__text_free(damacy__alloc* alloc, char* text)
{
    damacy__free(alloc, text, text ? strlen(text) + 1 : 0);
}

static void damacy__document_deinit(damacy__document* document, damacy__alloc* alloc)
{
    damacy__chain_deinit(&document->chain, alloc);
    damacy__text_free(alloc, document->attributes);
    damacy__text_free(alloc, document->data_type);
    damacy__text_free(alloc, document->codecs);
    for (uint32_t i = 0; i < DAMACY_MAX_RANK; i++) {
        damacy__text_free(alloc, document->dimension_names[i]);
    }
    memset(document, 0, sizeof *document);
}

/* A member of the root that must be there. */
static damacy_status damacy__zarr_member(const damacy__zarr_parser* parser, const char* key,
                                         uint32_t* out, damacy_error* err)
{
    *out = damacy__json_member(parser->json, 0, key);
    if (*out == DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_DECODE, "metadata has no \"%s\"", key);
    }
    return DAMACY_OK;
}

/* An extension whose must_understand may not be false, that must be there. */
static damacy_status damacy__zarr_extension(const damacy__zarr_parser* parser, const char* key,
                                            damacy__extension* out, damacy_error* err)
{
    uint32_t value;

    DAMACY__TRY(damacy__zarr_member(parser, key, &value, err));
    DAMACY__TRY(damacy__extension_parse(parser->json, value, key, out, err));
    if (out->may_be_ignored) {
        return damacy__fail(err, DAMACY_DECODE, "%s: must_understand cannot be false here", key);
    }
    return DAMACY_OK;
}

/* zarr_format and node_type. */
static damacy_status damacy__zarr_node(damacy__zarr_parser* parser, damacy_error* err)
{
    const damacy__json* json = parser->json;
    uint64_t format;
    uint32_t value;
    char text[64];

    if (damacy__json_kind_of(json, 0) != DAMACY__JSON_OBJECT) {
        return damacy__fail(err, DAMACY_DECODE, "metadata is not a JSON object");
    }
    DAMACY__TRY(damacy__zarr_member(parser, "zarr_format", &value, err));
    (void)damacy__json_show(json, value, text, sizeof text);
    if (damacy__json_kind_of(json, value) == DAMACY__JSON_STRING &&
        strncmp(text, "https://purl.org/zarr/", 22) == 0) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "drafts of Zarr v3 are not supported (%s)",
                            text);
    }
    if (!damacy__json_u64(json, value, &format)) {
        return damacy__fail(err, DAMACY_DECODE, "zarr_format is %s, not the integer 3", text);
    }
    if (format != 3) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "zarr_format %" PRIu64 " is not supported, only 3", format);
    }
    DAMACY__TRY(damacy__zarr_member(parser, "node_type", &value, err));
    if (damacy__json_equals(json, value, "array")) {
        parser->document->node = DAMACY__NODE_ARRAY;
    } else if (damacy__json_equals(json, value, "group")) {
        parser->document->node = DAMACY__NODE_GROUP;
    } else {
        return damacy__fail(err, DAMACY_DECODE, "node_type is %s, not \"array\" or \"group\"",
                            damacy__json_show(json, value, text, sizeof text));
    }
    parser->document->zarr_format = 3;
    return DAMACY_OK;
}

/* A member that is not known may stay only if it is an object that says must_understand: false. */
static damacy_status damacy__zarr_members(const damacy__zarr_parser* parser, damacy_error* err)
{
    static const char* const known[] = {
        "zarr_format", "node_type", "attributes",      "consolidated_metadata",
        "shape",       "data_type", "chunk_grid",      "chunk_key_encoding",
        "fill_value",  "codecs",    "dimension_names", "storage_transformers"};
    const damacy__json* json = parser->json;
    const size_t n = parser->document->node == DAMACY__NODE_GROUP ? 4 : DAMACY__COUNT(known);
    char text[64];

    for (uint32_t k = damacy__json_first(json, 0); k != DAMACY__JSON_NONE;
         k = damacy__json_next(json, 0, k)) {
        const uint32_t ignore = damacy__json_member(json, k + 1, "must_understand");
        size_t i = 0;
        while (i < n && !damacy__json_equals(json, k, known[i])) {
            i++;
        }
        if (i == n && damacy__json_kind_of(json, ignore) != DAMACY__JSON_FALSE) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "metadata has an unknown member \"%s\"",
                                damacy__json_show(json, k, text, sizeof text));
        }
    }
    return DAMACY_OK;
}

static damacy_status damacy__zarr_attributes(const damacy__zarr_parser* parser, damacy_error* err)
{
    const uint32_t value = damacy__json_member(parser->json, 0, "attributes");
    damacy__span source = damacy__span_of("{}", 2);

    if (value != DAMACY__JSON_NONE) {
        if (damacy__json_kind_of(parser->json, value) != DAMACY__JSON_OBJECT) {
            return damacy__fail(err, DAMACY_DECODE, "attributes is not an object");
        }
        source = damacy__json_source(parser->json, value);
    }
    parser->document->attributes =
        damacy__alloc_text(parser->alloc, (const char*)source.ptr, source.size);
    return parser->document->attributes ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "attributes");
}

static damacy_status damacy__zarr_shape(const damacy__zarr_parser* parser, damacy_error* err)
{
    damacy__layout* const layout = &parser->document->layout;
    uint32_t value;
    uint64_t n;

    DAMACY__TRY(damacy__zarr_member(parser, "shape", &value, err));
    if (damacy__json_kind_of(parser->json, value) != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "shape is not an array of integers");
    }
    if (damacy__json_count(parser->json, value) > DAMACY_MAX_RANK) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "%u axes are not supported, at most %d",
                            damacy__json_count(parser->json, value), DAMACY_MAX_RANK);
    }
    layout->rank = damacy__json_count(parser->json, value);
    DAMACY__TRY(
        damacy__extents_parse(parser->json, value, "shape", 0, layout->rank, layout->shape, err));
    if (!damacy__product(layout->shape, layout->rank, &n)) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "arrays of 2^63 voxels are not supported");
    }
    return DAMACY_OK;
}

static damacy_status damacy__zarr_type(damacy__zarr_parser* parser, damacy_error* err)
{
    damacy__layout* const layout = &parser->document->layout;
    static const char* const known[] = {NULL};
    damacy__extension extension;
    uint32_t value;
    char text[64];

    DAMACY__TRY(damacy__zarr_extension(parser, "data_type", &extension, err));
    for (size_t i = 0; i < DAMACY__COUNT(damacy__dtypes); i++) {
        if (damacy__json_equals(parser->json, extension.name, damacy__dtypes[i].name)) {
            parser->type = &damacy__dtypes[i];
        }
    }
    if (!parser->type) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported data type \"%s\"",
                            damacy__json_show(parser->json, extension.name, text, sizeof text));
    }
    DAMACY__TRY(
        damacy__members_check(parser->json, extension.configuration, known, "data_type", err));
    layout->dtype = parser->type->dtype;
    layout->item_size = (uint32_t)damacy__dtype_size(parser->type->dtype);
    DAMACY__TRY(damacy__zarr_member(parser, "fill_value", &value, err));
    DAMACY__TRY(damacy__fill_parse(parser->json, value, parser->type, &layout->fill, err));
    return damacy__json_text(parser->json, extension.name, parser->alloc,
                             &parser->document->data_type, err);
}

static damacy_status damacy__zarr_grid(const damacy__zarr_parser* parser, damacy_error* err)
{
    static const char* const known[] = {"chunk_shape", NULL};
    const damacy__json* json = parser->json;
    damacy__layout* const layout = &parser->document->layout;
    damacy__extension extension;
    uint64_t n_objects = 1;
    char text[64];

    DAMACY__TRY(damacy__zarr_extension(parser, "chunk_grid", &extension, err));
    if (!damacy__json_equals(json, extension.name, "regular")) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported chunk grid \"%s\"",
                            damacy__json_show(json, extension.name, text, sizeof text));
    }
    DAMACY__TRY(damacy__members_check(json, extension.configuration, known, "chunk_grid", err));
    DAMACY__TRY(damacy__extents_parse(
        json, damacy__json_member(json, extension.configuration, "chunk_shape"), "chunk_shape", 1,
        layout->rank, layout->object_shape, err));
    for (uint32_t i = 0; i < layout->rank; i++) {
        if (!damacy__mul(
                n_objects,
                damacy__div_up((uint64_t)layout->shape[i], (uint64_t)layout->object_shape[i]),
                &n_objects) ||
            n_objects > INT64_MAX) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "arrays of 2^63 chunks are not supported");
        }
    }
    return DAMACY_OK;
}

static damacy_status damacy__zarr_keys(const damacy__zarr_parser* parser, damacy_error* err)
{
    static const char* const known[] = {"separator", NULL};
    const damacy__json* json = parser->json;
    damacy__layout* const layout = &parser->document->layout;
    damacy__extension extension;
    uint32_t separator;
    char text[64];

    DAMACY__TRY(damacy__zarr_extension(parser, "chunk_key_encoding", &extension, err));
    layout->key_is_v2 = damacy__json_equals(json, extension.name, "v2");
    if (!layout->key_is_v2 && !damacy__json_equals(json, extension.name, "default")) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported chunk key encoding \"%s\"",
                            damacy__json_show(json, extension.name, text, sizeof text));
    }
    DAMACY__TRY(
        damacy__members_check(json, extension.configuration, known, "chunk_key_encoding", err));
    separator = damacy__json_member(json, extension.configuration, "separator");
    layout->key_separator = layout->key_is_v2 ? '.' : '/';
    if (damacy__json_equals(json, separator, "/") || damacy__json_equals(json, separator, ".")) {
        layout->key_separator = damacy__json_equals(json, separator, "/") ? '/' : '.';
    } else if (separator != DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_DECODE,
                            "chunk_key_encoding: separator is \"%s\", not \"/\" or \".\"",
                            damacy__json_show(json, separator, text, sizeof text));
    }
    return DAMACY_OK;
}

static damacy_status damacy__zarr_codecs(const damacy__zarr_parser* parser, damacy_error* err)
{
    damacy__document* const document = parser->document;
    damacy__chain_input input = {0};
    uint32_t value;
    char text[512];

    DAMACY__TRY(damacy__zarr_member(parser, "codecs", &value, err));
    input.what = "codecs";
    input.rank = document->layout.rank;
    input.has_byte_order = document->layout.item_size > 1 && !parser->type->is_raw;
    DAMACY__TRY(damacy__codecs_parse(parser->json, value, parser->alloc, &input,
                                     document->layout.object_shape, &document->chain, err));
    DAMACY__TRY(damacy__layout_resolve(&document->layout, &document->chain, err));
    damacy__chain_summary(&document->chain, text, sizeof text);
    document->codecs = damacy__alloc_text(parser->alloc, text, strlen(text));
    return document->codecs ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "codecs");
}

/* dimension_names: a text or null per axis; null as a whole is taken as absent. */
static damacy_status damacy__zarr_names(const damacy__zarr_parser* parser, damacy_error* err)
{
    const damacy__json* json = parser->json;
    damacy__document* const document = parser->document;
    const uint32_t value = damacy__json_member(json, 0, "dimension_names");
    const damacy__json_kind kind = damacy__json_kind_of(json, value);
    uint32_t i = 0;

    if (kind == DAMACY__JSON_ABSENT || kind == DAMACY__JSON_NULL) {
        return DAMACY_OK;
    }
    if (kind != DAMACY__JSON_ARRAY || damacy__json_count(json, value) != document->layout.rank) {
        return damacy__fail(err, DAMACY_DECODE, "dimension_names is not an array of %u names",
                            document->layout.rank);
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v), i++) {
        const damacy__json_kind name = damacy__json_kind_of(json, v);
        if (name == DAMACY__JSON_STRING) {
            DAMACY__TRY(
                damacy__json_text(json, v, parser->alloc, &document->dimension_names[i], err));
        } else if (name != DAMACY__JSON_NULL) {
            return damacy__fail(err, DAMACY_DECODE, "dimension_names[%u] is not a string or null",
                                i);
        }
    }
    return DAMACY_OK;
}

static damacy_status damacy__zarr_transformers(const damacy__zarr_parser* parser, damacy_error* err)
{
    const uint32_t value = damacy__json_member(parser->json, 0, "storage_transformers");
    const damacy__json_kind kind = damacy__json_kind_of(parser->json, value);
    damacy__extension extension;
    char text[64];

    if (kind == DAMACY__JSON_ABSENT) {
        return DAMACY_OK;
    }
    if (kind != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "storage_transformers is not an array");
    }
    if (damacy__json_count(parser->json, value) == 0) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__extension_parse(parser->json, damacy__json_first(parser->json, value),
                                        "storage_transformers", &extension, err));
    return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported storage transformer \"%s\"",
                        damacy__json_show(parser->json, extension.name, text, sizeof text));
}

static damacy_status damacy__zarr_root(damacy__zarr_parser* parser, damacy_error* err)
{
    DAMACY__TRY(damacy__json_refuse_duplicates(parser->json, parser->alloc, err));
    DAMACY__TRY(damacy__zarr_node(parser, err));
    DAMACY__TRY(damacy__zarr_members(parser, err));
    DAMACY__TRY(damacy__zarr_attributes(parser, err));
    if (parser->document->node == DAMACY__NODE_GROUP) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__zarr_shape(parser, err));
    DAMACY__TRY(damacy__zarr_type(parser, err));
    DAMACY__TRY(damacy__zarr_grid(parser, err));
    DAMACY__TRY(damacy__zarr_keys(parser, err));
    DAMACY__TRY(damacy__zarr_codecs(parser, err));
    DAMACY__TRY(damacy__zarr_names(parser, err));
    return damacy__zarr_transformers(parser, err);
}

/* text: the bytes of zarr.json. DECODE, UNSUPPORTED or OOM. Free with damacy__document_deinit. */
static damacy_status damacy__zarr_parse(damacy__alloc* alloc, damacy__span text,
                                        damacy__document* out, damacy_error* err)
{
    damacy__document document;
    damacy__json json = {0};
    damacy__zarr_parser parser = {0};
    damacy_status status;

    memset(&document, 0, sizeof document);
    DAMACY__TRY(damacy__json_parse(&json, alloc, text, NULL, err));
    parser.json = &json;
    parser.alloc = alloc;
    parser.document = &document;
    status = damacy__zarr_root(&parser, err);
    damacy__json_deinit(&json, alloc);
    if (status != DAMACY_OK) {
        damacy__document_deinit(&document, alloc);
        return status;
    }
    *out = document;
    return DAMACY_OK;
}

/* ==== src/format/ngff.h ==== */
/* Attributes of an OME-NGFF group -> axes and resolution levels of its first multiscale image.
 *
 * Reads versions 0.1 to 0.5: "multiscales" at the root or, since 0.5, below "ome". Paths come from
 * the metadata and are refused when they could lead out of the group. */

/* Texts are NULL where the metadata has none. */
typedef struct damacy__ngff {
    char* version;
    uint32_t n_axes; /* 0: the metadata does not say */
    char* axis_names[DAMACY_MAX_RANK];
    char* axis_types[DAMACY_MAX_RANK];
    char* axis_units[DAMACY_MAX_RANK];
    uint32_t n_levels;
    char** paths;         /* n_levels */
    damacy_level* levels; /* n_levels; path points into paths */
} damacy__ngff;

enum { DAMACY__NGFF_MAX_LEVELS = 1024, DAMACY__NGFF_MAX_PATH = 1024 };

static damacy_status damacy__ngff_parse(damacy__alloc* alloc, damacy__span attributes,
                                        damacy__ngff* out, damacy_error* err);
static void damacy__ngff_deinit(damacy__ngff* ngff, damacy__alloc* alloc);

static void damacy__ngff_free_text(damacy__alloc* alloc, char* text)
{
    damacy__free(alloc, text, text ? strlen(text) + 1 : 0);
}

static void damacy__ngff_deinit(damacy__ngff* ngff, damacy__alloc* alloc)
{
    damacy__ngff_free_text(alloc, ngff->version);
    for (uint32_t i = 0; i < DAMACY_MAX_RANK; i++) {
        damacy__ngff_free_text(alloc, ngff->axis_names[i]);
        damacy__ngff_free_text(alloc, ngff->axis_types[i]);
        damacy__ngff_free_text(alloc, ngff->axis_units[i]);
    }
    for (uint32_t i = 0; ngff->paths && i < ngff->n_levels; i++) {
        damacy__ngff_free_text(alloc, ngff->paths[i]);
    }
    damacy__free(alloc, ngff->paths, ngff->n_levels);
    damacy__free(alloc, ngff->levels, ngff->n_levels);
    memset(ngff, 0, sizeof *ngff);
}

/* Relative, every component a plain name: none empty, "." or "..", no backslash or control
 * character. */
static bool damacy__ngff_is_path(const char* path)
{
    size_t start = 0;

    for (size_t i = 0;; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            const size_t len = i - start;
            if (len == 0 ||
                (path[start] == '.' && (len == 1 || (len == 2 && path[start + 1] == '.')))) {
                return false;
            }
            start = i + 1;
        } else if (path[i] == '\\' || path[i] == 0x7f || (path[i] > 0 && path[i] < 0x20)) {
            return false;
        }
        if (path[i] == '\0') {
            return i <= DAMACY__NGFF_MAX_PATH;
        }
    }
}

/* A string member as text; leaves *out alone when it is absent or null. */
static damacy_status damacy__ngff_member(const damacy__json* json, uint32_t object, const char* key,
                                         damacy__alloc* alloc, char** out, damacy_error* err)
{
    const uint32_t value = damacy__json_member(json, object, key);
    const damacy__json_kind kind = damacy__json_kind_of(json, value);

    if (kind == DAMACY__JSON_ABSENT || kind == DAMACY__JSON_NULL) {
        return DAMACY_OK;
    }
    if (kind != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "multiscales: %s is not a string", key);
    }
    return damacy__json_text(json, value, alloc, out, err);
}

/* axes: objects since 0.4, names in 0.3, absent before. */
static damacy_status damacy__ngff_axes(const damacy__json* json, uint32_t image,
                                       damacy__alloc* alloc, damacy__ngff* ngff, damacy_error* err)
{
    const uint32_t axes = damacy__json_member(json, image, "axes");

    if (axes == DAMACY__JSON_NONE) {
        return DAMACY_OK;
    }
    if (damacy__json_kind_of(json, axes) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, axes) == 0 || damacy__json_count(json, axes) > DAMACY_MAX_RANK) {
        return damacy__fail(err, DAMACY_DECODE, "multiscales: axes is not an array of 1 to %d axes",
                            DAMACY_MAX_RANK);
    }
    for (uint32_t v = damacy__json_first(json, axes); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, axes, v)) {
        const uint32_t i = ngff->n_axes++;
        if (damacy__json_kind_of(json, v) == DAMACY__JSON_STRING) {
            DAMACY__TRY(damacy__json_text(json, v, alloc, &ngff->axis_names[i], err));
            continue;
        }
        if (damacy__json_kind_of(json, v) != DAMACY__JSON_OBJECT) {
            return damacy__fail(err, DAMACY_DECODE, "multiscales: axes[%u] is not an object", i);
        }
        DAMACY__TRY(damacy__ngff_member(json, v, "name", alloc, &ngff->axis_names[i], err));
        DAMACY__TRY(damacy__ngff_member(json, v, "type", alloc, &ngff->axis_types[i], err));
        DAMACY__TRY(damacy__ngff_member(json, v, "unit", alloc, &ngff->axis_units[i], err));
        if (!ngff->axis_names[i]) {
            return damacy__fail(err, DAMACY_DECODE, "multiscales: axes[%u] has no name", i);
        }
    }
    return DAMACY_OK;
}

/* One number per axis. */
static damacy_status damacy__ngff_vector(const damacy__json* json, uint32_t value, const char* what,
                                         uint32_t n_axes, double* out, uint32_t* n,
                                         damacy_error* err)
{
    damacy__float_format format;
    char text[64];

    format.n_exponent = 11;
    format.n_fraction = 52;
    *n = 0;
    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, value) > DAMACY_MAX_RANK ||
        (n_axes != 0 && damacy__json_count(json, value) != n_axes)) {
        return damacy__fail(err, DAMACY_DECODE,
                            "coordinateTransformations: %s is not an array of %u numbers", what,
                            n_axes);
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v)) {
        uint64_t bits;
        if (damacy__json_kind_of(json, v) != DAMACY__JSON_NUMBER ||
            !damacy__decimal_to_float(damacy__json_source(json, v), format, &bits)) {
            return damacy__fail(err, DAMACY_DECODE,
                                "coordinateTransformations: %s[%u] is %s, not a number", what, *n,
                                damacy__json_show(json, v, text, sizeof text));
        }
        memcpy(&out[(*n)++], &bits, sizeof bits);
    }
    return DAMACY_OK;
}

/* Applies one transformation after those that level holds. */
static damacy_status damacy__ngff_transform(const damacy__json* json, uint32_t value,
                                            uint32_t n_axes, damacy_level* level, damacy_error* err)
{
    const uint32_t type = damacy__json_member(json, value, "type");
    double vector[DAMACY_MAX_RANK];
    uint32_t n;
    char text[64];

    if (damacy__json_kind_of(json, type) != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "coordinateTransformations: no type");
    }
    if (damacy__json_equals(json, type, "identity")) {
        return DAMACY_OK;
    }
    if (damacy__json_equals(json, type, "scale")) {
        DAMACY__TRY(damacy__ngff_vector(json, damacy__json_member(json, value, "scale"), "scale",
                                        n_axes, vector, &n, err));
        for (uint32_t i = 0; i < n; i++) {
            level->scale[i] *= vector[i];
            level->translation[i] *= vector[i];
        }
        return DAMACY_OK;
    }
    if (damacy__json_equals(json, type, "translation")) {
        DAMACY__TRY(damacy__ngff_vector(json, damacy__json_member(json, value, "translation"),
                                        "translation", n_axes, vector, &n, err));
        for (uint32_t i = 0; i < n; i++) {
            level->translation[i] += vector[i];
        }
        return DAMACY_OK;
    }
    return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported coordinate transformation \"%s\"",
                        damacy__json_show(json, type, text, sizeof text));
}

/* The coordinateTransformations of a dataset or of the whole image, in order. */
static damacy_status damacy__ngff_transforms(const damacy__json* json, uint32_t owner,
                                             uint32_t n_axes, damacy_level* level,
                                             damacy_error* err)
{
    const uint32_t list = damacy__json_member(json, owner, "coordinateTransformations");
    const damacy__json_kind kind = damacy__json_kind_of(json, list);

    if (kind == DAMACY__JSON_ABSENT || kind == DAMACY__JSON_NULL) {
        return DAMACY_OK;
    }
    if (kind != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "coordinateTransformations is not an array");
    }
    for (uint32_t v = damacy__json_first(json, list); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, list, v)) {
        DAMACY__TRY(damacy__ngff_transform(json, v, n_axes, level, err));
    }
    return DAMACY_OK;
}

static damacy_status damacy__ngff_levels(const damacy__json* json, uint32_t image,
                                         damacy__alloc* alloc, damacy__ngff* ngff,
                                         damacy_error* err)
{
    const uint32_t datasets = damacy__json_member(json, image, "datasets");
    uint32_t i = 0;

    if (damacy__json_kind_of(json, datasets) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, datasets) == 0 ||
        damacy__json_count(json, datasets) > DAMACY__NGFF_MAX_LEVELS) {
        return damacy__fail(err, DAMACY_DECODE,
                            "multiscales: datasets is not an array of 1 to %d levels",
                            DAMACY__NGFF_MAX_LEVELS);
    }
    ngff->n_levels = damacy__json_count(json, datasets);
    ngff->paths = damacy__new(alloc, ngff->n_levels, char*);
    ngff->levels = damacy__new(alloc, ngff->n_levels, damacy_level);
    if (!ngff->paths || !ngff->levels) {
        return damacy__fail(err, DAMACY_OOM, "multiscales: %u levels", ngff->n_levels);
    }
    for (uint32_t v = damacy__json_first(json, datasets); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, datasets, v), i++) {
        damacy_level* const level = &ngff->levels[i];

        DAMACY__TRY(damacy__ngff_member(json, v, "path", alloc, &ngff->paths[i], err));
        if (!ngff->paths[i]) {
            return damacy__fail(err, DAMACY_DECODE, "multiscales: datasets[%u] has no path", i);
        }
        if (!damacy__ngff_is_path(ngff->paths[i])) {
            return damacy__fail(err, DAMACY_DECODE,
                                "multiscales: datasets[%u]: the path \"%.64s\" is not a plain "
                                "relative path",
                                i, ngff->paths[i]);
        }
        level->path = ngff->paths[i];
        for (uint32_t k = 0; k < DAMACY_MAX_RANK; k++) {
            level->scale[k] = 1;
        }
        DAMACY__TRY(damacy__ngff_transforms(json, v, ngff->n_axes, level, err));
        DAMACY__TRY(damacy__ngff_transforms(json, image, ngff->n_axes, level, err));
    }
    return DAMACY_OK;
}

/* Why a group without multiscales cannot be opened, and what to open instead. */
static damacy_status damacy__ngff_refuse_group(const damacy__json* json, uint32_t ome,
                                               damacy_error* err)
{
    if (damacy__json_member(json, ome, "plate") != DAMACY__JSON_NONE) {
        return damacy__fail(
            err, DAMACY_NOTFOUND,
            "the group is a plate: name one image of a well, such as A/1/0 below it");
    }
    if (damacy__json_member(json, ome, "well") != DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_NOTFOUND,
                            "the group is a well: name one of its images, such as 0 below it");
    }
    if (damacy__json_member(json, ome, "bioformats2raw.layout") != DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_NOTFOUND,
                            "the group holds several images: name one of them, such as 0 below it");
    }
    return damacy__fail(err, DAMACY_NOTFOUND,
                        "the group is not an NGFF image: it has no multiscales");
}

static damacy_status damacy__ngff_image(const damacy__json* json, damacy__alloc* alloc,
                                        damacy__ngff* ngff, damacy_error* err)
{
    uint32_t ome = damacy__json_member(json, 0, "ome");
    uint32_t images;
    uint32_t image;
    uint32_t version;

    ome = ome == DAMACY__JSON_NONE ? 0 : ome;
    images = damacy__json_member(json, ome, "multiscales");
    if (images == DAMACY__JSON_NONE) {
        return damacy__ngff_refuse_group(json, ome, err);
    }
    if (damacy__json_kind_of(json, images) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, images) == 0) {
        return damacy__fail(err, DAMACY_DECODE, "multiscales is not an array of images");
    }
    image = damacy__json_first(json, images);
    if (damacy__json_kind_of(json, image) != DAMACY__JSON_OBJECT) {
        return damacy__fail(err, DAMACY_DECODE, "multiscales[0] is not an object");
    }
    if (damacy__json_member(json, image, "coordinateSystems") != DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "NGFF with coordinateSystems (0.6) is not supported");
    }
    version = damacy__json_member(json, ome, "version");
    version = version == DAMACY__JSON_NONE ? damacy__json_member(json, image, "version") : version;
    if (damacy__json_kind_of(json, version) == DAMACY__JSON_STRING) {
        DAMACY__TRY(damacy__json_text(json, version, alloc, &ngff->version, err));
    }
    DAMACY__TRY(damacy__ngff_axes(json, image, alloc, ngff, err));
    return damacy__ngff_levels(json, image, alloc, ngff, err);
}

/* attributes: JSON text of the group's attributes. NOTFOUND when they name no image, DECODE,
 * UNSUPPORTED or OOM. Free with damacy__ngff_deinit. */
static damacy_status damacy__ngff_parse(damacy__alloc* alloc, damacy__span attributes,
                                        damacy__ngff* out, damacy_error* err)
{
    damacy__json json = {0};
    damacy__ngff ngff = {0};
    damacy_status status;

    DAMACY__TRY(damacy__json_parse(&json, alloc, attributes, NULL, err));
    status = damacy__ngff_image(&json, alloc, &ngff, err);
    damacy__json_deinit(&json, alloc);
    if (status != DAMACY_OK) {
        damacy__ngff_deinit(&ngff, alloc);
        return status;
    }
    *out = ngff;
    return DAMACY_OK;
}

/* ==== src/format/shard.h ==== */
/* The stored index of a shard -> where each of its chunks lies (Zarr v3 sharding_indexed codec).
 *
 * Both byte orders, transposed indexes, any number of checksums, at either end of the object.
 * Extents come out in C order of the shard's grid and lie within the object; they may overlap,
 * leave gaps and be in any order, and a chunk of 0 bytes is for its decoder to refuse. */

static damacy_status damacy__shard_locate(const damacy__sharding* sharding, uint64_t object_size,
                                          uint64_t* offset, damacy_error* err);
static damacy_status damacy__shard_decode(const damacy__sharding* sharding, uint32_t rank,
                                          damacy__span index, uint64_t object_size,
                                          damacy__extent* extents, damacy_error* err);

/* Where the index starts in an object of object_size bytes; it is sharding->index_size bytes long.
 */
static damacy_status damacy__shard_locate(const damacy__sharding* sharding, uint64_t object_size,
                                          uint64_t* offset, damacy_error* err)
{
    if (object_size < sharding->index_size) {
        return damacy__fail(err, DAMACY_DECODE,
                            "a shard of %" PRIu64 " bytes cannot hold its index of %" PRIu64,
                            object_size, sharding->index_size);
    }
    *offset = sharding->index_at_start ? 0 : object_size - sharding->index_size;
    return DAMACY_OK;
}

/* Checks and takes off the checksums, the outermost first. */
static damacy_status damacy__shard_check(const damacy__chain* chain, damacy__span* index,
                                         damacy_error* err)
{
    for (uint32_t i = chain->n; i-- > 0 && chain->codecs[i].kind == DAMACY__CODEC_CRC32C;) {
        uint32_t stored;
        uint32_t computed;

        index->size -= 4;
        stored = damacy__load_u32le(index->ptr + index->size);
        computed = damacy__crc32c(index->ptr, index->size);
        if (stored != computed) {
            return damacy__fail(err, DAMACY_DECODE,
                                "shard index: checksum is %08" PRIx32 ", its bytes give %08" PRIx32,
                                stored, computed);
        }
    }
    return DAMACY_OK;
}

/* Elements between neighbours of the encoded index along each axis of the grid, and, last, between
 * offset and size. */
static void damacy__shard_strides(const damacy__sharding* sharding, uint32_t rank, uint64_t* out)
{
    const damacy__chain* chain = &sharding->index_chain;
    uint32_t axes[DAMACY_MAX_RANK + 1];
    uint64_t stride = 1;

    for (uint32_t i = 0; i <= rank; i++) {
        axes[i] = i;
    }
    for (uint32_t c = 0; c < chain->n && chain->codecs[c].kind == DAMACY__CODEC_TRANSPOSE; c++) {
        uint32_t before[DAMACY_MAX_RANK + 1];
        memcpy(before, axes, sizeof before);
        for (uint32_t i = 0; i <= rank; i++) {
            axes[i] = before[chain->codecs[c].order[i]];
        }
    }
    for (uint32_t i = rank + 1; i-- > 0;) {
        out[axes[i]] = stride;
        stride *= axes[i] == rank ? 2 : (uint64_t)sharding->grid[axes[i]];
    }
}

static bool damacy__shard_is_big_endian(const damacy__sharding* sharding)
{
    for (uint32_t i = 0; i < sharding->index_chain.n; i++) {
        if (sharding->index_chain.codecs[i].kind == DAMACY__CODEC_BYTES) {
            return sharding->index_chain.codecs[i].big_endian != 0;
        }
    }
    return false;
}

static uint64_t damacy__shard_load(const uint8_t* src, bool is_big_endian)
{
    return is_big_endian ? damacy__load_u64be(src) : damacy__load_u64le(src);
}

static damacy_status damacy__extent_check(damacy__extent extent, uint64_t number,
                                          uint64_t object_size, damacy_error* err)
{
    uint64_t end;

    if (extent.offset == UINT64_MAX && extent.size == UINT64_MAX) {
        return DAMACY_OK;
    }
    if (extent.offset == UINT64_MAX || extent.size == UINT64_MAX) {
        return damacy__fail(err, DAMACY_DECODE, "shard index: chunk %" PRIu64 " has %s but no %s",
                            number, extent.offset == UINT64_MAX ? "a size" : "an offset",
                            extent.offset == UINT64_MAX ? "offset" : "size");
    }
    if (!damacy__add(extent.offset, extent.size, &end) || end > object_size) {
        return damacy__fail(err, DAMACY_DECODE,
                            "shard index: chunk %" PRIu64 " at %" PRIu64 " of %" PRIu64
                            " bytes lies outside the object of %" PRIu64,
                            number, extent.offset, extent.size, object_size);
    }
    return DAMACY_OK;
}

/* index: the sharding->index_size bytes as stored. extents: room for sharding->n_entries; untouched
 * on failure. object_size: bytes of the whole shard. */
static damacy_status damacy__shard_decode(const damacy__sharding* sharding, uint32_t rank,
                                          damacy__span index, uint64_t object_size,
                                          damacy__extent* extents, damacy_error* err)
{
    const bool is_big_endian = damacy__shard_is_big_endian(sharding);
    uint64_t strides[DAMACY_MAX_RANK + 1];

    if (index.size != sharding->index_size) {
        return damacy__fail(err, DAMACY_DECODE, "shard index of %zu bytes, %" PRIu64 " are wanted",
                            index.size, sharding->index_size);
    }
    DAMACY__TRY(damacy__shard_check(&sharding->index_chain, &index, err));
    damacy__shard_strides(sharding, rank, strides);
    for (uint32_t pass = 0; pass < 2; pass++) { /* first check, then write */
        int64_t position[DAMACY_MAX_RANK] = {0};
        uint64_t at = 0; /* element of the offset */

        for (uint64_t i = 0; i < sharding->n_entries; i++) {
            damacy__extent extent;
            extent.offset = damacy__shard_load(index.ptr + 8 * at, is_big_endian);
            extent.size = damacy__shard_load(index.ptr + 8 * (at + strides[rank]), is_big_endian);
            if (pass == 0) {
                DAMACY__TRY(damacy__extent_check(extent, i, object_size, err));
            } else {
                extents[i] = extent;
            }
            for (uint32_t k = rank; k-- > 0;) {
                at += strides[k];
                if (++position[k] < sharding->grid[k]) {
                    break;
                }
                at -= strides[k] * (uint64_t)sharding->grid[k];
                position[k] = 0;
            }
        }
    }
    return DAMACY_OK;
}

/* ==== src/format/key.h ==== */
/* Position of an object in the chunk grid -> its key below the array, such as "c/0/1" or "0.1". */

/* Enough for every key: "c", 32 separators, numbers of up to 19 digits, a zero. */
enum { DAMACY__KEY_CAPACITY = 2 + DAMACY_MAX_RANK * 20 };

/* text receives at most capacity bytes, the final zero included. Fails only when it is too small.
 */
static inline damacy_status damacy__key_write(const damacy__layout* layout, const int64_t* position,
                                              char* text, size_t capacity, damacy_error* err)
{
    char key[DAMACY__KEY_CAPACITY];
    size_t size = 0;

    if (!layout->key_is_v2) {
        key[size++] = 'c';
    } else if (layout->rank == 0) {
        key[size++] = '0';
    }
    for (uint32_t i = 0; i < layout->rank; i++) {
        char digits[20];
        uint32_t n = 0;
        uint64_t number = (uint64_t)position[i];

        if (size > 0) {
            key[size++] = layout->key_separator;
        }
        do {
            digits[n++] = (char)('0' + number % 10);
            number /= 10;
        } while (number);
        while (n > 0) {
            key[size++] = digits[--n];
        }
    }
    key[size++] = '\0';
    if (size > capacity) {
        return damacy__fail(err, DAMACY_INVAL, "the key %.64s needs %zu bytes, there are %zu", key,
                            size, capacity);
    }
    memcpy(text, key, size);
    return DAMACY_OK;
}

/* ==== src/codec/library.h ==== */
/* The shared libraries that decode on the host, opened when a chunk first needs one.
 *
 * A machine without a library loses its codec and nothing else: the error names the file and what
 * it is for. Declarations are ours, so no headers are needed to build. */

typedef struct damacy__zstd_context damacy__zstd_context; /* ZSTD_DCtx */

/* What libz's inflate works on (zlib.h, stable since 1.2). */
typedef struct damacy__z_stream {
    const uint8_t* next_in;
    unsigned avail_in;
    unsigned long total_in;
    uint8_t* next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char* msg;
    void* state;
    void* zalloc;
    void* zfree;
    void* opaque;
    int data_type;
    unsigned long adler;
    unsigned long reserved;
} damacy__z_stream;

/* libzstd.so.1 */
typedef struct damacy__zstd_library {
    damacy__zstd_context* (*create)(void);
    size_t (*free)(damacy__zstd_context* context);
    size_t (*decompress)(damacy__zstd_context* context, void* dst, size_t capacity, const void* src,
                         size_t size);
    size_t (*set_parameter)(damacy__zstd_context* context, int parameter, int value);
    unsigned (*is_error)(size_t code);
    const char* (*error_name)(size_t code);
} damacy__zstd_library;

/* libz.so.1 */
typedef struct damacy__z_library {
    int (*init)(damacy__z_stream* stream, int window_bits, const char* version, int stream_size);
    int (*inflate)(damacy__z_stream* stream, int flush);
    int (*reset)(damacy__z_stream* stream);
    int (*end)(damacy__z_stream* stream);
} damacy__z_library;

typedef struct damacy__libraries {
    damacy__mutex mutex;
    bool has_mutex;
    void* zstd_handle; /* guarded by mutex, as is what follows; tables are constant once opened */
    void* z_handle;
    damacy__zstd_library zstd;
    damacy__z_library z;
} damacy__libraries;

static damacy_status damacy__libraries_init(damacy__libraries* libraries, damacy_error* err);
static void damacy__libraries_deinit(damacy__libraries* libraries);
static damacy_status damacy__libraries_zstd(damacy__libraries* libraries,
                                            const damacy__zstd_library** out, damacy_error* err);
static damacy_status damacy__libraries_z(damacy__libraries* libraries,
                                         const damacy__z_library** out, damacy_error* err);

static damacy_status damacy__libraries_init(damacy__libraries* libraries, damacy_error* err)
{
    memset(libraries, 0, sizeof *libraries);
    DAMACY__TRY(damacy__mutex_init(&libraries->mutex, err));
    libraries->has_mutex = true;
    return DAMACY_OK;
}

/* A zeroed record is left alone. */
static void damacy__libraries_deinit(damacy__libraries* libraries)
{
    if (libraries->zstd_handle) {
        dlclose(libraries->zstd_handle);
    }
    if (libraries->z_handle) {
        dlclose(libraries->z_handle);
    }
    if (libraries->has_mutex) {
        damacy__mutex_deinit(&libraries->mutex);
    }
    memset(libraries, 0, sizeof *libraries);
}

/* One function of a library; its address is stored through a pointer to a function pointer. */
typedef struct damacy__symbol {
    const char* name;
    void* target;
} damacy__symbol;

/* Opens a library and finds all its functions; the handle is NULL unless all are there. */
static damacy_status damacy__library_open(const char* soname, const char* purpose,
                                          const damacy__symbol* symbols, size_t n, void** out,
                                          damacy_error* err)
{
    void* handle = dlopen(soname, RTLD_NOW | RTLD_LOCAL);

    if (!handle) {
        const char* why = dlerror();
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "%s is needed to decode %s on the host: %.200s", soname, purpose,
                            why ? why : "not found");
    }
    for (size_t i = 0; i < n; i++) {
        void* address = dlsym(handle, symbols[i].name);
        if (!address) {
            dlclose(handle);
            return damacy__fail(err, DAMACY_UNSUPPORTED, "%s has no %s: too old to decode %s",
                                soname, symbols[i].name, purpose);
        }
        memcpy(symbols[i].target, &address, sizeof address);
    }
    *out = handle;
    return DAMACY_OK;
}

/* The functions of libzstd, opened at the first call. Any thread. */
static damacy_status damacy__libraries_zstd(damacy__libraries* libraries,
                                            const damacy__zstd_library** out, damacy_error* err)
{
    damacy_status status = DAMACY_OK;
    damacy__zstd_library* z = &libraries->zstd;

    damacy__lock(&libraries->mutex);
    if (!libraries->zstd_handle) {
        const damacy__symbol symbols[] = {
            {"ZSTD_createDCtx", &z->create},         {"ZSTD_freeDCtx", &z->free},
            {"ZSTD_decompressDCtx", &z->decompress}, {"ZSTD_DCtx_setParameter", &z->set_parameter},
            {"ZSTD_isError", &z->is_error},          {"ZSTD_getErrorName", &z->error_name}};
        status = damacy__library_open("libzstd.so.1", "zstd", symbols, DAMACY__COUNT(symbols),
                                      &libraries->zstd_handle, err);
    }
    damacy__unlock(&libraries->mutex);
    *out = z;
    return status;
}

/* The functions of libz, opened at the first call. Any thread. */
static damacy_status damacy__libraries_z(damacy__libraries* libraries,
                                         const damacy__z_library** out, damacy_error* err)
{
    damacy_status status = DAMACY_OK;
    damacy__z_library* z = &libraries->z;

    damacy__lock(&libraries->mutex);
    if (!libraries->z_handle) {
        const damacy__symbol symbols[] = {{"inflateInit2_", &z->init},
                                          {"inflate", &z->inflate},
                                          {"inflateReset", &z->reset},
                                          {"inflateEnd", &z->end}};
        status = damacy__library_open("libz.so.1", "gzip and zlib", symbols, DAMACY__COUNT(symbols),
                                      &libraries->z_handle, err);
    }
    damacy__unlock(&libraries->mutex);
    *out = z;
    return status;
}

/* ==== src/codec/zstd.h ==== */
/* Zstandard on the host: our own walk over frame and block headers first, then libzstd.
 *
 * Versions of libzstd disagree about malformed headers, so what headers can settle is settled here,
 * the same way as on the GPU: RFC 8878 to the letter, blocks above the block limit and dictionaries
 * refused, concatenated and skippable frames accepted. Decoded sizes must match exactly. */

/* One per worker. Zero: empty. */
typedef struct damacy__zstd {
    const damacy__zstd_library* library;
    damacy__zstd_context* context;
} damacy__zstd;

static damacy_status damacy__zstd_check(damacy__span src, uint64_t expected, damacy_error* err);
static damacy_status damacy__zstd_open(damacy__zstd* zstd, damacy__libraries* libraries,
                                       bool skip_checksums, damacy_error* err);
static void damacy__zstd_close(damacy__zstd* zstd);
static damacy_status damacy__zstd_decode(damacy__zstd* zstd, damacy__span src, uint8_t* dst,
                                         uint64_t expected, uint64_t* size, damacy_error* err);

/* What a frame header says. */
typedef struct damacy__zstd_header {
    uint64_t content; /* UINT64_MAX: not said */
    uint64_t block_max;
    bool has_checksum;
} damacy__zstd_header;

static damacy_status damacy__zstd_refuse(damacy_error* err, size_t at, const char* what)
{
    err->offset = at;
    return damacy__fail(err, DAMACY_DECODE, "zstd: %s at byte %zu", what, at);
}

/* RFC 8878 section 3.1.1.1; *at is behind the magic number and moves behind the header. */
static damacy_status damacy__zstd_read_header(damacy__span src, size_t* at,
                                              damacy__zstd_header* out, damacy_error* err)
{
    static const uint8_t dictionary_sizes[4] = {0, 1, 2, 4};
    static const uint8_t content_sizes[4] = {0, 2, 4, 8};
    const size_t start = *at;
    uint8_t descriptor;
    bool is_single;
    size_t n_dictionary;
    size_t n_content;
    uint64_t window = 0;
    uint64_t dictionary = 0;

    if (src.size - start < 1) {
        return damacy__zstd_refuse(err, start, "the frame header is cut short");
    }
    descriptor = src.ptr[start];
    is_single = descriptor >> 5 & 1;
    n_dictionary = dictionary_sizes[descriptor & 3];
    n_content = content_sizes[descriptor >> 6];
    n_content = n_content == 0 && is_single ? 1 : n_content;
    if (descriptor & 8) {
        return damacy__zstd_refuse(err, start, "a reserved bit of the frame header is set");
    }
    if (src.size - start - 1 < (is_single ? 0u : 1u) + n_dictionary + n_content) {
        return damacy__zstd_refuse(err, start, "the frame header is cut short");
    }
    *at = start + 1;
    if (!is_single) {
        const uint8_t w = src.ptr[(*at)++];
        const uint64_t base = UINT64_C(1) << (10 + (w >> 3));
        window = base + base / 8 * (w & 7);
    }
    for (size_t i = 0; i < n_dictionary; i++) {
        dictionary |= (uint64_t)src.ptr[(*at)++] << (8 * i);
    }
    out->content = n_content ? 0 : UINT64_MAX;
    for (size_t i = 0; i < n_content; i++) {
        out->content |= (uint64_t)src.ptr[(*at)++] << (8 * i);
    }
    out->content += n_content == 2 ? 256 : 0;
    if (dictionary != 0) {
        err->offset = start;
        return damacy__fail(err, DAMACY_UNSUPPORTED, "zstd: the frame needs dictionary %" PRIu64,
                            dictionary);
    }
    if (n_content && out->content == UINT64_MAX) {
        return damacy__zstd_refuse(err, start, "an impossible content size");
    }
    window = is_single ? out->content : window;
    out->block_max = DAMACY__MIN(window, 131072);
    out->has_checksum = descriptor >> 2 & 1;
    return DAMACY_OK;
}

/* Walks the blocks of a frame; *at moves behind the last one. RFC 8878 section 3.1.1.2. */
static damacy_status damacy__zstd_walk_blocks(damacy__span src, size_t* at, uint64_t block_max,
                                              damacy_error* err)
{
    for (;;) {
        uint32_t header;
        uint32_t type;
        uint64_t size;
        if (src.size - *at < 3) {
            return damacy__zstd_refuse(err, *at, "a block header is cut short");
        }
        header = (uint32_t)src.ptr[*at] | (uint32_t)src.ptr[*at + 1] << 8 |
                 (uint32_t)src.ptr[*at + 2] << 16;
        type = header >> 1 & 3;
        size = header >> 3;
        if (type == 3) {
            return damacy__zstd_refuse(err, *at, "a block of the reserved type");
        }
        if (size > block_max) {
            return damacy__zstd_refuse(err, *at, "a block above the block size limit");
        }
        if (src.size - *at - 3 < (type == 1 ? 1 : size)) {
            return damacy__zstd_refuse(err, *at, "a block is cut short");
        }
        *at += 3 + (size_t)(type == 1 ? 1 : size);
        if (header & 1) {
            return DAMACY_OK;
        }
    }
}

/* One frame, skippable or not; adds its content size, or sets *is_known to false. */
static damacy_status damacy__zstd_walk_frame(damacy__span src, size_t* at, uint64_t* content,
                                             bool* is_known, damacy_error* err)
{
    damacy__zstd_header header = {0};
    uint32_t magic;

    if (src.size - *at < 4) {
        return damacy__zstd_refuse(err, *at, "bytes that are no frame");
    }
    magic = damacy__load_u32le(src.ptr + *at);
    if ((magic & 0xfffffff0u) == 0x184d2a50u) {
        if (src.size - *at < 8 || src.size - *at - 8 < damacy__load_u32le(src.ptr + *at + 4)) {
            return damacy__zstd_refuse(err, *at, "a skippable frame is cut short");
        }
        *at += 8 + (size_t)damacy__load_u32le(src.ptr + *at + 4);
        return DAMACY_OK;
    }
    if (magic != 0xfd2fb528u) {
        return damacy__zstd_refuse(err, *at, "no frame magic number");
    }
    *at += 4;
    DAMACY__TRY(damacy__zstd_read_header(src, at, &header, err));
    DAMACY__TRY(damacy__zstd_walk_blocks(src, at, header.block_max, err));
    if (header.has_checksum) {
        if (src.size - *at < 4) {
            return damacy__zstd_refuse(err, *at, "the checksum is cut short");
        }
        *at += 4;
    }
    if (header.content == UINT64_MAX) {
        *is_known = false;
    } else if (!damacy__add(*content, header.content, content)) {
        return damacy__zstd_refuse(err, *at, "content sizes that overflow");
    }
    return DAMACY_OK;
}

/* Checks what headers can tell: every frame and block, and the size where all frames give theirs.
 * expected UINT64_MAX: any. */
static damacy_status damacy__zstd_check(damacy__span src, uint64_t expected, damacy_error* err)
{
    uint64_t content = 0;
    bool is_known = true;
    size_t at = 0;

    if (src.size == 0) {
        return damacy__zstd_refuse(err, 0, "no bytes");
    }
    while (at < src.size) {
        DAMACY__TRY(damacy__zstd_walk_frame(src, &at, &content, &is_known, err));
    }
    if (expected != UINT64_MAX && (content > expected || (is_known && content != expected))) {
        return damacy__fail(err, DAMACY_DECODE,
                            "zstd: the frame holds %" PRIu64 " bytes, the chunk has %" PRIu64,
                            content, expected);
    }
    return DAMACY_OK;
}

/* Makes the context at the first use. */
static damacy_status damacy__zstd_open(damacy__zstd* zstd, damacy__libraries* libraries,
                                       bool skip_checksums, damacy_error* err)
{
    enum { DAMACY__ZSTD_FORCE_IGNORE_CHECKSUM = 1002 };

    if (zstd->context) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__libraries_zstd(libraries, &zstd->library, err));
    zstd->context = zstd->library->create();
    if (!zstd->context) {
        return damacy__fail(err, DAMACY_OOM, "zstd context");
    }
    if (skip_checksums) {
        (void)zstd->library->set_parameter(zstd->context, DAMACY__ZSTD_FORCE_IGNORE_CHECKSUM, 1);
    }
    return DAMACY_OK;
}

static void damacy__zstd_close(damacy__zstd* zstd)
{
    if (zstd->context) {
        (void)zstd->library->free(zstd->context);
        zstd->context = NULL;
    }
}

/* Decodes all frames of src into dst. size NULL: exactly `expected` bytes are demanded; else at
 * most as many, and *size receives how many there were. */
static damacy_status damacy__zstd_decode(damacy__zstd* zstd, damacy__span src, uint8_t* dst,
                                         uint64_t expected, uint64_t* size, damacy_error* err)
{
    size_t n;

    DAMACY__TRY(damacy__zstd_check(src, size ? UINT64_MAX : expected, err));
    n = zstd->library->decompress(zstd->context, dst, (size_t)expected, src.ptr, src.size);
    if (zstd->library->is_error(n)) {
        return damacy__fail(err, DAMACY_DECODE, "zstd: %s", zstd->library->error_name(n));
    }
    if (!size && n != expected) {
        return damacy__fail(err, DAMACY_DECODE,
                            "zstd: decoded to %zu bytes, the chunk has %" PRIu64, n, expected);
    }
    if (size) {
        *size = n;
    }
    return DAMACY_OK;
}

/* ==== src/codec/lz4.h ==== */
/* LZ4 blocks on the host: our own decoder, so that hostile bytes meet nothing but checked copies.
 *
 * Two containers: a bare block whose decoded size is known from outside (inside blosc), and
 * numcodecs' form, a 32-bit little-endian decoded size and then the block. Source:
 * lz4_Block_format.md. */

static damacy_status damacy__lz4_decode(damacy__span src, uint8_t* dst, size_t size,
                                        damacy_error* err);

static damacy_status damacy__lz4_refuse(damacy_error* err, size_t at, const char* what)
{
    err->offset = at;
    return damacy__fail(err, DAMACY_DECODE, "lz4: %s at byte %zu", what, at);
}

/* A length: 15 in the token is followed by bytes that add up to the first below 255. */
static inline bool damacy__lz4_length(damacy__span src, size_t* at, size_t* length)
{
    uint8_t byte = 255;

    if (*length < 15) {
        return true;
    }
    while (byte == 255) {
        if (*at == src.size) {
            return false;
        }
        byte = src.ptr[(*at)++];
        *length += byte;
    }
    return true;
}

/* Copies n bytes from `offset` bytes back, which may overlap; there is room. */
static inline void damacy__lz4_match(uint8_t* dst, size_t offset, size_t n)
{
    const uint8_t* from = dst - offset;

    if (offset >= n) {
        memcpy(dst, from, n);
    } else if (offset == 1) {
        memset(dst, from[0], n);
    } else {
        /* Doubles what is there: each step copies as much as lies before dst. */
        while (n > offset) {
            memcpy(dst, from, offset);
            dst += offset;
            n -= offset;
            offset *= 2;
        }
        memcpy(dst, from, n);
    }
}

/* Decodes one block to exactly size bytes, using up exactly src. */
static damacy_status damacy__lz4_decode(damacy__span src, uint8_t* dst, size_t size,
                                        damacy_error* err)
{
    size_t at = 0;
    size_t n = 0;

    if (src.size == 0) {
        return damacy__lz4_refuse(err, 0, "no bytes");
    }
    while (at < src.size) {
        const uint8_t token = src.ptr[at++];
        size_t literals = token >> 4;
        size_t match = token & 15;
        size_t offset;
        if (!damacy__lz4_length(src, &at, &literals)) {
            return damacy__lz4_refuse(err, at, "a length is cut short");
        }
        if (literals > src.size - at || literals > size - n) {
            return damacy__lz4_refuse(err, at, "literals beyond the end");
        }
        memcpy(dst + n, src.ptr + at, literals);
        n += literals;
        at += literals;
        if (at == src.size) {
            break; /* the last sequence has literals only */
        }
        if (src.size - at < 2) {
            return damacy__lz4_refuse(err, at, "an offset is cut short");
        }
        offset = damacy__load_u16le(src.ptr + at);
        at += 2;
        if (offset == 0 || offset > n) {
            return damacy__lz4_refuse(err, at - 2, "an offset before the start");
        }
        if (!damacy__lz4_length(src, &at, &match)) {
            return damacy__lz4_refuse(err, at, "a length is cut short");
        }
        match += 4;
        if (match > size - n) {
            return damacy__lz4_refuse(err, at, "a match beyond the end");
        }
        damacy__lz4_match(dst + n, offset, match);
        n += match;
        if (at == src.size) {
            return damacy__lz4_refuse(err, at, "no final literals");
        }
    }
    if (n != size) {
        return damacy__fail(err, DAMACY_DECODE, "lz4: decoded to %zu bytes, %zu are due", n, size);
    }
    return DAMACY_OK;
}

/* ==== src/codec/gzip.h ==== */
/* gzip (RFC 1952) and zlib (RFC 1950) on the host through libz.
 *
 * Several gzip members in a row are one stream; libz compares their checksums. Bytes behind the end
 * are an error. */

static damacy_status damacy__inflate(damacy__libraries* libraries, bool is_gzip, damacy__span src,
                                     uint8_t* dst, uint64_t capacity, uint64_t* size,
                                     damacy_error* err);

/* Inflates members until the input ends; *size receives the bytes written. */
static damacy_status damacy__inflate_members(const damacy__z_library* z, damacy__z_stream* stream,
                                             bool is_gzip, damacy__span src, uint64_t capacity,
                                             damacy_error* err)
{
    enum { DAMACY__Z_FINISH = 4, DAMACY__Z_STREAM_END = 1, DAMACY__Z_BUF_ERROR = -5 };
    const char* name = is_gzip ? "gzip" : "zlib";

    for (;;) {
        const int code = z->inflate(stream, DAMACY__Z_FINISH);
        const size_t at = (size_t)(stream->next_in - src.ptr);
        if (code != DAMACY__Z_STREAM_END) {
            err->offset = at;
            if (stream->avail_out == 0 || (code == DAMACY__Z_BUF_ERROR && stream->avail_in != 0)) {
                return damacy__fail(err, DAMACY_DECODE, "%s: more than the %" PRIu64 " bytes due",
                                    name, capacity);
            }
            return damacy__fail(err, DAMACY_DECODE, "%s: %s at byte %zu", name,
                                stream->msg ? stream->msg : "the stream is cut short", at);
        }
        if (stream->avail_in == 0) {
            return DAMACY_OK;
        }
        if (!is_gzip || z->reset(stream) != 0) {
            err->offset = at;
            return damacy__fail(err, DAMACY_DECODE, "%s: %u bytes behind the end", name,
                                stream->avail_in);
        }
    }
}

/* Decodes the whole of src into at most capacity bytes. */
static damacy_status damacy__inflate(damacy__libraries* libraries, bool is_gzip, damacy__span src,
                                     uint8_t* dst, uint64_t capacity, uint64_t* size,
                                     damacy_error* err)
{
    const damacy__z_library* z = NULL;
    damacy__z_stream stream;
    uint8_t nothing;
    damacy_status status;

    if (src.size > UINT32_MAX || capacity > UINT32_MAX) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "gzip: a chunk above 4 GiB");
    }
    DAMACY__TRY(damacy__libraries_z(libraries, &z, err));
    memset(&stream, 0, sizeof stream);
    stream.next_in = src.ptr;
    stream.avail_in = (unsigned)src.size;
    stream.next_out = capacity ? dst : &nothing;
    stream.avail_out = (unsigned)capacity;
    if (z->init(&stream, is_gzip ? 15 + 16 : 15, "1.2.0", (int)sizeof stream) != 0) {
        return damacy__fail(err, DAMACY_OOM, "libz: no memory, or too old");
    }
    status = damacy__inflate_members(z, &stream, is_gzip, src, capacity, err);
    *size = capacity - stream.avail_out;
    (void)z->end(&stream);
    return status;
}

/* ==== src/codec/shuffle.h ==== */
/* Undoes blosc's two shuffles over one block. Source: c-blosc README_CHUNK_FORMAT.rst and its
 * shuffle filters' documented layout.
 *
 * Byte shuffle keeps byte j of every element together; bit shuffle keeps bit k of byte j of every
 * element together. What is left over behind the last whole element is stored as it is; a bit
 * shuffle of a number of elements that is no multiple of 8 was not done at all. */

static void damacy__unshuffle(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width);
static void damacy__unshuffle_bits(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width);

#if defined(__x86_64__)
/* 16 elements of 2 bytes a step. Returns the elements done. */
static size_t damacy__unshuffle_2(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        const __m128i a = _mm_loadu_si128((const __m128i*)(const void*)(src + i));
        const __m128i b = _mm_loadu_si128((const __m128i*)(const void*)(src + n + i));
        _mm_storeu_si128((__m128i*)(void*)(dst + 2 * i), _mm_unpacklo_epi8(a, b));
        _mm_storeu_si128((__m128i*)(void*)(dst + 2 * i + 16), _mm_unpackhi_epi8(a, b));
    }
    return i;
}

/* 16 elements of 4 bytes a step. */
static size_t damacy__unshuffle_4(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m128i v[4];
        __m128i low[2];
        __m128i high[2];
        for (size_t j = 0; j < 4; j++) {
            v[j] = _mm_loadu_si128((const __m128i*)(const void*)(src + j * n + i));
        }
        for (size_t j = 0; j < 2; j++) {
            low[j] = _mm_unpacklo_epi8(v[2 * j], v[2 * j + 1]);
            high[j] = _mm_unpackhi_epi8(v[2 * j], v[2 * j + 1]);
        }
        _mm_storeu_si128((__m128i*)(void*)(dst + 4 * i), _mm_unpacklo_epi16(low[0], low[1]));
        _mm_storeu_si128((__m128i*)(void*)(dst + 4 * i + 16), _mm_unpackhi_epi16(low[0], low[1]));
        _mm_storeu_si128((__m128i*)(void*)(dst + 4 * i + 32), _mm_unpacklo_epi16(high[0], high[1]));
        _mm_storeu_si128((__m128i*)(void*)(dst + 4 * i + 48), _mm_unpackhi_epi16(high[0], high[1]));
    }
    return i;
}

/* 16 elements of 8 bytes a step: three rounds of interleaving. */
static size_t damacy__unshuffle_8(uint8_t* dst, const uint8_t* src, size_t n)
{
    size_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m128i a[8];
        __m128i b[8];
        for (size_t j = 0; j < 8; j++) {
            a[j] = _mm_loadu_si128((const __m128i*)(const void*)(src + j * n + i));
        }
        for (size_t j = 0; j < 4; j++) {
            b[2 * j] = _mm_unpacklo_epi8(a[2 * j], a[2 * j + 1]);
            b[2 * j + 1] = _mm_unpackhi_epi8(a[2 * j], a[2 * j + 1]);
        }
        for (size_t j = 0; j < 2; j++) { /* b[0],b[2]: bytes 0-3 of the first 8 elements */
            a[4 * j] = _mm_unpacklo_epi16(b[j], b[2 + j]);
            a[4 * j + 1] = _mm_unpackhi_epi16(b[j], b[2 + j]);
            a[4 * j + 2] = _mm_unpacklo_epi16(b[4 + j], b[6 + j]);
            a[4 * j + 3] = _mm_unpackhi_epi16(b[4 + j], b[6 + j]);
        }
        for (size_t j = 0; j < 2; j++) {
            for (size_t k = 0; k < 2; k++) {
                uint8_t* to = dst + 8 * i + 64 * j + 32 * k;
                _mm_storeu_si128((__m128i*)(void*)to,
                                 _mm_unpacklo_epi32(a[4 * j + k], a[4 * j + 2 + k]));
                _mm_storeu_si128((__m128i*)(void*)(to + 16),
                                 _mm_unpackhi_epi32(a[4 * j + k], a[4 * j + 2 + k]));
            }
        }
    }
    return i;
}
#endif

/* dst[i * width + j] = src[j * n + i]; the tail as it is. width 1 copies. */
static void damacy__unshuffle(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width)
{
    enum { DAMACY__STRIPE = 256 };
    const size_t n = size / width;
    size_t first = 0;

#if defined(__x86_64__)
    first = width == 2   ? damacy__unshuffle_2(dst, src, n)
            : width == 4 ? damacy__unshuffle_4(dst, src, n)
            : width == 8 ? damacy__unshuffle_8(dst, src, n)
                         : 0;
#endif
    for (; first < n; first += DAMACY__STRIPE) {
        const size_t end = DAMACY__MIN(first + DAMACY__STRIPE, n);
        for (uint32_t j = 0; j < width; j++) {
            const uint8_t* plane = src + j * n;
            for (size_t i = first; i < end; i++) {
                dst[i * width + j] = plane[i];
            }
        }
    }
    memcpy(dst + n * width, src + n * width, size - n * width);
}

/* Transposes an 8 x 8 matrix of bits, row r in byte r. */
static inline uint64_t damacy__transpose_bits(uint64_t x)
{
    uint64_t t = (x ^ x >> 7) & UINT64_C(0x00aa00aa00aa00aa);

    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & UINT64_C(0x0000cccc0000cccc);
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & UINT64_C(0x00000000f0f0f0f0);
    return x ^ t ^ t << 28;
}

/* Bit k of byte j of element i is bit i % 8 of src[(8 j + k) * (n / 8) + i / 8]. */
static void damacy__unshuffle_bits(uint8_t* dst, const uint8_t* src, size_t size, uint32_t width)
{
    const size_t n = size / width;
    const size_t row = n / 8;

    if (n % 8 != 0) {
        memcpy(dst, src, size);
        return;
    }
    for (uint32_t j = 0; j < width; j++) {
        const uint8_t* planes = src + 8 * j * row;
        for (size_t g = 0; g < row; g++) {
            uint64_t bits = 0;
            for (uint32_t k = 0; k < 8; k++) {
                bits |= (uint64_t)planes[k * row + g] << (8 * k);
            }
            bits = damacy__transpose_bits(bits);
            for (uint32_t i = 0; i < 8; i++) {
                dst[(8 * g + i) * width + j] = (uint8_t)(bits >> (8 * i));
            }
        }
    }
    memcpy(dst + n * width, src + n * width, size - n * width);
}

/* ==== src/codec/blosc.h ==== */
/* blosc chunks (format of c-blosc 1) on the host. Source: Zarr v3 codecs/blosc and c-blosc
 * README_CHUNK_FORMAT.rst.
 *
 * The metadata's configuration is only a record of how the chunk was written: everything here comes
 * from the chunk's own header. Block starts count from the start of the chunk, in any order. */

enum { DAMACY__BLOSC_HEADER = 16 };

typedef enum damacy__blosc_inner {
    DAMACY__BLOSC_BLOSCLZ = 0,
    DAMACY__BLOSC_LZ4 = 1,
    DAMACY__BLOSC_SNAPPY = 2,
    DAMACY__BLOSC_ZLIB = 3,
    DAMACY__BLOSC_ZSTD = 4
} damacy__blosc_inner;

/* The 16-byte header, checked. */
typedef struct damacy__blosc {
    uint32_t inner; /* damacy__blosc_inner */
    uint32_t width; /* bytes per element, 1 to 255 */
    uint32_t size;  /* decoded bytes */
    uint32_t block_size;
    uint32_t n_blocks;
    bool is_stored; /* the bytes behind the header are the data, unshuffled */
    bool is_shuffled;
    bool is_bit_shuffled;
    bool is_split_allowed;
} damacy__blosc;

/* What decoding needs of its worker. */
typedef struct damacy__blosc_tools {
    damacy__libraries* libraries;
    damacy__zstd* zstd;
    bool skip_checksums;
    uint8_t* scratch; /* block_size bytes, used when a shuffle is to be undone */
} damacy__blosc_tools;

static damacy_status damacy__blosc_parse(damacy__span src, uint64_t expected, damacy__blosc* out,
                                         damacy_error* err);
static damacy_status damacy__blosc_decode(const damacy__blosc_tools* tools,
                                          const damacy__blosc* blosc, damacy__span src,
                                          uint8_t* dst, damacy_error* err);

static damacy_status damacy__blosc_refuse(damacy_error* err, size_t at, const char* what)
{
    err->offset = at;
    return damacy__fail(err, DAMACY_DECODE, "blosc: %s at byte %zu", what, at);
}

/* Names versions and codecs that are not covered. */
static damacy_status damacy__blosc_check_kind(const damacy__blosc* b, uint8_t version,
                                              uint8_t version_inner, damacy_error* err)
{
    if (version >= 3 && version <= 6) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "blosc: a chunk of c-blosc2 (format %u)",
                            version);
    }
    if (version != 2) {
        return damacy__fail(err, DAMACY_DECODE, "blosc: format version %u, not 2", version);
    }
    if (!b->is_stored && (b->inner == DAMACY__BLOSC_BLOSCLZ || b->inner == DAMACY__BLOSC_SNAPPY)) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "blosc: unsupported inner codec \"%s\"",
                            b->inner == DAMACY__BLOSC_SNAPPY ? "snappy" : "blosclz");
    }
    if (b->inner > DAMACY__BLOSC_ZSTD) {
        return damacy__fail(err, DAMACY_DECODE, "blosc: unknown inner codec %u", b->inner);
    }
    if (version_inner != 1) {
        return damacy__fail(err, DAMACY_DECODE, "blosc: version %u of the inner codec, not 1",
                            version_inner);
    }
    return DAMACY_OK;
}

/* Reads and checks the header and the room for block starts. expected UINT64_MAX: any size. */
static damacy_status damacy__blosc_parse(damacy__span src, uint64_t expected, damacy__blosc* out,
                                         damacy_error* err)
{
    damacy__blosc b;
    uint8_t flags;

    memset(&b, 0, sizeof b);
    if (src.size < DAMACY__BLOSC_HEADER) {
        return damacy__blosc_refuse(err, 0, "the header is cut short");
    }
    flags = src.ptr[2];
    b.inner = flags >> 5;
    b.is_shuffled = (flags & 1) != 0;
    b.is_stored = (flags & 2) != 0;
    b.is_bit_shuffled = (flags & 4) != 0;
    b.is_split_allowed = (flags & 0x10) == 0;
    b.width = src.ptr[3];
    b.size = damacy__load_u32le(src.ptr + 4);
    b.block_size = damacy__load_u32le(src.ptr + 8);
    DAMACY__TRY(damacy__blosc_check_kind(&b, src.ptr[0], src.ptr[1], err));
    if ((flags & 8) || (b.is_shuffled && b.is_bit_shuffled)) {
        return damacy__blosc_refuse(err, 2, "reserved flags are set");
    }
    if (damacy__load_u32le(src.ptr + 12) != src.size) {
        return damacy__fail(err, DAMACY_DECODE,
                            "blosc: the header says %u stored bytes, there are %zu",
                            damacy__load_u32le(src.ptr + 12), src.size);
    }
    if (expected != UINT64_MAX && b.size != expected) {
        return damacy__fail(err, DAMACY_DECODE,
                            "blosc: the header says %u bytes, the chunk has %" PRIu64, b.size,
                            expected);
    }
    if (b.width == 0) {
        return damacy__blosc_refuse(err, 3, "an element size of 0");
    }
    if (b.size > INT32_MAX - DAMACY__BLOSC_HEADER) {
        return damacy__blosc_refuse(err, 4, "a size of 2 GiB or more");
    }
    if (b.is_stored && b.size + DAMACY__BLOSC_HEADER != src.size) {
        return damacy__blosc_refuse(err, 4, "a stored size that does not match");
    }
    if (b.size == 0 || b.is_stored) {
        *out = b;
        return DAMACY_OK;
    }
    if (b.block_size == 0 || b.block_size > (INT32_MAX - 255 * 4) / 3 || b.block_size > b.size) {
        return damacy__blosc_refuse(err, 8, "an impossible block size");
    }
    b.n_blocks = (b.size + b.block_size - 1) / b.block_size;
    if (b.n_blocks > (src.size - DAMACY__BLOSC_HEADER) / 4) {
        return damacy__blosc_refuse(err, 8, "no room for the block starts");
    }
    *out = b;
    return DAMACY_OK;
}

/* One compressed stream to exactly size bytes. */
static damacy_status damacy__blosc_stream(const damacy__blosc_tools* tools, uint32_t inner,
                                          damacy__span src, uint8_t* dst, size_t size,
                                          damacy_error* err)
{
    uint64_t n = 0;

    if (inner == DAMACY__BLOSC_LZ4) {
        return damacy__lz4_decode(src, dst, size, err);
    }
    if (inner == DAMACY__BLOSC_ZSTD) {
        DAMACY__TRY(damacy__zstd_open(tools->zstd, tools->libraries, tools->skip_checksums, err));
        return damacy__zstd_decode(tools->zstd, src, dst, size, NULL, err);
    }
    DAMACY__TRY(damacy__inflate(tools->libraries, false, src, dst, size, &n, err));
    if (n != size) {
        return damacy__fail(err, DAMACY_DECODE,
                            "blosc: a zlib stream of %" PRIu64 " bytes, %zu are due", n, size);
    }
    return DAMACY_OK;
}

/* The streams of one block, one after another, into to; the block's shuffle is still there. */
static damacy_status damacy__blosc_streams(const damacy__blosc_tools* tools, const damacy__blosc* b,
                                           damacy__span src, size_t at, uint32_t n_streams,
                                           uint32_t stream_size, uint8_t* to, damacy_error* err)
{
    for (uint32_t i = 0; i < n_streams; i++) {
        uint32_t stored;
        if (src.size - at < 4) {
            return damacy__blosc_refuse(err, at, "a stream is cut short");
        }
        stored = damacy__load_u32le(src.ptr + at);
        at += 4;
        if (stored == 0 || stored > src.size - at) {
            return damacy__blosc_refuse(err, at - 4, "a stream's size is impossible");
        }
        if (stored == stream_size) {
            memcpy(to + (size_t)i * stream_size, src.ptr + at, stored);
        } else {
            const damacy_status status =
                damacy__blosc_stream(tools, b->inner, damacy__span_of(src.ptr + at, stored),
                                     to + (size_t)i * stream_size, stream_size, err);
            if (status != DAMACY_OK) {
                err->offset = at + (err->offset == UINT64_MAX ? 0 : err->offset);
                return status;
            }
        }
        at += stored;
    }
    return DAMACY_OK;
}

/* One block: streams, then the shuffle undone. */
static damacy_status damacy__blosc_block(const damacy__blosc_tools* tools, const damacy__blosc* b,
                                         damacy__span src, uint32_t block, uint8_t* dst,
                                         damacy_error* err)
{
    const uint32_t rest = b->size % b->block_size;
    const bool is_leftover = block + 1 == b->n_blocks && rest != 0;
    const uint32_t size = is_leftover ? rest : b->block_size;
    const uint32_t start = damacy__load_u32le(src.ptr + DAMACY__BLOSC_HEADER + 4 * (size_t)block);
    const bool is_split =
        b->is_split_allowed && b->width <= 16 && size / b->width >= 128 && !is_leftover;
    const uint32_t n_streams = is_split ? b->width : 1;
    const bool bytes = b->is_shuffled && b->width > 1;
    const bool bits = b->is_bit_shuffled && size >= b->width;
    uint8_t* to = bytes || bits ? tools->scratch : dst;

    if (start < DAMACY__BLOSC_HEADER + 4 * (size_t)b->n_blocks || start > src.size) {
        return damacy__blosc_refuse(err, DAMACY__BLOSC_HEADER + 4 * (size_t)block,
                                    "a block start outside the chunk");
    }
    if (size % n_streams != 0) {
        return damacy__blosc_refuse(err, 8, "a block that does not split evenly");
    }
    DAMACY__TRY(damacy__blosc_streams(tools, b, src, start, n_streams, size / n_streams, to, err));
    if (bytes) {
        damacy__unshuffle(dst, to, size, b->width);
    } else if (bits) {
        damacy__unshuffle_bits(dst, to, size, b->width);
    }
    return DAMACY_OK;
}

/* Decodes a parsed chunk to blosc->size bytes. */
static damacy_status damacy__blosc_decode(const damacy__blosc_tools* tools,
                                          const damacy__blosc* blosc, damacy__span src,
                                          uint8_t* dst, damacy_error* err)
{
    if (blosc->is_stored) {
        memcpy(dst, src.ptr + DAMACY__BLOSC_HEADER, blosc->size);
        return DAMACY_OK;
    }
    for (uint32_t i = 0; i < blosc->n_blocks; i++) {
        DAMACY__TRY(
            damacy__blosc_block(tools, blosc, src, i, dst + (size_t)i * blosc->block_size, err));
    }
    return DAMACY_OK;
}

/* ==== src/store/os.h ==== */
/* The few calls to the operating system that the store makes, through a table that tests replace.
 *
 * Calls return -errno instead of setting errno. The wrappers repeat what is transient: EINTR,
 * EAGAIN with growing pauses, and short reads; all of it bounded, so that an endless fault becomes
 * an error. */

typedef struct damacy__os {
    void* user;
    /* resolve 0: openat, else openat2 with these RESOLVE_ flags. A descriptor or -errno. */
    int (*open)(void* user, int folder, const char* path, int flags, uint64_t resolve);
    int (*stat)(void* user, int fd, struct stat* out);
    int64_t (*read)(void* user, int fd, void* dst, size_t size, uint64_t offset);
    int (*close)(void* user, int fd);
    void (*sleep)(void* user, uint64_t ns);
} damacy__os;

/* From <linux/openat2.h>, which older systems lack. */
#define DAMACY__RESOLVE_NO_MAGICLINKS UINT64_C(0x02)
#define DAMACY__RESOLVE_NO_SYMLINKS   UINT64_C(0x04)
#define DAMACY__RESOLVE_BENEATH       UINT64_C(0x08)

enum {
    DAMACY__TRIES_INTERRUPTED = 1000, /* EINTR in a row */
    DAMACY__TRIES_AGAIN = 10,         /* EAGAIN in a row: 0.1 s of pauses in all */
    DAMACY__ERRNO_TEXT = 32
};

static void damacy__os_init(damacy__os* os);
static const char* damacy__errno_text(int code, char* text);

static int damacy__os_call_open(void* user, int folder, const char* path, int flags,
                                uint64_t resolve)
{
    int fd;

    (void)user;
    if (resolve == 0) {
        fd = openat(folder, path, flags);
    } else {
#if defined(SYS_openat2)
        struct {
            uint64_t flags;
            uint64_t mode;
            uint64_t resolve;
        } how;
        how.flags = (uint64_t)flags;
        how.mode = 0;
        how.resolve = resolve;
        fd = (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
#else
        fd = -1;
        errno = ENOSYS;
#endif
    }
    return fd >= 0 ? fd : -errno;
}

static int damacy__os_call_stat(void* user, int fd, struct stat* out)
{
    (void)user;
    return fstat(fd, out) == 0 ? 0 : -errno;
}

static int64_t damacy__os_call_read(void* user, int fd, void* dst, size_t size, uint64_t offset)
{
    const ssize_t n = pread(fd, dst, size, (off_t)offset);

    (void)user;
    return n >= 0 ? (int64_t)n : -(int64_t)errno;
}

static int damacy__os_call_close(void* user, int fd)
{
    (void)user;
    return close(fd) == 0 ? 0 : -errno;
}

static void damacy__os_call_sleep(void* user, uint64_t ns)
{
    struct timespec rest;

    (void)user;
    rest.tv_sec = (time_t)(ns / UINT64_C(1000000000));
    rest.tv_nsec = (long)(ns % UINT64_C(1000000000));
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
    }
}

static void damacy__os_init(damacy__os* os)
{
    os->user = NULL;
    os->open = damacy__os_call_open;
    os->stat = damacy__os_call_stat;
    os->read = damacy__os_call_read;
    os->close = damacy__os_call_close;
    os->sleep = damacy__os_call_sleep;
}

/* Such as "EACCES (errno 13)", into text[DAMACY__ERRNO_TEXT]. */
static const char* damacy__errno_text(int code, char* text)
{
#define DAMACY__NAMED(name) \
    {                       \
        name, #name         \
    }
    static const struct {
        int code;
        const char* name;
    } names[] = {DAMACY__NAMED(EACCES),       DAMACY__NAMED(EAGAIN),    DAMACY__NAMED(EBADF),
                 DAMACY__NAMED(EBUSY),        DAMACY__NAMED(EDQUOT),    DAMACY__NAMED(EFAULT),
                 DAMACY__NAMED(EFBIG),        DAMACY__NAMED(EHOSTDOWN), DAMACY__NAMED(EINTR),
                 DAMACY__NAMED(EINVAL),       DAMACY__NAMED(EIO),       DAMACY__NAMED(EISDIR),
                 DAMACY__NAMED(ELOOP),        DAMACY__NAMED(EMFILE),    DAMACY__NAMED(ENAMETOOLONG),
                 DAMACY__NAMED(ENFILE),       DAMACY__NAMED(ENODEV),    DAMACY__NAMED(ENOENT),
                 DAMACY__NAMED(ENOMEM),       DAMACY__NAMED(ENOSYS),    DAMACY__NAMED(ENOTCONN),
                 DAMACY__NAMED(ENOTDIR),      DAMACY__NAMED(ENXIO),     DAMACY__NAMED(EOPNOTSUPP),
                 DAMACY__NAMED(EOVERFLOW),    DAMACY__NAMED(EPERM),     DAMACY__NAMED(EREMOTEIO),
                 DAMACY__NAMED(ESPIPE),       DAMACY__NAMED(ESTALE),    DAMACY__NAMED(ETIMEDOUT),
                 DAMACY__NAMED(ETXTBSY),      DAMACY__NAMED(EXDEV),     DAMACY__NAMED(ECONNREFUSED),
                 DAMACY__NAMED(EHOSTUNREACH), DAMACY__NAMED(ESHUTDOWN), DAMACY__NAMED(EUCLEAN)};
#undef DAMACY__NAMED

    for (size_t i = 0; i < DAMACY__COUNT(names); i++) {
        if (names[i].code == code) {
            (void)snprintf(text, DAMACY__ERRNO_TEXT, "%s (errno %d)", names[i].name, code);
            return text;
        }
    }
    (void)snprintf(text, DAMACY__ERRNO_TEXT, "errno %d", code);
    return text;
}

/* Whether a call that failed with -code is to be repeated. */
static bool damacy__os_again(const damacy__os* os, int code, uint32_t* n_tries)
{
    ++*n_tries;
    if (code == EINTR) {
        return *n_tries < DAMACY__TRIES_INTERRUPTED;
    }
    if (code == EAGAIN && *n_tries <= DAMACY__TRIES_AGAIN) {
        os->sleep(os->user, UINT64_C(100000) << (*n_tries - 1));
        return true;
    }
    return false;
}

static int damacy__os_open(const damacy__os* os, int folder, const char* path, int flags,
                           uint64_t resolve)
{
    uint32_t n_tries = 0;
    int fd;

    do {
        fd = os->open(os->user, folder, path, flags | O_CLOEXEC, resolve);
    } while (fd < 0 && damacy__os_again(os, -fd, &n_tries));
    return fd;
}

static int damacy__os_stat(const damacy__os* os, int fd, struct stat* out)
{
    uint32_t n_tries = 0;
    int code;

    do {
        code = os->stat(os->user, fd, out);
    } while (code < 0 && damacy__os_again(os, -code, &n_tries));
    return code;
}

/* Reads size bytes, or up to the end; *n_read tells how many. 0 or -errno. */
static int damacy__os_read(const damacy__os* os, int fd, void* dst, size_t size, uint64_t offset,
                           size_t* n_read)
{
    uint32_t n_tries = 0;
    size_t done = 0;
    int code = 0;

    while (done < size) {
        const int64_t n = os->read(os->user, fd, (uint8_t*)dst + done, size - done, offset + done);
        if (n > 0) {
            assert((uint64_t)n <= size - done);
            done += (size_t)n;
            n_tries = 0;
        } else if (n == 0) {
            break;
        } else if (!damacy__os_again(os, (int)-n, &n_tries)) {
            code = (int)n;
            break;
        }
    }
    *n_read = done;
    return code;
}

/* ==== src/store/uri.h ==== */
/* Names to paths: what a uri means as a local folder, and which keys may be looked up beneath it.
 *
 * A uri comes from the caller and may point anywhere; a key may come from metadata, so it can only
 * go down: "..", ".", empty components and a leading "/" are refused. */

enum { DAMACY__PATH_SIZE = 4096 }; /* bytes of a path with its final zero, as in PATH_MAX */

static damacy_status damacy__uri_path(const char* uri, char* path, damacy_error* err);
static damacy_status damacy__uri_prefix(const char* uri, char* prefix, damacy_error* err);
static damacy_status damacy__key_check(const char* key, damacy_error* err);

/* Bytes of the scheme of "scheme://..." or "file:...", 0 when it is a plain path. */
static size_t damacy__uri_scheme(const char* uri)
{
    size_t n = 0;

    while ((uri[n] >= 'a' && uri[n] <= 'z') || (uri[n] >= 'A' && uri[n] <= 'Z') ||
           (n > 0 && ((uri[n] >= '0' && uri[n] <= '9') || uri[n] == '+' || uri[n] == '-' ||
                      uri[n] == '.'))) {
        n++;
    }
    if (n == 0 || uri[n] != ':') {
        return 0;
    }
    if (uri[n + 1] == '/' && uri[n + 2] == '/') {
        return n;
    }
    return n == 4 && strncasecmp(uri, "file", 4) == 0 ? n : 0;
}

static int damacy__hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Undoes %XX (RFC 3986 section 2.1). */
static damacy_status damacy__percent_decode(const char* src, char* dst, damacy_error* err)
{
    size_t n = 0;

    for (; *src; src++) {
        char c = *src;
        if (c == '?' || c == '#') {
            return damacy__fail(err, DAMACY_INVAL,
                                "a file uri has no query or fragment; write '%c' as %%%02X", c,
                                (unsigned)c);
        }
        if (c == '%') {
            const int high = damacy__hex_digit(src[1]);
            const int low = high < 0 ? -1 : damacy__hex_digit(src[2]);
            if (low < 0) {
                return damacy__fail(err, DAMACY_INVAL,
                                    "\"%.8s\": %% needs two hexadecimal digits after it", src);
            }
            if (high == 0 && low == 0) {
                return damacy__fail(err, DAMACY_INVAL, "%%00 in a file uri");
            }
            c = (char)(unsigned char)(high << 4 | low);
            src += 2;
        }
        dst[n++] = c;
    }
    dst[n] = '\0';
    return DAMACY_OK;
}

/* The part of a file uri that is the path (RFC 8089): file:///path, file://localhost/path,
 * file:/path. */
static damacy_status damacy__file_uri_path(const char* rest, char* path, damacy_error* err)
{
    if (rest[0] == '/' && rest[1] == '/') {
        const char* host = rest + 2;
        const size_t len = strcspn(host, "/");
        if (len != 0 && !(len == 9 && strncasecmp(host, "localhost", 9) == 0)) {
            return damacy__fail(err, DAMACY_INVAL,
                                "host \"%.*s\" in a file uri; only file:///path is local",
                                (int)DAMACY__MIN(len, 64), host);
        }
        rest = host + len;
    }
    if (rest[0] != '/') {
        return damacy__fail(err, DAMACY_INVAL, "a file uri needs an absolute path: file:///path");
    }
    return damacy__percent_decode(rest, path, err);
}

static damacy_status damacy__uri_check_size(const char* uri, damacy_error* err)
{
    if (uri[0] == '\0') {
        return damacy__fail(err, DAMACY_INVAL, "the uri is empty");
    }
    if (strnlen(uri, DAMACY__PATH_SIZE) == DAMACY__PATH_SIZE) {
        return damacy__fail(err, DAMACY_INVAL, "%.60s...: the uri is longer than %d bytes", uri,
                            DAMACY__PATH_SIZE - 1);
    }
    return DAMACY_OK;
}

/* Cuts slashes at the end, but not the only one. */
static void damacy__trim_slashes(char* path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/') {
        path[--n] = '\0';
    }
}

/* The path of a local folder into path[DAMACY__PATH_SIZE]. INVAL: malformed. UNSUPPORTED: another
 * scheme than file. */
static damacy_status damacy__uri_path(const char* uri, char* path, damacy_error* err)
{
    size_t scheme;

    DAMACY__TRY(damacy__uri_check_size(uri, err));
    scheme = damacy__uri_scheme(uri);
    if (scheme == 0) {
        memcpy(path, uri, strlen(uri) + 1);
    } else if (scheme == 4 && strncasecmp(uri, "file", 4) == 0) {
        DAMACY__TRY(damacy__file_uri_path(uri + 5, path, err));
    } else {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "scheme \"%.*s\" of %.100s: only local files are built in; "
                            "config.store can supply others",
                            (int)DAMACY__MIN(scheme, 32), uri, uri);
    }
    damacy__trim_slashes(path);
    return DAMACY_OK;
}

/* The prefix of a caller's own store: the uri as it is, less slashes at its end. */
static damacy_status damacy__uri_prefix(const char* uri, char* prefix, damacy_error* err)
{
    DAMACY__TRY(damacy__uri_check_size(uri, err));
    memcpy(prefix, uri, strlen(uri) + 1);
    damacy__trim_slashes(prefix);
    return DAMACY_OK;
}

/* A key such as "zarr.json" or "c/0/1". INVAL: it could leave the folder, or names nothing. */
static damacy_status damacy__key_check(const char* key, damacy_error* err)
{
    const char* part = key;

    if (strnlen(key, DAMACY__PATH_SIZE) == DAMACY__PATH_SIZE) {
        return damacy__fail(err, DAMACY_INVAL, "key %.60s... is longer than %d bytes", key,
                            DAMACY__PATH_SIZE - 1);
    }
    for (;;) {
        const size_t len = strcspn(part, "/");
        if (len == 0) {
            return damacy__fail(err, DAMACY_INVAL, "key \"%.200s\" has an empty component", key);
        }
        if (part[0] == '.' && (len == 1 || (len == 2 && part[1] == '.'))) {
            return damacy__fail(err, DAMACY_INVAL, "key \"%.200s\" has the component \"%.*s\"", key,
                                (int)len, part);
        }
        if (part[len] == '\0') {
            return DAMACY_OK;
        }
        part += len + 1;
    }
}

/* ==== src/store/latency.h ==== */
/* Injected delay: a base plus a lognormal part, a pure function of the model and the number of the
 * call, so that a run can be repeated.
 *
 * The normal variate is the sum of twelve uniform ones, which ends at six sigma, and exp is our
 * own: the library must link without libm. */

static uint64_t damacy__latency_ns(const damacy_latency* model, uint64_t number);

static inline bool damacy__latency_is_set(const damacy_latency* model)
{
    return model->base_ns != 0 || model->mu != 0 || model->sigma != 0;
}

/* A random number in [0, 1) for each pair of seed and counter (splitmix64). */
static double damacy__latency_uniform(uint64_t seed, uint64_t counter)
{
    uint64_t x = seed + counter * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (double)(x >> 11) / 9007199254740992.0;
}

/* e to the x, for x up to 43; the error is below 1e-9 of the value. */
static double damacy__latency_exp(double x)
{
    double sum = 1;
    double term = 1;
    uint32_t n_squares = 0;

    if (x > 43) {
        x = 43; /* 150 years in nanoseconds */
    }
    if (x < -43) {
        return 0;
    }
    while (x > 0.5 || x < -0.5) {
        x /= 2;
        n_squares++;
    }
    for (uint32_t i = 1; i < 16; i++) {
        term *= x / i;
        sum += term;
    }
    while (n_squares-- > 0) {
        sum *= sum;
    }
    return sum;
}

/* The delay of one call, at least base_ns, else at most cap_ns if there is a cap. */
static uint64_t damacy__latency_ns(const damacy_latency* model, uint64_t number)
{
    double normal = -6;
    double extra = 0;
    uint64_t total;

    if (model->mu != 0 || model->sigma != 0) {
        for (uint64_t i = 0; i < 12; i++) {
            normal += damacy__latency_uniform(model->seed, number * 12 + i + 1);
        }
        extra = damacy__latency_exp(model->mu + model->sigma * normal);
    }
    if (!damacy__add(model->base_ns, (uint64_t)extra, &total)) {
        total = UINT64_MAX;
    }
    if (model->cap_ns != 0 && total > model->cap_ns) {
        total = DAMACY__MAX(model->cap_ns, model->base_ns);
    }
    return total;
}

/* ==== src/store/handles.h ==== */
/* A bounded set of open descriptors: the ones that nobody is using are closed, oldest first, when
 * room is needed, and opened again by their owner when it needs them.
 *
 * An operation says that it begins before it takes any handle, and takes at most two; so many
 * operations may run that every one of them can always get its two, which is why waiting here
 * cannot deadlock. */

enum { DAMACY__HANDLES_PER_OPERATION = 2 };

/* Embedded in its owner; zeroed: closed. Guarded by the set's mutex. */
typedef struct damacy__handle {
    struct damacy__handle* newer; /* in the list of open handles */
    struct damacy__handle* older;
    int fd;           /* if is_open */
    uint32_t n_users; /* operations that use fd now */
    bool is_open;
    bool is_opening; /* an operation is opening it */
    bool is_broken;  /* closed when the last user leaves */
} damacy__handle;

typedef struct damacy__handles {
    const damacy__os* os;
    uint32_t max_open;       /* set at init, then constant */
    uint32_t max_operations; /* as above */
    damacy__mutex mutex;
    damacy__condition changed;
    damacy__handle* newest; /* guarded by mutex, as is what follows */
    damacy__handle* oldest;
    uint32_t n_open;       /* open or being opened */
    uint32_t n_operations; /* begun and not ended */
    uint32_t n_waiting;    /* threads that wait for changed */
} damacy__handles;

static damacy_status damacy__handles_init(damacy__handles* set, const damacy__os* os,
                                          uint32_t max_open, damacy_error* err);
static void damacy__handles_deinit(damacy__handles* set);
static void damacy__handles_begin(damacy__handles* set);
static void damacy__handles_end(damacy__handles* set);
static uint32_t damacy__handles_drop_idle(damacy__handles* set);
static bool damacy__handle_take(damacy__handles* set, damacy__handle* handle, int* fd);
static bool damacy__handle_take_open(damacy__handles* set, damacy__handle* handle, int* fd);
static void damacy__handle_put(damacy__handles* set, damacy__handle* handle, int fd);
static void damacy__handle_release(damacy__handles* set, damacy__handle* handle, bool is_broken);
static void damacy__handle_close(damacy__handles* set, damacy__handle* handle);

/* os is used and kept; max_open is at least 4. */
static damacy_status damacy__handles_init(damacy__handles* set, const damacy__os* os,
                                          uint32_t max_open, damacy_error* err)
{
    memset(set, 0, sizeof *set);
    set->os = os;
    set->max_open = DAMACY__MAX(max_open, 4);
    set->max_operations = set->max_open / DAMACY__HANDLES_PER_OPERATION;
    DAMACY__TRY(damacy__mutex_init(&set->mutex, err));
    if (damacy__condition_init(&set->changed, err) != DAMACY_OK) {
        damacy__mutex_deinit(&set->mutex);
        return DAMACY_OOM;
    }
    return DAMACY_OK;
}

/* All handles have been closed by their owners. */
static void damacy__handles_deinit(damacy__handles* set)
{
    assert(set->n_open == 0 && set->n_operations == 0);
    damacy__condition_deinit(&set->changed);
    damacy__mutex_deinit(&set->mutex);
}

static void damacy__handles_wait(damacy__handles* set)
{
    set->n_waiting++;
    damacy__wait(&set->changed, &set->mutex);
    set->n_waiting--;
}

static void damacy__handles_notify(damacy__handles* set)
{
    if (set->n_waiting) {
        damacy__broadcast(&set->changed);
    }
}

/* Begins an operation; waits while too many run. */
static void damacy__handles_begin(damacy__handles* set)
{
    damacy__lock(&set->mutex);
    while (set->n_operations >= set->max_operations) {
        damacy__handles_wait(set);
    }
    set->n_operations++;
    damacy__unlock(&set->mutex);
}

static void damacy__handles_end(damacy__handles* set)
{
    damacy__lock(&set->mutex);
    set->n_operations--;
    damacy__handles_notify(set);
    damacy__unlock(&set->mutex);
}

static void damacy__handles_unlink(damacy__handles* set, damacy__handle* handle)
{
    if (handle->newer) {
        handle->newer->older = handle->older;
    } else {
        set->newest = handle->older;
    }
    if (handle->older) {
        handle->older->newer = handle->newer;
    } else {
        set->oldest = handle->newer;
    }
    handle->newer = handle->older = NULL;
}

static void damacy__handles_link(damacy__handles* set, damacy__handle* handle)
{
    handle->newer = NULL;
    handle->older = set->newest;
    if (set->newest) {
        set->newest->newer = handle;
    } else {
        set->oldest = handle;
    }
    set->newest = handle;
}

/* Takes the oldest idle descriptor out of the set, for the caller to close; -1 when all are in use.
 * The mutex is held. */
static int damacy__handles_evict(damacy__handles* set)
{
    for (damacy__handle* handle = set->oldest; handle; handle = handle->newer) {
        if (handle->n_users == 0) {
            damacy__handles_unlink(set, handle);
            handle->is_open = false;
            set->n_open--;
            return handle->fd;
        }
    }
    return -1;
}

/* Closes all idle descriptors; how many those were. */
static uint32_t damacy__handles_drop_idle(damacy__handles* set)
{
    uint32_t n = 0;

    for (;;) {
        int fd;
        damacy__lock(&set->mutex);
        fd = damacy__handles_evict(set);
        damacy__unlock(&set->mutex);
        if (fd < 0) {
            return n;
        }
        (void)set->os->close(set->os->user, fd);
        n++;
    }
}

/* Counts another user of an open handle. The mutex is held. */
static void damacy__handle_use(damacy__handles* set, damacy__handle* handle)
{
    handle->n_users++;
    if (set->newest != handle) {
        damacy__handles_unlink(set, handle);
        damacy__handles_link(set, handle);
    }
}

/* True: *fd may be used until damacy__handle_release. False: the caller opens a descriptor, for
 * which there is room now, and calls damacy__handle_put; meanwhile others wait. */
static bool damacy__handle_take(damacy__handles* set, damacy__handle* handle, int* fd)
{
    int evicted = -1;

    damacy__lock(&set->mutex);
    while (handle->is_opening || handle->is_broken) {
        damacy__handles_wait(set);
    }
    if (handle->is_open) {
        damacy__handle_use(set, handle);
        *fd = handle->fd;
        damacy__unlock(&set->mutex);
        return true;
    }
    if (set->n_open >= set->max_open) {
        evicted = damacy__handles_evict(set);
    }
    set->n_open++;
    handle->is_opening = true;
    damacy__unlock(&set->mutex);
    if (evicted >= 0) {
        (void)set->os->close(set->os->user, evicted);
    }
    return false;
}

/* As damacy__handle_take when the handle is open; otherwise false, and nothing has changed. */
static bool damacy__handle_take_open(damacy__handles* set, damacy__handle* handle, int* fd)
{
    bool is_open;

    damacy__lock(&set->mutex);
    is_open = handle->is_open && !handle->is_broken;
    if (is_open) {
        damacy__handle_use(set, handle);
        *fd = handle->fd;
    }
    damacy__unlock(&set->mutex);
    return is_open;
}

/* Ends the opening: the caller uses fd from now on, or it is negative and the handle stays closed.
 */
static void damacy__handle_put(damacy__handles* set, damacy__handle* handle, int fd)
{
    damacy__lock(&set->mutex);
    handle->is_opening = false;
    if (fd >= 0) {
        handle->fd = fd;
        handle->is_open = true;
        handle->n_users = 1;
        damacy__handles_link(set, handle);
    } else {
        set->n_open--;
    }
    damacy__handles_notify(set);
    damacy__unlock(&set->mutex);
}

/* Ends a use. A broken handle is closed when its last user leaves; until then others wait for it.
 */
static void damacy__handle_release(damacy__handles* set, damacy__handle* handle, bool is_broken)
{
    int fd = -1;

    damacy__lock(&set->mutex);
    handle->is_broken = handle->is_broken || is_broken;
    handle->n_users--;
    if (handle->n_users == 0 && handle->is_broken) {
        damacy__handles_unlink(set, handle);
        handle->is_open = handle->is_broken = false;
        set->n_open--;
        fd = handle->fd;
        damacy__handles_notify(set);
    }
    damacy__unlock(&set->mutex);
    if (fd >= 0) {
        (void)set->os->close(set->os->user, fd);
    }
}

/* Closes a handle that nobody uses; its owner may be freed then. */
static void damacy__handle_close(damacy__handles* set, damacy__handle* handle)
{
    int fd = -1;

    damacy__lock(&set->mutex);
    assert(handle->n_users == 0 && !handle->is_opening);
    if (handle->is_open) {
        damacy__handles_unlink(set, handle);
        handle->is_open = false;
        set->n_open--;
        fd = handle->fd;
    }
    damacy__unlock(&set->mutex);
    if (fd >= 0) {
        (void)set->os->close(set->os->user, fd);
    }
}

/* ==== src/store/file.h ==== */
/* One file beneath a folder: opened without leaving the folder, and only if it is a regular file.
 *
 * The kernel does the walk (openat2). Where it cannot, each component is opened by itself and a
 * symbolic link is an error even if it stays inside. Hard links cannot be told from files. */

/* Tells one version of a file from another. */
typedef struct damacy__file_id {
    uint64_t device;
    uint64_t inode;
    uint64_t size; /* bytes */
    int64_t modified_s;
    int64_t modified_ns;
} damacy__file_id;

static int damacy__file_open(const damacy__os* os, int folder, const char* key, bool follow_outside,
                             bool* lacks_openat2);
static int damacy__file_missing(const damacy__os* os, int folder, const char* key,
                                bool follow_outside, bool* lacks_openat2, bool* is_there);
static int damacy__file_check(const damacy__os* os, int fd, damacy__file_id* id, mode_t* mode);

static damacy__file_id damacy__file_id_of(const struct stat* info)
{
    damacy__file_id id;

    id.device = (uint64_t)info->st_dev;
    id.inode = (uint64_t)info->st_ino;
    id.size = (uint64_t)info->st_size;
    id.modified_s = (int64_t)info->st_mtim.tv_sec;
    id.modified_ns = (int64_t)info->st_mtim.tv_nsec;
    return id;
}

static bool damacy__file_id_equal(const damacy__file_id* a, const damacy__file_id* b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->modified_s == b->modified_s && a->modified_ns == b->modified_ns;
}

static const char* damacy__file_kind(mode_t mode)
{
    return S_ISREG(mode)    ? "file"
           : S_ISDIR(mode)  ? "folder"
           : S_ISFIFO(mode) ? "FIFO"
           : S_ISSOCK(mode) ? "socket"
           : S_ISLNK(mode)  ? "symbolic link"
                            : "device";
}

/* Flags of the file itself: a FIFO must not block, a terminal must not become ours. */
enum { DAMACY__FILE_FLAGS = O_RDONLY | O_NONBLOCK | O_NOCTTY };

/* A folder below another, not through a symbolic link: its descriptor or -errno. */
static int damacy__file_step(const damacy__os* os, int folder, const char* name)
{
    struct stat info;
    const int fd = damacy__os_open(os, folder, name, O_PATH | O_NOFOLLOW, 0);
    int code;

    if (fd < 0) {
        return fd;
    }
    code = damacy__os_stat(os, fd, &info);
    if (code == 0 && !S_ISDIR(info.st_mode)) {
        code = S_ISLNK(info.st_mode) ? -ELOOP : -ENOTDIR;
    }
    if (code < 0) {
        (void)os->close(os->user, fd);
        return code;
    }
    return fd;
}

/* The walk for kernels before 5.6, and for sandboxes that do not allow openat2. */
static int damacy__file_walk(const damacy__os* os, int folder, const char* key)
{
    char name[NAME_MAX + 1];
    int at = folder;

    for (;;) {
        const size_t len = strcspn(key, "/");
        int next = -ENAMETOOLONG;
        if (len <= NAME_MAX) {
            memcpy(name, key, len);
            name[len] = '\0';
            next = key[len] ? damacy__file_step(os, at, name)
                            : damacy__os_open(os, at, name, DAMACY__FILE_FLAGS | O_NOFOLLOW, 0);
        }
        if (at != folder) {
            (void)os->close(os->user, at);
        }
        if (next < 0 || key[len] == '\0') {
            return next;
        }
        at = next;
        key += len + 1;
    }
}

/* A descriptor or -errno: -ENOENT is a missing object, -EXDEV and -ELOOP are links that lead
 * outside or in circles. The key has been checked. *lacks_openat2 (atomic) is set once the kernel
 * says so. */
static int damacy__file_open(const damacy__os* os, int folder, const char* key, bool follow_outside,
                             bool* lacks_openat2)
{
    if (follow_outside) {
        return damacy__os_open(os, folder, key, DAMACY__FILE_FLAGS, 0);
    }
    if (!__atomic_load_n(lacks_openat2, __ATOMIC_RELAXED)) {
        const int fd = damacy__os_open(os, folder, key, DAMACY__FILE_FLAGS,
                                       DAMACY__RESOLVE_BENEATH | DAMACY__RESOLVE_NO_MAGICLINKS);
        if (fd != -ENOSYS && fd != -EPERM) {
            return fd;
        }
        __atomic_store_n(lacks_openat2, true, __ATOMIC_RELAXED);
    }
    return damacy__file_walk(os, folder, key);
}

/* The longest part of the key that exists decides: -ENOENT when what follows it is not there at
 * all, -ENOLINK when it is a link that leads nowhere. */
static int damacy__file_missing_part(const damacy__os* os, int folder, const char* key,
                                     uint64_t resolve)
{
    char part[DAMACY__PATH_SIZE];
    size_t len = 0;

    for (;;) {
        int fd;
        len += strcspn(key + len, "/");
        memcpy(part, key, len);
        part[len] = '\0';
        fd = damacy__os_open(os, folder, part, O_PATH, resolve);
        if (fd == -ENOENT) {
            fd = damacy__os_open(os, folder, part, O_PATH | O_NOFOLLOW, resolve);
            if (fd < 0) {
                return fd;
            }
            (void)os->close(os->user, fd);
            return -ENOLINK;
        }
        if (fd < 0) {
            return fd;
        }
        (void)os->close(os->user, fd);
        if (key[len] == '\0') {
            return -EAGAIN; /* it has appeared */
        }
        len++;
    }
}

/* What a failed open with -ENOENT means, as missing data must not be confused with lost data:
 * -ENOENT when there is no such object, -ENOLINK when a link on the way leads nowhere, another
 * -errno. The root folder itself may be gone: then *is_there is false. */
static int damacy__file_missing(const damacy__os* os, int folder, const char* key,
                                bool follow_outside, bool* lacks_openat2, bool* is_there)
{
    const uint64_t beneath =
        follow_outside ? 0 : DAMACY__RESOLVE_BENEATH | DAMACY__RESOLVE_NO_MAGICLINKS;
    const bool can_resolve = !__atomic_load_n(lacks_openat2, __ATOMIC_RELAXED);
    struct stat info;
    int code = damacy__os_stat(os, folder, &info);

    if (code < 0) {
        return code == -ENOENT ? -EIO : code;
    }
    *is_there = info.st_nlink > 0;
    if (!follow_outside && !can_resolve) {
        return -ENOENT; /* the walk has seen every component, and no links */
    }
    if (can_resolve) { /* one call settles the usual case, a path without links */
        code = damacy__os_open(os, folder, key, O_PATH | O_NOFOLLOW,
                               beneath | DAMACY__RESOLVE_NO_SYMLINKS);
        if (code == -ENOENT) {
            return code;
        }
        if (code >= 0) {
            (void)os->close(os->user, code);
        }
    }
    return damacy__file_missing_part(os, folder, key, beneath);
}

/* 0 and the identity of a regular file; -EBADF and *mode when it is something else; or -errno. */
static int damacy__file_check(const damacy__os* os, int fd, damacy__file_id* id, mode_t* mode)
{
    struct stat info;
    const int code = damacy__os_stat(os, fd, &info);

    *mode = S_IFREG;
    if (code < 0) {
        return code;
    }
    *mode = info.st_mode;
    if (!S_ISREG(info.st_mode) || info.st_size < 0) {
        return -EBADF;
    }
    *id = damacy__file_id_of(&info);
    return 0;
}

/* ==== src/store/record.h ==== */
/* The records of the store, and the words for what goes wrong with one of them. */

/* A folder, or a prefix of the caller's store. */
typedef struct damacy__root {
    damacy__entry entry; /* first; in the table unless is_stale */
    damacy__handle handle;
    char* path; /* absolute, or the prefix; set at creation, then constant */
    size_t path_len;
    uint32_t n_refs; /* guarded by the store's mutex: callers and objects */
    bool is_stale;   /* guarded as above: replaced on disk, not to be handed out again */
    bool is_known;   /* guarded as above: device and inode are set */
    uint64_t device;
    uint64_t inode;
} damacy__root;

typedef enum damacy__object_state {
    DAMACY__OBJECT_OPENING = 0, /* by one thread; the others wait */
    DAMACY__OBJECT_READY,
    DAMACY__OBJECT_FAILED /* not in the table; lives until those who waited have seen the error */
} damacy__object_state;

/* A file or an object of the caller's store. */
typedef struct damacy__object {
    damacy__entry entry; /* first; in the table unless is_stale */
    damacy__handle handle;
    damacy__root* root; /* one reference; set at creation, then constant, as is the key */
    char* key;
    size_t key_capacity;
    uint32_t n_refs; /* guarded by the store's mutex; 0: idle, kept for the next user */
    uint32_t state;  /* guarded as above: damacy__object_state */
    bool is_stale;   /* guarded as above */
    bool is_known;   /* opened once: id is set; written while OPENING, as are the next two */
    damacy__file_id id;
    void* custom;         /* the caller's object */
    damacy_status status; /* guarded as above: of a FAILED one, as is the next */
    char message[sizeof(((damacy_error*)0)->message)];
    struct damacy__object* spare; /* next in the list of spare records */
} damacy__object;

typedef struct damacy__store {
    damacy__alloc* alloc;      /* set at init, then constant, as is what follows */
    damacy__os os;             /* tests replace its calls before the first use */
    damacy_store custom;       /* open NULL: local files */
    damacy_latency latency;    /* of every open and read */
    bool follow_outside_links; /* symbolic links may leave the root */
    uint32_t max_idle;         /* objects that are kept without a user */
    bool lacks_openat2;        /* atomic */
    uint64_t n_calls;          /* atomic: opens and reads that were delayed */
    damacy__handles handles;
    damacy__mutex mutex;
    damacy__condition opened; /* an object is not OPENING any more */
    damacy__table roots;      /* guarded by mutex, as is what follows */
    damacy__table objects;
    uint32_t n_idle;
    damacy__object* spare; /* records to use again, so that steady state allocates nothing */
    uint32_t n_spare;
} damacy__store;

enum { DAMACY__NAME_TEXT = 240 }; /* leaves room for the cause in a message */

/* "<root>/<key>" into text[DAMACY__NAME_TEXT]; of a long name the end. key NULL: the root alone. */
static const char* damacy__store_name(const damacy__root* root, const char* key, char* text)
{
    const size_t key_len = key ? strlen(key) : 0;
    const size_t room = DAMACY__NAME_TEXT - 8;
    const size_t len = root->path_len + key_len;
    const size_t cut = len > room ? len - room : 0;

    (void)snprintf(text, DAMACY__NAME_TEXT, "%s%s%s%s", cut ? "..." : "",
                   root->path + DAMACY__MIN(cut, root->path_len),
                   key && cut < root->path_len ? "/" : "",
                   key ? key + (cut > root->path_len ? cut - root->path_len : 0) : "");
    return text;
}

static damacy_status damacy__root_fail(const damacy__root* root, int code, damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    char cause[DAMACY__ERRNO_TEXT];

    damacy__store_name(root, NULL, name);
    damacy__errno_text(code, cause);
    if (code == ENOENT) {
        return damacy__fail(err, DAMACY_NOTFOUND, "%s: there is no such folder", name);
    }
    if (code == ENOTDIR) {
        return damacy__fail(err, DAMACY_NOTFOUND, "%s: it, or what is above it, is not a folder",
                            name);
    }
    return damacy__fail(err, code == ENOMEM ? DAMACY_OOM : DAMACY_IO,
                        "%s: cannot open the folder: %s", name, cause);
}

/* Why an object could not be opened. Only ENOENT before anything was open (mode 0) means that there
 * is none. */
static damacy_status damacy__object_fail(const damacy__object* object, int code, mode_t mode,
                                         damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    char cause[DAMACY__ERRNO_TEXT];

    damacy__store_name(object->root, object->key, name);
    damacy__errno_text(code, cause);
    if (code == EBADF && mode != 0 && !S_ISREG(mode)) {
        return damacy__fail(err, DAMACY_IO, "%s: not a regular file but a %s", name,
                            damacy__file_kind(mode));
    }
    if (code == ENOENT && mode == 0) {
        return damacy__fail(err, DAMACY_NOTFOUND, "%s: there is no such object", name);
    }
    if (code == ENOLINK) {
        return damacy__fail(err, DAMACY_IO, "%s: a symbolic link on the way leads nowhere", name);
    }
    if (code == EXDEV) {
        return damacy__fail(err, DAMACY_IO,
                            "%s: a symbolic link leads out of the root folder; "
                            "follow_outside_links allows that",
                            name);
    }
    if (code == ELOOP) {
        return damacy__fail(err, DAMACY_IO,
                            "%s: symbolic links go in a circle, or may not be followed here: %s",
                            name, cause);
    }
    return damacy__fail(err, code == ENOMEM ? DAMACY_OOM : DAMACY_IO, "%s: cannot open: %s", name,
                        cause);
}

static damacy_status damacy__object_fail_short(const damacy__object* object, uint64_t offset,
                                               size_t size, uint64_t end, damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];

    err->offset = offset;
    return damacy__fail(err, DAMACY_IO,
                        "%s: wanted %zu bytes at %" PRIu64 ", the object ends at %" PRIu64,
                        damacy__store_name(object->root, object->key, name), size, offset, end);
}

/* ==== src/store/open.h ==== */
/* Roots and objects to descriptors: opening, opening again, and reading, for local files.
 *
 * What has been opened once must be the same file when it is opened again: a root by device and
 * inode, an object by size and time of change as well. Resources that run out (descriptors, memory)
 * are first taken from idle handles. A read never reports a missing object: that would pass for
 * missing data. */

static damacy_status damacy__root_use(damacy__store* store, damacy__root* root, int* fd,
                                      damacy_error* err);
static damacy_status damacy__root_verify(damacy__store* store, damacy__root* root, bool* is_same,
                                         damacy_error* err);
static damacy_status damacy__object_refresh(damacy__store* store, damacy__object* object,
                                            damacy_error* err);
static damacy_status damacy__object_read_file(damacy__store* store, damacy__object* object,
                                              uint64_t offset, void* dst, size_t size,
                                              damacy_error* err);

/* How often a call was repeated, by cause. */
typedef struct damacy__relief {
    uint32_t n_full; /* EMFILE, ENFILE */
    uint32_t n_memory;
    uint32_t n_stale;
    uint32_t n_again; /* after all the pauses, and when an object appeared while it was missed */
} damacy__relief;

/* Makes room after a call failed with code; whether it is worth repeating. */
static bool damacy__store_relieve(damacy__store* store, int code, damacy__relief* relief)
{
    enum { DAMACY__TRIES_FULL = 8 }; /* a quarter of a second of pauses */

    switch (code) {
    case EMFILE:
    case ENFILE:
        if (relief->n_full == DAMACY__TRIES_FULL) {
            return false;
        }
        if (damacy__handles_drop_idle(&store->handles) == 0) {
            store->os.sleep(store->os.user, UINT64_C(1000000) << relief->n_full);
        }
        relief->n_full++;
        return true;
    case ENOMEM:
        (void)damacy__handles_drop_idle(&store->handles);
        return relief->n_memory++ == 0;
    case ESTALE:
        return relief->n_stale++ == 0;
    case EAGAIN:
        return relief->n_again++ == 0;
    default:
        return false;
    }
}

static void damacy__store_delay(damacy__store* store)
{
    if (damacy__latency_is_set(&store->latency)) {
        const uint64_t number = __atomic_fetch_add(&store->n_calls, 1, __ATOMIC_RELAXED);
        store->os.sleep(store->os.user, damacy__latency_ns(&store->latency, number));
    }
}

/* Takes a root out of the table, so that the next caller gets a new one. */
static void damacy__root_forget(damacy__store* store, damacy__root* root)
{
    damacy__lock(&store->mutex);
    if (!root->is_stale) {
        root->is_stale = true;
        damacy__table_remove(&store->roots, &root->entry);
    }
    damacy__unlock(&store->mutex);
}

/* The same for an object that is in use. */
static void damacy__object_forget(damacy__store* store, damacy__object* object)
{
    damacy__lock(&store->mutex);
    if (!object->is_stale) {
        object->is_stale = true;
        damacy__table_remove(&store->objects, &object->entry);
    }
    damacy__unlock(&store->mutex);
}

/* Opens the folder anew: a descriptor, or -errno. */
static int damacy__root_open(damacy__store* store, const damacy__root* root, struct stat* info)
{
    damacy__relief relief = {0, 0, 0, 0};

    for (;;) {
        const int fd = damacy__os_open(&store->os, AT_FDCWD, root->path, O_PATH | O_DIRECTORY, 0);
        const int code = fd < 0 ? fd : damacy__os_stat(&store->os, fd, info);
        if (code >= 0) {
            return fd;
        }
        if (fd >= 0) {
            (void)store->os.close(store->os.user, fd);
        }
        if (!damacy__store_relieve(store, -code, &relief)) {
            return code;
        }
    }
}

/* Whether a folder is the one that was opened first; the first one is remembered. */
static bool damacy__root_is_same(damacy__store* store, damacy__root* root, const struct stat* info)
{
    bool is_same;

    damacy__lock(&store->mutex);
    if (!root->is_known) {
        root->is_known = true;
        root->device = (uint64_t)info->st_dev;
        root->inode = (uint64_t)info->st_ino;
    }
    is_same = root->device == (uint64_t)info->st_dev && root->inode == (uint64_t)info->st_ino;
    damacy__unlock(&store->mutex);
    return is_same;
}

static damacy_status damacy__root_fail_replaced(damacy__store* store, damacy__root* root,
                                                damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];

    damacy__root_forget(store, root);
    return damacy__fail(err, DAMACY_IO, "%s: the folder was removed or replaced while in use",
                        damacy__store_name(root, NULL, name));
}

/* The descriptor of a root, until damacy__handle_release. Inside an operation. */
static damacy_status damacy__root_use(damacy__store* store, damacy__root* root, int* fd,
                                      damacy_error* err)
{
    struct stat info;
    int got;

    if (damacy__handle_take(&store->handles, &root->handle, fd)) {
        return DAMACY_OK;
    }
    got = damacy__root_open(store, root, &info);
    if (got >= 0 && !damacy__root_is_same(store, root, &info)) {
        (void)store->os.close(store->os.user, got);
        damacy__handle_put(&store->handles, &root->handle, -1);
        return damacy__root_fail_replaced(store, root, err);
    }
    damacy__handle_put(&store->handles, &root->handle, got);
    if (got < 0) {
        return got == -ENOENT || got == -ENOTDIR ? damacy__root_fail_replaced(store, root, err)
                                                 : damacy__root_fail(root, -got, err);
    }
    *fd = got;
    return DAMACY_OK;
}

/* Whether the path still leads to the folder that was opened first. */
static damacy_status damacy__root_verify(damacy__store* store, damacy__root* root, bool* is_same,
                                         damacy_error* err)
{
    struct stat info;
    int fd;

    damacy__handles_begin(&store->handles);
    fd = damacy__root_open(store, root, &info);
    if (fd >= 0) {
        *is_same = damacy__root_is_same(store, root, &info);
        (void)store->os.close(store->os.user, fd);
    }
    damacy__handles_end(&store->handles);
    return fd >= 0 ? DAMACY_OK : damacy__root_fail(root, -fd, err);
}

/* Opens the file of an object. Inside an operation; uses one handle, the root's, beside its own. */
static damacy_status damacy__object_open_file(damacy__store* store, damacy__object* object,
                                              int* out, damacy__file_id* id, damacy_error* err)
{
    damacy__relief relief = {0, 0, 0, 0};

    damacy__store_delay(store);
    for (;;) {
        mode_t mode = 0;
        bool is_there = true;
        int folder = -1;
        int code;
        int fd;
        DAMACY__TRY(damacy__root_use(store, object->root, &folder, err));
        fd = damacy__file_open(&store->os, folder, object->key, store->follow_outside_links,
                               &store->lacks_openat2);
        code = fd < 0 ? fd : damacy__file_check(&store->os, fd, id, &mode);
        if (fd == -ENOENT) {
            code =
                damacy__file_missing(&store->os, folder, object->key, store->follow_outside_links,
                                     &store->lacks_openat2, &is_there);
        }
        damacy__handle_release(&store->handles, &object->root->handle, code == -ESTALE);
        if (code >= 0) {
            *out = fd;
            return DAMACY_OK;
        }
        if (fd >= 0) {
            (void)store->os.close(store->os.user, fd);
        }
        if (!is_there) {
            return damacy__root_fail_replaced(store, object->root, err);
        }
        if (!damacy__store_relieve(store, -code, &relief)) {
            return damacy__object_fail(object, -code, mode, err);
        }
    }
}

/* Whether an idle object's descriptor is still open and its file unchanged. */
static bool damacy__object_is_fresh(damacy__store* store, damacy__object* object)
{
    struct stat info;
    damacy__file_id id;
    bool is_fresh = false;
    int fd;

    if (!object->is_known || !damacy__handle_take_open(&store->handles, &object->handle, &fd)) {
        return false;
    }
    if (damacy__os_stat(&store->os, fd, &info) == 0) {
        id = damacy__file_id_of(&info);
        is_fresh = info.st_nlink > 0 && damacy__file_id_equal(&id, &object->id);
    }
    damacy__handle_release(&store->handles, &object->handle, !is_fresh);
    return is_fresh;
}

/* Opens an object that nobody uses, new or idle, and learns what it is now. */
static damacy_status damacy__object_refresh(damacy__store* store, damacy__object* object,
                                            damacy_error* err)
{
    damacy_status status = DAMACY_OK;
    damacy__file_id id;
    int fd = -1;

    memset(&id, 0, sizeof id);
    damacy__handles_begin(&store->handles);
    if (!damacy__object_is_fresh(store, object)) {
        damacy__handle_close(&store->handles, &object->handle);
        if (!damacy__handle_take(&store->handles, &object->handle, &fd)) {
            status = damacy__object_open_file(store, object, &fd, &id, err);
            damacy__handle_put(&store->handles, &object->handle, status == DAMACY_OK ? fd : -1);
            if (status == DAMACY_OK) {
                object->id = id;
                object->is_known = true;
                damacy__handle_release(&store->handles, &object->handle, false);
            }
        }
    }
    damacy__handles_end(&store->handles);
    return status;
}

/* The descriptor of an object in use, until damacy__handle_release. Inside an operation. */
static damacy_status damacy__object_use(damacy__store* store, damacy__object* object, int* fd,
                                        damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    damacy_status status;
    damacy__file_id id;
    int got = -1;

    if (damacy__handle_take(&store->handles, &object->handle, fd)) {
        return DAMACY_OK;
    }
    memset(&id, 0, sizeof id);
    status = damacy__object_open_file(store, object, &got, &id, err);
    if (status == DAMACY_OK && !damacy__file_id_equal(&id, &object->id)) {
        (void)store->os.close(store->os.user, got);
        status = DAMACY_NOTFOUND;
    }
    damacy__handle_put(&store->handles, &object->handle, status == DAMACY_OK ? got : -1);
    if (status == DAMACY_NOTFOUND) {
        damacy__object_forget(store, object);
        return damacy__fail(err, DAMACY_IO, "%s: the object was removed or replaced while in use",
                            damacy__store_name(object->root, object->key, name));
    }
    *fd = got;
    return status;
}

/* Exactly size bytes, which lie inside the object as it was opened. */
static damacy_status damacy__object_read_file(damacy__store* store, damacy__object* object,
                                              uint64_t offset, void* dst, size_t size,
                                              damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    char cause[DAMACY__ERRNO_TEXT];
    damacy__relief relief = {0, 0, 0, 0};
    size_t n = 0;
    int code;

    do {
        int fd = -1;
        DAMACY__TRY(damacy__object_use(store, object, &fd, err));
        code = damacy__os_read(&store->os, fd, dst, size, offset, &n);
        damacy__handle_release(&store->handles, &object->handle, code == -ESTALE);
    } while (code < 0 && damacy__store_relieve(store, -code, &relief));
    if (code < 0) {
        err->offset = offset + n;
        return damacy__fail(err, code == -ENOMEM ? DAMACY_OOM : DAMACY_IO,
                            "%s: cannot read %zu bytes at %" PRIu64 ": %s",
                            damacy__store_name(object->root, object->key, name), size, offset,
                            damacy__errno_text(-code, cause));
    }
    if (n < size) { /* cut since it was opened */
        damacy__object_forget(store, object);
        return damacy__object_fail_short(object, offset, size, offset + n, err);
    }
    return DAMACY_OK;
}

/* ==== src/store/store.h ==== */
/* Names to bytes: roots (the folder of an array or group) and the objects beneath them, from local
 * files or from the caller's own store. Every call blocks; any number of threads may call at once.
 *
 * Opening the same object twice gives one object, opened once. Descriptors come and go beneath open
 * objects (handles.h), so that few are enough for any number of objects; a file that turns out to
 * be another one than was opened first is an error, never a mixture of old and new bytes. */

static damacy_status damacy__store_init(damacy__store* store, damacy__alloc* alloc,
                                        const damacy_config* config, damacy_error* err);
static void damacy__store_deinit(damacy__store* store);
static damacy_status damacy__store_root(damacy__store* store, const char* uri, damacy__root** out,
                                        damacy_error* err);
static void damacy__store_root_release(damacy__store* store, damacy__root* root);
static damacy_status damacy__store_open(damacy__store* store, damacy__root* root, const char* key,
                                        damacy__object** out, damacy_error* err);
static void damacy__store_close(damacy__store* store, damacy__object* object);
static damacy_status damacy__store_read(damacy__store* store, damacy__object* object,
                                        uint64_t offset, void* dst, size_t size, damacy_error* err);

/* Bytes of an open object, as it was when it was opened. */
static inline uint64_t damacy__object_size(const damacy__object* object)
{
    return object->id.size;
}

/* Differs between versions of a file, so that an index read from one is not used with another. For
 * the caller's own store only the size tells. */
static inline uint64_t damacy__object_stamp(const damacy__object* object)
{
    return damacy__hash(&object->id, sizeof object->id, 0);
}

static bool damacy__store_is_custom(const damacy__store* store)
{
    return store->custom.open != NULL;
}

/* Half of what the process may open, within reason; the rest is the host program's. */
static uint32_t damacy__store_max_open(uint32_t io_threads)
{
    const uint64_t most = DAMACY__MAX(UINT64_C(4) * io_threads, 1024);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 64;
    }
    return (uint32_t)DAMACY__MAX(DAMACY__MIN((uint64_t)limit.rlim_cur / 2, most), 4);
}

/* config is a resolved one; alloc outlives the store. A zeroed store may be passed to deinit. */
static damacy_status damacy__store_init(damacy__store* store, damacy__alloc* alloc,
                                        const damacy_config* config, damacy_error* err)
{
    damacy_status status;

    memset(store, 0, sizeof *store);
    damacy__os_init(&store->os);
    store->custom = config->store;
    store->latency = config->debug_latency;
    store->follow_outside_links = config->follow_outside_links != 0;
    DAMACY__TRY(damacy__handles_init(&store->handles, &store->os,
                                     damacy__store_max_open(config->io_threads), err));
    store->max_idle = damacy__store_is_custom(store) ? 64 : store->handles.max_open;
    status = damacy__mutex_init(&store->mutex, err);
    if (status != DAMACY_OK) {
        goto no_mutex;
    }
    status = damacy__condition_init(&store->opened, err);
    if (status != DAMACY_OK) {
        goto no_condition;
    }
    status = damacy__table_init(&store->roots, alloc, 1024, err);
    if (status == DAMACY_OK) {
        status = damacy__table_init(&store->objects, alloc, 2 * store->max_idle, err);
    }
    if (status == DAMACY_OK) {
        store->alloc = alloc;
        return DAMACY_OK;
    }
    damacy__table_deinit(&store->roots, alloc);
    damacy__condition_deinit(&store->opened);
no_condition:
    damacy__mutex_deinit(&store->mutex);
no_mutex:
    damacy__handles_deinit(&store->handles);
    memset(store, 0, sizeof *store);
    return status;
}

static void damacy__object_free(damacy__store* store, damacy__object* object)
{
    damacy__free(store->alloc, object->key, object->key_capacity);
    damacy__free(store->alloc, object, 1);
}

/* Drops a reference; the root is freed with the last one, the objects' included. */
static void damacy__store_root_release(damacy__store* store, damacy__root* root)
{
    bool is_last;

    damacy__lock(&store->mutex);
    root->n_refs--;
    is_last = root->n_refs == 0;
    if (is_last && !root->is_stale) {
        damacy__table_remove(&store->roots, &root->entry);
    }
    damacy__unlock(&store->mutex);
    if (is_last) {
        damacy__handle_close(&store->handles, &root->handle);
        damacy__free(store->alloc, root->path, root->path_len + 1);
        damacy__free(store->alloc, root, 1);
    }
}

/* Ends an object that has no reference and is not in the table; its record may serve again. */
static void damacy__object_discard(damacy__store* store, damacy__object* object)
{
    damacy__root* root = object->root;
    bool is_kept;

    if (damacy__store_is_custom(store)) {
        if (object->is_known) {
            store->custom.close(store->custom.user, object->custom);
        }
    } else {
        damacy__handle_close(&store->handles, &object->handle);
    }
    damacy__lock(&store->mutex);
    is_kept = store->n_spare < store->max_idle;
    if (is_kept) {
        object->spare = store->spare;
        store->spare = object;
        store->n_spare++;
    }
    damacy__unlock(&store->mutex);
    if (!is_kept) {
        damacy__object_free(store, object);
    }
    if (root) {
        damacy__store_root_release(store, root);
    }
}

/* Closes what is idle and frees. No root or object may be in use. A zeroed store is left alone. */
static void damacy__store_deinit(damacy__store* store)
{
    if (!store->alloc) {
        return;
    }
    while (store->objects.oldest) {
        damacy__object* object = (damacy__object*)(void*)store->objects.oldest;
        assert(object->n_refs == 0);
        damacy__table_remove(&store->objects, &object->entry);
        damacy__object_discard(store, object);
    }
    while (store->spare) {
        damacy__object* object = store->spare;
        store->spare = object->spare;
        damacy__object_free(store, object);
    }
    assert(store->roots.n_entries == 0);
    damacy__table_deinit(&store->objects, store->alloc);
    damacy__table_deinit(&store->roots, store->alloc);
    damacy__condition_deinit(&store->opened);
    damacy__mutex_deinit(&store->mutex);
    damacy__handles_deinit(&store->handles);
    memset(store, 0, sizeof *store);
}

/* The absolute path of a uri, or the prefix of the caller's store, into path[DAMACY__PATH_SIZE]. */
static damacy_status damacy__store_path(const damacy__store* store, const char* uri, char* path,
                                        damacy_error* err)
{
    char relative[DAMACY__PATH_SIZE];
    char cause[DAMACY__ERRNO_TEXT];
    size_t folder;
    size_t len;

    if (damacy__store_is_custom(store)) {
        return damacy__uri_prefix(uri, path, err);
    }
    DAMACY__TRY(damacy__uri_path(uri, relative, err));
    len = strlen(relative);
    if (relative[0] == '/') {
        memcpy(path, relative, len + 1);
        return DAMACY_OK;
    }
    /* Later changes of the working directory must not matter. */
    if (!getcwd(path, DAMACY__PATH_SIZE)) {
        return damacy__fail(err, DAMACY_IO, "%.100s: no working directory: %s", uri,
                            damacy__errno_text(errno, cause));
    }
    folder = strlen(path);
    if (folder + 1 + len >= DAMACY__PATH_SIZE) {
        return damacy__fail(err, DAMACY_INVAL, "%.100s: its absolute path is longer than %d bytes",
                            uri, DAMACY__PATH_SIZE - 1);
    }
    path[folder] = '/';
    memcpy(path + folder + 1, relative, len + 1);
    return DAMACY_OK;
}

/* A reference to the root of a path, which may be new. */
static damacy_status damacy__root_acquire(damacy__store* store, const char* path,
                                          damacy__root** out, damacy_error* err)
{
    const size_t len = strlen(path);
    const uint64_t hash = damacy__hash(path, len, 0);
    damacy__root* fresh = damacy__new(store->alloc, 1, damacy__root);
    damacy__root* found = NULL;
    damacy__entry* at;

    if (fresh) {
        fresh->path = damacy__alloc_text(store->alloc, path, len);
        fresh->path_len = len;
    }
    if (!fresh || !fresh->path) {
        damacy__free(store->alloc, fresh, 1);
        return damacy__fail(err, DAMACY_OOM, "no memory for a root");
    }
    damacy__lock(&store->mutex);
    for (at = damacy__table_first(&store->roots, hash); at && !found; at = damacy__table_next(at)) {
        damacy__root* root = (damacy__root*)(void*)at;
        found = root->path_len == len && memcmp(root->path, path, len) == 0 ? root : NULL;
    }
    if (!found) {
        damacy__table_insert(&store->roots, &fresh->entry, hash);
        found = fresh;
        fresh = NULL;
    }
    found->n_refs++;
    *out = found;
    damacy__unlock(&store->mutex);
    if (fresh) {
        damacy__free(store->alloc, fresh->path, len + 1);
        damacy__free(store->alloc, fresh, 1);
    }
    return DAMACY_OK;
}

/* Opens the folder of an array or group, or names a prefix of the caller's store; end with
 * damacy__store_root_release. NOTFOUND, IO, INVAL, UNSUPPORTED, OOM. */
static damacy_status damacy__store_root(damacy__store* store, const char* uri, damacy__root** out,
                                        damacy_error* err)
{
    char path[DAMACY__PATH_SIZE];

    DAMACY__TRY(damacy__store_path(store, uri, path, err));
    for (uint32_t n_tries = 0;; n_tries++) {
        bool is_same = true;
        damacy__root* root = NULL;
        damacy_status status;
        DAMACY__TRY(damacy__root_acquire(store, path, &root, err));
        if (damacy__store_is_custom(store)) {
            *out = root;
            return DAMACY_OK;
        }
        status = damacy__root_verify(store, root, &is_same, err);
        if (status == DAMACY_OK && is_same) {
            *out = root;
            return DAMACY_OK;
        }
        damacy__root_forget(store, root);
        if (status == DAMACY_OK && n_tries == 2) {
            char name[DAMACY__NAME_TEXT];
            status = damacy__fail(err, DAMACY_IO, "%s: the folder is being replaced",
                                  damacy__store_name(root, NULL, name));
        }
        damacy__store_root_release(store, root);
        DAMACY__TRY(status);
    }
}

static damacy__object* damacy__object_find(const damacy__store* store, const damacy__root* root,
                                           const char* key, uint64_t hash)
{
    damacy__entry* at = damacy__table_first(&store->objects, hash);

    for (; at; at = damacy__table_next(at)) {
        damacy__object* object = (damacy__object*)(void*)at;
        if (object->root == root && strcmp(object->key, key) == 0) {
            return object;
        }
    }
    return NULL;
}

/* A spare record with room for a key; NULL: none. The mutex is held. */
static damacy__object* damacy__object_from_spare(damacy__store* store, size_t key_size)
{
    damacy__object* object = store->spare;

    if (!object || object->key_capacity < key_size) {
        return NULL;
    }
    store->spare = object->spare;
    store->n_spare--;
    return object;
}

static damacy__object* damacy__object_new(damacy__store* store, size_t key_size)
{
    enum { DAMACY__KEY_ROOM = 128 }; /* so that records fit most other keys too */
    const size_t capacity = DAMACY__MAX(key_size, (size_t)DAMACY__KEY_ROOM);
    damacy__object* object = damacy__new(store->alloc, 1, damacy__object);

    if (object) {
        object->key = damacy__new(store->alloc, capacity, char);
        object->key_capacity = capacity;
        if (!object->key) {
            damacy__free(store->alloc, object, 1);
            return NULL;
        }
    }
    return object;
}

/* A record for a key in the table, OPENING, with one reference. The mutex is held. */
static void damacy__object_insert(damacy__store* store, damacy__object* object, damacy__root* root,
                                  const char* key, uint64_t hash)
{
    char* const text = object->key;
    const size_t capacity = object->key_capacity;

    memset(object, 0, sizeof *object);
    object->key = text;
    object->key_capacity = capacity;
    memcpy(text, key, strlen(key) + 1);
    object->root = root;
    object->n_refs = 1;
    root->n_refs++;
    damacy__table_insert(&store->objects, &object->entry, hash);
}

/* A reference to the object of a key. *is_mine: the caller opens it, ends with
 * damacy__object_settle; else nobody does any more. */
static damacy_status damacy__object_acquire(damacy__store* store, damacy__root* root,
                                            const char* key, damacy__object** out, bool* is_mine,
                                            damacy_error* err)
{
    const size_t len = strlen(key);
    const uint64_t hash = damacy__hash(key, len, (uint64_t)(uintptr_t)root);
    damacy__object* fresh = NULL;
    damacy__object* object;

    damacy__lock(&store->mutex);
    while (!(object = damacy__object_find(store, root, key, hash))) {
        if (!fresh) {
            fresh = damacy__object_from_spare(store, len + 1);
        }
        if (fresh) {
            damacy__object_insert(store, fresh, root, key, hash);
            damacy__unlock(&store->mutex);
            *out = fresh;
            *is_mine = true;
            return DAMACY_OK;
        }
        damacy__unlock(&store->mutex);
        fresh = damacy__object_new(store, len + 1);
        if (!fresh) {
            return damacy__fail(err, DAMACY_OOM, "no memory for object %.200s", key);
        }
        damacy__lock(&store->mutex);
    }
    *is_mine = object->n_refs == 0;
    if (*is_mine) {
        store->n_idle--;
        object->state = DAMACY__OBJECT_OPENING;
    }
    object->n_refs++;
    while (!*is_mine && object->state == DAMACY__OBJECT_OPENING) {
        damacy__wait(&store->opened, &store->mutex);
    }
    damacy__unlock(&store->mutex);
    *out = object;
    if (fresh) {
        damacy__object_free(store, fresh);
    }
    return DAMACY_OK;
}

/* Ends opening: wakes those who wait for it. */
static void damacy__object_settle(damacy__store* store, damacy__object* object,
                                  damacy_status status, const damacy_error* err)
{
    damacy__lock(&store->mutex);
    object->state = DAMACY__OBJECT_READY;
    if (status != DAMACY_OK) {
        object->state = DAMACY__OBJECT_FAILED;
        object->status = status;
        memcpy(object->message, err->message, sizeof object->message);
        if (!object->is_stale) {
            object->is_stale = true;
            damacy__table_remove(&store->objects, &object->entry);
        }
    }
    damacy__broadcast(&store->opened);
    damacy__unlock(&store->mutex);
}

/* What the caller's store may answer; anything else is an IO error. */
static damacy_status damacy__custom_status(damacy_status status)
{
    switch (status) {
    case DAMACY_OK:
    case DAMACY_NOTFOUND:
    case DAMACY_OOM:
    case DAMACY_UNSUPPORTED:
    case DAMACY_TIMEOUT:
        return status;
    default:
        return DAMACY_IO;
    }
}

/* Opens an object of the caller's store; an idle one is open still. */
static damacy_status damacy__object_open_custom(damacy__store* store, damacy__object* object,
                                                damacy_error* err)
{
    char key[2 * DAMACY__PATH_SIZE];
    char name[DAMACY__NAME_TEXT];
    void* custom = NULL;
    uint64_t size = 0;
    damacy_status status;

    if (object->is_known) {
        return DAMACY_OK;
    }
    (void)snprintf(key, sizeof key, "%s/%s", object->root->path, object->key);
    damacy__store_delay(store);
    status = store->custom.open(store->custom.user, key, &custom, &size);
    if (status != DAMACY_OK) {
        return damacy__fail(err, damacy__custom_status(status),
                            status == DAMACY_NOTFOUND
                                ? "%s: there is no such object (store.open returned %d)"
                                : "%s: store.open returned %d",
                            damacy__store_name(object->root, object->key, name), (int)status);
    }
    object->custom = custom;
    object->id.size = size;
    object->is_known = true;
    return DAMACY_OK;
}

/* Drops a reference. The last user's object stays for the next one, unless it is stale; the oldest
 * such object goes when there are too many. */
static void damacy__store_close(damacy__store* store, damacy__object* object)
{
    damacy__object* ended = NULL;

    damacy__lock(&store->mutex);
    object->n_refs--;
    if (object->n_refs == 0 && object->is_stale) {
        ended = object;
    } else if (object->n_refs == 0) {
        store->n_idle++;
        damacy__table_touch(&store->objects, &object->entry);
        if (store->n_idle > store->max_idle) {
            damacy__entry* at = store->objects.oldest;
            while (((damacy__object*)(void*)at)->n_refs != 0) {
                at = at->newer;
            }
            ended = (damacy__object*)(void*)at;
            damacy__table_remove(&store->objects, at);
            store->n_idle--;
        }
    }
    damacy__unlock(&store->mutex);
    if (ended) {
        damacy__object_discard(store, ended);
    }
}

/* Opens an object by its key beneath root; end with damacy__store_close. NOTFOUND: there is none,
 * and nothing else means that. IO, INVAL (a bad key), OOM; of the caller's store also UNSUPPORTED,
 * TIMEOUT. */
static damacy_status damacy__store_open(damacy__store* store, damacy__root* root, const char* key,
                                        damacy__object** out, damacy_error* err)
{
    damacy__object* object = NULL;
    bool is_mine = false;
    damacy_status status = DAMACY_OK;

    DAMACY__TRY(damacy__key_check(key, err));
    DAMACY__TRY(damacy__object_acquire(store, root, key, &object, &is_mine, err));
    if (is_mine) {
        status = damacy__store_is_custom(store) ? damacy__object_open_custom(store, object, err)
                                                : damacy__object_refresh(store, object, err);
        damacy__object_settle(store, object, status, err);
    } else if (object->state == DAMACY__OBJECT_FAILED) {
        status = damacy__fail(err, object->status, "%s", object->message);
    }
    if (status != DAMACY_OK) {
        damacy__store_close(store, object);
        return status;
    }
    *out = object;
    return DAMACY_OK;
}

static damacy_status damacy__object_read_custom(damacy__store* store, damacy__object* object,
                                                uint64_t offset, void* dst, size_t size,
                                                damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    size_t done = 0;

    damacy__store_name(object->root, object->key, name);
    while (done < size) {
        size_t n = 0;
        const damacy_status status =
            store->custom.read_at(store->custom.user, object->custom, offset + done,
                                  (uint8_t*)dst + done, size - done, &n);
        if (status != DAMACY_OK || n > size - done) {
            err->offset = offset + done;
            return damacy__fail(
                err,
                status == DAMACY_NOTFOUND || status == DAMACY_OK ? DAMACY_IO
                                                                 : damacy__custom_status(status),
                "%s: store.read_at of %zu bytes at %" PRIu64 " returned %d with %zu bytes", name,
                size - done, offset + done, (int)status, n);
        }
        if (n == 0) {
            return damacy__object_fail_short(object, offset, size, offset + done, err);
        }
        done += n;
    }
    return DAMACY_OK;
}

/* Fills dst with exactly size bytes from offset on, or fails: IO, OOM; of the caller's store also
 * UNSUPPORTED, TIMEOUT. err->offset is set. */
static damacy_status damacy__store_read(damacy__store* store, damacy__object* object,
                                        uint64_t offset, void* dst, size_t size, damacy_error* err)
{
    damacy_status status;

    if (offset > object->id.size || size > object->id.size - offset) {
        return damacy__object_fail_short(object, offset, size, object->id.size, err);
    }
    if (size == 0) {
        return DAMACY_OK;
    }
    damacy__store_delay(store);
    if (damacy__store_is_custom(store)) {
        return damacy__object_read_custom(store, object, offset, dst, size, err);
    }
    damacy__handles_begin(&store->handles);
    status = damacy__object_read_file(store, object, offset, dst, size, err);
    damacy__handles_end(&store->handles);
    return status;
}

/* ==== src/stage/vector.h ==== */
/* Growable arrays that keep their memory: cleared for every batch, grown only when a batch is
 * larger than any before it, so that steady state allocates nothing. */

#define DAMACY__VECTOR(type, name)                                                            \
    typedef struct name {                                                                     \
        type* items;                                                                          \
        uint64_t n;                                                                           \
        uint64_t n_capacity;                                                                  \
    } name;                                                                                   \
    /* Room for n_more further items; false when memory is out, with the vector as it was. */ \
    __attribute__((unused)) static bool name##_reserve(name* vector, damacy__alloc* alloc,    \
                                                       uint64_t n_more)                       \
    {                                                                                         \
        uint64_t n_wanted = vector->n_capacity ? vector->n_capacity : 64;                     \
        type* items;                                                                          \
        while (n_wanted - vector->n < n_more) {                                               \
            n_wanted *= 2;                                                                    \
        }                                                                                     \
        if (n_wanted == vector->n_capacity) {                                                 \
            return true;                                                                      \
        }                                                                                     \
        items = damacy__new(alloc, n_wanted, type);                                           \
        if (!items) {                                                                         \
            return false;                                                                     \
        }                                                                                     \
        if (vector->n) {                                                                      \
            memcpy(items, vector->items, vector->n * sizeof(type));                           \
        }                                                                                     \
        damacy__free(alloc, vector->items, vector->n_capacity);                               \
        vector->items = items;                                                                \
        vector->n_capacity = n_wanted;                                                        \
        return true;                                                                          \
    }                                                                                         \
    /* A zeroed item at the end, or NULL when memory is out. */                               \
    __attribute__((unused)) static type* name##_push(name* vector, damacy__alloc* alloc)      \
    {                                                                                         \
        type* item;                                                                           \
        if (vector->n == vector->n_capacity && !name##_reserve(vector, alloc, 1)) {           \
            return NULL;                                                                      \
        }                                                                                     \
        item = &vector->items[vector->n++];                                                   \
        memset(item, 0, sizeof *item);                                                        \
        return item;                                                                          \
    }                                                                                         \
    static void name##_deinit(name* vector, damacy__alloc* alloc)                             \
    {                                                                                         \
        damacy__free(alloc, vector->items, vector->n_capacity);                               \
        memset(vector, 0, sizeof *vector);                                                    \
    }

/* ==== src/stage/axis.h ==== */
/* One axis of a crop to pieces that each lie in one chunk, or outside the array.
 *
 * The bounds policy is resolved here and nowhere else: clamping gives pieces that repeat one voxel
 * (step 0), reflection gives pieces that run backwards (step -1). */

typedef struct damacy__piece {
    int64_t dst;    /* first voxel in the crop */
    int64_t extent; /* voxels, at least 1 */
    int64_t src;    /* its voxel in the array; unused when chunk is -1 */
    int64_t chunk;  /* chunk number along the axis; -1: outside, to be filled */
    int32_t step;   /* +1, 0 or -1 voxels of the array per voxel of the crop */
} damacy__piece;

DAMACY__VECTOR(damacy__piece, damacy__pieces)

static bool damacy__axis_pieces(damacy__pieces* pieces, damacy__alloc* alloc,
                                damacy_interval interval, int64_t shape, int64_t chunk,
                                damacy_bounds bounds);

/* Cuts a run of voxels at chunk borders. */
static bool damacy__axis_run(damacy__pieces* pieces, damacy__alloc* alloc, int64_t dst,
                             int64_t extent, int64_t src, int32_t step, int64_t chunk)
{
    while (extent > 0) {
        damacy__piece* piece = damacy__pieces_push(pieces, alloc);
        const int64_t within = src % chunk;
        const int64_t room = step == 0 ? extent : step > 0 ? chunk - within : within + 1;
        if (!piece) {
            return false;
        }
        piece->dst = dst;
        piece->extent = DAMACY__MIN(extent, room);
        piece->src = src;
        piece->chunk = src / chunk;
        piece->step = step;
        dst += piece->extent;
        extent -= piece->extent;
        src += step * piece->extent;
    }
    return true;
}

/* A piece that lies outside the array. */
static bool damacy__axis_outside(damacy__pieces* pieces, damacy__alloc* alloc, int64_t dst,
                                 int64_t extent)
{
    damacy__piece* piece;

    if (extent <= 0) {
        return true;
    }
    piece = damacy__pieces_push(pieces, alloc);
    if (!piece) {
        return false;
    }
    piece->dst = dst;
    piece->extent = extent;
    piece->chunk = -1;
    return true;
}

/* Mirrors at the border voxels, which are not repeated: runs of n - 1 voxels up and down. */
static bool damacy__axis_reflect(damacy__pieces* pieces, damacy__alloc* alloc,
                                 damacy_interval interval, int64_t shape, int64_t chunk)
{
    const int64_t extent = interval.end - interval.begin;
    const int64_t period = 2 * (shape - 1);
    int64_t dst = 0;

    if (shape == 1) {
        return damacy__axis_run(pieces, alloc, 0, extent, 0, 0, chunk);
    }
    while (dst < extent) {
        int64_t at = (interval.begin + dst) % period;
        int64_t n;
        if (at < 0) {
            at += period;
        }
        if (at < shape - 1) { /* rising from at to shape - 2 */
            n = DAMACY__MIN(extent - dst, shape - 1 - at);
            if (!damacy__axis_run(pieces, alloc, dst, n, at, 1, chunk)) {
                return false;
            }
        } else { /* falling from period - at to 1 */
            n = DAMACY__MIN(extent - dst, period - at);
            if (!damacy__axis_run(pieces, alloc, dst, n, period - at, -1, chunk)) {
                return false;
            }
        }
        dst += n;
    }
    return true;
}

/* Appends the pieces of one axis in ascending dst. The interval is not empty and its ends differ by
 * less than 2^62; under REJECT it lies inside the array (the caller has checked). An axis without
 * voxels lies wholly outside. False when memory is out. */
static bool damacy__axis_pieces(damacy__pieces* pieces, damacy__alloc* alloc,
                                damacy_interval interval, int64_t shape, int64_t chunk,
                                damacy_bounds bounds)
{
    const int64_t extent = interval.end - interval.begin;
    const int64_t begin = DAMACY__MAX(interval.begin, 0);
    const int64_t end = DAMACY__MIN(interval.end, shape);
    const int64_t n_before = DAMACY__MIN(DAMACY__MAX(-interval.begin, 0), extent);
    const int64_t n_inside = DAMACY__MAX(end - begin, 0);
    const int64_t n_after = extent - n_before - n_inside;

    if (shape == 0) {
        return damacy__axis_outside(pieces, alloc, 0, extent);
    }
    if (bounds == DAMACY_BOUNDS_REFLECT) {
        return damacy__axis_reflect(pieces, alloc, interval, shape, chunk);
    }
    if (bounds == DAMACY_BOUNDS_CLAMP) {
        return damacy__axis_run(pieces, alloc, 0, n_before, 0, 0, chunk) &&
               damacy__axis_run(pieces, alloc, n_before, n_inside, begin, 1, chunk) &&
               damacy__axis_run(pieces, alloc, n_before + n_inside, n_after, shape - 1, 0, chunk);
    }
    return damacy__axis_outside(pieces, alloc, 0, n_before) &&
           damacy__axis_run(pieces, alloc, n_before, n_inside, begin, 1, chunk) &&
           damacy__axis_outside(pieces, alloc, n_before + n_inside, n_after);
}

/* ==== src/stage/plan.h ==== */
/* Crops to work: which chunks to read and decode, in which coalesced reads, and where each of their
 * voxels goes.
 *
 * A pure function of its inputs: no IO, clock or threads. Each distinct chunk appears once, however
 * many samples of the batch touch it. Addresses in the copies are relative: src to the decoded
 * chunk, dst to the batch. */

/* The index of one object: where its chunks lie. Without sharding it has the one extent of the
 * object. */
typedef struct damacy__index {
    damacy__extent* extents; /* n; NULL when the object is not stored */
    uint64_t n;
    uint64_t object_size; /* bytes */
    uint64_t stamp;       /* tells a replaced object from the one that was indexed */
} damacy__index;

/* One sample as the planner sees it; its array, box and rank have been checked. */
typedef struct damacy__view {
    const damacy__layout* layout;
    const damacy_interval* box;
    const damacy__index* const* indexes; /* of every object that the box touches, C order */
    const int64_t* first_object;         /* grid position of indexes[0] */
    const int64_t* n_objects;            /* per axis */
    uint32_t sample;                     /* position in the batch */
} damacy__view;

typedef struct damacy__plan_chunk {
    const damacy__layout* layout;
    const damacy__index* index;
    uint64_t entry;  /* number in the index */
    uint64_t offset; /* in the object */
    uint64_t size;   /* stored bytes */
    uint32_t object; /* objects in order of first use */
    uint32_t sample; /* the first sample that touches it: names the array and the object's key */
    uint32_t first;  /* into plan.order: its copies */
    uint32_t n_copies;
    uint32_t read;                     /* into plan.reads */
    int64_t position[DAMACY_MAX_RANK]; /* chunk number along each axis */
} damacy__plan_chunk;

/* Bytes [offset, offset + size) of one object, and the chunks that lie there. */
typedef struct damacy__plan_read {
    uint64_t offset;
    uint64_t size;
    uint32_t first; /* into plan.by_place: its chunks */
    uint32_t n_chunks;
    uint32_t turn; /* its number among the reads of its object */
} damacy__plan_read;

typedef struct damacy__plan_copy {
    damacy__copy copy;
    uint32_t chunk; /* UINT32_MAX: a fill */
    uint32_t sample;
} damacy__plan_copy;

DAMACY__VECTOR(damacy__plan_chunk, damacy__plan_chunks)
DAMACY__VECTOR(damacy__plan_read, damacy__plan_reads)
DAMACY__VECTOR(damacy__plan_copy, damacy__plan_copies)
DAMACY__VECTOR(damacy__axis, damacy__axes)
DAMACY__VECTOR(uint32_t, damacy__numbers)

/* What stays the same for all batches of a pipeline. */
typedef struct damacy__plan_options {
    uint32_t rank;
    int64_t shape[DAMACY_MAX_RANK]; /* of a sample */
    uint32_t out_size;              /* bytes per output voxel */
    damacy_bounds bounds;
    uint64_t max_read; /* bytes of a coalesced read */
    uint64_t max_gap;  /* bytes between chunks that may be read for nothing */
    uint32_t has_channels;
    uint32_t channel_axis;
} damacy__plan_options;

typedef struct damacy__plan {
    damacy__plan_chunks chunks;
    damacy__plan_copies copies;
    damacy__axes axes;
    damacy__numbers order;    /* copies grouped by chunk */
    damacy__numbers fills;    /* copies that are fills */
    damacy__numbers by_place; /* chunks sorted by object and offset */
    damacy__plan_reads reads;
    damacy__numbers issue; /* reads in the order to issue them: objects take turns */
    uint64_t n_touched;    /* chunks summed over samples */
    uint64_t n_missing;    /* of those, not stored */
    uint64_t bytes_wanted; /* stored bytes of the chunks */
    uint64_t bytes_decoded;
    uint64_t bytes_delivered; /* voxels in the source type */
    damacy__pieces pieces;    /* scratch, as are the rest */
    damacy__numbers buckets;  /* hash of chunks: number + 1, 0 empty */
    damacy__numbers scratch;
    uint32_t n_objects;
} damacy__plan;

static void damacy__plan_deinit(damacy__plan* plan, damacy__alloc* alloc);
static void damacy__plan_clear(damacy__plan* plan);
static damacy_status damacy__plan_sample(damacy__plan* plan, damacy__alloc* alloc,
                                         const damacy__plan_options* options,
                                         const damacy__view* view, damacy_error* err);

static void damacy__plan_deinit(damacy__plan* plan, damacy__alloc* alloc)
{
    damacy__plan_chunks_deinit(&plan->chunks, alloc);
    damacy__plan_copies_deinit(&plan->copies, alloc);
    damacy__axes_deinit(&plan->axes, alloc);
    damacy__numbers_deinit(&plan->order, alloc);
    damacy__numbers_deinit(&plan->fills, alloc);
    damacy__numbers_deinit(&plan->by_place, alloc);
    damacy__plan_reads_deinit(&plan->reads, alloc);
    damacy__numbers_deinit(&plan->issue, alloc);
    damacy__pieces_deinit(&plan->pieces, alloc);
    damacy__numbers_deinit(&plan->buckets, alloc);
    damacy__numbers_deinit(&plan->scratch, alloc);
}

/* Empties a plan, keeping its memory. */
static void damacy__plan_clear(damacy__plan* plan)
{
    plan->chunks.n = plan->copies.n = plan->axes.n = plan->order.n = plan->fills.n = 0;
    plan->by_place.n = plan->reads.n = plan->issue.n = 0;
    plan->n_touched = plan->n_missing = plan->bytes_wanted = 0;
    plan->bytes_decoded = plan->bytes_delivered = 0;
    plan->n_objects = 0;
    if (plan->buckets.n) {
        memset(plan->buckets.items, 0, plan->buckets.n * sizeof(uint32_t));
    }
}

static uint64_t damacy__plan_hash(const damacy__index* index, uint64_t entry)
{
    const uint64_t h = ((uint64_t)(uintptr_t)index ^ entry * UINT64_C(0x9e3779b97f4a7c15)) *
                       UINT64_C(0xff51afd7ed558ccd);

    return h ^ h >> 32;
}

static void damacy__plan_bucket(damacy__plan* plan, uint32_t chunk)
{
    const damacy__plan_chunk* c = &plan->chunks.items[chunk];
    const uint64_t mask = plan->buckets.n - 1;
    uint64_t at = damacy__plan_hash(c->index, c->entry) & mask;

    while (plan->buckets.items[at]) {
        at = (at + 1) & mask;
    }
    plan->buckets.items[at] = chunk + 1;
}

/* Doubles the hash once it is half full. */
static bool damacy__plan_grow(damacy__plan* plan, damacy__alloc* alloc)
{
    const uint64_t n = plan->buckets.n ? 2 * plan->buckets.n : 1024;

    if (plan->buckets.n && 2 * (plan->chunks.n + 1) <= plan->buckets.n) {
        return true;
    }
    if (!damacy__numbers_reserve(&plan->buckets, alloc, n - plan->buckets.n)) {
        return false;
    }
    plan->buckets.n = n;
    memset(plan->buckets.items, 0, n * sizeof(uint32_t));
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        damacy__plan_bucket(plan, i);
    }
    return true;
}

/* The number of a chunk, new or known; UINT32_MAX when memory is out. */
static uint32_t damacy__plan_find(damacy__plan* plan, damacy__alloc* alloc,
                                  const damacy__view* view, const damacy__index* index,
                                  uint64_t entry, const int64_t* position)
{
    uint64_t at;
    damacy__plan_chunk* chunk;

    if (!damacy__plan_grow(plan, alloc)) {
        return UINT32_MAX;
    }
    for (at = damacy__plan_hash(index, entry) & (plan->buckets.n - 1); plan->buckets.items[at];
         at = (at + 1) & (plan->buckets.n - 1)) {
        chunk = &plan->chunks.items[plan->buckets.items[at] - 1];
        if (chunk->index == index && chunk->entry == entry) {
            return plan->buckets.items[at] - 1;
        }
    }
    chunk = damacy__plan_chunks_push(&plan->chunks, alloc);
    if (!chunk) {
        return UINT32_MAX;
    }
    chunk->layout = view->layout;
    chunk->index = index;
    chunk->entry = entry;
    chunk->offset = index->extents[entry].offset;
    chunk->size = index->extents[entry].size;
    chunk->sample = view->sample;
    chunk->object = UINT32_MAX;
    memcpy(chunk->position, position, view->layout->rank * sizeof position[0]);
    plan->buckets.items[at] = (uint32_t)plan->chunks.n;
    plan->bytes_wanted += chunk->size;
    plan->bytes_decoded += view->layout->chunk_size;
    return (uint32_t)plan->chunks.n - 1;
}

/* Appends a copy over the given axes, leaving out axes of one voxel and merging axes that run on;
 * the channel axis stays by itself. */
static damacy__plan_copy* damacy__plan_emit(damacy__plan* plan, damacy__alloc* alloc,
                                            const damacy__plan_options* options,
                                            const damacy__axis* axes, uint32_t n)
{
    damacy__plan_copy* copy = damacy__plan_copies_push(&plan->copies, alloc);
    uint64_t n_voxels = 1;
    int last_is_channel = 0;

    if (!copy || !damacy__axes_reserve(&plan->axes, alloc, n + 1)) {
        return NULL;
    }
    copy->copy.first_axis = (uint32_t)plan->axes.n;
    copy->copy.channel_axis = DAMACY__NO_CHANNEL;
    for (uint32_t i = 0; i < n; i++) {
        damacy__axis* last = &plan->axes.items[plan->axes.n - 1];
        const int is_channel = options->has_channels && i == options->channel_axis;
        n_voxels *= axes[i].extent;
        if (axes[i].extent == 1) {
            continue;
        }
        if (copy->copy.n_axes && !is_channel && !last_is_channel &&
            last->src_stride == axes[i].src_stride * (int64_t)axes[i].extent &&
            last->dst_stride == axes[i].dst_stride * (int64_t)axes[i].extent) {
            last->src_stride = axes[i].src_stride;
            last->dst_stride = axes[i].dst_stride;
            last->extent *= axes[i].extent;
            continue;
        }
        if (is_channel) {
            copy->copy.channel_axis = copy->copy.n_axes;
        }
        last_is_channel = is_channel;
        plan->axes.items[plan->axes.n++] = axes[i];
        copy->copy.n_axes++;
    }
    if (copy->copy.n_axes == 0) {
        damacy__axis* only = &plan->axes.items[plan->axes.n++];
        only->src_stride = only->dst_stride = 1;
        only->extent = 1;
        copy->copy.n_axes = 1;
    }
    copy->copy.n_voxels_low = (uint32_t)n_voxels;
    copy->copy.n_voxels_high = (uint32_t)(n_voxels >> 32);
    return copy;
}

/* State of the walk over the product of pieces. */
typedef struct damacy__plan_walk {
    damacy__plan* plan;
    damacy__alloc* alloc;
    const damacy__plan_options* options;
    const damacy__view* view;
    const damacy__piece* pieces[DAMACY_MAX_RANK];
    uint64_t n_pieces[DAMACY_MAX_RANK];
    uint64_t at[DAMACY_MAX_RANK];
    int64_t dst_stride[DAMACY_MAX_RANK]; /* elements */
    uint64_t sample_voxels;
} damacy__plan_walk;

/* A fill of the pieces chosen on axes before n_fixed, and of whole axes from there on. */
static bool damacy__plan_fill(damacy__plan_walk* walk, uint32_t n_fixed)
{
    const damacy__plan_options* options = walk->options;
    damacy__axis axes[DAMACY_MAX_RANK];
    uint64_t dst = walk->view->sample * walk->sample_voxels;
    damacy__plan_copy* copy;
    uint32_t* number;
    uint32_t channel = 0;

    for (uint32_t i = 0; i < options->rank; i++) {
        const damacy__piece* piece = i < n_fixed ? &walk->pieces[i][walk->at[i]] : NULL;
        axes[i].src_stride = 0;
        axes[i].dst_stride = walk->dst_stride[i];
        axes[i].extent = (uint64_t)(piece ? piece->extent : options->shape[i]);
        dst += (uint64_t)((piece ? piece->dst : 0) * walk->dst_stride[i]);
        if (options->has_channels && i == options->channel_axis) {
            channel = (uint32_t)(piece ? piece->dst : 0);
        }
    }
    copy = damacy__plan_emit(walk->plan, walk->alloc, options, axes, options->rank);
    number = damacy__numbers_push(&walk->plan->fills, walk->alloc);
    if (!copy || !number) {
        return false;
    }
    *number = (uint32_t)walk->plan->copies.n - 1;
    copy->copy.dst = dst * options->out_size;
    copy->copy.fill = walk->view->layout->fill;
    copy->copy.flags = DAMACY__COPY_FILL;
    copy->copy.src_dtype = (uint32_t)walk->view->layout->dtype;
    copy->copy.channel = channel;
    copy->chunk = UINT32_MAX;
    copy->sample = walk->view->sample;
    return true;
}

/* The index of the object that holds the chosen pieces, and the chunk's entry in it. */
static const damacy__index* damacy__plan_locate(const damacy__plan_walk* walk, int64_t* position,
                                                uint64_t* entry)
{
    const damacy__layout* layout = walk->view->layout;
    uint64_t number = 0;

    *entry = 0;
    for (uint32_t i = 0; i < layout->rank; i++) {
        const int64_t chunk = walk->pieces[i][walk->at[i]].chunk;
        const int64_t per_object = layout->object_shape[i] / layout->chunk_shape[i];
        const int64_t object = chunk / per_object;
        position[i] = chunk;
        number = number * (uint64_t)walk->view->n_objects[i] +
                 (uint64_t)(object - walk->view->first_object[i]);
        *entry += (uint64_t)(chunk % per_object) * layout->index_stride[i];
    }
    return walk->view->indexes[number];
}

/* One combination of pieces, all inside the array: a copy out of one chunk, or a fill if it is
 * missing. */
static bool damacy__plan_cell(damacy__plan_walk* walk)
{
    const damacy__plan_options* options = walk->options;
    const damacy__layout* layout = walk->view->layout;
    damacy__axis axes[DAMACY_MAX_RANK];
    int64_t position[DAMACY_MAX_RANK];
    uint64_t dst = walk->view->sample * walk->sample_voxels;
    int64_t src = 0;
    uint64_t entry;
    uint32_t chunk;
    uint32_t channel = 0;
    damacy__plan_copy* copy;
    const damacy__index* index = damacy__plan_locate(walk, position, &entry);

    walk->plan->n_touched++;
    if (!index->extents || index->extents[entry].offset == UINT64_MAX) {
        walk->plan->n_missing++;
        return damacy__plan_fill(walk, options->rank);
    }
    chunk = damacy__plan_find(walk->plan, walk->alloc, walk->view, index, entry, position);
    for (uint32_t i = 0; i < options->rank; i++) {
        const damacy__piece* piece = &walk->pieces[i][walk->at[i]];
        axes[i].src_stride = piece->step * layout->chunk_stride[i];
        axes[i].dst_stride = walk->dst_stride[i];
        axes[i].extent = (uint64_t)piece->extent;
        dst += (uint64_t)(piece->dst * walk->dst_stride[i]);
        src += (piece->src % layout->chunk_shape[i]) * layout->chunk_stride[i];
        if (options->has_channels && i == options->channel_axis) {
            channel = (uint32_t)piece->dst;
        }
    }
    if (chunk == UINT32_MAX ||
        !(copy = damacy__plan_emit(walk->plan, walk->alloc, options, axes, options->rank))) {
        return false;
    }
    copy->copy.src = (uint64_t)src * layout->item_size;
    copy->copy.dst = dst * options->out_size;
    copy->copy.flags = layout->big_endian ? (uint32_t)DAMACY__COPY_SWAP : 0;
    copy->copy.src_dtype = (uint32_t)layout->dtype;
    copy->copy.channel = channel;
    copy->chunk = chunk;
    copy->sample = walk->view->sample;
    walk->plan->chunks.items[chunk].n_copies++;
    return true;
}

/* Walks the product of the axes' pieces; a piece outside the array fills all axes after it at once.
 */
static bool damacy__plan_product(damacy__plan_walk* walk)
{
    const uint32_t rank = walk->options->rank;
    uint32_t axis = 0;

    if (rank == 0) {
        return damacy__plan_cell(walk);
    }
    for (;;) {
        bool is_leaf = axis + 1 == rank;
        if (walk->at[axis] == walk->n_pieces[axis]) {
            walk->at[axis] = 0;
            if (axis == 0) {
                return true;
            }
            walk->at[--axis]++;
            continue;
        }
        if (walk->pieces[axis][walk->at[axis]].chunk < 0) {
            if (!damacy__plan_fill(walk, axis + 1)) {
                return false;
            }
            walk->at[axis]++;
        } else if (is_leaf) {
            if (!damacy__plan_cell(walk)) {
                return false;
            }
            walk->at[axis]++;
        } else {
            axis++;
        }
    }
}

/* Adds one sample. On failure the plan must be thrown away. */
static damacy_status damacy__plan_sample(damacy__plan* plan, damacy__alloc* alloc,
                                         const damacy__plan_options* options,
                                         const damacy__view* view, damacy_error* err)
{
    damacy__plan_walk walk;
    uint64_t starts[DAMACY_MAX_RANK + 1];
    uint64_t stride = 1;
    bool ok = true;

    memset(&walk, 0, sizeof walk);
    walk.plan = plan;
    walk.alloc = alloc;
    walk.options = options;
    walk.view = view;
    plan->pieces.n = 0;
    for (uint32_t i = 0; i < options->rank && ok; i++) {
        starts[i] = plan->pieces.n;
        ok = damacy__axis_pieces(&plan->pieces, alloc, view->box[i], view->layout->shape[i],
                                 view->layout->chunk_shape[i], options->bounds);
        starts[i + 1] = plan->pieces.n;
    }
    for (uint32_t i = options->rank; i-- > 0 && ok;) {
        walk.pieces[i] = plan->pieces.items + starts[i];
        walk.n_pieces[i] = starts[i + 1] - starts[i];
        walk.dst_stride[i] = (int64_t)stride;
        stride *= (uint64_t)options->shape[i];
    }
    walk.sample_voxels = stride;
    plan->bytes_delivered += stride * view->layout->item_size;
    if (!ok || !damacy__plan_product(&walk)) {
        return damacy__fail(err, DAMACY_OOM, "plan of a batch");
    }
    return DAMACY_OK;
}

/* ==== src/stage/reads.h ==== */
/* The second half of planning: chunks to coalesced reads, in an order in which objects take turns.
 *
 * Chunks of one object that lie next to each other, or a small gap apart, are read at once up to a
 * limit; overlapping and identical extents are legal and share bytes. */

static damacy_status damacy__plan_reads_make(damacy__plan* plan, damacy__alloc* alloc,
                                             const damacy__plan_options* options,
                                             damacy_error* err);

/* Stable merge sort of numbers by a key; scratch has room for as many. */
static void damacy__numbers_sort(uint32_t* items, uint32_t* scratch, uint64_t n,
                                 bool (*less)(const damacy__plan* plan, uint32_t a, uint32_t b),
                                 const damacy__plan* plan)
{
    uint32_t* from = items;
    uint32_t* to = scratch;

    for (uint64_t width = 1; width < n; width *= 2) {
        uint32_t* swap = from;
        for (uint64_t begin = 0; begin < n; begin += 2 * width) {
            const uint64_t middle = DAMACY__MIN(begin + width, n);
            const uint64_t end = DAMACY__MIN(begin + 2 * width, n);
            uint64_t a = begin;
            uint64_t b = middle;
            for (uint64_t i = begin; i < end; i++) {
                const bool take_b = b < end && (a == middle || less(plan, from[b], from[a]));
                to[i] = take_b ? from[b++] : from[a++];
            }
        }
        from = to;
        to = swap;
    }
    if (from != items && n) {
        memcpy(items, from, n * sizeof items[0]);
    }
}

static bool damacy__chunk_before(const damacy__plan* plan, uint32_t a, uint32_t b)
{
    const damacy__plan_chunk* x = &plan->chunks.items[a];
    const damacy__plan_chunk* y = &plan->chunks.items[b];

    return x->object != y->object ? x->object < y->object : x->offset < y->offset;
}

static bool damacy__read_before(const damacy__plan* plan, uint32_t a, uint32_t b)
{
    return plan->reads.items[a].turn < plan->reads.items[b].turn;
}

/* Numbers the objects in order of first use, by looking each chunk's index up in the hash. The hash
 * of chunks is free by now, so it is used again for objects. */
static void damacy__plan_number_objects(damacy__plan* plan)
{
    const uint64_t mask = plan->buckets.n - 1;

    memset(plan->buckets.items, 0, plan->buckets.n * sizeof(uint32_t));
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        damacy__plan_chunk* chunk = &plan->chunks.items[i];
        uint64_t at = damacy__plan_hash(chunk->index, 0) & mask;
        while (plan->buckets.items[at] &&
               plan->chunks.items[plan->buckets.items[at] - 1].index != chunk->index) {
            at = (at + 1) & mask;
        }
        if (!plan->buckets.items[at]) {
            plan->buckets.items[at] = i + 1;
            chunk->object = plan->n_objects++;
        } else {
            chunk->object = plan->chunks.items[plan->buckets.items[at] - 1].object;
        }
    }
}

/* Groups the copies by chunk: a counting sort that keeps their order. */
static void damacy__plan_group(damacy__plan* plan)
{
    uint32_t first = 0;

    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        plan->chunks.items[i].first = first;
        first += plan->chunks.items[i].n_copies;
        plan->scratch.items[i] = plan->chunks.items[i].first;
    }
    for (uint32_t i = 0; i < plan->copies.n; i++) {
        const uint32_t chunk = plan->copies.items[i].chunk;
        if (chunk != UINT32_MAX) {
            plan->order.items[plan->scratch.items[chunk]++] = i;
        }
    }
    plan->order.n = first;
}

/* Joins sorted chunks to reads. */
static bool damacy__plan_join(damacy__plan* plan, damacy__alloc* alloc,
                              const damacy__plan_options* options)
{
    damacy__plan_read* read = NULL;
    uint32_t object = UINT32_MAX;
    uint32_t turn = 0;

    for (uint32_t i = 0; i < plan->by_place.n; i++) {
        damacy__plan_chunk* chunk = &plan->chunks.items[plan->by_place.items[i]];
        const uint64_t end = chunk->offset + chunk->size;
        const bool joins =
            read && chunk->object == object &&
            chunk->offset <= read->offset + read->size + options->max_gap &&
            DAMACY__MAX(end, read->offset + read->size) - read->offset <= options->max_read;
        if (!joins) {
            read = damacy__plan_reads_push(&plan->reads, alloc);
            if (!read) {
                return false;
            }
            turn = chunk->object == object ? turn + 1 : 0;
            read->turn = turn;
            read->offset = chunk->offset;
            read->first = i;
            object = chunk->object;
        }
        read->size = DAMACY__MAX(end, read->offset + read->size) - read->offset;
        read->n_chunks++;
        chunk->read = (uint32_t)plan->reads.n - 1;
    }
    return true;
}

/* Completes a plan once all its samples are added. */
static damacy_status damacy__plan_reads_make(damacy__plan* plan, damacy__alloc* alloc,
                                             const damacy__plan_options* options, damacy_error* err)
{
    const uint64_t n = DAMACY__MAX(plan->chunks.n, plan->copies.n);

    plan->scratch.n = 0;
    if (!damacy__numbers_reserve(&plan->scratch, alloc, n + 1) ||
        !damacy__numbers_reserve(&plan->order, alloc, n + 1) ||
        !damacy__numbers_reserve(&plan->by_place, alloc, n + 1) ||
        !damacy__numbers_reserve(&plan->issue, alloc, n + 1)) {
        return damacy__fail(err, DAMACY_OOM, "plan of %" PRIu64 " chunks", plan->chunks.n);
    }
    if (plan->chunks.n == 0) {
        return DAMACY_OK;
    }
    damacy__plan_group(plan);
    damacy__plan_number_objects(plan);
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        plan->by_place.items[i] = i;
    }
    plan->by_place.n = plan->chunks.n;
    damacy__numbers_sort(plan->by_place.items, plan->scratch.items, plan->chunks.n,
                         damacy__chunk_before, plan);
    if (!damacy__plan_join(plan, alloc, options)) {
        return damacy__fail(err, DAMACY_OOM, "plan of %" PRIu64 " chunks", plan->chunks.n);
    }
    for (uint32_t i = 0; i < plan->reads.n; i++) {
        plan->issue.items[i] = i;
    }
    plan->issue.n = plan->reads.n;
    damacy__numbers_sort(plan->issue.items, plan->scratch.items, plan->reads.n, damacy__read_before,
                         plan);
    return DAMACY_OK;
}

/* ==== src/stage/metric.h ==== */
/* Counters of one stage, added to by any thread without a lock. */

/* All fields atomic. */
typedef struct damacy__metric_clock {
    uint64_t count;
    uint64_t total_ns;
    uint64_t best_ns; /* 0: none yet */
    uint64_t bytes_in;
    uint64_t bytes_out;
} damacy__metric_clock;

static void damacy__metric_add(damacy__metric_clock* clock, uint64_t ns, uint64_t bytes_in,
                               uint64_t bytes_out)
{
    uint64_t best = __atomic_load_n(&clock->best_ns, __ATOMIC_RELAXED);

    ns = ns ? ns : 1;
    __atomic_add_fetch(&clock->count, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&clock->total_ns, ns, __ATOMIC_RELAXED);
    __atomic_add_fetch(&clock->bytes_in, bytes_in, __ATOMIC_RELAXED);
    __atomic_add_fetch(&clock->bytes_out, bytes_out, __ATOMIC_RELAXED);
    while ((best == 0 || ns < best) &&
           !__atomic_compare_exchange_n(&clock->best_ns, &best, ns, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
}

static void damacy__metric_get(const damacy__metric_clock* clock, damacy_metric* out)
{
    out->count = __atomic_load_n(&clock->count, __ATOMIC_RELAXED);
    out->total_ns = __atomic_load_n(&clock->total_ns, __ATOMIC_RELAXED);
    out->best_ns = __atomic_load_n(&clock->best_ns, __ATOMIC_RELAXED);
    out->bytes_in = __atomic_load_n(&clock->bytes_in, __ATOMIC_RELAXED);
    out->bytes_out = __atomic_load_n(&clock->bytes_out, __ATOMIC_RELAXED);
}

/* ==== src/stage/fetch.h ==== */
/* Metadata and bytes of one array, fetched from its store: blocking calls, made on reader threads
 * or, for inspection, on the caller's.
 *
 * A uri names an array, or an NGFF multiscale group, of which one level is taken; its objects are
 * then opened beneath the group. Only an object that the store says is not there counts as missing;
 * any other failure is an error, never fill values. */

typedef struct damacy__fetch_options {
    uint32_t level; /* of a multiscale group */
} damacy__fetch_options;

enum {
    DAMACY__METADATA_MAX = 1 << 20, /* bytes of one document */
    DAMACY__FETCH_KEY = DAMACY__NGFF_MAX_PATH + DAMACY__KEY_CAPACITY + 2
};

/* What there is to know about an array before its chunks are read. */
typedef struct damacy__fetched {
    damacy__root* root; /* of what the uri names; counted */
    char* prefix;       /* "" or "<level path>/": in front of every key */
    damacy__document document;
    const damacy__layout* layout; /* of document */
    damacy__ngff ngff;            /* n_levels 0: the uri names the array */
    uint32_t level;
    uint64_t document_size; /* bytes of metadata that were read */
} damacy__fetched;

static damacy_status damacy__fetch_array(damacy__store* store, damacy__alloc* alloc,
                                         const char* uri, const damacy__fetch_options* options,
                                         damacy__fetched* out, damacy_error* err);
static void damacy__fetched_deinit(damacy__fetched* fetched, damacy__alloc* alloc,
                                   damacy__store* store);
static damacy_status damacy__fetch_index(damacy__store* store, damacy__alloc* alloc,
                                         const damacy__fetched* fetched, uint64_t number,
                                         damacy__index* out, damacy_error* err);
static damacy_status damacy__fetch_bytes(damacy__store* store, const damacy__fetched* fetched,
                                         const int64_t* chunk, const damacy__index* index,
                                         uint64_t offset, void* dst, uint64_t size,
                                         damacy_error* err);
static void damacy__fetch_chunk_name(const damacy__layout* layout, const int64_t* chunk, char* text,
                                     size_t size);

/* Frees what a fetch gave, whole or in part. */
static void damacy__fetched_deinit(damacy__fetched* fetched, damacy__alloc* alloc,
                                   damacy__store* store)
{
    damacy__document_deinit(&fetched->document, alloc);
    damacy__ngff_deinit(&fetched->ngff, alloc);
    damacy__text_free(alloc, fetched->prefix);
    if (fetched->root) {
        damacy__store_root_release(store, fetched->root);
    }
    memset(fetched, 0, sizeof *fetched);
}

/* Opens prefix + name. */
static damacy_status damacy__fetch_open(damacy__store* store, const damacy__fetched* fetched,
                                        const char* name, damacy__object** out, damacy_error* err)
{
    char key[DAMACY__FETCH_KEY];

    (void)snprintf(key, sizeof key, "%s%s", fetched->prefix ? fetched->prefix : "", name);
    return damacy__store_open(store, fetched->root, key, out, err);
}

/* Says what is there instead of zarr.json, if that is known. */
static damacy_status damacy__fetch_explain(damacy__store* store, const damacy__fetched* fetched,
                                           damacy_error* err)
{
    static const char* const names[] = {".zarray", ".zgroup"};

    for (uint32_t i = 0; i < 2; i++) {
        damacy_error ignored;
        damacy__object* object = NULL;
        memset(&ignored, 0, sizeof ignored);
        if (damacy__fetch_open(store, fetched, names[i], &object, &ignored) == DAMACY_OK) {
            damacy__store_close(store, object);
            return damacy__fail(err, DAMACY_UNSUPPORTED,
                                "unsupported zarr_format 2: there is a %s and no zarr.json",
                                names[i]);
        }
    }
    return DAMACY_NOTFOUND;
}

/* Reads and parses prefix + "zarr.json". */
static damacy_status damacy__fetch_document(damacy__store* store, damacy__alloc* alloc,
                                            damacy__fetched* fetched, damacy_error* err)
{
    damacy__object* object = NULL;
    uint8_t* text = NULL;
    uint64_t size = 0;
    damacy_status status = damacy__fetch_open(store, fetched, "zarr.json", &object, err);

    if (status == DAMACY_NOTFOUND) {
        return damacy__fetch_explain(store, fetched, err);
    }
    if (status != DAMACY_OK) {
        return status;
    }
    size = damacy__object_size(object);
    if (size > DAMACY__METADATA_MAX) {
        status = damacy__fail(err, DAMACY_UNSUPPORTED,
                              "zarr.json of %" PRIu64 " bytes; at most %d are read", size,
                              DAMACY__METADATA_MAX);
        goto done;
    }
    text = damacy__new(alloc, size, uint8_t);
    if (!text) {
        status = damacy__fail(err, DAMACY_OOM, "zarr.json of %" PRIu64 " bytes", size);
        goto done;
    }
    status = damacy__store_read(store, object, 0, text, (size_t)size, err);
    if (status == DAMACY_OK) {
        status =
            damacy__zarr_parse(alloc, damacy__span_of(text, (size_t)size), &fetched->document, err);
        fetched->document_size += size;
    }
done:
    damacy__free(alloc, text, size);
    damacy__store_close(store, object);
    if (status != DAMACY_OK) {
        damacy__error_where(err, DAMACY_STAGE_METADATA, NULL, "zarr.json");
    }
    return status;
}

/* The document is a group's: goes on to the array of the level that is asked for. */
static damacy_status damacy__fetch_level(damacy__store* store, damacy__alloc* alloc,
                                         const damacy__fetch_options* options,
                                         damacy__fetched* fetched, damacy_error* err)
{
    char prefix[DAMACY__NGFF_MAX_PATH + 2];
    const char* attributes = fetched->document.attributes;

    DAMACY__TRY(damacy__ngff_parse(alloc, damacy__span_of(attributes, strlen(attributes)),
                                   &fetched->ngff, err));
    if (options->level >= fetched->ngff.n_levels) {
        return damacy__fail(err, DAMACY_INVAL, "level %u; the image has %u levels", options->level,
                            fetched->ngff.n_levels);
    }
    fetched->level = options->level;
    (void)snprintf(prefix, sizeof prefix, "%s/", fetched->ngff.paths[options->level]);
    fetched->prefix = damacy__alloc_text(alloc, prefix, strlen(prefix));
    if (!fetched->prefix) {
        return damacy__fail(err, DAMACY_OOM, "path of level %u", options->level);
    }
    damacy__document_deinit(&fetched->document, alloc);
    DAMACY__TRY(damacy__fetch_document(store, alloc, fetched, err));
    if (fetched->document.node != DAMACY__NODE_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "level %u, %s, is no array", options->level,
                            prefix);
    }
    if (fetched->ngff.n_axes != 0 && fetched->ngff.n_axes != fetched->document.layout.rank) {
        return damacy__fail(err, DAMACY_DECODE, "level %u has %u axes, its multiscales name %u",
                            options->level, fetched->document.layout.rank, fetched->ngff.n_axes);
    }
    return DAMACY_OK;
}

/* Everything about the array that a uri names. On failure *out holds nothing. */
static damacy_status damacy__fetch_array(damacy__store* store, damacy__alloc* alloc,
                                         const char* uri, const damacy__fetch_options* options,
                                         damacy__fetched* out, damacy_error* err)
{
    damacy_status status;

    memset(out, 0, sizeof *out);
    status = damacy__store_root(store, uri, &out->root, err);
    if (status == DAMACY_OK) {
        status = damacy__fetch_document(store, alloc, out, err);
    }
    if (status == DAMACY_OK && out->document.node == DAMACY__NODE_GROUP) {
        status = damacy__fetch_level(store, alloc, options, out, err);
    } else if (status == DAMACY_OK && options->level != 0) {
        status = damacy__fail(err, DAMACY_INVAL, "level %u of a plain array, which has none",
                              options->level);
    }
    if (status != DAMACY_OK) {
        damacy__fetched_deinit(out, alloc, store);
        return status;
    }
    out->layout = &out->document.layout;
    return DAMACY_OK;
}

/* Reads and decodes the index of an open shard. */
static damacy_status damacy__fetch_shard(damacy__store* store, damacy__alloc* alloc,
                                         const damacy__layout* layout, damacy__object* object,
                                         damacy__extent* extents, damacy_error* err)
{
    const uint64_t size = layout->index_size;
    uint64_t offset = 0;
    uint8_t* bytes = damacy__new(alloc, size, uint8_t);
    damacy_status status;

    if (!bytes) {
        return damacy__fail(err, DAMACY_OOM, "a shard index of %" PRIu64 " bytes", size);
    }
    status = damacy__shard_locate(layout->sharding, damacy__object_size(object), &offset, err);
    if (status == DAMACY_OK) {
        status = damacy__store_read(store, object, offset, bytes, (size_t)size, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__shard_decode(layout->sharding, layout->rank,
                                      damacy__span_of(bytes, (size_t)size),
                                      damacy__object_size(object), extents, err);
    }
    damacy__free(alloc, bytes, size);
    return status;
}

/* Grid position of an object from its C-order number. */
static void damacy__fetch_position(const damacy__layout* layout, uint64_t number, int64_t* position)
{
    for (uint32_t i = layout->rank; i-- > 0;) {
        const uint64_t n =
            damacy__div_up((uint64_t)layout->shape[i], (uint64_t)layout->object_shape[i]);
        position[i] = (int64_t)(number % n);
        number /= n;
    }
}

/* Where the chunks of an object lie; extents stay NULL when the object is not stored. */
static damacy_status damacy__fetch_index(damacy__store* store, damacy__alloc* alloc,
                                         const damacy__fetched* fetched, uint64_t number,
                                         damacy__index* out, damacy_error* err)
{
    const damacy__layout* layout = fetched->layout;
    int64_t position[DAMACY_MAX_RANK];
    char key[DAMACY__KEY_CAPACITY];
    damacy__object* object = NULL;
    damacy__extent* extents;
    damacy_status status;

    damacy__fetch_position(layout, number, position);
    DAMACY__TRY(damacy__key_write(layout, position, key, sizeof key, err));
    status = damacy__fetch_open(store, fetched, key, &object, err);
    if (status == DAMACY_NOTFOUND) {
        err->message[0] = '\0';
        return DAMACY_OK;
    }
    if (status != DAMACY_OK) {
        damacy__error_where(err, DAMACY_STAGE_INDEX, NULL, key);
        return status;
    }
    extents = damacy__new(alloc, layout->n_entries, damacy__extent);
    if (!extents) {
        status = damacy__fail(err, DAMACY_OOM, "an index of %" PRIu64 " chunks", layout->n_entries);
    } else if (layout->is_sharded) {
        status = damacy__fetch_shard(store, alloc, layout, object, extents, err);
    } else {
        extents[0].size = damacy__object_size(object);
    }
    if (status == DAMACY_OK) {
        out->extents = extents;
        out->n = layout->n_entries;
        out->object_size = damacy__object_size(object);
        out->stamp = damacy__object_stamp(object);
    } else {
        damacy__free(alloc, extents, layout->n_entries);
        damacy__error_where(err, DAMACY_STAGE_INDEX, NULL, key);
    }
    damacy__store_close(store, object);
    return status;
}

static void damacy__fetch_object_of(const damacy__layout* layout, const int64_t* chunk,
                                    int64_t* object)
{
    for (uint32_t i = 0; i < layout->rank; i++) {
        object[i] = chunk[i] / (layout->object_shape[i] / layout->chunk_shape[i]);
    }
}

/* Bytes of the object that holds a chunk. An object that was replaced since its index was read is
 * an error, not a mixture. */
static damacy_status damacy__fetch_bytes(damacy__store* store, const damacy__fetched* fetched,
                                         const int64_t* chunk, const damacy__index* index,
                                         uint64_t offset, void* dst, uint64_t size,
                                         damacy_error* err)
{
    int64_t position[DAMACY_MAX_RANK];
    char key[DAMACY__KEY_CAPACITY];
    damacy__object* object = NULL;
    damacy_status status;

    damacy__fetch_object_of(fetched->layout, chunk, position);
    DAMACY__TRY(damacy__key_write(fetched->layout, position, key, sizeof key, err));
    status = damacy__fetch_open(store, fetched, key, &object, err);
    if (status == DAMACY_NOTFOUND) {
        return damacy__fail(err, DAMACY_IO, "%s is gone since its index was read", key);
    }
    if (status != DAMACY_OK) {
        return status;
    }
    if (damacy__object_size(object) != index->object_size ||
        damacy__object_stamp(object) != index->stamp) {
        status = damacy__fail(err, DAMACY_IO, "%s was replaced since its index was read", key);
    } else {
        status = damacy__store_read(store, object, offset, dst, (size_t)size, err);
    }
    damacy__store_close(store, object);
    return status;
}

/* "c/0/1", or "c/0/1[3,0]" for a chunk at that place in a shard. */
static void damacy__fetch_chunk_name(const damacy__layout* layout, const int64_t* chunk, char* text,
                                     size_t size)
{
    int64_t object[DAMACY_MAX_RANK];
    damacy_error ignored;
    size_t len;

    memset(&ignored, 0, sizeof ignored);
    damacy__fetch_object_of(layout, chunk, object);
    text[0] = '\0';
    if (damacy__key_write(layout, object, text, size, &ignored) != DAMACY_OK) {
        (void)snprintf(text, size, "a chunk");
    }
    if (!layout->is_sharded) {
        return;
    }
    len = strlen(text);
    for (uint32_t i = 0; i < layout->rank && len + 1 < size; i++) {
        const int64_t n = layout->object_shape[i] / layout->chunk_shape[i];
        len += (size_t)snprintf(text + len, size - len, "%s%" PRId64, i ? "," : "[", chunk[i] % n);
    }
    if (len + 1 < size) {
        (void)snprintf(text + len, size - len, layout->rank ? "]" : "[]");
    }
}

/* ==== src/stage/catalog.h ==== */
/* Arrays and shard indexes by name: fetched once, ahead of need, by the reader threads, and kept
 * while in use and, up to a limit of bytes, after that.
 *
 * Asking for an entry pins it and never blocks; when a fetch ends the catalog calls `notify`
 * without holding its lock. A failed entry stays as long as it is pinned, so that everybody who
 * asked sees the same error, and is fetched anew after that. */

typedef enum damacy__fetch_state {
    DAMACY__FETCHING = 0,
    DAMACY__READY,
    DAMACY__FAILED
} damacy__fetch_state;

/* One array (at one level), found by uri. */
typedef struct damacy__array_entry {
    damacy__entry entry; /* first: the table's */
    damacy__task task;
    struct damacy__catalog* catalog;
    char* uri;
    size_t uri_len;
    uint32_t n_pins; /* guarded by the catalog's mutex; index entries pin their array */
    uint32_t
        state; /* atomic damacy__fetch_state; what follows is constant once it is not FETCHING */
    damacy__fetched fetched;
    damacy_error error;
} damacy__array_entry;

/* The index of one object of an array, found by the array and the object's number in the grid. */
typedef struct damacy__index_entry {
    damacy__entry entry;
    damacy__task task;
    struct damacy__catalog* catalog;
    damacy__array_entry* array;
    uint64_t number; /* C order in the grid of objects */
    uint32_t n_pins; /* guarded by the catalog's mutex */
    uint32_t state;  /* atomic, as above */
    damacy__index index;
    uint64_t n_bytes; /* of this entry */
    damacy_error* error;
} damacy__index_entry;

typedef struct damacy__catalog {
    damacy__alloc* alloc;
    damacy__store* store;
    damacy__pool* pool; /* that runs the fetches */
    damacy__fetch_options options;
    uint64_t
        max_bytes; /* of unpinned and pinned index entries together; pinned ones may exceed it */
    void (*notify)(void* context);
    void* notify_context;
    damacy__metric_clock* clock; /* of fetches */

    damacy__mutex mutex;
    damacy__table arrays; /* guarded by mutex, as is what follows */
    damacy__table indexes;
    uint64_t n_bytes;
    uint64_t array_hits, array_misses, index_hits, index_misses;
} damacy__catalog;

static damacy_status damacy__catalog_init(damacy__catalog* catalog, damacy_error* err);
static void damacy__catalog_deinit(damacy__catalog* catalog);
static damacy_status damacy__catalog_array(damacy__catalog* catalog, const char* uri,
                                           damacy__array_entry** out, damacy_error* err);
static damacy_status damacy__catalog_index(damacy__catalog* catalog, damacy__array_entry* array,
                                           uint64_t number, damacy__index_entry** out,
                                           damacy_error* err);
static void damacy__catalog_unpin_array(damacy__catalog* catalog, damacy__array_entry* entry);
static void damacy__catalog_unpin_index(damacy__catalog* catalog, damacy__index_entry* entry);

static inline uint32_t damacy__fetch_state_of(const uint32_t* state)
{
    return __atomic_load_n(state, __ATOMIC_ACQUIRE);
}

/* The caller has set alloc, store, pool, options, max_bytes, notify, clock. */
static damacy_status damacy__catalog_init(damacy__catalog* catalog, damacy_error* err)
{
    damacy_status status = damacy__mutex_init(&catalog->mutex, err);

    if (status != DAMACY_OK) {
        return status;
    }
    status = damacy__table_init(&catalog->arrays, catalog->alloc, 1024, err);
    if (status == DAMACY_OK) {
        status = damacy__table_init(&catalog->indexes, catalog->alloc, 16384, err);
    }
    if (status != DAMACY_OK) {
        damacy__table_deinit(&catalog->arrays, catalog->alloc);
        damacy__mutex_deinit(&catalog->mutex);
    }
    return status;
}

static void damacy__array_entry_free(damacy__catalog* catalog, damacy__array_entry* entry)
{
    damacy__fetched_deinit(&entry->fetched, catalog->alloc, catalog->store);
    damacy__free(catalog->alloc, entry->uri, entry->uri_len + 1);
    damacy__free(catalog->alloc, entry, 1);
}

static void damacy__index_entry_free(damacy__catalog* catalog, damacy__index_entry* entry)
{
    damacy__free(catalog->alloc, entry->index.extents, entry->index.n);
    damacy__free(catalog->alloc, entry->error, 1);
    damacy__free(catalog->alloc, entry, 1);
}

/* Frees everything; no fetch may be under way. A zeroed catalog is left alone. */
static void damacy__catalog_deinit(damacy__catalog* catalog)
{
    if (!catalog->arrays.buckets) {
        return;
    }
    while (catalog->indexes.oldest) {
        damacy__index_entry* entry = (damacy__index_entry*)(void*)catalog->indexes.oldest;
        damacy__table_remove(&catalog->indexes, &entry->entry);
        damacy__index_entry_free(catalog, entry);
    }
    while (catalog->arrays.oldest) {
        damacy__array_entry* entry = (damacy__array_entry*)(void*)catalog->arrays.oldest;
        damacy__table_remove(&catalog->arrays, &entry->entry);
        damacy__array_entry_free(catalog, entry);
    }
    damacy__table_deinit(&catalog->indexes, catalog->alloc);
    damacy__table_deinit(&catalog->arrays, catalog->alloc);
    damacy__mutex_deinit(&catalog->mutex);
    memset(catalog, 0, sizeof *catalog);
}

/* Drops unpinned indexes, oldest first, until the limit is kept, and a few of the unpinned arrays
 * beyond a fixed number. Returns with the entries unlinked in *victims, to be freed without the
 * lock. */
static damacy__index_entry* damacy__catalog_trim(damacy__catalog* catalog,
                                                 damacy__array_entry** array_victims)
{
    enum { DAMACY__ARRAYS_KEPT = 1024 };
    damacy__index_entry* victims = NULL;
    damacy__entry* at = catalog->indexes.oldest;
    uint32_t n_steps = 0;

    while (at && catalog->n_bytes > catalog->max_bytes && n_steps++ < 64) {
        damacy__index_entry* entry = (damacy__index_entry*)(void*)at;
        at = at->newer;
        if (entry->n_pins == 0) {
            damacy__table_remove(&catalog->indexes, &entry->entry);
            catalog->n_bytes -= entry->n_bytes;
            entry->array->n_pins--;
            entry->entry.chain = victims ? &victims->entry : NULL;
            victims = entry;
        }
    }
    n_steps = 0;
    for (at = catalog->arrays.oldest;
         at && catalog->arrays.n_entries > DAMACY__ARRAYS_KEPT && n_steps++ < 64;) {
        damacy__array_entry* entry = (damacy__array_entry*)(void*)at;
        at = at->newer;
        if (entry->n_pins == 0) {
            damacy__table_remove(&catalog->arrays, &entry->entry);
            entry->entry.chain = *array_victims ? &(*array_victims)->entry : NULL;
            *array_victims = entry;
        }
    }
    return victims;
}

/* Keeps the limits; takes the lock itself. */
static void damacy__catalog_keep_limits(damacy__catalog* catalog)
{
    damacy__array_entry* arrays = NULL;
    damacy__index_entry* indexes;

    damacy__lock(&catalog->mutex);
    indexes = damacy__catalog_trim(catalog, &arrays);
    damacy__unlock(&catalog->mutex);
    while (indexes) {
        damacy__index_entry* next = (damacy__index_entry*)(void*)indexes->entry.chain;
        damacy__index_entry_free(catalog, indexes);
        indexes = next;
    }
    while (arrays) {
        damacy__array_entry* next = (damacy__array_entry*)(void*)arrays->entry.chain;
        damacy__array_entry_free(catalog, arrays);
        arrays = next;
    }
}

/* Runs on a reader thread. */
static void damacy__array_fetch(void* context, uint32_t worker)
{
    damacy__array_entry* entry = (damacy__array_entry*)context;
    damacy__catalog* catalog = entry->catalog;
    const uint64_t start = damacy__now_ns();
    damacy_status status;

    (void)worker;
    status = damacy__fetch_array(catalog->store, catalog->alloc, entry->uri, &catalog->options,
                                 &entry->fetched, &entry->error);
    if (status != DAMACY_OK) {
        damacy__error_where(&entry->error, DAMACY_STAGE_METADATA, entry->uri, NULL);
    }
    damacy__metric_add(catalog->clock, damacy__now_ns() - start, entry->fetched.document_size, 0);
    __atomic_store_n(&entry->state, status == DAMACY_OK ? DAMACY__READY : DAMACY__FAILED,
                     __ATOMIC_RELEASE);
    damacy__catalog_unpin_array(catalog, entry);
    catalog->notify(catalog->notify_context);
}

static damacy__array_entry* damacy__catalog_find_array(damacy__catalog* catalog, const char* uri,
                                                       size_t len, uint64_t hash)
{
    damacy__entry* at = damacy__table_first(&catalog->arrays, hash);

    for (; at; at = damacy__table_next(at)) {
        damacy__array_entry* entry = (damacy__array_entry*)(void*)at;
        if (entry->uri_len == len && memcmp(entry->uri, uri, len) == 0) {
            return entry;
        }
    }
    return NULL;
}

/* Pins the array of a uri, starting its fetch if it is new. OOM only; other failures are the
 * entry's. */
static damacy_status damacy__catalog_array(damacy__catalog* catalog, const char* uri,
                                           damacy__array_entry** out, damacy_error* err)
{
    const size_t len = strlen(uri);
    const uint64_t hash = damacy__hash(uri, len, 1);
    damacy__array_entry* entry;

    damacy__lock(&catalog->mutex);
    entry = damacy__catalog_find_array(catalog, uri, len, hash);
    if (entry) {
        entry->n_pins++;
        catalog->array_hits++;
        damacy__table_touch(&catalog->arrays, &entry->entry);
        damacy__unlock(&catalog->mutex);
        *out = entry;
        return DAMACY_OK;
    }
    entry = damacy__new(catalog->alloc, 1, damacy__array_entry);
    if (entry) {
        entry->uri = damacy__alloc_text(catalog->alloc, uri, len);
    }
    if (!entry || !entry->uri) {
        damacy__free(catalog->alloc, entry, 1);
        damacy__unlock(&catalog->mutex);
        return damacy__fail(err, DAMACY_OOM, "%.100s: no memory for its metadata", uri);
    }
    entry->catalog = catalog;
    entry->uri_len = len;
    entry->n_pins = 2; /* the caller's and the fetch's */
    entry->error.sample = entry->error.offset = UINT64_MAX;
    entry->task.function = damacy__array_fetch;
    entry->task.context = entry;
    catalog->array_misses++;
    damacy__table_insert(&catalog->arrays, &entry->entry, hash);
    damacy__unlock(&catalog->mutex);
    damacy__pool_submit(catalog->pool, &entry->task, DAMACY__URGENT);
    *out = entry;
    return DAMACY_OK;
}

/* Runs on a reader thread. */
static void damacy__index_fetch(void* context, uint32_t worker)
{
    damacy__index_entry* entry = (damacy__index_entry*)context;
    damacy__catalog* catalog = entry->catalog;
    const uint64_t start = damacy__now_ns();
    damacy_error error;
    damacy_status status;

    (void)worker;
    memset(&error, 0, sizeof error);
    error.sample = error.offset = UINT64_MAX;
    status = damacy__fetch_index(catalog->store, catalog->alloc, &entry->array->fetched,
                                 entry->number, &entry->index, &error);
    if (status != DAMACY_OK) {
        damacy__error_where(&error, DAMACY_STAGE_INDEX, entry->array->uri, NULL);
        entry->error = damacy__new(catalog->alloc, 1, damacy_error);
        if (entry->error) {
            *entry->error = error;
        }
    }
    damacy__metric_add(catalog->clock, damacy__now_ns() - start, 16 * entry->index.n, 0);
    damacy__lock(&catalog->mutex);
    entry->n_bytes += entry->index.n * sizeof(damacy__extent);
    catalog->n_bytes += entry->index.n * sizeof(damacy__extent);
    damacy__unlock(&catalog->mutex);
    __atomic_store_n(&entry->state, status == DAMACY_OK ? DAMACY__READY : DAMACY__FAILED,
                     __ATOMIC_RELEASE);
    damacy__catalog_unpin_index(catalog, entry);
    catalog->notify(catalog->notify_context);
}

/* Pins the index of an object; the array is READY. OOM only; other failures are the entry's. */
static damacy_status damacy__catalog_index(damacy__catalog* catalog, damacy__array_entry* array,
                                           uint64_t number, damacy__index_entry** out,
                                           damacy_error* err)
{
    const uint64_t hash = damacy__hash(&number, sizeof number, (uint64_t)(uintptr_t)array);
    damacy__index_entry* entry = NULL;
    damacy__entry* at;

    damacy__lock(&catalog->mutex);
    for (at = damacy__table_first(&catalog->indexes, hash); at; at = damacy__table_next(at)) {
        entry = (damacy__index_entry*)(void*)at;
        if (entry->array == array && entry->number == number) {
            entry->n_pins++;
            catalog->index_hits++;
            damacy__table_touch(&catalog->indexes, &entry->entry);
            damacy__unlock(&catalog->mutex);
            *out = entry;
            return DAMACY_OK;
        }
    }
    entry = damacy__new(catalog->alloc, 1, damacy__index_entry);
    if (!entry) {
        damacy__unlock(&catalog->mutex);
        return damacy__fail(err, DAMACY_OOM, "%.100s: no memory for a shard index", array->uri);
    }
    entry->catalog = catalog;
    entry->array = array;
    entry->number = number;
    entry->n_pins = 2; /* the caller's and the fetch's */
    entry->n_bytes = sizeof *entry;
    entry->task.function = damacy__index_fetch;
    entry->task.context = entry;
    array->n_pins++;
    catalog->index_misses++;
    catalog->n_bytes += sizeof *entry;
    damacy__table_insert(&catalog->indexes, &entry->entry, hash);
    damacy__unlock(&catalog->mutex);
    damacy__pool_submit(catalog->pool, &entry->task, DAMACY__URGENT);
    damacy__catalog_keep_limits(catalog);
    *out = entry;
    return DAMACY_OK;
}

/* Drops a pin; a failed array that nobody pins is forgotten. */
static void damacy__catalog_unpin_array(damacy__catalog* catalog, damacy__array_entry* entry)
{
    bool forget;

    damacy__lock(&catalog->mutex);
    entry->n_pins--;
    forget = entry->n_pins == 0 && damacy__fetch_state_of(&entry->state) == DAMACY__FAILED;
    if (forget) {
        damacy__table_remove(&catalog->arrays, &entry->entry);
    }
    damacy__unlock(&catalog->mutex);
    if (forget) {
        damacy__array_entry_free(catalog, entry);
    }
}

/* Drops a pin; a failed index that nobody pins is forgotten. */
static void damacy__catalog_unpin_index(damacy__catalog* catalog, damacy__index_entry* entry)
{
    bool forget;

    damacy__lock(&catalog->mutex);
    entry->n_pins--;
    forget = entry->n_pins == 0 && damacy__fetch_state_of(&entry->state) == DAMACY__FAILED;
    if (forget) {
        damacy__table_remove(&catalog->indexes, &entry->entry);
        catalog->n_bytes -= entry->n_bytes;
        entry->array->n_pins--;
    }
    damacy__unlock(&catalog->mutex);
    if (forget) {
        damacy__index_entry_free(catalog, entry);
    }
}

/* ==== src/stage/cast.h ==== */
/* Voxels of one type to voxels of another: the rules, and loops over contiguous rows.
 *
 * The rules; kernels/assemble.cu follows them bit for bit and tests/data/cast_cases.h holds
 * examples:
 *
 *   same type       bits untouched, signalling NaN included; but bool is always 0 or 1
 *   bool to any     a byte that is not 0 is 1
 *   any to bool     x != 0, so NaN is true and -0.0 is false
 *   int to int      clamped to the range of the output
 *   int to float    one rounding, to nearest, ties to even; beyond the largest finite value:
 * infinity float to int    towards zero, then clamped; infinities clamp, NaN is 0 float to float
 * one rounding, to nearest, ties to even, subnormals kept, too large is infinity. NaN stays NaN:
 * its sign and the top bits of its payload are kept, the quiet bit is set byte order      a
 * big-endian source is swapped first fill            the fill value's bits, in the source type, go
 * through the same conversion
 *
 * Scale and offset (float outputs only): the source goes to f32 by the rules above (bits untouched
 * if it is f32), is multiplied by the scale and rounded, the offset is added and rounded (never
 * fused; a missing scale is 1, a missing offset is 0.0, which turns -0.0 into 0.0), a NaN result
 * becomes 0x7fc00000, and the f32 goes to the output by the rules above.
 *
 * The surprising rule: there is no loop per pair of types. Rows pass through f32, f64, i64 or u64.
 * What f32 cannot hold exactly but must end as f16 or bf16 passes through f32 rounded to odd (the
 * last bit is set when anything was lost), so that the one rounding that counts is the last. NaN is
 * told by its bits, so that -ffast-math in the including program changes nothing. */

/* Converts n elements; src and dst are contiguous, of any alignment, and do not overlap. */
typedef void (*damacy__row)(void* dst, const void* src, size_t n);

#define DAMACY__INLINE static inline __attribute__((always_inline))
#if defined(__GNUC__) && !defined(__clang__)
#define DAMACY__VECTORIZE __attribute__((optimize("O3"))) /* -O2 leaves such loops scalar */
#else
#define DAMACY__VECTORIZE
#endif

DAMACY__INLINE uint32_t damacy__f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DAMACY__INLINE float damacy__f32_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

DAMACY__INLINE uint64_t damacy__f64_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DAMACY__INLINE double damacy__f64_of(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Picks by masks: a branch around float operations would keep loops scalar. */
DAMACY__INLINE uint32_t damacy__select(bool condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)condition;

    return (yes & mask) | (no & ~mask);
}

DAMACY__INLINE float damacy__f16_to_f32(uint16_t half)
{
    const uint32_t rest = half & 0x7fffu;
    const uint32_t normal = (rest << 13) + (112u << 23);
    /* No subnormal float takes part, so that a program that flushes them changes nothing. */
    const uint32_t subnormal = damacy__f32_bits((float)(int32_t)rest * 5.9604644775390625e-8f);
    const uint32_t finite = damacy__select(rest < 0x400u, subnormal, normal);
    const uint32_t quiet = damacy__select(rest > 0x7c00u, 0x7fc00000u, 0x7f800000u);
    const uint32_t special = quiet | (rest << 13);

    return damacy__f32_of(((half & 0x8000u) << 16) |
                          damacy__select(rest >= 0x7c00u, special, finite));
}

DAMACY__INLINE uint16_t damacy__f32_to_f16(float value)
{
    const uint32_t bits = damacy__f32_bits(value);
    const uint32_t rest = bits & 0x7fffffffu;
    const uint32_t normal = (rest + 0xfffu + ((rest >> 13) & 1u) - (112u << 23)) >> 13;
    /* 0.5 has the ulp of a subnormal half: the sum's mantissa is the rounded result. */
    const uint32_t subnormal = damacy__f32_bits(damacy__f32_of(rest) + 0.5f) - 0x3f000000u;
    const uint32_t finite = damacy__select(rest < 0x38800000u, subnormal, normal);
    const uint32_t bounded = damacy__select(rest >= 0x47800000u, 0x7c00u, finite);
    const uint32_t nan = 0x7e00u | ((rest >> 13) & 0x3ffu);

    return (uint16_t)((bits >> 16 & 0x8000u) | damacy__select(rest > 0x7f800000u, nan, bounded));
}

DAMACY__INLINE float damacy__bf16_to_f32(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;

    return damacy__f32_of(bits | damacy__select((bits & 0x7fffffffu) > 0x7f800000u, 0x400000u, 0u));
}

DAMACY__INLINE uint16_t damacy__f32_to_bf16(float value)
{
    const uint32_t bits = damacy__f32_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40u;

    return (uint16_t)damacy__select((bits & 0x7fffffffu) > 0x7f800000u, nan, rounded);
}

/* Rounds to odd: the smaller magnitude, with the last bit set when anything was lost. */
DAMACY__INLINE float damacy__f64_to_f32_odd(double value)
{
    const uint64_t bits = damacy__f64_bits(value);
    const uint64_t mantissa = bits & UINT64_C(0xfffffffffffff);
    const uint32_t sign = (uint32_t)(bits >> 32) & 0x80000000u;
    const int32_t exponent = (int32_t)(bits >> 52 & 0x7ff) - (1023 - 127);
    uint32_t rest;

    if (exponent == 0x7ff - (1023 - 127)) {
        rest = 0x7f800000u | (mantissa ? 0x400000u | (uint32_t)(mantissa >> 29) : 0u);
    } else if (exponent >= 255) {
        rest = 0x7f7fffffu;
    } else if (exponent >= 1) {
        rest = (uint32_t)exponent << 23 | (uint32_t)(mantissa >> 29) |
               ((mantissa & 0x1fffffffu) != 0 ? 1u : 0u);
    } else if (exponent > -34) {
        const uint64_t whole = mantissa | UINT64_C(1) << 52;
        const uint32_t shift = (uint32_t)(30 - exponent);
        rest = (uint32_t)(whole >> shift) | ((whole & ((UINT64_C(1) << shift) - 1)) != 0 ? 1u : 0u);
    } else {
        rest = (bits << 1) != 0 ? 1u : 0u;
    }
    return damacy__f32_of(sign | rest);
}

DAMACY__INLINE float damacy__u64_to_f32_odd(uint64_t value)
{
    uint32_t shift;

    if (value < UINT64_C(1) << 24) {
        return (float)(int32_t)value;
    }
    shift = 40u - (uint32_t)__builtin_clzll(value);
    return damacy__f32_of(
        ((shift + 23u + 127u) << 23) + ((uint32_t)(value >> shift) & 0x7fffffu) +
        (((value >> shift) & 1u) == 0 && (value & ((UINT64_C(1) << shift) - 1)) != 0 ? 1u : 0u));
}

DAMACY__INLINE float damacy__i64_to_f32_odd(int64_t value)
{
    const float magnitude =
        damacy__u64_to_f32_odd(value < 0 ? 0 - (uint64_t)value : (uint64_t)value);

    return value < 0 ? -magnitude : magnitude;
}

/* Widens; a signalling NaN becomes quiet, as the hardware has it. */
DAMACY__INLINE double damacy__f32_to_f64(float value)
{
    const uint32_t bits = damacy__f32_bits(value);
    const uint32_t rest = bits & 0x7fffffffu;

    if (rest > 0x7f800000u) {
        return damacy__f64_of((uint64_t)(bits & 0x80000000u) << 32 | UINT64_C(0x7ff8000000000000) |
                              (uint64_t)(rest & 0x7fffffu) << 29);
    }
    return (double)value;
}

/* Truncates and clamps; limit is the first whole number above the range. */
#define DAMACY__F64_TO_INT(name, type, low, limit, high)                     \
    DAMACY__INLINE type damacy__f64_to_##name(double value)                  \
    {                                                                        \
        if ((damacy__f64_bits(value) << 1) > UINT64_C(0xffe0000000000000)) { \
            return 0;                                                        \
        }                                                                    \
        if (value >= (limit)) {                                              \
            return (high);                                                   \
        }                                                                    \
        return value <= (double)(low) ? (type)(low) : (type)(value);         \
    }
DAMACY__F64_TO_INT(u64, uint64_t, 0, 18446744073709551616.0, UINT64_MAX)
DAMACY__F64_TO_INT(i64, int64_t, INT64_MIN, 9223372036854775808.0, INT64_MAX)
#undef DAMACY__F64_TO_INT

/* A row function: S x is the source element, value the output element of type D. */
#define DAMACY__ROW_BODY(name, S, D, value)                                           \
    DAMACY__INLINE void damacy__row_body_##name(void* dst, const void* src, size_t n) \
    {                                                                                 \
        uint8_t* to = (uint8_t*)dst;                                                  \
        const uint8_t* from = (const uint8_t*)src;                                    \
        for (size_t i = 0; i < n; i++) {                                              \
            S x;                                                                      \
            D y;                                                                      \
            memcpy(&x, from + i * sizeof x, sizeof x);                                \
            y = (value);                                                              \
            memcpy(to + i * sizeof y, &y, sizeof y);                                  \
        }                                                                             \
    }
#define DAMACY__ROW(name, S, D, value)                                   \
    DAMACY__ROW_BODY(name, S, D, value)                                  \
    static void damacy__row_##name(void* dst, const void* src, size_t n) \
    {                                                                    \
        damacy__row_body_##name(dst, src, n);                            \
    }
/* The common ones, on x86-64 once more as vector code for AVX2, which is chosen at run time. */
#if defined(__x86_64__)
#define DAMACY__FAST_ROW(name, S, D, value)                                                \
    DAMACY__ROW(name, S, D, value)                                                         \
    DAMACY__VECTORIZE __attribute__((target("avx2"))) static void damacy__row_wide_##name( \
        void* dst, const void* src, size_t n)                                              \
    {                                                                                      \
        damacy__row_body_##name(dst, src, n);                                              \
    }
#define DAMACY__WIDE(name) damacy__row_wide_##name
DAMACY__INLINE bool damacy__cpu_is_wide(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}
#else
#define DAMACY__FAST_ROW(name, S, D, value)                                                \
    DAMACY__ROW_BODY(name, S, D, value)                                                    \
    DAMACY__VECTORIZE static void damacy__row_##name(void* dst, const void* src, size_t n) \
    {                                                                                      \
        damacy__row_body_##name(dst, src, n);                                              \
    }
#define DAMACY__WIDE(name) damacy__row_##name
DAMACY__INLINE bool damacy__cpu_is_wide(void)
{
    return false;
}
#endif
#define DAMACY__NARROW(name) damacy__row_##name
#define DAMACY__PICK(name)   (damacy__cpu_is_wide() ? DAMACY__WIDE(name) : damacy__row_##name)

/* To f32: exact for the first five, rounded to nearest for the others. */
DAMACY__FAST_ROW(u8_f32, uint8_t, float, (float)(int32_t)x)
DAMACY__FAST_ROW(i8_f32, int8_t, float, (float)(int32_t)x)
DAMACY__FAST_ROW(u16_f32, uint16_t, float, (float)(int32_t)x)
DAMACY__FAST_ROW(i16_f32, int16_t, float, (float)(int32_t)x)
DAMACY__FAST_ROW(bf16_f32, uint16_t, float, damacy__bf16_to_f32(x))
DAMACY__FAST_ROW(i32_f32, int32_t, float, (float)x)
DAMACY__FAST_ROW(f64_f32, double, float, (float)x)
DAMACY__ROW(i64_f32, int64_t, float, (float)x)
DAMACY__ROW(u64_f32, uint64_t, float, (float)x)

/* To f32, rounded to odd. */
DAMACY__ROW(i64_odd, int64_t, float, damacy__i64_to_f32_odd(x))
DAMACY__ROW(u64_odd, uint64_t, float, damacy__u64_to_f32_odd(x))
DAMACY__ROW(f64_odd, double, float, damacy__f64_to_f32_odd(x))

DAMACY__FAST_ROW(f32_bf16, float, uint16_t, damacy__f32_to_bf16(x))
DAMACY__ROW(f32_f64, float, double, damacy__f32_to_f64(x))
DAMACY__ROW(i64_f64, int64_t, double, (double)x)
DAMACY__ROW(u64_f64, uint64_t, double, (double)x)

#if defined(__x86_64__)
DAMACY__ROW(f16_f32, uint16_t, float, damacy__f16_to_f32(x))
DAMACY__ROW(f32_f16, float, uint16_t, damacy__f32_to_f16(x))

/* The processor's own conversions keep the same rules. Every one with AVX2 has them. */
typedef int16_t damacy__eight_halves __attribute__((vector_size(16)));
typedef float damacy__eight_floats __attribute__((vector_size(32)));

__attribute__((target("avx2,f16c"))) static void damacy__row_wide_f16_f32(void* dst,
                                                                          const void* src, size_t n)
{
    size_t i = 0;

    for (; n - i >= 8; i += 8) {
        damacy__eight_halves x;
        damacy__eight_floats y;
        memcpy(&x, (const uint8_t*)src + 2 * i, sizeof x);
        y = __builtin_ia32_vcvtph2ps256(x);
        memcpy((uint8_t*)dst + 4 * i, &y, sizeof y);
    }
    __builtin_ia32_vzeroupper(); /* compilers leave it out before a tail call */
    damacy__row_f16_f32((uint8_t*)dst + 4 * i, (const uint8_t*)src + 2 * i, n - i);
}

__attribute__((target("avx2,f16c"))) static void damacy__row_wide_f32_f16(void* dst,
                                                                          const void* src, size_t n)
{
    size_t i = 0;

    for (; n - i >= 8; i += 8) {
        damacy__eight_floats x;
        damacy__eight_halves y;
        memcpy(&x, (const uint8_t*)src + 4 * i, sizeof x);
        y = __builtin_ia32_vcvtps2ph256(x, 0); /* 0: to nearest, ties to even */
        memcpy((uint8_t*)dst + 2 * i, &y, sizeof y);
    }
    __builtin_ia32_vzeroupper();
    damacy__row_f32_f16((uint8_t*)dst + 2 * i, (const uint8_t*)src + 4 * i, n - i);
}
#else
DAMACY__FAST_ROW(f16_f32, uint16_t, float, damacy__f16_to_f32(x))
DAMACY__FAST_ROW(f32_f16, float, uint16_t, damacy__f32_to_f16(x))
#endif

DAMACY__FAST_ROW(bool_bool, uint8_t, uint8_t, x != 0)
DAMACY__ROW(f64_bool, double, uint8_t, (damacy__f64_bits(x) << 1) != 0)
DAMACY__ROW(f64_i64, double, int64_t, damacy__f64_to_i64(x))
DAMACY__ROW(f64_u64, double, uint64_t, damacy__f64_to_u64(x))

/* To i64: exact but for the last, which clamps. */
DAMACY__ROW(u8_i64, uint8_t, int64_t, x)
DAMACY__ROW(u16_i64, uint16_t, int64_t, x)
DAMACY__ROW(u32_i64, uint32_t, int64_t, x)
DAMACY__ROW(i8_i64, int8_t, int64_t, x)
DAMACY__ROW(i16_i64, int16_t, int64_t, x)
DAMACY__ROW(i32_i64, int32_t, int64_t, x)
DAMACY__ROW(u64_i64, uint64_t, int64_t, x > INT64_MAX ? INT64_MAX : (int64_t)x)

#define DAMACY__CLAMP(type, low, high) \
    (x < (low) ? (type)(low) : x > (high) ? (type)(high) : (type)x)
DAMACY__ROW(i64_u8, int64_t, uint8_t, DAMACY__CLAMP(uint8_t, 0, UINT8_MAX))
DAMACY__ROW(i64_u16, int64_t, uint16_t, DAMACY__CLAMP(uint16_t, 0, UINT16_MAX))
DAMACY__ROW(i64_u32, int64_t, uint32_t, DAMACY__CLAMP(uint32_t, 0, (int64_t)UINT32_MAX))
DAMACY__ROW(i64_u64, int64_t, uint64_t, x < 0 ? 0 : (uint64_t)x)
DAMACY__ROW(i64_i8, int64_t, int8_t, DAMACY__CLAMP(int8_t, INT8_MIN, INT8_MAX))
DAMACY__ROW(i64_i16, int64_t, int16_t, DAMACY__CLAMP(int16_t, INT16_MIN, INT16_MAX))
DAMACY__ROW(i64_i32, int64_t, int32_t, DAMACY__CLAMP(int32_t, INT32_MIN, INT32_MAX))
DAMACY__ROW(i64_bool, int64_t, uint8_t, x != 0)
#undef DAMACY__CLAMP

DAMACY__FAST_ROW(swap2, uint16_t, uint16_t, __builtin_bswap16(x))
DAMACY__FAST_ROW(swap4, uint32_t, uint32_t, __builtin_bswap32(x))
DAMACY__FAST_ROW(swap8, uint64_t, uint64_t, __builtin_bswap64(x))

enum { DAMACY__CAST_STEPS = 4 };

/* A conversion: the output of each step is the source of the next. No step: bits are copied. */
typedef struct damacy__cast {
    damacy__row steps[DAMACY__CAST_STEPS];
    uint32_t sizes[DAMACY__CAST_STEPS]; /* bytes per element after each step */
    uint32_t n_steps;
    uint32_t src_size; /* bytes per element */
    uint32_t out_size;
} damacy__cast;

static void damacy__cast_choose(damacy__cast* cast, damacy_dtype src, damacy_dtype out);
static void damacy__cast_choose_f32(damacy__cast* cast, damacy_dtype src);
static void damacy__cast_choose_from_f32(damacy__cast* cast, damacy_dtype out);

/* Bytes per element. */
static uint32_t damacy__cast_size(damacy_dtype dtype)
{
    static const uint8_t sizes[DAMACY_NATIVE] = {4, 2, 2, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

    return sizes[dtype];
}

static inline void damacy__cast_add(damacy__cast* cast, damacy__row row, uint32_t size)
{
    assert(row && cast->n_steps < DAMACY__CAST_STEPS);
    cast->steps[cast->n_steps] = row;
    cast->sizes[cast->n_steps++] = size;
}

static inline bool damacy__cast_is_float(damacy_dtype dtype)
{
    return dtype <= DAMACY_F64;
}

/* Tables in the order of damacy_dtype: f32 bf16 f16 f64, u8 u16 u32 u64, i8 i16 i32 i64, bool. */

/* To f32 in one step; NULL: f32 itself, and what goes through i64 or u8. */
static damacy__row damacy__row_to_f32(damacy_dtype src)
{
#define DAMACY__TABLE(P)                                                                      \
    {                                                                                         \
        NULL, P(bf16_f32), P(f16_f32), P(f64_f32), P(u8_f32), P(u16_f32), NULL,               \
            damacy__row_u64_f32, P(i8_f32), P(i16_f32), P(i32_f32), damacy__row_i64_f32, NULL \
    }
    static const damacy__row rows[2][DAMACY_NATIVE] = {DAMACY__TABLE(DAMACY__NARROW),
                                                       DAMACY__TABLE(DAMACY__WIDE)};
#undef DAMACY__TABLE

    return rows[damacy__cpu_is_wide()][src];
}

/* To i64; NULL for i64 itself and for floats. bool has become 0 or 1 before. */
static damacy__row damacy__row_to_i64(damacy_dtype src)
{
    static const damacy__row rows[DAMACY_NATIVE] = {NULL,
                                                    NULL,
                                                    NULL,
                                                    NULL,
                                                    damacy__row_u8_i64,
                                                    damacy__row_u16_i64,
                                                    damacy__row_u32_i64,
                                                    damacy__row_u64_i64,
                                                    damacy__row_i8_i64,
                                                    damacy__row_i16_i64,
                                                    damacy__row_i32_i64,
                                                    NULL,
                                                    damacy__row_u8_i64};

    return rows[src];
}

/* From i64 to a narrower whole number, u64 or bool; NULL for i64 itself and for floats. */
static damacy__row damacy__row_from_i64(damacy_dtype out)
{
    static const damacy__row rows[DAMACY_NATIVE] = {NULL,
                                                    NULL,
                                                    NULL,
                                                    NULL,
                                                    damacy__row_i64_u8,
                                                    damacy__row_i64_u16,
                                                    damacy__row_i64_u32,
                                                    damacy__row_i64_u64,
                                                    damacy__row_i64_i8,
                                                    damacy__row_i64_i16,
                                                    damacy__row_i64_i32,
                                                    NULL,
                                                    damacy__row_i64_bool};

    return rows[out];
}

/* Reverses the bytes of elements of 2, 4 or 8 bytes. */
static damacy__row damacy__row_swap(uint32_t size)
{
    return size == 2 ? DAMACY__PICK(swap2) : size == 4 ? DAMACY__PICK(swap4) : DAMACY__PICK(swap8);
}

/* Starts a conversion that first goes to f32, rounded to nearest. */
static void damacy__cast_choose_f32(damacy__cast* cast, damacy_dtype src)
{
    damacy_dtype from = src;

    memset(cast, 0, sizeof *cast);
    cast->src_size = damacy__cast_size(src);
    cast->out_size = sizeof(float);
    if (src == DAMACY_BOOL) {
        damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
        from = DAMACY_U8;
    } else if (src == DAMACY_U32) {
        damacy__cast_add(cast, damacy__row_u32_i64, 8);
        from = DAMACY_I64;
    }
    if (from != DAMACY_F32) {
        damacy__cast_add(cast, damacy__row_to_f32(from), sizeof(float));
    }
}

/* Adds the step from f32 to a float output. */
static void damacy__cast_choose_from_f32(damacy__cast* cast, damacy_dtype out)
{
    cast->out_size = damacy__cast_size(out);
    if (out == DAMACY_F16) {
        damacy__cast_add(cast, DAMACY__PICK(f32_f16), 2);
    } else if (out == DAMACY_BF16) {
        damacy__cast_add(cast, DAMACY__PICK(f32_bf16), 2);
    } else if (out == DAMACY_F64) {
        damacy__cast_add(cast, damacy__row_f32_f64, 8);
    }
}

/* Whole numbers and bool among each other: all through i64. */
static void damacy__cast_choose_int(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    if (src == DAMACY_BOOL) {
        damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
    }
    if (src != DAMACY_I64) {
        damacy__cast_add(cast, damacy__row_to_i64(src), 8);
    }
    if (out != DAMACY_I64) {
        damacy__cast_add(cast, damacy__row_from_i64(out), cast->out_size);
    }
}

/* Floats to whole numbers: f64, then u64, or i64 and narrower. */
static void damacy__cast_choose_truncate(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    if (src != DAMACY_F64) {
        damacy__cast_choose_f32(cast, src);
        damacy__cast_add(cast, damacy__row_f32_f64, 8);
    }
    cast->out_size = damacy__cast_size(out);
    if (out == DAMACY_BOOL) {
        damacy__cast_add(cast, damacy__row_f64_bool, 1);
    } else if (out == DAMACY_U64) {
        damacy__cast_add(cast, damacy__row_f64_u64, 8);
    } else {
        damacy__cast_add(cast, damacy__row_f64_i64, 8);
        if (out != DAMACY_I64) {
            damacy__cast_add(cast, damacy__row_from_i64(out), cast->out_size);
        }
    }
}

/* What f32 does not hold exactly, to another float than f32. False: it does hold the source. */
static bool damacy__cast_choose_wide(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    const bool is_narrow = out != DAMACY_F64;

    if (src == DAMACY_I32 || src == DAMACY_U32) {
        damacy__cast_add(cast, damacy__row_to_i64(src), 8);
    } else if (src != DAMACY_I64 && src != DAMACY_U64 && src != DAMACY_F64) {
        return false;
    }
    if (src == DAMACY_F64) {
        damacy__cast_add(cast, damacy__row_f64_odd, sizeof(float));
    } else if (src == DAMACY_U64) {
        damacy__cast_add(cast, is_narrow ? damacy__row_u64_odd : damacy__row_u64_f64,
                         is_narrow ? sizeof(float) : sizeof(double));
    } else {
        damacy__cast_add(cast, is_narrow ? damacy__row_i64_odd : damacy__row_i64_f64,
                         is_narrow ? sizeof(float) : sizeof(double));
    }
    if (is_narrow) {
        damacy__cast_choose_from_f32(cast, out);
    }
    return true;
}

/* Chooses the steps; neither type is DAMACY_NATIVE. */
static void damacy__cast_choose(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    memset(cast, 0, sizeof *cast);
    cast->src_size = damacy__cast_size(src);
    cast->out_size = damacy__cast_size(out);
    if (src == out) {
        if (src == DAMACY_BOOL) {
            damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
        }
    } else if (!damacy__cast_is_float(out)) {
        if (damacy__cast_is_float(src)) {
            damacy__cast_choose_truncate(cast, src, out);
        } else {
            damacy__cast_choose_int(cast, src, out);
        }
    } else if (out == DAMACY_F32 || !damacy__cast_choose_wide(cast, src, out)) {
        damacy__cast_choose_f32(cast, src);
        damacy__cast_choose_from_f32(cast, out);
    }
}

/* ==== src/stage/host_assemble.h ==== */
/* Runs copy records on the CPU: voxels of a decoded chunk, or a fill value, into a sample of a
 * batch.
 *
 * Axes may come in any order: the one with output stride 1 is walked innermost, and where the
 * source runs along another axis (a transposed chunk) a tile is turned at a time, so that whole
 * cache lines are used on both sides. The rules of conversion are those of cast.h. Source addresses
 * need no alignment. */

/* Scale and offset of float outputs. */
typedef struct damacy__affine {
    const float* scale;  /* [n_channels], or NULL: 1 */
    const float* offset; /* [n_channels], or NULL: 0 */
    uint32_t n_channels; /* 1: the same for all channels */
} damacy__affine;

/* A flag beside DAMACY__COPY_SWAP, for the CPU alone: the batch is larger than the caches, so its
 * lines are written past them. Rows of 64 voxels of f32 come out twice as fast; a small batch that
 * is used at once is better off without. */
#define DAMACY__COPY_STREAM 0x80000000u

enum {
    DAMACY__BLOCK = 512,     /* elements that pass through the steps at once: buffers stay in L1 */
    DAMACY__TILE_ROW = 64,   /* elements of a row of a tile */
    DAMACY__TILE_BYTES = 64, /* one element of each row of a tile: a cache line of the source */
    DAMACY__COPY_AXES = DAMACY_MAX_RANK + 2
};

/* A copy record made ready: strides in bytes, the axes in the order of the walk. */
typedef struct damacy__copy_walk {
    damacy__cast cast; /* source to output; with affine: source to f32 */
    damacy__cast tail; /* with affine: f32 to output */
    const damacy__affine* affine;
    damacy__row swap; /* NULL: none */
    uint64_t src, dst;
    uint64_t splat; /* the one value, if is_splat */
    uint64_t extent[DAMACY__COPY_AXES];
    uint64_t src_stride[DAMACY__COPY_AXES]; /* modulo 2^64: negative strides wrap */
    uint64_t dst_stride[DAMACY__COPY_AXES];
    uint32_t out_size; /* bytes per output element */
    uint32_t n_axes;
    uint32_t channel_axis; /* DAMACY__NO_CHANNEL: none that matters */
    uint32_t channel;
    uint32_t tile_rows; /* rows along axis n_axes - 2 that are turned at once; 0: no tiles */
    bool is_direct;     /* one step at most, both sides contiguous along the last axis */
    bool is_splat;      /* a line is one value, again and again */
    bool is_stream;     /* the output is contiguous along the last axis and bypasses the caches */
} damacy__copy_walk;

static void damacy__host_copy(const damacy__copy* copy, const damacy__axis* axes,
                              damacy_dtype out_dtype, const damacy__affine* affine);

#define DAMACY__BY_SIZE(size, F) \
    switch (size) {              \
    case 1:                      \
        F(uint8_t) break;        \
    case 2:                      \
        F(uint16_t) break;       \
    case 4:                      \
        F(uint32_t) break;       \
    default:                     \
        F(uint64_t) break;       \
    }

/* Strided elements to a contiguous row. */
static void damacy__gather(void* dst, uint64_t src, uint64_t stride, size_t n, uint32_t size)
{
#define DAMACY__GATHER(T)                                                              \
    for (size_t i = 0; i < n; i++, src += stride) {                                    \
        memcpy((uint8_t*)dst + i * sizeof(T), (const void*)(uintptr_t)src, sizeof(T)); \
    }
    DAMACY__BY_SIZE(size, DAMACY__GATHER)
#undef DAMACY__GATHER
}

/* A contiguous row to strided elements. */
static void damacy__scatter(uint64_t dst, uint64_t stride, const void* src, size_t n, uint32_t size)
{
#define DAMACY__SCATTER(T)                                                             \
    for (size_t i = 0; i < n; i++, dst += stride) {                                    \
        memcpy((void*)(uintptr_t)dst, (const uint8_t*)src + i * sizeof(T), sizeof(T)); \
    }
    DAMACY__BY_SIZE(size, DAMACY__SCATTER)
#undef DAMACY__SCATTER
}

/* Turns a tile: n columns, stride apart, of n_rows contiguous elements each, become n_rows rows. */
static void damacy__turn(void* dst, uint64_t src, uint64_t stride, size_t n, size_t n_rows,
                         uint32_t size)
{
#define DAMACY__TURN(T)                                                         \
    for (size_t i = 0; i < n; i++, src += stride) {                             \
        for (size_t row = 0; row < n_rows; row++) {                             \
            memcpy((uint8_t*)dst + (row * DAMACY__TILE_ROW + i) * sizeof(T),    \
                   (const void*)(uintptr_t)(src + row * sizeof(T)), sizeof(T)); \
        }                                                                       \
    }
    DAMACY__BY_SIZE(size, DAMACY__TURN)
#undef DAMACY__TURN
}

/* n times the size bytes at value. */
DAMACY__VECTORIZE static void damacy__splat(void* dst, const void* value, size_t n, uint32_t size)
{
#define DAMACY__SPLAT(T)                                              \
    {                                                                 \
        T one;                                                        \
        memcpy(&one, value, sizeof one);                              \
        for (size_t i = 0; i < n; i++) {                              \
            memcpy((uint8_t*)dst + i * sizeof one, &one, sizeof one); \
        }                                                             \
    }
    DAMACY__BY_SIZE(size, DAMACY__SPLAT)
#undef DAMACY__SPLAT
}

/* Copies to memory that will not be read soon. The writes are ordered by damacy__stream_end. */
static void damacy__stream(uint8_t* dst, const uint8_t* src, size_t size)
{
#if defined(__x86_64__)
    typedef float quad __attribute__((vector_size(16)));
    const size_t head = (size_t)(0 - (uintptr_t)dst) % 64;

    if (size >= head + 64) {
        memcpy(dst, src, head);
        dst += head;
        src += head;
        size -= head;
        for (; size >= 64; size -= 64, dst += 64, src += 64) {
            for (uint32_t i = 0; i < 64; i += 16) {
                quad x;
                memcpy(&x, src + i, sizeof x);
                __asm__ volatile("movntps %1, %0" : "=m"(*(quad*)(void*)(dst + i)) : "x"(x));
            }
        }
    }
#endif
    memcpy(dst, src, size);
}

static void damacy__stream_end(void)
{
#if defined(__x86_64__)
    __asm__ volatile("sfence" : : : "memory");
#endif
}

#if defined(__x86_64__)
/* Past the caches: whole lines of the output are written without being read first. The caller
 * orders the writes. */
#define DAMACY__STREAM_ROW(name, size, widen)                                                  \
    __attribute__((target("avx2"))) static void damacy__row_stream_##name(                     \
        void* dst, const void* src, size_t n)                                                  \
    {                                                                                          \
        const size_t head = (size_t)(0 - (uintptr_t)dst) % 64 / sizeof(float);                 \
        size_t i = head;                                                                       \
        if (n < head + 16 || (uintptr_t)dst % sizeof(float) != 0) {                            \
            damacy__row_wide_##name(dst, src, n);                                              \
            return;                                                                            \
        }                                                                                      \
        if (head) {                                                                            \
            damacy__row_wide_##name(dst, src, head);                                           \
        }                                                                                      \
        for (; n - i >= 16; i += 16) {                                                         \
            const uint8_t* from = (const uint8_t*)src + i * (size);                            \
            float* to = (float*)dst + i;                                                       \
            __asm__ volatile(widen " (%1), %%ymm0\n\t" widen " (%1,%2,8), %%ymm1\n\t"          \
                                   "vcvtdq2ps %%ymm0, %%ymm0\n\t"                              \
                                   "vcvtdq2ps %%ymm1, %%ymm1\n\t"                              \
                                   "vmovntps %%ymm0, (%0)\n\t"                                 \
                                   "vmovntps %%ymm1, 32(%0)"                                   \
                             :                                                                 \
                             : "r"(to), "r"(from), "r"((size_t)(size))                         \
                             : "xmm0", "xmm1", "memory");                                      \
        }                                                                                      \
        __builtin_ia32_vzeroupper();                                                           \
        if (i < n) {                                                                           \
            damacy__row_wide_##name((float*)dst + i, (const uint8_t*)src + i * (size), n - i); \
        }                                                                                      \
    }
DAMACY__STREAM_ROW(u8_f32, 1, "vpmovzxbd")
DAMACY__STREAM_ROW(i8_f32, 1, "vpmovsxbd")
DAMACY__STREAM_ROW(u16_f32, 2, "vpmovzxwd")
DAMACY__STREAM_ROW(i16_f32, 2, "vpmovsxwd")
#undef DAMACY__STREAM_ROW
#endif

/* From src to f32 past the caches; NULL: there is no such loop. */
static damacy__row damacy__row_stream(damacy_dtype src)
{
#if defined(__x86_64__)
    if (damacy__cpu_is_wide()) {
        return src == DAMACY_U16   ? damacy__row_stream_u16_f32
               : src == DAMACY_U8  ? damacy__row_stream_u8_f32
               : src == DAMACY_I16 ? damacy__row_stream_i16_f32
               : src == DAMACY_I8  ? damacy__row_stream_i8_f32
                                   : NULL;
    }
#endif
    (void)src;
    return NULL;
}

/* Multiplying and adding are functions of their own that are never inlined, so that no compiler
 * flag can fuse them: the device rounds twice as well. */
DAMACY__VECTORIZE
__attribute__((noinline)) static void damacy__row_scale(float* row, size_t n, const float* scale,
                                                        bool is_each)
{
    if (is_each) {
        for (size_t i = 0; i < n; i++) {
            row[i] *= scale[i];
        }
    } else {
        const float one = scale[0];
        for (size_t i = 0; i < n; i++) {
            row[i] *= one;
        }
    }
}

DAMACY__INLINE float damacy__plain_nan(float value)
{
    const uint32_t bits = damacy__f32_bits(value);

    return damacy__f32_of((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits);
}

DAMACY__VECTORIZE __attribute__((noinline)) static void
damacy__row_offset(float* row, size_t n, const float* offset, bool is_each)
{
    if (is_each) {
        for (size_t i = 0; i < n; i++) {
            row[i] = damacy__plain_nan(row[i] + offset[i]);
        }
    } else {
        const float one = offset[0];
        for (size_t i = 0; i < n; i++) {
            row[i] = damacy__plain_nan(row[i] + one);
        }
    }
}

/* Scales a row of f32; the channel of element i is channel, or channel + i. */
static void damacy__row_affine(const damacy__copy_walk* walk, float* row, size_t n,
                               uint32_t channel)
{
    static const float none[2] = {1.0f, 0.0f};
    const damacy__affine* affine = walk->affine;
    const uint32_t first = affine->n_channels > 1 ? channel : 0;
    const bool is_each = walk->channel_axis == walk->n_axes - 1;

    assert(first < affine->n_channels);
    damacy__row_scale(row, n, affine->scale ? affine->scale + first : &none[0],
                      is_each && affine->scale);
    damacy__row_offset(row, n, affine->offset ? affine->offset + first : &none[1],
                       is_each && affine->offset);
}

/* Where the next step writes: the end, if it is the last, else the buffer that does not hold the
 * row. */
DAMACY__INLINE void* damacy__row_target(uint64_t (*buffers)[DAMACY__BLOCK], const void* row,
                                        void* end, uint32_t n_left)
{
    return n_left == 1 && end ? end : row == (void*)buffers[0] ? buffers[1] : buffers[0];
}

/* Up to DAMACY__BLOCK elements through all steps. */
static void damacy__copy_block(const damacy__copy_walk* walk, uint64_t dst, uint64_t src,
                               uint64_t src_stride, size_t n, uint32_t channel)
{
    uint64_t buffers[2][DAMACY__BLOCK];
    const uint64_t dst_stride = walk->dst_stride[walk->n_axes - 1];
    const bool is_row = dst_stride == walk->out_size;
    void* const end = is_row && !walk->is_stream ? (void*)(uintptr_t)dst : NULL;
    const void* row = (const void*)(uintptr_t)src;
    uint32_t n_left = (walk->swap ? 1u : 0u) + walk->cast.n_steps + walk->tail.n_steps;
    void* to = NULL;

    if (src_stride != walk->cast.src_size) {
        damacy__gather(buffers[0], src, src_stride, n, walk->cast.src_size);
        row = to = buffers[0];
    }
    if (walk->swap) {
        to = damacy__row_target(buffers, row, end, n_left--);
        walk->swap(to, row, n);
        row = to;
    }
    for (uint32_t i = 0; i < walk->cast.n_steps; i++) {
        to = damacy__row_target(buffers, row, end, n_left--);
        walk->cast.steps[i](to, row, n);
        row = to;
    }
    if (walk->affine) {
        if (!to) { /* f32 as it is stored */
            to = end && n_left == 0 ? end : buffers[0];
            memcpy(to, row, n * sizeof(float));
            row = to;
        }
        damacy__row_affine(walk, (float*)to, n, channel);
        if (walk->tail.n_steps) {
            to = damacy__row_target(buffers, row, end, n_left);
            walk->tail.steps[0](to, row, n);
            row = to;
        }
    }
    if (!is_row) {
        damacy__scatter(dst, dst_stride, row, n, walk->out_size);
    } else if (walk->is_stream) {
        damacy__stream((uint8_t*)(uintptr_t)dst, (const uint8_t*)row, n * walk->out_size);
    } else if (row != end) {
        memcpy(end, row, n * walk->out_size);
    }
}

/* One line of one value. */
static void damacy__copy_splat(const damacy__copy_walk* walk, uint64_t dst, uint64_t n)
{
    uint64_t block[DAMACY__BLOCK];

    if (!walk->is_stream) {
        damacy__splat((void*)(uintptr_t)dst, &walk->splat, (size_t)n, walk->out_size);
        return;
    }
    damacy__splat(block, &walk->splat, (size_t)DAMACY__MIN(n, (uint64_t)DAMACY__BLOCK),
                  walk->out_size);
    for (uint64_t at = 0; at < n; at += DAMACY__BLOCK) {
        damacy__stream((uint8_t*)(uintptr_t)(dst + at * walk->out_size), (const uint8_t*)block,
                       (size_t)DAMACY__MIN(n - at, (uint64_t)DAMACY__BLOCK) * walk->out_size);
    }
}

/* One line along the last axis. */
static void damacy__copy_line(const damacy__copy_walk* walk, uint64_t dst, uint64_t src,
                              uint32_t channel)
{
    const uint32_t last = walk->n_axes - 1;
    const uint64_t n = walk->extent[last];

    if (walk->is_splat) {
        damacy__copy_splat(walk, dst, n);
        return;
    }
    if (walk->is_direct) {
        if (walk->cast.n_steps == 0 && walk->is_stream) {
            damacy__stream((uint8_t*)(uintptr_t)dst, (const uint8_t*)(uintptr_t)src,
                           (size_t)n * walk->out_size);
        } else if (walk->cast.n_steps) {
            walk->cast.steps[0]((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, (size_t)n);
        } else {
            memcpy((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, (size_t)n * walk->out_size);
        }
        return;
    }
    for (uint64_t at = 0; at < n; at += DAMACY__BLOCK) {
        damacy__copy_block(walk, dst + at * walk->dst_stride[last],
                           src + at * walk->src_stride[last], walk->src_stride[last],
                           (size_t)DAMACY__MIN(n - at, (uint64_t)DAMACY__BLOCK),
                           walk->channel_axis == last ? channel + (uint32_t)at : channel);
    }
}

/* The last two axes, where the source runs along the first of them. */
static void damacy__copy_tiles(const damacy__copy_walk* walk, uint64_t dst, uint64_t src,
                               uint32_t channel)
{
    uint64_t tile[DAMACY__TILE_ROW * DAMACY__TILE_BYTES / 8];
    const uint32_t last = walk->n_axes - 1;
    const uint32_t size = walk->cast.src_size;

    for (uint64_t y = 0; y < walk->extent[last - 1]; y += walk->tile_rows) {
        const uint64_t n_rows = DAMACY__MIN(walk->extent[last - 1] - y, (uint64_t)walk->tile_rows);
        for (uint64_t x = 0; x < walk->extent[last]; x += DAMACY__TILE_ROW) {
            const uint64_t n = DAMACY__MIN(walk->extent[last] - x, (uint64_t)DAMACY__TILE_ROW);
            damacy__turn(tile, src + x * walk->src_stride[last] + y * size, walk->src_stride[last],
                         (size_t)n, (size_t)n_rows, size);
            for (uint64_t row = 0; row < n_rows; row++) {
                const uint64_t step = walk->channel_axis == last       ? x
                                      : walk->channel_axis == last - 1 ? y + row
                                                                       : 0;
                damacy__copy_block(
                    walk, dst + x * walk->dst_stride[last] + (y + row) * walk->dst_stride[last - 1],
                    (uint64_t)(uintptr_t)tile + row * DAMACY__TILE_ROW * size, size, (size_t)n,
                    channel + (uint32_t)step);
            }
        }
    }
}

/* All lines, or all tiles, of the outer axes. */
static void damacy__copy_run(const damacy__copy_walk* walk)
{
    uint64_t index[DAMACY__COPY_AXES] = {0};
    const uint32_t n_outer = walk->n_axes - (walk->tile_rows ? 2u : 1u);
    uint64_t src = walk->src;
    uint64_t dst = walk->dst;

    for (;;) {
        const uint32_t channel =
            walk->channel +
            (walk->channel_axis < n_outer ? (uint32_t)index[walk->channel_axis] : 0u);
        uint32_t axis = n_outer;
        if (walk->tile_rows) {
            damacy__copy_tiles(walk, dst, src, channel);
        } else {
            damacy__copy_line(walk, dst, src, channel);
        }
        for (;;) {
            if (axis == 0) {
                return;
            }
            axis--;
            if (++index[axis] < walk->extent[axis]) {
                src += walk->src_stride[axis];
                dst += walk->dst_stride[axis];
                break;
            }
            index[axis] = 0;
            src -= walk->src_stride[axis] * (walk->extent[axis] - 1);
            dst -= walk->dst_stride[axis] * (walk->extent[axis] - 1);
        }
    }
}

/* Exchanges two axes of the walk. */
static void damacy__walk_exchange(damacy__copy_walk* walk, uint32_t a, uint32_t b)
{
    uint64_t* const fields[3] = {walk->extent, walk->src_stride, walk->dst_stride};

    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t kept = fields[i][a];
        fields[i][a] = fields[i][b];
        fields[i][b] = kept;
    }
    if (walk->channel_axis == a || walk->channel_axis == b) {
        walk->channel_axis = a + b - walk->channel_axis;
    }
}

/* Puts the axis of the shortest output stride last, and turns tiles where that pays. */
static void damacy__walk_order(damacy__copy_walk* walk)
{
    const uint32_t last = walk->n_axes - 1;
    const uint64_t size = walk->cast.src_size;

    for (uint32_t i = 0; i < last && walk->dst_stride[last] != walk->out_size; i++) {
        if (walk->dst_stride[i] == walk->out_size) {
            damacy__walk_exchange(walk, i, last);
        }
    }
    if (walk->src_stride[last] == size || walk->src_stride[last] == 0 ||
        walk->src_stride[last] == 0 - size || walk->extent[last] < 4) {
        return;
    }
    for (uint32_t i = 0; i < last; i++) {
        if (walk->src_stride[i] == size && walk->extent[i] >= 4) {
            damacy__walk_exchange(walk, i, last - 1);
            walk->tile_rows = DAMACY__TILE_BYTES / walk->cast.src_size;
            return;
        }
    }
}

static void damacy__walk_init(damacy__copy_walk* walk, const damacy__copy* copy,
                              const damacy__axis* axes, damacy_dtype out,
                              const damacy__affine* affine)
{
    const damacy_dtype src = (damacy_dtype)copy->src_dtype;
    const bool is_fill = (copy->flags & DAMACY__COPY_FILL) != 0;

    memset(walk, 0, sizeof *walk);
    if (affine) {
        assert(damacy__cast_is_float(out));
        damacy__cast_choose_f32(&walk->cast, src);
        damacy__cast_choose_from_f32(&walk->tail, out);
    } else {
        damacy__cast_choose(&walk->cast, src, out);
    }
    walk->out_size = damacy__cast_size(out);
    walk->affine = affine;
    if ((copy->flags & DAMACY__COPY_SWAP) && !is_fill && walk->cast.src_size > 1) {
        walk->swap = damacy__row_swap(walk->cast.src_size);
    }
    walk->src = is_fill ? (uint64_t)(uintptr_t)&copy->fill : copy->src;
    walk->dst = copy->dst;
    walk->n_axes = copy->n_axes;
    walk->channel = copy->channel;
    walk->channel_axis = affine && affine->n_channels > 1 ? copy->channel_axis : DAMACY__NO_CHANNEL;
    for (uint32_t i = 0; i < copy->n_axes; i++) {
        walk->extent[i] = axes[i].extent;
        walk->src_stride[i] = is_fill ? 0 : (uint64_t)axes[i].src_stride * walk->cast.src_size;
        walk->dst_stride[i] = (uint64_t)axes[i].dst_stride * walk->out_size;
    }
    damacy__walk_order(walk);
}

/* Runs one record. axes are the record's own, copy->n_axes of them; src_dtype is a real type;
 * out_dtype DAMACY_NATIVE stands for it. affine NULL: no scaling; else the output is a float type.
 * Any thread; records of different outputs may run at once. */
static void damacy__host_copy(const damacy__copy* copy, const damacy__axis* axes,
                              damacy_dtype out_dtype, const damacy__affine* affine)
{
    const damacy_dtype out = out_dtype == DAMACY_NATIVE ? (damacy_dtype)copy->src_dtype : out_dtype;
    damacy__copy_walk walk;

    assert(copy->n_axes >= 1 && copy->n_axes <= DAMACY__COPY_AXES &&
           copy->src_dtype < DAMACY_NATIVE);
    damacy__walk_init(&walk, copy, axes, out, affine);
    if (walk.dst_stride[walk.n_axes - 1] == walk.out_size) {
        const bool is_row = walk.src_stride[walk.n_axes - 1] == walk.cast.src_size;
        walk.is_direct = is_row && !walk.swap && !affine && walk.cast.n_steps <= 1;
        walk.is_splat =
            (copy->flags & DAMACY__COPY_FILL) && walk.channel_axis == DAMACY__NO_CHANNEL;
    }
    if (walk.is_splat) {
        damacy__copy_block(&walk, (uint64_t)(uintptr_t)&walk.splat, walk.src, walk.cast.src_size, 1,
                           walk.channel);
    }
    if ((copy->flags & DAMACY__COPY_STREAM) && walk.dst_stride[walk.n_axes - 1] == walk.out_size) {
        const damacy__row row =
            out == DAMACY_F32 ? damacy__row_stream((damacy_dtype)copy->src_dtype) : NULL;
        walk.is_stream = true;
        walk.is_direct = walk.is_direct && (row || walk.cast.n_steps == 0);
        if (walk.is_direct && row) {
            walk.cast.steps[0] = row;
        }
    }
    damacy__copy_run(&walk);
    if (walk.is_stream) {
        damacy__stream_end();
    }
}

/* ==== src/stage/bytes_decode.h ==== */
/* The bytes-to-bytes part of a codec chain, undone on the host.
 *
 * One codec decodes straight into its destination; several pass through two scratch buffers that
 * grow to what was needed and stay. A checksum is compared and cut off without a copy. No
 * intermediate result may be larger than what encoders can make of the chunk's known size. */

/* Memory that grows. */
typedef struct damacy__scratch {
    uint8_t* ptr;
    uint64_t size;
} damacy__scratch;

/* What one worker decodes with. */
typedef struct damacy__decoder {
    damacy__libraries* libraries;
    damacy__alloc* alloc;
    bool skip_checksums;
    damacy__zstd zstd;
    damacy__scratch between[2]; /* results between codecs */
    damacy__scratch block;      /* a shuffled blosc block */
} damacy__decoder;

static damacy_status damacy__decoder_init(damacy__decoder* decoder, damacy__libraries* libraries,
                                          damacy__alloc* alloc, bool skip_checksums,
                                          damacy_error* err);
static void damacy__decoder_deinit(damacy__decoder* decoder);
static damacy_status damacy__bytes_decode(damacy__decoder* decoder, const damacy__codec* codecs,
                                          uint32_t n, damacy__span src, uint8_t* dst,
                                          uint64_t capacity, uint64_t* size, damacy_error* err);

static damacy_status damacy__decoder_init(damacy__decoder* decoder, damacy__libraries* libraries,
                                          damacy__alloc* alloc, bool skip_checksums,
                                          damacy_error* err)
{
    (void)err;
    memset(decoder, 0, sizeof *decoder);
    decoder->libraries = libraries;
    decoder->alloc = alloc;
    decoder->skip_checksums = skip_checksums;
    return DAMACY_OK;
}

static damacy_status damacy__scratch_reserve(damacy__scratch* scratch, damacy__alloc* alloc,
                                             uint64_t size, damacy_error* err)
{
    uint8_t* ptr;

    if (size <= scratch->size) {
        return DAMACY_OK;
    }
    ptr = damacy__new(alloc, size, uint8_t);
    if (!ptr) {
        return damacy__fail(err, DAMACY_OOM, "%" PRIu64 " bytes to decode in", size);
    }
    damacy__free(alloc, scratch->ptr, scratch->size);
    scratch->ptr = ptr;
    scratch->size = size;
    return DAMACY_OK;
}

/* A zeroed record is left alone. */
static void damacy__decoder_deinit(damacy__decoder* decoder)
{
    damacy__zstd_close(&decoder->zstd);
    for (uint32_t i = 0; i < 2; i++) {
        if (decoder->between[i].ptr) {
            damacy__free(decoder->alloc, decoder->between[i].ptr, decoder->between[i].size);
        }
    }
    if (decoder->block.ptr) {
        damacy__free(decoder->alloc, decoder->block.ptr, decoder->block.size);
    }
    memset(decoder, 0, sizeof *decoder);
}

/* Compares and cuts off a CRC-32C. */
static damacy_status damacy__decode_crc32c(const damacy__decoder* decoder, damacy__span* src,
                                           damacy_error* err)
{
    uint32_t stored;
    uint32_t computed;

    if (src->size < 4) {
        return damacy__fail(err, DAMACY_DECODE, "crc32c: %zu bytes cannot hold a checksum",
                            src->size);
    }
    src->size -= 4;
    if (decoder->skip_checksums) {
        return DAMACY_OK;
    }
    stored = damacy__load_u32le(src->ptr + src->size);
    computed = damacy__crc32c(src->ptr, src->size);
    if (stored != computed) {
        return damacy__fail(err, DAMACY_DECODE,
                            "crc32c: checksum is %08" PRIx32 ", the bytes give %08" PRIx32, stored,
                            computed);
    }
    return DAMACY_OK;
}

static damacy_status damacy__decode_blosc(damacy__decoder* decoder, damacy__span src, uint8_t* dst,
                                          uint64_t capacity, uint64_t* size, damacy_error* err)
{
    damacy__blosc_tools tools;
    damacy__blosc blosc = {0};

    DAMACY__TRY(damacy__blosc_parse(src, UINT64_MAX, &blosc, err));
    if (blosc.size > capacity) {
        return damacy__fail(err, DAMACY_DECODE,
                            "blosc: the header says %u bytes, at most %" PRIu64 " are due",
                            blosc.size, capacity);
    }
    tools.libraries = decoder->libraries;
    tools.zstd = &decoder->zstd;
    tools.skip_checksums = decoder->skip_checksums;
    DAMACY__TRY(damacy__scratch_reserve(&decoder->block, decoder->alloc, blosc.block_size, err));
    tools.scratch = decoder->block.ptr;
    *size = blosc.size;
    return damacy__blosc_decode(&tools, &blosc, src, dst, err);
}

static damacy_status damacy__decode_lz4(damacy__span src, uint8_t* dst, uint64_t capacity,
                                        uint64_t* size, damacy_error* err)
{
    if (src.size < 4 || damacy__load_u32le(src.ptr) > capacity) {
        return damacy__fail(err, DAMACY_DECODE,
                            "lz4: the size in front is missing or above the %" PRIu64 " bytes due",
                            capacity);
    }
    *size = damacy__load_u32le(src.ptr);
    return damacy__lz4_decode(damacy__span_of(src.ptr + 4, src.size - 4), dst, (size_t)*size, err);
}

/* One codec; *size receives what it gave. */
static damacy_status damacy__decode_step(damacy__decoder* decoder, uint32_t kind, damacy__span src,
                                         uint8_t* dst, uint64_t capacity, uint64_t* size,
                                         damacy_error* err)
{
    switch (kind) {
    case DAMACY__CODEC_ZSTD:
        DAMACY__TRY(
            damacy__zstd_open(&decoder->zstd, decoder->libraries, decoder->skip_checksums, err));
        return damacy__zstd_decode(&decoder->zstd, src, dst, capacity, size, err);
    case DAMACY__CODEC_BLOSC:
        return damacy__decode_blosc(decoder, src, dst, capacity, size, err);
    case DAMACY__CODEC_GZIP:
    case DAMACY__CODEC_ZLIB:
        return damacy__inflate(decoder->libraries, kind == DAMACY__CODEC_GZIP, src, dst, capacity,
                               size, err);
    case DAMACY__CODEC_LZ4:
        return damacy__decode_lz4(src, dst, capacity, size, err);
    default:
        return damacy__fail(err, DAMACY_UNSUPPORTED, "codec %u has no decoder on the host", kind);
    }
}

/* Undoes n bytes-to-bytes codecs (given in the order of encoding): at most capacity bytes at dst,
 * and their number in *size. */
static damacy_status damacy__bytes_decode(damacy__decoder* decoder, const damacy__codec* codecs,
                                          uint32_t n, damacy__span src, uint8_t* dst,
                                          uint64_t capacity, uint64_t* size, damacy_error* err)
{
    uint32_t n_left = 0; /* codecs before this one that change bytes */
    uint32_t turn = 0;
    uint64_t got = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_left += codecs[i].kind != DAMACY__CODEC_CRC32C;
    }
    for (uint32_t i = n; i-- > 0;) {
        uint64_t room = capacity + 4 * (uint64_t)i;
        uint8_t* to = dst;
        if (codecs[i].kind == DAMACY__CODEC_CRC32C) {
            DAMACY__TRY(damacy__decode_crc32c(decoder, &src, err));
            continue;
        }
        n_left--;
        if (n_left > 0 || i > 0) {
            room += n_left * (capacity / 64 + 65536);
            DAMACY__TRY(
                damacy__scratch_reserve(&decoder->between[turn], decoder->alloc, room, err));
            to = decoder->between[turn].ptr;
            turn ^= 1;
        }
        DAMACY__TRY(damacy__decode_step(decoder, codecs[i].kind, src, to, room, &got, err));
        src = damacy__span_of(to, (size_t)got);
    }
    if (src.size > capacity) {
        return damacy__fail(err, DAMACY_DECODE, "%zu decoded bytes, at most %" PRIu64 " are due",
                            src.size, capacity);
    }
    if (src.ptr != dst && src.size) {
        memcpy(dst, src.ptr, src.size);
    }
    *size = src.size;
    return DAMACY_OK;
}

/* ==== src/stage/host_decode.h ==== */
/* One stored chunk to its voxels, on the host.
 *
 * The result is layout->chunk_size bytes exactly, or an error. Shards inside a chunk (is_nested)
 * are undone level by level through temporary arrays: rare, right, and not fast. */

static bool damacy__host_decode_is_identity(const damacy__layout* layout);
static damacy_status damacy__host_decode(damacy__decoder* decoder, const damacy__layout* layout,
                                         damacy__span stored, uint8_t* dst, damacy_error* err);

/* Number of the array-to-bytes codec of a chain. */
static uint32_t damacy__chain_middle(const damacy__chain* chain)
{
    uint32_t i = 0;

    while (i < chain->n && chain->codecs[i].kind == DAMACY__CODEC_TRANSPOSE) {
        i++;
    }
    assert(i < chain->n);
    return i;
}

/* Whether the stored bytes are the voxels, so that nothing needs to be decoded. */
static bool damacy__host_decode_is_identity(const damacy__layout* layout)
{
    return !layout->is_nested &&
           damacy__chain_middle(&layout->chunk_chain) + 1 == layout->chunk_chain.n;
}

/* An array on its way through a nested chain: C order of shape. */
typedef struct damacy__nest {
    damacy__decoder* decoder;
    uint32_t rank;
    uint32_t item_size;
    uint64_t fill;
} damacy__nest;

static damacy_status damacy__nest_decode(const damacy__nest* nest, const damacy__chain* chain,
                                         const int64_t* shape, damacy__span stored, uint8_t* dst,
                                         uint32_t depth, damacy_error* err);

static uint64_t damacy__nest_size(const damacy__nest* nest, const int64_t* shape)
{
    uint64_t n = nest->item_size;

    for (uint32_t i = 0; i < nest->rank; i++) {
        n *= (uint64_t)shape[i];
    }
    return n;
}

/* Copies a box of elements between two strided arrays, the last axis innermost. */
static void damacy__nest_copy(const damacy__nest* nest, const int64_t* extent, uint8_t* dst,
                              const int64_t* dst_stride, const uint8_t* src,
                              const int64_t* src_stride, bool swap)
{
    int64_t at[DAMACY_MAX_RANK] = {0};
    const uint32_t size = nest->item_size;
    uint32_t axis;

    for (;;) {
        int64_t to = 0;
        int64_t from = 0;
        for (uint32_t i = 0; i < nest->rank; i++) {
            to += at[i] * dst_stride[i];
            from += at[i] * src_stride[i];
        }
        for (uint32_t b = 0; b < size; b++) {
            dst[to * size + b] = src[from * size + (swap ? size - 1 - b : b)];
        }
        for (axis = nest->rank; axis > 0 && ++at[axis - 1] == extent[axis - 1]; axis--) {
            at[axis - 1] = 0;
        }
        if (axis == 0) {
            return;
        }
    }
}

/* The chunks of one shard into an array of the shard's shape; missing ones are the fill value. */
static damacy_status damacy__nest_shard(const damacy__nest* nest, const damacy__sharding* sharding,
                                        const int64_t* shape, damacy__span shard, uint8_t* dst,
                                        uint32_t depth, damacy_error* err)
{
    damacy__alloc* alloc = nest->decoder->alloc;
    const uint64_t chunk_size = damacy__nest_size(nest, sharding->chunk_shape);
    damacy__extent* extents = damacy__new(alloc, sharding->n_entries, damacy__extent);
    uint8_t* chunk = damacy__new(alloc, chunk_size, uint8_t);
    int64_t shard_stride[DAMACY_MAX_RANK];
    int64_t chunk_stride[DAMACY_MAX_RANK];
    uint64_t index_at = 0;
    damacy_status status = DAMACY_OK;

    if (!extents || !chunk) {
        status = damacy__fail(err, DAMACY_OOM, "a nested shard of %" PRIu64 " chunks",
                              sharding->n_entries);
        goto done;
    }
    damacy__strides(shape, nest->rank, shard_stride);
    damacy__strides(sharding->chunk_shape, nest->rank, chunk_stride);
    status = damacy__shard_locate(sharding, shard.size, &index_at, err);
    if (status == DAMACY_OK) {
        status = damacy__shard_decode(
            sharding, nest->rank,
            damacy__span_of(shard.ptr + index_at, (size_t)sharding->index_size), shard.size,
            extents, err);
    }
    for (uint64_t k = 0; k < sharding->n_entries && status == DAMACY_OK; k++) {
        uint64_t rest = k;
        int64_t to = 0;
        for (uint32_t i = nest->rank; i-- > 0;) {
            to += (int64_t)(rest % (uint64_t)sharding->grid[i]) * sharding->chunk_shape[i] *
                  shard_stride[i];
            rest /= (uint64_t)sharding->grid[i];
        }
        if (extents[k].offset == UINT64_MAX) {
            for (uint64_t b = 0; b < chunk_size; b++) {
                chunk[b] = (uint8_t)(nest->fill >> (8 * (b % nest->item_size)));
            }
        } else {
            status = damacy__nest_decode(
                nest, &sharding->chunk_chain, sharding->chunk_shape,
                damacy__span_of(shard.ptr + extents[k].offset, (size_t)extents[k].size), chunk,
                depth + 1, err);
        }
        if (status == DAMACY_OK) {
            damacy__nest_copy(nest, sharding->chunk_shape, dst + to * nest->item_size, shard_stride,
                              chunk, chunk_stride, false);
        }
    }
done:
    damacy__free(alloc, chunk, chunk_size);
    damacy__free(alloc, extents, sharding->n_entries);
    return status;
}

/* What the array-to-bytes codec wrote, to elements in C order of `shape`, which that codec sees. */
static damacy_status damacy__nest_middle(const damacy__nest* nest, const damacy__codec* codec,
                                         const int64_t* shape, damacy__span bytes, uint8_t* dst,
                                         uint32_t depth, damacy_error* err)
{
    const uint64_t size = damacy__nest_size(nest, shape);
    int64_t stride[DAMACY_MAX_RANK];

    if (codec->kind == DAMACY__CODEC_SHARDING) {
        return damacy__nest_shard(nest, codec->sharding, shape, bytes, dst, depth, err);
    }
    if (bytes.size != size) {
        return damacy__fail(err, DAMACY_DECODE, "%zu decoded bytes, the chunk has %" PRIu64,
                            bytes.size, size);
    }
    damacy__strides(shape, nest->rank, stride);
    damacy__nest_copy(nest, shape, dst, stride, bytes.ptr, stride, codec->big_endian != 0);
    return DAMACY_OK;
}

/* Most bytes that an encoded shard may have: its chunks, badly compressed, and its index, per
 * level. */
static uint64_t damacy__nest_room(const damacy__nest* nest, const damacy__codec* codec,
                                  const int64_t* shape)
{
    const uint64_t size = damacy__nest_size(nest, shape);

    if (codec->kind == DAMACY__CODEC_BYTES) {
        return size;
    }
    return 2 * size + codec->sharding->index_size + 1024 * codec->sharding->n_entries + 65536;
}

/* One chain: bytes to bytes, the array-to-bytes codec, and the transpositions, undone in this
 * order. */
static damacy_status damacy__nest_decode(const damacy__nest* nest, const damacy__chain* chain,
                                         const int64_t* shape, damacy__span stored, uint8_t* dst,
                                         uint32_t depth, damacy_error* err)
{
    damacy__alloc* alloc = nest->decoder->alloc;
    const uint32_t middle = damacy__chain_middle(chain);
    const uint64_t size = damacy__nest_size(nest, shape);
    uint32_t axes[DAMACY_MAX_RANK];
    int64_t seen[DAMACY_MAX_RANK];
    int64_t extent[DAMACY_MAX_RANK];
    int64_t stride[DAMACY_MAX_RANK];
    int64_t seen_stride[DAMACY_MAX_RANK];
    uint64_t room;
    uint8_t* bytes = NULL;
    uint8_t* encoded = NULL;
    uint64_t n = 0;
    damacy_status status;

    if (depth > DAMACY__MAX_SHARD_LEVELS) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "shards nested more than %u deep",
                            DAMACY__MAX_SHARD_LEVELS);
    }
    for (uint32_t i = 0; i < nest->rank; i++) {
        axes[i] = i;
    }
    (void)damacy__chain_axes(chain, nest->rank, axes);
    for (uint32_t i = 0; i < nest->rank; i++) {
        seen[i] = shape[axes[i]];
    }
    room = damacy__nest_room(nest, &chain->codecs[middle], seen);
    encoded = damacy__new(alloc, size, uint8_t);
    bytes = middle + 1 < chain->n ? damacy__new(alloc, room, uint8_t) : NULL;
    if (!encoded || (middle + 1 < chain->n && !bytes)) {
        status = damacy__fail(err, DAMACY_OOM, "a nested chunk of %" PRIu64 " bytes", size);
        goto done;
    }
    status = DAMACY_OK;
    if (bytes) {
        status = damacy__bytes_decode(nest->decoder, chain->codecs + middle + 1,
                                      chain->n - middle - 1, stored, bytes, room, &n, err);
        stored = damacy__span_of(bytes, (size_t)n);
    }
    if (status == DAMACY_OK) {
        status =
            damacy__nest_middle(nest, &chain->codecs[middle], seen, stored, encoded, depth, err);
    }
    if (status == DAMACY_OK) {
        damacy__strides(shape, nest->rank, stride);
        damacy__strides(seen, nest->rank, seen_stride);
        for (uint32_t i = 0; i < nest->rank; i++) {
            extent[i] = seen[i];
            seen[i] = stride[axes[i]];
        }
        damacy__nest_copy(nest, extent, dst, seen, encoded, seen_stride, false);
    }
done:
    damacy__free(alloc, bytes, room);
    damacy__free(alloc, encoded, size);
    return status;
}

/* Decodes one stored chunk to exactly layout->chunk_size bytes at dst. */
static damacy_status damacy__host_decode(damacy__decoder* decoder, const damacy__layout* layout,
                                         damacy__span stored, uint8_t* dst, damacy_error* err)
{
    const damacy__chain* chain = &layout->chunk_chain;
    const uint32_t middle = damacy__chain_middle(chain);
    uint64_t size = 0;

    if (layout->is_nested) {
        damacy__nest nest;
        nest.decoder = decoder;
        nest.rank = layout->rank;
        nest.item_size = layout->item_size;
        nest.fill = layout->fill;
        return damacy__nest_decode(
            &nest, chain, layout->is_sharded ? layout->sharding->chunk_shape : layout->object_shape,
            stored, dst, 0, err);
    }
    DAMACY__TRY(damacy__bytes_decode(decoder, chain->codecs + middle + 1, chain->n - middle - 1,
                                     stored, dst, layout->chunk_size, &size, err));
    if (size != layout->chunk_size) {
        return damacy__fail(err, DAMACY_DECODE, "%" PRIu64 " decoded bytes, the chunk has %" PRIu64,
                            size, layout->chunk_size);
    }
    return DAMACY_OK;
}

/* ==== src/stage/config.h ==== */
/* A configuration to a complete one: defaults filled in, everything checked, nothing allocated.
 *
 * Each message names the field, its value and the remedy. Limits that only a device knows are
 * checked when the device is opened. */

enum {
    DAMACY__MAX_THREADS = 1024,
    DAMACY__MAX_SLOTS = 64,
    DAMACY__MAX_LOOKAHEAD = 1 << 20,
    DAMACY__MAX_BATCH = 1 << 20
};

static damacy_status damacy__config_fill(const damacy_config* config, damacy_config* out,
                                         damacy_error* err);

/* CPUs that this process may use. */
static uint32_t damacy__cpu_count(void)
{
    cpu_set_t set;
    long n;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return (uint32_t)CPU_COUNT(&set);
    }
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* Bytes of the machine's memory; 4 GiB where it cannot be told. */
static uint64_t damacy__memory_size(void)
{
    const long n = sysconf(_SC_PHYS_PAGES);
    const long size = sysconf(_SC_PAGESIZE);

    return n > 0 && size > 0 ? (uint64_t)n * (uint64_t)size : UINT64_C(4) << 30;
}

static void damacy__config_default(damacy_config* c)
{
    const uint64_t quarter = damacy__memory_size() / 4;

    if (c->samples_per_batch == 0) {
        c->samples_per_batch = 1;
    }
    if (c->lookahead_samples == 0) {
        const uint64_t wanted = DAMACY__MAX(UINT64_C(4) * c->samples_per_batch, 64);
        c->lookahead_samples = (uint32_t)DAMACY__MIN(wanted, (uint64_t)DAMACY__MAX_LOOKAHEAD);
    }
    if (c->batch_slots == 0) {
        c->batch_slots = 3;
    }
    if (c->max_host_bytes == 0) {
        c->max_host_bytes = DAMACY__MIN(quarter, UINT64_C(8) << 30);
    }
    if (c->max_read_bytes == 0) {
        c->max_read_bytes = UINT64_C(4) << 20;
    }
    if (c->io_threads == 0) {
        c->io_threads = 16;
    }
    if (c->decode_threads == 0) {
        c->decode_threads = DAMACY__MIN(damacy__cpu_count(), (uint32_t)DAMACY__MAX_THREADS);
    }
}

static damacy_status damacy__config_range(const char* field, uint64_t value, uint64_t low,
                                          uint64_t high, damacy_error* err)
{
    if (value >= low && value <= high) {
        return DAMACY_OK;
    }
    return damacy__fail(err, DAMACY_INVAL,
                        "%s is %" PRIu64 "; it must lie between %" PRIu64 " and %" PRIu64, field,
                        value, low, high);
}

static damacy_status damacy__config_check_sample(const damacy_config* c, damacy_error* err)
{
    uint64_t voxels;

    DAMACY__TRY(damacy__config_range("sample_rank", c->sample_rank, 0, DAMACY_MAX_RANK, err));
    for (uint32_t i = 0; i < c->sample_rank; i++) {
        if (c->sample_shape[i] < 1) {
            return damacy__fail(err, DAMACY_INVAL,
                                "sample_shape[%u] is %" PRId64 "; it must be positive", i,
                                c->sample_shape[i]);
        }
    }
    if (!damacy__product(c->sample_shape, c->sample_rank, &voxels) ||
        !damacy__mul(voxels, 8 * (uint64_t)c->samples_per_batch, &voxels) || voxels > INT64_MAX) {
        return damacy__fail(err, DAMACY_INVAL,
                            "a batch of %u samples of this sample_shape is too large",
                            c->samples_per_batch);
    }
    return DAMACY_OK;
}

static damacy_status damacy__config_check_channels(const damacy_config* c, damacy_error* err)
{
    if (c->n_channels == 0) {
        return DAMACY_OK;
    }
    if (c->dtype != DAMACY_F32 && c->dtype != DAMACY_BF16 && c->dtype != DAMACY_F16 &&
        c->dtype != DAMACY_F64) {
        return damacy__fail(err, DAMACY_INVAL,
                            "n_channels is %u: scale and offset need a float dtype", c->n_channels);
    }
    if (c->n_channels > 1 && c->sample_rank != 0 &&
        (c->channel_axis >= c->sample_rank ||
         c->sample_shape[c->channel_axis] > (int64_t)c->n_channels)) {
        return damacy__fail(
            err, DAMACY_INVAL,
            "channel_axis is %u with n_channels %u: the sample has no such axis, or more "
            "channels than that",
            c->channel_axis, c->n_channels);
    }
    return DAMACY_OK;
}

static damacy_status damacy__config_check_modes(const damacy_config* c, damacy_error* err)
{
    const damacy_latency* latency = &c->debug_latency;

    DAMACY__TRY(damacy__config_range("dtype", (uint64_t)c->dtype, 0, DAMACY_NATIVE, err));
    DAMACY__TRY(damacy__config_range("bounds", (uint64_t)c->bounds, 0, DAMACY_BOUNDS_REFLECT, err));
    DAMACY__TRY(
        damacy__config_range("on_error", (uint64_t)c->on_error, 0, DAMACY_ON_ERROR_SKIP, err));
    DAMACY__TRY(damacy__config_range("numa", (uint64_t)c->numa, 0, DAMACY_NUMA_PIN, err));
    DAMACY__TRY(damacy__config_range("gds", (uint64_t)c->gds, 0, DAMACY_GDS_OFF, err));
    if (c->device < DAMACY_CPU || c->device > 4096) {
        return damacy__fail(err, DAMACY_INVAL,
                            "device is %d; use DAMACY_AUTO, DAMACY_CPU or DAMACY_GPU(n)",
                            c->device);
    }
    if (c->numa == DAMACY_NUMA_PIN && c->numa_node < 0) {
        return damacy__fail(err, DAMACY_INVAL, "numa_node is %d; DAMACY_NUMA_PIN needs a node",
                            c->numa_node);
    }
    if (!(isfinite(latency->mu) && isfinite(latency->sigma) && latency->sigma >= 0)) {
        return damacy__fail(err, DAMACY_INVAL,
                            "debug_latency: mu and sigma must be finite and sigma not negative");
    }
    if ((c->store.open != NULL) != (c->store.read_at != NULL) ||
        (c->store.open != NULL) != (c->store.close != NULL)) {
        return damacy__fail(err, DAMACY_INVAL,
                            "store: set all of open, read_at and close, or none");
    }
    if ((c->allocator.alloc != NULL) != (c->allocator.free != NULL)) {
        return damacy__fail(err, DAMACY_INVAL, "allocator: set both alloc and free, or none");
    }
    return DAMACY_OK;
}

/* Fills in the defaults and checks; *out is untouched on failure. config NULL: all defaults. */
static damacy_status damacy__config_fill(const damacy_config* config, damacy_config* out,
                                         damacy_error* err)
{
    damacy_config c;

    memset(&c, 0, sizeof c);
    if (config) {
        c = *config;
    }
    damacy__config_default(&c);
    DAMACY__TRY(
        damacy__config_range("samples_per_batch", c.samples_per_batch, 1, DAMACY__MAX_BATCH, err));
    DAMACY__TRY(damacy__config_check_modes(&c, err));
    DAMACY__TRY(damacy__config_check_sample(&c, err));
    DAMACY__TRY(damacy__config_check_channels(&c, err));
    if (c.lookahead_samples < c.samples_per_batch) {
        return damacy__fail(err, DAMACY_INVAL,
                            "lookahead_samples is %u; raise it to samples_per_batch, %u, or more",
                            c.lookahead_samples, c.samples_per_batch);
    }
    DAMACY__TRY(damacy__config_range("lookahead_samples", c.lookahead_samples, 1,
                                     DAMACY__MAX_LOOKAHEAD, err));
    DAMACY__TRY(damacy__config_range("batch_slots", c.batch_slots, 2, DAMACY__MAX_SLOTS, err));
    DAMACY__TRY(damacy__config_range("io_threads", c.io_threads, 1, DAMACY__MAX_THREADS, err));
    DAMACY__TRY(
        damacy__config_range("decode_threads", c.decode_threads, 1, DAMACY__MAX_THREADS, err));
    DAMACY__TRY(
        damacy__config_range("max_read_bytes", c.max_read_bytes, 4096, UINT64_C(1) << 31, err));
    DAMACY__TRY(damacy__config_range("max_host_bytes", c.max_host_bytes, UINT64_C(1) << 20,
                                     UINT64_C(1) << 62, err));
    *out = c;
    return DAMACY_OK;
}

/* ==== src/stage/core.h ==== */
/* The records that the stages of one pipeline share: samples, batch slots, and the core that holds
 * them.
 *
 * The core is counted: the handle and every held batch hold one reference, so a batch outlives
 * damacy_destroy. Everything in it that is not marked otherwise is set at create and then constant.
 */

typedef enum damacy__sample_state {
    DAMACY__SAMPLE_NEW = 0, /* its array is being fetched */
    DAMACY__SAMPLE_INDEXES, /* its indexes are being fetched */
    DAMACY__SAMPLE_SETTLED  /* ready to be planned, or failed */
} damacy__sample_state;

/* A pushed crop on its way to a batch. Queue: guarded by the core's mutex until it is settled by
 * the scheduler thread. In a slot: the scheduler's until the batch runs; then error and status are
 * guarded by the core's mutex. */
typedef struct damacy__crop {
    uint64_t number;
    damacy__array_entry* array;    /* pinned */
    damacy__index_entry** indexes; /* pinned; C order over the objects that are touched */
    const damacy__index** index_views;
    uint64_t n_indexes;
    uint64_t n_capacity;
    uint64_t n_settled; /* of the indexes */
    int64_t first_object[DAMACY_MAX_RANK];
    int64_t n_objects[DAMACY_MAX_RANK];
    damacy_interval box[DAMACY_MAX_RANK];
    uint32_t state;
    damacy_error error; /* error.status is the sample's status */
} damacy__crop;

typedef enum damacy__slot_state {
    DAMACY__SLOT_FREE = 0,
    DAMACY__SLOT_RUNNING,
    DAMACY__SLOT_READY,
    DAMACY__SLOT_HELD
} damacy__slot_state;

struct damacy__core;
struct damacy__slot;
struct damacy__gpu;

/* One read of a batch, and then its chunks. */
typedef struct damacy__read_task {
    damacy__task task;
    struct damacy__slot* slot;
    uint32_t read;      /* into plan.reads */
    uint32_t n_pending; /* atomic: chunks that still need the bytes */
    uint64_t ticket;    /* of the staging ring */
    uint8_t* bytes;     /* in the staging ring */
} damacy__read_task;

/* How the voxels of a unit come about. */
typedef enum damacy__unit_kind {
    DAMACY__UNIT_HOST = 0, /* a chunk that the host decodes */
    DAMACY__UNIT_VOXELS,   /* a chunk whose bytes are voxels */
    DAMACY__UNIT_ZSTD,     /* chunks that a GPU decodes */
    DAMACY__UNIT_LZ4,
    DAMACY__UNIT_BLOSC,
    DAMACY__UNIT_FILL,  /* a run of fills */
    DAMACY__UNIT_FINISH /* GPU only: the batch's last work */
} damacy__unit_kind;

/* A piece of work of a batch: a chunk, a run of fills, or the end. */
typedef struct damacy__unit {
    damacy__task task;
    struct damacy__slot* slot;
    uint32_t kind;
    uint32_t first; /* a chunk's number in plan.chunks; else into plan.fills */
    uint32_t n;     /* fills */

    /* GPU only: what is to be sent to the device. */
    const uint8_t* bytes;
    uint64_t size;
    bool is_space;   /* bytes lie in core.decoded and go back there; else in the read's staging */
    bool is_alone;   /* did not fit the scratch of a shared wave: gets one of its own */
    uint64_t dst;    /* address of the voxels on the device */
    uint32_t number; /* in the job table of its kind */
} damacy__unit;

DAMACY__VECTOR(damacy__read_task, damacy__read_tasks)
DAMACY__VECTOR(damacy__unit, damacy__units)

/* The place of one batch, from planning to the consumer's release. */
typedef struct damacy__slot {
    struct damacy__core* core;
    uint32_t state;      /* guarded by core.mutex */
    uint32_t n_refs;     /* guarded by core.mutex */
    uint64_t id;         /* of the batch in it; changes under core.mutex while FREE */
    uint8_t* ptr;        /* voxels */
    uint64_t size;       /* bytes at ptr */
    damacy__crop* crops; /* samples_per_batch */
    uint32_t n_samples;
    uint32_t n_delivered; /* after SKIP */
    uint32_t* delivered;  /* crops[delivered[i]] is the batch's i-th sample */
    uint32_t n_failed;    /* guarded by core.mutex */
    damacy__plan plan;
    damacy__read_tasks read_tasks;
    damacy__units chunk_units;
    damacy__units fill_units;
    damacy__unit finish_unit;
    uint64_t ready_event; /* GPU: CUevent behind the batch's last work */
    uint64_t gate_event;  /* GPU: CUevent that the next batch in this slot waits for */
    bool has_gate;        /* guarded by core.mutex */
    uint64_t next_read; /* scheduler only: reads that have been issued */
    uint64_t n_pending; /* atomic: tasks that must end before the batch is ready */
} damacy__slot;

/* Everything that is counted for damacy_stats; atomic. */
typedef struct damacy__counters {
    damacy__metric_clock metadata, plan, read, transfer, decode, assemble, pop_wait;
    uint64_t samples_pushed, batches_delivered, samples_failed;
    uint64_t chunks_touched, chunks_decoded, chunks_missing;
    uint64_t bytes_wanted, bytes_read, bytes_decoded, bytes_delivered, voxels_delivered;
} damacy__counters;

typedef struct damacy__core {
    damacy__alloc alloc;
    damacy_config config;   /* resolved; pointers in it are copies */
    damacy_dtype out_dtype; /* NATIVE until the first batch is planned */
    pid_t process;
    damacy__affine affine;
    struct damacy__gpu* gpu; /* NULL: the CPU device */
    damacy__libraries libraries;
    damacy__store store;
    damacy__catalog catalog;
    damacy__pool io;
    damacy__pool workers;
    damacy__decoder* decoders; /* one per worker */
    pthread_t scheduler;
    bool has_scheduler;
    damacy__plan_options plan_options; /* shape: set with the geometry */
    damacy__counters counters;

    damacy__mutex staging_mutex;
    uint8_t* staging;
    uint64_t staging_size;
    damacy__ring ring; /* guarded by staging_mutex */

    damacy__mutex decode_mutex;
    damacy__condition decode_wake;
    uint8_t* decoded;
    uint64_t decoded_size;
    damacy__arena arena; /* guarded by decode_mutex */

    damacy__mutex mutex;
    damacy__condition scheduler_wake;
    damacy__condition pop_wake;
    bool kicked; /* guarded by mutex, as is all that follows */
    uint32_t n_refs;
    uint32_t n_inside; /* callers inside pop */
    bool has_geometry; /* sample rank and shape are known */
    bool has_slots;    /* the slots' memory is made */
    bool is_finished;
    bool is_planning; /* samples have left the queue and are not in a running slot yet */
    bool is_stopping;
    bool has_failed;
    damacy_error failure;
    damacy__crop* queue;  /* a circular buffer of lookahead_samples */
    uint64_t queue_first; /* sequence numbers */
    uint64_t queue_next;
    damacy__slot* slots;   /* batch_slots */
    uint64_t next_planned; /* batch ids */
    uint64_t next_popped;
    uint8_t* external; /* damacy_read: the one slot's memory is the caller's */
    uint64_t external_size;
} damacy__core;

static void damacy__core_kick(damacy__core* core);
static void damacy__core_log(damacy__core* core, damacy_log_level level, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
static void damacy__crop_fail(damacy__core* core, damacy__slot* slot, uint32_t crop,
                              const damacy_error* error);

static inline bool damacy__core_stops(damacy__core* core)
{
    return __atomic_load_n(&core->is_stopping, __ATOMIC_RELAXED);
}

static inline void damacy__count(uint64_t* counter, uint64_t n)
{
    __atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

/* Wakes the scheduler thread: something that it waits for may have happened. */
static void damacy__core_kick(damacy__core* core)
{
    damacy__lock(&core->mutex);
    core->kicked = true;
    damacy__signal(&core->scheduler_wake);
    damacy__unlock(&core->mutex);
}

/* Sends a message to the pipeline's logger, if there is one. Holds no lock. */
static void damacy__core_log(damacy__core* core, damacy_log_level level, const char* format, ...)
{
    char text[512];
    char clean[512];
    va_list args;

    if (!core->config.logger.log || level < core->config.log_level) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    damacy__copy_escaped(clean, sizeof clean, text);
    core->config.logger.log(core->config.logger.user, level, clean);
}

/* Marks a sample as failed; the first error of a sample is kept. */
static void damacy__crop_fail(damacy__core* core, damacy__slot* slot, uint32_t crop,
                              const damacy_error* error)
{
    damacy__crop* c = &slot->crops[crop];
    bool first;

    damacy__lock(&core->mutex);
    first = c->error.status == DAMACY_OK;
    if (first) {
        const uint64_t number = c->number;
        c->error = *error;
        c->error.sample = number;
        slot->n_failed++;
    }
    damacy__unlock(&core->mutex);
    if (first) {
        damacy__count(&core->counters.samples_failed, 1);
        damacy__core_log(core, DAMACY_LOG_WARN, "sample %" PRIu64 ": %s %s: %s", c->number,
                         c->error.uri, c->error.chunk, c->error.message);
    }
}

/* Drops the pins; keeps the memory. */
static void damacy__crop_clear(damacy__core* core, damacy__crop* crop)
{
    for (uint64_t i = 0; i < crop->n_indexes; i++) {
        damacy__catalog_unpin_index(&core->catalog, crop->indexes[i]);
    }
    crop->n_indexes = 0;
    crop->n_settled = 0;
    if (crop->array) {
        damacy__catalog_unpin_array(&core->catalog, crop->array);
        crop->array = NULL;
    }
}

/* ==== src/stage/crop.h ==== */
/* A pushed sample until it can be planned: its array's metadata, then the indexes of all objects
 * that it touches.
 *
 * Settling never blocks: it asks the catalog, which fetches ahead, and looks again when woken. */

static bool damacy__crop_settle(damacy__core* core, damacy__crop* crop);
static void damacy__crop_deinit(damacy__core* core, damacy__crop* crop);

static void damacy__crop_deinit(damacy__core* core, damacy__crop* crop)
{
    damacy__crop_clear(core, crop);
    damacy__free(&core->alloc, crop->indexes, crop->n_capacity);
    damacy__free(&core->alloc, crop->index_views, crop->n_capacity);
}

static damacy_status damacy__crop_check(const damacy__core* core, const damacy__crop* crop,
                                        damacy_error* err)
{
    const damacy__layout* layout = crop->array->fetched.layout;

    if (layout->rank != core->plan_options.rank) {
        return damacy__fail(err, DAMACY_RANK, "the array has %u axes, the sample has %u",
                            layout->rank, core->plan_options.rank);
    }
    for (uint32_t i = 0; i < layout->rank; i++) {
        if (core->config.bounds == DAMACY_BOUNDS_REJECT &&
            (crop->box[i].begin < 0 || crop->box[i].end > layout->shape[i])) {
            return damacy__fail(err, DAMACY_INVAL,
                                "axis %u: [%" PRId64 ", %" PRId64
                                ") lies outside the array's [0, %" PRId64 ")",
                                i, crop->box[i].begin, crop->box[i].end, layout->shape[i]);
        }
        if (core->config.n_channels > 1 && i == core->config.channel_axis &&
            crop->box[i].end - crop->box[i].begin > (int64_t)core->config.n_channels) {
            return damacy__fail(err, DAMACY_INVAL, "axis %u has more channels than n_channels %u",
                                i, core->config.n_channels);
        }
    }
    return DAMACY_OK;
}

/* Voxels of one axis that the sample reads, as [first, last]; false when it reads none. */
static bool damacy__crop_reach(damacy_bounds bounds, damacy_interval box, int64_t shape,
                               int64_t* first, int64_t* last)
{
    int64_t lo = DAMACY__MAX(box.begin, 0);
    int64_t hi = DAMACY__MIN(box.end, shape) - 1;

    if (shape == 0) {
        return false;
    }
    if (bounds == DAMACY_BOUNDS_CLAMP) {
        lo = DAMACY__MIN(lo, shape - 1);
        hi = DAMACY__MAX(hi, 0);
    } else if (bounds == DAMACY_BOUNDS_REFLECT && (box.begin < 0 || box.end > shape)) {
        /* Near a border the mirror image lies within the overhang; further out take the whole axis.
         */
        const int64_t before = box.begin < 0 ? -box.begin : 0;
        const int64_t after = box.end > shape ? box.end - shape : 0;
        if (before >= shape || after >= shape || box.begin >= shape || box.end <= 0) {
            lo = 0;
            hi = shape - 1;
        } else {
            lo = DAMACY__MAX(DAMACY__MIN(lo, shape - 1 - after), 0);
            hi = DAMACY__MIN(DAMACY__MAX(hi, before), shape - 1);
        }
    }
    *first = lo;
    *last = hi;
    return lo <= hi;
}

/* Room for the pins of n objects. */
static bool damacy__crop_reserve(damacy__core* core, damacy__crop* crop, uint64_t n)
{
    damacy__index_entry** indexes;
    const damacy__index** views;

    if (n <= crop->n_capacity) {
        return true;
    }
    indexes = damacy__new(&core->alloc, n, damacy__index_entry*);
    views = damacy__new(&core->alloc, n, const damacy__index*);
    if (!indexes || !views) {
        damacy__free(&core->alloc, indexes, n);
        damacy__free(&core->alloc, views, n);
        return false;
    }
    damacy__free(&core->alloc, crop->indexes, crop->n_capacity);
    damacy__free(&core->alloc, crop->index_views, crop->n_capacity);
    crop->indexes = indexes;
    crop->index_views = views;
    crop->n_capacity = n;
    return true;
}

/* Asks for the index of every object that the sample touches. */
static damacy_status damacy__crop_ask(damacy__core* core, damacy__crop* crop, damacy_error* err)
{
    enum { DAMACY__MAX_OBJECTS = 1 << 20 };
    const damacy__layout* layout = crop->array->fetched.layout;
    int64_t at[DAMACY_MAX_RANK] = {0};
    uint64_t n = 1;

    for (uint32_t i = 0; i < layout->rank; i++) {
        int64_t first;
        int64_t last;
        if (!damacy__crop_reach(core->config.bounds, crop->box[i], layout->shape[i], &first,
                                &last)) {
            return DAMACY_OK;
        }
        crop->first_object[i] = first / layout->object_shape[i];
        crop->n_objects[i] = last / layout->object_shape[i] - crop->first_object[i] + 1;
        if (!damacy__mul(n, (uint64_t)crop->n_objects[i], &n) || n > DAMACY__MAX_OBJECTS) {
            return damacy__fail(err, DAMACY_INVAL, "the sample touches more than %d objects",
                                DAMACY__MAX_OBJECTS);
        }
    }
    if (!damacy__crop_reserve(core, crop, n)) {
        return damacy__fail(err, DAMACY_OOM, "a sample that touches %" PRIu64 " objects", n);
    }
    for (uint64_t k = 0; k < n; k++) {
        uint64_t number = 0;
        uint64_t rest = k;
        for (uint32_t i = layout->rank; i-- > 0;) {
            at[i] = crop->first_object[i] + (int64_t)(rest % (uint64_t)crop->n_objects[i]);
            rest /= (uint64_t)crop->n_objects[i];
        }
        for (uint32_t i = 0; i < layout->rank; i++) {
            number = number * damacy__div_up((uint64_t)layout->shape[i],
                                             (uint64_t)layout->object_shape[i]) +
                     (uint64_t)at[i];
        }
        DAMACY__TRY(
            damacy__catalog_index(&core->catalog, crop->array, number, &crop->indexes[k], err));
        crop->index_views[k] = &crop->indexes[k]->index;
        crop->n_indexes = k + 1;
    }
    return DAMACY_OK;
}

/* Takes the error of a failed fetch over. */
static void damacy__crop_inherit(damacy__crop* crop, const damacy_error* error)
{
    if (error) {
        crop->error = *error;
    } else {
        (void)damacy__fail(&crop->error, DAMACY_OOM, "no memory for a shard index");
    }
    crop->error.sample = crop->number;
    crop->state = DAMACY__SAMPLE_SETTLED;
}

static void damacy__crop_set_failed(damacy__crop* crop)
{
    crop->error.sample = crop->number;
    damacy__error_where(&crop->error, DAMACY_STAGE_PLAN, crop->array->uri, NULL);
    crop->state = DAMACY__SAMPLE_SETTLED;
}

/* Goes on as far as the catalog has answered; true once the sample is settled. Scheduler thread
 * only. */
static bool damacy__crop_settle(damacy__core* core, damacy__crop* crop)
{
    uint32_t state;

    if (crop->state == DAMACY__SAMPLE_NEW) {
        state = damacy__fetch_state_of(&crop->array->state);
        if (state == DAMACY__FETCHING) {
            return false;
        }
        if (state == DAMACY__FAILED) {
            damacy__crop_inherit(crop, &crop->array->error);
            return true;
        }
        if (damacy__crop_check(core, crop, &crop->error) != DAMACY_OK ||
            damacy__crop_ask(core, crop, &crop->error) != DAMACY_OK) {
            damacy__crop_set_failed(crop);
            return true;
        }
        crop->state = DAMACY__SAMPLE_INDEXES;
    }
    while (crop->state == DAMACY__SAMPLE_INDEXES && crop->n_settled < crop->n_indexes) {
        const damacy__index_entry* index = crop->indexes[crop->n_settled];
        state = damacy__fetch_state_of(&index->state);
        if (state == DAMACY__FETCHING) {
            return false;
        }
        if (state == DAMACY__FAILED) {
            damacy__crop_inherit(crop, index->error);
            return true;
        }
        crop->n_settled++;
    }
    crop->state = DAMACY__SAMPLE_SETTLED;
    return true;
}

/* ==== src/stage/host_run.h ==== */
/* Runs a planned batch on the CPU: reader threads fill staging space, workers decode chunks and
 * copy their voxels into the batch.
 *
 * A worker takes decode space while it holds nothing else, and never waits with it, so space always
 * comes back. A chunk that fails fails only the samples that touch it. */

static damacy_status damacy__run_prepare(damacy__slot* slot, damacy_error* err);
static bool damacy__run_issue(damacy__slot* slot);
static void damacy__run_done(damacy__slot* slot, uint64_t n);
static void damacy__slot_finish(damacy__slot* slot);

/* Of gpu_run.h: what happens to a chunk whose bytes have come, to a chunk decoded on the host, to fills,
 * and to a batch whose work is done, when there is a GPU. */
static void damacy__gpu_take(damacy__unit* unit);
static uint32_t damacy__gpu_classify(const damacy__core* core, const damacy__layout* layout,
                                     damacy__span* stored, damacy_error* err);

/* Ends n tasks of a batch; the last one finishes it. */
static void damacy__run_done(damacy__slot* slot, uint64_t n)
{
    if (__atomic_sub_fetch(&slot->n_pending, n, __ATOMIC_ACQ_REL) != 0) {
        return;
    }
    if (slot->core->gpu) {
        damacy__gpu_take(&slot->finish_unit);
    } else {
        damacy__slot_finish(slot);
    }
}

/* Fails every sample that a chunk has voxels for. */
static void damacy__run_chunk_fail(damacy__slot* slot, uint32_t chunk, const damacy_error* error)
{
    const damacy__plan_chunk* c = &slot->plan.chunks.items[chunk];

    for (uint32_t i = 0; i < c->n_copies; i++) {
        const uint32_t copy = slot->plan.order.items[c->first + i];
        damacy__crop_fail(slot->core, slot, slot->plan.copies.items[copy].sample, error);
    }
}

/* An error that names the chunk: its array, its object's key and, in a shard, its place there. */
static void damacy__run_error_init(const damacy__slot* slot, uint32_t chunk, damacy_stage stage,
                                   damacy_error* error)
{
    const damacy__plan_chunk* c = &slot->plan.chunks.items[chunk];
    const damacy__array_entry* array = slot->crops[c->sample].array;
    char key[sizeof error->chunk];

    memset(error, 0, sizeof *error);
    error->sample = UINT64_MAX;
    error->offset = UINT64_MAX;
    damacy__fetch_chunk_name(c->layout, c->position, key, sizeof key);
    damacy__error_where(error, stage, array->uri, key);
}

/* Gives a read's staging space back once none of its chunks needs it. */
static void damacy__run_release(damacy__read_task* read, uint32_t n)
{
    damacy__core* core = read->slot->core;

    if (__atomic_sub_fetch(&read->n_pending, n, __ATOMIC_ACQ_REL) == 0) {
        damacy__lock(&core->staging_mutex);
        damacy__ring_give(&core->ring, read->ticket);
        damacy__unlock(&core->staging_mutex);
        damacy__core_kick(core);
    }
}

/* Copies a decoded chunk's voxels to all samples that want them; decoded NULL: the fill value. */
static void damacy__run_copies(damacy__slot* slot, const damacy__plan_chunk* chunk,
                               const uint8_t* decoded)
{
    damacy__core* core = slot->core;
    uint64_t n_voxels = 0;
    const uint64_t start = damacy__now_ns();

    for (uint32_t i = 0; i < chunk->n_copies; i++) {
        damacy__copy copy = slot->plan.copies.items[slot->plan.order.items[chunk->first + i]].copy;
        copy.dst += (uint64_t)(uintptr_t)slot->ptr;
        if (decoded) {
            copy.src += (uint64_t)(uintptr_t)decoded;
        } else {
            copy.flags = DAMACY__COPY_FILL;
            copy.fill = chunk->layout->fill;
        }
        damacy__host_copy(&copy, slot->plan.axes.items + copy.first_axis, core->out_dtype,
                          core->config.n_channels ? &core->affine : NULL);
        n_voxels += copy.n_voxels_low | (uint64_t)copy.n_voxels_high << 32;
    }
    damacy__metric_add(&core->counters.assemble, damacy__now_ns() - start,
                       n_voxels * chunk->layout->item_size, n_voxels * core->plan_options.out_size);
}

/* Space for one decoded chunk; waits for other workers to give theirs back. */
static uint8_t* damacy__run_space(damacy__core* core, uint64_t size)
{
    uint64_t offset = 0;

    damacy__lock(&core->decode_mutex);
    while (!damacy__arena_take(&core->arena, damacy__align_up(size, 4096), &offset)) {
        damacy__wait(&core->decode_wake, &core->decode_mutex);
    }
    damacy__unlock(&core->decode_mutex);
    return core->decoded + offset;
}

static void damacy__run_space_back(damacy__core* core, const uint8_t* space)
{
    damacy__lock(&core->decode_mutex);
    damacy__arena_give(&core->arena, (uint64_t)(space - core->decoded));
    damacy__broadcast(&core->decode_wake);
    damacy__unlock(&core->decode_mutex);
}

/* Decodes one chunk and copies its voxels. */
static damacy_status damacy__run_decode(damacy__slot* slot, const damacy__plan_chunk* chunk,
                                        damacy__span stored, uint32_t worker, damacy_error* err)
{
    damacy__core* core = slot->core;
    uint64_t start;
    uint8_t* space;
    damacy_status status;

    if (damacy__host_decode_is_identity(chunk->layout)) {
        if (stored.size != chunk->layout->chunk_size) {
            return damacy__fail(err, DAMACY_DECODE, "%zu stored bytes; the chunk has %" PRIu64,
                                stored.size, chunk->layout->chunk_size);
        }
        damacy__run_copies(slot, chunk, stored.ptr);
        return DAMACY_OK;
    }
    space = damacy__run_space(core, chunk->layout->chunk_size);
    start = damacy__now_ns();
    status = damacy__host_decode(&core->decoders[worker], chunk->layout, stored, space, err);
    damacy__metric_add(&core->counters.decode, damacy__now_ns() - start, stored.size,
                       chunk->layout->chunk_size);
    if (status == DAMACY_OK) {
        damacy__run_copies(slot, chunk, space);
    }
    damacy__run_space_back(core, space);
    return status;
}

/* Worker thread of a pipeline with a GPU: decodes on the host what the device cannot, and passes the
 * voxels on. */
static void damacy__run_chunk_for_gpu(damacy__unit* unit, damacy__span stored, uint32_t worker)
{
    damacy__slot* slot = unit->slot;
    damacy__core* core = slot->core;
    const damacy__plan_chunk* chunk = &slot->plan.chunks.items[unit->first];
    const uint64_t start = damacy__now_ns();
    damacy_error error;
    uint8_t* space;

    damacy__run_error_init(slot, unit->first, DAMACY_STAGE_DECODE, &error);
    space = damacy__run_space(core, chunk->layout->chunk_size);
    if (damacy__host_decode(&core->decoders[worker], chunk->layout, stored, space, &error) !=
        DAMACY_OK) {
        damacy__run_space_back(core, space);
        damacy__run_chunk_fail(slot, unit->first, &error);
        damacy__run_release(&slot->read_tasks.items[chunk->read], 1);
        damacy__run_done(slot, 1);
        return;
    }
    damacy__metric_add(&core->counters.decode, damacy__now_ns() - start, stored.size,
                       chunk->layout->chunk_size);
    damacy__run_release(&slot->read_tasks.items[chunk->read], 1);
    unit->kind = DAMACY__UNIT_VOXELS;
    unit->bytes = space;
    unit->size = chunk->layout->chunk_size;
    unit->is_space = true;
    damacy__gpu_take(unit);
}

/* Worker thread: one chunk whose bytes have been read. */
static void damacy__run_chunk(void* context, uint32_t worker)
{
    damacy__unit* task = (damacy__unit*)context;
    damacy__slot* slot = task->slot;
    const damacy__plan_chunk* chunk = &slot->plan.chunks.items[task->first];
    damacy__read_task* read = &slot->read_tasks.items[chunk->read];
    const uint64_t at = chunk->offset - slot->plan.reads.items[chunk->read].offset;
    damacy_error error;

    if (slot->core->gpu && !damacy__core_stops(slot->core)) {
        damacy__run_chunk_for_gpu(task, damacy__span_of(read->bytes + at, (size_t)chunk->size), worker);
        return;
    }
    if (!damacy__core_stops(slot->core)) {
        damacy__run_error_init(slot, task->first, DAMACY_STAGE_DECODE, &error);
        if (slot->core->config.debug_bypass_decode) {
            damacy__run_copies(slot, chunk, NULL);
        } else if (damacy__run_decode(slot, chunk,
                                      damacy__span_of(read->bytes + at, (size_t)chunk->size),
                                      worker, &error) != DAMACY_OK) {
            if (error.offset != UINT64_MAX) {
                error.offset += chunk->offset;
            }
            damacy__run_chunk_fail(slot, task->first, &error);
        }
    }
    damacy__run_release(read, 1);
    damacy__run_done(slot, 1);
}

/* Worker thread: voxels that no chunk gives. */
static void damacy__run_fill(void* context, uint32_t worker)
{
    damacy__unit* task = (damacy__unit*)context;
    damacy__slot* slot = task->slot;
    damacy__core* core = slot->core;

    (void)worker;
    for (uint32_t i = 0; i < task->n && !damacy__core_stops(core); i++) {
        damacy__copy copy = slot->plan.copies.items[slot->plan.fills.items[task->first + i]].copy;
        copy.dst += (uint64_t)(uintptr_t)slot->ptr;
        damacy__host_copy(&copy, slot->plan.axes.items + copy.first_axis, core->out_dtype,
                          core->config.n_channels ? &core->affine : NULL);
    }
    damacy__run_done(slot, 1);
}

/* Opens the object and reads; the error names the first chunk of the read. */
static damacy_status damacy__run_fetch(damacy__read_task* task, damacy_error* err)
{
    const damacy__slot* slot = task->slot;
    damacy__core* core = slot->core;
    const damacy__plan_read* read = &slot->plan.reads.items[task->read];
    const damacy__plan_chunk* chunk =
        &slot->plan.chunks.items[slot->plan.by_place.items[read->first]];

    return damacy__fetch_bytes(&core->store, &slot->crops[chunk->sample].array->fetched,
                               chunk->position, chunk->index, read->offset, task->bytes, read->size,
                               err);
}

/* Passes a chunk on whose bytes have been read: to a worker, or to the GPU if that can decode it. */
static void damacy__run_chunk_arrived(damacy__read_task* task, uint32_t chunk)
{
    damacy__slot* slot = task->slot;
    damacy__core* core = slot->core;
    damacy__unit* unit = &slot->chunk_units.items[chunk];
    const damacy__plan_chunk* c = &slot->plan.chunks.items[chunk];
    damacy__span stored;
    damacy_error error;

    if (!core->gpu) {
        damacy__pool_submit(&core->workers, &unit->task, DAMACY__NORMAL);
        return;
    }
    stored = damacy__span_of(task->bytes + (c->offset - slot->plan.reads.items[task->read].offset),
                             (size_t)c->size);
    damacy__run_error_init(slot, chunk, DAMACY_STAGE_DECODE, &error);
    unit->kind = damacy__gpu_classify(core, c->layout, &stored, &error);
    if (unit->kind == DAMACY__UNIT_FILL) { /* refused */
        damacy__run_chunk_fail(slot, chunk, &error);
        damacy__run_release(task, 1);
        damacy__run_done(slot, 1);
    } else if (unit->kind == DAMACY__UNIT_HOST) {
        damacy__pool_submit(&core->workers, &unit->task, DAMACY__NORMAL);
    } else {
        unit->bytes = stored.ptr;
        unit->size = stored.size;
        unit->is_space = false;
        damacy__gpu_take(unit);
    }
}

/* Reader thread: one coalesced read, then a task for each of its chunks. */
static void damacy__run_read(void* context, uint32_t worker)
{
    damacy__read_task* task = (damacy__read_task*)context;
    damacy__slot* slot = task->slot;
    damacy__core* core = slot->core;
    const damacy__plan_read* read = &slot->plan.reads.items[task->read];
    const uint64_t start = damacy__now_ns();
    const uint32_t n_chunks = read->n_chunks;
    damacy_status status = DAMACY_OK;
    damacy_error error;
    uint64_t wanted = 0;

    (void)worker;
    damacy__run_error_init(slot, slot->plan.by_place.items[read->first], DAMACY_STAGE_READ, &error);
    if (!damacy__core_stops(core)) {
        status = damacy__run_fetch(task, &error);
    }
    for (uint32_t i = 0; i < n_chunks; i++) {
        wanted += slot->plan.chunks.items[slot->plan.by_place.items[read->first + i]].size;
    }
    if (status == DAMACY_OK) {
        damacy__metric_add(&core->counters.read, damacy__now_ns() - start, read->size, wanted);
        damacy__count(&core->counters.bytes_read, read->size);
        for (uint32_t i = 0; i < n_chunks; i++) {
            damacy__run_chunk_arrived(task, slot->plan.by_place.items[read->first + i]);
        }
        return; /* the chunks may have ended already: the slot is not ours any more */
    }
    for (uint32_t i = 0; i < n_chunks; i++) {
        damacy__run_chunk_fail(slot, slot->plan.by_place.items[read->first + i], &error);
    }
    damacy__run_release(task, n_chunks);
    damacy__run_done(slot, n_chunks);
}

/* Makes the tasks of a planned batch; nothing runs yet. */
static damacy_status damacy__run_prepare(damacy__slot* slot, damacy_error* err)
{
    enum { DAMACY__FILLS_PER_TASK = 32 };
    damacy__alloc* alloc = &slot->core->alloc;
    const damacy__plan* plan = &slot->plan;

    slot->read_tasks.n = slot->chunk_units.n = slot->fill_units.n = 0;
    slot->next_read = 0;
    if (!damacy__read_tasks_reserve(&slot->read_tasks, alloc, plan->reads.n + 1) ||
        !damacy__units_reserve(&slot->chunk_units, alloc, plan->chunks.n + 1) ||
        !damacy__units_reserve(&slot->fill_units, alloc, plan->fills.n + 1)) {
        return damacy__fail(err, DAMACY_OOM, "tasks of a batch of %" PRIu64 " chunks", plan->chunks.n);
    }
    for (uint32_t i = 0; i < plan->reads.n; i++) {
        damacy__read_task* task = damacy__read_tasks_push(&slot->read_tasks, alloc);
        task->task.function = damacy__run_read;
        task->task.context = task;
        task->slot = slot;
        task->read = i;
        task->n_pending = plan->reads.items[i].n_chunks;
    }
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        damacy__unit* unit = damacy__units_push(&slot->chunk_units, alloc);
        unit->task.function = damacy__run_chunk;
        unit->task.context = unit;
        unit->slot = slot;
        unit->first = i;
    }
    for (uint32_t i = 0; i < plan->fills.n; i += DAMACY__FILLS_PER_TASK) {
        damacy__unit* unit = damacy__units_push(&slot->fill_units, alloc);
        unit->task.function = damacy__run_fill;
        unit->task.context = unit;
        unit->slot = slot;
        unit->kind = DAMACY__UNIT_FILL;
        unit->first = i;
        unit->n = (uint32_t)DAMACY__MIN(plan->fills.n - i, (uint64_t)DAMACY__FILLS_PER_TASK);
    }
    memset(&slot->finish_unit, 0, sizeof slot->finish_unit);
    slot->finish_unit.slot = slot;
    slot->finish_unit.kind = DAMACY__UNIT_FINISH;
    /* One more than there are tasks: the scheduler's own share, until it has issued them all. */
    slot->n_pending = 1 + plan->chunks.n + slot->fill_units.n;
    return DAMACY_OK;
}

/* More stored bytes than any encoder makes of a chunk: a damaged or hostile index. */
static bool damacy__run_is_absurd(const damacy__plan_chunk* chunk)
{
    return chunk->size > 2 * chunk->layout->chunk_size + (1 << 20);
}

/* Fails the chunks of a read that cannot be done. */
static void damacy__run_refuse(damacy__slot* slot, const damacy__plan_read* read)
{
    damacy__core* core = slot->core;

    for (uint32_t i = 0; i < read->n_chunks; i++) {
        const uint32_t chunk = slot->plan.by_place.items[read->first + i];
        const damacy__plan_chunk* c = &slot->plan.chunks.items[chunk];
        damacy_error error;
        damacy__run_error_init(slot, chunk, DAMACY_STAGE_PLAN, &error);
        if (damacy__run_is_absurd(c)) {
            (void)damacy__fail(&error, DAMACY_DECODE,
                               "%" PRIu64 " stored bytes are too many for a chunk of %" PRIu64,
                               c->size, c->layout->chunk_size);
        } else {
            (void)damacy__fail(&error, DAMACY_BUDGET,
                               "a chunk of %" PRIu64 " stored and %" PRIu64
                               " decoded bytes; max_host_bytes %" PRIu64 " leaves room for %" PRIu64
                               " and %" PRIu64,
                               c->size, c->layout->chunk_size, core->config.max_host_bytes,
                               core->staging_size, core->decoded_size);
        }
        damacy__run_chunk_fail(slot, chunk, &error);
    }
}

static bool damacy__run_fits(const damacy__slot* slot, const damacy__plan_read* read)
{
    const damacy__core* core = slot->core;

    for (uint32_t i = 0; i < read->n_chunks; i++) {
        const damacy__plan_chunk* c =
            &slot->plan.chunks.items[slot->plan.by_place.items[read->first + i]];
        if (damacy__run_is_absurd(c) ||
            (damacy__align_up(c->layout->chunk_size, 4096) > core->decoded_size &&
             !damacy__host_decode_is_identity(c->layout))) {
            return false;
        }
    }
    return damacy__align_up(read->size, 64) <= core->staging_size;
}

/* Issues reads while staging space lasts; true once all are issued. Scheduler thread only. */
static bool damacy__run_issue(damacy__slot* slot)
{
    damacy__core* core = slot->core;

    for (; slot->next_read < slot->plan.issue.n; slot->next_read++) {
        damacy__read_task* task = &slot->read_tasks.items[slot->plan.issue.items[slot->next_read]];
        const damacy__plan_read* read = &slot->plan.reads.items[task->read];
        uint64_t offset = 0;
        bool ok;
        if (!damacy__run_fits(slot, read)) {
            damacy__run_refuse(slot, read);
            damacy__run_done(slot, read->n_chunks);
            continue;
        }
        damacy__lock(&core->staging_mutex);
        ok = damacy__ring_take(&core->ring, damacy__align_up(DAMACY__MAX(read->size, 1), 64),
                               &offset, &task->ticket);
        damacy__unlock(&core->staging_mutex);
        if (!ok) {
            return false;
        }
        task->bytes = core->staging + offset;
        damacy__pool_submit(&core->io, &task->task, DAMACY__NORMAL);
    }
    return true;
}

/* A record that overwrites one sample's voxels with its array's fill value, or with zeros when that is
 * not known. One axis, over the whole sample; dst is relative to the batch. */
static damacy__plan_copy damacy__slot_fill_copy(const damacy__slot* slot, uint32_t crop)
{
    const damacy__core* core = slot->core;
    const uint64_t size = slot->size / core->config.samples_per_batch;
    const uint64_t n_voxels = size / core->plan_options.out_size;
    const damacy__crop* c = &slot->crops[crop];
    damacy__plan_copy fill;

    memset(&fill, 0, sizeof fill);
    fill.copy.dst = crop * size;
    fill.copy.flags = DAMACY__COPY_FILL;
    fill.copy.src_dtype = (uint32_t)core->out_dtype;
    fill.copy.n_axes = 1;
    fill.copy.channel_axis = DAMACY__NO_CHANNEL;
    fill.copy.n_voxels_low = (uint32_t)n_voxels;
    fill.copy.n_voxels_high = (uint32_t)(n_voxels >> 32);
    if (c->array && damacy__fetch_state_of(&c->array->state) == DAMACY__READY &&
        (core->config.dtype != DAMACY_NATIVE ||
         c->array->fetched.layout->dtype == core->out_dtype)) {
        fill.copy.src_dtype = (uint32_t)c->array->fetched.layout->dtype;
        fill.copy.fill = c->array->fetched.layout->fill;
    }
    return fill;
}

/* Hands a batch to poppers; its voxels are final. */
static void damacy__slot_publish(damacy__slot* slot)
{
    damacy__core* core = slot->core;

    for (uint32_t i = 0; i < slot->n_samples; i++) {
        damacy__crop_clear(core, &slot->crops[i]);
    }
    damacy__lock(&core->mutex);
    slot->state = DAMACY__SLOT_READY;
    core->kicked = true;
    damacy__broadcast(&core->pop_wake);
    damacy__signal(&core->scheduler_wake);
    damacy__unlock(&core->mutex);
}

/* Applies the error policy and publishes. Runs on the thread that ended last. */
static void damacy__slot_finish(damacy__slot* slot)
{
    damacy__core* core = slot->core;
    const uint64_t sample_size = slot->size / core->config.samples_per_batch;

    slot->n_delivered = 0;
    for (uint32_t i = 0; i < slot->n_samples; i++) {
        const bool failed = slot->crops[i].error.status != DAMACY_OK;
        if (failed && core->config.on_error == DAMACY_ON_ERROR_SKIP) {
            continue;
        }
        if (failed && core->config.on_error == DAMACY_ON_ERROR_FILL && !damacy__core_stops(core)) {
            const damacy__plan_copy fill = damacy__slot_fill_copy(slot, i);
            damacy__copy copy = fill.copy;
            damacy__axis axis;
            axis.src_stride = 0;
            axis.dst_stride = 1;
            axis.extent = copy.n_voxels_low | (uint64_t)copy.n_voxels_high << 32;
            copy.dst += (uint64_t)(uintptr_t)slot->ptr;
            damacy__host_copy(&copy, &axis, core->out_dtype, NULL);
        }
        if (slot->n_delivered != i) {
            memmove(slot->ptr + slot->n_delivered * sample_size, slot->ptr + i * sample_size,
                    sample_size);
        }
        slot->delivered[slot->n_delivered++] = i;
    }
    damacy__slot_publish(slot);
}

/* ==== src/stage/batch.h ==== */
/* What a consumer does with a batch: look, hold, export, release.
 *
 * A batch is named by its core and its id. The id is never used twice, so a stale name is noticed
 * as long as the pipeline or another batch of it lives. */

static damacy__slot* damacy__batch_slot(damacy__core* core, uint64_t id);
static void damacy__core_unref(damacy__core* core);
static void damacy__core_free(damacy__core* core);

/* The slot that holds a batch, or NULL when it was released. Holds the mutex. */
static damacy__slot* damacy__batch_slot(damacy__core* core, uint64_t id)
{
    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        if (core->slots[i].state == DAMACY__SLOT_HELD && core->slots[i].id == id) {
            return &core->slots[i];
        }
    }
    return NULL;
}

/* Drops a reference to the core. */
static void damacy__core_unref(damacy__core* core)
{
    bool last;

    damacy__lock(&core->mutex);
    last = --core->n_refs == 0;
    damacy__unlock(&core->mutex);
    if (last) {
        damacy__core_free(core);
    }
}

/* Adds a reference to a batch. */
static damacy_status damacy__batch_hold(damacy_batch batch)
{
    damacy__slot* slot;

    if (!batch.core) {
        return DAMACY_INVAL;
    }
    damacy__lock(&batch.core->mutex);
    slot = damacy__batch_slot(batch.core, batch.id);
    if (slot) {
        slot->n_refs++;
        batch.core->n_refs++;
    }
    damacy__unlock(&batch.core->mutex);
    return slot ? DAMACY_OK : DAMACY_INVAL;
}

/* Drops a reference to a batch; the last one frees its slot. */
static damacy_status damacy__batch_drop(damacy_batch batch)
{
    damacy__slot* slot;

    if (!batch.core) {
        return DAMACY_INVAL;
    }
    damacy__lock(&batch.core->mutex);
    slot = damacy__batch_slot(batch.core, batch.id);
    if (slot && --slot->n_refs == 0) {
        slot->state = DAMACY__SLOT_FREE;
        batch.core->kicked = true;
        damacy__signal(&batch.core->scheduler_wake);
        damacy__broadcast(&batch.core->pop_wake);
    }
    damacy__unlock(&batch.core->mutex);
    if (!slot) {
        return DAMACY_INVAL;
    }
    damacy__core_unref(batch.core);
    return DAMACY_OK;
}

static damacy_status damacy__batch_describe(damacy_batch batch, damacy_batch_info_t* out)
{
    damacy__core* core = batch.core;
    damacy__slot* slot;
    damacy_batch_info_t info;

    if (!core || !out) {
        return DAMACY_INVAL;
    }
    memset(&info, 0, sizeof info);
    damacy__lock(&core->mutex);
    slot = damacy__batch_slot(core, batch.id);
    if (slot) {
        info.ptr = slot->ptr;
        info.size = slot->size / core->config.samples_per_batch * slot->n_delivered;
        info.dtype = core->out_dtype;
        info.device = DAMACY_CPU;
        info.rank = core->plan_options.rank + 1;
        info.shape[0] = slot->n_delivered;
        memcpy(info.shape + 1, core->plan_options.shape, core->plan_options.rank * sizeof(int64_t));
        info.id = slot->id;
        info.n_failed = slot->n_failed;
    }
    damacy__unlock(&core->mutex);
    if (!slot) {
        return DAMACY_INVAL;
    }
    *out = info;
    return DAMACY_OK;
}

/* ---- DLPack ---- */

/* Both forms of an exported tensor, with the arrays that it points to. */
typedef struct damacy__export {
    damacy_dl_managed_versioned versioned;
    damacy_dl_managed legacy;
    damacy_batch batch;
    int64_t shape[DAMACY_MAX_RANK + 1];
    int64_t strides[DAMACY_MAX_RANK + 1];
} damacy__export;

static void damacy__export_free(damacy__export* tensor)
{
    const damacy_batch batch = tensor->batch;
    damacy__core* core = batch.core;

    damacy__lock(&core->mutex);
    core->n_refs++; /* the allocator lives in the core */
    damacy__unlock(&core->mutex);
    (void)damacy__batch_drop(batch);
    damacy__free(&core->alloc, tensor, 1);
    damacy__core_unref(core);
}

static void damacy__export_deleter(damacy_dl_managed_versioned* self)
{
    if (self) {
        damacy__export_free((damacy__export*)self->manager_ctx);
    }
}

static void damacy__export_legacy_deleter(damacy_dl_managed* self)
{
    if (self) {
        damacy__export_free((damacy__export*)self->manager_ctx);
    }
}

/* DLPack's type code of each type. */
static uint8_t damacy__export_code(damacy_dtype dtype)
{
    switch (dtype) {
    case DAMACY_BF16:
        return 4;
    case DAMACY_F32:
    case DAMACY_F16:
    case DAMACY_F64:
        return 2;
    case DAMACY_BOOL:
        return 6;
    case DAMACY_I8:
    case DAMACY_I16:
    case DAMACY_I32:
    case DAMACY_I64:
        return 0;
    default:
        return 1;
    }
}

static void damacy__export_fill(damacy__export* tensor, const damacy_batch_info_t* info)
{
    damacy_dl_tensor* t = &tensor->versioned.dl_tensor;
    int64_t stride = 1;

    for (uint32_t i = info->rank; i-- > 0;) {
        tensor->shape[i] = info->shape[i];
        tensor->strides[i] = stride;
        stride *= info->shape[i];
    }
    t->data = info->ptr;
    t->device.device_type = info->device == DAMACY_CPU ? 1 : 2;
    t->device.device_id = info->device == DAMACY_CPU ? 0 : info->device - 1;
    t->ndim = (int32_t)info->rank;
    t->dtype.code = damacy__export_code(info->dtype);
    t->dtype.bits = (uint8_t)(8 * damacy__dtype_size(info->dtype));
    t->dtype.lanes = 1;
    t->shape = tensor->shape;
    t->strides = tensor->strides;
    tensor->legacy.dl_tensor = *t;
    tensor->legacy.manager_ctx = tensor;
    tensor->legacy.deleter = damacy__export_legacy_deleter;
    tensor->versioned.version.major = 1;
    tensor->versioned.manager_ctx = tensor;
    tensor->versioned.deleter = damacy__export_deleter;
}

/* A tensor that holds a reference of its own. */
static damacy_status damacy__export_make(damacy_batch batch, damacy__export** out,
                                         damacy_error* err)
{
    damacy_batch_info_t info;
    damacy__export* tensor;

    if (damacy__batch_hold(batch) != DAMACY_OK) {
        return damacy__fail(err, DAMACY_INVAL, "the batch was released");
    }
    (void)damacy__batch_describe(batch, &info);
    tensor = damacy__new(&batch.core->alloc, 1, damacy__export);
    if (!tensor) {
        (void)damacy__batch_drop(batch);
        return damacy__fail(err, DAMACY_OOM, "DLPack tensor");
    }
    tensor->batch = batch;
    damacy__export_fill(tensor, &info);
    *out = tensor;
    return DAMACY_OK;
}

/* ==== src/pipeline.h ==== */
/* The order of the stages: push fills a queue, one scheduler thread settles samples, plans batches
 * and issues reads, pools do the work, pop waits for slots.
 *
 * The scheduler never blocks on storage or on a consumer: it looks at everything that may have
 * changed, does what it can, and sleeps until it is kicked. */

static void* damacy__scheduler_main(void* context);
static damacy_status damacy__pipeline_push(damacy__core* core, const damacy_sample* sample,
                                           damacy_error* err);
static damacy_status damacy__pipeline_pop(damacy__core* core, bool wait,
                                          const uint64_t* deadline_ns, damacy_batch* out,
                                          damacy_error* err);

/* Samples of the next batch that is not planned yet; 0: it cannot be planned now. Holds the mutex.
 */
static uint32_t damacy__scheduler_batch_size(const damacy__core* core)
{
    const uint64_t n = core->queue_next - core->queue_first;

    if (n >= core->config.samples_per_batch) {
        return core->config.samples_per_batch;
    }
    return core->is_finished ? (uint32_t)n : 0;
}

static damacy__slot* damacy__scheduler_free_slot(damacy__core* core)
{
    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        if (core->slots[i].state == DAMACY__SLOT_FREE) {
            return &core->slots[i];
        }
    }
    return NULL;
}

/* The slot in which a batch is made or ready. Holds the mutex. */
static damacy__slot* damacy__pop_slot(damacy__core* core, uint64_t id)
{
    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        damacy__slot* slot = &core->slots[i];
        if (slot->id == id &&
            (slot->state == DAMACY__SLOT_READY || slot->state == DAMACY__SLOT_RUNNING)) {
            return slot;
        }
    }
    return NULL;
}

/* Settles what the catalog has answered; true when the first n samples are settled. The entries
 * between queue_first and `end` belong to this thread, so the mutex is not needed. */
static bool damacy__scheduler_settle(damacy__core* core, uint64_t first, uint64_t end, uint32_t n)
{
    bool all = true;

    for (uint64_t i = first; i != end && !damacy__core_stops(core); i++) {
        damacy__crop* crop = &core->queue[i % core->config.lookahead_samples];
        if (crop->state != DAMACY__SAMPLE_SETTLED && !damacy__crop_settle(core, crop) &&
            i - first < n) {
            all = false;
        }
    }
    return all;
}

/* Makes the memory of all slots, once the shape and the type of batches are known. */
static damacy_status damacy__scheduler_make_slots(damacy__core* core, damacy_error* err)
{
    uint64_t voxels;
    uint64_t size;
    uint64_t total;

    core->plan_options.out_size = (uint32_t)damacy__dtype_size(core->out_dtype);
    if (!damacy__product(core->plan_options.shape, core->plan_options.rank, &voxels) ||
        !damacy__mul(voxels, (uint64_t)core->plan_options.out_size * core->config.samples_per_batch,
                     &size) ||
        !damacy__mul(size, core->config.batch_slots, &total)) {
        return damacy__fail(err, DAMACY_BUDGET, "the size of a batch does not fit 64 bits");
    }
    if (core->external && size != core->external_size) {
        return damacy__fail(err, DAMACY_INVAL, "dst has %" PRIu64 " bytes, the box %" PRIu64,
                            core->external_size, size);
    }
    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        damacy__slot* slot = &core->slots[i];
        slot->size = size;
        slot->ptr = core->external
                        ? core->external
                        : (uint8_t*)damacy__alloc_take(&core->alloc, size ? size : 1, 1, 4096);
        if (!slot->ptr) {
            return damacy__fail(err, DAMACY_BUDGET,
                                "%u batch slots of %" PRIu64 " bytes and %" PRIu64
                                " bytes of buffers do not fit max_host_bytes %" PRIu64,
                                core->config.batch_slots, size,
                                core->staging_size + core->decoded_size,
                                core->config.max_host_bytes);
        }
    }
    return DAMACY_OK;
}

/* Output type of a NATIVE pipeline: that of the first sample whose array is known. */
static void damacy__scheduler_choose_dtype(damacy__core* core, const damacy__slot* slot)
{
    for (uint32_t i = 0; i < slot->n_samples && core->out_dtype == DAMACY_NATIVE; i++) {
        const damacy__crop* crop = &slot->crops[i];
        if (crop->array && damacy__fetch_state_of(&crop->array->state) == DAMACY__READY) {
            core->out_dtype = crop->array->fetched.layout->dtype;
        }
    }
}

/* Adds each good sample to the plan; one that fails is marked and left out. */
static damacy_status damacy__scheduler_plan(damacy__core* core, damacy__slot* slot,
                                            damacy_error* err)
{
    const uint64_t start = damacy__now_ns();

    damacy__plan_clear(&slot->plan);
    for (uint32_t i = 0; i < slot->n_samples; i++) {
        damacy__crop* crop = &slot->crops[i];
        damacy__view view;
        if (crop->error.status != DAMACY_OK) {
            slot->n_failed++;
            damacy__count(&core->counters.samples_failed, 1);
            continue;
        }
        if (core->config.dtype == DAMACY_NATIVE &&
            crop->array->fetched.layout->dtype != core->out_dtype) {
            (void)damacy__fail(&crop->error, DAMACY_DTYPE,
                               "the array is %s, but batches took the type of the first array, %s",
                               damacy__dtype_str(crop->array->fetched.layout->dtype),
                               damacy__dtype_str(core->out_dtype));
            damacy__crop_set_failed(crop);
            slot->n_failed++;
            damacy__count(&core->counters.samples_failed, 1);
            continue;
        }
        view.layout = crop->array->fetched.layout;
        view.box = crop->box;
        view.indexes = crop->index_views;
        view.first_object = crop->first_object;
        view.n_objects = crop->n_objects;
        view.sample = i;
        DAMACY__TRY(
            damacy__plan_sample(&slot->plan, &core->alloc, &core->plan_options, &view, err));
    }
    DAMACY__TRY(damacy__plan_reads_make(&slot->plan, &core->alloc, &core->plan_options, err));
    DAMACY__TRY(damacy__run_prepare(slot, err));
    damacy__metric_add(&core->counters.plan, damacy__now_ns() - start, 0, 0);
    damacy__count(&core->counters.chunks_touched, slot->plan.n_touched);
    damacy__count(&core->counters.chunks_decoded, slot->plan.chunks.n);
    damacy__count(&core->counters.chunks_missing, slot->plan.n_missing);
    damacy__count(&core->counters.bytes_wanted, slot->plan.bytes_wanted);
    damacy__count(&core->counters.bytes_decoded, slot->plan.bytes_decoded);
    damacy__count(&core->counters.bytes_delivered, slot->plan.bytes_delivered);
    return DAMACY_OK;
}

/* Stops the pipeline with an error that is not one sample's. */
static void damacy__scheduler_fail(damacy__core* core, const damacy_error* error)
{
    damacy__lock(&core->mutex);
    core->is_planning = false;
    if (!core->has_failed) {
        core->has_failed = true;
        core->failure = *error;
    }
    damacy__broadcast(&core->pop_wake);
    damacy__unlock(&core->mutex);
}

/* Moves n settled samples into a free slot and starts its tasks. The mutex is not held. */
static void damacy__scheduler_start(damacy__core* core, damacy__slot* slot, uint64_t first,
                                    uint32_t n)
{
    damacy_error error;

    memset(&error, 0, sizeof error);
    error.sample = error.offset = UINT64_MAX;
    error.stage = DAMACY_STAGE_PLAN;
    for (uint32_t i = 0; i < n; i++) {
        damacy__crop* from = &core->queue[(first + i) % core->config.lookahead_samples];
        damacy__crop used;
        damacy__crop_clear(core, &slot->crops[i]);
        used = slot->crops[i];
        slot->crops[i] = *from;
        *from = used;
    }
    damacy__lock(&core->mutex);
    core->queue_first += n;
    core->is_planning = true;
    damacy__unlock(&core->mutex);
    slot->n_samples = n;
    slot->n_failed = 0;
    damacy__scheduler_choose_dtype(core, slot);
    if (!core->has_slots) {
        if (core->out_dtype == DAMACY_NATIVE) {
            core->out_dtype = DAMACY_U8; /* every sample failed: any type will do */
        }
        if (damacy__scheduler_make_slots(core, &error) != DAMACY_OK) {
            damacy__scheduler_fail(core, &error);
            return;
        }
        core->has_slots = true;
    }
    if (damacy__scheduler_plan(core, slot, &error) != DAMACY_OK) {
        damacy__scheduler_fail(core, &error);
        return;
    }
    damacy__lock(&core->mutex);
    core->is_planning = false;
    slot->id = core->next_planned++;
    slot->state = DAMACY__SLOT_RUNNING;
    damacy__unlock(&core->mutex);
    for (uint32_t i = 0; i < slot->fill_units.n; i++) {
        if (core->gpu) {
            damacy__gpu_take(&slot->fill_units.items[i]);
        } else {
            damacy__pool_submit(&core->workers, &slot->fill_units.items[i].task, DAMACY__NORMAL);
        }
    }
}

/* Issues the reads of running batches, oldest first; a batch waits for those before it. */
static void damacy__scheduler_issue(damacy__core* core, uint64_t* next_issued)
{
    while (*next_issued < core->next_planned) {
        damacy__slot* slot;
        damacy__lock(&core->mutex);
        slot = damacy__pop_slot(core, *next_issued);
        damacy__unlock(&core->mutex);
        if (!slot || !damacy__run_issue(slot)) {
            return;
        }
        ++*next_issued;
        damacy__run_done(slot, 1);
    }
}

/* One look at everything; returns whether to look again at once. */
static bool damacy__scheduler_step(damacy__core* core, uint64_t* next_issued)
{
    damacy__slot* slot;
    uint64_t first;
    uint64_t end;
    uint32_t n;
    bool settled;

    damacy__lock(&core->mutex);
    first = core->queue_first;
    end = core->queue_next;
    n = damacy__scheduler_batch_size(core);
    slot = core->has_failed ? NULL : damacy__scheduler_free_slot(core);
    damacy__unlock(&core->mutex);
    settled = damacy__scheduler_settle(core, first, end, n);
    if (n > 0 && settled && slot && !damacy__core_stops(core)) {
        damacy__scheduler_start(core, slot, first, n);
        damacy__scheduler_issue(core, next_issued);
        return true;
    }
    damacy__scheduler_issue(core, next_issued);
    return false;
}

static void* damacy__scheduler_main(void* context)
{
    damacy__core* core = (damacy__core*)context;
    uint64_t next_issued = 0;

    damacy__lock(&core->mutex);
    while (!core->is_stopping) {
        if (!core->kicked) {
            damacy__wait(&core->scheduler_wake, &core->mutex);
            continue;
        }
        core->kicked = false;
        damacy__unlock(&core->mutex);
        while (damacy__scheduler_step(core, &next_issued)) {
        }
        damacy__lock(&core->mutex);
    }
    damacy__unlock(&core->mutex);
    return NULL;
}

/* Fixes the shape of samples, from the configuration or the first sample. Holds the mutex. */
static void damacy__pipeline_geometry(damacy__core* core, uint32_t rank, const int64_t* shape)
{
    core->plan_options.rank = rank;
    memcpy(core->plan_options.shape, shape, rank * sizeof shape[0]);
    core->has_geometry = true;
}

/* Checks a sample against the pipeline's shape. Holds the mutex. */
static damacy_status damacy__pipeline_check(damacy__core* core, const damacy_sample* sample,
                                            damacy_error* err)
{
    int64_t shape[DAMACY_MAX_RANK];
    uint64_t voxels;

    for (uint32_t i = 0; i < sample->rank; i++) {
        const damacy_interval box = sample->box[i];
        const int64_t limit = INT64_MAX / 4;
        if (box.begin < -limit || box.end > limit || box.begin >= box.end) {
            return damacy__fail(err, DAMACY_INVAL,
                                "axis %u: [%" PRId64 ", %" PRId64 ") is no interval", i, box.begin,
                                box.end);
        }
        shape[i] = box.end - box.begin;
    }
    if (!core->has_geometry) {
        if (!damacy__product(shape, sample->rank, &voxels) ||
            !damacy__mul(voxels, 8 * (uint64_t)core->config.samples_per_batch, &voxels) ||
            voxels > INT64_MAX) {
            return damacy__fail(err, DAMACY_INVAL, "a batch of %u such samples is too large",
                                core->config.samples_per_batch);
        }
        damacy__pipeline_geometry(core, sample->rank, shape);
        return DAMACY_OK;
    }
    if (sample->rank != core->plan_options.rank) {
        return damacy__fail(err, DAMACY_RANK, "the sample has %u axes, the pipeline %u",
                            sample->rank, core->plan_options.rank);
    }
    for (uint32_t i = 0; i < sample->rank; i++) {
        if (shape[i] != core->plan_options.shape[i]) {
            return damacy__fail(err, DAMACY_INVAL,
                                "axis %u has %" PRId64
                                " voxels, samples of this pipeline have %" PRId64,
                                i, shape[i], core->plan_options.shape[i]);
        }
    }
    return DAMACY_OK;
}

/* Takes one sample; the caller kicks the scheduler afterwards. */
static damacy_status damacy__pipeline_push(damacy__core* core, const damacy_sample* sample,
                                           damacy_error* err)
{
    damacy__array_entry* array = NULL;
    damacy_status status;

    if (!sample->uri || sample->uri[0] == '\0') {
        return damacy__fail(err, DAMACY_INVAL, "the sample has no uri");
    }
    if (sample->rank > DAMACY_MAX_RANK) {
        return damacy__fail(err, DAMACY_RANK, "the sample has %u axes; %d are possible",
                            sample->rank, DAMACY_MAX_RANK);
    }
    damacy__lock(&core->mutex);
    if (core->is_stopping || core->has_failed || core->is_finished) {
        status = damacy__fail(err, DAMACY_SHUTDOWN, "the pipeline %s",
                              core->has_failed ? "has failed" : "takes no more samples");
    } else if (core->queue_next - core->queue_first >= core->config.lookahead_samples) {
        status = damacy__fail(err, DAMACY_AGAIN, "%u samples are queued",
                              core->config.lookahead_samples);
    } else {
        status = damacy__pipeline_check(core, sample, err);
    }
    damacy__unlock(&core->mutex);
    if (status != DAMACY_OK) {
        return status;
    }
    DAMACY__TRY(damacy__catalog_array(&core->catalog, sample->uri, &array, err));
    damacy__lock(&core->mutex);
    if (core->queue_next - core->queue_first >= core->config.lookahead_samples) {
        status = damacy__fail(err, DAMACY_AGAIN, "%u samples are queued",
                              core->config.lookahead_samples);
    } else {
        damacy__crop* crop = &core->queue[core->queue_next % core->config.lookahead_samples];
        memset(&crop->error, 0, sizeof crop->error);
        crop->error.offset = UINT64_MAX;
        crop->number = core->queue_next++;
        crop->array = array;
        crop->state = DAMACY__SAMPLE_NEW;
        memcpy(crop->box, sample->box, sample->rank * sizeof sample->box[0]);
        array = NULL;
    }
    damacy__unlock(&core->mutex);
    if (array) {
        damacy__catalog_unpin_array(&core->catalog, array);
    }
    return status;
}

/* Whether the next batch can come without another call of the user. Holds the mutex. */
static bool damacy__pop_may_come(damacy__core* core)
{
    if (damacy__pop_slot(core, core->next_popped)) {
        return true;
    }
    return core->is_planning ||
           (damacy__scheduler_batch_size(core) > 0 && damacy__scheduler_free_slot(core) != NULL);
}

/* Hands a ready batch out, or its failure. Holds the mutex. */
static damacy_status damacy__pop_take(damacy__core* core, damacy__slot* slot, damacy_batch* out,
                                      damacy_error* err)
{
    if (slot->n_failed > 0 && core->config.on_error == DAMACY_ON_ERROR_STOP) {
        for (uint32_t i = 0; i < slot->n_samples && !core->has_failed; i++) {
            if (slot->crops[i].error.status != DAMACY_OK) {
                core->failure = slot->crops[i].error;
                core->has_failed = true;
            }
        }
        damacy__broadcast(&core->pop_wake);
        *err = core->failure;
        return err->status;
    }
    slot->state = DAMACY__SLOT_HELD;
    slot->n_refs = 1;
    core->n_refs++;
    core->next_popped++;
    out->core = core;
    out->id = slot->id;
    damacy__count(&core->counters.batches_delivered, 1);
    damacy__broadcast(&core->pop_wake);
    return DAMACY_OK;
}

/* What pop returns now, or DAMACY_AGAIN with *may_come set when waiting makes sense. Holds the
 * mutex. */
static damacy_status damacy__pop_look(damacy__core* core, damacy_batch* out, bool* may_come,
                                      damacy_error* err)
{
    damacy__slot* slot;

    *may_come = false;
    if (core->is_stopping) {
        return damacy__fail(err, DAMACY_SHUTDOWN, "the pipeline is being destroyed");
    }
    slot = damacy__pop_slot(core, core->next_popped);
    if (core->has_failed && !(slot && slot->state == DAMACY__SLOT_READY && slot->n_failed == 0)) {
        if (!slot || slot->state == DAMACY__SLOT_READY) {
            *err = core->failure;
            return err->status;
        }
    }
    if (slot && slot->state == DAMACY__SLOT_READY) {
        return damacy__pop_take(core, slot, out, err);
    }
    if (core->is_finished && !slot && !core->is_planning && core->queue_first == core->queue_next) {
        return damacy__fail(err, DAMACY_END, "all samples were delivered");
    }
    *may_come = damacy__pop_may_come(core);
    return damacy__fail(err, DAMACY_AGAIN, "no batch is ready");
}

/* wait false: never blocks. deadline NULL: until something can be said. */
static damacy_status damacy__pipeline_pop(damacy__core* core, bool wait,
                                          const uint64_t* deadline_ns, damacy_batch* out,
                                          damacy_error* err)
{
    const uint64_t start = damacy__now_ns();
    damacy_status status;
    bool may_come;

    damacy__lock(&core->mutex);
    core->n_inside++;
    for (;;) {
        status = damacy__pop_look(core, out, &may_come, err);
        if (status != DAMACY_AGAIN || !wait || (!may_come && !deadline_ns)) {
            break;
        }
        if (!deadline_ns) {
            damacy__wait(&core->pop_wake, &core->mutex);
        } else if (damacy__now_ns() >= *deadline_ns) {
            status = damacy__fail(err, DAMACY_TIMEOUT, "no batch within the time given");
            break;
        } else {
            (void)damacy__condition_wait_until(&core->pop_wake, &core->mutex, *deadline_ns);
        }
    }
    core->n_inside--;
    if (core->is_stopping) {
        damacy__broadcast(&core->pop_wake);
    }
    damacy__unlock(&core->mutex);
    damacy__metric_add(&core->counters.pop_wait, damacy__now_ns() - start, 0, 0);
    return status;
}

/* ==== src/lifecycle.h ==== */
/* Makes and unmakes a pipeline: every part in order, everything undone on failure.
 *
 * Destroying has two halves: threads stop and in-flight work is dropped at once; the memory of
 * batches that are still held goes with their last release. */

static damacy_status damacy__core_create(const damacy_config* config, uint8_t* external,
                                         uint64_t external_size, damacy__core** out,
                                         damacy_error* err);
static void damacy__core_stop(damacy__core* core);

/* Splits max_host_bytes: an eighth for bytes read, a quarter for bytes decoded; batches, metadata
 * and records have the rest. */
static void damacy__core_split_budget(damacy__core* core)
{
    const uint64_t budget = core->config.max_host_bytes;

    core->staging_size = DAMACY__MIN(budget / 8, UINT64_C(512) << 20) & ~UINT64_C(4095);
    core->decoded_size = DAMACY__MIN(budget / 4, UINT64_C(4) << 30) & ~UINT64_C(4095);
    core->plan_options.max_read = DAMACY__MIN(core->config.max_read_bytes, core->staging_size / 4);
    core->plan_options.max_gap = 32768;
    core->plan_options.bounds = core->config.bounds;
    core->plan_options.has_channels = core->config.n_channels > 1;
    core->plan_options.channel_axis = core->config.channel_axis;
}

/* Copies of what the configuration points to. */
static damacy_status damacy__core_copy_config(damacy__core* core, damacy_error* err)
{
    const uint32_t n = core->config.n_channels;
    float* scale;
    float* offset;

    core->config.cache_dir = NULL;
    if (n == 0) {
        return DAMACY_OK;
    }
    scale = damacy__new(&core->alloc, n, float);
    offset = damacy__new(&core->alloc, n, float);
    for (uint32_t i = 0; i < n && scale && offset; i++) {
        scale[i] = core->config.scale ? core->config.scale[i] : 1.0f;
        offset[i] = core->config.offset ? core->config.offset[i] : 0.0f;
    }
    core->affine.n_channels = n;
    core->affine.scale = core->config.scale = scale;
    core->affine.offset = core->config.offset = offset;
    if (!scale || !offset) {
        return damacy__fail(err, DAMACY_OOM, "scale and offset of %u channels", n);
    }
    return DAMACY_OK;
}

static damacy_status damacy__core_make_locks(damacy__core* core, damacy_error* err)
{
    DAMACY__TRY(damacy__mutex_init(&core->mutex, err));
    DAMACY__TRY(damacy__mutex_init(&core->staging_mutex, err));
    DAMACY__TRY(damacy__mutex_init(&core->decode_mutex, err));
    DAMACY__TRY(damacy__condition_init(&core->decode_wake, err));
    DAMACY__TRY(damacy__condition_init(&core->scheduler_wake, err));
    return damacy__condition_init(&core->pop_wake, err);
}

/* The buffers that never grow, and the records of slots and queue. */
static damacy_status damacy__core_make_memory(damacy__core* core, damacy_error* err)
{
    damacy__alloc* alloc = &core->alloc;
    const uint32_t n_slots = core->config.batch_slots;
    const uint32_t n_samples = core->config.samples_per_batch;

    core->staging = (uint8_t*)damacy__alloc_take(alloc, core->staging_size, 1, 4096);
    core->decoded = (uint8_t*)damacy__alloc_take(alloc, core->decoded_size, 1, 4096);
    core->queue = damacy__new(alloc, core->config.lookahead_samples, damacy__crop);
    core->slots = damacy__new(alloc, n_slots, damacy__slot);
    core->decoders = damacy__new(alloc, core->config.decode_threads, damacy__decoder);
    if (!core->staging || !core->decoded || !core->queue || !core->slots || !core->decoders) {
        return damacy__fail(err, DAMACY_OOM,
                            "%" PRIu64 " + %" PRIu64
                            " bytes of buffers and records of %u samples do not "
                            "fit max_host_bytes %" PRIu64 " or the machine",
                            core->staging_size, core->decoded_size, core->config.lookahead_samples,
                            core->config.max_host_bytes);
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        damacy__slot* slot = &core->slots[i];
        slot->core = core;
        slot->id = UINT64_MAX;
        slot->crops = damacy__new(alloc, n_samples, damacy__crop);
        slot->delivered = damacy__new(alloc, n_samples, uint32_t);
        if (!slot->crops || !slot->delivered) {
            return damacy__fail(err, DAMACY_OOM, "records of %u samples per batch", n_samples);
        }
    }
    DAMACY__TRY(damacy__ring_init(&core->ring, alloc, core->staging_size, 65536, err));
    return damacy__arena_init(&core->arena, alloc, core->decoded_size, err);
}

static void damacy__core_notify(void* context)
{
    damacy__core_kick((damacy__core*)context);
}

/* Libraries, store, catalog and threads. */
static damacy_status damacy__core_make_stages(damacy__core* core, damacy_error* err)
{
    damacy__catalog* catalog = &core->catalog;

    DAMACY__TRY(damacy__libraries_init(&core->libraries, err));
    for (uint32_t i = 0; i < core->config.decode_threads; i++) {
        DAMACY__TRY(damacy__decoder_init(&core->decoders[i], &core->libraries, &core->alloc,
                                         core->config.skip_checksums, err));
    }
    DAMACY__TRY(damacy__store_init(&core->store, &core->alloc, &core->config, err));
    DAMACY__TRY(
        damacy__pool_init(&core->io, &core->alloc, core->config.io_threads, "damacy-io", err));
    DAMACY__TRY(damacy__pool_init(&core->workers, &core->alloc, core->config.decode_threads,
                                  "damacy-cpu", err));
    catalog->alloc = &core->alloc;
    catalog->store = &core->store;
    catalog->pool = &core->io;
    catalog->options.level = core->config.level;
    catalog->max_bytes = DAMACY__MIN(core->config.max_host_bytes / 8, UINT64_C(512) << 20);
    catalog->notify = damacy__core_notify;
    catalog->notify_context = core;
    catalog->clock = &core->counters.metadata;
    DAMACY__TRY(damacy__catalog_init(catalog, err));
    DAMACY__TRY(
        damacy__thread_start(&core->scheduler, "damacy-plan", damacy__scheduler_main, core, err));
    core->has_scheduler = true;
    return DAMACY_OK;
}

/* Stops all threads; poppers leave with SHUTDOWN. What batches need stays. */
static void damacy__core_stop(damacy__core* core)
{
    damacy__lock(&core->mutex);
    __atomic_store_n(&core->is_stopping, true, __ATOMIC_RELAXED);
    core->kicked = true;
    damacy__broadcast(&core->pop_wake);
    damacy__broadcast(&core->scheduler_wake);
    while (core->n_inside > 0) {
        damacy__wait(&core->pop_wake, &core->mutex);
    }
    damacy__unlock(&core->mutex);
    if (core->has_scheduler) {
        pthread_join(core->scheduler, NULL);
        core->has_scheduler = false;
    }
    damacy__pool_deinit(&core->io);
    damacy__pool_deinit(&core->workers);
    for (uint32_t i = 0; core->slots && i < core->config.batch_slots; i++) {
        for (uint32_t k = 0; core->slots[i].crops && k < core->config.samples_per_batch; k++) {
            damacy__crop_deinit(core, &core->slots[i].crops[k]);
            core->slots[i].crops[k].indexes = NULL;
            core->slots[i].crops[k].index_views = NULL;
            core->slots[i].crops[k].n_capacity = 0;
        }
    }
    for (uint64_t i = 0; core->queue && i < core->config.lookahead_samples; i++) {
        damacy__crop_deinit(core, &core->queue[i]);
    }
    damacy__free(&core->alloc, core->queue, core->config.lookahead_samples);
    core->queue = NULL;
    damacy__catalog_deinit(&core->catalog);
    damacy__store_deinit(&core->store);
    for (uint32_t i = 0; core->decoders && i < core->config.decode_threads; i++) {
        damacy__decoder_deinit(&core->decoders[i]);
    }
    damacy__free(&core->alloc, core->decoders, core->config.decode_threads);
    core->decoders = NULL;
    damacy__libraries_deinit(&core->libraries);
}

static void damacy__slot_free(damacy__core* core, damacy__slot* slot)
{
    damacy__alloc* alloc = &core->alloc;

    if (!core->external) {
        damacy__alloc_give(alloc, slot->ptr, slot->size ? slot->size : 1);
    }
    damacy__free(alloc, slot->crops, core->config.samples_per_batch);
    damacy__free(alloc, slot->delivered, core->config.samples_per_batch);
    damacy__plan_deinit(&slot->plan, alloc);
    damacy__read_tasks_deinit(&slot->read_tasks, alloc);
    damacy__units_deinit(&slot->chunk_units, alloc);
    damacy__units_deinit(&slot->fill_units, alloc);
}

/* Frees a stopped core. */
static void damacy__core_free(damacy__core* core)
{
    damacy__alloc alloc;

    for (uint32_t i = 0; core->slots && i < core->config.batch_slots; i++) {
        damacy__slot_free(core, &core->slots[i]);
    }
    damacy__free(&core->alloc, core->slots, core->config.batch_slots);
    damacy__ring_deinit(&core->ring, &core->alloc);
    damacy__arena_deinit(&core->arena, &core->alloc);
    damacy__alloc_give(&core->alloc, core->staging, core->staging_size);
    damacy__alloc_give(&core->alloc, core->decoded, core->decoded_size);
    if (core->config.n_channels) {
        damacy__alloc_give(&core->alloc, (void*)(uintptr_t)core->affine.scale,
                           core->config.n_channels * sizeof(float));
        damacy__alloc_give(&core->alloc, (void*)(uintptr_t)core->affine.offset,
                           core->config.n_channels * sizeof(float));
    }
    damacy__condition_deinit(&core->pop_wake);
    damacy__condition_deinit(&core->scheduler_wake);
    damacy__condition_deinit(&core->decode_wake);
    damacy__mutex_deinit(&core->decode_mutex);
    damacy__mutex_deinit(&core->staging_mutex);
    damacy__mutex_deinit(&core->mutex);
    alloc = core->alloc;
    damacy__free(&alloc, core, 1);
}

static damacy_status damacy__core_choose_device(damacy__core* core, damacy_error* err)
{
    if (core->config.device > DAMACY_AUTO) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "device is GPU %d: this build has no GPU back end",
                            core->config.device - 1);
    }
    if (core->config.gds == DAMACY_GDS_ON) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "gds is ON: GPUDirect Storage needs a GPU");
    }
    if (core->config.device == DAMACY_AUTO) {
        damacy__core_log(core, DAMACY_LOG_INFO, "device: CPU (no GPU back end in this build)");
    }
    core->config.device = DAMACY_CPU;
    return DAMACY_OK;
}

/* external NULL, or the memory of the one batch that damacy_read makes. */
static damacy_status damacy__core_create(const damacy_config* config, uint8_t* external,
                                         uint64_t external_size, damacy__core** out,
                                         damacy_error* err)
{
    damacy_config resolved;
    damacy__alloc alloc;
    damacy__core* core;
    damacy_status status;

    DAMACY__TRY(damacy__config_fill(config, &resolved, err));
    memset(&alloc, 0, sizeof alloc);
    alloc.user = resolved.allocator;
    alloc.budget = resolved.max_host_bytes;
    core = damacy__new(&alloc, 1, damacy__core);
    if (!core) {
        return damacy__fail(err, DAMACY_OOM, "pipeline");
    }
    core->alloc = alloc;
    core->config = resolved;
    core->external = external;
    core->external_size = external_size;
    core->out_dtype = resolved.dtype;
    core->process = getpid();
    core->n_refs = 1;
    damacy__core_split_budget(core);
    status = damacy__core_make_locks(core, err);
    if (status == DAMACY_OK) {
        status = damacy__core_choose_device(core, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__core_copy_config(core, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__core_make_memory(core, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__core_make_stages(core, err);
    }
    if (status != DAMACY_OK) {
        damacy__core_stop(core);
        damacy__core_unref(core);
        return status;
    }
    if (resolved.sample_rank > 0) {
        damacy__pipeline_geometry(core, resolved.sample_rank, resolved.sample_shape);
    }
    *out = core;
    return DAMACY_OK;
}

/* ==== src/public.h ==== */
/* Bodies of the public functions: they check arguments, give `err` a place to point to, and call
 * the pipeline. */

struct damacy {
    damacy__core core;
};

/* An error to fill when the caller gave none; clears the one that was given. */
static damacy_error* damacy__public_error(damacy_error* err, damacy_error* local)
{
    damacy_error* const target = err ? err : local;

    memset(target, 0, sizeof *target);
    target->sample = target->offset = UINT64_MAX;
    return target;
}

DAMACY_API const char* damacy_status_str(damacy_status status)
{
    static const char* const names[] = {"ok",
                                        "again",
                                        "invalid argument",
                                        "not found",
                                        "dtype mismatch",
                                        "rank mismatch",
                                        "io error",
                                        "decode error",
                                        "cuda error",
                                        "out of memory",
                                        "configured budget too small",
                                        "shutdown",
                                        "end",
                                        "unsupported",
                                        "device lost",
                                        "timeout"};
    const unsigned i = (unsigned)status;

    return i < DAMACY__COUNT(names) ? names[i] : "unknown";
}

DAMACY_API const char* damacy_stage_str(damacy_stage stage)
{
    static const char* const names[] = {"none", "config",   "metadata", "index",    "plan",
                                        "read", "transfer", "decode",   "assemble", "batch"};
    const unsigned i = (unsigned)stage;

    return i < DAMACY__COUNT(names) ? names[i] : "unknown";
}

DAMACY_API size_t damacy_dtype_size(damacy_dtype dtype)
{
    return damacy__dtype_size(dtype);
}

DAMACY_API const char* damacy_dtype_str(damacy_dtype dtype)
{
    return damacy__dtype_str(dtype);
}

DAMACY_API damacy_status damacy_config_resolve(const damacy_config* config, damacy_config* resolved,
                                               damacy_error* err)
{
    damacy_error local;

    err = damacy__public_error(err, &local);
    err->stage = DAMACY_STAGE_CONFIG;
    if (!resolved) {
        return damacy__fail(err, DAMACY_INVAL, "resolved is NULL");
    }
    return damacy__config_fill(config, resolved, err);
}

DAMACY_API damacy_status damacy_create(const damacy_config* config, damacy** out, damacy_error* err)
{
    damacy_error local;
    damacy__core* core = NULL;
    damacy_status status;

    err = damacy__public_error(err, &local);
    err->stage = DAMACY_STAGE_CONFIG;
    if (!out) {
        return damacy__fail(err, DAMACY_INVAL, "out is NULL");
    }
    *out = NULL;
    status = damacy__core_create(config, NULL, 0, &core, err);
    if (status == DAMACY_OK) {
        *out = (damacy*)(void*)core;
    }
    return status;
}

DAMACY_API void damacy_destroy(damacy* d)
{
    if (!d || d->core.process != getpid()) {
        return; /* a forked child has none of the threads */
    }
    damacy__core_stop(&d->core);
    damacy__core_unref(&d->core);
}

DAMACY_API damacy_status damacy_push(damacy* d, const damacy_sample* samples, size_t n,
                                     size_t* n_taken, damacy_error* err)
{
    damacy_error local;
    damacy_status status = DAMACY_OK;
    size_t i = 0;

    err = damacy__public_error(err, &local);
    if (n_taken) {
        *n_taken = 0;
    }
    if (!d || (!samples && n > 0)) {
        return damacy__fail(err, DAMACY_INVAL, "%s is NULL", d ? "samples" : "the pipeline");
    }
    if (d->core.process != getpid()) {
        return damacy__fail(err, DAMACY_INVAL, "the process was forked after damacy_create");
    }
    for (; i < n && status == DAMACY_OK; i++) {
        status = damacy__pipeline_push(&d->core, &samples[i], err);
        if (status != DAMACY_OK) {
            if (samples[i].uri) {
                damacy__error_where(err, DAMACY_STAGE_CONFIG, samples[i].uri, NULL);
            }
            break;
        }
    }
    if (n_taken) {
        *n_taken = i;
    }
    damacy__count(&d->core.counters.samples_pushed, i);
    if (i > 0) {
        damacy__lock(&d->core.mutex);
        d->core.kicked = true;
        damacy__signal(&d->core.scheduler_wake);
        damacy__broadcast(&d->core.pop_wake);
        damacy__unlock(&d->core.mutex);
    }
    return status;
}

DAMACY_API damacy_status damacy_finish(damacy* d)
{
    if (!d) {
        return DAMACY_INVAL;
    }
    damacy__lock(&d->core.mutex);
    d->core.is_finished = true;
    d->core.kicked = true;
    damacy__signal(&d->core.scheduler_wake);
    damacy__broadcast(&d->core.pop_wake);
    damacy__unlock(&d->core.mutex);
    return DAMACY_OK;
}

static damacy_status damacy__public_pop(damacy* d, bool wait, const uint64_t* deadline,
                                        damacy_batch* out, damacy_error* err)
{
    damacy_error local;

    err = damacy__public_error(err, &local);
    if (!d || !out) {
        return damacy__fail(err, DAMACY_INVAL, "%s is NULL", d ? "out" : "the pipeline");
    }
    if (d->core.process != getpid()) {
        return damacy__fail(err, DAMACY_INVAL, "the process was forked after damacy_create");
    }
    return damacy__pipeline_pop(&d->core, wait, deadline, out, err);
}

DAMACY_API damacy_status damacy_pop(damacy* d, damacy_batch* out, damacy_error* err)
{
    return damacy__public_pop(d, true, NULL, out, err);
}

DAMACY_API damacy_status damacy_try_pop(damacy* d, damacy_batch* out, damacy_error* err)
{
    return damacy__public_pop(d, false, NULL, out, err);
}

DAMACY_API damacy_status damacy_pop_timeout(damacy* d, uint64_t timeout_ns, damacy_batch* out,
                                            damacy_error* err)
{
    const uint64_t now = damacy__now_ns();
    uint64_t deadline;

    if (!damacy__add(now, timeout_ns, &deadline) || deadline > INT64_MAX) {
        deadline = INT64_MAX;
    }
    return damacy__public_pop(d, true, &deadline, out, err);
}

DAMACY_API damacy_status damacy_batch_info(damacy_batch batch, damacy_batch_info_t* out)
{
    return damacy__batch_describe(batch, out);
}

DAMACY_API damacy_status damacy_batch_sample(damacy_batch batch, uint32_t i, uint64_t* number,
                                             damacy_status* status, damacy_error* err)
{
    damacy_error local;
    const damacy__slot* slot = NULL;

    err = damacy__public_error(err, &local);
    if (!batch.core) {
        return damacy__fail(err, DAMACY_INVAL, "no batch");
    }
    damacy__lock(&batch.core->mutex);
    slot = damacy__batch_slot(batch.core, batch.id);
    if (slot && i < slot->n_delivered) {
        const damacy__crop* crop = &slot->crops[slot->delivered[i]];
        if (number) {
            *number = crop->number;
        }
        if (status) {
            *status = crop->error.status;
        }
        if (crop->error.status != DAMACY_OK) {
            *err = crop->error;
        }
    } else {
        slot = NULL;
    }
    damacy__unlock(&batch.core->mutex);
    return slot ? DAMACY_OK : damacy__fail(err, DAMACY_INVAL, "no such batch or sample %u", i);
}

DAMACY_API damacy_status damacy_batch_failed(damacy_batch batch, uint32_t i, damacy_error* err)
{
    const damacy__slot* slot;
    bool found = false;

    if (!batch.core || !err) {
        return DAMACY_INVAL;
    }
    damacy__lock(&batch.core->mutex);
    slot = damacy__batch_slot(batch.core, batch.id);
    for (uint32_t k = 0; slot && k < slot->n_samples && !found; k++) {
        if (slot->crops[k].error.status != DAMACY_OK && i-- == 0) {
            *err = slot->crops[k].error;
            found = true;
        }
    }
    damacy__unlock(&batch.core->mutex);
    return found ? DAMACY_OK : DAMACY_INVAL;
}

DAMACY_API damacy_status damacy_batch_retain(damacy_batch batch)
{
    return damacy__batch_hold(batch);
}

DAMACY_API damacy_status damacy_release(damacy_batch batch)
{
    return damacy__batch_drop(batch);
}

DAMACY_API damacy_status damacy_release_event(damacy_batch batch, void* event)
{
    (void)event;
    return damacy__batch_drop(batch);
}

DAMACY_API damacy_status damacy_release_stream(damacy_batch batch, void* stream)
{
    (void)stream;
    return damacy__batch_drop(batch);
}

DAMACY_API int32_t damacy_device(const damacy* d)
{
    return d ? d->core.config.device : DAMACY_CPU;
}

DAMACY_API damacy_status damacy_batch_dlpack(damacy_batch batch, void* stream,
                                             damacy_dl_managed_versioned** out, damacy_error* err)
{
    damacy_error local;
    damacy__export* tensor = NULL;

    (void)stream;
    err = damacy__public_error(err, &local);
    if (!out) {
        return damacy__fail(err, DAMACY_INVAL, "out is NULL");
    }
    DAMACY__TRY(damacy__export_make(batch, &tensor, err));
    *out = &tensor->versioned;
    return DAMACY_OK;
}

DAMACY_API damacy_status damacy_batch_dlpack_legacy(damacy_batch batch, void* stream,
                                                    damacy_dl_managed** out, damacy_error* err)
{
    damacy_error local;
    damacy__export* tensor = NULL;

    (void)stream;
    err = damacy__public_error(err, &local);
    if (!out) {
        return damacy__fail(err, DAMACY_INVAL, "out is NULL");
    }
    DAMACY__TRY(damacy__export_make(batch, &tensor, err));
    *out = &tensor->legacy;
    return DAMACY_OK;
}

DAMACY_API void damacy_stats_get(const damacy* d, damacy_stats* out)
{
    const damacy__counters* c;
    damacy__catalog* catalog;

    if (!out) {
        return;
    }
    memset(out, 0, sizeof *out);
    if (!d) {
        return;
    }
    c = &d->core.counters;
    damacy__metric_get(&c->metadata, &out->metadata);
    damacy__metric_get(&c->plan, &out->plan);
    damacy__metric_get(&c->read, &out->read);
    damacy__metric_get(&c->transfer, &out->transfer);
    damacy__metric_get(&c->decode, &out->decode);
    damacy__metric_get(&c->assemble, &out->assemble);
    damacy__metric_get(&c->pop_wait, &out->pop_wait);
    out->samples_pushed = __atomic_load_n(&c->samples_pushed, __ATOMIC_RELAXED);
    out->batches_delivered = __atomic_load_n(&c->batches_delivered, __ATOMIC_RELAXED);
    out->samples_failed = __atomic_load_n(&c->samples_failed, __ATOMIC_RELAXED);
    out->chunks_touched = __atomic_load_n(&c->chunks_touched, __ATOMIC_RELAXED);
    out->chunks_decoded = __atomic_load_n(&c->chunks_decoded, __ATOMIC_RELAXED);
    out->chunks_missing = __atomic_load_n(&c->chunks_missing, __ATOMIC_RELAXED);
    out->voxels_delivered = __atomic_load_n(&c->voxels_delivered, __ATOMIC_RELAXED);
    out->host_bytes_committed = __atomic_load_n(&d->core.alloc.live_bytes, __ATOMIC_RELAXED);
    if (__atomic_load_n(&c->bytes_wanted, __ATOMIC_RELAXED)) {
        out->read_amplification = (double)__atomic_load_n(&c->bytes_read, __ATOMIC_RELAXED) /
                                  (double)__atomic_load_n(&c->bytes_wanted, __ATOMIC_RELAXED);
    }
    if (__atomic_load_n(&c->bytes_delivered, __ATOMIC_RELAXED)) {
        out->decode_amplification = (double)__atomic_load_n(&c->bytes_decoded, __ATOMIC_RELAXED) /
                                    (double)__atomic_load_n(&c->bytes_delivered, __ATOMIC_RELAXED);
    }
    catalog = (damacy__catalog*)(uintptr_t)&d->core.catalog;
    damacy__lock(&catalog->mutex);
    out->array_hits = catalog->array_hits;
    out->array_misses = catalog->array_misses;
    out->index_hits = catalog->index_hits;
    out->index_misses = catalog->index_misses;
    damacy__unlock(&catalog->mutex);
}

DAMACY_API void damacy_stats_reset(damacy* d)
{
    uint64_t* field; /* damacy__counters holds nothing but 64-bit counters */

    if (!d) {
        return;
    }
    field = (uint64_t*)(void*)&d->core.counters;
    for (size_t i = 0; i < sizeof d->core.counters / sizeof *field; i++) {
        __atomic_store_n(&field[i], 0, __ATOMIC_RELAXED);
    }
}

/* ==== src/describe.h ==== */
/* A configuration in words, one line per resolved field. */

/* Text that is cut at a limit while its whole length is counted. */
typedef struct damacy__text {
    char* ptr;
    size_t size; /* bytes at ptr, the final zero included */
    size_t len;  /* of the whole text */
} damacy__text;

static void damacy__text_add(damacy__text* text, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

static void damacy__text_add(damacy__text* text, const char* format, ...)
{
    const size_t left = text->len < text->size ? text->size - text->len : 0;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(left ? text->ptr + text->len : NULL, left, format, args);
    va_end(args);
    text->len += n > 0 ? (size_t)n : 0;
}

static void damacy__describe_sample(damacy__text* text, const damacy_config* c)
{
    damacy__text_add(text, "sample_shape       ");
    if (c->sample_rank == 0) {
        damacy__text_add(text, "of the first pushed sample\n");
        return;
    }
    for (uint32_t i = 0; i < c->sample_rank; i++) {
        damacy__text_add(text, "%s%" PRId64, i ? " x " : "", c->sample_shape[i]);
    }
    damacy__text_add(text, "\n");
}

static void damacy__describe_device(damacy__text* text, const damacy_config* c)
{
    static const char* const numa[] = {"auto", "off", "pin"};
    static const char* const gds[] = {"auto", "on", "off"};

    if (c->device == DAMACY_AUTO) {
        damacy__text_add(text,
                         "device             auto: current CUDA context, else GPU 0, else CPU\n");
    } else if (c->device == DAMACY_CPU) {
        damacy__text_add(text, "device             CPU\n");
    } else {
        damacy__text_add(text, "device             GPU %d\n", c->device - 1);
    }
    damacy__text_add(text, "numa               %s\ngds                %s\n", numa[c->numa],
                     gds[c->gds]);
}

static void damacy__describe(damacy__text* text, const damacy_config* c)
{
    static const char* const bounds[] = {"reject", "fill", "clamp", "reflect"};
    static const char* const on_error[] = {"stop", "fill", "skip"};

    damacy__describe_sample(text, c);
    damacy__text_add(text, "samples_per_batch  %u\nlookahead_samples  %u\nbatch_slots        %u\n",
                     c->samples_per_batch, c->lookahead_samples, c->batch_slots);
    damacy__text_add(text, "dtype              %s\nbounds             %s\non_error           %s\n",
                     damacy__dtype_str(c->dtype), bounds[c->bounds], on_error[c->on_error]);
    damacy__text_add(text, "level              %u\nchannels           %u\n", c->level,
                     c->n_channels);
    damacy__describe_device(text, c);
    damacy__text_add(text, "max_host_bytes     %" PRIu64 "\n", c->max_host_bytes);
    if (c->max_gpu_bytes) {
        damacy__text_add(text, "max_gpu_bytes      %" PRIu64 "\n", c->max_gpu_bytes);
    } else {
        damacy__text_add(text, "max_gpu_bytes      a quarter of what is free at create\n");
    }
    damacy__text_add(
        text, "max_read_bytes     %" PRIu64 "\nio_threads         %u\ndecode_threads     %u\n",
        c->max_read_bytes, c->io_threads, c->decode_threads);
    damacy__text_add(text, "store              %s\nallocator          %s\nchecksums          %s\n",
                     c->store.open ? "the caller's" : "local files",
                     c->allocator.alloc ? "the caller's" : "malloc",
                     c->skip_checksums ? "not compared" : "compared");
    if (c->debug_bypass_decode) {
        damacy__text_add(text,
                         "debug              decoding is bypassed: voxels are the fill value\n");
    }
    if (c->debug_latency.base_ns || c->debug_latency.mu != 0 || c->debug_latency.sigma != 0) {
        damacy__text_add(text, "debug              delays are injected\n");
    }
}

DAMACY_API size_t damacy_config_describe(const damacy_config* config, char* text, size_t size)
{
    damacy_config resolved;
    damacy_error error;
    damacy__text out;

    out.ptr = text;
    out.size = text ? size : 0;
    out.len = 0;
    memset(&error, 0, sizeof error);
    if (damacy__config_fill(config, &resolved, &error) == DAMACY_OK) {
        damacy__describe(&out, &resolved);
    } else {
        damacy__text_add(&out, "%s", error.message);
    }
    if (out.size && out.len == 0) {
        text[0] = '\0';
    }
    return out.len;
}

/* ==== src/inspect.h ==== */
/* Inspection of arrays, one-shot reads and verification: the parts of the interface that need no
 * pipeline of the caller's. */

struct damacy_array {
    damacy__alloc alloc;
    damacy__store store;
    damacy__fetched fetched;
    damacy_array_info_t info;
    char* uri;
};

static void damacy__array_free(damacy_array* array)
{
    damacy__alloc alloc = array->alloc;

    damacy__fetched_deinit(&array->fetched, &array->alloc, &array->store);
    damacy__store_deinit(&array->store);
    damacy__text_free(&array->alloc, array->uri);
    alloc = array->alloc;
    damacy__free(&alloc, array, 1);
}

static void damacy__array_fill_info(damacy_array* array)
{
    const damacy__document* document = &array->fetched.document;
    const damacy__layout* layout = array->fetched.layout;
    const damacy__ngff* ngff = &array->fetched.ngff;
    damacy_array_info_t* info = &array->info;

    info->uri = array->uri;
    info->rank = layout->rank;
    memcpy(info->shape, layout->shape, sizeof info->shape);
    memcpy(info->chunk_shape, layout->chunk_shape, sizeof info->chunk_shape);
    memcpy(info->shard_shape, layout->object_shape, sizeof info->shard_shape);
    info->is_sharded = (int32_t)layout->is_sharded;
    info->dtype = layout->dtype;
    info->is_big_endian = (int32_t)layout->big_endian;
    damacy__store_u64le(info->fill_value, layout->fill);
    info->zarr_format = document->zarr_format;
    info->codecs = document->codecs;
    info->data_type = document->data_type;
    info->attributes = document->attributes;
    for (uint32_t i = 0; i < layout->rank; i++) {
        info->dimension_names[i] = document->dimension_names[i];
        info->axis_names[i] = ngff->axis_names[i];
        info->axis_units[i] = ngff->axis_units[i];
    }
    info->n_levels = ngff->n_levels;
    info->level = array->fetched.level;
    info->levels = ngff->levels;
}

static damacy_status damacy__array_open(const damacy_config* config, const char* uri,
                                        damacy_array** out, damacy_error* err)
{
    damacy_config resolved;
    damacy__alloc alloc;
    damacy__fetch_options options;
    damacy_array* array;
    damacy_status status;

    DAMACY__TRY(damacy__config_fill(config, &resolved, err));
    memset(&alloc, 0, sizeof alloc);
    alloc.user = resolved.allocator;
    alloc.budget = resolved.max_host_bytes;
    array = damacy__new(&alloc, 1, damacy_array);
    if (!array) {
        return damacy__fail(err, DAMACY_OOM, "array");
    }
    array->alloc = alloc;
    options.level = resolved.level;
    status = damacy__store_init(&array->store, &array->alloc, &resolved, err);
    if (status == DAMACY_OK) {
        array->uri = damacy__alloc_text(&array->alloc, uri, strlen(uri));
        status = array->uri ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "uri");
    }
    if (status == DAMACY_OK) {
        status =
            damacy__fetch_array(&array->store, &array->alloc, uri, &options, &array->fetched, err);
    }
    if (status != DAMACY_OK) {
        damacy__error_where(err, DAMACY_STAGE_METADATA, uri, NULL);
        damacy__array_free(array);
        return status;
    }
    damacy__array_fill_info(array);
    *out = array;
    return DAMACY_OK;
}

DAMACY_API damacy_status damacy_array_open(const damacy_config* config, const char* uri,
                                           damacy_array** out, damacy_error* err)
{
    damacy_error local;
    damacy_array* array = NULL;

    err = damacy__public_error(err, &local);
    if (!uri || !out) {
        return damacy__fail(err, DAMACY_INVAL, "%s is NULL", uri ? "out" : "uri");
    }
    *out = NULL;
    DAMACY__TRY(damacy__array_open(config, uri, &array, err));
    *out = array;
    return DAMACY_OK;
}

DAMACY_API void damacy_array_info(const damacy_array* array, damacy_array_info_t* out)
{
    if (out && array) {
        *out = array->info;
    } else if (out) {
        memset(out, 0, sizeof *out);
    }
}

DAMACY_API void damacy_array_close(damacy_array* array)
{
    if (array) {
        damacy__array_free(array);
    }
}

/* The one batch of a one-shot read is made in the caller's memory. */
static damacy_status damacy__read_into(damacy__core* core, const damacy_sample* sample,
                                       size_t dst_size, damacy_error* err)
{
    damacy_batch batch;

    DAMACY__TRY(damacy__pipeline_push(core, sample, err));
    damacy__lock(&core->mutex);
    core->is_finished = true;
    core->kicked = true;
    damacy__signal(&core->scheduler_wake);
    damacy__unlock(&core->mutex);
    DAMACY__TRY(damacy__pipeline_pop(core, true, NULL, &batch, err));
    (void)dst_size;
    return damacy__batch_drop(batch);
}

DAMACY_API damacy_status damacy_read(const damacy_config* config, const damacy_sample* sample,
                                     void* dst, size_t dst_size, damacy_error* err)
{
    damacy_error local;
    damacy_config c;
    damacy__core* core = NULL;
    damacy_status status;

    err = damacy__public_error(err, &local);
    if (!sample || !dst) {
        return damacy__fail(err, DAMACY_INVAL, "%s is NULL", sample ? "dst" : "sample");
    }
    if (sample->rank > DAMACY_MAX_RANK) {
        return damacy__fail(err, DAMACY_RANK, "the sample has %u axes; %d are possible",
                            sample->rank, DAMACY_MAX_RANK);
    }
    memset(&c, 0, sizeof c);
    if (config) {
        c = *config;
    }
    c.device = DAMACY_CPU;
    c.sample_rank = 0;
    c.samples_per_batch = 1;
    c.lookahead_samples = 1;
    c.batch_slots = 2;
    c.on_error = DAMACY_ON_ERROR_STOP;
    DAMACY__TRY(damacy__core_create(&c, (uint8_t*)dst, dst_size, &core, err));
    status = damacy__read_into(core, sample, dst_size, err);
    if (status != DAMACY_OK) {
        damacy__error_where(err, DAMACY_STAGE_READ, sample->uri, NULL);
        err->sample = UINT64_MAX;
    }
    damacy__core_stop(core);
    damacy__core_unref(core);
    return status;
}

/* ---- verify ---- */

/* What a walk over all chunks of an array needs. */
typedef struct damacy__verifier {
    damacy_array* array;
    damacy__libraries libraries;
    damacy__decoder decoder;
    damacy_finding finding;
    void* user;
    damacy_verify_result result;
    damacy__scratch stored;
    damacy__scratch decoded;
} damacy__verifier;

static void damacy__verify_found(damacy__verifier* v, damacy_error* error, damacy_stage stage)
{
    damacy__error_where(error, stage, v->array->uri, NULL);
    v->result.n_bad++;
    if (v->finding) {
        v->finding(v->user, error);
    }
}

/* One stored chunk. Returns only what ends the walk. */
static damacy_status damacy__verify_chunk(damacy__verifier* v, const damacy__index* index,
                                          uint64_t entry, const int64_t* chunk, damacy_error* err)
{
    const damacy__layout* layout = v->array->fetched.layout;
    const damacy__extent extent = index->extents[entry];
    char name[sizeof err->chunk];
    damacy_error error;
    damacy_status status;

    damacy__public_error(&error, &error);
    damacy__fetch_chunk_name(layout, chunk, name, sizeof name);
    damacy__error_where(&error, DAMACY_STAGE_NONE, v->array->uri, name);
    v->result.n_chunks++;
    if (extent.size > 2 * layout->chunk_size + (1 << 20)) {
        (void)damacy__fail(&error, DAMACY_DECODE,
                           "%" PRIu64 " stored bytes are too many for a chunk of %" PRIu64,
                           extent.size, layout->chunk_size);
        damacy__verify_found(v, &error, DAMACY_STAGE_INDEX);
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__scratch_reserve(&v->stored, &v->array->alloc, extent.size + 1, err));
    DAMACY__TRY(
        damacy__scratch_reserve(&v->decoded, &v->array->alloc, layout->chunk_size + 1, err));
    status = damacy__fetch_bytes(&v->array->store, &v->array->fetched, chunk, index, extent.offset,
                                 v->stored.ptr, extent.size, &error);
    if (status != DAMACY_OK) {
        damacy__verify_found(v, &error, DAMACY_STAGE_READ);
        return DAMACY_OK;
    }
    v->result.size_stored += extent.size;
    status = damacy__host_decode(&v->decoder, layout,
                                 damacy__span_of(v->stored.ptr, (size_t)extent.size),
                                 v->decoded.ptr, &error);
    if (status == DAMACY_OOM) {
        *err = error;
        return status;
    }
    if (status != DAMACY_OK) {
        error.offset = error.offset == UINT64_MAX ? extent.offset : extent.offset + error.offset;
        damacy__verify_found(v, &error, DAMACY_STAGE_DECODE);
    } else {
        v->result.size_decoded += layout->chunk_size;
    }
    return DAMACY_OK;
}

/* All chunks of one object that lie at least partly in the array. */
static damacy_status damacy__verify_object(damacy__verifier* v, uint64_t number,
                                           const damacy__index* index, damacy_error* err)
{
    const damacy__layout* layout = v->array->fetched.layout;
    int64_t object[DAMACY_MAX_RANK];
    int64_t at[DAMACY_MAX_RANK] = {0};
    int64_t n[DAMACY_MAX_RANK];
    int64_t chunk[DAMACY_MAX_RANK];
    uint32_t axis;

    damacy__fetch_position(layout, number, object);
    for (uint32_t i = 0; i < layout->rank; i++) {
        const int64_t per = layout->object_shape[i] / layout->chunk_shape[i];
        const int64_t left = layout->shape[i] - object[i] * layout->object_shape[i];
        n[i] = DAMACY__MIN(per, (left + layout->chunk_shape[i] - 1) / layout->chunk_shape[i]);
    }
    for (;;) {
        uint64_t entry = 0;
        for (uint32_t i = 0; i < layout->rank; i++) {
            const int64_t per = layout->object_shape[i] / layout->chunk_shape[i];
            chunk[i] = object[i] * per + at[i];
            entry += (uint64_t)at[i] * layout->index_stride[i];
        }
        if (!index->extents || index->extents[entry].offset == UINT64_MAX) {
            v->result.n_missing++;
        } else {
            DAMACY__TRY(damacy__verify_chunk(v, index, entry, chunk, err));
        }
        for (axis = layout->rank; axis > 0 && ++at[axis - 1] == n[axis - 1]; axis--) {
            at[axis - 1] = 0;
        }
        if (axis == 0) {
            return DAMACY_OK;
        }
    }
}

static damacy_status damacy__verify_all(damacy__verifier* v, damacy_error* err)
{
    const damacy__layout* layout = v->array->fetched.layout;
    uint64_t n_objects = 1;

    for (uint32_t i = 0; i < layout->rank; i++) {
        const uint64_t n =
            damacy__div_up((uint64_t)layout->shape[i], (uint64_t)layout->object_shape[i]);
        if (!damacy__mul(n_objects, n, &n_objects)) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "more objects than 64 bits can count");
        }
    }
    for (uint64_t k = 0; k < n_objects; k++) {
        damacy__index index;
        damacy_error error;
        damacy_status status;
        memset(&index, 0, sizeof index);
        damacy__public_error(&error, &error);
        status = damacy__fetch_index(&v->array->store, &v->array->alloc, &v->array->fetched, k,
                                     &index, &error);
        if (status == DAMACY_OOM) {
            *err = error;
            return status;
        }
        if (status != DAMACY_OK) {
            damacy__verify_found(v, &error, DAMACY_STAGE_INDEX);
            continue;
        }
        status = damacy__verify_object(v, k, &index, err);
        damacy__free(&v->array->alloc, index.extents, index.n);
        DAMACY__TRY(status);
    }
    return DAMACY_OK;
}

DAMACY_API damacy_status damacy_verify(const damacy_config* config, const char* uri,
                                       damacy_finding finding, void* user,
                                       damacy_verify_result* out, damacy_error* err)
{
    damacy_error local;
    damacy__verifier v;
    damacy_status status;

    err = damacy__public_error(err, &local);
    if (!uri || !out) {
        return damacy__fail(err, DAMACY_INVAL, "%s is NULL", uri ? "out" : "uri");
    }
    memset(&v, 0, sizeof v);
    v.finding = finding;
    v.user = user;
    DAMACY__TRY(damacy__array_open(config, uri, &v.array, err));
    status = damacy__libraries_init(&v.libraries, err);
    if (status == DAMACY_OK) {
        status = damacy__decoder_init(&v.decoder, &v.libraries, &v.array->alloc, false, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__verify_all(&v, err);
    }
    damacy__decoder_deinit(&v.decoder);
    damacy__libraries_deinit(&v.libraries);
    damacy__free(&v.array->alloc, v.stored.ptr, v.stored.size);
    damacy__free(&v.array->alloc, v.decoded.ptr, v.decoded.size);
    damacy__array_free(v.array);
    if (status == DAMACY_OK) {
        *out = v.result;
    }
    return status;
}

#endif
