#include "utf8.h"

int utf8_write(char *to, uint32_t code)
{
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    for (int i = more; i > 0; i--, code >>= 6)
        to[i] = (char)(0x80 | (code & 0x3F));
    to[0] = (char)(lead[more] | code);
    return more + 1;
}

int64_t utf8_read(const char *at, const char *end, int *bytes)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    unsigned char lead = (unsigned char)*at;
    int more = lead < 0x80 ? 0 : lead >> 5 == 6 ? 1 : lead >> 4 == 14 ? 2 : lead >> 3 == 30 ? 3 : -1;
    *bytes = 1;
    if (more < 0 || end - at <= more)
        return -1;
    uint32_t code = more == 0 ? lead : lead & (0x3Fu >> more);
    for (int i = 1; i <= more; i++) {
        if (((unsigned char)at[i] & 0xC0) != 0x80)
            return -1;
        code = code << 6 | ((unsigned char)at[i] & 0x3F);
    }
    if (code < least[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return -1;
    *bytes = more + 1;
    return code;
}
