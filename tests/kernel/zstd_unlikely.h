// Frames whose tables of literal lengths are no measure of how many sequences have literals: code 0
// has nearly all cells, and no sequence uses it. No encoder writes them. (RFC 8878 sections 3.1.1.3
// and 4.1.)
#pragma once
#include "tests/kernel/zstd_corpus.h"
#include "tests/test.h"

// Description of a table in which symbols first ... last have one cell each but one of them, which
// has all others.
static inline bytes one_cell_each(uint32_t log, uint32_t first, uint32_t last, uint32_t common)
{
    bytes out;
    uint32_t left = 1u << log, at = 0;
    auto put = [&](uint32_t v, uint32_t n) {
        for (uint32_t i = 0; i < n; i++, at++) {
            if (at % 8 == 0)
                out.push_back(0);
            out.back() |= (uint8_t)((v >> i & 1) << at % 8);
        }
    };
    put(log - 5, 4);
    for (uint32_t s = 0; s <= last; s++) {
        const uint32_t count = s < first ? 0 : s == common ? (1u << log) - (last - first) : 1;
        uint32_t n = 0; // bits, fewer and fewer (section 4.1.1)
        while ((1u << n) < left + 2)
            n++;
        const uint32_t spare = (1u << n) - (left + 2), v = count + 1;
        put(v + (v >= 1u << (n - 1) ? spare : 0), n - (v < spare ? 1 : 0));
        if (count == 0)
            put(0, 2); // none after it is left out
        left -= count;
    }
    return out;
}

struct bit_list { // in the order in which a decoder reads them
    std::vector<bool> bits;

    void put(uint32_t v, uint32_t n) // the high bit first, as backward streams are read
    {
        while (n--) {
            bits.push_back(v >> n & 1);
        }
    }
    // The stream whose last byte is read first, with its end mark.
    bytes backward() const
    {
        const size_t n = bits.size();
        bytes out(n / 8 + 1);
        for (size_t i = 0; i < n; i++) {
            out[(n - 1 - i) / 8] |= (uint8_t)(bits[i] << (n - 1 - i) % 8);
        }
        out[n / 8] |= (uint8_t)(1u << n % 8);
        return out;
    }
};

// A frame of one block of n sequences, 60 to 7,000: 1 to 15 literals, then 3 bytes from 1 to 4
// before.
static inline bytes unlikely_frame(uint32_t n, uint64_t* seed)
{
    enum { LOG = 9, CELLS = 1 << LOG, CODES = 15, STEP = CELLS / 2 + CELLS / 8 + 3 };
    const bytes table = one_cell_each(LOG, 0, CODES, 0);
    bytes block, literals;
    uint32_t size = 0;
    bit_list stream;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t r = test_random(seed);
        const uint32_t code = 1 + (uint32_t)(r >> 8) % CODES; // as many literals
        // cells of a code are spread; of those with one, a step of 9 bits leads to any cell
        stream.put((CELLS - CODES + code - 1) * STEP & (CELLS - 1), LOG);
        stream.put(i ? (uint32_t)r & 3 : 0, 2); // of the offset, code 2
        for (uint32_t k = 0; k < code; k++) {
            literals.push_back((uint8_t)(test_random(seed) >> 20));
        }
        size += code + 3;
    }
    const uint32_t header = 3u << 2 | (uint32_t)literals.size() << 4; // raw, 20 bits
    for (uint32_t i = 0; i < 3; i++) {
        block.push_back((uint8_t)(header >> 8 * i));
    }
    block.insert(block.end(), literals.begin(), literals.end());
    if (n < 128) {
        block.push_back((uint8_t)n);
    } else {
        block.push_back((uint8_t)(128 + (n >> 8)));
        block.push_back((uint8_t)n);
    }
    block.push_back(2 << 6 | 1 << 4 | 1 << 2); // an FSE table, RLE, RLE
    block.insert(block.end(), table.begin(), table.end());
    block.push_back(2); // offsets 1 to 4
    block.push_back(0); // 3 bytes
    const bytes bits = stream.backward();
    block.insert(block.end(), bits.begin(), bits.end());
    bytes frame = {0x28, 0xb5, 0x2f, 0xfd, 0xa0}; // single segment, size of 4 bytes
    for (uint32_t i = 0; i < 4; i++) {
        frame.push_back((uint8_t)(size >> 8 * i));
    }
    for (uint32_t i = 0; i < 3; i++) {
        frame.push_back((uint8_t)((1 | 2 << 1 | block.size() << 3) >> 8 * i));
    }
    frame.insert(frame.end(), block.begin(), block.end());
    return frame;
}
