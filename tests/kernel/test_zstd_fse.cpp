// The sequence stage on the CPU against a scalar decoder of RFC 8878 section 3.1.1.3: real frames
// of every kind of table, mutated and random bytes; every shape, several grids. Each frame lies in
// an allocation of its exact size, so that sanitizers see a read past it.
#include "tests/simt/simt.h"
#include "kernels/zstd_fse.cuh"
#include "kernels/zstd_header.cuh"
#include "tests/kernel/zstd_corpus.h"
#include "tests/kernel/zstd_unlikely.h"
#include "tests/test.h"
#include <algorithm>
#include <memory>

// ---- scalar reference ----

struct cell {
    uint32_t code, width, base;
};

struct sequences {
    bool good;
    std::vector<uint64_t> records, by_sequence; // of both kinds
    uint32_t size, repeat[3];
    int64_t left; // bits after the last sequence, or -1 if there is an error before
    uint64_t literals, widest;
    uint32_t next; // most bits of the next states of a sequence
};

// Counts of a table description; returns its size, 0 if it is broken.
static uint32_t reference_counts(const uint8_t* src, uint32_t limit, uint32_t table,
                                 int16_t* counts, uint32_t* log)
{
    auto bits = [&](uint32_t at, uint32_t n) {
        uint32_t v = 0;
        for (uint32_t i = 0; i < n; i++)
            if ((at + i) / 8 < limit)
                v |= (src[(at + i) / 8] >> ((at + i) & 7) & 1u) << i;
        return v;
    };
    const int max_symbol = table == DAMACY__ZSTD_LL ? 35 : table == DAMACY__ZSTD_OF ? 31 : 52;
    uint32_t at = 4;
    int symbol = 0;
    *log = bits(0, 4) + 5;
    if (*log > (table == DAMACY__ZSTD_OF ? 8u : 9u))
        return 0;
    int left = 1 << *log;
    std::fill(counts, counts + 64, 0);
    while (left > 0) {
        if (symbol > max_symbol)
            return 0;
        uint32_t n = 0; // values 0 ... left + 1 in n bits, the smaller ones in n - 1
        while ((1 << n) < left + 2)
            n++;
        const int spare = (1 << n) - (left + 2);
        int v = (int)bits(at, n - 1);
        if (v < spare) {
            at += n - 1;
        } else {
            v = (int)bits(at, n);
            if (v >= 1 << (n - 1))
                v -= spare;
            at += n;
        }
        counts[symbol++] = (int16_t)(v - 1);
        left -= v == 0 ? 1 : v - 1;
        if (left < 0)
            return 0;
        for (uint32_t r = v == 1 ? 3 : 0; r == 3;) {
            r = bits(at, 2);
            at += 2;
            symbol += (int)r;
            if (symbol > max_symbol + 3)
                return 0;
        }
    }
    return symbol <= max_symbol + 1 && (at + 7) / 8 <= limit ? (at + 7) / 8 : 0;
}

static bool reference_table(const uint8_t* src, uint32_t limit, uint32_t mode, uint32_t table,
                            std::vector<cell>* cells, uint32_t* log)
{
    int16_t counts[64] = {0};
    if (mode == DAMACY__ZSTD_MODE_RLE) {
        const uint32_t max = table == DAMACY__ZSTD_LL ? 35 : table == DAMACY__ZSTD_OF ? 31 : 52;
        *log = 0;
        cells->assign(1, cell{limit ? src[0] : 255u, 0, 0});
        return limit != 0 && src[0] <= max;
    }
    if (mode == DAMACY__ZSTD_PREDEFINED) {
        *log = table == DAMACY__ZSTD_OF ? 5 : 6;
        for (int i = 0; i < (table == DAMACY__ZSTD_LL   ? 36
                             : table == DAMACY__ZSTD_OF ? 29
                                                        : 53);
             i++)
            counts[i] = table == DAMACY__ZSTD_LL   ? damacy__fse_default_ll[i]
                        : table == DAMACY__ZSTD_OF ? damacy__fse_default_of[i]
                                                   : damacy__fse_default_ml[i];
    } else if (reference_counts(src, limit, table, counts, log) == 0) {
        return false;
    }
    const uint32_t size = 1u << *log;
    uint32_t high = size, next[64], at = 0;
    cells->assign(size, cell{0, 0, 0});
    for (uint32_t s = 0; s < 64; s++) {
        next[s] = counts[s] < 0 ? 1 : (uint32_t)counts[s];
        if (counts[s] < 0)
            (*cells)[--high].code = s;
    }
    for (uint32_t s = 0; s < 64; s++)
        for (int i = 0; i < counts[s]; i++) {
            (*cells)[at].code = s;
            do
                at = (at + (size >> 1) + (size >> 3) + 3) & (size - 1);
            while (at >= high);
        }
    for (cell& c : *cells) {
        const uint32_t x = next[c.code]++;
        while (x >> (*log - c.width) == 0)
            c.width++;
        c.base = (x << c.width) - size;
    }
    return true;
}

struct reader { // a backward stream
    const uint8_t* src;
    int64_t left; // bits
    uint64_t take(uint32_t n)
    {
        uint64_t v = 0;
        left -= n;
        for (uint32_t i = 0; i < n; i++)
            if (left + i >= 0)
                v |= (uint64_t)(src[(left + i) / 8] >> ((left + i) & 7) & 1) << i;
        return v;
    }
};

// A code has all values up to the next one's first; the last has 16 bits.
static uint32_t extra_bits(bool is_ml, uint32_t code)
{
    const uint32_t* base = is_ml ? damacy__fse_base_ml : damacy__fse_base_ll;
    return code == (is_ml ? 52u : 35u) ? 16 : 31 - damacy__clz(base[code + 1] - base[code]);
}

static sequences reference_decode(const std::vector<damacy__zstd_block>& blocks, uint32_t index)
{
    const damacy__zstd_block& b = blocks[index];
    sequences r = {false, {}, {}, 0, {0, 0, 0}, -1, 0, 0, 0};
    std::vector<cell> tables[3];
    uint32_t logs[3], state[3];
    for (uint32_t t = 0; t < 3; t++) {
        const damacy__zstd_block& d = blocks[b.tables[t]];
        if (d.bits_size == 0 || b.bits_size == 0 ||
            !reference_table((const uint8_t*)d.sequence_src + d.table_at[t],
                             d.sequence_size - d.table_at[t], d.modes >> 2 * t & 3, t, &tables[t],
                             &logs[t]))
            return r;
    }
    const uint8_t* src = (const uint8_t*)b.sequence_src + b.bits_at;
    const uint32_t last = src[b.bits_size - 1];
    if (last == 0)
        return r;
    reader in = {src, 8 * (int64_t)b.bits_size - 8 + 31 - __builtin_clz(last)};
    for (uint32_t t = 0; t < 3; t++)
        state[t] = (uint32_t)in.take(logs[t]);
    uint64_t out = 0, literals = 0;
    uint32_t rep[3];
    for (uint32_t k = 0; k < 3; k++)
        rep[k] = DAMACY__ZSTD_D_SYMBOLIC | k << 18 | 0x3ffff;
    for (uint32_t i = 0; i < b.n_sequences; i++) {
        const int64_t before = in.left;
        const cell l = tables[0][state[0]], o = tables[1][state[1]], m = tables[2][state[2]];
        const uint64_t value = (1ull << o.code) + in.take(o.code);
        const uint64_t ml = damacy__fse_base_ml[m.code] + in.take(extra_bits(true, m.code));
        const uint64_t ll = damacy__fse_base_ll[l.code] + in.take(extra_bits(false, l.code));
        uint32_t offset;
        if (value > 3) {
            if (value - 3 > DAMACY__ZSTD_OFFSET_MAX)
                return r;
            offset = (uint32_t)value - 3;
            rep[2] = rep[1];
            rep[1] = rep[0];
        } else {
            const uint32_t k = (uint32_t)value - (ll ? 1 : 0);
            offset = k < 3 ? rep[k] : rep[0] - 1;
            if (k >= 2)
                rep[2] = rep[1];
            if (k >= 1)
                rep[1] = rep[0];
        }
        rep[0] = offset;
        if (offset == 0 || in.left < 0 || out + ll + ml > DAMACY__ZSTD_BLOCK_MAX)
            return r;
        r.by_sequence.push_back(out | literals << 17 | (uint64_t)offset << 34);
        if (ll)
            r.records.push_back(out | (ll - 1) << 17 | (DAMACY__ZSTD_D_LITERALS | literals) << 34);
        out += ll;
        literals += ll;
        r.records.push_back(out | (ml - 1) << 17 | (uint64_t)offset << 34);
        out += ml;
        if (i + 1 < b.n_sequences) {
            state[0] = l.base + (uint32_t)in.take(l.width);
            state[2] = m.base + (uint32_t)in.take(m.width);
            state[1] = o.base + (uint32_t)in.take(o.width);
            r.next = std::max(r.next, l.width + m.width + o.width);
        }
        r.widest = std::max<uint64_t>(r.widest, (uint64_t)(before - in.left));
    }
    r.left = in.left;
    r.literals = literals;
    if (in.left != 0 || literals > b.n_literals || out + b.n_literals - literals > b.max_size)
        return r;
    if (literals < b.n_literals) {
        r.records.push_back(out | (b.n_literals - literals - 1) << 17 |
                            (DAMACY__ZSTD_D_LITERALS | literals) << 34);
        r.by_sequence.push_back(out | literals << 17);
    }
    r.good = true;
    r.size = (uint32_t)(out + b.n_literals - literals);
    std::copy(rep, rep + 3, r.repeat);
    return r;
}

// ---- frames to blocks ----

// A copy that ends where its allocation ends, `skew` bytes after a multiple of 16.
struct frame {
    std::unique_ptr<uint8_t[]> memory;
    uint8_t* src;
    size_t size;
    frame(const bytes& from, size_t skew)
        : memory(new uint8_t[from.size() + skew]), src(memory.get() + skew), size(from.size())
    {
        if (size)
            memcpy(src, from.data(), size);
    }
};

// Where the tables of a block lie: what an earlier stage fills in. A broken one leaves bits_size 0.
static void find_tables(damacy__zstd_block* b)
{
    const uint8_t* src = (const uint8_t*)b->sequence_src;
    uint32_t at = 0;
    b->bits_size = 0;
    for (uint32_t t = 0; t < 3; t++) {
        const uint32_t mode = b->modes >> 2 * t & 3;
        b->table_at[t] = 0;
        if (mode == DAMACY__ZSTD_MODE_RLE || mode == DAMACY__ZSTD_MODE_FSE) {
            int16_t counts[64];
            uint32_t log, size = 1;
            b->table_at[t] = at;
            if (mode == DAMACY__ZSTD_MODE_FSE)
                size = reference_counts(src + at, b->sequence_size - at, t, counts, &log);
            if (size == 0 || size > b->sequence_size - at)
                return;
            at += size;
        }
    }
    b->bits_at = at;
    b->bits_size = b->sequence_size - at;
}

// Appends the blocks with sequences of a frame, as far as its headers are good.
static void parse(const frame& f, uint32_t job, std::vector<damacy__zstd_block>* out)
{
    const uint8_t *s = f.src, *end = f.src + f.size;
    uint32_t owner[3] = {DAMACY__ZSTD_NONE, DAMACY__ZSTD_NONE, DAMACY__ZSTD_NONE};
    if (f.size < 6)
        return;
    const uint32_t fhd = s[4], single = fhd >> 5 & 1, fcs = fhd >> 6;
    size_t at = 5 + !single + (fhd & 3) + ((fhd & 3) == 3) + (fcs ? 1u << fcs : single);
    for (bool last = false; !last && at + 3 <= f.size;) {
        const uint32_t h = s[at] | s[at + 1] << 8 | s[at + 2] << 16, type = h >> 1 & 3,
                       size = h >> 3;
        at += 3;
        last = h & 1;
        if (type != 2) {
            at += type == 1 ? 1 : size;
            continue;
        }
        if (at + size > f.size || size < 3)
            return;
        const uint8_t *p = s + at, *block_end = p + size;
        at += size;
        const uint32_t kind = p[0] & 3, format = p[0] >> 2 & 3;
        uint64_t v = 0;
        for (int i = 0; i < 5 && p + i < end; i++)
            v |= (uint64_t)p[i] << 8 * i;
        uint32_t n_literals, skip;
        if (kind < 2) {
            const uint32_t n = format == 1 ? 2 : format == 3 ? 3 : 1;
            n_literals = (uint32_t)(n == 1   ? v >> 3 & 31
                                    : n == 2 ? v >> 4 & 4095
                                             : v >> 4 & 0xfffff);
            skip = n + (kind ? 1 : n_literals);
        } else {
            const uint32_t n = format < 2 ? 3 : format + 2, width = n == 3 ? 10 : n == 4 ? 14 : 18;
            n_literals = (uint32_t)(v >> 4 & ((1u << width) - 1));
            skip = n + (uint32_t)(v >> (4 + width) & ((1u << width) - 1));
        }
        p += skip;
        if (n_literals > DAMACY__ZSTD_BLOCK_MAX || block_end - p < 2 || skip > size)
            return;
        uint32_t n = *p++;
        if (n == 0)
            continue;
        if (n == 255 && block_end - p >= 3) {
            n = p[0] + 256 * p[1] + 0x7f00;
            p += 2;
        } else if (n >= 128 && block_end - p >= 2) {
            n = (n - 128) * 256 + *p++;
        }
        if (3 * n + n_literals > DAMACY__ZSTD_BLOCK_MAX)
            return;
        damacy__zstd_block b;
        memset(&b, 0, sizeof b);
        b.type = DAMACY__ZSTD_SEQUENCES;
        b.frame = job;
        b.n_literals = n_literals;
        b.n_sequences = n;
        b.max_size = DAMACY__ZSTD_BLOCK_MAX;
        b.record_capacity = std::min(2 * n, n + n_literals) + 1;
        b.modes = (uint8_t)((*p >> 6 & 3) | (*p >> 4 & 3) << 2 | (*p >> 2 & 3) << 4);
        p++;
        b.sequence_src = (uint64_t)(uintptr_t)p;
        b.sequence_size = (uint32_t)(block_end - p);
        for (uint32_t t = 0; t < 3; t++) {
            if ((b.modes >> 2 * t & 3) != DAMACY__ZSTD_MODE_REPEAT)
                owner[t] = (uint32_t)out->size();
            if (owner[t] == DAMACY__ZSTD_NONE)
                return;
            b.tables[t] = owner[t];
        }
        find_tables(&b);
        out->push_back(b);
    }
}

// ---- the stage ----

struct totals {
    uint64_t n_blocks, n_good, n_sequences;
    uint64_t n_moved; // blocks that had less room than they needed
};

struct stage {
    void (*run)(const damacy__zstd_wave& w);
    bool by_sequence; // the kind of records that it makes
};

// In a narrow shape lanes of the walk that have no block walk, too, in the columns of others.
template <class S> static void tell_watch()
{
    if (simt::g.watch && !S::WIDE)
        simt::g.watch->idle = S::LANES;
}
template <class S> static void run_shape(const damacy__zstd_wave& w)
{
    tell_watch<S>();
    simt::launch(dim3(1 + (unsigned)(simt::random() % 3)), dim3(DAMACY__FSE_THREADS), S::SIZE,
                 [&] { damacy__fse_run_even<S>(w, 0); });
}
// A plan with wide groups between narrow ones: both shapes in one CTA, one after the other.
template <bool BY_SEQUENCE> static void run_mixed(const damacy__zstd_wave& w)
{
    typedef damacy__fse_shape<4, 6, 8, BY_SEQUENCE> narrow;
    typedef damacy__fse_shape<8, 6, 16, BY_SEQUENCE> wide;
    const uint32_t n = ((const damacy__zstd_counters*)(uintptr_t)w.counters)->n_sequence_blocks;
    damacy__fse_plan plan;
    plan.n = n;
    plan.n_lanes = 1 + (uint32_t)(simt::random() % narrow::LANES);
    plan.n_wide_lanes = 1 + (uint32_t)(simt::random() % wide::LANES);
    plan.wide = (uint32_t)(simt::random() % (n / plan.n_lanes + 1)) * plan.n_lanes;
    const uint32_t n_ctas = 1 + (uint32_t)(simt::random() % 3);
    const uint32_t most = std::min(n - plan.wide, n_ctas * plan.n_wide_lanes);
    plan.wide_end = plan.wide + (uint32_t)(simt::random() % (most + 1));
    tell_watch<narrow>();
    simt::launch(dim3(n_ctas), dim3(DAMACY__FSE_THREADS), wide::SIZE,
                 [&] { damacy__fse_run<narrow, wide>(w, plan, 0); });
}
// More CTAs than groups, on any multiprocessors: as many stay as are needed.
static void run_spare(const damacy__zstd_wave& w)
{
    typedef damacy__fse_shape<4, 6, 8> narrow;
    const uint32_t n = ((const damacy__zstd_counters*)(uintptr_t)w.counters)->n_sequence_blocks;
    damacy__fse_plan plan;
    plan.n = n;
    plan.n_lanes = plan.n_wide_lanes = narrow::LANES;
    plan.wide = plan.wide_end = 0;
    const uint32_t n_ctas = n / narrow::LANES + 2 + (uint32_t)(simt::random() % 3);
    damacy__zstd_wave early = w;
    early.flags |= DAMACY__ZSTD_FLAG_EARLY;
    tell_watch<narrow>();
    simt::launch(dim3(n_ctas), dim3(DAMACY__FSE_THREADS), narrow::SIZE,
                 [&] { damacy__fse_run<narrow, narrow>(early, plan, 0); });
}
template <bool BY_SEQUENCE> static void run_stage(const damacy__zstd_wave& w)
{
    simt::launch(dim3(2), dim3(DAMACY__FSE_THREADS), DAMACY__SHARED_MAX, [&] {
        DAMACY__DYNAMIC_SHARED(shared);
        damacy__zstd_fse<BY_SEQUENCE>(w, shared);
    });
}
static const stage stages[] = {{run_shape<damacy__fse_shape<8, 6, 32>>, false},
                               {run_shape<damacy__fse_shape<8, 6, 16>>, false},
                               {run_shape<damacy__fse_shape<4, 7, 16>>, false},
                               {run_shape<damacy__fse_shape<4, 6, 16>>, false},
                               {run_shape<damacy__fse_shape<4, 6, 8>>, false},
                               {run_shape<damacy__fse_shape<4, 5, 16>>, false},
                               {run_mixed<false>, false},
                               {run_spare, false},
                               {run_stage<false>, false},
                               {run_shape<damacy__fse_shape<8, 6, 32, true>>, true},
                               {run_shape<damacy__fse_shape<4, 7, 16, true>>, true},
                               {run_mixed<true>, true},
                               {run_stage<true>, true}};
static const uint32_t n_stages = sizeof stages / sizeof stages[0];

// Gives a part of the blocks less room, as where they have more records than were likely.
static void take_room(std::vector<damacy__zstd_block>* blocks, uint64_t* seed)
{
    for (damacy__zstd_block& b : *blocks) {
        const uint64_t r = test_random(seed);
        if (r % 4)
            b.record_capacity = (uint32_t)((r >> 8) % (b.record_capacity + 1));
    }
}

// A block that has moved has room for exactly its records, which is nobody else's.
static void check_moved(const damacy__zstd_block& b, uint64_t n_spare, std::vector<bool>* is_taken)
{
    CHECK_EQ(b.record_capacity, b.n_records);
    CHECK(b.first_record % 16 == 0 && b.first_record + b.n_records <= n_spare);
    for (uint64_t k = b.first_record; k < b.first_record + b.n_records; k++) {
        CHECK(!(*is_taken)[k]);
        (*is_taken)[k] = true;
    }
}

// Decodes the blocks with one variant and compares everything with the reference. n_spare: records
// for which the wave has room beside those of the blocks.
static void check_blocks(const std::vector<frame>& frames, std::vector<damacy__zstd_block> blocks,
                         const stage& how, totals* sum, uint64_t n_spare = 0)
{
    std::vector<damacy__job> jobs(frames.size());
    std::vector<damacy__zstd_frame> table(frames.size());
    std::vector<uint64_t> errors(frames.size(), DAMACY__ZSTD_NO_ERROR);
    std::vector<uint32_t> order(blocks.size());
    damacy__zstd_counters counters;
    damacy__zstd_wave w;
    uint64_t n_records = 0;
    memset(&counters, 0, sizeof counters);
    memset(&w, 0, sizeof w);
    memset((void*)jobs.data(), 0, jobs.size() * sizeof jobs[0]);
    memset((void*)table.data(), 0, table.size() * sizeof table[0]);
    for (uint32_t i = 0; i < frames.size(); i++) {
        jobs[i].src = (uint64_t)(uintptr_t)frames[i].src;
        jobs[i].src_size = frames[i].size;
        table[i].job = i;
    }
    for (uint32_t i = 0; i < blocks.size(); i++) {
        order[i] = i;
        blocks[i].first_record = n_spare + n_records;
        n_records += (blocks[i].record_capacity + 15) & ~15u;
    }
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return blocks[a].n_sequences > blocks[b].n_sequences;
    });
    std::vector<uint64_t> records(n_spare + n_records, 0x5a5a5a5a5a5a5a5aull);
    std::vector<bool> is_taken(n_spare);
    const std::vector<damacy__zstd_block> before = blocks;
    counters.n_sequence_blocks = (uint32_t)blocks.size();
    w.jobs = (uint64_t)(uintptr_t)jobs.data();
    w.errors = (uint64_t)(uintptr_t)errors.data();
    w.counters = (uint64_t)(uintptr_t)&counters;
    w.frames = (uint64_t)(uintptr_t)table.data();
    w.blocks = (uint64_t)(uintptr_t)blocks.data();
    w.sequence_order = (uint64_t)(uintptr_t)order.data();
    w.records = (uint64_t)(uintptr_t)records.data();
    w.max_records = n_spare + n_records;
    counters.n_records = n_records;
    how.run(w);

    std::vector<bool> job_bad(frames.size(), false);
    for (uint32_t i = 0; i < blocks.size(); i++) {
        const damacy__zstd_block& b = blocks[i];
        const sequences want = reference_decode(before, i);
        const uint64_t *got = records.data() + b.first_record,
                       *first = records.data() + before[i].first_record;
        const uint32_t room = before[i].record_capacity;
        for (uint32_t k = room; k < ((room + 15) & ~15u); k++)
            CHECK(first[k] == 0x5a5a5a5a5a5a5a5aull);
        sum->n_blocks++;
        if (b.first_record != before[i].first_record) {
            check_moved(b, n_spare, &is_taken);
            sum->n_moved++;
        }
        if (!want.good) {
            CHECK_EQ(b.size, 0);
            CHECK_EQ(b.n_records, 0);
            if (b.bits_size)
                job_bad[b.frame] = true;
            continue;
        }
        sum->n_good++;
        sum->n_sequences += b.n_sequences;
        CHECK_EQ(b.size, want.size);
        const std::vector<uint64_t>& all = how.by_sequence ? want.by_sequence : want.records;
        CHECK_EQ(b.n_records, all.size());
        for (uint32_t k = 0; k < b.n_records; k++) {
            CHECK_EQ(got[k], all[k]);
            const uint32_t d = (uint32_t)(got[k] >> 34);
            if (k >= b.n_symbolic && !(d & DAMACY__ZSTD_D_LITERALS))
                CHECK(d < DAMACY__ZSTD_D_SYMBOLIC);
        }
        for (uint32_t k = 0; k < 3; k++)
            CHECK_EQ(b.repeat_out[k], want.repeat[k]);
    }
    for (uint32_t i = 0; i < frames.size(); i++)
        CHECK_EQ(errors[i] != DAMACY__ZSTD_NO_ERROR, job_bad[i]);
}

// ---- data ----

static bytes make_data(uint32_t kind, size_t size, uint64_t* seed)
{
    static const char* const words[] = {"chunk ",  "shard ", "codec ", "array ", "voxel ",
                                        "stream ", "batch ", "a ",     "of ",    "the "};
    bytes out;
    while (out.size() < size) {
        const uint64_t r = test_random(seed);
        if (kind == 0) { // dim camera image
            const uint32_t v = 100 + (uint32_t)((r & 15) + (r >> 4 & 15) + (r >> 8 & 7)) / 2;
            out.push_back((uint8_t)v);
            out.push_back((uint8_t)(v >> 8));
        } else if (kind == 1) { // text
            const char* word = words[r % 10];
            out.insert(out.end(), word, word + strlen(word));
        } else if (kind == 2) { // runs and copies from far and near
            const bool copy = (r & 3) != 0 && !out.empty();
            const size_t n = 1 + (r >> 8) % 40, from = out.empty() ? 0 : (r >> 20) % out.size();
            for (size_t i = 0; i < n; i++)
                out.push_back(copy ? out[from + i] : (uint8_t)(r >> (i & 31)));
        } else { // mostly background
            const bool on = (r & 63) == 0;
            out.push_back(on ? (uint8_t)(r >> 8) : 0);
            out.push_back(on ? 1 : 0);
        }
    }
    out.resize(size);
    return out;
}

static bytes compress(const bytes& data, int level)
{
    bytes out(ZSTD_compressBound(data.size()));
    out.resize(ZSTD_compress(out.data(), out.size(), data.data(), data.size(), level));
    return out;
}

// The frames of a corpus.
static std::vector<bytes> corpus(const char* name)
{
    std::vector<bytes> out;
    for (const corpus_file& file : corpus_load(name))
        out.push_back(file.content);
    CHECK(!out.empty());
    return out;
}

// ---- tests ----

TEST(extra_bits_of_every_code)
{
    for (uint32_t code = 0; code < 53; code++) {
        CHECK_EQ(damacy__fse_extra_bits(DAMACY__ZSTD_ML, code), extra_bits(true, code));
        if (code < 36)
            CHECK_EQ(damacy__fse_extra_bits(DAMACY__ZSTD_LL, code), extra_bits(false, code));
        if (code < 32)
            CHECK_EQ(damacy__fse_extra_bits(DAMACY__ZSTD_OF, code), code);
    }
}

TEST(sequences_of_real_frames_equal_the_reference)
{
    uint64_t seed = test_seed();
    static const int levels[] = {1, 3, 9, 19};
    totals sum = {0, 0, 0, 0};
    for (uint32_t k = 0; k < n_stages; k++) {
        std::vector<frame> frames;
        std::vector<damacy__zstd_block> blocks;
        simt::g.seed = seed + k;
        for (uint32_t i = 0; i < 16; i++) {
            const size_t size = i & 1 ? 200000 : 1000 + test_random(&seed) % 60000;
            frames.emplace_back(compress(make_data(i / 4 % 4, size, &seed), levels[i % 4]), i);
            parse(frames.back(), i, &blocks);
        }
        check_blocks(frames, blocks, stages[k], &sum);
    }
    CHECK_EQ(sum.n_good, sum.n_blocks);
    CHECK(sum.n_sequences > 500000);
}

TEST(barriers_order_what_warps_hand_over_in_shared_memory)
{
    uint64_t seed = test_seed();
    totals sum = {0, 0, 0, 0};
    for (uint32_t k = 0; k < n_stages; k++) {
        simt::races races(simt::SHARED_MAX);
        std::vector<frame> frames;
        std::vector<damacy__zstd_block> blocks;
        simt::g.seed = seed + k;
        for (uint32_t i = 0; i < 12; i++) {
            const size_t size = 60000 + test_random(&seed) % 60000;
            frames.emplace_back(compress(make_data(i % 4, size, &seed), 3), i);
            parse(frames.back(), i, &blocks);
        }
        simt::g.watch = &races;
        check_blocks(frames, blocks, stages[k], &sum);
        simt::g.watch = nullptr;
        if (races.found)
            fprintf(stderr, "# stage %u: %s\n", k, races.first.c_str());
        CHECK_EQ(races.found, 0);
        CHECK(races.accesses > 1000000);
    }
    CHECK_EQ(sum.n_good, sum.n_blocks);
}

TEST(every_table_mode_of_generated_frames_is_decoded)
{
    static const char* const names[] = {"B_cs17_s1", "C_cs14_s1001", "D_smallblk_s2001",
                                        "A_big_s1"};
    totals sum = {0, 0, 0, 0};
    uint32_t n_modes[3][4] = {{0}};
    for (uint32_t k = 0; k < 4; k++) {
        std::vector<frame> frames;
        std::vector<damacy__zstd_block> blocks;
        const std::vector<bytes> files = corpus(names[k]);
        simt::g.seed = 99 + k;
        for (uint32_t i = 0; i < std::min<size_t>(files.size(), k == 3 ? 4 : 150); i++) {
            frames.emplace_back(files[i], i % 16);
            parse(frames.back(), i, &blocks);
        }
        for (const damacy__zstd_block& b : blocks)
            for (uint32_t t = 0; t < 3; t++)
                n_modes[t][b.modes >> 2 * t & 3]++;
        check_blocks(frames, blocks, stages[k % 2 ? k : n_stages - 1 - k], &sum);
    }
    CHECK_EQ(sum.n_good, sum.n_blocks);
    CHECK(sum.n_blocks > 1000);
    for (uint32_t t = 0; t < 3; t++)
        for (uint32_t mode = 0; mode < 4; mode++)
            CHECK(n_modes[t][mode] > 20);
}

// A stream from whose top `n` random bits are read, the same first ones for every n; one bit of
// `zeros` is set.
static bytes random_stream(uint32_t n, uint64_t seed, uint32_t zeros)
{
    bytes out(n / 8 + 1);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = n - 1 - i;
        out[at / 8] |= (uint8_t)((test_random(&seed) >> 40) % zeros == 0) << (at & 7);
    }
    out[n / 8] |= (uint8_t)(1u << (n & 7));
    return out;
}

// A block of n sequences whose section is all of the frame.
static damacy__zstd_block bare_block(const frame& f, uint32_t job, uint32_t modes, uint32_t n,
                                     uint32_t n_literals)
{
    damacy__zstd_block b;
    memset(&b, 0, sizeof b);
    b.type = DAMACY__ZSTD_SEQUENCES;
    b.frame = job;
    b.n_sequences = n;
    b.n_literals = n_literals;
    b.max_size = DAMACY__ZSTD_BLOCK_MAX;
    b.record_capacity = std::min(2 * n, n + n_literals) + 1;
    b.modes = (uint8_t)modes;
    b.sequence_src = (uint64_t)(uintptr_t)f.src;
    b.sequence_size = (uint32_t)f.size;
    for (uint32_t t = 0; t < 3; t++)
        b.tables[t] = job;
    find_tables(&b);
    return b;
}

TEST(sequences_of_more_bits_than_a_window_are_decoded)
{
    const uint32_t modes = DAMACY__ZSTD_MODE_RLE << 2 * DAMACY__ZSTD_OF; // lengths: predefined
    uint64_t seed = test_seed();
    totals sum = {0, 0, 0, 0};
    uint64_t widest = 0;
    for (uint32_t k = 0; k < n_stages; k++) {
        std::vector<frame> frames;
        std::vector<damacy__zstd_block> blocks;
        simt::g.seed = seed + k;
        for (uint32_t i = 0; i < 40; i++) {
            const uint64_t bits = test_random(&seed);
            const uint32_t zeros = i % 8 ? 2 : 32; // and then offsets like 2^28 + 1
            const uint8_t code = (uint8_t)(18 + i % 11);
            for (uint32_t n = 1 + (uint32_t)(bits >> 8) % 300, size = 40000; n; n -= (n + 7) / 8) {
                bytes section = random_stream(size, bits, zeros);
                section.insert(section.begin(), code);
                const frame f(section, i % 16);
                std::vector<damacy__zstd_block> one(1, bare_block(f, 0, modes, n, 1u << 17));
                const sequences r = reference_decode(one, 0);
                if (r.left < 0) // its lengths are too large for a block
                    continue;
                section = random_stream(size - (uint32_t)r.left, bits, zeros);
                section.insert(section.begin(), code);
                frames.emplace_back(section, i % 16);
                blocks.push_back(bare_block(frames.back(), (uint32_t)blocks.size(), modes, n,
                                            (uint32_t)r.literals));
                widest = std::max(widest, r.widest);
                break;
            }
        }
        check_blocks(frames, blocks, stages[k], &sum);
    }
    CHECK_EQ(sum.n_good, sum.n_blocks);
    CHECK(sum.n_blocks > 200);
    CHECK(widest > 58);
    printf("# %llu blocks of %llu sequences, %llu bits\n", (unsigned long long)sum.n_blocks,
           (unsigned long long)sum.n_sequences, (unsigned long long)widest);
}

TEST(the_widest_next_states_of_all_tables_at_once_are_decoded)
{
    const uint32_t modes = DAMACY__ZSTD_MODE_FSE * 0x15;
    uint64_t seed = test_seed();
    totals sum = {0, 0, 0, 0};
    bytes tables = one_cell_each(9, 0, 21, 0); // of literal lengths
    const bytes of = one_cell_each(8, 2, 27, 5), ml = one_cell_each(9, 0, 38, 1);
    tables.insert(tables.end(), of.begin(), of.end());
    tables.insert(tables.end(), ml.begin(), ml.end());
    for (uint32_t k = 0; k < n_stages; k++) {
        std::vector<frame> frames;
        std::vector<damacy__zstd_block> blocks;
        uint32_t n_widest = 0;
        simt::g.seed = seed + k;
        for (uint32_t i = 0; i < 40; i++) {
            const uint64_t bits = test_random(&seed);
            const uint32_t n = 3000, size = 100000;
            bytes section = tables, stream = random_stream(size, bits, 2);
            section.insert(section.end(), stream.begin(), stream.end());
            const frame f(section, i % 16);
            std::vector<damacy__zstd_block> one(1, bare_block(f, 0, modes, n, 1u << 17));
            const sequences r = reference_decode(one, 0);
            CHECK(r.left >= 0);
            section = tables;
            stream = random_stream(size - (uint32_t)r.left, bits, 2);
            section.insert(section.end(), stream.begin(), stream.end());
            frames.emplace_back(section, i % 16);
            blocks.push_back(
                bare_block(frames.back(), (uint32_t)blocks.size(), modes, n, (uint32_t)r.literals));
            n_widest += r.next == 9 + 8 + 9;
        }
        check_blocks(frames, blocks, stages[k], &sum);
        CHECK(n_widest > 5);
    }
    CHECK_EQ(sum.n_good, sum.n_blocks);
}

TEST(hostile_sequences_get_the_verdict_of_the_reference)
{
    uint64_t seed = test_seed();
    totals sum = {0, 0, 0, 0};
    const std::vector<bytes> files = corpus("D_smallblk_s2001");
    for (uint32_t round = 0; round < 60; round++) {
        std::vector<frame> frames;
        std::vector<damacy__zstd_block> blocks;
        for (uint32_t i = 0; i < 40; i++) {
            const size_t size = 200 + test_random(&seed) % 3000;
            frames.emplace_back(i % 2 ? compress(make_data(i / 2 % 4, size, &seed), 1 + (int)i % 19)
                                      : files[test_random(&seed) % files.size()],
                                i % 16);
            parse(frames.back(), i, &blocks);
        }
        for (damacy__zstd_block& b : blocks) {
            uint8_t* p = (uint8_t*)(uintptr_t)b.sequence_src;
            const uint64_t r = test_random(&seed), at = (r >> 8) % b.sequence_size;
            if ((r & 7) == 0)
                b.sequence_size = (uint32_t)at + 1;
            else if ((r & 7) == 1)
                b.n_literals = (uint32_t)(r >> 8 & 255);
            else if ((r & 7) == 2)
                b.max_size = 1000;
            else if ((r & 7) == 3)
                b.n_sequences = 1 + b.n_sequences * (uint32_t)(r >> 60) / 8;
            else if ((r & 7) == 4)
                for (uint32_t i = 0; i < b.sequence_size; i++)
                    p[i] = (uint8_t)test_random(&seed);
            else
                p[(r & 7) == 5 ? at % 16 % b.sequence_size : at] ^= (uint8_t)(1u << (r >> 40 & 7));
            if ((r >> 50 & 15) == 0)
                b.modes = (uint8_t)((b.modes & 0x2a) | (r >> 32 & 0x15));
            b.record_capacity = std::min(2 * b.n_sequences, b.n_sequences + b.n_literals) + 1;
        }
        for (damacy__zstd_block& b : blocks) {
            for (uint32_t t = 0; t < 3; t++) // RLE and predefined may have become REPEAT
                if (&blocks[b.tables[t]] == &b &&
                    (b.modes >> 2 * t & 3) == DAMACY__ZSTD_MODE_REPEAT)
                    b.modes = (uint8_t)(b.modes & ~(3u << 2 * t));
            find_tables(&b);
        }
        simt::g.seed = seed;
        check_blocks(frames, blocks, stages[round % n_stages], &sum);
    }
    printf("# %llu blocks, %llu good\n", (unsigned long long)sum.n_blocks,
           (unsigned long long)sum.n_good);
    CHECK(sum.n_good > 100 && sum.n_good < sum.n_blocks * 3 / 4);
}

// Some blocks of a group have too little room for their records.
TEST(blocks_of_more_records_than_were_likely_find_room)
{
    uint64_t seed = test_seed();
    totals sum = {0, 0, 0, 0};
    for (uint32_t round = 0; round < 5 * n_stages; round++) {
        std::vector<frame> frames;
        std::vector<damacy__zstd_block> blocks;
        uint64_t n_spare = 0;
        for (uint32_t i = 0; i < 40; i++) {
            const size_t size = 200 + test_random(&seed) % 3000;
            frames.emplace_back(compress(make_data(i % 4, size, &seed), 1 + (int)i % 19), i % 16);
            parse(frames.back(), i, &blocks);
        }
        for (const damacy__zstd_block& b : blocks)
            n_spare += (b.record_capacity + 15) & ~15u;
        take_room(&blocks, &seed);
        simt::g.seed = seed;
        check_blocks(frames, blocks, stages[round % n_stages], &sum, n_spare);
    }
    printf("# %llu blocks, %llu moved\n", (unsigned long long)sum.n_blocks,
           (unsigned long long)sum.n_moved);
    CHECK_EQ(sum.n_good, sum.n_blocks);
    CHECK(sum.n_moved > sum.n_blocks / 4 && sum.n_moved < sum.n_blocks);
}

// Description of a literal length table that begins with code 0 in `count` cells, or -1.
static uint32_t table_of_code_0(uint32_t log, int count, uint64_t after)
{
    const uint32_t left = 1u << log, spare = (2u << log) - (left + 2), v = (uint32_t)(count + 1);
    const uint32_t n = log + (v < spare ? 0 : 1);
    return (log - 5) | (v + (v >= 1u << log ? spare : 0)) << 4 | (uint32_t)(after << (4 + n));
}

TEST(sequences_that_are_likely_to_have_literals_are_counted_by_the_table)
{
    const uint32_t n = 30000;
    uint64_t seed = test_seed();
    for (uint32_t log = 5; log <= 9; log++) {
        for (int count = -1; count <= 1 << log; count++) {
            const uint32_t table = table_of_code_0(log, count, test_random(&seed));
            const uint32_t cells = (1u << log) - (uint32_t)std::max(count, 0) + DAMACY__ZSTD_MARGIN;
            const uint32_t likely = damacy__zstd_likely_runs(DAMACY__ZSTD_MODE_FSE, table, n);
            CHECK(likely <= n && likely + 1 >= std::min<uint64_t>(n, (uint64_t)n * cells >> log));
            CHECK(likely <= ((uint64_t)n * cells >> log) + 1);
        }
    }
    CHECK_EQ(damacy__zstd_likely_runs(DAMACY__ZSTD_MODE_FSE, 0xff5, n), n); // no such log
    CHECK_EQ(damacy__zstd_likely_runs(DAMACY__ZSTD_MODE_RLE, 0xff00, n), 0);
    CHECK_EQ(damacy__zstd_likely_runs(DAMACY__ZSTD_MODE_RLE, 0xff01, n), n);
    CHECK_EQ(damacy__zstd_likely_runs(DAMACY__ZSTD_PREDEFINED, 0, n), n);
    CHECK_EQ(damacy__zstd_likely_runs(DAMACY__ZSTD_MODE_REPEAT, 0, n), n);
}

// The plan of a device of n_ctas for blocks of these sizes, most sequences first; all agree on it.
static damacy__fse_plan plan_of(const std::vector<uint32_t>& sizes, uint32_t n_ctas,
                                uint32_t flags = DAMACY__ZSTD_FLAG_EARLY)
{
    std::vector<damacy__zstd_block> blocks(sizes.size());
    std::vector<uint32_t> order(sizes.size());
    std::vector<damacy__fse_plan> plans(n_ctas * 32u);
    damacy__zstd_wave w;
    memset(&w, 0, sizeof w);
    memset((void*)blocks.data(), 0, blocks.size() * sizeof blocks[0]);
    for (uint32_t i = 0; i < sizes.size(); i++) {
        order[i] = (uint32_t)sizes.size() - 1 - i;
        blocks[order[i]].n_sequences = sizes[i];
    }
    w.blocks = (uint64_t)(uintptr_t)blocks.data();
    w.sequence_order = (uint64_t)(uintptr_t)order.data();
    w.flags = flags;
    simt::launch(dim3(n_ctas), dim3(32), 0, [&] {
        plans[blockIdx.x * 32 + threadIdx.x] =
            damacy__fse_plan_mixed(w, (uint32_t)sizes.size(), 32, 8);
    });
    for (const damacy__fse_plan& p : plans)
        CHECK(memcmp(&p, &plans[0], sizeof p) == 0);
    return plans[0];
}

TEST(a_plan_takes_every_block_once_in_groups_that_fit)
{
    uint64_t seed = test_seed();
    uint32_t n_wide_plans = 0;
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t n_ctas = 1 + (uint32_t)(test_random(&seed) % 12);
        std::vector<uint32_t> sizes(1 + test_random(&seed) % (n_ctas * 32 * 6));
        const uint32_t kind = (uint32_t)(test_random(&seed) % 4), n = (uint32_t)sizes.size();
        const uint32_t n_large = (uint32_t)(test_random(&seed) % n);
        for (uint32_t i = 0; i < n; i++)
            sizes[i] = kind == 0   ? 30000
                       : kind == 1 ? (i < n_large ? 43690 : 9000)
                       : kind == 2 ? 1 + (uint32_t)(test_random(&seed) % 43690)
                                   : 1 + 40000 / (1 + i);
        std::sort(sizes.begin(), sizes.end(), [](uint32_t a, uint32_t b) { return a > b; });
        const damacy__fse_plan p = plan_of(sizes, n_ctas);
        std::vector<uint32_t> n_taken(n);
        for (uint32_t i = 0; i < n + 2; i++) {
            const damacy__fse_part narrow = damacy__fse_narrow_part(&p, i);
            CHECK(!narrow.is_wide && narrow.n <= 32);
            for (uint32_t k = 0; k < narrow.n; k++)
                n_taken[narrow.first + k]++;
        }
        for (uint32_t i = 0; i < n_ctas; i++) {
            const damacy__fse_part wide = damacy__fse_wide_part(&p, i);
            CHECK(wide.is_wide && wide.n <= 8);
            for (uint32_t k = 0; k < wide.n; k++)
                n_taken[wide.first + k]++;
        }
        CHECK(std::count(n_taken.begin(), n_taken.end(), 1u) == (long)n);
        CHECK(p.wide_end - p.wide <= 8 * n_ctas);
        n_wide_plans += p.wide_end > p.wide;
    }
    CHECK(n_wide_plans > 20 && n_wide_plans < 180);
}

// How many CTAs of 132 leave, wherever they are.
static uint32_t n_leaving(const damacy__fse_plan& plan, uint32_t flags)
{
    damacy__zstd_counters counters;
    damacy__zstd_wave w;
    uint32_t n = 0;
    memset(&counters, 0, sizeof counters);
    memset(&w, 0, sizeof w);
    w.counters = (uint64_t)(uintptr_t)&counters;
    w.flags = flags;
    simt::launch(dim3(132), dim3(1), 0, [&] { n += damacy__fse_leaves(w, &plan); });
    return n;
}

TEST(multiprocessors_without_a_group_are_left_to_literals)
{
    const uint32_t early = DAMACY__ZSTD_FLAG_EARLY;
    uint32_t most = 0;
    for (uint32_t round = 0; round < 50; round++) {
        const uint32_t n = n_leaving({2048, 32, 32, 0, 0}, early); // 64 groups
        CHECK(n <= 132 - 64);
        most = std::max(most, n);
    }
    CHECK(most > 40); // three of four, by chance
    CHECK_EQ(n_leaving({2048, 32, 32, 0, 0}, 0), 0); // no literals beside
    CHECK_EQ(n_leaving({2048, 32, 32, 0, 0}, DAMACY__ZSTD_FLAG_FSE_THROUGHPUT), 0); // other waves
    CHECK_EQ(n_leaving({4224, 32, 32, 0, 0}, early), 0);                            // a group each
    CHECK_EQ(n_leaving({1056, 8, 0, 0, 0}, early), 0);                              // wide
    CHECK_EQ(n_leaving({4224, 32, 8, 4096, 4224}, early), 0); // wide ones among them
}

// What a multiprocessor has begun with, it keeps until it is through: who leaves one must not be
// gone while groups are not taken, or the next CTA would begin there. Nor may it wait for ever.
TEST(who_leaves_waits_until_all_groups_are_taken)
{
    const damacy__fse_plan plan = {2048, 32, 32, 0, 0}; // 64 groups
    uint64_t seed = test_seed();
    for (const bool are_taken : {true, false}) {
        damacy__zstd_counters counters;
        damacy__zstd_wave w;
        uint32_t n_left = 0, n_early = 0;
        memset(&counters, 0, sizeof counters);
        memset(&w, 0, sizeof w);
        w.counters = (uint64_t)(uintptr_t)&counters;
        w.flags = DAMACY__ZSTD_FLAG_EARLY;
        simt::g.seed = test_random(&seed);
        simt::launch_together(dim3(132), dim3(1), 0, 132, [&] {
            if (damacy__fse_leaves(w, &plan)) {
                n_left++;
                n_early += counters.ticket[0] < 64;
            } else if (are_taken) {
                for (uint32_t i = 0; i < blockIdx.x % 64; i++) // at other work
                    DAMACY__FSE_PAUSE();
                damacy__atomic_add(&counters.ticket[0], 1);
            }
        });
        CHECK(n_left > 40 && n_left <= 132 - 64);
        CHECK_EQ(n_early, are_taken ? 0 : n_left);
    }
}

TEST(large_blocks_that_are_left_after_full_rounds_are_wide)
{
    std::vector<uint32_t> sizes(4600, 17000);
    sizes.resize(9200, 4600);
    const damacy__fse_plan text = plan_of(sizes, 132);
    CHECK_EQ(text.wide, 4224); // 132 groups of 32
    CHECK(text.wide_end >= 4600 && text.wide_end < 4600 + 64);
    CHECK_EQ(text.n_lanes, 32);
    CHECK_EQ(text.n_wide_lanes, 8);

    const damacy__fse_plan rest = plan_of(std::vector<uint32_t>(4224 + 500, 10000), 132);
    CHECK_EQ(rest.wide, 4224);
    CHECK_EQ(rest.wide_end, 4724);
    CHECK_EQ(rest.n_wide_lanes, 4); // all CTAs take part
    const damacy__fse_plan full = plan_of(std::vector<uint32_t>(4224, 10000), 132);
    CHECK_EQ(full.wide, full.wide_end);
    const damacy__fse_plan half = plan_of(std::vector<uint32_t>(2112, 10000), 132);
    CHECK_EQ(half.wide, half.wide_end);
    CHECK_EQ(half.n_lanes, 32); // 66 CTAs; literals have the rest
    CHECK_EQ(plan_of(std::vector<uint32_t>(2112, 10000), 132, 0).n_lanes, 16); // or come later
}

TEST_MAIN
