/* Learning rate schedules: pure functions of the step, so that resuming needs no state. */
#include <shard/optim.h>

#include <math.h>

double shard_schedule_lr(const shard_schedule *schedule, int64_t step)
{
    const double pi = 3.14159265358979323846;
    if (!schedule)
        return 0.0;
    if (step < schedule->warmup_steps)
        return schedule->base_lr * (double)(step + 1) / (double)schedule->warmup_steps;
    switch (schedule->kind) {
    case SHARD_SCHEDULE_STEP: {
        double gamma = schedule->gamma != 0.0 ? schedule->gamma : 0.1;
        int64_t drops = schedule->step_size > 0 ? step / schedule->step_size : 0;
        return schedule->base_lr * pow(gamma, (double)drops);
    }
    case SHARD_SCHEDULE_COSINE: {
        int64_t length = schedule->total_steps - schedule->warmup_steps, done = step - schedule->warmup_steps;
        if (length <= 0 || done >= length)
            return schedule->final_lr;
        double half = 0.5 * (1.0 + cos(pi * (double)done / (double)length));
        return schedule->final_lr + (schedule->base_lr - schedule->final_lr) * half;
    }
    case SHARD_SCHEDULE_CONSTANT:
        break;
    }
    return schedule->base_lr;
}
