// What a test does with the fake driver: opens, counts, lets calls fail, holds streams back.
#pragma once

inline void fake_close(void)
{
    if (!fake::m)
        return;
    fake::guard lock(fake::m->mutex);
    fake::m->is_held = false;
    fake::m->changed.notify_all();
    fake::wait_until(lock, fake::all_idle);
    for (auto& x : fake::m->memory)
        fake::check_guards(x.first, x.second);
    for (auto& s : fake::m->streams)
        fake::m->closed.push_back(s.second);
    fake::m->closed.push_back(fake::m->legacy);
    for (auto& s : fake::m->closed)
        s->is_closing = true;
    fake::m->changed.notify_all();
    std::list<std::shared_ptr<fake::stream>> closed = fake::m->closed;
    lock.unlock();
    for (auto& s : closed)
        if (s->thread.joinable())
            s->thread.join();
    lock.lock();
    fake::m->closed.clear();
    fake::m->streams.clear();
    while (!fake::m->memory.empty()) { // leaked: counted before, freed here
        const fake_counts counts = fake::m->counts;
        fake::drop_memory(fake::m->memory.begin()->first);
        fake::m->counts = counts;
    }
    for (auto& r : fake::m->pinned)
        free((void*)r.first);
    fake::m->pinned.clear();
    fake::m->is_ending = true;
}

inline void fake_join(damacy__driver* driver)
{
    memset(driver, 0, sizeof *driver);
#define FAKE_FUNCTION(field, symbol, parameters) driver->field = fake::field;
    DAMACY__CUDA_FUNCTIONS(FAKE_FUNCTION)
    if (!fake::m->config.lacks_new_functions) {
        DAMACY__CUDA_NEW_FUNCTIONS(FAKE_FUNCTION)
    }
    driver->nvrtc_version = fake::nvrtc_version;
    driver->nvrtc_count_archs = fake::nvrtc_count_archs;
    driver->nvrtc_archs = fake::nvrtc_archs;
    driver->nvrtc_create = fake::nvrtc_create;
    driver->nvrtc_compile = fake::nvrtc_compile;
    driver->nvrtc_log_size = fake::nvrtc_log_size;
    driver->nvrtc_log = fake::nvrtc_log;
    driver->nvrtc_cubin_size = fake::nvrtc_image_size;
    driver->nvrtc_cubin = fake::nvrtc_image;
    driver->nvrtc_ptx_size = fake::nvrtc_image_size;
    driver->nvrtc_ptx = fake::nvrtc_image;
    driver->nvrtc_destroy = fake::nvrtc_destroy;
    driver->version = 13000;
    driver->nvrtc_major = fake::m->config.has_no_nvrtc ? 0 : 13;
}

inline void fake_open(damacy__driver* driver, const fake_config* config)
{
    if (fake::m && !fake::m->is_ending)
        fake_close();
    delete fake::m;
    fake::m = new fake::machine;
    fake::m->config = *config;
    if (!fake::m->config.device_bytes)
        fake::m->config.device_bytes = 1ull << 30;
    if (!fake::m->config.n_devices)
        fake::m->config.n_devices = 1;
    if (!fake::m->config.architecture)
        fake::m->config.architecture = 90;
    fake::m->seed = fake::m->config.seed ? fake::m->config.seed : 1;
    memset(&fake::m->counts, 0, sizeof fake::m->counts);
    fake::m->used.resize(fake::m->config.n_devices);
    for (uint32_t i = 0; i < fake::m->config.n_devices; i++) {
        fake::m->contexts.emplace_back();
        fake::m->contexts.back().ordinal = (int)i;
        fake::m->contexts.back().is_primary = true;
    }
    fake::m->legacy = fake::new_stream(nullptr);
    fake::current.clear();
    fake::m->failures.swap(fake::at_open);
    fake::at_open.clear();
    fake_join(driver);
}

inline void fake_count(fake_counts* counts)
{
    fake::guard lock(fake::m->mutex);
    *counts = fake::m->counts;
}

inline void fake_fail(const char* function, uint64_t nth, int code)
{
    fake::guard lock(fake::m->mutex);
    fake::m->failures.push_back(fake::failure{function ? function : "", nth, code});
}

inline void fake_fail_at_open(const char* function, uint64_t nth, int code)
{
    fake::at_open.push_back(fake::failure{function ? function : "", nth, code});
}

inline uint64_t fake_failures_left(void)
{
    fake::guard lock(fake::m->mutex);
    uint64_t n = 0;
    for (const fake::failure& f : fake::m->failures)
        n += f.code != 0;
    return n;
}

inline void fake_exempt(int is_exempt)
{
    fake::is_exempt = is_exempt != 0;
}

inline void fake_fail_kernel(uint64_t nth, int code)
{
    fake::guard lock(fake::m->mutex);
    fake::m->kernel_failures.push_back(fake::failure{"", nth, code});
}

inline void fake_slow(uint64_t ns)
{
    fake::guard lock(fake::m->mutex);
    fake::m->slow_ns = ns;
}

inline void fake_hold(int is_held)
{
    fake::guard lock(fake::m->mutex);
    fake::m->is_held = is_held != 0;
    fake::m->changed.notify_all();
}

// How many streams wait for an event: on a device each holds up others, which share its few queues.
inline int fake_waiting_streams(void)
{
    fake::guard lock(fake::m->mutex);
    int n = 0;
    for (auto& s : fake::m->streams)
        n += !s.second->queue.empty() && s.second->queue.front().wait &&
             !s.second->queue.front().wait->is_done;
    return n;
}

// The stream that an event was recorded on last.
inline void* fake_stream_of(void* event)
{
    fake::guard lock(fake::m->mutex);
    auto at = fake::m->events.find(event);
    return at == fake::m->events.end() ? nullptr : at->second->where;
}

inline damacy__context fake_context(int ordinal)
{
    fake::guard lock(fake::m->mutex);
    fake::m->contexts.emplace_back();
    fake::m->contexts.back().ordinal = ordinal;
    return &fake::m->contexts.back();
}

inline const char* fake_program_path(void)
{
    Dl_info where;
    void* address = NULL;
    int (*function)(int*, int*) = fake::nvrtc_version;
    memcpy(&address, &function, sizeof address);
    return dladdr(address, &where) ? where.dli_fname : "";
}

inline const char* fake_call_name(uint64_t number)
{
    fake::guard lock(fake::m->mutex);
    return number < fake::m->calls.size() ? fake::m->calls[number] : "";
}
