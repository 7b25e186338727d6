/* The points at which Zarr v3 metadata can be extended: data type, chunk grid, chunk key encoding
 * and codecs -> name and configuration (Zarr v3 core, "Extension definition").
 *
 * A string "x" is short for {"name": "x"}. Members that are not understood are refused by name, as
 * they may change what the bytes mean. */
#pragma once
#include "base/error.h"
#include "format/json.h"

typedef struct damacy__extension {
    uint32_t name;          /* a string */
    uint32_t configuration; /* an object, or DAMACY__JSON_NONE */
    bool may_be_ignored;    /* must_understand is false */
} damacy__extension;

static damacy_status damacy__extension_parse(const damacy__json* json, uint32_t value,
                                             const char* what, damacy__extension* out,
                                             damacy_error* err);
static damacy_status damacy__members_check(const damacy__json* json, uint32_t object,
                                           const char* const* known, const char* what,
                                           damacy_error* err);
static damacy_status damacy__extents_parse(const damacy__json* json, uint32_t value,
                                           const char* what, int64_t least, uint32_t rank,
                                           int64_t* out, damacy_error* err);

/* Refuses members whose key is not in the list, which ends with NULL. object may be
 * DAMACY__JSON_NONE. */
static damacy_status damacy__members_check(const damacy__json* json, uint32_t object,
                                           const char* const* known, const char* what,
                                           damacy_error* err)
{
    char text[64];

    if (object == DAMACY__JSON_NONE) {
        return DAMACY_OK;
    }
    for (uint32_t k = damacy__json_first(json, object); k != DAMACY__JSON_NONE;
         k = damacy__json_next(json, object, k)) {
        uint32_t i = 0;
        while (known[i] && !damacy__json_equals(json, k, known[i])) {
            i++;
        }
        if (!known[i]) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "%s: unknown member \"%s\"", what,
                                damacy__json_show(json, k, text, sizeof text));
        }
    }
    return DAMACY_OK;
}

/* what names the place in messages. */
static damacy_status damacy__extension_parse(const damacy__json* json, uint32_t value,
                                             const char* what, damacy__extension* out,
                                             damacy_error* err)
{
    static const char* const known[] = {"name", "configuration", "must_understand", NULL};
    damacy__extension extension = {0};
    damacy__json_kind kind = damacy__json_kind_of(json, value);
    char text[64];

    extension.name = value;
    extension.configuration = DAMACY__JSON_NONE;
    if (kind == DAMACY__JSON_OBJECT) {
        DAMACY__TRY(damacy__members_check(json, value, known, what, err));
        extension.name = damacy__json_member(json, value, "name");
        extension.configuration = damacy__json_member(json, value, "configuration");
        kind = damacy__json_kind_of(json, damacy__json_member(json, value, "must_understand"));
        if (kind != DAMACY__JSON_ABSENT && kind != DAMACY__JSON_TRUE &&
            kind != DAMACY__JSON_FALSE) {
            return damacy__fail(err, DAMACY_DECODE, "%s: must_understand is not true or false",
                                what);
        }
        extension.may_be_ignored = kind == DAMACY__JSON_FALSE;
    } else if (kind != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "%s is neither a name nor an object", what);
    }
    if (damacy__json_kind_of(json, extension.name) != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "%s has no name", what);
    }
    if (extension.configuration != DAMACY__JSON_NONE &&
        damacy__json_kind_of(json, extension.configuration) != DAMACY__JSON_OBJECT) {
        return damacy__fail(err, DAMACY_DECODE, "%s \"%s\": configuration is not an object", what,
                            damacy__json_show(json, extension.name, text, sizeof text));
    }
    *out = extension;
    return DAMACY_OK;
}

/* An array of rank integers, each at least `least`. */
static damacy_status damacy__extents_parse(const damacy__json* json, uint32_t value,
                                           const char* what, int64_t least, uint32_t rank,
                                           int64_t* out, damacy_error* err)
{
    uint32_t i = 0;
    char text[64];

    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "%s is not an array of integers", what);
    }
    if (damacy__json_count(json, value) != rank) {
        return damacy__fail(err, DAMACY_DECODE, "%s has %u axes, the array has %u", what,
                            damacy__json_count(json, value), rank);
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v), i++) {
        uint64_t number;
        if (!damacy__json_u64(json, v, &number) || number > INT64_MAX || (int64_t)number < least) {
            return damacy__fail(err, DAMACY_DECODE,
                                "%s[%u] is %s, not an integer from %" PRId64 " to 2^63 - 1", what,
                                i, damacy__json_show(json, v, text, sizeof text), least);
        }
        out[i] = (int64_t)number;
    }
    return DAMACY_OK;
}
