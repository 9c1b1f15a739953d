/*
 * --cuda-graph: a step is captured once and replayed for each full batch. A shorter batch, or one with damaged
 * images, is stepped eagerly, with the same bits.
 */
#include "trainer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EAGER_STEPS = 2 }; /* eager steps before the capture: they make gradients, states and the plans of CUDA's libraries */

struct step_graph {
    shard_graph *graph;            /* NULL: not captured yet */
    shard_tensor *images, *labels; /* static inputs of the captured step */
    shard_tensor *loss, *ranking;  /* of the last replay */
    int64_t eager;                 /* full batches since the run began */
};

static shard_status check(const trainer *run, const shard_device *device)
{
    const options *wanted = run->options;
    int ranks = shard_group_size(shard_world());
    if (strncmp(shard_device_name(device), "cuda", 4) != 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "--cuda-graph: the device is %s: only a GPU's work can be captured (--device cuda)",
                           shard_device_name(device));
    if (ranks > 1)
        return shard_error(SHARD_ERROR_ARGUMENT, "--cuda-graph is for one rank, but there are %d: leave it out", ranks);
    const char *other = wanted->training.amp == SHARD_FLOAT16
                            ? "--enable-amp-mode fp16, whose gradient scaler decides on the host; take bf16"
                        : wanted->training.non_finite == TRAINING_SKIP ? "--non-finite skip, which decides on the host"
                        : wanted->training.zero                        ? "--enable-zero-optim"
                        : wanted->accumulate > 1                       ? "--accumulate"
                                                                       : NULL;
    if (other)
        return shard_error(SHARD_ERROR_ARGUMENT, "--cuda-graph cannot be combined with %s", other);
    return SHARD_OK;
}

shard_status graph_open(trainer *run)
{
    int64_t n = run->options->training.batch, side = run->options->image_size;
    shard_device *device = shard_device_open(NULL);
    shard_status status = device ? check(run, device) : shard_last_status();
    if (status != SHARD_OK)
        return status;
    struct step_graph *made = calloc(1, sizeof *made);
    if (!made)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for --cuda-graph");
    run->graph = made;
    made->images = shard_keep(shard_zeros(SHARD_SHAPE(n, side, side, 3), .dtype = SHARD_UINT8));
    made->labels = shard_keep(shard_zeros(SHARD_SHAPE(n), .dtype = SHARD_INT64));
    return shard_last_status();
}

void graph_close(trainer *run)
{
    struct step_graph *graph = run->graph;
    if (!graph)
        return;
    shard_graph_destroy(graph->graph);
    shard_release(graph->images);
    shard_release(graph->labels);
    shard_release(graph->loss);
    shard_release(graph->ranking);
    free(graph);
    run->graph = NULL;
}

bool graph_takes(const trainer *run, const loader_batch *batch)
{
    struct step_graph *graph = run->graph;
    return graph && batch && batch->size == run->options->training.batch && batch->bad == 0 && ++graph->eager > EAGER_STEPS;
}

/* The captured step: from the images to the new parameters. The loss is divided as for an eager step. */
static void compute(trainer *run)
{
    struct step_graph *graph = run->graph;
    SHARD_SCOPE {
        shard_tensor *loss, *ranking;
        batch_compute(run, graph->images, graph->labels, run->options->label_smoothing, &loss, &ranking);
        graph->loss = shard_keep(loss);
        graph->ranking = shard_keep(ranking);
        shard_backward(shard_scale(loss, 1.0 / (double)run->options->training.batch));
    }
    training_optimizers_step(&run->base.optimizers);
}

static shard_status capture(trainer *run)
{
    struct step_graph *graph = run->graph;
    graph->graph = shard_graph_begin(shard_device_open(NULL));
    if (!graph->graph)
        return shard_last_status();
    compute(run);
    shard_status status = shard_graph_end(graph->graph);
    if (status == SHARD_OK)
        progress_say(&run->base.progress, "captured a step in a CUDA graph of %" PRId64 " nodes",
                     shard_graph_nodes(graph->graph));
    return status;
}

/* Copies the batch to the static tensors. */
static shard_status copy_batch(const struct step_graph *graph, const loader_batch *batch)
{
    shard_status status =
        shard_copy_from_host(graph->images, batch->images, (size_t)shard_numel(graph->images) * sizeof *batch->images);
    if (status == SHARD_OK)
        status = shard_copy_from_host(graph->labels, batch->labels, (size_t)shard_numel(graph->labels) * sizeof *batch->labels);
    return status == SHARD_OK ? shard_event_record(batch->copied) : status;
}

shard_status graph_step(trainer *run, const loader_batch *batch, totals *counts)
{
    struct step_graph *graph = run->graph;
    shard_status status = copy_batch(graph, batch);
    if (status == SHARD_OK && !graph->graph)
        status = capture(run);
    if (status == SHARD_OK)
        status = shard_graph_replay(graph->graph);
    return status == SHARD_OK ? batch_put(run, batch, graph->loss, graph->ranking, counts) : status;
}
