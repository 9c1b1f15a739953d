/*
 * AdaFace's margins of rows, from the norms of their features. All is computed from a few numbers a row by operations in
 * float64, with no record.
 */
#include "base/options.h"
#include "comm/function.h"
#include "op/op.h"

#include <math.h>

static const char function[] = "shard_adaface_margins";

/* Norms are clamped to these; EPS is added to the deviation. */
#define LEAST_NORM 0.001
#define LARGEST_NORM 100.0
#define EPS 1e-3

typedef struct margins_call {
    shard_tensor *norms, *mean, *std;
    const shard_adaface_margins_options *options;
    bool ready;         /* false: the options could not be read */
    shard_group *group; /* over which the rows are split; NULL: they are not */
} margins_call;

static bool check_statistic(const margins_call *call, const shard_tensor *x, const char *name)
{
    if (!shard_dtype_is_float(x->dtype) || shard_numel(x) != 1 || !shard_is_local(x) ||
        shard_device_of(x) != shard_device_of(call->norms)) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: %s is a %s of shape %s, %s on %s; a local floating tensor of one element on %s is needed", function,
                    name, shard_dtype_name(x->dtype), shard_shape_text(&x->shape), shard_placement_text(&x->placement),
                    shard_device_of(x)->name, shard_device_of(call->norms)->name);
        return false;
    }
    return true;
}

static bool check(margins_call *call)
{
    const shard_adaface_margins_options *options = call->options;
    if (!shard_check_operands(function, SHARD_INPUTS(call->norms)) || !shard_check_operand(function, call->mean) ||
        !shard_check_operand(function, call->std))
        return false;
    if (call->norms->placement.kind == SHARD_PARTIAL)
        return shard_refuse_placement(function, call->norms);
    bool numbers = isfinite(options->m) && isfinite(options->h) && options->t_alpha >= 0 && options->t_alpha <= 1;
    if (!numbers)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: m %g, h %g and t_alpha %g; finite numbers are needed, and t_alpha in [0, 1]",
                    function, options->m, options->h, options->t_alpha);
    return numbers && check_statistic(call, call->mean, "mean") && check_statistic(call, call->std, "std");
}

/* The sum of x over all ranks' rows, a local scalar. Collective over the group; x is NULL if this rank has failed. */
static shard_tensor *sum_over_rows(const margins_call *call, shard_tensor *x)
{
    shard_tensor *sum = x ? shard_sum(x) : NULL;
    if (!call->group)
        return sum;
    void *memory = sum ? shard_tensor_memory(sum) : NULL;
    if (!memory) {
        shard_group_fail(call->group);
        return NULL;
    }
    sum->placement = (shard_placement){0};
    return shard_result(sum, shard_group_all_reduce(call->group, shard_device_of(sum), memory, 1, SHARD_FLOAT64, SHARD_SUM));
}

/* t_alpha * batch + (1 - t_alpha) * state, or the state where there is no batch or t_alpha is 0; float64. */
static shard_tensor *mix(shard_tensor *state, shard_tensor *batch, double t_alpha)
{
    shard_tensor *wide = shard_reshape(shard_cast(shard_detach(state), SHARD_FLOAT64), SHARD_SCALAR);
    if (!batch || t_alpha == 0)
        return wide;
    return shard_add(shard_scale(batch, t_alpha), shard_scale(wide, 1 - t_alpha));
}

static bool put(shard_tensor *state, shard_tensor *mixed)
{
    void *from, *to = shard_tensor_memory_to_write(state);
    return to && shard_load(SHARD_INPUTS(mixed), &from) &&
           SHARD_RUN(mixed, cast, 1, from, SHARD_FLOAT64, to, state->dtype) == SHARD_OK;
}

/* The norms in float64, clamped. */
static shard_tensor *read_norms(margins_call *call)
{
    if (call->norms && call->norms->placement.kind == SHARD_SPLIT)
        call->group = call->norms->placement.group;
    if (!call->ready || !check(call))
        return NULL;
    if (call->group) {
        shard_require_identical_operand(call->norms);
        shard_require_identical("m %.9g, h %.9g, t_alpha %.9g", call->options->m, call->options->h, call->options->t_alpha);
    }
    return shard_clamp(shard_cast(shard_detach(call->norms), SHARD_FLOAT64), LEAST_NORM, LARGEST_NORM);
}

/* Returns the angular margins; *additive are the others. */
static shard_tensor *margins(margins_call *call, shard_tensor **additive)
{
    const shard_adaface_margins_options *options = call->options;
    shard_tensor *norms = read_norms(call), *total = sum_over_rows(call, norms);
    if (!total)
        return NULL;
    shard_shape whole = shard_tensor_whole_shape(norms);
    double rows = (double)shard_shape_product(&whole, 0, whole.ndim);
    shard_tensor *mean = shard_scale(total, 1 / rows), *apart = shard_sub(norms, mean);
    shard_tensor *squares = sum_over_rows(call, shard_mul(apart, apart));
    if (!squares)
        return NULL;
    shard_tensor *std = rows > 1 ? shard_sqrt(shard_scale(squares, 1 / (rows - 1))) : NULL;
    if (!mean || (rows > 1 && !std))
        return NULL;
    mean = mix(call->mean, rows > 0 ? mean : NULL, options->t_alpha);
    std = mix(call->std, std, options->t_alpha);
    shard_tensor *scaled = shard_scale(shard_div(shard_sub(norms, mean), shard_add_scalar(std, EPS)), options->h);
    shard_tensor *margin = shard_scale(shard_clamp(scaled, -1, 1), options->m);
    shard_tensor *angular = shard_neg(margin);
    *additive = shard_add_scalar(margin, options->m);
    if (!angular || !*additive) /* no memory: the statistics stay as they are */
        return NULL;
    bool follows = options->t_alpha != 0;
    bool done = (!follows || rows == 0 || put(call->mean, mean)) && (!follows || rows <= 1 || put(call->std, std));
    return done ? angular : NULL;
}

shard_tensor *shard_adaface_margins_with(shard_tensor *norms, shard_tensor *mean, shard_tensor *std,
                                         const shard_adaface_margins_options *given, shard_tensor **row_m3)
{
    SHARD_FUNCTION("shard_adaface_margins");
    SHARD_READ_OPTIONS(shard_adaface_margins_options, SHARD_ADAFACE_MARGINS_OPTIONS_INIT, options, given);
    shard_scope scope;
    shard_tensor *angular = NULL, *additive = NULL;
    shard_scope_open(&scope);
    SHARD_NO_GRAD
    {
        margins_call call = {.norms = norms, .mean = mean, .std = std, .options = &options, .ready = options_ok};
        angular = margins(&call, &additive);
    }
    angular = shard_scope_return(angular, &scope);
    if (row_m3)
        *row_m3 = angular ? shard_scope_return(additive, &scope) : NULL;
    shard_scope_close(&scope);
    return angular;
}
