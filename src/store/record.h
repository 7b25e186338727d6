/* The records of the store, and the words for what goes wrong with one of them. */
#pragma once
#include "base/table.h"
#include "store/file.h"
#include "store/handles.h"
#include "store/latency.h"
#include "store/uri.h"

/* A folder, or a prefix of the caller's store. */
typedef struct damacy__root {
    damacy__entry entry; /* first; in the table unless is_stale */
    damacy__handle handle;
    char* path; /* absolute, or the prefix; set at creation, then constant */
    size_t path_len;
    uint32_t n_refs; /* guarded by the store's mutex: callers and objects */
    bool is_stale;   /* guarded as above: replaced on disk, not to be handed out again */
    bool is_known;   /* guarded as above: device and inode are set */
    uint64_t device;
    uint64_t inode;
} damacy__root;

typedef enum damacy__object_state {
    DAMACY__OBJECT_OPENING = 0, /* by one thread; the others wait */
    DAMACY__OBJECT_READY,
    DAMACY__OBJECT_FAILED /* not in the table; lives until those who waited have seen the error */
} damacy__object_state;

/* A file or an object of the caller's store. */
typedef struct damacy__object {
    damacy__entry entry; /* first; in the table unless is_stale */
    damacy__handle handle;
    damacy__root* root; /* one reference; set at creation, then constant, as is the key */
    char* key;
    size_t key_capacity;
    uint32_t n_refs; /* guarded by the store's mutex; 0: idle, kept for the next user */
    uint32_t state;  /* guarded as above: damacy__object_state */
    bool is_stale;   /* guarded as above */
    bool is_known;   /* opened once: id is set; written while OPENING, as are the next two */
    damacy__file_id id;
    void* custom;         /* the caller's object */
    damacy_status status; /* guarded as above: of a FAILED one, as is the next */
    char message[sizeof(((damacy_error*)0)->message)];
    struct damacy__object* spare; /* next in the list of spare records */
} damacy__object;

typedef struct damacy__store {
    damacy__alloc* alloc;      /* set at init, then constant, as is what follows */
    damacy__os os;             /* tests replace its calls before the first use */
    damacy_store custom;       /* open NULL: local files */
    damacy_latency latency;    /* of every open and read */
    bool follow_outside_links; /* symbolic links may leave the root */
    uint32_t max_idle;         /* objects that are kept without a user */
    bool lacks_openat2;        /* atomic */
    uint64_t n_calls;          /* atomic: opens and reads that were delayed */
    damacy__handles handles;
    damacy__mutex mutex;
    damacy__condition opened; /* an object is not OPENING any more */
    damacy__table roots;      /* guarded by mutex, as is what follows */
    damacy__table objects;
    uint32_t n_idle;
    damacy__object* spare; /* records to use again, so that steady state allocates nothing */
    uint32_t n_spare;
} damacy__store;

enum { DAMACY__NAME_TEXT = 240 }; /* leaves room for the cause in a message */

/* "<root>/<key>" into text[DAMACY__NAME_TEXT]; of a long name the end. key NULL: the root alone. */
static const char* damacy__store_name(const damacy__root* root, const char* key, char* text)
{
    const size_t key_len = key ? strlen(key) : 0;
    const size_t room = DAMACY__NAME_TEXT - 8;
    const size_t len = root->path_len + key_len;
    const size_t cut = len > room ? len - room : 0;

    (void)snprintf(text, DAMACY__NAME_TEXT, "%s%s%s%s", cut ? "..." : "",
                   root->path + DAMACY__MIN(cut, root->path_len),
                   key && cut < root->path_len ? "/" : "",
                   key ? key + (cut > root->path_len ? cut - root->path_len : 0) : "");
    return text;
}

static damacy_status damacy__root_fail(const damacy__root* root, int code, damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    char cause[DAMACY__ERRNO_TEXT];

    damacy__store_name(root, NULL, name);
    damacy__errno_text(code, cause);
    if (code == ENOENT) {
        return damacy__fail(err, DAMACY_NOTFOUND, "%s: there is no such folder", name);
    }
    if (code == ENOTDIR) {
        return damacy__fail(err, DAMACY_NOTFOUND, "%s: it, or what is above it, is not a folder",
                            name);
    }
    return damacy__fail(err, code == ENOMEM ? DAMACY_OOM : DAMACY_IO,
                        "%s: cannot open the folder: %s", name, cause);
}

/* Why an object could not be opened. Only ENOENT before anything was open (mode 0) means that there
 * is none. */
static damacy_status damacy__object_fail(const damacy__object* object, int code, mode_t mode,
                                         damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];
    char cause[DAMACY__ERRNO_TEXT];

    damacy__store_name(object->root, object->key, name);
    damacy__errno_text(code, cause);
    if (code == EBADF && mode != 0 && !S_ISREG(mode)) {
        return damacy__fail(err, DAMACY_IO, "%s: not a regular file but a %s", name,
                            damacy__file_kind(mode));
    }
    if (code == ENOENT && mode == 0) {
        return damacy__fail(err, DAMACY_NOTFOUND, "%s: there is no such object", name);
    }
    if (code == ENOLINK) {
        return damacy__fail(err, DAMACY_IO, "%s: a symbolic link on the way leads nowhere", name);
    }
    if (code == EXDEV) {
        return damacy__fail(err, DAMACY_IO,
                            "%s: a symbolic link leads out of the root folder; "
                            "follow_outside_links allows that",
                            name);
    }
    if (code == ELOOP) {
        return damacy__fail(err, DAMACY_IO,
                            "%s: symbolic links go in a circle, or may not be followed here: %s",
                            name, cause);
    }
    return damacy__fail(err, code == ENOMEM ? DAMACY_OOM : DAMACY_IO, "%s: cannot open: %s", name,
                        cause);
}

static damacy_status damacy__object_fail_short(const damacy__object* object, uint64_t offset,
                                               size_t size, uint64_t end, damacy_error* err)
{
    char name[DAMACY__NAME_TEXT];

    err->offset = offset;
    return damacy__fail(err, DAMACY_IO,
                        "%s: wanted %zu bytes at %" PRIu64 ", the object ends at %" PRIu64,
                        damacy__store_name(object->root, object->key, name), size, offset, end);
}
