// CRC-32C (RFC 3720 appendix B.4) at the end of ranges of bytes, a CTA of eight warps per range.
//
// A checksum without its initial value is linear, and zeros before a message do not change it. So
// each warp takes a run of aligned words, in rows of 32 of which the last is full, lane l the words
// l, l + 32,
// ...: a step multiplies the lane's state by x^1024, with four table look-ups, and adds a word. At
// the end states are multiplied by the power of x that belongs to what follows them, and added.
// Polynomials are reflected: bit 31 is x^0. Shared memory: 4.3 KiB. Grid: of any size.
#include "kernels/bits.cuh"

#define DAMACY__CRC_POLYNOMIAL 0x82f63b78u
#define DAMACY__CRC_ONE        0x80000000u
#define DAMACY__CRC_WARPS      8u

// x^(8 * 2^k)
__constant__ uint32_t damacy__crc_powers[32] = {
    0x00800000u, 0x00008000u, 0x82f63b78u, 0x6ea2d55cu, 0x18b8ea18u, 0x510ac59au, 0xb82be955u,
    0xb8fdb1e7u, 0x88e56f72u, 0x74c360a4u, 0xe4172b16u, 0x0d65762au, 0x35d73a62u, 0x28461564u,
    0xbf455269u, 0xe2ea32dcu, 0xfe7740e6u, 0xf946610bu, 0x3c204f8fu, 0x538586e3u, 0x59726915u,
    0x734d5309u, 0xbc1ac763u, 0x7d0722ccu, 0xd289cabeu, 0xe94ca9bcu, 0x05b74f3fu, 0xa51e1f42u,
    0x40000000u, 0x20000000u, 0x08000000u, 0x00800000u};

struct damacy__crc_state {
    uint32_t rows[4][256]; // rows[k][b]: byte b at place k of a state, times x^1024
    uint32_t bits[32];     // bit k of a state, times x^1024
    uint32_t sums[DAMACY__CRC_WARPS];
};

// a * b modulo the polynomial.
DAMACY__INLINE uint32_t damacy__crc_multiply(uint32_t a, uint32_t b)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 32; i++) {
        if (a & 0x80000000u)
            sum ^= b;
        a <<= 1;
        b = b >> 1 ^ (b & 1 ? DAMACY__CRC_POLYNOMIAL : 0);
    }
    return sum;
}

// x^(8 * n): every lane takes one bit of n, and the factors are multiplied pairwise. By the whole
// warp.
DAMACY__INLINE uint32_t damacy__crc_power(uint32_t n, uint32_t lane)
{
    uint32_t factor = n >> lane & 1 ? damacy__crc_powers[lane] : DAMACY__CRC_ONE;
    for (uint32_t d = 16; d != 0; d /= 2)
        factor = damacy__crc_multiply(factor, damacy__shfl_xor(factor, d));
    return factor;
}

// Fills the rows. All threads.
DAMACY__INLINE void damacy__crc_tables(damacy__crc_state* s)
{
    if (threadIdx.x < 32)
        s->bits[threadIdx.x] = damacy__crc_multiply(1u << threadIdx.x, damacy__crc_powers[7]);
    damacy__sync_block();
    for (uint32_t i = threadIdx.x; i < 4 * 256; i += blockDim.x) {
        uint32_t sum = 0;
        for (uint32_t k = 0; k < 8; k++)
            if (i >> k & 1)
                sum ^= s->bits[i / 256 * 8 + k];
        s->rows[i / 256][i % 256] = sum;
    }
    damacy__sync_block();
}

DAMACY__INLINE uint32_t damacy__crc_step(const damacy__crc_state* s, uint32_t state)
{
    return s->rows[0][state & 255] ^ s->rows[1][state >> 8 & 255] ^ s->rows[2][state >> 16 & 255] ^
           s->rows[3][state >> 24];
}

// The linear checksum of n words, by a warp; the same in every lane.
DAMACY__INLINE uint32_t damacy__crc_words(const damacy__crc_state* s, const uint32_t* words,
                                          uint32_t n, uint32_t lane)
{
    const uint32_t n_rows = (n + 31) / 32, missing = n_rows * 32 - n; // zeros in front
    uint32_t state = n_rows != 0 && lane >= missing ? words[lane - missing] : 0;
    uint32_t factor = DAMACY__CRC_ONE;
#pragma unroll 8
    for (uint32_t i = 32 + lane - missing; i < n; i += 32)
        state = damacy__crc_step(s, state) ^ words[i];
    for (uint32_t k = 0; k < 6; k++) // the word itself and what follows it in the last row
        if ((32 - lane) >> k & 1)
            factor = damacy__crc_multiply(factor, damacy__crc_powers[2 + k]);
    state = damacy__crc_multiply(state, factor);
    for (uint32_t d = 16; d != 0; d /= 2)
        state ^= damacy__shfl_xor(state, d);
    return state;
}

// The checksum of size bytes; right in thread 0. All threads.
DAMACY__INLINE uint32_t damacy__crc_range(damacy__crc_state* s, const uint8_t* src, uint32_t size)
{
    const uint32_t lane = damacy__lane(), warp = threadIdx.x >> 5;
    const uint32_t head = damacy__min((0u - (uint32_t)(uintptr_t)src) & 3, size);
    const uint32_t n = (size - head) / 4, tail = (size - head) % 4;
    const uint32_t* const words = (const uint32_t*)(uintptr_t)(src + head);
    const uint32_t run = (n / 32 / DAMACY__CRC_WARPS + 1) * 32;
    const uint32_t begin = damacy__min(warp * run, n), end = damacy__min(begin + run, n);
    uint32_t sum = damacy__crc_words(s, words + begin, end - begin, lane);
    sum = damacy__crc_multiply(sum, damacy__crc_power(4 * (n - end), lane));
    if (lane == 0)
        s->sums[warp] = sum;
    damacy__sync_block();
    if (warp != 0)
        return 0;
    // the bytes before the words, as a word that begins with zeros
    const uint32_t first = (uint32_t)(damacy__load_le(src, head) << (8 * (4 - head)));
    sum = damacy__crc_multiply(first, damacy__crc_power(4 * n + 4, lane));
    for (uint32_t w = 0; w < DAMACY__CRC_WARPS; w++)
        sum ^= s->sums[w];
    for (uint32_t i = 0; i < tail; i++) {
        sum ^= src[size - tail + i];
        for (uint32_t k = 0; k < 8; k++)
            sum = sum >> 1 ^ (sum & 1 ? DAMACY__CRC_POLYNOMIAL : 0);
    }
    return ~(sum ^ damacy__crc_multiply(~0u, damacy__crc_power(size, lane)));
}

// Compares the last four bytes of each source, little-endian, with the checksum of those before.
// size of a good result: the bytes before. Nothing is written to outputs.
extern "C" __global__ __launch_bounds__(256) void damacy_crc32c(uint64_t jobs, uint64_t results,
                                                                uint64_t n, uint32_t max)
{
    DAMACY__SHARED(damacy__crc_state, state);
    const uint32_t count = damacy__min(*(const uint32_t*)(uintptr_t)n, max);
    if (blockIdx.x >= count)
        return;
    damacy__crc_tables(&state);
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const damacy__job job = ((const damacy__job*)(uintptr_t)jobs)[i];
        const uint8_t* const src = (const uint8_t*)(uintptr_t)job.src;
        uint32_t status = DAMACY__JOB_OK;
        if (job.flags & DAMACY__JOB_SKIP)
            status = DAMACY__JOB_SKIPPED;
        else if (job.src_size > DAMACY__JOB_SIZE_MAX)
            status = DAMACY__JOB_TOO_LARGE;
        else if (job.src_size < 4)
            status = DAMACY__JOB_TRUNCATED;
        const uint32_t size = status == DAMACY__JOB_OK ? (uint32_t)job.src_size - 4 : 0;
        if (status == DAMACY__JOB_OK && !(job.flags & DAMACY__JOB_NO_CHECKSUM)) {
            const uint32_t sum = damacy__crc_range(&state, src, size);
            if (threadIdx.x == 0 && sum != damacy__load_u32(src + size))
                status = DAMACY__JOB_BAD_CHECKSUM;
        }
        if (threadIdx.x == 0) {
            damacy__job_result* const result = (damacy__job_result*)(uintptr_t)results + i;
            result->size = status == DAMACY__JOB_OK ? size : 0;
            result->error_offset = status == DAMACY__JOB_OK ? 0 : size;
            result->zero = 0;
            result->status = status;
        }
        damacy__sync_block(); // the sums have been read
    }
}
