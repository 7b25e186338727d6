/* Position of an object in the chunk grid -> its key below the array, such as "c/0/1" or "0.1". */
#pragma once
#include "format/layout.h"

/* Enough for every key: "c", 32 separators, numbers of up to 19 digits, a zero. */
enum { DAMACY__KEY_CAPACITY = 2 + DAMACY_MAX_RANK * 20 };

/* text receives at most capacity bytes, the final zero included. Fails only when it is too small.
 */
static inline damacy_status damacy__key_write(const damacy__layout* layout, const int64_t* position,
                                              char* text, size_t capacity, damacy_error* err)
{
    char key[DAMACY__KEY_CAPACITY];
    size_t size = 0;

    if (!layout->key_is_v2) {
        key[size++] = 'c';
    } else if (layout->rank == 0) {
        key[size++] = '0';
    }
    for (uint32_t i = 0; i < layout->rank; i++) {
        char digits[20];
        uint32_t n = 0;
        uint64_t number = (uint64_t)position[i];

        if (size > 0) {
            key[size++] = layout->key_separator;
        }
        do {
            digits[n++] = (char)('0' + number % 10);
            number /= 10;
        } while (number);
        while (n > 0) {
            key[size++] = digits[--n];
        }
    }
    key[size++] = '\0';
    if (size > capacity) {
        return damacy__fail(err, DAMACY_INVAL, "the key %.64s needs %zu bytes, there are %zu", key,
                            size, capacity);
    }
    memcpy(text, key, size);
    return DAMACY_OK;
}
