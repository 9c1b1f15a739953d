/*
 * Training is deterministic: a configuration that is run again gives the same bits of losses and weights, and another number
 * of ranks the same losses but for rounding of float64. test_determinism [RUNS]
 */
#include "support/job.h"
#include "support/options.h"
#include "support/scratch.h"

#include "base/hash.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A batch that 1, 2, 3, 4 and 8 ranks divide evenly; more rows and columns than a thread's share of a product. */
enum { ROWS = 48, IN = 33, HIDDEN = 65, CLASSES = 301, STEPS = 4 };

static int runs = 2;

typedef enum kind { PLAIN, COLUMN, FUSED, DATA, ZERO_3, BOTH, KINDS } kind;
static const char *const names[KINDS] = {"plain",         "split by column", "fused head",
                                         "data parallel", "ZeRO 3",          "data parallel x fused head"};

typedef struct configuration {
    kind kind;
    shard_dtype dtype;
} configuration;

typedef struct training {
    shard_mesh *mesh;
    shard_module *model;
    shard_optimizer *optimizer;
    shard_data_parallel *parallel;
} training;

static int model_ranks(kind how, int size)
{
    bool splits = how == COLUMN || how == FUSED || (how == BOTH && size % 2 == 0);
    return !splits ? 1 : how == BOTH ? 2 : size;
}

static training make_training(configuration c)
{
    int size = shard_group_size(shard_world());
    training t = {.mesh = shard_mesh_create(.model = model_ranks(c.kind, size))};
    shard_group *model = shard_mesh_model_group(t.mesh);
    shard_manual_seed(11);
    shard_module *last = c.kind == FUSED || c.kind == BOTH
                             ? shard_nn_parallel_classifier(HIDDEN, CLASSES, model, .dtype = c.dtype)
                             : shard_nn_parallel_linear(HIDDEN, CLASSES, SHARD_SPLIT_COLUMN, model, .dtype = c.dtype);
    t.model = shard_nn_sequential(shard_nn_linear(IN, HIDDEN, .dtype = c.dtype), shard_nn_gelu(), last);
    t.optimizer = shard_adam(t.model, .lr = 1e-3);
    if (c.kind == ZERO_3)
        t.optimizer = shard_zero_optimizer(t.optimizer, .stage = 3, .bucket_mib = 0.05);
    if (c.kind == PLAIN)
        return t;
    shard_tensors *parameters = shard_parameters(t.model);
    t.parallel = shard_data_parallel_create(parameters, .bucket_mib = 0.05);
    ck_assert_msg(t.parallel != NULL, "%s", shard_last_error());
    shard_tensors_destroy(parameters);
    return t;
}

static void drop_training(training *t)
{
    shard_optimizer_destroy(t->optimizer);
    shard_data_parallel_destroy(t->parallel);
    shard_module_destroy(t->model);
    shard_mesh_destroy(t->mesh);
}

/* The loss of the whole batch, of which each data parallel rank has its range; PLAIN: each rank has all of it. */
static double step(const training *t, shard_dtype dtype, int number)
{
    shard_group *data = t->parallel ? shard_mesh_data_group(t->mesh) : NULL, *model = shard_mesh_model_group(t->mesh);
    shard_range rows = shard_split_range(ROWS, shard_group_size(data), shard_group_rank(data));
    int64_t labels[ROWS];
    for (int i = 0; i < ROWS; i++)
        labels[i] = (number * 97 + i * 31) % CLASSES;
    double loss = 0;
    SHARD_SCOPE
    {
        shard_tensor *whole = shard_cast(made_up(SHARD_SHAPE(ROWS, IN), (uint64_t)number + 40, SHARD_FLOAT64), dtype);
        shard_tensor *x = shard_copy_to_group(shard_narrow(whole, 0, rows.start, rows.size), model);
        shard_tensor *target = shard_from_host(labels + rows.start, SHARD_SHAPE(rows.size), .dtype = SHARD_INT64);
        shard_tensor *mean = shard_cross_entropy(shard_forward(t->model, x), target, .label_smoothing = 0.1);
        check_ok(shard_backward(mean));
        shard_tensor *sum = shard_detach(shard_clone(mean));
        check_ok(shard_all_reduce(sum, SHARD_SUM, data));
        loss = shard_item(sum) / shard_group_size(data);
    }
    check_ok(shard_step(t->optimizer));
    return loss;
}

/* Sets losses [STEPS]; returns a hash of them and of this rank's weights and state. */
static uint64_t train(configuration c, double *losses)
{
    training t = make_training(c);
    for (int i = 0; i < STEPS; i++)
        losses[i] = step(&t, c.dtype, i);
    uint64_t hash = shard_hash_bytes(SHARD_HASH_START, losses, STEPS * (int64_t)sizeof *losses);
    shard_tensors *all = shard_state_dict(t.model), *state = shard_optimizer_state_dict(t.optimizer);
    check_ok(shard_tensors_extend(all, "optimizer.", state));
    for (int64_t i = 0; i < shard_tensors_count(all); i++) {
        shard_tensor *x = shard_tensors_at(all, i);
        size_t bytes = (size_t)shard_numel(x) * shard_dtype_size(shard_tensor_dtype(x));
        void *values = malloc(bytes + 1);
        check_ok(shard_copy_to_host(x, values, bytes));
        hash = shard_hash_bytes(hash, values, (int64_t)bytes);
        free(values);
    }
    shard_tensors_destroy(all);
    shard_tensors_destroy(state);
    drop_training(&t);
    return hash;
}

/* ---- the same ranks ---- */

/* Each rank's hashes, of which those of another job's processes are compared by a file. */
static void repeats(shard_group *world, void *context)
{
    const configuration *c = context;
    double losses[STEPS], again[STEPS];
    char name[80];
    uint64_t first = train(*c, losses);
    for (int i = 1; i < (runs + 1) / 2; i++)
        ck_assert_msg(train(*c, again) == first, "%s: run %d gives other bits (losses %.17g and %.17g)", names[c->kind], i + 1,
                      losses[STEPS - 1], again[STEPS - 1]);
    snprintf(name, sizeof name, "hash-%d-of-%d", shard_group_rank(world), shard_group_size(world));
    FILE *file = fopen(scratch_path(name), "r");
    uint64_t earlier = first;
    if (file)
        ck_assert_int_eq(fscanf(file, "%" SCNu64, &earlier), 1);
    else
        file = fopen(scratch_path(name), "w");
    fprintf(file, "%" PRIu64, first);
    fclose(file);
    ck_assert_msg(earlier == first, "%s: another process gives other bits", names[c->kind]);
}

static const int same_ranks[] = {1, 2, 4};
enum { SAME = sizeof same_ranks / sizeof *same_ranks };

static void forget_hashes(int ranks)
{
    char name[80];
    for (int rank = 0; rank < ranks; rank++) {
        snprintf(name, sizeof name, "hash-%d-of-%d", rank, ranks);
        remove(scratch_path(name));
    }
}

START_TEST(test_repeats)
{
    int ranks = same_ranks[_i % SAME];
    configuration c = {.kind = (kind)(_i / SAME), .dtype = SHARD_FLOAT32};
    if (c.kind == PLAIN && ranks > 1) /* each rank would be alone */
        return;
    forget_hashes(ranks);
    for (int job = 0; job < 2; job++)
        run_job(ranks, repeats, &c);
    printf("cases: %d\n", 2 * ((runs + 1) / 2) - 1); /* compared with the first */
}
END_TEST

/* ---- other numbers of ranks ---- */

static void records(shard_group *world, void *context)
{
    const configuration *c = context;
    double losses[STEPS];
    size_t bytes;
    train(*c, losses);
    if (shard_group_size(world) == 1) {
        write_file(scratch_path("losses"), losses, sizeof losses);
        return;
    }
    double *single = read_file(scratch_path("losses"), &bytes);
    ck_assert_uint_eq(bytes, sizeof losses);
    for (int i = 0; i < STEPS; i++)
        ck_assert_msg(is_within(losses[i], single[i], 1e-12 * fabs(single[i])),
                      "%s on %d ranks: the loss of step %d is %.17g, not %.17g", names[c->kind], shard_group_size(world), i,
                      losses[i], single[i]);
    free(single);
}

START_TEST(test_any_number_of_ranks)
{
    configuration c = {.kind = (kind)_i, .dtype = SHARD_FLOAT64};
    for (int i = 0; i < RANK_COUNTS; i++)
        run_job(rank_counts[i], records, &c);
    printf("cases: %d\n", RANK_COUNTS - 1);
}
END_TEST

int main(int argc, char **argv)
{
    runs = argc > 1 ? atoi(argv[1]) : runs;
    scratch_open();
    Suite *suite = suite_create("determinism");
    TCase *tcase = test_case(suite, "determinism");
    tcase_add_loop_test(tcase, test_repeats, 0, SAME * KINDS);
    tcase_add_loop_test(tcase, test_any_number_of_ranks, PLAIN + 1, KINDS);
    int result = test_run_on_cpu(suite);
    scratch_close();
    return result;
}
