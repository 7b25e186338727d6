/* The headers of Zstandard frames, blocks, literals and sequences, checked without decoding.
 *
 * What headers can settle is settled here for every decoder, the same way as on the GPU: RFC 8878
 * to the letter, blocks above the block limit and dictionaries refused, concatenated and skippable
 * frames accepted. */
#pragma once
#include "base/error.h"

static damacy_status damacy__zstd_check(damacy__span src, uint64_t expected, damacy_error* err);

/* The state of the walk over headers. */
typedef struct damacy__zstd_reader {
    damacy__span src;
    size_t at;
    uint64_t content; /* sum of the content sizes that frame headers give */
    bool is_known;    /* every frame so far gave one */
    bool has_checksum;
    bool has_tree;      /* what treeless literals refer to */
    uint32_t has_table; /* bit t: what repeat mode refers to, of table t */
    uint64_t block_max; /* RFC 8878 section 3.1.1.2.3 */
} damacy__zstd_reader;

static damacy_status damacy__zstd_refuse(damacy_error* err, size_t at, const char* what)
{
    err->offset = at;
    return damacy__fail(err, DAMACY_DECODE, "zstd: %s at byte %zu", what, at);
}

static inline bool damacy__zstd_is_left(const damacy__zstd_reader* walk, uint64_t n)
{
    return n <= walk->src.size - walk->at;
}

/* Takes n bytes, at most 8, as a little-endian number; they are there. */
static inline uint64_t damacy__zstd_take(damacy__zstd_reader* walk, size_t n)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        value |= (uint64_t)walk->src.ptr[walk->at + i] << (8 * i);
    }
    walk->at += n;
    return value;
}

/* RFC 8878 section 3.1.1.1, behind the magic number. */
static damacy_status damacy__zstd_walk_header(damacy__zstd_reader* walk, damacy_error* err)
{
    static const uint8_t sizes[4] = {0, 1, 2, 4};
    const size_t start = walk->at;
    const uint8_t descriptor = damacy__zstd_is_left(walk, 1) ? walk->src.ptr[start] : 0;
    const size_t is_single = descriptor >> 5 & 1;
    const size_t n_dictionary = sizes[descriptor & 3];
    const size_t n_content = descriptor >> 6 ? (size_t)1 << (descriptor >> 6) : is_single;
    uint64_t window = 0;
    uint64_t content = 0;
    uint64_t dictionary;

    if (descriptor & 8) {
        return damacy__zstd_refuse(err, start, "a reserved bit of the frame header is set");
    }
    if (!damacy__zstd_is_left(walk, 2 - is_single + n_dictionary + n_content)) {
        return damacy__zstd_refuse(err, start, "the frame header is cut short");
    }
    walk->at++;
    walk->has_checksum = descriptor >> 2 & 1;
    if (!is_single) {
        const uint32_t code = (uint32_t)damacy__zstd_take(walk, 1);
        if (code >> 3 > 21) {
            err->offset = start + 1;
            return damacy__fail(err, DAMACY_UNSUPPORTED, "zstd: a window of 2^%u bytes",
                                10 + (code >> 3));
        }
        window = UINT64_C(1) << (10 + (code >> 3));
        window += window / 8 * (code & 7);
    }
    dictionary = damacy__zstd_take(walk, n_dictionary);
    if (dictionary != 0) {
        err->offset = start;
        return damacy__fail(err, DAMACY_UNSUPPORTED, "zstd: the frame needs dictionary %" PRIu64,
                            dictionary);
    }
    if (n_content == 0) {
        walk->is_known = false;
    } else {
        content = damacy__zstd_take(walk, n_content) + (n_content == 2 ? 256 : 0);
        if (content > INT64_MAX || !damacy__add(walk->content, content, &walk->content)) {
            return damacy__zstd_refuse(err, start, "an impossible content size");
        }
    }
    window = is_single ? content : window;
    walk->block_max = DAMACY__MIN(window, 131072);
    return DAMACY_OK;
}

/* The literals section's header (section 3.1.1.3.1); the walk moves behind the literals. */
static damacy_status damacy__zstd_walk_literals(damacy__zstd_reader* walk, size_t end,
                                                uint64_t* n_literals, damacy_error* err)
{
    const size_t start = walk->at;
    const uint32_t type = walk->src.ptr[start] & 3;
    const uint32_t format = walk->src.ptr[start] >> 2 & 3;
    const bool is_coded = type >= 2;
    const size_t n_header =
        is_coded ? (format < 2 ? 3 : format + 2) : (format & 1 ? format / 2 + 2 : 1);
    const uint32_t n_bits = format < 2 ? 10 : format == 2 ? 14 : 18;
    uint64_t header;
    uint64_t stored;

    if (n_header > end - start) {
        return damacy__zstd_refuse(err, start, "a literals header is cut short");
    }
    header = damacy__zstd_take(walk, n_header);
    if (is_coded) {
        *n_literals = header >> 4 & ((1u << n_bits) - 1);
        stored = header >> (4 + n_bits);
    } else {
        *n_literals = header >> (n_header == 1 ? 3 : 4);
        stored = type == 1 ? 1 : *n_literals;
    }
    if (*n_literals > walk->block_max || stored > end - walk->at) {
        return damacy__zstd_refuse(err, start, "literals larger than their block");
    }
    if (is_coded && (stored == 0 || *n_literals < (format == 0 ? 1 : 6))) {
        return damacy__zstd_refuse(err, start, "too few literals for their form");
    }
    if (type == 3 && !walk->has_tree) {
        return damacy__zstd_refuse(err, start, "literals refer to a tree that is not there");
    }
    walk->has_tree |= type == 2;
    walk->at += (size_t)stored;
    return DAMACY_OK;
}

/* The sequences section's header (section 3.1.1.3.2.1); the walk moves to the end of the block. */
static damacy_status damacy__zstd_walk_sequences(damacy__zstd_reader* walk, size_t end,
                                                 uint64_t n_literals, damacy_error* err)
{
    const size_t start = walk->at;
    const uint32_t first = start < end ? walk->src.ptr[start] : 0;
    const size_t n_header = first < 128 ? 1 : first < 255 ? 2 : 3;
    uint64_t n = first;
    uint32_t modes;
    size_t n_own = 0;

    if (n_header > end - start) {
        return damacy__zstd_refuse(err, start, "a sequences header is cut short");
    }
    walk->at++;
    if (n_header == 2) {
        n = (uint64_t)(first - 128) << 8 | damacy__zstd_take(walk, 1);
    } else if (n_header == 3) {
        n = damacy__zstd_take(walk, 2) + 0x7f00;
    }
    if (n == 0) {
        return walk->at == end ? DAMACY_OK
                               : damacy__zstd_refuse(err, walk->at, "bytes behind a block's end");
    }
    if (3 * n + n_literals > walk->block_max || walk->at == end) { /* a match has 3 bytes or more */
        return damacy__zstd_refuse(err, start, "more sequences than a block can hold");
    }
    modes = (uint32_t)damacy__zstd_take(walk, 1);
    if (modes & 3) {
        return damacy__zstd_refuse(err, walk->at - 1,
                                   "reserved bits of a sequences header are set");
    }
    for (uint32_t t = 0; t < 3; t++) {
        const uint32_t mode = modes >> (6 - 2 * t) & 3;
        if (mode == 3 && !(walk->has_table >> t & 1)) {
            return damacy__zstd_refuse(err, walk->at - 1,
                                       "sequences refer to a table that is not there");
        }
        n_own += mode == 1 || mode == 2;
    }
    walk->has_table = 7;
    if (end - walk->at < n_own + 1) {
        return damacy__zstd_refuse(err, walk->at, "a sequences section is cut short");
    }
    walk->at = end;
    return DAMACY_OK;
}

/* The blocks of a frame, up to behind the last one (section 3.1.1.2). */
static damacy_status damacy__zstd_walk_blocks(damacy__zstd_reader* walk, damacy_error* err)
{
    bool is_last = false;

    walk->has_tree = false;
    walk->has_table = 0;
    while (!is_last) {
        const size_t start = walk->at;
        uint32_t header;
        uint32_t type;
        uint64_t n_literals = 0;
        size_t size;
        if (!damacy__zstd_is_left(walk, 3)) {
            return damacy__zstd_refuse(err, start, "a block header is cut short");
        }
        header = (uint32_t)damacy__zstd_take(walk, 3);
        is_last = header & 1;
        type = header >> 1 & 3;
        size = header >> 3;
        if (type == 3) {
            return damacy__zstd_refuse(err, start, "a block of the reserved type");
        }
        if (size > walk->block_max) {
            return damacy__zstd_refuse(err, start, "a block above the block size limit");
        }
        size = type == 1 ? 1 : size;
        if (!damacy__zstd_is_left(walk, size)) {
            return damacy__zstd_refuse(err, start, "a block is cut short");
        }
        if (type != 2) {
            walk->at += size;
            continue;
        }
        if (size < 2) {
            return damacy__zstd_refuse(err, start, "a compressed block of less than 2 bytes");
        }
        DAMACY__TRY(damacy__zstd_walk_literals(walk, start + 3 + size, &n_literals, err));
        DAMACY__TRY(damacy__zstd_walk_sequences(walk, start + 3 + size, n_literals, err));
    }
    return DAMACY_OK;
}

/* One frame, skippable or not (sections 3.1.1 and 3.1.2). */
static damacy_status damacy__zstd_walk_frame(damacy__zstd_reader* walk, damacy_error* err)
{
    const size_t start = walk->at;
    uint32_t magic;

    if (!damacy__zstd_is_left(walk, 4)) {
        return damacy__zstd_refuse(err, start, "bytes that are no frame");
    }
    magic = (uint32_t)damacy__zstd_take(walk, 4);
    if ((magic & 0xfffffff0u) == 0x184d2a50u) {
        uint64_t size = UINT64_MAX;
        if (damacy__zstd_is_left(walk, 4)) {
            size = damacy__zstd_take(walk, 4);
        }
        if (!damacy__zstd_is_left(walk, size)) {
            return damacy__zstd_refuse(err, start, "a skippable frame is cut short");
        }
        walk->at += (size_t)size;
        return DAMACY_OK;
    }
    if (magic != 0xfd2fb528u) {
        return damacy__zstd_refuse(err, start, "no frame magic number");
    }
    DAMACY__TRY(damacy__zstd_walk_header(walk, err));
    DAMACY__TRY(damacy__zstd_walk_blocks(walk, err));
    if (walk->has_checksum) {
        if (!damacy__zstd_is_left(walk, 4)) {
            return damacy__zstd_refuse(err, walk->at, "the checksum is cut short");
        }
        walk->at += 4;
    }
    return DAMACY_OK;
}

/* Checks what headers can tell: every frame, block and section, and the size where all frames give
 * theirs. expected UINT64_MAX: any. */
static damacy_status damacy__zstd_check(damacy__span src, uint64_t expected, damacy_error* err)
{
    damacy__zstd_reader walk;

    memset(&walk, 0, sizeof walk);
    walk.src = src;
    walk.is_known = true;
    if (src.size == 0) {
        return damacy__zstd_refuse(err, 0, "no bytes");
    }
    while (walk.at < src.size) {
        DAMACY__TRY(damacy__zstd_walk_frame(&walk, err));
    }
    if (expected != UINT64_MAX &&
        (walk.content > expected || (walk.is_known && walk.content != expected))) {
        return damacy__fail(err, DAMACY_DECODE,
                            "zstd: the frame holds %" PRIu64 " bytes, the chunk has %" PRIu64,
                            walk.content, expected);
    }
    return DAMACY_OK;
}
