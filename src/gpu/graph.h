/* The kernels of a batch as one launch: a draft, in which they are written down with what waits for
 * what, becomes a CUDA graph.
 *
 * Kernels of a graph follow each other sooner than launches on streams do, and the host makes one
 * call for all. Where a draft is given, it takes what would be queued on streams. To make a graph
 * takes longer than to queue its kernels once, so that only what comes again becomes one; it is
 * kept, and what has the same kernels and edges is launched by it, with other parameters. The
 * surprising rule: a graph is only a faster way. What the driver refuses is queued kernel by
 * kernel, and tells then what is wrong. */
#pragma once
#include "gpu/program.h"

enum {
    DAMACY__GRAPH_NODES = 48, /* kernels of a batch; one that has more is queued kernel by kernel */
    DAMACY__GRAPH_LANES = 16, /* streams and events of a batch */
    DAMACY__GRAPH_PARAMETER = 224, /* bytes: of damacy__zstd_wave, the largest */
    DAMACY__GRAPHS = 24,           /* kept */
    DAMACY__GRAPH_KEY = 24,        /* words of a key */
    DAMACY__GRAPH_MEMORY = 32      /* batches that are known again */
};

/* The driver's CUDA_KERNEL_NODE_PARAMS_v2. */
typedef struct damacy__graph_kernel {
    damacy__function function;
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    void** parameters;
    void** extra;
    void* other;             /* a CUkernel, if function is NULL */
    damacy__context context; /* NULL: the current one */
} damacy__graph_kernel;

/* A kernel with one parameter. No byte of it is unset: nodes are compared as bytes. */
typedef struct damacy__graph_node {
    damacy__function function;
    damacy__grid grid;
    uint64_t after; /* a bit for each node that it waits for */
    uint64_t parameter[DAMACY__GRAPH_PARAMETER / 8];
} damacy__graph_node;

static_assert(sizeof(damacy__graph_node) ==
                  sizeof(damacy__function) + 24 + 8 + DAMACY__GRAPH_PARAMETER,
              "no padding");

/* A stream or an event, and what waits for it. */
typedef struct damacy__graph_lane {
    void* handle;
    uint64_t after; /* nodes that what is queued next waits for */
} damacy__graph_lane;

/* What a batch queues. Zeroed: nothing yet. */
typedef struct damacy__graph_draft {
    damacy__graph_node nodes[DAMACY__GRAPH_NODES];
    uint64_t before[DAMACY__GRAPH_NODES]; /* all that a node comes after, at any distance */
    uint32_t n_nodes;
    damacy__graph_lane lanes[DAMACY__GRAPH_LANES];
    uint32_t n_lanes;
    uint64_t shape; /* a hash of kernels and edges */
    bool is_full;   /* something found no room: no graph */
} damacy__graph_draft;

/* What a caller knows a batch by. */
typedef struct damacy__graph_key {
    uint64_t words[DAMACY__GRAPH_KEY];
} damacy__graph_key;

/* A graph that can be launched. */
typedef struct damacy__graph {
    damacy__graph_key key;         /* of the batch that it launched last */
    damacy__graph_exec executable; /* NULL: none */
    damacy__graph_handle graph;    /* that it was made of; names its nodes */
    void* names[DAMACY__GRAPH_NODES];
    damacy__graph_node nodes[DAMACY__GRAPH_NODES]; /* as launched last */
    uint32_t n_nodes;
    uint64_t used; /* when, by damacy__graphs.clock */
} damacy__graph;

/* Hashes of what was queued of late. */
typedef struct damacy__graph_memory {
    uint64_t keys[DAMACY__GRAPH_MEMORY];
    uint32_t next;
} damacy__graph_memory;

/* Zero: none, and every launch is refused. One thread at a time. */
typedef struct damacy__graphs {
    damacy__alloc* alloc;
    damacy__graph_draft* draft; /* of the batch that is being queued */
    damacy__graph* kept;        /* DAMACY__GRAPHS */
    damacy__graph_memory drafts;
    damacy__graph_memory shapes;
    uint64_t clock;
    bool is_eager;   /* graphs of what comes first, too: for tests */
    bool is_refused; /* the driver has refused one: no more are tried */
} damacy__graphs;

static void damacy__graphs_init(damacy__graphs* graphs, const damacy__device* device,
                                damacy__alloc* alloc);
static void damacy__graphs_deinit(damacy__graphs* graphs, damacy__device* device);
static damacy__graph_draft* damacy__graphs_begin(damacy__graphs* graphs);
static bool damacy__graphs_again(damacy__graphs* graphs, damacy__device* device,
                                 const damacy__graph_key* key, damacy__stream stream);
static bool damacy__graphs_launch(damacy__graphs* graphs, damacy__device* device,
                                  const damacy__graph_key* key, damacy__stream stream);
static damacy_status damacy__queue_kernel(damacy__graph_draft* draft, const damacy__kernel* kernel,
                                          damacy__device* device, const damacy__grid* grid,
                                          damacy__stream stream, void* parameter, size_t size,
                                          damacy_error* err);
static damacy_status damacy__queue_record(damacy__graph_draft* draft, damacy__device* device,
                                          damacy__event event, damacy__stream stream,
                                          damacy_error* err);
static damacy_status damacy__queue_wait(damacy__graph_draft* draft, damacy__device* device,
                                        damacy__stream stream, damacy__event event,
                                        damacy_error* err);
static damacy__stream damacy__draft_branch(damacy__graph_draft* draft, damacy__stream stream);
static void damacy__draft_join(damacy__graph_draft* draft, damacy__stream stream,
                               damacy__stream branch);

static inline uint64_t damacy__graph_mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* ---- a draft ---- */

/* What waits for a stream or an event; NULL: no room. */
static uint64_t* damacy__draft_lane(damacy__graph_draft* draft, void* handle)
{
    for (uint32_t i = 0; i < draft->n_lanes; i++) {
        if (draft->lanes[i].handle == handle) {
            return &draft->lanes[i].after;
        }
    }
    if (draft->n_lanes == DAMACY__GRAPH_LANES) {
        draft->is_full = true;
        return NULL;
    }
    draft->lanes[draft->n_lanes].handle = handle;
    draft->lanes[draft->n_lanes].after = 0;
    return &draft->lanes[draft->n_lanes++].after;
}

/* The nodes without those that another of them comes after. */
static uint64_t damacy__draft_last(const damacy__graph_draft* draft, uint64_t nodes)
{
    uint64_t last = nodes;

    for (uint32_t i = 0; i < draft->n_nodes; i++) {
        last &= nodes >> i & 1 ? ~draft->before[i] : UINT64_MAX;
    }
    return last;
}

static void damacy__draft_kernel(damacy__graph_draft* draft, const damacy__kernel* kernel,
                                 const damacy__grid* grid, damacy__stream stream,
                                 const void* parameter, size_t size)
{
    uint64_t* const lane = damacy__draft_lane(draft, stream);
    const uint32_t n = draft->n_nodes;
    damacy__graph_node* node = &draft->nodes[n];

    if (!lane || n == DAMACY__GRAPH_NODES || size > DAMACY__GRAPH_PARAMETER) {
        draft->is_full = true;
        return;
    }
    memset(node, 0, sizeof *node);
    node->function = kernel->function;
    node->grid = *grid;
    node->after = *lane;
    memcpy(node->parameter, parameter, size);
    draft->before[n] = *lane;
    for (uint32_t i = 0; i < n; i++) {
        draft->before[n] |= *lane >> i & 1 ? draft->before[i] : 0;
    }
    draft->n_nodes++;
    draft->shape = damacy__graph_mix(draft->shape, (uint64_t)(uintptr_t)node->function);
    draft->shape = damacy__graph_mix(draft->shape, node->after ^ (uint64_t)grid->division << 56);
    *lane = UINT64_C(1) << n;
}

/* A stream of the draft alone, which goes on from what `stream` holds now. */
static damacy__stream damacy__draft_branch(damacy__graph_draft* draft, damacy__stream stream)
{
    void* const branch = &draft->lanes[draft->n_lanes % DAMACY__GRAPH_LANES]; /* like no other */
    const uint64_t* const from = damacy__draft_lane(draft, stream);
    uint64_t* const to = damacy__draft_lane(draft, branch);

    if (from && to) {
        *to = *from;
    }
    return branch;
}

/* What is queued on the stream from now on waits for the branch, too. */
static void damacy__draft_join(damacy__graph_draft* draft, damacy__stream stream,
                               damacy__stream branch)
{
    const uint64_t* const from = damacy__draft_lane(draft, branch);
    uint64_t* const to = damacy__draft_lane(draft, stream);

    if (from && to) {
        *to = damacy__draft_last(draft, *to | *from);
    }
}

/* ---- what is queued, in a draft or on streams ---- */

/* A kernel with one parameter of `size` bytes, which are read during the call. draft NULL: as
 * damacy__kernel_launch. */
static damacy_status damacy__queue_kernel(damacy__graph_draft* draft, const damacy__kernel* kernel,
                                          damacy__device* device, const damacy__grid* grid,
                                          damacy__stream stream, void* parameter, size_t size,
                                          damacy_error* err)
{
    void* parameters[1];

    parameters[0] = parameter;
    if (!draft) {
        return damacy__kernel_launch(kernel, device, grid, stream, parameters, err);
    }
    if (grid->x && grid->y && grid->z) {
        damacy__draft_kernel(draft, kernel, grid, stream, parameter, size);
    }
    return DAMACY_OK;
}

/* The event stands for what the stream holds now. */
static damacy_status damacy__queue_record(damacy__graph_draft* draft, damacy__device* device,
                                          damacy__event event, damacy__stream stream,
                                          damacy_error* err)
{
    if (draft) {
        uint64_t* const from = damacy__draft_lane(draft, stream);
        uint64_t* const to = damacy__draft_lane(draft, event);
        if (from && to) {
            *to = *from;
        }
        return DAMACY_OK;
    }
    return damacy__event_record(device, event, stream, err);
}

/* What is queued on the stream from now on waits for the event. */
static damacy_status damacy__queue_wait(damacy__graph_draft* draft, damacy__device* device,
                                        damacy__stream stream, damacy__event event,
                                        damacy_error* err)
{
    if (draft) {
        damacy__draft_join(draft, stream, event);
        return DAMACY_OK;
    }
    return damacy__stream_await(device, stream, event, err);
}

/* ---- graphs ---- */

static bool damacy__driver_has_graphs(const damacy__driver* d)
{
    return d->graph_create && d->graph_destroy && d->graph_add && d->graph_attribute &&
           d->graph_instantiate && d->graph_update && d->graph_launch && d->graph_end &&
           d->capture_mode;
}

/* Without memory for them, or by an older driver, there are none. */
static void damacy__graphs_init(damacy__graphs* graphs, const damacy__device* device,
                                damacy__alloc* alloc)
{
    memset(graphs, 0, sizeof *graphs);
    if (!damacy__driver_has_graphs(device->driver)) {
        return;
    }
    graphs->alloc = alloc;
    graphs->draft = damacy__new(alloc, 1, damacy__graph_draft);
    graphs->kept = damacy__new(alloc, DAMACY__GRAPHS, damacy__graph);
    if (!graphs->draft || !graphs->kept) {
        damacy__graphs_deinit(graphs, NULL);
    }
}

/* The context is current. One that still runs goes on, and is freed afterwards. */
static void damacy__graph_close(damacy__graph* graph, damacy__device* device)
{
    if (graph->executable) {
        (void)damacy__device_note(device, device->driver->graph_end(graph->executable),
                                  "cuGraphExecDestroy");
    }
    if (graph->graph) {
        (void)damacy__device_note(device, device->driver->graph_destroy(graph->graph),
                                  "cuGraphDestroy");
    }
    graph->executable = NULL;
    graph->graph = NULL;
}

/* Zeroed, or device NULL if none was launched: fine. */
static void damacy__graphs_deinit(damacy__graphs* graphs, damacy__device* device)
{
    if (graphs->kept && device && damacy__device_enter_to_free(device)) {
        for (uint32_t i = 0; i < DAMACY__GRAPHS; i++) {
            damacy__graph_close(&graphs->kept[i], device);
        }
        damacy__device_leave(device);
    }
    if (graphs->kept) {
        damacy__free(graphs->alloc, graphs->kept, DAMACY__GRAPHS);
    }
    if (graphs->draft) {
        damacy__free(graphs->alloc, graphs->draft, 1);
    }
    memset(graphs, 0, sizeof *graphs);
}

/* An empty draft for what a batch queues, then to be launched; NULL: no graphs. */
static damacy__graph_draft* damacy__graphs_begin(damacy__graphs* graphs)
{
    if (!graphs->draft || graphs->is_refused) {
        return NULL;
    }
    graphs->draft->n_nodes = 0;
    graphs->draft->n_lanes = 0;
    graphs->draft->shape = 0;
    graphs->draft->is_full = false;
    return graphs->draft;
}

static damacy__graph_kernel damacy__graph_kernel_of(damacy__graph_node* node, void** parameters)
{
    damacy__graph_kernel kernel;

    memset(&kernel, 0, sizeof kernel);
    kernel.function = node->function;
    kernel.grid[0] = node->grid.x;
    kernel.grid[1] = node->grid.y;
    kernel.grid[2] = node->grid.z;
    kernel.block[0] = node->grid.threads;
    kernel.block[1] = kernel.block[2] = 1;
    kernel.shared = node->grid.shared;
    parameters[0] = node->parameter;
    kernel.parameters = parameters;
    return kernel;
}

/* Adds node i behind those that it waits for. */
static int damacy__graph_add(damacy__graph* graph, const damacy__driver* driver, uint32_t i)
{
    damacy__graph_node* node = &graph->nodes[i];
    void* after[DAMACY__GRAPH_NODES];
    damacy__graph_kernel kernel;
    void* parameters[1];
    size_t n = 0;
    int code;

    for (uint32_t k = 0; k < i; k++) {
        if (node->after >> k & 1) {
            after[n++] = graph->names[k];
        }
    }
    kernel = damacy__graph_kernel_of(node, parameters);
    code = driver->graph_add(&graph->names[i], graph->graph, n ? after : NULL, n, &kernel);
    if (code == DAMACY__CUDA_OK && node->grid.division) {
        const damacy__launch_attribute division = damacy__division_wish(&node->grid);
        code = driver->graph_attribute(graph->names[i], division.id, &division.value);
        code = damacy__is_wish_refused(code) ? DAMACY__CUDA_OK : code;
    }
    return code;
}

/* Makes the draft in place of what was there. Memory of the driver's that comes or goes with it is
 * no harm to what other threads capture: hence the mode, of this thread. */
static int damacy__graph_make(damacy__graph* graph, damacy__device* device,
                              const damacy__graph_draft* draft)
{
    const damacy__driver* driver = device->driver;
    int mode = DAMACY__CAPTURE_RELAXED;
    int code = driver->capture_mode(&mode);

    if (code != DAMACY__CUDA_OK) {
        return code;
    }
    damacy__graph_close(graph, device);
    graph->n_nodes = draft->n_nodes;
    memcpy(graph->nodes, draft->nodes, draft->n_nodes * sizeof draft->nodes[0]);
    code = driver->graph_create(&graph->graph, 0);
    for (uint32_t i = 0; i < graph->n_nodes && code == DAMACY__CUDA_OK; i++) {
        code = damacy__graph_add(graph, driver, i);
    }
    if (code == DAMACY__CUDA_OK) {
        code = driver->graph_instantiate(&graph->executable, graph->graph, 0);
    }
    (void)driver->capture_mode(&mode);
    return code;
}

/* Whether the graph becomes the draft by other parameters. */
static bool damacy__graph_fits(const damacy__graph* graph, const damacy__graph_draft* draft)
{
    if (!graph->executable || graph->n_nodes != draft->n_nodes) {
        return false;
    }
    for (uint32_t i = 0; i < draft->n_nodes; i++) {
        const damacy__graph_node* a = &graph->nodes[i];
        const damacy__graph_node* b = &draft->nodes[i];
        if (a->function != b->function || a->grid.division != b->grid.division ||
            a->after != b->after) {
            return false;
        }
    }
    return true;
}

/* Gives the graph the draft's parameters, where they are others. Launches under way keep theirs. */
static int damacy__graph_change(damacy__graph* graph, const damacy__graph_draft* draft,
                                const damacy__driver* driver)
{
    for (uint32_t i = 0; i < draft->n_nodes; i++) {
        damacy__graph_node* node = &graph->nodes[i];
        damacy__graph_kernel kernel;
        void* parameters[1];
        int code;
        if (memcmp(node, &draft->nodes[i], sizeof *node) == 0) {
            continue;
        }
        *node = draft->nodes[i];
        kernel = damacy__graph_kernel_of(node, parameters);
        code = driver->graph_update(graph->executable, graph->names[i], &kernel);
        if (code != DAMACY__CUDA_OK) {
            return code;
        }
    }
    return DAMACY__CUDA_OK;
}

static bool damacy__graph_is(const damacy__graph* graph, const damacy__graph_draft* draft)
{
    return graph->executable && graph->n_nodes == draft->n_nodes &&
           memcmp(graph->nodes, draft->nodes, draft->n_nodes * sizeof draft->nodes[0]) == 0;
}

static uint64_t damacy__draft_hash(const damacy__graph_draft* draft)
{
    uint64_t hash = draft->shape;

    for (uint32_t i = 0; i < draft->n_nodes; i++) {
        const damacy__graph_node* node = &draft->nodes[i];
        hash = damacy__graph_mix(hash, (uint64_t)node->grid.x << 32 | node->grid.shared);
        for (uint32_t k = 0; k < DAMACY__COUNT(node->parameter); k++) {
            hash = damacy__graph_mix(hash, node->parameter[k]);
        }
    }
    return hash;
}

/* Whether the key is known; then, or from now on, it is. */
static bool damacy__graph_remember(damacy__graph_memory* memory, uint64_t key)
{
    for (uint32_t i = 0; i < DAMACY__GRAPH_MEMORY; i++) {
        if (memory->keys[i] == key) {
            return true;
        }
    }
    memory->keys[memory->next] = key;
    memory->next = (memory->next + 1) % DAMACY__GRAPH_MEMORY;
    return false;
}

/* The graph for the draft: itself; for a draft that was here before a place without a graph; of
 * those that fit, or for a shape that was here before of all, the one that was used longest ago.
 * NULL: none. */
static damacy__graph* damacy__graphs_choose(damacy__graphs* graphs)
{
    const damacy__graph_draft* draft = graphs->draft;
    damacy__graph *vacant = NULL, *fitting = NULL, *oldest = &graphs->kept[0];
    bool is_known, has_known_shape;

    for (uint32_t i = 0; i < DAMACY__GRAPHS; i++) {
        if (damacy__graph_is(&graphs->kept[i], draft)) {
            return &graphs->kept[i];
        }
    }
    is_known = damacy__graph_remember(&graphs->drafts, damacy__draft_hash(draft));
    has_known_shape = damacy__graph_remember(&graphs->shapes, draft->shape);
    for (uint32_t i = 0; i < DAMACY__GRAPHS; i++) {
        damacy__graph* graph = &graphs->kept[i];
        vacant = graph->executable ? vacant : graph;
        oldest = graph->used < oldest->used ? graph : oldest;
        if (damacy__graph_fits(graph, draft) && (!fitting || graph->used < fitting->used)) {
            fitting = graph;
        }
    }
    if (fitting && !(is_known && vacant)) {
        return fitting;
    }
    return has_known_shape || graphs->is_eager ? (vacant ? vacant : oldest) : NULL;
}

/* Queues a graph that was made ready, or, with another code, gives graphs up. */
static bool damacy__graphs_queue(damacy__graphs* graphs, damacy__device* device,
                                 damacy__graph* graph, int code, damacy__stream stream)
{
    if (code == DAMACY__CUDA_OK) {
        code = device->driver->graph_launch(graph->executable, stream);
    }
    if (code != DAMACY__CUDA_OK) {
        (void)damacy__device_note(device, code, "cuGraphLaunch");
        damacy__graph_close(graph, device);
        graphs->is_refused = true;
        return false;
    }
    graph->used = ++graphs->clock;
    return true;
}

/* Queues the graph of a batch that was launched with this key, without a draft: what has the same
 * key queues the same. false: there is none. The context is current. */
static bool damacy__graphs_again(damacy__graphs* graphs, damacy__device* device,
                                 const damacy__graph_key* key, damacy__stream stream)
{
    if (!graphs->kept || graphs->is_refused ||
        damacy__device_state(device) != DAMACY__DEVICE_ALIVE) {
        return false;
    }
    for (uint32_t i = 0; i < DAMACY__GRAPHS; i++) {
        damacy__graph* graph = &graphs->kept[i];
        if (graph->executable && memcmp(&graph->key, key, sizeof *key) == 0) {
            return damacy__graphs_queue(graphs, device, graph, DAMACY__CUDA_OK, stream);
        }
    }
    return false;
}

/* Queues the draft on the stream as one graph, which is known by the key until it launches another.
 * The context is current. false: nothing is queued, and the caller is to queue kernel by kernel. */
static bool damacy__graphs_launch(damacy__graphs* graphs, damacy__device* device,
                                  const damacy__graph_key* key, damacy__stream stream)
{
    damacy__graph* graph;
    int code;

    if (graphs->draft->is_full || graphs->draft->n_nodes == 0 ||
        damacy__device_state(device) != DAMACY__DEVICE_ALIVE) {
        return false;
    }
    graph = damacy__graphs_choose(graphs);
    if (!graph) {
        return false;
    }
    code = damacy__graph_fits(graph, graphs->draft)
               ? damacy__graph_change(graph, graphs->draft, device->driver)
               : damacy__graph_make(graph, device, graphs->draft);
    graph->key = *key;
    return damacy__graphs_queue(graphs, device, graph, code, stream);
}
