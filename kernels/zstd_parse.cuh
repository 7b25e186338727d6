// Walks the headers of a job: frames, blocks, literals and sequences sections (RFC 8878 section
// 3.1), one thread per job. The walk runs twice, first to count and to check every rule that needs
// no entropy decoding, then to fill the tables. It waits for memory and little else, so the header
// of the next block is under way while this one is looked at. The surprising rule: blocks without
// output (empty raw and RLE blocks, compressed blocks without literals and sequences) leave no
// record, so that scratch is bounded by content and not by headers.
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

// A sequences section header (section 3.1.1.3.2.1) from k.at to the end of the block.
static __device__ bool damacy__zstd_sequences_header(damacy__zstd_walk& k, uint32_t end,
                                                     damacy__zstd_block& b)
{
    const uint32_t start = k.at, room = end - start;
    uint32_t n_own = 0;

    b.n_sequences = 0;
    b.modes = 0;
    if (room < 1)
        return damacy__zstd_stop(k, start, DAMACY__JOB_BAD_SEQUENCES);
    const uint32_t bytes = (uint32_t)damacy__zstd_pick(damacy__zstd_peek(k, start), k, start);
    const uint32_t first = bytes & 255, n_count = first < 128 ? 1 : first < 255 ? 2 : 3;
    if (n_count > room)
        return damacy__zstd_stop(k, start, DAMACY__JOB_BAD_SEQUENCES);
    if (n_count == 1)
        b.n_sequences = first;
    else if (n_count == 2)
        b.n_sequences = (first - 128) << 8 | (bytes >> 8 & 255);
    else
        b.n_sequences = (bytes >> 8 & 0xffff) + 0x7f00;
    k.at += n_count;
    if (b.n_sequences == 0)
        return k.at == end || damacy__zstd_stop(k, start, DAMACY__JOB_BAD_SEQUENCES);
    if (b.n_sequences > DAMACY__ZSTD_SEQUENCES_MAX ||
        3 * b.n_sequences + b.n_literals > k.max_size || k.at == end)
        return damacy__zstd_stop(k, start, DAMACY__JOB_BAD_SEQUENCES);
    const uint32_t modes = bytes >> (8 * n_count) & 255;
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
    b.sequence_src = (uint64_t)(uintptr_t)(k.src + k.at);
    b.sequence_size = end - k.at;
    if (b.sequence_size < n_own + 1)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_SEQUENCES);
    k.at = end;
    return true;
}

// Takes the next record of each table that the block needs, in the walk that fills.
static __device__ bool damacy__zstd_store_block(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                                const damacy__zstd_span& room,
                                                damacy__zstd_block& b, uint64_t n_literal_bytes,
                                                uint64_t n_records, bool own_tree)
{
    const uint32_t index = k.n.first_block + k.n.n_blocks;

    // false only if the source changed since it was counted
    if (k.n.n_blocks >= room.n_blocks || k.n.n_frames >= room.n_frames ||
        k.n.n_literal_bytes + n_literal_bytes > room.n_literal_bytes ||
        k.n.n_records + n_records > room.n_records || k.n.n_trees + own_tree > room.n_trees)
        return false;
    if (own_tree) {
        damacy__zstd_tree* const tree = damacy__zstd_trees(w) + k.tree;
        tree->src = b.literal_src;
        tree->limit = b.literal_size;
        tree->block = index;
        tree->size = 0;
        tree->log = 0;
    }
    b.frame = k.n.first_frame + k.n.n_frames;
    b.tree = k.tree;
    b.max_size = k.max_size;
    b.first_record = k.n.first_record + k.n.n_records;
    if (n_literal_bytes)
        b.literals = w.literals + k.n.first_literal_byte + k.n.n_literal_bytes;
    else if (b.literal_type == DAMACY__ZSTD_LITERALS_RAW)
        b.literals = b.literal_src;
    damacy__zstd_blocks(w)[index] = b;
    return true;
}

// A compressed block from k.at, where `bytes` are, to `end` (section 3.1.1.3). Leaves the record in
// b.
static __device__ bool damacy__zstd_compressed(damacy__zstd_walk& k, uint32_t end, uint64_t bytes,
                                               damacy__zstd_block& b, bool& own_tree)
{
    const uint32_t index = k.n.first_block + k.n.n_blocks;

    if (end - k.at < 2)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_BLOCK);
    if (!damacy__zstd_literals_header(k, end, bytes, b) ||
        !damacy__zstd_sequences_header(k, end, b))
        return false;
    own_tree = b.literal_type == DAMACY__ZSTD_LITERALS_HUFFMAN;
    if (own_tree)
        k.tree = k.n.first_tree + k.n.n_trees;
    if (b.n_sequences) {
        b.type = DAMACY__ZSTD_SEQUENCES;
        for (uint32_t t = 0; t < 3; t++) {
            if ((b.modes >> (2 * t) & 3) != DAMACY__ZSTD_MODE_REPEAT)
                k.tables[t] = index;
            b.tables[t] = k.tables[t];
        }
        b.record_capacity = b.n_sequences + damacy__min(b.n_sequences, b.n_literals) + 1;
    } else {
        b.size = b.n_literals;
        b.src = b.literal_src;
        b.type = b.literal_type == DAMACY__ZSTD_LITERALS_RAW   ? DAMACY__ZSTD_RAW
                 : b.literal_type == DAMACY__ZSTD_LITERALS_RLE ? DAMACY__ZSTD_RLE
                                                               : DAMACY__ZSTD_LITERALS;
    }
    return true;
}

// One block, header included (section 3.1.1.2).
template <bool FILL>
static __device__ bool damacy__zstd_block_step(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                               const damacy__zstd_span& room, bool& last,
                                               uint32_t& n_sequence_blocks)
{
    damacy__zstd_block b = {};
    uint64_t n_literal_bytes = 0, n_records = 0;
    bool own_tree = false;

    if (!damacy__zstd_next(w, k))
        return false;
    if (!damacy__zstd_has(k, 3))
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
    const uint64_t bytes = damacy__zstd_pick(k.ahead, k, k.at);
    const uint32_t header = (uint32_t)bytes & 0xffffff;
    const uint32_t type = header >> 1 & 3, size = header >> 3;
    last = header & 1;
    if (type == 3 || size > k.max_size)
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_BAD_BLOCK);
    k.at += 3;
    if (!damacy__zstd_has(k, type == 1 ? 1 : size))
        return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
    k.ahead = damacy__zstd_peek(k, k.at + (type == 1 ? 1 : size));
    if (type < 2) {
        b.type = (uint8_t)type; // RAW, RLE
        b.src = (uint64_t)(uintptr_t)(k.src + k.at);
        b.size = size;
        k.at += type == 1 ? 1 : size;
    } else if (!damacy__zstd_compressed(k, k.at + size, bytes >> 24, b, own_tree)) {
        return false;
    }
    if (b.type != DAMACY__ZSTD_SEQUENCES && b.size == 0)
        return true;
    if (b.type == DAMACY__ZSTD_SEQUENCES) {
        n_sequence_blocks++;
        n_records = (b.record_capacity + 15u) & ~15u;
        if (b.literal_type != DAMACY__ZSTD_LITERALS_RAW)
            n_literal_bytes = (b.n_literals + 31u) & ~31u;
    }
    if (FILL && !damacy__zstd_store_block(w, k, room, b, n_literal_bytes, n_records, own_tree))
        return damacy__zstd_stop(k, 0, DAMACY__JOB_BAD_HEADER);
    k.n.n_blocks++;
    k.n.n_literal_bytes += n_literal_bytes;
    k.n.n_records += n_records;
    k.n.n_trees += own_tree;
    return true;
}

// One frame after its magic number.
template <bool FILL>
static __device__ bool damacy__zstd_frame_step(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                               const damacy__zstd_span& room, uint32_t job)
{
    const uint64_t n_records = k.n.n_records;
    damacy__zstd_frame f = {};
    bool has_checksum = false, last = false;

    f.job = job;
    f.first_block = k.n.first_block + k.n.n_blocks;
    k.tree = k.tables[0] = k.tables[1] = k.tables[2] = DAMACY__ZSTD_NONE;
    if (!damacy__zstd_frame_header(k, f.content_size, has_checksum))
        return false;
    if (f.content_size == DAMACY__SIZE_UNKNOWN)
        k.known = 0;
    else
        k.content += f.content_size;
    while (!last) // every pass takes at least three bytes
        if (!damacy__zstd_block_step<FILL>(w, k, room, last, f.n_sequence_blocks))
            return false;
    f.n_blocks = k.n.first_block + k.n.n_blocks - f.first_block;
    if (has_checksum) {
        if (!damacy__zstd_has(k, 4))
            return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
        f.checksum = (uint64_t)(uintptr_t)(k.src + k.at);
        k.at += 4;
    }
    if (FILL) {
        if (k.n.n_frames >= room.n_frames)
            return damacy__zstd_stop(k, 0, DAMACY__JOB_BAD_HEADER);
        f.n_records = (uint32_t)(k.n.n_records - n_records);
        damacy__zstd_frames(w)[k.n.first_frame + k.n.n_frames] = f;
    }
    k.n.n_frames++;
    return true;
}

// The frames and skippable frames of a job, up to its end (section 3.1).
template <bool FILL>
static __device__ bool damacy__zstd_walk_job(const damacy__zstd_wave& w, damacy__zstd_walk& k,
                                             const damacy__zstd_span& room, uint32_t job)
{
    bool first = true;

    while (k.at < k.size) { // every pass takes at least eight bytes
        const uint32_t bad =
            first ? (uint32_t)DAMACY__JOB_BAD_MAGIC : (uint32_t)DAMACY__JOB_TRAILING;
        if (!damacy__zstd_next(w, k))
            return false;
        if (!damacy__zstd_has(k, 4))
            return damacy__zstd_stop(k, k.at, first ? (uint32_t)DAMACY__JOB_TRUNCATED : bad);
        const uint32_t magic = damacy__load_u32(k.src + k.at);
        if ((magic & ~15u) == 0x184d2a50u) {
            if (!damacy__zstd_has(k, 8))
                return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
            const uint32_t skip = damacy__load_u32(k.src + k.at + 4);
            if (skip > k.size - k.at - 8)
                return damacy__zstd_stop(k, k.at, DAMACY__JOB_TRUNCATED);
            k.at += 8 + skip;
        } else if (magic == 0xfd2fb528u) {
            k.at += 4;
            if (!damacy__zstd_frame_step<FILL>(w, k, room, job))
                return false;
        } else {
            return damacy__zstd_stop(k, k.at, bad);
        }
        first = false;
    }
    return true;
}

DAMACY__INLINE void damacy__zstd_walk_begin(damacy__zstd_walk& k, const damacy__job& job)
{
    k.src = (const uint8_t*)(uintptr_t)job.src;
    k.size = (uint32_t)job.src_size;
    k.at = 0;
    k.error = DAMACY__ZSTD_NO_ERROR;
    k.content = 0;
    k.known = 1;
    k.n_headers = 0;
    k.max_size = 0;
    k.ahead = damacy__zstd_glance{};
    k.n = damacy__zstd_span{};
}

// Checks and counts one job. The counts of a broken job are 0.
static __device__ damacy__zstd_span damacy__zstd_count_job(const damacy__zstd_wave& w,
                                                           uint32_t index, uint64_t& error)
{
    const damacy__job job = damacy__zstd_jobs(w)[index];
    const uint64_t capacity =
        job.dst_capacity < DAMACY__JOB_SIZE_MAX ? job.dst_capacity : DAMACY__JOB_SIZE_MAX;
    const uint64_t expected = job.expected_size;
    damacy__zstd_walk k;

    error = DAMACY__ZSTD_NO_ERROR;
    if (job.flags & DAMACY__JOB_SKIP)
        error = DAMACY__JOB_SKIPPED;
    else if (job.src_size > DAMACY__JOB_SIZE_MAX)
        error = DAMACY__JOB_TOO_LARGE;
    else if (expected != DAMACY__SIZE_UNKNOWN && expected > capacity)
        error = (expected >> 55 ? 0 : expected << 8) | DAMACY__JOB_NO_SPACE;
    if (error != DAMACY__ZSTD_NO_ERROR)
        return damacy__zstd_span{};
    damacy__zstd_walk_begin(k, job);
    if (damacy__zstd_walk_job<false>(w, k, k.n, index) && k.known) {
        if (expected != DAMACY__SIZE_UNKNOWN && k.content != expected)
            damacy__zstd_stop(k, 0, DAMACY__JOB_SIZE_MISMATCH);
        else if (k.content > capacity)
            damacy__zstd_stop(k, k.content >> 55 ? 0 : k.content, DAMACY__JOB_NO_SPACE);
    }
    error = k.error;
    return error == DAMACY__ZSTD_NO_ERROR ? k.n : damacy__zstd_span{};
}

// Gives the records that a walk left out a harmless content: only if the source changed after it
// was counted.
static __device__ void damacy__zstd_fill_rest(const damacy__zstd_wave& w, uint32_t index,
                                              const damacy__zstd_walk& k,
                                              const damacy__zstd_span& span)
{
    for (uint32_t i = k.n.n_frames; i < span.n_frames; i++) {
        damacy__zstd_frame f = {};
        f.job = index;
        f.first_block = span.first_block;
        damacy__zstd_frames(w)[span.first_frame + i] = f;
    }
    for (uint32_t i = k.n.n_blocks; i < span.n_blocks; i++) {
        damacy__zstd_block b = {};
        b.frame = span.first_frame;
        damacy__zstd_blocks(w)[span.first_block + i] = b;
    }
    for (uint32_t i = k.n.n_trees; i < span.n_trees; i++) {
        damacy__zstd_tree* const tree = damacy__zstd_trees(w) + span.first_tree + i;
        tree->src = damacy__zstd_jobs(w)[index].src;
        tree->limit = 0;
        tree->block = span.first_block;
        tree->size = tree->log = 0;
    }
}

// Fills the tables of one job whose share allocate has placed.
static __device__ void damacy__zstd_fill_job(const damacy__zstd_wave& w, uint32_t index)
{
    const damacy__job job = damacy__zstd_jobs(w)[index];
    const damacy__zstd_span span = damacy__zstd_spans(w)[index];
    damacy__zstd_walk k;

    damacy__zstd_walk_begin(k, job);
    k.n.first_frame = span.first_frame;
    k.n.first_block = span.first_block;
    k.n.first_tree = span.first_tree;
    k.n.first_literal_byte = span.first_literal_byte;
    k.n.first_record = span.first_record;
    if (!damacy__zstd_walk_job<true>(w, k, span, index) || k.n.n_blocks != span.n_blocks ||
        k.n.n_frames != span.n_frames || k.n.n_trees != span.n_trees) {
        damacy__zstd_stop(k, 0, DAMACY__JOB_BAD_HEADER);
        damacy__zstd_errors(w)[index] = k.error;
        damacy__zstd_fill_rest(w, index, k, span);
    }
}
