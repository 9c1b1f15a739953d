/*
 * PyTorch's tutorial of ZeroRedundancyOptimizer: a stack of linear layers, data parallel, steps of Adam. It measures
 * the memory of a rank at the tutorial's places and in the last step, without ZeRO and with its stages 1, 2 and 3.
 * The sum of the parameters must be the same on all ranks and for all stages, or the program fails.
 *     shardrun -n 2 zero
 * https://pytorch.org/tutorials/recipes/zero_redundancy_optimizer.html
 */
#include "program.h"

#include <shard/shard.h>

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { STAGES = 4, ALL_STAGES = -1 };

typedef struct settings {
    int64_t layers, width, batch, steps; /* batch: of each rank */
    int stage;
    double bucket_mib;
    bool memory_report, help;
} settings;

typedef enum place { MODEL = 0, DATA_PARALLEL, BEFORE_STEP, AFTER_STEP, AFTER_LAST, PLACES } place;
static const char *const places[PLACES] = {"after the model", "after data parallel", "before step()", "after step()",
                                           "after the last"};

/* Bytes of one stage at each place, the maximum over ranks: current, and the peak so far; after the last step, the
 * peak within it. */
typedef struct figures {
    int64_t now[PLACES], peak[PLACES];
    double sum;
} figures;

/* ---- measuring ---- */

/* The maximum over the ranks. */
static int64_t most_of(int64_t value)
{
    int64_t most = 0;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(&value, SHARD_SHAPE(1), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
        shard_all_reduce(x, SHARD_MAX, shard_world());
        shard_copy_to_host(x, &most, sizeof most);
    }
    return most;
}

static void measure(figures *of, place at)
{
    shard_memory_stats memory = shard_get_memory_stats(shard_device_open(NULL));
    of->now[at] = most_of(memory.current);
    of->peak[at] = most_of(memory.peak);
}

/* The sum of all parameters, in float64; an error if ranks differ in one bit. */
static shard_status sum_parameters(shard_module *model, double *sum)
{
    shard_tensors *parameters = shard_parameters(model);
    *sum = 0;
    SHARD_NO_GRAD
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++)
        SHARD_SCOPE
        {
            *sum += shard_item(shard_sum(shard_cast(shard_tensors_at(parameters, i), SHARD_FLOAT64)));
        }
    shard_tensors_destroy(parameters);
    double bounds[2] = {*sum, -*sum};
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(bounds, SHARD_SHAPE(2), .dtype = SHARD_FLOAT64, .device = shard_device_open("cpu"));
        shard_all_reduce(x, SHARD_MAX, shard_world());
        shard_copy_to_host(x, bounds, sizeof bounds);
    }
    if (shard_last_status() == SHARD_OK && bounds[0] != -bounds[1])
        shard_error(SHARD_ERROR_MISMATCH, "the parameters' sum is %.17g on one rank and %.17g on another", -bounds[1], bounds[0]);
    return shard_last_status();
}

/* ---- the run ---- */

static shard_module *make_model(const settings *wanted)
{
    shard_module **layers = calloc((size_t)wanted->layers, sizeof *layers);
    for (int64_t i = 0; layers && i < wanted->layers; i++)
        layers[i] = shard_nn_linear(wanted->width, wanted->width);
    shard_module *model = layers ? shard_nn_sequential_of((int)wanted->layers, layers) : NULL;
    free(layers);
    return model;
}

/* This rank's rows of the next random numbers. */
static shard_tensor *own_rows(const settings *wanted)
{
    int64_t size = shard_group_size(shard_world()), rank = shard_group_rank(shard_world());
    return shard_narrow(shard_normal(SHARD_SHAPE(size * wanted->batch, wanted->width), 0, 1), 0, rank * wanted->batch,
                        wanted->batch);
}

/* The backward of the mean squared error of this rank's rows. */
static shard_status run_backward(shard_module *model, const settings *wanted)
{
    SHARD_SCOPE
    {
        shard_tensor *x = own_rows(wanted), *target = own_rows(wanted);
        shard_tensor *error = shard_add(shard_forward(model, x), shard_scale(target, -1));
        shard_backward(shard_mean(shard_mul(error, error)));
    }
    return shard_last_status();
}

static shard_status run(const settings *wanted, int stage, figures *out)
{
    shard_device *device = shard_device_open(NULL);
    shard_manual_seed(0);
    shard_reset_peak_memory(device);
    shard_module *model = make_model(wanted);
    measure(out, MODEL);
    shard_optimizer *adam = shard_adam(model, .lr = 0.01);
    shard_data_parallel *data_parallel = NULL;
    if (stage > 0)
        adam = shard_zero_optimizer(adam, .stage = stage, .bucket_mib = wanted->bucket_mib); /* also averages gradients */
    else
        data_parallel = shard_data_parallel_create(model, .bucket_mib = wanted->bucket_mib);
    measure(out, DATA_PARALLEL);
    for (int64_t i = 0; i < wanted->steps; i++) {
        if (i > 0)
            shard_reset_peak_memory(device);
        run_backward(model, wanted);
        if (i == 0)
            measure(out, BEFORE_STEP);
        shard_step(adam);
        measure(out, i > 0 ? AFTER_LAST : AFTER_STEP);
    }
    if (wanted->memory_report && shard_group_rank(shard_world()) == 0)
        shard_memory_report(device, stdout);
    shard_status status = sum_parameters(model, &out->sum);
    shard_optimizer_destroy(adam);
    shard_data_parallel_destroy(data_parallel);
    shard_module_destroy(model);
    shard_trim_memory(device);
    return status;
}

/* ---- the table ---- */

static const char *const stage_names[STAGES] = {"without", "stage 1", "stage 2", "stage 3"};

/* Bytes of parameters, gradients and Adam's two averages; ZeRO partitions the last, the last two, all. */
static double needed(const settings *wanted, int stage)
{
    double parameters = 4.0 * (double)wanted->layers * (double)(wanted->width * wanted->width + wanted->width);
    double shared[STAGES] = {0, 2, 3, 4};
    return parameters * (4 - shared[stage] + shared[stage] / shard_group_size(shard_world()));
}

static void print_table(const settings *wanted, const figures *of, const bool *was_run)
{
    printf("%d ranks, %" PRId64 " x Linear(%" PRId64 ", %" PRId64 "), batch %" PRId64 " each, %" PRId64
           " step(s) of Adam; MB of a rank, now and at the peak\n%-20s",
           shard_group_size(shard_world()), wanted->layers, wanted->width, wanted->width, wanted->batch, wanted->steps, "");
    for (int stage = 0; stage < STAGES; stage++)
        if (was_run[stage])
            printf("%22s", stage_names[stage]);
    for (int at = 0; at < (wanted->steps > 1 ? PLACES : AFTER_LAST); at++) {
        printf("\n%-20s", places[at]);
        for (int stage = 0; stage < STAGES; stage++)
            if (was_run[stage])
                printf("%11.3f%11.3f", (double)of[stage].now[at] / 1e6, (double)of[stage].peak[at] / 1e6);
    }
    printf("\n%-20s", "needed");
    for (int stage = 0; stage < STAGES; stage++)
        if (was_run[stage])
            printf("%11.3f%11s", needed(wanted, stage) / 1e6, "");
    printf("\n%-20s", "parameters' sum");
    for (int stage = 0; stage < STAGES; stage++)
        if (was_run[stage])
            printf("%22.6f", of[stage].sum);
    printf("\n");
}

/* Sums of different order are rounded differently, but no more. */
static shard_status compare_sums(const figures *of, const bool *was_run)
{
    for (int stage = 1; stage < STAGES; stage++)
        if (was_run[0] && was_run[stage] && fabs(of[stage].sum - of[0].sum) > 1e-6 * (1 + fabs(of[0].sum)))
            return shard_error(SHARD_ERROR_MISMATCH, "the parameters' sum is %.17g with %s, %.17g without", of[stage].sum,
                               stage_names[stage], of[0].sum);
    return SHARD_OK;
}

static shard_status run_all(void *values)
{
    const settings *wanted = values;
    figures of[STAGES] = {0};
    bool was_run[STAGES] = {false};
    for (int stage = 0; stage < STAGES; stage++) {
        if (wanted->stage >= 0 && wanted->stage != stage)
            continue;
        was_run[stage] = true;
        if (run(wanted, stage, &of[stage]) != SHARD_OK)
            return shard_last_status();
    }
    if (shard_group_rank(shard_world()) == 0)
        print_table(wanted, of, was_run);
    return compare_sums(of, was_run);
}

/* ---- the command line ---- */

static const command_choice stages[] = {{"all", ALL_STAGES}, {"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {NULL, 0}};

#define AT(field) .offset = offsetof(settings, field)

static const command_option table[] = {
    {COMMAND_HEADING, "Options", NULL},
    {COMMAND_WHOLE, "layers", "of the model", "N", AT(layers), .least = 1, .most = 10000},
    {COMMAND_WHOLE, "width", "inputs and outputs of a layer", "N", AT(width), .least = 1, .most = 1000000},
    {COMMAND_WHOLE, "batch", "rows of a step, of each rank", "N", AT(batch), .least = 1, .most = 1000000},
    {COMMAND_WHOLE, "steps", "of Adam", "N", AT(steps), .least = 1, .most = 1000000},
    {COMMAND_CHOICE, "stage", "of ZeRO: 0, which is without it, 1, 2 or 3; all: one after the other", "KIND", AT(stage),
     .choices = stages},
    {COMMAND_NUMBER, "bucket-mib", "gradients (and, with ZeRO 3, values) are communicated in buckets of about X MiB", "X",
     AT(bucket_mib), .least = 0.001, .most = 1e6},
    {COMMAND_FLAG, "memory-report", "print what the library's memory is used for at the end of each stage", AT(memory_report)},
    {COMMAND_HELP, "help", "print this", .letter = 'h', AT(help)},
};

/* A bucket for each layer: whole buckets are communicated. */
static const settings defaults = {.layers = 20, .width = 2000, .batch = 20, .steps = 2, .stage = ALL_STAGES, .bucket_mib = 1};

static const command_line line = {
    .options = table,
    .count = (int)(sizeof table / sizeof *table),
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .usage = "Usage: zero [options]\n"
             "  or:  shardrun -n 2 zero [options]\n\n"
             "Trains PyTorch's tutorial of ZeroRedundancyOptimizer, and prints the memory of a rank without ZeRO and with its\n"
             "stages. Defaults are in parentheses.\n",
};

int main(int argc, char **argv)
{
    settings wanted;
    return program_main(&(program){.line = &line, .values = &wanted, .run = run_all}, argc, argv);
}
