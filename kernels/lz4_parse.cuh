// Finds the sequences of an LZ4 block, by one warp: token by token, without a look at literals and
// offsets. Proves that the source ends with literals and not before; what lengths add up to is left
// to execute.
//
// Where a token starts is known only from the one before it. But a walk that begins anywhere meets
// the right one soon, as both take steps of a few bytes through the same data. So a part of the
// source is cut into 32 segments and each lane walks its own, from its first byte on, marking where
// tokens seem to be; then each is told where the lane before it came out, and walks from there
// until it meets its own marks. That is repeated until no lane comes out elsewhere, which is twice
// as a rule and 32 times at most, since the first lane began right.
#pragma once

#include "kernels/bits.cuh"
#include "kernels/lz4_abi.h"

#define DAMACY__LZ4_SEGMENT 512u // bytes, a multiple of 32
#define DAMACY__LZ4_PART    (32 * DAMACY__LZ4_SEGMENT)
#define DAMACY__LZ4_PROBE   8u          // tokens
#define DAMACY__LZ4_SPARSE  256u        // bytes from token to token, on average, or more
#define DAMACY__LZ4_BAD     0xffffffffu // in place of a token: the source ends too early
#define DAMACY__LZ4_LARGE   0xfffffffeu // or a match is larger than the output

struct damacy__lz4_parse_shared {
    damacy__u32x4 bytes[DAMACY__LZ4_PART / 16 + 1]; // of the part, from the boundary of 16 below it
    uint32_t marks[DAMACY__LZ4_PART / 32];          // a bit per byte of the part: a token is there
    uint32_t tokens[DAMACY__LZ4_SEGMENT / 3 + 2];   // of one segment, on their way out
};

// A part of a block. Positions count from the start of the block.
typedef struct damacy__lz4_part {
    const uint8_t* src;
    uint32_t size;  // of the block
    uint32_t most;  // bytes that it may make; bounds the search for the end of a length
    uint32_t begin; // of the part, where a token is
    uint32_t end;
    const uint8_t* bytes; // shared: byte `begin` of the block
    uint32_t* marks;
} damacy__lz4_part;

// A byte at or behind the token of a sequence.
DAMACY__INLINE uint32_t damacy__lz4_byte(const damacy__lz4_part* part, uint32_t at)
{
    return at < part->end ? part->bytes[at - part->begin] : part->src[at];
}

// The token after the one at `at`, which is inside the block; the block's size if that is the last;
// BAD if the source ends inside it or behind its match; LARGE.
DAMACY__INLINE uint32_t damacy__lz4_next(const damacy__lz4_part* part, uint32_t at, uint32_t token)
{
    const uint32_t size = part->size;
    uint32_t n = token >> 4, byte = 255;
    at++;
    if (n != 15 && (token & 15) != 15 && at + n + 2 < size)
        return at + n + 2;
    if (n == 15)
        while (byte == 255) {
            if (at >= size)
                return DAMACY__LZ4_BAD;
            byte = damacy__lz4_byte(part, at++);
            n += byte;
            if (n > size)
                return DAMACY__LZ4_BAD;
        }
    if (n > size - at)
        return DAMACY__LZ4_BAD;
    at += n;
    if (at == size)
        return size;
    if (size - at < 2)
        return DAMACY__LZ4_BAD;
    at += 2;
    if ((token & 15) == 15)
        for (byte = 255, n = 19; byte == 255;) {
            if (at >= size)
                return DAMACY__LZ4_BAD;
            byte = damacy__lz4_byte(part, at++);
            n += byte;
            if (n > part->most)
                return DAMACY__LZ4_LARGE;
        }
    return at < size ? at : DAMACY__LZ4_BAD;
}

// One lane's segment, and what its walk found.
typedef struct damacy__lz4_segment {
    uint32_t first; // a multiple of SEGMENT bytes into the part
    uint32_t end;   // at or below first: there is nothing
    uint32_t entry; // where the walk began; at or above end: it passes the segment by
    uint32_t exit;  // the first token at or above end, or the block's size, BAD or LARGE
    uint32_t last;  // if BAD or LARGE: the token at fault
} damacy__lz4_segment;

// Walks from `entry` until the end of the segment or a mark of an earlier walk; then that one's
// exit holds. Marks below are replaced. The segment's words of marks are its lane's alone.
DAMACY__INLINE void damacy__lz4_walk(const damacy__lz4_part* part, damacy__lz4_segment* s,
                                     uint32_t entry)
{
    uint32_t* const marks = part->marks + (s->first - part->begin) / 32;
    const uint32_t n_words = DAMACY__LZ4_SEGMENT / 32;
    uint32_t word = entry >= s->end ? n_words : (entry - s->first) / 32, bits = 0;
    s->entry = entry;
    for (uint32_t i = 0; i < word; i++)
        marks[i] = 0;
    if (entry >= s->end) {
        s->exit = entry;
        return;
    }
    uint32_t before = marks[word]; // of the earlier walk
    for (uint32_t at = entry;;) {
        const uint32_t token = part->bytes[at - part->begin];
        const uint32_t place = at - s->first, mark = 1u << (place % 32);
        if (place / 32 != word) {
            marks[word] = bits;
            for (word++; word < place / 32; word++)
                marks[word] = 0;
            before = marks[word];
            bits = 0;
        }
        if (before & mark) {
            marks[word] = bits | (before & (0 - mark));
            return;
        }
        bits |= mark;
        const uint32_t next = damacy__lz4_next(part, at, token);
        if (next >= s->end) {
            marks[word] = bits;
            for (word++; word < n_words; word++)
                marks[word] = 0;
            s->exit = next;
            s->last = at;
            return;
        }
        at = next;
    }
}

// Marks the tokens of a part, given that the first byte is one. Returns where the next part begins,
// the block's size, or BAD or LARGE and then the token at fault. By the whole warp.
DAMACY__INLINE uint32_t damacy__lz4_mark_part(const damacy__lz4_part* part, uint32_t lane,
                                              uint32_t* fault)
{
    damacy__lz4_segment s;
    s.first = part->begin + lane * DAMACY__LZ4_SEGMENT;
    s.end = damacy__min(s.first + DAMACY__LZ4_SEGMENT, part->end);
    s.last = 0;
    for (uint32_t i = lane; i < DAMACY__LZ4_PART / 32; i += 32)
        part->marks[i] = 0;
    damacy__sync_warp();
    damacy__lz4_walk(part, &s, s.first);
    for (uint32_t round = 0; round < 32; round++) {
        const uint32_t before = damacy__shfl_up(s.exit, 1);
        const uint32_t entry = lane == 0 ? part->begin : before;
        if (damacy__all(entry == s.entry))
            break;
        if (entry != s.entry)
            damacy__lz4_walk(part, &s, entry);
    }
    damacy__sync_warp();
    const uint32_t bads = damacy__ballot(s.exit >= DAMACY__LZ4_LARGE);
    *fault = damacy__shfl(s.last, bads ? damacy__ctz(bads) : 0);
    return damacy__shfl(s.exit, 31);
}

// Writes the places of marks as a list, a segment at a time. Returns its new length, or BAD if it
// does not fit.
DAMACY__INLINE uint32_t damacy__lz4_list_part(const damacy__lz4_part* part,
                                              damacy__lz4_parse_shared* shared, uint32_t* tokens,
                                              uint32_t n, uint32_t max, uint32_t lane)
{
    const uint32_t n_words = DAMACY__LZ4_SEGMENT / 32;
    for (uint32_t first = 0; first < part->end - part->begin; first += DAMACY__LZ4_SEGMENT) {
        uint32_t word = lane < n_words ? part->marks[first / 32 + lane] : 0;
        uint32_t sum = damacy__popc(word);
        for (uint32_t d = 1; d < 32; d *= 2) {
            const uint32_t other = damacy__shfl_up(sum, d);
            if (lane >= d)
                sum += other;
        }
        const uint32_t total = damacy__shfl(sum, 31);
        if (total > max - n)
            return DAMACY__LZ4_BAD;
        for (uint32_t k = sum - damacy__popc(word); word; k++) {
            shared->tokens[k] = part->begin + first + 32 * lane + damacy__ctz(word);
            word &= word - 1;
        }
        damacy__sync_warp();
        for (uint32_t k = lane; k < total; k += 32)
            tokens[n + k] = shared->tokens[k];
        damacy__sync_warp();
        n += total;
    }
    return n;
}

// Walks a few tokens in global memory, all lanes alike: for where literals are long. *begin
// advances, to BAD or LARGE with the token at fault. Returns the new length of the list, or BAD.
DAMACY__INLINE uint32_t damacy__lz4_list_few(damacy__lz4_part* part, uint32_t* begin,
                                             uint32_t* fault, uint32_t* tokens, uint32_t n,
                                             uint32_t max, uint32_t lane)
{
    uint32_t k = 0, mine = 0;
    part->begin = part->end = *begin;
    for (; k < DAMACY__LZ4_PROBE && *begin < part->size; k++) {
        *fault = *begin;
        if (lane == k)
            mine = *begin;
        *begin = damacy__lz4_next(part, *begin, part->src[*begin]);
    }
    if (k > max - n)
        return DAMACY__LZ4_BAD;
    if (lane < k)
        tokens[n + lane] = mine;
    return n + k;
}

// Brings a part of the block into shared memory.
DAMACY__INLINE void damacy__lz4_load_part(damacy__lz4_part* part, uint32_t begin,
                                          damacy__lz4_parse_shared* shared, uint32_t lane)
{
    const uint64_t low = (uint64_t)(uintptr_t)part->src, high = low + part->size;
    const uint64_t base = (low + begin) & ~15ull;
    part->begin = begin;
    part->end = begin + damacy__min(part->size - begin, DAMACY__LZ4_PART);
    part->bytes = (const uint8_t*)shared->bytes + (low + begin - base);
    const uint32_t n_units = (uint32_t)((low + part->end - base + 15) / 16);
#pragma unroll 8
    for (uint32_t i = lane; i < n_units; i += 32)
        shared->bytes[i] = damacy__load_u32x4_within(base + 16 * i, low, high);
    damacy__sync_warp();
}

// Lists the tokens of a block of `size` bytes, at most max of them.
DAMACY__INLINE void damacy__lz4_list(const uint8_t* src, uint32_t size, uint32_t* tokens,
                                     uint32_t max, damacy__lz4_parse_shared* shared,
                                     damacy__lz4_block* block, uint32_t lane)
{
    damacy__lz4_part part;
    bool is_sparse = true; // tokens are far apart, as far as one can tell
    part.src = src;
    part.size = size;
    part.most = block->n;
    part.bytes = (const uint8_t*)shared->bytes;
    part.marks = shared->marks;
    for (uint32_t begin = 0; begin < size;) {
        const uint32_t start = begin, n_before = block->n_tokens;
        if (is_sparse) {
            block->n_tokens = damacy__lz4_list_few(&part, &begin, &block->error_offset, tokens,
                                                   n_before, max, lane);
            is_sparse = begin - start >= DAMACY__LZ4_SPARSE * DAMACY__LZ4_PROBE;
        } else {
            damacy__lz4_load_part(&part, begin, shared, lane);
            begin = damacy__lz4_mark_part(&part, lane, &block->error_offset);
            if (begin < DAMACY__LZ4_LARGE)
                block->n_tokens = damacy__lz4_list_part(&part, shared, tokens, n_before, max, lane);
            is_sparse = block->n_tokens - n_before < DAMACY__LZ4_PART / DAMACY__LZ4_SPARSE;
        }
        if (begin >= DAMACY__LZ4_LARGE) {
            block->status = begin == DAMACY__LZ4_BAD ? DAMACY__JOB_TRUNCATED : DAMACY__JOB_NO_SPACE;
            return;
        }
        if (block->n_tokens == DAMACY__LZ4_BAD) { // each makes 4 bytes at least
            block->status = DAMACY__JOB_NO_SPACE;
            block->error_offset = start;
            return;
        }
    }
}

// What a job may produce, or the reason why it cannot start. A size in front of the block becomes
// the one that the job expects.
DAMACY__INLINE uint32_t damacy__lz4_open(damacy__job* job, const uint8_t** src, uint32_t* size,
                                         uint32_t* n)
{
    const uint64_t prefix = job->flags & DAMACY__LZ4_SIZE_PREFIX ? 4 : 0;
    const uint64_t capacity =
        job->dst_capacity < DAMACY__JOB_SIZE_MAX ? job->dst_capacity : DAMACY__JOB_SIZE_MAX;
    *src = (const uint8_t*)(uintptr_t)job->src + prefix;
    *n = 0;
    if (job->flags & DAMACY__JOB_SKIP)
        return DAMACY__JOB_SKIPPED;
    if (job->src_size > DAMACY__JOB_SIZE_MAX)
        return DAMACY__JOB_TOO_LARGE;
    if (job->src_size <= prefix)
        return DAMACY__JOB_TRUNCATED;
    if (prefix) {
        const uint32_t stored = damacy__load_u32(*src - prefix);
        if (job->expected_size == DAMACY__SIZE_UNKNOWN)
            job->expected_size = stored;
        else if (job->expected_size != stored)
            return DAMACY__JOB_SIZE_MISMATCH;
    }
    *size = (uint32_t)(job->src_size - prefix);
    if (job->expected_size != DAMACY__SIZE_UNKNOWN && job->expected_size > capacity) {
        *n = job->expected_size > ~0u ? ~0u : (uint32_t)job->expected_size;
        return DAMACY__JOB_NO_SPACE;
    }
    *n = (uint32_t)(job->expected_size != DAMACY__SIZE_UNKNOWN ? job->expected_size : capacity);
    return DAMACY__JOB_OK;
}

// One job, by one warp.
DAMACY__INLINE void damacy__lz4_parse_job(const damacy__lz4_wave* wave,
                                          damacy__lz4_parse_shared* shared, uint32_t index,
                                          uint32_t lane)
{
    damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
    damacy__lz4_block block = {0, 0, 0, DAMACY__JOB_OK, 0};
    const uint8_t* src = nullptr;
    uint32_t size = 0;
    block.status = damacy__lz4_open(&job, &src, &size, &block.n);
    block.is_exact = job.expected_size != DAMACY__SIZE_UNKNOWN;
    if (block.status == DAMACY__JOB_OK) {
        const uint64_t max = DAMACY__LZ4_TOKENS((uint64_t)size, (uint64_t)block.n);
        if (lane == 0)
            block.first = damacy__atomic_add64((uint64_t*)(uintptr_t)wave->n_tokens, max);
        block.first = damacy__shfl(block.first, 0);
        if (block.first + max > wave->max_tokens)
            block.status = DAMACY__JOB_NEED_SCRATCH;
        else
            damacy__lz4_list(src, size, (uint32_t*)(uintptr_t)wave->tokens + block.first,
                             (uint32_t)max, shared, &block, lane);
        if (block.status == DAMACY__JOB_NO_SPACE && block.is_exact)
            block.status = DAMACY__JOB_SIZE_MISMATCH;
        if (block.status != DAMACY__JOB_OK) {
            block.n = 0;
            block.error_offset += job.flags & DAMACY__LZ4_SIZE_PREFIX ? 4 : 0;
        }
    }
    if (lane == 0)
        ((damacy__lz4_block*)(uintptr_t)wave->blocks)[index] = block;
}
