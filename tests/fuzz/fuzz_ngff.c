/* Attributes of groups: accepted images have levels whose paths stay inside; nothing is left
 * behind. */
#include "format/ngff.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    damacy__alloc alloc = {0};
    damacy__ngff ngff;
    damacy_error err;

    memset(&ngff, 0, sizeof ngff);
    if (damacy__ngff_parse(&alloc, damacy__span_of(data, size), &ngff, &err) == DAMACY_OK) {
        for (uint32_t i = 0; i < ngff.n_levels; i++) {
            assert(ngff.levels[i].path[0] != '/' && strcmp(ngff.levels[i].path, "..") != 0 &&
                   strncmp(ngff.levels[i].path, "../", 3) != 0);
        }
        damacy__ngff_deinit(&ngff, &alloc);
    }
    assert(alloc.live_bytes == 0);
    return 0;
}
