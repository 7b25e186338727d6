/* A whole program in one file, C and C++ alike: it links nothing but libc and gets a clear error
 * from a store that is not there. */
#ifdef SYSTEM_HEADER_FIRST
#include <stdio.h>
#endif
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include <stdio.h>
#include <string.h>

int main(void)
{
    damacy_error err;
    damacy_array* array = NULL;
    const damacy_status status = damacy_array_open(NULL, "/nonexistent/a.zarr", &array, &err);

    if (status != DAMACY_NOTFOUND || err.status != status || array ||
        !strstr(err.uri, "/nonexistent/a.zarr") || !err.message[0]) {
        printf("status %s, uri \"%s\", message \"%s\"\n", damacy_status_str(status), err.uri,
               err.message);
        return 1;
    }
    return 0;
}
