// Blocks as liblz4 makes them.
#pragma once
#include <lz4.h>
#include <lz4hc.h>
#include <stdint.h>
#include <vector>

// level: above 0 of LZ4_compress_HC, else less the acceleration of LZ4_compress_fast, 0 its
// default. Empty if it failed.
static inline std::vector<uint8_t> lz4_block(const std::vector<uint8_t>& raw, int level)
{
    std::vector<uint8_t> out((size_t)LZ4_compressBound((int)raw.size()));
    const int n = level > 0 ? LZ4_compress_HC((const char*)raw.data(), (char*)out.data(),
                                              (int)raw.size(), (int)out.size(), level)
                            : LZ4_compress_fast((const char*)raw.data(), (char*)out.data(),
                                                (int)raw.size(), (int)out.size(), 1 - level);
    out.resize((size_t)(n > 0 ? n : 0));
    return out;
}
