// Blocks of blosc of which each stream is a plane, byte b of every element, and those that are
// stored stay in the source: where a block's planes are.
#pragma once

#include "kernels/blosc_abi.h"
#include "kernels/shuffle.cuh"

// Where the planes of a block are, as shared memory has it.
typedef struct damacy__blosc_addresses {
    uint64_t of[8];
} damacy__blosc_addresses;

// Where plane i of a whole block is: in the source if it is stored there, else in the image. What
// parse has accepted is not checked again, but nothing outside the source is read whatever it says.
DAMACY__INLINE const uint8_t* damacy__blosc_plane(const damacy__blosc_chunk* chunk, uint32_t block,
                                                  uint32_t i)
{
    const uint8_t* const src = (const uint8_t*)(uintptr_t)chunk->src;
    const uint32_t n = chunk->block_size / chunk->type_size, last = chunk->src_size - 4;
    uint32_t at = damacy__min(damacy__load_u32(src + DAMACY__BLOSC_START + 4 * block), last);
    uint32_t packed = damacy__load_u32(src + at);
    for (uint32_t k = 0; k < i; k++) {
        at = packed < last - at ? damacy__min(at + 4 + packed, last) : last;
        packed = damacy__load_u32(src + at);
    }
    return packed == n && n <= last - at
               ? src + at + 4
               : (const uint8_t*)(uintptr_t)chunk->image + (uint64_t)block * chunk->block_size +
                     (uint64_t)i * n;
}

// Writes damacy__blosc_addresses of a block to shared memory at `planes`. The first threads; a
// barrier follows.
DAMACY__INLINE void damacy__blosc_find_planes(const damacy__blosc_chunk* chunk, uint32_t block,
                                              uint32_t planes)
{
    if (threadIdx.x < chunk->type_size) {
        const uint64_t at = (uint64_t)(uintptr_t)damacy__blosc_plane(chunk, block, threadIdx.x);
        damacy__sts64(planes + 8 * threadIdx.x, (uint32_t)at, (uint32_t)(at >> 32));
    }
}

// The whole block, to the output, whose planes are where `planes` says.
DAMACY__INLINE damacy__apart damacy__blosc_apart(const damacy__blosc_chunk* chunk, uint32_t block,
                                                 uint32_t planes)
{
    damacy__apart f;
    f.planes = planes;
    f.dst = (uint8_t*)(uintptr_t)chunk->dst + (uint64_t)block * chunk->block_size;
    f.n = chunk->block_size / chunk->type_size;
    return f;
}
