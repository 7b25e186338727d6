// Copies, casts and scales voxels of decoded chunks, or fill values, into samples: one pass over
// memory.
//
// The grid is of any size; each block takes an equal run of neighbouring tiles, finds the job of
// the first by search and walks on from there. Threads take neighbouring units of 16 output bytes,
// so stores and, along the line, loads are coalesced. Shared memory: a job and its axes, under 1.3
// KiB.
//
// There is a kernel for each source type, damacy_assemble_ and the number of its damacy_dtype, and
// DAMACY__ASSEMBLE_OUT is the number of the output's, so that all types are constants. Without it
// the output has the type of the source.
#include "kernels/assemble_unit.cuh"

#define DAMACY__ASSEMBLE_AXES 34u // the ranks of an array, and two that splitting makes

struct damacy__assemble_state {
    damacy__assemble_job job;
    damacy__assemble_axis axes[DAMACY__ASSEMBLE_AXES];
};

DAMACY__INLINE uint32_t damacy__divide(uint32_t x, uint32_t magic, uint32_t shift)
{
    return (magic ? __umulhi(x, magic) : x) >> shift;
}

// Where line number `index` starts.
DAMACY__INLINE damacy__line damacy__line_of(const damacy__assemble_state* s, uint32_t index)
{
    damacy__line line;
    line.src = s->job.src;
    line.dst = s->job.dst;
    line.channel = s->job.channel;
    line.channel_step = s->job.channel_axis == s->job.n_axes ? 1 : 0;
    for (uint32_t a = s->job.n_axes; a-- > 0;) {
        const damacy__assemble_axis* const axis = &s->axes[a];
        const uint32_t rest = damacy__divide(index, axis->magic, axis->shift);
        const uint32_t i = index - rest * axis->extent;
        line.src += (uint64_t)((int64_t)i * axis->src_step);
        line.dst += (uint64_t)((int64_t)i * axis->dst_step);
        if (a == s->job.channel_axis)
            line.channel += i;
        index = rest;
    }
    return line;
}

// The part of unit u that is inside its line, which may begin and end within a unit: positions [a,
// b), of which position 0 is voxel `first`, perhaps one before the line.
struct damacy__assemble_span {
    damacy__line line;
    int64_t first;
    uint32_t a, b;
};

DAMACY__INLINE damacy__assemble_span damacy__span_of(const damacy__assemble_state* s, uint32_t u,
                                                     uint32_t out_size)
{
    const uint32_t index = damacy__divide(u, s->job.units_magic, s->job.units_shift);
    const uint32_t count = 16 / out_size, at = (u - index * s->job.units) * count;
    damacy__assemble_span r;
    r.line = damacy__line_of(s, index);
    const bool is_run = s->job.dst_step == (int64_t)out_size;
    const uint32_t before = is_run ? (uint32_t)(r.line.dst & 15) / out_size : 0;
    r.first = (int64_t)at - (int64_t)before;
    r.a = at < before ? damacy__min(before - at, count) : 0;
    r.b = at >= s->job.n + before ? r.a : damacy__min(s->job.n + before - at, count);
    return r;
}

// Units [first, end) of a job whose types are constants.
template <uint32_t S, uint32_t D>
DAMACY__INLINE void damacy__assemble_pair(const damacy__assemble_wave* wave,
                                          const damacy__assemble_state* s, uint32_t first,
                                          uint32_t end)
{
    constexpr uint32_t out_size = damacy__type_size(D);
    const bool is_run = s->job.dst_step == (int64_t)out_size;
    for (uint32_t u = first + threadIdx.x; u < end; u += blockDim.x) {
        const damacy__assemble_span r = damacy__span_of(s, u, out_size);
        if (r.a >= r.b)
            continue;
        if (is_run)
            damacy__unit<S, D>(wave, &s->job, &r.line, r.first, r.a, r.b);
        else
            damacy__unit_slow<S>(wave, &s->job, &r.line, (uint32_t)r.first + r.a,
                                 (uint32_t)r.first + r.b, D);
    }
}

// The job that a tile belongs to: the last one whose first tile is not above it.
DAMACY__INLINE uint32_t damacy__job_of_tile(const uint32_t* first_tile, uint32_t n, uint32_t tile)
{
    uint32_t low = 0;
    while (n > 1) {
        const uint32_t half = n / 2;
        if (first_tile[low + half] <= tile)
            low += half;
        n -= half;
    }
    return low;
}

DAMACY__INLINE void damacy__assemble_load(const damacy__assemble_wave* wave, uint32_t index,
                                          damacy__assemble_state* s)
{
    const damacy__assemble_job* const job =
        (const damacy__assemble_job*)(uintptr_t)wave->jobs + index;
    const damacy__assemble_axis* const axes =
        (const damacy__assemble_axis*)(uintptr_t)wave->axes + job->first_axis;
    const uint32_t n_words = sizeof(damacy__assemble_job) / 4;
    const uint32_t n_axis_words = damacy__min(job->n_axes, DAMACY__ASSEMBLE_AXES) *
                                  (uint32_t)sizeof(damacy__assemble_axis) / 4;
    for (uint32_t i = threadIdx.x; i < n_words; i += blockDim.x)
        ((uint32_t*)&s->job)[i] = ((const uint32_t*)job)[i];
    for (uint32_t i = threadIdx.x; i < n_axis_words; i += blockDim.x)
        ((uint32_t*)s->axes)[i] = ((const uint32_t*)axes)[i];
}

// What a block does.
template <uint32_t S, uint32_t D>
DAMACY__INLINE void damacy__assemble_types(const damacy__assemble_wave& wave)
{
    DAMACY__SHARED(damacy__assemble_state, state);
    const uint32_t* const first_tile = (const uint32_t*)(uintptr_t)wave.first_tile;
    const uint64_t n_tiles = wave.n_tiles;
    uint32_t tile = (uint32_t)(n_tiles * blockIdx.x / gridDim.x);
    const uint32_t end_tile = (uint32_t)(n_tiles * (blockIdx.x + 1) / gridDim.x);
    if (tile >= end_tile)
        return;
    for (uint32_t index = damacy__job_of_tile(first_tile, wave.n_jobs, tile); tile < end_tile;
         index++) {
        const uint32_t job_tile = first_tile[index];
        const uint32_t last = damacy__min(first_tile[index + 1], end_tile);
        if (last <= tile)
            continue;
        damacy__sync_block(); // the job before is no longer in use
        damacy__assemble_load(&wave, index, &state);
        damacy__sync_block();
        damacy__assemble_pair<S, D>(&wave, &state, (tile - job_tile) * DAMACY__ASSEMBLE_TILE,
                                    damacy__min((last - job_tile) * DAMACY__ASSEMBLE_TILE,
                                                state.job.units * state.job.n_lines));
        tile = last;
    }
}

#ifdef DAMACY__ASSEMBLE_OUT
#define DAMACY__ASSEMBLE_TO(type) DAMACY__ASSEMBLE_OUT
#else
#define DAMACY__ASSEMBLE_TO(type) type
#endif
#define DAMACY__ASSEMBLE(type)                                                \
    extern "C" __global__ __launch_bounds__(256) void damacy_assemble_##type( \
        damacy__assemble_wave wave)                                           \
    {                                                                         \
        damacy__assemble_types<type, DAMACY__ASSEMBLE_TO(type)>(wave);        \
    }
DAMACY__ASSEMBLE(0)
DAMACY__ASSEMBLE(1)
DAMACY__ASSEMBLE(2)
DAMACY__ASSEMBLE(3)
DAMACY__ASSEMBLE(4)
DAMACY__ASSEMBLE(5)
DAMACY__ASSEMBLE(6)
DAMACY__ASSEMBLE(7)
DAMACY__ASSEMBLE(8)
DAMACY__ASSEMBLE(9)
DAMACY__ASSEMBLE(10)
DAMACY__ASSEMBLE(11)
DAMACY__ASSEMBLE(12)
