#!/bin/sh
# What compiler and linker were asked for against attacks is in each installed file, as far as they have it.
# Usage: test_hardening.sh MACHINE FLAG... -- FILE... The first file is the library.
set -eu
machine=$1 flags='' failed=0 checked=0
shift
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    flags="$flags $1"
    shift
done
[ $# -gt 1 ] || {
    echo "no files"
    exit 1
}
shift
library=$1

has() { # whether it was asked for, as a pattern
    case "$flags " in
    *\ $1\ *) ;;
    *) return 1 ;;
    esac
}
need() { # flag, what it leaves in the file, command
    has "$1" || return 0
    checked=$((checked + 1))
    sh -c "$3" needs "$file" || {
        echo "$file was made with $1 and has no $2"
        failed=1
    }
}

# Every supported compiler and linker has these.
for flag in -fstack-protector-strong -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack; do
    has "$flag" || {
        echo "nothing was made with $flag"
        failed=1
    }
done
for file; do
    need -fstack-protector-strong "call of __stack_chk_fail" 'nm -D "$1" | grep -q __stack_chk_fail'
    need "-D_FORTIFY_SOURCE=[23]" "checked call" 'nm -D "$1" | grep -q "_chk\(@\|$\)"'
    need -Wl,-z,relro "segment that is read-only after relocation" 'readelf -lW "$1" | grep -q GNU_RELRO'
    need -Wl,-z,now "mark to be bound when it is loaded" 'readelf -d "$1" | grep -q BIND_NOW'
    need -Wl,-z,noexecstack "stack that is not executable" \
        'readelf -lW "$1" | grep -q GNU_STACK && ! readelf -lW "$1" | grep GNU_STACK | grep -q E'
    [ "$machine" = x86_64 ] || continue
    need -fcf-protection=full "landing pads" 'objdump -d --no-show-raw-insn "$1" | grep -q endbr64'
    # A frame of more than a page is touched page by page: it is not taken in one step.
    need -fstack-clash-protection "large frames in steps of a page" \
        '! objdump -d --no-show-raw-insn "$1" | grep -E "sub +\\\$0x(1[0-9a-f]{3}|[2-9a-f][0-9a-f]{3}|[0-9a-f]{5,7}),%rsp" | grep -qv "\\\$0x1000,%rsp"'
done
file=$library
if [ "$machine" = x86_64 ]; then
    need -fcf-protection=full "landing pad at shard_init" \
        'objdump -d --no-show-raw-insn --disassemble=shard_init "$1" | grep -m1 -A1 "<shard_init>:" | grep -q endbr64'
    need -fstack-clash-protection "touch of a page of the stack" \
        'objdump -d --no-show-raw-insn "$1" | grep -A1 "sub *\$0x1000,%rsp" | grep -q "\(or\|mov\)q *\$0x0,(%rsp)"'
fi
echo "cases: $checked"
[ $checked -gt 0 ] || failed=1
exit $failed
