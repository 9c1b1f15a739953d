/* Steps of optimizers as maps over arrays of several types, with the rounding of 16-bit ones. */
#ifndef SHARD_CPU_UPDATE_H
#define SHARD_CPU_UPDATE_H

#include "device/cpu/kernels/map.h"

/* The arrays of an update in its map: in: gradient, value, states; out: the result (the new value, or what replaces the
 * gradient), states. */
enum { UPDATE_GRADIENT, UPDATE_VALUE, UPDATE_STATES, UPDATE_NEW_STATES = 1 };

/* Runs the map with the body's variant for the types. */
void KERNEL(update)(const map *, const shard_update *, const shard_update_types *, map_body_float *, map_body_double *);
#define UPDATE(job, u, types, body) KERNEL(update)(job, u, types, body##_float, body##_double)

/* The float body on one span of the arrays: `span` is as for a map. */
void KERNEL(update_span)(const map *, const shard_update *, const shard_update_types *, map_body_float *, span);

/* Elements [start, start + count) of the update's value, in float, with the compensation: in the buffer or in memory. */
const float *KERNEL(update_value)(const shard_update *, const shard_update_types *, int64_t start, int64_t count, float *buffer);

/* Calls step(context, update, types) for each update: small ones on several threads, each of the others from the
 * calling thread, with several threads inside. */
void KERNEL(each_update)(int64_t count, const shard_update *, const void *context, shard_update_types,
                         void (*step)(const void *context, const shard_update *, const shard_update_types *));

#endif
