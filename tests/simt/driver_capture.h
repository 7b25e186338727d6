// Stream capture on the fake driver.
#pragma once

inline void fake_capture_begin(damacy__stream h)
{
    fake::guard lock(fake::m->mutex);
    fake::m->graph.clear();
    fake::m->capturing = fake::find_stream(h);
}

inline std::vector<fake::operation> fake_capture_end(void)
{
    fake::guard lock(fake::m->mutex);
    fake::m->capturing = nullptr;
    return std::move(fake::m->graph);
}

inline void fake_replay(const std::vector<fake::operation>& graph, damacy__stream h)
{
    fake::guard lock(fake::m->mutex);
    for (const fake::operation& op : graph)
        fake::enqueue(fake::find_stream(h), op);
}
