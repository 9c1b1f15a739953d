/* Learning rate schedules: pure functions of the step, so that resuming needs no state. */
#include <shard/optim.h>

#include "base/error.h"
#include "base/options.h"

#include <math.h>

/* The fraction of the way from base_lr to final_lr, after the warmup. */
static double progress(const shard_schedule *schedule, int64_t step)
{
    int64_t length = schedule->total_steps - schedule->warmup_steps, done = step - schedule->warmup_steps;
    return length <= 0 || done >= length ? 1.0 : (double)done / (double)length;
}

/* How often base_lr is multiplied by gamma. */
static int64_t drops(const shard_schedule *schedule, int64_t step)
{
    if (schedule->kind == SHARD_SCHEDULE_STEP)
        return step / schedule->step_size;
    int64_t count = 0;
    for (int i = 0; i < SHARD_SCHEDULE_MILESTONES && schedule->milestones[i] != 0; i++)
        count += step >= schedule->milestones[i];
    return count;
}

static shard_status check(const shard_schedule *s, int64_t step)
{
    bool sound = s->base_lr >= 0 && s->final_lr >= 0 && s->gamma >= 0 && s->power >= 0 &&
                 isfinite(s->base_lr + s->final_lr + s->gamma + s->power) && s->warmup_steps >= 0 && step >= 0;
    if (!sound)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_schedule_lr: base_lr %g, final_lr %g, gamma %g, power %g, warmup_steps %lld, step %lld: none "
                           "may be negative, infinite or NaN",
                           s->base_lr, s->final_lr, s->gamma, s->power, (long long)s->warmup_steps, (long long)step);
    if ((unsigned)s->kind > SHARD_SCHEDULE_POLYNOMIAL)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_schedule_lr: there is no kind %d", (int)s->kind);
    if (s->kind == SHARD_SCHEDULE_STEP && s->step_size <= 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_schedule_lr: SHARD_SCHEDULE_STEP needs a step_size, not %lld",
                           (long long)s->step_size);
    if ((s->kind == SHARD_SCHEDULE_COSINE || s->kind == SHARD_SCHEDULE_POLYNOMIAL) && s->total_steps <= 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_schedule_lr: %s needs total_steps, not %lld",
                           s->kind == SHARD_SCHEDULE_COSINE ? "SHARD_SCHEDULE_COSINE" : "SHARD_SCHEDULE_POLYNOMIAL",
                           (long long)s->total_steps);
    if (s->kind == SHARD_SCHEDULE_MULTI_STEP && s->milestones[0] == 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_schedule_lr: SHARD_SCHEDULE_MULTI_STEP needs milestones");
    for (int i = 0; i < SHARD_SCHEDULE_MILESTONES && s->milestones[i] != 0; i++)
        if (s->milestones[i] < 0)
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "shard_schedule_lr: milestones[%d] is %lld: a milestone is a step from 1 on, and 0 ends the list",
                               i, (long long)s->milestones[i]);
    return SHARD_OK;
}

static double rate(const shard_schedule *schedule, int64_t step)
{
    const double pi = 3.14159265358979323846;
    if (step < schedule->warmup_steps)
        return schedule->base_lr * (double)(step + 1) / (double)schedule->warmup_steps;
    double left = 0.0; /* of base_lr - final_lr */
    switch (schedule->kind) {
    case SHARD_SCHEDULE_STEP:
    case SHARD_SCHEDULE_MULTI_STEP:
        return schedule->base_lr * pow(schedule->gamma, (double)drops(schedule, step));
    case SHARD_SCHEDULE_COSINE:
        left = 0.5 * (1.0 + cos(pi * progress(schedule, step)));
        break;
    case SHARD_SCHEDULE_POLYNOMIAL:
        left = pow(1.0 - progress(schedule, step), schedule->power);
        break;
    case SHARD_SCHEDULE_CONSTANT:
        return schedule->base_lr;
    }
    return schedule->final_lr + (schedule->base_lr - schedule->final_lr) * left;
}

double shard_schedule_lr(const shard_schedule *given, int64_t step)
{
    if (!given)
        return shard_null_argument("shard_schedule_lr", "schedule"), NAN;
    SHARD_READ_OPTIONS(shard_schedule, SHARD_SCHEDULE_INIT, schedule, given);
    return schedule_ok && check(&schedule, step) == SHARD_OK ? rate(&schedule, step) : NAN;
}
