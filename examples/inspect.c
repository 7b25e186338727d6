/* Prints what a Zarr array or OME-NGFF image is, and whether its chunks are sound.
 *
 *     cc -O2 -o inspect inspect.c && ./inspect volume.zarr
 *     volume.zarr: uint16 [256, 512, 512], Zarr v3
 *     chunks [32, 64, 64] in shards [128, 256, 256]: sharding_indexed(bytes,zstd)
 *     axes z y x
 *     level 0 at "0": voxels of 0.4 0.4 0.4
 *     level 1 at "1": voxels of 0.8 0.8 0.8
 *     512 chunks sound, 0 missing, 0 bad: 52.1 MB hold 134.2 MB */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include <inttypes.h>
#include <stdio.h>

static void print_shape(const int64_t* shape, uint32_t rank)
{
    for (uint32_t axis = 0; axis < rank; axis++) {
        printf("%s%" PRId64, axis ? ", " : "[", shape[axis]);
    }
    printf(rank ? "]" : "[]");
}

static void print_finding(void* user, const damacy_error* finding)
{
    (void)user;
    printf("bad: %s: %s: %s\n", finding->chunk, damacy_status_str(finding->status),
           finding->message);
}

static void print_info(const damacy_array_info_t* info)
{
    printf("%s: %s ", info->uri, info->data_type);
    print_shape(info->shape, info->rank);
    printf(", Zarr v%u\nchunks ", info->zarr_format);
    print_shape(info->chunk_shape, info->rank);
    if (info->is_sharded) {
        printf(" in shards ");
        print_shape(info->shard_shape, info->rank);
    }
    printf(": %s\naxes", info->codecs);
    for (uint32_t axis = 0; axis < info->rank; axis++) {
        const char* name =
            info->axis_names[axis] ? info->axis_names[axis] : info->dimension_names[axis];
        printf(" %s", name ? name : "?");
    }
    printf("\n");
    for (uint32_t level = 0; level < info->n_levels; level++) {
        printf("level %u at \"%s\": voxels of", level, info->levels[level].path);
        for (uint32_t axis = 0; axis < info->rank; axis++) {
            printf(" %g", info->levels[level].scale[axis]);
        }
        printf("\n");
    }
}

int main(int argc, char** argv)
{
    damacy_array* array;
    damacy_array_info_t info;
    damacy_verify_result result;
    damacy_error err;

    if (argc != 2) {
        fprintf(stderr, "usage: inspect ARRAY\n");
        return 2;
    }
    if (damacy_array_open(NULL, argv[1], &array, &err) != DAMACY_OK) {
        fprintf(stderr, "inspect: %s: %s\n", damacy_status_str(err.status), err.message);
        return 1;
    }
    damacy_array_info(array, &info);
    print_info(&info);
    damacy_array_close(array);

    if (damacy_verify(NULL, argv[1], print_finding, NULL, &result, &err) != DAMACY_OK) {
        fprintf(stderr, "inspect: %s: %s\n", damacy_status_str(err.status), err.message);
        return 1;
    }
    printf("%" PRIu64 " chunks sound, %" PRIu64 " missing, %" PRIu64 " bad: %.1f MB hold %.1f MB\n",
           result.n_chunks - result.n_bad, result.n_missing, result.n_bad,
           (double)result.size_stored / 1e6, (double)result.size_decoded / 1e6);
    return result.n_bad != 0;
}
