/* The records that the stages of one pipeline share: samples, batch slots, and the core that holds
 * them.
 *
 * The core is counted: the handle and every held batch hold one reference, so a batch outlives
 * damacy_destroy. Everything in it that is not marked otherwise is set at create and then constant.
 */
#pragma once
#include "base/arena.h"
#include "stage/catalog.h"
#include "stage/chunks.h"
#include "stage/config.h"
#include "stage/host_assemble.h"
#include "stage/host_decode.h"
#include "stage/mapped.h"
#include "stage/reads.h"
#include "stage/told.h"

typedef enum damacy__sample_state {
    DAMACY__SAMPLE_NEW = 0, /* its array is being fetched */
    DAMACY__SAMPLE_INDEXES, /* its indexes are being fetched */
    DAMACY__SAMPLE_SETTLED  /* ready to be planned, or failed */
} damacy__sample_state;

/* A pushed crop on its way to a batch. Queue: guarded by the core's mutex until it is settled by
 * the scheduler thread. In a slot: the scheduler's until the batch runs; then error and status are
 * guarded by the core's mutex. */
typedef struct damacy__crop {
    uint64_t number;
    damacy__array_entry* array;    /* pinned */
    damacy__index_entry** indexes; /* pinned; C order over the objects that are touched */
    const damacy__index** index_views;
    uint64_t n_indexes;
    uint64_t n_capacity;
    uint64_t n_settled; /* of the indexes */
    int64_t first_object[DAMACY_MAX_RANK];
    int64_t n_objects[DAMACY_MAX_RANK];
    damacy_interval box[DAMACY_MAX_RANK];
    uint32_t state;
    damacy_error error; /* error.status is the sample's status */
} damacy__crop;

enum { DAMACY__GATES = 4 }; /* of a slot; more become one */

typedef enum damacy__slot_state {
    DAMACY__SLOT_FREE = 0,
    DAMACY__SLOT_RUNNING,
    DAMACY__SLOT_READY,
    DAMACY__SLOT_HELD
} damacy__slot_state;

struct damacy__core;
struct damacy__slot;
struct damacy__gpu;

/* One read of a batch, and then its chunks. */
typedef struct damacy__read_task {
    damacy__task task;
    struct damacy__slot* slot;
    uint32_t read;                    /* into plan.reads */
    uint32_t n_pending;               /* atomic: chunks that still need the bytes */
    uint64_t ticket;                  /* of the staging ring */
    uint8_t* space;                   /* in the staging ring */
    const uint8_t* bytes;             /* what was read: at space, or in the mapping of file */
    struct damacy__mapped_file* file; /* not NULL: a mapping, which only the GPU may look at */
} damacy__read_task;

/* How the voxels of a unit come about. */
typedef enum damacy__unit_kind {
    DAMACY__UNIT_HOST = 0, /* a chunk that the host decodes */
    DAMACY__UNIT_VOXELS,   /* a chunk whose bytes are voxels */
    DAMACY__UNIT_ZSTD,     /* chunks that a GPU decodes */
    DAMACY__UNIT_LZ4,
    DAMACY__UNIT_BLOSC,
    DAMACY__UNIT_KEPT,  /* GPU only: a chunk that lies decoded on the device */
    DAMACY__UNIT_FILL,  /* a run of fills */
    DAMACY__UNIT_FINISH /* GPU only: the batch's last work */
} damacy__unit_kind;

/* A piece of work of a batch: a chunk, a run of fills, or the end. */
typedef struct damacy__unit {
    damacy__task task;
    struct damacy__slot* slot;
    uint32_t kind;
    uint32_t first; /* a chunk's number in plan.chunks; else into plan.fills */
    uint32_t n;     /* fills */

    /* The chunk's place among those that are kept. */
    damacy__block* block; /* NULL: it is not kept */
    damacy__waiter waiter;
    bool is_kept; /* when the batch was planned */

    /* GPU only: what is to be sent to the device. */
    const uint8_t* bytes;
    uint64_t size;
    bool is_space;   /* bytes lie in core.decoded and go back there; else in the read's staging */
    uint64_t dst;    /* address of the voxels on the device */
    uint32_t number; /* in the job table of its kind */
} damacy__unit;

DAMACY__VECTOR(damacy__read_task, damacy__read_tasks)
DAMACY__VECTOR(damacy__unit, damacy__units)

/* The place of one batch, from planning to the consumer's release. */
typedef struct damacy__slot {
    struct damacy__core* core;
    uint32_t state;       /* guarded by core.mutex */
    uint32_t n_refs;      /* guarded by core.mutex */
    uint32_t n_user_refs; /* guarded by core.mutex: of these, those that damacy_release may drop */
    uint64_t id;          /* of the batch in it; changes under core.mutex while FREE */
    uint8_t* ptr;         /* voxels */
    uint64_t size;        /* bytes at ptr */
    damacy__crop* crops;  /* samples_per_batch */
    uint32_t n_samples;
    uint32_t n_delivered; /* after SKIP */
    uint32_t* delivered;  /* crops[delivered[i]] is the batch's i-th sample */
    uint32_t n_failed;    /* guarded by core.mutex */
    damacy__plan plan;
    damacy__read_tasks read_tasks;
    damacy__units chunk_units;
    damacy__units fill_units;
    damacy__unit finish_unit;
    damacy__task_list aside; /* GPU thread only: units that stand aside */
    uint64_t ready_event; /* GPU: CUevent behind the batch's last work */
    uint64_t gates[DAMACY__GATES]; /* GPU: CUevents that its last consumers had not passed */
    uint32_t n_gates;              /* atomic; gates change under core.mutex */
    uint64_t n_released;  /* when it was, in releases of the pipeline; guarded by core.mutex */
    uint64_t next_read;   /* scheduler only: reads that have been issued */
    uint64_t n_pending;   /* atomic: tasks that must end before the batch is ready */
} damacy__slot;

/* Everything that is counted for damacy_stats; atomic. */
typedef struct damacy__counters {
    damacy__metric_clock metadata, plan, read, transfer, decode, assemble, pop_wait;
    uint64_t samples_pushed, batches_delivered, samples_failed;
    uint64_t chunks_touched, chunks_decoded, chunks_kept, chunks_missing;
    uint64_t bytes_wanted, bytes_read, bytes_mapped, bytes_decoded, bytes_delivered,
        voxels_delivered;
} damacy__counters;

typedef struct damacy__core {
    damacy__alloc alloc;
    damacy_config config;   /* resolved; pointers in it are copies */
    damacy_dtype out_dtype; /* NATIVE until the first batch is planned */
    pid_t process;
    damacy__affine affine;
    struct damacy__gpu* gpu; /* NULL: the CPU device */
    damacy__libraries libraries;
    damacy__store store;
    damacy__mapped mapped; /* zeroed where there is no GPU */
    damacy__catalog catalog;
    damacy__pool io;
    damacy__pool workers;
    damacy__decoder* decoders; /* one per worker */
    pthread_t scheduler;
    bool has_scheduler;
    damacy__plan_options plan_options; /* shape: set with the geometry */
    damacy__counters counters;

    damacy__mutex staging_mutex;
    uint8_t* staging;
    uint64_t staging_size;
    damacy__ring ring; /* guarded by staging_mutex */

    damacy__mutex decode_mutex;
    damacy__condition decode_wake;
    uint8_t* decoded;
    uint64_t decoded_size;
    damacy__arena arena; /* guarded by decode_mutex */

    uint64_t cache_bytes;  /* atomic; chunks.size for other threads */
    damacy__chunks chunks; /* decoded chunks for later batches, where the slots are */

    damacy__mutex mutex;
    damacy__condition scheduler_wake;
    damacy__condition pop_wake;
    bool kicked; /* guarded by mutex, as is all that follows */
    uint32_t n_refs;
    uint32_t n_inside; /* callers inside pop */
    damacy__told told;
    bool has_geometry; /* sample rank and shape are known */
    bool has_slots;    /* the slots' memory is made */
    bool is_finished;
    bool is_planning; /* samples have left the queue and are not in a running slot yet */
    bool is_stopping;
    bool has_failed;
    damacy_error failure;
    damacy__crop* queue;  /* a circular buffer of lookahead_samples */
    uint64_t queue_first; /* sequence numbers */
    uint64_t queue_next;
    damacy__slot* slots;   /* batch_slots */
    uint64_t next_planned; /* batch ids */
    uint64_t next_popped;
    uint64_t n_released;
    uint8_t* external; /* damacy_read: the one slot's memory is the caller's */
    uint64_t external_size;
} damacy__core;

static void damacy__core_kick(damacy__core* core);
static void damacy__core_log(damacy__core* core, damacy_log_level level, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
static void damacy__core_tell(damacy__core* core, const damacy_error* error, uint64_t number);
static void damacy__crop_fail(damacy__core* core, damacy__slot* slot, uint32_t crop,
                              const damacy_error* error);

static inline bool damacy__core_stops(damacy__core* core)
{
    return __atomic_load_n(&core->is_stopping, __ATOMIC_RELAXED);
}

/* False in a forked child, which has none of the threads and perhaps a mutex that nobody frees. */
static inline bool damacy__core_is_ours(const damacy__core* core)
{
    return core->process == getpid();
}

static inline void damacy__count(uint64_t* counter, uint64_t n)
{
    __atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

/* Wakes the scheduler thread: something that it waits for may have happened. */
static void damacy__core_kick(damacy__core* core)
{
    damacy__lock(&core->mutex);
    core->kicked = true;
    damacy__signal(&core->scheduler_wake);
    damacy__unlock(&core->mutex);
}

/* Sends a message to the pipeline's logger, if there is one. Holds no lock. */
static void damacy__core_log(damacy__core* core, damacy_log_level level, const char* format, ...)
{
    char text[512];
    char clean[512];
    va_list args;

    if (!core->config.logger.log || level < core->config.log_level) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    damacy__copy_escaped(clean, sizeof clean, text);
    core->config.logger.log(core->config.logger.user, level, clean);
}

/* Counts a sample that failed, and tells the logger unless it has heard enough of it. Holds no
 * lock.
 */
static void damacy__core_tell(damacy__core* core, const damacy_error* error, uint64_t number)
{
    uint64_t n_same = 0;
    uint64_t n_all = 0;
    char others[80] = "";
    bool is_told;

    damacy__count(&core->counters.samples_failed, 1);
    damacy__lock(&core->mutex);
    is_told = damacy__told_count(&core->told, error, &n_same, &n_all);
    damacy__unlock(&core->mutex);
    if (!is_told) {
        return;
    }
    if (n_all > DAMACY__TOLD_FREELY) {
        (void)snprintf(others, sizeof others, ", of %" PRIu64 " that failed", n_all);
    } else if (n_same > 1) {
        (void)snprintf(others, sizeof others, " and %" PRIu64 " before it", n_same - 1);
    }
    damacy__core_log(core, DAMACY_LOG_WARN, "sample %" PRIu64 "%s: %s %s: %s", number, others,
                     error->uri, error->chunk, error->message);
}

/* Whether consumers of the batch before may still read a slot in which one is made. */
static bool damacy__slot_has_gates(const damacy__slot* slot)
{
    return __atomic_load_n(&slot->n_gates, __ATOMIC_RELAXED) != 0;
}

/* Marks a sample as failed; the first error of a sample is kept. */
static void damacy__crop_fail(damacy__core* core, damacy__slot* slot, uint32_t crop,
                              const damacy_error* error)
{
    damacy__crop* c = &slot->crops[crop];
    bool first;

    damacy__lock(&core->mutex);
    first = c->error.status == DAMACY_OK;
    if (first) {
        const uint64_t number = c->number;
        c->error = *error;
        (void)damacy__alloc_explain(&core->alloc, &c->error);
        c->error.sample = number;
        slot->n_failed++;
    }
    damacy__unlock(&core->mutex);
    if (first) {
        damacy__core_tell(core, &c->error, c->number);
    }
}

/* Drops the pins; keeps the memory. */
static void damacy__crop_clear(damacy__core* core, damacy__crop* crop)
{
    for (uint64_t i = 0; i < crop->n_indexes; i++) {
        damacy__catalog_unpin_index(&core->catalog, crop->indexes[i]);
    }
    crop->n_indexes = 0;
    crop->n_settled = 0;
    if (crop->array) {
        damacy__catalog_unpin_array(&core->catalog, crop->array);
        crop->array = NULL;
    }
}
