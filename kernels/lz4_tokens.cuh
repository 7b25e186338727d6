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
#define DAMACY__LZ4_PART      (32 * DAMACY__LZ4_SEGMENT)
#define DAMACY__LZ4_WORDS     (DAMACY__LZ4_SEGMENT / 32)
#define DAMACY__LZ4_EACH      2u // sequences of a batch that a lane has
#define DAMACY__LZ4_BATCH     (32 * DAMACY__LZ4_EACH)
#define DAMACY__LZ4_LIST      (DAMACY__LZ4_BATCH + 344) // tokens of 1 KiB, and a rest below BATCH
#define DAMACY__LZ4_TILE      1024u // bytes of output in shared memory; a multiple of 32
#define DAMACY__LZ4_GAP       32u   // bytes that whole groups of windows may take in addition
#define DAMACY__LZ4_N_WINDOWS ((DAMACY__LZ4_TILE + DAMACY__LZ4_GAP) / 32 + 1)
#define DAMACY__LZ4_BIAS      65536u // added to places in the tile, for none to be below 0

// Places in a warp's shared memory, by 32-bit address. How many warps a multiprocessor holds, which
// is what counts, is a matter of its size.
enum damacy__lz4_place : uint32_t {
    // The tile, the part and room: reads of a length or an offset may pass the part's end by 3
    // bytes, copies of whole windows by 63.
    DAMACY__LZ4_BYTES = 0,
    // A bit for each byte of the part: a token is there. A row for each lane, of an odd number of
    // words, so that lanes hit different banks.
    DAMACY__LZ4_MARKS =
        DAMACY__LZ4_BYTES + DAMACY__LZ4_TILE + DAMACY__LZ4_GAP + DAMACY__LZ4_PART + 192,
    // In turns: marks of a walk under way, and a list of places of tokens in BYTES, 16 bits each.
    DAMACY__LZ4_TRIAL = DAMACY__LZ4_MARKS + 32 * 4 * (DAMACY__LZ4_WORDS + 1),
    DAMACY__LZ4_TOKENS = DAMACY__LZ4_TRIAL,
    // For each 32 bytes of the tile: bits of those where a literal run or a match starts, and how
    // many bytes of DELTA are of runs before.
    DAMACY__LZ4_WINDOWS = DAMACY__LZ4_TOKENS + 2 * DAMACY__LZ4_LIST,
    // From a byte of the tile to its source, by run, plus BIAS.
    DAMACY__LZ4_DELTA = DAMACY__LZ4_WINDOWS + 8 * DAMACY__LZ4_N_WINDOWS,
    DAMACY__LZ4_END = DAMACY__LZ4_DELTA + 4 * (2 * DAMACY__LZ4_BATCH + 1)
};
static_assert(2 * DAMACY__LZ4_LIST >= 32 * 4 * (DAMACY__LZ4_WORDS + 1), "TRIAL finds room");
static_assert(DAMACY__LZ4_WINDOWS % 8 == 0 && DAMACY__LZ4_MARKS % 16 == 0, "places are aligned");
static_assert((DAMACY__LZ4_END + 15) / 16 * 16 == DAMACY__LZ4_SHARED, "host's view");

// Byte i of BYTES.
DAMACY__INLINE uint32_t damacy__lz4_peek(uint32_t memory, uint32_t i)
{
    return damacy__lds8(memory + DAMACY__LZ4_BYTES + i);
}

// The word with bit `bit` of a lane's row in MARKS or TRIAL, which begin at `rows`.
DAMACY__INLINE uint32_t damacy__lz4_word(uint32_t rows, uint32_t lane, uint32_t bit)
{
    return rows + 4 * (DAMACY__LZ4_WORDS + 1) * lane + bit / 32 * 4;
}

// The sum of the bytes of a length from *at on, the last of which is not 255. If they do not end
// below `end`, *at is above it then.
DAMACY__INLINE uint32_t damacy__lz4_more(uint32_t memory, uint32_t* at, uint32_t end)
{
    uint32_t byte = 255, sum = 0;
    while (byte == 255 && *at < end) {
        byte = damacy__lz4_peek(memory, (*at)++);
        sum += byte;
    }
    if (byte == 255)
        *at = end + 1;
    return sum;
}

// The place after the token at `at`, or a place at or above end. Places are in BYTES. What
// it says of the end of the source does not matter: sequences are checked where they are read.
DAMACY__INLINE uint32_t damacy__lz4_next(uint32_t memory, uint32_t token, uint32_t at, uint32_t end)
{
    at += 3 + (token >> 4);
    if (token >= 0xf0) {
        const uint32_t byte = damacy__lz4_peek(memory, at - 17);
        at += 1 + byte;
        if (byte == 255) {
            uint32_t more = at - 255 - 17;
            const uint32_t n = damacy__lz4_more(memory, &more, end);
            at = more + n + 255 + 17;
        }
    }
    if ((token & 15) == 15 && at < end) {
        const uint32_t byte = damacy__lz4_peek(memory, at++);
        if (byte == 255)
            (void)damacy__lz4_more(memory, &at, end);
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
DAMACY__INLINE void damacy__lz4_walk(uint32_t memory, damacy__lz4_segment* s, uint32_t end,
                                     uint32_t lane)
{
    const uint32_t marks = memory + DAMACY__LZ4_MARKS;
    uint32_t at = s->begin;
    for (uint32_t w = 0; w < DAMACY__LZ4_WORDS; w++)
        damacy__sts32(damacy__lz4_word(marks, lane, 32 * w), 0);
    while (at < s->end) {
        const uint32_t token = damacy__lz4_peek(memory, at), bit = at - s->begin;
        damacy__shared_or(damacy__lz4_word(marks, lane, bit), 1u << (bit % 32));
        at = damacy__lz4_next(memory, token, at, end);
    }
    s->entry = s->begin;
    s->exit = at;
}

// Walks from `entry` until the end or a mark of the walk before, which holds from there on.
DAMACY__INLINE void damacy__lz4_walk_again(uint32_t memory, damacy__lz4_segment* s, uint32_t entry,
                                           uint32_t end, uint32_t lane)
{
    const uint32_t marks = memory + DAMACY__LZ4_MARKS, trial = memory + DAMACY__LZ4_TRIAL;
    uint32_t at = entry;
    for (uint32_t w = 0; w < DAMACY__LZ4_WORDS; w++)
        damacy__sts32(damacy__lz4_word(trial, lane, 32 * w), 0);
    while (at < s->end) {
        const uint32_t token = damacy__lz4_peek(memory, at);
        const uint32_t bit = at - s->begin, mark = 1u << (bit % 32);
        if (damacy__lds32(damacy__lz4_word(marks, lane, bit)) & mark)
            break;
        damacy__shared_or(damacy__lz4_word(trial, lane, bit), mark);
        at = damacy__lz4_next(memory, token, at, end);
    }
    const uint32_t met = damacy__min(at - s->begin, DAMACY__LZ4_SEGMENT);
    for (uint32_t w = 0; w < DAMACY__LZ4_WORDS; w++) {
        const uint32_t keep = met <= 32 * w ? ~0u : met < 32 * w + 32 ? ~0u << (met % 32) : 0;
        const uint32_t word = damacy__lz4_word(marks, lane, 32 * w);
        damacy__sts32(word, damacy__lds32(damacy__lz4_word(trial, lane, 32 * w)) |
                                (damacy__lds32(word) & keep));
    }
    s->entry = entry;
    if (at >= s->end)
        s->exit = at;
}

// Marks the tokens of the part [begin, end) of BYTES, given that one is at begin.
DAMACY__INLINE void damacy__lz4_mark(uint32_t memory, uint32_t begin, uint32_t end, uint32_t lane)
{
    damacy__lz4_segment s;
    s.begin = begin + lane * DAMACY__LZ4_SEGMENT;
    s.end = damacy__min(s.begin + DAMACY__LZ4_SEGMENT, end);
    damacy__lz4_walk(memory, &s, end, lane);
    damacy__sync_warp();
    for (uint32_t round = 0; round < 32; round++) { // lane `round` is right by now
        const uint32_t before = damacy__shfl_up(s.exit, 1);
        const bool is_right = lane == 0 || s.begin >= end || before == s.entry;
        if (damacy__all(is_right))
            break;
        if (!is_right)
            damacy__lz4_walk_again(memory, &s, before, end, lane);
        damacy__sync_warp();
    }
}

// Appends the marked tokens of 1,024 bytes, from byte `first` of the part on, to a list of n.
// Returns its new length.
DAMACY__INLINE uint32_t damacy__lz4_list(uint32_t memory, uint32_t begin, uint32_t first,
                                         uint32_t n, uint32_t lane)
{
    const uint32_t at = first / 32 + lane; // of the word; a row has WORDS of them
    uint32_t word = damacy__lds32(damacy__lz4_word(
        memory + DAMACY__LZ4_MARKS, at / DAMACY__LZ4_WORDS, at % DAMACY__LZ4_WORDS * 32));
    const uint32_t sum = damacy__sum_upto(damacy__popc(word), lane);
    uint32_t to = memory + DAMACY__LZ4_TOKENS + 2 * (n + sum - damacy__popc(word));
    for (; word; to += 2) {
        damacy__sts16(to, begin + first + 32 * lane + damacy__ctz(word));
        word &= word - 1;
    }
    damacy__sync_warp();
    return n + damacy__shfl(sum, 31);
}
