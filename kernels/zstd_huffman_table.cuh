// A Huffman table, from the weights of a tree to entries {bits : 8, symbol : 8}.
#pragma once

#include "kernels/zstd_common.cuh"

// Symbols of one weight, sorted, in the cells from `cell` on, 1 << shift each: two cells at once,
// since those of a weight are even in number (RFC 8878 section 4.2.1: codes fill the tree).
DAMACY__INLINE void damacy__zstd_table_cells(uint32_t table, const uint8_t* sorted, uint32_t symbol,
                                             uint32_t bits, uint32_t cell, uint32_t n_cells,
                                             uint32_t shift, uint32_t mask, uint32_t part,
                                             uint32_t parts)
{
    for (uint32_t i = 2 * damacy__lane() + 64 * part; i < n_cells; i += 64 * parts) {
        const uint32_t a = sorted[(symbol + (i >> shift)) & 255];
        const uint32_t b = shift ? a : sorted[(symbol + i + 1) & 255];
        damacy__sts32(table + 2 * ((cell + i) & mask & ~1u), bits * 0x10001 | a << 8 | b << 24);
    }
}

// A warp builds one table of 2^LOG entries at `table` from the weights that its lanes hold (eight
// a lane) of a tree with table log `log` <= LOG; or several do, each one part of it. scratch: 256
// bytes of shared memory, a warp's own.
static __device__ __noinline__ void damacy__zstd_table_build(uint16_t* table, uint8_t* scratch,
                                                             uint32_t weights, uint32_t log,
                                                             uint32_t LOG, uint32_t part,
                                                             uint32_t parts)
{
    const uint32_t lane = damacy__lane();
    uint64_t low = 0, high = 0; // symbols per weight: 1-6 and 7-11 in fields of 10 bits

    for (uint32_t j = 0; j < 8; j++) {
        const uint32_t weight = weights >> (4 * j) & 15;
        if (weight && weight <= 6)
            low += 1ull << (10 * (weight - 1));
        else if (weight)
            high += 1ull << (10 * (weight - 7));
    }
    uint64_t scan_low = low, scan_high = high;
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint64_t a = damacy__shfl_up(scan_low, d), b = damacy__shfl_up(scan_high, d);
        if (lane >= d) {
            scan_low += a;
            scan_high += b;
        }
    }
    const uint64_t total_low = damacy__shfl(scan_low, 31), total_high = damacy__shfl(scan_high, 31);
    uint64_t at_low = scan_low - low, at_high = scan_high - high; // ranks within a weight
    uint32_t base = 0;
    for (uint32_t weight = 1; weight <= 6; weight++) { // ranks over all weights
        at_low += (uint64_t)base << (10 * (weight - 1));
        base += (uint32_t)(total_low >> (10 * (weight - 1))) & 1023;
    }
    for (uint32_t weight = 7; weight <= 11; weight++) {
        at_high += (uint64_t)base << (10 * (weight - 7));
        base += (uint32_t)(total_high >> (10 * (weight - 7))) & 1023;
    }
    for (uint32_t j = 0; j < 8; j++) { // symbols sorted by weight
        const uint32_t weight = weights >> (4 * j) & 15;
        if (weight && weight <= 6) {
            scratch[at_low >> (10 * (weight - 1)) & 255] = (uint8_t)(lane * 8 + j);
            at_low += 1ull << (10 * (weight - 1));
        } else if (weight) {
            scratch[at_high >> (10 * (weight - 7)) & 255] = (uint8_t)(lane * 8 + j);
            at_high += 1ull << (10 * (weight - 7));
        }
    }
    damacy__sync_warp();
    const uint32_t at = damacy__shared_address(table);
    uint32_t cell = 0, symbol = 0;
    for (uint32_t weight = 1; weight <= log; weight++) {
        const uint32_t count = (uint32_t)(weight <= 6 ? total_low >> (10 * (weight - 1))
                                                      : total_high >> (10 * (weight - 7))) &
                               1023;
        const uint32_t shift = weight - 1 + LOG - log, n_cells = count << shift;
        damacy__zstd_table_cells(at, scratch, symbol, log + 1 - weight, cell, n_cells, shift,
                                 (1u << LOG) - 1, part, parts);
        cell += n_cells;
        symbol += count;
    }
    damacy__sync_warp();
}
