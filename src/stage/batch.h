/* What a consumer does with a batch: look, hold, export, release.
 *
 * A batch is named by its core and its id. The id is never used twice, so a stale name is noticed
 * as long as the pipeline or another batch of it lives. */
#pragma once
#include "stage/core.h"
#include "stage/gpu_gate.h"

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

    if (!batch.core || !damacy__core_is_ours(batch.core)) {
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

/* Adds a reference that damacy_release may drop. */
static damacy_status damacy__batch_retain(damacy_batch batch)
{
    damacy__slot* slot;

    if (!batch.core || !damacy__core_is_ours(batch.core)) {
        return DAMACY_INVAL;
    }
    damacy__lock(&batch.core->mutex);
    slot = damacy__batch_slot(batch.core, batch.id);
    if (slot && slot->n_user_refs > 0) {
        slot->n_user_refs++;
        slot->n_refs++;
        batch.core->n_refs++;
    } else {
        slot = NULL;
    }
    damacy__unlock(&batch.core->mutex);
    return slot ? DAMACY_OK : DAMACY_INVAL;
}

/* Drops a reference to a batch; the last one frees its slot. is_users: one that damacy_pop or
 * damacy_batch_retain gave, INVAL when there is none left: those of tensors are not the user's. */
static damacy_status damacy__batch_drop(damacy_batch batch, bool is_users)
{
    damacy__slot* slot;

    if (!batch.core || !damacy__core_is_ours(batch.core)) {
        return DAMACY_INVAL;
    }
    damacy__lock(&batch.core->mutex);
    slot = damacy__batch_slot(batch.core, batch.id);
    if (slot && is_users && slot->n_user_refs == 0) {
        slot = NULL;
    }
    if (slot && is_users) {
        slot->n_user_refs--;
    }
    if (slot && --slot->n_refs == 0) {
        slot->state = DAMACY__SLOT_FREE;
        slot->n_released = batch.core->n_released++;
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

/* Before the reference is dropped: makes the next batch in the slot wait for an event of the
 * consumer's, or for what is queued in the consumer's stream now. On the CPU nothing is to wait
 * for. */
static damacy_status damacy__batch_gate(damacy_batch batch, void* event, void* stream)
{
    damacy__core* core = batch.core;
    damacy__gpu* gpu = core ? core->gpu : NULL;
    damacy__slot* slot = NULL;
    damacy_error ignored;
    damacy_status status;

    if (!gpu || damacy__batch_hold(batch) != DAMACY_OK) {
        return core && !gpu ? DAMACY_OK : DAMACY_INVAL;
    }
    damacy__lock(&core->mutex);
    slot = damacy__batch_slot(core, batch.id);
    damacy__unlock(&core->mutex);
    memset(&ignored, 0, sizeof ignored);
    status = damacy__device_enter(&gpu->device, &ignored);
    if (status == DAMACY_OK) {
        status = damacy__gpu_gate(gpu, slot, event, stream, &ignored);
        damacy__device_leave(&gpu->device);
    }
    (void)damacy__batch_drop(batch, false);
    return status;
}

/* Drops a reference whose holder names no event: the stream of the configuration, if there is one,
 * is the consumer's. */
static damacy_status damacy__batch_release(damacy_batch batch, bool is_users)
{
    damacy__core* core = batch.core;

    if (core && core->gpu && core->config.cuda_stream) {
        const damacy_status status = damacy__batch_gate(batch, NULL, core->config.cuda_stream);
        if (status != DAMACY_OK && status != DAMACY_DEVICE_LOST) {
            return status;
        }
    }
    return damacy__batch_drop(batch, is_users);
}

/* Makes a consumer's stream wait for the batch, as DLPack's protocol asks of the producer. */
static damacy_status damacy__batch_order(damacy_batch batch, void* stream, damacy_error* err)
{
    damacy__core* core = batch.core;
    damacy__gpu* gpu = core->gpu;
    damacy__slot* slot;
    damacy_status status;

    if (!gpu || stream == DAMACY_STREAM_NONE) {
        return DAMACY_OK;
    }
    damacy__lock(&core->mutex);
    slot = damacy__batch_slot(core, batch.id);
    damacy__unlock(&core->mutex);
    status = damacy__device_enter(&gpu->device, err);
    if (status == DAMACY_OK) {
        status = damacy__stream_await(&gpu->device, (damacy__stream)stream,
                                      (damacy__event)(uintptr_t)slot->ready_event, err);
        damacy__device_leave(&gpu->device);
    }
    return status;
}

static damacy_status damacy__batch_describe(damacy_batch batch, damacy_batch_info_t* out)
{
    damacy__core* core = batch.core;
    damacy__slot* slot;
    damacy_batch_info_t info;

    if (!core || !out || !damacy__core_is_ours(core)) {
        return DAMACY_INVAL;
    }
    memset(&info, 0, sizeof info);
    damacy__lock(&core->mutex);
    slot = damacy__batch_slot(core, batch.id);
    if (slot) {
        info.ptr = slot->ptr;
        info.size = slot->size / core->config.samples_per_batch * slot->n_delivered;
        info.dtype = core->out_dtype;
        info.device = core->config.device;
        if (core->gpu) {
            info.ready_stream = (void*)core->gpu->stream;
            info.ready_event = (void*)(uintptr_t)slot->ready_event;
        }
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

/* Copies from the device and waits, also when something fails: dst is the caller's again, unless
 * the device is lost. The context is current. */
static damacy_status damacy__batch_fetch(damacy__gpu* gpu, const damacy_batch_info_t* info,
                                         void* dst, damacy_error* err)
{
    damacy__event event = NULL;
    damacy_status status;

    DAMACY__TRY(damacy__event_open(&gpu->device, false, &event, err));
    status =
        damacy__stream_await(&gpu->device, gpu->read_stream, (damacy__event)info->ready_event, err);
    if (status == DAMACY_OK) {
        status = damacy__copy_to_host(&gpu->device, dst, (uint64_t)(uintptr_t)info->ptr, info->size,
                                      gpu->read_stream, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__event_record(&gpu->device, event, gpu->read_stream, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__event_await(&gpu->device, event, DAMACY__STALL_NS, err);
    }
    if (status != DAMACY_OK && damacy__stream_settle(&gpu->device, gpu->read_stream, event,
                                                     DAMACY__STALL_NS, err) != DAMACY_OK) {
        status = DAMACY_DEVICE_LOST;
    }
    damacy__event_close(&gpu->device, event);
    return status;
}

static damacy_status damacy__batch_copy(damacy_batch batch, void* dst, size_t dst_size,
                                        damacy_error* err)
{
    damacy_batch_info_t info;
    damacy_status status = DAMACY_OK;

    if (damacy__batch_hold(batch) != DAMACY_OK) {
        return damacy__fail(err, DAMACY_INVAL, "the batch was released");
    }
    (void)damacy__batch_describe(batch, &info);
    if (info.size != dst_size || (!dst && dst_size)) {
        status = damacy__fail(err, DAMACY_INVAL, "dst has %zu bytes, the batch %" PRIu64, dst_size,
                              info.size);
    } else if (!batch.core->gpu) {
        memcpy(dst, info.ptr, dst_size);
    } else if (dst_size) {
        status = damacy__device_enter(&batch.core->gpu->device, err);
        if (status == DAMACY_OK) {
            status = damacy__batch_fetch(batch.core->gpu, &info, dst, err);
            damacy__device_leave(&batch.core->gpu->device);
        }
    }
    (void)damacy__batch_drop(batch, false);
    return status;
}

/* ---- DLPack ---- */

/* Both forms of an exported tensor, with the arrays that it points to. */
typedef struct damacy__export {
    damacy_dl_managed_versioned versioned;
    damacy_dl_managed legacy;
    damacy_batch batch;
    void* stream; /* the consumer's */
    int64_t shape[DAMACY_MAX_RANK + 1];
    int64_t strides[DAMACY_MAX_RANK + 1];
} damacy__export;

static void damacy__export_free(damacy__export* tensor)
{
    const damacy_batch batch = tensor->batch;
    damacy__core* core = batch.core;

    if (!damacy__core_is_ours(core)) {
        return;
    }
    damacy__lock(&core->mutex);
    core->n_refs++; /* the allocator lives in the core */
    damacy__unlock(&core->mutex);
    if (core->gpu && tensor->stream != DAMACY_STREAM_NONE && !damacy__core_stops(core) &&
        damacy__batch_gate(batch, NULL, tensor->stream) != DAMACY_OK) {
        damacy__core_log(core, DAMACY_LOG_WARN,
                         "batch %" PRIu64 ": a tensor's deleter cannot wait for its stream",
                         batch.id);
    }
    if (damacy__batch_release(batch, false) != DAMACY_OK) {
        (void)damacy__batch_drop(batch, false); /* a deleter cannot say so */
    }
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
static damacy_status damacy__export_make(damacy_batch batch, void* stream, damacy__export** out,
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
        (void)damacy__batch_drop(batch, false);
        return damacy__fail(err, DAMACY_OOM, "DLPack tensor");
    }
    if (damacy__batch_order(batch, stream, err) != DAMACY_OK) {
        const damacy_status status = err->status;
        damacy__free(&batch.core->alloc, tensor, 1);
        (void)damacy__batch_drop(batch, false);
        return status;
    }
    tensor->batch = batch;
    tensor->stream = stream;
    damacy__export_fill(tensor, &info);
    *out = tensor;
    return DAMACY_OK;
}
