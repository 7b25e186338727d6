/* Makes errors: damacy__fail is the only function that writes a damacy_error's message, so a
 * breakpoint there stops at every failure. Non-printable bytes of file names and metadata are
 * escaped. */
#pragma once
#include "base/base.h"
#include "api.h"

/* Returns from the calling function when `call` fails. Only where nothing is held. */
#define DAMACY__TRY(call)                                \
    do {                                                 \
        const damacy_status damacy__try_status = (call); \
        if (damacy__try_status != DAMACY_OK) {           \
            return damacy__try_status;                   \
        }                                                \
    } while (0)

static void damacy__copy_escaped(char* dst, size_t capacity, const char* src);
static damacy_status damacy__fail(damacy_error* err, damacy_status status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
static void damacy__error_where(damacy_error* err, damacy_stage stage, const char* uri,
                                const char* chunk);

/* No error yet, of a stage (or NONE: not known yet), of no sample and no byte. */
static void damacy__error_init(damacy_error* err, damacy_stage stage)
{
    memset(err, 0, sizeof *err);
    err->stage = stage;
    err->sample = err->offset = UINT64_MAX;
}

/* Copies text, cutting it to capacity and replacing control bytes and bytes that are not ASCII by
 * '?'. */
static void damacy__copy_escaped(char* dst, size_t capacity, const char* src)
{
    size_t n = 0;

    for (; src[n] != '\0' && n + 1 < capacity; n++) {
        dst[n] = (src[n] < 0x20 || src[n] > 0x7e) ? '?' : src[n];
    }
    dst[n] = '\0';
}

/* Sets status and message and returns status. The place (stage, sample, uri, chunk, offset) is
 * kept. */
static damacy_status damacy__fail(damacy_error* err, damacy_status status, const char* format, ...)
{
    char text[sizeof err->message];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    err->status = status;
    damacy__copy_escaped(err->message, sizeof err->message, text);
    return status;
}

/* Adds the place to an error, where it is not set yet. NULL leaves a field as it is. */
static void damacy__error_where(damacy_error* err, damacy_stage stage, const char* uri,
                                const char* chunk)
{
    if (err->stage == DAMACY_STAGE_NONE) {
        err->stage = stage;
    }
    if (uri && err->uri[0] == '\0') {
        damacy__copy_escaped(err->uri, sizeof err->uri, uri);
    }
    if (chunk && err->chunk[0] == '\0') {
        damacy__copy_escaped(err->chunk, sizeof err->chunk, chunk);
    }
}
