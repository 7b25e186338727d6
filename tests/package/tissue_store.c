/* Writes the nuclei of a small synthetic organoid as one array: tissue_store FOLDER. */
#include "tools/tissue.h"
#include "tools/zarr_write.h"

static const tissue organoid = {{64, 96, 96}, 7};

static void fill(void* user, const int64_t begin[3], const int64_t extent[3], void* dst)
{
    (void)user;
    tissue_fill(&organoid, TISSUE_NUCLEI, begin, extent, (uint16_t*)dst);
}

int main(int argc, char** argv)
{
    zarr_spec spec = {0};
    zarr_result result;

    spec.path = argc > 1 ? argv[1] : "tissue.zarr";
    for (int axis = 0; axis < 3; axis++) {
        spec.shape[axis] = organoid.shape[axis];
        spec.chunk[axis] = 32;
        spec.shard[axis] = 64;
    }
    spec.dtype = "uint16";
    spec.item_size = 2;
    spec.level = 1;
    spec.fill = fill;
    if (!zarr_write(&spec, &result)) {
        (void)fprintf(stderr, "tissue_store: %s\n", result.message);
        return 1;
    }
    return 0;
}
