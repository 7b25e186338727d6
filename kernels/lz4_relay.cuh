// Decodes large LZ4 blocks, several teams each, for waves of few of them. A block is cut into parts
// of its source, which teams take in order. Where the walks from all bytes of a part lead does not
// depend on the parts before it; then the one entry is waited for, and the next part's told. Then
// the part's sequences are read, and their output's place is passed on in the same way. So all but
// two look-ups a part goes on side by side.
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

// How many jobs are for relays.
template <class S> DAMACY__INLINE uint32_t damacy__lz4_relay_count(uint32_t base, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i += 32)
        count += damacy__popc(damacy__lds32(base + S::JOBS + i / 8));
    return count;
}

// Where a block of threads begins: each with another job than its neighbours. One thread.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_relay_first(uint32_t base, uint32_t n, uint32_t count)
{
    uint32_t index = 0;
    for (uint32_t i = count ? blockIdx.x % count : 0; i != 0; i--)
        index = damacy__lz4_relay_next<S>(base, n, index) + 1;
    return index;
}

// Takes a part of the job, if one is left. *is_rest: it is known to be literals alone.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_claim(const damacy__lz4_wave* wave, uint32_t index,
                                            bool is_few, damacy__lz4_parts* parts, uint32_t* part,
                                            bool* is_rest)
{
    damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
    uint32_t* const flags = &((damacy__job*)(uintptr_t)wave->jobs + index)->flags;
    const uint32_t* const words = damacy__lz4_relay_words(wave, index);
    damacy__lz4_state s;
    uint32_t room;
    damacy__lz4_begin(&job, &s, &room);
    *parts = damacy__lz4_relay_parts<S>(&s, is_few);
    *is_rest = damacy__atomic_load(words + DAMACY__LZ4_RELAY_AT + 1) / 2 > parts->n;
    if (damacy__atomic_load(flags) / DAMACY__LZ4_RELAY_PARTS >= parts->n)
        return false;
    *part = damacy__atomic_add(flags, DAMACY__LZ4_RELAY_PARTS) / DAMACY__LZ4_RELAY_PARTS;
    return *part < parts->n;
}

// Takes a part, of job `from` if it has one. One thread writes down which; NEVER: none is left.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_take(const damacy__lz4_wave* wave, uint32_t base, uint32_t n,
                                           bool is_few, uint32_t from)
{
    const uint32_t control = base + S::CONTROL, first = damacy__lz4_relay_next<S>(base, n, from);
    damacy__lz4_parts parts = {0, 0};
    uint32_t i = first, part = 0;
    bool is_rest = false;
    while (i != DAMACY__LZ4_TEAM_NEVER &&
           !damacy__lz4_relay_claim<S>(wave, i, is_few, &parts, &part, &is_rest)) {
        i = damacy__lz4_relay_next<S>(base, n, i + 1);
        i = i == first ? DAMACY__LZ4_TEAM_NEVER : i;
    }
    damacy__sts64(control + DAMACY__LZ4_RELAY_JOB, i, part);
    damacy__sts64(control + DAMACY__LZ4_RELAY_PARTS_OF, parts.size, parts.n);
    damacy__sts32(control + DAMACY__LZ4_RELAY_STATE, is_rest * DAMACY__LZ4_RELAY_REST);
}

// ---- parts ----

// Passes on the output position to the part behind one that has none, as it is left or a sequence
// goes past it. One thread.
DAMACY__INLINE void damacy__lz4_relay_pass(uint32_t* words, uint32_t part)
{
    uint32_t begin;
    const uint32_t turn = damacy__lz4_relay_await(words, DAMACY__LZ4_RELAY_OUT, part, &begin);
    damacy__lz4_relay_tell(words, DAMACY__LZ4_RELAY_OUT, begin, part + 1, turn & 1);
}

// Copies what is in a part of the rest of a block, which is literals. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_rest(const damacy__lz4_state* s, const damacy__lz4_leg* leg,
                                           uint32_t* words, uint32_t base)
{
    const uint32_t size = leg->parts.size, part = leg->part, control = base + S::CONTROL;
    const uint32_t low = (uint32_t)(uintptr_t)s->src & 15, begins = size * part;
    if (threadIdx.x == 0) {
        uint32_t out;
        const uint32_t turn = damacy__lz4_relay_await(words, DAMACY__LZ4_RELAY_OUT, part, &out);
        if (turn & 1)
            damacy__lz4_relay_tell(words, DAMACY__LZ4_RELAY_OUT, out, part + 1, true);
        damacy__sts32(control + DAMACY__LZ4_RELAY_BEGIN, out);
        damacy__sts32(control + DAMACY__LZ4_RELAY_WRONG, turn & 1);
        damacy__sts32(control + DAMACY__LZ4_RELAY_ENTRY,
                      damacy__atomic_load(words + DAMACY__LZ4_RELAY_AT));
    }
    damacy__sync_block();
    const uint32_t at = damacy__lds32(control + DAMACY__LZ4_RELAY_ENTRY);
    const uint32_t out = damacy__lds32(control + DAMACY__LZ4_RELAY_BEGIN);
    const uint32_t begin = damacy__max(begins > low ? begins - low : 0, at);
    const uint32_t end = damacy__min(begins + size - low, s->size);
    if (damacy__lds32(control + DAMACY__LZ4_RELAY_WRONG) != 0 || begin >= end)
        return;
    damacy__copy_group(s->origin + out + (begin - at), s->src + begin, end - begin, threadIdx.x,
                       S::THREADS);
    damacy__sync_block();
    if (threadIdx.x == 0) {
        damacy__lz4_relay_wait(words, out);
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
        damacy__lz4_relay_wait(words, leg->tile);
        damacy__release(words + DAMACY__LZ4_RELAY_DONE, leg->tile + end - begin);
    }
    damacy__sync_block();
    return end;
}

// Reads the sequences of a part, tells the next one's entry and makes its output. All threads.
// False if the part is of the block's rest, which is literals.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_part(const damacy__lz4_state* s, damacy__lz4_leg* leg,
                                           uint32_t* words, uint32_t base)
{
    const uint32_t control = base + S::CONTROL;
    uint32_t steps[8] = {0};

    damacy__lz4_relay_fetch<S>(s, leg, base);
    damacy__sync_block();
    if (1024 * (threadIdx.x / 32) < leg->t.end) // else the warp has none
        damacy__lz4_team_lead<S>(s, base, steps, leg->is_few ? 0 : 16);
    if (leg->is_few)
        damacy__sync_block();
    if (threadIdx.x < 32)
        damacy__lz4_relay_enter<S>(leg, words, base);
    damacy__sync_block();
    const damacy__u32x2 entry = damacy__lds64(control + DAMACY__LZ4_RELAY_ENTRY);
    leg->t.begin = entry.x + leg->t.origin;
    if (entry.y & DAMACY__LZ4_RELAY_REST)
        return false;
    if (entry.y & DAMACY__LZ4_RELAY_DEAD || leg->t.begin >= leg->t.end) {
        if (threadIdx.x == 0)
            damacy__lz4_relay_pass(words, leg->part);
        return true;
    }
    damacy__lz4_team_list<S>(&leg->t, base, steps);
    if (!damacy__lz4_relay_sum<S>(s, leg, words, base))
        return true;
    const uint32_t first = damacy__lds32(control + DAMACY__LZ4_RELAY_BEGIN);
    for (uint32_t begin = 0; begin < leg->size;) {
        leg->tile = first + begin;
        uint32_t end = damacy__lz4_relay_plain<S>(s, leg, words, base, begin);
        if (end == begin) {
            end += damacy__min(leg->size - begin, S::TILE - (leg->tile & 15));
            damacy__lz4_relay_tile<S>(s, leg, words, base, begin, end);
        }
        begin = end;
    }
    return true;
}

// Ends a job when its last part is done: all others have been taken, and have been told.
DAMACY__INLINE void damacy__lz4_relay_end(const damacy__lz4_wave* wave, damacy__lz4_state* s,
                                          uint32_t* words, uint32_t index, uint32_t n_parts)
{
    const uint32_t lane = damacy__lane();
    uint32_t at = damacy__atomic_load(words + DAMACY__LZ4_RELAY_AT);
    const uint32_t turn = damacy__atomic_load(words + DAMACY__LZ4_RELAY_OUT + 1);
    s->end = damacy__atomic_load(words + DAMACY__LZ4_RELAY_OUT);
    if (turn / 2 > n_parts) {
        s->end += s->size - at;
        at = s->size;
    }
    if (lane == 0)
        damacy__lz4_relay_wait(words, s->end);
    damacy__sync_warp();
    const uint32_t left = damacy__atomic_load(words + DAMACY__LZ4_RELAY_LEFT);
    damacy__sync_warp(); // all have read the words
    if (left == DAMACY__LZ4_RELAY_VAIN)
        s->status = DAMACY__JOB_NOT_RUN;
    if (left == DAMACY__LZ4_RELAY_VAIN || (left == 0 && at == s->size)) {
        damacy__lz4_finish(wave, index, s, lane);
    } else if (lane == 0) {
        damacy__job_result* const result = (damacy__job_result*)(void*)words;
        damacy__lz4_leave(result, s, left ? left - 1 : at);
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
    const uint32_t count = damacy__lz4_relay_count<S>(base, n);
    const bool is_few = gridDim.x >= DAMACY__LZ4_RELAY_FEW * count;
    if (threadIdx.x == 0)
        damacy__lz4_relay_take<S>(wave, base, n, is_few,
                                  damacy__lz4_relay_first<S>(base, n, count));
    damacy__sync_block();
    uint32_t index = damacy__lds32(control + DAMACY__LZ4_RELAY_JOB);
    while (index != DAMACY__LZ4_TEAM_NEVER) {
        const damacy__u32x2 parts = damacy__lds64(control + DAMACY__LZ4_RELAY_PARTS_OF);
        damacy__lz4_leg leg;
        leg.part = damacy__lds32(control + DAMACY__LZ4_RELAY_PART);
        leg.parts.size = parts.x;
        leg.parts.n = parts.y;
        leg.is_few = is_few;
        damacy__job job = ((const damacy__job*)(uintptr_t)wave->jobs)[index];
        uint32_t* const words = damacy__lz4_relay_words(wave, index);
        damacy__lz4_state s;
        uint32_t room;
        damacy__lz4_begin(&job, &s, &room);
        const bool is_rest = damacy__lds32(control + DAMACY__LZ4_RELAY_STATE) != 0;
        if (is_rest || !damacy__lz4_relay_part<S>(&s, &leg, words, base)) {
            damacy__sync_block(); // all have read CONTROL
            damacy__lz4_relay_rest<S>(&s, &leg, words, base);
        }
        damacy__sync_block(); // all have read CONTROL, and all is told
        if (threadIdx.x < 32 && leg.part + 1 == leg.parts.n)
            damacy__lz4_relay_end(wave, &s, words, index, leg.parts.n);
        if (threadIdx.x == 0)
            damacy__lz4_relay_take<S>(wave, base, n, is_few, index);
        damacy__sync_block();
        index = damacy__lds32(control + DAMACY__LZ4_RELAY_JOB);
    }
}
