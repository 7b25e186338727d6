// Runs CUDA kernels on the CPU: each thread of a block is a fiber that yields at barriers and warp
// collectives, the blocks of a grid run one after another on the calling host thread, or with
// launch_together by turns.
//
//     #include "tests/simt/simt.h"
//     #include "kernels/zstd.cu"
//     simt::g.seed = 7;                                            // order of warps, lanes, blocks
//     simt::launch(dim3(n), dim3(128), shared_bytes, [&] { damacy_kernel(a, b); });
//
// Found here: a barrier or collective that some thread does not reach (with its line), lanes that
// are at different collectives, most missing barriers (warps run ahead of each other at random, and
// shared memory starts as garbage), and with sanitizers every bad access: shared objects are ringed
// by red zones, fibers are known to ASan and TSan. All state belongs to the host thread, so several
// threads may launch at once. Accesses by address that no barrier orders are found on request, see
// races.h. Not found: other races through the memory model.
#pragma once
#include "tests/sanitizer.h"
#include "tests/simt/races.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#include <sys/mman.h>

#if TEST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if TEST_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT 1
#endif
#ifdef SIMT_UCONTEXT
#include <ucontext.h>
#endif

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

#define SIMT_VECTOR(name, type, bytes2, bytes4)                          \
    struct alignas(bytes2) name##2                                       \
    {                                                                    \
        type x, y;                                                       \
    };                                                                   \
    struct alignas(bytes4) name##4                                       \
    {                                                                    \
        type x, y, z, w;                                                 \
    };                                                                   \
    static inline name##2 make_##name##2(type x, type y)                 \
    {                                                                    \
        return name##2 {x, y};                                           \
    }                                                                    \
    static inline name##4 make_##name##4(type x, type y, type z, type w) \
    {                                                                    \
        return name##4 {x, y, z, w};                                     \
    }
SIMT_VECTOR(char, signed char, 2, 4)
SIMT_VECTOR(uchar, unsigned char, 2, 4)
SIMT_VECTOR(short, short, 4, 8)
SIMT_VECTOR(ushort, unsigned short, 4, 8)
SIMT_VECTOR(int, int, 8, 16)
SIMT_VECTOR(uint, unsigned, 8, 16)
SIMT_VECTOR(longlong, long long, 16, 16)
SIMT_VECTOR(ulonglong, unsigned long long, 16, 16)
SIMT_VECTOR(float, float, 8, 16)
SIMT_VECTOR(double, double, 16, 16)
#undef SIMT_VECTOR

namespace simt {
enum state { READY, BLOCK, NAMED, WARP, DONE };
enum operation { SYNC, SHUFFLE, VOTE, MATCH, REDUCE };

constexpr size_t STACK = 256 * 1024;  // address space; a page is used only once touched
constexpr size_t SHARED_MAX = 232448; // bytes of shared memory of one block, the largest GPU
constexpr size_t ARENA = 1024 * 1024; // shared memory and its red zones
constexpr size_t RED_ZONE = 128;      // bytes between shared objects
constexpr unsigned THREADS_MAX = 1024;

// Where a suspended fiber, or the scheduler, goes on.
struct context {
#ifdef SIMT_UCONTEXT
    ucontext_t uc;
#else
    void* sp = nullptr;
#endif
    void* tsan = nullptr;
    void* fake = nullptr;
    const void* base = nullptr;
    size_t size = 0;
};

struct fiber {
    context ctx;
    char* stack = nullptr; // lowest byte; a guard page lies below
    dim3 tid;
    unsigned linear = 0;
    state st = READY;
    operation op = SYNC; // WARP: what it waits in
    int line = 0;        // where it waits
    const char* file = "";
    uint32_t mask = 0;      // WARP: lanes that must come
    unsigned size = 0;      // WARP: bytes of the value
    unsigned barrier = 0;   // NAMED: id
    unsigned threads = 0;   // NAMED: threads that must come
    uint64_t in = 0;        // what the lane brings to a collective
    uint64_t published = 0; // the same, once the collective is complete
    int predicate = 0;      // BLOCK: what the thread brings
};

struct shared_object {
    const void* type;
    const char* file;
    int line;
    void* ptr;
};

// A block that runs.
struct resident {
    std::vector<fiber> f;
    dim3 bid;
    uint8_t* arena = nullptr;
    uint8_t* dynamic = nullptr;
    size_t used = 0;        // bytes of the arena
    size_t shared_size = 0; // bytes of shared memory of the block, without red zones
    std::vector<shared_object> objects;
    unsigned arrived[16] = {0}; // bar.arrive
    unsigned count = 0;         // result of the last block barrier
    bool all = false;
    bool has_yielded = false; // its warp lets others run
};

// Everything about the launch under way on this host thread, with the block whose turn it is.
struct world : resident {
    context sched;
    std::vector<resident> others; // of launch_together
    fiber* cur = nullptr;
    dim3 bdim, gdim;
    void (*body)(void*) = nullptr;
    void* body_context = nullptr;
    uint64_t seed = 1;     // set it before a launch to choose a schedule; every launch changes it
    uint64_t switches = 0; // of fibers, since the thread started
    size_t dynamic_size = 0;
    races* watch = nullptr; // sees accesses to shared memory by address

    world() = default;
    world(const world&) = delete;
    world& operator=(const world&) = delete;
    ~world();
};
inline thread_local world g;

inline uint64_t random()
{
    g.seed ^= g.seed << 13;
    g.seed ^= g.seed >> 7;
    g.seed ^= g.seed << 17;
    return g.seed * 0x9e3779b97f4a7c15ull >> 16;
}

inline void poison(void* ptr, size_t size)
{
#if TEST_ASAN
    __asan_poison_memory_region(ptr, size);
#endif
    (void)ptr;
    (void)size;
}

inline void unpoison(void* ptr, size_t size)
{
#if TEST_ASAN
    __asan_unpoison_memory_region(ptr, size);
#endif
    (void)ptr;
    (void)size;
}

inline void forget_fibers(resident& r)
{
    (void)r;
#if TEST_TSAN
    for (fiber& x : r.f) {
        if (x.ctx.tsan)
            __tsan_destroy_fiber(x.ctx.tsan);
        x.ctx.tsan = nullptr;
    }
#endif
}

inline void dismiss(resident& r)
{
    forget_fibers(r);
    for (fiber& x : r.f)
        if (x.stack) {
            unpoison(x.stack, STACK);
            munmap(x.stack - 4096, STACK + 4096);
        }
    if (r.arena) {
        unpoison(r.arena, ARENA);
        free(r.arena);
    }
}

inline world::~world()
{
    for (resident& r : others)
        dismiss(r);
    dismiss(*this);
}

// Reports a broken kernel and ends the process: there is no way on from a deadlock.
[[noreturn]] inline void fail(const char* what, const char* file, int line)
{
    fflush(stdout);
    fprintf(stderr, "simt: %s at %s line %d (block %u,%u,%u thread %u)\n", what, file, line,
            g.bid.x, g.bid.y, g.bid.z, g.cur ? g.cur->linear : 0);
    static const char* const names[] = {"ready", "block barrier", "named barrier", "warp", "done"};
    const fiber* before = nullptr;
    for (const fiber& x : g.f) { // one line per run of threads that are in the same place
        if (!x.stack || x.linear >= g.bdim.x * g.bdim.y * g.bdim.z)
            continue;
        if (before && before->st == x.st && before->line == x.line && before->mask == x.mask)
            continue;
        fprintf(stderr, "simt:   from thread %u: %s, %s line %d, mask %08x\n", x.linear,
                names[x.st], x.file, x.line, x.mask);
        before = &x;
    }
    abort();
}

#ifndef SIMT_UCONTEXT
extern "C" void simt_switch(void** save, void* to);
__asm__(".text\n"
        ".weak simt_switch\n"
        ".type simt_switch,@function\n"
        "simt_switch:\n"
        " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
        " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
        ".size simt_switch,.-simt_switch\n");
#endif

inline void jump(context& from, context& to, bool dying = false)
{
    g.switches++;
#if TEST_ASAN
    __sanitizer_start_switch_fiber(dying ? nullptr : &from.fake, to.base, to.size);
#endif
    (void)dying;
#if TEST_TSAN
    if (!from.tsan)
        from.tsan = __tsan_get_current_fiber();
    if (!to.tsan)
        to.tsan = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(to.tsan, 0);
#endif
#ifdef SIMT_UCONTEXT
    swapcontext(&from.uc, &to.uc);
#else
    simt_switch(&from.sp, to.sp);
#endif
#if TEST_ASAN
    __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
}

inline void entry()
{
#if TEST_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &g.sched.base, &g.sched.size);
#endif
    g.body(g.body_context);
    g.cur->st = DONE;
    jump(g.cur->ctx, g.sched, true);
    abort();
}

inline void prepare(fiber& x, unsigned linear)
{
    if (!x.stack) {
        void* map = mmap(nullptr, STACK + 4096, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED || mprotect(map, 4096, PROT_NONE) != 0)
            fail("no memory for a stack", __FILE__, __LINE__);
        x.stack = (char*)map + 4096;
    }
    unpoison(x.stack, STACK); // frames of a finished fiber were never unwound
    x.linear = linear;
    x.tid = dim3(linear % g.bdim.x, linear / g.bdim.x % g.bdim.y, linear / g.bdim.x / g.bdim.y);
    x.st = READY;
    x.line = 0;
    x.file = "";
    x.mask = 0;
    x.ctx.base = x.stack;
    x.ctx.size = STACK;
    x.ctx.fake = nullptr;
#ifdef SIMT_UCONTEXT
    getcontext(&x.ctx.uc);
    x.ctx.uc.uc_stack.ss_sp = x.stack;
    x.ctx.uc.uc_stack.ss_size = STACK;
    x.ctx.uc.uc_link = nullptr;
    makecontext(&x.ctx.uc, entry, 0);
#else
    void** sp = (void**)(x.stack + STACK);
    *--sp = nullptr;
    *--sp = (void*)entry;
    sp -= 6;
    memset(sp, 0, 48);
    x.ctx.sp = sp;
#endif
}

inline void suspend(fiber& x, state s, int line, const char* file)
{
    x.st = s;
    x.line = line;
    x.file = file;
    jump(x.ctx, g.sched);
}

// ---- shared memory ----

inline void* shared_take(size_t size, size_t alignment)
{
    const size_t at = (g.used + alignment - 1) & ~(alignment - 1);
    if (at + size + RED_ZONE > ARENA || g.shared_size + size > SHARED_MAX)
        fail("more shared memory than any GPU has", g.cur ? g.cur->file : "", 0);
    uint8_t* ptr = g.arena + at;
    g.used = at + size + RED_ZONE;
    g.shared_size += size;
    unpoison(ptr, size);
    for (size_t i = 0; i < size; i += 8) { // shared memory starts as garbage
        const uint64_t noise = random();
        memcpy(ptr + i, &noise, size - i < 8 ? size - i : 8);
    }
    return ptr;
}

template <class T> inline char type_tag;

// The block's object that is declared at this place: one per block, whoever asks first makes it.
template <class T> T* shared(int line, const char* file = __builtin_FILE())
{
    static_assert(std::is_trivially_default_constructible<T>::value, "shared memory is raw");
    for (const shared_object& x : g.objects)
        if (x.line == line && x.type == &type_tag<T> && strcmp(x.file, file) == 0)
            return (T*)x.ptr;
    const size_t alignment = alignof(T) > 16 ? alignof(T) : 16;
    g.objects.push_back({&type_tag<T>, file, line, shared_take(sizeof(T), alignment)});
    return (T*)g.objects.back().ptr;
}

// The shared memory whose size the launch gives: the lowest addresses, aligned to 1024.
inline uint8_t* dynamic_shared()
{
    return g.dynamic;
}

inline void shared_begin()
{
    if (!g.arena) {
        void* ptr = nullptr;
        if (posix_memalign(&ptr, 1024, ARENA) != 0)
            fail("no memory", __FILE__, __LINE__);
        g.arena = (uint8_t*)ptr;
    }
    poison(g.arena, ARENA);
    g.used = 0;
    g.shared_size = 0;
    g.objects.clear();
    g.dynamic = (uint8_t*)shared_take(g.dynamic_size, 1024);
}

// ---- scheduler ----

// Lets go the groups of lanes whose collective is complete. Only when no lane of the warp is ready.
inline bool release_warp(unsigned lo, unsigned hi)
{
    bool any = false;
    for (unsigned i = lo; i < hi; i++) {
        const fiber& a = g.f[i];
        if (a.st != WARP)
            continue;
        const uint32_t m = a.mask;
        bool full = true;
        for (unsigned k = lo; k < hi && full; k++) {
            const fiber& b = g.f[k];
            if (m >> (k - lo) & 1)
                full = b.st == WARP && b.mask == m && b.line == a.line && b.op == a.op &&
                       b.size == a.size;
        }
        if (!full)
            continue;
        for (unsigned k = lo; k < hi; k++)
            if (m >> (k - lo) & 1) {
                g.f[k].published = g.f[k].in;
                g.f[k].st = READY;
            }
        any = true;
    }
    return any;
}

// Lets go a named barrier that has its threads. Only when no warp can run.
inline bool release_named(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const fiber& a = g.f[i];
        if (a.st != NAMED)
            continue;
        unsigned waiting = g.arrived[a.barrier];
        for (unsigned k = 0; k < n; k++) {
            if (g.f[k].st != NAMED || g.f[k].barrier != a.barrier)
                continue;
            if (g.f[k].threads != a.threads)
                fail("named barrier with two thread counts", a.file, a.line);
            if (g.f[k].line != g.f[k & ~31u].line || g.f[k & ~31u].st != NAMED)
                fail("named barrier of a divergent warp", a.file, g.f[k].line);
            waiting++;
        }
        if (waiting < a.threads)
            continue;
        if (waiting > a.threads)
            fail("named barrier with more threads than it counts", a.file, a.line);
        const unsigned barrier = a.barrier;
        g.arrived[barrier] = 0;
        for (unsigned k = 0; k < n; k++) {
            if (g.f[k].st != NAMED || g.f[k].barrier != barrier)
                continue;
            g.f[k].st = READY;
            if (g.watch)
                g.watch->leave(k / 32, barrier);
        }
        if (g.watch)
            g.watch->complete(barrier);
        return true;
    }
    return false;
}

// Lets go the block's barrier, or reports the deadlock. Only when nothing else can go on.
inline void release_block(unsigned n)
{
    const fiber* first = nullptr;
    const fiber* exited = nullptr;
    unsigned count = 0;
    for (unsigned i = 0; i < n; i++) {
        const fiber& x = g.f[i];
        if (x.st == DONE) {
            exited = &x;
            continue;
        }
        if (!first)
            first = &x;
        if (x.st != BLOCK || x.line != first->line)
            fail("divergent barrier or collective (deadlock on a GPU)", x.file, x.line);
        count += x.predicate != 0;
    }
    if (exited)
        fail("barrier that an exited thread does not reach (deadlock on a GPU)", first->file,
             first->line);
    if (g.watch)
        g.watch->block();
    g.count = count;
    g.all = count == n;
    for (unsigned i = 0; i < n; i++)
        g.f[i].st = READY;
}

// Runs the ready lanes of a warp once each, from a random lane in a random order.
inline bool step_warp(unsigned lo, unsigned hi)
{
    const uint64_t r = random();
    const unsigned start = (unsigned)r & 31, stride = ((unsigned)(r >> 5) & 31) | 1;
    bool ran = false;
    for (unsigned k = 0; k < 32; k++) {
        const unsigned i = lo + ((start + k * stride) & 31);
        if (i < hi && g.f[i].st == READY) {
            g.cur = &g.f[i];
            jump(g.sched, g.cur->ctx);
            g.cur = nullptr;
            ran = true;
        }
    }
    return ran;
}

// Runs a warp for some rounds, each up to the next collective, or until it yields; false when it
// could not move.
inline bool run_warp(unsigned w, unsigned n, uint64_t rounds)
{
    const unsigned lo = w * 32, hi = lo + 32 < n ? lo + 32 : n;
    bool any = false;
    for (; rounds > 0; rounds--) {
        if (!step_warp(lo, hi) && !release_warp(lo, hi))
            break;
        any = true;
        if (g.has_yielded)
            break;
    }
    g.has_yielded = false;
    return any;
}

inline void begin_block(uint64_t b, unsigned n)
{
    g.bid = dim3((unsigned)(b % g.gdim.x), (unsigned)(b / g.gdim.x % g.gdim.y),
                 (unsigned)(b / g.gdim.x / g.gdim.y));
    if (g.f.size() < n)
        g.f.resize(n);
    shared_begin();
    for (unsigned i = 0; i < 16; i++)
        g.arrived[i] = 0;
    if (g.watch)
        g.watch->begin();
    for (unsigned t = 0; t < n; t++)
        prepare(g.f[t], t);
}

// Lets every warp of the block go on; false when the block is done.
inline bool step_block(unsigned n)
{
    const unsigned n_warps = (n + 31) / 32, start = (unsigned)(random() % n_warps);
    bool any = false, live = false;
    for (unsigned k = 0; k < n_warps; k++) {
        const uint64_t r = random(); // a warp goes as far as it can, or a few rounds, or waits
        any = run_warp((start + k) % n_warps, n, r & 1 ? ~0ull : r >> 1 & 7) || any;
    }
    for (unsigned k = 0; k < n_warps && !any; k++)
        any = run_warp((start + k) % n_warps, n, 1);
    for (unsigned i = 0; i < n && !live; i++)
        live = g.f[i].st != DONE;
    if (live && !any && !release_named(n))
        release_block(n);
    return live;
}

// Runs all blocks, up to n_resident of them at a time: a place that a block leaves is the next
// one's, as on a GPU, and which one goes on is random.
inline void run_blocks(uint64_t n_blocks, unsigned n, unsigned n_resident)
{
    const uint64_t first = random() % n_blocks;
    const bool down = random() & 1;
    std::vector<unsigned> live; // places; place 0 is g itself
    uint64_t next = 0;
    while (g.others.size() + 1 < n_resident)
        g.others.emplace_back();
    const auto enter = [&](unsigned place) {
        if (place > 0)
            std::swap(static_cast<resident&>(g), g.others[place - 1]);
    };
    const auto begin = [&] {
        begin_block((first + (down ? n_blocks - next : next)) % n_blocks, n);
        next++;
    };
    for (unsigned i = 0; i < n_resident && next < n_blocks; i++) {
        enter(i);
        begin();
        enter(i);
        live.push_back(i);
    }
    while (!live.empty()) {
        const size_t k = live.size() == 1 ? 0 : random() % live.size();
        const unsigned place = live[k];
        uint64_t turns = live.size() == 1 ? 1 : 1 + random() % 8;
        bool goes_on = true;
        enter(place);
        while (goes_on && turns-- > 0)
            goes_on = step_block(n);
        if (!goes_on && next < n_blocks) {
            begin();
            goes_on = true;
        }
        enter(place);
        if (!goes_on)
            live.erase(live.begin() + (long)k);
    }
}

template <class F> void call_body(void* f)
{
    (*(F*)f)();
}

// Runs body on every thread of the grid, n_resident blocks at a time. shared_bytes: dynamic shared
// memory of each block.
template <class F>
void launch_together(dim3 grid, dim3 block, size_t shared_bytes, unsigned n_resident, F&& body)
{
    typedef typename std::remove_reference<F>::type function;
    const uint64_t n = (uint64_t)block.x * block.y * block.z;
    const uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z;

    if (g.cur)
        fail("launch inside a kernel", g.cur->file, g.cur->line);
    if (n == 0 || n > THREADS_MAX || n_blocks == 0 || grid.y > 65535 || grid.z > 65535 ||
        block.z > 64)
        fail("bad launch dimensions", __FILE__, __LINE__);
    if (g.seed == 0)
        g.seed = 1;
    g.bdim = block;
    g.gdim = grid;
    g.dynamic_size = shared_bytes;
    g.body = call_body<function>;
    g.body_context = (void*)&body;
    run_blocks(n_blocks, (unsigned)n, n_resident);
    forget_fibers(g);
    for (resident& r : g.others)
        forget_fibers(r);
#if TEST_TSAN
    g.sched.tsan = nullptr;
#endif
    g.body = nullptr;
}

// One block after another.
template <class F> void launch(dim3 grid, dim3 block, size_t shared_bytes, F&& body)
{
    launch_together(grid, block, shared_bytes, 1, body);
}

template <class F> void launch(dim3 grid, dim3 block, F&& body)
{
    launch(grid, block, 0, body);
}

// ---- barriers and collectives ----

inline unsigned lane()
{
    return g.cur->linear % 32;
}

inline unsigned block_barrier(int predicate, int line, const char* file = __builtin_FILE())
{
    g.cur->predicate = predicate;
    suspend(*g.cur, BLOCK, line, file);
    return g.count;
}

// bar.sync id, threads
inline void named_barrier(unsigned id, unsigned threads, int line,
                          const char* file = __builtin_FILE())
{
    if (id > 15 || threads == 0 || threads % 32 != 0 || threads > THREADS_MAX)
        fail("named barrier: id above 15, or threads no multiple of 32", file, line);
    if (g.watch)
        g.watch->arrive(g.cur->linear / 32, id);
    g.cur->barrier = id;
    g.cur->threads = threads;
    suspend(*g.cur, NAMED, line, file);
}

// bar.arrive id, threads
inline void named_arrive(unsigned id, unsigned threads, int line,
                         const char* file = __builtin_FILE())
{
    if (id > 15 || threads == 0 || threads % 32 != 0 || g.arrived[id] >= threads)
        fail("named arrive: bad id or count", file, line);
    if (g.watch)
        g.watch->arrive(g.cur->linear / 32, id);
    g.arrived[id]++;
}

// Where an access to shared memory by address goes.
inline uint8_t* shared_at(uint32_t at, unsigned size, bool writes, bool is_atomic = false)
{
    if (g.watch)
        g.watch->touch(g.cur->linear, at, size, writes, is_atomic);
    return dynamic_shared() + at;
}

// Lets other lanes, warps and blocks run; __nanosleep.
inline void yield(int line, const char* file = __builtin_FILE())
{
    g.has_yielded = true;
    suspend(*g.cur, READY, line, file);
}

inline void meet(operation op, uint32_t mask, uint64_t value, unsigned size, int line,
                 const char* file)
{
    fiber& x = *g.cur;
    if (!(mask >> (x.linear % 32) & 1))
        fail("lane not in its own mask", file, line);
    x.op = op;
    x.mask = mask;
    x.size = size;
    x.in = value;
    suspend(x, WARP, line, file);
}

inline uint64_t published(unsigned of)
{
    const unsigned i = (g.cur->linear & ~31u) + of;
    return i < g.bdim.x * g.bdim.y * g.bdim.z ? g.f[i].published : 0;
}

template <class T> uint64_t pack(T v)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return bits;
}

template <class T> T unpack(uint64_t bits)
{
    T v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

// A lane that is outside the segment, or not in the mask, is undefined as a source: garbage.
template <class T> T take(uint32_t mask, unsigned source)
{
    return unpack<T>(mask >> source & 1 ? published(source) : random());
}

template <class T>
T shfl(uint32_t mask, T v, int line, unsigned source, unsigned width = 32,
       const char* file = __builtin_FILE())
{
    meet(SHUFFLE, mask, pack(v), sizeof v, line, file);
    return take<T>(mask, (lane() & ~(width - 1)) | (source & (width - 1)));
}

template <class T>
T shfl_up(uint32_t mask, T v, int line, unsigned delta, unsigned width = 32,
          const char* file = __builtin_FILE())
{
    meet(SHUFFLE, mask, pack(v), sizeof v, line, file);
    return (lane() & (width - 1)) < delta ? v : take<T>(mask, lane() - delta);
}

template <class T>
T shfl_down(uint32_t mask, T v, int line, unsigned delta, unsigned width = 32,
            const char* file = __builtin_FILE())
{
    meet(SHUFFLE, mask, pack(v), sizeof v, line, file);
    return (lane() & (width - 1)) + delta >= width ? v : take<T>(mask, lane() + delta);
}

template <class T>
T shfl_xor(uint32_t mask, T v, int line, unsigned bits, unsigned width = 32,
           const char* file = __builtin_FILE())
{
    meet(SHUFFLE, mask, pack(v), sizeof v, line, file);
    const unsigned source = lane() ^ bits;
    return source >= ((lane() & ~(width - 1)) + width) ? v : take<T>(mask, source & 31);
}

inline uint32_t ballot(uint32_t mask, int p, int line, const char* file = __builtin_FILE())
{
    meet(VOTE, mask, p != 0, 1, line, file);
    uint32_t r = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1)
            r |= (uint32_t)published(i) << i;
    return r;
}

// Lanes of a partial last warp do not exist: they vote neither way.
inline uint32_t present(uint32_t mask)
{
    const unsigned rest = g.bdim.x * g.bdim.y * g.bdim.z - (g.cur->linear & ~31u);
    return rest >= 32 ? mask : mask & ((1u << rest) - 1);
}

struct place {
    int line;
    const char* file;
    void sync_warp(uint32_t mask = 0xffffffffu) const
    {
        meet(SYNC, mask, 0, 0, line, file);
    }
};

inline place at(int line, const char* file = __builtin_FILE())
{
    return place{line, file};
}

template <class T>
uint32_t match_any(uint32_t mask, T v, int line, const char* file = __builtin_FILE())
{
    meet(MATCH, mask, pack(v), sizeof v, line, file);
    uint32_t r = 0;
    for (unsigned i = 0; i < 32; i++)
        if (present(mask) >> i & 1 && published(i) == pack(v))
            r |= 1u << i;
    return r;
}

template <class T>
uint32_t match_all(uint32_t mask, T v, int* all, int line, const char* file = __builtin_FILE())
{
    const uint32_t same = match_any(mask, v, line, file);
    *all = same == present(mask);
    return *all ? mask : 0;
}

template <class T, class F>
T reduce(uint32_t mask, T v, F f, int line, const char* file = __builtin_FILE())
{
    meet(REDUCE, mask, pack(v), sizeof v, line, file);
    bool first = true;
    T r = v;
    for (unsigned i = 0; i < 32; i++)
        if (present(mask) >> i & 1) {
            r = first ? unpack<T>(published(i)) : (T)f(r, unpack<T>(published(i)));
            first = false;
        }
    return r;
}

#define SIMT_OPERATION(name, expression)                \
    struct name {                                       \
        template <class T> T operator()(T a, T b) const \
        {                                               \
            return (T)(expression);                     \
        }                                               \
    };
SIMT_OPERATION(plus, a + b)
SIMT_OPERATION(least, a < b ? a : b)
SIMT_OPERATION(most, a > b ? a : b)
SIMT_OPERATION(bit_and, a& b)
SIMT_OPERATION(bit_or, a | b)
SIMT_OPERATION(bit_xor, a ^ b)
#undef SIMT_OPERATION

// ---- kernels by name, for the fake driver ----

struct kernel {
    void (*function)() = nullptr;
    // Copies the parameters out of a cuLaunchKernel array; the result runs one thread.
    std::function<void()> (*bind)(void (*)(), void**) = nullptr;
    unsigned n_params = 0;
};

inline std::map<std::string, kernel>& kernels()
{
    static std::map<std::string, kernel> all;
    return all;
}

template <class... A, size_t... I>
std::function<void()> bind(void (*f)(A...), void** params, std::index_sequence<I...>)
{
    (void)params;
    std::tuple<typename std::decay<A>::type...> copy(*(typename std::decay<A>::type*)params[I]...);
    return [f, copy] { std::apply(f, copy); };
}

// Makes a kernel known to the fake driver.
template <class... A> void enroll(const std::string& name, void (*f)(A...))
{
    kernel k;
    k.function = (void (*)())f;
    k.bind = [](void (*function)(), void** params) {
        return simt::bind((void (*)(A...))function, params, std::index_sequence_for<A...>());
    };
    k.n_params = sizeof...(A);
    kernels()[name] = k;
}
} // namespace simt

// ---- the language ----

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__
#define __shared__   static thread_local // prefer simt::shared: it starts as garbage, with red zones
#define __constant__ static const
#define threadIdx    (simt::g.cur->tid)
#define blockIdx     (simt::g.bid)
#define blockDim     (simt::g.bdim)
#define gridDim      (simt::g.gdim)
static constexpr int warpSize = 32;

#define __syncthreads()             ((void)simt::block_barrier(0, __LINE__))
#define __syncthreads_count(p)      ((int)simt::block_barrier((p) != 0, __LINE__))
#define __syncthreads_or(p)         (simt::block_barrier((p) != 0, __LINE__) != 0)
#define __syncthreads_and(p)        ((void)simt::block_barrier((p) != 0, __LINE__), simt::g.all ? 1 : 0)
#define __syncwarp(...)             simt::at(__LINE__).sync_warp(__VA_ARGS__)
#define __shfl_sync(m, v, ...)      simt::shfl((m), (v), __LINE__, __VA_ARGS__)
#define __shfl_up_sync(m, v, ...)   simt::shfl_up((m), (v), __LINE__, __VA_ARGS__)
#define __shfl_down_sync(m, v, ...) simt::shfl_down((m), (v), __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(m, v, ...)  simt::shfl_xor((m), (v), __LINE__, __VA_ARGS__)
#define __ballot_sync(m, p)         simt::ballot((m), (p) != 0, __LINE__)
#define __any_sync(m, p)            (simt::ballot((m), (p) != 0, __LINE__) != 0)
#define __all_sync(m, p)            (simt::ballot((m), (p) == 0, __LINE__) == 0)
#define __match_any_sync(m, v)      simt::match_any((m), (v), __LINE__)
#define __match_all_sync(m, v, p)   simt::match_all((m), (v), (p), __LINE__)
#define __reduce_add_sync(m, v)     simt::reduce((m), (v), simt::plus(), __LINE__)
#define __reduce_min_sync(m, v)     simt::reduce((m), (v), simt::least(), __LINE__)
#define __reduce_max_sync(m, v)     simt::reduce((m), (v), simt::most(), __LINE__)
#define __reduce_and_sync(m, v)     simt::reduce((m), (v), simt::bit_and(), __LINE__)
#define __reduce_or_sync(m, v)      simt::reduce((m), (v), simt::bit_or(), __LINE__)
#define __reduce_xor_sync(m, v)     simt::reduce((m), (v), simt::bit_xor(), __LINE__)
#define __activemask()              (1u << simt::lane()) // all that is promised: the lane itself
#define __nanosleep(ns)             simt::yield(__LINE__)
#define __trap()                    simt::fail("__trap", __FILE__, __LINE__)

#include "tests/simt/intrinsics.h"
