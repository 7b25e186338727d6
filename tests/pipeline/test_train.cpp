// examples/train.c as it is, on the fake driver: the losses and weights of the CPU, bit for bit,
// and nothing left behind.
#include "tests/pipeline/fake_gpu.h"
#include <dlfcn.h>
#include <sys/socket.h>
#include <time.h>
#include "tools/tissue.h"
#include "tools/zarr_write.h"

// A function of the fake driver by its name in libcuda or libnvrtc.
static void* find_fake(void*, const char* name)
{
    static damacy__driver table;
    fake_join(&table);
#define FIND(field, symbol, parameters) \
    if (strcmp(name, #symbol) == 0)     \
        return (void*)table.field;
    DAMACY__CUDA_FUNCTIONS(FIND)
    DAMACY__NVRTC_FUNCTIONS(FIND)
#undef FIND
    return NULL;
}

static void* open_fake(const char*, int)
{
    return &machine;
}

namespace example {
#define dlopen open_fake
#define dlsym  find_fake
#define main   train_main
#include "examples/train.c"
#undef dlopen
#undef dlsym
#undef main

// What TRAIN_KERNEL says.
static void train(net t, work what, int layer)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n_items(&t, what, layer))
        do_item(&t, what, layer, i);
}
} // namespace example

static const tissue organoid = {{32, 48, 48}, 7};

static void fill(void*, const int64_t begin[3], const int64_t extent[3], void* dst)
{
    tissue_fill(&organoid, TISSUE_NUCLEI, begin, extent, (uint16_t*)dst);
}

static bool write_tissue(const char* path)
{
    zarr_spec spec;
    zarr_result result;
    memset(&spec, 0, sizeof spec);
    spec.path = path;
    for (int axis = 0; axis < 3; axis++) {
        spec.shape[axis] = organoid.shape[axis];
        spec.chunk[axis] = 16;
        spec.shard[axis] = 16;
    }
    spec.dtype = "uint16";
    spec.item_size = 2;
    spec.level = 1;
    spec.fill = fill;
    return zarr_write(&spec, &result);
}

struct outcome {
    double first, last;
    std::vector<example::real> weights;
};

static outcome train_on(const char* device, const char* volume)
{
    outcome out;
    example::app a;
    memset(&a, 0, sizeof a);
    a.volume = volume;
    a.device = device;
    a.n_steps = TEST_ASAN ? 1 : 2;
    a.random = 5;
    a.random_crops = 6;
    CHECK(example::init(&a));
    CHECK_EQ(a.g.context != NULL, strcmp(device, "cpu") != 0);
    while (a.step < a.n_steps)
        CHECK(example::frame(&a));
    out.first = a.first_loss;
    out.last = a.last_loss;
    out.weights.resize(example::N_WEIGHTS);
    CHECK(example::buffer_read(&a, out.weights.data(), a.t.weights, out.weights.size()));
    example::shutdown(&a);
    return out;
}

TEST(a_gpu_learns_what_the_cpu_learns)
{
    char folder[] = "/tmp/damacy-train-XXXXXX";
    fake_counts counts;
    CHECK(mkdtemp(folder) != NULL);
    if (!dlopen("libzstd.so.1", RTLD_NOW))
        SKIP("no libzstd to write a volume with");
    const std::string volume = std::string(folder) + "/tissue.zarr";
    CHECK(write_tissue(volume.c_str()));
    enroll_kernels();
    simt::enroll("train", example::train);
    memset(&machine, 0, sizeof machine);
    n_loads = 0;
    const outcome cpu = train_on("cpu", volume.c_str());
    const outcome gpu = train_on("0", volume.c_str());
    fake_count(&counts);
    printf("# losses %.9g and %.9g, %.9g and %.9g\n", cpu.first, gpu.first, cpu.last, gpu.last);
    CHECK(cpu.first == gpu.first && cpu.last == gpu.last);
    CHECK(memcmp(cpu.weights.data(), gpu.weights.data(),
                 cpu.weights.size() * sizeof(example::real)) == 0);
    CHECK_STR(counts.first_misuse, "");
    CHECK_EQ(counts.live_allocations, 0);
    CHECK_EQ(counts.live_streams, 0);
    CHECK_EQ(counts.live_modules, 0);
    CHECK_EQ(counts.live_compilations, 0);
    CHECK_EQ(counts.live_primary, 0);
    fake_close();
    (void)!system(("rm -rf " + std::string(folder)).c_str());
}

TEST_MAIN
