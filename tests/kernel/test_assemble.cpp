// kernels/assemble.cu on the CPU against the host's own copies (stage/host_assemble.h), bit for
// bit, through the work that stage/assemble_launch.h makes of random records; and the golden table
// of conversions.
#include "base/error.h"
#include "base/alloc.h"
#include "tests/simt/simt.h"
#include "kernels/assemble.cu"
#undef DAMACY__INLINE
#undef DAMACY__TILE_BYTES
namespace host { // both sides have functions of the same names
#include "stage/host_assemble.h"
} // namespace host
#undef DAMACY__INLINE
#include "stage/assemble_launch.h"
#include "tests/data/cast_cases.h"
#include "tests/simt/assemble.h"
#include "tests/test.h"
#include <string>

typedef std::vector<uint8_t> bytes;

static void launch(const damacy__assemble_wave& wave, unsigned n_blocks)
{
    const uint32_t src = ((const damacy__assemble_job*)(uintptr_t)wave.jobs)->src_dtype;
    const simt::assemble_kernel kernel = simt::assemble_of(src, wave.out_dtype);
    simt::launch(dim3(n_blocks), dim3(256), [&] { kernel(wave); });
}

// Work and its memory, as a launch finds it.
struct work {
    std::vector<uint64_t> memory;
    damacy__assemble_list list;
    work(uint32_t max_jobs, uint32_t max_axes, uint32_t out)
        : memory(damacy__assemble_list_size(max_jobs, max_axes) / 8)
    {
        damacy__assemble_list_init(&list, memory.data(), max_jobs, max_axes, (damacy_dtype)out);
    }
    damacy__assemble_wave wave(uint32_t segment, const damacy__linear* linear, uint32_t n_channels,
                               std::vector<float>* scale, std::vector<float>* offset)
    {
        const damacy__assemble_segment& s = list.segments[segment];
        damacy__assemble_wave w;
        memset(&w, 0, sizeof w);
        w.jobs = (uint64_t)(uintptr_t)(list.jobs + s.first_job);
        w.axes = (uint64_t)(uintptr_t)list.axes;
        w.first_tile = (uint64_t)(uintptr_t)damacy__assemble_tiles(&list, segment);
        w.n_jobs = s.n_jobs;
        w.n_tiles = s.n_tiles;
        w.out_dtype = list.out;
        w.n_channels = n_channels;
        if (linear) {
            for (uint32_t i = 0; i < n_channels; i++) {
                scale->push_back(linear[i].scale);
                offset->push_back(linear[i].offset);
            }
            w.scale = (uint64_t)(uintptr_t)scale->data();
            w.offset = (uint64_t)(uintptr_t)offset->data();
        }
        return w;
    }
};

// A random record: a box of a chunk, perhaps transposed, reflected or clamped, to a box of a
// sample.
struct record {
    damacy__copy copy;
    std::vector<damacy__axis> axes;
    std::unique_ptr<uint8_t[]> chunk; // exactly as long as the chunk, at any alignment
    size_t chunk_size;
    uint64_t n_out; // elements of the sample
};

static record make_record(uint32_t src, uint64_t* seed, bool is_large)
{
    record r;
    const uint32_t rank = 1 + (uint32_t)(test_random(seed) % 4);
    const uint64_t most = is_large ? 40 : 9;
    const size_t size = damacy__type_size(src);
    uint64_t chunk_shape[4], sample_shape[4], n_chunk = 1;
    uint32_t order[4] = {0, 1, 2, 3}; // of the chunk's axes in memory
    int64_t chunk_stride[4], at = 0, to = 0;

    memset(&r.copy, 0, sizeof r.copy);
    r.axes.resize(rank);
    r.n_out = 1;
    for (uint32_t i = 0; i < rank; i++) {
        r.axes[i].extent = 1 + test_random(seed) % most;
        chunk_shape[i] = r.axes[i].extent + test_random(seed) % 4;
        sample_shape[i] = r.axes[i].extent + test_random(seed) % 4 * (test_random(seed) % 2);
        const uint32_t k = (uint32_t)(test_random(seed) % (i + 1));
        if (test_random(seed) % 3 == 0) {
            const uint32_t kept = order[i];
            order[i] = order[k];
            order[k] = kept;
        }
    }
    for (uint32_t i = rank; i-- > 0;) {
        const uint32_t a = order[i] < rank ? order[i] : i;
        chunk_stride[a] = (int64_t)n_chunk;
        n_chunk *= chunk_shape[a];
    }
    for (uint32_t i = rank; i-- > 0;) {
        const uint64_t slack = chunk_shape[i] - r.axes[i].extent;
        const uint64_t begin = test_random(seed) % (slack + 1);
        r.axes[i].dst_stride = (int64_t)r.n_out;
        to += r.axes[i].dst_stride *
              (int64_t)(test_random(seed) % (sample_shape[i] - r.axes[i].extent + 1));
        r.n_out *= sample_shape[i];
        switch (test_random(seed) % 8) {
        case 0: // clamped
            r.axes[i].src_stride = 0;
            at += chunk_stride[i] * (int64_t)begin;
            break;
        case 1: // reflected
            r.axes[i].src_stride = -chunk_stride[i];
            at += chunk_stride[i] * (int64_t)(begin + r.axes[i].extent - 1);
            break;
        default:
            r.axes[i].src_stride = chunk_stride[i];
            at += chunk_stride[i] * (int64_t)begin;
        }
    }
    const size_t skew = test_random(seed) % 2 ? 0 : (size_t)(test_random(seed) % 16);
    r.chunk_size = n_chunk * size + skew;
    r.chunk.reset(new uint8_t[r.chunk_size]);
    for (size_t i = 0; i < r.chunk_size; i++)
        r.chunk[i] = (uint8_t)(test_random(seed) >> 56);
    if (test_random(seed) % 8 == 0)
        r.copy.flags |= DAMACY__COPY_FILL;
    if (test_random(seed) % 4 == 0)
        r.copy.flags |= DAMACY__COPY_SWAP;
    r.copy.src = (uint64_t)(uintptr_t)(r.chunk.get() + skew) + (uint64_t)at * size;
    r.copy.dst = (uint64_t)to; // relative, in elements
    r.copy.fill = test_random(seed) >> (64 - 8 * size);
    r.copy.n_axes = rank;
    r.copy.src_dtype = src;
    r.copy.channel_axis =
        test_random(seed) % 2 ? (uint32_t)(test_random(seed) % rank) : DAMACY__NO_CHANNEL;
    r.copy.channel = (uint32_t)(test_random(seed) % 3);
    return r;
}

// Runs records of one type into samples of their own, on both sides, and compares every byte.
static void check(uint32_t src, uint32_t out, uint64_t* seed, unsigned n, bool is_large)
{
    const size_t out_size = damacy__type_size(out);
    const bool is_scaled = damacy__type_is_float(out) && test_random(seed) % 2;
    const uint32_t n_channels = is_scaled ? (test_random(seed) % 2 ? 1 : 50) : 0;
    std::vector<damacy__linear> linear(n_channels);
    std::vector<record> records;
    std::vector<size_t> starts;
    std::vector<float> scale, offset;
    work w(n, 8 * n, out);
    size_t total = 64;

    for (auto& x : linear) {
        x.scale = (float)((int64_t)(test_random(seed) % 2001) - 1000) / 7.0f;
        x.offset = (float)((int64_t)(test_random(seed) % 2001) - 1000) / 3.0f;
    }
    damacy__assemble_begin(&w.list, (damacy_dtype)src);
    for (unsigned i = 0; i < n; i++) {
        records.push_back(make_record(src, seed, is_large));
        starts.push_back(total);
        total += records[i].n_out * out_size + (test_random(seed) % 3) * out_size;
        total = (total + out_size - 1) / out_size * out_size;
    }
    total += 64;
    std::vector<uint64_t> got(total / 8 + 1), expected(total / 8 + 1);
    memset(got.data(), 0x5a, total);
    memset(expected.data(), 0x5a, total);
    for (unsigned i = 0; i < n; i++) {
        damacy__copy copy = records[i].copy;
        const uint64_t to = starts[i] + copy.dst * out_size;
        copy.dst = (uint64_t)(uintptr_t)got.data() + to;
        CHECK(damacy__assemble_add(&w.list, &copy, records[i].axes.data()));
        copy.dst = (uint64_t)(uintptr_t)expected.data() + to;
        host::damacy__affine affine;
        std::vector<float> s, o;
        for (auto& x : linear) {
            s.push_back(x.scale);
            o.push_back(x.offset);
        }
        affine.scale = s.data();
        affine.offset = o.data();
        affine.n_channels = n_channels;
        host::damacy__host_copy(&copy, records[i].axes.data(), (damacy_dtype)out,
                                is_scaled ? &affine : NULL);
    }
    const damacy__assemble_wave wave =
        w.wave(0, is_scaled ? linear.data() : NULL, n_channels, &scale, &offset);
    launch(wave, 1 + (unsigned)(test_random(seed) % 5));
    if (memcmp(got.data(), expected.data(), total) != 0)
        printf("# type %u to %u\n", src, out);
    CHECK(memcmp(got.data(), expected.data(), total) == 0);
}

TEST(kernels_of_every_pair_of_types_equal_the_host)
{
    uint64_t seed = test_seed();
    for (uint32_t src = 0; src < DAMACY__TYPES; src++)
        for (uint32_t out = 0; out < DAMACY__TYPES; out++) {
            check(src, out, &seed, 8, false);
            check(src, out, &seed, 1, true);
        }
}

TEST(single_voxels_follow_the_golden_table)
{
    for (size_t i = 0; i < sizeof cast_cases / sizeof cast_cases[0]; i++) {
        const cast_case& c = cast_cases[i];
        uint64_t got = 0;
        work w(1, 1, c.out);
        damacy__copy copy;
        damacy__axis axis = {1, 1, 1};
        memset(&copy, 0, sizeof copy);
        copy.src = (uint64_t)(uintptr_t)&c.bits;
        copy.dst = (uint64_t)(uintptr_t)&got;
        copy.n_axes = 1;
        copy.src_dtype = c.src;
        copy.channel_axis = DAMACY__NO_CHANNEL;
        damacy__assemble_begin(&w.list, (damacy_dtype)c.src);
        CHECK(damacy__assemble_add(&w.list, &copy, &axis));
        const damacy__assemble_wave wave = w.wave(0, NULL, 0, NULL, NULL);
        launch(wave, 1);
        if (got != c.out_bits)
            printf("# type %u to %u: %llx\n", c.src, c.out, (unsigned long long)c.bits);
        CHECK_EQ(got, c.out_bits);
    }
}

TEST(types_have_the_numbers_of_the_public_header)
{
    CHECK_EQ(DAMACY__TYPE_BF16, DAMACY_BF16);
    CHECK_EQ(DAMACY__TYPE_F64, DAMACY_F64);
    CHECK_EQ(DAMACY__TYPE_U8, DAMACY_U8);
    CHECK_EQ(DAMACY__TYPE_U64, DAMACY_U64);
    CHECK_EQ(DAMACY__TYPE_I8, DAMACY_I8);
    CHECK_EQ(DAMACY__TYPE_I64, DAMACY_I64);
    CHECK_EQ(DAMACY__TYPE_BOOL, DAMACY_BOOL);
    CHECK_EQ(DAMACY__TYPES, DAMACY_NATIVE);
}

TEST(division_by_magic_numbers_is_exact)
{
    uint64_t seed = test_seed();
    for (uint32_t i = 0; i < 20000; i++) {
        const uint32_t divisor =
            i < 2000 ? i + 1 : (uint32_t)(test_random(&seed) >> (33 + test_random(&seed) % 31)) + 1;
        uint32_t magic, shift;
        damacy__assemble_divisor(divisor & 0x7fffffff ? divisor & 0x7fffffff : 1, &magic, &shift);
        const uint32_t d = divisor & 0x7fffffff ? divisor & 0x7fffffff : 1;
        for (uint32_t k = 0; k < 20; k++) {
            const uint32_t multiple = (uint32_t)(test_random(&seed) % (0x7fffffffu / d + 1)) * d;
            const uint32_t x = k == 0                   ? 0x7fffffff
                               : k == 1                 ? d - 1
                               : k % 2 || multiple == 0 ? multiple
                                                        : multiple - 1;
            CHECK_EQ(damacy__divide(x, magic, shift), x / d);
        }
    }
}

TEST(records_too_large_for_one_job_are_cut)
{
    // 2^36 bytes of output are described, not written
    work w(40, 80, DAMACY_U8);
    damacy__copy copy;
    damacy__axis axes[3] = {
        {0, (int64_t)1 << 36, 9}, {0, (int64_t)1 << 21, 1 << 13}, {0, 1, (1 << 20) + 5}};
    uint64_t n = 0;
    memset(&copy, 0, sizeof copy);
    copy.dst = 0x10000;
    copy.flags = DAMACY__COPY_FILL;
    copy.n_axes = 3;
    copy.src_dtype = DAMACY_U8;
    copy.channel_axis = DAMACY__NO_CHANNEL;
    damacy__assemble_begin(&w.list, DAMACY_U8);
    CHECK(damacy__assemble_add(&w.list, &copy, axes));
    CHECK(w.list.n_jobs > 1);
    for (uint32_t i = 0; i < w.list.n_jobs; i++) {
        const damacy__assemble_job& job = w.list.jobs[i];
        CHECK((uint64_t)job.units * job.n_lines < 1u << 31);
        CHECK(job.dst >= copy.dst);
        n += (uint64_t)job.n * job.n_lines;
    }
    CHECK_EQ(n, 9ull * (1 << 13) * ((1 << 20) + 5));
}

TEST(a_full_list_refuses_and_stays_as_it_was)
{
    work w(2, 2, DAMACY_F32);
    damacy__copy copy;
    damacy__axis axes[2] = {{100, 100, 5}, {1, 1, 7}};
    memset(&copy, 0, sizeof copy);
    copy.n_axes = 2;
    copy.src_dtype = DAMACY_U16;
    copy.channel_axis = DAMACY__NO_CHANNEL;
    damacy__assemble_begin(&w.list, DAMACY_U16);
    CHECK(damacy__assemble_add(&w.list, &copy, axes));
    CHECK(damacy__assemble_add(&w.list, &copy, axes));
    const damacy__assemble_list before = w.list;
    CHECK(!damacy__assemble_add(&w.list, &copy, axes));
    CHECK(memcmp(&before, &w.list, sizeof before) == 0);
}

TEST_MAIN
