/* Decoded chunks that later batches may use again: one range of bytes, of the host's or of a
 * device's, that is divided into blocks; the least recently used are given up first.
 *
 * A chunk is entered when it is planned, before it has bytes: whoever plans it next waits for that
 * decoding instead of doing it again. Nobody waits for space: a chunk that finds none goes to those
 * who wait for it and is forgotten, as is one that cannot be decoded. Every function locks. */
#pragma once
#include "base/sync.h"
#include "base/table.h"

/* Embed in what waits for a chunk that somebody else decodes. */
typedef struct damacy__waiter {
    struct damacy__waiter* next;
    void* owner;
} damacy__waiter;

typedef enum damacy__block_state {
    DAMACY__BLOCK_HOLE = 0, /* space of nobody */
    DAMACY__BLOCK_COMING,   /* a chunk that one batch is to decode; may have no space yet */
    DAMACY__BLOCK_KEPT      /* a decoded chunk */
} damacy__block_state;

/* Guarded by the owner's mutex, but for the bytes: COMING, they are the decoder's alone; KEPT, they
 * are constant while the block is pinned. */
typedef struct damacy__block {
    damacy__entry entry;          /* first: the table's; of an unused record, the next in chain */
    struct damacy__block* before; /* neighbours in the range */
    struct damacy__block* after;
    uint64_t serial; /* of the index, and the chunk's number in it */
    uint64_t number;
    uint64_t offset;
    uint64_t size;  /* 0: no space */
    uint32_t state; /* damacy__block_state */
    uint32_t n_pins;
    damacy__waiter* waiters;
} damacy__block;

typedef struct damacy__chunks {
    damacy__mutex mutex;
    uint8_t* bytes; /* set at init, as is what follows; size 0: nothing is kept */
    uint64_t size;
    bool is_borrowed; /* the bytes are not ours; only their addresses are used */
    uint64_t n_records;
    damacy__block* records; /* guarded by mutex, as is what follows */
    damacy__block* unused;
    damacy__block* hole; /* the widest that was seen last, or NULL */
    bool is_crowded;     /* no old chunk was found that is not in use, and none came since */
    damacy__table table;
} damacy__chunks;

/* What a batch does for a chunk. */
typedef enum damacy__ask {
    DAMACY__ASK_ALONE = 0, /* decode it; it is not kept */
    DAMACY__ASK_DECODE,    /* decode it and settle the block */
    DAMACY__ASK_WAIT,      /* nothing: the waiter comes out of somebody's settle, with a pin */
    DAMACY__ASK_KEPT       /* use the bytes, then unpin */
} damacy__ask;

static damacy_status damacy__chunks_init(damacy__chunks* chunks, damacy__alloc* alloc,
                                         uint64_t size, damacy_error* err);
static uint64_t damacy__chunks_records(uint64_t size);
static damacy_status damacy__chunks_borrow(damacy__chunks* chunks, damacy__alloc* alloc,
                                           uint64_t address, uint64_t size, uint64_t n_records,
                                           damacy_error* err);
static void damacy__chunks_deinit(damacy__chunks* chunks, damacy__alloc* alloc);
static damacy__ask damacy__chunks_ask(damacy__chunks* chunks, uint64_t serial, uint64_t number,
                                      uint64_t size, damacy__waiter* waiter, damacy__block** out);
static uint8_t* damacy__chunks_place(damacy__chunks* chunks, damacy__block* block, uint64_t size);
static damacy__waiter* damacy__chunks_settle(damacy__chunks* chunks, damacy__block* block,
                                             bool keep);
static void damacy__chunks_unpin(damacy__chunks* chunks, damacy__block* block);

/* A record for every 8 KiB: smaller chunks run out of records before they run out of bytes. */
static uint64_t damacy__chunks_records(uint64_t size)
{
    return DAMACY__MIN(DAMACY__MAX(size / 8192, 16), UINT64_C(1) << 18);
}

static uint64_t damacy__chunks_overhead(uint64_t n_records)
{
    return n_records * (sizeof(damacy__block) + 2 * sizeof(void*));
}

/* The records of chunks whose bytes are set, all of them one hole. On failure nothing is held. */
static damacy_status damacy__chunks_make(damacy__chunks* chunks, damacy__alloc* alloc,
                                         damacy_error* err)
{
    const uint64_t n = chunks->n_records;
    const uint64_t size = chunks->size;
    const damacy_status status = damacy__mutex_init(&chunks->mutex, err);

    if (status != DAMACY_OK) {
        chunks->size = 0;
        return status;
    }
    if (!chunks->is_borrowed) {
        chunks->bytes = (uint8_t*)damacy__alloc_take(alloc, size, 1, 4096);
    }
    chunks->records = damacy__new(alloc, n, damacy__block);
    if (!chunks->bytes || !chunks->records ||
        damacy__table_init(&chunks->table, alloc, n, err) != DAMACY_OK) {
        damacy__chunks_deinit(chunks, alloc);
        return damacy__fail(err, DAMACY_OOM, "%" PRIu64 " bytes for decoded chunks", size);
    }
    for (uint64_t i = n; i-- > 1;) {
        chunks->records[i].entry.chain = chunks->unused ? &chunks->unused->entry : NULL;
        chunks->unused = &chunks->records[i];
    }
    chunks->hole = &chunks->records[0];
    chunks->hole->size = size;
    return DAMACY_OK;
}

/* Takes size bytes in all, records included; on failure nothing is held and nothing is kept. */
static damacy_status damacy__chunks_init(damacy__chunks* chunks, damacy__alloc* alloc,
                                         uint64_t size, damacy_error* err)
{
    const uint64_t n = damacy__chunks_records(size);
    const uint64_t overhead = damacy__chunks_overhead(n);

    memset(chunks, 0, sizeof *chunks);
    chunks->size = size > overhead ? (size - overhead) & ~UINT64_C(4095) : 0;
    chunks->n_records = n;
    return chunks->size ? damacy__chunks_make(chunks, alloc, err) : DAMACY_OK;
}

/* The same in size bytes of a device's, which the caller frees after deinit; n_records chunks at
 * most. */
static damacy_status damacy__chunks_borrow(damacy__chunks* chunks, damacy__alloc* alloc,
                                           uint64_t address, uint64_t size, uint64_t n_records,
                                           damacy_error* err)
{
    memset(chunks, 0, sizeof *chunks);
    chunks->is_borrowed = true;
    chunks->bytes = (uint8_t*)(uintptr_t)address;
    chunks->size = size & ~UINT64_C(4095);
    chunks->n_records = n_records;
    return chunks->size ? damacy__chunks_make(chunks, alloc, err) : DAMACY_OK;
}

static void damacy__chunks_deinit(damacy__chunks* chunks, damacy__alloc* alloc)
{
    if (chunks->size == 0) {
        return;
    }
    damacy__table_deinit(&chunks->table, alloc);
    damacy__free(alloc, chunks->records, chunks->n_records);
    if (!chunks->is_borrowed) {
        damacy__alloc_give(alloc, chunks->bytes, chunks->size);
    }
    damacy__mutex_deinit(&chunks->mutex);
    memset(chunks, 0, sizeof *chunks);
}

static damacy__block* damacy__block_take(damacy__chunks* chunks)
{
    damacy__block* block = chunks->unused;

    if (block) {
        chunks->unused = (damacy__block*)(void*)block->entry.chain;
        memset(block, 0, sizeof *block);
    }
    return block;
}

static void damacy__block_give(damacy__chunks* chunks, damacy__block* block)
{
    block->size = 0;
    block->state = DAMACY__BLOCK_HOLE;
    block->entry.chain = chunks->unused ? &chunks->unused->entry : NULL;
    chunks->unused = block;
}

/* Joins the block after this one to it; both are holes, or this one takes the other's space. */
static void damacy__block_swallow(damacy__chunks* chunks, damacy__block* block)
{
    damacy__block* after = block->after;

    block->size += after->size;
    block->after = after->after;
    if (after->after) {
        after->after->before = block;
    }
    if (chunks->hole == after) {
        chunks->hole = block->state == DAMACY__BLOCK_HOLE ? block : NULL;
    }
    damacy__block_give(chunks, after);
}

/* Makes a hole of a block with space, joined with the holes beside it. */
static damacy__block* damacy__block_empty(damacy__chunks* chunks, damacy__block* block)
{
    block->state = DAMACY__BLOCK_HOLE;
    block->n_pins = 0;
    chunks->is_crowded = false;
    if (block->after && block->after->state == DAMACY__BLOCK_HOLE) {
        damacy__block_swallow(chunks, block);
    }
    if (block->before && block->before->state == DAMACY__BLOCK_HOLE) {
        block = block->before;
        damacy__block_swallow(chunks, block);
    }
    if (!chunks->hole || chunks->hole->size < block->size) {
        chunks->hole = block;
    }
    return block;
}

static bool damacy__block_is_idle(const damacy__block* block)
{
    return block->state == DAMACY__BLOCK_KEPT && block->n_pins == 0;
}

/* Gives up a kept chunk. */
static damacy__block* damacy__block_evict(damacy__chunks* chunks, damacy__block* block)
{
    damacy__table_remove(&chunks->table, &block->entry);
    return damacy__block_empty(chunks, block);
}

/* The chunk that was used longest ago and is not in use; NULL when a short search finds none, which
 * is not repeated in vain. */
static damacy__block* damacy__chunks_oldest(damacy__chunks* chunks)
{
    damacy__entry* at = chunks->is_crowded ? NULL : chunks->table.oldest;

    for (uint32_t n_steps = 0; at && n_steps < 256; n_steps++, at = at->newer) {
        damacy__block* block = (damacy__block*)(void*)at;
        if (damacy__block_is_idle(block)) {
            return block;
        }
    }
    chunks->is_crowded = true;
    return NULL;
}

/* A hole of at least size bytes, at the cost of old chunks and of those behind them; or NULL. */
static damacy__block* damacy__chunks_room(damacy__chunks* chunks, uint64_t size)
{
    damacy__block* hole = chunks->hole;

    for (uint32_t n_tries = 0; n_tries < 16; n_tries++) {
        damacy__block* oldest;
        while (hole && hole->size < size && hole->after && damacy__block_is_idle(hole->after)) {
            hole = damacy__block_evict(chunks, hole->after);
        }
        if (hole && hole->size >= size) {
            return hole;
        }
        oldest = damacy__chunks_oldest(chunks);
        if (!oldest) {
            break;
        }
        hole = damacy__block_evict(chunks, oldest);
    }
    return NULL;
}

/* A record for a chunk that is coming; where all are in use, that of an old chunk, with its space.
 */
static damacy__block* damacy__chunks_record(damacy__chunks* chunks)
{
    damacy__block* block = damacy__block_take(chunks);
    damacy__block* oldest;

    if (block) {
        return block;
    }
    oldest = damacy__chunks_oldest(chunks);
    if (!oldest) {
        return NULL;
    }
    oldest = damacy__block_evict(chunks, oldest);
    block = damacy__block_take(chunks);
    if (!block) {
        block = oldest;
        chunks->hole = chunks->hole == block ? NULL : chunks->hole;
    }
    return block;
}

/* Says what to do for a chunk of size bytes. A serial of 0 is that of an index whose chunks are not
 * to be kept. */
static damacy__ask damacy__chunks_ask(damacy__chunks* chunks, uint64_t serial, uint64_t number,
                                      uint64_t size, damacy__waiter* waiter, damacy__block** out)
{
    const uint64_t hash = damacy__hash(&number, sizeof number, serial);
    damacy__ask answer = DAMACY__ASK_ALONE;
    damacy__block* block;
    damacy__entry* at;

    *out = NULL;
    if (serial == 0 || size > chunks->size) {
        return answer;
    }
    damacy__lock(&chunks->mutex);
    for (at = damacy__table_first(&chunks->table, hash); at; at = damacy__table_next(at)) {
        block = (damacy__block*)(void*)at;
        if (block->serial == serial && block->number == number) {
            answer = block->state == DAMACY__BLOCK_KEPT ? DAMACY__ASK_KEPT : DAMACY__ASK_WAIT;
            block->n_pins++;
            damacy__table_touch(&chunks->table, at);
            if (answer == DAMACY__ASK_WAIT) {
                waiter->next = block->waiters;
                block->waiters = waiter;
            }
            *out = block;
            break;
        }
    }
    if (!at) {
        block = damacy__chunks_record(chunks);
        if (block) {
            block->serial = serial;
            block->number = number;
            block->state = DAMACY__BLOCK_COMING;
            block->n_pins = 1;
            block->waiters = NULL;
            damacy__table_insert(&chunks->table, &block->entry, hash);
            answer = DAMACY__ASK_DECODE;
            *out = block;
        }
    }
    damacy__unlock(&chunks->mutex);
    return answer;
}

/* Space to decode a coming chunk into; NULL when there is none. */
static uint8_t* damacy__chunks_place(damacy__chunks* chunks, damacy__block* block, uint64_t size)
{
    uint8_t* bytes = NULL;

    size = damacy__align_up(DAMACY__MAX(size, 1), 4096);
    damacy__lock(&chunks->mutex);
    while (block->size && block->size < size && block->after &&
           (block->after->state == DAMACY__BLOCK_HOLE || damacy__block_is_idle(block->after))) {
        if (block->after->state == DAMACY__BLOCK_KEPT) {
            damacy__table_remove(&chunks->table, &block->after->entry);
        }
        damacy__block_swallow(chunks, block);
    }
    if (block->size == 0) {
        damacy__block* hole = damacy__chunks_room(chunks, size);
        if (hole) { /* the block takes its front */
            block->offset = hole->offset;
            block->size = size;
            block->before = hole->before;
            block->after = hole;
            if (hole->before) {
                hole->before->after = block;
            }
            hole->before = block;
            hole->offset += size;
            hole->size -= size;
            if (hole->size == 0) {
                chunks->hole = chunks->hole == hole ? NULL : chunks->hole;
                damacy__block_swallow(chunks, block);
            }
        }
    }
    if (block->size >= size) {
        bytes = chunks->bytes + block->offset;
    }
    damacy__unlock(&chunks->mutex);
    return bytes;
}

/* Ends the wait for a chunk and returns who waited. keep: its bytes are in their place, and each
 * waiter holds a pin as the decoder does. Otherwise the block is gone. */
static damacy__waiter* damacy__chunks_settle(damacy__chunks* chunks, damacy__block* block,
                                             bool keep)
{
    damacy__waiter* waiters;

    damacy__lock(&chunks->mutex);
    waiters = block->waiters;
    block->waiters = NULL;
    if (keep) {
        block->state = DAMACY__BLOCK_KEPT;
    } else {
        damacy__table_remove(&chunks->table, &block->entry);
        if (block->size) {
            (void)damacy__block_empty(chunks, block);
        } else {
            damacy__block_give(chunks, block);
        }
    }
    damacy__unlock(&chunks->mutex);
    return waiters;
}

static void damacy__chunks_unpin(damacy__chunks* chunks, damacy__block* block)
{
    damacy__lock(&chunks->mutex);
    block->n_pins--;
    chunks->is_crowded = chunks->is_crowded && block->n_pins > 0;
    damacy__unlock(&chunks->mutex);
}
