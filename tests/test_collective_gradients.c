/*
 * Collectives with gradients and the operations between them: whatever a network is made
 * of, on any number of ranks, its gradients are those of one process, where copies,
 * gathers, scatters and sums do nothing.
 */
#include "support/job.h"

#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 6, FEATURES = 5 };

/* What the operations take beside x; ROW and COLUMN are split over the model group. */
enum { X, GAIN, BIAS, SQUARE, TABLE, KERNEL, NORM_WEIGHT, NORM_BIAS, HAND, COLUMN, COLUMN_BIAS, ROW, ROW_BIAS, LEAVES };

typedef struct net {
    shard_group *model, *data; /* NULL: one process */
    shard_module *column, *row;
    shard_tensor *leaf[LEAVES];
} net;

static net make_net(shard_group *model, shard_group *data, shard_dtype dtype)
{
    static const shard_shape shapes[] = {
        [X] = {.ndim = 2, .dim = {ROWS, FEATURES}},        [GAIN] = {.ndim = 1, .dim = {FEATURES}},
        [BIAS] = {.ndim = 1, .dim = {FEATURES}},           [SQUARE] = {.ndim = 2, .dim = {FEATURES, FEATURES}},
        [TABLE] = {.ndim = 2, .dim = {ROWS, FEATURES}},    [KERNEL] = {.ndim = 4, .dim = {FEATURES, FEATURES, 1, 1}},
        [NORM_WEIGHT] = {.ndim = 1, .dim = {FEATURES}},    [NORM_BIAS] = {.ndim = 1, .dim = {FEATURES}},
        [HAND] = {.ndim = 2, .dim = {FEATURES, FEATURES}},
    };
    net n = {.model = model, .data = data};
    n.column = shard_nn_parallel_linear(FEATURES, FEATURES, SHARD_SPLIT_COLUMN, model, .dtype = dtype);
    n.row = shard_nn_parallel_linear(FEATURES, FEATURES, SHARD_SPLIT_ROW, model, .dtype = dtype);
    n.leaf[COLUMN] = shard_module_tensor(n.column, "weight");
    n.leaf[COLUMN_BIAS] = shard_module_tensor(n.column, "bias");
    n.leaf[ROW] = shard_module_tensor(n.row, "weight");
    n.leaf[ROW_BIAS] = shard_module_tensor(n.row, "bias");
    for (int i = 0; i < COLUMN; i++) {
        bool wide = i == NORM_WEIGHT || i == NORM_BIAS;
        n.leaf[i] = shard_empty(shapes[i], .dtype = wide && dtype != SHARD_FLOAT64 ? SHARD_FLOAT32 : dtype);
    }
    for (int i = 0; i < LEAVES; i++) {
        shard_tensor *values = made_up(shard_tensor_shape(n.leaf[i]), 0, SHARD_FLOAT64);
        values->placement = n.leaf[i]->placement;
        fill_made_up(values, 100 + (uint64_t)i);
        values = shard_cast(values, shard_tensor_dtype(n.leaf[i]));
        SHARD_NO_GRAD
        {
            check_ok(shard_copy_from_host(n.leaf[i], shard_tensor_memory(values),
                                          (size_t)shard_numel(values) * shard_dtype_size(values->dtype)));
        }
        shard_set_requires_grad(n.leaf[i], true);
    }
    return n;
}

static void free_net(const net *n)
{
    shard_module_destroy(n->column);
    shard_module_destroy(n->row);
}

/* ---- operations: [rows, FEATURES] to the same ---- */

static shard_tensor *none(const net *n, shard_tensor *x)
{
    (void)n;
    return x;
}

#define UNARY(name, call)                                                                                                        \
    static shard_tensor *name(const net *n, shard_tensor *x)                                                                     \
    {                                                                                                                            \
        (void)n;                                                                                                                 \
        return call;                                                                                                             \
    }
UNARY(relu, shard_relu(x))
UNARY(gelu, shard_gelu(x))
UNARY(gelu_tanh, shard_gelu_tanh(x))
UNARY(scale, shard_scale(x, -1.5))
UNARY(square, shard_mul(x, x))
UNARY(two_uses, shard_add(x, shard_gelu(x)))
UNARY(softmax, shard_softmax(x))
UNARY(log_softmax, shard_log_softmax(x))
UNARY(dropout, shard_dropout(x, 0.3))
UNARY(mean, shard_mul(x, shard_mean(x)))
UNARY(sum, shard_mul(x, shard_sum(x)))
UNARY(reshape, shard_reshape(shard_flatten(x, 0, -1), shard_tensor_shape(x)))
UNARY(transpose, shard_transpose(shard_gelu(shard_transpose(x, 0, 1)), 0, 1))
UNARY(narrow, shard_mul(x, shard_mean(shard_narrow(x, 0, 1))))
UNARY(cast, shard_cast(shard_gelu(shard_cast(x, SHARD_FLOAT32)), shard_tensor_dtype(x)))
UNARY(add, shard_add(x, n->leaf[BIAS]))
UNARY(mul, shard_mul(x, n->leaf[GAIN]))
UNARY(linear, shard_linear(x, n->leaf[SQUARE], n->leaf[BIAS]))
UNARY(matmul, shard_matmul(x, n->leaf[SQUARE]))
UNARY(layer_norm, shard_layer_norm(x, n->leaf[NORM_WEIGHT], n->leaf[NORM_BIAS], 0.1))
UNARY(batch_norm, shard_batch_norm(x, NULL, NULL, n->leaf[NORM_WEIGHT], n->leaf[NORM_BIAS], .training = true, .eps = 0.1))

static shard_tensor *labels(const shard_tensor *x)
{
    static const int64_t label[] = {4, 0, 2, 1, 1, 3};
    return shard_from_host(label, SHARD_SHAPE(x->shape.dim[0]), .dtype = SHARD_INT64);
}
UNARY(embedding, shard_mul(x, shard_embedding(n->leaf[TABLE], labels(x), -1)))
UNARY(cross_entropy, shard_mul(x, shard_cross_entropy(x, labels(x))))

static shard_tensor *cube_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)inputs;
    check_ok(shard_custom_op_save(op, 0, input[0]));
    return shard_mul(shard_mul(input[0], input[0]), input[0]);
}

static shard_status cube_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)inputs;
    shard_tensor *x = shard_custom_op_saved(op, 0);
    dx[0] = shard_mul(shard_scale(shard_mul(x, x), 3), dy);
    return shard_last_status();
}

static const shard_custom_op_type cube_type = {.name = "cube", .forward = cube_forward, .backward = cube_backward};
UNARY(own_operation, shard_custom_op_apply(&cube_type, NULL, x))

static shard_tensor *as_image(shard_tensor *x)
{
    return shard_reshape(x, SHARD_SHAPE(1, x->shape.dim[0], 1, FEATURES));
}
UNARY(conv2d, shard_reshape(shard_conv2d(as_image(x), n->leaf[KERNEL], n->leaf[BIAS]), shard_tensor_shape(x)))
UNARY(max_pool, shard_reshape(shard_max_pool2d(as_image(x), 3, .stride = 1, .padding = 1), shard_tensor_shape(x)))
UNARY(avg_pool, shard_reshape(shard_avg_pool2d(as_image(x), 3, .stride = 1, .padding = 1), shard_tensor_shape(x)))

/* Which dimension of a tensor may be split for it. */
enum { BY_ROWS = 1, BY_COLUMNS = 2, BY_BOTH = 3 };

static const struct {
    const char *name;
    shard_tensor *(*make)(const net *, shard_tensor *x);
    int split;
} operations[] = {
    {"relu", relu, BY_BOTH},
    {"gelu", gelu, BY_BOTH},
    {"gelu_tanh", gelu_tanh, BY_BOTH},
    {"scale", scale, BY_BOTH},
    {"a square", square, BY_BOTH},
    {"two uses", two_uses, BY_BOTH},
    {"softmax", softmax, BY_ROWS},
    {"log_softmax", log_softmax, BY_ROWS},
    {"dropout", dropout, 0},
    {"mean", mean, 0},
    {"sum", sum, 0},
    {"reshape", reshape, 0},
    {"transpose", transpose, BY_BOTH},
    {"narrow", narrow, 0},
    {"cast", cast, BY_BOTH},
    {"add", add, BY_ROWS},
    {"mul", mul, BY_ROWS},
    {"linear", linear, BY_ROWS},
    {"matmul", matmul, BY_ROWS},
    {"layer_norm", layer_norm, BY_ROWS},
    {"batch_norm", batch_norm, 0},
    {"embedding", embedding, 0},
    {"cross_entropy", cross_entropy, 0},
    {"conv2d", conv2d, 0},
    {"max_pool", max_pool, 0},
    {"avg_pool", avg_pool, 0},
    {"an own operation", own_operation, BY_BOTH},
};
#define OPERATIONS ((int)(sizeof operations / sizeof *operations))

/* ---- where an operation stands: the others do nothing ---- */

enum { BEFORE, BETWEEN, INSIDE, AFTER, POSITIONS };

typedef struct step {
    int operation, position, copies, split, end;
} step;

static shard_tensor *operate(const step *s, int position, const net *n, shard_tensor *x)
{
    return (s->position == position ? operations[s->operation].make : none)(n, x);
}

/* ---- what is split over the model group, and comes together again ---- */

static shard_range own(int64_t size, const shard_group *group)
{
    return shard_split_range(size, shard_group_size(group), shard_group_rank(group));
}

static shard_tensor *own_rows(shard_tensor *x, const shard_group *group)
{
    shard_range rows = own(x->shape.dim[0], group);
    return shard_narrow(x, rows.start, rows.size);
}

static shard_tensor *inside(const step *s, const net *n, shard_tensor *x)
{
    return operate(s, INSIDE, n, x);
}

static shard_tensor *columns(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather(inside(s, n, shard_linear(x, n->leaf[COLUMN], n->leaf[COLUMN_BIAS])), -1, n->model);
}

static shard_tensor *parallel_columns(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather(inside(s, n, shard_parallel_linear(x, n->leaf[COLUMN], n->leaf[COLUMN_BIAS])), -1, n->model);
}

static shard_tensor *column_module(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather(inside(s, n, shard_forward(n->column, x)), -1, n->model);
}

static shard_tensor *parallel_rows(const step *s, const net *n, shard_tensor *x)
{
    return shard_parallel_linear(inside(s, n, shard_scatter(x, -1, n->model)), n->leaf[ROW], n->leaf[ROW_BIAS]);
}

static shard_tensor *row_module(const step *s, const net *n, shard_tensor *x)
{
    return shard_forward(n->row, inside(s, n, shard_forward(n->column, x)));
}

static shard_tensor *scattered_columns(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather(inside(s, n, shard_scatter(x, -1, n->model)), -1, n->model);
}

static shard_tensor *scattered_middle(const step *s, const net *n, shard_tensor *x)
{
    x = shard_scatter(shard_reshape(x, SHARD_SHAPE(ROWS, FEATURES, 1)), 1, n->model);
    return shard_reshape(shard_gather(inside(s, n, x), 1, n->model), SHARD_SHAPE(ROWS, FEATURES));
}

static shard_tensor *scattered_rows(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather(inside(s, n, shard_scatter(x, 0, n->model)), 0, n->model);
}

/* By hand: no tensor says that it is split. */
static shard_tensor *hand_columns(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather(inside(s, n, shard_linear(x, own_rows(n->leaf[HAND], n->model), NULL)), -1, n->model);
}

static shard_tensor *hand_rows(const step *s, const net *n, shard_tensor *x)
{
    return shard_gather(inside(s, n, own_rows(x, n->model)), 0, n->model);
}

static shard_tensor *hand_summands(const step *s, const net *n, shard_tensor *x)
{
    return shard_reduce(shard_scale(inside(s, n, x), 1.0 / shard_group_size(n->model)), n->model);
}

static shard_tensor *split_sum(const step *s, const net *n, shard_tensor *x)
{
    shard_tensor *part = inside(s, n, shard_linear(x, n->leaf[COLUMN], n->leaf[COLUMN_BIAS]));
    return shard_mul(x, shard_reduce(shard_scale(shard_sum(part), 0.25), n->model));
}

static shard_tensor *split_loss(const step *s, const net *n, shard_tensor *x)
{
    shard_tensor *logits = inside(s, n, shard_linear(x, n->leaf[COLUMN], n->leaf[COLUMN_BIAS]));
    return shard_mul(x, shard_cross_entropy(logits, labels(x)));
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
    int split; /* what is split between; 0: only some operations are the same there */
} splits[] = {
    {"shard_linear", columns, BY_COLUMNS},
    {"shard_parallel_linear", parallel_columns, BY_COLUMNS},
    {"a COLUMN module", column_module, BY_COLUMNS},
    {"a ROW layer", parallel_rows, BY_COLUMNS},
    {"COLUMN and ROW modules", row_module, BY_COLUMNS},
    {"scattered columns", scattered_columns, BY_COLUMNS},
    {"a scattered middle dimension", scattered_middle, BY_COLUMNS},
    {"scattered rows", scattered_rows, BY_ROWS},
    {"columns by hand", hand_columns, BY_COLUMNS},
    {"rows by hand", hand_rows, BY_ROWS},
    {"summands by hand", hand_summands, BY_ROWS},
    {"a sum of columns", split_sum, BY_COLUMNS},
    {"a sharded loss", split_loss, BY_COLUMNS},
    {"columns and a residual", residual, BY_COLUMNS},
    {"three uses", three_uses, BY_BOTH},
};
#define SPLITS ((int)(sizeof splits / sizeof *splits))

/* ---- copies before it ---- */

static shard_tensor *no_copy(const step *s, const net *n, shard_tensor *x)
{
    return operate(s, BETWEEN, n, x);
}

static shard_tensor *one_copy(const step *s, const net *n, shard_tensor *x)
{
    return operate(s, BETWEEN, n, shard_copy(x, n->model));
}

static shard_tensor *nested_copies(const step *s, const net *n, shard_tensor *x)
{
    return shard_copy(operate(s, BETWEEN, n, shard_copy(x, n->model)), n->model);
}

static shard_tensor *adjacent_copies(const step *s, const net *n, shard_tensor *x)
{
    return operate(s, BETWEEN, n, shard_copy(shard_copy(x, n->model), n->model));
}

static shard_tensor *model_and_data(const step *s, const net *n, shard_tensor *x)
{
    return shard_copy(operate(s, BETWEEN, n, shard_copy(x, n->model)), n->data);
}

static shard_tensor *data_and_model(const step *s, const net *n, shard_tensor *x)
{
    return shard_copy(operate(s, BETWEEN, n, shard_copy(x, n->data)), n->model);
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

/* ---- the loss, one of both groups ---- */

enum { PLAIN, LOSSES_SUMMED, ROWS_SCATTERED, ROWS_BY_HAND, ENDS };

static shard_tensor *loss_of(const step *s, const net *n)
{
    shard_tensor *y = copies[s->copies].make(s, n, operate(s, BEFORE, n, n->leaf[X]));
    y = operate(s, AFTER, n, splits[s->split].make(s, n, y));
    if (s->end == ROWS_SCATTERED)
        y = shard_gather(shard_scatter(y, 0, n->data), 0, n->data);
    if (s->end == ROWS_BY_HAND)
        y = shard_gather(own_rows(y, n->data), 0, n->data);
    shard_tensor *weights = shard_cast(made_up(SHARD_SHAPE(ROWS, FEATURES), 7, SHARD_FLOAT64), shard_tensor_dtype(y));
    shard_tensor *loss = shard_sum(shard_mul(y, weights));
    return s->end == LOSSES_SUMMED ? shard_reduce(shard_scale(loss, 1.0 / shard_group_size(n->data)), n->data) : loss;
}

static void run_step(const step *s, const net *n)
{
    shard_manual_seed(5);
    for (int i = 0; i < LEAVES; i++)
        shard_zero_grad(n->leaf[i]);
    shard_tensor *loss = loss_of(s, n);
    ck_assert_msg(loss && shard_backward(loss) == SHARD_OK, "%s", shard_last_error());
}

static double largest_of(const double *values, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(values[i]));
    return largest;
}

static double largest_gradient(const net *n)
{
    double largest = 0;
    for (int i = 0; i < LEAVES; i++) {
        if (!shard_grad(n->leaf[i]))
            continue;
        double *values = values_of(shard_grad(n->leaf[i]));
        largest = fmax(largest, largest_of(values, shard_numel(n->leaf[i])));
        free(values);
    }
    return largest;
}

/* The gradient on the mesh, pending sums taken, to tolerance times its largest element or, if that is but rounding, `least`. */
static void compare(const step *s, shard_tensor *leaf, shard_tensor *expected, int index, double least, double tolerance)
{
    shard_tensor *gradient = shard_grad(leaf);
    if (!shard_grad(expected)) {
        ck_assert_ptr_null(gradient);
        return;
    }
    ck_assert_ptr_nonnull(gradient);
    shard_contribution pending = gradient->contribution;
    for (int i = 0; i < pending.count; i++)
        check_ok(shard_all_reduce(gradient, SHARD_SUM, pending.group[i]));
    double *values = values_of(shard_grad(expected));
    double largest = fmax(largest_of(values, shard_numel(expected)), least);
    char *name = shard_format("%s %s, %s, %s, end %d: leaf %d / %g", operations[s->operation].name,
                              (const char *[]){"before", "between", "inside", "after"}[s->position], copies[s->copies].name,
                              splits[s->split].name, s->end, index, largest);
    /* check_part adds 1 to what is compared. */
    for (int64_t i = 0; i < shard_numel(expected); i++)
        values[i] /= largest;
    shard_tensor *wide = shard_cast(shard_detach(gradient), SHARD_FLOAT64);
    wide = shard_scale(wide, 1 / largest);
    wide->placement = gradient->placement;
    check_part_at(__FILE__, __LINE__, name, wide, values, tolerance);
    free(values);
    free(name);
}

static bool fits(const step *s)
{
    return s->position != INSIDE || (operations[s->operation].split & splits[s->split].split) == splits[s->split].split;
}

/* How a job is called. */
typedef struct suite_of {
    int data, model;
    shard_dtype dtype;
    double tolerance;
    bool every; /* position of an operation; else one of them */
} suite_of;

static void run_on_mesh(const suite_of *of, const step *s, const net *one, const net *split)
{
    if (!fits(s))
        return;
    SHARD_SCOPE
    {
        run_step(s, one);
        run_step(s, split);
        double tolerance = operations[s->operation].make == cast ? fmax(of->tolerance, 1e-5) : of->tolerance;
        double least = 0.05 * largest_gradient(one);
        for (int i = 0; i < LEAVES; i++)
            compare(s, split->leaf[i], one->leaf[i], i, least, tolerance);
    }
}

/* Every way to a loss, and a position of the operation for each, or all. */
static void run_ends(const suite_of *of, step *s, const net *one, const net *split)
{
    int first = of->data > 1 && copies[s->copies].data ? LOSSES_SUMMED : PLAIN, last = of->data > 1 ? ENDS - 1 : PLAIN;
    for (s->end = first; s->end <= last; s->end++)
        for (s->position = 0; s->position < POSITIONS; s->position++)
            if (of->every || s->position == (s->operation + s->copies + s->split + s->end) % POSITIONS)
                run_on_mesh(of, s, one, split);
}

static void equals_one_process(shard_group *world, void *context)
{
    (void)world;
    const suite_of *of = context;
    shard_mesh *mesh = shard_mesh_create(.model = of->model);
    SHARD_SCOPE
    {
        net one = make_net(NULL, NULL, of->dtype);
        net split = make_net(shard_mesh_model_group(mesh), shard_mesh_data_group(mesh), of->dtype);
        step s;
        for (s.operation = 0; s.operation < OPERATIONS; s.operation++)
            for (s.copies = 0; s.copies < COPIES; s.copies++)
                for (s.split = 0; s.split < SPLITS; s.split++)
                    run_ends(of, &s, &one, &split);
        free_net(&one);
        free_net(&split);
    }
    shard_mesh_destroy(mesh);
}

static suite_of suites[] = {
    {1, 1, SHARD_FLOAT64, 1e-12, false}, {1, 2, SHARD_FLOAT64, 1e-12, false}, {1, 3, SHARD_FLOAT64, 1e-12, false},
    {2, 2, SHARD_FLOAT64, 1e-12, false}, {1, 2, SHARD_BFLOAT16, 0.1, false},  {1, 3, SHARD_FLOAT16, 0.1, false},
};
#define SUITES ((int)(sizeof suites / sizeof *suites))

START_TEST(test_equals_one_process)
{
    run_job(suites[_i].data * suites[_i].model, equals_one_process, &suites[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collective gradients");
    TCase *tcase = test_case(suite, "collective gradients");
    tcase_add_loop_test(tcase, test_equals_one_process, 0, SUITES);
    return test_run(suite);
}
