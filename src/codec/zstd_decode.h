/* The loops of a Zstandard decoder of our own (RFC 8878): the sequences of a block, executed as
 * they are read (section 3.1.1.4), and the checksum of a frame. */
#pragma once
#include "codec/zstd_tables.h"

/* The distance back that an offset value means (section 3.1.1.5); 0: none. */
DAMACY__ALWAYS_INLINE uint64_t damacy__zstd_offset(uint64_t* repeats, uint64_t value,
                                                   bool has_literals)
{
    uint64_t which;
    uint64_t offset;

    if (value > 3) {
        which = 2;
        offset = value - 3;
    } else {
        which = value - (has_literals ? 1 : 0);
        offset = which == 3 ? repeats[0] - 1 : repeats[which];
    }
    if (which >= 2) {
        repeats[2] = repeats[1];
    }
    if (which >= 1) {
        repeats[1] = repeats[0];
    }
    repeats[0] = offset;
    return offset;
}

/* Copies n bytes, and up to 16 more; source and destination lie 16 bytes apart or more. */
DAMACY__ALWAYS_INLINE void damacy__zstd_copy(uint8_t* dst, const uint8_t* src, size_t n)
{
    memcpy(dst, src, 16);
    for (size_t i = 16; i < n; i += 16) {
        memcpy(dst + i, src + i, 16);
    }
}

/* Copies n bytes from `offset` back, which may overlap; may write up to 16 too many if there is
 * room for them. */
DAMACY__ALWAYS_INLINE void damacy__zstd_match(uint8_t* dst, uint64_t offset, size_t n, size_t room)
{
    const uint8_t* from = dst - offset;

    if (room - n < 16) {
        for (size_t i = 0; i < n; i++) {
            dst[i] = from[i];
        }
    } else if (offset >= 16) {
        damacy__zstd_copy(dst, from, n);
    } else {
        for (size_t i = 0; i < 8; i++) {
            dst[i] = from[i];
        }
        /* after 8 bytes the same pattern lies a multiple of offset back */
        from = dst - offset * (offset < 8 ? (7 + offset) / offset : 1);
        for (size_t i = 8; i < n; i += 8) {
            memcpy(dst + i, from + i, 8);
        }
    }
}

/* The numbers of one sequence. */
typedef struct damacy__zstd_sequence {
    uint64_t offset; /* as coded */
    size_t match;
    size_t length; /* of the literals before the match */
} damacy__zstd_sequence;

DAMACY__ALWAYS_INLINE uint64_t damacy__zstd_word_take(uint64_t* word, uint32_t n)
{
    const uint64_t value = *word >> 1 >> (63 - n);

    *word <<= n;
    return value;
}

/* Reads a sequence and moves the states on, which takes no bits after the last one. False: there
 * were too few bits. */
DAMACY__ALWAYS_INLINE bool damacy__zstd_sequence_read(const damacy__zstd_scalar* z,
                                                      damacy__zstd_bits* bits,
                                                      const damacy__zstd_state** state,
                                                      bool is_last, damacy__zstd_sequence* out)
{
    const damacy__zstd_state* const l = state[0];
    const damacy__zstd_state* const o = state[1];
    const damacy__zstd_state* const m = state[2];
    const uint32_t more = (uint32_t)l->n_more + o->n_more + m->n_more;
    const uint32_t steps = (uint32_t)l->n_bits + o->n_bits + m->n_bits;
    uint64_t word = damacy__zstd_bits_word(bits);

    if (more + steps > 57) { /* then in two parts: 31 bits of an offset are the most */
        out->offset = o->base + damacy__zstd_word_take(&word, o->n_more);
        bits->left -= o->n_more;
        if (bits->left < 0) {
            return false;
        }
        word = damacy__zstd_bits_word(bits);
        bits->left += o->n_more;
    } else {
        out->offset = o->base + damacy__zstd_word_take(&word, o->n_more);
    }
    out->match = m->base + (size_t)damacy__zstd_word_take(&word, m->n_more);
    out->length = l->base + (size_t)damacy__zstd_word_take(&word, l->n_more);
    bits->left -= more;
    if (bits->left < 0) {
        return false;
    }
    if (more + steps > 57) {
        word = damacy__zstd_bits_word(bits);
    }
    state[0] = &z->tables[0].states[l->next + damacy__zstd_word_take(&word, l->n_bits)];
    state[2] = &z->tables[2].states[m->next + damacy__zstd_word_take(&word, m->n_bits)];
    state[1] = &z->tables[1].states[o->next + damacy__zstd_word_take(&word, o->n_bits)];
    bits->left -= is_last ? 0 : steps;
    return bits->left >= 0;
}

/* Decodes n sequences from the bitstream [at, end) into [*to, limit). `first` is the start of the
 * frame's content. */
static damacy_status damacy__zstd_sequences(damacy__zstd_scalar* z, const uint8_t* at,
                                            const uint8_t* end, uint32_t n, uint8_t* first,
                                            uint8_t** to, uint8_t* limit, damacy_error* err)
{
    const uint8_t* literals = z->literals;
    const uint8_t* const literals_end = literals + z->n_literals;
    uint64_t repeats[3] = {z->repeats[0], z->repeats[1], z->repeats[2]};
    const damacy__zstd_state* state[3];
    damacy__zstd_bits bits = {NULL, 0};
    uint8_t* out = *to;

    if (!damacy__zstd_bits_open(&bits, at, (size_t)(end - at))) {
        return damacy__zstd_scalar_refuse(z, end, "a sequence stream without end mark", err);
    }
    for (uint32_t k = 0; k < 3; k++) {
        state[k] = &z->tables[k].states[damacy__zstd_bits_read(&bits, z->tables[k].log)];
    }
    if (bits.left < 0) {
        return damacy__zstd_scalar_refuse(z, at, "a sequence stream that is cut short", err);
    }
    for (uint32_t i = 0; i < n; i++) {
        damacy__zstd_sequence s;
        const bool is_read = damacy__zstd_sequence_read(z, &bits, state, i + 1 == n, &s);
        const uint64_t offset = is_read ? damacy__zstd_offset(repeats, s.offset, s.length != 0) : 0;
        if (!is_read || s.length > (size_t)(literals_end - literals) ||
            s.length > (size_t)(limit - out) || s.match > (size_t)(limit - out) - s.length ||
            offset - 1 >= (uint64_t)(out - first) + s.length) {
            return damacy__zstd_scalar_refuse(z, at, "a sequence that does not fit", err);
        }
        if (s.length + 16 <= (size_t)(limit - out)) { /* literals have slack behind them */
            damacy__zstd_copy(out, literals, s.length);
        } else {
            memcpy(out, literals, s.length);
        }
        out += s.length;
        literals += s.length;
        damacy__zstd_match(out, offset, s.match, (size_t)(limit - out));
        out += s.match;
    }
    if (bits.left != 0) {
        return damacy__zstd_scalar_refuse(z, at, "a sequence stream of the wrong length", err);
    }
    memcpy(z->repeats, repeats, sizeof repeats);
    z->literals = literals;
    z->n_literals = (size_t)(literals_end - literals);
    *to = out;
    return DAMACY_OK;
}

DAMACY__ALWAYS_INLINE uint64_t damacy__zstd_hash_round(uint64_t sum, uint64_t lane)
{
    sum += lane * UINT64_C(0xc2b2ae3d27d4eb4f);
    return (sum << 31 | sum >> 33) * UINT64_C(0x9e3779b185ebca87);
}

/* XXH64 with seed 0, of which a frame stores the low half. */
static uint64_t damacy__zstd_hash(const uint8_t* src, uint64_t size)
{
    static const uint64_t prime[5] = {UINT64_C(0x9e3779b185ebca87), UINT64_C(0xc2b2ae3d27d4eb4f),
                                      UINT64_C(0x165667b19e3779f9), UINT64_C(0x85ebca77c2b2ae63),
                                      UINT64_C(0x27d4eb2f165667c5)};
    uint64_t v[4] = {prime[0] + prime[1], prime[1], 0, 0 - prime[0]};
    uint64_t n = size;
    uint64_t h = prime[4];

    for (; n >= 32; src += 32, n -= 32) {
        for (uint32_t i = 0; i < 4; i++) {
            v[i] = damacy__zstd_hash_round(v[i], damacy__load_u64le(src + 8 * i));
        }
    }
    if (size >= 32) {
        h = (v[0] << 1 | v[0] >> 63) + (v[1] << 7 | v[1] >> 57) + (v[2] << 12 | v[2] >> 52) +
            (v[3] << 18 | v[3] >> 46);
        for (uint32_t i = 0; i < 4; i++) {
            h = (h ^ damacy__zstd_hash_round(0, v[i])) * prime[0] + prime[3];
        }
    }
    h += size;
    for (; n >= 8; src += 8, n -= 8) {
        h ^= damacy__zstd_hash_round(0, damacy__load_u64le(src));
        h = (h << 27 | h >> 37) * prime[0] + prime[3];
    }
    for (; n >= 4; src += 4, n -= 4) {
        h ^= damacy__load_u32le(src) * prime[0];
        h = (h << 23 | h >> 41) * prime[1] + prime[2];
    }
    for (; n > 0; src++, n--) {
        h ^= *src * prime[4];
        h = (h << 11 | h >> 53) * prime[0];
    }
    h = (h ^ h >> 33) * prime[1];
    h = (h ^ h >> 29) * prime[2];
    return h ^ h >> 32;
}
