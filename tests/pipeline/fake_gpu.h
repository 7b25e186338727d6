// The whole library on the fake driver. Included once, before anything of the library.
#pragma once
#include "tests/simt/simt.h"
#include <assert.h>

// The library holds the kernels' records, too: theirs live in a namespace here.
namespace kernels {
#include "kernels/assemble.cu"
#include "kernels/blosc.cu"
#include "kernels/copy.cu"
#include "kernels/crc32c.cu"
#include "kernels/lz4.cu"
#include "kernels/zstd.cu"
#include "kernels/zstd_filtered.cu"
#include "kernels/zstd_sequences.cu"
} // namespace kernels
#undef DAMACY__INLINE

struct damacy__driver;
struct damacy_error;
static int load_fake(damacy__driver* driver, damacy_error* err);
static int load_fake_nvrtc(damacy__driver* driver, damacy_error* err);
#define DAMACY__DRIVER_LOAD (damacy_status) load_fake
#define DAMACY__NVRTC_LOAD  (damacy_status) load_fake_nvrtc
#define DAMACY_IMPLEMENTATION
#include "damacy.h"

#include "tests/simt/driver.h"
#include "tests/test.h"

static fake_config machine;
static uint32_t n_nvrtc_loads;
static uint32_t n_loads; // of the driver since the scene began: later pipelines share the machine

static int load_fake(damacy__driver* driver, damacy_error*)
{
    if (n_loads++ == 0)
        fake_open(driver, &machine);
    else
        fake_join(driver);
    driver->nvrtc_major = driver->nvrtc_minor = 0;
    return DAMACY_OK;
}

// By one thread at a time, as the library promises.
static int load_fake_nvrtc(damacy__driver* driver, damacy_error* err)
{
    if (driver->nvrtc_major)
        return DAMACY_OK;
    __atomic_add_fetch(&n_nvrtc_loads, 1, __ATOMIC_RELAXED);
    if (machine.has_no_nvrtc)
        return damacy__fail(err, DAMACY_UNSUPPORTED, "no kernel compiler here");
    driver->nvrtc_major = 13;
    return DAMACY_OK;
}

static void enroll_kernels()
{
    using namespace kernels;
#define KERNEL(name) simt::enroll(#name, name)
    KERNEL(damacy_assemble);
    KERNEL(damacy_blosc_begin);
    KERNEL(damacy_blosc_parse);
    KERNEL(damacy_blosc_unfilter);
    KERNEL(damacy_zstd_filtered_256x4);
    KERNEL(damacy_zstd_filtered_128x4_3k);
    KERNEL(damacy_zstd_filtered_128x1);
    KERNEL(damacy_zstd_filtered_128x2_serial);
    KERNEL(damacy_zstd_filtered_64x4_serial);
    KERNEL(damacy_crc32c);
    KERNEL(damacy_lz4);
    KERNEL(damacy_lz4_sparse);
    KERNEL(damacy_lz4_fours);
    KERNEL(damacy_clear_failed);
    KERNEL(damacy_zstd_count);
    KERNEL(damacy_zstd_allocate);
    KERNEL(damacy_zstd_fill);
    KERNEL(damacy_zstd_trees);
    KERNEL(damacy_zstd_order);
    KERNEL(damacy_zstd_resolve);
    KERNEL(damacy_zstd_literals_lanes9);
    KERNEL(damacy_zstd_literals_lanes10);
    KERNEL(damacy_zstd_literals_lanes11);
    KERNEL(damacy_zstd_literals_split32);
    KERNEL(damacy_zstd_literals_split128);
    KERNEL(damacy_zstd_place);
    KERNEL(damacy_zstd_finish);
    KERNEL(damacy_zstd_tables);
    KERNEL(damacy_zstd_fse);
    KERNEL(damacy_zstd_fse_few);
    KERNEL(damacy_zstd_cut);
    KERNEL(damacy_zstd_relay);
    KERNEL(damacy_zstd_relay_wide);
    KERNEL(damacy_zstd_execute_1024x3);
    KERNEL(damacy_zstd_execute_256x4);
    KERNEL(damacy_zstd_execute_128x4);
    KERNEL(damacy_zstd_execute_128x4_3k);
    KERNEL(damacy_zstd_execute_128x2);
    KERNEL(damacy_zstd_link);
    KERNEL(damacy_zstd_jump);
}
