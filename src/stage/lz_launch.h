/* LZ4 blocks, blosc containers, checksums and plain copies on a device: how much scratch a wave
 * takes, and the launches of kernels/lz4.cu, blosc.cu, copy.cu and crc32c.cu.
 *
 * Nothing is read back and nothing is allocated. A wave with blosc chunks runs in this order on one
 * stream: damacy__blosc_launch_open; the Zstandard decoder, on the tables of the layout;
 * damacy__blosc_launch_close. Jobs of the caller's may stand in those tables before those that
 * blosc adds. The surprising rule: tables are sized for typical chunks; a chunk that does not fit
 * gets DAMACY__JOB_NEED_SCRATCH and costs the others nothing. */
#pragma once
#include "gpu/graph.h"
#include "kernels/blosc_abi.h"
#include "kernels/lz4_abi.h"
#include "stage/zstd_kernels.h"

/* Scratch of blosc chunks. Addresses of the wave count from its start. zstd_jobs, their count and
 * their results are what the Zstandard decoder is to be called with. */
typedef struct damacy__blosc_layout {
    uint64_t size; /* bytes, a multiple of 256; needs no initial content */
    damacy__blosc_wave wave;
} damacy__blosc_layout;

/* What blosc chunks may hold. */
typedef struct damacy__blosc_limits {
    uint32_t max_chunks;
    uint64_t dst_size;    /* decoded bytes of all chunks together */
    uint64_t stream_size; /* decoded bytes of a stream on average, at least; 0: 2,048 */
    uint32_t max_streams; /* streams of all chunks, a stored chunk counting as one; 0: by size */
    uint32_t first_lz4;   /* jobs of the caller's in the table of LZ4 jobs */
    uint32_t first_zstd;  /* jobs of the caller's in the table of Zstandard jobs */
} damacy__blosc_limits;

/* One wave. The tables are read while the kernels run. */
typedef struct damacy__lz_call {
    uint64_t jobs;    /* device address of damacy__job[] */
    uint64_t n_jobs;  /* device address of uint32_t: jobs in the table */
    uint64_t results; /* device address of damacy__job_result[] */
    uint64_t scratch; /* device address of layout->size bytes, 256-byte aligned */
    damacy__stream stream;
    damacy__graph_draft* draft; /* takes what is queued; NULL: the stream does */
    bool is_alone;              /* no branches in it; else blosc's LZ4 is beside Zstandard */
    damacy__stream lz4;         /* set by open for close: the branch, if there is one */
    bool is_begun; /* blosc: its counters are zero already, and no jobs come before its own */
    uint64_t likely_size; /* output bytes, to choose kernels by, right or not; 0: unknown, or of
                           * blosc as many as its scratch is for */
    uint64_t likely_most; /* LZ4: likewise, of the largest job */
} damacy__lz_call;

/* Zero: none. One thread at a time launches; waves on several streams are fine. */
typedef struct damacy__lz_kernels {
    damacy__program lz4, blosc, zstd, copy, crc32c;
} damacy__lz_kernels;

static bool damacy__blosc_layout_of(const damacy__blosc_limits* limits, damacy__blosc_layout* out);
static damacy_status damacy__lz_kernels_start(damacy__lz_kernels* kernels,
                                              damacy__compiler* compiler, damacy_error* err);
static damacy_status damacy__lz_kernels_finish(damacy__lz_kernels* kernels, damacy__device* device,
                                               damacy_error* err);
static void damacy__lz_kernels_deinit(damacy__lz_kernels* kernels, damacy__device* device);
static damacy_status damacy__lz4_launch(const damacy__lz_kernels* kernels, damacy__device* device,
                                        const damacy__lz_call* call, uint32_t max_jobs,
                                        damacy_error* err);
static damacy_status damacy__blosc_launch_open(const damacy__lz_kernels* kernels,
                                               damacy__device* device,
                                               const damacy__blosc_layout* layout,
                                               damacy__lz_call* call, damacy_error* err);
static damacy_status damacy__blosc_launch_close(const damacy__lz_kernels* kernels,
                                                damacy__device* device,
                                                const damacy__blosc_layout* layout,
                                                const damacy__lz_call* call, damacy_error* err);
DAMACY__UNUSED static damacy_status damacy__clear_launch(const damacy__lz_kernels* kernels,
                                                         damacy__device* device,
                                                         const damacy__lz_call* call,
                                                         uint32_t max_jobs, damacy_error* err);
DAMACY__UNUSED static damacy_status damacy__crc32c_launch(const damacy__lz_kernels* kernels,
                                                          damacy__device* device,
                                                          const damacy__lz_call* call,
                                                          uint32_t max_jobs, damacy_error* err);

/* ---- scratch ---- */

/* Takes n records of `size` bytes at the next multiple of 256; false on overflow. */
static bool damacy__lz_reserve(uint64_t* at, uint64_t n, uint64_t size, uint64_t* out)
{
    uint64_t bytes;

    *out = *at;
    if (!damacy__mul(n, size, &bytes) || !damacy__add(*at, bytes, at) || *at > INT64_MAX - 256) {
        return false;
    }
    *at = damacy__align_up(*at, 256);
    return true;
}

static bool damacy__blosc_layout_of(const damacy__blosc_limits* limits, damacy__blosc_layout* out)
{
    damacy__blosc_wave* w = &out->wave;
    const uint64_t stream_size = limits->stream_size ? limits->stream_size : 2048;
    const uint64_t n_streams = limits->max_streams
                                   ? limits->max_streams
                                   : limits->dst_size / stream_size + 4ull * limits->max_chunks;
    uint64_t* at = &out->size;

    memset(out, 0, sizeof *out);
    if (n_streams > INT32_MAX || limits->first_lz4 > INT32_MAX || limits->first_zstd > INT32_MAX) {
        return false;
    }
    w->max_jobs = limits->max_chunks;
    w->max_moves = (uint32_t)(n_streams + limits->dst_size / DAMACY__MOVE_MAX);
    w->max_lz4 = (uint32_t)n_streams + limits->first_lz4;
    w->max_zstd = (uint32_t)n_streams + limits->first_zstd;
    w->first_lz4 = limits->first_lz4;
    w->first_zstd = limits->first_zstd;
    w->scratch_size = limits->dst_size + 256ull * limits->max_chunks;
    return damacy__lz_reserve(at, w->max_jobs, sizeof(damacy__blosc_chunk), &w->chunks) &&
           damacy__lz_reserve(at, 1, sizeof(damacy__blosc_counters), &w->counters) &&
           damacy__lz_reserve(at, 1, sizeof(uint32_t), &w->n_lz4) &&
           damacy__lz_reserve(at, 1, sizeof(uint32_t), &w->n_zstd) &&
           damacy__lz_reserve(at, w->max_moves, sizeof(damacy__move), &w->moves) &&
           damacy__lz_reserve(at, w->max_lz4, sizeof(damacy__job), &w->lz4_jobs) &&
           damacy__lz_reserve(at, w->max_lz4, sizeof(damacy__job_result), &w->lz4_results) &&
           damacy__lz_reserve(at, w->max_zstd, sizeof(damacy__job), &w->zstd_jobs) &&
           damacy__lz_reserve(at, w->max_zstd, sizeof(damacy__job_result), &w->zstd_results) &&
           damacy__lz_reserve(at, w->scratch_size, 1, &w->scratch);
}

/* Streams to expect of chunks of `size` bytes in all. Blocks of writers' usual levels of Zstandard
 * have 128 or 256 KiB; too high a guess costs more than one that is too low. */
static uint32_t damacy__blosc_likely(uint32_t n_chunks, uint64_t size)
{
    return (uint32_t)DAMACY__MIN(DAMACY__MAX((uint64_t)n_chunks, size / 262144),
                                 (uint64_t)INT32_MAX);
}

/* ---- kernels ---- */

enum { /* of the programs */
       DAMACY__BLOSC_BEGIN = 0,
       DAMACY__BLOSC_PARSE = 1,
       DAMACY__BLOSC_UNFILTER = 2,
       DAMACY__LZ4_ALL = 0,
       DAMACY__LZ4_SPARSE_FIRST = 1,
       DAMACY__LZ4_FOURS = 2,
       DAMACY__LZ4_TEAM4 = 3,
       DAMACY__LZ4_TEAM8 = 4,
       DAMACY__LZ4_RELAY = 5,
       DAMACY__COPY_CLEAR_FAILED = 0,
       DAMACY__COPY_GATHER = 1
};

/* Begins to compile. On failure there is nothing to deinit. */
static damacy_status damacy__lz_kernels_start(damacy__lz_kernels* kernels,
                                              damacy__compiler* compiler, damacy_error* err)
{
    static const char* const lz4[] = {"damacy_lz4",       "damacy_lz4_sparse", "damacy_lz4_fours",
                                      "damacy_lz4_team4", "damacy_lz4_team8",  "damacy_lz4_relay"};
    static const char* const blosc[] = {"damacy_blosc_begin", "damacy_blosc_parse",
                                        "damacy_blosc_unfilter"};
    static const char* const zstd[] = {
        "damacy_zstd_blosc_fse",          "damacy_zstd_blosc_fse_few",
        "damacy_zstd_blosc_cut",          "damacy_zstd_blosc_relay",
        "damacy_zstd_blosc_relay_wide",   "damacy_zstd_blosc_1024x3",
        "damacy_zstd_blosc_256x4",        "damacy_zstd_blosc_128x4_3k",
        "damacy_zstd_blosc_128x2_serial", "damacy_zstd_blosc_64x4_serial",
        "damacy_zstd_blosc_256x2_serial"};
    static const char* const copy[] = {"damacy_clear_failed", "damacy_gather"};
    static const char* const crc32c[] = {"damacy_crc32c"};
    const damacy__program_spec specs[5] = {
        {"kernels/lz4.cu", lz4, DAMACY__COUNT(lz4), NULL, 0},
        {"kernels/blosc.cu", blosc, DAMACY__COUNT(blosc), NULL, 0},
        {"kernels/zstd_blosc.cu", zstd, DAMACY__COUNT(zstd), NULL, 0},
        {"kernels/copy.cu", copy, DAMACY__COUNT(copy), NULL, 0},
        {"kernels/crc32c.cu", crc32c, DAMACY__COUNT(crc32c), NULL, 0}};
    damacy__program* const programs[5] = {&kernels->lz4, &kernels->blosc, &kernels->zstd,
                                          &kernels->copy, &kernels->crc32c};

    memset(kernels, 0, sizeof *kernels);
    for (uint32_t i = 0; i < DAMACY__COUNT(programs); i++) {
        const damacy_status status = damacy__program_start(programs[i], compiler, &specs[i], err);
        if (status != DAMACY_OK) {
            damacy__lz_kernels_deinit(kernels, NULL);
            return status;
        }
    }
    return DAMACY_OK;
}

/* Waits for the compiler and loads the kernels. The context is current. */
static damacy_status damacy__lz_kernels_finish(damacy__lz_kernels* kernels, damacy__device* device,
                                               damacy_error* err)
{
    damacy__kernel* zstd = kernels->zstd.kernels;

    DAMACY__TRY(damacy__program_finish(&kernels->lz4, device, err));
    DAMACY__TRY(damacy__kernel_allow_shared(&kernels->lz4.kernels[DAMACY__LZ4_TEAM4], device,
                                            DAMACY__LZ4_TEAM4_SHARED, err));
    DAMACY__TRY(damacy__kernel_allow_shared(&kernels->lz4.kernels[DAMACY__LZ4_TEAM8], device,
                                            DAMACY__LZ4_TEAM8_SHARED, err));
    if (device->shared_per_block >= DAMACY__LZ4_RELAY_SHARED) {
        DAMACY__TRY(damacy__kernel_allow_shared(&kernels->lz4.kernels[DAMACY__LZ4_RELAY], device,
                                                DAMACY__LZ4_RELAY_SHARED, err));
    }
    DAMACY__TRY(damacy__program_finish(&kernels->blosc, device, err));
    DAMACY__TRY(damacy__program_finish(&kernels->zstd, device, err));
    DAMACY__TRY(damacy__zstd_allow_back(&zstd[DAMACY__ZSTD_BLOSC_FSE],
                                        &zstd[DAMACY__ZSTD_BLOSC_TILE], DAMACY__ZSTD_TILE_BLOSC,
                                        DAMACY__ZSTD_TILES - DAMACY__ZSTD_TILE_BLOSC, device, err));
    DAMACY__TRY(damacy__zstd_allow_relays(&zstd[DAMACY__ZSTD_BLOSC_RELAY], device, err));
    DAMACY__TRY(damacy__program_finish(&kernels->copy, device, err));
    return damacy__program_finish(&kernels->crc32c, device, err);
}

/* No launch is under way. Zeroed, or only started with device NULL: fine. */
static void damacy__lz_kernels_deinit(damacy__lz_kernels* kernels, damacy__device* device)
{
    damacy__program_deinit(&kernels->crc32c, device);
    damacy__program_deinit(&kernels->copy, device);
    damacy__program_deinit(&kernels->zstd, device);
    damacy__program_deinit(&kernels->blosc, device);
    damacy__program_deinit(&kernels->lz4, device);
}

/* ---- launches ---- */

/* A kernel whose parameter is a wave of `size` bytes. */
static damacy_status damacy__lz_step(const damacy__kernel* kernel, damacy__device* device,
                                     const damacy__lz_call* call, uint64_t n_blocks,
                                     uint32_t threads, uint32_t shared, void* wave, size_t size,
                                     damacy_error* err)
{
    const damacy__grid grid = damacy__grid_of((uint32_t)n_blocks, threads, shared);

    return damacy__queue_kernel(call->draft, kernel, device, &grid, call->stream, wave, size, err);
}

static damacy__lz4_wave damacy__lz4_wave_of(uint64_t jobs, uint64_t n_jobs, uint64_t results,
                                            uint32_t max_jobs)
{
    damacy__lz4_wave w;

    memset(&w, 0, sizeof w);
    w.jobs = jobs;
    w.n_jobs = n_jobs;
    w.results = results;
    w.max_jobs = max_jobs;
    w.team_size = DAMACY__LZ4_TEAM_NEVER;
    return w;
}

/* The size from which on jobs of a wave too large for teams are for these: a warp would take longer
 * to decode one than all multiprocessors to decode all. */
static uint32_t damacy__lz4_team_size(const damacy__device* device, const damacy__lz_call* call)
{
    const uint64_t parts = DAMACY__LZ4_TEAM_PARTS * (uint64_t)device->n_multiprocessors;
    const uint64_t size = DAMACY__MAX(call->likely_size / parts, (uint64_t)DAMACY__LZ4_TEAM_LEAST);

    return call->likely_size && call->likely_most >= size && size < DAMACY__LZ4_TEAM_NEVER
               ? (uint32_t)size
               : DAMACY__LZ4_TEAM_NEVER;
}

/* The size from which on jobs of a wave are for relays; 0: none are. Of more, or smaller ones, each
 * by a team of its own is faster. */
static uint32_t damacy__lz4_relay_size(const damacy__device* device, const damacy__lz_call* call,
                                       const damacy__lz4_wave* w)
{
    const uint64_t n = DAMACY__LZ4_RELAY_PER * (uint64_t)device->n_multiprocessors;

    if (w->max_jobs > DAMACY__LZ4_RELAY_JOBS || call->likely_most < DAMACY__LZ4_RELAY_LEAST ||
        device->shared_per_block < DAMACY__LZ4_RELAY_SHARED) {
        return 0;
    }
    if (w->team_most) {
        return w->max_jobs <= n ? DAMACY__LZ4_RELAY_LEAST : 0;
    }
    return w->team_size == DAMACY__LZ4_TEAM_NEVER
               ? 0
               : DAMACY__MAX(w->team_size, DAMACY__LZ4_RELAY_LEAST);
}

/* The same of those that shrink much, of which a team makes more: they are for relays where they
 * could be two for three multiprocessors at most. */
static uint32_t damacy__lz4_relay_shrunk(const damacy__device* device, const damacy__lz_call* call,
                                         const damacy__lz4_wave* w)
{
    const uint64_t size = call->likely_size / (uint64_t)device->n_multiprocessors * 3 / 2;

    return (uint32_t)DAMACY__MIN(DAMACY__MAX(size, (uint64_t)w->relay_size), UINT32_MAX);
}

/* Decodes the jobs of a wave that are for teams, at most n_teams at once; `likely`: how many to
 * expect. What these leave is for a kernel behind this one. */
static damacy_status damacy__lz4_launch_teams(const damacy__lz_kernels* kernels,
                                              damacy__device* device, const damacy__lz_call* call,
                                              damacy__lz4_wave* w, uint64_t likely,
                                              uint64_t n_teams, damacy_error* err)
{
    const uint64_t n = device->n_multiprocessors;
    const bool is_large =
        w->team_size != DAMACY__LZ4_TEAM_NEVER || likely <= DAMACY__LZ4_TEAM8_PER * n;

    return damacy__lz_step(&kernels->lz4.kernels[is_large ? DAMACY__LZ4_TEAM8 : DAMACY__LZ4_TEAM4],
                           device, call, DAMACY__MIN(w->max_jobs, n_teams), is_large ? 256 : 128,
                           is_large ? DAMACY__LZ4_TEAM8_SHARED : DAMACY__LZ4_TEAM4_SHARED, w,
                           sizeof *w, err);
}

/* Decodes the jobs of a table, at most max_jobs. Sequences may be long: the kernel for those goes
 * first. call->scratch: unused. */
static damacy_status damacy__lz4_launch(const damacy__lz_kernels* kernels, damacy__device* device,
                                        const damacy__lz_call* call, uint32_t max_jobs,
                                        damacy_error* err)
{
    const damacy__kernel* k = kernels->lz4.kernels;
    const uint64_t n = device->n_multiprocessors;
    const uint64_t n_blocks = DAMACY__MIN((uint64_t)max_jobs, 128ull * n);
    damacy__lz4_wave w = damacy__lz4_wave_of(call->jobs, call->n_jobs, call->results, max_jobs);

    if (max_jobs <= DAMACY__LZ4_TEAM_PER * n) {
        w.team_most = max_jobs;
    } else {
        w.team_size = damacy__lz4_team_size(device, call);
        if (w.team_size == DAMACY__LZ4_TEAM_NEVER && max_jobs <= DAMACY__LZ4_TEAM_SOME_PER * n &&
            call->likely_size / max_jobs >= DAMACY__LZ4_TEAM_SOME_SIZE) {
            w.team_some = max_jobs;
            w.team_shrink = DAMACY__LZ4_TEAM_SHRINK;
        }
    }
    w.relay_size = damacy__lz4_relay_size(device, call, &w);
    w.relay_shrunk = damacy__lz4_relay_shrunk(device, call, &w);
    DAMACY__TRY(damacy__lz_step(&k[DAMACY__LZ4_SPARSE_FIRST], device, call, (n_blocks + 1) / 2, 64,
                                DAMACY__LZ4_SPARSE_SHARED, &w, sizeof w, err));
    w.is_begun = 1;
    if (w.relay_size) {
        DAMACY__TRY(damacy__lz_step(&k[DAMACY__LZ4_RELAY], device, call, 2 * n,
                                    DAMACY__LZ4_RELAY_THREADS, DAMACY__LZ4_RELAY_SHARED, &w,
                                    sizeof w, err));
    }
    if (w.team_most || w.team_some || w.team_size != DAMACY__LZ4_TEAM_NEVER) {
        DAMACY__TRY(damacy__lz4_launch_teams(kernels, device, call, &w, max_jobs,
                                             DAMACY__LZ4_TEAMS_PER * n, err));
    }
    return damacy__lz_step(&k[DAMACY__LZ4_ALL], device, call, n_blocks, 32, DAMACY__LZ4_SHARED, &w,
                           sizeof w, err);
}

/* What chunks of a wave decode to, as far as is known. */
static uint64_t damacy__blosc_size(const damacy__blosc_layout* layout, const damacy__lz_call* call)
{
    return call->likely_size ? call->likely_size : layout->wave.scratch_size;
}

/* The wave with addresses of the device. layout->wave.max_jobs: of this wave or of the largest. */
static damacy__blosc_wave damacy__blosc_wave_at(const damacy__blosc_layout* layout,
                                                const damacy__lz_call* call)
{
    damacy__blosc_wave w = layout->wave;

    w.jobs = call->jobs;
    w.n_jobs = call->n_jobs;
    w.results = call->results;
    w.chunks += call->scratch;
    w.counters += call->scratch;
    w.n_lz4 += call->scratch;
    w.n_zstd += call->scratch;
    w.moves += call->scratch;
    w.lz4_jobs += call->scratch;
    w.lz4_results += call->scratch;
    w.zstd_jobs += call->scratch;
    w.zstd_results += call->scratch;
    w.scratch += call->scratch;
    w.parts = 1;
    if (w.max_jobs) { /* a piece each of a typical chunk */
        const uint64_t chunk_size = damacy__blosc_size(layout, call) / w.max_jobs;
        w.parts = (uint32_t)DAMACY__MIN(DAMACY__MAX(chunk_size / DAMACY__UNFILTER_PIECE, 1), 256);
    }
    return w;
}

/* Decodes the streams that are LZ4: often none, so that is done by the kernels with fewest blocks
 * of threads, and by many teams only where many streams come. */
static damacy_status damacy__blosc_launch_lz4(const damacy__lz_kernels* kernels,
                                              damacy__device* device,
                                              const damacy__blosc_layout* layout,
                                              const damacy__lz_call* call, damacy_error* err)
{
    const damacy__blosc_wave w = damacy__blosc_wave_at(layout, call);
    damacy__lz4_wave lz4 = damacy__lz4_wave_of(w.lz4_jobs, w.n_lz4, w.lz4_results, w.max_lz4);
    const uint64_t fours = DAMACY__LZ4_FOURS_PER * (uint64_t)device->n_multiprocessors;
    const uint64_t teams = DAMACY__LZ4_TEAMS_PER * (uint64_t)device->n_multiprocessors;
    const uint64_t likely =
        4ull * damacy__blosc_likely(w.max_jobs, damacy__blosc_size(layout, call));

    lz4.chunks = w.chunks;
    lz4.n_multiprocessors = (uint32_t)device->n_multiprocessors;
    lz4.team_most = DAMACY__LZ4_TEAM_BLOSC_PER * lz4.n_multiprocessors;
    lz4.team_some = DAMACY__LZ4_TEAM_BLOSC_SOME_PER * lz4.n_multiprocessors;
    lz4.team_shrink = DAMACY__LZ4_TEAM_BLOSC_SHRINK;
    DAMACY__TRY(damacy__lz4_launch_teams(kernels, device, call, &lz4, likely,
                                         likely <= teams ? lz4.team_most : teams, err));
    return damacy__lz_step(&kernels->lz4.kernels[DAMACY__LZ4_FOURS], device, call,
                           DAMACY__MIN(damacy__div_up(w.max_lz4, 4), fours), 128,
                           4 * DAMACY__LZ4_SHARED, &lz4, sizeof lz4, err);
}

/* Parses the containers, fills the tables and decodes what is LZ4. */
static damacy_status damacy__blosc_launch_open(const damacy__lz_kernels* kernels,
                                               damacy__device* device,
                                               const damacy__blosc_layout* layout,
                                               damacy__lz_call* call, damacy_error* err)
{
    const damacy__kernel* k = kernels->blosc.kernels;
    damacy__blosc_wave w = damacy__blosc_wave_at(layout, call);
    damacy__lz_call lz4;

    if (!call->is_begun) {
        DAMACY__TRY(
            damacy__lz_step(&k[DAMACY__BLOSC_BEGIN], device, call, 1, 32, 0, &w, sizeof w, err));
    }
    DAMACY__TRY(damacy__lz_step(&k[DAMACY__BLOSC_PARSE], device, call,
                                damacy__div_up(w.max_jobs, 32), 1024, 0, &w, sizeof w, err));
    lz4 = *call;
    if (call->draft && !call->is_alone) {
        lz4.stream = call->lz4 = damacy__draft_branch(call->draft, call->stream);
    }
    return damacy__blosc_launch_lz4(kernels, device, layout, &lz4, err);
}

/* After the Zstandard decoder: results, and filters that are left, by few blocks of threads, which
 * are done soonest where none are. */
static damacy_status damacy__blosc_launch_close(const damacy__lz_kernels* kernels,
                                                damacy__device* device,
                                                const damacy__blosc_layout* layout,
                                                const damacy__lz_call* call, damacy_error* err)
{
    const damacy__kernel* k = kernels->blosc.kernels;
    damacy__blosc_wave w = damacy__blosc_wave_at(layout, call);
    const uint64_t most = 2ull * DAMACY__UNFILTER_HELD * device->n_multiprocessors;

    if (call->lz4) {
        damacy__draft_join(call->draft, call->stream, call->lz4);
    }
    return damacy__lz_step(&k[DAMACY__BLOSC_UNFILTER], device, call,
                           DAMACY__MIN((uint64_t)w.max_jobs * w.parts, most), 256, 0, &w, sizeof w,
                           err);
}

/* A kernel over a table of jobs, which goes round whatever its grid is. */
static damacy_status damacy__lz_table_step(const damacy__kernel* kernel, damacy__device* device,
                                           const damacy__lz_call* call, uint32_t max_jobs,
                                           damacy_error* err)
{
    const uint64_t most = 16ull * device->n_multiprocessors;
    const damacy__grid grid =
        damacy__grid_of((uint32_t)DAMACY__MIN((uint64_t)max_jobs, most), 256, 0);
    uint64_t jobs = call->jobs;
    uint64_t results = call->results;
    uint64_t n = call->n_jobs;
    void* parameters[4];

    parameters[0] = &jobs;
    parameters[1] = &results;
    parameters[2] = &n;
    parameters[3] = &max_jobs;
    return damacy__kernel_launch(kernel, device, &grid, call->stream, parameters, err);
}

/* Zeroes the outputs of jobs that failed. */
DAMACY__UNUSED static damacy_status damacy__clear_launch(const damacy__lz_kernels* kernels,
                                                         damacy__device* device,
                                                         const damacy__lz_call* call,
                                                         uint32_t max_jobs, damacy_error* err)
{
    return damacy__lz_table_step(&kernels->copy.kernels[DAMACY__COPY_CLEAR_FAILED], device, call,
                                 max_jobs, err);
}

/* Compares the checksum at the end of every source. Nothing is decoded. */
DAMACY__UNUSED static damacy_status damacy__crc32c_launch(const damacy__lz_kernels* kernels,
                                                          damacy__device* device,
                                                          const damacy__lz_call* call,
                                                          uint32_t max_jobs, damacy_error* err)
{
    return damacy__lz_table_step(&kernels->crc32c.kernels[0], device, call, max_jobs, err);
}
