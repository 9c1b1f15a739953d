#include "checkpoint/writer.h"

#include "base/memory.h"
#include "checkpoint/header.h"

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
    SHARD_TRY(shard_header_size(entries, count, metadata, data_bytes, &writer->data_start, &bytes));
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
    SHARD_TRY(shard_header_write(&writer->new.file, writer->entries, writer->count, writer->metadata));
    return shard_new_file_finish(&writer->new);
}

void shard_writer_end(shard_writer *writer)
{
    shard_new_file_end(&writer->new);
    free(writer->sums);
    writer->sums = NULL;
}
