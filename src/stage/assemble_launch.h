/* Copy records to work of the assemble kernel, and its launches.
 *
 * Work is a list of segments, one launch each: the copies of one source type. It lives in memory of
 * the caller's, host and device, that is sized once. The surprising rule: axes are put in another
 * order than the record's, so that lines run along the output. */
#pragma once
#include "format/dtype.h"
#include "gpu/program.h"
#include "kernels/assemble_abi.h"
#include "kernels/assemble_work.h"

enum {
    DAMACY__ASSEMBLE_AXES_MAX = DAMACY_MAX_RANK + 2, /* of a record */
    DAMACY__ASSEMBLE_PARTS = 64                      /* of a record that is too large for one job */
};

/* Copies of one source type. */
typedef struct damacy__assemble_segment {
    uint32_t src_dtype;
    uint32_t first_job;
    uint32_t n_jobs;
    uint32_t n_tiles;
} damacy__assemble_segment;

/* Zero: none. */
typedef struct damacy__assemble_list {
    damacy__assemble_job* jobs;
    damacy__assemble_axis* axes;
    uint32_t* first_tile; /* n_jobs + 1 entries for each segment */
    damacy_dtype out;
    uint32_t out_size;
    uint32_t max_jobs, max_axes;
    uint32_t n_jobs, n_axes;
    uint32_t n_segments;
    damacy__assemble_segment segments[DAMACY_NATIVE];
} damacy__assemble_list;

/* Where the device sees the list, and what else a launch needs. */
typedef struct damacy__assemble_call {
    uint64_t list;       /* device address of damacy__assemble_list_size bytes, 256-byte aligned */
    uint64_t scale;      /* device address of float[n_channels], or 0: 1 */
    uint64_t offset;     /* device address of float[n_channels], or 0: 0 */
    uint32_t n_channels; /* 0: no scaling */
    uint32_t n_blocks;   /* of the grid, at most: a few for each that the device runs at a time */
    damacy__stream stream;
} damacy__assemble_call;

static uint64_t damacy__assemble_list_size(uint32_t max_jobs, uint32_t max_axes);
static void damacy__assemble_list_init(damacy__assemble_list* list, void* memory, uint32_t max_jobs,
                                       uint32_t max_axes, damacy_dtype out);
static void damacy__assemble_begin(damacy__assemble_list* list, damacy_dtype src);
static bool damacy__assemble_add(damacy__assemble_list* list, const damacy__copy* copy,
                                 const damacy__axis* axes);
static damacy_status damacy__assemble_upload(const damacy__assemble_list* list,
                                             damacy__device* device,
                                             const damacy__assemble_call* call, damacy_error* err);
static damacy_status damacy__assemble_launch(const damacy__assemble_list* list, uint32_t segment,
                                             damacy__device* device, const damacy__program* program,
                                             const damacy__assemble_call* call, damacy_error* err);
static void damacy__assemble_program(damacy_dtype out, char define[64], const char** defines,
                                     damacy__program_spec* spec);

/* The three arrays, each at a multiple of 256 bytes. */
static uint64_t damacy__assemble_axes_at(uint32_t max_jobs)
{
    return damacy__align_up((uint64_t)max_jobs * sizeof(damacy__assemble_job), 256);
}

static uint64_t damacy__assemble_tiles_at(uint32_t max_jobs, uint32_t max_axes)
{
    return damacy__assemble_axes_at(max_jobs) +
           damacy__align_up((uint64_t)max_axes * sizeof(damacy__assemble_axis), 256);
}

/* Bytes of host memory, and of device memory, of a list. max_axes: 3 for each job is plenty for
 * most arrays; rank + 1 always enough where no record is above 2^31 units of 16 bytes. */
static uint64_t damacy__assemble_list_size(uint32_t max_jobs, uint32_t max_axes)
{
    return damacy__assemble_tiles_at(max_jobs, max_axes) +
           damacy__align_up(((uint64_t)max_jobs + DAMACY_NATIVE) * sizeof(uint32_t), 256);
}

/* An empty list in memory of list_size bytes, aligned to 8. out is a real type. */
static void damacy__assemble_list_init(damacy__assemble_list* list, void* memory, uint32_t max_jobs,
                                       uint32_t max_axes, damacy_dtype out)
{
    uint8_t* bytes = (uint8_t*)memory;

    memset(list, 0, sizeof *list);
    list->jobs = (damacy__assemble_job*)(void*)bytes;
    list->axes = (damacy__assemble_axis*)(void*)(bytes + damacy__assemble_axes_at(max_jobs));
    list->first_tile = (uint32_t*)(void*)(bytes + damacy__assemble_tiles_at(max_jobs, max_axes));
    list->max_jobs = max_jobs;
    list->max_axes = max_axes;
    list->out = out;
    list->out_size = (uint32_t)damacy__dtype_size(out);
}

static uint32_t* damacy__assemble_tiles(const damacy__assemble_list* list, uint32_t segment)
{
    return list->first_tile + list->segments[segment].first_job + segment;
}

/* Starts the segment of a source type: once per type, before its copies are added. */
static void damacy__assemble_begin(damacy__assemble_list* list, damacy_dtype src)
{
    damacy__assemble_segment* segment = &list->segments[list->n_segments];

    assert(list->n_segments < DAMACY_NATIVE && src < DAMACY_NATIVE);
    segment->src_dtype = src;
    segment->first_job = list->n_jobs;
    segment->n_jobs = 0;
    segment->n_tiles = 0;
    damacy__assemble_tiles(list, list->n_segments)[0] = 0;
    list->n_segments++;
}

/* How to divide numbers below 2^31: see damacy__assemble_axis. */
static void damacy__assemble_divisor(uint32_t divisor, uint32_t* magic, uint32_t* shift)
{
    uint32_t bits = 0;

    while (bits < 31 && (1u << bits) < divisor) {
        bits++;
    }
    if ((1u << bits) == divisor) {
        *magic = 0;
        *shift = bits;
    } else {
        *magic = (uint32_t)((UINT64_C(1) << (31 + bits)) / divisor + 1);
        *shift = bits - 1;
    }
}

/* A record whose axes have been put in order: the line last, steps in bytes. */
typedef struct damacy__assemble_box {
    uint64_t src, dst;
    uint64_t extent[DAMACY__ASSEMBLE_AXES_MAX];
    int64_t src_step[DAMACY__ASSEMBLE_AXES_MAX];
    int64_t dst_step[DAMACY__ASSEMBLE_AXES_MAX];
    uint32_t n_axes;
    uint32_t channel;
    uint32_t channel_axis; /* DAMACY__NO_CHANNEL: none */
} damacy__assemble_box;

/* Moves axis `from` to place `to`, above it. */
static void damacy__box_move(damacy__assemble_box* box, uint32_t from, uint32_t to)
{
    const uint64_t extent = box->extent[from];
    const int64_t src_step = box->src_step[from];
    const int64_t dst_step = box->dst_step[from];

    for (uint32_t i = from; i < to; i++) {
        box->extent[i] = box->extent[i + 1];
        box->src_step[i] = box->src_step[i + 1];
        box->dst_step[i] = box->dst_step[i + 1];
    }
    box->extent[to] = extent;
    box->src_step[to] = src_step;
    box->dst_step[to] = dst_step;
    if (box->channel_axis == from) {
        box->channel_axis = to;
    } else if (box->channel_axis != DAMACY__NO_CHANNEL && box->channel_axis > from &&
               box->channel_axis <= to) {
        box->channel_axis--;
    }
}

/* Lines along the output; beside them the axis that the source runs along, so that what a block
 * reads is near. */
static void damacy__box_order(damacy__assemble_box* box, int64_t src_size, int64_t out_size)
{
    const uint32_t last = box->n_axes - 1;

    for (uint32_t i = 0; i < last; i++) {
        if (box->dst_step[i] == out_size && box->dst_step[last] != out_size) {
            damacy__box_move(box, i, last);
        }
    }
    if (last > 1 && box->src_step[last] != src_size) {
        for (uint32_t i = 0; i < last - 1; i++) {
            if (box->src_step[i] == src_size) {
                damacy__box_move(box, i, last - 1);
                return;
            }
        }
    }
}

/* Makes one axis of two neighbours that run on. */
static void damacy__box_merge(damacy__assemble_box* box)
{
    for (uint32_t i = box->n_axes - 1; i > 0; i--) {
        const uint64_t extent = box->extent[i];
        if (box->channel_axis == i || box->channel_axis == i - 1 || extent > INT32_MAX ||
            box->src_step[i - 1] != box->src_step[i] * (int64_t)extent ||
            box->dst_step[i - 1] != box->dst_step[i] * (int64_t)extent ||
            box->extent[i - 1] > UINT32_MAX) {
            continue;
        }
        box->extent[i] *= box->extent[i - 1];
        box->extent[i - 1] = 1;
        damacy__box_move(box, i - 1, box->n_axes - 1); /* to be dropped */
        box->n_axes--;
    }
}

static void damacy__box_init(damacy__assemble_box* box, const damacy__copy* copy,
                             const damacy__axis* axes, uint32_t out_size)
{
    const bool is_fill = (copy->flags & DAMACY__COPY_FILL) != 0;
    const int64_t src_size = (int64_t)damacy__dtype_size((damacy_dtype)copy->src_dtype);
    uint32_t n = 0;

    assert(copy->n_axes >= 1 && copy->n_axes <= DAMACY__ASSEMBLE_AXES_MAX);
    box->src = is_fill ? 0 : copy->src;
    box->dst = copy->dst;
    box->channel = copy->channel;
    box->channel_axis = DAMACY__NO_CHANNEL;
    for (uint32_t i = 0; i < copy->n_axes; i++) {
        if (axes[i].extent == 1 && (n > 0 || i + 1 < copy->n_axes)) {
            continue;
        }
        box->extent[n] = axes[i].extent;
        box->src_step[n] = is_fill ? 0 : axes[i].src_stride * src_size;
        box->dst_step[n] = axes[i].dst_stride * (int64_t)out_size;
        if (i == copy->channel_axis) {
            box->channel_axis = n;
        }
        n++;
    }
    box->n_axes = n;
    damacy__box_order(box, src_size, (int64_t)out_size);
    damacy__box_merge(box);
}

/* Units of a line, enough for every line whatever its alignment; saturates. */
static uint64_t damacy__box_units(const damacy__assemble_box* box, uint32_t out_size)
{
    const uint32_t last = box->n_axes - 1;
    uint64_t before = box->dst & 15;

    if (box->extent[last] > INT32_MAX) {
        return UINT32_MAX;
    }
    if (box->dst_step[last] != (int64_t)out_size) {
        return damacy__div_up(box->extent[last], 16 / out_size);
    }
    for (uint32_t i = 0; i < last; i++) {
        if (box->dst_step[i] & 15) {
            before = 16 - out_size;
        }
    }
    return damacy__div_up(before + box->extent[last] * out_size, 16);
}

/* Units of all lines, or false if they are too many for one job. */
static bool damacy__box_fits(const damacy__assemble_box* box, uint32_t out_size, uint32_t* units,
                             uint32_t* n_lines)
{
    uint64_t total = damacy__box_units(box, out_size);

    *units = (uint32_t)total;
    *n_lines = 1;
    for (uint32_t i = 0; i + 1 < box->n_axes; i++) {
        if (total > INT32_MAX || box->extent[i] > INT32_MAX) {
            return false;
        }
        total *= box->extent[i];
        *n_lines = (uint32_t)(*n_lines * box->extent[i]);
    }
    return total <= INT32_MAX;
}

/* Cuts the slowest axis that can be cut in two: *box keeps the first half, *rest is the second. */
static void damacy__box_split(damacy__assemble_box* box, damacy__assemble_box* rest)
{
    uint32_t axis = 0;
    uint64_t half;

    while (axis + 1 < box->n_axes && box->extent[axis] == 1) {
        axis++;
    }
    half = box->extent[axis] / 2;
    *rest = *box;
    box->extent[axis] = half;
    rest->extent[axis] -= half;
    rest->src += half * (uint64_t)box->src_step[axis];
    rest->dst += half * (uint64_t)box->dst_step[axis];
    if (box->channel_axis == axis) {
        rest->channel += (uint32_t)half;
    }
}

/* Appends one job. */
static void damacy__assemble_put(damacy__assemble_list* list, const damacy__copy* copy,
                                 const damacy__assemble_box* box, uint32_t units, uint32_t n_lines)
{
    const uint32_t segment_index = list->n_segments - 1;
    const uint32_t last = box->n_axes - 1;
    damacy__assemble_segment* segment = &list->segments[segment_index];
    damacy__assemble_job* job = &list->jobs[list->n_jobs++];

    memset(job, 0, sizeof *job);
    job->src = box->src;
    job->dst = box->dst;
    job->fill = copy->fill;
    job->src_step = box->src_step[last];
    job->dst_step = box->dst_step[last];
    job->n = (uint32_t)box->extent[last];
    job->units = units;
    job->n_lines = n_lines;
    damacy__assemble_divisor(units, &job->units_magic, &job->units_shift);
    job->first_axis = list->n_axes;
    job->n_axes = last;
    job->src_dtype = copy->src_dtype;
    job->flags = copy->flags;
    job->channel_axis = box->channel_axis;
    job->channel = box->channel;
    for (uint32_t i = 0; i < last; i++) {
        damacy__assemble_axis* axis = &list->axes[list->n_axes++];
        memset(axis, 0, sizeof *axis);
        axis->src_step = box->src_step[i];
        axis->dst_step = box->dst_step[i];
        axis->extent = (uint32_t)box->extent[i];
        damacy__assemble_divisor(axis->extent, &axis->magic, &axis->shift);
    }
    segment->n_jobs++;
    segment->n_tiles += (uint32_t)damacy__div_up((uint64_t)units * n_lines, DAMACY__ASSEMBLE_TILE);
    damacy__assemble_tiles(list, segment_index)[segment->n_jobs] = segment->n_tiles;
}

/* Adds a record to the segment begun last, whose type is the record's. false: no room, and nothing
 * was added. */
static bool damacy__assemble_add(damacy__assemble_list* list, const damacy__copy* copy,
                                 const damacy__axis* axes)
{
    const damacy__assemble_list before = *list;
    damacy__assemble_box boxes[DAMACY__ASSEMBLE_PARTS];
    uint32_t n = 1;

    assert(list->n_segments > 0 &&
           list->segments[list->n_segments - 1].src_dtype == copy->src_dtype);
    damacy__box_init(&boxes[0], copy, axes, list->out_size);
    while (n > 0) {
        damacy__assemble_box* box = &boxes[n - 1];
        uint32_t units = 0;
        uint32_t n_lines = 0;
        if (damacy__box_fits(box, list->out_size, &units, &n_lines)) {
            if (list->n_jobs == list->max_jobs || box->n_axes - 1 > list->max_axes - list->n_axes) {
                *list = before;
                return false;
            }
            damacy__assemble_put(list, copy, box, units, n_lines);
            n--;
        } else {
            assert(n < DAMACY__ASSEMBLE_PARTS); /* each split halves: 2^64 voxels need 33 */
            damacy__box_split(box, &boxes[n]);
            n++;
        }
    }
    return true;
}

/* Queues the copy of the list to the device. The host memory must stay as it is until it has run.
 */
static damacy_status damacy__assemble_upload(const damacy__assemble_list* list,
                                             damacy__device* device,
                                             const damacy__assemble_call* call, damacy_error* err)
{
    const uint64_t axes_at = damacy__assemble_axes_at(list->max_jobs);
    const uint64_t tiles_at = damacy__assemble_tiles_at(list->max_jobs, list->max_axes);

    if (list->n_jobs == 0) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__copy_to_device(device, call->list, list->jobs,
                                       list->n_jobs * sizeof(damacy__assemble_job), call->stream,
                                       err));
    if (list->n_axes) {
        DAMACY__TRY(damacy__copy_to_device(device, call->list + axes_at, list->axes,
                                           list->n_axes * sizeof(damacy__assemble_axis),
                                           call->stream, err));
    }
    return damacy__copy_to_device(device, call->list + tiles_at, list->first_tile,
                                  ((uint64_t)list->n_jobs + list->n_segments) * sizeof(uint32_t),
                                  call->stream, err);
}

/* Queues one segment, after the upload. program: of the list's output type, or of NATIVE if all
 * that is copied has that type. */
static damacy_status damacy__assemble_launch(const damacy__assemble_list* list, uint32_t segment,
                                             damacy__device* device, const damacy__program* program,
                                             const damacy__assemble_call* call, damacy_error* err)
{
    const damacy__assemble_segment* s = &list->segments[segment];
    const uint64_t tiles_at = damacy__assemble_tiles_at(list->max_jobs, list->max_axes);
    damacy__assemble_wave wave;
    damacy__grid grid;
    void* parameters[1];

    assert(program->n_defines || s->src_dtype == (uint32_t)list->out);
    memset(&wave, 0, sizeof wave);
    wave.jobs = call->list + s->first_job * sizeof(damacy__assemble_job);
    wave.axes = call->list + damacy__assemble_axes_at(list->max_jobs);
    wave.first_tile = call->list + tiles_at + ((uint64_t)s->first_job + segment) * sizeof(uint32_t);
    wave.scale = call->scale;
    wave.offset = call->offset;
    wave.n_channels = call->n_channels;
    wave.n_jobs = s->n_jobs;
    wave.n_tiles = s->n_tiles;
    wave.out_dtype = list->out;
    parameters[0] = &wave;
    grid = damacy__grid_of(DAMACY__MIN(s->n_tiles, call->n_blocks), 256, 0);
    return damacy__kernel_launch(&program->kernels[s->src_dtype], device, &grid, call->stream,
                                 parameters, err);
}

/* What to compile: a kernel for each source type, in the order of damacy_dtype. out NATIVE: each
 * makes what it reads. define: room for an argument of the compiler, used until it has started. */
static void damacy__assemble_program(damacy_dtype out, char define[64], const char** defines,
                                     damacy__program_spec* spec)
{
    static const char* const entries[DAMACY_NATIVE] = {
        "damacy_assemble_0", "damacy_assemble_1", "damacy_assemble_2",  "damacy_assemble_3",
        "damacy_assemble_4", "damacy_assemble_5", "damacy_assemble_6",  "damacy_assemble_7",
        "damacy_assemble_8", "damacy_assemble_9", "damacy_assemble_10", "damacy_assemble_11",
        "damacy_assemble_12"};

    memset(spec, 0, sizeof *spec);
    spec->name = "kernels/assemble.cu";
    spec->entries = entries;
    spec->n_entries = DAMACY_NATIVE;
    if (out != DAMACY_NATIVE) {
        (void)snprintf(define, 64, "DAMACY__ASSEMBLE_OUT=%u", (unsigned)out);
        *defines = define;
        spec->defines = defines;
        spec->n_defines = 1;
    }
}
