/* Checkpoints of what is shared out: one file, whatever the stage, partition and ranks. */
#include "support/background.h"
#include "support/host.h"
#include "support/scratch.h"
#include "support/state.h"
#include "support/zero.h"

#include "checkpoint/file.h"
#include "support/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shard_optimizer *shared_out(shard_optimizer *optimizer, zero_way options)
{
    if (options.stage && !zero_with(optimizer, options))
        ck_abort_msg("%s", shard_last_error());
    return optimizer;
}

static shard_optimizer *sgd_of(shard_tensors *parameters, zero_way options)
{
    return shared_out(sgd_of_list(parameters, .lr = 0.02, .momentum = 0.9, .dampening = 0.25), options);
}

/* Its step counters count, as the first averages are corrected by them. */
static shard_optimizer *adam_of(shard_tensors *parameters, zero_way options)
{
    return shared_out(adam_of_list(parameters, .lr = 0.02), options);
}

/* State of another dtype than the parameters', and a compensation. */
static shard_optimizer *compensated_of(shard_tensors *parameters, zero_way options)
{
    return shared_out(adam_of_list(parameters, .lr = 0.02, .rounding = SHARD_ROUNDING_KAHAN, .state_dtype = SHARD_BFLOAT16),
                      options);
}

/* Rounded at random; state by rows, of whole parameters. */
static shard_optimizer *rowwise_of(shard_tensors *parameters, zero_way options)
{
    options.partition = SHARD_ZERO_WHOLE;
    return shared_out(
        rowwise_adam_of_list(parameters, .lr = 0.02, .weight_decay = 0, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 3),
        options);
}

typedef shard_optimizer *optimizer_maker(shard_tensors *, zero_way);
static optimizer_maker *const makers[] = {sgd_of, adam_of, compensated_of, rowwise_of};

/* Parameters and the optimizer's state. */
static shard_tensors *all_of(shard_tensors *parameters, shard_optimizer *optimizer)
{
    shard_tensors *list = shard_tensors_create(), *state = shard_optimizer_state_dict(optimizer);
    check_ok(shard_tensors_extend(list, "model.", parameters));
    check_ok(shard_tensors_extend(list, "optimizer.", state));
    shard_tensors_destroy(state);
    shard_tensors_destroy(parameters);
    return list;
}

/* ---- parameters of all sorts ---- */

typedef struct job_case {
    int ranks;
    zero_way options;
    optimizer_maker *make;
} job_case;

static const job_case writers[] = {
    {3, {0}},
    {2, {.stage = 1}},
    {4, {.stage = 2, .bucket_mib = 1e-6}},
    {3, {.stage = 3, .partition = SHARD_ZERO_WHOLE}},
    {3, {.stage = 3, .bucket_mib = 3e-4}},
};
static const job_case readers[] = {
    {1, {0}},
    {3, {.stage = 1, .partition = SHARD_ZERO_WHOLE, .bucket_mib = 3e-4}},
    {4, {.stage = 3}},
    {2, {.stage = 2}},
};
#define WRITERS ((int)(sizeof writers / sizeof *writers))
#define READERS ((int)(sizeof readers / sizeof *readers))

/* Values that do not depend on ranks: made up, or trained by gradients that all have alike. */
static void train(const sorts *s, shard_optimizer *optimizer, int from, int to)
{
    for (int step = from; step < to; step++) {
        back_sorts(s, NULL, step);
        check_ok(shard_step(optimizer));
    }
}

/* The asynchronous save, whose thread comes to its first write after the values have changed and the tensors were released, makes
 * the file that the synchronous one has made. */
static void end_save(shard_async_save *save, const char *same)
{
    shard_trim_memory(shard_device_open(NULL));
    background_go_on();
    check_ok(shard_async_save_finish(save));
    background_end();
    check_files_equal(scratch_path("async.safetensors"), scratch_path(same));
}

static void write_sorts(shard_group *world, void *context)
{
    const job_case *c = context;
    shard_async_save *save = NULL;
    SHARD_SCOPE
    {
        sorts s = make_sorts(NULL);
        shard_tensors *parameters = list_sorts(&s);
        shard_data_parallel *dp = shard_data_parallel_create(parameters);
        shard_tensors_destroy(parameters);
        shard_optimizer *optimizer = c->make(list_sorts(&s), c->options);
        train(&s, optimizer, 0, 3);
        shard_tensors *all = all_of(list_sorts(&s), optimizer);
        check_ok(shard_save(all, scratch_path("sorts.safetensors"), NULL));
        /* The whole of each on rank 1, if there is one, makes the same file. */
        int root = shard_group_size(world) > 1 ? 1 : 0;
        shard_tensors *whole = shard_collect_state_dict(all, -1), *one = shard_collect_state_dict(all, root);
        ck_assert_ptr_nonnull(whole);
        ck_assert_int_eq(shard_tensors_count(one), shard_group_rank(world) == root ? shard_tensors_count(all) : 0);
        check_ok(shard_save(whole, scratch_path("whole.safetensors"), NULL));
        check_files_equal(scratch_path("sorts.safetensors"), scratch_path("whole.safetensors"));
        background_hold();
        save = shard_save_async(all, scratch_path("async.safetensors"), NULL);
        train(&s, optimizer, 3, 5);
        shard_tensors_destroy(all);
        shard_tensors_destroy(whole);
        shard_tensors_destroy(one);
        shard_optimizer_destroy(optimizer);
        shard_data_parallel_destroy(dp);
    }
    end_save(save, "sorts.safetensors");
}

/* Goes on from the file as if it had never stopped. */
static void read_sorts(shard_group *world, void *context)
{
    const job_case *c = context;
    (void)world;
    SHARD_SCOPE
    {
        sorts a = make_sorts(NULL), b = make_sorts(NULL);
        shard_tensors *parameters = list_sorts(&b);
        for (int i = 0; i < SORTS_HALF; i++)
            fill_made_up(b.parameter[i], 77);
        shard_optimizer *through = c->make(list_sorts(&a), (zero_way){0}), *resumed = c->make(list_sorts(&b), c->options);
        value_at(b.parameter[0], 0); /* what was gathered is to be forgotten */
        shard_data_parallel *dp = shard_data_parallel_create(parameters);
        parameters = all_of(parameters, resumed);
        check_ok(shard_load(parameters, scratch_path("sorts.safetensors")));
        train(&a, through, 0, 5);
        train(&b, resumed, 3, 5);
        check_sorts_equal(&a, &b, 1e-6);
        shard_tensors_destroy(parameters);
        shard_data_parallel_destroy(dp);
        shard_optimizer_destroy(through);
        shard_optimizer_destroy(resumed);
    }
}

/* Every writer makes the same file, to rounding where numbers of ranks differ: what one
 * rank makes is what all must go on with. */
START_TEST(test_sorts)
{
    job_case writer = writers[_i % WRITERS];
    writer.make = makers[_i / WRITERS];
    run_job(writer.ranks, write_sorts, &writer);
    for (int i = 0; i < READERS; i++) {
        job_case reader = readers[i];
        reader.make = writer.make;
        run_job(reader.ranks, read_sorts, &reader);
    }
}
END_TEST

/* ---- split parameters ---- */

typedef struct split_case {
    int data, model;
    shard_split split;
    zero_way options;
    bool crossed; /* groups that are no grid: ranks 0 and 3 and ranks 1 and 2 of four have the shards */
} split_case;

static split_case split_writers[] = {
    {2, 2, SHARD_SPLIT_COLUMN, {.stage = 1}},
    {2, 2, SHARD_SPLIT_ROW, {.stage = 2}},
    {3, 2, SHARD_SPLIT_ROW, {.stage = 3}},
    {2, 3, SHARD_SPLIT_COLUMN, {.stage = 3, .partition = SHARD_ZERO_WHOLE}},
    {2, 2, SHARD_SPLIT_COLUMN, {.stage = 1}, .crossed = true},
    {2, 2, SHARD_SPLIT_ROW, {.stage = 3}, .crossed = true},
};
static split_case split_readers[] = {
    {1, 1, SHARD_SPLIT_NONE, {0}},
    {2, 2, SHARD_SPLIT_ROW, {.stage = 3}},
    {1, 2, SHARD_SPLIT_COLUMN, {.stage = 1}},
    {3, 1, SHARD_SPLIT_NONE, {.stage = 2, .bucket_mib = 1e-4}},
    {2, 2, SHARD_SPLIT_COLUMN, {.stage = 2}, .crossed = true},
};
#define SPLIT_WRITERS ((int)(sizeof split_writers / sizeof *split_writers))
#define SPLIT_READERS ((int)(sizeof split_readers / sizeof *split_readers))

typedef struct split_groups {
    shard_mesh *mesh;
    shard_group *model, *data; /* data: NULL where there is a mesh */
} split_groups;

static split_groups make_groups(shard_group *world, const split_case *c)
{
    split_groups groups = {0};
    if (!c->crossed) {
        groups.mesh = shard_mesh_create(.model = c->model);
        groups.model = shard_mesh_model_group(groups.mesh);
        return groups;
    }
    int rank = shard_group_rank(world);
    groups.model = shard_group_split(world, rank == 1 || rank == 2);
    groups.data = shard_group_split(world, rank / 2);
    check_ok(shard_group_set_replicas(groups.model, groups.data));
    return groups;
}

static void destroy_groups(split_groups *groups)
{
    shard_mesh_destroy(groups->mesh);
    if (groups->data) {
        shard_group_destroy(groups->data);
        shard_group_destroy(groups->model);
    }
}

/* Gives the state, whose values are of no interest, those of their index in the whole. */
static void make_up_state(shard_module *model, shard_optimizer *sgd)
{
    shard_tensors *whole = all_of(shard_parameters(model), sgd), *collected = shard_collect_state_dict(whole, -1);
    for (int64_t i = 0; i < shard_tensors_count(collected); i++)
        if (shard_tensor_dtype(shard_tensors_at(collected, i)) == SHARD_FLOAT32) {
            shard_tensor *fresh = made_up(shard_tensor_shape(shard_tensors_at(collected, i)), (uint64_t)i + 1, SHARD_FLOAT32);
            copy_elements(fresh, shard_tensors_at(collected, i));
        }
    check_ok(shard_save(collected, scratch_path("made_up.safetensors"), NULL));
    check_ok(shard_load(whole, scratch_path("made_up.safetensors")));
    shard_tensors_destroy(collected);
    shard_tensors_destroy(whole);
}

static void write_split(shard_group *world, void *context)
{
    const split_case *c = context;
    shard_async_save *save;
    split_groups groups = make_groups(world, c);
    shard_module *model = make_split_model(c->split, groups.model);
    shard_optimizer *sgd = sgd_of(shard_parameters(model), c->options);
    SHARD_SCOPE
    {
        make_up_state(model, sgd);
        shard_tensors *all = all_of(shard_parameters(model), sgd);
        check_ok(shard_save(all, scratch_path("split.safetensors"), NULL));
        check_files_equal(scratch_path("split.safetensors"), scratch_path("made_up.safetensors"));
        background_hold();
        save = shard_save_async(all, scratch_path("async.safetensors"), NULL);
        back_split_model(model, world, groups.model, 0);
        check_ok(shard_step(sgd));
        shard_tensors_destroy(all);
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    destroy_groups(&groups);
    end_save(save, "split.safetensors");
}

static void read_split(shard_group *world, void *context)
{
    const split_case *c = context;
    split_groups groups = make_groups(world, c);
    shard_module *model = make_split_model(c->split, groups.model);
    shard_optimizer *sgd = sgd_of(shard_parameters(model), c->options);
    SHARD_SCOPE
    {
        shard_tensors *all = all_of(shard_parameters(model), sgd);
        check_ok(shard_load(all, scratch_path("split.safetensors")));
        check_ok(shard_save(all, scratch_path("again.safetensors"), NULL));
        check_files_equal(scratch_path("again.safetensors"), scratch_path("made_up.safetensors"));
        /* A part of a whole list is what is loaded. */
        shard_tensors *whole = shard_collect_state_dict(all, -1), *own = shard_relocate_state_dict(all, whole);
        ck_assert_ptr_nonnull(own);
        check_ok(shard_save(own, scratch_path("again.safetensors"), NULL));
        check_files_equal(scratch_path("again.safetensors"), scratch_path("made_up.safetensors"));
        shard_tensors_destroy(whole);
        shard_tensors_destroy(own);
        shard_tensors_destroy(all);
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    destroy_groups(&groups);
}

START_TEST(test_split)
{
    run_job(split_writers[_i].data * split_writers[_i].model, write_split, &split_writers[_i]);
    for (int i = 0; i < SPLIT_READERS; i++)
        run_job(split_readers[i].data * split_readers[i].model, read_split, &split_readers[i]);
}
END_TEST

/* ---- narrow columns ---- */

static const shard_file_calls *system_calls;
static int64_t write_calls;
static bool disk_full;

static ssize_t counted_pwrite(int descriptor, const void *data, size_t bytes, off_t offset)
{
    write_calls++;
    if (disk_full)
        return errno = ENOSPC, -1;
    return system_calls->pwrite(descriptor, data, bytes, offset);
}

/* Rows of 44 bytes, in more than one block, are not written each by itself, or half by half;
 * and who cannot write ends it for all. */
static void write_narrow(shard_group *world, void *context)
{
    const split_case *c = context;
    split_groups groups = make_groups(world, c);
    shard_module *layer = shard_nn_parallel_linear(11, 200000, c->split, groups.model);
    shard_optimizer *sgd = sgd_of(shard_parameters(layer), c->options);
    shard_file_calls counted = *(system_calls = shard_file_calls_used);
    counted.pwrite = counted_pwrite;
    SHARD_SCOPE
    {
        make_up_state(layer, sgd);
        shard_tensors *all = all_of(shard_parameters(layer), sgd);
        shard_file_calls_used = &counted;
        check_ok(shard_save(all, scratch_path("narrow.safetensors"), NULL));
        shard_file_calls_used = system_calls;
        ck_assert_int_le(write_calls, 60);
        check_files_equal(scratch_path("narrow.safetensors"), scratch_path("made_up.safetensors"));
        shard_file_calls_used = &counted;
        disk_full = shard_group_rank(world) == 2;
        ck_assert_int_eq(shard_save(all, scratch_path("narrow.safetensors"), NULL),
                         disk_full ? SHARD_ERROR_IO : SHARD_ERROR_PEER);
        shard_clear_error();
        shard_file_calls_used = system_calls;
        shard_tensors_destroy(all);
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(layer);
    destroy_groups(&groups);
}

START_TEST(test_narrow)
{
    split_case c = {2, 2, SHARD_SPLIT_ROW, {.stage = _i == 1 ? 3 : 1, .bucket_mib = 1}, .crossed = _i == 2};
    run_job(4, write_narrow, &c);
}
END_TEST

/* ---- frozen parameters ---- */

static int64_t state_bytes(void)
{
    return shard_get_memory_by_kind(shard_device_open(NULL), SHARD_MEMORY_OPTIMIZER_STATE).current;
}

enum { FROZEN = 5000 };

static shard_optimizer *adam_of_two(shard_tensor **p, bool frozen, int stage)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < 2; i++) {
        p[i] = made_up(SHARD_SHAPE(i ? FROZEN : 40), 1, SHARD_FLOAT32);
        shard_set_requires_grad(p[i], i == 0 || !frozen);
        check_ok(shard_tensors_add(list, i ? "q" : "p", p[i]));
    }
    return adam_of(list, (zero_way){.stage = stage});
}

static shard_status load_state(shard_optimizer *optimizer, const char *name, bool allow_missing)
{
    shard_tensors *state = shard_optimizer_state_dict(optimizer);
    shard_status status = shard_load(state, scratch_path(name), .allow_missing = allow_missing);
    shard_tensors_destroy(state);
    return status;
}

static void save_state(shard_optimizer *optimizer, const char *name)
{
    shard_tensors *state = shard_optimizer_state_dict(optimizer);
    check_ok(shard_save(state, scratch_path(name), NULL));
    shard_tensors_destroy(state);
}

static int64_t count_names(const char *name)
{
    shard_tensors *there = shard_inspect(scratch_path(name), NULL);
    int64_t count = shard_tensors_count(there);
    shard_tensors_destroy(there);
    return count;
}

/* By a file of whole tensors, which does not have the state that never trained: of one rank, and of all. */
static void relocates(shard_optimizer *adam, const char *name)
{
    shard_tensors *state = shard_optimizer_state_dict(adam), *all = shard_collect_state_dict(state, 0);
    int rank = shard_group_rank(shard_world());
    ck_assert_ptr_nonnull(all);
    if (rank == 0)
        check_ok(shard_save(all, scratch_path(name), NULL, .local = true));
    check_ok(shard_barrier(shard_world()));
    for (int root = -1; root <= 0; root++) {
        shard_tensors *whole = root == -1 || rank == 0 ? shard_inspect(scratch_path(name), NULL) : NULL;
        if (whole) {
            ck_assert_int_eq(shard_tensors_count(whole), 3);
            check_ok(shard_load(whole, scratch_path(name), .local = true));
        }
        shard_tensors *local = shard_relocate_state_dict(state, whole, .root = root);
        ck_assert_msg(local != NULL, "%s", shard_last_error());
        check_ok(shard_load_state_dict(state, local));
        shard_tensors_destroy(local);
        shard_tensors_destroy(whole);
    }
    shard_tensors_destroy(all);
    shard_tensors_destroy(state);
}

/* What never trained has no state, in memory and in files; a file with it is loaded, and one
 * without it where that is not needed. */
static void has_no_state(shard_group *world, void *context)
{
    int stage = *(int *)context;
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p[2], *all[2], *later[2];
        int64_t before = state_bytes();
        shard_optimizer *adam = adam_of_two(p, true, stage), *whole = adam_of_two(all, false, stage);
        check_ok(shard_backward(shard_sum(shard_mul(p[0], p[0]))));
        check_ok(shard_step(adam));
        int64_t stepped = state_bytes();
        ck_assert_int_lt(stepped - before, FROZEN);
        save_state(adam, "frozen.safetensors");
        check_ok(load_state(adam, "frozen.safetensors", false));
        ck_assert_int_eq(state_bytes(), stepped);
        ck_assert_int_eq(count_names("frozen.safetensors"), 3);
        relocates(adam, "collected.safetensors");

        check_ok(shard_backward(shard_add(shard_sum(shard_mul(all[0], all[0])), shard_sum(all[1]))));
        check_ok(shard_step(whole));
        save_state(whole, "all.safetensors");
        ck_assert_int_eq(count_names("all.safetensors"), 6);
        shard_optimizer *resumed = adam_of_two(later, true, stage);
        check_ok(load_state(resumed, "all.safetensors", false)); /* it may train again */
        shard_tensors *state = shard_optimizer_state_dict(resumed);
        ck_assert_double_eq(value_at(shard_tensors_find(state, "q.exp_avg"), FROZEN - 1), (double)0.1f);
        ck_assert_double_eq(shard_item(shard_tensors_find(state, "q.step")), 1);
        shard_tensors_destroy(state);
        save_state(resumed, "again.safetensors");
        ck_assert_int_eq(count_names("again.safetensors"), 6);

        check_fails(load_state(whole, "frozen.safetensors", false), SHARD_ERROR_SHAPE, "*3 missing there (\"q.step\", *");
        check_ok(load_state(whole, "frozen.safetensors", true));
        shard_optimizer_destroy(adam);
        shard_optimizer_destroy(whole);
        shard_optimizer_destroy(resumed);
        ck_assert_int_eq(state_bytes(), before);
    }
}

START_TEST(test_frozen)
{
    run_job(2, has_no_state, &_i);
}
END_TEST

/* One state dict, made while a parameter is frozen that is stepped later, by ranks that have nothing of it, too. */
static void is_unfrozen_later(shard_group *world, void *context)
{
    (void)world;
    int stage = 1 + *(int *)context;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(40), 1, SHARD_FLOAT32), *q = made_up_leaf(SHARD_SHAPE(3), 2, SHARD_FLOAT32);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        check_ok(shard_tensors_add(list, "q", q));
        shard_optimizer *adam = shard_zero_optimizer(adam_of_list(list), .stage = stage);
        shard_set_requires_grad(q, false);
        shard_tensors *state = shard_optimizer_state_dict(adam);
        check_ok(shard_save(state, scratch_path("frozen.safetensors"), NULL));
        ck_assert_int_eq(count_names("frozen.safetensors"), 3);
        shard_set_requires_grad(q, true);
        check_ok(shard_backward(shard_add(shard_sum(p), shard_sum(q))));
        check_ok(shard_step(adam));
        check_ok(shard_save(state, scratch_path("unfrozen.safetensors"), NULL));
        ck_assert_int_eq(count_names("unfrozen.safetensors"), 6);
        shard_set_requires_grad(q, false);
        shard_tensors_destroy(shard_optimizer_state_dict(adam));
        check_ok(shard_save(state, scratch_path("frozen_again.safetensors"), NULL));
        ck_assert_int_eq(count_names("frozen_again.safetensors"), 6);
        shard_tensors_destroy(state);
        shard_optimizer_destroy(adam);
    }
}

/* State of whole parameters, which are then frozen and partitioned: ranks without elements of it have it, too. */
static void is_frozen_and_partitioned(shard_group *world, void *context)
{
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(40), 1, SHARD_FLOAT32), *q = made_up_leaf(SHARD_SHAPE(3), 2, SHARD_FLOAT32);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        check_ok(shard_tensors_add(list, "q", q));
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_optimizer *adam = adam_of_list(list);
        check_ok(shard_backward(shard_add(shard_sum(p), shard_sum(q))));
        check_ok(shard_step(adam));
        save_state(adam, "whole.safetensors");
        shard_set_requires_grad(q, false);
        ck_assert_msg(shard_zero_optimizer(adam, .stage = *(int *)context) == adam, "%s", shard_last_error());
        save_state(adam, "partitioned.safetensors");
        ck_assert_int_eq(count_names("partitioned.safetensors"), 6);
        char whole[4096];
        snprintf(whole, sizeof whole, "%s", scratch_path("whole.safetensors"));
        check_files_equal(whole, scratch_path("partitioned.safetensors"));
        check_ok(load_state(adam, "whole.safetensors", false));
        shard_tensors *state = shard_optimizer_state_dict(adam), *all = shard_collect_state_dict(state, 0);
        ck_assert_msg(all != NULL, "%s", shard_last_error());
        shard_tensors_destroy(all);
        shard_tensors_destroy(state);
        shard_optimizer_destroy(adam);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_frozen_and_partitioned)
{
    run_job(3, is_frozen_and_partitioned, &_i);
}
END_TEST

START_TEST(test_unfrozen)
{
    run_job(2, is_unfrozen_later, &(int){_i});
}
END_TEST

/* A load that fails before it reads a tensor leaves values that are gathered for a backward. */
static void fails_between(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(40), 1, SHARD_FLOAT32);
        shard_tensors *list = shard_tensors_create(), *parameters = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        check_ok(shard_tensors_add(parameters, "p", p));
        shard_optimizer *adam = shard_zero_optimizer(adam_of_list(list), .stage = 3);
        shard_tensor *loss = shard_sum(shard_mul(p, p));
        check_fails(shard_load(parameters, scratch_path("missing.safetensors")), SHARD_ERROR_IO, "*missing.safetensors*");
        if (shard_group_rank(world) == 0)
            check_fails(shard_load(parameters, scratch_path("missing.safetensors"), .local = true), SHARD_ERROR_IO, "*missing*");
        check_ok(shard_backward(loss));
        check_ok(shard_step(adam));
        shard_tensors_destroy(parameters);
        shard_optimizer_destroy(adam);
    }
}

START_TEST(test_failed_load)
{
    run_job(2, fails_between, NULL);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("zero checkpoint");
    TCase *tcase = test_case(suite, "checkpoint");
    tcase_add_loop_test(tcase, test_sorts, 0, (int)(sizeof makers / sizeof *makers) * WRITERS);
    tcase_add_loop_test(tcase, test_split, 0, SPLIT_WRITERS);
    tcase_add_loop_test(tcase, test_narrow, 0, 3);
    tcase_add_test(tcase, test_failed_load);
    tcase_add_loop_test(tcase, test_frozen, 0, 4);
    tcase_add_loop_test(tcase, test_unfrozen, 0, 3);
    tcase_add_loop_test(tcase, test_frozen_and_partitioned, 1, 4);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
