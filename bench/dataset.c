/* Writes the arrays of a benchmark scenario: DIR/z000/scale0/image, z001, ...
 *
 *     dataset DIR [--arrays=8] [--shape=512,512,512] [--chunk=32,64,64] [--shard=256,256,512]
 *             [--kind=half-random] [--codec=zstd] [--level=3] [--dtype=uint16]
 *
 * kind: half-random (half the voxels uniform random, half zero), dim, bright, denoised (shot-noise
 * microscopy of blobs: few photons, many photons, few photons with the background set to zero).
 * codec: zstd, blosc-zstd (byte shuffle), mixed (alternating), blosc-lz4 (byte shuffle, by
 * libblosc, level 5: Zarr 2's default). What is there already is kept. */
#include "tools/zarr_write.h"
#include <math.h>

enum { TILE = 256, BLOBS = 200 }; /* blobs per tile of TILE cubed */

typedef struct dataset {
    const char* kind;
    size_t item_size;
    uint64_t seed;
} dataset;

typedef struct blob {
    float at[3];
    float radius;
    float light;
} blob;

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

static float unit(uint64_t hash)
{
    return ((float)(hash >> 40) + 0.5f) * (1.0f / 16777216.0f);
}

/* Nearly normal, variance 1. */
static float normal(uint64_t hash)
{
    const int32_t sum = (int32_t)(hash & 0xffff) + (int32_t)(hash >> 16 & 0xffff) +
                        (int32_t)(hash >> 32 & 0xffff) + (int32_t)(hash >> 48) - 131070;

    return (float)sum * (1.0f / 37837.0f);
}

static uint64_t voxel_hash(const dataset* d, int64_t z, int64_t y, int64_t x)
{
    return mix(((uint64_t)z << 42 | (uint64_t)y << 21 | (uint64_t)x) + (d->seed << 57) +
               d->seed * UINT64_C(0x9e3779b97f4a7c15));
}

static void fill_half_random(const dataset* d, const int64_t begin[3], const int64_t extent[3],
                             void* dst)
{
    uint8_t* narrow = (uint8_t*)dst;
    uint16_t* wide = (uint16_t*)dst;

    for (int64_t z = begin[0]; z < begin[0] + extent[0]; z++) {
        for (int64_t y = begin[1]; y < begin[1] + extent[1]; y++) {
            for (int64_t x = begin[2]; x < begin[2] + extent[2]; x++) {
                const uint64_t hash = voxel_hash(d, z, y, x);
                const uint16_t value = hash >> 63 ? (uint16_t)(hash >> 24) : 0;

                if (d->item_size == 1) {
                    *narrow++ = (uint8_t)value;
                } else {
                    *wide++ = value;
                }
            }
        }
    }
}

/* Adds the blobs of one tile to the light of a box. */
static void add_blobs(const dataset* d, const int64_t tile[3], const int64_t begin[3],
                      const int64_t extent[3], float strength, int n_blobs, float* light)
{
    uint64_t state = voxel_hash(d, tile[0], tile[1], tile[2]) ^ 1;

    for (int i = 0; i < n_blobs; i++) {
        blob b;
        int64_t low[3];
        int64_t high[3];

        for (int axis = 0; axis < 3; axis++) {
            b.at[axis] = (unit(mix(++state)) + (float)tile[axis]) * TILE;
        }
        b.radius = 3.0f + 9.0f * unit(mix(++state));
        b.light = strength * (0.3f + unit(mix(++state)));
        for (int axis = 0; axis < 3; axis++) {
            low[axis] = (int64_t)(b.at[axis] - 3 * b.radius) - begin[axis];
            high[axis] = (int64_t)(b.at[axis] + 3 * b.radius) + 1 - begin[axis];
            low[axis] = low[axis] < 0 ? 0 : low[axis];
            high[axis] = high[axis] > extent[axis] ? extent[axis] : high[axis];
        }
        for (int64_t z = low[0]; z < high[0]; z++) {
            for (int64_t y = low[1]; y < high[1]; y++) {
                const float dz = (float)(z + begin[0]) - b.at[0];
                const float dy = (float)(y + begin[1]) - b.at[1];

                for (int64_t x = low[2]; x < high[2]; x++) {
                    const float dx = (float)(x + begin[2]) - b.at[2];

                    light[(z * extent[1] + y) * extent[2] + x] +=
                        b.light * expf(-(dx * dx + dy * dy + dz * dz) / (2 * b.radius * b.radius));
                }
            }
        }
    }
}

static void fill_blobs(const dataset* d, const int64_t begin[3], const int64_t extent[3],
                       uint16_t* dst)
{
    const bool is_dim = strcmp(d->kind, "dim") == 0;
    const bool is_bright = strcmp(d->kind, "bright") == 0;
    const float background = is_dim ? 8.0f : is_bright ? 600.0f : 0.0f;
    const float strength = is_dim ? 150.0f : is_bright ? 2500.0f : 1200.0f;
    const size_t n = (size_t)(extent[0] * extent[1] * extent[2]);
    float* const light = (float*)calloc(n, sizeof(float));
    int64_t tile[3];

    if (!light) {
        (void)fprintf(stderr, "dataset: out of memory\n");
        exit(1);
    }
    for (tile[0] = begin[0] / TILE; tile[0] * TILE < begin[0] + extent[0]; tile[0]++) {
        for (tile[1] = begin[1] / TILE; tile[1] * TILE < begin[1] + extent[1]; tile[1]++) {
            for (tile[2] = begin[2] / TILE; tile[2] * TILE < begin[2] + extent[2]; tile[2]++) {
                add_blobs(d, tile, begin, extent, strength, is_dim || is_bright ? BLOBS : 120,
                          light);
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t z = begin[0] + (int64_t)i / (extent[1] * extent[2]);
        const int64_t y = begin[1] + (int64_t)i / extent[2] % extent[1];
        const int64_t x = begin[2] + (int64_t)i % extent[2];
        const uint64_t hash = voxel_hash(d, z, y, x);
        const float e =
            light[i] + background * (1 + 0.3f * sinf(0.02f * (float)x) * cosf(0.015f * (float)y));
        float value;

        if (is_dim || is_bright) { /* gain 2, offset 100, read noise 3.2 */
            value = 100.5f + (e + sqrtf(e) * normal(hash)) * 2.0f + 3.2f * normal(mix(hash));
        } else {
            value = e + 3.0f * normal(hash) * sqrtf(e > 1 ? e / 50 : 0.02f);
            value = value < 6 ? 0 : value;
        }
        dst[i] = value <= 0 ? 0 : value >= 65535 ? 65535 : (uint16_t)value;
    }
    free(light);
}

static void fill(void* user, const int64_t begin[3], const int64_t extent[3], void* dst)
{
    const dataset* const d = (const dataset*)user;

    if (strcmp(d->kind, "half-random") == 0) {
        fill_half_random(d, begin, extent, dst);
    } else {
        fill_blobs(d, begin, extent, (uint16_t*)dst);
    }
}

static bool parse_shape(const char* text, int64_t shape[3])
{
    return sscanf(text, "%ld,%ld,%ld", &shape[0], &shape[1], &shape[2]) == 3 && shape[0] > 0 &&
           shape[1] > 0 && shape[2] > 0;
}

static const char* value_of(const char* argument, const char* name)
{
    const size_t len = strlen(name);

    return strncmp(argument, name, len) == 0 && argument[len] == '=' ? argument + len + 1 : NULL;
}

/* Array number i; sizes are added to *total. */
static bool write_array(const char* folder, int i, const char* codec, zarr_spec spec, dataset* d,
                        zarr_result* total)
{
    char path[1000];
    char done[1100];
    zarr_result result;

    (void)snprintf(path, sizeof path, "%s/z%03d/scale0/image", folder, i);
    (void)snprintf(done, sizeof done, "%s/.complete", path);
    if (access(done, F_OK) == 0) {
        return true;
    }
    spec.path = path;
    spec.is_blosc = strncmp(codec, "blosc", 5) == 0 || (strcmp(codec, "mixed") == 0 && i % 2);
    if (strcmp(codec, "blosc-lz4") == 0) {
        spec.libblosc = "lz4";
        spec.blosc_block = 0;
        spec.level = 5;
    }
    d->seed = 42 + (uint64_t)i;
    if (!zarr_write(&spec, &result)) {
        (void)fprintf(stderr, "dataset: %s\n", result.message);
        return false;
    }
    total->size_voxels += result.size_voxels;
    total->size_stored += result.size_stored;
    return fclose(fopen(done, "w")) == 0;
}

int main(int argc, char** argv)
{
    zarr_spec spec = {.shape = {512, 512, 512},
                      .chunk = {32, 64, 64},
                      .shard = {256, 256, 512},
                      .dtype = "uint16",
                      .item_size = 2,
                      .level = 3,
                      .blosc_block = 131072,
                      .fill = fill};
    dataset d = {"half-random", 2, 0};
    const char* folder = NULL;
    const char* codec = "zstd";
    const char* value;
    int n_arrays = 8;
    bool is_fine = true;
    zarr_result total;

    memset(&total, 0, sizeof total);
    for (int i = 1; i < argc && is_fine; i++) {
        if ((value = value_of(argv[i], "--arrays")) != NULL) {
            n_arrays = atoi(value);
        } else if ((value = value_of(argv[i], "--shape")) != NULL) {
            is_fine = parse_shape(value, spec.shape);
        } else if ((value = value_of(argv[i], "--chunk")) != NULL) {
            is_fine = parse_shape(value, spec.chunk);
        } else if ((value = value_of(argv[i], "--shard")) != NULL) {
            is_fine = parse_shape(value, spec.shard);
        } else if ((value = value_of(argv[i], "--kind")) != NULL) {
            d.kind = value;
        } else if ((value = value_of(argv[i], "--codec")) != NULL) {
            codec = value;
        } else if ((value = value_of(argv[i], "--level")) != NULL) {
            spec.level = atoi(value);
        } else if ((value = value_of(argv[i], "--dtype")) != NULL) {
            spec.dtype = value;
            spec.item_size = strcmp(value, "uint8") == 0 ? 1 : 2;
        } else {
            is_fine = argv[i][0] != '-';
            folder = argv[i];
        }
    }
    if (!is_fine || !folder || !strstr("half-random dim bright denoised", d.kind) ||
        !strstr("zstd blosc-zstd mixed blosc-lz4", codec) ||
        (strcmp(spec.dtype, "uint16") != 0 && strcmp(spec.dtype, "uint8") != 0) ||
        (spec.item_size == 1 && strcmp(d.kind, "half-random") != 0)) {
        (void)fprintf(stderr, "dataset: see the first comment of bench/dataset.c\n");
        return 2;
    }
    d.item_size = spec.item_size;
    spec.user = &d;
    for (int i = 0; i < n_arrays && is_fine; i++) {
        is_fine = write_array(folder, i, codec, spec, &d, &total);
    }
    if (is_fine && total.size_voxels) {
        (void)fprintf(stderr, "dataset: %s: %.1f MB of voxels in %.1f MB, ratio %.2f\n", folder,
                      (double)total.size_voxels / 1e6, (double)total.size_stored / 1e6,
                      (double)total.size_voxels / (double)total.size_stored);
    }
    return is_fine ? 0 : 1;
}
