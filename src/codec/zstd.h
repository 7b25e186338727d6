/* Zstandard on the host: our own walk over frame and block headers first, then libzstd.
 *
 * Versions of libzstd disagree about malformed headers, so what headers can settle is settled here,
 * the same way as on the GPU: RFC 8878 to the letter, blocks above the block limit and dictionaries
 * refused, concatenated and skippable frames accepted. Decoded sizes must match exactly. */
#pragma once
#include "codec/library.h"

/* One per worker. Zero: empty. */
typedef struct damacy__zstd {
    const damacy__zstd_library* library;
    damacy__zstd_context* context;
} damacy__zstd;

static damacy_status damacy__zstd_check(damacy__span src, uint64_t expected, damacy_error* err);
static damacy_status damacy__zstd_open(damacy__zstd* zstd, damacy__libraries* libraries,
                                       bool skip_checksums, damacy_error* err);
static void damacy__zstd_close(damacy__zstd* zstd);
static damacy_status damacy__zstd_decode(damacy__zstd* zstd, damacy__span src, uint8_t* dst,
                                         uint64_t expected, uint64_t* size, damacy_error* err);

/* What a frame header says. */
typedef struct damacy__zstd_header {
    uint64_t content; /* UINT64_MAX: not said */
    uint64_t block_max;
    bool has_checksum;
} damacy__zstd_header;

static damacy_status damacy__zstd_refuse(damacy_error* err, size_t at, const char* what)
{
    err->offset = at;
    return damacy__fail(err, DAMACY_DECODE, "zstd: %s at byte %zu", what, at);
}

/* RFC 8878 section 3.1.1.1; *at is behind the magic number and moves behind the header. */
static damacy_status damacy__zstd_read_header(damacy__span src, size_t* at,
                                              damacy__zstd_header* out, damacy_error* err)
{
    static const uint8_t dictionary_sizes[4] = {0, 1, 2, 4};
    static const uint8_t content_sizes[4] = {0, 2, 4, 8};
    const size_t start = *at;
    uint8_t descriptor;
    bool is_single;
    size_t n_dictionary;
    size_t n_content;
    uint64_t window = 0;
    uint64_t dictionary = 0;

    if (src.size - start < 1) {
        return damacy__zstd_refuse(err, start, "the frame header is cut short");
    }
    descriptor = src.ptr[start];
    is_single = descriptor >> 5 & 1;
    n_dictionary = dictionary_sizes[descriptor & 3];
    n_content = content_sizes[descriptor >> 6];
    n_content = n_content == 0 && is_single ? 1 : n_content;
    if (descriptor & 8) {
        return damacy__zstd_refuse(err, start, "a reserved bit of the frame header is set");
    }
    if (src.size - start - 1 < (is_single ? 0u : 1u) + n_dictionary + n_content) {
        return damacy__zstd_refuse(err, start, "the frame header is cut short");
    }
    *at = start + 1;
    if (!is_single) {
        const uint8_t w = src.ptr[(*at)++];
        const uint64_t base = UINT64_C(1) << (10 + (w >> 3));
        window = base + base / 8 * (w & 7);
    }
    for (size_t i = 0; i < n_dictionary; i++) {
        dictionary |= (uint64_t)src.ptr[(*at)++] << (8 * i);
    }
    out->content = n_content ? 0 : UINT64_MAX;
    for (size_t i = 0; i < n_content; i++) {
        out->content |= (uint64_t)src.ptr[(*at)++] << (8 * i);
    }
    out->content += n_content == 2 ? 256 : 0;
    if (dictionary != 0) {
        err->offset = start;
        return damacy__fail(err, DAMACY_UNSUPPORTED, "zstd: the frame needs dictionary %" PRIu64,
                            dictionary);
    }
    if (n_content && out->content == UINT64_MAX) {
        return damacy__zstd_refuse(err, start, "an impossible content size");
    }
    window = is_single ? out->content : window;
    out->block_max = DAMACY__MIN(window, 131072);
    out->has_checksum = descriptor >> 2 & 1;
    return DAMACY_OK;
}

/* Walks the blocks of a frame; *at moves behind the last one. RFC 8878 section 3.1.1.2. */
static damacy_status damacy__zstd_walk_blocks(damacy__span src, size_t* at, uint64_t block_max,
                                              damacy_error* err)
{
    for (;;) {
        uint32_t header;
        uint32_t type;
        uint64_t size;
        if (src.size - *at < 3) {
            return damacy__zstd_refuse(err, *at, "a block header is cut short");
        }
        header = (uint32_t)src.ptr[*at] | (uint32_t)src.ptr[*at + 1] << 8 |
                 (uint32_t)src.ptr[*at + 2] << 16;
        type = header >> 1 & 3;
        size = header >> 3;
        if (type == 3) {
            return damacy__zstd_refuse(err, *at, "a block of the reserved type");
        }
        if (size > block_max) {
            return damacy__zstd_refuse(err, *at, "a block above the block size limit");
        }
        if (src.size - *at - 3 < (type == 1 ? 1 : size)) {
            return damacy__zstd_refuse(err, *at, "a block is cut short");
        }
        *at += 3 + (size_t)(type == 1 ? 1 : size);
        if (header & 1) {
            return DAMACY_OK;
        }
    }
}

/* One frame, skippable or not; adds its content size, or sets *is_known to false. */
static damacy_status damacy__zstd_walk_frame(damacy__span src, size_t* at, uint64_t* content,
                                             bool* is_known, damacy_error* err)
{
    damacy__zstd_header header;
    uint32_t magic;

    if (src.size - *at < 4) {
        return damacy__zstd_refuse(err, *at, "bytes that are no frame");
    }
    magic = damacy__load_u32le(src.ptr + *at);
    if ((magic & 0xfffffff0u) == 0x184d2a50u) {
        if (src.size - *at < 8 || src.size - *at - 8 < damacy__load_u32le(src.ptr + *at + 4)) {
            return damacy__zstd_refuse(err, *at, "a skippable frame is cut short");
        }
        *at += 8 + (size_t)damacy__load_u32le(src.ptr + *at + 4);
        return DAMACY_OK;
    }
    if (magic != 0xfd2fb528u) {
        return damacy__zstd_refuse(err, *at, "no frame magic number");
    }
    *at += 4;
    DAMACY__TRY(damacy__zstd_read_header(src, at, &header, err));
    DAMACY__TRY(damacy__zstd_walk_blocks(src, at, header.block_max, err));
    if (header.has_checksum) {
        if (src.size - *at < 4) {
            return damacy__zstd_refuse(err, *at, "the checksum is cut short");
        }
        *at += 4;
    }
    if (header.content == UINT64_MAX) {
        *is_known = false;
    } else if (!damacy__add(*content, header.content, content)) {
        return damacy__zstd_refuse(err, *at, "content sizes that overflow");
    }
    return DAMACY_OK;
}

/* Checks what headers can tell: every frame and block, and the size where all frames give theirs.
 * expected UINT64_MAX: any. */
static damacy_status damacy__zstd_check(damacy__span src, uint64_t expected, damacy_error* err)
{
    uint64_t content = 0;
    bool is_known = true;
    size_t at = 0;

    if (src.size == 0) {
        return damacy__zstd_refuse(err, 0, "no bytes");
    }
    while (at < src.size) {
        DAMACY__TRY(damacy__zstd_walk_frame(src, &at, &content, &is_known, err));
    }
    if (expected != UINT64_MAX && (content > expected || (is_known && content != expected))) {
        return damacy__fail(err, DAMACY_DECODE,
                            "zstd: the frame holds %" PRIu64 " bytes, the chunk has %" PRIu64,
                            content, expected);
    }
    return DAMACY_OK;
}

/* Makes the context at the first use. */
static damacy_status damacy__zstd_open(damacy__zstd* zstd, damacy__libraries* libraries,
                                       bool skip_checksums, damacy_error* err)
{
    enum { DAMACY__ZSTD_FORCE_IGNORE_CHECKSUM = 1002 };

    if (zstd->context) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__libraries_zstd(libraries, &zstd->library, err));
    zstd->context = zstd->library->create();
    if (!zstd->context) {
        return damacy__fail(err, DAMACY_OOM, "zstd context");
    }
    if (skip_checksums) {
        (void)zstd->library->set_parameter(zstd->context, DAMACY__ZSTD_FORCE_IGNORE_CHECKSUM, 1);
    }
    return DAMACY_OK;
}

static void damacy__zstd_close(damacy__zstd* zstd)
{
    if (zstd->context) {
        (void)zstd->library->free(zstd->context);
        zstd->context = NULL;
    }
}

/* Decodes all frames of src into dst. size NULL: exactly `expected` bytes are demanded; else at
 * most as many, and *size receives how many there were. */
static damacy_status damacy__zstd_decode(damacy__zstd* zstd, damacy__span src, uint8_t* dst,
                                         uint64_t expected, uint64_t* size, damacy_error* err)
{
    size_t n;

    DAMACY__TRY(damacy__zstd_check(src, size ? UINT64_MAX : expected, err));
    n = zstd->library->decompress(zstd->context, dst, (size_t)expected, src.ptr, src.size);
    if (zstd->library->is_error(n)) {
        return damacy__fail(err, DAMACY_DECODE, "zstd: %s", zstd->library->error_name(n));
    }
    if (!size && n != expected) {
        return damacy__fail(err, DAMACY_DECODE,
                            "zstd: decoded to %zu bytes, the chunk has %" PRIu64, n, expected);
    }
    if (size) {
        *size = n;
    }
    return DAMACY_OK;
}
