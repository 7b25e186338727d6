/* A configuration in words, one line per resolved field. */
#pragma once
#include "lifecycle.h"

/* Text that is cut at a limit while its whole length is counted. */
typedef struct damacy__text {
    char* ptr;
    size_t size; /* bytes at ptr, the final zero included */
    size_t len;  /* of the whole text */
} damacy__text;

static void damacy__text_add(damacy__text* text, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

static void damacy__text_add(damacy__text* text, const char* format, ...)
{
    const size_t left = text->len < text->size ? text->size - text->len : 0;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(left ? text->ptr + text->len : NULL, left, format, args);
    va_end(args);
    text->len += n > 0 ? (size_t)n : 0;
}

static void damacy__describe_sample(damacy__text* text, const damacy_config* c)
{
    damacy__text_add(text, "sample_shape       ");
    if (c->sample_rank == 0) {
        damacy__text_add(text, "of the first pushed sample\n");
        return;
    }
    for (uint32_t i = 0; i < c->sample_rank; i++) {
        damacy__text_add(text, "%s%" PRId64, i ? " x " : "", c->sample_shape[i]);
    }
    damacy__text_add(text, "\n");
}

static void damacy__describe_device(damacy__text* text, const damacy_config* c)
{
    static const char* const numa[] = {"auto", "off", "pin"};
    static const char* const gds[] = {"auto", "on", "off"}; /* of mapping, too */

    if (c->device == DAMACY_AUTO) {
        damacy__text_add(text,
                         "device             auto: current CUDA context, else GPU 0, else CPU\n");
    } else if (c->device == DAMACY_CPU) {
        damacy__text_add(text, "device             CPU\n");
    } else {
        damacy__text_add(text, "device             GPU %d\n", c->device - 1);
    }
    damacy__text_add(text, "numa               %s\ngds                %s\nmapping            %s\n",
                     numa[c->numa], gds[c->gds], gds[c->mapping]);
}

static void damacy__describe(damacy__text* text, const damacy_config* c)
{
    static const char* const bounds[] = {"reject", "fill", "clamp", "reflect"};
    static const char* const on_error[] = {"stop", "fill", "skip"};

    damacy__describe_sample(text, c);
    damacy__text_add(text, "samples_per_batch  %u\nlookahead_samples  %u\nbatch_slots        %u\n",
                     c->samples_per_batch, c->lookahead_samples, c->batch_slots);
    damacy__text_add(text, "dtype              %s\nbounds             %s\non_error           %s\n",
                     damacy__dtype_str(c->dtype), bounds[c->bounds], on_error[c->on_error]);
    damacy__text_add(text, "level              %u\nchannels           %u\n", c->level,
                     c->n_channels);
    damacy__describe_device(text, c);
    damacy__text_add(text, "max_host_bytes     %" PRIu64 "\n", c->max_host_bytes);
    if (c->max_cache_bytes) {
        damacy__text_add(text, "max_cache_bytes    %" PRIu64 "\n", c->max_cache_bytes);
    } else {
        damacy__text_add(
            text, "max_cache_bytes    what max_gpu_bytes or, on the CPU, max_host_bytes leaves\n");
    }
    if (c->max_gpu_bytes) {
        damacy__text_add(text, "max_gpu_bytes      %" PRIu64 "\n", c->max_gpu_bytes);
    } else {
        damacy__text_add(text, "max_gpu_bytes      a quarter of what is free at create\n");
    }
    damacy__text_add(
        text, "max_read_bytes     %" PRIu64 "\nio_threads         %u\ndecode_threads     %u\n",
        c->max_read_bytes, c->io_threads, c->decode_threads);
    damacy__text_add(text, "store              %s\nallocator          %s\nchecksums          %s\n",
                     c->store.open ? "the caller's" : "local files",
                     c->allocator.alloc ? "the caller's" : "malloc",
                     c->skip_checksums ? "not compared" : "compared");
    if (c->debug_bypass_decode) {
        damacy__text_add(text,
                         "debug              decoding is bypassed: voxels are the fill value\n");
    }
    if (c->debug_latency.base_ns || c->debug_latency.mu != 0 || c->debug_latency.sigma != 0) {
        damacy__text_add(text, "debug              delays are injected\n");
    }
}

DAMACY_API size_t damacy_config_describe(const damacy_config* config, char* text, size_t size)
{
    damacy_config resolved;
    damacy_error error;
    damacy__text out;

    out.ptr = text;
    out.size = text ? size : 0;
    out.len = 0;
    memset(&error, 0, sizeof error);
    if (damacy__config_fill(config, &resolved, &error) == DAMACY_OK) {
        damacy__describe(&out, &resolved);
    } else {
        damacy__text_add(&out, "%s", error.message);
    }
    if (out.size && out.len == 0) {
        text[0] = '\0';
    }
    return out.len;
}
