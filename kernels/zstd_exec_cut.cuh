// Blocks of large frames -> tiles, for execution by tickets (zstd_exec_relay.cuh).
//
// Where a tile begins follows from the one before alone, so a warp cuts a block. Surprising: what
// that costs is reading records here and there in memory, so it guesses where to read.
#pragma once

#include "kernels/zstd_exec.cuh"

#define DAMACY__RELAY_WORDS 40u // that the tiles of a block have

template <int THREADS_, int SEGMENTS_, int TILE_, bool BY_SEQUENCE_ = false>
struct damacy__relay_shape
    : damacy__exec_shape<THREADS_, SEGMENTS_, TILE_, 8, false, BY_SEQUENCE_> {
    typedef damacy__exec_shape<THREADS_, SEGMENTS_, TILE_, 8, false, BY_SEQUENCE_> base;
    static constexpr bool HAS_PAIRS = true, IS_RELAY = true,
                          IS_WIDE = THREADS_ == DAMACY__ZSTD_WIDE_THREADS;
    // The last warp looks after the next tile and the one before, while the others work on.
    static constexpr int32_t WORKERS = THREADS_ - 32;
    struct work : base { // the shape of what they do
        static constexpr int32_t THREADS = WORKERS, WARPS = WORKERS / 32;
        static constexpr bool HAS_PAIRS = true;
    };
    // Two mailboxes: the tile at hand and the next.
    static constexpr uint32_t MAIL = (base::SIZE + 127) / 128 * 128, RELAY_SIZE = MAIL + 128;
    static_assert(DAMACY__ZSTD_BLOCK_MAX / (TILE_ - 15) +
                          ((BY_SEQUENCE_ ? 1 : 2) * DAMACY__ZSTD_SEQUENCES_MAX + 1) /
                              (base::RECORDS - 3) +
                          1 <
                      DAMACY__RELAY_WORDS,
                  "the tiles of a block have room");
    static_assert(RELAY_SIZE == DAMACY__ZSTD_RELAY_SHARED(THREADS_, SEGMENTS_, TILE_), "host");
};

typedef damacy__relay_shape<DAMACY__ZSTD_RELAY_THREADS, DAMACY__ZSTD_RELAY_SEGMENTS,
                            DAMACY__ZSTD_RELAY_TILE>
    damacy__relay_best;
typedef damacy__relay_shape<DAMACY__ZSTD_WIDE_THREADS, DAMACY__ZSTD_WIDE_SEGMENTS,
                            DAMACY__ZSTD_RELAY_TILE>
    damacy__relay_wide;
// The same for records of sequences.
typedef damacy__relay_shape<DAMACY__ZSTD_RELAY_THREADS, DAMACY__ZSTD_RELAY_SEGMENTS,
                            DAMACY__ZSTD_RELAY_TILE, true>
    damacy__relay_blosc;
typedef damacy__relay_shape<DAMACY__ZSTD_WIDE_THREADS, DAMACY__ZSTD_WIDE_SEGMENTS,
                            DAMACY__ZSTD_RELAY_TILE, true>
    damacy__relay_blosc_wide;
static_assert(damacy__relay_best::RECORDS == damacy__relay_wide::RECORDS &&
                  damacy__relay_blosc::RECORDS == damacy__relay_blosc_wide::RECORDS,
              "one cut for both");

// Tiles of a block lie in the place of its tree, which nothing needs any more: a word each, first
// byte | first record / 4 << 17, both relative to the block (up to three records from that one on
// may end before the tile), and in the last word how many they are. sequence_order holds, for each
// block, how many tiles of the frame come before its own.
static_assert(4 * DAMACY__RELAY_WORDS == sizeof(damacy__zstd_tree), "tiles are in its place");

DAMACY__INLINE uint32_t* damacy__relay_tiles(const damacy__zstd_wave& w, uint32_t block)
{
    return (uint32_t*)(uintptr_t)(w.trees + (uint64_t)sizeof(damacy__zstd_tree) * block);
}

// Where record i of a block begins; the block's end, if it has no such record.
DAMACY__INLINE uint32_t damacy__relay_start(const damacy__zstd_block& b, const uint64_t* records,
                                            uint32_t i)
{
    return i < b.n_records ? (uint32_t)records[i] & 0x1ffff : b.size;
}

// The last record of RECORDS from `first` on that begins at byte `cut` or before; one of them
// begins behind it. A warp looks around `low`, where lane i has found 8 * i records on to begin at
// `begin`, before it looks everywhere.
template <class S>
DAMACY__INLINE uint32_t damacy__relay_seek(const damacy__zstd_block& b, const uint64_t* records,
                                           uint32_t first, uint32_t low, uint32_t begin,
                                           uint32_t cut)
{
    const uint32_t lane = damacy__lane(), stride = S::RECORDS / 32;
    uint32_t before = damacy__ballot(begin <= cut), n = 8;

    if (before == 0 || before == 0xffffffffu) {
        const uint32_t at = first + stride * lane;
        before = damacy__ballot(damacy__relay_start(b, records, at) <= cut);
        low = first;
        n = stride;
    }
    low += n * (damacy__popc(before) - 1);
    uint32_t found = 0;
    for (uint32_t i = lane; i - lane < n; i += 32)
        found +=
            damacy__popc(damacy__ballot(i < n && damacy__relay_start(b, records, low + i) <= cut));
    return low + found - 1;
}

// Cuts a block into tiles; a warp does. Each ends TILE bytes after it began, less what the next
// lacks of an output address that 16 divides, or else at the end of RECORDS records: so they are
// fewer than RELAY_WORDS. Returns how many; NONE if that is not so.
template <class S>
DAMACY__INLINE uint32_t damacy__relay_cut(const damacy__zstd_wave& w, uint32_t block)
{
    const damacy__zstd_block& b = damacy__zstd_blocks(w)[block];
    const uint64_t* records = (const uint64_t*)(uintptr_t)w.records + b.first_record;
    const uint32_t skew = (uint32_t)b.dst & 15;
    uint32_t* tiles = damacy__relay_tiles(w, block);
    uint32_t at = 0, first = 0; // of the tile

    if (b.type != DAMACY__ZSTD_SEQUENCES || b.dst == 0 || b.size == 0)
        return 0;
    uint32_t usual = (uint32_t)((uint64_t)b.n_records * S::TILE / b.size); // records of a tile
    for (uint32_t k = 0; k < DAMACY__RELAY_WORDS - 1; k++) {
        const uint32_t cut = ((skew + at + S::TILE) & ~15u) - skew;
        const uint32_t guess = first + damacy__min(usual, S::RECORDS);
        const uint32_t low = guess - damacy__min(guess - first, 128);
        const uint32_t begin = damacy__relay_start(b, records, low + 8 * damacy__lane());
        const uint32_t bound = damacy__relay_start(b, records, first + S::RECORDS);
        if (damacy__lane() == 0)
            tiles[k] = at | first / 4 << 17;
        if (first + S::RECORDS >= b.n_records && b.size - at <= (uint32_t)S::TILE)
            return k + 1;
        if (bound > cut) {
            const uint32_t next = damacy__relay_seek<S>(b, records, first, low, begin, cut);
            if (next < first)
                break;
            usual = next - first;
            first = next & ~3u;
            at = cut;
        } else {
            if (bound <= at || bound >= b.size)
                break;
            first += S::RECORDS;
            at = bound;
        }
    }
    return DAMACY__ZSTD_NONE;
}

// Sums up the tiles of a frame's blocks; a warp does. NONE if a block could not be cut.
DAMACY__INLINE uint32_t damacy__relay_sum(const damacy__zstd_wave& w, const damacy__zstd_frame& f)
{
    uint32_t* before = (uint32_t*)(uintptr_t)w.sequence_order + f.first_block;
    uint32_t sum = 0;
    bool good = true;

    for (uint32_t i0 = 0; i0 < f.n_blocks; i0 += 32) {
        const uint32_t i = i0 + damacy__lane();
        uint32_t n = 0;
        if (i < f.n_blocks)
            n = damacy__relay_tiles(w, f.first_block + i)[DAMACY__RELAY_WORDS - 1];
        good = good && !damacy__any(n == DAMACY__ZSTD_NONE);
        const uint32_t all = damacy__sum_upto(n, damacy__lane());
        if (i < f.n_blocks)
            before[i] = sum + all - n;
        sum += damacy__shfl(all, 31);
    }
    return good ? sum : DAMACY__ZSTD_NONE;
}

// The list that holds relay's frames, and how many it has.
DAMACY__INLINE const uint32_t* damacy__relay_list(const damacy__zstd_wave& w)
{
    return (const uint32_t*)(uintptr_t)(w.flags & DAMACY__ZSTD_FLAG_APART ? w.keys
                                                                          : w.execute_list);
}
DAMACY__INLINE uint32_t damacy__relay_listed(const damacy__zstd_wave& w)
{
    const damacy__zstd_counters* const counts = damacy__zstd_counts(w);
    return w.flags & DAMACY__ZSTD_FLAG_APART ? counts->n_apart : counts->n_execute;
}

// Whether an entry of the list is relay's.
DAMACY__INLINE bool damacy__relay_has(const damacy__zstd_wave& w, uint32_t whole, uint32_t i)
{
    return w.flags & DAMACY__ZSTD_FLAG_APART ||
           damacy__exec_variant(w, whole, i) == DAMACY__ZSTD_EXECUTE_RELAY;
}

// Cuts the entries of the list that are relay's. Grid: any; best one block of threads a frame.
template <class S> static __device__ void damacy__zstd_cut(const damacy__zstd_wave& w)
{
    damacy__zstd_counters* counts = damacy__zstd_counts(w);
    const uint32_t n = damacy__relay_listed(w), n_warps = blockDim.x / 32;
    const uint32_t whole = damacy__exec_wave_variant(w);

    if (!(w.flags & DAMACY__ZSTD_FLAG_APART) &&
        damacy__exec_is_idle(whole, DAMACY__ZSTD_EXECUTE_RELAY))
        return; // then ticket[2] says that there is no tile
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const uint32_t frame = damacy__relay_list(w)[i];
        damacy__zstd_frame& f = damacy__zstd_frames(w)[frame];
        const bool is_mine = damacy__relay_has(w, whole, i) && !damacy__exec_skip(w, frame);
        for (uint32_t b = threadIdx.x / 32; is_mine && b < f.n_blocks; b += n_warps) {
            const uint32_t n_tiles = damacy__relay_cut<S>(w, f.first_block + b);
            if (damacy__lane() == 0)
                damacy__relay_tiles(w, f.first_block + b)[DAMACY__RELAY_WORDS - 1] = n_tiles;
        }
        damacy__sync_block();
        if (threadIdx.x < 32) {
            uint32_t n_tiles = is_mine ? damacy__relay_sum(w, f) : 0;
            // Tickets have 32 bits.
            const bool good = n_tiles < 0xff000000u / n;
            if (threadIdx.x == 0) {
                if (!good)
                    damacy__zstd_fail_job(w, f.job, 0, DAMACY__JOB_NEED_SCRATCH);
                f.n_tiles = good ? n_tiles : 0;
                f.done = 0;
                damacy__atomic_max(&counts->ticket[2], f.n_tiles);
            }
        }
        damacy__sync_block();
    }
}
