# shellcheck shell=sh
# For test scripts: expect NAME CODE PATTERN COMMAND ... runs the command and
# fails unless its exit code is CODE (a pattern of case: 0, 1, *) and the
# extended regular expression matches a line of its output. `finish` ends.
# A rank that says nothing within the 2 s after which shardrun ends it was not scheduled: the command runs once more.
expected=0
failed=0
expect_seconds=$(awk "BEGIN { print 60 * ${CK_TIMEOUT_MULTIPLIER:-1} }")
output=$(mktemp)
trap 'rm -f "$output"' EXIT

expect() {
    name=$1 code=$2 pattern=$3
    shift 3
    expected=$((expected + 1))
    timeout -k 5 "$expect_seconds" "$@" >"$output" 2>&1 </dev/null
    status=$?
    if grep -q "^shardrun: ending" "$output" && ! grep -qE -- "$pattern" "$output"; then
        echo "$name: runs once more, as shardrun ended a rank that had said nothing"
        timeout -k 5 "$expect_seconds" "$@" >"$output" 2>&1 </dev/null
        status=$?
    fi
    check_output "$name" "$code" "$pattern" $status
}

# check_output NAME CODE PATTERN STATUS: the same for a command that has run into $output. A sanitizer's report is a failure,
# also of a process whose exit code the command does not pass on.
check_output() {
    # shellcheck disable=SC2254 # a pattern
    case $4 in
    $2) grep -qE -- "$3" "$output" && ! grep -qE '(WARNING|ERROR): [A-Za-z]+Sanitizer|: runtime error: ' "$output" && return ;;
    esac
    failed=$((failed + 1))
    echo "$1: exit code $4 instead of $2, no \"$3\", or a sanitizer's report in:"
    sed 's/^/    /' "$output"
}

# also NAME CODE PATTERN: the same for the last command of `expect`, which is not run again.
also() {
    expected=$((expected + 1))
    check_output "$1" "$2" "$3" "$status"
}

finish() {
    echo "$expected checks, $failed failed"
    [ "$expected" -gt 0 ] && [ "$failed" -eq 0 ]
    exit
}
