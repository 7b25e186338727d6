/* One round of work for the GPU: units gathered into a wave, sent, decoded and assembled, all
 * queued on streams without waiting.
 *
 * Units keep the order in which they came, so that bytes that lie together on the host are sent at
 * once. A blosc chunk's streams join the wave's own Zstandard jobs on the device. */
#pragma once
#include "stage/gpu.h"
#include "stage/host_run.h"

/* Whether the device can deal with chunks of a layout alone: there is no checksum around them. Of
 * blosc chunks the headers must be known besides. */
static bool damacy__gpu_takes_mapped(const damacy__core* core, const damacy__layout* layout)
{
    const damacy__chain* chain = &layout->chunk_chain;
    const uint32_t middle = damacy__chain_middle(chain);
    uint32_t n = chain->n;

    while (n > middle + 1 && chain->codecs[n - 1].kind == DAMACY__CODEC_CRC32C &&
           core->config.skip_checksums) {
        n--;
    }
    return !layout->is_nested &&
           (n == middle + 1 ||
            (n == middle + 2 && (chain->codecs[middle + 1].kind == DAMACY__CODEC_ZSTD ||
                                 chain->codecs[middle + 1].kind == DAMACY__CODEC_LZ4 ||
                                 chain->codecs[middle + 1].kind == DAMACY__CODEC_BLOSC)));
}

/* Whether the device decodes a blosc chunk; of the stored bytes only the header is looked at. */
static bool damacy__gpu_knows_blosc(const damacy__layout* layout, damacy__span stored,
                                    damacy_error* err)
{
    damacy__blosc blosc;

    memset(&blosc, 0, sizeof blosc);
    return damacy__blosc_parse(stored, layout->chunk_size, &blosc, err) == DAMACY_OK &&
           (blosc.is_stored || blosc.inner == DAMACY__BLOSC_ZSTD ||
            blosc.inner == DAMACY__BLOSC_LZ4);
}

/* Reads the headers of a read's chunks, which a mapping does not show to the CPU; true when there
 * is nothing to look at, or all are such that the device decodes the chunks. */
static bool damacy__gpu_knows_headers(const damacy__read_task* task, damacy__object* object)
{
    const damacy__slot* slot = task->slot;
    const damacy__plan_read* read = &slot->plan.reads.items[task->read];
    damacy_error ignored;

    memset(&ignored, 0, sizeof ignored);
    for (uint32_t i = 0; i < read->n_chunks; i++) {
        const damacy__plan_chunk* c =
            &slot->plan.chunks.items[slot->plan.by_place.items[read->first + i]];
        const damacy__chain* chain = &c->layout->chunk_chain;
        const uint32_t middle = damacy__chain_middle(chain);
        uint8_t header[DAMACY__BLOSC_HEADER];
        if (middle + 1 == chain->n || chain->codecs[middle + 1].kind != DAMACY__CODEC_BLOSC) {
            return true;
        }
        if (c->size < sizeof header ||
            damacy__store_read(&slot->core->store, object, c->offset, header, sizeof header,
                               &ignored) != DAMACY_OK ||
            !damacy__gpu_knows_blosc(c->layout, damacy__span_of(header, (size_t)c->size),
                                     &ignored)) {
            return false;
        }
    }
    return true;
}

/* How a stored chunk is decoded; trailing checksums are compared and cut off here, where the bytes
 * are. Of mapped ones nothing is looked at. DAMACY__UNIT_FILL: not at all, *err says why. */
static uint32_t damacy__gpu_classify(const damacy__core* core, const damacy__layout* layout,
                                     bool is_mapped, damacy__span* stored, damacy_error* err)
{
    const damacy__chain* chain = &layout->chunk_chain;
    const uint32_t middle = damacy__chain_middle(chain);
    const damacy__span whole = *stored;
    damacy__decoder checker;
    uint32_t n = chain->n;

    if (layout->is_nested) {
        return DAMACY__UNIT_HOST;
    }
    memset(&checker, 0, sizeof checker);
    checker.skip_checksums = core->config.skip_checksums != 0;
    for (; n > middle + 1 && chain->codecs[n - 1].kind == DAMACY__CODEC_CRC32C; n--) {
        if (damacy__decode_crc32c(&checker, stored, err) != DAMACY_OK) {
            return DAMACY__UNIT_FILL;
        }
    }
    if (n == middle + 1) {
        if (stored->size != layout->chunk_size) {
            (void)damacy__fail(err, DAMACY_DECODE, "%zu stored bytes; the chunk has %" PRIu64,
                               stored->size, layout->chunk_size);
            return DAMACY__UNIT_FILL;
        }
        return DAMACY__UNIT_VOXELS;
    }
    if (n == middle + 2 && chain->codecs[middle + 1].kind == DAMACY__CODEC_ZSTD) {
        return DAMACY__UNIT_ZSTD;
    }
    if (n == middle + 2 && chain->codecs[middle + 1].kind == DAMACY__CODEC_LZ4) {
        return DAMACY__UNIT_LZ4;
    }
    if (n == middle + 2 && chain->codecs[middle + 1].kind == DAMACY__CODEC_BLOSC) {
        if (is_mapped || damacy__gpu_knows_blosc(layout, *stored, err)) {
            return DAMACY__UNIT_BLOSC;
        }
    }
    *stored = whole;
    return DAMACY__UNIT_HOST; /* which also finds the words for what is wrong */
}

/* ---- gathering ---- */

/* The mapped file that a unit's bytes lie in, if any. */
static const damacy__mapped_file* damacy__unit_file(const damacy__unit* unit)
{
    const damacy__slot* slot = unit->slot;

    return unit->kind == DAMACY__UNIT_FILL || unit->is_space
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

/* Room for a unit's voxels and bytes; false: the wave is full. */
static bool damacy__wave_add(damacy__gpu* gpu, damacy__wave* wave, damacy__unit* unit)
{
    const uint64_t n_copies = damacy__unit_copies(unit);
    uint64_t in = wave->input_used;

    if (wave->n_units == gpu->max_units ||
        (wave->n_units > 0 && wave->n_copies + n_copies > gpu->max_copies / 2)) {
        return false;
    }
    if (unit->kind != DAMACY__UNIT_FILL) {
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
            unit->dst = wave->input + in;
        } else {
            uint32_t* const n_jobs = damacy__wave_count(wave, unit->kind);
            damacy__job* job = damacy__wave_jobs(gpu, wave, unit->kind) + *n_jobs;
            memset(job, 0, sizeof *job);
            unit->dst = wave->output + wave->output_used;
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
            wave->output_zstd += unit->kind == DAMACY__UNIT_LZ4 ? 0 : size;
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

/* ---- launching ---- */

/* Sends the tables of jobs and their counts. */
static damacy_status damacy__wave_send_tables(damacy__gpu* gpu, damacy__wave* wave,
                                              damacy__stream stream, damacy_error* err)
{
    memcpy(wave->host.ptr + gpu->tables.n_zstd, &wave->n_zstd, sizeof wave->n_zstd);
    memcpy(wave->host.ptr + gpu->tables.n_blosc, &wave->n_blosc, sizeof wave->n_blosc);
    memcpy(wave->host.ptr + gpu->tables.n_lz4, &wave->n_lz4, sizeof wave->n_lz4);
    return damacy__copy_to_device(&gpu->device, wave->tables, wave->host.ptr, gpu->tables.sent_size,
                                  stream, err);
}

/* Sends bytes of the host's. Those that the driver would copy aside first go by themselves. */
static damacy_status damacy__wave_send_part(damacy__gpu* gpu, uint64_t to, const uint8_t* from,
                                            uint64_t size, bool is_pinned, damacy_error* err)
{
    if (is_pinned && gpu->staging.kind != DAMACY__PINNED_PAGEABLE) {
        return damacy__copies_add(&gpu->copies, &gpu->device, to, from, size, gpu->copy_stream,
                                  err);
    }
    return damacy__copy_to_device(&gpu->device, to, from, size, gpu->copy_stream, err);
}

/* Sends the bytes of all units, as few copies as their places on the host allow. */
static damacy_status damacy__wave_send(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    const damacy__unit* last = NULL; /* from, to and size: all up to it that is not sent yet */
    const uint8_t* from = NULL;
    uint64_t to = 0;
    uint64_t size = 0;

    for (uint32_t i = 0; i <= wave->n_units; i++) {
        const damacy__unit* unit = i < wave->n_units ? wave->units[i] : NULL;
        uint64_t gap = 0;
        if (unit && unit->kind == DAMACY__UNIT_FILL) {
            continue;
        }
        if (unit && size && damacy__unit_follows(unit, last, &gap) &&
            to + size + gap == damacy__unit_input(gpu, wave, unit)) {
            size += gap + unit->size;
            last = unit;
            continue;
        }
        if (size) {
            DAMACY__TRY(damacy__wave_send_part(gpu, to, from, size, !last->is_space, err));
        }
        from = unit ? unit->bytes : NULL;
        to = unit ? damacy__unit_input(gpu, wave, unit) : 0;
        size = unit ? unit->size : 0;
        last = unit;
    }
    DAMACY__TRY(damacy__copies_flush(&gpu->copies, &gpu->device, gpu->copy_stream, err));
    DAMACY__TRY(damacy__wave_send_tables(gpu, wave, gpu->copy_stream, err));
    DAMACY__TRY(damacy__event_record(&gpu->device, wave->sent, gpu->copy_stream, err));
    return damacy__stream_await(&gpu->device, wave->stream, wave->sent, err);
}

/* Decodes the first max_jobs of a table of Zstandard jobs. */
static damacy_status damacy__wave_zstd(damacy__gpu* gpu, damacy__wave* wave, uint64_t jobs,
                                       uint64_t n_jobs, uint64_t results, uint32_t likely,
                                       damacy_error* err)
{
    damacy__zstd_call call;

    memset(&call, 0, sizeof call);
    call.jobs = jobs;
    call.n_jobs = n_jobs;
    call.results = results;
    call.scratch = gpu->scratch;
    call.likely_jobs = likely;
    call.likely_size = wave->output_zstd;
    call.stream = wave->stream;
    return damacy__zstd_launch(&gpu->zstd, &gpu->device, &gpu->zstd_layout, &call, err);
}

/* Blosc chunks, and the wave's own Zstandard jobs in front of theirs. */
static damacy_status damacy__wave_blosc(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    const uint64_t scratch = gpu->scratch + gpu->zstd_layout.size;
    damacy__blosc_layout layout = gpu->blosc_layout;
    damacy__lz_call call;

    layout.wave.first_zstd = wave->n_zstd;
    memset(&call, 0, sizeof call);
    call.jobs = wave->tables + gpu->tables.blosc_jobs;
    call.n_jobs = wave->tables + gpu->tables.n_blosc;
    call.results = wave->tables + gpu->tables.blosc_results;
    call.scratch = scratch;
    call.stream = wave->stream;
    if (wave->n_zstd) {
        DAMACY__TRY(damacy__copy_on_device(&gpu->device, scratch + layout.wave.zstd_jobs,
                                           wave->tables + gpu->tables.zstd_jobs,
                                           wave->n_zstd * sizeof(damacy__job), wave->stream, err));
    }
    DAMACY__TRY(damacy__blosc_launch_open(&gpu->lz, &gpu->device, &layout, &call, err));
    DAMACY__TRY(damacy__wave_zstd(
        gpu, wave, scratch + layout.wave.zstd_jobs, scratch + layout.wave.n_zstd,
        scratch + layout.wave.zstd_results,
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
        DAMACY__TRY(damacy__wave_zstd(gpu, wave, wave->tables + gpu->tables.zstd_jobs,
                                      wave->tables + gpu->tables.n_zstd,
                                      wave->tables + gpu->tables.zstd_results, wave->n_zstd, err));
    }
    if (wave->n_zstd == 0) {
        return DAMACY_OK;
    }
    return damacy__copy_to_host(&gpu->device, wave->host.ptr + gpu->tables.zstd_results,
                                wave->tables + gpu->tables.zstd_results,
                                wave->n_zstd * sizeof(damacy__job_result), wave->stream, err);
}

/* The kernel for a pair of types: its own program once that is compiled, else the one for any. */
static const damacy__kernel* damacy__gpu_assembler(damacy__gpu* gpu, uint32_t src)
{
    static const char* const entries[] = {"damacy_assemble"};
    damacy__assembler* a = NULL;
    damacy_error ignored;

    for (uint32_t i = 0; i < DAMACY__ASSEMBLERS && !a; i++) {
        if (!gpu->assemblers[i].is_started || gpu->assemblers[i].src == src) {
            a = &gpu->assemblers[i];
        }
    }
    if (!a || a->has_failed) {
        return &gpu->assemble.kernels[0];
    }
    memset(&ignored, 0, sizeof ignored);
    if (!a->is_started) {
        char text[2][64];
        const char* defines[2] = {text[0], text[1]};
        damacy__program_spec spec;
        damacy__assemble_defines((damacy_dtype)src, gpu->core->out_dtype, text);
        spec.name = "kernels/assemble.cu";
        spec.entries = entries;
        spec.n_entries = 1;
        spec.defines = defines;
        spec.n_defines = 2;
        a->src = src;
        a->is_started = true;
        a->has_failed =
            damacy__program_start(&a->program, &gpu->compiler, &spec, &ignored) != DAMACY_OK;
        return &gpu->assemble.kernels[0];
    }
    if (!a->is_ready && damacy__program_is_compiled(&a->program)) {
        a->is_ready = damacy__program_finish(&a->program, &gpu->device, &ignored) == DAMACY_OK;
        a->has_failed = !a->is_ready;
    }
    return a->is_ready ? &a->program.kernels[0] : &gpu->assemble.kernels[0];
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
            DAMACY__TRY(damacy__assemble_launch(
                &wave->list, i, &gpu->device,
                damacy__gpu_assembler(gpu, wave->list.segments[i].src_dtype), &call, err));
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

/* Adds one copy; a full list is sent and waited for, which is rare: however long, since a consumer
 * may hold the slot. */
static damacy_status damacy__wave_copy(damacy__gpu* gpu, damacy__wave* wave,
                                       const damacy__copy* copy, const damacy__axis* axes,
                                       damacy_error* err)
{
    if (damacy__assemble_add(&wave->list, copy, axes)) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__wave_flush(gpu, wave, err));
    DAMACY__TRY(damacy__event_record(&gpu->device, wave->done, wave->stream, err));
    DAMACY__TRY(damacy__event_await(&gpu->device, wave->done, 0, err));
    damacy__wave_clear_list(gpu, wave);
    damacy__assemble_begin(&wave->list, (damacy_dtype)copy->src_dtype);
    if (!damacy__assemble_add(&wave->list, copy, axes)) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "a copy of too many parts");
    }
    return DAMACY_OK;
}

/* All copies of one unit. */
static damacy_status damacy__wave_copies(damacy__gpu* gpu, damacy__wave* wave,
                                         const damacy__unit* unit, damacy_error* err)
{
    const damacy__plan* plan = &unit->slot->plan;
    const uint64_t n = damacy__unit_copies(unit);

    for (uint32_t k = 0; k < n; k++) {
        const uint32_t number = unit->kind == DAMACY__UNIT_FILL
                                    ? plan->fills.items[unit->first + k]
                                    : plan->order.items[plan->chunks.items[unit->first].first + k];
        damacy__copy copy = plan->copies.items[number].copy;
        copy.dst += (uint64_t)(uintptr_t)unit->slot->ptr;
        if (unit->kind != DAMACY__UNIT_FILL && gpu->core->config.debug_bypass_decode) {
            copy.flags = DAMACY__COPY_FILL;
            copy.fill = plan->chunks.items[unit->first].layout->fill;
        }
        copy.src += unit->dst;
        DAMACY__TRY(damacy__wave_copy(gpu, wave, &copy, plan->axes.items + copy.first_axis, err));
    }
    return DAMACY_OK;
}

static uint32_t damacy__unit_dtype(const damacy__unit* unit)
{
    const damacy__plan* plan = &unit->slot->plan;

    return unit->kind == DAMACY__UNIT_FILL
               ? plan->copies.items[plan->fills.items[unit->first]].copy.src_dtype
               : (uint32_t)plan->chunks.items[unit->first].layout->dtype;
}

/* Copies of all units, one source type after another. A run of fills may hold several types: each
 * copy opens a segment of its own type where needed. */
static damacy_status damacy__wave_assemble(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    damacy__wave_clear_list(gpu, wave);
    for (uint32_t type = 0; type < DAMACY_NATIVE; type++) {
        bool has_begun = false;
        for (uint32_t i = 0; i < wave->n_units; i++) {
            if (damacy__unit_dtype(wave->units[i]) == type) {
                if (!has_begun) {
                    damacy__assemble_begin(&wave->list, (damacy_dtype)type);
                    has_begun = true;
                }
                DAMACY__TRY(damacy__wave_copies(gpu, wave, wave->units[i], err));
            }
        }
    }
    return damacy__wave_flush(gpu, wave, err);
}

/* The wave's stream waits for what consumers of earlier batches in these slots asked for. */
static damacy_status damacy__wave_gates(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    damacy__slot* seen = NULL;

    for (uint32_t i = 0; i < wave->n_units; i++) {
        damacy__slot* slot = wave->units[i]->slot;
        if (slot != seen) {
            DAMACY__TRY(damacy__gpu_pass_gates(gpu, slot, wave->stream, err));
        }
        seen = slot;
    }
    return DAMACY_OK;
}

static damacy_status damacy__wave_launch(damacy__gpu* gpu, damacy__wave* wave, damacy_error* err)
{
    wave->start_ns = damacy__now_ns();
    DAMACY__TRY(damacy__wave_send(gpu, wave, err));
    if (!gpu->core->config.debug_bypass_decode) {
        DAMACY__TRY(damacy__wave_decode(gpu, wave, err));
    }
    DAMACY__TRY(damacy__wave_gates(gpu, wave, err));
    DAMACY__TRY(damacy__wave_assemble(gpu, wave, err));
    return damacy__event_record(&gpu->device, wave->done, wave->stream, err);
}
