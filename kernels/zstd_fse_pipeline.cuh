// The warps of a CTA that decodes sequences, at work on batches of them. In the throughput shape
//   warp 0      walks states                     batch b
//   warps 1, 2  alternate: values                batch b - 1, sums and records  batch b - 2
//   warps 3, 4  alternate: feed the rings        for batch b + 1
//   warps 5-7   copy records to device memory    batch b - 3
// and each hands over what the next one needs with an arrival at a barrier of its own. The latency
// shape has one barrier a batch, see damacy__fse_wide_pipeline.
#pragma once

#include "kernels/zstd_fse_extract.cuh"
#include "kernels/zstd_fse_finish.cuh"
#include "kernels/zstd_fse_wide.cuh"

#define DAMACY__FSE_THREADS 256
#define DAMACY__FSE_COPIERS 3u

// A batch of the second half: records to shared memory and where they go to the copying warp.
template <class S>
DAMACY__INLINE void damacy__fse_emit_batch(damacy__fse_values<S>* values, uint32_t shared,
                                           const damacy__fse_block* b, uint64_t records,
                                           uint32_t capacity, uint32_t batch)
{
    const uint32_t lane = damacy__lane(), done = batch * S::BATCH;
    const uint32_t info = shared + S::COPY + (batch & 1) * 16 * S::LANES + lane * 16;
    uint32_t n = 0, first = 0, n_sequences = 0;

    if (b->n > done) {
        const uint32_t to = shared + S::RECORDS + (batch & 1) * S::RECORDS_SIZE + lane * 16;
        damacy__fse_state s;
        damacy__fse_state_load(&s, shared + S::STATE + lane * 32);
        first = s.n_records;
        damacy__fse_emit<S>(&s, values, shared, to, b->n - done, &n);
        damacy__fse_state_save(&s, shared + S::STATE + lane * 32);
        // What exceeds the capacity is counted alone, see damacy__fse_find_room.
        n = damacy__min(first + n, capacity) - damacy__min(first, capacity);
        n_sequences = damacy__min(b->n - done, S::BATCH);
    }
    const uint64_t to = records + 8ull * first;
    damacy__fse_queue_write(info, (uint32_t)to, (uint32_t)(to >> 32), n, n_sequences);
}

// What the warps of the pipeline keep while they run.
template <class S> struct damacy__fse_role {
    damacy__fse_walk walk;
    damacy__fse_feed feed;
    damacy__fse_values<S> values;
    damacy__fse_seen seen;
    damacy__fse_sums sums; // and what follows: of the wide shape
    damacy__fse_state state;
    uint64_t records;
    uint32_t capacity;
};

// The end of a batch for a role. A warp comes to the barrier as one, and all of the block's come,
// so that whoever counts barriers (racecheck does) sees them in step.
#define damacy__fse_batch_done()                   \
    do {                                           \
        damacy__sync_warp();                       \
        damacy__sync_some(1, DAMACY__FSE_THREADS); \
    } while (0)

// Barriers of the pipeline, each for even and for odd batches. Who waits at one comes with
// damacy__fse_wait, all others with damacy__fse_tell.
enum {
    DAMACY__FSE_WALKED = 1,  // a batch is in the queue: walk to values
    DAMACY__FSE_NEXT = 3,    // its place there is free and its input there: values, feeder to walk
    DAMACY__FSE_AT = 5,      // the position of a batch is known: walk to feeder
    DAMACY__FSE_SUMS = 7,    // sums up to a batch are known: records to those of the next
    DAMACY__FSE_RECORDS = 9, // its records are in shared memory: records to copies
    DAMACY__FSE_COPIED = 11  // and in device memory: copies to records
};

// A warp comes as one: damacy__sync_warp before the first of several.
DAMACY__INLINE void damacy__fse_wait(uint32_t what, uint32_t batch, uint32_t warps)
{
    damacy__sync_together(what + (batch & 1), 32 * warps);
}

DAMACY__INLINE void damacy__fse_tell(uint32_t what, uint32_t batch, uint32_t warps)
{
    damacy__arrive_together(what + (batch & 1), 32 * warps);
}

// Values, then sums and records, of batches first, first + 2, ...
template <class S>
DAMACY__INLINE void damacy__fse_extract_batches(damacy__fse_role<S>* r, uint32_t shared,
                                                const damacy__fse_block* b, uint32_t n_batches,
                                                uint32_t first)
{
    const uint32_t lane = damacy__lane();
    const uint32_t queue = shared + S::QUEUE + first * S::QUEUE_SIZE + lane * 16;
    const bool here = S::LANES == 32 || lane < S::LANES;

    damacy__sync_warp();
    if (first < n_batches)
        damacy__fse_tell(DAMACY__FSE_NEXT, first, 3);
    DAMACY__NOUNROLL for (uint32_t i = first; i < n_batches; i += 2)
    {
        const uint32_t left = b->n - i * S::BATCH;
        damacy__fse_wait(DAMACY__FSE_WALKED, i, 2);
        if (here && b->n > i * S::BATCH) {
            if (left <= S::BATCH)
                r->seen.walked = damacy__fse_end<S>(queue, left - 1);
            damacy__fse_extract<S>(&r->values, shared, queue, &r->seen.max_offset);
        }
        damacy__sync_warp();
        if (i + 2 < n_batches)
            damacy__fse_tell(DAMACY__FSE_NEXT, i, 3);
        if (i > 0)
            damacy__fse_wait(DAMACY__FSE_SUMS, i - 1, 2);
        if (i > 1)
            damacy__fse_wait(DAMACY__FSE_COPIED, i, 1 + DAMACY__FSE_COPIERS);
        if (here)
            damacy__fse_emit_batch<S>(&r->values, shared, b, r->records, r->capacity, i);
        damacy__sync_warp();
        if (i + 1 < n_batches)
            damacy__fse_tell(DAMACY__FSE_SUMS, i, 2);
        damacy__fse_tell(DAMACY__FSE_RECORDS, i, 1 + DAMACY__FSE_COPIERS);
    }
}

// Input: steps first, first + 2, ... A step is done when its batch is walked, for the next one. All
// steps before it have asked for the words that their positions said, and nothing else.
template <class S>
DAMACY__INLINE void damacy__fse_feed_batches(const damacy__fse_feed* f, uint32_t shared,
                                             uint32_t ring, const damacy__fse_block* b,
                                             uint32_t n_batches, uint32_t first)
{
    const uint32_t lane = damacy__lane() & (S::LANES - 1);
    const uint32_t at = shared + S::POSITION + first * 4 * S::LANES + 4 * lane;
    const uint32_t before = shared + S::POSITION + (1 - first) * 4 * S::LANES + 4 * lane;
    damacy__fse_flight flight = {};

    damacy__sync_warp();
    if (first == 0)
        damacy__fse_tell(DAMACY__FSE_NEXT, 0, 3); // the ring has been filled
    DAMACY__NOUNROLL for (uint32_t i = first; i < n_batches; i += 2)
    {
        if (i)
            damacy__fse_wait(DAMACY__FSE_AT, i, 2);
        if (i + 1 == n_batches)
            return;
        const bool here = (S::LANES == 32 || damacy__lane() < S::LANES) && b->n > i * S::BATCH;
        const uint32_t end = damacy__fse_want<S>(damacy__lds32(at));
        uint32_t from = i ? damacy__fse_want<S>(damacy__lds32(before)) : f->filled;
        if (here)
            from = damacy__fse_feed_store<S>(f, &flight, from, end, ring);
        damacy__sync_warp();
        damacy__fse_tell(DAMACY__FSE_NEXT, i + 1, 3);
        if (here)
            damacy__fse_feed_load(f, &flight, from, end);
        damacy__sync_warp();
    }
}

// The pipeline of a group; n_batches is that of its largest block. Warps wait for what they need
// and not for all others: none takes equally long for every batch.
template <class S>
DAMACY__INLINE void damacy__fse_pipeline(damacy__fse_role<S>* r, uint32_t shared,
                                         damacy__fse_lane self, const damacy__fse_block* b,
                                         uint32_t n_batches)
{
    const uint32_t warp = threadIdx.x / 32;

    if (n_batches == 0)
        return;
    if (warp == 0) {
        const uint32_t position = shared + S::POSITION + 4 * damacy__lane();
        const bool here = S::LANES == 32 || damacy__lane() < S::LANES;
        damacy__fse_inputs inputs;
        damacy__fse_walk_load<S>(&inputs, &r->walk, shared, self.column);
        damacy__sync_warp();
        damacy__fse_wait(DAMACY__FSE_NEXT, 0, 3);
        DAMACY__NOUNROLL for (uint32_t i = 0;;)
        {
            damacy__fse_walk_batch<S>(&r->walk, &inputs, shared, self, b->n, i);
            damacy__sync_warp();
            damacy__fse_tell(DAMACY__FSE_WALKED, i, 2);
            if (++i == n_batches)
                break;
            damacy__fse_wait(DAMACY__FSE_NEXT, i, 3);
            damacy__fse_sts32_if(here, position + (i & 1) * 4 * S::LANES, r->walk.at);
            damacy__fse_tell(DAMACY__FSE_AT, i, 2);
        }
    } else if (warp == 1 || warp == 2) {
        damacy__fse_extract_batches<S>(r, shared, b, n_batches, warp - 1);
    } else if (warp == 3 || warp == 4) {
        damacy__fse_feed_batches<S>(&r->feed, shared, self.ring, b, n_batches, warp - 3);
    } else {
        damacy__sync_warp();
        DAMACY__NOUNROLL for (uint32_t i = 0; i < n_batches; i++)
        {
            damacy__fse_wait(DAMACY__FSE_RECORDS, i, 1 + DAMACY__FSE_COPIERS);
            damacy__fse_copy_slots<S>(shared, i, (warp + i) % DAMACY__FSE_COPIERS);
            damacy__sync_warp();
            if (i + 2 < n_batches)
                damacy__fse_tell(DAMACY__FSE_COPIED, i, 1 + DAMACY__FSE_COPIERS);
        }
    }
}

// The same for the wide shape:
//   warp 0      walks states                     batch b
//   warp 1      values                           batch b - 1
//   warp 5      sums and records                 batch b - 2
//   warp 2      offsets                          batch b - 3
//   warp 3      feeds the rings of input         for batch b + 3
//   warps 6, 7  copy records to device memory    batch b - 4
template <class S>
DAMACY__INLINE void damacy__fse_wide_pipeline(damacy__fse_role<S>* r, uint32_t shared,
                                              damacy__fse_lane self, const damacy__fse_block* b,
                                              uint32_t n_batches)
{
    const uint32_t warp = threadIdx.x / 32, lane = damacy__lane(), rounds = n_batches + 4;
    const bool here = lane < S::LANES;

    if (warp == 0) {
        damacy__fse_loads loads;
        loads.of.x = loads.of.y = loads.ml.x = loads.ml.y = loads.ll.x = loads.ll.y = loads.bits.x =
            loads.bits.y = 0;
        damacy__fse_wide_load<S>(b->n > 0, &loads, &r->walk, shared, self.ring - shared - S::RING);
        uint32_t i = 0;
        DAMACY__NOUNROLL while (i < n_batches)
        {
            damacy__fse_wide_walk<S>(&r->walk, &loads, shared, self, b->n, i++);
            damacy__fse_batch_done();
            if (S::BATCH >= 32)
                continue;
            if (i >= n_batches) // two a turn: a branch back waits for instructions
                break;
            damacy__fse_wide_walk<S>(&r->walk, &loads, shared, self, b->n, i++);
            damacy__fse_batch_done();
        }
        DAMACY__NOUNROLL for (; i < rounds; i++) damacy__fse_batch_done();
    } else if (warp == 1) {
        const uint32_t n = damacy__shfl(b->n, lane & (S::LANES - 1));
        for (uint32_t i = 0; i < rounds; i++) {
            if (i - 1 < n_batches)
                damacy__fse_wide_values<S>(&r->seen, shared, self, n, i - 1);
            damacy__fse_batch_done();
        }
    } else if (warp == 5) {
        for (uint32_t i = 0; i < rounds; i++) {
            if (i - 2 < n_batches)
                damacy__fse_wide_records<S>(&r->sums, shared, i - 2);
            damacy__fse_batch_done();
        }
    } else if (warp == 2) {
        for (uint32_t i = 0; i < rounds; i++) {
            if (here && i - 3 < n_batches)
                damacy__fse_wide_offsets<S>(&r->state, shared, r->records, r->capacity, i - 3);
            damacy__fse_batch_done();
        }
    } else if (warp == 3) {
        const uint32_t n = damacy__shfl(b->n, lane & (S::LANES - 1));
        const uint32_t position = shared + S::POSITION + 4 * (lane & (S::LANES - 1));
        for (uint32_t i = 0; i < rounds; i++) {
            damacy__fse_wide_feed_step<S>(&r->feed, n > i * S::BATCH,
                                          damacy__lds32(position + (i & 1) * 4 * S::LANES),
                                          self.ring);
            damacy__fse_batch_done();
        }
    } else if (warp >= 6) {
        for (uint32_t i = 0; i < rounds; i++) {
            if (i - 4 < n_batches)
                damacy__fse_copy_out<S>(shared, i - 4, warp - 6);
            damacy__fse_batch_done();
        }
    } else {
        DAMACY__NOUNROLL for (uint32_t i = 0; i < rounds; i++) damacy__fse_batch_done();
    }
}
