/* A decimal number as JSON writes it -> the bits of the nearest binary floating-point value.
 *
 * Rounds once, half to even, straight into the wanted format: going through double first would
 * round twice. Exact for any number of digits and any exponent; does not depend on the locale. */
#pragma once
#include "base/base.h"

/* IEEE 754 binary interchange formats, and bfloat16. */
typedef struct damacy__float_format {
    uint32_t n_exponent; /* bits */
    uint32_t n_fraction; /* bits, without the hidden one */
} damacy__float_format;

/* What the text says: 0.d1d2d3... * 10^point. */
typedef struct damacy__decimal {
    uint8_t digits[800]; /* more cannot change the rounding of a double, but for being nonzero */
    uint32_t n;          /* without leading and trailing zeros */
    int64_t point;
    bool is_negative;
    bool has_more; /* a nonzero digit was dropped */
} damacy__decimal;

enum { DAMACY__DECIMAL_LIMBS = 144 }; /* 10^1200 and 64 bits of result */

/* An unsigned integer, 32 bits per limb, lowest first. */
typedef struct damacy__big {
    uint32_t limbs[DAMACY__DECIMAL_LIMBS];
    uint32_t n; /* without leading zeros */
} damacy__big;

static bool damacy__decimal_to_float(damacy__span text, damacy__float_format format,
                                     uint64_t* bits);

static void damacy__decimal_digit(damacy__decimal* decimal, uint8_t digit, bool is_integer)
{
    if (decimal->n == 0 && digit == 0) {
        decimal->point -= !is_integer; /* leading zeros only move the point */
        return;
    }
    decimal->point += is_integer;
    if (decimal->n < sizeof decimal->digits) {
        decimal->digits[decimal->n++] = digit;
    } else {
        decimal->has_more = decimal->has_more || digit != 0;
    }
}

/* text is a JSON number. */
static void damacy__decimal_parse(damacy__decimal* decimal, damacy__span text)
{
    size_t i = 0;
    int64_t exponent = 0;
    bool is_integer = true;
    bool is_negative = false;

    memset(decimal, 0, sizeof *decimal);
    if (text.ptr[0] == '-') {
        decimal->is_negative = true;
        i++;
    }
    for (; i < text.size && (text.ptr[i] | 0x20) != 'e'; i++) {
        if (text.ptr[i] == '.') {
            is_integer = false;
        } else {
            damacy__decimal_digit(decimal, (uint8_t)(text.ptr[i] - '0'), is_integer);
        }
    }
    for (i++; i < text.size; i++) {
        if (text.ptr[i] == '-') {
            is_negative = true;
        } else if (text.ptr[i] != '+' && exponent < INT64_C(100000000000)) {
            exponent = exponent * 10 + (text.ptr[i] - '0');
        }
    }
    decimal->point += is_negative ? -exponent : exponent;
    while (decimal->n > 0 && decimal->digits[decimal->n - 1] == 0) {
        decimal->n--;
    }
}

/* big = big * factor + more. */
static void damacy__big_multiply(damacy__big* big, uint32_t factor, uint32_t more)
{
    uint64_t carry = more;

    for (uint32_t i = 0; i < big->n; i++) {
        carry += (uint64_t)big->limbs[i] * factor;
        big->limbs[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) {
        assert(big->n < DAMACY__DECIMAL_LIMBS);
        big->limbs[big->n++] = (uint32_t)carry;
    }
}

/* big = big / divisor; true when there is a remainder. */
static bool damacy__big_divide(damacy__big* big, uint32_t divisor)
{
    uint64_t rest = 0;

    for (uint32_t i = big->n; i-- > 0;) {
        rest = rest << 32 | big->limbs[i];
        big->limbs[i] = (uint32_t)(rest / divisor);
        rest %= divisor;
    }
    while (big->n > 0 && big->limbs[big->n - 1] == 0) {
        big->n--;
    }
    return rest != 0;
}

/* Shifts up by whole limbs. */
static void damacy__big_raise(damacy__big* big, uint32_t n)
{
    assert(big->n + n <= DAMACY__DECIMAL_LIMBS);
    memmove(big->limbs + n, big->limbs, big->n * sizeof big->limbs[0]);
    memset(big->limbs, 0, n * sizeof big->limbs[0]);
    big->n += n;
}

/* The highest 64 bits, the highest of them set; *exponent is that of the lowest of them. */
static uint64_t damacy__big_top(const damacy__big* big, int32_t* exponent, bool* has_more)
{
    const uint32_t n_zeros = (uint32_t)__builtin_clz(big->limbs[big->n - 1]);
    uint64_t top = 0;
    uint32_t i;

    for (i = 0; i < 2; i++) {
        top = top << 32 | (i < big->n ? big->limbs[big->n - 1 - i] : 0);
    }
    if (n_zeros) {
        const uint32_t third = big->n > 2 ? big->limbs[big->n - 3] : 0;
        top = top << n_zeros | third >> (32 - n_zeros);
        *has_more = *has_more || (uint32_t)(third << n_zeros) != 0;
    } else if (big->n > 2) {
        *has_more = *has_more || big->limbs[big->n - 3] != 0;
    }
    for (i = 3; i < big->n; i++) {
        *has_more = *has_more || big->limbs[big->n - 1 - i] != 0;
    }
    *exponent = (int32_t)big->n * 32 - 64 - (int32_t)n_zeros;
    return top;
}

/* Rounds (top + something below 1 if has_more) * 2^exponent, top's highest bit set. False when it
 * does not fit. */
static bool damacy__float_round(uint64_t top, int32_t exponent, bool has_more,
                                damacy__float_format format, uint64_t* bits)
{
    const int32_t bias = (1 << (format.n_exponent - 1)) - 1;
    const int32_t power = exponent + 63; /* the value is 1.xxx * 2^power */
    const int32_t n_below = power < 1 - bias ? 1 - bias - power : 0; /* subnormal: bits lost */
    const int32_t n_kept = (int32_t)format.n_fraction + 1 - n_below;
    const uint64_t half = UINT64_C(1) << 63;
    uint64_t kept = 0;
    uint64_t rest = top;

    if (n_kept < 0) {
        *bits = 0;
        return true;
    }
    if (n_kept > 0) {
        kept = top >> (64 - n_kept);
        rest = top << n_kept;
    }
    if (rest > half || (rest == half && (has_more || (kept & 1)))) {
        kept++; /* may carry into the exponent, as it should */
    }
    if (n_below == 0) {
        kept += ((uint64_t)(power + bias - 1)) << format.n_fraction;
    }
    *bits = kept;
    return kept >> format.n_fraction < (UINT64_C(1) << format.n_exponent) - 1;
}

/* text is a JSON number. False when its magnitude rounds to infinity. */
static bool damacy__decimal_to_float(damacy__span text, damacy__float_format format, uint64_t* bits)
{
    damacy__decimal decimal;
    damacy__big big;
    int64_t power;
    uint64_t magnitude = 0;
    uint64_t top;
    int32_t exponent;
    uint32_t n_raised = 0;

    damacy__decimal_parse(&decimal, text);
    if (decimal.n > 0 && decimal.point > 400) {
        return false;
    }
    if (decimal.n > 0 && decimal.point >= -400) {
        big.n = 0;
        for (uint32_t i = 0; i < decimal.n; i++) {
            damacy__big_multiply(&big, 10, decimal.digits[i]);
        }
        power = decimal.point - (int64_t)decimal.n; /* value = big * 10^power */
        for (; power > 0; power--) {
            damacy__big_multiply(&big, 10, 0);
        }
        if (power < 0) {
            /* 10^9 < 2^30: enough limbs that more than 64 bits are left after dividing. */
            n_raised = (uint32_t)(-power * 10 / 3 / 32) + 4;
            n_raised -= DAMACY__MIN(n_raised, big.n - 1);
            damacy__big_raise(&big, n_raised);
        }
        for (; power < 0; power = power <= -9 ? power + 9 : power + 1) {
            decimal.has_more |= damacy__big_divide(&big, power <= -9 ? 1000000000 : 10);
        }
        top = damacy__big_top(&big, &exponent, &decimal.has_more);
        exponent -= (int32_t)n_raised * 32;
        if (!damacy__float_round(top, exponent, decimal.has_more, format, &magnitude)) {
            return false;
        }
    }
    if (decimal.is_negative) {
        magnitude |= UINT64_C(1) << (format.n_exponent + format.n_fraction);
    }
    *bits = magnitude;
    return true;
}
