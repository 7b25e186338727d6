// Matches that read their own tile, one after another by one warp, a byte a lane: for waves of few
// records. There matches are long and most read what others of the tile have copied, so that links,
// one for every byte, take most of the time; and what one warp does is little beside the warps of
// other frames.
#pragma once

#include "kernels/zstd_exec_own.cuh"

// Which of the tile's records from `skip` on, one a thread, are matches that read the tile. They
// have a bit each in OWNED and lie in OWN at their record's place, so in order. The whole warp
// calls this.
template <class S> DAMACY__INLINE void damacy__exec_owned(uint32_t shared, int32_t skip, bool late)
{
    const uint32_t owned = damacy__ballot(late);

    if (damacy__lane() == 0)
        damacy__sts32(shared + S::OWNED + ((uint32_t)skip + threadIdx.x) / 8, owned);
}

// Whether there are any. Every warp looks.
template <class S> DAMACY__INLINE bool damacy__exec_owns(uint32_t shared)
{
    return damacy__any(damacy__lds32(shared + S::OWNED + damacy__lane() % (S::RECORDS / 32) * 4));
}

// A match whose source is in the tile's buffer or, with what lies before that, in the output; where
// source and match overlap, the bytes before the match repeat. A warp does.
template <class S>
static __device__ void damacy__exec_copy_serial(uint32_t shared, uint64_t history,
                                                damacy__exec_match m)
{
    const int32_t lane = (int32_t)damacy__lane(), period = m.offset < m.n ? m.offset : m.n;
    int32_t phase = lane, step = 32;

    if (period < 32) {
        phase = lane % period;
        step = 32 % period;
    }
    DAMACY__EXEC_NOUNROLL for (int32_t k = lane; k < m.n; k += 32)
    {
        const int32_t from = m.to - m.offset + phase;
        const uint32_t byte = from < 0 ? damacy__exec_byte(history + (uint64_t)(int64_t)from)
                                       : damacy__lds8(shared + S::BYTES + (uint32_t)from);
        damacy__sts8(shared + S::BYTES + (uint32_t)(m.to + k), byte);
        phase += step;
        if (phase >= period)
            phase -= period;
    }
}

// All of the tile, by one warp. Those of up to 32 bytes that do not overlap their source and find
// it in the buffer take one step; the next entry is on its way meanwhile.
template <class S> DAMACY__INLINE void damacy__exec_serial(uint32_t shared, uint64_t history)
{
    const uint32_t lane = damacy__lane(), bytes = shared + S::BYTES + lane;

    DAMACY__EXEC_NOUNROLL for (uint32_t k = 0; k < S::RECORDS / 32; k++)
    {
        const uint32_t own = shared + S::OWN + 256 * k;
        uint32_t left = damacy__lds32(shared + S::OWNED + 4 * k);
        if (left == 0)
            continue;
        const damacy__u32x2 mine = damacy__lds64(own + 8 * lane); // no match: it is not looked at
        const uint32_t length = mine.x >> 16, offset = mine.y;
        const uint32_t other =
            damacy__ballot(length > 32 || offset < length || offset > (mine.x & 0xffff));
        damacy__u32x2 next = damacy__lds64(own + 8 * damacy__ctz(left));
        while (left) {
            const damacy__u32x2 now = next;
            const uint32_t bit = left & (0 - left);
            damacy__exec_match m;
            left ^= bit;
            next = damacy__lds64(own + 8 * (left ? damacy__ctz(left) : 0));
            m.to = (int32_t)(now.x & 0xffff);
            m.n = (int32_t)(now.x >> 16);
            m.offset = (int32_t)now.y;
            if (other & bit)
                damacy__exec_copy_serial<S>(shared, history, m);
            else if ((int32_t)lane < m.n)
                damacy__sts8(bytes + (uint32_t)m.to,
                             damacy__lds8(bytes + (uint32_t)(m.to - m.offset)));
            damacy__sync_warp();
        }
    }
}
