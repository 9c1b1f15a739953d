#include "options_torch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGENET_IMAGES 1281167 /* of ILSVRC 2012: pytorch/examples makes up as many */

static shard_status use_gpu(void *values, const char *value)
{
    options *parsed = values;
    char *end;
    long number = strtol(value, &end, 10);
    if (end == value || *end || number < 0 || number > 1023)
        return shard_error(SHARD_ERROR_ARGUMENT, "--gpu: \"%s\" is not the number of a GPU", value);
    snprintf(parsed->gpu, sizeof parsed->gpu, "cuda:%ld", number);
    parsed->training.device = parsed->gpu;
    return SHARD_OK;
}

static shard_status use_no_gpu(void *values, const char *value)
{
    options *parsed = values;
    (void)value;
    parsed->training.device = "cpu";
    return SHARD_OK;
}

static shard_status make_images_up(void *values, const char *value)
{
    options *parsed = values;
    (void)value;
    parsed->synthetic = IMAGENET_IMAGES;
    parsed->dummy = true;
    return SHARD_OK;
}

static shard_status use_float16(void *values, const char *value)
{
    options *parsed = values;
    (void)value;
    parsed->training.amp = SHARD_FLOAT16;
    return SHARD_OK;
}

/* An epoch after the first needs the training before it. */
static shard_status start_at_epoch(void *values, const char *value)
{
    (void)values;
    if (strcmp(value, "0") == 0)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "--start-epoch %s: --resume OUT/checkpoint.safetensors goes on in the epoch where it was saved",
                       value);
}

const command_foreign torch_options[TORCH_OPTIONS] = {
    {"world-size", true, "shardrun -n N, mpirun or srun start the ranks: shardrun -n N imagenet ...", NULL},
    {"rank", true, "shardrun, mpirun and srun number the ranks", NULL},
    {"local-rank", true, "shardrun, mpirun and srun number the ranks", NULL},
    {"local_rank", true, "shardrun, mpirun and srun number the ranks", NULL},
    {"dist-url", true, "ranks of shardrun, mpirun and srun find each other; on several machines use mpirun or srun", NULL},
    {"dist-backend", true, "the transport is chosen: shared memory, MPI, and NCCL between GPUs", NULL},
    {"multiprocessing-distributed", false, "start a rank for each GPU: shardrun -n N imagenet --device cuda ...", NULL},
    {"gpu", true, "write --device cuda:N, or --device cuda for each rank's own", use_gpu},
    {"no-accel", false, "write --device cpu", use_no_gpu},
    {"dummy", false, "write --synthetic 1281167", make_images_up},
    {"fp16", false, "write --enable-amp-mode fp16", use_float16},
    {"loss-scale", true, "--enable-amp-mode fp16 finds the factor of the loss itself", NULL},
    {"start-epoch", true, "--resume goes on in the epoch where the checkpoint was saved", start_at_epoch},
};
