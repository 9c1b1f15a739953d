/*
 * bench_checkpoint: seconds and GB/s of saving and loading a split weight, next to those of dd, which writes as much
 * to the same directory in the same run, and the memory that each rank needs in addition to the weight:
 *
 *     shardrun -n 2 bench_checkpoint DIRECTORY [ROWS COLUMNS [column|row]]
 *
 * By default 1000000 x 512 float32, split by rows (a COLUMN linear layer). Each number is the slowest rank's; the
 * lines are repetitions. `save, async` is the time until the file is there; in brackets the time for which training would wait:
 * of the beginning, of the polls (one each 20 ms) and of the end. bench_checkpoint.py measures PyTorch's.
 */
#include "arguments.h"
#include "clock.h"

#include "comm/comm.h"

#include <shard/shard.h>

#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPETITIONS = 5 };

/* MiB of a line of /proc/self/status. */
static double memory_of(const char *line)
{
    char text[200];
    double found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(text, sizeof text, file))
        if (strncmp(text, line, strlen(line)) == 0)
            found = strtod(text + strlen(line) + 1, NULL) / 1024;
    if (file)
        fclose(file);
    return found;
}

/* VmHWM starts again from the memory that is resident now. */
static void reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file) {
        fputs("5", file);
        fclose(file);
    }
}

static double largest(double value)
{
    shard_group_all_reduce(shard_world(), NULL, &value, 1, SHARD_FLOAT64, SHARD_MAX);
    return value;
}

/* dd's exit status, or another number than 0. flag: one more argument; NULL: none. */
static int start_dd(char *to, int64_t bytes, char *flag)
{
    char count[32];
    int result = -1;
    pid_t process;
    posix_spawn_file_actions_t quiet;
    snprintf(count, sizeof count, "count=%lld", (long long)bytes);
    char *arguments[] = {"dd", "if=/dev/zero", to, "bs=16M", count, "iflag=count_bytes", "conv=fsync", flag, NULL};
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&process, "dd", &quiet, NULL, arguments, environ) == 0)
        waitpid(process, &result, 0);
    posix_spawn_file_actions_destroy(&quiet);
    return result;
}

static double run_dd(const char *directory, int64_t bytes, char *flag)
{
    char to[1000];
    if (shard_group_rank(shard_world()) != 0)
        return largest(0);
    snprintf(to, sizeof to, "of=%s/bench.dd", directory);
    double start = now();
    int result = start_dd(to, bytes, flag);
    double seconds = now() - start;
    unlink(to + strlen("of="));
    return largest(result == 0 ? seconds : INFINITY);
}

/* Removes the file from the page cache. */
static void forget(const char *path)
{
    int file = open(path, O_RDONLY);
    if (file >= 0) {
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
    shard_barrier(shard_world());
}

/* A file that is replaced would be freed within the time. */
static void remove_together(const char *path)
{
    if (shard_group_rank(shard_world()) == 0)
        unlink(path);
    shard_barrier(shard_world());
}

typedef struct measured {
    double seconds, memory;
} measured;

static measured measure(shard_status (*run)(shard_module *, const char *), shard_module *module, const char *path)
{
    reset_peak();
    double before = memory_of("VmRSS:");
    shard_barrier(shard_world());
    double start = now();
    run(module, path);
    double seconds = now() - start;
    return (measured){largest(seconds), largest(memory_of("VmHWM:") - before)};
}

/* The ranks compute nothing meanwhile. */
static void measure_async(shard_module *module, const char *path, int64_t bytes)
{
    reset_peak();
    double before = memory_of("VmRSS:");
    bool done = false;
    shard_tensors *state = shard_state_dict(module);
    shard_barrier(shard_world());
    double start = now(), polls = 0;
    shard_async_save *save = shard_save_async(state, path, NULL);
    double begun = now();
    while (!done && shard_last_status() == SHARD_OK) {
        usleep(20000);
        double asked = now();
        shard_async_save_poll(save, &done);
        polls += now() - asked;
    }
    double written = now();
    shard_async_save_finish(save);
    double end = now();
    shard_tensors_destroy(state);
    measured m = {largest(end - start), largest(memory_of("VmHWM:") - before)};
    double begin = largest(begun - start), polled = largest(polls), finish = largest(end - written);
    if (shard_group_rank(shard_world()) == 0)
        printf("  %-18s %7.2f s %6.2f GB/s   %6.1f MiB more   (waits %.3f s: %.3f + %.3f + %.3f)\n", "save, async", m.seconds,
               (double)bytes / 1e9 / m.seconds, m.memory, begin + polled + finish, begin, polled, finish);
}

static void print(const char *what, measured m, int64_t bytes)
{
    if (shard_group_rank(shard_world()) != 0)
        return;
    if (isinf(m.seconds))
        printf("  %-18s  failed", what);
    else
        printf("  %-18s %7.2f s %6.2f GB/s", what, m.seconds, (double)bytes / 1e9 / m.seconds);
    if (m.memory > 0)
        printf("   %6.1f MiB more", m.memory);
    printf("\n");
    fflush(stdout);
}

static void compare(shard_module *module, const char *directory, int64_t bytes)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/bench.safetensors", directory);
    for (int i = 0; i < REPETITIONS && shard_last_status() == SHARD_OK; i++) {
        print("dd", (measured){.seconds = run_dd(directory, bytes, NULL)}, bytes);
        print("dd oflag=direct", (measured){.seconds = run_dd(directory, bytes, "oflag=direct")}, bytes);
        print("save", measure(shard_save_module, module, path), bytes);
        remove_together(path);
        measure_async(module, path, bytes);
        forget(path);
        print("load", measure(shard_load_module, module, path), bytes);
        print("load, in cache", measure(shard_load_module, module, path), bytes);
        remove_together(path);
    }
}

int main(int argc, char **argv)
{
    bool by_row = argc == 5 && strcmp(argv[4], "row") == 0, named = by_row || (argc == 5 && strcmp(argv[4], "column") == 0);
    if (argc != 2 && argc != 4 && !named) {
        fprintf(stderr, "usage: bench_checkpoint DIRECTORY [ROWS COLUMNS [column|row]]\n");
        return 2;
    }
    int64_t rows = argc > 2 ? whole_argument(argv[2]) : 1000000, columns = argc > 2 ? whole_argument(argv[3]) : 512;
    shard_split split = by_row ? SHARD_SPLIT_ROW : SHARD_SPLIT_COLUMN;
    shard_init(&argc, &argv);
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(shard_world()));
    shard_module *module = shard_nn_parallel_linear(columns, rows, split, shard_mesh_model_group(mesh), .bias = false);
    shard_tensors *weight = shard_parameters(module);
    shard_data(shard_tensors_at(weight, 0)); /* made, and its memory touched */
    if (shard_group_rank(shard_world()) == 0)
        printf("%lld x %lld float32, split by %s over %d ranks: %.2f GB\n", (long long)rows, (long long)columns,
               split == SHARD_SPLIT_ROW ? "columns" : "rows", shard_group_size(shard_world()), (double)(rows * columns) * 4e-9);
    compare(module, argv[1], rows * columns * 4);
    shard_tensors_destroy(weight);
    shard_module_destroy(module);
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
