/* The second half of planning: chunks to coalesced reads, in an order in which objects take turns.
 *
 * Chunks of one object that lie next to each other, or a small gap apart, are read at once up to a
 * limit; overlapping and identical extents are legal and share bytes. */
#pragma once
#include "stage/plan.h"

static damacy_status damacy__plan_group(damacy__plan* plan, damacy__alloc* alloc,
                                        damacy_error* err);
static damacy_status damacy__plan_reads_make(damacy__plan* plan, damacy__alloc* alloc,
                                             const damacy__plan_options* options,
                                             damacy_error* err);

/* Stable merge sort of numbers by a key; scratch has room for as many. */
static void damacy__numbers_sort(uint32_t* items, uint32_t* scratch, uint64_t n,
                                 bool (*less)(const damacy__plan* plan, uint32_t a, uint32_t b),
                                 const damacy__plan* plan)
{
    uint32_t* from = items;
    uint32_t* to = scratch;

    for (uint64_t width = 1; width < n; width *= 2) {
        uint32_t* swap = from;
        for (uint64_t begin = 0; begin < n; begin += 2 * width) {
            const uint64_t middle = DAMACY__MIN(begin + width, n);
            const uint64_t end = DAMACY__MIN(begin + 2 * width, n);
            uint64_t a = begin;
            uint64_t b = middle;
            for (uint64_t i = begin; i < end; i++) {
                const bool take_b = b < end && (a == middle || less(plan, from[b], from[a]));
                to[i] = take_b ? from[b++] : from[a++];
            }
        }
        from = to;
        to = swap;
    }
    if (from != items && n) {
        memcpy(items, from, n * sizeof items[0]);
    }
}

static bool damacy__chunk_before(const damacy__plan* plan, uint32_t a, uint32_t b)
{
    const damacy__plan_chunk* x = &plan->chunks.items[a];
    const damacy__plan_chunk* y = &plan->chunks.items[b];

    return x->object != y->object ? x->object < y->object : x->offset < y->offset;
}

static bool damacy__read_before(const damacy__plan* plan, uint32_t a, uint32_t b)
{
    return plan->reads.items[a].turn < plan->reads.items[b].turn;
}

/* Numbers the objects in order of first use, by looking each chunk's index up in the hash. The hash
 * of chunks is free by now, so it is used again for objects. */
static void damacy__plan_number_objects(damacy__plan* plan)
{
    const uint64_t mask = plan->buckets.n - 1;

    memset(plan->buckets.items, 0, plan->buckets.n * sizeof(uint32_t));
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        damacy__plan_chunk* chunk = &plan->chunks.items[i];
        uint64_t at = damacy__plan_hash(chunk->index, 0) & mask;
        while (plan->buckets.items[at] &&
               plan->chunks.items[plan->buckets.items[at] - 1].index != chunk->index) {
            at = (at + 1) & mask;
        }
        if (!plan->buckets.items[at]) {
            plan->buckets.items[at] = i + 1;
            chunk->object = plan->n_objects++;
        } else {
            chunk->object = plan->chunks.items[plan->buckets.items[at] - 1].object;
        }
    }
}

/* Groups the copies by chunk once all samples are added: a counting sort that keeps their order.
 * From here on chunks can be copied from. */
static damacy_status damacy__plan_group(damacy__plan* plan, damacy__alloc* alloc, damacy_error* err)
{
    const uint64_t n = DAMACY__MAX(plan->chunks.n, plan->copies.n);
    uint32_t first = 0;

    plan->scratch.n = 0;
    if (!damacy__numbers_reserve(&plan->scratch, alloc, n + 1) ||
        !damacy__numbers_reserve(&plan->order, alloc, n + 1)) {
        return damacy__fail(err, DAMACY_OOM, "plan of %" PRIu64 " chunks", plan->chunks.n);
    }
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        plan->chunks.items[i].first = first;
        first += plan->chunks.items[i].n_copies;
        plan->scratch.items[i] = plan->chunks.items[i].first;
    }
    for (uint32_t i = 0; i < plan->copies.n; i++) {
        const uint32_t chunk = plan->copies.items[i].chunk;
        if (chunk != UINT32_MAX) {
            plan->order.items[plan->scratch.items[chunk]++] = i;
        }
    }
    plan->order.n = first;
    return DAMACY_OK;
}

/* Joins sorted chunks to reads. */
static bool damacy__plan_join(damacy__plan* plan, damacy__alloc* alloc,
                              const damacy__plan_options* options)
{
    damacy__plan_read* read = NULL;
    uint32_t object = UINT32_MAX;
    uint32_t turn = 0;

    for (uint32_t i = 0; i < plan->by_place.n; i++) {
        damacy__plan_chunk* chunk = &plan->chunks.items[plan->by_place.items[i]];
        const uint64_t end = chunk->offset + chunk->size;
        const bool joins =
            read && chunk->object == object &&
            chunk->offset <= read->offset + read->size + options->max_gap &&
            DAMACY__MAX(end, read->offset + read->size) - read->offset <= options->max_read;
        if (!joins) {
            read = damacy__plan_reads_push(&plan->reads, alloc);
            if (!read) {
                return false;
            }
            turn = chunk->object == object ? turn + 1 : 0;
            read->turn = turn;
            read->offset = chunk->offset;
            read->first = i;
            object = chunk->object;
        }
        read->size = DAMACY__MAX(end, read->offset + read->size) - read->offset;
        read->n_chunks++;
        chunk->read = (uint32_t)plan->reads.n - 1;
    }
    return true;
}

/* Completes a grouped plan with the reads for all chunks that are not held. */
static damacy_status damacy__plan_reads_make(damacy__plan* plan, damacy__alloc* alloc,
                                             const damacy__plan_options* options, damacy_error* err)
{
    const uint64_t n = plan->chunks.n;

    if (!damacy__numbers_reserve(&plan->by_place, alloc, n + 1) ||
        !damacy__numbers_reserve(&plan->issue, alloc, n + 1)) {
        return damacy__fail(err, DAMACY_OOM, "plan of %" PRIu64 " chunks", plan->chunks.n);
    }
    if (plan->chunks.n == 0) {
        return DAMACY_OK;
    }
    damacy__plan_number_objects(plan);
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        if (!plan->chunks.items[i].is_held) {
            plan->by_place.items[plan->by_place.n++] = i;
        }
    }
    damacy__numbers_sort(plan->by_place.items, plan->scratch.items, plan->by_place.n,
                         damacy__chunk_before, plan);
    if (!damacy__plan_join(plan, alloc, options)) {
        return damacy__fail(err, DAMACY_OOM, "plan of %" PRIu64 " chunks", plan->chunks.n);
    }
    for (uint32_t i = 0; i < plan->reads.n; i++) {
        plan->issue.items[i] = i;
    }
    plan->issue.n = plan->reads.n;
    damacy__numbers_sort(plan->issue.items, plan->scratch.items, plan->reads.n, damacy__read_before,
                         plan);
    return DAMACY_OK;
}
