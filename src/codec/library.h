/* The shared libraries that decode on the host, opened when a chunk first needs one.
 *
 * A machine without a library loses its codec and nothing else: the error names the file and what
 * it is for. Declarations are ours, so no headers are needed to build. */
#pragma once
#include "base/sync.h"

typedef struct damacy__zstd_context damacy__zstd_context; /* ZSTD_DCtx */

/* What libz's inflate works on (zlib.h, stable since 1.2). */
typedef struct damacy__z_stream {
    const uint8_t* next_in;
    unsigned avail_in;
    unsigned long total_in;
    uint8_t* next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char* msg;
    void* state;
    void* zalloc;
    void* zfree;
    void* opaque;
    int data_type;
    unsigned long adler;
    unsigned long reserved;
} damacy__z_stream;

/* libzstd.so.1 */
typedef struct damacy__zstd_library {
    damacy__zstd_context* (*create)(void);
    size_t (*free)(damacy__zstd_context* context);
    size_t (*decompress)(damacy__zstd_context* context, void* dst, size_t capacity, const void* src,
                         size_t size);
    size_t (*set_parameter)(damacy__zstd_context* context, int parameter, int value);
    unsigned (*is_error)(size_t code);
    const char* (*error_name)(size_t code);
} damacy__zstd_library;

/* libz.so.1 */
typedef struct damacy__z_library {
    int (*init)(damacy__z_stream* stream, int window_bits, const char* version, int stream_size);
    int (*inflate)(damacy__z_stream* stream, int flush);
    int (*reset)(damacy__z_stream* stream);
    int (*end)(damacy__z_stream* stream);
} damacy__z_library;

typedef struct damacy__libraries {
    damacy__mutex mutex;
    bool has_mutex;
    void* zstd_handle; /* guarded by mutex, as is what follows; tables are constant once opened */
    void* z_handle;
    damacy__zstd_library zstd;
    damacy__z_library z;
} damacy__libraries;

static damacy_status damacy__libraries_init(damacy__libraries* libraries, damacy_error* err);
static void damacy__libraries_deinit(damacy__libraries* libraries);
static damacy_status damacy__libraries_zstd(damacy__libraries* libraries,
                                            const damacy__zstd_library** out, damacy_error* err);
static damacy_status damacy__libraries_z(damacy__libraries* libraries,
                                         const damacy__z_library** out, damacy_error* err);

static damacy_status damacy__libraries_init(damacy__libraries* libraries, damacy_error* err)
{
    memset(libraries, 0, sizeof *libraries);
    DAMACY__TRY(damacy__mutex_init(&libraries->mutex, err));
    libraries->has_mutex = true;
    return DAMACY_OK;
}

/* A zeroed record is left alone. */
static void damacy__libraries_deinit(damacy__libraries* libraries)
{
    if (libraries->zstd_handle) {
        dlclose(libraries->zstd_handle);
    }
    if (libraries->z_handle) {
        dlclose(libraries->z_handle);
    }
    if (libraries->has_mutex) {
        damacy__mutex_deinit(&libraries->mutex);
    }
    memset(libraries, 0, sizeof *libraries);
}

/* One function of a library; its address is stored through a pointer to a function pointer. */
typedef struct damacy__symbol {
    const char* name;
    void* target;
} damacy__symbol;

/* Opens a library and finds all its functions; the handle is NULL unless all are there. */
static damacy_status damacy__library_open(const char* soname, const char* purpose,
                                          const damacy__symbol* symbols, size_t n, void** out,
                                          damacy_error* err)
{
    void* handle = dlopen(soname, RTLD_NOW | RTLD_LOCAL);

    if (!handle) {
        const char* why = dlerror();
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "%s is needed to decode %s on the host: %.200s", soname, purpose,
                            why ? why : "not found");
    }
    for (size_t i = 0; i < n; i++) {
        void* address = dlsym(handle, symbols[i].name);
        if (!address) {
            dlclose(handle);
            return damacy__fail(err, DAMACY_UNSUPPORTED, "%s has no %s: too old to decode %s",
                                soname, symbols[i].name, purpose);
        }
        memcpy(symbols[i].target, &address, sizeof address);
    }
    *out = handle;
    return DAMACY_OK;
}

/* The functions of libzstd, opened at the first call. Any thread. */
static damacy_status damacy__libraries_zstd(damacy__libraries* libraries,
                                            const damacy__zstd_library** out, damacy_error* err)
{
    damacy_status status = DAMACY_OK;
    damacy__zstd_library* z = &libraries->zstd;

    damacy__lock(&libraries->mutex);
    if (!libraries->zstd_handle) {
        const damacy__symbol symbols[] = {
            {"ZSTD_createDCtx", &z->create},         {"ZSTD_freeDCtx", &z->free},
            {"ZSTD_decompressDCtx", &z->decompress}, {"ZSTD_DCtx_setParameter", &z->set_parameter},
            {"ZSTD_isError", &z->is_error},          {"ZSTD_getErrorName", &z->error_name}};
        status = damacy__library_open("libzstd.so.1", "zstd", symbols, DAMACY__COUNT(symbols),
                                      &libraries->zstd_handle, err);
    }
    damacy__unlock(&libraries->mutex);
    *out = z;
    return status;
}

/* The functions of libz, opened at the first call. Any thread. */
static damacy_status damacy__libraries_z(damacy__libraries* libraries,
                                         const damacy__z_library** out, damacy_error* err)
{
    damacy_status status = DAMACY_OK;
    damacy__z_library* z = &libraries->z;

    damacy__lock(&libraries->mutex);
    if (!libraries->z_handle) {
        const damacy__symbol symbols[] = {{"inflateInit2_", &z->init},
                                          {"inflate", &z->inflate},
                                          {"inflateReset", &z->reset},
                                          {"inflateEnd", &z->end}};
        status = damacy__library_open("libz.so.1", "gzip and zlib", symbols, DAMACY__COUNT(symbols),
                                      &libraries->z_handle, err);
    }
    damacy__unlock(&libraries->mutex);
    *out = z;
    return status;
}
