/* Voxels as text, one element per line, and numpy's file header. */
#pragma once
#include "damacy.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static float half_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    const float mantissa = (float)(bits & 1023);
    float value;

    if (exponent == 31) {
        value = mantissa != 0 ? NAN : INFINITY;
    } else if (exponent == 0) {
        value = ldexpf(mantissa, -24);
    } else {
        value = ldexpf(mantissa + 1024, exponent - 25);
    }
    return bits >> 15 ? -value : value;
}

static void print_element(FILE* file, damacy_dtype dtype, const uint8_t* p)
{
    uint64_t u = 0;
    const size_t size = damacy_dtype_size(dtype);
    float f;
    double d;
    uint32_t bits;

    memcpy(&u, p, size);
    switch (dtype) {
    case DAMACY_F32:
        memcpy(&f, p, 4);
        (void)fprintf(file, "%.9g\n", (double)f);
        break;
    case DAMACY_F64:
        memcpy(&d, p, 8);
        (void)fprintf(file, "%.17g\n", d);
        break;
    case DAMACY_BF16:
        bits = (uint32_t)u << 16;
        memcpy(&f, &bits, 4);
        (void)fprintf(file, "%.9g\n", (double)f);
        break;
    case DAMACY_F16:
        (void)fprintf(file, "%.9g\n", (double)half_value((uint16_t)u));
        break;
    case DAMACY_BOOL:
        (void)fprintf(file, "%s\n", u ? "true" : "false");
        break;
    case DAMACY_I8:
    case DAMACY_I16:
    case DAMACY_I32:
    case DAMACY_I64:
        u = size < 8 && u >> (8 * size - 1) ? u | UINT64_MAX << (8 * size) : u;
        (void)fprintf(file, "%lld\n", (long long)u);
        break;
    default:
        (void)fprintf(file, "%llu\n", (unsigned long long)u);
    }
}

/* numpy's name of a type; NULL: it has none. */
static const char* npy_type(damacy_dtype dtype)
{
    static const char* const names[] = {"<f4", NULL,  "<f2", "<f8", "|u1", "<u2", "<u4",
                                        "<u8", "|i1", "<i2", "<i4", "<i8", "|b1"};

    return names[dtype];
}

/* numpy's format 1.0: magic, length, a dictionary padded to 64 bytes. */
static int write_npy_header(FILE* file, damacy_dtype dtype, const damacy_interval* box,
                            uint32_t rank)
{
    char text[1024];
    int len = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                       npy_type(dtype));
    uint8_t head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 0, 0};

    for (uint32_t i = 0; i < rank; i++) {
        len += snprintf(text + len, sizeof text - (size_t)len, "%lld,",
                        (long long)(box[i].end - box[i].begin));
    }
    len += snprintf(text + len, sizeof text - (size_t)len, "), }");
    while ((len + 11) % 64 != 0) {
        text[len++] = ' ';
    }
    text[len++] = '\n';
    head[8] = (uint8_t)len;
    head[9] = (uint8_t)(len >> 8);
    return fwrite(head, 1, 10, file) == 10 && fwrite(text, 1, (size_t)len, file) == (size_t)len;
}
