#!/bin/sh
# Calls that do not compile, and what the compiler says: options without their names, a list of something else, and in C++ the
# macros of C.
# Usage: test_refused_programs.sh INCLUDE COMPILER...
set -eu
include=$1
shift
compile() { # language, expected text ("": it compiles), call, compiler
    language=$1 wanted=$2 call=$3 result=0
    shift 3
    text=$(printf '#include <shard/shard.h>\nvoid f(shard_module *, shard_optimizer *, shard_tensor *);
        void f(shard_module *m, shard_optimizer *o, shard_tensor *x)\n{\n    (void)m, (void)o, (void)x;\n    (void)%s;\n}\n' "$call" |
        "$@" -x "$language" -I "$include" -S -o /dev/null - 2>&1) || result=1
    case $result$text in
    0*) refused=$([ -z "$wanted" ] || echo "it compiled") ;;
    *"$wanted"*) refused=$([ -n "$wanted" ] || echo "$text") ;;
    *) refused="no \"$wanted\" in: $text" ;;
    esac
    [ -z "$refused" ] || {
        echo "$language: $call: $refused"
        exit 1
    }
}

compile c '' 'shard_sgd(m, .lr = 0.1)' "$@"
for call in 'shard_sgd(m, 0.1)' 'shard_mesh_create(2, 1)' 'shard_cross_entropy(x, x, 0.1)' 'SHARD_MARGIN(0.5)' \
    'shard_clip_grad_norm(o, 1.0, 0, 2.0)' 'shard_optimizer_add_param_group(o, m, 0.5)' 'shard_grad_scaler_create(65536.0)' \
    'SHARD_SCHEDULE(SHARD_SCHEDULE_COSINE)'; do
    compile c 'options have names, as .lr = 0.1' "$call" "$@"
done
compile c 'not compatible with any' 'shard_sgd(o, .lr = 0.1)' "$@"

compile c++ '' 'shard_sgd_with(0, 0)' "$@"
for call in 'shard_cross_entropy(x, x)' 'shard_sgd(m, .lr = 0.1)' 'shard_nn_sequential(m)' 'shard_custom_op_apply(0, 0, x)'; do
    compile c++ shard_this_macro_is_for_C_call_its_function_whose_name_ends_in_with_or_of "$call" "$@"
done
