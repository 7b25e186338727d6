// Undoes the byte and bit shuffle of one blosc block, a piece at a time, with all threads of a CTA.
// A block has n = size / width elements; what is left over was never shuffled. Byte b of element i
// comes from src[b * n + i]; bit k of that byte from bit i % 8 of src[(8 * b + k) * (n / 8) + i /
// 8].
#pragma once

#include "kernels/bytes.cuh"

typedef struct damacy__filtered {
    const uint8_t* src; // the block as it was stored
    uint8_t* dst;       // the block as it should be
    uint32_t size;      // bytes
    uint32_t width;     // bytes per element, 1 ... 255
    uint32_t n;         // elements
} damacy__filtered;

// A block whose planes, a byte of all elements each, lie apart; callers know how many.
typedef struct damacy__apart {
    uint32_t planes; // shared memory: their addresses, 64 bits each
    uint8_t* dst;    // the block as it should be, 16-byte aligned
    uint32_t n;      // elements, a multiple of 8
} damacy__apart;

// Eight bytes of plane b from element i + k on. Nobody reads them again, nor, soon, what is made of
// them: caches keep what others need.
template <bool IS_ALIGNED>
DAMACY__INLINE damacy__u32x2 damacy__plane8(const damacy__filtered* f, uint32_t b, uint32_t i,
                                            uint32_t k)
{
    const uint8_t* const p = f->src + (uint64_t)b * f->n + i + k;
    if (IS_ALIGNED)
        return damacy__load_u32x2_stream((const damacy__u32x2*)p);
    if (((uintptr_t)p & 7) == 0)
        return *(const damacy__u32x2*)p;
    return damacy__gather8(p, 8, f->src, f->src + f->size);
}
template <bool IS_ALIGNED>
DAMACY__INLINE uint32_t damacy__plane4(const damacy__filtered* f, uint32_t b, uint32_t i,
                                       uint32_t k)
{
    const uint8_t* const p = f->src + (uint64_t)b * f->n + i + k;
    if (IS_ALIGNED)
        return damacy__load_u32_stream((const uint32_t*)p);
    if (((uintptr_t)p & 3) == 0)
        return *(const uint32_t*)p;
    return damacy__gather8(p, 4, f->src, f->src + f->size).x;
}

// The same of planes that lie apart, without a branch, so that loads do not wait for each other:
// all of the words of eight bytes, or four, that hold some of them.
DAMACY__INLINE const uint8_t* damacy__plane_at(const damacy__apart* f, uint32_t b)
{
    const damacy__u32x2 at = damacy__lds64(f->planes + 8 * b);
    return (const uint8_t*)(uintptr_t)((uint64_t)at.y << 32 | at.x);
}
template <bool IS_ALIGNED>
DAMACY__INLINE damacy__u32x2 damacy__plane8(const damacy__apart* f, uint32_t b, uint32_t i,
                                            uint32_t k)
{
    const uint8_t* const p = damacy__plane_at(f, b) + i + k;
    const uint32_t skew = (uint32_t)(uintptr_t)p & 7;
    const damacy__u32x2* const words = (const damacy__u32x2*)(const void*)(p - skew);
    damacy__u32x2 high = {0, 0}, r;
    const damacy__u32x2 low = damacy__load_u32x2_stream(words);
    if (skew)
        high = damacy__load_u32x2_stream(words + 1);
    const uint32_t middle = skew < 4 ? low.y : high.x;
    r.x = damacy__funnel_right(skew < 4 ? low.x : low.y, middle, 8 * skew);
    r.y = damacy__funnel_right(middle, skew < 4 ? high.x : high.y, 8 * skew);
    return r;
}
template <bool IS_ALIGNED>
DAMACY__INLINE uint32_t damacy__plane4(const damacy__apart* f, uint32_t b, uint32_t i, uint32_t k)
{
    const uint8_t* const p = damacy__plane_at(f, b) + i + k;
    const uint32_t skew = (uint32_t)(uintptr_t)p & 3;
    const uint32_t* const words = (const uint32_t*)(const void*)(p - skew);
    uint32_t high = 0;
    const uint32_t low = damacy__load_u32_stream(words);
    if (skew)
        high = damacy__load_u32_stream(words + 1);
    return damacy__funnel_right(low, high, 8 * skew);
}

// Bytes a0 b0 a1 b1 and a2 b2 a3 b3.
DAMACY__INLINE damacy__u32x2 damacy__zip(uint32_t a, uint32_t b)
{
    damacy__u32x2 r;
    r.x = damacy__bytes(a, b, 0x5140);
    r.y = damacy__bytes(a, b, 0x7362);
    return r;
}

// The same of eight bytes each.
DAMACY__INLINE damacy__u32x4 damacy__zip8(damacy__u32x2 a, damacy__u32x2 b)
{
    const damacy__u32x2 low = damacy__zip(a.x, b.x), high = damacy__zip(a.y, b.y);
    damacy__u32x4 r;
    r.x = low.x;
    r.y = low.y;
    r.z = high.x;
    r.w = high.y;
    return r;
}

// Row e of the result holds byte e of every row.
DAMACY__INLINE damacy__u32x4 damacy__transpose4(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return damacy__zip8(damacy__zip(a, c), damacy__zip(b, d));
}

// Elements [begin, end), multiples of 8 but for the block's last, to a 16-byte aligned dst. AHEAD
// times 8 of a thread are asked for before the first are stored. F: damacy__filtered or _apart.
template <uint32_t AHEAD, bool IS_ALIGNED, class F>
DAMACY__INLINE uint32_t damacy__unshuffle2_some(const F* f, uint32_t first, uint32_t whole)
{
    const uint32_t step = 8 * blockDim.x;
    for (; first < whole && AHEAD * step - step < whole - first; first += AHEAD * step) {
        damacy__u32x2 a[AHEAD], b[AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            a[k] = damacy__plane8<IS_ALIGNED>(f, 0, first, k * step);
            b[k] = damacy__plane8<IS_ALIGNED>(f, 1, first, k * step);
        }
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            damacy__store_u32x4_stream((damacy__u32x4*)(f->dst + 2 * (uint64_t)(first + k * step)),
                                       damacy__zip8(a[k], b[k]));
    }
    return first;
}
template <uint32_t AHEAD, bool IS_ALIGNED, class F>
DAMACY__INLINE void damacy__unshuffle2(const F* f, uint32_t begin, uint32_t end)
{
    const uint32_t first = begin + 8 * threadIdx.x, whole = end & ~7u;
    damacy__unshuffle2_some<1, IS_ALIGNED>(
        f, damacy__unshuffle2_some<AHEAD, IS_ALIGNED>(f, first, whole), whole);
}

template <uint32_t AHEAD, bool IS_ALIGNED, class F>
DAMACY__INLINE uint32_t damacy__unshuffle4_some(const F* f, uint32_t first, uint32_t whole)
{
    const uint32_t step = 4 * blockDim.x;
    for (; first < whole && AHEAD * step - step < whole - first; first += AHEAD * step) {
        damacy__u32x4 v[AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            v[k].x = damacy__plane4<IS_ALIGNED>(f, 0, first, k * step);
            v[k].y = damacy__plane4<IS_ALIGNED>(f, 1, first, k * step);
            v[k].z = damacy__plane4<IS_ALIGNED>(f, 2, first, k * step);
            v[k].w = damacy__plane4<IS_ALIGNED>(f, 3, first, k * step);
        }
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            damacy__store_u32x4_stream((damacy__u32x4*)(f->dst + 4 * (uint64_t)(first + k * step)),
                                       damacy__transpose4(v[k].x, v[k].y, v[k].z, v[k].w));
    }
    return first;
}
template <uint32_t AHEAD, bool IS_ALIGNED, class F>
DAMACY__INLINE void damacy__unshuffle4(const F* f, uint32_t begin, uint32_t end)
{
    const uint32_t first = begin + 4 * threadIdx.x, whole = end & ~3u;
    damacy__unshuffle4_some<1, IS_ALIGNED>(
        f, damacy__unshuffle4_some<AHEAD, IS_ALIGNED>(f, first, whole), whole);
}

// Of N pieces of each of N neighbouring lanes (N: 2 or 4), lane k gets piece k of each of them.
template <uint32_t N> DAMACY__INLINE void damacy__swap_pieces(damacy__u32x4* v)
{
#pragma unroll
    for (uint32_t d = 1; d < N; d *= 2) {
        const bool upper = damacy__lane() & d;
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            if (i & d)
                continue;
            damacy__u32x4 x = upper ? v[i] : v[i + d];
            x.x = damacy__shfl_xor(x.x, d);
            x.y = damacy__shfl_xor(x.y, d);
            x.z = damacy__shfl_xor(x.z, d);
            x.w = damacy__shfl_xor(x.w, d);
            v[i] = upper ? x : v[i];
            v[i + d] = upper ? v[i + d] : x;
        }
    }
}

// What a lane has of elements [i, i + E) of `WIDTH` bytes, N pieces of 16 bytes, goes to dst as far
// as it is before `end`, of N neighbours at a time, so that neighbours write neighbouring bytes.
// Whole warps call it; lane 0's i is a multiple of N * E.
template <uint32_t N, uint32_t E, uint32_t WIDTH>
DAMACY__INLINE void damacy__store_pieces(uint8_t* dst, uint32_t i, uint32_t end, damacy__u32x4* v)
{
    const uint32_t k = damacy__lane() & (N - 1);
    damacy__swap_pieces<N>(v);
#pragma unroll
    for (uint32_t m = 0; m < N; m++) { // of the lane m of the group
        const uint32_t from = i + E * m - E * k;
        if (from < end)
            *((damacy__u32x4*)(dst + (uint64_t)WIDTH * from) + k) = v[m];
    }
}

// Words of a and b side by side: eight of them.
DAMACY__INLINE void damacy__zip_words(damacy__u32x4 a, damacy__u32x4 b, damacy__u32x4* low,
                                      damacy__u32x4* high)
{
    low->x = a.x;
    low->y = b.x;
    low->z = a.y;
    low->w = b.y;
    high->x = a.z;
    high->y = b.z;
    high->z = a.w;
    high->w = b.w;
}

// Whole warps call this.
template <bool IS_ALIGNED, class F>
DAMACY__INLINE void damacy__unshuffle8(const F* f, uint32_t begin, uint32_t end)
{
    const uint32_t lane = damacy__lane(), whole = end & ~3u;
    for (uint32_t i = begin + 4 * threadIdx.x; i - 4 * lane < whole; i += 4 * blockDim.x) {
        const uint32_t at = damacy__min(i, whole - 4); // without a branch
        uint32_t w[8];
        damacy__u32x4 v[2];
#pragma unroll
        for (uint32_t b = 0; b < 8; b++)
            w[b] = damacy__plane4<IS_ALIGNED>(f, b, at, 0);
        damacy__zip_words(damacy__transpose4(w[0], w[1], w[2], w[3]),
                          damacy__transpose4(w[4], w[5], w[6], w[7]), &v[0], &v[1]);
        damacy__store_pieces<2, 4, 8>(f->dst, i, whole, v);
    }
}

// Any width and alignment, 16 output bytes a thread: bytes [begin, end) of the output, elements
// only.
DAMACY__INLINE void damacy__unshuffle_any(const damacy__filtered* f, uint32_t begin, uint32_t end)
{
    const uint64_t base = (uint64_t)(uintptr_t)f->dst;
    const uint64_t last = base + end;
    for (uint64_t unit = ((base + begin) & ~15ull) + 16 * threadIdx.x; unit < last;
         unit += 16 * blockDim.x) {
        const uint64_t from = unit > base + begin ? unit : base + begin;
        const uint64_t to = unit + 16 < last ? unit + 16 : last;
        uint32_t element = (uint32_t)(from - base) / f->width;
        uint32_t byte = (uint32_t)(from - base) % f->width;
        uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
        for (uint32_t k = 0; k < 16; k++)
            if (unit + k >= from && unit + k < to) {
                w[k / 4] |= (uint32_t)f->src[(uint64_t)byte * f->n + element] << (8 * (k % 4));
                if (++byte == f->width) {
                    byte = 0;
                    element++;
                }
            }
        if (to - from == 16) {
            damacy__u32x4 v;
            v.x = w[0];
            v.y = w[1];
            v.z = w[2];
            v.w = w[3];
            *(damacy__u32x4*)(uintptr_t)unit = v;
        } else {
#pragma unroll
            for (uint32_t k = 0; k < 16; k++)
                if (unit + k >= from && unit + k < to)
                    ((uint8_t*)(uintptr_t)unit)[k] = (uint8_t)(w[k / 4] >> (8 * (k % 4)));
        }
    }
}

// Exchanges bits: those of a at mask << s with those of b at mask.
DAMACY__INLINE void damacy__swap_bits(uint32_t* a, uint32_t* b, uint32_t s, uint32_t mask)
{
    const uint32_t t = (*a >> s ^ *b) & mask;
    *b ^= t;
    *a ^= t << s;
}

// Eight rows of 32 bits, row k holding bit k of 32 elements, to 32 bytes: four elements a word.
DAMACY__INLINE void damacy__gather_bits(const uint32_t* rows, uint32_t* out)
{
    uint32_t r[8];
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        r[k] = rows[k];
#pragma unroll
    for (uint32_t k = 0; k < 8; k += 2)
        damacy__swap_bits(&r[k], &r[k + 1], 1, 0x55555555u);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        damacy__swap_bits(&r[k / 2 * 4 + k % 2], &r[k / 2 * 4 + k % 2 + 2], 2, 0x33333333u);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        damacy__swap_bits(&r[k], &r[k + 4], 4, 0x0f0f0f0fu);
    // byte g of row k is now element 8 * g + k
    const damacy__u32x4 low = damacy__transpose4(r[0], r[1], r[2], r[3]);
    const damacy__u32x4 high = damacy__transpose4(r[4], r[5], r[6], r[7]);
    out[0] = low.x;
    out[1] = high.x;
    out[2] = low.y;
    out[3] = high.y;
    out[4] = low.z;
    out[5] = high.z;
    out[6] = low.w;
    out[7] = high.w;
}

// Four bytes at p, by the words that hold them.
template <bool IS_ALIGNED> DAMACY__INLINE uint32_t damacy__row4(const uint8_t* p)
{
    const uint32_t skew = IS_ALIGNED ? 0 : (uint32_t)(uintptr_t)p & 3;
    const uint32_t* const words = (const uint32_t*)(const void*)(p - skew);
    return IS_ALIGNED ? words[0] : damacy__funnel_right(words[0], words[1], 8 * skew);
}

// Bytes [byte, byte + N) of the 32 elements from i on, N 1 or 2, side by side: 2 * N pieces of 16
// bytes.
template <uint32_t N, bool IS_ALIGNED>
DAMACY__INLINE void damacy__unbitshuffle_some(const damacy__filtered* f, uint32_t i, uint32_t byte,
                                              damacy__u32x4* out)
{
    const uint64_t row = f->n / 8;
    uint32_t v[N][8];
#pragma unroll
    for (uint32_t b = 0; b < N; b++) {
        uint32_t rows[8];
#pragma unroll
        for (uint32_t k = 0; k < 8; k++)
            rows[k] = damacy__row4<IS_ALIGNED>(f->src + (8 * (byte + b) + k) * row + i / 8);
        damacy__gather_bits(rows, v[b]);
    }
#pragma unroll
    for (uint32_t m = 0; m < 8; m += 4 / N) { // four words of output
        damacy__u32x4& o = out[m / (4 / N)];
        if constexpr (N == 1) {
            o.x = v[0][m];
            o.y = v[0][m + 1];
            o.z = v[0][m + 2];
            o.w = v[0][m + 3];
        } else {
            const damacy__u32x2 a = damacy__zip(v[0][m], v[N - 1][m]);
            const damacy__u32x2 b = damacy__zip(v[0][m + 1], v[N - 1][m + 1]);
            o.x = a.x;
            o.y = a.y;
            o.z = b.x;
            o.w = b.y;
        }
    }
}

// Halfwords of a and b side by side: eight words.
DAMACY__INLINE void damacy__zip_halves(damacy__u32x4 a, damacy__u32x4 b, damacy__u32x4* low,
                                       damacy__u32x4* high)
{
    low->x = damacy__bytes(a.x, b.x, 0x5410);
    low->y = damacy__bytes(a.x, b.x, 0x7632);
    low->z = damacy__bytes(a.y, b.y, 0x5410);
    low->w = damacy__bytes(a.y, b.y, 0x7632);
    high->x = damacy__bytes(a.z, b.z, 0x5410);
    high->y = damacy__bytes(a.z, b.z, 0x7632);
    high->z = damacy__bytes(a.w, b.w, 0x5410);
    high->w = damacy__bytes(a.w, b.w, 0x7632);
}

// WIDTH / 2 neighbouring lanes have two bytes each of the same 32 elements, in order, and each gets
// 64 / WIDTH whole elements: four pieces of 16 bytes either way.
template <uint32_t WIDTH> DAMACY__INLINE void damacy__join_halves(damacy__u32x4* v)
{
    if constexpr (WIDTH == 4) {
        damacy__u32x4 a[2] = {v[0], v[2]}, b[2] = {v[1], v[3]};
        damacy__swap_pieces<2>(a);
        damacy__swap_pieces<2>(b);
        damacy__zip_halves(a[0], a[1], &v[0], &v[1]);
        damacy__zip_halves(b[0], b[1], &v[2], &v[3]);
    } else if constexpr (WIDTH == 8) {
        damacy__u32x4 low[2], high[2];
        damacy__swap_pieces<4>(v);
        damacy__zip_halves(v[0], v[1], &low[0], &low[1]);
        damacy__zip_halves(v[2], v[3], &high[0], &high[1]);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            damacy__zip_words(low[k], high[k], &v[2 * k], &v[2 * k + 1]);
    }
}

// Elements [begin, end), multiples of 32; dst is 16-byte aligned. Lanes exchange what they have
// made, so that neighbours write neighbouring bytes. Whole warps call this.
template <uint32_t WIDTH, bool IS_ALIGNED>
DAMACY__INLINE void damacy__unbitshuffle(const damacy__filtered* f, uint32_t begin, uint32_t end)
{
    constexpr uint32_t N = WIDTH == 1 ? 2 : 4;        // pieces of a lane
    constexpr uint32_t G = WIDTH > 2 ? WIDTH / 2 : 1; // lanes that share 32 elements
    constexpr uint32_t E = 32 / G;                    // elements of a lane
    const uint32_t lane = damacy__lane();

    for (uint32_t first = begin + E * (threadIdx.x - lane); first < end; first += E * blockDim.x) {
        const uint32_t i = first + E * lane;
        damacy__u32x4 out[N] = {};
        if (i < end)
            damacy__unbitshuffle_some<(WIDTH == 1 ? 1 : 2), IS_ALIGNED>(f, i & ~31u,
                                                                        2 * (lane & (G - 1)), out);
        damacy__join_halves<WIDTH>(out);
        damacy__store_pieces<N, E, WIDTH>(f->dst, i, end, out);
    }
}

// Any width and alignment, eight bytes a thread: those of one byte position of eight elements.
DAMACY__INLINE void damacy__unbitshuffle_any(const damacy__filtered* f, uint32_t begin,
                                             uint32_t end)
{
    const uint32_t row = f->n / 8;
    const uint32_t n_items = (end - begin) / 8 * f->width;
    for (uint32_t item = threadIdx.x; item < n_items; item += blockDim.x) {
        const uint32_t group = begin / 8 + item / f->width, byte = item % f->width;
        uint32_t low = 0, high = 0; // eight rows of eight bits
        for (uint32_t k = 0; k < 8; k++) {
            const uint32_t bits = f->src[(uint64_t)(8 * byte + k) * row + group];
            for (uint32_t e = 0; e < 4; e++) {
                low |= (bits >> e & 1) << (8 * e + k);
                high |= (bits >> (e + 4) & 1) << (8 * e + k);
            }
        }
        uint8_t* const dst = f->dst + (uint64_t)8 * group * f->width + byte;
        for (uint32_t e = 0; e < 8; e++)
            dst[(uint64_t)e * f->width] = (uint8_t)((e < 4 ? low : high) >> (8 * (e % 4)));
    }
}

// Elements per piece: about `bytes` of output, a multiple of 64.
DAMACY__INLINE uint32_t damacy__piece_elements(uint32_t width, uint32_t bytes)
{
    const uint32_t n = bytes / width & ~63u;
    return n ? n : 64;
}

// Undoes the byte shuffle of elements [begin, end) of a block.
DAMACY__INLINE void damacy__unshuffle_piece(const damacy__filtered* f, uint32_t begin, uint32_t end)
{
    const bool aligned = ((uintptr_t)f->dst & 15) == 0;
    uint32_t done = begin;
    if (aligned && f->width == 2) {
        damacy__unshuffle2<2, false>(f, begin, end);
        done = end & ~7u;
    } else if (aligned && f->width == 4) {
        damacy__unshuffle4<2, false>(f, begin, end);
        done = end & ~3u;
    } else if (aligned && f->width == 8) {
        damacy__unshuffle8<false>(f, begin, end);
        done = end & ~3u;
    }
    if (done < end)
        damacy__unshuffle_any(f, done * f->width, end * f->width);
}

// Of bits; `begin` is a multiple of 32. Returns up to where it came. Words at other than 4-byte
// boundaries are read with some of the bytes behind them, which the block's last ones lack.
template <bool IS_ALIGNED>
DAMACY__INLINE uint32_t damacy__unbitshuffle_words(const damacy__filtered* f, uint32_t begin,
                                                   uint32_t end)
{
    const uint32_t whole = (IS_ALIGNED || end < f->n ? end : end - 1) & ~31u;
    if (f->width == 1)
        damacy__unbitshuffle<1, IS_ALIGNED>(f, begin, whole);
    else if (f->width == 2)
        damacy__unbitshuffle<2, IS_ALIGNED>(f, begin, whole);
    else if (f->width == 4)
        damacy__unbitshuffle<4, IS_ALIGNED>(f, begin, whole);
    else if (f->width == 8)
        damacy__unbitshuffle<8, IS_ALIGNED>(f, begin, whole);
    else
        return begin;
    return whole;
}
DAMACY__INLINE void damacy__unbitshuffle_piece(const damacy__filtered* f, uint32_t begin,
                                               uint32_t end)
{
    const bool is_aligned = (((uintptr_t)f->src & 3) | (f->n / 8 & 3)) == 0;
    uint32_t done = begin;
    if (((uintptr_t)f->dst & 15) == 0)
        done = is_aligned ? damacy__unbitshuffle_words<true>(f, begin, end)
                          : damacy__unbitshuffle_words<false>(f, begin, end);
    if (done < end)
        damacy__unbitshuffle_any(f, done, end);
}

// Undoes the filter of `piece` elements from `begin` on. The block's rest, and all of one whose
// bits no filter could shuffle, is copied by whoever reaches it.
DAMACY__INLINE void damacy__unfilter_piece(const damacy__filtered* f, bool is_bits, uint32_t begin,
                                           uint32_t piece)
{
    if ((uint64_t)begin * f->width >= f->size)
        return;
    const uint32_t end = damacy__min(f->n, begin + piece);
    const bool is_plain = is_bits && (f->n == 0 || f->n % 8 != 0);
    if (!is_plain && begin < end) {
        if (is_bits)
            damacy__unbitshuffle_piece(f, begin, end);
        else
            damacy__unshuffle_piece(f, begin, end);
    }
    const uint32_t from = is_plain ? begin * f->width : end * f->width;
    const uint32_t to = is_plain && f->size - from > piece * f->width ? from + piece * f->width
                        : end == f->n || is_plain                     ? f->size
                                                                      : from;
    if (from < to)
        damacy__copy_group(f->dst + from, f->src + from, to - from, threadIdx.x, blockDim.x);
}

// Undoes the byte shuffle of a whole block if it is one of the usual ones; else false.
DAMACY__INLINE bool damacy__unshuffle_simple(const damacy__filtered* f)
{
    if (((uintptr_t)f->dst | (uintptr_t)f->src) & 15 || f->n & 7 || f->size != f->n * f->width)
        return false;
    if (f->width == 2)
        damacy__unshuffle2<8, true>(f, 0, f->n);
    else if (f->width == 4)
        damacy__unshuffle4<4, true>(f, 0, f->n);
    else if (f->width == 8)
        damacy__unshuffle8<true>(f, 0, f->n);
    else
        return false;
    return true;
}

// Undoes the byte shuffle of elements [begin, end), multiples of 8, of a block whose `width`
// planes, 2, 4 or 8 and at most MOST, lie apart. The block's last eight go byte by byte: behind
// them nothing may be read.
template <uint32_t MOST>
DAMACY__INLINE void damacy__unshuffle_apart(const damacy__apart* f, uint32_t width, uint32_t begin,
                                            uint32_t end)
{
    const uint32_t to = end == f->n ? end - 8 : end;
    if (width == 2)
        damacy__unshuffle2<2, false>(f, begin, to);
    else if (width == 4)
        damacy__unshuffle4<2, false>(f, begin, to);
    else if constexpr (MOST >= 8)
        damacy__unshuffle8<false>(f, begin, to);
    if (to != end && threadIdx.x < 8 * width)
        f->dst[(uint64_t)to * width + threadIdx.x] =
            damacy__plane_at(f, threadIdx.x % width)[to + threadIdx.x / width];
}
