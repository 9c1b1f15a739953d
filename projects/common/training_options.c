/* The tables of the options that trainers share, and which of them fit together. */
#include "training_options.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- choices ---- */

const command_choice training_optimizer_choices[] = {{"sgd", TRAINING_SGD},   {"adam", TRAINING_ADAM}, {"adamw", TRAINING_ADAMW},
                                                     {"lars", TRAINING_LARS}, {"lamb", TRAINING_LAMB}, {NULL, 0}};
const command_choice training_schedule_choices[] = {{"step", SHARD_SCHEDULE_STEP},
                                                    {"cosine", SHARD_SCHEDULE_COSINE},
                                                    {"polynomial", SHARD_SCHEDULE_POLYNOMIAL},
                                                    {"constant", SHARD_SCHEDULE_CONSTANT},
                                                    {NULL, 0}};
const command_choice head_dtype_choices[] = {
    {"same", HEAD_DTYPE_SAME}, {"float32", SHARD_FLOAT32}, {"bfloat16", SHARD_BFLOAT16}, {NULL, 0}};
const command_choice head_rounding_choices[] = {
    {"nearest", SHARD_ROUNDING_NEAREST}, {"stochastic", SHARD_ROUNDING_STOCHASTIC}, {"kahan", SHARD_ROUNDING_KAHAN}, {NULL, 0}};
const command_choice head_optimizer_choices[] = {{"same", HEAD_SAME},
                                                 {"sgd", HEAD_SGD},
                                                 {"momentum", HEAD_MOMENTUM},
                                                 {"adamw", HEAD_ADAMW},
                                                 {"rowwise-adagrad", HEAD_ROWWISE_ADAGRAD},
                                                 {"rowwise-adam", HEAD_ROWWISE_ADAM},
                                                 {NULL, 0}};
static const command_choice amps[] = {{"none", SHARD_FLOAT32}, {"bf16", SHARD_BFLOAT16}, {"fp16", SHARD_FLOAT16}, {NULL, 0}};
static const command_choice stages[] = {{"none", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {NULL, 0}};
static const command_choice policies[] = {{"stop", TRAINING_STOP}, {"skip", TRAINING_SKIP}, {NULL, 0}};

/* ---- tables ---- */

#define AT(field) .offset = offsetof(training_options, field)
#define HEAD_AT(field) .offset = offsetof(head_options, field)
#define MOST_WHOLE COMMAND_MOST_WHOLE

const command_option training_rows[] = {
    {COMMAND_WHOLE, "epochs", "passes over the training %s", "N", AT(epochs), .least = 1, .most = 1e9},
    {COMMAND_WHOLE, "steps",
     "stop after N steps, counted from the first start on; 0: go by --epochs only. The schedule of the learning rate always goes "
     "by --epochs",
     "N", AT(steps), .most = MOST_WHOLE},
    {COMMAND_WHOLE, "batch-size", "%s of a step, of all ranks together", "N", .letter = 'b', AT(batch), .least = 1, .most = 1e9},
    {COMMAND_CHOICE, "optimizer", "sgd, adam, adamw, lars or lamb", "KIND", AT(optimizer), .choices = training_optimizer_choices},
    {COMMAND_NUMBER, "clip-grad", "scale gradients down so that their norm is at most X; 0: do not", "X", AT(clip_grad),
     .most = INFINITY},
    {COMMAND_NUMBER, "lr", "learning rate", "X", "learning-rate", AT(lr), .most = INFINITY},
    {COMMAND_CHOICE, "lr-schedule",
     "step: times --lr-gamma every --lr-step-size epochs; cosine and polynomial: down to --lr-min at the end; constant", "KIND",
     AT(lr_schedule), .choices = training_schedule_choices},
    {COMMAND_WHOLE, "lr-step-size", "epochs between the steps of the step schedule", "N", AT(lr_step_size), .least = 1,
     .most = 1e9},
    {COMMAND_NUMBER, "lr-gamma", "factor of a step of the step schedule", "X", AT(lr_gamma), .least = 1e-9, .most = 1},
    {COMMAND_NUMBER, "lr-min", "learning rate at the end of the cosine and polynomial schedules", "X", AT(lr_min),
     .most = INFINITY},
    {COMMAND_NUMBER, "lr-power", "of the polynomial schedule; 1: linear", "X", AT(lr_power), .least = 1e-3, .most = 100},
    {COMMAND_NUMBER, "warmup-epochs", "the learning rate rises linearly over the first X epochs", "X", AT(warmup_epochs),
     .most = 1e9},
    {COMMAND_WHOLE, "warmup-steps", "the same in steps; counts if it is not 0", "N", AT(warmup_steps), .most = MOST_WHOLE},
    {COMMAND_NUMBER, "momentum", "momentum of SGD and LARS", "X", AT(momentum), .most = 0.9999},
    {COMMAND_FLAG, "nesterov", "Nesterov's momentum, of SGD and LARS", AT(nesterov)},
    {COMMAND_NUMBER, "wd", "weight decay; of biases and other vectors with --decay-all alone", "X", "weight-decay",
     AT(weight_decay), .most = INFINITY},
    {COMMAND_FLAG, "decay-all", "weight decay of biases and other vectors, too, as torch.optim's", AT(decay_all)},
    {COMMAND_WHOLE, "seed", "of the initial values and of the order of the %s", "N", AT(seed), .most = MOST_WHOLE},
    {0},
};

const command_option training_device_rows[] = {
    {COMMAND_TEXT, "device", "cpu; cuda, this rank's GPU of its machine; cuda:N. Without it what SHARD_DEVICE says, else cpu",
     "DEVICE", AT(device), .same = COMMAND_SAME_NOT},
    {0},
};

const command_option training_computing_rows[] = {
    {COMMAND_CHOICE, "enable-amp-mode",
     "mixed precision: products and convolutions in bfloat16, or in float16 with a scaled loss; weights stay float32",
     "[bf16|fp16]", AT(amp), .choices = amps, .alone = "bf16"},
    {COMMAND_CHOICE, "enable-zero-optim",
     "ZeRO: partition over ranks with the same parameters the optimizer's state (1), gradients too (2), values too (3)",
     "[1|2|3]", AT(zero), .choices = stages, .alone = "1"},
    {COMMAND_NUMBER, "bucket-mib", "gradients (and, with ZeRO 3, values) are communicated in buckets of about X MiB", "X",
     AT(bucket_mib), .least = 0.001, .most = 1e6},
    {0},
};

const command_option training_non_finite_rows[] = {
    {COMMAND_CHOICE, "non-finite",
     "a step whose loss is NaN or infinite on any rank. stop: the run ends with an error; skip: all ranks leave the step out, "
     "and one whose gradients are not finite; each step waits for its loss",
     "KIND", AT(non_finite), .choices = policies},
    {0},
};

const command_option training_validation_rows[] = {
    {COMMAND_FLAG, "evaluate", "only validate (the model of %s)", .letter = 'e', AT(evaluate)},
    {COMMAND_WHOLE, "val-interval", "epochs between validations; 0: never", "N", AT(val_interval), .most = 1e9},
    {0},
};

const command_option training_file_rows[] = {
    {COMMAND_TEXT, "output",
     "folder for checkpoint.safetensors (the latest), best.safetensors and model.safetensors (the best model alone, without the "
     "optimizer; before a validation the latest); made if it is not there. It must have none of these, unless --resume goes on "
     "from it",
     "DIR", AT(output)},
    {COMMAND_FLAG, "overwrite",
     "remove the checkpoint.safetensors, best.safetensors and model.safetensors of another run in --output, by a run that "
     "begins or that goes on from another folder; folders of --keep stay, and are refused",
     AT(overwrite)},
    {COMMAND_WHOLE, "save-every", "steps between checkpoints; 0: after each epoch only", "N", AT(save_every), .most = MOST_WHOLE},
    {COMMAND_WHOLE, "keep",
     "checkpoints that stay, the newest, as DIR/step-000120/checkpoint.safetensors; 0: one, DIR/checkpoint.safetensors", "N",
     AT(keep), .most = MOST_WHOLE},
    {COMMAND_TEXT, "resume",
     "go on from a checkpoint, on any number of ranks; auto: from the newest whole one in --output's DIR, and from the beginning "
     "if there is none",
     "FILE|auto", AT(resume), .same = COMMAND_SAME_PRESENCE},
    {COMMAND_TEXT, "metrics", "write one JSON object a line for each step and validation", "FILE", AT(metrics),
     .same = COMMAND_SAME_PRESENCE},
    {COMMAND_TEXT, "tensorboard", "write the same numbers for TensorBoard into a folder, which is made if it is not there", "DIR",
     AT(tensorboard), .same = COMMAND_SAME_PRESENCE},
    {COMMAND_FLAG, "memory-report", "print what the library's memory is used for at the end: the most of any rank",
     AT(memory_report)},
    {COMMAND_WHOLE, "print-freq", "steps between printed lines, where there is no terminal", "N", .letter = 'p', AT(print_freq),
     .same = COMMAND_SAME_NOT, .least = 1, .most = MOST_WHOLE},
    {0},
};

const command_option training_save_async_rows[] = {
    {COMMAND_FLAG, "save-async", "write checkpoints in the background, from a copy in memory, while training goes on",
     AT(save_async)},
    {0},
};

const command_option training_check_replicas_rows[] = {
    {COMMAND_WHOLE, "check-replicas",
     "every K steps compare what ranks have replicas of (parameters, buffers, optimizer state) bit for bit; a difference ends "
     "the run; 0: never",
     "K", AT(check_replicas), .most = MOST_WHOLE},
    {0},
};

const command_option head_rows[] = {
    {COMMAND_FLAG, "enable-model-parallel", "split the last layer over ranks", HEAD_AT(enable_model_parallel)},
    {COMMAND_WHOLE, "model-parallel-size", "ranks that one last layer is split over; 0: all. The rest is data parallel", "N",
     HEAD_AT(model_parallel_size), .most = 1e6},
    {COMMAND_CHOICE, "head-dtype", "of its weight: bfloat16 takes half the memory; same: as the other layers", "DTYPE",
     HEAD_AT(dtype), .choices = head_dtype_choices},
    {COMMAND_CHOICE, "head-rounding",
     "how steps round a weight of bfloat16. nearest: small steps are lost; stochastic: up or down at random, right in the mean; "
     "kahan: the rest is kept in a second weight of bfloat16",
     "KIND", HEAD_AT(rounding), .choices = head_rounding_choices},
    {COMMAND_CHOICE, "head-optimizer",
     "its own optimizer. sgd: without momentum; momentum: SGD with --momentum; adamw; rowwise-adagrad and rowwise-adam: one "
     "second moment for each class; same: as --optimizer",
     "KIND", HEAD_AT(optimizer), .choices = head_optimizer_choices},
    {COMMAND_NUMBER, "head-lr", "its own learning rate, with the run's schedule; 0: as --lr", "X", HEAD_AT(lr), .most = INFINITY},
    {COMMAND_NUMBER, "head-stash",
     "a classifier's loss keeps logits for its backward in at most this part of the bytes of its weight; 0: none, and all are "
     "computed again",
     "X", HEAD_AT(stash), .most = 1e9},
    {0},
};

/* ---- which fit together ---- */

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
    if ((wanted->keep || wanted->save_every || wanted->save_async || wanted->overwrite) && !wanted->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs --output",
                           wanted->keep         ? "keep"
                           : wanted->save_every ? "save-every"
                           : wanted->save_async ? "save-async"
                                                : "overwrite");
    if (wanted->overwrite && training_resumes_auto(wanted))
        return shard_error(SHARD_ERROR_ARGUMENT, "--resume auto goes on, and --overwrite begins anew: one of them");
    if (training_resumes_auto(wanted) && wanted->evaluate)
        return shard_error(SHARD_ERROR_ARGUMENT, "--resume auto is for training: give --evaluate the file");
    if (training_resumes_auto(wanted) && !wanted->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--resume auto looks into --output's DIR: give it");
    if (wanted->evaluate && wanted->output)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate writes no checkpoint: leave --output out");
    if (wanted->amp != SHARD_FLOAT32 && wanted->dtype != SHARD_FLOAT32)
        return shard_error(SHARD_ERROR_ARGUMENT, "--enable-amp-mode is for --dtype float32");
    return SHARD_OK;
}

/* An option that was given, and that the optimizers or the schedule make no use of. */
static shard_status check_used(const head_options *head, const training_options *wanted)
{
    int schedule = wanted->lr_schedule;
    bool momentum = wanted->optimizer == TRAINING_SGD || wanted->optimizer == TRAINING_LARS || head->optimizer == HEAD_MOMENTUM;
    bool falls = schedule == SHARD_SCHEDULE_COSINE || schedule == SHARD_SCHEDULE_POLYNOMIAL;
    const struct {
        const char *option, *needs;
        bool ignored;
    } checks[] = {
        {"momentum", "--optimizer sgd or lars", wanted->momentum != TRAINING_MOMENTUM && !momentum},
        {"nesterov", "--optimizer sgd or lars", wanted->nesterov && !momentum},
        {"lr-step-size", "--lr-schedule step", wanted->lr_step_size != TRAINING_STEP_SIZE && schedule != SHARD_SCHEDULE_STEP},
        {"lr-gamma", "--lr-schedule step", wanted->lr_gamma != TRAINING_GAMMA && schedule != SHARD_SCHEDULE_STEP},
        {"lr-min", "--lr-schedule cosine or polynomial", wanted->lr_min > 0 && !falls},
        {"lr-power", "--lr-schedule polynomial", wanted->lr_power != 1 && schedule != SHARD_SCHEDULE_POLYNOMIAL},
        {"decay-all", "a --wd above 0", wanted->decay_all && wanted->weight_decay == 0},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (checks[i].ignored)
            return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs %s; leave it out", checks[i].option, checks[i].needs);
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
    return check_used(head, wanted);
}

shard_status head_options_check_stash(const head_options *head, const char *option)
{
    if (head->stash != HEAD_STASH && option)
        return shard_error(SHARD_ERROR_ARGUMENT, "--head-stash: with %s a loss keeps no logits; leave --head-stash out", option);
    return SHARD_OK;
}

const char *training_optimizer_name(const training_options *wanted)
{
    return command_choice_name(training_optimizer_choices, wanted->optimizer);
}

bool training_has_momentum(const training_options *wanted)
{
    return (wanted->optimizer == TRAINING_SGD || wanted->optimizer == TRAINING_LARS) && wanted->momentum > 0;
}

const char *head_optimizer_name(const head_options *head, const training_options *wanted)
{
    if (head->optimizer != HEAD_SAME)
        return command_choice_name(head_optimizer_choices, head->optimizer);
    bool momentum = wanted->optimizer == TRAINING_SGD && training_has_momentum(wanted);
    return momentum ? "momentum" : training_optimizer_name(wanted);
}

const char *head_rounding_name(const head_options *head)
{
    return head->dtype == SHARD_BFLOAT16 ? command_choice_name(head_rounding_choices, head->rounding) : "none";
}

shard_dtype head_dtype(const head_options *head, const training_options *wanted)
{
    return (shard_dtype)(head->dtype == HEAD_DTYPE_SAME ? wanted->dtype : head->dtype);
}

shard_dtype head_autocast(const head_options *head, const training_options *wanted)
{
    return (shard_dtype)(head_dtype(head, wanted) == SHARD_BFLOAT16 ? SHARD_FLOAT32 : wanted->amp);
}

bool head_is_layerwise(const head_options *head, const training_options *wanted)
{
    return head->optimizer == HEAD_SAME && (wanted->optimizer == TRAINING_LARS || wanted->optimizer == TRAINING_LAMB);
}
