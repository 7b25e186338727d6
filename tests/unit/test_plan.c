/* The planner against a voxel-by-voxel model: random arrays, boxes and bounds policies. */
#include "stage/reads.h"
#include "tests/test.h"

static damacy__alloc heap;

typedef struct model {
    damacy__layout layout;
    damacy__index* indexes;
    const damacy__index** views;
    uint64_t n_objects;
    int64_t grid[DAMACY_MAX_RANK]; /* objects per axis */
} model;

static int64_t pick(uint64_t* seed, int64_t low, int64_t high)
{
    return low + (int64_t)(test_random(seed) % (uint64_t)(high - low + 1));
}

/* A random array: objects of whole chunks, chunk strides of a random axis order, some chunks
 * missing. */
static void model_init(model* m, uint32_t rank, uint64_t* seed)
{
    uint32_t order[DAMACY_MAX_RANK];
    int64_t stride = 1;
    uint64_t entry_stride = 1;

    memset(m, 0, sizeof *m);
    m->layout.rank = rank;
    m->layout.dtype = DAMACY_U32;
    m->layout.item_size = 4;
    m->layout.fill = 0xf111f111;
    m->n_objects = 1;
    for (uint32_t i = 0; i < rank; i++) {
        order[i] = i;
    }
    for (uint32_t i = rank; i > 1; i--) {
        const uint32_t k = (uint32_t)(test_random(seed) % i);
        const uint32_t t = order[i - 1];
        order[i - 1] = order[k];
        order[k] = t;
    }
    for (uint32_t i = 0; i < rank; i++) {
        const uint32_t axis = order[i];
        const int64_t chunks = pick(seed, 1, 3);
        m->layout.shape[axis] = pick(seed, 1, 23);
        m->layout.chunk_shape[axis] = pick(seed, 1, 7);
        m->layout.object_shape[axis] = m->layout.chunk_shape[axis] * chunks;
        m->layout.chunk_stride[axis] = stride;
        m->layout.index_stride[axis] = entry_stride;
        stride *= m->layout.chunk_shape[axis];
        entry_stride *= (uint64_t)chunks;
        m->grid[axis] = (m->layout.shape[axis] + m->layout.object_shape[axis] - 1) /
                        m->layout.object_shape[axis];
        m->n_objects *= (uint64_t)m->grid[axis];
    }
    m->layout.chunk_size = 4 * (uint64_t)stride;
    m->layout.n_entries = entry_stride;
    m->layout.is_sharded = entry_stride > 1;
    m->indexes = (damacy__index*)calloc(m->n_objects, sizeof *m->indexes);
    m->views = (const damacy__index**)calloc(m->n_objects, sizeof *m->views);
    for (uint64_t i = 0; i < m->n_objects; i++) {
        uint64_t at = 0;
        m->views[i] = &m->indexes[i];
        m->indexes[i].n = entry_stride;
        if (test_random(seed) % 8 == 0) {
            continue; /* the object is not stored */
        }
        m->indexes[i].extents = (damacy__extent*)calloc(entry_stride, sizeof(damacy__extent));
        for (uint64_t k = 0; k < entry_stride; k++) {
            damacy__extent* e = &m->indexes[i].extents[k];
            if (test_random(seed) % 8 == 0) {
                e->offset = e->size = UINT64_MAX;
                continue;
            }
            e->offset = at;
            e->size = 1 + test_random(seed) % 3000;
            at += e->size + (test_random(seed) % 4 == 0 ? test_random(seed) % 90000 : 0);
        }
        m->indexes[i].object_size = at;
    }
}

static void model_deinit(model* m)
{
    for (uint64_t i = 0; i < m->n_objects; i++) {
        free(m->indexes[i].extents);
    }
    free(m->indexes);
    free(m->views);
}

/* The value of a voxel of the array: its C-order number, or the fill value where nothing is stored.
 */
static uint32_t model_voxel(const model* m, const int64_t* at)
{
    uint32_t value = 0;
    uint64_t object = 0;
    uint64_t entry = 0;

    for (uint32_t i = 0; i < m->layout.rank; i++) {
        const int64_t chunk = at[i] / m->layout.chunk_shape[i];
        const int64_t per = m->layout.object_shape[i] / m->layout.chunk_shape[i];
        value = value * (uint32_t)m->layout.shape[i] + (uint32_t)at[i];
        object = object * (uint64_t)m->grid[i] + (uint64_t)(chunk / per);
        entry += (uint64_t)(chunk % per) * m->layout.index_stride[i];
    }
    if (!m->indexes[object].extents || m->indexes[object].extents[entry].offset == UINT64_MAX) {
        return (uint32_t)m->layout.fill;
    }
    return value;
}

/* Where a coordinate outside goes: the policy, word for word. -1: fill. */
static int64_t model_bound(int64_t x, int64_t n, damacy_bounds bounds)
{
    if (x >= 0 && x < n) {
        return x;
    }
    if (bounds == DAMACY_BOUNDS_FILL || n == 0) {
        return -1;
    }
    if (bounds == DAMACY_BOUNDS_CLAMP) {
        return x < 0 ? 0 : n - 1;
    }
    while (x < 0 || x >= n) {
        if (n == 1) {
            return 0;
        }
        x = x < 0 ? -x : 2 * (n - 1) - x;
    }
    return x;
}

/* The decoded chunk that a plan's chunk names: C-order numbers at their strided places. */
static uint32_t* model_chunk(const model* m, const damacy__plan_chunk* chunk)
{
    uint32_t* voxels = (uint32_t*)malloc(m->layout.chunk_size);
    int64_t at[DAMACY_MAX_RANK];

    for (uint64_t k = 0; k < m->layout.chunk_size / 4; k++) {
        uint64_t rest = k;
        int64_t place = 0;
        uint32_t value = 0;
        int inside = 1;
        for (uint32_t i = m->layout.rank; i-- > 0;) {
            const int64_t within = (int64_t)(rest % (uint64_t)m->layout.chunk_shape[i]);
            rest /= (uint64_t)m->layout.chunk_shape[i];
            at[i] = chunk->position[i] * m->layout.chunk_shape[i] + within;
            place += within * m->layout.chunk_stride[i];
            inside = inside && at[i] < m->layout.shape[i];
        }
        for (uint32_t i = 0; i < m->layout.rank && inside; i++) {
            value = value * (uint32_t)m->layout.shape[i] + (uint32_t)at[i];
        }
        voxels[place] = inside ? value : 0xdeadbeefu;
    }
    return voxels;
}

/* Runs one copy and counts writes, so that an overlap or a gap shows. */
static void run_copy(const damacy__plan* plan, const damacy__copy* copy, const uint32_t* src,
                     uint32_t* dst, uint8_t* n_written, uint32_t axis, int64_t from, int64_t to)
{
    const damacy__axis* a = &plan->axes.items[copy->first_axis + axis];

    for (uint64_t i = 0; i < a->extent; i++) {
        if (axis + 1 < copy->n_axes) {
            run_copy(plan, copy, src, dst, n_written, axis + 1, from, to);
        } else {
            dst[to] = copy->flags & DAMACY__COPY_FILL ? (uint32_t)copy->fill : src[from];
            n_written[to]++;
        }
        from += a->src_stride;
        to += a->dst_stride;
    }
}

static void check_plan(const model* m, const damacy__plan* plan,
                       const damacy__plan_options* options, const damacy_interval* boxes,
                       uint32_t n_samples)
{
    uint64_t sample_voxels = 1;
    uint32_t* out;
    uint8_t* n_written;

    for (uint32_t i = 0; i < options->rank; i++) {
        sample_voxels *= (uint64_t)options->shape[i];
    }
    out = (uint32_t*)calloc(sample_voxels * n_samples, 4);
    n_written = (uint8_t*)calloc(sample_voxels * n_samples, 1);
    for (uint32_t c = 0; c < plan->chunks.n; c++) {
        const damacy__plan_chunk* chunk = &plan->chunks.items[c];
        uint32_t* voxels = model_chunk(m, chunk);
        for (uint32_t k = 0; k < chunk->n_copies; k++) {
            const damacy__plan_copy* copy =
                &plan->copies.items[plan->order.items[chunk->first + k]];
            CHECK_EQ(copy->chunk, c);
            run_copy(plan, &copy->copy, voxels, out, n_written, 0, (int64_t)(copy->copy.src / 4),
                     (int64_t)(copy->copy.dst / 4));
        }
        free(voxels);
    }
    for (uint32_t k = 0; k < plan->fills.n; k++) {
        const damacy__copy* copy = &plan->copies.items[plan->fills.items[k]].copy;
        run_copy(plan, copy, NULL, out, n_written, 0, 0, (int64_t)(copy->dst / 4));
    }
    for (uint64_t v = 0; v < sample_voxels * n_samples; v++) {
        const damacy_interval* box = boxes + v / sample_voxels * options->rank;
        uint64_t rest = v % sample_voxels;
        int64_t at[DAMACY_MAX_RANK];
        int outside = 0;
        for (uint32_t i = options->rank; i-- > 0;) {
            const int64_t x = box[i].begin + (int64_t)(rest % (uint64_t)options->shape[i]);
            rest /= (uint64_t)options->shape[i];
            at[i] = model_bound(x, m->layout.shape[i], options->bounds);
            outside = outside || at[i] < 0;
        }
        CHECK_EQ(n_written[v], 1);
        CHECK_EQ(out[v], outside ? (uint32_t)m->layout.fill : model_voxel(m, at));
    }
    free(out);
    free(n_written);
}

/* Every chunk lies in its read, every read within the limit or of one chunk, every read issued
 * once. */
static void check_reads(const damacy__plan* plan, const damacy__plan_options* options)
{
    uint64_t n_chunks = 0;

    for (uint32_t r = 0; r < plan->reads.n; r++) {
        const damacy__plan_read* read = &plan->reads.items[r];
        CHECK(read->size <= options->max_read || read->n_chunks == 1);
        for (uint32_t k = 0; k < read->n_chunks; k++) {
            const damacy__plan_chunk* chunk =
                &plan->chunks.items[plan->by_place.items[read->first + k]];
            CHECK_EQ(chunk->read, r);
            CHECK(chunk->offset >= read->offset &&
                  chunk->offset + chunk->size <= read->offset + read->size);
        }
        n_chunks += read->n_chunks;
    }
    CHECK_EQ(n_chunks, plan->chunks.n);
    CHECK_EQ(plan->issue.n, plan->reads.n);
    for (uint32_t i = 1; i < plan->issue.n; i++) {
        CHECK(plan->reads.items[plan->issue.items[i - 1]].turn <=
              plan->reads.items[plan->issue.items[i]].turn);
    }
}

static void run_random(uint64_t* seed, damacy_bounds bounds, damacy__plan* plan)
{
    enum { N_SAMPLES = 5 };
    damacy_interval boxes[N_SAMPLES * 4];
    const int64_t first[4] = {0, 0, 0, 0};
    damacy__plan_options options;
    damacy_error error;
    model m;
    const uint32_t rank = (uint32_t)pick(seed, 0, 4);

    memset(&options, 0, sizeof options);
    model_init(&m, rank, seed);
    options.rank = rank;
    options.out_size = 4;
    options.bounds = bounds;
    options.max_read = 8192;
    options.max_gap = 2000;
    for (uint32_t i = 0; i < rank; i++) {
        options.shape[i] =
            bounds == DAMACY_BOUNDS_REJECT ? pick(seed, 1, m.layout.shape[i]) : pick(seed, 1, 30);
    }
    damacy__plan_clear(plan);
    for (uint32_t s = 0; s < N_SAMPLES; s++) {
        damacy__view view;
        for (uint32_t i = 0; i < rank; i++) {
            damacy_interval* box = &boxes[s * rank + i];
            box->begin = bounds == DAMACY_BOUNDS_REJECT
                             ? pick(seed, 0, m.layout.shape[i] - options.shape[i])
                             : pick(seed, -40, 40);
            box->end = box->begin + options.shape[i];
        }
        view.layout = &m.layout;
        view.box = boxes + s * rank;
        view.indexes = m.views;
        view.first_object = first;
        view.n_objects = m.grid;
        view.sample = s;
        CHECK_EQ(damacy__plan_sample(plan, &heap, &options, &view, &error), DAMACY_OK);
    }
    CHECK_EQ(damacy__plan_group(plan, &heap, &error), DAMACY_OK);
    CHECK_EQ(damacy__plan_reads_make(plan, &heap, &options, &error), DAMACY_OK);
    check_plan(&m, plan, &options, boxes, N_SAMPLES);
    check_reads(plan, &options);
    model_deinit(&m);
}

TEST(plan_gives_every_voxel_once_under_every_policy)
{
    uint64_t seed = test_seed();
    damacy__plan plan;

    memset(&plan, 0, sizeof plan);
    for (int i = 0; i < 600; i++) {
        run_random(&seed, (damacy_bounds)(i % 4), &plan);
    }
    damacy__plan_deinit(&plan, &heap);
    CHECK_EQ(heap.live_blocks, 0);
}

/* One row of 8 chunks of 4 voxels in one shard; chunk sizes and places as given. */
static void row(damacy__layout* layout, damacy__index* index, damacy__extent* extents, uint64_t n)
{
    memset(layout, 0, sizeof *layout);
    layout->rank = 1;
    layout->dtype = DAMACY_U8;
    layout->item_size = 1;
    layout->shape[0] = (int64_t)n * 4;
    layout->object_shape[0] = (int64_t)n * 4;
    layout->chunk_shape[0] = 4;
    layout->chunk_stride[0] = 1;
    layout->chunk_size = 4;
    layout->index_stride[0] = 1;
    layout->n_entries = n;
    index->extents = extents;
    index->n = n;
}

static void plan_boxes(damacy__plan* plan, damacy__plan_options* options,
                       const damacy__layout* layout, const damacy__index* index,
                       const damacy_interval* boxes, uint32_t n)
{
    const int64_t first[1] = {0};
    const int64_t one[1] = {1};
    damacy_error error;

    damacy__plan_clear(plan);
    for (uint32_t s = 0; s < n; s++) {
        damacy__view view;
        view.layout = layout;
        view.box = &boxes[s];
        view.indexes = &index;
        view.first_object = first;
        view.n_objects = one;
        view.sample = s;
        options->rank = 1;
        options->out_size = 1;
        options->shape[0] = boxes[s].end - boxes[s].begin;
        CHECK_EQ(damacy__plan_sample(plan, &heap, options, &view, &error), DAMACY_OK);
    }
    CHECK_EQ(damacy__plan_group(plan, &heap, &error), DAMACY_OK);
    CHECK_EQ(damacy__plan_reads_make(plan, &heap, options, &error), DAMACY_OK);
}

TEST(plan_decodes_a_chunk_once_however_many_samples_touch_it)
{
    damacy__extent extents[8] = {{0, 10},  {10, 10}, {20, 10}, {30, 10},
                                 {40, 10}, {50, 10}, {60, 10}, {70, 10}};
    const damacy_interval boxes[3] = {{0, 16}, {2, 18}, {1, 17}};
    damacy__plan_options options;
    damacy__layout layout;
    damacy__index index;
    damacy__plan plan;

    memset(&plan, 0, sizeof plan);
    memset(&options, 0, sizeof options);
    options.max_read = 1000;
    row(&layout, &index, extents, 8);
    plan_boxes(&plan, &options, &layout, &index, boxes, 3);
    CHECK_EQ(plan.chunks.n, 5);
    CHECK_EQ(plan.n_touched, 4 + 5 + 5);
    CHECK_EQ(plan.reads.n, 1);
    CHECK_EQ(plan.reads.items[0].size, 50);
    damacy__plan_deinit(&plan, &heap);
}

TEST(plan_reads_over_small_gaps_and_not_over_large_ones)
{
    damacy__extent extents[4] = {{100, 10}, {115, 10}, {200, 10}, {130, 10}};
    const damacy_interval box = {0, 16};
    damacy__plan_options options;
    damacy__layout layout;
    damacy__index index;
    damacy__plan plan;

    memset(&plan, 0, sizeof plan);
    memset(&options, 0, sizeof options);
    options.max_read = 1000;
    options.max_gap = 5;
    row(&layout, &index, extents, 4);
    plan_boxes(&plan, &options, &layout, &index, &box, 1);
    CHECK_EQ(plan.reads.n, 2);
    CHECK_EQ(plan.reads.items[0].offset, 100);
    CHECK_EQ(plan.reads.items[0].size, 40);
    CHECK_EQ(plan.reads.items[1].offset, 200);
    options.max_read = 20;
    plan_boxes(&plan, &options, &layout, &index, &box, 1);
    CHECK_EQ(plan.reads.n, 4);
    damacy__plan_deinit(&plan, &heap);
}

TEST(plan_lets_chunks_share_and_overlap_bytes)
{
    damacy__extent extents[4] = {{0, 10}, {0, 10}, {5, 10}, {14, 3}};
    const damacy_interval box = {0, 16};
    damacy__plan_options options;
    damacy__layout layout;
    damacy__index index;
    damacy__plan plan;

    memset(&plan, 0, sizeof plan);
    memset(&options, 0, sizeof options);
    options.max_read = 1000;
    row(&layout, &index, extents, 4);
    plan_boxes(&plan, &options, &layout, &index, &box, 1);
    CHECK_EQ(plan.chunks.n, 4);
    CHECK_EQ(plan.reads.n, 1);
    CHECK_EQ(plan.reads.items[0].size, 17);
    damacy__plan_deinit(&plan, &heap);
}

TEST(plan_keeps_its_memory_from_batch_to_batch)
{
    damacy__extent extents[8] = {{0, 10},  {10, 10}, {20, 10}, {30, 10},
                                 {40, 10}, {50, 10}, {60, 10}, {70, 10}};
    const damacy_interval box = {0, 32};
    damacy__plan_options options;
    damacy__layout layout;
    damacy__index index;
    damacy__plan plan;
    uint64_t n_calls;

    memset(&plan, 0, sizeof plan);
    memset(&options, 0, sizeof options);
    options.max_read = 1000;
    row(&layout, &index, extents, 8);
    plan_boxes(&plan, &options, &layout, &index, &box, 1);
    n_calls = heap.n_calls;
    plan_boxes(&plan, &options, &layout, &index, &box, 1);
    CHECK_EQ(heap.n_calls, n_calls);
    damacy__plan_deinit(&plan, &heap);
}

TEST_MAIN
