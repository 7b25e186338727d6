// Descriptions of Huffman trees: the states of the table of their weights, and the stream of these.
#include "tests/simt/simt.h"
#include "kernels/zstd_trees.cuh"
#include "tests/test.h"
#include <vector>

// Normalised counts of weights that sum up, and their table, by the kernel and by the text of RFC
// 8878 section 4.1.1.
struct weight_table {
    uint32_t log, n_symbols;
    int8_t counts[16];
    uint16_t states[64];
};

static weight_table random_counts(uint64_t* seed)
{
    weight_table t = {};
    t.log = 5 + (uint32_t)(test_random(seed) % 2);
    t.n_symbols = 1 + (uint32_t)(test_random(seed) % 12);
    const int32_t size = 1 << t.log;
    const uint64_t style = test_random(seed) % 3; // few, some or most are less likely than one
    int32_t left = size;
    for (uint32_t s = 0; s + 1 < t.n_symbols && left > 1; s++) {
        const uint64_t r = test_random(seed);
        const bool is_rare = r % 4 <= style;
        t.counts[s] = (int8_t)(is_rare ? -1 : (int32_t)((r >> 8) % (uint64_t)(left / 2 + 1)));
        left -= is_rare ? 1 : t.counts[s];
    }
    t.counts[t.n_symbols - 1] = (int8_t)left;
    return t;
}

static void expected_states(const weight_table& t, uint16_t* states)
{
    const uint32_t size = 1u << t.log, step = (size >> 1) + (size >> 3) + 3;
    uint32_t symbol[64], next[16], end = size, place = 0;
    for (uint32_t s = 0; s < t.n_symbols; s++) {
        next[s] = t.counts[s] < 0 ? 1 : (uint32_t)t.counts[s];
        if (t.counts[s] < 0)
            symbol[--end] = s;
    }
    for (uint32_t s = 0; s < t.n_symbols; s++)
        for (int32_t k = 0; k < t.counts[s]; k++) {
            symbol[place] = s;
            do
                place = (place + step) & (size - 1);
            while (place >= end);
        }
    for (uint32_t i = 0; i < size; i++) {
        const uint32_t x = next[symbol[i]]++;
        uint32_t n_bits = t.log;
        while (x >> (t.log - n_bits + 1))
            n_bits--;
        states[i] = (uint16_t)(symbol[i] | n_bits << 4 | ((x << n_bits) - size) << 9);
    }
}

static __global__ void build_states(weight_table* t)
{
    DAMACY__SHARED(damacy__zstd_trees_shared, shared);
    if (threadIdx.x < 16)
        shared.counts[0][threadIdx.x] = t->counts[threadIdx.x];
    damacy__sync_warp();
    damacy__zstd_weight_states(damacy__shared_address(shared.states[0]),
                               damacy__shared_address(shared.counts[0]), t->log, t->n_symbols);
    damacy__sync_warp();
    for (uint32_t i = threadIdx.x; i < 1u << t->log; i += 32)
        t->states[i] = shared.states[0][i];
}

TEST(states_of_weights_are_those_of_the_specification)
{
    uint64_t seed = test_seed();
    uint32_t n_rare = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        weight_table t = random_counts(&seed);
        uint16_t expected[64];
        expected_states(t, expected);
        simt::launch(dim3(1), dim3(32), 0, [&] { build_states(&t); });
        CHECK_EQ(memcmp(t.states, expected, sizeof(uint16_t) << t.log), 0);
        n_rare += t.counts[0] < 0;
    }
    CHECK(n_rare > 200);
}

// A stream of weights from bit 8 on: two states take turns, and it is written from its end.
struct weight_stream {
    std::vector<uint8_t> weights;
    uint32_t words[DAMACY__ZSTD_TREE_WORDS];
    uint32_t skew, end; // bits
};

// The states that lead to the weights; their bits are put down from the last weight to the first.
// Returns them all, the first states too, as the stream has them from its lowest bit on.
static std::vector<uint8_t> stream_bits(const weight_table& t, const uint16_t* states,
                                        const std::vector<uint8_t>& weights)
{
    const uint32_t size = 1u << t.log;
    std::vector<uint8_t> bits;
    uint32_t state[2] = {0, 0};
    for (size_t i = weights.size(); i--;) {
        uint32_t at = 0;
        for (; at < size; at++) {
            const uint32_t entry = states[at], base = entry >> 9, n_bits = entry >> 4 & 15;
            const bool is_end =
                i + 2 >= weights.size(); // no state after it; bits that are not there
            const uint32_t after = state[i & 1];
            if ((entry & 15) != weights[i] ||
                (is_end ? n_bits == 0 : after < base || after >= base + (1u << n_bits)))
                continue;
            for (uint32_t k = 0; k < n_bits && !is_end; k++)
                bits.push_back((uint8_t)((after - base) >> k & 1));
            break;
        }
        CHECK(at < size);
        state[i & 1] = at;
    }
    for (uint32_t s = 2; s--;)
        for (uint32_t k = 0; k < t.log; k++)
            bits.push_back((uint8_t)(state[s] >> k & 1));
    return bits;
}

static weight_stream random_stream(uint64_t* seed, const weight_table& t, const uint16_t* states,
                                   uint32_t n)
{
    const uint32_t size = 1u << t.log;
    weight_stream s;
    std::vector<uint8_t> bits;
    const uint64_t style = test_random(seed) % 2; // any weights, or those that are likely
    do {
        s.weights.clear();
        for (uint32_t i = 0; i < n; i++) {
            uint32_t symbol = (uint32_t)(test_random(seed) % t.n_symbols);
            if (style || !t.counts[symbol])
                symbol = states[test_random(seed) % size] & 15;
            s.weights.push_back((uint8_t)symbol);
        }
        bits = stream_bits(t, states, s.weights);
        n = n * 7 / 8;
    } while (bits.size() + 1 > 8 * (DAMACY__ZSTD_TREE_MAX - 1));
    bits.push_back(1);
    s.skew = 8 * (uint32_t)(test_random(seed) % 4);
    s.end = 8 + (uint32_t)(bits.size() + 7) / 8 * 8;
    for (uint32_t& word : s.words)
        word = (uint32_t)test_random(seed); // what is not the stream does not matter
    for (uint32_t i = 8; i < s.end; i++) {
        const uint32_t at = i + s.skew, bit = i - 8 < bits.size() ? bits[i - 8] : 0;
        s.words[at / 32] = (s.words[at / 32] & ~(1u << at % 32)) | bit << at % 32;
    }
    return s;
}

// The streams of a warp: of each, how many weights it has, 0 if it is refused, and the weights.
static __global__ void read_streams(const weight_table* tables, const uint16_t (*states)[64],
                                    const weight_stream* streams, uint32_t* n, uint32_t (*out)[33])
{
    DAMACY__SHARED(damacy__zstd_trees_shared, shared);
    const uint32_t k = threadIdx.x / 4;
    damacy__zstd_weights t;
    if (threadIdx.x % 4 == 0) {
        memcpy(shared.words[k], streams[k].words, sizeof streams[k].words);
        memcpy(shared.states[k], states[k], sizeof shared.states[k]);
        memset(shared.weights[k], 0, sizeof shared.weights[k]);
        t.out = damacy__shared_address(shared.weights[k]);
        t.words = damacy__shared_address(shared.words[k]);
        t.states = damacy__shared_address(shared.states[k]);
        t.skew = streams[k].skew;
        t.at = 8;
        t.end = streams[k].end;
        t.log = tables[k].log;
        t.n = t.word = 0;
        n[k] = damacy__zstd_weight_stream(t) ? t.n : 0;
        if (t.n & 7)
            damacy__sts32(t.out + (t.n >> 3) * 4, t.word);
        memcpy(out[k], shared.weights[k], sizeof shared.weights[k]);
    }
}

TEST(streams_of_weights_are_read_to_their_end)
{
    enum { N = DAMACY__ZSTD_TREES_PER_WARP };
    uint64_t seed = test_seed();
    uint32_t n_full = 0, n_refused = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        weight_table tables[N];
        uint16_t states[N][64];
        weight_stream streams[N];
        uint32_t n[N], out[N][33];
        for (uint32_t k = 0; k < N; k++) {
            do
                tables[k] = random_counts(&seed);
            while (tables[k].counts[tables[k].n_symbols - 1] == 1 << tables[k].log); // no end
            expected_states(tables[k], states[k]);
            const uint64_t r = test_random(&seed);
            streams[k] =
                random_stream(&seed, tables[k], states[k],
                              (uint32_t)(r % 4 ? 2 + (r >> 8) % 254 : 240 + (r >> 8) % 30));
        }
        simt::launch(dim3(1), dim3(32), 0, [&] { read_streams(tables, states, streams, n, out); });
        for (uint32_t k = 0; k < N; k++) {
            const size_t size = streams[k].weights.size();
            CHECK_EQ(n[k], size > 255 ? 0 : size);
            n_refused += size > 255;
            n_full += size > 247 && size <= 255;
            for (size_t i = 0; i < size && n[k]; i++)
                CHECK_EQ(out[k][i / 8] >> (4 * (i % 8)) & 15, streams[k].weights[i]);
        }
    }
    CHECK(n_full > 100 && n_refused > 100);
}

TEST_MAIN
