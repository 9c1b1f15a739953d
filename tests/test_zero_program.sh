#!/bin/sh
# test_zero_program.sh SHARDRUN ZERO: the command line of projects/zero.
shardrun=$1 zero=$2
. "$(dirname "$0")/support/expect.sh"

small="--layers 2 --width 8 --batch 1"
for help in --help -h "--stage 1 --help"; do
    # shellcheck disable=SC2086 # words
    expect "$help" 0 "^ +--bucket-mib X " "$zero" $help
done
expect "help of two ranks" 0 "^Usage: zero " "$shardrun" -n 2 "$zero" --help
# shellcheck disable=SC2086 # words
expect "one stage" 0 "^ +stage 2$" "$zero" $small --stage 2
# shellcheck disable=SC2086 # words
expect "a bucket's size" 0 "^after the last " "$shardrun" -n 2 "$zero" $small --bucket-mib=0.5 --steps=3

expect "an unknown option" 1 'there is no option "--hlep"' "$zero" --hlep
expect "an unknown letter" 1 'there is no option "-x"' "$zero" --stage 1 -x
expect "an unknown option, of two ranks" 1 'there is no option "--hlep"' "$shardrun" -n 2 "$zero" --hlep
expect "a word" 1 '"two" belongs to no option' "$zero" --layers 2 two
expect "a value too many" 1 'there is no option "--memory-report=1", or it takes no value' "$zero" --memory-report=1
expect "no value" 1 'the option "--width" needs a value' "$zero" --width
for wrong in "layers 0" "layers x" "width 12abc" "width 99999999999999999999" "batch 1.5" "steps -1"; do
    # shellcheck disable=SC2086 # words
    expect "$wrong" 1 "--${wrong% *}: \"${wrong#* }\" is not a whole number from" "$zero" --$wrong
done
for wrong in two -7 4; do
    expect "stage $wrong" 1 "--stage: there is no \"$wrong\"" "$zero" --stage "$wrong"
done
for wrong in -3 0 nan abc 1e9 1x; do
    expect "bucket-mib $wrong" 1 "--bucket-mib: \"$wrong\" is not a number from" "$zero" --bucket-mib "$wrong"
done
finish
