#include "index.h"

#include "base/memory.h"
#include "base/printable.h"
#include "checkpoint/json_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Where the strings stand in the text, decoded. An index is at most 100 MB long. */
typedef struct member {
    uint32_t name, file;
} member;

_Static_assert(SHARD_SAFETENSORS_HEADER_MOST <= UINT32_MAX, "places in the text have 32 bits");

typedef struct tensor_index {
    const char *path;
    char *text; /* of the file */
    member *at; /* by file, then by name */
    int64_t count, capacity;
    int64_t total_size; /* -1: not given as an integer */
    bool mapped;        /* there is a weight_map */
} tensor_index;

#define MALFORMED(index, ...) fail_malformed(index, shard_format(__VA_ARGS__))

static shard_status fail_malformed(const tensor_index *index, char *what)
{
    if (what)
        shard_error(SHARD_ERROR_FORMAT, "%s: %s", index->path, what);
    free(what);
    return shard_last_status();
}

static shard_status fail_reader(const tensor_index *index, const json_reader *reader)
{
    if (!reader->wrong)
        return shard_last_status();
    return MALFORMED(index, "not a well-formed index: byte %td: %s", reader->at - reader->start, reader->wrong);
}

/* ---- reading ---- */

/* Files lie in the index's folder. */
static bool is_file_name(const char *name)
{
    return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static shard_status read_weight(tensor_index *index, json_reader *reader)
{
    SHARD_TRY(shard_grow(&index->at, &index->capacity, index->count + 1, sizeof *index->at));
    const char *name = json_reader_string_in_place(reader, index->text), *file = NULL;
    if (name && json_reader_take(reader, ':') == SHARD_OK)
        file = json_reader_string_in_place(reader, index->text);
    if (!file)
        return fail_reader(index, reader);
    if (!is_file_name(file))
        return MALFORMED(index, "%s is in %s, which is not the name of a file in the index's folder", shard_quoted(name),
                         shard_quoted(file));
    index->at[index->count++] = (member){(uint32_t)(name - index->text), (uint32_t)(file - index->text)};
    return SHARD_OK;
}

static shard_status read_total(tensor_index *index, json_reader *reader)
{
    bool is_integer = false;
    char *key = json_reader_string(reader);
    bool total = key && strcmp(key, "total_size") == 0;
    free(key);
    if (!key || json_reader_take(reader, ':') != SHARD_OK)
        return fail_reader(index, reader);
    char next = json_reader_next(reader);
    if (!total || !(next == '-' || (next >= '0' && next <= '9')))
        return json_reader_skip(reader) == SHARD_OK ? SHARD_OK : fail_reader(index, reader);
    int64_t value;
    if (json_reader_number(reader, &value, &is_integer) != SHARD_OK)
        return fail_reader(index, reader);
    index->total_size = is_integer ? value : -1;
    return SHARD_OK;
}

static shard_status read_object(tensor_index *index, json_reader *reader,
                                shard_status (*read)(tensor_index *index, json_reader *reader))
{
    if (json_reader_take(reader, '{') != SHARD_OK)
        return fail_reader(index, reader);
    for (bool first = true; json_reader_more(reader, '}', first); first = false)
        SHARD_TRY(read(index, reader));
    return reader->wrong ? fail_reader(index, reader) : SHARD_OK;
}

static shard_status read_member(tensor_index *index, json_reader *reader)
{
    char *key = json_reader_string(reader);
    bool weights = key && strcmp(key, "weight_map") == 0, metadata = key && strcmp(key, "metadata") == 0;
    free(key);
    if (!key || json_reader_take(reader, ':') != SHARD_OK)
        return fail_reader(index, reader);
    if (weights && index->mapped)
        return MALFORMED(index, "it has two weight_map");
    index->mapped |= weights;
    if (weights || (metadata && json_reader_next(reader) == '{'))
        return read_object(index, reader, weights ? read_weight : read_total);
    return json_reader_skip(reader) == SHARD_OK ? SHARD_OK : fail_reader(index, reader);
}

static shard_status parse(tensor_index *index, int64_t bytes)
{
    json_reader reader = json_reader_start(index->text, (size_t)bytes);
    SHARD_TRY(read_object(index, &reader, read_member));
    json_reader_next(&reader);
    if (reader.at < reader.end)
        reader.wrong = "more text behind it";
    if (reader.wrong)
        return fail_reader(index, &reader);
    return index->mapped ? SHARD_OK : MALFORMED(index, "not an index of safetensors files: it has no weight_map");
}

static shard_status read_index(tensor_index *index)
{
    shard_file file = {0};
    int64_t bytes;
    SHARD_TRY(shard_file_open(&file, index->path, &bytes));
    shard_status status =
        bytes <= SHARD_SAFETENSORS_HEADER_MOST
            ? SHARD_OK
            : MALFORMED(index, "an index of %" PRId64 " bytes; the most is %" PRId64, bytes, SHARD_SAFETENSORS_HEADER_MOST);
    if (status == SHARD_OK && !(index->text = shard_calloc((size_t)bytes, 1)))
        status = shard_last_status();
    if (status == SHARD_OK)
        status = shard_file_read(&file, index->text, bytes, 0, NULL);
    shard_file_close(&file);
    return status == SHARD_OK ? parse(index, bytes) : status;
}

/* ---- checks ---- */

static const char *name_of(const tensor_index *index, int64_t i)
{
    return index->text + index->at[i].name;
}

static const char *file_of(const tensor_index *index, int64_t i)
{
    return index->text + index->at[i].file;
}

static int compare_names(const void *left, const void *right, void *text)
{
    return strcmp((const char *)text + ((const member *)left)->name, (const char *)text + ((const member *)right)->name);
}

static int compare_files(const void *left, const void *right, void *text)
{
    int order = strcmp((const char *)text + ((const member *)left)->file, (const char *)text + ((const member *)right)->file);
    return order ? order : compare_names(left, right, text);
}

static shard_status sort(tensor_index *index)
{
    if (index->count == 0)
        return SHARD_OK;
    qsort_r(index->at, (size_t)index->count, sizeof *index->at, compare_names, index->text);
    for (int64_t i = 1; i < index->count; i++)
        if (strcmp(name_of(index, i - 1), name_of(index, i)) == 0)
            return MALFORMED(index, "its weight_map has a duplicate of %s", shard_quoted(name_of(index, i)));
    qsort_r(index->at, (size_t)index->count, sizeof *index->at, compare_files, index->text);
    return SHARD_OK;
}

/* Whether a name is among the members from `first` to before `end`, which are of one file. */
static bool has_name(const tensor_index *index, int64_t first, int64_t end, const char *name)
{
    while (first < end) {
        int64_t middle = first + (end - first) / 2;
        int order = strcmp(name, name_of(index, middle));
        if (order == 0)
            return true;
        if (order < 0)
            end = middle;
        else
            first = middle + 1;
    }
    return false;
}

/* The tensors of one file are those of the index, from `first` to before `end`. */
static shard_status check_file(const tensor_index *index, int64_t first, int64_t end, const source *from)
{
    for (int64_t i = first; i < end; i++)
        if (!shard_safetensors_find(&from->header, name_of(index, i)))
            return MALFORMED(index, "%s is not in %s", shard_quoted(name_of(index, i)), from->path);
    for (int64_t i = 0; i < from->header.count; i++)
        if (!has_name(index, first, end, from->header.entries[i].name))
            return MALFORMED(index, "%s of %s is not in the index; merge the files, to take all of their tensors",
                             shard_quoted(from->header.entries[i].name), from->path);
    return SHARD_OK;
}

static shard_status check_size(const tensor_index *index, const source_list *list, int64_t start)
{
    int64_t bytes = 0;
    bool fits = true;
    for (int64_t i = start; i < list->count; i++)
        for (int64_t j = 0; j < list->at[i].header.count && fits; j++)
            fits =
                !__builtin_add_overflow(bytes, list->at[i].header.entries[j].end - list->at[i].header.entries[j].begin, &bytes);
    if (fits && (index->total_size < 0 || bytes == index->total_size))
        return SHARD_OK;
    return MALFORMED(index,
                     "its total_size is %" PRId64 ", and its files have %" PRId64 " bytes; merge the files, if they are complete",
                     index->total_size, bytes);
}

static shard_status add_files(source_list *list, const tensor_index *index, bool skip_checksums)
{
    const char *slash = strrchr(index->path, '/');
    int folder = slash ? (int)(slash + 1 - index->path) : 0;
    for (int64_t i = 0, next; i < index->count; i = next) {
        for (next = i + 1; next < index->count && strcmp(file_of(index, i), file_of(index, next)) == 0;)
            next++;
        char *path = shard_format("%.*s%s", folder, index->path, file_of(index, i));
        shard_status status = path ? sources_add(list, path, skip_checksums) : shard_last_status();
        free(path);
        SHARD_TRY(status);
        SHARD_TRY(check_file(index, i, next, &list->at[list->count - 1]));
    }
    return SHARD_OK;
}

shard_status index_add_sources(source_list *list, const char *path, bool skip_checksums)
{
    tensor_index index = {.path = path, .total_size = -1};
    int64_t start = list->count;
    shard_status status = read_index(&index);
    if (status == SHARD_OK)
        status = sort(&index);
    if (status == SHARD_OK)
        status = add_files(list, &index, skip_checksums);
    if (status == SHARD_OK)
        status = check_size(&index, list, start);
    free(index.at);
    free(index.text);
    return status;
}

bool index_is(const char *path)
{
    size_t length = strlen(path);
    return length >= 5 && strcmp(path + length - 5, ".json") == 0;
}

shard_status index_refuse(const char *path)
{
    return index_is(path) ? shard_error(SHARD_ERROR_ARGUMENT, "%s is an index: merge its files into one, and take that", path)
                          : SHARD_OK;
}

shard_status index_or_file_add(source_list *list, const char *path, bool skip_checksums)
{
    return index_is(path) ? index_add_sources(list, path, skip_checksums) : sources_add(list, path, skip_checksums);
}
