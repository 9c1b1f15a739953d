/*
 * What is CUDA's own about its device: that a sequence of entries, and a whole training
 * step, can be captured in a graph and replayed, what capture refuses, calls from any
 * thread of the host, and what becomes of the device's record of what it found wrong.
 */
#include "support/check.h"

#include "device/cuda/cuda.h"
#include "support/options.h"

#include <shard/shard.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROWS = 4000, COLS = 8, SIZE = ROWS * COLS, ROUNDS = 3 };

static shard_device *open_device(const char *name)
{
    shard_device *device = shard_device_open(name);
    ck_assert_msg(device != NULL, "%s", shard_last_error());
    return device;
}

static void check_done(shard_status status)
{
    ck_assert_msg(status == SHARD_OK, "%s", shard_last_error());
}

static float *array_of(shard_device *device, int64_t n, double value)
{
    float *array = device->ops->allocate(device, (size_t)n * sizeof *array);
    ck_assert_msg(array != NULL, "%s", shard_last_error());
    check_done(device->ops->fill(device, n, value, array, SHARD_FLOAT32));
    return array;
}

static void check_values(shard_device *device, int64_t n, const float *array, const float *want, const char *what)
{
    float *values = malloc((size_t)n * sizeof *values);
    check_done(device->ops->copy_out(device, values, array, (size_t)n * sizeof *values));
    for (int64_t i = 0; i < n; i++)
        if (values[i] != want[i])
            ck_abort_msg("%s: element %lld is %.9g, wanted %.9g", what, (long long)i, (double)values[i], (double)want[i]);
    free(values);
}

/* ---- graphs ---- */

typedef struct state {
    float *x, *scale, *y, *gradient, *buffer, *parameter;
} state;

static state state_of(shard_device *device)
{
    return (state){.x = array_of(device, SIZE, 0),
                   .scale = array_of(device, COLS, -1.5),
                   .y = array_of(device, SIZE, 0),
                   .gradient = array_of(device, COLS, 0),
                   .buffer = array_of(device, COLS, 0.25),
                   .parameter = array_of(device, COLS, 1)};
}

/* Something like a training step; the column sums take scratch memory. */
static void step(shard_device *device, const state *s)
{
    const shard_device_ops *ops = device->ops;
    shard_sgd_arguments options = {.momentum = 0.9};
    shard_update update = {.size = COLS,
                           .lr = 0.1,
                           .weight_decay = 0.01,
                           .step = 2,
                           .gradient = s->gradient,
                           .value = s->parameter,
                           .state = {s->buffer}};
    check_done(ops->axpby(device, SIZE, 0.5, s->x, 0, s->y, SHARD_FLOAT32));
    check_done(ops->unary(device, SHARD_RELU, NULL, SIZE, s->y, s->y, SHARD_FLOAT32));
    const shard_expansion over = shard_expansion_rows(ROWS, COLS);
    check_done(ops->binary(device, SHARD_MUL, &over, s->y, s->scale, s->y, SHARD_FLOAT32));
    check_done(ops->sum_rows(device, ROWS, COLS, 0, s->y, SHARD_FLOAT32, false, s->gradient, SHARD_FLOAT32));
    check_done(ops->sgd(device, 1, &update, &options, shard_update_types_of(SHARD_FLOAT32)));
}

START_TEST(graph_replays)
{
    shard_device *device = open_device("cuda");
    cudaStream_t stream = shard_cuda_of(device)->stream;
    state captured = state_of(device), direct = state_of(device);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    step(device, &captured);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (int round = 0; round < ROUNDS; round++) {
        static float x[SIZE];
        float parameter[COLS], buffer[COLS], gradient[COLS];
        for (int i = 0; i < SIZE; i++)
            x[i] = (float)((i * 37 + round * 11) % 101 - 40) / 16;
        check_done(device->ops->copy_in(device, direct.x, x, sizeof x));
        step(device, &direct);
        check_done(device->ops->copy_out(device, parameter, direct.parameter, sizeof parameter));
        check_done(device->ops->copy_out(device, buffer, direct.buffer, sizeof buffer));
        check_done(device->ops->copy_out(device, gradient, direct.gradient, sizeof gradient));
        ck_assert_float_ne(gradient[0], 0);

        check_done(device->ops->copy_in(device, captured.x, x, sizeof x));
        ck_assert_int_eq(cudaGraphLaunch(executable, stream), cudaSuccess);
        check_values(device, COLS, captured.gradient, gradient, "gradient");
        check_values(device, COLS, captured.buffer, buffer, "momentum buffer");
        check_values(device, COLS, captured.parameter, parameter, "parameter");
    }
    ck_assert_int_eq(cudaGraphExecDestroy(executable), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
}
END_TEST

/* As many parameters as a ResNet-50 has, none next to another, in a dozen launches at most. */
START_TEST(few_launches)
{
    enum { PARAMETERS = 161, EACH = 40, APART = 64 };
    shard_device *device = open_device("cuda");
    cudaStream_t stream = shard_cuda_of(device)->stream;
    const shard_device_ops *ops = device->ops;
    float *memory = array_of(device, 4 * PARAMETERS * APART, 0.5), *at = memory;
    double *sums = (double *)array_of(device, 4 * PARAMETERS, 0);
    shard_update updates[PARAMETERS] = {0};
    shard_square_sum arrays[2 * PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++, at += 4 * APART) {
        updates[i] = (shard_update){
            .size = EACH, .lr = 0.1, .step = 1, .gradient = at, .value = at + APART, .state = {at + 2 * APART, at + 3 * APART}};
        arrays[2 * i] = (shard_square_sum){EACH, updates[i].value, sums + 2 * i};
        arrays[2 * i + 1] = (shard_square_sum){EACH, updates[i].gradient, sums + 2 * i + 1};
    }
    shard_sgd_arguments sgd = {.momentum = 0.9};
    shard_adam_arguments adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3};
    const shard_update_types types = shard_update_types_of(SHARD_FLOAT32);
    static const struct {
        const char *name;
        size_t launches;
    } most[] = {{"sgd", 4}, {"adam", 5}, {"lamb_update", 5}, {"square_sums", 6 + 6 /* its scratch memory */}};
    for (int entry = 0; entry < 4; entry++) {
        cudaGraph_t graph;
        size_t launches = 0;
        ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        check_done(entry == 0   ? ops->sgd(device, PARAMETERS, updates, &sgd, types)
                   : entry == 1 ? ops->adam(device, PARAMETERS, updates, &adam, types)
                   : entry == 2 ? ops->lamb_update(device, PARAMETERS, updates, &adam, types)
                                : ops->square_sums(device, 2 * PARAMETERS, arrays, SHARD_FLOAT32));
        ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ck_assert_int_eq(cudaGraphGetNodes(graph, NULL, &launches), cudaSuccess);
        ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
        ck_assert_msg(launches > 0 && launches <= most[entry].launches, "%s: %zu launches", most[entry].name, launches);
    }
}
END_TEST

static size_t end_count(cudaStream_t stream)
{
    cudaGraph_t graph;
    size_t nodes = 0;
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphGetNodes(graph, NULL, &nodes), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    return nodes;
}

/* A batch norm of one rank: three launches, and an allocation and a release each of y, mean, rstd and the partial sums. */
START_TEST(few_batch_norm_launches)
{
    shard_device *device = open_device("cuda");
    cudaStream_t stream = shard_cuda_of(device)->stream;
    shard_set_default_device(device);
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(64, 32)), *weight = shard_ones(SHARD_SHAPE(32)),
                     *bias = shard_zeros(SHARD_SHAPE(32));
        shard_tensor *mean = shard_zeros(SHARD_SHAPE(32)), *var = shard_ones(SHARD_SHAPE(32));
        ck_assert(shard_data(x) && shard_data(weight) && shard_data(bias) && shard_data(mean) && shard_data(var));
        ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        SHARD_SCOPE {
            shard_tensor *y = shard_batch_norm(x, mean, var, weight, bias, .training = true);
            ck_assert_msg(y != NULL, "%s", shard_last_error());
        }
        ck_assert_uint_eq(end_count(stream), 3 + 2 * 4);
    }
}
END_TEST

/* ---- a whole training step ---- */

enum { BATCH = 6, SIDE = 5, CLASSES = 11, STEPS = 5 };

typedef struct trainee {
    shard_module *model;
    shard_optimizer *sgd;
    shard_data_parallel *parallel;
    shard_tensor *images, *labels, *loss;
} trainee;

static trainee trainee_of(shard_device *device)
{
    shard_manual_seed(5);
    trainee t = {.model = shard_nn_sequential(shard_nn_conv2d(3, 8, 3, .padding = 1, .bias = false), shard_nn_batch_norm(8),
                                              shard_nn_relu(), shard_nn_global_avg_pool2d(),
                                              shard_nn_parallel_linear(8, CLASSES, SHARD_SPLIT_COLUMN, shard_world())),
                 .images = shard_zeros(SHARD_SHAPE(BATCH, SIDE, SIDE, 3), .device = device),
                 .labels = shard_zeros(SHARD_SHAPE(BATCH), .dtype = SHARD_INT64, .device = device),
                 .loss = shard_zeros(SHARD_SCALAR, .device = device)};
    shard_tensors *parameters = shard_parameters(t.model);
    t.parallel = shard_data_parallel_create(parameters);
    t.sgd = sgd_of_list(parameters, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01);
    ck_assert_msg(t.parallel && t.sgd && t.images && t.labels && t.loss, "%s", shard_last_error());
    return t;
}

/* The loss stays in memory that was there before. */
static void train(shard_device *device, const trainee *t)
{
    SHARD_SCOPE {
        shard_tensor *logits = shard_forward(t->model, t->images);
        shard_tensor *loss = shard_parallel_cross_entropy(logits, t->labels, .label_smoothing = 0.1);
        shard_release(logits);
        ck_assert_msg(loss, "%s", shard_last_error());
        check_done(device->ops->copy_rows(device, shard_data(t->loss), sizeof(float), shard_data(loss), sizeof(float),
                                          sizeof(float), 1));
        check_done(shard_backward(loss));
    }
    check_done(shard_step(t->sgd));
}

static void read_batch(const trainee *t, int number)
{
    float images[BATCH * SIDE * SIDE * 3];
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH * SIDE * SIDE * 3; i++)
        images[i] = (float)((i * 37 + number * 11) % 101 - 40) / 32;
    for (int i = 0; i < BATCH; i++)
        labels[i] = i == 2 ? -100 : (i * 5 + number) % CLASSES;
    check_done(shard_copy_from_host(t->images, images, sizeof images));
    check_done(shard_copy_from_host(t->labels, labels, sizeof labels));
}

/* Parameters, running statistics, momenta: all that is in GPU memory. */
static void check_alike(shard_device *device, const shard_tensors *a, const shard_tensors *b)
{
    int64_t compared = 0;
    for (int64_t i = 0; i < shard_tensors_count(a); i++) {
        shard_tensor *x = shard_tensors_at(a, i), *y = shard_tensors_at(b, i);
        int64_t n = shard_numel(x);
        if (shard_tensor_device(x) != device)
            continue;
        float *values = malloc((size_t)n * sizeof *values);
        check_done(shard_copy_to_host(x, values, (size_t)n * sizeof *values));
        check_values(device, n, shard_data(y), values, shard_tensors_name(a, i));
        free(values);
        compared += n;
    }
    ck_assert_int_gt(compared, 0);
}

static void check_trained_alike(shard_device *device, const trainee *a, const trainee *b)
{
    shard_tensors *lists[] = {shard_state_dict(a->model), shard_state_dict(b->model), shard_optimizer_state_dict(a->sgd),
                              shard_optimizer_state_dict(b->sgd)};
    check_alike(device, lists[0], lists[1]);
    check_alike(device, lists[2], lists[3]);
    for (int i = 0; i < 4; i++)
        shard_tensors_destroy(lists[i]);
}

static cudaGraphExec_t capture_step(shard_device *device, const trainee *t)
{
    cudaStream_t stream = shard_cuda_of(device)->stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    train(device, t);
    ck_assert_int_eq(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    ck_assert_int_eq(cudaGraphDestroy(graph), cudaSuccess);
    return executable;
}

START_TEST(training_step_replays)
{
    ck_assert_int_eq(shard_init(NULL, NULL), SHARD_OK);
    shard_device *device = open_device("cuda");
    cudaStream_t stream = shard_cuda_of(device)->stream;
    shard_set_allow_tf32(device, true); /* rows of logits are padded */
    shard_set_default_device(device);
    trainee captured = trainee_of(device), direct = trainee_of(device);
    const trainee *both[] = {&captured, &direct};
    for (int k = 0; k < 2; k++) { /* makes what is made once: gradients, momenta, handles and plans */
        read_batch(both[k], 0);
        train(device, both[k]);
    }
    check_trained_alike(device, &direct, &captured);
    int64_t memory = shard_get_memory_stats(device).current;
    cudaGraphExec_t executable = capture_step(device, &captured);
    ck_assert_int_eq(shard_get_memory_stats(device).current, memory);
    float last = 0;
    for (int step = 1; step <= STEPS; step++) {
        for (int k = 0; k < 2; k++)
            read_batch(both[k], step);
        train(device, &direct);
        ck_assert_int_eq(cudaGraphLaunch(executable, stream), cudaSuccess);
        float loss = (float)shard_item(direct.loss);
        ck_assert_float_ne(loss, last);
        check_values(device, 1, shard_data(captured.loss), &loss, "loss");
        check_trained_alike(device, &direct, &captured);
        last = loss;
    }

    /* A replay tells of labels too. */
    int64_t labels[BATCH] = {0, 1, 2, CLASSES, 4, -1};
    check_done(shard_copy_from_host(captured.labels, labels, sizeof labels));
    ck_assert_int_eq(cudaGraphLaunch(executable, stream), cudaSuccess);
    ck_assert(shard_last_status() == SHARD_OK && isnan(shard_item(captured.loss)));
    ck_assert_ptr_nonnull(strstr(shard_last_error(), "shard_cross_entropy: label 11 "));
    shard_clear_error();

    ck_assert_int_eq(cudaGraphExecDestroy(executable), cudaSuccess);
    for (int k = 0; k < 2; k++) {
        shard_data_parallel_destroy(both[k]->parallel);
        shard_optimizer_destroy(both[k]->sgd);
        shard_module_destroy(both[k]->model);
        shard_release(both[k]->images);
        shard_release(both[k]->labels);
        shard_release(both[k]->loss);
    }
    ck_assert_int_eq(shard_finalize(), 0);
}
END_TEST

/* Entries that wait say so, and the device can be used once the capture has ended. */
START_TEST(capture_refuses_waiting)
{
    shard_device *device = open_device("cuda");
    cudaStream_t stream = shard_cuda_of(device)->stream;
    float *y = array_of(device, 5, 1), value;
    for (int which = 0; which < 2; which++) {
        cudaGraph_t graph = NULL;
        ck_assert_int_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        check_done(device->ops->fill(device, 5, 2, y, SHARD_FLOAT32));
        shard_status status =
            which == 0 ? device->ops->copy_out(device, &value, y, sizeof value) : device->ops->synchronize(device);
        ck_assert_int_eq(status, SHARD_ERROR_DEVICE);
        shard_clear_error();
        ck_assert_int_ne(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        cudaGetLastError();
        check_values(device, 5, y, (float[]){1, 1, 1, 1, 1}, "what was not captured");
    }
}
END_TEST

/* ---- threads ---- */

typedef struct job {
    shard_device *device;
    float sum;
    shard_status status;
} job;

/* Column sums of ones, on a device that another thread has opened. */
static void *sum_ones(void *argument)
{
    job *j = argument;
    shard_device *device = j->device;
    const shard_device_ops *ops = device->ops;
    float *staged = ops->allocate_host(device, sizeof *staged);
    float *x = ops->allocate(device, SIZE * sizeof *x), *y = ops->allocate(device, sizeof *y);
    j->status = SHARD_ERROR_MEMORY;
    if (!staged || !x || !y)
        return NULL;
    j->status = ops->fill(device, SIZE, 1, x, SHARD_FLOAT32);
    if (j->status == SHARD_OK)
        j->status = ops->sum_rows(device, SIZE, 1, 0, x, SHARD_FLOAT32, false, y, SHARD_FLOAT32);
    if (j->status == SHARD_OK)
        j->status = ops->copy_out(device, staged, y, sizeof *y);
    j->sum = *staged;
    ops->release(device, x, SIZE * sizeof *x);
    ops->release(device, y, sizeof *y);
    ops->release_host(device, staged, sizeof *staged);
    return NULL;
}

/* On the last GPU, which is not the one that a thread begins with if there are several. */
START_TEST(any_thread)
{
    setenv("SHARD_CUDA_EMULATION_DEVICES", "2", 1);
    shard_device *first = open_device("cuda:0");
    int count = 0;
    ck_assert_int_eq(cudaGetDeviceCount(&count), cudaSuccess);
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", count - 1);
    job jobs[] = {{.device = open_device(name)}, {.device = first}};
    for (int k = 0; k < 2; k++) {
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, sum_ones, &jobs[k]), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(jobs[k].status, SHARD_OK);
        ck_assert_float_eq(jobs[k].sum, SIZE);
    }
    for (int k = 0; k < 4; k++) { /* one thread, by turns */
        jobs[k % 2].sum = 0;
        sum_ones(&jobs[k % 2]);
        ck_assert_msg(jobs[k % 2].status == SHARD_OK, "%s", shard_last_error());
        ck_assert_float_eq(jobs[k % 2].sum, SIZE);
    }
}
END_TEST

/* ---- faults ---- */

/* A label of the last loss, for which nothing waits, is the job's error all the same. */
START_TEST(finalize_waits)
{
    ck_assert_int_eq(shard_init(NULL, NULL), SHARD_OK);
    shard_set_default_device(open_device("cuda"));
    const int64_t labels[] = {0, 7};
    SHARD_SCOPE {
        shard_cross_entropy(shard_zeros(SHARD_SHAPE(2, 5)), shard_from_host(labels, SHARD_SHAPE(2), .dtype = SHARD_INT64));
    }
    shard_set_default_device(NULL);
    check_done(shard_last_status());
    ck_assert_int_eq(shard_finalize(), 1);
    ck_assert_ptr_nonnull(strstr(shard_last_error(), "shard_cross_entropy: label 7 "));
}
END_TEST

/* The pool gives unused memory back also after a fault; the next wait reports the fault. */
START_TEST(trims_after_a_fault)
{
    enum { BYTES = 64 << 20 };
    static const shard_fault fault = {SHARD_ERROR_ARGUMENT, "index %lld at %lld of %lld"};
    shard_device *device = open_device("cuda");
    int64_t index[] = {3}, *there = device->ops->allocate(device, sizeof index);
    device->ops->release(device, device->ops->allocate(device, BYTES), BYTES);
    check_done(device->ops->copy_in(device, there, index, sizeof index));
    check_done(device->ops->check_index(device, 1, there, 3, -1, &fault, NULL));
    ck_assert_int_ge(shard_get_memory_stats(device).reserved, BYTES);
    shard_trim_memory(device);
    ck_assert_int_lt(shard_get_memory_stats(device).reserved, BYTES);
    check_done(shard_last_status());
    ck_assert_int_eq(shard_synchronize(device), SHARD_ERROR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(shard_last_error(), "index 3 "));
    shard_clear_error();
}
END_TEST

/* A record whose last words cannot be read at first: who reads it is stopped there, and
 * meanwhile another thread asks, and a kernel finds something else. */
static struct {
    shard_device *device;
    char *pages;
    size_t page;
    shard_cuda_fault *record;
    bool told_meanwhile;
} reading;

/* As a kernel does. */
static void note(int64_t number)
{
    static const shard_fault fault = {SHARD_ERROR_ARGUMENT, "note %lld, %lld, %lld"};
    if (reading.record->what)
        return;
    for (int i = 0; i < 3; i++)
        reading.record->detail[i] = number;
    reading.record->what = shard_cuda_fault_word(&fault);
}

static void happen_meanwhile(int signal)
{
    (void)signal;
    mprotect(reading.pages + reading.page, reading.page, PROT_READ | PROT_WRITE);
    reading.told_meanwhile = reading.device->ops->report(reading.device) != SHARD_OK;
    shard_clear_error();
    note(2);
}

/* What the device has found is told once, as it was found, whoever asks at the same time. */
START_TEST(tells_each_once)
{
    shard_device *device = reading.device = open_device("cuda");
    shard_cuda *cuda = shard_cuda_of(device);
    shard_cuda_fault *own = cuda->fault;
    reading.page = (size_t)sysconf(_SC_PAGESIZE);
    reading.pages = mmap(NULL, 2 * reading.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(reading.pages, MAP_FAILED);
    cuda->fault = reading.record = (shard_cuda_fault *)(void *)(reading.pages + reading.page - sizeof *own / 2);
    note(1);
    ck_assert_int_eq(mprotect(reading.pages + reading.page, reading.page, PROT_NONE), 0);
    struct sigaction before, meanwhile = {.sa_handler = happen_meanwhile};
    ck_assert_int_eq(sigaction(SIGSEGV, &meanwhile, &before), 0);
    shard_status status = device->ops->report(device);
    ck_assert_int_eq(sigaction(SIGSEGV, &before, NULL), 0);
    ck_assert_int_eq(status, SHARD_ERROR_ARGUMENT);
    ck_assert_str_eq(shard_last_error(), "note 1, 1, 1");
    ck_assert(!reading.told_meanwhile);
    shard_clear_error();
    check_done(device->ops->report(device));
    cuda->fault = own;
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_device");
    TCase *all = test_case(suite, "all");
    tcase_add_test(all, graph_replays);
    tcase_add_test(all, few_launches);
    tcase_add_test(all, few_batch_norm_launches);
    tcase_add_test(all, training_step_replays);
    tcase_add_test(all, capture_refuses_waiting);
    tcase_add_test(all, any_thread);
    tcase_add_test(all, finalize_waits);
    tcase_add_test(all, trims_after_a_fault);
    tcase_add_test(all, tells_each_once);
    return test_run(suite);
}
