/* damacy info: what an array is, as lines to read or as one line of JSON. */
#pragma once
#include "tools/damacy_options.h"

static void print_text(const char* text)
{
    (void)putchar('"');
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            (void)printf("\\%c", c);
        } else if (c < 0x20) {
            (void)printf("\\u%04x", c);
        } else {
            (void)putchar(c);
        }
    }
    (void)putchar('"');
}

static void print_list(const int64_t* values, uint32_t n)
{
    (void)putchar('[');
    for (uint32_t i = 0; i < n; i++) {
        (void)printf("%s%lld", i ? ", " : "", (long long)values[i]);
    }
    (void)putchar(']');
}

static void print_names(const char* const* names, uint32_t n)
{
    (void)putchar('[');
    for (uint32_t i = 0; i < n; i++) {
        (void)printf("%s", i ? ", " : "");
        if (names[i]) {
            print_text(names[i]);
        } else {
            (void)printf("null");
        }
    }
    (void)putchar(']');
}

static void print_fill(const damacy_array_info_t* info)
{
    (void)printf("0x");
    for (size_t i = damacy_dtype_size(info->dtype); i-- > 0;) {
        (void)printf("%02x", info->fill_value[i]);
    }
}

/* With as few digits as give the same number again. */
static void print_doubles(const double* values, uint32_t n)
{
    char text[40];

    (void)putchar('[');
    for (uint32_t i = 0; i < n; i++) {
        for (int digits = 15; digits <= 17; digits++) {
            (void)snprintf(text, sizeof text, "%.*g", digits, values[i]);
            if (strtod(text, NULL) == values[i]) {
                break;
            }
        }
        (void)printf("%s%s", i ? ", " : "", text);
    }
    (void)putchar(']');
}

static void print_json(const damacy_array_info_t* info)
{
    (void)printf("{\"uri\": ");
    print_text(info->uri);
    (void)printf(", \"zarr_format\": %u, \"shape\": ", info->zarr_format);
    print_list(info->shape, info->rank);
    (void)printf(", \"data_type\": ");
    print_text(info->data_type);
    (void)printf(", \"dtype\": \"%s\", \"big_endian\": %s, \"chunk_shape\": ",
                 damacy_dtype_str(info->dtype), info->is_big_endian ? "true" : "false");
    print_list(info->chunk_shape, info->rank);
    (void)printf(", \"shard_shape\": ");
    if (info->is_sharded) {
        print_list(info->shard_shape, info->rank);
    } else {
        (void)printf("null");
    }
    (void)printf(", \"codecs\": ");
    print_text(info->codecs);
    (void)printf(", \"fill_value_bits\": \"");
    print_fill(info);
    (void)printf("\", \"dimension_names\": ");
    print_names(info->dimension_names, info->rank);
    (void)printf(", \"level\": %u, \"levels\": [", info->level);
    for (uint32_t i = 0; i < info->n_levels; i++) {
        (void)printf("%s{\"path\": ", i ? ", " : "");
        print_text(info->levels[i].path);
        (void)printf(", \"scale\": ");
        print_doubles(info->levels[i].scale, info->rank);
        (void)printf(", \"translation\": ");
        print_doubles(info->levels[i].translation, info->rank);
        (void)printf("}");
    }
    (void)printf("], \"axes\": ");
    print_names(info->axis_names, info->n_levels ? info->rank : 0);
    (void)printf(", \"attributes\": %s, \"group_attributes\": %s}\n", info->attributes,
                 info->group_attributes ? info->group_attributes : "null");
}

static void print_info(const damacy_array_info_t* info)
{
    (void)printf("uri        %s\nformat     Zarr v%u\nshape      ", info->uri, info->zarr_format);
    print_list(info->shape, info->rank);
    (void)printf("\ndata type  %s%s\nchunks     ", info->data_type,
                 info->is_big_endian ? ", big-endian" : "");
    print_list(info->chunk_shape, info->rank);
    if (info->is_sharded) {
        (void)printf("\nshards     ");
        print_list(info->shard_shape, info->rank);
    }
    (void)printf("\ncodecs     %s\nfill       ", info->codecs);
    print_fill(info);
    (void)printf("\naxes       ");
    print_names(info->n_levels ? info->axis_names : info->dimension_names, info->rank);
    (void)printf("\n");
    for (uint32_t i = 0; i < info->n_levels; i++) {
        (void)printf("level %-2u   %s%s, voxel ", i, info->levels[i].path,
                     i == info->level ? " (this one)" : "");
        print_doubles(info->levels[i].scale, info->rank);
        (void)printf("\n");
    }
}

static int run_info(const options* o)
{
    damacy_array_info_t info;
    damacy_array* array = NULL;
    damacy_error err;
    const damacy_status status = damacy_array_open(&o->config, o->uri, &array, &err);

    if (status != DAMACY_OK) {
        return failed(status, &err);
    }
    damacy_array_info(array, &info);
    if (o->is_json) {
        print_json(&info);
    } else {
        print_info(&info);
    }
    damacy_array_close(array);
    return 0;
}
