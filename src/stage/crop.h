/* A pushed sample until it can be planned: its array's metadata, then the indexes of all objects
 * that it touches.
 *
 * Settling never blocks: it asks the catalog, which fetches ahead, and looks again when woken. */
#pragma once
#include "stage/core.h"

static bool damacy__crop_settle(damacy__core* core, damacy__crop* crop);
static void damacy__crop_deinit(damacy__core* core, damacy__crop* crop);

static void damacy__crop_deinit(damacy__core* core, damacy__crop* crop)
{
    damacy__crop_clear(core, crop);
    damacy__free(&core->alloc, crop->indexes, crop->n_capacity);
    damacy__free(&core->alloc, crop->index_views, crop->n_capacity);
}

static damacy_status damacy__crop_check(const damacy__core* core, const damacy__crop* crop,
                                        damacy_error* err)
{
    const damacy__layout* layout = crop->array->fetched.layout;

    if (layout->rank != core->plan_options.rank) {
        return damacy__fail(err, DAMACY_RANK, "the array has %u axes, the sample has %u",
                            layout->rank, core->plan_options.rank);
    }
    for (uint32_t i = 0; i < layout->rank; i++) {
        if (core->config.bounds == DAMACY_BOUNDS_REJECT &&
            (crop->box[i].begin < 0 || crop->box[i].end > layout->shape[i])) {
            return damacy__fail(err, DAMACY_INVAL,
                                "axis %u: [%" PRId64 ", %" PRId64
                                ") lies outside the array's [0, %" PRId64 ")",
                                i, crop->box[i].begin, crop->box[i].end, layout->shape[i]);
        }
        if (core->config.n_channels > 1 && i == core->config.channel_axis &&
            crop->box[i].end - crop->box[i].begin > (int64_t)core->config.n_channels) {
            return damacy__fail(err, DAMACY_INVAL, "axis %u has more channels than n_channels %u",
                                i, core->config.n_channels);
        }
    }
    return DAMACY_OK;
}

/* Voxels of one axis that the sample reads, as [first, last]; false when it reads none. */
static bool damacy__crop_reach(damacy_bounds bounds, damacy_interval box, int64_t shape,
                               int64_t* first, int64_t* last)
{
    int64_t lo = DAMACY__MAX(box.begin, 0);
    int64_t hi = DAMACY__MIN(box.end, shape) - 1;

    if (shape == 0) {
        return false;
    }
    if (bounds == DAMACY_BOUNDS_CLAMP) {
        lo = DAMACY__MIN(lo, shape - 1);
        hi = DAMACY__MAX(hi, 0);
    } else if (bounds == DAMACY_BOUNDS_REFLECT && (box.begin < 0 || box.end > shape)) {
        /* Near a border the mirror image lies within the overhang; further out take the whole axis.
         */
        const int64_t before = box.begin < 0 ? -box.begin : 0;
        const int64_t after = box.end > shape ? box.end - shape : 0;
        if (before >= shape || after >= shape || box.begin >= shape || box.end <= 0) {
            lo = 0;
            hi = shape - 1;
        } else {
            lo = DAMACY__MAX(DAMACY__MIN(lo, shape - 1 - after), 0);
            hi = DAMACY__MIN(DAMACY__MAX(hi, before), shape - 1);
        }
    }
    *first = lo;
    *last = hi;
    return lo <= hi;
}

/* Room for the pins of n objects. */
static bool damacy__crop_reserve(damacy__core* core, damacy__crop* crop, uint64_t n)
{
    damacy__index_entry** indexes;
    const damacy__index** views;

    if (n <= crop->n_capacity) {
        return true;
    }
    indexes = damacy__new(&core->alloc, n, damacy__index_entry*);
    views = damacy__new(&core->alloc, n, const damacy__index*);
    if (!indexes || !views) {
        damacy__free(&core->alloc, indexes, n);
        damacy__free(&core->alloc, views, n);
        return false;
    }
    damacy__free(&core->alloc, crop->indexes, crop->n_capacity);
    damacy__free(&core->alloc, crop->index_views, crop->n_capacity);
    crop->indexes = indexes;
    crop->index_views = views;
    crop->n_capacity = n;
    return true;
}

/* Asks for the index of every object that the sample touches. */
static damacy_status damacy__crop_ask(damacy__core* core, damacy__crop* crop, damacy_error* err)
{
    enum { DAMACY__MAX_OBJECTS = 1 << 20 };
    const damacy__layout* layout = crop->array->fetched.layout;
    int64_t at[DAMACY_MAX_RANK] = {0};
    uint64_t n = 1;

    for (uint32_t i = 0; i < layout->rank; i++) {
        int64_t first;
        int64_t last;
        if (!damacy__crop_reach(core->config.bounds, crop->box[i], layout->shape[i], &first,
                                &last)) {
            return DAMACY_OK;
        }
        crop->first_object[i] = first / layout->object_shape[i];
        crop->n_objects[i] = last / layout->object_shape[i] - crop->first_object[i] + 1;
        if (!damacy__mul(n, (uint64_t)crop->n_objects[i], &n) || n > DAMACY__MAX_OBJECTS) {
            return damacy__fail(err, DAMACY_INVAL, "the sample touches more than %d objects",
                                DAMACY__MAX_OBJECTS);
        }
    }
    if (!damacy__crop_reserve(core, crop, n)) {
        (void)damacy__fail(err, DAMACY_OOM, "a sample that touches %" PRIu64 " objects", n);
        return damacy__alloc_explain(&core->alloc, err);
    }
    for (uint64_t k = 0; k < n; k++) {
        uint64_t number = 0;
        uint64_t rest = k;
        for (uint32_t i = layout->rank; i-- > 0;) {
            at[i] = crop->first_object[i] + (int64_t)(rest % (uint64_t)crop->n_objects[i]);
            rest /= (uint64_t)crop->n_objects[i];
        }
        for (uint32_t i = 0; i < layout->rank; i++) {
            number = number * damacy__div_up((uint64_t)layout->shape[i],
                                             (uint64_t)layout->object_shape[i]) +
                     (uint64_t)at[i];
        }
        DAMACY__TRY(
            damacy__catalog_index(&core->catalog, crop->array, number, &crop->indexes[k], err));
        crop->index_views[k] = &crop->indexes[k]->index;
        crop->n_indexes = k + 1;
    }
    return DAMACY_OK;
}

/* Takes the error of a failed fetch over. */
static void damacy__crop_inherit(damacy__crop* crop, const damacy_error* error)
{
    if (error) {
        crop->error = *error;
    } else {
        (void)damacy__fail(&crop->error, DAMACY_OOM, "no memory for a shard index");
        (void)damacy__alloc_explain(crop->array->catalog->alloc, &crop->error);
        damacy__error_where(&crop->error, DAMACY_STAGE_INDEX, crop->array->uri, NULL);
    }
    crop->error.sample = crop->number;
    crop->state = DAMACY__SAMPLE_SETTLED;
}

static void damacy__crop_set_failed(damacy__crop* crop)
{
    crop->error.sample = crop->number;
    damacy__error_where(&crop->error, DAMACY_STAGE_PLAN, crop->array->uri, NULL);
    crop->state = DAMACY__SAMPLE_SETTLED;
}

/* Goes on as far as the catalog has answered; true once the sample is settled. Scheduler thread
 * only. */
static bool damacy__crop_settle(damacy__core* core, damacy__crop* crop)
{
    uint32_t state;

    if (crop->state == DAMACY__SAMPLE_NEW) {
        state = damacy__fetch_state_of(&crop->array->state);
        if (state == DAMACY__FETCHING) {
            return false;
        }
        if (state == DAMACY__FAILED) {
            damacy__crop_inherit(crop, &crop->array->error);
            return true;
        }
        if (damacy__crop_check(core, crop, &crop->error) != DAMACY_OK ||
            damacy__crop_ask(core, crop, &crop->error) != DAMACY_OK) {
            damacy__crop_set_failed(crop);
            return true;
        }
        crop->state = DAMACY__SAMPLE_INDEXES;
    }
    while (crop->state == DAMACY__SAMPLE_INDEXES && crop->n_settled < crop->n_indexes) {
        const damacy__index_entry* index = crop->indexes[crop->n_settled];
        state = damacy__fetch_state_of(&index->state);
        if (state == DAMACY__FETCHING) {
            return false;
        }
        if (state == DAMACY__FAILED) {
            damacy__crop_inherit(crop, index->error);
            return true;
        }
        crop->n_settled++;
    }
    crop->state = DAMACY__SAMPLE_SETTLED;
    return true;
}
