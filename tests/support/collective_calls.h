/*
 * A call of each public function that is collective, by every rank of the world, or with one rank that differs: the table
 * of tests of calls that do not fit together and of ranks without memory. tests/test_house.py compares its names with
 * SHARD_FUNCTION in libshard/.
 */
#ifndef TESTS_SUPPORT_COLLECTIVE_CALLS_H
#define TESTS_SUPPORT_COLLECTIVE_CALLS_H

#include "support/job.h"

/* How the odd rank differs. */
typedef enum call_kind {
    CALL_SHAPE,     /* another size or shape of an operand */
    CALL_DTYPE,     /* another dtype */
    CALL_SETTING,   /* another root, operation, dimension or option */
    CALL_FUNCTION,  /* another function */
    CALL_ORDER,     /* this call and the next one in the other order */
    CALL_SKIPPED,   /* no call: the next one */
    CALL_LEFT,      /* shard_finalize in place of the call */
    CALL_IDENTICAL, /* not at all */
} call_kind;

typedef struct call_case {
    shard_group *world;
    call_kind kind;
    int odd;             /* the rank that differs */
    const char *folder;  /* for files, the same on all ranks */
    void (*leave)(void); /* for CALL_LEFT: ends the odd rank */
} call_case;

typedef struct collective_call {
    const char *name; /* the public function's, without _with */
    /* Makes the operands, the call, and the next one, over the world. */
    void (*call)(call_case *c);
    unsigned kinds;       /* bits 1 << CALL_SHAPE ... CALL_SETTING: those that are errors; others are legal, or cannot be */
    const char *reported; /* the function that communicates, and that errors name; NULL: itself; "": none does */
    const char *file;     /* in its path: errors of operands name this file in place of the function; NULL: none */
} collective_call;

extern const collective_call collective_calls[];
extern const int collective_call_count;

const char *call_kind_name(call_kind kind);

#endif
