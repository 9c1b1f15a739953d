/* Training: the functions of training_loop. */
#include "trainer.h"

static shard_status begin_epoch(void *of)
{
    trainer *run = of;
    return shard_group_sampler_seek(run->sampler, run->base.at.epoch, run->base.at.epoch_step);
}

/* While rows are tied the last layer has no gradient, or with replicas one of zeros: its optimizer's count of steps stays. */
static shard_status update(void *of)
{
    trainer *run = of;
    training_optimizers *all = &run->base.optimizers;
    if (!trainer_is_tied(run))
        return training_optimizers_step(all);
    all->count = 1;
    shard_status status = training_optimizers_step(all);
    all->count = 2;
    if (status == SHARD_OK)
        shard_optimizer_zero_grad(all->of[1]);
    return shard_last_status();
}

static shard_status end_epoch(void *of)
{
    trainer *run = of;
    return trainer_is_tied(run) ? trainer_set_rows(run) : SHARD_OK;
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    accuracy whole = {0};
    shard_status status = evaluate(of, &whole, interrupted);
    *result = whole.top1;
    return status;
}

shard_status train(trainer *run)
{
    return training_loop_run(&(training_loop){.run = &run->base,
                                              .of = run,
                                              .begin = begin_epoch,
                                              .backward = loss_backward,
                                              .update = update,
                                              .end = end_epoch,
                                              .validate = run->test ? validate : NULL});
}
