/*
 * The public function that a thread is in. Its name is part of the preflight check of each
 * collective, so that messages about ranks that differ or do not come name the function that the
 * user called: "rank 1 calls shard_save while rank 0 calls shard_step".
 */
#ifndef SHARD_COMM_FUNCTION_H
#define SHARD_COMM_FUNCTION_H

#include <shard/base.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The size of the text of the identical arguments of one function; a longer text is only hashed. */
#define SHARD_FUNCTION_ARGUMENTS 320

typedef struct shard_function {
    const char *name;                         /* of the outermost public function; NULL: none */
    uint64_t hash;                            /* of name and arguments */
    char arguments[SHARD_FUNCTION_ARGUMENTS]; /* "lr 0.1; shape [2, 3]" */
} shard_function;

/* Of this thread. */
const shard_function *shard_current_function(void);

/* The state that SHARD_FUNCTION found, restored when the function returns. */
typedef struct shard_function_mark {
    uint64_t before;  /* the hash */
    size_t arguments; /* the length of the text */
    bool outermost;
} shard_function_mark;

/* At the beginning of a public function that is collective; ends with the block. The function
 * that a user called counts: of nested ones, the outermost. An argument that a nested function requires to be identical ends
 * with that function: later collectives may be over other groups, whose ranks may have other values. */
#define SHARD_FUNCTION(name)                                                                                                     \
    __attribute__((unused, cleanup(shard_leave_function))) shard_function_mark shard_function_mark_ = shard_enter_function(name)
shard_function_mark shard_enter_function(const char *name);
void shard_leave_function(const shard_function_mark *mark);

/* For messages: which ranks call the function, if users of torch may call it on one rank; NULL: no hint. */
const char *shard_function_hint(void);

/* Adds an identical argument to the fingerprints of the function's next collectives: "lr %.7g". */
void shard_require_identical(const char *format, ...) SHARD_PRINTF(1, 2);
/* The same for a path of any length, after its name: "directory /data/out". Messages have a part of it. */
void shard_require_identical_path(const char *name, const char *path);
/* The same for data of which messages have no text. */
void shard_require_identical_hash(uint64_t hash);

#endif
