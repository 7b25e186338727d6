/* damacy cat: a box of an array, to a file or to standard output, in C order. It is cut into slabs
 * that stream through a pipeline, so that arrays larger than memory pass. */
#pragma once
#include "tools/damacy_options.h"
#include "tools/damacy_output.h"
#include "tools/damacy_voxels.h"

/* The box, cut along one axis so that consecutive pieces are consecutive in the output: whole slabs
 * of `thick` voxels, and a thinner one at the end of the axis. */
typedef struct slabs {
    uint32_t rank;
    damacy_interval box[DAMACY_MAX_RANK];
    uint32_t axis;
    int64_t thick;
    uint64_t n_outer;  /* combinations of the axes before it */
    uint64_t per_axis; /* slabs along it */
} slabs;

static int64_t extent_of(damacy_interval interval)
{
    return interval.end - interval.begin;
}

/* Slabs of at most about 64 MiB of voxels, of whole chunks where that is possible. */
static void slabs_make(slabs* s, const damacy_array_info_t* info)
{
    int64_t inner = 1;
    const int64_t limit = (INT64_C(64) << 20) / 8;

    s->axis = 0;
    s->thick = 1;
    s->n_outer = 1;
    for (uint32_t i = s->rank; i-- > 0;) {
        const int64_t n = extent_of(s->box[i]);
        s->axis = i;
        s->thick = n > 0 ? n : 1;
        if (n > 0 && inner > limit / n) {
            s->thick = limit / inner > 0 ? limit / inner : 1;
            if (s->thick > info->shard_shape[i]) {
                s->thick -= s->thick % info->shard_shape[i];
            } else if (s->thick > info->chunk_shape[i]) {
                s->thick -= s->thick % info->chunk_shape[i];
            }
            break;
        }
        inner *= n > 0 ? n : 1;
    }
    for (uint32_t i = 0; i < s->axis; i++) {
        s->n_outer *= (uint64_t)extent_of(s->box[i]);
    }
    s->per_axis = s->rank ? ((uint64_t)extent_of(s->box[s->axis]) + (uint64_t)s->thick - 1) /
                                (uint64_t)s->thick
                          : 1;
}

/* The k-th slab, and whether it is a thin one. */
static int slabs_at(const slabs* s, uint64_t k, damacy_sample* sample)
{
    uint64_t outer = k / s->per_axis;

    sample->rank = s->rank;
    memcpy(sample->box, s->box, sizeof s->box);
    for (uint32_t i = s->axis; i-- > 0;) {
        const uint64_t n = (uint64_t)extent_of(s->box[i]);
        sample->box[i].begin = s->box[i].begin + (int64_t)(outer % n);
        sample->box[i].end = sample->box[i].begin + 1;
        outer /= n;
    }
    if (s->rank == 0) {
        return 0;
    }
    sample->box[s->axis].begin = s->box[s->axis].begin + (int64_t)(k % s->per_axis) * s->thick;
    if (sample->box[s->axis].begin + s->thick < s->box[s->axis].end) {
        sample->box[s->axis].end = sample->box[s->axis].begin + s->thick;
    }
    return extent_of(sample->box[s->axis]) != s->thick;
}

static int write_voxels(FILE* file, const options* o, damacy_dtype dtype, const void* ptr,
                        uint64_t size)
{
    const size_t item = damacy_dtype_size(dtype);

    if (!o->as_text) {
        return fwrite(ptr, 1, (size_t)size, file) == size;
    }
    for (uint64_t i = 0; i < size; i += item) {
        print_element(file, dtype, (const uint8_t*)ptr + i);
    }
    return !ferror(file);
}

static int parse_box(const char* text, slabs* s)
{
    for (uint32_t i = 0; i < s->rank; i++) {
        char* end = NULL;
        s->box[i].begin = strtoll(text, &end, 10);
        if (end == text || *end != ':') {
            return 0;
        }
        text = end + 1;
        s->box[i].end = strtoll(text, &end, 10);
        if (end == text || *end != (i + 1 < s->rank ? ',' : '\0') ||
            s->box[i].end <= s->box[i].begin) {
            return 0;
        }
        text = end + 1;
    }
    return s->rank > 0;
}

static void show_progress(uint64_t done, uint64_t n)
{
    if (isatty(2) && n > 1) {
        (void)fprintf(stderr, "\r%3u %%%s", (unsigned)(100 * done / n),
                      done == n ? "\r     \r" : "");
    }
}

/* Writes one batch, by way of host memory. */
static damacy_status write_batch(FILE* file, const options* o, damacy_batch batch,
                                 damacy_error* err)
{
    damacy_batch_info_t info;
    damacy_status status;
    void* voxels;

    (void)damacy_batch_info(batch, &info);
    if (info.device == DAMACY_CPU) {
        voxels = info.ptr;
        status = DAMACY_OK;
    } else {
        voxels = malloc((size_t)info.size + 1);
        status = voxels ? damacy_batch_read(batch, voxels, (size_t)info.size, err) : DAMACY_OOM;
    }
    if (status == DAMACY_OK && !write_voxels(file, o, info.dtype, voxels, info.size)) {
        status = DAMACY_IO;
        (void)snprintf(err->message, sizeof err->message, "cannot write: %s", strerror(errno));
    }
    if (info.device != DAMACY_CPU) {
        free(voxels);
    }
    return status;
}

static damacy_status copy_slabs(const options* o, const slabs* s, FILE* file, damacy_dtype dtype,
                                damacy_error* err)
{
    const uint64_t n = s->n_outer * s->per_axis;
    damacy* pipes[2] = {NULL, NULL};
    damacy_status status = DAMACY_OK;
    uint64_t pushed = 0;

    for (uint64_t popped = 0; popped < n && status == DAMACY_OK; popped++) {
        damacy_sample sample;
        damacy_batch batch;
        int thin;
        while (pushed < n && pushed < popped + 8 && status == DAMACY_OK) {
            memset(&sample, 0, sizeof sample);
            sample.uri = o->uri;
            thin = slabs_at(s, pushed, &sample);
            if (!pipes[thin]) {
                damacy_config c = o->config;
                c.dtype = dtype;
                c.max_host_bytes = c.max_host_bytes ? c.max_host_bytes : UINT64_C(4) << 30;
                status = damacy_create(&c, &pipes[thin], err);
            }
            if (status == DAMACY_OK) {
                status = damacy_push(pipes[thin], &sample, 1, NULL, err);
            }
            pushed += status == DAMACY_OK;
        }
        if (status != DAMACY_OK) {
            break;
        }
        thin = slabs_at(s, popped, &sample);
        status = damacy_pop(pipes[thin], &batch, err);
        if (status == DAMACY_OK) {
            status = write_batch(file, o, batch, err);
            (void)damacy_release(batch);
        }
        show_progress(popped + 1, n);
    }
    damacy_destroy(pipes[0]);
    damacy_destroy(pipes[1]);
    return status;
}

static damacy_status cannot_write(damacy_error* err)
{
    (void)snprintf(err->message, sizeof err->message, "cannot write: %s", strerror(errno));
    return DAMACY_IO;
}

/* Writes the box to its file, which is there afterwards only if all of it is. */
static int write_box(const options* o, const slabs* s, damacy_dtype dtype, int is_npy)
{
    static output to; /* too large for the stack of some */
    damacy_status status = DAMACY_OK;
    damacy_error err;

    memset(&err, 0, sizeof err);
    if (!output_open(&to, o->output)) {
        (void)snprintf(err.message, sizeof err.message, "%.200s: %s", o->output, strerror(errno));
        return failed(DAMACY_IO, &err);
    }
    if (is_npy && !write_npy_header(to.file, dtype, s->box, s->rank)) {
        status = cannot_write(&err);
    }
    if (status == DAMACY_OK) {
        status = copy_slabs(o, s, to.file, dtype, &err);
    }
    if (!output_close(&to, status == DAMACY_OK) && status == DAMACY_OK) {
        status = cannot_write(&err);
    }
    return status == DAMACY_OK ? 0 : failed(status, &err);
}

static int run_cat(const options* o)
{
    damacy_array_info_t info;
    damacy_array* array = NULL;
    damacy_error err;
    damacy_dtype dtype;
    slabs s;
    int is_right;
    const size_t len = o->output ? strlen(o->output) : 0;
    const int is_npy = len > 4 && strcmp(o->output + len - 4, ".npy") == 0;
    const damacy_status status = damacy_array_open(&o->config, o->uri, &array, &err);

    if (status != DAMACY_OK) {
        return failed(status, &err);
    }
    damacy_array_info(array, &info);
    dtype = o->config.dtype == DAMACY_NATIVE ? info.dtype : o->config.dtype;
    memset(&s, 0, sizeof s);
    s.rank = info.rank;
    for (uint32_t i = 0; i < info.rank; i++) {
        s.box[i].end = info.shape[i];
    }
    is_right = !o->box || parse_box(o->box, &s);
    slabs_make(&s, &info);
    damacy_array_close(array);
    if (!is_right) {
        return refuse("--box needs one begin:end per axis", o->box);
    }
    if (is_npy && !npy_type(dtype)) {
        return refuse("numpy has no bf16: choose another --dtype or file name", NULL);
    }
    return write_box(o, &s, dtype, is_npy);
}
