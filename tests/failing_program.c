/*
 * A program of which one rank fails: failing_program PLACE MODE [RANK [MILLISECONDS]].
 * MODE is how the rank goes: kill, segv, stop, exit0, _exit0, exit3, abort; none: it does not.
 * MILLISECONDS are counted from the start (moment) or from the end of shard_init (inside, save, train).
 * Written on the public headers, as a user's program is.
 */
#include <shard/shard.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *place, *mode;
static int milliseconds;

static bool is_at(const char *name)
{
    return strcmp(place, name) == 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void fail(void)
{
    static const struct {
        const char *name;
        int signal;
    } signals[] = {{"kill", SIGKILL}, {"segv", SIGSEGV}, {"stop", SIGSTOP}};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (strcmp(mode, signals[i].name) == 0)
            kill(getpid(), signals[i].signal);
    if (strcmp(mode, "abort") == 0)
        abort();
    if (strcmp(mode, "_exit0") == 0)
        _exit(0);
    if (strncmp(mode, "exit", 4) == 0) {
        FILE *notes = getenv("FAILING_NOTES") ? fopen(getenv("FAILING_NOTES"), "w") : NULL;
        if (notes)
            fputs("written before exit\n", notes); /* in the buffer until exit writes it */
        exit(atoi(mode + 4));
    }
}

static void *fail_later(void *context)
{
    usleep((useconds_t)milliseconds * 1000);
    fail();
    return context;
}

/* Of another thread than the one that works. */
static void fail_soon(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, fail_later, NULL) == 0)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* The rank as the launcher says it, before shard_init does. */
static int launched_rank(void)
{
    static const char *const variables[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i]))
            return atoi(getenv(variables[i]));
    return 0;
}

static void collectives(bool large)
{
    while (shard_last_status() == SHARD_OK)
        SHARD_SCOPE
        {
            shard_all_reduce(shard_ones(SHARD_SHAPE(large ? 1 << 20 : 10)), SHARD_SUM, shard_world());
        }
}

static void saves(void)
{
    const char *file = getenv("FAILING_FILE");
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, "weight", shard_ones(SHARD_SHAPE(300, 1000)));
    while (shard_last_status() == SHARD_OK)
        shard_save(list, file ? file : "failing.safetensors", NULL);
    shard_tensors_destroy(list);
}

/* Training steps of a layer that is split over groups of `width`, whose input is NULL on the rank that
 * fails in step `at`; the world meets `extra` times in each step. */
static void trains(int width, int at, int extra, bool odd)
{
    shard_mesh *mesh = shard_mesh_create(.model = width);
    shard_module *layer = shard_nn_parallel_linear(4, 9, SHARD_SPLIT_COLUMN, shard_mesh_model_group(mesh));
    shard_optimizer *optimizer = shard_sgd(layer);
    int64_t labels[2] = {1, 2};
    for (int step = 0; shard_last_status() == SHARD_OK; step++)
        SHARD_SCOPE
        {
            for (int i = 0; i < extra; i++)
                shard_barrier(shard_world());
            shard_tensor *x = odd && step == at ? NULL : shard_ones(SHARD_SHAPE(2, 4));
            shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(2), .dtype = SHARD_INT64);
            shard_backward(shard_cross_entropy(shard_forward(layer, x), target));
            shard_step(optimizer);
        }
    shard_optimizer_destroy(optimizer);
    shard_module_destroy(layer);
    shard_mesh_destroy(mesh);
}

/* The odd rank comes to the world's barrier, the others to that of a mesh group of the same ranks. */
static void crosses(bool odd)
{
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(shard_world()));
    for (int i = 0; i < 3; i++)
        shard_barrier(shard_world());
    shard_barrier(odd ? shard_world() : shard_mesh_model_group(mesh));
    shard_mesh_destroy(mesh);
}

static void act(bool odd)
{
    int size = shard_group_size(shard_world());
    if (odd && (is_at("inside") || is_at("save") || is_at("train")))
        fail_soon();
    if (is_at("collective")) {
        shard_barrier(shard_world());
        if (odd)
            fail();
        shard_barrier(shard_world());
    }
    if (is_at("moment") || is_at("inside"))
        collectives(is_at("inside"));
    if (is_at("save"))
        saves();
    if (is_at("train"))
        trains(size, -1, 0, odd);
    if (is_at("null"))
        trains(size, milliseconds, 0, odd);
    if (is_at("null_later"))
        trains(size, milliseconds, 4, odd);
    if (is_at("cross"))
        crosses(odd);
    if (is_at("skip") && !odd)
        shard_barrier(shard_world());
}

int main(int count, char **arguments)
{
    place = count > 1 ? arguments[1] : "none";
    mode = count > 2 ? arguments[2] : "none";
    int rank = launched_rank(), failing = count > 3 ? atoi(arguments[3]) : 0;
    bool odd = rank == failing;
    milliseconds = count > 4 ? atoi(arguments[4]) : 0;
    if (odd && is_at("moment"))
        fail_soon();
    if (odd && is_at("init"))
        fail();
    shard_init(&count, &arguments);
    double start = now();
    act(odd);
    if (shard_last_status() != SHARD_OK)
        fprintf(stderr, "rank %d after %.1f s: error %s: %s\n", rank, now() - start, shard_status_name(shard_last_status()),
                shard_last_error());
    if (is_at("finalize")) {
        shard_barrier(shard_world());
        if (odd)
            fail();
    }
    return shard_finalize();
}
