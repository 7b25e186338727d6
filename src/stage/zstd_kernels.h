/* kernels/zstd.cu and kernels/zstd_sequences.cu -> the kernels of the Zstandard decoder, compiled
 * and loaded, with the shared memory that each may take.
 *
 * The surprising rule: a device with less shared memory than the largest lacks some of the shapes
 * of execution; those that it has are told in a mask. */
#pragma once
#include "gpu/program.h"
#include "kernels/zstd_abi.h"

/* The two programs (for blosc there is a third, see damacy__lz_kernels), and what it takes to run
 * kernels side by side. Zero: none. One thread at a time launches; waves on several streams are
 * fine. */
typedef struct damacy__zstd_kernels {
    damacy__program front, back;
    bool has_split4;   /* the device has the shared memory for it */
    uint32_t tiles;    /* DAMACY__ZSTD_EXECUTE_*: shapes that it has the shared memory for */
    damacy__stream side[3];
    damacy__event fork;
    damacy__event join[3];
} damacy__zstd_kernels;

static damacy_status damacy__zstd_kernels_start(damacy__zstd_kernels* kernels,
                                                const damacy__device* device,
                                                damacy__compiler* compiler, damacy_error* err);
static damacy_status damacy__zstd_kernels_finish(damacy__zstd_kernels* kernels,
                                                 damacy__device* device, damacy_error* err);
static void damacy__zstd_kernels_deinit(damacy__zstd_kernels* kernels, damacy__device* device);
enum { /* of the program front */
       DAMACY__ZSTD_COUNT = 0,
       DAMACY__ZSTD_FILL = 1,
       DAMACY__ZSTD_TREES = 2,
       DAMACY__ZSTD_ORDER = 3,
       DAMACY__ZSTD_RESOLVE = 4,
       DAMACY__ZSTD_LANES9 = 5,
       DAMACY__ZSTD_LANES10 = 6,
       DAMACY__ZSTD_LANES11 = 7,
       DAMACY__ZSTD_LITERALS_SPLIT = 8,
       DAMACY__ZSTD_PLACE = 9,
       DAMACY__ZSTD_FINISH = 10,
       DAMACY__ZSTD_LITERALS_SPLIT_SMALL = 11,
       DAMACY__ZSTD_LITERALS_SPLIT4 = 12 /* last: not on every device */
};
enum { /* of the program back */
       DAMACY__ZSTD_TABLES = 0,
       DAMACY__ZSTD_FSE = 1,
       DAMACY__ZSTD_FSE_FEW = 2,
       DAMACY__ZSTD_LINK = 3,
       DAMACY__ZSTD_JUMP = 4,
       DAMACY__ZSTD_CUT = 5,
       DAMACY__ZSTD_RELAY = 6,
       DAMACY__ZSTD_RELAY_WIDE = 7, /* behind that */
       DAMACY__ZSTD_TILE = 8        /* shapes, in the order of damacy__zstd_tile_of */
};
enum { /* of the program kernels/zstd_blosc.cu */
       DAMACY__ZSTD_BLOSC_FSE = 0,
       DAMACY__ZSTD_BLOSC_FSE_FEW = 1,
       DAMACY__ZSTD_BLOSC_CUT = 2,
       DAMACY__ZSTD_BLOSC_RELAY = 3,
       DAMACY__ZSTD_BLOSC_RELAY_WIDE = 4,
       DAMACY__ZSTD_BLOSC_TILE = 5 /* shapes, from DAMACY__ZSTD_TILE_BLOSC on */
};
enum { /* of shapes: PLAIN in the program back, from BLOSC on in that for blosc */
       DAMACY__ZSTD_TILE_BLOSC = 2,
       DAMACY__ZSTD_TILE_256X4 = 3,
       DAMACY__ZSTD_TILES_PLAIN = 7,
       DAMACY__ZSTD_TILES = 8
};

/* A shape of execution. */
typedef struct damacy__zstd_tile {
    uint32_t flag;
    uint32_t threads;
    uint32_t shared;
    uint32_t per; /* blocks of threads that a multiprocessor is to have: more leave less L1 */
} damacy__zstd_tile;

static damacy__zstd_tile damacy__zstd_tile_of(uint32_t index)
{
    static const damacy__zstd_tile tiles[DAMACY__ZSTD_TILES] = {
        {DAMACY__ZSTD_EXECUTE_128X4, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_128X4), 8},
        {DAMACY__ZSTD_EXECUTE_128X2, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_128X2), 8},
        {DAMACY__ZSTD_EXECUTE_1024X3, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_1024X3), 1},
        {DAMACY__ZSTD_EXECUTE_256X4, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_256X4), 4},
        {DAMACY__ZSTD_EXECUTE_128X4_3K, DAMACY__ZSTD_TILE_NEEDS(DAMACY__ZSTD_SHAPE_128X4_3K), 8},
        {DAMACY__ZSTD_EXECUTE_128X2_SERIAL,
         DAMACY__ZSTD_SERIAL_NEEDS(DAMACY__ZSTD_SHAPE_128X2_SERIAL), 8},
        {DAMACY__ZSTD_EXECUTE_64X4_SERIAL,
         DAMACY__ZSTD_SERIAL_NEEDS(DAMACY__ZSTD_SHAPE_64X4_SERIAL), 16},
        {DAMACY__ZSTD_EXECUTE_256X2_SERIAL,
         DAMACY__ZSTD_SERIAL_NEEDS(DAMACY__ZSTD_SHAPE_256X2_SERIAL), 4},
    };

    return tiles[index];
}

/* A shape of literals by shares: its kernel of the program front, and what a launch of it needs. */
typedef struct damacy__zstd_split {
    uint32_t kernel;
    uint32_t threads;
    uint32_t shared;
} damacy__zstd_split;

enum { DAMACY__ZSTD_SPLITS = 3 };

/* Those of DAMACY__ZSTD_SPLIT, SPLIT_SMALL and SPLIT4. */
static damacy__zstd_split damacy__zstd_split_of(uint32_t index)
{
    static const damacy__zstd_split splits[DAMACY__ZSTD_SPLITS] = {
        {DAMACY__ZSTD_LITERALS_SPLIT, 128, DAMACY__ZSTD_SPLIT_SHARED(DAMACY__ZSTD_SHAPE_SPLIT)},
        {DAMACY__ZSTD_LITERALS_SPLIT_SMALL, 128,
         DAMACY__ZSTD_SPLIT_SHARED(DAMACY__ZSTD_SHAPE_SPLIT_SMALL)},
        {DAMACY__ZSTD_LITERALS_SPLIT4, 512, DAMACY__ZSTD_SPLIT_SHARED(DAMACY__ZSTD_SHAPE_SPLIT4)},
    };

    return splits[index];
}

static uint32_t damacy__zstd_relay_shared(void)
{
    return DAMACY__ZSTD_RELAY_SHARED(DAMACY__ZSTD_RELAY_THREADS, DAMACY__ZSTD_RELAY_SEGMENTS,
                                     DAMACY__ZSTD_RELAY_TILE);
}

static bool damacy__zstd_relay_fits(const damacy__device* device)
{
    const uint64_t shared = damacy__zstd_relay_shared();

    return shared <= device->shared_per_block &&
           DAMACY__ZSTD_RELAY_PER * (shared + DAMACY__SYSTEM_SHARED) <=
               device->shared_per_multiprocessor;
}

/* Shared memory of a kernel that works with less. */
static uint32_t damacy__zstd_fit(const damacy__device* device, uint32_t shared)
{
    return DAMACY__MIN(shared, device->shared_per_block);
}

/* Blocks of threads for literals by lanes that an H200 has for each multiprocessor when thousands
 * of blocks are decoded. */
#define DAMACY__ZSTD_LANES_SHARE 8u

/* The division that all kernels but those of sequences can work with, so that what runs beside each
 * other shares multiprocessors: `share` blocks of threads that decode literals by lanes, at least
 * LANES_SHARE. */
static uint32_t damacy__zstd_division(const damacy__device* device, uint32_t share)
{
    return damacy__division_for(device, DAMACY__MAX(share, DAMACY__ZSTD_LANES_SHARE),
                                DAMACY__ZSTD_LANES10_SHARED);
}

/* Shared memory of literals by lanes with which `share` blocks of threads, not more, find room on a
 * multiprocessor, of that division or, with 0, of the largest; that many fit. */
static uint32_t damacy__zstd_lanes_shared(const damacy__device* device, uint32_t share,
                                          uint32_t division)
{
    const uint32_t system = DAMACY__SYSTEM_SHARED, most = device->shared_per_multiprocessor;
    const uint32_t wanted =
        DAMACY__MAX(share, DAMACY__ZSTD_LANES_SHARE) * (DAMACY__ZSTD_LANES10_SHARED + system);
    const uint32_t all = division ? DAMACY__MIN(wanted, most) : most;

    return DAMACY__MAX(damacy__zstd_fit(device, all / share / system * system - system),
                       DAMACY__ZSTD_LANES10_SHARED);
}

static bool damacy__zstd_tile_fits(const damacy__device* device, uint32_t index)
{
    return damacy__zstd_tile_of(index).shared <= device->shared_per_block;
}

/* Shared memory of the kernels that decode sequences, of many blocks and of few, and of n shapes of
 * execution from `first` on, of which a device may lack some. */
static damacy_status damacy__zstd_allow_back(damacy__kernel* fse, damacy__kernel* tiles,
                                             uint32_t first, uint32_t n, damacy__device* device,
                                             damacy_error* err)
{
    DAMACY__TRY(damacy__kernel_allow_shared(&fse[0], device, device->shared_per_block, err));
    DAMACY__TRY(damacy__kernel_allow_shared(
        &fse[1], device, damacy__zstd_fit(device, DAMACY__ZSTD_FSE_LATENCY_SHARED), err));
    for (uint32_t i = 0; i < n; i++) {
        if (damacy__zstd_tile_fits(device, first + i)) {
            DAMACY__TRY(damacy__kernel_allow_shared(&tiles[i], device,
                                                    damacy__zstd_tile_of(first + i).shared, err));
        }
    }
    return DAMACY_OK;
}

/* Shared memory of relays and behind them wide ones, where the device has it. */
static damacy_status damacy__zstd_allow_relays(damacy__kernel* relays, damacy__device* device,
                                               damacy_error* err)
{
    const uint32_t shared = damacy__zstd_relay_shared();

    if (!damacy__zstd_relay_fits(device)) {
        return DAMACY_OK;
    }
    DAMACY__TRY(damacy__kernel_allow_shared(&relays[0], device, shared, err));
    return damacy__kernel_allow_shared(&relays[1], device, shared, err);
}

/* Begins to compile. On failure there is nothing to deinit. */
static damacy_status damacy__zstd_kernels_start(damacy__zstd_kernels* kernels,
                                                const damacy__device* device,
                                                damacy__compiler* compiler, damacy_error* err)
{
    static const char* const front[] = {"damacy_zstd_count",
                                        "damacy_zstd_fill",
                                        "damacy_zstd_trees",
                                        "damacy_zstd_order",
                                        "damacy_zstd_resolve",
                                        "damacy_zstd_literals_lanes9",
                                        "damacy_zstd_literals_lanes10",
                                        "damacy_zstd_literals_lanes11",
                                        "damacy_zstd_literals_split",
                                        "damacy_zstd_place",
                                        "damacy_zstd_finish",
                                        "damacy_zstd_literals_split_small",
                                        "damacy_zstd_literals_split4"};
    static const char* const back[] = {"damacy_zstd_tables",
                                       "damacy_zstd_fse",
                                       "damacy_zstd_fse_few",
                                       "damacy_zstd_link",
                                       "damacy_zstd_jump",
                                       "damacy_zstd_cut",
                                       "damacy_zstd_relay",
                                       "damacy_zstd_relay_wide",
                                       "damacy_zstd_execute_128x4",
                                       "damacy_zstd_execute_128x2",
                                       "damacy_zstd_execute_1024x3",
                                       "damacy_zstd_execute_256x4",
                                       "damacy_zstd_execute_128x4_3k",
                                       "damacy_zstd_execute_128x2_serial",
                                       "damacy_zstd_execute_64x4_serial"};
    damacy__program_spec spec = {0};
    damacy_status status;

    memset(kernels, 0, sizeof *kernels);
    kernels->has_split4 = device->shared_per_block >= 232448; /* as zstd.cu */
    spec.name = "kernels/zstd.cu";
    spec.entries = front;
    spec.n_entries = DAMACY__COUNT(front) - (kernels->has_split4 ? 0 : 1);
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
                                            damacy__zstd_lanes_shared(device, 1, 0), err));
    DAMACY__TRY(damacy__kernel_allow_shared(&front[DAMACY__ZSTD_LANES11], device,
                                            DAMACY__ZSTD_LANES11_SHARED, err));
    for (uint32_t i = 0; i < DAMACY__ZSTD_SPLITS - (kernels->has_split4 ? 0u : 1u); i++) {
        const damacy__zstd_split split = damacy__zstd_split_of(i);
        DAMACY__TRY(damacy__kernel_allow_shared(&front[split.kernel], device, split.shared, err));
    }
    DAMACY__TRY(damacy__zstd_allow_back(&back[DAMACY__ZSTD_FSE], &back[DAMACY__ZSTD_TILE], 0,
                                        DAMACY__ZSTD_TILES_PLAIN, device, err));
    for (uint32_t i = 0; i < DAMACY__ZSTD_TILES_PLAIN; i++) {
        kernels->tiles |= damacy__zstd_tile_fits(device, i) ? damacy__zstd_tile_of(i).flag : 0;
    }
    DAMACY__TRY(damacy__zstd_allow_relays(&back[DAMACY__ZSTD_RELAY], device, err));
    if (damacy__zstd_relay_fits(device)) {
        kernels->tiles |= DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE;
    }
    for (uint32_t i = 0; i < DAMACY__COUNT(kernels->side); i++) {
        DAMACY__TRY(damacy__stream_open(device, false, &kernels->side[i], err));
        DAMACY__TRY(damacy__event_open(device, false, &kernels->join[i], err));
    }
    return damacy__event_open(device, false, &kernels->fork, err);
}

/* No launch is under way. Zeroed: no effect. */
static void damacy__zstd_kernels_deinit(damacy__zstd_kernels* kernels, damacy__device* device)
{
    damacy__event_close(device, kernels->fork);
    for (uint32_t i = 0; i < DAMACY__COUNT(kernels->side); i++) {
        damacy__event_close(device, kernels->join[i]);
        damacy__stream_close(device, kernels->side[i]);
    }
    damacy__program_deinit(&kernels->back, device);
    damacy__program_deinit(&kernels->front, device);
    memset(kernels, 0, sizeof *kernels);
}
