/* Memory that the GPU uses: device memory under a hard budget, pinned host memory, mapped files.
 *
 * Pinned and registered bytes count against the budget of the host allocator. Everything is made
 * when a pipeline is made: pinning costs about 0.4 s per GiB, and freeing device memory waits for
 * the device. */
#pragma once
#include "gpu/device.h"

enum {
    DAMACY__PINNED_NONE = 0,
    DAMACY__PINNED_PAGES =
        1, /* our own pages, huge ones where there are any, registered with the driver */
    DAMACY__PINNED_DRIVER = 2,  /* from cuMemHostAlloc */
    DAMACY__PINNED_PAGEABLE = 3 /* not pinned: copies work but are slower and hold up the host */
};

/* Host memory that the copy engines reach and, unless it is pageable, kernels too where
 * device->can_read_host says so. Zero: none. */
typedef struct damacy__pinned {
    uint8_t* ptr; /* aligned to a page at least */
    uint64_t size;
    uint64_t map_size; /* PAGES: bytes mapped */
    uint32_t kind;
} damacy__pinned;

/* A range of a file whose page cache the copy engine reads, and kernels where
 * device->can_read_host says so: the driver holds the pages, also of a file that is cut short.
 * The CPU must never read through ptr: such a file would end the process. */
typedef struct damacy__mapping {
    const uint8_t* ptr; /* byte `offset` of the file; only an address, for copies to the device */
    uint64_t offset;
    uint64_t size;
    void* map; /* page-aligned start */
    uint64_t map_size;
} damacy__mapping;

static damacy_status damacy__device_alloc(damacy__device* device, uint64_t size, const char* what,
                                          uint64_t* address, damacy_error* err);
static void damacy__device_free(damacy__device* device, uint64_t address, uint64_t size);
static damacy_status damacy__pinned_alloc(damacy__device* device, uint64_t size, const char* what,
                                          damacy__pinned* out, damacy_error* err);
static void damacy__pinned_free(damacy__device* device, damacy__pinned* pinned);
DAMACY__UNUSED static damacy_status damacy__mapping_open(damacy__device* device, int fd, uint64_t offset,
                                          uint64_t size, damacy__mapping* out, damacy_error* err);
DAMACY__UNUSED static void damacy__mapping_close(damacy__device* device, damacy__mapping* mapping);

/* size bytes of device memory, aligned to 256. BUDGET: more than max_gpu_bytes in all; OOM: the GPU
 * has no more. The context is current. */
static damacy_status damacy__device_alloc(damacy__device* device, uint64_t size, const char* what,
                                          uint64_t* address, damacy_error* err)
{
    uint64_t made = 0;
    uint64_t committed;
    int code;

    DAMACY__TRY(damacy__device_alive(device, err));
    if (size == 0 || size > INT64_MAX) {
        return damacy__fail(err, DAMACY_INVAL, "%s: %" PRIu64 " bytes of device memory", what,
                            size);
    }
    committed = __atomic_add_fetch(&device->committed, size, __ATOMIC_RELAXED);
    if (committed > device->budget) {
        __atomic_sub_fetch(&device->committed, size, __ATOMIC_RELAXED);
        return damacy__fail(err, DAMACY_BUDGET,
                            "%s needs %" PRIu64 " bytes of device memory; %" PRIu64
                            " of max_gpu_bytes = %" PRIu64 " are taken",
                            what, size, committed - size, device->budget);
    }
    code = device->driver->memory_alloc(&made, (size_t)size);
    if (code != DAMACY__CUDA_OK) {
        size_t free_size = 0;
        size_t total_size = 0;
        __atomic_sub_fetch(&device->committed, size, __ATOMIC_RELAXED);
        if (code == DAMACY__CUDA_OUT_OF_MEMORY) {
            (void)damacy__device_note(device, device->driver->memory_info(&free_size, &total_size),
                                      "cuMemGetInfo");
            return damacy__fail(err, DAMACY_OOM,
                                "%s needs %" PRIu64
                                " bytes of device memory; %zu of %zu on GPU %d are free",
                                what, size, free_size, total_size, device->ordinal);
        }
        return damacy__device_check(device, code, err, "%s: cuMemAlloc of %" PRIu64 " bytes", what,
                                    size);
    }
    *address = made;
    return DAMACY_OK;
}

/* Waits until the device no longer uses it. 0 is ignored. */
static void damacy__device_free(damacy__device* device, uint64_t address, uint64_t size)
{
    if (address == 0) {
        return;
    }
    if (damacy__device_enter_to_free(device)) {
        (void)damacy__device_note(device, device->driver->memory_free(address), "cuMemFree");
        damacy__device_leave(device);
    }
    __atomic_sub_fetch(&device->committed, size, __ATOMIC_RELAXED);
}

/* Anonymous pages, preferably huge: registering those takes a fraction of the time. */
static void* damacy__pages_map(uint64_t size, uint64_t* map_size)
{
    const uint64_t huge = UINT64_C(2) << 20;
    const uint64_t rounded =
        damacy__align_up(size, size >= huge ? huge : (uint64_t)sysconf(_SC_PAGESIZE));
    const uint64_t reserved = rounded + (size >= huge ? huge : 0);
    uint8_t* map = (uint8_t*)mmap(NULL, (size_t)reserved, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t* begin;

    if (map == (uint8_t*)MAP_FAILED) {
        return NULL;
    }
    /* A child that forks must not turn pages under a copy engine into copies. */
    (void)madvise(map, (size_t)reserved, MADV_DONTFORK);
    *map_size = rounded;
    if (reserved == rounded) {
        return map;
    }
    begin = (uint8_t*)damacy__align_up((uint64_t)(uintptr_t)map, huge);
    if (begin > map) {
        (void)munmap(map, (size_t)(begin - map));
    }
    if (begin + rounded < map + reserved) {
        (void)munmap(begin + rounded, (size_t)(map + reserved - (begin + rounded)));
    }
    (void)madvise(begin, (size_t)rounded, MADV_HUGEPAGE);
    return begin;
}

/* Tries the ways to pin in turn; a refusal of the driver is no error, only a loss of speed. */
static bool damacy__pinned_make(damacy__device* device, uint64_t size, damacy__pinned* out,
                                int* code)
{
    const damacy__driver* driver = device->driver;
    void* ptr = damacy__pages_map(size, &out->map_size);

    *code = DAMACY__CUDA_OUT_OF_MEMORY;
    if (ptr) {
        *code =
            driver->host_register(ptr, (size_t)out->map_size,
                                  DAMACY__HOST_REGISTER_PORTABLE | DAMACY__HOST_REGISTER_MAPPED);
        if (*code == DAMACY__CUDA_OK) {
            out->kind = DAMACY__PINNED_PAGES;
            out->ptr = (uint8_t*)ptr;
            return true;
        }
        (void)munmap(ptr, (size_t)out->map_size);
    }
    out->map_size = 0;
    if (damacy__cuda_is_sticky(*code)) {
        return false;
    }
    ptr = NULL;
    *code = driver->host_alloc(&ptr, (size_t)size,
                               DAMACY__HOST_ALLOC_PORTABLE | DAMACY__HOST_ALLOC_MAPPED);
    if (*code == DAMACY__CUDA_OK) {
        out->kind = DAMACY__PINNED_DRIVER;
        out->ptr = (uint8_t*)ptr;
        return true;
    }
    return false;
}

/* Zeroed host memory for copies. Falls back to pageable memory: out->kind tells. BUDGET, OOM. */
static damacy_status damacy__pinned_alloc(damacy__device* device, uint64_t size, const char* what,
                                          damacy__pinned* out, damacy_error* err)
{
    damacy__pinned made;
    int code = DAMACY__CUDA_OK;

    memset(&made, 0, sizeof made);
    made.size = size;
    DAMACY__TRY(damacy__device_alive(device, err));
    if (size == 0 || size > INT64_MAX / 2) {
        return damacy__fail(err, DAMACY_INVAL, "%s: %" PRIu64 " bytes of pinned memory", what,
                            size);
    }
    if (!damacy__alloc_charge(device->alloc, size)) {
        return damacy__fail(err, DAMACY_BUDGET,
                            "%s needs %" PRIu64 " bytes of max_host_bytes = %" PRIu64, what, size,
                            device->alloc->budget);
    }
    if (!damacy__pinned_make(device, size, &made, &code)) {
        __atomic_sub_fetch(&device->alloc->live_bytes, size, __ATOMIC_RELAXED);
        if (damacy__cuda_is_sticky(code)) {
            return damacy__device_check(device, code, err, "%s: pinning %" PRIu64 " bytes", what,
                                        size);
        }
        made.ptr = damacy__new(device->alloc, size, uint8_t);
        made.kind = DAMACY__PINNED_PAGEABLE;
        if (!made.ptr) {
            return damacy__fail(err, DAMACY_OOM, "%s: no %" PRIu64 " bytes of host memory", what,
                                size);
        }
    } else {
        __atomic_add_fetch(&device->pinned, size, __ATOMIC_RELAXED);
    }
    if (made.kind == DAMACY__PINNED_DRIVER) {
        memset(made.ptr, 0, (size_t)size);
    }
    *out = made;
    return DAMACY_OK;
}

/* Takes registered pages back from the driver and unmaps them. Where it does not give them up (or
 * was stalled, and may still write) they stay mapped: a copy engine must never meet pages that mean
 * something else. */
static void damacy__pages_unmap(damacy__device* device, void* map, uint64_t size)
{
    bool is_released = false;

    if (damacy__device_enter_to_free(device)) {
        is_released = damacy__device_note(device, device->driver->host_unregister(map),
                                          "cuMemHostUnregister");
        damacy__device_leave(device);
    }
    is_released = is_released || damacy__device_state(device) == DAMACY__DEVICE_LOST;
    if (is_released) {
        (void)munmap(map, (size_t)size);
    }
}

/* Copies from or to it have finished. Leaves a zeroed record. */
static void damacy__pinned_free(damacy__device* device, damacy__pinned* pinned)
{
    if (pinned->kind == DAMACY__PINNED_PAGEABLE) {
        damacy__free(device->alloc, pinned->ptr, pinned->size);
    } else if (pinned->kind != DAMACY__PINNED_NONE) {
        if (pinned->kind == DAMACY__PINNED_PAGES) {
            damacy__pages_unmap(device, pinned->ptr, pinned->map_size);
        } else if (damacy__device_enter_to_free(device)) {
            (void)damacy__device_note(device, device->driver->host_free(pinned->ptr),
                                      "cuMemFreeHost");
            damacy__device_leave(device);
        }
        __atomic_sub_fetch(&device->alloc->live_bytes, pinned->size, __ATOMIC_RELAXED);
        __atomic_sub_fetch(&device->pinned, pinned->size, __ATOMIC_RELAXED);
    }
    memset(pinned, 0, sizeof *pinned);
}

/* Makes [offset, offset + size) of an open file readable by the device. MAP_SHARED: a private
 * mapping hung the driver. UNSUPPORTED, BUDGET: read the file instead; nothing is wrong with it. */
static damacy_status damacy__mapping_open(damacy__device* device, int fd, uint64_t offset,
                                          uint64_t size, damacy__mapping* out, damacy_error* err)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t begin = offset & ~(page - 1);
    uint64_t end;
    damacy__mapping made;
    int code;

    memset(&made, 0, sizeof made);
    DAMACY__TRY(damacy__device_alive(device, err));
    if (size == 0 || !damacy__add(offset, size, &end) || end > INT64_MAX - page) {
        return damacy__fail(err, DAMACY_INVAL, "mapping of %" PRIu64 " bytes at %" PRIu64, size,
                            offset);
    }
    if (!device->can_register_files) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "GPU %d cannot read mapped files",
                            device->ordinal);
    }
    made.offset = offset;
    made.size = size;
    made.map_size = damacy__align_up(end, page) - begin;
    if (!damacy__alloc_charge(device->alloc, made.map_size)) {
        return damacy__fail(err, DAMACY_BUDGET,
                            "mapping of %" PRIu64 " bytes exceeds max_host_bytes", made.map_size);
    }
    made.map = mmap(NULL, (size_t)made.map_size, PROT_READ, MAP_SHARED, fd, (off_t)begin);
    if (made.map == MAP_FAILED) {
        __atomic_sub_fetch(&device->alloc->live_bytes, made.map_size, __ATOMIC_RELAXED);
        return damacy__fail(err, DAMACY_UNSUPPORTED, "the file cannot be mapped: %s",
                            strerror(errno));
    }
    code = device->driver->host_register(made.map, (size_t)made.map_size,
                                         DAMACY__HOST_REGISTER_PORTABLE |
                                             DAMACY__HOST_REGISTER_READ_ONLY);
    if (code != DAMACY__CUDA_OK) {
        (void)munmap(made.map, (size_t)made.map_size);
        __atomic_sub_fetch(&device->alloc->live_bytes, made.map_size, __ATOMIC_RELAXED);
        if (damacy__cuda_is_sticky(code)) {
            return damacy__device_check(device, code, err, "registering a mapped file");
        }
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "the driver does not take the mapped file (error %d)", code);
    }
    __atomic_add_fetch(&device->pinned, made.map_size, __ATOMIC_RELAXED);
    made.ptr = (const uint8_t*)made.map + (offset - begin);
    *out = made;
    return DAMACY_OK;
}

/* Copies from it have finished. Leaves a zeroed record. */
static void damacy__mapping_close(damacy__device* device, damacy__mapping* mapping)
{
    if (!mapping->map) {
        return;
    }
    damacy__pages_unmap(device, mapping->map, mapping->map_size);
    __atomic_sub_fetch(&device->alloc->live_bytes, mapping->map_size, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&device->pinned, mapping->map_size, __ATOMIC_RELAXED);
    memset(mapping, 0, sizeof *mapping);
}
