/* damacy: looks at, prints and checks Zarr arrays with damacy.h.
 *
 *   damacy info URI [--json] [--level K]
 *   damacy cat URI [--box a:b,c:d,...] [--dtype native|f32|...] [--device auto|cpu|cuda|N] [--level
 * K]
 *              [--oob reject|fill|clamp|reflect] [-o FILE]
 *   damacy verify URI [--level K]
 *   damacy --array_path=PATH          elements in C order, one per line
 *
 * cat writes little-endian C order to standard output, or to FILE; a name that ends in .npy gets
 * numpy's header. Exit code 1 with one line on standard error when something fails, 2 for bad
 * usage. */
#define DAMACY_IMPLEMENTATION
#include "damacy.h"

typedef struct options {
    const char* command;
    const char* uri;
    const char* output;
    const char* box;
    damacy_config config;
    int is_json;
    int as_text;
} options;

static void print_usage(FILE* file)
{
    (void)fprintf(file,
                  "usage: damacy info URI [--json] [--level K]\n"
                  "       damacy cat URI [--box a:b,c:d,...] [--dtype native|f32|...] [--device "
                  "auto|cpu|cuda|N]\n"
                  "                  [--level K] [--oob reject|fill|clamp|reflect] [-o FILE]\n"
                  "       damacy verify URI [--level K]\n"
                  "       damacy --array_path=PATH\n"
                  "       damacy --help, damacy --version\n");
}

static int usage(const char* what)
{
    (void)fprintf(stderr, "damacy: %s\n", what);
    print_usage(stderr);
    return 2;
}

static int failed(damacy_status status, const damacy_error* err)
{
    const size_t len = strlen(err->uri);
    const int is_named = len > 0 && !err->chunk[0] && strncmp(err->message, err->uri, len) == 0;

    (void)fprintf(stderr, "damacy: %s: %s%s%s%s%s\n", damacy_status_str(status),
                  is_named ? "" : err->uri, err->chunk[0] ? " " : "", err->chunk,
                  !is_named && (len > 0 || err->chunk[0]) ? ": " : "", err->message);
    return 1;
}

/* A whole non-negative number; -1 otherwise. */
static int64_t number_of(const char* text)
{
    char* end = NULL;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && value >= 0 ? (int64_t)value : -1;
}

static int parse_dtype(const char* text, damacy_dtype* out)
{
    for (int i = 0; i < DAMACY_NATIVE; i++) {
        if (strcmp(text, damacy_dtype_str((damacy_dtype)i)) == 0) {
            *out = (damacy_dtype)i;
            return 1;
        }
    }
    *out = DAMACY_NATIVE;
    return strcmp(text, "native") == 0;
}

static int parse_device(const char* text, int32_t* out)
{
    const int64_t ordinal = number_of(text);

    if (strcmp(text, "auto") == 0) {
        *out = DAMACY_AUTO;
    } else if (strcmp(text, "cpu") == 0) {
        *out = DAMACY_CPU;
    } else if (strcmp(text, "cuda") == 0) {
        *out = DAMACY_GPU(0);
    } else if (ordinal >= 0 && ordinal < 4096) {
        *out = DAMACY_GPU((int32_t)ordinal);
    } else {
        return 0;
    }
    return 1;
}

static int parse_bounds(const char* text, damacy_bounds* out)
{
    static const char* const names[] = {"reject", "fill", "clamp", "reflect"};

    for (int i = 0; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (damacy_bounds)i;
            return 1;
        }
    }
    return 0;
}

/* One option with its value; returns how many arguments it took, 0 when it is wrong. */
static int parse_option(options* o, const char* name, const char* value)
{
    int64_t level;

    if (strcmp(name, "--json") == 0) {
        o->is_json = 1;
        return 1;
    }
    if (!value) {
        return 0;
    }
    if (strcmp(name, "--box") == 0) {
        o->box = value;
    } else if (strcmp(name, "-o") == 0) {
        o->output = value;
    } else if (strcmp(name, "--level") == 0) {
        level = number_of(value);
        if (level < 0 || level > 1000) {
            return 0;
        }
        o->config.level = (uint32_t)level;
    } else if (!(strcmp(name, "--dtype") == 0 && parse_dtype(value, &o->config.dtype)) &&
               !(strcmp(name, "--device") == 0 && parse_device(value, &o->config.device)) &&
               !(strcmp(name, "--oob") == 0 && parse_bounds(value, &o->config.bounds))) {
        return 0;
    }
    return 2;
}

static int parse(options* o, int argc, char** argv)
{
    memset(o, 0, sizeof *o);
    o->config.dtype = DAMACY_NATIVE;
    if (argc == 2 && strncmp(argv[1], "--array_path=", 13) == 0) {
        o->command = "cat";
        o->uri = argv[1] + 13;
        o->as_text = 1;
        return 1;
    }
    if (argc < 3) {
        return 0;
    }
    o->command = argv[1];
    for (int i = 2; i < argc;) {
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            const int n = parse_option(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
            if (n == 0) {
                return 0;
            }
            i += n;
        } else if (!o->uri) {
            o->uri = argv[i++];
        } else {
            return 0;
        }
    }
    return o->uri != NULL;
}

/* ---- info ---- */

static void print_text(const char* text)
{
    (void)putchar('"');
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            (void)printf("\\%c", c);
        } else if (c < 0x20) {
            (void)printf("\\u%04x", c);
        } else {
            (void)putchar(c);
        }
    }
    (void)putchar('"');
}

static void print_list(const int64_t* values, uint32_t n)
{
    (void)putchar('[');
    for (uint32_t i = 0; i < n; i++) {
        (void)printf("%s%lld", i ? ", " : "", (long long)values[i]);
    }
    (void)putchar(']');
}

static void print_names(const char* const* names, uint32_t n)
{
    (void)putchar('[');
    for (uint32_t i = 0; i < n; i++) {
        (void)printf("%s", i ? ", " : "");
        if (names[i]) {
            print_text(names[i]);
        } else {
            (void)printf("null");
        }
    }
    (void)putchar(']');
}

static void print_fill(const damacy_array_info_t* info)
{
    (void)printf("0x");
    for (size_t i = damacy_dtype_size(info->dtype); i-- > 0;) {
        (void)printf("%02x", info->fill_value[i]);
    }
}

/* With as few digits as give the same number again. */
static void print_doubles(const double* values, uint32_t n)
{
    char text[40];

    (void)putchar('[');
    for (uint32_t i = 0; i < n; i++) {
        for (int digits = 15; digits <= 17; digits++) {
            (void)snprintf(text, sizeof text, "%.*g", digits, values[i]);
            if (strtod(text, NULL) == values[i]) {
                break;
            }
        }
        (void)printf("%s%s", i ? ", " : "", text);
    }
    (void)putchar(']');
}

static void print_json(const damacy_array_info_t* info)
{
    (void)printf("{\"uri\": ");
    print_text(info->uri);
    (void)printf(", \"zarr_format\": %u, \"shape\": ", info->zarr_format);
    print_list(info->shape, info->rank);
    (void)printf(", \"data_type\": ");
    print_text(info->data_type);
    (void)printf(", \"dtype\": \"%s\", \"big_endian\": %s, \"chunk_shape\": ",
                 damacy_dtype_str(info->dtype), info->is_big_endian ? "true" : "false");
    print_list(info->chunk_shape, info->rank);
    (void)printf(", \"shard_shape\": ");
    if (info->is_sharded) {
        print_list(info->shard_shape, info->rank);
    } else {
        (void)printf("null");
    }
    (void)printf(", \"codecs\": ");
    print_text(info->codecs);
    (void)printf(", \"fill_value_bits\": \"");
    print_fill(info);
    (void)printf("\", \"dimension_names\": ");
    print_names(info->dimension_names, info->rank);
    (void)printf(", \"level\": %u, \"levels\": [", info->level);
    for (uint32_t i = 0; i < info->n_levels; i++) {
        (void)printf("%s{\"path\": ", i ? ", " : "");
        print_text(info->levels[i].path);
        (void)printf(", \"scale\": ");
        print_doubles(info->levels[i].scale, info->rank);
        (void)printf(", \"translation\": ");
        print_doubles(info->levels[i].translation, info->rank);
        (void)printf("}");
    }
    (void)printf("], \"axes\": ");
    print_names(info->axis_names, info->n_levels ? info->rank : 0);
    (void)printf(", \"attributes\": %s, \"group_attributes\": %s}\n", info->attributes,
                 info->group_attributes ? info->group_attributes : "null");
}

static void print_info(const damacy_array_info_t* info)
{
    (void)printf("uri        %s\nformat     Zarr v%u\nshape      ", info->uri, info->zarr_format);
    print_list(info->shape, info->rank);
    (void)printf("\ndata type  %s%s\nchunks     ", info->data_type,
                 info->is_big_endian ? ", big-endian" : "");
    print_list(info->chunk_shape, info->rank);
    if (info->is_sharded) {
        (void)printf("\nshards     ");
        print_list(info->shard_shape, info->rank);
    }
    (void)printf("\ncodecs     %s\nfill       ", info->codecs);
    print_fill(info);
    (void)printf("\naxes       ");
    print_names(info->n_levels ? info->axis_names : info->dimension_names, info->rank);
    (void)printf("\n");
    for (uint32_t i = 0; i < info->n_levels; i++) {
        (void)printf("level %-2u   %s%s, voxel ", i, info->levels[i].path,
                     i == info->level ? " (this one)" : "");
        print_doubles(info->levels[i].scale, info->rank);
        (void)printf("\n");
    }
}

static int run_info(const options* o)
{
    damacy_array_info_t info;
    damacy_array* array = NULL;
    damacy_error err;
    const damacy_status status = damacy_array_open(&o->config, o->uri, &array, &err);

    if (status != DAMACY_OK) {
        return failed(status, &err);
    }
    damacy_array_info(array, &info);
    if (o->is_json) {
        print_json(&info);
    } else {
        print_info(&info);
    }
    damacy_array_close(array);
    return 0;
}

/* ---- verify ---- */

static void print_finding(void* user, const damacy_error* finding)
{
    (void)user;
    (void)printf("%s", finding->chunk);
    if (finding->offset != UINT64_MAX) {
        (void)printf(" at byte %llu", (unsigned long long)finding->offset);
    }
    (void)printf(": %s: %s\n", damacy_status_str(finding->status), finding->message);
}

static int run_verify(const options* o)
{
    damacy_verify_result result;
    damacy_error err;
    const damacy_status status =
        damacy_verify(&o->config, o->uri, print_finding, NULL, &result, &err);

    if (status != DAMACY_OK) {
        return failed(status, &err);
    }
    (void)printf("%llu chunks, %llu not stored, %llu bad; %llu bytes read, %llu decoded\n",
                 (unsigned long long)result.n_chunks, (unsigned long long)result.n_missing,
                 (unsigned long long)result.n_bad, (unsigned long long)result.size_stored,
                 (unsigned long long)result.size_decoded);
    return result.n_bad != 0;
}

/* ---- cat ---- */

/* The box, cut along one axis so that consecutive pieces are consecutive in the output: whole slabs
 * of `thick` voxels, and a thinner one at the end of the axis. */
typedef struct slabs {
    uint32_t rank;
    damacy_interval box[DAMACY_MAX_RANK];
    uint32_t axis;
    int64_t thick;
    uint64_t n_outer;  /* combinations of the axes before it */
    uint64_t per_axis; /* slabs along it */
} slabs;

static int64_t extent_of(damacy_interval interval)
{
    return interval.end - interval.begin;
}

/* Slabs of at most about 64 MiB of voxels, of whole chunks where that is possible. */
static void slabs_make(slabs* s, const damacy_array_info_t* info)
{
    int64_t inner = 1;
    const int64_t limit = (INT64_C(64) << 20) / 8;

    s->axis = 0;
    s->thick = 1;
    s->n_outer = 1;
    for (uint32_t i = s->rank; i-- > 0;) {
        const int64_t n = extent_of(s->box[i]);
        s->axis = i;
        s->thick = n > 0 ? n : 1;
        if (n > 0 && inner > limit / n) {
            s->thick = limit / inner > 0 ? limit / inner : 1;
            if (s->thick > info->shard_shape[i]) {
                s->thick -= s->thick % info->shard_shape[i];
            } else if (s->thick > info->chunk_shape[i]) {
                s->thick -= s->thick % info->chunk_shape[i];
            }
            break;
        }
        inner *= n > 0 ? n : 1;
    }
    for (uint32_t i = 0; i < s->axis; i++) {
        s->n_outer *= (uint64_t)extent_of(s->box[i]);
    }
    s->per_axis = s->rank ? ((uint64_t)extent_of(s->box[s->axis]) + (uint64_t)s->thick - 1) /
                                (uint64_t)s->thick
                          : 1;
}

/* The k-th slab, and whether it is a thin one. */
static int slabs_at(const slabs* s, uint64_t k, damacy_sample* sample)
{
    uint64_t outer = k / s->per_axis;

    sample->rank = s->rank;
    memcpy(sample->box, s->box, sizeof s->box);
    for (uint32_t i = s->axis; i-- > 0;) {
        const uint64_t n = (uint64_t)extent_of(s->box[i]);
        sample->box[i].begin = s->box[i].begin + (int64_t)(outer % n);
        sample->box[i].end = sample->box[i].begin + 1;
        outer /= n;
    }
    if (s->rank == 0) {
        return 0;
    }
    sample->box[s->axis].begin = s->box[s->axis].begin + (int64_t)(k % s->per_axis) * s->thick;
    if (sample->box[s->axis].begin + s->thick < s->box[s->axis].end) {
        sample->box[s->axis].end = sample->box[s->axis].begin + s->thick;
    }
    return extent_of(sample->box[s->axis]) != s->thick;
}

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

static int write_voxels(FILE* file, const options* o, damacy_dtype dtype, const void* ptr,
                        uint64_t size)
{
    const size_t item = damacy_dtype_size(dtype);

    if (!o->as_text) {
        return fwrite(ptr, 1, (size_t)size, file) == size;
    }
    for (uint64_t i = 0; i < size; i += item) {
        print_element(file, dtype, (const uint8_t*)ptr + i);
    }
    return !ferror(file);
}

static const char* npy_type(damacy_dtype dtype)
{
    static const char* const names[] = {"<f4", NULL,  "<f2", "<f8", "|u1", "<u2", "<u4",
                                        "<u8", "|i1", "<i2", "<i4", "<i8", "|b1"};

    return names[dtype];
}

/* numpy's format 1.0: magic, length, a dictionary padded to 64 bytes. */
static int write_npy_header(FILE* file, damacy_dtype dtype, const slabs* s)
{
    char text[1024];
    int len = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                       npy_type(dtype));
    uint8_t head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 0, 0};

    for (uint32_t i = 0; i < s->rank; i++) {
        len += snprintf(text + len, sizeof text - (size_t)len, "%lld,",
                        (long long)extent_of(s->box[i]));
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

static int parse_box(const char* text, slabs* s)
{
    for (uint32_t i = 0; i < s->rank; i++) {
        char* end = NULL;
        s->box[i].begin = strtoll(text, &end, 10);
        if (end == text || *end != ':') {
            return 0;
        }
        text = end + 1;
        s->box[i].end = strtoll(text, &end, 10);
        if (end == text || *end != (i + 1 < s->rank ? ',' : '\0') ||
            s->box[i].end <= s->box[i].begin) {
            return 0;
        }
        text = end + 1;
    }
    return s->rank > 0;
}

static void show_progress(uint64_t done, uint64_t n)
{
    if (isatty(2) && n > 1) {
        (void)fprintf(stderr, "\r%3u %%%s", (unsigned)(100 * done / n),
                      done == n ? "\r     \r" : "");
    }
}

/* Writes one batch, by way of host memory. */
static damacy_status write_batch(FILE* file, const options* o, damacy_batch batch,
                                 damacy_error* err)
{
    damacy_batch_info_t info;
    damacy_status status;
    void* voxels;

    (void)damacy_batch_info(batch, &info);
    if (info.device == DAMACY_CPU) {
        voxels = info.ptr;
        status = DAMACY_OK;
    } else {
        voxels = malloc((size_t)info.size + 1);
        status = voxels ? damacy_batch_read(batch, voxels, (size_t)info.size, err) : DAMACY_OOM;
    }
    if (status == DAMACY_OK && !write_voxels(file, o, info.dtype, voxels, info.size)) {
        status = DAMACY_IO;
        (void)snprintf(err->message, sizeof err->message, "cannot write: %s", strerror(errno));
    }
    if (info.device != DAMACY_CPU) {
        free(voxels);
    }
    return status;
}

static damacy_status copy_slabs(const options* o, const slabs* s, FILE* file, damacy_dtype dtype,
                                damacy_error* err)
{
    const uint64_t n = s->n_outer * s->per_axis;
    damacy* pipes[2] = {NULL, NULL};
    damacy_status status = DAMACY_OK;
    uint64_t pushed = 0;

    for (uint64_t popped = 0; popped < n && status == DAMACY_OK; popped++) {
        damacy_sample sample;
        damacy_batch batch;
        int thin;
        while (pushed < n && pushed < popped + 8 && status == DAMACY_OK) {
            memset(&sample, 0, sizeof sample);
            sample.uri = o->uri;
            thin = slabs_at(s, pushed, &sample);
            if (!pipes[thin]) {
                damacy_config c = o->config;
                c.dtype = dtype;
                c.max_host_bytes = c.max_host_bytes ? c.max_host_bytes : UINT64_C(4) << 30;
                status = damacy_create(&c, &pipes[thin], err);
            }
            if (status == DAMACY_OK) {
                status = damacy_push(pipes[thin], &sample, 1, NULL, err);
            }
            pushed += status == DAMACY_OK;
        }
        if (status != DAMACY_OK) {
            break;
        }
        thin = slabs_at(s, popped, &sample);
        status = damacy_pop(pipes[thin], &batch, err);
        if (status == DAMACY_OK) {
            status = write_batch(file, o, batch, err);
            (void)damacy_release(batch);
        }
        show_progress(popped + 1, n);
    }
    damacy_destroy(pipes[0]);
    damacy_destroy(pipes[1]);
    return status;
}

static int run_cat(const options* o)
{
    damacy_array_info_t info;
    damacy_array* array = NULL;
    damacy_error err;
    damacy_dtype dtype;
    FILE* file = stdout;
    slabs s;
    const size_t len = o->output ? strlen(o->output) : 0;
    const int is_npy = len > 4 && strcmp(o->output + len - 4, ".npy") == 0;
    damacy_status status = damacy_array_open(&o->config, o->uri, &array, &err);

    if (status != DAMACY_OK) {
        return failed(status, &err);
    }
    damacy_array_info(array, &info);
    dtype = o->config.dtype == DAMACY_NATIVE ? info.dtype : o->config.dtype;
    memset(&s, 0, sizeof s);
    s.rank = info.rank;
    for (uint32_t i = 0; i < info.rank; i++) {
        s.box[i].end = info.shape[i];
    }
    if (o->box && !parse_box(o->box, &s)) {
        damacy_array_close(array);
        return usage("--box needs one begin:end per axis");
    }
    slabs_make(&s, &info);
    damacy_array_close(array);
    if (is_npy && !npy_type(dtype)) {
        return usage("numpy has no bf16: choose another --dtype or file name");
    }
    memset(&err, 0, sizeof err);
    if (o->output && !(file = fopen(o->output, "wb"))) {
        (void)snprintf(err.message, sizeof err.message, "%.200s: %s", o->output, strerror(errno));
        return failed(DAMACY_IO, &err);
    }
    if (is_npy && !write_npy_header(file, dtype, &s)) {
        status = DAMACY_IO;
        (void)snprintf(err.message, sizeof err.message, "cannot write: %s", strerror(errno));
    }
    if (status == DAMACY_OK) {
        status = copy_slabs(o, &s, file, dtype, &err);
    }
    if (fflush(file) != 0 && status == DAMACY_OK) {
        status = DAMACY_IO;
        (void)snprintf(err.message, sizeof err.message, "cannot write: %s", strerror(errno));
    }
    if (file != stdout && fclose(file) != 0 && status == DAMACY_OK) {
        status = DAMACY_IO;
        (void)snprintf(err.message, sizeof err.message, "cannot write: %s", strerror(errno));
    }
    return status == DAMACY_OK ? 0 : failed(status, &err);
}

int main(int argc, char** argv)
{
    options o;

    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        print_usage(stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        (void)printf("damacy %d.%d.%d\n", DAMACY_VERSION_MAJOR, DAMACY_VERSION_MINOR,
                     DAMACY_VERSION_PATCH);
        return 0;
    }
    if (!parse(&o, argc, argv)) {
        return usage("bad arguments");
    }
    if (strcmp(o.command, "info") == 0) {
        return run_info(&o);
    }
    if (strcmp(o.command, "cat") == 0) {
        return run_cat(&o);
    }
    if (strcmp(o.command, "verify") == 0) {
        return run_verify(&o);
    }
    return usage("unknown command");
}
