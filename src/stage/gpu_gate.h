/* Gates: what a consumer has queued still reads a slot when it is given back, and the next batch
 * there is not written before that. A gate is an event behind what is queued.
 *
 * The GPU's thread looks at gates, and units of a batch in such a slot stand aside until they are
 * open: no wave waits for one on the device. All waves share a stream, and streams share the
 * device's few queues, so that what waits there holds up what is behind it. That may be an earlier
 * batch, which the consumer may need before it goes on. (A stream of its own waits for events of
 * the consumer's and of other contexts.) */
#pragma once
#include "stage/gpu.h"

/* An event behind what is queued in `stream` now, a stream of `context`. */
static damacy_status damacy__stream_mark(damacy__device* device, damacy__context context,
                                         damacy__stream stream, damacy__event* out,
                                         damacy_error* err)
{
    damacy_status status;

    DAMACY__TRY(damacy__device_check(device, device->driver->context_push(context), err,
                                     "the context of the consumer's stream"));
    status = damacy__event_open(device, false, out, err);
    if (status == DAMACY_OK) {
        status = damacy__event_record(device, *out, stream, err);
        if (status != DAMACY_OK) {
            damacy__event_close(device, *out);
        }
    }
    damacy__device_leave(device);
    return status;
}

/* An event of ours that passes after a consumer's, which may be destroyed after this. */
static damacy_status damacy__gate_of_event(damacy__gpu* gpu, damacy__event event,
                                           damacy__event* out, damacy_error* err)
{
    DAMACY__TRY(damacy__stream_await(&gpu->device, gpu->gate_stream, event, err));
    return damacy__stream_mark(&gpu->device, gpu->device.context, gpu->gate_stream, out, err);
}

/* The same for what is queued in a consumer's stream now; the default streams (NULL, 1, 2) are
 * those of the device's context. An event of another context would end with it. */
static damacy_status damacy__gate_of_stream(damacy__gpu* gpu, damacy__stream stream,
                                            damacy__event* out, damacy_error* err)
{
    damacy__device* device = &gpu->device;
    damacy__context context = device->context;
    damacy__event foreign = NULL;
    damacy_status status;

    DAMACY__TRY(damacy__device_alive(device, err));
    if ((uintptr_t)stream > 2) {
        DAMACY__TRY(damacy__device_check(device, device->driver->stream_context(stream, &context),
                                         err, "the consumer's stream (cuStreamGetCtx)"));
    }
    if (context == device->context) {
        return damacy__stream_mark(device, context, stream, out, err);
    }
    DAMACY__TRY(damacy__stream_mark(device, context, stream, &foreign, err));
    status = damacy__gate_of_event(gpu, foreign, out, err);
    damacy__event_close(device, foreign);
    return status;
}

/* Puts an event in place of the last gate of a slot, which opens after both. Holds the mutex. */
static damacy_status damacy__gpu_join_gates(damacy__gpu* gpu, damacy__slot* slot,
                                            damacy__event mark, damacy_error* err)
{
    uint64_t* const last = &slot->gates[slot->n_gates - 1];
    damacy__event const before = (damacy__event)(uintptr_t)*last;
    damacy__event both = NULL;

    DAMACY__TRY(damacy__stream_await(&gpu->device, gpu->gate_stream, before, err));
    DAMACY__TRY(damacy__gate_of_event(gpu, mark, &both, err));
    *last = (uint64_t)(uintptr_t)both;
    damacy__event_close(&gpu->device, before);
    damacy__event_close(&gpu->device, mark);
    return DAMACY_OK;
}

/* Makes the next batch in a slot wait for an event of a consumer's, or for what is queued in a
 * consumer's stream now, unless it has passed. Gates of one slot add up. */
static damacy_status damacy__gpu_gate(damacy__gpu* gpu, damacy__slot* slot, void* event,
                                      void* stream, damacy_error* err)
{
    damacy__event mark = NULL;
    damacy_status status;
    bool is_open = false;

    DAMACY__TRY(event ? damacy__gate_of_event(gpu, (damacy__event)event, &mark, err)
                      : damacy__gate_of_stream(gpu, (damacy__stream)stream, &mark, err));
    status = damacy__event_done(&gpu->device, mark, &is_open, err);
    if (status == DAMACY_OK && !is_open) {
        damacy__lock(&gpu->core->mutex);
        if (slot->n_gates == DAMACY__GATES) {
            status = damacy__gpu_join_gates(gpu, slot, mark, err);
        } else {
            slot->gates[slot->n_gates] = (uint64_t)(uintptr_t)mark;
            __atomic_store_n(&slot->n_gates, slot->n_gates + 1, __ATOMIC_RELAXED);
        }
        damacy__unlock(&gpu->core->mutex);
    }
    if (status != DAMACY_OK || is_open) {
        damacy__event_close(&gpu->device, mark);
    }
    return status;
}

/* Forgets the last gate of a slot. */
static void damacy__gpu_drop_gate(damacy__gpu* gpu, damacy__slot* slot)
{
    damacy__event const last = (damacy__event)(uintptr_t)slot->gates[slot->n_gates - 1];

    damacy__lock(&gpu->core->mutex);
    __atomic_store_n(&slot->n_gates, slot->n_gates - 1, __ATOMIC_RELAXED);
    damacy__unlock(&gpu->core->mutex);
    damacy__event_close(&gpu->device, last);
}

/* Whether units of a slot stand aside now. GPU thread; nobody else looks at the gates of a slot in
 * which a batch is made. */
static bool damacy__gpu_must_wait(damacy__gpu* gpu, damacy__slot* slot)
{
    damacy_error error;

    damacy__error_init(&error, DAMACY_STAGE_TRANSFER);
    while (!gpu->has_failed && damacy__slot_has_gates(slot)) {
        damacy__event const last = (damacy__event)(uintptr_t)slot->gates[slot->n_gates - 1];
        bool is_open = false;
        if (damacy__event_done(&gpu->device, last, &is_open, &error) != DAMACY_OK) {
            damacy__gpu_fail(gpu, &error);
        } else if (!is_open) {
            return true;
        } else {
            damacy__gpu_drop_gate(gpu, slot);
        }
    }
    return false;
}

/* ---- the queue of the GPU's thread ---- */

/* Queues a unit for the GPU thread. */
static void damacy__gpu_take(damacy__unit* unit)
{
    damacy__gpu* gpu = unit->slot->core->gpu;

    unit->task.context = unit;
    damacy__lock(&gpu->mutex);
    damacy__tasks_append(&gpu->queue, &unit->task);
    damacy__signal(&gpu->wake);
    damacy__unlock(&gpu->mutex);
}

/* Units that stood aside and need not any more go before the others. */
static void damacy__gpu_call_back(damacy__gpu* gpu)
{
    for (uint32_t i = 0; i < gpu->core->config.batch_slots; i++) {
        damacy__slot* slot = &gpu->core->slots[i];
        if (slot->aside.first && !damacy__gpu_must_wait(gpu, slot)) {
            damacy__lock(&gpu->mutex);
            damacy__tasks_prepend(&gpu->queue, &slot->aside);
            damacy__unlock(&gpu->mutex);
        }
    }
}

static bool damacy__gpu_has_aside(const damacy__gpu* gpu)
{
    bool has = false;

    for (uint32_t i = 0; i < gpu->core->config.batch_slots; i++) {
        has = has || gpu->core->slots[i].aside.first;
    }
    return has;
}

/* Whether a unit writes where nothing has been written yet. The end of a batch fills samples that
 * failed, if asked to; else it moves at most what other units have written. */
static bool damacy__unit_writes(const damacy__gpu* gpu, const damacy__unit* unit)
{
    return unit->kind != DAMACY__UNIT_FINISH || gpu->core->config.on_error == DAMACY_ON_ERROR_FILL;
}

/* The next unit that a wave may take, or NULL; on the way others stand aside or go to the host. */
static damacy__unit* damacy__gpu_next(damacy__gpu* gpu)
{
    for (;;) {
        damacy__task* task;
        damacy__unit* unit;
        damacy__lock(&gpu->mutex);
        task = damacy__tasks_take(&gpu->queue);
        damacy__unlock(&gpu->mutex);
        if (!task) {
            return NULL;
        }
        unit = (damacy__unit*)task->context;
        if (damacy__unit_writes(gpu, unit) &&
            (unit->slot->aside.first || damacy__gpu_must_wait(gpu, unit->slot))) {
            damacy__tasks_append(&unit->slot->aside, task);
        } else if (unit->kind == DAMACY__UNIT_HOST) {
            damacy__pool_submit(&gpu->core->workers, task, DAMACY__NORMAL);
        } else {
            return unit;
        }
    }
}
