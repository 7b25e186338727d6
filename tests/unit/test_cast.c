/* Conversions of voxels: the golden table, and every 16-bit pattern against slow references. */
#include "tests/test.h"
#include "stage/cast.h"
#include "tests/data/cast_cases.h"
#include <math.h>

/* Converts one row through the steps that damacy__cast_choose gave. */
static void run(const damacy__cast* cast, void* dst, const void* src, size_t n)
{
    uint8_t* buffers[2] = {(uint8_t*)malloc(n * 8 + 1), (uint8_t*)malloc(n * 8 + 1)};
    const void* from = src;

    for (uint32_t i = 0; i < cast->n_steps; i++) {
        cast->steps[i](buffers[i & 1], from, n);
        from = buffers[i & 1];
    }
    memcpy(dst, from, n * cast->out_size);
    free(buffers[0]);
    free(buffers[1]);
}

static uint64_t convert(uint32_t src, uint32_t out, uint64_t bits)
{
    uint64_t result = 0;
    damacy__cast cast;

    damacy__cast_choose(&cast, (damacy_dtype)src, (damacy_dtype)out);
    run(&cast, &result, &bits, 1);
    return result;
}

TEST(cast_sizes_agree_with_the_types)
{
    static const uint32_t sizes[] = {4, 2, 2, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1};

    for (uint32_t i = 0; i < DAMACY_NATIVE; i++) {
        damacy__cast cast;
        CHECK_EQ(damacy__cast_size((damacy_dtype)i), sizes[i]);
        for (uint32_t j = 0; j < DAMACY_NATIVE; j++) {
            damacy__cast_choose(&cast, (damacy_dtype)i, (damacy_dtype)j);
            CHECK_EQ(cast.src_size, sizes[i]);
            CHECK_EQ(cast.out_size, sizes[j]);
            CHECK(cast.n_steps == 0 ? sizes[i] == sizes[j]
                                    : cast.sizes[cast.n_steps - 1] == sizes[j]);
        }
    }
}

TEST(cast_follows_the_golden_table)
{
    bool seen[DAMACY_NATIVE][DAMACY_NATIVE] = {{false}};

    for (size_t i = 0; i < DAMACY__COUNT(cast_cases); i++) {
        const cast_case* c = &cast_cases[i];
        const uint64_t got = convert(c->src, c->out, c->bits);
        seen[c->src][c->out] = true;
        if (got != c->out_bits) {
            printf("# type %u to %u: 0x%llx gives 0x%llx, not 0x%llx\n", c->src, c->out,
                   (unsigned long long)c->bits, (unsigned long long)got,
                   (unsigned long long)c->out_bits);
        }
        CHECK(got == c->out_bits);
    }
    for (uint32_t i = 0; i < DAMACY_NATIVE; i++) {
        for (uint32_t j = 0; j < DAMACY_NATIVE; j++) {
            CHECK(seen[i][j]);
        }
    }
}

/* The exact value of a voxel; long double holds every one of them. NaN and infinities as such. */
static long double value_of(uint32_t type, uint64_t bits)
{
    float f;
    double d;
    const uint32_t low = (uint32_t)bits;

    switch (type) {
    case DAMACY_F32:
        memcpy(&f, &low, 4);
        return f;
    case DAMACY_F64:
        memcpy(&d, &bits, 8);
        return d;
    case DAMACY_F16: {
        const int e = low >> 10 & 31;
        long double v = (long double)(low & 1023) + (e ? 1024 : 0);
        if (e == 31) {
            v = low & 1023 ? (long double)NAN : (long double)INFINITY;
        } else {
            for (int i = e ? e : 1; i < 25; i++) {
                v /= 2;
            }
            for (int i = 25; i < e; i++) {
                v *= 2;
            }
        }
        return low & 0x8000 ? -v : v;
    }
    case DAMACY_BF16: {
        const uint32_t wide = low << 16;
        memcpy(&f, &wide, 4);
        return f;
    }
    case DAMACY_U8:
        return (uint8_t)bits;
    case DAMACY_U16:
        return (uint16_t)bits;
    case DAMACY_U32:
        return (uint32_t)bits;
    case DAMACY_U64:
        return (long double)bits;
    case DAMACY_I8:
        return (int8_t)bits;
    case DAMACY_I16:
        return (int16_t)bits;
    case DAMACY_I32:
        return (int32_t)bits;
    case DAMACY_I64:
        return (long double)(int64_t)bits;
    default:
        return (uint8_t)bits != 0;
    }
}

/* The 16-bit float nearest to a magnitude, ties to even, found by bisection. */
static uint64_t nearest16(uint32_t type, long double magnitude)
{
    const uint32_t infinity = type == DAMACY_F16 ? 0x7c00 : 0x7f80;
    uint32_t low = 0;
    uint32_t high = infinity;
    long double below;
    long double above;

    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (value_of(type, middle) <= magnitude) {
            low = middle;
        } else {
            high = middle;
        }
    }
    below = value_of(type, low);
    above = high < infinity ? value_of(type, high) : below + (below - value_of(type, low - 1));
    if (magnitude - below != above - magnitude) {
        return magnitude - below < above - magnitude ? low : high;
    }
    return low & 1 ? high : low;
}

static uint64_t clamped(long double v, long double low, long double high)
{
    const long double w = v < low ? low : v > high ? high : v;

    return w < 0 ? 0 - (uint64_t)-w : (uint64_t)w;
}

/* What a conversion of a number (not NaN) must give. */
static uint64_t slow(uint32_t src, uint32_t out, uint64_t bits)
{
    const long double v = value_of(src, bits);
    const long double magnitude = v < 0 ? -v : v;
    const int negative = v < 0 || (v == 0 && signbit(v));
    uint64_t result = 0;
    float f;
    double d;

    switch (out) {
    case DAMACY_F32:
        f = (float)v;
        memcpy(&result, &f, 4);
        return result;
    case DAMACY_F64:
        d = (double)v;
        memcpy(&result, &d, 8);
        return result;
    case DAMACY_F16:
    case DAMACY_BF16:
        if (isinf(v)) {
            return (out == DAMACY_F16 ? 0x7c00u : 0x7f80u) | (negative ? 0x8000u : 0u);
        }
        return nearest16(out, magnitude) | (negative ? 0x8000u : 0u);
    case DAMACY_U8:
        return clamped(v, 0, UINT8_MAX);
    case DAMACY_U16:
        return clamped(v, 0, UINT16_MAX);
    case DAMACY_U32:
        return clamped(v, 0, UINT32_MAX);
    case DAMACY_U64:
        return clamped(v, 0, (long double)UINT64_MAX);
    case DAMACY_I8:
        return clamped(v, INT8_MIN, INT8_MAX) & 0xff;
    case DAMACY_I16:
        return clamped(v, INT16_MIN, INT16_MAX) & 0xffff;
    case DAMACY_I32:
        return clamped(v, INT32_MIN, INT32_MAX) & 0xffffffff;
    case DAMACY_I64:
        return clamped(v, (long double)INT64_MIN, (long double)INT64_MAX);
    default:
        return v != 0;
    }
}

/* Converts n voxels as one row and compares each with the slow reference. */
static void check_row(uint32_t src, uint32_t out, const uint8_t* voxels, size_t n, uint8_t* results)
{
    damacy__cast cast;

    damacy__cast_choose(&cast, (damacy_dtype)src, (damacy_dtype)out);
    run(&cast, results, voxels, n);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        uint64_t got = 0;
        uint64_t want;
        memcpy(&bits, voxels + i * cast.src_size, cast.src_size);
        memcpy(&got, results + i * cast.out_size, cast.out_size);
        if (isnan(value_of(src, bits))) {
            want = convert(src, out, bits); /* single NaN are in the golden table */
            CHECK(!damacy__cast_is_float((damacy_dtype)out) || isnan(value_of(out, want)));
        } else {
            want = slow(src, out, bits);
        }
        if (src == out && src != DAMACY_BOOL) {
            want = bits;
        }
        if (got != want) {
            printf("# type %u to %u: 0x%llx gives 0x%llx, not 0x%llx\n", src, out,
                   (unsigned long long)bits, (unsigned long long)got, (unsigned long long)want);
        }
        CHECK(got == want);
    }
}

TEST(cast_of_every_16_bit_voxel_to_every_type_is_exact)
{
    static const uint32_t types[] = {DAMACY_F16, DAMACY_BF16, DAMACY_U16, DAMACY_I16};
    static uint8_t voxels[65536 * 2];
    static uint8_t results[65536 * 8];

    for (uint32_t i = 0; i < 65536; i++) {
        voxels[2 * i] = (uint8_t)i;
        voxels[2 * i + 1] = (uint8_t)(i >> 8);
    }
    for (uint32_t t = 0; t < 4; t++) {
        for (uint32_t out = 0; out < DAMACY_NATIVE; out++) {
            check_row(types[t], out, voxels, 65536, results);
        }
    }
}

TEST(cast_of_random_voxels_of_every_type_is_exact)
{
    enum { N = 20000 };
    static uint8_t voxels[N * 8];
    static uint8_t results[N * 8];
    uint64_t state = test_seed();

    for (uint32_t src = 0; src < DAMACY_NATIVE; src++) {
        const uint32_t size = damacy__cast_size((damacy_dtype)src);
        for (size_t i = 0; i < N; i++) {
            /* Few significant bits at any place make ties and edges likely. */
            uint64_t bits = test_random(&state);
            const uint64_t where = test_random(&state);
            bits = where & 1 ? bits : (bits >> (where >> 8 & 63)) << (where >> 16 & 63);
            bits ^= where & 2 ? 0 : ~UINT64_C(0);
            memcpy(voxels + i * size, &bits, size);
        }
        for (uint32_t out = 0; out < DAMACY_NATIVE; out++) {
            check_row(src, out, voxels, N, results);
        }
    }
}

/* f64 values within an ulp or so of a tie of a narrower type. */
TEST(cast_of_f64_near_ties_rounds_once)
{
    enum { N = 60000 };
    static double voxels[N];
    static uint8_t results[N * 8];
    static const uint32_t outs[] = {DAMACY_F32, DAMACY_F16, DAMACY_BF16};
    uint64_t state = test_seed();

    for (uint32_t t = 0; t < 3; t++) {
        const uint32_t mantissa = t == 0 ? 23 : t == 1 ? 10 : 7;
        for (size_t i = 0; i < N; i++) {
            const uint64_t r = test_random(&state);
            const uint64_t exponent = 1023 - 150 + r % 300;
            const uint64_t drop = 52 - mantissa + (r >> 60); /* some of them subnormal ties */
            uint64_t bits = exponent << 52 | (test_random(&state) >> 12);
            bits = (bits >> drop << drop) | UINT64_C(1) << (drop - 1);
            bits += (r >> 40 & 3) - 1;
            memcpy(&voxels[i], &bits, 8);
        }
        check_row(DAMACY_F64, outs[t], (const uint8_t*)voxels, N, results);
    }
}

TEST(cast_ignores_alignment_and_length)
{
    static uint8_t raw[8 * 80 + 16];
    static uint8_t aligned[8 * 80];
    static uint8_t results[2][8 * 80 + 16];
    uint64_t state = test_seed();

    for (uint32_t src = 0; src < DAMACY_NATIVE; src++) {
        for (uint32_t out = 0; out < DAMACY_NATIVE; out++) {
            damacy__cast cast;
            damacy__cast_choose(&cast, (damacy_dtype)src, (damacy_dtype)out);
            for (size_t n = 0; n < 80; n += 1 + n / 7) {
                const size_t shift = n % 8;
                for (size_t i = 0; i < sizeof aligned; i++) {
                    aligned[i] = (uint8_t)(test_random(&state) >> 56);
                }
                memcpy(raw + shift, aligned, sizeof aligned);
                memset(results, 0xaa, sizeof results);
                for (uint32_t i = 0; i < (cast.n_steps == 1 ? n : 0); i++) {
                    cast.steps[0](results[0] + i * cast.out_size, aligned + i * cast.src_size, 1);
                }
                if (cast.n_steps == 1) {
                    cast.steps[0](results[1] + 8 - shift, raw + shift, n);
                    CHECK(memcmp(results[0], results[1] + 8 - shift, n * cast.out_size) == 0);
                    CHECK(results[1][8 - shift + n * cast.out_size] == 0xaa);
                    CHECK(results[1][7 - shift] == 0xaa);
                }
            }
        }
    }
}

#if DAMACY__X86
TEST(cast_wide_and_narrow_loops_agree)
{
#define PAIR(name)                                  \
    {                                               \
        damacy__row_##name, damacy__row_wide_##name \
    }
    static const damacy__row rows[][2] = {
        PAIR(u8_f32),    PAIR(i8_f32),  PAIR(u16_f32), PAIR(i16_f32), PAIR(f16_f32),
        PAIR(bf16_f32),  PAIR(i32_f32), PAIR(f64_f32), PAIR(f32_f16), PAIR(f32_bf16),
        PAIR(bool_bool), PAIR(swap2),   PAIR(swap4),   PAIR(swap8)};
#undef PAIR
    static uint8_t voxels[8192 * 8];
    static uint8_t results[2][8192 * 8];
    uint64_t state = test_seed();

    if (!damacy__cpu_is_wide()) {
        SKIP("no AVX2 here");
    }
    for (uint32_t r = 0; r < DAMACY__COUNT(rows); r++) {
        for (size_t i = 0; i < sizeof voxels; i++) {
            voxels[i] = (uint8_t)(test_random(&state) >> 56);
        }
        rows[r][0](results[0], voxels, 8191);
        rows[r][1](results[1], voxels, 8191);
        CHECK(memcmp(results[0], results[1], sizeof results[0]) == 0);
    }
}
#endif

TEST_MAIN
