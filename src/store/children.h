/* The nodes below a folder on disk, as words of an error message: what could be opened instead of
 * it. Names that would not look like names there are left out, and so are those past the first few
 * in alphabetical order. */
#pragma once
#include "store/store.h"

enum { DAMACY__CHILDREN = 6, DAMACY__CHILD_NAME = 48, DAMACY__CHILDREN_SEEN = 10000 };

/* Whether the name could stand in a message as it is, and a node's metadata lies below it. */
static bool damacy__child_is_node(int folder, const char* name)
{
    static const char* const documents[] = {"zarr.json", ".zarray", ".zgroup"};
    const size_t len = strlen(name);

    if (len == 0 || len >= DAMACY__CHILD_NAME || name[0] == '.') {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if (name[i] <= ' ' || name[i] > '~') {
            return false;
        }
    }
    for (uint32_t i = 0; i < DAMACY__COUNT(documents); i++) {
        char path[DAMACY__CHILD_NAME + 16];
        struct stat info;
        (void)snprintf(path, sizeof path, "%s/%s", name, documents[i]);
        if (fstatat(folder, path, &info, AT_SYMLINK_NOFOLLOW) == 0) {
            return true;
        }
    }
    return false;
}

/* "membranes, nuclei" into text, "" if nothing is found; the caller's own store cannot tell. */
static void damacy__store_children(const damacy__store* store, const damacy__root* root, char* text,
                                   size_t size)
{
    char names[DAMACY__CHILDREN][DAMACY__CHILD_NAME];
    uint32_t n = 0;
    uint32_t n_found = 0;
    size_t at = 0;
    const struct dirent* entry;
    DIR* const folder = damacy__store_is_custom(store) ? NULL : opendir(root->path);

    text[0] = '\0';
    if (!folder) {
        return;
    }
    for (uint32_t i = 0; i < DAMACY__CHILDREN_SEEN && (entry = readdir(folder)) != NULL; i++) {
        uint32_t place = n;
        if (!damacy__child_is_node(dirfd(folder), entry->d_name)) {
            continue;
        }
        n_found++;
        while (place > 0 && strcmp(entry->d_name, names[place - 1]) < 0) {
            place--;
        }
        if (place < DAMACY__CHILDREN) {
            n = DAMACY__MIN(n + 1, (uint32_t)DAMACY__CHILDREN);
            memmove(names + place + 1, names + place, (n - 1 - place) * sizeof names[0]);
            memcpy(names[place], entry->d_name, strlen(entry->d_name) + 1);
        }
    }
    (void)closedir(folder);
    for (uint32_t i = 0; i < n && at < size; i++) {
        const int len = snprintf(text + at, size - at, "%s%s", i ? ", " : "", names[i]);
        at += len > 0 ? (size_t)len : 0;
    }
    if (n_found > n && at < size) {
        (void)snprintf(text + at, size - at, " and %u more", n_found - n);
    }
}
