/* gzip (RFC 1952) and zlib (RFC 1950) on the host through libz.
 *
 * Several gzip members in a row are one stream; libz compares their checksums. Bytes behind the end
 * are an error. */
#pragma once
#include "codec/library.h"

static damacy_status damacy__inflate(damacy__libraries* libraries, bool is_gzip, damacy__span src,
                                     uint8_t* dst, uint64_t capacity, uint64_t* size,
                                     damacy_error* err);

/* Says why inflate stopped before the end of a member. */
static damacy_status damacy__inflate_refuse(const damacy__z_stream* stream, int code,
                                            const char* name, size_t at, uint64_t capacity,
                                            damacy_error* err)
{
    enum { DAMACY__Z_NEED_DICT = 2, DAMACY__Z_DATA_ERROR = -3, DAMACY__Z_MEM_ERROR = -4 };

    if (code == DAMACY__Z_MEM_ERROR) {
        return damacy__fail(err, DAMACY_OOM, "%s: libz has no memory", name);
    }
    err->offset = at;
    if (code == DAMACY__Z_NEED_DICT) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "%s: the stream needs a dictionary", name);
    }
    if (code == DAMACY__Z_DATA_ERROR) {
        return damacy__fail(err, DAMACY_DECODE, "%s: %s at byte %zu", name,
                            stream->msg ? stream->msg : "corrupt data", at);
    }
    if (stream->avail_in == 0) {
        return damacy__fail(err, DAMACY_DECODE, "%s: the stream is cut short at byte %zu", name,
                            at);
    }
    return damacy__fail(err, DAMACY_DECODE, "%s: more than the %" PRIu64 " bytes due", name,
                        capacity);
}

/* Inflates members until the input ends. */
static damacy_status damacy__inflate_members(const damacy__z_library* z, damacy__z_stream* stream,
                                             bool is_gzip, damacy__span src, uint64_t capacity,
                                             damacy_error* err)
{
    enum { DAMACY__Z_FINISH = 4, DAMACY__Z_STREAM_END = 1 };
    const char* name = is_gzip ? "gzip" : "zlib";

    for (;;) { /* every pass takes a member of 18 bytes or more */
        const int code = z->inflate(stream, DAMACY__Z_FINISH);
        const size_t at = (size_t)(stream->next_in - src.ptr);
        if (code != DAMACY__Z_STREAM_END) {
            return damacy__inflate_refuse(stream, code, name, at, capacity, err);
        }
        if (stream->avail_in == 0) {
            return DAMACY_OK;
        }
        if (!is_gzip || z->reset(stream) != 0) {
            err->offset = at;
            return damacy__fail(err, DAMACY_DECODE, "%s: %u bytes behind the end", name,
                                stream->avail_in);
        }
    }
}

/* Decodes the whole of src into at most capacity bytes. */
static damacy_status damacy__inflate(damacy__libraries* libraries, bool is_gzip, damacy__span src,
                                     uint8_t* dst, uint64_t capacity, uint64_t* size,
                                     damacy_error* err)
{
    const damacy__z_library* z = NULL;
    damacy__z_stream stream;
    uint8_t nothing;
    damacy_status status;

    if (src.size > UINT32_MAX || capacity > UINT32_MAX) {
        return damacy__fail(err, DAMACY_UNSUPPORTED, "%s: %zu stored bytes, 4 GiB or more",
                            is_gzip ? "gzip" : "zlib", src.size);
    }
    DAMACY__TRY(damacy__libraries_z(libraries, &z, err));
    memset(&stream, 0, sizeof stream);
    stream.next_in = src.ptr;
    stream.avail_in = (unsigned)src.size;
    stream.next_out = capacity ? dst : &nothing;
    stream.avail_out = (unsigned)capacity;
    if (z->init(&stream, is_gzip ? 15 + 16 : 15, "1.2.0", (int)sizeof stream) != 0) {
        return damacy__fail(err, DAMACY_OOM, "libz: no memory, or too old");
    }
    status = damacy__inflate_members(z, &stream, is_gzip, src, capacity, err);
    *size = capacity - stream.avail_out;
    (void)z->end(&stream);
    return status;
}
