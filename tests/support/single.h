/* A model of one parameter w, and a step whose gradient is x: loss = sum(x w). */
#ifndef TESTS_SUPPORT_SINGLE_H
#define TESTS_SUPPORT_SINGLE_H

#include "support/ranks.h"
#include "options.h"

#include <shard/shard.h>

typedef struct single {
    shard_tensor *w;
    shard_optimizer *sgd;
} single;

static inline single make_single(int64_t size, double momentum)
{
    single s = {.w = shard_ones(SHARD_SHAPE(size), .requires_grad = true)};
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, "w", s.w));
    s.sgd = sgd_of_list(list, .lr = 0.25, .momentum = momentum);
    ck_assert_msg(s.sgd != NULL, "%s", shard_last_error());
    return s;
}

static inline void back(shard_grad_scaler *scaler, const single *s, double x)
{
    SHARD_SCOPE
        check_ok(shard_backward(shard_grad_scaler_scale(scaler, shard_sum(shard_scale(s->w, x)))));
}

#endif
