/* Inspection of arrays, one-shot reads and verification: the parts of the interface that need no
 * pipeline of the caller's. */
#pragma once
#include "describe.h"
#include "public.h"

struct damacy_array {
    damacy__alloc alloc;
    damacy__store store;
    damacy__fetched fetched;
    damacy_array_info_t info;
    char* uri;
};

static void damacy__array_free(damacy_array* array)
{
    damacy__alloc alloc = array->alloc;

    damacy__fetched_deinit(&array->fetched, &array->alloc, &array->store);
    damacy__store_deinit(&array->store);
    damacy__text_free(&array->alloc, array->uri);
    alloc = array->alloc;
    damacy__free(&alloc, array, 1);
}

static void damacy__array_fill_info(damacy_array* array)
{
    const damacy__document* document = &array->fetched.document;
    const damacy__layout* layout = array->fetched.layout;
    const damacy__ngff* ngff = &array->fetched.ngff;
    damacy_array_info_t* info = &array->info;

    info->uri = array->uri;
    info->rank = layout->rank;
    memcpy(info->shape, layout->shape, sizeof info->shape);
    memcpy(info->chunk_shape, layout->chunk_shape, sizeof info->chunk_shape);
    memcpy(info->shard_shape, layout->object_shape, sizeof info->shard_shape);
    info->is_sharded = (int32_t)layout->is_sharded;
    info->dtype = layout->dtype;
    info->is_big_endian = (int32_t)layout->big_endian;
    damacy__store_u64le(info->fill_value, layout->fill);
    info->zarr_format = document->zarr_format;
    info->codecs = document->codecs;
    info->data_type = document->data_type;
    info->attributes = document->attributes;
    info->group_attributes = array->fetched.group_attributes;
    for (uint32_t i = 0; i < layout->rank; i++) {
        info->dimension_names[i] = document->dimension_names[i];
        info->axis_names[i] = ngff->axis_names[i];
        info->axis_units[i] = ngff->axis_units[i];
    }
    info->n_levels = ngff->n_levels;
    info->level = array->fetched.level;
    info->levels = ngff->levels;
}

static damacy_status damacy__array_open(const damacy_config* config, const char* uri,
                                        damacy_array** out, damacy_error* err)
{
    damacy_config resolved;
    damacy__alloc alloc;
    damacy__fetch_options options;
    damacy_array* array;
    damacy_status status;

    DAMACY__TRY(damacy__config_fill(config, &resolved, err));
    memset(&alloc, 0, sizeof alloc);
    alloc.user = resolved.allocator;
    alloc.budget = resolved.max_host_bytes;
    array = damacy__new(&alloc, 1, damacy_array);
    if (!array) {
        return damacy__fail(err, DAMACY_OOM, "array");
    }
    array->alloc = alloc;
    options.level = resolved.level;
    status = damacy__store_init(&array->store, &array->alloc, &resolved, err);
    if (status == DAMACY_OK) {
        array->uri = damacy__alloc_text(&array->alloc, uri, strlen(uri));
        status = array->uri ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "uri");
    }
    if (status == DAMACY_OK) {
        status =
            damacy__fetch_array(&array->store, &array->alloc, uri, &options, &array->fetched, err);
    }
    if (status != DAMACY_OK) {
        damacy__error_where(err, DAMACY_STAGE_METADATA, uri, NULL);
        damacy__array_free(array);
        return status;
    }
    damacy__array_fill_info(array);
    *out = array;
    return DAMACY_OK;
}

DAMACY_API damacy_status damacy_array_open(const damacy_config* config, const char* uri,
                                           damacy_array** out, damacy_error* err)
{
    damacy_error local;
    damacy_array* array = NULL;

    err = damacy__public_error(err, &local);
    if (!uri || !out) {
        return damacy__fail(err, DAMACY_INVAL, "%s is NULL", uri ? "out" : "uri");
    }
    *out = NULL;
    DAMACY__TRY(damacy__array_open(config, uri, &array, err));
    *out = array;
    return DAMACY_OK;
}

DAMACY_API void damacy_array_info(const damacy_array* array, damacy_array_info_t* out)
{
    if (out && array) {
        *out = array->info;
    } else if (out) {
        memset(out, 0, sizeof *out);
    }
}

DAMACY_API void damacy_array_close(damacy_array* array)
{
    if (array) {
        damacy__array_free(array);
    }
}

/* The one batch of a one-shot read is made in the caller's memory. */
static damacy_status damacy__read_into(damacy__core* core, const damacy_sample* sample,
                                       size_t dst_size, damacy_error* err)
{
    damacy_batch batch;

    DAMACY__TRY(damacy__pipeline_push(core, sample, err));
    damacy__lock(&core->mutex);
    core->is_finished = true;
    core->kicked = true;
    damacy__signal(&core->scheduler_wake);
    damacy__unlock(&core->mutex);
    DAMACY__TRY(damacy__pipeline_pop(core, true, NULL, &batch, err));
    (void)dst_size;
    return damacy__batch_drop(batch, true);
}

DAMACY_API damacy_status damacy_read(const damacy_config* config, const damacy_sample* sample,
                                     void* dst, size_t dst_size, damacy_error* err)
{
    damacy_error local;
    damacy_config c;
    damacy__core* core = NULL;
    damacy_status status;

    err = damacy__public_error(err, &local);
    if (!sample || !dst) {
        return damacy__fail(err, DAMACY_INVAL, "%s is NULL", sample ? "dst" : "sample");
    }
    if (sample->rank > DAMACY_MAX_RANK) {
        return damacy__fail(err, DAMACY_RANK, "the sample has %u axes; %d are possible",
                            sample->rank, DAMACY_MAX_RANK);
    }
    memset(&c, 0, sizeof c);
    if (config) {
        c = *config;
    }
    c.device = DAMACY_CPU;
    c.sample_rank = 0;
    c.samples_per_batch = 1;
    c.lookahead_samples = 1;
    c.batch_slots = 2;
    c.on_error = DAMACY_ON_ERROR_STOP;
    DAMACY__TRY(damacy__core_create(&c, (uint8_t*)dst, dst_size, &core, err));
    status = damacy__read_into(core, sample, dst_size, err);
    if (status != DAMACY_OK) {
        damacy__error_where(err, DAMACY_STAGE_READ, sample->uri, NULL);
        err->sample = UINT64_MAX;
    }
    damacy__core_stop(core);
    damacy__core_unref(core);
    return status;
}

/* ---- verify ---- */

/* What a walk over all chunks of an array needs. */
typedef struct damacy__verifier {
    damacy_array* array;
    damacy__libraries libraries;
    damacy__decoder decoder;
    damacy_finding finding;
    void* user;
    damacy_verify_result result;
    damacy__scratch stored;
    damacy__scratch decoded;
} damacy__verifier;

static void damacy__verify_found(damacy__verifier* v, damacy_error* error, damacy_stage stage)
{
    damacy__error_where(error, stage, v->array->uri, NULL);
    v->result.n_bad++;
    if (v->finding) {
        v->finding(v->user, error);
    }
}

/* One stored chunk. Returns only what ends the walk. */
static damacy_status damacy__verify_chunk(damacy__verifier* v, const damacy__index* index,
                                          uint64_t entry, const int64_t* chunk, damacy_error* err)
{
    const damacy__layout* layout = v->array->fetched.layout;
    const damacy__extent extent = index->extents[entry];
    char name[sizeof err->chunk];
    damacy_error error;
    damacy_status status;

    damacy__public_error(&error, &error);
    damacy__fetch_chunk_name(layout, chunk, name, sizeof name);
    damacy__error_where(&error, DAMACY_STAGE_NONE, v->array->uri, name);
    v->result.n_chunks++;
    if (extent.size > 2 * layout->chunk_size + (1 << 20)) {
        (void)damacy__fail(&error, DAMACY_DECODE,
                           "%" PRIu64 " stored bytes are too many for a chunk of %" PRIu64,
                           extent.size, layout->chunk_size);
        damacy__verify_found(v, &error, DAMACY_STAGE_INDEX);
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__scratch_reserve(&v->stored, &v->array->alloc, extent.size + 1, err));
    DAMACY__TRY(
        damacy__scratch_reserve(&v->decoded, &v->array->alloc, layout->chunk_size + 1, err));
    status = damacy__fetch_bytes(&v->array->store, &v->array->fetched, chunk, index, extent.offset,
                                 v->stored.ptr, extent.size, &error);
    if (status != DAMACY_OK) {
        damacy__verify_found(v, &error, DAMACY_STAGE_READ);
        return DAMACY_OK;
    }
    v->result.size_stored += extent.size;
    status = damacy__host_decode(&v->decoder, layout,
                                 damacy__span_of(v->stored.ptr, (size_t)extent.size),
                                 v->decoded.ptr, &error);
    if (status == DAMACY_OOM) {
        *err = error;
        return status;
    }
    if (status != DAMACY_OK) {
        error.offset = error.offset == UINT64_MAX ? extent.offset : extent.offset + error.offset;
        damacy__verify_found(v, &error, DAMACY_STAGE_DECODE);
    } else {
        v->result.size_decoded += layout->chunk_size;
    }
    return DAMACY_OK;
}

/* All chunks of one object that lie at least partly in the array. */
static damacy_status damacy__verify_object(damacy__verifier* v, uint64_t number,
                                           const damacy__index* index, damacy_error* err)
{
    const damacy__layout* layout = v->array->fetched.layout;
    int64_t object[DAMACY_MAX_RANK];
    int64_t at[DAMACY_MAX_RANK] = {0};
    int64_t n[DAMACY_MAX_RANK];
    int64_t chunk[DAMACY_MAX_RANK];
    uint32_t axis;

    damacy__fetch_position(layout, number, object);
    for (uint32_t i = 0; i < layout->rank; i++) {
        const int64_t per = layout->object_shape[i] / layout->chunk_shape[i];
        const int64_t left = layout->shape[i] - object[i] * layout->object_shape[i];
        n[i] = DAMACY__MIN(per, (left + layout->chunk_shape[i] - 1) / layout->chunk_shape[i]);
    }
    for (;;) {
        uint64_t entry = 0;
        for (uint32_t i = 0; i < layout->rank; i++) {
            const int64_t per = layout->object_shape[i] / layout->chunk_shape[i];
            chunk[i] = object[i] * per + at[i];
            entry += (uint64_t)at[i] * layout->index_stride[i];
        }
        if (!index->extents || index->extents[entry].offset == UINT64_MAX) {
            v->result.n_missing++;
        } else {
            DAMACY__TRY(damacy__verify_chunk(v, index, entry, chunk, err));
        }
        for (axis = layout->rank; axis > 0 && ++at[axis - 1] == n[axis - 1]; axis--) {
            at[axis - 1] = 0;
        }
        if (axis == 0) {
            return DAMACY_OK;
        }
    }
}

static damacy_status damacy__verify_all(damacy__verifier* v, damacy_error* err)
{
    const damacy__layout* layout = v->array->fetched.layout;
    uint64_t n_objects = 1;

    for (uint32_t i = 0; i < layout->rank; i++) {
        const uint64_t n =
            damacy__div_up((uint64_t)layout->shape[i], (uint64_t)layout->object_shape[i]);
        if (!damacy__mul(n_objects, n, &n_objects)) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "more objects than 64 bits can count");
        }
    }
    for (uint64_t k = 0; k < n_objects; k++) {
        damacy__index index;
        damacy_error error;
        damacy_status status;
        memset(&index, 0, sizeof index);
        damacy__public_error(&error, &error);
        status = damacy__fetch_index(&v->array->store, &v->array->alloc, &v->array->fetched, k,
                                     &index, &error);
        if (status == DAMACY_OOM) {
            *err = error;
            return status;
        }
        if (status != DAMACY_OK) {
            damacy__verify_found(v, &error, DAMACY_STAGE_INDEX);
            continue;
        }
        status = damacy__verify_object(v, k, &index, err);
        damacy__free(&v->array->alloc, index.extents, index.n);
        DAMACY__TRY(status);
    }
    return DAMACY_OK;
}

DAMACY_API damacy_status damacy_verify(const damacy_config* config, const char* uri,
                                       damacy_finding finding, void* user,
                                       damacy_verify_result* out, damacy_error* err)
{
    damacy_error local;
    damacy__verifier v;
    damacy_status status;

    err = damacy__public_error(err, &local);
    if (!uri || !out) {
        return damacy__fail(err, DAMACY_INVAL, "%s is NULL", uri ? "out" : "uri");
    }
    memset(&v, 0, sizeof v);
    v.finding = finding;
    v.user = user;
    DAMACY__TRY(damacy__array_open(config, uri, &v.array, err));
    status = damacy__libraries_init(&v.libraries, err);
    if (status == DAMACY_OK) {
        status = damacy__decoder_init(&v.decoder, &v.libraries, &v.array->alloc, false, err);
    }
    if (status == DAMACY_OK) {
        status = damacy__verify_all(&v, err);
    }
    damacy__decoder_deinit(&v.decoder);
    damacy__libraries_deinit(&v.libraries);
    damacy__free(&v.array->alloc, v.stored.ptr, v.stored.size);
    damacy__free(&v.array->alloc, v.decoded.ptr, v.decoded.size);
    damacy__array_free(v.array);
    if (status == DAMACY_OK) {
        *out = v.result;
    }
    return status;
}
