/* The end of a batch: the error policy is applied, and the batch goes to poppers.
 *
 * Runs on the thread that ended the batch's last task, whichever that was. */
#pragma once
#include "stage/host_run.h"

/* A record that overwrites one sample's voxels with its array's fill value, or with zeros when that
 * is not known. One axis, over the whole sample; dst is relative to the batch. */
static damacy__plan_copy damacy__slot_fill_copy(const damacy__slot* slot, uint32_t crop)
{
    const damacy__core* core = slot->core;
    const uint64_t size = slot->size / core->config.samples_per_batch;
    const uint64_t n_voxels = size / core->plan_options.out_size;
    const damacy__crop* c = &slot->crops[crop];
    damacy__plan_copy fill;

    memset(&fill, 0, sizeof fill);
    fill.copy.dst = crop * size;
    fill.copy.flags = DAMACY__COPY_FILL;
    fill.copy.src_dtype = (uint32_t)core->out_dtype;
    fill.copy.n_axes = 1;
    fill.copy.channel_axis = DAMACY__NO_CHANNEL;
    fill.copy.n_voxels_low = (uint32_t)n_voxels;
    fill.copy.n_voxels_high = (uint32_t)(n_voxels >> 32);
    if (c->array && damacy__fetch_state_of(&c->array->state) == DAMACY__READY &&
        (core->config.dtype != DAMACY_NATIVE ||
         c->array->fetched.layout->dtype == core->out_dtype)) {
        fill.copy.src_dtype = (uint32_t)c->array->fetched.layout->dtype;
        fill.copy.fill = c->array->fetched.layout->fill;
    }
    return fill;
}

/* Hands a batch to poppers; its voxels are final. */
static void damacy__slot_publish(damacy__slot* slot)
{
    damacy__core* core = slot->core;

    for (uint32_t i = 0; i < slot->n_samples; i++) {
        damacy__crop_clear(core, &slot->crops[i]);
    }
    damacy__count(&core->counters.voxels_delivered, slot->size / core->config.samples_per_batch *
                                                        slot->n_delivered /
                                                        core->plan_options.out_size);
    damacy__lock(&core->mutex);
    slot->state = DAMACY__SLOT_READY;
    core->kicked = true;
    damacy__broadcast(&core->pop_wake);
    damacy__signal(&core->scheduler_wake);
    damacy__unlock(&core->mutex);
}

/* Applies the error policy and publishes. Runs on the thread that ended last. */
static void damacy__slot_finish(damacy__slot* slot)
{
    damacy__core* core = slot->core;
    const uint64_t sample_size = slot->size / core->config.samples_per_batch;

    slot->n_delivered = 0;
    for (uint32_t i = 0; i < slot->n_samples; i++) {
        const bool failed = slot->crops[i].error.status != DAMACY_OK;
        if (failed && core->config.on_error == DAMACY_ON_ERROR_SKIP) {
            continue;
        }
        if (failed && core->config.on_error == DAMACY_ON_ERROR_FILL && !damacy__core_stops(core)) {
            const damacy__plan_copy fill = damacy__slot_fill_copy(slot, i);
            damacy__copy copy = fill.copy;
            damacy__axis axis;
            axis.src_stride = 0;
            axis.dst_stride = 1;
            axis.extent = copy.n_voxels_low | (uint64_t)copy.n_voxels_high << 32;
            copy.dst += (uint64_t)(uintptr_t)slot->ptr;
            damacy__host_copy(&copy, &axis, core->out_dtype, NULL);
        }
        if (slot->n_delivered != i) {
            memmove(slot->ptr + slot->n_delivered * sample_size, slot->ptr + i * sample_size,
                    sample_size);
        }
        slot->delivered[slot->n_delivered++] = i;
    }
    damacy__slot_publish(slot);
}
