#!/usr/bin/env bash
# tools/bench_gpu on the emulated device, and the report that tools/check-gpu makes of such results.
# test_gpu_report.sh BENCH_GPU GPU_REPORT
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/results"

"$1" --small >"$folder/results/bench.json"
grep -q '"name":"sgd step float32"' "$folder/results/bench.json" || { echo "bench_gpu did not measure the SGD step" >&2 && exit 1; }
printf '%s\n' '{"name":"PyTorch","version":"9.9"}' '{"name":"sgd step float32","ms":1e9}' >"$folder/results/bench_torch.json"
echo '7 passed, 1 failed, 0 skipped' >"$folder/results/count-one-gpu.txt"
printf ' 3/8 libshard:unit / mesh   FAIL   1.00s   exit status 1\n 4/8 libshard:unit / group   OK   1.00s\n' >"$folder/results/test-one-gpu.txt"
echo 'memcheck   test_device_sgd                  OK' >"$folder/results/sanitize.txt"

python3 "$2" "$folder/results" "$folder"
report=$(cat "$folder"/*.md)
for expected in 'one-gpu: 7 passed, 1 failed' 'mesh   FAIL' 'memcheck   test_device_sgd' 'PyTorch 9.9' \
    '| sgd step float32 |' '| resnet50 step bfloat16 |' 'copy: '; do
    case $report in
    *"$expected"*) ;;
    *) echo "the report does not say \"$expected\":
$report" >&2 && exit 1 ;;
    esac
done
case $report in *'group   OK'*) echo "the report lists what passed" >&2 && exit 1 ;; esac
