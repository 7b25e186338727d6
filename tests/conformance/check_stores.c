/* Compares what the library reads from stores with what their writers put in, voxel for voxel:
 *
 *     check_stores [--gpu] [--only=TEXT] [--part=K/N] FOLDER      FOLDER from
 * tests/data/make_stores.py
 *
 * Each store is read whole and in random boxes, as its own type, f32, bf16, f16, u8 and one more,
 * by damacy_read, and once more through a pipeline, on the CPU or on GPU 0. Refused stores must be
 * refused by name. --part: only every Nth store, from K on, which is 0 to N - 1, so that several
 * processes share the work. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tests/test.h"
#include "tools/host_copy.h"

enum { N_KINDS = 6 };

typedef struct store {
    char path[1024];
    char word[128];     /* what the error's message must hold; empty: the store is fine */
    bool is_unreadable; /* the error comes from reading, not from opening */
    damacy_dtype dtypes[N_KINDS];
    uint8_t* voxels[N_KINDS]; /* as dtypes[i], C order */
    uint32_t rank;
    int64_t shape[DAMACY_MAX_RANK];
    size_t n; /* voxels */
} store;

static host_copy gpu; /* gpu.context is set when batches are made on GPU 0 */

static damacy_dtype dtype_of(const char* name)
{
    for (int i = 0; i < DAMACY_NATIVE; i++) {
        if (strcmp(damacy_dtype_str((damacy_dtype)i), name) == 0) {
            return (damacy_dtype)i;
        }
    }
    printf("# no type %s\n", name);
    return DAMACY_NATIVE;
}

static uint8_t* load(const char* path, const char* suffix, size_t size)
{
    char name[1100];
    FILE* file;
    uint8_t* bytes = (uint8_t*)malloc(size + 1);

    (void)snprintf(name, sizeof name, "%s.%s", path, suffix);
    file = fopen(name, "rb");
    CHECK(bytes && file);
    CHECK_EQ(fread(bytes, 1, size + 1, file), size);
    (void)fclose(file);
    return bytes;
}

/* Copies the box of a C-order array with items of the given size. */
static void cut(const store* s, const uint8_t* src, size_t item, const damacy_interval* box,
                uint8_t* dst)
{
    int64_t at[DAMACY_MAX_RANK];

    for (uint32_t axis = 0; axis < s->rank; axis++) {
        at[axis] = box[axis].begin;
    }
    for (;;) {
        size_t index = 0;
        uint32_t axis = s->rank;

        for (uint32_t i = 0; i < s->rank; i++) {
            index = index * (size_t)s->shape[i] + (size_t)at[i];
        }
        memcpy(dst, src + index * item, item);
        dst += item;
        while (axis > 0 && ++at[axis - 1] == box[axis - 1].end) {
            at[axis - 1] = box[axis - 1].begin;
            axis--;
        }
        if (axis == 0) {
            return;
        }
    }
}

/* Random box, or the whole array for round 0; returns its voxels. */
static size_t pick(const store* s, uint64_t* random, int round, damacy_sample* sample)
{
    size_t n = 1;

    sample->uri = s->path;
    sample->rank = s->rank;
    for (uint32_t axis = 0; axis < s->rank; axis++) {
        const int64_t length =
            round ? 1 + (int64_t)(test_random(random) % (uint64_t)s->shape[axis]) : s->shape[axis];
        const int64_t begin =
            (int64_t)(test_random(random) % (uint64_t)(s->shape[axis] - length + 1));

        sample->box[axis].begin = begin;
        sample->box[axis].end = begin + length;
        n *= (size_t)length;
    }
    return n;
}

static void compare(const store* s, int kind, const damacy_sample* sample, size_t n,
                    const uint8_t* got)
{
    const size_t item = damacy_dtype_size(s->dtypes[kind]);
    uint8_t* want = (uint8_t*)malloc(n * item);

    CHECK(want != NULL);
    cut(s, s->voxels[kind], item, sample->box, want);
    for (size_t i = 0; i < n * item; i++) {
        if (want[i] != got[i]) {
            printf("# as %s: voxel %zu of %zu, byte %zu: 0x%02x, not 0x%02x; box",
                   damacy_dtype_str(s->dtypes[kind]), i / item, n, i % item, got[i], want[i]);
            for (uint32_t axis = 0; axis < s->rank; axis++) {
                printf(" %lld:%lld", (long long)sample->box[axis].begin,
                       (long long)sample->box[axis].end);
            }
            printf("\n");
            CHECK(!"voxels differ");
        }
    }
    free(want);
}

static void check_ok(damacy_status status, const damacy_error* err)
{
    if (status != DAMACY_OK) {
        printf("# %s in %s: %s (chunk \"%s\")\n", damacy_status_str(status),
               damacy_stage_str(err->stage), err->message, err->chunk);
    }
    CHECK(status == DAMACY_OK);
}

static void check_info(const store* s)
{
    damacy_array* array;
    damacy_array_info_t info;
    damacy_error err;

    check_ok(damacy_array_open(NULL, s->path, &array, &err), &err);
    damacy_array_info(array, &info);
    CHECK_EQ(info.rank, s->rank);
    CHECK_STR(damacy_dtype_str(info.dtype), damacy_dtype_str(s->dtypes[0]));
    for (uint32_t axis = 0; axis < s->rank; axis++) {
        CHECK_EQ(info.shape[axis], s->shape[axis]);
    }
    damacy_array_close(array);
}

static void check_reads(const store* s, uint64_t* random)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (int round = 0; round < 4; round++) {
            damacy_sample sample;
            const size_t n = pick(s, random, round, &sample);
            const size_t size = n * damacy_dtype_size(s->dtypes[kind]);
            uint8_t* got = (uint8_t*)malloc(size);
            damacy_config config = {0};
            damacy_error err;

            CHECK(got != NULL);
            memset(got, 0xcd, size);
            config.dtype = kind == 0 ? DAMACY_NATIVE : s->dtypes[kind];
            config.max_host_bytes = UINT64_C(64) << 20;
            config.io_threads = 2;
            config.decode_threads = 2;
            check_ok(damacy_read(&config, &sample, got, size, &err), &err);
            compare(s, kind, &sample, n, got);
            free(got);
        }
    }
}

/* Crops of one shape in batches of 3, the last one ragged. */
static void check_pipeline(const store* s, int kind, uint64_t* random)
{
    enum { N = 8, BATCH = 3 };
    damacy_sample samples[N];
    damacy_config config = {0};
    damacy* d;
    damacy_error err;
    uint8_t* space;
    size_t taken;
    const size_t n = pick(s, random, 1, &samples[0]);
    const size_t size = n * damacy_dtype_size(s->dtypes[kind]);

    for (int i = 1; i < N; i++) {
        samples[i] = samples[0];
        for (uint32_t axis = 0; axis < s->rank; axis++) {
            const int64_t length = samples[0].box[axis].end - samples[0].box[axis].begin;
            const int64_t begin =
                (int64_t)(test_random(random) % (uint64_t)(s->shape[axis] - length + 1));

            samples[i].box[axis].begin = begin;
            samples[i].box[axis].end = begin + length;
        }
    }
    config.samples_per_batch = BATCH;
    config.dtype = kind == 0 ? DAMACY_NATIVE : s->dtypes[kind];
    config.device = gpu.context ? DAMACY_GPU(0) : DAMACY_CPU;
    config.io_threads = 2;
    config.decode_threads = 2;
    config.max_host_bytes = UINT64_C(64) << 20;
    config.max_gpu_bytes = UINT64_C(512) << 20;
    space = (uint8_t*)malloc(BATCH * size);
    CHECK(space != NULL);
    check_ok(damacy_create(&config, &d, &err), &err);
    check_ok(damacy_push(d, samples, N, &taken, &err), &err);
    CHECK_EQ(taken, N);
    CHECK_EQ(damacy_finish(d), DAMACY_OK);
    for (size_t done = 0; done < N;) {
        damacy_batch batch;
        damacy_batch_info_t info;
        const uint8_t* got;

        check_ok(damacy_pop(d, &batch, &err), &err);
        CHECK_EQ(damacy_batch_info(batch, &info), DAMACY_OK);
        CHECK_EQ(info.shape[0], N - done < BATCH ? N - done : BATCH);
        CHECK_EQ(info.size, (uint64_t)info.shape[0] * size);
        got = (const uint8_t*)host_copy_get(&gpu, &info, space);
        CHECK(got != NULL);
        for (int64_t i = 0; i < info.shape[0]; i++) {
            compare(s, kind, &samples[done++], n, got + (size_t)i * size);
        }
        CHECK_EQ(damacy_release(batch), DAMACY_OK);
    }
    {
        damacy_batch batch;
        CHECK_EQ(damacy_pop(d, &batch, &err), DAMACY_END);
    }
    damacy_destroy(d);
    free(space);
}

static void check_refused(const store* s)
{
    damacy_array* array;
    damacy_array_info_t info;
    damacy_error err;
    damacy_status status = damacy_array_open(NULL, s->path, &array, &err);

    if (status == DAMACY_OK && s->is_unreadable) {
        damacy_sample sample = {0};
        float voxels[16];

        damacy_array_info(array, &info);
        sample.uri = s->path;
        sample.rank = info.rank;
        for (uint32_t axis = 0; axis < info.rank; axis++) {
            sample.box[axis].end = 1;
        }
        status = damacy_read(NULL, &sample, voxels, sizeof voxels[0], &err);
        damacy_array_close(array);
    } else if (status == DAMACY_OK) {
        damacy_array_close(array);
    }
    CHECK(status == DAMACY_UNSUPPORTED || status == DAMACY_DTYPE);
    CHECK_HAS(err.message, s->word);
}

static void check_store(const store* s)
{
    uint64_t random = 1 + s->n;

    if (s->word[0]) {
        check_refused(s);
        return;
    }
    check_info(s);
    if (s->n == 0) {
        return;
    }
    if (!gpu.context) {
        check_reads(s, &random);
    }
    for (int kind = 0; kind < N_KINDS; kind++) {
        check_pipeline(s, kind, &random);
    }
}

/* Fills a store from a line of list.txt; false: not a line. */
static bool parse(const char* folder, char* line, store* s)
{
    char* rest = line;
    char* field[5] = {NULL, NULL, NULL, NULL, NULL};
    int n_fields = 0;

    line[strcspn(line, "\n")] = 0;
    while (n_fields < 5 && (field[n_fields] = strsep(&rest, "\t")) != NULL) {
        n_fields++;
    }
    memset(s, 0, sizeof *s);
    if (n_fields < 3) {
        return false;
    }
    (void)snprintf(s->path, sizeof s->path, "%s/%s", folder, field[1]);
    s->is_unreadable = strcmp(field[0], "unreadable") == 0;
    if (strcmp(field[0], "refuse") == 0 || s->is_unreadable) {
        (void)snprintf(s->word, sizeof s->word, "%s", field[2]);
        return true;
    }
    if (n_fields < 5) {
        return false;
    }
    s->dtypes[0] = dtype_of(field[2]);
    s->dtypes[1] = DAMACY_F32;
    s->dtypes[2] = DAMACY_BF16;
    s->dtypes[3] = DAMACY_F16;
    s->dtypes[4] = DAMACY_U8;
    s->dtypes[5] = dtype_of(field[3]);
    s->n = 1;
    for (char* part = field[4]; *part && *part != '-';) {
        s->shape[s->rank] = strtoll(part, &part, 10);
        s->n *= (size_t)s->shape[s->rank++];
        part += *part == ',';
    }
    return true;
}

static bool is_part(const char* argument, int* part, int* n_parts)
{
    return sscanf(argument, "--part=%d/%d", part, n_parts) == 2 && *part >= 0 && *part < *n_parts;
}

int main(int argc, char** argv)
{
    static const char* const suffixes[N_KINDS] = {"native", "f32", "bf16", "f16", "u8", "extra"};
    static store s;
    static volatile int number, failed;
    static const char* folder; /* static, as all that the loop uses after a jump */
    static const char* only = "";
    int part = 0;
    int n_parts = 1;
    int seen = 0;
    char name[1100];
    char line[2048];
    FILE* list;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--only=", 7) == 0) {
            only = argv[i] + 7;
        } else if (strncmp(argv[i], "--part=", 7) == 0) {
            if (!is_part(argv[i], &part, &n_parts)) {
                fprintf(stderr, "check_stores: %s: not K/N with K from 0 to N - 1\n", argv[i]);
                return 2;
            }
        } else if (strcmp(argv[i], "--gpu") != 0) {
            folder = argv[i];
        } else if (!host_copy_open(&gpu, 0)) {
            printf("1..0 # SKIP no CUDA device\n");
            return 77;
        }
    }
    (void)snprintf(name, sizeof name, "%s/list.txt", folder ? folder : ".");
    list = fopen(name, "r");
    if (!list) {
        printf("# cannot open %s\n", name);
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, list)) {
        if (!strstr(line, only) || seen++ % n_parts != part) {
            continue;
        }
        number++;
        if (setjmp(test_jump) == 0) {
            CHECK(parse(folder, line, &s));
            for (int kind = 0; kind < N_KINDS && !s.word[0]; kind++) {
                s.voxels[kind] =
                    load(s.path, suffixes[kind], s.n * damacy_dtype_size(s.dtypes[kind]));
            }
            check_store(&s);
            printf("ok %d - %s\n", number, strrchr(s.path, '/') + 1);
        } else {
            failed++;
            printf("not ok %d - %s\n", number, strrchr(s.path, '/') + 1);
        }
        for (int kind = 0; kind < N_KINDS; kind++) {
            free(s.voxels[kind]);
        }
    }
    (void)fclose(list);
    printf("1..%d\n", number);
    return failed != 0;
}
