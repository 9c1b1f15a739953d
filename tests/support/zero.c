#include "support/zero.h"

#include "support/host.h"

#include <stdlib.h>

static const struct {
    const char *name;
    shard_shape shape;
} sort[SORTS_PARAMETERS] = {
    {"first.weight", {2, {7, 5}}}, {"first.bias", {1, {5}}}, {"empty", {2, {0, 3}}}, {"large", {2, {37, 11}}},
    {"unused", {1, {3}}},          {"frozen", {1, {4}}},     {"double", {1, {19}}},  {"last.weight", {2, {3, 3}}},
    {"last.bias", {1, {1}}},       {"half", {1, {13}}},
};

/* made_up, of bfloat16 too. */
static shard_tensor *numbers(shard_shape shape, uint64_t seed, shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 ? shard_cast(made_up(shape, seed, SHARD_FLOAT32), dtype) : made_up(shape, seed, dtype);
}

sorts make_sorts(shard_group *world)
{
    sorts s;
    for (int i = 0; i < SORTS_PARAMETERS; i++) {
        shard_dtype dtype = i == SORTS_DOUBLE ? SHARD_FLOAT64 : i == SORTS_HALF ? SHARD_BFLOAT16 : SHARD_FLOAT32;
        s.parameter[i] = numbers(sort[i].shape, (uint64_t)i + 1, dtype);
        shard_set_requires_grad(s.parameter[i], true);
    }
    fill_made_up(s.parameter[0], (uint64_t)shard_group_rank(world) + 20);
    shard_set_requires_grad(s.parameter[SORTS_FROZEN], false);
    return s;
}

shard_tensors *list_sorts(const sorts *s)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < SORTS_PARAMETERS; i++)
        check_ok(shard_tensors_add(list, sort[i].name, s->parameter[i]));
    check_ok(shard_tensors_add(list, "tied.weight", s->parameter[0]));
    return list;
}

void back_sorts(const sorts *s, shard_group *world, int turn)
{
    SHARD_SCOPE
    {
        shard_tensor *loss = shard_zeros(SHARD_SCALAR);
        for (int i = 0; i < SORTS_PARAMETERS; i++) {
            shard_tensor *p = s->parameter[i];
            if (i == SORTS_UNUSED)
                continue;
            uint64_t seed = (uint64_t)(100 * turn + shard_group_rank(world) * 10 + i);
            shard_tensor *x = numbers(shard_tensor_shape(p), seed, shard_tensor_dtype(p));
            shard_tensor *sum = shard_sum(shard_mul(shard_add(p, x), shard_add(p, x)));
            loss = shard_add(loss, shard_cast(sum, SHARD_FLOAT32));
            if (i == 0) /* tied: used again, later */
                loss = shard_add(loss, shard_sum(shard_mul(p, x)));
        }
        check_ok(shard_backward(loss));
    }
}

static double *values(shard_tensor *x)
{
    double *values = NULL;
    SHARD_SCOPE
    {
        shard_tensor *plain = shard_detach(x);
        values = values_of(shard_tensor_dtype(x) == SHARD_BFLOAT16 ? shard_cast(plain, SHARD_FLOAT32) : plain);
    }
    return values;
}

void check_sorts_equal_at(int line, const sorts *a, const sorts *b, double tolerance)
{
    for (int i = 0; i < SORTS_PARAMETERS; i++) {
        double *x = values(a->parameter[i]), *y = values(b->parameter[i]);
        double most = tolerance > 0 && i == SORTS_HALF ? 0.01 : tolerance;
        for (int64_t j = 0; j < shard_numel(a->parameter[i]); j++)
            ck_assert_msg(most > 0 ? x[j] - y[j] <= most && y[j] - x[j] <= most : x[j] == y[j],
                          "line %d: %s [%lld] is %.17g and %.17g", line, sort[i].name, (long long)j, x[j], y[j]);
        free(x);
        free(y);
    }
}

enum { FEATURES = 6, HIDDEN = 9, CLASSES = 11, ROWS = 3 };

shard_module *make_split_model(shard_split split, shard_group *group)
{
    shard_manual_seed(3);
    shard_module *model = shard_nn_sequential(
        shard_nn_sequential(shard_nn_linear(FEATURES, HIDDEN), shard_nn_gelu(), shard_nn_layer_norm(HIDDEN, 1e-5)),
        shard_nn_linear(HIDDEN, HIDDEN), shard_nn_relu(), shard_nn_parallel_linear(HIDDEN, CLASSES, split, group));
    ck_assert_msg(model != NULL, "%s", shard_last_error());
    return model;
}

void back_split_model(shard_module *model, shard_group *world, shard_group *group, int turn)
{
    int64_t labels[ROWS];
    int last = shard_module_child_count(model) - 1, rank = shard_group_rank(world);
    for (int i = 0; i < ROWS; i++)
        labels[i] = (rank * ROWS + i + turn) * 5 % CLASSES;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), (uint64_t)(100 * turn + rank), SHARD_FLOAT32);
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        for (int i = 0; i < last; i++)
            x = shard_forward(shard_module_child_at(model, i), x);
        x = shard_forward(shard_module_child_at(model, last), shard_gather_from_group(x, 0, group));
        check_ok(shard_backward(shard_parallel_cross_entropy(x, shard_gather_from_group(target, 0, group))));
    }
}

void check_models_equal(shard_module *a, shard_module *b, double most)
{
    shard_tensors *x = shard_parameters(a), *y = shard_parameters(b);
    ck_assert_int_eq(shard_tensors_count(x), shard_tensors_count(y));
    for (int64_t i = 0; i < shard_tensors_count(x); i++) {
        double *values = values_of(shard_tensors_at(x, i)), *others = values_of(shard_tensors_at(y, i));
        ck_assert_int_eq(shard_numel(shard_tensors_at(x, i)), shard_numel(shard_tensors_at(y, i)));
        for (int64_t j = 0; j < shard_numel(shard_tensors_at(x, i)); j++)
            ck_assert_msg(is_within(values[j], others[j], most), "%s [%lld] is %.17g and %.17g", shard_tensors_name(x, i),
                          (long long)j, values[j], others[j]);
        free(values);
        free(others);
    }
    shard_tensors_destroy(x);
    shard_tensors_destroy(y);
}
