/*
 * Pairs of images for verification, as insightface's lfw.bin, cfp_fp.bin and agedb_30.bin: a Python pickle of ([image, image,
 * ...], [same, same, ...]), where image 2 i and 2 i + 1 are the files (bytes) of pair i, and `same` is a bool.
 *
 * Unpickling in Python calls what the file names. This reader has the opcodes that such files are made of, of protocols 0 to 5:
 * bytes, bools, lists and a tuple. It calls nothing, and refuses every other opcode.
 */
#ifndef ARCFACE_PAIRS_H
#define ARCFACE_PAIRS_H

#include "source.h"

typedef struct pair_set pair_set;

/* NULL with the error set: IO; MEMORY; FORMAT, with the byte and what is wrong there. Not collective. */
pair_set *pair_set_open(const char *path);
/* The same of `size` bytes, which it takes over and frees; `path` is for errors. */
pair_set *pair_set_read(const char *path, uint8_t *bytes, size_t size);
void pair_set_close(pair_set *set);

int64_t pair_set_count(const pair_set *set);
/* Whether pair i is of one identity. */
bool pair_set_same(const pair_set *set, int64_t pair);

/* The bytes of image 0 to 2 count - 1. Errors: FORMAT, MEMORY. */
shard_status pair_set_image(const pair_set *set, int64_t number, image_file *file);

/* Its images; labels are the pairs' numbers. */
image_source pair_set_source(const pair_set *set);

#endif
