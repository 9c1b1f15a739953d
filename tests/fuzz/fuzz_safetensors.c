/*
 * Any bytes as a safetensors file: its tensors are what stands in the file, byte for
 * byte, or it is refused with an error. And any bytes as the header of 64 bytes of data:
 * what is accepted covers them exactly, and is the same again after it is written.
 */
#include "checkpoint/safetensors.h"

#include <shard/checkpoint.h>

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
    char *text = shard_safetensors_format(entries, header->count, header->metadata, &bytes);
    shard_safetensors again;
    must(text && shard_safetensors_parse(&again, "again", text + 8, (size_t)bytes - 8, data_bytes) == SHARD_OK);
    must(again.count == header->count);
    must(json_object_size(again.metadata) == json_object_size(header->metadata));
    for (int64_t i = 0; i < header->count; i++)
        must(same_entry(&header->entries[i], &again.entries[i]) &&
             same_entry(&header->entries[i], shard_safetensors_find(&again, header->entries[i].name)));
    shard_safetensors_free(&again);
    free(text);
    free(entries);
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
        if (ours)
            write_again(&header);
    } else {
        must(shard_last_status() == SHARD_ERROR_FORMAT && !strchr(shard_last_error(), '\n'));
    }
    shard_clear_error();
    shard_safetensors_free(&header);
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
        must(shard_load(tensors, path) == SHARD_OK);
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
