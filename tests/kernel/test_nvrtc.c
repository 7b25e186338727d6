/* Every kernel source compiles for every architecture that is promised, through the library's own
 * compiler. NVRTC needs no GPU. Two at a time: a compilation takes seconds. TEST_ARCHITECTURES,
 * such as "90", shortens the list. */
#include "gpu/compile.h"
#include "tests/test.h"

enum { MAX_SOURCES = DAMACY__COMPILE_SOURCES, N_ARCHITECTURES = 7 };
static const uint32_t architectures[N_ARCHITECTURES] = {75, 80, 86, 89, 90, 100, 120};

typedef struct compile_result {
    uint32_t architecture;
    const char* name;
    const char* define; /* NULL: none */
    damacy_status status;
    uint64_t size;
    uint64_t ns;
    bool has_entry;
    char message[384];
} compile_result;

typedef struct compile_work {
    damacy__alloc heap;
    damacy__driver driver;
    damacy__source sources[MAX_SOURCES];
    uint32_t n_sources;
    compile_result results[MAX_SOURCES * N_ARCHITECTURES];
    uint32_t n_results;
    uint32_t next; /* atomic */
} compile_work;

static compile_work work;

static char* read_text(const char* path)
{
    FILE* file = fopen(path, "r");
    char* text = NULL;
    long size;

    CHECK(file != NULL);
    CHECK(fseek(file, 0, SEEK_END) == 0);
    size = ftell(file);
    CHECK(size >= 0);
    rewind(file);
    text = (char*)calloc(1, (size_t)size + 1);
    CHECK(text != NULL);
    CHECK(fread(text, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    return text;
}

static bool ends_with(const char* text, const char* end)
{
    const size_t n = strlen(text);

    return n >= strlen(end) && strcmp(text + n - strlen(end), end) == 0;
}

/* All files of kernels/, named as they include each other. */
static void read_sources(void)
{
    DIR* dir = opendir("kernels");
    struct dirent* entry;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char path[300];
        if (!ends_with(entry->d_name, ".h") && !ends_with(entry->d_name, ".cuh") &&
            !ends_with(entry->d_name, ".cu")) {
            continue;
        }
        CHECK(work.n_sources < MAX_SOURCES);
        (void)snprintf(path, sizeof path, "kernels/%s", entry->d_name);
        work.sources[work.n_sources].name = strdup(path);
        work.sources[work.n_sources].text = read_text(path);
        work.n_sources++;
    }
    closedir(dir);
}

static bool holds(const damacy__image* image, const char* text)
{
    return memmem(image->bytes, (size_t)image->size, text, strlen(text)) != NULL;
}

static void compile_one(compile_result* result)
{
    damacy__compiler compiler;
    damacy__compilation_spec spec;
    damacy__image image;
    damacy_error err;
    const uint64_t begin = damacy__now_ns();

    memset(&image, 0, sizeof image);
    memset(&spec, 0, sizeof spec);
    memset(&err, 0, sizeof err);
    spec.name = result->name;
    spec.defines = &result->define;
    spec.n_defines = result->define ? 1 : 0;
    result->status =
        damacy__compiler_init(&compiler, &work.heap, &work.driver, result->architecture,
                              work.sources, work.n_sources, "", &err);
    if (result->status == DAMACY_OK) {
        result->status = damacy__compile(&compiler, &spec, &image, &err);
        if (result->status == DAMACY_OK) {
            result->size = image.size;
            result->has_entry = holds(&image, ".text.damacy_");
        }
        damacy__image_free(&compiler, &image);
        damacy__compiler_deinit(&compiler);
    }
    result->ns = damacy__now_ns() - begin;
    (void)snprintf(result->message, sizeof result->message, "%s", err.message);
}

static void want(uint32_t architecture, const char* name, const char* define)
{
    compile_result* r = &work.results[work.n_results++];

    r->architecture = architecture;
    r->name = name;
    r->define = define;
}

static void* compile_some(void* unused)
{
    uint32_t i;

    (void)unused;
    while ((i = __atomic_fetch_add(&work.next, 1, __ATOMIC_RELAXED)) < work.n_results) {
        compile_one(&work.results[i]);
    }
    return NULL;
}

/* All, unless the environment says less or a sanitizer watches: it would see the same host code. */
static bool is_wanted(uint32_t architecture)
{
    const char* list = getenv("TEST_ARCHITECTURES");
    char number[16];

    if (!list && (TEST_ASAN || TEST_TSAN)) {
        list = "90";
    }
    (void)snprintf(number, sizeof number, "%u", architecture);
    return !list || strstr(list, number) != NULL;
}

TEST(every_kernel_compiles_for_every_architecture)
{
    damacy_error err;
    pthread_t helper;
    uint32_t n_failed = 0;

    memset(&work, 0, sizeof work);
    if (damacy__driver_load_nvrtc(&work.driver, &err) != DAMACY_OK) {
        SKIP("no libnvrtc on this machine");
    }
    if (access("kernels", R_OK) != 0) {
        SKIP("not run in the root of the repository");
    }
    read_sources();
    for (uint32_t a = 0; a < N_ARCHITECTURES; a++) {
        for (uint32_t i = 0; i < work.n_sources && is_wanted(architectures[a]); i++) {
            if (ends_with(work.sources[i].name, ".cu")) {
                want(architectures[a], work.sources[i].name, NULL);
            }
            if (ends_with(work.sources[i].name, "/assemble.cu")) {
                want(architectures[a], work.sources[i].name, "DAMACY__ASSEMBLE_OUT=0"); /* f32 */
            }
        }
    }
    CHECK(work.n_results > 0);
    CHECK(pthread_create(&helper, NULL, compile_some, NULL) == 0);
    (void)compile_some(NULL);
    pthread_join(helper, NULL);
    for (uint32_t i = 0; i < work.n_results; i++) {
        const compile_result* r = &work.results[i];
        if (r->status == DAMACY_OK && r->has_entry) {
            printf("# sm_%u %-28s %8llu bytes %6.2f s %s\n", r->architecture, r->name,
                   (unsigned long long)r->size, (double)r->ns * 1e-9, r->define ? r->define : "");
        } else {
            printf("# sm_%u %s %s FAILED: %s\n", r->architecture, r->name,
                   r->define ? r->define : "", r->message);
            n_failed++;
        }
    }
    CHECK_EQ(n_failed, 0);
    CHECK_EQ(work.heap.live_blocks, 0);
}

TEST_MAIN
