/*
 * Ranks that any launcher started: the program brings the exchange of bytes by which they find each other, here through
 * files in the folder that they share. RANK and WORLD_SIZE come from shardrun here, as from torchrun.
 *
 *     shardrun -n 2 build/release/examples/example_init_with
 * Prints:
 *     the sum of 1 to 10 is 55
 */
#include <shard/shard.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* On one host it is called by all ranks together alone; on several, also by those of each group. */
typedef struct job {
    int rank, ranks;
    int calls;
} job;

/* The launcher's process number keeps the files of another job apart, which may have been killed. On several hosts the job needs
 * a number of another source. */
static void name_file(char name[64], const char *kind, int call, int rank)
{
    snprintf(name, 64, "%s.%d.%d.%d", kind, (int)getppid(), call, rank);
}

static shard_status exchange(void *context, const int *ranks, int count, const void *send, void *receive, size_t bytes)
{
    job *j = context;
    char name[64], ready[64];
    if (count != j->ranks)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "files connect all ranks alone");
    name_file(ready, "exchange", j->calls, j->rank);
    name_file(name, "new", j->calls, j->rank);
    FILE *file = fopen(name, "wb");
    bool written = file && fwrite(send, 1, bytes, file) == bytes;
    if (!file || fclose(file) != 0 || !written || rename(name, ready) != 0) /* other ranks see a whole file or none */
        return shard_error(SHARD_ERROR_IO, "%s cannot be written", name);
    for (int i = 0; i < count; i++) {
        name_file(name, "exchange", j->calls, ranks[i]);
        while (!(file = fopen(name, "rb")))
            usleep(1000); /* the library has the deadline */
        bool whole = fread((char *)receive + (size_t)i * bytes, 1, bytes, file) == bytes;
        fclose(file);
        if (!whole)
            return shard_error(SHARD_ERROR_IO, "%s is too short", name);
    }
    name_file(ready, "exchange", j->calls++ - 1, j->rank); /* every rank has read the one before; the last one stays */
    unlink(ready);
    return SHARD_OK;
}

static int number_from(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

int main(void)
{
    job j = {.rank = number_from("RANK", 0), .ranks = number_from("WORLD_SIZE", 1)};
    shard_init_options options = SHARD_INIT_OPTIONS_INIT;
    options.rank = j.rank;
    options.ranks = j.ranks;
    options.exchange = exchange;
    options.context = &j;
    if (shard_init_with(&options) != SHARD_OK)
        return shard_finalize();
    shard_range range = shard_split_range(10, j.ranks, j.rank);
    int64_t sum = 0;
    for (int64_t i = range.start; i < range.start + range.size; i++)
        sum += i + 1;
    shard_tensor *x = shard_full(SHARD_SHAPE(1), (double)sum);
    shard_all_reduce(x, SHARD_SUM, shard_world());
    if (j.rank == 0)
        printf("the sum of 1 to 10 is %.0f\n", shard_item(x));
    shard_release(x);
    return shard_finalize();
}
