/*
 * NULL for every pointer argument of every public function, by the calls that null_calls.py
 * writes from the headers: no crash, no hang, nothing lost, and what base.h says of NULL.
 */
#include "null_calls.h"

#include "support/check.h"
#include "support/options.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- arguments ---- */

static shard_tensor *forward(shard_module *module, shard_tensor *x)
{
    (void)module;
    return x;
}

const shard_module_type made_type = {.name = "made", .forward = forward};
const shard_schedule made_schedule = {SHARD_SCHEDULE_VALUES, .base_lr = 1};
shard_scope made_scope;
shard_module *made_module;
shard_tensor *made_tensor;
shard_metadata *made_metadata_pointer;
shard_head_saved *made_saved_pointer;
int made_ints[8] = {0, 1, 2, 3, 4, 5, 6, 7};
int64_t made_int64s[64];
double made_doubles[8];
char made_bytes[256];
bool made_bools[8];
static char *word = "program";
char **made_words = &word;

shard_tensors *made_list(shard_tensor *tensor)
{
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, "1", tensor);
    shard_release(tensor);
    return list;
}

void made_release(void *context)
{
    (void)context;
}

void made_log(shard_log_level level, int rank, const char *line, void *context)
{
    (void)level, (void)rank, (void)line, (void)context;
}

shard_status made_take(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    (void)context, (void)device, (void)first, (void)count, (void)gradient;
    return SHARD_OK;
}

shard_head_saved *made_saved(void)
{
    static shard_head_saved *saved; /* seen by the sanitizers as reachable */
    if (!saved)
        SHARD_SCOPE
        {
            shard_tensor *target = shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64);
            shard_linear_cross_entropy_forward(shard_ones(SHARD_SHAPE(2, 2)), shard_ones(SHARD_SHAPE(2, 2)), NULL, target,
                                               &saved);
        }
    return saved;
}

/* Complete, so that nothing is left to be written. */
shard_async_save *made_async_save(void)
{
    static shard_async_save *save;
    char path[64];
    bool done = save;
    snprintf(path, sizeof path, "/tmp/null_arguments.%d", (int)getpid());
    if (!save) {
        shard_tensors *list = made_list(shard_ones(SHARD_SHAPE(2, 2)));
        save = shard_save_async(list, path, NULL, .local = true);
        shard_tensors_destroy(list);
    }
    while (!done && shard_async_save_poll(save, &done) == SHARD_OK)
        usleep(100);
    unlink(path);
    return save;
}

DLManagedTensorVersioned *made_managed(void)
{
    static float memory[4];
    static DLManagedTensorVersioned managed = {
        .version = {DLPACK_MAJOR_VERSION, 0},
        .dl_tensor = {.data = memory, .device = {.device_type = kDLCPU}, .dtype = {kDLFloat, 32, 1}}};
    return &managed;
}

DLManagedTensor *made_unversioned(void)
{
    static DLManagedTensor managed;
    managed.dl_tensor = made_managed()->dl_tensor;
    return &managed;
}

shard_optimizer *made_optimizer(void)
{
    return sgd_of_list(made_list(shard_ones(SHARD_SHAPE(2), .requires_grad = true)));
}

shard_optimizer *const *made_optimizers(void)
{
    static shard_optimizer *optimizers[8];
    for (int i = 0; i < 8 && !optimizers[i]; i++)
        optimizers[i] = made_optimizer();
    return optimizers;
}

shard_tensor *const *made_tensors(void)
{
    static shard_tensor *tensors[8];
    for (int i = 0; i < 8 && !tensors[i]; i++)
        tensors[i] = shard_ones(SHARD_SHAPE(2, 2));
    return tensors;
}

static shard_custom_op *op_called;

static shard_tensor *op_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)inputs;
    op_called = op;
    return shard_relu(input[0]);
}

static shard_status op_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)op, (void)inputs;
    dx[0] = dy;
    return SHARD_OK;
}

const shard_custom_op_type made_op_type = {.name = "made", .forward = op_forward, .backward = op_backward};

/* The operation whose backward can still come, and what keeps it: seen by the sanitizers as reachable. */
shard_tensor *made_op_leaf, *made_op_result;
static shard_custom_op *kept_op;

shard_custom_op *made_op(void)
{
    if (kept_op)
        return kept_op;
    made_op_leaf = shard_ones(SHARD_SHAPE(2, 2), .requires_grad = true);
    made_op_result = shard_custom_op_apply(&made_op_type, NULL, made_op_leaf);
    return kept_op = op_called;
}

shard_group *made_world(void)
{
    if (!shard_world())
        shard_init(NULL, NULL);
    return shard_world();
}

shard_metadata *made_metadata(void)
{
    shard_metadata *metadata = shard_metadata_create();
    shard_metadata_set(metadata, "1", "1");
    return metadata;
}

FILE *made_file(void)
{
    static FILE *file;
    return file ? file : (file = fopen("/dev/null", "w"));
}

/* ---- a call ---- */

void begin_call(const char *first, null_result *result)
{
    *result = (null_result){0};
    shard_release(made_tensor); /* an earlier call's */
    made_tensor = NULL;
    if (first)
        shard_error(SHARD_ERROR_IO, "%s", first);
}

void end_call(null_result *result)
{
    result->error = shard_last_status();
    snprintf(result->text, sizeof result->text, "%s", shard_last_error());
    shard_clear_error();
}

bool is_zero(const void *value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const char *)value)[i])
            return false;
    return true;
}

/* What is wrong with the result; NULL: nothing. */
static const char *judge(const null_call *call, const null_result *result)
{
    bool refused = result->error != SHARD_OK && (call->kind == NOTHING || strstr(result->text, " is NULL"));
    if (call->legal)
        return refused ? "an error of what may be NULL" : NULL;
    if (call->kind == POINTER && result->pointer)
        return "it gives something";
    if (call->kind == STATUS && result->status == SHARD_OK)
        return "it gives SHARD_OK";
    if (call->kind == NUMBER && !result->zero && result->error == SHARD_OK)
        return "it gives another value than 0, and there is no error";
    if (call->kind == STATUS && result->error == SHARD_OK)
        return "there is no error";
    if (result->error != SHARD_OK && !strstr(result->text, "NULL"))
        return "the error does not say what is NULL";
    return NULL;
}

static const char *judge_second(const null_call *call, const null_result *result)
{
    if (result->error != SHARD_ERROR_IO || strcmp(result->text, "the first") != 0)
        return "the thread's first error did not stay";
    if (!call->legal && call->kind == POINTER && result->pointer)
        return "after an error it gives something";
    if (!call->legal && call->kind == STATUS && result->status == SHARD_OK)
        return "after an error it gives SHARD_OK";
    return NULL;
}

/* ---- children, each for one function's calls ---- */

typedef struct progress {
    int next; /* the first call that has not begun */
    int failures;
} progress;

static progress *shared;

static void report(const null_call *call, const char *wrong, const char *error)
{
    fprintf(stderr, "%s, NULL: %s: %s (\"%s\")\n", call->function, call->arguments, wrong, error);
    shared->failures++;
}

static void make_calls(void)
{
    const char *function = null_calls[shared->next].function;
    while (shared->next < null_call_count && strcmp(null_calls[shared->next].function, function) == 0) {
        const null_call *call = &null_calls[shared->next++];
        null_result result;
        alarm(20);
        call->call(NULL, &result);
        const char *wrong = judge(call, &result);
        if (wrong)
            report(call, wrong, result.text);
        call->call("the first", &result);
        wrong = judge_second(call, &result);
        if (wrong)
            report(call, wrong, result.text);
    }
}

START_TEST(test_null)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_msg(shared != MAP_FAILED, "%s", strerror(errno));
    while (shared->next < null_call_count) {
        fflush(NULL);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            signal(SIGALRM, SIG_DFL);
            made_module = shard_nn_linear(2, 2);
            make_calls();
            exit(0);
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        const null_call *last = &null_calls[shared->next - 1];
        if (WIFSIGNALED(status))
            report(last, strsignal(WTERMSIG(status)), "");
        else if (WEXITSTATUS(status) != 0)
            report(last, "an exit code of a sanitizer, which says above what it found", "");
    }
    ck_assert_msg(shared->failures == 0, "%d of %d calls, see above", shared->failures, null_call_count);
    ck_assert_int_gt(null_call_count, 100);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("null_arguments");
    TCase *tcase = test_case(suite, "null_arguments");
    tcase_add_test(tcase, test_null);
    return test_run(suite);
}
