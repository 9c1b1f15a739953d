#include "training_loss.h"

#include <shard/distributed.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- buffers, which a skipped step leaves as they were ---- */

/* Tensors that a forward changes: the batch norms' running statistics and counters. */
static bool is_buffer(const shard_tensor *tensor)
{
    return !shard_requires_grad(tensor) && shard_numel(tensor) > 0;
}

shard_status training_loss_open(training_optimizers *made, const shard_tensors *state)
{
    made->buffers = shard_tensors_create();
    made->kept = shard_tensors_create();
    for (int64_t i = 0; i < shard_tensors_count(state); i++)
        if (is_buffer(shard_tensors_at(state, i)))
            shard_tensors_add(made->buffers, shard_tensors_name(state, i), shard_tensors_at(state, i));
    return shard_last_status();
}

void training_loss_begin(training_optimizers *made)
{
    made->lost = false;
    if (!made->scaler) /* no step is skipped */
        return;
    shard_tensors_destroy(made->kept);
    made->kept = shard_tensors_create();
    SHARD_SCOPE
    {
        SHARD_NO_GRAD
        {
            for (int64_t i = 0; i < shard_tensors_count(made->buffers); i++)
                shard_tensors_add(made->kept, shard_tensors_name(made->buffers, i),
                                  shard_clone(shard_tensors_at(made->buffers, i)));
        }
    }
}

shard_status training_loss_restore(training_optimizers *made)
{
    for (int64_t i = 0; i < shard_tensors_count(made->kept); i++) {
        shard_tensor *from = shard_tensors_at(made->kept, i), *to = shard_tensors_at(made->buffers, i);
        size_t bytes = (size_t)shard_numel(to) * shard_dtype_size(shard_tensor_dtype(to));
        void *values = malloc(bytes);
        if (!values)
            return shard_error(SHARD_ERROR_MEMORY, "no memory for the buffers of a skipped step");
        shard_copy_to_host(from, values, bytes);
        shard_copy_from_host(to, values, bytes);
        free(values);
    }
    return shard_last_status();
}

/* ---- losses ---- */

void training_loss_see(training_optimizers *made, shard_tensor *loss)
{
    if (made->options->non_finite == TRAINING_SKIP)
        made->lost |= !isfinite(shard_item(loss));
}

/* The lowest rank that has lost a loss, and the number of these ranks; INT64_MAX and 0: none. */
static shard_status find_lost(const training_optimizers *made, int64_t *first, int64_t *ranks)
{
    int64_t counts[2] = {made->lost ? shard_group_rank(shard_world()) : INT64_MAX, made->lost};
    SHARD_SCOPE
    {
        shard_device *host = shard_device_open("cpu");
        shard_tensor *lowest = shard_from_host(&counts[0], SHARD_SCALAR, .dtype = SHARD_INT64, .device = host);
        shard_tensor *sum = shard_from_host(&counts[1], SHARD_SCALAR, .dtype = SHARD_INT64, .device = host);
        shard_all_reduce(lowest, SHARD_MIN, shard_world());
        shard_all_reduce(sum, SHARD_SUM, shard_world());
        shard_copy_to_host(lowest, first, sizeof *first);
        shard_copy_to_host(sum, ranks, sizeof *ranks);
    }
    return shard_last_status();
}

shard_status training_loss_exchange(training_optimizers *made, int64_t *first)
{
    int64_t lowest = INT64_MAX, ranks = 0;
    shard_status status = made->options->non_finite == TRAINING_SKIP ? find_lost(made, &lowest, &ranks) : SHARD_OK;
    made->lost_somewhere = ranks > 0;
    *first = ranks > 0 ? lowest : -1;
    return status;
}

/* The scale of the loss where gradients have overflowed so often that a smaller one does not help; fairseq's --min-loss-scale. */
#define LEAST_SCALE 1e-4

shard_status training_loss_check(const training_optimizers *made, int64_t step, double loss, bool skipped, double scale)
{
    int64_t first, ranks;
    if (scale < LEAST_SCALE)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "gradients of step %" PRId64
                           " and of those before it are not finite, at a loss scale down to %g: take a "
                           "smaller --lr, a longer --warmup-epochs or --enable-amp-mode bf16",
                           step, scale);
    if (isfinite(loss) || skipped)
        return SHARD_OK;
    if (find_lost(made, &first, &ranks) != SHARD_OK)
        return shard_last_status();
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "the loss of step %" PRId64 " is %g on rank %" PRId64 " (on %" PRId64
                       " of %d ranks): take a smaller --lr or a longer --warmup-epochs; --non-finite skip leaves such steps out",
                       step, loss, first, ranks, shard_group_size(shard_world()));
}

void training_loss_describe(int64_t first, bool skipped, char *text, size_t bytes)
{
    if (first >= 0)
        snprintf(text, bytes, "  skipped: loss not finite on rank %" PRId64, first);
    else
        snprintf(text, bytes, "%s", skipped ? "  skipped: gradients not finite" : "");
}
