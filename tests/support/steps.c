#include "support/steps.h"

#include "support/scratch.h"
#include "support/state.h"

#include "checkpoint/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEEDS = 100, KEPT = 2 };

saved_run steps_start(const char *name, save_way way, bool direct)
{
    saved_run s = {.way = way, .direct = direct};
    snprintf(s.folder, sizeof s.folder, "%s", scratch_path(name));
    ck_assert_msg(mkdir(s.folder, 0700) == 0 || errno == EEXIST, "%s: %s", s.folder, strerror(errno));
    return s;
}

saved_run steps_in(const saved_run *of, const char *name)
{
    return steps_start(name, of->way, of->direct);
}

bool steps_have_directory(const saved_run *s)
{
    return s->way == SAVE_CHECKPOINT || s->way == SAVE_CHECKPOINT_ASYNC;
}

bool steps_can_be_direct(const saved_run *s)
{
    char path[400];
    snprintf(path, sizeof path, "%s/direct", s->folder);
    int file = open(path, O_WRONLY | O_CREAT | O_DIRECT, 0600);
    if (file >= 0)
        close(file);
    else
        printf("%s has no writes that bypass the page cache: %s\n", s->folder, strerror(errno));
    unlink(path); /* some file systems have made it all the same */
    return file >= 0;
}

shard_tensors *steps_state(const saved_run *s, shard_group *world, int64_t step)
{
    uint64_t seed = (uint64_t)step * SEEDS;
    return s->direct ? make_direct_state(world, seed) : make_small_state(world, seed);
}

static void file_of(const saved_run *s, char path[400])
{
    snprintf(path, 400, "%s/run.safetensors", s->folder);
}

/* Writes it in two runs. */
static shard_status write_tensor(shard_writer *writer, int64_t index, shard_tensor *tensor)
{
    size_t bytes = (size_t)shard_numel(tensor) * shard_dtype_size(shard_tensor_dtype(tensor));
    char *values = malloc(bytes);
    int64_t half = (int64_t)bytes / 2, rest = (int64_t)bytes - half;
    check_ok(shard_copy_to_host(tensor, values, bytes));
    shard_status status = shard_writer_write(writer, index, values, half, 0);
    if (status == SHARD_OK)
        status = shard_writer_write(writer, index, values + half, rest, half);
    free(values);
    return status;
}

static shard_status write_list(const shard_tensors *list, const char *path)
{
    shard_entry entries[8] = {0};
    shard_writer writer;
    int64_t count = shard_tensors_count(list);
    ck_assert_int_le(count, 8);
    for (int64_t i = 0; i < count; i++) {
        const shard_tensor *tensor = shard_tensors_at(list, i);
        entries[i].name = shard_tensors_name(list, i);
        entries[i].dtype = shard_tensor_dtype(tensor);
        entries[i].shape = shard_tensor_shape(tensor);
    }
    shard_status status = shard_writer_begin(&writer, path, entries, count, NULL);
    for (int64_t i = 0; i < count && status == SHARD_OK; i++)
        status = write_tensor(&writer, i, shard_tensors_at(list, i));
    if (status == SHARD_OK)
        status = shard_writer_finish(&writer);
    shard_writer_end(&writer);
    return status;
}

shard_status steps_save(const saved_run *s, const shard_tensors *list, int64_t step)
{
    char path[400];
    file_of(s, path);
    if (s->way == SAVE_WRITER)
        return write_list(list, path);
    if (s->way == SAVE_WAITS)
        return shard_save(list, path, NULL);
    if (s->way == SAVE_CHECKPOINT)
        return shard_save_checkpoint(list, s->folder, step, NULL, .max_to_keep = KEPT);
    shard_async_save *save = s->way == SAVE_CHECKPOINT_ASYNC
                                 ? shard_save_checkpoint_async(list, s->folder, step, NULL, .max_to_keep = KEPT)
                                 : shard_save_async(list, path, NULL);
    bool done = s->way != SAVE_POLLS;
    while (!done && shard_async_save_poll(save, &done) == SHARD_OK)
        usleep(100);
    return shard_async_save_finish(save); /* an error of a poll is its error */
}

static struct {
    int temporary, steps;
} found;

static int count_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status;
    found.temporary += strstr(path + place->base, ".tmp") != NULL;
    found.steps += kind == FTW_D && strncmp(path + place->base, "step-", 5) == 0;
    return 0;
}

static void look(const saved_run *s)
{
    memset(&found, 0, sizeof found);
    nftw(s->folder, count_entry, 8, FTW_PHYS);
}

int steps_temporary(const saved_run *s)
{
    look(s);
    return found.temporary;
}

void steps_save_whole(const saved_run *s, shard_group *world, int64_t step)
{
    shard_tensors *list = steps_state(s, world, step);
    check_ok(steps_save(s, list, step));
    check_ok(shard_barrier(world)); /* the first rank has removed the old step */
    look(s);
    ck_assert_msg(found.temporary == 0, "step %" PRId64 ": %d temporary files are left", step, found.temporary);
    ck_assert_msg(found.steps <= KEPT, "step %" PRId64 ": %d steps are kept", step, found.steps);
    shard_tensors_destroy(list);
}

/* Whether the list has that step's first tensor, which is whole on each rank. */
static bool is_step(const saved_run *s, const shard_tensors *list, int64_t step)
{
    shard_tensors *other = steps_state(s, NULL, step);
    float here[5], there[5];
    check_ok(shard_copy_to_host(shard_tensors_find(list, "small"), here, sizeof here));
    check_ok(shard_copy_to_host(shard_tensors_find(other, "small"), there, sizeof there));
    shard_tensors_destroy(other);
    return memcmp(here, there, sizeof here) == 0;
}

static void check_step(const saved_run *s, shard_group *world, const char *path, int64_t step)
{
    shard_tensors *list = steps_state(s, world, step + 1);
    check_ok(shard_load(list, path));
    check_state(list, (uint64_t)step * SEEDS);
    shard_tensors_destroy(list);
}

static int64_t check_file(const saved_run *s, shard_group *world, int64_t oldest)
{
    char path[400];
    file_of(s, path);
    shard_tensors *list = steps_state(s, world, 0);
    check_ok(shard_load(list, path));
    int64_t step = is_step(s, list, oldest) ? oldest : oldest + 1;
    check_state(list, (uint64_t)step * SEEDS);
    shard_tensors_destroy(list);
    return step;
}

int64_t steps_check(const saved_run *s, shard_group *world, int64_t oldest)
{
    char path[600];
    int64_t step, before;
    if (!steps_have_directory(s))
        return check_file(s, world, oldest);
    check_ok(shard_latest_checkpoint(s->folder, INT64_MAX, &step, path, sizeof path));
    ck_assert_msg(step == oldest || step == oldest + 1,
                  "the newest complete step is %" PRId64 ", not %" PRId64 " or the next one", step, oldest);
    check_step(s, world, path, step);
    check_ok(shard_latest_checkpoint(s->folder, step, &before, path, sizeof path));
    if (oldest > 1) {
        ck_assert_msg(before == step - 1, "the complete step before %" PRId64 " is %" PRId64, step, before);
        check_step(s, world, path, before);
    }
    return step;
}
