// CUDA graphs on the fake driver. A graph that runs takes its kernels in any order that its edges
// allow, drawn from the seed: an edge that is missing shows.
#pragma once

namespace fake {
struct graph_node {
    operation op;
    damacy__function function = nullptr;
    std::vector<size_t> after;
};

struct graph_record {
    std::vector<graph_node> nodes;
    std::vector<void*> names;
};

struct executable_record {
    graph_record graph;
    void* origin;
};

inline int graph_create(damacy__graph_handle* out, unsigned flags)
{
    ENTER("graph_create", CONTEXT)
    if (flags)
        return misuse(1, "flags of a graph", called);
    *out = handle();
    m->graphs[*out] = std::make_shared<graph_record>();
    m->counts.live_graphs++;
    return 0;
}

inline int graph_destroy(damacy__graph_handle h)
{
    ENTER("graph_destroy", FREE)
    if (!m->graphs.erase(h))
        return misuse(400, "no such graph", called);
    m->counts.live_graphs--;
    return m->sticky;
}

inline int graph_add(void** out, damacy__graph_handle h, void* const* after, size_t n_after,
                     const damacy__graph_kernel* k)
{
    ENTER("graph_add", CONTEXT)
    auto at = m->graphs.find(h);
    graph_node node;
    if (at == m->graphs.end() || k->other || k->context)
        return misuse(400, "no such graph", called);
    graph_record& g = *at->second;
    for (size_t i = 0; i < n_after; i++) {
        const auto other = std::find(g.names.begin(), g.names.end(), after[i]);
        if (other == g.names.end())
            return misuse(400, "an edge from no node", called);
        node.after.push_back((size_t)(other - g.names.begin()));
    }
    node.function = k->function;
    const int bad = prepare(called, k->function, k->grid, k->block, k->shared, k->parameters,
                            k->extra, &node.op);
    if (bad)
        return bad;
    *out = handle();
    g.names.push_back(*out);
    g.nodes.push_back(std::move(node));
    return 0;
}

inline int graph_attribute(void* name, int attribute, const void* value)
{
    ENTER("graph_attribute", CONTEXT)
    unsigned percent = 0;
    memcpy(&percent, value, sizeof percent);
    for (auto& g : m->graphs)
        for (void* other : g.second->names)
            if (other == name) {
                if (attribute != DAMACY__LAUNCH_DIVISION || percent == 0 || percent > 100)
                    return misuse(1, "attributes of a node", called);
                m->counts.n_divided++;
                return 0;
            }
    return misuse(400, "no such node", called);
}

inline int graph_instantiate(damacy__graph_exec* out, damacy__graph_handle h,
                             unsigned long long flags)
{
    ENTER("graph_instantiate", CONTEXT)
    auto at = m->graphs.find(h);
    if (at == m->graphs.end() || flags)
        return misuse(400, "no such graph", called);
    if (capture_mode_of_thread != DAMACY__CAPTURE_RELAXED)
        return misuse(900, "may harm what other threads capture", called);
    *out = handle();
    m->executables[*out] = std::make_shared<executable_record>();
    m->executables[*out]->graph = *at->second;
    m->executables[*out]->origin = h;
    m->counts.live_graphs++;
    m->counts.n_graphs++;
    return 0;
}

inline int graph_end(damacy__graph_exec h)
{
    ENTER("graph_end", FREE)
    if (!m->executables.erase(h))
        return misuse(400, "no such graph", called);
    m->counts.live_graphs--;
    return m->sticky;
}

inline int graph_update(damacy__graph_exec h, void* name, const damacy__graph_kernel* k)
{
    ENTER("graph_update", CONTEXT)
    auto at = m->executables.find(h);
    if (at == m->executables.end() || !m->graphs.count(at->second->origin))
        return misuse(400, "no such graph, or that it was made of is gone", called);
    graph_record& g = at->second->graph;
    const auto name_at = std::find(g.names.begin(), g.names.end(), name);
    if (name_at == g.names.end())
        return misuse(400, "no such node", called);
    m->counts.n_updates++;
    return prepare(called, k->function, k->grid, k->block, k->shared, k->parameters, k->extra,
                   &g.nodes[(size_t)(name_at - g.names.begin())].op);
}

// All nodes, each when those that it waits for are done.
inline void run_nodes(const std::vector<graph_node>& nodes, uint64_t seed)
{
    std::vector<bool> is_done(nodes.size());
    for (size_t n = 0; n < nodes.size(); n++) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < nodes.size(); i++) {
            bool can = !is_done[i];
            for (size_t k : nodes[i].after)
                can = can && is_done[k];
            if (can)
                ready.push_back(i);
        }
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        const size_t next = ready[(seed >> 33) % ready.size()];
        if (nodes[next].op.run)
            nodes[next].op.run();
        is_done[next] = true;
    }
}

inline int graph_launch(damacy__graph_exec h, damacy__stream to)
{
    ENTER("graph_launch", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(to);
    auto at = m->executables.find(h);
    if (!s || at == m->executables.end())
        return misuse(400, "no such stream or graph", called);
    auto nodes = std::make_shared<std::vector<graph_node>>(at->second->graph.nodes);
    operation op;
    for (graph_node& node : *nodes) {
        const int fault = count_launch(node.function, node.op);
        op.fault = op.fault ? op.fault : fault;
    }
    const uint64_t seed = random_number();
    op.run = [=] { run_nodes(*nodes, seed); };
    if (op.fault) // where it stops does not matter
        op.run = nullptr;
    m->counts.n_graph_launches++;
    enqueue(s, std::move(op));
    return 0;
}

inline int capture_mode(int* mode)
{
    ENTER("capture_mode", PLAIN)
    if (*mode < 0 || *mode > DAMACY__CAPTURE_RELAXED)
        return misuse(1, "no such mode", called);
    std::swap(*mode, capture_mode_of_thread);
    return 0;
}
} // namespace fake
