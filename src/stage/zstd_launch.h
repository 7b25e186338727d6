/* Zstandard jobs on a device -> their output, by the kernels of kernels/zstd.cu and
 * kernels/zstd_sequences.cu: the launches of a wave of jobs in scratch of stage/zstd_layout.h.
 *
 * Nothing is read back and nothing is allocated, so a launch may be captured in a graph. The
 * surprising rule: stages that do not need each other run at the same time, on side streams that
 * all waves share. */
#pragma once
#include "stage/zstd_choose.h"

static_assert(sizeof(damacy__zstd_wave) <= DAMACY__GRAPH_PARAMETER, "a graph takes it");

static damacy_status damacy__zstd_launch(const damacy__zstd_kernels* kernels,
                                         damacy__device* device, const damacy__zstd_layout* layout,
                                         const damacy__zstd_call* call, damacy_error* err);

/* The wave with addresses of the device. */
static damacy__zstd_wave damacy__zstd_wave_at(const damacy__zstd_layout* layout,
                                              const damacy__zstd_call* call)
{
    damacy__zstd_wave w = layout->wave;

    w.jobs = call->jobs;
    w.n_jobs = call->n_jobs;
    w.results = call->results;
    if (call->blosc) {
        w.chunks = call->blosc->chunks;
        w.moves = call->blosc->moves;
        w.n_moves = call->blosc->counters + offsetof(damacy__blosc_counters, n_moves);
        w.max_moves = call->blosc->max_moves;
    }
    w.errors += call->scratch;
    w.spans += call->scratch;
    w.sums += call->scratch;
    w.counters += call->scratch;
    w.frames += call->scratch;
    w.blocks += call->scratch;
    w.trees += call->scratch;
    w.keys += call->scratch;
    w.logs += call->scratch;
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

static damacy_status damacy__zstd_step_on(damacy__zstd_pass* run, damacy__stream stream,
                                          const damacy__kernel* kernel, uint64_t n_blocks,
                                          uint32_t threads, uint32_t shared, damacy_error* err)
{
    damacy__zstd_wave wave = run->wave;
    /* every kernel goes round with any grid; more blocks than these only queue up */
    const uint64_t most = 64ull * run->device->n_multiprocessors;
    damacy__grid grid =
        damacy__grid_of((uint32_t)DAMACY__MAX(DAMACY__MIN(n_blocks, most), 1), threads, shared);

    grid.division = run->division;
    wave.flags |= run->also;
    run->also = 0;
    return damacy__queue_kernel(run->call->draft, kernel, run->device, &grid, stream, &wave,
                                sizeof wave, err);
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

/* Opens a part in which kernels may run side by side: what is first queued on a side waits for what
 * `stream` holds now, and what follows damacy__zstd_join waits for both. */
static damacy_status damacy__zstd_fork(damacy__zstd_pass* run, damacy__stream stream,
                                       damacy_error* err)
{
    if (run->call->is_alone) {
        return DAMACY_OK;
    }
    return damacy__queue_record(run->call->draft, run->device, run->kernels->fork, stream, err);
}

/* What is queued on side stream `side` from now on waits for the fork. */
static damacy_status damacy__zstd_follow(damacy__zstd_pass* run, uint32_t side, damacy_error* err)
{
    if (run->call->is_alone) {
        return DAMACY_OK;
    }
    run->is_beside[side] = true;
    return damacy__queue_wait(run->call->draft, run->device, run->kernels->side[side],
                              run->kernels->fork, err);
}

/* The same for sides that hold kernels of an earlier part, which go on. */
static damacy_status damacy__zstd_follow_all(damacy__zstd_pass* run, damacy_error* err)
{
    for (uint32_t i = 0; i < DAMACY__COUNT(run->is_beside); i++) {
        if (run->is_beside[i]) {
            DAMACY__TRY(damacy__zstd_follow(run, i, err));
        }
    }
    return DAMACY_OK;
}

/* A kernel on side stream `side`, or in line if the wave is to be alone. */
static damacy_status damacy__zstd_step_beside(damacy__zstd_pass* run, uint32_t side,
                                              const damacy__kernel* kernel, uint64_t n_blocks,
                                              uint32_t threads, uint32_t shared, damacy_error* err)
{
    const damacy__stream stream =
        run->call->is_alone ? run->call->stream : run->kernels->side[side];

    if (!run->is_beside[side]) {
        DAMACY__TRY(damacy__zstd_follow(run, side, err));
    }
    return damacy__zstd_step_on(run, stream, kernel, n_blocks, threads, shared, err);
}

/* The stream waits for what is on one side. */
static damacy_status damacy__zstd_join_side(damacy__zstd_pass* run, uint32_t side,
                                            damacy_error* err)
{
    const damacy__zstd_kernels* k = run->kernels;

    if (!run->is_beside[side]) {
        return DAMACY_OK;
    }
    run->is_beside[side] = false;
    DAMACY__TRY(
        damacy__queue_record(run->call->draft, run->device, k->join[side], k->side[side], err));
    return damacy__queue_wait(run->call->draft, run->device, run->call->stream, k->join[side], err);
}

/* The stream waits for all that runs beside it. */
static damacy_status damacy__zstd_join(damacy__zstd_pass* run, damacy_error* err)
{
    for (uint32_t i = 0; i < DAMACY__COUNT(run->is_beside); i++) {
        DAMACY__TRY(damacy__zstd_join_side(run, i, err));
    }
    return DAMACY_OK;
}

/* Trees of literals, on side 0: before the sequence stage, or where few blocks leave room beside it
 * and it takes longest, after its launch. A multiprocessor has as many warps at them as it has work
 * for, no more: it begins with sequences when it is through. Four blocks of threads have 64 trees
 * at once; from two rounds of these on, so many that all may be. */
static damacy_status damacy__zstd_launch_trees(damacy__zstd_pass* run, damacy_error* err)
{
    const uint64_t n = run->device->n_multiprocessors;
    const uint64_t most = (run->n_blocks > 128 * n ? 16 : 4) * n;

    return damacy__zstd_step_beside(run, 0, &run->kernels->front.kernels[DAMACY__ZSTD_TREES],
                                    DAMACY__MIN(damacy__div_up(run->n_blocks, 2), most), 64, 0,
                                    err);
}

/* Literals by shares have one list for all table logs, which is made with the others. */
static bool damacy__zstd_has_one_list(const damacy__zstd_pass* run)
{
    return run->options.literals != DAMACY__ZSTD_LANES;
}

/* Blocks of threads that make `kinds` kinds of lists. */
static uint64_t damacy__zstd_list_grid(const damacy__zstd_pass* run, uint32_t kinds)
{
    return kinds * damacy__div_up(DAMACY__MAX(run->n_blocks, 1), DAMACY__ZSTD_LIST_PART);
}

/* Lists of blocks with sequences, of frames, and of literals if these need no trees; on side 1. */
static damacy_status damacy__zstd_launch_order(damacy__zstd_pass* run, damacy_error* err)
{
    const bool is_one = damacy__zstd_has_one_list(run);

    run->also = is_one ? DAMACY__ZSTD_FLAG_ONE_LIST | run->options.early : 0;
    return damacy__zstd_step_beside(run, 1, &run->kernels->front.kernels[DAMACY__ZSTD_ORDER],
                                    damacy__zstd_list_grid(run, is_one ? 3 : 2), 1024, 0, err);
}

/* To what the sequence stage needs; trees stay under way. Tables, which take longest, are in line:
 * from a side to the stream it is 5 us. */
static damacy_status damacy__zstd_launch_parse(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* front = run->kernels->front.kernels;
    const damacy__kernel* back = run->kernels->back.kernels;
    const uint64_t parts =
        DAMACY__MIN(damacy__div_up((uint64_t)run->wave.max_jobs, 1u << DAMACY__ZSTD_PART_LOG),
                    (uint64_t)DAMACY__ZSTD_PARTS);

    run->division = damacy__zstd_division_of(run, false);
    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_COUNT], parts, 128, 0, err));
    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_FILL], parts, 128, 0, err));
    DAMACY__TRY(damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_PARSE, err));
    DAMACY__TRY(damacy__zstd_fork(run, run->call->stream, err));
    DAMACY__TRY(damacy__zstd_launch_order(run, err));
    DAMACY__TRY(
        damacy__zstd_step(run, &back[DAMACY__ZSTD_TABLES], damacy__zstd_pairs(run), 64, 0, err));
    if (!run->is_few) {
        DAMACY__TRY(damacy__zstd_launch_trees(run, err));
    }
    DAMACY__TRY(damacy__zstd_join_side(run, 1, err));
    DAMACY__TRY(damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_PREPARE, err));
    return damacy__zstd_fork(run, run->call->stream, err);
}

/* Lists of literals that wait for trees, on side 0, from the fork before the sequence stage on:
 * literals that are early must not find room before it. */
static damacy_status damacy__zstd_launch_lists(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* front = run->kernels->front.kernels;

    DAMACY__TRY(damacy__zstd_follow(run, 0, err));
    if (damacy__zstd_has_one_list(run)) {
        return DAMACY_OK;
    }
    run->also = DAMACY__ZSTD_FLAG_LITERALS | run->options.early;
    return damacy__zstd_step_beside(run, 0, &front[DAMACY__ZSTD_ORDER],
                                    damacy__zstd_list_grid(run, 1), 1024, 0, err);
}

/* Literals by shares, DAMACY__ZSTD_SPLIT or another of these, on a side stream. */
static damacy_status damacy__zstd_launch_split(damacy__zstd_pass* run, uint32_t side, uint32_t how,
                                               uint64_t n_blocks, damacy_error* err)
{
    const damacy__zstd_split split = damacy__zstd_split_of(how - DAMACY__ZSTD_SPLIT);

    return damacy__zstd_step_beside(run, side, &run->kernels->front.kernels[split.kernel], n_blocks,
                                    split.threads, split.shared, err);
}

/* Literals by lanes, a kernel per table log. Each has a floor, the time of one stream of literals,
 * so they run side by side. They are done soonest when multiprocessors share the warps evenly: on a
 * device that is idle when they begin, the smaller kernel first; if all find room at once, one
 * kernel for both sizes, with so much shared memory that no multiprocessor takes more than its
 * share. Those of 11 bits go by shares or by lanes. */
static damacy_status damacy__zstd_launch_lanes(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* front = run->kernels->front.kernels;
    const uint64_t most = damacy__div_up(run->n_blocks, 8);
    const uint64_t per = 8ull * run->device->n_multiprocessors;
    const uint64_t share = damacy__div_up(damacy__zstd_likely_blocks(run), per);
    const bool is_one = share * (DAMACY__ZSTD_LANES10_SHARED + DAMACY__SYSTEM_SHARED) <=
                        run->device->shared_per_multiprocessor;
    const bool is_early = run->wave.flags & DAMACY__ZSTD_FLAG_EARLY;

    run->wave.flags |= is_one ? DAMACY__ZSTD_FLAG_NINE_AS_TEN : 0;
    if (!is_one && is_early) {
        DAMACY__TRY(damacy__zstd_step_beside(run, 2, &front[DAMACY__ZSTD_LANES9], most, 32,
                                             DAMACY__ZSTD_LANES9_SHARED, err));
    } else if (!is_one) {
        DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_LANES9], most, 32,
                                      DAMACY__ZSTD_LANES9_SHARED, err));
    }
    if (is_one && !is_early) {
        const uint32_t shared =
            damacy__zstd_lanes_shared(run->device, (uint32_t)share, run->division);
        run->division = damacy__zstd_division(run->device, (uint32_t)share);
        DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_LANES10],
                                      share * run->device->n_multiprocessors, 32, shared, err));
    } else {
        DAMACY__TRY(damacy__zstd_step_beside(run, 0, &front[DAMACY__ZSTD_LANES10], most, 32,
                                             DAMACY__ZSTD_LANES10_SHARED, err));
    }
    if (damacy__zstd_lanes_of_11(run, is_early)) {
        return damacy__zstd_step_beside(run, 1, &front[DAMACY__ZSTD_LANES11], most, 32,
                                        DAMACY__ZSTD_LANES11_SHARED, err);
    }
    return damacy__zstd_launch_split(run, 1, DAMACY__ZSTD_SPLIT, per, err);
}

/* A pass over literals: FLAG_EARLY, beside the stream, or FLAG_LATE, by shares beside early ones.
 * Early lanes run where sequences have been, with the division of these. */
static damacy_status damacy__zstd_launch_literals(damacy__zstd_pass* run, uint32_t pass,
                                                  damacy_error* err)
{
    const uint32_t flags = run->wave.flags, how = run->options.literals;
    const uint32_t division = run->division, side = pass == DAMACY__ZSTD_FLAG_EARLY ? 0 : 2;
    damacy_status status;

    run->wave.flags |= pass;
    run->division =
        (how == DAMACY__ZSTD_LANES ? pass == DAMACY__ZSTD_FLAG_LATE : damacy__zstd_has_company(run))
            ? damacy__zstd_division(run->device, 0)
            : 0;
    run->also = damacy__zstd_has_one_list(run) ? DAMACY__ZSTD_FLAG_ONE_LIST : 0;
    status = how == DAMACY__ZSTD_LANES
                 ? damacy__zstd_launch_lanes(run, err)
                 : damacy__zstd_launch_split(run, side, how, run->n_blocks, err);
    run->wave.flags = flags;
    run->division = division;
    return status;
}

/* Blocks that a group of the throughput shape takes: as kernels/zstd_fse.cuh. */
static uint32_t damacy__zstd_fse_blocks(const damacy__device* device)
{
    return device->shared_per_block >= 232448 ? 32 : device->shared_per_block >= 101376 ? 16 : 8;
}

/* A grid of the whole device finds itself what multiprocessors it needs, and is done soonest. Where
 * others hold a little of a multiprocessor's shared memory, a block would begin when all others are
 * done, and its share with it: the grid leaves those out. Beside other waves, few full groups that
 * have their multiprocessors for themselves: execution, whose history is the cache that shared
 * memory is taken from, has the others. */
static damacy_status damacy__zstd_launch_fse(damacy__zstd_pass* run, damacy_error* err)
{
    const uint32_t flags = run->wave.flags;
    const damacy__kernel* fse = flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE
                                    ? &run->call->blosc_kernels[DAMACY__ZSTD_BLOSC_FSE]
                                    : &run->kernels->back.kernels[DAMACY__ZSTD_FSE];
    const bool is_full = flags & DAMACY__ZSTD_FLAG_FSE_THROUGHPUT;
    const bool is_few = flags & DAMACY__ZSTD_FLAG_FSE_LATENCY || (run->is_few && !is_full);
    const uint32_t each =
        is_few ? DAMACY__ZSTD_FSE_LATENCY_BLOCKS : damacy__zstd_fse_blocks(run->device);
    uint64_t grid = damacy__zstd_n_free(run);

    if (damacy__zstd_has_company(run) && (is_full || is_few)) {
        grid = DAMACY__MIN(grid, damacy__div_up(damacy__zstd_likely_blocks(run), each));
    }
    run->division = 0;
    run->also = run->options.early & DAMACY__ZSTD_FLAG_EARLY;
    return damacy__zstd_step(run, &fse[is_few ? 1 : 0], grid, 256,
                             is_few ? damacy__zstd_fit(run->device, DAMACY__ZSTD_FSE_LATENCY_SHARED)
                                    : run->device->shared_per_block,
                             err);
}

/* Blocks of threads of a shape that the device holds at once, if frames are somewhat more and take
 * turns, see kernels/zstd_exec_turn.cuh; else 0. */
static uint64_t damacy__zstd_turns(const damacy__zstd_pass* run, damacy__zstd_tile tile)
{
    const uint64_t at_once = (uint64_t)tile.per * run->device->n_multiprocessors;
    const uint64_t n = run->n_jobs;

    return n > 200 && n > at_once && 2 * n < 3 * at_once ? at_once : 0;
}

/* Blocks of threads of a shape of execution. Blocks of blosc may be many more than chunks, and then
 * a round of them is long; but these shapes get no more than SERIAL_FRAMES of them, and what finds
 * nothing to do is to be soon done. */
static uint64_t damacy__zstd_tile_grid(const damacy__zstd_pass* run, damacy__zstd_tile tile)
{
    const uint32_t bounded = DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_256X2_SERIAL |
                             DAMACY__ZSTD_EXECUTE_128X2_SERIAL;
    const uint64_t most = tile.flag & DAMACY__ZSTD_EXECUTE_1024X3
                              ? 2ull * run->device->n_multiprocessors
                          : tile.flag & bounded ? DAMACY__ZSTD_SERIAL_FRAMES
                                                : UINT64_MAX;
    const uint64_t n = run->n_jobs, at_once = damacy__zstd_turns(run, tile);

    if (run->options.turns) {
        return damacy__div_up(n, 3);
    }
    if (at_once) {
        return at_once;
    }
    return run->call->blosc ? DAMACY__MIN(4 * n, most) : n;
}

/* Frames that are much larger than the others, by tiles that blocks of threads pass on. They take
 * longest, so they come first, and all others are executed beside them. */
static damacy_status damacy__zstd_launch_apart(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* back = run->kernels->back.kernels;
    const uint32_t n = run->device->n_multiprocessors;

    DAMACY__TRY(damacy__zstd_step(run, &back[DAMACY__ZSTD_CUT], n, 1024, 0, err));
    DAMACY__TRY(damacy__zstd_fork(run, run->call->stream, err));
    run->also = DAMACY__ZSTD_EXECUTE_WIDE;
    return damacy__zstd_step(run, &back[DAMACY__ZSTD_RELAY_WIDE], n, DAMACY__ZSTD_WIDE_THREADS,
                             damacy__zstd_relay_shared(), err);
}

/* Tiles that blocks of threads pass on, by one kernel of two. Last: it takes the room that is left,
 * or all frames. */
static damacy_status damacy__zstd_launch_relays(damacy__zstd_pass* run, bool takes_all,
                                                damacy_error* err)
{
    const damacy__kernel* kernels = run->wave.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE
                                        ? &run->call->blosc_kernels[DAMACY__ZSTD_BLOSC_RELAY]
                                        : &run->kernels->back.kernels[DAMACY__ZSTD_RELAY];

    run->division = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const damacy__kernel* kernel = &kernels[i]; /* the wide one behind the other */
        const uint64_t grid = (i ? 1 : DAMACY__ZSTD_RELAY_PER) * run->device->n_multiprocessors;
        const uint32_t threads = i ? DAMACY__ZSTD_WIDE_THREADS : DAMACY__ZSTD_RELAY_THREADS;
        const uint32_t shared = damacy__zstd_relay_shared();
        if (!(run->options.execute & DAMACY__ZSTD_EXECUTE_RELAY << i)) {
            continue;
        }
        if (takes_all) {
            DAMACY__TRY(damacy__zstd_step(run, kernel, grid, threads, shared, err));
        } else {
            DAMACY__TRY(damacy__zstd_step_beside(run, 0, kernel, grid, threads, shared, err));
        }
    }
    return DAMACY_OK;
}

/* Which of the shapes takes the frames, the device chooses; of hundreds one takes all. Up to 1,000
 * frames are all under way at once: there, and where frames are large, the others come before or
 * after it, as a multiprocessor that they begin on keeps their division of L1 and shared memory;
 * else beside it. Those for blosc come one after another however many frames there are, which the
 * host does not know. */
static damacy_status damacy__zstd_launch_execute(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* back = run->kernels->back.kernels;
    const damacy__kernel* blosc = run->call->blosc_kernels;
    const bool by_sequence = run->wave.flags & DAMACY__ZSTD_FLAG_BY_SEQUENCE;
    const uint64_t most = 8ull * run->device->n_multiprocessors;
    const uint32_t others = run->options.execute & /* than relays and what may have all frames */
                            ~(DAMACY__ZSTD_EXECUTE_LINKS | DAMACY__ZSTD_EXECUTE_RELAY |
                              DAMACY__ZSTD_EXECUTE_WIDE | DAMACY__ZSTD_EXECUTE_SERIAL);
    const bool in_line = run->n_jobs <= 1000 || run->options.execute & DAMACY__ZSTD_EXECUTE_256X4;
    uint32_t n_tiles = 0;

    if (run->options.execute & DAMACY__ZSTD_EXECUTE_LINKS) {
        DAMACY__TRY(damacy__zstd_step(run, &back[DAMACY__ZSTD_LINK], most, 256, 0, err));
        DAMACY__TRY(damacy__zstd_step(run, &back[DAMACY__ZSTD_JUMP], most, 256, 0, err));
    }
    if (run->options.execute & (DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE)) {
        DAMACY__TRY(damacy__zstd_step(
            run, by_sequence ? &blosc[DAMACY__ZSTD_BLOSC_CUT] : &back[DAMACY__ZSTD_CUT],
            DAMACY__MIN(run->n_jobs, 2 * run->device->n_multiprocessors), 1024, 0, err));
    }
    if (run->options.apart) {
        DAMACY__TRY(damacy__zstd_launch_apart(run, err));
    } else {
        DAMACY__TRY(damacy__zstd_fork(run, run->call->stream, err));
    }
    for (uint32_t i = 0; i < DAMACY__ZSTD_TILES; i++) {
        const damacy__zstd_tile tile = damacy__zstd_tile_of(i);
        const damacy__kernel* kernel =
            by_sequence ? &blosc[DAMACY__ZSTD_BLOSC_TILE + i - DAMACY__ZSTD_TILE_BLOSC]
                        : &back[DAMACY__ZSTD_TILE + i];
        const uint64_t grid = damacy__zstd_tile_grid(run, tile);
        if (!(run->options.execute & tile.flag)) {
            continue;
        }
        run->division = damacy__division_for(run->device, tile.per, tile.shared);
        if (damacy__zstd_has_company(run)) {
            run->division = DAMACY__MAX(run->division, damacy__zstd_division(run->device, 0));
        }
        run->also = damacy__zstd_turns(run, tile) ? DAMACY__ZSTD_FLAG_SHARED : 0;
        if (run->options.apart) {
            DAMACY__TRY(
                damacy__zstd_step_beside(run, 1, kernel, grid, tile.threads, tile.shared, err));
        } else if (n_tiles++ == 0 || in_line || by_sequence) {
            DAMACY__TRY(damacy__zstd_step(run, kernel, grid, tile.threads, tile.shared, err));
        } else {
            DAMACY__TRY(damacy__zstd_step_beside(run, n_tiles % 3, kernel, grid, tile.threads,
                                                 tile.shared, err));
        }
    }
    DAMACY__TRY(damacy__zstd_launch_relays(run, !others, err));
    return damacy__zstd_join(run, err);
}

/* Warps that verify checksums: of a job each as long as its chain limits them, then of 8, which
 * need more time a chain and fewer instructions. */
static uint64_t damacy__zstd_finish_grid(const damacy__zstd_pass* run)
{
    const uint64_t most = 16ull * run->device->n_multiprocessors;

    return run->n_jobs <= most ? run->n_jobs : damacy__div_up(run->n_jobs, 8);
}

/* All stages. On failure kernels may be left beside the stream. */
static damacy_status damacy__zstd_launch_stages(damacy__zstd_pass* run, damacy_error* err)
{
    const damacy__kernel* front = run->kernels->front.kernels;

    DAMACY__TRY(damacy__zstd_launch_parse(run, err));
    DAMACY__TRY(damacy__zstd_launch_fse(run, err)); /* first: it takes longest */
    run->division = damacy__zstd_division_of(run, false);
    if (run->is_few) {
        DAMACY__TRY(damacy__zstd_launch_trees(run, err));
    }
    DAMACY__TRY(damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_FSE, err));
    DAMACY__TRY(damacy__zstd_launch_lists(run, err));
    DAMACY__TRY(damacy__zstd_fork(run, run->kernels->side[0], err)); /* that has trees and lists */
    DAMACY__TRY(damacy__zstd_join_side(run, 0, err));
    if (run->options.early) {
        DAMACY__TRY(damacy__zstd_launch_literals(run, DAMACY__ZSTD_FLAG_EARLY, err));
    }
    run->division = damacy__zstd_division_of(run, true);
    DAMACY__TRY(damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_LITERALS, err));
    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_RESOLVE], damacy__zstd_grid_of(run, 4),
                                  128, 0, err));
    DAMACY__TRY(damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_RESOLVE, err));
    DAMACY__TRY(damacy__zstd_fork(run, run->call->stream, err));
    DAMACY__TRY(damacy__zstd_follow_all(run, err)); /* early literals are under way */
    DAMACY__TRY(damacy__zstd_launch_literals(run, DAMACY__ZSTD_FLAG_LATE, err));
    /* Beside the literals: launched after them, it takes the room that they leave. */
    if (run->options.literals == DAMACY__ZSTD_LANES) { /* `stream` has some of them */
        DAMACY__TRY(damacy__zstd_step_beside(run, 2, &front[DAMACY__ZSTD_PLACE], run->n_blocks, 256,
                                             0, err));
    } else {
        DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_PLACE], run->n_blocks, 256, 0, err));
    }
    DAMACY__TRY(damacy__zstd_join(run, err));
    DAMACY__TRY(damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_PLACE, err));
    DAMACY__TRY(damacy__zstd_launch_execute(run, err));
    run->division = damacy__zstd_division_of(run, true);
    DAMACY__TRY(damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_EXECUTE, err));
    DAMACY__TRY(damacy__zstd_step(run, &front[DAMACY__ZSTD_FINISH], damacy__zstd_finish_grid(run),
                                  32, 0, err));
    return damacy__zstd_mark(run, DAMACY__ZSTD_STAGE_FINISH, err);
}

/* A part of the jobs, from first_job on. */
static damacy_status damacy__zstd_launch_part(const damacy__zstd_kernels* kernels,
                                              damacy__device* device,
                                              const damacy__zstd_layout* layout,
                                              const damacy__zstd_call* call, uint32_t first_job,
                                              damacy_error* err)
{
    const uint32_t likely = call->likely_jobs ? call->likely_jobs : layout->max_jobs;
    const uint32_t left = likely > first_job ? likely - first_job : 1;
    uint64_t size = call->likely_size ? call->likely_size : layout->dst_size;
    damacy__zstd_pass run;
    damacy_status status;

    memset(&run, 0, sizeof run);
    run.kernels = kernels;
    run.device = device;
    run.call = call;
    run.wave = damacy__zstd_wave_at(layout, call);
    run.wave.first_job = first_job;
    run.wave.jobs += first_job * sizeof(damacy__job);
    run.wave.results += first_job * sizeof(damacy__job_result);
    if (first_job) {
        run.wave.moves = 0; /* made with the first part */
    }
    run.options = call->options;
    run.n_jobs = DAMACY__MIN(left, layout->wave.max_jobs);
    if (likely > run.n_jobs) {
        size = size / likely * run.n_jobs;
    }
    run.n_blocks = (uint32_t)DAMACY__MIN(run.n_jobs + size / DAMACY__ZSTD_BLOCK_MAX,
                                         (uint64_t)layout->wave.max_blocks);
    run.is_few = DAMACY__MAX(run.n_jobs, size / DAMACY__ZSTD_BLOCK_MAX) <=
                 (uint64_t)DAMACY__ZSTD_FSE_LATENCY_BLOCKS * damacy__zstd_n_free(&run);
    run.size_each = size / run.n_jobs;
    run.size_most = DAMACY__MAX(run.size_each, call->likely_most);
    damacy__zstd_choose(&run);
    status = damacy__zstd_launch_stages(&run, err);
    if (status != DAMACY_OK) { /* so that who waits for the stream has waited for all */
        damacy_error ignored;
        memset(&ignored, 0, sizeof ignored);
        (void)damacy__zstd_join(&run, &ignored);
    }
    return status;
}

/* Queues the jobs on the stream. The context is current; nothing is waited for. What becomes of the
 * jobs is in the results, once the stream has got there. CUDA, DEVICE_LOST. */
static damacy_status damacy__zstd_launch(const damacy__zstd_kernels* kernels,
                                         damacy__device* device, const damacy__zstd_layout* layout,
                                         const damacy__zstd_call* call, damacy_error* err)
{
    for (uint64_t first = 0; first < layout->max_jobs; first += layout->wave.max_jobs) {
        DAMACY__TRY(damacy__zstd_launch_part(kernels, device, layout, call, (uint32_t)first, err));
    }
    return DAMACY_OK;
}
