/* Reads the dictionary and the test, strictly: a file that is malformed is refused with its line. */
#include "words.h"

#include "array.h"
#include "files.h"
#include "identical.h"
#include "hash.h"
#include "random.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 160 /* two words and what is between and behind them */

typedef struct reader {
    FILE *file;
    const char *path;
    int64_t line;
    char text[LINE_BYTES];  /* of the line, without its end */
    int64_t rows, row_room; /* lines that were taken */
    int64_t bytes, byte_room;
} reader;

static shard_status refuse(const reader *from, const char *problem)
{
    return shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 ": \"%.79s\": %s", from->path, from->line, from->text, problem);
}

/* ---- lines ---- */

static shard_status open_reader(reader *from, const char *path)
{
    *from = (reader){.file = files_open(path), .path = path};
    return from->file ? SHARD_OK : shard_last_status();
}

static void close_reader(reader *from)
{
    if (from->file)
        fclose(from->file);
}

/* Reads a line of two words with one space between, and ends the first with a 0; *second is NULL at the end of the file. */
static shard_status read_line(reader *from, const char **second)
{
    *second = NULL;
    int64_t length = files_read_line(from->file, from->text, LINE_BYTES);
    if (length < 0)
        return !ferror(from->file) ? SHARD_OK : shard_error(SHARD_ERROR_IO, "%s: %s", from->path, strerror(errno));
    from->line++;
    if (length == LINE_BYTES)
        return refuse(from, "a line of more than 159 bytes");
    char *space = strchr(from->text, ' ');
    if (strlen(from->text) != (size_t)length || !space || space == from->text || !space[1] || strchr(space + 1, ' '))
        return refuse(from, "it is not two words with a space between");
    if (space - from->text > WORDS_MOST_BYTES)
        return refuse(from, "its word has more than 63 bytes");
    *space = '\0';
    *second = space + 1;
    return SHARD_OK;
}

/* Adds the line's first word and a number to the arrays. */
static shard_status add_row(reader *from, char **text, int64_t **begin, int64_t **numbers, int64_t number)
{
    int64_t length = (int64_t)strlen(from->text) + 1, room = from->row_room; /* of both arrays */
    shard_status status = array_grow(text, &from->byte_room, from->bytes + length, 1);
    if (status == SHARD_OK)
        status = array_grow(begin, &room, from->rows + 1, sizeof **begin);
    if (status == SHARD_OK)
        status = array_grow(numbers, &from->row_room, from->rows + 1, sizeof **numbers);
    if (status != SHARD_OK)
        return status;
    memcpy(*text + from->bytes, from->text, (size_t)length);
    (*begin)[from->rows] = from->bytes;
    (*numbers)[from->rows++] = number;
    from->bytes += length;
    return SHARD_OK;
}

/* ---- the dictionary ---- */

static shard_status read_words(reader *from, words *dictionary)
{
    const char *second;
    shard_status status = read_line(from, &second);
    while (status == SHARD_OK && second) {
        size_t digits = strspn(second, "0123456789");
        int64_t times = digits <= 15 && !second[digits] ? (int64_t)strtoll(second, NULL, 10) : -1;
        if (times < 0)
            return refuse(from, "its count is not a whole number of at most 15 digits");
        if (from->rows > 0 && strcmp(dictionary->text + dictionary->begin[from->rows - 1], from->text) >= 0)
            return refuse(from, "words are sorted by their bytes, and none is there twice");
        status = add_row(from, &dictionary->text, &dictionary->begin, &dictionary->times, times);
        if (status == SHARD_OK)
            status = read_line(from, &second);
    }
    dictionary->count = from->rows;
    if (status == SHARD_OK && dictionary->count < 2)
        return shard_error(SHARD_ERROR_FORMAT, "%s: %" PRId64 " words; a dictionary has at least 2", from->path,
                           dictionary->count);
    return status;
}

words *words_open(const char *path)
{
    reader from;
    words *dictionary = calloc(1, sizeof *dictionary);
    if (!dictionary)
        shard_error(SHARD_ERROR_MEMORY, "%s: no memory", path);
    shard_status status = open_reader(&from, path);
    if (status == SHARD_OK && dictionary)
        status = read_words(&from, dictionary);
    close_reader(&from);
    if (status == SHARD_OK)
        return dictionary;
    words_close(dictionary);
    return NULL;
}

void words_close(words *dictionary)
{
    if (!dictionary)
        return;
    free(dictionary->text);
    free(dictionary->begin);
    free(dictionary->times);
    free(dictionary);
}

int64_t words_find(const words *dictionary, const char *word)
{
    int64_t low = 0, high = dictionary->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(words_at(dictionary, middle), word);
        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* ---- the test ---- */

static shard_status read_typed(reader *from, const words *dictionary, typed_words *typed)
{
    const char *correction;
    shard_status status = read_line(from, &correction);
    while (status == SHARD_OK && correction) {
        int64_t class = words_find(dictionary, correction);
        if (class < 0)
            return refuse(from, "its correction is not in words.txt");
        status = add_row(from, &typed->text, &typed->begin, &typed->class, class);
        if (status == SHARD_OK)
            status = read_line(from, &correction);
    }
    typed->count = from->rows;
    if (status == SHARD_OK && typed->count < 1)
        return shard_error(SHARD_ERROR_FORMAT, "%s: it has no words", from->path);
    return status;
}

typed_words *words_open_typed(const char *path, const words *dictionary)
{
    reader from;
    typed_words *typed = calloc(1, sizeof *typed);
    if (!typed)
        shard_error(SHARD_ERROR_MEMORY, "%s: no memory", path);
    shard_status status = open_reader(&from, path);
    if (status == SHARD_OK && typed)
        status = read_typed(&from, dictionary, typed);
    close_reader(&from);
    if (status == SHARD_OK)
        return typed;
    words_close_typed(typed);
    return NULL;
}

void words_close_typed(typed_words *typed)
{
    if (!typed)
        return;
    free(typed->text);
    free(typed->begin);
    free(typed->class);
    free(typed);
}

/* ---- ranks ---- */

typedef struct summary {
    int64_t words, typed;
    uint64_t hash;
} summary;

/* FNV-1a of each text, and numbers if they are not NULL. */
static uint64_t hash_rows(uint64_t hash, int64_t count, const char *text, const int64_t *begin, const int64_t *numbers)
{
    for (int64_t i = 0; i < count; i++) {
        hash = hash_bytes(hash, text + begin[i], (int64_t)strlen(text + begin[i]));
        hash = random_hash(hash, numbers ? (uint64_t)numbers[i] : 0, 0);
    }
    return hash;
}

uint64_t words_hash(const words *dictionary, bool counts)
{
    return hash_rows(HASH_START, dictionary->count, dictionary->text, dictionary->begin, counts ? dictionary->times : NULL);
}

static void write_summary(const void *of, int64_t index, char *text)
{
    const summary *all = of;
    (void)index;
    snprintf(text, IDENTICAL_BYTES, "%" PRId64 " words and %" PRId64 " tests, hash %016" PRIx64, all->words, all->typed,
             all->hash);
}

shard_status words_check_identical(const words *dictionary, const typed_words *typed)
{
    summary all = {.words = dictionary->count, .typed = typed ? typed->count : 0};
    all.hash = words_hash(dictionary, true);
    if (typed)
        all.hash = hash_rows(all.hash, typed->count, typed->text, typed->begin, typed->class);
    return check_identical("the words of DIR", "give all ranks the same files",
                           (identical_list){.count = 1, .write = write_summary, .of = &all});
}
