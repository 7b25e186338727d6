/* A test runner in one header: TEST(name) { CHECK(...); }, TAP on stdout, exit 1 when a test
 * failed.
 *
 * A program with tests includes this file once and ends with TEST_MAIN. Arguments filter tests by
 * substring. A failing check prints where and what and ends its test; SKIP says why and ends it
 * too. */
#ifndef DAMACY_TEST_H
#define DAMACY_TEST_H
#include "tests/sanitizer.h"
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct test_case {
    const char* name;
    void (*run)(void);
    struct test_case* next;
} test_case;

static test_case* test_first;
static test_case** test_end = &test_first;
static jmp_buf test_jump;
static int test_skipped;

static void test_add(test_case* test)
{
    *test_end = test;
    test_end = &test->next;
}

#define TEST(id)                                                 \
    static void test_##id(void);                                 \
    static test_case test_case_##id = {#id, test_##id, 0};       \
    __attribute__((constructor)) static void test_add_##id(void) \
    {                                                            \
        test_add(&test_case_##id);                               \
    }                                                            \
    static void test_##id(void)

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            printf("# %s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
            longjmp(test_jump, 1);                                          \
        }                                                                   \
    } while (0)

/* Two integers are equal; prints both. */
#define CHECK_EQ(a, b)                                                                       \
    do {                                                                                     \
        const long long test_a = (long long)(a);                                             \
        const long long test_b = (long long)(b);                                             \
        if (test_a != test_b) {                                                              \
            printf("# %s:%d: %s == %s: %lld and %lld\n", __FILE__, __LINE__, #a, #b, test_a, \
                   test_b);                                                                  \
            longjmp(test_jump, 1);                                                           \
        }                                                                                    \
    } while (0)

#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char* test_a = (a);                                                                  \
        const char* test_b = (b);                                                                  \
        if (strcmp(test_a, test_b) != 0) {                                                         \
            printf("# %s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__, #a, test_a, test_b); \
            longjmp(test_jump, 1);                                                                 \
        }                                                                                          \
    } while (0)

/* The text holds the part. */
#define CHECK_HAS(text, part)                                                             \
    do {                                                                                  \
        const char* test_a = (text);                                                      \
        const char* test_b = (part);                                                      \
        if (!strstr(test_a, test_b)) {                                                    \
            printf("# %s:%d: \"%s\" lacks \"%s\"\n", __FILE__, __LINE__, test_a, test_b); \
            longjmp(test_jump, 1);                                                        \
        }                                                                                 \
    } while (0)

#define SKIP(reason)                                                   \
    do {                                                               \
        printf("# skip: %s\n", reason);                                \
        test_skipped = 1;                                              \
        (void)snprintf(test_reason, sizeof test_reason, "%s", reason); \
        longjmp(test_jump, 2);                                         \
    } while (0)

static char test_reason[256];

/* Reproducible random numbers (xorshift64*); seed with the printed value. */
static inline uint64_t test_random(uint64_t* state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* The seed of this run: TEST_SEED, or a fixed one. Printed, so that a failure can be replayed. */
static inline uint64_t test_seed(void)
{
    const char* text = getenv("TEST_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 0) : UINT64_C(20250101);

    printf("# seed %llu (set TEST_SEED to change it)\n", (unsigned long long)seed);
    return seed ? seed : 1;
}

/* 0: passed, 1: failed, 2: skipped. Alone in a function, so that no variable lives across setjmp.
 */
__attribute__((noinline)) static int test_run(const test_case* test)
{
    switch (setjmp(test_jump)) {
    case 0:
        test->run();
        return 0;
    case 2:
        return 2;
    default:
        return 1;
    }
}

static int test_main(int argc, char** argv)
{
    int number = 0;
    int failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (test_case* test = test_first; test; test = test->next) {
        int wanted = argc < 2;
        for (int i = 1; i < argc; i++) {
            wanted = wanted || strstr(test->name, argv[i]) != NULL;
        }
        if (!wanted) {
            continue;
        }
        number++;
        test_skipped = 0;
        switch (test_run(test)) {
        case 0:
            printf("ok %d - %s\n", number, test->name);
            break;
        case 2:
            printf("ok %d - %s # SKIP %s\n", number, test->name, test_reason);
            break;
        default:
            failed++;
            printf("not ok %d - %s\n", number, test->name);
        }
    }
    printf("1..%d\n", number);
    return failed != 0;
}

#define TEST_MAIN                     \
    int main(int argc, char** argv)   \
    {                                 \
        return test_main(argc, argv); \
    }

#endif
