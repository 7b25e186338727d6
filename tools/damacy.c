/* damacy: looks at, prints and checks Zarr arrays with damacy.h.
 *
 *   damacy info URI     shape, type, chunks, codecs, levels
 *   damacy cat URI      voxels of a box, to standard output or a file (.npy: with numpy's header)
 *   damacy verify URI   reads and decodes every chunk
 *   damacy --help       the options
 *
 * Build: cc -O2 -I. tools/damacy.c -o damacy. Exit status 1 with one line on standard error when
 * something fails, 2 for bad usage. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "tools/damacy_cat.h"
#include "tools/damacy_info.h"

static void print_finding(void* user, const damacy_error* finding)
{
    (void)user;
    (void)printf("%s", finding->chunk);
    if (finding->offset != UINT64_MAX) {
        (void)printf(" at byte %llu", (unsigned long long)finding->offset);
    }
    (void)printf(": %s: %s\n", damacy_status_str(finding->status), finding->message);
}

static int run_verify(const options* o)
{
    damacy_verify_result result;
    damacy_error err;
    const damacy_status status =
        damacy_verify(&o->config, o->uri, print_finding, NULL, &result, &err);

    if (status != DAMACY_OK) {
        return failed(status, &err);
    }
    (void)printf("%llu chunks, %llu not stored, %llu bad; %llu bytes read, %llu decoded\n",
                 (unsigned long long)result.n_chunks, (unsigned long long)result.n_missing,
                 (unsigned long long)result.n_bad, (unsigned long long)result.size_stored,
                 (unsigned long long)result.size_decoded);
    return result.n_bad != 0;
}

int main(int argc, char** argv)
{
    options o;

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[argc - 1], "--help") == 0)) {
        print_help();
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)printf("damacy %d.%d.%d\n", DAMACY_VERSION_MAJOR, DAMACY_VERSION_MINOR,
                     DAMACY_VERSION_PATCH);
        return 0;
    }
    if (!parse(&o, argc, argv)) {
        return 2;
    }
    return o.command[0] == 'i' ? run_info(&o) : o.command[0] == 'c' ? run_cat(&o) : run_verify(&o);
}
