/* The gradient scaler on one rank: PyTorch's rules. */
#include "support/host.h"
#include "support/job.h"
#include "support/scratch.h"
#include "support/single.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

/* What PyTorch keeps, by its rules. */
typedef struct trace {
    float scale, w;
    int64_t tracker;
} trace;

enum { INTERVAL = 3 };

static void follow(trace *t, double x)
{
    float scaled = (float)x * t->scale;
    if (isfinite(scaled)) {
        t->w -= 0.25f * (float)x;
        if (++t->tracker == INTERVAL) {
            float grown = t->scale * 4;
            t->scale = isfinite(grown) ? grown : t->scale;
            t->tracker = 0;
        }
    } else {
        t->scale *= 0.5f;
        t->tracker = 0;
    }
}

/* 2^10 times the scale is beyond float32 where that is 2^118 or more. */
static const double gradients[] = {1, 1024,     1024, 2, 3,         4, 1024, 5, NAN, 1,  1,     1,  1,  1,  1, 1024, 1024, 1024,
                                   7, INFINITY, 1,    1, -INFINITY, 1, 1,    1, 1,   -1, -1024, -1, -2, -3, 0, 0,    0};
enum { TRACE = sizeof gradients / sizeof *gradients };

static void check_trace(const shard_grad_scaler *scaler, const single *s, const trace *t, int step)
{
    ck_assert_msg(shard_grad_scaler_get_scale(scaler) == t->scale, "step %d: the scale is %g, not %g", step,
                  shard_grad_scaler_get_scale(scaler), (double)t->scale);
    ck_assert_msg(value_at(s->w, 0) == t->w && value_at(s->w, 2) == t->w, "step %d: w is %g, not %g", step, value_at(s->w, 0),
                  (double)t->w);
}

static shard_grad_scaler *make_scaler(void)
{
    return shard_grad_scaler_create(.init_scale = 0x1p120, .growth_factor = 4, .growth_interval = INTERVAL);
}

START_TEST(follows_the_rules)
{
    shard_grad_scaler *scaler = make_scaler();
    single s = make_single(3, 0);
    trace t = {0x1p120f, 1, 0};
    int skipped = 0, grown = 0;
    for (int i = 0; i < TRACE; i++) {
        float before = t.scale;
        back(scaler, &s, gradients[i]);
        if (i % 2) /* by itself or in the step */
            check_ok(shard_grad_scaler_unscale(scaler, s.sgd));
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        ck_assert_ptr_null(shard_grad(s.w)); /* in either case the next backward begins anew */
        bool left_out = shard_optimizer_skipped(s.sgd);
        check_ok(shard_grad_scaler_update(scaler));
        follow(&t, gradients[i]);
        check_trace(scaler, &s, &t, i);
        ck_assert_int_eq(left_out, t.scale < before);
        ck_assert_int_eq(shard_optimizer_skipped(s.sgd), left_out);
        skipped += t.scale < before;
        grown += t.scale > before;
    }
    ck_assert(skipped > 3 && grown > 3);
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

/* A factor that would be infinite is not taken; the count begins anew. */
START_TEST(stops_growing)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 0x1p126, .growth_interval = 2);
    single s = make_single(1, 0);
    for (int i = 0; i < 6; i++) {
        back(scaler, &s, 0x1p-10);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), i < 1 ? 0x1p126 : 0x1p127);
    }
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

/* A scale with an infinite inverse is not taken. */
START_TEST(stops_shrinking)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 0x1p-125);
    single s = make_single(1, 0);
    for (int i = 0; i < 4; i++) {
        back(scaler, &s, i < 3 ? INFINITY : 1);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), 0x1p-126);
    }
    ck_assert_double_eq(value_at(s.w, 0), 0.75);
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

START_TEST(defaults)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single s = make_single(1, 0);
    shard_tensors *state = shard_grad_scaler_state_dict(scaler);
    int64_t steps = 1998;
    check_ok(shard_copy_from_host(shard_tensors_find(state, "growth_tracker"), &steps, sizeof steps));
    shard_tensors_destroy(state);
    for (int64_t i = steps + 1; i <= 2002; i++) {
        back(scaler, &s, i == 2002 ? NAN : 0);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), i == 2000 || i == 2001 ? 131072 : 65536);
    }
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

/* A step that is left out leaves state and number of steps alone. */
START_TEST(leaves_the_optimizer_alone)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single s = make_single(2, 0.5);
    shard_tensors *state = shard_optimizer_state_dict(s.sgd);
    static const double x[] = {NAN, 1, NAN, 1};
    static const double momentum[] = {0, 1, 1, 1.5}, steps[] = {0, 1, 1, 2};
    for (int i = 0; i < 4; i++) {
        back(scaler, &s, x[i]);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_double_eq(value_at(shard_tensors_find(state, "w.momentum_buffer"), 1), momentum[i]);
        ck_assert_double_eq(value_at(shard_tensors_find(state, "w.step"), 0), steps[i]);
    }
    shard_tensors_destroy(state);
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

/* As torch: only the optimizer that overflowed is left out, and the factor goes down. */
START_TEST(looks_at_each_optimizer)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single a = make_single(1, 0), b = make_single(1, 0);
    back(scaler, &a, 1);
    back(scaler, &b, NAN);
    check_ok(shard_grad_scaler_step(scaler, b.sgd)); /* the later one does not make up for it */
    check_ok(shard_grad_scaler_step(scaler, a.sgd));
    check_ok(shard_grad_scaler_update(scaler));
    ck_assert_double_eq(value_at(a.w, 0), 0.75);
    ck_assert_double_eq(value_at(b.w, 0), 1);
    ck_assert(!shard_optimizer_skipped(a.sgd));
    ck_assert(shard_optimizer_skipped(b.sgd));
    back(NULL, &b, 1);
    check_ok(shard_grad_scaler_step(NULL, b.sgd)); /* the last one alone counts */
    ck_assert(!shard_optimizer_skipped(b.sgd));
    ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), 32768);
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(a.sgd);
    shard_optimizer_destroy(b.sgd);
    shard_release(a.w);
    shard_release(b.w);
}
END_TEST

/* Of two optimizers, one of whose gradients is not finite, both are kept from stepping; the next step is of both. */
START_TEST(skips_all_or_none)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single each[] = {make_single(1, 0), make_single(1, 0)};
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++)
            back(scaler, &each[i], i == 1 && step == 0 ? INFINITY : 1);
        ck_assert(!shard_grad_scaler_overflowed(scaler));
        for (int i = 0; i < 2; i++)
            check_ok(shard_grad_scaler_unscale(scaler, each[i].sgd));
        bool overflowed = shard_grad_scaler_overflowed(scaler);
        ck_assert_int_eq(overflowed, step == 0);
        for (int i = 0; i < 2; i++)
            if (overflowed)
                shard_optimizer_zero_grad(each[i].sgd);
            else
                check_ok(shard_grad_scaler_step(scaler, each[i].sgd));
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert(!shard_grad_scaler_overflowed(scaler));
        ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), 32768);
        for (int i = 0; i < 2; i++)
            ck_assert_double_eq(value_at(each[i].w, 0), overflowed ? 1 : 0.75);
    }
    shard_grad_scaler_destroy(scaler);
    for (int i = 0; i < 2; i++) {
        shard_optimizer_destroy(each[i].sgd);
        shard_release(each[i].w);
    }
}
END_TEST

/* Clipping between unscale and step is of the loss's own gradients. */
START_TEST(unscales_before_clipping)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single s = make_single(1, 0);
    for (int step = 0; step < 2; step++) {
        double norm;
        back(scaler, &s, 3);
        back(scaler, &s, 1); /* accumulated */
        check_ok(shard_grad_scaler_unscale(scaler, s.sgd));
        check_ok(shard_clip_grad_norm(s.sgd, 2, &norm));
        ck_assert_double_eq(norm, 4);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_double_eq_tol(value_at(s.w, 0), 0.5 - 0.5 * step, 1e-6);
    }
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

/* Gradients that a common norm has made NaN before they are unscaled are as those that backward has made so. */
START_TEST(sees_the_factor_of_clipping)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single each[] = {make_single(1, 0), make_single(1, 0)};
    shard_optimizer *both[] = {each[0].sgd, each[1].sgd};
    back(scaler, &each[0], 1);
    back(scaler, &each[1], NAN);
    check_ok(shard_clip_grad_norm_of(both, 2, 1.0, NULL));
    for (int i = 0; i < 2; i++) {
        check_ok(shard_grad_scaler_step(scaler, each[i].sgd));
        ck_assert(shard_optimizer_skipped(each[i].sgd));
        ck_assert_double_eq(value_at(each[i].w, 0), 1);
    }
    check_ok(shard_grad_scaler_update(scaler));
    shard_grad_scaler_destroy(scaler);
    for (int i = 0; i < 2; i++) {
        shard_optimizer_destroy(each[i].sgd);
        shard_release(each[i].w);
    }
}
END_TEST

/* Gradients in float64 are finite also where their squares are not. */
START_TEST(takes_large_gradients)
{
    SHARD_SCOPE
    {
        shard_tensor *w = shard_ones(SHARD_SHAPE(3), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "w", w));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1e-200);
        shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 2);
        check_ok(shard_backward(shard_grad_scaler_scale(scaler, shard_scale(shard_sum(w), 1e200))));
        check_ok(shard_grad_scaler_step(scaler, sgd));
        ck_assert(!shard_optimizer_skipped(sgd));
        ck_assert_double_eq_tol(value_at(w, 0), 0, 1e-12);
        shard_grad_scaler_destroy(scaler);
        shard_optimizer_destroy(sgd);
    }
}
END_TEST

/* What was unscaled and then forgotten: the next gradients are looked at anew, and the factor
 * goes down for what was found in the old ones. */
START_TEST(forgets_what_was_unscaled)
{
    for (int way = 0; way < 3; way++) {
        shard_grad_scaler *scaler = shard_grad_scaler_create();
        single s = make_single(1, 0);
        double norm;
        back(scaler, &s, NAN);
        check_ok(shard_grad_scaler_unscale(scaler, s.sgd));
        ck_assert_int_ne(shard_clip_grad_norm(s.sgd, 1, &norm, .error_if_nonfinite = true), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "shard_clip_grad_norm: *");
        shard_optimizer_zero_grad(s.sgd);
        back(scaler, &s, 2);
        if (way == 1)
            check_ok(shard_grad_scaler_unscale(scaler, s.sgd));
        if (way == 2) { /* the norm of the loss times the scale */
            check_ok(shard_clip_grad_norm(s.sgd, INFINITY, &norm));
            ck_assert_double_eq(norm, 2 * 65536);
        }
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        ck_assert_double_eq(value_at(s.w, 0), 0.5);
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), 32768);
        shard_grad_scaler_destroy(scaler);
        shard_optimizer_destroy(s.sgd);
        shard_release(s.w);
    }
}
END_TEST

/* An update between unscaling and stepping does not have the gradients divided twice. */
START_TEST(unscales_once)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create(.growth_interval = 1);
    single s = make_single(1, 0);
    back(scaler, &s, 2);
    check_ok(shard_grad_scaler_unscale(scaler, s.sgd));
    check_ok(shard_grad_scaler_update(scaler));
    ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), 131072);
    check_ok(shard_grad_scaler_step(scaler, s.sgd));
    ck_assert_double_eq(value_at(s.w, 0), 0.5);
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

START_TEST(takes_a_factor)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single s = make_single(1, 0);
    check_ok(shard_grad_scaler_set_scale(scaler, 8));
    ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), 8);
    back(scaler, &s, 2);
    ck_assert_double_eq(value_at(shard_grad(s.w), 0), 16);
    check_ok(shard_grad_scaler_step(scaler, s.sgd));
    check_ok(shard_grad_scaler_update(scaler));
    ck_assert_double_eq(value_at(s.w, 0), 0.5);
    static const double unsound[] = {0, -1, NAN, INFINITY, 1e39, 1e-39, 1e-60}; /* 1 / 1e-39 is infinite in float32 */
    for (size_t i = 0; i < sizeof unsound / sizeof *unsound; i++) {
        ck_assert_int_ne(shard_grad_scaler_set_scale(scaler, unsound[i]), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_set_scale: *");
    }
    ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), 8);

    /* A file may have any: no step is made by it, and the next one is with another. */
    shard_tensors *state = shard_grad_scaler_state_dict(scaler);
    shard_tensor *scale = shard_tensors_find(state, "scale"), *tracker = shard_tensors_find(state, "growth_tracker");
    static const float loaded[] = {0, -1, NAN, INFINITY, 1e-39f};
    for (size_t i = 0; i < sizeof loaded / sizeof *loaded; i++) {
        check_ok(shard_copy_from_host(scale, &loaded[i], sizeof loaded[i]));
        back(scaler, &s, 2);
        check_fails(shard_grad_scaler_step(scaler, s.sgd), SHARD_ERROR_ARGUMENT,
                    "shard_grad_scaler: the scale is *, as it was loaded: *");
        ck_assert_double_eq(value_at(s.w, 0), 0.5);
        shard_optimizer_zero_grad(s.sgd);
    }
    int64_t steps[] = {INT64_MAX, INT64_MIN};
    check_ok(shard_grad_scaler_set_scale(scaler, 8));
    for (int i = 0; i < 2; i++) {
        check_ok(shard_copy_from_host(tracker, &steps[i], sizeof steps[i]));
        back(scaler, &s, 2);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_int_eq((int64_t)shard_item(tracker), i);
        ck_assert_double_eq(shard_grad_scaler_get_scale(scaler), 16); /* the first has grown */
    }
    shard_tensors_destroy(state);
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

START_TEST(refuses)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    single s = make_single(1, 0);
    ck_assert_int_eq(shard_grad_scaler_update(scaler), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_update: no gradients were unscaled*");
    back(scaler, &s, 1);
    check_ok(shard_grad_scaler_unscale(scaler, s.sgd));
    ck_assert_int_ne(shard_grad_scaler_unscale(scaler, s.sgd), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_unscale: *were unscaled since*");
    check_ok(shard_grad_scaler_step(scaler, s.sgd));
    ck_assert_int_ne(shard_grad_scaler_step(scaler, s.sgd), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_step: *were stepped by since*");
    ck_assert_int_ne(shard_grad_scaler_unscale(scaler, s.sgd), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_unscale: *were stepped by since*");
    ck_assert_int_ne(shard_grad_scaler_step(scaler, NULL), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_step: optimizer is NULL*");
    check_ok(shard_grad_scaler_update(scaler));
    ck_assert_int_eq(shard_grad_scaler_update(scaler), SHARD_ERROR_ARGUMENT); /* without a step since */
    check_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler_update: no gradients were unscaled*");
    static const shard_grad_scaler_options unsound[] = {
        {SHARD_GRAD_SCALER_OPTIONS_VALUES, .init_scale = -1},      {SHARD_GRAD_SCALER_OPTIONS_VALUES, .init_scale = 1e39},
        {SHARD_GRAD_SCALER_OPTIONS_VALUES, .init_scale = 1e-39},   {SHARD_GRAD_SCALER_OPTIONS_VALUES, .growth_interval = -3},
        {SHARD_GRAD_SCALER_OPTIONS_VALUES, .growth_factor = 1},    {SHARD_GRAD_SCALER_OPTIONS_VALUES, .backoff_factor = 1.5},
        {SHARD_GRAD_SCALER_OPTIONS_VALUES, .backoff_factor = NAN},
    };
    for (size_t i = 0; i < sizeof unsound / sizeof *unsound; i++) {
        ck_assert_ptr_null(shard_grad_scaler_create_with(&unsound[i]));
        check_error(SHARD_ERROR_ARGUMENT, "shard_grad_scaler: init_scale *");
    }
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

/* A gradient that float16 has only as long as it is scaled, and a loss that it has not. */
START_TEST(keeps_small_gradients)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 0x1p14);
    SHARD_SCOPE
    {
        shard_tensor *w = shard_ones(SHARD_SHAPE(8), .dtype = SHARD_FLOAT16, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "half", w));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 0x1p20);
        shard_tensor *loss = shard_sum(shard_mul(w, shard_full(SHARD_SHAPE(8), 1.0, .dtype = SHARD_FLOAT16)));
        loss = shard_grad_scaler_scale(scaler, loss);
        ck_assert_int_eq(shard_tensor_dtype(loss), SHARD_FLOAT32);
        ck_assert_double_eq(shard_item(loss), 8 * 0x1p14);
        check_ok(shard_backward(shard_scale(loss, 0x1p-26)));
        check_ok(shard_grad_scaler_step(scaler, sgd));
        ck_assert_double_eq(value_at(w, 0), 1 - 0x1p-6);
        shard_optimizer_destroy(sgd);
    }
    shard_grad_scaler_destroy(scaler);
}
END_TEST

START_TEST(null_is_off)
{
    single s = make_single(1, 0);
    back(NULL, &s, 2);
    check_ok(shard_grad_scaler_unscale(NULL, s.sgd));
    check_ok(shard_grad_scaler_step(NULL, s.sgd));
    check_ok(shard_grad_scaler_update(NULL));
    ck_assert_double_eq(value_at(s.w, 0), 0.5);
    ck_assert_double_eq(shard_grad_scaler_get_scale(NULL), 1);
    back(NULL, &s, NAN); /* stepped by, as nobody looks */
    check_ok(shard_grad_scaler_step(NULL, s.sgd));
    ck_assert(!shard_optimizer_skipped(s.sgd));
    ck_assert(!shard_optimizer_skipped(NULL));
    shard_tensor *loss = shard_full(SHARD_SCALAR, 3), *scaled = shard_grad_scaler_scale(NULL, loss); /* without a scope */
    shard_release(loss);
    ck_assert_double_eq(value_at(scaled, 0), 3);
    shard_release(scaled);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

/* Saved in the middle of the trace and loaded into another one. */
START_TEST(resumes)
{
    scratch_open();
    const char *path = scratch_path("scaler.safetensors");
    shard_grad_scaler *scaler = make_scaler();
    single s = make_single(3, 0);
    trace t = {0x1p120f, 1, 0};
    for (int i = 0; i < TRACE; i++) {
        if (i % 4 == 0) {
            shard_tensors *state = shard_grad_scaler_state_dict(scaler);
            check_ok(shard_save(state, path, NULL));
            shard_tensors_destroy(state);
            shard_grad_scaler_destroy(scaler);
            scaler = make_scaler();
            state = shard_grad_scaler_state_dict(scaler);
            check_ok(shard_load(state, path));
            shard_tensors_destroy(state);
        }
        back(scaler, &s, gradients[i]);
        check_ok(shard_grad_scaler_step(scaler, s.sgd));
        check_ok(shard_grad_scaler_update(scaler));
        follow(&t, gradients[i]);
        check_trace(scaler, &s, &t, i);
    }
    scratch_close();
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(s.sgd);
    shard_release(s.w);
}
END_TEST

/* ---- with autocast ---- */

/* The loss after some steps; *skipped counts those that were left out. */
static double train(shard_dtype mode, shard_grad_scaler *scaler, int *skipped)
{
    shard_manual_seed(7);
    shard_module *model = shard_nn_sequential(shard_nn_linear(8, 16), shard_nn_gelu(), shard_nn_linear(16, 3));
    shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 0.5, .momentum = 0.5);
    double value = 0;
    *skipped = 0;
    for (int done = 0; done < 20;) {
        double scale = shard_grad_scaler_get_scale(scaler);
        SHARD_SCOPE
        {
            int64_t labels[12];
            for (int i = 0; i < 12; i++)
                labels[i] = i * i % 3;
            shard_tensor *x = made_up(SHARD_SHAPE(12, 8), 2, SHARD_FLOAT32), *loss = NULL;
            shard_tensor *y = shard_from_host(labels, SHARD_SHAPE(12), .dtype = SHARD_INT64);
            SHARD_AUTOCAST(mode)
                loss = shard_cross_entropy(shard_forward(model, x), y);
            value = shard_item(loss);
            check_ok(shard_backward(shard_grad_scaler_scale(scaler, loss)));
        }
        check_ok(shard_grad_scaler_step(scaler, sgd));
        check_ok(shard_grad_scaler_update(scaler));
        ck_assert_int_eq(shard_optimizer_skipped(sgd), shard_grad_scaler_get_scale(scaler) < scale);
        *skipped += shard_optimizer_skipped(sgd);
        done += !shard_optimizer_skipped(sgd);
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    return value;
}

/* float16's gradients overflow until the factor is small enough; then as float32's. */
START_TEST(trains_in_float16)
{
    shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 0x1p26);
    int skipped, none;
    double loss = train(SHARD_FLOAT16, scaler, &skipped), wanted = train(SHARD_FLOAT32, NULL, &none);
    ck_assert_int_gt(skipped, 3);
    ck_assert_int_eq(none, 0);
    ck_assert_double_eq_tol(loss, wanted, 4e-3 * wanted);
    shard_grad_scaler_destroy(scaler);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("grad_scaler");
    TCase *tcase = test_case(suite, "grad_scaler");
    tcase_add_test(tcase, follows_the_rules);
    tcase_add_test(tcase, stops_growing);
    tcase_add_test(tcase, stops_shrinking);
    tcase_add_test(tcase, defaults);
    tcase_add_test(tcase, leaves_the_optimizer_alone);
    tcase_add_test(tcase, looks_at_each_optimizer);
    tcase_add_test(tcase, skips_all_or_none);
    tcase_add_test(tcase, unscales_before_clipping);
    tcase_add_test(tcase, sees_the_factor_of_clipping);
    tcase_add_test(tcase, takes_large_gradients);
    tcase_add_test(tcase, forgets_what_was_unscaled);
    tcase_add_test(tcase, unscales_once);
    tcase_add_test(tcase, takes_a_factor);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, keeps_small_gradients);
    tcase_add_test(tcase, null_is_off);
    tcase_add_test(tcase, resumes);
    tcase_add_test(tcase, trains_in_float16);
    return test_run(suite);
}
