/* Injected delay: a base plus a lognormal part, a pure function of the model and the number of the
 * call, so that a run can be repeated.
 *
 * The normal variate is the sum of twelve uniform ones, which ends at six sigma, and exp is our
 * own: the library must link without libm. */
#pragma once
#include "base/error.h"

static uint64_t damacy__latency_ns(const damacy_latency* model, uint64_t number);

static inline bool damacy__latency_is_set(const damacy_latency* model)
{
    return model->base_ns != 0 || model->mu != 0 || model->sigma != 0;
}

/* A random number in [0, 1) for each pair of seed and counter (splitmix64). */
static double damacy__latency_uniform(uint64_t seed, uint64_t counter)
{
    uint64_t x = seed + counter * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (double)(x >> 11) / 9007199254740992.0;
}

/* e to the x, for x up to 43; the error is below 1e-9 of the value. */
static double damacy__latency_exp(double x)
{
    double sum = 1;
    double term = 1;
    uint32_t n_squares = 0;

    if (x > 43) {
        x = 43; /* 150 years in nanoseconds */
    }
    if (x < -43) {
        return 0;
    }
    while (x > 0.5 || x < -0.5) {
        x /= 2;
        n_squares++;
    }
    for (uint32_t i = 1; i < 16; i++) {
        term *= x / i;
        sum += term;
    }
    while (n_squares-- > 0) {
        sum *= sum;
    }
    return sum;
}

/* The delay of one call, at least base_ns, else at most cap_ns if there is a cap. */
static uint64_t damacy__latency_ns(const damacy_latency* model, uint64_t number)
{
    double normal = -6;
    double extra = 0;
    uint64_t total;

    if (model->mu != 0 || model->sigma != 0) {
        for (uint64_t i = 0; i < 12; i++) {
            normal += damacy__latency_uniform(model->seed, number * 12 + i + 1);
        }
        extra = damacy__latency_exp(model->mu + model->sigma * normal);
    }
    if (!damacy__add(model->base_ns, (uint64_t)extra, &total)) {
        total = UINT64_MAX;
    }
    if (model->cap_ns != 0 && total > model->cap_ns) {
        total = DAMACY__MAX(model->cap_ns, model->base_ns);
    }
    return total;
}
