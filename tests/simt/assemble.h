// The kernels of kernels/assemble.cu, which a program has for one output type, for every pair of
// types. Include that file first.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

namespace simt {
typedef void (*assemble_kernel)(damacy__assemble_wave);

template <uint32_t S, uint32_t D> void assemble(damacy__assemble_wave wave)
{
    damacy__assemble_types<S, D>(wave);
}

template <size_t... PAIR>
assemble_kernel assemble_of_pair(uint32_t src, uint32_t out, std::index_sequence<PAIR...>)
{
    static const assemble_kernel kernels[] = {
        assemble<PAIR / DAMACY__TYPES, PAIR % DAMACY__TYPES>...};
    return kernels[src * DAMACY__TYPES + out];
}

// src, out: numbers of damacy_dtype.
inline assemble_kernel assemble_of(uint32_t src, uint32_t out)
{
    return assemble_of_pair(src, out, std::make_index_sequence<DAMACY__TYPES * DAMACY__TYPES>());
}
} // namespace simt
