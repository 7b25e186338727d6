/* The tables of Zstandard's entropy coding: FSE tables and Huffman trees (RFC 8878 section 4), for
 * sources whose headers zstd_walk.h has accepted.
 *
 * Bits are read backwards through 8-byte loads that end where the wanted bits end: at least 8 bytes
 * of headers lie before every bitstream, so no load leaves the source. */
#pragma once
#include "base/error.h"

enum {
    DAMACY__ZSTD_BLOCK = 131072, /* most literals, and most bytes, of a block */
    DAMACY__ZSTD_SLACK = 32      /* bytes behind the literals that copies may read */
};

/* A state of an FSE table; symbols are replaced by what they stand for. */
typedef struct damacy__zstd_state {
    uint32_t base;  /* of the value; the symbol itself for weights */
    uint16_t next;  /* first state of the next range */
    uint8_t n_bits; /* that choose within the range */
    uint8_t n_more; /* bits added to the base */
} damacy__zstd_state;

typedef struct damacy__zstd_states {
    damacy__zstd_state states[512];
    uint32_t log;
} damacy__zstd_states;

/* What a decoder keeps; 148 KiB. */
typedef struct damacy__zstd_scalar {
    damacy__zstd_states tables[3]; /* literal lengths, offsets, match lengths */
    damacy__zstd_states weights;
    uint16_t tree[2048]; /* symbol << 8 | bits, by the next tree_log bits */
    uint32_t tree_log;
    uint64_t repeats[3];
    uint64_t block_max;
    const uint8_t* literals;
    size_t n_literals;
    uint8_t buffer[DAMACY__ZSTD_BLOCK + DAMACY__ZSTD_SLACK];
    const uint8_t* start; /* of the source: error offsets count from here */
} damacy__zstd_scalar;

/* A bitstream read from its last bit: the bits [0, left) of src are still there. */
typedef struct damacy__zstd_bits {
    const uint8_t* src;
    int64_t left; /* below 0: more was read than there is */
} damacy__zstd_bits;

static damacy_status damacy__zstd_scalar_refuse(const damacy__zstd_scalar* z, const uint8_t* at,
                                                const char* what, damacy_error* err)
{
    err->offset = (uint64_t)(at - z->start);
    return damacy__fail(err, DAMACY_DECODE, "zstd: %s at byte %" PRIu64, what, err->offset);
}

/* The last byte's highest set bit ends the stream. False: no such bit. */
static bool damacy__zstd_bits_open(damacy__zstd_bits* bits, const uint8_t* src, size_t size)
{
    if (size == 0 || src[size - 1] == 0) {
        return false;
    }
    bits->src = src;
    bits->left = (int64_t)(8 * size) - 8 + (31 - __builtin_clz(src[size - 1]));
    return true;
}

/* The next bits at the top of a word; at least 57 of them are right, as far as there are so many.
 */
DAMACY__ALWAYS_INLINE uint64_t damacy__zstd_bits_word(const damacy__zstd_bits* bits)
{
    const int64_t end = (bits->left + 7) >> 3;

    return damacy__load_u64le(bits->src + end - 8) << (8 * end - bits->left);
}

/* n up to 31 bits. Past the start of the stream: 0, and left stays below 0. */
DAMACY__ALWAYS_INLINE uint64_t damacy__zstd_bits_read(damacy__zstd_bits* bits, uint32_t n)
{
    uint64_t word;

    if (bits->left < (int64_t)n) {
        bits->left = -1;
        return 0;
    }
    word = damacy__zstd_bits_word(bits);
    bits->left -= n;
    return word >> 1 >> (63 - n);
}

/* Bits of a forward stream: n from bit `at`; 0 past the end. */
static uint32_t damacy__zstd_forward(damacy__span src, uint64_t at, uint32_t n)
{
    uint32_t value = 0;

    for (uint32_t i = 0; i < n && (at + i) / 8 < src.size; i++) {
        value |= (uint32_t)(src.ptr[(at + i) / 8] >> ((at + i) % 8) & 1) << i;
    }
    return value;
}

/* Reads a table description; counts has room for n_symbols. Returns its bytes, or 0 if it is
 * broken. */
static size_t damacy__zstd_read_counts(damacy__span src, uint32_t max_log, uint32_t n_symbols,
                                       int16_t* counts, uint32_t* log)
{
    uint64_t at = 4;
    uint32_t n = 0;
    int32_t remaining;

    *log = 5 + damacy__zstd_forward(src, 0, 4);
    if (*log > max_log) {
        return 0;
    }
    memset(counts, 0, n_symbols * sizeof counts[0]);
    for (remaining = 1 << *log; remaining > 0 && n < n_symbols; n++) {
        const uint32_t n_bits = 32 - (uint32_t)__builtin_clz((uint32_t)remaining + 1);
        const uint32_t low = (1u << (n_bits - 1)) - 1;
        const uint32_t few = (1u << n_bits) - 1 - ((uint32_t)remaining + 1);
        uint32_t value = damacy__zstd_forward(src, at, n_bits);
        at += n_bits;
        if ((value & low) < few) {
            value &= low;
            at--;
        } else if (value > low) {
            value -= few;
        }
        counts[n] = (int16_t)((int32_t)value - 1);
        remaining -= counts[n] < 0 ? 1 : counts[n];
        for (uint32_t more = counts[n] == 0 ? 3 : 0; more == 3; at += 2) {
            more = damacy__zstd_forward(src, at, 2);
            if (more >= n_symbols - n) {
                return 0;
            }
            n += more;
        }
    }
    at = (at + 7) / 8;
    return remaining == 0 && at <= src.size ? (size_t)at : 0;
}

/* Spreads the symbols and numbers their ranges; base and n_more come from the arrays, if given. */
static void damacy__zstd_spread(damacy__zstd_states* table, const int16_t* counts,
                                uint32_t n_symbols, uint32_t log, const uint32_t* bases,
                                const uint8_t* mores)
{
    const uint32_t size = 1u << log;
    const uint32_t step = (size >> 1) + (size >> 3) + 3;
    uint16_t next[256];
    uint32_t high = size;
    uint32_t at = 0;

    table->log = log;
    for (uint32_t s = 0; s < n_symbols; s++) {
        next[s] = counts[s] < 0 ? 1 : (uint16_t)counts[s];
        if (counts[s] < 0) {
            table->states[--high].base = s;
        }
    }
    for (uint32_t s = 0; s < n_symbols; s++) {
        for (int32_t i = 0; i < counts[s]; i++) {
            table->states[at].base = s;
            do {
                at = (at + step) & (size - 1);
            } while (at >= high);
        }
    }
    for (uint32_t i = 0; i < size; i++) {
        damacy__zstd_state* state = &table->states[i];
        const uint32_t s = state->base;
        const uint32_t n = next[s]++;
        state->n_bits = (uint8_t)(log - (31 - (uint32_t)__builtin_clz(n)));
        state->next = (uint16_t)((n << state->n_bits) - size);
        state->n_more = mores ? mores[s] : 0;
        state->base = bases ? bases[s] : s;
    }
}

/* Weights coded by two interleaved states (section 4.2.1.2), at most 255. Returns their number, 0
 * if broken. */
static uint32_t damacy__zstd_read_weights(damacy__zstd_scalar* z, damacy__span src,
                                          uint8_t* weights)
{
    const damacy__zstd_state* state[2];
    damacy__zstd_bits bits = {NULL, 0};
    int16_t counts[256];
    uint32_t log = 0;
    uint32_t n = 0;
    const size_t used = damacy__zstd_read_counts(src, 6, 256, counts, &log);

    if (used == 0 || !damacy__zstd_bits_open(&bits, src.ptr + used, src.size - used) ||
        bits.left < 2 * (int64_t)log) {
        return 0;
    }
    damacy__zstd_spread(&z->weights, counts, 256, log, NULL, NULL);
    state[0] = &z->weights.states[damacy__zstd_bits_read(&bits, log)];
    state[1] = &z->weights.states[damacy__zstd_bits_read(&bits, log)];
    for (uint32_t k = 0; n < 254; k ^= 1) {
        const damacy__zstd_state* now = state[k];
        weights[n++] = (uint8_t)now->base;
        if (bits.left < now->n_bits) { /* the other state's weight is the last */
            weights[n++] = (uint8_t)state[k ^ 1]->base;
            return n;
        }
        state[k] = &z->weights.states[now->next + damacy__zstd_bits_read(&bits, now->n_bits)];
    }
    return 0;
}

/* Fills the tree from n weights and the one that follows from them. False: they make no tree. */
static bool damacy__zstd_plant(damacy__zstd_scalar* z, uint8_t* weights, uint32_t n)
{
    uint32_t ranks[13] = {0};
    uint32_t starts[13];
    uint32_t sum = 0;
    uint32_t rest;

    for (uint32_t i = 0; i < n; i++) {
        if (weights[i] > 11) {
            return false;
        }
        ranks[weights[i]]++;
        sum += weights[i] ? 1u << (weights[i] - 1) : 0;
    }
    if (sum == 0 || sum >= 2048) {
        return false;
    }
    z->tree_log = 32 - (uint32_t)__builtin_clz(sum);
    rest = (1u << z->tree_log) - sum;
    if (rest & (rest - 1)) {
        return false;
    }
    weights[n] = (uint8_t)(32 - __builtin_clz(rest));
    ranks[weights[n]]++;
    n++;
    if (ranks[1] < 2 || ranks[1] & 1) {
        return false;
    }
    starts[1] = 0;
    for (uint32_t w = 1; w < 12; w++) {
        starts[w + 1] = starts[w] + (ranks[w] << (w - 1));
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t w = weights[i];
        for (uint32_t k = 0; w && k < 1u << (w - 1); k++) {
            z->tree[starts[w]++] = (uint16_t)(i << 8 | (z->tree_log + 1 - w));
        }
    }
    return true;
}

/* A tree description. Returns its bytes, 0 if it is broken. */
static size_t damacy__zstd_tree_read(damacy__zstd_scalar* z, damacy__span src)
{
    uint8_t weights[257];
    uint32_t n = 0;
    size_t size;

    if (src.size == 0) {
        return 0;
    }
    if (src.ptr[0] >= 128) {
        n = src.ptr[0] - 127u;
        size = 1 + (n + 1) / 2;
        for (uint32_t i = 0; i < n && size <= src.size; i++) {
            weights[i] = src.ptr[1 + i / 2] >> (i % 2 ? 0 : 4) & 15;
        }
    } else {
        size = 1 + (size_t)src.ptr[0];
        if (size <= src.size) {
            n = damacy__zstd_read_weights(z, damacy__span_of(src.ptr + 1, size - 1), weights);
        }
    }
    return size <= src.size && n && damacy__zstd_plant(z, weights, n) ? size : 0;
}

static const uint8_t damacy__zstd_more_literals[36] = {0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0,
                                                       0, 0, 0, 0, 1, 1,  1,  1,  2,  2,  3,  3,
                                                       4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t damacy__zstd_more_match[53] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0,  0,  0,  0, 0,
    0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/* Makes the table of one kind from counts: 0 literal lengths, 1 offsets, 2 match lengths. */
static void damacy__zstd_table(damacy__zstd_scalar* z, uint32_t kind, const int16_t* counts,
                               uint32_t n, uint32_t log)
{
    uint32_t bases[53];
    uint8_t mores[53];
    uint32_t base = kind == 2 ? 3 : 0;

    for (uint32_t s = 0; s < n; s++) { /* each code starts where the one before ends */
        mores[s] = kind == 0   ? damacy__zstd_more_literals[s]
                   : kind == 2 ? damacy__zstd_more_match[s]
                               : (uint8_t)s;
        bases[s] = kind == 1 ? 1u << s : base;
        base += 1u << (kind == 1 ? 0 : mores[s]);
    }
    damacy__zstd_spread(&z->tables[kind], counts, n, log, bases, mores);
}

/* Predefined distributions (section 3.1.1.3.2.2). */
static void damacy__zstd_predefined(damacy__zstd_scalar* z, uint32_t kind)
{
    static const int8_t counts[3][53] = {
        {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
         2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1},
        {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
         1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1},
        {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
         1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1}};
    static const uint32_t n[3] = {36, 29, 53};
    int16_t wide[53];

    for (uint32_t s = 0; s < n[kind]; s++) {
        wide[s] = counts[kind][s];
    }
    damacy__zstd_table(z, kind, wide, n[kind], kind == 1 ? 5 : 6);
}

/* Reads the three tables as the modes say; *at moves to the bitstream. */
static damacy_status damacy__zstd_tables_read(damacy__zstd_scalar* z, uint32_t modes,
                                              const uint8_t** at, const uint8_t* end,
                                              damacy_error* err)
{
    static const uint32_t n_symbols[3] = {36, 32, 53};
    static const uint32_t max_logs[3] = {9, 8, 9};

    for (uint32_t kind = 0; kind < 3; kind++) {
        const uint32_t mode = modes >> (6 - 2 * kind) & 3;
        int16_t counts[53] = {0};
        if (mode == 0) {
            damacy__zstd_predefined(z, kind);
        } else if (mode == 1) {
            if (*at == end || **at >= n_symbols[kind]) {
                return damacy__zstd_scalar_refuse(z, *at, "a code that does not exist", err);
            }
            counts[**at] = 1;
            damacy__zstd_table(z, kind, counts, n_symbols[kind], 0);
            ++*at;
        } else if (mode == 2) {
            uint32_t log = 0;
            const size_t size =
                damacy__zstd_read_counts(damacy__span_of(*at, (size_t)(end - *at)), max_logs[kind],
                                         n_symbols[kind], counts, &log);
            if (size == 0) {
                return damacy__zstd_scalar_refuse(z, *at, "a broken FSE table", err);
            }
            damacy__zstd_table(z, kind, counts, n_symbols[kind], log);
            *at += size;
        }
    }
    return DAMACY_OK;
}
