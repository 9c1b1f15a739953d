/* The transports by name, and which device transport a group takes; the log says what keeps it from a better one. One of the two
 * places that know which backends exist. */
#include "comm/registry.h"

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/backends.h"
#include "comm/preflight.h"
#include "comm/shm/segment.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const shard_transport *const host_transports[] = {&shard_self_transport, &shard_shm_transport, &shard_mpi_transport,
                                                         &shard_exchange_transport};
/* From the best one on; the last one connects any devices. */
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
    bool by_mpi;
    if (shard_mpi_launched(&by_mpi) != SHARD_OK)
        return NULL;
    if (shard_env_string("SHARD_SHM_FD", NULL))
        return &shard_shm_transport;
    return by_mpi ? &shard_mpi_transport : &shard_self_transport;
}

void shard_note_call_of_init(void)
{
    shard_segment_note_call();
}

void shard_note_end_of_init(void)
{
    shard_segment_note_end((int)shard_last_status(), shard_last_error());
}

const shard_transport *shard_host_transport_at(int number)
{
    return number < (int)COUNT(host_transports) ? host_transports[number] : NULL;
}

/* ---- device transports ---- */

static void log_ranks(const shard_group *group, const char *refusal)
{
    char text[SHARD_COMM_TEXT] = "";
    if (group->rank != 0)
        return;
    shard_group_name_ranks(group, NULL, text, sizeof text);
    shard_log_message(SHARD_LOG_INFO, "collectives of %s in GPU memory go through %s%s%s", text, group->device_transport->title,
                      refusal[0] ? ": " : "", refusal);
}

/* One transport, by the ranks' offers: the group may have none afterwards, and then there is a refusal. */
static shard_status try_transport(shard_group *group, const shard_transport *transport, const shard_collective *call,
                                  char *refusal, size_t bytes)
{
    unsigned char offer[SHARD_OFFER_BYTES] = {0};
    if (!transport->offer) { /* it connects any devices */
        group->device_transport = transport;
        return SHARD_OK;
    }
    unsigned char *offers = shard_calloc((size_t)group->size, SHARD_OFFER_BYTES); /* before the check, which sends an error */
    if (shard_last_status() == SHARD_OK)
        transport->offer(call->device, offer);
    shard_status status = shard_preflight(group, call, offer, sizeof offer);
    for (int rank = 0; rank < group->size && status == SHARD_OK; rank++)
        memcpy(offers + (size_t)rank * SHARD_OFFER_BYTES, shard_received(group)[rank].data, SHARD_OFFER_BYTES);
    if (status == SHARD_OK)
        status = transport->connect(group, call->device, offers, refusal, bytes);
    free(offers);
    return status;
}

shard_status shard_device_transport_choose(shard_group *group, const shard_collective *call)
{
    shard_collective choice = *call;
    char refusal[256] = "";
    shard_status status = SHARD_OK;
    choice.chooses = true;
    group->call = &choice;
    for (size_t i = 0; i < COUNT(device_transports) && status == SHARD_OK && !group->device_transport; i++)
        status = try_transport(group, device_transports[i], &choice, refusal, sizeof refusal);
    group->call = NULL;
    if (status == SHARD_OK)
        log_ranks(group, refusal);
    return status;
}

void shard_device_transports_end(void)
{
    for (size_t i = 0; i < COUNT(device_transports); i++)
        if (device_transports[i]->end)
            device_transports[i]->end();
}
