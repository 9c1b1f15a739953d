#!/bin/sh
# The README's program, as it stands there: compiled with no warning against the built
# library and run on 2 ranks. Usage: test_readme.sh SOURCE_ROOT BUILD_ROOT CC [ARGUMENT...]
set -eu
source=$1 build=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$source/README.md" >"$work/program.c"
grep -q shard_init "$work/program.c"
"$@" -Wall -Wextra -Werror -I"$source/include" "$work/program.c" -o "$work/program" \
    -L"$build/libshard" -Wl,-rpath,"$build/libshard" -lshard
cd "$work"
"$build/tools/shardrun" -n 2 ./program >output
[ "$(grep -c '^step 19 loss' output)" = 1 ] # rank 0's
[ -s model.safetensors ]
awk '/^step 0 /{ first = $4 } /^step 19 /{ last = $4 } END { exit !(last < first) }' output
