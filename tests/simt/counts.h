// What tests check of the fake driver when they are done.
#pragma once
#include "tests/simt/driver.h"
#include "tests/test.h"

// The counts; no call was a wrong one.
inline fake_counts counts_without_misuse()
{
    fake_counts counts;
    fake_count(&counts);
    if (counts.misuse)
        printf("# %s\n", counts.first_misuse);
    CHECK_EQ(counts.misuse, 0);
    return counts;
}
