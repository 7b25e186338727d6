// Finds the tokens of a part of an LZ4 block in shared memory, by one warp.
//
// Where a token starts is known only from the one before it. But a walk that begins anywhere meets
// the right one soon, as both take steps of a few bytes through the same data. So a part is cut
// into 32 segments and each lane walks its own, marking tokens; then each is told where the lane
// before it came out, and walks from there until it meets its own marks, until no lane comes out
// elsewhere.
#pragma once

#include "kernels/bits.cuh"
#include "kernels/lz4_abi.h"

#ifndef DAMACY__LZ4_SEGMENT
#define DAMACY__LZ4_SEGMENT 128u // bytes of the source, a multiple of 32
#endif
#define DAMACY__LZ4_PART  (32 * DAMACY__LZ4_SEGMENT)
#define DAMACY__LZ4_WORDS (DAMACY__LZ4_SEGMENT / 32)
#define DAMACY__LZ4_TILE  1024u // bytes of output in shared memory; a multiple of 32
#define DAMACY__LZ4_GAP   128u  // bytes that whole groups of windows may take in addition

// Rows of marks have an odd number of words, so that lanes hit different banks. How many warps a
// multiprocessor holds, which is what counts, is a matter of this size.
struct damacy__lz4_shared {
    alignas(16) uint8_t
        bytes[DAMACY__LZ4_TILE + DAMACY__LZ4_GAP + DAMACY__LZ4_PART + 320]; // tile, part, room
    uint32_t marks[32][DAMACY__LZ4_WORDS + 1];     // a bit per byte: a token is there
    union {                                        // in turns
        uint32_t trial[32][DAMACY__LZ4_WORDS + 1]; // as marks, of a walk under way
        uint16_t tokens[32 + 344]; // places in bytes; of 1,024 bytes, and a rest below 32
    };
    damacy__u32x2 windows[36]; // .x: a bit per byte of the tile: a literal run or match starts
                               // there; .y: runs before the window
    int32_t delta[66]; // from a byte of the tile to its source, by run; below the tile: -
};

// The sum of the bytes of a length from *at on, the last of which is not 255. If they do not end
// below `end`, *at is above it then.
DAMACY__INLINE uint32_t damacy__lz4_more(const damacy__lz4_shared* shared, uint32_t* at,
                                         uint32_t end)
{
    uint32_t byte = 255, sum = 0;
    while (byte == 255 && *at < end) {
        byte = shared->bytes[(*at)++];
        sum += byte;
    }
    if (byte == 255)
        *at = end + 1;
    return sum;
}

// The place after the token at `at`, or a place at or above end. Places are in shared->bytes. What
// it says of the end of the source does not matter: sequences are checked where they are read.
DAMACY__INLINE uint32_t damacy__lz4_next(const damacy__lz4_shared* shared, uint32_t token,
                                         uint32_t at, uint32_t end)
{
    at += 3 + (token >> 4);
    if (token >= 0xf0) {
        const uint32_t byte = shared->bytes[at - 17];
        at += 1 + byte;
        if (byte == 255) {
            uint32_t more = at - 255 - 17;
            const uint32_t n = damacy__lz4_more(shared, &more, end);
            at = more + n + 255 + 17;
        }
    }
    if ((token & 15) == 15 && at < end) {
        const uint32_t byte = shared->bytes[at++];
        if (byte == 255)
            (void)damacy__lz4_more(shared, &at, end);
    }
    return at;
}

// One lane's segment.
typedef struct damacy__lz4_segment {
    uint32_t begin, end;
    uint32_t entry; // where the walk began; at or above end: it passes the segment by
    uint32_t exit;  // the first token at or above end
} damacy__lz4_segment;

// Walks a segment that has no marks yet, from its first byte.
DAMACY__INLINE void damacy__lz4_walk(damacy__lz4_shared* shared, damacy__lz4_segment* s,
                                     uint32_t end, uint32_t lane)
{
    uint32_t at = s->begin;
    for (uint32_t w = 0; w < DAMACY__LZ4_WORDS; w++)
        shared->marks[lane][w] = 0;
    while (at < s->end) {
        const uint32_t token = shared->bytes[at], bit = at - s->begin;
        (void)damacy__atomic_or(&shared->marks[lane][bit / 32], 1u << (bit % 32));
        at = damacy__lz4_next(shared, token, at, end);
    }
    s->entry = s->begin;
    s->exit = at;
}

// Walks from `entry` until the end or a mark of the walk before, which holds from there on.
DAMACY__INLINE void damacy__lz4_walk_again(damacy__lz4_shared* shared, damacy__lz4_segment* s,
                                           uint32_t entry, uint32_t end, uint32_t lane)
{
    uint32_t at = entry;
    for (uint32_t w = 0; w < DAMACY__LZ4_WORDS; w++)
        shared->trial[lane][w] = 0;
    while (at < s->end) {
        const uint32_t token = shared->bytes[at];
        const uint32_t bit = at - s->begin, mark = 1u << (bit % 32);
        if (shared->marks[lane][bit / 32] & mark)
            break;
        (void)damacy__atomic_or(&shared->trial[lane][bit / 32], mark);
        at = damacy__lz4_next(shared, token, at, end);
    }
    const uint32_t met = damacy__min(at - s->begin, DAMACY__LZ4_SEGMENT);
    for (uint32_t w = 0; w < DAMACY__LZ4_WORDS; w++) {
        const uint32_t keep = met <= 32 * w ? ~0u : met < 32 * w + 32 ? ~0u << (met % 32) : 0;
        shared->marks[lane][w] = shared->trial[lane][w] | (shared->marks[lane][w] & keep);
    }
    s->entry = entry;
    if (at >= s->end)
        s->exit = at;
}

// Marks the tokens of the part [begin, end) of shared->bytes, given that one is at begin.
DAMACY__INLINE void damacy__lz4_mark(damacy__lz4_shared* shared, uint32_t begin, uint32_t end,
                                     uint32_t lane)
{
    damacy__lz4_segment s;
    s.begin = begin + lane * DAMACY__LZ4_SEGMENT;
    s.end = damacy__min(s.begin + DAMACY__LZ4_SEGMENT, end);
    damacy__lz4_walk(shared, &s, end, lane);
    damacy__sync_warp();
    for (uint32_t round = 0; round < 32; round++) { // lane `round` is right by now
        const uint32_t before = damacy__shfl_up(s.exit, 1);
        const bool is_right = lane == 0 || s.begin >= end || before == s.entry;
        if (damacy__all(is_right))
            break;
        if (!is_right)
            damacy__lz4_walk_again(shared, &s, before, end, lane);
        damacy__sync_warp();
    }
}

// Appends the marked tokens of 1,024 bytes, from byte `first` of the part on, to a list of n.
// Returns its new length.
DAMACY__INLINE uint32_t damacy__lz4_list(damacy__lz4_shared* shared, uint32_t begin, uint32_t first,
                                         uint32_t n, uint32_t lane)
{
    const uint32_t at = first / 32 + lane;
    uint32_t word = shared->marks[at / DAMACY__LZ4_WORDS][at % DAMACY__LZ4_WORDS];
    const uint32_t sum = damacy__sum_upto(damacy__popc(word), lane);
    for (uint32_t k = n + sum - damacy__popc(word); word; k++) {
        shared->tokens[k] = (uint16_t)(begin + first + 32 * lane + damacy__ctz(word));
        word &= word - 1;
    }
    damacy__sync_warp();
    return n + damacy__shfl(sum, 31);
}
