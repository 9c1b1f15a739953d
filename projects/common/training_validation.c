#include "training_validation.h"

#include "interrupt.h"

shard_status training_validate(const training_validation *over, int64_t *local_samples, bool *interrupted)
{
    double signals = 0;
    int64_t count, done = 0, steps = shard_group_sampler_steps(over->sampler);
    char text[64] = "";
    *local_samples = 0;
    shard_module_set_training(over->run->model, false);
    shard_status status = shard_group_sampler_set_epoch(over->sampler, 0);
    SHARD_NO_GRAD
    {
        while (status == SHARD_OK && signals == 0 && shard_group_sampler_next(over->sampler, over->samples, &count)) {
            status = over->add(over->of, count);
            *local_samples += count;
            signals = interrupt_signal() != 0;
            if (status == SHARD_OK)
                status = training_sum(&signals, 1);
            if (over->describe)
                over->describe(over->of, text, sizeof text);
            progress_step(&over->run->progress, "Validation", ++done, steps, text);
        }
    }
    shard_module_set_training(over->run->model, true);
    *interrupted = signals > 0;
    return status == SHARD_OK && !*interrupted ? training_sum(over->sums, over->count) : status;
}
