/* Blosc containers: the first two bytes are the size that is expected, the rest the container.
 * Output of exactly that size, or an error with a message. */
#include "codec/blosc.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    damacy__libraries libraries;
    damacy__zstd zstd = {0};
    damacy__blosc_tools tools;
    damacy__blosc blosc = {0};
    damacy__span src;
    damacy_error err;
    size_t expected;

    if (size < 2 || damacy__libraries_init(&libraries, &err) != DAMACY_OK) {
        return 0;
    }
    expected = data[0] | (size_t)data[1] << 8;
    src = damacy__span_of(data + 2, size - 2);
    memset(&tools, 0, sizeof tools);
    memset(&blosc, 0, sizeof blosc);
    tools.libraries = &libraries;
    tools.zstd = &zstd;
    if (damacy__zstd_open(&zstd, &libraries, false, &err) == DAMACY_OK &&
        damacy__blosc_parse(src, expected, &blosc, &err) == DAMACY_OK) {
        uint8_t* const dst = (uint8_t*)malloc(expected ? expected : 1);

        assert(blosc.size == expected);
        tools.scratch = (uint8_t*)malloc(blosc.block_size ? blosc.block_size : 1);
        if (dst && tools.scratch &&
            damacy__blosc_decode(&tools, &blosc, src, dst, &err) != DAMACY_OK) {
            assert(err.message[0] != 0);
        }
        free(tools.scratch);
        free(dst);
    }
    damacy__zstd_close(&zstd);
    damacy__libraries_deinit(&libraries);
    return 0;
}
