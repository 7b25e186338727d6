/* The ground: checked arithmetic, errors, counted memory, tables, offsets, threads. */
#include "tests/test.h"
#include "base/arena.h"
#include "base/sync.h"
#include "base/table.h"

static damacy_error error;

TEST(base_sums_and_products_do_not_wrap)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     2,
                                     3,
                                     UINT32_MAX,
                                     UINT64_C(1) << 32,
                                     INT64_MAX,
                                     UINT64_C(1) << 63,
                                     UINT64_MAX - 1,
                                     UINT64_MAX};

    for (size_t i = 0; i < DAMACY__COUNT(edges); i++) {
        for (size_t j = 0; j < DAMACY__COUNT(edges); j++) {
            const uint64_t a = edges[i];
            const uint64_t b = edges[j];
            uint64_t out = 0;
            CHECK(damacy__add(a, b, &out) == (b <= UINT64_MAX - a));
            CHECK(b > UINT64_MAX - a || out == a + b);
            CHECK(damacy__mul(a, b, &out) == (a == 0 || b <= UINT64_MAX / a));
            CHECK((a != 0 && b > UINT64_MAX / a) || out == a * b);
        }
    }
}

TEST(base_product_of_extents_is_checked_even_beside_a_zero)
{
    const int64_t plain[3] = {2, 3, 4};
    const int64_t empty[3] = {0, INT64_MAX, 1};
    const int64_t large[2] = {INT64_C(1) << 32, INT64_C(1) << 31};
    const int64_t negative[2] = {3, -1};
    uint64_t out = 7;

    CHECK(damacy__product(plain, 3, &out) && out == 24);
    CHECK(damacy__product(plain, 0, &out) && out == 1);
    CHECK(damacy__product(empty, 3, &out) && out == 0);
    CHECK(!damacy__product(large, 2, &out));
    CHECK(!damacy__product(negative, 2, &out));
}

TEST(base_rounding_is_exact)
{
    CHECK_EQ(damacy__align_up(0, 64), 0);
    CHECK_EQ(damacy__align_up(1, 64), 64);
    CHECK_EQ(damacy__align_up(64, 64), 64);
    CHECK_EQ(damacy__div_up(0, 3), 0);
    CHECK_EQ(damacy__div_up(9, 3), 3);
    CHECK_EQ(damacy__div_up(10, 3), 4);
    CHECK(damacy__div_up(UINT64_MAX, 2) == UINT64_C(1) << 63);
}

TEST(base_loads_and_stores_are_little_endian_at_any_address)
{
    uint8_t bytes[16];

    for (uint8_t i = 0; i < 16; i++) {
        bytes[i] = (uint8_t)(0xf0 + i);
    }
    CHECK_EQ(damacy__load_u16le(bytes + 1), 0xf2f1);
    CHECK(damacy__load_u32le(bytes + 3) == UINT32_C(0xf6f5f4f3));
    CHECK(damacy__load_u64le(bytes + 5) == UINT64_C(0xfcfbfaf9f8f7f6f5));
    CHECK(damacy__load_u64be(bytes + 5) == UINT64_C(0xf5f6f7f8f9fafbfc));
    damacy__store_u32le(bytes + 1, UINT32_C(0x04030201));
    CHECK(bytes[0] == 0xf0 && bytes[1] == 1 && bytes[4] == 4 && bytes[5] == 0xf5);
    damacy__store_u64le(bytes + 1, UINT64_C(0x0807060504030201));
    CHECK(bytes[8] == 8 && bytes[9] == 0xf9);
}

TEST(base_hash_depends_on_every_byte_and_the_seed)
{
    uint8_t bytes[32] = {0};
    const uint64_t all = damacy__hash(bytes, sizeof bytes, 0);

    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = 1;
        CHECK(damacy__hash(bytes, sizeof bytes, 0) != all);
        bytes[i] = 0;
    }
    CHECK(damacy__hash(bytes, sizeof bytes, 1) != all);
    CHECK(damacy__hash(bytes, sizeof bytes - 1, 0) != all);
    CHECK(damacy__hash(bytes, sizeof bytes, 0) == all);
}

TEST(error_text_is_cut_and_cannot_steer_a_terminal)
{
    char text[1000];

    memset(&error, 0, sizeof error);
    CHECK_EQ(damacy__fail(&error, DAMACY_IO, "a\x1b[2J\r\n\t%s\x7f\xc3\xa9", "b"), DAMACY_IO);
    CHECK_EQ(error.status, DAMACY_IO);
    CHECK_STR(error.message, "a?[2J???b???");
    memset(text, 'x', sizeof text - 1);
    text[999] = '\0';
    (void)damacy__fail(&error, DAMACY_DECODE, "%s", text);
    CHECK_EQ(strlen(error.message), sizeof error.message - 1);
    (void)damacy__fail(&error, DAMACY_DECODE, "again %s", error.message); /* of itself */
    CHECK_HAS(error.message, "again xxx");
}

TEST(error_place_is_set_once_and_kept)
{
    memset(&error, 0, sizeof error);
    damacy__error_where(&error, DAMACY_STAGE_READ, NULL, "c/0\n");
    damacy__error_where(&error, DAMACY_STAGE_PLAN, "a.zarr\x01", "c/1");
    damacy__error_where(&error, DAMACY_STAGE_PLAN, "b.zarr", NULL);
    (void)damacy__fail(&error, DAMACY_IO, "cause");
    CHECK_EQ(error.stage, DAMACY_STAGE_READ);
    CHECK_STR(error.chunk, "c/0?");
    CHECK_STR(error.uri, "a.zarr?");
}

TEST(alloc_gives_zeroed_aligned_counted_blocks)
{
    static const uint64_t sizes[] = {0, 1, 63, 64, 65535, 65536, 65537, 1 << 20};
    damacy__alloc alloc;
    uint8_t* blocks[8];
    uint64_t total = 0;

    memset(&alloc, 0, sizeof alloc);
    for (int round = 0; round < 2; round++) { /* the second one reuses dirty memory */
        for (size_t i = 0; i < 8; i++) {
            const uint64_t alignment = UINT64_C(64) << i % 7;
            blocks[i] = (uint8_t*)damacy__alloc_take(&alloc, sizes[i], 1, alignment);
            CHECK(blocks[i] != NULL);
            CHECK_EQ((uintptr_t)blocks[i] % alignment, 0);
            for (uint64_t b = 0; b < sizes[i]; b++) {
                CHECK(blocks[i][b] == 0);
            }
            memset(blocks[i], 0xff, (size_t)sizes[i]);
            total += sizes[i];
            CHECK_EQ(alloc.live_bytes, total);
            CHECK_EQ(alloc.live_blocks, i + 1);
        }
        for (size_t i = 0; i < 8; i++) {
            damacy__alloc_give(&alloc, blocks[i], sizes[i]);
            total -= sizes[i];
            CHECK_EQ(alloc.live_bytes, total);
        }
    }
    CHECK_EQ(alloc.live_blocks, 0);
    CHECK_EQ(alloc.n_calls, 16);
    damacy__free(&alloc, (int*)NULL, 5);
    CHECK_EQ(alloc.live_bytes, 0);
}

TEST(alloc_keeps_its_budget_and_refuses_overflow)
{
    damacy__alloc alloc;
    uint32_t* a;
    uint32_t* b;

    memset(&alloc, 0, sizeof alloc);
    alloc.budget = 1000;
    a = damacy__new(&alloc, 200, uint32_t);
    CHECK(a != NULL);
    CHECK(damacy__new(&alloc, 51, uint32_t) == NULL);
    CHECK_EQ(alloc.live_bytes, 800);
    b = damacy__new(&alloc, 50, uint32_t);
    CHECK(b != NULL);
    CHECK(damacy__new(&alloc, 1, char) == NULL);
    CHECK_EQ(alloc.live_blocks, 2);
    damacy__free(&alloc, a, 200);
    damacy__free(&alloc, b, 50);
    CHECK_EQ(alloc.live_bytes, 0);
    alloc.budget = 0;
    CHECK(damacy__new(&alloc, UINT64_MAX / 4 + 2, uint32_t) == NULL);
    CHECK(damacy__new(&alloc, UINT64_MAX, char) == NULL);
    CHECK(damacy__new(&alloc, INT64_MAX, char) == NULL);
    CHECK_EQ(alloc.live_bytes, 0);
    CHECK_EQ(alloc.live_blocks, 0);
}

/* What the user's allocator saw. */
static struct {
    size_t live;
    int left; /* allocations until failure */
} user_memory;

static void* user_alloc(void* user, size_t size, size_t alignment)
{
    void* ptr = NULL;

    CHECK(user == &user_memory && size > 0 && (alignment & (alignment - 1)) == 0);
    if (user_memory.left-- == 0 || posix_memalign(&ptr, alignment, size) != 0) {
        return NULL;
    }
    memset(ptr, 0xee, size);
    user_memory.live += size;
    return ptr;
}

static void user_free(void* user, void* ptr, size_t size)
{
    CHECK(user == &user_memory && ptr != NULL);
    user_memory.live -= size;
    free(ptr);
}

TEST(alloc_goes_through_the_user_with_equal_sizes)
{
    damacy__alloc alloc;
    char* empty;
    char* text;
    uint8_t* large;

    memset(&alloc, 0, sizeof alloc);
    alloc.user.user = &user_memory;
    alloc.user.alloc = user_alloc;
    alloc.user.free = user_free;
    user_memory.left = 3;
    empty = damacy__new(&alloc, 0, char);
    text = damacy__alloc_text(&alloc, "hello", 4);
    large = damacy__new(&alloc, 100000, uint8_t);
    CHECK(empty && text && large && large[99999] == 0);
    CHECK_STR(text, "hell");
    CHECK(damacy__new(&alloc, 1, char) == NULL); /* the user has no more */
    CHECK_EQ(alloc.live_blocks, 3);
    damacy__free(&alloc, large, 100000);
    damacy__free(&alloc, text, 5);
    damacy__free(&alloc, empty, 0);
    CHECK_EQ(user_memory.live, 0);
    CHECK_EQ(alloc.live_bytes, 0);
}

typedef struct item {
    damacy__entry entry;
    uint32_t key;
    bool is_in;
} item;

static item* find(const damacy__table* table, uint32_t key, uint64_t hash)
{
    damacy__entry* at = damacy__table_first(table, hash);

    while (at && ((item*)(void*)at)->key != key) {
        at = damacy__table_next(at);
    }
    return (item*)(void*)at;
}

/* Against a plain array in order of use; hashes collide on purpose. */
TEST(table_finds_and_orders_like_a_list)
{
    enum { N = 60 };
    static item items[N];
    uint32_t order[N]; /* oldest first */
    uint32_t n = 0;
    uint64_t state = test_seed();
    damacy__alloc alloc;
    damacy__table table;

    memset(&alloc, 0, sizeof alloc);
    memset(items, 0, sizeof items);
    CHECK_EQ(damacy__table_init(&table, &alloc, 16, &error), DAMACY_OK);
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t key = (uint32_t)(test_random(&state) % N);
        const uint64_t hash = key % 7 * 16 + key % 3 / 2;
        item* it = &items[key];
        damacy__entry* at;
        it->key = key;
        CHECK(find(&table, key, hash) == (it->is_in ? it : NULL));
        if (it->is_in) {
            uint32_t place = 0;
            while (order[place] != key) {
                place++;
            }
            n--;
            memmove(order + place, order + place + 1, (n - place) * sizeof order[0]);
            if (test_random(&state) % 3 == 0) {
                damacy__table_remove(&table, &it->entry);
                it->is_in = false;
            } else {
                damacy__table_touch(&table, &it->entry);
                order[n++] = key;
            }
        } else {
            damacy__table_insert(&table, &it->entry, hash);
            it->is_in = true;
            order[n++] = key;
        }
        CHECK_EQ(table.n_entries, n);
        at = table.oldest;
        for (uint32_t i = 0; i < n; i++, at = at->newer) {
            CHECK(at == &items[order[i]].entry);
            CHECK(at->older == (i ? &items[order[i - 1]].entry : NULL));
        }
        CHECK(at == NULL);
        CHECK(table.newest == (n ? &items[order[n - 1]].entry : NULL));
    }
    damacy__table_deinit(&table, &alloc);
    CHECK_EQ(alloc.live_bytes, 0);
}

/* Blocks of the ring and the arena never overlap, and space always comes back. */
TEST(offsets_are_disjoint_and_come_back)
{
    enum { SIZE = 1000, N = 32 };
    uint64_t state = test_seed();
    damacy__alloc alloc;
    damacy__ring ring;
    damacy__arena arena;

    memset(&alloc, 0, sizeof alloc);
    CHECK_EQ(damacy__ring_init(&ring, &alloc, SIZE, N, &error), DAMACY_OK);
    CHECK_EQ(damacy__arena_init(&arena, &alloc, SIZE, &error), DAMACY_OK);
    for (int which = 0; which < 2; which++) {
        struct {
            uint64_t offset, size, ticket;
        } held[N];
        uint32_t n = 0;
        uint64_t offset = 0;
        uint64_t ticket = 0;
        uint32_t n_taken = 0;
        for (uint32_t round = 0; round < 20000; round++) {
            const uint64_t size = 1 + test_random(&state) % 200;
            const bool is_taken =
                n < N && (which ? damacy__arena_take(&arena, size, &offset)
                                : damacy__ring_take(&ring, size, &offset, &ticket));
            if (is_taken) {
                CHECK(offset <= SIZE && size <= SIZE - offset);
                for (uint32_t i = 0; i < n; i++) {
                    CHECK(offset + size <= held[i].offset ||
                          held[i].offset + held[i].size <= offset);
                }
                held[n].offset = offset;
                held[n].size = size;
                held[n++].ticket = ticket;
                n_taken++;
            }
            if (n && (!is_taken || test_random(&state) % 2)) {
                const uint32_t i = (uint32_t)(test_random(&state) % n);
                if (which) {
                    damacy__arena_give(&arena, held[i].offset);
                } else {
                    damacy__ring_give(&ring, held[i].ticket);
                }
                held[i] = held[--n];
            }
        }
        CHECK(n_taken > 8000);
        while (n) {
            n--;
            if (which) {
                damacy__arena_give(&arena, held[n].offset);
            } else {
                damacy__ring_give(&ring, held[n].ticket);
            }
        }
        CHECK(which ? damacy__arena_take(&arena, SIZE, &offset)
                    : damacy__ring_take(&ring, SIZE, &offset, &ticket));
        CHECK_EQ(offset, 0);
        CHECK(!(which ? damacy__arena_take(&arena, 1, &offset)
                      : damacy__ring_take(&ring, 1, &offset, &ticket)));
    }
    CHECK(!damacy__ring_take(&ring, SIZE + 1, &state, &state));
    damacy__ring_deinit(&ring, &alloc);
    damacy__arena_deinit(&arena, &alloc);
    CHECK_EQ(alloc.live_bytes, 0);
}

/* Jobs of a pool note the order in which they ran. */
typedef struct job {
    damacy__task task;
    struct jobs* all;
    uint32_t number;
} job;

typedef struct jobs {
    damacy__mutex mutex;
    damacy__condition changed;
    bool gate_is_open; /* guarded by mutex, as is what follows */
    uint32_t n_at_gate;
    uint32_t order[600];
    uint32_t n_done;
    uint32_t worst_worker;
    bool signals_are_blocked;
    job items[600];
} jobs;

static void job_note(void* context, uint32_t worker)
{
    job* j = (job*)context;
    jobs* all = j->all;
    sigset_t blocked;

    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    damacy__lock(&all->mutex);
    all->order[all->n_done++] = j->number;
    all->worst_worker = DAMACY__MAX(all->worst_worker, worker);
    all->signals_are_blocked = all->signals_are_blocked && sigismember(&blocked, SIGALRM) == 1 &&
                               sigismember(&blocked, SIGINT) == 1;
    damacy__unlock(&all->mutex);
}

static void job_gate(void* context, uint32_t worker)
{
    jobs* all = ((job*)context)->all;

    (void)worker;
    damacy__lock(&all->mutex);
    all->n_at_gate++;
    damacy__broadcast(&all->changed);
    while (!all->gate_is_open) {
        damacy__wait(&all->changed, &all->mutex);
    }
    damacy__unlock(&all->mutex);
}

static void jobs_init(jobs* all)
{
    memset(all, 0, sizeof *all);
    CHECK_EQ(damacy__mutex_init(&all->mutex, &error), DAMACY_OK);
    CHECK_EQ(damacy__condition_init(&all->changed, &error), DAMACY_OK);
    all->signals_are_blocked = true;
    for (uint32_t i = 0; i < 600; i++) {
        all->items[i].all = all;
        all->items[i].number = i;
        all->items[i].task.function = job_note;
        all->items[i].task.context = &all->items[i];
    }
}

static void jobs_deinit(jobs* all)
{
    damacy__condition_deinit(&all->changed);
    damacy__mutex_deinit(&all->mutex);
}

TEST(pool_runs_urgent_tasks_first_and_each_kind_in_order)
{
    static jobs all;
    damacy__alloc alloc;
    damacy__pool pool;

    jobs_init(&all);
    memset(&alloc, 0, sizeof alloc);
    CHECK_EQ(damacy__pool_init(&pool, &alloc, 1, "test", &error), DAMACY_OK);
    all.items[0].task.function = job_gate;
    damacy__pool_submit(&pool, &all.items[0].task, DAMACY__NORMAL);
    damacy__lock(&all.mutex);
    while (all.n_at_gate == 0) {
        damacy__wait(&all.changed, &all.mutex);
    }
    damacy__unlock(&all.mutex);
    for (uint32_t i = 1; i < 100; i++) { /* even ones are urgent */
        damacy__pool_submit(&pool, &all.items[i].task, i % 2 ? DAMACY__NORMAL : DAMACY__URGENT);
    }
    damacy__lock(&all.mutex);
    all.gate_is_open = true;
    damacy__broadcast(&all.changed);
    damacy__unlock(&all.mutex);
    damacy__pool_deinit(&pool); /* runs what is queued */
    CHECK_EQ(all.n_done, 99);
    for (uint32_t i = 0; i < 49; i++) {
        CHECK_EQ(all.order[i], 2 * (i + 1));
    }
    for (uint32_t i = 0; i < 50; i++) {
        CHECK_EQ(all.order[49 + i], 2 * i + 1);
    }
    CHECK_EQ(alloc.live_bytes, 0);
    jobs_deinit(&all);
}

TEST(pool_of_many_threads_runs_every_task_once_with_signals_blocked)
{
    static jobs all;
    bool seen[600] = {false};
    damacy__alloc alloc;
    damacy__pool pool;

    jobs_init(&all);
    memset(&alloc, 0, sizeof alloc);
    CHECK_EQ(damacy__pool_init(&pool, &alloc, 8, "a name too long", &error), DAMACY_OK);
    for (uint32_t i = 0; i < 8; i++) { /* all of them at once */
        all.items[i].task.function = job_gate;
        damacy__pool_submit(&pool, &all.items[i].task, DAMACY__NORMAL);
    }
    damacy__lock(&all.mutex);
    while (all.n_at_gate < 8) {
        damacy__wait(&all.changed, &all.mutex);
    }
    all.gate_is_open = true;
    damacy__broadcast(&all.changed);
    damacy__unlock(&all.mutex);
    for (uint32_t i = 8; i < 600; i++) {
        damacy__pool_submit(&pool, &all.items[i].task, (int)(i % 2));
    }
    damacy__pool_deinit(&pool);
    CHECK_EQ(all.n_done, 592);
    for (uint32_t i = 0; i < all.n_done; i++) {
        CHECK(!seen[all.order[i]]);
        seen[all.order[i]] = true;
    }
    CHECK(all.worst_worker < 8);
    CHECK(all.signals_are_blocked);
    CHECK_EQ(alloc.live_bytes, 0);
    jobs_deinit(&all);
}

TEST(pool_that_never_started_may_be_ended)
{
    damacy__alloc alloc;
    damacy__pool pool;

    memset(&alloc, 0, sizeof alloc);
    memset(&pool, 0, sizeof pool);
    damacy__pool_deinit(&pool);
    alloc.budget = 4;
    CHECK_EQ(damacy__pool_init(&pool, &alloc, 8, "test", &error), DAMACY_OOM);
    damacy__pool_deinit(&pool);
    CHECK_EQ(alloc.live_bytes, 0);
}

static void* thread_name(void* context)
{
    CHECK(pthread_getname_np(pthread_self(), (char*)context, 16) == 0);
    return NULL;
}

TEST(thread_of_a_long_name_starts)
{
    char name[16] = "";
    pthread_t thread;

    CHECK_EQ(damacy__thread_start(&thread, "a name of 20 letters", thread_name, name, &error), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(name[0] != '\0');
}

TEST(condition_waits_until_a_deadline)
{
    damacy__mutex mutex;
    damacy__condition condition;
    const uint64_t start = damacy__now_ns();

    CHECK_EQ(damacy__mutex_init(&mutex, &error), DAMACY_OK);
    CHECK_EQ(damacy__condition_init(&condition, &error), DAMACY_OK);
    damacy__lock(&mutex);
    while (damacy__condition_wait_until(&condition, &mutex, start + 2000000)) {
    }
    damacy__unlock(&mutex);
    CHECK(damacy__now_ns() >= start + 2000000);
    damacy__condition_deinit(&condition);
    damacy__mutex_deinit(&mutex);
}

TEST_MAIN
