/* Any bytes as .zarray or .zgroup and, after the first zero byte, .zattrs: what is accepted has a
 * layout that holds together. */
#include "format/zarr2.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check_layout(const damacy__layout* layout)
{
    uint64_t last = 0;
    uint64_t n = 1;

    require(layout->rank <= DAMACY_MAX_RANK);
    for (uint32_t i = 0; i < layout->rank; i++) {
        require(layout->chunk_shape[i] > 0 && layout->chunk_shape[i] == layout->object_shape[i]);
        n *= (uint64_t)layout->chunk_shape[i];
        last += (uint64_t)(layout->chunk_shape[i] - 1) * (uint64_t)layout->chunk_stride[i];
    }
    require(last + 1 == n && layout->chunk_size == n * layout->item_size);
    require(layout->n_entries == 1 && !layout->is_sharded && !layout->is_nested);
    require(layout->chunk_chain.n > 0 && layout->chunk_chain.n <= 3);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    const uint8_t* zero = size ? (const uint8_t*)memchr(data, 0, size) : NULL;
    const size_t text_size = zero ? (size_t)(zero - data) : size;
    const size_t rest = zero ? size - text_size - 1 : 0;
    damacy__alloc alloc = {0};
    damacy__document document;
    damacy_error err;

    if (damacy__zarr2_parse(&alloc, damacy__span_of(data, text_size),
                            damacy__span_of(zero ? zero + 1 : NULL, rest), &document,
                            &err) == DAMACY_OK) {
        require(document.zarr_format == 2 && document.attributes != NULL);
        if (document.node == DAMACY__NODE_ARRAY) {
            check_layout(&document.layout);
        }
        damacy__document_deinit(&document, &alloc);
    }
    require(alloc.live_blocks == 0 && alloc.live_bytes == 0);
    return 0;
}
