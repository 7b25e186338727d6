/* Copies of voxels against a walk that converts one voxel at a time. */
#include "tests/test.h"
#include "stage/host_assemble.h"
#include "tests/data/cast_cases.h"

static const uint32_t sizes[DAMACY_NATIVE] = {4, 2, 2, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

/* Bits of one voxel through the steps of a conversion. */
static uint64_t convert(uint32_t src, uint32_t out, uint64_t bits)
{
    uint64_t values[2] = {bits, 0};
    damacy__cast cast;

    damacy__cast_choose(&cast, (damacy_dtype)src, (damacy_dtype)out);
    for (uint32_t i = 0; i < cast.n_steps; i++) {
        values[1] = 0;
        cast.steps[i](&values[1], &values[0], 1);
        values[0] = values[1];
    }
    return values[0];
}

/* The same with scale and offset, both operations rounded on their own. */
static uint64_t convert_affine(uint32_t src, uint32_t out, uint64_t bits, float scale, float offset)
{
    const uint32_t low = (uint32_t)convert(src, DAMACY_F32, bits);
    volatile float value;
    uint32_t result;

    memcpy((void*)(uintptr_t)&value, &low, 4);
    value = value * scale;
    value = value + offset;
    memcpy(&result, (void*)(uintptr_t)&value, 4);
    if ((result & 0x7fffffff) > 0x7f800000) {
        result = 0x7fc00000;
    }
    return convert(DAMACY_F32, out, result);
}

static uint64_t load(const uint8_t* src, uint32_t size, bool swap)
{
    uint64_t bits = 0;

    for (uint32_t i = 0; i < size; i++) {
        bits |= (uint64_t)src[swap ? size - 1 - i : i] << (8 * i);
    }
    return bits;
}

/* The reference: every voxel by itself. */
static void naive(const damacy__copy* copy, const damacy__axis* axes, uint32_t out,
                  const damacy__affine* affine)
{
    const uint64_t n = copy->n_voxels_low | (uint64_t)copy->n_voxels_high << 32;
    const bool swap = (copy->flags & DAMACY__COPY_SWAP) != 0;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t rest = i;
        int64_t src = 0;
        int64_t dst = 0;
        uint64_t bits = copy->fill;
        uint32_t channel = copy->channel;
        for (uint32_t a = copy->n_axes; a-- > 0;) {
            const int64_t at = (int64_t)(rest % axes[a].extent);
            rest /= axes[a].extent;
            src += at * axes[a].src_stride;
            dst += at * axes[a].dst_stride;
            channel += a == copy->channel_axis ? (uint32_t)at : 0;
        }
        if (!(copy->flags & DAMACY__COPY_FILL)) {
            bits =
                load((const uint8_t*)(uintptr_t)copy->src + src * (int64_t)sizes[copy->src_dtype],
                     sizes[copy->src_dtype], swap);
        }
        if (affine) {
            const uint32_t c = affine->n_channels > 1 ? channel : 0;
            bits =
                convert_affine(copy->src_dtype, out, bits, affine->scale ? affine->scale[c] : 1.0f,
                               affine->offset ? affine->offset[c] : 0.0f);
        } else {
            bits = convert(copy->src_dtype, out, bits);
        }
        memcpy((uint8_t*)(uintptr_t)copy->dst + dst * (int64_t)sizes[out], &bits, sizes[out]);
    }
}

enum { SRC_BYTES = 1 << 17, DST_BYTES = 1 << 17 };

typedef struct scene {
    uint8_t* src;
    uint8_t* got;
    uint8_t* want;
    damacy__axis axes[8];
    damacy__copy copy;
    float scale[64];
    float offset[64];
    damacy__affine affine;
} scene;

/* Blocks of just the size that is used, so that a sanitizer sees one byte too many. */
static void scene_check(scene* s, uint32_t out, bool has_affine)
{
    memset(s->want, 0x5a, DST_BYTES);
    s->copy.dst = (uint64_t)(uintptr_t)(s->want + 4096);
    naive(&s->copy, s->axes, out, has_affine ? &s->affine : NULL);
    s->copy.dst = (uint64_t)(uintptr_t)(s->got + 4096);
    for (int pass = 0; pass < 2 && memcmp(s->got, s->want, pass ? DST_BYTES : 0) == 0; pass++) {
        memset(s->got, 0x5a, DST_BYTES);
        s->copy.flags ^= DAMACY__COPY_STREAM; /* both ways */
        damacy__host_copy(&s->copy, s->axes, (damacy_dtype)out, has_affine ? &s->affine : NULL);
    }
    if (memcmp(s->got, s->want, DST_BYTES) != 0) {
        size_t at = 0;
        while (s->got[at] == s->want[at]) {
            at++;
        }
        printf("# %u to %u, flags %u, affine %d, %u axes, byte %zu:\n", s->copy.src_dtype, out,
               s->copy.flags, has_affine, s->copy.n_axes, at - 4096);
        for (uint32_t i = 0; i < s->copy.n_axes; i++) {
            printf("#   extent %llu, src %lld, dst %lld\n", (unsigned long long)s->axes[i].extent,
                   (long long)s->axes[i].src_stride, (long long)s->axes[i].dst_stride);
        }
    }
    CHECK(memcmp(s->got, s->want, DST_BYTES) == 0);
}

static void scene_init(scene* s, uint64_t* state)
{
    memset(s, 0, sizeof *s);
    s->src = (uint8_t*)malloc(SRC_BYTES);
    s->got = (uint8_t*)malloc(DST_BYTES);
    s->want = (uint8_t*)malloc(DST_BYTES);
    CHECK(s->src && s->got && s->want);
    for (size_t i = 0; i < SRC_BYTES; i++) {
        s->src[i] = (uint8_t)(test_random(state) >> 56);
    }
    for (uint32_t i = 0; i < 64; i++) {
        s->scale[i] = (float)(int64_t)test_random(state) * 1e-19f;
        s->offset[i] = (float)(int64_t)test_random(state) * 1e-17f;
    }
    s->affine.scale = s->scale;
    s->affine.offset = s->offset;
    s->affine.n_channels = 64;
}

static void scene_deinit(scene* s)
{
    free(s->src);
    free(s->got);
    free(s->want);
}

/* Random extents; the source strides are those of a permuted, cropped, reflected or clamped chunk.
 */
static void scene_shuffle(scene* s, uint64_t* state)
{
    const uint32_t n = 1 + (uint32_t)(test_random(state) % 4);
    const uint32_t size = sizes[s->copy.src_dtype];
    uint32_t order[8];
    int64_t stride = 1;
    int64_t start = 0;
    uint64_t n_voxels = 1;

    s->copy.n_axes = n;
    for (uint32_t i = 0; i < n; i++) {
        static const uint32_t largest[4] = {1600, 40, 11, 5};
        s->axes[i].extent = 1 + test_random(state) % largest[n - 1];
        n_voxels *= s->axes[i].extent;
        order[i] = i;
    }
    for (uint32_t i = n; i-- > 1;) {
        const uint32_t j = (uint32_t)(test_random(state) % (i + 1));
        const uint32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (uint32_t i = 0; i < n; i++) {
        damacy__axis* axis = &s->axes[test_random(state) % 3 == 0 ? order[i] : n - 1 - i];
        if (axis->src_stride != 0) {
            continue;
        }
        axis->src_stride = stride;
        stride *= (int64_t)axis->extent + (int64_t)(test_random(state) % 2);
        if (test_random(state) % 8 == 0) {
            axis->src_stride = -axis->src_stride;
            start += -axis->src_stride * (int64_t)(axis->extent - 1);
        } else if (test_random(state) % 8 == 0) {
            axis->src_stride = 0;
        }
    }
    stride = test_random(state) % 16 == 0 ? 3 : 1;
    for (uint32_t i = n; i-- > 0;) {
        s->axes[i].dst_stride = stride;
        stride *= (int64_t)(s->axes[i].extent + test_random(state) % 3);
    }
    s->copy.n_voxels_low = (uint32_t)n_voxels;
    s->copy.src = (uint64_t)(uintptr_t)(s->src + test_random(state) % 7) + (uint64_t)start * size;
    s->copy.fill = test_random(state);
    s->copy.flags = (uint32_t)(test_random(state) & 1) * DAMACY__COPY_SWAP;
    if (test_random(state) % 8 == 0) {
        s->copy.flags |= DAMACY__COPY_FILL;
    }
    s->copy.channel = 0;
    s->copy.channel_axis = DAMACY__NO_CHANNEL;
    if (test_random(state) % 2) {
        const uint32_t axis = (uint32_t)(test_random(state) % n);
        if (s->axes[axis].extent <= 60) {
            s->copy.channel_axis = axis;
            s->copy.channel = (uint32_t)(test_random(state) % 4);
        }
    }
}

TEST(copies_with_random_axes_agree_with_one_voxel_at_a_time)
{
    uint64_t state = test_seed();
    scene s;

    scene_init(&s, &state);
    for (uint32_t round = 0; round < 16 * DAMACY_NATIVE * DAMACY_NATIVE; round++) {
        const uint32_t out = round / DAMACY_NATIVE % DAMACY_NATIVE;
        s.copy.src_dtype = round % DAMACY_NATIVE;
        memset(s.axes, 0, sizeof s.axes);
        scene_shuffle(&s, &state);
        scene_check(&s, out, false);
        if (out <= DAMACY_F64) {
            s.affine.n_channels = test_random(&state) % 4 ? 64 : 1;
            s.affine.scale = test_random(&state) % 8 ? s.scale : NULL;
            s.affine.offset = test_random(&state) % 8 ? s.offset : NULL;
            scene_check(&s, out, true);
        }
    }
    scene_deinit(&s);
}

/* Fixed shapes: rows of each length around the block and tile sizes, at odd addresses. */
TEST(copies_of_rows_of_every_length_write_just_those_voxels)
{
    uint64_t state = test_seed();
    static const uint32_t pairs[][2] = {{DAMACY_U16, DAMACY_F32},  {DAMACY_U8, DAMACY_F32},
                                        {DAMACY_U16, DAMACY_BF16}, {DAMACY_F32, DAMACY_F16},
                                        {DAMACY_U16, DAMACY_U16},  {DAMACY_F64, DAMACY_F16}};
    scene s;

    scene_init(&s, &state);
    for (uint32_t p = 0; p < 6; p++) {
        for (uint64_t n = 1; n < 1200; n += 1 + n / 40) {
            s.copy.src_dtype = pairs[p][0];
            s.copy.n_axes = 2;
            s.axes[0].extent = 3;
            s.axes[0].src_stride = (int64_t)n + 1;
            s.axes[0].dst_stride = (int64_t)n + 2;
            s.axes[1].extent = n;
            s.axes[1].src_stride = s.axes[1].dst_stride = 1;
            s.copy.channel_axis = DAMACY__NO_CHANNEL;
            s.copy.n_voxels_low = (uint32_t)(3 * n);
            s.copy.src = (uint64_t)(uintptr_t)(s.src + n % 5);
            s.copy.flags = n % 3 == 0 ? (uint32_t)DAMACY__COPY_SWAP : 0;
            scene_check(&s, pairs[p][1], false);
        }
    }
    scene_deinit(&s);
}

/* Transposed chunks of all orders of three axes, larger than a tile. */
TEST(copies_of_transposed_chunks_are_exact)
{
    static const uint32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                          {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    uint64_t state = test_seed();
    scene s;

    scene_init(&s, &state);
    for (uint32_t round = 0; round < 6 * DAMACY_NATIVE; round++) {
        const uint64_t extents[3] = {3, 70, 67};
        const uint32_t out = round % 2 ? DAMACY_F32 : round / 6;
        int64_t stride = 1;
        s.copy.src_dtype = round / 6;
        s.copy.n_axes = 3;
        s.copy.channel_axis = DAMACY__NO_CHANNEL;
        for (uint32_t i = 3; i-- > 0;) {
            const uint32_t axis = orders[round % 6][i];
            s.axes[i].extent = extents[i];
            s.axes[axis].src_stride = stride;
            stride *= (int64_t)extents[axis];
        }
        stride = 1;
        for (uint32_t i = 3; i-- > 0;) {
            s.axes[i].dst_stride = stride;
            stride *= (int64_t)extents[i];
        }
        s.copy.n_voxels_low = 3 * 70 * 67;
        s.copy.src = (uint64_t)(uintptr_t)s.src;
        s.copy.flags = 0;
        scene_check(&s, out, false);
    }
    scene_deinit(&s);
}

TEST(native_output_is_the_source_type)
{
    const uint16_t src[3] = {1, 0xffff, 0x1234};
    uint16_t dst[3] = {0, 0, 0};
    damacy__axis axis = {1, 1, 3};
    damacy__copy copy;

    memset(&copy, 0, sizeof copy);
    copy.src = (uint64_t)(uintptr_t)src;
    copy.dst = (uint64_t)(uintptr_t)dst;
    copy.n_axes = 1;
    copy.src_dtype = DAMACY_U16;
    copy.channel_axis = DAMACY__NO_CHANNEL;
    copy.n_voxels_low = 3;
    damacy__host_copy(&copy, &axis, DAMACY_NATIVE, NULL);
    CHECK(memcmp(src, dst, sizeof src) == 0);
}

TEST(copy_follows_the_golden_table_plain_swapped_and_as_a_fill)
{
    for (size_t i = 0; i < DAMACY__COUNT(cast_cases); i++) {
        const cast_case* c = &cast_cases[i];
        const uint32_t size = sizes[c->src];
        for (uint32_t way = 0; way < 3; way++) {
            uint8_t src[8];
            uint64_t dst[3] = {0, 0, 0};
            uint64_t got = 0;
            damacy__axis axis = {0, 1, 3};
            damacy__copy copy;
            for (uint32_t b = 0; b < size; b++) {
                src[b] = (uint8_t)(c->bits >> 8 * (way == 1 ? size - 1 - b : b));
            }
            memset(&copy, 0, sizeof copy);
            copy.src = way == 2 ? 0 : (uint64_t)(uintptr_t)src;
            copy.dst = (uint64_t)(uintptr_t)dst;
            copy.fill = way == 2 ? c->bits : 0;
            copy.flags = way == 1   ? (uint32_t)DAMACY__COPY_SWAP
                         : way == 2 ? (uint32_t)DAMACY__COPY_FILL
                                    : 0;
            copy.n_axes = 1;
            copy.src_dtype = c->src;
            copy.channel_axis = DAMACY__NO_CHANNEL;
            copy.n_voxels_low = 3;
            damacy__host_copy(&copy, &axis, (damacy_dtype)c->out, NULL);
            for (uint32_t v = 0; v < 3; v++) {
                memcpy(&got, (uint8_t*)dst + v * sizes[c->out], sizes[c->out]);
                CHECK(got == c->out_bits);
            }
        }
    }
}

TEST(scale_and_offset_follow_the_golden_table)
{
    for (size_t i = 0; i < DAMACY__COUNT(cast_affine_cases); i++) {
        const cast_affine_case* c = &cast_affine_cases[i];
        enum { N = 19 }; /* vectors and a rest */
        const uint32_t size = sizes[c->src];
        uint8_t src[8 * N];
        uint8_t dst[8 * N];
        damacy__axis axis = {1, 1, N};
        damacy__affine affine;
        damacy__copy copy;
        float scale;
        float offset;
        memcpy(&scale, &c->scale, 4);
        memcpy(&offset, &c->offset, 4);
        affine.scale = &scale;
        affine.offset = &offset;
        affine.n_channels = 1;
        memset(&copy, 0, sizeof copy);
        copy.src = (uint64_t)(uintptr_t)src;
        copy.dst = (uint64_t)(uintptr_t)dst;
        copy.n_axes = 1;
        copy.src_dtype = c->src;
        copy.channel_axis = DAMACY__NO_CHANNEL;
        copy.channel = 7; /* one channel: the same for all */
        copy.n_voxels_low = N;
        for (uint32_t v = 0; v < N; v++) {
            memcpy(src + v * size, &c->bits, size);
        }
        damacy__host_copy(&copy, &axis, (damacy_dtype)c->out, &affine);
        for (uint32_t v = 0; v < N; v++) {
            uint64_t got = 0;
            memcpy(&got, dst + v * sizes[c->out], sizes[c->out]);
            if (got != c->out_bits) {
                printf("# type %u to %u: 0x%llx * 0x%x + 0x%x gives 0x%llx, not 0x%llx\n", c->src,
                       c->out, (unsigned long long)c->bits, c->scale, c->offset,
                       (unsigned long long)got, (unsigned long long)c->out_bits);
            }
            CHECK(got == c->out_bits);
        }
    }
}

TEST_MAIN
