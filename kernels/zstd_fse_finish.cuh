// The end of a block of the sequence stage: what became of it, and what the next stages have to
// know.
#pragma once

#include "kernels/zstd_common.cuh"
#include "kernels/zstd_fse_extract.cuh"

// A block as a lane sees it. n: sequences to decode, 0 if it is not there or cannot be decoded.
struct damacy__fse_block {
    damacy__zstd_block* block; // null: none
    uint64_t stream, end;      // addresses
    uint32_t n, logs[3];
    uint32_t status; // of the tables and the stream's start
};

// What became of a block: `walked` is the position after the last sequence, to be all of the
// stream.
DAMACY__INLINE uint32_t damacy__fse_verdict(const damacy__fse_block* b, const damacy__fse_state* s,
                                            uint32_t walked, uint32_t max_offset)
{
    const uint32_t literals = s->literals, produced = s->start;
    const uint32_t all = 8 * (uint32_t)(((b->end + 15) & ~15ull) - b->stream);

    if (b->status != DAMACY__JOB_OK)
        return b->status;
    if (walked != all || s->symbolic >> 31 || literals > b->block->n_literals ||
        produced - literals + b->block->n_literals > b->block->max_size)
        return DAMACY__JOB_BAD_SEQUENCES;
    if (s->min_offset == 0 || (max_offset > 3 && max_offset - 3 > DAMACY__ZSTD_OFFSET_MAX))
        return DAMACY__JOB_BAD_OFFSET;
    return DAMACY__JOB_OK;
}

// Tells the next stages: sizes and repeat offsets of the block, or an error of its job.
DAMACY__INLINE void damacy__fse_finish(const damacy__zstd_wave& w, const damacy__fse_block* b,
                                       const damacy__fse_state* s, uint32_t status, uint32_t batch)
{
    damacy__zstd_block* block = b->block;
    const uint32_t produced = s->start, tail = block->n_literals - s->literals;

    if (status != DAMACY__JOB_OK) {
        block->size = block->n_records = block->n_symbolic = 0;
        if (block->bits_size) // else it is reported already
            damacy__zstd_fail(w, *block, b->stream, status);
        return;
    }
    if (tail)
        ((uint64_t*)(uintptr_t)w.records)[block->first_record + b->n] =
            (uint64_t)s->literals << 17 | produced;
    block->size = produced + tail;
    block->n_records = b->n + (tail ? 1 : 0);
    block->n_symbolic = s->symbolic;
    const bool turned = (0 - block->n_sequences) % batch & 1; // see damacy__fse_emit
    block->repeat_out[0] = turned ? s->r2 : s->r1;
    block->repeat_out[1] = turned ? s->r1 : s->r2;
    block->repeat_out[2] = s->r3;
}
