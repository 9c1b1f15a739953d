/*
 * Collectives with gradients and the operations between them: whatever a network is made
 * of, on any number of ranks, its gradients are those of one process, where copies,
 * gathers, scatters and sums do nothing.
 */
#include "support/network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static shard_tensor *none(const net *n, shard_tensor *x)
{
    (void)n;
    return x;
}

/* ---- where an operation stands: the others do nothing ---- */

enum { BEFORE, BETWEEN, INSIDE, AFTER, POSITIONS };

typedef struct step {
    int operation, position, copies, split, end;
} step;

static shard_tensor *operate(const step *s, int position, const net *n, shard_tensor *x)
{
    return (s->position == position ? net_operations[s->operation].make : none)(n, x);
}

/* ---- what is split over the model group, and comes together again ---- */

static shard_tensor *inside(const step *s, const net *n, shard_tensor *x)
{
    return operate(s, INSIDE, n, x);
}

static shard_tensor *columns(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather_from_group(inside(s, n, shard_linear(x, n->leaf[NET_COLUMN], n->leaf[NET_COLUMN_BIAS])), -1, n->model);
}

static shard_tensor *parallel_columns(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather_from_group(inside(s, n, shard_parallel_linear(x, n->leaf[NET_COLUMN], n->leaf[NET_COLUMN_BIAS])), -1,
                                   n->model);
}

static shard_tensor *column_module(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather_from_group(inside(s, n, shard_forward(n->column, x)), -1, n->model);
}

static shard_tensor *parallel_rows(const step *s, const net *n, shard_tensor *x)
{
    return shard_parallel_linear(inside(s, n, shard_scatter_to_group(x, -1, n->model)), n->leaf[NET_ROW], n->leaf[NET_ROW_BIAS]);
}

static shard_tensor *row_module(const step *s, const net *n, shard_tensor *x)
{
    return shard_forward(n->row, inside(s, n, shard_forward(n->column, x)));
}

static shard_tensor *scattered_columns(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather_from_group(inside(s, n, shard_scatter_to_group(x, -1, n->model)), -1, n->model);
}

static shard_tensor *scattered_middle(const step *s, const net *n, shard_tensor *x)
{
    x = shard_scatter_to_group(shard_reshape(x, SHARD_SHAPE(NET_ROWS, NET_FEATURES, 1)), 1, n->model);
    return shard_reshape(shard_gather_from_group(inside(s, n, x), 1, n->model), SHARD_SHAPE(NET_ROWS, NET_FEATURES));
}

static shard_tensor *scattered_rows(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather_from_group(inside(s, n, shard_scatter_to_group(x, 0, n->model)), 0, n->model);
}

/* By hand: no tensor says that it is split. */
static shard_tensor *hand_columns(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather_from_group(inside(s, n, shard_linear(x, own_rows(n->leaf[NET_HAND], n->model), NULL)), -1, n->model);
}

static shard_tensor *hand_rows(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather_from_group(inside(s, n, own_rows(x, n->model)), 0, n->model);
}

static shard_tensor *hand_summands(const step *s, const net *n, shard_tensor *x)
{
    return shard_reduce_from_group(shard_scale(inside(s, n, x), 1.0 / shard_group_size(n->model)), n->model);
}

static shard_tensor *split_sum(const step *s, const net *n, shard_tensor *x)
{
    shard_tensor *part = inside(s, n, shard_linear(x, n->leaf[NET_COLUMN], n->leaf[NET_COLUMN_BIAS]));
    return shard_mul(x, shard_reduce_from_group(shard_scale(shard_sum(part), 0.25), n->model));
}

static shard_tensor *split_loss(const step *s, const net *n, shard_tensor *x)
{
    shard_tensor *logits = inside(s, n, shard_linear(x, n->leaf[NET_COLUMN], n->leaf[NET_COLUMN_BIAS]));
    return shard_mul(x, shard_cast(shard_cross_entropy(logits, net_labels(x)), shard_tensor_dtype(x)));
}

static shard_tensor *residual(const step *s, const net *n, shard_tensor *x)
{
    return shard_add(columns(s, n, x), x);
}

static shard_tensor *three_uses(const step *s, const net *n, shard_tensor *x)
{
    return shard_add(shard_add(hand_columns(s, n, x), column_module(s, n, x)), shard_add(x, hand_rows(s, n, x)));
}

static const struct {
    const char *name;
    shard_tensor *(*make)(const step *, const net *, shard_tensor *x);
    int split;    /* what is split between */
    bool by_hand; /* and no placement says so */
} splits[] = {
    {"shard_linear", columns, BY_COLUMNS},
    {"shard_parallel_linear", parallel_columns, BY_COLUMNS},
    {"a COLUMN module", column_module, BY_COLUMNS},
    {"a ROW layer", parallel_rows, BY_COLUMNS},
    {"COLUMN and ROW modules", row_module, BY_COLUMNS},
    {"scattered columns", scattered_columns, BY_COLUMNS},
    {"a scattered middle dimension", scattered_middle, BY_COLUMNS},
    {"scattered rows", scattered_rows, BY_ROWS},
    {"columns by hand", hand_columns, BY_COLUMNS, true},
    {"rows by hand", hand_rows, BY_ROWS},
    {"summands by hand", hand_summands, BY_ROWS},
    {"a sum of columns", split_sum, BY_COLUMNS},
    {"a sharded loss", split_loss, BY_COLUMNS},
    {"columns and a residual", residual, BY_COLUMNS},
    {"three uses", three_uses, BY_BOTH, true},
};
#define SPLITS ((int)(sizeof splits / sizeof *splits))

/* ---- copies before it ---- */

static shard_tensor *no_copy(const step *s, const net *n, shard_tensor *x)
{
    return operate(s, BETWEEN, n, x);
}

static shard_tensor *one_copy(const step *s, const net *n, shard_tensor *x)
{
    return operate(s, BETWEEN, n, shard_copy_to_group(x, n->model));
}

static shard_tensor *nested_copies(const step *s, const net *n, shard_tensor *x)
{
    return shard_copy_to_group(operate(s, BETWEEN, n, shard_copy_to_group(x, n->model)), n->model);
}

static shard_tensor *adjacent_copies(const step *s, const net *n, shard_tensor *x)
{
    return operate(s, BETWEEN, n, shard_copy_to_group(shard_copy_to_group(x, n->model), n->model));
}

static shard_tensor *model_and_data(const step *s, const net *n, shard_tensor *x)
{
    return shard_copy_to_group(operate(s, BETWEEN, n, shard_copy_to_group(x, n->model)), n->data);
}

static shard_tensor *data_and_model(const step *s, const net *n, shard_tensor *x)
{
    return shard_copy_to_group(operate(s, BETWEEN, n, shard_copy_to_group(x, n->data)), n->model);
}

static const struct {
    const char *name;
    shard_tensor *(*make)(const step *, const net *, shard_tensor *x);
    bool data;
} copies[] = {
    {"no copy", no_copy, false},
    {"a copy", one_copy, false},
    {"nested copies", nested_copies, false},
    {"adjacent copies", adjacent_copies, false},
    {"copies over model, data", model_and_data, true},
    {"copies over data, model", data_and_model, true},
};
#define COPIES ((int)(sizeof copies / sizeof *copies))

/* ---- the loss; the numbers of ends are in messages ---- */

enum { PLAIN, MODEL_ROWS_BY_HAND, LOSSES_SUMMED, ROWS_SCATTERED, ROWS_BY_HAND, ENDS };

static shard_tensor *loss_of(const step *s, const net *n)
{
    shard_tensor *y = copies[s->copies].make(s, n, operate(s, BEFORE, n, n->leaf[NET_X]));
    y = operate(s, AFTER, n, splits[s->split].make(s, n, y));
    if (s->end == ROWS_SCATTERED)
        y = shard_gather_from_group(shard_scatter_to_group(y, 0, n->data), 0, n->data);
    if (s->end == ROWS_BY_HAND)
        y = shard_gather_from_group(own_rows(y, n->data), 0, n->data);
    if (s->end == MODEL_ROWS_BY_HAND)
        y = shard_gather_from_group(own_rows(y, n->model), 0, n->model);
    shard_tensor *weights = shard_cast(made_up(SHARD_SHAPE(NET_ROWS, NET_FEATURES), 7, SHARD_FLOAT64), shard_tensor_dtype(y));
    shard_tensor *loss = shard_sum(shard_mul(y, weights));
    return s->end == LOSSES_SUMMED ? shard_reduce_from_group(shard_scale(loss, 1.0 / shard_group_size(n->data)), n->data) : loss;
}

static void run_step(const step *s, const net *n)
{
    shard_manual_seed(5);
    for (int i = 0; i < NET_LEAVES; i++)
        shard_zero_grad(n->leaf[i]);
    shard_tensor *loss = loss_of(s, n);
    ck_assert_msg(loss && shard_backward(loss) == SHARD_OK, "%s", shard_last_error());
}

/* How a job is called. */
typedef struct suite_of {
    int data, model;
    shard_dtype dtype;
    double tolerance;
    int part; /* of PARTS of the combinations; all with SHARD_TEST_EVERY=1 */
} suite_of;

enum { PARTS = 18 };

static bool tries_every(void)
{
    const char *text = getenv("SHARD_TEST_EVERY");
    return text && strcmp(text, "1") == 0;
}

static bool fits(const suite_of *of, const step *s)
{
    const net_operation *operation = &net_operations[s->operation];
    int split = splits[s->split].split, may = operation->split;
    if (operation->sharp && shard_dtype_size(of->dtype) == 2)
        return false;
    if (operation->placed && !splits[s->split].by_hand)
        may |= BY_COLUMNS;
    return s->position != INSIDE || (may & split) == split;
}

static void run_on_mesh(const suite_of *of, const step *s, const net *one, const net *split)
{
    if (!fits(of, s))
        return;
    SHARD_SCOPE
    {
        run_step(s, one);
        run_step(s, split);
        double tolerance = net_operations[s->operation].rounds ? fmax(of->tolerance, 1e-5) : of->tolerance;
        char *name = shard_format("%s %s, %s, %s, end %d", net_operations[s->operation].name,
                                  (const char *[]){"before", "between", "inside", "after"}[s->position], copies[s->copies].name,
                                  splits[s->split].name, s->end);
        compare_gradients(name, split, one, tolerance);
        free(name);
    }
}

/* Every way to a loss, with every position of the operation; or the suite's part of them, with one position each. */
static void run_ends(const suite_of *of, step *s, const net *one, const net *split)
{
    int first = of->data > 1 && copies[s->copies].data ? LOSSES_SUMMED : PLAIN,
        last = of->data > 1 ? ENDS - 1 : MODEL_ROWS_BY_HAND;
    for (s->end = first; s->end <= last; s->end++) {
        int number = s->operation + s->copies + s->split + s->end;
        int turn = number / PARTS + 2 * s->copies + s->split + 3 * s->end; /* so that each operation is at each position */
        for (s->position = 0; s->position < POSITIONS; s->position++)
            if (tries_every() || (number % PARTS == of->part && s->position == turn % POSITIONS))
                run_on_mesh(of, s, one, split);
    }
}

static void equals_one_process(shard_group *world, void *context)
{
    (void)world;
    const suite_of *of = context;
    shard_cpu_set_threads(1); /* on tensors this small, threads only wait for each other */
    shard_mesh *mesh = shard_mesh_create(.model = of->model);
    SHARD_SCOPE
    {
        net one = make_net(NULL, NULL, of->dtype);
        net split = make_net(shard_mesh_model_group(mesh), shard_mesh_data_group(mesh), of->dtype);
        step s;
        for (s.operation = 0; s.operation < net_operation_count; s.operation++)
            for (s.copies = 0; s.copies < COPIES; s.copies++)
                for (s.split = 0; s.split < SPLITS; s.split++)
                    run_ends(of, &s, &one, &split);
        free_net(&one);
        free_net(&split);
    }
    shard_mesh_destroy(mesh);
}

static suite_of suites[] = {
    {1, 1, SHARD_FLOAT64, 1e-12, 0}, {1, 2, SHARD_FLOAT64, 1e-12, 1}, {1, 3, SHARD_FLOAT64, 1e-12, 5},
    {2, 2, SHARD_FLOAT64, 1e-12, 4}, {1, 2, SHARD_BFLOAT16, 0.2, 7},  {1, 3, SHARD_FLOAT16, 0.05, 10},
};
#define SUITES ((int)(sizeof suites / sizeof *suites))

START_TEST(test_equals_one_process)
{
    run_job_of((ranks_run){.size = suites[_i].data * suites[_i].model,
                           .body = equals_one_process,
                           .context = &suites[_i],
                           .timeout = tries_every() ? "600" : NULL,
                           .deadline = tries_every() ? 600 : 0});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collective gradients");
    TCase *tcase = test_case(suite, "collective gradients");
    tcase_add_loop_test(tcase, test_equals_one_process, 0, SUITES);
    return test_run(suite);
}
