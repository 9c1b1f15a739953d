/*
 * A program of which one rank fails: failing_program PLACE MODE [RANK [MILLISECONDS]].
 * PLACE is where the rank fails: see main, act and ends.
 * MODE is how: kill, segv, stop, exit0, _exit0, exit3, abort, oom; none: it does not fail.
 * MILLISECONDS are counted from the moment at which the rank comes to the place, where it does something else meanwhile.
 *
 * With FAILING_MARK, a folder, the rank that fails writes its process number and the time into `died` there, and each rank that
 * ends by exit its exit code and the time into `exit.RANK`. FAILING_GROUP is a memory cgroup with a limit, for oom: the rank
 * moves into it. Written on the public headers, as a user's program is.
 */
#include <shard/shard.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The other ranks come so much later to a place where the rank that fails waits for them. */
#define LATE_MILLISECONDS 400

static const char *place, *mode;
static int milliseconds, rank;

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

/* Writes the text to the file of that name in the folder of the environment variable, if it is set. */
static void note(const char *variable, const char *name, const char *text)
{
    char path[4096];
    if (!getenv(variable))
        return;
    snprintf(path, sizeof path, "%s/%s", getenv(variable), name);
    int file = open(path, O_WRONLY | O_CREAT, 0644);
    if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text))
        perror(path);
    if (file >= 0)
        close(file);
}

/* To the file NAME.RANK. */
static void note_rank(const char *name, const char *text)
{
    char path[32];
    snprintf(path, sizeof path, "%s.%d", name, rank);
    note("FAILING_MARK", path, text);
}

static void note_exit(int code, void *context)
{
    (void)context;
    char text[64];
    snprintf(text, sizeof text, "%d %.3f\n", code, now());
    note_rank("exit", text);
}

/* The kernel kills a process that takes more memory than its cgroup may have. */
static void run_out_of_memory(void)
{
    enum { BLOCK = 1 << 20 };
    char text[32];
    snprintf(text, sizeof text, "%d", (int)getpid());
    note("FAILING_GROUP", "cgroup.procs", text);
    for (int i = 0; i < 256 && getenv("FAILING_GROUP"); i++) {
        char *block = malloc(BLOCK);
        if (block)
            memset(block, 1, BLOCK);
    }
    fprintf(stderr, "failing_program: there is no limit of memory: FAILING_GROUP is not set, or not a cgroup\n");
    abort();
}

static void fail(void)
{
    static const struct {
        const char *name;
        int signal;
    } signals[] = {{"kill", SIGKILL}, {"stop", SIGSTOP}};
    char text[64];
    if (strcmp(mode, "none") == 0)
        return;
    snprintf(text, sizeof text, "%d %.3f\n", (int)getpid(), now());
    note("FAILING_MARK", "died", text);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (strcmp(mode, signals[i].name) == 0)
            kill(getpid(), signals[i].signal);
    if (strcmp(mode, "segv") == 0) { /* not by kill, which the emulation of CUDA takes for an access that it can mend */
        static int *volatile nowhere;
        *nowhere = 1;
    }
    if (strcmp(mode, "abort") == 0)
        abort();
    if (strcmp(mode, "oom") == 0)
        run_out_of_memory();
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

static void collectives(void)
{
    while (shard_last_status() == SHARD_OK)
        SHARD_SCOPE
        {
            shard_all_reduce(shard_ones(SHARD_SHAPE(1 << 20)), SHARD_SUM, shard_world());
        }
}

static shard_tensors *weights(void)
{
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, "weight", shard_ones(SHARD_SHAPE(300, 1000)));
    return list;
}

static const char *file_name(void)
{
    const char *file = getenv("FAILING_FILE");
    return file ? file : "failing.safetensors";
}

static void saves(void)
{
    shard_tensors *list = weights();
    while (shard_last_status() == SHARD_OK)
        shard_save(list, file_name(), NULL);
    shard_tensors_destroy(list);
}

static void loads(void)
{
    shard_tensors *list = weights();
    shard_save(list, file_name(), NULL);
    while (shard_last_status() == SHARD_OK)
        shard_load(list, file_name());
    shard_tensors_destroy(list);
}

/* A job after one that failed: the file is whole, if there is one, and can be saved again. */
static void saves_again(void)
{
    shard_tensors *list = weights();
    if (access(file_name(), F_OK) == 0)
        shard_load(list, file_name());
    shard_save(list, file_name(), NULL);
    shard_tensors_destroy(list);
}

static void pauses(int time)
{
    usleep((useconds_t)time * 1000);
}

/* Comes later than the rank that fails, which a loaded machine may delay: its `died` is waited for, where that is written. */
static void comes_late(void)
{
    char path[4096];
    bool waited = false;
    pauses(LATE_MILLISECONDS);
    snprintf(path, sizeof path, "%s/died", getenv("FAILING_MARK") ? getenv("FAILING_MARK") : "");
    for (int i = 0; i < 2000 && getenv("FAILING_MARK") && strcmp(mode, "none") != 0 && access(path, F_OK) != 0;
         i++, waited = true)
        pauses(10);
    if (waited)
        pauses(LATE_MILLISECONDS / 4);
}

/* Training steps of a layer that is split over groups of `width`, whose input is NULL on the rank that
 * fails in step `at`; the world meets `extra` times in each step. Endless where steps is 0; in others the failing rank is slow.
 */
static void trains(int width, int at, int extra, int steps, bool odd)
{
    shard_mesh *mesh = shard_mesh_create(.model = width);
    shard_module *layer = shard_nn_parallel_linear(4, 9, SHARD_SPLIT_COLUMN, shard_mesh_model_group(mesh));
    shard_optimizer *optimizer = shard_sgd(layer);
    int64_t labels[2] = {1, 2};
    for (int step = 0; shard_last_status() == SHARD_OK && (steps == 0 || step < steps); step++)
        SHARD_SCOPE
        {
            if (odd && steps > 0)
                pauses(milliseconds);
            if (step == 3)
                note_rank("trains", "");
            if (step == 3 && odd && is_at("train"))
                fail_soon();
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

/* The odd rank comes to the world's barrier, the others to that of a group of the same ranks. */
static void crosses(bool odd)
{
    shard_group *all = shard_group_split(shard_world(), 0);
    for (int i = 0; i < 3; i++)
        shard_barrier(shard_world());
    shard_barrier(odd ? shard_world() : all);
    shard_group_destroy(all);
}

/* Of four ranks 1 and 2 compute for long. Rank 0 waits for both in vain, and then rank 3 for the second of them. */
static void gives_up_twice(void)
{
    shard_group *pairs[] = {shard_group_create(shard_world(), (int[]){0, 1}, 2),
                            shard_group_create(shard_world(), (int[]){0, 2}, 2),
                            shard_group_create(shard_world(), (int[]){2, 3}, 2)};
    if (rank == 1 || rank == 2)
        pauses(60000);
    if (rank == 0) {
        shard_barrier(pairs[0]);
        shard_clear_error();
        shard_barrier(pairs[1]);
        pauses(milliseconds); /* it ends the job */
    }
    if (rank == 3) {
        pauses(milliseconds);
        shard_barrier(pairs[2]);
    }
}

/* Collectives of a few numbers and of many, of host memory and of a device's. */
static void exchanges(void)
{
    SHARD_SCOPE
    {
        shard_barrier(shard_world());
        shard_tensor *x = shard_ones(SHARD_SHAPE(1 << 16));
        shard_all_reduce(x, SHARD_SUM, shard_world());
        if (x)
            shard_synchronize(shard_tensor_device(x));
    }
}

static void act(bool odd)
{
    int size = shard_group_size(shard_world());
    if (is_at("between") || is_at("computing") || is_at("waiting"))
        exchanges();
    if (odd && (is_at("waiting") || is_at("inside") || is_at("save") || is_at("load")))
        fail_soon();
    if (odd && (is_at("between") || is_at("computing")))
        fail();
    if (!odd && is_at("computing"))
        pauses(milliseconds);
    if (!odd && is_at("waiting"))
        pauses(LATE_MILLISECONDS);
    if (is_at("between") || is_at("computing") || is_at("waiting"))
        while (shard_last_status() == SHARD_OK)
            exchanges();
    if (is_at("inside"))
        collectives();
    if (is_at("save"))
        saves();
    if (is_at("load"))
        loads();
    if (is_at("again"))
        saves_again();
    if (is_at("train"))
        trains(size, -1, 0, 0, odd);
    if (is_at("null"))
        trains(size, milliseconds, 0, 0, odd);
    if (is_at("null_later"))
        trains(size, milliseconds, 4, 0, odd);
    if (is_at("slow"))
        trains(size, -1, 1, 12, odd);
    if (is_at("cross"))
        crosses(odd);
    if (is_at("twice"))
        gives_up_twice();
    if (is_at("skip") && !odd)
        shard_barrier(shard_world());
}

static int ends(bool odd)
{
    if (is_at("before_finalize") || is_at("finalize") || is_at("after_finalize"))
        exchanges();
    if (odd && is_at("before_finalize"))
        fail();
    if (odd && is_at("finalize"))
        fail_soon();
    if (!odd && is_at("finalize"))
        comes_late();
    int code = shard_finalize();
    if (odd && is_at("finalize"))
        pauses(5 * LATE_MILLISECONDS); /* as taking all memory lasts a while */
    if (odd && is_at("after_finalize"))
        fail();
    return code;
}

int main(int count, char **arguments)
{
    place = count > 1 ? arguments[1] : "none";
    mode = count > 2 ? arguments[2] : "none";
    rank = launched_rank();
    on_exit(note_exit, NULL); /* after all that libshard does at exit */
    bool odd = rank == (count > 3 ? atoi(arguments[3]) : 0);
    milliseconds = count > 4 ? atoi(arguments[4]) : 0;
    if (odd && is_at("before_init"))
        fail();
    if (odd && is_at("init"))
        fail_soon();
    if (!odd && is_at("init"))
        comes_late();
    shard_init(&count, &arguments);
    double start = now();
    act(odd);
    if (shard_last_status() != SHARD_OK) {
        note_rank("error", shard_last_error());
        fprintf(stderr, "rank %d after %.1f s: error %s: %s\n", rank, now() - start, shard_status_name(shard_last_status()),
                shard_last_error());
    }
    return ends(odd);
}
