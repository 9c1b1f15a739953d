/*
 * A checkpoint that was saved on some ranks is loaded on others: for every pair of numbers of ranks, splits and stages of ZeRO,
 * and optimizers with all kinds of state, the values are the same bits, and the next step is that of the training that went on.
 */
#include "support/file_calls.h"
#include "support/job.h"
#include "support/options.h"
#include "support/scratch.h"

#include "base/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Heads of 7 and 3 classes and 5 features: ranges are uneven, and on 8 ranks some are empty. 24 rows go into 1, 2, 3, 4 and 8. */
enum { IN = 6, FEATURES = 5, CLASSES = 7, FEW_CLASSES = 3, ROWS = 24, HEADS = 2, SAVED_AT = 2, STAGES = 4 };

/* ---- the table ---- */

typedef struct layout {
    int ranks;
    shard_split split; /* of the heads */
    int model;         /* ranks of which each has a shard of the heads; ranks / model replicas */
} layout;

static const layout layouts[] = {
    {1, SHARD_SPLIT_NONE, 1},   {1, SHARD_SPLIT_COLUMN, 1}, {1, SHARD_SPLIT_ROW, 1},    {2, SHARD_SPLIT_NONE, 1},
    {2, SHARD_SPLIT_COLUMN, 2}, {2, SHARD_SPLIT_ROW, 2},    {3, SHARD_SPLIT_NONE, 1},   {3, SHARD_SPLIT_COLUMN, 3},
    {3, SHARD_SPLIT_ROW, 3},    {4, SHARD_SPLIT_NONE, 1},   {4, SHARD_SPLIT_COLUMN, 4}, {4, SHARD_SPLIT_ROW, 4},
    {4, SHARD_SPLIT_COLUMN, 2}, {4, SHARD_SPLIT_ROW, 2},    {8, SHARD_SPLIT_NONE, 1},   {8, SHARD_SPLIT_COLUMN, 8},
    {8, SHARD_SPLIT_ROW, 8},    {8, SHARD_SPLIT_COLUMN, 2}, {8, SHARD_SPLIT_ROW, 4},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static shard_optimizer *momentum(shard_tensors *p)
{
    return sgd_of_list(p, .lr = 0.05, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01);
}
static shard_optimizer *adamw(shard_tensors *p)
{
    return adamw_of_list(p, .lr = 0.02, .amsgrad = true);
}
static shard_optimizer *rowwise_adagrad(shard_tensors *p)
{
    return rowwise_adagrad_of_list(p, .lr = 0.02);
}
static shard_optimizer *rowwise_adam(shard_tensors *p)
{
    return rowwise_adam_of_list(p, .lr = 0.02);
}
static shard_optimizer *stochastic(shard_tensors *p)
{
    return adam_of_list(p, .lr = 0.2, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 9, .state_dtype = SHARD_BFLOAT16);
}
static shard_optimizer *kahan(shard_tensors *p)
{
    return sgd_of_list(p, .lr = 1.0, .momentum = 0.9, .rounding = SHARD_ROUNDING_KAHAN, .state_dtype = SHARD_FLOAT32);
}

typedef struct setting {
    const char *name;
    shard_optimizer *(*make)(shard_tensors *parameters);
    shard_dtype dtype;
    double tolerance; /* of a step on other ranks, or of other shards: times 1 + the magnitude */
    bool by_rows;     /* a weight that is split by its columns is refused */
} setting;

static const setting settings[] = {
    {"SGD with momentum in float64", momentum, SHARD_FLOAT64, 1e-13, false},
    {"AdamW with amsgrad", adamw, SHARD_FLOAT32, 1e-4, false},
    {"row-wise Adagrad", rowwise_adagrad, SHARD_FLOAT32, 1e-5, true},
    {"row-wise Adam", rowwise_adam, SHARD_FLOAT32, 1e-4, true},
    {"Adam in bfloat16, rounded at random", stochastic, SHARD_BFLOAT16, 0.03, false},
    {"SGD in bfloat16 with compensation", kahan, SHARD_BFLOAT16, 0.03, false},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

/* One way to train: numbers of the table. */
typedef struct way {
    int layout, setting, stage;
} way;

static bool every; /* each pair; else some */
#define JOBS (every ? RANK_COUNTS : 2)

/* The numbers of ranks of the first or the second job that saves, or loads: of all settings nearly all pairs. */
static int ranks_of(bool loads, int number, int job)
{
    return rank_counts[every ? job : (loads ? 2 * number + job : number + 2 * job) % RANK_COUNTS];
}

/* In the usual run each layout has one of the stages. */
static bool is_run(way w)
{
    bool possible = !(settings[w.setting].by_rows && layouts[w.layout].split == SHARD_SPLIT_ROW);
    return possible && (every || w.stage == (w.layout + w.setting) % STAGES);
}

static bool is_saved(way w)
{
    for (int job = 0; job < JOBS; job++)
        if (ranks_of(false, w.setting, job) == layouts[w.layout].ranks)
            return true;
    return false;
}

static bool is_loaded(way reader, way writer)
{
    return is_saved(writer) && (every || (reader.layout + writer.layout) % 2 == 0);
}

static bool has_same_ranks(const layout *a, const layout *b)
{
    return a->ranks == b->ranks && a->model == b->model && a->split == b->split;
}

static const char *describe(way w)
{
    static const char *const splits[] = {
        [SHARD_SPLIT_NONE] = "not split", [SHARD_SPLIT_ROW] = "split by row", [SHARD_SPLIT_COLUMN] = "split by column"};
    static char texts[2][200];
    static unsigned turn;
    char *text = texts[turn++ % 2];
    const layout *l = &layouts[w.layout];
    snprintf(text, sizeof *texts, "%d x %d ranks, %s, ZeRO %d, %s", l->ranks / l->model, l->model, splits[l->split], w.stage,
             settings[w.setting].name);
    return text;
}

/* ---- training ---- */

typedef struct training {
    shard_mesh *mesh;
    shard_module *body, *head[HEADS];
    shard_optimizer *optimizer;
    shard_data_parallel *parallel;
    shard_ema *ema;
    shard_grad_scaler *scaler;
    shard_tensors *state; /* all that a checkpoint has */
    shard_dtype dtype;
} training;

static void add_state(training *t, const char *prefix, shard_tensors *state)
{
    check_ok(shard_tensors_extend(t->state, prefix, state));
    shard_tensors_destroy(state);
}

static shard_tensors *list_parameters(const training *t)
{
    shard_tensors *list = shard_parameters(t->body);
    for (int i = 0; i < HEADS; i++) {
        shard_tensors *own = shard_parameters(t->head[i]);
        check_ok(shard_tensors_extend(list, i ? "second." : "first.", own));
        shard_tensors_destroy(own);
    }
    return list;
}

static void make_optimizer(training *t, way w)
{
    bool whole = settings[w.setting].by_rows || (w.layout + w.stage) % 3 == 0;
    t->optimizer = settings[w.setting].make(list_parameters(t));
    if (w.stage)
        t->optimizer = zero_with(t->optimizer, (zero_way){.stage = w.stage,
                                                          .partition = whole ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN,
                                                          .bucket_mib = w.layout % 2 ? 1e-4 : 0});
    shard_tensors *parameters = list_parameters(t);
    t->parallel = shard_data_parallel_create(parameters);
    shard_tensors_destroy(parameters);
    t->ema = shard_ema_create(t->optimizer, .decay = 0.75);
    t->scaler = shard_grad_scaler_create(.init_scale = 256, .growth_interval = 2);
    ck_assert_msg(t->parallel && t->ema && t->scaler, "%s", shard_last_error());
}

static training make_training(way w, uint64_t seed)
{
    const layout *l = &layouts[w.layout];
    training t = {
        .mesh = shard_mesh_create(.model = l->model), .dtype = settings[w.setting].dtype, .state = shard_tensors_create()};
    shard_group *model = shard_mesh_model_group(t.mesh);
    shard_manual_seed(seed);
    t.body = shard_nn_sequential(shard_nn_linear(IN, FEATURES, .dtype = t.dtype), shard_nn_gelu());
    t.head[0] = shard_nn_parallel_linear(FEATURES, CLASSES, l->split, model, .dtype = t.dtype);
    t.head[1] = shard_nn_parallel_linear(FEATURES, FEW_CLASSES, l->split, model, .dtype = t.dtype);
    make_optimizer(&t, w);
    add_state(&t, "body.", shard_state_dict(t.body));
    add_state(&t, "first.", shard_state_dict(t.head[0]));
    add_state(&t, "second.", shard_state_dict(t.head[1]));
    add_state(&t, "optimizer.", shard_optimizer_state_dict(t.optimizer));
    add_state(&t, "ema.", shard_ema_state_dict(t.ema));
    add_state(&t, "scaler.", shard_grad_scaler_state_dict(t.scaler));
    return t;
}

static void drop_training(training *t)
{
    shard_tensors_destroy(t->state);
    shard_grad_scaler_destroy(t->scaler);
    shard_ema_destroy(t->ema);
    shard_data_parallel_destroy(t->parallel);
    shard_optimizer_destroy(t->optimizer);
    for (int i = 0; i < HEADS; i++)
        shard_module_destroy(t->head[i]);
    shard_module_destroy(t->body);
    shard_mesh_destroy(t->mesh);
}

/* A step on the same samples on any number of ranks; each model parallel group has its range of them. */
static void step(training *t, int number)
{
    static const int classes[HEADS] = {CLASSES, FEW_CLASSES};
    shard_group *data = shard_mesh_data_group(t->mesh), *model = shard_mesh_model_group(t->mesh);
    shard_range rows = shard_split_range(ROWS, shard_group_size(data), shard_group_rank(data));
    SHARD_SCOPE
    {
        shard_tensor *whole = made_up(SHARD_SHAPE(ROWS, IN), (uint64_t)number + 40, t->dtype);
        shard_tensor *x = shard_copy_to_group(shard_narrow(whole, 0, rows.start, rows.size), model);
        shard_tensor *features = shard_forward(t->body, x), *loss = NULL;
        for (int i = 0; i < HEADS; i++) {
            int64_t labels[ROWS];
            for (int64_t row = 0; row < rows.size; row++)
                labels[row] = (number * 5 + (rows.start + row) * 3) % classes[i];
            shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(rows.size), .dtype = SHARD_INT64);
            shard_tensor *own = shard_cross_entropy(shard_forward(t->head[i], features), target);
            loss = i ? shard_add(loss, own) : own;
        }
        check_ok(shard_backward(shard_grad_scaler_scale(t->scaler, loss)));
    }
    check_ok(shard_grad_scaler_step(t->scaler, t->optimizer));
    check_ok(shard_grad_scaler_update(t->scaler));
    check_ok(shard_ema_update(t->ema));
}

/* ---- whole values, on the first rank ---- */

static void *bytes_of(shard_tensor *x, size_t *bytes)
{
    *bytes = (size_t)shard_numel(x) * shard_dtype_size(shard_tensor_dtype(x));
    void *data = malloc(*bytes + 1);
    ck_assert_ptr_nonnull(data);
    check_ok(shard_copy_to_host(x, data, *bytes));
    return data;
}

/* One file of all tensors' bytes, in the order of the list. */
static void write_values(const training *t, const char *path)
{
    shard_tensors *whole = shard_collect_state_dict(t->state, 0);
    ck_assert_msg(whole != NULL, "%s", shard_last_error());
    if (shard_group_rank(shard_world()) == 0) {
        FILE *file = fopen(path, "wb");
        ck_assert_ptr_nonnull(file);
        for (int64_t i = 0; i < shard_tensors_count(whole); i++) {
            size_t bytes;
            void *data = bytes_of(shard_tensors_at(whole, i), &bytes);
            ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
            free(data);
        }
        ck_assert_int_eq(fclose(file), 0);
    }
    shard_tensors_destroy(whole);
}

/* The element at any address. */
static double number_at(shard_dtype dtype, const char *data, int64_t i)
{
    union {
        double wide;
        float number;
        uint16_t half;
    } x;
    memcpy(&x, data + (size_t)i * shard_dtype_size(dtype), shard_dtype_size(dtype));
    if (dtype == SHARD_FLOAT64)
        return x.wide;
    return dtype == SHARD_BFLOAT16 ? (double)shard_bfloat16_to_float(x.half) : (double)x.number;
}

static void check_tensor(const char *name, shard_tensor *x, const char *expected, double tolerance, const char *text)
{
    size_t bytes;
    shard_dtype dtype = shard_tensor_dtype(x);
    char *found = bytes_of(x, &bytes);
    if (tolerance == 0 || !shard_dtype_is_float(dtype))
        for (size_t i = 0; i < bytes; i++)
            ck_assert_msg(found[i] == expected[i], "%s: %s: element %zu has other bits", text, name, i / shard_dtype_size(dtype));
    else
        for (int64_t i = 0; i < shard_numel(x); i++) {
            double a = number_at(dtype, found, i), b = number_at(dtype, expected, i);
            ck_assert_msg(fabs(a - b) <= tolerance * (1 + fabs(b)), "%s: %s: element %lld is %.17g, not %.17g", text, name,
                          (long long)i, a, b);
        }
    free(found);
}

static void check_values(const training *t, const char *path, double tolerance, const char *text)
{
    shard_tensors *whole = shard_collect_state_dict(t->state, 0);
    ck_assert_msg(whole != NULL, "%s", shard_last_error());
    if (shard_group_rank(shard_world()) == 0) {
        size_t bytes, at = 0;
        char *expected = read_file(path, &bytes);
        for (int64_t i = 0; i < shard_tensors_count(whole); i++) {
            shard_tensor *x = shard_tensors_at(whole, i);
            size_t own = (size_t)shard_numel(x) * shard_dtype_size(shard_tensor_dtype(x));
            ck_assert_uint_le(at + own, bytes);
            check_tensor(shard_tensors_name(whole, i), x, expected + at, tolerance, text);
            at += own;
        }
        ck_assert_uint_eq(at, bytes);
        free(expected);
    }
    shard_tensors_destroy(whole);
}

/* ---- saving and loading ---- */

static int *cases; /* counted by the first ranks of the jobs */

static const char *path_of(way w, const char *kind)
{
    char name[80];
    snprintf(name, sizeof name, "%d-%d-%d.%s", w.layout, w.setting, w.stage, kind);
    return scratch_path(name);
}

static ssize_t leave_sync_out(const file_call *call)
{
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

static void save(way w)
{
    char checkpoint[600];
    snprintf(checkpoint, sizeof checkpoint, "%s", path_of(w, "safetensors"));
    training t = make_training(w, 3);
    for (int i = 0; i < SAVED_AT; i++)
        step(&t, i);
    shard_metadata *metadata = shard_metadata_create();
    check_ok(shard_metadata_set_integer(metadata, "step", SAVED_AT));
    check_ok(shard_save(t.state, checkpoint, metadata));
    shard_metadata_destroy(metadata);
    write_values(&t, path_of(w, "saved"));
    step(&t, SAVED_AT);
    write_values(&t, path_of(w, "stepped"));
    drop_training(&t);
}

/* Of another stage the file has the same bytes. */
static void check_stage(way w)
{
    way first = w;
    first.stage = 0;
    if (w.stage == 0 || !every || shard_group_rank(shard_world()) != 0)
        return;
    size_t bytes[2];
    char *content[2] = {read_file(path_of(first, "safetensors"), &bytes[0]), read_file(path_of(w, "safetensors"), &bytes[1])};
    ck_assert_uint_eq(bytes[0], bytes[1]);
    ck_assert_msg(memcmp(content[0], content[1], bytes[0]) == 0, "%s: another file than without ZeRO", describe(w));
    free(content[0]);
    free(content[1]);
}

static void load(training *t, way reader, way writer)
{
    char text[500];
    snprintf(text, sizeof text, "saved on %s, loaded on %s", describe(writer), describe(reader));
    int64_t saved_at = -1;
    shard_metadata *metadata = NULL;
    shard_status status = shard_load_with_metadata(t->state, path_of(writer, "safetensors"), &metadata);
    ck_assert_msg(status == SHARD_OK, "%s: %s", text, shard_last_error());
    check_ok(shard_metadata_get_integer(metadata, "step", &saved_at));
    ck_assert_int_eq(saved_at, SAVED_AT);
    shard_metadata_destroy(metadata);
    check_values(t, path_of(writer, "saved"), 0, text);
    step(t, SAVED_AT);
    bool same = has_same_ranks(&layouts[reader.layout], &layouts[writer.layout]);
    check_values(t, path_of(writer, "stepped"), same ? 0 : settings[reader.setting].tolerance, text);
    *cases += shard_group_rank(shard_world()) == 0;
}

/* Goes through the ways of a setting that are run on so many ranks; ranks 0: on any. */
#define EACH_WAY(w, of, wanted)                                                                                                  \
    for (way w = {.setting = of}; w.layout < LAYOUTS; w.layout++)                                                                \
        if ((wanted) == 0 || layouts[w.layout].ranks == (wanted))                                                                \
            for (w.stage = 0; w.stage < STAGES; w.stage++)                                                                       \
                if (is_run(w))

static void save_all(shard_group *world, void *context)
{
    int number = *(int *)context;
    file_calls_watch(leave_sync_out);
    EACH_WAY(w, number, shard_group_size(world))
    {
        save(w);
        check_stage(w);
    }
}

/* Values and state of another training are overwritten. */
static void load_all(shard_group *world, void *context)
{
    int number = *(int *)context;
    EACH_WAY(reader, number, shard_group_size(world))
    {
        training t = make_training(reader, 77);
        step(&t, 1000);
        EACH_WAY(writer, number, 0)
        if (is_loaded(reader, writer))
            load(&t, reader, writer);
        drop_training(&t);
    }
}

START_TEST(test_all_pairs)
{
    cases = mmap(NULL, sizeof *cases, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(cases, MAP_FAILED);
    for (int loads = 0; loads < 2; loads++)
        for (int job = 0; job < JOBS; job++)
            run_job_of((ranks_run){.size = ranks_of(loads, _i, job),
                                   .body = loads ? load_all : save_all,
                                   .context = &_i,
                                   .deadline = every ? 300 : 0});
    printf("cases: %d\n", *cases);
    ck_assert_int_ge(*cases, 10);
    munmap(cases, sizeof *cases);
}
END_TEST

int main(void)
{
    every = getenv("SHARD_TEST_EVERY") != NULL;
    scratch_open();
    Suite *suite = suite_create("checkpoint matrix");
    TCase *tcase = test_case(suite, "matrix");
    if (every)
        tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_all_pairs, 0, SETTINGS);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
