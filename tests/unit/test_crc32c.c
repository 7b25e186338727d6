/* CRC-32C: known values, and the fast form against the table for every length and offset. */
#include "tests/test.h"
#include "base/crc32c.h"

TEST(known_values_of_rfc3720_and_the_check_value)
{
    uint8_t bytes[32];

    CHECK_EQ(damacy__crc32c("123456789", 9), 0xe3069283);
    CHECK_EQ(damacy__crc32c("", 0), 0);
    memset(bytes, 0, sizeof bytes);
    CHECK_EQ(damacy__crc32c(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    CHECK_EQ(damacy__crc32c(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (uint8_t)i;
    }
    CHECK_EQ(damacy__crc32c(bytes, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (uint8_t)(31 - i);
    }
    CHECK_EQ(damacy__crc32c(bytes, 32), 0x113fdb5c);
}

TEST(the_fast_form_equals_the_table)
{
    enum { SIZE = 70000 };
    uint8_t* bytes = (uint8_t*)malloc(SIZE);
    uint64_t state = test_seed();

    CHECK(bytes != NULL);
    for (size_t i = 0; i < SIZE; i++) {
        bytes[i] = (uint8_t)test_random(&state);
    }
    for (size_t round = 0; round < 3000; round++) {
        const size_t offset = round % 17;
        const size_t size = round < 600 ? round : test_random(&state) % (SIZE - offset);
        const uint32_t slow = ~damacy__crc32c_bytes(UINT32_MAX, bytes + offset, size);
        uint8_t* exact = (uint8_t*)malloc(size ? size : 1); /* reads beyond it are seen */

        CHECK(exact != NULL);
        memcpy(exact, bytes + offset, size);
        CHECK_EQ(damacy__crc32c(bytes + offset, size), slow);
        CHECK_EQ(damacy__crc32c(exact, size), slow);
        free(exact);
    }
    free(bytes);
}

TEST(each_flipped_bit_changes_the_checksum)
{
    uint8_t bytes[36] = {1, 2, 3};
    const uint32_t whole = damacy__crc32c(bytes, sizeof bytes);

    for (uint32_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(damacy__crc32c(bytes, sizeof bytes) != whole);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

TEST_MAIN
