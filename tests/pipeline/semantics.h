/* What the tests of the contract share: a configuration, a pop whose voxels are checked, a read of
 * one crop, and waiting for another thread by looking.
 *
 * tests/pipeline/SEMANTICS.md lists the statements s01 to s50 and the files of their tests. */
#ifndef DAMACY_TEST_SEMANTICS_H
#define DAMACY_TEST_SEMANTICS_H
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include <math.h>
#include "tests/test.h"
#include "tests/pipeline/scene.h"
#include <unistd.h>

static damacy_config config_of(mem_store* m, uint32_t per_batch)
{
    return scene_config(m, per_batch, DAMACY_ON_ERROR_STOP);
}

/* Whether a held f32 batch has these samples, in order; a chunk that is missing is `fill`. */
__attribute__((unused)) static int batch_is(damacy_batch batch, const mem_array* a,
                                            const damacy_sample* samples, uint32_t n, float fill)
{
    damacy_batch_info_t info;
    size_t voxels = 1;

    if (damacy_batch_info(batch, &info) != DAMACY_OK || info.shape[0] != n) {
        return 0;
    }
    for (uint32_t i = 1; i < info.rank; i++) {
        voxels *= (size_t)info.shape[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!mem_equal_f32(a, &samples[i], (const float*)info.ptr + i * voxels, fill)) {
            return 0;
        }
    }
    return 1;
}

/* Pops, checks, releases; the status of the pop, or -1 for wrong voxels. */
__attribute__((unused)) static damacy_status
pop_is(damacy* d, const mem_array* a, const damacy_sample* samples, uint32_t n, damacy_error* err)
{
    damacy_batch batch;
    const damacy_status status = damacy_pop(d, &batch, err);
    int is_right;

    if (status != DAMACY_OK) {
        return status;
    }
    is_right = batch_is(batch, a, samples, n, 0.0f);
    (void)damacy_release(batch);
    return is_right ? DAMACY_OK : (damacy_status)-1;
}

/* One crop through a pipeline of its own; out may be NULL. The store's handles are closed again. */
__attribute__((unused)) static damacy_status read_one(mem_store* m, const damacy_config* config,
                                                      const damacy_sample* s, void* out,
                                                      size_t size, damacy_error* err)
{
    damacy_batch batch;
    damacy* d = NULL;
    damacy_status status = damacy_create(config, &d, err);

    if (status == DAMACY_OK) {
        status = damacy_push(d, s, 1, NULL, err);
    }
    if (status == DAMACY_OK) {
        status = damacy_pop(d, &batch, err);
        if (status == DAMACY_OK) {
            damacy_batch_info_t info;
            CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
            CHECK(!out || info.size == size);
            if (out) {
                memcpy(out, info.ptr, size);
            }
            CHECK_EQ(damacy_release(batch), DAMACY_OK);
        }
    }
    damacy_destroy(d);
    CHECK_EQ(m->n_open, 0);
    return status;
}

/* Looks until the condition holds; fails the test after some twenty seconds. */
#define WAIT_FOR(condition)                                       \
    do {                                                          \
        int wait_left = 20000;                                    \
        while (!(condition) && wait_left-- > 0) {                 \
            usleep(1000);                                         \
        }                                                         \
        CHECK(wait_left > 0 && "waited in vain for " #condition); \
    } while (0)

#endif
