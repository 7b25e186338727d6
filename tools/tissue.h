/* A synthetic organoid as a microscope sees it: cells with nuclei and membranes around a hollow,
 * photon noise included, in two channels. Every voxel is a pure function of its position, so that
 * any box can be made again to compare with.
 *
 * Space is divided into blocks of 8 x 8 x 8 voxels; for each the few cells that can be nearest are
 * found first, then voxels measure their distance to those. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

enum {
    TISSUE_BLOCK = 8,
    TISSUE_PITCH = 30, /* voxels between cells */
    TISSUE_NEAR = 27   /* cells looked at: the block's own and its neighbours in the lattice */
};

typedef struct tissue {
    int64_t shape[3]; /* z, y, x */
    uint32_t seed;
} tissue;

typedef enum tissue_channel { TISSUE_NUCLEI = 0, TISSUE_MEMBRANES = 1 } tissue_channel;

typedef struct tissue_cell {
    float at[3];
    float radius;     /* of the nucleus */
    float brightness; /* of the nucleus; 0: no cell, but medium */
    float skin;       /* brightness of the membrane */
} tissue_cell;

static inline uint64_t tissue_hash(uint64_t value)
{
    value ^= value >> 30;
    value *= UINT64_C(0xbf58476d1ce4e5b9);
    value ^= value >> 27;
    value *= UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

static inline uint64_t tissue_key(const tissue* t, int64_t z, int64_t y, int64_t x, uint32_t what)
{
    return ((uint64_t)(z + 512) << 42 | (uint64_t)(y + 512) << 21 | (uint64_t)(x + 512)) ^
           ((uint64_t)(t->seed + what) << 56) ^
           (uint64_t)(t->seed + what) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline float tissue_unit(uint64_t hash, int part)
{
    return (float)(hash >> (16 * part) & 0xffff) * (1.0f / 65536.0f);
}

/* The cell of a lattice place. */
static tissue_cell tissue_cell_at(const tissue* t, int64_t z, int64_t y, int64_t x)
{
    const uint64_t hash = tissue_hash(tissue_key(t, z, y, x, 1));
    const uint64_t more = tissue_hash(hash + 1);
    const float middle[3] = {0.5f * (float)t->shape[0], 0.5f * (float)t->shape[1],
                             0.5f * (float)t->shape[2]};
    tissue_cell cell;
    float dz;
    float dy;
    float dx;
    float outer;
    float angle;

    cell.at[0] = ((float)z + 0.15f + 0.7f * tissue_unit(hash, 0)) * TISSUE_PITCH;
    cell.at[1] = ((float)y + 0.15f + 0.7f * tissue_unit(hash, 1)) * TISSUE_PITCH;
    cell.at[2] = ((float)x + 0.15f + 0.7f * tissue_unit(hash, 2)) * TISSUE_PITCH;
    cell.radius = 8.0f + 3.0f * tissue_unit(more, 0);
    cell.brightness = 0.55f + 0.6f * tissue_unit(more, 1);
    cell.skin = 0.6f + 0.7f * tissue_unit(more, 2);
    if (tissue_unit(hash, 3) < 0.07f) { /* about to divide: small and bright */
        cell.radius *= 0.72f;
        cell.brightness *= 2.6f;
    }
    dz = (cell.at[0] - middle[0]) / (0.95f * middle[0]);
    dy = (cell.at[1] - middle[1]) / (0.86f * middle[1]);
    dx = (cell.at[2] - middle[2]) / (0.86f * middle[2]);
    angle = atan2f(dy, dx);
    outer = sqrtf(dz * dz + dy * dy + dx * dx) *
            (1.0f + 0.07f * sinf(3.0f * angle + 1.0f) + 0.04f * sinf(5.0f * angle));
    dz = (cell.at[0] - 1.05f * middle[0]) / (0.42f * middle[0]);
    dy = (cell.at[1] - 0.92f * middle[1]) / (0.36f * middle[1]);
    dx = (cell.at[2] - 1.08f * middle[2]) / (0.44f * middle[2]);
    if (outer > 1.0f || dz * dz + dy * dy + dx * dx < 1.0f) {
        cell.brightness = 0.0f;
        cell.skin = 0.0f;
    }
    return cell;
}

/* Smooth noise of one block: values on a lattice of 4 voxels. */
typedef struct tissue_grain {
    float at[3][3][3];
} tissue_grain;

static void tissue_grain_init(const tissue* t, const int64_t block[3], tissue_grain* grain)
{
    for (int z = 0; z < 3; z++) {
        for (int y = 0; y < 3; y++) {
            for (int x = 0; x < 3; x++) {
                grain->at[z][y][x] =
                    tissue_unit(tissue_hash(tissue_key(t, block[0] * 2 + z, block[1] * 2 + y,
                                                       block[2] * 2 + x, 2)),
                                0);
            }
        }
    }
}

static inline float tissue_grain_at(const tissue_grain* grain, int z, int y, int x)
{
    const float fz = (float)(z & 3) * 0.25f;
    const float fy = (float)(y & 3) * 0.25f;
    const float fx = (float)(x & 3) * 0.25f;
    float plane[2];

    for (int i = 0; i < 2; i++) {
        const float(*p)[3] = grain->at[(z >> 2) + i];
        const float* const a = p[y >> 2];
        const float* const b = p[(y >> 2) + 1];
        const float low = a[x >> 2] + fx * (a[(x >> 2) + 1] - a[x >> 2]);
        const float high = b[x >> 2] + fx * (b[(x >> 2) + 1] - b[x >> 2]);

        plane[i] = low + fy * (high - low);
    }
    return plane[0] + fz * (plane[1] - plane[0]);
}

static inline float tissue_step(float value)
{
    const float v = value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;

    return v * v * (3.0f - 2.0f * v);
}

/* Expected photons at a voxel, whose nearest cells are at squared distances first and second. */
static inline float tissue_photons(tissue_channel channel, const tissue_cell* cell,
                                   const tissue_cell* other, float first, float second, float grain)
{
    const float near = sqrtf(first);
    const float far = sqrtf(second);

    if (channel == TISSUE_NUCLEI) {
        const float body = tissue_step((cell->radius - near) * 0.45f + 0.5f);
        const float texture = 0.45f + 1.1f * grain * grain;

        return 2.0f + 2.0f * (cell->brightness > 0.0f) + 150.0f * cell->brightness * body * texture;
    } else {
        const float skin = cell->skin > other->skin ? cell->skin : other->skin;
        const float d = (far - near) * (1.0f / 2.6f);
        const float wall = 1.0f / (1.0f + d * d * d * d);
        const float plasma = cell->skin > 0.0f ? 5.0f + 9.0f * grain : 0.0f;

        return 2.0f + plasma + 95.0f * skin * wall;
    }
}

/* What the camera counts: photons and their noise, on an offset of 100. */
static inline uint16_t tissue_count(float photons, uint64_t hash)
{
    const uint64_t h = tissue_hash(hash);
    const int32_t sum = (int32_t)(h & 0xffff) + (int32_t)(h >> 16 & 0xffff) +
                        (int32_t)(h >> 32 & 0xffff) + (int32_t)(h >> 48) - 131070;
    const float normal = (float)sum * (1.0f / 37837.0f);
    const float counts = 100.0f + 2.0f * photons + 2.0f * sqrtf(photons + 1.5f) * normal;

    return counts <= 0.0f ? 0 : counts >= 65535.0f ? 65535 : (uint16_t)(counts + 0.5f);
}

/* The cells that can be first or second within a block. */
static int tissue_cells_near(const tissue* t, const int64_t block[3],
                             tissue_cell cells[TISSUE_NEAR])
{
    int64_t place[3];
    float away[TISSUE_NEAR];
    float nearest = 1e30f;
    int n = 0;

    for (int axis = 0; axis < 3; axis++) {
        place[axis] = (block[axis] * TISSUE_BLOCK + TISSUE_BLOCK / 2) / TISSUE_PITCH;
    }
    for (int i = 0; i < TISSUE_NEAR; i++) {
        float sum = 0.0f;

        cells[i] =
            tissue_cell_at(t, place[0] + i / 9 - 1, place[1] + i / 3 % 3 - 1, place[2] + i % 3 - 1);
        for (int axis = 0; axis < 3; axis++) {
            const float d = cells[i].at[axis] - ((float)(block[axis] * TISSUE_BLOCK) + 3.5f);
            sum += d * d;
        }
        away[i] = sqrtf(sum);
        nearest = away[i] < nearest ? away[i] : nearest;
    }
    for (int i = 0; i < TISSUE_NEAR; i++) {
        if (away[i] < nearest + 2 * 6.1f + 14.0f) {
            cells[n++] = cells[i];
        }
    }
    return n;
}

/* Light from a point: its nearest cell and the second nearest decide. */
static inline float tissue_light(const tissue_cell* cells, int n, tissue_channel channel,
                                 const float at[3], float grain)
{
    float first = 1e30f;
    float second = 1e30f;
    int a = 0;
    int b = 0;

    for (int i = 0; i < n; i++) {
        const float dz = at[0] - cells[i].at[0];
        const float dy = at[1] - cells[i].at[1];
        const float dx = at[2] - cells[i].at[2];
        const float d = dz * dz + dy * dy + dx * dx;

        if (d < first) {
            second = first;
            b = a;
            first = d;
            a = i;
        } else if (d < second) {
            second = d;
            b = i;
        }
    }
    return tissue_photons(channel, &cells[a], &cells[b], first, second, grain);
}

/* The part of a block that lies in a box. */
static void tissue_block(const tissue* t, tissue_channel channel, const int64_t block[3],
                         const int64_t begin[3], const int64_t extent[3], uint16_t* dst)
{
    tissue_cell cells[TISSUE_NEAR];
    const int n = tissue_cells_near(t, block, cells);
    tissue_grain grain;
    int64_t low[3];
    int64_t high[3];

    for (int axis = 0; axis < 3; axis++) {
        const int64_t end = begin[axis] + extent[axis];

        low[axis] = block[axis] * TISSUE_BLOCK;
        high[axis] = low[axis] + TISSUE_BLOCK < end ? low[axis] + TISSUE_BLOCK : end;
        low[axis] = low[axis] > begin[axis] ? low[axis] : begin[axis];
    }
    tissue_grain_init(t, block, &grain);
    for (int64_t z = low[0]; z < high[0]; z++) {
        for (int64_t y = low[1]; y < high[1]; y++) {
            uint16_t* const row =
                dst + ((z - begin[0]) * extent[1] + (y - begin[1])) * extent[2] - begin[2];
            const float wave = 2.5f * sinf(0.11f * (float)y + 0.07f * (float)z);

            for (int64_t x = low[2]; x < high[2]; x++) {
                const float at[3] = {(float)z, (float)y, (float)x + wave};
                const float photons =
                    tissue_light(cells, n, channel, at,
                                 tissue_grain_at(&grain, (int)(z & 7), (int)(y & 7), (int)(x & 7)));

                row[x] = tissue_count(photons, tissue_key(t, z, y, x, 3 + (uint32_t)channel));
            }
        }
    }
}

/* The voxels of a box, C order. The box may reach beyond the volume. */
static void tissue_fill(const tissue* t, tissue_channel channel, const int64_t begin[3],
                        const int64_t extent[3], uint16_t* dst)
{
    int64_t first[3];
    int64_t last[3];
    int64_t block[3];

    for (int axis = 0; axis < 3; axis++) {
        first[axis] = begin[axis] / TISSUE_BLOCK;
        last[axis] = (begin[axis] + extent[axis] - 1) / TISSUE_BLOCK;
    }
    for (block[0] = first[0]; block[0] <= last[0]; block[0]++) {
        for (block[1] = first[1]; block[1] <= last[1]; block[1]++) {
            for (block[2] = first[2]; block[2] <= last[2]; block[2]++) {
                tissue_block(t, channel, block, begin, extent, dst);
            }
        }
    }
}
