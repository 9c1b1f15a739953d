/* Options in tests: tables of them, and optimizers of lists that are made for them alone. */
#ifndef TESTS_SUPPORT_OPTIONS_H
#define TESTS_SUPPORT_OPTIONS_H

#include <shard/optim.h>

/* Of shard_zero_optimizer, in tables: 0 is the default. */
typedef struct zero_way {
    int stage;
    shard_group *group;
    shard_zero_partition partition;
    bool overlap;
    double bucket_mib;
} zero_way;

static inline shard_optimizer *zero_with(shard_optimizer *optimizer, zero_way way)
{
    shard_zero_optimizer_options options = SHARD_ZERO_OPTIMIZER_OPTIONS_INIT;
    options.stage = way.stage ? way.stage : options.stage;
    options.group = way.group;
    options.partition = way.partition;
    options.overlap = way.overlap;
    options.bucket_mib = way.bucket_mib > 0 ? way.bucket_mib : options.bucket_mib;
    return shard_zero_optimizer_with(optimizer, &options);
}

/* A table sets fields over SHARD_X_OPTIONS_VALUES. */
#pragma GCC diagnostic ignored "-Woverride-init"

/* What the macro makes of the list, which is destroyed then: sgd_of_list(list_of("w", w), .lr = 0.1). */
#define WITH_LIST(make, of, ...)                             \
    ({                                                       \
        shard_tensors *list_of_it = (of);                    \
        __auto_type made_of_it = make(list_of_it, ##__VA_ARGS__); \
        shard_tensors_destroy(list_of_it);                   \
        made_of_it;                                          \
    })
#define sgd_of_list(list, ...) WITH_LIST(shard_sgd, list, ##__VA_ARGS__)
#define adam_of_list(list, ...) WITH_LIST(shard_adam, list, ##__VA_ARGS__)
#define adamw_of_list(list, ...) WITH_LIST(shard_adamw, list, ##__VA_ARGS__)
#define lars_of_list(list, ...) WITH_LIST(shard_lars, list, ##__VA_ARGS__)
#define lamb_of_list(list, ...) WITH_LIST(shard_lamb, list, ##__VA_ARGS__)
#define rowwise_adagrad_of_list(list, ...) WITH_LIST(shard_rowwise_adagrad, list, ##__VA_ARGS__)
#define rowwise_adam_of_list(list, ...) WITH_LIST(shard_rowwise_adam, list, ##__VA_ARGS__)

#define add_group_of(optimizer, of, ...)                                                                      \
    ({                                                                                                        \
        shard_tensors *list_of_it = (of);                                                                     \
        shard_status status_of_it = shard_optimizer_add_param_group(optimizer, list_of_it, ##__VA_ARGS__);    \
        shard_tensors_destroy(list_of_it);                                                                    \
        status_of_it;                                                                                         \
    })

/* The same of options in a variable. */
#define WITH_LIST_AND(make, of, options)                            \
    ({                                                              \
        shard_tensors *list_of_it = (of);                           \
        shard_optimizer *made_of_it = make(list_of_it, options);    \
        shard_tensors_destroy(list_of_it);                          \
        made_of_it;                                                 \
    })

#endif
