/* .zarray and .zattrs, or .zgroup and .zattrs, of Zarr version 2 -> the same document as zarr.json.
 *
 * The byte order is part of the type, order "F" is a transposition, and the compressor, if any,
 * comes last. Members that are not known are ignored, as version 2 demands; filters and compressors
 * that are not known are refused by name. Some writers' slips in fill_value are tolerated. */
#pragma once
#include "format/zarr.h"

static damacy_status damacy__zarr2_parse(damacy__alloc* alloc, damacy__span text,
                                         damacy__span attributes, damacy__document* out,
                                         damacy_error* err);

/* What NumPy calls the types: a kind and a size in bytes. */
static const struct damacy__zarr2_type {
    const char* name;
    damacy_dtype dtype;
} damacy__zarr2_types[] = {
    {"b1", DAMACY_BOOL}, {"i1", DAMACY_I8},  {"i2", DAMACY_I16}, {"i4", DAMACY_I32},
    {"i8", DAMACY_I64},  {"u1", DAMACY_U8},  {"u2", DAMACY_U16}, {"u4", DAMACY_U32},
    {"u8", DAMACY_U64},  {"f2", DAMACY_F16}, {"f4", DAMACY_F32}, {"f8", DAMACY_F64},
};

/* "<u2", ">f4", "|u1"; "bfloat16" as tensorstore writes it. */
static damacy_status damacy__zarr2_dtype(damacy__zarr_parser* parser, bool* is_big_endian,
                                         damacy_error* err)
{
    damacy__layout* const layout = &parser->document->layout;
    damacy_dtype dtype = DAMACY_NATIVE;
    uint32_t value;
    char text[64];

    DAMACY__TRY(damacy__zarr_member(parser, "dtype", &value, err));
    (void)damacy__json_show(parser->json, value, text, sizeof text);
    if (damacy__json_equals(parser->json, value, "bfloat16")) {
        dtype = DAMACY_BF16;
    } else if (text[0] == '<' || text[0] == '>' || text[0] == '|') {
        for (size_t i = 0; i < DAMACY__COUNT(damacy__zarr2_types); i++) {
            if (damacy__json_kind_of(parser->json, value) == DAMACY__JSON_STRING &&
                damacy__json_equals(parser->json, value, text) &&
                strcmp(text + 1, damacy__zarr2_types[i].name) == 0) {
                dtype = damacy__zarr2_types[i].dtype;
            }
        }
    }
    if (dtype == DAMACY_NATIVE) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported data type \"%s\"", text);
    }
    layout->dtype = dtype;
    layout->item_size = (uint32_t)damacy__dtype_size(dtype);
    if (text[0] == '|' && layout->item_size > 1) {
        return damacy__fail(err, DAMACY_DECODE, "dtype \"%s\" does not say its byte order", text);
    }
    *is_big_endian = text[0] == '>' && layout->item_size > 1;
    for (size_t i = 0; i < DAMACY__COUNT(damacy__dtypes) && !parser->type; i++) {
        parser->type = damacy__dtypes[i].dtype == dtype ? &damacy__dtypes[i] : NULL;
    }
    return damacy__json_text(parser->json, value, parser->alloc, &parser->document->data_type, err);
}

/* As in version 3; besides, a number may be a string or the only element of an array. */
static damacy_status damacy__zarr2_fill(const damacy__zarr_parser* parser, damacy_error* err)
{
    const damacy__json* json = parser->json;
    uint64_t* const bits = &parser->document->layout.fill;
    uint32_t value;

    DAMACY__TRY(damacy__zarr_member(parser, "fill_value", &value, err));
    if (damacy__json_kind_of(json, value) == DAMACY__JSON_ARRAY &&
        damacy__json_count(json, value) == 1) {
        value = damacy__json_first(json, value);
    }
    if (damacy__json_kind_of(json, value) == DAMACY__JSON_STRING) {
        damacy__json_scan scan = {0};
        char text[64];

        scan.size = damacy__json_decode(json, value, text, sizeof text);
        scan.text = (const uint8_t*)text;
        if (scan.size > 0 && scan.size <= sizeof text && damacy__json_scan_number(&scan) &&
            scan.at == scan.size &&
            damacy__fill_number(damacy__span_of(text, scan.size), parser->type, bits)) {
            return DAMACY_OK;
        }
    }
    return damacy__fill_parse(json, value, parser->type, bits, err);
}

static damacy_status damacy__zarr2_keys(const damacy__zarr_parser* parser, damacy_error* err)
{
    damacy__layout* const layout = &parser->document->layout;
    const uint32_t separator = damacy__json_member(parser->json, 0, "dimension_separator");
    char text[64];

    layout->key_is_v2 = 1;
    layout->key_separator = damacy__json_equals(parser->json, separator, "/") ? '/' : '.';
    if (separator != DAMACY__JSON_NONE && layout->key_separator == '.' &&
        !damacy__json_equals(parser->json, separator, ".")) {
        return damacy__fail(err, DAMACY_DECODE, "dimension_separator is \"%s\", not \".\" or \"/\"",
                            damacy__json_show(parser->json, separator, text, sizeof text));
    }
    return DAMACY_OK;
}

/* null, an empty list, or filters that only round when encoding. */
static damacy_status damacy__zarr2_filters(const damacy__zarr_parser* parser, damacy_error* err)
{
    const damacy__json* json = parser->json;
    uint32_t value;
    char text[64];

    DAMACY__TRY(damacy__zarr_member(parser, "filters", &value, err));
    if (damacy__json_kind_of(json, value) == DAMACY__JSON_NULL) {
        return DAMACY_OK;
    }
    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "filters is neither null nor an array");
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v)) {
        const uint32_t id = damacy__json_member(json, v, "id");

        if (damacy__json_kind_of(json, id) != DAMACY__JSON_STRING) {
            return damacy__fail(err, DAMACY_DECODE, "filter without an id");
        }
        if (!damacy__json_equals(json, id, "bitround") &&
            !damacy__json_equals(json, id, "quantize")) {
            return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported filter \"%s\"",
                                damacy__json_show(json, id, text, sizeof text));
        }
    }
    return DAMACY_OK;
}

/* Its kind of codec; 0: chunks are not compressed. */
static damacy_status damacy__zarr2_compressor(const damacy__zarr_parser* parser, uint32_t* kind,
                                              damacy_error* err)
{
    static const struct {
        const char* id;
        uint32_t kind;
    } known[] = {{"blosc", DAMACY__CODEC_BLOSC},
                 {"zstd", DAMACY__CODEC_ZSTD},
                 {"gzip", DAMACY__CODEC_GZIP},
                 {"zlib", DAMACY__CODEC_ZLIB},
                 {"lz4", DAMACY__CODEC_LZ4}};
    const damacy__json* json = parser->json;
    uint32_t value;
    uint32_t id;
    char text[64];

    *kind = 0;
    DAMACY__TRY(damacy__zarr_member(parser, "compressor", &value, err));
    if (damacy__json_kind_of(json, value) == DAMACY__JSON_NULL) {
        return DAMACY_OK;
    }
    id = damacy__json_member(json, value, "id");
    if (damacy__json_kind_of(json, id) != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "compressor is neither null nor an object with id");
    }
    for (size_t i = 0; i < DAMACY__COUNT(known); i++) {
        *kind = damacy__json_equals(json, id, known[i].id) ? known[i].kind : *kind;
    }
    return *kind ? DAMACY_OK
                 : damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported compressor \"%s\"",
                                damacy__json_show(json, id, text, sizeof text));
}

static damacy_status damacy__zarr2_chain(const damacy__zarr_parser* parser, bool is_big_endian,
                                         damacy_error* err)
{
    damacy__document* const document = parser->document;
    const uint32_t rank = document->layout.rank;
    damacy__codec* codec;
    bool is_reversed;
    uint32_t value;
    uint32_t kind;
    char text[64];

    DAMACY__TRY(damacy__zarr_member(parser, "order", &value, err));
    is_reversed = damacy__json_equals(parser->json, value, "F");
    if (!is_reversed && !damacy__json_equals(parser->json, value, "C")) {
        return damacy__fail(err, DAMACY_DECODE, "order is \"%s\", not \"C\" or \"F\"",
                            damacy__json_show(parser->json, value, text, sizeof text));
    }
    DAMACY__TRY(damacy__zarr2_filters(parser, err));
    DAMACY__TRY(damacy__zarr2_compressor(parser, &kind, err));
    document->chain.n = 1 + (uint32_t)is_reversed + (kind != 0);
    codec = damacy__new(parser->alloc, document->chain.n, damacy__codec);
    if (!codec) {
        return damacy__fail(err, DAMACY_OOM, "codecs");
    }
    document->chain.codecs = codec;
    if (is_reversed) {
        codec->kind = DAMACY__CODEC_TRANSPOSE;
        for (uint32_t i = 0; i < rank; i++) {
            codec->order[i] = rank - 1 - i;
        }
        codec++;
    }
    codec->kind = DAMACY__CODEC_BYTES;
    codec->big_endian = is_big_endian;
    if (kind) {
        codec[1].kind = kind;
    }
    return damacy__zarr_resolve(document, parser->alloc, err);
}

static damacy_status damacy__zarr2_array(damacy__zarr_parser* parser, damacy_error* err)
{
    damacy__layout* const layout = &parser->document->layout;
    bool is_big_endian = false;
    uint32_t value;

    parser->document->node = DAMACY__NODE_ARRAY;
    DAMACY__TRY(damacy__zarr_shape(parser, err));
    DAMACY__TRY(damacy__zarr2_dtype(parser, &is_big_endian, err));
    DAMACY__TRY(damacy__zarr2_fill(parser, err));
    DAMACY__TRY(damacy__zarr_member(parser, "chunks", &value, err));
    DAMACY__TRY(damacy__extents_parse(parser->json, value, "chunks", 1, layout->rank,
                                      layout->object_shape, err));
    DAMACY__TRY(damacy__zarr_objects(layout, err));
    DAMACY__TRY(damacy__zarr2_keys(parser, err));
    return damacy__zarr2_chain(parser, is_big_endian, err);
}

static damacy_status damacy__zarr2_root(damacy__zarr_parser* parser, damacy_error* err)
{
    uint32_t value;
    uint64_t format;

    DAMACY__TRY(damacy__json_refuse_duplicates(parser->json, parser->alloc, err));
    if (damacy__json_kind_of(parser->json, 0) != DAMACY__JSON_OBJECT) {
        return damacy__fail(err, DAMACY_DECODE, "metadata is not a JSON object");
    }
    DAMACY__TRY(damacy__zarr_member(parser, "zarr_format", &value, err));
    if (!damacy__json_u64(parser->json, value, &format) || format != 2) {
        return damacy__fail(err, DAMACY_DECODE, "zarr_format is not the integer 2");
    }
    parser->document->zarr_format = 2;
    if (damacy__json_member(parser->json, 0, "shape") != DAMACY__JSON_NONE) {
        return damacy__zarr2_array(parser, err);
    }
    parser->document->node = DAMACY__NODE_GROUP;
    return DAMACY_OK;
}

/* An array with a string for every axis. Attributes are free: anything else is no error. */
static bool damacy__zarr2_are_names(const damacy__json* json, uint32_t value, uint32_t rank)
{
    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, value) != rank) {
        return false;
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v)) {
        const damacy__span source =
            damacy__json_source(json, v); /* an escape may hide a zero character */

        if (damacy__json_kind_of(json, v) != DAMACY__JSON_STRING ||
            memchr(source.ptr, '\\', source.size)) {
            return false;
        }
    }
    return true;
}

/* Attributes, and the names of axes as xarray keeps them there, where they fit. */
static damacy_status damacy__zarr2_attributes(damacy__zarr_parser* parser, damacy__span text,
                                              damacy_error* err)
{
    damacy__json json = {0};
    damacy_status status;
    uint32_t names;

    if (text.size == 0) {
        return damacy__zarr_attributes(parser, DAMACY__JSON_NONE, err);
    }
    DAMACY__TRY(damacy__zarr_json(&json, parser->alloc, text, err));
    parser->json = &json;
    status = damacy__json_refuse_duplicates(&json, parser->alloc, err);
    if (status == DAMACY_OK) {
        status = damacy__zarr_attributes(parser, 0, err);
    }
    names = damacy__json_member(&json, 0, "_ARRAY_DIMENSIONS");
    if (status == DAMACY_OK && parser->document->node == DAMACY__NODE_ARRAY &&
        damacy__zarr2_are_names(&json, names, parser->document->layout.rank)) {
        status = damacy__zarr_names(parser, names, err);
    }
    parser->json = NULL;
    damacy__json_deinit(&json, parser->alloc);
    return status;
}

/* text: the bytes of .zarray or .zgroup. attributes: those of .zattrs; size 0 where there is none.
 * DECODE, UNSUPPORTED or OOM. Free with damacy__document_deinit. */
static damacy_status damacy__zarr2_parse(damacy__alloc* alloc, damacy__span text,
                                         damacy__span attributes, damacy__document* out,
                                         damacy_error* err)
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
    status = damacy__zarr2_root(&parser, err);
    damacy__json_deinit(&json, alloc);
    if (status == DAMACY_OK) {
        status = damacy__zarr2_attributes(&parser, attributes, err);
    }
    if (status != DAMACY_OK) {
        damacy__document_deinit(&document, alloc);
        return status;
    }
    *out = document;
    return DAMACY_OK;
}
