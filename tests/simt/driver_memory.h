// Calls of the fake driver: devices, contexts and memory.
#pragma once

namespace fake {

inline int init(unsigned)
{
    ENTER("init", PLAIN)
    return 0;
}

inline int driver_version(int* version)
{
    ENTER("driver_version", PLAIN)
    *version = 13000;
    return 0;
}

inline int error_name(int code, const char** text)
{
    switch (code) {
    case 1:
        *text = "CUDA_ERROR_INVALID_VALUE";
        break;
    case 2:
        *text = "CUDA_ERROR_OUT_OF_MEMORY";
        break;
    case 700:
        *text = "CUDA_ERROR_ILLEGAL_ADDRESS";
        break;
    case 719:
        *text = "CUDA_ERROR_LAUNCH_FAILED";
        break;
    default:
        *text = nullptr;
        return 1;
    }
    return 0;
}

inline int error_string(int code, const char** text)
{
    *text = code == 2 ? "out of memory" : nullptr;
    return code == 2 ? 0 : 1;
}

inline int device_count(int* count)
{
    ENTER("device_count", PLAIN)
    *count = (int)m->config.n_devices;
    return 0;
}

inline int device_get(int* device, int ordinal)
{
    ENTER("device_get", PLAIN)
    *device = ordinal;
    return 0;
}

inline int device_name(char* name, int size, int device)
{
    ENTER("device_name", PLAIN)
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return 0;
}

inline int device_attribute(int* value, int attribute, int)
{
    ENTER("device_attribute", PLAIN)
    switch (attribute) {
    case DAMACY__ATTRIBUTE_SHARED_PER_BLOCK:
        *value = 48 * 1024;
        break;
    case DAMACY__ATTRIBUTE_MULTIPROCESSORS:
        *value = m->config.n_multiprocessors ? (int)m->config.n_multiprocessors : 4;
        break;
    case DAMACY__ATTRIBUTE_L2_BYTES:
        *value = 1 << 20;
        break;
    case DAMACY__ATTRIBUTE_MAJOR:
        *value = (int)m->config.architecture / 10;
        break;
    case DAMACY__ATTRIBUTE_MINOR:
        *value = (int)m->config.architecture % 10;
        break;
    case DAMACY__ATTRIBUTE_SHARED_PER_MULTIPROCESSOR:
        *value = 233472;
        break;
    case DAMACY__ATTRIBUTE_SHARED_PER_BLOCK_OPTIN:
        *value = 232448;
        break;
    case DAMACY__ATTRIBUTE_HOST_REGISTER:
        *value = 1;
        break;
    case DAMACY__ATTRIBUTE_HOST_POINTERS:
        *value = !m->config.cannot_read_host;
        break;
    case DAMACY__ATTRIBUTE_HOST_PAGE_TABLES:
        *value = m->config.has_host_page_tables;
        break;
    case DAMACY__ATTRIBUTE_READ_ONLY_REGISTER:
        *value = !m->config.cannot_register_read_only;
        break;
    default:
        return misuse(1, "attribute", called);
    }
    return 0;
}

inline int device_memory(size_t* size, int)
{
    ENTER("device_memory", PLAIN)
    *size = m->config.device_bytes;
    return 0;
}

inline int device_bus_id(char* text, int size, int device)
{
    ENTER("device_bus_id", PLAIN)
    snprintf(text, (size_t)size, "0000:%02x:00.0", device);
    return 0;
}

inline context* primary(int device)
{
    for (context& c : m->contexts)
        if (c.is_primary && c.ordinal == device)
            return &c;
    return nullptr;
}

inline int primary_retain(damacy__context* out, int device)
{
    ENTER("primary_retain", PLAIN)
    context* c = primary(device);
    if (!c)
        return misuse(101, "no such device", called);
    c->references++;
    m->counts.live_primary++;
    *out = c;
    return 0;
}

inline int primary_state(int device, unsigned* flags, int* active)
{
    ENTER("primary_state", PLAIN)
    context* c = primary(device);
    *flags = 0;
    *active = c && c->references > 0;
    return 0;
}

inline int primary_release(int device)
{
    ENTER("primary_release", FREE)
    context* c = primary(device);
    if (!c || c->references == 0)
        return misuse(201, "released more often than retained", called);
    c->references--;
    m->counts.live_primary--;
    return 0;
}

inline int context_current(damacy__context* out)
{
    ENTER("context_current", PLAIN)
    *out = current.empty() ? nullptr : current.back();
    return 0;
}

inline int context_push(damacy__context c)
{
    ENTER("context_push", PLAIN)
    for (context& x : m->contexts)
        if (&x == c) {
            if (x.is_primary && x.references == 0)
                return misuse(201, "primary context that nobody holds", called);
            current.push_back(&x);
            return 0;
        }
    return misuse(201, "no such context", called);
}

inline int context_pop(damacy__context* out) // never fails on purpose: the stack would be lost
{
    guard lock(m->mutex);
    if (current.empty())
        return misuse(201, "no current context", "context_pop");
    *out = current.back();
    current.pop_back();
    return 0;
}

inline int context_device(int* device)
{
    ENTER("context_device", CONTEXT)
    *device = current.back()->ordinal;
    return 0;
}

inline int context_priorities(int* least, int* greatest)
{
    ENTER("context_priorities", CONTEXT)
    *least = 0;
    *greatest = -5;
    return 0;
}

inline int memory_info(size_t* free_size, size_t* total_size)
{
    ENTER("memory_info", CONTEXT)
    *total_size = m->config.device_bytes;
    *free_size = m->config.device_bytes - m->used[(size_t)current.back()->ordinal];
    return 0;
}

inline int memory_alloc(uint64_t* address, size_t size)
{
    ENTER("memory_alloc", CONTEXT)
    uint64_t& used = m->used[(size_t)current.back()->ordinal];
    if (size == 0)
        return misuse(1, "0 bytes", called);
    if (size > m->config.device_bytes - used)
        return 2;
    void* raw = nullptr;
#if TEST_ASAN
    if (posix_memalign(&raw, 256, size) != 0)
        return 2;
    const uintptr_t at = (uintptr_t)raw;
#else
    if (posix_memalign(&raw, 256, size + 2 * GUARD) != 0)
        return 2;
    const uintptr_t at = (uintptr_t)raw + GUARD;
    memset(raw, GUARD_BYTE, GUARD);
    memset((void*)(at + size), GUARD_BYTE, GUARD);
#endif
    memset((void*)at, 0xcd, std::min(size, (size_t)1 << 20)); // never zero by chance
    m->memory[at] = size;
    m->memory_device[at] = current.back()->ordinal;
    used += size;
    m->counts.live_allocations++;
    m->counts.live_bytes += size;
    m->counts.most_bytes = std::max(m->counts.most_bytes, m->counts.live_bytes);
    *address = at;
    return 0;
}

inline void check_guards(uintptr_t at, size_t size)
{
#if !TEST_ASAN
    for (size_t i = 0; i < GUARD; i++)
        if (((unsigned char*)at)[-1 - (ptrdiff_t)i] != GUARD_BYTE ||
            ((unsigned char*)at)[size + i] != GUARD_BYTE) {
            misuse(0, "bytes beside an allocation were written", "memory_free");
            return;
        }
#else
    (void)at;
    (void)size;
#endif
}

inline void drop_memory(uintptr_t at)
{
    const size_t size = m->memory[at];
    check_guards(at, size);
    m->used[(size_t)m->memory_device[at]] -= size;
    m->counts.live_allocations--;
    m->counts.live_bytes -= size;
    m->memory.erase(at);
    m->memory_device.erase(at);
#if TEST_ASAN
    free((void*)at);
#else
    free((void*)(at - GUARD));
#endif
}

inline int memory_free(uint64_t address)
{
    ENTER("memory_free", FREE)
    if (!m->memory.count((uintptr_t)address))
        return misuse(1, "not an allocation", called);
    wait_until(lock, all_idle); // as the driver does
    drop_memory((uintptr_t)address);
    return m->sticky;
}

inline uint64_t pinned_bytes()
{
    uint64_t sum = 0;
    for (auto& r : m->pinned)
        sum += r.second.size;
    for (auto& r : m->registered)
        sum += r.second.is_read_only ? 0 : r.second.size;
    return sum;
}

inline int host_alloc(void** ptr, size_t size, unsigned)
{
    ENTER("host_alloc", CONTEXT)
    if (m->config.pinned_bytes && pinned_bytes() + size > m->config.pinned_bytes)
        return 2;
    if (size == 0 || posix_memalign(ptr, 4096, size) != 0)
        return 2;
    memset(*ptr, 0xcd, size);
    m->pinned[(uintptr_t)*ptr] = range{size, false};
    m->counts.live_pinned++;
    return 0;
}

inline int host_free(void* ptr)
{
    ENTER("host_free", FREE)
    if (!m->pinned.count((uintptr_t)ptr))
        return misuse(1, "not pinned memory", called);
    wait_until(lock, all_idle);
    m->pinned.erase((uintptr_t)ptr);
    m->counts.live_pinned--;
    free(ptr);
    return m->sticky;
}

inline int host_register(void* ptr, size_t size, unsigned flags)
{
    ENTER("host_register", CONTEXT)
    std::vector<unsigned char> pages((size + 4095) / 4096);
    if (m->config.cannot_register)
        return 801;
    if (size == 0 || (uintptr_t)ptr % 4096 != 0 || mincore(ptr, size, pages.data()) != 0)
        return misuse(1, "not whole mapped pages", called);
    if (!(flags & DAMACY__HOST_REGISTER_READ_ONLY) && m->config.pinned_bytes &&
        pinned_bytes() + size > m->config.pinned_bytes)
        return 2;
    for (auto& r : m->registered)
        if ((uintptr_t)ptr < r.first + r.second.size && r.first < (uintptr_t)ptr + size)
            return misuse(712, "registered twice", called);
    if (flags & DAMACY__HOST_REGISTER_READ_ONLY)
        mprotect(ptr, size, PROT_NONE); // only the device reads mapped files
    m->registered[(uintptr_t)ptr] = range{size, (flags & DAMACY__HOST_REGISTER_READ_ONLY) != 0};
    m->counts.live_registered++;
    return 0;
}

inline int host_unregister(void* ptr)
{
    ENTER("host_unregister", FREE)
    if (!m->registered.count((uintptr_t)ptr))
        return misuse(713, "not registered", called);
    wait_until(lock, all_idle);
    m->registered.erase((uintptr_t)ptr);
    m->counts.live_registered--;
    return m->sticky;
}

inline int pointer_attribute(void* value, int attribute, uint64_t address)
{
    ENTER("pointer_attribute", PLAIN)
    const bool is_device = is_device_range(address, 1);
    if (!is_device && !find_range(m->pinned, (void*)(uintptr_t)address, 1) &&
        !find_range(m->registered, (void*)(uintptr_t)address, 1))
        return 1;
    switch (attribute) {
    case DAMACY__POINTER_MEMORY_TYPE:
        *(unsigned*)value = is_device ? DAMACY__MEMORY_TYPE_DEVICE : DAMACY__MEMORY_TYPE_HOST;
        return 0;
    case DAMACY__POINTER_DEVICE_ORDINAL:
        *(int*)value =
            is_device
                ? m->memory_device[std::prev(m->memory.upper_bound((uintptr_t)address))->first]
                : 0;
        return 0;
    default:
        return 1;
    }
}
} // namespace fake
