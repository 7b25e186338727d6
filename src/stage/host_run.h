/* Runs a planned batch on the CPU: reader threads fill staging space, workers decode chunks and
 * copy their voxels into the batch.
 *
 * A worker takes decode space while it holds nothing else, and never waits with it, so space always
 * comes back. A chunk that fails fails only the samples that touch it, in every batch that waits
 * for it. */
#pragma once
#include "stage/core.h"

static void damacy__run_done(damacy__slot* slot, uint64_t n);
static void damacy__slot_finish(damacy__slot* slot);

/* Of gpu_run.h: what happens to a chunk whose bytes have come, to a chunk decoded on the host, to
 * fills, and to a batch whose work is done, when there is a GPU. */
static void damacy__gpu_take(damacy__unit* unit);
static uint32_t damacy__gpu_classify(const damacy__core* core, const damacy__layout* layout,
                                     bool is_mapped, damacy__span* stored, damacy_error* err);
static bool damacy__gpu_takes_mapped(const damacy__core* core, const damacy__layout* layout);
static bool damacy__gpu_knows_headers(const damacy__read_task* task, damacy__object* object);

/* Ends n tasks of a batch; the last one finishes it. */
static void damacy__run_done(damacy__slot* slot, uint64_t n)
{
    if (__atomic_sub_fetch(&slot->n_pending, n, __ATOMIC_ACQ_REL) != 0) {
        return;
    }
    if (slot->core->gpu) {
        damacy__gpu_take(&slot->finish_unit);
    } else {
        damacy__slot_finish(slot);
    }
}

/* Starts a unit that needs no bytes. */
static void damacy__run_submit(damacy__unit* unit)
{
    damacy__core* core = unit->slot->core;

    if (core->gpu) {
        damacy__gpu_take(unit);
    } else {
        damacy__pool_submit(&core->workers, &unit->task, DAMACY__NORMAL);
    }
}

/* Fails every sample that a chunk has voxels for. */
static void damacy__run_chunk_fail(damacy__slot* slot, uint32_t chunk, const damacy_error* error)
{
    const damacy__plan_chunk* c = &slot->plan.chunks.items[chunk];

    for (uint32_t i = 0; i < c->n_copies; i++) {
        const uint32_t copy = slot->plan.order.items[c->first + i];
        damacy__crop_fail(slot->core, slot, slot->plan.copies.items[copy].sample, error);
    }
}

/* Ends a chunk's wait without voxels: its samples fail, and those of batches that wait for it.
 * error NULL: the pipeline stops. The caller ends the task. */
static void damacy__run_unit_fail(damacy__unit* unit, const damacy_error* error)
{
    damacy__waiter* waiter = NULL;

    if (error) {
        damacy__run_chunk_fail(unit->slot, unit->first, error);
    }
    if (unit->block) {
        waiter = damacy__chunks_settle(&unit->slot->core->chunks, unit->block, false);
        unit->block = NULL;
    }
    while (waiter) {
        damacy__unit* other = (damacy__unit*)waiter->owner;
        waiter = waiter->next;
        if (error) {
            damacy__run_chunk_fail(other->slot, other->first, error);
        }
        damacy__run_done(other->slot, 1);
    }
}

/* An error that names the chunk: its array, its object's key and, in a shard, its place there. */
static void damacy__run_error_init(const damacy__slot* slot, uint32_t chunk, damacy_stage stage,
                                   damacy_error* error)
{
    const damacy__plan_chunk* c = &slot->plan.chunks.items[chunk];
    const damacy__array_entry* array = slot->crops[c->sample].array;
    char key[sizeof error->chunk];

    damacy__error_init(error, DAMACY_STAGE_NONE);
    damacy__fetch_chunk_name(c->layout, c->position, key, sizeof key);
    damacy__error_where(error, stage, array->uri, key);
}

static void damacy__run_staging_back(damacy__read_task* read)
{
    damacy__core* core = read->slot->core;

    damacy__lock(&core->staging_mutex);
    damacy__ring_give(&core->ring, read->ticket);
    damacy__unlock(&core->staging_mutex);
    damacy__core_kick(core);
}

/* Gives a read's memory back once none of its chunks needs it. */
static void damacy__run_release(damacy__read_task* read, uint32_t n)
{
    if (__atomic_sub_fetch(&read->n_pending, n, __ATOMIC_ACQ_REL) != 0) {
        return;
    }
    if (read->file) {
        damacy__mapped_give(&read->slot->core->mapped, read->file);
    } else {
        damacy__run_staging_back(read);
    }
}

/* A batch that no cache holds is written past the caches. */
static uint32_t damacy__run_stream_flag(const damacy__slot* slot)
{
    return slot->size >= (UINT64_C(16) << 20) ? (uint32_t)DAMACY__COPY_STREAM : 0;
}

/* Copies a decoded chunk's voxels to all samples that want them; decoded NULL: the fill value. */
static void damacy__run_copies(damacy__slot* slot, const damacy__plan_chunk* chunk,
                               const uint8_t* decoded)
{
    damacy__core* core = slot->core;
    uint64_t n_voxels = 0;
    const uint64_t start = damacy__now_ns();

    for (uint32_t i = 0; i < chunk->n_copies; i++) {
        damacy__copy copy = slot->plan.copies.items[slot->plan.order.items[chunk->first + i]].copy;
        copy.dst += (uint64_t)(uintptr_t)slot->ptr;
        if (decoded) {
            copy.src += (uint64_t)(uintptr_t)decoded;
        } else {
            copy.flags = DAMACY__COPY_FILL;
            copy.fill = chunk->layout->fill;
        }
        copy.flags |= damacy__run_stream_flag(slot);
        damacy__host_copy(&copy, slot->plan.axes.items + copy.first_axis, core->out_dtype,
                          core->config.n_channels ? &core->affine : NULL);
        n_voxels += copy.n_voxels_low | (uint64_t)copy.n_voxels_high << 32;
    }
    damacy__metric_add(&core->counters.assemble, damacy__now_ns() - start,
                       n_voxels * chunk->layout->item_size, n_voxels * core->plan_options.out_size);
}

/* Space for one decoded chunk; waits for other workers to give theirs back. */
static uint8_t* damacy__run_space(damacy__core* core, uint64_t size)
{
    uint64_t offset = 0;

    damacy__lock(&core->decode_mutex);
    while (!damacy__arena_take(&core->arena, damacy__align_up(size, 4096), &offset)) {
        damacy__wait(&core->decode_wake, &core->decode_mutex);
    }
    damacy__unlock(&core->decode_mutex);
    return core->decoded + offset;
}

static void damacy__run_space_back(damacy__core* core, const uint8_t* space)
{
    damacy__lock(&core->decode_mutex);
    damacy__arena_give(&core->arena, (uint64_t)(space - core->decoded));
    damacy__broadcast(&core->decode_wake);
    damacy__unlock(&core->decode_mutex);
}

/* Worker thread: a chunk that is decoded and kept. */
static void damacy__run_kept(void* context, uint32_t worker)
{
    damacy__unit* unit = (damacy__unit*)context;
    damacy__slot* slot = unit->slot;
    damacy__core* core = slot->core;

    (void)worker;
    if (!damacy__core_stops(core)) {
        damacy__run_copies(slot, &slot->plan.chunks.items[unit->first],
                           core->chunks.bytes + unit->block->offset);
    }
    damacy__chunks_unpin(&core->chunks, unit->block);
    damacy__run_done(slot, 1);
}

/* Passes a decoded chunk on: to this batch and to those that wait for it. kept: the voxels stay
 * where they are; otherwise the space is given back after this. */
static void damacy__run_share(damacy__unit* unit, const uint8_t* voxels, bool kept)
{
    damacy__core* core = unit->slot->core;
    damacy__waiter* waiter = NULL;

    if (unit->block) {
        waiter = damacy__chunks_settle(&core->chunks, unit->block, kept);
    }
    while (waiter) {
        damacy__unit* other = (damacy__unit*)waiter->owner;
        waiter = waiter->next;
        if (kept) {
            damacy__pool_submit(&core->workers, &other->task, DAMACY__NORMAL);
        } else {
            damacy__run_copies(other->slot, &other->slot->plan.chunks.items[other->first], voxels);
            damacy__run_done(other->slot, 1);
        }
    }
    damacy__run_copies(unit->slot, &unit->slot->plan.chunks.items[unit->first], voxels);
    if (kept) {
        damacy__chunks_unpin(&core->chunks, unit->block);
    }
}

/* Decodes one chunk and copies its voxels. */
static damacy_status damacy__run_decode(damacy__unit* unit, damacy__span stored, uint32_t worker,
                                        damacy_error* err)
{
    damacy__slot* slot = unit->slot;
    damacy__core* core = slot->core;
    const damacy__plan_chunk* chunk = &slot->plan.chunks.items[unit->first];
    uint64_t start;
    uint8_t* space = NULL;
    damacy_status status;
    bool kept;

    if (damacy__host_decode_is_identity(chunk->layout)) {
        if (stored.size != chunk->layout->chunk_size) {
            return damacy__fail(err, DAMACY_DECODE, "%zu stored bytes; the chunk has %" PRIu64,
                                stored.size, chunk->layout->chunk_size);
        }
        damacy__run_copies(slot, chunk, stored.ptr);
        return DAMACY_OK;
    }
    if (unit->block) {
        space = damacy__chunks_place(&core->chunks, unit->block, chunk->layout->chunk_size);
    }
    kept = space != NULL;
    if (!kept) {
        space = damacy__run_space(core, chunk->layout->chunk_size);
    }
    start = damacy__now_ns();
    status = damacy__host_decode(&core->decoders[worker], chunk->layout, stored, space, err);
    damacy__metric_add(&core->counters.decode, damacy__now_ns() - start, stored.size,
                       chunk->layout->chunk_size);
    if (status == DAMACY_OK) {
        damacy__run_share(unit, space, kept);
    }
    if (!kept) {
        damacy__run_space_back(core, space);
    }
    return status;
}

/* Worker thread of a pipeline with a GPU: decodes on the host what the device cannot, and passes
 * the voxels on. */
static void damacy__run_chunk_for_gpu(damacy__unit* unit, damacy__span stored, uint32_t worker)
{
    damacy__slot* slot = unit->slot;
    damacy__core* core = slot->core;
    const damacy__plan_chunk* chunk = &slot->plan.chunks.items[unit->first];
    const uint64_t start = damacy__now_ns();
    damacy_error error;
    uint8_t* space;

    damacy__run_error_init(slot, unit->first, DAMACY_STAGE_DECODE, &error);
    space = damacy__run_space(core, chunk->layout->chunk_size);
    if (damacy__host_decode(&core->decoders[worker], chunk->layout, stored, space, &error) !=
        DAMACY_OK) {
        damacy__run_space_back(core, space);
        damacy__run_unit_fail(unit, &error);
        damacy__run_release(&slot->read_tasks.items[chunk->read], 1);
        damacy__run_done(slot, 1);
        return;
    }
    damacy__metric_add(&core->counters.decode, damacy__now_ns() - start, stored.size,
                       chunk->layout->chunk_size);
    damacy__run_release(&slot->read_tasks.items[chunk->read], 1);
    unit->kind = DAMACY__UNIT_VOXELS;
    unit->bytes = space;
    unit->size = chunk->layout->chunk_size;
    unit->is_space = true;
    damacy__gpu_take(unit);
}

/* Worker thread: one chunk whose bytes have been read. */
static void damacy__run_chunk(void* context, uint32_t worker)
{
    damacy__unit* task = (damacy__unit*)context;
    damacy__slot* slot = task->slot;
    const damacy__plan_chunk* chunk = &slot->plan.chunks.items[task->first];
    damacy__read_task* read = &slot->read_tasks.items[chunk->read];
    const uint64_t at = chunk->offset - slot->plan.reads.items[chunk->read].offset;
    damacy_error error;

    if (slot->core->gpu && !damacy__core_stops(slot->core)) {
        damacy__run_chunk_for_gpu(task, damacy__span_of(read->bytes + at, (size_t)chunk->size),
                                  worker);
        return;
    }
    if (damacy__core_stops(slot->core)) {
        damacy__run_unit_fail(task, NULL);
    } else {
        damacy__run_error_init(slot, task->first, DAMACY_STAGE_DECODE, &error);
        if (slot->core->config.debug_bypass_decode) {
            damacy__run_copies(slot, chunk, NULL);
        } else if (damacy__run_decode(task, damacy__span_of(read->bytes + at, (size_t)chunk->size),
                                      worker, &error) != DAMACY_OK) {
            if (error.offset != UINT64_MAX) {
                error.offset += chunk->offset;
            }
            damacy__run_unit_fail(task, &error);
        }
    }
    damacy__run_release(read, 1);
    damacy__run_done(slot, 1);
}

/* Worker thread: voxels that no chunk gives. */
static void damacy__run_fill(void* context, uint32_t worker)
{
    damacy__unit* task = (damacy__unit*)context;
    damacy__slot* slot = task->slot;
    damacy__core* core = slot->core;

    (void)worker;
    for (uint32_t i = 0; i < task->n && !damacy__core_stops(core); i++) {
        damacy__copy copy = slot->plan.copies.items[slot->plan.fills.items[task->first + i]].copy;
        copy.dst += (uint64_t)(uintptr_t)slot->ptr;
        copy.flags |= damacy__run_stream_flag(slot);
        damacy__host_copy(&copy, slot->plan.axes.items + copy.first_axis, core->out_dtype,
                          core->config.n_channels ? &core->affine : NULL);
    }
    damacy__run_done(slot, 1);
}

/* Finds the bytes of a read in a mapped file, if the GPU can do with that. */
static damacy_status damacy__run_map(damacy__read_task* task, damacy__object* object,
                                     damacy_error* err)
{
    damacy__core* core = task->slot->core;
    const damacy__plan* plan = &task->slot->plan;
    const damacy__plan_read* read = &plan->reads.items[task->read];
    const uint64_t size = damacy__object_size(object);
    damacy__mapped_file* file = NULL;

    if (!core->gpu || read->offset > size || read->size > size - read->offset ||
        !damacy__gpu_takes_mapped(core,
                                  plan->chunks.items[plan->by_place.items[read->first]].layout)) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__mapped_take(&core->mapped, object, read->size, task->slot->id, &file, err));
    if (file && !damacy__gpu_knows_headers(task, object)) {
        damacy__mapped_give(&core->mapped, file);
        file = NULL;
    }
    if (file) {
        damacy__run_staging_back(task);
        task->bytes = file->mapping.ptr + read->offset;
        task->file = file;
    }
    return DAMACY_OK;
}

/* Opens the object and reads; the error names the first chunk of the read. */
static damacy_status damacy__run_fetch(damacy__read_task* task, damacy_error* err)
{
    const damacy__slot* slot = task->slot;
    damacy__core* core = slot->core;
    const damacy__plan_read* read = &slot->plan.reads.items[task->read];
    const damacy__plan_chunk* chunk =
        &slot->plan.chunks.items[slot->plan.by_place.items[read->first]];

    damacy__object* object = NULL;
    damacy_status status =
        damacy__fetch_object(&core->store, &slot->crops[chunk->sample].array->fetched,
                             chunk->position, chunk->index, &object, err);

    if (status == DAMACY_OK) {
        status = damacy__run_map(task, object, err);
        if (status == DAMACY_OK && !task->file) {
            status = damacy__store_read(&core->store, object, read->offset, task->space,
                                        (size_t)read->size, err);
        }
        damacy__store_close(&core->store, object);
    }
    if (status != DAMACY_OK) {
        damacy__mapped_forget(&core->mapped, chunk->index->stamp);
    }
    return status;
}

/* Passes a chunk on whose bytes have been read: to a worker, or to the GPU if that can decode it.
 */
static void damacy__run_chunk_arrived(damacy__read_task* task, uint32_t chunk)
{
    damacy__slot* slot = task->slot;
    damacy__core* core = slot->core;
    damacy__unit* unit = &slot->chunk_units.items[chunk];
    const damacy__plan_chunk* c = &slot->plan.chunks.items[chunk];
    damacy__span stored;
    damacy_error error;

    if (!core->gpu) {
        damacy__pool_submit(&core->workers, &unit->task, DAMACY__NORMAL);
        return;
    }
    stored = damacy__span_of(task->bytes + (c->offset - slot->plan.reads.items[task->read].offset),
                             (size_t)c->size);
    damacy__run_error_init(slot, chunk, DAMACY_STAGE_DECODE, &error);
    unit->kind = damacy__gpu_classify(core, c->layout, task->file != NULL, &stored, &error);
    if (unit->kind == DAMACY__UNIT_FILL) { /* refused */
        damacy__run_unit_fail(unit, &error);
        damacy__run_release(task, 1);
        damacy__run_done(slot, 1);
    } else if (unit->kind == DAMACY__UNIT_HOST && damacy__slot_has_gates(slot)) {
        damacy__gpu_take(unit); /* which passes it on when it need not stand aside */
    } else if (unit->kind == DAMACY__UNIT_HOST) {
        damacy__pool_submit(&core->workers, &unit->task, DAMACY__NORMAL);
    } else {
        unit->bytes = stored.ptr;
        unit->size = stored.size;
        unit->is_space = false;
        damacy__gpu_take(unit);
    }
}

/* Reader thread: one coalesced read, then a task for each of its chunks. */
static void damacy__run_read(void* context, uint32_t worker)
{
    damacy__read_task* task = (damacy__read_task*)context;
    damacy__slot* slot = task->slot;
    damacy__core* core = slot->core;
    const damacy__plan_read* read = &slot->plan.reads.items[task->read];
    const uint64_t start = damacy__now_ns();
    const uint32_t n_chunks = read->n_chunks;
    const bool stops = damacy__core_stops(core); /* nothing is read then, and nothing is wrong */
    damacy_status status = DAMACY_SHUTDOWN;
    damacy_error error;
    uint64_t wanted = 0;

    (void)worker;
    damacy__run_error_init(slot, slot->plan.by_place.items[read->first], DAMACY_STAGE_READ, &error);
    if (!stops) {
        status = damacy__run_fetch(task, &error);
    }
    for (uint32_t i = 0; i < n_chunks; i++) {
        wanted += slot->plan.chunks.items[slot->plan.by_place.items[read->first + i]].size;
    }
    if (status == DAMACY_OK) {
        const uint64_t size = task->file ? DAMACY__MIN(wanted, read->size) : read->size;
        damacy__metric_add(&core->counters.read, damacy__now_ns() - start, size, wanted);
        damacy__count(&core->counters.bytes_read, size);
        damacy__count(&core->counters.bytes_mapped, task->file ? size : 0);
        for (uint32_t i = 0; i < n_chunks; i++) {
            damacy__run_chunk_arrived(task, slot->plan.by_place.items[read->first + i]);
        }
        return; /* the chunks may have ended already: the slot is not ours any more */
    }
    for (uint32_t i = 0; i < n_chunks; i++) {
        const uint32_t chunk = slot->plan.by_place.items[read->first + i];
        damacy__index* index = (damacy__index*)(uintptr_t)slot->plan.chunks.items[chunk].index;
        if (!stops) { /* an object that is gone or replaced gives no more from memory either */
            __atomic_store_n(&index->serial, 0, __ATOMIC_RELAXED);
        }
        damacy__run_unit_fail(&slot->chunk_units.items[chunk], stops ? NULL : &error);
    }
    damacy__run_release(task, n_chunks);
    damacy__run_done(slot, n_chunks);
}
