/* The "codecs" member of array metadata -> a chain, with every rule on order and configuration.
 *
 * Configurations of compressors are only a record of what the writer did, and are not read:
 * decoding goes by the header of the compressed bytes. Everything else is checked, and what is not
 * known is refused by name. Shards within shards make a list of chains, not a tree, so nothing
 * recurses. */
#pragma once
#include "base/alloc.h"
#include "format/extension.h"
#include "format/layout.h"

/* Which of the three kinds of codec. */
typedef enum damacy__codec_stage {
    DAMACY__ARRAY_TO_ARRAY = 0,
    DAMACY__ARRAY_TO_BYTES,
    DAMACY__BYTES_TO_BYTES
} damacy__codec_stage;

typedef struct damacy__codec_name {
    const char* name;
    uint32_t kind; /* 0: decoding changes nothing */
    damacy__codec_stage stage;
} damacy__codec_name;

/* "endian" is an older name of "bytes". The numcodecs names mean the formats that numcodecs writes;
 * bitround only rounds when encoding. */
static const damacy__codec_name damacy__codec_names[] = {
    {"bytes", DAMACY__CODEC_BYTES, DAMACY__ARRAY_TO_BYTES},
    {"endian", DAMACY__CODEC_BYTES, DAMACY__ARRAY_TO_BYTES},
    {"sharding_indexed", DAMACY__CODEC_SHARDING, DAMACY__ARRAY_TO_BYTES},
    {"transpose", DAMACY__CODEC_TRANSPOSE, DAMACY__ARRAY_TO_ARRAY},
    {"bitround", 0, DAMACY__ARRAY_TO_ARRAY},
    {"numcodecs.bitround", 0, DAMACY__ARRAY_TO_ARRAY},
    {"zstd", DAMACY__CODEC_ZSTD, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.zstd", DAMACY__CODEC_ZSTD, DAMACY__BYTES_TO_BYTES},
    {"blosc", DAMACY__CODEC_BLOSC, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.blosc", DAMACY__CODEC_BLOSC, DAMACY__BYTES_TO_BYTES},
    {"gzip", DAMACY__CODEC_GZIP, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.gzip", DAMACY__CODEC_GZIP, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.zlib", DAMACY__CODEC_ZLIB, DAMACY__BYTES_TO_BYTES},
    {"numcodecs.lz4", DAMACY__CODEC_LZ4, DAMACY__BYTES_TO_BYTES},
    {"crc32c", DAMACY__CODEC_CRC32C, DAMACY__BYTES_TO_BYTES},
};

/* What a chain encodes. */
typedef struct damacy__chain_input {
    const char* what; /* "codecs" or "index_codecs" */
    uint32_t rank;
    bool has_byte_order; /* elements of several bytes whose order matters */
    bool is_index;
} damacy__chain_input;

static damacy_status damacy__codecs_parse(const damacy__json* json, uint32_t value,
                                          damacy__alloc* alloc, const damacy__chain_input* input,
                                          const int64_t* shape, damacy__chain* out,
                                          damacy_error* err);
static void damacy__chain_deinit(damacy__chain* chain, damacy__alloc* alloc);
static void damacy__chain_summary(const damacy__chain* chain, char* text, size_t capacity);

/* A chain under construction. */
typedef struct damacy__chain_draft {
    damacy__codec codecs[DAMACY__MAX_CODECS + 1]; /* and "bytes", where a writer left it out */
    uint32_t n;
    uint32_t sharding; /* configuration of the sharding codec; DAMACY__JSON_NONE: there is none */
} damacy__chain_draft;

/* Without "endian" the order is little, as zarr-python reads it. */
static damacy_status damacy__codec_bytes(const damacy__json* json, uint32_t configuration,
                                         const damacy__chain_input* input, damacy__codec* codec,
                                         damacy_error* err)
{
    static const char* const known[] = {"endian", NULL};
    const uint32_t endian = damacy__json_member(json, configuration, "endian");
    char text[64];

    DAMACY__TRY(damacy__members_check(json, configuration, known, "codec \"bytes\"", err));
    if (damacy__json_equals(json, endian, "big")) {
        codec->big_endian = input->has_byte_order;
    } else if (endian != DAMACY__JSON_NONE && !damacy__json_equals(json, endian, "little")) {
        return damacy__fail(err, DAMACY_DECODE,
                            "codec \"bytes\": endian is %s, not \"little\" or \"big\"",
                            damacy__json_show(json, endian, text, sizeof text));
    }
    return DAMACY_OK;
}

/* order: a permutation, or the older "C" (as it is) and "F" (axes reversed). */
static damacy_status damacy__codec_transpose(const damacy__json* json, uint32_t configuration,
                                             uint32_t rank, damacy__codec* codec, damacy_error* err)
{
    static const char* const known[] = {"order", NULL};
    const uint32_t order = damacy__json_member(json, configuration, "order");
    const bool is_reversed = damacy__json_equals(json, order, "F");
    uint64_t seen = 0;
    uint32_t i = 0;

    DAMACY__TRY(damacy__members_check(json, configuration, known, "codec \"transpose\"", err));
    if (is_reversed || damacy__json_equals(json, order, "C")) {
        for (; i < rank; i++) {
            codec->order[i] = is_reversed ? rank - 1 - i : i;
        }
        return DAMACY_OK;
    }
    if (damacy__json_kind_of(json, order) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, order) != rank) {
        return damacy__fail(err, DAMACY_DECODE,
                            "codec \"transpose\": order is not a permutation of %u axes", rank);
    }
    for (uint32_t v = damacy__json_first(json, order); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, order, v), i++) {
        uint64_t axis;
        if (!damacy__json_u64(json, v, &axis) || axis >= rank || (seen >> axis & 1)) {
            return damacy__fail(err, DAMACY_DECODE,
                                "codec \"transpose\": order is not a permutation of %u axes", rank);
        }
        seen |= UINT64_C(1) << axis;
        codec->order[i] = (uint32_t)axis;
    }
    return DAMACY_OK;
}

/* Adds one codec to the draft. *stage is that of the codec before it. */
static damacy_status damacy__codec_parse(const damacy__json* json, uint32_t value,
                                         const damacy__chain_input* input,
                                         damacy__chain_draft* draft, damacy__codec_stage* stage,
                                         damacy_error* err)
{
    damacy__extension extension;
    const damacy__codec_name* found = NULL;
    damacy__codec* codec;
    char name[64];

    DAMACY__TRY(damacy__extension_parse(json, value, "codec", &extension, err));
    for (size_t i = 0; i < DAMACY__COUNT(damacy__codec_names); i++) {
        if (damacy__json_equals(json, extension.name, damacy__codec_names[i].name)) {
            found = &damacy__codec_names[i];
        }
    }
    if (!found) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported codec \"%s\"",
                            damacy__json_show(json, extension.name, name, sizeof name));
    }
    if (found->stage < *stage ||
        (found->stage == DAMACY__ARRAY_TO_BYTES && *stage == DAMACY__ARRAY_TO_BYTES)) {
        return damacy__fail(err, DAMACY_DECODE, "%s: codec \"%s\" cannot follow the one before it",
                            input->what, found->name);
    }
    if (input->is_index && found->kind != DAMACY__CODEC_BYTES &&
        found->kind != DAMACY__CODEC_TRANSPOSE && found->kind != DAMACY__CODEC_CRC32C) {
        return damacy__fail(err, DAMACY_DECODE,
                            "index_codecs: codec \"%s\" does not have a fixed size", found->name);
    }
    if (found->stage == DAMACY__BYTES_TO_BYTES && *stage == DAMACY__ARRAY_TO_ARRAY) {
        if (input->is_index) {
            return damacy__fail(err, DAMACY_DECODE, "index_codecs: codec \"bytes\" is missing");
        }
        draft->codecs[draft->n++].kind = DAMACY__CODEC_BYTES; /* as GDAL writes it */
    }
    *stage = found->stage;
    if (found->kind == 0) {
        return DAMACY_OK;
    }
    codec = &draft->codecs[draft->n++];
    codec->kind = found->kind;
    if (found->kind == DAMACY__CODEC_BYTES) {
        return damacy__codec_bytes(json, extension.configuration, input, codec, err);
    }
    if (found->kind == DAMACY__CODEC_TRANSPOSE) {
        return damacy__codec_transpose(json, extension.configuration, input->rank, codec, err);
    }
    if (found->kind == DAMACY__CODEC_SHARDING) {
        if (extension.configuration == DAMACY__JSON_NONE) {
            return damacy__fail(err, DAMACY_DECODE,
                                "codec \"sharding_indexed\" has no configuration");
        }
        draft->sharding = extension.configuration;
    }
    return DAMACY_OK;
}

/* Parses one list of codecs; a sharding codec is left empty, its configuration in *sharding. */
static damacy_status damacy__chain_parse(const damacy__json* json, uint32_t value,
                                         damacy__alloc* alloc, const damacy__chain_input* input,
                                         damacy__chain* out, uint32_t* sharding, damacy_error* err)
{
    damacy__chain_draft draft;
    damacy__codec_stage stage = DAMACY__ARRAY_TO_ARRAY;
    damacy__codec* codecs;

    memset(&draft, 0, sizeof draft);
    draft.sharding = DAMACY__JSON_NONE;
    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, value) == 0) {
        return damacy__fail(err, DAMACY_DECODE, "%s is not an array of at least one codec",
                            input->what);
    }
    if (damacy__json_count(json, value) > DAMACY__MAX_CODECS) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "%s: more than %u codecs are not supported",
                            input->what, DAMACY__MAX_CODECS);
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v)) {
        DAMACY__TRY(damacy__codec_parse(json, v, input, &draft, &stage, err));
    }
    if (stage == DAMACY__ARRAY_TO_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE,
                            "%s: no codec turns the array into bytes, such as \"bytes\"",
                            input->what);
    }
    codecs = damacy__new(alloc, draft.n, damacy__codec);
    if (!codecs) {
        return damacy__fail(err, DAMACY_OOM, "%s", input->what);
    }
    memcpy(codecs, draft.codecs, draft.n * sizeof codecs[0]);
    out->codecs = codecs;
    out->n = draft.n;
    *sharding = draft.sharding;
    return DAMACY_OK;
}

/* Chunk shape, grid and index location of a sharding codec that sees an array of this shape. */
static damacy_status damacy__sharding_parse(const damacy__json* json, uint32_t configuration,
                                            uint32_t rank, const int64_t* shape,
                                            damacy__sharding* out, damacy_error* err)
{
    static const char* const known[] = {"chunk_shape", "codecs", "index_codecs", "index_location",
                                        NULL};
    const uint32_t location = damacy__json_member(json, configuration, "index_location");

    DAMACY__TRY(
        damacy__members_check(json, configuration, known, "codec \"sharding_indexed\"", err));
    DAMACY__TRY(damacy__extents_parse(json, damacy__json_member(json, configuration, "chunk_shape"),
                                      "chunk_shape of \"sharding_indexed\"", 1, rank,
                                      out->chunk_shape, err));
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] % out->chunk_shape[i] != 0) {
            return damacy__fail(err, DAMACY_DECODE,
                                "axis %u: inner chunks of %" PRId64
                                " do not divide a shard of %" PRId64,
                                i, out->chunk_shape[i], shape[i]);
        }
        out->grid[i] = shape[i] / out->chunk_shape[i];
    }
    if (!damacy__product(out->grid, rank, &out->n_entries) ||
        out->n_entries > DAMACY__MAX_ENTRIES) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "a shard of more than %" PRIu64 " chunks is not supported",
                            DAMACY__MAX_ENTRIES);
    }
    out->index_at_start = damacy__json_equals(json, location, "start");
    if (location != DAMACY__JSON_NONE && !out->index_at_start &&
        !damacy__json_equals(json, location, "end")) {
        return damacy__fail(err, DAMACY_DECODE,
                            "index_location of \"sharding_indexed\" is not \"start\" or \"end\"");
    }
    return DAMACY_OK;
}

/* Shape that the array-to-bytes codec of a chain sees. */
static void damacy__chain_shape(const damacy__chain* chain, uint32_t rank, const int64_t* shape,
                                int64_t* out)
{
    uint32_t axes[DAMACY_MAX_RANK];

    for (uint32_t i = 0; i < rank; i++) {
        axes[i] = i;
    }
    (void)damacy__chain_axes(chain, rank, axes);
    for (uint32_t i = 0; i < rank; i++) {
        out[i] = shape[axes[i]];
    }
}

/* Fills the sharding codec of a chain. *inner receives the configuration of the one within. */
static damacy_status damacy__shard_level_parse(const damacy__json* json, uint32_t configuration,
                                               damacy__alloc* alloc,
                                               const damacy__chain_input* input,
                                               const int64_t* shape, damacy__sharding* out,
                                               uint32_t* inner, damacy_error* err)
{
    damacy__chain_input index_input = {0};
    uint32_t none;

    index_input.what = "index_codecs";
    index_input.rank = input->rank + 1;
    index_input.has_byte_order = true;
    index_input.is_index = true;
    DAMACY__TRY(damacy__sharding_parse(json, configuration, input->rank, shape, out, err));
    DAMACY__TRY(damacy__chain_parse(json, damacy__json_member(json, configuration, "index_codecs"),
                                    alloc, &index_input, &out->index_chain, &none, err));
    out->index_size = out->n_entries * 16;
    for (uint32_t i = 0; i < out->index_chain.n; i++) {
        out->index_size += out->index_chain.codecs[i].kind == DAMACY__CODEC_CRC32C ? 4 : 0;
    }
    return damacy__chain_parse(json, damacy__json_member(json, configuration, "codecs"), alloc,
                               input, &out->chunk_chain, inner, err);
}

static damacy__codec* damacy__chain_sharding(const damacy__chain* chain)
{
    for (uint32_t i = 0; i < chain->n; i++) {
        if (chain->codecs[i].kind == DAMACY__CODEC_SHARDING) {
            return &chain->codecs[i];
        }
    }
    return NULL;
}

/* shape: of a cell of the chunk grid, in the axes of the array. */
static damacy_status damacy__codecs_parse(const damacy__json* json, uint32_t value,
                                          damacy__alloc* alloc, const damacy__chain_input* input,
                                          const int64_t* shape, damacy__chain* out,
                                          damacy_error* err)
{
    damacy__chain chain = {0};
    damacy__chain* at = &chain;
    int64_t seen[DAMACY_MAX_RANK] = {0};
    uint32_t configuration = DAMACY__JSON_NONE;
    uint32_t level = 0;
    damacy_status status = damacy__chain_parse(json, value, alloc, input, at, &configuration, err);

    memcpy(seen, shape, input->rank * sizeof seen[0]);
    while (status == DAMACY_OK && configuration != DAMACY__JSON_NONE) {
        damacy__sharding* sharding;
        int64_t outer[DAMACY_MAX_RANK];

        if (level++ == DAMACY__MAX_SHARD_LEVELS) {
            status = damacy__fail(err, DAMACY_UNSUPPORTED,
                                  "shards within shards beyond %u levels are not supported",
                                  DAMACY__MAX_SHARD_LEVELS);
            break;
        }
        sharding = damacy__new(alloc, 1, damacy__sharding);
        if (!sharding) {
            status = damacy__fail(err, DAMACY_OOM, "%s", input->what);
            break;
        }
        damacy__chain_sharding(at)->sharding = sharding;
        memcpy(outer, seen, sizeof outer);
        damacy__chain_shape(at, input->rank, outer, seen);
        status = damacy__shard_level_parse(json, configuration, alloc, input, seen, sharding,
                                           &configuration, err);
        memcpy(seen, sharding->chunk_shape, sizeof seen);
        at = &sharding->chunk_chain;
    }
    if (status != DAMACY_OK) {
        damacy__chain_deinit(&chain, alloc);
        return status;
    }
    *out = chain;
    return DAMACY_OK;
}

/* Frees a chain and the shards within it. */
static void damacy__chain_deinit(damacy__chain* chain, damacy__alloc* alloc)
{
    damacy__chain at = *chain;

    memset(chain, 0, sizeof *chain);
    while (at.codecs) {
        const damacy__codec* const codec = damacy__chain_sharding(&at);
        damacy__sharding* const sharding = codec ? codec->sharding : NULL;
        damacy__chain next = {0};

        if (sharding) {
            next = sharding->chunk_chain;
            damacy__free(alloc, sharding->index_chain.codecs, sharding->index_chain.n);
            damacy__free(alloc, sharding, 1);
        }
        damacy__free(alloc, at.codecs, at.n);
        at = next;
    }
}

/* Text such as "transpose,sharding_indexed(bytes,zstd)", cut to capacity. */
static void damacy__chain_summary(const damacy__chain* chain, char* text, size_t capacity)
{
    const damacy__chain* chains[DAMACY__MAX_SHARD_LEVELS + 1];
    uint32_t next[DAMACY__MAX_SHARD_LEVELS + 1] = {0};
    uint32_t level = 0;
    size_t size = 0;

    chains[0] = chain;
    text[0] = '\0';
    for (;;) {
        const char* name = "";
        const damacy__codec* codec;

        if (next[level] == chains[level]->n) {
            if (level == 0) {
                return;
            }
            level--;
            size += (size_t)snprintf(text + size, capacity - size, ")");
        } else {
            codec = &chains[level]->codecs[next[level]++];
            for (size_t i = DAMACY__COUNT(damacy__codec_names); i-- > 0;) {
                if (damacy__codec_names[i].kind == codec->kind) {
                    name = damacy__codec_names[i].name;
                }
            }
            name += strncmp(name, "numcodecs.", 10) == 0 ? 10 : 0;
            size += (size_t)snprintf(text + size, capacity - size, "%s%s%s",
                                     next[level] > 1 ? "," : "", name, codec->sharding ? "(" : "");
            if (codec->sharding) {
                chains[++level] = &codec->sharding->chunk_chain;
                next[level] = 0;
            }
        }
        size = DAMACY__MIN(size, capacity - 1);
    }
}
