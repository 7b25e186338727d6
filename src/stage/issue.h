/* A planned batch to tasks, and their start: chunks that are decoded already at once, reads while
 * staging space lasts.
 *
 * The surprising rule: from damacy__run_ask on, workers, or the thread of the GPU, may end chunks of
 * a batch that has not been started yet; the scheduler's own share in n_pending keeps it. */
#pragma once
#include "stage/host_run.h"

static damacy_status damacy__run_units(damacy__slot* slot, damacy_error* err);
static void damacy__run_ask(damacy__slot* slot);
static damacy_status damacy__run_prepare(damacy__slot* slot, damacy_error* err);
static void damacy__run_start(damacy__slot* slot);
static bool damacy__run_issue(damacy__slot* slot);

/* Makes the tasks for the chunks and fills of a planned batch. */
static damacy_status damacy__run_units(damacy__slot* slot, damacy_error* err)
{
    enum { DAMACY__FILLS_PER_TASK = 32 };
    damacy__alloc* alloc = &slot->core->alloc;
    const damacy__plan* plan = &slot->plan;

    slot->chunk_units.n = slot->fill_units.n = 0;
    if (!damacy__units_reserve(&slot->chunk_units, alloc, plan->chunks.n + 1) ||
        !damacy__units_reserve(&slot->fill_units, alloc, plan->fills.n + 1)) {
        return damacy__fail(err, DAMACY_OOM, "tasks of a batch of %" PRIu64 " chunks",
                            plan->chunks.n);
    }
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        damacy__unit* unit = damacy__units_push(&slot->chunk_units, alloc);
        unit->task.function = damacy__run_chunk;
        unit->task.context = unit;
        unit->slot = slot;
        unit->first = i;
    }
    for (uint32_t i = 0; i < plan->fills.n; i += DAMACY__FILLS_PER_TASK) {
        damacy__unit* unit = damacy__units_push(&slot->fill_units, alloc);
        unit->task.function = damacy__run_fill;
        unit->task.context = unit;
        unit->slot = slot;
        unit->kind = DAMACY__UNIT_FILL;
        unit->first = i;
        unit->n = (uint32_t)DAMACY__MIN(plan->fills.n - i, (uint64_t)DAMACY__FILLS_PER_TASK);
    }
    memset(&slot->finish_unit, 0, sizeof slot->finish_unit);
    slot->finish_unit.slot = slot;
    slot->finish_unit.kind = DAMACY__UNIT_FINISH;
    /* One more than there are tasks: the scheduler's own share, until it has issued them all. */
    slot->n_pending = 1 + plan->chunks.n + slot->fill_units.n;
    return DAMACY_OK;
}

/* Whether a chunk is decoded already or is being decoded for an earlier batch. Scheduler thread
 * only, so that nobody can wait yet for one that finds no space on a GPU: there it has it before it
 * is decoded, or is not kept. */
static bool damacy__run_ask_chunk(damacy__unit* unit, const damacy__plan_chunk* chunk)
{
    damacy__core* core = unit->slot->core;
    const uint64_t size = chunk->layout->chunk_size;
    damacy__ask answer;

    unit->waiter.owner = unit;
    /* Before anybody can see the waiter. */
    unit->task.function = damacy__run_kept;
    unit->kind = core->gpu ? DAMACY__UNIT_KEPT : DAMACY__UNIT_HOST;
    answer =
        damacy__chunks_ask(&core->chunks, __atomic_load_n(&chunk->index->serial, __ATOMIC_RELAXED),
                           chunk->entry, size, &unit->waiter, &unit->block);
    if (answer == DAMACY__ASK_DECODE && core->gpu &&
        !damacy__chunks_place(&core->chunks, unit->block, size)) {
        (void)damacy__chunks_settle(&core->chunks, unit->block, false);
        unit->block = NULL;
    }
    unit->is_kept = answer == DAMACY__ASK_KEPT;
    if (answer == DAMACY__ASK_KEPT || answer == DAMACY__ASK_WAIT) {
        return true;
    }
    unit->task.function = damacy__run_chunk;
    unit->kind = DAMACY__UNIT_HOST;
    return false;
}

/* Leaves out of reading and decoding what is decoded already, or is being decoded for an earlier
 * batch: those chunks may end from here on. Scheduler thread only. */
static void damacy__run_ask(damacy__slot* slot)
{
    damacy__core* core = slot->core;
    uint64_t n_kept = 0;

    for (uint32_t i = 0; i < slot->plan.chunks.n && core->chunks.size; i++) {
        damacy__plan_chunk* chunk = &slot->plan.chunks.items[i];
        if (!core->gpu && damacy__host_decode_is_identity(chunk->layout)) {
            continue; /* copied from where it was read */
        }
        if (!damacy__run_ask_chunk(&slot->chunk_units.items[i], chunk)) {
            continue;
        }
        chunk->is_held = true;
        n_kept++;
        slot->plan.bytes_wanted -= chunk->size;
        slot->plan.bytes_decoded -= chunk->layout->chunk_size;
    }
    damacy__count(&core->counters.chunks_kept, n_kept);
    damacy__count(&core->counters.chunks_decoded, slot->plan.chunks.n - n_kept);
}

/* Makes the tasks for the reads of a planned batch. */
static damacy_status damacy__run_prepare(damacy__slot* slot, damacy_error* err)
{
    damacy__alloc* alloc = &slot->core->alloc;
    const damacy__plan* plan = &slot->plan;

    slot->read_tasks.n = 0;
    slot->next_read = 0;
    if (!damacy__read_tasks_reserve(&slot->read_tasks, alloc, plan->reads.n + 1)) {
        return damacy__fail(err, DAMACY_OOM, "tasks of a batch of %" PRIu64 " reads",
                            plan->reads.n);
    }
    for (uint32_t i = 0; i < plan->reads.n; i++) {
        damacy__read_task* task = damacy__read_tasks_push(&slot->read_tasks, alloc);
        task->task.function = damacy__run_read;
        task->task.context = task;
        task->slot = slot;
        task->read = i;
        task->n_pending = plan->reads.items[i].n_chunks;
    }
    return DAMACY_OK;
}

/* Starts what needs no reads: fills, and chunks that are decoded already. */
static void damacy__run_start(damacy__slot* slot)
{
    for (uint32_t i = 0; i < slot->fill_units.n; i++) {
        damacy__run_submit(&slot->fill_units.items[i]);
    }
    for (uint32_t i = 0; i < slot->chunk_units.n; i++) {
        if (slot->chunk_units.items[i].is_kept) {
            damacy__run_submit(&slot->chunk_units.items[i]);
        }
    }
}

/* More stored bytes than any encoder makes of a chunk: a damaged or hostile index. */
static bool damacy__run_is_absurd(const damacy__plan_chunk* chunk)
{
    return chunk->size > 2 * chunk->layout->chunk_size + (1 << 20);
}

/* Fails the chunks of a read that cannot be done. */
static void damacy__run_refuse(damacy__slot* slot, const damacy__plan_read* read)
{
    damacy__core* core = slot->core;

    for (uint32_t i = 0; i < read->n_chunks; i++) {
        const uint32_t chunk = slot->plan.by_place.items[read->first + i];
        const damacy__plan_chunk* c = &slot->plan.chunks.items[chunk];
        damacy_error error;
        damacy__run_error_init(slot, chunk, DAMACY_STAGE_PLAN, &error);
        if (damacy__run_is_absurd(c)) {
            (void)damacy__fail(&error, DAMACY_DECODE,
                               "%" PRIu64 " stored bytes are too many for a chunk of %" PRIu64,
                               c->size, c->layout->chunk_size);
        } else {
            (void)damacy__fail(&error, DAMACY_BUDGET,
                               "a chunk of %" PRIu64 " stored and %" PRIu64
                               " decoded bytes; max_host_bytes %" PRIu64 " leaves room for %" PRIu64
                               " and %" PRIu64,
                               c->size, c->layout->chunk_size, core->config.max_host_bytes,
                               core->staging_size, core->decoded_size);
        }
        damacy__run_unit_fail(&slot->chunk_units.items[chunk], &error);
    }
}

static bool damacy__run_fits(const damacy__slot* slot, const damacy__plan_read* read)
{
    const damacy__core* core = slot->core;

    for (uint32_t i = 0; i < read->n_chunks; i++) {
        const damacy__plan_chunk* c =
            &slot->plan.chunks.items[slot->plan.by_place.items[read->first + i]];
        if (damacy__run_is_absurd(c) ||
            (damacy__align_up(c->layout->chunk_size, 4096) > core->decoded_size &&
             !damacy__host_decode_is_identity(c->layout))) {
            return false;
        }
    }
    return damacy__align_up(read->size, 64) <= core->staging_size;
}

/* Issues reads while staging space lasts; true once all are issued. Scheduler thread only. */
static bool damacy__run_issue(damacy__slot* slot)
{
    damacy__core* core = slot->core;

    for (; slot->next_read < slot->plan.issue.n; slot->next_read++) {
        damacy__read_task* task = &slot->read_tasks.items[slot->plan.issue.items[slot->next_read]];
        const damacy__plan_read* read = &slot->plan.reads.items[task->read];
        uint64_t offset = 0;
        bool ok;
        if (!damacy__run_fits(slot, read)) {
            damacy__run_refuse(slot, read);
            damacy__run_done(slot, read->n_chunks);
            continue;
        }
        damacy__lock(&core->staging_mutex);
        ok = damacy__ring_take(&core->ring, damacy__align_up(DAMACY__MAX(read->size, 1), 64),
                               &offset, &task->ticket);
        damacy__unlock(&core->staging_mutex);
        if (!ok) {
            return false;
        }
        task->bytes = task->space = core->staging + offset;
        damacy__pool_submit(&core->io, &task->task, DAMACY__NORMAL);
    }
    return true;
}
