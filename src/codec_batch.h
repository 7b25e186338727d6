/* A batch of frames in the caller's device arrays -> launches: how scratch is divided, and the
 * stages of kernels/codec.cu and of the decoders in their order.
 *
 * The layout is a pure function of kind, limits and the scratch there is, so that the size that a
 * caller asks for is the one that the launches use. Scratch holds the table of jobs and its
 * results, then the records of blosc, then the decoders' own. The surprising rule: LZ4
 * needs no scratch beyond its table of jobs. */
#pragma once
#include "codec_api.h"
#include "kernels/codec_abi.h"
#include "stage/kernel_sources.h"
#include "stage/lz_launch.h"
#include "stage/zstd_launch.h"

/* Addresses count from the start of the scratch. */
typedef struct damacy__codec_layout {
    uint64_t size;
    uint64_t jobs, n_jobs, results;
    uint64_t blosc_at; /* blosc: its records */
    uint64_t work;     /* the decoders' */
    damacy__zstd_layout zstd;
    damacy__blosc_layout blosc;
} damacy__codec_layout;

typedef struct damacy__codec_kernels {
    damacy__program program; /* kernels/codec.cu */
    damacy__zstd_kernels zstd;
    damacy__lz_kernels lz;
} damacy__codec_kernels;

enum { /* of the program */
       DAMACY__CODEC_GATHER = 0,
       DAMACY__CODEC_SCATTER = 1,
       DAMACY__CODEC_SIZES = 2,
       DAMACY__CODEC_MEASURE = 3
};

/* One batch on its way. */
typedef struct damacy__codec_call {
    const damacy__codec_kernels* kernels;
    damacy__device* device;
    damacy__stream stream;
    damacy__graph_draft* draft; /* takes what is queued; NULL: the streams do */
    bool is_alone;              /* kernels on `stream` alone */
    uint32_t n_concurrent; /* batches that run at the same time; 0: 1 */
    uint32_t kind;
    uint64_t likely_size;    /* decoded bytes */
    uint64_t likely_most;    /* of the largest frame */
    uint32_t likely_streams; /* blosc */
    damacy__codec_frames frames;
} damacy__codec_call;

static damacy_status damacy__codec_layout_of(uint32_t kind, const damacy_codec_limits* limits,
                                             uint64_t scratch_size, damacy__codec_layout* out,
                                             damacy_error* err);
static damacy_status damacy__codec_kernels_start(damacy__codec_kernels* kernels, uint32_t kind,
                                                 const damacy__device* device,
                                                 damacy__compiler* compiler, damacy_error* err);
static damacy_status damacy__codec_kernels_finish(damacy__codec_kernels* kernels,
                                                  damacy__device* device, damacy_error* err);
static void damacy__codec_kernels_deinit(damacy__codec_kernels* kernels, damacy__device* device);
static damacy_status damacy__codec_launch(const damacy__codec_call* call,
                                          const damacy__codec_layout* layout, uint64_t scratch,
                                          damacy_error* err);
static damacy_status damacy__codec_step(const damacy__codec_call* call, uint32_t entry,
                                        damacy_error* err);

/* ---- scratch ---- */

/* Links (stage/zstd_launch.h) are worth their room for no more frames than these. */
enum { DAMACY__CODEC_LINK_FRAMES = 8 };

/* The limits with their defaults. */
static damacy_status damacy__codec_limits_fill(const damacy_codec_limits* limits,
                                               damacy_codec_limits* out, damacy_error* err)
{
    uint64_t most;

    *out = *limits;
    out->max_frames = DAMACY__MAX(limits->max_frames, 1);
    if (limits->max_frame_size == 0 || limits->max_frame_size > DAMACY__JOB_SIZE_MAX) {
        return damacy__fail(err, DAMACY_INVAL,
                            "max_frame_size is %" PRIu64 ", it must be between 1 and %" PRIu64,
                            limits->max_frame_size, (uint64_t)DAMACY__JOB_SIZE_MAX);
    }
    most = out->max_frames * limits->max_frame_size; /* below 2^63 */
    if (out->total_size == 0) {
        out->total_size = most;
    }
    if (out->max_frames > 1u << 24 || out->total_size >> 46 || out->work_size >> 46 ||
        out->max_blocks > 1u << 30 || out->max_streams > 1u << 28) {
        return damacy__fail(err, DAMACY_INVAL,
                            "limits that no device holds: %u frames, %" PRIu64
                            " bytes decoded, %" PRIu64 " of work, %u blocks, %u streams",
                            out->max_frames, out->total_size, out->work_size, out->max_blocks,
                            out->max_streams);
    }
    out->total_size = DAMACY__MAX(out->total_size, out->max_frame_size);
    return DAMACY_OK;
}

/* The Zstandard decoder's share, from layout->work on. room 0: as much as it likes. */
static damacy_status damacy__codec_layout_zstd(const damacy_codec_limits* limits, uint32_t n_jobs,
                                               uint32_t n_parts, uint64_t room, bool has_links,
                                               damacy__codec_layout* layout, damacy_error* err)
{
    damacy__zstd_limits zstd;

    memset(&zstd, 0, sizeof zstd);
    zstd.max_jobs = n_jobs;
    zstd.dst_size = limits->total_size;
    zstd.largest_size = limits->max_frame_size;
    zstd.max_blocks = limits->max_blocks;
    zstd.pool_size = limits->work_size;
    zstd.n_parts = n_parts;
    zstd.has_links = has_links;
    DAMACY__TRY(damacy__zstd_layout_of(&zstd, &layout->zstd, err));
    if (room == 0) {
        return DAMACY_OK;
    }
    if (has_links && layout->zstd.size > room) {
        zstd.has_links = false;
    }
    zstd.scratch_size = room;
    return damacy__zstd_layout_of(&zstd, &layout->zstd, err);
}

static bool damacy__codec_layout_blosc(const damacy_codec_limits* limits,
                                       damacy__codec_layout* layout)
{
    damacy__blosc_limits blosc;

    memset(&blosc, 0, sizeof blosc);
    blosc.max_chunks = limits->max_frames;
    blosc.dst_size = limits->total_size;
    blosc.stream_size = 8192;
    blosc.max_streams = limits->max_streams;
    return damacy__blosc_layout_of(&blosc, &layout->blosc);
}

static damacy_status damacy__codec_layout_fill(uint32_t kind, const damacy_codec_limits* limits,
                                               uint64_t room, damacy__codec_layout* out,
                                               damacy_error* err)
{
    const bool is_zstd = kind == DAMACY_CODEC_ZSTD;

    if (kind == DAMACY_CODEC_LZ4 || kind == DAMACY_CODEC_LZ4_SIZED) {
        out->size = out->work;
        return DAMACY_OK;
    }
    if (!is_zstd) {
        out->blosc_at = out->work;
        if (!damacy__codec_layout_blosc(limits, out)) {
            return damacy__fail(err, DAMACY_INVAL, "the scratch of %u blosc chunks overflows",
                                limits->max_frames);
        }
        out->work += out->blosc.size;
    }
    if (room && room <= out->work) {
        return damacy__fail(err, DAMACY_BUDGET,
                            "scratch of %" PRIu64 " bytes: the tables of %u frames take %" PRIu64,
                            room, limits->max_frames, out->work);
    }
    DAMACY__TRY(damacy__codec_layout_zstd(
        limits, is_zstd ? limits->max_frames : out->blosc.wave.max_zstd,
        is_zstd ? limits->n_parts : 1, room ? room - out->work : 0,
        is_zstd && limits->max_frames <= DAMACY__CODEC_LINK_FRAMES, out, err));
    out->size = out->work + out->zstd.size;
    return DAMACY_OK;
}

/* scratch_size 0: as much as the limits want, which out->size then says. BUDGET: less than the
 * largest frame needs. */
static damacy_status damacy__codec_layout_of(uint32_t kind, const damacy_codec_limits* limits,
                                             uint64_t scratch_size, damacy__codec_layout* out,
                                             damacy_error* err)
{
    const uint64_t room = scratch_size & ~UINT64_C(255);
    damacy_codec_limits filled;
    uint64_t at = 0;

    memset(out, 0, sizeof *out);
    DAMACY__TRY(damacy__codec_limits_fill(limits, &filled, err));
    if (!damacy__lz_reserve(&at, filled.max_frames, sizeof(damacy__job), &out->jobs) ||
        !damacy__lz_reserve(&at, 1, sizeof(uint32_t), &out->n_jobs) ||
        !damacy__lz_reserve(&at, filled.max_frames, sizeof(damacy__job_result), &out->results)) {
        return damacy__fail(err, DAMACY_INVAL, "the tables of %u frames overflow",
                            filled.max_frames);
    }
    out->work = at;
    if (scratch_size && room < at) {
        return damacy__fail(err, DAMACY_BUDGET,
                            "scratch of %" PRIu64 " bytes: the tables of %u frames take %" PRIu64,
                            scratch_size, filled.max_frames, at);
    }
    DAMACY__TRY(damacy__codec_layout_fill(kind, &filled, room, out, err));
    if (scratch_size && out->size > scratch_size) {
        return damacy__fail(err, DAMACY_BUDGET,
                            "scratch of %" PRIu64 " bytes: frames of %" PRIu64
                            " decoded bytes need %" PRIu64,
                            scratch_size, filled.total_size, out->size);
    }
    return DAMACY_OK;
}

/* ---- kernels ---- */

/* Begins to compile what the kind needs. On failure there is nothing to deinit. */
static damacy_status damacy__codec_kernels_start(damacy__codec_kernels* kernels, uint32_t kind,
                                                 const damacy__device* device,
                                                 damacy__compiler* compiler, damacy_error* err)
{
    static const char* const entries[] = {"damacy_frames_gather", "damacy_frames_scatter",
                                          "damacy_frames_sizes", "damacy_frames_measure"};
    damacy__program_spec spec;
    damacy_status status;

    memset(kernels, 0, sizeof *kernels);
    memset(&spec, 0, sizeof spec);
    spec.name = "kernels/codec.cu";
    spec.entries = entries;
    spec.n_entries = DAMACY__COUNT(entries);
    DAMACY__TRY(damacy__program_start(&kernels->program, compiler, &spec, err));
    status = kind == DAMACY_CODEC_ZSTD ? DAMACY_OK
                                       : damacy__lz_kernels_start(&kernels->lz, compiler, err);
    if (status == DAMACY_OK && (kind == DAMACY_CODEC_ZSTD || kind == DAMACY_CODEC_BLOSC)) {
        status = damacy__zstd_kernels_start(&kernels->zstd, device, compiler, err);
        if (status != DAMACY_OK) {
            damacy__lz_kernels_deinit(&kernels->lz, NULL);
        }
    }
    if (status != DAMACY_OK) {
        damacy__program_deinit(&kernels->program, NULL);
    }
    return status;
}

/* Waits for the compiler and loads the kernels. The context is current. */
static damacy_status damacy__codec_kernels_finish(damacy__codec_kernels* kernels,
                                                  damacy__device* device, damacy_error* err)
{
    DAMACY__TRY(damacy__program_finish(&kernels->program, device, err));
    if (kernels->lz.lz4.compiler) {
        DAMACY__TRY(damacy__lz_kernels_finish(&kernels->lz, device, err));
    }
    if (kernels->zstd.front.compiler) {
        DAMACY__TRY(damacy__zstd_kernels_finish(&kernels->zstd, device, err));
    }
    return DAMACY_OK;
}

/* No launch is under way. Zeroed, or only started: fine. */
static void damacy__codec_kernels_deinit(damacy__codec_kernels* kernels, damacy__device* device)
{
    damacy__zstd_kernels_deinit(&kernels->zstd, device);
    damacy__lz_kernels_deinit(&kernels->lz, device);
    damacy__program_deinit(&kernels->program, device);
}

/* ---- launches ---- */

/* A kernel of kernels/codec.cu, a thread per frame. */
static damacy_status damacy__codec_step(const damacy__codec_call* call, uint32_t entry,
                                        damacy_error* err)
{
    const uint32_t threads = entry < DAMACY__CODEC_SIZES ? 256 : 64;
    const uint64_t blocks = damacy__div_up(call->frames.n, threads);
    const uint64_t most = 16ull * call->device->n_multiprocessors;
    const damacy__grid grid = damacy__grid_of((uint32_t)DAMACY__MIN(blocks, most), threads, 0);
    damacy__codec_frames frames = call->frames;

    return damacy__queue_kernel(call->draft, &call->kernels->program.kernels[entry], call->device,
                                &grid, call->stream, &frames, sizeof frames, err);
}

static damacy_status damacy__codec_launch_zstd(const damacy__codec_call* call,
                                               const damacy__zstd_layout* layout, uint64_t jobs,
                                               uint64_t n_jobs, uint64_t results,
                                               const damacy__blosc_wave* blosc, uint64_t scratch,
                                               uint32_t likely, damacy_error* err)
{
    damacy__zstd_call zstd;

    memset(&zstd, 0, sizeof zstd);
    zstd.jobs = jobs;
    zstd.n_jobs = n_jobs;
    zstd.results = results;
    zstd.scratch = scratch;
    zstd.blosc = blosc;
    zstd.blosc_kernels = call->kernels->lz.zstd.kernels;
    zstd.likely_jobs = likely;
    zstd.likely_size = call->likely_size;
    zstd.likely_most = call->likely_most;
    zstd.stream = call->stream;
    zstd.draft = call->draft;
    zstd.is_alone = call->is_alone;
    zstd.n_concurrent = call->n_concurrent;
    return damacy__zstd_launch(&call->kernels->zstd, call->device, layout, &zstd, err);
}

static damacy_status damacy__codec_launch_blosc(const damacy__codec_call* call,
                                                const damacy__codec_layout* layout,
                                                uint64_t scratch, damacy_error* err)
{
    const damacy__lz_kernels* lz = &call->kernels->lz;
    damacy__blosc_wave wave;
    damacy__lz_call blosc;

    memset(&blosc, 0, sizeof blosc);
    blosc.jobs = call->frames.jobs;
    blosc.n_jobs = call->frames.n_jobs;
    blosc.results = call->frames.results;
    blosc.scratch = scratch + layout->blosc_at;
    blosc.is_begun = true;
    blosc.likely_size = call->likely_size;
    blosc.stream = call->stream;
    blosc.draft = call->draft;
    blosc.is_alone = call->is_alone;
    wave = damacy__blosc_wave_at(&layout->blosc, &blosc);
    DAMACY__TRY(damacy__blosc_launch_open(lz, call->device, &layout->blosc, &blosc, err));
    DAMACY__TRY(damacy__codec_launch_zstd(call, &layout->zstd, wave.zstd_jobs, wave.n_zstd,
                                          wave.zstd_results, &wave, scratch + layout->work,
                                          call->likely_streams, err));
    return damacy__blosc_launch_close(lz, call->device, &layout->blosc, &blosc, err);
}

/* Queues everything; call->frames lacks only the addresses in scratch. The context is current. */
static damacy_status damacy__codec_launch(const damacy__codec_call* call,
                                          const damacy__codec_layout* layout, uint64_t scratch,
                                          damacy_error* err)
{
    damacy__codec_call c = *call;
    damacy__codec_layout l = *layout;

    c.frames.jobs = scratch + l.jobs;
    c.frames.n_jobs = scratch + l.n_jobs;
    c.frames.results = scratch + l.results;
    if (c.kind == DAMACY_CODEC_BLOSC) {
        c.frames.zeroed = scratch + l.blosc_at + l.blosc.wave.counters;
        c.frames.n_zeroed = (uint32_t)((l.blosc.wave.n_zstd - l.blosc.wave.counters) / 4 + 1);
    }
    DAMACY__TRY(damacy__codec_step(&c, DAMACY__CODEC_GATHER, err));
    if (c.kind == DAMACY_CODEC_ZSTD) {
        l.zstd.max_jobs = c.frames.n; /* parts and grids of this batch, not of the largest */
        l.zstd.wave.max_jobs = DAMACY__MIN(l.zstd.wave.max_jobs, c.frames.n);
        DAMACY__TRY(damacy__codec_launch_zstd(&c, &l.zstd, c.frames.jobs, c.frames.n_jobs,
                                              c.frames.results, NULL, scratch + l.work, c.frames.n,
                                              err));
    } else if (c.kind == DAMACY_CODEC_BLOSC) {
        l.blosc.wave.max_jobs = c.frames.n;
        DAMACY__TRY(damacy__codec_launch_blosc(&c, &l, scratch, err));
    } else {
        damacy__lz_call lz4;
        memset(&lz4, 0, sizeof lz4);
        lz4.jobs = c.frames.jobs;
        lz4.n_jobs = c.frames.n_jobs;
        lz4.results = c.frames.results;
        lz4.stream = c.stream;
        lz4.draft = c.draft;
        lz4.likely_size = c.likely_size;
        lz4.likely_most = c.likely_most;
        DAMACY__TRY(damacy__lz4_launch(&c.kernels->lz, c.device, &lz4, c.frames.n, err));
    }
    return damacy__codec_step(&c, DAMACY__CODEC_SCATTER, err);
}
