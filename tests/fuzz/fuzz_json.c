/* Any bytes as JSON: parsed, walked, decoded, and read as numbers and fill values of every type. */
#include "format/fill.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void use_value(const damacy__json* json, uint32_t value, damacy__alloc* alloc)
{
    const damacy__json_kind kind = damacy__json_kind_of(json, value);
    damacy_error err;
    char shown[32];
    uint64_t number;

    require(strlen(damacy__json_show(json, value, shown, sizeof shown)) < sizeof shown);
    (void)damacy__json_u64(json, value, &number);
    for (size_t i = 0; i < DAMACY__COUNT(damacy__dtypes); i++) {
        uint64_t bits = 0;
        if (damacy__fill_parse(json, value, &damacy__dtypes[i], &bits, &err) == DAMACY_OK) {
            const uint32_t n_bits = 8 * (uint32_t)damacy__dtype_size(damacy__dtypes[i].dtype);
            require(n_bits == 64 || bits >> n_bits == 0);
        }
    }
    if (kind == DAMACY__JSON_STRING) {
        char* text = NULL;
        if (damacy__json_text(json, value, alloc, &text, &err) == DAMACY_OK) {
            require(damacy__json_equals(json, value, text));
            damacy__free(alloc, text, strlen(text) + 1);
        }
    }
    if (kind == DAMACY__JSON_ARRAY || kind == DAMACY__JSON_OBJECT) {
        uint32_t n = 0;
        for (uint32_t v = damacy__json_first(json, value); v != DAMACY__JSON_NONE;
             v = damacy__json_next(json, value, v)) {
            require(v < json->n_tokens);
            require(kind == DAMACY__JSON_ARRAY ||
                    damacy__json_kind_of(json, v) == DAMACY__JSON_STRING);
            n++;
        }
        require(n == damacy__json_count(json, value));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size)
{
    damacy__alloc alloc = {0};
    damacy__json json = {0};
    damacy_error err;

    if (damacy__json_parse(&json, &alloc, damacy__span_of(data, size), NULL, &err) == DAMACY_OK) {
        (void)damacy__json_refuse_duplicates(&json, &alloc, &err);
        (void)damacy__json_member(&json, 0, "shape");
        for (uint32_t i = 0; i < json.n_tokens && i < 1000; i++) {
            use_value(&json, i, &alloc);
        }
        damacy__json_deinit(&json, &alloc);
    }
    require(alloc.live_blocks == 0 && alloc.live_bytes == 0);
    return 0;
}
