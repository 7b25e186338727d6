/* The other file: declarations only, unless DAMACY_STATIC gives it an implementation of its own. */
#ifdef DAMACY_STATIC
#define DAMACY_IMPLEMENTATION
#endif
#include "damacy.h"
#include <string.h>

#ifdef __cplusplus
extern const char* name_from_a(void);
#else
const char* name_from_a(void);
#endif

int main(void)
{
    return strcmp(name_from_a(), damacy_status_str(DAMACY_END)) != 0;
}
