/* Names to paths: what a uri means as a local folder, and which keys may be looked up beneath it.
 *
 * A uri comes from the caller and may point anywhere; a key may come from metadata, so it can only
 * go down: "..", ".", empty components and a leading "/" are refused. */
#pragma once
#include "base/alloc.h"

enum { DAMACY__PATH_SIZE = 4096 }; /* bytes of a path with its final zero, as in PATH_MAX */

static damacy_status damacy__uri_path(const char* uri, char* path, damacy_error* err);
static damacy_status damacy__uri_prefix(const char* uri, char* prefix, damacy_error* err);
static damacy_status damacy__key_check(const char* key, damacy_error* err);

/* Bytes of the scheme of "scheme://..." or "file:...", 0 when it is a plain path. */
static size_t damacy__uri_scheme(const char* uri)
{
    size_t n = 0;

    while ((uri[n] >= 'a' && uri[n] <= 'z') || (uri[n] >= 'A' && uri[n] <= 'Z') ||
           (n > 0 && ((uri[n] >= '0' && uri[n] <= '9') || uri[n] == '+' || uri[n] == '-' ||
                      uri[n] == '.'))) {
        n++;
    }
    if (n == 0 || uri[n] != ':') {
        return 0;
    }
    if (uri[n + 1] == '/' && uri[n + 2] == '/') {
        return n;
    }
    return n == 4 && strncasecmp(uri, "file", 4) == 0 ? n : 0;
}

static int damacy__hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Undoes %XX (RFC 3986 section 2.1). */
static damacy_status damacy__percent_decode(const char* src, char* dst, damacy_error* err)
{
    size_t n = 0;

    for (; *src; src++) {
        char c = *src;
        if (c == '?' || c == '#') {
            return damacy__fail(err, DAMACY_INVAL,
                                "a file uri has no query or fragment; write '%c' as %%%02X", c,
                                (unsigned)c);
        }
        if (c == '%') {
            const int high = damacy__hex_digit(src[1]);
            const int low = high < 0 ? -1 : damacy__hex_digit(src[2]);
            if (low < 0) {
                return damacy__fail(err, DAMACY_INVAL,
                                    "\"%.8s\": %% needs two hexadecimal digits after it", src);
            }
            if (high == 0 && low == 0) {
                return damacy__fail(err, DAMACY_INVAL, "%%00 in a file uri");
            }
            c = (char)(unsigned char)(high << 4 | low);
            src += 2;
        }
        dst[n++] = c;
    }
    dst[n] = '\0';
    return DAMACY_OK;
}

/* The part of a file uri that is the path (RFC 8089): file:///path, file://localhost/path,
 * file:/path. */
static damacy_status damacy__file_uri_path(const char* rest, char* path, damacy_error* err)
{
    if (rest[0] == '/' && rest[1] == '/') {
        const char* host = rest + 2;
        const size_t len = strcspn(host, "/");
        if (len != 0 && !(len == 9 && strncasecmp(host, "localhost", 9) == 0)) {
            return damacy__fail(err, DAMACY_INVAL,
                                "host \"%.*s\" in a file uri; only file:///path is local",
                                (int)DAMACY__MIN(len, 64), host);
        }
        rest = host + len;
    }
    if (rest[0] != '/') {
        return damacy__fail(err, DAMACY_INVAL, "a file uri needs an absolute path: file:///path");
    }
    return damacy__percent_decode(rest, path, err);
}

static damacy_status damacy__uri_check_size(const char* uri, damacy_error* err)
{
    if (uri[0] == '\0') {
        return damacy__fail(err, DAMACY_INVAL, "the uri is empty");
    }
    if (strnlen(uri, DAMACY__PATH_SIZE) == DAMACY__PATH_SIZE) {
        return damacy__fail(err, DAMACY_INVAL, "%.60s...: the uri is longer than %d bytes", uri,
                            DAMACY__PATH_SIZE - 1);
    }
    return DAMACY_OK;
}

/* Cuts slashes at the end, but not the only one. */
static void damacy__trim_slashes(char* path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/') {
        path[--n] = '\0';
    }
}

/* The path of a local folder into path[DAMACY__PATH_SIZE]. INVAL: malformed. UNSUPPORTED: another
 * scheme than file. */
static damacy_status damacy__uri_path(const char* uri, char* path, damacy_error* err)
{
    size_t scheme;

    DAMACY__TRY(damacy__uri_check_size(uri, err));
    scheme = damacy__uri_scheme(uri);
    if (scheme == 0) {
        memcpy(path, uri, strlen(uri) + 1);
    } else if (scheme == 4 && strncasecmp(uri, "file", 4) == 0) {
        DAMACY__TRY(damacy__file_uri_path(uri + 5, path, err));
    } else {
        return damacy__fail(err, DAMACY_UNSUPPORTED,
                            "scheme \"%.*s\" of %.100s: only local files are built in; "
                            "config.store can supply others",
                            (int)DAMACY__MIN(scheme, 32), uri, uri);
    }
    damacy__trim_slashes(path);
    return DAMACY_OK;
}

/* The prefix of a caller's own store: the uri as it is, less slashes at its end. */
static damacy_status damacy__uri_prefix(const char* uri, char* prefix, damacy_error* err)
{
    DAMACY__TRY(damacy__uri_check_size(uri, err));
    memcpy(prefix, uri, strlen(uri) + 1);
    damacy__trim_slashes(prefix);
    return DAMACY_OK;
}

/* A key such as "zarr.json" or "c/0/1". INVAL: it could leave the folder, or names nothing. */
static damacy_status damacy__key_check(const char* key, damacy_error* err)
{
    const char* part = key;

    if (strlen(key) >= DAMACY__PATH_SIZE) {
        return damacy__fail(err, DAMACY_INVAL, "key %.60s... is longer than %d bytes", key,
                            DAMACY__PATH_SIZE - 1);
    }
    for (;;) {
        const size_t len = strcspn(part, "/");
        if (len == 0) {
            return damacy__fail(err, DAMACY_INVAL, "key \"%.200s\" has an empty component", key);
        }
        if (part[0] == '.' && (len == 1 || (len == 2 && part[1] == '.'))) {
            return damacy__fail(err, DAMACY_INVAL, "key \"%.200s\" has the component \"%.*s\"", key,
                                (int)len, part);
        }
        if (part[len] == '\0') {
            return DAMACY_OK;
        }
        part += len + 1;
    }
}
