#!/bin/sh
# test_valgrind.sh PROBE RANK_PROGRAM TRAINING: valgrind finds no error of memory, and no leak, in ranks under MPICH: in all
# collectives, and in a training with its checkpoint. Exit code 77, which is "skipped", without valgrind or MPICH.
rank_program=$2 training=$(realpath "$3") # which runs in another folder
. "$(dirname "$0")/support/mpirun.sh"
find_mpirun mpich "$1"
command -v valgrind >/dev/null || skip "no valgrind (tools/setup full)"
folder=$(mktemp -d) here=$(cd "$(dirname "$0")" && pwd)
trap 'rm -rf "$folder"' EXIT
export ONEDNN_MAX_CPU_ISA=AVX2 # valgrind knows no AVX-512

failed=0
check() { # the programs' ranks
    "$run" -n 2 valgrind -q --leak-check=full --errors-for-leak-kinds=definite --error-exitcode=9 \
        --suppressions="$here/valgrind.supp" --log-file="$folder/%p" "$@" >"$folder/output" 2>&1 || {
        echo "$*: exit code $?"
        cat "$folder/output" "$folder"/[0-9]*
        failed=1
    }
}
check "$rank_program" check
(cd "$folder" && check "$training" && exit $failed) || failed=1
echo "cases: 2"
exit $failed
