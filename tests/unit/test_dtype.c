/* Data types and fill values: every form to its exact bits, wrong forms refused. */
#include "tests/test.h"
#include "format/fill.h"
#include <math.h>

static damacy__alloc heap;

static const damacy__dtype* type_of(const char* name)
{
    for (size_t i = 0; i < DAMACY__COUNT(damacy__dtypes); i++) {
        if (strcmp(damacy__dtypes[i].name, name) == 0) {
            return &damacy__dtypes[i];
        }
    }
    printf("# no type %s\n", name);
    CHECK(0);
    return NULL;
}

static damacy_status fill(const char* type, const char* text, uint64_t* bits, damacy_error* err)
{
    damacy__json json = {0};
    damacy__json_limits limits = {0};
    damacy_status status;

    limits.allow_nonfinite = true;
    status = damacy__json_parse(&json, &heap, damacy__span_of(text, strlen(text)), &limits, err);
    CHECK_EQ(status, DAMACY_OK);
    status = damacy__fill_parse(&json, 0, type_of(type), bits, err);
    damacy__json_deinit(&json, &heap);
    return status;
}

TEST(sizes_and_names_of_all_types)
{
    static const struct {
        damacy_dtype dtype;
        size_t size;
        const char* name;
    } cases[] = {
        {DAMACY_F32, 4, "float32"}, {DAMACY_BF16, 2, "bfloat16"}, {DAMACY_F16, 2, "float16"},
        {DAMACY_F64, 8, "float64"}, {DAMACY_U8, 1, "uint8"},      {DAMACY_U16, 2, "uint16"},
        {DAMACY_U32, 4, "uint32"},  {DAMACY_U64, 8, "uint64"},    {DAMACY_I8, 1, "int8"},
        {DAMACY_I16, 2, "int16"},   {DAMACY_I32, 4, "int32"},     {DAMACY_I64, 8, "int64"},
        {DAMACY_BOOL, 1, "bool"},   {DAMACY_NATIVE, 0, "native"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_EQ(damacy__dtype_size(cases[i].dtype), cases[i].size);
        CHECK_STR(damacy__dtype_str(cases[i].dtype), cases[i].name);
    }
}

typedef struct fill_case {
    const char* type;
    const char* text;
    uint64_t bits;
} fill_case;

static const fill_case good[] = {
    {"bool", "true", 1},
    {"bool", "false", 0},
    {"bool", "0", 0},
    {"bool", "1", 1},
    {"bool", "null", 0},
    {"uint8", "0", 0},
    {"uint8", "255", 255},
    {"uint8", "-0", 0},
    {"uint8", "7.0", 7},
    {"int8", "-128", 0x80},
    {"int8", "127", 0x7f},
    {"int8", "-1", 0xff},
    {"int16", "-32768", 0x8000},
    {"uint16", "65535", 0xffff},
    {"uint16", "65535.000", 0xffff},
    {"int32", "-2147483648", 0x80000000},
    {"int32", "2147483647", 0x7fffffff},
    {"uint32", "4294967295", 0xffffffff},
    {"int64", "-9223372036854775808", UINT64_C(0x8000000000000000)},
    {"int64", "9223372036854775807", UINT64_C(0x7fffffffffffffff)},
    {"int64", "-1", UINT64_MAX},
    {"int64", "9007199254740993", UINT64_C(9007199254740993)},
    {"uint64", "18446744073709551615", UINT64_MAX},
    {"uint64", "18446744073709551614", UINT64_MAX - 1},
    {"float16", "\"NaN\"", 0x7e00},
    {"float16", "\"Infinity\"", 0x7c00},
    {"float16", "\"-Infinity\"", 0xfc00},
    {"float16", "\"0x7e01\"", 0x7e01},
    {"float16", "\"0x1\"", 1},
    {"float16", "0", 0},
    {"float16", "-0.0", 0x8000},
    {"float16", "1", 0x3c00},
    {"float16", "65504", 0x7bff},
    {"float16", "65519.99999999999999999999999999999999999", 0x7bff},
    {"float16", "6.103515625e-5", 0x0400},
    {"float16", "5.960464477539063e-8", 0x0001},
    {"float16", "2.98023223876953125e-8", 0x0000},
    {"float16", "2.980232238769531250000000000000000001e-8", 0x0001},
    {"float16", "0.333251953125", 0x3555},
    {"float16", "1e-400", 0},
    {"float16", "-1e-999999999999999999999", 0x8000},
    {"bfloat16", "\"NaN\"", 0x7fc0},
    {"bfloat16", "\"-Infinity\"", 0xff80},
    {"bfloat16", "\"0x7FC1\"", 0x7fc1},
    {"bfloat16", "1.00390625", 0x3f80},
    {"bfloat16", "1.003906250000000000000000000000000000000000000001", 0x3f81},
    {"bfloat16", "-2", 0xc000},
    {"float32", "\"NaN\"", 0x7fc00000},
    {"float32", "\"Infinity\"", 0x7f800000},
    {"float32", "\"-Infinity\"", 0xff800000},
    {"float32", "\"0x7fc00001\"", 0x7fc00001},
    {"float32", "\"0xFFC00000\"", 0xffc00000},
    {"float32", "\"\\u004eaN\"", 0x7fc00000},
    {"float32", "9.969209968386869e36", 0x7cf00000},
    {"float32", "3.4028234663852886e38", 0x7f7fffff},
    {"float32", "1e-45", 1},
    {"float32", "0.1", 0x3dcccccd},
    {"float32", "1.00000005960464477539", 0x3f800000},
    {"float32", "1.000000059604644775390625", 0x3f800000},
    {"float32", "1.000000059604644775390626", 0x3f800001},
    {"float32", "null", 0},
    {"float64", "\"NaN\"", UINT64_C(0x7ff8000000000000)},
    {"float64", "\"-Infinity\"", UINT64_C(0xfff0000000000000)},
    {"float64", "\"0x7ff0000000000001\"", UINT64_C(0x7ff0000000000001)},
    {"float64", "1.7976931348623157e308", UINT64_C(0x7fefffffffffffff)},
    {"float64", "4.9e-324", 1},
    {"float64", "2.4703282292062327e-324", 0},
    {"float64", "2.4703282292062328e-324", 1},
    {"float64", "9007199254740993", UINT64_C(0x4340000000000000)},
    {"float64", "9007199254740993.0000000000000000000000000001", UINT64_C(0x4340000000000001)},
    {"float64", "1e23", UINT64_C(0x44b52d02c7e14af6)},
    {"float64", "-0", UINT64_C(0x8000000000000000)},
    {"float64", "0.000e99999", 0},
    {"float64", "2.2250738585072011e-308", UINT64_C(0x000fffffffffffff)},
    {"float16", "NaN", 0x7e00},
    {"float32", "-Infinity", 0xff800000},
    {"float64", "Infinity", UINT64_C(0x7ff0000000000000)},
    {"r8", "[200]", 200},
    {"r16", "[1,2]", 0x0201},
    {"r32", "[0,0,0,255]", 0xff000000},
    {"r64", "[1,2,3,4,5,6,7,8]", UINT64_C(0x0807060504030201)},
    {"r16", "null", 0},
};

TEST(every_form_of_fill_value_gives_its_exact_bits)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t bits = 0x5555;
        damacy_error err;
        const damacy_status status = fill(good[i].type, good[i].text, &bits, &err);

        if (status != DAMACY_OK || bits != good[i].bits) {
            printf("# %s %s: %llx\n", good[i].type, good[i].text, (unsigned long long)bits);
        }
        CHECK_EQ(status, DAMACY_OK);
        CHECK(bits == good[i].bits);
    }
}

static const fill_case bad[] = {
    {"bool", "2", 0},
    {"bool", "-1", 0},
    {"bool", "\"true\"", 0},
    {"bool", "[]", 0},
    {"uint8", "256", 0},
    {"uint8", "-1", 0},
    {"uint8", "1.5", 0},
    {"uint8", "1e0", 0},
    {"uint8", "true", 0},
    {"uint8", "\"0\"", 0},
    {"uint8", "\"0x00\"", 0},
    {"uint8", "\"NaN\"", 0},
    {"uint8", "[0]", 0},
    {"uint8", "{}", 0},
    {"int8", "128", 0},
    {"int8", "-129", 0},
    {"int16", "32768", 0},
    {"uint16", "65536", 0},
    {"int32", "2147483648", 0},
    {"uint32", "4294967296", 0},
    {"int64", "9223372036854775808", 0},
    {"int64", "-9223372036854775809", 0},
    {"int64", "1000000000000000000000000000000", 0},
    {"uint64", "18446744073709551616", 0},
    {"uint64", "-1", 0},
    {"uint64", "1.8446744073709552e19", 0},
    {"float16", "65520", 0},
    {"float16", "-65520", 0},
    {"float16", "1e5", 0},
    {"float16", "\"0x10000\"", 0},
    {"float16", "\"0x\"", 0},
    {"float16", "\"0xg\"", 0},
    {"float16", "\"0X7e00\"", 0},
    {"float16", "\"7e00\"", 0},
    {"float16", "\"nan\"", 0},
    {"float16", "\"-NaN\"", 0},
    {"float16", "\"+Infinity\"", 0},
    {"float16", "\"inf\"", 0},
    {"float16", "\"\"", 0},
    {"float16", "\"1.0\"", 0},
    {"float16", "true", 0},
    {"float16", "[0, 0]", 0},
    {"float32", "3.4028236e38", 0},
    {"float32", "1e400", 0},
    {"float32", "1e99999999999999999999999999", 0},
    {"float32", "\"0x000000000\"", 0},
    {"float32", "\"0x 1\"", 0},
    {"float64", "1.7976931348623159e308", 0},
    {"float64", "1e309", 0},
    {"float64", "\"0x00000000000000000\"", 0},
    {"float64", "\"NaN\\u0000\"", 0},
    {"uint8", "NaN", 0},
    {"bool", "NaN", 0},
    {"int32", "-Infinity", 0},
    {"r8", "NaN", 0},
    {"r8", "200", 0},
    {"r8", "[256]", 0},
    {"r8", "[]", 0},
    {"r16", "[1]", 0},
    {"r16", "[1,2,3]", 0},
    {"r16", "[1,-2]", 0},
    {"r16", "\"AAA=\"", 0},
};

TEST(wrong_forms_of_fill_value_are_refused_by_name)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t bits = 0x5555;
        damacy_error err;
        const damacy_status status = fill(bad[i].type, bad[i].text, &bits, &err);

        if (status == DAMACY_OK) {
            printf("# accepted %s %s\n", bad[i].type, bad[i].text);
        }
        CHECK_EQ(status, DAMACY_DECODE);
        CHECK(bits == 0x5555);
        CHECK_HAS(err.message, "fill_value");
        CHECK_HAS(err.message, bad[i].type);
    }
}

/* ---- rounding ---- */

static bool decimal(const char* text, uint32_t n_exponent, uint32_t n_fraction, uint64_t* bits)
{
    const damacy__float_format format = {n_exponent, n_fraction};

    return damacy__decimal_to_float(damacy__span_of(text, strlen(text)), format, bits);
}

/* The value of 16 bits: exact in a double. */
static double value_of(uint32_t bits, uint32_t n_exponent, uint32_t n_fraction)
{
    const int bias = (1 << (n_exponent - 1)) - 1;
    const int exponent = (int)(bits >> n_fraction);
    const double fraction = (double)(bits & ((1u << n_fraction) - 1));
    const double unit = (double)(1u << n_fraction);

    return exponent ? ldexp(1 + fraction / unit, exponent - bias)
                    : ldexp(fraction / unit, 1 - bias);
}

/* Text of an exact double, digits in full. */
static void exact_text(double value, const char* more, char* text, size_t capacity)
{
    char digits[1200];
    const int n = snprintf(digits, sizeof digits, "%.1100e", value);
    char* end = strchr(digits, 'e');

    CHECK(n > 0 && end);
    (void)snprintf(text, capacity, "%.*s%s%s", (int)(end - digits), digits, more, end);
}

static void check_all_of_16_bits(uint32_t n_exponent, uint32_t n_fraction)
{
    const uint32_t infinity = ((1u << n_exponent) - 1) << n_fraction;
    char text[1300];
    uint64_t bits;

    for (uint32_t i = 0; i < infinity; i++) {
        const double value = value_of(i, n_exponent, n_fraction);
        const double next = i + 1 == infinity
                                ? value + (value - value_of(i - 1, n_exponent, n_fraction))
                                : value_of(i + 1, n_exponent, n_fraction);
        const double middle = value + (next - value) / 2;
        const bool up_fits = i + 1 < infinity;

        (void)snprintf(text, sizeof text, "%.17g", value);
        CHECK(decimal(text, n_exponent, n_fraction, &bits) && bits == i);
        if (i % 8 != 0 && i > 40 && i + 40 < infinity) {
            continue; /* the long texts are slow */
        }
        exact_text(middle, "", text, sizeof text);
        if (up_fits || (i & 1) == 0) {
            CHECK(decimal(text, n_exponent, n_fraction, &bits) && bits == i + (i & 1));
        } else {
            CHECK(!decimal(text, n_exponent, n_fraction, &bits));
        }
        exact_text(middle, "1", text, sizeof text);
        CHECK_EQ(decimal(text, n_exponent, n_fraction, &bits), up_fits);
        CHECK(!up_fits || bits == i + 1);
        exact_text(nextafter(middle, 0), "", text, sizeof text);
        CHECK(decimal(text, n_exponent, n_fraction, &bits) && bits == i);
    }
}

TEST(half_floats_round_once_to_even)
{
    check_all_of_16_bits(5, 10);
}

TEST(bfloats_round_once_to_even)
{
    check_all_of_16_bits(8, 7);
}

TEST(floats_and_doubles_equal_the_c_library)
{
    uint64_t state = test_seed();

    for (int round = 0; round < 100000; round++) {
        char text[64];
        const uint64_t random = test_random(&state);
        const int n_digits = 1 + (int)(random % 20);
        const int exponent = (int)(test_random(&state) % 700) - 370;
        uint64_t bits = 0;
        double wide;
        float narrow;
        uint64_t wide_bits;
        uint32_t narrow_bits;

        (void)snprintf(text, sizeof text, "%s%d.%0*llue%d", random & 1 ? "-" : "",
                       (int)(random >> 8 & 0xff), n_digits,
                       (unsigned long long)(test_random(&state) >> (round % 40)), exponent);
        wide = strtod(text, NULL);
        narrow = strtof(text, NULL);
        memcpy(&wide_bits, &wide, 8);
        memcpy(&narrow_bits, &narrow, 4);
        CHECK_EQ(decimal(text, 11, 52, &bits), !isinf(wide));
        CHECK(isinf(wide) || bits == wide_bits);
        CHECK_EQ(decimal(text, 8, 23, &bits), !isinf(narrow));
        CHECK(isinf(narrow) || bits == narrow_bits);
    }
}

TEST(shortest_texts_of_random_doubles_come_back)
{
    uint64_t state = test_seed();

    for (int round = 0; round < 100000; round++) {
        const uint64_t random = test_random(&state);
        double value;
        char text[64];
        uint64_t bits;

        memcpy(&value, &random, 8);
        if (isnan(value) || isinf(value)) {
            continue;
        }
        (void)snprintf(text, sizeof text, "%.17g", value);
        CHECK(decimal(text, 11, 52, &bits) && bits == random);
    }
}

TEST(midpoints_of_subnormal_doubles_round_to_even)
{
    for (int k = 1; k < 200; k += 2) { /* k * 2^-1075 lies between k / 2 and k / 2 + 1 units */
        const long double middle = ldexpl((long double)k, -1075);
        char text[1300];
        char* end;
        uint64_t bits;

        (void)snprintf(text, sizeof text, "%.1200Le", middle);
        end = strchr(text, 'e');
        CHECK(end != NULL);
        CHECK(decimal(text, 11, 52, &bits) && bits == (uint64_t)(k / 2 + (k / 2 & 1)));
        end[-1] = '1'; /* was 0: the exact value is shorter */
        CHECK(decimal(text, 11, 52, &bits) && bits == (uint64_t)(k / 2 + 1));
        (void)snprintf(text, sizeof text, "%.1200Le", nextafterl(middle, 0));
        CHECK(decimal(text, 11, 52, &bits) && bits == (uint64_t)(k / 2));
    }
}

TEST(numbers_of_many_digits_are_exact)
{
    static char text[3000];
    uint64_t bits;

    /* 1 + 2^-53, a tie, with a nonzero digit 2,000 places later */
    (void)snprintf(text, sizeof text, "%s",
                   "1.00000000000000011102230246251565404236316680908203125");
    CHECK(decimal(text, 11, 52, &bits) && bits == UINT64_C(0x3ff0000000000000));
    memset(text + strlen(text), '0', 2000);
    CHECK(decimal(text, 11, 52, &bits) && bits == UINT64_C(0x3ff0000000000000));
    (void)strcat(text, "1");
    CHECK(decimal(text, 11, 52, &bits) && bits == UINT64_C(0x3ff0000000000001));
    memset(text, '9', 2900);
    (void)strcpy(text + 2900, "e-2900");
    CHECK(decimal(text, 11, 52, &bits) && bits == UINT64_C(0x3ff0000000000000));
    memset(text, '0', 2900);
    text[1] = '.';
    (void)strcpy(text + 2900, "123e2900");
    CHECK(decimal(text, 11, 52, &bits));
    CHECK(bits == UINT64_C(0x402899999999999a)); /* 12.3 */
}

TEST_MAIN
