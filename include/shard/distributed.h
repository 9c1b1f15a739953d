/*
 * shard/distributed.h: the job's ranks, meshes of groups, and collectives on tensors with
 * their adjoints.
 */
#ifndef SHARD_DISTRIBUTED_H
#define SHARD_DISTRIBUTED_H

#include <shard/autograd.h>
#include <shard/comm.h>

SHARD_BEGIN_C

/* ---- the job ---- */

/* Joins the other ranks of the job, which shardrun, mpirun or srun started; as
 * torch.distributed.init_process_group. argc and argv may be NULL. A process calls it once: a second call, also after
 * shard_finalize, is an error (ARGUMENT), as is a malformed environment variable (docs/environment.md). Other errors:
 * UNAVAILABLE, ranks that a launcher has started and nothing connects, or a transport or plugin that is not there; PEER and
 * TIMEOUT, a rank that does not join.
 * A program that calls MPI_Init itself does so before, and calls MPI_Finalize after shard_finalize; with less than
 * MPI_THREAD_SERIALIZED only the thread that called MPI_Init makes collectives (else UNSUPPORTED). The world is MPI_COMM_WORLD.
 * Collective over all ranks, with the deadline SHARD_TIMEOUT (docs/errors.md). */
SHARD_API SHARD_CHECKED shard_status shard_init(int *argc, char ***argv);

typedef struct shard_init_options {
    size_t size;
    int rank;                          /* of this process, 0 to ranks - 1 */
    int ranks;                         /* processes of the job. Default: 1. */
    shard_exchange_function *exchange; /* shard/comm.h; may be NULL if ranks is 1 */
    void *context;                     /* for exchange */
} shard_init_options;
#define SHARD_INIT_OPTIONS_VALUES sizeof(shard_init_options), 0, 1, NULL, NULL
#define SHARD_INIT_OPTIONS_INIT {SHARD_INIT_OPTIONS_VALUES}

/* Joins ranks that any launcher started, in place of shard_init: the caller's exchange (over torch's store, sockets, files)
 * connects them. If all ranks can share memory, they do, and the exchange is called a few times in this function alone. Else,
 * as on several hosts, every collective of host memory goes through it until shard_finalize; an MPI is faster.
 * docs/errors.md ("The caller's exchange") has failures, GPUs and the choice by hand. NULL options: one rank.
 * Errors: ARGUMENT, also of a second call; MISMATCH, ranks with different options, or an exchange that gives bytes in another
 * order; PEER, an exchange that fails; TIMEOUT, one that does not return within SHARD_TIMEOUT seconds; UNAVAILABLE,
 * SHARD_TRANSPORT is shm, and ranks do not share memory. After PEER or TIMEOUT the exchange is not called again; context must
 * stay until a call that timed out returns, also after shard_finalize. Collective over all ranks. As
 * torch.distributed.init_process_group with a store. */
SHARD_API SHARD_CHECKED shard_status shard_init_with(const shard_init_options *options);

/* Leaves the job: `return shard_finalize();`. Returns 1 if the thread has an error, else 0.
 * - It prints the error, and sends it to the other ranks. An error that all ranks have is printed by rank 0 alone.
 * - It waits for the GPU if one was opened: the GPU's errors count.
 * - It waits for the other ranks, except over an exchange of shard_init_with. A rank that has died is the error PEER; a rank
 *   that does not come within SHARD_TIMEOUT seconds is TIMEOUT (docs/errors.md).
 * Afterwards groups are not used, and a kept pointer to the world is a group of this rank alone. A second call leaves nothing:
 * it prints the thread's error, if there is one. A rank that ends by exit without this call is an error of the job. Collective
 * over all ranks, as the last collective of the job. */
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
    const char *name; /* up to 15 characters; read in the call. NULL: there is no axis from here on */
    int size;         /* ranks along it; -1, for one axis at most: the ranks that the others leave */
} shard_mesh_axis;

typedef struct shard_mesh_options {
    size_t size;
    int model;                             /* ranks along the axis "model", the last one. Default: 1. */
    int data;                              /* ranks along the axis "data", the first one; -1: the rest. Default: -1. */
    shard_mesh_axis axes[SHARD_MESH_AXES]; /* in place of these two: .axes = {{"data", 2}, {"expert", 2}, {"model", 2}} */
} shard_mesh_options;
#define SHARD_MESH_OPTIONS_VALUES sizeof(shard_mesh_options), 1, -1, {{NULL, 0}}
#define SHARD_MESH_OPTIONS_INIT {SHARD_MESH_OPTIONS_VALUES}

/* Makes the mesh and its groups. Names and sizes are the same on all ranks. The caller destroys it by shard_mesh_destroy, after
 * everything that is placed on its groups. NULL with the error set: ARGUMENT, sizes whose product is not the world's size,
 * two axes of one name, a name that is empty or too long, .axes together with .data or .model, or a call before shard_init;
 * MISMATCH, ranks with other names or sizes. Collective over the world. As torch.distributed.init_device_mesh. */
#define shard_mesh_create(...) \
    SHARD_GIVEN(shard_mesh_create_with(&(shard_mesh_options)SHARD_FIELDS(shard_mesh_options, SHARD_MESH_OPTIONS, __VA_ARGS__)))
SHARD_API shard_mesh *shard_mesh_create_with(const shard_mesh_options *options);
/* Destroys the mesh and its groups. NULL is fine. Collective over the world, without a preflight check. */
SHARD_API void shard_mesh_destroy(shard_mesh *mesh);

/* The ranks that differ from this one along the axis alone; as DeviceMesh.get_group. Belongs to the mesh; of all ranks it is
 * shard_world(). NULL with the error set (ARGUMENT) where the mesh has no such axis. */
SHARD_API shard_group *shard_mesh_group(const shard_mesh *mesh, const char *axis);
/* The ranks with this rank's coordinate along the axis: the replicas of what is split over it. Belongs to the mesh. NULL
 * with the error set (ARGUMENT) where the mesh has no such axis. */
SHARD_API shard_group *shard_mesh_replica_group(const shard_mesh *mesh, const char *axis);
/* This rank's coordinate along the axis, from 0 on; as DeviceMesh.get_local_rank. -1 with the error set (ARGUMENT) where the
 * mesh has no such axis. */
SHARD_API int shard_mesh_coordinate(const shard_mesh *mesh, const char *axis);

/* shard_mesh_group(mesh, "model") and shard_mesh_group(mesh, "data"); of NULL NULL, without an error. */
SHARD_API shard_group *shard_mesh_model_group(const shard_mesh *mesh);
SHARD_API shard_group *shard_mesh_data_group(const shard_mesh *mesh);

/*
 * ---- collectives on tensors, with their adjoints ----
 *
 * A group of one rank (or NULL) returns the input as a view.
 *
 * The result of a gather or a reduction is identical on every rank, and so is the loss that is computed from it. The gradient of
 * a leaf before it is then a pending sum over the group: each rank has the summand of the local rows, columns or terms.
 * shard_data_parallel takes that sum; without it, shard_all_reduce(shard_grad(leaf), SHARD_SUM, group) does. Groups that are
 * gathered or summed over in one step have the same ranks, or are rows and columns of a grid, as the groups of a mesh.
 * docs/data-parallel.md ("When gradients are averaged, and when they are summed") has the leaves whose gradients need no sum,
 * and other groups.
 *
 * Errors (NULL): UNSUPPORTED, a placement without a rule, or over another group; SHAPE, a dim that x does not have; MISMATCH,
 * shapes or dtypes that differ between ranks; MEMORY.
 */

/* x, unchanged; x is identical on all ranks of the group. For an input that the ranks use differently, as that of a
 * column-parallel layer. The gradient of x is that of one process: summands of the ranks are added over the group, once; a
 * gradient that is complete on each rank is not added. If the loss depends on a tensor that is split, gathered or summed over
 * the group, without another copy in between, the ranks have one loss. Its other terms must be identical on all ranks.
 * Otherwise each rank has a loss, and the gradient is that of the sum of these losses. Collective over group, in the backward
 * alone. As torchshard.distributed.copy and Megatron's copy_to_tensor_model_parallel_region. */
SHARD_API shard_tensor *shard_copy_to_group(shard_tensor *x, shard_group *group);

/* The local shard of x, which is identical on all ranks, along dim (negative: from the end), with the ranges of
 * shard_split_range: a split tensor. The values are those of shard_slice(x, dim, ranks, rank). Collective over group, in the
 * backward alone, which gathers. As torchshard.distributed.scatter. */
SHARD_API shard_tensor *shard_scatter_to_group(shard_tensor *x, int dim, shard_group *group);

/* The sum of the ranks' x, on every rank. x is PARTIAL over group, or local and taken as this rank's summand. The backward
 * passes the gradient on unchanged. Any dtype; integers wrap around. Collective over group, in the forward alone. As
 * torchshard.distributed.reduce (an all-reduce). */
SHARD_API shard_tensor *shard_reduce_from_group(shard_tensor *x, shard_group *group);

/* The ranks' x concatenated along dim (negative: from the end), on every rank. x is split along dim over group, or local and
 * taken as this rank's shard; shards may be of different sizes. The backward takes this rank's range of the gradient; a
 * reduce-scatter if the gradient is PARTIAL (of a layer that is split over the group). Any dtype. Collective over group. As
 * torchshard.distributed.gather (an all-gather). */
SHARD_API shard_tensor *shard_gather_from_group(shard_tensor *x, int dim, shard_group *group);

/* ---- collectives on tensors in place, without gradients ---- */

/* Replace x by the sum, maximum or minimum of the ranks' x, or by that of rank `root` of the group (torch's src is a rank of
 * the world); as torch.distributed.all_reduce and broadcast. SHARD_SUM of a leaf's gradient takes its pending sums over group,
 * and over groups whose ranks are all in it; of an x that is PARTIAL over one of these it makes x local. Errors: UNSUPPORTED,
 * SHARD_MAX, SHARD_MIN or a broadcast of a PARTIAL x, or of a gradient with a pending sum, over ranks of the group, which would
 * be those of summands; SHARD_SUM over a part of a sum's ranks; an x that is split over several ranks of the group, whose
 * shards would be mixed; ARGUMENT, a root that the group does not have; MISMATCH, shapes, dtypes, op or root that differ.
 * Collective over group. */
SHARD_API SHARD_CHECKED shard_status shard_all_reduce(shard_tensor *x, shard_reduce_op op, shard_group *group);
SHARD_API SHARD_CHECKED shard_status shard_broadcast(shard_tensor *x, int root, shard_group *group);

SHARD_END_C

#endif
