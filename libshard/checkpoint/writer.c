#include "checkpoint/writer.h"

#include "base/memory.h"

#include <stdlib.h>

shard_status shard_writer_begin(shard_writer *writer, const char *path, shard_entry *entries, int64_t count,
                                const shard_metadata *metadata)
{
    int64_t data_bytes, bytes;
    *writer = (shard_writer){.entries = entries, .count = count, .metadata = metadata, .new.lock = -1};
    writer->sums = shard_calloc((size_t)count, sizeof *writer->sums);
    if (!writer->sums)
        return shard_last_status();
    SHARD_TRY(shard_safetensors_lay_out(entries, count, &data_bytes));
    char *header = shard_checksums_format(entries, count, metadata, &writer->data_start);
    free(header);
    if (!header)
        return shard_last_status();
    if (__builtin_add_overflow(writer->data_start, data_bytes, &bytes))
        return shard_error(SHARD_ERROR_MEMORY, "%s: the tensors' sizes overflow", path);
    SHARD_TRY(shard_new_file_begin(&writer->new, path));
    return shard_file_allocate(&writer->new.file, bytes);
}

shard_status shard_writer_write(shard_writer *writer, int64_t index, const void *data, int64_t bytes, int64_t begin)
{
    uint64_t crc = 0;
    SHARD_TRY(shard_file_write(&writer->new.file, data, bytes, writer->data_start + writer->entries[index].begin + begin, &crc));
    shard_run_sum_add(&writer->sums[index], begin, bytes, crc);
    return SHARD_OK;
}

shard_status shard_writer_finish(shard_writer *writer)
{
    for (int64_t i = 0; i < writer->count; i++) {
        shard_entry *entry = &writer->entries[i];
        SHARD_TRY(shard_run_sum_check_whole(entry, writer->sums[i].boundaries));
        entry->checksum = shard_run_sum_part(&writer->sums[i], entry->end - entry->begin);
    }
    int64_t bytes = 0;
    char *header = shard_checksums_format(writer->entries, writer->count, writer->metadata, &bytes);
    shard_status status = header ? shard_file_write(&writer->new.file, header, bytes, 0, NULL) : shard_last_status();
    free(header);
    return status == SHARD_OK ? shard_new_file_finish(&writer->new) : status;
}

void shard_writer_end(shard_writer *writer)
{
    shard_new_file_end(&writer->new);
    free(writer->sums);
    writer->sums = NULL;
}
