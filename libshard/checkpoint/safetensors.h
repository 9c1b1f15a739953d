/*
 * The header of a safetensors file: 8 bytes with its length, little-endian; then JSON with each tensor's dtype,
 * shape, and begin and end of its data; then the data. https://huggingface.co/docs/safetensors
 */
#ifndef SHARD_CHECKPOINT_SAFETENSORS_H
#define SHARD_CHECKPOINT_SAFETENSORS_H

#include "checkpoint/metadata.h"
#include "tensor/tensor.h"

/* A longer header is an error, as in the Python package. */
#define SHARD_SAFETENSORS_HEADER_MOST ((int64_t)100 * 1000 * 1000)

/* A dtype of the format. */
typedef struct shard_entry_type shard_entry_type;

typedef struct shard_entry {
    const char *name;
    const shard_entry_type *type; /* in a file; NULL: that of dtype */
    shard_dtype dtype;
    shard_shape shape;
    int64_t begin, end; /* bytes of the data */
    uint64_t checksum;  /* of the data; see checksums.h */
    /* The reason if its values cannot be read: "has dtype BOOL"; NULL: dtype and shape are set. */
    const char *refusal;
} shard_entry;

typedef struct shard_safetensors {
    shard_metadata metadata;
    shard_entry *entries; /* in the header's order */
    char *names;          /* of the entries */
    int64_t count;
    int64_t *by_name; /* indices of entries */
    bool checksums;   /* the entries' checksums are set */
} shard_safetensors;

/* Parses the header of a file: `text` is the JSON, data_bytes the size of the data after it. Every violation of the
 * format is an error (FORMAT) that begins with path. With the text, the header takes at most 4 times the text's length and
 * 1 MB of memory, whatever the text. Freed by shard_safetensors_free, after a failure too. */
shard_status shard_safetensors_parse(shard_safetensors *header, const char *path, const char *text, size_t text_bytes,
                                     int64_t data_bytes);
void shard_safetensors_free(shard_safetensors *header);

/* The text's length from a file's first 8 bytes, checked against the file's size. */
shard_status shard_safetensors_text_bytes(const char *path, const unsigned char first[8], int64_t file_bytes,
                                          int64_t *text_bytes);

/* FORMAT for a file that begins as a file of another format; the text names the format, and how to convert it. */
shard_status shard_safetensors_refuse_others(const char *path, const unsigned char first[8]);

/* The dtype's name in a file: "F32". */
const char *shard_entry_type_name(const shard_entry *entry);
/* UNSUPPORTED, with the path: a tensor that no other file can have as it is here, because of its shape. One of a refused dtype
 * can be copied. */
shard_status shard_entry_check_copy(const shard_entry *entry, const char *path);

/* NULL if there is none of that name. */
const shard_entry *shard_safetensors_find(const shard_safetensors *header, const char *name);

/* Sets begin and end of each entry: large dtypes first, so that all values are aligned, and large tensors first, so
 * that their ranges begin on blocks of the disk if possible. */
shard_status shard_safetensors_lay_out(shard_entry *entries, int64_t count, int64_t *data_bytes);

/* The file's first bytes: length, JSON, and spaces up to a multiple of SHARD_SAFETENSORS_UNIT. metadata may be
 * NULL. Freed by free(); NULL with the error set. */
#define SHARD_SAFETENSORS_UNIT 4096
char *shard_safetensors_format(const shard_entry *entries, int64_t count, const shard_metadata *metadata, int64_t *bytes);

/* MEMORY: that so many tensors are too large for a file. */
shard_status shard_safetensors_refuse_size(int64_t count);

/* ARGUMENT: that no tensor can be saved by this name. */
shard_status shard_safetensors_refuse_name(const char *name);

#endif
