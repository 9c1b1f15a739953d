/*
 * TorchShard's own test cases (KaiyuYue/torchshard, tests/), done over in float32 with
 * its threshold of 1e-6: parallel linear layers by row and column, stacks of them,
 * self-attention, MLP and transformer block, the loss behind them in data parallel.
 * Embedding and serialization stand in test_embedding and test_state_dict.
 */
#include "support/job.h"

#include <math.h>
#include <stdlib.h>

#define THRESHOLD 1e-6

/* Gradients of parallel, by name, are (parts of) those of whole. */
static void check_gradients(shard_module *whole, shard_module *parallel)
{
    shard_tensors *one = shard_parameters(whole), *other = shard_parameters(parallel);
    for (int64_t i = 0; i < shard_tensors_count(one); i++) {
        double *gradient = values_of(shard_grad(shard_tensors_at(one, i)));
        check_part_at(__FILE__, __LINE__, shard_tensors_name(one, i), shard_grad(shard_tensors_at(other, i)), gradient, THRESHOLD);
        free(gradient);
    }
    shard_tensors_destroy(one);
    shard_tensors_destroy(other);
}

/* ---- test_nn.py, test_layers.py: layers, and stacks of them ---- */

/* Seven or fifteen layers 26 <-> 34, split as torchshard's dims None, 0, 1, -1 say. */
static const shard_split stacks[][15] = {
    {SHARD_SPLIT_NONE, SHARD_SPLIT_NONE, SHARD_SPLIT_NONE, SHARD_SPLIT_NONE, SHARD_SPLIT_NONE, SHARD_SPLIT_NONE, SHARD_SPLIT_NONE},
    {SHARD_SPLIT_COLUMN, SHARD_SPLIT_COLUMN, SHARD_SPLIT_COLUMN, SHARD_SPLIT_COLUMN, SHARD_SPLIT_COLUMN, SHARD_SPLIT_COLUMN,
     SHARD_SPLIT_COLUMN},
    {SHARD_SPLIT_ROW, SHARD_SPLIT_ROW, SHARD_SPLIT_ROW, SHARD_SPLIT_ROW, SHARD_SPLIT_ROW, SHARD_SPLIT_ROW, SHARD_SPLIT_ROW},
    {SHARD_SPLIT_NONE, SHARD_SPLIT_ROW, SHARD_SPLIT_ROW, SHARD_SPLIT_COLUMN, SHARD_SPLIT_NONE, SHARD_SPLIT_COLUMN, SHARD_SPLIT_ROW},
    {SHARD_SPLIT_ROW, SHARD_SPLIT_ROW, SHARD_SPLIT_COLUMN, SHARD_SPLIT_NONE, SHARD_SPLIT_COLUMN, SHARD_SPLIT_ROW, SHARD_SPLIT_ROW,
     SHARD_SPLIT_COLUMN, SHARD_SPLIT_NONE, SHARD_SPLIT_COLUMN, SHARD_SPLIT_COLUMN, SHARD_SPLIT_ROW, SHARD_SPLIT_NONE,
     SHARD_SPLIT_ROW, SHARD_SPLIT_COLUMN},
};
enum { STACKS = sizeof stacks / sizeof *stacks };

static shard_tensor *through_stack(shard_module *stack, shard_tensor *x, shard_group *group)
{
    for (int i = 0; i < shard_module_child_count(stack); i++) {
        x = shard_forward(shard_module_child_at(stack, i), x);
        if (shard_tensor_placement(x).kind == SHARD_SPLIT)
            x = shard_gather_from_group(x, -1, group);
    }
    return x;
}

static void stacks_layers(shard_group *world, void *context)
{
    int which = *(const int *)context, layers = which == STACKS - 1 ? 15 : 7;
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(world));
    shard_group *group = shard_mesh_model_group(mesh);
    int64_t sizes[] = {26, 34};
    shard_module *whole[15], *parallel[15];
    shard_manual_seed(1);
    for (int i = 0; i < layers; i++)
        whole[i] = shard_nn_linear(sizes[i % 2], sizes[(i + 1) % 2]);
    shard_manual_seed(1);
    for (int i = 0; i < layers; i++)
        parallel[i] = shard_nn_parallel_linear(sizes[i % 2], sizes[(i + 1) % 2], stacks[which][i], group);
    shard_module *one = shard_nn_sequential_of(layers, whole), *other = shard_nn_sequential_of(layers, parallel);
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(7, 26), 1, SHARD_FLOAT32);
        shard_tensor *own_x = made_up_leaf(SHARD_SHAPE(7, 26), 1, SHARD_FLOAT32);
        shard_tensor *w = made_up(SHARD_SHAPE(7, 34), 2, SHARD_FLOAT32);
        shard_tensor *y = shard_forward(one, x), *own_y = through_stack(other, own_x, group);
        check_close(own_y, y, THRESHOLD);
        check_ok(shard_backward(shard_sum(shard_mul(y, w))));
        check_ok(shard_backward(shard_sum(shard_mul(own_y, w))));
        check_close(shard_grad(own_x), shard_grad(x), THRESHOLD);
    }
    check_gradients(one, other);
    shard_module_destroy(one);
    shard_module_destroy(other);
    shard_mesh_destroy(mesh);
}

START_TEST(test_stacks)
{
    int which = _i % STACKS;
    run_job(_i / STACKS + 1, stacks_layers, &which);
}
END_TEST

/* ---- test_modules.py: self-attention, MLP, transformer block ---- */

typedef struct attention {
    int64_t heads;
} attention;

/* Of this rank's heads, if the projections are split. mask is added to the scores. */
static shard_tensor *attend(shard_module *module, shard_tensor *x)
{
    const attention *data = shard_module_data(module);
    int64_t batch = shard_tensor_size(x, 0), time = shard_tensor_size(x, 1), size = shard_tensor_size(x, 2);
    int64_t head = size / data->heads;
    shard_tensor *kqv = shard_forward(shard_module_child(module, "kqv"), x);
    kqv = shard_reshape(kqv, SHARD_SHAPE(batch, time, -1, 3, head));
    kqv = shard_permute(kqv, (int[]){3, 0, 2, 1, 4}); /* [3, batch, heads, time, head] */
    shard_shape each = shard_tensor_shape(kqv);
    each = SHARD_SHAPE(each.dim[1], each.dim[2], each.dim[3], each.dim[4]);
    shard_tensor *k = shard_reshape(shard_narrow(kqv, 0, 0, 1), each), *q = shard_reshape(shard_narrow(kqv, 0, 1, 1), each);
    shard_tensor *v = shard_reshape(shard_narrow(kqv, 0, 2, 1), each);
    shard_tensor *scores = shard_scale(shard_matmul(q, shard_transpose(k, -2, -1)), 1.0 / sqrt((double)head));
    scores = shard_add(scores, shard_module_tensor(module, "mask"));
    shard_tensor *y = shard_transpose(shard_matmul(shard_softmax(scores), v), 1, 2);
    return shard_forward(shard_module_child(module, "p"), shard_reshape(y, SHARD_SHAPE(batch, time, -1)));
}

static void free_data(shard_module *module)
{
    free(shard_module_data(module));
}

static const shard_module_type attention_type = {.name = "attention", .forward = attend, .destroy = free_data};

static shard_module *make_attention(int64_t size, int64_t heads, int64_t time, shard_group *group, bool parallel)
{
    attention *data = malloc(sizeof *data);
    data->heads = heads;
    shard_module *module = shard_module_create(&attention_type, data);
    shard_module_add_child(module, "kqv",
                           shard_nn_parallel_linear(size, 3 * size, parallel ? SHARD_SPLIT_COLUMN : SHARD_SPLIT_NONE, group));
    shard_module_add_child(module, "p", shard_nn_parallel_linear(size, size, parallel ? SHARD_SPLIT_ROW : SHARD_SPLIT_NONE, group));
    float *mask = malloc((size_t)(time * time) * sizeof *mask);
    for (int64_t i = 0; i < time * time; i++)
        mask[i] = i % time > i / time ? -INFINITY : 0.0f;
    SHARD_SCOPE
    {
        shard_module_add_buffer(module, "mask", shard_from_host(mask, SHARD_SHAPE(time, time)));
    }
    free(mask);
    return module;
}

static shard_tensor *mlp_forward(shard_module *module, shard_tensor *x)
{
    shard_tensor *y = shard_forward(shard_module_child(module, "ln"), x);
    return shard_add(x, shard_forward(shard_module_child(module, "mlp"), y));
}

static const shard_module_type mlp_type = {.name = "mlp", .forward = mlp_forward};

static shard_module *make_mlp(int64_t size, shard_group *group, bool parallel)
{
    shard_module *module = shard_module_create(&mlp_type, NULL);
    shard_module_add_child(module, "ln", shard_nn_layer_norm(size, 1e-5));
    shard_module *up = shard_nn_parallel_linear(size, 4 * size, parallel ? SHARD_SPLIT_COLUMN : SHARD_SPLIT_NONE, group);
    shard_module *down = shard_nn_parallel_linear(4 * size, size, parallel ? SHARD_SPLIT_ROW : SHARD_SPLIT_NONE, group);
    shard_module_add_child(module, "mlp", shard_nn_sequential(up, shard_nn_gelu(), down, shard_nn_dropout(0.0)));
    return module;
}

enum { BATCH = 5, TIME = 12 };

typedef enum block { ATTENTION, MLP, BLOCK } block;

static shard_module *make_block(block which, int64_t size, int64_t heads, shard_group *group, bool parallel)
{
    shard_manual_seed(7);
    if (which == ATTENTION)
        return make_attention(size, heads, TIME, group, parallel);
    if (which == MLP)
        return make_mlp(size, group, parallel);
    shard_module *attention_part = make_attention(size, heads, TIME, group, parallel);
    return shard_nn_sequential(attention_part, make_mlp(size, group, parallel));
}

/* Every rank has its own sequences; they are gathered, and the loss is that of all. */
static void runs_block(shard_group *world, void *context)
{
    int size = shard_group_size(world), rank = shard_group_rank(world);
    int64_t heads = 6 * size, features = 8 * heads, rows = BATCH * size;
    shard_mesh *mesh = shard_mesh_create(.model = size);
    shard_group *group = shard_mesh_model_group(mesh);
    block which = *(const block *)context;
    shard_module *whole = make_block(which, features, heads, NULL, false);
    shard_module *parallel = make_block(which, features, heads, group, true);
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(rows, TIME, features), 3, SHARD_FLOAT32);
        int64_t labels[BATCH];
        for (int i = 0; i < BATCH; i++)
            labels[i] = (rank * BATCH + i) * 3 % 10;
        shard_tensor *y = shard_gather_from_group(shard_from_host(labels, SHARD_SHAPE(BATCH), .dtype = SHARD_INT64), 0, group);
        shard_tensor *own_x = shard_gather_from_group(shard_narrow(x, 0, rank * BATCH, BATCH), 0, group);
        shard_tensor *y1 = shard_forward(parallel, own_x), *y2 = shard_forward(whole, x);
        check_close(y1, y2, THRESHOLD);
        shard_tensor *loss1 = shard_parallel_cross_entropy(shard_reshape(y1, SHARD_SHAPE(rows, -1)), y);
        shard_tensor *loss2 = shard_cross_entropy(shard_reshape(y2, SHARD_SHAPE(rows, -1)), y);
        check_close(loss1, loss2, THRESHOLD);
        check_ok(shard_backward(loss1));
        check_ok(shard_backward(loss2));
    }
    check_gradients(whole, parallel);
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
    shard_mesh_destroy(mesh);
}

START_TEST(test_blocks)
{
    block which = (block)(_i / 3);
    run_job((int[]){1, 2, 4}[_i % 3], runs_block, &which);
}
END_TEST

/* ---- test_cross_entropy.py: the loss behind a layer, by each way of splitting it ---- */

typedef struct loss_case {
    int data, model;
    shard_split split;
} loss_case;

static shard_tensor *head(shard_module *model, shard_tensor *x, shard_group *group)
{
    x = shard_forward(shard_module_child_at(model, 0), x);
    return shard_forward(shard_module_child_at(model, 1), shard_gather_from_group(x, 0, group));
}

static void loses_alike(shard_group *world, void *context)
{
    enum { ROWS = 48, IN = 5, HIDDEN = 32, CLASSES = 70 };
    const loss_case *c = context;
    shard_mesh *mesh = shard_mesh_create(.model = c->model);
    shard_group *group = shard_mesh_model_group(mesh);
    shard_manual_seed(8);
    shard_module *whole = shard_nn_sequential(shard_nn_linear(IN, HIDDEN), shard_nn_linear(HIDDEN, CLASSES));
    shard_manual_seed(8);
    shard_module *parallel =
        shard_nn_sequential(shard_nn_linear(IN, HIDDEN), shard_nn_parallel_linear(HIDDEN, CLASSES, c->split, group));
    shard_tensors *parameters = shard_parameters(parallel);
    shard_data_parallel *dp = shard_data_parallel_create(parameters);
    shard_range mine = shard_split_range(ROWS, shard_group_size(world), shard_group_rank(world));
    SHARD_SCOPE
    {
        int64_t labels[ROWS];
        for (int i = 0; i < ROWS; i++)
            labels[i] = i * 11 % CLASSES;
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, IN), 4, SHARD_FLOAT32);
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        shard_tensor *loss = shard_cross_entropy(shard_forward(whole, x), target);
        shard_tensor *logits = head(parallel, shard_narrow(x, 0, mine.start, mine.size), group);
        shard_tensor *gathered = shard_gather_from_group(shard_narrow(target, 0, mine.start, mine.size), 0, group);
        shard_tensor *own = shard_parallel_cross_entropy(logits, gathered);
        check_ok(shard_backward(loss));
        check_ok(shard_backward(own));
        shard_tensor *mean = shard_detach(own);
        check_ok(shard_all_reduce(mean, SHARD_SUM, shard_mesh_data_group(mesh)));
        check_close(shard_scale(mean, 1.0 / c->data), loss, THRESHOLD);
    }
    check_gradients(whole, parallel);
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(parameters);
    shard_module_destroy(whole);
    shard_module_destroy(parallel);
    shard_mesh_destroy(mesh);
}

static loss_case losses[] = {{1, 1, SHARD_SPLIT_NONE},   {2, 1, SHARD_SPLIT_NONE}, {1, 2, SHARD_SPLIT_ROW}, {1, 2, SHARD_SPLIT_COLUMN},
                             {1, 4, SHARD_SPLIT_COLUMN}, {2, 2, SHARD_SPLIT_ROW},  {2, 2, SHARD_SPLIT_COLUMN}};

START_TEST(test_losses)
{
    run_job(losses[_i].data * losses[_i].model, loses_alike, &losses[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("torchshard");
    TCase *tcase = test_case(suite, "torchshard");
    tcase_add_loop_test(tcase, test_stacks, 0, 3 * STACKS);
    tcase_add_loop_test(tcase, test_blocks, 0, 9);
    tcase_add_loop_test(tcase, test_losses, 0, (int)(sizeof losses / sizeof *losses));
    return test_run(suite);
}
