/* A CUDA driver and NVRTC whose device is this process, for tests without a GPU.
 *
 * fake_open fills a damacy__driver: device memory is host memory with guards, streams are threads
 * (or are stepped in a random order drawn from a seed), kernels are those that simt::enroll made
 * known and run through tests/simt/simt.h. As on a GPU, work is asynchronous and its errors surface
 * in later calls. Wrong use is answered as the driver would and counted in fake_counts.misuse
 * besides.
 *
 * tests/simt/kernels.h makes all of the library's known. One fake driver per process at a time. */
#pragma once
#ifndef DAMACY_IMPLEMENTATION // else damacy.h holds it
#include "gpu/copies.h"
#include "gpu/graph.h"
#endif
#include "tests/simt/simt.h"

typedef struct fake_config {
    uint64_t device_bytes;         /* memory of each GPU; 0: 1 GiB */
    uint64_t pinned_bytes;         /* that can be pinned; 0: any */
    uint32_t n_devices;            /* 0: 1 */
    uint32_t architecture;         /* 0: 90 */
    uint32_t n_multiprocessors;    /* 0: 4 */
    uint64_t seed;                 /* of schedules; 0: 1 */
    int is_stepped;                /* no threads: streams go on inside driver calls only */
    int cannot_register;           /* cuMemHostRegister fails */
    int cannot_register_read_only; /* and the attribute says so */
    int has_no_nvrtc;
    int cannot_read_host;     /* kernels do not take addresses of the host */
    int has_host_page_tables; /* and so does not hold the pages of registered memory */
    int lacks_new_functions;  /* an older driver */
} fake_config;

typedef struct fake_counts {
    uint64_t live_allocations; /* device memory */
    uint64_t live_bytes;
    uint64_t most_bytes; /* live at any time */
    uint64_t live_pinned;
    uint64_t live_registered;
    uint64_t live_streams;
    uint64_t live_events;
    uint64_t live_modules;
    uint64_t live_compilations;
    uint64_t live_graphs;  /* and what can be launched of them */
    uint64_t live_primary; /* references to primary contexts */
    uint64_t n_calls;      /* of anything but error names */
    uint64_t n_launches;
    uint64_t n_gathers; // of them, of damacy_gather
    uint64_t most_parse; // blocks of threads of one of damacy_blosc_parse, at most
    uint64_t n_mapped;  // copies of mapped files by the copy engine
    uint64_t n_divided; // of them, with a wish for shared memory and L1
    uint64_t n_graphs;  // made ready for launches
    uint64_t n_graph_launches; // whose kernels count as launches, too
    uint64_t n_updates;        // of nodes of a graph
    uint64_t n_compiled;
    uint64_t n_after_lost; /* calls but frees after a sticky error had been returned */
    uint64_t misuse; /* wrong calls: bad handle, range outside every allocation, no context ... */
    char first_misuse[200];
} fake_counts;

namespace fake {
struct operation;
}

/* Forgets everything of the last run and fills the table. */
inline void fake_open(damacy__driver* driver, const fake_config* config);
/* Fills another table for the same machine. */
inline void fake_join(damacy__driver* driver);
/* Waits for the streams and checks the guards of what is still allocated. */
inline void fake_close(void);
inline void fake_count(fake_counts* counts);

/* The nth call from now on (0: the next) to `function`, a field of the table or NULL for any,
 * returns code instead of working; the codes that the driver says so of are sticky. Several may be
 * set. */
inline void fake_fail(const char* function, uint64_t nth, int code);
/* The same, for the machine that the next fake_open makes. */
inline void fake_fail_at_open(const char* function, uint64_t nth, int code);
/* Failures that were set and have not come. */
inline uint64_t fake_failures_left(void);
/* Calls of this thread are neither counted nor fail on purpose (1), as those of a test's own. */
inline void fake_exempt(int is_exempt);
/* The nth launch from now on is accepted, but its kernel ends with the sticky code. */
inline void fake_fail_kernel(uint64_t nth, int code);
/* Every queued operation from now on takes so long at least. */
inline void fake_slow(uint64_t ns);
/* Holds the streams back (1) or lets them go on (0). */
inline void fake_hold(int is_held);
/* Between begin and end, what is queued on the stream becomes a graph instead of running. Launches
 * and nothing else: a copy, an event, an allocation, a wait by any thread is a misuse (of those a
 * real driver allows some). */
inline void fake_capture_begin(damacy__stream stream);
inline std::vector<fake::operation> fake_capture_end(void);
/* Queues a graph, as often as one likes. */
inline void fake_replay(const std::vector<fake::operation>& graph, damacy__stream stream);
/* A context of the caller's own. */
inline damacy__context fake_context(int ordinal);
/* The path, as the program was started by it, of the file that holds the fake compiler: notes about
 * kernels want it whole. "": not known. */
inline const char* fake_program_path(void);
/* The name of a call whose number (since fake_open, from 0) is known; "" if it did not happen. */
inline const char* fake_call_name(uint64_t number);

#include "tests/simt/driver_machine.h"
#include "tests/simt/driver_memory.h"
#include "tests/simt/driver_queue.h"
#include "tests/simt/driver_graph.h"
#include "tests/simt/driver_control.h"
#include "tests/simt/driver_capture.h"
