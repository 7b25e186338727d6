/* Makes and unmakes a pipeline: every part in order, everything undone on failure.
 *
 * Destroying has two halves: threads stop and in-flight work is dropped at once; the memory of
 * batches that are still held goes with their last release. */
#pragma once
#include "pipeline.h"
#include "stage/batch.h"
#include "stage/gpu_open.h"
#include "stage/numa.h"

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

    if (!core->gpu) {
        core->staging = (uint8_t*)damacy__alloc_take(alloc, core->staging_size, 1, 4096);
    }
    core->decoded = (uint8_t*)damacy__alloc_take(alloc, core->decoded_size, 1, 4096);
    core->queue = damacy__new(alloc, core->config.lookahead_samples, damacy__crop);
    core->slots = damacy__new(alloc, n_slots, damacy__slot);
    core->decoders = damacy__new(alloc, core->config.decode_threads, damacy__decoder);
    if ((!core->gpu && !core->staging && core->staging_size) || !core->decoded || !core->queue ||
        !core->slots || !core->decoders) {
        return damacy__fail(err, DAMACY_OOM,
                            "%" PRIu64 " + %" PRIu64 " bytes of buffers and records of %u samples",
                            core->staging_size, core->decoded_size, core->config.lookahead_samples);
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
    DAMACY__TRY(damacy__ring_init(&core->ring, alloc, core->staging_size,
                                  DAMACY__MIN(DAMACY__MAX(core->staging_size / 1024, 1024), 65536),
                                  err));
    return damacy__arena_init(&core->arena, alloc, core->decoded_size, err);
}

static void damacy__core_notify(void* context)
{
    damacy__core_kick((damacy__core*)context);
}

static void damacy__core_mapping_refused(void* context, const damacy_error* why)
{
    damacy__core_log((damacy__core*)context, DAMACY_LOG_INFO, "files are read, not mapped: %s",
                     why->message);
}

/* The room for mapped files is what staging, decoding, the catalog and an eighth for records leave,
 * at most half. */
static damacy_status damacy__core_make_mapped(damacy__core* core, damacy_error* err)
{
    const uint64_t budget = core->config.max_host_bytes;
    const uint64_t taken =
        core->staging_size + core->decoded_size + core->catalog.max_bytes + budget / 8;

    if (!core->gpu || !core->gpu->device.can_register_files ||
        core->config.mapping != DAMACY_MAPPING_ON || damacy__store_is_custom(&core->store)) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__mapped_init(&core->mapped, &core->gpu->device, &core->store,
                                    DAMACY__MIN(budget - DAMACY__MIN(taken, budget), budget / 2),
                                    err));
    core->mapped.notify = damacy__core_mapping_refused;
    core->mapped.notify_context = core;
    return DAMACY_OK;
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
    DAMACY__TRY(damacy__core_make_mapped(core, err));
    if (core->gpu) {
        DAMACY__TRY(damacy__thread_start(&core->gpu->thread, "damacy-gpu", damacy__gpu_main,
                                         core->gpu, err));
        core->gpu->has_thread = true;
    }
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
    if (core->gpu) {
        damacy__gpu_stop(core->gpu);
        damacy__mapped_deinit(&core->mapped);
        core->staging = NULL;
    }
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

    if (core->gpu) {
        damacy__gpu_free_slot(core->gpu, slot);
    } else if (!core->external) {
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
    if (core->gpu) {
        damacy__gpu_close(core->gpu);
    }
    damacy__ring_deinit(&core->ring, &core->alloc);
    damacy__arena_deinit(&core->arena, &core->alloc);
    damacy__chunks_deinit(&core->chunks, &core->alloc);
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

/* The GPU that the configuration names, or the CPU. AUTO takes the CPU where no GPU can be used,
 * and the log says why. */
static damacy_status damacy__core_choose_device(damacy__core* core, damacy_error* err)
{
    const bool is_auto = core->config.device == DAMACY_AUTO;
    damacy_error why;
    damacy_status status;

    if (core->config.device != DAMACY_CPU) {
        memset(&why, 0, sizeof why);
        status = damacy__gpu_open(core, &why);
        if (status == DAMACY_OK) {
            damacy__core_log(core, DAMACY_LOG_INFO, "device: GPU %d, %s", core->gpu->device.ordinal,
                             core->gpu->device.name);
        } else if (!is_auto) {
            return damacy__fail(err, status, "%s", why.message);
        } else {
            damacy__core_log(core, DAMACY_LOG_INFO, "device: CPU, since %s", why.message);
            core->config.device = DAMACY_CPU;
        }
    }
    if (core->config.gds == DAMACY_GDS_ON) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "gds is ON: GPUDirect Storage is not available in this version");
    }
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
    damacy__numa numa;
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
        status = damacy__core_copy_config(core, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__core_choose_device(core, err);
    }
    core->config.cache_dir = NULL;
    if (status == DAMACY_OK) {
        status = damacy__numa_choose(&core->config, core->gpu ? core->gpu->device.bus_id : NULL,
                                     "/sys", &numa, err);
    }
    if (status == DAMACY_OK) { /* threads and pinned pages take after the thread that makes them */
        status = damacy__numa_enter(&numa, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__core_make_memory(core, err);
        if (status == DAMACY_OK) {
            status = damacy__core_make_stages(core, err);
        }
        if (status == DAMACY_OK && core->gpu) {
            status = damacy__gpu_pin(core->gpu, err);
        }
        damacy__numa_leave(&numa);
    }
    if (status != DAMACY_OK) {
        status = damacy__alloc_explain(&core->alloc, err);
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
