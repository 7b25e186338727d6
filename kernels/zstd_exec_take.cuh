// What a thread takes of a tile: records, loaded while the tile before is finished, and the first
// bytes of their segments, which are literal runs and matches.
#pragma once

#include "kernels/zstd_exec_serial.cuh"

// The frame, in coordinates that count from the 16-byte boundary at or before its first byte.
struct damacy__exec_frame {
    uint64_t base;       // address of coordinate 0
    uint32_t begin;      // coordinate of its first byte
    uint32_t block, end; // next block to look at, end of its blocks
};

// A block with sequences and how far it is done.
struct damacy__exec_block {
    uint64_t records, literals; // addresses
    uint32_t begin, end;        // coordinates
    uint32_t n_records, next;   // next: first record of the coming tile
    uint32_t n_literals;
};

// Records of a tile, loaded while the one before is finished. `bound`: the record after the last
// that is loaded, NONE if there is none.
template <class S> struct damacy__exec_records {
    damacy__u32x2 record[S::SEGMENTS];
    uint32_t bound;
};

// A thread's first record, relative to the tile's; the others are S::STEP apart.
template <class S> DAMACY__INLINE uint32_t damacy__exec_first(void)
{
    return S::BY_SEQUENCE ? threadIdx.x - threadIdx.x / 32 : threadIdx.x;
}

// What stands for a record after the last of a block.
template <class S> DAMACY__INLINE damacy__u32x2 damacy__exec_behind(const damacy__exec_block* b)
{
    damacy__u32x2 v;
    v.x = S::BY_SEQUENCE ? ((b->end - b->begin) & 0x1ffff) | b->n_literals << 17 : 0;
    v.y = S::BY_SEQUENCE ? b->n_literals >> 15 : 0;
    return v;
}

template <class S>
DAMACY__INLINE void damacy__exec_load(damacy__exec_records<S>* r, const damacy__exec_block* b)
{
    const int32_t tid = (int32_t)threadIdx.x, left = (int32_t)(b->n_records - b->next);
    const int32_t mine = (int32_t)damacy__exec_first<S>();
    const uint64_t from = b->records + 8ull * (b->next + (uint32_t)mine);
    const uint64_t coming = b->records + 8ull * (b->next + S::RECORDS);
    const damacy__u32x2 behind = damacy__exec_behind<S>(b);

    DAMACY__EXEC_UNROLL for (int32_t u = 0; u < S::SEGMENTS; u++)
    {
        r->record[u] = behind;
        if (u * S::STEP + mine < left)
            r->record[u] = damacy__exec_record(from + 8 * u * S::STEP);
    }
    r->bound = DAMACY__ZSTD_NONE;
    if (S::IS_RELAY) // tiles of their own, and their bounds known
        return;
    if (tid < S::RECORDS / 16 && S::RECORDS + 16 * tid < left) // a line of memory each
        damacy__prefetch_l2((const void*)(uintptr_t)(coming + 128 * threadIdx.x));
    if (S::RECORDS < left)
        r->bound = damacy__exec_record(coming).x;
}

// Moves to the next block with sequences; false at the end of the frame.
DAMACY__INLINE bool damacy__exec_block_next(const damacy__zstd_wave& w, damacy__exec_frame* f,
                                            damacy__exec_block* b)
{
    while (f->block < f->end) {
        const damacy__zstd_block* block = damacy__zstd_blocks(w) + f->block;
        f->block++;
        if (block->type != DAMACY__ZSTD_SEQUENCES || block->dst == 0 || block->size == 0)
            continue;
        b->records = w.records + 8 * block->first_record;
        b->literals = block->literals;
        b->begin = f->begin + block->position;
        b->end = b->begin + block->size;
        b->n_records = block->n_records;
        b->n_literals = block->n_literals;
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
    bool is_cut; // t1 lies inside a block and its loaded records
};

// What the segments of a tile are measured against.
struct damacy__exec_view {
    uint64_t literals, frame; // addresses of the block's literals and of the frame
    int32_t block, t0, t1;    // places of the block and the tile
    uint32_t ahead;           // bytes of the frame before the buffer, modulo 2^32
    int32_t left;             // records from that one on
    uint32_t done;            // RELAY: bytes of the frame that are in the output
};

// A segment: place, bytes (0: none), first words of its source and how many bits of them come
// before it, modulo 32. source: relative to the frame, or LITERALS and relative to the block's
// literals.
#define DAMACY__EXEC_LITERALS 0x80000000u
struct damacy__exec_segment {
    uint32_t source, skew;
    int32_t to, n;
    damacy__exec_words words;
};

// The offset of the match of a tile's first record that has gone on for `gone` bytes before the
// tile. It repeats: its bytes lie as many whole offsets further back as it has gone, too, and that
// far back they are in the output.
DAMACY__INLINE uint32_t damacy__exec_back(uint32_t offset, int32_t gone)
{
    return gone > 0 && offset > 0 ? offset + (uint32_t)gone / offset * offset : offset;
}

// A tile's first record, of a segment, likewise.
DAMACY__INLINE damacy__u32x2 damacy__exec_record_back(damacy__u32x2 record,
                                                      const damacy__exec_view* v)
{
    const int32_t gone = v->t0 - (int32_t)(record.x & 0x1ffff) - v->block;

    if ((int32_t)record.y >= 0)
        record.y = damacy__exec_back(record.y >> 2, gone) << 2 | (record.y & 3);
    return record;
}

// Sets a match aside that reads its tile; is_bad: what is before the frame. `slot`: where, if such
// matches are one warp's.
template <class S>
DAMACY__INLINE void damacy__exec_set_aside(uint32_t shared, uint32_t slot, int32_t to, int32_t n,
                                           uint32_t offset, bool is_bad)
{
    const uint32_t i = S::IS_SERIAL ? slot
                                    : damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_OWNED,
                                                         1, (uint32_t)to >> 16);

    damacy__sts64(shared + S::OWN + 8 * i, (uint32_t)(to | n << 16), offset);
    if (is_bad)
        damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_BAD, 1);
}

// RELAY: of a match whose source is not in the output yet.
template <class S>
DAMACY__INLINE void damacy__exec_put_off(uint32_t shared, int32_t to, int32_t n, uint32_t offset)
{
    const uint32_t i =
        damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_EARLY, 1, (uint32_t)to >> 16);

    damacy__sts64(shared + S::OWN + 8 * (S::RECORDS - 1 - i), (uint32_t)(to | n << 16), offset);
}

// Clips and checks a record, `skip` after the thread's first, and issues the loads of its first 8
// bytes. A match that reads the tile is set aside.
template <class S>
DAMACY__INLINE void damacy__exec_take(damacy__exec_segment* s, uint32_t shared,
                                      damacy__u32x2 record, int32_t skip,
                                      const damacy__exec_view* v)
{
    const int32_t x = (int32_t)(record.x & 0x1ffff) + v->block;
    bool here = skip < v->left && x < v->t1;

    s->n = 0;
    if (!damacy__any(here)) { // most often the last ones
        if (S::IS_SERIAL)
            damacy__exec_owned<S>(shared, skip, false);
        return;
    }
    const uint32_t offset = record.y >> 2;
    const bool literals = (int32_t)record.y < 0;
    const int32_t end = x + (int32_t)(damacy__funnel_right(record.x, record.y, 17) & 0x1ffff) + 1;
    if (S::IS_RELAY) // up to three records before the tile are loaded, too
        here = here && end > v->t0;
    const int32_t to = x > v->t0 ? x : v->t0, n = (end < v->t1 ? end : v->t1) - to;
    const uint32_t position = (uint32_t)to + v->ahead;
    const uint32_t source = literals ? (offset & 0x1ffff) + (uint32_t)(to - x) : position - offset;
    const uint64_t from = (literals ? v->literals : v->frame) + source;
    s->source = source | (record.y & DAMACY__EXEC_LITERALS);
    // An offset of 0, one that leads before the frame, or a source that is not in the output yet.
    const bool late = here && !literals && (source >= position || to + n > (int32_t)offset);
    const bool early = S::IS_RELAY && here && !literals && !late && source + (uint32_t)n > v->done;
    s->n = here && !late && !early ? n : 0;
    s->words = damacy__exec_gather(from, s->n);
    if (S::IS_SERIAL)
        damacy__exec_owned<S>(shared, skip, late);
    if (late)
        damacy__exec_set_aside<S>(shared, (uint32_t)skip + threadIdx.x, to, n, offset,
                                  source >= position);
    if (early)
        damacy__exec_put_off<S>(shared, to, n, offset);
    s->skew = (uint32_t)from * 8;
    s->to = to;
}

// The first 8 bytes of a segment to the tile; the rest to the queue, in chunks whose places 8
// divides.
template <class S>
DAMACY__INLINE void damacy__exec_put(const damacy__exec_segment* s, uint32_t shared)
{
    const int32_t n = s->n;
    const uint32_t to = (uint32_t)s->to, begin = (to + 8) & ~7u;

    damacy__exec_scatter<S::HAS_PAIRS>(shared + S::BYTES + to, s->words, s->skew, n);
    if (n > 8) {
        const uint32_t end = to + (uint32_t)n, size = S::CHUNK;
        const uint32_t chunks = (end - begin + size - 1) / size;
        const uint32_t old = damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_CHUNKED,
                                                1u << 16 | chunks, to >> 16);
        const uint32_t before = old & 0xffff;
        const uint32_t source = s->source + (begin - to) - size * before;
        damacy__sts64(shared + S::QUEUE + 8 * (old >> 16),
                      (source & ~DAMACY__EXEC_LITERALS) | (s->source & DAMACY__EXEC_LITERALS),
                      ((begin - size * before) & 0xffff) | end << 16);
        damacy__shared_or(shared + S::STARTS + before / 32 * 4, 1u << (before & 31));
    }
}
