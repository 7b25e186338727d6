/* A Zstandard decoder of our own (RFC 8878), one thread, for sources that zstd_walk.h has accepted:
 * it decodes where libzstd is missing, and where libzstd fails it has the last word and says what
 * is wrong at which byte. Its loops are in zstd_entropy.h and zstd_decode.h. */
#pragma once
#include "codec/zstd_decode.h"
#include "codec/zstd_entropy.h"
#include "codec/zstd_walk.h"

static damacy_status damacy__zstd_scalar_decode(damacy__zstd_scalar* z, damacy__span src,
                                                uint8_t* dst, uint64_t capacity,
                                                bool skip_checksums, uint64_t* size,
                                                damacy_error* err);

/* The literals section at *at; leaves the literals in z and moves *at behind them. */
static damacy_status damacy__zstd_literals(damacy__zstd_scalar* z, const uint8_t** at,
                                           damacy_error* err)
{
    const uint8_t* const start = *at;
    const uint32_t type = start[0] & 3;
    const uint32_t format = start[0] >> 2 & 3;
    const bool is_coded = type >= 2;
    const uint32_t n_bits = format < 2 ? 10 : format == 2 ? 14 : 18;
    const uint32_t n_header = is_coded ? (n_bits * 2 + 4) / 8 : format & 1 ? format / 2 + 2 : 1;
    damacy__zstd_bits bits = {NULL, 0};
    uint64_t header = 0;
    damacy__span src;

    for (uint32_t i = 0; i < n_header; i++) {
        header |= (uint64_t)start[i] << (8 * i);
    }
    src.ptr = start + n_header;
    z->literals = z->buffer;
    if (!is_coded) {
        z->n_literals = (size_t)(header >> (n_header == 1 ? 3 : 4));
        src.size = type == 0 ? z->n_literals : 1;
        if (type == 0) {
            memcpy(z->buffer, src.ptr, z->n_literals);
        } else {
            memset(z->buffer, src.ptr[0], z->n_literals);
        }
        *at = src.ptr + src.size;
        return DAMACY_OK;
    }
    z->n_literals = (size_t)(header >> 4 & ((1u << n_bits) - 1));
    src.size = (size_t)(header >> (4 + n_bits));
    *at = src.ptr + src.size;
    if (type == 2) {
        const size_t size = damacy__zstd_tree_read(z, src);
        if (size == 0) {
            return damacy__zstd_scalar_refuse(z, src.ptr, "a broken Huffman tree", err);
        }
        src = damacy__span_of(src.ptr + size, src.size - size);
    }
    if (format == 0 ? !damacy__zstd_bits_open(&bits, src.ptr, src.size) ||
                          !damacy__zstd_symbols(z, bits, z->buffer, 0, z->n_literals)
                    : !damacy__zstd_symbols_4(z, src, z->buffer, z->n_literals)) {
        return damacy__zstd_scalar_refuse(z, src.ptr, "broken Huffman streams", err);
    }
    return DAMACY_OK;
}

/* A compressed block [at, end) into [*to, limit). */
static damacy_status damacy__zstd_block_decode(damacy__zstd_scalar* z, const uint8_t* at,
                                               const uint8_t* end, uint8_t* first, uint8_t** to,
                                               uint8_t* limit, damacy_error* err)
{
    const uint8_t* const start = at;
    uint32_t n;

    if ((uint64_t)(limit - *to) > z->block_max) {
        limit = *to + z->block_max;
    }
    DAMACY__TRY(damacy__zstd_literals(z, &at, err));
    n = *at++;
    if (n == 255) {
        n = damacy__load_u16le(at) + 0x7f00u;
        at += 2;
    } else if (n >= 128) {
        n = (n - 128) << 8 | *at++;
    }
    if (n > 0) {
        const uint32_t modes = *at++;
        DAMACY__TRY(damacy__zstd_tables_read(z, modes, &at, end, err));
        DAMACY__TRY(damacy__zstd_sequences(z, at, end, n, first, to, limit, err));
    }
    if (z->n_literals > (size_t)(limit - *to)) {
        return damacy__zstd_scalar_refuse(z, start, "a block larger than its room", err);
    }
    memcpy(*to, z->literals, z->n_literals);
    *to += z->n_literals;
    return DAMACY_OK;
}

/* The blocks of a frame from *at, which moves behind them, into [*to, limit). */
static damacy_status damacy__zstd_blocks_decode(damacy__zstd_scalar* z, const uint8_t** at,
                                                uint8_t** to, uint8_t* limit, damacy_error* err)
{
    uint8_t* const first = *to;
    bool is_last = false;

    z->repeats[0] = 1;
    z->repeats[1] = 4;
    z->repeats[2] = 8;
    while (!is_last) {
        const uint8_t* const start = *at;
        const uint32_t header =
            (uint32_t)start[0] | (uint32_t)start[1] << 8 | (uint32_t)start[2] << 16;
        const uint32_t type = header >> 1 & 3;
        const size_t size = header >> 3;
        is_last = header & 1;
        *at += 3 + (type == 1 ? 1 : size);
        if (type == 2) {
            DAMACY__TRY(damacy__zstd_block_decode(z, start + 3, *at, first, to, limit, err));
            continue;
        }
        if (size > (size_t)(limit - *to)) {
            return damacy__zstd_scalar_refuse(z, start, "a block larger than its room", err);
        }
        if (type == 0) {
            memcpy(*to, start + 3, size);
        } else {
            memset(*to, start[3], size);
        }
        *to += size;
    }
    return DAMACY_OK;
}

/* Decodes all frames of src, which damacy__zstd_check has accepted, to at most capacity bytes. */
static damacy_status damacy__zstd_scalar_decode(damacy__zstd_scalar* z, damacy__span src,
                                                uint8_t* dst, uint64_t capacity,
                                                bool skip_checksums, uint64_t* size,
                                                damacy_error* err)
{
    damacy__zstd_reader reader;
    uint8_t* to = dst;

    memset(&reader, 0, sizeof reader);
    reader.src = src;
    z->start = src.ptr;
    while (reader.at < src.size) {
        const uint8_t* const frame = src.ptr + reader.at;
        uint8_t* const first = to;
        const uint8_t* at;
        if ((damacy__load_u32le(frame) & 0xfffffff0u) == 0x184d2a50u) {
            reader.at += 8 + (size_t)damacy__load_u32le(frame + 4);
            continue;
        }
        reader.at += 4;
        reader.content = 0;
        reader.is_known = true;
        DAMACY__TRY(damacy__zstd_walk_header(&reader, err));
        z->block_max = reader.block_max;
        at = src.ptr + reader.at;
        DAMACY__TRY(damacy__zstd_blocks_decode(z, &at, &to, dst + capacity, err));
        if (reader.is_known && (uint64_t)(to - first) != reader.content) {
            return damacy__zstd_scalar_refuse(z, frame, "a frame of the wrong content size", err);
        }
        if (reader.has_checksum) {
            if (!skip_checksums && (uint32_t)damacy__zstd_hash(first, (uint64_t)(to - first)) !=
                                       damacy__load_u32le(at)) {
                return damacy__zstd_scalar_refuse(z, at, "a checksum that does not match", err);
            }
            at += 4;
        }
        reader.at = (size_t)(at - src.ptr);
    }
    *size = (uint64_t)(to - dst);
    return DAMACY_OK;
}
