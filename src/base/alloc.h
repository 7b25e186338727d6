/* Host memory: typed, counted allocation through the user's allocator, under a byte budget.
 *
 * Every block is zeroed. damacy__new returns NULL when the product overflows, the budget is reached
 * or the allocator fails; the caller turns that into DAMACY_OOM or DAMACY_BUDGET with a message.
 * Free takes the count, so that the live bytes are exact without a header in front of the block. */
#pragma once
#include "base/error.h"

typedef struct damacy__alloc {
    damacy_allocator user; /* alloc == NULL: malloc and free */
    uint64_t budget;       /* bytes; 0 = none; set at create, then constant */
    uint64_t live_bytes;   /* atomic */
    uint64_t live_blocks;  /* atomic */
    uint64_t n_calls;      /* atomic: allocations asked for; steady state leaves it unchanged */
    uint64_t n_refused;    /* atomic: of these, how many the budget refused */
} damacy__alloc;

#define damacy__new(alloc, n, type) \
    ((type*)damacy__alloc_take(alloc, (uint64_t)(n), sizeof(type), 64))
#define damacy__free(alloc, ptr, n) damacy__alloc_give(alloc, ptr, (uint64_t)(n) * sizeof *(ptr))

static void* damacy__alloc_take(damacy__alloc* alloc, uint64_t n, uint64_t size,
                                uint64_t alignment);
static void damacy__alloc_give(damacy__alloc* alloc, void* ptr, uint64_t size);
static char* damacy__alloc_text(damacy__alloc* alloc, const char* text, size_t len);
static damacy_status damacy__alloc_explain(const damacy__alloc* alloc, damacy_error* err);

/* Takes size bytes off the budget; false when it is reached. */
static bool damacy__alloc_charge(damacy__alloc* alloc, uint64_t size)
{
    const uint64_t live = __atomic_add_fetch(&alloc->live_bytes, size, __ATOMIC_RELAXED);

    if (alloc->budget != 0 && live > alloc->budget) {
        __atomic_sub_fetch(&alloc->live_bytes, size, __ATOMIC_RELAXED);
        __atomic_add_fetch(&alloc->n_refused, 1, __ATOMIC_RELAXED);
        return false;
    }
    return true;
}

/* n * size zeroed bytes; a count of 0 still gives a block. Alignment: a power of two, at most 4096.
 */
static void* damacy__alloc_take(damacy__alloc* alloc, uint64_t n, uint64_t size, uint64_t alignment)
{
    uint64_t bytes;
    void* ptr = NULL;

    __atomic_add_fetch(&alloc->n_calls, 1, __ATOMIC_RELAXED);
    if (!damacy__mul(n, size, &bytes) || bytes > INT64_MAX - 4096) {
        return NULL;
    }
    if (!damacy__alloc_charge(alloc, bytes)) {
        return NULL;
    }
    if (alloc->user.alloc) {
        ptr = alloc->user.alloc(alloc->user.user, (size_t)(bytes ? bytes : 1), (size_t)alignment);
        if (ptr) {
            memset(ptr, 0, (size_t)bytes);
        }
    } else if (bytes >= 65536) {
        /* calloc gives untouched pages of zeros: a large block costs memory only once it is used.
         */
        void* raw = calloc(1, (size_t)(bytes + alignment + sizeof(void*)));
        if (raw) {
            const uintptr_t at = (uintptr_t)raw + sizeof(void*) + alignment - 1;
            ptr = (void*)(at & ~(uintptr_t)(alignment - 1));
            ((void**)ptr)[-1] = raw;
        }
    } else if (posix_memalign(&ptr, (size_t)alignment, (size_t)(bytes ? bytes : 1)) != 0) {
        ptr = NULL;
    } else {
        memset(ptr, 0, (size_t)bytes);
    }
    if (!ptr) {
        __atomic_sub_fetch(&alloc->live_bytes, bytes, __ATOMIC_RELAXED);
        return NULL;
    }
    __atomic_add_fetch(&alloc->live_blocks, 1, __ATOMIC_RELAXED);
    return ptr;
}

/* Returns a block of size bytes; NULL is ignored. */
static void damacy__alloc_give(damacy__alloc* alloc, void* ptr, uint64_t size)
{
    if (!ptr) {
        return;
    }
    __atomic_sub_fetch(&alloc->live_bytes, size, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&alloc->live_blocks, 1, __ATOMIC_RELAXED);
    if (alloc->user.alloc) {
        alloc->user.free(alloc->user.user, ptr, (size_t)(size ? size : 1));
    } else if (size >= 65536) {
        free(((void**)ptr)[-1]);
    } else {
        free(ptr);
    }
}

/* A copy of len bytes of text with a final zero; free with damacy__free(alloc, text, len + 1). */
static char* damacy__alloc_text(damacy__alloc* alloc, const char* text, size_t len)
{
    char* copy = damacy__new(alloc, len + 1, char);

    if (copy && len) {
        memcpy(copy, text, len);
    }
    return copy;
}

/* Out of memory where the budget has refused something is DAMACY_BUDGET, with the sum; returns
 * err->status. */
static damacy_status damacy__alloc_explain(const damacy__alloc* alloc, damacy_error* err)
{
    char cause[sizeof err->message];

    if (err->status == DAMACY_OOM && __atomic_load_n(&alloc->n_refused, __ATOMIC_RELAXED) > 0) {
        memcpy(cause, err->message, sizeof cause);
        (void)damacy__fail(err, DAMACY_BUDGET,
                           "%.240s: does not fit beside the %" PRIu64
                           " bytes that are in use of max_host_bytes %" PRIu64,
                           cause, __atomic_load_n(&alloc->live_bytes, __ATOMIC_RELAXED),
                           alloc->budget);
    }
    return err->status;
}
