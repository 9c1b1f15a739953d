/*
 * bench_gpu [--small] [--heads] [--once head|fused|stashed|wide|binary|arcface|sampled|attention|resnet]: times the kernels and
 * steps of a GPU, each with its lower bound: the bytes that it must move over the copy bandwidth, and the operations that it must
 * do over the rate of a large product, both measured in the same run. Times are medians by CUDA's events, of several runs between
 * two events, so that the GPU never waits for the host. The first run has a time of its own, with the plans that it makes and the
 * code that it loads. Prints one JSON object a line. bench_gpu.py measures the same with PyTorch, and gpu_report.py makes a table
 * of both.
 * --heads: training steps of heads alone; --once runs one thing one time, for a profiler.
 */
#include "clock.h"

#include "device/cuda/cuda.h"
#include "device/head.h"

#include <shard/shard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 2, REPETITIONS = 15, FEWEST = 5, QUEUED = 5 };
#define LONG_ENOUGH 1500.0 /* milliseconds, after which FEWEST repetitions are enough */

static struct {
    shard_device *device;
    cudaEvent_t begin, end;
    bool small; /* shapes that an emulated device can compute in time */
    bool once;
    bool in_memory;                       /* gradients of heads, also where steps would compute them */
    double first;                         /* milliseconds of the last measurement's first run, by the host's clock */
    uint64_t peak;                        /* bytes of the pool in use at most in the last measurement, with cuBLAS's workspace */
    double copy_rate;                     /* bytes read and written a second */
    double product_rate[2][SHARD_DTYPES]; /* operations a second: exact, with TF32 */
} m;

static void check(bool good, const char *what)
{
    if (good && shard_last_status() == SHARD_OK)
        return;
    fprintf(stderr, "bench_gpu: %s: %s\n", what, shard_last_error());
    exit(1);
}

/* Milliseconds of one of `runs` runs of run(context), which are queued at once. */
static double time_runs(void (*run)(void *context), void *context, int runs)
{
    float milliseconds;
    cudaStream_t stream = shard_cuda_of(m.device)->stream;
    check(cudaEventRecord(m.begin, stream) == cudaSuccess, "cudaEventRecord");
    for (int i = 0; i < runs; i++)
        run(context);
    check(cudaEventRecord(m.end, stream) == cudaSuccess, "cudaEventRecord");
    check(cudaEventSynchronize(m.end) == cudaSuccess, "cudaEventSynchronize");
    check(cudaEventElapsedTime(&milliseconds, m.begin, m.end) == cudaSuccess, "cudaEventElapsedTime");
    return (double)milliseconds / runs;
}

static void reset_peak(void)
{
    uint64_t none = 0;
    cudaMemPool_t pool = shard_cuda_of(m.device)->pool;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none) == cudaSuccess, "cudaMemPoolSetAttribute");
}

static void read_peak(void)
{
    cudaMemPool_t pool = shard_cuda_of(m.device)->pool;
    check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &m.peak) == cudaSuccess, "cudaMemPoolGetAttribute");
}

/* Median milliseconds of run(context). */
static double measure(void (*run)(void *context), void *context)
{
    double times[REPETITIONS], total = 0, began = now();
    int count = 0, queued = m.small ? 1 : QUEUED;
    double first = time_runs(run, context, 1);
    m.first = 1e3 * (now() - began);
    if (m.once)
        return first;
    for (int i = 0; i < WARM_UP && !m.small; i++)
        time_runs(run, context, 1);
    reset_peak();
    do {
        times[count] = time_runs(run, context, queued);
        total += queued * times[count++];
    } while (!m.small && count < REPETITIONS && (count < FEWEST || total < LONG_ENOUGH));
    read_peak();
    return median_of(times, count);
}

static void print_line(const char *name, double milliseconds, double floor)
{
    printf("{\"name\":\"%s\",\"ms\":%.6g,\"floor_ms\":%.6g,\"first_ms\":%.6g,\"peak_mib\":%.6g}\n", name, milliseconds, floor,
           m.first, (double)m.peak / (1 << 20));
    fflush(stdout);
}

static double floor_of(double bytes, double operations, bool tf32, shard_dtype dtype)
{
    if (m.once) /* no rates */
        return 0;
    double moved = bytes / m.copy_rate, done = operations > 0 ? operations / m.product_rate[tf32][dtype] : 0;
    return 1e3 * (moved + done);
}

/* ---- the machine's limits ---- */

typedef struct copying {
    void *to, *from;
    size_t bytes;
} copying;

static void run_copy(void *context)
{
    const copying *c = context;
    m.device->ops->copy_rows(m.device, c->to, c->bytes, c->from, c->bytes, c->bytes, 1);
}

static void measure_copy(void)
{
    SHARD_SCOPE
    {
        int64_t elements = m.small ? 1 << 16 : 1 << 29;
        shard_tensor *from = shard_normal(SHARD_SHAPE(elements), 0.0, 1.0), *to = shard_zeros(SHARD_SHAPE(elements));
        copying c = {shard_data(to), shard_data(from), (size_t)elements * sizeof(float)};
        double milliseconds = measure(run_copy, &c);
        m.copy_rate = 2.0 * (double)c.bytes / (1e-3 * milliseconds);
        printf("{\"name\":\"copy\",\"ms\":%.6g,\"gb_per_s\":%.6g}\n", milliseconds, m.copy_rate / 1e9);
    }
}

typedef struct multiplying {
    shard_tensor *a, *b;
} multiplying;

static void run_product(void *context)
{
    const multiplying *p = context;
    shard_release(shard_matmul(p->a, p->b));
}

static const char *kind_name(bool tf32, shard_dtype dtype)
{
    return tf32 ? "tf32" : shard_dtype_name(dtype);
}

static void measure_product(bool tf32, shard_dtype dtype)
{
    shard_set_allow_tf32(m.device, tf32);
    SHARD_SCOPE
    {
        int64_t n = m.small ? 64 : 8192;
        multiplying p = {shard_normal(SHARD_SHAPE(n, n), 0.0, 1.0, .dtype = dtype),
                         shard_normal(SHARD_SHAPE(n, n), 0.0, 1.0, .dtype = dtype)};
        double milliseconds = measure(run_product, &p), operations = 2.0 * (double)n * (double)n * (double)n;
        m.product_rate[tf32][dtype] = operations / (1e-3 * milliseconds);
        printf("{\"name\":\"product %s\",\"ms\":%.6g,\"tflop_per_s\":%.6g}\n", kind_name(tf32, dtype), milliseconds,
               m.product_rate[tf32][dtype] / 1e12);
    }
    shard_set_allow_tf32(m.device, false);
}

/* ---- the head ---- */

typedef struct head {
    shard_tensor *x, *weight, *labels; /* [rows, features], [classes, features], [rows] */
    shard_tensor *logits;
} head;

static shard_tensor *make_labels(int64_t rows, int64_t classes)
{
    int64_t *labels = malloc((size_t)rows * sizeof *labels);
    for (int64_t i = 0; i < rows; i++)
        labels[i] = i * 7919 % classes;
    shard_tensor *tensor = shard_from_host(labels, SHARD_SHAPE(rows), .dtype = SHARD_INT64);
    shard_synchronize(m.device);
    free(labels);
    return tensor;
}

enum { PAIRS = 5 /* of a row */ };

static shard_tensor *make_pairs(int64_t rows, int64_t classes)
{
    int64_t count = rows * PAIRS, *pair = malloc((size_t)(2 * count) * sizeof *pair);
    for (int64_t i = 0; i < count; i++) {
        pair[i] = i / PAIRS;
        pair[count + i] = i % PAIRS * (classes / PAIRS) + i * 79 % (classes / PAIRS);
    }
    shard_tensor *tensor = shard_from_host(pair, SHARD_SHAPE(2, count), .dtype = SHARD_INT64);
    shard_synchronize(m.device);
    free(pair);
    return tensor;
}

static void run_head(void *context)
{
    const head *h = context;
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_linear(h->x, h->weight, NULL), *loss = shard_cross_entropy(logits, h->labels);
        shard_release(logits); /* their gradient then takes their memory */
        shard_backward(loss);
        shard_zero_grad(h->x);
        shard_zero_grad(h->weight);
    }
}

static void run_loss(void *context)
{
    const head *h = context;
    SHARD_SCOPE
    {
        shard_backward(shard_cross_entropy(h->logits, h->labels));
        shard_zero_grad(h->logits);
    }
}

static void bench_head(int64_t number, bool tf32, shard_dtype dtype)
{
    int64_t rows = m.small ? 8 : 2048, features = m.small ? 16 : 2048;
    int64_t classes = m.small ? number / 1000 + number % 1000 : number;
    double logits_bytes = (double)rows * (double)classes * (double)shard_dtype_size(dtype);
    char name[96];
    shard_set_allow_tf32(m.device, tf32);
    SHARD_SCOPE
    {
        head h = {.x = shard_normal(SHARD_SHAPE(rows, features), 0.0, 1.0, .dtype = dtype, .requires_grad = true),
                  .weight = shard_normal(SHARD_SHAPE(classes, features), 0.0, 0.02, .dtype = dtype, .requires_grad = true),
                  .labels = make_labels(rows, classes)};
        snprintf(name, sizeof name, "linear + cross-entropy %lld %s", (long long)number, kind_name(tf32, dtype));
        double operations = 6.0 * (double)rows * (double)features * (double)classes;
        print_line(name, measure(run_head, &h), floor_of(3 * logits_bytes, operations, tf32, dtype));
    }
    if (!tf32)
        SHARD_SCOPE
        {
            head h = {.logits = shard_normal(SHARD_SHAPE(rows, classes), 0.0, 3.0, .dtype = dtype, .requires_grad = true),
                      .labels = make_labels(rows, classes)};
            snprintf(name, sizeof name, "cross-entropy %lld %s", (long long)number, kind_name(tf32, dtype));
            print_line(name, measure(run_loss, &h), floor_of(3 * logits_bytes, 0, tf32, dtype));
        }
    shard_trim_memory(m.device);
    shard_set_allow_tf32(m.device, false);
}

/* ---- a training step of the head ---- */

/* Kinds of a head: a linear layer and the loss of its logits; the fused head, which has no logits and no gradient of the weight
 * as a whole in memory; the same with a stash of all exponentials; with smoothed labels; with binary cross-entropy of PAIRS
 * labels a row, without and with a stash; of cosines with ArcFace's margin; the same over a tenth of the classes, drawn in each
 * step. */
typedef enum head_kind { PLAIN, FUSED, STASHED, SMOOTHED, BINARY, STASHED_BINARY, ARCFACE, SAMPLED } head_kind;

static const char *const head_names[] = {"plain head",  "fused head",          "stashed head", "smoothed head",
                                         "binary head", "stashed binary head", "arcface head", "sampled arcface head"};

typedef struct training {
    shard_module *model;
    shard_optimizer *sgd;
    shard_tensor *inputs, *labels;
    shard_tensor *labels_on_host; /* as a trainer has them: to draw a sample of them does not wait */
    shard_tensor *weight;         /* of a head whose classes are sampled; else NULL */
    bool margin, binary;
    double stash_share, smoothing;
    int64_t step;
} training;

static shard_tensor *loss_of(const training *t, shard_tensor *output, shard_tensor *sample)
{
    if (t->binary)
        return shard_binary_cross_entropy_with_logits(output, t->labels, .stash_share = t->stash_share);
    shard_margin_logits_options margin = SHARD_MARGIN_LOGITS_OPTIONS_INIT;
    margin.m2 = 0.5;
    return shard_cross_entropy(output, t->labels, .normalized = t->margin, .margin = t->margin ? &margin : NULL, .sample = sample,
                               .label_smoothing = t->smoothing, .stash_share = t->stash_share);
}

static void run_training(void *context)
{
    training *t = context;
    SHARD_SCOPE
    {
        shard_tensor *sample = t->weight ? shard_sample_classes(t->labels_on_host, t->weight, 0.1, 1, t->step++) : NULL;
        shard_tensor *output = shard_forward(t->model, t->inputs);
        shard_tensor *loss = loss_of(t, output, sample);
        shard_release(output);
        shard_backward(loss);
    }
    shard_step(t->sgd);
    shard_optimizer_zero_grad(t->sgd);
    if (shard_requires_grad(t->inputs))
        shard_zero_grad(t->inputs);
}

/* Forward, loss, backward with the features' gradient, and the update by SGD with momentum. */
static void bench_head_step(head_kind kind, int64_t number, int64_t rows, int64_t features, bool tf32, shard_dtype dtype)
{
    int64_t classes = m.small ? number / 1000 : number;
    char name[96];
    int used = snprintf(name, sizeof name, "%s step %lld x %lld, batch %lld %s", head_names[kind], (long long)number,
                        (long long)features, (long long)rows, kind_name(tf32, dtype));
    if (shard_head_tile)
        snprintf(name + used, sizeof name - (size_t)used, ", tiles of %lld", (long long)shard_head_tile);
    else if (m.in_memory)
        snprintf(name + used, sizeof name - (size_t)used, ", gradient in memory");
    rows = m.small ? 8 : rows;
    features = m.small ? 16 : features;
    shard_set_allow_tf32(m.device, tf32);
    SHARD_SCOPE
    {
        shard_module *layer = kind != PLAIN ? shard_nn_parallel_classifier(features, classes, NULL, .bias = false, .dtype = dtype)
                                            : shard_nn_linear(features, classes, .bias = false, .dtype = dtype);
        bool binary = kind == BINARY || kind == STASHED_BINARY;
        shard_tensor *labels = binary ? make_pairs(rows, classes) : make_labels(rows, classes);
        training t = {.model = layer,
                      .sgd = shard_sgd(layer, .lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4),
                      .inputs = shard_normal(SHARD_SHAPE(rows, features), 0.0, 1.0, .dtype = dtype, .requires_grad = true),
                      .labels = labels,
                      .labels_on_host = shard_to_device(labels, shard_device_open("cpu")),
                      .weight = kind == SAMPLED ? shard_module_tensor(layer, "weight") : NULL,
                      .margin = kind >= ARCFACE,
                      .binary = binary,
                      .smoothing = kind == SMOOTHED ? 0.1 : 0,
                      .stash_share = kind == STASHED || kind == STASHED_BINARY ? 1000 : 0.05};
        double share = kind == SAMPLED ? 0.1 : 1, operations = 6.0 * share * (double)rows * (double)features * (double)classes;
        /* the weight is read twice and written once, its momentum read and written */
        double bytes = 5.0 * share * (double)classes * (double)features * (double)shard_dtype_size(dtype);
        print_line(name, measure(run_training, &t), floor_of(bytes, operations, tf32, dtype));
        shard_optimizer_destroy(t.sgd);
        shard_module_destroy(layer);
    }
    shard_trim_memory(m.device);
    shard_set_allow_tf32(m.device, false);
}

static void bench_head_steps(void)
{
    static const struct {
        int64_t classes, rows, features;
        bool tf32;
        shard_dtype dtype;
    } shapes[] = {{125000, 2048, 2048, false, SHARD_BFLOAT16},
                  {1000000, 256, 512, false, SHARD_BFLOAT16},
                  {1000000, 256, 512, true, SHARD_FLOAT32}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (head_kind kind = PLAIN; kind <= (i ? SAMPLED : STASHED); kind++)
            if ((kind != STASHED && kind != STASHED_BINARY) || shapes[i].dtype == SHARD_BFLOAT16) /* others have no stash */
                bench_head_step(kind, shapes[i].classes, shapes[i].rows, shapes[i].features, shapes[i].tf32, shapes[i].dtype);
    /* A tile's logits and gradient in the second-level cache, against fewer launches. */
    for (size_t i = 0; i < 2; i++)
        for (shard_head_tile = 4096; shard_head_tile <= 65536; shard_head_tile *= 2)
            bench_head_step(FUSED, shapes[i].classes, shapes[i].rows, shapes[i].features, shapes[i].tf32, shapes[i].dtype);
    shard_head_tile = 0;
    bool (*steps_product)(const shard_update_product *) = m.device->steps_product;
    m.device->steps_product = NULL;
    m.in_memory = true;
    for (head_kind kind = FUSED; kind <= STASHED && steps_product; kind++)
        bench_head_step(kind, shapes[1].classes, shapes[1].rows, shapes[1].features, shapes[1].tf32, shapes[1].dtype);
    m.in_memory = false;
    m.device->steps_product = steps_product;
}

/* ---- the optimizer ---- */

/* One flat range, or the list of a model's parameters. */
typedef struct stepping {
    int64_t count;
    const shard_update *updates;
    double *sum;
} stepping;

static void run_sgd(void *context)
{
    const stepping *s = context;
    shard_sgd_arguments options = {.momentum = 0.9};
    m.device->ops->sgd(m.device, s->count, s->updates, &options, shard_update_types_of(SHARD_FLOAT32));
}

static void run_adamw(void *context)
{
    const stepping *s = context;
    shard_adam_arguments options = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decoupled = true};
    m.device->ops->adam(m.device, s->count, s->updates, &options, shard_update_types_of(SHARD_FLOAT32));
}

static void run_norm(void *context)
{
    const stepping *s = context;
    m.device->ops->power_sum(m.device, s->updates->size, 2.0, s->updates->gradient, s->sum, SHARD_FLOAT32);
}

/* ResNet-50's parameters one by one, and as one flat range: the cost of a list. The whole's memory has room for it. */
static void bench_list(const shard_update *whole)
{
    enum { APART = 64, ROOM = 256 };
    shard_update updates[ROOM], one = *whole;
    shard_module *model = shard_resnet("resnet50", 1000);
    shard_tensors *parameters = shard_parameters(model);
    int64_t count = shard_tensors_count(parameters), total = 0, end = 0;
    char name[96];
    check(count <= ROOM, "ResNet-50's parameters");
    for (int64_t i = 0; i < count; i++) {
        int64_t size = shard_numel(shard_tensors_at(parameters, i)) / (m.small ? 1000 : 1);
        updates[i] = *whole;
        updates[i].size = size;
        updates[i].gradient = (float *)whole->gradient + end;
        updates[i].value = (float *)whole->value + end;
        updates[i].state[0] = (float *)whole->state[0] + end;
        total += size;
        end += (size + APART) / APART * APART;
    }
    check(end <= whole->size, "ResNet-50's size");
    one.size = total;
    stepping list = {count, updates, NULL}, single = {1, &one, NULL};
    double floor = floor_of(5.0 * (double)total * sizeof(float), 0, false, SHARD_FLOAT32);
    snprintf(name, sizeof name, "sgd step resnet50, %lld parameters", (long long)count);
    print_line(name, measure(run_sgd, &list), floor);
    print_line("sgd step resnet50, one flat range", measure(run_sgd, &single), floor);
    shard_tensors_destroy(parameters);
    shard_module_destroy(model);
}

static void bench_steps(void)
{
    SHARD_SCOPE
    {
        int64_t n = m.small ? 1 << 16 : 1 << 28;
        shard_tensor *gradient = shard_normal(SHARD_SHAPE(n), 0.0, 1.0), *momentum = shard_zeros(SHARD_SHAPE(n));
        shard_tensor *parameter = shard_normal(SHARD_SHAPE(n), 0.0, 1.0);
        shard_tensor *square = shard_zeros(SHARD_SHAPE(n)), *sum = shard_zeros(SHARD_SCALAR, .dtype = SHARD_FLOAT64);
        shard_update update = {.size = n,
                               .lr = 1e-6,
                               .weight_decay = 1e-4,
                               .step = 2,
                               .gradient = shard_data(gradient),
                               .value = shard_data(parameter),
                               .state = {shard_data(momentum), shard_data(square)}};
        stepping s = {1, &update, shard_data(sum)};
        double array = (double)n * sizeof(float);
        print_line("sgd step float32", measure(run_sgd, &s), floor_of(5.0 * array, 0, false, SHARD_FLOAT32));
        print_line("adamw step float32", measure(run_adamw, &s), floor_of(7.0 * array, 0, false, SHARD_FLOAT32));
        print_line("gradient norm float32", measure(run_norm, &s), floor_of(array, 0, false, SHARD_FLOAT32));
        bench_list(&update);
    }
}

/* ---- attention ---- */

typedef struct attending {
    shard_tensor *query, *key, *value, *dy;
} attending;

static void run_attention(void *context)
{
    const attending *a = context;
    SHARD_SCOPE
    {
        shard_backward_from(shard_scaled_dot_product_attention(a->query, a->key, a->value, .is_causal = true), a->dy);
        shard_zero_grad(a->query);
        shard_zero_grad(a->key);
        shard_zero_grad(a->value);
    }
}

/* Forward and backward with a causal mask: seven products over half of the scores. */
static void bench_attention(int64_t batch, int64_t length, shard_dtype dtype)
{
    int64_t heads = m.small ? 2 : 16, features = 64, rows = m.small ? 64 : length, samples = m.small ? 1 : batch;
    char name[96];
    SHARD_SCOPE
    {
        shard_shape shape = SHARD_SHAPE(samples, heads, rows, features);
        attending a = {shard_normal(shape, 0.0, 1.0, .dtype = dtype, .requires_grad = true),
                       shard_normal(shape, 0.0, 1.0, .dtype = dtype, .requires_grad = true),
                       shard_normal(shape, 0.0, 1.0, .dtype = dtype, .requires_grad = true),
                       shard_normal(shape, 0.0, 1.0, .dtype = dtype)};
        double scores = (double)(samples * heads) * (double)rows * (double)rows / 2;
        snprintf(name, sizeof name, "attention %lld x 16 x %lld %s", (long long)batch, (long long)length,
                 shard_dtype_name(dtype));
        print_line(name, measure(run_attention, &a), floor_of(0, 7.0 * 2.0 * scores * (double)features, false, dtype));
    }
    shard_trim_memory(m.device);
}

/* ---- ResNet-50 ---- */

static void bench_resnet(bool tf32, shard_dtype dtype)
{
    int64_t batch = m.small ? 2 : 256, side = m.small ? 32 : 224;
    char name[96];
    shard_set_allow_tf32(m.device, tf32);
    SHARD_SCOPE
    {
        shard_module *model = shard_resnet(m.small ? "resnet18" : "resnet50", 1000, .dtype = dtype);
        training t = {.model = model,
                      .sgd = shard_sgd(model, .lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4),
                      .inputs = shard_normal(SHARD_SHAPE(batch, side, side, 3), 0.0, 1.0, .dtype = dtype),
                      .labels = make_labels(batch, 1000)};
        /* 4.09 GMAC an image forward (torchvision's count), twice that backward. */
        double operations = m.small ? 0 : 3 * 2 * 4.09e9 * (double)batch;
        snprintf(name, sizeof name, "resnet50 step %s", kind_name(tf32, dtype));
        print_line(name, measure(run_training, &t), floor_of(0, operations, tf32, dtype));
        shard_optimizer_destroy(t.sgd);
        shard_module_destroy(model);
    }
    shard_trim_memory(m.device);
    shard_set_allow_tf32(m.device, false);
}

static const struct {
    bool tf32;
    shard_dtype dtype;
} kinds[] = {{false, SHARD_BFLOAT16}, {true, SHARD_FLOAT32}, {false, SHARD_FLOAT32}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void bench_all(bool heads)
{
    /* 125001 and 15625, an eighth of 125000, are not multiples of 8. */
    static const int64_t classes[] = {125000, 250000, 125001, 15625};
    measure_copy();
    for (int i = 0; i < KINDS; i++)
        measure_product(kinds[i].tf32, kinds[i].dtype);
    bench_head_steps();
    if (heads)
        return;
    for (int k = 0; k < KINDS; k++)
        for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
            bench_head(classes[i], kinds[k].tf32, kinds[k].dtype);
    bench_steps();
    bench_attention(16, 1024, SHARD_BFLOAT16);
    bench_attention(2, 8192, SHARD_BFLOAT16);
    bench_attention(16, 1024, SHARD_FLOAT32);
    for (int i = 0; i < 2; i++)
        bench_resnet(kinds[i].tf32, kinds[i].dtype);
}

static const struct {
    const char *name;
    head_kind kind;
    int64_t classes, rows, features;
} once_steps[] = {{"fused", FUSED, 125000, 2048, 2048},    {"stashed", STASHED, 125000, 2048, 2048},
                  {"wide", FUSED, 1000000, 256, 512},      {"binary", BINARY, 1000000, 256, 512},
                  {"arcface", ARCFACE, 1000000, 256, 512}, {"sampled", SAMPLED, 1000000, 256, 512}};
enum { ONCE_STEPS = sizeof once_steps / sizeof *once_steps };

/* The step's number, -1 if none has the name. */
static int find_step(const char *name)
{
    for (int i = 0; i < ONCE_STEPS; i++)
        if (strcmp(name, once_steps[i].name) == 0)
            return i;
    return -1;
}

static void run_once(const char *name)
{
    int i = find_step(name);
    if (i >= 0)
        bench_head_step(once_steps[i].kind, once_steps[i].classes, once_steps[i].rows, once_steps[i].features, false,
                        SHARD_BFLOAT16);
    else if (strcmp(name, "head") == 0)
        bench_head(125000, false, SHARD_BFLOAT16);
    else if (strcmp(name, "attention") == 0)
        bench_attention(16, 1024, SHARD_BFLOAT16);
    else
        bench_resnet(false, SHARD_BFLOAT16);
}

static bool runs_once(const char *name)
{
    return find_step(name) >= 0 || strcmp(name, "head") == 0 || strcmp(name, "attention") == 0 || strcmp(name, "resnet") == 0;
}

int main(int argc, char **argv)
{
    const char *once = NULL;
    bool heads = false;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--small") == 0)
            m.small = true;
        else if (strcmp(argv[i], "--heads") == 0)
            heads = true;
        else if (strcmp(argv[i], "--once") == 0 && i + 1 < argc && runs_once(argv[i + 1]))
            once = argv[++i];
        else {
            fprintf(stderr, "usage: bench_gpu [--small] [--heads] "
                            "[--once head|fused|stashed|wide|binary|arcface|sampled|attention|resnet]\n");
            return 2;
        }
    m.once = once != NULL;
    shard_init(NULL, NULL);
    m.device = shard_device_open("cuda");
    check(m.device != NULL, "device");
    shard_set_default_device(m.device);
    check(cudaEventCreate(&m.begin) == cudaSuccess && cudaEventCreate(&m.end) == cudaSuccess, "cudaEventCreate");
    if (once)
        run_once(once);
    else
        bench_all(heads);
    return shard_finalize();
}
