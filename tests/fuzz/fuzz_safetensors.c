/*
 * Any bytes as a safetensors file: its tensors are what stands in the file, byte for
 * byte, or it is refused with an error; columns of them, of another dtype and under a prefix,
 * are those of the whole. And any bytes as the header of 64 bytes of data: what is accepted
 * covers them exactly, and is the same again after it is written; metadata are numbers or not.
 */
#include "checkpoint/metadata.h"
#include "checkpoint/safetensors.h"

#include <shard/checkpoint.h>
#include <shard/comm.h>
#include <shard/distributed.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DATA_BYTES = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static bool same_entry(const shard_entry *a, const shard_entry *b)
{
    return b && strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && shard_shape_equal(&a->shape, &b->shape) &&
           a->end - a->begin == b->end - b->begin;
}

static void write_again(const shard_safetensors *header)
{
    shard_entry *entries = shard_calloc((size_t)header->count, sizeof *entries);
    int64_t data_bytes, bytes;
    must(entries != NULL);
    if (header->count)
        memcpy(entries, header->entries, (size_t)header->count * sizeof *entries);
    must(shard_safetensors_lay_out(entries, header->count, &data_bytes) == SHARD_OK && data_bytes == DATA_BYTES);
    char *text = shard_safetensors_format(entries, header->count, &header->metadata, &bytes);
    shard_safetensors again;
    must(text && shard_safetensors_parse(&again, "again", text + 8, (size_t)bytes - 8, data_bytes) == SHARD_OK);
    must(again.count == header->count);
    must(again.metadata.count == header->metadata.count && again.metadata.bytes == header->metadata.bytes);
    for (int64_t i = 0; i < header->count; i++)
        must(same_entry(&header->entries[i], &again.entries[i]) &&
             same_entry(&header->entries[i], shard_safetensors_find(&again, header->entries[i].name)));
    shard_safetensors_free(&again);
    free(text);
    free(entries);
}

static void read_metadata(const shard_metadata *metadata)
{
    const char *name, *value;
    for (int64_t at = 0; shard_metadata_next(metadata, &at, &name, &value);) {
        const int64_t untouched = 17;
        int64_t integer = untouched;
        double number = (double)untouched;
        must(shard_metadata_get(metadata, name) == value);
        if (shard_metadata_get_number(metadata, name, &number) != SHARD_OK)
            must(shard_last_status() == SHARD_ERROR_ARGUMENT && number == (double)untouched);
        bool is_number = shard_last_status() == SHARD_OK;
        shard_clear_error();
        if (shard_metadata_get_integer(metadata, name, &integer) == SHARD_OK)
            must(is_number && (double)integer == number);
        else
            must(shard_last_status() == SHARD_ERROR_ARGUMENT && integer == untouched);
        must(!strchr(shard_last_error(), '\n'));
        shard_clear_error();
    }
}

static void read_header(const char *text, size_t size)
{
    shard_safetensors header;
    if (shard_safetensors_parse(&header, "fuzz", text, size, DATA_BYTES) == SHARD_OK) {
        int64_t bytes = 0;
        bool ours = true;
        for (int64_t i = 0; i < header.count; i++) {
            const shard_entry *entry = &header.entries[i];
            must(0 <= entry->begin && entry->begin <= entry->end && entry->end <= DATA_BYTES);
            must(shard_safetensors_find(&header, entry->name) == entry);
            bytes += entry->end - entry->begin;
            ours &= !entry->refusal;
        }
        must(bytes == DATA_BYTES);
        json_error_t error;
        json_t *tree = json_loadb(text, size, 0, &error);
        must(tree || json_error_code(&error) == json_error_numeric_overflow); /* a real number that is left out */
        json_decref(tree);
        read_metadata(&header.metadata);
        if (ours)
            write_again(&header);
    } else {
        must(shard_last_status() == SHARD_ERROR_FORMAT && !strchr(shard_last_error(), '\n'));
    }
    shard_clear_error();
    shard_safetensors_free(&header);
}

/* Tensors for those of a file under the prefix: all columns, or those behind the first; NULL if one has none. */
static shard_tensors *destination(const shard_tensors *file, const char *prefix, shard_dtype floating, bool columns)
{
    shard_tensors *list = shard_tensors_create();
    for (int64_t i = 0; i < shard_tensors_count(file); i++) {
        const shard_tensor *there = shard_tensors_at(file, i);
        const char *name = shard_tensors_name(file, i);
        shard_shape shape = shard_tensor_shape(there);
        shard_placement placement = {.kind = SHARD_SPLIT, .dim = shape.ndim - 1, .group = shard_world(), .start = 1};
        if (strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        bool split = columns && shape.ndim > 0 && shape.dim[shape.ndim - 1] > 0;
        if (split)
            placement.whole = shape.dim[shape.ndim - 1]--;
        shard_dtype dtype = shard_dtype_is_float(shard_tensor_dtype(there)) ? floating : shard_tensor_dtype(there);
        shard_tensor *tensor = shard_zeros(shape, .dtype = dtype);
        must(tensor != NULL);
        if (split)
            tensor->placement = placement;
        must(shard_tensors_add(list, name + strlen(prefix), tensor) == SHARD_OK);
        shard_release(tensor);
    }
    return list;
}

static char *host_values(shard_tensor *tensor, size_t *bytes)
{
    *bytes = (size_t)shard_numel(tensor) * shard_dtype_size(shard_tensor_dtype(tensor));
    char *values = malloc(*bytes + 1);
    must(values && shard_copy_to_host(tensor, values, *bytes) == SHARD_OK);
    return values;
}

static bool is_nan(const char *value, shard_dtype dtype)
{
    const uint64_t infinity = dtype == SHARD_FLOAT64    ? (uint64_t)0x7ff << 52
                              : dtype == SHARD_FLOAT32  ? (uint64_t)0xff << 23
                              : dtype == SHARD_BFLOAT16 ? (uint64_t)0xff << 7
                                                        : (uint64_t)0x1f << 10;
    size_t size = shard_dtype_size(dtype);
    uint64_t bits = 0;
    memcpy(&bits, value, size);
    return shard_dtype_is_float(dtype) && (bits & ~((uint64_t)1 << (8 * size - 1))) > infinity;
}

/* A conversion may give a NaN other bits where it stands elsewhere. */
static bool same_values(const char *a, const char *b, size_t bytes, shard_dtype dtype)
{
    size_t size = shard_dtype_size(dtype);
    for (size_t at = 0; at < bytes; at += size)
        if (memcmp(a + at, b + at, size) != 0 && !(is_nan(a + at, dtype) && is_nan(b + at, dtype)))
            return false;
    return true;
}

/* The columns behind the first are what they are in the whole. */
static void compare_columns(shard_tensor *part, shard_tensor *whole)
{
    size_t bytes, whole_bytes, size = shard_dtype_size(shard_tensor_dtype(part));
    char *values = host_values(part, &bytes), *all = host_values(whole, &whole_bytes);
    shard_shape shape = shard_tensor_shape(part);
    size_t width = part->placement.kind == SHARD_SPLIT ? (size_t)shape.dim[shape.ndim - 1] * size : bytes;
    size_t pitch = part->placement.kind == SHARD_SPLIT ? width + size : bytes;
    for (size_t row = 0; width > 0 && row < bytes / width; row++)
        must(same_values(values + row * width, all + row * pitch + pitch - width, width, shard_tensor_dtype(part)));
    free(values);
    free(all);
}

static void load_otherwise(const shard_tensors *file, const char *path, size_t choice)
{
    static const shard_dtype floats[] = {SHARD_FLOAT32, SHARD_FLOAT64, SHARD_BFLOAT16, SHARD_FLOAT16};
    char prefix[2] = {choice % 3 ? *shard_tensors_name(file, 0) : '\0', '\0'};
    if (prefix[0] & (char)0x80) /* half a character */
        prefix[0] = '\0';
    shard_tensors *whole = destination(file, prefix, floats[choice / 3 % 4], false);
    shard_tensors *part = destination(file, prefix, floats[choice / 3 % 4], true);
    shard_metadata *metadata = NULL;
    must(shard_load_with_metadata(whole, path, &metadata, .prefix = prefix, .convert = true, .skip_checksums = true) ==
             SHARD_OK &&
         metadata);
    must(shard_load(part, path, .prefix = prefix, .convert = true, .allow_missing = true, .allow_unexpected = true,
                    .skip_checksums = true) == SHARD_OK);
    shard_status verified =
        shard_load(part, path, .prefix = prefix, .convert = true, .allow_missing = true, .allow_unexpected = true);
    must(verified == SHARD_OK || verified == SHARD_ERROR_FORMAT);
    shard_clear_error();
    for (int64_t i = 0; i < shard_tensors_count(part); i++)
        compare_columns(shard_tensors_at(part, i), shard_tensors_at(whole, i));
    shard_metadata_destroy(metadata);
    shard_tensors_destroy(whole);
    shard_tensors_destroy(part);
}

/* Loads all tensors of a file whose header is sound: with the wrong checksums of data only without verification. */
static void verify(const shard_tensors *tensors, const char *path)
{
    shard_status verified = shard_verify(path);
    must(verified == SHARD_OK || verified == SHARD_ERROR_UNSUPPORTED || verified == SHARD_ERROR_FORMAT);
    shard_clear_error();
    shard_status loaded = shard_load(tensors, path);
    must(loaded == (verified == SHARD_ERROR_FORMAT ? SHARD_ERROR_FORMAT : SHARD_OK));
    shard_clear_error();
    must(shard_load(tensors, path, .skip_checksums = true) == SHARD_OK);
}

static void read_file(const uint8_t *data, size_t size)
{
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("fuzz", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    must(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size);
    shard_metadata *metadata = NULL;
    shard_tensors *tensors = shard_inspect(path, &metadata);
    int64_t bytes = 0;
    if (tensors)
        verify(tensors, path);
    for (int64_t i = 0; i < shard_tensors_count(tensors); i++) {
        shard_tensor *tensor = shard_tensors_at(tensors, i);
        int64_t own = shard_numel(tensor) * (int64_t)shard_dtype_size(shard_tensor_dtype(tensor));
        must(own <= (int64_t)size);
        char *copy = malloc((size_t)own + 1);
        must(copy && shard_copy_to_host(tensor, copy, (size_t)own) == SHARD_OK);
        must(own == 0 || memmem(data, size, copy, (size_t)own));
        free(copy);
        bytes += own;
    }
    must(tensors ? bytes < (int64_t)size : shard_last_status() != SHARD_OK);
    if (shard_tensors_count(tensors) > 0)
        load_otherwise(tensors, path, size);
    shard_tensors_destroy(tensors);
    shard_metadata_destroy(metadata);
    shard_clear_error();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_header((const char *)data, size);
    read_file(data, size);
    return 0;
}
