// Decoding tables of sequence codes (RFC 8878 sections 3.1.1.3.2.1 and 4.1): a description, a
// predefined distribution or one symbol becomes a table in shared memory. One lane reads a
// description, one warp spreads it. Entries of the blocks that a CTA decodes are interleaved, so
// the place of an entry is given by a shape (zstd_fse_walk.cuh), which also says how it is packed.
#pragma once

#include "kernels/warp.cuh"
#include "kernels/zstd_abi.h"

#ifdef __CUDACC__
#define DAMACY__UNROLL   _Pragma("unroll")
#define DAMACY__NOUNROLL _Pragma("unroll 1")
#else
#define DAMACY__UNROLL
#define DAMACY__NOUNROLL
#endif

__constant__ int8_t damacy__fse_default_ll[36] = {4, 3, 2, 2, 2, 2, 2, 2, 2,  2,  2,  2,
                                                  2, 1, 1, 1, 2, 2, 2, 2, 2,  2,  2,  2,
                                                  2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
__constant__ int8_t damacy__fse_default_of[29] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                                  1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};
__constant__ int8_t damacy__fse_default_ml[53] = {
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};

// Smallest value of a code and the number of bits that are added to it.
__constant__ uint32_t damacy__fse_base_ll[36] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  11,   12,   13,   14,   15,    16,    18,
    20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
__constant__ uint8_t damacy__fse_bits_ll[36] = {0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0,
                                                0, 0, 0, 0, 1, 1,  1,  1,  2,  2,  3,  3,
                                                4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
__constant__ uint32_t damacy__fse_base_ml[53] = {
    3,  4,  5,  6,  7,  8,  9,  10,  11,  12,  13,   14,   15,   16,   17,    18,    19,   20,
    21, 22, 23, 24, 25, 26, 27, 28,  29,  30,  31,   32,   33,   34,   35,    37,    39,   41,
    43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539};
__constant__ uint8_t damacy__fse_bits_ml[53] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0, 0,
    0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

#define DAMACY__FSE_BAD    0xffffu // accuracy log of a table that cannot be built
#define DAMACY__FSE_COUNTS 128u    // bytes of the counts of a table: 64 of 16 bits
#define DAMACY__FSE_LOG_AT 126u    // the last of them holds the accuracy log; symbols stop at 52
// Scratch of a warp that builds a table: 16 words of bits with their ranks, for first cells and for
// rare cells; symbols with cells; what is known of each symbol.
#define DAMACY__FSE_BUILD (128u + 128u + 64u + 512u)

DAMACY__INLINE uint32_t damacy__fse_max_symbol(uint32_t table)
{
    return table == DAMACY__ZSTD_LL ? 35u : table == DAMACY__ZSTD_OF ? 31u : 52u;
}

DAMACY__INLINE uint32_t damacy__fse_max_log(uint32_t table)
{
    return table == DAMACY__ZSTD_OF ? 8u : 9u;
}

// At least 17 bits from bit `at` of a forward stream; bytes at and past the limit are 0.
DAMACY__INLINE uint32_t damacy__fse_peek(const uint8_t* src, uint32_t limit, uint32_t at)
{
    const uint32_t byte = at >> 3;
    uint32_t v = 0;
    for (uint32_t i = 0; i < 3; i++)
        if (byte + i < limit)
            v |= (uint32_t)src[byte + i] << (8 * i);
    return v >> (at & 7);
}

// Reads a table description into 64 counts at `counts`. Returns the accuracy log, or
// DAMACY__FSE_BAD when the log is too large, the probabilities do not sum to 1, a symbol is too
// large or the description does not fit the limit.
static __device__ uint32_t damacy__fse_counts_read(const uint8_t* src, uint32_t limit,
                                                   uint32_t table, uint32_t counts)
{
    const uint32_t log = (damacy__fse_peek(src, limit, 0) & 15) + 5;
    const uint32_t max_symbol = damacy__fse_max_symbol(table);
    int32_t left = (1 << log) + 1, threshold = 1 << log;
    uint32_t width = log + 1, at = 4, symbol = 0;

    if (log > damacy__fse_max_log(table))
        return DAMACY__FSE_BAD;
    while (left > 1 && symbol <= max_symbol) {
        const int32_t v = (int32_t)damacy__fse_peek(src, limit, at);
        const int32_t short_codes = 2 * threshold - 1 - left;
        int32_t count = v & (threshold - 1);
        if (count < short_codes) {
            at += width - 1;
        } else {
            count = v & (2 * threshold - 1);
            if (count >= threshold)
                count -= short_codes;
            at += width;
        }
        count--;
        left -= count < 0 ? -count : count;
        damacy__sts16(counts + 2 * symbol++, (uint32_t)count);
        for (uint32_t run = count == 0 ? 3 : 0; run == 3 && symbol <= max_symbol;) {
            run = damacy__fse_peek(src, limit, at) & 3;
            at += 2;
            symbol += run;
        }
        while (left < threshold && threshold > 1) {
            width--;
            threshold >>= 1;
        }
    }
    const bool good = left == 1 && symbol <= max_symbol + 1 && (at + 7) / 8 <= limit;
    return good ? log : DAMACY__FSE_BAD;
}

// Fills the 64 counts of a table of `block` at `counts`, the log in their last place.
static __device__ void damacy__fse_counts(const damacy__zstd_block* blocks, uint32_t block,
                                          uint32_t table, uint32_t counts)
{
    const damacy__zstd_block* owner = &blocks[blocks[block].tables[table]];
    const uint32_t mode = owner->modes >> (2 * table) & 3;
    const uint32_t at = owner->table_at[table];
    const uint8_t* src = (const uint8_t*)(uintptr_t)(owner->sequence_src + at);
    uint32_t log = DAMACY__FSE_BAD;

    for (uint32_t i = 0; i < DAMACY__FSE_COUNTS; i += 4)
        damacy__sts32(counts + i, 0);
    if (owner->bits_size == 0 || at > owner->sequence_size) {
        log = DAMACY__FSE_BAD;
    } else if (mode == DAMACY__ZSTD_MODE_FSE) {
        log = damacy__fse_counts_read(src, owner->sequence_size - at, table, counts);
    } else if (mode == DAMACY__ZSTD_MODE_RLE && at < owner->sequence_size) {
        const uint32_t symbol = src[0];
        if (symbol <= damacy__fse_max_symbol(table)) {
            damacy__sts16(counts + 2 * symbol, 1);
            log = 0;
        }
    } else if (mode == DAMACY__ZSTD_PREDEFINED) {
        const int8_t* from = table == DAMACY__ZSTD_LL   ? damacy__fse_default_ll
                             : table == DAMACY__ZSTD_OF ? damacy__fse_default_of
                                                        : damacy__fse_default_ml;
        const uint32_t n = table == DAMACY__ZSTD_LL ? 36u : table == DAMACY__ZSTD_OF ? 29u : 53u;
        for (uint32_t i = 0; i < n; i++)
            damacy__sts16(counts + 2 * i, (uint32_t)(int32_t)from[i]);
        log = table == DAMACY__ZSTD_OF ? 5 : 6;
    }
    damacy__sts16(counts + DAMACY__FSE_LOG_AT, log);
}

DAMACY__INLINE uint32_t damacy__fse_extra_bits(uint32_t table, uint32_t symbol)
{
    return table == DAMACY__ZSTD_LL   ? damacy__fse_bits_ll[symbol < 36 ? symbol : 35]
           : table == DAMACY__ZSTD_OF ? symbol & 31
                                      : damacy__fse_bits_ml[symbol < 53 ? symbol : 52];
}

// Cells that are not rare are given out in the order of places k * step: k of the cell at `place`.
DAMACY__INLINE uint32_t damacy__fse_turn(uint32_t place, uint32_t size)
{
    const uint32_t step = (size >> 1) + (size >> 3) + 3;
    uint32_t inverse = step * (2 - step * step); // modulo 64, as step is odd; then 4096
    inverse *= 2 - step * inverse;
    return place * inverse & (size - 1);
}

// First half of a build, all lanes: the symbols that have cells one after another, with a bit set
// at the first cell of each; rare symbols (probability "less than 1"), which have the last places,
// from the end of the list on, with a bit set at the turn of each; and {next state, kind} of each
// symbol. Returns the number of rare symbols.
template <class Shape>
DAMACY__INLINE uint32_t damacy__fse_rank_symbols(uint32_t table, uint32_t size, uint32_t counts,
                                                 uint32_t scratch)
{
    const uint32_t lane = damacy__lane(), below = (1u << lane) - 1;
    const uint32_t firsts = scratch, rares = scratch + 128, list = scratch + 256;
    const uint32_t symbols = scratch + 320;
    const int32_t c0 = (int16_t)damacy__lds16(counts + 2 * lane);
    const int32_t c1 = lane == 31 ? 0 : (int16_t)damacy__lds16(counts + 64 + 2 * lane);
    const uint32_t extra0 = damacy__fse_extra_bits(table, lane);
    const uint32_t extra1 = damacy__fse_extra_bits(table, lane + 32);

    damacy__sts64(scratch + 8 * lane, 0, 0);
    damacy__sts64(symbols + 8 * lane, c0 < 0 ? 1u : (uint32_t)c0, Shape::entry_kind(extra0, lane));
    damacy__sts64(symbols + 256 + 8 * lane, c1 < 0 ? 1u : (uint32_t)c1,
                  Shape::entry_kind(extra1, lane + 32));
    const uint32_t rare0 = damacy__ballot(c0 < 0), rare1 = damacy__ballot(c1 < 0);
    const uint32_t nth0 = damacy__popc(rare0 & below);
    const uint32_t nth1 = damacy__popc(rare0) + damacy__popc(rare1 & below);
    // Both halves in one word: counts sum to at most 512.
    const uint32_t p0 = c0 > 0 ? (uint32_t)c0 : 0, p1 = c1 > 0 ? (uint32_t)c1 : 0;
    const uint32_t sum = damacy__sum_upto(p0 | p1 << 16, lane);
    const uint32_t total0 = damacy__shfl(sum, 31) & 0xffff;
    const uint32_t first0 = (sum & 0xffff) - p0, first1 = (sum >> 16) - p1 + total0;
    const uint32_t has0 = damacy__ballot(p0 > 0), has1 = damacy__ballot(p1 > 0);
    damacy__sync_warp();
    if (c0 < 0) {
        const uint32_t turn = damacy__fse_turn(size - 1 - nth0, size);
        damacy__sts8(list + 63 - nth0, lane);
        damacy__shared_or(rares + (turn >> 5) * 8, 1u << (turn & 31));
    }
    if (c1 < 0) {
        const uint32_t turn = damacy__fse_turn(size - 1 - nth1, size);
        damacy__sts8(list + 63 - nth1, lane + 32);
        damacy__shared_or(rares + (turn >> 5) * 8, 1u << (turn & 31));
    }
    if (p0) {
        damacy__sts8(list + damacy__popc(has0 & below), lane);
        damacy__shared_or(firsts + ((first0 >> 5) & 15) * 8, 1u << (first0 & 31));
    }
    if (p1) {
        damacy__sts8(list + damacy__popc(has0) + damacy__popc(has1 & below), lane + 32);
        damacy__shared_or(firsts + ((first1 >> 5) & 15) * 8, 1u << (first1 & 31));
    }
    damacy__sync_warp();
    const uint32_t own = damacy__popc(damacy__lds32(scratch + 8 * lane)); // firsts, then rares
    uint32_t rank = own;
    for (uint32_t d = 1; d < 16; d *= 2) {
        const uint32_t other = damacy__shfl_up(rank, d);
        if ((lane & 15) >= d)
            rank += other;
    }
    damacy__sts32(scratch + 8 * lane + 4, rank - own);
    damacy__sync_warp();
    return damacy__popc(rare0) + damacy__popc(rare1);
}

// Second half: the symbol of a cell in each of N tables.
template <uint32_t N>
DAMACY__INLINE void damacy__fse_symbols(uint32_t cell, const uint32_t (&size)[N],
                                        const uint32_t (&n_rare)[N], uint32_t scratch,
                                        uint32_t (&symbol)[N])
{
    constexpr uint32_t STRIDE = DAMACY__FSE_BUILD;
    uint32_t turn[N];
    damacy__u32x2 v[N];

    // Step by step, so that all wait for shared memory together.
    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
    {
        turn[u] = damacy__fse_turn(cell, size[u]) & 511;
        v[u] = damacy__lds64(scratch + u * STRIDE + 128 + (turn[u] >> 5) * 8);
    }
    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
    {
        turn[u] -= v[u].y + damacy__popc(v[u].x & ((1u << (turn[u] & 31)) - 1));
        v[u] = damacy__lds64(scratch + u * STRIDE + (turn[u] >> 5 & 15) * 8);
    }
    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
    {
        const uint32_t nth = v[u].y + damacy__popc(v[u].x & ((2u << (turn[u] & 31)) - 1)) - 1;
        const uint32_t at = cell + n_rare[u] < size[u] ? nth : cell - size[u];
        symbol[u] = damacy__lds8(scratch + u * STRIDE + 256 + (at & 63));
    }
}

// A warp builds the tables of N neighbouring slots from slot `first` on, as many as make 16 bytes
// of entries: cells of one table lie in one bank, so that a store takes as long for one table as
// for N. Those that are not there, log DAMACY__FSE_BAD, get what stays in the first cell. Every
// entry leads to an entry of the table whatever the bits that follow.
template <class Shape>
static __device__ void damacy__fse_build(uint32_t shared, uint32_t table, uint32_t first,
                                         const uint32_t* logs, uint32_t counts, uint32_t scratch)
{
    constexpr uint32_t N = Shape::TOGETHER, STRIDE = DAMACY__FSE_BUILD;
    const uint32_t lane = damacy__lane(), below = (1u << lane) - 1;
    const uint32_t to = shared + Shape::table_at(table) + first * Shape::ENTRY;
    uint32_t size[N], n_rare[N], nothing[N], most = 1;

    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
    {
        nothing[u] = Shape::entry_kind(0, 0);
        size[u] = n_rare[u] = 0;
        if (logs[u] != DAMACY__FSE_BAD) {
            size[u] = 1u << logs[u];
            n_rare[u] = damacy__fse_rank_symbols<Shape>(
                table, size[u], counts + u * 3 * DAMACY__FSE_COUNTS, scratch + u * STRIDE);
        }
        most = damacy__max(most, size[u]);
    }
    damacy__sync_warp();
    for (uint32_t cell = lane; cell < most + lane; cell += 32) {
        uint32_t symbol[N], same[N];
        damacy__u32x2 v[N], entry[N];
        damacy__fse_symbols<N>(cell, size, n_rare, scratch, symbol);
        DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
        {
            if (cell >= size[u])
                symbol[u] = 64; // no such cell
            same[u] = damacy__match_any(symbol[u]);
            v[u] = damacy__lds64(scratch + u * STRIDE + 320 + 8 * (symbol[u] & 63));
        }
        damacy__sync_warp();
        DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
        {
            const uint32_t x = v[u].x + damacy__popc(same[u] & below);
            const bool here = cell < size[u];
            const uint32_t width = here ? logs[u] - (31 - damacy__clz(x)) : 0; // 1 <= x < 2 * size
            if (here && !(same[u] >> lane >> 1))
                damacy__sts32(scratch + u * STRIDE + 320 + 8 * symbol[u], x + 1);
            entry[u] = Shape::entry_of(first + u, here ? v[u].y : nothing[u], width,
                                       here ? (x << width) - size[u] : 0);
        }
        damacy__sync_warp();
        Shape::entries_write(to + (cell << Shape::ROW_LOG), entry);
    }
    damacy__sync_warp();
}
