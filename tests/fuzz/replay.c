/* Runs a fuzz target without a fuzzer: every file of a folder, every prefix of the short ones, and
 * random damage to all. The target fails by crashing, so sanitizers are what gives this its teeth.
 */
#include "tests/test.h"
#include <dirent.h>

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

typedef struct seed {
    uint8_t* bytes;
    size_t size;
} seed;

static seed seeds[4096];
static size_t n_seeds;

static void run_copy(const uint8_t* bytes, size_t size)
{
    uint8_t* copy = (uint8_t*)malloc(size ? size : 1); /* exact, so that overreads are seen */

    CHECK(copy != NULL);
    memcpy(copy, bytes, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void load(const char* folder)
{
    DIR* directory = opendir(folder);
    struct dirent* entry;

    while (directory && (entry = readdir(directory)) != NULL &&
           n_seeds < sizeof seeds / sizeof seeds[0]) {
        char path[1024];
        FILE* file;
        seed* const s = &seeds[n_seeds];

        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.' || (file = fopen(path, "rb")) == NULL) {
            continue;
        }
        s->bytes = (uint8_t*)malloc(1 << 20);
        s->size = s->bytes ? fread(s->bytes, 1, 1 << 20, file) : 0;
        (void)fclose(file);
        n_seeds += s->bytes != NULL;
    }
    if (directory) {
        (void)closedir(directory);
    }
}

TEST(every_seed_is_handled)
{
    CHECK(n_seeds > 0);
    for (size_t i = 0; i < n_seeds; i++) {
        run_copy(seeds[i].bytes, seeds[i].size);
    }
}

TEST(every_prefix_of_short_seeds_is_handled)
{
    for (size_t i = 0; i < n_seeds; i++) {
        for (size_t size = 0; size < seeds[i].size && seeds[i].size <= 1024; size++) {
            run_copy(seeds[i].bytes, size);
        }
    }
}

TEST(random_damage_is_handled)
{
    uint64_t state = test_seed();

    for (size_t round = 0; round < 4000 && n_seeds; round++) {
        const seed* const s = &seeds[test_random(&state) % n_seeds];
        uint8_t* copy = (uint8_t*)malloc(s->size ? s->size : 1);
        const uint64_t n = 1 + test_random(&state) % 4;

        CHECK(copy != NULL);
        memcpy(copy, s->bytes, s->size);
        for (uint64_t i = 0; i < n && s->size; i++) {
            const uint64_t random = test_random(&state);

            copy[(random >> 16) % s->size] =
                random & 1
                    ? (uint8_t)(random >> 8)
                    : (uint8_t)(copy[(random >> 16) % s->size] ^ (1u << ((random >> 8) & 7)));
        }
        (void)LLVMFuzzerTestOneInput(copy, s->size);
        free(copy);
    }
}

int main(int argc, char** argv)
{
    for (int i = 1; i < argc; i++) {
        load(argv[i]);
    }
    return test_main(1, argv);
}
