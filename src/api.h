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
 * returns and that batches stay valid until they are released. In a forked child, which has none of
 * the threads, functions return DAMACY_INVAL and damacy_destroy does nothing.
 *
 * Functions return a damacy_status; those with `err` fill it on failure (it may be NULL). Outputs
 * are untouched on failure.
 *
 * What is read, each by the rules of its specification, and anything else refused by name:
 *   arrays   Zarr v3 (zarr-specs: core, all data types of it but complex and raw, and bfloat16;
 *            sharding_indexed, nested too) and Zarr v2; regular grids, every chunk key encoding
 *   images   OME-NGFF 0.1 to 0.5 multiscales; config.level says which level
 *   codecs   bytes, transpose, crc32c, zstd (RFC 8878), gzip and zlib (RFC 1952, 1950), lz4 blocks,
 *            blosc 1 with zstd, lz4, lz4hc and zlib. On the host zstd is faster where libzstd.so.1
 *            is installed, and what gzip and zlib wrote needs libz.so.1
 * A chunk that is not stored has the array's fill value; one that is stored but cannot be read, is
 * damaged or has another size than the metadata say is an error. */
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

/* ---- Status and errors ------------------------------------------------------------------- */

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
    uint64_t sample;   /* number of the sample, counted from 0 in push order; UINT64_MAX: none */
    uint64_t offset;   /* byte offset in the object; UINT64_MAX: none */
    char uri[256];     /* the array; cut if longer; "" if none */
    char chunk[128];   /* key of the object, "c/0/1", or of a chunk inside a shard, "c/0/1[3,0]" */
    char message[384]; /* the cause in words, with names and numbers */
} damacy_error;

/* Short names, such as "decode error" and "read"; "unknown" for other values. Static strings. */
DAMACY_API const char* damacy_status_str(damacy_status status);
DAMACY_API const char* damacy_stage_str(damacy_stage stage);

/* ---- Data types -------------------------------------------------------------------------- */

/* From the type of an array to that of a batch: the same type keeps its bits; integers are clamped
 * into integers; to floats there is one rounding, to nearest, ties to even, and NaN stays NaN; from
 * floats to integers it goes towards zero, clamped, NaN becoming 0; to bool: x != 0. */
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
/* The name in Zarr v3: "float32", "bfloat16", "uint16", ...; "native". */
DAMACY_API const char* damacy_dtype_str(damacy_dtype dtype);

/* ---- Hooks the caller may supply --------------------------------------------------------- */

/* Host memory. alloc returns size bytes aligned to `alignment`, a power of two <= 4096, or NULL;
 * free gets the same size. Both may be called from several threads at once, must not call the
 * library, and are needed until the pipeline is destroyed and its last batch is released. */
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
 * the library's and ends with the call. The library itself never prints. An error that fails one
 * sample after another is told at its 1st, 2nd, 4th, 8th, ... time. */
typedef struct damacy_logger {
    void* user;
    void (*log)(void* user, damacy_log_level level, const char* message);
} damacy_logger;

/* Where objects come from, instead of local files. A key is "<uri>/<name>", such as
 * "volume.zarr/c/0/0/0". The functions may block, are called from several threads at once, must not
 * call the library, and are needed until damacy_destroy returns.
 *
 *   open     *size receives the object's bytes. DAMACY_NOTFOUND, and only that, means that there is
 *            no such object: a chunk then has the fill value. Other failures: IO, OOM, UNSUPPORTED,
 *            TIMEOUT, which become the sample's.
 *   read_at  fills dst with [offset, offset + size). *n_read < size is a short read, which goes on;
 *            0 is the object's end and an error of the sample.
 *   close    ends the use of an object; called once for each that was opened. */
typedef struct damacy_store {
    void* user;
    damacy_status (*open)(void* user, const char* key, void** object, uint64_t* size);
    damacy_status (*read_at)(void* user, void* object, uint64_t offset, void* dst, size_t size,
                             size_t* n_read);
    void (*close)(void* user, void* object);
} damacy_store;

/* ---- Configuration ----------------------------------------------------------------------- */

/* What happens to voxels of a crop that lie outside its array. */
typedef enum damacy_bounds {
    DAMACY_BOUNDS_REJECT = 0, /* the sample fails with DAMACY_INVAL */
    DAMACY_BOUNDS_FILL,       /* the array's fill value */
    DAMACY_BOUNDS_CLAMP,      /* the nearest voxel of the array */
    DAMACY_BOUNDS_REFLECT     /* mirrored about the border voxels, not repeated: 2 1 | 0 1 2 */
} damacy_bounds;

/* What happens when a sample fails. */
typedef enum damacy_on_error {
    DAMACY_ON_ERROR_STOP = 0, /* earlier batches are delivered, then every pop returns the error */
    DAMACY_ON_ERROR_FILL,     /* its voxels are the fill value (0 if unknown); its status tells */
    DAMACY_ON_ERROR_SKIP      /* the sample is left out: the batch holds fewer samples */
} damacy_on_error;

/* Where the threads run and their buffers lie. */
typedef enum damacy_numa {
    DAMACY_NUMA_AUTO = 0, /* on the node of the GPU, if the machine has several; else anywhere */
    DAMACY_NUMA_OFF,      /* anywhere */
    DAMACY_NUMA_PIN       /* on numa_node; a node that cannot be had is INVAL */
} damacy_numa;

typedef enum damacy_gds {
    DAMACY_GDS_AUTO = 0, /* GPUDirect Storage where it is available and pays */
    DAMACY_GDS_ON,
    DAMACY_GDS_OFF
} damacy_gds;

/* Whether a GPU copies from local files that are in the page cache, without the CPU. Files of 1 MiB
 * and more, once an eighth of the file was asked for; raw, zstd and blosc chunks without a checksum
 * around them. The files take at most half of max_host_bytes, and one that is deleted meanwhile
 * keeps its place on the disk until others need the room or the pipeline is destroyed. When one
 * makes room the driver waits for all that runs in the CUDA context, and new work waits for it. */
typedef enum damacy_mapping {
    DAMACY_MAPPING_AUTO = 0, /* OFF, for now: not measured where files are more than the room */
    DAMACY_MAPPING_ON,       /* where it is possible; 2 to 30 % faster, and spares threads */
    DAMACY_MAPPING_OFF       /* files are always read */
} damacy_mapping;

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

/* All zero is a working configuration: each field's default is stated. Copied at create, with what
 * scale, offset and cache_dir point to. */
typedef struct damacy_config {
    uint32_t sample_rank; /* axes of a crop; 0: taken, with the shape, from the first sample */
    int64_t sample_shape[DAMACY_MAX_RANK]; /* voxels per axis */
    uint32_t samples_per_batch;            /* 0: 1 */
    uint32_t lookahead_samples;            /* samples that wait inside; 0: max(4 batches, 64) */
    uint32_t batch_slots;                  /* batches in the making or held; 0: 3; at least 2 */
    damacy_dtype dtype;                    /* of batches; 0: f32. NATIVE: that of the first array */
    int32_t device;                        /* DAMACY_AUTO, DAMACY_CPU or DAMACY_GPU(n) */
    damacy_bounds bounds;
    damacy_on_error on_error;
    uint32_t level; /* of resolution, where a uri names an NGFF multiscale group; 0: the full one */

    /* out = (float)voxel * scale[c] + offset[c] for float outputs, c counted from 0 where the box
     * begins along its axis channel_axis. n_channels: entries of scale and offset; 0: off; 1: the
     * same for all voxels. scale NULL: 1; offset NULL: 0. */
    uint32_t n_channels;
    uint32_t channel_axis;
    const float* scale;
    const float* offset;

    uint64_t max_gpu_bytes;  /* device memory, hard; 0: a quarter of what is free at create. Kept
                              * chunks take what is left of it, unless max_cache_bytes says less */
    uint64_t max_host_bytes; /* host memory, hard; 0: a quarter of the machine's, at most 8 GiB */
    /* Decoded chunks that are kept for later batches, in the memory of the batches: part of
     * max_gpu_bytes, on the CPU of max_host_bytes. 0: what that leaves once batches and buffers,
     * and on the CPU room for metadata, are taken, of a GPU at most half of what is free then; 1:
     * none. */
    uint64_t max_cache_bytes;
    uint64_t max_read_bytes; /* of one coalesced read; 0: 4 MiB */
    uint32_t io_threads;     /* 0: three for four CPUs, at least 8 and at most 16 */
    uint32_t decode_threads; /* workers that decode and assemble on the host; 0: one per CPU */

    damacy_store store;         /* open NULL: local files */
    damacy_allocator allocator; /* alloc NULL: malloc */
    damacy_logger logger;       /* log NULL: silent */
    damacy_log_level log_level; /* messages below it are not made; 0: all */

    void* cuda_context;    /* CUcontext to use; NULL: as device says */
    void* cuda_stream;     /* CUstream that uses the batches: damacy_release waits for its work */
    const char* cache_dir; /* of compiled kernels; NULL: $XDG_CACHE_HOME/damacy; "": none */

    damacy_numa numa;
    int32_t numa_node;
    damacy_gds gds;
    damacy_mapping mapping;

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

/* ---- Pipeline ---------------------------------------------------------------------------- */

typedef struct damacy damacy;

typedef struct damacy_interval {
    int64_t begin; /* first voxel, counted from 0 in the array (or level) */
    int64_t end;   /* one past the last */
} damacy_interval;

/* One crop of one array: box[i] along axis i of its metadata. rank is the array's; 0 reads the one
 * voxel of an array without axes. All samples of a pipeline have the same extents. */
typedef struct damacy_sample {
    const char* uri; /* folder of the array or NGFF group, "file:///..." too; copied by push */
    uint32_t rank;
    damacy_interval box[DAMACY_MAX_RANK];
} damacy_sample;

/* Starts a pipeline, to be ended by damacy_destroy. config NULL: all defaults. *out is NULL on
 * failure. Batches take their memory when the first one is made. INVAL, BUDGET, OOM, CUDA,
 * UNSUPPORTED (a GPU was asked for and there is none). */
DAMACY_API damacy_status damacy_create(const damacy_config* config, damacy** out,
                                       damacy_error* err);

/* Stops threads, drops what is in flight, wakes poppers with DAMACY_SHUTDOWN. Batches that are
 * held, and exported tensors, stay valid until they are released. NULL is allowed. Waits for reads
 * that are under way in the operating system and for what the GPU was given, once that has failed
 * for 60 s at most. */
DAMACY_API void damacy_destroy(damacy* d);

/* Queues samples, in order, without blocking; copies what it takes. *n_taken (may be NULL) receives
 * how many. AGAIN: no room for the sample at *n_taken. INVAL, RANK: that sample is malformed or has
 * another shape than the pipeline's; those before it were taken. SHUTDOWN: failed, finished or
 * being destroyed. DEVICE_LOST. Errors of stores surface with the batch. */
DAMACY_API damacy_status damacy_push(damacy* d, const damacy_sample* samples, size_t n,
                                     size_t* n_taken, damacy_error* err);

/* No more samples come: the last batch is delivered even if it is not full; then DAMACY_END. Never
 * blocks; a second call changes nothing. INVAL: NULL. */
DAMACY_API damacy_status damacy_finish(damacy* d);

/* A batch: a value that names one reference. A zeroed one names nothing. */
typedef struct damacy_batch {
    struct damacy__core* core;
    uint64_t id;
} damacy_batch;

/* The next batch, in push order; the caller owns one reference, to be dropped by damacy_release.
 *
 *   pop          blocks until a batch, an error, END or SHUTDOWN. AGAIN when none can come without
 *                another call: fewer samples than a batch were pushed and damacy_finish was not
 *                called, or the caller holds every slot.
 *   try_pop      never blocks: AGAIN.
 *   pop_timeout  blocks at most timeout_ns: TIMEOUT, for whatever reason none came.
 *
 * On the GPU the batch may still be in the making: order work after info.ready_event. With
 * ON_ERROR_STOP a failing sample's status is returned in its batch's place, now and ever after,
 * with err naming the first such sample: NOTFOUND, INVAL (outside its array), RANK, DTYPE, IO,
 * DECODE, UNSUPPORTED, BUDGET, OOM, CUDA. INVAL also: d or out is NULL. DEVICE_LOST. */
DAMACY_API damacy_status damacy_pop(damacy* d, damacy_batch* out, damacy_error* err);
DAMACY_API damacy_status damacy_try_pop(damacy* d, damacy_batch* out, damacy_error* err);
DAMACY_API damacy_status damacy_pop_timeout(damacy* d, uint64_t timeout_ns, damacy_batch* out,
                                            damacy_error* err);

typedef struct damacy_batch_info_t {
    void* ptr;     /* voxels, [samples, sample shape...], C order, 256-byte aligned, on `device`;
                    * the library's: to be read, until the batch is released */
    uint64_t size; /* bytes */
    damacy_dtype dtype;
    int32_t device; /* DAMACY_CPU or DAMACY_GPU(n) */
    uint32_t rank;  /* axes of shape, the sample axis included */
    int64_t shape[DAMACY_MAX_RANK + 1];
    uint64_t id;        /* 0, 1, 2, ... in delivery order */
    uint32_t n_failed;  /* samples whose status is not OK */
    void* ready_stream; /* CUstream on which batches are made, later ones too; NULL on the CPU */
    void* ready_event;  /* CUevent: the voxels are valid after it; NULL on the CPU */
} damacy_batch_info_t;

/* What a batch is and where; never blocks. INVAL when the batch was released. */
DAMACY_API damacy_status damacy_batch_info(damacy_batch batch, damacy_batch_info_t* out);

/* The number (in push order) of the batch's i-th sample, i < info.shape[0], and what became of it;
 * number and status may be NULL; err receives the cause when *status is not OK. INVAL: no such
 * batch or sample. For SKIP, samples that were left out are not counted here; see
 * damacy_batch_failed. */
DAMACY_API damacy_status damacy_batch_sample(damacy_batch batch, uint32_t i, uint64_t* number,
                                             damacy_status* status, damacy_error* err);

/* The cause of the batch's i-th failed sample, i < info.n_failed, in push order, in *err. INVAL:
 * err is NULL, no such batch or sample. */
DAMACY_API damacy_status damacy_batch_failed(damacy_batch batch, uint32_t i, damacy_error* err);

/* Copies the voxels to host memory and waits for that. dst_size must be info.size. For looking at
 * batches and for tests; training reads them where they are. INVAL, OOM, CUDA, DEVICE_LOST: where
 * the cause is a device that hangs, its copy may still write to dst. */
DAMACY_API damacy_status damacy_batch_read(damacy_batch batch, void* dst, size_t dst_size,
                                           damacy_error* err);

/* Adds a reference. INVAL when the batch was released. */
DAMACY_API damacy_status damacy_batch_retain(damacy_batch batch);

/* Drops a reference; with the last one the slot is reused. INVAL, and no effect, when the batch was
 * released already. The slot is reused only after the CUevent, after what is queued in the CUstream
 * now, and for the plain form after what is queued in config.cuda_stream now, if that is set:
 * without it the GPU must have read the batch already. Only this slot waits, so that what is queued
 * may itself wait for a later batch in another slot. On the CPU all are the same. */
DAMACY_API damacy_status damacy_release(damacy_batch batch);
DAMACY_API damacy_status damacy_release_event(damacy_batch batch, void* event);
DAMACY_API damacy_status damacy_release_stream(damacy_batch batch, void* stream);

/* The device of the pipeline: DAMACY_CPU or DAMACY_GPU(n). */
DAMACY_API int32_t damacy_device(const damacy* d);

/* ---- DLPack ------------------------------------------------------------------------------ */

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
 * release and damacy_destroy; its deleter, callable from any thread, does as damacy_release.
 * `stream` is the consumer's CUstream by the DLPack protocol (NULL or 1 legacy default, 2
 * per-thread default, DAMACY_STREAM_NONE): it is made to wait for the batch, and the deleter is a
 * damacy_release_stream on it, so that it may come while kernels still read the tensor; the stream
 * must live as long. Ignored on the CPU. INVAL, OOM, CUDA. */
DAMACY_API damacy_status damacy_batch_dlpack(damacy_batch batch, void* stream,
                                             damacy_dl_managed_versioned** out, damacy_error* err);
DAMACY_API damacy_status damacy_batch_dlpack_legacy(damacy_batch batch, void* stream,
                                                    damacy_dl_managed** out, damacy_error* err);

/* ---- Inspection and one-shot reads ------------------------------------------------------- */

typedef struct damacy_array damacy_array;

/* One resolution level of an NGFF multiscale image. */
typedef struct damacy_level {
    const char* path;                    /* relative to the group */
    double scale[DAMACY_MAX_RANK];       /* physical size of a voxel per axis; 1 if not given */
    double translation[DAMACY_MAX_RANK]; /* physical position of voxel 0; 0 if not given */
} damacy_level;

/* Axes in the order of the metadata, slowest first; everything belongs to the damacy_array. */
typedef struct damacy_array_info_t {
    const char* uri;
    uint32_t rank;
    int64_t shape[DAMACY_MAX_RANK];
    int64_t chunk_shape[DAMACY_MAX_RANK]; /* the unit of decoding, in array axes */
    int64_t shard_shape[DAMACY_MAX_RANK]; /* the unit of storage; chunk_shape without sharding */
    int32_t is_sharded;
    damacy_dtype dtype;
    int32_t is_big_endian;
    uint8_t fill_value[8]; /* bits, little-endian, dtype's size */
    uint32_t zarr_format;
    const char* codecs;           /* such as "sharding_indexed(transpose,bytes,zstd)" */
    const char* data_type;        /* as the metadata says it */
    const char* attributes;       /* JSON text of the array's attributes; "{}" if none */
    const char* group_attributes; /* of the NGFF group's, such as "omero"; NULL: a plain array */
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

/* What was read, without blocking; all that *out points to is the array's, until it is closed. */
DAMACY_API void damacy_array_info(const damacy_array* array, damacy_array_info_t* out);

/* Frees the array and everything that damacy_array_info gave. NULL is allowed. */
DAMACY_API void damacy_array_close(damacy_array* array);

/* Reads one box into host memory: dst is C order, [box extents], of config.dtype (NATIVE allowed),
 * dst_size bytes, which must fit exactly. Uses config (may be NULL) as damacy_create would, on the
 * CPU. Blocks, with threads of its own for the time. A failing chunk is an error whatever on_error
 * says; dst may then hold part of the voxels. Statuses as of damacy_create and damacy_pop. */
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
 * be NULL) for each that is bad. OK also when there are findings. Of
 * config (may be NULL) level, store, allocator and link policy are used; checksums are compared
 * always. Blocks; finding is called on the calling thread. Statuses as of damacy_array_open. */
DAMACY_API damacy_status damacy_verify(const damacy_config* config, const char* uri,
                                       damacy_finding finding, void* user,
                                       damacy_verify_result* out, damacy_error* err);

/* ---- Statistics -------------------------------------------------------------------------- */

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
    uint64_t chunks_decoded; /* each distinct chunk once per batch, less chunks_kept */
    uint64_t chunks_kept;    /* not read or decoded again: kept from a batch before, or shared with
                              * one that decodes it at the same time */
    uint64_t chunks_missing; /* not stored: fill value */
    uint64_t array_hits, array_misses;
    uint64_t index_hits, index_misses;
    uint64_t host_bytes_committed;
    uint64_t cache_bytes; /* of those, on a GPU of the next; for decoded chunks; known with the
                           * first batch */
    uint64_t gpu_bytes_committed;
    uint64_t voxels_delivered;
    uint64_t bytes_mapped;       /* of read: not read but copied by the GPU from the page cache */
    double read_amplification;   /* bytes read / compressed bytes of the chunks that were wanted */
    double decode_amplification; /* bytes decoded / bytes delivered in the source type */
} damacy_stats;

/* Sums since create or reset; counts of what is under way may lag. Never block. d NULL: zeros.
 * Reset keeps committed bytes and cache hits and misses. */
DAMACY_API void damacy_stats_get(const damacy* d, damacy_stats* out);
DAMACY_API void damacy_stats_reset(damacy* d);

#ifdef __cplusplus
}
#endif
#endif /* DAMACY_H */
