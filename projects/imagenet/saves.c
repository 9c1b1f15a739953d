/*
 * --save-async: the files of a checkpoint, up to three, are begun together and finished together: after the step in which the
 * last of them is written, before the next checkpoint, or at the end of the run.
 */
#include "trainer.h"

shard_status saves_add(trainer *run, shard_async_save *save)
{
    if (!save)
        return shard_last_status();
    run->saves.pending[run->saves.count++] = save;
    return SHARD_OK;
}

void saves_count_pause(trainer *run, double since)
{
    run->saves.pause += progress_clock() - since;
}

shard_status saves_finish(trainer *run)
{
    pending_saves *all = &run->saves;
    if (all->count == 0)
        return shard_last_status();
    double since = progress_clock();
    for (int i = 0; i < all->count; i++)
        shard_async_save_finish(all->pending[i]); /* after an error the others only end */
    saves_count_pause(run, since);
    all->count = 0;
    all->checkpoints++;
    all->paused += all->pause;
    all->longest = all->pause > all->longest ? all->pause : all->longest;
    all->pause = 0;
    return shard_last_status();
}

shard_status saves_poll(trainer *run)
{
    pending_saves *all = &run->saves;
    if (all->count == 0)
        return SHARD_OK;
    double since = progress_clock();
    bool done = true;
    for (int i = 0; i < all->count; i++) { /* each of them, as a poll also lets its save go on */
        bool written;
        shard_status status = shard_async_save_poll(all->pending[i], &written);
        if (status != SHARD_OK)
            return status;
        done = done && written;
    }
    saves_count_pause(run, since);
    return done ? saves_finish(run) : SHARD_OK;
}
