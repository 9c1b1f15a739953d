/*
 * shard/parallel.h: data parallel training, and ZeRO, which also partitions optimizer state,
 * gradients and parameters.
 *
 * Gradients are averaged over each parameter's replica group (shard_set_replica_group) while
 * backward runs. Parameters of one dtype, device and replica group are moved into buckets,
 * flat memory of about bucket_mib that ends where a module does. Their gradients lie in
 * buckets too, and a bucket is reduced as soon as backward has filled it.
 *
 * The average is over replicas that saw different batches. Where rows were gathered, or losses
 * summed, over a group (shard_gather_from_group, shard_reduce_from_group), the gradients of its
 * ranks are summed, and averaged over the rest. So gradients equal those of one process on the
 * whole batch, if the averaged losses are means of equally many samples (otherwise:
 * shard_last_batch in data.h). A parameter's replica group has all ranks of such a group, or
 * only this one in common with it; else UNSUPPORTED.
 *
 * Rules for the ranks:
 * - Names, shapes, dtypes, the order of the parameters and which of them are frozen are equal
 *   on all replicas. A difference is an error of all ranks (MISMATCH on the rank that differs,
 *   PEER on the others) that names the rank and the parameter.
 * - Frozen parameters begin with the first replica's values and are compared like the others.
 * - A parameter that requires a gradient and that no rank's backward reaches has a gradient of
 *   zeros after it: momentum and weight decay move it, unlike in one process. Freeze what the
 *   loss leaves out.
 * - With several objects, every rank's backward reaches some parameter of each, in the same
 *   order; else an error (MISMATCH).
 */
#ifndef SHARD_PARALLEL_H
#define SHARD_PARALLEL_H

#include <shard/autograd.h>
#include <shard/distributed.h>

SHARD_BEGIN_C

/* ---- data parallel ---- */

/* As torch.nn.parallel.DistributedDataParallel. */
typedef struct shard_data_parallel shard_data_parallel;

/* Buffers (a batch norm's running statistics) after each backward that synchronizes: */
typedef enum shard_buffer_mode {
    SHARD_BUFFERS_BROADCAST = 0, /* the first replica's values, as DistributedDataParallel's broadcast_buffers */
    SHARD_BUFFERS_AVERAGE,       /* the replicas' mean; of integers, the first replica's values */
    SHARD_BUFFERS_LEAVE,         /* each rank keeps its own */
} shard_buffer_mode;

typedef enum shard_zero_partition {
    SHARD_ZERO_EVEN = 0, /* each rank has as many elements of each bucket, exactly 1/N with padding */
    SHARD_ZERO_WHOLE,    /* parameters stay whole: the largest first of those that one call partitions, each on
                            the rank that has least, the lowest of several (torch: one parameter group after another) */
} shard_zero_partition;

typedef struct shard_data_parallel_options {
    size_t size;
    int stage;                      /* of ZeRO, 0 to 3: what the ranks partition; see shard_zero_optimizer */
    shard_zero_partition partition; /* from stage 1 on */
    double bucket_mib;              /* 25 */
    bool init_sync;                 /* begin with the values of each replica group's first rank, as DDP's init_sync; true */
    bool check;                     /* compare the replicas; true */
    const shard_tensors *buffers; /* moved into flat memory, too. Frozen parameters, and tensors that require a
                                     gradient, are left out, so that shard_state_dict's list will do. Borrowed;
                                     NULL: none */
    shard_buffer_mode buffer_mode;
} shard_data_parallel_options;
#define SHARD_DATA_PARALLEL_OPTIONS_VALUES                                                                                       \
    sizeof(shard_data_parallel_options), 0, SHARD_ZERO_EVEN, 25.0, true, true, NULL, SHARD_BUFFERS_BROADCAST
#define SHARD_DATA_PARALLEL_OPTIONS_INIT                                                                                         \
    {                                                                                                                            \
        SHARD_DATA_PARALLEL_OPTIONS_VALUES                                                                                       \
    }

/* Averages the gradients of the parameters that require one now. Other parameters are left
 * alone, also when they require a gradient later. Values are compared in the first backward that
 * synchronizes. From stage 1 on the parameters are partitioned, and every optimizer that has them,
 * made before or after this, updates this rank's ranges alone.
 *
 * A parameter belongs to one engine. One that does already, of an earlier call or of
 * shard_zero_optimizer, stays with it: this is then another handle on that engine, which lives until the
 * last handle and the last optimizer that steps its ranges are destroyed. Refused (ARGUMENT) is a
 * .stage that differs from that of such a parameter; and, from stage 1 on, a parameter that
 * has a gradient: call this before backward or after shard_step. shard_step refuses (ARGUMENT) an optimizer
 * whose state is in a state dict since before this: make state dicts afterwards.
 *
 * The list is borrowed, and may be destroyed. Parameters keep their flat memory after
 * shard_data_parallel_destroy, which goes before the parameters' groups.
 * Collective over the parameters' replica groups. NULL with the error set. */
#define shard_data_parallel_create(...)                                                                                          \
    SHARD_GIVEN(                                                                                                                 \
        shard_data_parallel_create_with(SHARD_OPTIONS(shard_data_parallel_options, SHARD_DATA_PARALLEL_OPTIONS, __VA_ARGS__)))
SHARD_API shard_data_parallel *shard_data_parallel_create_with(const shard_tensors *parameters,
                                                               const shard_data_parallel_options *options);
SHARD_API void shard_data_parallel_destroy(shard_data_parallel *data_parallel);

/* While off, backward accumulates locally, as under DDP's no_sync; the next backward with it on
 * reduces the sum. A step before that moves each replica by its own gradient, so that the replicas
 * differ from then on; stage 1 refuses such a step (ARGUMENT), and stages 2 and 3 have averaged
 * each backward. Counts for all parameters of the engines. On at first. Not collective. */
SHARD_API void shard_data_parallel_set_sync(shard_data_parallel *data_parallel, bool sync);

/* ---- ZeRO ---- */

typedef struct shard_optimizer shard_optimizer;

typedef struct shard_zero_optimizer_options {
    size_t size;
    int stage;          /* 1, 2 or 3; 1 */
    shard_group *group; /* NULL: each parameter's replica group */
    shard_zero_partition partition;
    bool overlap;      /* step each bucket in backward, as soon as its gradient is there */
    double bucket_mib; /* 25 */
} shard_zero_optimizer_options;
#define SHARD_ZERO_OPTIMIZER_OPTIONS_VALUES sizeof(shard_zero_optimizer_options), 1, NULL, SHARD_ZERO_EVEN, false, 25.0
#define SHARD_ZERO_OPTIMIZER_OPTIONS_INIT                                                                                        \
    {                                                                                                                            \
        SHARD_ZERO_OPTIMIZER_OPTIONS_VALUES                                                                                      \
    }

/*
 * Partitions the optimizer's parameters over their replica groups, in place, and returns the
 * optimizer: shard_data_parallel_create with a .stage, in PyTorch's form, and with overlap. Of N ranks each updates its flat
 * range of every bucket, 1/N:
 *
 *   stage 1  and keeps the optimizer's state of that range alone;
 *   stage 2  and its gradient. A bucket's gradients have memory only while backward fills them;
 *            then they are summed into the ranks' ranges. Several backwards add up there, so that
 *            the saving stays, also with shard_data_parallel_set_sync off. shard_grad is NULL after
 *            backward. Calls for gradients take the optimizer; shard_optimizer_zero_grad clears
 *            them, shard_zero_grad of a parameter does not;
 *   stage 3  and its values. A bucket is unsharded when forward or backward needs one of its
 *            parameters, and resharded once its modules, or backward, are done with it. Where
 *            gathers run next to the computation (GPUs over NCCL), the next bucket is prefetched, in
 *            the order of the first pass. shard_save, shard_load and shard_collect_state_dict take
 *            the local ranges. Other reading gathers a bucket, which stays until its module has
 *            been used; other writing is refused (UNSUPPORTED).
 *
 * A matrix of more than 8192 rows that is larger than a bucket is streamed in row blocks of 4096
 * rows, or of as many times that as a bucket holds (the last one is up to twice as long), if
 * shard_linear uses it, once in a forward, and it requires a gradient. Then neither its gradient
 * (stage 2) nor its values (stage 3) are ever whole in memory. For a split weight this applies to
 * the local shard. A larger parameter of another kind is a bucket alone.
 *
 * What is compared: over the world stage, partition, bucket_mib and overlap, the optimizer's kind and
 * settings, and those of its parameter groups; over the replica groups what the top of this header
 * lists, and in the next backward the values that ranks have whole. Buffers are left alone: a
 * shard_data_parallel of the same parameters, without a .stage, made earlier or later, keeps them equal
 * and sets the sync of both. If it was made earlier, all of its parameters are partitioned, and all
 * optimizers step their ranges of them.
 *
 * The result is that of the same optimizer alone: to the bit in float32 over shared memory, where
 * ranks are summed in order, if no backwards are accumulated and no norms taken.
 *
 * Parameters without replicas, and frozen ones, stay whole. A parameter that is frozen now and has a
 * gradient later is an error of shard_step (ARGUMENT), as no rank averages it. `group` must contain
 * each parameter's replicas, so that the world will do for any; a part of them is refused
 * (UNSUPPORTED). Refused (ARGUMENT) is a parameter that is partitioned already, that has a gradient, or whose
 * state is in a state dict: call this before backward or after shard_step, and before
 * shard_optimizer_state_dict. Refused too is a parameter under a shard_data_parallel of which the
 * optimizer's other parameters are not: make one for all of them first, or make it after this.
 *
 * With overlap, backward steps a bucket as soon as its gradient is there, at the rates that are set
 * then, and goes on while its values are gathered. shard_step steps the rest, parameters that are not
 * partitioned, and agrees. Every backward steps, unless a shard_data_parallel of the same parameters has
 * its sync off. After a backward that fails midway some buckets have been stepped. Gradients
 * cannot be clipped or unscaled in between, and LARS and LAMB refuse it (UNSUPPORTED).
 *
 * As torch.distributed.optim.ZeroRedundancyOptimizer, with these differences: its partition is WHOLE;
 * parameters_as_bucket_view is always on; overlap_with_ddp steps from the first backward on;
 * consolidate_state_dict is shard_collect_state_dict, and not needed to save. Stages 2 and 3:
 * https://arxiv.org/abs/1910.02054.
 *
 * State that the optimizer has is kept. NULL with the error set; the optimizer is then only to be
 * destroyed. Collective over the world; in stage 3 every use of a parameter is collective over its
 * replicas. The optimizer is destroyed before the groups; parameters may live on. In stage 3 any
 * thread may destroy a model that no other thread uses, at the same place between the collectives on
 * all ranks.
 */
#define shard_zero_optimizer(...)                                                                                                \
    SHARD_GIVEN(shard_zero_optimizer_with(SHARD_OPTIONS(shard_zero_optimizer_options, SHARD_ZERO_OPTIMIZER_OPTIONS, __VA_ARGS__)))
SHARD_API shard_optimizer *shard_zero_optimizer_with(shard_optimizer *optimizer, const shard_zero_optimizer_options *options);

SHARD_END_C

#endif
