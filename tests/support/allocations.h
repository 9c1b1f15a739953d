/*
 * Allocations of the library that fail: of its structures and lists (base/memory.h), of a device's memory, and of jansson. Those
 * of other libraries (oneDNN, MPI, the C library's own) never do.
 */
#ifndef TESTS_SUPPORT_ALLOCATIONS_H
#define TESTS_SUPPORT_ALLOCATIONS_H

#include "device/device.h"

#include <stdatomic.h>
#include <stdint.h>

/* From now on allocations of this process are counted, with those of the device, and followed to where they are freed. */
void allocations_watch(shard_device *device);

/* The `number`th allocation from now on fails, from 1 on; 0: none does. */
void allocations_fail_at(int64_t number);
/* Whether it has come, and failed. */
bool allocations_failed(void);

/* Allocations of structures and lists that are not freed, and bytes of all devices that are in use. */
typedef struct allocations_live {
    int64_t count, device_bytes;
} allocations_live;
allocations_live allocations_now(void);

/* ---- public functions, by their numbers in traced_calls.h ---- */

/* In memory that processes share; NULL: functions are not followed. */
typedef struct traced_function {
    _Atomic int called;
    _Atomic int allocated, failed; /* while the function ran, and one was to fail */
} traced_function;
extern traced_function *traced_functions;

void traced_enter(int function);
void traced_leave(void);

#endif
