// The byte shuffle of a blosc block of which a frame is all: from scratch to the output, by the CTA
// that has executed the frame, while others still execute theirs. The surprising rule: it need not
// be done; damacy_blosc_unfilter does it for chunks that are not complete.
#pragma once

#include "kernels/blosc_abi.h"
#include "kernels/shuffle.cuh"
#include "kernels/zstd_common.cuh"

// The whole CTA calls it, after a barrier, of a frame that it has executed. Checks nothing that
// parse has checked.
DAMACY__INLINE void damacy__exec_unfilter(const damacy__zstd_wave& w, uint32_t frame)
{
    const damacy__zstd_frame& from = damacy__zstd_frames(w)[frame];
    const damacy__job& job = damacy__zstd_jobs(w)[from.job];
    damacy__blosc_chunk* const chunk = (damacy__blosc_chunk*)(uintptr_t)w.chunks + job.tag;
    damacy__filtered f;

    if (!(job.flags & DAMACY__JOB_SHUFFLED) || damacy__zstd_spans(w)[from.job].n_frames != 1)
        return;
    f.src = (const uint8_t*)(uintptr_t)job.dst;
    f.dst = (uint8_t*)(uintptr_t)(chunk->dst + (job.dst - chunk->image));
    f.size = from.size;
    f.width = chunk->type_size;
    f.n = f.size / f.width;
    if (damacy__unshuffle_simple(&f) && threadIdx.x == 0)
        (void)damacy__atomic_add(&chunk->n_filtered, 1);
}
