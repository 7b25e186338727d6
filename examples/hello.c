/* Streams random crops of one volume: cc -O2 -o hello hello.c && ./hello volume.zarr */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv)
{
    damacy_config config = {0}; /* every zero is a sensible default */
    damacy_sample sample = {0};
    damacy_array* array;
    damacy_array_info_t volume;
    damacy_batch batch;
    damacy_status status;
    damacy_error err;
    damacy* d;

    config.samples_per_batch = 4;
    sample.uri = argc > 1 ? argv[1] : "volume.zarr";
    if (damacy_array_open(&config, sample.uri, &array, &err) != DAMACY_OK ||
        damacy_create(&config, &d, &err) != DAMACY_OK) {
        return fprintf(stderr, "hello: %s\n", err.message), 1;
    }
    damacy_array_info(array, &volume);
    sample.rank = volume.rank;
    for (int i = 0; i < 16; i++) { /* 16 crops of half the volume's extent, anywhere in it */
        for (uint32_t axis = 0; axis < volume.rank; axis++) {
            const int64_t extent = (volume.shape[axis] + 1) / 2;
            sample.box[axis].begin = rand() % (volume.shape[axis] - extent + 1);
            sample.box[axis].end = sample.box[axis].begin + extent;
        }
        damacy_push(d, &sample, 1, NULL, &err); /* copies it, never blocks */
    }
    damacy_finish(d);
    while ((status = damacy_pop(d, &batch, &err)) == DAMACY_OK) { /* in push order; blocks */
        damacy_batch_info_t info;
        damacy_batch_info(batch, &info);
        printf("batch %d: %d crops at %p on %s\n", (int)info.id, (int)info.shape[0], info.ptr,
               info.device == DAMACY_CPU ? "the CPU" : "the GPU");
        damacy_release(batch);
    }
    damacy_destroy(d);
    damacy_array_close(array);
    return status == DAMACY_END ? 0 : (fprintf(stderr, "hello: %s\n", err.message), 1);
}
