/* mpi_first LEVEL: a program that starts MPI itself, for one thread (single) or several (serialized), and makes a collective in
 * another thread than the first. */
#include <shard/shard.h>

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void *collect(void *name)
{
    shard_status status = shard_barrier(shard_world());
    printf("rank %d, %s thread: %s %s\n", shard_group_rank(shard_world()), (char *)name, shard_status_name(status),
           shard_last_error());
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    int level;
    bool single = count < 2 || strcmp(arguments[1], "single") == 0;
    MPI_Init_thread(&count, &arguments, single ? MPI_THREAD_SINGLE : MPI_THREAD_SERIALIZED, &level);
    if (shard_init(&count, &arguments) == SHARD_OK && pthread_create(&thread, NULL, collect, "second") == 0)
        pthread_join(thread, NULL);
    collect("first");
    int result = shard_finalize();
    MPI_Finalize();
    return result;
}
