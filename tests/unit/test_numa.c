/* What Linux says about NUMA nodes, from a folder that stands for /sys. */
#include "stage/numa.h"
#include "tests/test.h"

static char folder[128];

static void put(const char* path, const char* text)
{
    char name[400];
    char command[500];
    FILE* file;

    (void)snprintf(command, sizeof command, "mkdir -p $(dirname '%s/%s')", folder, path);
    CHECK_EQ(system(command), 0);
    (void)snprintf(name, sizeof name, "%s/%s", folder, path);
    file = fopen(name, "w");
    CHECK(file != NULL);
    (void)fputs(text, file);
    (void)fclose(file);
}

/* A machine with two nodes; node 1 has the CPUs that this process may use. */
static void begin(const char* online)
{
    char list[64] = "";
    cpu_set_t allowed;

    (void)snprintf(folder, sizeof folder, "%s/damacy-numa-XXXXXX",
                   getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    CHECK(mkdtemp(folder) != NULL);
    CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (unsigned i = 0; i < CPU_SETSIZE && list[0] == '\0'; i++) {
        if (CPU_ISSET(i, &allowed)) {
            (void)snprintf(list, sizeof list, "%u\n", i);
        }
    }
    put("devices/system/node/online", online);
    put("devices/system/node/node0/cpulist", "\n");
    put("devices/system/node/node1/cpulist", list);
    put("bus/pci/devices/0000:1b:00.0/numa_node", "1\n");
    put("bus/pci/devices/0000:1c:00.0/numa_node", "-1\n");
}

static void end(void)
{
    char command[200];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK_EQ(system(command), 0);
}

static int is_parsed(const char* text, const char* expected)
{
    char got[200] = "";
    size_t len = 0;
    cpu_set_t cpus;

    if (!damacy__numa_parse(text, &cpus)) {
        return expected == NULL;
    }
    for (unsigned i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &cpus)) {
            len += (size_t)snprintf(got + len, sizeof got - len, "%u ", i);
        }
    }
    return expected && strcmp(got, expected) == 0;
}

TEST(lists_of_cpus_are_parsed_whole_or_not_at_all)
{
    CHECK(is_parsed("", ""));
    CHECK(is_parsed("0", "0 "));
    CHECK(is_parsed("0-3,8,10-11", "0 1 2 3 8 10 11 "));
    CHECK(is_parsed("1023,1024-70000", "1023 "));
    CHECK(is_parsed("1,,2", NULL));
    CHECK(is_parsed("1,", NULL));
    CHECK(is_parsed("3-1", NULL));
    CHECK(is_parsed("1-", NULL));
    CHECK(is_parsed("-1", NULL));
    CHECK(is_parsed("x", NULL));
    CHECK(is_parsed("1 2", NULL));
    CHECK(is_parsed("0-99999999999999999999", NULL));
}

TEST(pin_takes_the_node_or_says_what_is_wrong_with_it)
{
    damacy_config c;
    damacy_error err;
    damacy__numa numa;
    cpu_set_t before;
    cpu_set_t inside;

    begin("0-1\n");
    memset(&c, 0, sizeof c);
    memset(&err, 0, sizeof err);
    c.numa = DAMACY_NUMA_PIN;
    c.numa_node = 1;
    CHECK_EQ(damacy__numa_choose(&c, NULL, folder, &numa, &err), DAMACY_OK);
    CHECK(numa.pins);
    CHECK_EQ(CPU_COUNT(&numa.cpus), 1);
    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    CHECK_EQ(damacy__numa_enter(&numa, &err), DAMACY_OK);
    CHECK_EQ(sched_getaffinity(0, sizeof inside, &inside), 0);
    CHECK(CPU_EQUAL(&inside, &numa.cpus));
    damacy__numa_leave(&numa);
    CHECK_EQ(sched_getaffinity(0, sizeof inside, &inside), 0);
    CHECK(CPU_EQUAL(&inside, &before));
    c.numa_node = 0; /* memory without CPUs */
    CHECK_EQ(damacy__numa_choose(&c, NULL, folder, &numa, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "numa_node is 0");
    CHECK(!numa.pins);
    c.numa_node = 7;
    CHECK_EQ(damacy__numa_choose(&c, NULL, folder, &numa, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "numa_node is 7");
    CHECK_HAS(err.message, "node7/cpulist");
    put("devices/system/node/node1/cpulist", "what\n");
    c.numa_node = 1;
    CHECK_EQ(damacy__numa_choose(&c, NULL, folder, &numa, &err), DAMACY_INVAL);
    CHECK_HAS(err.message, "no list of CPUs");
    end();
}

TEST(auto_takes_the_node_of_the_gpu_only_where_there_are_several)
{
    damacy_config c;
    damacy_error err;
    damacy__numa numa;

    begin("0-1\n");
    memset(&c, 0, sizeof c);
    CHECK_EQ(damacy__numa_choose(&c, NULL, folder, &numa, &err), DAMACY_OK);
    CHECK(!numa.pins);
    CHECK_EQ(damacy__numa_choose(&c, "0000:1B:00.0", folder, &numa, &err), DAMACY_OK);
    CHECK(numa.pins);
    CHECK_EQ(CPU_COUNT(&numa.cpus), 1);
    CHECK_EQ(damacy__numa_choose(&c, "0000:1c:00.0", folder, &numa, &err), DAMACY_OK);
    CHECK(!numa.pins);
    CHECK_EQ(damacy__numa_choose(&c, "0000:ff:00.0", folder, &numa, &err), DAMACY_OK);
    CHECK(!numa.pins);
    c.numa = DAMACY_NUMA_OFF;
    CHECK_EQ(damacy__numa_choose(&c, "0000:1b:00.0", folder, &numa, &err), DAMACY_OK);
    CHECK(!numa.pins);
    end();
    begin("0\n");
    c.numa = DAMACY_NUMA_AUTO;
    CHECK_EQ(damacy__numa_choose(&c, "0000:1b:00.0", folder, &numa, &err), DAMACY_OK);
    CHECK(!numa.pins);
    end();
}

TEST_MAIN
