/* Files that are read: their headers, and their tensors a run of bytes at a time, compared with the checksums. */
#ifndef TOOLS_CHECKPOINT_SOURCE_H
#define TOOLS_CHECKPOINT_SOURCE_H

#include "checkpoint/file.h"
#include "checkpoint/ranges.h"
#include "checkpoint/safetensors.h"

typedef struct source {
    char *path;
    shard_safetensors header;
    int64_t data_start;
    shard_file file;    /* open between source_open and source_close */
    struct stat opened; /* when the header was read */
} source;

typedef struct source_list {
    source *at;
    int64_t count, capacity;
} source_list;

/* Adds a file and reads its header; it is closed again, as there may be many. */
shard_status sources_add(source_list *list, const char *path, bool skip_checksums);
void sources_free(source_list *list);

/* Of the files before `count`: a tensor and the file that has it, or a value of the metadata. NULL: none has it. */
const shard_entry *sources_find(const source_list *list, const char *name, int64_t count, source **from);
const char *sources_metadata(const source_list *list, const char *name, int64_t count);

/* Opens the file to read its tensors, with one descriptor, unless it is open. IO: it has changed since its header was read. */
shard_status source_open(source *from);
void source_close(source *from);

/* The data of one tensor, from its first byte on. */
typedef struct run_reader {
    source *from;
    const shard_entry *entry;
    int64_t at;
    uint64_t crc;
} run_reader;

static inline run_reader read_entry(source *from, const shard_entry *entry)
{
    return (run_reader){.from = from, .entry = entry};
}

/* Bytes that are not read yet. */
int64_t run_left(const run_reader *reader);
/* Reads the next bytes. With the last ones FORMAT if the tensor was changed after it was saved, IO if the file was changed
 * since it was opened. */
shard_status run_next(run_reader *reader, void *to, int64_t bytes);

/* ARGUMENT: the path that is to be written is the input, or the input would be removed as a leftover of the path. */
shard_status source_check_output(const char *path, const char *input);

/* The number of elements. */
int64_t entry_elements(const shard_entry *entry);

/* After one of these, run_next fails; main then ends by the signal. */
void signals_take(void);
/* 0: none came. */
int signal_taken(void);

#endif
