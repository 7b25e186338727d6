/* JSON text -> the number of its tokens, or where and why it is not JSON (RFC 8259).
 *
 * One pass without recursion: grammar, escapes, UTF-8, and depth, of which one bit per level is
 * kept. Lone surrogates are refused, as they have no UTF-8 form. */
#pragma once
#include "base/base.h"

typedef struct damacy__json_scan {
    const uint8_t* text;
    size_t size;
    size_t at;
    const char* problem; /* set with false */
    uint32_t n_tokens;
    bool allow_nonfinite; /* NaN, Infinity and -Infinity are values */
} damacy__json_scan;

static bool damacy__json_refuse(damacy__json_scan* scan, const char* problem)
{
    scan->problem = problem;
    return false;
}

static inline bool damacy__json_is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static bool damacy__json_scan_digits(damacy__json_scan* scan)
{
    const size_t start = scan->at;

    while (scan->at < scan->size && damacy__json_is_digit(scan->text[scan->at])) {
        scan->at++;
    }
    return scan->at > start || damacy__json_refuse(scan, "digit expected");
}

static bool damacy__json_scan_number(damacy__json_scan* scan)
{
    size_t start;

    if (scan->text[scan->at] == '-') {
        scan->at++;
    }
    start = scan->at;
    if (!damacy__json_scan_digits(scan)) {
        return false;
    }
    if (scan->text[start] == '0' && scan->at - start > 1) {
        return damacy__json_refuse(scan, "number with a leading zero");
    }
    if (scan->at < scan->size && scan->text[scan->at] == '.') {
        scan->at++;
        if (!damacy__json_scan_digits(scan)) {
            return false;
        }
    }
    if (scan->at < scan->size && (scan->text[scan->at] | 0x20) == 'e') {
        scan->at++;
        if (scan->at < scan->size && (scan->text[scan->at] == '+' || scan->text[scan->at] == '-')) {
            scan->at++;
        }
        return damacy__json_scan_digits(scan);
    }
    return true;
}

static bool damacy__json_scan_word(damacy__json_scan* scan, const char* word)
{
    const size_t len = strlen(word);

    if (len > scan->size - scan->at || memcmp(scan->text + scan->at, word, len) != 0) {
        return damacy__json_refuse(scan, "value expected");
    }
    scan->at += len;
    return true;
}

/* Four hexadecimal digits at p; UINT32_MAX if they are not. */
static uint32_t damacy__json_hex4(const uint8_t* p)
{
    uint32_t value = 0;

    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t c = p[i];
        const uint8_t lower = c | 0x20;
        if (damacy__json_is_digit(c)) {
            value = value << 4 | (uint32_t)(c - '0');
        } else if (lower >= 'a' && lower <= 'f') {
            value = value << 4 | (uint32_t)(lower - 'a' + 10);
        } else {
            return UINT32_MAX;
        }
    }
    return value;
}

/* At a backslash. Surrogates must come in pairs: a lone one has no UTF-8 form. */
static bool damacy__json_scan_escape(damacy__json_scan* scan)
{
    const uint8_t* p = scan->text + scan->at;
    const size_t left = scan->size - scan->at;
    uint32_t code;

    if (left < 2) {
        return damacy__json_refuse(scan, "string does not end");
    }
    if (p[1] != 'u') {
        if (p[1] == '\0' || !strchr("\"\\/bfnrt", p[1])) {
            return damacy__json_refuse(scan, "unknown escape");
        }
        scan->at += 2;
        return true;
    }
    if (left < 6 || (code = damacy__json_hex4(p + 2)) == UINT32_MAX) {
        return damacy__json_refuse(scan, "\\u wants four hexadecimal digits");
    }
    scan->at += 6;
    if (code < 0xd800 || code > 0xdfff) {
        return true;
    }
    if (code > 0xdbff || left < 12 || p[6] != '\\' || p[7] != 'u' ||
        (damacy__json_hex4(p + 8) & ~UINT32_C(0x3ff)) != 0xdc00) {
        return damacy__json_refuse(scan, "surrogate without its other half");
    }
    scan->at += 6;
    return true;
}

/* Bytes of the UTF-8 sequence at p, whose first byte is not ASCII; 0 if it is malformed, overlong,
 * a surrogate or beyond U+10FFFF (RFC 3629 section 4). */
static uint32_t damacy__json_utf8(const uint8_t* p, size_t left)
{
    const uint8_t first = p[0];
    const uint32_t n = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    uint8_t low = 0x80;
    uint8_t high = 0xbf;

    if (first < 0xc2 || first > 0xf4 || left < n) {
        return 0;
    }
    low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : low;
    high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : high;
    if (p[1] < low || p[1] > high) {
        return 0;
    }
    for (uint32_t i = 2; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}

/* At the opening quote. */
static bool damacy__json_scan_string(damacy__json_scan* scan)
{
    scan->at++;
    while (scan->at < scan->size) {
        const uint8_t c = scan->text[scan->at];
        if (c == '"') {
            scan->at++;
            return true;
        }
        if (c == '\\') {
            if (!damacy__json_scan_escape(scan)) {
                return false;
            }
        } else if (c >= 0x80) {
            const uint32_t n = damacy__json_utf8(scan->text + scan->at, scan->size - scan->at);
            if (n == 0) {
                return damacy__json_refuse(scan, "invalid UTF-8");
            }
            scan->at += n;
        } else if (c < 0x20) {
            return damacy__json_refuse(scan, "control character in a string");
        } else {
            scan->at++;
        }
    }
    return damacy__json_refuse(scan, "string does not end");
}

static bool damacy__json_scan_scalar(damacy__json_scan* scan)
{
    const uint8_t c = scan->text[scan->at];

    if (c == '"') {
        return damacy__json_scan_string(scan);
    }
    if (scan->allow_nonfinite && (c == 'N' || c == 'I')) {
        return damacy__json_scan_word(scan, c == 'N' ? "NaN" : "Infinity");
    }
    if (scan->allow_nonfinite && c == '-' && scan->size - scan->at > 1 &&
        scan->text[scan->at + 1] == 'I') {
        return damacy__json_scan_word(scan, "-Infinity");
    }
    if (c == '-' || damacy__json_is_digit(c)) {
        return damacy__json_scan_number(scan);
    }
    return damacy__json_scan_word(scan, c == 't' ? "true" : c == 'f' ? "false" : "null");
}

static void damacy__json_scan_space(damacy__json_scan* scan)
{
    while (scan->at < scan->size) {
        const uint8_t c = scan->text[scan->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
            return;
        }
        scan->at++;
    }
}

/* At a key: takes it and the colon. */
static bool damacy__json_scan_key(damacy__json_scan* scan)
{
    if (scan->text[scan->at] != '"') {
        return damacy__json_refuse(scan, "key expected");
    }
    if (!damacy__json_scan_string(scan)) {
        return false;
    }
    damacy__json_scan_space(scan);
    if (scan->at == scan->size || scan->text[scan->at] != ':') {
        return damacy__json_refuse(scan, "':' expected");
    }
    scan->at++;
    return true;
}

/* Checks the whole text and counts its tokens. *too_deep tells a limit from malformed text. */
static bool damacy__json_scan_text(damacy__json_scan* scan, uint32_t max_depth, bool* too_deep)
{
    enum { DAMACY__WANT_VALUE, DAMACY__WANT_FIRST, DAMACY__WANT_KEY, DAMACY__WANT_REST } want;
    uint64_t objects = 0; /* bit 0: the innermost container is an object */
    uint32_t depth = 0;

    want = DAMACY__WANT_VALUE;
    for (;;) {
        uint8_t c;

        damacy__json_scan_space(scan);
        if (scan->at == scan->size) {
            return (depth == 0 && want == DAMACY__WANT_REST) ||
                   damacy__json_refuse(scan, "the text ends too early");
        }
        c = scan->text[scan->at];
        if (want == DAMACY__WANT_REST && depth == 0) {
            return damacy__json_refuse(scan, "something follows the value");
        }
        if (want != DAMACY__WANT_VALUE && want != DAMACY__WANT_KEY && (c == ']' || c == '}')) {
            if ((c == '}') != (objects & 1)) {
                return damacy__json_refuse(scan, "brackets do not match");
            }
            scan->at++;
            objects >>= 1;
            depth--;
            want = DAMACY__WANT_REST;
        } else if (want == DAMACY__WANT_REST) {
            if (c != ',') {
                return damacy__json_refuse(scan, "',' or a closing bracket expected");
            }
            scan->at++;
            want = objects & 1 ? DAMACY__WANT_KEY : DAMACY__WANT_VALUE;
        } else if (want == DAMACY__WANT_KEY || (want == DAMACY__WANT_FIRST && (objects & 1))) {
            if (!damacy__json_scan_key(scan)) {
                return false;
            }
            scan->n_tokens++;
            want = DAMACY__WANT_VALUE;
        } else if (c == '[' || c == '{') {
            if (depth == max_depth) {
                *too_deep = true;
                return false;
            }
            scan->at++;
            scan->n_tokens++;
            objects = objects << 1 | (c == '{');
            depth++;
            want = DAMACY__WANT_FIRST;
        } else {
            if (!damacy__json_scan_scalar(scan)) {
                return false;
            }
            scan->n_tokens++;
            want = DAMACY__WANT_REST;
        }
    }
}
