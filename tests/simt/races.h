// Finds accesses to shared memory by two warps of a block that no barrier orders, by vector clocks.
// Unlike compute-sanitizer's racecheck it follows bar.arrive: who arrives hands over what it did,
// who waits takes it. Warps are the threads here and bytes are the places; lanes of a warp are not
// told apart, and accesses through pointers are not seen. Atomic writes do not race with each
// other.
//
//     simt::races races(simt::SHARED_MAX);
//     simt::g.watch = &races;
//     simt::launch(...);                  // one block at a time
//     simt::g.watch = nullptr;
//     // races.found, races.first
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace simt {
class races {
  public:
    static constexpr unsigned WARPS = 32;

    uint64_t found = 0, accesses = 0;
    std::string first;  // the first that was found
    unsigned idle = 32; // lanes of warp 0 from here on read what they do not use

    explicit races(size_t shared_size) : places(shared_size) {}

    // A block begins.
    void begin()
    {
        std::fill(places.begin(), places.end(), place());
        for (unsigned w = 0; w < WARPS; w++) {
            now[w] = clock();
            now[w].at[w] = 1;
        }
        for (clock& b : barriers)
            b = clock();
    }

    void touch(unsigned thread, uint32_t at, unsigned size, bool writes, bool is_atomic = false)
    {
        const unsigned warp = thread / 32;
        if (!writes && thread < 32 && thread >= idle)
            return;
        if (warp >= WARPS || at + (size_t)size > places.size()) {
            fprintf(stderr, "races: warp %u or address %u\n", warp, at);
            abort();
        }
        const clock& mine = now[warp];
        accesses++;
        for (uint32_t i = at; i < at + size; i++) {
            place& p = places[i];
            if (p.written > mine.at[p.writer] && !(is_atomic && p.is_atomic))
                tell(i, p.writer, "wrote", warp, writes);
            for (unsigned w = 0; writes && w < WARPS; w++)
                if (w != warp && p.read[w] > mine.at[w])
                    tell(i, w, "read", warp, writes);
            if (writes) {
                p.writer = warp;
                p.written = mine.at[warp];
                p.is_atomic = is_atomic;
            } else {
                p.read[warp] = mine.at[warp];
            }
        }
    }

    // A lane comes to a named barrier, to wait or not.
    void arrive(unsigned warp, unsigned barrier)
    {
        barriers[barrier].take(now[warp]);
        now[warp].at[warp]++;
    }

    // A lane that waited goes on; then the barrier begins anew.
    void leave(unsigned warp, unsigned barrier)
    {
        now[warp].take(barriers[barrier]);
    }
    void complete(unsigned barrier)
    {
        barriers[barrier] = clock();
    }

    // All pass the barrier of the block.
    void block()
    {
        clock all;
        for (const clock& c : now)
            all.take(c);
        for (unsigned w = 0; w < WARPS; w++) {
            now[w] = all;
            now[w].at[w]++;
        }
    }

  private:
    struct clock {
        uint32_t at[WARPS] = {0};
        void take(const clock& other)
        {
            for (unsigned w = 0; w < WARPS; w++)
                at[w] = std::max(at[w], other.at[w]);
        }
    };
    struct place {
        uint32_t writer = 0, written = 0, read[WARPS] = {0};
        bool is_atomic = false; // the write
    };

    void tell(uint32_t at, unsigned before, const char* did, unsigned warp, bool writes)
    {
        if (found++ == 0)
            first = "byte " + std::to_string(at) + ": warp " + std::to_string(before) + " " + did +
                    " it, warp " + std::to_string(warp) + (writes ? " writes" : " reads") + " it";
    }

    std::vector<place> places;
    clock now[WARPS], barriers[16];
};
} // namespace simt
