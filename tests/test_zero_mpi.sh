#!/bin/sh
# test_zero_mpi.sh KIND PROBE ZERO: every stage of ZeRO under the mpirun of one MPI, openmpi or
# mpich: the parameters' sum is that without ZeRO. Exit code 77, which is "skipped", where it is
# missing.
zero=$3
. "$(dirname "$0")/support/expect.sh"
. "$(dirname "$0")/support/mpirun.sh"
find_mpirun "$1" "$2"
export SHARD_TRANSPORT=mpi

for n in 2 3; do
    expect "ZeRO on $n ranks" 0 "^$n ranks, 5 x Linear" "$run" -n $n "$zero" --layers 5 --width 50 --steps 4 --bucket-mib 0.02
    also "its sums on $n ranks" 0 "^parameters' sum +(-?[0-9]+\.[0-9]+)( +\1){3}\$"
done
finish
