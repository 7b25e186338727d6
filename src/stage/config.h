/* A configuration to a complete one: defaults filled in, everything checked, nothing allocated.
 *
 * Each message names the field, its value and the remedy. Limits that only a device knows are
 * checked when the device is opened. */
#pragma once
#include "base/error.h"
#include "format/dtype.h"

enum {
    DAMACY__MAX_THREADS = 1024,
    DAMACY__MAX_SLOTS = 64,
    DAMACY__MAX_LOOKAHEAD = 1 << 20,
    DAMACY__MAX_BATCH = 1 << 20
};

static damacy_status damacy__config_fill(const damacy_config* config, damacy_config* out,
                                         damacy_error* err);

/* CPUs that this process may use. */
static uint32_t damacy__cpu_count(void)
{
    cpu_set_t set;
    long n;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return (uint32_t)CPU_COUNT(&set);
    }
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* Bytes of the machine's memory; 4 GiB where it cannot be told. */
static uint64_t damacy__memory_size(void)
{
    const long n = sysconf(_SC_PHYS_PAGES);
    const long size = sysconf(_SC_PAGESIZE);

    return n > 0 && size > 0 ? (uint64_t)n * (uint64_t)size : UINT64_C(4) << 30;
}

static void damacy__config_default(damacy_config* c)
{
    const uint64_t quarter = damacy__memory_size() / 4;
    const uint32_t n_cpus = damacy__cpu_count();

    if (c->samples_per_batch == 0) {
        c->samples_per_batch = 1;
    }
    if (c->lookahead_samples == 0) {
        const uint64_t wanted = DAMACY__MAX(UINT64_C(4) * c->samples_per_batch, 64);
        c->lookahead_samples = (uint32_t)DAMACY__MIN(wanted, (uint64_t)DAMACY__MAX_LOOKAHEAD);
    }
    if (c->batch_slots == 0) {
        c->batch_slots = 3;
    }
    if (c->max_host_bytes == 0) {
        c->max_host_bytes = DAMACY__MIN(quarter, UINT64_C(8) << 30);
    }
    if (c->max_read_bytes == 0) {
        c->max_read_bytes = UINT64_C(4) << 20;
    }
    /* Readers on all CPUs slow down what feeds the GPU: 16 of them on 16 CPUs gave a quarter less
     * than 12. Storage that answers slowly needs some however few CPUs there are. */
    if (c->io_threads == 0) {
        c->io_threads = DAMACY__MIN(DAMACY__MAX(n_cpus / 4 * 3, 8u), 16u);
    }
    if (c->decode_threads == 0) {
        c->decode_threads = DAMACY__MIN(n_cpus, (uint32_t)DAMACY__MAX_THREADS);
    }
}

static damacy_status damacy__config_range(const char* field, uint64_t value, uint64_t low,
                                          uint64_t high, damacy_error* err)
{
    if (value >= low && value <= high) {
        return DAMACY_OK;
    }
    return damacy__fail(err, DAMACY_INVAL,
                        "%s is %" PRIu64 "; it must lie between %" PRIu64 " and %" PRIu64, field,
                        value, low, high);
}

static damacy_status damacy__config_check_sample(const damacy_config* c, damacy_error* err)
{
    uint64_t voxels;

    DAMACY__TRY(damacy__config_range("sample_rank", c->sample_rank, 0, DAMACY_MAX_RANK, err));
    for (uint32_t i = 0; i < c->sample_rank; i++) {
        if (c->sample_shape[i] < 1) {
            return damacy__fail(err, DAMACY_INVAL,
                                "sample_shape[%u] is %" PRId64 "; it must be positive", i,
                                c->sample_shape[i]);
        }
    }
    if (!damacy__product(c->sample_shape, c->sample_rank, &voxels) ||
        !damacy__mul(voxels, 8 * (uint64_t)c->samples_per_batch, &voxels) || voxels > INT64_MAX) {
        return damacy__fail(err, DAMACY_INVAL,
                            "a batch of %u samples of this sample_shape is too large",
                            c->samples_per_batch);
    }
    return DAMACY_OK;
}

static damacy_status damacy__config_check_channels(const damacy_config* c, damacy_error* err)
{
    if (c->n_channels == 0) {
        return DAMACY_OK;
    }
    if (c->dtype != DAMACY_F32 && c->dtype != DAMACY_BF16 && c->dtype != DAMACY_F16 &&
        c->dtype != DAMACY_F64) {
        return damacy__fail(err, DAMACY_INVAL,
                            "n_channels is %u: scale and offset need a float dtype", c->n_channels);
    }
    if (c->n_channels > 1 && c->sample_rank != 0 &&
        (c->channel_axis >= c->sample_rank ||
         c->sample_shape[c->channel_axis] > (int64_t)c->n_channels)) {
        return damacy__fail(
            err, DAMACY_INVAL,
            "channel_axis is %u with n_channels %u: the sample has no such axis, or more "
            "channels than that",
            c->channel_axis, c->n_channels);
    }
    return DAMACY_OK;
}

static damacy_status damacy__config_check_modes(const damacy_config* c, damacy_error* err)
{
    const damacy_latency* latency = &c->debug_latency;

    DAMACY__TRY(damacy__config_range("dtype", (uint64_t)c->dtype, 0, DAMACY_NATIVE, err));
    DAMACY__TRY(damacy__config_range("bounds", (uint64_t)c->bounds, 0, DAMACY_BOUNDS_REFLECT, err));
    DAMACY__TRY(
        damacy__config_range("on_error", (uint64_t)c->on_error, 0, DAMACY_ON_ERROR_SKIP, err));
    DAMACY__TRY(damacy__config_range("numa", (uint64_t)c->numa, 0, DAMACY_NUMA_PIN, err));
    DAMACY__TRY(damacy__config_range("mapping", (uint64_t)c->mapping, 0, DAMACY_MAPPING_OFF, err));
    DAMACY__TRY(damacy__config_range("gds", (uint64_t)c->gds, 0, DAMACY_GDS_OFF, err));
    if (c->device < DAMACY_CPU || c->device > 4096) {
        return damacy__fail(err, DAMACY_INVAL,
                            "device is %d; use DAMACY_AUTO, DAMACY_CPU or DAMACY_GPU(n)",
                            c->device);
    }
    if (c->numa == DAMACY_NUMA_PIN && c->numa_node < 0) {
        return damacy__fail(err, DAMACY_INVAL, "numa_node is %d; DAMACY_NUMA_PIN needs a node",
                            c->numa_node);
    }
    /* All that <math.h> would be read for. */
    if (!(__builtin_isfinite(latency->mu) && __builtin_isfinite(latency->sigma) &&
          latency->sigma >= 0)) {
        return damacy__fail(err, DAMACY_INVAL,
                            "debug_latency: mu and sigma must be finite and sigma not negative");
    }
    if ((c->store.open != NULL) != (c->store.read_at != NULL) ||
        (c->store.open != NULL) != (c->store.close != NULL)) {
        return damacy__fail(err, DAMACY_INVAL,
                            "store: set all of open, read_at and close, or none");
    }
    if ((c->allocator.alloc != NULL) != (c->allocator.free != NULL)) {
        return damacy__fail(err, DAMACY_INVAL, "allocator: set both alloc and free, or none");
    }
    return DAMACY_OK;
}

/* Fills in the defaults and checks; *out is untouched on failure. config NULL: all defaults. */
static damacy_status damacy__config_fill(const damacy_config* config, damacy_config* out,
                                         damacy_error* err)
{
    damacy_config c;

    memset(&c, 0, sizeof c);
    if (config) {
        c = *config;
    }
    damacy__config_default(&c);
    DAMACY__TRY(
        damacy__config_range("samples_per_batch", c.samples_per_batch, 1, DAMACY__MAX_BATCH, err));
    DAMACY__TRY(damacy__config_check_modes(&c, err));
    DAMACY__TRY(damacy__config_check_sample(&c, err));
    DAMACY__TRY(damacy__config_check_channels(&c, err));
    if (c.lookahead_samples < c.samples_per_batch) {
        return damacy__fail(err, DAMACY_INVAL,
                            "lookahead_samples is %u; raise it to samples_per_batch, %u, or more",
                            c.lookahead_samples, c.samples_per_batch);
    }
    DAMACY__TRY(damacy__config_range("lookahead_samples", c.lookahead_samples, 1,
                                     DAMACY__MAX_LOOKAHEAD, err));
    DAMACY__TRY(damacy__config_range("batch_slots", c.batch_slots, 2, DAMACY__MAX_SLOTS, err));
    DAMACY__TRY(damacy__config_range("io_threads", c.io_threads, 1, DAMACY__MAX_THREADS, err));
    DAMACY__TRY(
        damacy__config_range("decode_threads", c.decode_threads, 1, DAMACY__MAX_THREADS, err));
    DAMACY__TRY(
        damacy__config_range("max_read_bytes", c.max_read_bytes, 4096, UINT64_C(1) << 31, err));
    DAMACY__TRY(damacy__config_range("max_host_bytes", c.max_host_bytes, UINT64_C(1) << 20,
                                     UINT64_C(1) << 62, err));
    *out = c;
    return DAMACY_OK;
}
