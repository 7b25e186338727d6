// The parallel part of sequence decoding (RFC 8878 sections 3.1.1.3.2.1.1 and 3.1.1.5): queued
// windows become literal lengths, match lengths and offsets, then records. Split in two halves so
// that two warps alternate: values depend on nothing, sums and repeat offsets do.
#pragma once

#include "kernels/zstd_fse_walk.cuh"

// Words at S::CONSTANTS: bases of LL, bases of ML, choices of an offset, then {choice, what is
// added} by 2 * min(value, 4) + (1 if there are no literals).
#define DAMACY__FSE_CHOICES 89u
#define DAMACY__FSE_PAIRS   94u
#define DAMACY__FSE_WORDS   114u

// A choice: sign bits of its bytes select repeat offset 1, 2, 3 as the start of the new offset and
// say that the history does not move. By value less (1 if there are literals): 0, 1, 2, then "1
// minus 1" and a new offset.
DAMACY__INLINE uint32_t damacy__fse_constant(uint32_t i)
{
    if (i < 36)
        return damacy__fse_base_ll[i];
    if (i < DAMACY__FSE_CHOICES)
        return damacy__fse_base_ml[i - 36];
    const uint32_t pair = (i - DAMACY__FSE_PAIRS) / 2; // 0 and 1: no value is 0
    const uint32_t which = i < DAMACY__FSE_PAIRS  ? i - DAMACY__FSE_CHOICES
                           : pair < 2 || pair > 7 ? 4
                                                  : (pair - 1) / 2;
    if (i >= DAMACY__FSE_PAIRS && i & 1)
        return which == 3 ? 0xffffffffu : 0;
    return which == 0   ? 0x80000080u
           : which == 1 ? 0x8000u
           : which == 2 ? 0x800000u
           : which == 3 ? 0x80u
                        : 0u;
}

// Symbolic offsets count up while an offset is decremented: both are one less.
#define DAMACY__FSE_SYMBOL(k) (DAMACY__ZSTD_D_SYMBOLIC | (uint32_t)(k) << 18 | 0x3ffffu)

// Of a lane, after the batches so far: output position, literals used, repeat offsets. Of records
// of segments `start` is that position less 2^17 and `literals` the high word of a literal record
// less 1: what makes a record one multiplication, see below.
struct damacy__fse_state {
    uint32_t start, literals, r1, r2, r3, n_records;
    uint32_t symbolic;   // bit 31: the block is too long; below: records from here on are plain
    uint32_t min_offset; // 0: an offset was 0
};

template <class S> DAMACY__INLINE void damacy__fse_state_init(damacy__fse_state* s)
{
    s->start = S::BY_SEQUENCE ? 0 : 0u - (1u << 17);
    s->literals = S::BY_SEQUENCE ? 0 : (DAMACY__ZSTD_D_LITERALS << 2) - 1;
    s->r1 = DAMACY__FSE_SYMBOL(0);
    s->r2 = DAMACY__FSE_SYMBOL(1);
    s->r3 = DAMACY__FSE_SYMBOL(2);
    s->n_records = s->symbolic = 0;
    s->min_offset = 0xffffffffu;
}

DAMACY__INLINE void damacy__fse_state_load(damacy__fse_state* s, uint32_t at)
{
    const damacy__u32x4 a = damacy__lds128(at), b = damacy__lds128(at + 16);
    s->start = a.x;
    s->literals = a.y;
    s->r1 = a.z;
    s->r2 = a.w;
    s->r3 = b.x;
    s->n_records = b.y;
    s->symbolic = b.z;
    s->min_offset = b.w;
}

DAMACY__INLINE void damacy__fse_state_save(const damacy__fse_state* s, uint32_t at)
{
    damacy__fse_queue_write(at, s->start, s->literals, s->r1, s->r2);
    damacy__fse_queue_write(at + 16, s->r3, s->n_records, s->symbolic, s->min_offset);
}

// The state with the position and the number of literals themselves.
template <class S> DAMACY__INLINE void damacy__fse_state_open(damacy__fse_state* s)
{
    s->start += S::BY_SEQUENCE ? 0 : 1u << 17;
    if (!S::BY_SEQUENCE)
        s->literals = (s->literals + 1 - (DAMACY__ZSTD_D_LITERALS << 2)) / 4;
}

// A batch between the halves: offset values and lengths.
template <class S> struct damacy__fse_values {
    uint32_t value[S::BATCH], ll[S::BATCH], ml[S::BATCH];
};

// What fills a batch after the last sequence, so that it moves nothing: literal length code 0,
// match length code 57, which stands for nothing (see DAMACY__FSE_WORDS), and repeat offset 2.
#define DAMACY__FSE_FILLER (57u << 18)

// Fills a batch after its sequence `last`. Returns the position after that sequence, whose next
// states do not exist.
template <class S> DAMACY__INLINE uint32_t damacy__fse_end(uint32_t queue, uint32_t last)
{
    const damacy__u32x4 q = damacy__lds128(queue + last * 16 * S::LANES);

    DAMACY__NOUNROLL for (uint32_t k = last + 1; k < S::BATCH; k++)
        damacy__fse_queue_write(queue + k * 16 * S::LANES, q.x, 0, DAMACY__FSE_FILLER, 0);
    return q.x + damacy__fse_entry_parts<S>(q.y).extra + damacy__fse_entry_parts<S>(q.z).extra +
           damacy__fse_entry_parts<S>(q.w).extra;
}

// First half. max_offset: largest offset value. Shifts count modulo 32: (a + width) - width, with
// base bits that do not count. The queue says where windows are: they are still in the ring, as the
// feeder overwrites words three batches later.
template <class S>
DAMACY__INLINE void damacy__fse_extract(damacy__fse_values<S>* o, uint32_t shared, uint32_t queue,
                                        uint32_t* max_offset)
{
    const uint32_t constants = shared + S::CONSTANTS;
    const uint32_t column = 4 * (damacy__lane() & (S::LANES - 1)); // of the ring
    DAMACY__UNROLL for (uint32_t k0 = 0; k0 < S::BATCH; k0 += 8)
    {
        damacy__u32x4 q[8]; // position, entries
        damacy__fse_window v[8];
        DAMACY__UNROLL for (uint32_t i = 0; i < 8; i++) q[i] =
            damacy__lds128(queue + (k0 + i) * 16 * S::LANES);
        DAMACY__UNROLL for (uint32_t i = 0; i < 8; i++)
        {
            v[i] = damacy__fse_window_load<S>(shared + S::RING +
                                              ((q[i].x * S::STEP & S::RING_MASK) | column));
            o->ll[k0 + i] = damacy__lds32(constants + damacy__bytes(q[i].y, 0, 0x4442));
            o->ml[k0 + i] = damacy__lds32(constants + 144 + damacy__bytes(q[i].z, 0, 0x4442));
        }
        DAMACY__UNROLL for (uint32_t i = 0; i < 8; i++)
        {
            const uint32_t at = q[i].x, k = k0 + i;
            const uint32_t hi = damacy__funnel_left(v[i].w1, v[i].w0, at);
            const uint32_t lo = damacy__funnel_left(v[i].w2, v[i].w1, at);
            const uint32_t of = damacy__dot4(q[i].w, 0x010000ff, 0);
            const uint32_t ml = damacy__dot4(q[i].z, 0x010000ff, 0);
            const uint32_t ll = damacy__dot4(q[i].y, 0x010000ff, 0);
            const uint32_t rest = damacy__funnel_left(lo, hi, of); // after the offset's bits
            const uint32_t value = damacy__funnel_left(hi, 1, of);
            const uint32_t last = damacy__funnel_left(lo << (of & 31), rest, ml);
            const uint32_t literals = o->ll[k] + damacy__funnel_left(last, 0, ll);
            o->ml[k] += damacy__funnel_left(rest, 0, ml);
            o->ll[k] = literals;
            o->value[k] = value;
            *max_offset = damacy__max(*max_offset, value);
        }
    }
}

// High word of a slot without a record: no offset and no place of literals is that large.
#define DAMACY__FSE_EMPTY 0xffffffffu

// Address of the two slots of sequence k of the lane whose first are at `records`. Neither those of
// one number nor those of one lane share banks.
template <class S> DAMACY__INLINE uint32_t damacy__fse_slots(uint32_t records, uint32_t k)
{
    return (records ^ (k & 7) * 16) + k * 16 * S::LANES;
}

// Second half: records of the batch, two slots a sequence, at `records` (see damacy__fse_slots),
// and their number in *n. New offset = the repeat offsets that the choice selects + what is added;
// that they are looked up here and not before makes the halves equally long. A record of a segment
// is start + (length - 1) * 2^17 + D * 2^34, so from `start` - 2^17 it is a multiplication of 32
// bits to 64. A run without bytes leaves its slot empty, and so do the literals of a record of a
// sequence. Nothing here asks how many sequences there are: what follows the last one of the block,
// up to the end of the batch, has no literals, no length and repeat offset 2, so that it moves
// nothing, leaves slots that are not looked at, and exchanges repeat offsets 1 and 2, which the end
// of the block undoes.
template <class S>
DAMACY__INLINE void damacy__fse_emit(damacy__fse_state* s, const damacy__fse_values<S>* in,
                                     uint32_t shared, uint32_t records, uint32_t left, uint32_t* n)
{
    const uint32_t pairs = shared + S::CONSTANTS + 4 * DAMACY__FSE_PAIRS;
    damacy__u32x2 v[S::BATCH]; // choice, what is added
    const bool symbolic = damacy__max(damacy__max(s->r1, s->r2), s->r3) >= DAMACY__ZSTD_D_SYMBOLIC;
    uint32_t n_runs = 0;

    DAMACY__UNROLL for (uint32_t k = 0; k < S::BATCH; k++)
    {
        v[k] = damacy__lds64(pairs + 16 * damacy__min(in->value[k], 4) + (in->ll[k] ? 0 : 8));
        v[k].y += damacy__max(in->value[k], 3) - 3;
    }
    DAMACY__UNROLL for (uint32_t k = 0; k < S::BATCH; k++)
    {
        const uint32_t choice = v[k].x, ll = in->ll[k], ml = in->ml[k];
        const uint32_t use1 = damacy__bytes(choice, 0, 0x8888),
                       use2 = damacy__bytes(choice, 0, 0x9999);
        const uint32_t use3 = damacy__bytes(choice, 0, 0xaaaa),
                       still = damacy__bytes(choice, 0, 0xbbbb);
        const uint32_t still3 = still | use2;
        const uint32_t offset = ((s->r1 & use1) | (s->r2 & use2) | (s->r3 & use3)) + v[k].y;
        const uint32_t match = s->start + ll;
        const uint64_t run = (uint64_t)ll * 131072u + ((uint64_t)s->literals << 32 | s->start);
        const uint64_t copy = (uint64_t)ml * 131072u + ((uint64_t)(offset * 4 - 1) << 32 | match);
        const uint64_t both =
            (uint64_t)s->literals * 131072u + ((uint64_t)(offset * 4) << 32 | s->start);
        const uint64_t record = S::BY_SEQUENCE ? both : copy;
        damacy__fse_queue_write(damacy__fse_slots<S>(records, k), (uint32_t)run,
                                ll && !S::BY_SEQUENCE ? (uint32_t)(run >> 32) : DAMACY__FSE_EMPTY,
                                (uint32_t)record, (uint32_t)(record >> 32));
        s->r3 = (s->r3 & still3) | (s->r2 & ~still3);
        s->r2 = (s->r2 & still) | (s->r1 & ~still);
        s->r1 = offset;
        s->start = match + ml;
        s->literals += S::BY_SEQUENCE ? ll : 4 * ll;
        s->min_offset = damacy__min(s->min_offset, offset);
        n_runs += ll && !S::BY_SEQUENCE ? 1 : 0;
    }
    *n = n_runs + damacy__min(left, S::BATCH);
    s->n_records += *n;
    if (symbolic)
        s->symbolic = (s->symbolic & 0x80000000u) | s->n_records;
    // Sticky: lengths of a batch sum to less than 2^23.
    if (s->start + (S::BY_SEQUENCE ? 0 : 1u << 17) - 1 >= 1u << 17)
        s->symbolic |= 0x80000000u;
}

// Copies the records of a batch from their slots to device memory, a block at a time; third `part`
// of the blocks.
template <class S>
DAMACY__INLINE void damacy__fse_copy_slots(uint32_t shared, uint32_t batch, uint32_t part)
{
    constexpr uint32_t ONCE = S::LANES < 4 ? S::LANES : 4;
    const uint32_t k = damacy__lane(), below = (1u << k) - 1;
    const uint32_t infos = shared + S::COPY + (batch & 1) * 16 * S::LANES;
    const uint32_t records = shared + S::RECORDS + (batch & 1) * S::RECORDS_SIZE;
    static_assert(S::WIDE || 2 * S::BATCH <= 32, "a lane a slot");

    DAMACY__NOUNROLL for (uint32_t j0 = part * ONCE; j0 < S::LANES; j0 += 3 * ONCE)
    {
        damacy__u32x4 info[ONCE];
        damacy__u32x2 v[ONCE];
        DAMACY__UNROLL for (uint32_t u = 0; u < ONCE; u++)
        {
            info[u] = damacy__lds128(infos + 16 * (j0 + u));
            v[u] = damacy__lds64(damacy__fse_slots<S>(records + 16 * (j0 + u), k / 2 % S::BATCH) +
                                 8 * (k & 1));
        }
        DAMACY__UNROLL for (uint32_t u = 0; u < ONCE; u++)
        {
            const uint64_t to = (uint64_t)info[u].y << 32 | info[u].x;
            const bool here = v[u].y != DAMACY__FSE_EMPTY && k < 2 * info[u].w;
            const uint32_t at = damacy__popc(damacy__ballot(here) & below);
            if (here && at < info[u].z)
                ((uint64_t*)(uintptr_t)to)[at] = (uint64_t)v[u].y << 32 | v[u].x;
        }
    }
}

// The same in the wide shape, where records lie one after another, rotated by the block.
template <class S>
DAMACY__INLINE void damacy__fse_copy_out(uint32_t shared, uint32_t batch, uint32_t part)
{
    constexpr uint32_t ONCE = S::LANES < 4 ? S::LANES : 4;
    constexpr uint32_t EACH = (2 * S::BATCH + 31) / 32; // a block has at most 2 * BATCH records
    const uint32_t k = damacy__lane();
    const uint32_t infos = shared + S::COPY + (batch & 1) * 16 * S::LANES;
    const uint32_t records =
        shared + S::RECORDS + (batch & (S::RECORDS_PARTS - 1)) * S::RECORDS_SIZE;

    DAMACY__NOUNROLL for (uint32_t j0 = part * ONCE; j0 < S::LANES; j0 += 3 * ONCE)
    {
        damacy__u32x4 info[ONCE];
        damacy__u32x2 v[ONCE][EACH];
        DAMACY__UNROLL for (uint32_t u = 0; u < ONCE; u++)
        {
            const uint32_t j = j0 + u;
            info[u] = damacy__lds128(infos + 16 * j);
            DAMACY__UNROLL for (uint32_t e = 0; e < EACH; e++) v[u][e] = damacy__lds64(
                records + j * S::RECORDS_LANE + ((j + k + 32 * e) * 8 & (S::RECORDS_LANE - 8)));
        }
        DAMACY__UNROLL for (uint32_t u = 0; u < ONCE; u++)
        {
            uint64_t* to = (uint64_t*)(uintptr_t)((uint64_t)info[u].y << 32 | info[u].x);
            DAMACY__UNROLL for (uint32_t e = 0; e < EACH; e++)
            {
                if (k + 32 * e < info[u].z)
                    to[k + 32 * e] = (uint64_t)v[u][e].y << 32 | v[u][e].x;
            }
        }
    }
}
