// Programs: compiled by NVRTC (where there is one) or a fake, cached, loaded, launched; every
// failure is told.
#include "gpu/memory.h"
#include "gpu/program.h"
#include "tests/device_open.h"
#include "tests/simt/counts.h"

static damacy__driver driver;
static damacy__alloc heap;
static damacy__device device;
static damacy__compiler compiler;
static damacy_error err;
static char folder[64];

static const damacy__source sources[] = {
    {"kernels/add.cu",
     "#include \"kernels/add.h\"\nextern \"C\" __global__ void damacy_test_add(int* x, int n) {\n"
     "    if (threadIdx.x < n) x[threadIdx.x] += ADDEND + BASE;\n}\n"},
    {"kernels/add.h", "#define BASE 40\n"},
    {"kernels/broken.cu",
     "extern \"C\" __global__ void damacy_broken() {\n    this is not C;\n}\n#error broken\n"},
};
static const char* const add_entries[] = {"damacy_test_add"};
static const char* const add_defines[] = {"ADDEND=2"};

static void add_kernel(int* x, int n)
{
    if ((int)threadIdx.x < n)
        x[threadIdx.x] += 42;
}

static damacy__program_spec add_spec()
{
    damacy__program_spec spec = {};
    spec.name = "kernels/add.cu";
    spec.entries = add_entries;
    spec.n_entries = 1;
    spec.defines = add_defines;
    spec.n_defines = 1;
    return spec;
}

static void make_folder()
{
    snprintf(folder, sizeof folder, "/tmp/damacy-program-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
}

static void drop_folder()
{
    const std::string command = std::string("rm -rf '") + folder + "'";
    CHECK_EQ(system(command.c_str()), 0);
}

static void start(const char* cache, fake_config config = {})
{
    simt::enroll("damacy_test_add", add_kernel);
    fake_open(&driver, &config);
    memset(&heap, 0, sizeof heap);
    memset(&err, 0, sizeof err);
    damacy__device_config wanted = {};
    CHECK_EQ(damacy__device_open(&device, &driver, &heap, &wanted, &err), DAMACY_OK);
    CHECK_EQ(damacy__compiler_init(&compiler, &heap, &driver, device.architecture, sources, 3,
                                   cache, &err),
             DAMACY_OK);
    CHECK_EQ(damacy__device_enter(&device, &err), DAMACY_OK);
}

static void finish()
{
    damacy__device_leave(&device);
    damacy__compiler_deinit(&compiler);
    damacy__device_close(&device);
    const fake_counts counts = counts_without_misuse();
    CHECK_EQ(counts.live_modules, 0);
    CHECK_EQ(counts.live_compilations, 0);
    CHECK_EQ(counts.live_allocations, 0);
    CHECK_EQ(heap.live_blocks, 0);
    fake_close();
}

// Starts, finishes and drops the program; its status.
static damacy_status build(const damacy__program_spec& spec)
{
    damacy__program program;
    damacy_status status = damacy__program_start(&program, &compiler, &spec, &err);
    if (status == DAMACY_OK) {
        status = damacy__program_finish(&program, &device, &err);
        CHECK_EQ(damacy__program_finish(&program, &device, &err), status);
        damacy__program_deinit(&program, &device);
    }
    return status;
}

// The program of add_spec(), started and finished.
static void make(damacy__program* program)
{
    const damacy__program_spec spec = add_spec();
    CHECK_EQ(damacy__program_start(program, &compiler, &spec, &err), DAMACY_OK);
    CHECK_EQ(damacy__program_finish(program, &device, &err), DAMACY_OK);
}

// Parameters with which its kernel touches nothing.
struct add_nothing {
    int* none = NULL;
    int n = 0;
    void* parameters[2] = {&none, &n};
};

TEST(kernel_is_compiled_loaded_and_launched)
{
    start("");
    damacy__program program;
    int x[3] = {1, 2, 3};
    uint64_t x_dev = 0;
    make(&program);
    CHECK_EQ(damacy__device_alloc(&device, sizeof x, "x", &x_dev, &err), DAMACY_OK);
    CHECK_EQ(damacy__copy_to_device(&device, x_dev, x, sizeof x, NULL, &err), DAMACY_OK);
    int n = 2;
    void* parameters[] = {&x_dev, &n};
    damacy__grid grid = damacy__grid_of(1, 32, 0);
    CHECK_EQ(damacy__kernel_launch(&program.kernels[0], &device, &grid, NULL, parameters, &err),
             DAMACY_OK);
    grid.x = 0; // nothing to do
    CHECK_EQ(damacy__kernel_launch(&program.kernels[0], &device, &grid, NULL, parameters, &err),
             DAMACY_OK);
    CHECK_EQ(damacy__copy_to_host(&device, x, x_dev, sizeof x, NULL, &err), DAMACY_OK);
    CHECK_EQ(x[0], 43);
    CHECK_EQ(x[1], 44);
    CHECK_EQ(x[2], 3);
    uint32_t blocks = 0;
    CHECK_EQ(damacy__kernel_occupancy(&program.kernels[0], &device, 128, 0, &blocks, &err),
             DAMACY_OK);
    CHECK(blocks >= 1);
    damacy__device_free(&device, x_dev, sizeof x);
    damacy__program_deinit(&program, &device);
    finish();
}

TEST(division_of_a_multiprocessor_is_wished_for_where_the_driver_can_be_asked)
{
    start("");
    damacy__program program;
    add_nothing nothing;
    make(&program);
    damacy__grid grid = damacy__grid_of(1, 32, 0);
    CHECK_EQ(grid.division, 0);
    CHECK_EQ(device.shared_per_multiprocessor, 233472);
    CHECK_EQ(damacy__division_for(&device, 8, 23552), 85); // 196,608 bytes of 233,472
    CHECK_EQ(damacy__division_for(&device, 1, 1310), 1);   // rounded up: 1 percent is 2,334.72
    CHECK_EQ(damacy__division_for(&device, 1, 1311), 2);
    CHECK_EQ(damacy__division_for(&device, 64, 99999), 100); // never more than all
    grid.division = damacy__division_for(&device, 8, 23552);
    CHECK_EQ(
        damacy__kernel_launch(&program.kernels[0], &device, &grid, NULL, nothing.parameters, &err),
        DAMACY_OK);
    fake_counts counts;
    fake_count(&counts);
    CHECK_EQ(counts.n_divided, 1);
    CHECK_EQ(counts.n_launches, 1);
    for (const int code : {DAMACY__CUDA_INVALID_VALUE, DAMACY__CUDA_NOT_SUPPORTED}) {
        fake_fail("launch_with", 0, code); // launched all the same
        CHECK_EQ(damacy__kernel_launch(&program.kernels[0], &device, &grid, NULL,
                                       nothing.parameters, &err),
                 DAMACY_OK);
    }
    fake_fail("launch_with", 0, DAMACY__CUDA_OUT_OF_MEMORY);
    CHECK_EQ(
        damacy__kernel_launch(&program.kernels[0], &device, &grid, NULL, nothing.parameters, &err),
        DAMACY_OOM);
    fake_count(&counts);
    CHECK_EQ(counts.n_divided, 1);
    CHECK_EQ(counts.n_launches, 3);
    damacy__driver older = *device.driver;
    const damacy__driver* const newer = device.driver;
    device.driver = &older;
    older.version = 12070;
    CHECK_EQ(damacy__division_for(&device, 8, 23552), 0);
    older.version = 12080;
    CHECK_EQ(damacy__division_for(&device, 8, 23552), 85);
    older.launch_with = NULL;
    CHECK_EQ(damacy__division_for(&device, 8, 23552), 0);
    device.driver = newer;
    damacy__program_deinit(&program, &device);
    finish();
}

TEST(shared_memory_of_a_launch_must_be_allowed_and_fit)
{
    start("");
    damacy__program program;
    add_nothing nothing;
    make(&program);
    damacy__kernel* kernel = &program.kernels[0];
    CHECK_EQ(damacy__kernel_allow_shared(kernel, &device, 300000, &err), DAMACY_UNSUPPORTED);
    CHECK_HAS(err.message, "damacy_test_add needs 300000 bytes of shared memory per block");
    CHECK_EQ(damacy__kernel_allow_shared(kernel, &device, 200000, &err), DAMACY_OK);
    CHECK_EQ(kernel->dynamic_shared, 200000);
    const damacy__grid grid = damacy__grid_of(1, 32, 200000);
    CHECK_EQ(damacy__kernel_launch(kernel, &device, &grid, NULL, nothing.parameters, &err),
             DAMACY_OK);
    damacy__program_deinit(&program, &device);
    finish();
}

TEST(second_start_takes_the_image_from_the_cache)
{
    make_folder();
    for (int run = 0; run < 2; run++) {
        start(folder);
        CHECK_EQ(build(add_spec()), DAMACY_OK);
        CHECK_EQ(compiler.n_compiled, run == 0);
        CHECK_EQ(compiler.n_cached, run == 1);
        finish();
    }
    drop_folder();
}

TEST(anything_that_changes_the_code_changes_the_key)
{
    make_folder();
    start(folder);
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    damacy__program_spec other = add_spec();
    const char* const defines[] = {"ADDEND=3"};
    other.defines = defines;
    CHECK_EQ(build(other), DAMACY_OK);
    CHECK_EQ(compiler.n_compiled, 2);
    compiler.has_line_info = true;
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    CHECK_EQ(compiler.n_compiled, 3);
    compiler.has_line_info = false;
    compiler.architecture = 80;
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    CHECK_EQ(compiler.n_compiled, 4);
    compiler.architecture = 90;
    damacy__source changed[3];
    memcpy(changed, sources, sizeof changed);
    changed[1].text = "#define BASE 41\n";
    compiler.sources = changed;
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    CHECK_EQ(compiler.n_compiled, 5);
    compiler.sources = sources;
    driver.version = 13010;
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    CHECK_EQ(compiler.n_compiled, 6);
    driver.version = 13000;
    driver.nvrtc_minor = 1;
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    CHECK_EQ(compiler.n_compiled, 7);
    driver.nvrtc_minor = 0;
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    CHECK_EQ(compiler.n_compiled, 7);
    CHECK_EQ(compiler.n_cached, 1);
    finish();
    drop_folder();
}

TEST(cached_image_that_the_driver_refuses_is_compiled_again_once)
{
    for (int code : {200, 209, 218, 222}) {
        make_folder();
        start(folder);
        CHECK_EQ(build(add_spec()), DAMACY_OK);
        fake_fail("module_load", 0, code);
        CHECK_EQ(build(add_spec()), DAMACY_OK);
        CHECK_EQ(compiler.n_cached, 1);
        CHECK_EQ(compiler.n_compiled, 2);
        fake_fail("module_load", 0, code);
        fake_fail("module_load", 0, code); // the fresh one, too
        CHECK_EQ(build(add_spec()), DAMACY_CUDA);
        CHECK_HAS(err.message, "does not load kernels/add.cu");
        finish();
        drop_folder();
    }
}

TEST(broken_source_is_told_with_file_and_line)
{
    start("");
    damacy__program_spec spec = {};
    static const char* const entries[] = {"damacy_broken"};
    spec.name = "kernels/broken.cu";
    spec.entries = entries;
    spec.n_entries = 1;
    CHECK_EQ(build(spec), DAMACY_CUDA);
    CHECK_HAS(err.message, "kernels/broken.cu does not compile for sm_90");
    CHECK_HAS(err.message, "kernels/broken.cu(1): error");
    spec.name = "kernels/none.cu";
    CHECK_EQ(build(spec), DAMACY_INVAL);
    CHECK_HAS(err.message, "no kernel source kernels/none.cu");
    spec = add_spec();
    static const char* const missing[] = {"damacy_missing"};
    spec.entries = missing;
    CHECK_EQ(build(spec), DAMACY_CUDA);
    CHECK_HAS(err.message, "has no kernel damacy_missing");
    finish();
}

TEST(place_of_an_error_is_kept)
{
    start("");
    damacy__program program;
    damacy__program_spec spec = add_spec();
    spec.name = "kernels/none.cu";
    CHECK_EQ(damacy__program_start(&program, &compiler, &spec, &err), DAMACY_OK);
    err.sample = 77;
    CHECK_EQ(damacy__program_finish(&program, &device, &err), DAMACY_INVAL);
    CHECK_EQ(err.sample, 77);
    damacy__program_deinit(&program, &device);
    finish();
}

TEST(program_that_was_only_started_or_never_made_can_be_dropped)
{
    start("");
    damacy__program program;
    const damacy__program_spec spec = add_spec();
    CHECK_EQ(damacy__program_start(&program, &compiler, &spec, &err), DAMACY_OK);
    damacy__program_deinit(&program, NULL);
    damacy__program_deinit(&program, NULL);
    finish();
}

TEST(kernels_can_be_read_from_a_folder)
{
    make_folder();
    start("");
    compiler.kernel_dir = folder;
    CHECK_EQ(build(add_spec()), DAMACY_IO);
    CHECK_HAS(err.message, "cannot read kernel source");
    CHECK_EQ(mkdir((std::string(folder) + "/kernels").c_str(), 0700), 0);
    for (const damacy__source& s : sources) {
        FILE* f = fopen((std::string(folder) + "/" + s.name).c_str(), "w");
        CHECK(f != NULL);
        fputs(s.text, f);
        fclose(f);
    }
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    finish();
    drop_folder();
}

TEST(architecture_that_nvrtc_does_not_know_is_served_by_an_older_one)
{
    damacy__target target;
    start("");
    compiler.architecture = 90;
    CHECK_EQ(damacy__compiler_target(&compiler, &target, &err), DAMACY_OK);
    CHECK(target.architecture == 90 && !target.is_ptx);
    compiler.architecture = 122; // machine code of 12.1 runs on 12.2
    CHECK_EQ(damacy__compiler_target(&compiler, &target, &err), DAMACY_OK);
    CHECK(target.architecture == 121 && !target.is_ptx);
    compiler.architecture = 130; // a new major version: the driver translates
    CHECK_EQ(damacy__compiler_target(&compiler, &target, &err), DAMACY_OK);
    CHECK(target.architecture == 121 && target.is_ptx);
    CHECK_EQ(build(add_spec()), DAMACY_OK);
    compiler.architecture = 60;
    CHECK_EQ(damacy__compiler_target(&compiler, &target, &err), DAMACY_UNSUPPORTED);
    finish();
}

TEST(lost_device_fails_finish_at_once)
{
    start("");
    fake_fail("fill_bytes", 0, 700);
    CHECK_EQ(damacy__fill_device(&device, 1, 0, 1, NULL, &err), DAMACY_DEVICE_LOST);
    CHECK_EQ(build(add_spec()), DAMACY_DEVICE_LOST);
    finish();
}

TEST(any_call_may_fail_once_while_programs_are_made)
{
    uint32_t runs = 0;
    for (int code : {1, 2, 209, 214, 218, 700, 719}) {
        for (uint64_t nth = 0;; nth++, runs++) {
            fake_counts counts, end;
            start("");
            fake_count(&counts);
            fake_fail(NULL, nth, code);
            const damacy_status status = build(add_spec());
            if (status != DAMACY_OK)
                CHECK(err.message[0] != 0);
            fake_count(&end);
            CHECK_EQ(end.misuse, 0);
            CHECK_EQ(end.live_compilations, 0);
            const bool happened = counts.n_calls + nth < end.n_calls;
            if (damacy__device_state(&device) == DAMACY__DEVICE_ALIVE && happened)
                CHECK_EQ(build(add_spec()), DAMACY_OK);
            damacy__device_leave(&device);
            damacy__compiler_deinit(&compiler);
            damacy__device_close(&device);
            CHECK_EQ(heap.live_blocks, 0);
            fake_close();
            if (!happened)
                break;
        }
    }
    printf("# %u runs\n", runs);
    CHECK(runs > 100);
}

TEST(any_allocation_may_fail_while_programs_are_made)
{
    for (uint64_t budget = 0; budget < 4000; budget += 7) {
        make_folder();
        start(folder);
        heap.budget = heap.live_bytes + 1 + budget;
        const damacy_status status = build(add_spec());
        CHECK(status == DAMACY_OK || status == DAMACY_OOM);
        heap.budget = 0;
        CHECK_EQ(build(add_spec()), DAMACY_OK);
        finish();
        drop_folder();
        if (status == DAMACY_OK)
            break;
    }
}

// ---- with the real NVRTC, which needs no GPU ----

TEST(real_nvrtc_compiles_caches_and_tells_errors)
{
    damacy__image image = {};
    damacy__compilation_spec spec = {};
    memset(&driver, 0, sizeof driver);
    memset(&heap, 0, sizeof heap);
    memset(&err, 0, sizeof err);
    if (damacy__driver_load_nvrtc(&driver, &err) != DAMACY_OK)
        SKIP("no libnvrtc on this machine");
    make_folder();
    CHECK_EQ(damacy__compiler_init(&compiler, &heap, &driver, 90, sources, 3, folder, &err),
             DAMACY_OK);
    spec.name = "kernels/add.cu";
    spec.defines = add_defines;
    spec.n_defines = 1;
    for (int run = 0; run < 2; run++) {
        const uint64_t begin = damacy__now_ns();
        CHECK_EQ(damacy__compile(&compiler, &spec, &image, &err), DAMACY_OK);
        printf("# %s: %.2f ms, %llu bytes\n", run ? "from the cache" : "compiled",
               (double)(damacy__now_ns() - begin) * 1e-6, (unsigned long long)image.size);
        CHECK(image.size > 100 && memcmp(image.bytes, "\177ELF", 4) == 0);
        CHECK_EQ(image.is_cached, run == 1);
        damacy__image_free(&compiler, &image);
    }
    spec.n_defines = 0; // ADDEND is unknown
    CHECK_EQ(damacy__compile(&compiler, &spec, &image, &err), DAMACY_CUDA);
    CHECK_HAS(err.message, "kernels/add.cu(3): error: identifier \"ADDEND\" is undefined");
    compiler.architecture = 60;
    CHECK_EQ(damacy__compile(&compiler, &spec, &image, &err), DAMACY_UNSUPPORTED);
    damacy__compiler_deinit(&compiler);
    CHECK_EQ(heap.live_blocks, 0);
    drop_folder();
}

TEST(held_compiler_reads_the_cache_but_compiles_only_once_released)
{
    const char* const path = fake_program_path();
    CHECK(path[0] != 0);
    if (path[0] != '/') // else the code that is kept is not known again, and a hold waits
        SKIP("the program was not started by its whole path");
    make_folder();
    for (int is_warm = 0; is_warm < 2; is_warm++) {
        start(folder);
        const damacy__program_spec spec = add_spec();
        damacy__program program;
        bool is_needed = true;
        damacy__compiler_hold(&compiler);
        CHECK_EQ(damacy__program_start(&program, &compiler, &spec, &err), DAMACY_OK);
        if (is_warm) { // decided without a release
            CHECK_EQ(damacy__compiler_decided(&compiler, &is_needed, &err), DAMACY_OK);
            CHECK(!is_needed);
        }
        damacy__compiler_release(&compiler, true);
        CHECK_EQ(damacy__program_finish(&program, &device, &err), DAMACY_OK);
        CHECK_EQ(compiler.n_compiled, !is_warm);
        damacy__program_deinit(&program, &device);
        finish();
    }
    drop_folder();
}

TEST(compiler_released_unwanted_compiles_nothing_and_programs_say_so)
{
    start("");
    const damacy__program_spec spec = add_spec();
    damacy__program program;
    damacy__compiler_hold(&compiler);
    CHECK_EQ(damacy__program_start(&program, &compiler, &spec, &err), DAMACY_OK);
    damacy__compiler_release(&compiler, false);
    CHECK_EQ(damacy__program_finish(&program, &device, &err), DAMACY_CUDA);
    CHECK_HAS(err.message, "not wanted");
    CHECK_EQ(compiler.n_compiled, 0);
    damacy__program_deinit(&program, &device);
    finish();
}

TEST_MAIN
