/* Zstandard jobs on a device -> their output, by the kernels of kernels/zstd.cu and
 * kernels/zstd_sequences.cu: how much scratch a wave of jobs takes, and the launches.
 *
 * Nothing is read back and nothing is allocated, so a launch may be captured in a graph. The
 * surprising rule: scratch is sized for typical data, not for the worst; a job that does not fit is
 * reported as DAMACY__JOB_NEED_SCRATCH and costs the others nothing, and every job of up to
 * largest_size whose blocks average at least 1 KiB of output fits in a wave of its own. One that
 * does not, or has more empty blocks than a wave may have blocks, is for the host. */
#pragma once
#include "gpu/program.h"
#include "kernels/zstd_abi.h"

/* What a wave may hold. */
typedef struct damacy__zstd_limits {
    uint32_t max_jobs;
    uint64_t dst_size;     /* output bytes of all jobs together */
    uint64_t largest_size; /* output bytes of the largest job */
    uint64_t scratch_size; /* bytes of scratch; 0: as much as typical data needs */
    bool has_links;        /* room for links, 4 bytes per output byte: faster for up to 8 jobs */
    uint32_t max_blocks;   /* blocks, and frames, of all jobs; 0: as many as typical data have */
    uint64_t pool_size;    /* bytes of literals and records; 0: as typical data need */
} damacy__zstd_limits;

/* A wave's records and where they lie. */
typedef struct damacy__zstd_layout {
    uint64_t size;          /* bytes of scratch, a multiple of 256; needs no initial content */
    uint64_t dst_size;      /* of the limits */
    damacy__zstd_wave wave; /* addresses count from the start of the scratch */
} damacy__zstd_layout;

/* Which kernels run; zero chooses by the number of jobs and bytes. Every choice gives the same
 * bytes. */
enum { DAMACY__ZSTD_LANES = 1, DAMACY__ZSTD_SPLIT32 = 2, DAMACY__ZSTD_SPLIT128 = 3 };
typedef struct damacy__zstd_options {
    uint32_t literals; /* DAMACY__ZSTD_LANES ... */
    uint32_t fse;      /* DAMACY__ZSTD_FLAG_FSE_* */
    uint32_t execute;  /* DAMACY__ZSTD_EXECUTE_*, one or several */
} damacy__zstd_options;

/* One wave. The tables are read while the kernels run. */
typedef struct damacy__zstd_call {
    uint64_t jobs;        /* device address of damacy__job[] */
    uint64_t n_jobs;      /* device address of uint32_t: jobs in the table, at most max_jobs */
    uint64_t results;     /* device address of damacy__job_result[max_jobs] */
    uint64_t scratch;     /* device address of layout->size bytes, 256-byte aligned */
    uint32_t likely_jobs; /* for the choice of kernels, right or not; 0: max_jobs */
    uint64_t likely_size; /* output bytes, likewise; 0: dst_size */
    damacy__stream stream;
    bool is_alone; /* kernels on `stream` alone: the side streams may be in use, or it captures */
    bool has_company; /* other waves run at the same time: takes no more of the device than helps */
    const damacy__event* marks; /* recorded after each stage if not NULL, DAMACY__ZSTD_STAGES */
    damacy__zstd_options options;
} damacy__zstd_call;

/* Stages in order, for marks. */
enum {
    DAMACY__ZSTD_STAGE_PARSE = 0,   /* count, allocate, fill */
    DAMACY__ZSTD_STAGE_PREPARE = 1, /* trees, tables, order */
    DAMACY__ZSTD_STAGE_FSE = 2,
    DAMACY__ZSTD_STAGE_RESOLVE = 3,
    DAMACY__ZSTD_STAGE_LITERALS = 4,
    DAMACY__ZSTD_STAGE_PLACE = 5,
    DAMACY__ZSTD_STAGE_EXECUTE = 6,
    DAMACY__ZSTD_STAGE_FINISH = 7,
    DAMACY__ZSTD_STAGES = 8
};

/* The two programs, and what it takes to run kernels side by side. Zero: none. One thread at a time
 * launches; waves on several streams are fine. */
typedef struct damacy__zstd_kernels {
    damacy__program front, back;
    bool has_split128; /* the device has the shared memory for it */
    uint32_t tiles;    /* DAMACY__ZSTD_EXECUTE_*: shapes that it has the shared memory for */
    damacy__stream side[2];
    damacy__event fork;
    damacy__event join[2];
} damacy__zstd_kernels;

static damacy_status damacy__zstd_layout_of(const damacy__zstd_limits* limits,
                                            damacy__zstd_layout* out, damacy_error* err);
static damacy_status damacy__zstd_kernels_start(damacy__zstd_kernels* kernels,
                                                const damacy__device* device,
                                                damacy__compiler* compiler, damacy_error* err);
static damacy_status damacy__zstd_kernels_finish(damacy__zstd_kernels* kernels,
                                                 damacy__device* device, damacy_error* err);
static void damacy__zstd_kernels_deinit(damacy__zstd_kernels* kernels, damacy__device* device);
static damacy_status damacy__zstd_launch(const damacy__zstd_kernels* kernels,
                                         damacy__device* device, const damacy__zstd_layout* layout,
                                         const damacy__zstd_call* call, damacy_error* err);

/* ---- scratch ---- */

/* Takes n records of `size` bytes at the next multiple of 256; false on overflow. */
static bool damacy__zstd_reserve(uint64_t* at, uint64_t n, uint64_t size, uint64_t* out)
{
    uint64_t bytes;

    *out = *at;
    if (!damacy__mul(n, size, &bytes) || !damacy__add(*at, bytes, at) ||
        *at > DAMACY__SIZE_UNKNOWN - 256) {
        return false;
    }
    *at = damacy__align_up(*at, 256);
    return true;
}

/* Everything but the pool of literals and records and the links. */
static bool damacy__zstd_take_tables(damacy__zstd_wave* w, uint64_t* at)
{
    return damacy__zstd_reserve(at, w->max_jobs, sizeof(uint64_t), &w->errors) &&
           damacy__zstd_reserve(at, w->max_jobs, sizeof(damacy__zstd_span), &w->spans) &&
           damacy__zstd_reserve(at, 1, sizeof(damacy__zstd_counters), &w->counters) &&
           damacy__zstd_reserve(at, w->max_frames, sizeof(damacy__zstd_frame), &w->frames) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(damacy__zstd_block), &w->blocks) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(damacy__zstd_tree), &w->trees) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->sequence_order) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->literal_order[0]) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->literal_order[1]) &&
           damacy__zstd_reserve(at, w->max_blocks, sizeof(uint32_t), &w->literal_order[2]) &&
           damacy__zstd_reserve(at, w->max_frames, sizeof(uint32_t), &w->execute_list);
}

/* Bytes of literals and records: at least what one job can need, 16 bytes a sequence of at least 3
 * with one literal, else 2.52 times the output. That holds dim microscopy at zstd level 3, the
 * densest of common data: 141 sequences and 266 literals per KB make 282 records and 2.5 KB. */
static uint64_t damacy__zstd_pool_least(const damacy__zstd_limits* limits)
{
    if (limits->pool_size) {
        return damacy__align_up(limits->pool_size, 256);
    }
    return damacy__align_up(limits->largest_size / 8 * 35 + 65536, 256);
}

static uint64_t damacy__zstd_pool_typical(const damacy__zstd_limits* limits)
{
    const uint64_t typical = damacy__align_up(limits->dst_size / 50 * 126, 256);

    return limits->pool_size ? damacy__zstd_pool_least(limits)
                             : DAMACY__MAX(typical, damacy__zstd_pool_least(limits));
}

/* INVAL: sizes that no device has. BUDGET: scratch_size does not hold the largest job. */
static damacy_status damacy__zstd_layout_of(const damacy__zstd_limits* limits,
                                            damacy__zstd_layout* out, damacy_error* err)
{
    damacy__zstd_layout l;
    const uint64_t blocks = limits->max_blocks
                                ? limits->max_blocks
                                : 2ull * limits->max_jobs + limits->dst_size / 16384 +
                                      limits->largest_size / 1024 + 256;
    const uint64_t frames = limits->max_blocks ? limits->max_blocks : 2ull * limits->max_jobs + 256;
    uint64_t pool, at = 0;

    memset(&l, 0, sizeof l);
    if (limits->max_jobs == 0 || limits->max_jobs > (1u << 30) || blocks > (1u << 30) ||
        limits->dst_size >> 50 || limits->pool_size >> 50 ||
        limits->largest_size > DAMACY__JOB_SIZE_MAX) {
        return damacy__fail(err, DAMACY_INVAL,
                            "a wave of %u Zstandard jobs, %llu output bytes, the largest %llu",
                            limits->max_jobs, (unsigned long long)limits->dst_size,
                            (unsigned long long)limits->largest_size);
    }
    l.dst_size = limits->dst_size;
    l.wave.max_jobs = limits->max_jobs;
    l.wave.max_frames = (uint32_t)frames;
    l.wave.max_blocks = (uint32_t)blocks;
    if (!damacy__zstd_take_tables(&l.wave, &at)) {
        return damacy__fail(err, DAMACY_INVAL, "the scratch of %u Zstandard jobs overflows",
                            limits->max_jobs);
    }
    if (limits->has_links) {
        l.wave.links = at;
        l.wave.links_size = damacy__align_up(4 * limits->dst_size + 1024, 256);
        at += l.wave.links_size;
    }
    at += 256; /* the pool has 64 spare bytes on both sides */
    pool = damacy__zstd_pool_typical(limits);
    if (limits->scratch_size) {
        const uint64_t least = damacy__zstd_pool_least(limits);
        if (limits->scratch_size < at + least + 256) {
            return damacy__fail(err, DAMACY_BUDGET,
                                "scratch of %llu bytes for %u Zstandard jobs, the largest of %llu "
                                "bytes, needs %llu",
                                (unsigned long long)limits->scratch_size, limits->max_jobs,
                                (unsigned long long)limits->largest_size,
                                (unsigned long long)(at + least + 256));
        }
        pool = (limits->scratch_size - at - 256) & ~255ull;
    }
    l.wave.literals = at;
    l.wave.records = at;
    l.wave.max_records = pool / 8;
    l.size = at + pool + 256;
    *out = l;
    return DAMACY_OK;
}

/* The wave with addresses of the device. */
static damacy__zstd_wave damacy__zstd_wave_at(const damacy__zstd_layout* layout,
                                              const damacy__zstd_call* call)
{
    damacy__zstd_wave w = layout->wave;

    w.jobs = call->jobs;
    w.n_jobs = call->n_jobs;
    w.results = call->results;
    w.errors += call->scratch;
    w.spans += call->scratch;
    w.counters += call->scratch;
    w.frames += call->scratch;
    w.blocks += call->scratch;
    w.trees += call->scratch;
    w.sequence_order += call->scratch;
    for (uint32_t i = 0; i < 3; i++) {
        w.literal_order[i] += call->scratch;
    }
    w.execute_list += call->scratch;
    w.literals += call->scratch;
    w.records += call->scratch;
    if (w.links_size) {
        w.links += call->scratch;
    }
    return w;
}

/* ---- kernels ---- */

enum { /* of the program front */
       DAMACY__ZSTD_COUNT = 0,
       DAMACY__ZSTD_ALLOCATE = 1,
       DAMACY__ZSTD_FILL = 2,
       DAMACY__ZSTD_TREES = 3,
       DAMACY__ZSTD_ORDER = 4,
       DAMACY__ZSTD_RESOLVE = 5,
       DAMACY__ZSTD_LANES9 = 6,
       DAMACY__ZSTD_LANES10 = 7,
       DAMACY__ZSTD_LANES11 = 8,
       DAMACY__ZSTD_LITERALS32 = 9,
       DAMACY__ZSTD_PLACE = 10,
       DAMACY__ZSTD_FINISH = 11,
       DAMACY__ZSTD_LITERALS128 = 12 /* last: not on every device */
};
enum { /* of the program back */
       DAMACY__ZSTD_TABLES = 0,
       DAMACY__ZSTD_FSE = 1,
       DAMACY__ZSTD_FSE_HALF = 2,
       DAMACY__ZSTD_LINK = 3,
       DAMACY__ZSTD_JUMP = 4,
       DAMACY__ZSTD_TILE = 5, /* four shapes, in the order of their flags */
       DAMACY__ZSTD_TILES = 4
};

/* A shape of execution. */
typedef struct damacy__zstd_tile {
    uint32_t flag;
    uint32_t threads;
    uint32_t shared;
} damacy__zstd_tile;

static damacy__zstd_tile damacy__zstd_tile_of(uint32_t index)
{
    static const damacy__zstd_tile tiles[DAMACY__ZSTD_TILES] = {
        {DAMACY__ZSTD_EXECUTE_1024X2, 1024, DAMACY__ZSTD_EXECUTE_SHARED(1024, 2, 8192)},
        {DAMACY__ZSTD_EXECUTE_256X4, 256, DAMACY__ZSTD_EXECUTE_SHARED(256, 4, 4096)},
        {DAMACY__ZSTD_EXECUTE_256X2, 256, DAMACY__ZSTD_EXECUTE_SHARED(256, 2, 4096)},
        {DAMACY__ZSTD_EXECUTE_128X2, 128, DAMACY__ZSTD_EXECUTE_SHARED(128, 2, 2048)},
    };

    return tiles[index];
}

static uint32_t damacy__zstd_lanes11_shared(const damacy__device* device)
{
    return DAMACY__MIN(DAMACY__ZSTD_LANES11_SHARED, device->shared_per_block);
}

static uint32_t damacy__zstd_fse_half_shared(const damacy__device* device)
{
    return DAMACY__MIN(DAMACY__ZSTD_FSE_HALF_SHARED, device->shared_per_block);
}

/* Begins to compile. On failure there is nothing to deinit. */
static damacy_status damacy__zstd_kernels_start(damacy__zstd_kernels* kernels,
                                                const damacy__device* device,
                                                damacy__compiler* compiler, damacy_error* err)
{
    static const char* const front[] = {"damacy_zstd_count",
                                        "damacy_zstd_allocate",
                                        "damacy_zstd_fill",
                                        "damacy_zstd_trees",
                                        "damacy_zstd_order",
                                        "damacy_zstd_resolve",
                                        "damacy_zstd_literals_lanes9",
                                        "damacy_zstd_literals_lanes10",
                                        "damacy_zstd_literals_lanes11",
                                        "damacy_zstd_literals_split32",
                                        "damacy_zstd_place",
                                        "damacy_zstd_finish",
                                        "damacy_zstd_literals_split128"};
    static const char* const back[] = {
        "damacy_zstd_tables",        "damacy_zstd_fse",           "damacy_zstd_fse_half",
        "damacy_zstd_link",          "damacy_zstd_jump",          "damacy_zstd_execute_1024x2",
        "damacy_zstd_execute_256x4", "damacy_zstd_execute_256x2", "damacy_zstd_execute_128x2"};
    damacy__program_spec spec;
    damacy_status status;

    memset(kernels, 0, sizeof *kernels);
    memset(&spec, 0, sizeof spec);
    kernels->has_split128 = device->shared_per_block > 131072; /* as zstd.cu */
    spec.name = "kernels/zstd.cu";
    spec.entries = front;
    spec.n_entries = DAMACY__COUNT(front) - (kernels->has_split128 ? 0 : 1);
    DAMACY__TRY(damacy__program_start(&kernels->front, compiler, &spec, err));
    spec.name = "kernels/zstd_sequences.cu";
    spec.entries = back;
    spec.n_entries = DAMACY__COUNT(back);
    status = damacy__program_start(&kernels->back, compiler, &spec, err);
    if (status != DAMACY_OK) {
        damacy__program_deinit(&kernels->front, NULL);
    }
    return status;
}

/* Waits for the compiler and loads the kernels. The context is current. */
static damacy_status damacy__zstd_kernels_finish(damacy__zstd_kernels* kernels,
                                                 damacy__device* device, damacy_error* err)
{
    damacy__kernel* front = kernels->front.kernels;
    damacy__kernel* back = kernels->back.kernels;

    DAMACY__TRY(damacy__program_finish(&kernels->front, device, err));
    DAMACY__TRY(damacy__program_finish(&kernels->back, device, err));
    DAMACY__TRY(damacy__kernel_allow_shared(&front[DAMACY__ZSTD_LANES9], device,
                                            DAMACY__ZSTD_LANES9_SHARED, err));
    DAMACY__TRY(damacy__kernel_allow_shared(&front[DAMACY__ZSTD_LANES10], device,
                                            DAMACY__ZSTD_LANES10_SHARED, err));
    DAMACY__TRY(damacy__kernel_allow_shared(&front[DAMACY__ZSTD_LANES11], device,
                                            damacy__zstd_lanes11_shared(device), err));
    DAMACY__TRY(damacy__kernel_allow_shared(&front[DAMACY__ZSTD_LITERALS32], device,
                                            DAMACY__ZSTD_SPLIT_SHARED(32), err));
    if (kernels->has_split128) {
        DAMACY__TRY(damacy__kernel_allow_shared(&front[DAMACY__ZSTD_LITERALS128], device,
                                                DAMACY__ZSTD_SPLIT_SHARED(128), err));
    }
    DAMACY__TRY(damacy__kernel_allow_shared(&back[DAMACY__ZSTD_FSE], device,
                                            device->shared_per_block, err));
    DAMACY__TRY(damacy__kernel_allow_shared(&back[DAMACY__ZSTD_FSE_HALF], device,
                                            damacy__zstd_fse_half_shared(device), err));
    for (uint32_t i = 0; i < DAMACY__ZSTD_TILES; i++) {
        const damacy__zstd_tile tile = damacy__zstd_tile_of(i);
        if (tile.shared <= device->shared_per_block) {
            DAMACY__TRY(damacy__kernel_allow_shared(&back[DAMACY__ZSTD_TILE + i], device,
                                                    tile.shared, err));
            kernels->tiles |= tile.flag;
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        DAMACY__TRY(damacy__stream_open(device, false, &kernels->side[i], err));
        DAMACY__TRY(damacy__event_open(device, false, &kernels->join[i], err));
    }
    return damacy__event_open(device, false, &kernels->fork, err);
}

/* No launch is under way. Zeroed: no effect. */
static void damacy__zstd_kernels_deinit(damacy__zstd_kernels* kernels, damacy__device* device)
{
    damacy__event_close(device, kernels->fork);
    for (uint32_t i = 0; i < 2; i++) {
        damacy__event_close(device, kernels->join[i]);
        damacy__stream_close(device, kernels->side[i]);
    }
    damacy__program_deinit(&kernels->back, device);
    damacy__program_deinit(&kernels->front, device);
    memset(kernels, 0, sizeof *kernels);
}

/* ---- launches ---- */

/* What the launches of a wave have in common. */
typedef struct damacy__zstd_pass {
    const damacy__zstd_kernels* kernels;
    damacy__device* device;
    const damacy__zstd_call* call;
    damacy__zstd_wave wave;
    uint32_t n_jobs;   /* likely */
    uint32_t n_blocks; /* likely */
    damacy__zstd_options options;
} damacy__zstd_pass;

static damacy_status damacy__zstd_step_on(damacy__zstd_pass* run, damacy__stream stream,
                                          const damacy__kernel* kernel, uint64_t n_blocks,
                                          uint32_t threads, uint32_t shared, damacy_error* err)
{
    void* parameters[1];
    /* every kernel goes round with any grid; more blocks than these only queue up */
    const uint64_t most = 64ull * run->device->n_multiprocessors;
    const damacy__grid grid =
        damacy__grid_of((uint32_t)DAMACY__MAX(DAMACY__MIN(n_blocks, most), 1), threads, shared);

    parameters[0] = &run->wave;
    return damacy__kernel_launch(kernel, run->device, &grid, stream, parameters, err);
}

static damacy_status damacy__zstd_step(damacy__zstd_pass* run, const damacy__kernel* kernel,
                                       uint64_t n_blocks, uint32_t threads, uint32_t shared,
                                       damacy_error* err)
{
    return damacy__zstd_step_on(run, run->call->stream, kernel, n_blocks, threads, shared, err);
}

static damacy_status damacy__zstd_mark(damacy__zstd_pass* run, uint32_t stage, damacy_error* err)
{
    if (!run->call->marks) {
        return DAMACY_OK;
    }
    return damacy__event_record(run->device, run->call->marks[stage], run->call->stream, err);
}

/* Fills in what the caller left open. Switch points measured on an H200 (132 multiprocessors). */
static void damacy__zstd_choose(damacy__zstd_pass* run)
{
    damacy__zstd_options* o = &run->options;
    const bool has_links = run->wave.links_size != 0;

    if (o->literals == 0) {
        o->literals = run->n_blocks >= 4000  ? DAMACY__ZSTD_LANES
                      : run->n_blocks >= 200 ? DAMACY__ZSTD_SPLIT32
                                             : DAMACY__ZSTD_SPLIT128;
    }
    if (o->literals == DAMACY__ZSTD_SPLIT128 && !run->kernels->has_split128) {
        o->literals = DAMACY__ZSTD_SPLIT32;
    }
    if (o->execute == 0) {
        o->execute = run->n_jobs > 1000  ? DAMACY__ZSTD_EXECUTE_128X2
                     : run->n_jobs > 200 ? DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_256X2
                                         : DAMACY__ZSTD_EXECUTE_1024X2;
        if (run->n_jobs <= 8 && has_links) {
            o->execute |= DAMACY__ZSTD_EXECUTE_LINKS;
        }
    }
    o->execute &= run->kernels->tiles | (has_links ? DAMACY__ZSTD_EXECUTE_LINKS : 0);
    /* Links take what fits; every frame has to find some kernel. */
    if (!(o->execute & run->kernels->tiles)) {
        o->execute |= DAMACY__ZSTD_EXECUTE_256X2;
    }
    run->wave.flags = o->execute | (o->fse & ~DAMACY__ZSTD_FLAG_FSE_HALF);
}

static damacy_status damacy__zstd_launch_parse(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* front = run->kernels->front.kernels;
    const damacy__kernel* back = run->kernels->back.kernels;
    const uint64_t jobs64 = damacy__div_up(run->wave.max_jobs, 64);

    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_COUNT], jobs64, 64, 0, err));
    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_ALLOCATE], 1, 1024, 0, err));
    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_FILL], jobs64, 64, 0, err));
    DAMACY__TRY(damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_PARSE, err));
    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_TREES], damacy__div_up(run->n_blocks, 8),
                                  32, 0, err));
    DAMACY__TRY(damacy__zstd_step(run, &back[DAMACY__ZSTD_TABLES],
                                  damacy__div_up(run->n_blocks, 128), 128, 0, err));
    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_ORDER], 1, 1024, 0, err));
    return damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_PREPARE, err);
}

/* One of the kernels that run side by side: on a stream that has waited for `fork`. */
static damacy_status damacy__zstd_launch_beside(damacy__zstd_pass* run, uint32_t entry,
                                                uint64_t n_blocks, uint32_t threads,
                                                uint32_t shared, uint32_t side, damacy_error* err)
{
    const damacy__zstd_kernels* k = run->kernels;

    DAMACY__TRY(damacy__stream_await(run->device, k->side[side], k->fork, err));
    DAMACY__TRY(damacy__zstd_step_on(run, k->side[side], &k->front.kernels[entry], n_blocks,
                                     threads, shared, err));
    return damacy__event_record(run->device, k->join[side], k->side[side], err);
}

static damacy_status damacy__zstd_launch_lanes(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__zstd_kernels* k = run->kernels;
    const uint64_t n = run->n_blocks;

    if (run->call->is_alone) {
        DAMACY__TRY(damacy__zstd_step(run, &k->front.kernels[DAMACY__ZSTD_LANES11],
                                      damacy__div_up(n, 16), 64,
                                      damacy__zstd_lanes11_shared(run->device), err));
        DAMACY__TRY(damacy__zstd_step(run, &k->front.kernels[DAMACY__ZSTD_LANES10],
                                      damacy__div_up(n, 8), 32, DAMACY__ZSTD_LANES10_SHARED, err));
        return damacy__zstd_step(run, &k->front.kernels[DAMACY__ZSTD_LANES9], damacy__div_up(n, 8),
                                 32, DAMACY__ZSTD_LANES9_SHARED, err);
    }
    DAMACY__TRY(damacy__event_record(run->device, k->fork, run->call->stream, err));
    DAMACY__TRY(damacy__zstd_step(run, &k->front.kernels[DAMACY__ZSTD_LANES11],
                                  damacy__div_up(n, 16), 64,
                                  damacy__zstd_lanes11_shared(run->device), err));
    DAMACY__TRY(damacy__zstd_launch_beside(run, DAMACY__ZSTD_LANES10, damacy__div_up(n, 8), 32,
                                           DAMACY__ZSTD_LANES10_SHARED, 0, err));
    DAMACY__TRY(damacy__zstd_launch_beside(run, DAMACY__ZSTD_LANES9, damacy__div_up(n, 8), 32,
                                           DAMACY__ZSTD_LANES9_SHARED, 1, err));
    DAMACY__TRY(damacy__stream_await(run->device, run->call->stream, k->join[0], err));
    return damacy__stream_await(run->device, run->call->stream, k->join[1], err);
}

static damacy_status damacy__zstd_launch_literals(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* front = run->kernels->front.kernels;

    if (run->options.literals == DAMACY__ZSTD_LANES) {
        return damacy__zstd_launch_lanes(run, err);
    }
    if (run->options.literals == DAMACY__ZSTD_SPLIT32) {
        return damacy__zstd_step(run, &front[DAMACY__ZSTD_LITERALS32], run->n_blocks, 128,
                                 DAMACY__ZSTD_SPLIT_SHARED(32), err);
    }
    return damacy__zstd_step(run, &front[DAMACY__ZSTD_LITERALS128], run->n_blocks, 512,
                             DAMACY__ZSTD_SPLIT_SHARED(128), err);
}

/* A grid of the whole device finds each multiprocessor's share itself, and is done soonest. Beside
 * other waves, a grid of full groups of half a multiprocessor each: what it leaves, and the time in
 * which its one chain of look-ups waits, is theirs. */
static damacy_status damacy__zstd_launch_fse(damacy__zstd_pass* run, uint64_t size,
                                             damacy_error* err)
{
    const damacy__kernel* back = run->kernels->back.kernels;
    const uint64_t n_multiprocessors = run->device->n_multiprocessors;
    const uint64_t n_blocks = DAMACY__MAX(run->n_jobs, size / DAMACY__ZSTD_BLOCK_MAX);
    const uint32_t fse = run->options.fse;

    if ((fse & DAMACY__ZSTD_FLAG_FSE_HALF) || (run->call->has_company && fse == 0)) {
        return damacy__zstd_step(run, &back[DAMACY__ZSTD_FSE_HALF],
                                 DAMACY__MIN(damacy__div_up(n_blocks, DAMACY__ZSTD_FSE_HALF_BLOCKS),
                                             2 * n_multiprocessors),
                                 256, damacy__zstd_fse_half_shared(run->device), err);
    }
    return damacy__zstd_step(run, &back[DAMACY__ZSTD_FSE], n_multiprocessors, 256,
                             run->device->shared_per_block, err);
}

static damacy_status damacy__zstd_launch_execute(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* back = run->kernels->back.kernels;
    const uint64_t most = 8ull * run->device->n_multiprocessors;

    if (run->options.execute & DAMACY__ZSTD_EXECUTE_LINKS) {
        DAMACY__TRY(damacy__zstd_step(run, &back[DAMACY__ZSTD_LINK], most, 256, 0, err));
        DAMACY__TRY(damacy__zstd_step(run, &back[DAMACY__ZSTD_JUMP], most, 256, 0, err));
    }
    for (uint32_t i = 0; i < DAMACY__ZSTD_TILES; i++) {
        const damacy__zstd_tile tile = damacy__zstd_tile_of(i);
        if (run->options.execute & tile.flag) {
            DAMACY__TRY(damacy__zstd_step(run, &back[DAMACY__ZSTD_TILE + i], run->n_jobs,
                                          tile.threads, tile.shared, err));
        }
    }
    return DAMACY_OK;
}

/* Queues the wave on the stream. The context is current; nothing is waited for. What becomes of the
 * jobs is in the results, once the stream has got there. CUDA, DEVICE_LOST. */
static damacy_status damacy__zstd_launch(const damacy__zstd_kernels* kernels,
                                         damacy__device* device, const damacy__zstd_layout* layout,
                                         const damacy__zstd_call* call, damacy_error* err)
{
    const damacy__kernel* front = kernels->front.kernels;
    const uint64_t size = call->likely_size ? call->likely_size : layout->dst_size;
    damacy__zstd_pass run;

    memset(&run, 0, sizeof run);
    run.kernels = kernels;
    run.device = device;
    run.call = call;
    run.wave = damacy__zstd_wave_at(layout, call);
    run.options = call->options;
    run.n_jobs = call->likely_jobs ? DAMACY__MIN(call->likely_jobs, layout->wave.max_jobs)
                                   : layout->wave.max_jobs;
    run.n_blocks = (uint32_t)DAMACY__MIN(run.n_jobs + size / DAMACY__ZSTD_BLOCK_MAX,
                                         (uint64_t)layout->wave.max_blocks);
    damacy__zstd_choose(&run);
    DAMACY__TRY(damacy__zstd_launch_parse(&run, err));
    DAMACY__TRY(damacy__zstd_launch_fse(&run, size, err));
    DAMACY__TRY(damacy__zstd_mark(&run, DAMACY__ZSTD_STAGE_FSE, err));
    DAMACY__TRY(damacy__zstd_step(&run, &front[DAMACY__ZSTD_RESOLVE],
                                  damacy__div_up(run.wave.max_jobs, 4), 128, 0, err));
    DAMACY__TRY(damacy__zstd_mark(&run, DAMACY__ZSTD_STAGE_RESOLVE, err));
    DAMACY__TRY(damacy__zstd_launch_literals(&run, err));
    DAMACY__TRY(damacy__zstd_mark(&run, DAMACY__ZSTD_STAGE_LITERALS, err));
    DAMACY__TRY(damacy__zstd_step(&run, &front[DAMACY__ZSTD_PLACE], run.n_blocks, 256, 0, err));
    DAMACY__TRY(damacy__zstd_mark(&run, DAMACY__ZSTD_STAGE_PLACE, err));
    DAMACY__TRY(damacy__zstd_launch_execute(&run, err));
    DAMACY__TRY(damacy__zstd_mark(&run, DAMACY__ZSTD_STAGE_EXECUTE, err));
    DAMACY__TRY(damacy__zstd_step(&run, &front[DAMACY__ZSTD_FINISH],
                                  damacy__div_up(run.wave.max_jobs, 32), 128, 0, err));
    return damacy__zstd_mark(&run, DAMACY__ZSTD_STAGE_FINISH, err);
}
