#include "training_loop.h"

#include <inttypes.h>

static bool all_steps_done(const training_loop *loop)
{
    return loop->options->steps > 0 && loop->at->step >= loop->options->steps;
}

/* All its steps are done; its validation and save are still to do. */
static bool epoch_is_full(const training_loop *loop)
{
    return loop->at->epoch_step == loop->checkpoint->epoch_steps;
}

int64_t training_schedule_step(const training_position *at, int64_t epoch_steps)
{
    return at->epoch * epoch_steps + at->epoch_step;
}

int64_t training_steps_to_make(const training_options *wanted, const training_position *at, int64_t epoch_steps)
{
    int64_t asked = at->epoch_step + wanted->steps - at->step;
    return wanted->steps && asked < epoch_steps ? asked : epoch_steps;
}

shard_status training_loop_save(const training_loop *loop, bool best)
{
    if (!loop->options->output)
        return SHARD_OK;
    shard_tensors *model = loop->export ? loop->export(loop->run) : shard_state_dict(loop->model), *all = shard_tensors_create();
    shard_status status = shard_tensors_extend(all, "", model);
    if (status == SHARD_OK)
        status = training_optimizers_add_state(loop->optimizers, all, TRAINING_OPTIMIZER);
    if (status == SHARD_OK)
        status = training_checkpoint_save(loop->checkpoint, all, model, loop->at, best);
    shard_tensors_destroy(all);
    shard_tensors_destroy(model);
    return status;
}

static shard_status report(const training_loop *loop)
{
    return loop->report ? loop->report(loop->run) : SHARD_OK;
}

static shard_status compare_replicas(const training_loop *loop)
{
    int64_t every = loop->options->check_replicas;
    if (!every || loop->at->step % every)
        return SHARD_OK;
    shard_tensors *all = training_collect(loop->model, loop->optimizers);
    shard_status status = shard_check_replicas(all);
    shard_tensors_destroy(all);
    if (status != SHARD_OK)
        progress_say(loop->shown, "replicas differ after step %" PRId64, loop->at->step);
    return status;
}

/* Between two steps of an epoch. A model whose loss is not finite is not saved: the report refuses it. */
static shard_status save_between(const training_loop *loop)
{
    int64_t every = loop->options->save_every;
    if (!every || loop->at->step % every || epoch_is_full(loop))
        return SHARD_OK;
    shard_status status = report(loop);
    return status == SHARD_OK ? training_loop_save(loop, false) : status;
}

/* The rest of the epoch, until --steps or a signal ends it. */
static shard_status train_epoch(const training_loop *loop, bool *interrupted)
{
    shard_status status = loop->begin(loop->run);
    while (status == SHARD_OK && !all_steps_done(loop) && !*interrupted && !epoch_is_full(loop)) {
        status = loop->step(loop->run, interrupted);
        if (status == SHARD_OK)
            status = training_checkpoint_poll(loop->checkpoint);
        if (status == SHARD_OK)
            status = compare_replicas(loop);
        if (status == SHARD_OK)
            status = save_between(loop);
    }
    return status == SHARD_OK ? report(loop) : status;
}

/* Validates if it is time to, and moves to the next epoch; *interrupted: not done, the run that resumes does it. */
static shard_status end_epoch(const training_loop *loop, bool *interrupted)
{
    int64_t interval = loop->options->val_interval, next = loop->at->epoch + 1;
    bool best = false;
    shard_status status = loop->end ? loop->end(loop->run) : SHARD_OK;
    if (status != SHARD_OK)
        return status;
    if (interval > 0 && (next % interval == 0 || next == loop->options->epochs)) {
        double result = 0;
        status = loop->validate(loop->run, &result, interrupted);
        if (status != SHARD_OK)
            return status;
        if (*interrupted)
            return training_loop_save(loop, false);
        best = result > loop->at->best;
        if (best)
            loop->at->best = result;
    }
    loop->at->epoch = next;
    loop->at->epoch_step = 0;
    return training_loop_save(loop, best);
}

shard_status training_loop_run(const training_loop *loop)
{
    bool interrupted = false;
    shard_status status = SHARD_OK;
    /* A run that was interrupted in the last of --steps has its epoch's end to do. */
    while (status == SHARD_OK && loop->at->epoch < loop->options->epochs && !interrupted &&
           (!all_steps_done(loop) || epoch_is_full(loop))) {
        status = train_epoch(loop, &interrupted);
        if (status == SHARD_OK)
            status = epoch_is_full(loop) && !interrupted ? end_epoch(loop, &interrupted) : training_loop_save(loop, false);
    }
    if (status == SHARD_OK)
        status = training_checkpoint_finish(loop->checkpoint, loop->shown);
    if (status != SHARD_OK)
        return status;
    if (loop->optimizers->skipped_steps > 0)
        progress_say(loop->shown, "%" PRId64 " steps were skipped: losses or gradients not finite",
                     loop->optimizers->skipped_steps);
    if (interrupted)
        progress_say(loop->shown, "interrupted after step %" PRId64 "%s", loop->at->step,
                     loop->options->output ? "; go on with --resume" : "");
    return SHARD_OK;
}
