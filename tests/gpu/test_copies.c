/* Copies of pinned memory to a real device: everything has arrived when the stream has passed, and
 * the sources may change from then on. Of the driver's own batches of copies (cuMemcpyBatchAsync)
 * some did not arrive, or ended in a launch failure, within seconds of this. Skips aloud without a
 * device; TEST_SEED repeats a run. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tests/test.h"

enum { ROUNDS = 3, MOST = 1000, SIZE = 24 << 20, MOVES = MOST + SIZE / DAMACY__GATHER_MAX };

/* Copies that are under way, and what tells when they are there. */
typedef struct trip {
    damacy__pinned host; /* the bytes to copy, what came of them, the table of moves */
    uint64_t device;
    damacy__event sent;
    damacy__event done;
    uint32_t n;
    uint32_t from[MOST], to[MOST], size[MOST];
    uint32_t first_tag;
} trip;

static damacy_codec* codec;
static damacy_error err;
static damacy__stream streams[2];
static trip trips[ROUNDS];
static char note[240];

static uint8_t byte_of(uint32_t tag, uint32_t i)
{
    uint32_t v = tag * 2654435761u + (i >> 2) * 2246822519u;

    v ^= v >> 15;
    return (uint8_t)(v >> (8 * (i & 3)));
}

static void must(damacy_status status)
{
    if (status != DAMACY_OK) {
        printf("# %s\n", err.message);
    }
    CHECK_EQ(status, DAMACY_OK);
}

/* A GPU to copy to, entered; false: none, and note says why. */
static bool has_codec(void)
{
    damacy_config config;

    memset(&config, 0, sizeof config);
    config.device = DAMACY_GPU(0);
    if (damacy_codec_create(DAMACY_CODEC_LZ4, &config, &codec, &err) != DAMACY_OK) {
        (void)snprintf(note, sizeof note, "no GPU: %.200s", err.message);
        return false;
    }
    CHECK(codec->device.can_read_host);
    must(damacy__device_enter(&codec->device, &err));
    return true;
}

static void drop_codec(void)
{
    damacy__device_leave(&codec->device);
    damacy_codec_destroy(codec);
}

static void open_trips(void)
{
    damacy__device* device = &codec->device;

    memset(trips, 0, sizeof trips);
    for (int i = 0; i < 2; i++) {
        must(damacy__stream_open(device, i == 0, &streams[i], &err));
    }
    for (int i = 0; i < ROUNDS; i++) {
        trip* t = &trips[i];
        must(damacy__pinned_alloc(device, 2 * SIZE + MOVES * sizeof(damacy__move), "a trip",
                                  &t->host, &err));
        CHECK(t->host.kind != DAMACY__PINNED_PAGEABLE);
        CHECK_EQ(codec->driver.memory_alloc(&t->device, SIZE), 0);
        must(damacy__event_open(device, false, &t->sent, &err));
        must(damacy__event_open(device, false, &t->done, &err));
    }
}

static void close_trips(void)
{
    damacy__device* device = &codec->device;

    for (int i = 0; i < ROUNDS; i++) {
        damacy__event_close(device, trips[i].sent);
        damacy__event_close(device, trips[i].done);
        CHECK_EQ(codec->driver.memory_free(trips[i].device), 0);
        damacy__pinned_free(device, &trips[i].host);
    }
    damacy__stream_close(device, streams[0]);
    damacy__stream_close(device, streams[1]);
}

/* Copies of a trip, none yet; its table of moves is free. */
static damacy__copies copies_of(const trip* t, int has_kernel)
{
    damacy__copies copies;

    memset(&copies, 0, sizeof copies);
    copies.kernel = has_kernel ? &codec->kernels.lz.copy.kernels[DAMACY__COPY_GATHER] : NULL;
    copies.moves = (damacy__move*)(void*)(t->host.ptr + 2 * SIZE);
    copies.capacity = MOVES;
    return copies;
}

/* Sources and destinations at any alignment; few and many copies, small and large. */
static void begin(trip* t, int has_kernel, uint32_t* tag, uint64_t* seed)
{
    const uint32_t most = (uint32_t)(test_random(seed) % 8 ? test_random(seed) % 20000 : 2000000);
    const uint32_t n = 1 + (uint32_t)(test_random(seed) % (test_random(seed) % 2 ? 60 : MOST));
    damacy__device* device = &codec->device;
    damacy__copies copies = copies_of(t, has_kernel);
    uint32_t at = 0;
    uint32_t to = 0;

    t->first_tag = *tag;
    for (t->n = 0; t->n < n; t->n++) {
        const uint32_t size = 1 + (uint32_t)(test_random(seed) % (most + 1));
        const uint32_t skew = (uint32_t)(test_random(seed) % 40);
        if (at + skew + size > SIZE || to + size > SIZE) {
            break;
        }
        at += skew;
        t->from[t->n] = at;
        t->to[t->n] = to;
        t->size[t->n] = size;
        for (uint32_t i = 0; i < size; i++) {
            t->host.ptr[at + i] = byte_of(*tag, i);
        }
        must(damacy__copies_add(&copies, device, t->device + to, t->host.ptr + at, size, streams[0],
                                &err));
        at += size;
        to += size;
        (*tag)++;
    }
    must(damacy__copies_flush(&copies, device, streams[0], &err));
    must(damacy__event_record(device, t->sent, streams[0], &err));
    must(damacy__stream_await(device, streams[1], t->sent, &err));
    must(damacy__copy_to_host(device, t->host.ptr + SIZE, t->device, to, streams[1], &err));
    must(damacy__event_record(device, t->done, streams[1], &err));
}

static void end(trip* t)
{
    must(damacy__event_await(&codec->device, t->done, UINT64_C(10000000000), &err));
    for (uint32_t k = 0; k < t->n; k++) {
        for (uint32_t i = 0; i < t->size[k]; i++) {
            if (t->host.ptr[SIZE + t->to[k] + i] != byte_of(t->first_tag + k, i)) {
                printf("# copy %u of %u, of %u bytes from %u to %u: byte %u\n", k, t->n, t->size[k],
                       t->from[k], t->to[k], i);
            }
            CHECK_EQ(t->host.ptr[SIZE + t->to[k] + i], byte_of(t->first_tag + k, i));
        }
    }
}

TEST(copies_have_arrived_when_the_stream_has_passed)
{
    const int n_rounds = getenv("DAMACY_TEST_SMALL") ? 6 : 120;
    uint64_t seed = test_seed();
    uint32_t tag = 0;

    if (!has_codec()) {
        SKIP(note);
    }
    open_trips();
    for (int round = 0; round < n_rounds; round++) {
        for (int i = 0; i < ROUNDS; i++) {
            trip* t = &trips[i];
            if (round > 0) {
                must(damacy__event_await(&codec->device, t->sent, UINT64_C(10000000000), &err));
                memset(t->host.ptr, 0xee, SIZE);
                end(t);
            }
            begin(t, round % 8 != 7, &tag, &seed);
        }
    }
    for (int i = 0; i < ROUNDS; i++) {
        end(&trips[i]);
    }
    printf("# %u copies\n", tag);
    close_trips();
    drop_codec();
}

enum { FILE_SIZE = 3 << 20, CUT = 5000 };

/* The file comes in pieces of any size and alignment; of one that was cut short what is left. */
static void from_mapped(const damacy__mapping* map, uint32_t n_left, uint64_t* seed)
{
    trip* t = &trips[0];
    damacy__copies copies = copies_of(t, 1);

    memset(t->host.ptr + SIZE, 0xee, SIZE);
    for (uint32_t at = 0; at < FILE_SIZE;) {
        const uint32_t wish = 1 + (uint32_t)(test_random(seed) % 60000);
        const uint32_t size = DAMACY__MIN(wish, FILE_SIZE - at);
        must(damacy__copies_add(&copies, &codec->device, t->device + at, map->ptr + at, size,
                                streams[0], &err));
        at += size;
    }
    must(damacy__copies_flush(&copies, &codec->device, streams[0], &err));
    must(damacy__copy_to_host(&codec->device, t->host.ptr + SIZE, t->device, FILE_SIZE, streams[0],
                              &err));
    must(damacy__event_record(&codec->device, t->done, streams[0], &err));
    must(damacy__event_await(&codec->device, t->done, UINT64_C(10000000000), &err));
    for (uint32_t i = 0; i < n_left; i++) {
        CHECK_EQ(t->host.ptr[SIZE + i], byte_of(7, i));
    }
}

TEST(a_kernel_reads_a_mapped_file_and_one_that_was_cut_short_does_no_harm)
{
    char path[] = "/tmp/damacy-copies-XXXXXX";
    uint8_t* const bytes = (uint8_t*)malloc(FILE_SIZE);
    uint64_t seed = test_seed();
    damacy__mapping map;
    damacy_status status;
    const int fd = mkstemp(path);

    CHECK(fd >= 0 && bytes);
    unlink(path);
    for (uint32_t i = 0; i < FILE_SIZE; i++) {
        bytes[i] = byte_of(7, i);
    }
    CHECK_EQ(write(fd, bytes, FILE_SIZE), FILE_SIZE);
    free(bytes);
    if (!has_codec()) {
        close(fd);
        SKIP(note);
    }
    status = damacy__mapping_open(&codec->device, fd, 0, FILE_SIZE, &map, &err);
    if (status == DAMACY_UNSUPPORTED) {
        (void)snprintf(note, sizeof note, "%.200s", err.message);
        drop_codec();
        close(fd);
        SKIP(note);
    }
    must(status);
    open_trips();
    from_mapped(&map, FILE_SIZE, &seed);
    CHECK_EQ(ftruncate(fd, CUT), 0);
    from_mapped(&map, CUT, &seed);
    damacy__mapping_close(&codec->device, &map);
    close_trips();
    drop_codec();
    close(fd);
}

TEST_MAIN
