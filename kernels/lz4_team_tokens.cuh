// Finds the tokens of a part of an LZ4 block in shared memory, by several warps, in a bounded
// number of steps whatever the bytes are.
//
// Where a token starts is known only from the one before it. So a thread, which has 32 bytes of the
// part, a segment, finds for each of them where the walk from there would leave the segment: from
// the last byte to the first, as the next token of each lies above it. Then a warp finds, for the
// 32 bytes that begin each group of 8 segments, where their walks would leave the group, and for
// the 32 that begin its own 32 segments, where they would leave those. Then each thread takes the
// one true walk to its segment, in steps as large as there are, and from there to its tokens.
#pragma once

#include "kernels/lz4_tokens.cuh"

// In a sum of bytes and runs: a literal run or a match.
#define DAMACY__LZ4_RUN (1u << 21)

// Places in shared memory, and sizes, of teams of T threads that take E sequences each at a time.
template <uint32_t T, uint32_t E> struct damacy__lz4_team {
    static constexpr uint32_t THREADS = T, WARPS = T / 32, EACH = E, BATCH = E * T;
    static constexpr uint32_t PART = 32 * T;    // bytes of the source
    static constexpr uint32_t STEP = 4 * T;     // bytes of the output
    static constexpr uint32_t RING_SIZE = 8192; // bytes of the output, a power of two
    static constexpr uint32_t MAP = 8192;       // bytes of the output of a batch, at most
    static constexpr uint32_t GROUPS = T / 8;
    static constexpr uint32_t WINDOWS_EACH = MAP / 32 / T;
    static constexpr uint32_t LIST = PART / 3 + 2; // tokens

    static constexpr uint32_t RING = 0;
    // The part. A length may be read where it would be if its token were one: 310 bytes behind.
    static constexpr uint32_t BYTES = RING + RING_SIZE;
    static constexpr uint32_t TOKENS = BYTES + PART + 320; // their places in BYTES, 16 bits each
    static constexpr uint32_t SUMS = (TOKENS + 2 * LIST + 15) / 16 * 16;
    static constexpr uint32_t MORE_SUMS = SUMS + 4 * WARPS;
    static constexpr uint32_t ENDS = MORE_SUMS + 4 * WARPS;
    // Where tokens are found: exits of each byte of a segment, a row of 34 each so that threads
    // hit different banks, of each byte that begins a group, and of each that begins a warp's.
    static constexpr uint32_t EXITS = ENDS + 8 * WARPS;
    static constexpr uint32_t GROUP_EXITS = EXITS + 68 * T;
    static constexpr uint32_t WARP_EXITS = GROUP_EXITS + 64 * GROUPS;
    // Else: sources of bytes of two steps; for each 32 bytes of the map, bits of those where a
    // literal run or a match starts, and the place in DELTA of the run before; and by run, what
    // leads from a byte to its source.
    static constexpr uint32_t LINKS = EXITS;
    static constexpr uint32_t WINDOWS = LINKS + 8 * STEP;
    static constexpr uint32_t DELTA = WINDOWS + MAP / 32 * 8;
    static constexpr uint32_t END_FOUND = WARP_EXITS + 64 * WARPS;
    static constexpr uint32_t END_MAPPED = DELTA + 8 * BATCH;
    static constexpr uint32_t SIZE =
        ((END_FOUND > END_MAPPED ? END_FOUND : END_MAPPED) + 15) / 16 * 16;
    // Bytes of a sequence, so that sums of a batch's fit below DAMACY__LZ4_RUN.
    static constexpr uint32_t LONGEST = DAMACY__LZ4_RUN / BATCH - 1;
    static_assert(LONGEST < MAP && 2 * BATCH <= 1024, "sums fit 32 bits");
    static_assert(WINDOWS_EACH * T * 32 == MAP && MAP % STEP == 0 && EXITS % 16 == 0, "sizes");
    static constexpr uint32_t PLACES = 0x3fff; // of the ring and the part, counted from RING
    static_assert(BYTES == RING + RING_SIZE && RING_SIZE + PART <= PLACES + 1, "PLACES");
    static_assert(RING_SIZE >= 16 * T + 2 * STEP, "what the ring loses has been written");
};

// What all threads know of a part.
typedef struct damacy__lz4_tokens {
    uint32_t n_tokens, n_done;
    uint32_t begin, end; // of the part, in BYTES
    uint32_t origin;     // place in BYTES of byte 0 of the block, were it there
    bool is_last;        // it ends the block
} damacy__lz4_tokens;

enum : uint32_t { DAMACY__LZ4_ODD = 0x8000 }; // instead of an exit: the walk comes to this token
enum : uint32_t { DAMACY__LZ4_MORE = 4 };     // bytes of 255 of a length that is followed

// Copies units [inside.x, inside.y) of 16 bytes from address `first` on to shared address `units`:
// up to N of each thread.
template <class S, uint32_t N>
DAMACY__INLINE void damacy__lz4_team_bring(uint32_t units, uint64_t first, damacy__u32x2 inside)
{
    const damacy__u32x4* const whole = (const damacy__u32x4*)(uintptr_t)first;
    damacy__u32x4 v[N];
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        const uint32_t i = inside.x + S::THREADS * k + threadIdx.x;
        v[k].x = v[k].y = v[k].z = v[k].w = 0;
        if (i < inside.y)
            v[k] = damacy__load_u32x4_once(whole + i);
    }
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        const uint32_t i = inside.x + S::THREADS * k + threadIdx.x;
        if (i < inside.y)
            damacy__sts128(units + 16 * i, v[k]);
    }
}

// Brings the part from byte `at` of the block on. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_team_fetch(const damacy__lz4_state* s, damacy__lz4_tokens* t,
                                           uint32_t units, uint32_t at)
{
    const uint64_t low = (uint64_t)(uintptr_t)s->src, high = low + s->size;
    const uint64_t first = (low + at) & ~15ull;
    t->begin = (uint32_t)(low + at - first);
    t->origin = t->begin - at;
    t->end = t->begin + damacy__min(s->size - at, S::PART - t->begin);
    t->is_last = at + (t->end - t->begin) == s->size;
    const uint32_t n_units = (t->end + 15) / 16;
    const damacy__u32x2 inside = damacy__lz4_edges(units, first, n_units, low, high, threadIdx.x);
    damacy__lz4_team_bring<S, 2>(units, first, inside);
    if (!t->is_last && threadIdx.x < S::PART / 128)
        damacy__prefetch_l2(s->src +
                            damacy__min(at + t->end - t->begin + 128 * threadIdx.x, s->size - 1));
}

// The place after the token at byte i of a segment, from its first byte; `after`: the byte after
// the token. `most`: bytes of 255 that a length may have, of literals one more if any. *is_odd: it
// is behind that.
DAMACY__INLINE uint32_t damacy__lz4_team_next(uint32_t segment, uint32_t i, uint32_t token,
                                              uint32_t after, uint32_t most, bool* is_odd)
{
    uint32_t next = i + 3 + (token >> 4) + (token >= 0xf0 ? after + 1 : 0);
    *is_odd = token >= 0xf0 && after == 255;
    if (most != 0 && *is_odd) {
        uint32_t more = 255;
#pragma unroll 1
        for (uint32_t k = 0; k < most && more == 255; k++) {
            more = damacy__lds8(segment + i + 2 + k);
            next += more + 1;
        }
        *is_odd = more == 255;
    }
    if ((token & 15) == 15) {
        uint32_t more = damacy__lds8(segment + next++);
#pragma unroll 1
        for (uint32_t k = 0; k < most && more == 255; k++)
            more = damacy__lds8(segment + next++);
        *is_odd = *is_odd || more == 255;
    }
    return next;
}

// Exits of a thread's segment, three at a time, as the next token of each byte is at least three
// above it. steps: how far that is, or 32, of four bytes a word.
template <class S> DAMACY__INLINE void damacy__lz4_team_exits(uint32_t base, uint32_t* steps)
{
    const uint32_t begin = 32 * threadIdx.x, segment = base + S::BYTES + begin;
    const uint32_t row = base + S::EXITS + 68 * threadIdx.x;
    const damacy__u32x4 v0 = damacy__lds128(segment), v1 = damacy__lds128(segment + 16);
    const uint32_t words[9] = {
        v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w, damacy__lds8(segment + 32)};
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        steps[k] = 0;
#pragma unroll
    for (uint32_t n = 0; n < 33; n += 3) {
        uint32_t exit[3], next[3];
#pragma unroll
        for (uint32_t k = 0; k < 3; k++) {
            const uint32_t i = 31 - (n + k);
            bool is_odd;
            if (n + k >= 32)
                continue;
            const uint32_t token = words[i / 4] >> (8 * (i % 4)) & 255;
            const uint32_t after = words[(i + 1) / 4] >> (8 * ((i + 1) % 4)) & 255;
            next[k] = damacy__lz4_team_next(segment, i, token, after, 0, &is_odd);
            exit[k] = begin + (is_odd ? DAMACY__LZ4_ODD + i : next[k]);
            next[k] = is_odd ? 32 : next[k];
            steps[i / 4] |= (next[k] < 32 ? next[k] - i : 32) << (8 * (i % 4));
        }
#pragma unroll
        for (uint32_t k = 0; k < 3; k++)
            if (n + k < 32 && next[k] < 32)
                exit[k] = damacy__lds16(row + 2 * next[k]);
#pragma unroll
        for (uint32_t k = 0; k < 3; k++)
            if (n + k < 32)
                damacy__sts16(row + 2 * (31 - (n + k)), exit[k]);
    }
}

// The same with lengths of several bytes, of which most tokens are in blocks that shrink to little,
// one byte after another.
template <class S> DAMACY__INLINE void damacy__lz4_team_long_exits(uint32_t base, uint32_t* steps)
{
    const uint32_t begin = 32 * threadIdx.x, segment = base + S::BYTES + begin;
    const uint32_t row = base + S::EXITS + 68 * threadIdx.x;
#pragma unroll
    for (uint32_t w = 8; w-- > 0;) {
        steps[w] = 0;
#pragma unroll 1
        for (uint32_t i = 4 * w + 4; i-- > 4 * w;) {
            bool is_odd;
            const uint32_t next =
                damacy__lz4_team_next(segment, i, damacy__lds8(segment + i),
                                      damacy__lds8(segment + i + 1), DAMACY__LZ4_MORE, &is_odd);
            const bool is_inside = !is_odd && next < 32;
            const uint32_t exit = is_inside ? damacy__lds16(row + 2 * next)
                                            : begin + (is_odd ? DAMACY__LZ4_ODD + i : next);
            damacy__sts16(row + 2 * i, exit);
            steps[w] |= (is_inside ? next - i : 32) << (8 * (i % 4));
        }
    }
}

// Where the exit of the byte at place `at` of the part is.
template <class S> DAMACY__INLINE uint32_t damacy__lz4_team_exit(uint32_t base, uint32_t at)
{
    return base + S::EXITS + 68 * (at / 32) + 2 * (at % 32);
}

// Exits of the bytes that begin groups, a lane each.
template <class S> DAMACY__INLINE void damacy__lz4_team_groups(uint32_t base)
{
    enum : uint32_t { EACH = S::GROUPS / S::WARPS };
    const uint32_t first = EACH * (threadIdx.x / 32), lane = damacy__lane();
    uint32_t at[EACH];
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++)
        at[k] = damacy__lds16(damacy__lz4_team_exit<S>(base, 256 * (first + k) + lane));
#pragma unroll
    for (uint32_t i = 1; i < 8; i++)
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++)
            if (at[k] < 256 * (first + k + 1)) // not odd, too
                at[k] = damacy__lds16(damacy__lz4_team_exit<S>(base, at[k]));
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++)
        damacy__sts16(base + S::GROUP_EXITS + 64 * (first + k) + 2 * lane, at[k]);
}

// As damacy__lz4_more, 16 bytes at once where they are aligned.
DAMACY__INLINE uint32_t damacy__lz4_team_more(uint32_t memory, uint32_t* at, uint32_t end)
{
    uint32_t byte = 255, sum = 0;
    while (byte == 255 && *at < end) {
        const uint32_t place = memory + DAMACY__LZ4_BYTES + *at;
        if (place % 16 == 0 && *at + 16 <= end) {
            const damacy__u32x4 v = damacy__lds128(place);
            if ((v.x & v.y & v.z & v.w) == 0xffffffffu) {
                sum += 16 * 255;
                *at += 16;
                continue;
            }
        }
        byte = damacy__lds8(place);
        sum += byte;
        ++*at;
    }
    if (byte == 255)
        *at = end + 1;
    return sum;
}

// The place after an odd token.
static __device__ __noinline__ uint32_t damacy__lz4_team_odd(uint32_t memory, uint32_t at,
                                                             uint32_t end)
{
    const uint32_t token = damacy__lz4_peek(memory, at);
    uint32_t n = token >> 4;
    at++;
    if (n == 15)
        n += damacy__lz4_team_more(memory, &at, end);
    at += n + 2;
    if ((token & 15) == 15 && at < end)
        (void)damacy__lz4_team_more(memory, &at, end);
    return at;
}

// What the exit at `from` comes to.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_team_follow(uint32_t base, uint32_t from, uint32_t end)
{
    const uint32_t memory = base + S::BYTES - DAMACY__LZ4_BYTES, exit = damacy__lds16(from);
    if (!(exit & DAMACY__LZ4_ODD))
        return exit;
    return damacy__lz4_team_odd(memory, exit - DAMACY__LZ4_ODD, end);
}

// Where the exit is that leads furthest from place `at` and passes only tokens in front of `to`.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_team_stride(uint32_t base, uint32_t at, uint32_t to)
{
    const uint32_t group = at / 256, i = at % 256;
    return i < 32 && 256 * group + 256 <= to ? base + S::GROUP_EXITS + 64 * group + 2 * i
                                             : damacy__lz4_team_exit<S>(base, at);
}

// Exits of the bytes that begin a warp's segments.
template <class S> DAMACY__INLINE void damacy__lz4_team_warps(uint32_t base)
{
    const uint32_t lane = damacy__lane(), begin = 32 * (threadIdx.x - lane), end = begin + 1024;
    uint32_t at = begin + lane;
    do
        at = damacy__lds16(damacy__lz4_team_stride<S>(base, at, end));
    while (at < end); // not odd, too
    damacy__sts16(base + S::WARP_EXITS + 2 * threadIdx.x, at);
}

// Where the walk enters a thread's segment, or passes it by.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_team_enter(const damacy__lz4_tokens* t, uint32_t base)
{
    const uint32_t begin = 32 * threadIdx.x, warp = begin - 32 * damacy__lane();
    uint32_t at = t->begin;
    for (uint32_t from = 0; from < warp; from += 1024)
        while (at < damacy__min(from + 1024, t->end)) {
            const uint32_t exit = at - from < 32
                                      ? base + S::WARP_EXITS + from / 16 + 2 * (at - from)
                                      : damacy__lz4_team_stride<S>(base, at, warp);
            at = damacy__lz4_team_follow<S>(base, exit, t->end);
        }
    while (at < damacy__min(begin, t->end))
        at = damacy__lz4_team_follow<S>(base, damacy__lz4_team_stride<S>(base, at, begin), t->end);
    return at;
}

// x << n, or 0 if n is 32.
DAMACY__INLINE uint32_t damacy__lz4_shift(uint32_t x, uint32_t n)
{
#ifdef __CUDACC__
    uint32_t v;
    asm("shl.b32 %0,%1,%2;" : "=r"(v) : "r"(x), "r"(n));
    return v;
#else
    return n < 32 ? x << n : 0;
#endif
}

// The tokens of a thread's segment, a bit each.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_team_bits(const damacy__lz4_tokens* t, uint32_t base,
                                              const uint32_t* steps)
{
    const uint32_t begin = 32 * threadIdx.x;
    uint32_t at = damacy__lz4_team_enter<S>(t, base), bits = 0;
    while (at < t->end && at - begin < 32) { // once, but for odd tokens
        bits |= 1u << (at - begin);
#pragma unroll
        for (uint32_t i = 0; i < 29; i++)
            bits |= damacy__lz4_shift(bits & 1u << i, steps[i / 4] >> (8 * (i % 4)) & 255);
        at = damacy__lz4_team_follow<S>(base, damacy__lz4_team_exit<S>(base, at), t->end);
    }
    return t->end - begin < 32 ? bits & ((1u << (t->end - begin)) - 1) : bits;
}

// The sum of x over the threads before this one, and, where asked for, over all. `at`: for a word
// of each warp.
template <class S>
DAMACY__INLINE uint32_t damacy__lz4_team_sum(uint32_t x, uint32_t at, uint32_t* all = nullptr)
{
    const uint32_t upto = damacy__sum_upto(x, damacy__lane()), warp = threadIdx.x / 32;
    uint32_t before = upto - x, sum = 0;
    if (damacy__lane() == 31)
        damacy__sts32(at + 4 * warp, upto);
    damacy__sync_block();
    for (uint32_t i = 0; i < (all ? S::WARPS : S::WARPS - 1); i++) {
        const uint32_t v = damacy__lds32(at + 4 * i);
        before += i < warp ? v : 0;
        sum += v;
    }
    if (all)
        *all = sum;
    return before;
}

// Finds for each byte of the part, which is in shared memory, where a walk from there leads,
// whatever its entry is. steps: of a thread's bytes. `times`: in blocks that shrink so many times
// lengths of several bytes are followed, too. All threads; no barrier at either end.
template <class S>
DAMACY__INLINE void damacy__lz4_team_lead(const damacy__lz4_state* s, uint32_t base,
                                          uint32_t* steps, uint32_t times)
{
    if (damacy__lz4_shrinks(s, times))
        damacy__lz4_team_long_exits<S>(base, steps);
    else
        damacy__lz4_team_exits<S>(base, steps);
    damacy__sync_warp();
    damacy__lz4_team_groups<S>(base);
    damacy__sync_warp();
    damacy__lz4_team_warps<S>(base);
}

// Lists the tokens that a walk from t->begin on meets, behind a barrier. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_team_list(damacy__lz4_tokens* t, uint32_t base,
                                          const uint32_t* steps)
{
    uint32_t bits = damacy__lz4_team_bits<S>(t, base, steps);
    const uint32_t n_before =
        damacy__lz4_team_sum<S>(damacy__popc(bits), base + S::SUMS, &t->n_tokens);
    uint32_t to = base + S::TOKENS + 2 * n_before;
    for (; bits; bits &= bits - 1, to += 2)
        damacy__sts16(to, 32 * threadIdx.x + damacy__ctz(bits));
    damacy__sync_block();
    t->n_done = 0;
}

// Finds the tokens of the part from byte `at` of the block on. All threads.
template <class S>
DAMACY__INLINE void damacy__lz4_team_find(const damacy__lz4_state* s, damacy__lz4_tokens* t,
                                          uint32_t base, uint32_t at)
{
    uint32_t steps[8];
    damacy__sync_block(); // the part before is done
    damacy__lz4_team_fetch<S>(s, t, base + S::BYTES, at);
    damacy__sync_block();
    damacy__lz4_team_lead<S>(s, base, steps, 16);
    damacy__sync_block();
    damacy__lz4_team_list<S>(t, base, steps);
}
