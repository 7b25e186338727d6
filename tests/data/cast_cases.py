#!/usr/bin/env python3
"""Writes tests/data/cast_cases.h: conversions of single voxels, worked out with exact rationals.

    tests/data/cast_cases.py > tests/data/cast_cases.h

The rules are those at the top of src/stage/cast.h. Nothing here is floating point: values are Fractions,
formats are (exponent bits, mantissa bits).
"""
from fractions import Fraction

FLOATS = {"F32": (8, 23), "BF16": (8, 7), "F16": (5, 10), "F64": (11, 52)}
INTS = {"U8": (8, 0), "U16": (16, 0), "U32": (32, 0), "U64": (64, 0),
        "I8": (8, 1), "I16": (16, 1), "I32": (32, 1), "I64": (64, 1)}
TYPES = [*FLOATS, *INTS, "BOOL"]


def width(t):
    return 8 if t == "BOOL" else INTS[t][0] if t in INTS else 1 + sum(FLOATS[t])


def decode(t, bits):
    """A Fraction, or ('inf', sign), or ('nan', sign, payload, payload bits), or ('-0',)."""
    if t == "BOOL":
        return Fraction(bits != 0)
    if t in INTS:
        n, signed = INTS[t]
        return Fraction(bits - (1 << n) if signed and bits >> (n - 1) else bits)
    e, m = FLOATS[t]
    sign, exponent, mantissa = bits >> (e + m), bits >> m & ((1 << e) - 1), bits & ((1 << m) - 1)
    bias = (1 << (e - 1)) - 1
    if exponent == (1 << e) - 1:
        return ("nan", sign, mantissa, m) if mantissa else ("inf", sign)
    if exponent == 0 and mantissa == 0 and sign:
        return ("-0",)
    value = Fraction(mantissa + ((1 << m) if exponent else 0)) * Fraction(2) ** (max(exponent, 1) - bias - m)
    return -value if sign else value


def round_even(q):
    down = q.numerator // q.denominator
    rest = q - down
    return down + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and down & 1))


def encode(t, value):
    if t == "BOOL":
        return 0 if value == ("-0",) or value == 0 else 1
    if t in INTS:
        n, signed = INTS[t]
        low, high = (-(1 << (n - 1)), (1 << (n - 1)) - 1) if signed else (0, (1 << n) - 1)
        if isinstance(value, tuple):
            value = {"nan": 0, "-0": 0, "inf": low if value[-1] else high}[value[0]]
        whole = abs(value).__floor__() * (-1 if value < 0 else 1)
        return min(max(whole, low), high) & ((1 << n) - 1)
    e, m = FLOATS[t]
    infinity = ((1 << e) - 1) << m
    if isinstance(value, tuple):
        if value[0] == "-0":
            return 1 << (e + m)
        if value[0] == "inf":
            return value[1] << (e + m) | infinity
        _, sign, payload, n = value
        payload = payload >> (n - m) if n >= m else payload << (m - n)
        return sign << (e + m) | infinity | payload | 1 << (m - 1)
    sign, value = value < 0, abs(value)
    bias = (1 << (e - 1)) - 1
    exponent = 1 - bias
    while value >= Fraction(2) ** (exponent + 1) and exponent <= bias:
        exponent += 1
    mantissa = round_even(value / Fraction(2) ** (exponent - m))
    bits = mantissa + ((exponent + bias - 1) << m) if mantissa >= 1 << m or exponent > 1 - bias else mantissa
    return sign << (e + m) | min(bits, infinity)


def convert(src, out, bits):
    if src == out and src != "BOOL":
        return bits
    return encode(out, decode(src, bits))


def affine(src, out, bits, scale, offset):
    x = convert(src, "F32", bits)
    y = arithmetic(arithmetic(x, scale, True), offset, False)
    if y & 0x7FFFFFFF > 0x7F800000:
        y = 0x7FC00000
    return convert("F32", out, y)


def arithmetic(a, b, is_product):
    """One f32 operation; any NaN is fine as the result, as the rule replaces it."""
    x, y = decode("F32", a), decode("F32", b)
    signs = (a >> 31, b >> 31)
    kinds = [v[0] if isinstance(v, tuple) else "0" if v == 0 else "n" for v in (x, y)]
    kinds = ["0" if k == "-0" else k for k in kinds]
    if "nan" in kinds:
        return 0x7FC00000
    if is_product:
        if "inf" in kinds:
            return 0x7FC00000 if "0" in kinds else (signs[0] ^ signs[1]) << 31 | 0x7F800000
        if "0" in kinds:
            return (signs[0] ^ signs[1]) << 31
        return encode("F32", x * y) or (signs[0] ^ signs[1]) << 31
    if "inf" in kinds:
        if kinds == ["inf", "inf"] and signs[0] != signs[1]:
            return 0x7FC00000
        return a if kinds[0] == "inf" else b
    x, y = (Fraction(0) if k == "0" else v for k, v in zip(kinds, (x, y)))
    if x == 0 and y == 0:
        return (signs[0] & signs[1]) << 31
    return encode("F32", x + y)


def specials(t):
    """Zeros, ends of the range, infinities and NaN."""
    top = 1 << (width(t) - 1)
    if t not in FLOATS:
        return [0, 1, 2, top - 1, top, 2 * top - 1]
    e, m = FLOATS[t]
    infinity = ((1 << e) - 1) << m
    rest = [0, 1, (1 << m) - 1, 1 << m, infinity - 1, infinity, infinity + 1, infinity | 1 << (m - 1),
            infinity | 1 << (m // 2), infinity | ((1 << m) - 1)]
    return rest + [b | top for b in rest]


def inputs(t):
    if t == "BOOL":
        return [0, 1, 2, 0x80, 0xFF]
    n = width(t)
    top = 1 << (n - 1)
    if t in INTS:
        bits = {0, 1, 2, 3, 5, 0x7F, 0x80, 0x81, 0xFE, 0xFF, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2}
        for power in (7, 8, 9, 10, 11, 12, 15, 16, 24, 25, 31, 32, 33, 40, 48, 53, 54, 62, 63):
            for delta in (-1, 0, 1):
                bits |= {(1 << power) + delta, -((1 << power) + delta)}
        for power in (8, 11, 24, 40, 53, 62):  # ties, and just beside them, for every mantissa
            for m in (7, 10, 23, 52):
                half = 1 << (power - m - 1) if power > m else 0
                for odd in (0, 1):
                    tie = (1 << power) + half * (1 + 2 * odd)
                    bits |= {tie - 1, tie, tie + 1, -tie}
        bits |= {65504, 65519, 65520, 65521, 65535}
        return sorted({b & ((1 << n) - 1) for b in bits})
    e, m = FLOATS[t]
    bits = {2, 3, (1 << m) + 1}
    for value in (Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(255, 2), Fraction(511, 2), 127, 128, 129,
                  255, 256, 257, 32767, 32768, 65504, 65519, 65520, 65535, 65536, (1 << 24) - 1, (1 << 24) + 1,
                  (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1, 1 << 32, 1 << 53, 1 << 63, (1 << 63) - 1,
                  1 << 64, Fraction(1, 1 << 14), Fraction(1, 1 << 15), Fraction(1, 1 << 24), Fraction(1, 1 << 25),
                  Fraction(3, 1 << 25), Fraction(1, 1 << 26), Fraction(1, 1 << 126), Fraction(1, 1 << 133),
                  Fraction(1, 1 << 134), Fraction(3, 1 << 134), Fraction(1, 1 << 149), Fraction(1, 1 << 150)):
        at = encode(t, Fraction(value))
        bits |= {b for b in (at - 1, at, at + 1) if b >= 0}
    for out in ("F32", "BF16", "F16"):  # ties of the narrower formats, and just beside them
        if FLOATS[out][1] < m:
            drop = m - FLOATS[out][1]
            for base in (encode(t, Fraction(1)), encode(t, Fraction(1025, 1 << 20)), encode(t, Fraction(60000))):
                tie = (base >> drop << drop) | 1 << (drop - 1)
                for odd in (0, 1 << drop):
                    bits |= {tie + odd - 1, tie + odd, tie + odd + 1}
    return sorted(bits | {b | top for b in bits})


def lines(cases):
    line = ""
    for case in cases:
        if len(line) + len(case) > 100:
            print(line)
            line = ""
        line += case
    print(line)


def main():
    print("/* Conversions of single voxels, worked out with exact rationals by tests/data/cast_cases.py;")
    print(" * the rules are at the top of src/stage/cast.h. Written by that script: do not edit. */")
    print("#ifndef DAMACY_TEST_CAST_CASES_H\n#define DAMACY_TEST_CAST_CASES_H\n#include <stdint.h>\n")
    print("/* Voxel bits of type src become out_bits of type out; types are numbers of damacy_dtype. */")
    print("typedef struct cast_case {\n    uint8_t src;\n    uint8_t out;\n    uint64_t bits;\n    uint64_t out_bits;\n} cast_case;\n")
    print("static const cast_case cast_cases[] = {")
    cases = []
    for s, src in enumerate(TYPES):
        for o, out in enumerate(TYPES):
            seen = {}
            for bits in inputs(src):
                seen.setdefault((convert(src, out, bits)), []).append(bits)
            # Where many inputs give one output, its first and last input and one between say it all.
            chosen = sorted({b for v in seen.values() for b in (v[0], v[-1])})
            limit = 1 if src == out else 40 if out in ("BF16", "F16") else 12
            step = max(1, -(-len(chosen) // limit))
            cases += [f"{{{s},{o},0x{b:x}u,0x{convert(src, out, b):x}u}}," for b in sorted({*chosen[::step], *specials(src)})]
    lines(cases)
    print("};\n")
    print("/* The same with scale and offset (bits of f32) in between. */")
    print("typedef struct cast_affine_case {\n    uint8_t src;\n    uint8_t out;\n    uint32_t scale;\n    uint32_t offset;\n    uint64_t bits;\n    uint64_t out_bits;\n} cast_affine_case;\n")
    print("static const cast_affine_case cast_affine_cases[] = {")
    pairs = [(0x3F800000, 0), (0x3F800000, 0x80000000), (0x3DCCCCCD, 0xBF800000), (0x3F800001, 0xBF800001),
             (0xC0490FDB, 0x402DF854), (0x7F000000, 0x7F7FFFFF), (0x00800000, 0x00000001), (0x7F800000, 0xFF800000),
             (0, 0x3F000000), (0x7FC00001, 0), (0x3F800000, 0xFFC12345)]
    cases = []
    for s, src in enumerate(TYPES):
        some = inputs(src) + specials(src)
        some = some[:: max(1, len(some) // 6)] + specials(src)[:8]
        for o, out in enumerate(TYPES[:4]):
            zeros = [(0x3F800000, 0), (0x3F800000, 0x80000000), (0xBF800000, 0x80000000)]
            for k, bits in enumerate(sorted(set(some))):
                value = decode(src, bits)
                chosen = [pairs[(k + o) % len(pairs)], pairs[(3 * k + 2 * s + 1) % len(pairs)]]
                for scale, offset in zeros if value == 0 or value == ("-0",) else chosen:
                    result = affine(src, out, bits, scale, offset)
                    cases.append(f"{{{s},{o},0x{scale:x}u,0x{offset:x}u,0x{bits:x}u,0x{result:x}u}},")
    lines(cases)
    print("};\n#endif")


main()
