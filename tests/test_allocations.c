/*
 * The N-th allocation fails, for N = 1, 2, 3, ... until it is not reached: in small programs of one rank that call every public
 * function (allocation_scenarios.c), and on one of two ranks in every collective function (support/collective_calls.c). A clean
 * error, the same on all ranks; all objects can be destroyed, nothing is lost; and the same program then computes the same
 * numbers.
 *
 * The default is the share of the usual check; SHARD_TEST_EVERY=1: every N.
 */
#include "allocation_scenarios.h"
#include "support/allocations.h"
#include "support/collective_calls.h"
#include "support/file_calls.h"
#include "support/scratch.h"
#include "traced_calls.h"

#include "comm/comm.h"

#include <dirent.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 2, SHARE = 16 };

/* Of all processes of the test. */
static struct {
    _Atomic int come, round, failures, cases, done, again, leaving;
    int status[RANKS];
    bool moved[RANKS];
    uint64_t entered[RANKS]; /* collectives */
    char text[RANKS][1024];
    traced_function functions[TRACED_FUNCTIONS];
} * shared;

static const char *const function_names[] = {TRACED_NAMES};

static bool every(void)
{
    return getenv("SHARD_TEST_EVERY") != NULL;
}

/* All ranks of the test are here. */
static void meet(void)
{
    int round = atomic_load(&shared->round);
    if (atomic_fetch_add(&shared->come, 1) + 1 == RANKS) {
        atomic_store(&shared->come, 0);
        atomic_store(&shared->round, round + 1);
    }
    for (int spins = 0; atomic_load(&shared->round) == round; spins++)
        spins < 100 ? sched_yield() : usleep(100);
}

static void report(const char *name, int64_t number, const char *wrong)
{
    fprintf(stderr, "%s, allocation %lld: %s: \"%s\" (%s)\n", name, (long long)number, wrong, shard_last_error(),
            shard_status_name(shard_last_status()));
    shared->failures++;
}

static int open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

static bool is_memory_error(void)
{
    return shard_last_status() == SHARD_ERROR_MEMORY && strstr(shard_last_error(), "memory");
}

/* ---- one rank ---- */

static double run_scenario(const allocation_scenario *scenario)
{
    scenario_sum = 0;
    scenario->run();
    return scenario_sum;
}

/* A run without a failure: its numbers, and what it leaves. */
static bool run_clean(const allocation_scenario *scenario, int64_t number, double expected, allocations_live *live)
{
    double sum = run_scenario(scenario);
    *live = allocations_now();
    if (shard_last_status() != SHARD_OK)
        report(scenario->name, number, "a later run fails");
    else if (!isnan(expected) && sum != expected)
        report(scenario->name, number, "a later run computes something else");
    bool good = shard_last_status() == SHARD_OK;
    shard_clear_error();
    return good;
}

/* The N-th allocation fails; then a run without a failure. *reached: whether there was one. */
static bool run_failing(const allocation_scenario *scenario, int64_t number, double sum, bool *reached, allocations_live *live)
{
    allocations_fail_at(number);
    double found = run_scenario(scenario);
    *reached = allocations_failed();
    allocations_fail_at(0);
    if (shard_last_status() == SHARD_OK && found != sum)
        report(scenario->name, number, "other numbers without an error");
    if (shard_last_status() != SHARD_OK && !is_memory_error())
        report(scenario->name, number, "another error");
    shard_clear_error();
    return run_clean(scenario, number, sum, live);
}

static bool grew(const allocations_live *before, const allocations_live *after)
{
    return after->count > before->count || after->device_bytes > before->device_bytes;
}

START_TEST(test_scenario)
{
    const allocation_scenario *scenario = &allocation_scenarios[_i];
    ck_assert_int_eq(shard_init(NULL, NULL), SHARD_OK);
    snprintf(scenario_folder, sizeof scenario_folder, "%s", scratch_path("files"));
    traced_functions = shared->functions;
    allocations_watch(shard_device_open(NULL));
    allocations_live before, after, again;
    run_scenario(scenario); /* makes what is kept from call to call */
    double sum = run_scenario(scenario);
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s: %s", scenario->name, shard_last_error());
    int failures = shared->failures;
    run_clean(scenario, 0, sum, &before);
    int files = open_files();
    bool reached = true;
    for (int64_t number = every() ? 1 : 1 + _i % SHARE; reached; number += every() ? 1 : SHARE) {
        if (!run_failing(scenario, number, sum, &reached, &after))
            break;
        shared->cases += reached;
        /* A cache may have grown (oneDNN's primitives of another call), but not twice. */
        if (grew(&before, &after) && run_failing(scenario, number, sum, &reached, &again) && grew(&after, &again)) {
            char text[100];
            snprintf(text, sizeof text, "%lld structures and %lld bytes of a device more are left",
                     (long long)(again.count - after.count), (long long)(again.device_bytes - after.device_bytes));
            report(scenario->name, number, text);
            after = again;
        }
        before = after;
    }
    if (open_files() != files)
        report(scenario->name, 0, "files stay open");
    ck_assert_int_eq(shared->failures, failures);
    shard_finalize();
}
END_TEST

/* A batch norm without memory for its result leaves the running statistics. */
START_TEST(test_running_statistics)
{
    ck_assert_int_eq(shard_init(NULL, NULL), SHARD_OK);
    allocations_watch(shard_device_open(NULL));
    int found = 0;
    bool reached = true;
    for (int64_t number = 1; reached; number++)
        SHARD_SCOPE
        {
            shard_tensor *x = shard_uniform(SHARD_SHAPE(5000, 1), 1, 2), *mean = shard_zeros(SHARD_SHAPE(1));
            ck_assert(shard_data(x) && shard_data(mean));
            allocations_fail_at(number);
            shard_batch_norm(x, mean, shard_ones(SHARD_SHAPE(1)), NULL, NULL, .training = true);
            reached = allocations_failed();
            allocations_fail_at(0);
            if (strstr(shard_last_error(), "memory for 20000 bytes")) {
                ck_assert_double_eq(shard_item(mean), 0);
                found++;
            }
            shard_clear_error();
        }
    ck_assert_int_eq(found, 1);
    shard_finalize();
}
END_TEST

/* A call without memory changes neither of AdaFace's statistics. */
START_TEST(test_statistics)
{
    ck_assert_int_eq(shard_init(NULL, NULL), SHARD_OK);
    allocations_watch(shard_device_open(NULL));
    bool reached = true;
    int64_t number = 1;
    for (; reached; number++)
        SHARD_SCOPE
        {
            shard_tensor *norms = shard_from_host((float[]){10, 30, 25}, SHARD_SHAPE(3)), *m2, *m3;
            shard_tensor *mean = shard_full(SHARD_SCALAR, 20), *std = shard_full(SHARD_SCALAR, 100);
            ck_assert(shard_data(mean) && shard_data(std));
            allocations_fail_at(number);
            m2 = shard_adaface_margins(norms, mean, std, &m3);
            reached = allocations_failed();
            allocations_fail_at(0);
            ck_assert(reached == !m2 && reached == !m3);
            ck_assert(reached == (shard_item(mean) == 20) && reached == (shard_item(std) == 100));
            shard_clear_error();
        }
    ck_assert_int_gt(number, 3);
    shard_finalize();
}
END_TEST

/* ---- one of several ranks ---- */

/* In each of the job's cases an allocation of one rank has failed. */
static void run_counted(void (*run)(shard_group *world, void *context), void *context)
{
    int failures = shared->failures, cases = shared->cases;
    atomic_store(&shared->come, 0);
    run_job(RANKS, run, context);
    ck_assert_int_eq(shared->failures, failures);
    ck_assert_int_gt(shared->cases, cases);
}

static void keep_error(int rank)
{
    shared->status[rank] = (int)shard_last_status();
    snprintf(shared->text[rank], sizeof shared->text[rank], "%s", shard_last_error());
}

static void run_call(const collective_call *call, call_case *c)
{
    SHARD_SCOPE
    call->call(c);
}

typedef struct plan {
    int index, failing;
} plan;

static void judge_together(const collective_call *call, int64_t number, int failing)
{
    shard_status other = (shard_status)shared->status[1 - failing], own = (shard_status)shared->status[failing];
    if (own == SHARD_OK && other == SHARD_OK)
        return;
    if (own != SHARD_ERROR_MEMORY || other != SHARD_ERROR_PEER)
        report(call->name, number, "the statuses");
    if (strcmp(shared->text[0], shared->text[1]) != 0) {
        report(call->name, number, "texts differ");
        fprintf(stderr, "    on the other rank: \"%s\"\n", shared->text[1]);
    }
}

/* The failing rank's N-th allocation; whether it was reached. */
static bool fail_once(const collective_call *call, call_case *c, int64_t number, int failing)
{
    int rank = shard_group_rank(c->world);
    allocations_fail_at(rank == failing ? number : 0);
    run_call(call, c);
    if (rank == failing)
        shared->done = !allocations_failed();
    allocations_fail_at(0);
    keep_error(rank);
    meet();
    if (rank == 0)
        judge_together(call, number, failing);
    meet();
    shard_clear_error();
    run_call(call, c);
    if (shard_last_status() != SHARD_OK) {
        report(call->name, number, "a later call fails");
        _exit(1);
    }
    return !shared->done;
}

static void run_ranks_call(shard_group *world, void *context)
{
    const plan *p = context;
    const collective_call *call = &collective_calls[p->index];
    int rank = shard_group_rank(world);
    call_case c = {.world = world, .kind = CALL_IDENTICAL, .folder = scratch_path("files")};
    traced_functions = shared->functions;
    allocations_watch(shard_device_open(NULL));
    for (int i = 0; i < 3; i++)
        run_call(call, &c);
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s: %s", call->name, shard_last_error());
    allocations_live before = allocations_now();
    bool reached = true;
    for (int64_t number = every() ? 1 : 1 + p->index % SHARE; reached; number += every() ? 1 : SHARE) {
        reached = fail_once(call, &c, number, p->failing);
        shared->cases += reached && rank == 0;
        allocations_live after = allocations_now();
        shared->again = 0;
        meet();
        shared->again |= grew(&before, &after);
        meet();
        if (shared->again) /* on some rank, which a cache may be */
            fail_once(call, &c, number, p->failing);
        allocations_live again = allocations_now();
        if (grew(&before, &after) && grew(&after, &again)) {
            char text[100];
            snprintf(text, sizeof text, "rank %d has %lld structures and %lld bytes of a device more", rank,
                     (long long)(again.count - after.count), (long long)(again.device_bytes - after.device_bytes));
            report(call->name, number, text);
        }
        before = again;
        meet();
    }
}

START_TEST(test_ranks)
{
    plan p = {.index = _i / RANKS, .failing = _i % RANKS};
    atomic_store(&shared->come, 0);
    int failures = shared->failures;
    run_job(RANKS, run_ranks_call, &p);
    ck_assert_int_eq(shared->failures, failures);
}
END_TEST

/* From a file, and from tensors in memory; without and with a conversion. */
static bool load_weight(shard_tensors *to, shard_tensors *from, int way)
{
    if (way < 2)
        return shard_load(to, scratch_path("filled"), .convert = way == 1) == SHARD_OK;
    return shard_load_state_dict(to, from, .convert = way == 3) == SHARD_OK;
}

/* A load that lacks memory leaves initial values that are not made yet. */
START_TEST(test_load)
{
    allocations_watch(shard_device_open(NULL));
    shard_manual_seed(5);
    shard_module *made = shard_nn_linear(8, 8, .bias = false);
    double initial = shard_item(shard_sum(shard_module_tensor(made, "weight")));
    shard_tensors *from = shard_tensors_create();
    shard_tensor *three = shard_full(SHARD_SHAPE(8, 8), 3, .dtype = _i % 2 ? SHARD_BFLOAT16 : SHARD_FLOAT32);
    check_ok(shard_tensors_add(from, "weight", three));
    check_ok(shard_save(from, scratch_path("filled"), NULL));
    bool reached = true;
    for (int64_t number = 1; reached; number++) {
        shard_manual_seed(5);
        shard_module *layer = shard_nn_linear(8, 8, .bias = false);
        shard_tensors *to = shard_state_dict(layer);
        allocations_fail_at(number);
        bool loaded = load_weight(to, from, _i);
        reached = allocations_failed();
        allocations_fail_at(0);
        shard_clear_error();
        double sum = shard_item(shard_sum(shard_module_tensor(layer, "weight")));
        ck_assert_msg(sum == (loaded ? 3 * 64 : initial), "allocation %d: the sum is %g", (int)number, sum);
        shard_tensors_destroy(to);
        shard_module_destroy(layer);
    }
    shard_tensors_destroy(from);
    shard_release(three);
    shard_module_destroy(made);
}
END_TEST

/* ---- one of several ranks, which has all operands ---- */

static void make_halves(shard_group *world, shard_tensor **x)
{
    x[0] = shard_full(SHARD_SHAPE(2, 3), 0.5, .dtype = SHARD_BFLOAT16);
    ck_assert_ptr_nonnull(shard_data(x[0]));
    x[0] = shard_as_split(x[0], 1, world, 3 * shard_group_rank(world), 6);
}

static void normalize(shard_tensor *const *x)
{
    SHARD_AUTOCAST(SHARD_BFLOAT16) shard_normalize(x[0], 1, 1e-12);
}

/* The weight has no values yet. */
static void make_head(shard_group *world, shard_tensor **x)
{
    x[0] = shard_full(SHARD_SHAPE(2, 3), 0.5);
    x[1] = shard_as_split(shard_uniform(SHARD_SHAPE(4, 3), -1.0, 1.0), 0, world, 4 * shard_group_rank(world), 8);
    x[2] = shard_from_host((int64_t[]){1, 5}, SHARD_SHAPE(2), .dtype = SHARD_INT64);
    x[3] = shard_from_host((int64_t[]){0, 1, 1, 5}, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64);
}

static void head_forward(shard_tensor *const *x)
{
    shard_head_saved *saved;
    shard_linear_cross_entropy_forward(x[0], x[1], NULL, x[2], &saved);
    shard_head_saved_destroy(saved);
}

static void binary_head_forward(shard_tensor *const *x)
{
    shard_head_saved *saved;
    shard_linear_binary_cross_entropy_forward(x[0], x[1], NULL, x[3], &saved);
    shard_head_saved_destroy(saved);
}

/* Functions that make something of their operands before a collective. */
static const struct {
    const char *name;
    void (*make)(shard_group *world, shard_tensor **x);
    void (*run)(shard_tensor *const *x);
} preparing[] = {
    {"shard_normalize", make_halves, normalize},
    {"shard_linear_cross_entropy_forward", make_head, head_forward},
    {"shard_linear_binary_cross_entropy_forward", make_head, binary_head_forward},
};
enum { PREPARING = sizeof preparing / sizeof *preparing };

static bool prepare_once(shard_group *world, int which, int64_t number, int failing)
{
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *x[4];
        preparing[which].make(world, x);
        uint64_t before = world->sequence;
        allocations_fail_at(rank == failing ? number : 0);
        preparing[which].run(x);
        if (rank == failing)
            shared->done = !allocations_failed();
        allocations_fail_at(0);
        shared->entered[rank] = world->sequence - before;
        shard_agree(world); /* an error after the collectives is one of all ranks, too */
    }
    shard_clear_error();
    meet();
    if (rank == 0 && (shared->entered[0] != shared->entered[1] || !shared->entered[0]))
        report(preparing[which].name, number, "the ranks have been in different collectives");
    meet();
    return !shared->done;
}

static void prepare_ranks(shard_group *world, void *context)
{
    allocations_watch(shard_device_open(NULL));
    int which = *(const int *)context / RANKS, failing = *(const int *)context % RANKS;
    for (int64_t number = 1; prepare_once(world, which, number, failing); number++)
        shared->cases += shard_group_rank(world) == 0;
}

/* The failing rank is in each collective of the call, so that it need not make a later one with its error. */
START_TEST(test_preparing)
{
    run_counted(prepare_ranks, &_i);
}
END_TEST

/* ---- one of the four ranks of a mesh ---- */

/* After a failure of one rank alone, at any allocation, the groups of the mesh can be used again. */
static void collect_on_mesh(shard_group *world, void *context)
{
    int root = *(const int *)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_module *layer = shard_nn_parallel_linear(4, 6, SHARD_SPLIT_COLUMN, shard_mesh_model_group(mesh));
    shard_optimizer *adam = shard_zero_optimizer(shard_adam(layer, .lr = 0.1), .stage = 1);
    SHARD_SCOPE check_ok(shard_backward(shard_sum(shard_forward(layer, shard_ones(SHARD_SHAPE(2, 4))))));
    check_ok(shard_step(adam));
    shard_tensors *state = shard_optimizer_state_dict(adam);
    allocations_watch(shard_device_open(NULL));
    unsigned char reached = 1, all[4];
    for (int64_t number = 1; reached; number++) {
        allocations_fail_at(shard_group_rank(world) == 0 ? number : 0);
        shard_tensors *list = shard_collect_state_dict(state, root);
        reached = shard_group_rank(world) == 0 && allocations_failed();
        allocations_fail_at(0);
        ck_assert_msg((shard_last_status() == SHARD_OK) == (list != NULL), "%s", shard_last_error());
        shard_tensors_destroy(list);
        shard_clear_error();
        check_ok(shard_barrier(shard_mesh_model_group(mesh)));
        check_ok(shard_barrier(shard_mesh_data_group(mesh)));
        check_ok(shard_group_exchange(world, &reached, 1, all));
        reached = all[0];
        shared->cases += reached && shard_group_rank(world) == 0;
    }
    shard_tensors_destroy(state);
    shard_optimizer_destroy(adam);
    shard_module_destroy(layer);
    shard_mesh_destroy(mesh);
}

START_TEST(test_mesh)
{
    int root = (int[]){-1, 0, 3}[_i];
    run_job(4, collect_on_mesh, &root);
}
END_TEST

/* ---- a step ---- */

static bool step_once(shard_group *world, int64_t number, int failing, bool adam)
{
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *w = shard_ones(SHARD_SHAPE(4), .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        shard_tensors_add(list, "w", w);
        shard_optimizer *optimizer = adam ? shard_adam(list, .lr = 0.5) : shard_sgd(list, .lr = 0.5, .momentum = 0.9);
        shard_backward(shard_sum(w));
        allocations_fail_at(rank == failing ? number : 0);
        shared->status[rank] = (int)shard_step(optimizer);
        if (rank == failing)
            shared->done = !allocations_failed();
        allocations_fail_at(0);
        shard_clear_error();
        shared->moved[rank] = shard_item(shard_sum(w)) != 4;
        shard_optimizer_destroy(optimizer);
        shard_tensors_destroy(list);
    }
    meet();
    bool failed = shared->status[0] != SHARD_OK;
    if (rank == 0 && ((shared->status[1] != SHARD_OK) != failed || shared->moved[0] == failed || shared->moved[1] == failed))
        report("shard_step alone", number, "the ranks' steps differ");
    meet();
    return !shared->done;
}

static void step_ranks(shard_group *world, void *context)
{
    allocations_watch(shard_device_open(NULL));
    int failing = *(const int *)context;
    for (int adam = 0; adam < 2; adam++)
        for (int64_t number = 1; step_once(world, number, failing, adam); number++)
            shared->cases += shard_group_rank(world) == 0;
}

/* All ranks step, or none. */
START_TEST(test_step)
{
    run_counted(step_ranks, &_i);
}
END_TEST

/* ---- a partition ---- */

typedef struct partition {
    int stage, failing;
    double bucket_mib;
    bool init_sync;
    bool again; /* the values are partitioned before */
} partition;

static double forward(shard_module *model)
{
    double sum = NAN;
    SHARD_SCOPE
    sum = shard_item(shard_sum(shard_forward(model, shard_ones(SHARD_SHAPE(2, 3)))));
    return sum;
}

static bool partition_once(shard_group *world, const partition *p, int64_t number)
{
    enum { rows = 2 * SHARD_ROW_BLOCK + 8 }; /* in two row blocks, where a bucket is small */
    int rank = shard_group_rank(world);
    shard_manual_seed(3);
    shard_module *model = shard_nn_sequential(shard_nn_linear(3, rows), shard_nn_linear(rows, 2));
    double sum = forward(model);
    if (p->again)
        shard_data_parallel_destroy(shard_data_parallel_create(model, .stage = 3));
    allocations_fail_at(rank == p->failing ? number : 0);
    shard_data_parallel *made =
        shard_data_parallel_create(model, .stage = p->stage, .bucket_mib = p->bucket_mib, .init_sync = p->init_sync);
    if (rank == p->failing)
        shared->done = !allocations_failed();
    allocations_fail_at(0);
    keep_error(rank);
    shared->moved[rank] = made;
    shard_agree(world); /* where the ranks do not have the same error */
    meet();
    if (rank == 0 && shared->moved[0] != shared->moved[1])
        report("shard_data_parallel_create", number, "one rank alone has made it");
    if (rank == 0)
        judge_together(&(collective_call){.name = "shard_data_parallel_create"}, number, p->failing);
    shard_clear_error();
    shard_data_parallel_destroy(made);
    meet();
    if (forward(model) != sum)
        report("shard_data_parallel_create", number, "the model computes something else");
    char path[500];
    snprintf(path, sizeof path, "%s/partition.safetensors", scratch_path("files"));
    if (shard_save_module(model, path) != SHARD_OK)
        report("shard_data_parallel_create", number, "the model cannot be saved");
    shard_clear_error();
    shard_module_destroy(model);
    meet();
    return !shared->done;
}

static void partition_ranks(shard_group *world, void *context)
{
    allocations_watch(shard_device_open(NULL));
    for (int64_t number = 1; partition_once(world, context, number); number++)
        shared->cases += shard_group_rank(world) == 0;
}

/* All ranks get the object, or none; the model computes the same as before, and can be saved. */
START_TEST(test_partition)
{
    int kind = _i / RANKS;
    partition p = {.failing = _i % RANKS,
                   .stage = kind % 2 * 3,
                   .bucket_mib = kind / 2 % 2 ? 25 : 0.001,
                   .init_sync = kind / 4 % 2,
                   .again = kind / 8};
    run_counted(partition_ranks, &p);
}
END_TEST

/* ---- joining ---- */

/* Two ranks that join by shard_init, or by shard_init_with over a pair of sockets. */
typedef struct joining {
    bool with;
    int failing;
    int64_t number;
    int wire[RANKS], rank;
} joining;

/* False: the other rank has ended, or will. */
static bool wait_for_data(int wire)
{
    struct pollfd from = {.fd = wire, .events = POLLIN};
    while (poll(&from, 1, 10) == 0)
        if (atomic_load(&shared->leaving))
            return poll(&from, 1, 0) > 0;
    return true;
}

static shard_status exchange(void *context, const int *ranks, int count, const void *sent, void *receive, size_t bytes)
{
    const joining *j = context;
    if (send(j->wire[j->rank], sent, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        return SHARD_ERROR_IO;
    for (int i = 0; i < count; i++) {
        char *to = (char *)receive + (size_t)i * bytes;
        if (ranks[i] == j->rank)
            memcpy(to, sent, bytes);
        else if (!wait_for_data(j->wire[j->rank]) || recv(j->wire[j->rank], to, bytes, MSG_WAITALL) != (ssize_t)bytes)
            return SHARD_ERROR_IO;
    }
    return SHARD_OK;
}

static shard_status join_with(joining *j)
{
    static const char *const of_launcher[] = {"SHARD_SHM_FD", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof of_launcher / sizeof *of_launcher; i++)
        unsetenv(of_launcher[i]);
    shard_init_options options = SHARD_INIT_OPTIONS_INIT;
    options.rank = j->rank;
    options.ranks = RANKS;
    options.exchange = exchange;
    options.context = j;
    return shard_init_with(&options);
}

/* A rank without memory ends with its error, as programs do, and the other one has an error by then, in init or after it. */
static void join_once(shard_group *none, void *context)
{
    joining *j = context;
    (void)none;
    j->rank = atoi(getenv("RANK"));
    close(j->wire[1 - j->rank]);
    traced_functions = shared->functions;
    allocations_watch(shard_cpu());
    allocations_fail_at(j->rank == j->failing ? j->number : 0);
    shard_status status = j->with ? join_with(j) : shard_init(NULL, NULL);
    if (j->rank == j->failing)
        shared->done = !allocations_failed();
    allocations_fail_at(0);
    if (status == SHARD_OK)
        status = shard_barrier(shard_world());
    keep_error(j->rank);
    shard_clear_error();
    if (status != SHARD_OK) {
        atomic_store(&shared->leaving, 1);
        _exit(1);
    }
    if (shard_finalize() != SHARD_OK)
        shared->status[j->rank] = SHARD_ERROR_INTERNAL;
}

static void judge_joining(const joining *j)
{
    shard_status own = (shard_status)shared->status[j->failing], other = (shard_status)shared->status[1 - j->failing];
    char name[400];
    snprintf(name, sizeof name, "%s, rank %d: %.120s (%s), the other: %.120s (%s)", j->with ? "shard_init_with" : "shard_init",
             j->failing, shared->text[j->failing], shard_status_name(own), shared->text[1 - j->failing],
             shard_status_name(other));
    if (own != SHARD_OK && (own != SHARD_ERROR_MEMORY || !strstr(shared->text[j->failing], "memory")))
        report(name, j->number, "another error");
    if ((own == SHARD_OK) != (other == SHARD_OK))
        report(name, j->number, "one rank alone has joined");
    if (shared->done && own != SHARD_OK)
        report(name, j->number, "an error without a failure");
}

/* Each allocation of one of two ranks that join, several times: a rank that waits for the other may allocate one more, and the
 * number of those that follow is another. */
START_TEST(test_joining)
{
    joining j = {.with = _i / RANKS % 2, .failing = _i % RANKS, .number = 1};
    int failures = shared->failures, cases = 0;
    for (shared->done = 0; !shared->done; j.number++) {
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, j.wire), 0);
        shared->status[0] = shared->status[1] = SHARD_ERROR_INTERNAL; /* of a rank that cannot say more */
        atomic_store(&shared->leaving, 0);
        run_ranks(RANKS, join_once, &j, .bare = true, .may_fail = (1 << RANKS) - 1, .deadline = 20);
        close(j.wire[0]);
        close(j.wire[1]);
        judge_joining(&j);
        cases += !shared->done;
    }
    shared->cases += cases;
    ck_assert_int_gt(cases, 2);
    ck_assert_int_eq(shared->failures, failures);
}
END_TEST

/* A rank that is the whole job joins, or lacks memory. */
START_TEST(test_joining_alone)
{
    int failures = shared->failures;
    int64_t number = 1;
    traced_functions = shared->functions;
    allocations_watch(shard_cpu());
    for (;; number++) {
        allocations_fail_at(number);
        shard_status status = shard_init_with(NULL);
        bool reached = allocations_failed();
        allocations_fail_at(0);
        if (reached ? !is_memory_error() || shard_world() : status != SHARD_OK)
            report("shard_init_with alone", number, "another error");
        if (!reached)
            break;
        shard_clear_error();
    }
    shared->cases += (int)number - 1;
    ck_assert_int_gt(number, 2);
    ck_assert_int_eq(shard_finalize(), 0);
    ck_assert_int_eq(shared->failures, failures);
}
END_TEST

/* ---- all functions ---- */

/* Functions that the programs do not call. */
static const struct {
    const char *name, *why;
} not_called[] = {
    {"shard_graph_begin", "the CPU captures no graphs: test_graph.c"},
    {"shard_graph_end", "there is no graph without shard_graph_begin"},
    {"shard_graph_replay", "there is no graph to be replayed"},
    {"shard_graph_nodes", "there is no graph to be counted"},
    {"shard_graph_destroy", "it allocates nothing"},
};

START_TEST(test_functions)
{
    int missing = 0;
    for (int i = 0; i < TRACED_FUNCTIONS; i++) {
        const traced_function *f = &shared->functions[i];
        bool known = false;
        for (size_t j = 0; j < sizeof not_called / sizeof *not_called; j++)
            known |= strcmp(function_names[i], not_called[j].name) == 0;
        if (!f->called && !known)
            fprintf(stderr, "%s is in no program of allocation_scenarios.c\n", function_names[i]);
        else if (f->called && known)
            fprintf(stderr, "%s is called: it stands in not_called no more\n", function_names[i]);
        else if (every() && f->allocated && !f->failed)
            fprintf(stderr, "%s: no allocation of it has failed\n", function_names[i]);
        else
            continue;
        missing++;
    }
    printf("cases: %d\n", shared->cases);
    fflush(stdout);
    ck_assert_int_eq(missing, 0);
}
END_TEST

int main(void)
{
    scratch_open();
    file_calls_watch(file_calls_without_sync);
    mkdir(scratch_path("files"), 0700);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Suite *suite = suite_create("allocations");
    TCase *tcase = test_case(suite, "one rank");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, test_scenario, 0, allocation_scenario_count);
    tcase = test_case(suite, "statistics");
    tcase_add_test(tcase, test_running_statistics);
    tcase_add_test(tcase, test_statistics);
    tcase_add_loop_test(tcase, test_load, 0, 4);
    tcase = test_case(suite, "ranks");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, test_ranks, 0, RANKS * collective_call_count);
    tcase_add_loop_test(tcase, test_step, 0, RANKS);
    tcase_add_loop_test(tcase, test_partition, 0, 16 * RANKS);
    tcase = test_case(suite, "operands");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, test_preparing, 0, RANKS * PREPARING);
    tcase_add_loop_test(tcase, test_mesh, 0, 3);
    tcase = test_case(suite, "joining");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, test_joining, 0, (every() ? 10 : 2) * 2 * RANKS);
    tcase_add_test(tcase, test_joining_alone);
    tcase = test_case(suite, "functions");
    tcase_add_test(tcase, test_functions);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
