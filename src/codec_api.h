/* The second public section: decompression of batches of frames that are in device memory, on a
 * stream of the caller's, without a pipeline.
 *
 * damacy_codec_create once (it compiles kernels, or takes them from the cache); then, for every
 * batch, damacy_codec_decompress with scratch of damacy_codec_scratch_size bytes. Arrays that a
 * batch points to are in device memory. README.md sets it beside nvCOMP's low-level interface.
 *
 * damacy_codec_decompress and damacy_codec_sizes queue kernels and do nothing else: no wait, no
 * read-back, no memory but what the driver takes for graphs. They may be captured in a CUDA graph,
 * and called from any thread on any stream at any time; batches that may run at the same time need
 * scratch of their own. A batch like one before it, with the same kernels, is launched as a CUDA
 * graph (drivers of CUDA 12 and later), of which a codec keeps up to 24, about 300 KiB of device
 * memory each; the first goes kernel by kernel, and of Zstandard frames uses streams of the codec's
 * own besides, between events on the caller's. Neither is done while the stream captures. Hostile
 * bytes are safe: nothing outside a frame is read, nothing outside its output and the scratch is
 * written, and a frame that fails does not concern another. */
#ifndef DAMACY_CODEC_H
#define DAMACY_CODEC_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct damacy_codec damacy_codec;

typedef enum damacy_codec_kind {
    DAMACY_CODEC_ZSTD = 0,      /* Zstandard frames (RFC 8878), several in a row and skippable ones
                                   included; no dictionaries */
    DAMACY_CODEC_LZ4 = 1,       /* an LZ4 block; its size is at most the capacity */
    DAMACY_CODEC_LZ4_SIZED = 2, /* the decoded size, 4 bytes little-endian, then an LZ4 block: the
                                   form of numcodecs */
    DAMACY_CODEC_BLOSC = 3      /* blosc1 chunks of zstd, lz4 and lz4hc, with their shuffles */
} damacy_codec_kind;

/* What became of a frame. Codes below TRUNCATED say nothing about its data. */
typedef enum damacy_frame_status {
    DAMACY_FRAME_OK = 0,
    DAMACY_FRAME_NOT_RUN = 1,      /* a launch failed before */
    DAMACY_FRAME_SKIPPED = 2,      /* its source or destination is NULL */
    DAMACY_FRAME_NEED_SCRATCH = 3, /* did not fit into the scratch that others had left: give more,
                                      or run it again with fewer others */
    DAMACY_FRAME_TOO_LARGE = 4,    /* 2 GiB or more of source */
    DAMACY_FRAME_NO_SPACE = 5,     /* the capacity is too small; its size is the need if that is
                                      known, else 0 */
    DAMACY_FRAME_UNSUPPORTED = 6,  /* legal, but not covered: a dictionary, blosclz, snappy, ... */
    DAMACY_FRAME_TRUNCATED = 16,   /* the source ends inside a structure */
    DAMACY_FRAME_BAD_MAGIC = 17,
    DAMACY_FRAME_BAD_HEADER = 18,
    DAMACY_FRAME_BAD_BLOCK = 19,
    DAMACY_FRAME_BAD_LITERALS = 20,
    DAMACY_FRAME_BAD_HUFFMAN = 21,
    DAMACY_FRAME_BAD_TABLE = 22,
    DAMACY_FRAME_BAD_SEQUENCES = 23,
    DAMACY_FRAME_BAD_OFFSET = 24,    /* a match starts before the data */
    DAMACY_FRAME_SIZE_MISMATCH = 25, /* the decoded size is not the one that a header states */
    DAMACY_FRAME_BAD_CHECKSUM = 26,
    DAMACY_FRAME_TRAILING = 27 /* bytes after the end */
} damacy_frame_status;

/* A short name such as "bad checksum"; "unknown" for other values. */
DAMACY_API const char* damacy_frame_status_str(uint32_t status);

/* A size that is not known without decoding. */
#define DAMACY_SIZE_UNKNOWN UINT64_MAX

/* A batch. Every pointer is to device memory and must be aligned to its type; frames and outputs
 * may lie anywhere, at any alignment, as long as no output overlaps anything else. Everything must
 * stay as it is until the work has run. */
typedef struct damacy_codec_batch {
    uint32_t n_frames;          /* 0 is allowed */
    const uint32_t* n_present;  /* one number: only the first so many frames are there, which the
                                   host need not know; or NULL: n_frames */
    const void* const* srcs;    /* [n_frames] */
    const uint64_t* src_sizes;  /* [n_frames], bytes */
    void* const* dsts;          /* [n_frames] */
    const uint64_t* capacities; /* [n_frames], bytes that may be written at dsts */
    uint64_t* sizes;            /* out, [n_frames], or NULL: decoded bytes; 0 on failure, but for
                                   NO_SPACE */
    uint32_t* statuses;         /* out, [n_frames], or NULL: damacy_frame_status */
    uint64_t* error_offsets;    /* out, [n_frames], or NULL: byte of the source at which the first
                                   error was noticed */
} damacy_codec_batch;

/* What batches may hold. Frames that break the promise are safe, but may get NEED_SCRATCH. Zero
 * below the line: as much as typical data need. damacy_codec_measure fills everything in for one
 * batch, so that no frame of it needs more. */
typedef struct damacy_codec_limits {
    uint32_t max_frames;     /* of a batch */
    uint64_t max_frame_size; /* decoded bytes of the largest frame; for LZ4 its capacity */
    uint64_t total_size;     /* decoded bytes of all together; 0: max_frames * max_frame_size. Where
                                the largest frame is much larger than the mean, large ones are
                                decoded beside the others, by more of the device */
    /* ---- */
    uint64_t work_size;    /* Zstandard: bytes of literals and sequences between the kernels; 0:
                              2.42 bytes per decoded byte, and in any case 4.4 times the largest */
    uint32_t max_blocks;   /* Zstandard: blocks of all frames together; 0: one per 16 KiB, and one
                              per KiB of the largest */
    uint32_t max_streams;  /* blosc: streams of all chunks together; 0: one per 8 KiB */
    uint32_t n_concurrent; /* batches that run at the same time, on streams of their own: each
                              takes its part of the device, which trades its time for that of all;
                              0: 1 */
    uint32_t n_parts;      /* Zstandard: parts in which a batch is decoded, one after another in
                              the same scratch, about 4.9 bytes per decoded byte of a part, where
                              every frame of common blocks fits. Parts of thousands of frames cost
                              little time. 0: 1 */
} damacy_codec_limits;

/* Makes ready to decompress frames of one kind. Of config (may be NULL) device, cuda_context,
 * cuda_stream (whose context is used), cache_dir, skip_checksums and allocator are used, as
 * damacy_create does. Blocks while kernels are compiled: seconds the first time on a machine,
 * milliseconds from the cache. UNSUPPORTED: no GPU that can be used, or device is DAMACY_CPU.
 * INVAL, CUDA, OOM. */
DAMACY_API damacy_status damacy_codec_create(damacy_codec_kind kind, const damacy_config* config,
                                             damacy_codec** out, damacy_error* err);

/* All work that was queued has run, and no graph that holds it is launched again. NULL is allowed.
 */
DAMACY_API void damacy_codec_destroy(damacy_codec* codec);

/* DAMACY_GPU(n). */
DAMACY_API int32_t damacy_codec_device(const damacy_codec* codec);

/* Bytes of scratch for batches within the limits: without measured ones about 2.4 per decoded byte
 * for Zstandard, 6.5 for up to eight frames, which are faster with it, 9 and more for a small one
 * alone; 3.6 for blosc; 72 per frame for LZ4. Calls no driver. INVAL:
 * max_frame_size is 0 or above 2^31 - 1, or sizes that no device has. */
DAMACY_API damacy_status damacy_codec_scratch_size(damacy_codec_kind kind,
                                                   const damacy_codec_limits* limits,
                                                   uint64_t* size, damacy_error* err);

/* Reads the headers of a batch's frames and fills in limits that hold every one of them. Uses srcs
 * and src_sizes, and capacities for LZ4 and for Zstandard frames that do not give their size; other
 * arrays may be NULL. Waits for the stream, and must not be captured. INVAL, CUDA, OOM, BUDGET. */
DAMACY_API damacy_status damacy_codec_measure(damacy_codec* codec, const damacy_codec_batch* batch,
                                              void* stream, damacy_codec_limits* limits,
                                              damacy_error* err);

/* Queues: writes the decoded size of every frame to batch.sizes, as far as headers tell, else
 * DAMACY_SIZE_UNKNOWN: for malformed headers and for Zstandard frames without a content size. For
 * LZ4 blocks without a size the lengths of all sequences are added up, which takes a while. Uses
 * srcs, src_sizes and sizes. INVAL, CUDA, DEVICE_LOST. */
DAMACY_API damacy_status damacy_codec_sizes(damacy_codec* codec, const damacy_codec_batch* batch,
                                            void* stream, damacy_error* err);

/* Queues the decompression of a batch on `stream` (a CUstream or cudaStream_t; NULL: the legacy
 * default stream) and returns. The limits choose how scratch is divided: give those that
 * scratch_size was computed from. `scratch` is device memory, 256-byte aligned, needs no initial
 * content, and may be used again by whatever comes later on the stream; more than was computed lets
 * more untypical frames fit. Outputs of frames that fail hold unspecified bytes.
 *
 * INVAL: more frames than max_frames, a NULL or misaligned array, misaligned scratch. BUDGET:
 * scratch_size is too small for the largest frame; the message says how much is needed. Nothing is
 * queued then. CUDA, DEVICE_LOST: the driver refused; statuses are not written. */
DAMACY_API damacy_status damacy_codec_decompress(damacy_codec* codec,
                                                 const damacy_codec_batch* batch,
                                                 const damacy_codec_limits* limits, void* scratch,
                                                 uint64_t scratch_size, void* stream,
                                                 damacy_error* err);

#ifdef __cplusplus
}
#endif
#endif /* DAMACY_CODEC_H */
