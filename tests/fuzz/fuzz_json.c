/* JSON texts: parsed or refused; every token can be looked at; nothing is left behind. */
#include "format/json.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    damacy__alloc alloc = {0};
    damacy__json json;
    damacy_error err;
    uint64_t number;
    char text[64];

    memset(&json, 0, sizeof json);
    if (damacy__json_parse(&json, &alloc, damacy__span_of(data, size), NULL, &err) == DAMACY_OK) {
        for (uint32_t i = 0; i < json.n_tokens; i++) {
            const damacy__json_kind kind = damacy__json_kind_of(&json, i);
            const damacy__span source = damacy__json_source(&json, i);

            assert(source.ptr >= data && source.size <= size);
            if (kind == DAMACY__JSON_STRING) {
                (void)damacy__json_decode(&json, i, text, sizeof text);
                (void)damacy__json_equals(&json, i, "zarr");
            } else if (kind == DAMACY__JSON_NUMBER) {
                (void)damacy__json_u64(&json, i, &number);
            } else if (kind == DAMACY__JSON_OBJECT) {
                (void)damacy__json_member(&json, i, "shape");
            }
        }
        (void)damacy__json_refuse_duplicates(&json, &alloc, &err);
        damacy__json_deinit(&json, &alloc);
    }
    assert(alloc.live_bytes == 0);
    return 0;
}
