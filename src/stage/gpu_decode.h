/* The launches of one wave: its tables sent, its chunks decoded, its list of copies run. All are
 * queued on streams without waiting. */
#pragma once
#include "stage/gpu_gather.h"

/* Sends the counts of jobs and what is used of their tables. */
static damacy_status damacy__wave_send_tables(damacy__gpu* gpu, damacy__wave* wave,
                                              damacy__copies* copies, damacy__stream stream,
                                              damacy_error* err)
{
    const damacy__wave_tables* t = &gpu->tables;
    const uint64_t job = sizeof(damacy__job);
    uint8_t* const host = wave->host.ptr;

    memcpy(host + t->n_zstd, &wave->n_zstd, sizeof wave->n_zstd);
    memcpy(host + t->n_blosc, &wave->n_blosc, sizeof wave->n_blosc);
    memcpy(host + t->n_lz4, &wave->n_lz4, sizeof wave->n_lz4);
    DAMACY__TRY(damacy__copies_add(copies, &gpu->device, wave->tables, host,
                                   t->zstd_jobs + wave->n_zstd * job, stream, err));
    DAMACY__TRY(damacy__copies_add(copies, &gpu->device, wave->tables + t->blosc_jobs,
                                   host + t->blosc_jobs, wave->n_blosc * job, stream, err));
    return damacy__copies_add(copies, &gpu->device, wave->tables + t->lz4_jobs, host + t->lz4_jobs,
                              wave->n_lz4 * job, stream, err);
}

/* Sends bytes of the host's: of staging or a mapped file, which kernels read, or of others. */
static damacy_status damacy__wave_send_part(damacy__gpu* gpu, uint64_t to, const uint8_t* from,
                                            uint64_t size, bool is_readable, damacy_error* err)
{
    if (is_readable) {
        return damacy__copies_add(&gpu->copies, &gpu->device, to, from, size, gpu->copy_stream,
                                  err);
    }
    return damacy__copy_to_device(&gpu->device, to, from, size, gpu->copy_stream, err);
}

/* Decodes the first max_jobs of a table of Zstandard jobs. */
static damacy_status damacy__wave_zstd(damacy__gpu* gpu, damacy__wave* wave, uint64_t jobs,
                                       uint64_t n_jobs, uint64_t results,
                                       const damacy__blosc_wave* blosc, uint32_t likely,
                                       damacy_error* err)
{
    damacy__zstd_call call;

    memset(&call, 0, sizeof call);
    call.jobs = jobs;
    call.n_jobs = n_jobs;
    call.results = results;
    call.scratch = gpu->scratch;
    call.blosc = blosc;
    call.blosc_kernels = gpu->lz.zstd.kernels;
    call.likely_jobs = likely;
    call.likely_size = wave->output_zstd;
    call.likely_most = wave->most_zstd;
    call.n_held = damacy__copies_blocks(&gpu->copies, &gpu->device);
    call.stream = wave->stream;
    return damacy__zstd_launch(&gpu->zstd, &gpu->device, &gpu->zstd_layout, &call, err);
}

/* Blosc chunks, and the wave's own Zstandard jobs in front of theirs. */
static damacy_status damacy__wave_blosc(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    const uint64_t scratch = gpu->scratch + gpu->zstd_layout.size;
    damacy__blosc_layout layout = gpu->blosc_layout;
    damacy__blosc_wave on_device;
    damacy__lz_call call;

    layout.wave.first_zstd = wave->n_zstd;
    layout.wave.max_jobs = wave->n_blosc; /* grids of this wave, not of the largest */
    memset(&call, 0, sizeof call);
    call.jobs = wave->tables + gpu->tables.blosc_jobs;
    call.n_jobs = wave->tables + gpu->tables.n_blosc;
    call.results = wave->tables + gpu->tables.blosc_results;
    call.scratch = scratch;
    call.stream = wave->stream;
    call.likely_size = wave->output_zstd;
    if (wave->n_zstd) {
        DAMACY__TRY(damacy__copy_on_device(&gpu->device, scratch + layout.wave.zstd_jobs,
                                           wave->tables + gpu->tables.zstd_jobs,
                                           wave->n_zstd * sizeof(damacy__job), wave->stream, err));
    }
    DAMACY__TRY(damacy__blosc_launch_open(&gpu->lz, &gpu->device, &layout, &call, err));
    on_device = damacy__blosc_wave_at(&layout, &call);
    DAMACY__TRY(damacy__wave_zstd(
        gpu, wave, on_device.zstd_jobs, on_device.n_zstd, on_device.zstd_results, &on_device,
        wave->n_zstd + damacy__blosc_likely(wave->n_blosc, wave->output_zstd), err));
    DAMACY__TRY(damacy__blosc_launch_close(&gpu->lz, &gpu->device, &layout, &call, err));
    if (wave->n_zstd == 0) {
        return DAMACY_OK;
    }
    return damacy__copy_on_device(&gpu->device, wave->tables + gpu->tables.zstd_results,
                                  scratch + layout.wave.zstd_results,
                                  wave->n_zstd * sizeof(damacy__job_result), wave->stream, err);
}

/* The wave's own LZ4 jobs. */
static damacy_status damacy__wave_lz4(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    damacy__lz_call call;

    memset(&call, 0, sizeof call);
    call.jobs = wave->tables + gpu->tables.lz4_jobs;
    call.n_jobs = wave->tables + gpu->tables.n_lz4;
    call.results = wave->tables + gpu->tables.lz4_results;
    call.stream = wave->stream;
    call.likely_size = wave->output_lz4;
    call.likely_most = wave->most_lz4;
    DAMACY__TRY(damacy__lz4_launch(&gpu->lz, &gpu->device, &call, wave->n_lz4, err));
    return damacy__copy_to_host(&gpu->device, wave->host.ptr + gpu->tables.lz4_results,
                                call.results, wave->n_lz4 * sizeof(damacy__job_result),
                                wave->stream, err);
}

/* Decodes all chunks of a wave, and sends what became of each back. */
static damacy_status damacy__wave_decode(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    if (wave->n_lz4) {
        DAMACY__TRY(damacy__wave_lz4(gpu, wave, err));
    }
    if (wave->n_blosc) {
        DAMACY__TRY(damacy__wave_blosc(gpu, wave, err));
        DAMACY__TRY(damacy__copy_to_host(&gpu->device, wave->host.ptr + gpu->tables.blosc_results,
                                         wave->tables + gpu->tables.blosc_results,
                                         wave->n_blosc * sizeof(damacy__job_result), wave->stream,
                                         err));
    } else if (wave->n_zstd) {
        DAMACY__TRY(damacy__wave_zstd(
            gpu, wave, wave->tables + gpu->tables.zstd_jobs, wave->tables + gpu->tables.n_zstd,
            wave->tables + gpu->tables.zstd_results, NULL, wave->n_zstd, err));
    }
    if (wave->n_zstd == 0) {
        return DAMACY_OK;
    }
    return damacy__copy_to_host(&gpu->device, wave->host.ptr + gpu->tables.zstd_results,
                                wave->tables + gpu->tables.zstd_results,
                                wave->n_zstd * sizeof(damacy__job_result), wave->stream, err);
}

/* Sends the list of copies and launches each of its segments. */
static damacy_status damacy__wave_flush(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    damacy__assemble_call call;

    memset(&call, 0, sizeof call);
    call.list = wave->tables + gpu->tables.list;
    call.n_channels = gpu->core->config.n_channels;
    call.scale = gpu->affine;
    call.offset = gpu->affine ? gpu->affine + gpu->affine_size / 2 : 0;
    call.n_blocks = gpu->device.n_multiprocessors * 16;
    call.stream = wave->stream;
    DAMACY__TRY(damacy__assemble_upload(&wave->list, &gpu->device, &call, err));
    for (uint32_t i = 0; i < wave->list.n_segments; i++) {
        if (wave->list.segments[i].n_jobs) {
            DAMACY__TRY(
                damacy__assemble_launch(&wave->list, i, &gpu->device, &gpu->assemble, &call, err));
        }
    }
    return DAMACY_OK;
}

/* Empties the list for more copies of the same wave. */
static void damacy__wave_clear_list(damacy__gpu* gpu, damacy__wave* wave)
{
    damacy__assemble_list_init(&wave->list, wave->host.ptr + gpu->tables.list, gpu->max_copies,
                               gpu->max_axes, gpu->core->out_dtype);
}
