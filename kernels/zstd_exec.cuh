// Sequence execution: records and literals become output. A CTA takes a frame and produces it in
// tiles, in order, one record a thread and several records each.
//
// A tile: (1) each segment is clipped to the tile and checked; a source that lies before the tile
// is read from the output itself, through L1, and its first 8 bytes go to the tile in shared
// memory (zstd_exec_take.cuh); (2) what is longer goes there in chunks of 8 or 16 bytes, one a
// thread; (3) matches that read their own tile (zstd_exec_own.cuh, or by one warp,
// zstd_exec_serial.cuh); (4) the tile is written 16 bytes a thread.
//
// Surprising: nothing waits for a byte. Where a source is not there yet, links to it are followed.
#pragma once

#include "kernels/zstd_exec_filter.cuh"
#include "kernels/zstd_exec_sequence.cuh"
#include "kernels/zstd_exec_turn.cuh"

// Of a tile that ends inside a record that is loaded: leaves that record's index.
template <class S>
DAMACY__INLINE void damacy__exec_next(uint32_t shared, const damacy__exec_records<S>* r,
                                      const damacy__exec_block* b, const damacy__exec_view* v)
{
    DAMACY__EXEC_UNROLL for (int32_t u = 0; u < S::SEGMENTS; u++)
    {
        const damacy__u32x2 record = r->record[u];
        const uint32_t before = (uint32_t)(v->t1 - v->block) - (record.x & 0x1ffff);
        if (u * S::THREADS < v->left &&
            before <= (damacy__funnel_right(record.x, record.y, 17) & 0x1ffff))
            damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_NEXT,
                          b->next + threadIdx.x + (uint32_t)(u * S::THREADS));
    }
}

// Of long segments: asks for the literals of the next tile, which come from device memory. The
// first warp does, from the first run of its first records on, which is about where the tile
// begins.
template <class S>
DAMACY__INLINE void damacy__exec_ahead(const damacy__exec_block* b, damacy__u32x2 record)
{
    const uint32_t runs = S::BY_SEQUENCE ? 1 : damacy__ballot((int32_t)record.y < 0);
    const uint32_t at_run =
        S::BY_SEQUENCE ? damacy__funnel_right(record.x, record.y, 17) : record.y >> 2;
    const uint32_t first = damacy__shfl(at_run & 0x1ffff, runs ? damacy__ctz(runs) : 0);
    const uint32_t end = first + 2 * S::TILE;

    DAMACY__EXEC_UNROLL for (uint32_t i = 0; i < S::TILE; i += 4096) // a line of memory a lane
    {
        const uint32_t at = first + S::TILE + i + 128 * threadIdx.x;
        if (runs && (S::TILE == 4096 || at < end) && at < b->n_literals)
            damacy__prefetch_l2((const void*)(uintptr_t)(b->literals + at));
    }
}

// The records of a tile, of segments.
template <class S>
DAMACY__INLINE void damacy__exec_each(uint32_t shared, const damacy__exec_records<S>* r,
                                      const damacy__exec_view* v)
{
    damacy__exec_segment s[2]; // one is loaded while the first is stored

    DAMACY__EXEC_UNROLL for (int32_t u = 0; u <= S::SEGMENTS; u++)
    {
        if (u < S::SEGMENTS)
            damacy__exec_take<S>(&s[u & 1], shared,
                                 u == 0 && threadIdx.x == 0 && !S::IS_RELAY
                                     ? damacy__exec_record_back(r->record[0], v)
                                     : r->record[u],
                                 u * S::THREADS, v);
        if (u > 0)
            damacy__exec_put<S>(&s[(u - 1) & 1], shared);
    }
}

// The records of a tile.
template <class S>
DAMACY__INLINE void damacy__exec_segments(uint32_t shared, const damacy__exec_records<S>* r,
                                          const damacy__exec_block* b, const damacy__exec_frame* f,
                                          const damacy__exec_tile* t, uint32_t done)
{
    damacy__exec_view v;

    v.literals = b->literals;
    v.frame = f->base + f->begin;
    v.block = (int32_t)(b->begin - t->start);
    v.t0 = t->t0;
    v.t1 = t->t1;
    v.ahead = t->start - f->begin;
    v.left = (int32_t)(b->n_records - b->next - damacy__exec_first<S>());
    v.done = done;
    if constexpr (S::BY_SEQUENCE)
        damacy__exec_sequences<S>(shared, r, b, t->is_cut, &v);
    else
        damacy__exec_each<S>(shared, r, &v);
    if (S::IS_SERIAL)
        damacy__exec_prepare<S>(shared);
    if (t->is_cut && !S::BY_SEQUENCE)
        damacy__exec_next<S>(shared, r, b, &v);
    if (S::CHUNK == 16 && threadIdx.x < 32)
        damacy__exec_ahead<S>(b, r->record[0]);
}

// A chunk: where from, where to, and how many bytes there are from it to the segment's end.
struct damacy__exec_chunk {
    uint64_t from;
    uint32_t to;
    int32_t n;
};

// The chunks of a group of 32, one a lane; none behind the last. A warp does.
template <class S>
DAMACY__INLINE damacy__exec_chunk damacy__exec_chunk_of(uint32_t shared, uint32_t group,
                                                        uint32_t n_chunks, uint64_t frame,
                                                        uint64_t literals)
{
    const uint32_t lane = damacy__lane(), chunk = 32 * group + lane;
    damacy__exec_chunk c;
    uint32_t entry = 0;

    c.from = 0;
    c.to = 0;
    c.n = 0;
    DAMACY__EXEC_UNROLL for (uint32_t i = lane; i < S::TILE / 256; i += 32) if (i < group) entry +=
        damacy__popc(damacy__lds32(shared + S::STARTS + 4 * i));
    entry = damacy__warp_sum(entry);
    if (chunk < n_chunks) {
        const uint32_t starts = damacy__lds32(shared + S::STARTS + 4 * group);
        entry += damacy__popc(starts << (31 - lane)) - 1;
        const damacy__u32x2 v = damacy__lds64(shared + S::QUEUE + 8 * entry);
        c.from = (v.x & DAMACY__EXEC_LITERALS ? literals : frame) +
                 ((v.x + (uint32_t)S::CHUNK * chunk) & ~DAMACY__EXEC_LITERALS);
        c.to = (v.y + (uint32_t)S::CHUNK * chunk) & 0xffff;
        c.n = (int32_t)((v.y >> 16) - c.to);
    }
    return c;
}

// The queue's chunks, one a thread, if they are of 8 bytes.
template <class S>
DAMACY__INLINE void damacy__exec_chunks_short(uint32_t shared, uint32_t n_chunks, uint64_t frame,
                                              uint64_t literals)
{
    DAMACY__EXEC_NOUNROLL for (uint32_t group = threadIdx.x / 32; 32 * group < n_chunks;
                               group += S::WARPS)
    {
        const damacy__exec_chunk c =
            damacy__exec_chunk_of<S>(shared, group, n_chunks, frame, literals);
        if (c.n > 0) {
            const uint32_t skew = (uint32_t)c.from * 8;
            const damacy__exec_words words = damacy__exec_gather(c.from, c.n);
            const uint32_t v0 = damacy__funnel_right(words.w0, words.w1, skew);
            const uint32_t v1 = damacy__funnel_right(words.w1, words.w2, skew);
            if (c.n >= 8)
                damacy__sts64(shared + S::BYTES + c.to, v0, v1);
            else
                damacy__exec_store8<S::HAS_PAIRS>(shared + S::BYTES + c.to, v0, v1, c.n);
        }
        damacy__sync_warp();
    }
}

// The same of 16 bytes, two groups at a time.
template <class S>
DAMACY__INLINE void damacy__exec_chunks_long(uint32_t shared, uint32_t n_chunks, uint64_t frame,
                                             uint64_t literals)
{
    damacy__exec_chunk c[2];
    damacy__exec_words low[2], high[2];

    DAMACY__EXEC_NOUNROLL for (uint32_t group = threadIdx.x / 32; 32 * group < n_chunks;
                               group += 2 * S::WARPS)
    {
        DAMACY__EXEC_UNROLL for (uint32_t k = 0; k < 2; k++)
        {
            c[k] =
                damacy__exec_chunk_of<S>(shared, group + k * S::WARPS, n_chunks, frame, literals);
            low[k] = damacy__exec_gather(c[k].from, c[k].n);
            high[k] = damacy__exec_gather_next(c[k].from + 8, c[k].n - 8);
        }
        DAMACY__EXEC_UNROLL for (uint32_t k = 0; k < 2; k++)
        {
            const uint32_t skew = (uint32_t)c[k].from * 8, to = shared + S::BYTES + c[k].to;
            const int32_t n = c[k].n;
            const uint32_t v0 = damacy__funnel_right(low[k].w0, low[k].w1, skew);
            const uint32_t v1 = damacy__funnel_right(low[k].w1, low[k].w2, skew);
            const uint32_t v2 = damacy__funnel_right(low[k].w2, high[k].w1, skew);
            const uint32_t v3 = damacy__funnel_right(high[k].w1, high[k].w2, skew);
            if (n >= 8)
                damacy__sts64(to, v0, v1);
            if (n >= 16)
                damacy__sts64(to + 8, v2, v3);
            else if (n > 0)
                damacy__exec_store8<S::HAS_PAIRS>(to + (n & 8), n & 8 ? v2 : v0, n & 8 ? v3 : v1,
                                                  n & 7);
        }
        damacy__sync_warp();
    }
}

template <class S>
DAMACY__INLINE void damacy__exec_chunks(uint32_t shared, uint32_t n_chunks, uint64_t frame,
                                        uint64_t literals)
{
    if (S::CHUNK == 8)
        damacy__exec_chunks_short<S>(shared, n_chunks, frame, literals);
    else
        damacy__exec_chunks_long<S>(shared, n_chunks, frame, literals);
}

// Writes the whole units of the tile; what is left of the last one too if nothing follows it. Bytes
// before the frame are another's and are not written.
template <class S>
DAMACY__INLINE void damacy__exec_flush(uint32_t shared, const damacy__exec_frame* f,
                                       const damacy__exec_tile* t, bool all)
{
    const int32_t whole = t->t1 & ~15, tid = (int32_t)threadIdx.x;
    const int32_t begin = t->start < f->begin ? (int32_t)(f->begin - t->start) : 0;
    const int32_t first = begin ? 16 : 0, from = tid * 16 - first;
    const uint32_t end = whole > first ? (uint32_t)(whole - first) : 0;

    DAMACY__EXEC_UNROLL for (int32_t i = 0; i < S::TILE; i += S::THREADS * 16)
    {
        const uint32_t at = (uint32_t)(tid * 16 + i);
        if ((uint32_t)(from + i) < end)
            *(damacy__u32x4*)(uintptr_t)(t->history + at) = damacy__lds128(shared + S::BYTES + at);
    }
    if (!begin && !all)
        return;
    if (begin && tid >= begin && tid < 16 && tid < t->t1 && (all || whole))
        *(uint8_t*)(uintptr_t)(t->history + (uint32_t)tid) =
            (uint8_t)damacy__lds8(shared + S::BYTES + (uint32_t)tid);
    if (all && whole >= first && tid < t->t1 - whole)
        *(uint8_t*)(uintptr_t)(t->history + (uint32_t)(whole + tid)) =
            (uint8_t)damacy__lds8(shared + S::BYTES + (uint32_t)(whole + tid));
}

// What a tile has left in shared memory.
struct damacy__exec_used {
    uint32_t n_own, n_chunks, n_listed;
};

// Clears what a tile has used.
template <class S>
DAMACY__INLINE void damacy__exec_clear(uint32_t shared, const damacy__exec_tile* t,
                                       damacy__exec_used used)
{
    const int32_t tid = (int32_t)threadIdx.x;
    const uint32_t at = 16 * threadIdx.x;
    damacy__u32x4 none;

    none.x = none.y = none.z = none.w = 0;
    if (used.n_own | used.n_chunks) { // else others may still look there
        DAMACY__EXEC_UNROLL for (uint32_t i = 0; i < S::CLEARED;
                                 i += 16 * S::THREADS) if (i + at < S::CLEARED)
            damacy__sts128(shared + S::STARTS + i + at, none);
    }
    if (used.n_listed) {
        none.x = none.y = none.z = none.w = 0xffffffffu;
        if (tid == 0)
            damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_LISTED, 0);
        if (used.n_listed <= S::LISTS) {
            DAMACY__EXEC_NOUNROLL for (uint32_t i = threadIdx.x; i < used.n_listed; i += S::THREADS)
                damacy__sts16(shared + S::LINK + 2 * damacy__lds16(shared + S::LIST + 2 * i),
                              DAMACY__EXEC_ROOT);
        } else {
            DAMACY__EXEC_NOUNROLL for (int32_t i = tid; i * 8 < t->t1; i += S::THREADS)
                damacy__sts128(shared + S::LINK + 16 * (uint32_t)i, none);
        }
    }
}

// The part of a frame that is in the buffer but not yet in the output moves to its front; what the
// tile used is cleared.
template <class S>
DAMACY__INLINE void damacy__exec_turn(uint32_t shared, const damacy__exec_tile* t,
                                      damacy__exec_used used)
{
    const int32_t whole = t->t1 & ~15, tid = (int32_t)threadIdx.x;
    const uint32_t byte = tid < 16 ? damacy__lds8(shared + S::BYTES + (uint32_t)(whole + tid)) : 0;

    damacy__exec_clear<S>(shared, t, used);
    damacy__sync_block();
    if (tid < t->t1 - whole)
        damacy__sts8(shared + S::BYTES + (uint32_t)tid, byte);
    damacy__sync_warp(); // the next tile may begin below: what it writes there comes after
}

// Places the tile that begins at coordinate t0. At the first of a run of blocks, what lies before
// t0 in its unit is fetched from the output.
template <class S>
DAMACY__INLINE void
damacy__exec_tile_begin(damacy__exec_tile* t, uint32_t shared, const damacy__exec_frame* f,
                        const damacy__exec_block* b, uint32_t bound, uint32_t t0, bool is_first)
{
    uint32_t t1 = bound == DAMACY__ZSTD_NONE ? b->end : b->begin + (bound & 0x1ffff);

    t->is_cut = t0 + S::TILE < t1;
    t1 = damacy__min(t1, t0 + S::TILE);
    t->start = t0 & ~15u;
    t->history = f->base + t->start;
    t->t0 = (int32_t)(t0 - t->start);
    t->t1 = (int32_t)(t1 - t->start);
    if (is_first && (int32_t)threadIdx.x < t->t0 && t->start + threadIdx.x >= f->begin)
        damacy__sts8(shared + S::BYTES + threadIdx.x, damacy__exec_byte(t->history + threadIdx.x));
}

// What shared memory holds before the first tile of all.
template <class S> DAMACY__INLINE void damacy__exec_init(uint32_t shared)
{
    uint32_t n_links = (S::LIST - S::LINK) / 4; // not const: nvcc warns of i < 0
    DAMACY__EXEC_NOUNROLL for (uint32_t i = threadIdx.x; i < n_links; i += S::THREADS)
        damacy__sts32(shared + S::LINK + 4 * i, 0xffffffffu);
    DAMACY__EXEC_NOUNROLL for (uint32_t i = threadIdx.x; i < (S::BYTES - S::STARTS) / 4;
                               i += S::THREADS)
        damacy__sts32(shared + S::STARTS + 4 * i, 0); // STARTS, MARKS, CONTROL
}

// The tile's matches that read it. Returns bytes with links. SERIAL's warps take turns, as each
// has a quarter of the multiprocessor that it shares with the same warp of other blocks of threads.
template <class S>
DAMACY__INLINE uint32_t damacy__exec_tile_own(uint32_t shared, const damacy__exec_tile* t,
                                              uint32_t n_own)
{
    if (S::IS_SERIAL) {
        if (threadIdx.x / 32 == t->start / S::TILE % S::WARPS)
            damacy__exec_serial<S>(shared, t->history);
        damacy__sync_block();
        return 0;
    }
    damacy__exec_own<S>(shared, n_own);
    damacy__sync_block();
    const uint32_t n_listed = damacy__lds32(shared + S::CONTROL + DAMACY__EXEC_LISTED);
    if (n_listed) {
        damacy__exec_chase<S, true>(shared, t->history, n_listed);
        damacy__sync_block();
    }
    return n_listed;
}

// Of a tile that ends a block, but for the last: asks whether the frame is given back there.
template <class S>
DAMACY__INLINE void damacy__exec_ask(const damacy__zstd_wave& w, uint32_t shared,
                                     const damacy__exec_frame* f, const damacy__exec_tile* t,
                                     const damacy__exec_block* b)
{
    if (threadIdx.x == 0 && t->start + (uint32_t)t->t1 == b->end && f->block < f->end &&
        f->block >= damacy__lds32(shared + S::TURN + DAMACY__EXEC_UNTIL))
        damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_YIELDS, damacy__turn_is_due(w));
}

// Executes a frame from its block f->block on, to the end or until it is to be given back; then
// f->block is the next one. Returns the block with a bad offset, NONE if there is none.
template <class S>
static __device__ uint32_t damacy__exec_frame_run(const damacy__zstd_wave& w, damacy__exec_frame* f,
                                                  uint32_t shared)
{
    damacy__exec_block b;
    damacy__exec_records<S> r;
    damacy__exec_tile t;
    bool is_first = true;

    damacy__exec_init<S>(shared);
    if (!damacy__exec_block_next(w, f, &b))
        return DAMACY__ZSTD_NONE;
    damacy__exec_load<S>(&r, &b);
    damacy__sync_block();
    for (uint32_t t0 = b.begin;;) { // every pass moves t0 or leaves
        damacy__exec_used used;
        damacy__exec_tile_begin<S>(&t, shared, f, &b, r.bound, t0, is_first);
        damacy__exec_segments<S>(shared, &r, &b, f, &t, 0);
        if (t.t1 <= t.t0)
            damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_BAD, 1);
        damacy__exec_ask<S>(w, shared, f, &t, &b);
        damacy__sync_block();
        const damacy__u32x4 control = damacy__lds128(shared + S::CONTROL);
        if (control.x)
            return f->block - 1;
        const uint32_t t1 = t.start + (uint32_t)t.t1;
        const uint64_t literals = b.literals;
        bool more = true;
        b.next = t.is_cut ? control.y : b.next + S::RECORDS;
        is_first = false;
        if (t1 == b.end) {
            more = !damacy__lds32(shared + S::CONTROL + DAMACY__EXEC_YIELDS) &&
                   damacy__exec_block_next(w, f, &b);
            is_first = more && b.begin != t1;
        }
        if (more)
            damacy__exec_load<S>(&r, &b);
        used.n_own = S::IS_SERIAL ? damacy__exec_owns<S>(shared) : control.z;
        used.n_chunks = control.w & 0xffff;
        used.n_listed = 0;
        damacy__exec_chunks<S>(shared, used.n_chunks, f->base + f->begin, literals);
        if (!S::IS_SERIAL)
            damacy__exec_mark<S>(shared, used.n_own);
        if (used.n_own | used.n_chunks)
            damacy__sync_block();
        if (used.n_own)
            used.n_listed = damacy__exec_tile_own<S>(shared, &t, used.n_own);
        damacy__exec_flush<S>(shared, f, &t, !more || is_first);
        if (!more)
            return DAMACY__ZSTD_NONE;
        damacy__exec_turn<S>(shared, &t, used);
        t0 = is_first ? b.begin : t1;
    }
}

// What a CTA does with a frame whose turn it is. Returns how many of its blocks are done then.
template <class S>
static __device__ uint32_t damacy__exec_frame_turn(const damacy__zstd_wave& w, uint32_t frame,
                                                   uint32_t n_done, uint32_t base)
{
    const damacy__zstd_frame& from = damacy__zstd_frames(w)[frame];
    damacy__exec_frame f;

    f.base = from.dst & ~15ull;
    f.begin = (uint32_t)(from.dst & 15);
    f.block = from.first_block + n_done;
    f.end = from.first_block + from.n_blocks;
    const uint32_t bad = damacy__exec_frame_run<S>(w, &f, base);
    if (bad != DAMACY__ZSTD_NONE && threadIdx.x == 0) {
        const damacy__zstd_block& block = damacy__zstd_blocks(w)[bad];
        damacy__zstd_fail(w, block, block.sequence_src, DAMACY__JOB_BAD_OFFSET);
    }
    damacy__sync_block();
    if (bad != DAMACY__ZSTD_NONE)
        return from.n_blocks;
    if (S::BY_SEQUENCE && f.block == f.end)
        damacy__exec_unfilter(w, frame);
    return f.block - from.first_block;
}

// The frames of a CTA: entries blockIdx.x, blockIdx.x + gridDim.x, ... of the execute list, or
// those that wait or are next in line. What is needed after a frame stays in shared memory, as its
// execution needs all registers.
template <class S>
DAMACY__INLINE void damacy__exec_frames(const damacy__zstd_wave& w, uint32_t variant,
                                        uint32_t whole, uint32_t base)
{
    const uint32_t at = base + S::TURN;
    damacy__u32x4 state; // entry, own entry, blocks that were done, whole

    state.y = blockIdx.x;
    for (;;) {
        damacy__turn turn;
        turn.entry = state.y;
        turn.n_done = 0;
        damacy__sync_block(); // all have read the state of the last frame
        const bool is_open = damacy__turn_is_open(w, whole);
        if (is_open)
            damacy__turn_next(w, state.y, at, &turn);
        if (turn.entry >= damacy__zstd_counts(w)->n_execute)
            return;
        state.x = turn.entry;
        state.z = turn.n_done;
        state.w = whole;
        const uint32_t frame = damacy__turn_frame(w, turn.entry);
        uint32_t n_done = damacy__zstd_frames(w)[frame].n_blocks;
        const uint32_t first = damacy__zstd_frames(w)[frame].first_block + turn.n_done;
        if (threadIdx.x == 0) {
            damacy__sts128(at + DAMACY__EXEC_STATE, state);
            damacy__sts32(at + DAMACY__EXEC_UNTIL,
                          is_open ? first + (n_done + 3) / 4 : DAMACY__ZSTD_NONE);
        }
        if (damacy__exec_variant(w, whole, turn.entry) == variant && !damacy__exec_skip(w, frame))
            n_done = damacy__exec_frame_turn<S>(w, frame, turn.n_done, base);
        damacy__sync_block();
        state = damacy__lds128(at + DAMACY__EXEC_STATE);
        whole = state.w;
        if (threadIdx.x == 0 && damacy__turn_is_open(w, whole))
            damacy__turn_give(w, state.x, state.z, n_done);
        state.y += gridDim.x;
    }
}

// A whole CTA: the frames that belong to this variant. `shared`: DAMACY__ZSTD_EXECUTE_SHARED or
// _SERIAL_SHARED bytes. Grid: any; best one CTA a frame. Shapes for records of sequences are those
// for blosc blocks, whose byte shuffle they undo.
template <class S>
static __device__ void damacy__zstd_execute(const damacy__zstd_wave& w, uint32_t variant,
                                            uint8_t* shared)
{
    const uint32_t base = DAMACY__DYNAMIC_BASE(shared);
    const uint32_t whole = damacy__exec_wave_variant(w);
    const uint32_t n = damacy__zstd_counts(w)->n_execute;

    if (damacy__exec_is_idle(whole, variant))
        return;
    if (base == damacy__shared_address(shared)) {
        damacy__exec_frames<S>(w, variant, whole, base);
        return;
    }
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) // the constant is wrong: better no result
        if (damacy__exec_variant(w, whole, i) == variant)
            damacy__zstd_fail_job(w, damacy__zstd_frames(w)[damacy__turn_frame(w, i)].job, 0,
                                  DAMACY__JOB_UNSUPPORTED);
}

// An entry point for a shape, DAMACY__ZSTD_SHAPE_* and the last template arguments of
// damacy__exec_shape; `per`: CTAs that a multiprocessor is to hold. Dynamic shared memory: the
// shape's SIZE.
#define DAMACY__EXECUTE_ENTRY(name, shape, per, is_serial, by_sequence)                           \
    extern "C" __global__ __launch_bounds__(                                                      \
        damacy__exec_shape<DAMACY__ZSTD_SHAPE_##shape>::THREADS, per) void                        \
    name(damacy__zstd_wave w)                                                                     \
    {                                                                                             \
        typedef damacy__exec_shape<DAMACY__ZSTD_SHAPE_##shape, is_serial, by_sequence> its_shape; \
        DAMACY__DYNAMIC_SHARED(shared);                                                           \
        damacy__zstd_execute<its_shape>(w, DAMACY__ZSTD_EXECUTE_##shape, shared);                 \
    }
