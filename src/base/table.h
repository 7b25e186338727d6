/* An intrusive hash table with a least-recently-used list: keys to records that the owner embeds.
 *
 * The table allocates only its buckets, at init. Records are found by a 64-bit hash and a
 * comparison that the caller supplies; the table takes no lock, its owner does. */
#pragma once
#include "base/alloc.h"

/* Embed as the first member of a record. */
typedef struct damacy__entry {
    struct damacy__entry* chain; /* next in the bucket */
    struct damacy__entry* newer; /* towards the most recently used */
    struct damacy__entry* older;
    uint64_t hash;
} damacy__entry;

typedef struct damacy__table {
    damacy__entry** buckets;
    uint64_t n_buckets; /* a power of two */
    uint64_t n_entries;
    damacy__entry* newest;
    damacy__entry* oldest;
} damacy__table;

/* n_expected sets the number of buckets; more entries than that only make chains longer. */
static damacy_status damacy__table_init(damacy__table* table, damacy__alloc* alloc,
                                        uint64_t n_expected, damacy_error* err)
{
    uint64_t n = 16;

    while (n < n_expected && n < (UINT64_C(1) << 24)) {
        n *= 2;
    }
    memset(table, 0, sizeof *table);
    table->buckets = damacy__new(alloc, n, damacy__entry*);
    if (!table->buckets) {
        return damacy__fail(err, DAMACY_OOM, "table of %" PRIu64 " buckets", n);
    }
    table->n_buckets = n;
    return DAMACY_OK;
}

/* Frees the buckets; the records belong to their owner. */
static void damacy__table_deinit(damacy__table* table, damacy__alloc* alloc)
{
    damacy__free(alloc, table->buckets, table->n_buckets);
    memset(table, 0, sizeof *table);
}

static void damacy__table_unlink(damacy__table* table, damacy__entry* entry)
{
    if (entry->newer) {
        entry->newer->older = entry->older;
    } else {
        table->newest = entry->older;
    }
    if (entry->older) {
        entry->older->newer = entry->newer;
    } else {
        table->oldest = entry->newer;
    }
    entry->newer = entry->older = NULL;
}

static void damacy__table_link(damacy__table* table, damacy__entry* entry)
{
    entry->newer = NULL;
    entry->older = table->newest;
    if (table->newest) {
        table->newest->newer = entry;
    } else {
        table->oldest = entry;
    }
    table->newest = entry;
}

/* First entry of the hash's chain; walk with damacy__table_next and compare keys. */
static damacy__entry* damacy__table_first(const damacy__table* table, uint64_t hash)
{
    damacy__entry* entry = table->buckets[hash & (table->n_buckets - 1)];

    while (entry && entry->hash != hash) {
        entry = entry->chain;
    }
    return entry;
}

static damacy__entry* damacy__table_next(const damacy__entry* entry)
{
    damacy__entry* next = entry->chain;

    while (next && next->hash != entry->hash) {
        next = next->chain;
    }
    return next;
}

static void damacy__table_insert(damacy__table* table, damacy__entry* entry, uint64_t hash)
{
    damacy__entry** bucket = &table->buckets[hash & (table->n_buckets - 1)];

    entry->hash = hash;
    entry->chain = *bucket;
    *bucket = entry;
    damacy__table_link(table, entry);
    table->n_entries++;
}

/* Marks an entry as the most recently used. */
static void damacy__table_touch(damacy__table* table, damacy__entry* entry)
{
    if (table->newest != entry) {
        damacy__table_unlink(table, entry);
        damacy__table_link(table, entry);
    }
}

static void damacy__table_remove(damacy__table* table, damacy__entry* entry)
{
    damacy__entry** at = &table->buckets[entry->hash & (table->n_buckets - 1)];

    while (*at != entry) {
        at = &(*at)->chain;
    }
    *at = entry->chain;
    entry->chain = NULL;
    damacy__table_unlink(table, entry);
    table->n_entries--;
}
