/* JSON text (RFC 8259) -> tokens, and questions about them.
 *
 * A linear scan checks the whole grammar, UTF-8, depth and size before the tokenizer runs, which is
 * neither strict nor linear by itself. Keys and strings are compared after decoding their escapes.
 * The text is borrowed and must outlive the record. */
#pragma once
#include "base/alloc.h"
#include "format/jsmn.h"
#include "format/json_scan.h"

#define DAMACY__JSON_MAX_DEPTH  32u        /* default; at most 64: one bit each while scanning */
#define DAMACY__JSON_MAX_SIZE   (1u << 20) /* default, bytes */
#define DAMACY__JSON_SIZE_LIMIT (1u << 30) /* offsets are 32 bits */
#define DAMACY__JSON_NONE       UINT32_MAX

typedef enum damacy__json_kind {
    DAMACY__JSON_ABSENT = 0, /* what DAMACY__JSON_NONE is */
    DAMACY__JSON_OBJECT,
    DAMACY__JSON_ARRAY,
    DAMACY__JSON_STRING,
    DAMACY__JSON_NUMBER,
    DAMACY__JSON_TRUE,
    DAMACY__JSON_FALSE,
    DAMACY__JSON_NULL,
    DAMACY__JSON_NONFINITE
} damacy__json_kind;

typedef struct damacy__json_limits {
    uint32_t max_depth;   /* 0: default */
    size_t max_size;      /* bytes; 0: default */
    bool allow_nonfinite; /* bare NaN, Infinity, -Infinity: not JSON, but Python writes them */
} damacy__json_limits;

/* A parsed text. Values are numbers of tokens; 0 is the root. */
typedef struct damacy__json {
    const char* text;
    damacy__jsmn_token* tokens;
    uint32_t* n_within; /* tokens of each value, itself included */
    uint32_t n_tokens;
} damacy__json;

static damacy_status damacy__json_parse(damacy__json* json, damacy__alloc* alloc, damacy__span text,
                                        const damacy__json_limits* limits, damacy_error* err);
static void damacy__json_deinit(damacy__json* json, damacy__alloc* alloc);
static damacy_status damacy__json_refuse_duplicates(const damacy__json* json, damacy__alloc* alloc,
                                                    damacy_error* err);
static damacy__json_kind damacy__json_kind_of(const damacy__json* json, uint32_t value);
static uint32_t damacy__json_member(const damacy__json* json, uint32_t object, const char* key);
static bool damacy__json_equals(const damacy__json* json, uint32_t value, const char* text);
static size_t damacy__json_decode(const damacy__json* json, uint32_t value, char* dst,
                                  size_t capacity);
static damacy_status damacy__json_text(const damacy__json* json, uint32_t value,
                                       damacy__alloc* alloc, char** out, damacy_error* err);
static bool damacy__json_u64(const damacy__json* json, uint32_t value, uint64_t* out);
static damacy__span damacy__json_source(const damacy__json* json, uint32_t value);

static damacy_status damacy__json_check(damacy__span text, const damacy__json_limits* limits,
                                        uint32_t* n_tokens, damacy_error* err)
{
    const size_t max_size = limits && limits->max_size ? limits->max_size : DAMACY__JSON_MAX_SIZE;
    const uint32_t max_depth =
        limits && limits->max_depth ? limits->max_depth : DAMACY__JSON_MAX_DEPTH;
    damacy__json_scan scan = {0};
    bool too_deep = false;

    assert(max_depth <= 64 && max_size <= DAMACY__JSON_SIZE_LIMIT);
    if (text.size > max_size) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "JSON of %zu bytes exceeds the limit of %zu",
                            text.size, max_size);
    }
    scan.text = text.ptr;
    scan.size = text.size;
    scan.allow_nonfinite = limits && limits->allow_nonfinite;
    if (damacy__json_scan_text(&scan, max_depth, &too_deep)) {
        *n_tokens = scan.n_tokens;
        return DAMACY_OK;
    }
    if (too_deep) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "JSON at byte %zu is nested deeper than %u levels", scan.at, max_depth);
    }
    return damacy__fail(err, DAMACY_DECODE, "invalid JSON at byte %zu: %s", scan.at, scan.problem);
}

/* limits may be NULL. A byte order mark is skipped. On success free with damacy__json_deinit. */
static damacy_status damacy__json_parse(damacy__json* json, damacy__alloc* alloc, damacy__span text,
                                        const damacy__json_limits* limits, damacy_error* err)
{
    damacy__json parsed = {0};
    damacy__jsmn parser = {0};
    int32_t n;

    if (text.size >= 3 && memcmp(text.ptr, "\xef\xbb\xbf", 3) == 0) {
        text.ptr += 3;
        text.size -= 3;
    }
    DAMACY__TRY(damacy__json_check(text, limits, &parsed.n_tokens, err));
    parsed.text = (const char*)text.ptr;
    parsed.tokens = damacy__new(alloc, parsed.n_tokens, damacy__jsmn_token);
    parsed.n_within = damacy__new(alloc, parsed.n_tokens, uint32_t);
    if (!parsed.tokens || !parsed.n_within) {
        damacy__json_deinit(&parsed, alloc);
        return damacy__fail(err, DAMACY_OOM, "JSON of %zu bytes", text.size);
    }
    parser.toksuper = -1;
    n = damacy__jsmn_parse(&parser, parsed.text, text.size, parsed.tokens, parsed.n_tokens);
    if (n < 0 || (uint32_t)n != parsed.n_tokens) {
        damacy__json_deinit(&parsed, alloc);
        return damacy__fail(err, DAMACY_DECODE, "invalid JSON: tokenizer returned %d", n);
    }
    for (uint32_t i = parsed.n_tokens; i-- > 0;) {
        const int32_t parent = parsed.tokens[i].parent;
        parsed.n_within[i]++;
        if (parent >= 0) {
            parsed.n_within[parent] += parsed.n_within[i];
        }
    }
    *json = parsed;
    return DAMACY_OK;
}

static void damacy__json_deinit(damacy__json* json, damacy__alloc* alloc)
{
    damacy__free(alloc, json->tokens, json->n_tokens);
    damacy__free(alloc, json->n_within, json->n_tokens);
    memset(json, 0, sizeof *json);
}

static damacy__json_kind damacy__json_kind_of(const damacy__json* json, uint32_t value)
{
    if (value == DAMACY__JSON_NONE) {
        return DAMACY__JSON_ABSENT;
    }
    switch (json->tokens[value].type) {
    case DAMACY__JSMN_OBJECT:
        return DAMACY__JSON_OBJECT;
    case DAMACY__JSMN_ARRAY:
        return DAMACY__JSON_ARRAY;
    case DAMACY__JSMN_STRING:
        return DAMACY__JSON_STRING;
    default:
        break;
    }
    switch (json->text[json->tokens[value].end - 1]) { /* digits end all numbers */
    case 'e':
        return json->text[json->tokens[value].start] == 't' ? DAMACY__JSON_TRUE
                                                            : DAMACY__JSON_FALSE;
    case 'l':
        return DAMACY__JSON_NULL;
    case 'N':
    case 'y':
        return DAMACY__JSON_NONFINITE;
    default:
        return DAMACY__JSON_NUMBER;
    }
}

/* Elements of an array, members of an object. */
static inline uint32_t damacy__json_count(const damacy__json* json, uint32_t value)
{
    return (uint32_t)json->tokens[value].size;
}

/* First element, or first key; DAMACY__JSON_NONE when there is none. The value of key k is k + 1.
 */
static inline uint32_t damacy__json_first(const damacy__json* json, uint32_t container)
{
    return json->tokens[container].size ? container + 1 : DAMACY__JSON_NONE;
}

/* The element or key after this one. */
static inline uint32_t damacy__json_next(const damacy__json* json, uint32_t container,
                                         uint32_t child)
{
    const uint32_t next = child + json->n_within[child];

    return next < container + json->n_within[container] ? next : DAMACY__JSON_NONE;
}

/* The value of a member by its decoded key; DAMACY__JSON_NONE when absent or not an object. */
static uint32_t damacy__json_member(const damacy__json* json, uint32_t object, const char* key)
{
    if (damacy__json_kind_of(json, object) != DAMACY__JSON_OBJECT) {
        return DAMACY__JSON_NONE;
    }
    for (uint32_t k = damacy__json_first(json, object); k != DAMACY__JSON_NONE;
         k = damacy__json_next(json, object, k)) {
        if (damacy__json_equals(json, k, key)) {
            return k + 1;
        }
    }
    return DAMACY__JSON_NONE;
}

/* The text of a value as written: strings without their quotes and with their escapes. */
static damacy__span damacy__json_source(const damacy__json* json, uint32_t value)
{
    const damacy__jsmn_token* token = &json->tokens[value];

    return damacy__span_of(json->text + token->start, (size_t)(token->end - token->start));
}

static uint32_t damacy__json_encode_utf8(uint32_t code, char* dst)
{
    if (code < 0x80) {
        dst[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        dst[0] = (char)(0xc0 | code >> 6);
        dst[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        dst[0] = (char)(0xe0 | code >> 12);
        dst[1] = (char)(0x80 | (code >> 6 & 0x3f));
        dst[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    dst[0] = (char)(0xf0 | code >> 18);
    dst[1] = (char)(0x80 | (code >> 12 & 0x3f));
    dst[2] = (char)(0x80 | (code >> 6 & 0x3f));
    dst[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* One character, or one byte of a longer one, from checked text. Returns the bytes read. */
static uint32_t damacy__json_unescape(const uint8_t* p, char dst[4], uint32_t* n)
{
    static const char names[] = "bfnrt";
    static const char codes[] = "\b\f\n\r\t";
    const char* name;
    uint32_t code;

    *n = 1;
    if (p[0] != '\\') {
        dst[0] = (char)p[0];
        return 1;
    }
    if (p[1] != 'u') {
        name = strchr(names, p[1]);
        dst[0] = name ? codes[name - names] : (char)p[1];
        return 2;
    }
    code = damacy__json_hex4(p + 2);
    if (code >= 0xd800 && code <= 0xdbff) {
        code = 0x10000 + ((code & 0x3ff) << 10) + (damacy__json_hex4(p + 8) & 0x3ff);
        *n = damacy__json_encode_utf8(code, dst);
        return 12;
    }
    *n = damacy__json_encode_utf8(code, dst);
    return 6;
}

/* A string or key, decoded, equals text. */
static bool damacy__json_equals(const damacy__json* json, uint32_t value, const char* text)
{
    const size_t len = strlen(text);
    damacy__span source;
    size_t at = 0;
    size_t n_equal = 0;

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_STRING) {
        return false;
    }
    source = damacy__json_source(json, value);
    while (at < source.size) {
        char decoded[4];
        uint32_t n;

        at += damacy__json_unescape(source.ptr + at, decoded, &n);
        if (n > len - n_equal || memcmp(text + n_equal, decoded, n) != 0) {
            return false;
        }
        n_equal += n;
    }
    return n_equal == len;
}

/* Decodes a string or key. Returns its size in bytes, of which the first capacity are written,
 * without a final zero. */
static size_t damacy__json_decode(const damacy__json* json, uint32_t value, char* dst,
                                  size_t capacity)
{
    const damacy__span source = damacy__json_source(json, value);
    size_t at = 0;
    size_t size = 0;

    while (at < source.size) {
        char decoded[4];
        uint32_t n;

        at += damacy__json_unescape(source.ptr + at, decoded, &n);
        for (uint32_t i = 0; i < n; i++, size++) {
            if (size < capacity) {
                dst[size] = decoded[i];
            }
        }
    }
    return size;
}

/* A string as zero-terminated text; free it with its length + 1. A zero inside is refused. */
static damacy_status damacy__json_text(const damacy__json* json, uint32_t value,
                                       damacy__alloc* alloc, char** out, damacy_error* err)
{
    const size_t size = damacy__json_decode(json, value, NULL, 0);
    char* text = damacy__new(alloc, size + 1, char);

    if (!text) {
        return damacy__fail(err, DAMACY_OOM, "string of %zu bytes", size);
    }
    (void)damacy__json_decode(json, value, text, size);
    if (memchr(text, '\0', size)) {
        damacy__free(alloc, text, size + 1);
        return damacy__fail(err, DAMACY_DECODE, "string with a zero character");
    }
    *out = text;
    return DAMACY_OK;
}

/* For messages: a string decoded, anything else as written; cut to capacity, with a final zero. */
static inline const char* damacy__json_show(const damacy__json* json, uint32_t value, char* dst,
                                            size_t capacity)
{
    const damacy__span source = damacy__json_source(json, value);
    size_t size = source.size;

    if (damacy__json_kind_of(json, value) == DAMACY__JSON_STRING) {
        size = damacy__json_decode(json, value, dst, capacity - 1);
    } else {
        memcpy(dst, source.ptr, DAMACY__MIN(size, capacity - 1));
    }
    dst[DAMACY__MIN(size, capacity - 1)] = '\0';
    return dst;
}

/* An integer without fraction or exponent, from 0 to 2^64-1; -0 is 0. */
static bool damacy__json_u64(const damacy__json* json, uint32_t value, uint64_t* out)
{
    damacy__span source;
    uint64_t number = 0;

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_NUMBER) {
        return false;
    }
    source = damacy__json_source(json, value);
    if (source.size == 2 && memcmp(source.ptr, "-0", 2) == 0) {
        *out = 0;
        return true;
    }
    for (size_t i = 0; i < source.size; i++) {
        if (!damacy__json_is_digit(source.ptr[i]) || !damacy__mul(number, 10, &number) ||
            !damacy__add(number, (uint64_t)(source.ptr[i] - '0'), &number)) {
            return false;
        }
    }
    *out = number;
    return true;
}

/* A key and where it belongs, for sorting. */
typedef struct damacy__json_name {
    uint64_t hash; /* of the decoded key; equal ones are compared in full */
    uint32_t object;
    uint32_t key;
} damacy__json_name;

/* A string, decoded byte by byte. */
typedef struct damacy__json_reader {
    damacy__span source;
    size_t at;
    char bytes[4];
    uint32_t n;
    uint32_t i;
} damacy__json_reader;

/* The next byte, or -1. */
static int damacy__json_read(damacy__json_reader* reader)
{
    if (reader->i == reader->n) {
        if (reader->at == reader->source.size) {
            return -1;
        }
        reader->at +=
            damacy__json_unescape(reader->source.ptr + reader->at, reader->bytes, &reader->n);
        reader->i = 0;
    }
    return (uint8_t)reader->bytes[reader->i++];
}

/* Order of two keys, decoded: negative, 0 or positive. */
static int damacy__json_key_order(const damacy__json* json, uint32_t a, uint32_t b)
{
    damacy__json_reader readers[2];
    int bytes[2];

    memset(readers, 0, sizeof readers);
    readers[0].source = damacy__json_source(json, a);
    readers[1].source = damacy__json_source(json, b);
    do {
        bytes[0] = damacy__json_read(&readers[0]);
        bytes[1] = damacy__json_read(&readers[1]);
    } while (bytes[0] == bytes[1] && bytes[0] >= 0);
    return bytes[0] - bytes[1];
}

/* FNV-1a of a key, decoded. */
static uint64_t damacy__json_key_hash(const damacy__json* json, uint32_t key)
{
    damacy__json_reader reader;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    int byte;

    memset(&reader, 0, sizeof reader);
    reader.source = damacy__json_source(json, key);
    while ((byte = damacy__json_read(&reader)) >= 0) {
        hash = (hash ^ (uint64_t)byte) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static int damacy__json_name_order(const damacy__json* json, const damacy__json_name* a,
                                   const damacy__json_name* b)
{
    if (a->object != b->object) {
        return a->object < b->object ? -1 : 1;
    }
    if (a->hash != b->hash) {
        return a->hash < b->hash ? -1 : 1;
    }
    return damacy__json_key_order(json, a->key, b->key);
}

/* Merges sorted runs until one is left; returns which of the two arrays holds it. */
static damacy__json_name* damacy__json_sort(const damacy__json* json, damacy__json_name* names,
                                            damacy__json_name* other, size_t n)
{
    for (size_t run = 1; run < n; run *= 2) {
        damacy__json_name* const from = names;
        for (size_t first = 0; first < n; first += 2 * run) {
            const size_t middle = DAMACY__MIN(first + run, n);
            const size_t end = DAMACY__MIN(first + 2 * run, n);
            size_t a = first;
            size_t b = middle;
            for (size_t i = first; i < end; i++) {
                const bool take_a =
                    b == end ||
                    (a < middle && damacy__json_name_order(json, &from[a], &from[b]) <= 0);
                other[i] = take_a ? from[a++] : from[b++];
            }
        }
        names = other;
        other = from;
    }
    return names;
}

/* Refuses an object that has a key twice, at any depth: readers disagree on which one counts. */
static damacy_status damacy__json_refuse_duplicates(const damacy__json* json, damacy__alloc* alloc,
                                                    damacy_error* err)
{
    const size_t capacity = json->n_tokens;
    damacy__json_name* const names = damacy__new(alloc, capacity * 2, damacy__json_name);
    const damacy__json_name* sorted;
    damacy_status status = DAMACY_OK;
    size_t n = 0;

    if (!names) {
        return damacy__fail(err, DAMACY_OOM, "keys of a JSON text");
    }
    for (uint32_t i = 1; i < json->n_tokens; i++) {
        const uint32_t parent = (uint32_t)json->tokens[i].parent;
        if (json->tokens[parent].type == DAMACY__JSMN_OBJECT && json->tokens[parent].size > 1) {
            names[n].hash = damacy__json_key_hash(json, i);
            names[n].object = parent;
            names[n].key = i;
            n++;
        }
    }
    sorted = damacy__json_sort(json, names, names + capacity, n);
    for (size_t i = 1; i < n && status == DAMACY_OK; i++) {
        if (damacy__json_name_order(json, &sorted[i - 1], &sorted[i]) == 0) {
            char key[64];
            status = damacy__fail(err, DAMACY_DECODE, "the key \"%s\" appears twice in an object",
                                  damacy__json_show(json, sorted[i].key, key, sizeof key));
        }
    }
    damacy__free(alloc, names, capacity * 2);
    return status;
}
