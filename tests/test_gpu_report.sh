#!/usr/bin/env bash
# tools/bench_gpu on the emulated device, and the report that tools/check-gpu makes of such results, also of parts of them.
# test_gpu_report.sh BENCH_GPU GPU_REPORT
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/results"

# check_report EXPECTED...: in the report of what is there.
check_report() {
    rm -f "$folder"/*.md
    python3 "$report" "$folder/results" "$folder"
    local text expected
    text=$(cat "$folder"/*.md)
    for expected in "$@"; do
        case $text in
        *"$expected"*) ;;
        *) echo "the report does not say \"$expected\":
$text" >&2 && exit 1 ;;
        esac
    done
    case $text in *'group'*) echo "the report lists what passed" >&2 && exit 1 ;; esac
}
bench=$1 report=$2

check_report '- GPU: not known' '| kernels | not run |' 'Not run.'
"$bench" --small >"$folder/results/bench.json"
grep -q '"name":"sgd step float32"' "$folder/results/bench.json" || { echo "bench_gpu did not measure the SGD step" >&2 && exit 1; }
"$bench" --small --once head >"$folder/head.json" # whole: a pipe would end it
grep -q '^{"name":"linear + cross-entropy 125000 bfloat16".*"floor_ms":0,' "$folder/head.json" || { echo "bench_gpu --once head" >&2 && exit 1; }
printf '%s\n' '{"name":"PyTorch","version":"9.9"}' '{"name":"sgd step float32","way":"eager","ms":1e9}' \
    '{"name":"sgd step float32","way":"compile","error":"no memory"}' '{"name":"adamw st' >"$folder/results/bench_torch.json"
record() { # PROGRAM WAY RESULT PASSED FAILED
    printf '{"key":"k %s %s","step":"kernels","program":"%s","way":"%s","part":"","result":"%s","passed":%s,"failed":%s,"left_out":2,"exit":1,"seconds":3}\n' \
        "$1" "$2" "$1" "$2" "$3" "$4" "$5"
}
{
    record linear 'one process' failed 4 3
    record linear 'a process a test' passed 7 0
    record matmul 'one process' timeout 1 1
    record group 'one process' passed 2 0
    printf '{"key":"k mean'
} >"$folder/results/tests.jsonl"
echo '{"code": 1, "seconds": 17}' >"$folder/results/done-kernels"
touch "$folder/results/begun-ranks"
printf '%s\n' '1700 MHz, 650.0 W, 70, 99 %, 0x0000000000000004' '1980 MHz, 690.5 W, 71, 100 %, 0x0000000000000000' '345 MHz, 70 W, 40, 0 %, 0x1' '19' \
    >"$folder/results/clocks.csv"
check_report 'kernels: 3 programs, 10 tests passed, 1 failed' 'matmul one process: timeout' 'linear: passed a process a test only' \
    '6 runs of other numbers of ranks left out' '| kernels | done, with failures | 17 |' '| ranks | begun, not ended |' \
    'PyTorch 9.9: eager, compile' 'PyTorch, sgd step float32, compile: no memory' '| sgd step float32 |' '| resnet50 step bfloat16 |' 'copy: ' \
    'SM clock 1700 to 1980 MHz, median 1840; power 670 W, at most 690; 2 samples; clocks held down'

# What the GPU at hand should take: its floor times the estimate of tests/gpu/README.md.
printf '%s\n' '{"name":"copy","ms":1,"gb_per_s":3000}' '{"name":"linear + cross-entropy 125000 bfloat16","ms":10,"floor_ms":4,"first_ms":70}' \
    '{"name":"fused head step","ms":8,"floor_ms":4,"first_ms":9,"peak_mib":1076.4}' \
    '{"name":"cross-entropy 125000 bfloat16","ms":0.6,"floor_ms":0.51}' '{"name":"linear + cro' >"$folder/results/bench.json"
printf '%s\n' '{"name":"PyTorch","version":"9.9"}' '{"name":"liger-kernel","version":"0.8"}' \
    '{"name":"fused head step","way":"liger","ms":10,"peak_mib":1546}' '{"name":"fused head step","way":"eager","ms":4}' \
    >"$folder/results/bench_torch.json"
check_report 'PyTorch 9.9, liger-kernel 0.8: eager, compile, liger.' '| fused head step | 8.000 | 1076 | 9.0 |' '| 4.000 (0.50) |' '| 10.000 (1.25; 1546) |'
check_report '| 10.000 |  | 70.0 | 4.000 | 40 % | 4.200 to 4.680 | 2.14 x |' '| 0.551 to 0.648 | as expected |'
