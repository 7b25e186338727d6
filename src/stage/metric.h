/* Counters of one stage, added to by any thread without a lock. */
#pragma once
#include "base/base.h"
#include "api.h"

/* All fields atomic. */
typedef struct damacy__metric_clock {
    uint64_t count;
    uint64_t total_ns;
    uint64_t best_ns; /* 0: none yet */
    uint64_t bytes_in;
    uint64_t bytes_out;
} damacy__metric_clock;

static void damacy__metric_add(damacy__metric_clock* clock, uint64_t ns, uint64_t bytes_in,
                               uint64_t bytes_out)
{
    uint64_t best = __atomic_load_n(&clock->best_ns, __ATOMIC_RELAXED);

    ns = ns ? ns : 1;
    __atomic_add_fetch(&clock->count, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&clock->total_ns, ns, __ATOMIC_RELAXED);
    __atomic_add_fetch(&clock->bytes_in, bytes_in, __ATOMIC_RELAXED);
    __atomic_add_fetch(&clock->bytes_out, bytes_out, __ATOMIC_RELAXED);
    while ((best == 0 || ns < best) &&
           !__atomic_compare_exchange_n(&clock->best_ns, &best, ns, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
}

static void damacy__metric_get(const damacy__metric_clock* clock, damacy_metric* out)
{
    out->count = __atomic_load_n(&clock->count, __ATOMIC_RELAXED);
    out->total_ns = __atomic_load_n(&clock->total_ns, __ATOMIC_RELAXED);
    out->best_ns = __atomic_load_n(&clock->best_ns, __ATOMIC_RELAXED);
    out->bytes_in = __atomic_load_n(&clock->bytes_in, __ATOMIC_RELAXED);
    out->bytes_out = __atomic_load_n(&clock->bytes_out, __ATOMIC_RELAXED);
}
