/* Zstandard frames: what our walk over the headers accepts and libzstd decodes has the expected
 * size; the first two bytes are that size. */
#include "codec/zstd.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    damacy__libraries libraries;
    damacy__zstd zstd = {0};
    damacy__span src;
    damacy_error err;
    size_t expected;
    uint8_t* dst;

    if (size < 2 || damacy__libraries_init(&libraries, &err) != DAMACY_OK) {
        return 0;
    }
    expected = data[0] | (size_t)data[1] << 8;
    src = damacy__span_of(data + 2, size - 2);
    dst = (uint8_t*)malloc(expected ? expected : 1);
    if (dst && damacy__zstd_open(&zstd, &libraries, false, &err) == DAMACY_OK) {
        uint64_t n = UINT64_MAX;

        (void)damacy__zstd_check(src, expected, &err);
        (void)damacy__zstd_decode(&zstd, src, dst, expected, NULL, &err);
        if (damacy__zstd_decode(&zstd, src, dst, expected, &n, &err) == DAMACY_OK) {
            assert(n <= expected);
        }
    }
    free(dst);
    damacy__zstd_close(&zstd);
    damacy__libraries_deinit(&libraries);
    return 0;
}
