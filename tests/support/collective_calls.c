#include "support/collective_calls.h"

#include "support/options.h"

#ifdef TRACED_CALLS
#include "traced_calls.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 6 };

/* ---- how a rank differs ---- */

const char *call_kind_name(call_kind kind)
{
    static const char *const names[] = {"shape", "dtype", "setting", "function", "order", "skipped", "left", "identical"};
    return names[kind];
}

static bool differs(const call_case *c, call_kind kind)
{
    return c->kind == kind && shard_group_rank(c->world) == c->odd;
}

#define PICK(kind, usual, other) (differs(c, CALL_##kind) ? (other) : (usual))

/* The call that follows, and that one in place of another. */
static void make_next(call_case *c)
{
    shard_agree(c->world);
}

static void make_other(call_case *c)
{
    SHARD_SCOPE
    shard_broadcast(shard_zeros(SHARD_SHAPE(3)), 0, c->world);
}

static bool begin(call_case *c)
{
    if (differs(c, CALL_LEFT))
        c->leave();
    if (differs(c, CALL_FUNCTION))
        make_other(c);
    if (differs(c, CALL_ORDER))
        make_next(c);
    return !differs(c, CALL_FUNCTION) && !differs(c, CALL_SKIPPED);
}

static void end(call_case *c)
{
    if (!differs(c, CALL_ORDER))
        make_next(c);
}

/* The call under test. */
#define CALL(...)                                                                                                                \
    do {                                                                                                                         \
        if (begin(c)) {                                                                                                          \
            __VA_ARGS__;                                                                                                         \
        }                                                                                                                        \
        end(c);                                                                                                                  \
    } while (0)

#define COLLECTIVE(name) static void call_##name(call_case *c)

/* ---- operands ---- */

/* NULL after an error, as a program's operands are. */
static shard_tensor *filled(shard_shape shape, uint64_t seed, shard_dtype of)
{
    return shard_full(shape, 0.25 + 0.125 * (double)seed, .dtype = of);
}

static shard_dtype dtype(const call_case *c)
{
    return PICK(DTYPE, SHARD_FLOAT32, SHARD_FLOAT64);
}

static int64_t rows(const call_case *c)
{
    return PICK(SHAPE, 4, 5);
}

static shard_tensor *local(const call_case *c)
{
    return filled(SHARD_SHAPE(rows(c), COLUMNS), 1, dtype(c));
}

static int64_t classes(const call_case *c)
{
    return 2 * shard_group_size(c->world);
}

/* The local shard, of two elements along dim, of a tensor of that whole shape. */
static shard_tensor *split(const call_case *c, shard_shape shape, int dim, shard_dtype of)
{
    shape.dim[dim] = 2;
    shard_tensor *x = filled(shape, 3 + (uint64_t)shard_group_rank(c->world), of);
    return shard_as_split(x, dim, c->world, 2 * shard_group_rank(c->world), classes(c));
}

static shard_tensor *logits(const call_case *c)
{
    return split(c, SHARD_SHAPE(rows(c), 0), 1, dtype(c));
}

static shard_tensor *weight(const call_case *c)
{
    return split(c, SHARD_SHAPE(0, COLUMNS), 0, dtype(c));
}

static shard_tensor *labels(const call_case *c)
{
    return shard_zeros(SHARD_SHAPE(rows(c)), .dtype = SHARD_INT64);
}

static shard_tensor *pairs(void)
{
    return shard_from_host((int64_t[]){0, 2, 1, 1}, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64);
}

static shard_module *layer(const call_case *c)
{
    return shard_nn_linear(COLUMNS, PICK(SHAPE, 4, 5), .dtype = dtype(c));
}

/* The next steps of a list of one tensor. */
static shard_tensors *list_of(const char *name, shard_tensor *tensor)
{
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, name, tensor);
    return list;
}

/* A result of x that is split over the ranks: the gradient of x is summed. */
static shard_tensor *made_of_columns(call_case *c)
{
    shard_tensor *x = local(c);
    shard_set_requires_grad(x, true);
    return shard_linear(shard_copy_to_group(x, c->world), weight(c), NULL);
}

static shard_tensor *gradient_of(const call_case *c, shard_tensor *y)
{
    return shard_as_placed(shard_full(shard_tensor_shape(y), 1.0, .dtype = dtype(c)), shard_tensor_placement(y));
}

/* A forward and a backward of a linear layer, of float32. */
static void backward_of(shard_module *module)
{
    shard_backward(shard_sum(shard_forward(module, filled(SHARD_SHAPE(2, COLUMNS), 5, SHARD_FLOAT32))));
}

static const char *path_of(const call_case *c, const char *name)
{
    static char text[2][512];
    static int turn;
    char *path = text[turn = 1 - turn];
    snprintf(path, sizeof text[0], "%s/%s", c->folder, name);
    return path;
}

/* ---- comm ---- */

COLLECTIVE(group_split)
{
    shard_group *group = NULL;
    CALL(group = shard_group_split(c->world, PICK(SETTING, 0, -7)));
    shard_group_destroy(group);
}

COLLECTIVE(group_create)
{
    shard_group *group = NULL;
    int count = shard_group_size(c->world) - PICK(SHAPE, 0, 1);
    CALL(group = shard_group_create(
             c->world, PICK(SETTING, ((const int[]){0, 1, 2, 3, 4, 5, 6, 7}), ((const int[]){0, 0, 0, 0, 0, 0, 0, 0})), count));
    shard_group_destroy(group);
}

COLLECTIVE(barrier)
{
    CALL(shard_barrier(c->world));
}

/* The next call is itself: no rank can skip it. */
COLLECTIVE(agree)
{
    if (differs(c, CALL_ORDER) || differs(c, CALL_SKIPPED))
        shard_barrier(c->world);
    CALL(shard_agree(c->world));
}

/* ---- distributed ---- */

COLLECTIVE(copy_to_group)
{
    shard_tensor *y = made_of_columns(c), *g = gradient_of(c, y);
    CALL(shard_backward_from(y, g));
}

COLLECTIVE(scatter_to_group)
{
    shard_tensor *x = local(c);
    shard_set_requires_grad(x, true);
    shard_tensor *y = shard_scatter_to_group(x, 1, c->world);
    shard_tensor *g = gradient_of(c, y);
    CALL(shard_backward_from(y, g));
}

COLLECTIVE(reduce_from_group)
{
    shard_tensor *x = local(c);
    CALL(shard_reduce_from_group(x, c->world));
}

COLLECTIVE(gather_from_group)
{
    shard_tensor *x = filled(SHARD_SHAPE(4, PICK(SHAPE, COLUMNS, 5)), 1, dtype(c));
    CALL(shard_gather_from_group(x, PICK(SETTING, 0, 1), c->world));
}

COLLECTIVE(all_reduce)
{
    shard_tensor *x = differs(c, CALL_SHAPE) ? shard_zeros(SHARD_SHAPE(COLUMNS, 4)) : local(c); /* as many elements */
    CALL(shard_all_reduce(x, PICK(SETTING, SHARD_SUM, SHARD_MAX), c->world));
}

COLLECTIVE(broadcast)
{
    shard_tensor *x = local(c);
    if (differs(c, CALL_FUNCTION)) { /* which is this one elsewhere */
        shard_all_reduce(x, SHARD_SUM, c->world);
        make_next(c);
        return;
    }
    CALL(shard_broadcast(x, PICK(SETTING, 0, 1), c->world));
}

COLLECTIVE(mesh_create)
{
    int size = shard_group_size(c->world);
    shard_mesh *mesh = NULL;
    CALL(mesh = shard_mesh_create(.data = PICK(SETTING, 1, size), .model = PICK(SETTING, size, 1)));
    shard_mesh_destroy(mesh);
}

/* ---- op ---- */

COLLECTIVE(cross_entropy)
{
    shard_tensor *x = logits(c), *y = labels(c);
    CALL(shard_cross_entropy(x, y, .label_smoothing = PICK(SETTING, 0.0, 0.1)));
}

COLLECTIVE(linear_cross_entropy)
{
    shard_tensor *x = local(c), *w = weight(c), *y = labels(c);
    CALL(shard_linear_cross_entropy(x, w, NULL, y, .label_smoothing = PICK(SETTING, 0.0, 0.1)));
}

COLLECTIVE(linear_cross_entropy_forward)
{
    shard_tensor *x = local(c), *w = weight(c), *y = labels(c);
    shard_head_saved *saved = NULL;
    CALL(shard_linear_cross_entropy_forward(x, w, NULL, y, &saved, .label_smoothing = PICK(SETTING, 0.0, 0.1)));
    shard_head_saved_destroy(saved);
}

COLLECTIVE(binary_cross_entropy_with_logits)
{
    shard_tensor *x = logits(c), *y = pairs();
    CALL(shard_binary_cross_entropy_with_logits(x, y, .reduction = PICK(SETTING, SHARD_REDUCTION_MEAN, SHARD_REDUCTION_SUM)));
}

COLLECTIVE(linear_binary_cross_entropy)
{
    shard_tensor *x = local(c), *w = weight(c), *y = pairs();
    CALL(shard_linear_binary_cross_entropy(x, w, NULL, y, .reduction = PICK(SETTING, SHARD_REDUCTION_MEAN, SHARD_REDUCTION_SUM)));
}

COLLECTIVE(linear_binary_cross_entropy_forward)
{
    shard_tensor *x = local(c), *w = weight(c), *y = pairs();
    shard_head_saved *saved = NULL;
    CALL(shard_linear_binary_cross_entropy_forward(x, w, NULL, y, &saved,
                                                   .reduction = PICK(SETTING, SHARD_REDUCTION_MEAN, SHARD_REDUCTION_SUM)));
    shard_head_saved_destroy(saved);
}

COLLECTIVE(label_rank)
{
    shard_tensor *x = logits(c), *y = labels(c);
    CALL(shard_label_rank(x, y, PICK(SETTING, -100, 0)));
}

#define EXTREME(name, ...)                                                                                                       \
    COLLECTIVE(name)                                                                                                             \
    {                                                                                                                            \
        shard_tensor *x = logits(c);                                                                                             \
        CALL(shard_##name(x, 1, false, ##__VA_ARGS__));                                                                          \
    }
EXTREME(max_dim, NULL)
EXTREME(min_dim, NULL)
EXTREME(argmax)
EXTREME(argmin)

COLLECTIVE(top_k)
{
    shard_tensor *x = logits(c);
    CALL(shard_top_k(x, PICK(SETTING, 3, 2), NULL));
}

COLLECTIVE(linear_top_k)
{
    shard_tensor *x = local(c), *w = weight(c);
    CALL(shard_linear_top_k(x, w, NULL, PICK(SETTING, 3, 2), NULL));
}

COLLECTIVE(softmax)
{
    shard_tensor *x = logits(c);
    CALL(shard_softmax(x));
}

COLLECTIVE(log_softmax)
{
    shard_tensor *x = logits(c);
    CALL(shard_log_softmax(x));
}

COLLECTIVE(logsumexp)
{
    shard_tensor *x = logits(c);
    CALL(shard_logsumexp(x, 1, false));
}

COLLECTIVE(normalize)
{
    shard_tensor *x = logits(c);
    CALL(shard_normalize(x, 1, PICK(SETTING, 1e-12, 1e-3)));
}

COLLECTIVE(batch_norm)
{
    int64_t channels = PICK(SHAPE, COLUMNS, 5);
    shard_tensor *x = filled(SHARD_SHAPE(4, channels), 1, dtype(c)), *mean = shard_zeros(SHARD_SHAPE(channels)),
                 *var = shard_ones(SHARD_SHAPE(channels));
    CALL(shard_batch_norm(x, mean, var, NULL, NULL, .training = true, .group = c->world, .eps = PICK(SETTING, 1e-5, 1e-3)));
}

COLLECTIVE(dropout)
{
    shard_tensor *x = filled(SHARD_SHAPE(3, PICK(SHAPE, COLUMNS, 5)), 1, SHARD_FLOAT32);
    CALL(shard_dropout(x, PICK(SETTING, 0.5, 0.25), .group = c->world));
}

COLLECTIVE(adaface_margins)
{
    shard_tensor *norms = split(c, SHARD_SHAPE(0), 0, dtype(c)), *mean = shard_full(SHARD_SCALAR, 20.0),
                 *std = shard_full(SHARD_SCALAR, 100.0);
    CALL(shard_adaface_margins(norms, mean, std, NULL, .m = PICK(SETTING, 0.4, 0.3)));
}

/* Of each row the norm is that of the ranks' columns. */
COLLECTIVE(embedding)
{
    shard_tensor *w = split(c, SHARD_SHAPE(5, 0), 1, dtype(c)), *index = labels(c);
    CALL(shard_embedding(w, index, -1, .max_norm = PICK(SETTING, 0.5, 0.25)));
}

COLLECTIVE(parallel_embedding)
{
    shard_tensor *w = weight(c), *index = labels(c);
    CALL(shard_parallel_embedding(w, index, PICK(SETTING, -1, 0)));
}

/* ---- autograd ---- */

COLLECTIVE(backward)
{
    shard_tensor *loss = shard_reduce_from_group(shard_sum(made_of_columns(c)), c->world);
    CALL(shard_backward(loss));
}

COLLECTIVE(backward_from)
{
    shard_tensor *y = made_of_columns(c), *g = gradient_of(c, y);
    CALL(shard_backward_from(y, g));
}

/* ---- nn ---- */

COLLECTIVE(forward)
{
    shard_module *module =
        shard_nn_parallel_linear(4 * shard_group_size(c->world), 3, SHARD_SPLIT_ROW, c->world, .dtype = dtype(c));
    shard_tensor *x = filled(SHARD_SHAPE(rows(c), 4 * shard_group_size(c->world)), 1, dtype(c));
    CALL(shard_forward(module, x));
    shard_module_destroy(module);
}

COLLECTIVE(parallel_linear)
{
    shard_tensor *x = filled(SHARD_SHAPE(rows(c), classes(c)), 1, dtype(c)), *w = split(c, SHARD_SHAPE(3, 0), 1, dtype(c));
    CALL(shard_parallel_linear(x, w, NULL));
}

COLLECTIVE(convert_parallel_linear)
{
    shard_module *module = layer(c);
    CALL(shard_convert_parallel_linear(&module, NULL, PICK(SETTING, SHARD_SPLIT_ROW, SHARD_SPLIT_COLUMN), c->world, NULL));
    shard_module_destroy(module);
}

COLLECTIVE(convert_parallel_classifier)
{
    shard_module *module = layer(c);
    CALL(shard_convert_parallel_classifier(&module, PICK(SETTING, NULL, "nothing"), c->world, NULL));
    shard_module_destroy(module);
}

COLLECTIVE(convert_parallel_embedding)
{
    shard_module *module = shard_nn_embedding(PICK(SHAPE, 8, 9), COLUMNS, -1, .dtype = dtype(c));
    CALL(shard_convert_parallel_embedding(&module, NULL, PICK(SETTING, SHARD_SPLIT_ROW, SHARD_SPLIT_COLUMN), c->world, NULL));
    shard_module_destroy(module);
}

/* ---- parallel ---- */

COLLECTIVE(data_parallel_create)
{
    shard_module *module = layer(c);
    shard_tensors *list = shard_parameters(module);
    shard_data_parallel *engine = NULL;
    CALL(engine = shard_data_parallel_create(list, .bucket_mib = PICK(SETTING, 25.0, 1.0)));
    shard_tensors_destroy(list);
    shard_data_parallel_destroy(engine);
    shard_module_destroy(module);
}

COLLECTIVE(check_replicas)
{
    shard_module *module = layer(c);
    shard_tensors *list = shard_state_dict(module);
    if (differs(c, CALL_SETTING))
        shard_tensors_remove(list, "bias");
    CALL(shard_check_replicas(list));
    shard_tensors_destroy(list);
    shard_module_destroy(module);
}

/* A parameter of stage 3, whose values no rank has. */
COLLECTIVE(materialize)
{
    shard_module *module = shard_nn_linear(COLUMNS, 4);
    shard_optimizer *sgd = shard_sgd(module, .lr = 0.1);
    shard_zero_optimizer(sgd, .stage = 3);
    CALL(shard_materialize(shard_module_tensor(module, "weight")));
    shard_optimizer_destroy(sgd);
    shard_module_destroy(module);
}

/* ---- optim ---- */

COLLECTIVE(step)
{
    shard_module *module = shard_nn_linear(COLUMNS, 4);
    shard_optimizer *sgd = shard_sgd(module, .lr = PICK(SETTING, 0.1, 0.2));
    backward_of(module);
    CALL(shard_step(sgd));
    shard_optimizer_destroy(sgd);
    shard_module_destroy(module);
}

COLLECTIVE(clip_grad_norm)
{
    shard_module *module = shard_nn_linear(COLUMNS, 4);
    shard_optimizer *sgd = shard_sgd(module, .lr = 0.1);
    backward_of(module);
    CALL(shard_clip_grad_norm(sgd, PICK(SETTING, 1.0, 2.0), NULL));
    shard_optimizer_destroy(sgd);
    shard_module_destroy(module);
}

COLLECTIVE(clip_grad_norm_of)
{
    shard_module *modules[] = {shard_nn_linear(COLUMNS, 4), shard_nn_linear(COLUMNS, 3)};
    shard_optimizer *sgds[] = {shard_sgd(modules[0], .lr = 0.1), shard_adam(modules[1])};
    for (int i = 0; i < 2; i++)
        backward_of(modules[i]);
    CALL(shard_clip_grad_norm_of(sgds, PICK(SHAPE, 2, 1), 1.0, NULL, .norm_type = PICK(SETTING, 2.0, INFINITY)));
    for (int i = 0; i < 2; i++) {
        shard_optimizer_destroy(sgds[i]);
        shard_module_destroy(modules[i]);
    }
}

COLLECTIVE(zero_optimizer)
{
    shard_module *module = layer(c);
    shard_optimizer *sgd = shard_sgd(module, .lr = 0.1);
    CALL(shard_zero_optimizer(sgd, .stage = PICK(SETTING, 1, 2)));
    shard_optimizer_destroy(sgd);
    shard_module_destroy(module);
}

COLLECTIVE(optimizer_add_param_group)
{
    shard_module *module = shard_nn_linear(COLUMNS, 4), *more = layer(c);
    shard_optimizer *sgd = shard_sgd(module, .lr = 0.1);
    shard_zero_optimizer(sgd);
    CALL(shard_optimizer_add_param_group(sgd, more, .prefix = PICK(SETTING, "more.", "weight.")));
    shard_optimizer_destroy(sgd);
    shard_module_destroy(module);
    shard_module_destroy(more);
}

typedef struct averaged {
    shard_module *module;
    shard_optimizer *sgd;
    shard_ema *ema;
} averaged;

/* The bias requires a gradient from now on: the next call that meets it partitions it. */
static averaged make_averaged(void)
{
    averaged a = {.module = shard_nn_linear(COLUMNS, 4)};
    shard_tensor *bias = shard_module_tensor(a.module, "bias");
    shard_set_requires_grad(bias, false);
    a.sgd = shard_sgd(a.module, .lr = 0.1);
    shard_zero_optimizer(a.sgd);
    a.ema = shard_ema_create(a.sgd);
    shard_set_requires_grad(bias, true);
    return a;
}

static void destroy_averaged(averaged *a)
{
    shard_ema_destroy(a->ema);
    shard_optimizer_destroy(a->sgd);
    shard_module_destroy(a->module);
}

COLLECTIVE(ema_create)
{
    averaged a = make_averaged();
    shard_ema_destroy(a.ema);
    a.ema = NULL;
    CALL(a.ema = shard_ema_create(a.sgd));
    destroy_averaged(&a);
}

COLLECTIVE(ema_update)
{
    averaged a = make_averaged();
    CALL(shard_ema_update(a.ema));
    destroy_averaged(&a);
}

COLLECTIVE(ema_swap)
{
    averaged a = make_averaged();
    CALL(shard_ema_swap(a.ema));
    destroy_averaged(&a);
}

COLLECTIVE(ema_state_dict)
{
    averaged a = make_averaged();
    shard_tensors *list = NULL;
    CALL(list = shard_ema_state_dict(a.ema));
    shard_tensors_destroy(list);
    destroy_averaged(&a);
}

/* ---- amp ---- */

typedef struct scaled {
    shard_module *module;
    shard_optimizer *sgd;
    shard_grad_scaler *scaler;
} scaled;

static scaled make_scaled(call_case *c)
{
    scaled s = {.module = shard_nn_linear(COLUMNS, 4)};
    s.sgd = shard_sgd(s.module, .lr = 0.1);
    s.scaler = shard_grad_scaler_create(.init_scale = PICK(SETTING, 4.0, 8.0));
    backward_of(s.module);
    return s;
}

static void destroy_scaled(scaled *s)
{
    shard_grad_scaler_destroy(s->scaler);
    shard_optimizer_destroy(s->sgd);
    shard_module_destroy(s->module);
}

COLLECTIVE(grad_scaler_unscale)
{
    scaled s = make_scaled(c);
    CALL(shard_grad_scaler_unscale(s.scaler, s.sgd));
    destroy_scaled(&s);
}

COLLECTIVE(grad_scaler_step)
{
    scaled s = make_scaled(c);
    CALL(shard_grad_scaler_step(s.scaler, s.sgd));
    destroy_scaled(&s);
}

COLLECTIVE(grad_scaler_update)
{
    scaled s = make_scaled(c);
    shard_grad_scaler_step(s.scaler, s.sgd);
    CALL(shard_grad_scaler_update(s.scaler));
    destroy_scaled(&s);
}

/* ---- checkpoint ---- */

/* A list of a split and a replicated tensor. */
static shard_tensors *state(call_case *c)
{
    shard_tensors *list = list_of("split", weight(c));
    shard_tensors_add(list, "whole", local(c));
    return list;
}

COLLECTIVE(save)
{
    shard_tensors *list = state(c);
    CALL(shard_save(list, path_of(c, PICK(SETTING, "save", "other")), NULL));
    shard_tensors_destroy(list);
}

COLLECTIVE(save_async)
{
    shard_tensors *list = state(c);
    shard_async_save *save = NULL;
    CALL(save = shard_save_async(list, path_of(c, PICK(SETTING, "async", "other")), NULL));
    if (save)
        shard_async_save_finish(save);
    shard_tensors_destroy(list);
}

COLLECTIVE(async_save_poll)
{
    call_case usual = *c;
    usual.kind = CALL_IDENTICAL;
    shard_tensors *list = state(&usual);
    shard_async_save *save = shard_save_async(list, path_of(c, "poll"), NULL);
    bool done;
    CALL(shard_async_save_poll(save, &done));
    shard_async_save_finish(save);
    shard_tensors_destroy(list);
}

COLLECTIVE(async_save_finish)
{
    call_case usual = *c;
    usual.kind = CALL_IDENTICAL;
    shard_tensors *list = state(&usual);
    shard_async_save *saves[] = {shard_save_async(list, path_of(c, "finish-0"), NULL),
                                 shard_save_async(list, path_of(c, "finish-1"), NULL)};
    int chosen = PICK(SETTING, 0, 1);
    bool called = false;
    CALL(called = true; shard_async_save_finish(saves[chosen]));
    if (!called)
        shard_async_save_finish(saves[chosen]);
    shard_async_save_finish(saves[1 - chosen]);
    shard_tensors_destroy(list);
}

COLLECTIVE(save_module)
{
    shard_module *module = layer(c);
    CALL(shard_save_module(module, path_of(c, PICK(SETTING, "module", "other"))));
    shard_module_destroy(module);
}

COLLECTIVE(load)
{
    call_case usual = *c;
    usual.kind = CALL_IDENTICAL;
    shard_tensors *list = state(&usual), *wanted = state(c);
    shard_save(list, path_of(c, "load"), NULL);
    CALL(shard_load(wanted, path_of(c, PICK(SETTING, "load", "load-nothing"))));
    shard_tensors_destroy(wanted);
    shard_tensors_destroy(list);
}

COLLECTIVE(load_module)
{
    shard_module *usual = shard_nn_linear(COLUMNS, 4), *module = layer(c);
    shard_save_module(usual, path_of(c, "load_module"));
    CALL(shard_load_module(module, path_of(c, PICK(SETTING, "load_module", "load_module-nothing"))));
    shard_module_destroy(usual);
    shard_module_destroy(module);
}

COLLECTIVE(save_checkpoint)
{
    shard_tensors *list = state(c);
    CALL(shard_save_checkpoint(list, path_of(c, "steps"), PICK(SETTING, 1, 2), NULL));
    shard_tensors_destroy(list);
}

COLLECTIVE(save_checkpoint_async)
{
    shard_tensors *list = state(c);
    shard_async_save *save = NULL;
    CALL(save = shard_save_checkpoint_async(list, path_of(c, "async-steps"), PICK(SETTING, 1, 2), NULL));
    if (save)
        shard_async_save_finish(save);
    shard_tensors_destroy(list);
}

COLLECTIVE(latest_checkpoint)
{
    int64_t step;
    char path[600];
    CALL(shard_latest_checkpoint(path_of(c, "steps"), PICK(SETTING, INT64_MAX, 0), &step, path, sizeof path));
}

COLLECTIVE(collect_state_dict)
{
    shard_tensors *list = state(c), *whole = NULL;
    CALL(whole = shard_collect_state_dict(list, PICK(SETTING, 0, 1)));
    shard_tensors_destroy(whole);
    shard_tensors_destroy(list);
}

COLLECTIVE(relocate_state_dict)
{
    call_case usual = *c;
    usual.kind = CALL_IDENTICAL;
    shard_tensors *list = state(&usual), *whole = shard_collect_state_dict(list, -1), *like = state(c), *part = NULL;
    CALL(part = shard_relocate_state_dict(like, whole, .root = PICK(SETTING, 0, 1)));
    shard_tensors_destroy(part);
    shard_tensors_destroy(like);
    shard_tensors_destroy(whole);
    shard_tensors_destroy(list);
}

/* ---- the table ---- */

#define BIT_SHAPE (1u << CALL_SHAPE)
#define BIT_DTYPE (1u << CALL_DTYPE)
#define BIT_SETTING (1u << CALL_SETTING)
#define OPERANDS (BIT_SHAPE | BIT_DTYPE)
#define EVERY (OPERANDS | BIT_SETTING)

#define ROW(name, kinds, ...)                                                                                                    \
    {                                                                                                                            \
        "shard_" #name, call_##name, kinds, ##__VA_ARGS__                                                                        \
    }
const collective_call collective_calls[] = {
    ROW(group_split, BIT_SETTING),
    ROW(group_create, BIT_SHAPE | BIT_SETTING),
    ROW(barrier, 0),
    ROW(agree, 0),
    ROW(copy_to_group, OPERANDS, "shard_backward_from"),
    ROW(scatter_to_group, OPERANDS, "shard_backward_from"),
    ROW(reduce_from_group, OPERANDS),
    ROW(gather_from_group, EVERY),
    ROW(all_reduce, EVERY),
    ROW(broadcast, EVERY),
    ROW(mesh_create, BIT_SETTING),
    ROW(cross_entropy, EVERY),
    ROW(linear_cross_entropy, EVERY),
    ROW(linear_cross_entropy_forward, EVERY),
    ROW(binary_cross_entropy_with_logits, EVERY),
    ROW(linear_binary_cross_entropy, EVERY),
    ROW(linear_binary_cross_entropy_forward, EVERY),
    ROW(label_rank, EVERY),
    ROW(max_dim, OPERANDS),
    ROW(min_dim, OPERANDS),
    ROW(argmax, OPERANDS),
    ROW(argmin, OPERANDS),
    ROW(top_k, EVERY),
    ROW(linear_top_k, EVERY),
    ROW(softmax, OPERANDS),
    ROW(log_softmax, OPERANDS),
    ROW(logsumexp, OPERANDS),
    ROW(normalize, EVERY),
    ROW(batch_norm, EVERY),
    ROW(dropout, BIT_SHAPE | BIT_SETTING),
    ROW(adaface_margins, BIT_DTYPE | BIT_SETTING),
    ROW(embedding, EVERY),
    ROW(parallel_embedding, OPERANDS),
    ROW(backward, BIT_SHAPE),
    ROW(backward_from, OPERANDS),
    ROW(forward, OPERANDS),
    ROW(parallel_linear, OPERANDS),
    ROW(convert_parallel_linear, EVERY),
    ROW(convert_parallel_classifier, EVERY),
    ROW(convert_parallel_embedding, EVERY),
    ROW(data_parallel_create, EVERY),
    ROW(check_replicas, EVERY),
    ROW(materialize, 0),
    ROW(step, BIT_SETTING),
    ROW(clip_grad_norm, BIT_SETTING),
    ROW(clip_grad_norm_of, BIT_SHAPE | BIT_SETTING),
    ROW(zero_optimizer, EVERY),
    ROW(optimizer_add_param_group, EVERY),
    ROW(ema_create, 0, ""),
    ROW(ema_update, 0, ""),
    ROW(ema_swap, 0),
    ROW(ema_state_dict, 0, ""),
    ROW(grad_scaler_unscale, BIT_SETTING),
    ROW(grad_scaler_step, BIT_SETTING),
    ROW(grad_scaler_update, 0, ""),
    ROW(save, EVERY),
    ROW(save_async, EVERY),
    ROW(async_save_poll, 0),
    ROW(async_save_finish, BIT_SETTING),
    ROW(save_module, EVERY),
    ROW(load, EVERY, NULL, "/load"),
    ROW(load_module, EVERY, NULL, "/load_module"),
    ROW(save_checkpoint, EVERY),
    ROW(save_checkpoint_async, EVERY),
    ROW(latest_checkpoint, BIT_SETTING),
    ROW(collect_state_dict, EVERY),
    ROW(relocate_state_dict, EVERY),
};
const int collective_call_count = (int)(sizeof collective_calls / sizeof *collective_calls);
