#!/bin/sh
# test_abi.sh SOURCE_ROOT LIBRARY CC...: the library's binary interface is the recorded one; tools/check-abi lets the additions
# pass that docs/stability.md allows, and nothing else.
source=$1 library=$2
shift 2
. "$(dirname "$0")/support/expect.sh"
check_abi=$source/tools/check-abi

if ! command -v abidiff >/dev/null || ! command -v abidw >/dev/null; then
    "$check_abi" "$library" # says why
    exit
fi
expect "libshard" 0 "^[0-9]+ functions, [0-9]+ of them recorded" "$check_abi" "$library"
expect "no library" 1 "^tools/check-abi: abidw .*/none ended with [0-9]" "$check_abi" /none
expect "no record" 1 "^tools/check-abi: /none: No such file" "$check_abi" "$library" /none
expect "another record" 1 "^tools/check-abi: $library is not a record of check-abi --renew" "$check_abi" "$library" "$library"

folder=$(mktemp -d)
trap 'rm -rf "$output" "$folder"' EXIT
mkdir "$folder/include"
cat >"$folder/include/x.h" <<'END'
#include <stddef.h>
typedef enum x_dtype {
    X_FLOAT32 = VALUE,
#ifdef NEW_VALUE
    X_FLOAT16,
#endif
    SHARD_DTYPES
} x_dtype;
typedef struct x_frozen {
    int a;
#ifdef NEW_FROZEN
    int b;
#endif
} x_frozen;
typedef struct x_options {
    size_t size;
#ifdef NEW_MIDDLE
    int between;
#endif
#ifndef GONE_FIELD
    TYPE rank;
#endif
#ifdef NEW_PADDING
    int padding;
#endif
#ifdef NEW_FIELD
    double lr, momentum;
#endif
} x_options;
typedef struct x_private x_private;
int x_first(const x_options *options, x_dtype dtype, x_private *state);
x_frozen x_second(ARGUMENT value);
int x_third(void);
int x_fourth(void);
END
mkdir "$folder/internal" # whose headers may have the public ones' names
echo 'struct x_private { PRIVATE member; };' >"$folder/internal/x.h"
cat >"$folder/x.c" <<'END'
#include "include/x.h"
#include "internal/x.h"
int x_first(const x_options *options, x_dtype dtype, x_private *state) { return options && dtype && state->member; }
x_frozen x_second(ARGUMENT value) { return (x_frozen){(int)value}; }
#ifndef GONE
int x_third(void) { return 3; }
#endif
#ifdef NEW
int x_fourth(void) { return 4; }
#endif
END

# build OPTION...: the library of x.h.
build() {
    "$@" -g -shared -fPIC "$folder/x.c" -o "$folder/x.so"
}

# changed NAME CODE PATTERN OPTIONS: the library compiled with these options, against the record.
changed() {
    name=$1 code=$2 pattern=$3 options=$4
    # shellcheck disable=SC2086 # words
    build $compiler -DVALUE=0 -DTYPE=int -DARGUMENT=int -DPRIVATE=int $options || exit 1
    expect "$name" "$code" "$pattern" "$check_abi" "$folder/x.so" "$folder/x.abi.gz" "$folder/include"
}

compiler=$*
# shellcheck disable=SC2086 # words
build $compiler -DVALUE=0 -DTYPE=int -DARGUMENT=int -DPRIVATE=int || exit 1
expect "a record" 0 "^3 functions recorded" "$check_abi" --renew "$folder/x.so" "$folder/x.abi.gz" "$folder/include"
changed "nothing" 0 "^3 functions, 3 of them recorded" ""
changed "a new function" 0 "^4 functions, 3 of them recorded" -DNEW
changed "new fields at the end of options" 0 "as recorded" -DNEW_FIELD
changed "a new enumerator, and the count" 0 "as recorded" -DNEW_VALUE
changed "an opaque type" 0 "as recorded" "-UPRIVATE -DPRIVATE=long"
changed "a function that is gone" 1 "x_third" -DGONE
changed "how to renew" 1 "run: tools/check-abi --renew" -DGONE
changed "an argument's type" 1 "x_second" "-UARGUMENT -DARGUMENT=long"
changed "a field's type" 1 "type of .* rank. changed|int rank" "-UTYPE -DTYPE=long"
changed "a field's type of the same size" 1 "int rank" "-UTYPE -DTYPE=float"
changed "a field's type, and new fields" 1 "rank" "-UTYPE -DTYPE=long -DNEW_FIELD"
changed "a field that is gone" 1 "rank" -DGONE_FIELD
changed "a field that is gone, and new fields" 1 "rank" "-DGONE_FIELD -DNEW_FIELD"
changed "a field in the middle" 1 "between" -DNEW_MIDDLE
changed "a field in the padding" 1 "padding" -DNEW_PADDING
changed "a field of another struct" 1 "x_frozen" -DNEW_FROZEN
changed "an enumerator's value" 1 "X_FLOAT32" "-UVALUE -DVALUE=1"
finish
