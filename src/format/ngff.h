/* Attributes of an OME-NGFF group -> axes and resolution levels of its first multiscale image.
 *
 * Reads versions 0.1 to 0.5: "multiscales" at the root or, since 0.5, below "ome". Paths come from
 * the metadata and are refused when they could lead out of the group. */
#pragma once
#include "base/error.h"
#include "format/decimal.h"
#include "format/json.h"

/* Texts are NULL where the metadata has none. */
typedef struct damacy__ngff {
    char* version;
    uint32_t n_axes; /* 0: the metadata does not say */
    char* axis_names[DAMACY_MAX_RANK];
    char* axis_types[DAMACY_MAX_RANK];
    char* axis_units[DAMACY_MAX_RANK];
    uint32_t n_levels;
    char** paths;         /* n_levels */
    damacy_level* levels; /* n_levels; path points into paths */
} damacy__ngff;

enum { DAMACY__NGFF_MAX_LEVELS = 1024, DAMACY__NGFF_MAX_PATH = 1024 };

static damacy_status damacy__ngff_parse(damacy__alloc* alloc, damacy__span attributes,
                                        damacy__ngff* out, damacy_error* err);
static void damacy__ngff_deinit(damacy__ngff* ngff, damacy__alloc* alloc);

static void damacy__ngff_free_text(damacy__alloc* alloc, char* text)
{
    damacy__free(alloc, text, text ? strlen(text) + 1 : 0);
}

static void damacy__ngff_deinit(damacy__ngff* ngff, damacy__alloc* alloc)
{
    damacy__ngff_free_text(alloc, ngff->version);
    for (uint32_t i = 0; i < DAMACY_MAX_RANK; i++) {
        damacy__ngff_free_text(alloc, ngff->axis_names[i]);
        damacy__ngff_free_text(alloc, ngff->axis_types[i]);
        damacy__ngff_free_text(alloc, ngff->axis_units[i]);
    }
    for (uint32_t i = 0; ngff->paths && i < ngff->n_levels; i++) {
        damacy__ngff_free_text(alloc, ngff->paths[i]);
    }
    damacy__free(alloc, ngff->paths, ngff->n_levels);
    damacy__free(alloc, ngff->levels, ngff->n_levels);
    memset(ngff, 0, sizeof *ngff);
}

/* Relative, every component a plain name: none empty, "." or "..", no backslash or control
 * character. */
static bool damacy__ngff_is_path(const char* path)
{
    size_t start = 0;

    for (size_t i = 0;; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            const size_t len = i - start;
            if (len == 0 ||
                (path[start] == '.' && (len == 1 || (len == 2 && path[start + 1] == '.')))) {
                return false;
            }
            start = i + 1;
        } else if (path[i] == '\\' || path[i] == 0x7f || (path[i] > 0 && path[i] < 0x20)) {
            return false;
        }
        if (path[i] == '\0') {
            return i <= DAMACY__NGFF_MAX_PATH;
        }
    }
}

/* A string member as text; leaves *out alone when it is absent or null. */
static damacy_status damacy__ngff_member(const damacy__json* json, uint32_t object, const char* key,
                                         damacy__alloc* alloc, char** out, damacy_error* err)
{
    const uint32_t value = damacy__json_member(json, object, key);
    const damacy__json_kind kind = damacy__json_kind_of(json, value);

    if (kind == DAMACY__JSON_ABSENT || kind == DAMACY__JSON_NULL) {
        return DAMACY_OK;
    }
    if (kind != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "multiscales: %s is not a string", key);
    }
    return damacy__json_text(json, value, alloc, out, err);
}

/* axes: objects since 0.4, names in 0.3, absent before. */
static damacy_status damacy__ngff_axes(const damacy__json* json, uint32_t image,
                                       damacy__alloc* alloc, damacy__ngff* ngff, damacy_error* err)
{
    const uint32_t axes = damacy__json_member(json, image, "axes");

    if (axes == DAMACY__JSON_NONE) {
        return DAMACY_OK;
    }
    if (damacy__json_kind_of(json, axes) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, axes) == 0 || damacy__json_count(json, axes) > DAMACY_MAX_RANK) {
        return damacy__fail(err, DAMACY_DECODE, "multiscales: axes is not an array of 1 to %d axes",
                            DAMACY_MAX_RANK);
    }
    for (uint32_t v = damacy__json_first(json, axes); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, axes, v)) {
        const uint32_t i = ngff->n_axes++;
        if (damacy__json_kind_of(json, v) == DAMACY__JSON_STRING) {
            DAMACY__TRY(damacy__json_text(json, v, alloc, &ngff->axis_names[i], err));
            continue;
        }
        if (damacy__json_kind_of(json, v) != DAMACY__JSON_OBJECT) {
            return damacy__fail(err, DAMACY_DECODE, "multiscales: axes[%u] is not an object", i);
        }
        DAMACY__TRY(damacy__ngff_member(json, v, "name", alloc, &ngff->axis_names[i], err));
        DAMACY__TRY(damacy__ngff_member(json, v, "type", alloc, &ngff->axis_types[i], err));
        DAMACY__TRY(damacy__ngff_member(json, v, "unit", alloc, &ngff->axis_units[i], err));
        if (!ngff->axis_names[i]) {
            return damacy__fail(err, DAMACY_DECODE, "multiscales: axes[%u] has no name", i);
        }
    }
    return DAMACY_OK;
}

/* One number per axis. */
static damacy_status damacy__ngff_vector(const damacy__json* json, uint32_t value, const char* what,
                                         uint32_t n_axes, double* out, uint32_t* n,
                                         damacy_error* err)
{
    damacy__float_format format;
    char text[64];

    format.n_exponent = 11;
    format.n_fraction = 52;
    *n = 0;
    if (damacy__json_kind_of(json, value) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, value) > DAMACY_MAX_RANK ||
        (n_axes != 0 && damacy__json_count(json, value) != n_axes)) {
        return damacy__fail(err, DAMACY_DECODE,
                            "coordinateTransformations: %s is not an array of %u numbers", what,
                            n_axes);
    }
    for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, value, v)) {
        uint64_t bits;
        if (damacy__json_kind_of(json, v) != DAMACY__JSON_NUMBER ||
            !damacy__decimal_to_float(damacy__json_source(json, v), format, &bits)) {
            return damacy__fail(err, DAMACY_DECODE,
                                "coordinateTransformations: %s[%u] is %s, not a number", what, *n,
                                damacy__json_show(json, v, text, sizeof text));
        }
        memcpy(&out[(*n)++], &bits, sizeof bits);
    }
    return DAMACY_OK;
}

/* Applies one transformation after those that level holds. */
static damacy_status damacy__ngff_transform(const damacy__json* json, uint32_t value,
                                            uint32_t n_axes, damacy_level* level, damacy_error* err)
{
    const uint32_t type = damacy__json_member(json, value, "type");
    double vector[DAMACY_MAX_RANK];
    uint32_t n;
    char text[64];

    if (damacy__json_kind_of(json, type) != DAMACY__JSON_STRING) {
        return damacy__fail(err, DAMACY_DECODE, "coordinateTransformations: no type");
    }
    if (damacy__json_equals(json, type, "identity")) {
        return DAMACY_OK;
    }
    if (damacy__json_equals(json, type, "scale")) {
        DAMACY__TRY(damacy__ngff_vector(json, damacy__json_member(json, value, "scale"), "scale",
                                        n_axes, vector, &n, err));
        for (uint32_t i = 0; i < n; i++) {
            level->scale[i] *= vector[i];
            level->translation[i] *= vector[i];
        }
        return DAMACY_OK;
    }
    if (damacy__json_equals(json, type, "translation")) {
        DAMACY__TRY(damacy__ngff_vector(json, damacy__json_member(json, value, "translation"),
                                        "translation", n_axes, vector, &n, err));
        for (uint32_t i = 0; i < n; i++) {
            level->translation[i] += vector[i];
        }
        return DAMACY_OK;
    }
    return damacy__fail(err, DAMACY_UNSUPPORTED, "unsupported coordinate transformation \"%s\"",
                        damacy__json_show(json, type, text, sizeof text));
}

/* The coordinateTransformations of a dataset or of the whole image, in order. */
static damacy_status damacy__ngff_transforms(const damacy__json* json, uint32_t owner,
                                             uint32_t n_axes, damacy_level* level,
                                             damacy_error* err)
{
    const uint32_t list = damacy__json_member(json, owner, "coordinateTransformations");
    const damacy__json_kind kind = damacy__json_kind_of(json, list);

    if (kind == DAMACY__JSON_ABSENT || kind == DAMACY__JSON_NULL) {
        return DAMACY_OK;
    }
    if (kind != DAMACY__JSON_ARRAY) {
        return damacy__fail(err, DAMACY_DECODE, "coordinateTransformations is not an array");
    }
    for (uint32_t v = damacy__json_first(json, list); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, list, v)) {
        DAMACY__TRY(damacy__ngff_transform(json, v, n_axes, level, err));
    }
    return DAMACY_OK;
}

static damacy_status damacy__ngff_levels(const damacy__json* json, uint32_t image,
                                         damacy__alloc* alloc, damacy__ngff* ngff,
                                         damacy_error* err)
{
    const uint32_t datasets = damacy__json_member(json, image, "datasets");
    uint32_t i = 0;

    if (damacy__json_kind_of(json, datasets) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, datasets) == 0 ||
        damacy__json_count(json, datasets) > DAMACY__NGFF_MAX_LEVELS) {
        return damacy__fail(err, DAMACY_DECODE,
                            "multiscales: datasets is not an array of 1 to %d levels",
                            DAMACY__NGFF_MAX_LEVELS);
    }
    ngff->n_levels = damacy__json_count(json, datasets);
    ngff->paths = damacy__new(alloc, ngff->n_levels, char*);
    ngff->levels = damacy__new(alloc, ngff->n_levels, damacy_level);
    if (!ngff->paths || !ngff->levels) {
        return damacy__fail(err, DAMACY_OOM, "multiscales: %u levels", ngff->n_levels);
    }
    for (uint32_t v = damacy__json_first(json, datasets); v != DAMACY__JSON_NONE;
         v = damacy__json_next(json, datasets, v), i++) {
        damacy_level* const level = &ngff->levels[i];

        DAMACY__TRY(damacy__ngff_member(json, v, "path", alloc, &ngff->paths[i], err));
        if (!ngff->paths[i]) {
            return damacy__fail(err, DAMACY_DECODE, "multiscales: datasets[%u] has no path", i);
        }
        if (!damacy__ngff_is_path(ngff->paths[i])) {
            return damacy__fail(err, DAMACY_DECODE,
                                "multiscales: datasets[%u]: the path \"%.64s\" is not a plain "
                                "relative path",
                                i, ngff->paths[i]);
        }
        level->path = ngff->paths[i];
        for (uint32_t k = 0; k < DAMACY_MAX_RANK; k++) {
            level->scale[k] = 1;
        }
        DAMACY__TRY(damacy__ngff_transforms(json, v, ngff->n_axes, level, err));
        DAMACY__TRY(damacy__ngff_transforms(json, image, ngff->n_axes, level, err));
    }
    return DAMACY_OK;
}

/* Why a group without multiscales cannot be opened, and what to open instead. */
static damacy_status damacy__ngff_refuse_group(const damacy__json* json, uint32_t ome,
                                               damacy_error* err)
{
    if (damacy__json_member(json, ome, "plate") != DAMACY__JSON_NONE) {
        return damacy__fail(
            err, DAMACY_NOTFOUND,
            "the group is a plate: name one image of a well, such as A/1/0 below it");
    }
    if (damacy__json_member(json, ome, "well") != DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_NOTFOUND,
                            "the group is a well: name one of its images, such as 0 below it");
    }
    if (damacy__json_member(json, ome, "bioformats2raw.layout") != DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_NOTFOUND,
                            "the group holds several images: name one of them, such as 0 below it");
    }
    return damacy__fail(err, DAMACY_NOTFOUND,
                        "the group is not an NGFF image: it has no multiscales");
}

static damacy_status damacy__ngff_image(const damacy__json* json, damacy__alloc* alloc,
                                        damacy__ngff* ngff, damacy_error* err)
{
    uint32_t ome = damacy__json_member(json, 0, "ome");
    uint32_t images;
    uint32_t image;
    uint32_t version;

    ome = ome == DAMACY__JSON_NONE ? 0 : ome;
    images = damacy__json_member(json, ome, "multiscales");
    if (images == DAMACY__JSON_NONE) {
        return damacy__ngff_refuse_group(json, ome, err);
    }
    if (damacy__json_kind_of(json, images) != DAMACY__JSON_ARRAY ||
        damacy__json_count(json, images) == 0) {
        return damacy__fail(err, DAMACY_DECODE, "multiscales is not an array of images");
    }
    image = damacy__json_first(json, images);
    if (damacy__json_kind_of(json, image) != DAMACY__JSON_OBJECT) {
        return damacy__fail(err, DAMACY_DECODE, "multiscales[0] is not an object");
    }
    if (damacy__json_member(json, image, "coordinateSystems") != DAMACY__JSON_NONE) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "NGFF with coordinateSystems (0.6) is not supported");
    }
    version = damacy__json_member(json, ome, "version");
    version = version == DAMACY__JSON_NONE ? damacy__json_member(json, image, "version") : version;
    if (damacy__json_kind_of(json, version) == DAMACY__JSON_STRING) {
        DAMACY__TRY(damacy__json_text(json, version, alloc, &ngff->version, err));
    }
    DAMACY__TRY(damacy__ngff_axes(json, image, alloc, ngff, err));
    return damacy__ngff_levels(json, image, alloc, ngff, err);
}

/* attributes: JSON text of the group's attributes. NOTFOUND when they name no image, DECODE,
 * UNSUPPORTED or OOM. Free with damacy__ngff_deinit. */
static damacy_status damacy__ngff_parse(damacy__alloc* alloc, damacy__span attributes,
                                        damacy__ngff* out, damacy_error* err)
{
    damacy__json json = {0};
    damacy__json_limits limits = {0};
    damacy__ngff ngff = {0};
    damacy_status status;

    limits.allow_nonfinite = true; /* the document's attributes may hold them, as text */
    DAMACY__TRY(damacy__json_parse(&json, alloc, attributes, &limits, err));
    status = damacy__ngff_image(&json, alloc, &ngff, err);
    damacy__json_deinit(&json, alloc);
    if (status != DAMACY_OK) {
        damacy__ngff_deinit(&ngff, alloc);
        return status;
    }
    *out = ngff;
    return DAMACY_OK;
}
