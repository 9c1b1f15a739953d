/* What the program that null_calls.py writes and test_null_arguments.c have in common. */
#ifndef TESTS_NULL_CALLS_H
#define TESTS_NULL_CALLS_H

#include <shard/dlpack.h>
#include <shard/shard.h>

#include <stdio.h>

/* What came of a call. */
typedef struct null_result {
    const void *pointer; /* of a maker */
    shard_status status; /* of a doer */
    bool zero;           /* whether the bytes of a number or a struct are */
    shard_status error;  /* the thread's, afterwards, */
    char text[512];      /* and its text */
} null_result;

typedef enum null_kind { POINTER, STATUS, NUMBER, NOTHING } null_kind;

typedef struct null_call {
    const char *function, *arguments; /* those that are NULL */
    null_kind kind;
    bool legal;
    void (*call)(const char *first, null_result *result);
} null_call;

extern const null_call null_calls[];
extern const int null_call_count;

/* Before a call, with an error of the thread if first is not NULL, and after it. */
void begin_call(const char *first, null_result *result);
void end_call(null_result *result);

bool is_zero(const void *value, size_t bytes);

/* Arguments. */
shard_tensors *made_list(shard_tensor *tensor);
shard_optimizer *made_optimizer(void);
shard_optimizer *const *made_optimizers(void);
shard_tensor *const *made_tensors(void);
shard_custom_op *made_op(void);
shard_group *made_world(void);
shard_metadata *made_metadata(void);
FILE *made_file(void);
DLManagedTensorVersioned *made_managed(void);
DLManagedTensor *made_unversioned(void);
shard_release_memory made_release;
shard_log_function made_log;
shard_take_rows made_take;
shard_head_saved *made_saved(void);
shard_async_save *made_async_save(void);
extern const shard_module_type made_type;
extern const shard_schedule made_schedule;
extern shard_scope made_scope;
extern shard_module *made_module;
extern shard_tensor *made_tensor;
extern const shard_custom_op_type made_op_type;
extern shard_metadata *made_metadata_pointer;
extern shard_head_saved *made_saved_pointer;
extern int made_ints[8];
extern int64_t made_int64s[64];
extern double made_doubles[8];
extern char made_bytes[256];
extern bool made_bools[8];
extern char **made_words;

#endif
