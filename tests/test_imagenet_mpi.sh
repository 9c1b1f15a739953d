#!/bin/sh
# test_imagenet_mpi.sh KIND PROBE PROGRAM: test_imagenet_mpi under the mpirun of one MPI,
# openmpi or mpich. Exit code 77, which is "skipped", where it is missing.
. "$(dirname "$0")/support/mpirun.sh"
find_mpirun "$1" "$2"
MPIRUN=$run exec "$3"
