/* JSON: every file of JSONTestSuite and its prefixes, values, keys, duplicates and hostile sizes.
 */
#include "tests/test.h"
#include "format/json.h"
#include <zstd.h>

static damacy__alloc heap;

/* Parses text; on success the caller frees with damacy__json_deinit. */
static damacy_status parse(damacy__json* json, const char* text, size_t size, damacy_error* err)
{
    memset(err, 0, sizeof *err);
    return damacy__json_parse(json, &heap, damacy__span_of(text, size), NULL, err);
}

static damacy_status verdict(const char* text, size_t size, damacy_error* err)
{
    damacy__json json = {0};
    char* exact = (char*)malloc(size ? size : 1); /* so that a sanitizer sees reads beyond it */
    damacy_status status;

    CHECK(exact != NULL);
    memcpy(exact, text, size);
    status = parse(&json, exact, size, err);
    if (status == DAMACY_OK) {
        status = damacy__json_refuse_duplicates(&json, &heap, err);
    }
    damacy__json_deinit(&json, &heap);
    free(exact);
    CHECK_EQ(heap.live_blocks, 0);
    CHECK_EQ(heap.live_bytes, 0);
    return status;
}

/* ---- JSONTestSuite ---- */

typedef struct suite_file {
    const char* name;
    const char* text;
    size_t size;
} suite_file;

static suite_file suite[400];
static size_t n_suite;

static size_t octal(const char* digits, size_t n)
{
    size_t value = 0;

    for (size_t i = 0; i < n && digits[i] >= '0' && digits[i] <= '7'; i++) {
        value = value * 8 + (size_t)(digits[i] - '0');
    }
    return value;
}

/* Fills suite from the packed archive (ustar); its memory is kept until the program ends. */
static void load_suite(void)
{
    static char packed[1 << 16];
    static char tar[1 << 20];
    FILE* file = fopen("tests/corpus/json/JSONTestSuite_test_parsing.tar.zst", "rb");
    ZSTD_DStream* stream;
    ZSTD_inBuffer in = {packed, 0, 0};
    ZSTD_outBuffer out = {tar, sizeof tar, 0};

    if (n_suite) {
        return;
    }
    if (!file) {
        SKIP("tests/corpus is not in the working directory");
    }
    in.size = fread(packed, 1, sizeof packed, file);
    (void)fclose(file);
    stream = ZSTD_createDStream();
    CHECK(stream != NULL);
    CHECK_EQ(ZSTD_decompressStream(stream, &out, &in), 0);
    ZSTD_freeDStream(stream);
    for (size_t at = 0; at + 512 <= out.pos && tar[at];) {
        const size_t size = octal(tar + at + 124, 12);
        char* name = strrchr(tar + at, '/');

        CHECK(size <= out.pos - at - 512);
        if (name && strstr(name, ".json") && n_suite < 400) {
            suite[n_suite].name = name + 1;
            suite[n_suite].text = tar + at + 512;
            suite[n_suite].size = size;
            n_suite++;
        }
        at += 512 + (size + 511) / 512 * 512;
    }
    CHECK_EQ(n_suite, 318);
}

/* What RFC 8259 leaves open, and what is done here. Numbers of any size are numbers; what does not
 * fit is refused where a value is asked for. Text must be UTF-8 and name Unicode characters. Depth
 * is limited. A byte order mark is skipped. */
static const struct {
    const char* name;
    int accepted;
} open_cases[] = {
    {"i_number_double_huge_neg_exp.json", 1},
    {"i_number_huge_exp.json", 1},
    {"i_number_neg_int_huge_exp.json", 1},
    {"i_number_pos_double_huge_exp.json", 1},
    {"i_number_real_neg_overflow.json", 1},
    {"i_number_real_pos_overflow.json", 1},
    {"i_number_real_underflow.json", 1},
    {"i_number_too_big_neg_int.json", 1},
    {"i_number_too_big_pos_int.json", 1},
    {"i_number_very_big_negative_int.json", 1},
    {"i_object_key_lone_2nd_surrogate.json", 0},
    {"i_string_1st_surrogate_but_2nd_missing.json", 0},
    {"i_string_1st_valid_surrogate_2nd_invalid.json", 0},
    {"i_string_UTF-16LE_with_BOM.json", 0},
    {"i_string_UTF-8_invalid_sequence.json", 0},
    {"i_string_UTF8_surrogate_U+D800.json", 0},
    {"i_string_incomplete_surrogate_and_escape_valid.json", 0},
    {"i_string_incomplete_surrogate_pair.json", 0},
    {"i_string_incomplete_surrogates_escape_valid.json", 0},
    {"i_string_invalid_lonely_surrogate.json", 0},
    {"i_string_invalid_surrogate.json", 0},
    {"i_string_invalid_utf-8.json", 0},
    {"i_string_inverted_surrogates_U+1D11E.json", 0},
    {"i_string_iso_latin_1.json", 0},
    {"i_string_lone_second_surrogate.json", 0},
    {"i_string_lone_utf8_continuation_byte.json", 0},
    {"i_string_not_in_unicode_range.json", 0},
    {"i_string_overlong_sequence_2_bytes.json", 0},
    {"i_string_overlong_sequence_6_bytes.json", 0},
    {"i_string_overlong_sequence_6_bytes_null.json", 0},
    {"i_string_truncated-utf-8.json", 0},
    {"i_string_utf16BE_no_BOM.json", 0},
    {"i_string_utf16LE_no_BOM.json", 0},
    {"i_structure_500_nested_arrays.json", 0},
    {"i_structure_UTF-8_BOM_empty_object.json", 1},
};

static int expected(const char* name)
{
    for (size_t i = 0; i < sizeof open_cases / sizeof open_cases[0]; i++) {
        if (strcmp(name, open_cases[i].name) == 0) {
            return open_cases[i].accepted;
        }
    }
    CHECK(name[0] == 'y' || name[0] == 'n');
    return name[0] == 'y';
}

TEST(every_file_of_jsontestsuite_gets_its_verdict)
{
    size_t n_kind[3] = {0};
    size_t n_wrong = 0;

    load_suite();
    for (size_t i = 0; i < n_suite; i++) {
        damacy__json json = {0};
        damacy_error err;
        const damacy_status status = parse(&json, suite[i].text, suite[i].size, &err);

        damacy__json_deinit(&json, &heap);
        n_kind[suite[i].name[0] == 'y' ? 0 : suite[i].name[0] == 'n' ? 1 : 2]++;
        if ((status == DAMACY_OK) != expected(suite[i].name)) {
            printf("# %s: %s\n", suite[i].name, status ? err.message : "accepted");
            n_wrong++;
        }
        CHECK(status == DAMACY_OK || err.message[0]);
    }
    CHECK_EQ(n_wrong, 0);
    CHECK_EQ(n_kind[0], 95);
    CHECK_EQ(n_kind[1], 188);
    CHECK_EQ(n_kind[2], 35);
    CHECK_EQ(sizeof open_cases / sizeof open_cases[0], 35);
}

TEST(every_prefix_of_short_suite_files_is_handled)
{
    size_t n = 0;

    load_suite();
    for (size_t i = 0; i < n_suite; i++) {
        for (size_t size = 0; size < suite[i].size && suite[i].size <= 1024; size++, n++) {
            damacy_error err;
            (void)verdict(suite[i].text, size, &err);
        }
    }
    printf("# %zu prefixes\n", n);
    CHECK(n > 3000);
}

TEST(objects_and_arrays_cut_short_are_refused)
{
    static const char text[] = "{\"a\":[1,-2.5e+3,{\"b\":null},\"\\u00e9\\n\"],\"c\":true}";

    for (size_t size = 0; size < sizeof text - 1; size++) {
        damacy_error err;
        CHECK_EQ(verdict(text, size, &err), DAMACY_DECODE);
    }
}

/* ---- values ---- */

TEST(members_are_found_by_decoded_key)
{
    static const char text[] = "{\"sh\\u0061pe\":[10, 20],\"other\":{\"shape\":1},\"\":7}";
    damacy__json json = {0};
    damacy_error err;
    uint64_t number = 0;
    uint32_t shape;

    CHECK_EQ(parse(&json, text, sizeof text - 1, &err), DAMACY_OK);
    shape = damacy__json_member(&json, 0, "shape");
    CHECK(shape != DAMACY__JSON_NONE);
    CHECK_EQ(damacy__json_kind_of(&json, shape), DAMACY__JSON_ARRAY);
    CHECK_EQ(damacy__json_count(&json, shape), 2);
    CHECK(damacy__json_u64(&json, damacy__json_first(&json, shape), &number) && number == 10);
    CHECK(damacy__json_u64(&json, damacy__json_member(&json, 0, ""), &number) && number == 7);
    CHECK(damacy__json_member(&json, 0, "Shape") == DAMACY__JSON_NONE);
    CHECK(damacy__json_member(&json, 0, "shap") == DAMACY__JSON_NONE);
    CHECK(damacy__json_member(&json, shape, "shape") == DAMACY__JSON_NONE);
    CHECK_EQ(damacy__json_kind_of(&json, DAMACY__JSON_NONE), DAMACY__JSON_ABSENT);
    damacy__json_deinit(&json, &heap);
}

TEST(iteration_visits_each_child_once)
{
    static const char text[] = "[[],{},[[1],2],{\"a\":{\"b\":[3]}},\"x\",null]";
    const damacy__json_kind kinds[] = {DAMACY__JSON_ARRAY,  DAMACY__JSON_OBJECT, DAMACY__JSON_ARRAY,
                                       DAMACY__JSON_OBJECT, DAMACY__JSON_STRING, DAMACY__JSON_NULL};
    damacy__json json = {0};
    damacy_error err;
    size_t n = 0;

    CHECK_EQ(parse(&json, text, sizeof text - 1, &err), DAMACY_OK);
    for (uint32_t v = damacy__json_first(&json, 0); v != DAMACY__JSON_NONE;
         v = damacy__json_next(&json, 0, v), n++) {
        CHECK(n < 6);
        CHECK_EQ(damacy__json_kind_of(&json, v), kinds[n]);
    }
    CHECK_EQ(n, 6);
    CHECK(damacy__json_first(&json, 1) == DAMACY__JSON_NONE);
    CHECK(damacy__json_first(&json, 2) == DAMACY__JSON_NONE);
    damacy__json_deinit(&json, &heap);
}

TEST(strings_are_decoded)
{
    static const struct {
        const char* text;
        const char* decoded;
    } cases[] = {
        {"\"\"", ""},
        {"\"a\\/b\\\\\\\"\"", "a/b\\\""},
        {"\"\\b\\f\\n\\r\\t\"", "\b\f\n\r\t"},
        {"\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac"},
        {"\"\\ud834\\udd1e\"", "\xf0\x9d\x84\x9e"},
        {"\"\\u002e\\u002e\\u002f\"", "../"},
        {"\"\\u007f\\u0080\\u07ff\"", "\x7f\xc2\x80\xdf\xbf"},
        {"\"\\u0800\\uffff\"", "\xe0\xa0\x80\xef\xbf\xbf"},
        {"\"\\ud800\\udc00\\udbff\\udfff\"", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"},
        {"\"\xf4\x8f\xbf\xbf\xed\x9f\xbf\"", "\xf4\x8f\xbf\xbf\xed\x9f\xbf"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        damacy__json json = {0};
        damacy_error err;
        char* text = NULL;

        CHECK_EQ(parse(&json, cases[i].text, strlen(cases[i].text), &err), DAMACY_OK);
        CHECK_EQ(damacy__json_text(&json, 0, &heap, &text, &err), DAMACY_OK);
        CHECK_STR(text, cases[i].decoded);
        CHECK(damacy__json_equals(&json, 0, cases[i].decoded));
        CHECK(!damacy__json_equals(&json, 0, "no"));
        damacy__free(&heap, text, strlen(text) + 1);
        damacy__json_deinit(&json, &heap);
    }
    CHECK_EQ(heap.live_blocks, 0);
}

TEST(surrogates_come_in_pairs)
{
    static const struct {
        const char* text;
        int ok;
    } cases[] = {
        {"\"\\ud800\\udc00\"", 1}, {"\"\\udbff\\udfff\"", 1},  {"\"\\ud7ff\"", 1},
        {"\"\\ue000\"", 1},        {"\"\\ud800\"", 0},         {"\"\\udbff\"", 0},
        {"\"\\udc00\"", 0},        {"\"\\udfff\"", 0},         {"\"\\ud800\\ud800\"", 0},
        {"\"\\ud800\\ue000\"", 0}, {"\"\\ud800\\udbff\"", 0},  {"\"\\udc00\\ud800\"", 0},
        {"\"\\udc00\\udc00\"", 0}, {"\"\\ud800x\\udc00\"", 0}, {"\"\\ud800\\n\"", 0},
        {"\"\\ud800\\udc0\"", 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        damacy_error err;
        CHECK_EQ(verdict(cases[i].text, strlen(cases[i].text), &err),
                 cases[i].ok ? DAMACY_OK : DAMACY_DECODE);
    }
}

TEST(keys_are_ordered_by_their_decoded_bytes)
{
    static const char text[] = "{\"a\":1,\"b\":2,\"\\u0061\":3,\"ab\":4,\"\":5,\"a\\u0000\":6}";
    damacy__json json = {0};
    damacy_error err;
    uint32_t k[6];
    int n = 0;

    CHECK_EQ(parse(&json, text, sizeof text - 1, &err), DAMACY_OK);
    for (uint32_t v = damacy__json_first(&json, 0); v != DAMACY__JSON_NONE && n < 6;
         v = damacy__json_next(&json, 0, v)) {
        k[n++] = v;
    }
    CHECK_EQ(n, 6);
    CHECK(damacy__json_key_order(&json, k[0], k[1]) < 0);
    CHECK(damacy__json_key_order(&json, k[1], k[0]) > 0);
    CHECK(damacy__json_key_order(&json, k[0], k[2]) == 0);
    CHECK(damacy__json_key_order(&json, k[3], k[0]) > 0);
    CHECK(damacy__json_key_order(&json, k[4], k[0]) < 0);
    CHECK(damacy__json_key_order(&json, k[5], k[0]) > 0);
    CHECK(damacy__json_key_order(&json, k[5], k[3]) < 0);
    CHECK(damacy__json_key_hash(&json, k[0]) == damacy__json_key_hash(&json, k[2]));
    damacy__json_deinit(&json, &heap);
}

TEST(a_zero_character_does_not_cut_a_string)
{
    static const char text[] = "{\"a\\u0000b\":1,\"v\":\"/\\u0000\"}";
    damacy__json json = {0};
    damacy_error err;
    char* out = NULL;

    CHECK_EQ(parse(&json, text, sizeof text - 1, &err), DAMACY_OK);
    CHECK(damacy__json_member(&json, 0, "a") == DAMACY__JSON_NONE);
    CHECK(!damacy__json_equals(&json, damacy__json_member(&json, 0, "v"), "/"));
    CHECK_EQ(damacy__json_text(&json, damacy__json_member(&json, 0, "v"), &heap, &out, &err),
             DAMACY_DECODE);
    CHECK(out == NULL);
    damacy__json_deinit(&json, &heap);
    CHECK_EQ(heap.live_blocks, 0);
}

TEST(integers_are_exact_or_refused)
{
    static const struct {
        const char* text;
        int ok;
        uint64_t value;
    } cases[] = {
        {"0", 1, 0},
        {"-0", 1, 0},
        {"7", 1, 7},
        {"2147483648", 1, UINT64_C(2147483648)},
        {"9007199254740993", 1, UINT64_C(9007199254740993)},
        {"9223372036854775807", 1, INT64_MAX},
        {"9223372036854775808", 1, UINT64_C(9223372036854775808)},
        {"18446744073709551615", 1, UINT64_MAX},
        {"18446744073709551616", 0, 0},
        {"99999999999999999999999999", 0, 0},
        {"-1", 0, 0},
        {"-00.0", 0, 0},
        {"1.0", 0, 0},
        {"1e3", 0, 0},
        {"\"5\"", 0, 0},
        {"true", 0, 0},
        {"null", 0, 0},
        {"[]", 0, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        damacy__json json = {0};
        damacy_error err;
        uint64_t value = 42;

        if (parse(&json, cases[i].text, strlen(cases[i].text), &err) != DAMACY_OK) {
            CHECK(!cases[i].ok);
            continue;
        }
        CHECK_EQ(damacy__json_u64(&json, 0, &value), cases[i].ok);
        CHECK(value == (cases[i].ok ? cases[i].value : 42));
        damacy__json_deinit(&json, &heap);
    }
}

TEST(the_source_of_a_value_is_its_text)
{
    static const char text[] = " {\"a\" : { \"x\" : [ 1 , 2 ] } , \"b\" : -1.50e1 } ";
    damacy__json json = {0};
    damacy_error err;
    damacy__span span;

    CHECK_EQ(parse(&json, text, sizeof text - 1, &err), DAMACY_OK);
    span = damacy__json_source(&json, damacy__json_member(&json, 0, "a"));
    CHECK(span.size == 19 && memcmp(span.ptr, "{ \"x\" : [ 1 , 2 ] }", 19) == 0);
    span = damacy__json_source(&json, damacy__json_member(&json, 0, "b"));
    CHECK(span.size == 7 && memcmp(span.ptr, "-1.50e1", 7) == 0);
    damacy__json_deinit(&json, &heap);
}

TEST(duplicate_keys_are_refused_at_any_depth)
{
    static const struct {
        const char* text;
        int ok;
    } cases[] = {
        {"{\"a\":1,\"a\":1}", 0},
        {"{\"a\":1,\"\\u0061\":2}", 0},
        {"{\"b\":1,\"a\":{\"x\":[{\"k\":1,\"l\":2,\"k\":3}]}}", 0},
        {"{\"\xc3\xa9\":1,\"\\u00e9\":2}", 0},
        {"{\"\":1,\"\":2}", 0},
        {"{\"aaaaaaaaaaaab\":1,\"aaaaaaaaaaaac\":2,\"aaaaaaaaaaaab\":3}", 0},
        {"{\"aaaaaaaaaaaab\":1,\"aaaaaaaaaaaac\":2,\"aaaaaaaaaaaa\":3}", 1},
        {"{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1}}", 1},
        {"[{\"a\":1},{\"a\":1}]", 1},
        {"{\"a\":\"a\",\"b\":\"a\"}", 1},
        {"{\"a\\u0000\":1,\"a\":2}", 1},
        {"{}", 1},
        {"3", 1},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        damacy_error err;
        CHECK_EQ(verdict(cases[i].text, strlen(cases[i].text), &err),
                 cases[i].ok ? DAMACY_OK : DAMACY_DECODE);
        if (!cases[i].ok) {
            CHECK_HAS(err.message, "twice");
        }
    }
}

TEST(duplicates_are_found_among_random_keys)
{
    uint64_t state = test_seed();

    for (int round = 0; round < 300; round++) {
        static char text[8192];
        const int n = 2 + (int)(test_random(&state) % 200);
        const int twin = (int)(test_random(&state) % 3) == 0;
        const int first = (int)(test_random(&state) % (uint64_t)n);
        int second = (int)(test_random(&state) % (uint64_t)n);
        size_t size = 0;
        damacy_error err;

        second = second == first ? (first + 1) % n : second;
        for (int i = 0; i < n; i++) {
            const int name = twin && i == second ? first : i;
            size += (size_t)snprintf(text + size, sizeof text - size, "%c\"prefix_%x\":%d",
                                     i ? ',' : '{', (unsigned)name * 2654435761u, i);
        }
        text[size++] = '}';
        CHECK_EQ(verdict(text, size, &err), twin ? DAMACY_DECODE : DAMACY_OK);
    }
}

TEST(nonfinite_numbers_are_taken_only_where_allowed)
{
    static const struct {
        const char* text;
        int ok;
    } cases[] = {
        {"NaN", 1},         {"Infinity", 1}, {"-Infinity", 1}, {"[NaN,-Infinity]", 1},
        {"{\"a\":NaN}", 1}, {"-NaN", 0},     {"nan", 0},       {"Inf", 0},
        {"-Inf", 0},        {"-I", 0},       {"N", 0},         {"+Infinity", 0},
        {"NaN1", 0},        {"{NaN:1}", 0},  {"-", 0},         {"Infinit", 0},
        {"[NaN", 0},
    };
    damacy__json_limits limits = {0};

    limits.allow_nonfinite = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const damacy__span text = damacy__span_of(cases[i].text, strlen(cases[i].text));
        damacy__json json = {0};
        damacy_error err;
        uint64_t number;

        CHECK_EQ(damacy__json_parse(&json, &heap, text, NULL, &err), DAMACY_DECODE);
        CHECK_EQ(damacy__json_parse(&json, &heap, text, &limits, &err),
                 cases[i].ok ? DAMACY_OK : DAMACY_DECODE);
        if (i < 3) {
            CHECK_EQ(damacy__json_kind_of(&json, 0), DAMACY__JSON_NONFINITE);
            CHECK(!damacy__json_u64(&json, 0, &number));
        }
        damacy__json_deinit(&json, &heap);
    }
}

TEST(each_kind_is_told)
{
    static const char text[] = "[{},[],\"e\",1,-0.5e7,true,false,null]";
    const damacy__json_kind kinds[] = {
        DAMACY__JSON_OBJECT, DAMACY__JSON_ARRAY, DAMACY__JSON_STRING, DAMACY__JSON_NUMBER,
        DAMACY__JSON_NUMBER, DAMACY__JSON_TRUE,  DAMACY__JSON_FALSE,  DAMACY__JSON_NULL};
    damacy__json json = {0};
    damacy_error err;
    size_t n = 0;

    CHECK_EQ(parse(&json, text, sizeof text - 1, &err), DAMACY_OK);
    for (uint32_t v = damacy__json_first(&json, 0); v != DAMACY__JSON_NONE;
         v = damacy__json_next(&json, 0, v)) {
        CHECK(n < 8);
        CHECK_EQ(damacy__json_kind_of(&json, v), kinds[n++]);
    }
    CHECK_EQ(n, 8);
    damacy__json_deinit(&json, &heap);
}

/* ---- limits ---- */

TEST(depth_is_limited)
{
    damacy__json_limits limits = {0};
    char text[200];
    damacy__json json = {0};
    damacy_error err;

    for (size_t depth = 1; depth <= 66; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        CHECK_EQ(verdict(text, 2 * depth, &err), depth <= 32 ? DAMACY_OK : DAMACY_UNSUPPORTED);
        limits.max_depth = 64;
        CHECK_EQ(damacy__json_parse(&json, &heap, damacy__span_of(text, 2 * depth), &limits, &err),
                 depth <= 64 ? DAMACY_OK : DAMACY_UNSUPPORTED);
        damacy__json_deinit(&json, &heap);
    }
    CHECK_HAS(err.message, "deeper than 64");
}

TEST(hostile_texts_of_one_mebibyte_end_soon)
{
    static const struct {
        const char* unit;
        const char* open;
        const char* close;
        damacy_status status;
        const char* message;
    } cases[] = {
        {"[", "", "", DAMACY_UNSUPPORTED, "deeper"},
        {"{\"a\":", "", "", DAMACY_UNSUPPORTED, "deeper"},
        {"1,", "[", "1]", DAMACY_OK, ""},
        {"[],", "[", "1]", DAMACY_OK, ""},
        {"{},", "[", "1]", DAMACY_OK, ""},
        {"[[[]]],", "[", "1]", DAMACY_OK, ""},
        {"\"\":1,", "{", "\"a\":1}", DAMACY_DECODE, "twice"},
        {"x", "{\"", "\":1}", DAMACY_OK, ""},
        {"9", "", "", DAMACY_OK, ""},
        {" ", "", "1", DAMACY_OK, ""},
        {"\\u0041", "\"", "\"", DAMACY_OK, ""},
        {"\\ud834\\udd1e", "\"", "\"", DAMACY_OK, ""},
        {"\\", "\"", "", DAMACY_DECODE, "does not end"},
        {"\"", "", "", DAMACY_DECODE, "follows"},
        {"[", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[0,", "", DAMACY_UNSUPPORTED, "deeper"},
    };
    const size_t size = 1 << 20;
    char* text = (char*)malloc(size);

    CHECK(text != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t unit = strlen(cases[i].unit);
        const size_t close = strlen(cases[i].close);
        size_t at = strlen(cases[i].open);
        damacy_error err;

        memcpy(text, cases[i].open, at);
        for (; at + unit + close <= size; at += unit) {
            memcpy(text + at, cases[i].unit, unit);
        }
        memcpy(text + at, cases[i].close, close);
        CHECK_EQ(verdict(text, at + close, &err), cases[i].status);
        CHECK_HAS(cases[i].status ? err.message : "", cases[i].message);
    }
    free(text);
}

TEST(many_similar_keys_are_checked_in_time)
{
    const size_t size = 1 << 20;
    char* text = (char*)malloc(size);
    size_t at = 0;
    damacy_error err;

    CHECK(text != NULL);
    for (int i = 0; at + 40 < size; i++) {
        at += (size_t)snprintf(text + at, size - at, "%c\"aaaaaaaaaa%d\":1", i ? ',' : '{', i);
    }
    text[at++] = '}';
    CHECK_EQ(verdict(text, at, &err), DAMACY_OK);
    at = 0;
    for (int i = 0; at + 1100 < size; i++) { /* long common prefixes */
        text[at++] = i ? ',' : '{';
        text[at++] = '"';
        memset(text + at, 'a', 1000);
        at += 1000;
        at += (size_t)snprintf(text + at, size - at, "%d\":1", i);
    }
    text[at++] = '}';
    CHECK_EQ(verdict(text, at, &err), DAMACY_OK);
    free(text);
}

TEST(texts_over_the_size_limit_are_refused)
{
    const size_t size = (1 << 20) + 1;
    char* text = (char*)malloc(size);
    damacy__json json = {0};
    damacy__json_limits limits = {0};
    damacy_error err;

    CHECK(text != NULL);
    memset(text, ' ', size);
    text[0] = '1';
    CHECK_EQ(verdict(text, size - 1, &err), DAMACY_OK);
    CHECK_EQ(verdict(text, size, &err), DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "1048577");
    limits.max_size = size;
    CHECK_EQ(damacy__json_parse(&json, &heap, damacy__span_of(text, size), &limits, &err),
             DAMACY_OK);
    damacy__json_deinit(&json, &heap);
    free(text);
}

static int n_allowed;

static void* failing_alloc(void* user, size_t size, size_t alignment)
{
    void* ptr = NULL;

    (void)user;
    return n_allowed-- > 0 && posix_memalign(&ptr, alignment < 8 ? 8 : alignment, size) == 0 ? ptr
                                                                                             : NULL;
}

static void plain_free(void* user, void* ptr, size_t size)
{
    (void)user;
    (void)size;
    free(ptr);
}

TEST(a_failed_allocation_is_reported_and_leaks_nothing)
{
    static const char text[] = "{\"a\":[1,2,3],\"b\":\"c\"}";
    damacy__alloc failing = {0};
    damacy__json json = {0};
    damacy_error err;

    failing.user.alloc = failing_alloc;
    failing.user.free = plain_free;
    for (int n = 0; n <= 3; n++) {
        damacy_status status;

        n_allowed = n;
        status =
            damacy__json_parse(&json, &failing, damacy__span_of(text, sizeof text - 1), NULL, &err);
        CHECK_EQ(status, n < 2 ? DAMACY_OOM : DAMACY_OK);
        if (status == DAMACY_OK) {
            status = damacy__json_refuse_duplicates(&json, &failing, &err);
            CHECK_EQ(status, n < 3 ? DAMACY_OOM : DAMACY_OK);
            damacy__json_deinit(&json, &failing);
        }
        CHECK_EQ(failing.live_blocks, 0);
        CHECK_EQ(failing.live_bytes, 0);
    }
}

TEST_MAIN
