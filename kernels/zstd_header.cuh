// Headers of a job (RFC 8878 section 3.1), read and checked one after another: of frames, of
// blocks, and of the literals and sequences sections in them. A walk waits for memory and little
// else, so the header of the next block is under way while this one is looked at. The surprising
// rule: everything that needs no entropy decoding is checked here, and only here.
#pragma once

#include "kernels/zstd_common.cuh"

// The 16 bytes around a place, from a multiple of 8 on.
typedef struct damacy__zstd_glance {
    uint64_t low, high;
} damacy__zstd_glance;

// State of a walk over one job.
typedef struct damacy__zstd_walk {
    const uint8_t* src;
    uint32_t size, at;         // bytes of the job, bytes walked
    uint64_t error;            // offset << 8 | status, or NO_ERROR
    damacy__zstd_span n;       // counts so far; first_* say where they go
    uint64_t content;          // sum of the content sizes in frame headers
    uint32_t known;            // every frame so far had a content size
    uint32_t n_headers;        // of blocks, frames and skippable frames
    uint32_t is_tight;         // blocks get room for likely records, not for all that may be
    uint32_t by_sequence;      // records are of sequences
    uint32_t max_size;         // block maximum of the current frame
    uint32_t tree;             // tree that the last Huffman literals of the frame defined, or NONE
    uint32_t tables[3];        // blocks that last defined LL, OF, ML, or NONE
    damacy__zstd_glance ahead; // of the next block's header
} damacy__zstd_walk;

// Records the first error; the walk ends. Always false.
DAMACY__INLINE bool damacy__zstd_stop(damacy__zstd_walk& k, uint64_t offset, uint32_t status)
{
    if (k.error == DAMACY__ZSTD_NO_ERROR)
        k.error = offset << 8 | status;
    return false;
}

// True if n more bytes follow.
DAMACY__INLINE bool damacy__zstd_has(const damacy__zstd_walk& k, uint32_t n)
{
    return n <= k.size - k.at;
}

// Counts a header. A walk is serial, so hostile data must not make it long: above a bound that
// legal data in a wave of this size does not reach, the job does not fit. False then.
DAMACY__INLINE bool damacy__zstd_next(const damacy__zstd_wave& w, damacy__zstd_walk& k)
{
    const uint64_t most = 2ull * w.max_blocks + 8192;
    return ++k.n_headers <= most || damacy__zstd_stop(k, 0, DAMACY__JOB_NEED_SCRATCH);
}

// Loads around byte `at` <= size; nothing waits for them here.
DAMACY__INLINE damacy__zstd_glance damacy__zstd_peek(const damacy__zstd_walk& k, uint32_t at)
{
    const uint64_t from = (uint64_t)(uintptr_t)k.src + at;
    const uint32_t skew = 8 * (uint32_t)(from & 7);
    damacy__zstd_glance g;

    if (at >= 7 && k.size - at >= 16) {
        const uint64_t* const units = (const uint64_t*)(uintptr_t)(from & ~7ull);
        g.low = units[0];
        g.high = units[1];
        return g;
    }
    const uint64_t v = damacy__load_le(k.src + at, damacy__min(k.size - at, 8));
    g.low = v << skew;
    g.high = skew ? v >> (64 - skew) : 0;
    return g;
}

// The 8 bytes at `at` of what was loaded there; those past the end are zero.
DAMACY__INLINE uint64_t damacy__zstd_pick(const damacy__zstd_glance& g, const damacy__zstd_walk& k,
                                          uint32_t at)
{
    const uint32_t skew = 8 * (uint32_t)(((uint64_t)(uintptr_t)k.src + at) & 7);

    return skew ? g.low >> skew | g.high << (64 - skew) : g.low;
}

// A frame header after the magic number (RFC 8878 section 3.1.1.1).
static __device__ bool damacy__zstd_frame_header(damacy__zstd_walk& k, uint64_t& content,
                                                 bool& has_checksum)
{
    if (!damacy__zstd_has(k, 1))
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
    const uint32_t descriptor = k.src[k.at];
    const bool single = descriptor >> 5 & 1;
    const uint32_t content_code = descriptor >> 6, id_code = descriptor & 3;
    const uint32_t n_id = id_code == 3 ? 4 : id_code;
    const uint32_t n_content = content_code ? 1u << content_code : single ? 1 : 0;
    const uint32_t n_window = single ? 0 : 1;
    uint64_t window = 0;

    if (descriptor & 8) // reserved
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_HEADER);
    if (!damacy__zstd_has(k, 1 + n_window + n_id + n_content))
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
    has_checksum = descriptor >> 2 & 1;
    k.at++;
    if (!single) {
        const uint32_t code = k.src[k.at], log = 10 + (code >> 3);
        if (log > 31)
            return damacy__zstd_stop(k, k.at, DAMACY__JOB_UNSUPPORTED);
        window = (1ull << log) + ((1ull << log) >> 3) * (code & 7);
        k.at++;
    }
    if (damacy__load_le(k.src + k.at, n_id) != 0) // a dictionary
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_UNSUPPORTED);
    k.at += n_id;
    content = DAMACY__SIZE_UNKNOWN;
    if (n_content) {
        content = damacy__load_le(k.src + k.at, n_content) + (n_content == 2 ? 256 : 0);
        if (content > DAMACY__JOB_SIZE_MAX) // also keeps the sum of frames in 64 bits
            return damacy__zstd_stop(k, content >> 55 ? 0 : content, DAMACY__JOB_NO_SPACE);
        k.at += n_content;
    }
    if (single)
        window = content;
    k.max_size = window < DAMACY__ZSTD_BLOCK_MAX ? (uint32_t)window : DAMACY__ZSTD_BLOCK_MAX;
    k.ahead = damacy__zstd_peek(k, k.at);
    return true;
}

// A literals section (section 3.1.1.3.1) from k.at, where `bytes` are; `end` is the end of its
// block.
static __device__ bool damacy__zstd_literals_header(damacy__zstd_walk& k, uint32_t end,
                                                    uint64_t bytes, damacy__zstd_block& b)
{
    const uint32_t type = (uint32_t)bytes & 3, format = (uint32_t)bytes >> 2 & 3;
    const bool coded = type >= DAMACY__ZSTD_LITERALS_HUFFMAN;
    const uint32_t n_header = coded         ? (format < 2 ? 3 : format + 2)
                              : format == 1 ? 2
                              : format == 3 ? 3
                                            : 1;
    if (n_header > end - k.at)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_LITERALS);
    const uint64_t header = bytes & ((1ull << 8 * n_header) - 1);
    const uint32_t n_bits = format < 2 ? 10 : format == 2 ? 14 : 18, mask = (1u << n_bits) - 1;

    b.literal_type = (uint8_t)type;
    b.n_streams = coded && format ? 4 : 1;
    if (coded) {
        b.n_literals = (uint32_t)(header >> 4) & mask;
        b.literal_size = (uint32_t)(header >> (4 + n_bits)) & mask;
    } else {
        b.n_literals = (uint32_t)(n_header == 1 ? header >> 3 : header >> 4);
        b.literal_size = type == DAMACY__ZSTD_LITERALS_RAW ? b.n_literals : 1;
    }
    if (b.n_literals > k.max_size || b.literal_size > end - k.at - n_header)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_LITERALS);
    if (coded && (b.n_literals == 0 || b.literal_size == 0))
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_LITERALS);
    if (b.n_streams == 4 && b.n_literals < 6)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_LITERALS);
    if (type == DAMACY__ZSTD_LITERALS_TREELESS && k.tree == DAMACY__ZSTD_NONE)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_LITERALS);
    k.at += n_header;
    b.literal_src = (uint64_t)(uintptr_t)(k.src + k.at);
    k.at += b.literal_size;
    return true;
}

// How many of n sequences are likely to have literals, by the cells of a literal length table for
// code 0, its first symbol (section 4.1.1). Encoders round counts to cells: libzstd's tables were
// seen to be up to 13 cells off.
#define DAMACY__ZSTD_MARGIN 20u
DAMACY__INLINE uint32_t damacy__zstd_likely_runs(uint32_t mode, uint32_t table, uint32_t n)
{
    const uint32_t log = (table & 15) + 5, cells = 1u << damacy__min(log, 9);
    const uint32_t low = table >> 4 & (cells - 1), high = table >> 4 & cells;
    const uint32_t count = low < cells - 2 ? low : high ? low + 2 : low; // one more than its cells

    if (mode == DAMACY__ZSTD_MODE_RLE)
        return table & 255 ? n : 0;
    if (mode != DAMACY__ZSTD_MODE_FSE || log > 9 || count <= 1 + DAMACY__ZSTD_MARGIN)
        return n;
    return (n * (cells + 1 + DAMACY__ZSTD_MARGIN - count) >> log) + 1;
}

// A sequences section header (section 3.1.1.3.2.1) from k.at to the end of the block. Leaves how
// many sequences are likely to have literals.
static __device__ bool damacy__zstd_sequences_header(damacy__zstd_walk& k, uint32_t end,
                                                     damacy__zstd_block& b, uint32_t& n_runs)
{
    const uint32_t start = k.at, room = end - start;
    uint32_t n_own = 0;

    b.n_sequences = 0;
    b.modes = 0;
    if (room < 1)
        return damacy__zstd_stop(k, start, DAMACY__JOB_BAD_SEQUENCES);
    const uint64_t bytes = damacy__zstd_pick(damacy__zstd_peek(k, start), k, start);
    const uint32_t first = (uint32_t)bytes & 255, n_count = first < 128 ? 1 : first < 255 ? 2 : 3;
    if (n_count > room)
        return damacy__zstd_stop(k, start, DAMACY__JOB_BAD_SEQUENCES);
    if (n_count == 1)
        b.n_sequences = first;
    else if (n_count == 2)
        b.n_sequences = (first - 128) << 8 | ((uint32_t)bytes >> 8 & 255);
    else
        b.n_sequences = ((uint32_t)bytes >> 8 & 0xffff) + 0x7f00;
    k.at += n_count;
    if (b.n_sequences == 0)
        return k.at == end || damacy__zstd_stop(k, start, DAMACY__JOB_BAD_SEQUENCES);
    if (b.n_sequences > DAMACY__ZSTD_SEQUENCES_MAX ||
        3 * b.n_sequences + b.n_literals > k.max_size || k.at == end)
        return damacy__zstd_stop(k, start, DAMACY__JOB_BAD_SEQUENCES);
    const uint32_t modes = (uint32_t)(bytes >> (8 * n_count)) & 255;
    if (modes & 3) // reserved
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_SEQUENCES);
    for (uint32_t t = 0; t < 3; t++) {
        const uint32_t mode = modes >> (6 - 2 * t) & 3;
        b.modes = (uint8_t)(b.modes | mode << (2 * t));
        if (mode == DAMACY__ZSTD_MODE_REPEAT && k.tables[t] == DAMACY__ZSTD_NONE)
            return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_TABLE);
        n_own += mode == DAMACY__ZSTD_MODE_RLE || mode == DAMACY__ZSTD_MODE_FSE;
    }
    k.at++;
    n_runs =
        damacy__zstd_likely_runs(modes >> 6, (uint32_t)(bytes >> (8 * n_count + 8)), b.n_sequences);
    b.sequence_src = (uint64_t)(uintptr_t)(k.src + k.at);
    b.sequence_size = end - k.at;
    if (b.sequence_size < n_own + 1)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_SEQUENCES);
    k.at = end;
    return true;
}

// What a block takes of the tables.
typedef struct damacy__zstd_block_share {
    uint32_t n_literal_bytes, n_records;
    uint32_t n_spared; // of the records, see damacy__zstd_span
    bool own_tree;
    bool is_kept; // it has output
} damacy__zstd_block_share;

// A compressed block from k.at, where `bytes` are, to `end` (section 3.1.1.3). Leaves the record in
// b.
static __device__ bool damacy__zstd_compressed(damacy__zstd_walk& k, uint32_t end, uint64_t bytes,
                                               damacy__zstd_block& b,
                                               damacy__zstd_block_share& share)
{
    const uint32_t index = k.n.first_block + k.n.n_blocks;
    uint32_t n_runs = 0;

    if (end - k.at < 2)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_BLOCK);
    if (!damacy__zstd_literals_header(k, end, bytes, b) ||
        !damacy__zstd_sequences_header(k, end, b, n_runs))
        return false;
    share.own_tree = b.literal_type == DAMACY__ZSTD_LITERALS_HUFFMAN;
    if (share.own_tree)
        k.tree = k.n.first_tree + k.n.n_trees;
    if (b.n_sequences) {
        b.type = DAMACY__ZSTD_SEQUENCES;
        for (uint32_t t = 0; t < 3; t++) {
            if ((b.modes >> (2 * t) & 3) != DAMACY__ZSTD_MODE_REPEAT)
                k.tables[t] = index;
            b.tables[t] = k.tables[t];
        }
        const uint32_t most_runs =
            k.by_sequence ? 0 : damacy__min(b.n_sequences, b.n_literals); // beside the last one
        const uint32_t most = b.n_sequences + most_runs + 1;
        const uint32_t likely = b.n_sequences + damacy__min(most_runs, n_runs) + 1;
        b.record_capacity = k.is_tight ? likely : most;
        share.n_records = damacy__zstd_record_room(b.record_capacity);
        share.n_spared = (damacy__zstd_record_room(most) - damacy__zstd_record_room(likely)) / 16;
    } else {
        b.size = b.n_literals;
        b.src = b.literal_src;
        b.type = b.literal_type == DAMACY__ZSTD_LITERALS_RAW   ? DAMACY__ZSTD_RAW
                 : b.literal_type == DAMACY__ZSTD_LITERALS_RLE ? DAMACY__ZSTD_RLE
                                                               : DAMACY__ZSTD_LITERALS;
    }
    return true;
}

// The header of a block (section 3.1.1.2).
typedef struct damacy__zstd_block_header {
    uint64_t bytes;      // the first 5 of the content, more or less
    uint32_t type, size; // size: of the output if it is raw or RLE
    uint32_t at, end;    // content
    bool is_last;
} damacy__zstd_block_header;

// The block from k.at on, to its content.
static __device__ bool damacy__zstd_block_open(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                               damacy__zstd_block_header& h)
{
    if (!damacy__zstd_next(w, k))
        return false;
    if (!damacy__zstd_has(k, 3))
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
    const uint64_t bytes = damacy__zstd_pick(k.ahead, k, k.at);
    const uint32_t header = (uint32_t)bytes & 0xffffff;
    h.bytes = bytes >> 24;
    h.is_last = header & 1;
    h.type = header >> 1 & 3;
    h.size = header >> 3;
    if (h.type == 3 || h.size > k.max_size)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_BLOCK);
    k.at += 3;
    h.at = k.at;
    h.end = k.at + (h.type == 1 ? 1 : h.size);
    if (!damacy__zstd_has(k, h.end - h.at))
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
    k.ahead = damacy__zstd_peek(k, h.end);
    return true;
}

// The content of that block, to its end.
static __device__ bool damacy__zstd_block_read(damacy__zstd_walk& k,
                                               const damacy__zstd_block_header& h,
                                               damacy__zstd_block& b,
                                               damacy__zstd_block_share& share)
{
    b = damacy__zstd_block{};
    share = damacy__zstd_block_share{};
    if (h.type < 2) {
        b.type = (uint8_t)h.type; // RAW, RLE
        b.src = (uint64_t)(uintptr_t)(k.src + k.at);
        b.size = h.size;
        k.at = h.end;
    } else if (!damacy__zstd_compressed(k, h.end, h.bytes, b, share)) {
        return false;
    }
    share.is_kept = b.type == DAMACY__ZSTD_SEQUENCES || b.size != 0;
    if (b.type == DAMACY__ZSTD_SEQUENCES && b.literal_type != DAMACY__ZSTD_LITERALS_RAW)
        share.n_literal_bytes = (b.n_literals + 31u) & ~31u;
    return true;
}
