/* One round of work for the GPU: the bytes of a wave's units sent, decoded and assembled, all
 * queued on streams without waiting. */
#pragma once
#include "stage/gpu_decode.h"

/* The table of a wave's copies. */
static void damacy__wave_begin_copies(damacy__gpu* gpu, damacy__wave* wave)
{
    const bool is_read = gpu->device.can_read_host &&
                         gpu->staging.kind != DAMACY__PINNED_PAGEABLE &&
                         wave->host.kind != DAMACY__PINNED_PAGEABLE;

    gpu->copies.kernel = is_read ? &gpu->lz.copy.kernels[DAMACY__COPY_GATHER] : NULL;
    gpu->copies.moves = (damacy__move*)(void*)(wave->host.ptr + gpu->tables.moves);
    gpu->copies.capacity = gpu->max_moves;
    gpu->copies.n = 0;
}

/* Sends the bytes of all units, as few copies as their places on the host allow. */
static damacy_status damacy__wave_send(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    const damacy__unit* last = NULL; /* from, to and size: all up to it that is not sent yet */
    const uint8_t* from = NULL;
    uint64_t to = 0;
    uint64_t size = 0;

    damacy__wave_begin_copies(gpu, wave);
    for (uint32_t i = 0; i <= wave->n_units; i++) {
        const damacy__unit* unit = i < wave->n_units ? wave->units[i] : NULL;
        uint64_t gap = 0;
        if (unit && !damacy__unit_is_stored(unit)) {
            continue;
        }
        if (unit && size && damacy__unit_follows(unit, last, &gap) &&
            to + size + gap == damacy__unit_input(gpu, wave, unit)) {
            size += gap + unit->size;
            last = unit;
            continue;
        }
        if (size) {
            DAMACY__TRY(damacy__wave_send_part(gpu, to, from, size, !last->is_space, err));
        }
        from = unit ? unit->bytes : NULL;
        to = unit ? damacy__unit_input(gpu, wave, unit) : 0;
        size = unit ? unit->size : 0;
        last = unit;
    }
    DAMACY__TRY(damacy__wave_send_tables(gpu, wave, &gpu->copies, gpu->copy_stream, err));
    DAMACY__TRY(damacy__copies_flush(&gpu->copies, &gpu->device, gpu->copy_stream, err));
    DAMACY__TRY(damacy__event_record(&gpu->device, wave->sent, gpu->copy_stream, err));
    return damacy__stream_await(&gpu->device, wave->stream, wave->sent, err);
}

/* Adds one copy; a full list is sent and waited for, which is rare: however long, since a consumer
 * may hold the slot. */
static damacy_status damacy__wave_copy(damacy__gpu* gpu, damacy__wave* wave,
                                       const damacy__copy* copy, const damacy__axis* axes,
                                       damacy_error* err)
{
    if (damacy__assemble_add(&wave->list, copy, axes)) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__wave_flush(gpu, wave, err));
    DAMACY__TRY(damacy__event_record(&gpu->device, wave->done, wave->stream, err));
    DAMACY__TRY(damacy__event_await(&gpu->device, wave->done, 0, err));
    damacy__wave_clear_list(gpu, wave);
    damacy__assemble_begin(&wave->list, (damacy_dtype)copy->src_dtype);
    if (!damacy__assemble_add(&wave->list, copy, axes)) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "a copy of too many parts");
    }
    return DAMACY_OK;
}

/* All copies of one unit. */
static damacy_status damacy__wave_copies(damacy__gpu* gpu, damacy__wave* wave,
                                         const damacy__unit* unit, damacy_error* err)
{
    const damacy__plan* plan = &unit->slot->plan;
    const uint64_t n = damacy__unit_copies(unit);

    for (uint32_t k = 0; k < n; k++) {
        const uint32_t number = unit->kind == DAMACY__UNIT_FILL
                                    ? plan->fills.items[unit->first + k]
                                    : plan->order.items[plan->chunks.items[unit->first].first + k];
        damacy__copy copy = plan->copies.items[number].copy;
        copy.dst += (uint64_t)(uintptr_t)unit->slot->ptr;
        if (unit->kind != DAMACY__UNIT_FILL && gpu->core->config.debug_bypass_decode) {
            copy.flags = DAMACY__COPY_FILL;
            copy.fill = plan->chunks.items[unit->first].layout->fill;
        }
        copy.src += unit->dst;
        DAMACY__TRY(damacy__wave_copy(gpu, wave, &copy, plan->axes.items + copy.first_axis, err));
    }
    return DAMACY_OK;
}

static uint32_t damacy__unit_dtype(const damacy__unit* unit)
{
    const damacy__plan* plan = &unit->slot->plan;

    return unit->kind == DAMACY__UNIT_FILL
               ? plan->copies.items[plan->fills.items[unit->first]].copy.src_dtype
               : (uint32_t)plan->chunks.items[unit->first].layout->dtype;
}

/* Copies of all units, one source type after another. A run of fills may hold several types: each
 * copy opens a segment of its own type where needed. */
static damacy_status damacy__wave_assemble(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    damacy__wave_clear_list(gpu, wave);
    for (uint32_t type = 0; type < DAMACY_NATIVE; type++) {
        bool has_begun = false;
        for (uint32_t i = 0; i < wave->n_units; i++) {
            if (damacy__unit_dtype(wave->units[i]) == type) {
                if (!has_begun) {
                    damacy__assemble_begin(&wave->list, (damacy_dtype)type);
                    has_begun = true;
                }
                DAMACY__TRY(damacy__wave_copies(gpu, wave, wave->units[i], err));
            }
        }
    }
    return damacy__wave_flush(gpu, wave, err);
}

static damacy_status damacy__wave_launch(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    wave->start_ns = damacy__now_ns();
    DAMACY__TRY(damacy__wave_send(gpu, wave, err));
    if (!gpu->core->config.debug_bypass_decode) {
        DAMACY__TRY(damacy__wave_decode(gpu, wave, err));
    }
    DAMACY__TRY(damacy__wave_assemble(gpu, wave, err));
    return damacy__event_record(&gpu->device, wave->done, wave->stream, err);
}
