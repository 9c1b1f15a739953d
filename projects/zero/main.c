/*
 * PyTorch's tutorial of ZeroRedundancyOptimizer, done over: a stack of linear layers, data
 * parallel, one step of Adam; what memory a rank has at four places, without ZeRO and with
 * its stages 1, 2 and 3. The parameters' sum afterwards has to be the same on all ranks and
 * for all stages, or the program fails.
 *     shardrun -n 2 zero
 * https://pytorch.org/tutorials/recipes/zero_redundancy_optimizer.html
 */
#include <shard/shard.h>

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct settings {
    int64_t layers, width, batch, steps; /* batch: of each rank */
    int64_t stage;                       /* -1: all */
    double bucket_mib;
    bool memory_report;
} settings;

enum { STAGES = 4, PLACES = 4 };
static const char *const places[PLACES] = {"after the model", "after data parallel", "before step()", "after step()"};

/* Of one stage: bytes at each place, now and at the peak so far, the most of any rank. */
typedef struct figures {
    int64_t now[PLACES], peak[PLACES];
    double sum;
} figures;

/* ---- measuring ---- */

/* The largest of the ranks' values. */
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

static void measure(figures *of, int place)
{
    shard_memory_stats memory = shard_get_memory_stats(shard_device_open(NULL));
    of->now[place] = most_of(memory.current);
    of->peak[place] = most_of(memory.peak);
}

/* The sum of all parameters, in float64; an error if the ranks' differ in one bit. */
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
    return shard_narrow(shard_normal(SHARD_SHAPE(size * wanted->batch, wanted->width), 0, 1), rank * wanted->batch,
                        wanted->batch);
}

/* The mean squared error of this rank's rows. */
static shard_status go_back(shard_module *model, const settings *wanted)
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
    measure(out, 0);
    shard_optimizer *adam = shard_adam(shard_parameters(model), .lr = 0.01);
    shard_tensors *parameters = shard_parameters(model);
    shard_data_parallel *data_parallel = NULL;
    if (stage > 0)
        adam = shard_zero(adam, .stage = stage, .bucket_mib = wanted->bucket_mib); /* averages gradients, too */
    else
        data_parallel = shard_data_parallel_create(parameters, .bucket_mib = wanted->bucket_mib);
    shard_tensors_destroy(parameters);
    measure(out, 1);
    for (int64_t i = 0; i < wanted->steps; i++) {
        go_back(model, wanted);
        measure(out, 2);
        shard_step(adam);
        measure(out, 3);
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

static void print_table(const settings *wanted, const figures *of, const bool *was_run)
{
    printf("%d ranks, %" PRId64 " x Linear(%" PRId64 ", %" PRId64 "), batch %" PRId64 " each, %" PRId64
           " step(s) of Adam; MB of a rank, now and at the peak\n%-22s",
           shard_group_size(shard_world()), wanted->layers, wanted->width, wanted->width, wanted->batch, wanted->steps, "");
    for (int stage = 0; stage < STAGES; stage++)
        if (was_run[stage])
            printf("%20s", stage_names[stage]);
    for (int place = 0; place < PLACES; place++) {
        printf("\n%-22s", places[place]);
        for (int stage = 0; stage < STAGES; stage++)
            if (was_run[stage])
                printf("%10.1f%10.1f", (double)of[stage].now[place] / 1e6, (double)of[stage].peak[place] / 1e6);
    }
    printf("\n%-22s", "parameters' sum");
    for (int stage = 0; stage < STAGES; stage++)
        if (was_run[stage])
            printf("%20.6f", of[stage].sum);
    printf("\n");
}

/* Sums of different order round differently, but no more. */
static shard_status compare_sums(const figures *of, const bool *was_run)
{
    for (int stage = 1; stage < STAGES; stage++)
        if (was_run[0] && was_run[stage] && fabs(of[stage].sum - of[0].sum) > 1e-6 * (1 + fabs(of[0].sum)))
            return shard_error(SHARD_ERROR_MISMATCH, "the parameters' sum is %.17g with %s, %.17g without", of[stage].sum,
                               stage_names[stage], of[0].sum);
    return SHARD_OK;
}

static shard_status run_all(const settings *wanted)
{
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

static shard_status parse(settings *wanted, int argc, char **argv)
{
    static const struct option names[] = {{"layers", required_argument, NULL, 'l'},  {"width", required_argument, NULL, 'w'},
                                          {"batch", required_argument, NULL, 'b'},   {"steps", required_argument, NULL, 's'},
                                          {"stage", required_argument, NULL, 'z'},   {"bucket-mib", required_argument, NULL, 'm'},
                                          {"memory-report", no_argument, NULL, 'r'}, {NULL, 0, NULL, 0}};
    *wanted = (settings){.layers = 20, .width = 2000, .batch = 20, .steps = 1, .stage = -1};
    int64_t *field[256] = {
        ['l'] = &wanted->layers, ['w'] = &wanted->width, ['b'] = &wanted->batch, ['s'] = &wanted->steps, ['z'] = &wanted->stage};
    opterr = 0;
    for (int code; (code = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (code == 'r')
            wanted->memory_report = true;
        else if (code == 'm')
            wanted->bucket_mib = atof(optarg);
        else if (code < 256 && field[code])
            *field[code] = atoll(optarg);
        else
            optind = argc + 1; /* say what there is */
    }
    bool sound = wanted->layers > 0 && wanted->layers < 10000 && wanted->width > 0 && wanted->batch > 0 && wanted->steps > 0 &&
                 wanted->stage < STAGES;
    if (optind == argc && sound)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "usage: zero [--layers 20] [--width 2000] [--batch 20] [--steps 1] [--stage 0|1|2|3] [--bucket-mib X] "
                       "[--memory-report]");
}

int main(int argc, char **argv)
{
    settings wanted;
    if (shard_init(&argc, &argv) == SHARD_OK && parse(&wanted, argc, argv) == SHARD_OK)
        run_all(&wanted);
    return shard_finalize();
}
