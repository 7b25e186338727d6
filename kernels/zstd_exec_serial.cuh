// Matches that read their own tile, in order by one warp: for waves of not so many records, whose
// matches are long and mostly read what others of the tile have copied. There links, one for every
// byte, would take most of the time; and what one warp does is little beside the warps of other
// frames.
//
// What counts is how many instructions the warp needs: so all warps turn the matches into entries
// that say all there is to know, and up to four short ones beside each other that do not read each
// other are a group, copied at once.
#pragma once

#include "kernels/zstd_exec_own.cuh"

// Which of the tile's records from `skip` on, one a thread, are matches that read the tile. They
// have a bit each in OWNED and lie in OWN at their record's place. The whole warp calls this.
template <class S> DAMACY__INLINE void damacy__exec_owned(uint32_t shared, int32_t skip, bool late)
{
    const uint32_t owned = damacy__ballot(late);

    if (damacy__lane() == 0)
        damacy__sts32(shared + S::OWNED + ((uint32_t)skip + threadIdx.x) / 8, owned);
}

// Whether there are any. Every warp looks.
template <class S> DAMACY__INLINE bool damacy__exec_owns(uint32_t shared)
{
    return damacy__any(damacy__lds32(shared + S::OWNED + damacy__lane() % (S::SLOTS / 32) * 4));
}

// 1/offset (1 to 31) in units of 1/16384, rounded up or one more; and k modulo offset by that, for
// k up to 128.
DAMACY__INLINE uint32_t damacy__exec_inverse(uint32_t offset)
{
#ifdef __CUDACC__
    float inverse;
    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(inverse) : "f"((float)offset));
    return (uint32_t)(16384.0f * inverse + 1.0f);
#else
    return 16384 / offset + 1;
#endif
}

DAMACY__INLINE uint32_t damacy__exec_modulo(uint32_t k, uint32_t offset, uint32_t inverse)
{
    return k - offset * (k * inverse >> 14);
}

// A lane's bytes, 32 apart from shared address `to` on, those of the four that are among the
// `left` from the first one on.
DAMACY__INLINE void damacy__exec_put_four(uint32_t to, const uint32_t byte[4], int32_t left)
{
    DAMACY__EXEC_UNROLL for (int32_t i = 0; i < 4; i++) if (left > 32 * i)
        damacy__sts8(to + (uint32_t)(32 * i), byte[i]);
}

// A match whose source begins in the tile's buffer or, if IN_OUTPUT, before it. No step reads what
// it writes.
template <class S, bool IN_OUTPUT>
DAMACY__INLINE void damacy__exec_copy_steps(uint32_t shared, uint64_t history, int32_t to,
                                            int32_t offset, int32_t n)
{
    const int32_t lane = (int32_t)damacy__lane();
    const uint32_t bytes = shared + S::BYTES;
    int32_t step = 0;

    DAMACY__EXEC_NOUNROLL for (int32_t k = 0; k < n; k += step)
    {
        step = offset < 128 ? offset : 128;
        const int32_t left = (n - k < step ? n - k : step) - lane, from = to - offset + k + lane;
        uint32_t byte[4] = {0, 0, 0, 0};
        DAMACY__EXEC_UNROLL for (int32_t i = 0; i < 4; i++) if (left > 32 * i) byte[i] =
            IN_OUTPUT && from + 32 * i < 0
                ? damacy__exec_byte(history + (uint64_t)(int64_t)(from + 32 * i))
                : damacy__lds8(bytes + (uint32_t)(from + 32 * i));
        damacy__exec_put_four(bytes + (uint32_t)(to + k + lane), byte, left);
        if (offset < 128) // what is there now repeats twice as much
            offset *= 2;
        damacy__sync_warp();
    }
}

// One that repeats fewer than 32 bytes of the buffer: as many whole repetitions a step as 128 bytes
// hold, which are looked up once.
template <class S>
DAMACY__INLINE void damacy__exec_copy_run(uint32_t shared, int32_t to, int32_t offset, int32_t n)
{
    const uint32_t inverse = damacy__exec_inverse((uint32_t)offset);
    const int32_t step = 128 - (int32_t)damacy__exec_modulo(128, (uint32_t)offset, inverse);
    const int32_t lane = (int32_t)damacy__lane();
    const uint32_t at = shared + S::BYTES + (uint32_t)to;
    uint32_t byte[4];

    DAMACY__EXEC_UNROLL for (int32_t i = 0; i < 4; i++) byte[i] =
        damacy__lds8(at - (uint32_t)offset +
                     damacy__exec_modulo((uint32_t)(lane + 32 * i), (uint32_t)offset, inverse));
    DAMACY__EXEC_NOUNROLL for (int32_t k = 0; k < n; k += step)
    {
        const int32_t left = (n - k < step ? n - k : step) - lane;
        damacy__exec_put_four(at + (uint32_t)(k + lane), byte, left);
    }
}

// A match of any length, place | bytes << 16, whose source is in the tile's buffer or, with what
// lies before that, in the output. A warp does.
template <class S>
static __device__ void damacy__exec_copy_one(uint32_t shared, uint64_t history, damacy__u32x2 entry)
{
    const int32_t to = (int32_t)(entry.x & 0xffff), n = (int32_t)(entry.x >> 16);
    const int32_t offset = (int32_t)entry.y;

    if (offset > to)
        damacy__exec_copy_steps<S, true>(shared, history, to, offset, n);
    else if (offset < 32)
        damacy__exec_copy_run<S>(shared, to, offset, n);
    else
        damacy__exec_copy_steps<S, false>(shared, history, to, offset, n);
}

// What entries become before they are copied, from the highest bit on; those of 32 records lie
// together. In a group: {place: 16, source: 16; bytes: 6, 32 - offset: 5, its inverse: 15, IS_LAST,
// MORE, 0, REPEATS, 0}, the offset of those alone that overlap their source; up to 32 bytes, their
// source in the buffer. MORE is 8 times how many entries behind it read neither it nor each other,
// at most 3; IS_LAST: these are the last of the 32 records. By itself: {the same; bytes: 8, 18
// zeros, IS_LAST, 0, 0, IS_LONG, 0, 0}, of up to 128 bytes that do not overlap their source in the
// buffer; all others: {bytes: 16, place: 16; 0: 8, offset: 16, 2 zeros, IS_LAST, 4 zeros,
// IS_OTHER}.
enum {
    DAMACY__EXEC_IS_OTHER = 1,
    DAMACY__EXEC_REPEATS = 2,
    DAMACY__EXEC_IS_LONG = 4,
    DAMACY__EXEC_MORE = 0x18, // two bits
    DAMACY__EXEC_IS_LAST = 0x20
};

// Turns a warp's own 32 entries from shared address `at` on, those in `owned`, into what they
// become, and moves them together.
DAMACY__INLINE void damacy__exec_look(uint32_t at, uint32_t owned)
{
    const uint32_t lane = damacy__lane();
    const damacy__u32x2 mine = damacy__lds64(at + 8 * lane);
    const uint32_t to = mine.x & 0xffff, size = mine.x >> 16, offset = mine.y;
    const bool repeats = offset - 1 < size - 1; // an offset of 0 is bad
    const bool alone = size > 32 || offset > to;
    const bool is_long = size > 32 && size <= 128 && offset <= to && !repeats;
    const uint32_t end = alone ? 0xffffffffu : repeats ? to : to - offset + size; // of its source
    const uint32_t after = owned >> lane >> 1 << lane << 1, after2 = after & (after - 1);
    const uint32_t after3 = after2 & (after2 - 1);
    const uint32_t end1 = damacy__shfl(end, damacy__ctz(after) & 31);
    const uint32_t end2 = damacy__shfl(end, damacy__ctz(after2) & 31);
    const uint32_t end3 = damacy__shfl(end, damacy__ctz(after3) & 31);
    const uint32_t place = damacy__popc(owned & damacy__exec_ones(lane));
    uint32_t flags = 0;

    if (after && end1 <= to && !alone)
        flags = !after2 || end2 > to ? 8 : !after3 || end3 > to ? 16 : 24;
    if (place + 1 + flags / 8 == damacy__popc(owned))
        flags |= DAMACY__EXEC_IS_LAST;
    if (is_long)
        flags |= size << 24 | DAMACY__EXEC_IS_LONG;
    else if (alone)
        flags |= offset << 8 | DAMACY__EXEC_IS_OTHER;
    else
        flags |= size << 26;
    if (repeats && !alone)
        flags |= (32 - offset) << 21 | damacy__exec_inverse(offset) << 6 | DAMACY__EXEC_REPEATS;
    damacy__sync_warp();
    if (owned >> lane & 1)
        damacy__sts64(at + 8 * place,
                      flags & DAMACY__EXEC_IS_OTHER ? mine.x : (to - offset) | to << 16, flags);
}

// The entries of all records that the warp has taken.
template <class S> DAMACY__INLINE void damacy__exec_prepare(uint32_t shared)
{
    damacy__sync_warp();
    DAMACY__EXEC_UNROLL for (uint32_t u = 0; u < S::SEGMENTS; u++)
    {
        const uint32_t k = u * S::WARPS + threadIdx.x / 32;
        const uint32_t owned = damacy__lds32(shared + S::OWNED + 4 * k);
        if (damacy__any(owned))
            damacy__exec_look(shared + S::OWN + 256 * k, owned);
    }
}

// Where a warp is among the entries: groups of those that are copied together, within 32 records.
struct damacy__exec_cursor {
    uint32_t at;         // address of the group's first entry
    uint32_t left;       // a bit for each 32 records with entries, from those on
    uint32_t flags;      // of the group's first entry
    damacy__u32x2 entry; // the lane's, if the group is that large
};

// Asks for the group's entries; behind the last group they are not looked at.
DAMACY__INLINE void damacy__exec_ask(damacy__exec_cursor* c)
{
    c->flags = damacy__lds32(c->at + 4);
    c->entry = damacy__lds64(c->at + (damacy__lane() & 0x18));
}

// Moves to the first of the 32 records that are next.
template <class S> DAMACY__INLINE void damacy__exec_enter(damacy__exec_cursor* c, uint32_t shared)
{
    c->at = shared + S::OWN + 256 * (damacy__ctz(c->left) % (S::SLOTS / 32));
}

// Whether a group is the last of its 32 records.
enum { DAMACY__EXEC_NO, DAMACY__EXEC_MAYBE, DAMACY__EXEC_YES };

// Moves to the next group.
template <class S, int IS_LAST>
DAMACY__INLINE void damacy__exec_advance(damacy__exec_cursor* c, uint32_t shared)
{
    c->at += 8 + (c->flags & DAMACY__EXEC_MORE);
    if (IS_LAST == DAMACY__EXEC_YES ||
        (IS_LAST == DAMACY__EXEC_MAYBE && c->flags & DAMACY__EXEC_IS_LAST)) {
        c->left &= c->left - 1;
        damacy__exec_enter<S>(c, shared);
    }
    damacy__exec_ask(c);
}

// Copies the group, 8 lanes a match, bytes k, k + 8, ... by lane k, and moves to the next. REPEATS:
// its first match overlaps its source.
template <class S, bool REPEATS, int IS_LAST>
DAMACY__INLINE void damacy__exec_copy_group(damacy__exec_cursor* c, uint32_t shared)
{
    const uint32_t k = damacy__lane() & 7, bytes = shared + S::BYTES + k;
    const bool has = (damacy__lane() & 0x18) <= (c->flags & DAMACY__EXEC_MORE);
    const uint32_t from = damacy__add_low_half(c->entry.x, bytes);
    const uint32_t to = (c->entry.x >> 16) + bytes;
    const int32_t left = (int32_t)(c->entry.y >> 26) - (int32_t)k;
    const uint32_t less = c->entry.y >> 21 | 0xffffffe0, inverse = c->entry.y >> 6 & 0x7fff;
    uint32_t byte[4]; // what is not asked for is not looked at

    DAMACY__EXEC_UNROLL for (uint32_t i = 0; i < 4; i++) if (has && left > 8 * (int32_t)i) byte[i] =
        damacy__lds8(from + 8 * i + // see damacy__exec_modulo
                     (REPEATS ? less * ((k + 8 * i) * inverse >> 14) : 0));
    damacy__exec_advance<S, IS_LAST>(c, shared);
    DAMACY__EXEC_UNROLL for (uint32_t i = 0; i < 4; i++) if (has && left > 8 * (int32_t)i)
        damacy__sts8(to + 8 * i, byte[i]);
}

// Copies a long one, and moves to the next group.
template <class S>
DAMACY__INLINE void damacy__exec_copy_long_one(damacy__exec_cursor* c, uint32_t shared)
{
    const uint32_t lane = damacy__lane(), bytes = shared + S::BYTES + lane;
    const uint32_t places = damacy__lds32(c->at), from = damacy__add_low_half(places, bytes);
    const uint32_t to = (places >> 16) + bytes;
    const int32_t left = (int32_t)(c->flags >> 24) - (int32_t)lane;
    uint32_t byte[4]; // what is not asked for is not looked at

    DAMACY__EXEC_UNROLL for (uint32_t i = 0; i < 4; i++) if (left > 32 * (int32_t)i) byte[i] =
        damacy__lds8(from + 32 * i);
    damacy__exec_advance<S, DAMACY__EXEC_MAYBE>(c, shared);
    damacy__exec_put_four(to, byte, left);
}

// All of the tile, by one warp. Most are copied by the inner loop.
template <class S> DAMACY__INLINE void damacy__exec_serial(uint32_t shared, uint64_t history)
{
    const uint32_t kinds =
        DAMACY__EXEC_IS_OTHER | DAMACY__EXEC_REPEATS | DAMACY__EXEC_IS_LONG | DAMACY__EXEC_IS_LAST;
    const uint32_t lane = damacy__lane();
    damacy__exec_cursor c;

    c.left =
        damacy__ballot(lane < S::SLOTS / 32 && damacy__lds32(shared + S::OWNED + 4 * lane) != 0);
    damacy__exec_enter<S>(&c, shared);
    damacy__exec_ask(&c);
    DAMACY__EXEC_NOUNROLL while (c.left)
    {
        DAMACY__EXEC_NOUNROLL while (!(c.flags & kinds))
        {
            damacy__exec_copy_group<S, false, DAMACY__EXEC_NO>(&c, shared);
            damacy__sync_warp();
        }
        if ((c.flags & kinds) == DAMACY__EXEC_IS_LAST) {
            damacy__exec_copy_group<S, false, DAMACY__EXEC_YES>(&c, shared);
        } else if (c.flags & DAMACY__EXEC_REPEATS) {
            damacy__exec_copy_group<S, true, DAMACY__EXEC_MAYBE>(&c, shared);
        } else if (c.flags & DAMACY__EXEC_IS_LONG) {
            damacy__exec_copy_long_one<S>(&c, shared);
        } else {
            damacy__u32x2 entry;
            entry.x = damacy__lds32(c.at);
            entry.y = c.flags >> 8;
            damacy__exec_advance<S, DAMACY__EXEC_MAYBE>(&c, shared);
            damacy__exec_copy_one<S>(shared, history, entry);
        }
        damacy__sync_warp();
    }
}
