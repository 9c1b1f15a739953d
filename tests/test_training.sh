#!/bin/sh
# test_training.sh SHARDRUN PROGRAM: the template of a training run comes to the same on any
# number of ranks, also when it goes on from its checkpoint on another number.
shardrun=$(realpath "$1") program=$(realpath "$2")
. "$(dirname "$0")/support/expect.sh"
work=$(mktemp -d)
trap 'rm -rf "$output" "$work"' EXIT
cd "$work" || exit

# same NAME BOUND LINES: the last run's losses are those of the run alone, within BOUND, and of so many steps.
same() {
    expected=$((expected + 1))
    awk -v bound="$2" -v lines="$3" '
        !/^step/ { next }
        $6 !~ /^[0-9.]+$/ { wrong = 1 } # not a number, with which mawk compares nothing as greater
        NR == FNR { loss[$2] = $6; next }
        { seen++; difference = loss[$2] - $6; if (difference < 0) difference = -difference; if (!($2 in loss) || difference > bound) wrong = 1 }
        END { exit wrong || seen != lines }' whole.1 "$output" && return
    failed=$((failed + 1))
    echo "$1: other losses, or not $3 steps"
    paste whole.1 "$output"
}

for ranks in 1 2 4 3 5; do
    expect "on $ranks" 0 "^ *in all " "$shardrun" -n $ranks "$program"
    cp "$output" whole.$ranks
    same "on $ranks" 0.01 24
    mkdir $ranks
    mv training.safetensors averaged.safetensors $ranks
done
expected=$((expected + 1))
awk '/^step/ { last = $6 } END { exit !(last < 1) }' whole.1 || { # of 6.9, what all classes alike come to
    failed=$((failed + 1))
    echo "nothing is learned"
    cat whole.1
}
for way in "4 1" "4 2" "1 4" "2 3" "4 5" "1 1"; do
    cp ${way% *}/training.safetensors .
    expect "from ${way% *} on ${way#* }" 0 "^ *in all " "$shardrun" -n ${way#* } "$program" resume
    same "from ${way% *} on ${way#* }" "$([ "$way" = "1 1" ] && echo 0 || echo 0.01)" 12
done
finish
