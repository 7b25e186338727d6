// Walks the sequences of an LZ4 block one by one and proves each before anything is copied:
// literals inside the source, offsets inside what was produced, no byte above the limit, and the
// rules for the end of a block (the last sequence is literals only, at least 5 of them, and the
// last match starts at least 12 bytes before the end), which the reference decoder demands too.
#pragma once

#include "kernels/warp.cuh"
#include "kernels/lz4_abi.h"

// Output positions count from an origin that the caller chooses; the block's first byte is `first`.
typedef struct damacy__lz4_walk {
    const uint8_t* src;
    uint32_t size;    // bytes of the block
    uint32_t at;      // next token
    uint32_t first;   // output position of the block's first byte
    uint32_t out;     // output position of the next sequence
    uint32_t limit;   // output position that must not be passed
    uint32_t status;  // DAMACY__JOB_OK, or why the walk ended
    uint32_t is_done; // the last sequence was seen
} damacy__lz4_walk;

// One sequence: literals, then a match. n_match is 0 only in the last one.
typedef struct damacy__lz4_sequence {
    uint32_t out;      // output position of the first literal
    uint32_t literals; // where they are in the block
    uint32_t n_literals;
    uint32_t n_match;
    uint32_t offset;
} damacy__lz4_sequence;

DAMACY__INLINE void damacy__lz4_walk_begin(damacy__lz4_walk* w, const uint8_t* src, uint32_t size,
                                           uint32_t first, uint32_t n)
{
    w->src = src;
    w->size = size;
    w->at = 0;
    w->first = first;
    w->out = first;
    w->limit = first + n;
    w->status = DAMACY__JOB_OK;
    w->is_done = 0;
}

// Adds the bytes that extend a length; false when they run out of the source or pass `most`.
DAMACY__INLINE bool damacy__lz4_extend(damacy__lz4_walk* w, uint32_t* at, uint32_t* n,
                                       uint32_t most)
{
    uint32_t byte;
    do {
        if (*at >= w->size) {
            w->status = DAMACY__JOB_TRUNCATED;
            return false;
        }
        byte = w->src[(*at)++];
        *n += byte;
        if (*n > most) {
            w->status = DAMACY__JOB_NO_SPACE;
            return false;
        }
    } while (byte == 255);
    return true;
}

// The next sequence; false, with status set, when the block is malformed. w->at then stays at the
// token of the sequence at fault. Not to be called once is_done is set.
DAMACY__INLINE bool damacy__lz4_walk_next(damacy__lz4_walk* w, damacy__lz4_sequence* s)
{
    uint32_t at = w->at;
    if (at >= w->size) {
        w->status = DAMACY__JOB_TRUNCATED;
        return false;
    }
    const uint32_t token = w->src[at++];
    const uint32_t room = w->limit - w->out;
    s->out = w->out;
    s->n_literals = token >> 4;
    if (s->n_literals == 15 && !damacy__lz4_extend(w, &at, &s->n_literals, room))
        return false;
    if (s->n_literals > w->size - at) {
        w->status = DAMACY__JOB_TRUNCATED;
        return false;
    }
    if (s->n_literals > room) {
        w->status = DAMACY__JOB_NO_SPACE;
        return false;
    }
    s->literals = at;
    at += s->n_literals;
    const uint32_t run_end = w->out + s->n_literals;
    if (at == w->size) {
        s->n_match = 0;
        s->offset = 0;
        w->at = at;
        w->out = run_end;
        w->is_done = 1;
        return true;
    }
    if (w->size - at < 2) {
        w->status = DAMACY__JOB_TRUNCATED;
        return false;
    }
    s->offset = (uint32_t)w->src[at] | (uint32_t)w->src[at + 1] << 8;
    at += 2;
    s->n_match = (token & 15) + 4;
    if ((token & 15) == 15 && !damacy__lz4_extend(w, &at, &s->n_match, room))
        return false;
    if (s->offset - 1 >= run_end - w->first) {
        w->status = DAMACY__JOB_BAD_OFFSET;
        return false;
    }
    if (s->n_match > w->limit - run_end) {
        w->status = DAMACY__JOB_NO_SPACE;
        return false;
    }
    w->at = at;
    w->out = run_end + s->n_match;
    return true;
}
