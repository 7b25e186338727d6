// Sequence execution: segment records and literals become output. A CTA takes a frame and produces
// it in tiles, in order, one record a thread and several records each.
//
// A tile: (1) each record is clipped to the tile and checked; (2) sources that lie before the tile
// are read from the output itself, through L1, and go to the tile in shared memory: 8 bytes at
// once, the rest through a queue; (3) a match that reads its own tile becomes a list of bytes with
// links (byte -> source byte), and each byte follows links to one that has none. Links never wait
// for data, so no byte waits for another and nothing spins; (4) the tile is written 16 bytes a
// thread.
//
// Surprising: lanes shorten links while others follow them. Any value that a reader can see is an
// ancestor of the byte, so the order does not matter; accesses are relaxed.
#pragma once

#include "kernels/zstd_exec_copy.cuh"

#define DAMACY__EXEC_ROOT 0xffffu // no link: the byte is there
#define DAMACY__EXEC_BIAS 0x4000  // links are positions in the tile plus this: below it, before it
#define DAMACY__EXEC_LONG 32      // bytes that a lane copies alone
#define DAMACY__EXEC_HUGE 512     // bytes that a warp copies alone

template <int THREADS_, int SEGMENTS_, int TILE_> struct damacy__exec_shape {
    static constexpr int32_t THREADS = THREADS_, SEGMENTS = SEGMENTS_, TILE = TILE_;
    static constexpr int32_t RECORDS = THREADS * SEGMENTS, WARPS = THREADS / 32;
    static constexpr uint32_t QUEUE = 32 * SEGMENTS; // entries of a warp
    static constexpr uint32_t LINKS = TILE + 16;
    // Places in shared memory. A queue holds the rest of segments above 8 bytes from its front
    // (where and how long in REST) and matches that read their tile from its back.
    static constexpr uint32_t QUEUES = 0, REST = QUEUES + 8 * WARPS * QUEUE;
    static constexpr uint32_t LINK = REST + 4 * WARPS * QUEUE, LIST = LINK + 2 * LINKS;
    static constexpr uint32_t PIECES = LIST + 2 * LINKS, CONTROL = PIECES + 16 * (TILE / 32 + 4);
    static constexpr uint32_t BYTES = CONTROL + 64, SIZE = BYTES + TILE + 64;
    static_assert(TILE % 16 == 0 && TILE <= 8192 && LINKS % 8 == 0 && TILE >= 16 * 32, "tile");
    static_assert(SIZE == DAMACY__ZSTD_EXECUTE_SHARED(THREADS, SEGMENTS, TILE), "host's view");
};

enum { // words at CONTROL
    DAMACY__EXEC_BAD = 0,
    DAMACY__EXEC_NEXT = 4,   // first record that the tile has not finished
    DAMACY__EXEC_LISTED = 8, // bytes with links
    DAMACY__EXEC_PIECED = 12,
    DAMACY__EXEC_TICKET = 16,
    DAMACY__EXEC_SKIP = 20
};

// The frame, in coordinates that count from the 16-byte boundary at or before its first byte.
struct damacy__exec_frame {
    uint64_t base;       // address of coordinate 0
    uint32_t begin;      // coordinate of its first byte
    uint32_t whole;      // the first aligned word that lies in the frame
    uint32_t block, end; // next block to look at, end of its blocks
};

// A block with sequences and how far it is done.
struct damacy__exec_block {
    uint64_t records, literals; // addresses
    uint32_t begin, end;        // coordinates
    uint32_t n_records, next;   // next: first record of the coming tile
    uint32_t index;
};

// Records of a tile, loaded while the one before is finished. `bound`: the record after the last
// that is loaded, NONE if there is none.
template <class S> struct damacy__exec_records {
    uint64_t record[S::SEGMENTS];
    uint32_t bound;
};

template <class S>
DAMACY__INLINE void damacy__exec_load(damacy__exec_records<S>* r, const damacy__exec_block* b)
{
    const int32_t tid = (int32_t)threadIdx.x, left = (int32_t)(b->n_records - b->next);
    const uint64_t* from = (const uint64_t*)(uintptr_t)b->records + b->next + tid;

    DAMACY__EXEC_UNROLL for (int32_t u = 0; u < S::SEGMENTS; u++)
    {
        r->record[u] = 0;
        if (u * S::THREADS + tid < left)
            r->record[u] = damacy__load_u64_stream(from + u * S::THREADS);
    }
    if ((tid & 15) == 0) {
        DAMACY__EXEC_UNROLL for (int32_t u = 0; u < S::SEGMENTS; u++)
        {
            if (S::RECORDS + u * S::THREADS + tid < left)
                damacy__prefetch_l2(from + S::RECORDS + u * S::THREADS);
        }
    }
    r->bound = S::RECORDS < left ? (uint32_t)damacy__load_u64_stream(from - tid + S::RECORDS)
                                 : DAMACY__ZSTD_NONE;
}

// Moves to the next block with sequences; false at the end of the frame.
DAMACY__INLINE bool damacy__exec_block_next(const damacy__zstd_wave& w, damacy__exec_frame* f,
                                            damacy__exec_block* b)
{
    while (f->block < f->end) {
        const damacy__zstd_block* block = damacy__zstd_blocks(w) + f->block;
        b->index = f->block++;
        if (block->type != DAMACY__ZSTD_SEQUENCES || block->dst == 0 || block->size == 0)
            continue;
        b->records = w.records + 8 * block->first_record;
        b->literals = block->literals;
        b->begin = f->begin + block->position;
        b->end = b->begin + block->size;
        b->n_records = block->n_records;
        b->next = 0;
        return true;
    }
    return false;
}

// The tile at hand: coordinates [t0, t1); its buffer begins at the unit of 16 that holds t0, and
// bytes before t0 are there already. What follows is relative to the buffer.
struct damacy__exec_tile {
    uint64_t history; // address of the buffer's first byte in the output
    uint32_t start;   // coordinate of the same
    int32_t t0, t1;
    int32_t big; // a longer piece goes to the CTA's list
};

// A thread's segments: source address, place, bytes (0: none), first words.
template <class S> struct damacy__exec_segments {
    uint64_t from[S::SEGMENTS];
    int32_t to[S::SEGMENTS], n[S::SEGMENTS];
    damacy__exec_words words[S::SEGMENTS];
};

// The first word of a source that begins before the first whole word of the frame: that word is not
// the frame's alone.
DAMACY__INLINE uint32_t damacy__exec_edge(uint64_t from)
{
    uint32_t v = 0;
    DAMACY__EXEC_NOUNROLL for (uint64_t at = from | 3;; at--)
    {
        v = v << 8 | damacy__exec_byte(at);
        if (at == from)
            return v << (8 * (from & 3));
    }
}

// Clips and checks the records, issues the loads of their first 8 bytes and sets aside matches that
// read the tile; their number in *n_own. False for a bad offset.
template <class S>
DAMACY__INLINE bool damacy__exec_classify(damacy__exec_segments<S>* s, uint32_t shared,
                                          const damacy__exec_records<S>* r,
                                          const damacy__exec_block* b, const damacy__exec_frame* f,
                                          const damacy__exec_tile* t, uint32_t* n_own)
{
    const int32_t tid = (int32_t)threadIdx.x, left = (int32_t)(b->n_records - b->next);
    const int32_t block = (int32_t)(b->begin - t->start);
    const uint32_t below = (1u << damacy__lane()) - 1;
    const uint32_t back = shared + S::QUEUES + 8 * (S::QUEUE * (threadIdx.x / 32 + 1) - 1);
    bool good = true;

    DAMACY__EXEC_UNROLL for (int32_t u = 0; u < S::SEGMENTS; u++)
    {
        const uint32_t lo = (uint32_t)r->record[u], hi = (uint32_t)(r->record[u] >> 32);
        const uint32_t offset = hi >> 2;
        const bool literals = (int32_t)hi < 0;
        const int32_t x = (int32_t)(lo & 0x1ffff) + block;
        const int32_t end = x + (int32_t)(damacy__funnel_right(lo, hi, 17) & 0x1ffff) + 1;
        const int32_t to = x > t->t0 ? x : t->t0;
        int32_t n = u * S::THREADS + tid < left ? (end < t->t1 ? end : t->t1) - to : 0;
        if (!literals && n > 0 && offset - 1 >= (uint32_t)x + t->start - f->begin) {
            good = false;
            n = 0;
        }
        if (n > 0 && end >= t->t1)
            damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_NEXT,
                          b->next + (uint32_t)(u * S::THREADS + tid) + (end == t->t1));
        const int32_t q = to - (int32_t)offset;
        const bool own = !literals && n > 0 && q + n > 0;
        const uint64_t from = literals
                                  ? b->literals + (uint32_t)((int32_t)(offset & 0x1ffff) + to - x)
                                  : t->history + (uint64_t)(int64_t)q;
        const uint32_t vote = damacy__ballot(own);
        if (own) {
            damacy__sts64(back - 8 * (*n_own + damacy__popc(vote & below)),
                          (uint32_t)(to | n << 16), offset);
            n = 0;
        }
        *n_own += damacy__popc(vote);
        s->from[u] = from;
        s->to[u] = to;
        s->n[u] = n;
        s->words[u].w0 = s->words[u].w1 = s->words[u].w2 = 0;
        if (n > 0) {
            const uint64_t at = from & ~3ull;
            const int32_t last = (int32_t)(from & 3) + (n < 8 ? n : 8);
            if (!literals && t->start + (uint32_t)q < f->whole)
                s->words[u].w0 = damacy__exec_edge(from);
            else
                s->words[u].w0 = damacy__exec_word(at);
            if (last > 4)
                s->words[u].w1 = damacy__exec_word(at + 4);
            if (last > 8)
                s->words[u].w2 = damacy__exec_word(at + 8);
        }
    }
    return good;
}

// First 8 bytes of each segment to the tile; the rest to the warp's queue, or to the CTA's list.
// Returns the entries of the queue.
template <class S>
DAMACY__INLINE uint32_t damacy__exec_heads(const damacy__exec_segments<S>* s, uint32_t shared,
                                           const damacy__exec_tile* t)
{
    const uint32_t below = (1u << damacy__lane()) - 1, warp = threadIdx.x / 32;
    uint32_t queued = 0;

    DAMACY__EXEC_UNROLL for (int32_t u = 0; u < S::SEGMENTS; u++)
    {
        const int32_t n = s->n[u];
        if (n > 0)
            damacy__exec_scatter(shared + S::BYTES + (uint32_t)s->to[u], s->from[u], s->words[u],
                                 n);
        const uint32_t longer = damacy__ballot(n > 8);
        if (longer) {
            const bool listed = n > t->big;
            const uint32_t lists = damacy__ballot(listed);
            const uint32_t rest = (uint32_t)(s->to[u] + 8) | (uint32_t)(n - 8) << 16;
            const uint64_t from = s->from[u] + 8;
            if (listed) {
                const uint32_t j = damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_PIECED, 1);
                damacy__sts64(shared + S::PIECES + 16 * j, (uint32_t)from, (uint32_t)(from >> 32));
                damacy__sts32(shared + S::PIECES + 16 * j + 8, rest);
            } else if (n > 8) {
                const uint32_t j = S::QUEUE * warp + queued + damacy__popc(longer & ~lists & below);
                damacy__sts64(shared + S::QUEUES + 8 * j, (uint32_t)from, (uint32_t)(from >> 32));
                damacy__sts32(shared + S::REST + 4 * j, rest);
            }
            queued += damacy__popc(longer & ~lists);
        }
    }
    damacy__sync_warp();
    return queued;
}

// Bytes of the queued segments: a lane up to LONG bytes, above it the warp.
template <class S> DAMACY__INLINE void damacy__exec_rest(uint32_t shared, uint32_t queued)
{
    const uint32_t lane = damacy__lane(), first = S::QUEUE * (threadIdx.x / 32);

    for (uint32_t i0 = 0; i0 < queued; i0 += 32) {
        const uint32_t i = i0 + lane;
        uint32_t to = 0;
        int32_t n = 0;
        uint64_t from = 0;
        if (i < queued) {
            const damacy__u32x2 v = damacy__lds64(shared + S::QUEUES + 8 * (first + i));
            const uint32_t rest = damacy__lds32(shared + S::REST + 4 * (first + i));
            from = (uint64_t)v.y << 32 | v.x;
            to = rest & 0xffff;
            n = (int32_t)(rest >> 16);
        }
        uint32_t shared_out = damacy__ballot(n > DAMACY__EXEC_LONG);
        if (n <= DAMACY__EXEC_LONG)
            for (uint32_t at = shared + S::BYTES + to; n > 0; from += 8, at += 8, n -= 8)
                damacy__exec_scatter(at, from, damacy__exec_gather(from, n), n);
        damacy__sync_warp();
        while (shared_out) {
            const uint32_t l = damacy__ctz(shared_out);
            const uint64_t p = damacy__shfl(from, l);
            const int32_t begin = (int32_t)damacy__shfl(to, l), length = damacy__shfl(n, l);
            shared_out &= shared_out - 1;
            damacy__exec_copy_group(shared + S::BYTES, p, begin, begin + length, (int32_t)lane, 32);
        }
    }
}

// Links and list entries of the matches that read their tile, a byte at a time. Where source and
// match overlap, a byte's source is taken modulo the offset: it lies before the match.
template <class S> DAMACY__INLINE void damacy__exec_link(uint32_t shared, uint32_t n_own)
{
    const uint32_t lane = damacy__lane();
    const uint32_t back = shared + S::QUEUES + 8 * (S::QUEUE * (threadIdx.x / 32 + 1) - 1);

    for (uint32_t i0 = 0; i0 < n_own; i0 += 32) {
        const uint32_t i = i0 + lane;
        int32_t to = 0, n = 0, offset = 1;
        if (i < n_own) {
            const damacy__u32x2 v = damacy__lds64(back - 8 * i);
            to = (int32_t)(v.x & 0xffff);
            n = (int32_t)(v.x >> 16);
            offset = (int32_t)v.y;
        }
        uint32_t sum = (uint32_t)n, base = 0;
        for (uint32_t d = 1; d < 32; d *= 2) {
            const uint32_t other = damacy__shfl_up(sum, d);
            if (lane >= d)
                sum += other;
        }
        if (lane == 31)
            base = damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_LISTED, sum);
        base = damacy__shfl(base, 31) + sum - (uint32_t)n;
        uint32_t link = shared + S::LINK + 2 * (uint32_t)to, list = shared + S::LIST + 2 * base;
        uint32_t longer = damacy__ballot(n > DAMACY__EXEC_LONG);
        if (n <= DAMACY__EXEC_LONG) {
            const int32_t end = to + DAMACY__EXEC_BIAS;
            int32_t source = end - offset;
            for (int32_t k = 0; k < n; k++, link += 2, list += 2) {
                damacy__exec_link_store(link, (uint32_t)source);
                damacy__sts16(list, (uint32_t)(to + k));
                if (++source == end)
                    source -= offset;
            }
        }
        damacy__sync_warp();
        while (longer) {
            const uint32_t l = damacy__ctz(longer);
            const int32_t begin = damacy__shfl(to, l), length = damacy__shfl(n, l);
            const int32_t o = damacy__shfl(offset, l);
            const uint32_t listed = damacy__shfl(list, l);
            longer &= longer - 1;
            for (int32_t k = (int32_t)lane; k < length; k += 32) {
                const int32_t source = begin - o + (o < length ? k % o : k) + DAMACY__EXEC_BIAS;
                damacy__exec_link_store(shared + S::LINK + 2 * (uint32_t)(begin + k),
                                        (uint32_t)source);
                damacy__sts16(listed + 2 * (uint32_t)k, (uint32_t)(begin + k));
            }
        }
    }
}

// The listed pieces: above HUGE bytes the whole CTA, else a warp each.
template <class S> DAMACY__INLINE void damacy__exec_pieces(uint32_t shared, uint32_t n_pieces)
{
    const uint32_t warp = threadIdx.x / 32;

    for (uint32_t i = 0; i < n_pieces; i++) {
        const damacy__u32x2 v = damacy__lds64(shared + S::PIECES + 16 * i);
        const uint32_t rest = damacy__lds32(shared + S::PIECES + 16 * i + 8);
        const uint64_t from = (uint64_t)v.y << 32 | v.x;
        const int32_t to = (int32_t)(rest & 0xffff), n = (int32_t)(rest >> 16);
        if (n > DAMACY__EXEC_HUGE)
            damacy__exec_copy_group(shared + S::BYTES, from, to, to + n, (int32_t)threadIdx.x,
                                    S::THREADS);
        else if (i % S::WARPS == warp)
            damacy__exec_copy_group(shared + S::BYTES, from, to, to + n, (int32_t)damacy__lane(),
                                    32);
    }
}

// Bytes of the matches that read their tile. A hop goes to an earlier byte, so a tile bounds them.
template <class S>
DAMACY__INLINE void damacy__exec_chase(uint32_t shared, uint64_t history, uint32_t n)
{
    const uint32_t lane = damacy__lane();

    for (uint32_t i0 = threadIdx.x & ~31u; i0 < n; i0 += S::THREADS) {
        if (i0 + lane < n) {
            const uint32_t x = damacy__lds16(shared + S::LIST + 2 * (i0 + lane));
            const uint32_t self = shared + S::LINK + 2 * x;
            uint32_t v = damacy__exec_link_load(self);
            for (int32_t hop = 0; v >= DAMACY__EXEC_BIAS && hop < S::TILE; hop++) {
                const uint32_t next =
                    damacy__exec_link_load(shared + S::LINK + 2 * (v - DAMACY__EXEC_BIAS));
                if (next == DAMACY__EXEC_ROOT)
                    break;
                v = next;
                damacy__exec_link_store(self, v);
            }
            const uint32_t byte = v < DAMACY__EXEC_BIAS
                                      ? damacy__exec_byte(history + v - DAMACY__EXEC_BIAS)
                                      : damacy__lds8(shared + S::BYTES + v - DAMACY__EXEC_BIAS);
            damacy__sts8(shared + S::BYTES + x, byte);
        }
        damacy__sync_warp();
    }
}

// Writes the whole units of the tile; what is left of the last one too if nothing follows it. Bytes
// before the frame are another's and are not written.
template <class S>
DAMACY__INLINE void damacy__exec_flush(uint32_t shared, const damacy__exec_frame* f,
                                       const damacy__exec_tile* t, bool all)
{
    const int32_t whole = t->t1 & ~15, tid = (int32_t)threadIdx.x;
    const int32_t begin = t->start < f->begin ? (int32_t)(f->begin - t->start) : 0;
    const int32_t first = begin ? 16 : 0;

    for (int32_t at = first + tid * 16; at < whole; at += S::THREADS * 16)
        *(damacy__u32x4*)(uintptr_t)(t->history + (uint32_t)at) =
            damacy__lds128(shared + S::BYTES + (uint32_t)at);
    if (begin && tid >= begin && tid < 16 && tid < t->t1 && (all || whole))
        *(uint8_t*)(uintptr_t)(t->history + (uint32_t)tid) =
            (uint8_t)damacy__lds8(shared + S::BYTES + (uint32_t)tid);
    if (all && whole >= first && tid < t->t1 - whole)
        *(uint8_t*)(uintptr_t)(t->history + (uint32_t)(whole + tid)) =
            (uint8_t)damacy__lds8(shared + S::BYTES + (uint32_t)(whole + tid));
}

// The part of a frame that is in the buffer but not yet in the output moves to its front; links of
// the tile go, if there were any.
template <class S>
DAMACY__INLINE void damacy__exec_turn(uint32_t shared, const damacy__exec_tile* t, bool linked)
{
    const int32_t whole = t->t1 & ~15, tid = (int32_t)threadIdx.x;
    const uint32_t byte = tid < 16 ? damacy__lds8(shared + S::BYTES + (uint32_t)(whole + tid)) : 0;
    damacy__u32x4 none;

    none.x = none.y = none.z = none.w = 0xffffffffu;
    if (linked)
        for (int32_t i = tid; i * 8 < t->t1; i += S::THREADS)
            damacy__sts128(shared + S::LINK + 16 * (uint32_t)i, none);
    if (tid == 0) {
        damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_LISTED, 0);
        damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_PIECED, 0);
    }
    damacy__sync_block();
    if (tid < t->t1 - whole)
        damacy__sts8(shared + S::BYTES + (uint32_t)tid, byte);
}

// Places the tile that begins at coordinate t0. At the first of a run of blocks, what lies before
// t0 in its unit is fetched from the output.
template <class S>
DAMACY__INLINE void
damacy__exec_tile_begin(damacy__exec_tile* t, uint32_t shared, const damacy__exec_frame* f,
                        const damacy__exec_block* b, uint32_t bound, uint32_t t0, bool is_first)
{
    uint32_t t1 = bound == DAMACY__ZSTD_NONE ? b->end : b->begin + (bound & 0x1ffff);

    t1 = damacy__min(t1, damacy__min(b->end, t0 + S::TILE));
    t->start = t0 & ~15u;
    t->history = f->base + t->start;
    t->t0 = (int32_t)(t0 - t->start);
    t->t1 = (int32_t)(t1 - t->start);
    if (is_first && (int32_t)threadIdx.x < t->t0 && t->start + threadIdx.x >= f->begin)
        damacy__sts8(shared + S::BYTES + threadIdx.x, damacy__exec_byte(t->history + threadIdx.x));
}

// Executes a frame. Returns the block with a bad offset, NONE if there is none.
template <class S>
static __device__ uint32_t damacy__exec_frame_run(const damacy__zstd_wave& w, uint32_t frame,
                                                  uint32_t shared)
{
    const damacy__zstd_frame& from = damacy__zstd_frames(w)[frame];
    damacy__exec_frame f;
    damacy__exec_block b;
    damacy__exec_records<S> r;
    damacy__exec_tile t;
    bool is_first = true;

    f.base = from.dst & ~15ull;
    f.begin = (uint32_t)(from.dst & 15);
    f.whole = (f.begin + 3) & ~3u;
    f.block = from.first_block;
    f.end = from.first_block + from.n_blocks;
    for (uint32_t i = threadIdx.x; i < S::LINKS / 2; i += S::THREADS)
        damacy__sts32(shared + S::LINK + 4 * i, 0xffffffffu);
    if (threadIdx.x < 4)
        damacy__sts32(shared + S::CONTROL + 4 * threadIdx.x, 0);
    if (!damacy__exec_block_next(w, &f, &b))
        return DAMACY__ZSTD_NONE;
    t.big = DAMACY__EXEC_HUGE;
    damacy__exec_load<S>(&r, &b);
    damacy__sync_block();
    for (uint32_t t0 = b.begin;;) { // every pass moves t0 or leaves
        damacy__exec_segments<S> s;
        uint32_t n_own = 0;
        damacy__exec_tile_begin<S>(&t, shared, &f, &b, r.bound, t0, is_first);
        const bool good = damacy__exec_classify<S>(&s, shared, &r, &b, &f, &t, &n_own);
        const uint32_t queued = damacy__exec_heads<S>(&s, shared, &t);
        damacy__exec_rest<S>(shared, queued);
        damacy__exec_link<S>(shared, n_own);
        if (!good || t.t1 <= t.t0)
            damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_BAD, 1);
        damacy__sync_block();
        const damacy__u32x4 control = damacy__lds128(shared + S::CONTROL);
        if (control.x)
            return b.index;
        const uint32_t n_listed = control.z, n_pieces = control.w, t1 = t.start + (uint32_t)t.t1;
        // Few records a tile sit in one or two warps: then their pieces are shared out.
        const bool sparse = control.y - b.next < (uint32_t)S::THREADS / 2;
        bool more = true;
        b.next = control.y;
        is_first = false;
        if (t1 == b.end) {
            more = damacy__exec_block_next(w, &f, &b);
            is_first = more && b.begin != t1;
        }
        if (more)
            damacy__exec_load<S>(&r, &b);
        if (n_pieces) {
            damacy__exec_pieces<S>(shared, n_pieces);
            damacy__sync_block();
        }
        damacy__exec_chase<S>(shared, t.history, n_listed);
        damacy__sync_block();
        damacy__exec_flush<S>(shared, &f, &t, !more || is_first);
        if (!more)
            return DAMACY__ZSTD_NONE;
        damacy__exec_turn<S>(shared, &t, n_listed != 0);
        t.big = sparse ? DAMACY__EXEC_LONG + 8 : DAMACY__EXEC_HUGE;
        t0 = is_first ? b.begin : t1;
    }
}

// Where dynamic shared memory begins. On compute capability 9.0 it is known, if the kernel has no
// other shared memory, and as a constant it is part of every address: 3 to 4 % of the time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define DAMACY__EXEC_BASE(shared) 1024u
#else
#define DAMACY__EXEC_BASE(shared) damacy__shared_address(shared)
#endif

// A whole CTA: entries blockIdx.x, blockIdx.x + gridDim.x, ... of the execute list that belong to
// this variant. `shared`: DAMACY__ZSTD_EXECUTE_SHARED bytes. Grid: any; best one CTA a frame.
template <int THREADS, int SEGMENTS, int TILE>
static __device__ void damacy__zstd_execute(const damacy__zstd_wave& w, uint32_t variant,
                                            uint8_t* shared)
{
    typedef damacy__exec_shape<THREADS, SEGMENTS, TILE> shape;
    const uint32_t n = damacy__zstd_counts(w)->n_execute, base = DAMACY__EXEC_BASE(shared);

    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const uint32_t frame = ((const uint32_t*)(uintptr_t)w.execute_list)[i];
        if (base != damacy__shared_address(shared)) { // the constant is wrong: better no result
            damacy__zstd_fail_job(w, damacy__zstd_frames(w)[frame].job, 0, DAMACY__JOB_UNSUPPORTED);
            continue;
        }
        if (damacy__exec_variant(w, i) != variant || damacy__exec_skip(w, frame))
            continue;
        const uint32_t bad = damacy__exec_frame_run<shape>(w, frame, base);
        if (bad != DAMACY__ZSTD_NONE && threadIdx.x == 0) {
            const damacy__zstd_block& block = damacy__zstd_blocks(w)[bad];
            damacy__zstd_fail(w, block, block.sequence_src, DAMACY__JOB_BAD_OFFSET);
        }
        damacy__sync_block();
    }
}
