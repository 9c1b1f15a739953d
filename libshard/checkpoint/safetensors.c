#include "checkpoint/safetensors.h"

#include "base/printable.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/json_writer.h"
#include "comm/function.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"
#define MALFORMED(path, ...) fail_malformed(path, shard_format(__VA_ARGS__))

static const struct shard_entry_type {
    const char *name;
    int bits;
    int dtype; /* -1: none of ours */
    const char *refusal;
} types[] = {
    {"F32", 32, SHARD_FLOAT32, NULL},
    {"F64", 64, SHARD_FLOAT64, NULL},
    {"BF16", 16, SHARD_BFLOAT16, NULL},
    {"F16", 16, SHARD_FLOAT16, NULL},
    {"I64", 64, SHARD_INT64, NULL},
    {"I32", 32, SHARD_INT32, NULL},
    {"U8", 8, SHARD_UINT8, NULL},
#define OTHER(name, bits)                                                                                                        \
    {                                                                                                                            \
        name, bits, -1, "has dtype " name                                                                                        \
    }
    OTHER("BOOL", 8),
    OTHER("I8", 8),
    OTHER("I16", 16),
    OTHER("U16", 16),
    OTHER("U32", 32),
    OTHER("U64", 64),
    OTHER("C64", 64),
    OTHER("F8_E4M3", 8),
    OTHER("F8_E5M2", 8),
    OTHER("F8_E8M0", 8),
    OTHER("F8_E4M3FNUZ", 8),
    OTHER("F8_E5M2FNUZ", 8),
    OTHER("F6_E2M3", 6),
    OTHER("F6_E3M2", 6),
    OTHER("F4", 4),
#undef OTHER
};
#define TYPES (sizeof types / sizeof *types)

/* ---- reading ---- */

static shard_status fail_malformed(const char *path, char *what)
{
    if (what)
        shard_error(SHARD_ERROR_FORMAT, "%s is not a well-formed safetensors file: %s", path, what);
    free(what);
    return shard_last_status();
}

/* Other formats that are often given by mistake, by their first bytes; and how to convert them. */
static const struct other_format {
    const char *first;
    size_t bytes;
    const char *what, *advice;
} other_formats[] = {
#define TORCH                                                                                                                    \
    "safetensors.torch.save_file(torch.load(\"old.pth\", map_location=\"cpu\"), \"new.safetensors\") in Python, of the state "   \
    "dict alone"
#define NUMPY "safetensors.numpy.save_file(arrays, \"new.safetensors\") in Python, with arrays = {name: numpy array}"
    {"PK\3\4", 4, "a zip file, as torch.save writes", TORCH},
    {"\x80\2", 2, "a pickle, as torch.save wrote before PyTorch 1.6", TORCH},
    {"\x80\3", 2, "a pickle", TORCH},
    {"\x80\4\x95", 3, "a pickle", TORCH},
    {"\x80\5\x95", 3, "a pickle", TORCH},
    {"\x89HDF\r\n\x1a\n", 8, "an HDF5 file, as Keras writes", NUMPY},
    {"\x93NUMPY", 6, "a NumPy file", NUMPY},
    {"\x1f\x8b\x08", 3, "a gzip file", "gunzip"},
    {"version ", 8, "a pointer of Git LFS", "git lfs pull"},
    {"{", 1, "JSON, perhaps the index of several files",
     "shard-checkpoint merge, which makes one file of those that an index names"},
#undef TORCH
#undef NUMPY
};

/* Formats with at least so many known bytes: fewer than three may also be the length of a header, as 80 02 00 ... is. */
static shard_status refuse_others_by(size_t least, const char *path, const unsigned char first[8])
{
    for (size_t i = 0; i < sizeof other_formats / sizeof *other_formats; i++) {
        const struct other_format *format = &other_formats[i];
        if (format->bytes >= least && memcmp(first, format->first, format->bytes) == 0)
            return shard_error(SHARD_ERROR_FORMAT, "%s is %s, not a safetensors file; convert it by %s", path, format->what,
                               format->advice);
    }
    return SHARD_OK;
}

shard_status shard_safetensors_refuse_others(const char *path, const unsigned char first[8])
{
    return refuse_others_by(3, path, first);
}

shard_status shard_safetensors_text_bytes(const char *path, const unsigned char first[8], int64_t file_bytes, int64_t *text_bytes)
{
    if (file_bytes < 8)
        return MALFORMED(path, "it has %" PRId64 " bytes, fewer than the 8 of the header's length", file_bytes);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | first[i];
    if (length > (uint64_t)SHARD_SAFETENSORS_HEADER_MOST)
        SHARD_TRY(refuse_others_by(1, path, first));
    if ((int64_t)length > file_bytes - 8)
        SHARD_TRY(refuse_others_by(3, path, first));
    if (length > (uint64_t)SHARD_SAFETENSORS_HEADER_MOST)
        return MALFORMED(path, "a header of %" PRIu64 " bytes; the most is %" PRId64, length, SHARD_SAFETENSORS_HEADER_MOST);
    if ((int64_t)length > file_bytes - 8)
        return MALFORMED(path, "a header of %" PRIu64 " bytes in a file of %" PRId64 ": it was cut off", length, file_bytes);
    *text_bytes = (int64_t)length;
    return SHARD_OK;
}

static const shard_entry_type *find_type(const char *name)
{
    for (size_t i = 0; name && i < TYPES; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

/* The reader's error, or that there was no memory. */
static shard_status fail_reader(const char *path, const json_reader *reader)
{
    if (!reader->wrong)
        return shard_last_status();
    return MALFORMED(path, "its header at byte %td: %s", reader->at - reader->start, reader->wrong);
}

/* An array of sizes or offsets. */
typedef struct size_list {
    bool there;
    int64_t count, size[SHARD_MAX_DIMS]; /* the first of them */
    int64_t product, of_others;          /* of all, and of those that are not 0 */
    bool overflows, others_overflow;
} size_list;

static shard_status read_sizes(json_reader *reader, const char *path, const char *name, size_list *list)
{
    *list = (size_list){.product = 1, .of_others = 1};
    if (json_reader_next(reader) != '[')
        return json_reader_skip(reader) == SHARD_OK ? SHARD_OK : fail_reader(path, reader);
    list->there = true;
    reader->at++;
    for (bool first = true; json_reader_more(reader, ']', first); first = false) {
        char next = json_reader_next(reader);
        int64_t size = -1;
        bool is_integer = false, is_number = next == '-' || (next >= '0' && next <= '9');
        if (is_number && json_reader_number(reader, &size, &is_integer) != SHARD_OK)
            break;
        if (!is_integer || size < 0)
            return MALFORMED(path, "%s: sizes and offsets must be integers from 0 to %" PRId64, shard_quoted(name), INT64_MAX);
        if (list->count < SHARD_MAX_DIMS)
            list->size[list->count] = size;
        list->count++;
        list->overflows |= !shard_multiply(list->product, size, &list->product);
        list->others_overflow |= !shard_multiply(list->of_others, size > 0 ? size : 1, &list->of_others);
    }
    return reader->wrong ? fail_reader(path, reader) : SHARD_OK;
}

/* The description of a tensor in the header. */
typedef struct description {
    char *dtype; /* NULL: not a string */
    size_list shape, offsets;
    bool seen[3];
} description;

static shard_status read_field(json_reader *reader, const char *path, const char *name, description *d)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    int field = 0;
    char *key = json_reader_string(reader);
    if (!key || json_reader_take(reader, ':') != SHARD_OK) {
        free(key);
        return fail_reader(path, reader);
    }
    while (field < 3 && strcmp(key, fields[field]) != 0)
        field++;
    free(key);
    if (field < 3 && d->seen[field]) {
        reader->wrong = "a duplicate key";
        return fail_reader(path, reader);
    }
    if (field < 3)
        d->seen[field] = true;
    if (field == 1 || field == 2)
        return read_sizes(reader, path, name, field == 1 ? &d->shape : &d->offsets);
    if (field == 0 && json_reader_next(reader) == '"')
        return (d->dtype = json_reader_string(reader)) ? SHARD_OK : fail_reader(path, reader);
    return json_reader_skip(reader) == SHARD_OK ? SHARD_OK : fail_reader(path, reader);
}

/* Checks that the size of the data is that of dtype and shape. */
static shard_status take_description(const char *path, shard_entry *entry, const description *d)
{
    const shard_entry_type *type = find_type(d->dtype);
    int64_t bits = 0, others = 0;
    if (!d->dtype)
        return MALFORMED(path, "%s has no dtype, or one that is not a string", shard_quoted(entry->name));
    if (!type)
        return MALFORMED(path, "%s has dtype %s, which is unknown", shard_quoted(entry->name), shard_quoted(d->dtype));
    entry->type = type;
    entry->dtype = type->dtype < 0 ? SHARD_UINT8 : (shard_dtype)type->dtype;
    entry->refusal = type->refusal;
    if (!d->shape.there)
        return MALFORMED(path, "%s has no shape", shard_quoted(entry->name));
    if (d->shape.overflows || !shard_multiply(d->shape.product, type->bits, &bits))
        return MALFORMED(path, "%s: its size overflows", shard_quoted(entry->name));
    if (d->shape.count > SHARD_MAX_DIMS)
        entry->refusal = "has more than 8 dimensions";
    else if (d->shape.others_overflow || !shard_multiply(d->shape.of_others, type->bits, &others))
        entry->refusal = "is empty, and its other sizes overflow";
    for (int i = 0; i < d->shape.count && d->shape.count <= SHARD_MAX_DIMS; i++)
        entry->shape.dim[entry->shape.ndim++] = d->shape.size[i];
    if (!d->offsets.there || d->offsets.count != 2)
        return MALFORMED(path, "%s has no pair of data_offsets", shard_quoted(entry->name));
    entry->begin = d->offsets.size[0];
    entry->end = d->offsets.size[1];
    if (entry->end < entry->begin)
        return MALFORMED(path, "%s ends at %" PRId64 ", before it begins at %" PRId64, shard_quoted(entry->name), entry->end,
                         entry->begin);
    if (bits % 8)
        return MALFORMED(path, "%s ends within a byte", shard_quoted(entry->name));
    if (entry->end - entry->begin != bits / 8)
        return MALFORMED(path, "%s has %" PRId64 " bytes; its dtype and shape make it %" PRId64, shard_quoted(entry->name),
                         entry->end - entry->begin, bits / 8);
    return SHARD_OK;
}

static shard_status read_entry(json_reader *reader, const char *path, shard_entry *entry)
{
    description d = {0};
    shard_status status = SHARD_OK;
    if (json_reader_next(reader) != '{')
        return MALFORMED(path, "%s is not described by an object", shard_quoted(entry->name));
    reader->at++;
    for (bool first = true; status == SHARD_OK && json_reader_more(reader, '}', first); first = false)
        status = read_field(reader, path, entry->name, &d);
    if (status == SHARD_OK)
        status = reader->wrong ? fail_reader(path, reader) : take_description(path, entry, &d);
    free(d.dtype);
    return status;
}

/* The header is read twice: to check and count its members, and to store them in memory of just their size. A header that is
 * refused has taken no memory but for one string, and one that is accepted less than four times its length. */
typedef struct parsing {
    shard_safetensors *header;
    const char *path;
    json_reader reader;
    bool stores, metadata_seen;
    int64_t tensors, name_bytes;   /* with the NULs */
    int64_t strings, string_bytes; /* of the metadata */
} parsing;

static shard_status take_string_of_metadata(parsing *p, const char *name, const char *value)
{
    p->strings++;
    p->string_bytes += (int64_t)(strlen(name) + strlen(value) + 2);
    return p->stores ? shard_metadata_append(&p->header->metadata, name, value) : SHARD_OK;
}

static shard_status read_string_of_metadata(parsing *p)
{
    json_reader *reader = &p->reader;
    char *name = json_reader_string(reader), *value = NULL;
    shard_status status = name && json_reader_take(reader, ':') == SHARD_OK ? SHARD_OK : fail_reader(p->path, reader);
    if (status == SHARD_OK && json_reader_next(reader) != '"')
        status = MALFORMED(p->path, METADATA ": %s is not a string", shard_quoted(name));
    else if (status == SHARD_OK && !(value = json_reader_string(reader)))
        status = fail_reader(p->path, reader);
    if (status == SHARD_OK)
        status = take_string_of_metadata(p, name, value);
    free(name);
    free(value);
    return status;
}

static shard_status read_metadata(parsing *p)
{
    if (p->metadata_seen)
        return MALFORMED(p->path, METADATA " is a duplicate");
    p->metadata_seen = true;
    if (json_reader_next(&p->reader) != '{')
        return MALFORMED(p->path, METADATA " is not an object");
    p->reader.at++;
    for (bool first = true; json_reader_more(&p->reader, '}', first); first = false)
        SHARD_TRY(read_string_of_metadata(p));
    return p->reader.wrong ? fail_reader(p->path, &p->reader) : SHARD_OK;
}

static void store(parsing *p, shard_entry *entry)
{
    char *name = p->header->names + p->name_bytes;
    strcpy(name, entry->name);
    entry->name = name;
    p->header->entries[p->tensors] = *entry;
}

/* A name and its value. */
static shard_status read_member(parsing *p)
{
    char *name = json_reader_string(&p->reader);
    shard_status status = name && json_reader_take(&p->reader, ':') == SHARD_OK ? SHARD_OK : fail_reader(p->path, &p->reader);
    if (status == SHARD_OK && strcmp(name, METADATA) == 0)
        status = read_metadata(p);
    else if (status == SHARD_OK) {
        shard_entry entry = {.name = name};
        status = read_entry(&p->reader, p->path, &entry);
        if (status == SHARD_OK && p->stores)
            store(p, &entry);
        p->tensors++;
        p->name_bytes += (int64_t)strlen(name) + 1;
    }
    free(name);
    return status;
}

static shard_status read_members(parsing *p)
{
    json_reader_take(&p->reader, '{');
    for (bool first = true; json_reader_more(&p->reader, '}', first); first = false)
        SHARD_TRY(read_member(p));
    json_reader_next(&p->reader);
    if (!p->reader.wrong && p->reader.at < p->reader.end)
        p->reader.wrong = "more text behind it";
    return p->reader.wrong ? fail_reader(p->path, &p->reader) : SHARD_OK;
}

static shard_status reserve(shard_safetensors *header, const parsing *counted)
{
    size_t tensors = (size_t)counted->tensors;
    header->entries = shard_calloc(tensors, sizeof *header->entries);
    header->by_name = shard_calloc(tensors, sizeof *header->by_name);
    header->names = shard_calloc((size_t)counted->name_bytes, 1);
    if (!header->entries || !header->by_name || !header->names)
        return shard_last_status();
    header->count = counted->tensors;
    for (int64_t i = 0; i < header->count; i++)
        header->by_name[i] = i;
    return shard_metadata_reserve(&header->metadata, counted->strings, counted->string_bytes);
}

static int compare_offsets(const void *left, const void *right, void *entries)
{
    const shard_entry *a = (shard_entry *)entries + *(const int64_t *)left, *b = (shard_entry *)entries + *(const int64_t *)right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

static int compare_names(const void *left, const void *right, void *entries)
{
    const shard_entry *a = (shard_entry *)entries + *(const int64_t *)left, *b = (shard_entry *)entries + *(const int64_t *)right;
    return strcmp(a->name, b->name);
}

/* The tensors must cover the data exactly, each byte once. */
static shard_status check_cover(shard_safetensors *header, const char *path, int64_t data_bytes)
{
    int64_t covered = 0;
    qsort_r(header->by_name, (size_t)header->count, sizeof *header->by_name, compare_offsets, header->entries);
    for (int64_t i = 0; i < header->count; i++) {
        const shard_entry *entry = &header->entries[header->by_name[i]];
        if (entry->begin < covered)
            return MALFORMED(path, "%s overlaps another tensor: it begins at %" PRId64 ", before byte %" PRId64,
                             shard_quoted(entry->name), entry->begin, covered);
        if (entry->begin > covered)
            return MALFORMED(path, "a hole of %" PRId64 " bytes before %s", entry->begin - covered, shard_quoted(entry->name));
        covered = entry->end;
        if (covered > data_bytes)
            return MALFORMED(path, "%s ends at byte %" PRId64 " of the data, which has %" PRId64 ": it was cut off",
                             shard_quoted(entry->name), covered, data_bytes);
    }
    if (covered < data_bytes)
        return MALFORMED(path, "%" PRId64 " bytes after the last tensor", data_bytes - covered);
    return SHARD_OK;
}

shard_status shard_safetensors_parse(shard_safetensors *header, const char *path, const char *text, size_t text_bytes,
                                     int64_t data_bytes)
{
    *header = (shard_safetensors){0};
    if (text_bytes == 0 || text[0] != '{')
        return MALFORMED(path, "its header does not begin with {");
    parsing counted = {.header = header, .path = path, .reader = json_reader_start(text, text_bytes)};
    parsing stored = {.header = header, .path = path, .reader = counted.reader, .stores = true};
    SHARD_TRY(read_members(&counted));
    SHARD_TRY(reserve(header, &counted));
    SHARD_TRY(read_members(&stored));
    const char *twice = shard_metadata_sort(&header->metadata);
    if (twice)
        return MALFORMED(path, METADATA ": %s is a duplicate", shard_quoted(twice));
    qsort_r(header->by_name, (size_t)header->count, sizeof *header->by_name, compare_names, header->entries);
    for (int64_t i = 1; i < header->count; i++) {
        const char *name = header->entries[header->by_name[i]].name;
        if (strcmp(name, header->entries[header->by_name[i - 1]].name) == 0)
            return MALFORMED(path, "its header has a duplicate of %s", shard_quoted(name));
    }
    SHARD_TRY(check_cover(header, path, data_bytes));
    qsort_r(header->by_name, (size_t)header->count, sizeof *header->by_name, compare_names, header->entries);
    return SHARD_OK;
}

void shard_safetensors_free(shard_safetensors *header)
{
    shard_metadata_clear(&header->metadata);
    free(header->names);
    free(header->entries);
    free(header->by_name);
    *header = (shard_safetensors){0};
}

const shard_entry *shard_safetensors_find(const shard_safetensors *header, const char *name)
{
    int64_t low = 0, high = header->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const shard_entry *entry = &header->entries[header->by_name[middle]];
        int order = strcmp(name, entry->name);
        if (order == 0)
            return entry;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* ---- writing ---- */

static const shard_entry_type *type_of(const shard_entry *entry)
{
    const shard_entry_type *type = entry->type;
    for (size_t i = 0; i < TYPES && !type; i++)
        if (types[i].dtype == (int)entry->dtype)
            type = &types[i];
    return type;
}

static int64_t entry_bytes(const shard_entry *entry)
{
    int64_t count = shard_shape_product(&entry->shape, 0, entry->shape.ndim);
    int bits = type_of(entry)->bits;
    return bits % 8 ? count / 8 * bits + count % 8 * bits / 8 : count * (bits / 8);
}

const char *shard_entry_type_name(const shard_entry *entry)
{
    return type_of(entry)->name;
}

shard_status shard_entry_check_copy(const shard_entry *entry, const char *path)
{
    return !entry->refusal || entry->refusal == type_of(entry)->refusal
               ? SHARD_OK
               : shard_error(SHARD_ERROR_UNSUPPORTED, "%s: %s %s, and cannot be copied", path, shard_quoted(entry->name),
                             entry->refusal);
}

static int compare_places(const void *left, const void *right, void *entries)
{
    int64_t i = *(const int64_t *)left, j = *(const int64_t *)right;
    const shard_entry *a = (shard_entry *)entries + i, *b = (shard_entry *)entries + j;
    int a_bits = type_of(a)->bits, b_bits = type_of(b)->bits;
    if (a_bits != b_bits)
        return a_bits > b_bits ? -1 : 1;
    if (entry_bytes(a) != entry_bytes(b))
        return entry_bytes(a) > entry_bytes(b) ? -1 : 1;
    return (i > j) - (i < j);
}

shard_status shard_safetensors_lay_out(shard_entry *entries, int64_t count, int64_t *data_bytes)
{
    int64_t *order = shard_calloc((size_t)count, sizeof *order);
    if (!order)
        return shard_last_status();
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, (size_t)count, sizeof *order, compare_places, entries);
    bool fits = true;
    *data_bytes = 0;
    for (int64_t i = 0; i < count && fits; i++) {
        shard_entry *entry = &entries[order[i]];
        entry->begin = *data_bytes;
        fits = !__builtin_add_overflow(*data_bytes, entry_bytes(entry), data_bytes);
        entry->end = *data_bytes;
    }
    free(order);
    return fits ? SHARD_OK : shard_safetensors_refuse_size(count);
}

shard_status shard_safetensors_refuse_size(int64_t count)
{
    const char *function = shard_current_function()->name;
    return shard_error(SHARD_ERROR_MEMORY,
                       "%s: %" PRId64 " tensors take more than %" PRId64 " bytes, the most of a file: save them in several files",
                       function ? function : "safetensors", count, INT64_MAX);
}

shard_status shard_safetensors_refuse_name(const char *name)
{
    return shard_error(SHARD_ERROR_ARGUMENT, "a tensor cannot be saved as %s: names must be UTF-8, and not " METADATA,
                       shard_quoted(name));
}

static shard_status describe(json_writer *writer, const shard_entry *entry)
{
    if (strcmp(entry->name, METADATA) == 0 || !json_is_utf8(entry->name))
        return shard_safetensors_refuse_name(entry->name);
    json_writer_string(writer, entry->name);
    json_writer_add(writer, ":{\"dtype\":");
    json_writer_string(writer, type_of(entry)->name);
    json_writer_add(writer, ",\"shape\":[");
    for (int i = 0; i < entry->shape.ndim; i++) {
        json_writer_add(writer, i ? "," : "");
        json_writer_integer(writer, entry->shape.dim[i]);
    }
    json_writer_add(writer, "],\"data_offsets\":[");
    json_writer_integer(writer, entry->begin);
    json_writer_add(writer, ",");
    json_writer_integer(writer, entry->end);
    json_writer_add(writer, "]}");
    return writer->status;
}

static void describe_metadata(json_writer *writer, const shard_metadata *metadata)
{
    const char *name, *value;
    json_writer_add(writer, "\"" METADATA "\":");
    for (int64_t at = 0, i = 0; shard_metadata_next(metadata, &at, &name, &value); i++) {
        json_writer_add(writer, i ? "," : "{");
        json_writer_string(writer, name);
        json_writer_add(writer, ":");
        json_writer_string(writer, value);
    }
    json_writer_add(writer, "}");
}

/* Sets the length, and adds spaces up to a multiple of the unit. */
static shard_status finish(json_writer *writer)
{
    int64_t length = writer->bytes - 8, unit = SHARD_SAFETENSORS_UNIT, whole = (writer->bytes + unit - 1) / unit * unit;
    if (length > SHARD_SAFETENSORS_HEADER_MOST - unit)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "a checkpoint's header of %" PRId64 " bytes; the most is %" PRId64
                           ": save fewer tensors, or less metadata",
                           length, SHARD_SAFETENSORS_HEADER_MOST);
    SHARD_TRY(shard_grow(&writer->text, &writer->capacity, whole, 1));
    memset(writer->text + writer->bytes, ' ', (size_t)(whole - writer->bytes));
    writer->bytes = whole;
    for (int i = 0; i < 8; i++)
        writer->text[i] = (char)((uint64_t)(whole - 8) >> 8 * i & 0xff);
    return SHARD_OK;
}

char *shard_safetensors_format(const shard_entry *entries, int64_t count, const shard_metadata *metadata, int64_t *bytes)
{
    json_writer writer = {0};
    bool strings = metadata && metadata->count > 0;
    json_writer_add(&writer, "(length){");
    if (strings)
        describe_metadata(&writer, metadata);
    for (int64_t i = 0; i < count && writer.status == SHARD_OK; i++) {
        json_writer_add(&writer, i || strings ? "," : "");
        writer.status = describe(&writer, &entries[i]);
    }
    json_writer_add(&writer, "}");
    if (writer.status == SHARD_OK)
        writer.status = finish(&writer);
    if (writer.status != SHARD_OK) {
        free(writer.text);
        return NULL;
    }
    *bytes = writer.bytes;
    return writer.text;
}
