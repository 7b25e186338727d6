/* Growable arrays that keep their memory: cleared for every batch, grown only when a batch is
 * larger than any before it, so that steady state allocates nothing. */
#pragma once
#include "base/alloc.h"

#define DAMACY__VECTOR(type, name)                                                            \
    typedef struct name {                                                                     \
        type* items;                                                                          \
        uint64_t n;                                                                           \
        uint64_t n_capacity;                                                                  \
    } name;                                                                                   \
    /* Room for n_more further items; false when memory is out, with the vector as it was. */ \
    __attribute__((unused)) static bool name##_reserve(name* vector, damacy__alloc* alloc,    \
                                                       uint64_t n_more)                       \
    {                                                                                         \
        uint64_t n_wanted = vector->n_capacity ? vector->n_capacity : 64;                     \
        type* items;                                                                          \
        while (n_wanted - vector->n < n_more) {                                               \
            n_wanted *= 2;                                                                    \
        }                                                                                     \
        if (n_wanted == vector->n_capacity) {                                                 \
            return true;                                                                      \
        }                                                                                     \
        items = damacy__new(alloc, n_wanted, type);                                           \
        if (!items) {                                                                         \
            return false;                                                                     \
        }                                                                                     \
        if (vector->n) {                                                                      \
            memcpy(items, vector->items, vector->n * sizeof(type));                           \
        }                                                                                     \
        damacy__free(alloc, vector->items, vector->n_capacity);                               \
        vector->items = items;                                                                \
        vector->n_capacity = n_wanted;                                                        \
        return true;                                                                          \
    }                                                                                         \
    /* A zeroed item at the end, or NULL when memory is out. */                               \
    __attribute__((unused)) static type* name##_push(name* vector, damacy__alloc* alloc)      \
    {                                                                                         \
        type* item;                                                                           \
        if (vector->n == vector->n_capacity && !name##_reserve(vector, alloc, 1)) {           \
            return NULL;                                                                      \
        }                                                                                     \
        item = &vector->items[vector->n++];                                                   \
        memset(item, 0, sizeof *item);                                                        \
        return item;                                                                          \
    }                                                                                         \
    static void name##_deinit(name* vector, damacy__alloc* alloc)                             \
    {                                                                                         \
        damacy__free(alloc, vector->items, vector->n_capacity);                               \
        memset(vector, 0, sizeof *vector);                                                    \
    }
