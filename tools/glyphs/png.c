/* PNG (RFC 2083) of one zlib stream (RFC 1950) of one stored block (RFC 1951). */
#include "png.h"

#include <string.h>

typedef struct writer {
    uint8_t *at, *chunk;
} writer;

static void put_big_endian(writer *to, uint32_t value)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *to->at++ = (uint8_t)(value >> shift);
}

static void put_bytes(writer *to, const void *bytes, size_t count)
{
    memcpy(to->at, bytes, count);
    to->at += count;
}

/* Four bits at a time: a table of 16 instead of 256. */
static uint32_t crc32_of(const uint8_t *bytes, size_t count)
{
    static const uint32_t table[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

static uint32_t adler32_of(const uint8_t *bytes, size_t count)
{
    uint32_t a = 1, b = 0; /* b stays below 2^32 for less than 5,000 bytes between reductions */
    for (size_t i = 0; i < count; i++) {
        a += bytes[i];
        b += a;
        if (i % 4096 == 4095) {
            a %= 65521;
            b %= 65521;
        }
    }
    return b % 65521 << 16 | a % 65521;
}

static void begin_chunk(writer *to, uint32_t bytes, const char *kind)
{
    put_big_endian(to, bytes);
    to->chunk = to->at;
    put_bytes(to, kind, 4);
}

static void end_chunk(writer *to)
{
    put_big_endian(to, crc32_of(to->chunk, (size_t)(to->at - to->chunk)));
}

size_t png_encode(const uint8_t *pixels, int size, uint8_t *file)
{
    writer to = {.at = file};
    put_bytes(&to, "\x89PNG\r\n\x1a\n", 8);
    begin_chunk(&to, 13, "IHDR");
    put_big_endian(&to, (uint32_t)size);
    put_big_endian(&to, (uint32_t)size);
    put_bytes(&to, "\x08\0\0\0\0", 5); /* 8 bits, grey, deflate, usual filters, not interlaced */
    end_chunk(&to);

    uint32_t raw_bytes = (uint32_t)(size * (size + 1));
    begin_chunk(&to, 2 + 5 + raw_bytes + 4, "IDAT");
    put_bytes(&to, "\x78\x01\x01", 3); /* zlib's header; the last block, stored */
    for (int part = 0; part < 2; part++) {
        uint32_t length = part == 0 ? raw_bytes : ~raw_bytes;
        *to.at++ = (uint8_t)length;
        *to.at++ = (uint8_t)(length >> 8);
    }
    uint8_t *raw = to.at;
    for (int y = 0; y < size; y++) {
        *to.at++ = 0; /* no filter */
        put_bytes(&to, pixels + y * size, (size_t)size);
    }
    put_big_endian(&to, adler32_of(raw, raw_bytes));
    end_chunk(&to);
    begin_chunk(&to, 0, "IEND");
    end_chunk(&to);
    return (size_t)(to.at - file);
}
