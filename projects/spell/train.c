/* Training: steps, epochs, and the end of a run. */
#include "trainer.h"

#include "interrupt.h"

#include <inttypes.h>
#include <math.h>

/* The results of a step, over the world. */
typedef struct step {
    double loss; /* the mean of the pairs' */
    double lr, seconds;
    int64_t pairs, local_pairs;
    bool interrupted;
} step;

/* While rows are tied the final layer has no gradient, or with replicas one of zeros: its optimizer's count of steps stays. */
static shard_status step_optimizers(trainer *run)
{
    training_optimizers stepped = run->optimizers;
    if (!trainer_is_tied(run))
        return training_optimizers_step(&stepped);
    stepped.count = 1;
    shard_status status = training_optimizers_step(&stepped);
    if (status == SHARD_OK)
        shard_optimizer_zero_grad(run->optimizers.of[1]);
    return shard_last_status();
}

static shard_status step_once(trainer *run, step *made)
{
    double begun = progress_clock(), loss = 0;
    *made = (step){.lr = training_optimizers_set_lr(&run->optimizers, run->at.step)};
    shard_group_sampler_next(run->sampler, run->samples, &made->local_pairs);
    shard_status status = loss_backward(run, made->local_pairs, &loss);
    if (status == SHARD_OK)
        status = step_optimizers(run);
    double sums[2] = {shard_group_rank(run->model_group) == 0 ? loss : 0, interrupt_signal() != 0};
    if (status == SHARD_OK)
        status = trainer_sum(sums, 2);
    run->at.step++;
    run->at.epoch_step++;
    made->pairs = shard_group_sampler_last_batch_size(run->sampler);
    made->loss = sums[0] / (double)made->pairs;
    made->interrupted = sums[1] > 0;
    made->seconds = progress_clock() - begun;
    if (status == SHARD_OK && !isfinite(made->loss))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "the loss of step %" PRId64
                           " is %g: take a smaller --lr, or --clip-grad; the last checkpoint is from before",
                           run->at.step, made->loss);
    return status;
}

static bool all_steps_done(const trainer *run)
{
    return run->options->training.steps > 0 && run->at.step >= run->options->training.steps;
}

static int64_t steps_to_come_to(const trainer *run)
{
    int64_t all = shard_group_sampler_steps(run->sampler),
            asked = run->at.epoch_step + run->options->training.steps - run->at.step;
    return run->options->training.steps && asked < all ? asked : all;
}

static shard_status report(trainer *run, const step *made, double epoch_loss)
{
    char title[64], text[256];
    metrics_entry entry = {
        .step = run->at.step,
        .epoch = run->at.epoch,
        .values = {{"lr", made->lr, METRICS_NUMBER}, {"loss", made->loss, METRICS_NUMBER}},
        .samples = made->pairs,
        .local_samples = made->local_pairs,
        .seconds = made->seconds,
    };
    snprintf(title, sizeof title, "Epoch %" PRId64, run->at.epoch);
    snprintf(text, sizeof text, "loss %.4f (%.4f)  %.1f pairs/s  lr %.3g", made->loss, epoch_loss,
             (double)made->pairs / made->seconds, made->lr);
    progress_step(&run->progress, title, run->at.epoch_step, steps_to_come_to(run), text);
    return metrics_write(run->metrics, &entry);
}

/* The rest of the epoch, until --steps or a signal ends it. */
static shard_status train_epoch(trainer *run, bool *interrupted)
{
    int64_t steps = shard_group_sampler_steps(run->sampler), save_every = run->options->training.save_every;
    double sum = 0, count = 0;
    shard_status status = shard_group_sampler_seek(run->sampler, run->at.epoch, run->at.epoch_step);
    while (status == SHARD_OK && !all_steps_done(run) && !*interrupted && run->at.epoch_step < steps) {
        step made;
        status = step_once(run, &made);
        sum += made.loss * (double)made.pairs;
        count += (double)made.pairs;
        if (status == SHARD_OK)
            status = report(run, &made, sum / count);
        *interrupted = made.interrupted;
        if (status == SHARD_OK && save_every && run->at.step % save_every == 0 && run->at.epoch_step < steps)
            status = trainer_save(run, false);
    }
    return status;
}

/* Sets the rows while they are tied, validates if it is time to, and moves to the next epoch; *interrupted: not done, the run
 * that resumes does it. */
static shard_status end_epoch(trainer *run, bool *interrupted)
{
    int64_t interval = run->test ? run->options->val_interval : 0, next = run->at.epoch + 1;
    bool best = interval == 0; /* model.safetensors is the latest then */
    if (trainer_is_tied(run)) {
        shard_status status = network_set_rows(run->network, run->dictionary);
        if (status != SHARD_OK)
            return status;
    }
    if (interval > 0 && (next % interval == 0 || next == run->options->training.epochs)) {
        accuracy whole;
        shard_status status = evaluate(run, &whole, interrupted);
        if (status != SHARD_OK)
            return status;
        if (*interrupted)
            return trainer_save(run, false);
        best = whole.top1 > run->at.best;
        run->at.best = best ? whole.top1 : run->at.best;
    }
    run->at.epoch = next;
    run->at.epoch_step = 0;
    return trainer_save(run, best);
}

shard_status train(trainer *run)
{
    bool interrupted = false;
    shard_status status = SHARD_OK;
    while (status == SHARD_OK && run->at.epoch < run->options->training.epochs && !all_steps_done(run) && !interrupted) {
        status = train_epoch(run, &interrupted);
        bool ended = run->at.epoch_step == shard_group_sampler_steps(run->sampler);
        if (status == SHARD_OK)
            status = ended && !interrupted ? end_epoch(run, &interrupted) : trainer_save(run, false);
    }
    if (status == SHARD_OK && interrupted)
        progress_say(&run->progress, "interrupted after step %" PRId64 "%s", run->at.step,
                     run->options->training.output ? "; go on with --resume" : "");
    return status;
}
