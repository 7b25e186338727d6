/* Zstandard frames through our own decoder and through libzstd; the first two bytes are the size
 * that is expected. Where both accept, the bytes are the same; every other end is an error with a
 * message and a place inside the input. */
#include "codec/zstd.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    static damacy__libraries libraries; /* opened once: dlopen is slow */
    static damacy__zstd theirs;
    static damacy__zstd ours;
    static damacy__alloc alloc;
    damacy__span src;
    damacy_error err;
    uint8_t* dst[2];
    damacy_status status[2];
    size_t expected;

    if (size < 2 ||
        (!libraries.has_mutex && damacy__libraries_init(&libraries, &err) != DAMACY_OK)) {
        return 0;
    }
    ours.alloc = &alloc;
    ours.is_open = true;
    status[1] = damacy__zstd_open(&theirs, &libraries, false, &err);
    expected = data[0] | (size_t)data[1] << 8;
    src = damacy__span_of(data + 2, size - 2);
    dst[0] = (uint8_t*)malloc(expected ? expected : 1);
    dst[1] = (uint8_t*)malloc(expected ? expected : 1);
    err.message[0] = 0;
    err.offset = UINT64_MAX;
    if (dst[0] && dst[1] && status[1] == DAMACY_OK) {
        status[0] = damacy__zstd_decode(&ours, src, dst[0], expected, NULL, &err);
        if (status[0] != DAMACY_OK &&
            (err.message[0] == 0 || (err.offset != UINT64_MAX && err.offset > src.size))) {
            abort();
        }
        status[1] = damacy__zstd_decode(&theirs, src, dst[1], expected, NULL, &err);
        if (status[0] == DAMACY_OK && status[1] == DAMACY_OK &&
            memcmp(dst[0], dst[1], expected) != 0) {
            abort();
        }
    }
    free(dst[1]);
    free(dst[0]);
    return 0;
}
