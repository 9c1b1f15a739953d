/*
 * shard/distributed.h: the job's ranks, meshes of groups, collectives on tensors with
 * their adjoints, and data parallel training.
 */
#ifndef SHARD_DISTRIBUTED_H
#define SHARD_DISTRIBUTED_H

#include <shard/autograd.h>
#include <shard/comm.h>

/* ---- the job ---- */

/* Joins the other ranks of the job, which shardrun, mpirun or srun started; as
 * torch.distributed.init_process_group. argc and argv may be NULL. A process calls it once: a second call, also after
 * shard_finalize, is an error (ARGUMENT), as is a malformed value of an environment variable of the library.
 * Collective over all ranks, with the deadline SHARD_TIMEOUT (docs/errors.md). */
SHARD_API shard_status shard_init(int *argc, char ***argv);

/* Leaves the job. Prints the thread's error, if there is one (an error that all ranks have is printed by rank 0 alone),
 * sends it to the other ranks, and returns 1, else 0: `return shard_finalize();`. Waits for the GPU if one was opened, so
 * that its errors count, and for the other ranks, with the deadline SHARD_TIMEOUT (docs/errors.md). Groups are not used
 * afterwards; a kept pointer to the world is a group of this rank alone. A second call does nothing. A rank that
 * ends by exit without this call is an error of the job. */
SHARD_API int shard_finalize(void);

/* The group of all ranks. NULL, which stands for this rank alone, before shard_init and after shard_finalize. Belongs
 * to the library. Not collective. */
SHARD_API shard_group *shard_world(void);

/* ---- meshes ---- */

/*
 * The world's ranks in a grid of named axes, as PyTorch's DeviceMesh. The last axis varies fastest:
 * with axes data 2 x model 4, ranks 0 to 3 are one model group, ranks 0 and 4 one data group.
 * A layer is split over the group along an axis. The ranks with the same coordinate along that axis hold
 * the same shard of it: they are its replica group.
 */
typedef struct shard_mesh shard_mesh;

#define SHARD_MESH_AXES 4

typedef struct shard_mesh_axis {
    const char *name; /* up to 15 characters; read in the call */
    int size;         /* ranks along it; 0, for one axis at most: the ranks that the others leave */
} shard_mesh_axis;

typedef struct shard_mesh_options {
    int reserved;
    int model;                             /* ranks along the axis "model", the last one; 0 is 1 */
    int data;                              /* ranks along the axis "data", the first one; 0: the world's size / model */
    shard_mesh_axis axes[SHARD_MESH_AXES]; /* in place of these two: .axes = {{"data", 2}, {"expert", 2}, {"model", 2}} */
} shard_mesh_options;

/* The product of the sizes must be the world's size (ARGUMENT). Names and sizes must be the same on all ranks
 * (MISMATCH). Collective over the world. Destroyed by shard_mesh_destroy after everything that is
 * placed on its groups. */
#define shard_mesh_create(...) shard_mesh_create_with((shard_mesh_options){.reserved = 0, __VA_ARGS__})
SHARD_API shard_mesh *shard_mesh_create_with(shard_mesh_options options);
SHARD_API void shard_mesh_destroy(shard_mesh *mesh);

/* The ranks that differ from this one along the axis alone; as DeviceMesh.get_group. Belongs to the mesh. NULL with
 * the error set (ARGUMENT) where the mesh has no such axis. */
SHARD_API shard_group *shard_mesh_group(const shard_mesh *mesh, const char *axis);
/* The ranks with this rank's coordinate along the axis: the replicas of what is split over it. Belongs to the mesh. NULL
 * with the error set (ARGUMENT) where the mesh has no such axis. */
SHARD_API shard_group *shard_mesh_replica_group(const shard_mesh *mesh, const char *axis);
/* This rank's place along the axis, from 0 on; as DeviceMesh.get_local_rank. -1 with the error set (ARGUMENT) where the
 * mesh has no such axis. */
SHARD_API int shard_mesh_coordinate(const shard_mesh *mesh, const char *axis);

/* shard_mesh_group(mesh, "model") and shard_mesh_group(mesh, "data"); of NULL NULL, without an error. */
SHARD_API shard_group *shard_mesh_model_group(const shard_mesh *mesh);
SHARD_API shard_group *shard_mesh_data_group(const shard_mesh *mesh);

/*
 * ---- collectives on tensors, with their adjoints; all collective over group ----
 *
 * A group of one rank (or NULL) returns the input as a view.
 *
 * The result of a gather or a reduction is identical on every rank, and so is the loss that is computed from it.
 * The gradient of a leaf before it is then a pending sum over the group: each rank has the summand of the local rows,
 * columns or terms. shard_data_parallel takes that sum; without it,
 * shard_all_reduce(shard_grad(leaf), SHARD_SUM, group) does. A leaf that is used both before and after brings
 * the gradient of the latter use in equal parts. The gradient of a leaf that is split over the group is that of the
 * local shard and needs no sum. docs/data-parallel.md has examples.
 *
 * Groups that are gathered or summed over in one step have the same ranks, or this rank alone in common, as the
 * groups of a mesh have; a gradient over other groups is refused (UNSUPPORTED).
 */

/* x, unchanged; x is identical on all ranks of the group. For an input that the ranks use differently, as that of a
 * column-parallel layer. The gradient of x is that of one process: summands of the ranks are added over the group, once;
 * a gradient that is complete on each rank is not added. If the loss depends on something that is split, gathered or
 * summed over the group (without another copy in between), it is one loss of all ranks, and its other terms are
 * taken to be identical on them. Otherwise each rank has a loss, and the gradient is that of the sum of these losses.
 * As torchshard.distributed.copy and Megatron's copy_to_tensor_model_parallel_region. */
SHARD_API shard_tensor *shard_copy_to_group(shard_tensor *x, shard_group *group);

/* The local shard of x, which is identical on all ranks, along dim (negative: from the end), with the ranges of
 * shard_split_range: a split tensor. The forward does not communicate; the backward gathers. The values are those of
 * shard_slice(x, dim, ranks, rank). As torchshard.distributed.scatter. */
SHARD_API shard_tensor *shard_scatter_to_group(shard_tensor *x, int dim, shard_group *group);

/* The sum of the ranks' x, on every rank. x is PARTIAL over group, or local and taken as this rank's summand. The
 * backward passes the gradient on unchanged. Any dtype; integers wrap around. As torchshard.distributed.reduce
 * (an all-reduce). */
SHARD_API shard_tensor *shard_reduce_from_group(shard_tensor *x, shard_group *group);

/* The ranks' x concatenated along dim (negative: from the end), on every rank. x is split along dim over group, or local
 * and taken as this rank's shard; shards may be of different sizes. The backward takes this rank's range of the gradient;
 * a reduce-scatter if the gradient is PARTIAL (of a layer that is split over the group). Any dtype. As
 * torchshard.distributed.gather (an all-gather). */
SHARD_API shard_tensor *shard_gather_from_group(shard_tensor *x, int dim, shard_group *group);

/* ---- collectives on tensors in place, without gradients; collective over group ---- */

/* Replace x by the sum, maximum or minimum of the ranks' x, or by that of rank `root`; as torch.distributed.all_reduce and
 * broadcast. SHARD_SUM of a leaf's gradient takes its pending sums over group, and over groups whose ranks are all
 * in it. */
SHARD_API shard_status shard_all_reduce(shard_tensor *x, shard_reduce_op op, shard_group *group);
SHARD_API shard_status shard_broadcast(shard_tensor *x, int root, shard_group *group);

/* ---- which samples a rank trains on ---- */

/*
 * Gives each rank its samples of every batch of an epoch. An epoch is the data set in an order that depends on the seed and
 * the epoch only; step s takes positions s * batch on, divided in order and as evenly as possible over the ranks of a
 * group. So a step has the same samples on any number of ranks, and a run resumes from two numbers, epoch and step.
 *
 * With shard_mesh_data_group the ranks of one model group see the same samples, and model groups different ones; with the
 * world each rank sees its own. As PyTorch's DistributedSampler, and the DistributedGroupSampler that TorchShard names.
 */
typedef struct shard_group_sampler shard_group_sampler;

/*
 * For steps with a different number of samples on each rank: the last one of an epoch or, with EXACT, a batch that the ranks
 * do not divide. The average of mean losses is right with PAD and DROP. With EXACT each rank takes the sum over its samples,
 * divided by the average number of samples of a rank (docs/data-parallel.md):
 *     loss = shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM);
 *     loss = shard_scale(loss, (double)shard_group_size(data_group) / (double)shard_group_sampler_last_batch_size(sampler));
 */
typedef enum shard_last_batch {
    SHARD_LAST_BATCH_PAD = 0, /* samples from the epoch's beginning once more, as DistributedSampler */
    SHARD_LAST_BATCH_EXACT,   /* every sample once: local batches differ by one, some may be empty */
    SHARD_LAST_BATCH_DROP,    /* at most members - 1 samples are left out, as with its drop_last */
} shard_last_batch;

typedef struct shard_group_sampler_options {
    int reserved;
    int64_t batch;      /* of a step, of all members together; 0: one sample each */
    shard_group *group; /* whose members see different samples; NULL: */
    int members, member; /* as DistributedSampler's num_replicas and rank; members 0 is 1 */
    bool shuffle;        /* else in order */
    uint64_t seed;
    shard_last_batch last_batch;
} shard_group_sampler_options;

/* A sampler of a data set of `samples`, at the beginning of epoch 0. NULL with the error set: ARGUMENT, for example a batch
 * that PAD and DROP cannot divide evenly. Not collective, but arguments must be equal on all ranks. */
#define shard_group_sampler_create(...) \
    shard_group_sampler_create_with(SHARD_WITH(shard_group_sampler_options, __VA_ARGS__))
SHARD_API shard_group_sampler *shard_group_sampler_create_with(int64_t samples, shard_group_sampler_options options);
SHARD_API void shard_group_sampler_destroy(shard_group_sampler *sampler);

/* Steps of an epoch, equal on all ranks. 0 for NULL. */
SHARD_API int64_t shard_group_sampler_steps(const shard_group_sampler *sampler);
/* The largest number of samples of this rank in a step: the size of shard_group_sampler_next's array. 0 for NULL. */
SHARD_API int64_t shard_group_sampler_max_local_batch(const shard_group_sampler *sampler);

/* Writes this rank's samples of the next step into samples, [shard_group_sampler_max_local_batch], and their number into
 * *count. False, with *count 0, after the epoch's last step, and with the error set if an argument is NULL. Not
 * collective. */
SHARD_API bool shard_group_sampler_next(shard_group_sampler *sampler, int64_t *samples, int64_t *count);

/* The number of samples of the last step that shard_group_sampler_next has returned, of all ranks together; samples that
 * PAD repeats count again. 0 at the beginning of an epoch and for NULL. */
SHARD_API int64_t shard_group_sampler_last_batch_size(const shard_group_sampler *sampler);

/* Continues at the beginning of an epoch, 0 or more (else ARGUMENT). As DistributedSampler.set_epoch. */
SHARD_API shard_status shard_group_sampler_set_epoch(shard_group_sampler *sampler, int64_t epoch);
/* The epoch, and the next step in it (shard_group_sampler_steps at the epoch's end); and a call that continues from such a
 * position. Errors: ARGUMENT, no such epoch or step, as of another data set or batch; the position is unchanged then. */
SHARD_API int64_t shard_group_sampler_epoch(const shard_group_sampler *sampler);
SHARD_API int64_t shard_group_sampler_step(const shard_group_sampler *sampler);
SHARD_API shard_status shard_group_sampler_seek(shard_group_sampler *sampler, int64_t epoch, int64_t step);

/* For loaders that read ahead, from any thread: this rank's range of positions of a step (0 <= step < steps), and the
 * sample at a position (0 or more) of an epoch. {0, 0} and -1 with the error set: no such step, a negative position,
 * an empty data set, NULL. */
SHARD_API shard_range shard_group_sampler_local_range(const shard_group_sampler *sampler, int64_t step);
SHARD_API int64_t shard_group_sampler_sample_at(const shard_group_sampler *sampler, int64_t epoch, int64_t position);

/* ---- data parallel ---- */

/*
 * Averages gradients over each parameter's replica group while backward runs, as
 * torch.nn.parallel.DistributedDataParallel. Parameters of one dtype and replica group are moved into buckets of about
 * bucket_mib, which are reduced as soon as backward has filled them. Gradients that are pending sums over a group
 * (shard_gather_from_group, shard_reduce_from_group) are summed over it and averaged over the other ranks, so that they
 * equal those of one process on the whole batch. A parameter's replica group has all ranks of such a group, or only this one
 * (else UNSUPPORTED). docs/data-parallel.md has examples, and the rules for parameters that backward does not reach.
 */
typedef struct shard_data_parallel shard_data_parallel;

/* Buffers (a batch norm's running statistics) after each backward that synchronises. */
typedef enum shard_buffer_mode {
    SHARD_BUFFERS_BROADCAST = 0, /* the first replica's values, as DistributedDataParallel's broadcast_buffers */
    SHARD_BUFFERS_AVERAGE,       /* the replicas' mean; of integers, the first replica's */
    SHARD_BUFFERS_LEAVE,         /* each rank keeps its own */
} shard_buffer_mode;

typedef struct shard_data_parallel_options {
    int reserved;
    double bucket_mib; /* 0 is 25 */
    bool no_broadcast; /* do not begin with the values of each replica group's first rank */
    bool no_check;     /* do not compare the replicas; see below */
    const shard_tensors *buffers; /* moved into flat memory, too; parameters (frozen ones, and all that require a
                                     gradient) are left out, so that shard_state_dict's list will do. The
                                     caller's; NULL: none */
    shard_buffer_mode buffer_mode;
} shard_data_parallel_options;

/* Averages the gradients of the parameters that require one now; those under shard_zero_optimizer, before or after, are left
 * to it. The list is borrowed. Replicas are compared (names, shapes, dtypes, frozen parameters; values in the first
 * backward that synchronises): a difference is an error on all ranks (MISMATCH there, PEER elsewhere). NULL with the error
 * set. Destroy it before the parameters' groups; the parameters keep their flat memory. Collective over the parameters'
 * replica groups. */
#define shard_data_parallel_create(...) \
    shard_data_parallel_create_with(SHARD_WITH(shard_data_parallel_options, __VA_ARGS__))
SHARD_API shard_data_parallel *shard_data_parallel_create_with(const shard_tensors *parameters,
                                                               shard_data_parallel_options options);
SHARD_API void shard_data_parallel_destroy(shard_data_parallel *data_parallel);

/* While off, backward accumulates locally, as under DistributedDataParallel's no_sync; the next backward with it on reduces the
 * sum. On at first. A step while it is off moves each replica by its local gradient; shard_zero_optimizer refuses it in stage 1
 * (ARGUMENT), and averages each backward in stages 2 and 3. Not collective. */
SHARD_API void shard_data_parallel_set_sync(shard_data_parallel *data_parallel, bool sync);

#endif
