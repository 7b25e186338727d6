/* Opens the GPU of a pipeline: driver, context, streams, and what is made aside while the caller
 * goes on: compiled kernels and pinned memory. Compiled kernels are read from the cache while the
 * driver makes the context.
 *
 * Whether the kernels can be had is known before create returns: they lie in the cache, or NVRTC is
 * there. DAMACY_AUTO goes further and waits for what has to be compiled, so that a compiler that
 * fails means the CPU and not an error later. */
#pragma once
#include "gpu/device_open.h"
#include "stage/gpu_run.h"

static damacy_status damacy__gpu_open(damacy__core* core, damacy_error* err);
static damacy_status damacy__gpu_pin(damacy__gpu* gpu, damacy_error* err);

static damacy_status damacy__gpu_compile(damacy__gpu* gpu, const char* cache_dir, damacy_error* err)
{
    damacy__program_spec spec;
    const char* defines[1];
    char define[64];

    DAMACY__TRY(damacy__compiler_init(&gpu->compiler, &gpu->core->alloc, &gpu->driver,
                                      gpu->device.architecture, damacy__sources,
                                      DAMACY__COUNT(damacy__sources), cache_dir, err));
    gpu->has_compiler = true;
    damacy__compiler_hold(&gpu->compiler);
    DAMACY__TRY(damacy__zstd_kernels_start(&gpu->zstd, &gpu->device, &gpu->compiler, err));
    gpu->has_zstd = true;
    DAMACY__TRY(damacy__lz_kernels_start(&gpu->lz, &gpu->compiler, err));
    gpu->has_lz = true;
    damacy__assemble_program(gpu->core->out_dtype, define, defines, &spec);
    return damacy__program_start(&gpu->assemble, &gpu->compiler, &spec, err);
}

/* Scale and offset of the channels, on the device; waits for them, since every stream reads them.
 */
static damacy_status damacy__gpu_send_affine(damacy__gpu* gpu, damacy_error* err)
{
    const damacy__affine* affine = &gpu->core->affine;
    const uint64_t size = affine->n_channels * sizeof(float);
    damacy__event event = NULL;
    damacy_status status;

    if (affine->n_channels == 0) {
        return DAMACY_OK;
    }
    gpu->affine_size = 2 * damacy__align_up(size, 256);
    DAMACY__TRY(damacy__device_alloc(&gpu->device, gpu->affine_size, "scale and offset",
                                     &gpu->affine, err));
    DAMACY__TRY(
        damacy__copy_to_device(&gpu->device, gpu->affine, affine->scale, size, gpu->stream, err));
    DAMACY__TRY(damacy__copy_to_device(&gpu->device, gpu->affine + gpu->affine_size / 2,
                                       affine->offset, size, gpu->stream, err));
    DAMACY__TRY(damacy__event_open(&gpu->device, false, &event, err));
    status = damacy__event_record(&gpu->device, event, gpu->stream, err);
    if (status == DAMACY_OK) {
        status = damacy__event_await(&gpu->device, event, DAMACY__STALL_NS, err);
    }
    damacy__event_close(&gpu->device, event);
    return status;
}

static void* damacy__gpu_pin_main(void* context)
{
    damacy__gpu* gpu = (damacy__gpu*)context;
    const uint64_t begin = damacy__now_ns();

    gpu->pin_status = damacy__device_enter(&gpu->device, &gpu->pin_error);
    if (gpu->pin_status == DAMACY_OK) {
        gpu->pin_status = damacy__pinned_alloc(&gpu->device, gpu->staging_size, "staging",
                                               &gpu->staging, &gpu->pin_error);
        damacy__device_leave(&gpu->device);
    }
    gpu->pin_ns = damacy__now_ns() - begin;
    return NULL;
}

/* Begins to pin the staging memory aside. The last step of create, as pinning holds up whatever
 * else asks the system for memory, new threads among it. */
static damacy_status damacy__gpu_pin(damacy__gpu* gpu, damacy_error* err)
{
    DAMACY__TRY(
        damacy__thread_start(&gpu->pin_thread, "damacy-pin", damacy__gpu_pin_main, gpu, err));
    gpu->has_pin_thread = true;
    return DAMACY_OK;
}

/* Streams. The context is current. */
static damacy_status damacy__gpu_prepare(damacy__gpu* gpu, damacy_error* err)
{
    DAMACY__TRY(damacy__stream_open(&gpu->device, true, &gpu->copy_stream, err));
    DAMACY__TRY(damacy__stream_open(&gpu->device, false, &gpu->stream, err));
    DAMACY__TRY(damacy__stream_open(&gpu->device, false, &gpu->read_stream, err));
    DAMACY__TRY(damacy__stream_open(&gpu->device, false, &gpu->gate_stream, err));
    DAMACY__TRY(damacy__stream_open(&gpu->device, false, &gpu->mark_stream, err));
    return damacy__gpu_send_affine(gpu, err);
}

/* Waits until it is known where the kernels come from; for DAMACY_AUTO, until new ones work. */
static damacy_status damacy__gpu_settle_kernels(damacy__gpu* gpu, bool* is_compiling,
                                                damacy_error* err)
{
    DAMACY__TRY(damacy__compiler_decided(&gpu->compiler, is_compiling, err));
    if (*is_compiling && gpu->core->config.device == DAMACY_AUTO) {
        return damacy__gpu_load(gpu, err);
    }
    return DAMACY_OK;
}

static damacy_status damacy__gpu_init(damacy__gpu* gpu, damacy_error* err)
{
    damacy__core* core = gpu->core;
    damacy__device_config config;
    uint64_t at[4];
    bool is_compiling = false;
    damacy_status status;

    memset(&config, 0, sizeof config);
    config.device = core->config.device;
    config.context = core->config.cuda_context;
    config.stream = core->config.cuda_stream;
    config.max_bytes = core->config.max_gpu_bytes;
    DAMACY__TRY(damacy__mutex_init(&gpu->mutex, err));
    DAMACY__TRY(damacy__condition_init(&gpu->wake, err));
    at[0] = damacy__now_ns();
    DAMACY__TRY(damacy__driver_load(&gpu->driver, err));
    at[1] = damacy__now_ns();
    DAMACY__TRY(damacy__device_find(&gpu->device, &gpu->driver, &gpu->core->alloc, &config, err));
    DAMACY__TRY(damacy__gpu_compile(gpu, core->config.cache_dir, err));
    DAMACY__TRY(damacy__device_connect(&gpu->device, err));
    damacy__compiler_release(&gpu->compiler, true);
    at[2] = damacy__now_ns();
    DAMACY__TRY(damacy__device_enter(&gpu->device, err));
    status = damacy__gpu_prepare(gpu, err);
    at[3] = damacy__now_ns();
    if (status == DAMACY_OK) {
        status = damacy__gpu_settle_kernels(gpu, &is_compiling, err);
    }
    damacy__device_leave(&gpu->device);
    damacy__core_log(
        core, DAMACY_LOG_DEBUG,
        "time: create: driver %.1f ms, context %.1f ms, streams %.1f ms, kernels %.1f ms%s",
        (double)(at[1] - at[0]) * 1e-6, (double)(at[2] - at[1]) * 1e-6,
        (double)(at[3] - at[2]) * 1e-6, (double)(damacy__now_ns() - at[3]) * 1e-6,
        is_compiling ? " (NVRTC compiles)" : "");
    return status;
}

/* Opens the device that the configuration names. On failure core->gpu stays NULL. */
static damacy_status damacy__gpu_open(damacy__core* core, damacy_error* err)
{
    damacy__gpu* gpu = damacy__new(&core->alloc, 1, damacy__gpu);
    damacy_status status;

    if (!gpu) {
        return damacy__fail(err, DAMACY_OOM, "GPU records");
    }
    gpu->core = core;
    gpu->patience_ns = DAMACY__STALL_NS;
    gpu->pin_error.sample = gpu->pin_error.offset = UINT64_MAX;
    status = damacy__gpu_init(gpu, err);
    if (status != DAMACY_OK) {
        damacy__gpu_close(gpu);
        return status;
    }
    core->gpu = gpu;
    gpu->staging_size = DAMACY__MIN(core->staging_size, UINT64_C(256) << 20);
    core->staging_size = gpu->staging_size;
    core->decoded_size = DAMACY__MIN(core->decoded_size, UINT64_C(1) << 30);
    core->plan_options.max_read = DAMACY__MIN(core->config.max_read_bytes, core->staging_size / 4);
    core->config.max_gpu_bytes = gpu->device.budget;
    core->config.device = DAMACY_GPU(gpu->device.ordinal);
    return DAMACY_OK;
}
