/* A wave of Zstandard jobs -> which kernels take it, with how many blocks of threads and which
 * division of a multiprocessor's memory: by the number of jobs and bytes that are likely.
 *
 * The surprising rule: of several shapes of execution that are launched the device takes one, as it
 * alone knows how dense the frames are (kernels/zstd_exec_copy.cuh). */
#pragma once
#include "gpu/graph.h"
#include "kernels/blosc_abi.h"
#include "stage/zstd_kernels.h"
#include "stage/zstd_layout.h"

/* Which kernels run; zero chooses by the number of jobs and bytes. Every choice gives the same
 * bytes. */
enum {
    DAMACY__ZSTD_LANES = 1,
    DAMACY__ZSTD_SPLIT = 2,
    DAMACY__ZSTD_SPLIT_SMALL = 3,
    DAMACY__ZSTD_SPLIT4 = 4
};
typedef struct damacy__zstd_options {
    uint32_t literals; /* DAMACY__ZSTD_LANES ... */
    uint32_t early;    /* literals of blocks with sequences beside those, in a pass of their own:
                          DAMACY__ZSTD_FLAG_EARLY, alone or with EARLY_FEW */
    uint32_t fse;      /* DAMACY__ZSTD_FLAG_FSE_* */
    uint32_t execute;  /* DAMACY__ZSTD_EXECUTE_*, one or several */
    uint32_t apart;    /* DAMACY__ZSTD_FLAG_APART: frames much larger than others beside these */
    uint32_t turns;    /* DAMACY__ZSTD_FLAG_TURNS: by a third as many blocks of threads as frames */
} damacy__zstd_options;

/* One wave. The tables are read while the kernels run. */
typedef struct damacy__zstd_call {
    uint64_t jobs;        /* device address of damacy__job[] */
    uint64_t n_jobs;      /* device address of uint32_t: jobs in the table, at most max_jobs of the
                             layout */
    uint64_t results;     /* device address of damacy__job_result[max_jobs] */
    uint64_t scratch;     /* device address of layout->size bytes, 256-byte aligned */
    uint32_t likely_jobs; /* for the choice of kernels, right or not; 0: max_jobs */
    uint64_t likely_size; /* output bytes, likewise; 0: dst_size */
    uint64_t likely_most; /* of the largest job, likewise; 0: as of the others */
    damacy__stream stream;
    damacy__graph_draft* draft; /* takes what is queued; NULL: the streams do */
    bool is_alone; /* kernels on `stream` alone: the side streams may be in use, or it captures */
    /* jobs of blosc chunks: their wave with addresses of the device, whose moves are made as well,
       and the kernels of kernels/zstd_blosc.cu; or NULL, and these do not matter */
    const damacy__blosc_wave* blosc;
    const damacy__kernel* blosc_kernels;
    uint32_t n_concurrent; /* waves that run at the same time, with this one: of two or more each
                              takes no more of the device than helps; 0: 1 */
    uint32_t n_held;       /* multiprocessors that hold other kernels' blocks for long */
    const damacy__event* marks; /* recorded after each stage if not NULL, DAMACY__ZSTD_STAGES; of
                                   the last part */
    damacy__zstd_options options;
} damacy__zstd_call;

/* Stages in order, for marks. */
enum {
    DAMACY__ZSTD_STAGE_PARSE = 0,   /* count, fill */
    DAMACY__ZSTD_STAGE_PREPARE = 1, /* trees, tables, order */
    DAMACY__ZSTD_STAGE_FSE = 2,
    DAMACY__ZSTD_STAGE_LITERALS = 3, /* lists: early ones end with the last of all */
    DAMACY__ZSTD_STAGE_RESOLVE = 4,
    DAMACY__ZSTD_STAGE_PLACE = 5, /* and what is left of all literals */
    DAMACY__ZSTD_STAGE_EXECUTE = 6,
    DAMACY__ZSTD_STAGE_FINISH = 7,
    DAMACY__ZSTD_STAGES = 8
};

/* What the launches of a wave have in common. */
typedef struct damacy__zstd_pass {
    const damacy__zstd_kernels* kernels;
    damacy__device* device;
    const damacy__zstd_call* call;
    damacy__zstd_wave wave;
    uint32_t n_jobs;    /* likely */
    uint32_t n_blocks;  /* likely */
    bool is_few;        /* so few blocks that sequences take the shape for latency */
    uint64_t size_each; /* likely, of a job's output */
    uint64_t size_most; /* likewise, of the largest */
    damacy__zstd_options options;
    uint32_t division; /* of what is launched next; 0: the driver's choice */
    uint32_t also;     /* flags that the next launch alone has besides */
    bool is_beside[3]; /* side streams that hold kernels of this wave, not yet waited for */
} damacy__zstd_pass;

/* Whether other waves run at the same time. */
static bool damacy__zstd_has_company(const damacy__zstd_pass* run)
{
    return run->call->n_concurrent > 1;
}

/* Blocks of the jobs if all are of one size. */
static uint64_t damacy__zstd_likely_blocks(const damacy__zstd_pass* run)
{
    return run->n_jobs * DAMACY__MAX(damacy__div_up(run->size_each, DAMACY__ZSTD_BLOCK_MAX), 1);
}

/* Multiprocessors whose shared memory is free. */
static uint32_t damacy__zstd_n_free(const damacy__zstd_pass* run)
{
    const uint32_t n = run->device->n_multiprocessors;

    return n - DAMACY__MIN(run->call->n_held, n / 2);
}

/* The shape of sequences beside other waves. That for few blocks takes three fifths of the time and
 * two and a half times as many multiprocessors: as long as all waves find room at once, or nearly.
 * Of blosc chunks the device alone knows how many blocks they are. */
static uint32_t damacy__zstd_choose_fse(const damacy__zstd_pass* run)
{
    const uint64_t groups =
        damacy__div_up(damacy__zstd_likely_blocks(run), DAMACY__ZSTD_FSE_LATENCY_BLOCKS);
    const uint64_t room = 8ull * damacy__zstd_n_free(run) / 7;

    return !run->call->blosc && groups <= room / run->call->n_concurrent
               ? DAMACY__ZSTD_FLAG_FSE_LATENCY
               : DAMACY__ZSTD_FLAG_FSE_THROUGHPUT;
}

/* Relays for blosc chunks, of whose blocks all multiprocessors share those that are large, if the
 * wave is alone. Blocks are at least as many as chunks, and no larger. */
static uint32_t damacy__zstd_choose_blosc_relays(const damacy__zstd_pass* run)
{
    const uint32_t n_mp = run->device->n_multiprocessors;
    const uint64_t n_chunks = run->n_jobs * run->size_each / DAMACY__MAX(run->size_most, 1);
    const bool are_few = 5 * run->n_jobs <= 3 * n_mp;
    const uint64_t least = are_few ? DAMACY__ZSTD_RELAY_SIZE / 4 : DAMACY__ZSTD_RELAY_SIZE;

    if (run->size_most < DAMACY__ZSTD_RELAY_LEAST(least) || n_chunks > 2 * n_mp ||
        damacy__zstd_has_company(run)) {
        return 0;
    }
    return run->kernels->tiles & ((3 * n_chunks <= n_mp ? DAMACY__ZSTD_EXECUTE_WIDE : 0u) |
                                  (3 * run->n_jobs > n_mp ? DAMACY__ZSTD_EXECUTE_RELAY : 0u));
}

/* Execution of blosc chunks. How many frames they are, a block each, the device alone knows: so it
 * has more shapes to choose from, as what does not run costs little beside what the wrong one
 * takes. Fewer than 50 are not worth what idle launches take. */
static uint32_t damacy__zstd_choose_blosc(const damacy__zstd_pass* run)
{
    const uint32_t n = run->n_jobs, relays = damacy__zstd_choose_blosc_relays(run);
    const uint32_t few = n <= 200 || relays ? DAMACY__ZSTD_EXECUTE_1024X3 : 0;
    const uint32_t hundreds = DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_256X2_SERIAL;

    if (relays == DAMACY__ZSTD_EXECUTE_WIDE) {
        return relays;
    }
    if (n <= 200) {
        return relays | few | (n >= 50 ? hundreds : 0);
    }
    return relays | few | DAMACY__ZSTD_EXECUTE_64X4_SERIAL |
           (n <= 600 ? hundreds
                     : DAMACY__ZSTD_EXECUTE_128X4_3K | DAMACY__ZSTD_EXECUTE_128X2_SERIAL);
}

/* Execution of few frames, which all multiprocessors share if they are large, but not beside other
 * waves, whose sequences need whole ones. The fewer frames and the denser, which the kernels see,
 * the more their tiles wait for each other: then they are done sooner one at a time. With a frame
 * for nearly every multiprocessor a block of threads each is fastest, and from three fifths of one
 * on another shape is, if they shrink to little. */
static uint32_t damacy__zstd_choose_few(const damacy__zstd_pass* run)
{
    const uint32_t n = run->device->n_multiprocessors;
    const bool are_few = 5 * run->n_jobs <= 3 * n;
    const bool has_other = run->kernels->tiles & DAMACY__ZSTD_EXECUTE_1024X3; /* for dense frames */
    const uint32_t serial = are_few || !has_other ? 0 : DAMACY__ZSTD_EXECUTE_128X2_SERIAL;
    const uint32_t least = are_few            ? DAMACY__ZSTD_RELAY_SIZE / 4
                           : run->n_jobs <= n ? 2 * DAMACY__ZSTD_RELAY_SIZE
                                              : DAMACY__ZSTD_RELAY_SIZE;

    if (run->size_each < least || !(run->kernels->tiles & DAMACY__ZSTD_EXECUTE_RELAY) ||
        damacy__zstd_has_company(run)) {
        return serial | DAMACY__ZSTD_EXECUTE_1024X3;
    }
    if (3 * run->n_jobs <= n) {
        return DAMACY__ZSTD_EXECUTE_WIDE;
    }
    if (are_few) {
        return DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE;
    }
    if (run->n_jobs > n) {
        return serial | DAMACY__ZSTD_EXECUTE_RELAY;
    }
    return serial | DAMACY__ZSTD_EXECUTE_1024X3 |
           (10 * run->n_jobs <= 9 * n ? DAMACY__ZSTD_EXECUTE_RELAY : 0);
}

/* Whether frames are so many that a block of threads each is best. Beside other waves fewer are, as
 * theirs are there, too; alone, large ones are shared up to two a multiprocessor. */
static bool damacy__zstd_are_many(const damacy__zstd_pass* run)
{
    const bool are_large = run->size_each >= DAMACY__ZSTD_RELAY_SIZE;
    const bool can_share = are_large && run->kernels->tiles & DAMACY__ZSTD_EXECUTE_RELAY;

    if (damacy__zstd_has_company(run)) {
        const uint64_t all = (uint64_t)run->n_jobs * run->call->n_concurrent;
        return are_large ? run->n_jobs > 150 : all > 300;
    }
    return run->n_jobs > (can_share ? 2 * run->device->n_multiprocessors : 200);
}

/* Whether the largest frame is so much larger than others that it would take a block of threads
 * longer than all multiprocessors take for all. Not for as few as are executed by links. */
static bool damacy__zstd_is_mixed(const damacy__zstd_pass* run)
{
    const uint64_t parts = 2ull * run->device->n_multiprocessors;

    return run->kernels->tiles & DAMACY__ZSTD_EXECUTE_RELAY && !run->call->blosc &&
           !damacy__zstd_has_company(run) && run->n_jobs > 8 &&
           run->size_most >= DAMACY__ZSTD_RELAY_SIZE / 2 && run->size_most > 3 * run->size_each &&
           parts * run->size_most > run->n_jobs * run->size_each;
}

/* Execution of many frames, by a shape of two where the device finds that they shrink to little,
 * and of those with many short segments by one for thousands, but if they are large. */
static uint32_t damacy__zstd_choose_many(const damacy__zstd_pass* run)
{
    const uint32_t n = run->n_jobs;
    const bool are_large = run->size_each >= 3 * DAMACY__ZSTD_BLOCK_MAX;
    const bool has_company = damacy__zstd_has_company(run);
    const uint32_t serial = n > 8 * run->device->n_multiprocessors /* held at once */
                                ? DAMACY__ZSTD_EXECUTE_64X4_SERIAL
                                : DAMACY__ZSTD_EXECUTE_128X2_SERIAL;

    if (n <= 300 && has_company) {
        return serial | DAMACY__ZSTD_EXECUTE_256X4;
    }
    if (n <= 1000 && has_company) { /* small blocks of threads find room */
        return serial | DAMACY__ZSTD_EXECUTE_128X4 |
               (are_large ? DAMACY__ZSTD_EXECUTE_256X4 : DAMACY__ZSTD_EXECUTE_128X4_3K);
    }
    if (n <= 600 || run->call->is_alone) { /* others would run one after another */
        return serial | (n > 1000 ? DAMACY__ZSTD_EXECUTE_128X4 : DAMACY__ZSTD_EXECUTE_256X4);
    }
    return serial | DAMACY__ZSTD_EXECUTE_128X4 | DAMACY__ZSTD_EXECUTE_128X2 |
           (n > 1000 && (!are_large || has_company) ? DAMACY__ZSTD_EXECUTE_128X4_3K
                                                    : DAMACY__ZSTD_EXECUTE_256X4);
}

/* The kind of records: of sequences for blosc chunks, whose lengths are long, where all that is
 * launched can read them. Frames by themselves lose as much as these gain. */
static uint32_t damacy__zstd_choose_records(const damacy__zstd_pass* run)
{
    return run->call->blosc && !(run->options.execute & ~DAMACY__ZSTD_EXECUTE_SEQUENCES)
               ? DAMACY__ZSTD_FLAG_BY_SEQUENCE
               : 0;
}

/* By lanes where all multiprocessors have their share of them, four streams a block, and not for
 * blosc, whose planes differ in their literals; else by shares, smaller ones beside other waves. */
static uint32_t damacy__zstd_choose_literals(const damacy__zstd_pass* run)
{
    if (!run->call->blosc && damacy__zstd_likely_blocks(run) >= 5800) {
        return DAMACY__ZSTD_LANES;
    }
    if (run->n_blocks < 200) {
        return DAMACY__ZSTD_SPLIT4;
    }
    return damacy__zstd_has_company(run) ? DAMACY__ZSTD_SPLIT_SMALL : DAMACY__ZSTD_SPLIT;
}

/* Whether literals with tables of 11 bits, which leave room for few lanes, go by lanes as all
 * others do: early ones, as shares would hold up the sequences beside them, and those of small
 * frames, for which a table takes longer to build than to use. */
static bool damacy__zstd_lanes_of_11(const damacy__zstd_pass* run, bool is_early)
{
    return is_early || run->size_each < DAMACY__ZSTD_BLOCK_MAX / 2;
}

/* Fills in what the caller left open. Switch points measured on an H200 (132 multiprocessors). */
static void damacy__zstd_choose(damacy__zstd_pass* run)
{
    damacy__zstd_options* o = &run->options;
    const bool has_links = run->wave.links_size != 0, is_open = o->literals == 0;
    const uint32_t tiles =
        run->kernels->tiles | (run->call->blosc ? DAMACY__ZSTD_EXECUTE_SERIAL : 0);

    if (is_open) {
        o->literals = damacy__zstd_choose_literals(run);
    }
    if (o->literals == DAMACY__ZSTD_SPLIT4 && !run->kernels->has_split4) {
        o->literals = DAMACY__ZSTD_SPLIT;
    }
    /* Beside sequences they take what the multiprocessors that are done first leave: by shares they
       always gain, by lanes if they are few, which the device knows. */
    if (is_open && !run->call->is_alone) {
        o->early = DAMACY__ZSTD_FLAG_EARLY |
                   (o->literals == DAMACY__ZSTD_LANES ? DAMACY__ZSTD_FLAG_EARLY_FEW : 0);
    }
    if (o->fse == 0 && damacy__zstd_has_company(run)) {
        o->fse = damacy__zstd_choose_fse(run);
    }
    if (o->execute == 0) {
        o->apart = damacy__zstd_is_mixed(run) ? DAMACY__ZSTD_FLAG_APART : 0;
        o->execute = run->call->blosc                         ? damacy__zstd_choose_blosc(run)
                     : o->apart || damacy__zstd_are_many(run) ? damacy__zstd_choose_many(run)
                                                              : damacy__zstd_choose_few(run);
        if (run->n_jobs <= 8 && has_links) {
            o->execute |= DAMACY__ZSTD_EXECUTE_LINKS;
        }
    }
    o->execute &= tiles | (has_links ? DAMACY__ZSTD_EXECUTE_LINKS : 0);
    /* Links take what fits; every frame has to find some kernel. */
    if (!(o->execute & tiles)) {
        o->execute |= DAMACY__ZSTD_EXECUTE_128X4_3K;
    }
    if (run->call->blosc && o->execute & DAMACY__ZSTD_EXECUTE_SERIAL) {
        o->execute &= DAMACY__ZSTD_EXECUTE_SEQUENCES;
    }
    if (o->execute & (DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE)) {
        o->apart = 0; /* all frames are shared */
    }
    run->wave.flags = o->execute | o->fse | o->turns | o->apart | damacy__zstd_choose_records(run);
}

/* Blocks of threads for kernels that take `per` jobs a block: for the likely ones, as every kernel
 * goes round with any grid, though never so few that many more would take long. */
static uint64_t damacy__zstd_grid_of(const damacy__zstd_pass* run, uint32_t per)
{
    const uint64_t likely = damacy__div_up(run->n_jobs, per);

    return DAMACY__MIN(damacy__div_up(run->wave.max_jobs, per),
                       DAMACY__MAX(likely, 16ull * run->device->n_multiprocessors));
}

/* The division of small kernels, those around execution or those before it. A multiprocessor that
 * is not idle keeps its division, so they matter for what comes after them. Beside other waves all
 * have the same, and find room next to each other. Else it is execution's where one shape takes all
 * frames, and the driver's choice where the device chooses between shapes. Measured. */
static uint32_t damacy__zstd_division_of(const damacy__zstd_pass* run, bool is_around)
{
    const damacy__zstd_tile tile = damacy__zstd_tile_of(DAMACY__ZSTD_TILE_256X4);
    const bool is_one_shape = run->n_jobs > 200 && run->n_jobs <= 1000;

    if (damacy__zstd_has_company(run)) {
        return damacy__zstd_division(run->device, 0);
    }
    if (!is_one_shape || run->options.literals != DAMACY__ZSTD_LANES) {
        return 0;
    }
    return is_around ? damacy__division_for(run->device, tile.per, tile.shared)
                     : damacy__zstd_division(run->device, 0);
}

/* Blocks of threads, two warps each, for kernels that take a block of the source by a warp. */
static uint64_t damacy__zstd_pairs(const damacy__zstd_pass* run)
{
    return DAMACY__MIN(damacy__div_up(run->n_blocks, 2), 8ull * run->device->n_multiprocessors);
}
