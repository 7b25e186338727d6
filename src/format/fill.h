/* fill_value of array metadata -> its exact bits in the array's type.
 *
 * Integers never pass through a floating-point number, and floating-point values are rounded once,
 * into their own type. A value that the type cannot hold is refused, not clipped. */
#pragma once
#include "base/error.h"
#include "format/decimal.h"
#include "format/dtype.h"
#include "format/json.h"

static damacy_status damacy__fill_parse(const damacy__json* json, uint32_t value,
                                        const damacy__dtype* type, uint64_t* bits,
                                        damacy_error* err);

static bool damacy__dtype_is_float(damacy_dtype dtype)
{
    return dtype == DAMACY_F16 || dtype == DAMACY_BF16 || dtype == DAMACY_F32 ||
           dtype == DAMACY_F64;
}

static damacy__float_format damacy__fill_format(damacy_dtype dtype)
{
    damacy__float_format format;

    format.n_exponent = dtype == DAMACY_F16 ? 5 : dtype == DAMACY_F64 ? 11 : 8;
    format.n_fraction = (uint32_t)damacy__dtype_size(dtype) * 8 - 1 - format.n_exponent;
    return format;
}

/* A number without exponent and with only zeros after the point, within the type. Both forms occur:
 * writers that keep everything as doubles say 0.0. */
static bool damacy__fill_integer(damacy__span text, damacy_dtype dtype, uint64_t* bits)
{
    const bool is_signed =
        dtype == DAMACY_I8 || dtype == DAMACY_I16 || dtype == DAMACY_I32 || dtype == DAMACY_I64;
    const uint32_t n_bits = (uint32_t)damacy__dtype_size(dtype) * 8;
    const uint64_t mask = n_bits == 64 ? UINT64_MAX : (UINT64_C(1) << n_bits) - 1;
    const bool is_negative = text.ptr[0] == '-';
    const uint64_t limit = is_signed ? (mask >> 1) + is_negative : is_negative ? 0 : mask;
    uint64_t number = 0;
    size_t i = is_negative;

    for (; i < text.size && damacy__json_is_digit(text.ptr[i]); i++) {
        if (!damacy__mul(number, 10, &number) ||
            !damacy__add(number, (uint64_t)(text.ptr[i] - '0'), &number)) {
            return false;
        }
    }
    if (i < text.size && text.ptr[i] == '.') {
        for (i++; i < text.size && text.ptr[i] == '0'; i++) {
        }
    }
    if (i < text.size || number > limit) {
        return false;
    }
    *bits = (is_negative ? 0 - number : number) & mask;
    return true;
}

/* NaN, Infinity, -Infinity, or the bits as 0x and 1 to 2 * size hexadecimal digits. */
static bool damacy__fill_float_name(const char* text, size_t size, damacy_dtype dtype,
                                    uint64_t* bits)
{
    const damacy__float_format format = damacy__fill_format(dtype);
    const uint64_t infinity = ((UINT64_C(1) << format.n_exponent) - 1) << format.n_fraction;
    uint64_t number = 0;

    if (size == 3 && memcmp(text, "NaN", 3) == 0) {
        *bits = infinity | UINT64_C(1) << (format.n_fraction - 1);
        return true;
    }
    if (size == 8 && memcmp(text, "Infinity", 8) == 0) {
        *bits = infinity;
        return true;
    }
    if (size == 9 && memcmp(text, "-Infinity", 9) == 0) {
        *bits = infinity | UINT64_C(1) << (format.n_exponent + format.n_fraction);
        return true;
    }
    if (size < 3 || size > 2 + 2 * damacy__dtype_size(dtype) || memcmp(text, "0x", 2) != 0) {
        return false;
    }
    for (size_t i = 2; i < size; i++) {
        const uint8_t c = (uint8_t)text[i];
        const uint8_t lower = c | 0x20;
        if (!damacy__json_is_digit(c) && (lower < 'a' || lower > 'f')) {
            return false;
        }
        number = number << 4 | (uint64_t)(damacy__json_is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    *bits = number;
    return true;
}

/* Raw types: an array of bytes. */
static bool damacy__fill_raw(const damacy__json* json, uint32_t value, damacy_dtype dtype,
                             uint64_t* bits)
{
    uint64_t number = 0;
    uint32_t i = 0;

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, value) != damacy__dtype_size(dtype)) {
        return false;
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v), i++) {
        uint64_t byte;
        if (!damacy__json_u64(json, v, &byte) || byte > 255) {
            return false;
        }
        number |= byte << 8 * i;
    }
    *bits = number;
    return true;
}

/* text is a JSON number. */
static bool damacy__fill_number(damacy__span text, const damacy__dtype* type, uint64_t* bits)
{
    if (damacy__dtype_is_float(type->dtype)) {
        return damacy__decimal_to_float(text, damacy__fill_format(type->dtype), bits);
    }
    return damacy__fill_integer(text, type->dtype, bits) &&
           (type->dtype != DAMACY_BOOL || *bits <= 1);
}

static bool damacy__fill_bits(const damacy__json* json, uint32_t value, const damacy__dtype* type,
                              uint64_t* bits)
{
    const damacy__json_kind kind = damacy__json_kind_of(json, value);

    if (type->is_raw) {
        return damacy__fill_raw(json, value, type->dtype, bits);
    }
    if (type->dtype == DAMACY_BOOL && (kind == DAMACY__JSON_TRUE || kind == DAMACY__JSON_FALSE)) {
        *bits = kind == DAMACY__JSON_TRUE;
        return true;
    }
    if (kind == DAMACY__JSON_NUMBER) {
        return damacy__fill_number(damacy__json_source(json, value), type, bits);
    }
    if (damacy__dtype_is_float(type->dtype) && kind == DAMACY__JSON_STRING) {
        char text[24];
        const size_t size = damacy__json_decode(json, value, text, sizeof text);
        return size <= sizeof text && damacy__fill_float_name(text, size, type->dtype, bits);
    }
    if (damacy__dtype_is_float(type->dtype) && kind == DAMACY__JSON_NONFINITE) {
        const damacy__span text = damacy__json_source(json, value);
        return damacy__fill_float_name((const char*)text.ptr, text.size, type->dtype, bits);
    }
    return false;
}

/* bits: little-endian, in the low bytes. null, which some writers store, means 0. */
static damacy_status damacy__fill_parse(const damacy__json* json, uint32_t value,
                                        const damacy__dtype* type, uint64_t* bits,
                                        damacy_error* err)
{
    uint64_t parsed = 0;
    char text[64];

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_NULL &&
        !damacy__fill_bits(json, value, type, &parsed)) {
        return damacy__fail(err, DAMACY_DECODE, "fill_value %s is not a value of type %s",
                            damacy__json_show(json, value, text, sizeof text), type->name);
    }
    *bits = parsed;
    return DAMACY_OK;
}
