#!/bin/sh
# A small outside program builds against what `meson install` leaves, by pkg-config, and
# runs under the installed launcher. Usage: test_install.sh MESON BUILD_ROOT CC [ARGUMENT...]
set -eu
meson=$1 build=$2 packages=${PKG_CONFIG_PATH-}
shift 2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
"$meson" install -C "$build" --no-rebuild --quiet --destdir "$root"
pc=$(find "$root" -name libshard.pc)
libraries=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH="${pc%/*}" PKG_CONFIG_SYSROOT_DIR="$root" LD_LIBRARY_PATH="$libraries"
cat >"$root/program.c" <<'END'
#include <shard/shard.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    int rank = shard_group_rank(shard_world()), size = shard_group_size(shard_world());
    SHARD_SCOPE {
        shard_tensor *x = shard_full(SHARD_SHAPE(2), rank + 1.0);
        shard_all_reduce(x, SHARD_SUM, shard_world());
        printf("%s %d of %d: %g\n", shard_version(), rank, size, ((float *)shard_data(x))[0]);
    }
    return shard_finalize();
}
END
# shellcheck disable=SC2046 # words
"$@" -std=c11 -D_GNU_SOURCE "$root/program.c" -o "$root/program" $(pkg-config --cflags --libs libshard)
shardrun=$(find "$root" -path '*/bin/shardrun')
"$root/program" >"$root/output"
[ "$(cat "$root/output")" = "0.2.0 0 of 1: 1" ]
"$shardrun" -n 3 "$root/program" >"$root/output"
sort -o "$root/output" "$root/output"
printf '0.2.0 0 of 3: 6\n0.2.0 1 of 3: 6\n0.2.0 2 of 3: 6\n' | cmp - "$root/output"
# The installed shard-checkpoint needs no file of the build folder.
checkpoint=$(find "$root" -path '*/bin/shard-checkpoint')
[ "$("$checkpoint" verify /dev/null 2>&1)" = "/dev/null: cannot be read
shard-checkpoint: cannot read /dev/null: it is not a regular file" ]
# So does shard-search.
search=$(find "$root" -path '*/bin/shard-search')
"$search" --help | grep -q '^Usage: shard-search CHECKPOINT'
# Programs find the library from their own folder.
for program in "${search%/*}"/*; do
    (
        unset LD_LIBRARY_PATH
        "$program" --help
    ) | grep -q "^Usage: ${program##*/} " || { echo "${program##*/} --help fails"; exit 1; }
done
# It looks for plugins in the folder of those that are installed: a missing one's error ends with it.
if [ -d "$libraries/libshard" ] && [ ! -e "$libraries/libshard/libshard-cuda.so" ]; then
    "$search" "$root/none" --device cuda >"$root/output" 2>&1 </dev/null && exit 1
    folder=$(sed -n 's/.*no libshard-cuda.so in .*:\([^:]*\): .*/\1/p' "$root/output")
    [ "$(cd "$folder" && pwd -P)" = "$(cd "$libraries/libshard" && pwd -P)" ] || { cat "$root/output"; exit 1; }
fi
# Makers that lack an argument do not compile.
for call in 'shard_zeros(shape)' 'shard_full(shape, 1.0, .dtype = SHARD_INT64)' 'shard_normal(shape, 0.0, 1.0)' \
    '!shard_full(shape)' '!shard_uniform(shape)' '!shard_uniform(shape, 0.0)' '!shard_normal(shape, 0.0)' '!shard_from_host(&shape)'; do
    printf '#include <shard/shard.h>\nshard_tensor *make(shard_shape shape) { return %s; }\n' "${call#!}" >"$root/call.c"
    expected=0
    [ "${call#!}" = "$call" ] || expected=1
    # shellcheck disable=SC2046 # words
    "$@" -std=c11 -fsyntax-only "$root/call.c" $(pkg-config --cflags libshard) 2>/dev/null && compiles=0 || compiles=1
    [ $compiles = $expected ] || { echo "$call: compiles: $compiles"; exit 1; }
done
# So do macros with options, which give no warning where they set fields over the defaults.
for call in 'shard_sgd(model, .lr = 0.1)' 'shard_sgd(list)' 'shard_conv2d(x, x, NULL, .stride = 2)' 'shard_nn_linear(2, 3, .bias = false)' \
    'shard_mesh_create(.model = 2)' 'shard_cross_entropy(x, x, .label_smoothing = 0.1)' '!shard_sgd()' '!shard_sgd(.lr = 0.1)' \
    '!shard_sgd(x)' '!shard_conv2d(x, x)' '!shard_conv2d(x, x, .stride = 2)' '!shard_nn_linear(2)' '!shard_sgd(model, .rate = 0.1)'; do
    printf '#include <shard/shard.h>\nvoid *make(shard_module *model, shard_tensors *list, shard_tensor *x)\n' >"$root/call.c"
    printf '{ (void)model, (void)list, (void)x; return %s; }\n' "${call#!}" >>"$root/call.c"
    expected=0
    [ "${call#!}" = "$call" ] || expected=1
    # shellcheck disable=SC2046 # words
    "$@" -std=c11 -Wall -Wextra -Werror -fsyntax-only "$root/call.c" $(pkg-config --cflags libshard) 2>"$root/errors" && compiles=0 ||
        compiles=1
    [ $compiles = $expected ] || { echo "$call: compiles: $compiles"; cat "$root/errors"; exit 1; }
done
# A model of the installed library, by its header alone.
cat >"$root/model.c" <<'END'
#include <shard/models/resnet.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_module *model = shard_resnet("resnet18", 6, .stem = SHARD_RESNET_STEM_SMALL);
    shard_convert_parallel_linear(&model, "fc", SHARD_SPLIT_COLUMN, shard_world(), NULL);
    SHARD_SCOPE {
        shard_tensor *y = shard_forward(model, shard_ones(SHARD_SHAPE(2, 8, 8, 3)));
        printf("[%lld, %lld]\n", (long long)shard_tensor_size(y, 0), (long long)shard_tensor_size(y, 1));
    }
    shard_module_destroy(model);
    return shard_finalize();
}
END
# shellcheck disable=SC2046 # words
"$@" -std=c11 -D_GNU_SOURCE "$root/model.c" -o "$root/model" $(pkg-config --cflags --libs libshard)
"$shardrun" -n 2 "$root/model" >"$root/output"
[ "$(sort -u "$root/output")" = "[2, 3]" ]
# A page of the manual for each program, where help2man was there to make them.
if command -v help2man >/dev/null && [ -n "$(find "$build/docs" -name '*.1')" ]; then
    for program in "$(dirname "$shardrun")"/*; do
        page=$(find "$root" -path "*/man1/${program##*/}.1")
        [ -n "$page" ] && grep -q 'SHARD_TIMEOUT\|number of ranks\|checkpoint' "$page" || { echo "${program##*/}: no page"; exit 1; }
        ! "$program" --help | grep -q 'shardrun -n' || grep -q '^\.B shardrun$' "$page" || { echo "${program##*/}: a synopsis without shardrun"; exit 1; }
    done
fi
# The same from the build folder, nothing installed.
(
    unset PKG_CONFIG_SYSROOT_DIR
    export PKG_CONFIG_PATH="$build/meson-uninstalled" LD_LIBRARY_PATH="$build/libshard"
    # shellcheck disable=SC2046 # words
    "$@" -std=c11 -D_GNU_SOURCE "$root/program.c" -o "$root/uninstalled" $(pkg-config --cflags --libs libshard)
    [ "$("$root/uninstalled")" = "0.2.0 0 of 1: 1" ]
)
# And as a subproject.
mkdir -p "$root/outside/subprojects"
source=$(cd "$(dirname "$0")/.." && pwd)
ln -s "$source" "$root/outside/subprojects/libshard"
cat >"$root/outside/meson.build" <<'END'
project('outside', 'c')
executable('program', '../program.c', dependencies: dependency('libshard', fallback: 'libshard',
  default_options: ['tests=disabled', 'projects=disabled', 'cuda=disabled', 'mpi=disabled']))
END
PKG_CONFIG_SYSROOT_DIR='' PKG_CONFIG_PATH=$packages CC="$*" "$meson" setup --force-fallback-for=libshard "$root/outside/build" \
    "$root/outside" >"$root/output" 2>&1 || { cat "$root/output"; exit 1; }
# A buildtype has its own optimization. What the library cannot be is refused.
PKG_CONFIG_SYSROOT_DIR='' PKG_CONFIG_PATH=$packages CC="$*" "$meson" setup -Dbuildtype=debug -Dtests=disabled -Dprojects=disabled \
    -Dcuda=disabled -Dmpi=disabled -Dglyphs=disabled "$root/debug" "$source" >"$root/output" 2>&1 || { cat "$root/output"; exit 1; }
grep -q ' -O0 ' "$root/debug/compile_commands.json" && ! grep -q ' -O3 ' "$root/debug/compile_commands.json" ||
    { echo "-Dbuildtype=debug optimizes"; exit 1; }
for option in default_library=static default_library=both unity=on; do
    CC="$*" "$meson" setup "-D$option" "$root/refused" "$source" >"$root/output" 2>&1 && { echo "-D$option is taken"; exit 1; }
    grep -q "Problem encountered: -D$option: " "$root/output" || { cat "$root/output"; exit 1; }
done
# What is visible is the public interface, as the map lists it; the version's own symbol aside.
nm -D --defined-only "$libraries/libshard.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort >"$root/exported"
sed -n 's/^    \(shard_[a-z0-9_]*\);$/\1/p' "$(dirname "$0")/../libshard/libshard.map" | LC_ALL=C sort >"$root/listed"
if ! diff "$root/listed" "$root/exported"; then
    echo "< in libshard.map, > exported"
    exit 1
fi
