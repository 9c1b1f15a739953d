/* Compares the arguments that must be identical on all ranks: options, lists of files. */
#ifndef COMMON_IDENTICAL_H
#define COMMON_IDENTICAL_H

#include <shard/base.h>

/* A list of texts, made one at a time; `of` is their source. */
typedef struct identical_list {
    int64_t count;
    /* Writes text `index`, ended by a 0, into `text` of IDENTICAL_BYTES. */
    void (*write)(const void *of, int64_t index, char *text);
    const void *of;
} identical_list;

#define IDENTICAL_BYTES 1024 /* more than the names of a file and its folder have */

/*
 * Whether the lists of all ranks are equal; else MISMATCH, the same error on every rank,
 * with the first text that differs, the values and two ranks, as in: "WHAT differ between
 * ranks: rank 0 has --lr 0.1, rank 2 has --lr 0.2; ADVICE". Collective over the world.
 */
shard_status check_identical(const char *what, const char *advice, identical_list list);

#endif
