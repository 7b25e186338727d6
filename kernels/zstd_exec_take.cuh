// What a thread takes of a tile: sequences from their records, clipped, and the first bytes of their
// literals and matches.
//
// Surprising: a record does not say how long its sequence is, which the one after it does. So a lane
// asks the next one, and the last of a warp has none of its own.
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
    damacy__u32x2 last; // what stands for the record after the last
};

// Records of a tile, loaded while the one before is finished. `bound`: the record after the last
// that is loaded, NONE if there is none.
template <class S> struct damacy__exec_records {
    damacy__u32x2 record[S::SEGMENTS];
    uint32_t bound;
};

// A thread's first record, relative to the tile's; the others are STEP apart.
DAMACY__INLINE uint32_t damacy__exec_first(void)
{
    return threadIdx.x - threadIdx.x / 32;
}

template <class S>
DAMACY__INLINE void damacy__exec_load(damacy__exec_records<S>* r, const damacy__exec_block* b)
{
    const int32_t tid = (int32_t)threadIdx.x, left = (int32_t)(b->n_records - b->next);
    const uint32_t mine = damacy__exec_first();
    const uint64_t from = b->records + 8ull * (b->next + mine);

    DAMACY__EXEC_UNROLL for (int32_t u = 0; u < S::SEGMENTS; u++)
    {
        r->record[u] = b->last;
        if (u * S::STEP + (int32_t)mine < left)
            r->record[u] = damacy__exec_record(from + 8 * u * S::STEP);
    }
    r->bound = DAMACY__ZSTD_NONE;
    if (S::IS_RELAY) // tiles of their own, and their bounds known
        return;
    if (tid < S::RECORDS / 16 && S::RECORDS + 16 * tid < left) // a line of memory each
        damacy__prefetch_l2((const void*)(uintptr_t)(b->records + 8ull * (b->next + S::RECORDS) +
                                                   128 * threadIdx.x));
    if (S::RECORDS < left)
        r->bound = damacy__exec_record(b->records + 8ull * (b->next + S::RECORDS)).x;
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
        b->last.x = (block->size & 0x1ffff) | block->n_literals << 17;
        b->last.y = block->n_literals >> 15;
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

// A sequence: places of its literals and behind them of its match; the place of its literals among
// the block's, and the offset of the match.
struct damacy__exec_sequence {
    int32_t begin, match, end; // the same if it is not there
    uint32_t literals, offset;
};

// From a record, `skip` after the thread's first, and the one after it. The whole warp calls this.
// IS_CUT: leaves the index of the record in which the tile ends.
template <class S>
DAMACY__INLINE bool damacy__exec_open(damacy__exec_sequence* q, uint32_t shared,
                                      damacy__u32x2 record, int32_t skip, bool is_cut,
                                      uint32_t next, const damacy__exec_view* v)
{
    damacy__u32x2 after;
    after.x = damacy__shfl_down(record.x, 1);
    after.y = damacy__shfl_down(record.y, 1);
    const uint32_t literals = damacy__funnel_right(record.x, record.y, 17) & 0x1ffff;
    const uint32_t n_literals =
        ((damacy__funnel_right(after.x, after.y, 17) & 0x1ffff) - literals) & 0x1ffff;
    const uint32_t n = ((after.x - record.x - 1) & 0x1ffff) + 1;
    const int32_t begin = (int32_t)(record.x & 0x1ffff) + v->block;
    const bool has = damacy__lane() < 31 && skip < v->left, here = has && begin < v->t1;

    if (is_cut && has && (uint32_t)(v->t1 - begin) < n)
        damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_NEXT, next);
    q->begin = begin;
    q->match = here ? begin + (int32_t)n_literals : begin;
    q->end = here ? begin + (int32_t)n : begin;
    q->literals = literals;
    q->offset = record.y >> 2;
    return damacy__any(here);
}

// Clips the literals of a sequence, and issues the loads of their first 8 bytes.
DAMACY__INLINE void damacy__exec_take_literals(damacy__exec_segment* s,
                                               const damacy__exec_sequence* q,
                                               const damacy__exec_view* v)
{
    const int32_t to = q->begin > v->t0 ? q->begin : v->t0;
    const int32_t n = (q->match < v->t1 ? q->match : v->t1) - to;
    const uint32_t source = q->literals + (uint32_t)(to - q->begin);
    const uint64_t from = v->literals + source;

    s->source = source | DAMACY__EXEC_LITERALS;
    s->skew = (uint32_t)from * 8;
    s->to = to;
    s->n = n > 0 ? n : 0;
    s->words = damacy__exec_gather(from, s->n);
}

// The same of its match, which is checked; one that reads the tile is set aside. IS_FIRST: of the
// tile's first record. Where that match has gone on since before the tile it repeats: its bytes lie
// as many whole offsets further back as it has gone, too, and that far back they are in the output.
template <class S, bool IS_FIRST>
DAMACY__INLINE void damacy__exec_take_match(damacy__exec_segment* s, uint32_t shared,
                                            const damacy__exec_sequence* q, uint32_t slot,
                                            const damacy__exec_view* v)
{
    uint32_t offset = q->offset;
    if (IS_FIRST && !S::IS_RELAY && threadIdx.x == 0 && q->match < v->t0 && offset > 0)
        offset += (uint32_t)(v->t0 - q->match) / offset * offset;
    const int32_t to = q->match > v->t0 ? q->match : v->t0;
    const int32_t n = (q->end < v->t1 ? q->end : v->t1) - to;
    const bool here = n > 0;
    const uint32_t position = (uint32_t)to + v->ahead, source = position - offset;
    const uint64_t from = v->frame + source;
    // An offset of 0, one that leads before the frame, or a source that is not in the output yet.
    const bool late = here && (source >= position || to + n > (int32_t)offset);
    const bool early = S::IS_RELAY && here && !late && source + (uint32_t)n > v->done;

    s->source = source;
    s->skew = (uint32_t)from * 8;
    s->to = to;
    s->n = here && !late && !early ? n : 0;
    s->words = damacy__exec_gather(from, s->n);
    if (S::IS_SERIAL)
        damacy__exec_owned<S>(shared, (int32_t)slot, late);
    if (late) {
        const uint32_t i = S::IS_SERIAL
                               ? slot + threadIdx.x
                               : damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_OWNED, 1,
                                                    (uint32_t)to >> 16);
        damacy__sts64(shared + S::OWN + 8 * i, (uint32_t)(to | n << 16), offset);
        if (source >= position)
            damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_BAD, 1);
    }
    if (early) {
        const uint32_t i =
            damacy__exec_count(shared + S::CONTROL + DAMACY__EXEC_EARLY, 1, (uint32_t)to >> 16);
        damacy__sts64(shared + S::OWN + 8 * (S::RECORDS - 1 - i), (uint32_t)(to | n << 16), offset);
    }
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
