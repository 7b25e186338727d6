/* Data types: names of Zarr v3 and sizes.
 *
 * Raw types (r8 to r64) are read as unsigned integers of the same size, least significant byte
 * first, whatever byte order the codec states: their bytes have no order. */
#pragma once
#include "base/base.h"
#include "api.h"

/* A data type of an array. */
typedef struct damacy__dtype {
    const char* name; /* in Zarr metadata */
    damacy_dtype dtype;
    bool is_raw;
} damacy__dtype;

static const damacy__dtype damacy__dtypes[] = {
    {"bool", DAMACY_BOOL, false},     {"int8", DAMACY_I8, false},
    {"int16", DAMACY_I16, false},     {"int32", DAMACY_I32, false},
    {"int64", DAMACY_I64, false},     {"uint8", DAMACY_U8, false},
    {"uint16", DAMACY_U16, false},    {"uint32", DAMACY_U32, false},
    {"uint64", DAMACY_U64, false},    {"float16", DAMACY_F16, false},
    {"float32", DAMACY_F32, false},   {"float64", DAMACY_F64, false},
    {"bfloat16", DAMACY_BF16, false}, {"r8", DAMACY_U8, true},
    {"r16", DAMACY_U16, true},        {"r32", DAMACY_U32, true},
    {"r64", DAMACY_U64, true},
};

static size_t damacy__dtype_size(damacy_dtype dtype);
static const char* damacy__dtype_str(damacy_dtype dtype);

/* Bytes per element; 0 for DAMACY_NATIVE and other values. */
static size_t damacy__dtype_size(damacy_dtype dtype)
{
    switch (dtype) {
    case DAMACY_BOOL:
    case DAMACY_U8:
    case DAMACY_I8:
        return 1;
    case DAMACY_BF16:
    case DAMACY_F16:
    case DAMACY_U16:
    case DAMACY_I16:
        return 2;
    case DAMACY_F32:
    case DAMACY_U32:
    case DAMACY_I32:
        return 4;
    case DAMACY_F64:
    case DAMACY_U64:
    case DAMACY_I64:
        return 8;
    case DAMACY_NATIVE:
        return 0;
    }
    return 0;
}

/* The name in Zarr metadata; "native", or "unknown" for other values. */
static const char* damacy__dtype_str(damacy_dtype dtype)
{
    for (size_t i = 0; i < DAMACY__COUNT(damacy__dtypes); i++) {
        if (damacy__dtypes[i].dtype == dtype) {
            return damacy__dtypes[i].name;
        }
    }
    return dtype == DAMACY_NATIVE ? "native" : "unknown";
}
