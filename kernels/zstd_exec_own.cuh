// A tile in shared memory, and its matches that read bytes of the same tile.
//
// Few of those sources hold bytes of such matches in turn (MARKS tells): the others are copied, a
// match a thread. The rest becomes a list of bytes with links (byte -> source byte), and each byte
// follows links to one that has none. Links never wait for data, so nothing spins.
//
// Surprising: lanes shorten links while others follow them. Any value that a reader can see is an
// ancestor of the byte, so the order does not matter.
#pragma once

#include "kernels/zstd_exec_copy.cuh"

#define DAMACY__EXEC_ROOT 0xffffu // no link: the byte is there
#define DAMACY__EXEC_BIAS 0x4000  // links are positions in the tile plus this: below it, before it
#define DAMACY__EXEC_LONG 32      // bytes that a lane handles alone

template <int THREADS_, int SEGMENTS_, int TILE_, int CHUNK_ = 8, bool IS_SERIAL_ = false,
          bool BY_SEQUENCE_ = false>
struct damacy__exec_shape {
    static constexpr int32_t THREADS = THREADS_, SEGMENTS = SEGMENTS_, TILE = TILE_;
    static constexpr int32_t WARPS = THREADS / 32, SLOTS = THREADS * SEGMENTS;
    // Of a thread's records one is STEP after the other, and a tile has RECORDS at most. Where they
    // are of sequences, the last lane of a warp has none, see zstd_exec_sequence.cuh.
    static constexpr bool BY_SEQUENCE = BY_SEQUENCE_;
    static constexpr int32_t STEP = BY_SEQUENCE ? 31 * WARPS : THREADS, RECORDS = STEP * SEGMENTS;
    static constexpr int32_t CHUNK = CHUNK_;      // bytes, see damacy__exec_put
    static constexpr bool HAS_PAIRS = false;      // see damacy__exec_store8
    static constexpr bool IS_RELAY = false;       // see zstd_exec_relay.cuh
    static constexpr bool IS_SERIAL = IS_SERIAL_; // see zstd_exec_serial.cuh
    // see damacy__exec_own
    static constexpr bool IS_DEALT = THREADS == 128 && 8 * SLOTS <= TILE;
    static constexpr uint32_t LINKS = TILE + 16;
    // Places in shared memory. OWN: matches that read their tile, {place | bytes << 16, offset}.
    // QUEUE: segments above 8 bytes, {source, place | end << 16}, source and place less CHUNK times
    // the chunks before them; STARTS: a bit for each chunk, set for the first of a segment. A list
    // of up to LISTS bytes begins when the queue is done. MARKS: a bit for each byte of the tile,
    // set if it belongs to OWN. SERIAL has neither links nor marks but a bit for each record,
    // OWNED.
    static constexpr uint32_t OWN = 0, OWNED = OWN + 8 * SLOTS;
    static constexpr uint32_t LINK = OWNED + (IS_SERIAL ? SLOTS / 8 : 0);
    static constexpr uint32_t LIST = LINK + (IS_SERIAL ? 0 : 2 * LINKS);
    static constexpr uint32_t QUEUE = LIST, STARTS = LIST + TILE, MARKS = STARTS + TILE / 64;
    static constexpr uint32_t LISTS = TILE / 2;
    static constexpr uint32_t CONTROL = MARKS + (IS_SERIAL ? 0 : TILE / 8 + 16);
    static constexpr uint32_t BYTES = CONTROL + 64;
    static constexpr uint32_t CLEARED = CONTROL + 16 - STARTS; // after a tile
    static constexpr uint32_t TURN = BYTES + TILE + 32;        // see damacy__exec_frames
    static constexpr uint32_t SIZE = BYTES + TILE + 64;
    static_assert(CHUNK == 8 || CHUNK == 16, "chunks");
    static_assert(TILE % 1024 == 0 && TILE <= DAMACY__EXEC_BIAS, "tile");
    static_assert(8 * (TILE / 9 + 2) <= TILE, "every segment above 8 bytes has an entry");
    static_assert(SIZE == (IS_SERIAL ? DAMACY__ZSTD_SERIAL_SHARED(THREADS, SEGMENTS, TILE)
                                     : DAMACY__ZSTD_EXECUTE_SHARED(THREADS, SEGMENTS, TILE)),
                  "host's view");
};

enum { // words at CONTROL
    DAMACY__EXEC_BAD = 0,
    DAMACY__EXEC_NEXT = 4,     // record that t1 lies in, if that is a loaded one
    DAMACY__EXEC_OWNED = 8,    // entries of OWN
    DAMACY__EXEC_CHUNKED = 12, // entries of QUEUE << 16 | chunks
    DAMACY__EXEC_LISTED = 16,  // bytes with links
    DAMACY__EXEC_EARLY = 20,   // RELAY: entries at the end of OWN whose sources are not there yet
    DAMACY__EXEC_YIELDS = 24   // whether the frame is given back at the end of the block
};

enum {                      // at TURN, behind the 8 bytes of damacy__turn_next
    DAMACY__EXEC_UNTIL = 8, // first block before which the frame may be given back, or NONE
    DAMACY__EXEC_STATE = 16 // 16 bytes, of damacy__exec_frames
};

// Marks the bytes of a match, {place | bytes << 16}.
template <class S> DAMACY__INLINE void damacy__exec_mark_match(uint32_t shared, uint32_t place)
{
    const uint32_t end = (place & 0xffff) + (place >> 16);

    DAMACY__EXEC_NOUNROLL for (uint32_t at = place & 0xffff; at < end; at = (at | 31) + 1)
        damacy__shared_or(shared + S::MARKS + at / 32 * 4, damacy__exec_ones(end - at)
                                                               << (at & 31));
}

// Marks the bytes of the matches that read their tile. The last threads begin, as the first ones
// have chunks.
template <class S> DAMACY__INLINE void damacy__exec_mark(uint32_t shared, uint32_t n_own)
{
    const uint32_t first = (uint32_t)S::THREADS - 1 - threadIdx.x;

    DAMACY__EXEC_NOUNROLL for (uint32_t i = first; i < n_own; i += S::THREADS)
        damacy__exec_mark_match<S>(shared, damacy__lds32(shared + S::OWN + 8 * i));
}

// A match that reads its tile: place, bytes (0: none), offset.
struct damacy__exec_match {
    int32_t to, n, offset;
};

// Repeats the lowest `period` bytes (1 to 7) of v.
DAMACY__INLINE uint64_t damacy__exec_repeat(uint64_t v, uint32_t period)
{
    v &= (1ull << (8 * period)) - 1;
    v |= v << (8 * period);
    if (period < 4)
        v |= v << (16 * period);
    if (period < 2)
        v |= v << 32;
    return v;
}

// A word of the tile, of whose bytes other lanes may be writing those that are not wanted. As
// with links, its instruction stands here.
DAMACY__INLINE uint32_t damacy__exec_peek_word(uint32_t at)
{
#ifdef __CUDACC__
    uint32_t v;
    asm volatile("ld.shared.u32 %0,[%1];" : "=r"(v) : "r"(at));
    return v;
#else
    return damacy__lds32(at);
#endif
}

// 8 bytes of shared memory at any alignment.
DAMACY__INLINE uint64_t damacy__exec_peek(uint32_t at)
{
    const uint32_t skew = at * 8, word = at & ~3u;
    const uint32_t w0 = damacy__exec_peek_word(word), w1 = damacy__exec_peek_word(word + 4);
    const uint32_t w2 = damacy__exec_peek_word(word + 8);

    return (uint64_t)damacy__funnel_right(w1, w2, skew) << 32 | damacy__funnel_right(w0, w1, skew);
}

// Whether the source of a match of up to LONG bytes is in the tile and belongs to no match of OWN.
template <class S> DAMACY__INLINE bool damacy__exec_is_there(uint32_t shared, damacy__exec_match m)
{
    const int32_t q = m.to - m.offset, period = m.offset < m.n ? m.offset : m.n;

    if (q < 0)
        return false;
    const uint32_t marks = shared + S::MARKS + (uint32_t)q / 32 * 4;
    const uint32_t bits =
        damacy__funnel_right(damacy__lds32(marks), damacy__lds32(marks + 4), (uint32_t)q & 31);
    return !(bits & 0xffffffffu >> (32 - period));
}

// Copies a match of up to LONG bytes whose source is there already; false if it is not. Where
// source and match overlap, the bytes before the match repeat.
template <class S> DAMACY__INLINE bool damacy__exec_copy_own(uint32_t shared, damacy__exec_match m)
{
    const int32_t q = m.to - m.offset, period = m.offset < m.n ? m.offset : m.n;

    if (!damacy__exec_is_there<S>(shared, m))
        return false;
    const bool repeats = period < 8 && period < m.n;
    uint32_t from = shared + S::BYTES + (uint32_t)q, to = shared + S::BYTES + (uint32_t)m.to;
    uint64_t v = damacy__exec_peek(from);
    int32_t step = 8;
    if (repeats) {
        v = damacy__exec_repeat(v, (uint32_t)period);
        step -= 0x12302000 >> (4 * period) & 15; // 8 modulo the period
    }
    DAMACY__EXEC_NOUNROLL for (int32_t n = m.n;;)
    {
        damacy__exec_store8<S::HAS_PAIRS>(to, (uint32_t)v, (uint32_t)(v >> 32), n);
        n -= step;
        if (n <= 0)
            return true;
        to += (uint32_t)step;
        from += 8;
        if (!repeats)
            v = damacy__exec_peek(from);
    }
}

// Both of a match of any length by the whole warp.
template <class S>
DAMACY__INLINE bool damacy__exec_is_there_long(uint32_t shared, damacy__exec_match m)
{
    const uint32_t lane = damacy__lane(), q = (uint32_t)(m.to - m.offset);
    const uint32_t end = q + damacy__min((uint32_t)m.offset, (uint32_t)m.n);
    uint32_t bits = 0;

    if (m.to < m.offset)
        return false;
    DAMACY__EXEC_NOUNROLL for (uint32_t at = (q & ~31u) + 32 * lane; at < end; at += 1024)
    {
        uint32_t word = damacy__lds32(shared + S::MARKS + at / 8);
        if (at < q)
            word &= 0xffffffffu << (q & 31);
        if (end - at < 32)
            word &= 0xffffffffu >> (32 - (end - at));
        bits |= word;
    }
    return !damacy__any(bits != 0);
}

template <class S> DAMACY__INLINE bool damacy__exec_copy_long(uint32_t shared, damacy__exec_match m)
{
    const uint32_t lane = damacy__lane(), to = (uint32_t)m.to, n = (uint32_t)m.n;
    const uint32_t q = to - (uint32_t)m.offset, period = damacy__min((uint32_t)m.offset, n);
    const uint32_t step = 32 % period;
    uint32_t phase = lane % period;

    if (!damacy__exec_is_there_long<S>(shared, m))
        return false;
    DAMACY__EXEC_NOUNROLL for (uint32_t k = lane; k < n; k += 32)
    {
        damacy__sts8(shared + S::BYTES + to + k, damacy__lds8(shared + S::BYTES + q + phase));
        phase += step;
        if (phase >= period)
            phase -= period;
    }
    return true;
}

// Links and list entries of a match. Where source and match overlap, a byte's source is taken
// modulo the offset: it lies before the match.
template <class S> DAMACY__INLINE void damacy__exec_link(uint32_t shared, damacy__exec_match m)
{
    const uint32_t base = damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_LISTED,
                                             (uint32_t)m.n, (uint32_t)m.offset >> 16);
    uint32_t link = shared + S::LINK + 2 * (uint32_t)m.to, list = shared + S::LIST + 2 * base;
    const int32_t end = m.to + DAMACY__EXEC_BIAS;
    int32_t source = end - m.offset;

    DAMACY__EXEC_NOUNROLL for (int32_t k = 0; k < m.n; k++, link += 2, list += 2)
    {
        damacy__exec_link_store(link, (uint32_t)source);
        if (list < shared + S::LIST + 2 * S::LISTS)
            damacy__sts16(list, (uint32_t)(m.to + k));
        if (++source == end)
            source -= m.offset;
    }
}

// The same of one match by the whole warp.
template <class S> DAMACY__INLINE void damacy__exec_link_long(uint32_t shared, damacy__exec_match m)
{
    const uint32_t lane = damacy__lane(), to = (uint32_t)m.to, n = (uint32_t)m.n;
    const uint32_t source = to - (uint32_t)m.offset + DAMACY__EXEC_BIAS;
    const uint32_t period = damacy__min((uint32_t)m.offset, n), step = 32 % period;
    uint32_t phase = lane % period, base = 0;

    if (lane == 0)
        base = damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_LISTED, n,
                                  (uint32_t)m.offset >> 16);
    base = shared + S::LIST + 2 * damacy__shfl(base, 0);
    DAMACY__EXEC_NOUNROLL for (uint32_t k = lane; k < n; k += 32)
    {
        damacy__exec_link_store(shared + S::LINK + 2 * (to + k), source + phase);
        if (base + 2 * k < shared + S::LIST + 2 * S::LISTS)
            damacy__sts16(base + 2 * k, to + k);
        phase += step;
        if (phase >= period)
            phase -= period;
    }
}

// Entry i of OWN; behind the last, one without bytes.
template <class S>
DAMACY__INLINE damacy__exec_match damacy__exec_own_load(uint32_t shared, uint32_t i, uint32_t n_own)
{
    damacy__exec_match m;

    m.to = m.n = 0;
    m.offset = 1;
    if (i < n_own) {
        const damacy__u32x2 v = damacy__lds64(shared + S::OWN + 8 * i);
        m.to = (int32_t)(v.x & 0xffff);
        m.n = (int32_t)(v.x >> 16);
        m.offset = (int32_t)v.y;
    }
    return m;
}

// The match of one lane, for the whole warp.
DAMACY__INLINE damacy__exec_match damacy__exec_match_of(damacy__exec_match m, uint32_t lane)
{
    damacy__exec_match one;

    one.to = damacy__shfl(m.to, lane);
    one.n = damacy__shfl(m.n, lane);
    one.offset = damacy__shfl(m.offset, lane);
    return one;
}

// The matches that read their tile: copies what can be copied, links the bytes of the others. The
// shape for long segments deals them out to its warps one by one, as each long one is a whole
// warp's work.
template <class S> DAMACY__INLINE void damacy__exec_own(uint32_t shared, uint32_t n_own)
{
    const uint32_t first = S::IS_DEALT ? threadIdx.x / 32 : threadIdx.x & ~31u;
    const uint32_t step = S::IS_DEALT ? S::WARPS : 1;

    DAMACY__EXEC_NOUNROLL for (uint32_t i0 = first; i0 < n_own; i0 += S::THREADS)
    {
        const uint32_t i = i0 + damacy__lane() * step;
        const damacy__exec_match m = damacy__exec_own_load<S>(shared, i, n_own);
        uint32_t longer = damacy__ballot(m.n > DAMACY__EXEC_LONG);
        while (longer) {
            const damacy__exec_match one = damacy__exec_match_of(m, damacy__ctz(longer));
            longer &= longer - 1;
            if (!damacy__exec_copy_long<S>(shared, one))
                damacy__exec_link_long<S>(shared, one);
        }
        if (m.n > 0 && m.n <= DAMACY__EXEC_LONG && !damacy__exec_copy_own<S>(shared, m))
            damacy__exec_link<S>(shared, m);
        damacy__sync_warp();
    }
}

// Bytes with links; all of the tile are looked at if they were too many for the list. A hop goes to
// an earlier byte, so a tile bounds them. Without TAKES links are followed alone.
template <class S, bool TAKES>
DAMACY__INLINE void damacy__exec_chase(uint32_t shared, uint64_t history, uint32_t n)
{
    const uint32_t end = n > S::LISTS ? S::LINKS : n;

    DAMACY__EXEC_NOUNROLL for (uint32_t i = threadIdx.x; i < end; i += S::THREADS)
    {
        const uint32_t x = n > S::LISTS ? i : damacy__lds16(shared + S::LIST + 2 * i);
        const uint32_t self = shared + S::LINK + 2 * x;
        uint32_t v = damacy__exec_link_load(self);
        if (v == DAMACY__EXEC_ROOT)
            continue;
        DAMACY__EXEC_NOUNROLL for (int32_t hop = 0; v >= DAMACY__EXEC_BIAS && hop < S::TILE; hop++)
        {
            const uint32_t next =
                damacy__exec_link_load(shared + S::LINK + 2 * (v - DAMACY__EXEC_BIAS));
            if (next == DAMACY__EXEC_ROOT)
                break;
            v = next;
            damacy__exec_link_store(self, v);
        }
        if (!TAKES)
            continue;
        const uint32_t byte = v < DAMACY__EXEC_BIAS
                                  ? damacy__exec_byte(history + v - DAMACY__EXEC_BIAS)
                                  : damacy__lds8(shared + S::BYTES + v - DAMACY__EXEC_BIAS);
        damacy__sts8(shared + S::BYTES + x, byte);
    }
}
