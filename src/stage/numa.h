/* A NUMA node to the CPUs that its threads run on, as Linux tells it beneath /sys.
 *
 * Asking for a node that cannot be had is an error; AUTO takes the node of the GPU where that is
 * known and the machine has several, and else pins nothing. The thread that creates a pipeline
 * stays on the node meanwhile: the threads that it starts and the pages that it touches inherit
 * that. */
#pragma once
#include "base/calls.h"
#include "base/error.h"

enum { DAMACY__NUMA_TEXT = 4096 };

typedef struct damacy__numa {
    cpu_set_t cpus;   /* of the node */
    cpu_set_t before; /* where the calling thread ran */
    bool pins;        /* false: threads run wherever they like */
    bool is_wish;     /* AUTO: no error if it cannot be */
} damacy__numa;

static damacy_status damacy__numa_choose(const damacy_config* config, const char* bus_id,
                                         const char* sys, damacy__numa* numa, damacy_error* err);
static damacy_status damacy__numa_enter(damacy__numa* numa, damacy_error* err);
static void damacy__numa_leave(const damacy__numa* numa);

/* The text of a small file, without the final newline; 0 or errno. */
static int damacy__numa_file(const char* path, char text[DAMACY__NUMA_TEXT])
{
    const int fd = damacy__call_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    size_t len = 0;
    ssize_t n = 0;
    int code = 0;

    if (fd < 0) {
        return errno;
    }
    while (code == 0 && len + 1 < DAMACY__NUMA_TEXT) {
        n = damacy__call_read(fd, text + len, DAMACY__NUMA_TEXT - 1 - len);
        if (n == 0) {
            break;
        }
        if (n > 0) {
            len += (size_t)n;
        } else if (errno != EINTR) {
            code = errno;
        }
    }
    close(fd);
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == ' ')) {
        len--;
    }
    text[len] = '\0';
    return code;
}

/* A decimal number at *at, which moves on; false when there is none below a million. */
static bool damacy__numa_number(const char** at, uint32_t* out)
{
    uint32_t value = 0;
    const char* start = *at;

    while (**at >= '0' && **at <= '9' && value < 100000) {
        value = value * 10 + (uint32_t)(*(*at)++ - '0');
    }
    *out = value;
    return *at != start && !(**at >= '0' && **at <= '9');
}

/* "0-3,8,10-11" to a set. CPUs beyond what a set holds are left out; false on other text. */
static bool damacy__numa_parse(const char* text, cpu_set_t* cpus)
{
    CPU_ZERO(cpus);
    while (*text != '\0') {
        uint32_t first;
        uint32_t last;
        if (!damacy__numa_number(&text, &first)) {
            return false;
        }
        last = first;
        if (*text == '-') {
            text++;
            if (!damacy__numa_number(&text, &last) || last < first) {
                return false;
            }
        }
        for (uint32_t i = first; i <= last && i < CPU_SETSIZE; i++) {
            CPU_SET(i, cpus);
        }
        if (*text == ',' && text[1] != '\0') {
            text++;
        } else if (*text != '\0') {
            return false;
        }
    }
    return true;
}

/* The CPUs of a node that this process may use. */
static damacy_status damacy__numa_cpus(const char* sys, int32_t node, cpu_set_t* cpus,
                                       damacy_error* err)
{
    char path[512];
    char text[DAMACY__NUMA_TEXT];
    cpu_set_t allowed;
    int code;

    (void)snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sys, node);
    code = damacy__numa_file(path, text);
    if (code != 0) {
        return damacy__fail(err, DAMACY_INVAL,
                            "numa_node is %d; the machine has no such node (%s: errno %d)", node,
                            path, code);
    }
    if (!damacy__numa_parse(text, cpus)) {
        return damacy__fail(err, DAMACY_INVAL, "numa_node is %d; %s is no list of CPUs: \"%.60s\"",
                            node, path, text);
    }
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        CPU_AND(cpus, cpus, &allowed);
    }
    if (CPU_COUNT(cpus) == 0) {
        return damacy__fail(err, DAMACY_INVAL,
                            "numa_node is %d; it has no CPU that this process may use", node);
    }
    return DAMACY_OK;
}

/* The node of a PCI device, -1 if that is not known or the machine has one node. */
static int32_t damacy__numa_of_device(const char* sys, const char* bus_id)
{
    char path[512];
    char text[DAMACY__NUMA_TEXT];
    char id[32];
    const char* at = text;
    uint32_t node;
    size_t len = 0;

    (void)snprintf(path, sizeof path, "%s/devices/system/node/online", sys);
    if (damacy__numa_file(path, text) != 0 || !strpbrk(text, "-,")) {
        return -1;
    }
    for (; bus_id[len] != '\0' && len + 1 < sizeof id; len++) {
        const char c = bus_id[len];
        id[len] = c >= 'A' && c <= 'F' ? (char)(c - 'A' + 'a') : c;
    }
    id[len] = '\0';
    (void)snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", sys, id);
    if (damacy__numa_file(path, text) != 0 || !damacy__numa_number(&at, &node) || *at != '\0') {
        return -1; /* "-1" is what the kernel says when it does not know either */
    }
    return (int32_t)node;
}

/* Which CPUs the threads of a pipeline run on. bus_id: of the GPU, NULL on the CPU. sys: "/sys". */
static damacy_status damacy__numa_choose(const damacy_config* config, const char* bus_id,
                                         const char* sys, damacy__numa* numa, damacy_error* err)
{
    damacy_error ignored;
    int32_t node;

    memset(numa, 0, sizeof *numa);
    if (config->numa == DAMACY_NUMA_PIN) {
        DAMACY__TRY(damacy__numa_cpus(sys, config->numa_node, &numa->cpus, err));
        numa->pins = true;
    } else if (config->numa == DAMACY_NUMA_AUTO && bus_id) {
        memset(&ignored, 0, sizeof ignored);
        node = damacy__numa_of_device(sys, bus_id);
        numa->pins = node >= 0 && damacy__numa_cpus(sys, node, &numa->cpus, &ignored) == DAMACY_OK;
        numa->is_wish = true;
    }
    return DAMACY_OK;
}

/* Moves the calling thread to the node. */
static damacy_status damacy__numa_enter(damacy__numa* numa, damacy_error* err)
{
    int code;

    if (!numa->pins) {
        return DAMACY_OK;
    }
    code = pthread_getaffinity_np(pthread_self(), sizeof numa->before, &numa->before);
    if (code == 0) {
        code = pthread_setaffinity_np(pthread_self(), sizeof numa->cpus, &numa->cpus);
    }
    if (code == 0) {
        return DAMACY_OK;
    }
    numa->pins = false;
    return numa->is_wish ? DAMACY_OK
                         : damacy__fail(err, DAMACY_INVAL,
                                        "numa is PIN: cannot move a thread there: errno %d", code);
}

/* Moves it back. */
static void damacy__numa_leave(const damacy__numa* numa)
{
    if (numa->pins) {
        (void)pthread_setaffinity_np(pthread_self(), sizeof numa->before, &numa->before);
    }
}
