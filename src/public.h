/* Bodies of the public functions: they check arguments, give `err` a place to point to, and call
 * the pipeline. */
#pragma once
#include "lifecycle.h"

struct damacy {
    damacy__core core;
};

/* An error to fill when the caller gave none; clears the one that was given. */
static damacy_error* damacy__public_error(damacy_error* err, damacy_error* local)
{
    damacy_error* const target = err ? err : local;

    damacy__error_init(target, DAMACY_STAGE_NONE);
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
    if (!d || !damacy__core_is_ours(&d->core)) {
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
    if (!damacy__core_is_ours(&d->core)) {
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
    if (!d || !damacy__core_is_ours(&d->core)) {
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
    if (!damacy__core_is_ours(&d->core)) {
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
    if (!batch.core || !damacy__core_is_ours(batch.core)) {
        return damacy__fail(err, DAMACY_INVAL, "no batch of this process");
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

    if (!batch.core || !err || !damacy__core_is_ours(batch.core)) {
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

DAMACY_API damacy_status damacy_batch_read(damacy_batch batch, void* dst, size_t dst_size,
                                           damacy_error* err)
{
    damacy_error local;

    return damacy__batch_copy(batch, dst, dst_size, damacy__public_error(err, &local));
}

DAMACY_API damacy_status damacy_batch_retain(damacy_batch batch)
{
    return damacy__batch_retain(batch);
}

DAMACY_API damacy_status damacy_release(damacy_batch batch)
{
    return damacy__batch_release(batch, true);
}

DAMACY_API damacy_status damacy_release_event(damacy_batch batch, void* event)
{
    damacy_status status = DAMACY_OK;

    if (event) {
        status = damacy__batch_gate(batch, event, NULL);
        if (status != DAMACY_OK) {
            return status; /* the batch stays held: its voxels may still be in use */
        }
    }
    return damacy__batch_drop(batch, true);
}

DAMACY_API damacy_status damacy_release_stream(damacy_batch batch, void* stream)
{
    const damacy_status status = damacy__batch_gate(batch, NULL, stream);

    return status == DAMACY_OK ? damacy__batch_drop(batch, true) : status;
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

    err = damacy__public_error(err, &local);
    if (!out) {
        return damacy__fail(err, DAMACY_INVAL, "out is NULL");
    }
    DAMACY__TRY(damacy__export_make(batch, stream, &tensor, err));
    *out = &tensor->versioned;
    return DAMACY_OK;
}

DAMACY_API damacy_status damacy_batch_dlpack_legacy(damacy_batch batch, void* stream,
                                                    damacy_dl_managed** out, damacy_error* err)
{
    damacy_error local;
    damacy__export* tensor = NULL;

    err = damacy__public_error(err, &local);
    if (!out) {
        return damacy__fail(err, DAMACY_INVAL, "out is NULL");
    }
    DAMACY__TRY(damacy__export_make(batch, stream, &tensor, err));
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
    if (!d || !damacy__core_is_ours(&d->core)) {
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
    out->chunks_kept = __atomic_load_n(&c->chunks_kept, __ATOMIC_RELAXED);
    out->chunks_missing = __atomic_load_n(&c->chunks_missing, __ATOMIC_RELAXED);
    out->bytes_mapped = __atomic_load_n(&c->bytes_mapped, __ATOMIC_RELAXED);
    out->voxels_delivered = __atomic_load_n(&c->voxels_delivered, __ATOMIC_RELAXED);
    if (d->core.gpu) {
        out->gpu_bytes_committed =
            __atomic_load_n(&d->core.gpu->device.committed, __ATOMIC_RELAXED);
    }
    out->host_bytes_committed = __atomic_load_n(&d->core.alloc.live_bytes, __ATOMIC_RELAXED);
    out->cache_bytes = __atomic_load_n(&d->core.cache_bytes, __ATOMIC_RELAXED);
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
