#!/bin/bash
# test_failing.sh shm|openmpi|mpich some|all FAILING_PROGRAM SHARDRUN|PROBE: one rank of three
# ends, dies or hangs, at one place. Each job must end in time with an exit code other than 0
# and name the rank where that can be known, and leave nothing behind. The seed of the
# moments is printed; SEED repeats them.
kind=$1 extent=$2 program=$3
. "$(dirname "$0")/support/mpirun.sh"
if [ "$kind" = shm ]; then
    run=$4
else
    find_mpirun "$kind" "$4"
fi
export SHARD_TIMEOUT=3 ASAN_OPTIONS=detect_leaks=0
RANDOM=${SEED:=$$}
echo "SEED=$SEED"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export FAILING_FILE=$folder/failing.safetensors FAILING_NOTES=$folder/notes FAILING_MARK=$folder
cases=0 failed=0

# How long a job may take: the deadline, a second for answers, farewells and the launcher's own time.
limit=25

# Whether the exit code may be 0: see the comments.
may_succeed() { # place mode
    case $kind:$1:$2 in
    # Ends the job with 0 itself when a rank has ended with 0, without asking the others.
    mpich:*:_exit0 | mpich:init:exit0 | mpich:moment:exit0) true ;;
    *) false ;;
    esac
}

# Whether the rank cannot be named: MPI_Init does not say who is missing, MPICH not who died.
may_be_nameless() { # place mode
    case $kind:$1:$2 in
    openmpi:init:* | openmpi:moment:* | mpich:*:kill | mpich:*:segv | mpich:*:abort | mpich:*:_exit0 | mpich:init:* | mpich:moment:*) true ;;
    *) may_succeed "$1" "$2" ;;
    esac
}

living_ranks() {
    for process in $(pgrep -x failing_program); do
        grep -qz "^FAILING_MARK=$folder\$" "/proc/$process/environ" 2>/dev/null && echo "$process"
    done
}

complain() {
    failed=$((failed + 1))
    echo "$kind, $place $mode of rank $rank at $milliseconds ms: $1 (exit code $code, $seconds s):"
    sed 's/^/    /' "$folder/output"
}

try() { # place mode rank milliseconds
    place=$1 mode=$2 rank=$3 milliseconds=$4
    cases=$((cases + 1))
    SECONDS=0
    timeout -k 5 $limit "$run" -n 3 "$program" "$place" "$mode" "$rank" "$milliseconds" >"$folder/output" 2>&1 </dev/null
    code=$?
    seconds=$SECONDS
    left=$(living_ranks)
    [ -z "$left" ] || sleep 1 # they are being ended
    left=$(living_ranks)
    if [ $code = 124 ] || [ $code = 137 ] && [ $seconds -ge $limit ]; then
        complain "no end"
    elif [ $code = 0 ] && ! may_succeed "$place" "$mode"; then
        complain "success"
    elif ! grep -qE "ranks? ([0-9, and]*)?\b$rank\b|shard\[$rank\] error" "$folder/output" && ! may_be_nameless "$place" "$mode"; then
        complain "the rank is not named"
    elif [ $place:$mode = finalize:exit0 ] && ! grep -q 'written before exit' "$FAILING_NOTES"; then
        complain "a file's last lines are lost"
    elif [ -n "$left" ]; then
        complain "processes are left: $left"
    elif [ "$kind" = shm ] && ls "$folder" | grep -q tmp; then
        complain "files are left"
    fi
    # shellcheck disable=SC2086 # several numbers
    [ -z "$left" ] || kill -KILL $left
    rm -f "$FAILING_FILE"* "$FAILING_NOTES"
}

modes="kill segv stop exit0 _exit0 exit3 abort"
if [ "$extent" = all ]; then
    for mode in $modes; do
        for place in init moment collective inside save finalize; do
            try $place $mode $((RANDOM % 3)) $((RANDOM % 150))
        done
        try save $mode 0 $((RANDOM % 150)) # the rank that makes the file
    done
elif [ "$kind" = shm ]; then
    for mode in $modes; do
        try moment $mode $((RANDOM % 3)) $((RANDOM % 150))
        try collective $mode $((RANDOM % 3)) 0
    done
    try save kill 0 50
    try save kill 1 50
    for mode in exit0 _exit0 stop; do
        try finalize $mode 2 0
    done
else
    try collective stop 2 0
    try collective exit0 1 0
    try init stop 1 0
    try moment kill 0 $((RANDOM % 150))
fi
echo "cases: $cases"
echo "$failed failed"
[ $cases -gt 0 ] && [ $failed -eq 0 ]
