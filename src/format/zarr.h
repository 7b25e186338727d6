/* zarr.json -> a document: the layout of an array, or a group, with its attributes as text.
 *
 * Follows the Zarr v3 core specification; what the document asks for is honoured or refused by
 * name. The document owns all that it points to and does not need the text any more. */
#pragma once
#include "format/codec.h"
#include "format/fill.h"

typedef enum damacy__node { DAMACY__NODE_ARRAY = 1, DAMACY__NODE_GROUP } damacy__node;

/* Texts end with a zero and are NULL where there is none. */
typedef struct damacy__document {
    uint32_t node;         /* damacy__node */
    uint32_t zarr_format;  /* 2 or 3 */
    damacy__layout layout; /* of an array, as is what follows, but for attributes */
    damacy__chain chain;   /* all codecs */
    char* attributes;      /* JSON text of an object; "{}" if none */
    char* data_type;       /* as the metadata says it */
    char* codecs;          /* such as "sharding_indexed(transpose,bytes,zstd)" */
    char* dimension_names[DAMACY_MAX_RANK];
} damacy__document;

static damacy_status damacy__zarr_parse(damacy__alloc* alloc, damacy__span text,
                                        damacy__document* out, damacy_error* err);
static void damacy__document_deinit(damacy__document* document, damacy__alloc* alloc);

/* What the functions below share. */
typedef struct damacy__zarr_parser {
    const damacy__json* json;
    damacy__alloc* alloc;
    damacy__document* document;
    const damacy__dtype* type;
} damacy__zarr_parser;

static void damacy__text_free(damacy__alloc* alloc, char* text)
{
    damacy__free(alloc, text, text ? strlen(text) + 1 : 0);
}

static void damacy__document_deinit(damacy__document* document, damacy__alloc* alloc)
{
    damacy__chain_deinit(&document->chain, alloc);
    damacy__text_free(alloc, document->attributes);
    damacy__text_free(alloc, document->data_type);
    damacy__text_free(alloc, document->codecs);
    for (uint32_t i = 0; i < DAMACY_MAX_RANK; i++) {
        damacy__text_free(alloc, document->dimension_names[i]);
    }
    memset(document, 0, sizeof *document);
}

/* Bare NaN and Infinity are taken: zarr-python writes them into attributes and, in version 2, as
 * fill_value. */
static damacy_status damacy__zarr_json(damacy__json* json, damacy__alloc* alloc, damacy__span text,
                                       damacy_error* err)
{
    damacy__json_limits limits = {0};

    limits.allow_nonfinite = true;
    return damacy__json_parse(json, alloc, text, &limits, err);
}

/* A member of the root that must be there. */
static damacy_status damacy__zarr_member(const damacy__zarr_parser* parser, const char* key,
                                         uint32_t* out, damacy_error* err)
{
    *out = damacy__json_member(parser->json, 0, key);
    if (*out == DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_DECODE, "metadata has no \"%s\"", key);
    }
    return DAMACY_OK;
}

/* An extension whose must_understand may not be false, that must be there. */
static damacy_status damacy__zarr_extension(const damacy__zarr_parser* parser, const char* key,
                                            damacy__extension* out, damacy_error* err)
{
    uint32_t value;

    DAMACY__TRY(damacy__zarr_member(parser, key, &value, err));
    DAMACY__TRY(damacy__extension_parse(parser->json, value, key, out, err));
    if (out->may_be_ignored) {
        return damacy__fail(err, DAMACY_DECODE, "%s: must_understand cannot be false here", key);
    }
    return DAMACY_OK;
}

/* zarr_format and node_type. */
static damacy_status damacy__zarr_node(damacy__zarr_parser* parser, damacy_error* err)
{
    const damacy__json* json = parser->json;
    uint64_t format;
    uint32_t value;
    char text[64];

    if (damacy__json_kind_of(json, 0) != DAMACY__JSON_OBJECT) {
        return damacy__fail(err, DAMACY_DECODE, "metadata is not a JSON object");
    }
    DAMACY__TRY(damacy__zarr_member(parser, "zarr_format", &value, err));
    (void)damacy__json_show(json, value, text, sizeof text);
    if (damacy__json_kind_of(json, value) == DAMACY__JSON_STRING &&
        strncmp(text, "https://purl.org/zarr/", 22) == 0) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "drafts of Zarr v3 are not supported (%s)",
                            text);
    }
    if (!damacy__json_u64(json, value, &format)) {
        return damacy__fail(err, DAMACY_DECODE, "zarr_format is %s, not the integer 3", text);
    }
    if (format != 3) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "zarr_format %" PRIu64 " is not supported, only 3", format);
    }
    DAMACY__TRY(damacy__zarr_member(parser, "node_type", &value, err));
    if (damacy__json_equals(json, value, "array")) {
        parser->document->node = DAMACY__NODE_ARRAY;
    } else if (damacy__json_equals(json, value, "group")) {
        parser->document->node = DAMACY__NODE_GROUP;
    } else {
        return damacy__fail(err, DAMACY_DECODE, "node_type is %s, not \"array\" or \"group\"",
                            damacy__json_show(json, value, text, sizeof text));
    }
    parser->document->zarr_format = 3;
    return DAMACY_OK;
}

/* A member that is not known may stay only if it is an object that says must_understand: false. */
static damacy_status damacy__zarr_members(const damacy__zarr_parser* parser, damacy_error* err)
{
    static const char* const known[] = {
        "zarr_format", "node_type", "attributes",      "consolidated_metadata",
        "shape",       "data_type", "chunk_grid",      "chunk_key_encoding",
        "fill_value",  "codecs",    "dimension_names", "storage_transformers"};
    const damacy__json* json = parser->json;
    const size_t n = parser->document->node == DAMACY__NODE_GROUP ? 4 : DAMACY__COUNT(known);
    char text[64];

    for (uint32_t k = damacy__json_first(json, 0); k != DAMACY__JSON_NONE;
         k = damacy__json_next(json, 0, k)) {
        const uint32_t ignore = damacy__json_member(json, k + 1, "must_understand");
        size_t i = 0;
        while (i < n && !damacy__json_equals(json, k, known[i])) {
            i++;
        }
        if (i == n && damacy__json_kind_of(json, ignore) != DAMACY__JSON_FALSE) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "metadata has an unknown member \"%s\"",
                                damacy__json_show(json, k, text, sizeof text));
        }
    }
    return DAMACY_OK;
}

/* value: the attributes, or DAMACY__JSON_NONE. */
static damacy_status damacy__zarr_attributes(const damacy__zarr_parser* parser, uint32_t value,
                                             damacy_error* err)
{
    damacy__span source = damacy__span_of("{}", 2);

    if (value != DAMACY__JSON_NONE) {
        if (damacy__json_kind_of(parser->json, value) != DAMACY__JSON_OBJECT) {
            return damacy__fail(err, DAMACY_DECODE, "attributes is not an object");
        }
        source = damacy__json_source(parser->json, value);
    }
    parser->document->attributes =
        damacy__alloc_text(parser->alloc, (const char*)source.ptr, source.size);
    return parser->document->attributes ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "attributes");
}

static damacy_status damacy__zarr_shape(const damacy__zarr_parser* parser, damacy_error* err)
{
    damacy__layout* const layout = &parser->document->layout;
    uint32_t value;
    uint64_t n;

    DAMACY__TRY(damacy__zarr_member(parser, "shape", &value, err));
    if (damacy__json_kind_of(parser->json, value) != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "shape is not an array of integers");
    }
    if (damacy__json_count(parser->json, value) > DAMACY_MAX_RANK) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "%u axes are not supported, at most %d",
                            damacy__json_count(parser->json, value), DAMACY_MAX_RANK);
    }
    layout->rank = damacy__json_count(parser->json, value);
    DAMACY__TRY(
        damacy__extents_parse(parser->json, value, "shape", 0, layout->rank, layout->shape, err));
    if (!damacy__product(layout->shape, layout->rank, &n)) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "arrays of 2^63 voxels are not supported");
    }
    return DAMACY_OK;
}

static damacy_status damacy__zarr_type(damacy__zarr_parser* parser, damacy_error* err)
{
    damacy__layout* const layout = &parser->document->layout;
    static const char* const known[] = {NULL};
    damacy__extension extension;
    uint32_t value;
    char text[64];

    DAMACY__TRY(damacy__zarr_extension(parser, "data_type", &extension, err));
    for (size_t i = 0; i < DAMACY__COUNT(damacy__dtypes); i++) {
        if (damacy__json_equals(parser->json, extension.name, damacy__dtypes[i].name)) {
            parser->type = &damacy__dtypes[i];
        }
    }
    if (!parser->type) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported data type \"%s\"",
                            damacy__json_show(parser->json, extension.name, text, sizeof text));
    }
    DAMACY__TRY(
        damacy__members_check(parser->json, extension.configuration, known, "data_type", err));
    layout->dtype = parser->type->dtype;
    layout->item_size = (uint32_t)damacy__dtype_size(parser->type->dtype);
    DAMACY__TRY(damacy__zarr_member(parser, "fill_value", &value, err));
    DAMACY__TRY(damacy__fill_parse(parser->json, value, parser->type, &layout->fill, err));
    return damacy__json_text(parser->json, extension.name, parser->alloc,
                             &parser->document->data_type, err);
}

/* Objects are numbered in 64 bits. */
static damacy_status damacy__zarr_objects(const damacy__layout* layout, damacy_error* err)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < layout->rank; i++) {
        const uint64_t extent = (uint64_t)layout->shape[i];

        if (!damacy__mul(n, damacy__div_up(extent, (uint64_t)layout->object_shape[i]), &n) ||
            n > INT64_MAX) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "arrays of 2^63 chunks are not supported");
        }
    }
    return DAMACY_OK;
}

static damacy_status damacy__zarr_grid(const damacy__zarr_parser* parser, damacy_error* err)
{
    static const char* const known[] = {"chunk_shape", NULL};
    const damacy__json* json = parser->json;
    damacy__layout* const layout = &parser->document->layout;
    damacy__extension extension;
    char text[64];

    DAMACY__TRY(damacy__zarr_extension(parser, "chunk_grid", &extension, err));
    if (!damacy__json_equals(json, extension.name, "regular")) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported chunk grid \"%s\"",
                            damacy__json_show(json, extension.name, text, sizeof text));
    }
    DAMACY__TRY(damacy__members_check(json, extension.configuration, known, "chunk_grid", err));
    DAMACY__TRY(damacy__extents_parse(
        json, damacy__json_member(json, extension.configuration, "chunk_shape"), "chunk_shape", 1,
        layout->rank, layout->object_shape, err));
    return damacy__zarr_objects(layout, err);
}

static damacy_status damacy__zarr_keys(const damacy__zarr_parser* parser, damacy_error* err)
{
    static const char* const known[] = {"separator", NULL};
    const damacy__json* json = parser->json;
    damacy__layout* const layout = &parser->document->layout;
    damacy__extension extension;
    uint32_t separator;
    char text[64];

    DAMACY__TRY(damacy__zarr_extension(parser, "chunk_key_encoding", &extension, err));
    layout->key_is_v2 = damacy__json_equals(json, extension.name, "v2");
    if (!layout->key_is_v2 && !damacy__json_equals(json, extension.name, "default")) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported chunk key encoding \"%s\"",
                            damacy__json_show(json, extension.name, text, sizeof text));
    }
    DAMACY__TRY(
        damacy__members_check(json, extension.configuration, known, "chunk_key_encoding", err));
    separator = damacy__json_member(json, extension.configuration, "separator");
    layout->key_separator = layout->key_is_v2 ? '.' : '/';
    if (damacy__json_equals(json, separator, "/") || damacy__json_equals(json, separator, ".")) {
        layout->key_separator = damacy__json_equals(json, separator, "/") ? '/' : '.';
    } else if (separator != DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_DECODE,
                            "chunk_key_encoding: separator is \"%s\", not \"/\" or \".\"",
                            damacy__json_show(json, separator, text, sizeof text));
    }
    return DAMACY_OK;
}

/* The rest of the layout, and the summary, once the chain is there. */
static damacy_status damacy__zarr_resolve(damacy__document* document, damacy__alloc* alloc,
                                          damacy_error* err)
{
    char text[512];

    DAMACY__TRY(damacy__layout_resolve(&document->layout, &document->chain, err));
    damacy__chain_summary(&document->chain, text, sizeof text);
    document->codecs = damacy__alloc_text(alloc, text, strlen(text));
    return document->codecs ? DAMACY_OK : damacy__fail(err, DAMACY_OOM, "codecs");
}

static damacy_status damacy__zarr_codecs(const damacy__zarr_parser* parser, damacy_error* err)
{
    damacy__document* const document = parser->document;
    damacy__chain_input input = {0};
    uint32_t value;

    DAMACY__TRY(damacy__zarr_member(parser, "codecs", &value, err));
    input.what = "codecs";
    input.rank = document->layout.rank;
    input.has_byte_order = document->layout.item_size > 1 && !parser->type->is_raw;
    DAMACY__TRY(damacy__codecs_parse(parser->json, value, parser->alloc, &input,
                                     document->layout.object_shape, &document->chain, err));
    return damacy__zarr_resolve(document, parser->alloc, err);
}

/* A text or null per axis; null as a whole is taken as absent. */
static damacy_status damacy__zarr_names(const damacy__zarr_parser* parser, uint32_t value,
                                        damacy_error* err)
{
    const damacy__json* json = parser->json;
    damacy__document* const document = parser->document;
    const damacy__json_kind kind = damacy__json_kind_of(json, value);
    uint32_t i = 0;

    if (kind == DAMACY__JSON_ABSENT || kind == DAMACY__JSON_NULL) {
        return DAMACY_OK;
    }
    if (kind != DAMACY__JSON_ARRAY || damacy__json_count(json, value) != document->layout.rank) {
        return damacy__fail(err, DAMACY_DECODE, "dimension_names is not an array of %u names",
                            document->layout.rank);
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v), i++) {
        const damacy__json_kind name = damacy__json_kind_of(json, v);
        if (name == DAMACY__JSON_STRING) {
            DAMACY__TRY(
                damacy__json_text(json, v, parser->alloc, &document->dimension_names[i], err));
        } else if (name != DAMACY__JSON_NULL) {
            return damacy__fail(err, DAMACY_DECODE, "dimension_names[%u] is not a string or null",
                                i);
        }
    }
    return DAMACY_OK;
}

static damacy_status damacy__zarr_transformers(const damacy__zarr_parser* parser, damacy_error* err)
{
    const uint32_t value = damacy__json_member(parser->json, 0, "storage_transformers");
    const damacy__json_kind kind = damacy__json_kind_of(parser->json, value);
    damacy__extension extension;
    char text[64];

    if (kind == DAMACY__JSON_ABSENT) {
        return DAMACY_OK;
    }
    if (kind != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "storage_transformers is not an array");
    }
    if (damacy__json_count(parser->json, value) == 0) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__extension_parse(parser->json, damacy__json_first(parser->json, value),
                                        "storage_transformers", &extension, err));
    return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported storage transformer \"%s\"",
                        damacy__json_show(parser->json, extension.name, text, sizeof text));
}

static damacy_status damacy__zarr_root(damacy__zarr_parser* parser, damacy_error* err)
{
    DAMACY__TRY(damacy__json_refuse_duplicates(parser->json, parser->alloc, err));
    DAMACY__TRY(damacy__zarr_node(parser, err));
    DAMACY__TRY(damacy__zarr_members(parser, err));
    DAMACY__TRY(
        damacy__zarr_attributes(parser, damacy__json_member(parser->json, 0, "attributes"), err));
    if (parser->document->node == DAMACY__NODE_GROUP) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__zarr_shape(parser, err));
    DAMACY__TRY(damacy__zarr_type(parser, err));
    DAMACY__TRY(damacy__zarr_grid(parser, err));
    DAMACY__TRY(damacy__zarr_keys(parser, err));
    DAMACY__TRY(damacy__zarr_codecs(parser, err));
    DAMACY__TRY(
        damacy__zarr_names(parser, damacy__json_member(parser->json, 0, "dimension_names"), err));
    return damacy__zarr_transformers(parser, err);
}

/* text: the bytes of zarr.json. DECODE, UNSUPPORTED or OOM. Free with damacy__document_deinit. */
static damacy_status damacy__zarr_parse(damacy__alloc* alloc, damacy__span text,
                                        damacy__document* out, damacy_error* err)
{
    damacy__document document;
    damacy__json json = {0};
    damacy__zarr_parser parser = {0};
    damacy_status status;

    memset(&document, 0, sizeof document);
    DAMACY__TRY(damacy__zarr_json(&json, alloc, text, err));
    parser.json = &json;
    parser.alloc = alloc;
    parser.document = &document;
    status = damacy__zarr_root(&parser, err);
    damacy__json_deinit(&json, alloc);
    if (status != DAMACY_OK) {
        damacy__document_deinit(&document, alloc);
        return status;
    }
    *out = document;
    return DAMACY_OK;
}
