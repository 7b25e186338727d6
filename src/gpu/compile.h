/* CUDA C++ text in memory -> machine code, by NVRTC or from the cache on disk.
 *
 * The code is for the exact architecture. Where NVRTC does not know it, for the newest one before
 * it that the device can run: machine code of the same major version, else PTX, which the driver
 * translates. Needs no GPU. Opening NVRTC takes longer than all else: a note in the cache says
 * which file it was that made the code, and while that file is as it was, it is not opened. */
#pragma once
#include "base/calls.h"
#include "base/sync.h"
#include "gpu/note.h"

/* Whether kernels know their lines, for profilers and checkers. Tests define it. */
#if !defined(DAMACY__LINE_INFO)
#define DAMACY__LINE_INFO false
#endif

enum { DAMACY__COMPILE_SOURCES = 80, DAMACY__COMPILE_DEFINES = 24 };

/* A file that the compiler sees. */
typedef struct damacy__source {
    const char* name; /* as in #include: "kernels/abi.h" */
    const char* text;
} damacy__source;

/* What the programs of one device have in common. Set by init, then constant but for the guarded
 * part. */
typedef struct damacy__compiler {
    damacy__alloc* alloc;
    damacy__driver* driver;
    const damacy__source* sources; /* all of them: they include each other by name */
    uint32_t n_sources;
    uint32_t architecture;  /* 90: compute capability 9.0 */
    bool has_line_info;     /* for profilers and checkers */
    const char* kernel_dir; /* NULL: the texts above. Else the folder that holds kernels/, to read
                               them from: an edit then needs no new build of the host. For
                               development; the caller's */
    damacy__cache cache;

    damacy__mutex mutex;
    damacy__condition changed;
    uint32_t n_undecided;       /* guarded by mutex: programs that may turn out to need NVRTC */
    bool is_looked_for;         /* guarded by mutex: NVRTC */
    bool is_held;               /* guarded by mutex: the cache is read, but nothing is compiled */
    bool is_stopped;            /* guarded by mutex: nothing will be compiled any more */
    damacy_status nvrtc_status; /* guarded by mutex */
    damacy_error nvrtc_error;   /* guarded by mutex */

    uint32_t n_compiled; /* atomic: images made by NVRTC */
    uint32_t n_cached;   /* atomic: images taken from the cache */
} damacy__compiler;

/* What to compile. */
typedef struct damacy__compilation_spec {
    const char* name;           /* which source */
    const char* const* defines; /* "NAME=VALUE" or "NAME" */
    uint32_t n_defines;
    bool ignores_cache; /* compile in any case, and replace the entry */
} damacy__compilation_spec;

/* What cuModuleLoadData takes; free with damacy__image_free. Zero: none. */
typedef struct damacy__image {
    uint8_t* bytes; /* a zero byte follows */
    uint64_t size;
    damacy__cache_key key;
    bool is_cached; /* it came from the cache */
} damacy__image;

static damacy_status damacy__compiler_init(damacy__compiler* compiler, damacy__alloc* alloc,
                                           damacy__driver* driver, uint32_t architecture,
                                           const damacy__source* sources, uint32_t n_sources,
                                           const char* cache_dir, damacy_error* err);
static void damacy__compiler_deinit(damacy__compiler* compiler);
static damacy_status damacy__compile(damacy__compiler* compiler,
                                     const damacy__compilation_spec* spec, damacy__image* out,
                                     damacy_error* err);
static bool damacy__compile_from_note(damacy__compiler* compiler,
                                      const damacy__compilation_spec* spec, damacy__image* out);
static void damacy__image_free(damacy__compiler* compiler, damacy__image* image);

/* cache_dir: as damacy_config.cache_dir. Quick: NVRTC is opened by the first compilation. */
static damacy_status damacy__compiler_init(damacy__compiler* compiler, damacy__alloc* alloc,
                                           damacy__driver* driver, uint32_t architecture,
                                           const damacy__source* sources, uint32_t n_sources,
                                           const char* cache_dir, damacy_error* err)
{
    memset(compiler, 0, sizeof *compiler);
    assert(n_sources <= DAMACY__COMPILE_SOURCES);
    DAMACY__TRY(damacy__mutex_init(&compiler->mutex, err));
    if (damacy__condition_init(&compiler->changed, err) != DAMACY_OK) {
        damacy__mutex_deinit(&compiler->mutex);
        return err->status;
    }
    compiler->alloc = alloc;
    compiler->driver = driver;
    compiler->architecture = architecture;
    compiler->has_line_info = DAMACY__LINE_INFO;
    compiler->sources = sources;
    compiler->n_sources = n_sources;
    damacy__cache_open(&compiler->cache, cache_dir);
    return DAMACY_OK;
}

/* No compilation runs any more. Zeroed: no effect. */
static void damacy__compiler_deinit(damacy__compiler* compiler)
{
    if (compiler->alloc) {
        damacy__cache_close(&compiler->cache);
        damacy__condition_deinit(&compiler->changed);
        damacy__mutex_deinit(&compiler->mutex);
    }
    memset(compiler, 0, sizeof *compiler);
}

/* What is not in the cache waits for release; called before the first program starts. */
static void damacy__compiler_hold(damacy__compiler* compiler)
{
    damacy__lock(&compiler->mutex);
    compiler->is_held = true;
    damacy__unlock(&compiler->mutex);
}

/* Ends a hold. Unless it is wanted, what would have to be compiled fails instead: the programs can
 * then be freed soon. */
static void damacy__compiler_release(damacy__compiler* compiler, bool is_wanted)
{
    damacy__lock(&compiler->mutex);
    compiler->is_held = false;
    compiler->is_stopped = !is_wanted;
    damacy__broadcast(&compiler->changed);
    damacy__unlock(&compiler->mutex);
}

/* Opens NVRTC once, whichever thread comes first; the others wait, which is why the lock is held.
 */
static damacy_status damacy__compiler_prepare(damacy__compiler* compiler, damacy_error* err)
{
    damacy_status status;

    damacy__lock(&compiler->mutex);
    while (compiler->is_held) {
        damacy__wait(&compiler->changed, &compiler->mutex);
    }
    if (compiler->is_stopped) {
        damacy__unlock(&compiler->mutex);
        return damacy__fail(err, DAMACY_CUDA, "the kernels are not wanted any more");
    }
    if (!compiler->is_looked_for) {
        compiler->is_looked_for = true;
        compiler->nvrtc_status =
            damacy__driver_load_nvrtc(compiler->driver, &compiler->nvrtc_error);
    }
    status = compiler->nvrtc_status;
    if (status != DAMACY_OK) {
        (void)damacy__fail(err, status, "%s", compiler->nvrtc_error.message);
    }
    damacy__unlock(&compiler->mutex);
    return status;
}

/* Counts programs that have not found out yet whether they need NVRTC. */
static void damacy__compiler_undecided(damacy__compiler* compiler, bool is_one_more)
{
    damacy__lock(&compiler->mutex);
    compiler->n_undecided += is_one_more ? 1u : 0u - 1u;
    damacy__broadcast(&compiler->changed);
    damacy__unlock(&compiler->mutex);
}

/* Waits until every program that was started has found its code in the cache or has NVRTC, and says
 * whether NVRTC had to be opened. UNSUPPORTED: it is needed and cannot be. */
static damacy_status damacy__compiler_decided(damacy__compiler* compiler, bool* is_needed,
                                              damacy_error* err)
{
    damacy_status status = DAMACY_OK;

    damacy__lock(&compiler->mutex);
    while (compiler->n_undecided > 0) {
        damacy__wait(&compiler->changed, &compiler->mutex);
    }
    *is_needed = compiler->is_looked_for;
    if (compiler->is_looked_for && compiler->nvrtc_status != DAMACY_OK) {
        status = damacy__fail(err, compiler->nvrtc_status, "%s", compiler->nvrtc_error.message);
    }
    damacy__unlock(&compiler->mutex);
    return status;
}

/* How to name the architecture to NVRTC. */
typedef struct damacy__target {
    uint32_t architecture;
    bool is_ptx;
} damacy__target;

static damacy_status damacy__compiler_target(const damacy__compiler* compiler, damacy__target* out,
                                             damacy_error* err)
{
    const damacy__driver* driver = compiler->driver;
    const uint32_t wanted = compiler->architecture;
    int known[64];
    int count = 0;
    uint32_t same_major = 0;
    uint32_t older = 0;

    if (driver->nvrtc_count_archs(&count) != 0 || count <= 0 || count > (int)DAMACY__COUNT(known) ||
        driver->nvrtc_archs(known) != 0) {
        return damacy__fail(err, DAMACY_CUDA, "NVRTC %d.%d does not tell its architectures",
                            driver->nvrtc_major, driver->nvrtc_minor);
    }
    for (int i = 0; i < count; i++) {
        const uint32_t at = known[i] > 0 ? (uint32_t)known[i] : 0;
        if (at <= wanted && at / 10 == wanted / 10) {
            same_major = DAMACY__MAX(same_major, at);
        }
        if (at <= wanted) {
            older = DAMACY__MAX(older, at);
        }
    }
    if (older == 0) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "NVRTC %d.%d makes no code for compute capability %u.%u",
                            driver->nvrtc_major, driver->nvrtc_minor, wanted / 10, wanted % 10);
    }
    out->architecture = same_major ? same_major : older;
    out->is_ptx = same_major == 0;
    return DAMACY_OK;
}

/* ---- sources ---- */

/* The texts of one compilation. Zero: none. */
typedef struct damacy__texts {
    const char* main_text;
    const char* names[DAMACY__COMPILE_SOURCES];
    const char* headers[DAMACY__COMPILE_SOURCES];
    uint32_t n_headers;
    char* read[DAMACY__COMPILE_SOURCES]; /* of kernel_dir: ours to free */
    uint64_t read_size[DAMACY__COMPILE_SOURCES];
    uint32_t n_read;
} damacy__texts;

static void damacy__texts_free(damacy__compiler* compiler, damacy__texts* texts)
{
    for (uint32_t i = 0; i < texts->n_read; i++) {
        damacy__free(compiler->alloc, texts->read[i], texts->read_size[i]);
    }
    texts->n_read = 0;
}

/* Reads kernel_dir/name instead of the built-in text. */
static damacy_status damacy__texts_read(damacy__compiler* compiler, const char* name,
                                        damacy__texts* texts, const char** text, damacy_error* err)
{
    damacy_status status = DAMACY_OK;
    uint64_t size = 0;
    char* bytes = NULL;
    char path[512];
    struct stat info;
    const int len = snprintf(path, sizeof path, "%s/%s", compiler->kernel_dir, name);
    const int fd = len < 0 || (size_t)len >= sizeof path
                       ? -1
                       : damacy__call_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);

    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > (1 << 24)) {
        status = damacy__fail(err, DAMACY_IO, "cannot read kernel source %.300s", path);
    } else {
        size = (uint64_t)info.st_size;
        bytes = damacy__new(compiler->alloc, size + 1, char);
        if (!bytes) {
            status = damacy__fail(err, DAMACY_OOM, "kernel source %.300s", path);
        } else if (!damacy__cache_read_all(fd, (uint8_t*)bytes, size)) {
            damacy__free(compiler->alloc, bytes, size + 1);
            status = damacy__fail(err, DAMACY_IO, "cannot read kernel source %.300s", path);
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (status == DAMACY_OK) {
        texts->read[texts->n_read] = bytes;
        texts->read_size[texts->n_read++] = size + 1;
        *text = bytes;
    }
    return status;
}

static damacy_status damacy__texts_collect(damacy__compiler* compiler, const char* name,
                                           damacy__texts* texts, damacy_error* err)
{
    memset(texts, 0, sizeof *texts);
    for (uint32_t i = 0; i < compiler->n_sources; i++) {
        const damacy__source* source = &compiler->sources[i];
        const char* text = source->text;
        if (compiler->kernel_dir) {
            const damacy_status status =
                damacy__texts_read(compiler, source->name, texts, &text, err);
            if (status != DAMACY_OK) {
                damacy__texts_free(compiler, texts);
                return status;
            }
        }
        if (strcmp(source->name, name) == 0) {
            texts->main_text = text;
        } else {
            texts->names[texts->n_headers] = source->name;
            texts->headers[texts->n_headers++] = text;
        }
    }
    if (!texts->main_text) {
        damacy__texts_free(compiler, texts);
        return damacy__fail(err, DAMACY_INVAL, "there is no kernel source %s", name);
    }
    return DAMACY_OK;
}

/* ---- cache key ---- */

static void damacy__key_add(damacy__cache_key* key, const void* bytes, size_t size)
{
    const uint64_t len = size;

    key->word[0] = damacy__hash(bytes, size, damacy__hash(&len, sizeof len, key->word[0]));
    key->word[1] = damacy__hash(bytes, size, key->word[1] * UINT64_C(0x9e3779b97f4a7c15) + len + 1);
}

/* Every source counts, not only those included: parsing for #include would save nothing. is_note:
 * the key of the note about the code, which NVRTC has no part in. */
static damacy__cache_key damacy__compiler_key(const damacy__compiler* compiler,
                                              const damacy__texts* texts, const char* name,
                                              const char* const* options, uint32_t n_options,
                                              bool is_note)
{
    const int versions[] = {compiler->driver->version, is_note ? -1 : compiler->driver->nvrtc_major,
                            is_note ? -1 : compiler->driver->nvrtc_minor,
                            (int)compiler->architecture};
    damacy__cache_key key = {{1, 2}};

    damacy__key_add(&key, versions, sizeof versions);
    damacy__key_add(&key, name, strlen(name));
    damacy__key_add(&key, texts->main_text, strlen(texts->main_text));
    for (uint32_t i = 0; i < texts->n_headers; i++) {
        damacy__key_add(&key, texts->names[i], strlen(texts->names[i]));
        damacy__key_add(&key, texts->headers[i], strlen(texts->headers[i]));
    }
    for (uint32_t i = 0; i < n_options; i++) {
        damacy__key_add(&key, options[i], strlen(options[i]));
    }
    return key;
}

/* ---- compilation ---- */

/* Cuts the compiler's log to the first lines that tell what is wrong. */
static damacy_status damacy__compile_failed(const damacy__compiler* compiler,
                                            damacy__compilation compilation, const char* name,
                                            int code, damacy_error* err)
{
    const damacy__driver* driver = compiler->driver;
    size_t size = 0;
    char* log = NULL;
    const char* first = "";

    if (driver->nvrtc_log_size(compilation, &size) == 0 && size > 1 && size < (1u << 24)) {
        log = damacy__new(compiler->alloc, size + 1, char);
    }
    if (log && driver->nvrtc_log(compilation, log) == 0) {
        const char* error = strstr(log, "error");
        first = log;
        while (error && error > first && error[-1] != '\n') {
            error--;
        }
        first = error ? error : log;
    }
    (void)damacy__fail(
        err, DAMACY_CUDA, "%s does not compile for sm_%u (NVRTC %d.%d, error %d): %.240s", name,
        compiler->architecture, driver->nvrtc_major, driver->nvrtc_minor, code, first);
    damacy__free(compiler->alloc, log, size + 1);
    return DAMACY_CUDA;
}

/* Takes the result out of a compilation that succeeded. */
static damacy_status damacy__compile_take(damacy__compiler* compiler,
                                          damacy__compilation compilation, bool is_ptx,
                                          const char* name, damacy__image* out, damacy_error* err)
{
    const damacy__driver* driver = compiler->driver;
    size_t size = 0;
    int code = is_ptx ? driver->nvrtc_ptx_size(compilation, &size)
                      : driver->nvrtc_cubin_size(compilation, &size);

    if (code == 0 && size > 0) {
        out->bytes = damacy__new(compiler->alloc, (uint64_t)size + 1, uint8_t);
        if (!out->bytes) {
            return damacy__fail(err, DAMACY_OOM, "%s: %zu bytes of machine code", name, size);
        }
        out->size = size;
        code = is_ptx ? driver->nvrtc_ptx(compilation, (char*)out->bytes)
                      : driver->nvrtc_cubin(compilation, (char*)out->bytes);
    }
    if (code != 0 || size == 0) {
        damacy__image_free(compiler, out);
        return damacy__fail(err, DAMACY_CUDA, "%s: NVRTC gives no machine code (error %d)", name,
                            code);
    }
    return DAMACY_OK;
}

static damacy_status damacy__compile_now(damacy__compiler* compiler, const damacy__texts* texts,
                                         const char* name, const char* const* options,
                                         uint32_t n_options, bool is_ptx, damacy__image* out,
                                         damacy_error* err)
{
    const damacy__driver* driver = compiler->driver;
    damacy__compilation compilation = NULL;
    damacy_status status;
    int code = driver->nvrtc_create(&compilation, texts->main_text, name, (int)texts->n_headers,
                                    texts->headers, texts->names);

    if (code != 0) {
        return damacy__fail(err, DAMACY_CUDA, "%s: NVRTC cannot start (error %d)", name, code);
    }
    code = driver->nvrtc_compile(compilation, (int)n_options, options);
    if (code != 0) {
        status = damacy__compile_failed(compiler, compilation, name, code, err);
    } else {
        status = damacy__compile_take(compiler, compilation, is_ptx, name, out, err);
    }
    (void)driver->nvrtc_destroy(&compilation);
    if (status == DAMACY_OK) {
        __atomic_add_fetch(&compiler->n_compiled, 1, __ATOMIC_RELAXED);
    }
    return status;
}

/* Writes the options into `text` and points `options` at them. */
static uint32_t damacy__compile_options(const damacy__compiler* compiler,
                                        const damacy__compilation_spec* spec,
                                        const damacy__target* target,
                                        char text[DAMACY__COMPILE_DEFINES + 1][80],
                                        const char* options[DAMACY__COMPILE_DEFINES + 4])
{
    uint32_t n = 0;

    (void)snprintf(text[0], sizeof text[0], "--gpu-architecture=%s_%u",
                   target->is_ptx ? "compute" : "sm", target->architecture);
    options[n++] = text[0];
    options[n++] = "-std=c++17";
    options[n++] = "-default-device";
    if (compiler->has_line_info) {
        options[n++] = "-lineinfo";
    }
    assert(spec->n_defines <= DAMACY__COMPILE_DEFINES);
    for (uint32_t i = 0; i < spec->n_defines; i++) {
        (void)snprintf(text[i + 1], sizeof text[0], "-D%s", spec->defines[i]);
        options[n++] = text[i + 1];
    }
    return n;
}

/* The key of the note about code of exactly the architecture. */
static damacy__cache_key damacy__compiler_note_key(const damacy__compiler* compiler,
                                                   const damacy__compilation_spec* spec,
                                                   const damacy__texts* texts)
{
    char text[DAMACY__COMPILE_DEFINES + 1][80];
    const char* options[DAMACY__COMPILE_DEFINES + 4];
    damacy__target exact;
    uint32_t n_options;

    memset(&exact, 0, sizeof exact);
    exact.architecture = compiler->architecture;
    n_options = damacy__compile_options(compiler, spec, &exact, text, options);
    return damacy__compiler_key(compiler, texts, spec->name, options, n_options, true);
}

/* Takes the code of image->key from the cache. */
static bool damacy__image_load(damacy__compiler* compiler, damacy__image* image)
{
    image->is_cached = damacy__cache_load(&compiler->cache, compiler->alloc, &image->key,
                                          &image->bytes, &image->size);
    if (image->is_cached) {
        __atomic_add_fetch(&compiler->n_cached, 1, __ATOMIC_RELAXED);
    }
    return image->is_cached;
}

/* Takes the code from the cache without NVRTC, if a note says that it is what NVRTC would make. */
static bool damacy__compile_from_note(damacy__compiler* compiler,
                                      const damacy__compilation_spec* spec, damacy__image* out)
{
    damacy__cache_key note_key;
    damacy__texts texts;
    damacy__image image;
    damacy_error ignored;
    bool is_there;

    damacy__lock(&compiler->mutex);
    is_there = compiler->is_looked_for; /* then its version is known, and better than a note */
    damacy__unlock(&compiler->mutex);
    memset(&image, 0, sizeof image);
    if (is_there || spec->ignores_cache || compiler->cache.folder < 0 ||
        damacy__texts_collect(compiler, spec->name, &texts, &ignored) != DAMACY_OK) {
        return false;
    }
    note_key = damacy__compiler_note_key(compiler, spec, &texts);
    damacy__texts_free(compiler, &texts);
    is_there = damacy__note_load(&compiler->cache, compiler->alloc, &note_key, &image.key) &&
               damacy__image_load(compiler, &image);
    if (is_there) {
        *out = image;
    }
    return is_there;
}

/* Any thread. CUDA: the message holds the start of the compiler's log. UNSUPPORTED: no NVRTC, or it
 * is too old for the device. */
static damacy_status damacy__compile(damacy__compiler* compiler,
                                     const damacy__compilation_spec* spec, damacy__image* out,
                                     damacy_error* err)
{
    char text[DAMACY__COMPILE_DEFINES + 1][80];
    const char* options[DAMACY__COMPILE_DEFINES + 4];
    uint32_t n_options;
    damacy__target target;
    damacy__texts texts;
    damacy__image image;
    damacy_status status;

    memset(&target, 0, sizeof target);
    memset(&image, 0, sizeof image);
    DAMACY__TRY(damacy__compiler_prepare(compiler, err));
    DAMACY__TRY(damacy__compiler_target(compiler, &target, err));
    DAMACY__TRY(damacy__texts_collect(compiler, spec->name, &texts, err));
    n_options = damacy__compile_options(compiler, spec, &target, text, options);
    image.key = damacy__compiler_key(compiler, &texts, spec->name, options, n_options, false);
    if (!spec->ignores_cache && damacy__image_load(compiler, &image)) {
        status = DAMACY_OK;
    } else {
        status = damacy__compile_now(compiler, &texts, spec->name, options, n_options,
                                     target.is_ptx, &image, err);
        if (status == DAMACY_OK) {
            (void)damacy__cache_store(&compiler->cache, &image.key, image.bytes, image.size);
        }
    }
    if (status == DAMACY_OK && !target.is_ptx) {
        const damacy__cache_key note_key = damacy__compiler_note_key(compiler, spec, &texts);
        damacy__note_store(&compiler->cache, compiler->driver, &note_key, &image.key);
    }
    damacy__texts_free(compiler, &texts);
    if (status == DAMACY_OK) {
        *out = image;
    }
    return status;
}

static void damacy__image_free(damacy__compiler* compiler, damacy__image* image)
{
    if (image->bytes) {
        damacy__free(compiler->alloc, image->bytes, image->size + 1);
    }
    memset(image, 0, sizeof *image);
}
