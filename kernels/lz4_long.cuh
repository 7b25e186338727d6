// Sequences of an LZ4 block one after another, by one warp, from global memory to global memory:
// for those that are long, or need more than a part of the source.
//
// The surprising rule: literals may be written before their sequence is found to be wrong or left
// to damacy__lz4_one, which writes the same again.
#pragma once

#include "kernels/bits.cuh"
#include "kernels/bytes.cuh"
#include "kernels/lz4_abi.h"

#ifndef DAMACY__LZ4_SPARSE
#define DAMACY__LZ4_SPARSE 64u // bytes of the source from token to token, or more
#endif
#define DAMACY__LZ4_CREDIT 1024 // at most; see damacy__lz4_long
#define DAMACY__LZ4_UNITS  4u   // loads of 16 bytes that a lane has under way

#ifndef DAMACY__LZ4_RATIO
#define DAMACY__LZ4_RATIO \
    15u // 16ths of its content that a block takes, or more, with long sequences
#endif

#ifndef DAMACY__LZ4_SHRUNK
#define DAMACY__LZ4_SHRUNK 24u // times its bytes, or more: what a block makes that shrinks much
#endif

// Output positions count from the 16-byte boundary at or below the first output byte, which is
// `first`. Bytes below `begin` are in global memory, others below `end` in the tile.
typedef struct damacy__lz4_state {
    const uint8_t* src;
    uint32_t size; // of the block
    uint8_t* origin;
    uint32_t first;
    uint32_t limit; // end of the output range
    uint32_t begin; // of the tile, a multiple of 32
    uint32_t end;
    uint32_t flushed; // all below is in global memory, a multiple of 16
    uint32_t part;    // place in BYTES of byte 0 of the block, were it there
    uint32_t status;
    uint32_t error_at; // byte of the block
} damacy__lz4_state;

// Ends the job with an error at byte `at` of the block.
DAMACY__INLINE bool damacy__lz4_fail(damacy__lz4_state* s, uint32_t status, uint32_t at)
{
    s->status = status;
    s->error_at = at;
    return false;
}

// The sum of the bytes of a length from *at on, the last of which is not 255. False if the source
// ends before, or if it is above `most`: then *sum is.
DAMACY__INLINE bool damacy__lz4_length(const damacy__lz4_state* s, uint32_t* at, uint32_t most,
                                       uint32_t* sum, uint32_t lane)
{
    for (;;) {
        const bool is_inside = lane < s->size - *at;
        const uint32_t byte = is_inside ? s->src[*at + lane] : 0;
        const uint32_t stops = damacy__ballot(byte != 255);
        const uint32_t k = stops ? damacy__ctz(stops) : 32;
        if (stops && k >= s->size - *at)
            return false;
        *sum += 255 * k + (stops ? damacy__shfl(byte, k & 31) : 0);
        if (*sum > most)
            return false;
        *at += stops ? k + 1 : 32;
        if (stops)
            return true;
    }
}

// Goes on with a run whose period 16 is a multiple of: n bytes at dst, by the warp. The 32 bytes
// before dst belong to it.
DAMACY__INLINE void damacy__lz4_fill(uint8_t* dst, uint32_t n, uint32_t lane)
{
    const uint32_t head = (0 - (uint32_t)(uintptr_t)dst) & 15;
    const uint32_t n_units = n > head ? (n - head) / 16 : 0, rest = head + 16 * n_units;
    damacy__u32x4* const units = (damacy__u32x4*)(dst + head);
    const damacy__u32x4 unit = *(const damacy__u32x4*)(dst + head - 32);
    const uint32_t i = lane < 16 ? lane : rest + lane - 16;
    const bool has = lane < 16 ? lane < damacy__min(head, n) : i < n;
    const uint8_t byte = has ? *(dst + head - 32 + ((i - head) & 15)) : 0;
    for (uint32_t k = lane; k < n_units; k += 32)
        units[k] = unit;
    if (has)
        dst[i] = byte;
}

// Copies n bytes from `offset` bytes below dst to dst, by the warp; they may overlap.
DAMACY__INLINE void damacy__lz4_repeat(uint8_t* dst, uint32_t offset, uint32_t n, uint32_t lane)
{
    uint32_t done = 0, far = offset;
    while (far < 512 && done < n) { // until the distance is large enough for whole copies
        const uint32_t m = damacy__min(far, n - done);
        for (uint32_t k = lane; k < m; k += 32)
            dst[done + k] = *(dst + done + k - far);
        damacy__sync_warp();
        done += m;
        far *= 2;
    }
    if (done < n && (offset & (offset - 1)) == 0 && offset <= 16) {
        damacy__lz4_fill(dst + done, n - done, lane);
        damacy__sync_warp();
        return;
    }
    while (done < n) {
        const uint32_t m = damacy__min(far, n - done);
        damacy__copy_group(dst + done, dst + done - far, m, lane, 32);
        damacy__sync_warp();
        done += m;
        if (far < 2048)
            far *= 2;
    }
}

// One sequence, from global memory to global memory. *at: from its token to the next.
DAMACY__INLINE bool damacy__lz4_one(damacy__lz4_state* s, uint32_t* at, uint32_t lane)
{
    const uint32_t place = *at, token = s->src[place], room = s->limit - s->end;
    uint32_t p = place + 1, n = token >> 4, n_match = 0, offset = 0;
    if (n == 15 && !damacy__lz4_length(s, &p, s->size, &n, lane))
        return damacy__lz4_fail(s, DAMACY__JOB_TRUNCATED, place);
    const uint32_t literals = p;
    damacy__prefetch_l2(s->src + damacy__min(place + 2048 + 128 * lane, s->size - 1));
    if (n > s->size - p)
        return damacy__lz4_fail(s, DAMACY__JOB_TRUNCATED, place);
    if (n > room)
        return damacy__lz4_fail(s, DAMACY__JOB_NO_SPACE, place);
    p += n;
    if (p != s->size) {
        if (s->size - p < 2)
            return damacy__lz4_fail(s, DAMACY__JOB_TRUNCATED, place);
        offset = (uint32_t)s->src[p] | (uint32_t)s->src[p + 1] << 8;
        p += 2;
        n_match = (token & 15) + 4;
        if (n_match == 19 && !damacy__lz4_length(s, &p, room, &n_match, lane))
            return damacy__lz4_fail(
                s, n_match > room ? DAMACY__JOB_NO_SPACE : DAMACY__JOB_TRUNCATED, place);
        if (n_match > room - n)
            return damacy__lz4_fail(s, DAMACY__JOB_NO_SPACE, place);
        if (offset - 1 >= s->end + n - s->first)
            return damacy__lz4_fail(s, DAMACY__JOB_BAD_OFFSET, place);
        if (p == s->size) // a block ends with literals
            return damacy__lz4_fail(s, DAMACY__JOB_TRUNCATED, place);
    }
    damacy__copy_group(s->origin + s->end, s->src + literals, n, lane, 32);
    damacy__sync_warp();
    s->end += n;
    damacy__lz4_repeat(s->origin + s->end, offset, n_match, lane);
    s->end += n_match;
    *at = p;
    return true;
}

// Byte `lane` of the source from `at` on; zero behind its end.
DAMACY__INLINE uint32_t damacy__lz4_byte(const damacy__lz4_state* s, uint32_t at, uint32_t lane)
{
    return at < s->size && lane < s->size - at ? s->src[at + lane] : 0;
}

// Copies n bytes, 16 or more, between ranges that do not overlap, by the warp, in units of 16 that
// are aligned in the output; [low, high) may be read.
DAMACY__INLINE void damacy__lz4_units(uint8_t* dst, const uint8_t* src, uint32_t n,
                                      const uint8_t* low, const uint8_t* high, uint32_t lane)
{
    const uint32_t head = (0 - (uint32_t)(uintptr_t)dst) & 15, n_units = (n - head) / 16;
    const uint32_t rest = head + 16 * n_units; // lanes up to 15 copy the head, others the rest
    const uint32_t i = lane < 16 ? lane : rest + lane - 16;
    const bool has = lane < 16 ? lane < head : i < n;
    const uint8_t v = has ? src[i] : 0;
    for (uint32_t k = lane; k < n_units; k += 32)
        *(damacy__u32x4*)(dst + head + 16 * k) = damacy__load16(src + head + 16 * k, low, high);
    if (has)
        dst[i] = v;
}

// Literals from the source to the output, which has room for them.
DAMACY__INLINE void damacy__lz4_literals(const damacy__lz4_state* s, uint32_t from, uint32_t n,
                                         uint32_t lane)
{
    uint8_t* const dst = s->origin + s->end;
    const uint8_t* const src = s->src + from;
    if (n <= 64) {
        uint8_t v[2] = {0, 0};
        if (lane < n)
            v[0] = src[lane];
        if (lane + 32 < n)
            v[1] = src[lane + 32];
        if (lane < n)
            dst[lane] = v[0];
        if (lane + 32 < n)
            dst[lane + 32] = v[1];
        return;
    }
    damacy__lz4_units(dst, src, n, s->src, s->src + s->size, lane);
}

// Long sequences one after another, from global memory to global memory, until their credit is used
// up: each brings its bytes and has its cost. The 32 bytes where literals end say all of the match
// and mostly of the literals that follow. What needs more of them, the last sequence and wrong ones
// are left where they are.
DAMACY__INLINE void damacy__lz4_long(damacy__lz4_state* s, uint32_t* at, int32_t* credit,
                                     uint32_t cost, uint32_t lane)
{
    uint32_t base = *at, byte = damacy__lz4_byte(s, base, lane);
    while (*credit > 0) {
        uint32_t d = *at - base;
        if (d > 24) {
            base = *at;
            byte = damacy__lz4_byte(s, base, lane);
            d = 0;
        }
        const uint32_t token = damacy__shfl(byte, d);
        uint32_t n = token >> 4, m = (token & 15) + 4, used = 2;
        d++;
        if (n == 15) {
            const uint32_t stops = damacy__ballot(byte != 255) >> d;
            const uint32_t k = stops ? damacy__ctz(stops) : 32;
            if (k == 32)
                return;
            n += 255 * k + damacy__shfl(byte, d + k);
            d += k + 1;
        }
        const uint32_t p = base + d + n, room = s->limit - s->end;
        if (p >= s->size || n > room)
            return;
        const uint32_t next = damacy__lz4_byte(s, p, lane);
        damacy__prefetch_l2(s->src + damacy__min(p + 1024 + 32 * lane, s->size - 1));
        damacy__lz4_literals(s, base + d, n, lane);
        const uint32_t offset = damacy__shfl(next, 0) | damacy__shfl(next, 1) << 8;
        if (m == 19) {
            const uint32_t stops = damacy__ballot(next != 255) >> 2;
            const uint32_t k = stops ? damacy__ctz(stops) : 32;
            if (k == 32)
                return;
            m += 255 * k + damacy__shfl(next, 2 + k);
            used += k + 1;
        }
        if (used >= s->size - p || m > room - n || offset - 1 >= s->end + n - s->first)
            return;
        uint8_t* const dst = s->origin + s->end + n;
        damacy__sync_warp(); // the literals are there
        if (m > 32)
            damacy__lz4_repeat(dst, offset, m, lane);
        else if (lane < m)
            dst[lane] = *(dst + (offset < m ? lane % offset : lane) - offset);
        s->end += n + m;
        *credit += (int32_t)(p + used - *at) - (int32_t)cost;
        *credit = *credit < DAMACY__LZ4_CREDIT ? *credit : DAMACY__LZ4_CREDIT;
        *at = p + used;
        base = p;
        byte = next;
    }
}

// Of n_units units of 16 bytes from `base` on, those at either end may reach out of [low, high):
// copies only their bytes inside, to shared address `units`, and returns the first of the others
// and the one behind the last. Threads of other warps may come, too, as lanes above 31.
DAMACY__INLINE damacy__u32x2 damacy__lz4_edges(uint32_t units, uint64_t base, uint32_t n_units,
                                               uint64_t low, uint64_t high, uint32_t lane)
{
    damacy__u32x2 inside;
    inside.x = base < low ? 1 : 0;
    inside.y = n_units - (base + 16ull * n_units > high ? 1 : 0);
    const uint32_t i = lane < 16 ? lane : 16 * (n_units - 1) + lane - 16;
    if ((lane < 16 ? inside.x != 0 : inside.y != n_units) && base + i >= low && base + i < high)
        damacy__sts8(units + i, *(const uint8_t*)(uintptr_t)(base + i));
    return inside;
}

// Brings `size` bytes of the block from `at` on to shared address `units`, 16 at a time; returns
// how far from it the first is. There is room for 15 bytes before them and behind them.
DAMACY__INLINE uint32_t damacy__lz4_fetch(const damacy__lz4_state* s, uint32_t units, uint32_t at,
                                          uint32_t size, uint32_t lane)
{
    const uint64_t low = (uint64_t)(uintptr_t)s->src, high = low + s->size;
    const uint64_t base = (low + at) & ~15ull;
    const uint32_t skew = (uint32_t)(low + at - base), n_units = (skew + size + 15) / 16;
    const damacy__u32x2 inside = damacy__lz4_edges(units, base, n_units, low, high, lane);
    const uint32_t from = inside.x, to = inside.y;
    const damacy__u32x4* const whole = (const damacy__u32x4*)(uintptr_t)base;
    for (uint32_t first = from; first < to; first += 32 * DAMACY__LZ4_UNITS) {
        damacy__u32x4 v[DAMACY__LZ4_UNITS];
#pragma unroll
        for (uint32_t k = 0; k < DAMACY__LZ4_UNITS; k++)
            v[k] = damacy__load_u32x4_once(whole + damacy__min(first + 32 * k + lane, to - 1));
#pragma unroll
        for (uint32_t k = 0; k < DAMACY__LZ4_UNITS; k++)
            damacy__sts128(units + 16 * damacy__min(first + 32 * k + lane, to - 1), v[k]);
    }
    if (at + size < s->size)
        damacy__prefetch_l2(s->src + damacy__min(at + size + 128 * lane, s->size - 1));
    damacy__sync_warp();
    return skew;
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

// The state of a job; the job is changed by what is in front of its block. *n: what it may produce,
// or needs if there is no space.
DAMACY__INLINE void damacy__lz4_begin(damacy__job* job, damacy__lz4_state* s, uint32_t* n)
{
    s->status = damacy__lz4_open(job, &s->src, &s->size, n);
    if (s->status != DAMACY__JOB_OK)
        s->size = 0;
    s->first = (uint32_t)(job->dst & 15);
    s->origin = (uint8_t*)(uintptr_t)(job->dst - s->first);
    s->limit = s->first + *n;
    s->begin = s->flushed = s->part = s->error_at = 0;
    s->end = s->first;
}

// Whether the sequences of a block may be long: it is hardly smaller than what is in it.
DAMACY__INLINE bool damacy__lz4_is_sparse(const damacy__lz4_state* s)
{
    return s->status == DAMACY__JOB_OK &&
           16ull * s->size >= (uint64_t)DAMACY__LZ4_RATIO * (s->limit - s->first);
}

// Whether a block makes that many times its bytes, or more: then most sequences are long.
DAMACY__INLINE bool damacy__lz4_shrinks(const damacy__lz4_state* s, uint32_t times)
{
    return (uint64_t)times * s->size <= s->limit - s->first;
}

// Whether damacy_lz4_sparse takes a block to its end, where no teams come behind it.
DAMACY__INLINE bool damacy__lz4_is_shrunk(const damacy__lz4_state* s)
{
    return s->status == DAMACY__JOB_OK && damacy__lz4_shrinks(s, DAMACY__LZ4_SHRUNK);
}

// What is known of a block meanwhile, by word of its result. AT and OUT are pairs of words, see
// lz4_relay_part.cuh.
enum : uint32_t {
    DAMACY__LZ4_RELAY_AT = 0,   // first token of a part, in the source
    DAMACY__LZ4_RELAY_OUT = 2,  // its output position
    DAMACY__LZ4_RELAY_DONE = 4, // below it all output is there
    DAMACY__LZ4_RELAY_LEFT = 5, // 0, or one more than the token from which on the block is left
    DAMACY__LZ4_RELAY_VAIN = 0xffffffff,    // LEFT: a team has waited in vain
    DAMACY__LZ4_RELAY_SIZE_MAX = 0x3f000000 // of a source, for parts to be counted in 16 bits
};

DAMACY__INLINE uint32_t* damacy__lz4_relay_words(const damacy__lz4_wave* wave, uint32_t index)
{
    return (uint32_t*)(void*)((damacy__job_result*)(uintptr_t)wave->results + index);
}

// Whether a block that begins so is for relays. (Runs of megabytes are sooner made by one team.)
DAMACY__INLINE bool damacy__lz4_is_relay(const damacy__lz4_wave* wave, const damacy__lz4_state* s)
{
    const uint32_t room = s->limit - s->first;
    if (wave->relay_size == 0 || s->status != DAMACY__JOB_OK || room < wave->relay_size ||
        s->size >= DAMACY__LZ4_RELAY_SIZE_MAX)
        return false;
    return !damacy__lz4_shrinks(s, DAMACY__LZ4_RELAY_SHRINK) ||
           (room >= wave->relay_shrunk && !damacy__lz4_shrinks(s, DAMACY__LZ4_RELAY_SHRUNK));
}

// Makes a job ready for relays. One thread, in a kernel before them.
DAMACY__INLINE void damacy__lz4_relay_init(const damacy__lz4_wave* wave, uint32_t index,
                                           const damacy__lz4_state* s)
{
    damacy__job* const job = (damacy__job*)(uintptr_t)wave->jobs + index;
    uint32_t* const words = damacy__lz4_relay_words(wave, index);
    job->flags &= DAMACY__LZ4_RELAY_PARTS - 1u;
    words[DAMACY__LZ4_RELAY_AT] = words[DAMACY__LZ4_RELAY_AT + 1] = 0;
    words[DAMACY__LZ4_RELAY_OUT] = words[DAMACY__LZ4_RELAY_DONE] = s->first;
    words[DAMACY__LZ4_RELAY_OUT + 1] = words[DAMACY__LZ4_RELAY_LEFT] = 0;
}

// Leaves a job to the next kernel, from byte `at` of the block on. One thread; result->zero is not
// written.
DAMACY__INLINE void damacy__lz4_leave(damacy__job_result* result, const damacy__lz4_state* s,
                                      uint32_t at)
{
    result->size = s->end;
    result->error_offset = at;
    result->status = DAMACY__LZ4_GOES_ON;
}

// Takes a job up where it was left. False if it was not: there is a result.
DAMACY__INLINE bool damacy__lz4_resume(const damacy__job_result* result, damacy__lz4_state* s,
                                       uint32_t* at)
{
    if (result->status != DAMACY__LZ4_GOES_ON)
        return false;
    *at = (uint32_t)result->error_offset;
    s->end = (uint32_t)result->size;
    return true;
}

// Writes down what came of a job, which is read again, as its decoding needs the registers.
DAMACY__INLINE void damacy__lz4_finish(const damacy__lz4_wave* wave, uint32_t index,
                                       const damacy__lz4_state* s, uint32_t lane)
{
    damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
    damacy__lz4_state start;
    uint32_t n, status = s->status;
    uint64_t size = 0, at = 0;
    damacy__lz4_begin(&job, &start, &n);
    const bool is_exact = job.expected_size != DAMACY__SIZE_UNKNOWN;
    if (start.status != DAMACY__JOB_OK) {
        size = status == DAMACY__JOB_NO_SPACE ? n : 0; // the need
    } else if (status != DAMACY__JOB_OK) {
        at = s->error_at + (uint64_t)(job.flags & DAMACY__LZ4_SIZE_PREFIX ? 4 : 0);
        if (status == DAMACY__JOB_NO_SPACE && is_exact)
            status = DAMACY__JOB_SIZE_MISMATCH;
    } else if (is_exact && s->end != s->limit) {
        status = DAMACY__JOB_SIZE_MISMATCH;
        at = job.src_size;
    } else {
        size = s->end - s->first;
    }
    if (lane == 0) {
        damacy__job_result* const result = (damacy__job_result*)(uintptr_t)wave->results + index;
        result->size = size;
        result->error_offset = at;
        result->zero = 0;
        result->status = status;
    }
}
