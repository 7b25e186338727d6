/* The arithmetic of examples/train.c, in double: its gradients are those of the loss. The same text
 * compiles for GPUs. */
#define TRAIN_REAL double
#include "gpu/driver.h"
#include "examples/train_net.h"
#include "tests/test.h"
#include <stdlib.h>
#include <string.h>

enum { N = 2, DEPTH = 3, HEIGHT = 4, WIDTH = 8 };

static float batch[N * DEPTH * HEIGHT * WIDTH];

static real* numbers(size_t n)
{
    real* const p = (real*)calloc(n, sizeof(real));

    CHECK(p != NULL);
    return p;
}

static double unit(uint64_t* seed)
{
    return ldexp((double)(test_random(seed) >> 11), -52) - 1;
}

/* A network of random weights before a random batch. */
static net make(uint64_t* seed)
{
    const size_t padded = (size_t)N * (DEPTH + 2) * (HEIGHT + 2) * (WIDTH + 2);
    net t;

    memset(&t, 0, sizeof t);
    t.n = N;
    t.depth = DEPTH;
    t.height = HEIGHT;
    t.width = WIDTH;
    for (int layer = 0; layer <= LAYERS; layer++) {
        t.x[layer] = numbers(padded * (size_t)channels_at(layer));
        t.gradient[layer] = numbers(padded * (size_t)channels_at(layer));
    }
    t.weights = numbers(N_WEIGHTS);
    t.parts = numbers((size_t)N_WEIGHTS * N * DEPTH);
    t.slope = numbers(N_WEIGHTS);
    t.mean = numbers(N_WEIGHTS);
    t.square = numbers(N_WEIGHTS);
    t.losses = numbers((size_t)2 * N * DEPTH * HEIGHT);
    t.is_first = 1;
    t.per_voxel = 0.25;
    t.mean_rate = 1;
    t.square_rate = 1;
    t.batch = batch;
    for (size_t i = 0; i < sizeof batch / sizeof *batch; i++) {
        batch[i] = (float)unit(seed);
    }
    for (int i = 0; i < N_WEIGHTS; i++) {
        t.weights[i] = 0.3 * unit(seed);
    }
    return t;
}

static void unmake(net* t)
{
    for (int layer = 0; layer <= LAYERS; layer++) {
        free(t->x[layer]);
        free(t->gradient[layer]);
    }
    free(t->weights);
    free(t->parts);
    free(t->slope);
    free(t->mean);
    free(t->square);
    free(t->losses);
}

static void run(const net* t, work what, int layer)
{
    for (int i = 0; i < n_items(t, what, layer); i++) {
        do_item(t, what, layer, i);
    }
}

static double loss_of(const net* t)
{
    double sum = 0;

    run(t, WORK_HIDE, 0);
    for (int layer = 0; layer < LAYERS; layer++) {
        run(t, WORK_FORWARD, layer);
    }
    run(t, WORK_LOSS, 0);
    for (int i = 0; i < t->n * t->depth * t->height; i++) {
        sum += t->losses[2 * i];
    }
    return sum;
}

static void learn(const net* t)
{
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        run(t, WORK_WEIGHTS, layer);
        if (layer > 0) {
            run(t, WORK_BACKWARD, layer);
        }
    }
    run(t, WORK_ADAM, 0);
}

TEST(gradients_are_those_of_finite_differences)
{
    const double step = 1e-6;
    uint64_t seed = test_seed();
    net t = make(&seed);
    double largest = 0;

    t.hidden[1] = 1;
    t.hidden[2] = 2;
    (void)loss_of(&t);
    learn(&t); /* the rate is 0: the weights stay */
    for (int i = (int)(seed % 8); i < N_WEIGHTS; i += 1 + (int)(test_random(&seed) % 12)) {
        const double weight = t.weights[i];
        double above;
        double below;
        double slope;

        t.weights[i] = weight + step;
        above = loss_of(&t);
        t.weights[i] = weight - step;
        below = loss_of(&t);
        t.weights[i] = weight;
        slope = (above - below) / (2 * step);
        if (fabs(slope - t.slope[i]) > 1e-6 + 1e-5 * fabs(slope)) {
            printf("# weight %d: %g, finite differences say %g\n", i, t.slope[i], slope);
        }
        CHECK(fabs(slope - t.slope[i]) <= 1e-6 + 1e-5 * fabs(slope));
        largest = fabs(slope) > largest ? fabs(slope) : largest;
    }
    CHECK(largest > 0.01);
    unmake(&t);
}

TEST(hidden_voxels_are_not_seen)
{
    uint64_t seed = test_seed();
    net t = make(&seed);
    const int hidden = in_batch(&t, 1, 0, 3, 3);
    const int output = at(&t, 1, 0, 3, 3);
    double before;

    (void)loss_of(&t);
    before = t.x[LAYERS][output];
    batch[hidden] += 10;
    (void)loss_of(&t);
    CHECK(t.x[LAYERS][output] == before);
    batch[hidden + 1] += 10;
    (void)loss_of(&t);
    CHECK(t.x[LAYERS][output] != before);
    unmake(&t);
}

TEST(steps_against_the_gradient_lower_the_loss)
{
    uint64_t seed = test_seed();
    net t = make(&seed);
    const double first = loss_of(&t);

    t.rate = 0.003;
    for (int i = 0; i < 100; i++) {
        (void)loss_of(&t);
        learn(&t);
    }
    CHECK(loss_of(&t) < 0.1 * first);
    unmake(&t);
}

TEST(the_text_compiles_for_gpus)
{
    static const char* const options[2][4] = {
        {"-arch=sm_75", "-default-device", "-fmad=false", "-Dreal=float"},
        {"-arch=sm_90", "-default-device", "-fmad=false", "-Dreal=float"}};
    damacy__driver driver;
    damacy_error err;

    memset(&driver, 0, sizeof driver);
    if (damacy__driver_load_nvrtc(&driver, &err) != DAMACY_OK) {
        SKIP("no libnvrtc on this machine");
    }
    for (int i = 0; i < 2; i++) {
        damacy__compilation program = NULL;
        char log[4096] = "";
        size_t size = 0;
        int code;

        CHECK_EQ(driver.nvrtc_create(&program, train_text, "train.cu", 0, NULL, NULL), 0);
        code = driver.nvrtc_compile(program, 4, options[i]);
        if (driver.nvrtc_log_size(program, &size) == 0 && size <= sizeof log) {
            (void)driver.nvrtc_log(program, log);
        }
        if (code != 0) {
            printf("# %s\n", log);
        }
        CHECK_EQ(code, 0);
        CHECK_STR(log, "");
        CHECK_EQ(driver.nvrtc_cubin_size(program, &size), 0);
        CHECK(size > 0);
        CHECK_EQ(driver.nvrtc_destroy(&program), 0);
    }
}

TEST_MAIN
