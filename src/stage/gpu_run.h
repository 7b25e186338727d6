/* Runs planned batches on a GPU: one thread gathers units into waves, starts them, and looks at
 * results when a wave has ended.
 *
 * Nothing on the device waits for the host: counts, sizes and statuses stay there until the wave is
 * done. After a failure of the device no more work is given to it; units then end without effect,
 * so that every batch still ends. */
#pragma once
#include "stage/finish.h"
#include "stage/gpu_gate.h"
#include "stage/gpu_wave.h"

static void* damacy__gpu_main(void* context);

/* Host memory of a unit's bytes goes back. */
static void damacy__unit_sent(damacy__unit* unit)
{
    damacy__slot* slot = unit->slot;

    if (!damacy__unit_is_stored(unit) || !unit->bytes) {
        return;
    }
    if (unit->is_space) {
        damacy__run_space_back(slot->core, unit->bytes);
    } else {
        damacy__run_release(&slot->read_tasks.items[slot->plan.chunks.items[unit->first].read], 1);
    }
    unit->bytes = NULL;
}

/* A unit ends without its voxels. */
static void damacy__unit_abandon(damacy__gpu* gpu, damacy__unit* unit)
{
    damacy_error error = gpu->failure;

    if (unit->kind == DAMACY__UNIT_FILL) {
        for (uint32_t i = 0; i < unit->n; i++) {
            const damacy__plan* plan = &unit->slot->plan;
            damacy__crop_fail(gpu->core, unit->slot,
                              plan->copies.items[plan->fills.items[unit->first + i]].sample,
                              &error);
        }
    } else if (unit->kind == DAMACY__UNIT_KEPT) {
        damacy__run_chunk_fail(unit->slot, unit->first, &error);
        damacy__chunks_unpin(&gpu->core->chunks, unit->block);
    } else {
        damacy__run_unit_fail(unit, &error);
        damacy__unit_sent(unit);
    }
    damacy__run_done(unit->slot, 1);
}

/* The voxels of a unit have been assembled. Where its chunk is kept, batches that wait for it go
 * on. */
static void damacy__unit_end(damacy__unit* unit)
{
    damacy__chunks* chunks = &unit->slot->core->chunks;
    damacy__waiter* waiter = NULL;

    if (unit->block && unit->kind != DAMACY__UNIT_KEPT) {
        waiter = damacy__chunks_settle(chunks, unit->block, true);
    }
    while (waiter) {
        damacy__unit* other = (damacy__unit*)waiter->owner;
        waiter = waiter->next;
        damacy__gpu_take(other);
    }
    if (unit->block) {
        damacy__chunks_unpin(chunks, unit->block);
    }
    damacy__run_done(unit->slot, 1);
}

static const char* damacy__job_words(uint32_t status)
{
    switch (status) {
    case DAMACY__JOB_NEED_SCRATCH:
        return "does not fit the scratch of a wave of its own";
    case DAMACY__JOB_NO_SPACE:
    case DAMACY__JOB_SIZE_MISMATCH:
        return "the decoded size is not the chunk's";
    case DAMACY__JOB_UNSUPPORTED:
        return "a feature that is not supported, such as a dictionary";
    case DAMACY__JOB_TRUNCATED:
        return "cut short";
    case DAMACY__JOB_BAD_MAGIC:
        return "no frame magic number";
    case DAMACY__JOB_BAD_HEADER:
        return "a malformed frame header";
    case DAMACY__JOB_BAD_BLOCK:
        return "a malformed block";
    case DAMACY__JOB_BAD_LITERALS:
    case DAMACY__JOB_BAD_HUFFMAN:
        return "malformed literals";
    case DAMACY__JOB_BAD_TABLE:
    case DAMACY__JOB_BAD_SEQUENCES:
        return "malformed sequences";
    case DAMACY__JOB_BAD_OFFSET:
        return "a match before the start";
    case DAMACY__JOB_BAD_CHECKSUM:
        return "the checksum does not match";
    case DAMACY__JOB_TRAILING:
        return "bytes that are no frame";
    default:
        return "was not decoded";
    }
}

/* What the device says of a chunk; true when it did not fit the scratch and may be tried again. */
static bool damacy__unit_judge(damacy__gpu* gpu, const damacy__wave* wave, damacy__unit* unit,
                               bool may_retry)
{
    const bool is_blosc = unit->kind == DAMACY__UNIT_BLOSC;
    const bool is_lz4 = unit->kind == DAMACY__UNIT_LZ4;
    const damacy__job_result* results =
        (const damacy__job_result*)(const void*)(wave->host.ptr +
                                                 (is_blosc ? gpu->tables.blosc_results
                                                  : is_lz4 ? gpu->tables.lz4_results
                                                           : gpu->tables.zstd_results));
    damacy_error error;
    uint32_t status;

    if ((unit->kind != DAMACY__UNIT_ZSTD && !is_blosc && !is_lz4) ||
        gpu->core->config.debug_bypass_decode) {
        return false;
    }
    status = results[unit->number].status;
    if (status == DAMACY__JOB_OK) {
        return false;
    }
    if (status == DAMACY__JOB_NEED_SCRATCH && may_retry) {
        return true;
    }
    damacy__run_error_init(unit->slot, unit->first, DAMACY_STAGE_DECODE, &error);
    (void)damacy__fail(&error,
                       status == DAMACY__JOB_NEED_SCRATCH  ? DAMACY_BUDGET
                       : status == DAMACY__JOB_UNSUPPORTED ? DAMACY_UNSUPPORTED
                                                           : DAMACY_DECODE,
                       "%s: %s at byte %" PRIu64,
                       is_blosc ? "blosc"
                       : is_lz4 ? "lz4"
                                : "zstd",
                       damacy__job_words(status), results[unit->number].error_offset);
    error.offset =
        unit->slot->plan.chunks.items[unit->first].offset + results[unit->number].error_offset;
    damacy__run_unit_fail(unit, &error);
    return false;
}

static void damacy__wave_reset(damacy__wave* wave)
{
    wave->n_units = wave->n_copies = wave->n_zstd = wave->n_blosc = wave->n_lz4 = 0;
    wave->input_used = wave->output_used = 0;
    wave->output_zstd = wave->output_lz4 = wave->most_zstd = wave->most_lz4 = 0;
    wave->is_running = wave->is_sent = false;
}

/* Ends the units that are done and moves those to be tried again to the front. */
static void damacy__wave_settle(damacy__gpu* gpu, damacy__wave* wave, bool may_retry)
{
    uint32_t n_left = 0;

    for (uint32_t i = 0; i < wave->n_units; i++) {
        damacy__unit* unit = wave->units[i];
        if (damacy__unit_judge(gpu, wave, unit, may_retry)) {
            wave->units[n_left++] = unit;
        } else {
            damacy__unit_end(unit);
        }
    }
    wave->n_units = n_left;
}

/* Decodes and assembles what did not fit the scratch once more; their bytes are still on the
 * device. Waits: this is for data much denser than common, and later waves are kept smaller. */
static damacy_status damacy__wave_retry(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    damacy__copies copies;

    wave->output_zstd = wave->output_lz4 = wave->most_zstd = wave->most_lz4 = 0;
    wave->n_zstd = wave->n_blosc = wave->n_lz4 = 0;
    for (uint32_t i = 0; i < wave->n_units; i++) {
        damacy__unit* unit = wave->units[i];
        damacy__job* jobs = damacy__wave_jobs(gpu, wave, unit->kind);
        uint32_t* const n = damacy__wave_count(wave, unit->kind);
        jobs[*n] = jobs[unit->number]; /* never overtakes: units are in the order of their jobs */
        damacy__wave_expect(wave, unit->kind, jobs[*n].dst_capacity);
        unit->number = (*n)++;
    }
    memset(&copies, 0, sizeof copies);
    DAMACY__TRY(damacy__wave_send_tables(gpu, wave, &copies, wave->stream, err));
    DAMACY__TRY(damacy__wave_decode(gpu, wave, err));
    DAMACY__TRY(damacy__wave_assemble(gpu, wave, err));
    DAMACY__TRY(damacy__event_record(&gpu->device, wave->done, wave->stream, err));
    return damacy__event_await(&gpu->device, wave->done, DAMACY__STALL_NS, err);
}

/* A wave has ended well: statuses, counters, and the units' share of their batches. */
static void damacy__wave_end(damacy__gpu* gpu, damacy__wave* wave)
{
    const uint64_t ns = damacy__now_ns() - wave->start_ns;
    damacy_error error;

    damacy__error_init(&error, DAMACY_STAGE_DECODE);
    damacy__metric_add(&gpu->core->counters.decode, ns, wave->input_used,
                       wave->output_zstd + wave->output_lz4);
    damacy__wave_settle(gpu, wave, true);
    if (wave->n_units > 0) {
        gpu->output_limit = DAMACY__MAX(DAMACY__MIN(gpu->output_limit, wave->output_used) / 4 * 3,
                                        gpu->output_size / 64);
    }
    while (wave->n_units > 0 && !gpu->has_failed) {
        const uint32_t n_before = wave->n_units;
        if (damacy__wave_retry(gpu, wave, &error) != DAMACY_OK) {
            damacy__gpu_fail(gpu, &error);
            return; /* the next look abandons what is left */
        }
        damacy__wave_settle(gpu, wave, true);
        if (wave->n_units == n_before) {
            damacy__wave_settle(gpu, wave, false);
        }
    }
    damacy__wave_reset(wave);
}

/* The host's bytes of a wave have arrived: their memory goes back. */
static void damacy__wave_sent(damacy__gpu* gpu, damacy__wave* wave)
{
    wave->is_sent = true;
    damacy__metric_add(&gpu->core->counters.transfer, damacy__now_ns() - wave->start_ns,
                       wave->input_used, wave->input_used);
    for (uint32_t i = 0; i < wave->n_units; i++) {
        damacy__unit_sent(wave->units[i]);
    }
}

/* After a failure: whether no copy that was queued reads the host's bytes any more. A lost device
 * reads none; one on which a copy goes on for too long counts as stalled: what it still reads
 * stays pinned, and nobody looks at what it makes of it. */
static bool damacy__gpu_has_sent(damacy__gpu* gpu)
{
    damacy_error ignored;
    bool done = false;

    memset(&ignored, 0, sizeof ignored);
    if (damacy__stream_done(&gpu->device, gpu->copy_stream, &done, &ignored) != DAMACY_OK || done) {
        return true;
    }
    if (damacy__now_ns() - gpu->failed_ns <= gpu->patience_ns) {
        return false;
    }
    damacy__device_stall(&gpu->device, gpu->patience_ns);
    return true;
}

/* Ends what the device has finished; after a failure everything, but for bytes that a copy may
 * still read: their memory is read into again. */
static void damacy__gpu_poll(damacy__gpu* gpu)
{
    for (uint32_t i = 0; i < DAMACY__WAVES; i++) {
        damacy__wave* wave = &gpu->waves[i];
        damacy_error error;
        bool done = false;
        if (!wave->is_running) {
            continue;
        }
        damacy__error_init(&error, DAMACY_STAGE_DECODE);
        if (!gpu->has_failed && !wave->is_sent) {
            if (damacy__event_done(&gpu->device, wave->sent, &done, &error) != DAMACY_OK) {
                damacy__gpu_fail(gpu, &error);
            } else if (done) {
                damacy__wave_sent(gpu, wave);
            }
        }
        done = false;
        if (!gpu->has_failed && wave->is_sent &&
            damacy__event_done(&gpu->device, wave->done, &done, &error) != DAMACY_OK) {
            damacy__gpu_fail(gpu, &error);
        }
        if (gpu->has_failed && (wave->is_sent || damacy__gpu_has_sent(gpu))) {
            for (uint32_t k = 0; k < wave->n_units; k++) {
                damacy__unit_abandon(gpu, wave->units[k]);
            }
            damacy__wave_reset(wave);
        } else if (done) {
            damacy__wave_end(gpu, wave);
        }
    }
}

/* Waits for the kernels once, before the first wave. */
static damacy_status damacy__gpu_load(damacy__gpu* gpu, damacy_error* err)
{
    const uint64_t begin = damacy__now_ns();

    if (gpu->is_loaded) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__zstd_kernels_finish(&gpu->zstd, &gpu->device, err));
    DAMACY__TRY(damacy__lz_kernels_finish(&gpu->lz, &gpu->device, err));
    DAMACY__TRY(damacy__program_finish(&gpu->assemble, &gpu->device, err));
    gpu->is_loaded = true;
    damacy__core_log(gpu->core, DAMACY_LOG_DEBUG, "time: kernels loaded in %.1f ms",
                     (double)(damacy__now_ns() - begin) * 1e-6);
    return DAMACY_OK;
}

/* ---- the last work of a batch ---- */

/* Overwrites the samples that failed, one source type after another. The wave is idle; it runs
 * until this is done. */
static damacy_status damacy__gpu_fill_failed(damacy__gpu* gpu, damacy__slot* slot,
                                             damacy__wave* wave, damacy_error* err)
{
    const uint64_t base = (uint64_t)(uintptr_t)slot->ptr;

    wave->start_ns = damacy__now_ns();
    wave->is_running = wave->is_sent = true;
    damacy__wave_clear_list(gpu, wave);
    for (uint32_t type = 0; type < DAMACY_NATIVE; type++) {
        bool has_begun = false;
        for (uint32_t i = 0; i < slot->n_samples; i++) {
            damacy__axis axis;
            damacy__copy copy;
            if (slot->crops[i].error.status == DAMACY_OK) {
                continue;
            }
            copy = damacy__slot_fill_copy(slot, i).copy;
            if (copy.src_dtype != type) {
                continue;
            }
            axis.src_stride = 0;
            axis.dst_stride = 1;
            axis.extent = copy.n_voxels_low | (uint64_t)copy.n_voxels_high << 32;
            copy.dst += base;
            if (!has_begun) {
                damacy__assemble_begin(&wave->list, (damacy_dtype)type);
                has_begun = true;
            }
            DAMACY__TRY(damacy__wave_copy(gpu, wave, &copy, &axis, err));
        }
    }
    DAMACY__TRY(damacy__wave_flush(gpu, wave, err));
    DAMACY__TRY(damacy__event_record(&gpu->device, wave->done, wave->stream, err));
    return damacy__stream_await(&gpu->device, gpu->stream, wave->done, err);
}

/* Fills or moves samples as the error policy says, without waiting for it. */
static damacy_status damacy__gpu_repair(damacy__gpu* gpu, damacy__slot* slot, damacy__wave* wave,
                                        damacy_error* err)
{
    const uint64_t size = slot->size / gpu->core->config.samples_per_batch;
    const uint64_t base = (uint64_t)(uintptr_t)slot->ptr;

    DAMACY__TRY(damacy__gpu_load(gpu, err));
    if (gpu->core->config.on_error == DAMACY_ON_ERROR_FILL) {
        return damacy__gpu_fill_failed(gpu, slot, wave, err);
    }
    for (uint32_t i = 0; i < slot->n_delivered; i++) {
        if (slot->delivered[i] != i) {
            DAMACY__TRY(damacy__copy_on_device(&gpu->device, base + i * size,
                                               base + slot->delivered[i] * size, size, gpu->stream,
                                               err));
        }
    }
    return DAMACY_OK;
}

/* Whether the last work of a batch needs a wave of its own. */
static bool damacy__gpu_needs_repair(const damacy__gpu* gpu, const damacy__slot* slot)
{
    return !gpu->has_failed && slot->n_failed > 0 &&
           gpu->core->config.on_error != DAMACY_ON_ERROR_STOP;
}

/* Every task of the batch has ended: policies, the ready event, and out to the poppers. */
static void damacy__gpu_finish_slot(damacy__gpu* gpu, damacy__slot* slot, damacy__wave* wave)
{
    const damacy_on_error policy = gpu->core->config.on_error;
    /* Its waves have ended; those of later batches may be queued on the stream of all. */
    damacy__stream behind = gpu->mark_stream;
    damacy_error error;
    damacy_status status = DAMACY_OK;

    damacy__error_init(&error, DAMACY_STAGE_BATCH);
    slot->n_delivered = 0;
    for (uint32_t i = 0; i < slot->n_samples; i++) {
        if (slot->crops[i].error.status == DAMACY_OK || policy != DAMACY_ON_ERROR_SKIP) {
            slot->delivered[slot->n_delivered++] = i;
        }
    }
    if (damacy__gpu_needs_repair(gpu, slot)) {
        status = damacy__gpu_repair(gpu, slot, wave, &error);
        behind = gpu->stream;
    }
    if (!gpu->has_failed && status == DAMACY_OK) {
        status = damacy__event_record(&gpu->device, (damacy__event)(uintptr_t)slot->ready_event,
                                      behind, &error);
    }
    if (status != DAMACY_OK) {
        damacy__gpu_fail(gpu, &error);
    }
    if (gpu->has_failed) {
        for (uint32_t i = 0; i < slot->n_samples; i++) {
            damacy__crop_fail(gpu->core, slot, i, &gpu->failure);
        }
        damacy__lock(&gpu->core->mutex);
        if (!gpu->core->has_failed) {
            gpu->core->has_failed = true;
            gpu->core->failure = gpu->failure;
        }
        damacy__unlock(&gpu->core->mutex);
    }
    damacy__slot_publish(slot);
}

/* ---- the thread ---- */

/* Starts a gathered wave, or abandons it when the device has failed. */
static void damacy__gpu_start_wave(damacy__gpu* gpu, damacy__wave* wave)
{
    damacy_error error;

    damacy__error_init(&error, DAMACY_STAGE_TRANSFER);
    wave->is_running = true;
    if (!gpu->has_failed && (damacy__gpu_load(gpu, &error) != DAMACY_OK ||
                             damacy__wave_launch(gpu, wave, &error) != DAMACY_OK)) {
        damacy__gpu_fail(gpu, &error);
    }
}

/* Does not fit even an empty wave. */
static void damacy__gpu_refuse(damacy__gpu* gpu, damacy__unit* unit)
{
    const damacy__plan_chunk* chunk = &unit->slot->plan.chunks.items[unit->first];
    damacy_error error;

    damacy__run_error_init(unit->slot, unit->first, DAMACY_STAGE_PLAN, &error);
    (void)damacy__fail(&error, DAMACY_BUDGET,
                       "a chunk of %" PRIu64 " stored and %" PRIu64
                       " decoded bytes; max_gpu_bytes %" PRIu64 " leaves waves of %" PRIu64,
                       unit->size, chunk->layout->chunk_size, gpu->device.budget, gpu->output_size);
    damacy__run_unit_fail(unit, &error);
    damacy__unit_sent(unit);
    damacy__run_done(unit->slot, 1);
}

static damacy__wave* damacy__gpu_idle_wave(damacy__gpu* gpu)
{
    for (uint32_t i = 0; i < DAMACY__WAVES; i++) {
        if (!gpu->waves[i].is_running) {
            return &gpu->waves[i];
        }
    }
    return NULL;
}

/* Gathers units into an idle wave and starts it; *held keeps the unit that did not fit any more. */
static bool damacy__gpu_gather(damacy__gpu* gpu, damacy__unit** held)
{
    damacy__wave* wave = damacy__gpu_idle_wave(gpu);
    damacy__unit* unit;

    if (!wave) {
        return false;
    }
    damacy__gpu_call_back(gpu);
    for (;;) {
        unit = *held ? *held : damacy__gpu_next(gpu);
        *held = NULL;
        if (!unit) {
            break;
        }
        if (unit->kind == DAMACY__UNIT_FINISH) {
            if (wave->n_units > 0 && damacy__gpu_needs_repair(gpu, unit->slot)) {
                *held = unit;
                break;
            }
            damacy__gpu_finish_slot(gpu, unit->slot, wave);
            if (wave->is_running) {
                return true;
            }
        } else if (gpu->has_failed) {
            damacy__unit_abandon(gpu, unit);
        } else if (!damacy__wave_add(gpu, wave, unit)) {
            if (wave->n_units > 0) {
                *held = unit;
                break;
            }
            damacy__gpu_refuse(gpu, unit);
        }
    }
    if (wave->n_units == 0) {
        return false;
    }
    damacy__gpu_start_wave(gpu, wave);
    return true;
}

static bool damacy__gpu_is_busy(const damacy__gpu* gpu)
{
    for (uint32_t i = 0; i < DAMACY__WAVES; i++) {
        if (gpu->waves[i].is_running) {
            return true;
        }
    }
    return false;
}

/* Sleeps until there are units, or for a short while when waves are under way or units are kept;
 * false to stop. */
static bool damacy__gpu_wait(damacy__gpu* gpu, bool has_kept)
{
    const bool is_busy = damacy__gpu_is_busy(gpu);
    bool go_on;

    damacy__lock(&gpu->mutex);
    if (is_busy || has_kept) {
        if (!gpu->queue.first || !damacy__gpu_idle_wave(gpu)) {
            (void)damacy__condition_wait_until(&gpu->wake, &gpu->mutex,
                                               damacy__now_ns() + (is_busy ? 20000 : 100000));
        }
    } else {
        while (!gpu->queue.first && !gpu->stop) {
            damacy__wait(&gpu->wake, &gpu->mutex);
        }
    }
    go_on = !gpu->stop || gpu->queue.first || is_busy || has_kept;
    damacy__unlock(&gpu->mutex);
    return go_on;
}

static void* damacy__gpu_main(void* context)
{
    damacy__gpu* gpu = (damacy__gpu*)context;
    damacy__unit* held = NULL;
    damacy_error error;
    bool entered;

    damacy__error_init(&error, DAMACY_STAGE_TRANSFER);
    entered = damacy__device_enter(&gpu->device, &error) == DAMACY_OK;
    if (!entered) {
        damacy__gpu_fail(gpu, &error);
    }
    while (damacy__gpu_wait(gpu, held || damacy__gpu_has_aside(gpu))) {
        damacy__gpu_poll(gpu);
        while (damacy__gpu_gather(gpu, &held)) {
        }
    }
    if (entered) {
        damacy__device_leave(&gpu->device);
    }
    return NULL;
}
