// A batch of frames in the caller's arrays: to a table of jobs, results back to the caller's
// arrays, and sizes by headers alone. A thread per frame; grids of any size.
#include "kernels/codec_abi.h"
#include "kernels/zstd_parse.cuh"

DAMACY__INLINE uint32_t damacy__codec_count(const damacy__codec_frames& f)
{
    return f.count ? damacy__min(*(const uint32_t*)(uintptr_t)f.count, f.n) : f.n;
}

DAMACY__INLINE uint64_t damacy__codec_at(uint64_t array, uint32_t i)
{
    return ((const uint64_t*)(uintptr_t)array)[i];
}

// Fills the table of jobs and its count. A frame without an address is skipped.
extern "C" __global__ __launch_bounds__(256) void damacy_frames_gather(damacy__codec_frames f)
{
    const uint32_t n = damacy__codec_count(f);

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        damacy__job job;
        damacy__job_result result = {0, 0, DAMACY__JOB_NOT_RUN, 0};
        job.src = damacy__codec_at(f.srcs, i);
        job.src_size = damacy__codec_at(f.src_sizes, i);
        job.dst = damacy__codec_at(f.dsts, i);
        job.dst_capacity = damacy__codec_at(f.capacities, i);
        job.expected_size = DAMACY__SIZE_UNKNOWN;
        job.flags = f.flags;
        job.tag = i;
        if ((!job.src && job.src_size) || (!job.dst && job.dst_capacity)) {
            job.flags |= DAMACY__JOB_SKIP;
            job.src = f.jobs; // not read, but no address that arithmetic must not touch
            job.src_size = 0;
        }
        ((damacy__job*)(uintptr_t)f.jobs)[i] = job;
        ((damacy__job_result*)(uintptr_t)f.results)[i] = result;
    }
    if (blockIdx.x != 0)
        return;
    for (uint32_t i = threadIdx.x; i < f.n_zeroed; i += blockDim.x)
        ((uint32_t*)(uintptr_t)f.zeroed)[i] = 0;
    if (threadIdx.x == 0)
        *(uint32_t*)(uintptr_t)f.n_jobs = n;
}

// Writes sizes, statuses and places of errors where the caller wants them.
extern "C" __global__ __launch_bounds__(256) void damacy_frames_scatter(damacy__codec_frames f)
{
    const uint32_t n = damacy__codec_count(f);

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const damacy__job_result r = ((const damacy__job_result*)(uintptr_t)f.results)[i];
        const bool has_size = r.status == DAMACY__JOB_OK || r.status == DAMACY__JOB_NO_SPACE;
        if (f.sizes)
            ((uint64_t*)(uintptr_t)f.sizes)[i] = has_size ? r.size : 0;
        if (f.error_offsets)
            ((uint64_t*)(uintptr_t)f.error_offsets)[i] =
                r.status == DAMACY__JOB_OK ? 0 : r.error_offset;
        if (f.statuses)
            ((uint32_t*)(uintptr_t)f.statuses)[i] = r.status;
    }
}

// Walks the headers of Zstandard frames, adds what they need to t. The sum of their content sizes,
// or SIZE_UNKNOWN when one is broken or does not give its own. A walk has a bound: two million
// headers take about a second.
static __device__ uint64_t damacy__codec_zstd(const uint8_t* src, uint64_t size,
                                              damacy__codec_totals& t)
{
    damacy__zstd_wave wave = {};
    damacy__job job = {};
    damacy__zstd_walk k;

    if (size > DAMACY__JOB_SIZE_MAX)
        return DAMACY__SIZE_UNKNOWN;
    wave.max_blocks = 1u << 20;
    job.src = (uint64_t)(uintptr_t)src;
    job.src_size = size;
    damacy__zstd_walk_begin(k, job);
    const bool is_whole = damacy__zstd_walk_job<false, false>(wave, k, k.n, 0);
    if (k.n_headers > t.n_headers)
        t.n_headers = k.n_headers;
    if (!is_whole)
        return DAMACY__SIZE_UNKNOWN;
    t.n_work_bytes += k.n.n_literal_bytes + 8 * k.n.n_records;
    t.n_blocks += k.n.n_blocks;
    t.n_frames += k.n.n_frames;
    return k.known ? k.content : DAMACY__SIZE_UNKNOWN;
}

// The length that a token's four bits begin; false when the source ends in it.
DAMACY__INLINE bool damacy__codec_lz4_length(const uint8_t* src, uint64_t size, uint64_t& at,
                                             uint64_t& n)
{
    for (uint32_t byte = n == 15 ? 255 : 0; byte == 255; n += byte) {
        if (at >= size)
            return false;
        byte = src[at++];
    }
    return true;
}

// Adds up the lengths of an LZ4 block. SIZE_UNKNOWN when it is malformed or makes too much.
static __device__ uint64_t damacy__codec_lz4(const uint8_t* src, uint64_t size)
{
    uint64_t at = 0, total = 0;

    while (at < size && total <= DAMACY__JOB_SIZE_MAX) {
        const uint32_t token = src[at++];
        uint64_t n = token >> 4;
        if (!damacy__codec_lz4_length(src, size, at, n) || n > size - at)
            break;
        total += n;
        at += n;
        if (at == size)
            return total <= DAMACY__JOB_SIZE_MAX ? total : DAMACY__SIZE_UNKNOWN;
        n = token & 15;
        if (size - at < 2)
            break;
        at += 2;
        if (!damacy__codec_lz4_length(src, size, at, n))
            break;
        total += n + 4;
    }
    return DAMACY__SIZE_UNKNOWN;
}

// Walks the streams of a blosc container as kernels/blosc.cu does, which checks what is only
// stepped over here.
static __device__ void damacy__codec_blosc(const uint8_t* src, uint64_t src_size,
                                           damacy__codec_totals& t)
{
    const uint32_t flags = src[2], type_size = src[3];
    const uint32_t size = damacy__load_u32(src + 4), block_size = damacy__load_u32(src + 8);
    const bool is_split =
        !(flags & 0x10) && type_size && type_size <= 16 && block_size / type_size >= 128;

    t.n_streams++;
    if (flags & 2 || block_size == 0 || size == 0 || (size - 1) / block_size >= (src_size - 16) / 4)
        return;
    const uint32_t n_blocks = (size - 1) / block_size + 1;
    uint64_t walked = 0; // streams that overlap must not make the walk long
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint64_t start = (uint64_t)b * block_size;
        const bool is_whole = size - start >= block_size;
        uint64_t at = damacy__load_u32(src + 16 + 4 * (uint64_t)b);
        for (uint32_t i = 0; i < (is_split && is_whole ? type_size : 1); i++) {
            if (at > src_size || src_size - at < 4)
                return;
            const uint32_t packed = damacy__load_u32(src + at);
            at += 4;
            walked += packed;
            if (packed > src_size - at || walked > src_size)
                return;
            t.n_streams++;
            if (flags >> 5 == 4)
                (void)damacy__codec_zstd(src + at, packed, t);
            at += packed;
        }
    }
}

// The decoded size of a frame as far as its headers tell, else SIZE_UNKNOWN.
static __device__ uint64_t damacy__codec_size(uint32_t kind, const uint8_t* src, uint64_t size,
                                              damacy__codec_totals& t)
{
    if (!src)
        return DAMACY__SIZE_UNKNOWN;
    if (kind == DAMACY__FRAMES_ZSTD)
        return damacy__codec_zstd(src, size, t);
    if (kind == DAMACY__FRAMES_LZ4)
        return damacy__codec_lz4(src, size);
    if (kind == DAMACY__FRAMES_LZ4_SIZED)
        return size >= 4 ? damacy__load_u32(src) : DAMACY__SIZE_UNKNOWN;
    return size >= 16 ? damacy__load_u32(src + 4) : DAMACY__SIZE_UNKNOWN;
}

// Decoded sizes.
extern "C" __global__ __launch_bounds__(64) void damacy_frames_sizes(damacy__codec_frames f)
{
    const uint32_t n = damacy__codec_count(f);
    damacy__codec_totals unused = {};

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        ((uint64_t*)(uintptr_t)f.sizes)[i] =
            damacy__codec_size(f.kind, (const uint8_t*)(uintptr_t)damacy__codec_at(f.srcs, i),
                               damacy__codec_at(f.src_sizes, i), unused);
}

// Bytes of output that a frame counts with: what it says, but no more than it has room for.
DAMACY__INLINE uint64_t damacy__codec_room(const damacy__codec_frames& f, uint32_t i, uint64_t size)
{
    const uint64_t capacity =
        f.capacities ? damacy__codec_at(f.capacities, i) : (uint64_t)DAMACY__SIZE_UNKNOWN;
    const uint64_t room = size < capacity ? size : capacity;

    if (room == DAMACY__SIZE_UNKNOWN)
        return 0;
    return room < DAMACY__JOB_SIZE_MAX ? room : DAMACY__JOB_SIZE_MAX;
}

// What the decoders need for the batch.
extern "C" __global__ __launch_bounds__(64) void damacy_frames_measure(damacy__codec_frames f)
{
    const uint32_t n = damacy__codec_count(f);
    damacy__codec_totals* const all = (damacy__codec_totals*)(uintptr_t)f.totals;
    damacy__codec_totals t = {};

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const uint8_t* const src = (const uint8_t*)(uintptr_t)damacy__codec_at(f.srcs, i);
        const uint64_t src_size = damacy__codec_at(f.src_sizes, i);
        // An LZ4 block may write its whole capacity before its end shows that it was not meant to.
        const bool is_open = f.kind == DAMACY__FRAMES_LZ4 && f.capacities;
        const uint64_t size =
            is_open ? (uint64_t)DAMACY__SIZE_UNKNOWN : damacy__codec_size(f.kind, src, src_size, t);
        const uint64_t room = damacy__codec_room(f, i, size);
        if (f.kind == DAMACY__FRAMES_BLOSC && src && src_size >= 16)
            damacy__codec_blosc(src, src_size, t);
        t.size += room;
        if (room > t.largest)
            t.largest = (uint32_t)room;
    }
    damacy__atomic_add64(&all->size, t.size);
    damacy__atomic_add64(&all->n_work_bytes, t.n_work_bytes);
    damacy__atomic_add64(&all->n_blocks, t.n_blocks);
    damacy__atomic_add64(&all->n_frames, t.n_frames);
    damacy__atomic_add64(&all->n_streams, t.n_streams);
    damacy__atomic_max(&all->largest, t.largest);
    damacy__atomic_max(&all->n_headers, t.n_headers);
}
