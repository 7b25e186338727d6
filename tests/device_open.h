/* A device that is found and connected at once, for tests that have nothing to do in between. */
#pragma once
#include "gpu/device_open.h"

/* Finds a device and connects. On failure nothing is held. */
static damacy_status damacy__device_open(damacy__device* device, const damacy__driver* driver,
                                         damacy__alloc* alloc, const damacy__device_config* config,
                                         damacy_error* err)
{
    damacy_status status;

    DAMACY__TRY(damacy__device_find(device, driver, alloc, config, err));
    status = damacy__device_connect(device, err);
    if (status != DAMACY_OK) {
        damacy__device_close(device);
    }
    return status;
}
