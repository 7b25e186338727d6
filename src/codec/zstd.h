/* Zstandard on the host: our own walk over headers first, then libzstd, then, where libzstd is
 * missing or refuses, our own decoder.
 *
 * Versions of libzstd disagree about malformed and about rare frames. The walk settles what headers
 * can settle; a frame that a libzstd refuses is decoded again, so that the verdict and its place
 * are ours. What an old libzstd accepts against the rules is not seen. Decoded sizes must match
 * exactly. */
#pragma once
#include "base/alloc.h"
#include "codec/library.h"
#include "codec/zstd_scalar.h"

/* One per worker. Zero: empty. */
typedef struct damacy__zstd {
    const damacy__zstd_library* library; /* NULL: missing */
    damacy__zstd_context* context;
    damacy__alloc* alloc;        /* for our own decoder; NULL: it is not used */
    damacy__zstd_scalar* scalar; /* made when first needed */
    bool is_open;
    bool skip_checksums;
} damacy__zstd;

static damacy_status damacy__zstd_open(damacy__zstd* zstd, damacy__libraries* libraries,
                                       bool skip_checksums, damacy_error* err);
static void damacy__zstd_close(damacy__zstd* zstd);
static damacy_status damacy__zstd_decode(damacy__zstd* zstd, damacy__span src, uint8_t* dst,
                                         uint64_t expected, uint64_t* size, damacy_error* err);

/* Makes the context at the first use. */
static damacy_status damacy__zstd_open(damacy__zstd* zstd, damacy__libraries* libraries,
                                       bool skip_checksums, damacy_error* err)
{
    enum { DAMACY__ZSTD_FORCE_IGNORE_CHECKSUM = 1002 };
    const damacy__zstd_library* library = NULL;
    damacy_status status;

    if (zstd->is_open) {
        return DAMACY_OK;
    }
    status = damacy__libraries_zstd(libraries, &library, err);
    if (status == DAMACY_OK) {
        zstd->context = library->create();
        if (!zstd->context) {
            return damacy__fail(err, DAMACY_OOM, "zstd context");
        }
        zstd->library = library;
        if (skip_checksums) {
            (void)library->set_parameter(zstd->context, DAMACY__ZSTD_FORCE_IGNORE_CHECKSUM, 1);
        }
    } else if (!zstd->alloc) {
        return status;
    }
    zstd->skip_checksums = skip_checksums;
    zstd->is_open = true;
    return DAMACY_OK;
}

static void damacy__zstd_close(damacy__zstd* zstd)
{
    if (zstd->context) {
        (void)zstd->library->free(zstd->context);
    }
    if (zstd->scalar) {
        damacy__free(zstd->alloc, zstd->scalar, 1);
    }
    zstd->context = NULL;
    zstd->scalar = NULL;
    zstd->is_open = false;
}

/* Our own decoder. */
static damacy_status damacy__zstd_decode_scalar(damacy__zstd* zstd, damacy__span src, uint8_t* dst,
                                                uint64_t capacity, uint64_t* size,
                                                damacy_error* err)
{
    if (!zstd->scalar) {
        zstd->scalar = damacy__new(zstd->alloc, 1, damacy__zstd_scalar);
    }
    if (!zstd->scalar) {
        return damacy__fail(err, DAMACY_OOM, "zstd: %zu bytes to decode with",
                            sizeof *zstd->scalar);
    }
    return damacy__zstd_scalar_decode(zstd->scalar, src, dst, capacity, zstd->skip_checksums, size,
                                      err);
}

/* Decodes all frames of src into dst. size NULL: exactly `expected` bytes are demanded; else at
 * most as many, and *size receives how many there were. */
static damacy_status damacy__zstd_decode(damacy__zstd* zstd, damacy__span src, uint8_t* dst,
                                         uint64_t expected, uint64_t* size, damacy_error* err)
{
    uint64_t n = 0;
    size_t code;

    DAMACY__TRY(damacy__zstd_check(src, size ? UINT64_MAX : expected, err));
    if (zstd->library) {
        code = zstd->library->decompress(zstd->context, dst, (size_t)expected, src.ptr, src.size);
        n = code;
        if (zstd->library->is_error(code) && !zstd->alloc) {
            return damacy__fail(
                err, DAMACY_DECODE, "zstd: %zu stored bytes do not decode to %s%" PRIu64 ": %s",
                src.size, size ? "at most " : "", expected, zstd->library->error_name(code));
        }
    }
    if (!zstd->library || zstd->library->is_error((size_t)n)) {
        DAMACY__TRY(damacy__zstd_decode_scalar(zstd, src, dst, expected, &n, err));
    }
    if (!size && n != expected) {
        return damacy__fail(err, DAMACY_DECODE,
                            "zstd: decoded to %" PRIu64 " bytes, the chunk has %" PRIu64, n,
                            expected);
    }
    if (size) {
        *size = n;
    }
    return DAMACY_OK;
}
