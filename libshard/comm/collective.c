/*
 * The checked collectives: a preflight check (preflight.h), then the transport's follows. Data
 * that fits into the fingerprint travels with it, and then nothing follows.
 *
 * Data in a device's memory goes by the group's device transport, on which the members
 * agree at the first such collective.
 */
#include "comm/device_transport.h"

#include "base/error.h"
#include "base/memory.h"
#include "comm/preflight.h"
#include "comm/reduce.h"

#include <inttypes.h>
#include <string.h>

/* Everything of a call that can be wrong on this rank alone. An error set here
 * reaches the others by the preflight check. */
static void check(const shard_group *group, const shard_call *call, const void *first, const void *second, bool reduces)
{
    int64_t bytes;
    char name[64];
    snprintf(name, sizeof name, "shard_group_%s", call->name);
    if (call->dtype < 0 || call->dtype >= SHARD_DTYPES)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no dtype %d", name, (int)call->dtype);
    else if (!shard_multiply(call->count, (int64_t)shard_dtype_size(call->dtype), &bytes))
        shard_error(SHARD_ERROR_ARGUMENT, "%s: %" PRId64 " elements of %s", name, call->count, shard_dtype_name(call->dtype));
    if (reduces && (call->root < SHARD_SUM || call->root > SHARD_MIN))
        shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no reduce operation %d", name, call->root);
    if (!reduces && (call->root < 0 || call->root >= shard_group_size(group)))
        shard_error(SHARD_ERROR_ARGUMENT, "%s: root %d of a group of %d", name, call->root, shard_group_size(group));
    if (call->count > 0 && (!first || !second))
        shard_null_argument(name, "data");
}

/* Pieces' counts, added up; -1 if one is negative or the sum overflows. */
static int64_t total_count(const shard_group *group, const int64_t *counts)
{
    int64_t total = 0;
    for (int i = 0; i < shard_group_size(group); i++)
        if (counts[i] < 0 || __builtin_add_overflow(total, counts[i], &total))
            return -1;
    return total;
}

static int64_t count_before(const int64_t *counts, int member)
{
    int64_t before = 0;
    for (int i = 0; i < member; i++)
        before += counts[i];
    return before;
}

/* NULL where the host reaches the memory. */
static shard_device *beyond_host(shard_device *device)
{
    return device && !device->ops->host_memory ? device : NULL;
}

/* The collective of a group of one: a copy at most. */
static shard_status copy_alone(const void *from, void *to, const shard_call *call)
{
    size_t bytes = (size_t)call->count * shard_dtype_size(call->dtype);
    if (shard_last_status() != SHARD_OK || from == to || call->count == 0)
        return shard_last_status();
    if (call->device)
        return call->device->ops->copy_rows(call->device, to, bytes, from, bytes, bytes, 1);
    memcpy(to, from, bytes);
    return SHARD_OK;
}

/* ---- small data, which travels with the fingerprints ---- */

/* The own data as the host reads it; room is for what is elsewhere. */
static const void *read_small(const shard_call *call, const void *data, size_t bytes, unsigned char *room)
{
    if (!call->device || bytes == 0)
        return data;
    call->device->ops->copy_out(call->device, room, data, bytes);
    return room;
}

static shard_status write_small(const shard_call *call, void *data, const void *from, size_t bytes)
{
    if (call->device && bytes)
        return call->device->ops->copy_in(call->device, data, from, bytes);
    if (bytes)
        memcpy(data, from, bytes);
    return SHARD_OK;
}

/* Reduces what came along, from byte `offset` on. */
static shard_status reduce_received(const shard_group *group, size_t offset, void *data, int64_t count, const shard_call *call)
{
    const shard_fingerprint *received = group->peers;
    const void *parts[group->size];
    unsigned char result[SHARD_SMALL_BYTES];
    for (int member = 0; member < group->size; member++)
        parts[member] = received[member].data + offset;
    shard_reduce_elements(result, parts, group->size, count, call->dtype, (shard_reduce_op)call->root);
    return write_small(call, data, result, (size_t)count * shard_dtype_size(call->dtype));
}

/* ---- the preflight check of a call ---- */

static shard_status end_call(shard_group *group, shard_status status)
{
    group->call = NULL;
    return status;
}

/* Before the group's first collective on a device's memory: what will carry it. */
static shard_status choose_device_transport(shard_group *group, const shard_call *call)
{
    shard_call choice = *call;
    choice.chooses = true;
    shard_device_offer offer = {0};
    if (shard_last_status() == SHARD_OK)
        offer = shard_device_offer_of(call->device);
    group->call = &choice;
    SHARD_TRY(shard_preflight(group, &choice, &offer, sizeof offer));
    const shard_fingerprint *received = group->peers;
    shard_device_offer offers[group->size];
    const shard_device_offer *offered[group->size];
    for (int member = 0; member < group->size; member++) {
        memcpy(&offers[member], received[member].data, sizeof offer);
        offered[member] = &offers[member];
    }
    return shard_device_transport_choose(group, call->device, offered);
}

_Static_assert(sizeof(shard_device_offer) <= SHARD_SMALL_BYTES, "an offer travels with the fingerprint");

shard_status shard_group_choose_device_transport(shard_group *group, shard_device *device)
{
    shard_call call = {.name = "group_split", .operation = SHARD_CALL_START, .device = beyond_host(device)};
    return group->device_transport ? SHARD_OK : end_call(group, choose_device_transport(group, &call));
}

/* The preflight check of a call on data that may travel along: *done if it did. The group's call
 * is this one until end_call. */
static shard_status begin_call(shard_group *group, const shard_call *call, const void *data, int64_t count, int64_t largest,
                               bool *done)
{
    size_t size = shard_dtype_size(call->dtype);
    unsigned char room[SHARD_SMALL_BYTES];
    *done = false;
    shard_refuse_captured_collective(); /* before values are read */
    if (call->device && !group->device_transport)
        SHARD_TRY(choose_device_transport(group, call));
    if (shard_last_status() == SHARD_OK && largest <= (int64_t)(SHARD_SMALL_BYTES / size))
        *done = !call->device || !group->device_transport->takes_small;
    size_t bytes = *done ? (size_t)count * size : 0;
    if (*done)
        data = read_small(call, data, bytes, room);
    group->call = call;
    return shard_preflight(group, call, data, bytes);
}

/* ---- the collectives ---- */

static shard_call all_reduce_call(const shard_group *group, shard_device *device, const void *data, int64_t count,
                                  shard_dtype dtype, shard_reduce_op op)
{
    shard_call call = {.name = "all_reduce",
                       .operation = SHARD_CALL_ALL_REDUCE,
                       .device = beyond_host(device),
                       .dtype = dtype,
                       .root = (int)op,
                       .count = count};
    check(group, &call, data, data, true);
    return call;
}

/* Up to where the transport's own work begins; *done if there is none left. */
static shard_status begin_all_reduce(shard_group *group, void *data, const shard_call *call, bool *done)
{
    shard_status status = begin_call(group, call, data, call->count, call->count, done);
    return status == SHARD_OK && *done ? reduce_received(group, 0, data, call->count, call) : status;
}

shard_status shard_group_all_reduce(shard_group *group, shard_device *device, void *data, int64_t count, shard_dtype dtype,
                                    shard_reduce_op op)
{
    shard_call call = all_reduce_call(group, device, data, count, dtype, op);
    if (!group || group->size == 1)
        return shard_last_status();
    bool done;
    shard_status status = begin_all_reduce(group, data, &call, &done);
    if (status == SHARD_OK && !done)
        status = call.device ? group->device_transport->all_reduce(group, device, data, count, dtype, op)
                             : group->ops->all_reduce(group, data, count, dtype, op);
    return end_call(group, status);
}

shard_request *shard_group_all_reduce_start(shard_group *group, shard_device *device, void *data, int64_t count,
                                            shard_dtype dtype, shard_reduce_op op)
{
    bool alone = !group || group->size == 1;
    if (alone || (!beyond_host(device) && !group->ops->all_reduce_start)) {
        shard_group_all_reduce(group, device, data, count, dtype, op);
        return NULL;
    }
    shard_call call = all_reduce_call(group, device, data, count, dtype, op);
    bool done;
    shard_request *request = NULL;
    if (begin_all_reduce(group, data, &call, &done) == SHARD_OK && !done) {
        if (!call.device)
            request = group->ops->all_reduce_start(group, data, count, dtype, op);
        else if (group->device_transport->all_reduce_start)
            request = group->device_transport->all_reduce_start(group, device, data, count, dtype, op);
        else
            group->device_transport->all_reduce(group, device, data, count, dtype, op);
    }
    end_call(group, SHARD_OK);
    return request;
}

shard_status shard_group_wait(shard_group *group, shard_device *device, shard_request *request)
{
    if (!request)
        return shard_last_status();
    shard_call call = {.name = "wait for a collective"};
    group->call = &call;
    if (beyond_host(device))
        group->device_transport->wait(group, device, request);
    else
        group->ops->wait(group, request);
    return end_call(group, shard_last_status());
}

/* Puts the pieces that came along one after the other. */
static shard_status gather_received(const shard_group *group, void *all, const shard_call *call)
{
    const shard_fingerprint *received = group->peers;
    char *piece = all;
    shard_status status = SHARD_OK;
    for (int member = 0; member < group->size && status == SHARD_OK; member++) {
        size_t bytes = (size_t)call->counts[member] * shard_dtype_size(call->dtype);
        status = write_small(call, piece, received[member].data, bytes);
        piece += bytes;
    }
    return status;
}

/* *request is set if it was only started; request NULL: it is not to be. */
static shard_status all_gather(shard_group *group, shard_device *device, const void *mine, void *all, const int64_t *counts,
                               shard_dtype dtype, shard_request **request)
{
    int rank = shard_group_rank(group), size = shard_group_size(group);
    shard_call call = {.name = "all_gather",
                       .operation = SHARD_CALL_ALL_GATHER,
                       .device = beyond_host(device),
                       .dtype = dtype,
                       .counts = counts};
    if (!counts)
        shard_null_argument("shard_group_all_gather", "counts");
    else
        call.count = total_count(group, counts);
    check(group, &call, all, counts && counts[rank] > 0 ? mine : all, false);
    if (size == 1)
        return copy_alone(mine, all, &call);
    int64_t largest = 0;
    for (int i = 0; counts && i < size; i++)
        largest = counts[i] > largest ? counts[i] : largest;
    bool done;
    shard_status status = begin_call(group, &call, mine, counts ? counts[rank] : 0, largest, &done);
    if (status == SHARD_OK && done)
        status = gather_received(group, all, &call);
    else if (status == SHARD_OK && request && call.device && group->device_transport->all_gather_start)
        *request = group->device_transport->all_gather_start(group, device, mine, all, counts, dtype);
    else if (status == SHARD_OK)
        status = call.device ? group->device_transport->all_gather(group, device, mine, all, counts, dtype)
                             : group->ops->all_gather(group, mine, all, counts, dtype);
    return end_call(group, status);
}

shard_status shard_group_all_gather(shard_group *group, shard_device *device, const void *mine, void *all, const int64_t *counts,
                                    shard_dtype dtype)
{
    return all_gather(group, device, mine, all, counts, dtype, NULL);
}

shard_request *shard_group_all_gather_start(shard_group *group, shard_device *device, const void *mine, void *all,
                                            const int64_t *counts, shard_dtype dtype)
{
    shard_request *request = NULL;
    all_gather(group, device, mine, all, counts, dtype, &request);
    return request;
}

static shard_status reduce_scatter(shard_group *group, shard_device *device, void *all, void *mine, const int64_t *counts,
                                   shard_dtype dtype, shard_reduce_op op, shard_request **request)
{
    int rank = shard_group_rank(group);
    shard_call call = {.name = "reduce_scatter",
                       .operation = SHARD_CALL_REDUCE_SCATTER,
                       .device = beyond_host(device),
                       .dtype = dtype,
                       .root = (int)op,
                       .counts = counts};
    if (!counts)
        shard_null_argument("shard_group_reduce_scatter", "counts");
    else
        call.count = total_count(group, counts);
    check(group, &call, all, counts && counts[rank] > 0 ? mine : all, true);
    if (shard_group_size(group) == 1)
        return copy_alone(all, mine, &call);
    bool done;
    shard_status status = begin_call(group, &call, all, call.count, call.count, &done);
    if (status == SHARD_OK && done)
        status = reduce_received(group, (size_t)count_before(counts, rank) * shard_dtype_size(dtype), mine, counts[rank], &call);
    else if (status == SHARD_OK && request && call.device && group->device_transport->reduce_scatter_start)
        *request = group->device_transport->reduce_scatter_start(group, device, all, mine, counts, dtype, op);
    else if (status == SHARD_OK && request && !call.device && group->ops->reduce_scatter_start)
        *request = group->ops->reduce_scatter_start(group, all, mine, counts, dtype, op);
    else if (status == SHARD_OK)
        status = call.device ? group->device_transport->reduce_scatter(group, device, all, mine, counts, dtype, op)
                             : group->ops->reduce_scatter(group, all, mine, counts, dtype, op);
    return end_call(group, status);
}

shard_status shard_group_reduce_scatter(shard_group *group, shard_device *device, void *all, void *mine, const int64_t *counts,
                                        shard_dtype dtype, shard_reduce_op op)
{
    return reduce_scatter(group, device, all, mine, counts, dtype, op, NULL);
}

shard_request *shard_group_reduce_scatter_start(shard_group *group, shard_device *device, void *all, void *mine,
                                                const int64_t *counts, shard_dtype dtype, shard_reduce_op op)
{
    shard_request *request = NULL;
    reduce_scatter(group, device, all, mine, counts, dtype, op, &request);
    return request;
}

shard_status shard_group_broadcast(shard_group *group, shard_device *device, void *data, int64_t count, shard_dtype dtype,
                                   int root)
{
    shard_call call = {.name = "broadcast",
                       .operation = SHARD_CALL_BROADCAST,
                       .device = beyond_host(device),
                       .dtype = dtype,
                       .root = root,
                       .count = count};
    check(group, &call, data, data, false);
    if (!group || group->size == 1)
        return shard_last_status();
    bool done;
    shard_status status = begin_call(group, &call, data, group->rank == root ? count : 0, count, &done);
    if (status == SHARD_OK && done)
        status = write_small(&call, data, ((const shard_fingerprint *)group->peers)[root].data,
                             (size_t)count * shard_dtype_size(dtype));
    else if (status == SHARD_OK)
        status = call.device ? group->device_transport->broadcast(group, device, data, count, dtype, root)
                             : group->ops->broadcast(group, data, count, dtype, root);
    return end_call(group, status);
}

shard_status shard_group_exchange(shard_group *group, const void *mine, size_t bytes, void *all)
{
    shard_call call = {.name = "exchange", .operation = SHARD_CALL_EXCHANGE, .dtype = SHARD_UINT8, .count = (int64_t)bytes};
    if (bytes > SHARD_EXCHANGE_BYTES)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_group_exchange: %zu bytes; the most is %d", bytes, SHARD_EXCHANGE_BYTES);
    check(group, &call, mine, all, false);
    if (!group || group->size == 1)
        return copy_alone(mine, all, &call);
    bool done;
    shard_status status = begin_call(group, &call, mine, call.count, call.count, &done);
    if (status == SHARD_OK && !done)
        status = group->ops->exchange(group, mine, bytes, all);
    end_call(group, status);
    if (status != SHARD_OK || !done)
        return status;
    const shard_fingerprint *received = group->peers;
    for (int member = 0; member < group->size && bytes; member++)
        memcpy((char *)all + (size_t)member * bytes, received[member].data, bytes);
    return SHARD_OK;
}
