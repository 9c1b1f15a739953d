/*
 * A run of 50 steps that is stopped after any of them and resumed from its checkpoint: weights, optimizer state, averages,
 * scaler, random state and the order of the samples are the same bits as those of the run that was not stopped. With dropout,
 * random augmentation, batch norm, mixed precision whose scaler skips steps, clipping, a sample of classes, stochastic rounding
 * and schedules.
 */
#include "support/file_calls.h"
#include "support/job.h"
#include "support/options.h"
#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 4 steps an epoch, the last of them filled up with samples from its beginning. */
enum { STEPS = 50, SAMPLES = 22, BATCH = 6, IN = 9, HIDDEN = 10, FEATURES = 7, CLASSES = 37, TURNS = 5 };

typedef struct setting {
    int ranks, model, stage; /* ranks in all, of a shard of the head each, stage of ZeRO */
} setting;

static const setting settings[] = {{1, 1, 0}, {2, 2, 0}, {2, 1, 1}, {4, 2, 2}, {4, 2, 3}};
enum { SETTINGS = sizeof settings / sizeof *settings };

static bool every; /* each step, to the end of the run, in processes of its own; else every fifth, for some steps */

typedef struct run {
    shard_mesh *mesh;
    shard_module *body, *head;
    shard_data_parallel *parallel;
    shard_optimizer *optimizer[2]; /* of the body and of the head */
    shard_ema *ema[2];
    shard_grad_scaler *scaler;
    shard_group_sampler *sampler;
    shard_tensors *state;
    int64_t step, skipped;
} run;

/* What a step has done, for comparison. */
typedef struct trace {
    int64_t samples[BATCH], count, next_draw;
    double loss, scale, norm;
} trace;

/* ---- a training run ---- */

static void add_state(run *r, const char *prefix, shard_tensors *state)
{
    check_ok(shard_tensors_extend(r->state, prefix, state));
    shard_tensors_destroy(state);
}

static void make_parallel(run *r, const setting *s)
{
    shard_tensors *parameters = shard_parameters(r->body), *head = shard_parameters(r->head),
                  *buffers = shard_state_dict(r->body);
    check_ok(shard_tensors_extend(parameters, "head.", head));
    r->parallel = shard_data_parallel_create(parameters, .stage = s->stage, .buffers = buffers, .bucket_mib = 1e-3);
    ck_assert_msg(r->parallel != NULL, "%s", shard_last_error());
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(head);
    shard_tensors_destroy(buffers);
}

static run make_run(const setting *s, uint64_t seed)
{
    run r = {.mesh = shard_mesh_create(.model = s->model), .state = shard_tensors_create()};
    shard_group *data = shard_mesh_data_group(r.mesh);
    shard_manual_seed(seed);
    r.body = shard_nn_sequential(shard_nn_linear(IN, HIDDEN), shard_nn_batch_norm(HIDDEN, .group = data), shard_nn_relu(),
                                 shard_nn_dropout(0.25), shard_nn_linear(HIDDEN, FEATURES), shard_nn_gelu());
    r.head =
        shard_nn_parallel_classifier(FEATURES, CLASSES, shard_mesh_model_group(r.mesh), .bias = false, .dtype = SHARD_BFLOAT16);
    make_parallel(&r, s);
    r.optimizer[0] = shard_sgd(r.body, .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true);
    r.optimizer[1] =
        shard_adamw(r.head, .lr = 0.02, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 5, .state_dtype = SHARD_BFLOAT16);
    r.scaler = shard_grad_scaler_create(.init_scale = 0x1p18, .growth_interval = 3);
    r.sampler = shard_group_sampler_create(SAMPLES, .batch = BATCH, .group = data, .shuffle = true, .seed = 3);
    add_state(&r, "body.", shard_state_dict(r.body));
    add_state(&r, "head.", shard_state_dict(r.head));
    for (int i = 0; i < 2; i++) {
        r.ema[i] = shard_ema_create(r.optimizer[i], .decay = 0.9, .warmup = i == 0);
        add_state(&r, i ? "head.optimizer." : "body.optimizer.", shard_optimizer_state_dict(r.optimizer[i]));
        add_state(&r, i ? "head.ema." : "body.ema.", shard_ema_state_dict(r.ema[i]));
    }
    add_state(&r, "scaler.", shard_grad_scaler_state_dict(r.scaler));
    ck_assert_msg(r.sampler != NULL, "%s", shard_last_error());
    return r;
}

static void drop_run(run *r)
{
    shard_tensors_destroy(r->state);
    shard_group_sampler_destroy(r->sampler);
    shard_grad_scaler_destroy(r->scaler);
    for (int i = 0; i < 2; i++) {
        shard_ema_destroy(r->ema[i]);
        shard_optimizer_destroy(r->optimizer[i]);
    }
    shard_data_parallel_destroy(r->parallel);
    shard_module_destroy(r->body);
    shard_module_destroy(r->head);
    shard_mesh_destroy(r->mesh);
}

/* The features of this rank's samples with noise that each epoch draws anew, and their labels. */
static void read_batch(const trace *t, shard_tensor **x, shard_tensor **labels)
{
    float values[BATCH * IN];
    int64_t classes[BATCH];
    for (int64_t i = 0; i < t->count; i++) {
        classes[i] = t->samples[i] * 5 % CLASSES;
        for (int64_t k = 0; k < IN; k++)
            values[i * IN + k] = (float)sin((double)(classes[i] * (k + 1)) + 0.1 * (double)t->samples[i]);
    }
    shard_tensor *noise = shard_normal(SHARD_SHAPE(t->count, IN), 0.0, 0.1);
    *x = shard_add(shard_from_host(values, SHARD_SHAPE(t->count, IN)), noise);
    *labels = shard_from_host(classes, SHARD_SHAPE(t->count), .dtype = SHARD_INT64);
}

static void set_rates(run *r)
{
    const shard_schedule body =
        SHARD_SCHEDULE(.kind = SHARD_SCHEDULE_COSINE, .base_lr = 0.1, .warmup_steps = 7, .total_steps = STEPS);
    const shard_schedule head = SHARD_SCHEDULE(.kind = SHARD_SCHEDULE_MULTI_STEP, .base_lr = 0.02, .milestones = {20, 40});
    check_ok(shard_optimizer_set_lr(r->optimizer[0], shard_schedule_lr(&body, r->step)));
    check_ok(shard_optimizer_set_lr(r->optimizer[1], shard_schedule_lr(&head, r->step)));
}

static double back(run *r, const trace *t)
{
    double result = 0;
    SHARD_SCOPE
    {
        shard_tensor *x, *labels, *features = NULL;
        read_batch(t, &x, &labels);
        x = shard_copy_to_group(x, shard_mesh_model_group(r->mesh));
        SHARD_AUTOCAST(SHARD_FLOAT16)
        {
            features = shard_forward(r->body, x);
        }
        shard_tensor *sample = shard_sample_classes(labels, shard_module_tensor(r->head, "weight"), 0.3, 4, r->step);
        shard_tensor *logits = shard_forward(r->head, shard_cast(features, SHARD_BFLOAT16));
        shard_tensor *loss = shard_cross_entropy(logits, labels, .sample = sample, .label_smoothing = 0.1);
        result = shard_item(loss);
        check_ok(shard_backward(shard_grad_scaler_scale(r->scaler, loss)));
    }
    return result;
}

static trace train_step(run *r)
{
    trace t = {0};
    if (!shard_group_sampler_next(r->sampler, t.samples, &t.count)) {
        check_ok(shard_group_sampler_set_epoch(r->sampler, shard_group_sampler_epoch(r->sampler) + 1));
        ck_assert(shard_group_sampler_next(r->sampler, t.samples, &t.count));
    }
    set_rates(r);
    t.loss = back(r, &t);
    for (int i = 0; i < 2; i++)
        check_ok(shard_grad_scaler_unscale(r->scaler, r->optimizer[i]));
    if (shard_grad_scaler_overflowed(r->scaler)) {
        for (int i = 0; i < 2; i++)
            shard_optimizer_zero_grad(r->optimizer[i]);
        r->skipped++;
    } else {
        check_ok(shard_clip_grad_norm_of(r->optimizer, 2, 0.5, &t.norm));
        for (int i = 0; i < 2; i++) {
            check_ok(shard_grad_scaler_step(r->scaler, r->optimizer[i]));
            check_ok(shard_ema_update(r->ema[i]));
        }
    }
    check_ok(shard_grad_scaler_update(r->scaler));
    r->step++;
    t.scale = shard_grad_scaler_get_scale(r->scaler);
    t.next_draw = shard_get_random_state().next_draw;
    return t;
}

/* ---- its files ---- */

static void save(const run *r, const char *path)
{
    shard_random_state random = shard_get_random_state();
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"step", r->step},
                   {"epoch", shard_group_sampler_epoch(r->sampler)},
                   {"epoch_step", shard_group_sampler_step(r->sampler)},
                   {"random_seed", random.seed},
                   {"random_draw", random.next_draw}};
    shard_metadata *at = shard_metadata_create();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        check_ok(shard_metadata_set_integer(at, numbers[i].name, numbers[i].value));
    check_ok(shard_save(r->state, path, at));
    shard_metadata_destroy(at);
}

static void resume(run *r, const char *path)
{
    int64_t epoch, epoch_step;
    shard_random_state random;
    shard_metadata *at = NULL;
    check_ok(shard_load_with_metadata(r->state, path, &at));
    check_ok(shard_metadata_get_integer(at, "step", &r->step));
    check_ok(shard_metadata_get_integer(at, "epoch", &epoch));
    check_ok(shard_metadata_get_integer(at, "epoch_step", &epoch_step));
    check_ok(shard_metadata_get_integer(at, "random_seed", &random.seed));
    check_ok(shard_metadata_get_integer(at, "random_draw", &random.next_draw));
    check_ok(shard_group_sampler_seek(r->sampler, epoch, epoch_step));
    shard_set_random_state(random);
    shard_metadata_destroy(at);
}

static const char *path_of(const char *kind, int64_t number)
{
    char name[60];
    snprintf(name, sizeof name, "%s-%lld", kind, (long long)number);
    return scratch_path(name);
}

static void check_same_file(const char *path, const char *expected, int64_t from, int64_t step)
{
    size_t bytes[2];
    char *content[2] = {read_file(path, &bytes[0]), read_file(expected, &bytes[1])};
    ck_assert_uint_eq(bytes[0], bytes[1]);
    ck_assert_msg(memcmp(content[0], content[1], bytes[0]) == 0,
                  "resumed after step %lld: the checkpoint of step %lld is not that of the run that was not stopped",
                  (long long)from, (long long)step);
    free(content[0]);
    free(content[1]);
}

/* ---- the run in one, and the resumed ones ---- */

static ssize_t leave_sync_out(const file_call *call)
{
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

static void run_through(shard_group *world, void *context)
{
    const setting *s = context;
    trace traces[STEPS];
    file_calls_watch(leave_sync_out);
    run r = make_run(s, 7);
    save(&r, path_of("whole", 0));
    for (int i = 0; i < STEPS; i++) {
        traces[i] = train_step(&r);
        save(&r, path_of("whole", r.step));
    }
    ck_assert_msg(r.skipped >= 3 && r.skipped <= STEPS / 2, "the scaler skips %lld steps", (long long)r.skipped);
    ck_assert_int_gt(shard_group_sampler_epoch(r.sampler), 10);
    write_file(path_of("traces", shard_group_rank(world)), traces, sizeof traces);
    drop_run(&r);
}

/* Values of a run of another seed, which has stepped, are overwritten. */
static void resume_at(const setting *s, int64_t from, int64_t to)
{
    int rank = shard_group_rank(shard_world());
    size_t bytes;
    trace *traces = read_file(path_of("traces", rank), &bytes);
    run r = make_run(s, 1000 + (uint64_t)from);
    train_step(&r);
    resume(&r, path_of("whole", from));
    ck_assert_int_eq(r.step, from);
    while (r.step < to) {
        trace t = train_step(&r), *expected = &traces[r.step - 1];
        ck_assert_msg(memcmp(t.samples, expected->samples, sizeof t.samples) == 0,
                      "resumed after step %lld: step %lld has other samples", (long long)from, (long long)r.step);
        ck_assert_msg(
            memcmp(&t, expected, sizeof t) == 0,
            "resumed after step %lld: step %lld has loss %.17g, scale %g, norm %.17g, draw %lld, not %.17g, %g, %.17g, %lld",
            (long long)from, (long long)r.step, t.loss, t.scale, t.norm, (long long)t.next_draw, expected->loss, expected->scale,
            expected->norm, (long long)expected->next_draw);
    }
    save(&r, path_of("resumed", 0));
    if (rank == 0)
        check_same_file(path_of("resumed", 0), path_of("whole", to), from, to);
    check_ok(shard_barrier(shard_world()));
    drop_run(&r);
    free(traces);
}

typedef struct part {
    const setting *setting;
    int first, stride, length; /* resumed after steps first, first + stride, ..., for so many steps */
} part;

static void resume_part(shard_group *world, void *context)
{
    const part *p = context;
    (void)world;
    file_calls_watch(leave_sync_out);
    for (int64_t from = p->first; from < STEPS; from += p->stride)
        resume_at(p->setting, from, from + p->length < STEPS ? from + p->length : STEPS);
}

START_TEST(test_each_step)
{
    const setting *s = &settings[_i];
    int cases = 0;
    run_job(s->ranks, run_through, (void *)s);
    for (int from = every ? 0 : _i % TURNS; from < (every ? STEPS : _i % TURNS + 1); from++) {
        part p = {.setting = s, .first = from, .stride = every ? STEPS : TURNS, .length = every ? STEPS : 2};
        run_job(s->ranks, resume_part, &p);
        cases += (STEPS - 1 - p.first) / p.stride + 1;
    }
    printf("cases: %d\n", cases);
}
END_TEST

int main(void)
{
    every = getenv("SHARD_TEST_EVERY") != NULL;
    scratch_open();
    Suite *suite = suite_create("resume");
    TCase *tcase = test_case(suite, "resume");
    if (every)
        tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_each_step, 0, SETTINGS);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
