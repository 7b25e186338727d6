// Decodes LZ4 blocks, several warps each, for waves of few or large ones. A part of the source is
// brought into shared memory and its tokens are found (lz4_team_tokens.cuh); a batch of sequences
// becomes a map of output bytes to source bytes; then each thread makes four bytes of a step,
// 128 of a warp. The last 8 KiB of the output stay in shared memory, as a ring.
//
// The surprising rule: bytes of a step are made at once, so a byte whose source lies in its own
// step follows that one's source, and so on, until it has left the step; others shorten the way
// while it is followed. What is odd (an error, or a sequence that a part or the map does not hold)
// is left to damacy__lz4_one by one warp and, if wrong, to damacy_lz4, which says what is wrong.
#pragma once

#include "kernels/lz4_decode.cuh"
#include "kernels/lz4_planes.cuh"
#include "kernels/lz4_team_tokens.cuh"

// Adds to the sequences of a batch what the map says of their bytes: from an output position to
// its source, which is a place behind RING with LITERAL, or else an output position.
#define DAMACY__LZ4_LITERAL 0x80000000u

// What all threads know of a block.
typedef struct damacy__lz4_work {
    damacy__lz4_tokens tokens;
    uint32_t at;        // next token, in the source
    uint32_t ring_from; // first output position that the ring has, if it has not been overwritten
    uint32_t parity;    // of the step
} damacy__lz4_work;

// Writes units of the ring below `end` to global memory.
template <class S>
DAMACY__INLINE void damacy__lz4_team_flush(damacy__lz4_state* s, uint32_t base, uint32_t end)
{
    for (uint32_t x = s->flushed + 16 * threadIdx.x; x + 16 <= end; x += 16 * S::THREADS) {
        const uint32_t from = base + S::RING + x % S::RING_SIZE;
        if (x >= s->first)
            *(damacy__u32x4*)(s->origin + x) = damacy__lds128(from);
        else
#pragma unroll 1
            for (uint32_t i = s->first; i < 16; i++)
                s->origin[i] = (uint8_t)damacy__lds8(from + i);
    }
    s->flushed = damacy__max(s->flushed, end & ~15u);
}

// All that there is, to the last byte.
template <class S>
DAMACY__INLINE void damacy__lz4_team_flush_all(damacy__lz4_state* s, uint32_t base)
{
    damacy__sync_block();
    damacy__lz4_team_flush<S>(s, base, s->end);
    const uint32_t x = s->flushed + threadIdx.x;
    if (x < s->end && x >= s->first)
        s->origin[x] = (uint8_t)damacy__lds8(base + S::RING + x % S::RING_SIZE);
    damacy__sync_block();
}

// Continues the ring where the output in global memory ends. No barrier: a part begins with one.
template <class S>
DAMACY__INLINE void damacy__lz4_team_ring(damacy__lz4_state* s, damacy__lz4_work* w, uint32_t base)
{
    const uint32_t x = (s->end & ~15u) + threadIdx.x;
    if (x < s->end && x >= s->first)
        damacy__sts8(base + S::RING + x % S::RING_SIZE, s->origin[x]);
    s->flushed = w->ring_from = s->end & ~15u;
}

// Sequences of a thread.
template <class S> struct damacy__lz4_each {
    damacy__lz4_sequence q[S::EACH];
    uint32_t n;   // of them are whole, and all before them of the thread
    uint32_t sum; // of their bytes, and of RUN for each run
};

// Reads a thread's sequences, of the tokens from `first` on.
template <class S>
DAMACY__INLINE void damacy__lz4_team_read(const damacy__lz4_tokens* t, uint32_t base,
                                          uint32_t first, damacy__lz4_each<S>* e)
{
    const uint32_t memory = base + S::BYTES - DAMACY__LZ4_BYTES;
    bool is_whole[S::EACH];
    uint32_t token[S::EACH];
    e->n = e->sum = 0;
    if (first - S::EACH * damacy__lane() >= t->n_tokens) // of none of the warp
        return;
#pragma unroll
    for (uint32_t k = 0; k < S::EACH; k++) {
        token[k] = damacy__lds16(base + S::TOKENS + 2 * damacy__min(first + k, t->n_tokens - 1));
        is_whole[k] = damacy__lz4_read_quickly(memory, token[k], t->end, &e->q[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < S::EACH; k++) {
        damacy__lz4_sequence* const q = &e->q[k];
        if (!is_whole[k])
            is_whole[k] = damacy__lz4_read(memory, token[k], t->end, t->is_last, q);
        // a block ends with literals, so that a match at its end is wrong
        is_whole[k] = is_whole[k] && q->n_literals <= S::LONGEST &&
                      q->n_match <= S::LONGEST - q->n_literals &&
                      !(t->is_last && q->n_match != 0 && q->next == t->end);
        if (first + k < t->n_tokens && is_whole[k] && e->n == k) {
            e->n++;
            e->sum += q->n_literals + q->n_match + damacy__lz4_runs(q) * DAMACY__LZ4_RUN;
        }
    }
}

// A run of the map from byte y of the batch on.
template <class S>
DAMACY__INLINE void damacy__lz4_team_run_at(uint32_t base, uint32_t y, uint32_t run, uint32_t delta)
{
    damacy__shared_or(base + S::WINDOWS + y / 32 * 8, 1u << (y % 32));
    damacy__sts32(base + S::DELTA + 4 * run, delta);
}

// Puts a thread's sequences into the map, from byte y and a run on. Returns how many find room and
// are right; *end: where these end.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_team_map(const damacy__lz4_state* s, uint32_t base,
                                             const damacy__lz4_each<S>* e, uint32_t y, uint32_t run,
                                             uint32_t* end)
{
    const uint32_t room = damacy__min(s->limit - s->end, (uint32_t)S::MAP);
    uint32_t n = 0;
#pragma unroll
    for (uint32_t k = 0; k < S::EACH; k++) {
        const damacy__lz4_sequence q = e->q[k];
        const uint32_t match = y + q.n_literals, past = match + q.n_match;
        const bool is_bad = q.n_match != 0 && q.offset - 1 >= s->end + match - s->first;
        if (k < e->n && n == k && past <= room && !is_bad) {
            n++;
            if (q.n_literals != 0)
                damacy__lz4_team_run_at<S>(base, y, run++,
                                           DAMACY__LZ4_LITERAL + (S::BYTES - S::RING) + q.literals -
                                               (s->end + y));
            if (q.n_match != 0)
                damacy__lz4_team_run_at<S>(base, match, run++, 0 - q.offset);
            y = past;
        }
    }
    *end = y;
    return n;
}

// Of each window of the map: the place in DELTA of the run before it. All threads.
template <class S> DAMACY__INLINE void damacy__lz4_team_windows(uint32_t base)
{
    const uint32_t at = base + S::WINDOWS + 8 * S::WINDOWS_EACH * threadIdx.x;
    uint32_t n[S::WINDOWS_EACH], sum = 0;
#pragma unroll
    for (uint32_t k = 0; k < S::WINDOWS_EACH; k++) {
        n[k] = damacy__popc(damacy__lds32(at + 8 * k));
        sum += n[k];
    }
    uint32_t run = damacy__lz4_team_sum<S>(sum, base + S::MORE_SUMS);
#pragma unroll
    for (uint32_t k = 0; k < S::WINDOWS_EACH; k++) {
        damacy__sts32(at + 8 * k + 4, base + S::DELTA + 4 * run - 4);
        run += n[k];
    }
    damacy__sync_block();
}

// Makes the map of a batch, from the part's next token on. Returns the bytes that it comes to.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_team_batch(damacy__lz4_state* s, damacy__lz4_work* w,
                                               uint32_t base, uint32_t* n_done)
{
    const uint32_t first = S::EACH * threadIdx.x, at = base + S::WINDOWS;
    damacy__lz4_each<S> e;
    uint32_t end;
#pragma unroll
    for (uint32_t k = 0; k < S::WINDOWS_EACH; k++)
        damacy__sts32(at + 8 * (S::WINDOWS_EACH * threadIdx.x + k), 0);
    damacy__lz4_team_read<S>(&w->tokens, base, w->tokens.n_done + first, &e);
    const uint32_t before = damacy__lz4_team_sum<S>(e.sum, base + S::SUMS);
    const uint32_t n = damacy__lz4_team_map<S>(s, base, &e, before % DAMACY__LZ4_RUN,
                                               before / DAMACY__LZ4_RUN, &end);
    const uint32_t shorts = damacy__ballot(n < S::EACH); // who has the first that is not in the map
    const uint32_t who = shorts ? damacy__ctz(shorts) : 31;
    end = damacy__shfl(end, who);
    const uint32_t index = damacy__shfl(first + n, who);
    if (damacy__lane() == 0)
        damacy__sts64(base + S::ENDS + threadIdx.x / 32 * 8, shorts ? index : S::BATCH, end);
    damacy__sync_block();
    *n_done = S::BATCH;
    for (uint32_t i = 0; i < S::WARPS && *n_done == S::BATCH; i++) {
        const damacy__u32x2 v = damacy__lds64(base + S::ENDS + 8 * i);
        *n_done = v.x;
        end = v.y;
    }
    if (end != 0)
        damacy__lz4_team_windows<S>(base);
    return end;
}

// Loads that the assembler leaves in their order: it would put each before its use, and wait.
DAMACY__INLINE damacy__u32x2 damacy__lz4_team_window(uint32_t at)
{
#ifdef __CUDACC__
    damacy__u32x2 v;
    asm volatile("ld.volatile.shared.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
#else
    return damacy__lds64(at);
#endif
}

DAMACY__INLINE uint32_t damacy__lz4_team_delta(uint32_t at)
{
#ifdef __CUDACC__
    uint32_t v;
    asm volatile("ld.volatile.shared.u32 %0,[%1];" : "=r"(v) : "r"(at));
    return v;
#else
    return damacy__lds32(at);
#endif
}

// What leads from a thread's bytes of the step from byte `r` of the map on to their sources.
template <class S>
DAMACY__INLINE void damacy__lz4_team_deltas(uint32_t base, uint32_t r, uint32_t* q)
{
    const uint32_t lane = damacy__lane(), here = (2u << lane) - 1;
    const uint32_t windows = base + S::WINDOWS + (r + threadIdx.x - lane) / 4;
    damacy__u32x2 window[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        window[k] = damacy__lz4_team_window(windows + S::THREADS / 4 * k);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        q[k] = damacy__lz4_team_delta(window[k].y + 4 * damacy__popc(window[k].x & here));
}

// Where a thread's bytes of the step from byte `r` of the batch on come from. Those at or above
// `size` come from the part.
template <class S>
DAMACY__INLINE void damacy__lz4_team_sources(uint32_t base, uint32_t end, uint32_t r, uint32_t size,
                                             uint32_t* q)
{
    damacy__lz4_team_deltas<S>(base, r, q);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t i = r + S::THREADS * k + threadIdx.x;
        q[k] = i < size ? end + i + q[k] : DAMACY__LZ4_LITERAL + S::RING_SIZE;
    }
}

// Loads v if q is an output position below `low`, which the ring has no more.
DAMACY__INLINE void damacy__lz4_team_far(uint32_t* v, const uint8_t* origin, uint32_t q,
                                         uint32_t low)
{
#ifdef __CUDACC__
    asm volatile("{.reg .pred p; setp.lt.u32 p,%1,%2; @p ld.global.u8 %0,[%3];}"
                 : "+r"(*v)
                 : "r"(q), "r"(low), "l"(origin + q));
#else
    if (q < low)
        *v = origin[q];
#endif
}

// The same if it is not, or a literal.
template <class S>
DAMACY__INLINE void damacy__lz4_team_near(uint32_t* v, uint32_t base, uint32_t q, uint32_t low)
{
    const uint32_t place = base + S::RING + (q & ((int32_t)q < 0 ? S::PLACES : S::RING_SIZE - 1));
#ifdef __CUDACC__
    asm volatile("{.reg .pred p; setp.ge.u32 p,%1,%2; @p ld.shared.u8 %0,[%3];}"
                 : "+r"(*v)
                 : "r"(q), "r"(low), "r"(place));
#else
    if (q >= low)
        *v = damacy__lds8(place);
#endif
}

// Links of the bytes of a step to their sources. Others may store what is loaded, but all that they
// store leads to the same source, and 32 bits come at once. (Accesses that are relaxed by name make
// the assembler take the loop for a wait, in which lanes go on alone: 11 to 47 %.) Loads that of
// byte d if the step has as many bytes.
DAMACY__INLINE void damacy__lz4_link_load(uint32_t* q, uint32_t links, uint32_t d, uint32_t step)
{
#ifdef __CUDACC__
    asm volatile("{.reg .pred p; setp.lt.u32 p,%1,%2; @p ld.shared.u32 %0,[%3];}"
                 : "+r"(*q)
                 : "r"(d), "r"(step), "r"(links + 4 * d));
#else
    if (d < step)
        *q = damacy__lds32(links + 4 * d);
#endif
}

DAMACY__INLINE void damacy__lz4_link_store(uint32_t links, uint32_t d, uint32_t q)
{
#ifdef __CUDACC__
    asm volatile("st.shared.u32 [%0],%1;" ::"r"(links + 4 * d), "r"(q));
#else
    damacy__sts32(links + 4 * d, q);
#endif
}

// Follows a thread's sources until they are below `from`, the step's first byte.
template <class S>
DAMACY__INLINE void damacy__lz4_team_chase(uint32_t links, uint32_t from, uint32_t* q)
{
    uint32_t d[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        d[k] = q[k] - from;
    while (damacy__min(damacy__min(d[0], d[1]), damacy__min(d[2], d[3])) < S::STEP) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            damacy__lz4_link_load(&q[k], links, d[k], S::STEP);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            damacy__lz4_link_store(links, S::THREADS * k + threadIdx.x, q[k]);
            d[k] = q[k] - from;
        }
    }
}

// Makes the bytes that the map has, in steps.
template <class S>
DAMACY__INLINE void damacy__lz4_team_copy(damacy__lz4_state* s, damacy__lz4_work* w, uint32_t base,
                                          uint32_t size)
{
    for (uint32_t r = 0; r < size; r += S::STEP) {
        const uint32_t from = s->end + r, past = from + S::STEP;
        const uint32_t links = base + S::LINKS + (w->parity ^= 4 * S::STEP);
        const uint32_t low =
            damacy__max(w->ring_from, past > S::RING_SIZE ? past - S::RING_SIZE : 0);
        uint32_t q[4], v[4];
        bool is_inside = false;
        damacy__lz4_team_sources<S>(base, s->end, r, size, q);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            v[k] = 0;
            damacy__lz4_link_store(links, S::THREADS * k + threadIdx.x, q[k]);
            is_inside = is_inside || q[k] - from < S::STEP;
        }
        damacy__sync_block(); // all links are there, and all bytes of the step before
        if (from - s->flushed >= 16 * S::THREADS)
            damacy__lz4_team_flush<S>(s, base, from);
        if (is_inside)
            damacy__lz4_team_chase<S>(links, from, q);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            damacy__lz4_team_far(&v[k], s->origin, q[k], low);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            damacy__lz4_team_near<S>(&v[k], base, q[k], low);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t i = S::THREADS * k + threadIdx.x;
            if (r + i < size)
                damacy__sts8(base + S::RING + (from + i) % S::RING_SIZE, v[k]);
        }
    }
    s->end += size;
}

// Whether the sequence at byte `at` of the block is more than a map holds, or the block nearly
// ends: such are not worth a part of their own. Whole warps.
DAMACY__INLINE bool damacy__lz4_is_odd(const damacy__lz4_state* s, uint32_t at)
{
    const uint32_t rest = s->size - at, lane = damacy__lane();
    if (rest <= 8)
        return true;
    const uint32_t token = s->src[at];
    uint32_t d = 1;
    if (token < 0xf0) {
        d += (token >> 4) + 2;
        if ((token & 15) != 15)
            return false;
    }
    return damacy__all(d + lane < rest && s->src[at + d + lane] == 255);
}

// Sequences from global memory to global memory, by the first warp: that at w->at if it is known to
// be odd, and all odd ones from there on. *n: of them, so many. False if one is wrong.
template <class S>
DAMACY__INLINE bool damacy__lz4_team_odd(damacy__lz4_state* s, damacy__lz4_work* w, uint32_t base,
                                         bool is_known, uint32_t* n)
{
    damacy__lz4_team_flush_all<S>(s, base);
    if (threadIdx.x < 32) {
        damacy__lz4_state one = *s;
        damacy__u32x4 v;
        v.x = 1;
        v.z = w->at;
        v.w = 0;
        while (v.x && v.z < one.size && (is_known || damacy__lz4_is_odd(&one, v.z))) {
            v.x = damacy__lz4_one(&one, &v.z, damacy__lane());
            v.w++;
            is_known = false;
        }
        v.y = one.end;
        if (damacy__lane() == 0)
            damacy__sts128(base + S::SUMS, v);
    }
    damacy__sync_block();
    const damacy__u32x4 v = damacy__lds128(base + S::SUMS);
    s->end = v.y;
    w->at = v.z;
    *n = v.w;
    damacy__lz4_team_ring<S>(s, w, base);
    damacy__sync_block(); // all have read SUMS
    return v.x != 0;
}

// Where the part's next token is in the block, or what follows the part.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_team_at(const damacy__lz4_tokens* t, uint32_t base)
{
    const uint32_t place =
        t->n_done < t->n_tokens ? damacy__lds16(base + S::TOKENS + 2 * t->n_done) : t->end;
    return place - t->origin;
}

// Puts what is known of a part aside, so that registers are free. A barrier follows.
DAMACY__INLINE void damacy__lz4_team_keep(const damacy__lz4_tokens* t, uint32_t at)
{
    damacy__u32x4 v;
    v.x = t->n_tokens;
    v.y = t->n_done;
    v.z = t->end;
    v.w = t->origin;
    if (threadIdx.x == 0)
        damacy__sts128(at, v);
}

DAMACY__INLINE void damacy__lz4_team_recall(const damacy__lz4_state* s, damacy__lz4_tokens* t,
                                            uint32_t at)
{
    const damacy__u32x4 v = damacy__lds128(at);
    t->n_tokens = v.x;
    t->n_done = v.y;
    t->end = v.z;
    t->origin = v.w;
    t->is_last = v.z - v.w == s->size;
}

// Decodes the part from w->at on, as far as it goes. False if a sequence is wrong.
template <class S>
DAMACY__INLINE bool damacy__lz4_team_part(damacy__lz4_state* s, damacy__lz4_work* w, uint32_t base)
{
    damacy__lz4_tokens* const t = &w->tokens;
    damacy__lz4_team_find<S>(s, t, base, w->at);
    while (t->n_done < t->n_tokens) {
        uint32_t n_done;
        const uint32_t size = damacy__lz4_team_batch<S>(s, w, base, &n_done);
        t->n_done += n_done;
        if (size != 0)
            damacy__lz4_team_copy<S>(s, w, base, size);
        if (n_done != 0)
            continue;
        w->at = damacy__lz4_team_at<S>(t, base);
        // the last of a part may be whole in the next
        if (t->n_done != 0 && t->n_done + 1 == t->n_tokens && !t->is_last)
            return true;
        damacy__lz4_team_keep(t, base + S::MORE_SUMS);
        if (!damacy__lz4_team_odd<S>(s, w, base, true, &n_done))
            return false;
        damacy__lz4_team_recall(s, t, base + S::MORE_SUMS);
        t->n_done = damacy__min(t->n_done + n_done, t->n_tokens);
        if (w->at != damacy__lz4_team_at<S>(t, base))
            return true;
    }
    w->at = damacy__lz4_team_at<S>(t, base);
    return true;
}

// Decodes a block from w->at and s->end on, as far as it goes.
template <class S>
DAMACY__INLINE void damacy__lz4_team_run(damacy__lz4_state* s, damacy__lz4_work* w, uint32_t base)
{
    uint32_t n;
    damacy__lz4_team_ring<S>(s, w, base);
    // It may begin with a long match. A sequence that is wrong is met again below.
    if (damacy__lz4_shrinks(s, 16))
        (void)damacy__lz4_team_odd<S>(s, w, base, false, &n);
    while (w->at < s->size && damacy__lz4_team_part<S>(s, w, base)) {
        // every part moves w->at or ends this
    }
    damacy__lz4_team_flush_all<S>(s, base);
}

// A job, by all threads. is_there: shared memory begins at `base`; if not, all of it is left.
template <class S>
DAMACY__INLINE void damacy__lz4_team_job(const damacy__lz4_wave* wave, uint32_t base, bool is_there,
                                         uint32_t index)
{
    damacy__job_result* const result = (damacy__job_result*)(uintptr_t)wave->results + index;
    damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
    damacy__lz4_state s;
    damacy__lz4_work w;
    uint32_t n;

    damacy__lz4_begin(&job, &s, &n);
    w.at = w.parity = 0;
    if (wave->is_begun && (damacy__lz4_is_sparse(&s) || damacy__lz4_is_relay(wave, &s)) &&
        !damacy__lz4_resume(result, &s, &w.at))
        return;
    damacy__sync_block(); // all have read the result, and are done with the job before
    if (s.status == DAMACY__JOB_OK && is_there && s.limit < DAMACY__LZ4_LITERAL)
        damacy__lz4_team_run<S>(&s, &w, base);
    const bool is_done = s.status == DAMACY__JOB_OK && w.at == s.size && s.size != 0;
    if (threadIdx.x < 32 && is_done) {
        damacy__lz4_finish(wave, index, &s, damacy__lane());
    } else if (threadIdx.x == 0) {
        damacy__lz4_leave(result, &s, w.at);
        result->zero = 0;
    }
    if (is_done && s.end == s.limit)
        damacy__lz4_plane(wave, base, index);
}

// The jobs of a wave that are for teams.
template <class S>
DAMACY__INLINE void damacy__lz4_team_wave(const damacy__lz4_wave* wave, const uint8_t* shared)
{
    const uint32_t n = damacy__min(*(const uint32_t*)(uintptr_t)wave->n_jobs, wave->max_jobs);
    const uint32_t base = DAMACY__DYNAMIC_BASE(shared);
    const bool is_there = base == damacy__shared_address(shared);
    if (blockIdx.x >= n)
        return;
    const uint32_t team_size = damacy__lz4_team_room(wave, n);
    if (team_size == DAMACY__LZ4_TEAM_NEVER)
        return;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x)
        if (((const damacy__job*)(uintptr_t)wave->jobs)[i].dst_capacity >= team_size)
            damacy__lz4_team_job<S>(wave, base, is_there, i);
}
