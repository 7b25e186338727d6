// Calls of the fake driver: copies, streams, events, modules and launches; NVRTC; control by tests.
#pragma once

namespace fake {
inline int copy_to_device(uint64_t dst, const void* src, size_t size, damacy__stream h)
{
    ENTER("copy_to_device", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    if (!is_device_range(dst, size))
        return misuse(1, "destination outside every allocation", called);
    const range* r = find_range(m->registered, src, size);
    operation op;
    if (!r && find_range(m->registered, src, 1))
        return misuse(1, "source beyond what was registered", called);
    if (r && r->is_read_only) {
        op.run = [=] { read_mapping((void*)(uintptr_t)dst, src, size); };
        m->counts.n_mapped++;
    } else if (r || find_range(m->pinned, src, size)) {
        op.run = [=] { memcpy((void*)(uintptr_t)dst, src, size); };
    } else { // pageable memory is read before the call returns
        auto staged =
            std::make_shared<std::vector<char>>((const char*)src, (const char*)src + size);
        op.run = [=] { memcpy((void*)(uintptr_t)dst, staged->data(), size); };
    }
    enqueue(s, std::move(op));
    return 0;
}

inline int copy_to_host(void* dst, uint64_t src, size_t size, damacy__stream h)
{
    ENTER("copy_to_host", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    if (!is_device_range(src, size))
        return misuse(1, "source outside every allocation", called);
    const range* r = find_range(m->registered, dst, size);
    if (r && r->is_read_only)
        return misuse(1, "destination registered for reading", called);
    operation op;
    op.run = [=] { memcpy(dst, (const void*)(uintptr_t)src, size); };
    enqueue(s, std::move(op));
    if (!r && !find_range(m->pinned, dst, size)) // pageable: the call returns when it is done
        wait_until(lock, [&] { return s->is_idle() || m->sticky; });
    return 0;
}

inline int copy_on_device(uint64_t dst, uint64_t src, size_t size, damacy__stream h)
{
    ENTER("copy_on_device", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    if (!is_device_range(src, size) || !is_device_range(dst, size))
        return misuse(1, "range outside every allocation", called);
    operation op;
    op.run = [=] { memmove((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, size); };
    enqueue(s, std::move(op));
    return 0;
}

inline int fill_bytes(uint64_t dst, unsigned char value, size_t count, damacy__stream h)
{
    ENTER("fill_bytes", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    if (!is_device_range(dst, count))
        return misuse(1, "destination outside every allocation", called);
    operation op;
    op.run = [=] { memset((void*)(uintptr_t)dst, value, count); };
    enqueue(s, std::move(op));
    return 0;
}

inline int fill_words(uint64_t dst, unsigned value, size_t count, damacy__stream h)
{
    ENTER("fill_words", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    if (dst % 4 != 0 || !is_device_range(dst, count * 4))
        return misuse(1, "destination outside every allocation", called);
    operation op;
    op.run = [=] { std::fill_n((unsigned*)(uintptr_t)dst, count, value); };
    enqueue(s, std::move(op));
    return 0;
}

inline int stream_create(damacy__stream* out, unsigned flags, int priority)
{
    ENTER("stream_create", CONTEXT)
    if (flags > 1 || priority > 0 || priority < -5)
        return misuse(1, "flags or priority", called);
    *out = handle();
    m->streams[*out] = new_stream(current.back());
    m->counts.live_streams++;
    return 0;
}

inline int stream_destroy(damacy__stream h)
{
    ENTER("stream_destroy", FREE)
    auto at = m->streams.find(h);
    if (at == m->streams.end())
        return misuse(400, "no such stream", called);
    at->second->is_closing = true;
    m->closed.push_back(at->second);
    m->streams.erase(at);
    m->counts.live_streams--;
    m->changed.notify_all();
    return m->sticky;
}

inline int stream_query(damacy__stream h)
{
    ENTER("stream_query", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    if (m->config.is_stepped)
        step(lock);
    return m->sticky ? m->sticky : s->is_idle() ? 0 : 600;
}

inline int stream_synchronize(damacy__stream h)
{
    ENTER("stream_synchronize", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    wait_until(lock, [&] { return s->is_idle() || m->sticky; });
    return m->sticky;
}

inline int stream_wait(damacy__stream h, damacy__event e, unsigned)
{
    ENTER("stream_wait", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    auto at = m->events.find(e);
    if (!s || at == m->events.end())
        return misuse(400, "no such stream or event", called);
    operation op;
    op.wait = at->second->last;
    enqueue(s, std::move(op));
    return 0;
}

inline int stream_context(damacy__stream h, damacy__context* out)
{
    ENTER("stream_context", PLAIN)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    *out = s == m->legacy ? (current.empty() ? nullptr : current.back()) : s->home;
    return *out ? 0 : 201;
}

inline int stream_capturing(damacy__stream h, int* status)
{
    ENTER("stream_capturing", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s)
        return misuse(400, "no such stream", called);
    *status = s == m->capturing;
    return 0;
}

inline int event_create(damacy__event* out, unsigned flags)
{
    ENTER("event_create", CONTEXT)
    *out = handle();
    m->events[*out] = std::make_shared<event>();
    m->events[*out]->home = current.back();
    m->events[*out]->has_time = !(flags & DAMACY__EVENT_DISABLE_TIMING);
    m->counts.live_events++;
    return 0;
}

inline int event_destroy(damacy__event e)
{
    ENTER("event_destroy", FREE)
    if (!m->events.erase(e))
        return misuse(400, "no such event", called);
    m->counts.live_events--;
    return m->sticky;
}

inline int event_record(damacy__event e, damacy__stream h)
{
    ENTER("event_record", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    auto at = m->events.find(e);
    if (!s || at == m->events.end())
        return misuse(400, "no such stream or event", called);
    if ((s == m->legacy ? current.back() : s->home) != at->second->home)
        return misuse(400, "an event of another context than the stream's", called);
    operation op;
    op.record = at->second->last = std::make_shared<mark>();
    at->second->where = h;
    enqueue(s, std::move(op));
    return 0;
}

inline int event_query(damacy__event e)
{
    ENTER("event_query", CONTEXT)
    auto at = m->events.find(e);
    if (at == m->events.end())
        return misuse(400, "no such event", called);
    const std::shared_ptr<event> x = at->second;
    if (m->config.is_stepped)
        step(lock);
    return m->sticky ? m->sticky : x->is_done() ? 0 : 600;
}

inline int event_synchronize(damacy__event e)
{
    ENTER("event_synchronize", CONTEXT)
    auto at = m->events.find(e);
    if (at == m->events.end())
        return misuse(400, "no such event", called);
    const std::shared_ptr<event> x = at->second;
    const std::shared_ptr<mark> last = x->last;
    wait_until(lock, [&] { return !last || last->is_done || m->sticky; });
    return m->sticky;
}

inline int event_elapsed(float* milliseconds, damacy__event a, damacy__event b)
{
    ENTER("event_elapsed", CONTEXT)
    auto x = m->events.find(a), y = m->events.find(b);
    if (x == m->events.end() || y == m->events.end() || !x->second->has_time ||
        !y->second->has_time || !x->second->last || !y->second->last)
        return misuse(400, "no such event, or one without time", called);
    if (!x->second->is_done() || !y->second->is_done())
        return 600;
    *milliseconds =
        std::chrono::duration<float, std::milli>(y->second->last->time - x->second->last->time)
            .count();
    return 0;
}

inline int launch_host(damacy__stream h, void (*f)(void*), void* argument)
{
    ENTER("launch_host", CONTEXT)
    const std::shared_ptr<stream> s = find_stream(h);
    if (!s || !f)
        return misuse(400, "no such stream", called);
    operation op;
    op.run = [=] {
        is_in_host_function = true;
        f(argument);
        is_in_host_function = false;
    };
    enqueue(s, std::move(op));
    return 0;
}

constexpr char IMAGE_MAGIC[] = "FAKE CUBIN\n";

inline int module_load(damacy__module* out, const void* image)
{
    ENTER("module_load", CONTEXT)
    if (strncmp((const char*)image, IMAGE_MAGIC, sizeof IMAGE_MAGIC - 1) != 0)
        return 200;
    wait_until(lock, all_idle); // as the driver does
    *out = handle();
    m->modules[*out] = std::make_shared<module_record>();
    m->counts.live_modules++;
    return 0;
}

inline int module_unload(damacy__module h)
{
    ENTER("module_unload", FREE)
    if (!m->modules.erase(h))
        return misuse(400, "no such module", called);
    wait_until(lock, all_idle);
    m->counts.live_modules--;
    return m->sticky;
}

inline int module_function(damacy__function* out, damacy__module h, const char* name)
{
    ENTER("module_function", CONTEXT)
    if (!m->modules.count(h))
        return misuse(400, "no such module", called);
    auto at = simt::kernels().find(name);
    if (at == simt::kernels().end())
        return 500;
    *out = handle();
    m->functions[*out] = std::make_shared<function_record>();
    m->functions[*out]->kernel = at->second;
    m->functions[*out]->name = name;
    return 0;
}

inline int function_attribute(int* value, int attribute, damacy__function h)
{
    ENTER("function_attribute", CONTEXT)
    auto at = m->functions.find(h);
    if (at == m->functions.end())
        return misuse(400, "no such function", called);
    *value = attribute == DAMACY__FUNCTION_MAX_THREADS          ? 1024
             : attribute == DAMACY__FUNCTION_MAX_DYNAMIC_SHARED ? at->second->max_dynamic_shared
             : attribute == DAMACY__FUNCTION_REGISTERS          ? 32
                                                                : 0;
    return 0;
}

inline int function_set(damacy__function h, int attribute, int value)
{
    ENTER("function_set", CONTEXT)
    auto at = m->functions.find(h);
    if (at == m->functions.end() || attribute != DAMACY__FUNCTION_MAX_DYNAMIC_SHARED)
        return misuse(400, "no such function or attribute", called);
    if (value < 0 || value > 232448)
        return misuse(1, "more shared memory than a block can have", called);
    at->second->max_dynamic_shared = std::max(value, 48 * 1024);
    return 0;
}

inline int function_occupancy(int* blocks, damacy__function h, int threads, size_t)
{
    ENTER("function_occupancy", CONTEXT)
    if (!m->functions.count(h) || threads <= 0)
        return misuse(400, "no such function", called);
    *blocks = threads > 512 ? 1 : 2;
    return 0;
}

// Checks a launch; what it runs.
inline int prepare(const char* called, damacy__function f, const unsigned grid[3],
                   const unsigned block[3], unsigned shared, void** parameters, void** extra,
                   operation* op)
{
    const unsigned gx = grid[0], gy = grid[1], gz = grid[2];
    const unsigned bx = block[0], by = block[1], bz = block[2];
    auto at = m->functions.find(f);
    if (at == m->functions.end() || extra)
        return misuse(400, "no such function", called);
    if (gx == 0 || gy == 0 || gz == 0 || gx > 0x7fffffffu || gy > 65535 || gz > 65535 ||
        (uint64_t)bx * by * bz == 0 || (uint64_t)bx * by * bz > 1024)
        return misuse(1, "dimensions", called);
    if (shared > (unsigned)at->second->max_dynamic_shared)
        return misuse(1, "more dynamic shared memory than allowed", called);
    if (at->second->kernel.n_params > 0 && !parameters)
        return misuse(1, "no parameters", called);
    const std::function<void()> thread =
        at->second->kernel.bind(at->second->kernel.function, parameters);
    const bool gathers = at->second->name == "damacy_gather";
    op->run = [=] {
        if (gathers)
            kernel_reads_mapped(true);
        simt::launch(dim3(gx, gy, gz), dim3(bx, by, bz), shared, thread);
        if (gathers)
            kernel_reads_mapped(false);
    };
    op->n_blocks = gx;
    return 0;
}

// Counts a kernel that is queued; the code that it is to end with.
inline int count_launch(damacy__function f, const operation& op)
{
    const std::string& name = m->functions[f]->name;
    int fault = 0;
    for (failure& x : m->kernel_failures)
        if (x.code && x.nth-- == 0) {
            fault = x.code;
            x.code = 0;
        }
    m->counts.n_launches++;
    m->counts.n_gathers += name == "damacy_gather";
    if (name == "damacy_blosc_parse")
        m->counts.most_parse = std::max<uint64_t>(m->counts.most_parse, op.n_blocks);
    return fault;
}

inline int launch(damacy__function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                  unsigned by, unsigned bz, unsigned shared, damacy__stream h, void** parameters,
                  void** extra)
{
    ENTER("launch", CONTEXT)
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    const std::shared_ptr<stream> s = find_stream(h);
    operation op;
    if (!s)
        return misuse(400, "no such stream", called);
    const int bad = prepare(called, f, grid, block, shared, parameters, extra, &op);
    if (bad)
        return bad;
    op.fault = count_launch(f, op);
    if (op.fault)
        op.run = nullptr;
    enqueue(s, std::move(op));
    return 0;
}

inline int launch_with(const damacy__launch_config* config, damacy__function f, void** parameters,
                       void** extra)
{
    {
        ENTER("launch_with", CONTEXT)
        if (config->n_attributes != 1 || config->attributes->id != DAMACY__LAUNCH_DIVISION ||
            config->attributes->value.percent == 0 || config->attributes->value.percent > 100)
            return misuse(1, "attributes of a launch", called);
        m->counts.n_divided++;
    }
    return launch(f, config->grid[0], config->grid[1], config->grid[2], config->block[0],
                  config->block[1], config->block[2], config->shared, config->stream, parameters,
                  extra);
}

// ---- NVRTC ----

inline int nvrtc_version(int* major, int* minor)
{
    ENTER("nvrtc_version", NVRTC)
    *major = 13;
    *minor = 0;
    return 0;
}

constexpr int ARCHITECTURES[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

inline int nvrtc_count_archs(int* count)
{
    ENTER("nvrtc_count_archs", NVRTC)
    *count = (int)(sizeof ARCHITECTURES / sizeof ARCHITECTURES[0]);
    return 0;
}

inline int nvrtc_archs(int* archs)
{
    ENTER("nvrtc_archs", NVRTC)
    memcpy(archs, ARCHITECTURES, sizeof ARCHITECTURES);
    return 0;
}

inline int nvrtc_create(damacy__compilation* out, const char* text, const char* name, int n,
                        const char* const* headers, const char* const* names)
{
    ENTER("nvrtc_create", NVRTC)
    auto c = std::make_shared<compilation>();
    c->name = name;
    c->text = text;
    for (int i = 0; i < n; i++)
        if (!headers[i] || !names[i])
            return misuse(1, "header without text or name", called);
    *out = handle();
    m->compilations[*out] = c;
    m->counts.live_compilations++;
    return 0;
}

inline std::shared_ptr<compilation> find_compilation(void* h)
{
    auto at = m->compilations.find(h);
    return at == m->compilations.end() ? nullptr : at->second;
}

inline int nvrtc_compile(damacy__compilation h, int n, const char* const* options)
{
    ENTER("nvrtc_compile", NVRTC)
    auto c = find_compilation(h);
    if (!c)
        return misuse(3, "no such program", called);
    m->counts.n_compiled++;
    if (c->text.find("#error") != std::string::npos) {
        c->log = "In file included from x\n" + c->name + "(1): error: #error directive\n1 error\n";
        return 6;
    }
    c->image = IMAGE_MAGIC + c->name + "\n";
    for (int i = 0; i < n; i++)
        c->image += std::string(options[i]) + "\n";
    return 0;
}

inline int nvrtc_log_size(damacy__compilation h, size_t* size)
{
    ENTER("nvrtc_log_size", NVRTC)
    auto c = find_compilation(h);
    if (!c)
        return misuse(3, "no such program", called);
    *size = c->log.size() + 1;
    return 0;
}

inline int nvrtc_log(damacy__compilation h, char* text)
{
    ENTER("nvrtc_log", NVRTC)
    auto c = find_compilation(h);
    if (!c)
        return misuse(3, "no such program", called);
    memcpy(text, c->log.c_str(), c->log.size() + 1);
    return 0;
}

inline int nvrtc_image_size(damacy__compilation h, size_t* size)
{
    ENTER("nvrtc_cubin_size", NVRTC)
    auto c = find_compilation(h);
    if (!c)
        return misuse(3, "no such program", called);
    *size = c->image.size();
    return 0;
}

inline int nvrtc_image(damacy__compilation h, char* image)
{
    ENTER("nvrtc_cubin", NVRTC)
    auto c = find_compilation(h);
    if (!c)
        return misuse(3, "no such program", called);
    memcpy(image, c->image.data(), c->image.size());
    return 0;
}

inline int nvrtc_destroy(damacy__compilation* h)
{
    guard lock(m->mutex);
    if (!m->compilations.erase(*h))
        return misuse(3, "no such program", "nvrtc_destroy");
    m->counts.live_compilations--;
    *h = nullptr;
    return 0;
}
} // namespace fake
