#!/bin/sh
# SHARD_WARN_UNUSED_STATUS: a call whose status is not used is a warning, in C and C++, and none without it.
# Usage: test_unused_status.sh INCLUDE COMPILER...
set -eu
include=$1
shift
compile() { # expected result, language, options
    wanted=$1 language=$2
    shift 2
    result=0
    printf '#include <shard/shard.h>\nvoid f(void);\nvoid f(void)\n{\n    %s\n}\n' "$call" |
        "$@" -x "$language" -I "$include" -Werror=unused-result -S -o /dev/null - 2>/dev/null || result=1
    [ $result = "$wanted" ] || {
        echo "$language: \"$call\" with $*: compiled with $result, not $wanted"
        exit 1
    }
}
for language in c c++; do
    call='shard_backward(0);'
    compile 0 $language "$@"
    compile 1 $language "$@" -DSHARD_WARN_UNUSED_STATUS
    call='if (shard_backward(0) != SHARD_OK) return;'
    compile 0 $language "$@" -DSHARD_WARN_UNUSED_STATUS
    call='shard_error(SHARD_ERROR_ARGUMENT, "of the program"); shard_last_status();'
    compile 0 $language "$@" -DSHARD_WARN_UNUSED_STATUS
done
for function in 'shard_save(0, "f", 0)' 'shard_load(0, "f", .local = true)' 'shard_clip_grad_norm(0, 1.0, 0)' \
    'shard_optimizer_add_param_group(0, (shard_module *)0)' 'shard_nn_init_kaiming_uniform(0)' \
    'shard_head_backward(0, 0, 0, 0, 0)'; do
    call="$function;"
    compile 0 c "$@"
    compile 1 c "$@" -DSHARD_WARN_UNUSED_STATUS
    call="if ($function != SHARD_OK) return;"
    compile 0 c "$@" -DSHARD_WARN_UNUSED_STATUS
done
