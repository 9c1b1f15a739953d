/*
 * Random networks of copies, gathers, scatters, sums and operations, nested over the groups of
 * a mesh of up to three axes: their values and gradients are those of one process.
 * test_random_networks [NETWORKS [FIRST]], on each mesh. SHARD_TEST_SEED=N draws other networks. A network that fails is named by
 * its seed and number: SHARD_TEST_SEED=N test_random_networks 1 NUMBER
 */
#include "support/network.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int networks = 36, first_network;
static unsigned long long seed = 1;

/* A network is made by the same draws for every rank and for one process. */
typedef struct maker {
    const net *net;
    uint64_t state;
    int left; /* operations until it is large enough */
} maker;

static int draw(maker *m, int count)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((m->state >> 33) % (uint64_t)count);
}

/* What a tensor is on the ranks of a group: the same, or this rank's by hand. */
enum { MODEL = 1, DATA = 2, EXPERT = 4, CUT_ROWS = 8 };
enum { AXES = 3 };

static shard_group *group_of(const maker *m, int over)
{
    return over == MODEL ? m->net->model : over == DATA ? m->net->data : m->net->expert;
}

/* One that fits a tensor that is split there. */
static shard_tensor *operate(maker *m, shard_tensor *x, int split)
{
    for (;;) {
        const net_operation *operation = &net_operations[draw(m, net_operation_count)];
        int fits = operation->split | (operation->placed ? BY_COLUMNS : 0);
        if ((fits & split) == split && !operation->rounds)
            return operation->make(m->net, x);
    }
}

/* What x is split by before its columns are: its rows, by hand. */
static int rows_of(int own)
{
    return own & CUT_ROWS ? BY_ROWS : 0;
}

static shard_tensor *columns(maker *m, shard_tensor *x, int own)
{
    return operate(m, shard_linear(x, m->net->leaf[NET_COLUMN], m->net->leaf[NET_COLUMN_BIAS]), BY_COLUMNS | rows_of(own));
}

static shard_tensor *network(maker *m, shard_tensor *x, int own);

/* An operation that takes the ranks' summands one by one. */
static shard_tensor *operate_on_summands(maker *m, shard_tensor *x)
{
    switch (draw(m, 7)) {
    case 0:
        return shard_neg(shard_clone(x));
    case 1:
        return shard_sub(x, shard_scale(x, 0.25));
    case 2:
        return shard_reshape(shard_flatten(x, 0, -1), shard_tensor_shape(x));
    case 3:
        return shard_transpose(shard_transpose(x, 0, 1), 0, 1);
    case 4:
        return shard_cast(x, SHARD_FLOAT64);
    case 5:
        return shard_sum_dim(shard_add(x, x), -1, true);
    default:
        return shard_mean_dim(x, 0, true);
    }
}

/* A PARTIAL matrix, and the sum of its summands. */
static shard_tensor *summands(maker *m, shard_tensor *x)
{
    shard_tensor *partial = shard_linear(shard_scatter_to_group(x, -1, m->net->model), m->net->leaf[NET_ROW], NULL);
    return shard_add(x, shard_reduce_from_group(operate_on_summands(m, partial), m->net->model));
}

/* Over the model group alone: layers and a loss that are split. */
static shard_tensor *split_layer(maker *m, shard_tensor *x, int own)
{
    switch (draw(m, own & CUT_ROWS ? 3 : 6)) {
    case 0:
        return shard_gather_from_group(columns(m, x, own), -1, m->net->model);
    case 1:
        return shard_parallel_linear(x, m->net->leaf[NET_ROW], m->net->leaf[NET_ROW_BIAS]);
    case 2:
        return shard_forward(m->net->row, columns(m, x, own));
    case 3:
        return shard_mul(x, shard_cross_entropy(columns(m, x, own), net_labels(x)));
    case 4: /* the mean over rows is of all of them */
        return summands(m, x);
    default:
        return net_split_loss(m->net, x, draw(m, NET_SPLIT_LOSSES));
    }
}

/* A batch norm of rows that the ranks have by hand, with the statistics of all of them. */
static shard_tensor *sync_batch_norm(const maker *m, shard_tensor *x, shard_group *group)
{
    const net *n = m->net;
    return shard_gather_from_group(shard_batch_norm(own_rows(x, group), NULL, NULL, n->leaf[NET_NORM_WEIGHT],
                                                    n->leaf[NET_NORM_BIAS], .training = true, .eps = 0.1, .group = group),
                                   0, group);
}

static shard_tensor *split(maker *m, shard_tensor *x, int over, int own)
{
    shard_group *group = group_of(m, over);
    if (!(own & CUT_ROWS) && draw(m, 8) == 0)
        return sync_batch_norm(m, x, group);
    switch (draw(m, over == MODEL ? 8 : 5)) {
    case 0:
        return shard_gather_from_group(operate(m, shard_scatter_to_group(x, 0, group), BY_ROWS), 0, group);
    case 1:
        return shard_gather_from_group(operate(m, shard_scatter_to_group(x, -1, group), BY_COLUMNS | rows_of(own)), -1, group);
    case 2:
        return shard_gather_from_group(network(m, own_rows(x, group), own | over | CUT_ROWS), 0, group);
    case 3:
        return shard_reduce_from_group(shard_scale(network(m, x, own | over), 1.0 / shard_group_size(group)), group);
    case 4:
        return shard_gather_from_group(shard_gelu(shard_linear(x, own_rows(m->net->leaf[NET_HAND], group), NULL)), -1, group);
    default:
        return split_layer(m, x, own);
    }
}

/* own: the groups over which x is this rank's by hand. */
static shard_tensor *network(maker *m, shard_tensor *x, int own)
{
    for (int steps = 1 + draw(m, 4); steps > 0 && m->left > 0; steps--) {
        m->left--;
        int over = 1 << draw(m, AXES), kind = draw(m, 5);
        x = shard_layer_norm(x, NULL, NULL, 0.1); /* of one size */
        if (kind == 0)
            x = shard_add(x, network(m, x, own));
        else if (kind <= 2 && !(own & over))
            x = split(m, x, over, own);
        else if (kind == 3 && !(own & over))
            x = shard_copy_to_group(x, group_of(m, over));
        else
            x = operate(m, x, rows_of(own));
    }
    return x;
}

/* The loss is one of each group, in one of three ways. */
static shard_tensor *finish(maker *m, shard_tensor *x)
{
    shard_group *groups[AXES] = {m->net->model, m->net->data, m->net->expert};
    int way[AXES];
    for (int i = 0; i < AXES; i++) {
        way[i] = draw(m, 3);
        if (way[i] == 0)
            x = shard_gather_from_group(operate(m, shard_scatter_to_group(x, 0, groups[i]), BY_ROWS), 0, groups[i]);
        if (way[i] == 1)
            x = shard_gather_from_group(own_rows(x, groups[i]), 0, groups[i]);
    }
    shard_tensor *loss = shard_sum(shard_mul(x, made_up(SHARD_SHAPE(NET_ROWS, NET_FEATURES), 7, SHARD_FLOAT64)));
    for (int i = 0; i < AXES; i++)
        if (way[i] == 2)
            loss = shard_reduce_from_group(shard_scale(loss, 1.0 / shard_group_size(groups[i])), groups[i]);
    return loss;
}

/* What a network computes: its result, and last its loss. */
typedef struct outcome {
    double value[NET_ROWS * NET_FEATURES + 1];
} outcome;

static outcome run_network(const char *name, const net *n, int index)
{
    for (int i = 0; i < NET_LEAVES; i++)
        shard_zero_grad(n->leaf[i]);
    shard_manual_seed(5);
    maker m = {.net = n, .state = (uint64_t)index * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u, .left = 12};
    shard_tensor *loss = NULL, *x = n->leaf[NET_X];
    for (int i = 0; i < 3; i++)
        x = network(&m, x, 0);
    loss = finish(&m, x);
    ck_assert_msg(loss && shard_backward(loss) == SHARD_OK, "%s: %s", name, shard_last_error());
    outcome out;
    double *values = values_of(shard_detach(x));
    memcpy(out.value, values, sizeof out.value - sizeof *values);
    free(values);
    out.value[NET_ROWS * NET_FEATURES] = shard_item(shard_detach(loss));
    return out;
}

/* Whether powers of powers have left float64. */
static bool overflows(const outcome *of)
{
    for (int i = 0; i < NET_ROWS * NET_FEATURES + 1; i++)
        if (!isfinite(of->value[i]))
            return true;
    return false;
}

/* The first value that differs, relative to the largest one; -1: none. */
static int different_value(const outcome *of, const outcome *one)
{
    enum { COUNT = NET_ROWS * NET_FEATURES + 1 };
    double bound = 1e-8 * fmax(1, largest_of(one->value, COUNT));
    for (int i = 0; i < COUNT; i++)
        if (!is_within(of->value[i], one->value[i], bound))
            return i;
    return -1;
}

static void compare_values(const char *name, const outcome *split, const outcome *one)
{
    int i = different_value(split, one);
    ck_assert_msg(i < 0, "%s: value %d is %.17g, not %.17g", name, i, split->value[i], one->value[i]);
}

/* Whether the gradients of one process change with the last digits of x. An operation as a maximum then chooses between
 * numbers that differ by rounding alone, and each number of ranks may choose differently. */
static bool gradients_depend_on_rounding(const net *one, const net *nudged)
{
    double difference = 0, largest = 0.2; /* of which compare_gradients takes 5 % at least */
    for (int i = 0; i < NET_LEAVES; i++) {
        if (!shard_grad(one->leaf[i]))
            continue;
        double *a = values_of(shard_grad(one->leaf[i])), *b = values_of(shard_grad(nudged->leaf[i]));
        for (int64_t k = 0; k < shard_numel(one->leaf[i]); k++) {
            difference = fmax(difference, fabs(a[k] - b[k]));
            largest = fmax(largest, fabs(a[k]));
        }
        free(a);
        free(b);
    }
    return difference > 1e-7 * 0.05 * largest;
}

static void nudge(shard_tensor *x)
{
    double *values = values_of(x);
    for (int64_t i = 0; i < shard_numel(x); i++)
        values[i] *= 1 + 1e-12 * (double)(i % 7 - 3);
    SHARD_NO_GRAD
    {
        check_ok(shard_copy_from_host(x, values, (size_t)shard_numel(x) * sizeof *values));
    }
    free(values);
}

static const struct {
    int data, expert, model;
} meshes[] = {{1, 1, 1}, {1, 1, 2}, {1, 1, 3}, {3, 1, 1}, {2, 1, 2}, {1, 2, 2}, {2, 2, 2}};
#define MESHES ((int)(sizeof meshes / sizeof *meshes))

static void equals_one_process(shard_group *world, void *context)
{
    const int *which = context;
    shard_cpu_set_threads(1); /* on tensors this small, threads only wait for each other */
    shard_mesh *mesh =
        shard_mesh_create(.axes = {
                              {"data", meshes[*which].data}, {"expert", meshes[*which].expert}, {"model", meshes[*which].model}});
    SHARD_SCOPE
    {
        net one = make_net(NULL, NULL, SHARD_FLOAT64);
        net nudged = make_net(NULL, NULL, SHARD_FLOAT64);
        net split = make_net(shard_mesh_model_group(mesh), shard_mesh_data_group(mesh), SHARD_FLOAT64);
        split.expert = shard_mesh_group(mesh, "expert");
        int left_out = 0;
        nudge(nudged.leaf[NET_X]);
        int first = first_network + (networks > 1 ? *which * networks : 0); /* each mesh has others; one network is on all */
        for (int i = first; i < first + networks; i++) {
            SHARD_SCOPE
            {
                char *name = shard_format("SHARD_TEST_SEED=%llu, network %d", seed, i);
                outcome alone = run_network(name, &one, i);
                outcome other = run_network(name, &nudged, i);
                outcome together = run_network(name, &split, i);
                if (overflows(&alone) || different_value(&other, &alone) >= 0 || gradients_depend_on_rounding(&one, &nudged)) {
                    left_out++;
                } else {
                    compare_values(name, &together, &alone);
                    compare_gradients(name, &split, &one, 1e-6);
                }
                free(name);
            }
        }
        ck_assert_msg(left_out <= 1 + networks / 100, "%d of %d networks overflow or depend on rounding", left_out, networks);
        if (shard_group_size(world) > 1 && shard_group_rank(world) == 0) /* else one process is compared with itself */
            printf("seed: %llu\ncases: %d\n", seed, networks - left_out);
        free_net(&one);
        free_net(&nudged);
        free_net(&split);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_equals_one_process)
{
    int ranks = meshes[_i].data * meshes[_i].expert * meshes[_i].model;
    run_job_of((ranks_run){.size = ranks, .body = equals_one_process, .context = &_i, .deadline = 50 + networks / 2.0});
}
END_TEST

int main(int argc, char **argv)
{
    networks = argc > 1 ? atoi(argv[1]) : networks;
    first_network = argc > 2 ? atoi(argv[2]) : first_network;
    if (getenv("SHARD_TEST_SEED"))
        seed = strtoull(getenv("SHARD_TEST_SEED"), NULL, 10);
    Suite *suite = suite_create("random networks");
    TCase *tcase = test_case(suite, "random networks");
    tcase_set_timeout(tcase, 60 + networks / 2.0);
    tcase_add_loop_test(tcase, test_equals_one_process, 0, MESHES);
    return test_run(suite);
}
