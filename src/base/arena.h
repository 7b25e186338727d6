/* Two allocators of offsets inside one range of bytes that is made once and never grows.
 *
 * A ring gives space in order and takes it back in any order; it is what reads pass through. An
 * arena gives the lowest place that fits, so that a few short-lived blocks stay in warm caches.
 * Neither touches the bytes, so both serve device memory too; neither locks, their owner does. */
#pragma once
#include "base/alloc.h"

typedef struct damacy__ring_block {
    uint64_t offset;
    uint64_t size; /* with what was skipped at the end of the range */
    bool is_free;
} damacy__ring_block;

typedef struct damacy__ring {
    damacy__ring_block* blocks; /* a circular queue in order of allocation */
    uint64_t n_capacity;        /* a power of two */
    uint64_t first;             /* sequence number of the oldest block */
    uint64_t next;              /* sequence number of the next block */
    uint64_t size;              /* bytes of the range */
    uint64_t head;              /* where the next block starts */
    uint64_t n_bytes;           /* in use, skipped ends included */
} damacy__ring;

static damacy_status damacy__ring_init(damacy__ring* ring, damacy__alloc* alloc, uint64_t size,
                                       uint64_t n_blocks, damacy_error* err);
static void damacy__ring_deinit(damacy__ring* ring, damacy__alloc* alloc);
static bool damacy__ring_take(damacy__ring* ring, uint64_t size, uint64_t* offset,
                              uint64_t* ticket);
static void damacy__ring_give(damacy__ring* ring, uint64_t ticket);

static damacy_status damacy__ring_init(damacy__ring* ring, damacy__alloc* alloc, uint64_t size,
                                       uint64_t n_blocks, damacy_error* err)
{
    uint64_t n = 16;

    while (n < n_blocks) {
        n *= 2;
    }
    memset(ring, 0, sizeof *ring);
    ring->blocks = damacy__new(alloc, n, damacy__ring_block);
    if (!ring->blocks) {
        return damacy__fail(err, DAMACY_OOM, "ring of %" PRIu64 " blocks", n);
    }
    ring->n_capacity = n;
    ring->size = size;
    return DAMACY_OK;
}

static void damacy__ring_deinit(damacy__ring* ring, damacy__alloc* alloc)
{
    damacy__free(alloc, ring->blocks, ring->n_capacity);
    memset(ring, 0, sizeof *ring);
}

/* Gives size bytes (the caller has rounded up to its alignment); false when there is no room now. A
 * block never wraps: what is left at the end of the range is skipped with it. */
static bool damacy__ring_take(damacy__ring* ring, uint64_t size, uint64_t* offset, uint64_t* ticket)
{
    uint64_t skipped = 0;
    damacy__ring_block* block;

    if (ring->n_bytes == 0) {
        ring->head = 0;
    }
    if (size > ring->size || ring->next - ring->first == ring->n_capacity) {
        return false;
    }
    if (size > ring->size - ring->head) {
        skipped = ring->size - ring->head;
    }
    if (skipped + size > ring->size - ring->n_bytes) {
        return false;
    }
    block = &ring->blocks[ring->next & (ring->n_capacity - 1)];
    block->offset = size > ring->size - ring->head ? 0 : ring->head;
    block->size = skipped + size;
    block->is_free = false;
    ring->head = block->offset + size;
    ring->n_bytes += block->size;
    *offset = block->offset;
    *ticket = ring->next++;
    return true;
}

/* Takes a block back; its bytes are reused once all older blocks are back too. */
static void damacy__ring_give(damacy__ring* ring, uint64_t ticket)
{
    ring->blocks[ticket & (ring->n_capacity - 1)].is_free = true;
    while (ring->first != ring->next) {
        damacy__ring_block* block = &ring->blocks[ring->first & (ring->n_capacity - 1)];
        if (!block->is_free) {
            break;
        }
        ring->n_bytes -= block->size;
        ring->first++;
    }
}

enum { DAMACY__ARENA_BLOCKS = 2048 };

typedef struct damacy__arena_block {
    uint64_t offset;
    uint64_t size;
} damacy__arena_block;

/* Blocks in use, sorted by offset. */
typedef struct damacy__arena {
    damacy__arena_block* blocks;
    uint32_t n_blocks;
    uint64_t size;
} damacy__arena;

static damacy_status damacy__arena_init(damacy__arena* arena, damacy__alloc* alloc, uint64_t size,
                                        damacy_error* err)
{
    memset(arena, 0, sizeof *arena);
    arena->blocks = damacy__new(alloc, DAMACY__ARENA_BLOCKS, damacy__arena_block);
    if (!arena->blocks) {
        return damacy__fail(err, DAMACY_OOM, "arena");
    }
    arena->size = size;
    return DAMACY_OK;
}

static void damacy__arena_deinit(damacy__arena* arena, damacy__alloc* alloc)
{
    damacy__free(alloc, arena->blocks, DAMACY__ARENA_BLOCKS);
    memset(arena, 0, sizeof *arena);
}

/* The lowest free range of size bytes; false when there is none now. */
static bool damacy__arena_take(damacy__arena* arena, uint64_t size, uint64_t* offset)
{
    uint64_t at = 0;
    uint32_t i = 0;

    if (arena->n_blocks == DAMACY__ARENA_BLOCKS || size > arena->size) {
        return false;
    }
    while (i < arena->n_blocks && arena->blocks[i].offset - at < size) {
        at = arena->blocks[i].offset + arena->blocks[i].size;
        i++;
    }
    if (i == arena->n_blocks && arena->size - at < size) {
        return false;
    }
    memmove(&arena->blocks[i + 1], &arena->blocks[i],
            (arena->n_blocks - i) * sizeof arena->blocks[0]);
    arena->blocks[i].offset = at;
    arena->blocks[i].size = size;
    arena->n_blocks++;
    *offset = at;
    return true;
}

static void damacy__arena_give(damacy__arena* arena, uint64_t offset)
{
    uint32_t i = 0;

    while (i < arena->n_blocks && arena->blocks[i].offset != offset) {
        i++;
    }
    assert(i < arena->n_blocks);
    arena->n_blocks--;
    memmove(&arena->blocks[i], &arena->blocks[i + 1],
            (arena->n_blocks - i) * sizeof arena->blocks[0]);
}
