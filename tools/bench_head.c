/*
 * bench_head: times training steps of a last layer whose classes are split over the ranks, and the machine's limit in the
 * same run:
 *
 *     shardrun -n N bench_head [--classes C] [--features D] [--batch B] [--steps K] [--dtype float32|bfloat16]
 *                              [--optimizer sgd|momentum|adamw|rowwise-adagrad|rowwise-adam]
 *                              [--rounding nearest|stochastic|kahan] [--loss softmax|binary] [--sample-rate R]
 *                              [--stash X] [--head fused|plain|both] [--json FILE]
 *
 * A step gathers the features of B rows over the ranks, then makes the forward with the loss, the backward with the features'
 * gradient, and the update. fused: shard_nn_parallel_classifier; plain: shard_nn_parallel_linear; both: the two take turns, and
 * the ratio of their steps is printed. Weight, state and features are of the dtype. binary: a row has 36 labels, as one of
 * Amazon-3M on average. A sample is drawn in each forward; of a fused head alone. X is .stash_share of the loss of the fused
 * head. SHARD_DEVICE names the device. Each number is of the rank that is slowest, or takes the
 * most memory. The limit counts three products, and each byte of the weight and of the optimizer's state as often as a step must
 * move it: the weight is read twice and written once, state read and written once; of a sample, the part that is computed.
 */
#include "clock.h"

#include "base/math.h"
#include "comm/comm.h"
#include "device/device.h"

#include <shard/shard.h>

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { WARM_UP = 2, REPETITIONS = 5, QUEUED = 8 };
enum { FUSED, PLAIN, HEADS };
enum { SGD, MOMENTUM, ADAMW, ROWWISE_ADAGRAD, ROWWISE_ADAM, OPTIMIZERS };
enum { LABELS = 36 /* of a row, of the binary loss */ };
enum { GATHER, FORWARD, BACKWARD, UPDATE, STEP, TIMES };

static const char *const head_names[] = {"fused", "plain", "both"};
static const char *const optimizer_names[] = {"sgd", "momentum", "adamw", "rowwise-adagrad", "rowwise-adam"};
static const int states[OPTIMIZERS] = {0, 1, 2, 0, 1}; /* numbers of a weight; those of a row are not counted */
static const char *const rounding_names[] = {"nearest", "stochastic", "kahan"}; /* as shard_rounding */
static const char *const loss_names[] = {"softmax", "binary"};
static const char *const time_names[] = {"gather", "forward", "backward", "update"};

typedef struct settings {
    int64_t classes, features, batch, steps;
    shard_dtype dtype;
    int optimizer;
    shard_rounding rounding;
    bool binary;
    double sample_rate, stash;
    bool runs[HEADS];
    const char *json;
} settings;

static void check(bool well)
{
    if (well && shard_last_status() == SHARD_OK)
        return;
    fprintf(stderr, "bench_head: %s\n", shard_last_error());
    exit(1);
}

/* ---- settings ---- */

static _Noreturn void refuse(const char *option, const char *value)
{
    fprintf(stderr,
            "bench_head: --%s %s: not a value of it\n"
            "usage: bench_head [--classes C] [--features D] [--batch B] [--steps K] [--dtype float32|bfloat16]\n"
            "                  [--optimizer sgd|momentum|adamw|rowwise-adagrad|rowwise-adam]\n"
            "                  [--rounding nearest|stochastic|kahan] [--loss softmax|binary] [--sample-rate R]\n"
            "                  [--stash X] [--head fused|plain|both] [--json FILE]\n"
            "B is a multiple of the number of ranks. R is in (0, 1]; below 1 the head is fused, the loss softmax.\n"
            "X is at least 0.\n",
            option, value);
    exit(2);
}

static int choice(const char *option, const char *value, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(value, names[i]) == 0)
            return i;
    refuse(option, value);
}

static int64_t whole(const char *option, const char *value)
{
    char *end;
    long long number = strtoll(value, &end, 10);
    if (*end || number < 1)
        refuse(option, value);
    return number;
}

static double part(const char *option, const char *value)
{
    char *end;
    double number = strtod(value, &end);
    if (*end || !(number > 0 && number <= 1))
        refuse(option, value);
    return number;
}

static double share(const char *option, const char *value)
{
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end || !(number >= 0 && number <= 1e9))
        refuse(option, value);
    return number;
}

static settings read_settings(int argc, char **argv)
{
    static const char *const dtype_names[] = {"float32", "bfloat16"};
    static const struct option options[] = {{"classes", required_argument, NULL, 0},
                                            {"features", required_argument, NULL, 1},
                                            {"batch", required_argument, NULL, 2},
                                            {"steps", required_argument, NULL, 3},
                                            {"dtype", required_argument, NULL, 4},
                                            {"optimizer", required_argument, NULL, 5},
                                            {"head", required_argument, NULL, 6},
                                            {"json", required_argument, NULL, 7},
                                            {"rounding", required_argument, NULL, 8},
                                            {"loss", required_argument, NULL, 9},
                                            {"sample-rate", required_argument, NULL, 10},
                                            {"stash", required_argument, NULL, 11},
                                            {NULL, 0, NULL, 0}};
    const shard_cross_entropy_options loss = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    settings s = {.classes = 100000,
                  .features = 512,
                  .batch = 64,
                  .steps = 10,
                  .dtype = SHARD_FLOAT32,
                  .optimizer = MOMENTUM,
                  .sample_rate = 1,
                  .stash = loss.stash_share};
    int64_t *const numbers[] = {&s.classes, &s.features, &s.batch, &s.steps};
    int head = HEADS, option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        const char *name = option < 12 ? options[option].name : argv[optind - 1];
        if (option < 4)
            *numbers[option] = whole(name, optarg);
        else if (option == 4)
            s.dtype = choice(name, optarg, dtype_names, 2) ? SHARD_BFLOAT16 : SHARD_FLOAT32;
        else if (option == 5)
            s.optimizer = choice(name, optarg, optimizer_names, OPTIMIZERS);
        else if (option == 6)
            head = choice(name, optarg, head_names, HEADS + 1);
        else if (option == 7)
            s.json = optarg;
        else if (option == 8)
            s.rounding = (shard_rounding)choice(name, optarg, rounding_names, 3);
        else if (option == 9)
            s.binary = choice(name, optarg, loss_names, 2);
        else if (option == 10)
            s.sample_rate = part(name, optarg);
        else if (option == 11)
            s.stash = share(name, optarg);
        else
            refuse("help", "");
    }
    if (optind < argc)
        refuse("help", argv[optind]);
    s.runs[FUSED] = head != PLAIN;
    s.runs[PLAIN] = head != FUSED;
    if (s.sample_rate < 1 && (s.runs[PLAIN] || s.binary))
        refuse("sample-rate", s.binary ? "with --loss binary" : "without --head fused");
    return s;
}

/* ---- steps ---- */

typedef struct head {
    shard_module *layer;
    shard_optimizer *optimizer;
    double *times[TIMES]; /* seconds of the slowest rank, of each step */
} head;

static shard_optimizer *optimizer_make(const settings *s, shard_module *layer)
{
    switch (s->optimizer) {
    case ADAMW:
        return shard_adamw(layer, .lr = 1e-3, .rounding = s->rounding, .seed = 1);
    case ROWWISE_ADAGRAD:
        return shard_rowwise_adagrad(layer, .rounding = s->rounding, .seed = 1);
    case ROWWISE_ADAM:
        return shard_rowwise_adam(layer, .rounding = s->rounding, .seed = 1);
    default:
        return shard_sgd(layer, .lr = 0.1, .momentum = s->optimizer == MOMENTUM ? 0.9 : 0,
                         .weight_decay = s->optimizer == MOMENTUM ? 1e-4 : 0, .rounding = s->rounding, .seed = 1);
    }
}

static head head_make(const settings *s, bool fused)
{
    head h = {fused ? shard_nn_parallel_classifier(s->features, s->classes, shard_world(), .dtype = s->dtype)
                    : shard_nn_parallel_linear(s->features, s->classes, SHARD_SPLIT_COLUMN, shard_world(), .dtype = s->dtype)};
    check(h.layer != NULL);
    h.optimizer = optimizer_make(s, h.layer);
    check(h.optimizer != NULL);
    for (int i = 0; i < TIMES; i++) {
        h.times[i] = calloc((size_t)s->steps, sizeof(double));
        check(h.times[i] != NULL);
    }
    return h;
}

static void head_destroy(head *h)
{
    for (int i = 0; i < TIMES; i++)
        free(h->times[i]);
    shard_optimizer_destroy(h->optimizer);
    shard_module_destroy(h->layer);
}

/* The largest of the ranks' values, in place. */
static void largest(double *values, int count)
{
    check(shard_group_all_reduce(shard_world(), NULL, values, count, SHARD_FLOAT64, SHARD_MAX) == SHARD_OK);
}

static double seconds_since(double *last)
{
    check(shard_synchronize(shard_device_open(NULL)) == SHARD_OK);
    double before = *last;
    *last = now();
    return *last - before;
}

/* A random class; the same on all ranks. */
static int64_t class_of(const settings *s, int64_t number)
{
    return number * 104729 % s->classes;
}

/* The pairs of the whole batch: a row's labels are at equal distances. */
static shard_tensor *all_pairs(const settings *s)
{
    int64_t labels = s->classes < LABELS ? s->classes : LABELS, count = s->batch * labels, apart = s->classes / labels;
    int64_t *pair = malloc(2 * (size_t)count * sizeof *pair);
    check(pair != NULL);
    for (int64_t i = 0; i < count; i++) {
        pair[i] = i / labels;
        pair[count + i] = class_of(s, i / labels) % apart + i % labels * apart;
    }
    shard_tensor *pairs = shard_from_host(pair, SHARD_SHAPE(2, count), .dtype = SHARD_INT64);
    free(pair);
    return pairs;
}

static shard_tensor *loss_of(const settings *s, const head *h, shard_tensor *features, shard_tensor *target, int64_t number)
{
    shard_tensor *logits = shard_forward(h->layer, features), *weight = shard_module_tensor(h->layer, "weight");
    if (s->binary)
        return shard_binary_cross_entropy_with_logits(logits, target, .stash_share = s->stash);
    if (s->sample_rate == 1)
        return shard_cross_entropy(logits, target, .stash_share = s->stash);
    shard_tensor *sample = shard_sample_classes(target, weight, s->sample_rate, 1, number);
    return shard_cross_entropy(logits, target, .sample = sample, .stash_share = s->stash);
}

/* Seconds of step `number` and of its phases. */
static void step(const settings *s, const head *h, int64_t number, double *seconds)
{
    shard_group *world = shard_world();
    int64_t rows = s->batch / shard_group_size(world), first = rows * shard_group_rank(world);
    int64_t *label = malloc((size_t)rows * sizeof *label);
    check(label != NULL);
    for (int64_t i = 0; i < rows; i++)
        label[i] = class_of(s, first + i);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(rows, s->features), 0.0, 1.0, .dtype = s->dtype);
        shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(rows), .dtype = SHARD_INT64);
        shard_tensor *pairs = s->binary ? all_pairs(s) : NULL;
        shard_set_requires_grad(x, true);
        check(shard_synchronize(shard_device_open(NULL)) == SHARD_OK && shard_barrier(world) == SHARD_OK);
        double begin = now(), last = begin;
        shard_tensor *features = shard_gather_from_group(x, 0, world);
        shard_tensor *target = s->binary ? pairs : shard_gather_from_group(labels, 0, world);
        seconds[GATHER] = seconds_since(&last);
        shard_tensor *loss = loss_of(s, h, features, target, number);
        seconds[FORWARD] = seconds_since(&last);
        check(shard_backward(loss) == SHARD_OK);
        seconds[BACKWARD] = seconds_since(&last);
        check(shard_step(h->optimizer) == SHARD_OK);
        seconds[UPDATE] = seconds_since(&last);
        seconds[STEP] = last - begin;
    }
    free(label);
    largest(seconds, TIMES);
}

static int64_t page_faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

/* Memory and page faults of the process. */
typedef struct costs {
    double library_bytes, rss_bytes;
    double page_faults; /* of a step */
} costs;

static costs measure_steps(const settings *s, head *heads)
{
    int64_t faults = 0;
    for (int64_t i = -WARM_UP; i < s->steps; i++) {
        if (i == 0) {
            shard_reset_peak_memory(shard_device_open(NULL));
            faults = page_faults();
        }
        for (int which = 0; which < HEADS; which++) {
            double seconds[TIMES];
            if (!s->runs[which])
                continue;
            step(s, &heads[which], i + WARM_UP, seconds);
            for (int time = 0; time < TIMES && i >= 0; time++)
                heads[which].times[time][i] = seconds[time];
        }
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double values[] = {(double)shard_get_memory_stats(shard_device_open(NULL)).peak, 1024.0 * (double)usage.ru_maxrss,
                       (double)(page_faults() - faults) / (double)s->steps};
    largest(values, 3);
    return (costs){values[0], values[1], values[2]};
}

/* ---- the machine's limits, with all ranks busy ---- */

/* Arrays of an operation that is timed. */
typedef struct operands {
    shard_device *device;
    shard_matmul_shape shape;
    shard_dtype dtype;
    int64_t numbers;
    void *memory[3];
    size_t bytes[3];
} operands;

static void fill(operands *o, const size_t *bytes)
{
    for (int i = 0; i < 3; i++) {
        o->bytes[i] = bytes[i] + 64;
        o->memory[i] = o->device->ops->allocate(o->device, o->bytes[i]);
        check(o->memory[i] != NULL && o->device->ops->zero(o->device, o->memory[i], o->bytes[i]) == SHARD_OK);
    }
}

static void release(operands *o)
{
    for (int i = 0; i < 3; i++)
        o->device->ops->release(o->device, o->memory[i], o->bytes[i]);
}

/* The shortest time of one run on the slowest rank. */
static double shortest(shard_status (*run)(operands *), operands *o, int queued)
{
    double best = 0;
    for (int i = -1; i < REPETITIONS; i++) {
        check(shard_synchronize(o->device) == SHARD_OK && shard_barrier(shard_world()) == SHARD_OK);
        double last = now();
        for (int k = 0; k < queued; k++)
            check(run(o) == SHARD_OK);
        double seconds = seconds_since(&last) / queued;
        largest(&seconds, 1);
        if (i == 0 || (i > 0 && seconds < best))
            best = seconds;
    }
    return best;
}

static shard_status multiply(operands *o)
{
    return o->device->ops->matmul(o->device, &o->shape, o->memory[0], o->memory[1], o->memory[2], o->dtype);
}

static shard_status read_all(operands *o)
{
    return o->device->ops->power_sum(o->device, o->numbers, 2.0, o->memory[0], o->memory[2], SHARD_FLOAT32);
}

static shard_status update_all(operands *o)
{
    return o->device->ops->axpby(o->device, o->numbers, 0.5, o->memory[0], 0.25, o->memory[1], SHARD_FLOAT32);
}

/* Operations a second of the step's three products: logits, the features' gradient, the weight's gradient. */
static double product_rate(const settings *s, shard_dtype dtype)
{
    shard_device *device = shard_device_open(NULL);
    int64_t most = device->ops->host_memory ? 768 : 65536, part = shard_divide_up(s->classes, shard_group_size(shard_world()));
    int64_t classes = part < most ? part : most, rows = s->batch, in = s->features, size = (int64_t)shard_dtype_size(dtype);
    bool wide = dtype != SHARD_FLOAT32;
    const shard_matmul_shape shapes[] = {
        {.batch = 1, .m = rows, .n = classes, .k = in, .transpose_b = true, .wide_c = wide},
        {.batch = 1, .m = rows, .n = in, .k = classes, .wide_c = wide},
        {.batch = 1, .m = classes, .n = in, .k = rows, .transpose_a = true, .wide_c = wide},
    };
    double seconds = 0;
    for (int i = 0; i < 3; i++) {
        operands o = {.device = device, .shape = shapes[i], .dtype = dtype};
        const int64_t m = shapes[i].m, n = shapes[i].n, k = shapes[i].k;
        fill(&o, (const size_t[]){(size_t)(m * k * size), (size_t)(k * n * size), (size_t)(m * n) * sizeof(float)});
        seconds += shortest(multiply, &o, QUEUED);
        release(&o);
    }
    return 6.0 * (double)rows * (double)classes * (double)in / seconds;
}

typedef struct limits {
    double product_rate, read_bandwidth, update_bandwidth; /* of a rank: operations and bytes a second */
    double product_seconds, memory_seconds;                /* of a step */
} limits;

static limits measure_limits(const settings *s)
{
    shard_device *device = shard_device_open(NULL);
    int64_t part = shard_divide_up(s->classes, shard_group_size(shard_world())), most = (int64_t)1 << 29;
    double weight = (double)(part * s->features) * (double)shard_dtype_size(s->dtype);
    bool compensates = s->rounding == SHARD_ROUNDING_KAHAN && s->dtype == SHARD_BFLOAT16;
    double state = (states[s->optimizer] + compensates) * weight;
    limits l = {.product_rate = product_rate(s, s->dtype)};
    double wide_rate = s->dtype == SHARD_FLOAT32 ? 0 : product_rate(s, SHARD_FLOAT32);
    if (wide_rate > l.product_rate) /* numbers of 16 bits may be multiplied as float32 */
        l.product_rate = wide_rate;
    /* Arrays as large as those of the step, so that they stay in a cache if those do. */
    double bytes = weight < (double)most ? weight : (double)most;
    operands o = {.device = device, .numbers = (int64_t)(bytes / sizeof(float))};
    fill(&o, (const size_t[]){(size_t)bytes, (size_t)bytes, sizeof(double)});
    l.read_bandwidth = bytes / shortest(read_all, &o, 1);
    l.update_bandwidth = 3 * bytes / shortest(update_all, &o, 1);
    release(&o);
    l.product_seconds = s->sample_rate * 6.0 * (double)s->batch * (double)s->features * (double)part / l.product_rate;
    l.memory_seconds = s->sample_rate * (weight / l.read_bandwidth + 2 * (weight + state) / l.update_bandwidth);
    return l;
}

/* ---- results ---- */

static double limit_of(const limits *l)
{
    return l->product_seconds > l->memory_seconds ? l->product_seconds : l->memory_seconds;
}

static void print_spread(FILE *file, const char *name, double *values, int count)
{
    double median = median_of(values, count); /* sorted then */
    fprintf(file, "\"%s\": {\"median\": %.9g, \"min\": %.9g, \"max\": %.9g}", name, median, values[0], values[count - 1]);
}

static void print_head(FILE *file, const settings *s, head *h, const limits *l)
{
    int steps = (int)s->steps;
    print_spread(file, "step_seconds", h->times[STEP], steps);
    fprintf(file, ", \"phases\": {");
    for (int i = 0; i < STEP; i++) {
        fprintf(file, "%s", i ? ", " : "");
        print_spread(file, time_names[i], h->times[i], steps);
    }
    fprintf(file, "}, \"share_of_limit\": %.4g", limit_of(l) / median_of(h->times[STEP], steps));
}

static void write_json(FILE *file, const settings *s, head *heads, const costs *c, const limits *l)
{
    bool both = s->runs[FUSED] && s->runs[PLAIN];
    fprintf(file,
            "{\"ranks\": %d, \"device\": \"%s\", \"classes\": %lld, \"features\": %lld, \"batch\": %lld, \"steps\": %lld, "
            "\"dtype\": \"%s\", \"optimizer\": \"%s\", \"rounding\": \"%s\", \"loss\": \"%s\", \"sample_rate\": %g, "
            "\"stash\": %g, \"head\": \"%s\", ",
            shard_group_size(shard_world()), shard_device_name(shard_device_open(NULL)), (long long)s->classes,
            (long long)s->features, (long long)s->batch, (long long)s->steps, shard_dtype_name(s->dtype),
            optimizer_names[s->optimizer], rounding_names[s->rounding], loss_names[s->binary], s->sample_rate, s->stash,
            head_names[both             ? HEADS
                       : s->runs[FUSED] ? FUSED
                                        : PLAIN]);
    print_head(file, s, &heads[s->runs[FUSED] ? FUSED : PLAIN], l);
    if (both) {
        double fused = median_of(heads[FUSED].times[STEP], (int)s->steps),
               plain = median_of(heads[PLAIN].times[STEP], (int)s->steps);
        fprintf(file, ", \"plain\": {");
        print_head(file, s, &heads[PLAIN], l);
        fprintf(file, "}, \"ratio\": %.4g", plain / fused);
    }
    fprintf(file,
            ", \"limit_seconds\": %.9g, \"product_seconds\": %.9g, \"memory_seconds\": %.9g, \"product_rate\": %.6g, "
            "\"read_bandwidth\": %.6g, \"update_bandwidth\": %.6g, \"library_bytes\": %.0f, \"rss_bytes\": %.0f, "
            "\"page_faults\": %.6g}\n",
            limit_of(l), l->product_seconds, l->memory_seconds, l->product_rate, l->read_bandwidth, l->update_bandwidth,
            c->library_bytes, c->rss_bytes, c->page_faults);
}

static void print(const settings *s, head *heads, const costs *c, const limits *l)
{
    double median[HEADS];
    printf("%lld classes, %lld features, batch %lld, %s, %s, %s loss, %g of the classes, stash %g, %d ranks:\n",
           (long long)s->classes, (long long)s->features, (long long)s->batch, shard_dtype_name(s->dtype),
           optimizer_names[s->optimizer], loss_names[s->binary], s->sample_rate, s->stash, shard_group_size(shard_world()));
    for (int i = 0; i < HEADS; i++) {
        if (!s->runs[i])
            continue;
        median[i] = median_of(heads[i].times[STEP], (int)s->steps);
        printf("  %s: step %.1f ms (", head_names[i], 1e3 * median[i]);
        for (int time = 0; time < STEP; time++)
            printf("%s%s %.1f", time ? ", " : "", time_names[time], 1e3 * median_of(heads[i].times[time], (int)s->steps));
        printf("), %.2f of the limit\n", limit_of(l) / median[i]);
    }
    if (s->runs[FUSED] && s->runs[PLAIN])
        printf("  ratio of plain to fused %.2f\n", median[PLAIN] / median[FUSED]);
    printf("  limit %.1f ms: products %.1f ms at %.0f GFLOP/s, memory %.1f ms at %.1f (read) and %.1f GB/s (update)\n",
           1e3 * limit_of(l), 1e3 * l->product_seconds, 1e-9 * l->product_rate, 1e3 * l->memory_seconds, 1e-9 * l->read_bandwidth,
           1e-9 * l->update_bandwidth);
    printf("  library %.0f MiB, RSS %.0f MiB, %.0f page faults a step\n", c->library_bytes / (1 << 20), c->rss_bytes / (1 << 20),
           c->page_faults);
}

static void report(const settings *s, head *heads, const costs *c, const limits *l)
{
    print(s, heads, c, l);
    if (!s->json)
        return;
    FILE *file = fopen(s->json, "w");
    if (file)
        write_json(file, s, heads, c, l);
    if (!file || fclose(file) != 0) {
        perror(s->json);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    check(shard_init(&argc, &argv) == SHARD_OK);
    settings s = read_settings(argc, argv);
    if (s.batch % shard_group_size(shard_world()) != 0 || s.steps > 1000000)
        refuse(s.steps > 1000000 ? "steps" : "batch", "");
    head heads[HEADS];
    for (int i = 0; i < HEADS; i++)
        if (s.runs[i])
            heads[i] = head_make(&s, i == FUSED);
    costs c = measure_steps(&s, heads);
    limits l = measure_limits(&s);
    if (shard_group_rank(shard_world()) == 0)
        report(&s, heads, &c, &l);
    for (int i = 0; i < HEADS; i++)
        if (s.runs[i])
            head_destroy(&heads[i]);
    return shard_finalize();
}
