#!/bin/sh
# What compiler and linker were asked for against attacks is in the finished library, as far as they have it.
# Usage: test_hardening.sh LIBRARY MACHINE FLAG...
set -eu
library=$1 machine=$2
shift 2
failed=0
need() { # flag, what it leaves, command
    case " $flags " in
    *" $1 "*) ;;
    *) return 0 ;;
    esac
    sh -c "$3" needs "$library" || {
        echo "$library was compiled with $1 and has no $2"
        failed=1
    }
}
flags=$*
need -fstack-protector-strong "call of __stack_chk_fail" 'nm -D "$1" | grep -q __stack_chk_fail'
need -D_FORTIFY_SOURCE=3 "checked call" 'nm -D "$1" | grep -q "__v\?snprintf_chk"'
need -Wl,-z,relro "segment that is read-only after relocation" 'readelf -lW "$1" | grep -q GNU_RELRO'
need -Wl,-z,now "mark to be bound when it is loaded" 'readelf -d "$1" | grep -q BIND_NOW'
need -Wl,-z,noexecstack "stack that is not executable" '! readelf -lW "$1" | grep GNU_STACK | grep -q E'
[ "$machine" != x86_64 ] || need -fcf-protection=full "landing pad at shard_init" \
    'objdump -d --no-show-raw-insn --disassemble=shard_init "$1" | grep -m1 -A1 "<shard_init>:" | grep -q endbr64'
exit $failed
