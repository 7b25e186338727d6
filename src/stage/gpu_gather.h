/* Units gathered into a wave: where the bytes and the voxels of each lie on the device.
 *
 * Units keep the order in which they came, so that bytes that lie together on the host are sent at
 * once. A blosc chunk's streams join the wave's own Zstandard jobs on the device. */
#pragma once
#include "stage/gpu_classify.h"

/* Whether a unit's voxels come from bytes of the host's. */
static bool damacy__unit_is_stored(const damacy__unit* unit)
{
    return unit->kind != DAMACY__UNIT_FILL && unit->kind != DAMACY__UNIT_KEPT;
}

/* The mapped file that a unit's bytes lie in, if any. */
static const damacy__mapped_file* damacy__unit_file(const damacy__unit* unit)
{
    const damacy__slot* slot = unit->slot;

    return !damacy__unit_is_stored(unit) || unit->is_space
               ? NULL
               : slot->read_tasks.items[slot->plan.chunks.items[unit->first].read].file;
}

static uint64_t damacy__unit_copies(const damacy__unit* unit)
{
    return unit->kind == DAMACY__UNIT_FILL ? unit->n
                                           : unit->slot->plan.chunks.items[unit->first].n_copies;
}

/* The host's table of jobs of a kind. */
static damacy__job* damacy__wave_jobs(const damacy__gpu* gpu, const damacy__wave* wave,
                                      uint32_t kind)
{
    return (damacy__job*)(void*)(wave->host.ptr +
                                 (kind == DAMACY__UNIT_BLOSC ? gpu->tables.blosc_jobs
                                  : kind == DAMACY__UNIT_LZ4 ? gpu->tables.lz4_jobs
                                                             : gpu->tables.zstd_jobs));
}

/* Whether a unit's bytes lie behind those of the one before, and how many lie between, so that all
 * are sent at once. Memory that the driver knows in pieces is never sent across the pieces, and
 * what lies between chunks only where it was read with them, or is the same file; voxels stay
 * aligned. */
static bool damacy__unit_follows(const damacy__unit* unit, const damacy__unit* before,
                                 uint64_t* gap)
{
    const damacy__plan_chunk* chunks = unit->slot->plan.chunks.items;
    const damacy__mapped_file* file = damacy__unit_file(unit);
    uint64_t most = 0;

    if (!before->bytes || before->is_space != unit->is_space || damacy__unit_file(before) != file ||
        before->bytes + before->size > unit->bytes) {
        return false;
    }
    if (unit->kind != DAMACY__UNIT_VOXELS && !unit->is_space &&
        (file ||
         (before->slot == unit->slot && chunks[before->first].read == chunks[unit->first].read))) {
        most = unit->slot->core->plan_options.max_gap;
    }
    *gap = (uint64_t)(unit->bytes - (before->bytes + before->size));
    return *gap <= most;
}

static uint32_t* damacy__wave_count(damacy__wave* wave, uint32_t kind)
{
    return kind == DAMACY__UNIT_BLOSC ? &wave->n_blosc
           : kind == DAMACY__UNIT_LZ4 ? &wave->n_lz4
                                      : &wave->n_zstd;
}

/* A job of the wave will write `size` bytes. */
static void damacy__wave_expect(damacy__wave* wave, uint32_t kind, uint64_t size)
{
    const bool is_lz4 = kind == DAMACY__UNIT_LZ4;
    uint64_t* const output = is_lz4 ? &wave->output_lz4 : &wave->output_zstd;
    uint64_t* const most = is_lz4 ? &wave->most_lz4 : &wave->most_zstd;

    *output += size;
    *most = DAMACY__MAX(*most, size);
}

/* The address of a chunk that is kept. */
static uint64_t damacy__unit_place(const damacy__unit* unit)
{
    return (uint64_t)(uintptr_t)unit->slot->core->chunks.bytes + unit->block->offset;
}

/* Room for a unit's voxels and bytes; false: the wave is full. */
static bool damacy__wave_add(damacy__gpu* gpu, damacy__wave* wave, damacy__unit* unit)
{
    const uint64_t n_copies = damacy__unit_copies(unit);
    uint64_t in = wave->input_used;

    if (wave->n_units == gpu->max_units ||
        (wave->n_units > 0 && wave->n_copies + n_copies > gpu->max_copies / 2)) {
        return false;
    }
    if (unit->kind == DAMACY__UNIT_KEPT) {
        unit->dst = damacy__unit_place(unit);
    }
    if (damacy__unit_is_stored(unit)) {
        const damacy__unit* last = wave->n_units ? wave->units[wave->n_units - 1] : NULL;
        const uint64_t size = unit->slot->plan.chunks.items[unit->first].layout->chunk_size;
        /* Bytes that lie together on the host stay together, so that they are sent at once. */
        uint64_t gap = 0;
        const bool follows = last && damacy__unit_follows(unit, last, &gap);
        in = follows ? in + gap : damacy__align_up(in, 256);
        if (unit->size > gpu->input_size - DAMACY__MIN(in, gpu->input_size) ||
            size > (wave->n_units ? gpu->output_limit : gpu->output_size) -
                       DAMACY__MIN(wave->output_used,
                                   wave->n_units ? gpu->output_limit : gpu->output_size)) {
            return false;
        }
        if (unit->kind == DAMACY__UNIT_VOXELS) {
            unit->dst = unit->block ? damacy__unit_place(unit) : wave->input + in;
        } else {
            uint32_t* const n_jobs = damacy__wave_count(wave, unit->kind);
            damacy__job* job = damacy__wave_jobs(gpu, wave, unit->kind) + *n_jobs;
            memset(job, 0, sizeof *job);
            unit->dst = unit->block ? damacy__unit_place(unit) : wave->output + wave->output_used;
            unit->number = (*n_jobs)++;
            job->src = wave->input + in;
            job->src_size = unit->size;
            job->dst = unit->dst;
            job->dst_capacity = size;
            job->expected_size = size;
            job->flags = gpu->core->config.skip_checksums ? (uint32_t)DAMACY__JOB_NO_CHECKSUM : 0;
            job->flags |= unit->kind == DAMACY__UNIT_LZ4 ? (uint32_t)DAMACY__LZ4_SIZE_PREFIX : 0;
            wave->output_used = damacy__align_up(wave->output_used + size, 256);
            wave->output_used = DAMACY__MIN(wave->output_used, gpu->output_size);
            damacy__wave_expect(wave, unit->kind, size);
        }
        wave->input_used = in + unit->size;
    }
    wave->n_copies += (uint32_t)n_copies;
    wave->units[wave->n_units++] = unit;
    return true;
}

/* Where a unit's bytes lie in the wave's input. */
static uint64_t damacy__unit_input(const damacy__gpu* gpu, const damacy__wave* wave,
                                   const damacy__unit* unit)
{
    return unit->kind == DAMACY__UNIT_VOXELS
               ? unit->dst
               : damacy__wave_jobs(gpu, wave, unit->kind)[unit->number].src;
}
