// Labels, for the decoder's benchmark and for tests.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

// `size` bytes of uint16 ids of objects: rows of one, of 3 to 59 voxels, with gaps of 60 to 499
// zeros in between, in large areas of zeros. random(): 64 random bits.
template <class F> static std::vector<uint8_t> rows_of_ids(size_t size, F random)
{
    std::vector<uint8_t> out;

    while (out.size() < size) {
        const uint64_t id = 1 + random() % 3000;
        out.resize(out.size() + 2 * (random() % 12000));
        for (uint64_t rows = 2 + random() % 38; rows > 0; rows--) {
            for (uint64_t i = 3 + random() % 57; i > 0; i--) {
                out.push_back((uint8_t)id);
                out.push_back((uint8_t)(id >> 8));
            }
            out.resize(out.size() + 2 * (60 + random() % 440));
        }
    }
    out.resize(size);
    return out;
}
