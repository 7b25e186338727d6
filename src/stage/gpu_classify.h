/* What becomes of a stored chunk on the GPU: decoded by which kernels, decoded by the host, or
 * filled. Run once per chunk, and looks at its header at most. */
#pragma once
#include "stage/gpu.h"
#include "stage/host_run.h"

/* Whether the device can deal with chunks of a layout alone: there is no checksum around them. Of
 * blosc chunks the headers must be known besides. */
static bool damacy__gpu_takes_mapped(const damacy__core* core, const damacy__layout* layout)
{
    const damacy__chain* chain = &layout->chunk_chain;
    const uint32_t middle = damacy__chain_middle(chain);
    uint32_t n = chain->n;

    while (n > middle + 1 && chain->codecs[n - 1].kind == DAMACY__CODEC_CRC32C &&
           core->config.skip_checksums) {
        n--;
    }
    return !layout->is_nested &&
           (n == middle + 1 ||
            (n == middle + 2 && (chain->codecs[middle + 1].kind == DAMACY__CODEC_ZSTD ||
                                 chain->codecs[middle + 1].kind == DAMACY__CODEC_LZ4 ||
                                 chain->codecs[middle + 1].kind == DAMACY__CODEC_BLOSC)));
}

/* Whether the device decodes a blosc chunk; of the stored bytes only the header is looked at. */
static bool damacy__gpu_knows_blosc(const damacy__layout* layout, damacy__span stored,
                                    damacy_error* err)
{
    damacy__blosc blosc;

    memset(&blosc, 0, sizeof blosc);
    return damacy__blosc_parse(stored, layout->chunk_size, &blosc, err) == DAMACY_OK &&
           (blosc.is_stored || blosc.inner == DAMACY__BLOSC_ZSTD ||
            blosc.inner == DAMACY__BLOSC_LZ4);
}

/* Reads the headers of a read's chunks, which a mapping does not show to the CPU; true when there
 * is nothing to look at, or all are such that the device decodes the chunks. */
static bool damacy__gpu_knows_headers(const damacy__read_task* task, damacy__object* object)
{
    const damacy__slot* slot = task->slot;
    const damacy__plan_read* read = &slot->plan.reads.items[task->read];
    damacy_error ignored;

    memset(&ignored, 0, sizeof ignored);
    for (uint32_t i = 0; i < read->n_chunks; i++) {
        const damacy__plan_chunk* c =
            &slot->plan.chunks.items[slot->plan.by_place.items[read->first + i]];
        const damacy__chain* chain = &c->layout->chunk_chain;
        const uint32_t middle = damacy__chain_middle(chain);
        uint8_t header[DAMACY__BLOSC_HEADER];
        if (middle + 1 == chain->n || chain->codecs[middle + 1].kind != DAMACY__CODEC_BLOSC) {
            return true;
        }
        if (c->size < sizeof header ||
            damacy__store_read(&slot->core->store, object, c->offset, header, sizeof header,
                               &ignored) != DAMACY_OK ||
            !damacy__gpu_knows_blosc(c->layout, damacy__span_of(header, (size_t)c->size),
                                     &ignored)) {
            return false;
        }
    }
    return true;
}

/* How a stored chunk is decoded; trailing checksums are compared and cut off here, where the bytes
 * are. Of mapped ones nothing is looked at. DAMACY__UNIT_FILL: not at all, *err says why. */
static uint32_t damacy__gpu_classify(const damacy__core* core, const damacy__layout* layout,
                                     bool is_mapped, damacy__span* stored, damacy_error* err)
{
    const damacy__chain* chain = &layout->chunk_chain;
    const uint32_t middle = damacy__chain_middle(chain);
    const damacy__span whole = *stored;
    damacy__decoder checker;
    uint32_t n = chain->n;

    if (layout->is_nested) {
        return DAMACY__UNIT_HOST;
    }
    memset(&checker, 0, sizeof checker);
    checker.skip_checksums = core->config.skip_checksums != 0;
    for (; n > middle + 1 && chain->codecs[n - 1].kind == DAMACY__CODEC_CRC32C; n--) {
        if (damacy__decode_crc32c(&checker, stored, err) != DAMACY_OK) {
            return DAMACY__UNIT_FILL;
        }
    }
    if (n == middle + 1) {
        if (stored->size != layout->chunk_size) {
            (void)damacy__fail(err, DAMACY_DECODE, "%zu stored bytes; the chunk has %" PRIu64,
                               stored->size, layout->chunk_size);
            return DAMACY__UNIT_FILL;
        }
        return DAMACY__UNIT_VOXELS;
    }
    if (n == middle + 2 && chain->codecs[middle + 1].kind == DAMACY__CODEC_ZSTD) {
        return DAMACY__UNIT_ZSTD;
    }
    if (n == middle + 2 && chain->codecs[middle + 1].kind == DAMACY__CODEC_LZ4) {
        return DAMACY__UNIT_LZ4;
    }
    if (n == middle + 2 && chain->codecs[middle + 1].kind == DAMACY__CODEC_BLOSC) {
        if (is_mapped || damacy__gpu_knows_blosc(layout, *stored, err)) {
            return DAMACY__UNIT_BLOSC;
        }
    }
    *stored = whole;
    return DAMACY__UNIT_HOST; /* which also finds the words for what is wrong */
}
