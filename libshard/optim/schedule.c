/* Learning rate schedules: pure functions of the step, so that resuming needs no state. */
#include <shard/optim.h>

#include <math.h>

/* How much of what leads from base_lr to final_lr is done, after the warmup. */
static double progress(const shard_schedule *schedule, int64_t step)
{
    int64_t length = schedule->total_steps - schedule->warmup_steps, done = step - schedule->warmup_steps;
    return length <= 0 || done >= length ? 1.0 : (double)done / (double)length;
}

/* How often base_lr is multiplied by gamma. */
static int64_t drops(const shard_schedule *schedule, int64_t step)
{
    if (schedule->kind == SHARD_SCHEDULE_STEP)
        return schedule->step_size > 0 ? step / schedule->step_size : 0;
    int64_t count = 0;
    for (int i = 0; i < SHARD_SCHEDULE_MILESTONES && schedule->milestones[i] > 0; i++)
        count += step >= schedule->milestones[i];
    return count;
}

double shard_schedule_lr(const shard_schedule *schedule, int64_t step)
{
    const double pi = 3.14159265358979323846;
    if (!schedule)
        return 0.0;
    if (step < schedule->warmup_steps)
        return schedule->base_lr * (double)(step + 1) / (double)schedule->warmup_steps;
    double left = 0.0; /* of base_lr - final_lr */
    switch (schedule->kind) {
    case SHARD_SCHEDULE_STEP:
    case SHARD_SCHEDULE_MULTI_STEP:
        return schedule->base_lr * pow(schedule->gamma != 0.0 ? schedule->gamma : 0.1, (double)drops(schedule, step));
    case SHARD_SCHEDULE_COSINE:
        left = 0.5 * (1.0 + cos(pi * progress(schedule, step)));
        break;
    case SHARD_SCHEDULE_POLYNOMIAL:
        left = pow(1.0 - progress(schedule, step), schedule->power != 0.0 ? schedule->power : 1.0);
        break;
    case SHARD_SCHEDULE_CONSTANT:
        return schedule->base_lr;
    }
    return schedule->final_lr + (schedule->base_lr - schedule->final_lr) * left;
}
