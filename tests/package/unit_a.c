/* Two files of one program: this one has the implementation, twice included without harm. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
#include "damacy.h"

const char* name_from_a(void);

const char* name_from_a(void)
{
    return damacy_status_str(DAMACY_END);
}
