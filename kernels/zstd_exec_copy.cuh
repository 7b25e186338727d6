// Parts of sequence execution that know nothing of tiles: single accesses, bytes to shared memory
// at any alignment, and which of the variants takes a frame.
#pragma once

#include "kernels/zstd_common.cuh"

#ifdef __CUDACC__
#define DAMACY__EXEC_UNROLL   _Pragma("unroll")
#define DAMACY__EXEC_NOUNROLL _Pragma("unroll 1")
#else
#define DAMACY__EXEC_UNROLL
#define DAMACY__EXEC_NOUNROLL
#endif

// An aligned word of device memory that this CTA may have written before the last barrier.
DAMACY__INLINE uint32_t damacy__exec_word(uint64_t at)
{
#ifdef __CUDACC__
    uint32_t v;
    asm volatile("ld.global.u32 %0,[%1];" : "=r"(v) : "l"(at));
    return v;
#else
    return *(const uint32_t*)(uintptr_t)at;
#endif
}

// A record; it is not read again.
DAMACY__INLINE damacy__u32x2 damacy__exec_record(uint64_t at)
{
    return damacy__load_u32x2_stream((const damacy__u32x2*)(uintptr_t)at);
}

DAMACY__INLINE uint32_t damacy__exec_byte(uint64_t at)
{
    return *(const uint8_t*)(uintptr_t)at;
}

// Links are read and shortened by several lanes at once; 16 bits come at once, so that a reader
// gets one of the values. (Of accesses that are relaxed by name the assembler takes a loop for a
// wait: it yields in it and lets lanes go on alone, 1 to 5 % of a wave.) Their instructions stand
// here, not in damacy__lds16, because tests/gpu/sanitize.awk knows these races by function.
DAMACY__INLINE uint32_t damacy__exec_link_load(uint32_t at)
{
#ifdef __CUDACC__
    uint16_t v;
    asm volatile("ld.shared.u16 %0,[%1];" : "=h"(v) : "r"(at));
    return v;
#else
    return damacy__lds16(at);
#endif
}

DAMACY__INLINE void damacy__exec_link_store(uint32_t at, uint32_t v)
{
#ifdef __CUDACC__
    asm volatile("st.shared.u16 [%0],%1;" ::"r"(at), "h"((uint16_t)v));
#else
    damacy__sts16(at, v);
#endif
}

// A counter in shared memory; returns what it was. `nothing` is 0, but the compiler cannot tell:
// of lanes that it knows to use one counter it adds up the counts first, by shuffles, which takes
// longer than their turns.
DAMACY__INLINE uint32_t damacy__exec_count(uint32_t at, uint32_t n, uint32_t nothing)
{
    return damacy__shared_add(at + nothing, n);
}

// The lowest n bits, all if n is 32 or more.
DAMACY__INLINE uint32_t damacy__exec_ones(uint32_t n)
{
#ifdef __CUDACC__
    uint32_t v;
    asm("bmsk.clamp.b32 %0,0,%1;" : "=r"(v) : "r"(n));
    return v;
#else
    return n < 32 ? (1u << n) - 1 : 0xffffffffu;
#endif
}

// As damacy__exec_store8, two bytes at a time where they share half a word.
DAMACY__INLINE void damacy__exec_store_pairs(uint32_t to, uint32_t lo, uint32_t hi, int32_t n)
{
    const uint32_t odd = to & 1;
    const int32_t left = (n < 8 ? n : 8) - (int32_t)odd; // from the first even place on
    const uint32_t v0 = damacy__funnel_right(lo, hi, 8 * odd), v1 = hi >> (8 * odd);

    if (odd && n > 0)
        damacy__sts8(to, lo);
    to += odd;
    if (left >= 2)
        damacy__sts16(to, v0);
    if (left >= 4)
        damacy__sts16(to + 2, v0 >> 16);
    if (left >= 6)
        damacy__sts16(to + 4, v1);
    if (left >= 8)
        damacy__sts16(to + 6, v1 >> 16);
    if (left > 0 && (left & 1)) {
        const uint32_t last = (uint32_t)left - 1;
        damacy__sts8(to + last, (last & 4 ? v1 : v0) >> (last & 2 ? 16 : 0));
    }
}

// Lowest n bytes (0 to 8, more count as 8) of hi:lo to shared memory; their neighbours belong to
// other lanes. PAIRS: fewer stores but more instructions, which pays where few frames wait for each
// other's tiles.
template <bool PAIRS>
DAMACY__INLINE void damacy__exec_store8(uint32_t to, uint32_t lo, uint32_t hi, int32_t n)
{
    if (PAIRS) {
        damacy__exec_store_pairs(to, lo, hi, n);
        return;
    }
    const uint32_t wanted = damacy__exec_ones((uint32_t)n);

    if (wanted & 1)
        damacy__sts8(to, lo);
    if (wanted & 2)
        damacy__sts8(to + 1, lo >> 8);
    if (wanted & 4)
        damacy__sts8(to + 2, lo >> 16);
    if (wanted & 8)
        damacy__sts8(to + 3, lo >> 24);
    if (wanted & 16)
        damacy__sts8(to + 4, hi);
    if (wanted & 32)
        damacy__sts8(to + 5, hi >> 8);
    if (wanted & 64)
        damacy__sts8(to + 6, hi >> 16);
    if (wanted & 128)
        damacy__sts8(to + 7, hi >> 24);
}

// Words around the first 8 bytes of a source of n. Only words that hold one of the n are read:
// their other bytes may be a neighbour's who writes them just now, and are shifted out or not
// stored.
struct damacy__exec_words {
    uint32_t w0, w1, w2;
};

DAMACY__INLINE damacy__exec_words damacy__exec_gather(uint64_t from, int32_t n)
{
    const uint64_t at = from & ~3ull;
    const int32_t end = (int32_t)(from & 3) + n;
    damacy__exec_words w;
    w.w0 = w.w1 = w.w2 = 0;
    if (n > 0)
        w.w0 = damacy__exec_word(at);
    if (n > 0 && end > 4)
        w.w1 = damacy__exec_word(at + 4);
    if (n > 0 && end > 8)
        w.w2 = damacy__exec_word(at + 8);
    return w;
}

// The words after the first of those.
DAMACY__INLINE damacy__exec_words damacy__exec_gather_next(uint64_t from, int32_t n)
{
    const uint64_t at = from & ~3ull;
    const int32_t end = (int32_t)(from & 3) + n;
    damacy__exec_words w;
    w.w0 = w.w1 = w.w2 = 0;
    if (end > 4)
        w.w1 = damacy__exec_word(at + 4);
    if (end > 8)
        w.w2 = damacy__exec_word(at + 8);
    return w;
}

// Up to 8 bytes after the first `skew` modulo 32 bits of w.
template <bool PAIRS>
DAMACY__INLINE void damacy__exec_scatter(uint32_t to, damacy__exec_words w, uint32_t skew,
                                         int32_t n)
{
    damacy__exec_store8<PAIRS>(to, damacy__funnel_right(w.w0, w.w1, skew),
                               damacy__funnel_right(w.w1, w.w2, skew), n);
}

// ---- which variant takes a frame ----

// Where the links of entry i of the execute list lie, in links; NONE: it is not executed by links.
DAMACY__INLINE uint32_t damacy__exec_link_at(const damacy__zstd_wave& w, uint32_t i)
{
    const uint32_t* list = (const uint32_t*)(uintptr_t)w.execute_list;
    const uint32_t n = damacy__zstd_counts(w)->n_execute;
    uint64_t at = 0;

    if (!(w.flags & DAMACY__ZSTD_EXECUTE_LINKS) || w.links == 0 || n > DAMACY__ZSTD_LINK_FRAMES)
        return DAMACY__ZSTD_NONE;
    for (uint32_t k = 0; k < i; k++)
        at += (damacy__zstd_frames(w)[list[k]].size + 3) & ~3u;
    const uint64_t end = at + damacy__zstd_frames(w)[list[i]].size;
    return end <= w.links_size / 4 && end < DAMACY__ZSTD_NONE ? (uint32_t)at : DAMACY__ZSTD_NONE;
}

DAMACY__INLINE uint32_t damacy__exec_density(const damacy__zstd_frame& f)
{
    return damacy__zstd_density(f.n_records, f.size);
}

// Whether EXECUTE_WIDE takes what EXECUTE_RELAY does if that runs alone: all of the wave's frames,
// if tiles of the largest wait for each other much; of blosc chunks, up to 44 frames.
DAMACY__INLINE bool damacy__exec_is_wide(const damacy__zstd_wave& w)
{
    const uint32_t both = DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE;
    const uint32_t first = ((const uint32_t*)(uintptr_t)w.execute_list)[0];

    if ((w.flags & both) != both)
        return (w.flags & both) == DAMACY__ZSTD_EXECUTE_WIDE;
    return w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE
               ? damacy__zstd_counts(w)->n_execute <= 44
               : damacy__exec_density(damacy__zstd_frames(w)[first]) > 200;
}

// Whether relays are best for the blocks of blosc chunks: large ones, if they are few. Up to 132 a
// large CTA each is as good, unless they are very large, and so are, from there on, small CTAs for
// those of few long sequences. Measured on an H200 (132 multiprocessors).
DAMACY__INLINE bool damacy__exec_blosc_relays(const damacy__zstd_counters* counts)
{
    const bool is_sparse = counts->density <= 20;
    const uint32_t n = counts->n_execute;
    uint32_t least = 2 * DAMACY__ZSTD_RELAY_SIZE;

    if (n <= 79)
        least = DAMACY__ZSTD_RELAY_LEAST(DAMACY__ZSTD_RELAY_SIZE / 4);
    else if (n > 132 && !is_sparse)
        least = DAMACY__ZSTD_RELAY_LEAST(DAMACY__ZSTD_RELAY_SIZE);
    return counts->mean_size >= least && n <= (is_sparse ? 200 : 264);
}

// The variant for the blocks of blosc chunks by the density of the wave: a tile's own matches are
// copied by a warp, in groups, unless records are very many. Few chunks may have a frame each, for
// which large CTAs are best, or several: then it is one of two shapes for hundreds.
DAMACY__INLINE uint32_t damacy__exec_blosc_variant(const damacy__zstd_counters* counts,
                                                   uint32_t launched)
{
    const uint32_t n = counts->n_execute, whole = counts->density;
    const bool few = launched & DAMACY__ZSTD_EXECUTE_1024X3;
    const bool hundreds = launched & DAMACY__ZSTD_EXECUTE_256X4;
    const bool by_warp = whole <= 95; // of sequences

    if (launched & DAMACY__ZSTD_EXECUTE_RELAY && damacy__exec_blosc_relays(counts))
        return DAMACY__ZSTD_EXECUTE_RELAY;
    if (few && n <= (by_warp ? 132 : 200))
        return DAMACY__ZSTD_EXECUTE_1024X3;
    if (n > DAMACY__ZSTD_SERIAL_FRAMES && launched & DAMACY__ZSTD_EXECUTE_64X4_SERIAL)
        return by_warp ? DAMACY__ZSTD_EXECUTE_64X4_SERIAL : DAMACY__ZSTD_EXECUTE_128X4_3K;
    if (by_warp)
        return hundreds ? DAMACY__ZSTD_EXECUTE_256X2_SERIAL : DAMACY__ZSTD_EXECUTE_128X2_SERIAL;
    return hundreds ? DAMACY__ZSTD_EXECUTE_256X4 : DAMACY__ZSTD_EXECUTE_128X4_3K;
}

// A variant if it is launched, else the first that is.
DAMACY__INLINE uint32_t damacy__exec_among(uint32_t launched, uint32_t best)
{
    return best & launched ? best : launched & (0u - launched);
}

// Whether a wave's frames shrink to little: most of a tile are matches that read it, of many bytes
// each, which one warp copies sooner than links to each byte are followed. One whose blocks of
// threads have a round for themselves waits for that warp, unless segments are few, and the more so
// where a frame has a multiprocessor, or several, for itself.
DAMACY__INLINE bool damacy__exec_is_shrunk(const damacy__zstd_counters* counts, uint32_t launched)
{
    const uint32_t n = counts->n_execute;
    const bool is_large = launched & DAMACY__ZSTD_EXECUTE_1024X3;
    uint32_t most = 90;

    if (launched & DAMACY__ZSTD_EXECUTE_RELAY || (is_large && n <= 132))
        most = 5;
    else if (n <= 600 && (is_large || launched & DAMACY__ZSTD_EXECUTE_256X4))
        most = 30;
    return launched & DAMACY__ZSTD_EXECUTE_SERIAL && counts->density <= most &&
           counts->literals <= 64;
}

// The variant for hundreds of frames: one that the device holds all of at once up to 600, if they
// are alone (then 128X2 is launched, too, if that is not the only one), else by density, where many
// records mean short segments, for which the host has launched one of two shapes by the number and
// size of frames, and up to 90 long ones: that of the wave, not of each frame, as shapes with a
// part of the frames have a tail each; but up to 1,000, which are all under way at once, the
// largest that they end with counts, too.
DAMACY__INLINE uint32_t damacy__exec_many_variant(const damacy__zstd_counters* counts,
                                                  uint32_t launched)
{
    const uint32_t n = counts->n_execute;
    const bool are_large = counts->mean_size >= 3 * DAMACY__ZSTD_BLOCK_MAX;

    if (launched & DAMACY__ZSTD_EXECUTE_256X4 &&
        (counts->density > (are_large ? 140 : 170) || (n <= 1000 && counts->most_dense > 170) ||
         (n <= 600 && launched & DAMACY__ZSTD_EXECUTE_128X2)))
        return DAMACY__ZSTD_EXECUTE_256X4;
    if (launched & DAMACY__ZSTD_EXECUTE_128X4_3K && counts->density > 170)
        return DAMACY__ZSTD_EXECUTE_128X4_3K;
    return counts->density <= 90 ? DAMACY__ZSTD_EXECUTE_128X2 : DAMACY__ZSTD_EXECUTE_128X4;
}

DAMACY__INLINE uint32_t damacy__exec_launched(const damacy__zstd_wave& w)
{
    return (w.flags &
            (DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_128X4 |
             DAMACY__ZSTD_EXECUTE_128X4_3K | DAMACY__ZSTD_EXECUTE_128X2 |
             DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_SERIAL)) |
           (w.flags & DAMACY__ZSTD_EXECUTE_WIDE ? DAMACY__ZSTD_EXECUTE_RELAY : 0);
}

// The variant for all frames of the wave, 0 if it depends on the frame.
DAMACY__INLINE uint32_t damacy__exec_wave_variant(const damacy__zstd_wave& w)
{
    const damacy__zstd_counters* const counts = damacy__zstd_counts(w);
    const uint32_t launched = damacy__exec_launched(w);
    uint32_t best = 0;

    if (w.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE)
        best = damacy__exec_blosc_variant(counts, launched);
    else if (damacy__exec_is_shrunk(counts, launched))
        best = damacy__exec_among(launched & DAMACY__ZSTD_EXECUTE_SERIAL,
                                  counts->n_execute > 1000 ? DAMACY__ZSTD_EXECUTE_64X4_SERIAL
                                                           : DAMACY__ZSTD_EXECUTE_128X2_SERIAL);
    else if (counts->n_execute > 200)
        best = damacy__exec_many_variant(counts, launched);
    else
        return 0;
    return damacy__exec_among(launched, best);
}

// The variant for entry i of the execute list of a wave, `whole` that for all of its frames;
// EXECUTE_RELAY may mean EXECUTE_WIDE. Switch points measured on an H200 (132 multiprocessors):
// links to 16 frames, large CTAs to 200, or all for each unless more than 200 records per KB of
// output keep them waiting.
DAMACY__INLINE uint32_t damacy__exec_variant(const damacy__zstd_wave& w, uint32_t whole, uint32_t i)
{
    const uint32_t frame = ((const uint32_t*)(uintptr_t)w.execute_list)[i];
    const uint32_t density = damacy__exec_density(damacy__zstd_frames(w)[frame]);
    const uint32_t n = damacy__zstd_counts(w)->n_execute, launched = damacy__exec_launched(w);

    if (damacy__exec_link_at(w, i) != DAMACY__ZSTD_NONE && (n <= 16 || !launched))
        return DAMACY__ZSTD_EXECUTE_LINKS;
    if (whole)
        return whole;
    const uint32_t best = launched & DAMACY__ZSTD_EXECUTE_RELAY &&
                                  (density <= 200 || !(launched & DAMACY__ZSTD_EXECUTE_1024X3))
                              ? DAMACY__ZSTD_EXECUTE_RELAY
                              : DAMACY__ZSTD_EXECUTE_1024X3;
    return damacy__exec_among(launched, best);
}

// Whether a variant has no frame of a wave, as all CTAs of it see at once.
DAMACY__INLINE bool damacy__exec_is_idle(uint32_t whole, uint32_t variant)
{
    return whole && whole != variant;
}

// A frame that has no place or whose job has failed already. Of a job with several frames all are
// executed, so that the error that is reported does not depend on which comes first; symbolic
// offsets that an earlier stage could not replace are larger than such a frame, unless it is huge.
DAMACY__INLINE bool damacy__exec_skip(const damacy__zstd_wave& w, uint32_t frame)
{
    const damacy__zstd_frame& f = damacy__zstd_frames(w)[frame];
    return f.dst == 0 ||
           (damacy__zstd_errors(w)[f.job] != DAMACY__ZSTD_NO_ERROR &&
            (damacy__zstd_spans(w)[f.job].n_frames == 1 || f.size >= DAMACY__ZSTD_D_SYMBOLIC));
}
