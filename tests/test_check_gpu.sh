#!/usr/bin/env bash
# tools/check-gpu from its first step to its report on the emulated device, also when it is killed at any moment.
# test_check_gpu.sh SOURCE_ROOT BUILD_ROOT short|long
set -euo pipefail
source=$1 build=$2 extent=$3
export CK_TIMEOUT_MULTIPLIER=15
. "$(dirname "$0")/support/expect.sh"
set +e
folder=$(mktemp -d)
trap 'end_holders; rm -rf "$folder" "$output"' EXIT
export PATH=$source/tests/support/gpu_tools:$PATH SHARD_CHECK_GPU_SAVE=1
programs=device_check_index,device_expansion,event,top_k steps=(facts build kernels device)
[ "$extent" = short ] || programs='device_c[ah]*,device_elements,device_rows,event,label_rank,top_k,reduce' steps=(first)

# What keeps a context lives on, as it must.
end_holders() {
    for file in "$folder"/*/holder.pid; do [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null; done
}

# check_gpu RESULTS ARGUMENT...: with the build that is there, and a report folder of that name.
check_gpu() {
    local results=$folder/$1
    shift
    "$source/tools/check-gpu" --prebuilt "$build" --results "$results" --report "$results-report" --small --programs "$programs" "$@"
}
export -f check_gpu
export source build folder programs
# Through a pipe, as what outlives the command must not keep its output open.
run() { expect "$1" "$2" "$3" bash -c 'set -o pipefail; check_gpu "$@" 2>&1 | cat' - "${@:4}"; }

# saved NAME RESULTS: what is in the report's folder is whole.
saved() {
    expect "$1: the results" 0 "results/" tar -tzf "$folder/$2-report/results.tar.gz"
    expect "$1: the report" 0 "^# On a GPU" cat "$folder/$2-report/report.md"
    expect "$1: 8 files at most" 0 "^[1-8]$" sh -c "ls -A '$folder/$2-report' | wc -l"
}

# Killed at some moments, and gone on with: each test that passed is run once.
for moment in 0.5 1.7 $((RANDOM % 8)).$((RANDOM % 10)) $((RANDOM % 20)).$((RANDOM % 10)); do
    setsid bash -c 'check_gpu killed "$@" >"$folder/log" 2>&1' - "${steps[@]}" &
    session=$!
    until [ -e "$folder/killed/begun-facts" ]; do sleep 0.1; done
    sleep "$moment"
    while pkill -KILL -s $session; do sleep 0.1; done
    wait $session 2>/dev/null
    rm "$folder/log"
    run "after a kill at $moment s" 0 "^not running" killed status
    saved "after a kill at $moment s" killed
done
run "gone on" 0 "^== device|device: done before" killed "${steps[@]}"
run "again" 0 "kernels: done before" killed "${steps[@]}"
saved "at the end" killed
expect "no test is run twice" 1 "^0\$" sh -c "grep -o '\"key\": \"[^\"]*\"' '$folder/killed/tests.jsonl' | sort | uniq -d | grep -c ."
run "the tests of a step are repeated" 0 "^passed +kernels device_c" killed --again kernels
reported() {
    for line in "$@"; do expect "the report has $line" 0 "$line" cat "$folder/killed-report/report.md"; done
}
reported '- GPU: Emulated GPU' 'kernels: [1-9][0-9]* programs, [1-9][0-9]* tests passed, 0 failed' 'device: [1-9] programs' \
    '- a context: with no other [0-9]' '\| sanitize \| not run'

# In the background, polled.
run "in the background" 0 "in the background" behind --background facts kernels
run "one at a time" 1 "a run is going on" behind facts
run "polled" 0 "^kernels +.\"code\": 0" behind status --wait 600
saved "polled" behind
expect "elsewhere" 0 "kernels: done before" bash -c 'check_gpu moved --from "$folder/behind-report/results.tar.gz" kernels'

# What a machine lacks is said at once.
expect "an old GPU" 1 "STOP GPU 0 .Emulated GPU. has compute capability 7.5: 8.0 or later is needed" \
    env GPU_TOOLS_CAPABILITY=7.5 bash -c 'check_gpu old first'
expect "and nothing is run" 1 "^no\$" sh -c "ls '$folder/old/tests.jsonl' 2>/dev/null || { echo no; false; }"
mkdir "$folder/bin"
ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$folder/bin/python3"
for program in bash sh timeout flock cat date dirname find free grep head ip ldd ldconfig ls mkdir mv nproc realpath rm sed setsid sleep stat tail tar tee touch wc; do
    ln -s "$(command -v $program)" "$folder/bin/$program" 2>/dev/null
done
expect "no driver" 1 "STOP nvidia-smi is not in PATH" env PATH="$folder/bin" bash -c 'check_gpu bare facts'
expect "nothing to build with" 1 "STOP nvcc is not in PATH: set CUDA_HOME, or bring binaries" \
    env PATH="$folder/bin" CUDA_HOME=/none "$source/tools/check-gpu" --results "$folder/bare" facts

# What the wheels of CUDA 13 have in one folder, which comes last, where there is no toolkit.
for wheel in cu13 cudnn nccl; do mkdir -p "$folder/site/nvidia/$wheel/lib"; done
expect "wheels" 0 "^$folder/site/nvidia/cudnn,$folder/site/nvidia/nccl,$folder/site/nvidia/cu13\$" \
    env PATH="$folder/bin" CUDA_HOME=/none PYTHONPATH="$folder/site" python3 "$source/tools/gpu_facts.py" roots

if [ "$extent" = long ]; then
    expect "expected times are of what is measured" 0 "^[1-9]" python3 -c '
import pathlib, sys
sys.path.insert(0, sys.argv[1] + "/tools")
import gpu_report
names = {line["name"] for line in gpu_report.lines_of(pathlib.Path(sys.argv[2]))}
expected = gpu_report.expected_times()
assert not set(expected) - names, set(expected) - names
print(len(expected))' "$source" "$folder/killed/bench.json"
    for step in ranks trainer nccl profile sanitize; do
        run "$step" 0 "== $step" killed $step
    done
    reported 'ranks: [1-9].* runs of other numbers of ranks left out' 'sanitize: [1-9][0-9]* programs' '\| 2 ranks, ZeRO 3 \|.* agrees \|' \
        'profile-head.txt, profile-resnet.txt in results' '\| nccl \| skipped: one GPU' 'SM clock 1500 to 1500' \
        '\| linear \+ cross-entropy 125001 bfloat16 \|' 'clocks held down .nvidia-smi.s reasons 0x0+4' '\| torch \| skipped: no PyTorch'
    # Binaries for a machine without a compiler.
    expect "packed" 0 "prebuilt.tar.xz: .* MiB" "$source/tools/check-gpu" --build "$build" --programs "device_check_index,event" pack "$folder/pack"
    build=$folder/pack
    run "from the pack" 0 "passed +kernels device_check_index one process" packed facts build kernels device
fi
finish
