/* The GPU side of a pipeline: its device, its kernels and its waves.
 *
 * A wave is a fixed share of device memory, with room for compressed bytes, decoded chunks and the
 * tables of one round of work: transfer, decode, assemble. Several waves are under way at a time,
 * so that one is sent while another is decoded. They are decoded one after another, on one stream
 * and with one scratch. All memory is made once, when the shape of batches is known. */
#pragma once
#include "gpu/copies.h"
#include "gpu/memory.h"
#include "gpu/program.h"
#include "stage/assemble_launch.h"
#include "stage/core.h"
#include "stage/kernel_sources.h"
#include "stage/lz_launch.h"
#include "stage/zstd_launch.h"

enum {
    DAMACY__WAVES = 3,
    DAMACY__WAVE_UNITS = 8192 /* chunks and runs of fills, at most; fewer in small waves */
};

/* Host memory of a wave's tables, pinned, and its twin on the device: same offsets. */
typedef struct damacy__wave_tables {
    uint64_t n_zstd; /* uint32_t; the counts first, then these jobs, which are sent with them */
    uint64_t n_blosc;
    uint64_t n_lz4;
    uint64_t zstd_jobs; /* damacy__job[max_units] */
    uint64_t blosc_jobs;
    uint64_t lz4_jobs;
    uint64_t zstd_results; /* damacy__job_result[max_units], sent back */
    uint64_t blosc_results;
    uint64_t lz4_results;
    uint64_t list;  /* of assembling */
    uint64_t moves; /* damacy__move[max_moves] of what is sent; read on the host */
    uint64_t size;
} damacy__wave_tables;

typedef struct damacy__wave {
    uint64_t input; /* device addresses */
    uint64_t output;
    uint64_t tables;
    damacy__pinned host;   /* the tables' twin */
    damacy__stream stream; /* of its decoding and assembling: that of all waves */
    damacy__event sent;    /* the host's bytes are on the device */
    damacy__event done;    /* everything */
    damacy__assemble_list list;
    damacy__unit** units; /* max_units */
    uint32_t n_units;
    uint32_t n_copies;
    uint32_t n_zstd;
    uint32_t n_blosc;
    uint32_t n_lz4;
    uint64_t input_used;
    uint64_t output_used;
    uint64_t output_zstd; /* bytes that zstd will write, blosc's included */
    uint64_t output_lz4;  /* bytes that LZ4 will write, and each one's largest job */
    uint64_t most_zstd;
    uint64_t most_lz4;
    bool is_running;
    bool is_sent; /* staging space went back */
    uint64_t start_ns;
} damacy__wave;

typedef struct damacy__gpu {
    damacy__core* core;
    damacy__driver driver;
    damacy__device device;
    damacy__compiler compiler;
    bool has_compiler;
    damacy__zstd_kernels zstd;
    bool has_zstd;
    damacy__lz_kernels lz;
    bool has_lz;
    damacy__program assemble; /* a kernel for each source type */
    bool is_loaded; /* create, then GPU thread only */
    damacy__stream copy_stream;
    damacy__copies copies; /* GPU thread only: those of the wave that is being sent */
    damacy__stream stream;
    damacy__stream read_stream; /* of damacy_batch_read */
    damacy__stream gate_stream; /* waits for events of consumers */
    damacy__stream mark_stream; /* of events of batches that are made: nothing else is queued */
    damacy__pinned staging;     /* made by pin_thread */
    uint64_t staging_size;
    pthread_t pin_thread;
    bool has_pin_thread;      /* create, then scheduler, then stop */
    damacy_status pin_status; /* pin_thread; read once it was joined, as is all that follows */
    damacy_error pin_error;
    uint64_t pin_ns;
    uint64_t affine; /* device address of scale and offset */
    uint64_t affine_size;
    uint64_t slot_size;
    uint64_t kept; /* device address of chunks for later batches; scheduler, then stop */
    uint64_t kept_size;

    uint32_t max_units;  /* of a wave */
    uint32_t max_copies; /* jobs of assembling in a wave */
    uint32_t max_axes;
    uint32_t max_moves;
    uint64_t input_size;
    uint64_t output_size;
    uint64_t
        output_limit; /* GPU thread: what waves take now; less after one did not fit its scratch */
    damacy__zstd_layout zstd_layout;
    damacy__blosc_layout blosc_layout;
    uint64_t scratch; /* of the wave that is decoded: of zstd, then of blosc */
    uint64_t scratch_size;
    damacy__wave_tables tables;
    damacy__wave waves[DAMACY__WAVES];

    pthread_t thread;
    bool has_thread;
    damacy__mutex mutex;
    damacy__condition wake;
    damacy__task_list queue; /* guarded by mutex: units that wait for a wave */
    bool stop;               /* guarded by mutex */
    bool has_failed;         /* GPU thread only: no more work is given to the device */
    damacy_error failure;    /* GPU thread only */
    uint64_t failed_ns;      /* GPU thread only: when it failed */
    uint64_t patience_ns;    /* constant: for how long what was queued then may go on */
} damacy__gpu;

static damacy_status damacy__gpu_make_waves(damacy__gpu* gpu, uint64_t slots_size,
                                            damacy_error* err);
static damacy_status damacy__gpu_make_slot(damacy__gpu* gpu, damacy__slot* slot, uint64_t size,
                                           damacy_error* err);
static void damacy__gpu_free_slot(damacy__gpu* gpu, damacy__slot* slot);
static void damacy__gpu_close(damacy__gpu* gpu);

/* No more work is given to the device. GPU thread only. */
static void damacy__gpu_fail(damacy__gpu* gpu, const damacy_error* error)
{
    if (!gpu->has_failed) {
        gpu->has_failed = true;
        gpu->failure = *error;
        gpu->failed_ns = damacy__now_ns();
        damacy__core_log(gpu->core, DAMACY_LOG_ERROR, "GPU: %s", error->message);
    }
}

/* ---- memory ---- */

static uint64_t damacy__tables_take(uint64_t* at, uint64_t size)
{
    const uint64_t offset = *at;

    *at = damacy__align_up(*at + size, 256);
    return offset;
}

static void damacy__gpu_size_tables(damacy__gpu* gpu)
{
    damacy__wave_tables* t = &gpu->tables;
    const uint64_t n = gpu->max_units;
    uint64_t at = 0;

    t->n_zstd = damacy__tables_take(&at, 3 * sizeof(uint32_t));
    t->n_blosc = t->n_zstd + sizeof(uint32_t);
    t->n_lz4 = t->n_blosc + sizeof(uint32_t);
    t->zstd_jobs = damacy__tables_take(&at, n * sizeof(damacy__job));
    t->blosc_jobs = damacy__tables_take(&at, n * sizeof(damacy__job));
    t->lz4_jobs = damacy__tables_take(&at, n * sizeof(damacy__job));
    t->zstd_results = damacy__tables_take(&at, n * sizeof(damacy__job_result));
    t->blosc_results = damacy__tables_take(&at, n * sizeof(damacy__job_result));
    t->lz4_results = damacy__tables_take(&at, n * sizeof(damacy__job_result));
    t->list = damacy__tables_take(&at, damacy__assemble_list_size(gpu->max_copies, gpu->max_axes));
    t->moves = damacy__tables_take(&at, gpu->max_moves * sizeof(damacy__move));
    t->size = at;
}

static damacy_status damacy__gpu_make_wave(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    damacy__device* device = &gpu->device;

    wave->units = damacy__new(&gpu->core->alloc, gpu->max_units, damacy__unit*);
    if (!wave->units) {
        return damacy__fail(err, DAMACY_OOM, "records of a wave");
    }
    DAMACY__TRY(
        damacy__device_alloc(device, gpu->input_size, "stored bytes of a wave", &wave->input, err));
    DAMACY__TRY(
        damacy__device_alloc(device, gpu->output_size, "chunks of a wave", &wave->output, err));
    DAMACY__TRY(
        damacy__device_alloc(device, gpu->tables.size, "tables of a wave", &wave->tables, err));
    DAMACY__TRY(
        damacy__pinned_alloc(device, gpu->tables.size, "tables of a wave", &wave->host, err));
    wave->stream = gpu->stream;
    DAMACY__TRY(damacy__event_open(device, false, &wave->sent, err));
    DAMACY__TRY(damacy__event_open(device, false, &wave->done, err));
    damacy__assemble_list_init(&wave->list, wave->host.ptr + gpu->tables.list, gpu->max_copies,
                               gpu->max_axes, gpu->core->out_dtype);
    return DAMACY_OK;
}

/* The parts of a wave of `size` bytes of chunks, at least 1 MiB. Blosc adds its streams to the
 * tables of the other decoders, at least 8 KiB each on average; a chunk of more of them is tried
 * again in a smaller wave. */
static damacy_status damacy__gpu_size_wave(damacy__gpu* gpu, uint64_t size, damacy_error* err)
{
    damacy__zstd_limits zstd;
    damacy__blosc_limits blosc;

    memset(&zstd, 0, sizeof zstd);
    memset(&blosc, 0, sizeof blosc);
    gpu->max_units = (uint32_t)DAMACY__MIN(size / 8192, (uint64_t)DAMACY__WAVE_UNITS);
    gpu->max_copies = DAMACY__MAX(4 * gpu->max_units, 4096u);
    gpu->max_axes = 2 * gpu->max_copies;
    gpu->output_size = size;
    gpu->input_size = size + (UINT64_C(4) << 20);
    gpu->max_moves = gpu->max_units + (uint32_t)(gpu->input_size / DAMACY__GATHER_MAX) + 64;
    damacy__gpu_size_tables(gpu);
    blosc.max_chunks = gpu->max_units;
    blosc.dst_size = size;
    blosc.stream_size = 8192;
    blosc.first_zstd = gpu->max_units;
    if (!damacy__blosc_layout_of(&blosc, &gpu->blosc_layout)) {
        return damacy__fail(err, DAMACY_INVAL, "waves of %" PRIu64 " bytes", size);
    }
    zstd.max_jobs = gpu->blosc_layout.wave.max_zstd;
    zstd.dst_size = size;
    zstd.largest_size = size / 2;
    zstd.pool_size = size / 10 * 25; /* the waves share it: also data denser than usual fit */
    DAMACY__TRY(damacy__zstd_layout_of(&zstd, &gpu->zstd_layout, err));
    gpu->scratch_size = gpu->zstd_layout.size + gpu->blosc_layout.size;
    return DAMACY_OK;
}

/* Sizes the waves to what slots leave of the budget, at most 512 MiB of chunks each, and makes
 * them. Called once by the scheduler, with the context current. */
static damacy_status damacy__gpu_make_waves(damacy__gpu* gpu, uint64_t slots_size,
                                            damacy_error* err)
{
    const uint64_t budget = gpu->device.budget;
    uint64_t size = UINT64_C(512) << 20;
    uint64_t need = 0;

    for (; size >= UINT64_C(1) << 20; size /= 2) {
        DAMACY__TRY(damacy__gpu_size_wave(gpu, size, err));
        need = DAMACY__WAVES * (gpu->input_size + gpu->output_size + gpu->tables.size) +
               gpu->scratch_size;
        if (slots_size + gpu->affine_size + need <= budget) {
            break;
        }
    }
    if (slots_size + gpu->affine_size + need > budget) {
        return damacy__fail(err, DAMACY_BUDGET,
                            "max_gpu_bytes %" PRIu64 ": %u batch slots take %" PRIu64
                            " bytes and the smallest waves %" PRIu64,
                            budget, gpu->core->config.batch_slots, slots_size, need);
    }
    gpu->output_limit = gpu->output_size;
    DAMACY__TRY(damacy__device_alloc(&gpu->device, gpu->scratch_size, "scratch of waves",
                                     &gpu->scratch, err));
    for (uint32_t i = 0; i < DAMACY__WAVES; i++) {
        DAMACY__TRY(damacy__gpu_make_wave(gpu, &gpu->waves[i], err));
    }
    return DAMACY_OK;
}

/* The memory and events of one batch slot. The context is current. */
static damacy_status damacy__gpu_make_slot(damacy__gpu* gpu, damacy__slot* slot, uint64_t size,
                                           damacy_error* err)
{
    uint64_t address = 0;
    damacy__event event = NULL;

    DAMACY__TRY(damacy__device_alloc(&gpu->device, size, "a batch", &address, err));
    slot->ptr = (uint8_t*)(uintptr_t)address;
    gpu->slot_size = size;
    DAMACY__TRY(damacy__event_open(&gpu->device, false, &event, err));
    slot->ready_event = (uint64_t)(uintptr_t)event;
    return DAMACY_OK;
}

/* Waits for the pinned memory that is made in the background. */
static void damacy__gpu_join_pin(damacy__gpu* gpu)
{
    if (gpu->has_pin_thread) {
        pthread_join(gpu->pin_thread, NULL);
        gpu->has_pin_thread = false;
    }
}

/* Waves and slots, once the shape of batches is known. Scheduler thread. */
static damacy_status damacy__gpu_make_memory(damacy__gpu* gpu, uint64_t slot_size,
                                             uint64_t slots_size, damacy_error* err)
{
    damacy__core* core = gpu->core;
    const uint64_t begin = damacy__now_ns();
    damacy_status status = damacy__device_enter(&gpu->device, err);

    if (status != DAMACY_OK) {
        return status;
    }
    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        core->slots[i].size = slot_size;
    }
    damacy__gpu_join_pin(gpu);
    if (gpu->pin_status != DAMACY_OK) {
        *err = gpu->pin_error;
        status = gpu->pin_status;
    } else if (slots_size > gpu->device.budget) {
        status = damacy__fail(err, DAMACY_BUDGET,
                              "max_gpu_bytes %" PRIu64 ": %u batch slots of %" PRIu64
                              " bytes do not fit",
                              gpu->device.budget, core->config.batch_slots, slot_size);
    }
    if (status == DAMACY_OK) {
        status = damacy__gpu_make_waves(gpu, slots_size, err);
    }
    for (uint32_t i = 0; i < core->config.batch_slots && status == DAMACY_OK; i++) {
        status = damacy__gpu_make_slot(gpu, &core->slots[i], slot_size, err);
    }
    damacy__device_leave(&gpu->device);
    core->staging = gpu->staging.ptr;
    damacy__core_log(core, DAMACY_LOG_DEBUG,
                     "time: first batch: pinned %.1f ms (aside), device memory %.1f ms",
                     (double)gpu->pin_ns * 1e-6, (double)(damacy__now_ns() - begin) * 1e-6);
    return status;
}

/* How many bytes decoded chunks may take: what max_gpu_bytes leaves, and unless the caller has
 * named a size, half of what the GPU has left, which others may count on. The context is current.
 */
static damacy_status damacy__gpu_kept_size(damacy__gpu* gpu, uint64_t* out, damacy_error* err)
{
    const uint64_t limit = gpu->core->config.max_cache_bytes;
    const uint64_t used = __atomic_load_n(&gpu->device.committed, __ATOMIC_RELAXED);
    const uint64_t left = gpu->device.budget > used ? gpu->device.budget - used : 0;
    size_t free_size = 0;
    size_t total_size = 0;

    DAMACY__TRY(damacy__device_check(&gpu->device,
                                     gpu->device.driver->memory_info(&free_size, &total_size), err,
                                     "cuMemGetInfo"));
    *out = DAMACY__MIN(left, limit ? limit : (uint64_t)free_size / 2) & ~UINT64_C(4095);
    return DAMACY_OK;
}

/* Memory for decoded chunks; gpu->kept stays 0 where there is room for none. The context is
 * current. */
static damacy_status damacy__gpu_alloc_kept(damacy__gpu* gpu, damacy_error* err)
{
    uint64_t size = 0;
    damacy_status status;

    DAMACY__TRY(damacy__gpu_kept_size(gpu, &size, err));
    if (size == 0) {
        return DAMACY_OK;
    }
    do {
        gpu->kept_size = size;
        status = damacy__device_alloc(&gpu->device, size, "decoded chunks", &gpu->kept, err);
        size = size / 2 & ~UINT64_C(4095);
    } while (status == DAMACY_OOM && size > 0);
    return status;
}

static void damacy__gpu_free_kept(damacy__gpu* gpu)
{
    damacy__device_free(&gpu->device, gpu->kept, gpu->kept_size);
    gpu->kept = 0;
}

/* Decoded chunks are kept for later batches, if there is memory for any. Scheduler thread. */
static damacy_status damacy__gpu_make_chunks(damacy__gpu* gpu, damacy_error* err)
{
    damacy__core* core = gpu->core;
    const uint64_t most = core->config.max_host_bytes / 32 / damacy__chunks_overhead(1);
    damacy_status status = damacy__device_enter(&gpu->device, err);

    if (status == DAMACY_OK) {
        status = damacy__gpu_alloc_kept(gpu, err);
        damacy__device_leave(&gpu->device);
    }
    if (status != DAMACY_OK || gpu->kept == 0) {
        return status;
    }
    status = damacy__chunks_borrow(
        &core->chunks, &core->alloc, gpu->kept, gpu->kept_size,
        DAMACY__MIN(damacy__chunks_records(gpu->kept_size), DAMACY__MAX(most, 16)), err);
    if (status != DAMACY_OK) {
        damacy__gpu_free_kept(gpu);
    }
    return status;
}

/* ---- closing ---- */

static void damacy__gpu_free_slot(damacy__gpu* gpu, damacy__slot* slot)
{
    damacy__event_close(&gpu->device, (damacy__event)(uintptr_t)slot->ready_event);
    for (uint32_t i = 0; i < slot->n_gates; i++) {
        damacy__event_close(&gpu->device, (damacy__event)(uintptr_t)slot->gates[i]);
    }
    if (slot->ptr) {
        damacy__device_free(&gpu->device, (uint64_t)(uintptr_t)slot->ptr, slot->size);
    }
    slot->ptr = NULL;
    slot->ready_event = slot->n_gates = 0;
}

static void damacy__gpu_free_wave(damacy__gpu* gpu, damacy__wave* wave)
{
    damacy__device* device = &gpu->device;

    if (wave->sent) {
        damacy__event_close(device, wave->sent);
    }
    if (wave->done) {
        damacy__event_close(device, wave->done);
    }
    damacy__pinned_free(device, &wave->host);
    if (wave->tables) {
        damacy__device_free(device, wave->tables, gpu->tables.size);
    }
    if (wave->output) {
        damacy__device_free(device, wave->output, gpu->output_size);
    }
    if (wave->input) {
        damacy__device_free(device, wave->input, gpu->input_size);
    }
    damacy__free(&gpu->core->alloc, wave->units, gpu->max_units);
}

/* Frees what the waves and the threads used; the device stays for batches that are held. */
static void damacy__gpu_stop(damacy__gpu* gpu)
{
    bool entered;

    if (gpu->has_thread) {
        damacy__lock(&gpu->mutex);
        gpu->stop = true;
        damacy__broadcast(&gpu->wake);
        damacy__unlock(&gpu->mutex);
        pthread_join(gpu->thread, NULL);
        gpu->has_thread = false;
    }
    damacy__gpu_join_pin(gpu);
    entered = gpu->device.driver && damacy__device_enter_to_free(&gpu->device);
    for (uint32_t i = 0; i < DAMACY__WAVES; i++) {
        damacy__gpu_free_wave(gpu, &gpu->waves[i]);
        memset(&gpu->waves[i], 0, sizeof gpu->waves[i]);
    }
    if (gpu->scratch) {
        damacy__device_free(&gpu->device, gpu->scratch, gpu->scratch_size);
        gpu->scratch = 0;
    }
    if (gpu->affine) {
        damacy__device_free(&gpu->device, gpu->affine, gpu->affine_size);
        gpu->affine = 0;
    }
    damacy__gpu_free_kept(gpu);
    damacy__pinned_free(&gpu->device, &gpu->staging);
    if (gpu->has_compiler) {
        damacy__compiler_release(&gpu->compiler, false);
    }
    damacy__program_deinit(&gpu->assemble, &gpu->device);
    if (gpu->has_lz) {
        damacy__lz_kernels_deinit(&gpu->lz, &gpu->device);
        gpu->has_lz = false;
    }
    if (gpu->has_zstd) {
        damacy__zstd_kernels_deinit(&gpu->zstd, &gpu->device);
        gpu->has_zstd = false;
    }
    if (gpu->has_compiler) {
        damacy__compiler_deinit(&gpu->compiler);
        gpu->has_compiler = false;
    }
    damacy__stream_close(&gpu->device, gpu->copy_stream);
    gpu->copy_stream = NULL;
    if (entered) {
        damacy__device_leave(&gpu->device);
    }
}

/* Gives everything back. Slots have been freed. */
static void damacy__gpu_close(damacy__gpu* gpu)
{
    damacy__gpu_stop(gpu);
    damacy__stream_close(&gpu->device, gpu->read_stream);
    damacy__stream_close(&gpu->device, gpu->gate_stream);
    damacy__stream_close(&gpu->device, gpu->mark_stream);
    damacy__stream_close(&gpu->device, gpu->stream);
    damacy__device_close(&gpu->device);
    damacy__condition_deinit(&gpu->wake);
    damacy__mutex_deinit(&gpu->mutex);
    damacy__free(&gpu->core->alloc, gpu, 1);
}
