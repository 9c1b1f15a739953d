#include "text.h"

#include "array.h"
#include "files.h"
#include "utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads to the end, since a pipe has no size. */
static char *read_all(FILE *file, const char *path, int64_t *bytes)
{
    char *text = NULL;
    int64_t room = 0;
    *bytes = 0;
    for (size_t read = 1; read > 0; *bytes += (int64_t)read) {
        if (array_grow(&text, &room, *bytes + 65537, 1) != SHARD_OK) {
            free(text);
            return NULL;
        }
        read = fread(text + *bytes, 1, (size_t)(room - *bytes - 1), file);
    }
    text[*bytes] = '\0';
    if (!ferror(file))
        return text;
    shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    free(text);
    return NULL;
}

static shard_status check_size(FILE *file, const char *path, int64_t most_bytes)
{
    struct stat found;
    if (fstat(fileno(file), &found) != 0)
        return shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    if (found.st_size > most_bytes)
        return shard_error(SHARD_ERROR_FORMAT, "%s: %" PRId64 " bytes, and such a file has %" PRId64 " at most", path,
                           (int64_t)found.st_size, most_bytes);
    return SHARD_OK;
}

char *text_read(const char *path, int64_t most_bytes, int64_t *bytes)
{
    FILE *file = most_bytes ? files_open(path) : fopen(path, "rbe");
    if (!file) {
        if (!most_bytes)
            shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = !most_bytes || check_size(file, path, most_bytes) == SHARD_OK ? read_all(file, path, bytes) : NULL;
    fclose(file);
    return text;
}

/* ---- training and validation sets ---- */

static shard_status check_text(const char *text, int64_t bytes, const char *path)
{
    int64_t line = 1;
    int size;
    if (bytes == 0)
        return shard_error(SHARD_ERROR_FORMAT, "%s: no text", path);
    for (const char *at = text, *end = text + bytes; at < end; at += size) {
        if (!*at || utf8_read(at, end, &size) < 0)
            return shard_error(SHARD_ERROR_FORMAT,
                               "%s: line %" PRId64 ": a byte 0, or malformed UTF-8; convert the file by iconv", path, line);
        line += *at == '\n';
    }
    return SHARD_OK;
}

static shard_status divide_file(text_sets *sets, const char *path)
{
    int64_t bytes, at;
    char *text = text_read(path, 0, &bytes);
    if (!text)
        return shard_last_status();
    at = bytes - bytes / 10;
    while (at > 0 && at < bytes && text[at - 1] != '\n')
        at++;
    if (at == bytes) /* one long line */
        for (at = bytes - bytes / 10; at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80;)
            at--;
    if (at == 0 || at == bytes) {
        free(text);
        return shard_error(SHARD_ERROR_FORMAT,
                           "%s: %" PRId64
                           " bytes are too few to divide, of which the last tenth is for validation; give a longer "
                           "text, or a folder with train.txt and val.txt",
                           path, bytes);
    }
    sets->text[TEXT_VAL] = malloc((size_t)(bytes - at) + 1);
    sets->text[TEXT_TRAIN] = text;
    if (!sets->text[TEXT_VAL])
        return shard_error(SHARD_ERROR_MEMORY, "%s: no memory for %" PRId64 " bytes", path, bytes);
    memcpy(sets->text[TEXT_VAL], text + at, (size_t)(bytes - at) + 1);
    text[at] = '\0';
    sets->bytes[TEXT_TRAIN] = at;
    sets->bytes[TEXT_VAL] = bytes - at;
    for (int i = 0; i < TEXT_SETS; i++)
        snprintf(sets->path[i], sizeof sets->path[i], "%s", path);
    return SHARD_OK;
}

static shard_status find_files(text_sets *sets, const char *folder)
{
    static const char *const names[][TEXT_SETS] = {
        {"train.txt", "val.txt"}, {"wiki.train.tokens", "wiki.valid.tokens"}, {"wiki.train.raw", "wiki.valid.raw"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool there = true;
        for (int set = 0; set < TEXT_SETS; set++) {
            if (files_join(sets->path[set], "TEXT", folder, names[i][set]) != SHARD_OK)
                return shard_last_status();
            there = there && access(sets->path[set], F_OK) == 0;
        }
        if (there)
            return SHARD_OK;
    }
    return shard_error(SHARD_ERROR_IO,
                       "%s: a folder without train.txt and val.txt, wiki.train.tokens and wiki.valid.tokens, or "
                       "wiki.train.raw and wiki.valid.raw",
                       folder);
}

shard_status text_open(text_sets *sets, const char *path)
{
    struct stat status;
    *sets = (text_sets){0};
    if (stat(path, &status) != 0)
        return shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(status.st_mode)) {
        if (divide_file(sets, path) != SHARD_OK)
            return shard_last_status();
    } else if (find_files(sets, path) == SHARD_OK) {
        for (int i = 0; i < TEXT_SETS; i++)
            sets->text[i] = text_read(sets->path[i], INT64_MAX, &sets->bytes[i]);
    }
    shard_status checked = shard_last_status();
    for (int i = 0; i < TEXT_SETS && checked == SHARD_OK; i++)
        checked = check_text(sets->text[i], sets->bytes[i], sets->path[i]);
    return checked;
}

void text_close(text_sets *sets)
{
    for (int i = 0; i < TEXT_SETS; i++)
        free(sets->text[i]);
    *sets = (text_sets){0};
}

char *text_join(const text_sets *sets, int64_t *bytes)
{
    *bytes = sets->bytes[TEXT_TRAIN] + sets->bytes[TEXT_VAL];
    char *joined = malloc((size_t)*bytes + 1);
    if (!joined) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " bytes of text", *bytes);
        return NULL;
    }
    memcpy(joined, sets->text[TEXT_TRAIN], (size_t)sets->bytes[TEXT_TRAIN]);
    memcpy(joined + sets->bytes[TEXT_TRAIN], sets->text[TEXT_VAL], (size_t)sets->bytes[TEXT_VAL] + 1);
    return joined;
}
