/*
 * A network on a mesh of three axes: its batch is split over two or all of them, its last layer over one.
 * After a backward under data parallel the gradients are those of one process on the whole batch. The last layer's loss is of
 * its logits or without them.
 */
#include "support/job.h"

#include <stdlib.h>

enum { ROWS = 2, FEATURES = 5, HIDDEN = 6, CLASSES = 7, PARAMETERS = 3 };

/* How the rows reach the last layer, which is split by classes over "model". */
typedef enum head_kind {
    ROWS_LOCAL,         /* the ranks of a model group have the same rows */
    ROWS_FROM_MODEL,    /* each rank has rows of its own, gathered along "model" */
    ROWS_FROM_EXPERT,   /* rows are gathered along another axis than that of the classes */
    LOSSES_FROM_EXPERT, /* the mean over that axis is a part of the loss */
    HEADS
} head_kind;

/* The loss on the mesh. On one process it is that of logits. */
typedef enum loss_kind { OF_LOGITS, OF_LINEAR, BINARY_OF_LINEAR, LOSSES } loss_kind;

typedef struct training_kind {
    head_kind head;
    loss_kind loss;
    int size[3]; /* of the axes "data", "expert" and "model" */
} training_kind;

/* Axes of one size, and of three: a factor of two other axes is another one then. */
static const int sizes[][3] = {{2, 2, 2}, {1, 2, 3}};
enum { SIZES = sizeof sizes / sizeof *sizes };

static const char *const names[PARAMETERS] = {"hidden.weight", "head.weight", "head.bias"};

static shard_tensor *forward(shard_tensor *x, shard_tensor *const p[PARAMETERS])
{
    return shard_gelu(shard_linear(x, p[0], NULL));
}

static shard_tensor *head(shard_tensor *h, shard_tensor *const p[PARAMETERS])
{
    return shard_parallel_linear(h, p[1], p[2]);
}

static int64_t label_of(int64_t row)
{
    return row * 5 % CLASSES;
}

static shard_tensor *labels_from(int64_t start, int64_t count)
{
    int64_t labels[8 * ROWS];
    for (int64_t i = 0; i < count; i++)
        labels[i] = label_of(start + i);
    return shard_from_host(labels, SHARD_SHAPE(count), .dtype = SHARD_INT64);
}

/* Two classes of each row: that of its label, and another one. */
static shard_tensor *pairs_from(int64_t start, int64_t count)
{
    int64_t pair[4 * 8 * ROWS];
    for (int64_t i = 0; i < count; i++) {
        int64_t label = label_of(start + i), other = (label + 2) % CLASSES;
        pair[2 * i] = pair[2 * i + 1] = i;
        pair[2 * count + 2 * i] = label < other ? label : other;
        pair[2 * count + 2 * i + 1] = label < other ? other : label;
    }
    return shard_from_host(pair, SHARD_SHAPE(2, 2 * count), .dtype = SHARD_INT64);
}

static shard_tensor *loss_of(loss_kind kind, bool one, shard_tensor *h, shard_tensor *const p[], int64_t start, int64_t count)
{
    if (kind == BINARY_OF_LINEAR)
        return one ? shard_binary_cross_entropy_with_logits(head(h, p), pairs_from(start, count))
                   : shard_linear_binary_cross_entropy(h, p[1], p[2], pairs_from(start, count));
    return one || kind == OF_LOGITS ? shard_cross_entropy(head(h, p), labels_from(start, count))
                                    : shard_linear_cross_entropy(h, p[1], p[2], labels_from(start, count));
}

static shard_tensor *classes_of(shard_shape whole, uint64_t seed, shard_group *model)
{
    shard_range range = shard_split_range(CLASSES, shard_group_size(model), shard_group_rank(model));
    shard_shape local = whole;
    local.dim[0] = range.size;
    shard_tensor *part = shard_as_split(shard_empty(local, .dtype = SHARD_FLOAT64), 0, model, range.start, CLASSES);
    fill_made_up(part, seed);
    shard_set_requires_grad(part, true);
    return part;
}

static void on_one_process(loss_kind kind, int64_t rows, shard_tensor *p[PARAMETERS])
{
    p[0] = made_up_leaf(SHARD_SHAPE(HIDDEN, FEATURES), 1, SHARD_FLOAT64);
    p[1] = made_up_leaf(SHARD_SHAPE(CLASSES, HIDDEN), 2, SHARD_FLOAT64);
    p[2] = made_up_leaf(SHARD_SHAPE(CLASSES), 3, SHARD_FLOAT64);
    shard_tensor *x = made_up(SHARD_SHAPE(rows, FEATURES), 4, SHARD_FLOAT64);
    check_ok(shard_backward(loss_of(kind, true, forward(x, p), p, 0, rows)));
}

static shard_tensor *loss_on_mesh(training_kind how, const shard_mesh *mesh, int64_t parts, int64_t part, shard_tensor *const p[])
{
    head_kind kind = how.head;
    shard_group *model = shard_mesh_group(mesh, "model"), *expert = shard_mesh_group(mesh, "expert");
    int64_t start = part * ROWS, count = ROWS;
    shard_tensor *x = shard_narrow(made_up(SHARD_SHAPE(parts * ROWS, FEATURES), 4, SHARD_FLOAT64), 0, start, ROWS);
    shard_tensor *h = forward(x, p);
    shard_group *over = kind == ROWS_FROM_MODEL ? model : kind == ROWS_FROM_EXPERT ? expert : NULL;
    if (over) {
        h = shard_gather_from_group(h, 0, over);
        start -= shard_group_rank(over) * ROWS;
        count *= shard_group_size(over);
    }
    shard_tensor *loss = loss_of(how.loss, false, h, p, start, count);
    if (kind == LOSSES_FROM_EXPERT)
        loss = shard_scale(shard_reduce_from_group(loss, expert), 1.0 / shard_group_size(expert));
    return loss;
}

static void trains_as_one(shard_group *world, void *context)
{
    const training_kind *how = context;
    head_kind kind = how->head;
    const int *size = how->size;
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", size[0]}, {"expert", size[1]}, {"model", size[2]}});
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    int64_t part = shard_mesh_coordinate(mesh, "data") * size[1] + shard_mesh_coordinate(mesh, "expert"),
            parts = size[0] * size[1];
    if (kind == ROWS_FROM_MODEL) {
        part = shard_group_rank(world);
        parts = shard_group_size(world);
    }
    SHARD_SCOPE
    {
        shard_group *model = shard_mesh_group(mesh, "model");
        shard_tensor *one[PARAMETERS],
            *p[PARAMETERS] = {made_up_leaf(SHARD_SHAPE(HIDDEN, FEATURES), 1, SHARD_FLOAT64),
                              classes_of(SHARD_SHAPE(CLASSES, HIDDEN), 2, model), classes_of(SHARD_SHAPE(CLASSES), 3, model)};
        on_one_process(how->loss, parts * ROWS, one);
        shard_tensors *all = shard_tensors_create();
        for (int i = 0; i < PARAMETERS; i++)
            check_ok(shard_tensors_add(all, names[i], p[i]));
        shard_data_parallel *parallel = shard_data_parallel_create(all);
        ck_assert_msg(parallel != NULL, "%s", shard_last_error());
        check_ok(shard_backward(loss_on_mesh(*how, mesh, parts, part, p)));
        for (int i = 0; i < PARAMETERS; i++) {
            double *wanted = values_of(shard_grad(one[i]));
            check_part_at(__FILE__, __LINE__, names[i], shard_grad(p[i]), wanted, 1e-12);
            free(wanted);
        }
        shard_data_parallel_destroy(parallel);
        shard_tensors_destroy(all);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_trains_as_one)
{
    const int *size = sizes[_i / HEADS / LOSSES];
    training_kind how = {(head_kind)(_i % HEADS), (loss_kind)(_i / HEADS % LOSSES), {size[0], size[1], size[2]}};
    run_job(size[0] * size[1] * size[2], trains_as_one, &how);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mesh_training");
    TCase *tcase = test_case(suite, "mesh_training");
    tcase_add_loop_test(tcase, test_trains_as_one, 0, HEADS * LOSSES * SIZES);
    return test_run(suite);
}
