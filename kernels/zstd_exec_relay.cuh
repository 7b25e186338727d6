// Sequence execution for fewer frames than would fill the device: all multiprocessors share the
// tiles of all frames (zstd_exec_cut.cuh). Blocks of threads take tiles by ticket: the first tile
// of every frame, then the second of every frame, and so on.
//
// A tile does at once what needs no byte of the tiles before it that are not done yet: literals and
// matches of older data. Then it waits for the tile before it, takes the other matches, finishes as
// other variants do and tells that it is done.
//
// Surprising: no block of threads has to run at the same time as another. A tile waits only for one
// of a lower ticket; tickets are given to blocks of threads that run, in order, and each works
// through its own in order. So the lowest ticket that is not done belongs to one that runs and has
// nothing to wait for. Tiles of a frame that has failed are told to be done like others.
#pragma once

#include "kernels/zstd_exec_cut.cuh"

// With a third as many frames as blocks of threads, or fewer, tiles wait for the one before most.
#define DAMACY__RELAY_HURRIES(n_frames) (3 * (n_frames) <= gridDim.x)

enum {                       // words of a mailbox
    DAMACY__RELAY_FRAME = 0, // index; NONE: no tile is left
    DAMACY__RELAY_BLOCK = 4,
    DAMACY__RELAY_TILE = 8,      // of the frame
    DAMACY__RELAY_DONE = 12,     // bytes of the frame that were there when it was asked
    DAMACY__RELAY_RECORDS = 16,  // address, 8 bytes
    DAMACY__RELAY_LITERALS = 24, // likewise
    DAMACY__RELAY_BASE = 32,     // likewise, of coordinate 0 plus coordinate of the first byte
    DAMACY__RELAY_LEFT = 40,     // records of the block from there on
    DAMACY__RELAY_PLACE = 44,    // of the block, coordinate
    DAMACY__RELAY_T0 = 48,       // coordinate
    DAMACY__RELAY_T1 = 52,
    DAMACY__RELAY_SIZE = 56,      // of the block, bytes
    DAMACY__RELAY_N_LITERALS = 60 // likewise
};

// Tiles and bytes of a frame that are in the output: tiles << 32 | end of the last.
DAMACY__INLINE uint64_t damacy__relay_done(const damacy__zstd_frame* f)
{
    return damacy__acquire(&f->done);
}

// The same tiles, to ask again and again: it orders nothing, and leaves the L1 cache alone.
DAMACY__INLINE uint32_t damacy__relay_peek(const damacy__zstd_frame* f)
{
#ifdef __CUDACC__
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0,[%1];" : "=l"(v) : "l"(&f->done) : "memory");
    return (uint32_t)(v >> 32);
#else
    return (uint32_t)(f->done >> 32);
#endif
}

DAMACY__INLINE void damacy__relay_tell(damacy__zstd_frame* f, uint32_t tiles, uint32_t bytes)
{
    damacy__release(&f->done, (uint64_t)tiles << 32 | bytes);
}

DAMACY__INLINE uint32_t damacy__relay_ticket(const damacy__zstd_wave& w)
{
    uint32_t ticket = 0;
    if (damacy__lane() == 0)
        ticket = damacy__atomic_add(&damacy__zstd_counts(w)->ticket[1], 1);
    return ticket;
}

// The last block of a frame with no more than `tile` tiles before it; a warp looks for it.
DAMACY__INLINE uint32_t damacy__relay_find(const uint32_t* before, uint32_t n, uint32_t tile)
{
    const uint32_t lane = damacy__lane();
    uint32_t at = 0;

    while (n > 128) {
        const uint32_t step = (n + 31) / 32, i = lane * step;
        const uint32_t hits = damacy__popc(damacy__ballot(i < n && before[at + i] <= tile)) - 1;
        at += hits * step;
        n = damacy__min(step, n - hits * step);
    }
    uint32_t found = 0;
    DAMACY__EXEC_UNROLL for (uint32_t k = 0; k < 128; k += 32) found +=
        damacy__popc(damacy__ballot(k + lane < n && before[at + k + lane] <= tile));
    return at + found - 1;
}

// Puts the tile of a ticket, or of the next that has one, into a mailbox; a warp does. Only lane 0
// has the ticket.
DAMACY__INLINE void damacy__relay_mail(const damacy__zstd_wave& w, uint32_t mail, uint32_t ticket)
{
    const uint32_t n = damacy__relay_listed(w), rounds = damacy__zstd_counts(w)->ticket[2];
    uint32_t frame, tile;

    for (;; ticket = damacy__relay_ticket(w)) {
        ticket = damacy__shfl(ticket, 0);
        tile = ticket / n;
        if (tile >= rounds) {
            damacy__sts32(mail + DAMACY__RELAY_FRAME, DAMACY__ZSTD_NONE);
            return;
        }
        frame = damacy__relay_list(w)[ticket % n];
        if (tile < damacy__zstd_frames(w)[frame].n_tiles)
            break;
    }
    const damacy__zstd_frame& f = damacy__zstd_frames(w)[frame];
    const uint32_t* before = (const uint32_t*)(uintptr_t)w.sequence_order + f.first_block;
    const uint32_t at = damacy__relay_find(before, f.n_blocks, tile);
    const damacy__zstd_block& b = damacy__zstd_blocks(w)[f.first_block + at];
    const uint32_t* tiles = damacy__relay_tiles(w, f.first_block + at);
    const uint32_t i = tile - before[at], begin = tiles[i], end = tiles[i + 1];
    const uint32_t n_tiles = tiles[DAMACY__RELAY_WORDS - 1], first = begin >> 17 << 2;
    const uint32_t place = ((uint32_t)f.dst & 15) + b.position;
    const uint64_t records = w.records + 8 * (b.first_record + first);
    if (damacy__lane() == 0) {
        damacy__sts32(mail + DAMACY__RELAY_FRAME, frame);
        damacy__sts32(mail + DAMACY__RELAY_BLOCK, f.first_block + at);
        damacy__sts32(mail + DAMACY__RELAY_TILE, tile);
        damacy__sts64(mail + DAMACY__RELAY_RECORDS, (uint32_t)records, (uint32_t)(records >> 32));
        damacy__sts64(mail + DAMACY__RELAY_LITERALS, (uint32_t)b.literals,
                      (uint32_t)(b.literals >> 32));
        damacy__sts64(mail + DAMACY__RELAY_BASE, (uint32_t)f.dst, (uint32_t)(f.dst >> 32));
        damacy__sts32(mail + DAMACY__RELAY_LEFT, b.n_records - first);
        damacy__sts32(mail + DAMACY__RELAY_PLACE, place);
        damacy__sts32(mail + DAMACY__RELAY_T0, place + (begin & 0x1ffff));
        damacy__sts32(mail + DAMACY__RELAY_T1, place + (i + 1 < n_tiles ? end & 0x1ffff : b.size));
        damacy__sts64(mail + DAMACY__RELAY_SIZE, b.size, b.n_literals);
    }
}

// What is there of the mailbox's frame, as late as possible. One thread.
DAMACY__INLINE void damacy__relay_ask(const damacy__zstd_wave& w, uint32_t mail)
{
    const uint32_t frame = damacy__lds32(mail + DAMACY__RELAY_FRAME);

    if (frame == DAMACY__ZSTD_NONE)
        return;
    const uint64_t done = damacy__relay_done(&damacy__zstd_frames(w)[frame]);
    const uint32_t tile = damacy__lds32(mail + DAMACY__RELAY_TILE);
    damacy__sts32(mail + DAMACY__RELAY_DONE,
                  (uint32_t)(done >> 32) >= tile ? DAMACY__ZSTD_NONE : (uint32_t)done);
}

// Waits for the tile before. One thread; a barrier must follow.
DAMACY__INLINE void damacy__relay_wait(const damacy__zstd_wave& w, uint32_t frame, uint32_t tile)
{
    damacy__zstd_frame* f = &damacy__zstd_frames(w)[frame];

    for (uint32_t i = 0; damacy__relay_peek(f) < tile; i++) {
        if (i == DAMACY__POLLS) {
            damacy__zstd_fail_job(w, f->job, 0, DAMACY__JOB_NOT_RUN);
            return;
        }
        DAMACY__PAUSE();
    }
    (void)damacy__relay_done(f);
}

DAMACY__INLINE uint64_t damacy__relay_address(uint32_t at)
{
    const damacy__u32x2 v = damacy__lds64(at);
    return (uint64_t)v.y << 32 | v.x;
}

// The tile of a mailbox.
struct damacy__relay_leg {
    damacy__exec_frame f; // base and begin alone
    damacy__exec_block b;
    damacy__exec_tile t;
};

template <class S> DAMACY__INLINE void damacy__relay_open(damacy__relay_leg* leg, uint32_t mail)
{
    const uint64_t dst = damacy__relay_address(mail + DAMACY__RELAY_BASE);
    const uint32_t t0 = damacy__lds32(mail + DAMACY__RELAY_T0);

    leg->f.base = dst & ~15ull;
    leg->f.begin = (uint32_t)dst & 15;
    leg->b.literals = damacy__relay_address(mail + DAMACY__RELAY_LITERALS);
    leg->b.begin = damacy__lds32(mail + DAMACY__RELAY_PLACE);
    leg->b.n_records = damacy__lds32(mail + DAMACY__RELAY_LEFT);
    leg->b.next = 0;
    leg->t.is_cut = false;
    leg->t.start = t0 & ~15u;
    leg->t.history = leg->f.base + leg->t.start;
    leg->t.t0 = (int32_t)(t0 & 15);
    leg->t.t1 = (int32_t)(damacy__lds32(mail + DAMACY__RELAY_T1) - leg->t.start);
}

template <class S> DAMACY__INLINE void damacy__relay_load(damacy__exec_records<S>* r, uint32_t mail)
{
    damacy__exec_block b;

    b.records = damacy__relay_address(mail + DAMACY__RELAY_RECORDS);
    b.n_records = damacy__lds32(mail + DAMACY__RELAY_LEFT);
    b.next = 0;
    b.begin = 0;
    b.end = damacy__lds32(mail + DAMACY__RELAY_SIZE);
    b.n_literals = damacy__lds32(mail + DAMACY__RELAY_N_LITERALS);
    damacy__exec_load<S>(r, &b);
}

// Matches whose sources were not there: those whose sources end at byte `done` of the frame or
// before. A warp takes 32, and of these 32 pieces of 8 bytes at a time.
template <class S, bool IS_LAST>
DAMACY__INLINE void damacy__relay_early(uint32_t shared, uint32_t n_early,
                                        const damacy__relay_leg* leg, uint32_t done)
{
    const uint32_t lane = damacy__lane(), ahead = leg->t.start - leg->f.begin;
    const uint64_t frame = leg->f.base + leg->f.begin;

    DAMACY__EXEC_NOUNROLL for (uint32_t i0 = threadIdx.x & ~31u; i0 < n_early; i0 += S::THREADS)
    {
        damacy__u32x2 v;
        v.x = v.y = 0;
        if (i0 + lane < n_early)
            v = damacy__lds64(shared + S::OWN + 8 * (S::RECORDS - 1 - i0 - lane));
        if (!IS_LAST) {
            if ((v.x & 0xffff) + (v.x >> 16) + ahead - v.y > done)
                v.x = 0;
            else if (v.x)
                damacy__sts32(shared + S::OWN + 8 * (S::RECORDS - 1 - i0 - lane), 0);
        }
        const uint32_t mine = ((v.x >> 16) + 7) / 8;
        const uint32_t end = damacy__sum_upto(mine, lane), all = damacy__shfl(end, 31);
        const uint32_t begin = end - mine;
        DAMACY__EXEC_NOUNROLL for (uint32_t k = 0; k < all; k += 32)
        {
            uint32_t owner = 0; // the first lane whose pieces end behind this one
            DAMACY__EXEC_UNROLL for (uint32_t d = 16; d > 0;
                                     d /= 2) if (damacy__shfl(end, owner + d - 1) <= k + lane)
                owner += d;
            const uint32_t place = damacy__shfl(v.x, owner), offset = damacy__shfl(v.y, owner);
            const uint32_t piece = k + lane - damacy__shfl(begin, owner);
            const uint32_t to = (place & 0xffff) + 8 * piece;
            const int32_t n = k + lane < all ? (int32_t)((place >> 16) - 8 * piece) : 0;
            const uint64_t from = frame + (to + ahead - offset);
            const damacy__exec_words words = damacy__exec_gather(from, n);
            damacy__exec_scatter<S::HAS_PAIRS>(shared + S::BYTES + to, words, (uint32_t)from * 8,
                                               n);
        }
    }
}

// Marks the bytes of the matches whose sources are not there, and the bytes before the tile in its
// first unit, so that what reads them is linked.
template <class S>
DAMACY__INLINE void damacy__relay_mark(uint32_t shared, uint32_t n_early, int32_t t0)
{
    if (threadIdx.x == 0)
        damacy__shared_or(shared + S::MARKS, damacy__exec_ones((uint32_t)t0));
    DAMACY__EXEC_NOUNROLL for (uint32_t i = threadIdx.x; i < n_early; i += S::THREADS)
        damacy__exec_mark_match<S>(shared,
                                   damacy__lds32(shared + S::OWN + 8 * (S::RECORDS - 1 - i)));
}

// Of the matches that read their tile, links those that cannot be copied, and takes them off OWN.
template <class S> DAMACY__INLINE void damacy__relay_link(uint32_t shared, uint32_t n_own)
{
    DAMACY__EXEC_NOUNROLL for (uint32_t i0 = threadIdx.x & ~31u; i0 < n_own; i0 += S::THREADS)
    {
        const uint32_t i = i0 + damacy__lane();
        const damacy__exec_match m = damacy__exec_own_load<S>(shared, i, n_own);
        bool links = false;
        uint32_t longer = damacy__ballot(m.n > DAMACY__EXEC_LONG);
        while (longer) {
            const uint32_t l = damacy__ctz(longer);
            const damacy__exec_match one = damacy__exec_match_of(m, l);
            longer &= longer - 1;
            if (!damacy__exec_is_there_long<S>(shared, one)) {
                damacy__exec_link_long<S>(shared, one);
                links = links || damacy__lane() == l;
            }
        }
        if (m.n > 0 && m.n <= DAMACY__EXEC_LONG && !damacy__exec_is_there<S>(shared, m)) {
            damacy__exec_link<S>(shared, m);
            links = true;
        }
        if (links)
            damacy__sts32(shared + S::OWN + 8 * i, 0);
        damacy__sync_warp();
    }
}

// What the workers do of a tile before it waits: chunks of segments whose sources are there, links,
// and matches whose sources have come to be there. In a hurry also copies inside the tile: all that
// reads a byte that is not there is linked then, which is more work but less to do afterwards.
template <class S>
DAMACY__INLINE void damacy__relay_ahead(const damacy__zstd_wave& w, uint32_t shared, uint32_t mail,
                                        const damacy__relay_leg* leg, uint32_t n_early,
                                        damacy__exec_used used, bool hurries)
{
    typedef typename S::work work;

    damacy__exec_chunks<work>(shared, used.n_chunks, leg->f.base + leg->f.begin, leg->b.literals);
    if (used.n_own) {
        damacy__exec_mark<work>(shared, used.n_own);
        if (hurries)
            damacy__relay_mark<work>(shared, n_early, leg->t.t0);
        damacy__sync_some(1, S::THREADS);
        if (hurries)
            damacy__exec_own<work>(shared, used.n_own);
        else
            damacy__relay_link<work>(shared, used.n_own);
    }
    if (threadIdx.x == 0 && n_early)
        damacy__relay_ask(w, mail);
    damacy__sync_some(2, S::THREADS);
    if (used.n_own) {
        const uint32_t n_listed = damacy__lds32(shared + S::CONTROL + DAMACY__EXEC_LISTED);
        if (n_listed)
            damacy__exec_chase<work, false>(shared, 0, n_listed);
    }
    if (n_early)
        damacy__relay_early<work, false>(shared, n_early, leg,
                                         damacy__lds32(mail + DAMACY__RELAY_DONE));
}

// What is left to do when the tiles before are there.
template <class S>
DAMACY__INLINE void damacy__relay_finish(uint32_t shared, damacy__relay_leg* leg, uint32_t n_early,
                                         damacy__exec_used* used, bool hurries)
{
    if ((int32_t)threadIdx.x < leg->t.t0 && leg->t.start + threadIdx.x >= leg->f.begin)
        damacy__sts8(shared + S::BYTES + threadIdx.x, // before the tile in its first unit
                     damacy__exec_byte(leg->t.history + threadIdx.x));
    damacy__relay_early<S, true>(shared, n_early, leg, 0);
    damacy__sync_block();
    if (used->n_own) {
        if (!hurries) {
            damacy__exec_own<S>(shared, used->n_own);
            damacy__sync_block();
        }
        used->n_listed = damacy__lds32(shared + S::CONTROL + DAMACY__EXEC_LISTED);
    }
    if (used->n_listed) {
        damacy__exec_chase<S, true>(shared, leg->t.history, used->n_listed);
        damacy__sync_block();
    }
    leg->f.begin = leg->t.start + (uint32_t)leg->t.t0; // bytes before it are another tile's
    damacy__exec_flush<S>(shared, &leg->f, &leg->t, true);
}

// A tile, from its records to the output; on the way the next is found and its records loaded.
template <class S>
DAMACY__INLINE void damacy__relay_run(const damacy__zstd_wave& w, uint32_t shared, uint32_t mail,
                                      uint32_t next, damacy__exec_records<S>* r, bool hurries)
{
    const bool is_worker = threadIdx.x < S::WORKERS;
    const uint32_t ticket = is_worker ? 0 : damacy__relay_ticket(w);
    const uint32_t frame = damacy__lds32(mail + DAMACY__RELAY_FRAME);
    const uint32_t tile = damacy__lds32(mail + DAMACY__RELAY_TILE);
    damacy__relay_leg leg;
    damacy__exec_used used;

    damacy__relay_open<S>(&leg, mail);
    const uint32_t end = leg.t.start + (uint32_t)leg.t.t1 - leg.f.begin;
    damacy__exec_segments<S>(shared, r, &leg.b, &leg.f, &leg.t,
                             damacy__lds32(mail + DAMACY__RELAY_DONE));
    damacy__sync_block();
    const damacy__u32x4 control = damacy__lds128(shared + S::CONTROL);
    const uint32_t n_early = damacy__lds32(shared + S::CONTROL + DAMACY__EXEC_EARLY);
    const bool is_bad = control.x != 0;
    used.n_own = is_bad ? 0 : control.z;
    used.n_chunks = is_bad ? 0 : control.w & 0xffff;
    used.n_listed = 0;
    if (is_worker) {
        damacy__relay_ahead<S>(w, shared, mail, &leg, is_bad ? 0 : n_early, used, hurries);
    } else {
        if (used.n_own)
            damacy__arrive_some(1, S::THREADS); // at the barriers of the workers
        damacy__arrive_some(2, S::THREADS);
        damacy__relay_mail(w, next, ticket);
        if (threadIdx.x == S::WORKERS)
            damacy__relay_wait(w, frame, tile);
    }
    damacy__sync_block();
    if (damacy__lds32(next + DAMACY__RELAY_FRAME) != DAMACY__ZSTD_NONE)
        damacy__relay_load<S>(r, next);
    if (!is_bad) {
        damacy__relay_finish<S>(shared, &leg, n_early, &used, hurries);
    } else if (threadIdx.x == 0) {
        const damacy__zstd_block& b =
            damacy__zstd_blocks(w)[damacy__lds32(mail + DAMACY__RELAY_BLOCK)];
        damacy__zstd_fail(w, b, b.sequence_src, DAMACY__JOB_BAD_OFFSET);
    }
    used.n_own = 1; // clears all
    damacy__exec_clear<S>(shared, &leg.t, used);
    if (threadIdx.x == 32)
        damacy__sts32(shared + S::CONTROL + DAMACY__EXEC_EARLY, 0);
    if (threadIdx.x == S::WORKERS)
        damacy__relay_ask(w, next);
    damacy__sync_block();
    if (threadIdx.x == S::WORKERS)
        damacy__relay_tell(&damacy__zstd_frames(w)[frame], tile + 1, end);
}

// Blocks of threads that help the n frames of the wide shape. With more each begins so early that
// most of what its tile reads is not there yet, which is worse the shorter segments are. Measured
// on an H200.
DAMACY__INLINE uint32_t damacy__relay_blocks(const damacy__zstd_wave& w, uint32_t n)
{
    const damacy__zstd_frame& first = damacy__zstd_frames(w)[damacy__relay_list(w)[0]];

    return (damacy__exec_density(first) > 140 ? 3 : 12) * n;
}

// A whole block of threads; `memory`: DAMACY__ZSTD_RELAY_SHARED bytes. Grid: any; best as many
// blocks of threads as run at once.
template <class S>
static __device__ void damacy__zstd_relay(const damacy__zstd_wave& w, uint8_t* memory)
{
    const uint32_t shared = DAMACY__DYNAMIC_BASE(memory), n = damacy__relay_listed(w);
    damacy__exec_records<S> r;
    uint32_t mail = shared + S::MAIL;

    if (n == 0 || damacy__zstd_counts(w)->ticket[2] == 0 || damacy__exec_is_wide(w) != S::IS_WIDE)
        return;
    if (S::IS_WIDE && blockIdx.x >= damacy__relay_blocks(w, n))
        return;
    if (shared != damacy__shared_address(memory)) { // the constant is wrong: better no result
        for (uint32_t i = threadIdx.x; i < n; i += S::THREADS)
            damacy__zstd_fail_job(w, damacy__zstd_frames(w)[damacy__relay_list(w)[i]].job, 0,
                                  DAMACY__JOB_UNSUPPORTED);
        return;
    }
    const bool hurries = DAMACY__RELAY_HURRIES(n);
    damacy__exec_init<S>(shared);
    if (threadIdx.x < 32) {
        damacy__relay_mail(w, mail, damacy__relay_ticket(w));
        damacy__sync_warp();
        if (threadIdx.x == 0)
            damacy__relay_ask(w, mail);
    }
    damacy__sync_block();
    if (damacy__lds32(mail + DAMACY__RELAY_FRAME) != DAMACY__ZSTD_NONE)
        damacy__relay_load<S>(&r, mail);
    while (damacy__lds32(mail + DAMACY__RELAY_FRAME) != DAMACY__ZSTD_NONE) {
        const uint32_t next = mail ^ 64;
        damacy__relay_run<S>(w, shared, mail, next, &r, hurries);
        mail = next;
    }
}

// Entry points for a shape of relays: the kernel that cuts, and one that executes, of which a
// multiprocessor is to hold `per` CTAs. Dynamic shared memory of the latter: the shape's
// RELAY_SIZE.
#define DAMACY__RELAY_CUT_ENTRY(name, shape)                                     \
    extern "C" __global__ __launch_bounds__(1024) void name(damacy__zstd_wave w) \
    {                                                                            \
        damacy__zstd_cut<shape>(w);                                              \
    }
#define DAMACY__RELAY_ENTRY(name, shape, per)                                                   \
    extern "C" __global__ __launch_bounds__(shape::THREADS, per) void name(damacy__zstd_wave w) \
    {                                                                                           \
        DAMACY__DYNAMIC_SHARED(shared);                                                         \
        damacy__zstd_relay<shape>(w, shared);                                                   \
    }
