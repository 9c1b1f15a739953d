#include "training_options.h"

#include <inttypes.h>
#include <string.h>

const command_choice training_optimizer_choices[] = {{"sgd", TRAINING_SGD},   {"adam", TRAINING_ADAM}, {"adamw", TRAINING_ADAMW},
                                                     {"lars", TRAINING_LARS}, {"lamb", TRAINING_LAMB}, {NULL, 0}};
const command_choice training_schedule_choices[] = {
    {"step", SHARD_SCHEDULE_STEP}, {"cosine", SHARD_SCHEDULE_COSINE}, {"constant", SHARD_SCHEDULE_CONSTANT}, {NULL, 0}};
const command_choice head_dtype_choices[] = {{"float32", SHARD_FLOAT32}, {"bfloat16", SHARD_BFLOAT16}, {NULL, 0}};
const command_choice head_rounding_choices[] = {
    {"nearest", SHARD_ROUNDING_NEAREST}, {"stochastic", SHARD_ROUNDING_STOCHASTIC}, {"kahan", SHARD_ROUNDING_KAHAN}, {NULL, 0}};
const command_choice head_optimizer_choices[] = {{"same", HEAD_SAME},
                                                 {"sgd", HEAD_SGD},
                                                 {"momentum", HEAD_MOMENTUM},
                                                 {"adamw", HEAD_ADAMW},
                                                 {"rowwise-adagrad", HEAD_ROWWISE_ADAGRAD},
                                                 {"rowwise-adam", HEAD_ROWWISE_ADAM},
                                                 {NULL, 0}};

bool training_resumes_auto(const training_options *wanted)
{
    return wanted->resume && strcmp(wanted->resume, "auto") == 0;
}

shard_status training_options_check(const training_options *wanted)
{
    if (wanted->nesterov && wanted->momentum <= 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "--nesterov needs a --momentum above 0");
    if (wanted->keep == 1)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--keep 1: the one before must stay until the next is written; take at least 2, or 0");
    if (wanted->keep && !wanted->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--keep needs --output");
    if (training_resumes_auto(wanted) && !wanted->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--resume auto looks into --output's DIR: give it");
    return SHARD_OK;
}

shard_status head_options_check(const head_options *head, const training_options *wanted)
{
    if (head->model_parallel_size && !head->enable_model_parallel)
        return shard_error(SHARD_ERROR_ARGUMENT, "--model-parallel-size needs --enable-model-parallel");
    if (head->rounding != SHARD_ROUNDING_STOCHASTIC && head->dtype != SHARD_BFLOAT16)
        return shard_error(SHARD_ERROR_ARGUMENT, "--head-rounding is for --head-dtype bfloat16: wider weights are not rounded");
    if (head->optimizer == HEAD_MOMENTUM && wanted->momentum <= 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "--head-optimizer momentum needs a --momentum above 0, or take sgd");
    return SHARD_OK;
}

const char *training_optimizer_name(const training_options *wanted)
{
    return command_choice_name(training_optimizer_choices, wanted->optimizer);
}

const char *head_optimizer_name(const head_options *head, const training_options *wanted)
{
    if (head->optimizer != HEAD_SAME)
        return command_choice_name(head_optimizer_choices, head->optimizer);
    bool momentum = wanted->optimizer == TRAINING_SGD && wanted->momentum > 0;
    return momentum ? "momentum" : training_optimizer_name(wanted);
}
