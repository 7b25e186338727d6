/* Types, job records and status codes shared by the host and every kernel: plain C that is also
 * C++ for NVRTC, which has no standard headers. Addresses are uint64_t because the host must not
 * dereference them; a kernel casts once, at the top. Sizes are in bytes unless named otherwise.
 * Kernels and this file include each other by the path from the repository root. */
#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#else
#include <assert.h>
#include <stdint.h>
#endif

/* A size that is not known before decoding. */
#define DAMACY__SIZE_UNKNOWN 0xffffffffffffffffull

/* Most bytes that one job may produce or consume. */
#define DAMACY__JOB_SIZE_MAX 0x7fffffffull

/* One piece of work of a decoder: bytes in, bytes out. Any alignment, any size; neither range may
 * overlap the output of another job. A table of jobs may be written by the host or by a kernel
 * that runs earlier on the same stream. */
typedef struct damacy__job {
    uint64_t src;      /* device address of the first compressed byte */
    uint64_t dst;      /* device address of the first output byte */
    uint64_t src_size; /* at most DAMACY__JOB_SIZE_MAX */
    uint64_t
        dst_capacity; /* bytes that may be written at dst; more than the maximum is the maximum */
    uint64_t expected_size; /* output bytes demanded exactly, or DAMACY__SIZE_UNKNOWN */
    uint32_t flags;         /* DAMACY__JOB_* flags */
    uint32_t tag;           /* the caller's; kernels read it of JOB_SHUFFLED (blosc_abi.h) and of
                             * LZ4_PLANE (lz4_abi.h) alone */
} damacy__job;
static_assert(sizeof(damacy__job) == 48, "ABI");

enum {
    DAMACY__JOB_NO_CHECKSUM = 1, /* checksums in the data are not verified */
    DAMACY__JOB_SKIP = 2 /* nothing is read or written; the result says DAMACY__JOB_SKIPPED */
};

/* What became of a job. The status is written last. */
typedef struct damacy__job_result {
    uint64_t size;         /* output bytes, 0 unless the status is OK; see also NO_SPACE */
    uint64_t error_offset; /* byte of the source at which the first error was noticed */
    uint32_t status;       /* one of DAMACY__JOB_OK ... */
    uint32_t zero;
} damacy__job_result;
static_assert(sizeof(damacy__job_result) == 24, "ABI");

/* Bytes that move from one place to another that does not overlap it, at any alignment. */
typedef struct damacy__move {
    uint64_t src;
    uint64_t dst;
    uint64_t size;
} damacy__move;
static_assert(sizeof(damacy__move) == 24, "ABI");

/* damacy_gather (kernels/copy.cu): the largest move; threads of a block, blocks of threads. */
#define DAMACY__GATHER_MAX     32768u
#define DAMACY__GATHER_THREADS 512u
#define DAMACY__GATHER_BLOCKS  8u

/* Status of a job. Every code but OK leaves the output range with unspecified bytes (never bytes
 * from outside the source), and no code ever concerns another job. Ordered: codes below
 * TRUNCATED say nothing about the data. */
enum {
    DAMACY__JOB_OK = 0,
    DAMACY__JOB_NOT_RUN = 1,      /* the kernels did not reach the job */
    DAMACY__JOB_SKIPPED = 2,      /* the job asked for it, or what made the job had failed */
    DAMACY__JOB_NEED_SCRATCH = 3, /* scratch was too small: run the job again in a smaller wave */
    DAMACY__JOB_TOO_LARGE = 4,    /* source above DAMACY__JOB_SIZE_MAX */
    DAMACY__JOB_NO_SPACE = 5,     /* output does not fit; size holds the need where it is known */
    DAMACY__JOB_UNSUPPORTED = 6,  /* a legal feature that is not implemented (dictionary, ...) */
    DAMACY__JOB_TRUNCATED = 16,   /* source ends inside a structure */
    DAMACY__JOB_BAD_MAGIC = 17,
    DAMACY__JOB_BAD_HEADER = 18,
    DAMACY__JOB_BAD_BLOCK = 19,
    DAMACY__JOB_BAD_LITERALS = 20,
    DAMACY__JOB_BAD_HUFFMAN = 21,
    DAMACY__JOB_BAD_TABLE = 22,
    DAMACY__JOB_BAD_SEQUENCES = 23,
    DAMACY__JOB_BAD_OFFSET = 24, /* a match starts before the data */
    DAMACY__JOB_SIZE_MISMATCH =
        25, /* decoded size is not the size in the frame or the one demanded */
    DAMACY__JOB_BAD_CHECKSUM = 26,
    DAMACY__JOB_TRAILING = 27 /* bytes after the end that are not a frame */
};
