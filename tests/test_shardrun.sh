#!/bin/sh
# test_shardrun.sh SHARDRUN RANK_PROGRAM: how shardrun starts ranks and ends them.
shardrun=$1 program=$2
. "$(dirname "$0")/support/expect.sh"
unset OMP_NUM_THREADS

for n in 1 2 3 4 8; do
    expect "collectives, $n ranks" 0 "rank $((n - 1)) of $n over shm: good" "$shardrun" -n $n "$program" check
done

expect "environment" 0 "^RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=[1-9][0-9]+ OMP_NUM_THREADS=" \
    "$shardrun" -n 2 -- "$program" environment
cores=$("$shardrun" -n 1 "$program" environment | sed 's/.*OMP_NUM_THREADS=//') # nproc of older coreutils knows no quotas
expect "threads per rank" 0 "OMP_NUM_THREADS=$((cores > 2 ? cores / 2 : 1))\$" "$shardrun" -n 2 "$program" environment
# Where a namespace of mounts may be made, a folder hides the machine's control groups.
groups=$(mktemp -d)
echo "100000 100000" >"$groups/cpu.max"
if unshare -rm mount --bind "$groups" /sys/fs/cgroup 2>/dev/null; then
    expect "threads of a quota of one core" 0 "OMP_NUM_THREADS=1\$" \
        unshare -rm sh -c 'mount --bind "$1" /sys/fs/cgroup && shift && "$@"' sh "$groups" "$shardrun" -n 1 "$program" environment
else
    echo "left out: threads of a quota of one core: no namespaces of mounts"
fi
rm -r "$groups"
expect "at least one thread" 0 "OMP_NUM_THREADS=1\$" "$shardrun" -n 250 "$program" environment
expect "threads that are set to nothing" 0 "OMP_NUM_THREADS=[1-9]" env OMP_NUM_THREADS= "$shardrun" -n 2 "$program" environment
expect "threads that are set" 0 "OMP_NUM_THREADS=7\$" env OMP_NUM_THREADS=7 "$shardrun" -n 2 "$program" environment
expect "shared memory that other users cannot read" 0 "^600\$" "$shardrun" -n 1 sh -c 'stat -L -c %a "/proc/self/fd/$SHARD_SHM_FD"'
expect "no input but at rank 0" 0 "^1: -1\$" "$shardrun" -n 2 "$program" input
expect "tagged output" 0 "^\[1\] one line\$" "$shardrun" -n 2 --tag "$program" output
expect "tagged error output, last line" 0 "^\[1\] the end\$" "$shardrun" -n 2 --tag "$program" output 1

# Lines that come in many pieces, of several ranks and of both streams, for a reader that is late.
long='head -c $LENGTH /dev/zero | tr "\0" x; echo'
lengths='"$@" | awk "{ print length(\$0) }" | uniq -c'
expect "tagged lines that are long" 0 "^ *3 300004\$" env LENGTH=300000 sh -c "$lengths" sh "$shardrun" -n 3 --tag sh -c "$long"
expect "a tagged line that is too long" 0 "^ *1 3222788\$" env LENGTH=20000000 sh -c "$lengths" sh "$shardrun" -n 1 --tag sh -c "$long"
expect "tagged lines of both streams" 0 "^0 broken of 20001\$" env LENGTH=200000 sh -c \
    '"$@" 2>&1 | { sleep 1; awk "!/^\[0\] (y|x+)\$/ { broken++ } END { print 0 + broken, \"broken of\", NR }"; }' \
    sh "$shardrun" -n 1 --tag sh -c "yes | head -n 20000 >&2 & $long; wait"
expect "help that cannot be written" 1 "^shardrun: cannot write the help: No space left" sh -c '"$@" >/dev/full' sh "$shardrun" --help
expect "tagged output that cannot be written" 1 "^shardrun: output that could not be written is lost: No space left" \
    sh -c '"$@" >/dev/full' sh "$shardrun" -n 1 --tag echo line
expect "tagged output that is closed" 1 "^shardrun: output that could not be written is lost: Bad file descriptor" \
    sh -c '"$@" >&-' sh "$shardrun" -n 1 --tag echo line

# Ranks see that their reader has ended, with --tag as without.
for tag in '' --tag; do
    # shellcheck disable=SC2086 # nothing, or an option
    expect "no reader of the output $tag" 0 "^shardrun: rank 0 was killed by signal 13" \
        sh -c '{ "$@"; } | head -n 1' sh "$shardrun" -n 1 $tag yes
    # shellcheck disable=SC2086
    expect "a rank that does without a reader $tag" 0 "^saved\$" \
        sh -c '{ "$@" && echo saved >&2; } | head -n 1' sh "$shardrun" -n 1 $tag \
        sh -c 'trap "" PIPE; for i in 1 2 3; do echo $i; sleep 0.2; done; exit 0'
done

expect "an exit code" 4 "^shardrun: rank 1 ended with exit code 4\$" "$shardrun" -n 3 "$program" early 1
also "the others of it" 4 "rank 0: error peer: rank 1 ended before it joined"
absent='[ $RANK = 1 ] || exec "$0" check'
expect "a rank that ends well and too early" 1 "^shardrun: rank 1 ended before it joined the others\$" \
    "$shardrun" -n 3 sh -c "$absent" "$program"
also "the others of it" 1 "rank 2: error peer: rank 1 ended before it joined the others"
# The others receive the error of a rank that cannot join, whether or not it ends.
alive='[ $RANK = 0 ] || { SHARD_TF32=yes "$0" threads; sleep 100; }; exec "$0" threads'
expect "a rank that cannot join, and lives on" 1 '^shard\[0\] error: rank 1: environment variable SHARD_TF32 is "yes"' \
    env SHARD_TIMEOUT=20 "$shardrun" -n 2 sh -c "$alive" "$program"
expect "a rank of another job" 1 "^shard\[0\] error: rank 1: shm: WORLD_SIZE is 3, but shardrun started 2 ranks" \
    "$shardrun" -n 2 sh -c '[ $RANK = 0 ] || export WORLD_SIZE=3; exec "$0" threads' "$program"
for number in 1 2 3 4 5 6; do
    expect "allocation $number of a rank that cannot join" 1 "^shard\[0\] error: rank 1: no memory for " \
        "$shardrun" -n 2 sh -c "[ \$RANK = 0 ] || exec \"\$0\" threads $number; exec \"\$0\" threads" "$program"
done
expect "a file that is not inherited" 1 "^shard error: shm: SHARD_SHM_FD is [0-9]*, a file that this process has not inherited" \
    "$shardrun" -n 1 python3 -c 'import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))' "$program" threads
expect "a killed rank" 137 "^shardrun: rank 2 was killed by signal 9 \(Killed\)\$" "$shardrun" -n 4 "$program" kill 2
also "the others of it" 137 "rank 0: error peer: rank 2 died: it did not come to shard_barrier"
expect "a joint error" 1 "rank 0: error peer: rank 1: label 17 out of range" "$shardrun" -n 2 "$program" error 1
expect "an error at home" 1 "rank 0: error peer: rank 1: label 17 out of range" "$shardrun" -n 2 "$program" fail 1
expect "a rank that leaves" 1 "rank 2: error peer: rank 1 has left: it did not come to shard_barrier" "$shardrun" -n 3 "$program" leave 1
expect "the deadline" 1 "rank 0: error timeout: rank 1 did not come to shard_barrier within 1 s" \
    "$shardrun" -n 3 "$program" late 1
expect "ranks that do not want to end" 4 "^shardrun: ending 2 ranks\$" "$shardrun" -n 3 "$program" stubborn 1
expect "ranks without a world" 0 "none of the 2 ranks called shard_init or shard_init_with" "$shardrun" -n 2 "$program" lonely
for setting in SHARD_TIMEOUT=abc SHARD_TF32=yes SHARD_TRANSPORT=mpi; do
    expect "no world because of $setting, which the program does not mind" 0 "^2 errors, 0 of shardrun\$" \
        sh -c '"$@" 2>&1 | awk "/^shard error: /{ ranks++ } /^shardrun: /{ own++ } END { print 0 + ranks \" errors, \" 0 + own \" of shardrun\" }"' \
        sh env $setting "$shardrun" -n 2 sh -c '"$0" threads; exit 0' "$program"
done

expect "help" 0 "^Usage: shardrun -n N" "$shardrun" --help
expect "no number" 2 "how many ranks" "$shardrun" "$program"
expect "a wrong number" 2 "-n 0: not a number of ranks from 1 to 256" "$shardrun" -n 0 "$program"
expect "a number that int does not hold" 2 "-n 4294967298: not a number of ranks" "$shardrun" -n 4294967298 "$program"
expect "an unknown MPI" 1 'SHARD_MPI is "OpenMPI"; the MPIs are' env SHARD_MPI=OpenMPI "$shardrun" -n 2 "$program" check
expect "no program" 2 "which PROGRAM" "$shardrun" -n 2
expect "an unknown option" 2 "unrecognized option" "$shardrun" --fast -n 2 "$program"
expect "a program that is not there" 127 "cannot run /nowhere/program: No such file" "$shardrun" -n 2 /nowhere/program
expect "a name with control characters" 127 'cannot run x\\nshard error: fine\\x1b\[2J: No such' "$shardrun" -n 2 "$(printf 'x\nshard error: fine\033[2J')"
expect "a program that is none" 126 "cannot run /dev/null: Permission denied" "$shardrun" -n 2 /dev/null

# Signals. Output is read while the job runs: not what one before has left, which a job
# that has yet to start has not cleared.
wait_for_line() {
    for _ in $(seq 100); do
        [ "$(grep -c "$1" "$output")" -ge "$2" ] && return
        sleep 0.1
    done
}
for signal in INT TERM; do
    expected=$((expected + 1))
    : >"$output"
    # A shell starts background jobs with SIGINT ignored; env resets it.
    env --default-signal=INT "$shardrun" -n 2 "$program" signal >"$output" 2>&1 &
    job=$!
    wait_for_line ready 2
    kill -$signal $job
    wait $job
    code=$?
    number=$([ $signal = INT ] && echo 2 || echo 15)
    check_output "SIG$signal is passed on" "$number" "rank 1 took signal $number" $code
done

# Those of users are passed on as often as they come, and end nothing.
expected=$((expected + 1))
: >"$output"
SHARD_TIMEOUT=1 "$shardrun" -n 2 sh -c 'trap "echo rank $RANK took USR1" USR1; trap "exit 0" USR2; echo ready; while :; do sleep 0.1; done' >"$output" 2>&1 &
job=$!
wait_for_line ready 2
for count in 2 4; do
    kill -USR1 $job
    wait_for_line "took USR1" $count
    sleep 1.5 # beyond SHARD_TIMEOUT
done
kill -USR2 $job
wait $job
check_output "SIGUSR1 and SIGUSR2 are passed on" 0 "^rank 1 took USR1\$" $?

# Ranks that ignore signals end all the same: in time, or with a second signal.
for timeout in 1 60; do
    expected=$((expected + 1))
    : >"$output"
    SHARD_TIMEOUT=$timeout "$shardrun" -n 2 "$program" stubborn >"$output" 2>&1 &
    job=$!
    wait_for_line ready 2
    kill -TERM $job
    if [ $timeout = 60 ]; then
        sleep 1
        kill -TERM $job
    fi
    wait $job
    code=$?
    check_output "ranks that ignore signals, a timeout of $timeout s" 137 "^shardrun: ending 2 ranks\$" $code
done

# Nor does a reader that pauses keep the job from its end. This shell holds a pipe open, and reads nothing.
pipe=$(mktemp -u)
mkfifo "$pipe"
exec 3<>"$pipe"
expected=$((expected + 4))
timeout -s KILL "$expect_seconds" "$shardrun" -n 2 --tag yes >"$pipe" 2>&1 &
job=$!
sleep 1 # until the pipe is full
kill -TERM $job
wait $job
code=$?
echo "code $code" >"$output"
check_output "SIGTERM while the reader pauses" 143 "" $code
exec 3<&-
exec 3<>"$pipe" # empty
timeout -s KILL "$expect_seconds" "$shardrun" -n 1 --tag seq 15000 >"$pipe" 2>&1 &
job=$!
sleep 1 # until the rank has ended: the pipe does not hold what it has written, with the tags
kill -TERM $job
wait $job
code=$?
echo "code $code" >"$output"
check_output "SIGTERM when output alone is left" 143 "" $code
exec 3<&-
exec 3<>"$pipe" # empty
: >"$output"
timeout -s KILL "$expect_seconds" "$shardrun" -n 2 --tag sh -c '[ $RANK = 0 ] && exec yes; sleep 1; echo the end; exit 7' >"$pipe" 2>"$output" &
job=$!
wait_for_line "rank 1 ended with exit code 7" 1
wait_for_line "ending 1 rank" 1
exec 4<"$pipe"
cat <&4 >>"$output" 3<&- &
exec 3<&- 4<&-
wait $job
code=$?
wait_for_line "1. the end" 1
check_output "a rank that fails while the reader pauses" 7 "^shardrun: ending 1 rank\$" $code
check_output "its last line" 7 "^\[1\] the end\$" $code
rm "$pipe"

# However it is ended, shardrun leaves no ranks behind, of a script's no more than its own:
# end NAME CODE PATTERN FIRST KILL COMMAND: `KILL` ends the job once FIRST, of 2, are in the output.
lives() { [ -d "/proc/$1" ] && ! grep -q '^State:.[ZX]' "/proc/$1/status" 2>/dev/null; }
programs() { # not those of another run of this test
    for process in /proc/[0-9]*; do
        [ "$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null)" = "$program $1 " ] || continue
        ! tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -qx "SHARDRUN_TEST=$$" || echo "${process#/proc/}"
    done
}
end() {
    name=$1 code=$2 pattern=$3 what=$4 kill=$5
    shift 5
    expected=$((expected + 1))
    : >"$output"
    env --default-signal=INT SHARD_TIMEOUT=20 SHARDRUN_TEST=$$ "$@" >"$output" 2>&1 &
    job=$!
    wait_for_line ready 2
    ranks=$(programs "$what")
    eval "$kill"
    wait $job
    status=$?
    for rank in $ranks; do
        for _ in 1 2 3 4 5 6 7 8 9 10; do # a loaded machine takes a while
            ! lives "$rank" || sleep 0.5
        done
        ! lives "$rank" || echo "rank process $rank lives on" >>"$output"
    done
    check_output "$name" "$code" "$pattern" $status
    if [ -z "$ranks" ] || grep -q 'lives on' "$output"; then
        failed=$((failed + 1))
        echo "$name: ranks live on, or never ran"
        for rank in $ranks; do
            kill -KILL "$rank"
        done
    fi
}
script='"$0" "$@" && true; exit $?'
child() { cut -d ' ' -f 1 "/proc/$job/task/$job/children"; }
end "a killed shardrun" 137 ready signal 'kill -KILL $job' "$shardrun" -n 2 "$program" signal
end "a killed shardrun, ranks of a script" 137 "the launcher .shardrun. was killed" wait 'kill -KILL $job' \
    "$shardrun" -n 2 sh -c "$script" "$program" wait
end "SIGTERM, ranks of a script" '*' "rank 1 took signal 15" signal 'kill -TERM $job' "$shardrun" -n 2 sh -c "$script" "$program" signal
end "SIGINT, ranks of a script" '*' "rank 1 took signal 2" wait 'kill -INT $job' "$shardrun" -n 2 sh -c "$script" "$program" wait
end "a killed script" 137 "rank 0 was killed by signal 9" signal 'kill -KILL $(child)' \
    "$shardrun" -n 2 sh -c "$script" "$program" signal
end "a stopped rank of a script" '*' "took signal 15" signal 'kill -STOP ${ranks%%[!0-9]*}; kill -TERM $job' \
    "$shardrun" -n 2 sh -c "$script" "$program" signal
for blocks in 1 4000; do # too few for shardrun, for a rank; the output goes through a pipe, which has no limit
    expect "a limit of $blocks blocks" 0 "ulimit -f limits" sh -c "ulimit -f $blocks; "'"$0" -n 2 "$1" check 2>&1 | cat' "$shardrun" "$program"
done
# cat ends when no process that a rank has started holds the pipe.
few='ulimit -n 250; "$0" -n 200 --tag sh -c "sleep 20; true" 3>&1 2>&1 | timeout 15 cat'
expect "too few open files for all ranks" 0 "which ulimit -n limits" sh -c "$few" "$shardrun"
expect "few open files, of which ranks take none" 0 "^1\$" sh -c 'ulimit -n 64; "$0" -n 100 sh -c "[ \$RANK -gt 0 ] || echo 1"' "$shardrun"
if unshare -rn true 2>/dev/null; then # a network without 127.0.0.1
    expect "no network" 0 "rank 1 of 2 over shm: good" unshare -rn "$shardrun" -n 2 "$program" check
else
    echo "left out: no network: no namespaces of networks"
fi
expect "a caller that ignores the ends of its processes" 4 "rank 1 ended with exit code 4" \
    sh -c 'trap "" CHLD; exec "$0" -n 3 "$1" early 1' "$shardrun" "$program"
expect "a signal that the caller ignores" 0 "^done\$" \
    env SHARD_TIMEOUT=1 sh -c 'trap "" HUP; exec "$0" -n 1 sh -c "kill -HUP \$PPID; sleep 2; echo done"' "$shardrun"
expect "what ranks leave in the background" 0 "^left\$" "$shardrun" -n 1 sh -c 'sleep 1 >/dev/null & echo left'
expect "what a failed rank leaves in the background" 3 "^shardrun: ending what ranks have left running" \
    "$shardrun" -n 1 sh -c 'sleep 1000 >/dev/null & exit 3'
expect "what ranks leave in the background, which never stops to write" 0 "^\[0\] y\$" \
    sh -c '"$@" | tail -n 1' sh "$shardrun" --tag -n 1 sh -c 'yes & yes & yes & sleep 0.1'

finish
