/* Gates: what a consumer has queued still reads a slot when it is given back, and the next batch
 * there is not written before that. Each slot has a stream that waits for all that its consumers
 * asked for, and an event behind it.
 *
 * All waves share one stream. What waits there for a gate holds up whatever is queued behind it, so
 * units of a batch with a gate stand aside until every earlier batch has been made: a consumer may
 * need one of those before it lets the gate open. Later batches cannot be popped before anyway.
 * The host does not decode for them either, as what it decoded would keep space that an earlier
 * batch may need; their bytes keep no space of those, whose reads have been issued before. */
#pragma once
#include "stage/gpu.h"

/* Makes later work of `waiter` wait for what is queued in `stream` now, a stream of any context;
 * the default streams (NULL, 1, 2) are those of the device's context. */
static damacy_status damacy__stream_follow(damacy__device* device, damacy__stream waiter,
                                           damacy__stream stream, damacy_error* err)
{
    const damacy__driver* driver = device->driver;
    damacy__context context = device->context;
    damacy__event event = NULL;
    damacy_status status;

    DAMACY__TRY(damacy__device_alive(device, err));
    if ((uintptr_t)stream > 2) {
        DAMACY__TRY(damacy__device_check(device, driver->stream_context(stream, &context), err,
                                         "the consumer's stream (cuStreamGetCtx)"));
    }
    DAMACY__TRY(damacy__device_check(device, driver->context_push(context), err,
                                     "the context of the consumer's stream"));
    status = damacy__event_open(device, false, &event, err);
    if (status == DAMACY_OK) {
        status = damacy__event_record(device, event, stream, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__stream_await(device, waiter, event, err);
    }
    damacy__device_leave(device);
    damacy__event_close(device, event); /* what waits for it keeps it */
    return status;
}

/* Makes a slot wait for an event of a consumer's, or for what is queued in a consumer's stream now.
 * Gates of one slot add up. */
static damacy_status damacy__gpu_gate(damacy__gpu* gpu, damacy__slot* slot, void* event,
                                      void* stream, damacy_error* err)
{
    damacy__stream const gate = (damacy__stream)(uintptr_t)slot->gate_stream;

    DAMACY__TRY(event ? damacy__stream_await(&gpu->device, gate, (damacy__event)event, err)
                      : damacy__stream_follow(&gpu->device, gate, (damacy__stream)stream, err));
    return damacy__event_record(&gpu->device, (damacy__event)(uintptr_t)slot->gate_event, gate,
                                err);
}

/* Makes a stream of ours wait for all gates of a slot that was free and is used again. */
static damacy_status damacy__gpu_pass_gates(damacy__gpu* gpu, damacy__slot* slot,
                                            damacy__stream stream, damacy_error* err)
{
    if (!damacy__slot_has_gate(slot)) {
        return DAMACY_OK;
    }
    slot->has_passed = true;
    return damacy__stream_await(&gpu->device, stream, (damacy__event)(uintptr_t)slot->gate_event,
                                err);
}

/* The slot's batch waits for no gate any more: all that it writes is behind it, or it is open. */
static void damacy__gpu_drop_gate(damacy__gpu* gpu, damacy__slot* slot)
{
    damacy__lock(&gpu->core->mutex);
    __atomic_store_n(&slot->has_gate, false, __ATOMIC_RELAXED);
    damacy__unlock(&gpu->core->mutex);
    slot->has_passed = false;
}

/* Whether a batch that is still made comes before that of a slot. */
static bool damacy__gpu_is_behind(damacy__gpu* gpu, const damacy__slot* slot)
{
    damacy__core* core = gpu->core;
    bool is_behind = false;

    damacy__lock(&core->mutex);
    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        is_behind = is_behind ||
                    (core->slots[i].state == DAMACY__SLOT_RUNNING && core->slots[i].id < slot->id);
    }
    damacy__unlock(&core->mutex);
    return is_behind;
}

/* Whether units of a slot stand aside now. A gate that is open is none any more. */
static bool damacy__gpu_must_wait(damacy__gpu* gpu, damacy__slot* slot)
{
    damacy_error error;
    bool done = false;

    if (gpu->has_failed || !damacy__slot_has_gate(slot) || !damacy__gpu_is_behind(gpu, slot)) {
        return false;
    }
    memset(&error, 0, sizeof error);
    error.stage = DAMACY_STAGE_TRANSFER;
    error.sample = error.offset = UINT64_MAX;
    if (damacy__event_done(&gpu->device, (damacy__event)(uintptr_t)slot->gate_event, &done,
                           &error) != DAMACY_OK) {
        damacy__gpu_fail(gpu, &error);
        return false;
    }
    if (done) {
        damacy__gpu_drop_gate(gpu, slot);
    }
    return !done;
}

/* ---- the queue of the GPU thread ---- */

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
        if (unit->slot->aside.first || damacy__gpu_must_wait(gpu, unit->slot)) {
            damacy__tasks_append(&unit->slot->aside, task);
        } else if (unit->kind == DAMACY__UNIT_HOST) {
            damacy__pool_submit(&gpu->core->workers, task, DAMACY__NORMAL);
        } else {
            return unit;
        }
    }
}
