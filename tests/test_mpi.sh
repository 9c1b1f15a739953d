#!/bin/sh
# test_mpi.sh KIND PROBE RANK_PROGRAM FAILING_PROGRAM MPI_FIRST: the mpi transport under the mpirun of one
# MPI, openmpi or mpich. Exit code 77, which is "skipped", where it is missing.
kind=$1 program=$3 failing=$4 first=$5
. "$(dirname "$0")/support/expect.sh"
. "$(dirname "$0")/support/mpirun.sh"
find_mpirun "$kind" "$2"
export ASAN_OPTIONS=detect_leaks=0 # MPI keeps memory until the end
other=$([ "$kind" = openmpi ] && echo mpich || echo openmpi)

for n in 2 4; do
    expect "collectives, $n ranks" 0 "rank $((n - 1)) of $n over mpi: good" "$run" -n $n "$program" check
done
for n in 3 8; do
    expect "collectives, $n ranks" 0 "rank $((n - 1)) of $n over mpi: good" "$run" -n $n "$program" brief
done
expect "collectives in small calls" 0 "rank 2 of 3 over mpi: good" env SHARD_MPI_COUNT=100 "$run" -n 3 "$program" brief
expect "one rank" 0 "rank 0 of 1 over mpi: good" "$run" -n 1 "$program" check

# A program that has called MPI_Init.
expect "a thread that MPI was not started for" 0 "rank 1, second thread: unsupported mpi: a collective of another thread" "$run" -n 2 "$first" single
expect "a second thread" 0 "rank 1, second thread: ok" "$run" -n 2 "$first" serialized
expect "the first thread" 0 "rank 1, first thread: ok" "$run" -n 2 "$first" single

unset OMP_NUM_THREADS
cores=$(OMPI_MCA_hwloc_base_binding_policy=none "$run" -n 1 "$program" threads | sed 's/ threads$//') # nproc may not know a quota
expect "a share of the cores" 0 "^$((cores > 2 ? cores / 2 : 1)) threads\$" \
    env OMPI_MCA_hwloc_base_binding_policy=none "$run" -n 2 "$program" threads
expect "threads that are set" 0 "^7 threads\$" env OMP_NUM_THREADS=7 "$run" -n 2 "$program" threads

expect "a joint error" "[1-9]*" "rank 0: error peer: rank 1: label 17 out of range" "$run" -n 3 "$program" error 1
expect "an error at home" "[1-9]*" "rank 0: error peer: rank 1: label 17 out of range" "$run" -n 3 "$program" fail 1
expect "an error that skips a group" "[1-9]*" "rank 2: error peer: rank 3: label 17 out of range" timeout 20 "$run" -n 4 "$program" skip 3
expect "a rank that leaves" "[1-9]*" "rank 2: error peer: rank 1 has left: it did not come to shard_barrier" "$run" -n 3 "$program" leave 1
expect "ranks that are stopped together" 0 "^rank 1 went on" "$run" -n 2 "$program" stopped
expect "a killed rank" "[1-9]*" "[Kk]illed|KILLED|signal 9" "$run" -n 3 "$program" kill 1
for count in 1073741824 100; do
    expect "no memory for a collective, calls of $count" 0 "rank 1: [1-9][0-9]* allocations failed" \
        env SHARD_TIMEOUT=5 SHARD_MPI_COUNT=$count "$run" -n 3 "$program" memory 1
done
written=$(mktemp)
expect "an open file at the end" "[1-9]*" "rank 0: error peer: rank 1 has left" "$run" -n 3 "$program" unclosed 1 "$written"
expect "what is in it" 0 "^what was written\$" cat "$written"
rm -f "$written"
# A rank that is not scheduled for the second in which all are asked is named, too.
expect "the deadline" "[1-9]*" "rank 0: error timeout: (rank 1|ranks 1 and 2|ranks 0 and 1) did not come to shard_barrier within 1 s" \
    "$run" -n 3 "$program" late 1

# Of three ranks, in groups that have the same members as the world. A number of seconds is what the
# others need to know of it; the deadline is later.
for place in "null none 1 0" "null_later none 1 5" "null none 1 2"; do
    # shellcheck disable=SC2086 # several arguments
    expect "an input that is NULL: $place" "[1-9]*" "rank 2 after [0-7]\.[0-9] s: error peer: rank 1: shard_forward: x is NULL" \
        env SHARD_TIMEOUT=20 "$run" -n 3 "$failing" $place
done
expect "the barriers of two groups" "[1-9]*" "rank 2 after [3-8]\.[0-9] s: error timeout: rank 1 did not come to .*barrier within 3 s" \
    env SHARD_TIMEOUT=3 "$run" -n 3 "$failing" cross none 1
expect "one rank ends the job" 1 "rank 2 after .* error peer: rank 1 has left" "$run" -n 3 "$failing" skip none 1
expect "a rank that hangs, in all groups" "[1-9]*" "rank 2 after [1-8]\.[0-9] s: error timeout: rank 1 did not come" \
    env SHARD_TIMEOUT=4 "$run" -n 3 "$failing" train stop 1 500

expect "two ranks that hang, each in a group" "[1-9]*" "rank 3 after 1[0-3]\.[0-9] s: error timeout: rank 2 did not come" \
    env SHARD_TIMEOUT=3 "$run" -n 4 "$failing" twice none 1 10000
expect "a count that is none" "[1-9]*" "SHARD_MPI_COUNT is \"1k\", not a whole number in" env SHARD_MPI_COUNT=1k "$run" -n 2 "$program" brief

# What MPI itself waits for without a deadline. Open MPI ends the job itself where the others were in MPI_Init first; one time in
# ten its mpirun then prints nothing, not even the ranks' output, and the job runs once more.
# shellcheck disable=SC2016 # expanded by the inner shell
repeat='for run in 1 2 3; do text=$("$@" 2>&1) && code=0 || code=$?; [ -z "$text" ] || break; done; echo "$text"; exit $code'
for mode in stop exit0; do
    expect "a rank that does not start: $mode" "[1-9]*" "(error: rank [02]: MPI_Init did not end within 2 s|exiting improperly)" \
        env SHARD_TIMEOUT=2 sh -c "$repeat" sh "$run" -n 3 "$failing" before_init $mode 1
done
expect "no memory in shard_init" "[1-9]*" "error: no memory for 3 x [0-9]* bytes" \
    env SHARD_TIMEOUT=5 "$run" -n 3 "$program" poor 1
expect "a rank that is late in shard_init" "[1-9]*" "error: rank 1 did not come to world_open within 3 s" \
    env SHARD_TIMEOUT=3 "$run" -n 3 "$program" slow 1
expect "a rank that does not end" "[1-9]*" "error: rank 1 did not come to shard_finalize within 2 s" \
    env SHARD_TIMEOUT=2 "$run" -n 3 "$failing" before_finalize stop 1

alone="(OMPI_COMM_WORLD|PMI)_SIZE says that 2 ranks were started, but nothing connects them .*; SHARD_MPI is $other\)"
expect "the wrong MPI" "[1-9]*" "error unavailable: $alone" \
    env SHARD_MPI="$other" "$run" -n 2 "$program" check
expect "no module" "[1-9]*" "error unavailable: no libshard-mpi-$kind.so in /nowhere" \
    env SHARD_PLUGIN_PATH=/nowhere "$run" -n 2 "$program" check
expect "no launcher" 1 "mpi: no MPI launcher" env SHARD_TRANSPORT=mpi "$program" check

finish
