#include "support/cases.h"

#include "support/check.h"

#include "base/crc64.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s cannot be read", path);
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(bytes + 1);
    ck_assert(text != NULL && fread(text, 1, bytes, file) == bytes);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

static const char *field(const char *path, char *line, const char *name)
{
    size_t length = strlen(name);
    ck_assert_msg(line && strncmp(line, name, length) == 0, "%s: no \"%s\" where \"%s\" stands", path, name,
                  line ? line : "the end");
    return line + length;
}

case_table cases_open(const char *name)
{
    case_table table = {0};
    char *rest, *line;
    snprintf(table.path, sizeof table.path, "%s", test_file(name));
    rest = table.text = read_whole(table.path);
    while ((line = strsep(&rest, "\n"))) {
        if (!*line || *line == '#')
            continue;
        table.cases = realloc(table.cases, (size_t)(table.count + 1) * sizeof *table.cases);
        untrusted_case *new = &table.cases[table.count++];
        *new = (untrusted_case){.name = field(table.path, line, "name: ")};
        new->make = field(table.path, strsep(&rest, "\n"), "make: ");
        new->told = field(table.path, strsep(&rest, "\n"), "told: ");
        for (int i = 0; i < table.count - 1; i++)
            ck_assert_msg(strcmp(table.cases[i].name, new->name) != 0, "%s has \"%s\" twice", table.path, new->name);
    }
    return table;
}

void case_told(untrusted_case *of, const char *text, const char *path, const char *shown)
{
    size_t length = path ? strlen(path) : 0, room = strlen(text) + 1;
    for (const char *at = text; path && (at = strstr(at, path)); at += length)
        room += strlen(shown);
    char *to = of->now = malloc(room);
    ck_assert_ptr_nonnull(to);
    for (const char *found; path && (found = strstr(text, path)); text = found + length)
        to += sprintf(to, "%.*s%s", (int)(found - text), text, shown);
    strcpy(to, text);
}

/* Comments and empty lines stay. */
static void renew(const case_table *table)
{
    char *text = read_whole(table->path), *rest = text, *line;
    FILE *file = fopen(table->path, "wb");
    ck_assert_msg(file != NULL, "%s cannot be written", table->path);
    for (int i = 0; (line = strsep(&rest, "\n"));) {
        if (strncmp(line, "told: ", 6) == 0)
            fprintf(file, "told: %s\n", table->cases[i++].now);
        else
            fprintf(file, rest ? "%s\n" : "%s", line);
    }
    fclose(file);
    free(text);
}

void cases_close(case_table *table)
{
    int wrong = 0;
    printf("cases: %d\n", table->count);
    fflush(stdout);
    for (int i = 0; i < table->count; i++) {
        const untrusted_case *c = &table->cases[i];
        if (strcmp(c->told, c->now) != 0 && wrong++ < 20)
            fprintf(stderr, "%s: %s\n  table: %s\n  now:   %s\n", table->path, c->name, c->told, c->now);
    }
    if (wrong && getenv("SHARD_RENEW_CASES"))
        renew(table);
    else
        ck_assert_msg(wrong == 0, "%d of %d texts are other ones than in %s; see tests/README.md", wrong, table->count,
                      table->path);
    for (int i = 0; i < table->count; i++)
        free(table->cases[i].now);
    free(table->cases);
    free(table->text);
}

/* ---- bytes ---- */

typedef struct content {
    unsigned char *at;
    size_t bytes, capacity;
} content;

static void add(content *to, const void *from, size_t bytes)
{
    if (to->bytes + bytes + 1 > to->capacity) {
        to->capacity = 2 * (to->bytes + bytes + 1);
        to->at = realloc(to->at, to->capacity);
        ck_assert_ptr_nonnull(to->at);
    }
    memcpy(to->at + to->bytes, from, bytes);
    to->bytes += bytes;
    to->at[to->bytes] = '\0';
}

static void expand(content *to, const char *text, size_t length);

/* The text behind "%T(", up to its parenthesis; returns where it ends. */
static const char *add_tensor(content *to, const char *text)
{
    char dtype[32], shape[400], line[600];
    long long begin, end;
    int used = 0;
    ck_assert_msg(sscanf(text, "%31s %399s %lld %lld)%n", dtype, shape, &begin, &end, &used) == 4 && used, "%%T(%.40s", text);
    int length =
        snprintf(line, sizeof line, "{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%lld,%lld]}", dtype, shape, begin, end);
    add(to, line, (size_t)length);
    return text + used;
}

/* The parenthesis that ends the one before `text`. */
static const char *closing(const char *text)
{
    for (int depth = 0;; text++) {
        ck_assert_msg(*text != '\0', "a parenthesis is not closed");
        if (*text == '(')
            depth++;
        else if (*text == ')' && depth-- == 0)
            return text;
    }
}

static const char *add_repeated(content *to, const char *text, bool numbered)
{
    char *what;
    long times = strtol(text, &what, 10);
    const char *end = closing(text);
    size_t length = (size_t)(end - what) - 1;
    for (long i = 0; i < times; i++) {
        content once = {0};
        add(&once, "", 0);
        for (const char *c = what + 1; c < end; c++) {
            char number[24];
            int digits = snprintf(number, sizeof number, "%ld", i);
            if (numbered && *c == '#')
                add(&once, number, (size_t)digits);
            else
                add(&once, c, 1);
        }
        expand(to, (char *)once.at, numbered ? once.bytes : length);
        free(once.at);
    }
    return end + 1;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void expand(content *to, const char *text, size_t length)
{
    for (const char *c = text; c < text + length;) {
        if (*c != '%') {
            add(to, c++, 1);
        } else if (c[1] == '%') {
            add(to, c, 1);
            c += 2;
        } else if (c[1] == 'T' && c[2] == '(') {
            c = add_tensor(to, c + 3);
        } else if (c[1] == '(' || (c[1] == '#' && c[2] == '(')) {
            c = add_repeated(to, c + (c[1] == '(' ? 2 : 3), c[1] == '#');
        } else {
            int high = digit_of(c[1]), low = high < 0 ? -1 : digit_of(c[2]);
            ck_assert_msg(low >= 0, "no byte: %.10s", c);
            unsigned char byte = (unsigned char)(high << 4 | low);
            add(to, &byte, 1);
            c += 3;
        }
    }
}

unsigned char *case_bytes(const char *text, size_t *bytes)
{
    content to = {0};
    add(&to, "", 0);
    expand(&to, text, strlen(text));
    *bytes = to.bytes;
    return to.at;
}

/* ---- safetensors files ---- */

void case_seal(unsigned char *file, size_t header_bytes)
{
    static const char key[] = "\"crc64.header\":\"0000000000000000\"";
    unsigned char *at = memmem(file + 8, header_bytes, key, sizeof key - 1);
    char digits[17];
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)header_bytes >> 8 * i & 0xff);
    if (!at)
        return;
    snprintf(digits, sizeof digits, "%016" PRIx64, shard_crc64(0, file, (int64_t)(8 + header_bytes)));
    memcpy(at + sizeof key - 18, digits, 16);
}

unsigned char *case_file(const char *text, size_t *bytes)
{
    char *end, with_zeros[20000], *to = with_zeros;
    if (strncmp(text, "raw ", 4) == 0)
        return case_bytes(text + 4, bytes);
    size_t data = strtoul(text, &end, 10), header;
    ck_assert_msg(*end == ' ', "neither \"raw \" nor a number: %s", text);
    for (const char *from = end + 1; *from;) {
        bool digits = strncmp(from, "%H", 2) == 0;
        to += sprintf(to, digits ? "0000000000000000" : "%c", *from);
        from += digits ? 2 : 1;
    }
    *to = '\0';
    unsigned char *in = case_bytes(with_zeros, &header), *file = malloc(8 + header + data);
    ck_assert_ptr_nonnull(file);
    memcpy(file + 8, in, header);
    for (size_t i = 0; i < data; i++)
        file[8 + header + i] = (unsigned char)(i + 1);
    case_seal(file, header);
    free(in);
    *bytes = 8 + header + data;
    return file;
}
