/*
 * shard/parallel.h: data parallel training, and ZeRO, which also partitions optimizer state, gradients and parameters.
 *
 * Gradients are averaged over each parameter's replica group (shard_tensor_set_replica_group) while backward runs. Parameters of
 * one dtype, device and replica group are moved into buckets, flat memory of about bucket_mib that ends where a module does.
 * A bucket's gradients are reduced as soon as backward has filled them.
 *
 * Gradients that are pending sums over a group (shard_gather_from_group, shard_reduce_from_group) are summed over it and
 * averaged over the other ranks, so that they equal those of one process on the whole batch, if the averaged losses are means
 * of equally many samples (otherwise: shard_last_batch in data.h). A parameter's replica group has all ranks of such a
 * group, or only this one (else UNSUPPORTED).
 *
 * Names, shapes, dtypes, the order of the parameters and which of them are frozen are equal on all replicas: a difference is an
 * error on all ranks that names the rank and the parameter. No rank freezes a parameter or clears its gradient alone: shard_step
 * compares this of parameters that are replicated over the world. Freeze the parameters that the loss does not use: one that no
 * rank's backward reaches has a gradient of zeros.
 * docs/data-parallel.md ("Rules for the ranks") has all rules, also for several objects.
 *
 * docs/data-parallel.md and docs/zero.md are the guides.
 */
#ifndef SHARD_PARALLEL_H
#define SHARD_PARALLEL_H

#include <shard/autograd.h>
#include <shard/distributed.h>

SHARD_BEGIN_C

/* ---- lists of parameters ---- */

/* In C the macros of data parallel training and of optimizers take a list of parameters, or a module for shard_parameters of
 * it, which shard/nn.h declares. */
typedef struct shard_module shard_module;
#ifndef __cplusplus
typedef struct shard_parameter_list {
    const shard_tensors *list;
    shard_tensors *made; /* of a module: destroyed after the call */
} shard_parameter_list;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wnested-externs"
#pragma GCC diagnostic ignored "-Wredundant-decls"
static inline shard_parameter_list shard_list_of_module(shard_module *module)
{
    extern shard_tensors *shard_parameters(shard_module *);
    shard_tensors *made = shard_parameters(module);
    return (shard_parameter_list){made, made};
}
#pragma GCC diagnostic pop

static inline shard_parameter_list shard_list_of_tensors(const shard_tensors *list)
{
    return (shard_parameter_list){list, NULL};
}

static inline void shard_list_end(const shard_parameter_list *parameters)
{
    shard_tensors_destroy(parameters->made);
}
#endif
#define SHARD_PARAMETERS(of)                                                                     \
    _Generic((of), shard_module *: shard_list_of_module, shard_tensors *: shard_list_of_tensors, \
             const shard_tensors *: shard_list_of_tensors)(of)
#define SHARD_OF_PARAMETERS(function, type, defaults, ...) SHARD_OF_PARAMETERS_(function, type, defaults, __VA_ARGS__, )
#define SHARD_OF_PARAMETERS_(function, type, defaults, parameters, ...)                                                          \
    SHARD_GIVEN(shard_parameter_list shard_given_list __attribute__((cleanup(shard_list_end))) = SHARD_PARAMETERS(parameters);   \
                function(shard_given_list.list, &(type)SHARD_FIELDS(type, defaults, __VA_ARGS__)))

/* ---- data parallel ---- */

/* As torch.nn.parallel.DistributedDataParallel. */
typedef struct shard_data_parallel shard_data_parallel;

/* Buffers (a batch norm's running statistics) after each backward that synchronizes: */
typedef enum shard_buffer_mode {
    SHARD_BUFFERS_BROADCAST = 0, /* the first replica's values, as DistributedDataParallel's broadcast_buffers */
    SHARD_BUFFERS_AVERAGE, /* the replicas' mean, rounded: equal values may change in the last bit; of integers, as BROADCAST */
    SHARD_BUFFERS_LEAVE,   /* each rank keeps its own */
} shard_buffer_mode;

typedef enum shard_zero_partition {
    SHARD_ZERO_EVEN = 0, /* each rank has the same number of elements of each bucket, exactly 1/N with padding; in stage 1 whole
                            rows of a classifier's weight, so that the last ranks may have fewer, or none */
    SHARD_ZERO_WHOLE,    /* each rank has whole parameters: those of one call are assigned from the largest to the smallest,
                            each to the rank with the fewest elements so far, the lowest rank of several (torch: one parameter
                            group after another). A classifier's bias goes with its weight. */
} shard_zero_partition;

typedef struct shard_data_parallel_options {
    size_t size;
    int stage;                      /* of ZeRO, 0 to 3: what the ranks partition; see shard_zero_optimizer */
    shard_zero_partition partition; /* from stage 1 on */
    double bucket_mib;              /* 0 to 1e9; 0: a bucket for each parameter. Default: 25. */
    bool init_sync;                 /* begin with the values of each replica group's first rank, as in DDP. Default: true. */
    bool check;                     /* compare the replicas. Default: true. */
    const shard_tensors *buffers;   /* moved into flat memory, too. The parameters, frozen ones included, and tensors that
                                       require a gradient, are left out, so that shard_state_dict's list will do. A frozen
                                       tensor that is not one of the parameters is a buffer. In the same order on all
                                       ranks. Borrowed; NULL: none */
    shard_buffer_mode buffer_mode;  /* LEAVE: the buffers do not move, nor does .init_sync send them */
} shard_data_parallel_options;
#define SHARD_DATA_PARALLEL_OPTIONS_VALUES                                                                                       \
    sizeof(shard_data_parallel_options), 0, SHARD_ZERO_EVEN, 25.0, true, true, NULL, SHARD_BUFFERS_BROADCAST
#define SHARD_DATA_PARALLEL_OPTIONS_INIT {SHARD_DATA_PARALLEL_OPTIONS_VALUES}

/* Averages the gradients of the parameters that require one now; the others are never averaged. The replicas' values are
 * compared in the first backward that synchronizes; where a rank fails before that, in the next one; in stage 3 without
 * .init_sync in this call, so that values that are loaded later need .check = false. From stage 1 on the parameters are
 * partitioned, and every optimizer that has them, made before or after this call, updates this rank's flat ranges alone.
 *
 * Errors: ARGUMENT, from stage 1 on a parameter that an earlier call or shard_zero_optimizer has taken with another stage, or
 * that has a gradient: make the call before backward or after shard_step. shard_step refuses an optimizer whose state is in a
 * state dict from before this call (ARGUMENT). The list is borrowed; the macro takes a module, too. The caller destroys the
 * object, before the parameters' groups. NULL with the error set, on all ranks of each replica group. docs/data-parallel.md
 * ("Lifetime"). Collective over the parameters' replica groups. */
#define shard_data_parallel_create(...)                                                                                          \
    SHARD_OF_PARAMETERS(shard_data_parallel_create_with, shard_data_parallel_options, SHARD_DATA_PARALLEL_OPTIONS, __VA_ARGS__)
SHARD_API shard_data_parallel *shard_data_parallel_create_with(const shard_tensors *parameters,
                                                               const shard_data_parallel_options *options);
/* Switches synchronization on in its engines, which the optimizers or other objects may keep. NULL is fine. Not collective. */
SHARD_API void shard_data_parallel_destroy(shard_data_parallel *data_parallel);

/* While off, backward accumulates locally, as under DistributedDataParallel's no_sync; the next backward with it on reduces the
 * sum. A step while it is off moves each replica by its local gradient; stage 1 refuses such a step (ARGUMENT), and
 * stages 2 and 3 average in each backward. Holds for all parameters of the engines. On at first. Not collective. */
SHARD_API void shard_data_parallel_set_sync(shard_data_parallel *data_parallel, bool sync);

/* Compares each tensor of the list, bit for bit, over its replica group: parameters and buffers of shard_state_dict, optimizer
 * state of shard_optimizer_state_dict. Of partitioned tensors (ZeRO) no rank has a replica, and they are left out. The list is in
 * the same order on all ranks. Errors, with one text on all ranks: MISMATCH on the replicas of the first tensor that differs,
 * PEER on all other ranks. Values are not changed. As Megatron-LM's --check-weight-hash-across-dp-replicas-interval. Collective
 * over the world. docs/errors.md ("Values that are not finite, and replicas that differ"). */
SHARD_API SHARD_CHECKED shard_status shard_check_replicas(const shard_tensors *tensors);

/* ---- ZeRO ---- */

typedef struct shard_optimizer shard_optimizer;

typedef struct shard_zero_optimizer_options {
    size_t size;
    int stage; /* 1, 2 or 3. Default: 1. */
    /* Is checked only, to contain each parameter's replicas (NULL and the world do): a parameter is partitioned over all of
     * them. */
    shard_group *group;
    shard_zero_partition partition;
    bool overlap;      /* step each bucket in backward, as soon as its gradient is there */
    double bucket_mib; /* Default: 25. */
} shard_zero_optimizer_options;
#define SHARD_ZERO_OPTIMIZER_OPTIONS_VALUES sizeof(shard_zero_optimizer_options), 1, NULL, SHARD_ZERO_EVEN, false, 25.0
#define SHARD_ZERO_OPTIMIZER_OPTIONS_INIT {SHARD_ZERO_OPTIMIZER_OPTIONS_VALUES}

/* Partitions the optimizer's parameters over their replica groups, in place, and returns the optimizer: PyTorch's form of
 * shard_data_parallel_create with a .stage, and with overlap. Each rank updates its flat range of every bucket, and keeps only
 * that range of the optimizer's state (stage 1), of the gradients (from stage 2 on) and of the parameters (stage 3).
 * docs/zero.md has the stages, overlap, accumulation, and what ranks compare. Call it before backward, or after shard_step, and
 * before state dicts are made. Destroy the optimizer before the groups.
 * NULL with the error set; the optimizer can then only be destroyed. Errors: ARGUMENT, a parameter that is partitioned already,
 * that has a gradient, or whose state is in a state dict, or parameters under several shard_data_parallel objects; UNSUPPORTED,
 * a .group with only some of a parameter's replicas, LARS or LAMB with overlap, a row-wise optimizer without SHARD_ZERO_WHOLE;
 * MISMATCH, ranks that differ. Collective over the world; in stage 3 every use of a parameter is, over its replicas. As
 * torch.distributed.optim.ZeroRedundancyOptimizer. */
#define shard_zero_optimizer(...)                                                                                                \
    SHARD_GIVEN(shard_zero_optimizer_with(SHARD_OPTIONS(shard_zero_optimizer_options, SHARD_ZERO_OPTIMIZER_OPTIONS, __VA_ARGS__)))
SHARD_API shard_optimizer *shard_zero_optimizer_with(shard_optimizer *optimizer, const shard_zero_optimizer_options *options);

SHARD_END_C

#endif
