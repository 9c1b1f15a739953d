/*
 * shard_check_replicas: a bit that is flipped on one rank is found, in parameters, buffers and optimizer state, under data
 * parallel training, on a mesh and with each stage of ZeRO; the error is the same on all ranks.
 */
#include "support/job.h"
#include "support/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 6, HIDDEN = 8, CLASSES = 10, ROWS = 4, STEPS = 2 };

typedef struct training {
    shard_mesh *mesh;
    shard_module *model;
    shard_optimizer *optimizer;
    shard_data_parallel *parallel;
} training;

static training make_training(int model_ranks, int stage)
{
    training t = {.mesh = shard_mesh_create(.model = model_ranks)};
    shard_manual_seed(3);
    t.model = shard_nn_sequential(shard_nn_linear(FEATURES, HIDDEN), shard_nn_batch_norm(HIDDEN), shard_nn_relu(),
                                  shard_nn_parallel_linear(HIDDEN, CLASSES, SHARD_SPLIT_COLUMN, shard_mesh_model_group(t.mesh)));
    t.optimizer = shard_adam(t.model, .lr = 0.01);
    if (stage > 0)
        t.optimizer = shard_zero_optimizer(t.optimizer, .stage = stage);
    shard_tensors *parameters = shard_parameters(t.model), *state = shard_state_dict(t.model);
    t.parallel = shard_data_parallel_create(parameters, .buffers = state);
    ck_assert_msg(t.parallel != NULL, "%s", shard_last_error());
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(state);
    return t;
}

static void drop_training(training *t)
{
    shard_optimizer_destroy(t->optimizer);
    shard_data_parallel_destroy(t->parallel);
    shard_module_destroy(t->model);
    shard_mesh_destroy(t->mesh);
}

/* The ranks of a model group have the same rows. */
static void step(training *t, int number)
{
    shard_group *data = shard_mesh_data_group(t->mesh), *model = shard_mesh_model_group(t->mesh);
    int64_t labels[ROWS];
    for (int i = 0; i < ROWS; i++)
        labels[i] = (number * 7 + shard_group_rank(data) * 3 + i) % CLASSES;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), (uint64_t)(100 * number + shard_group_rank(data)), SHARD_FLOAT32);
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        shard_tensor *logits = shard_forward(t->model, shard_copy_to_group(x, model));
        check_ok(shard_backward(shard_cross_entropy(logits, target)));
    }
    check_ok(shard_step(t->optimizer));
}

static shard_tensors *all_state(const training *t)
{
    shard_tensors *all = shard_state_dict(t->model), *state = shard_optimizer_state_dict(t->optimizer);
    ck_assert_msg(all && state, "%s", shard_last_error());
    check_ok(shard_tensors_extend(all, "optimizer.", state));
    shard_tensors_destroy(state);
    return all;
}

/* Flips the lowest bit of the tensor's last byte but one. */
static void flip(shard_tensor *x)
{
    size_t bytes = (size_t)shard_numel(x) * shard_dtype_size(shard_tensor_dtype(x));
    unsigned char *values = malloc(bytes);
    check_ok(shard_copy_to_host(x, values, bytes));
    values[bytes - 2] ^= 1;
    SHARD_NO_GRAD
    {
        check_ok(shard_copy_from_host(x, values, bytes));
    }
    free(values);
}

/* What each rank's flips come to: the first tensor of the list counts, and the ranks that are not as most are. */
typedef struct flips {
    const char *name;
    int from, to; /* the world's ranks that flip it; of to, negative: counted from the end */
} flips;

static int cases;

static void finds(shard_group *world, const shard_tensors *all, flips f, const char *pattern)
{
    int rank = shard_group_rank(world), to = f.to < 0 ? shard_group_size(world) + f.to : f.to;
    bool here = rank >= f.from && rank <= to;
    shard_tensor *x = shard_tensors_find(all, f.name);
    ck_assert_msg(x != NULL, "there is no %s", f.name);
    if (here)
        flip(x);
    shard_status status = shard_check_replicas(all);
    ck_assert_msg(status == SHARD_ERROR_MISMATCH || status == SHARD_ERROR_PEER, "%s: %s", f.name, shard_status_name(status));
    check_error(status, pattern);
    if (here)
        flip(x);
    check_ok(shard_check_replicas(all));
    cases++;
}

/* Of data parallel replicas: every tensor; of which stage 1 and 2 partition the state, and stage 3 the parameters. */
static void finds_a_bit(shard_group *world, void *context)
{
    int stage = *(const int *)context, size = shard_group_size(world);
    training t = make_training(1, stage);
    for (int i = 0; i < STEPS; i++)
        step(&t, i);
    shard_tensors *all = all_state(&t);
    check_ok(shard_check_replicas(all));
    char pattern[160];
    for (int64_t i = 0; i < shard_tensors_count(all); i++) {
        const char *name = shard_tensors_name(all, i), *dot = strrchr(name, '.');
        bool parameter = strcmp(dot, ".weight") == 0 || strcmp(dot, ".bias") == 0;
        bool state = strncmp(name, "optimizer.", 10) == 0 && strcmp(dot, ".step") != 0;
        if ((parameter && stage == 3) || (state && stage > 0))
            continue;
        int odd = size > 2 ? (int)i % size : 1; /* of two none is odd */
        snprintf(pattern, sizeof pattern,
                 "rank 0: shard_check_replicas: \"%s\" *: the bits on rank %d are not those on rank%s %d*", name, odd,
                 size > 2 ? "s" : "", odd == 0);
        finds(world, all, (flips){name, odd, odd}, pattern);
    }
    ck_assert_int_ge(cases, 3);
    if (size > 2) { /* the lowest rank has other bits than all others */
        const char *others =
            size == 3 ? "*on rank 0 are not those on ranks 1 and 2" : "*on rank 0 are not those on ranks 1, 2 and 3";
        finds(world, all, (flips){"1.running_mean", 0, 0}, others);
        finds(world, all, (flips){"1.running_var", 1, -1}, others);
    }
    step(&t, STEPS); /* after an error that was cleared training goes on */
    check_ok(shard_check_replicas(all));
    if (shard_group_rank(world) == 0)
        printf("cases: %d\n", cases);
    shard_tensors_destroy(all);
    drop_training(&t);
}

static const int found_on[] = {2, 3, 4};

START_TEST(test_finds_a_bit)
{
    int stage = _i % 4;
    run_job(found_on[_i / 4], finds_a_bit, &stage);
}
END_TEST

/* On a mesh of 2 x 2 a shard is compared with its replica alone, and what all ranks have with all. */
static void finds_on_mesh(shard_group *world, void *context)
{
    int stage = *(const int *)context;
    training t = make_training(2, stage);
    for (int i = 0; i < STEPS; i++)
        step(&t, i);
    shard_tensors *all = all_state(&t);
    check_ok(shard_check_replicas(all)); /* though the shards of a model group differ */
    finds(world, all, (flips){"1.running_mean", 2, 2},
          "rank 0: *\"1.running_mean\" float32 [[]8]*on rank 2 are not those on ranks 0, 1 and 3");
    if (stage < 3) {
        finds(world, all, (flips){"3.weight", 3, 3},
              "rank 1: *\"3.weight\" float32 [[]10, 8]: the bits on rank 3 are not those on rank 1");
        finds(world, all, (flips){"3.bias", 2, 3}, "rank 0: *\"3.bias\" *rank 2 are not those on rank 0");
        finds(world, all, (flips){"0.weight", 2, 3}, "rank 0: *\"0.weight\" *ranks 2 and 3 are not those on ranks 0 and 1");
    }
    if (stage == 0)
        finds(world, all, (flips){"optimizer.3.weight.exp_avg", 0, 0},
              "*\"optimizer.3.weight.exp_avg\" *rank 2 are not those on rank 0");
    if (shard_group_rank(world) == 0)
        printf("cases: %d\n", cases);
    shard_tensors_destroy(all);
    drop_training(&t);
}

START_TEST(test_finds_on_mesh)
{
    run_job(4, finds_on_mesh, &_i);
}
END_TEST

/* Of several tensors the list's first is named; lists that differ are an error, too. */
static void names_the_first(shard_group *world, void *context)
{
    (void)context;
    bool last = shard_group_rank(world) == 2;
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        shard_tensor *b = shard_full(SHARD_SHAPE(5), last ? 2.0 : 1.0), *c = shard_full(SHARD_SHAPE(5), last ? -0.0 : 0.0);
        check_ok(shard_tensors_add(list, "a", shard_ones(SHARD_SHAPE(0))));
        check_ok(shard_tensors_add(list, "c", c)); /* signs of zeros are bits */
        check_ok(shard_tensors_add(list, "b", b));
        shard_check_replicas(list);
        check_error(last ? SHARD_ERROR_MISMATCH : shard_last_status(),
                    "rank 0: *\"c\" float32 [[]5]: the bits on rank 2 are not those on ranks 0 and 1");
        check_ok(shard_tensors_remove(list, "c"));
        check_ok(shard_tensors_remove(list, "b"));
        check_ok(shard_check_replicas(list));
        if (last)
            check_ok(shard_tensors_add(list, "more", b));
        shard_check_replicas(list);
        check_error(SHARD_ERROR_MISMATCH, "*shard_check_replicas*");
        if (!last)
            check_ok(shard_tensors_add(list, "more", shard_full(SHARD_SHAPE(5, 1), 2.0)));
        shard_check_replicas(list);
        check_error(SHARD_ERROR_MISMATCH, "*\"more\" *rank 2 are not*");
        if (last) /* one rank that has failed before */
            shard_error(SHARD_ERROR_ARGUMENT, "it has failed");
        shard_check_replicas(list);
        check_error(last ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 2: it has failed");
        shard_tensors_destroy(list);
        if (shard_group_rank(world) == 0)
            printf("cases: 5\n");
    }
}

START_TEST(test_names_the_first)
{
    run_job(3, names_the_first, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("check replicas");
    TCase *tcase = test_case(suite, "check replicas");
    tcase_add_loop_test(tcase, test_finds_a_bit, 0, 12);
    tcase_add_loop_test(tcase, test_finds_on_mesh, 0, 4);
    tcase_add_test(tcase, test_names_the_first);
    return test_run(suite);
}
