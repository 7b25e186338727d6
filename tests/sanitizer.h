/* Which sanitizer watches this build: TEST_TSAN and TEST_ASAN are 1 where it does, else 0. */
#ifndef DAMACY_TEST_SANITIZER_H
#define DAMACY_TEST_SANITIZER_H

/* gcc defines a macro for each; clang answers a question that gcc may not even parse. */
#if defined(__SANITIZE_THREAD__)
#define TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_TSAN 1
#endif
#endif
#if !defined(TEST_TSAN)
#define TEST_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ASAN 1
#endif
#endif
#if !defined(TEST_ASAN)
#define TEST_ASAN 0
#endif

#endif
