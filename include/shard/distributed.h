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

/* Joins the job's other ranks: those that shardrun, mpirun or srun started, or
 * none. argc and argv may be NULL. Collective over all ranks. Once a process: a second call,
 * after shard_finalize too, is an error (ARGUMENT), as is an environment variable of the library
 * that has no meaning. Under MPI a rank
 * that does not come makes the others end after SHARD_TIMEOUT seconds, with a message but without
 * a return: MPI_Init cannot be given up. */
SHARD_API shard_status shard_init(int *argc, char ***argv);

/* Leaves the job. Waits for the GPU, if one was opened, as what it finds wrong counts (op.h).
 * Prints the thread's error, if there is one (rank 0 alone what all ranks have together),
 * tells the other ranks, and returns 0, or 1 if there was one: `return shard_finalize();`.
 * Groups of this process end with it and are not used afterwards; a pointer to the world that was
 * kept is a group of this rank alone. A second call does nothing. Under MPI it waits for the other ranks to leave too: after
 * SHARD_TIMEOUT seconds it names those that do not and ends the job. Under shardrun a rank that has not left
 * SHARD_TIMEOUT seconds after another one has is ended, and the job fails: a rank that works alone at the end of
 * the program does so before a barrier, or with a larger SHARD_TIMEOUT. A rank that ends by exit
 * without it prints that, the others fail with it, and an exit code of 0 becomes 1. */
SHARD_API int shard_finalize(void);

/* All ranks; NULL, which stands for this rank alone, before shard_init and after shard_finalize.
 * Belongs to the library. */
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
    int size;         /* ranks along it; -1, for one axis at most: the ranks that the others leave */
} shard_mesh_axis;

typedef struct shard_mesh_options {
    size_t size;
    int model;                             /* ranks along the axis "model", the last one; 1 */
    int data;                              /* ranks along the axis "data", the first one; -1: the world's size / model */
    shard_mesh_axis axes[SHARD_MESH_AXES]; /* in place of these two: .axes = {{"data", 2}, {"expert", 2}, {"model", 2}} */
} shard_mesh_options;
#define SHARD_MESH_OPTIONS_VALUES sizeof(shard_mesh_options), 1, -1, {{NULL, 0}}
#define SHARD_MESH_OPTIONS_INIT {SHARD_MESH_OPTIONS_VALUES}

/* The product of the sizes must be the world's size (ARGUMENT). Names and sizes must be the same on all ranks
 * (MISMATCH). Collective over the world. Destroyed by shard_mesh_destroy after everything that is
 * placed on its groups. */
#define shard_mesh_create(...) \
    SHARD_GIVEN(shard_mesh_create_with(&(shard_mesh_options){SHARD_MESH_OPTIONS_VALUES, __VA_ARGS__}))
SHARD_API shard_mesh *shard_mesh_create_with(const shard_mesh_options *options);
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
 * A group of one member (or NULL) gives the input itself back as a view.
 *
 * What is gathered or summed is one and the same on every member from there on, and so
 * is the loss. What members compute before it from rows, columns or summands of their
 * own makes of a leaf's gradient a contribution: the gradient of that one loss is the
 * sum over the group, of nested gathers over each of their groups. shard_data_parallel
 * takes that sum; without it, shard_all_reduce(shard_grad(leaf), SHARD_SUM, group) does.
 * A leaf that is used both before and after brings the latter's gradient in equal
 * shares. The gradient of a leaf that is split over the group is its own part's and
 * needs no sum.
 *
 * Groups that are gathered or summed over in one step have the same members or this
 * rank alone in common, as a mesh's have; a gradient that would be of others is
 * refused (UNSUPPORTED).
 */

/* x, which is the same on every rank of the group, unchanged: for what the ranks use
 * differently, as the input of a column-parallel layer. The gradient of x is that of one process,
 * whatever operations and copies lie between: what each rank has a summand of (its own columns,
 * rows or summands) is summed over the group, once; what counts in full on each rank (a sum that
 * was taken already, a use of the whole tensor) is not. A loss that depends, without another copy over the
 * group between, on something that is split, gathered or summed over the group is one loss of all
 * members, and each of its other terms is taken to be the same on all. Any other loss is each rank's
 * own: the gradient is then that of the sum of these losses, as of torchshard's copy. */
SHARD_API shard_tensor *shard_copy_to_group(shard_tensor *x, shard_group *group);

/* The own part of x, which is whole on every member, along dim (negative: from the
 * end): split, parts as shard_split_range. Adjoint: all-gather. No communication
 * forward. As torchshard's scatter. The result has the values of shard_slice(x, dim, ranks, rank). */
SHARD_API shard_tensor *shard_scatter_to_group(shard_tensor *x, int dim, shard_group *group);

/* The sum of the members' x: whole. x is PARTIAL over group or local, the own
 * summand then. Adjoint: the gradient as it is. Any dtype; integers wrap around. As
 * torchshard's reduce. */
SHARD_API shard_tensor *shard_reduce_from_group(shard_tensor *x, shard_group *group);

/* The members' x one after the other along dim (negative: from the end): whole.
 * Pieces may be uneven. x is split along dim over group, or local and
 * taken to be. Adjoint: the own part of the gradient; where the gradient is PARTIAL
 * (it comes from a layer split over the group) a reduce-scatter. Any dtype. As
 * torchshard's gather. */
SHARD_API shard_tensor *shard_gather_from_group(shard_tensor *x, int dim, shard_group *group);

/* ---- collectives on tensors in place, without gradients; collective over group ---- */

/* Of a leaf's gradient, the SUM makes contributions over group, or over groups whose
 * members are all in it, whole. */
SHARD_API shard_status shard_all_reduce(shard_tensor *x, shard_reduce_op op, shard_group *group);
SHARD_API shard_status shard_broadcast(shard_tensor *x, int root, shard_group *group);

SHARD_END_C

#endif
