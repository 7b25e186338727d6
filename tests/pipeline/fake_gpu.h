// The whole library on the fake driver. Included once, before anything of the library.
#pragma once
#include "tests/simt/kernels.h"
#include "tests/simt/simt.h"
#include <assert.h>

struct damacy__driver;
struct damacy_error;
static int load_fake(damacy__driver* driver, damacy_error* err);
static int load_fake_nvrtc(damacy__driver* driver, damacy_error* err);
#define DAMACY__DRIVER_LOAD (damacy_status) load_fake
#define DAMACY__NVRTC_LOAD  (damacy_status) load_fake_nvrtc
#define DAMACY_IMPLEMENTATION
#include "damacy.h"

#include "tests/simt/counts.h"

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
