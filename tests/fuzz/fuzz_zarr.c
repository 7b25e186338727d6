/* Array and group documents: what is accepted has a sound layout; nothing is left behind. */
#include "format/zarr.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    damacy__alloc alloc = {0};
    damacy__document document;
    damacy_error err;

    memset(&document, 0, sizeof document);
    if (damacy__zarr_parse(&alloc, damacy__span_of(data, size), &document, &err) == DAMACY_OK) {
        if (document.node == DAMACY__NODE_ARRAY) {
            const damacy__layout* const layout = &document.layout;

            assert(layout->rank <= DAMACY_MAX_RANK && layout->item_size > 0);
            for (uint32_t i = 0; i < layout->rank; i++) {
                assert(layout->shape[i] >= 0 && layout->chunk_shape[i] > 0);
                assert(layout->object_shape[i] % layout->chunk_shape[i] == 0);
            }
        }
        damacy__document_deinit(&document, &alloc);
    } else {
        assert(err.message[0] != 0);
    }
    assert(alloc.live_bytes == 0);
    return 0;
}
