// The byte shuffle of a block of blosc whose streams are planes: undone by the team that has
// decoded the last of them, while other teams decode theirs. The surprising rule: it need not be;
// damacy_blosc_unfilter does it for chunks of which a stream went another way.
#pragma once

#include "kernels/blosc_planes.cuh"
#include "kernels/lz4_abi.h"

// Counts a plane that is done. True: it was its block's last, and all of them may be read. A whole
// warp calls it, after a barrier behind the team's stores.
DAMACY__INLINE bool damacy__lz4_is_last_plane(damacy__job* job)
{
    uint32_t is_last = 0;
    if (damacy__lane() == 0) {
        const uint32_t flags = job->flags;
        const uint32_t nth = flags >> DAMACY__LZ4_PLANE_NTH & 15;
        damacy__device_fence();
        const uint32_t seen = damacy__atomic_add(&(job - nth)->flags, 1u << DAMACY__LZ4_PLANE_DONE);
        is_last = (seen >> DAMACY__LZ4_PLANE_DONE) + 1 == (flags >> DAMACY__LZ4_PLANE_OF & 15);
        damacy__device_fence();
    }
    return damacy__shfl(is_last, 0) != 0;
}

// Elements of at most as many bytes are unshuffled by teams: of 8 the kernel behind is faster.
#define DAMACY__LZ4_PLANES_MOST 4u

// A job that a whole team has decoded, as the result says. Shared memory at `base` may be used for
// damacy__blosc_addresses and a word.
DAMACY__INLINE void damacy__lz4_plane(const damacy__lz4_wave* wave, uint32_t base, uint32_t index)
{
    damacy__job* const job = (damacy__job*)(uintptr_t)wave->jobs + index;
    if (!(job->flags & DAMACY__LZ4_PLANE))
        return;
    damacy__blosc_chunk* const chunk = (damacy__blosc_chunk*)(uintptr_t)wave->chunks + job->tag;
    const uint32_t width = chunk->type_size;
    const uint32_t each = width == 2 ? 1 : job->flags >> DAMACY__LZ4_PLANE_OF & 15;
    // Where blocks (of 2 bytes: streams) are fewer than multiprocessors, each waits for one team.
    if (width > DAMACY__LZ4_PLANES_MOST ||
        *(const uint32_t*)(uintptr_t)wave->n_jobs < each * wave->n_multiprocessors)
        return;
    const uint32_t block = (uint32_t)((job->dst - chunk->image) / chunk->block_size);
    const uint32_t answer = base + (uint32_t)sizeof(damacy__blosc_addresses);
    damacy__sync_block(); // the team has stored all, and the result
    if (threadIdx.x < 32) {
        const bool is_last = damacy__lz4_is_last_plane(job);
        if (is_last)
            damacy__blosc_find_planes(chunk, block, base);
        if (threadIdx.x == 0)
            damacy__sts32(answer, is_last);
    }
    damacy__sync_block();
    if (!damacy__lds32(answer))
        return;
    const damacy__apart f = damacy__blosc_apart(chunk, block, base);
    damacy__unshuffle_apart<DAMACY__LZ4_PLANES_MOST>(&f, width, 0, f.n);
    if (threadIdx.x == 0)
        (void)damacy__atomic_add(&chunk->n_filtered, 1);
}
