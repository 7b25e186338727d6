/* LZ4 blocks: the first two bytes are the decoded size. Where the reference accepts too, the bytes
 * are the same; it also demands that blocks end as writers end them, and lets an offset of 0 pass,
 * so that the two need not agree on every block. */
#include "codec/lz4.h"
#include <lz4.h>

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    damacy_error err;
    size_t expected;
    uint8_t* ours;
    uint8_t* theirs;

    if (size < 2) {
        return 0;
    }
    expected = data[0] | (size_t)data[1] << 8;
    ours = (uint8_t*)malloc(expected ? expected : 1);
    theirs = (uint8_t*)malloc(expected ? expected : 1);
    if (ours && theirs &&
        damacy__lz4_decode(damacy__span_of(data + 2, size - 2), ours, expected, &err) ==
            DAMACY_OK) {
        const int n = LZ4_decompress_safe((const char*)data + 2, (char*)theirs, (int)(size - 2),
                                          (int)expected);

        if (n == (int)expected && memcmp(ours, theirs, expected) != 0) {
            abort();
        }
    }
    free(theirs);
    free(ours);
    return 0;
}
