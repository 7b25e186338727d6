/* Notes in the cache of compiled kernels: which file of NVRTC made the code of a key.
 *
 * Opening NVRTC takes longer than all else of a warm start. While its file has the size and time
 * that it had, what it made before is what it would make now, and it need not be opened. */
#pragma once
#include "gpu/cache.h"
#include "gpu/driver.h"

/* Layout of a note: words, little-endian, then the path of NVRTC with a zero byte. */
enum { DAMACY__NOTE_WORDS = 4, DAMACY__NOTE_PATH = 512 };
typedef struct damacy__note {
    uint64_t word[DAMACY__NOTE_WORDS]; /* key of the code; bytes and mtime of the file of NVRTC */
    char path[DAMACY__NOTE_PATH];
} damacy__note;

/* Fills in what the file is like now; false when it is not there. */
static bool damacy__note_look(damacy__note* note)
{
    struct stat info;

    if (note->path[0] != '/' || stat(note->path, &info) != 0) {
        return false;
    }
    note->word[2] = (uint64_t)info.st_size;
    note->word[3] =
        (uint64_t)info.st_mtim.tv_sec * UINT64_C(1000000000) + (uint64_t)info.st_mtim.tv_nsec;
    return true;
}

/* Remembers which NVRTC made the code of a key. Failures only cost time later. */
static void damacy__note_store(const damacy__cache* cache, const damacy__driver* driver,
                               const damacy__cache_key* note_key, const damacy__cache_key* key)
{
    int (*function)(int*, int*) = driver->nvrtc_version;
    uint8_t bytes[8 * DAMACY__NOTE_WORDS + DAMACY__NOTE_PATH];
    damacy__note note;
    void* address = NULL;
    Dl_info where;
    int len;

    memset(&note, 0, sizeof note);
    memset(bytes, 0, sizeof bytes);
    memcpy(&address, &function, sizeof address);
    if (dladdr(address, &where) == 0 || !where.dli_fname) {
        return;
    }
    len = snprintf(note.path, sizeof note.path, "%s", where.dli_fname);
    if (len < 0 || (size_t)len >= sizeof note.path || !damacy__note_look(&note)) {
        return;
    }
    note.word[0] = key->word[0];
    note.word[1] = key->word[1];
    for (uint32_t i = 0; i < DAMACY__NOTE_WORDS; i++) {
        damacy__store_u64le(bytes + 8 * i, note.word[i]);
    }
    memcpy(bytes + 8 * DAMACY__NOTE_WORDS, note.path, sizeof note.path);
    (void)damacy__cache_store(cache, note_key, bytes, sizeof bytes);
}

/* The key of code that the NVRTC of a note has made, if its file is as it was. */
static bool damacy__note_load(const damacy__cache* cache, damacy__alloc* alloc,
                              const damacy__cache_key* note_key, damacy__cache_key* key)
{
    damacy__note note;
    damacy__note now;
    uint8_t* bytes = NULL;
    uint64_t size = 0;
    bool is_good;

    if (!damacy__cache_load(cache, alloc, note_key, &bytes, &size)) {
        return false;
    }
    memset(&note, 0, sizeof note);
    is_good = size == 8 * DAMACY__NOTE_WORDS + DAMACY__NOTE_PATH && bytes[size - 1] == 0;
    for (uint32_t i = 0; is_good && i < DAMACY__NOTE_WORDS; i++) {
        note.word[i] = damacy__load_u64le(bytes + 8 * i);
    }
    if (is_good) {
        memcpy(note.path, bytes + 8 * DAMACY__NOTE_WORDS, sizeof note.path);
        now = note;
        is_good = damacy__note_look(&now) && memcmp(&now, &note, sizeof note) == 0;
        key->word[0] = note.word[0];
        key->word[1] = note.word[1];
    }
    damacy__free(alloc, bytes, size + 1);
    return is_good;
}
