// What the fake driver is made of: contexts, ranges of memory, streams and how they go on.
#pragma once
#include "tests/simt/simt.h"
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <set>
#include <thread>
#include <sys/uio.h>
#include <unistd.h>

namespace fake {
constexpr size_t GUARD = 256;
constexpr unsigned char GUARD_BYTE = 0xa5;

struct context {
    int ordinal = 0;
    int references = 0; // of a primary context
    bool is_primary = false;
};

// One record of an event. A wait holds the record that was the last when it was queued: one that
// comes later, perhaps on another stream, neither delays nor ends it.
struct mark {
    bool is_done = false; // the stream has passed it
    std::chrono::steady_clock::time_point time;
};

struct event {
    std::shared_ptr<mark> last; // NULL: never recorded, which counts as done
    void* where = nullptr;      // the stream that it was recorded on
    bool has_time = false;
    context* home = nullptr;
    bool is_done() const
    {
        return !last || last->is_done;
    }
};

struct operation {
    std::function<void()> run;
    std::shared_ptr<mark> wait, record;
    int fault = 0; // sticky code that the operation ends with
    unsigned n_blocks = 0; // of a kernel, along x
};

struct stream {
    context* home = nullptr;
    std::deque<operation> queue;
    bool is_busy = false;    // its first operation runs
    bool is_closing = false; // destroyed: ends once its queue is empty
    std::thread thread;
    bool is_idle() const
    {
        return queue.empty() && !is_busy;
    }
};

struct range {
    size_t size;
    bool is_read_only;
};

struct module_record {
    std::set<std::string> names;
};

struct function_record {
    simt::kernel kernel;
    std::string name;
    int max_dynamic_shared = 48 * 1024;
};

struct graph_record;
struct executable_record;

struct compilation {
    std::string name, text, options, log, image;
};

struct failure {
    std::string function; // "": any
    uint64_t nth;
    int code;
};

struct machine {
    std::mutex mutex;
    std::condition_variable changed;
    fake_config config;
    fake_counts counts;
    std::list<context> contexts; // the primary ones first
    std::map<uintptr_t, size_t> memory;
    std::vector<uint64_t> used; // bytes by device
    std::map<uintptr_t, int> memory_device;
    std::map<uintptr_t, range> pinned, registered;
    std::map<void*, std::shared_ptr<stream>> streams;
    std::list<std::shared_ptr<stream>> closed;
    std::map<void*, std::shared_ptr<event>> events;
    std::map<void*, std::shared_ptr<module_record>> modules;
    std::map<void*, std::shared_ptr<function_record>> functions;
    std::map<void*, std::shared_ptr<graph_record>> graphs;
    std::map<void*, std::shared_ptr<executable_record>> executables;
    std::map<void*, std::shared_ptr<compilation>> compilations;
    std::vector<failure> failures, kernel_failures;
    std::vector<const char*> calls;
    std::shared_ptr<stream> legacy; // the default stream
    uintptr_t next_handle = 0x1000;
    uint64_t seed = 1;
    uint64_t slow_ns = 0;
    int sticky = 0;
    int losing = 0; // sticky as soon as what runs has ended: nothing reads or writes afterwards
    bool was_told = false; // somebody has got the sticky error
    int n_readers = 0;     // kernels that run and may read mapped files
    bool is_held = false;
    bool is_ending = false;
    std::shared_ptr<stream> capturing; // its operations go into the graph
    std::vector<operation> graph;
};
inline machine* m;
inline thread_local std::vector<context*> current;
inline thread_local bool is_in_host_function;
inline thread_local int capture_mode_of_thread;
inline thread_local bool is_exempt;
inline std::vector<failure> at_open; // failures of the next machine
typedef std::unique_lock<std::mutex> guard;

inline void* handle()
{
    return (void*)(m->next_handle += 16);
}

inline int misuse(int code, const char* what, const char* function)
{
    if (m->counts.misuse++ == 0)
        snprintf(m->counts.first_misuse, sizeof m->counts.first_misuse, "%s: %s", function, what);
    return code;
}

inline bool is_sticky(int code)
{
    return code == 4 || code == 46 || code == 214 || code == 220 || code == 226 || code == 999 ||
           (code >= 700 && code <= 719 && code != 712 && code != 713);
}

inline uint64_t random_number()
{
    m->seed ^= m->seed << 13;
    m->seed ^= m->seed >> 7;
    m->seed ^= m->seed << 17;
    return m->seed * 0x9e3779b97f4a7c15ull >> 16;
}

// ---- streams ----

inline bool can_run(const stream& s)
{
    if (s.queue.empty() || s.is_busy || m->is_held)
        return false;
    const operation& head = s.queue.front();
    return m->sticky || (!m->losing && (!head.wait || head.wait->is_done));
}

inline bool others_run(const stream* self)
{
    for (auto& s : m->streams)
        if (s.second->is_busy && s.second.get() != self)
            return true;
    for (auto& s : m->closed)
        if (s->is_busy && s.get() != self)
            return true;
    return m->legacy->is_busy && m->legacy.get() != self;
}

// The device is lost, by an operation of a stream or by a call (NULL).
inline void lose(guard& lock, int code, const stream* self)
{
    if (!m->losing) {
        m->losing = code;
        while (others_run(self))
            m->changed.wait(lock);
        m->sticky = code;
    }
    while (!m->sticky && !self) // whoever loses it already waits for an operation
        m->changed.wait(lock);
    m->changed.notify_all();
}

// Runs the first operation, without the lock. After a sticky error nothing runs any more.
inline void run_one(guard& lock, const std::shared_ptr<stream>& s)
{
    operation head = std::move(s->queue.front());
    s->queue.pop_front();
    s->is_busy = true;
    if (!m->sticky) {
        const uint64_t pause = m->slow_ns;
        const uint64_t seed = random_number() | 1;
        lock.unlock();
        if (pause)
            std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
        simt::g.seed = seed;
        if (head.run)
            head.run();
        head.run = nullptr;
        lock.lock();
        if (head.fault)
            lose(lock, head.fault, s.get());
    }
    if (head.record) {
        head.record->is_done = true;
        head.record->time = std::chrono::steady_clock::now();
    }
    s->is_busy = false;
    m->changed.notify_all();
}

inline void stream_main(std::shared_ptr<stream> s)
{
    guard lock(m->mutex);
    for (;;) {
        m->changed.wait(lock, [&] { return can_run(*s) || (s->is_closing && s->queue.empty()); });
        if (s->queue.empty())
            return;
        run_one(lock, s);
    }
}

// Stepped: lets a random stream do its next operation; false when none can.
inline bool step(guard& lock)
{
    std::vector<std::shared_ptr<stream>> ready;
    for (auto& s : m->streams)
        if (can_run(*s.second))
            ready.push_back(s.second);
    for (auto& s : m->closed)
        if (can_run(*s))
            ready.push_back(s);
    if (can_run(*m->legacy))
        ready.push_back(m->legacy);
    if (ready.empty())
        return false;
    run_one(lock, ready[random_number() % ready.size()]);
    return true;
}

template <class F> void wait_until(guard& lock, F done)
{
    while (!done()) {
        if (!m->config.is_stepped) {
            m->changed.wait(lock);
        } else if (!step(lock)) {
            bool busy = m->is_held || m->legacy->is_busy;
            for (auto& s : m->streams)
                busy = busy || s.second->is_busy;
            if (!busy) {
                fprintf(stderr, "fake driver: a wait that nothing queued can end\n");
                abort();
            }
            m->changed.wait(lock);
        }
    }
}

inline bool all_idle()
{
    for (auto& s : m->streams)
        if (!s.second->is_idle())
            return false;
    for (auto& s : m->closed)
        if (!s->is_idle())
            return false;
    return m->legacy->is_idle();
}

inline std::shared_ptr<stream> new_stream(context* home)
{
    std::shared_ptr<stream> s = std::make_shared<stream>();
    s->home = home;
    if (!m->config.is_stepped)
        s->thread = std::thread(stream_main, s);
    return s;
}

inline std::shared_ptr<stream> find_stream(void* h)
{
    if ((uintptr_t)h <= 2) // NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
        return m->legacy;
    auto at = m->streams.find(h);
    return at == m->streams.end() ? nullptr : at->second;
}

inline void enqueue(const std::shared_ptr<stream>& s, operation op)
{
    if (s == m->capturing) {
        m->graph.push_back(std::move(op));
        return;
    }
    s->queue.push_back(std::move(op));
    m->changed.notify_all();
}

// ---- entering a call ----

enum kind { PLAIN, CONTEXT, FREE, NVRTC };

// Counts the call; what it must return at once, or 0.
inline int begin(guard& lock, const char* name, kind k)
{
    if (!is_exempt) {
        m->counts.n_calls++;
        m->calls.push_back(name);
    }
    if (is_in_host_function)
        return misuse(800, "called from a host function", name);
    if (m->capturing && k != PLAIN && strcmp(name, "launch") && strcmp(name, "launch_with") &&
        strcmp(name, "stream_capturing"))
        return misuse(900, "not allowed while a stream captures", name);
    for (failure& f : m->failures) {
        if (is_exempt || f.code == 0 || (!f.function.empty() && f.function != name))
            continue;
        if (f.nth-- == 0) {
            const int code = f.code;
            f.code = 0;
            if (is_sticky(code) && k != NVRTC) {
                lose(lock, code, nullptr);
                m->was_told = true;
            }
            return code;
        }
    }
    if (k == NVRTC)
        return 0;
    if (m->sticky && k != PLAIN) {
        if (m->was_told && k != FREE && !is_exempt)
            m->counts.n_after_lost++;
        m->was_told = true;
        return k == FREE ? 0 : m->sticky;
    }
    if (k == CONTEXT && current.empty())
        return misuse(201, "no current context", name);
    if (m->config.is_stepped && k == CONTEXT)
        for (uint64_t n = random_number() % 3; n > 0 && step(lock); n--) {
        }
    return 0;
}

#define ENTER(name, kind)                     \
    guard lock(m->mutex);                     \
    const char* const called = name;          \
    (void)called;                             \
    const int code = begin(lock, name, kind); \
    if (code)                                 \
        return code;

// ---- ranges ----

// The allocation that holds all of [address, address + size), or NULL.
inline bool is_device_range(uint64_t address, size_t size)
{
    auto at = m->memory.upper_bound((uintptr_t)address);
    if (at == m->memory.begin())
        return false;
    --at;
    return address - at->first <= at->second && size <= at->second - (address - at->first);
}

inline const range* find_range(const std::map<uintptr_t, range>& all, const void* ptr, size_t size)
{
    auto at = all.upper_bound((uintptr_t)ptr);
    if (at == all.begin())
        return nullptr;
    --at;
    const size_t offset = (uintptr_t)ptr - at->first;
    return offset <= at->second.size && size <= at->second.size - offset ? &at->second : nullptr;
}

// A copy engine reads the page cache, not the mapping, which the CPU may not read (host_register):
// a truncated file gives zeros, no signal. Returns whether all could be read.
inline bool read_mapping(void* dst, const void* src, size_t size)
{
    const int fd = open("/proc/self/mem", O_RDONLY);
    bool is_whole = true;
    for (size_t done = 0; done < size;) {
        const size_t part = std::min(size - done, (size_t)4096 - ((uintptr_t)src + done) % 4096);
        if (pread(fd, (char*)dst + done, part, (off_t)((uintptr_t)src + done)) != (ssize_t)part) {
            memset((char*)dst + done, 0, part);
            is_whole = false;
        }
        done += part;
    }
    close(fd);
    return is_whole;
}

// Kernels read the mapping itself, so that it can be read while one runs that may. A page that a
// truncated file has lost is one of zeros.
inline void kernel_reads_mapped(bool begins)
{
    guard lock(m->mutex);
    m->n_readers += begins ? 1 : -1;
    for (auto& r : m->registered) {
        if (!r.second.is_read_only || (!begins && m->n_readers))
            continue;
        for (size_t at = 0; begins && at < r.second.size; at += 4096) {
            char byte;
            if (!read_mapping(&byte, (const void*)(r.first + at), 1))
                mmap((void*)(r.first + at), 4096, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        }
        mprotect((void*)r.first, r.second.size, begins ? PROT_READ : PROT_NONE);
    }
}
} // namespace fake
