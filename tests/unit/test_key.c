/* Keys of objects. */
#include "tests/test.h"
#include "format/key.h"

static const char* key(uint32_t rank, int is_v2, char separator, const int64_t* position)
{
    static char text[DAMACY__KEY_CAPACITY];
    damacy__layout layout;
    damacy_error err;

    memset(&layout, 0, sizeof layout);
    layout.rank = rank;
    layout.key_is_v2 = (uint32_t)is_v2;
    layout.key_separator = separator;
    CHECK_EQ(damacy__key_write(&layout, position, text, sizeof text, &err), DAMACY_OK);
    return text;
}

TEST(keys_of_both_encodings_and_separators)
{
    const int64_t position[] = {0, 12, INT64_C(9223372036854775807)};

    CHECK_STR(key(3, 0, '/', position), "c/0/12/9223372036854775807");
    CHECK_STR(key(3, 0, '.', position), "c.0.12.9223372036854775807");
    CHECK_STR(key(3, 1, '.', position), "0.12.9223372036854775807");
    CHECK_STR(key(3, 1, '/', position), "0/12/9223372036854775807");
    CHECK_STR(key(1, 0, '/', position), "c/0");
    CHECK_STR(key(1, 1, '.', position), "0");
}

TEST(keys_of_arrays_without_axes)
{
    CHECK_STR(key(0, 0, '/', NULL), "c");
    CHECK_STR(key(0, 0, '.', NULL), "c");
    CHECK_STR(key(0, 1, '.', NULL), "0");
    CHECK_STR(key(0, 1, '/', NULL), "0");
}

TEST(the_longest_key_fits_and_one_byte_less_does_not)
{
    int64_t position[DAMACY_MAX_RANK];
    char text[DAMACY__KEY_CAPACITY];
    damacy__layout layout;
    damacy_error err;
    size_t len;

    for (int i = 0; i < DAMACY_MAX_RANK; i++) {
        position[i] = INT64_MAX;
    }
    memset(&layout, 0, sizeof layout);
    layout.rank = DAMACY_MAX_RANK;
    layout.key_separator = '/';
    CHECK_EQ(damacy__key_write(&layout, position, text, sizeof text, &err), DAMACY_OK);
    len = strlen(text);
    CHECK_EQ(len, 1 + 32 * 20);
    memset(text, 'x', sizeof text);
    CHECK_EQ(damacy__key_write(&layout, position, text, len, &err), DAMACY_INVAL);
    CHECK(text[0] == 'x');
    CHECK_EQ(damacy__key_write(&layout, position, text, len + 1, &err), DAMACY_OK);
    CHECK_EQ(damacy__key_write(&layout, position, text, 0, &err), DAMACY_INVAL);
}

TEST_MAIN
