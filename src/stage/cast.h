/* Voxels of one type to voxels of another: the rules, and loops over contiguous rows.
 *
 * The rules; kernels/assemble.cu follows them bit for bit and tests/data/cast_cases.h holds
 * examples:
 *
 *   same type       bits untouched, signalling NaN included; but bool is always 0 or 1
 *   bool to any     a byte that is not 0 is 1
 *   any to bool     x != 0, so NaN is true and -0.0 is false
 *   int to int      clamped to the range of the output
 *   int to float    one rounding, to nearest, ties to even; too large is infinity
 *
 *   float to int    towards zero, then clamped; infinities clamp, NaN is 0
 *
 *   float to float  one rounding, to nearest, ties to even, subnormals kept, too large is infinity.
 *                   NaN stays NaN: its sign and the top bits of its payload are kept, the quiet bit
 *                   is set
 *
 *   byte order      a big-endian source is swapped first
 *
 *   fill            the fill value's bits, in the source type, go through the same conversion
 *
 * Scale and offset (float outputs only): the source goes to f32 by the rules above (bits untouched
 * if it is f32), is multiplied by the scale and rounded, the offset is added and rounded (never
 * fused; a missing scale is 1, a missing offset is 0.0, which turns -0.0 into 0.0), a NaN result
 * becomes 0x7fc00000, and the f32 goes to the output by the rules above.
 *
 * The surprising rule: there is no loop per pair of types. Rows pass through f32, f64, i64 or u64.
 * What f32 cannot hold exactly but must end as f16 or bf16 passes through f32 rounded to odd (the
 * last bit is set when anything was lost), so that the one rounding that counts is the last. */
#pragma once
#include "stage/cast_rows.h"

enum { DAMACY__CAST_STEPS = 4 };

/* A conversion: the output of each step is the source of the next. No step: bits are copied. */
typedef struct damacy__cast {
    damacy__row steps[DAMACY__CAST_STEPS];
    uint32_t sizes[DAMACY__CAST_STEPS]; /* bytes per element after each step */
    uint32_t n_steps;
    uint32_t src_size; /* bytes per element */
    uint32_t out_size;
} damacy__cast;

static void damacy__cast_choose(damacy__cast* cast, damacy_dtype src, damacy_dtype out);
static void damacy__cast_choose_f32(damacy__cast* cast, damacy_dtype src);
static void damacy__cast_choose_from_f32(damacy__cast* cast, damacy_dtype out);

/* Bytes per element. */
static uint32_t damacy__cast_size(damacy_dtype dtype)
{
    static const uint8_t sizes[DAMACY_NATIVE] = {4, 2, 2, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

    return sizes[dtype];
}

static inline void damacy__cast_add(damacy__cast* cast, damacy__row row, uint32_t size)
{
    assert(row && cast->n_steps < DAMACY__CAST_STEPS);
    cast->steps[cast->n_steps] = row;
    cast->sizes[cast->n_steps++] = size;
}

static inline bool damacy__cast_is_float(damacy_dtype dtype)
{
    return dtype <= DAMACY_F64;
}

/* Tables in the order of damacy_dtype: f32 bf16 f16 f64, u8 u16 u32 u64, i8 i16 i32 i64, bool. */

/* To f32 in one step; NULL: f32 itself, and what goes through i64 or u8. */
static damacy__row damacy__row_to_f32(damacy_dtype src)
{
#define DAMACY__TABLE(P)                                                                      \
    {                                                                                         \
        NULL, P(bf16_f32), P(f16_f32), P(f64_f32), P(u8_f32), P(u16_f32), NULL,               \
            damacy__row_u64_f32, P(i8_f32), P(i16_f32), P(i32_f32), damacy__row_i64_f32, NULL \
    }
    static const damacy__row rows[2][DAMACY_NATIVE] = {DAMACY__TABLE(DAMACY__NARROW),
                                                       DAMACY__TABLE(DAMACY__WIDE)};
#undef DAMACY__TABLE

    return rows[damacy__cpu_is_wide()][src];
}

/* To i64; NULL for i64 itself and for floats. bool has become 0 or 1 before. */
static damacy__row damacy__row_to_i64(damacy_dtype src)
{
    static const damacy__row rows[DAMACY_NATIVE] = {NULL,
                                                    NULL,
                                                    NULL,
                                                    NULL,
                                                    damacy__row_u8_i64,
                                                    damacy__row_u16_i64,
                                                    damacy__row_u32_i64,
                                                    damacy__row_u64_i64,
                                                    damacy__row_i8_i64,
                                                    damacy__row_i16_i64,
                                                    damacy__row_i32_i64,
                                                    NULL,
                                                    damacy__row_u8_i64};

    return rows[src];
}

/* From i64 to a narrower whole number, u64 or bool; NULL for i64 itself and for floats. */
static damacy__row damacy__row_from_i64(damacy_dtype out)
{
    static const damacy__row rows[DAMACY_NATIVE] = {NULL,
                                                    NULL,
                                                    NULL,
                                                    NULL,
                                                    damacy__row_i64_u8,
                                                    damacy__row_i64_u16,
                                                    damacy__row_i64_u32,
                                                    damacy__row_i64_u64,
                                                    damacy__row_i64_i8,
                                                    damacy__row_i64_i16,
                                                    damacy__row_i64_i32,
                                                    NULL,
                                                    damacy__row_i64_bool};

    return rows[out];
}

/* Reverses the bytes of elements of 2, 4 or 8 bytes. */
static damacy__row damacy__row_swap(uint32_t size)
{
    return size == 2 ? DAMACY__PICK(swap2) : size == 4 ? DAMACY__PICK(swap4) : DAMACY__PICK(swap8);
}

/* Starts a conversion that first goes to f32, rounded to nearest. */
static void damacy__cast_choose_f32(damacy__cast* cast, damacy_dtype src)
{
    damacy_dtype from = src;

    memset(cast, 0, sizeof *cast);
    cast->src_size = damacy__cast_size(src);
    cast->out_size = sizeof(float);
    if (src == DAMACY_BOOL) {
        damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
        from = DAMACY_U8;
    } else if (src == DAMACY_U32) {
        damacy__cast_add(cast, damacy__row_u32_i64, 8);
        from = DAMACY_I64;
    }
    if (from != DAMACY_F32) {
        damacy__cast_add(cast, damacy__row_to_f32(from), sizeof(float));
    }
}

/* Adds the step from f32 to a float output. */
static void damacy__cast_choose_from_f32(damacy__cast* cast, damacy_dtype out)
{
    cast->out_size = damacy__cast_size(out);
    if (out == DAMACY_F16) {
        damacy__cast_add(cast, DAMACY__PICK(f32_f16), 2);
    } else if (out == DAMACY_BF16) {
        damacy__cast_add(cast, DAMACY__PICK(f32_bf16), 2);
    } else if (out == DAMACY_F64) {
        damacy__cast_add(cast, damacy__row_f32_f64, 8);
    }
}

/* Whole numbers and bool among each other: all through i64. */
static void damacy__cast_choose_int(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    if (src == DAMACY_BOOL) {
        damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
    }
    if (src != DAMACY_I64) {
        damacy__cast_add(cast, damacy__row_to_i64(src), 8);
    }
    if (out != DAMACY_I64) {
        damacy__cast_add(cast, damacy__row_from_i64(out), cast->out_size);
    }
}

/* Floats to whole numbers: f64, then u64, or i64 and narrower. */
static void damacy__cast_choose_truncate(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    if (src != DAMACY_F64) {
        damacy__cast_choose_f32(cast, src);
        damacy__cast_add(cast, damacy__row_f32_f64, 8);
    }
    cast->out_size = damacy__cast_size(out);
    if (out == DAMACY_BOOL) {
        damacy__cast_add(cast, damacy__row_f64_bool, 1);
    } else if (out == DAMACY_U64) {
        damacy__cast_add(cast, damacy__row_f64_u64, 8);
    } else {
        damacy__cast_add(cast, damacy__row_f64_i64, 8);
        if (out != DAMACY_I64) {
            damacy__cast_add(cast, damacy__row_from_i64(out), cast->out_size);
        }
    }
}

/* What f32 does not hold exactly, to another float than f32. False: it does hold the source. */
static bool damacy__cast_choose_wide(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    const bool is_narrow = out != DAMACY_F64;

    if (src == DAMACY_I32 || src == DAMACY_U32) {
        damacy__cast_add(cast, damacy__row_to_i64(src), 8);
    } else if (src != DAMACY_I64 && src != DAMACY_U64 && src != DAMACY_F64) {
        return false;
    }
    if (src == DAMACY_F64) {
        damacy__cast_add(cast, damacy__row_f64_odd, sizeof(float));
    } else if (src == DAMACY_U64) {
        damacy__cast_add(cast, is_narrow ? damacy__row_u64_odd : damacy__row_u64_f64,
                         is_narrow ? sizeof(float) : sizeof(double));
    } else {
        damacy__cast_add(cast, is_narrow ? damacy__row_i64_odd : damacy__row_i64_f64,
                         is_narrow ? sizeof(float) : sizeof(double));
    }
    if (is_narrow) {
        damacy__cast_choose_from_f32(cast, out);
    }
    return true;
}

/* Chooses the steps; neither type is DAMACY_NATIVE. */
static void damacy__cast_choose(damacy__cast* cast, damacy_dtype src, damacy_dtype out)
{
    memset(cast, 0, sizeof *cast);
    cast->src_size = damacy__cast_size(src);
    cast->out_size = damacy__cast_size(out);
    if (src == out) {
        if (src == DAMACY_BOOL) {
            damacy__cast_add(cast, DAMACY__PICK(bool_bool), 1);
        }
    } else if (!damacy__cast_is_float(out)) {
        if (damacy__cast_is_float(src)) {
            damacy__cast_choose_truncate(cast, src, out);
        } else {
            damacy__cast_choose_int(cast, src, out);
        }
    } else if (out == DAMACY_F32 || !damacy__cast_choose_wide(cast, src, out)) {
        damacy__cast_choose_f32(cast, src);
        damacy__cast_choose_from_f32(cast, out);
    }
}
