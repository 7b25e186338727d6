/* RGB pictures: a canvas, bright colours for microscopy, and a PNG writer.
 *
 * The PNG is compressed with libz when it is found at run time, else stored: both are valid. */
#pragma once
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct picture {
    int width;
    int height;
    uint8_t* rgb; /* 3 bytes a pixel */
} picture;

static bool picture_init(picture* p, int width, int height, uint8_t r, uint8_t g, uint8_t b)
{
    p->width = width;
    p->height = height;
    p->rgb = (uint8_t*)malloc((size_t)width * (size_t)height * 3);
    for (size_t i = 0; p->rgb && i < (size_t)width * (size_t)height; i++) {
        p->rgb[3 * i] = r;
        p->rgb[3 * i + 1] = g;
        p->rgb[3 * i + 2] = b;
    }
    return p->rgb != NULL;
}

static uint8_t picture_byte(float value)
{
    return value <= 0.0f ? 0 : value >= 1.0f ? 255 : (uint8_t)(255.0f * value + 0.5f);
}

/* A channel of 0..1 in a colour that runs from black over itself to white; channels add up. */
static void picture_add(picture* p, int x, int y, float value, float r, float g, float b)
{
    const float colour[3] = {r, g, b};
    const float v = value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
    uint8_t* const pixel = p->rgb + 3 * ((size_t)y * (size_t)p->width + (size_t)x);

    for (int i = 0; i < 3; i++) {
        const float glow = colour[i] * v + (1.0f - colour[i]) * v * v * v * 0.55f;
        pixel[i] = picture_byte((float)pixel[i] / 255.0f + glow);
    }
}

static void picture_u32(uint8_t* dst, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        dst[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

/* One PNG chunk: length, type, bytes, CRC-32 of type and bytes. */
static bool picture_chunk(FILE* file, const char* type, const uint8_t* bytes, size_t size)
{
    uint8_t head[8];
    uint8_t tail[4];
    uint32_t crc = 0xffffffffu;

    picture_u32(head, (uint32_t)size);
    memcpy(head + 4, type, 4);
    for (size_t i = 0; i < 4 + size; i++) {
        crc ^= i < 4 ? head[4 + i] : bytes[i - 4];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
        }
    }
    picture_u32(tail, ~crc);
    return fwrite(head, 1, 8, file) == 8 && fwrite(bytes, 1, size, file) == size &&
           fwrite(tail, 1, 4, file) == 4;
}

/* A zlib stream of stored blocks; dst has room for size + size / 60000 * 5 + 16 bytes. */
static size_t picture_store(const uint8_t* src, size_t size, uint8_t* dst)
{
    uint32_t a = 1;
    uint32_t b = 0;
    size_t at = 2;

    dst[0] = 0x78;
    dst[1] = 0x01;
    for (size_t done = 0; done < size;) {
        const size_t n = size - done < 60000 ? size - done : 60000;

        dst[at] = done + n == size;
        dst[at + 1] = (uint8_t)n;
        dst[at + 2] = (uint8_t)(n >> 8);
        dst[at + 3] = (uint8_t)~n;
        dst[at + 4] = (uint8_t)(~n >> 8);
        memcpy(dst + at + 5, src + done, n);
        for (size_t i = 0; i < n; i++) {
            a = (a + src[done + i]) % 65521;
            b = (b + a) % 65521;
        }
        at += 5 + n;
        done += n;
    }
    picture_u32(dst + at, b << 16 | a);
    return at + 4;
}

static size_t picture_deflate(const uint8_t* src, size_t size, uint8_t* dst, size_t room)
{
    void* library = dlopen("libz.so.1", RTLD_NOW);
    int (*compress2)(uint8_t*, unsigned long*, const uint8_t*, unsigned long, int) = NULL;
    unsigned long stored = (unsigned long)room;

    if (library) {
        *(void**)(void*)&compress2 = dlsym(library, "compress2");
    }
    if (compress2 && compress2(dst, &stored, src, (unsigned long)size, 9) == 0) {
        return stored;
    }
    return picture_store(src, size, dst);
}

static bool picture_write_png(const picture* p, const char* path)
{
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10};
    const size_t row = (size_t)p->width * 3;
    const size_t size = (row + 1) * (size_t)p->height;
    const size_t room = size + size / 500 + 64;
    uint8_t* raw = (uint8_t*)malloc(size);
    uint8_t* packed = (uint8_t*)malloc(room);
    uint8_t head[13] = {0};
    FILE* file = fopen(path, "wb");
    bool is_fine = raw && packed && file;

    if (is_fine) {
        for (int y = 0; y < p->height; y++) { /* filter 1: each byte less the one a pixel before */
            uint8_t* const to = raw + (size_t)y * (row + 1);
            const uint8_t* const from = p->rgb + (size_t)y * row;

            to[0] = 1;
            for (size_t i = 0; i < row; i++) {
                to[1 + i] = (uint8_t)(from[i] - (i < 3 ? 0 : from[i - 3]));
            }
        }
        picture_u32(head, (uint32_t)p->width);
        picture_u32(head + 4, (uint32_t)p->height);
        head[8] = 8; /* bits */
        head[9] = 2; /* RGB */
        is_fine = fwrite(signature, 1, 8, file) == 8 && picture_chunk(file, "IHDR", head, 13) &&
                  picture_chunk(file, "IDAT", packed, picture_deflate(raw, size, packed, room)) &&
                  picture_chunk(file, "IEND", head, 0);
    }
    if (file && fclose(file) != 0) {
        is_fine = false;
    }
    free(packed);
    free(raw);
    return is_fine;
}
