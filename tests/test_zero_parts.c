/* What shard_zero_optimizer gives each rank of a parameter, and how stage 3 comes to the rest. */
#include "support/host.h"
#include "support/zero.h"

#include "comm/comm.h"
#include "optim/optimizer.h"
#include "support/options.h"

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static shard_optimizer *sgd_of(shard_tensors *parameters)
{
    return sgd_of_list(parameters, .lr = 0.02, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true);
}

static shard_optimizer *zero_sgd_of(shard_tensors *parameters, zero_way options)
{
    shard_optimizer *sgd = sgd_of(parameters), *shared = zero_with(sgd, options);
    ck_assert_msg(shared && shared == sgd, "%s", shard_last_error());
    return shared;
}

/* ---- who has what ---- */

static int64_t part_of(const shard_optimizer *optimizer, const char *name)
{
    for (int64_t i = 0; i < optimizer->count; i++)
        if (strcmp(optimizer->slots[i].name, name) == 0)
            return shard_numel(optimizer->slots[i].range.tensor);
    return -1;
}

/* Whole parameters: 407, 35, 19, 13, 9, 5, 3, 1 and 0 elements, in this order to whoever has
 * least, as torch's sorted-greedy deals them. */
static void deals_as_torch(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        sorts s = make_sorts(world);
        shard_optimizer *sgd = zero_sgd_of(list_sorts(&s), (zero_way){.partition = SHARD_ZERO_WHOLE});
        ck_assert_int_eq(part_of(sgd, "large"), rank == 0 ? 407 : 0);
        ck_assert_int_eq(part_of(sgd, "first.weight"), rank == 1 ? 35 : 0);
        ck_assert_int_eq(part_of(sgd, "double"), rank == 2 ? 19 : 0);
        ck_assert_int_eq(part_of(sgd, "last.weight"), rank == 2 ? 9 : 0);
        ck_assert_int_eq(part_of(sgd, "half"), rank == 2 ? 13 : 0);
        ck_assert_int_eq(part_of(sgd, "first.bias"), rank == 1 ? 5 : 0);
        ck_assert_int_eq(part_of(sgd, "unused"), rank == 1 ? 3 : 0);
        ck_assert_int_eq(part_of(sgd, "last.bias"), rank == 2 ? 1 : 0);
        ck_assert_int_eq(part_of(sgd, "frozen"), 4);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_whole)
{
    run_job(3, deals_as_torch, NULL);
}
END_TEST

/* Of equal sizes the first listed first, as torch's stable sort has it. */
static void deals_equal_sizes(shard_group *world, void *context)
{
    (void)context;
    static const char *const names[] = {"d", "c", "b", "a", "e"};
    static const int64_t sizes[] = {4, 9, 9, 9, 4}, owners[] = {0, 0, 1, 2, 1};
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        for (int i = 0; i < 5; i++)
            check_ok(shard_tensors_add(list, names[i], shard_ones(SHARD_SHAPE(sizes[i]), .requires_grad = true)));
        shard_optimizer *sgd = zero_sgd_of(list, (zero_way){.partition = SHARD_ZERO_WHOLE});
        for (int i = 0; i < 5; i++)
            ck_assert_int_eq(part_of(sgd, names[i]), owners[i] == shard_group_rank(world) ? sizes[i] : 0);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_whole_of_equal_sizes)
{
    run_job(3, deals_equal_sizes, NULL);
}
END_TEST

static void check_aligned(shard_tensor *tensor)
{
    ck_assert_uint_eq((uintptr_t)shard_tensor_values(tensor) % 64, 0);
}

/* Ranges: each parameter's are one after the other over the ranks, and begin on 64 bytes
 * of their bucket, of which each rank has as much. */
static void deals_evenly(shard_group *world, void *context)
{
    int size = shard_group_size(world);
    SHARD_SCOPE
    {
        sorts s = make_sorts(world);
        shard_optimizer *sgd = zero_sgd_of(list_sorts(&s), (zero_way){.stage = *(int *)context});
        int64_t own = 0;
        back_sorts(&s, world, 0);
        check_ok(shard_step(sgd));
        for (int64_t i = 0; i < sgd->count; i++) {
            const shard_slot *slot = &sgd->slots[i];
            if (slot->parameter->requires_grad) {
                check_aligned(slot->parameter);
                check_aligned(slot->range.tensor);
                check_aligned(slot->range.tensor->leaf->grad);
                check_aligned(slot->range.state[0]);
            }
            shard_range mine = {shard_range_start(slot->range.tensor), shard_numel(slot->range.tensor)};
            shard_range *all = calloc((size_t)size, sizeof *all);
            check_ok(shard_group_exchange(world, &mine, sizeof mine, all));
            int64_t covered = 0;
            for (int rank = 0; rank < size && slot->parameter->requires_grad; rank++) {
                ck_assert(all[rank].size == 0 || all[rank].start == covered);
                covered += all[rank].size;
            }
            free(all);
            ck_assert(!slot->parameter->requires_grad || covered == shard_numel(slot->parameter));
            if (slot->parameter->requires_grad && slot->parameter->dtype == SHARD_FLOAT32)
                own += (mine.size + 15) / 16 * 16;
        }
        /* 35, 5, 0, 407, 3, 9 and 1 elements on multiples of 16: as many a rank, until they end */
        int64_t all = 48 + 16 + 416 + 16 + 16 + 16, each = (all + 16 * size - 1) / (16 * size) * 16;
        int64_t left = all - each * shard_group_rank(world);
        ck_assert_int_eq(own, left < 0 ? 0 : left < each ? left : each);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_even)
{
    int stage = _i % 3 + 1;
    run_job(rank_counts[_i + 1], deals_evenly, &stage);
}
END_TEST

/* What lies between parameters stays zero, whatever was in the memory before. */
static void keeps_gaps(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p[2] = {made_up_leaf(SHARD_SHAPE(5), 1, SHARD_FLOAT32), made_up_leaf(SHARD_SHAPE(7), 2, SHARD_FLOAT32)};
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "m.a", p[0]));
        check_ok(shard_tensors_add(list, "m.b", p[1]));
        shard_optimizer *sgd = zero_sgd_of(list, (zero_way){.stage = 2});
        for (int step = 0; step < 2; step++) {
            SHARD_SCOPE
            {
                for (int i = 0; i < 16; i++)
                    ck_assert_ptr_nonnull(shard_tensor_memory(shard_full(SHARD_SHAPE(16 * shard_group_size(world)), NAN)));
            }
            check_ok(shard_backward(shard_add(shard_sum(p[0]), shard_sum(p[1]))));
            check_ok(shard_step(sgd));
        }
        shard_storage *values = p[0]->storage;
        shard_tensor *all = shard_tensor_on(values, 0, SHARD_SHAPE((int64_t)values->bytes / 4), SHARD_FLOAT32);
        double *numbers = values_of(all);
        int zeros = 0;
        for (int64_t i = 0; i < shard_numel(all); i++)
            zeros += numbers[i] == 0;
        ck_assert_int_eq(zeros, shard_numel(all) - 5 - 7);
        free(numbers);
        shard_tensor_unref(all);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_gaps)
{
    run_job(2, keeps_gaps, NULL);
}
END_TEST

/* With eps 0 Adam's update of a zero is NaN: none comes into the gaps of gradients, which norms are taken of. Four parameters,
 * so that each rank has two next to each other. */
static void keeps_gaps_of_gradients(shard_group *world, void *context)
{
    (void)world;
    int stage = *(int *)context;
    SHARD_SCOPE
    {
        static const char *const names[] = {"m.a", "m.b", "m.c", "m.d"};
        shard_tensor *loss = shard_zeros(SHARD_SCALAR), *p[4];
        shard_tensors *list = shard_tensors_create();
        for (int i = 0; i < 4; i++) {
            p[i] = made_up_leaf(SHARD_SHAPE(5), (uint64_t)i, SHARD_FLOAT32);
            check_ok(shard_tensors_add(list, names[i], p[i]));
        }
        shard_data_parallel *dp = shard_data_parallel_create(list);
        shard_optimizer *lamb = lamb_of_list(list, .lr = 0.1, .eps = 0);
        if (stage)
            ck_assert_ptr_nonnull(shard_zero_optimizer(lamb, .stage = stage));
        for (int step = 0; step < 3; step++) {
            double norm;
            for (int i = 0; i < 4; i++)
                loss = shard_add(loss, shard_sum(p[i]));
            check_ok(shard_backward(loss));
            check_ok(shard_clip_grad_norm(lamb, 1e9, &norm));
            ck_assert_double_eq_tol(norm, sqrt(20), 1e-6);
            check_ok(shard_step(lamb));
            loss = shard_zeros(SHARD_SCALAR);
        }
        shard_optimizer_destroy(lamb);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_gaps_of_gradients)
{
    run_job(2, keeps_gaps_of_gradients, &_i); /* 0: data parallel */
}
END_TEST

/* A bucket ends where a module does, but for modules of more than two buckets. */
static void ends_with_modules(shard_group *world, void *context)
{
    (void)world, (void)context;
    SHARD_SCOPE
    {
        static const char *const names[] = {"a.bias", "a.weight", "b.bias", "b.weight", "c.d.first", "c.d.large", "c.d.larger"};
        static const int64_t sizes[] = {20, 400, 20, 400, 1, 300, 600};
        shard_tensor *p[7];
        shard_tensors *list = shard_tensors_create();
        for (int i = 0; i < 7; i++) {
            p[i] = made_up_leaf(SHARD_SHAPE(sizes[i]), 1, SHARD_FLOAT32);
            check_ok(shard_tensors_add(list, names[i], p[i]));
        }
        shard_optimizer *sgd = zero_sgd_of(list, (zero_way){.bucket_mib = 1000.0 / 1048576});
        ck_assert_ptr_eq(p[0]->storage, p[1]->storage);
        ck_assert_ptr_ne(p[1]->storage, p[2]->storage);
        ck_assert_ptr_eq(p[2]->storage, p[3]->storage);
        ck_assert_ptr_ne(p[3]->storage, p[4]->storage);
        ck_assert_ptr_eq(p[4]->storage, p[5]->storage);
        ck_assert_ptr_ne(p[5]->storage, p[6]->storage);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_modules)
{
    run_job(2, ends_with_modules, NULL);
}
END_TEST

/* ---- stage 3's values ---- */

/* Evaluation, and a second use in one module after another, find the values; writing to
 * what is kept in parts is refused. */
static void reads_values(shard_group *world, void *context)
{
    (void)context;
    shard_module *a = make_split_model(SHARD_SPLIT_NONE, NULL), *b = make_split_model(SHARD_SPLIT_NONE, NULL);
    shard_optimizer *sgd = zero_sgd_of(shard_parameters(b), (zero_way){.stage = 3, .bucket_mib = 1e-4});
    SHARD_SCOPE
    {
        SHARD_NO_GRAD
        {
            shard_tensor *x = made_up(SHARD_SHAPE(4, 6), 5, SHARD_FLOAT32);
            for (int turn = 0; turn < 2; turn++)
                check_close(shard_forward(a, x), shard_forward(b, x), products_are_exact() ? 0 : 1e-6);
        }
        shard_tensors *list = shard_parameters(b);
        shard_tensor *weight = shard_tensors_at(list, 0);
        ck_assert_ptr_null(shard_grad(weight));
        float values[54] = {0}, found[54];
        ck_assert_int_eq(shard_numel(weight), 54);
        if (shard_group_size(world) > 1) {
            if (shard_group_rank(world) == 0) { /* alone: it is no collective */
                ck_assert_ptr_null(shard_data(weight));
                check_error(SHARD_ERROR_ARGUMENT, "*partitioned*shard_materialize*");
            }
            shard_module *first = shard_module_child_at(shard_module_child_at(a, 0), 0);
            check_ok(shard_materialize(weight));
            check_ok(shard_copy_to_host(shard_module_tensor(first, "weight"), values, sizeof values));
            ck_assert_ptr_nonnull(shard_data(weight));
            check_ok(shard_copy_to_host(weight, found, sizeof found));
            ck_assert_mem_eq(found, values, sizeof values);
            shard_copy_from_host(weight, values, sizeof values);
            check_error(SHARD_ERROR_UNSUPPORTED, "*partitions over several ranks*shard_load*");
        }
        shard_tensors_destroy(list);
    }
    check_models_equal(a, b, 0);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(a);
    shard_module_destroy(b);
}

START_TEST(test_reads_values)
{
    run_job(rank_counts[_i], reads_values, NULL);
}
END_TEST

typedef struct doomed {
    shard_module *model;
    shard_optimizer *sgd;
} doomed;

static void *destroy(void *context)
{
    const doomed *d = context;
    shard_optimizer_destroy(d->sgd);
    shard_module_destroy(d->model);
    return NULL;
}

static doomed evaluate_one(void)
{
    doomed d = {.model = make_split_model(SHARD_SPLIT_NONE, NULL)};
    d.sgd = zero_sgd_of(shard_parameters(d.model), (zero_way){.stage = 3, .bucket_mib = 1e-4});
    SHARD_SCOPE
    {
        SHARD_NO_GRAD
        ck_assert_msg(shard_forward(d.model, made_up(SHARD_SHAPE(4, 6), 5, SHARD_FLOAT32)) != NULL, "%s", shard_last_error());
    }
    return d;
}

/* Models that were used here are destroyed by another thread, as finalizers do, and what is used
 * next finds nothing of them. */
static void outlives_finalizers(shard_group *world, void *context)
{
    (void)world, (void)context;
    mallopt(M_PERTURB, 0xa5); /* what is freed shows */
    int64_t before = shard_get_memory_stats(shard_device_open(NULL)).current;
    doomed first = evaluate_one();
    for (int turn = 0; turn < 3; turn++) {
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, destroy, &first), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(shard_get_memory_stats(shard_device_open(NULL)).current, before);
        first = evaluate_one();
    }
    destroy(&first);
    ck_assert_int_eq(shard_get_memory_stats(shard_device_open(NULL)).current, before);
}

START_TEST(test_finalizers)
{
    run_job(2, outlives_finalizers, NULL);
}
END_TEST

/* A device transport that could do something in between: what it was asked for, in letters. */
static const shard_transport *real;
static char asked[200];

static void note(char letter)
{
    asked[strlen(asked)] = letter;
}

static shard_status note_post(shard_group *group, const shard_collective *call, shard_request **request)
{
    shard_request *own = NULL;
    bool gathers = call->kind == SHARD_COLLECTIVE_ALL_GATHER;
    if (gathers)
        note('s');
    shard_status status = real->post(group, call, &own);
    if (status == SHARD_OK && own)
        status = real->wait(group, own);
    if (gathers)
        *request = (shard_request *)asked;
    return status;
}

static shard_status note_wait(shard_group *group, shard_request *request)
{
    (void)group;
    ck_assert_ptr_eq(request, (shard_request *)asked);
    note('w');
    return SHARD_OK;
}

/* What of the layers' values is asked for, each layer and backward after a '|'. */
static const char *pass_through(shard_module *const *layers, int count, bool train)
{
    memset(asked, 0, sizeof asked);
    bool was = shard_set_grad_enabled(train);
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(2, 20), 5, SHARD_FLOAT32);
        for (int i = 0; i < count; i++) {
            note('|');
            x = shard_forward(layers[i], x);
        }
        note('|');
        if (train)
            check_ok(shard_backward(shard_sum(x)));
    }
    shard_set_grad_enabled(was);
    return asked;
}

/* From the second pass on each gather is started when the one before it is needed: in the order of
 * evaluation, of forward (whose last unit starts backward's first) and of backward, each as it was the last
 * time. The last layer's values are still there when backward begins, and the first one's it does not need. */
typedef struct pass {
    int layers;
    bool train;
    const char *asked;
} pass;

enum { PASSES = 12 };

static const pass ahead[2][PASSES] = {
    {
        {5, true, "|sw|sw|sw|sw|sw|swswsw"},
        {5, true, "|sws|ws|ws|ws|ws|wswsw"},
        {5, true, "|sws|ws|ws|ws|ws|wswsw"},
        {5, false, "|sw|sw|sw|sw|sw|"},
        {5, false, "|sws|ws|ws|ws|w|"},
        {5, false, "|sws|ws|ws|ws|w|"},
        {5, true, "|sws|ws|ws|ws|ws|wswsw"},
        {5, true, "|sws|ws|ws|ws|ws|wswsw"},
        {2, false, "|sws|ws|"},
        {2, false, "|wsws|w|"}, /* the third was not needed: it is let go, and not expected any more */
        {2, true, "|sws|ws|w"}, /* nor in training, nor anything by backward */
        {2, true, "|sws|w|"},
    },
    /* Of two optimizers each has the order of its own layers: the first three, and the last two. */
    {
        {5, true, "|sw|sw|sw|sw|sw|swsw"},
        {5, true, "|sws|ws|ws|sws|ws|ww"},
        {5, true, "|sws|ws|ws|sws|ws|ww"},
        {5, false, "|sw|sw|sw|sw|sw|"},
        {5, false, "|sws|ws|w|sws|w|"},
        {5, false, "|sws|ws|w|sws|w|"},
        {5, true, "|sws|ws|ws|sws|ws|ww"},
        {5, true, "|sws|ws|ws|sws|ws|ww"},
        {2, false, "|sws|ws|"},
        {2, false, "|wsws|w|"},
        {2, true, "|sws|ws|w"},
        {2, true, "|sws|w|"},
    },
};

static void gathers_ahead(shard_group *world, void *context)
{
    int optimizers = *(int *)context;
    if (shard_device_open(NULL)->ops->host_memory)
        return;
    shard_module *layers[5];
    shard_tensors *lists[2] = {shard_tensors_create(), shard_tensors_create()};
    shard_optimizer *sgd[2];
    for (int i = 0; i < 5; i++) {
        layers[i] = shard_nn_linear(20, 20);
        shard_tensors *own = shard_parameters(layers[i]);
        char prefix[] = {(char)('a' + i), '.', 0};
        check_ok(shard_tensors_extend(lists[i < 3 ? 0 : optimizers - 1], prefix, own));
        shard_tensors_destroy(own);
    }
    for (int i = 0; i < optimizers; i++)
        sgd[i] = zero_sgd_of(lists[i], (zero_way){.stage = 3, .bucket_mib = 1e-3});
    shard_transport transport = *(real = world->device_transport);
    transport.post = note_post;
    transport.wait = note_wait;
    world->device_transport = &transport;
    for (int i = 0; i < PASSES; i++) {
        const pass *p = &ahead[optimizers - 1][i];
        const char *got = pass_through(layers, p->layers, p->train);
        ck_assert_msg(strcmp(got, p->asked) == 0, "pass %d: %s, not %s", i, got, p->asked);
        for (int j = 0; j < optimizers && p->train; j++)
            check_ok(shard_step(sgd[j]));
    }
    world->device_transport = real;
    for (int i = 0; i < optimizers; i++)
        shard_optimizer_destroy(sgd[i]);
    if (optimizers == 1)
        shard_tensors_destroy(lists[1]);
    for (int i = 0; i < 5; i++)
        shard_module_destroy(layers[i]);
}

START_TEST(test_gathers_ahead)
{
    run_job(2, gathers_ahead, &(int){_i + 1});
}
END_TEST

/* With overlap values have moved when backward is over, from the first step on; else when
 * the step is. */
static void steps_in_backward(shard_group *world, void *context)
{
    (void)world;
    int stage = *(int *)context % 3 + 1;
    bool overlap = *(int *)context / 3;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_full(SHARD_SHAPE(50), 1.0, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        shard_optimizer *sgd = zero_sgd_of(list, (zero_way){.stage = stage, .overlap = overlap});
        check_ok(shard_backward(shard_sum(p)));
        ck_assert(overlap == (value_at(p, 0) != 1.0));
        double moved = value_at(p, 49);
        check_ok(shard_step(sgd));
        ck_assert(overlap == (value_at(p, 49) == moved));
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_steps_in_backward)
{
    run_job(2, steps_in_backward, &_i);
}
END_TEST

/* Backward needs the values of a frozen parameter after it has filled the other gradients of the bucket: these are stepped
 * at its end. */
static void keeps_frozen_values(shard_group *world, void *context)
{
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *a = shard_full(SHARD_SHAPE(50), 1.0, .requires_grad = true);
        shard_tensor *b = shard_full(SHARD_SHAPE(50), 2.0, .requires_grad = true);
        shard_tensor *c = shard_full(SHARD_SHAPE(50), 1.0, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "0.a", a));
        check_ok(shard_tensors_add(list, "1.b", b));
        check_ok(shard_tensors_add(list, "1.c", c));
        shard_optimizer *sgd = zero_with(sgd_of_list(list, .lr = 0.25),
                                         (zero_way){.stage = *(int *)context, .overlap = true, .bucket_mib = 300.0 / (1 << 20)});
        shard_set_requires_grad(b, false);
        for (int step = 0; step < 2; step++) {
            check_ok(shard_backward(shard_sum(shard_mul(shard_mul(a, b), c))));
            check_ok(shard_step(sgd));
            ck_assert_double_eq(value_at(a, 49), step ? 0.25 : 0.5);
            ck_assert_double_eq(value_at(b, 49), 2.0);
            ck_assert_double_eq(value_at(c, 49), step ? 0.25 : 0.5);
        }
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_frozen_values)
{
    run_job(2, keeps_frozen_values, &(int){_i + 1});
}
END_TEST

/* A step makes values that backward would need of a forward before it stale. */
static void notices_stale_values(shard_group *world, void *context)
{
    SHARD_SCOPE
    {
        shard_tensor *p = made_up_leaf(SHARD_SHAPE(50), 1, SHARD_FLOAT32);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "p", p));
        shard_optimizer *sgd = zero_sgd_of(list, (zero_way){.stage = *(int *)context});
        shard_tensor *now = shard_sum(shard_mul(p, p)), *later = shard_sum(shard_mul(p, p));
        check_ok(shard_backward(now));
        check_ok(shard_step(sgd));
        shard_backward(later);
        if (shard_group_size(world) > 1)
            check_error(SHARD_ERROR_ARGUMENT, "*backward of mul: *was written to after the forward*");
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_stale_values)
{
    int stage = _i + 1;
    run_job(2, notices_stale_values, &stage);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zero parts");
    TCase *tcase = test_case(suite, "parts");
    tcase_add_test(tcase, test_whole);
    tcase_add_test(tcase, test_whole_of_equal_sizes);
    tcase_add_loop_test(tcase, test_even, 0, RANK_COUNTS - 1);
    tcase_add_test(tcase, test_gaps);
    tcase_add_loop_test(tcase, test_gaps_of_gradients, 0, 4);
    tcase_add_test(tcase, test_modules);
    tcase = test_case(suite, "values");
    add_ranks_test(tcase, test_reads_values);
    tcase_add_test(tcase, test_finalizers);
    tcase_add_loop_test(tcase, test_gathers_ahead, 0, 2);
    tcase_add_loop_test(tcase, test_steps_in_backward, 0, 6);
    tcase_add_loop_test(tcase, test_frozen_values, 0, 3);
    tcase_add_loop_test(tcase, test_stale_values, 0, 3);
    return test_run(suite);
}
