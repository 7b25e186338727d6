/* Kernels that can be launched: a program is one .cu source, perhaps specialised by macros.
 *
 * Each program is compiled, or fetched from the cache, by a thread of its own while its owner does
 * other things; damacy__program_finish waits for it and loads it. A cache entry that the driver
 * refuses only costs a compilation. */
#pragma once
#include "gpu/compile.h"
#include "gpu/device.h"

enum { DAMACY__PROGRAM_ENTRIES = 24 };

/* What a program is made of. Name and entries must be literals; the rest is copied. */
typedef struct damacy__program_spec {
    const char* name;           /* which source: "kernels/zstd.cu" */
    const char* const* entries; /* extern "C" kernels; their order gives the indices of `kernels` */
    uint32_t n_entries;
    const char* const* defines; /* "NAME=VALUE" or "NAME", at most 63 characters */
    uint32_t n_defines;
} damacy__program_spec;

/* A kernel of a finished program. */
typedef struct damacy__kernel {
    damacy__function function; /* NULL: none */
    const char* name;
    uint32_t max_threads;    /* per block */
    uint32_t static_shared;  /* bytes per block */
    uint32_t dynamic_shared; /* bytes per block that a launch may ask for */
    uint32_t registers;      /* per thread */
    uint32_t local_size;     /* bytes per thread: arrays and spilled registers */
} damacy__kernel;

/* Zero: none. One owner, one thread at a time. */
typedef struct damacy__program {
    damacy__compiler* compiler;
    const char* name;
    const char* entries[DAMACY__PROGRAM_ENTRIES];
    uint32_t n_entries;
    char defines[DAMACY__COMPILE_DEFINES][64];
    uint32_t n_defines;

    pthread_t thread;
    bool has_thread;
    damacy_status status; /* set by the thread, as are the two below; read once it was joined */
    damacy_error error;
    damacy__image image;

    bool is_finished; /* status is final; if OK, the kernels are ready */
    damacy__module module;
    damacy__kernel kernels[DAMACY__PROGRAM_ENTRIES];
} damacy__program;

/* Blocks and threads of a launch. */
typedef struct damacy__grid {
    uint32_t x; /* blocks */
    uint32_t y;
    uint32_t z;
    uint32_t threads; /* per block, along x */
    uint32_t shared;  /* dynamic shared memory per block, bytes */
    /* Shared memory that a multiprocessor should have, in percent of the most; the rest is L1. A
     * wish: one that is busy keeps what it has. 0: the driver's choice. */
    uint32_t division;
} damacy__grid;

/* The driver's CUlaunchAttribute and CUlaunchConfig. */
typedef struct damacy__launch_attribute {
    int id; /* DAMACY__LAUNCH_DIVISION */
    union {
        uint64_t room[8];
        unsigned percent;
    } value;
} damacy__launch_attribute;

typedef struct damacy__launch_config {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    damacy__stream stream;
    damacy__launch_attribute* attributes;
    unsigned n_attributes;
} damacy__launch_config;

enum {
    DAMACY__LAUNCH_DIVISION = 14,          /* CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_... */
    DAMACY__LAUNCH_DIVISION_SINCE = 12080, /* version of the driver that certainly knows it */
    DAMACY__SYSTEM_SHARED = 1024           /* what a block of threads takes beside its own */
};

static damacy_status damacy__program_start(damacy__program* program, damacy__compiler* compiler,
                                           const damacy__program_spec* spec, damacy_error* err);
static damacy_status damacy__program_finish(damacy__program* program, damacy__device* device,
                                            damacy_error* err);
static void damacy__program_deinit(damacy__program* program, damacy__device* device);
static damacy_status damacy__kernel_allow_shared(damacy__kernel* kernel, damacy__device* device,
                                                 uint32_t size, damacy_error* err);
DAMACY__UNUSED static damacy_status damacy__kernel_occupancy(const damacy__kernel* kernel,
                                                             damacy__device* device,
                                                             uint32_t threads, uint32_t shared,
                                                             uint32_t* blocks, damacy_error* err);
static damacy_status damacy__kernel_launch(const damacy__kernel* kernel, damacy__device* device,
                                           const damacy__grid* grid, damacy__stream stream,
                                           void** parameters, damacy_error* err);

/* A grid of one dimension. */
static inline damacy__grid damacy__grid_of(uint32_t blocks, uint32_t threads, uint32_t shared)
{
    damacy__grid grid;

    grid.x = blocks;
    grid.y = 1;
    grid.z = 1;
    grid.threads = threads;
    grid.shared = shared;
    grid.division = 0;
    return grid;
}

/* The division with room for `blocks` blocks of threads of so much shared memory; 0 if the driver
 * cannot be asked. */
static uint32_t damacy__division_for(const damacy__device* device, uint32_t blocks, uint32_t shared)
{
    const uint64_t size = (uint64_t)blocks * (shared + DAMACY__SYSTEM_SHARED);

    if (!device->driver->launch_with || device->driver->version < DAMACY__LAUNCH_DIVISION_SINCE ||
        device->shared_per_multiprocessor == 0) {
        return 0;
    }
    return (uint32_t)DAMACY__MIN(damacy__div_up(100 * size, device->shared_per_multiprocessor),
                                 100);
}

/* What to compile; defines is room for the pointers. */
static damacy__compilation_spec
damacy__program_compilation(const damacy__program* program, bool ignores_cache,
                            const char* defines[DAMACY__COMPILE_DEFINES])
{
    damacy__compilation_spec spec;

    for (uint32_t i = 0; i < program->n_defines; i++) {
        defines[i] = program->defines[i];
    }
    spec.name = program->name;
    spec.defines = defines;
    spec.n_defines = program->n_defines;
    spec.ignores_cache = ignores_cache;
    return spec;
}

static void* damacy__program_main(void* context)
{
    damacy__program* program = (damacy__program*)context;
    damacy__compiler* compiler = program->compiler;
    const char* defines[DAMACY__COMPILE_DEFINES];
    const damacy__compilation_spec spec = damacy__program_compilation(program, false, defines);
    const bool is_there = damacy__compile_from_note(compiler, &spec, &program->image);

    if (!is_there) {
        program->status = damacy__compiler_prepare(compiler, &program->error);
    }
    damacy__compiler_undecided(compiler, false);
    if (!is_there && program->status == DAMACY_OK) {
        program->status = damacy__compile(compiler, &spec, &program->image, &program->error);
    }
    return NULL;
}

/* Begins to compile on a thread of its own and returns. Errors of the compilation surface in
 * finish. On failure the program is zero. */
static damacy_status damacy__program_start(damacy__program* program, damacy__compiler* compiler,
                                           const damacy__program_spec* spec, damacy_error* err)
{
    damacy_status status;

    memset(program, 0, sizeof *program);
    assert(spec->n_entries <= DAMACY__PROGRAM_ENTRIES &&
           spec->n_defines <= DAMACY__COMPILE_DEFINES);
    program->compiler = compiler;
    program->name = spec->name;
    program->n_entries = spec->n_entries;
    program->n_defines = spec->n_defines;
    for (uint32_t i = 0; i < spec->n_entries; i++) {
        program->entries[i] = spec->entries[i];
    }
    for (uint32_t i = 0; i < spec->n_defines; i++) {
        assert(strlen(spec->defines[i]) < sizeof program->defines[i]);
        (void)snprintf(program->defines[i], sizeof program->defines[i], "%s", spec->defines[i]);
    }
    damacy__compiler_undecided(compiler, true);
    status = damacy__thread_start(&program->thread, "damacy-compile", damacy__program_main, program,
                                  err);
    if (status != DAMACY_OK) {
        damacy__compiler_undecided(compiler, false);
        memset(program, 0, sizeof *program);
        return status;
    }
    program->has_thread = true;
    return DAMACY_OK;
}

static void damacy__program_join(damacy__program* program)
{
    if (program->has_thread) {
        pthread_join(program->thread, NULL);
        program->has_thread = false;
    }
}

static damacy_status damacy__function_attribute(damacy__device* device, damacy__function function,
                                                int attribute, uint32_t* out, damacy_error* err)
{
    int value = 0;

    DAMACY__TRY(damacy__device_check(
        device, device->driver->function_attribute(&value, attribute, function), err,
        "cuFuncGetAttribute %d", attribute));
    *out = value > 0 ? (uint32_t)value : 0;
    return DAMACY_OK;
}

/* What a kernel needs and may ask for. */
static damacy_status damacy__kernel_measure(damacy__kernel* kernel, damacy__device* device,
                                            damacy__function function, damacy_error* err)
{
    DAMACY__TRY(damacy__function_attribute(device, function, DAMACY__FUNCTION_MAX_THREADS,
                                           &kernel->max_threads, err));
    DAMACY__TRY(damacy__function_attribute(device, function, DAMACY__FUNCTION_STATIC_SHARED,
                                           &kernel->static_shared, err));
    DAMACY__TRY(damacy__function_attribute(device, function, DAMACY__FUNCTION_MAX_DYNAMIC_SHARED,
                                           &kernel->dynamic_shared, err));
    DAMACY__TRY(damacy__function_attribute(device, function, DAMACY__FUNCTION_REGISTERS,
                                           &kernel->registers, err));
    return damacy__function_attribute(device, function, DAMACY__FUNCTION_LOCAL_BYTES,
                                      &kernel->local_size, err);
}

/* Looks the entries of a loaded module up. */
static damacy_status damacy__program_resolve(damacy__program* program, damacy__device* device,
                                             damacy_error* err)
{
    for (uint32_t i = 0; i < program->n_entries; i++) {
        damacy__kernel* kernel = &program->kernels[i];
        damacy__function function = NULL;
        DAMACY__TRY(damacy__device_check(
            device,
            device->driver->module_function(&function, program->module, program->entries[i]), err,
            "%s has no kernel %s", program->name, program->entries[i]));
        kernel->name = program->entries[i];
        DAMACY__TRY(damacy__kernel_measure(kernel, device, function, err));
        kernel->function = function;
    }
    return damacy__device_alive(device, err);
}

/* Loads the image. One from the cache that the driver does not take is made anew, once. */
static damacy_status damacy__program_load(damacy__program* program, damacy__device* device,
                                          damacy_error* err)
{
    const char* defines[DAMACY__COMPILE_DEFINES];
    damacy__compilation_spec spec;
    int code = device->driver->module_load(&program->module, program->image.bytes);

    if (code != DAMACY__CUDA_OK && !damacy__cuda_is_sticky(code) &&
        code != DAMACY__CUDA_OUT_OF_MEMORY && program->image.is_cached) {
        damacy__cache_remove(&program->compiler->cache, &program->image.key);
        damacy__image_free(program->compiler, &program->image);
        spec = damacy__program_compilation(program, true, defines);
        DAMACY__TRY(damacy__compile(program->compiler, &spec, &program->image, err));
        code = device->driver->module_load(&program->module, program->image.bytes);
    }
    DAMACY__TRY(
        damacy__device_check(device, code, err, "the driver does not load %s", program->name));
    return damacy__program_resolve(program, device, err);
}

/* Waits for the compilation and loads the kernels. Again: returns the same. The context is current.
 * CUDA, UNSUPPORTED, OOM, DEVICE_LOST. */
static damacy_status damacy__program_finish(damacy__program* program, damacy__device* device,
                                            damacy_error* err)
{
    if (!program->is_finished) {
        damacy__program_join(program);
        if (program->status == DAMACY_OK) {
            program->status = damacy__device_alive(device, &program->error);
        }
        if (program->status == DAMACY_OK) {
            program->status = damacy__program_load(program, device, &program->error);
        }
        damacy__image_free(program->compiler, &program->image);
        program->is_finished = true;
    }
    if (program->status != DAMACY_OK) {
        return damacy__fail(err, program->status, "%s", program->error.message);
    }
    return DAMACY_OK;
}

/* No launch is under way. Zeroed, or only started: fine. device may be NULL if finish was never
 * called. */
static void damacy__program_deinit(damacy__program* program, damacy__device* device)
{
    if (!program->compiler) {
        return;
    }
    damacy__program_join(program);
    damacy__image_free(program->compiler, &program->image);
    if (program->module && damacy__device_enter_to_free(device)) {
        (void)damacy__device_note(device, device->driver->module_unload(program->module),
                                  "cuModuleUnload");
        damacy__device_leave(device);
    }
    memset(program, 0, sizeof *program);
}

/* Lets launches of the kernel ask for up to size bytes of dynamic shared memory. */
static damacy_status damacy__kernel_allow_shared(damacy__kernel* kernel, damacy__device* device,
                                                 uint32_t size, damacy_error* err)
{
    DAMACY__TRY(damacy__device_alive(device, err));
    if ((uint64_t)size + kernel->static_shared > device->shared_per_block) {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "%s needs %u bytes of shared memory per block, GPU %d (%s) has %u",
                            kernel->name, size + kernel->static_shared, device->ordinal,
                            device->name, device->shared_per_block);
    }
    DAMACY__TRY(
        damacy__device_check(device,
                             device->driver->function_set(
                                 kernel->function, DAMACY__FUNCTION_MAX_DYNAMIC_SHARED, (int)size),
                             err, "%s with %u bytes of shared memory", kernel->name, size));
    kernel->dynamic_shared = size;
    return DAMACY_OK;
}

/* Blocks of the kernel that one multiprocessor runs at a time: sizes persistent grids. At least 1.
 */
static damacy_status damacy__kernel_occupancy(const damacy__kernel* kernel, damacy__device* device,
                                              uint32_t threads, uint32_t shared, uint32_t* blocks,
                                              damacy_error* err)
{
    int count = 0;

    DAMACY__TRY(damacy__device_alive(device, err));
    DAMACY__TRY(damacy__device_check(
        device, device->driver->function_occupancy(&count, kernel->function, (int)threads, shared),
        err, "occupancy of %s", kernel->name));
    *blocks = count > 0 ? (uint32_t)count : 1;
    return DAMACY_OK;
}

/* The wish for a division, from damacy__division_for: the driver knows it. */
static damacy__launch_attribute damacy__division_wish(const damacy__grid* grid)
{
    damacy__launch_attribute division;

    memset(&division, 0, sizeof division);
    division.id = DAMACY__LAUNCH_DIVISION;
    division.value.percent = grid->division;
    return division;
}

/* A wish that is refused is none; what else is wrong, the call without it tells. */
static bool damacy__is_wish_refused(int code)
{
    return code == DAMACY__CUDA_INVALID_VALUE || code == DAMACY__CUDA_NOT_SUPPORTED;
}

/* A launch with a wish for the division. */
static int damacy__launch_divided(const damacy__kernel* kernel, damacy__device* device,
                                  const damacy__grid* grid, damacy__stream stream,
                                  void** parameters)
{
    damacy__launch_attribute division = damacy__division_wish(grid);
    damacy__launch_config config;

    memset(&config, 0, sizeof config);
    config.grid[0] = grid->x;
    config.grid[1] = grid->y;
    config.grid[2] = grid->z;
    config.block[0] = grid->threads;
    config.block[1] = config.block[2] = 1;
    config.shared = grid->shared;
    config.stream = stream;
    config.attributes = &division;
    config.n_attributes = 1;
    return device->driver->launch_with(&config, kernel->function, parameters, NULL);
}

/* Queues the kernel on the stream. parameters: one pointer per parameter, read during the call. An
 * empty grid does nothing. Errors of the kernel itself surface in later calls, as DEVICE_LOST. */
static damacy_status damacy__kernel_launch(const damacy__kernel* kernel, damacy__device* device,
                                           const damacy__grid* grid, damacy__stream stream,
                                           void** parameters, damacy_error* err)
{
    int code = DAMACY__CUDA_NOT_SUPPORTED;

    DAMACY__TRY(damacy__device_alive(device, err));
    if (grid->x == 0 || grid->y == 0 || grid->z == 0) {
        return DAMACY_OK;
    }
    if (grid->division) {
        code = damacy__launch_divided(kernel, device, grid, stream, parameters);
    }
    if (damacy__is_wish_refused(code)) {
        code = device->driver->launch(kernel->function, grid->x, grid->y, grid->z, grid->threads, 1,
                                      1, grid->shared, stream, parameters, NULL);
    }
    return damacy__device_check(device, code, err,
                                "launch of %s on %u x %u x %u blocks of %u threads", kernel->name,
                                grid->x, grid->y, grid->z, grid->threads);
}
