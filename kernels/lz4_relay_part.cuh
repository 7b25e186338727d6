// The sequences of a part of a large LZ4 block, which several teams share (lz4_relay.cuh), and what
// these teams tell each other. The surprising rule: of a part the last sequence alone may pass its
// end, by any number of bytes, so one warp reads it, from the source if need be.
#pragma once

#include "kernels/lz4_team.cuh"

// Places in shared memory, and sizes, of teams of T threads that make R bytes each of a tile.
template <uint32_t T, uint32_t R> struct damacy__lz4_relay {
    static constexpr uint32_t THREADS = T, WARPS = T / 32, ROWS = R;
    static constexpr uint32_t PART = 32 * T; // bytes of the source
    static constexpr uint32_t OVER = 320;    // behind it, for most sequences that pass its end
    static constexpr uint32_t STEP = 4 * T;  // bytes of the output
    static constexpr uint32_t TILE = R * T;
    static constexpr uint32_t GROUPS = T / 8;
    static constexpr uint32_t LIST = PART / 3 + 2;     // tokens
    static constexpr uint32_t RUNS = 2 * TILE / 5 + 8; // at most, as matches have 4 bytes or more

    static constexpr uint32_t BYTES = 0;
    static constexpr uint32_t TOKENS = BYTES + PART + 2 * OVER; // as in teams
    static constexpr uint32_t SUMS = (TOKENS + 2 * LIST + 15) / 16 * 16;
    static constexpr uint32_t MORE_SUMS = SUMS + 4 * WARPS;
    static constexpr uint32_t CONTROL = MORE_SUMS + 8 * WARPS;
    static constexpr uint32_t JOBS = CONTROL + 64; // a bit each: it is for relays
    static constexpr uint32_t OUT = JOBS + DAMACY__LZ4_RELAY_JOBS / 8;
    // Where tokens are found, as in teams.
    static constexpr uint32_t EXITS = OUT + TILE + 16;
    static constexpr uint32_t GROUP_EXITS = EXITS + 68 * T;
    static constexpr uint32_t WARP_EXITS = GROUP_EXITS + 64 * GROUPS;
    // Else: how far before the tile bytes come from that are waited for, 16 bits each; and of a
    // step and of runs, as in teams.
    static constexpr uint32_t PENDING = EXITS;
    static constexpr uint32_t LINKS = PENDING + 2 * TILE;
    static constexpr uint32_t WINDOWS = LINKS + 8 * STEP;
    static constexpr uint32_t DELTA = WINDOWS + TILE / 32 * 8;
    static constexpr uint32_t END_FOUND = WARP_EXITS + 64 * WARPS;
    static constexpr uint32_t END_MAPPED = DELTA + 4 * RUNS;
    static constexpr uint32_t SIZE =
        ((END_FOUND > END_MAPPED ? END_FOUND : END_MAPPED) + 15) / 16 * 16;
    static_assert(TILE % STEP == 0 && TILE / 32 <= T && EXITS % 16 == 0 && OUT % 16 == 0, "sizes");
    static_assert(PART + 2 * OVER < DAMACY__LZ4_ODD && R % 4 == 0, "places fit 15 bits");
};

enum : uint32_t {              // words of CONTROL
    DAMACY__LZ4_RELAY_JOB = 0, // what is next
    DAMACY__LZ4_RELAY_PART = 4,
    DAMACY__LZ4_RELAY_ENTRY = 8,  // place of the first token
    DAMACY__LZ4_RELAY_BEGIN = 12, // output position
    DAMACY__LZ4_RELAY_KNOWN = 16, // DONE, when it was asked
    DAMACY__LZ4_RELAY_RUN = 20,   // of the part: the first of the next tile
    DAMACY__LZ4_RELAY_WRONG = 24,
    DAMACY__LZ4_RELAY_STATE = 28, // DEAD, and 4 times REST, when they were asked
    DAMACY__LZ4_RELAY_LAST = 32, // the part's last sequence: literals, n_literals, n_match, offset,
                                 // next
    DAMACY__LZ4_RELAY_CUT = 52   // literals that are left to the parts behind
};

// ---- what blocks of threads tell each other ----

// Waits until word `i` is v or more. One thread; a barrier must follow.
DAMACY__INLINE void damacy__lz4_relay_wait(uint32_t* words, uint32_t i, uint32_t v)
{
    for (uint32_t k = 0; damacy__atomic_load(words + i) < v; k++) {
        if (k == DAMACY__POLLS) {
            damacy__atomic_store(words + DAMACY__LZ4_RELAY_DEAD, 2);
            break;
        }
        DAMACY__PAUSE();
    }
    (void)damacy__acquire(words + i);
}

// ---- the sequences of a part ----

// What all threads know of a part.
typedef struct damacy__lz4_leg {
    damacy__lz4_tokens t;
    uint32_t filled; // end of what is in BYTES
    uint32_t block;  // where the block ends in BYTES, were it there
    uint32_t size;   // of its output
    uint32_t runs;   // of all sequences but the last
    // Of a thread's sequences: the next one that is to be put into a map, the end of them, where in
    // the part's output it begins, and its first run.
    uint32_t next, past, y, run;
    damacy__lz4_sequence held; // number is_held - 1
    uint32_t is_held;
    uint32_t tile; // output position of the tile
} damacy__lz4_leg;

// Brings part `part`. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_fetch(const damacy__lz4_state* s, damacy__lz4_leg* leg,
                                            uint32_t base, uint32_t part)
{
    const uint64_t low = (uint64_t)(uintptr_t)s->src, high = low + s->size;
    const uint64_t first = (low & ~15ull) + (uint64_t)S::PART * part;
    const uint32_t skew = (uint32_t)(low & 15);
    leg->t.origin = skew - S::PART * part;
    leg->block = leg->t.origin + s->size;
    leg->t.end = damacy__min(leg->block, S::PART);
    leg->filled = damacy__min(leg->block, S::PART + S::OVER);
    const uint32_t n_units = (leg->filled + 15) / 16, units = base + S::BYTES;
    const damacy__u32x2 inside = damacy__lz4_edges(units, first, n_units, low, high, threadIdx.x);
    damacy__lz4_team_bring<S, 3>(units, first, inside);
}

// As damacy__lz4_length, sooner done with lengths of many bytes.
DAMACY__INLINE bool damacy__lz4_relay_length(const damacy__lz4_state* s, uint32_t* at,
                                             uint32_t most, uint32_t* sum, uint32_t lane)
{
    while (s->size - *at >= 512 && *sum <= most) {
        uint32_t all = 255;
#pragma unroll
        for (uint32_t k = 0; k < 16; k++)
            all &= s->src[*at + 32 * k + lane];
        if (damacy__ballot(all != 255) != 0)
            break;
        *sum += 255 * 512;
        *at += 512;
    }
    return damacy__lz4_length(s, at, most, sum, lane);
}

// Reads the part's last sequence, which may pass its end, from the source. False if it is wrong. A
// warp.
DAMACY__INLINE bool damacy__lz4_relay_far(const damacy__lz4_state* s, uint32_t at, uint32_t most,
                                          damacy__lz4_sequence* q)
{
    const uint32_t token = s->src[at], lane = damacy__lane();
    uint32_t p = at + 1, n = token >> 4;
    if (n == 15 && !damacy__lz4_relay_length(s, &p, s->size, &n, lane))
        return false;
    if (n > s->size - p || n > most)
        return false;
    q->literals = p;
    q->n_literals = n;
    q->n_match = q->offset = 0;
    q->next = p += n;
    if (p == s->size)
        return true;
    if (s->size - p < 2)
        return false;
    q->offset = (uint32_t)s->src[p] | (uint32_t)s->src[p + 1] << 8;
    p += 2;
    n = (token & 15) + 4;
    if (n == 19 && !damacy__lz4_relay_length(s, &p, most, &n, lane))
        return false;
    q->n_match = n;
    q->next = p;
    return n <= most && p != s->size;
}

// Leaves the literals of a block's last sequence that are behind the part to other parts. Returns
// how many.
DAMACY__INLINE uint32_t damacy__lz4_relay_cut(const damacy__lz4_leg* leg, damacy__lz4_sequence* q)
{
    const uint32_t end = q->literals + q->n_literals;
    if (q->n_match != 0 || end <= leg->t.end)
        return 0;
    q->next = damacy__max(q->literals, leg->t.end);
    q->n_literals = q->next - q->literals;
    return end - q->next;
}

// Reads the last sequence by the first warp, into CONTROL. `most`: room of the output.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_last(const damacy__lz4_state* s, const damacy__lz4_leg* leg,
                                           uint32_t base, uint32_t most)
{
    const uint32_t memory = base + S::BYTES, control = base + S::CONTROL;
    const uint32_t at = damacy__lds16(base + S::TOKENS + 2 * (leg->t.n_tokens - 1));
    const bool is_all = leg->filled == leg->block;
    damacy__lz4_sequence q;
    bool is_right = is_all ? damacy__lz4_read(memory, at, leg->filled, true, &q)
                           : damacy__lz4_read_quickly(memory, at, leg->filled, &q);
    if (is_right && is_all && q.n_match != 0 && q.next == leg->block)
        is_right = false; // a block ends with literals
    if (!is_right && !is_all) {
        is_right = damacy__lz4_relay_far(s, at - leg->t.origin, most, &q);
        q.literals += leg->t.origin;
        q.next += leg->t.origin;
    }
    const uint32_t cut = is_right ? damacy__lz4_relay_cut(leg, &q) : 0;
    if (damacy__lane() == 0) {
        damacy__u32x4 v;
        v.x = q.literals;
        v.y = q.n_literals;
        v.z = q.n_match;
        v.w = q.offset;
        damacy__sts128(control + DAMACY__LZ4_RELAY_LAST, v);
        damacy__sts64(control + DAMACY__LZ4_RELAY_LAST + 16, q.next, cut);
        if (!is_right || (q.n_match != 0 && q.offset == 0))
            damacy__sts32(control + DAMACY__LZ4_RELAY_WRONG, 1);
    }
}

// Sequence i of the part, which is not the last.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_read(const damacy__lz4_leg* leg, uint32_t base, uint32_t i,
                                           damacy__lz4_sequence* q)
{
    const uint32_t memory = base + S::BYTES, at = damacy__lds16(base + S::TOKENS + 2 * i);
    if (!damacy__lz4_read_quickly(memory, at, leg->t.end, q))
        (void)damacy__lz4_read(memory, at, leg->t.end, false, q);
}

// Adds up what a thread's sequences come to. All threads. False if one is wrong.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_sum(const damacy__lz4_state* s, damacy__lz4_leg* leg,
                                          uint32_t base, uint32_t begin)
{
    const uint32_t n = leg->t.n_tokens - 1, control = base + S::CONTROL;
    const uint32_t each = (n + S::THREADS - 1) / S::THREADS;
    const uint32_t from = each * threadIdx.x, to = damacy__min(from + each, n);
    uint32_t bytes = 0, runs = 0, all = 0;
    damacy__lz4_sequence q;
    bool is_wrong = false;
    if (threadIdx.x < 32)
        damacy__lz4_relay_last<S>(s, leg, base, s->limit - begin);
    for (uint32_t i = from; i < to; i++) {
        damacy__lz4_relay_read<S>(leg, base, i, &q);
        bytes += q.n_literals + q.n_match;
        runs += damacy__lz4_runs(&q);
        is_wrong = is_wrong || q.offset == 0;
    }
    if (is_wrong)
        damacy__sts32(control + DAMACY__LZ4_RELAY_WRONG, 1);
    leg->run = damacy__lz4_team_sum<S>(runs, base + S::MORE_SUMS, &leg->runs);
    leg->y = damacy__lz4_team_sum<S>(bytes, base + S::SUMS, &all);
    leg->next = from;
    leg->past = to;
    leg->is_held = 0;
    const damacy__u32x4 last = damacy__lds128(control + DAMACY__LZ4_RELAY_LAST);
    leg->size = all + last.y + last.z;
    const uint32_t cut = damacy__lds32(control + DAMACY__LZ4_RELAY_CUT);
    if (all > s->limit - begin || last.y + cut > s->limit - begin - all ||
        last.z > s->limit - begin - all - last.y)
        return false;
    if (begin - s->first < 65536) { // a match may begin before the output
        uint32_t y = leg->y + begin - s->first;
        for (uint32_t i = from; i < to; i++) {
            damacy__lz4_relay_read<S>(leg, base, i, &q);
            y += q.n_literals;
            is_wrong = is_wrong || q.offset > y;
            y += q.n_match;
        }
        if (is_wrong || last.w > all + begin - s->first + last.y)
            damacy__sts32(control + DAMACY__LZ4_RELAY_WRONG, 1);
        damacy__sync_block();
    }
    return damacy__lds32(control + DAMACY__LZ4_RELAY_WRONG) == 0;
}
