/* A save that the power ends. The calls of a save are recorded on all ranks, in one order. For many moments of it the folder is
 * made as a disk may have it then (support/disk.h). The old checkpoint or the new one loads, bit for bit, and the next save
 * leaves nothing but whole checkpoints. */
#include "support/disk.h"
#include "support/scratch.h"
#include "support/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Steps before OLD fill a directory. */
enum { OLD = 2, NEW = 3, SIZES = 4 };

static void save_old(shard_group *world, void *context)
{
    for (int64_t step = 1; step <= OLD; step++)
        steps_save_whole(context, world, step);
}

static void save_new(shard_group *world, void *context)
{
    const saved_run *s = context;
    shard_tensors *list = steps_state(s, world, NEW);
    check_ok(shard_barrier(world));
    file_calls_watch(disk_watch);
    check_ok(steps_save(s, list, NEW));
    file_calls_watch(NULL);
    shard_tensors_destroy(list);
}

/* Whether the folder differs from the one before the save: else the case is none. */
static bool try_moment(const disk_moment *m, const saved_run *s)
{
    int renamed = disk_is_renamed(m);
    if (!disk_make(m, s->folder))
        return false;
    int64_t step = steps_check(s, NULL, OLD);
    ck_assert_msg(renamed < 0 || step == (renamed ? NEW : OLD), "call %d, %s: step %d is there", m->end,
                  m->local ? "a local disk" : "a file system of several hosts", (int)step);
    steps_save_whole(s, NULL, step + 1);
    ck_assert_int_eq(steps_check(s, NULL, step + 1), step + 1);
    return true;
}

typedef struct power {
    saved_run run;
    int calls, cases;
} power;

/* Half of the moments are any, half after the new checkpoint has its name. */
static void lose_power(shard_group *world, void *context)
{
    const power *p = context;
    saved_run after = steps_in(&p->run, "after");
    int named = disk_rename(), renamed = 0, tried = 0;
    (void)world;
    file_calls_watch(file_calls_without_sync);
    for (int i = 0; tried < p->cases; i++) {
        int first = i % 2 ? named : 0;
        disk_moment m = {.end = first + 1 + rand() % (p->calls - first), .local = rand() % 2};
        if (!try_moment(&m, &after))
            continue;
        tried++;
        renamed += disk_is_renamed(&m) != 0;
    }
    file_calls_watch(NULL);
    printf("cases: %d, %d of them after the renaming\n", tried, renamed);
    ck_assert_int_ge(renamed, tried / 3);
    /* A save that has returned lasts. */
    ck_assert_int_eq(disk_is_renamed(&(disk_moment){.end = p->calls, .local = false}), 1);
}

static void try_power_loss(save_way way, bool direct, int size, int number)
{
    bool every = getenv("SHARD_TEST_EVERY");
    char name[30];
    snprintf(name, sizeof name, "before.%d", number);
    power p = {.run = steps_start(name, way, direct), .cases = every ? direct ? 150 : 400 : direct ? 15 : 90};
    unsigned seed = (unsigned)time(NULL);
    printf("seed: %u\n", seed);
    srand(seed);
    run_job(size, save_old, &p.run);
    disk_start(p.run.folder);
    run_job(size, save_new, &p.run);
    p.calls = disk_end();
    ck_assert_int_ge(p.calls, 14);
    ck_assert(!direct || !steps_can_be_direct(&p.run) || disk_direct_writes() >= size);
    run_job_of((ranks_run){.size = 1, .body = lose_power, .context = &p, .deadline = 200});
    disk_free();
}

/* The way, the size of the data and the number of ranks, from the test's number. */
START_TEST(test_power_loss)
{
    try_power_loss((save_way)(_i / SIZES / 2), _i / SIZES % 2, 1 + _i % SIZES, _i);
}
END_TEST

START_TEST(test_power_loss_of_writer)
{
    try_power_loss(SAVE_WRITER, _i, 1, 2 * SIZES * SAVE_WAYS + _i);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("checkpoint power");
    TCase *tcase = test_case(suite, "power");
    if (getenv("SHARD_TEST_EVERY"))
        tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, test_power_loss, 0, 2 * SIZES * SAVE_WAYS);
    tcase_add_loop_test(tcase, test_power_loss_of_writer, 0, 2);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
