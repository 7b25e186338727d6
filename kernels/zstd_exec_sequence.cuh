// What a thread takes of a tile if records are of sequences: from each a literal run and a match.
//
// Surprising: a record does not say how long its sequence is, which the one after it does. So a
// lane asks the next one, and the last of a warp has none of its own.
#pragma once

#include "kernels/zstd_exec_take.cuh"

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
// tile's first record.
template <class S, bool IS_FIRST>
DAMACY__INLINE void damacy__exec_take_match(damacy__exec_segment* s, uint32_t shared,
                                            const damacy__exec_sequence* q, uint32_t slot,
                                            const damacy__exec_view* v)
{
    const bool repeats = IS_FIRST && threadIdx.x == 0 && !S::IS_RELAY;
    const uint32_t offset = repeats ? damacy__exec_back(q->offset, v->t0 - q->match) : q->offset;
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
    if (late)
        damacy__exec_set_aside<S>(shared, slot + threadIdx.x, to, n, offset, source >= position);
    if (early)
        damacy__exec_put_off<S>(shared, to, n, offset);
}

// The records of a tile. Of a thread's literals and matches one is loaded while the one before is
// stored. IS_CUT: the tile ends inside a record that is loaded, whose index it leaves.
template <class S>
DAMACY__INLINE void damacy__exec_sequences(uint32_t shared, const damacy__exec_records<S>* r,
                                           const damacy__exec_block* b, bool is_cut,
                                           const damacy__exec_view* v)
{
    const uint32_t first = b->next + damacy__exec_first<S>();
    damacy__exec_segment literals, match;

    match.source = match.skew = match.words.w0 = match.words.w1 = match.words.w2 = 0;
    match.to = match.n = 0;
    DAMACY__EXEC_UNROLL for (int32_t u = 0; u < S::SEGMENTS; u++)
    {
        const uint32_t slot = (uint32_t)(u * S::THREADS);
        damacy__exec_sequence q;
        if (!damacy__exec_open<S>(&q, shared, r->record[u], u * S::STEP, is_cut,
                                  first + (uint32_t)(u * S::STEP), v)) { // the last ones
            if (S::IS_SERIAL)
                damacy__exec_owned<S>(shared, (int32_t)slot, false);
            continue;
        }
        damacy__exec_take_literals(&literals, &q, v);
        if (u > 0)
            damacy__exec_put<S>(&match, shared);
        if (u == 0)
            damacy__exec_take_match<S, true>(&match, shared, &q, slot, v);
        else
            damacy__exec_take_match<S, false>(&match, shared, &q, slot, v);
        damacy__exec_put<S>(&literals, shared);
    }
    damacy__exec_put<S>(&match, shared);
}
