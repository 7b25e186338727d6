/* Records of the Zstandard decoder (RFC 8878), shared by the host and the kernels of zstd.cu.
 *
 * One wave decodes a table of jobs. The entries run in this order with no read-back; every count
 * is on the device, so grids are persistent or sized by capacity. What does not need the other may
 * run at the same time: the first order and tables, which fse needs; trees, the second order and
 * the early literals, which neither fse nor resolve and place need; the late literals and place.
 *
 *   count     warp or thread per job: checks every header, counts frames, blocks, literals and
 *             records; their sums in each part of the jobs
 *   fill      places of the jobs' shares in scratch, one behind the other; the counters; warp or
 *             thread per job: walks the headers again, fills frames, blocks, keys, trees
 *   order     lists of blocks with sequences and of frames, of each part of them most work first
 *   tables    FSE table descriptions -> their places and the place of the bit stream
 *   trees     Huffman tree descriptions -> weights
 *   order     again, with FLAG_LITERALS: lists of blocks with Huffman literals, unless these have
 *             FLAG_ONE_LIST and were made with the others
 *   literals  with FLAG_EARLY, of blocks with sequences: Huffman streams -> scratch
 *   fse       sequences -> records, block sizes, outgoing repeat offsets
 *   resolve   warp per job: places of blocks and frames, incoming repeat offsets, sizes
 *   literals  with FLAG_LATE, all others: those of blocks without sequences go to the output
 *   place     raw and RLE blocks -> output, RLE literals -> scratch, symbolic offsets -> offsets;
 *             moves of a blosc wave; how dense the frames are
 *   execute   records -> output; of blosc blocks, their byte shuffle undone
 *   cut, relay  the same of frames too few to fill the device: cut into tiles, shared by tickets
 *   finish    frame checksums, results
 *
 * The surprising rule: an error never stops a stage, it lowers the job's word in `errors`
 * (damacy__zstd_fail) and the next stages find the job's blocks without a place. Words are
 * minima, so the error reported does not depend on scheduling. */
#pragma once

#include "kernels/abi.h"

/* Most bytes that a block may regenerate or occupy (RFC 8878 section 3.1.1.2.4). */
#define DAMACY__ZSTD_BLOCK_MAX 131072u
/* Most sequences of a legal block: a match is at least 3 bytes. */
#define DAMACY__ZSTD_SEQUENCES_MAX 43690u
#define DAMACY__ZSTD_NONE          0xffffffffu
#define DAMACY__ZSTD_NO_ERROR      0xffffffffffffffffull
/* Set in the word of an error that counts only if there is no other: what is wrong with a job's
 * size once all its blocks have one. */
#define DAMACY__ZSTD_LAST_ERROR 0x8000000000000000ull

/* ---- Records, 8 bytes, in output order. A wave has one kind.
 *
 * Of a segment (one literal run or one match):
 *
 *   bits  0-16  start: first output byte, relative to the block
 *   bits 17-33  length - 1
 *   bits 34-63  D: LITERALS | position of the run in the block's literals (bits 0-16), or the
 *               offset of a match, 1 ... OFFSET_MAX, or a symbolic offset
 *
 * The writer (fse) guarantees, also for hostile data: no empty run, each record starts where the
 * one before it ended, the first starts at 0, the lengths sum to the block's size, literal runs
 * lie inside and in order use up exactly the block's literals (the tail after the last sequence
 * included).
 *
 * Of a sequence (a literal run, which may be empty, and a match), with FLAG_BY_SEQUENCE: fewer, and
 * more work each, which gains where lengths are long:
 *
 *   bits  0-16  start: first output byte of both, relative to the block
 *   bits 17-33  position of the run in the block's literals
 *   bits 34-63  D: the offset of the match, 1 ... OFFSET_MAX, or a symbolic offset
 *
 * Lengths follow from the record after it, of the last one from the block's size and number of
 * literals; a difference of starts of 0 is 2^17. Literals after the last sequence, if there are
 * some, have a record of their own, without a match and with D 0. The writer guarantees: starts and
 * positions grow from 0 to the block's size and its number of literals, and a match is at least 3
 * bytes long, so that literals are fewer than 2^17.
 *
 * A symbolic offset is SYMBOLIC | k << 18 | (2^18 - 1 - d): the block's incoming repeat offset k
 * (0, 1, 2) minus d, so that both kinds are one less when decremented. `place` rewrites those to
 * plain ones, so execute sees none. */
#define DAMACY__ZSTD_D_LITERALS 0x20000000u
#define DAMACY__ZSTD_D_SYMBOLIC 0x1ff00000u /* bits 18 and 19 are clear */
#define DAMACY__ZSTD_OFFSET_MAX 0x1fefffffu /* a larger offset is DAMACY__JOB_BAD_OFFSET */

enum { /* damacy__zstd_block.type */
       DAMACY__ZSTD_RAW = 0,
       DAMACY__ZSTD_RLE = 1,
       DAMACY__ZSTD_LITERALS = 2, /* Huffman literals and no sequence: decoded in place */
       DAMACY__ZSTD_SEQUENCES = 3 /* at least one sequence */
};

enum { /* damacy__zstd_block.literal_type, as in the literals section header */
       DAMACY__ZSTD_LITERALS_RAW = 0,
       DAMACY__ZSTD_LITERALS_RLE = 1,
       DAMACY__ZSTD_LITERALS_HUFFMAN = 2,
       DAMACY__ZSTD_LITERALS_TREELESS = 3
};

enum { DAMACY__ZSTD_LL = 0, DAMACY__ZSTD_OF = 1, DAMACY__ZSTD_ML = 2 }; /* order of the tables */

enum { /* compression mode of a table, 2 bits each in damacy__zstd_block.modes */
       DAMACY__ZSTD_PREDEFINED = 0,
       DAMACY__ZSTD_MODE_RLE = 1,
       DAMACY__ZSTD_MODE_FSE = 2,
       DAMACY__ZSTD_MODE_REPEAT = 3
};

/* A frame inside a job; a job may hold several, one after another, and skippable frames, which
 * leave no record. Frames of a job are neighbours in the table, in order. */
typedef struct damacy__zstd_frame {
    uint64_t dst;               /* resolve: address of its first output byte; 0 = dead, skip it */
    uint64_t content_size;      /* from the header, or DAMACY__SIZE_UNKNOWN */
    uint64_t checksum;          /* address of the four checksum bytes to verify, or 0 */
    uint32_t job;               /* index of its job */
    uint32_t first_block;       /* its blocks are neighbours in the table, in order */
    uint32_t n_blocks;          /* empty raw and RLE blocks leave no record and do not count */
    uint32_t n_sequence_blocks; /* blocks of type SEQUENCES; 0: nothing to execute */
    uint32_t size;              /* resolve: output bytes, at most 2^31 - 1 */
    uint32_t n_records;         /* records of all its blocks; before resolve those that have room */
    uint64_t done;              /* cut: 0; relay: tiles that are done << 32 | their end */
    uint32_t n_tiles;           /* cut: tiles of all its blocks; 0: not for relay */
    uint32_t turn;              /* fill: 0; execute: see zstd_exec_turn.cuh */
} damacy__zstd_frame;
static_assert(sizeof(damacy__zstd_frame) == 64, "ABI");

/* A block. Fields without a stage name are set by fill and then constant.
 *
 * What count has checked: every range lies inside its job's source; n_literals <= max_size <=
 * BLOCK_MAX; n_sequences <= SEQUENCES_MAX and 3 * n_sequences + n_literals <= max_size; modes have
 * no reserved bits; a REPEAT table has a defining block in the same frame, whose mode is not
 * REPEAT; a RLE or FSE table has at least one byte. What it has not: the table descriptions
 * (tables) and all bit streams. */
typedef struct damacy__zstd_block {
    uint64_t src;           /* RAW: bytes. RLE: the byte */
    uint64_t literals;      /* SEQUENCES: address of the regenerated literals, which the source (raw
                               literals, any alignment) or scratch (32-byte aligned) holds; they
                               have no padding in the source. LITERALS: set by resolve to dst */
    uint64_t literal_src;   /* Huffman: what follows the literals header. RLE literals: the byte */
    uint64_t sequence_src;  /* what follows the modes byte: table descriptions, then bit stream */
    uint64_t first_record;  /* SEQUENCES: index of its first record, a multiple of 16 */
    uint64_t dst;           /* resolve: address of its first output byte; 0 = dead, skip it */
    uint32_t frame;         /* index of its frame */
    uint32_t literal_size;  /* bytes at literal_src */
    uint32_t n_literals;    /* regenerated literals */
    uint32_t sequence_size; /* bytes at sequence_src up to the end of the block */
    uint32_t n_sequences;
    uint32_t max_size;        /* most bytes that the block may regenerate: min(window, BLOCK_MAX) */
    uint32_t size;            /* regenerated bytes; SEQUENCES: 0 until fse sets it */
    uint32_t position;        /* resolve: its first output byte, relative to the frame */
    uint32_t tree;            /* Huffman: index of its tree (its own or an earlier block's) */
    uint32_t tables[3];       /* SEQUENCES: per table the block that defines it (itself unless mode
                                 REPEAT); LL, OF, ML */
    uint32_t table_at[3];     /* tables: place of its own descriptions, relative to sequence_src;
                                 unused entries are 0 */
    uint32_t bits_at;         /* tables: place of the bit stream, relative to sequence_src */
    uint32_t bits_size;       /* tables: bytes of the bit stream, at least 1; 0 = broken, skip it */
    uint32_t n_records;       /* fse; room is for record_capacity */
    uint32_t n_symbolic;      /* fse: records from this one on have no symbolic offset */
    uint32_t record_capacity; /* min(2 * n_sequences, n_sequences + n_literals) + 1, enough; if
                                 is_tight what is likely; fse: more where that was too little;
                                 n_sequences + 1 with FLAG_BY_SEQUENCE */
    uint32_t repeat_out[3];   /* fse: repeat offsets after the block, plain or symbolic D */
    uint32_t repeat_in[3];    /* resolve: repeat offsets before the block, plain */
    uint8_t type;             /* DAMACY__ZSTD_RAW ... */
    uint8_t literal_type;     /* DAMACY__ZSTD_LITERALS_RAW ... */
    uint8_t n_streams;        /* Huffman: 1 or 4 */
    uint8_t modes;            /* own modes: LL in bits 0-1, OF in 2-3, ML in 4-5 */
    uint32_t state;           /* fse: DAMACY__ZSTD_TO_DECODE ... */
} damacy__zstd_block;
static_assert(sizeof(damacy__zstd_block) == 160, "ABI");

/* States of a block with sequences. */
enum { DAMACY__ZSTD_TO_DECODE = 0, DAMACY__ZSTD_DECODED = 1, DAMACY__ZSTD_AGAIN = 2 };

/* Which lists of order a block goes to, and its size class in each: what a single multiprocessor
 * reads of every block lies side by side. fill sets it. */
typedef struct damacy__zstd_key {
    uint32_t what; /* KEY_SEQUENCES, KEY_LITERALS; class among sequences in bits 0-15, among
                      literals in bits 16-23 */
    uint32_t tree; /* of the block */
} damacy__zstd_key;
static_assert(sizeof(damacy__zstd_key) == 8, "ABI");

#define DAMACY__ZSTD_KEY_SEQUENCES 0x80000000u /* the block has some */
#define DAMACY__ZSTD_KEY_LITERALS  0x40000000u /* it has literals that Huffman codes tell */

/* A Huffman tree description and, after trees, its weights. */
typedef struct damacy__zstd_tree {
    uint64_t src;   /* address of the description */
    uint32_t limit; /* bytes that may be read there: the whole literals section */
    uint32_t block; /* block that holds it */
    uint32_t size;  /* trees: bytes of the description; 0 = broken */
    uint32_t log;   /* trees: table log 1-11; 0 = broken */
    uint32_t zero[2];
    uint32_t weights[32]; /* trees: 256 weights of 4 bits, low nibble first */
} damacy__zstd_tree;
static_assert(sizeof(damacy__zstd_tree) == 160, "ABI");

/* What count found in a job, and where fill has put it. A job that is broken has no frames, blocks,
 * trees, literals and records. */
typedef struct damacy__zstd_span {
    uint64_t n_literal_bytes, n_records; /* multiples of 32 and of 16 */
    uint32_t n_frames, n_blocks, n_trees;
    uint32_t n_spared; /* of the records, 16 each, those that are not needed if all is as likely */
    uint64_t first_literal_byte, first_record; /* likewise */
    uint32_t first_frame, first_block, first_tree;
    uint32_t is_placed; /* 0: there was no room */
} damacy__zstd_span;
static_assert(sizeof(damacy__zstd_span) == 64, "ABI");

/* The same of all jobs of a part, or of several. There are at most 2^PARTS_LOG parts of 2^PART_LOG
 * jobs or more. */
typedef struct damacy__zstd_sum {
    uint64_t n_literal_bytes, n_records;
    uint64_t n_likely; /* records, if all is as likely */
    uint32_t n_frames, n_blocks, n_trees;
    uint32_t zero[3];
} damacy__zstd_sum;
static_assert(sizeof(damacy__zstd_sum) == 48, "ABI");

#define DAMACY__ZSTD_PARTS_LOG 9u
#define DAMACY__ZSTD_PARTS     (1u << DAMACY__ZSTD_PARTS_LOG)
#define DAMACY__ZSTD_PART_LOG  2u
#define DAMACY__ZSTD_LIST_PART 16384u /* blocks or frames of a part, for order */

/* Counts within the tables: what did not fit is not counted. */
typedef struct damacy__zstd_counters {
    uint64_t n_literal_bytes;             /* fill: used of the literal scratch */
    uint64_t n_records;                   /* fill: used of the record scratch */
    uint64_t n_more_records;              /* fse: used beyond these, where likely was too little */
    uint64_t n_link_bytes;                /* for execute */
    uint32_t n_frames, n_blocks, n_trees; /* fill */
    uint32_t n_sequence_blocks;           /* order: entries of sequence_order */
    uint32_t n_literal_blocks[3]; /* order: early blocks in literal_order, by table log: <= 9, 10,
                                     11 */
    uint32_t n_late_blocks[3];    /* order: all others, likewise */
    uint32_t n_execute;           /* order: entries of execute_list; place: less n_apart */
    uint32_t n_refused;           /* fill: jobs that got NEED_SCRATCH */
    uint32_t ticket[3]; /* for persistent grids: 0 is fse's, 1 relay's; 2: most tiles of a frame */
    uint32_t density;   /* place: records per KB of the frames to execute, from 32 of them */
    uint32_t most_dense; /* place: of the one with the most records */
    uint32_t is_tight;   /* fill: not all records that there may be have room */
    uint32_t n_left;    /* fse: blocks of threads that have left their multiprocessors to others */
    uint32_t n_taken;   /* execute: frames that a block of threads has or has ended */
    uint32_t n_ended;   /* execute: frames that have ended */
    uint32_t next_entry; /* execute: where to look for one that waits, modulo n_execute, or how
                            many have been taken in line */
    uint32_t literals;   /* place: bytes of literals per KB of the frames that density is of */
    uint32_t n_lists_taken[2]; /* order: parts of lists, those of literals by a pass of its own */
    uint32_t n_lists_done[3];  /* order: parts of the blocks with sequences, frames, literals */
    uint32_t n_apart; /* place: frames in the list of keys; those are no more in execute_list */
    uint32_t mean_size; /* place: bytes of the frames that density is of */
} damacy__zstd_counters;
static_assert(sizeof(damacy__zstd_counters) == 152, "ABI");

/* ---- Flags of a wave, and what the host has to know of shapes. */

/* Variants of execution that are launched. Each takes the frames for which it is the best of them;
 * with one bit set, or if frames are more than 200 or shrink to little, one takes all. */
#define DAMACY__ZSTD_EXECUTE_LINKS    0x10000u  /* a few large frames, all blocks at once */
#define DAMACY__ZSTD_EXECUTE_1024X3   0x20000u  /* up to a few hundred frames */
#define DAMACY__ZSTD_EXECUTE_256X4    0x40000u  /* hundreds of frames */
#define DAMACY__ZSTD_EXECUTE_128X4    0x80000u  /* from 600 frames on */
#define DAMACY__ZSTD_EXECUTE_128X4_3K 0x100000u /* thousands of many short segments */
#define DAMACY__ZSTD_EXECUTE_RELAY    0x200000u /* up to a few hundred large frames */
#define DAMACY__ZSTD_EXECUTE_WIDE     0x400000u /* the same of fewer, with more threads a tile */
#define DAMACY__ZSTD_EXECUTE_128X2    0x800000u /* the same of few long segments */
/* A tile's own matches by one warp. Of blosc chunks if their segments are not many: hundreds of
 * blocks (of these alone), about a thousand, and thousands. Of frames that shrink to little: up to
 * 1,000, and more. */
#define DAMACY__ZSTD_EXECUTE_256X2_SERIAL 0x1000000u
#define DAMACY__ZSTD_EXECUTE_128X2_SERIAL 0x2000000u
#define DAMACY__ZSTD_EXECUTE_64X4_SERIAL  0x4000000u
#define DAMACY__ZSTD_EXECUTE_SERIAL       0x7000000u /* these */
/* Shapes that there are for records of sequences, too: those for blosc. */
#define DAMACY__ZSTD_EXECUTE_SEQUENCES                                                          \
    (DAMACY__ZSTD_EXECUTE_1024X3 | DAMACY__ZSTD_EXECUTE_256X4 | DAMACY__ZSTD_EXECUTE_128X4_3K | \
     DAMACY__ZSTD_EXECUTE_RELAY | DAMACY__ZSTD_EXECUTE_WIDE | DAMACY__ZSTD_EXECUTE_SERIAL)
/* Most frames of blosc chunks for which the first two are taken, and 256X4, if chunks are more than
 * 200. */
#define DAMACY__ZSTD_SERIAL_FRAMES 1200u

#define DAMACY__ZSTD_LINK_FRAMES 64u /* most frames that are executed by links */

/* Force a shape of fse; neither: by the number of blocks. */
#define DAMACY__ZSTD_FLAG_FSE_LATENCY    0x100u /* another kernel, damacy_zstd_fse_few */
#define DAMACY__ZSTD_FLAG_FSE_THROUGHPUT 0x200u

/* Of order: the lists of literals, not the others. */
#define DAMACY__ZSTD_FLAG_LITERALS 0x1000u
/* Of order and of a pass over literals: those of blocks with sequences have a list and a pass of
 * their own, which needs no places of blocks. Else one list holds all. Of fse: that pass takes the
 * multiprocessors that it leaves. */
#define DAMACY__ZSTD_FLAG_EARLY 0x2000u
/* Of order, with EARLY: the device chooses, by bytes of literals for a record. */
#define DAMACY__ZSTD_FLAG_EARLY_FEW 0x4000u
/* Of order: literals have one list whatever their table log, so that it needs no trees: a third
 * block of threads makes it. Of literals by shares: they take this list, not that of 11 bits. */
#define DAMACY__ZSTD_FLAG_ONE_LIST 0x8000u
/* Of literals by lanes: tables of 9 bits are lanes10's, too, which evens out what multiprocessors
 * have to do. */
#define DAMACY__ZSTD_FLAG_NINE_AS_TEN 0x400u
/* Of all: records are of sequences. Shapes of execution for blosc blocks read these alone. */
#define DAMACY__ZSTD_FLAG_BY_SEQUENCE 0x80u
/* Of execute: frames take turns whenever one waits. */
#define DAMACY__ZSTD_FLAG_TURNS 0x40u
/* Of execute: frames take turns when it is worth it; the grid is what runs at once. */
#define DAMACY__ZSTD_FLAG_SHARED 0x20u
/* Of literals: the pass over all that are not early. */
#define DAMACY__ZSTD_FLAG_LATE 0x800u
/* Of place, cut and relay: frames much larger than the others have a list of their own, which lies
 * in the place of keys, and are relay's; all others are executed beside. */
#define DAMACY__ZSTD_FLAG_APART 0x10u
/* Such a frame has more than one of so many parts of all records: by a block of threads alone it
 * would take longer than all together do, two on each multiprocessor of an H200. */
#define DAMACY__ZSTD_APART 264u
/* And more than one of so many parts of what the largest has: as much faster that one is then. */
#define DAMACY__ZSTD_APART_LEAST 3u

/* Shapes of execution: threads, records a thread, bytes of a tile and of a chunk. */
#define DAMACY__ZSTD_SHAPE_1024X3       1024, 3, 16384, 8
#define DAMACY__ZSTD_SHAPE_256X4        256, 4, 7168, 8
#define DAMACY__ZSTD_SHAPE_128X4        128, 4, 4096, 8
#define DAMACY__ZSTD_SHAPE_128X4_3K     128, 4, 3072, 8
#define DAMACY__ZSTD_SHAPE_128X2        128, 2, 4096, 16
#define DAMACY__ZSTD_SHAPE_256X2_SERIAL 256, 2, 6144, 16
#define DAMACY__ZSTD_SHAPE_128X2_SERIAL 128, 2, 6144, 16
#define DAMACY__ZSTD_SHAPE_64X4_SERIAL  64, 4, 4096, 16

/* Dynamic shared memory of a shape: threads, records a thread, bytes of a tile. */
#define DAMACY__ZSTD_EXECUTE_SHARED(threads, segments, tile) \
    (8 * (threads) * (segments) + 4 * (tile) + (tile) / 64 + (tile) / 8 + 176)

/* The same of a shape that copies a tile's own matches by one warp. */
#define DAMACY__ZSTD_SERIAL_SHARED(threads, segments, tile) \
    (8 * (threads) * (segments) + (threads) * (segments) / 8 + 2 * (tile) + (tile) / 64 + 128)

/* What a launch of a shape needs, {threads, bytes of dynamic shared memory}, by its name: TILE or
 * SERIAL of DAMACY__ZSTD_SHAPE_*. */
#define DAMACY__ZSTD_TILE_NEEDS(...)   DAMACY__ZSTD_TILE_EACH(__VA_ARGS__)
#define DAMACY__ZSTD_SERIAL_NEEDS(...) DAMACY__ZSTD_SERIAL_EACH(__VA_ARGS__)
#define DAMACY__ZSTD_TILE_EACH(threads, segments, tile, chunk) \
    threads, DAMACY__ZSTD_EXECUTE_SHARED(threads, segments, tile)
#define DAMACY__ZSTD_SERIAL_EACH(threads, segments, tile, chunk) \
    threads, DAMACY__ZSTD_SERIAL_SHARED(threads, segments, tile)

/* The same of relay, and from which average size of jobs on it is worth to cut them. */
#define DAMACY__ZSTD_RELAY_SIZE 1048576u
#define DAMACY__ZSTD_RELAY_SHARED(threads, segments, tile) \
    ((DAMACY__ZSTD_EXECUTE_SHARED(threads, segments, tile) + 127) / 128 * 128 + 128)
#define DAMACY__ZSTD_RELAY_THREADS  512
#define DAMACY__ZSTD_RELAY_SEGMENTS 6
#define DAMACY__ZSTD_RELAY_TILE     16384
#define DAMACY__ZSTD_RELAY_PER      2u /* blocks of threads a multiprocessor, if they fit */
/* EXECUTE_WIDE, one a multiprocessor: the same tiles. */
#define DAMACY__ZSTD_WIDE_THREADS  1024
#define DAMACY__ZSTD_WIDE_SEGMENTS 3
/* What blocks of blosc chunks have on average that are of `size` but for the last, or more. */
#define DAMACY__ZSTD_RELAY_LEAST(size) (3 * ((size) / 4))

/* Dynamic shared memory of fse_few, 8 blocks a multiprocessor; where there is less, all. */
#define DAMACY__ZSTD_FSE_LATENCY_SHARED 182272u
#define DAMACY__ZSTD_FSE_LATENCY_BLOCKS 8u

/* Shared memory of one warp that decodes literals by lanes, its tables not included. */
#define DAMACY__ZSTD_LANE_SIZE 5504u
/* Dynamic shared memory of literals_lanes for tables of 9, 10 and 11 bits: enough wherever it
 * begins, at a multiple of 1024, as tables are aligned to their size. */
#define DAMACY__ZSTD_LANES9_SHARED  14336u
#define DAMACY__ZSTD_LANES10_SHARED 23552u
#define DAMACY__ZSTD_LANES11_SHARED 41984u
/* Of literals_split, where each lane decodes a share of a stream: the bits before it at which a
 * lane starts, and those behind it that decoding looks at. Of libzstd's codes in microscopy and
 * noise one of 30 to 1,000 shares has not synchronised after 256 bits, one of 170 to none after
 * 512. */
#define DAMACY__ZSTD_WARM       384u
#define DAMACY__ZSTD_PART_AHEAD 384u
/* Its shapes: warps a stream, the most symbols and bits of a share. The second is for waves beside
 * others, where it finds room four times, the third for few blocks. */
#define DAMACY__ZSTD_SHAPE_SPLIT       1u, 192u, 1440u
#define DAMACY__ZSTD_SHAPE_SPLIT_SMALL 1u, 160u, 1184u
#define DAMACY__ZSTD_SHAPE_SPLIT4      4u, 192u, 1440u
/* Bytes of shared memory for the bits of a warp's shares, and of a slot. */
#define DAMACY__ZSTD_PART_SIZE(share) \
    (32u * (share) / 8 + (DAMACY__ZSTD_WARM + DAMACY__ZSTD_PART_AHEAD) / 8 + 32u)
#define DAMACY__ZSTD_SLOT_SIZE(slot) ((slot) + 16u) /* odd times 16: no bank conflicts */
#define DAMACY__ZSTD_SPLIT_TOLD      512u
/* Dynamic shared memory of a shape, alignment of the table included. */
#define DAMACY__ZSTD_SPLIT_SHARED(...) DAMACY__ZSTD_SPLIT_NEEDS(__VA_ARGS__)
#define DAMACY__ZSTD_SPLIT_NEEDS(w, slot, share)                                       \
    ((2u << 11) +                                                                      \
     4u * (w) * (DAMACY__ZSTD_PART_SIZE(share) + 32u * DAMACY__ZSTD_SLOT_SIZE(slot)) + \
     ((w) > 1 ? DAMACY__ZSTD_SPLIT_TOLD : 0u) + 3072u)

/* The one parameter of every entry, passed by value. */
typedef struct damacy__zstd_wave {
    uint64_t jobs;     /* const damacy__job[max_jobs] */
    uint64_t n_jobs;   /* const uint32_t: jobs in the table; of those from first_job on, more than
                          max_jobs count as max_jobs */
    uint64_t results;  /* damacy__job_result[max_jobs] */
    uint64_t errors;   /* uint64_t[max_jobs]: source offset << 8 | status, or NO_ERROR;
                          SIZE_MISMATCH and NO_SPACE of resolve: size << 8 | status | LAST_ERROR */
    uint64_t spans;    /* damacy__zstd_span[max_jobs] */
    uint64_t counters; /* damacy__zstd_counters */
    uint64_t frames;   /* damacy__zstd_frame[max_frames] */
    uint64_t blocks;   /* damacy__zstd_block[max_blocks] */
    uint64_t trees;    /* damacy__zstd_tree[max_blocks]; cut: tiles of each block */
    uint64_t keys;     /* damacy__zstd_key[max_blocks]: of the blocks; place: see FLAG_APART */
    uint64_t logs;     /* uint32_t[max_blocks]: trees: their table logs again */
    uint64_t sequence_order;   /* uint32_t[max_blocks]: blocks of type SEQUENCES, of each
                                LIST_PART of the blocks most sequences first; cut: tiles of the
                                frame before a block */
    uint64_t literal_order[3]; /* uint32_t[max_blocks] each: blocks with Huffman literals, by
                                table log, of each LIST_PART largest first; the early ones from
                                the front, the others up to the end */
    uint64_t execute_list;     /* uint32_t[max_frames]: frames with sequences, of each LIST_PART
                                most records first */
    uint64_t literals;    /* scratch for literals and records together, 256-byte aligned: literals
                             from the front, records from the back; 64 spare bytes on both sides */
    uint64_t records;     /* uint64_t[max_records]: the same place */
    uint64_t links;       /* scratch of execute for few large frames, or 0 */
    uint64_t max_records; /* what that scratch could hold of records alone; a multiple of 16 */
    uint32_t first_job;   /* of the table that n_jobs counts; jobs and results begin there */
    uint32_t max_moves;
    uint64_t links_size;
    uint64_t chunks;  /* damacy__blosc_chunk[]: those of jobs with JOB_SHUFFLED, by tag; or 0 */
    uint64_t moves;   /* place: damacy__move[max_moves] that the caller wants made, or 0 */
    uint64_t n_moves; /* const uint32_t */
    uint32_t max_jobs, max_frames, max_blocks;
    uint32_t flags;
    uint64_t sums; /* damacy__zstd_sum[PARTS]: count: of the parts of the jobs */
} damacy__zstd_wave;
static_assert(sizeof(damacy__zstd_wave) == 224, "ABI");
