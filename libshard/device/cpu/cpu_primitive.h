/*
 * Computations by oneDNN, prepared once per shape and kept: the primitive, and for each array that oneDNN needs in
 * another layout than the library's the reorder in both directions. Workspaces come from the device's pool.
 */
#ifndef SHARD_DEVICE_CPU_PRIMITIVE_H
#define SHARD_DEVICE_CPU_PRIMITIVE_H

#include "device/cpu/dnnl.h"
#include "device/device.h"

enum { SHARD_CPU_KEY_WORDS = 20, SHARD_CPU_ARRAYS = 4 };

/* Everything that a computation depends on: its kind, then the planner's arguments; words that are not used are 0. */
enum { SHARD_CPU_CONV2D = 1, SHARD_CPU_MATMUL };
typedef struct shard_cpu_key {
    int64_t word[SHARD_CPU_KEY_WORDS];
} shard_cpu_key;

/* Brings an input's data into the layout that oneDNN uses, for a planner that
 * does it faster than a reorder. */
typedef void shard_cpu_packer(const shard_cpu_key *, int64_t block, const void *data, void *packed);

/* A computation and its arrays in the order in which their data are given:
 * oneDNN's name (DNNL_ARG_...), the library's layout, and the layout asked of
 * oneDNN, which is the same or leaves it the choice. */
typedef struct shard_cpu_plan {
    int count;
    int argument[SHARD_CPU_ARRAYS];
    shard_dnnl_layout plain[SHARD_CPU_ARRAYS], asked[SHARD_CPU_ARRAYS];
    dnnl_primitive_desc_t descriptor;
    shard_cpu_packer *packer; /* of array `packed`, or NULL */
    int packed;
    int64_t block; /* as the packer takes it */
} shard_cpu_plan;

dnnl_status_t shard_cpu_plan_array(shard_cpu_plan *, int argument, int ndim, const dnnl_dims_t dims, const dnnl_dims_t strides,
                                   dnnl_data_type_t, bool any);

/* Fills in a plan for the key. The attributes are the ones to use or to clone. */
typedef dnnl_status_t shard_cpu_planner(const shard_cpu_key *, shard_cpu_plan *, dnnl_engine_t, dnnl_primitive_attr_t);

/* Runs the key's computation, which is prepared if it is new. *there, if not NULL, is set to whether oneDNN has it;
 * without `there` its lack is an error. */
shard_status shard_cpu_run(shard_device *, const shard_cpu_key *, shard_cpu_planner *, const void *const *data, bool *there);

/* One of the types that oneDNN computes in: float32 or bfloat16. */
dnnl_data_type_t shard_cpu_dnnl_type(shard_dtype);

/* Whether the processor multiplies numbers of that 16-bit type, twice as fast as float32.
 * Without its instructions oneDNN may take bfloat16 all the same, by several others for
 * each: three times as slow as float32. */
bool shard_cpu_multiplies(shard_dtype);
/* Whether oneDNN multiplies whole tiles of that type at once (AMX). */
bool shard_cpu_multiplies_tiles(shard_dtype);

/* Reports a failure of oneDNN. */
shard_status shard_cpu_dnnl_error(const char *what, dnnl_status_t);

#endif
