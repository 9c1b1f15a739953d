/* The names of devices. */
#ifndef SHARD_DEVICE_REGISTRY_H
#define SHARD_DEVICE_REGISTRY_H

#include <shard/base.h>

/* ARGUMENT if SHARD_DEVICE names no device. Opens none. */
shard_status shard_device_check_environment(void);

#endif
