/* Bodies of the public functions that decompress batches without a pipeline: they check arguments
 * and hold what a codec object is made of. Of what changes after create a flag tells whether a call
 * uses it; calls that find it used do without, so they need no lock. */
#pragma once
#include "codec_batch.h"
#include "gpu/device_open.h"
#include "gpu/memory.h"
#include "public.h"

static_assert((int)DAMACY_CODEC_ZSTD == (int)DAMACY__FRAMES_ZSTD &&
                  (int)DAMACY_CODEC_LZ4 == (int)DAMACY__FRAMES_LZ4 &&
                  (int)DAMACY_CODEC_LZ4_SIZED == (int)DAMACY__FRAMES_LZ4_SIZED &&
                  (int)DAMACY_CODEC_BLOSC == (int)DAMACY__FRAMES_BLOSC,
              "kinds are numbered alike");
static_assert((int)DAMACY_FRAME_OK == (int)DAMACY__JOB_OK &&
                  (int)DAMACY_FRAME_NOT_RUN == (int)DAMACY__JOB_NOT_RUN &&
                  (int)DAMACY_FRAME_SKIPPED == (int)DAMACY__JOB_SKIPPED &&
                  (int)DAMACY_FRAME_NEED_SCRATCH == (int)DAMACY__JOB_NEED_SCRATCH &&
                  (int)DAMACY_FRAME_TOO_LARGE == (int)DAMACY__JOB_TOO_LARGE &&
                  (int)DAMACY_FRAME_NO_SPACE == (int)DAMACY__JOB_NO_SPACE &&
                  (int)DAMACY_FRAME_UNSUPPORTED == (int)DAMACY__JOB_UNSUPPORTED &&
                  (int)DAMACY_FRAME_TRUNCATED == (int)DAMACY__JOB_TRUNCATED &&
                  (int)DAMACY_FRAME_BAD_MAGIC == (int)DAMACY__JOB_BAD_MAGIC &&
                  (int)DAMACY_FRAME_BAD_HEADER == (int)DAMACY__JOB_BAD_HEADER &&
                  (int)DAMACY_FRAME_BAD_BLOCK == (int)DAMACY__JOB_BAD_BLOCK &&
                  (int)DAMACY_FRAME_BAD_LITERALS == (int)DAMACY__JOB_BAD_LITERALS &&
                  (int)DAMACY_FRAME_BAD_HUFFMAN == (int)DAMACY__JOB_BAD_HUFFMAN &&
                  (int)DAMACY_FRAME_BAD_TABLE == (int)DAMACY__JOB_BAD_TABLE &&
                  (int)DAMACY_FRAME_BAD_SEQUENCES == (int)DAMACY__JOB_BAD_SEQUENCES &&
                  (int)DAMACY_FRAME_BAD_OFFSET == (int)DAMACY__JOB_BAD_OFFSET &&
                  (int)DAMACY_FRAME_SIZE_MISMATCH == (int)DAMACY__JOB_SIZE_MISMATCH &&
                  (int)DAMACY_FRAME_BAD_CHECKSUM == (int)DAMACY__JOB_BAD_CHECKSUM &&
                  (int)DAMACY_FRAME_TRAILING == (int)DAMACY__JOB_TRAILING,
              "statuses are numbered alike");

/* Frames of batches beside each other up to which their graphs have branches. */
enum { DAMACY__CODEC_BRANCH_FRAMES = 2000 };

struct damacy_codec {
    damacy__alloc alloc;
    damacy__driver driver;
    damacy__device device;
    damacy__compiler compiler;
    damacy__codec_kernels kernels;
    uint32_t kind;
    uint32_t flags;        /* of every job */
    uint32_t is_busy;      /* atomic: a call uses graphs, or side streams of Zstandard kernels */
    damacy__graphs graphs; /* of the call that does */
};

DAMACY_API const char* damacy_frame_status_str(uint32_t status)
{
    static const char* const low[] = {"ok",        "not run",  "skipped",    "need scratch",
                                      "too large", "no space", "unsupported"};
    static const char* const high[] = {
        "truncated", "bad magic",     "bad header", "bad block",     "bad literals", "bad huffman",
        "bad table", "bad sequences", "bad offset", "size mismatch", "bad checksum", "trailing"};

    if (status < DAMACY__COUNT(low)) {
        return low[status];
    }
    return status - DAMACY__JOB_TRUNCATED < DAMACY__COUNT(high)
               ? high[status - DAMACY__JOB_TRUNCATED]
               : "unknown";
}

/* ---- making and unmaking ---- */

static damacy_status damacy__codec_open(damacy_codec* codec, const damacy_config* config,
                                        damacy_error* err)
{
    damacy__device_config device;
    damacy_status status;

    memset(&device, 0, sizeof device);
    device.device = config->device;
    device.context = config->cuda_context;
    device.stream = config->cuda_stream;
    device.max_bytes = 1 << 20; /* the only memory taken is that of a measurement */
    DAMACY__TRY(damacy__driver_load(&codec->driver, err));
    DAMACY__TRY(damacy__device_find(&codec->device, &codec->driver, &codec->alloc, &device, err));
    DAMACY__TRY(damacy__compiler_init(&codec->compiler, &codec->alloc, &codec->driver,
                                      codec->device.architecture, damacy__sources,
                                      DAMACY__COUNT(damacy__sources), config->cache_dir, err));
    damacy__compiler_hold(&codec->compiler);
    DAMACY__TRY(damacy__codec_kernels_start(&codec->kernels, codec->kind, &codec->device,
                                            &codec->compiler, err));
    DAMACY__TRY(damacy__device_connect(&codec->device, err));
    damacy__compiler_release(&codec->compiler, true);
    DAMACY__TRY(damacy__device_enter(&codec->device, err));
    status = damacy__codec_kernels_finish(&codec->kernels, &codec->device, err);
    damacy__graphs_init(&codec->graphs, &codec->device, &codec->alloc);
    damacy__device_leave(&codec->device);
    return status;
}

DAMACY_API void damacy_codec_destroy(damacy_codec* codec)
{
    damacy__alloc alloc;

    if (!codec || (codec->device.driver && codec->device.pid != getpid())) {
        return; /* a forked child has no part in it */
    }
    if (codec->compiler.alloc) {
        damacy__compiler_release(&codec->compiler, false);
    }
    damacy__graphs_deinit(&codec->graphs, &codec->device);
    damacy__codec_kernels_deinit(&codec->kernels, &codec->device);
    damacy__compiler_deinit(&codec->compiler);
    damacy__device_close(&codec->device);
    alloc = codec->alloc;
    damacy__free(&alloc, codec, 1);
}

DAMACY_API damacy_status damacy_codec_create(damacy_codec_kind kind, const damacy_config* config,
                                             damacy_codec** out, damacy_error* err)
{
    damacy_config none;
    damacy__alloc alloc;
    damacy_error local;
    damacy_codec* codec;
    damacy_status status;

    err = damacy__public_error(err, &local);
    err->stage = DAMACY_STAGE_CONFIG;
    memset(&none, 0, sizeof none);
    memset(&alloc, 0, sizeof alloc);
    config = config ? config : &none;
    if (!out || (unsigned)kind > (unsigned)DAMACY_CODEC_BLOSC) {
        return damacy__fail(err, DAMACY_INVAL, out ? "no codec kind %u" : "out is NULL (kind %u)",
                            (unsigned)kind);
    }
    *out = NULL;
    if (config->device < DAMACY_AUTO) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "batches of frames are decompressed on a GPU, device is %d",
                            config->device);
    }
    alloc.user = config->allocator;
    codec = damacy__new(&alloc, 1, damacy_codec);
    if (!codec) {
        return damacy__fail(err, DAMACY_OOM, "records of a codec");
    }
    codec->alloc = alloc;
    codec->kind = (uint32_t)kind;
    codec->flags = (config->skip_checksums ? (uint32_t)DAMACY__JOB_NO_CHECKSUM : 0) |
                   (kind == DAMACY_CODEC_LZ4_SIZED ? (uint32_t)DAMACY__LZ4_SIZE_PREFIX : 0);
    status = damacy__codec_open(codec, config, err);
    if (status != DAMACY_OK) {
        damacy_codec_destroy(codec);
        return status;
    }
    *out = codec;
    return DAMACY_OK;
}

DAMACY_API int32_t damacy_codec_device(const damacy_codec* codec)
{
    return codec ? DAMACY_GPU(codec->device.ordinal) : DAMACY_CPU;
}

/* ---- calls ---- */

static bool damacy__codec_is_aligned(const void* ptr, uint32_t size)
{
    return (uintptr_t)ptr % size == 0;
}

/* needs_output: dsts, capacities. The err is that of the library. */
static damacy_status damacy__codec_check(const damacy_codec* codec, const damacy_codec_batch* batch,
                                         bool needs_output, damacy_error* err)
{
    if (!codec || !batch) {
        return damacy__fail(err, DAMACY_INVAL, "the %s is NULL", codec ? "batch" : "codec");
    }
    if (batch->n_frames == 0) {
        return DAMACY_OK;
    }
    if (!batch->srcs || !batch->src_sizes ||
        (needs_output && (!batch->dsts || !batch->capacities))) {
        return damacy__fail(err, DAMACY_INVAL, "an array of the batch is NULL: %s",
                            !batch->srcs        ? "srcs"
                            : !batch->src_sizes ? "src_sizes"
                            : !batch->dsts      ? "dsts"
                                                : "capacities");
    }
    if (!damacy__codec_is_aligned(batch->srcs, 8) || !damacy__codec_is_aligned(batch->dsts, 8) ||
        !damacy__codec_is_aligned(batch->src_sizes, 8) ||
        !damacy__codec_is_aligned(batch->capacities, 8) ||
        !damacy__codec_is_aligned(batch->sizes, 8) ||
        !damacy__codec_is_aligned(batch->error_offsets, 8) ||
        !damacy__codec_is_aligned(batch->statuses, 4) ||
        !damacy__codec_is_aligned(batch->n_present, 4)) {
        return damacy__fail(err, DAMACY_INVAL, "an array of the batch is not aligned to its type");
    }
    return DAMACY_OK;
}

static uint64_t damacy__codec_address(const void* ptr)
{
    return (uint64_t)(uintptr_t)ptr;
}

static void damacy__codec_begin(damacy_codec* codec, const damacy_codec_batch* batch, void* stream,
                                damacy__codec_call* call)
{
    damacy__codec_frames* f = &call->frames;

    memset(call, 0, sizeof *call);
    call->kernels = &codec->kernels;
    call->device = &codec->device;
    call->stream = stream;
    call->kind = codec->kind;
    f->srcs = damacy__codec_address((const void*)batch->srcs);
    f->src_sizes = damacy__codec_address(batch->src_sizes);
    f->dsts = damacy__codec_address((const void*)batch->dsts);
    f->capacities = damacy__codec_address(batch->capacities);
    f->sizes = damacy__codec_address(batch->sizes);
    f->statuses = damacy__codec_address(batch->statuses);
    f->error_offsets = damacy__codec_address(batch->error_offsets);
    f->count = damacy__codec_address(batch->n_present);
    f->n = batch->n_frames;
    f->flags = codec->flags;
    f->kind = codec->kind;
}

/* Also for a stream that the driver will not tell about: the launches will say why. */
static bool damacy__codec_is_capturing(damacy_codec* codec, void* stream)
{
    int state = 0;

    return codec->driver.stream_capturing(stream, &state) != DAMACY__CUDA_OK || state != 0;
}

/* Scratch of a call, and what it is to hold. */
typedef struct damacy__codec_room {
    const damacy_codec_limits* limits;
    uint64_t scratch; /* device address */
    uint64_t size;
} damacy__codec_room;

/* All that decides what a call queues. */
static void damacy__codec_key(const damacy__codec_call* call, const damacy__codec_room* room,
                              damacy__graph_key* key)
{
    const damacy__codec_frames* f = &call->frames;
    const damacy_codec_limits* l = room->limits;
    const uint64_t words[] = {f->srcs,        f->src_sizes,    f->dsts,          f->capacities,
                              f->sizes,       f->statuses,     f->error_offsets, f->count,
                              f->n,           room->scratch,   room->size,       l->max_frame_size,
                              l->total_size,  l->work_size,    l->max_frames,    l->max_blocks,
                              l->max_streams, l->n_concurrent, l->n_parts};

    static_assert(sizeof words <= sizeof key->words, "room for all");
    memset(key, 0, sizeof *key);
    memcpy(key->words, words, sizeof words);
}

/* Queues the batch, as a graph if there are any. Beside others batches of many frames are graphs of
 * one kernel after another, as branches would take from each other what room there is; queued
 * kernel by kernel, where they would share side streams, all are. */
static damacy_status damacy__codec_queue(damacy_codec* codec, damacy__codec_call* call,
                                         const damacy__codec_room* room, bool is_mine,
                                         damacy_error* err)
{
    const bool has_company = call->n_concurrent > 1;
    damacy__codec_layout layout;
    damacy__graph_key key;

    damacy__codec_key(call, room, &key);
    if (is_mine && damacy__graphs_again(&codec->graphs, &codec->device, &key, call->stream)) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__codec_layout_of(codec->kind, room->limits, DAMACY__MAX(room->size, 1),
                                        &layout, err));
    call->draft = is_mine ? damacy__graphs_begin(&codec->graphs) : NULL;
    if (call->draft) {
        call->is_alone = has_company && (uint64_t)call->frames.n * call->n_concurrent >
                                            DAMACY__CODEC_BRANCH_FRAMES;
        DAMACY__TRY(damacy__codec_launch(call, &layout, room->scratch, err));
        if (damacy__graphs_launch(&codec->graphs, &codec->device, &key, call->stream)) {
            return DAMACY_OK;
        }
        call->draft = NULL;
    }
    call->is_alone = !is_mine || has_company;
    return damacy__codec_launch(call, &layout, room->scratch, err);
}

DAMACY_API damacy_status damacy_codec_scratch_size(damacy_codec_kind kind,
                                                   const damacy_codec_limits* limits,
                                                   uint64_t* size, damacy_error* err)
{
    damacy__codec_layout layout;
    damacy_error local;

    err = damacy__public_error(err, &local);
    err->stage = DAMACY_STAGE_DECODE;
    if (!limits || !size || (unsigned)kind > (unsigned)DAMACY_CODEC_BLOSC) {
        return damacy__fail(err, DAMACY_INVAL, "kind %u, limits or size NULL", (unsigned)kind);
    }
    DAMACY__TRY(damacy__codec_layout_of((uint32_t)kind, limits, 0, &layout, err));
    *size = layout.size;
    return DAMACY_OK;
}

DAMACY_API damacy_status damacy_codec_sizes(damacy_codec* codec, const damacy_codec_batch* batch,
                                            void* stream, damacy_error* err)
{
    damacy__codec_call call;
    damacy_error local;
    damacy_status status;

    err = damacy__public_error(err, &local);
    err->stage = DAMACY_STAGE_DECODE;
    DAMACY__TRY(damacy__codec_check(codec, batch, false, err));
    if (batch->n_frames == 0) {
        return DAMACY_OK;
    }
    if (!batch->sizes) {
        return damacy__fail(err, DAMACY_INVAL, "an array of the batch is NULL: sizes");
    }
    damacy__codec_begin(codec, batch, stream, &call);
    DAMACY__TRY(damacy__device_enter(&codec->device, err));
    status = damacy__codec_step(&call, DAMACY__CODEC_SIZES, err);
    damacy__device_leave(&codec->device);
    return status;
}

DAMACY_API damacy_status damacy_codec_decompress(damacy_codec* codec,
                                                 const damacy_codec_batch* batch,
                                                 const damacy_codec_limits* limits, void* scratch,
                                                 uint64_t scratch_size, void* stream,
                                                 damacy_error* err)
{
    damacy__codec_room room;
    damacy__codec_call call;
    damacy_error local;
    damacy_status status;
    bool is_mine;

    err = damacy__public_error(err, &local);
    err->stage = DAMACY_STAGE_DECODE;
    DAMACY__TRY(damacy__codec_check(codec, batch, true, err));
    if (batch->n_frames == 0) {
        return DAMACY_OK;
    }
    if (!limits || !scratch || !damacy__codec_is_aligned(scratch, 256)) {
        return damacy__fail(err, DAMACY_INVAL,
                            limits ? "scratch is NULL or not aligned to 256 bytes"
                                   : "limits is NULL");
    }
    if (batch->n_frames > limits->max_frames) {
        return damacy__fail(err, DAMACY_INVAL, "a batch of %u frames, max_frames is %u",
                            batch->n_frames, limits->max_frames);
    }
    damacy__codec_begin(codec, batch, stream, &call);
    call.likely_size = batch->n_frames * limits->max_frame_size;
    if (limits->total_size) {
        call.likely_size = DAMACY__MIN(call.likely_size, limits->total_size);
    }
    call.likely_most = limits->max_frame_size;
    call.likely_streams = limits->max_streams
                              ? limits->max_streams
                              : damacy__blosc_likely(batch->n_frames, call.likely_size);
    call.n_concurrent = limits->n_concurrent;
    room.limits = limits;
    room.scratch = damacy__codec_address(scratch);
    room.size = scratch_size;
    DAMACY__TRY(damacy__device_enter(&codec->device, err));
    /* who comes first has graphs and side streams */
    is_mine = !damacy__codec_is_capturing(codec, stream) &&
              __atomic_exchange_n(&codec->is_busy, 1, __ATOMIC_ACQUIRE) == 0;
    status = damacy__codec_queue(codec, &call, &room, is_mine, err);
    if (is_mine) {
        __atomic_store_n(&codec->is_busy, 0, __ATOMIC_RELEASE);
    }
    damacy__device_leave(&codec->device);
    return status;
}

/* ---- measuring ---- */

/* What was added up -> limits that just hold it. */
static damacy_status damacy__codec_limits_of(const damacy_codec_batch* batch,
                                             const damacy__codec_totals* t,
                                             damacy_codec_limits* out, damacy_error* err)
{
    const uint64_t blocks = DAMACY__MAX(DAMACY__MAX(t->n_blocks, t->n_frames), t->n_headers / 2);

    if (blocks > 1u << 30 || t->n_streams > 1u << 28) {
        return damacy__fail(err, DAMACY_BUDGET,
                            "%" PRIu64 " blocks and %" PRIu64 " streams in %u frames: too many",
                            blocks, t->n_streams, batch->n_frames);
    }
    memset(out, 0, sizeof *out);
    out->max_frames = batch->n_frames;
    out->max_frame_size = DAMACY__MAX(t->largest, 1);
    out->total_size = DAMACY__MAX(t->size, 1);
    out->work_size = DAMACY__MAX(t->n_work_bytes, 1);
    out->max_blocks = (uint32_t)DAMACY__MAX(blocks, 1);
    out->max_streams = (uint32_t)DAMACY__MAX(t->n_streams, 1);
    return DAMACY_OK;
}

/* The context is current. */
static damacy_status damacy__codec_measure(damacy__codec_call* call, damacy__codec_totals* totals,
                                           damacy_error* err)
{
    damacy__device* device = call->device;
    uint64_t address = 0;
    damacy_status status;

    DAMACY__TRY(damacy__device_alloc(device, sizeof *totals, "a measurement", &address, err));
    call->frames.totals = address;
    status = damacy__fill_device(device, address, 0, sizeof *totals, call->stream, err);
    if (status == DAMACY_OK) {
        status = damacy__codec_step(call, DAMACY__CODEC_MEASURE, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__copy_to_host(device, totals, address, sizeof *totals, call->stream, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__device_check(device, device->driver->stream_synchronize(call->stream), err,
                                      "work on the stream (seen at cuStreamSynchronize)");
    }
    damacy__device_free(device, address, sizeof *totals);
    return status;
}

DAMACY_API damacy_status damacy_codec_measure(damacy_codec* codec, const damacy_codec_batch* batch,
                                              void* stream, damacy_codec_limits* limits,
                                              damacy_error* err)
{
    damacy__codec_totals totals;
    damacy__codec_call call;
    damacy_error local;
    damacy_status status = DAMACY_OK;

    err = damacy__public_error(err, &local);
    err->stage = DAMACY_STAGE_DECODE;
    DAMACY__TRY(damacy__codec_check(codec, batch, false, err));
    if (!limits) {
        return damacy__fail(err, DAMACY_INVAL, "limits is NULL");
    }
    memset(&totals, 0, sizeof totals);
    if (batch->n_frames) {
        damacy__codec_begin(codec, batch, stream, &call);
        DAMACY__TRY(damacy__device_enter(&codec->device, err));
        if (damacy__codec_is_capturing(codec, stream)) {
            status = damacy__fail(err, DAMACY_INVAL, "the stream captures: measuring waits for it");
        } else {
            status = damacy__codec_measure(&call, &totals, err);
        }
        damacy__device_leave(&codec->device);
    }
    return status == DAMACY_OK ? damacy__codec_limits_of(batch, &totals, limits, err) : status;
}
