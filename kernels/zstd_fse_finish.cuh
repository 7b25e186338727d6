// The end of a block of the sequence stage: what became of it, and what the next stages have to
// know. The surprising rule: a block that made more records than it has room for is no error. It
// gets room for exactly as many, and its group is decoded again.
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

// What became of a block, from its state as damacy__fse_state_open leaves it: `walked` is the
// position after the last sequence, to be all of the stream.
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

// Finds room for n records of a block that has more than were likely, in what the wave's scratch
// has left; its group is decoded again. Returns what is wrong. Kept out of the way, as it hardly
// ever runs: inlined it takes 0.1 to 0.5 % of a wave.
static __device__ __noinline__ uint32_t damacy__fse_find_room(damacy__zstd_counters* c,
                                                              uint64_t max_records,
                                                              damacy__zstd_block* block, uint32_t n)
{
    const uint64_t need = damacy__zstd_record_room(n),
                   used = c->n_records + (c->n_literal_bytes + 7) / 8;

    if (block->state == DAMACY__ZSTD_AGAIN) // cannot be: its room was counted
        return DAMACY__JOB_BAD_SEQUENCES;
    const uint64_t at = damacy__atomic_add64(&c->n_more_records, need) + need;
    if (at > max_records - used)
        return DAMACY__JOB_NEED_SCRATCH;
    block->first_record = max_records - c->n_records - at;
    block->record_capacity = n;
    block->state = DAMACY__ZSTD_AGAIN;
    return DAMACY__JOB_OK;
}

// Tells the next stages: sizes and repeat offsets of the block, or an error of its job. The
// literals after the last sequence become the last record. True if the block is to be decoded
// again. `s` as damacy__fse_verdict has it.
template <class S>
DAMACY__INLINE bool damacy__fse_finish(const damacy__zstd_wave& w, const damacy__fse_block* b,
                                       const damacy__fse_state* s, uint32_t status, uint32_t batch)
{
    damacy__zstd_block* block = b->block;
    const uint32_t produced = s->start, tail = block->n_literals - s->literals;
    uint32_t n = s->n_records;

    if (status == DAMACY__JOB_OK && n + (tail ? 1 : 0) > block->record_capacity) {
        status =
            damacy__fse_find_room(damacy__zstd_counts(w), w.max_records, block, n + (tail ? 1 : 0));
        if (status == DAMACY__JOB_OK)
            return true;
    }
    block->state = DAMACY__ZSTD_DECODED;
    if (status != DAMACY__JOB_OK) {
        block->size = block->n_records = block->n_symbolic = 0;
        if (block->bits_size) // else it is reported already
            damacy__zstd_fail(w, *block, b->stream, status);
        return false;
    }
    if (tail) {
        uint64_t* records = (uint64_t*)(uintptr_t)w.records + block->first_record;
        records[n++] = (S::BY_SEQUENCE ? (uint64_t)s->literals << 17
                                       : (uint64_t)(DAMACY__ZSTD_D_LITERALS | s->literals) << 34 |
                                             (uint64_t)(tail - 1) << 17) |
                       produced;
    }
    block->size = produced + tail;
    block->n_records = n;
    block->n_symbolic = s->symbolic;
    const bool turned = (0 - block->n_sequences) % batch & 1; // see damacy__fse_emit
    block->repeat_out[0] = turned ? s->r2 : s->r1;
    block->repeat_out[1] = turned ? s->r1 : s->r2;
    block->repeat_out[2] = s->r3;
    return false;
}
