// Decodes large LZ4 blocks, several teams each, for waves of few of them. A block is cut into parts
// of its source, which teams take in order. Where the walks from all bytes of a part lead does not
// depend on the parts before it; then the one entry is waited for, the part's sequences are read,
// and the entry of the next part is told. So most of finding tokens goes on side by side.
//
// The output of a part is made in tiles. A byte of a tile is a literal, or comes from a place
// before the tile: from one that is done, or it waits for the tiles before and is loaded then.
// Parts of literals that go on to the block's end are copied, in any order.
//
// The surprising rule: what is left of a block that has something wrong is for teams, from the
// first sequence of that part on, and they have all blocks of a wave if one that is not for relays
// would take them long: they come behind relays, not beside them. Relays wait for those of lower
// parts alone, which run, so none needs another to be on the device at the same time.
#pragma once

#include "kernels/lz4_relay_tile.cuh"

// ---- which blocks ----

// Parts are of aligned addresses, so that the first may be shorter.
template <class S> DAMACY__INLINE uint32_t damacy__lz4_relay_parts(const damacy__lz4_state* s)
{
    return ((uint32_t)((uintptr_t)s->src & 15) + s->size + S::PART - 1) / S::PART;
}

// Lists the jobs that are for relays. False if other large ones would take teams longer than a
// quarter of what these do. All threads.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_list(const damacy__lz4_wave* wave, uint8_t* shared,
                                           uint32_t base, uint32_t n)
{
    uint32_t* const most = (uint32_t*)(void*)(shared + S::SUMS); // of sources: ours, others
    uint32_t mine = 0, others = 0;
    if (threadIdx.x < 2)
        most[threadIdx.x] = 0;
    damacy__sync_block();
    for (uint32_t i = threadIdx.x; i < DAMACY__LZ4_RELAY_JOBS; i += S::THREADS) {
        bool is_mine = false;
        if (i < n) {
            damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[i];
            damacy__lz4_state s;
            uint32_t room;
            damacy__lz4_begin(&job, &s, &room);
            is_mine = damacy__lz4_is_relay(wave, &s);
            if (is_mine)
                mine = damacy__max(mine, s.size);
            else if (s.limit - s.first >= wave->relay_size)
                others = damacy__max(others, s.size);
        }
        const uint32_t bits = damacy__ballot(is_mine);
        if (damacy__lane() == 0)
            damacy__sts32(base + S::JOBS + i / 32 * 4, bits);
    }
    (void)damacy__atomic_max(most, mine);
    (void)damacy__atomic_max(most + 1, others);
    damacy__sync_block();
    return most[1] <= most[0] / 4;
}

// The first of n jobs from `from` on that is for relays, going round; NEVER if none is. One thread.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_relay_next(uint32_t base, uint32_t n, uint32_t from)
{
    const uint32_t n_words = (n + 31) / 32;
    const uint32_t begin = from < n ? from : 0;
    uint32_t word = begin / 32, bits = ~0u << (begin % 32);
    for (uint32_t k = 0; k <= n_words; k++) {
        bits &= damacy__lds32(base + S::JOBS + 4 * word);
        if (bits)
            return 32 * word + damacy__ctz(bits);
        bits = ~0u;
        word = word + 1 < n_words ? word + 1 : 0;
    }
    return DAMACY__LZ4_TEAM_NEVER;
}

// Where a block of threads begins: each with another job than its neighbours. One thread.
template <class S> DAMACY__INLINE uint32_t damacy__lz4_relay_first(uint32_t base, uint32_t n)
{
    uint32_t count = 0, index = 0;
    for (uint32_t i = 0; i < n; i += 32)
        count += damacy__popc(damacy__lds32(base + S::JOBS + i / 8));
    for (uint32_t i = count ? blockIdx.x % count : 0; i != 0; i--)
        index = damacy__lz4_relay_next<S>(base, n, index) + 1;
    return index;
}

// Takes a part of the job, if one is left and not too many are under way. *is_over: none is left;
// *rest: whether the part is known to be literals alone.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_claim(const damacy__lz4_wave* wave, uint32_t index,
                                            uint32_t* part, bool* is_over, uint32_t* rest)
{
    damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
    uint32_t* const flags = &((damacy__job*)(uintptr_t)wave->jobs + index)->flags;
    const uint32_t* const words = damacy__lz4_relay_words(wave, index);
    damacy__lz4_state s;
    uint32_t n;
    damacy__lz4_begin(&job, &s, &n);
    n = damacy__lz4_relay_parts<S>(&s);
    const uint32_t taken = damacy__atomic_load(flags) / DAMACY__LZ4_RELAY_PARTS;
    const uint32_t turn = damacy__atomic_load(words + DAMACY__LZ4_RELAY_TURN);
    *rest = damacy__atomic_load(words + DAMACY__LZ4_RELAY_REST);
    *is_over = taken >= n;
    if (taken >= n || taken >= turn + DAMACY__LZ4_RELAY_AHEAD)
        return false;
    *part = damacy__atomic_add(flags, DAMACY__LZ4_RELAY_PARTS) / DAMACY__LZ4_RELAY_PARTS;
    return *part < n;
}

// Takes a part, of job `from` if it has one. One thread writes down which; NEVER: none is left.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_take(const damacy__lz4_wave* wave, uint32_t base, uint32_t n,
                                           uint32_t from)
{
    const uint32_t first = damacy__lz4_relay_next<S>(base, n, from);
    uint32_t i = first, part = 0, rest = 0;
    bool is_left = false;
    while (i != DAMACY__LZ4_TEAM_NEVER) {
        bool is_over;
        if (damacy__lz4_relay_claim<S>(wave, i, &part, &is_over, &rest))
            break;
        is_left = is_left || !is_over;
        i = damacy__lz4_relay_next<S>(base, n, i + 1);
        if (i == first) {
            if (!is_left)
                i = DAMACY__LZ4_TEAM_NEVER;
            is_left = false;
            DAMACY__PAUSE();
        }
    }
    damacy__sts64(base + S::CONTROL + DAMACY__LZ4_RELAY_JOB, i, part);
    damacy__sts32(base + S::CONTROL + DAMACY__LZ4_RELAY_STATE, 4 * rest);
}

// ---- parts ----

// Waits for the entry of a part. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_enter(uint32_t* words, uint32_t base, uint32_t part)
{
    if (threadIdx.x == 0) {
        damacy__lz4_relay_wait(words, DAMACY__LZ4_RELAY_TURN, part);
        damacy__sts64(base + S::CONTROL + DAMACY__LZ4_RELAY_ENTRY,
                      damacy__atomic_load(words + DAMACY__LZ4_RELAY_AT),
                      damacy__atomic_load(words + DAMACY__LZ4_RELAY_OUT));
        damacy__sts64(base + S::CONTROL + DAMACY__LZ4_RELAY_WRONG, 0,
                      damacy__atomic_load(words + DAMACY__LZ4_RELAY_DEAD) +
                          4 * damacy__atomic_load(words + DAMACY__LZ4_RELAY_REST));
    }
    damacy__sync_block();
}

// Tells where the next part begins, that the rest of the block is literals, or that it is left. One
// thread.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_tell(const damacy__lz4_state* s, const damacy__lz4_leg* leg,
                                           uint32_t* words, uint32_t base, uint32_t part,
                                           uint32_t out, bool is_right)
{
    if (is_right) {
        const uint32_t next = damacy__lds32(base + S::CONTROL + DAMACY__LZ4_RELAY_LAST + 16);
        damacy__atomic_store(words + DAMACY__LZ4_RELAY_AT, next - leg->t.origin);
        damacy__atomic_store(words + DAMACY__LZ4_RELAY_OUT, out + leg->size);
        if (damacy__lds32(base + S::CONTROL + DAMACY__LZ4_RELAY_CUT) != 0) {
            damacy__atomic_store(words + DAMACY__LZ4_RELAY_REST, 1);
            part = damacy__lz4_relay_parts<S>(s); // all others may go on
        }
    } else {
        damacy__atomic_store(words + DAMACY__LZ4_RELAY_DEAD, 1);
    }
    damacy__release(words + DAMACY__LZ4_RELAY_TURN, part + 1);
}

// Copies what is in a part of the rest of a block, which is literals. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_rest(const damacy__lz4_state* s, uint32_t* words,
                                           uint32_t base, uint32_t part)
{
    damacy__lz4_relay_enter<S>(words, base, part);
    const damacy__u32x2 at = damacy__lds64(base + S::CONTROL + DAMACY__LZ4_RELAY_ENTRY);
    const uint32_t low = (uint32_t)(uintptr_t)s->src & 15, begins = S::PART * part;
    const uint32_t begin = damacy__max(begins > low ? begins - low : 0, at.x);
    const uint32_t end = damacy__min(begins + S::PART - low, s->size);
    if (begin >= end)
        return;
    damacy__copy_group(s->origin + at.y + (begin - at.x), s->src + begin, end - begin, threadIdx.x,
                       S::THREADS);
    damacy__sync_block();
    if (threadIdx.x == 0) {
        damacy__lz4_relay_wait(words, DAMACY__LZ4_RELAY_DONE, at.y);
        damacy__device_fence();
        (void)damacy__atomic_add(words + DAMACY__LZ4_RELAY_DONE, end - begin);
    }
}

// Copies literals of the part's last sequence, if byte `begin` of the part's output is one and they
// fill a tile from there on. Returns what comes behind them. All threads.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_relay_plain(const damacy__lz4_state* s,
                                                const damacy__lz4_leg* leg, uint32_t* words,
                                                uint32_t base, uint32_t begin)
{
    const uint32_t control = base + S::CONTROL;
    const damacy__u32x4 last = damacy__lds128(control + DAMACY__LZ4_RELAY_LAST);
    const uint32_t end = leg->size - last.z, from = end - last.y;
    if (begin < from || begin > end || end - begin < S::TILE)
        return begin;
    damacy__copy_group(s->origin + leg->tile, s->src + (last.x - leg->t.origin + begin - from),
                       end - begin, threadIdx.x, S::THREADS);
    damacy__sync_block();
    if (threadIdx.x == 0) {
        damacy__sts32(control + DAMACY__LZ4_RELAY_RUN, leg->runs + 1);
        damacy__lz4_relay_wait(words, DAMACY__LZ4_RELAY_DONE, leg->tile);
        damacy__release(words + DAMACY__LZ4_RELAY_DONE, leg->tile + end - begin);
    }
    damacy__sync_block();
    return end;
}

// Reads the sequences of a part, tells the next one's entry and makes its output. All threads.
// False if the part is of the block's rest, which is literals.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_part(const damacy__lz4_state* s, uint32_t* words,
                                           uint32_t base, uint32_t part)
{
    const uint32_t control = base + S::CONTROL;
    damacy__lz4_leg leg;
    uint32_t steps[8];

    damacy__lz4_relay_fetch<S>(s, &leg, base, part);
    damacy__sync_block();
    damacy__lz4_team_lead<S>(s, base, steps);
    damacy__lz4_relay_enter<S>(words, base, part);
    const damacy__u32x2 entry = damacy__lds64(control + DAMACY__LZ4_RELAY_ENTRY);
    const uint32_t state = damacy__lds32(control + DAMACY__LZ4_RELAY_STATE);
    leg.t.begin = entry.x + leg.t.origin;
    if (state >= 4)
        return false;
    if (state != 0 || leg.t.begin >= leg.t.end) {
        if (threadIdx.x == 0)
            damacy__release(words + DAMACY__LZ4_RELAY_TURN, part + 1);
        return true;
    }
    damacy__lz4_team_list<S>(&leg.t, base, steps);
    const bool is_right = damacy__lz4_relay_sum<S>(s, &leg, base, entry.y);
    if (threadIdx.x == 0)
        damacy__lz4_relay_tell<S>(s, &leg, words, base, part, entry.y, is_right);
    for (uint32_t begin = 0; is_right && begin < leg.size;) {
        leg.tile = entry.y + begin;
        uint32_t end = damacy__lz4_relay_plain<S>(s, &leg, words, base, begin);
        if (end == begin) {
            end += damacy__min(leg.size - begin, S::TILE - (leg.tile & 15));
            damacy__lz4_relay_tile<S>(s, &leg, words, base, begin, end);
        }
        begin = end;
    }
    return true;
}

// Ends a job when its last part is done: all others have been taken, and have their entries.
DAMACY__INLINE void damacy__lz4_relay_end(const damacy__lz4_wave* wave, damacy__lz4_state* s,
                                          uint32_t* words, uint32_t index)
{
    const uint32_t lane = damacy__lane();
    uint32_t at = damacy__atomic_load(words + DAMACY__LZ4_RELAY_AT);
    s->end = damacy__atomic_load(words + DAMACY__LZ4_RELAY_OUT);
    if (damacy__atomic_load(words + DAMACY__LZ4_RELAY_REST) != 0) {
        s->end += s->size - at;
        at = s->size;
    }
    if (lane == 0)
        damacy__lz4_relay_wait(words, DAMACY__LZ4_RELAY_DONE, s->end);
    damacy__sync_warp();
    const uint32_t dead = damacy__atomic_load(words + DAMACY__LZ4_RELAY_DEAD);
    damacy__sync_warp(); // all have read the words
    if (dead == 0 && at == s->size) {
        damacy__lz4_finish(wave, index, s, lane);
    } else if (dead == 2) {
        s->status = DAMACY__JOB_NOT_RUN;
        damacy__lz4_finish(wave, index, s, lane);
    } else if (lane == 0) {
        damacy__job_result* const result = (damacy__job_result*)(void*)words;
        damacy__lz4_leave(result, s, at);
        result->zero = 0;
    }
}

// Leaves all jobs to kernels behind.
DAMACY__INLINE void damacy__lz4_relay_none(const damacy__lz4_wave* wave, uint32_t n)
{
    for (uint32_t i = threadIdx.x; blockIdx.x == 0 && i < n; i += blockDim.x) {
        damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[i];
        damacy__lz4_state s;
        uint32_t room;
        damacy__lz4_begin(&job, &s, &room);
        if (damacy__lz4_is_relay(wave, &s))
            damacy__lz4_leave((damacy__job_result*)(uintptr_t)wave->results + i, &s, 0);
    }
}

// The jobs of a wave that are for relays.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_wave(const damacy__lz4_wave* wave, uint8_t* shared)
{
    const uint32_t n = damacy__min(*(const uint32_t*)(uintptr_t)wave->n_jobs, wave->max_jobs);
    const uint32_t base = DAMACY__DYNAMIC_BASE(shared), control = base + S::CONTROL;
    // Where it is not, the constant is wrong.
    const bool is_there = base == damacy__shared_address(shared);
    if (!is_there || !damacy__lz4_relay_list<S>(wave, shared, base, n)) {
        damacy__lz4_relay_none(wave, n);
        return;
    }
    if (threadIdx.x == 0)
        damacy__lz4_relay_take<S>(wave, base, n, damacy__lz4_relay_first<S>(base, n));
    damacy__sync_block();
    uint32_t index = damacy__lds32(control + DAMACY__LZ4_RELAY_JOB);
    while (index != DAMACY__LZ4_TEAM_NEVER) {
        const uint32_t part = damacy__lds32(control + DAMACY__LZ4_RELAY_PART);
        damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
        uint32_t* const words = damacy__lz4_relay_words(wave, index);
        damacy__lz4_state s;
        uint32_t room;
        damacy__lz4_begin(&job, &s, &room);
        const bool is_rest = damacy__lds32(control + DAMACY__LZ4_RELAY_STATE) != 0;
        if (is_rest || !damacy__lz4_relay_part<S>(&s, words, base, part)) {
            damacy__sync_block(); // all have read CONTROL
            damacy__lz4_relay_rest<S>(&s, words, base, part);
        }
        damacy__sync_block(); // all have read CONTROL, and all is told
        if (threadIdx.x < 32 && part + 1 == damacy__lz4_relay_parts<S>(&s))
            damacy__lz4_relay_end(wave, &s, words, index);
        if (threadIdx.x == 0)
            damacy__lz4_relay_take<S>(wave, base, n, index);
        damacy__sync_block();
        index = damacy__lds32(control + DAMACY__LZ4_RELAY_JOB);
    }
}
