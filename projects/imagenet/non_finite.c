/* --non-finite: a step whose loss or gradients are NaN or infinite. */
#include "trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- buffers, which a skipped step leaves as they were ---- */

/* Tensors that a forward changes: the batch norms' running statistics and counters. */
static bool is_buffer(const shard_tensor *tensor)
{
    return !shard_requires_grad(tensor) && shard_numel(tensor) > 0;
}

shard_status non_finite_open(trainer *run)
{
    shard_tensors *state = shard_state_dict(run->model);
    run->buffers = shard_tensors_create();
    run->kept = shard_tensors_create();
    for (int64_t i = 0; i < shard_tensors_count(state); i++)
        if (is_buffer(shard_tensors_at(state, i)))
            shard_tensors_add(run->buffers, shard_tensors_name(state, i), shard_tensors_at(state, i));
    shard_tensors_destroy(state);
    return shard_last_status();
}

void non_finite_close(trainer *run)
{
    shard_tensors_destroy(run->buffers);
    shard_tensors_destroy(run->kept);
}

void non_finite_begin(trainer *run)
{
    run->lost = false;
    if (!run->scaler) /* no step is skipped */
        return;
    shard_tensors_destroy(run->kept);
    run->kept = shard_tensors_create();
    SHARD_SCOPE
    {
        SHARD_NO_GRAD
        {
            for (int64_t i = 0; i < shard_tensors_count(run->buffers); i++)
                shard_tensors_add(run->kept, shard_tensors_name(run->buffers, i), shard_clone(shard_tensors_at(run->buffers, i)));
        }
    }
}

shard_status non_finite_restore(trainer *run)
{
    for (int64_t i = 0; i < shard_tensors_count(run->kept); i++) {
        shard_tensor *from = shard_tensors_at(run->kept, i), *to = shard_tensors_at(run->buffers, i);
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

void non_finite_see(trainer *run, shard_tensor *loss)
{
    if (run->options->non_finite == NON_FINITE_SKIP)
        run->lost |= !isfinite(shard_item(loss));
}

shard_status non_finite_agree(const trainer *run, non_finite *found)
{
    int64_t counts[2] = {run->lost ? shard_group_rank(shard_world()) : INT64_MAX, run->lost};
    SHARD_SCOPE
    {
        shard_device *host = shard_device_open("cpu");
        shard_tensor *first = shard_from_host(&counts[0], SHARD_SCALAR, .dtype = SHARD_INT64, .device = host);
        shard_tensor *ranks = shard_from_host(&counts[1], SHARD_SCALAR, .dtype = SHARD_INT64, .device = host);
        shard_all_reduce(first, SHARD_MIN, shard_world());
        shard_all_reduce(ranks, SHARD_SUM, shard_world());
        shard_copy_to_host(first, &counts[0], sizeof counts[0]);
        shard_copy_to_host(ranks, &counts[1], sizeof counts[1]);
    }
    *found = (non_finite){.first = counts[0], .ranks = counts[1]};
    return shard_last_status();
}

/* The scale of the loss where gradients have overflowed so often that a smaller one does not help; fairseq's --min-loss-scale. */
#define LEAST_SCALE 1e-4

shard_status non_finite_check(const trainer *run, int64_t step, double loss, bool skipped, double scale)
{
    if (scale < LEAST_SCALE)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "gradients of step %" PRId64
                           " and of those before it are not finite, at a loss scale down to %g: take a "
                           "smaller --lr, a longer --warmup-epochs or --enable-amp-mode bf16",
                           step, scale);
    if (isfinite(loss) || skipped)
        return SHARD_OK;
    non_finite found;
    if (non_finite_agree(run, &found) != SHARD_OK)
        return shard_last_status();
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "the loss of step %" PRId64 " is %g on rank %" PRId64 " (on %" PRId64
                       " of %d ranks): take a smaller --lr or a longer --warmup-epochs; --non-finite skip leaves such steps out",
                       step, loss, found.first, found.ranks, shard_group_size(shard_world()));
}
