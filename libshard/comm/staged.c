/*
 * Data in a device's memory through pinned host memory and the group's own
 * transport: several ranks on one GPU, or no transport that reaches it. By pieces
 * that all members cut alike, so that the pinned memory is small however large the
 * data is. A preflight check precedes each piece: whether all have
 * theirs, and since transports need an exchange between two collectives.
 */
#include "comm/device_transport.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>

#define STAGE_BYTES ((int64_t)8 << 20)

/* A group's pinned memory. */
typedef struct stage {
    shard_device *device;
    void *memory;
} stage;

static void leave(shard_group *group)
{
    stage *s = group->device_state;
    if (!s)
        return;
    s->device->ops->release_host(s->device, s->memory, STAGE_BYTES);
    free(s);
    group->device_state = NULL;
}

/* The group's; NULL with the error set. */
static stage *take(shard_group *group, shard_device *device)
{
    stage *s = group->device_state;
    if (s && s->device == device)
        return s;
    leave(group);
    s = shard_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (stage){.device = device, .memory = device->ops->allocate_host(device, STAGE_BYTES)};
    if (!s->memory) {
        free(s);
        return NULL;
    }
    group->device_state = s;
    return s;
}

/* OK only if no member has an error. */
static shard_status check_again(shard_group *group)
{
    const struct shard_call *call = group->call;
    shard_status status = shard_agree(group);
    group->call = call;
    return status;
}

/* ---- pieces ---- */

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* To the stage; what was copied from it before has arrived afterwards. */
static shard_status copy_out(const stage *s, void *to, const void *from, int64_t bytes)
{
    const shard_device_ops *ops = s->device->ops;
    return bytes ? ops->copy_out(s->device, to, from, (size_t)bytes) : ops->synchronize(s->device);
}

static shard_status copy_in(const stage *s, void *to, const void *from, int64_t bytes)
{
    return s->device->ops->copy_in(s->device, to, from, (size_t)bytes);
}

static shard_status all_reduce(shard_group *group, shard_device *device, void *data, int64_t count, shard_dtype dtype,
                               shard_reduce_op op)
{
    stage *s = take(group, device);
    int64_t element = (int64_t)shard_dtype_size(dtype), most = STAGE_BYTES / element;
    if (!s)
        return check_again(group);
    for (int64_t at = 0; at < count; at += most) {
        int64_t piece = lesser(count - at, most);
        char *from = (char *)data + at * element;
        copy_out(s, s->memory, from, piece * element);
        SHARD_TRY(check_again(group));
        SHARD_TRY(group->ops->all_reduce(group, s->memory, piece, dtype, op));
        SHARD_TRY(copy_in(s, from, s->memory, piece * element));
    }
    return SHARD_OK;
}

static shard_status broadcast(shard_group *group, shard_device *device, void *data, int64_t count, shard_dtype dtype, int root)
{
    stage *s = take(group, device);
    int64_t element = (int64_t)shard_dtype_size(dtype), most = STAGE_BYTES / element;
    bool sends = group->rank == root;
    if (!s)
        return check_again(group);
    for (int64_t at = 0; at < count; at += most) {
        int64_t piece = lesser(count - at, most);
        char *where = (char *)data + at * element;
        copy_out(s, s->memory, where, sends ? piece * element : 0);
        SHARD_TRY(check_again(group));
        SHARD_TRY(group->ops->broadcast(group, s->memory, piece, dtype, root));
        if (!sends)
            SHARD_TRY(copy_in(s, where, s->memory, piece * element));
    }
    return SHARD_OK;
}

/* The members' pieces from `at` on, of at most `most` each; false after the last. */
static bool cut(const shard_group *group, const int64_t *counts, int64_t at, int64_t most, int64_t *pieces)
{
    int64_t largest = 0;
    for (int member = 0; member < group->size; member++) {
        pieces[member] = counts[member] > at ? lesser(counts[member] - at, most) : 0;
        largest = pieces[member] > largest ? pieces[member] : largest;
    }
    return largest > 0;
}

/* The longest piece of which every member's has room. */
static int64_t most_each(const shard_group *group, int64_t element)
{
    return STAGE_BYTES / element / group->size;
}

static shard_status all_gather(shard_group *group, shard_device *device, const void *mine, void *all, const int64_t *counts,
                               shard_dtype dtype)
{
    stage *s = take(group, device);
    int64_t element = (int64_t)shard_dtype_size(dtype), most = most_each(group, element), pieces[group->size];
    if (!s)
        return check_again(group);
    for (int64_t at = 0; cut(group, counts, at, most, pieces); at += most) {
        char *own = s->memory, *from = s->memory, *to = all;
        for (int member = 0; member < group->rank; member++)
            own += pieces[member] * element;
        copy_out(s, own, (const char *)mine + at * element, pieces[group->rank] * element);
        SHARD_TRY(check_again(group));
        SHARD_TRY(group->ops->all_gather(group, own, s->memory, pieces, dtype));
        for (int member = 0; member < group->size; member++) {
            SHARD_TRY(copy_in(s, to + at * element, from, pieces[member] * element));
            from += pieces[member] * element;
            to += counts[member] * element;
        }
    }
    return SHARD_OK;
}

static shard_status reduce_scatter(shard_group *group, shard_device *device, void *all, void *mine, const int64_t *counts,
                                   shard_dtype dtype, shard_reduce_op op)
{
    stage *s = take(group, device);
    int64_t element = (int64_t)shard_dtype_size(dtype), most = most_each(group, element), pieces[group->size];
    if (!s)
        return check_again(group);
    for (int64_t at = 0; cut(group, counts, at, most, pieces); at += most) {
        char *own = s->memory, *to = s->memory, *from = all;
        for (int member = 0; member < group->size; member++) {
            own = member == group->rank ? to : own;
            copy_out(s, to, from + at * element, pieces[member] * element);
            to += pieces[member] * element;
            from += counts[member] * element;
        }
        SHARD_TRY(check_again(group));
        SHARD_TRY(group->ops->reduce_scatter(group, s->memory, own, pieces, dtype, op));
        SHARD_TRY(copy_in(s, (char *)mine + at * element, own, pieces[group->rank] * element));
    }
    return SHARD_OK;
}

const shard_device_transport shard_staged_transport = {
    .name = "host memory",
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .broadcast = broadcast,
    .leave = leave,
};
