/* Copies of host memory to the device. The copy engine makes one after another and loses about 2 us
 * with each, so that of less than 1 MiB a kernel does many at once: its lanes read the host's
 * memory over the bus.
 *
 * The surprising rule: never cuMemcpyBatchAsync. With driver 580.159.04 a batch of a few dozen
 * copies may leave some out without a word, and one of hundreds ends in a launch failure. */
#pragma once
#include "gpu/program.h"
#include "kernels/abi.h"

enum { DAMACY__COPY_LARGE = 1 << 20 /* bytes from which on the copy engine is as fast */ };

/* The copies of one round; one thread's. Zeroed: the copy engine makes all. */
typedef struct damacy__copies {
    const damacy__kernel* kernel; /* damacy_gather; NULL: the copy engine makes all */
    damacy__move* moves;          /* the kernel's table, in memory that it reads */
    uint32_t capacity;            /* of the table */
    uint32_t n;
} damacy__copies;

static uint32_t damacy__copies_blocks(const damacy__copies* copies, const damacy__device* device);
static damacy_status damacy__copies_add(damacy__copies* copies, damacy__device* device,
                                        uint64_t dst_dev, const void* src, uint64_t size,
                                        damacy__stream stream, damacy_error* err);
static damacy_status damacy__copies_flush(damacy__copies* copies, damacy__device* device,
                                          damacy__stream stream, damacy_error* err);

/* Blocks of threads that the kernel has, at most; each is on a multiprocessor while the bus is
 * busy. 0: no kernel. */
static uint32_t damacy__copies_blocks(const damacy__copies* copies, const damacy__device* device)
{
    return copies->kernel
               ? DAMACY__MIN((device->n_multiprocessors + 15) / 16, DAMACY__GATHER_BLOCKS)
               : 0;
}

/* Queues a copy of pinned memory or of a mapped file that kernels read, now or with flush; all
 * together follow no order. The bytes stay untouched until the stream has passed. */
static damacy_status damacy__copies_add(damacy__copies* copies, damacy__device* device,
                                        uint64_t dst_dev, const void* src, uint64_t size,
                                        damacy__stream stream, damacy_error* err)
{
    const uint64_t from = (uint64_t)(uintptr_t)src;

    if (!copies->kernel || size >= DAMACY__COPY_LARGE ||
        damacy__div_up(size, DAMACY__GATHER_MAX) > copies->capacity - copies->n) {
        return damacy__copy_to_device(device, dst_dev, src, size, stream, err);
    }
    for (uint64_t at = 0; at < size; at += DAMACY__GATHER_MAX) {
        damacy__move* move = &copies->moves[copies->n++];
        move->src = from + at;
        move->dst = dst_dev + at;
        move->size = DAMACY__MIN(size - at, (uint64_t)DAMACY__GATHER_MAX);
    }
    return DAMACY_OK;
}

/* Queues what was added. The table stays untouched until the stream has passed. */
static damacy_status damacy__copies_flush(damacy__copies* copies, damacy__device* device,
                                          damacy__stream stream, damacy_error* err)
{
    const uint64_t warps = DAMACY__GATHER_THREADS / 32;
    uint64_t moves = (uint64_t)(uintptr_t)copies->moves;
    uint32_t n = copies->n;
    damacy__grid grid;
    void* parameters[2];

    copies->n = 0;
    if (n == 0) {
        return DAMACY_OK;
    }
    grid = damacy__grid_of((uint32_t)DAMACY__MIN(damacy__div_up(n, warps),
                                                 (uint64_t)damacy__copies_blocks(copies, device)),
                           DAMACY__GATHER_THREADS, 0);
    /* all of it shared memory: whatever begins beside the kernel finds room */
    grid.division = damacy__division_for(device, 1, device->shared_per_multiprocessor);
    parameters[0] = &moves;
    parameters[1] = &n;
    return damacy__kernel_launch(copies->kernel, device, &grid, stream, parameters, err);
}
