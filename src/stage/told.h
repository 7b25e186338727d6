/* How often an error has come -> whether the logger is told: one that is new, and one that has come
 * 2, 4, 8, ... times, so that a damaged chunk in an endless epoch does not fill a log. Past the
 * first thousand of all kinds only every doubling of their number is told. */
#pragma once
#include "base/error.h"

enum { DAMACY__TOLD_SLOTS = 64, DAMACY__TOLD_FREELY = 1000 };

/* Zeroed: none yet. */
typedef struct damacy__told {
    uint64_t hash[DAMACY__TOLD_SLOTS]; /* of what was wrong where; a newer error takes the place */
    uint64_t n_same[DAMACY__TOLD_SLOTS];
    uint64_t n_all;
} damacy__told;

static bool damacy__is_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* Counts an error. Samples that one chunk fails have the same array, chunk and status. */
static bool damacy__told_count(damacy__told* told, const damacy_error* error, uint64_t* n_same,
                               uint64_t* n_all)
{
    const uint64_t where = damacy__hash(error->uri, strlen(error->uri), (uint64_t)error->status);
    const uint64_t hash = damacy__hash(error->chunk, strlen(error->chunk), where);
    const uint32_t slot = (uint32_t)(hash % DAMACY__TOLD_SLOTS);

    if (told->hash[slot] != hash) {
        told->hash[slot] = hash;
        told->n_same[slot] = 0;
    }
    *n_same = ++told->n_same[slot];
    *n_all = ++told->n_all;
    return damacy__is_power_of_two(*n_same) &&
           (*n_all <= DAMACY__TOLD_FREELY || damacy__is_power_of_two(*n_all));
}
