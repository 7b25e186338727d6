/* Crops to work: which chunks to read and decode, in which coalesced reads, and where each of their
 * voxels goes.
 *
 * A pure function of its inputs: no IO, clock or threads. Each distinct chunk appears once, however
 * many samples of the batch touch it. Addresses in the copies are relative: src to the decoded
 * chunk, dst to the batch. */
#pragma once
#include "kernels/assemble_abi.h"
#include "stage/axis.h"

/* The index of one object: where its chunks lie. Without sharding it has the one extent of the
 * object. */
typedef struct damacy__index {
    damacy__extent* extents; /* n; NULL when the object is not stored */
    uint64_t n;
    uint64_t object_size; /* bytes */
    uint64_t stamp;       /* tells a replaced object from the one that was indexed */
    uint32_t is_stale;    /* atomic: the object was replaced, the next user fetches it anew */
    uint64_t serial;      /* atomic; no other index has it; 0: its decoded chunks are not kept */
} damacy__index;

/* One sample as the planner sees it; its array, box and rank have been checked. */
typedef struct damacy__view {
    const damacy__layout* layout;
    const damacy_interval* box;
    const damacy__index* const* indexes; /* of every object that the box touches, C order */
    const int64_t* first_object;         /* grid position of indexes[0] */
    const int64_t* n_objects;            /* per axis */
    uint32_t sample;                     /* position in the batch */
} damacy__view;

typedef struct damacy__plan_chunk {
    const damacy__layout* layout;
    const damacy__index* index;
    uint64_t entry;  /* number in the index */
    uint64_t offset; /* in the object */
    uint64_t size;   /* stored bytes */
    uint32_t object; /* objects in order of first use */
    uint32_t sample; /* the first sample that touches it: names the array and the object's key */
    uint32_t first;  /* into plan.order: its copies */
    uint32_t n_copies;
    uint32_t read;                     /* into plan.reads */
    bool is_held;                      /* decoded before or by another batch: not read */
    int64_t position[DAMACY_MAX_RANK]; /* chunk number along each axis */
} damacy__plan_chunk;

/* Bytes [offset, offset + size) of one object, and the chunks that lie there. */
typedef struct damacy__plan_read {
    uint64_t offset;
    uint64_t size;
    uint32_t first; /* into plan.by_place: its chunks */
    uint32_t n_chunks;
    uint32_t turn; /* its number among the reads of its object */
} damacy__plan_read;

typedef struct damacy__plan_copy {
    damacy__copy copy;
    uint32_t chunk; /* UINT32_MAX: a fill */
    uint32_t sample;
} damacy__plan_copy;

DAMACY__VECTOR(damacy__plan_chunk, damacy__plan_chunks)
DAMACY__VECTOR(damacy__plan_read, damacy__plan_reads)
DAMACY__VECTOR(damacy__plan_copy, damacy__plan_copies)
DAMACY__VECTOR(damacy__axis, damacy__axes)
DAMACY__VECTOR(uint32_t, damacy__numbers)

/* What stays the same for all batches of a pipeline. */
typedef struct damacy__plan_options {
    uint32_t rank;
    int64_t shape[DAMACY_MAX_RANK]; /* of a sample */
    uint32_t out_size;              /* bytes per output voxel */
    damacy_bounds bounds;
    uint64_t max_read; /* bytes of a coalesced read */
    uint64_t max_gap;  /* bytes between chunks that may be read for nothing */
    uint32_t has_channels;
    uint32_t channel_axis;
} damacy__plan_options;

typedef struct damacy__plan {
    damacy__plan_chunks chunks;
    damacy__plan_copies copies;
    damacy__axes axes;
    damacy__numbers order;    /* copies grouped by chunk */
    damacy__numbers fills;    /* copies that are fills */
    damacy__numbers by_place; /* chunks sorted by object and offset */
    damacy__plan_reads reads;
    damacy__numbers issue; /* reads in the order to issue them: objects take turns */
    uint64_t n_touched;    /* chunks summed over samples */
    uint64_t n_missing;    /* of those, not stored */
    uint64_t bytes_wanted; /* stored bytes of the chunks */
    uint64_t bytes_decoded;
    uint64_t bytes_delivered; /* voxels in the source type */
    damacy__pieces pieces;    /* scratch, as are the rest */
    damacy__numbers buckets;  /* hash of chunks: number + 1, 0 empty */
    damacy__numbers scratch;
    uint32_t n_objects;
} damacy__plan;

static void damacy__plan_deinit(damacy__plan* plan, damacy__alloc* alloc);
static void damacy__plan_clear(damacy__plan* plan);
static damacy_status damacy__plan_sample(damacy__plan* plan, damacy__alloc* alloc,
                                         const damacy__plan_options* options,
                                         const damacy__view* view, damacy_error* err);

static void damacy__plan_deinit(damacy__plan* plan, damacy__alloc* alloc)
{
    damacy__plan_chunks_deinit(&plan->chunks, alloc);
    damacy__plan_copies_deinit(&plan->copies, alloc);
    damacy__axes_deinit(&plan->axes, alloc);
    damacy__numbers_deinit(&plan->order, alloc);
    damacy__numbers_deinit(&plan->fills, alloc);
    damacy__numbers_deinit(&plan->by_place, alloc);
    damacy__plan_reads_deinit(&plan->reads, alloc);
    damacy__numbers_deinit(&plan->issue, alloc);
    damacy__pieces_deinit(&plan->pieces, alloc);
    damacy__numbers_deinit(&plan->buckets, alloc);
    damacy__numbers_deinit(&plan->scratch, alloc);
}

/* Empties a plan, keeping its memory. */
static void damacy__plan_clear(damacy__plan* plan)
{
    plan->chunks.n = plan->copies.n = plan->axes.n = plan->order.n = plan->fills.n = 0;
    plan->by_place.n = plan->reads.n = plan->issue.n = 0;
    plan->n_touched = plan->n_missing = plan->bytes_wanted = 0;
    plan->bytes_decoded = plan->bytes_delivered = 0;
    plan->n_objects = 0;
    if (plan->buckets.n) {
        memset(plan->buckets.items, 0, plan->buckets.n * sizeof(uint32_t));
    }
}

static uint64_t damacy__plan_hash(const damacy__index* index, uint64_t entry)
{
    const uint64_t h = ((uint64_t)(uintptr_t)index ^ entry * UINT64_C(0x9e3779b97f4a7c15)) *
                       UINT64_C(0xff51afd7ed558ccd);

    return h ^ h >> 32;
}

static void damacy__plan_bucket(damacy__plan* plan, uint32_t chunk)
{
    const damacy__plan_chunk* c = &plan->chunks.items[chunk];
    const uint64_t mask = plan->buckets.n - 1;
    uint64_t at = damacy__plan_hash(c->index, c->entry) & mask;

    while (plan->buckets.items[at]) {
        at = (at + 1) & mask;
    }
    plan->buckets.items[at] = chunk + 1;
}

/* Doubles the hash once it is half full. */
static bool damacy__plan_grow(damacy__plan* plan, damacy__alloc* alloc)
{
    const uint64_t n = plan->buckets.n ? 2 * plan->buckets.n : 1024;

    if (plan->buckets.n && 2 * (plan->chunks.n + 1) <= plan->buckets.n) {
        return true;
    }
    if (!damacy__numbers_reserve(&plan->buckets, alloc, n - plan->buckets.n)) {
        return false;
    }
    plan->buckets.n = n;
    memset(plan->buckets.items, 0, n * sizeof(uint32_t));
    for (uint32_t i = 0; i < plan->chunks.n; i++) {
        damacy__plan_bucket(plan, i);
    }
    return true;
}

/* The number of a chunk, new or known; UINT32_MAX when memory is out. */
static uint32_t damacy__plan_find(damacy__plan* plan, damacy__alloc* alloc,
                                  const damacy__view* view, const damacy__index* index,
                                  uint64_t entry, const int64_t* position)
{
    uint64_t at;
    damacy__plan_chunk* chunk;

    if (!damacy__plan_grow(plan, alloc)) {
        return UINT32_MAX;
    }
    for (at = damacy__plan_hash(index, entry) & (plan->buckets.n - 1); plan->buckets.items[at];
         at = (at + 1) & (plan->buckets.n - 1)) {
        chunk = &plan->chunks.items[plan->buckets.items[at] - 1];
        if (chunk->index == index && chunk->entry == entry) {
            return plan->buckets.items[at] - 1;
        }
    }
    chunk = damacy__plan_chunks_push(&plan->chunks, alloc);
    if (!chunk) {
        return UINT32_MAX;
    }
    chunk->layout = view->layout;
    chunk->index = index;
    chunk->entry = entry;
    chunk->offset = index->extents[entry].offset;
    chunk->size = index->extents[entry].size;
    chunk->sample = view->sample;
    chunk->object = UINT32_MAX;
    memcpy(chunk->position, position, view->layout->rank * sizeof position[0]);
    plan->buckets.items[at] = (uint32_t)plan->chunks.n;
    plan->bytes_wanted += chunk->size;
    plan->bytes_decoded += view->layout->chunk_size;
    return (uint32_t)plan->chunks.n - 1;
}

/* Appends a copy over the given axes, leaving out axes of one voxel and merging axes that run on;
 * the channel axis stays by itself. */
static damacy__plan_copy* damacy__plan_emit(damacy__plan* plan, damacy__alloc* alloc,
                                            const damacy__plan_options* options,
                                            const damacy__axis* axes, uint32_t n)
{
    damacy__plan_copy* copy = damacy__plan_copies_push(&plan->copies, alloc);
    uint64_t n_voxels = 1;
    int last_is_channel = 0;

    if (!copy || !damacy__axes_reserve(&plan->axes, alloc, n + 1)) {
        return NULL;
    }
    copy->copy.first_axis = (uint32_t)plan->axes.n;
    copy->copy.channel_axis = DAMACY__NO_CHANNEL;
    for (uint32_t i = 0; i < n; i++) {
        damacy__axis* last =
            copy->copy.n_axes ? &plan->axes.items[plan->axes.n - 1] : plan->axes.items;
        const int is_channel = options->has_channels && i == options->channel_axis;
        n_voxels *= axes[i].extent;
        if (axes[i].extent == 1) {
            continue;
        }
        if (copy->copy.n_axes && !is_channel && !last_is_channel &&
            last->src_stride == axes[i].src_stride * (int64_t)axes[i].extent &&
            last->dst_stride == axes[i].dst_stride * (int64_t)axes[i].extent) {
            last->src_stride = axes[i].src_stride;
            last->dst_stride = axes[i].dst_stride;
            last->extent *= axes[i].extent;
            continue;
        }
        if (is_channel) {
            copy->copy.channel_axis = copy->copy.n_axes;
        }
        last_is_channel = is_channel;
        plan->axes.items[plan->axes.n++] = axes[i];
        copy->copy.n_axes++;
    }
    if (copy->copy.n_axes == 0) {
        damacy__axis* only = &plan->axes.items[plan->axes.n++];
        only->src_stride = only->dst_stride = 1;
        only->extent = 1;
        copy->copy.n_axes = 1;
    }
    copy->copy.n_voxels_low = (uint32_t)n_voxels;
    copy->copy.n_voxels_high = (uint32_t)(n_voxels >> 32);
    return copy;
}

/* State of the walk over the product of pieces. */
typedef struct damacy__plan_walk {
    damacy__plan* plan;
    damacy__alloc* alloc;
    const damacy__plan_options* options;
    const damacy__view* view;
    const damacy__piece* pieces[DAMACY_MAX_RANK];
    uint64_t n_pieces[DAMACY_MAX_RANK];
    uint64_t at[DAMACY_MAX_RANK];
    int64_t dst_stride[DAMACY_MAX_RANK]; /* elements */
    uint64_t sample_voxels;
} damacy__plan_walk;

/* A fill of the pieces chosen on axes before n_fixed, and of whole axes from there on. */
static bool damacy__plan_fill(damacy__plan_walk* walk, uint32_t n_fixed)
{
    const damacy__plan_options* options = walk->options;
    damacy__axis axes[DAMACY_MAX_RANK];
    uint64_t dst = walk->view->sample * walk->sample_voxels;
    damacy__plan_copy* copy;
    uint32_t* number;
    uint32_t channel = 0;

    for (uint32_t i = 0; i < options->rank; i++) {
        const damacy__piece* piece = i < n_fixed ? &walk->pieces[i][walk->at[i]] : NULL;
        axes[i].src_stride = 0;
        axes[i].dst_stride = walk->dst_stride[i];
        axes[i].extent = (uint64_t)(piece ? piece->extent : options->shape[i]);
        dst += (uint64_t)((piece ? piece->dst : 0) * walk->dst_stride[i]);
        if (options->has_channels && i == options->channel_axis) {
            channel = (uint32_t)(piece ? piece->dst : 0);
        }
    }
    copy = damacy__plan_emit(walk->plan, walk->alloc, options, axes, options->rank);
    number = damacy__numbers_push(&walk->plan->fills, walk->alloc);
    if (!copy || !number) {
        return false;
    }
    *number = (uint32_t)walk->plan->copies.n - 1;
    copy->copy.dst = dst * options->out_size;
    copy->copy.fill = walk->view->layout->fill;
    copy->copy.flags = DAMACY__COPY_FILL;
    copy->copy.src_dtype = (uint32_t)walk->view->layout->dtype;
    copy->copy.channel = channel;
    copy->chunk = UINT32_MAX;
    copy->sample = walk->view->sample;
    return true;
}

/* The index of the object that holds the chosen pieces, and the chunk's entry in it. */
static const damacy__index* damacy__plan_locate(const damacy__plan_walk* walk, int64_t* position,
                                                uint64_t* entry)
{
    const damacy__layout* layout = walk->view->layout;
    uint64_t number = 0;

    *entry = 0;
    for (uint32_t i = 0; i < layout->rank; i++) {
        const int64_t chunk = walk->pieces[i][walk->at[i]].chunk;
        const int64_t per_object = layout->object_shape[i] / layout->chunk_shape[i];
        const int64_t object = chunk / per_object;
        position[i] = chunk;
        number = number * (uint64_t)walk->view->n_objects[i] +
                 (uint64_t)(object - walk->view->first_object[i]);
        *entry += (uint64_t)(chunk % per_object) * layout->index_stride[i];
    }
    return walk->view->indexes[number];
}

/* One combination of pieces, all inside the array: a copy out of one chunk, or a fill if it is
 * missing. */
static bool damacy__plan_cell(damacy__plan_walk* walk)
{
    const damacy__plan_options* options = walk->options;
    const damacy__layout* layout = walk->view->layout;
    damacy__axis axes[DAMACY_MAX_RANK];
    int64_t position[DAMACY_MAX_RANK];
    uint64_t dst = walk->view->sample * walk->sample_voxels;
    int64_t src = 0;
    uint64_t entry;
    uint32_t chunk;
    uint32_t channel = 0;
    damacy__plan_copy* copy;
    const damacy__index* index = damacy__plan_locate(walk, position, &entry);

    walk->plan->n_touched++;
    if (!index->extents || index->extents[entry].offset == UINT64_MAX) {
        walk->plan->n_missing++;
        return damacy__plan_fill(walk, options->rank);
    }
    chunk = damacy__plan_find(walk->plan, walk->alloc, walk->view, index, entry, position);
    for (uint32_t i = 0; i < options->rank; i++) {
        const damacy__piece* piece = &walk->pieces[i][walk->at[i]];
        axes[i].src_stride = piece->step * layout->chunk_stride[i];
        axes[i].dst_stride = walk->dst_stride[i];
        axes[i].extent = (uint64_t)piece->extent;
        dst += (uint64_t)(piece->dst * walk->dst_stride[i]);
        src += (piece->src % layout->chunk_shape[i]) * layout->chunk_stride[i];
        if (options->has_channels && i == options->channel_axis) {
            channel = (uint32_t)piece->dst;
        }
    }
    if (chunk == UINT32_MAX ||
        !(copy = damacy__plan_emit(walk->plan, walk->alloc, options, axes, options->rank))) {
        return false;
    }
    copy->copy.src = (uint64_t)src * layout->item_size;
    copy->copy.dst = dst * options->out_size;
    copy->copy.flags = layout->big_endian ? (uint32_t)DAMACY__COPY_SWAP : 0;
    copy->copy.src_dtype = (uint32_t)layout->dtype;
    copy->copy.channel = channel;
    copy->chunk = chunk;
    copy->sample = walk->view->sample;
    walk->plan->chunks.items[chunk].n_copies++;
    return true;
}

/* Walks the product of the axes' pieces; a piece outside the array fills all axes after it at once.
 */
static bool damacy__plan_product(damacy__plan_walk* walk)
{
    const uint32_t rank = walk->options->rank;
    uint32_t axis = 0;

    if (rank == 0) {
        return damacy__plan_cell(walk);
    }
    for (;;) {
        bool is_leaf = axis + 1 == rank;
        if (walk->at[axis] == walk->n_pieces[axis]) {
            walk->at[axis] = 0;
            if (axis == 0) {
                return true;
            }
            walk->at[--axis]++;
            continue;
        }
        if (walk->pieces[axis][walk->at[axis]].chunk < 0) {
            if (!damacy__plan_fill(walk, axis + 1)) {
                return false;
            }
            walk->at[axis]++;
        } else if (is_leaf) {
            if (!damacy__plan_cell(walk)) {
                return false;
            }
            walk->at[axis]++;
        } else {
            axis++;
        }
    }
}

/* Adds one sample. On failure the plan must be thrown away. */
static damacy_status damacy__plan_sample(damacy__plan* plan, damacy__alloc* alloc,
                                         const damacy__plan_options* options,
                                         const damacy__view* view, damacy_error* err)
{
    damacy__plan_walk walk;
    uint64_t starts[DAMACY_MAX_RANK + 1];
    uint64_t stride = 1;
    bool ok = true;

    memset(&walk, 0, sizeof walk);
    walk.plan = plan;
    walk.alloc = alloc;
    walk.options = options;
    walk.view = view;
    plan->pieces.n = 0;
    for (uint32_t i = 0; i < options->rank && ok; i++) {
        starts[i] = plan->pieces.n;
        ok = damacy__axis_pieces(&plan->pieces, alloc, view->box[i], view->layout->shape[i],
                                 view->layout->chunk_shape[i], options->bounds);
        starts[i + 1] = plan->pieces.n;
    }
    for (uint32_t i = options->rank; i-- > 0 && ok;) {
        walk.pieces[i] = plan->pieces.items + starts[i];
        walk.n_pieces[i] = starts[i + 1] - starts[i];
        walk.dst_stride[i] = (int64_t)stride;
        stride *= (uint64_t)options->shape[i];
    }
    walk.sample_voxels = stride;
    plan->bytes_delivered += stride * view->layout->item_size;
    if (!ok || !damacy__plan_product(&walk)) {
        return damacy__fail(err, DAMACY_OOM, "plan of a batch");
    }
    return DAMACY_OK;
}
