// Every kernel, compiled for the CPU.
#include "tests/simt/kernels.h"
#include "tests/simt/simt.h"
#include "kernels/assemble.cu"
#include "kernels/blosc.cu"
#include "kernels/codec.cu"
#include "kernels/copy.cu"
#include "kernels/crc32c.cu"
#include "kernels/lz4.cu"
#include "kernels/zstd.cu"
#include "kernels/zstd_blosc.cu"
#include "kernels/zstd_sequences.cu"
#include "tests/simt/assemble.h"
#include <string>

// One of the kernels that a program has for each source type, of programs for any output type.
template <uint32_t S> static void assemble(damacy__assemble_wave wave)
{
    simt::assemble_of(S, wave.out_dtype)(wave);
}

template <size_t... S> static void enroll_assemble(std::index_sequence<S...>)
{
    (simt::enroll("damacy_assemble_" + std::to_string(S), assemble<S>), ...);
}

void enroll_kernels()
{
#define KERNEL(name) simt::enroll(#name, name)
    enroll_assemble(std::make_index_sequence<DAMACY__TYPES>());
    KERNEL(damacy_blosc_begin);
    KERNEL(damacy_blosc_parse);
    KERNEL(damacy_blosc_unfilter);
    KERNEL(damacy_clear_failed);
    KERNEL(damacy_crc32c);
    KERNEL(damacy_frames_gather);
    KERNEL(damacy_frames_measure);
    KERNEL(damacy_frames_scatter);
    KERNEL(damacy_frames_sizes);
    KERNEL(damacy_gather);
    KERNEL(damacy_lz4);
    KERNEL(damacy_lz4_fours);
    KERNEL(damacy_lz4_sparse);
    KERNEL(damacy_lz4_team4);
    KERNEL(damacy_lz4_team8);
    KERNEL(damacy_lz4_relay);
    KERNEL(damacy_zstd_blosc_1024x3);
    KERNEL(damacy_zstd_blosc_128x2_serial);
    KERNEL(damacy_zstd_blosc_128x4_3k);
    KERNEL(damacy_zstd_blosc_256x2_serial);
    KERNEL(damacy_zstd_blosc_256x4);
    KERNEL(damacy_zstd_blosc_64x4_serial);
    KERNEL(damacy_zstd_blosc_cut);
    KERNEL(damacy_zstd_blosc_fse);
    KERNEL(damacy_zstd_blosc_fse_few);
    KERNEL(damacy_zstd_blosc_relay);
    KERNEL(damacy_zstd_blosc_relay_wide);
    KERNEL(damacy_zstd_count);
    KERNEL(damacy_zstd_cut);
    KERNEL(damacy_zstd_execute_1024x3);
    KERNEL(damacy_zstd_execute_128x2);
    KERNEL(damacy_zstd_execute_128x2_serial);
    KERNEL(damacy_zstd_execute_64x4_serial);
    KERNEL(damacy_zstd_execute_128x4);
    KERNEL(damacy_zstd_execute_128x4_3k);
    KERNEL(damacy_zstd_execute_256x4);
    KERNEL(damacy_zstd_fill);
    KERNEL(damacy_zstd_finish);
    KERNEL(damacy_zstd_fse);
    KERNEL(damacy_zstd_fse_few);
    KERNEL(damacy_zstd_jump);
    KERNEL(damacy_zstd_link);
    KERNEL(damacy_zstd_literals_lanes10);
    KERNEL(damacy_zstd_literals_lanes11);
    KERNEL(damacy_zstd_literals_lanes9);
    KERNEL(damacy_zstd_literals_split);
    KERNEL(damacy_zstd_literals_split_small);
    KERNEL(damacy_zstd_literals_split4);
    KERNEL(damacy_zstd_order);
    KERNEL(damacy_zstd_place);
    KERNEL(damacy_zstd_relay);
    KERNEL(damacy_zstd_relay_wide);
    KERNEL(damacy_zstd_resolve);
    KERNEL(damacy_zstd_tables);
    KERNEL(damacy_zstd_trees);
}
