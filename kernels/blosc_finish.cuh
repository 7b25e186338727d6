// Blosc chunks whose streams have been decoded: what became of them, and the filters that are left
// to undo.
#pragma once

#include "kernels/bits.cuh"
#include "kernels/blosc_planes.cuh"

#define DAMACY__BLOSC_NO_ERROR 0xffffffffffffffffull

// The minimum over a warp.
DAMACY__INLINE uint64_t damacy__blosc_least(uint64_t v)
{
    for (uint32_t d = 16; d != 0; d /= 2) {
        const uint64_t other = damacy__shfl_xor(v, d);
        v = other < v ? other : v;
    }
    return v;
}

// The table that the jobs of a container are in, and the one of their results.
DAMACY__INLINE damacy__job* damacy__blosc_jobs(const damacy__blosc_wave* wave, uint32_t codec)
{
    return (damacy__job*)(uintptr_t)(codec == DAMACY__BLOSC_JOBS_ZSTD ? wave->zstd_jobs
                                                                      : wave->lz4_jobs);
}
DAMACY__INLINE const damacy__job_result* damacy__blosc_results(const damacy__blosc_wave* wave,
                                                               uint32_t codec)
{
    return (const damacy__job_result*)(uintptr_t)(codec == DAMACY__BLOSC_JOBS_ZSTD
                                                      ? wave->zstd_results
                                                      : wave->lz4_results);
}

// The status of a chunk, from those of its streams; *first: the first of these that failed, or
// NO_ERROR. One whole warp calls it.
DAMACY__INLINE uint32_t damacy__blosc_status(const damacy__blosc_wave* wave,
                                             const damacy__blosc_chunk* chunk, uint64_t* first)
{
    const damacy__job_result* const results =
        damacy__blosc_results(wave, chunk->codec) + chunk->first_job;
    uint64_t failed = DAMACY__BLOSC_NO_ERROR;
    for (uint32_t i = damacy__lane(); i < chunk->n_jobs; i += 32)
        if (results[i].status != DAMACY__JOB_OK && i < failed)
            failed = i;
    *first = damacy__blosc_least(failed);
    return *first == DAMACY__BLOSC_NO_ERROR ? chunk->status : results[*first].status;
}

// Writes the result of a chunk. One whole warp calls it.
DAMACY__INLINE void damacy__blosc_finish(const damacy__blosc_wave* wave, uint32_t index)
{
    const damacy__blosc_chunk* const chunk =
        (const damacy__blosc_chunk*)(uintptr_t)wave->chunks + index;
    uint64_t first, at = chunk->error_offset;
    const uint32_t status = damacy__blosc_status(wave, chunk, &first);
    if (damacy__lane() != 0)
        return;
    if (first != DAMACY__BLOSC_NO_ERROR) {
        const uint64_t job = chunk->first_job + first;
        const damacy__job* const source = (const damacy__job*)(uintptr_t)wave->jobs + index;
        at = damacy__blosc_jobs(wave, chunk->codec)[job].src - source->src +
             damacy__blosc_results(wave, chunk->codec)[job].error_offset;
    }
    damacy__job_result* const result = (damacy__job_result*)(uintptr_t)wave->results + index;
    result->size = status == DAMACY__JOB_OK || status == DAMACY__JOB_NO_SPACE ? chunk->size : 0;
    result->error_offset = at;
    result->zero = 0;
    result->status = status;
}

// How many blocks of a chunk, the first ones, have been unshuffled already: all, all but a last one
// that is not whole, or none.
DAMACY__INLINE uint32_t damacy__blosc_done(const damacy__blosc_chunk* chunk, uint32_t n_blocks)
{
    if (chunk->n_filtered == n_blocks)
        return n_blocks;
    const uint32_t n_whole = chunk->size / chunk->block_size;
    return chunk->filter == DAMACY__BLOSC_FILTER_PLANES && chunk->n_filtered == n_whole ? n_whole
                                                                                        : 0;
}

// Elements [begin, begin + piece) of block `b`. `planes`: shared memory for addresses.
DAMACY__INLINE void damacy__blosc_unfilter_piece(const damacy__blosc_chunk* chunk, uint32_t b,
                                                 uint32_t begin, uint32_t piece, uint32_t planes)
{
    const uint32_t start = b * chunk->block_size;
    damacy__filtered f;
    f.size = damacy__min(chunk->size - start, chunk->block_size);
    if (chunk->n_apart != 0 && f.size == chunk->block_size) {
        damacy__sync_block(); // the addresses of before have been read
        damacy__blosc_find_planes(chunk, b, planes);
        damacy__sync_block();
        const damacy__apart apart = damacy__blosc_apart(chunk, b, planes);
        damacy__unshuffle_apart<8>(&apart, chunk->type_size, begin,
                                   damacy__min(apart.n, begin + piece));
        return;
    }
    f.src = (const uint8_t*)(uintptr_t)chunk->image + start;
    f.dst = (uint8_t*)(uintptr_t)chunk->dst + start;
    f.width = chunk->type_size;
    f.n = f.size / f.width;
    damacy__unfilter_piece(&f, chunk->filter == DAMACY__BLOSC_FILTER_BITS, begin, piece);
}

// Parts [first, last) of `parts` of a chunk, if it has been decoded and there is something left to
// undo: a part is every parts-th piece. Reads are coalesced in every plane, writes are 16 bytes a
// thread.
DAMACY__INLINE void damacy__blosc_unfilter(const damacy__blosc_wave* wave, uint32_t index,
                                           uint32_t parts, uint32_t first, uint32_t last,
                                           uint32_t planes)
{
    const damacy__blosc_chunk* const chunk =
        (const damacy__blosc_chunk*)(uintptr_t)wave->chunks + index;
    uint64_t failed;
    if (chunk->filter == DAMACY__BLOSC_FILTER_NONE || chunk->size == 0 ||
        chunk->status != DAMACY__JOB_OK)
        return;
    const uint32_t n_blocks = (chunk->size - 1) / chunk->block_size + 1;
    const uint32_t n_done = damacy__blosc_done(chunk, n_blocks);
    if (n_done == n_blocks || damacy__blosc_status(wave, chunk, &failed) != DAMACY__JOB_OK)
        return;
    const uint32_t width = chunk->type_size;
    const uint32_t piece = damacy__piece_elements(width, DAMACY__UNFILTER_PIECE); // elements
    const uint32_t n_pieces = (chunk->block_size - 1) / (piece * width) + 1;      // of a block
    const uint64_t n = (uint64_t)n_pieces * (n_blocks - n_done);
    for (uint64_t round = 0; round < n; round += parts)
        for (uint64_t i = round + first; i < round + last && i < n; i++)
            damacy__blosc_unfilter_piece(chunk, n_done + (uint32_t)(i / n_pieces),
                                         (uint32_t)(i % n_pieces) * piece, piece, planes);
}
