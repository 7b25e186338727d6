/* The arithmetic of train.c: compiled here for the CPU, and kept as text for NVRTC.
 *
 * Three convolutions of 3 x 3 x 3, forward and backward, and Adam. Work is cut into items that no
 * two share, each with its sums in a fixed order: any number of threads on any device gives the
 * same bits. */
#pragma once
#include <math.h>
#include <stdbool.h>

#ifndef TRAIN_REAL
#define TRAIN_REAL float /* double in the test of the gradients */
#endif
/* Around it, on the GPU alone: a thread per item. */
#define TRAIN_KERNEL                                                      \
    " extern \"C\" __global__ void train(net t, work what, int layer)"    \
    " {"                                                                  \
    "     const int i = blockIdx.x * blockDim.x + threadIdx.x;"           \
    "     if (i < n_items(&t, what, layer)) do_item(&t, what, layer, i);" \
    " }"
#define TRAIN_BOTH(...) \
    __VA_ARGS__         \
    __extension__ static const char train_text[] = #__VA_ARGS__ TRAIN_KERNEL;

typedef TRAIN_REAL real;

// clang-format off
TRAIN_BOTH(
enum {
    STRIP = 8,    /* voxels along x that one item makes */
    CHANNELS = 8, /* between the layers: 1 -> 8 -> 8 -> 1 */
    LAYERS = 3,
    TAPS = 27,
    WIDE = CHANNELS * TAPS + 1, /* weights and bias of one output channel */
    N_WEIGHTS = CHANNELS * (TAPS + 1) + CHANNELS * WIDE + WIDE
};

typedef struct net {
    const float* batch;         /* [n, depth, height, width] */
    real* x[LAYERS + 1];        /* activations, [n, channels, depth + 2, height + 2, width + 2]: */
    real* gradient[LAYERS + 1]; /* and the loss's gradient by them; their rims stay 0 */
    real* weights;              /* per layer, output channel: [input channel, tap], bias */
    real* parts;                /* gradients by weight, [N_WEIGHTS, n * depth] */
    real* slope;                /* their sums */
    real* mean;                 /* Adam's averages: of the gradient */
    real* square;               /* and of its square */
    real* losses;               /* per row of voxels: of the network, of the neighbours' mean */
    int n;
    int depth;
    int height;
    int width;
    int hidden[3];  /* voxels whose coordinates are these modulo 3 are hidden */
    int is_first;   /* losses are set, not added to */
    real per_voxel; /* 1 / number of hidden voxels */
    real rate;
    real mean_rate;
    real square_rate; /* of Adam, start-up corrected */
} net;

typedef enum work {
    WORK_HIDE,
    WORK_FORWARD,
    WORK_LOSS,
    WORK_BACKWARD,
    WORK_WEIGHTS,
    WORK_ADAM
} work;

static inline int channels_at(int layer)
{
    return layer == 0 || layer == LAYERS ? 1 : CHANNELS;
}

static inline int weights_of(int layer)
{
    return channels_at(layer + 1) * (channels_at(layer) * TAPS + 1);
}

static inline int weights_before(int layer)
{
    int sum = 0;
    for (int i = 0; i < layer; i++) {
        sum += weights_of(i);
    }
    return sum;
}

/* Where a voxel is; image counts samples times channels. -1 and the extent are the rim. */
static inline int at(const net* t, int image, int z, int y, int x)
{
    return ((image * (t->depth + 2) + z + 1) * (t->height + 2) + y + 1) * (t->width + 2) + x + 1;
}

static inline int in_batch(const net* t, int image, int z, int y, int x)
{
    return ((image * t->depth + z) * t->height + y) * t->width + x;
}

typedef struct place {
    int image;
    int z;
    int y;
    int x;
} place;

static inline place place_of(const net* t, int item, int x_step)
{
    place p;
    const int per_row = t->width / x_step;
    p.x = item % per_row * x_step;
    p.y = item / per_row % t->height;
    p.z = item / per_row / t->height % t->depth;
    p.image = item / per_row / t->height / t->depth;
    return p;
}

static inline bool is_hidden(const net* t, int z, int y, int x)
{
    return z % 3 == t->hidden[0] && y % 3 == t->hidden[1] && x % 3 == t->hidden[2];
}

/* Slightly leaky, so that no channel dies. */
static inline real bend(real v)
{
    return v > 0 ? v : v * (real)0.125;
}
static inline real bend_slope(real bent)
{
    return bent > 0 ? (real)1 : (real)0.125;
}

static inline real mean_of_neighbours(const net* t, int image, int z, int y, int x)
{
    const float* b = t->batch;
    const int below = z > 0 ? z - 1 : z + 1;
    const int above = z + 1 < t->depth ? z + 1 : z - 1;
    const int back = y > 0 ? y - 1 : y + 1;
    const int front = y + 1 < t->height ? y + 1 : y - 1;
    const int left = x > 0 ? x - 1 : x + 1;
    const int right = x + 1 < t->width ? x + 1 : x - 1;
    return ((real)b[in_batch(t, image, below, y, x)] + (real)b[in_batch(t, image, above, y, x)] +
            (real)b[in_batch(t, image, z, back, x)] + (real)b[in_batch(t, image, z, front, x)] +
            (real)b[in_batch(t, image, z, y, left)] + (real)b[in_batch(t, image, z, y, right)]) /
           (real)6;
}

/* A strip of what the network sees. */
static inline void hide(const net* t, int item)
{
    const place p = place_of(t, item, STRIP);
    real* dst = t->x[0] + at(t, p.image, p.z, p.y, p.x);
    for (int s = 0; s < STRIP; s++) {
        dst[s] = is_hidden(t, p.z, p.y, p.x + s)
                     ? mean_of_neighbours(t, p.image, p.z, p.y, p.x + s)
                     : (real)t->batch[in_batch(t, p.image, p.z, p.y, p.x + s)];
    }
}

/* A strip of one output channel of a layer. The last one adds to what is seen. */
static inline void forward(const net* t, int layer, int item)
{
    const int n_in = channels_at(layer);
    const int n_out = channels_at(layer + 1);
    const place p = place_of(t, item, STRIP);
    const int sample = p.image / n_out;
    const real* w = t->weights + weights_before(layer) + p.image % n_out * (n_in * TAPS + 1);
    real* dst = t->x[layer + 1] + at(t, p.image, p.z, p.y, p.x);
    const real* seen = t->x[0] + at(t, sample, p.z, p.y, p.x);
    real sum[STRIP];
    for (int s = 0; s < STRIP; s++) {
        sum[s] = w[n_in * TAPS];
    }
    for (int c = 0; c < n_in; c++) {
        for (int row = 0; row < 9; row++, w += 3) {
            const real* src = t->x[layer] + at(t, sample * n_in + c, p.z + row / 3 - 1,
                                               p.y + row % 3 - 1, p.x - 1);
            for (int s = 0; s < STRIP; s++) {
                sum[s] += w[0] * src[s] + w[1] * src[s + 1] + w[2] * src[s + 2];
            }
        }
    }
    for (int s = 0; s < STRIP; s++) {
        dst[s] = layer + 1 < LAYERS ? bend(sum[s]) : sum[s] + seen[s];
    }
}

/* A row of the loss, the mean square error at hidden voxels, and its gradient. */
static inline void loss(const net* t, int item)
{
    const place p = place_of(t, item, t->width);
    const int begin = at(t, p.image, p.z, p.y, 0);
    real sum = 0;
    real plain = 0;
    for (int x = 0; x < t->width; x++) {
        const real want = (real)t->batch[in_batch(t, p.image, p.z, p.y, x)];
        const real error = t->x[LAYERS][begin + x] - want;
        const real other = t->x[0][begin + x] - want;
        const bool counts = is_hidden(t, p.z, p.y, x);
        sum += counts ? error * error : (real)0;
        plain += counts ? other * other : (real)0;
        t->gradient[LAYERS][begin + x] = counts ? (real)2 * error * t->per_voxel : (real)0;
    }
    t->losses[2 * item] = (t->is_first ? (real)0 : t->losses[2 * item]) + sum * t->per_voxel;
    t->losses[2 * item + 1] =
        (t->is_first ? (real)0 : t->losses[2 * item + 1]) + plain * t->per_voxel;
}

/* A strip of the gradient by one input channel of a layer. */
static inline void backward(const net* t, int layer, int item)
{
    const int n_in = channels_at(layer);
    const int n_out = channels_at(layer + 1);
    const place p = place_of(t, item, STRIP);
    const int to = at(t, p.image, p.z, p.y, p.x);
    const real* w = t->weights + weights_before(layer) + p.image % n_in * TAPS;
    real sum[STRIP];
    for (int s = 0; s < STRIP; s++) {
        sum[s] = 0;
    }
    for (int c = 0; c < n_out; c++, w += n_in * TAPS + 1) {
        for (int row = 0; row < 9; row++) {
            const int from =
                at(t, p.image / n_in * n_out + c, p.z + 1 - row / 3, p.y + 1 - row % 3, p.x - 1);
            const real* src = t->gradient[layer + 1] + from;
            const real* f = w + 3 * row;
            for (int s = 0; s < STRIP; s++) {
                sum[s] += f[0] * src[s + 2] + f[1] * src[s + 1] + f[2] * src[s];
            }
        }
    }
    for (int s = 0; s < STRIP; s++) {
        t->gradient[layer][to + s] = sum[s] * bend_slope(t->x[layer][to + s]);
    }
}

/* What one plane of one sample adds to the gradient by one weight of a layer. */
static inline void weigh(const net* t, int layer, int item)
{
    const int n_in = channels_at(layer);
    const int weight = item % weights_of(layer);
    const int slab = item / weights_of(layer);
    const int tap = weight % (n_in * TAPS + 1); /* of all input channels; the last is the bias */
    const int sample = slab / t->depth;
    const int z = slab % t->depth;
    const int image = sample * channels_at(layer + 1) + weight / (n_in * TAPS + 1);
    real lane[STRIP];
    real sum = 0;
    for (int s = 0; s < STRIP; s++) {
        lane[s] = 0;
    }
    for (int y = 0; y < t->height; y++) {
        const real* g = t->gradient[layer + 1] + at(t, image, z, y, 0);
        const real* x = t->x[layer] + at(t, sample * n_in + tap / TAPS % n_in, z + tap / 9 % 3 - 1,
                                         y + tap / 3 % 3 - 1, tap % 3 - 1);
        for (int i = 0; i < t->width; i += STRIP) {
            for (int s = 0; s < STRIP; s++) {
                lane[s] += tap < n_in * TAPS ? g[i + s] * x[i + s] : g[i + s];
            }
        }
    }
    for (int s = 0; s < STRIP; s++) {
        sum += lane[s];
    }
    t->parts[(weights_before(layer) + weight) * t->n * t->depth + slab] = sum;
}

/* One weight, moved against its gradient. */
static inline void adam(const net* t, int item)
{
    const int n = t->n * t->depth;
    real sum = 0;
    for (int i = 0; i < n; i++) {
        sum += t->parts[item * n + i];
    }
    t->slope[item] = sum;
    t->mean[item] = (real)0.9 * t->mean[item] + (real)0.1 * sum;
    t->square[item] = (real)0.99 * t->square[item] + (real)0.01 * sum * sum;
    t->weights[item] -= t->rate * t->mean[item] * t->mean_rate /
                        ((real)sqrt((double)(t->square[item] * t->square_rate)) + (real)1e-8);
}

static inline int n_items(const net* t, work what, int layer)
{
    const int rows = t->n * t->depth * t->height;
    switch (what) {
    case WORK_FORWARD:
        return rows * (t->width / STRIP) * channels_at(layer + 1);
    case WORK_BACKWARD:
        return rows * (t->width / STRIP) * channels_at(layer);
    case WORK_WEIGHTS:
        return t->n * t->depth * weights_of(layer);
    case WORK_LOSS:
        return rows;
    case WORK_ADAM:
        return N_WEIGHTS;
    default:
        return rows * (t->width / STRIP);
    }
}

static inline void do_item(const net* t, work what, int layer, int item)
{
    switch (what) {
    case WORK_HIDE:
        hide(t, item);
        break;
    case WORK_FORWARD:
        forward(t, layer, item);
        break;
    case WORK_LOSS:
        loss(t, item);
        break;
    case WORK_BACKWARD:
        backward(t, layer, item);
        break;
    case WORK_WEIGHTS:
        weigh(t, layer, item);
        break;
    case WORK_ADAM:
        adam(t, item);
        break;
    }
}
)
// clang-format on
