// The sequences of a part of a large LZ4 block, which several teams share (lz4_relay.cuh), and what
// these teams tell each other. The surprising rule: of a part the last sequence alone may pass its
// end, by any number of bytes, so one warp reads it, from the source if need be.
#pragma once

#include "kernels/lz4_team.cuh"

enum : uint32_t {
    DAMACY__LZ4_RELAY_FEW = 8,           // blocks are few: so many blocks of threads for each
    DAMACY__LZ4_RELAY_PARTS_MOST = 30000 // of a block, where they could have more bytes
};

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
    DAMACY__LZ4_RELAY_STATE = 12, // of the part, see below
    DAMACY__LZ4_RELAY_BEGIN = 16, // output position
    DAMACY__LZ4_RELAY_WRONG = 20,
    DAMACY__LZ4_RELAY_KNOWN = 24,   // DONE, when it was asked
    DAMACY__LZ4_RELAY_RUN = 28,     // of the part: the first of the next tile
    DAMACY__LZ4_RELAY_LAST = 32,    // the part's last sequence: literals, n_literals, n_match,
                                    // offset, next
    DAMACY__LZ4_RELAY_CUT = 52,     // literals that are left to the parts behind
    DAMACY__LZ4_RELAY_PARTS_OF = 56 // size and number of the job's parts
};

enum : uint32_t {               // states of a part
    DAMACY__LZ4_RELAY_DEAD = 1, // it is left
    DAMACY__LZ4_RELAY_TOLD = 2, // the next part's first token is
    DAMACY__LZ4_RELAY_REST = 4  // it is literals, as all are behind it
};

// ---- what blocks of threads tell each other ----

// The first token and the output position of a part, AT and OUT, are a pair each, of 64 bits, of
// which the second word is twice the number of the part, plus 1 if it is left; or twice one more
// than all parts: it and all behind are literals, and AT and OUT are where these begin. Each part
// passes both on to the next, so that none waits any more when the last one has been told.

DAMACY__INLINE uint64_t* damacy__lz4_relay_pair(uint32_t* words, uint32_t i)
{
    return (uint64_t*)(void*)(words + i);
}

// Tells pair i. Behind what is left there is more to be seen than the pair. One thread.
DAMACY__INLINE void damacy__lz4_relay_tell(uint32_t* words, uint32_t i, uint32_t v, uint32_t part,
                                           bool is_dead)
{
    const uint64_t pair = (uint64_t)(2 * part + is_dead) << 32 | v;
    if (is_dead)
        damacy__release(damacy__lz4_relay_pair(words, i), pair);
    else
        damacy__atomic_store(damacy__lz4_relay_pair(words, i), pair);
}

// A block of threads has waited in vain.
DAMACY__INLINE void damacy__lz4_relay_give_up(uint32_t* words)
{
    const uint32_t vain = DAMACY__LZ4_RELAY_VAIN;
    damacy__atomic_store(words + DAMACY__LZ4_RELAY_LEFT, vain);
}

// Waits for pair i of part `part`. *v: its word. Returns the second one. One thread.
DAMACY__INLINE uint32_t damacy__lz4_relay_await(uint32_t* words, uint32_t i, uint32_t part,
                                                uint32_t* v)
{
    uint64_t* const at = damacy__lz4_relay_pair(words, i);
    uint64_t pair = damacy__atomic_load(at);
    for (uint32_t k = 0; (uint32_t)(pair >> 33) < part && k != DAMACY__POLLS; k++) {
        DAMACY__PAUSE();
        pair = damacy__atomic_load(at);
    }
    if ((uint32_t)(pair >> 33) < part) {
        damacy__lz4_relay_give_up(words);
        pair = (uint64_t)(2 * part + 1) << 32;
    } else if (pair >> 32 & 1) {
        (void)damacy__acquire(at);
    }
    *v = (uint32_t)pair;
    return (uint32_t)(pair >> 32);
}

// Waits until DONE is v or more. One thread; a barrier must follow.
DAMACY__INLINE void damacy__lz4_relay_wait(uint32_t* words, uint32_t v)
{
    uint32_t* const done = words + DAMACY__LZ4_RELAY_DONE;
    for (uint32_t k = 0; damacy__atomic_load(done) < v; k++) {
        if (k == DAMACY__POLLS) {
            damacy__lz4_relay_give_up(words);
            break;
        }
        DAMACY__PAUSE();
    }
    (void)damacy__acquire(done);
}

// ---- the sequences of a part ----

// How a block is cut.
typedef struct damacy__lz4_parts {
    uint32_t size; // bytes of the source in each part
    uint32_t n;
} damacy__lz4_parts;

// What all threads know of a part.
typedef struct damacy__lz4_leg {
    damacy__lz4_parts parts;
    uint32_t part; // its number
    bool is_few;   // blocks are
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

// How a block is cut into parts: of as many bytes as make two tiles of the output, by its mean.
// `is_few`: less than a tile, as it is the way from tile to tile that takes the time then. Parts
// are of aligned addresses, so that the first may be shorter.
template <class S>
DAMACY__INLINE damacy__lz4_parts damacy__lz4_relay_parts(const damacy__lz4_state* s, bool is_few)
{
    const float output = is_few ? S::TILE * 7 / 8 : 2 * S::TILE;
    const float size = output * (float)s->size / (float)(s->limit - s->first);
    const uint32_t least = damacy__max(S::PART / 128, s->size / DAMACY__LZ4_RELAY_PARTS_MOST);
    damacy__lz4_parts parts;
    parts.size = size < (float)S::PART ? (uint32_t)size : S::PART;
    parts.size = damacy__min(damacy__max(parts.size, least) / 32 * 32, S::PART);
    parts.n = ((uint32_t)((uintptr_t)s->src & 15) + s->size + parts.size - 1) / parts.size;
    return parts;
}

// Brings part `part`. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_fetch(const damacy__lz4_state* s, damacy__lz4_leg* leg,
                                            uint32_t base)
{
    const uint64_t low = (uint64_t)(uintptr_t)s->src, high = low + s->size;
    const uint32_t skew = (uint32_t)(low & 15), size = leg->parts.size;
    const uint64_t first = (low & ~15ull) + (uint64_t)size * leg->part;
    leg->t.origin = skew - size * leg->part;
    leg->block = leg->t.origin + s->size;
    leg->t.end = damacy__min(leg->block, size);
    leg->filled = damacy__min(leg->block, size + S::OVER);
    const uint32_t n_units = (leg->filled + 15) / 16, units = base + S::BYTES;
    const damacy__u32x2 inside = damacy__lz4_edges(units, first, n_units, low, high, threadIdx.x);
    damacy__lz4_team_bring<S, 3>(units, first, inside);
}

// Where the walk from byte `at` of a part first is at or above its end, or the odd token that it
// comes to before.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_relay_exit(uint32_t base, uint32_t at, uint32_t end)
{
    for (uint32_t from = 0; from < end; from += 1024) {
        if (at - from < 32 && from + 1024 <= end)
            at = damacy__lds16(base + S::WARP_EXITS + from / 16 + 2 * (at - from));
        while (at < damacy__min(from + 1024, end))
            at = damacy__lds16(damacy__lz4_team_stride<S>(base, at, end));
    }
    return at;
}

// The same, past odd tokens: the next part's first token. False if it is not known so. One thread.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_quick(const damacy__lz4_leg* leg, uint32_t base, uint32_t at,
                                            uint32_t exit, uint32_t* next)
{
    const uint32_t memory = base + S::BYTES - DAMACY__LZ4_BYTES, end = leg->t.end;
    if (leg->block <= end)
        return false; // a block's last sequence is looked at
    if (at >= 32)
        exit = damacy__lz4_relay_exit<S>(base, at, end);
    for (uint32_t k = 0; exit & DAMACY__LZ4_ODD; k++) {
        if (k == 4 || damacy__lds8(memory + DAMACY__LZ4_BYTES + exit - DAMACY__LZ4_ODD + 60) == 255)
            return false; // many or long lengths: as soon known when all threads have read them
        exit = damacy__lz4_team_odd(memory, exit - DAMACY__LZ4_ODD, leg->filled);
        if (exit >= end)
            break;
        exit = damacy__lz4_relay_exit<S>(base, exit, end);
    }
    *next = exit - leg->t.origin;
    return exit < leg->filled; // or it was made of bytes that are not the block's
}

// Waits for the first token of a part, and tells the next one's if it can soon be known. The first
// warp, to all by CONTROL.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_enter(const damacy__lz4_leg* leg, uint32_t* words,
                                            uint32_t base)
{
    const uint32_t control = base + S::CONTROL, lane = damacy__lane();
    const bool is_few = leg->is_few;
    uint32_t exit = 0, entry = 0, turn = 0;
    if (is_few)
        exit = damacy__lz4_relay_exit<S>(base, lane, leg->t.end);
    if (lane == 0)
        turn = damacy__lz4_relay_await(words, DAMACY__LZ4_RELAY_AT, leg->part, &entry);
    const uint32_t at = damacy__shfl(entry, 0) + leg->t.origin;
    exit = damacy__shfl(exit, at % 32);
    if (lane != 0)
        return;
    const bool is_dead = turn & 1, is_past = at >= leg->t.end;
    uint32_t state = is_dead * DAMACY__LZ4_RELAY_DEAD, next = entry;
    if (turn / 2 != leg->part)
        state = DAMACY__LZ4_RELAY_REST;
    else if (is_dead || is_past ||
             (is_few && damacy__lz4_relay_quick<S>(leg, base, at, exit, &next)))
        state |= DAMACY__LZ4_RELAY_TOLD;
    if (state & DAMACY__LZ4_RELAY_TOLD)
        damacy__lz4_relay_tell(words, DAMACY__LZ4_RELAY_AT, next, leg->part + 1, is_dead);
    damacy__sts64(control + DAMACY__LZ4_RELAY_ENTRY, entry, state);
    damacy__sts32(control + DAMACY__LZ4_RELAY_WRONG, 0);
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

// Reads the last sequence by the first warp, into CONTROL, and tells the next part's first token if
// that is not told.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_last(const damacy__lz4_state* s, const damacy__lz4_leg* leg,
                                           uint32_t* words, uint32_t base)
{
    const uint32_t memory = base + S::BYTES, control = base + S::CONTROL;
    const uint32_t at = damacy__lds16(base + S::TOKENS + 2 * (leg->t.n_tokens - 1));
    damacy__lz4_sequence q;
    bool is_right = damacy__lz4_read_quickly(memory, at, leg->filled, &q) && q.next < leg->block;
    if (!is_right) {
        is_right = damacy__lz4_relay_far(s, at - leg->t.origin, s->limit - s->first, &q);
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
        if (!(damacy__lds32(control + DAMACY__LZ4_RELAY_STATE) & DAMACY__LZ4_RELAY_TOLD))
            damacy__lz4_relay_tell(words, DAMACY__LZ4_RELAY_AT, q.next - leg->t.origin,
                                   (cut ? leg->parts.n : leg->part) + 1, !is_right);
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

// Whether what a part's sequences come to, `all` bytes and the last sequence, has room behind
// output position `begin`.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_fits(const damacy__lz4_state* s, uint32_t base, uint32_t all,
                                           uint32_t begin)
{
    const damacy__u32x4 last = damacy__lds128(base + S::CONTROL + DAMACY__LZ4_RELAY_LAST);
    const uint32_t cut = damacy__lds32(base + S::CONTROL + DAMACY__LZ4_RELAY_CUT);
    const uint32_t room = s->limit - begin;
    return all <= room && last.y + cut <= room - all && last.z <= room - all - last.y;
}

// Tells the next part's output position, or that the rest of the block is left. One thread.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_tell_out(const damacy__lz4_leg* leg, uint32_t* words,
                                               uint32_t base, uint32_t begin, bool is_right)
{
    const bool is_cut = damacy__lds32(base + S::CONTROL + DAMACY__LZ4_RELAY_CUT) != 0;
    if (!is_right && damacy__atomic_load(words + DAMACY__LZ4_RELAY_LEFT) == 0)
        damacy__atomic_store(words + DAMACY__LZ4_RELAY_LEFT, leg->t.begin - leg->t.origin + 1);
    damacy__lz4_relay_tell(words, DAMACY__LZ4_RELAY_OUT, begin + (is_right ? leg->size : 0),
                           (is_right && is_cut ? leg->parts.n : leg->part) + 1, !is_right);
}

// Waits for a part's output position, and tells the next one's, unless matches may begin before the
// output: then it says so. One thread, to the others by CONTROL.
template <class S>
DAMACY__INLINE void damacy__lz4_relay_place(const damacy__lz4_state* s, const damacy__lz4_leg* leg,
                                            uint32_t* words, uint32_t base, uint32_t all)
{
    const uint32_t control = base + S::CONTROL;
    uint32_t begin;
    bool is_dead = damacy__lz4_relay_await(words, DAMACY__LZ4_RELAY_OUT, leg->part, &begin) & 1;
    is_dead = is_dead || damacy__lds32(control + DAMACY__LZ4_RELAY_WRONG) != 0 ||
              !damacy__lz4_relay_fits<S>(s, base, all, begin);
    damacy__sts32(control + DAMACY__LZ4_RELAY_BEGIN, begin);
    damacy__sts32(control + DAMACY__LZ4_RELAY_WRONG, is_dead);
    if (is_dead || begin - s->first >= 65536)
        damacy__lz4_relay_tell_out<S>(leg, words, base, begin, !is_dead);
}

// Adds up what a thread's sequences come to, and passes on where the output begins. All threads.
// False if the part is left.
template <class S>
DAMACY__INLINE bool damacy__lz4_relay_sum(const damacy__lz4_state* s, damacy__lz4_leg* leg,
                                          uint32_t* words, uint32_t base)
{
    const uint32_t n = leg->t.n_tokens - 1, control = base + S::CONTROL;
    const uint32_t each = (n + S::THREADS - 1) / S::THREADS;
    const uint32_t from = each * threadIdx.x, to = damacy__min(from + each, n);
    uint32_t bytes = 0, runs = 0, all = 0;
    damacy__lz4_sequence q;
    bool is_wrong = false;
    if (threadIdx.x < 32)
        damacy__lz4_relay_last<S>(s, leg, words, base);
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
    if (threadIdx.x == 0)
        damacy__lz4_relay_place<S>(s, leg, words, base, all);
    damacy__sync_block();
    const uint32_t begin = damacy__lds32(control + DAMACY__LZ4_RELAY_BEGIN);
    is_wrong = damacy__lds32(control + DAMACY__LZ4_RELAY_WRONG) != 0;
    if (is_wrong || begin - s->first >= 65536)
        return !is_wrong;
    damacy__sync_block(); // all have read WRONG
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
    is_wrong = damacy__lds32(control + DAMACY__LZ4_RELAY_WRONG) != 0;
    if (threadIdx.x == 0)
        damacy__lz4_relay_tell_out<S>(leg, words, base, begin, !is_wrong);
    return !is_wrong;
}
