/* Prints how many ranks MPI sees. */
#include <mpi.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    int size;
    MPI_Init(&count, &arguments);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("%d\n", size);
    return MPI_Finalize();
}
