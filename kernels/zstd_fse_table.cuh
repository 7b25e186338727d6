// Decoding tables of sequence codes (RFC 8878 sections 3.1.1.3.2.1 and 4.1): a description, a
// predefined distribution or one symbol becomes a table in shared memory. One lane reads a
// description, one warp spreads it. Entries of the blocks that a CTA decodes are interleaved, so
// the place of an entry is given by a shape (zstd_fse_walk.cuh), which also says how it is packed.
#pragma once

#include "kernels/zstd_description.cuh"

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

// Smallest value of a code.
__constant__ uint32_t damacy__fse_base_ll[36] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  11,   12,   13,   14,   15,    16,    18,
    20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
__constant__ uint32_t damacy__fse_base_ml[53] = {
    3,  4,  5,  6,  7,  8,  9,  10,  11,  12,  13,   14,   15,   16,   17,    18,    19,   20,
    21, 22, 23, 24, 25, 26, 27, 28,  29,  30,  31,   32,   33,   34,   35,    37,    39,   41,
    43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539};
// A store of some lanes. Not a branch: a warp that stays together comes to its barriers without a
// detour.
DAMACY__INLINE void damacy__fse_sts32_if(bool here, uint32_t at, uint32_t x)
{
#ifdef __CUDACC__
    asm volatile("{.reg .pred p; setp.ne.u32 p,%2,0; @p st.shared.u32 [%0],%1;}" ::"r"(at), "r"(x),
                 "r"((uint32_t)here)
                 : "memory");
#else
    if (here)
        damacy__sts32(at, x);
#endif
}

#define DAMACY__FSE_BAD    0xffffu // accuracy log of a table that cannot be built
#define DAMACY__FSE_COUNTS 128u    // bytes of the counts of a table: 64 of 16 bits
#define DAMACY__FSE_LOG_AT 126u    // the last of them holds the accuracy log; symbols stop at 52
// Scratch of a warp that builds a table: 16 words of bits with their ranks, for first cells and for
// rare cells; what is known of each symbol.
#define DAMACY__FSE_BUILD (128u + 128u + 512u)

// Words of the device's memory, those outside [lo, hi) zero and unread.
struct damacy__fse_source {
    uint64_t begin, lo, hi;
    __device__ __forceinline__ uint32_t load(uint32_t i) const
    {
        return damacy__load_word_within(begin + 4ull * i, lo, hi);
    }
};

struct damacy__fse_counts_at {
    uint32_t at;
    __device__ __forceinline__ void set(uint32_t symbol, int32_t count) const
    {
        damacy__sts16(at + 2 * symbol, (uint32_t)count);
    }
};

// Reads a description of at most `limit` bytes into 64 counts at `counts`. Returns the accuracy
// log, or DAMACY__FSE_BAD.
static __device__ uint32_t damacy__fse_counts_read(const uint8_t* src, uint32_t limit,
                                                   uint32_t table, uint32_t counts)
{
    const uint64_t from = (uint64_t)(uintptr_t)src;
    const damacy__fse_counts_at to = {counts};
    damacy__zstd_description<damacy__fse_source> d;
    uint32_t log;

    d.words.begin = from & ~3ull;
    d.words.lo = from;
    d.words.hi = from + limit;
    damacy__zstd_description_start(d, 8 * (uint32_t)(from & 3));
    return damacy__zstd_description_read(d, limit, table, to, &log) ? log : DAMACY__FSE_BAD;
}

// Fills the 64 counts of a table of `block` at `counts`, the log in their last place.
static __device__ void damacy__fse_counts(const damacy__zstd_block* blocks, uint32_t block,
                                          uint32_t table, uint32_t counts)
{
    const damacy__zstd_block* owner = &blocks[blocks[block].tables[table]];
    const uint32_t mode = owner->modes >> (2 * table) & 3;
    const uint32_t at = owner->table_at[table];
    const uint8_t* src = (const uint8_t*)(uintptr_t)(owner->sequence_src + at);
    const damacy__u32x4 none = {0, 0, 0, 0};
    uint32_t log = DAMACY__FSE_BAD;

    for (uint32_t i = 0; i < DAMACY__FSE_COUNTS; i += 16)
        damacy__sts128(counts + i, none);
    if (owner->bits_size == 0 || at > owner->sequence_size) {
        log = DAMACY__FSE_BAD;
    } else if (mode == DAMACY__ZSTD_MODE_FSE) {
        log = damacy__fse_counts_read(src, owner->sequence_size - at, table, counts);
    } else if (mode == DAMACY__ZSTD_MODE_RLE && at < owner->sequence_size) {
        const uint32_t symbol = src[0];
        if (symbol <= damacy__zstd_max_symbol(table)) {
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

// Extra bits of a code, by arithmetic: lanes that look up different constants wait for each other.
DAMACY__INLINE uint32_t damacy__fse_extra_bits(uint32_t table, uint32_t symbol)
{
    const bool is_ll = table == DAMACY__ZSTD_LL;
    const uint32_t above = symbol - (is_ll ? 16u : 32u); // codes below that have none
    const uint32_t extra = above < 4                    ? 1
                           : above < (is_ll ? 9u : 11u) ? above >> 1
                                                        : above - (is_ll ? 3u : 4u);
    return table == DAMACY__ZSTD_OF ? symbol & 31 : (int32_t)above < 0 ? 0 : extra;
}

// Cells that are not rare are given out in the order of places k * step: k of the cell at `place`.
DAMACY__INLINE uint32_t damacy__fse_turn(uint32_t place, uint32_t size)
{
    const uint32_t step = (size >> 1) + (size >> 3) + 3;
    uint32_t inverse = step * (2 - step * step); // modulo 64, as step is odd; then 4096
    inverse *= 2 - step * inverse;
    return place * inverse & (size - 1);
}

// What the symbols of a table that have cells are numbered by: in their order, those that are rare
// (probability "less than 1", one of the last cells each) after all others.
struct damacy__fse_numbers {
    uint32_t n_common, n_rare;
};

// First half of a build of N tables, all lanes: a bit at the first cell of each common symbol and
// at the turn of each rare one, and {next state, kind} of each symbol by its number. Step by step,
// so that all tables wait together; those of size 0 have no symbol.
template <class Shape, uint32_t N>
DAMACY__INLINE void damacy__fse_rank_symbols(uint32_t table, const uint32_t (&size)[N],
                                             uint32_t counts, uint32_t scratch,
                                             damacy__fse_numbers (&n)[N])
{
    constexpr uint32_t STRIDE = DAMACY__FSE_BUILD;
    const uint32_t lane = damacy__lane(), below = (1u << lane) - 1;
    const uint32_t kind0 = Shape::entry_kind(damacy__fse_extra_bits(table, lane), lane);
    const uint32_t kind1 = Shape::entry_kind(damacy__fse_extra_bits(table, lane + 32), lane + 32);
    int32_t c0[N], c1[N];
    uint32_t sum[N], rank[N], own[N];

    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
    {
        const uint32_t at = counts + u * 3 * DAMACY__FSE_COUNTS + 2 * lane;
        c0[u] = size[u] ? (int16_t)damacy__lds16(at) : 0;
        c1[u] = size[u] && lane < 31 ? (int16_t)damacy__lds16(at + 64) : 0;
        damacy__sts64(scratch + u * STRIDE + 8 * lane, 0, 0);
        // Both halves in one word: counts sum to at most 512.
        sum[u] = (uint32_t)(c0[u] > 0 ? c0[u] : 0) | (uint32_t)(c1[u] > 0 ? c1[u] : 0) << 16;
    }
    for (uint32_t d = 1; d < 32; d *= 2) {
        DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
        {
            const uint32_t other = damacy__shfl_up(sum[u], d);
            sum[u] += lane >= d ? other : 0;
        }
    }
    damacy__sync_warp();
    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
    {
        const uint32_t firsts = scratch + u * STRIDE, rares = firsts + 128, states = firsts + 256;
        const uint32_t rare0 = damacy__ballot(c0[u] < 0), rare1 = damacy__ballot(c1[u] < 0);
        const uint32_t has0 = damacy__ballot(c0[u] > 0), has1 = damacy__ballot(c1[u] > 0);
        const uint32_t n0 = damacy__popc(has0), n2 = n0 + damacy__popc(has1);
        const uint32_t n3 = n2 + damacy__popc(rare0);
        n[u].n_common = n2;
        n[u].n_rare = n3 - n2 + damacy__popc(rare1);
        const uint32_t total0 = damacy__shfl(sum[u], 31) & 0xffff;
        const uint32_t nth0 = c0[u] > 0 ? damacy__popc(has0 & below)
                                        : n2 + damacy__popc(rare0 & below);
        const uint32_t nth1 = c1[u] > 0 ? n0 + damacy__popc(has1 & below)
                                        : n3 + damacy__popc(rare1 & below);
        const uint32_t bit0 = c0[u] > 0 ? (sum[u] & 0xffff) - (uint32_t)c0[u]
                                        : damacy__fse_turn(size[u] - 1 - (nth0 - n2), size[u]);
        const uint32_t bit1 = c1[u] > 0 ? (sum[u] >> 16) - (uint32_t)c1[u] + total0
                                        : damacy__fse_turn(size[u] - 1 - (nth1 - n2), size[u]);
        if (c0[u]) {
            damacy__sts64(states + 8 * nth0, c0[u] > 0 ? (uint32_t)c0[u] : 1, kind0);
            damacy__shared_or((c0[u] > 0 ? firsts : rares) + (bit0 >> 5 & 15) * 8,
                              1u << (bit0 & 31));
        }
        if (c1[u]) {
            damacy__sts64(states + 8 * nth1, c1[u] > 0 ? (uint32_t)c1[u] : 1, kind1);
            damacy__shared_or((c1[u] > 0 ? firsts : rares) + (bit1 >> 5 & 15) * 8,
                              1u << (bit1 & 31));
        }
    }
    damacy__sync_warp();
    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++) // firsts, then rares
        rank[u] = own[u] = damacy__popc(damacy__lds32(scratch + u * STRIDE + 8 * lane));
    for (uint32_t d = 1; d < 16; d *= 2) {
        DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
        {
            const uint32_t other = damacy__shfl_up(rank[u], d);
            rank[u] += (lane & 15) >= d ? other : 0;
        }
    }
    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
        damacy__sts32(scratch + u * STRIDE + 8 * lane + 4, rank[u] - own[u]);
    damacy__sync_warp();
}

// Second half: the number of the symbol of a cell in each of N tables; any below 64 where there is
// no such cell.
template <uint32_t N>
DAMACY__INLINE void damacy__fse_symbols(uint32_t cell, const uint32_t (&size)[N],
                                        const damacy__fse_numbers (&n)[N], uint32_t scratch,
                                        uint32_t (&number)[N])
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
        const uint32_t rare = n[u].n_common + size[u] - 1 - cell;
        number[u] = (cell + n[u].n_rare < size[u] ? nth : rare) & 63;
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
    uint32_t size[N], nothing[N], most = 1;
    damacy__fse_numbers n[N];

    DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
    {
        nothing[u] = Shape::entry_kind(0, 0);
        size[u] = logs[u] == DAMACY__FSE_BAD ? 0 : 1u << logs[u];
        most = damacy__max(most, size[u]);
    }
    damacy__fse_rank_symbols<Shape, N>(table, size, counts, scratch, n);
    for (uint32_t cell = lane; cell < most + lane; cell += 32) {
        uint32_t number[N], same[N];
        damacy__u32x2 v[N], entry[N];
        damacy__fse_symbols<N>(cell, size, n, scratch, number);
        DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
        {
            v[u] = damacy__lds64(scratch + u * STRIDE + 256 + 8 * number[u]);
            same[u] = damacy__match_any(cell < size[u] ? number[u] : 64); // 64: no such cell
        }
        damacy__sync_warp();
        DAMACY__UNROLL for (uint32_t u = 0; u < N; u++)
        {
            const bool here = cell < size[u];
            const uint32_t x = v[u].x + damacy__popc(same[u] & below);
            const uint32_t width = logs[u] + damacy__clz(x) - 31; // 1 <= x < 2 * size
            damacy__fse_sts32_if(here && !(same[u] >> lane >> 1),
                                 scratch + u * STRIDE + 256 + 8 * number[u], x + 1);
            entry[u] = Shape::entry_of(first + u, here ? v[u].y : nothing[u], here ? width : 0,
                                       here ? (x << (width & 31)) - size[u] : 0);
        }
        damacy__sync_warp();
        Shape::entries_write(to + (cell << Shape::ROW_LOG), entry);
    }
    damacy__sync_warp();
}
