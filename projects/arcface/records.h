/*
 * A data set in MXNet's RecordIO, as insightface has them: DIR/train.rec, and its index DIR/train.idx with a line
 * "key<TAB>position" for each record. A record is a word 0xced7230a, a word with a flag in its upper 3 bits and a length in the
 * other 29, so many bytes, and zeros up to a multiple of 4. Flag 0: the record is whole; 1, 2 and 3: it has a first part, others
 * and a last one, between which the word 0xced7230a was taken out. All numbers are little endian.
 *
 * The content of a record is a header of 24 bytes (flag, a float label, two ids of 8 bytes), `flag` float labels, of which the
 * first one counts, and a JPEG or PNG. Record 0 with labels (n, m) says that the images are records 1 to n - 1. Without labels
 * all records are images. From 2^24 on n may have been rounded: it is refused if record n - 1 has no image or record n has one.
 */
#ifndef ARCFACE_RECORDS_H
#define ARCFACE_RECORDS_H

#include "source.h"

typedef struct record_set record_set;

/* Reads the index and the label of each image. Memory grows with the files, whatever their numbers say. NULL with the error set:
 * IO; MEMORY; FORMAT, with the file, the line or the byte, and what is wrong; UNSUPPORTED. Not collective. */
record_set *record_set_open(const char *directory);
void record_set_close(record_set *set);

int64_t record_set_images(const record_set *set);
/* One more than the largest label. */
int64_t record_set_identities(const record_set *set);
int64_t record_set_label(const record_set *set, int64_t number);

/* The image's bytes. Errors: FORMAT, IO, MEMORY. Called by several threads. */
shard_status record_set_read(const record_set *set, int64_t number, image_file *file);

/* Its images, with their labels. */
image_source record_set_source(const record_set *set);

/* Whether the folder has a train.rec. */
bool record_set_exists(const char *directory);

#endif
