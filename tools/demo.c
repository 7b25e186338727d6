/* Writes a synthetic organoid as OME-Zarr, streams crops of it as batches, checks them against the
 * formula the organoid was made from, and saves one batch as a picture.
 *
 *     cc -std=c11 -O2 -D_GNU_SOURCE -I. -o demo tools/demo.c && ./demo FOLDER        (or ./run
 * demo)
 *
 * Makes FOLDER/organoid.zarr and FOLDER/organoid.png. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tools/host_copy.h"
#include "tools/picture.h"
#include "tools/tissue.h"
#include "tools/zarr_write.h"
#include <time.h>

enum {
    POSITIONS = 24, /* a batch: these, in both channels */
    BATCH = 2 * POSITIONS,
    BATCHES = 42,
    COLUMNS = 6, /* of the picture */
    CHECKED_BATCHES = 7,
    CHECKED = 28 /* crops, the same number from each of those batches */
};
static const int64_t crop[3] = {32, 128, 128};
static const tissue organoid = {{256, 512, 512}, 7};
static const char* const channel_names[2] = {"nuclei", "membranes"};

typedef struct demo {
    char store[900];
    char uris[2][1000];
    uint16_t* full; /* the level being written, for the next one to be made from */
    tissue_channel channel;
    host_copy copy;
    float* space;        /* one batch */
    float* kept;         /* CHECKED crops */
    int checks[CHECKED]; /* the samples they are */
    int n_checks;
    uint64_t random; /* state of the sampler */
    damacy_sample samples[BATCHES * BATCH];
} demo;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the store --------------------------------------------------------------------------------
 */

/* Copies what lies inside the volume into d->full. */
static void fill_full(void* user, const int64_t begin[3], const int64_t extent[3], void* dst)
{
    demo* const d = (demo*)user;
    const int64_t* const shape = organoid.shape;

    tissue_fill(&organoid, d->channel, begin, extent, (uint16_t*)dst);
    for (int64_t z = 0; z < extent[0]; z++) {
        for (int64_t y = 0; y < extent[1]; y++) {
            memcpy(d->full + ((begin[0] + z) * shape[1] + begin[1] + y) * shape[2] + begin[2],
                   (const uint16_t*)dst + (z * extent[1] + y) * extent[2],
                   (size_t)extent[2] * sizeof(uint16_t));
        }
    }
}

/* The mean of eight voxels of the full level, rounded. */
static uint16_t mean_of_eight(const uint16_t* p, int64_t row, int64_t plane)
{
    uint32_t sum = 4;

    for (int i = 0; i < 8; i++) {
        sum += p[(i >> 2) * plane + (i >> 1 & 1) * row + (i & 1)];
    }
    return (uint16_t)(sum >> 3);
}

static void fill_half(void* user, const int64_t begin[3], const int64_t extent[3], void* dst)
{
    demo* const d = (demo*)user;
    const int64_t row = organoid.shape[2];
    const int64_t plane = organoid.shape[1] * row;
    uint16_t* to = (uint16_t*)dst;

    for (int64_t z = begin[0]; z < begin[0] + extent[0]; z++) {
        for (int64_t y = begin[1]; y < begin[1] + extent[1]; y++) {
            for (int64_t x = begin[2]; x < begin[2] + extent[2]; x++) {
                *to++ = mean_of_eight(d->full + 2 * z * plane + 2 * y * row + 2 * x, row, plane);
            }
        }
    }
}

static bool write_text(const char* folder, const char* text)
{
    char path[1100];
    FILE* file;
    bool is_fine;

    (void)snprintf(path, sizeof path, "%s/zarr.json", folder);
    zarr_make_folders(path);
    file = fopen(path, "w");
    if (!file) {
        return false;
    }
    is_fine = fputs(text, file) >= 0;
    return fclose(file) == 0 && is_fine;
}

/* One channel: an NGFF multiscale group of two levels. */
static bool write_channel(demo* d, zarr_result* total)
{
    char text[1024];

    (void)snprintf(
        text, sizeof text,
        "{\"zarr_format\":3,\"node_type\":\"group\",\"attributes\":{\"ome\":{\"version\":\"0.5\","
        "\"multiscales\":[{\"name\":\"%s\",\"axes\":[{\"name\":\"z\",\"type\":\"space\",\"unit\":"
        "\"micrometer\"},{\"name\":\"y\",\"type\":\"space\",\"unit\":\"micrometer\"},{\"name\":"
        "\"x\","
        "\"type\":\"space\",\"unit\":\"micrometer\"}],\"datasets\":["
        "{\"path\":\"0\",\"coordinateTransformations\":[{\"type\":\"scale\",\"scale\":[0.4,0.4,0.4]"
        "}]},"
        "{\"path\":\"1\",\"coordinateTransformations\":[{\"type\":\"scale\",\"scale\":[0.8,0.8,0.8]"
        "},"
        "{\"type\":\"translation\",\"translation\":[0.2,0.2,0.2]}]}]}]}}}\n",
        channel_names[d->channel]);
    if (!write_text(d->uris[d->channel], text)) {
        (void)snprintf(total->message, sizeof total->message, "%s: cannot write zarr.json",
                       d->uris[d->channel]);
        return false;
    }
    for (int level = 0; level < 2; level++) {
        char path[1010];
        zarr_spec spec = {0};
        zarr_result result;

        (void)snprintf(path, sizeof path, "%s/%d", d->uris[d->channel], level);
        spec.path = path;
        for (int axis = 0; axis < 3; axis++) {
            spec.shape[axis] = organoid.shape[axis] >> level;
            spec.chunk[axis] = axis ? 64 : 32;
            spec.shard[axis] = axis ? 256 : 128;
        }
        spec.dtype = "uint16";
        spec.item_size = 2;
        spec.is_blosc = d->channel == TISSUE_MEMBRANES;
        spec.level = spec.is_blosc ? 2 : 3;
        spec.blosc_block = 64 * 1024;
        spec.fill = level ? fill_half : fill_full;
        spec.user = d;
        if (!zarr_write(&spec, &result)) {
            *total = result;
            return false;
        }
        total->size_voxels += result.size_voxels;
        total->size_stored += result.size_stored;
    }
    return true;
}

static bool write_store(demo* d)
{
    const double begin = now();
    zarr_result total;

    memset(&total, 0, sizeof total);
    printf("Writing %s: nuclei (zstd) and membranes (blosc-zstd), uint16, %lld x %lld x %lld, two "
           "levels\n",
           d->store, (long long)organoid.shape[0], (long long)organoid.shape[1],
           (long long)organoid.shape[2]);
    d->full = (uint16_t*)malloc(
        (size_t)(organoid.shape[0] * organoid.shape[1] * organoid.shape[2]) * sizeof(uint16_t));
    if (!d->full ||
        !write_text(d->store, "{\"zarr_format\":3,\"node_type\":\"group\",\"attributes\":{}}\n")) {
        printf("demo: cannot write into %s\n", d->store);
        return false;
    }
    for (int channel = 0; channel < 2; channel++) {
        d->channel = (tissue_channel)channel;
        if (!write_channel(d, &total)) {
            printf("demo: %s\n", total.message);
            return false;
        }
    }
    free(d->full);
    d->full = NULL;
    printf("  %.0f MB of voxels in %.0f MB, %.1f s (the noise is what costs)\n\n",
           (double)total.size_voxels / 1e6, (double)total.size_stored / 1e6, now() - begin);
    return true;
}

/* ---- sampling ---------------------------------------------------------------------------------
 */

static uint64_t next_random(demo* d)
{
    return tissue_hash(d->random++);
}

/* Positions around random cells, as one samples where there is something to learn; both channels.
 */
static void choose_samples(demo* d)
{
    for (int i = 0; i < BATCHES * BATCH; i += 2) {
        int64_t begin[3];
        tissue_cell cell;

        do {
            int64_t place[3];
            for (int axis = 0; axis < 3; axis++) {
                place[axis] =
                    (int64_t)(next_random(d) % (uint64_t)(organoid.shape[axis] / TISSUE_PITCH + 1));
            }
            cell = tissue_cell_at(&organoid, place[0], place[1], place[2]);
        } while (cell.brightness <= 0.0f);
        for (int axis = 0; axis < 3; axis++) {
            const int64_t most = organoid.shape[axis] - crop[axis];
            begin[axis] =
                (int64_t)cell.at[axis] - crop[axis] / 2 + (int64_t)(next_random(d) % 24) - 12;
            begin[axis] = begin[axis] < 0 ? 0 : begin[axis] > most ? most : begin[axis];
        }
        for (int channel = 0; channel < 2; channel++) {
            damacy_sample* const sample = &d->samples[i + channel];

            sample->uri = d->uris[channel];
            sample->rank = 3;
            for (int axis = 0; axis < 3; axis++) {
                sample->box[axis].begin = begin[axis];
                sample->box[axis].end = begin[axis] + crop[axis];
            }
        }
    }
}

/* ---- checking and painting --------------------------------------------------------------------
 */

/* Compares a crop with the formula; returns how many voxels differ. */
static uint64_t count_differences(const damacy_sample* sample, tissue_channel channel,
                                  const float* got)
{
    const size_t n = (size_t)(crop[0] * crop[1] * crop[2]);
    const int64_t begin[3] = {sample->box[0].begin, sample->box[1].begin, sample->box[2].begin};
    uint16_t* const want = (uint16_t*)malloc(n * sizeof(uint16_t));
    uint64_t differ = 0;

    if (!want) {
        return n;
    }
    tissue_fill(&organoid, channel, begin, crop, want);
    for (size_t i = 0; i < n; i++) {
        differ += got[i] != (float)want[i];
    }
    free(want);
    return differ;
}

/* Draws the crops of one batch as tiles: the brightest nuclei of the crop's depth over one thin
 * layer of membranes. */
static bool paint(const float* voxels, const char* path)
{
    const int margin = 6;
    const int rows = POSITIONS / COLUMNS;
    const size_t plane = (size_t)(crop[1] * crop[2]);
    const size_t n = (size_t)crop[0] * plane;
    picture p;
    bool is_fine;

    if (!picture_init(&p, COLUMNS * ((int)crop[2] + margin) + margin,
                      rows * ((int)crop[1] + margin) + margin, 16, 17, 24)) {
        return false;
    }
    for (int tile = 0; tile < POSITIONS; tile++) {
        const float* const nuclei = voxels + (size_t)(2 * tile) * n;
        const float* const membranes = nuclei + n;
        const int left = margin + tile % COLUMNS * ((int)crop[2] + margin);
        const int top = margin + tile / COLUMNS * ((int)crop[1] + margin);

        for (size_t i = 0; i < plane; i++) {
            const int x = left + (int)(i % (size_t)crop[2]);
            const int y = top + (int)(i / (size_t)crop[2]);
            float brightest = 0.0f;
            float layer = 0.0f;

            for (int64_t z = crop[0] / 2 - 7; z < crop[0] / 2 + 7; z++) {
                const float v = nuclei[(size_t)z * plane + i];
                brightest = v > brightest ? v : brightest;
                layer += z >= crop[0] / 2 - 2 && z < crop[0] / 2 + 2
                             ? membranes[(size_t)z * plane + i] * 0.25f
                             : 0.0f;
            }
            memset(p.rgb + 3 * ((size_t)y * (size_t)p.width + (size_t)x), 0, 3);
            picture_add(&p, x, y, (brightest - 150.0f) / 460.0f, 1.0f, 0.52f, 0.1f);
            picture_add(&p, x, y, (layer - 118.0f) / 270.0f, 0.05f, 0.55f, 0.85f);
        }
    }
    is_fine = picture_write_png(&p, path);
    free(p.rgb);
    return is_fine;
}

/* ---- streaming --------------------------------------------------------------------------------
 */

static void progress(int done, double seconds)
{
    const double size = (double)done * BATCH * (double)(crop[0] * crop[1] * crop[2]) * 2.0;
    char bar[41];

    if (!isatty(STDERR_FILENO)) {
        return;
    }
    for (int i = 0; i < 40; i++) {
        bar[i] = i * BATCHES < done * 40 ? '=' : ' ';
    }
    bar[40] = 0;
    (void)fprintf(stderr, "\r  [%s] %d of %d batches, %.2f GB/s of voxels%s", bar, done, BATCHES,
                  size / 1e9 / seconds, done == BATCHES ? "\n" : "");
}

static void print_stage(const char* name, const damacy_metric* m, double seconds)
{
    if (m->count == 0) {
        return;
    }
    printf("  %-10s %9llu %11.1f %11.1f %11.2f %13.2f\n", name, (unsigned long long)m->count,
           (double)m->bytes_in / 1e6, (double)m->bytes_out / 1e6, (double)m->total_ns / 1e9,
           (double)m->bytes_out / 1e9 / seconds);
}

static void print_stats(const damacy* pipeline, double seconds)
{
    const double out = (double)BATCHES * BATCH * (double)(crop[0] * crop[1] * crop[2]);
    damacy_stats s;

    damacy_stats_get(pipeline, &s);
    printf("  stage          count       MB in      MB out    thread s   GB/s of wall\n");
    print_stage("metadata", &s.metadata, seconds);
    print_stage("plan", &s.plan, seconds);
    print_stage("read", &s.read, seconds);
    print_stage("transfer", &s.transfer, seconds);
    print_stage("decode", &s.decode, seconds);
    print_stage("assemble", &s.assemble, seconds);
    printf("  %.2f s: %.2f GB/s of uint16 voxels, %.2f GB/s of f32 batches, %.0f crops/s\n",
           seconds, out * 2 / 1e9 / seconds, out * 4 / 1e9 / seconds, BATCHES * BATCH / seconds);
    printf("  bytes read per byte wanted %.2f; bytes decoded per byte delivered %.2f; %llu chunk "
           "uses, %llu decodes\n\n",
           s.read_amplification, s.decode_amplification, (unsigned long long)s.chunks_touched,
           (unsigned long long)s.chunks_decoded);
}

/* Keeps some crops of a batch for checking once streaming is over; all of the last batch, to be
 * painted. */
static bool keep(demo* d, int number, const damacy_batch_info_t* info)
{
    const size_t n = (size_t)(crop[0] * crop[1] * crop[2]);
    const float* const voxels = (const float*)host_copy_get(&d->copy, info, d->space);

    for (int k = 0; voxels && k < CHECKED / CHECKED_BATCHES; k++) {
        const int i = (int)(next_random(d) % BATCH);

        d->checks[d->n_checks] = number * BATCH + i;
        memcpy(d->kept + (size_t)d->n_checks++ * n, voxels + (size_t)i * n, n * sizeof(float));
    }
    if (voxels && voxels != d->space) {
        memcpy(d->space, voxels, n * BATCH * sizeof(float));
    }
    return voxels != NULL;
}

/* Pushes while there is room, pops what is ready. */
static bool stream(demo* d, damacy* pipeline)
{
    const double begin = now();
    size_t pushed = 0;
    damacy_error err;

    for (int done = 0; done < BATCHES;) {
        damacy_batch batch;
        damacy_batch_info_t info;
        size_t taken = 0;
        damacy_status status = DAMACY_OK;

        if (pushed < BATCHES * BATCH) {
            status =
                damacy_push(pipeline, d->samples + pushed, BATCHES * BATCH - pushed, &taken, &err);
            pushed += taken;
            if (pushed == BATCHES * BATCH) {
                status = damacy_finish(pipeline);
            }
        }
        if (status == DAMACY_OK || status == DAMACY_AGAIN) {
            status = damacy_pop(pipeline, &batch, &err);
        }
        if (status != DAMACY_OK) {
            printf("demo: %s: %s: %s\n", damacy_status_str(status), err.uri, err.message);
            return false;
        }
        (void)damacy_batch_info(batch, &info);
        if (!host_copy_wait(&d->copy, &info) ||
            (done % (BATCHES / CHECKED_BATCHES) == BATCHES / CHECKED_BATCHES - 1 &&
             !keep(d, done, &info))) {
            printf("demo: cannot copy batch %llu to the host\n", (unsigned long long)info.id);
            return false;
        }
        (void)damacy_release(batch);
        progress(++done, now() - begin);
    }
    print_stats(pipeline, now() - begin);
    return true;
}

/* Compares the crops that were kept, and a box of the half-size level, with the formula. */
static bool check(demo* d)
{
    enum { SIDE = 40 };
    const size_t n = (size_t)(crop[0] * crop[1] * crop[2]);
    const int64_t begin[3] = {70, 170, 200};
    const int64_t extent[3] = {2 * SIDE, 2 * SIDE, 2 * SIDE};
    damacy_config config = {0};
    damacy_sample sample = {0};
    damacy_error err;
    uint64_t differ = 0;
    uint64_t total = (uint64_t)d->n_checks * n + SIDE * SIDE * SIDE;

    for (int i = 0; i < d->n_checks; i++) {
        const int number = d->checks[i];
        differ += count_differences(&d->samples[number], (tissue_channel)(number % 2),
                                    d->kept + (size_t)i * n);
    }
    sample.uri = d->uris[TISSUE_MEMBRANES];
    sample.rank = 3;
    for (int axis = 0; axis < 3; axis++) {
        sample.box[axis].begin = begin[axis] / 2;
        sample.box[axis].end = begin[axis] / 2 + SIDE;
    }
    config.level = 1;
    if (damacy_read(&config, &sample, d->kept, SIDE * SIDE * SIDE * sizeof(float), &err) !=
        DAMACY_OK) {
        printf("demo: level 1: %s\n", err.message);
        return false;
    }
    tissue_fill(&organoid, TISSUE_MEMBRANES, begin, extent, (uint16_t*)(void*)d->space);
    for (size_t i = 0; i < SIDE * SIDE * SIDE; i++) {
        const size_t at =
            i / (SIDE * SIDE) * 8 * SIDE * SIDE + i / SIDE % SIDE * 4 * SIDE + i % SIDE * 2;
        const uint16_t* const full = (const uint16_t*)(const void*)d->space + at;

        differ += d->kept[i] != (float)mean_of_eight(full, extent[2], extent[1] * extent[2]);
    }
    printf("Checked %d crops and a box of level 1, %.0f million voxels, against the formula: %llu "
           "differ\n",
           d->n_checks, (double)total / 1e6, (unsigned long long)differ);
    return differ == 0;
}

int main(int argc, char** argv)
{
    static demo d;
    damacy_config config = {0};
    damacy* pipeline = NULL;
    damacy_error err;
    char png[1000];
    bool is_fine;

    (void)snprintf(d.store, sizeof d.store, "%s/organoid.zarr", argc > 1 ? argv[1] : ".");
    (void)snprintf(png, sizeof png, "%s/organoid.png", argc > 1 ? argv[1] : ".");
    for (int channel = 0; channel < 2; channel++) {
        (void)snprintf(d.uris[channel], sizeof d.uris[channel], "%s/%s", d.store,
                       channel_names[channel]);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    d.space = (float*)malloc((size_t)(crop[0] * crop[1] * crop[2]) * BATCH * sizeof(float));
    d.kept = (float*)malloc((size_t)(crop[0] * crop[1] * crop[2]) * CHECKED * sizeof(float));
    if (!d.space || !d.kept || !write_store(&d)) {
        return 1;
    }
    choose_samples(&d);

    config.samples_per_batch = BATCH;
    if (damacy_create(&config, &pipeline, &err) != DAMACY_OK) {
        printf("demo: %s\n", err.message);
        return 1;
    }
    printf("Streaming %d crops of %lld x %lld x %lld in batches of %d to %s\n", BATCHES * BATCH,
           (long long)crop[0], (long long)crop[1], (long long)crop[2], BATCH,
           damacy_device(pipeline) == DAMACY_CPU ? "host memory" : "the GPU");
    is_fine = stream(&d, pipeline);
    damacy_destroy(pipeline);
    if (is_fine && !paint(d.space, png)) {
        printf("demo: cannot write %s\n", png);
        is_fine = false;
    } else if (is_fine) {
        printf("Picture of the last batch: %s\n", png);
    }
    is_fine = is_fine && check(&d);
    free(d.kept);
    free(d.space);
    return is_fine ? 0 : 1;
}
