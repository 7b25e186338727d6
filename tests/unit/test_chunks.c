/* Decoded chunks that are kept: what is found again, what is given up, and that no two chunks ever
 * share bytes. */
#include "stage/chunks.h"
#include "tests/test.h"

enum { PAGE = 4096 };

static damacy__alloc alloc;

/* A cache with room for n pages of chunks. */
static damacy__chunks make(uint64_t n)
{
    const uint64_t records = DAMACY__MAX(n * PAGE / 8192, 16);
    damacy__chunks chunks;
    damacy_error err;

    CHECK_EQ(damacy__chunks_init(&chunks, &alloc,
                                 n * PAGE + records * (sizeof(damacy__block) + 16) + PAGE - 1,
                                 &err),
             DAMACY_OK);
    CHECK(chunks.size >= n * PAGE && chunks.size < (n + 2) * PAGE);
    return chunks;
}

/* Plans, decodes and leaves a chunk; what the question was answered with. */
static damacy__ask use(damacy__chunks* chunks, uint64_t number, uint64_t size)
{
    damacy__waiter waiter = {0};
    damacy__block* block;
    const damacy__ask answer = damacy__chunks_ask(chunks, 1, number, size, &waiter, &block);

    if (answer == DAMACY__ASK_DECODE) {
        uint8_t* bytes = damacy__chunks_place(chunks, block, size);
        if (bytes) {
            memset(bytes, (int)(number & 0xff), (size_t)size);
        }
        CHECK(damacy__chunks_settle(chunks, block, bytes != NULL) == NULL);
        if (bytes) {
            damacy__chunks_unpin(chunks, block);
        }
    } else if (answer == DAMACY__ASK_KEPT) {
        const uint8_t* bytes = chunks->bytes + block->offset;
        CHECK_EQ(bytes[0], number & 0xff);
        CHECK_EQ(bytes[size - 1], number & 0xff);
        damacy__chunks_unpin(chunks, block);
    }
    return answer;
}

/* The blocks divide the range without gaps, and every record is a block, coming, or unused. */
static void check_whole(const damacy__chunks* chunks)
{
    const damacy__block* at = NULL;
    uint64_t end = 0;
    uint64_t n_blocks = 0;
    uint64_t n_unused = 0;
    uint64_t n_coming = 0;

    for (uint64_t i = 0; i < chunks->n_records; i++) {
        const damacy__block* block = &chunks->records[i];
        if (block->size != 0 && block->offset == 0) {
            CHECK(at == NULL);
            at = block;
        }
        n_coming += block->size == 0 && block->state == DAMACY__BLOCK_COMING;
    }
    for (const damacy__block* before = NULL; at; before = at, at = at->after) {
        CHECK(at->before == before);
        CHECK_EQ(at->offset, end);
        CHECK(at->size > 0);
        CHECK(!(before && before->state == DAMACY__BLOCK_HOLE && at->state == DAMACY__BLOCK_HOLE));
        end += at->size;
        n_blocks++;
    }
    CHECK_EQ(end, chunks->size);
    for (const damacy__block* unused = chunks->unused; unused;
         unused = (const damacy__block*)(const void*)unused->entry.chain) {
        n_unused++;
    }
    CHECK_EQ(n_blocks + n_unused + n_coming, chunks->n_records);
    CHECK(!chunks->hole || chunks->hole->state == DAMACY__BLOCK_HOLE);
}

TEST(a_chunk_is_decoded_once_and_found_again)
{
    damacy__chunks chunks = make(8);

    CHECK_EQ(use(&chunks, 5, 100), DAMACY__ASK_DECODE);
    CHECK_EQ(use(&chunks, 5, 100), DAMACY__ASK_KEPT);
    CHECK_EQ(use(&chunks, 6, 100), DAMACY__ASK_DECODE);
    CHECK_EQ(use(&chunks, 5, 100), DAMACY__ASK_KEPT);
    check_whole(&chunks);
    damacy__chunks_deinit(&chunks, &alloc);
    CHECK_EQ(alloc.live_bytes, 0);
}

TEST(the_one_used_longest_ago_goes_first)
{
    damacy__chunks chunks = make(4);
    const uint64_t size = chunks.size / 4 / PAGE * PAGE;

    for (uint64_t i = 0; i < 4; i++) {
        CHECK_EQ(use(&chunks, i, size), DAMACY__ASK_DECODE);
    }
    CHECK_EQ(use(&chunks, 0, size), DAMACY__ASK_KEPT);
    while (chunks.hole) { /* what the division leaves */
        CHECK_EQ(use(&chunks, 100 + chunks.hole->size, PAGE), DAMACY__ASK_DECODE);
    }
    CHECK_EQ(use(&chunks, 4, size), DAMACY__ASK_DECODE);
    CHECK_EQ(use(&chunks, 0, size), DAMACY__ASK_KEPT);
    CHECK_EQ(use(&chunks, 1, size), DAMACY__ASK_DECODE);
    check_whole(&chunks);
    damacy__chunks_deinit(&chunks, &alloc);
}

TEST(pinned_chunks_stay_and_nobody_waits_for_their_space)
{
    damacy__chunks chunks = make(2);
    const uint64_t size = chunks.size;
    damacy__waiter waiter = {0};
    damacy__block* held;
    damacy__block* other;

    CHECK_EQ(use(&chunks, 1, size), DAMACY__ASK_DECODE);
    CHECK_EQ(damacy__chunks_ask(&chunks, 1, 1, size, &waiter, &held), DAMACY__ASK_KEPT);
    CHECK_EQ(damacy__chunks_ask(&chunks, 1, 2, size, &waiter, &other), DAMACY__ASK_DECODE);
    CHECK(damacy__chunks_place(&chunks, other, size) == NULL);
    CHECK(damacy__chunks_settle(&chunks, other, false) == NULL);
    damacy__chunks_unpin(&chunks, held);
    CHECK_EQ(use(&chunks, 1, size), DAMACY__ASK_KEPT);
    CHECK_EQ(use(&chunks, 2, size), DAMACY__ASK_DECODE);
    CHECK_EQ(use(&chunks, 1, size), DAMACY__ASK_DECODE);
    check_whole(&chunks);
    damacy__chunks_deinit(&chunks, &alloc);
}

TEST(who_asks_while_a_chunk_is_coming_is_told_when_it_is_there)
{
    damacy__chunks chunks = make(4);
    damacy__waiter waiters[2] = {{0}};
    damacy__block* first;
    damacy__block* block;
    damacy__waiter* told;

    CHECK_EQ(damacy__chunks_ask(&chunks, 7, 1, 10, &waiters[0], &first), DAMACY__ASK_DECODE);
    CHECK_EQ(damacy__chunks_ask(&chunks, 7, 1, 10, &waiters[0], &block), DAMACY__ASK_WAIT);
    CHECK_EQ(damacy__chunks_ask(&chunks, 7, 1, 10, &waiters[1], &block), DAMACY__ASK_WAIT);
    CHECK(block == first);
    CHECK(damacy__chunks_place(&chunks, first, 10) != NULL);
    told = damacy__chunks_settle(&chunks, first, true);
    CHECK(told == &waiters[1] && told->next == &waiters[0] && !waiters[0].next);
    CHECK_EQ(first->n_pins, 3);
    damacy__chunks_deinit(&chunks, &alloc);
}

TEST(a_chunk_that_failed_is_forgotten_and_its_waiters_are_told)
{
    damacy__chunks chunks = make(4);
    damacy__waiter waiter = {0};
    damacy__block* block;

    CHECK_EQ(damacy__chunks_ask(&chunks, 7, 1, 10, &waiter, &block), DAMACY__ASK_DECODE);
    CHECK_EQ(damacy__chunks_ask(&chunks, 7, 1, 10, &waiter, &block), DAMACY__ASK_WAIT);
    CHECK(damacy__chunks_place(&chunks, block, 10) != NULL);
    CHECK(damacy__chunks_settle(&chunks, block, false) == &waiter);
    CHECK_EQ(damacy__chunks_ask(&chunks, 7, 1, 10, &waiter, &block), DAMACY__ASK_DECODE);
    CHECK(damacy__chunks_settle(&chunks, block, false) == NULL);
    check_whole(&chunks);
    damacy__chunks_deinit(&chunks, &alloc);
}

TEST(another_index_is_another_chunk_and_serial_0_is_none)
{
    damacy__chunks chunks = make(4);
    damacy__waiter waiter = {0};
    damacy__block* block;

    CHECK_EQ(use(&chunks, 3, 10), DAMACY__ASK_DECODE);
    CHECK_EQ(damacy__chunks_ask(&chunks, 2, 3, 10, &waiter, &block), DAMACY__ASK_DECODE);
    CHECK_EQ(damacy__chunks_ask(&chunks, 0, 3, 10, &waiter, &block), DAMACY__ASK_ALONE);
    CHECK_EQ(damacy__chunks_ask(&chunks, 1, 4, chunks.size + 1, &waiter, &block),
             DAMACY__ASK_ALONE);
    damacy__chunks_deinit(&chunks, &alloc);
}

TEST(a_cache_without_room_for_a_page_keeps_nothing)
{
    damacy__chunks chunks;
    damacy__waiter waiter = {0};
    damacy__block* block;
    damacy_error err;

    CHECK_EQ(damacy__chunks_init(&chunks, &alloc, 1, &err), DAMACY_OK);
    CHECK_EQ(chunks.size, 0);
    CHECK_EQ(damacy__chunks_ask(&chunks, 1, 4, 10, &waiter, &block), DAMACY__ASK_ALONE);
    damacy__chunks_deinit(&chunks, &alloc);
    CHECK_EQ(alloc.live_bytes, 0);
}

/* Random chunks of random sizes, some of them held for a while: contents never change, and the
 * range stays whole. */
TEST(chunks_of_all_sizes_come_and_go_and_keep_their_bytes)
{
    enum { HELD = 6, STEPS = 20000 };
    damacy__chunks chunks = make(64);
    damacy__block* held[HELD] = {0};
    uint64_t numbers[HELD] = {0};
    uint64_t seed = test_seed();
    uint64_t n_kept = 0;

    for (int i = 0; i < STEPS; i++) {
        const uint64_t number = 1 + test_random(&seed) % 40;
        const uint64_t size = 1 + number * number * 97 % (9 * PAGE);
        const uint64_t at = test_random(&seed) % HELD;
        damacy__waiter waiter = {0};
        if (held[at]) {
            const uint8_t* bytes = chunks.bytes + held[at]->offset;
            const uint64_t n = 1 + numbers[at] * numbers[at] * 97 % (9 * PAGE);
            CHECK_EQ(bytes[0], numbers[at]);
            CHECK_EQ(bytes[n - 1], numbers[at]);
            damacy__chunks_unpin(&chunks, held[at]);
            held[at] = NULL;
        } else if (test_random(&seed) % 4 == 0) {
            if (use(&chunks, number, size) != DAMACY__ASK_ALONE &&
                damacy__chunks_ask(&chunks, 1, number, size, &waiter, &held[at]) !=
                    DAMACY__ASK_KEPT) {
                CHECK(damacy__chunks_settle(&chunks, held[at], false) == NULL);
                held[at] = NULL;
            }
            numbers[at] = number;
        } else {
            n_kept += use(&chunks, number, size) == DAMACY__ASK_KEPT;
        }
        if (i % 64 == 0) {
            check_whole(&chunks);
        }
    }
    CHECK(n_kept > STEPS / 20);
    damacy__chunks_deinit(&chunks, &alloc);
    CHECK_EQ(alloc.live_bytes, 0);
}

/* As of a device: addresses that nobody here can read. */
TEST(bytes_of_somebody_elses_are_divided_and_never_looked_at)
{
    const uint64_t address = UINT64_C(0x7f00000000000000), size = 4 * PAGE;
    damacy__chunks chunks;
    damacy__waiter waiter = {0};
    damacy__block* blocks[4];
    damacy_error err;

    CHECK_EQ(damacy__chunks_borrow(&chunks, &alloc, address, size + PAGE - 1, 16, &err), DAMACY_OK);
    CHECK_EQ(chunks.size, size);
    for (uint64_t i = 0; i < 8; i++) {
        CHECK_EQ(damacy__chunks_ask(&chunks, 1, i, PAGE, &waiter, &blocks[i % 4]),
                 DAMACY__ASK_DECODE);
        CHECK_EQ((uint64_t)(uintptr_t)damacy__chunks_place(&chunks, blocks[i % 4], PAGE),
                 address + i % 4 * PAGE);
        CHECK(damacy__chunks_settle(&chunks, blocks[i % 4], true) == NULL);
        damacy__chunks_unpin(&chunks, blocks[i % 4]);
    }
    check_whole(&chunks);
    damacy__chunks_deinit(&chunks, &alloc);
    CHECK_EQ(alloc.live_bytes, 0);
    CHECK_EQ(damacy__chunks_borrow(&chunks, &alloc, address, PAGE - 1, 16, &err), DAMACY_OK);
    CHECK_EQ(chunks.size, 0);
    damacy__chunks_deinit(&chunks, &alloc);
}

TEST(more_small_chunks_than_records_still_replace_each_other)
{
    damacy__chunks chunks = make(64);

    for (uint64_t i = 0; i < 500; i++) {
        CHECK_EQ(use(&chunks, i, 1), DAMACY__ASK_DECODE);
        CHECK_EQ(use(&chunks, i, 1), DAMACY__ASK_KEPT);
        CHECK_EQ(use(&chunks, i > 4 ? i - 4 : i, 1), DAMACY__ASK_KEPT);
    }
    check_whole(&chunks);
    CHECK_EQ(use(&chunks, 1000, 20 * PAGE), DAMACY__ASK_DECODE);
    check_whole(&chunks);
    damacy__chunks_deinit(&chunks, &alloc);
}

TEST_MAIN
