// Sequences of an LZ4 block that are long, by one warp: a part of the source is brought into shared
// memory and walked from token to token; then the literals of up to 32 sequences go to the output,
// sequence by sequence, and their matches after them, a lane each.
//
// The surprising rule: literals are written in whole words, up to 3 bytes of the matches beside
// them too. A match has 4 bytes or more and comes later, so no two sequences share a word.
#pragma once

#include "kernels/lz4_shrunk.cuh"

#define DAMACY__LZ4_FAR    48u   // bytes of the source from token to token, or more, go on here
#define DAMACY__LZ4_NEAR   24u   // the same, of the 2nd to 8th token, to begin
#define DAMACY__LZ4_TASTE  1024u // bytes of the source that are looked at first, and then
#define DAMACY__LZ4_FILL   4096u // bytes of the source at a time
#define DAMACY__LZ4_LEAD   16u   // bytes before them that may be read, and written to no end
#define DAMACY__LZ4_FUND   4096  // see damacy__lz4_sparse
#define DAMACY__LZ4_SHORT  16u   // bytes of a match that is left to a lane, at most
#define DAMACY__LZ4_WIDEST 512u  // of any match that is handled here

// One warp's shared memory.
typedef struct damacy__lz4_stage {
    damacy__u32x4 list[32]; // sequences, see damacy__lz4_gather
    alignas(16) uint8_t bytes[DAMACY__LZ4_LEAD + DAMACY__LZ4_FILL + 320];
    uint32_t place;  // of the sequence that was opened last: byte of the block with its token,
    uint32_t before; // and the output before it
} damacy__lz4_stage;
typedef struct damacy__lz4_pair {
    damacy__lz4_stage stages[2];
} damacy__lz4_pair;

// Where a walk stands. A sequence is open from its literals on until its match is known.
typedef struct damacy__lz4_walker {
    uint32_t at; // place in stage->bytes
    uint32_t x;  // of the output
    bool is_open;
    uint32_t rest;    // of the open one: literals to come,
    uint32_t n_match; // 4 to 19, as its token says
} damacy__lz4_walker;

// Adds the bytes of a length from *at on, the last of which is not 255. False if they do not end
// below `end`.
DAMACY__INLINE bool damacy__lz4_span(const damacy__lz4_stage* stage, uint32_t* at, uint32_t end,
                                     uint32_t* sum, uint32_t lane)
{
    const uint32_t first = stage->bytes[*at];
    if (first != 255) {
        *sum += first;
        return ++*at <= end;
    }
    for (; *at < end; *at += 32) {
        const uint32_t byte = stage->bytes[*at + lane], stops = damacy__ballot(byte != 255);
        if (stops) {
            const uint32_t k = damacy__ctz(stops);
            *sum += 255 * k + damacy__shfl(byte, k);
            *at += k + 1;
            return *at <= end;
        }
        *sum += 255 * 32;
    }
    return false;
}

// Walks sequences that have fewer than 525 literals and matches of less than 274 bytes and end in
// the part: the n-th of a batch and more, as far as they are such. See damacy__lz4_gather.
DAMACY__INLINE uint32_t damacy__lz4_stride(const damacy__lz4_state* s, damacy__lz4_stage* stage,
                                           damacy__lz4_walker* w, uint32_t end, uint32_t n,
                                           uint32_t most, uint32_t lane)
{
    uint32_t at = w->at, x = w->x;
    while (n < most) {
        const uint8_t* const p = stage->bytes + at;
        const uint32_t token = p[0], one = p[1], two = p[2];
        damacy__u32x4 q;
        q.x = at + 1;
        q.y = x;
        q.z = token >> 4;
        if (q.z == 15) {
            q.x += one == 255 ? 2 : 1;
            q.z += one == 255 ? 255 + two : one;
            if (one == 255 && two == 255)
                break;
        }
        const uint32_t last = q.x + q.z, to = x + q.z;
        if (last + 3 >= end)
            break;
        const uint8_t* const rest = stage->bytes + last;
        const uint32_t offset = (uint32_t)rest[0] | (uint32_t)rest[1] << 8, more = rest[2];
        const bool is_longer = (token & 15) == 15;
        const uint32_t n_match = (token & 15) + 4 + (is_longer ? more : 0);
        if ((is_longer && more == 255) || offset - 1 >= to - s->first || to + n_match > s->limit)
            break;
        q.w = offset | n_match << 16;
        if (lane == 0)
            stage->list[n] = q;
        n++;
        at = last + (is_longer ? 3 : 2);
        x = to + n_match;
    }
    w->at = at;
    w->x = x;
    return n;
}

// Walks up to `most` sequences, 32 or fewer, and writes down what they do: .x: place of literals,
// .y: where they go, .z: how many; .w: offset and, 16 bits up, length of the match, 0: none yet.
// Returns how many. Stops before what is wrong or does not end in the part.
DAMACY__INLINE uint32_t damacy__lz4_gather(const damacy__lz4_state* s, damacy__lz4_stage* stage,
                                           damacy__lz4_walker* w, uint32_t end, uint32_t most,
                                           uint32_t lane)
{
    uint32_t n = 0;
    bool is_whole = true;
    while (is_whole) {
        if (!w->is_open)
            n = damacy__lz4_stride(s, stage, w, end, n, most, lane);
        if (n == most)
            break;
        uint32_t at = w->at;
        if (!w->is_open) {
            const uint32_t token = stage->bytes[at];
            uint32_t count = token >> 4;
            at++;
            if (w->at >= end || (count == 15 && !damacy__lz4_span(stage, &at, end, &count, lane)))
                break;
            if (count > s->size - (at - s->part) || count > s->limit - w->x)
                break;
            w->is_open = true;
            w->rest = count;
            w->n_match = (token & 15) + 4;
            if (lane == 0) {
                stage->place = w->at - s->part;
                stage->before = w->x;
            }
        }
        damacy__u32x4 q;
        q.x = at;
        q.y = w->x;
        q.z = damacy__min(w->rest, end - at);
        w->at = at += q.z;
        w->x += q.z;
        w->rest -= q.z;
        const uint32_t offset = (uint32_t)stage->bytes[at] | (uint32_t)stage->bytes[at + 1] << 8;
        const uint32_t room = damacy__min(s->limit - w->x, DAMACY__LZ4_WIDEST);
        uint32_t n_match = w->n_match;
        at += 2;
        is_whole = w->rest == 0 && at <= end;
        if (n_match == 19 && is_whole)
            is_whole = damacy__lz4_span(stage, &at, end, &n_match, lane);
        is_whole =
            is_whole && at != s->size + s->part && n_match <= room && offset - 1 < w->x - s->first;
        q.w = is_whole ? offset | n_match << 16 : 0;
        if (lane == 0)
            stage->list[n] = q;
        if (is_whole) {
            w->at = at;
            w->x += n_match;
            w->is_open = false;
        }
        n += is_whole || q.z != 0 ? 1 : 0;
    }
    damacy__sync_warp();
    return n;
}

// The literals of a batch to the output: words of 4 bytes that hold any. Of the first sequence and
// of one without a match single bytes, as what is beside them is complete, or is not the batch's.
DAMACY__INLINE void damacy__lz4_put(const damacy__lz4_state* s, const damacy__lz4_stage* stage,
                                    uint32_t n, uint32_t lane)
{
    for (uint32_t k = 0; k < n; k++) {
        const damacy__u32x4 q = stage->list[k];
        uint32_t skew = q.y & 3, size = (skew + q.z + 3) & ~3u; // from a word's start on
        if (k == 0 || q.w == 0) {
            const uint32_t head = damacy__min(k == 0 ? (0 - q.y) & 3 : 0, q.z);
            const uint32_t last = q.y + q.z, tail = damacy__max(last & ~3u, q.y) + lane;
            if (lane < head)
                s->origin[q.y + lane] = stage->bytes[q.x + lane];
            if (q.w == 0 && tail < last)
                s->origin[tail] = stage->bytes[q.x + tail - q.y];
            size = q.w == 0 ? (skew + q.z) & ~3u : size;
            skew -= k == 0 && skew != 0 ? 4 : 0; // the word after the first
            size -= k == 0 && (q.y & 3) != 0 ? damacy__min(4, size) : 0;
        }
        const uint32_t from = q.x - skew, shift = 8 * (from & 3);
        const uint32_t* words = (const uint32_t*)(stage->bytes + (from & ~3u)) + lane;
        uint8_t* const dst = s->origin + (q.y - skew);
        uint32_t x = 4 * lane;
        for (; x + 384 < size; x += 512, words += 128) {
            uint32_t v[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                v[i] = damacy__funnel_right(words[32 * i], words[32 * i + 1], shift);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                *(uint32_t*)(dst + x + 128 * i) = v[i];
        }
        for (; x < size; x += 128, words += 32)
            *(uint32_t*)(dst + x) = damacy__funnel_right(words[0], words[1], shift);
    }
}

// How many of the first matches of a batch must be complete before the one at `to`, which begins
// to copy at `from` and needs no more than what is below `until`.
DAMACY__INLINE uint32_t damacy__lz4_need(const damacy__lz4_stage* stage, uint32_t from,
                                         uint32_t until, uint32_t n)
{
    uint32_t last = 0; // match that begins below `until`; the first does
    for (uint32_t step = 16; step != 0; step /= 2) {
        const damacy__u32x4 q = stage->list[damacy__min(last + step, 31)];
        if (last + step < n && q.y + q.z < until)
            last += step;
    }
    const damacy__u32x4 q = stage->list[last];
    return q.y + q.z + (q.w >> 16) > from ? last + 1 : 0;
}

// Matches of a batch of n sequences, whose literals are written: each round those that need
// nothing from others to come.
DAMACY__INLINE void damacy__lz4_matches(const damacy__lz4_state* s, const damacy__lz4_stage* stage,
                                        uint32_t n, uint32_t lane)
{
    damacy__u32x4 q = {0, 0, 0, 0};
    if (lane < n)
        q = stage->list[lane];
    const uint32_t to = q.y + q.z, offset = q.w & 0xffff, m = q.w >> 16, from = to - offset;
    const uint32_t until = from + damacy__min(m, offset), start = damacy__shfl(to, 0);
    const bool is_short = m <= DAMACY__LZ4_SHORT && offset >= m;
    const uint32_t need = until > start && m != 0 ? damacy__lz4_need(stage, from, until, n) : 0;
    const uint8_t* const high = s->origin + s->limit;
    uint32_t pending = damacy__ballot(m != 0);
    while (pending) {
        const bool is_ready = (pending >> lane & 1) && need <= damacy__ctz(pending);
        uint32_t longs = damacy__ballot(is_ready && !is_short);
        pending &= ~damacy__ballot(is_ready);
        if (is_ready && is_short)
            for (uint32_t k = 0; k < m; k += 8) {
                const uint32_t some = damacy__min(m - k, 8);
                damacy__scatter8(
                    s->origin + to + k,
                    damacy__gather8(s->origin + from + k, some, s->origin + s->first, high), some);
            }
        for (; longs; longs &= longs - 1) {
            const uint32_t k = damacy__ctz(longs), len = damacy__shfl(m, k);
            const uint32_t way = damacy__shfl(offset, k);
            uint8_t* const dst = s->origin + damacy__shfl(to, k);
            const uint32_t step = 32 % way;
            uint32_t x = lane % way;
            for (uint32_t i = lane; i < len; i += 32) {
                dst[i] = *(dst + x - way);
                x += step;
                x -= x >= way ? way : 0;
            }
        }
        damacy__sync_warp();
    }
}

// Sequences from the block's start on as long as they are far apart: each brings its bytes to a
// fund and takes DAMACY__LZ4_FAR. Returns the first byte that is not done, 0 if they are not far
// apart from the start.
DAMACY__INLINE uint32_t damacy__lz4_sparse(damacy__lz4_state* s, damacy__lz4_stage* stage,
                                           uint32_t lane)
{
    damacy__lz4_walker w = {0, s->end, false, 0, 0};
    uint32_t here = 0;
    int32_t fund = 0;
    const uint32_t units = damacy__shared_address(stage->bytes + DAMACY__LZ4_LEAD);
    while (fund >= 0 && here < s->size) {
        const uint32_t size =
            damacy__min(s->size - here, here == 0 ? DAMACY__LZ4_TASTE : DAMACY__LZ4_FILL);
        const uint32_t begin = DAMACY__LZ4_LEAD + damacy__lz4_fetch(s, units, here, size, lane);
        uint32_t n, most = here == 0 ? 8 : 32;
        bool is_full = true;
        w.at = begin;
        s->part = begin - here;
        while (is_full && fund >= 0) {
            const uint32_t before = w.at;
            n = damacy__lz4_gather(s, stage, &w, begin + size, most, lane);
            is_full = n == most;
            // the first has more literals than others, as there was nothing to match
            if (most == 8 && is_full && w.at - stage->list[1].x < 7 * DAMACY__LZ4_NEAR)
                return 0;
            damacy__lz4_put(s, stage, n, lane);
            damacy__sync_warp(); // the literals are there
            damacy__lz4_matches(s, stage, n, lane);
            fund += (int32_t)(w.at - before) - (int32_t)(n * DAMACY__LZ4_FAR);
            fund = fund < DAMACY__LZ4_FUND ? fund : DAMACY__LZ4_FUND;
            if (most == 8 && fund < 0)
                fund = 0;
            most = 32;
        }
        if (w.at == begin)
            break;
        here = w.at - s->part;
    }
    if (!w.is_open || (w.rest == 0 && here == s->size)) {
        s->end = w.x;
        return here;
    }
    s->end = stage->before;
    return stage->place;
}

// One job, by one warp: to its end, or until a team or damacy_lz4 is to go on.
DAMACY__INLINE void damacy__lz4_sparse_job(const damacy__lz4_wave* wave, damacy__lz4_stage* stage,
                                           uint32_t team_size, uint32_t index, uint32_t lane)
{
    damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
    damacy__lz4_state s;
    uint32_t n, at;
    const bool is_team = job.dst_capacity >= team_size;
    damacy__lz4_begin(&job, &s, &n);
    if (damacy__lz4_is_relay(wave, &s)) {
        if (lane == 0)
            damacy__lz4_relay_init(wave, index, &s);
        return;
    }
    if (!is_team && damacy__lz4_is_shrunk(&s)) {
        const uint32_t memory = damacy__shared_address(stage->bytes);
        damacy__lz4_shrunk(&s, memory, DAMACY__LZ4_FILL, lane);
        at = s.size;
    } else if (damacy__lz4_is_sparse(&s)) {
        at = damacy__lz4_sparse(&s, stage, lane);
    } else {
        return; // not begun
    }
    damacy__lz4_finish(wave, index, &s, lane);
    if (lane == 0 && at != s.size)
        damacy__lz4_leave((damacy__job_result*)(uintptr_t)wave->results + index, &s, at);
    damacy__sync_warp(); // before shared memory is used again
}
