/* The library once, for all tests that meson links to it instead of compiling it each anew. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"
