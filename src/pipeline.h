/* The order of the stages: push fills a queue, one scheduler thread settles samples, plans batches
 * and issues reads, pools do the work, pop waits for slots.
 *
 * The scheduler never blocks on storage or on a consumer: it looks at everything that may have
 * changed, does what it can, and sleeps until it is kicked. */
#pragma once
#include "stage/crop.h"
#include "stage/gpu_run.h"
#include "stage/issue.h"

static void* damacy__scheduler_main(void* context);
static damacy_status damacy__pipeline_push(damacy__core* core, const damacy_sample* sample,
                                           damacy_error* err);
static damacy_status damacy__pipeline_pop(damacy__core* core, bool wait,
                                          const uint64_t* deadline_ns, damacy_batch* out,
                                          damacy_error* err);

/* Samples of the next batch that is not planned yet; 0: it cannot be planned now. Holds the mutex.
 */
static uint32_t damacy__scheduler_batch_size(const damacy__core* core)
{
    const uint64_t n = core->queue_next - core->queue_first;

    if (n >= core->config.samples_per_batch) {
        return core->config.samples_per_batch;
    }
    return core->is_finished ? (uint32_t)n : 0;
}

/* A slot to make a batch in: rather one that no consumer's event holds, else the one released
 * longest ago. Holds the mutex. */
static damacy__slot* damacy__scheduler_free_slot(damacy__core* core)
{
    damacy__slot* best = NULL;

    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        damacy__slot* slot = &core->slots[i];
        if (slot->state != DAMACY__SLOT_FREE) {
            continue;
        }
        if (!damacy__slot_has_gates(slot)) {
            return slot;
        }
        if (!best || slot->n_released < best->n_released) {
            best = slot;
        }
    }
    return best;
}

/* The slot in which a batch is made or ready. Holds the mutex. */
static damacy__slot* damacy__pop_slot(damacy__core* core, uint64_t id)
{
    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        damacy__slot* slot = &core->slots[i];
        if (slot->id == id &&
            (slot->state == DAMACY__SLOT_READY || slot->state == DAMACY__SLOT_RUNNING)) {
            return slot;
        }
    }
    return NULL;
}

/* Settles what the catalog has answered; true when the first n samples are settled. The entries
 * between queue_first and `end` belong to this thread, so the mutex is not needed. */
static bool damacy__scheduler_settle(damacy__core* core, uint64_t first, uint64_t end, uint32_t n)
{
    bool all = true;

    for (uint64_t i = first; i != end && !damacy__core_stops(core); i++) {
        damacy__crop* crop = &core->queue[i % core->config.lookahead_samples];
        if (crop->state != DAMACY__SAMPLE_SETTLED && !damacy__crop_settle(core, crop) &&
            i - first < n) {
            all = false;
        }
    }
    return all;
}

/* Makes the memory of all slots, once the shape and the type of batches are known. */
static damacy_status damacy__scheduler_make_slots(damacy__core* core, damacy_error* err)
{
    uint64_t voxels;
    uint64_t size;
    uint64_t total;

    core->plan_options.out_size = (uint32_t)damacy__dtype_size(core->out_dtype);
    if (!damacy__product(core->plan_options.shape, core->plan_options.rank, &voxels) ||
        !damacy__mul(voxels, (uint64_t)core->plan_options.out_size * core->config.samples_per_batch,
                     &size) ||
        !damacy__mul(size, core->config.batch_slots, &total)) {
        return damacy__fail(err, DAMACY_BUDGET, "the size of a batch does not fit 64 bits");
    }
    if (core->external && size != core->external_size) {
        return damacy__fail(err, DAMACY_INVAL, "dst has %" PRIu64 " bytes, the box %" PRIu64,
                            core->external_size, size);
    }
    if (core->gpu) {
        return damacy__gpu_make_memory(core->gpu, size, total, err);
    }
    for (uint32_t i = 0; i < core->config.batch_slots; i++) {
        damacy__slot* slot = &core->slots[i];
        slot->size = size;
        slot->ptr = core->external
                        ? core->external
                        : (uint8_t*)damacy__alloc_take(&core->alloc, size ? size : 1, 1, 4096);
        if (!slot->ptr) {
            return damacy__fail(err, DAMACY_BUDGET,
                                "%u batch slots of %" PRIu64 " bytes and %" PRIu64
                                " bytes of buffers do not fit max_host_bytes %" PRIu64,
                                core->config.batch_slots, size,
                                core->staging_size + core->decoded_size,
                                core->config.max_host_bytes);
        }
    }
    return DAMACY_OK;
}

/* Output type of a NATIVE pipeline: that of the first sample whose array is known. */
static void damacy__scheduler_choose_dtype(damacy__core* core, const damacy__slot* slot)
{
    for (uint32_t i = 0; i < slot->n_samples && core->out_dtype == DAMACY_NATIVE; i++) {
        const damacy__crop* crop = &slot->crops[i];
        if (crop->array && damacy__fetch_state_of(&crop->array->state) == DAMACY__READY) {
            core->out_dtype = crop->array->fetched.layout->dtype;
        }
    }
}

/* Takes what max_host_bytes leaves for decoded chunks, less room for metadata and for the records
 * of all batches, which are taken to be at most twice those of the first. */
static damacy_status damacy__scheduler_take_chunks(damacy__core* core, uint64_t records,
                                                   damacy_error* err)
{
    const uint64_t budget = core->config.max_host_bytes;
    const uint64_t limit = core->config.max_cache_bytes;
    const uint64_t used = __atomic_load_n(&core->alloc.live_bytes, __ATOMIC_RELAXED) +
                          2 * records * core->config.batch_slots + budget / 16 * 3;
    uint64_t size = used < budget ? budget - used : 0;

    size = limit ? DAMACY__MIN(size, limit) : size;
    return damacy__chunks_init(&core->chunks, &core->alloc, size, err);
}

/* Makes room for decoded chunks, once for the first batch. Without it the pipeline works as well,
 * with more decoding. */
static void damacy__scheduler_make_chunks(damacy__core* core, uint64_t records)
{
    damacy_status status;
    damacy_error error;

    if (core->external || core->config.debug_bypass_decode) {
        return;
    }
    memset(&error, 0, sizeof error);
    status = core->gpu ? damacy__gpu_make_chunks(core->gpu, &error)
                       : damacy__scheduler_take_chunks(core, records, &error);
    if (status != DAMACY_OK) {
        damacy__core_log(core, DAMACY_LOG_WARN, "decoded chunks are not kept: %s", error.message);
    }
    __atomic_store_n(&core->cache_bytes, core->chunks.size, __ATOMIC_RELAXED);
}

/* Warns of an array of which nothing that was asked for is stored: rather than an empty one, it may
 * have keys of another form, or be a copy that has not ended. */
static void damacy__scheduler_suspect(damacy__core* core, damacy__array_entry* array,
                                      uint64_t n_touched, uint64_t n_missing)
{
    const damacy__layout* layout = array->fetched.layout;
    uint64_t enough = 1;

    for (uint32_t i = 0; i < layout->rank; i++) {
        const int64_t last = (layout->shape[i] - 1) / layout->chunk_shape[i];
        enough *= (uint64_t)DAMACY__MIN(last, DAMACY__SUSPECT - 1) + 1;
        enough = DAMACY__MIN(enough, (uint64_t)DAMACY__SUSPECT);
    }
    array->n_missing += n_missing;
    array->n_present += n_touched - n_missing;
    if (array->n_present == 0 && array->n_missing >= enough && !array->is_suspect) {
        array->is_suspect = true;
        damacy__core_log(core, DAMACY_LOG_WARN,
                         "%s: nothing but fill values so far: %" PRIu64
                         " times a chunk was asked for, and none of them is stored",
                         array->uri, array->n_missing);
    }
}

/* Adds each good sample to the plan; one that fails is marked and left out. */
static damacy_status damacy__scheduler_plan(damacy__core* core, damacy__slot* slot,
                                            damacy_error* err)
{
    const uint64_t start = damacy__now_ns();
    const uint64_t live = __atomic_load_n(&core->alloc.live_bytes, __ATOMIC_RELAXED);

    damacy__plan_clear(&slot->plan);
    for (uint32_t i = 0; i < slot->n_samples; i++) {
        damacy__crop* crop = &slot->crops[i];
        damacy__view view;
        uint64_t n_touched;
        uint64_t n_missing;
        if (crop->error.status != DAMACY_OK) {
            slot->n_failed++;
            damacy__core_tell(core, &crop->error, crop->number);
            continue;
        }
        if (core->config.dtype == DAMACY_NATIVE &&
            crop->array->fetched.layout->dtype != core->out_dtype) {
            (void)damacy__fail(&crop->error, DAMACY_DTYPE,
                               "the array is %s, but batches took the type of the first array, %s",
                               damacy__dtype_str(crop->array->fetched.layout->dtype),
                               damacy__dtype_str(core->out_dtype));
            damacy__crop_set_failed(crop);
            slot->n_failed++;
            damacy__core_tell(core, &crop->error, crop->number);
            continue;
        }
        view.layout = crop->array->fetched.layout;
        view.box = crop->box;
        view.indexes = crop->index_views;
        view.first_object = crop->first_object;
        view.n_objects = crop->n_objects;
        view.sample = i;
        n_touched = slot->plan.n_touched;
        n_missing = slot->plan.n_missing;
        DAMACY__TRY(
            damacy__plan_sample(&slot->plan, &core->alloc, &core->plan_options, &view, err));
        damacy__scheduler_suspect(core, crop->array, slot->plan.n_touched - n_touched,
                                  slot->plan.n_missing - n_missing);
    }
    DAMACY__TRY(damacy__plan_group(&slot->plan, &core->alloc, err));
    DAMACY__TRY(damacy__run_units(slot, err));
    if (core->next_planned == 0) {
        const uint64_t now = __atomic_load_n(&core->alloc.live_bytes, __ATOMIC_RELAXED);
        damacy__scheduler_make_chunks(core, now > live ? now - live : 0);
    }
    damacy__run_ask(slot);
    DAMACY__TRY(damacy__plan_reads_make(&slot->plan, &core->alloc, &core->plan_options, err));
    DAMACY__TRY(damacy__run_prepare(slot, err));
    damacy__metric_add(&core->counters.plan, damacy__now_ns() - start, 0, 0);
    damacy__count(&core->counters.chunks_touched, slot->plan.n_touched);
    damacy__count(&core->counters.chunks_missing, slot->plan.n_missing);
    damacy__count(&core->counters.bytes_wanted, slot->plan.bytes_wanted);
    damacy__count(&core->counters.bytes_decoded, slot->plan.bytes_decoded);
    damacy__count(&core->counters.bytes_delivered, slot->plan.bytes_delivered);
    return DAMACY_OK;
}

/* Stops the pipeline with an error that is not one sample's. */
static void damacy__scheduler_fail(damacy__core* core, const damacy_error* error)
{
    damacy__lock(&core->mutex);
    core->is_planning = false;
    if (!core->has_failed) {
        core->has_failed = true;
        core->failure = *error;
        (void)damacy__alloc_explain(&core->alloc, &core->failure);
    }
    damacy__broadcast(&core->pop_wake);
    damacy__unlock(&core->mutex);
}

/* Moves n settled samples into a free slot and starts its tasks. The mutex is not held. */
static void damacy__scheduler_start(damacy__core* core, damacy__slot* slot, uint64_t first,
                                    uint32_t n)
{
    damacy_error error;

    damacy__error_init(&error, DAMACY_STAGE_PLAN);
    for (uint32_t i = 0; i < n; i++) {
        damacy__crop* from = &core->queue[(first + i) % core->config.lookahead_samples];
        damacy__crop used;
        damacy__crop_clear(core, &slot->crops[i]);
        used = slot->crops[i];
        slot->crops[i] = *from;
        *from = used;
    }
    damacy__lock(&core->mutex);
    core->queue_first += n;
    core->is_planning = true;
    damacy__unlock(&core->mutex);
    slot->n_samples = n;
    slot->n_failed = 0;
    damacy__scheduler_choose_dtype(core, slot);
    if (!core->has_slots) {
        if (core->out_dtype == DAMACY_NATIVE) {
            core->out_dtype = DAMACY_U8; /* every sample failed: any type will do */
        }
        if (damacy__scheduler_make_slots(core, &error) != DAMACY_OK) {
            damacy__scheduler_fail(core, &error);
            return;
        }
        core->has_slots = true;
    }
    if (damacy__scheduler_plan(core, slot, &error) != DAMACY_OK) {
        damacy__scheduler_fail(core, &error);
        return;
    }
    damacy__lock(&core->mutex);
    core->is_planning = false;
    slot->id = core->next_planned++;
    slot->state = DAMACY__SLOT_RUNNING;
    damacy__unlock(&core->mutex);
    damacy__run_start(slot);
}

/* Issues the reads of running batches, oldest first; a batch waits for those before it. */
static void damacy__scheduler_issue(damacy__core* core, uint64_t* next_issued)
{
    while (*next_issued < core->next_planned) {
        damacy__slot* slot;
        damacy__lock(&core->mutex);
        slot = damacy__pop_slot(core, *next_issued);
        damacy__unlock(&core->mutex);
        if (!slot || !damacy__run_issue(slot)) {
            return;
        }
        ++*next_issued;
        damacy__run_done(slot, 1);
    }
}

/* One look at everything; returns whether to look again at once. */
static bool damacy__scheduler_step(damacy__core* core, uint64_t* next_issued)
{
    damacy__slot* slot;
    uint64_t first;
    uint64_t end;
    uint32_t n;
    bool settled;

    damacy__lock(&core->mutex);
    first = core->queue_first;
    end = core->queue_next;
    n = damacy__scheduler_batch_size(core);
    slot = core->has_failed ? NULL : damacy__scheduler_free_slot(core);
    damacy__unlock(&core->mutex);
    settled = damacy__scheduler_settle(core, first, end, n);
    if (n > 0 && settled && slot && !damacy__core_stops(core)) {
        damacy__scheduler_start(core, slot, first, n);
        damacy__scheduler_issue(core, next_issued);
        return true;
    }
    damacy__scheduler_issue(core, next_issued);
    return false;
}

static void* damacy__scheduler_main(void* context)
{
    damacy__core* core = (damacy__core*)context;
    uint64_t next_issued = 0;

    damacy__lock(&core->mutex);
    while (!core->is_stopping) {
        if (!core->kicked) {
            damacy__wait(&core->scheduler_wake, &core->mutex);
            continue;
        }
        core->kicked = false;
        damacy__unlock(&core->mutex);
        while (damacy__scheduler_step(core, &next_issued)) {
        }
        damacy__lock(&core->mutex);
    }
    damacy__unlock(&core->mutex);
    return NULL;
}

/* Fixes the shape of samples, from the configuration or the first sample. Holds the mutex. */
static void damacy__pipeline_geometry(damacy__core* core, uint32_t rank, const int64_t* shape)
{
    core->plan_options.rank = rank;
    memcpy(core->plan_options.shape, shape, rank * sizeof shape[0]);
    core->has_geometry = true;
}

/* Checks a sample against the pipeline's shape, which it changes nothing of; *shape receives the
 * sample's. Holds the mutex. */
static damacy_status damacy__pipeline_check(const damacy__core* core, const damacy_sample* sample,
                                            int64_t shape[DAMACY_MAX_RANK], damacy_error* err)
{
    uint64_t voxels;

    for (uint32_t i = 0; i < sample->rank; i++) {
        const damacy_interval box = sample->box[i];
        const int64_t limit = INT64_MAX / 4;
        if (box.begin < -limit || box.end > limit || box.begin >= box.end) {
            return damacy__fail(err, DAMACY_INVAL,
                                "axis %u: [%" PRId64 ", %" PRId64 ") is no interval", i, box.begin,
                                box.end);
        }
        shape[i] = box.end - box.begin;
    }
    if (!core->has_geometry) {
        if (!damacy__product(shape, sample->rank, &voxels) ||
            !damacy__mul(voxels, 8 * (uint64_t)core->config.samples_per_batch, &voxels) ||
            voxels > INT64_MAX) {
            return damacy__fail(err, DAMACY_INVAL, "a batch of %u such samples is too large",
                                core->config.samples_per_batch);
        }
        return DAMACY_OK;
    }
    if (sample->rank != core->plan_options.rank) {
        return damacy__fail(err, DAMACY_RANK, "the sample has %u axes, the pipeline %u",
                            sample->rank, core->plan_options.rank);
    }
    for (uint32_t i = 0; i < sample->rank; i++) {
        if (shape[i] != core->plan_options.shape[i]) {
            return damacy__fail(err, DAMACY_INVAL,
                                "axis %u has %" PRId64
                                " voxels, samples of this pipeline have %" PRId64,
                                i, shape[i], core->plan_options.shape[i]);
        }
    }
    return DAMACY_OK;
}

/* Whether a sample can be taken now. Holds the mutex. */
static damacy_status damacy__pipeline_room(damacy__core* core, damacy_error* err)
{
    if (core->has_failed && core->failure.status == DAMACY_DEVICE_LOST) {
        *err = core->failure;
        return err->status;
    }
    if (core->is_stopping || core->has_failed || core->is_finished) {
        return damacy__fail(err, DAMACY_SHUTDOWN, "the pipeline %s",
                            core->has_failed ? "has failed" : "takes no more samples");
    }
    if (core->queue_next - core->queue_first >= core->config.lookahead_samples) {
        return damacy__fail(err, DAMACY_AGAIN, "%u samples are queued",
                            core->config.lookahead_samples);
    }
    return DAMACY_OK;
}

/* Takes one sample; the caller kicks the scheduler afterwards. */
static damacy_status damacy__pipeline_push(damacy__core* core, const damacy_sample* sample,
                                           damacy_error* err)
{
    damacy__array_entry* array = NULL;
    int64_t shape[DAMACY_MAX_RANK];
    damacy_status status;

    if (!sample->uri || sample->uri[0] == '\0') {
        return damacy__fail(err, DAMACY_INVAL, "the sample has no uri");
    }
    if (sample->rank > DAMACY_MAX_RANK) {
        return damacy__fail(err, DAMACY_RANK, "the sample has %u axes; %d are possible",
                            sample->rank, DAMACY_MAX_RANK);
    }
    damacy__lock(&core->mutex);
    status = damacy__pipeline_room(core, err);
    if (status == DAMACY_OK) {
        status = damacy__pipeline_check(core, sample, shape, err);
    }
    damacy__unlock(&core->mutex);
    if (status != DAMACY_OK) {
        return status;
    }
    DAMACY__TRY(damacy__catalog_array(&core->catalog, sample->uri, &array, err));
    damacy__lock(&core->mutex);
    status = damacy__pipeline_room(core, err); /* again: another thread may have been quicker */
    if (status == DAMACY_OK) {
        status = damacy__pipeline_check(core, sample, shape, err);
    }
    if (status == DAMACY_OK) {
        if (!core->has_geometry) {
            damacy__pipeline_geometry(core, sample->rank, shape);
        }
        damacy__crop* crop = &core->queue[core->queue_next % core->config.lookahead_samples];
        memset(&crop->error, 0, sizeof crop->error);
        crop->error.offset = UINT64_MAX;
        crop->number = core->queue_next++;
        crop->array = array;
        crop->state = DAMACY__SAMPLE_NEW;
        memcpy(crop->box, sample->box, sample->rank * sizeof sample->box[0]);
        array = NULL;
    }
    damacy__unlock(&core->mutex);
    if (array) {
        damacy__catalog_unpin_array(&core->catalog, array);
    }
    return status;
}

/* Whether the next batch can come without another call of the user. Holds the mutex. */
static bool damacy__pop_may_come(damacy__core* core)
{
    if (damacy__pop_slot(core, core->next_popped)) {
        return true;
    }
    return core->is_planning ||
           (damacy__scheduler_batch_size(core) > 0 && damacy__scheduler_free_slot(core) != NULL);
}

/* Hands a ready batch out, or its failure. Holds the mutex. */
static damacy_status damacy__pop_take(damacy__core* core, damacy__slot* slot, damacy_batch* out,
                                      damacy_error* err)
{
    if (slot->n_failed > 0 && core->config.on_error == DAMACY_ON_ERROR_STOP) {
        for (uint32_t i = 0; i < slot->n_samples && !core->has_failed; i++) {
            if (slot->crops[i].error.status != DAMACY_OK) {
                core->failure = slot->crops[i].error;
                core->has_failed = true;
            }
        }
        damacy__broadcast(&core->pop_wake);
        *err = core->failure;
        return err->status;
    }
    slot->state = DAMACY__SLOT_HELD;
    slot->n_refs = slot->n_user_refs = 1;
    core->n_refs++;
    core->next_popped++;
    out->core = core;
    out->id = slot->id;
    damacy__count(&core->counters.batches_delivered, 1);
    damacy__broadcast(&core->pop_wake);
    return DAMACY_OK;
}

/* What pop returns now, or DAMACY_AGAIN with *may_come set when waiting makes sense. Holds the
 * mutex. */
static damacy_status damacy__pop_look(damacy__core* core, damacy_batch* out, bool* may_come,
                                      damacy_error* err)
{
    damacy__slot* slot;

    *may_come = false;
    if (core->is_stopping) {
        return damacy__fail(err, DAMACY_SHUTDOWN, "the pipeline is being destroyed");
    }
    slot = damacy__pop_slot(core, core->next_popped);
    if (core->has_failed && !(slot && slot->state == DAMACY__SLOT_READY && slot->n_failed == 0)) {
        if (!slot || slot->state == DAMACY__SLOT_READY) {
            *err = core->failure;
            return err->status;
        }
    }
    if (slot && slot->state == DAMACY__SLOT_READY) {
        return damacy__pop_take(core, slot, out, err);
    }
    if (core->is_finished && !slot && !core->is_planning && core->queue_first == core->queue_next) {
        return damacy__fail(err, DAMACY_END, "all samples were delivered");
    }
    *may_come = damacy__pop_may_come(core);
    return damacy__fail(err, DAMACY_AGAIN, "no batch is ready");
}

/* wait false: never blocks. deadline NULL: until something can be said. */
static damacy_status damacy__pipeline_pop(damacy__core* core, bool wait,
                                          const uint64_t* deadline_ns, damacy_batch* out,
                                          damacy_error* err)
{
    const uint64_t start = damacy__now_ns();
    damacy_status status;
    bool may_come;

    damacy__lock(&core->mutex);
    core->n_inside++;
    for (;;) {
        status = damacy__pop_look(core, out, &may_come, err);
        if (status != DAMACY_AGAIN || !wait || (!may_come && !deadline_ns)) {
            break;
        }
        if (!deadline_ns) {
            damacy__wait(&core->pop_wake, &core->mutex);
        } else if (damacy__now_ns() >= *deadline_ns) {
            status = damacy__fail(err, DAMACY_TIMEOUT, "no batch within the time given");
            break;
        } else {
            (void)damacy__condition_wait_until(&core->pop_wake, &core->mutex, *deadline_ns);
        }
    }
    damacy__metric_add(&core->counters.pop_wait, damacy__now_ns() - start, 0, 0);
    core->n_inside--; /* from here on damacy_destroy may free the core */
    if (core->is_stopping) {
        damacy__broadcast(&core->pop_wake);
    }
    damacy__unlock(&core->mutex);
    return status;
}
