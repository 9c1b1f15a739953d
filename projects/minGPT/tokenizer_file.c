/* vocab.json and merges.txt. Both write each byte of a token as a character: a printable byte as itself, the others, in order, as
 * U+0100, U+0101 and so on. */
#include "tokenizer.h"

#include "array.h"
#include "files.h"
#include "json_file.h"
#include "text.h"
#include "utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- bytes as characters ---- */

/* In GPT-2's order of the bytes the first PLAIN are printable, and byte PLAIN + i is U+0100 + i. */
#define PLAIN 188

static void fill_order(const tokenizer *of, uint32_t *code_of_byte)
{
    for (int byte = 0; byte < 256; byte++)
        code_of_byte[byte] = of->of_byte[byte] < PLAIN ? (uint32_t)byte : 0x100 + (uint32_t)(of->of_byte[byte] - PLAIN);
}

/* The bytes of a token's characters, written over them; -1 if a character stands for no byte. */
static int64_t take_bytes(const tokenizer *order, char *text, int64_t bytes)
{
    uint32_t code_of_byte[256];
    int64_t made = 0;
    int size;
    fill_order(order, code_of_byte);
    for (const char *at = text, *end = text + bytes; at < end; at += size) {
        int64_t code = utf8_read(at, end, &size), byte = 0;
        while (byte < 256 && code_of_byte[byte] != code)
            byte++;
        if (byte == 256)
            return -1;
        text[made++] = (char)byte;
    }
    return made;
}

/* ---- reading ---- */

#define VOCABULARY_MOST_BYTES (32 << 20)
#define MERGES_MOST_BYTES (32 << 20)

typedef struct entry {
    int64_t token;
    int64_t begin, size; /* in the text of all entries */
} entry;

typedef struct reading {
    tokenizer *made;
    const tokenizer *order; /* GPT-2's bytes */
    entry *entries;
    char *text;
    int64_t count, room, used, text_room;
} reading;

static int compare_entries(const void *a, const void *b)
{
    int64_t x = ((const entry *)a)->token, y = ((const entry *)b)->token;
    return (x > y) - (x < y);
}

static shard_status read_entries(reading *state, json_t *object, const char *path)
{
    char text[64];
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const char *name = json_object_iter_key(at);
        const json_t *value = json_object_iter_value(at);
        int64_t size = (int64_t)strlen(name), token = json_is_integer(value) ? json_integer_value(value) : -1;
        if (token < 0 || token > INT32_MAX)
            return shard_error(SHARD_ERROR_FORMAT, "%s: the token \"%.64s\" has the number %s, not an integer from 0 to %d", path,
                               name, json_value_text(value, text, sizeof text), INT32_MAX);
        if (array_grow(&state->entries, &state->room, state->count + 1, sizeof *state->entries) != SHARD_OK ||
            array_grow(&state->text, &state->text_room, state->used + size + 1, 1) != SHARD_OK)
            return shard_last_status();
        memcpy(state->text + state->used, name, (size_t)size);
        state->entries[state->count++] = (entry){token, state->used, size};
        state->used += size;
    }
    return SHARD_OK;
}

/* Adds the token number i, of the text's bytes. */
static shard_status add_entry(reading *state, entry *one, int64_t i, const char *path)
{
    tokenizer *made = state->made;
    char *text = state->text + one->begin;
    bool special = one->size == (int64_t)strlen(TOKENIZER_END) && memcmp(text, TOKENIZER_END, (size_t)one->size) == 0;
    if (one->token < i)
        return shard_error(SHARD_ERROR_FORMAT, "%s: two tokens have the number %" PRId64, path, one->token);
    if (one->token > i)
        return shard_error(SHARD_ERROR_FORMAT, "%s: no token has the number %" PRId64, path, i);
    if (made->has_pairs && !special)
        one->size = take_bytes(state->order, text, one->size);
    if (one->size <= 0)
        return shard_error(SHARD_ERROR_FORMAT, "%s: token %" PRId64 " is empty, or has a character that stands for no byte", path,
                           i);
    if (string_set_add(&made->vocabulary, text, one->size) != i)
        return shard_error(SHARD_ERROR_FORMAT, "%s: token %" PRId64 " has the bytes of an earlier one", path, i);
    if (made->has_pairs && special)
        made->end_of_text = (int32_t)i;
    if (made->has_pairs && one->size == 1)
        made->of_byte[(unsigned char)*text] = (int32_t)i;
    return SHARD_OK;
}

/* The tokens in the order of their numbers, which begin with 0 and have no gap. */
static shard_status add_entries(reading *state, const char *path)
{
    if (state->count == 0)
        return shard_error(SHARD_ERROR_FORMAT, "%s: no tokens", path);
    shard_status status = SHARD_OK;
    qsort(state->entries, (size_t)state->count, sizeof *state->entries, compare_entries);
    for (int64_t i = 0; i < state->count && status == SHARD_OK; i++)
        status = add_entry(state, &state->entries[i], i, path);
    return status;
}

static shard_status read_vocabulary(reading *state, const char *path)
{
    json_t *object = json_file_open(path, VOCABULARY_MOST_BYTES);
    shard_status status = object ? read_entries(state, object, path) : shard_last_status();
    json_decref(object);
    if (status == SHARD_OK)
        status = add_entries(state, path);
    for (int byte = 0; byte < 256 && status == SHARD_OK && state->made->has_pairs; byte++)
        if (string_set_find(&state->made->vocabulary, (char[]){(char)byte}, 1) < 0)
            status = shard_error(SHARD_ERROR_FORMAT, "%s: no token is the byte 0x%02X alone", path, byte);
    return status;
}

/* Reads a line "left right"; the version and empty lines are skipped. */
static shard_status read_merge(reading *state, char *line, const char *path, int64_t number)
{
    char *space = strchr(line, ' ');
    if (!*line || (number == 1 && strncmp(line, "#version", 8) == 0))
        return SHARD_OK;
    int64_t sizes[2] = {-1, -1}, token[2] = {-1, -1};
    if (space) {
        *space = '\0';
        char *part[2] = {line, space + 1};
        for (int i = 0; i < 2; i++) {
            sizes[i] = take_bytes(state->order, part[i], (int64_t)strlen(part[i]));
            token[i] = sizes[i] <= 0 ? -1 : string_set_find(&state->made->vocabulary, part[i], sizes[i]);
        }
    }
    int64_t known = tokenizer_size(state->made);
    if (token[0] >= 0 && token[1] >= 0 && tokenizer_add_merge(state->made, (int32_t)token[0], (int32_t)token[1]) != SHARD_OK)
        return shard_last_status();
    if (token[0] < 0 || token[1] < 0 || tokenizer_size(state->made) > known)
        return shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 ": not two tokens of vocab.json that make a third one", path,
                           number);
    return SHARD_OK;
}

static shard_status read_merges(reading *state, const char *path)
{
    int64_t bytes, number = 1;
    char *text = text_read(path, MERGES_MOST_BYTES, &bytes);
    shard_status status = text ? SHARD_OK : shard_last_status();
    if (text && memchr(text, '\0', (size_t)bytes))
        status = shard_error(SHARD_ERROR_FORMAT, "%s: a byte 0", path);
    for (char *line = text, *next; status == SHARD_OK && line; line = next, number++) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : NULL;
        if (end)
            *end = '\0';
        if (end && end > line && end[-1] == '\r')
            end[-1] = '\0';
        status = read_merge(state, line, path, number);
    }
    free(text);
    return status;
}

/* The paths of both files. */
static bool join(char *vocabulary, char *merges, const char *folder)
{
    return files_join(vocabulary, "vocab.json", folder, "vocab.json") == SHARD_OK &&
           files_join(merges, "merges.txt", folder, "merges.txt") == SHARD_OK;
}

tokenizer *tokenizer_open(const char *folder)
{
    char vocabulary[PATH_MAX], merges[PATH_MAX];
    if (!join(vocabulary, merges, folder))
        return NULL;
    tokenizer *order = tokenizer_make(true);
    reading state = {.made = tokenizer_make(false), .order = order};
    shard_status status = order && state.made ? SHARD_OK : shard_last_status();
    if (status == SHARD_OK) {
        state.made->has_pairs = access(merges, F_OK) == 0;
        status = read_vocabulary(&state, vocabulary);
    }
    if (status == SHARD_OK && state.made->has_pairs)
        status = read_merges(&state, merges);
    free(state.entries);
    free(state.text);
    tokenizer_close(order);
    if (status == SHARD_OK)
        return state.made;
    tokenizer_close(state.made);
    return NULL;
}

/* ---- writing ---- */

/* A token's characters. */
static void write_token(const tokenizer *of, const uint32_t *code_of_byte, int64_t token, bool json_text, FILE *file)
{
    int64_t size;
    const char *bytes = tokenizer_text(of, token, &size);
    char character[4];
    for (int64_t i = 0; i < size; i++) {
        bool plain = !of->has_pairs || token == of->end_of_text;
        unsigned char byte = (unsigned char)bytes[i];
        if (json_text && plain && (byte < 0x20 || byte == 0x7F))
            fprintf(file, "\\u%04x", byte);
        else if (json_text && (byte == '"' || byte == '\\'))
            fprintf(file, "\\%c", byte);
        else if (plain)
            fputc(byte, file);
        else {
            int length = utf8_write(character, code_of_byte[byte]);
            fwrite(character, 1, (size_t)length, file);
        }
    }
}

/* A tokenizer, and the character of each byte. */
typedef struct writing {
    const tokenizer *of;
    uint32_t code_of_byte[256];
} writing;

static void write_vocabulary(const void *state, FILE *file)
{
    const writing *from = state;
    for (int64_t i = 0; i < tokenizer_size(from->of); i++) {
        fputs(i ? ", \"" : "{\"", file);
        write_token(from->of, from->code_of_byte, i, true, file);
        fprintf(file, "\": %" PRId64, i);
    }
    fputs("}\n", file);
}

static void write_merges(const void *state, FILE *file)
{
    const writing *from = state;
    fputs("#version: 0.2\n", file);
    for (int64_t i = 0; i < from->of->merges; i++) {
        write_token(from->of, from->code_of_byte, from->of->pair[0][i], false, file);
        fputc(' ', file);
        write_token(from->of, from->code_of_byte, from->of->pair[1][i], false, file);
        fputc('\n', file);
    }
}

shard_status tokenizer_save(const tokenizer *of, const char *folder)
{
    char vocabulary[PATH_MAX], merges[PATH_MAX];
    writing from = {.of = of};
    if (!join(vocabulary, merges, folder))
        return shard_last_status();
    tokenizer *order = tokenizer_make(true);
    if (!order)
        return shard_last_status();
    fill_order(order, from.code_of_byte);
    tokenizer_close(order);
    shard_status status = files_save(vocabulary, write_vocabulary, &from);
    if (status == SHARD_OK && of->has_pairs)
        return files_save(merges, write_merges, &from);
    if (status == SHARD_OK && unlink(merges) != 0 && errno != ENOENT)
        return shard_error(SHARD_ERROR_IO, "%s: %s", merges, strerror(errno));
    return status;
}
