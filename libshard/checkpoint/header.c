#include "checkpoint/header.h"

#include "base/hash.h"
#include "base/memory.h"
#include "base/printable.h"
#include "checkpoint/checksums.h"

#include <stdlib.h>

shard_status shard_header_read(shard_safetensors *header, shard_file *file, int64_t file_bytes, bool verify, int64_t *data_start,
                               uint64_t *hash)
{
    unsigned char first[8] = {0};
    int64_t text_bytes;
    SHARD_TRY(shard_file_read(file, first, file_bytes < 8 ? file_bytes : 8, 0, NULL));
    SHARD_TRY(shard_safetensors_text_bytes(file->path, first, file_bytes, &text_bytes));
    char *text = shard_calloc((size_t)text_bytes, 1);
    if (!text)
        return shard_last_status();
    *data_start = 8 + text_bytes;
    shard_status status = shard_file_read(file, text, text_bytes, 8, NULL);
    if (status == SHARD_OK && text[0] != '{')
        status = shard_safetensors_refuse_others(file->path, first);
    if (status == SHARD_OK)
        status = shard_safetensors_parse(header, file->path, text, (size_t)text_bytes, file_bytes - *data_start);
    if (status == SHARD_OK)
        status = shard_checksums_take(header, file->path, first, text, text_bytes, verify);
    file->summed = header->checksums;
    *hash = shard_hash_bytes(shard_hash_bytes(SHARD_HASH_START, &file_bytes, sizeof file_bytes), text, text_bytes);
    free(text);
    return status;
}

shard_status shard_header_read_path(shard_safetensors *header, const char *path)
{
    shard_file file = {0};
    int64_t bytes, data_start;
    uint64_t hash;
    shard_status status = shard_file_open(&file, path, &bytes);
    if (status == SHARD_OK)
        status = shard_header_read(header, &file, bytes, true, &data_start, &hash);
    if (status == SHARD_OK)
        status = shard_file_check_unwritten(&file);
    shard_status closed = shard_file_close(&file);
    return status == SHARD_OK ? closed : status;
}

shard_status shard_header_size(const shard_entry *entries, int64_t count, const shard_metadata *metadata, int64_t data_bytes,
                               int64_t *data_start, int64_t *file_bytes)
{
    char *header = shard_checksums_format(entries, count, metadata, data_start);
    free(header);
    if (header && __builtin_add_overflow(*data_start, data_bytes, file_bytes))
        return shard_safetensors_refuse_size(count);
    return header ? SHARD_OK : shard_last_status();
}

shard_status shard_header_write(shard_file *file, const shard_entry *entries, int64_t count, const shard_metadata *metadata)
{
    int64_t bytes = 0;
    char *header = shard_checksums_format(entries, count, metadata, &bytes);
    shard_status status = header ? shard_file_write(file, header, bytes, 0, NULL) : shard_last_status();
    free(header);
    return status;
}

static shard_tensors *inspect(const char *function, const char *path, shard_metadata **metadata, bool all)
{
    shard_safetensors header = {0};
    if (metadata)
        *metadata = NULL;
    if (!path) {
        shard_null_argument(function, "path");
        return NULL;
    }
    shard_tensors *tensors = NULL;
    shard_metadata *read = NULL;
    shard_status status = shard_header_read_path(&header, path);
    if (status == SHARD_OK && metadata)
        status = (read = shard_metadata_take(&header.metadata)) ? SHARD_OK : shard_last_status();
    if (status == SHARD_OK)
        status = (tensors = shard_tensors_create()) ? SHARD_OK : shard_last_status();
    for (int64_t i = 0; i < header.count && status == SHARD_OK; i++) {
        const shard_entry *entry = &header.entries[i];
        shard_tensor *tensor = NULL;
        if (entry->refusal && !all)
            continue;
        if (entry->refusal)
            shard_error(SHARD_ERROR_UNSUPPORTED, "%s: %s %s, which tensors here cannot have", path, shard_quoted(entry->name),
                        entry->refusal);
        else
            tensor = shard_empty(entry->shape, .dtype = entry->dtype);
        status = tensor ? shard_tensors_add(tensors, entry->name, tensor) : shard_last_status();
        shard_release(tensor);
    }
    shard_safetensors_free(&header);
    if (status != SHARD_OK) {
        shard_tensors_destroy(tensors);
        shard_metadata_destroy(read);
        return NULL;
    }
    if (metadata)
        *metadata = read;
    return tensors;
}

shard_tensors *shard_inspect(const char *path, shard_metadata **metadata)
{
    return inspect("shard_inspect", path, metadata, true);
}

shard_tensors *shard_inspect_loadable(const char *path, shard_metadata **metadata)
{
    return inspect("shard_inspect_loadable", path, metadata, false);
}
