/*
 * The checked collectives: a preflight check (preflight.h), then the transport's collective.
 * Data that fits into the fingerprint is sent with it, without a second exchange.
 *
 * Data in a device's memory is exchanged by the group's device transport, which the ranks choose
 * together at the first such collective.
 */
#include "comm/comm.h"

#include "base/error.h"
#include "base/memory.h"
#include "comm/preflight.h"
#include "comm/reduce.h"
#include "comm/registry.h"
#include "comm/straggler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- descriptors ---- */

static bool has_blocks(const shard_collective *call)
{
    return call->kind == SHARD_COLLECTIVE_ALL_GATHER || call->kind == SHARD_COLLECTIVE_REDUCE_SCATTER;
}

static int64_t own_count(const shard_group *group, const shard_collective *call)
{
    return call->counts ? call->counts[shard_group_rank(group)] : 0;
}

/* The counts of the ranks' blocks, added up; -1 if one is negative or the sum overflows. */
static int64_t total_count(const shard_group *group, const int64_t *counts)
{
    int64_t total = 0;
    for (int i = 0; i < shard_group_size(group); i++)
        if (counts[i] < 0 || __builtin_add_overflow(total, counts[i], &total))
            return -1;
    return total;
}

/* Everything of a call that can be wrong on this rank alone. An error set here
 * reaches the others by the preflight check. */
static void check(const shard_group *group, const shard_collective *call)
{
    int64_t bytes;
    char name[64];
    snprintf(name, sizeof name, "shard_group_%s", shard_collective_name(call->kind));
    if (has_blocks(call) && !call->counts)
        shard_null_argument(name, "counts");
    if (call->kind == SHARD_COLLECTIVE_EXCHANGE && call->count > SHARD_EXCHANGE_BYTES)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: %" PRId64 " bytes; the most is %d", name, call->count, SHARD_EXCHANGE_BYTES);
    if (call->dtype < 0 || call->dtype >= SHARD_DTYPES)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no dtype %d", name, (int)call->dtype);
    else if (!shard_multiply(call->count, (int64_t)shard_dtype_size(call->dtype), &bytes))
        shard_error(SHARD_ERROR_ARGUMENT, "%s: %" PRId64 " elements of %s: at least 0, of fewer than 2^63 bytes, are needed",
                    name, call->count, shard_dtype_name(call->dtype));
    if (shard_collective_reduces(call) && (call->op < SHARD_SUM || call->op > SHARD_MIN))
        shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no reduce operation %d", name, (int)call->op);
    if (call->root < 0 || call->root >= shard_group_size(group))
        shard_error(SHARD_ERROR_ARGUMENT, "%s: root %d of a group of %d: ranks count from 0", name, call->root,
                    shard_group_size(group));
    const void *own = call->kind == SHARD_COLLECTIVE_ALL_GATHER ? call->send : call->receive;
    const void *whole = call->kind == SHARD_COLLECTIVE_ALL_GATHER ? call->receive : call->send;
    bool needs_own = !has_blocks(call) || own_count(group, call) > 0;
    if (call->count > 0 && (!whole || (needs_own && !own)))
        shard_null_argument(name, "data");
}

/* The collective of a group of one: a copy at most. */
static shard_status copy_alone(const shard_collective *call)
{
    size_t bytes = (size_t)call->count * shard_dtype_size(call->dtype);
    if (shard_last_status() != SHARD_OK || call->send == call->receive || call->count == 0)
        return shard_last_status();
    if (call->device)
        return call->device->ops->copy_rows(call->device, call->receive, bytes, call->send, bytes, bytes, 1);
    memcpy(call->receive, call->send, bytes);
    return SHARD_OK;
}

/* ---- small data, which travels with the fingerprints ---- */

/* The elements that this rank sends of it. */
static int64_t sent_count(const shard_group *group, const shard_collective *call)
{
    if (call->kind == SHARD_COLLECTIVE_ALL_GATHER)
        return own_count(group, call);
    return call->kind == SHARD_COLLECTIVE_BROADCAST && group->rank != call->root ? 0 : call->count;
}

/* This rank's data in host memory; data in a device's memory is copied to `room`. */
static const void *read_small(const shard_collective *call, size_t bytes, unsigned char *room)
{
    if (!call->device || bytes == 0)
        return call->send;
    call->device->ops->copy_out(call->device, room, call->send, bytes);
    return room;
}

static shard_status write_small(const shard_collective *call, void *data, const void *from, size_t bytes)
{
    if (call->device && bytes)
        return call->device->ops->copy_in(call->device, data, from, bytes);
    if (bytes)
        memcpy(data, from, bytes);
    return SHARD_OK;
}

/* Reduces what came along, from element `start` on. */
static shard_status reduce_received(const shard_group *group, const shard_collective *call, int64_t start, int64_t count)
{
    size_t size = shard_dtype_size(call->dtype);
    unsigned char result[SHARD_SMALL_BYTES];
    for (int rank = 0; rank < group->size; rank++)
        group->parts[rank] = shard_received(group)[rank].data + (size_t)start * size;
    shard_reduce_elements(result, group->parts, group->size, count, call->dtype, call->op);
    return write_small(call, call->receive, result, (size_t)count * size);
}

/* Puts the blocks that came along one after the other; of an exchange they are equally long. For a device they are moved together
 * where they came to, which is one copy to it. */
static shard_status gather_received(const shard_group *group, const shard_collective *call)
{
    char *all = call->device ? group->peers : call->receive, *block = all;
    for (int rank = 0; rank < group->size; rank++) {
        size_t bytes = (size_t)(call->counts ? call->counts[rank] : call->count) * shard_dtype_size(call->dtype);
        if (bytes)
            memmove(block, shard_received(group)[rank].data, bytes);
        block += bytes;
    }
    return call->device ? write_small(call, call->receive, all, (size_t)(block - all)) : SHARD_OK;
}

static shard_status finish_small(const shard_group *group, const shard_collective *call)
{
    switch (call->kind) {
    case SHARD_COLLECTIVE_ALL_REDUCE:
        return reduce_received(group, call, 0, call->count);
    case SHARD_COLLECTIVE_REDUCE_SCATTER:
        return reduce_received(group, call, shard_count_before(call->counts, group->rank), own_count(group, call));
    case SHARD_COLLECTIVE_BROADCAST:
        return write_small(call, call->receive, shard_received(group)[call->root].data,
                           (size_t)call->count * shard_dtype_size(call->dtype));
    default:
        return gather_received(group, call);
    }
}

/* ---- posting and waiting ---- */

/* NULL where the host reaches the memory. */
static shard_device *beyond_host(shard_device *device)
{
    return device && !device->ops->host_memory ? device : NULL;
}

/* Of a collective of data in the memory of a device, or (NULL) the host's. */
static const shard_transport *transport_of(const shard_group *group, const shard_device *device)
{
    return device ? group->device_transport : group->transport;
}

/* The preflight check; *small if the data travelled along, else the transport is prepared. */
static shard_status begin(shard_group *group, shard_collective *call, bool *small)
{
    size_t size = shard_dtype_size(call->dtype);
    unsigned char room[SHARD_SMALL_BYTES];
    shard_refuse_captured_collective(); /* before values are read */
    if (call->device && !group->device_transport)
        SHARD_TRY(shard_device_transport_choose(group, call));
    if (shard_last_status() == SHARD_OK) {
        bool gathers = call->kind == SHARD_COLLECTIVE_ALL_GATHER;
        int64_t most = gathers ? shard_largest_count(call->counts, group->size) : call->count; /* that a rank sends */
        *small = most <= (int64_t)(SHARD_SMALL_BYTES / size) && !(call->device && group->device_transport->takes_small);
    }
    size_t bytes = *small ? (size_t)sent_count(group, call) * size : 0;
    const void *data = *small ? read_small(call, bytes, room) : NULL;
    group->call = call;
    if (!*small)
        shard_prepare(transport_of(group, call->device), group, call);
    shard_status status = shard_preflight(group, call, data, bytes);
    if (status != SHARD_OK)
        shard_discard(transport_of(group, call->device), group, call);
    return status;
}

/* request NULL: until it is done. */
static shard_status post(shard_group *group, shard_collective call, shard_request **request)
{
    shard_request *posted = NULL;
    bool small = false;
    call.device = beyond_host(call.device);
    if (call.counts)
        call.count = total_count(group, call.counts);
    check(group, &call);
    if (shard_group_size(group) == 1)
        return copy_alone(&call);
    shard_straggler_enter();
    shard_status status = begin(group, &call, &small);
    if (status == SHARD_OK && small)
        status = finish_small(group, &call);
    else if (status == SHARD_OK) {
        const shard_transport *transport = transport_of(group, call.device);
        status = transport->post(group, &call, &posted);
        if (status == SHARD_OK && posted && !request)
            status = transport->wait(group, posted);
    }
    if (request)
        *request = posted;
    group->call = NULL;
    shard_straggler_leave();
    return status;
}

shard_request *shard_group_post(shard_group *group, const shard_collective *call)
{
    shard_request *request = NULL;
    post(group, *call, &request);
    return request;
}

shard_status shard_group_wait(shard_group *group, shard_device *device, shard_request *request)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_WAIT};
    if (!request)
        return shard_last_status();
    shard_straggler_enter();
    group->call = &call;
    transport_of(group, beyond_host(device))->wait(group, request);
    group->call = NULL;
    shard_straggler_leave();
    return shard_last_status();
}

/* ---- the collectives by name ---- */

shard_status shard_group_all_reduce(shard_group *group, shard_device *device, void *data, int64_t count, shard_dtype dtype,
                                    shard_reduce_op op)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_ALL_REDUCE,
                                   .send = data,
                                   .receive = data,
                                   .count = count,
                                   .dtype = dtype,
                                   .op = op,
                                   .device = device};
    return post(group, call, NULL);
}

shard_status shard_group_all_gather(shard_group *group, shard_device *device, const void *mine, void *all, const int64_t *counts,
                                    shard_dtype dtype)
{
    const shard_collective call = {
        .kind = SHARD_COLLECTIVE_ALL_GATHER, .send = mine, .receive = all, .counts = counts, .dtype = dtype, .device = device};
    return post(group, call, NULL);
}

shard_status shard_group_all_gather_equal(shard_group *group, shard_device *device, const void *mine, void *all, int64_t count,
                                          shard_dtype dtype)
{
    int size = shard_group_size(group);
    int64_t *counts = shard_calloc((size_t)size, sizeof *counts);
    for (int rank = 0; rank < size && counts; rank++)
        counts[rank] = count;
    shard_status status = shard_group_all_gather(group, device, mine, all, counts, dtype);
    free(counts);
    return status;
}

shard_status shard_group_reduce_scatter(shard_group *group, shard_device *device, void *all, void *mine, const int64_t *counts,
                                        shard_dtype dtype, shard_reduce_op op)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_REDUCE_SCATTER,
                                   .send = all,
                                   .receive = mine,
                                   .counts = counts,
                                   .dtype = dtype,
                                   .op = op,
                                   .device = device};
    return post(group, call, NULL);
}

shard_status shard_group_broadcast(shard_group *group, shard_device *device, void *data, int64_t count, shard_dtype dtype,
                                   int root)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_BROADCAST,
                                   .send = data,
                                   .receive = data,
                                   .count = count,
                                   .dtype = dtype,
                                   .root = root,
                                   .device = device};
    return post(group, call, NULL);
}

shard_status shard_group_exchange(shard_group *group, const void *mine, size_t bytes, void *all)
{
    const shard_collective call = {
        .kind = SHARD_COLLECTIVE_EXCHANGE, .send = mine, .receive = all, .count = (int64_t)bytes, .dtype = SHARD_UINT8};
    return post(group, call, NULL);
}
