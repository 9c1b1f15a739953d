#!/bin/sh
# test_tools.sh SOURCE_ROOT BUILD_ROOT: the scripts in tools/, in a small project of its own.
source=$1 build=$2
. "$(dirname "$0")/support/expect.sh"
unset CC SHARD_BUILD
project=$(mktemp -d)
trap 'rm -rf "$output" "$project"' EXIT
mkdir "$project/bin" "$project/tools" "$project/build"
cd "$project" || exit

# script PATH TEXT: a program.
script() {
    printf '#!/bin/sh\n%s\n' "$2" >"$1"
    chmod +x "$1"
}

# The wrappers run the programs of one build folder, from wherever they are called.
expect "shardrun of a folder" 0 "^Usage: shardrun -n N" env SHARD_BUILD="$build" "$source/tools/shardrun" --help
expect "shard-checkpoint of a folder" 0 "^Usage: shard-checkpoint COMMAND" env SHARD_BUILD="$build" "$source/tools/shard-checkpoint" --help
expect "shard-search of a folder" 0 "^Usage: shard-search CHECKPOINT" env SHARD_BUILD="$build" "$source/tools/shard-search" --help
for tool in shardrun shard-checkpoint shard-search make-glyphs; do
    cp "$source/tools/$tool" tools
    expect "$tool, not built" 2 "^$tool: .*/build/release/tools/$tool is not there; build it: .*tools/build release" tools/$tool x
    mkdir -p build/other/tools build/release/tools
    script build/other/tools/$tool 'echo'
    expect "$tool, built elsewhere" 2 "tools/build release, or take one that is there: SHARD_BUILD=.*/build/other\$" tools/$tool x
    # shellcheck disable=SC2016 # the program's
    script build/release/tools/$tool 'echo "$0 took $*"'
    expect "$tool, built" 0 "/build/release/tools/$tool took x y" tools/$tool x y
done

# tools/build: options that are given later, packages and compilers that come later.
cp "$source/tools/build" tools
[ ! -d "$source/build/meson" ] || ln -s "$source/build/meson" build/meson
cat >meson.build <<'END'
project('libshard', 'c', version: '1')
summary({'options': 'a @0@ b @1@ prefix @2@'.format(get_option('a'), get_option('b'), get_option('prefix'))})
executable('program', 'program.c')
END
printf "option('a', type: 'string', value: '1')\noption('b', type: 'string', value: '1')\n" >meson_options.txt
echo 'int main(void) { return 0; }' >program.c
script bin/dpkg-query 'cat packages'
echo one >packages
PATH=$project/bin:$PATH
expect "a folder" 0 "options *: a 1 b 1 prefix /usr/local\$" tools/build x
expect "an option of a folder that is there" 0 "options *: a 2 b 1" tools/build x -Da=2
expect "a prefix" 0 "options *: a 2 b 1 prefix /opt\$" tools/build x --prefix=/opt
expect "what was said stays" 0 "options *: a 2 b 3 prefix /opt\$" tools/build x -Db=3
expect "nothing new" 1 "^0\$" sh -c 'text=$(tools/build x) || exit 3; printf %s "$text" | grep -c configuring'
echo two >>packages
expect "another package" 0 "options *: a 2 b 3 prefix /opt\$" tools/build x
expect "another compiler" 0 "options *: a 2 b 3 prefix /opt\$" env CC='gcc -DOTHER' tools/build x
expect "which is the one that compiles" 0 "DOTHER" ninja -C build/x -t commands
expect "an option that there is not" 1 "ERROR: Unknown options: \"c\"" tools/build y -Dc=1
echo 'int main(void) { return x; }' >program.c
expect "a build that fails" 1 "error: .*x.* undeclared" tools/build x
expect "where to look" 1 "its output is in build/x.ninja.log" tools/build x

# tools/check counts what it cannot build.
cp "$source/tools/check" "$source/tools/count_tests.py" tools
script tools/setup ''
expect "a check that does not build" 1 "^0 passed, 1 failed, 0 skipped\$" tools/check --quick
expect "in the last line" 0 "^0 passed, 1 failed, 0 skipped\$" sh -c 'tools/check --quick | tail -n 1'

# And ends what it has started.
mv tools/build tools/build.real
script tools/build 'sleep 100 & echo $! >pid; exit 1'
expect "a check with programs of its build" 1 "^0 passed, 1 failed, 0 skipped\$" tools/check

# A log of tests that did not run is not counted.
script tools/build 'mkdir -p "build/$1/meson-logs" && env >environment'
mkdir -p build/gcc/meson-logs
echo '{"name": "one", "result": "OK", "stdout": "", "duration": 1}' >build/gcc/meson-logs/testlog.json
expect "a check with the log of another run" 1 "^0 passed, 1 failed, 0 skipped\$" \
    env SHARD_TEST_PART=1/5 SHARD_TEST_RANKS=1 tools/check --quick
expect "and with all tests" 1 "^0\$" grep -c '^SHARD_TEST_' environment
mv tools/build.real tools/build
# shellcheck disable=SC2016 # the shell's
expect "which end with it" 0 "^ended" sh -c 'for _ in 1 2 3 4 5 6 7 8 9; do
    grep -qs "^State:.[^XZ]" "/proc/$(cat pid)/status" || { echo ended && exit; }
    sleep 0.2
done; kill "$(cat pid)"'

# tools/bundle removes no other files. It comes as far as apt-get.
cp "$source/tools/bundle" tools
script bin/apt-cache 'echo pkgconf'
script bin/apt-get 'echo "apt-get: offline" >&2; exit 1'
mkdir -p bundle/python empty
touch bundle/python/meson.py
expect "help of bundle" 0 "^tools/bundle DIR" tools/bundle --help
expect "a bundle in a folder of other files" 2 "^tools/bundle: $project has other files than a bundle's" tools/bundle .
for folder in bundle empty missing; do expect "a bundle in $folder" 1 "^apt-get: offline" tools/bundle $folder; done

# shard-bench head: the ranks' steps, their phases and the machine's limits, in a file.
script bench "SHARD_BUILD='$build' '$source/tools/shardrun' -n 2 '$source/tools/shard-bench' head --features 24 --batch 8 --steps 3 \"\$@\""
# The numbers of the file agree, and the ratio and the other head are there if asked for.
cat >numbers.py <<'END'
import json, sys
both = sys.argv[1] == "both"
run = json.load(open("head.json"))
times = [run["step_seconds"], *run["phases"].values()]
assert list(run["phases"]) == ["gather", "forward", "backward", "update"], run["phases"]
assert all(0 < time["min"] <= time["median"] <= time["max"] for time in times), times
assert max(phase["min"] for phase in run["phases"].values()) < run["step_seconds"]["max"], times
assert run["limit_seconds"] == max(run["product_seconds"], run["memory_seconds"]) > 0
assert abs(run["share_of_limit"] * run["step_seconds"]["median"] / run["limit_seconds"] - 1) < 1e-3
size = {"float32": 4, "bfloat16": 2}[run["dtype"]]
states = {"sgd": 0, "momentum": 1, "adamw": 2, "rowwise-adam": 1}[run["optimizer"]] + (run["rounding"] == "kahan")
rows = (run["classes"] + 1) // 2
assert run["ranks"] == 2 and run["head"] == sys.argv[1] and run["steps"] == 3
assert run["library_bytes"] >= (1 + states) * rows * run["features"] * size * (1 + both), run["library_bytes"]
assert run["rss_bytes"] > 1e6 and run["page_faults"] >= 0
assert both == ("ratio" in run) == ("plain" in run)
if both:
    ratio = run["plain"]["step_seconds"]["median"] / run["step_seconds"]["median"]
    assert abs(ratio / run["ratio"] - 1) < 1e-3
print("numbers agree")
END
for case in "float32 momentum fused softmax" "bfloat16 adamw fused softmax --rounding kahan" "float32 sgd plain binary" \
    "bfloat16 momentum both binary --stash 0" "float32 sgd fused softmax --stash 1" "float32 rowwise-adam fused softmax --sample-rate 0.5"; do
    # shellcheck disable=SC2086 # words
    set -- $case
    dtype=$1 optimizer=$2 head=$3 loss=$4
    shift 4
    expect "head, $case" 0 "300 classes, 24 features, batch 8, $dtype, $optimizer, $loss loss, [0-9.]* of the classes, stash [0-9.]*, 2 ranks" \
        ./bench --classes 300 --dtype "$dtype" --optimizer "$optimizer" --head "$head" --loss "$loss" "$@" --json head.json
    expect "numbers of head, $case" 0 "^numbers agree" python3 numbers.py "$head"
done
expect "a plan by its rates" 0 "ms, most of it backbone" "$source/tools/shard-plan" --bench head.json --line
expect "turns" 0 "^  ratio of plain to fused [0-9]" ./bench --classes 300
expect "no option" 2 "^bench_head: --dtype int8: not a value of it" env SHARD_BUILD="$build" "$source/tools/shard-bench" head --dtype int8
expect "a sample of a plain head" "*" "^bench_head: --sample-rate without --head fused" ./bench --sample-rate 0.5
expect "a stash below 0" "*" "^bench_head: --stash -1: not a value of it" ./bench --stash -1
expect "rows that ranks cannot divide" "*" "^bench_head: --batch" ./bench --batch 7
mkdir "it's"
expect "bench_checkpoint in a folder of any name" 0 "^  dd  .* GB/s\$" "$build/tools/bench_checkpoint" "it's" 4096 512
expect "bench_checkpoint, no folder" 2 "^usage: bench_checkpoint" "$build/tools/bench_checkpoint"
expect "bench_checkpoint, no such split" 2 "^usage: bench_checkpoint" "$build/tools/bench_checkpoint" . 8 8 rows

# tools/setup takes a package that apt is told to leave as it is.
# shellcheck disable=SC2016 # the script's
script bin/sudo 'exec "$@"'
script bin/dpkg-query 'echo "hold ok installed"'
expect "setup of packages on hold" 0 "^all there" sh -c "'$source/tools/setup' words && echo all there"
script bin/dpkg-query 'echo "deinstall ok config-files"'
expect "setup of packages that were removed" 1 "^tools/setup: apt-get failed" env TMPDIR="$project" "$source/tools/setup" words

# Help alone.
expect "setup --help" 0 "^Jobs: build, images, mpi" "$source/tools/setup" --help
expect "setup of no job" 1 "^Jobs: build, images, mpi" "$source/tools/setup"
expect "quickstart --help" 0 "^The whole way on this machine" "$source/tools/quickstart" --help
expect "quickstart with a word" 1 "^The whole way on this machine" "$source/tools/quickstart" word
cp "$source/tools/shard-bench" tools
script tools/build 'echo it builds'
for words in --help "head --help" "head --steps 1 -h"; do
    # shellcheck disable=SC2086 # words
    expect "shard-bench $words" 0 "^tools/shard-bench .backbone " tools/shard-bench $words
done
expect "shard-bench of another name builds nothing" 1 "^0\$" sh -c 'tools/shard-bench comm cpu 2>&1 | grep -c builds'
expect "and says its names" 2 "^tools/shard-bench .backbone " tools/shard-bench comm cpu
expect "analyze without a build" 1 "^analyze: /none/compile_commands.json: No such file" "$source/tools/analyze" /none

expect "head, not built" 2 "bench_head is not there; build it: tools/build release" env SHARD_BUILD="$project" "$source/tools/shard-bench" head --steps 1

finish
