/* Any bytes as zarr.json: a document that is accepted has a layout that holds together. Attributes
 * of groups are read as NGFF. */
#include "format/key.h"
#include "format/ngff.h"
#include "format/zarr.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* The farthest element that the strides reach is the last of the chunk, and likewise the last
 * entry. */
static void check_layout(const damacy__layout* layout)
{
    uint64_t last = 0;
    uint64_t last_entry = 0;
    uint64_t n = 1;
    char key[DAMACY__KEY_CAPACITY];
    damacy_error err;

    require(layout->rank <= DAMACY_MAX_RANK);
    for (uint32_t i = 0; i < layout->rank; i++) {
        require(layout->chunk_shape[i] > 0 &&
                layout->object_shape[i] % layout->chunk_shape[i] == 0);
        n *= (uint64_t)layout->chunk_shape[i];
        last += (uint64_t)(layout->chunk_shape[i] - 1) * (uint64_t)layout->chunk_stride[i];
        last_entry += (uint64_t)(layout->object_shape[i] / layout->chunk_shape[i] - 1) *
                      layout->index_stride[i];
    }
    require(last + 1 == n);
    require(layout->chunk_size == n * layout->item_size);
    require(last_entry + 1 == layout->n_entries);
    require(layout->chunk_chain.n > 0);
    require((layout->sharding != NULL) == (layout->is_sharded != 0));
    require(layout->index_size >= (layout->is_sharded ? 16 * layout->n_entries : 0));
    require(damacy__key_write(layout, layout->shape, key, sizeof key, &err) == DAMACY_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    damacy__alloc alloc = {0};
    damacy__document document;
    damacy_error err;

    if (damacy__zarr_parse(&alloc, damacy__span_of(data, size), &document, &err) == DAMACY_OK) {
        damacy__ngff ngff;
        const damacy__span attributes =
            damacy__span_of(document.attributes, strlen(document.attributes));

        if (document.node == DAMACY__NODE_ARRAY) {
            check_layout(&document.layout);
        }
        if (damacy__ngff_parse(&alloc, attributes, &ngff, &err) == DAMACY_OK) {
            require(ngff.n_levels > 0 && ngff.n_axes <= DAMACY_MAX_RANK);
            for (uint32_t i = 0; i < ngff.n_levels; i++) {
                require(ngff.levels[i].path[0] != '/' && !strstr(ngff.levels[i].path, "/../"));
            }
            damacy__ngff_deinit(&ngff, &alloc);
        }
        damacy__document_deinit(&document, &alloc);
    }
    require(alloc.live_blocks == 0 && alloc.live_bytes == 0);
    return 0;
}
