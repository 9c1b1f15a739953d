/* The transports by name. One of the two places that know which backends exist. */
#include "comm/registry.h"

#include "base/env.h"
#include "base/error.h"
#include "comm/backends.h"
#include "comm/shm/segment.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const shard_transport *const host_transports[] = {&shard_self_transport, &shard_shm_transport, &shard_mpi_transport,
                                                         &shard_exchange_transport};
static const shard_transport *const joining_transports[] = {&shard_shm_transport, &shard_exchange_transport};
static const shard_transport *const device_transports[] = {&shard_nccl_transport, &shard_staged_transport};

const shard_transport *shard_find_transport(const char *name)
{
    for (size_t i = 0; i < COUNT(host_transports); i++)
        if (strcmp(host_transports[i]->name, name) == 0)
            return host_transports[i];
    return shard_fail_null(SHARD_ERROR_ARGUMENT, "SHARD_TRANSPORT is \"%s\"; the transports are self, shm, mpi and exchange",
                           name);
}

const shard_transport *shard_launched_transport(void)
{
    if (shard_mpi_check_environment() != SHARD_OK)
        return NULL;
    if (shard_env_string("SHARD_SHM_FD", NULL))
        return &shard_shm_transport;
    return shard_mpi_launched() ? &shard_mpi_transport : &shard_self_transport;
}

void shard_note_call_of_init(void)
{
    shard_segment_note_call();
}

const shard_transport *shard_joining_transport_at(int number)
{
    return number < (int)COUNT(joining_transports) ? joining_transports[number] : NULL;
}

const shard_transport *shard_device_transport_at(int number)
{
    return number < (int)COUNT(device_transports) ? device_transports[number] : NULL;
}
