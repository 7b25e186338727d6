// Bytes that shrink to little, as labels do.
#pragma once
#include "tests/test.h"
#include <stdint.h>
#include <vector>

// n bytes: rows of an id of two bytes among zeros, of 3 to 59 voxels every 60 to 499, and large
// areas of zeros. Matches of some hundred bytes beside longer ones, 70 times smaller by LZ4.
static inline std::vector<uint8_t> rows_of_ids(size_t n, uint64_t* seed)
{
    std::vector<uint8_t> v;
    while (v.size() < n) {
        const uint64_t id = test_random(seed) % 3000;
        v.insert(v.end(), 2 * (size_t)(test_random(seed) % 12000), 0);
        for (size_t row = (size_t)(test_random(seed) % 40); row > 0; row--) {
            for (size_t k = 3 + (size_t)(test_random(seed) % 57); k > 0; k--) {
                v.push_back((uint8_t)id);
                v.push_back((uint8_t)(id >> 8));
            }
            v.insert(v.end(), 2 * (60 + (size_t)(test_random(seed) % 440)), 0);
        }
    }
    v.resize(n);
    return v;
}
