/* Growable arrays that keep their memory: cleared for every batch, grown only when a batch is
 * larger than any before it, so that steady state allocates nothing. */
#pragma once
#include "base/alloc.h"

/* An array with room for n_more items behind its n, of `size` bytes each: itself, or a larger copy
 * in its stead. NULL when memory is out, with the array as it was. */
static void* damacy__vector_grow(damacy__alloc* alloc, void* items, uint64_t n,
                                 uint64_t* n_capacity, uint64_t n_more, size_t size)
{
    uint64_t n_wanted = *n_capacity ? *n_capacity : 64;
    void* more;

    while (n_wanted - n < n_more) {
        n_wanted *= 2;
    }
    if (n_wanted == *n_capacity) {
        return items;
    }
    more = damacy__alloc_take(alloc, n_wanted, size, 64);
    if (!more) {
        return NULL;
    }
    if (n) {
        memcpy(more, items, n * size);
    }
    damacy__alloc_give(alloc, items, *n_capacity * size);
    *n_capacity = n_wanted;
    return more;
}

#define DAMACY__VECTOR(type, name)                                                              \
    typedef struct name {                                                                       \
        type* items;                                                                            \
        uint64_t n;                                                                             \
        uint64_t n_capacity;                                                                    \
    } name;                                                                                     \
    /* Room for n_more further items; false when memory is out, with the vector as it was. */   \
    __attribute__((unused)) static bool name##_reserve(name* vector, damacy__alloc* alloc,      \
                                                       uint64_t n_more)                         \
    {                                                                                           \
        void* items = damacy__vector_grow(alloc, vector->items, vector->n, &vector->n_capacity, \
                                          n_more, sizeof(type));                                \
        if (items) {                                                                            \
            vector->items = (type*)items;                                                       \
        }                                                                                       \
        return items != NULL;                                                                   \
    }                                                                                           \
    /* A zeroed item at the end, or NULL when memory is out. */                                 \
    __attribute__((unused)) static type* name##_push(name* vector, damacy__alloc* alloc)        \
    {                                                                                           \
        type* item;                                                                             \
        if (vector->n == vector->n_capacity && !name##_reserve(vector, alloc, 1)) {             \
            return NULL;                                                                        \
        }                                                                                       \
        item = &vector->items[vector->n++];                                                     \
        memset(item, 0, sizeof *item);                                                          \
        return item;                                                                            \
    }                                                                                           \
    static void name##_deinit(name* vector, damacy__alloc* alloc)                               \
    {                                                                                           \
        damacy__free(alloc, vector->items, vector->n_capacity);                                 \
        memset(vector, 0, sizeof *vector);                                                      \
    }
