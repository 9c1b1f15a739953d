/*
 * The checked collectives. Before each, the members exchange a fingerprint of
 * what they are about to do: all see the same fingerprints, so all decide
 * alike whether the transport's collective follows, or which text all fail
 * with. Data that fits into the fingerprint travels with it, and then nothing
 * follows. The text of a failure needs more room: only then there is a second
 * exchange. A fault that this rank's device has found by then counts as a failure.
 *
 * Data in a device's memory goes by the group's carrier, on which the members
 * agree at the first such collective.
 */
#include "comm/carrier.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/reduce.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum operation { START, BARRIER, AGREE, FAIL, EXCHANGE, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST };

/* What a member is about to do. */
typedef struct shard_call {
    const char *name;
    enum operation operation;
    shard_device *device; /* whose memory the data is in; NULL: the host's */
    bool chooses;         /* only the carrier yet */
    shard_dtype dtype;
    int root; /* of a broadcast, else the reduce operation */
    int64_t count;
    const int64_t *counts; /* of the pieces, if there are any */
} shard_call;

#define SMALL_BYTES 216

/* What the others are told of it: compared up to `status`. */
typedef struct fingerprint {
    uint64_t sequence;
    uint64_t layout; /* hash of counts */
    int64_t count;
    uint32_t operation, dtype, root; /* operation with the flags below */
    int32_t status;                  /* not SHARD_OK: this member has failed */
    unsigned char data[SMALL_BYTES];
} fingerprint;

#define ON_DEVICE 0x100u
#define CHOOSES 0x200u

_Static_assert(sizeof(fingerprint) == 256 && sizeof(fingerprint) <= SHARD_COMM_TEXT, "peers has room for either");
_Static_assert(SHARD_COMM_TEXT <= SHARD_EXCHANGE_BYTES, "a text travels in one exchange");

/* The last failure that the members of a group told each other, so that it is
 * not told again as this rank's own. */
static _Thread_local struct {
    char text[SHARD_COMM_TEXT];
    int size;
} joint;

static bool failure_is_joint(int size)
{
    return joint.size >= size && shard_last_status() != SHARD_OK && strcmp(joint.text, shard_last_error()) == 0;
}

/* This thread's error as the others shall read it. */
static void tell_error(const shard_group *group, char *text, size_t bytes)
{
    if (failure_is_joint(1))
        snprintf(text, bytes, "%s", shard_last_error());
    else
        snprintf(text, bytes, "rank %d: %.*s", group->world_ranks[group->rank], SHARD_COMM_TEXT - 32, shard_last_error());
}

bool shard_group_failure_is_joint(const shard_group *group)
{
    return failure_is_joint(group->size);
}

void shard_group_post(shard_group *world)
{
    if (!world->ops->post || shard_last_status() == SHARD_OK || failure_is_joint(world->size))
        return;
    char text[SHARD_COMM_TEXT];
    tell_error(world, text, sizeof text);
    world->ops->post(world, text);
}

static void remember_joint(const char *text, int size)
{
    snprintf(joint.text, sizeof joint.text, "%s", text);
    joint.size = size;
}

static size_t describe_counts(const shard_group *group, const shard_call *call, char *text, size_t bytes)
{
    const int shown = 8;
    size_t used = 0;
    for (int i = 0; i < group->size && i < shown && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, i ? " + " : " of ", call->counts[i]);
    if (group->size > shown && used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, " + ... (%" PRId64 " in all)", call->count);
    return used;
}

void shard_group_describe(const shard_group *group, char *text, size_t bytes)
{
    static const char *const reductions[] = {[SHARD_SUM] = "", [SHARD_MAX] = " (max)", [SHARD_MIN] = " (min)"};
    const shard_call *call = group->call;
    size_t used = (size_t)snprintf(text, bytes, "%s", call ? call->name : "group_create");
    if (!call || call->operation < EXCHANGE)
        return;
    if (call->operation == EXCHANGE) {
        snprintf(text + used, bytes - used, " of %" PRId64 " bytes", call->count);
        return;
    }
    bool reduces = call->operation == ALL_REDUCE || call->operation == REDUCE_SCATTER;
    if (reduces && call->root >= 0 && call->root <= SHARD_MIN)
        used += (size_t)snprintf(text + used, bytes - used, "%s", reductions[call->root]);
    if (call->counts)
        used += describe_counts(group, call, text + used, bytes - used);
    else
        used += (size_t)snprintf(text + used, bytes - used, " of %" PRId64, call->count);
    if (used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, " %s", shard_dtype_name(call->dtype));
    if (call->operation == BROADCAST && used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, " from rank %d", shard_group_world_rank(group, call->root));
    if (call->device && used < bytes)
        snprintf(text + used, bytes - used, " in a device's memory");
}

/* Exchanges texts; the member's own is in `mine`. NULL if that failed. */
static char (*exchange_texts(shard_group *group, const char *mine))[SHARD_COMM_TEXT]
{
    if (group->ops->exchange(group, mine, SHARD_COMM_TEXT, group->peers) != SHARD_OK)
        return NULL;
    return group->peers;
}

/* All members learn the error of the first that has one; it keeps its status. */
static shard_status fail_together(shard_group *group, int first)
{
    char mine[SHARD_COMM_TEXT] = "";
    shard_status status = shard_last_status();
    if (status != SHARD_OK)
        tell_error(group, mine, sizeof mine);
    char(*texts)[SHARD_COMM_TEXT] = exchange_texts(group, mine);
    if (!texts)
        return shard_last_status();
    remember_joint(texts[first], group->size);
    return shard_replace_error(status == SHARD_OK ? SHARD_ERROR_PEER : status, texts[first]);
}

/* "rank 1 calls A while ranks 0 and 2 call B": those that differ from member 0,
 * or, where all but it agree, from member 1, first. */
static void describe_difference(const shard_group *group, char (*texts)[SHARD_COMM_TEXT], bool *marked, char *out, size_t bytes)
{
    int odd = 1;
    while (odd < group->size - 1 && strcmp(texts[odd], texts[0]) == 0)
        odd++;
    const int examples[] = {odd, 0};
    out[0] = '\0';
    for (int i = 0; i < 2; i++) {
        int number = 0;
        for (int member = 0; member < group->size; member++)
            number += marked[member] = strcmp(texts[member], texts[examples[i]]) == 0;
        shard_group_name_ranks(group, marked, out, bytes);
        size_t used = strlen(out);
        snprintf(out + used, bytes - used, " %s %.150s%s", number == 1 ? "calls" : "call", texts[examples[i]],
                 i == 0 ? " while " : "");
    }
}

static shard_status fail_mismatched(shard_group *group)
{
    char mine[SHARD_COMM_TEXT], text[SHARD_COMM_TEXT];
    shard_group_describe(group, mine, sizeof mine);
    size_t used = strlen(mine);
    const fingerprint *told = group->peers;
    for (int member = 1; member < group->size; member++)
        if (told[member].sequence != told[0].sequence) {
            snprintf(mine + used, sizeof mine - used, " as collective %" PRIu64 " of the group", group->sequence);
            break;
        }
    char(*texts)[SHARD_COMM_TEXT] = exchange_texts(group, mine);
    bool *marked = shard_calloc((size_t)group->size, sizeof *marked);
    if (texts && marked) {
        describe_difference(group, texts, marked, text, sizeof text);
        remember_joint(text, group->size);
        shard_error(SHARD_ERROR_MISMATCH, "%s", text);
    }
    free(marked);
    return shard_last_status();
}

static bool same_call(const fingerprint *a, const fingerprint *b)
{
    return memcmp(a, b, offsetof(fingerprint, status)) == 0;
}

/* A rank that has failed may have skipped a collective of one group, and come to one
 * of another: those that wait in the first are not to wait for the deadline. */
static void raise_alarm(shard_group *group, bool raised)
{
    static _Thread_local bool is_raised;
    if (!group->ops->alarm || (raised ? shard_last_status() == SHARD_OK : !is_raised))
        return;
    char text[SHARD_COMM_TEXT];
    if (raised)
        tell_error(group, text, sizeof text);
    is_raised = raised;
    group->ops->alarm(group, raised ? text : NULL);
}

/* What a device has found by now is told with this call, as a rank may never wait for its device. */
static void look_for_fault(const shard_call *call)
{
    shard_device *device = call->device ? call->device : shard_opened_accelerator();
    if (device)
        device->ops->report(device);
}

/* Meets the other members; `bytes` of small travel along. OK only if all are
 * about to do the same and none has an error. What the whole world has told each other is not
 * told again: some ranks learned of it early in a step and some at its end, and they come to the
 * same collective next, when they have cleared it, only if none enters one before. */
static shard_status meet(shard_group *group, const shard_call *call, const void *small, size_t bytes)
{
    if (failure_is_joint(shard_comm_world_size()))
        return shard_last_status();
    look_for_fault(call);
    fingerprint mine = {
        .sequence = ++group->sequence,
        .layout = shard_hash_words(SHARD_HASH_START, call->counts, call->counts ? group->size : 0),
        .count = call->count,
        .operation = (uint32_t)call->operation | (call->device ? ON_DEVICE : 0) | (call->chooses ? CHOOSES : 0),
        .dtype = call->dtype,
        .root = (uint32_t)call->root,
        .status = (int32_t)shard_last_status(),
    };
    if (bytes && mine.status == SHARD_OK)
        memcpy(mine.data, small, bytes);
    raise_alarm(group, true);
    shard_status met = group->ops->exchange(group, &mine, sizeof mine, group->peers);
    raise_alarm(group, false);
    if (met != SHARD_OK) {
        if (mine.status == SHARD_OK)
            remember_joint(shard_last_error(), 1); /* it names its rank already */
        return shard_last_status();
    }
    const fingerprint *told = group->peers;
    for (int member = 0; member < group->size; member++)
        if (told[member].status != SHARD_OK)
            return fail_together(group, member);
    for (int member = 1; member < group->size; member++)
        if (!same_call(&told[member], &told[0]))
            return fail_mismatched(group);
    return SHARD_OK;
}

/* One checked collective in one exchange, without data of its own. */
static shard_status meet_only(shard_group *group, const shard_call *call)
{
    if (!group || group->size == 1)
        return shard_last_status();
    group->call = call;
    shard_status status = meet(group, call, NULL, 0);
    group->call = NULL;
    return status;
}

shard_status shard_barrier(shard_group *group)
{
    return meet_only(group, &(shard_call){.name = "barrier", .operation = BARRIER});
}

shard_status shard_agree(shard_group *group)
{
    return meet_only(group, &(shard_call){.name = "agree", .operation = AGREE});
}

shard_status shard_group_fail(shard_group *group)
{
    if (shard_last_status() == SHARD_OK)
        shard_error(SHARD_ERROR_INTERNAL, "shard_group_fail: called without an error");
    return meet_only(group, &(shard_call){.name = "fail", .operation = FAIL});
}

shard_group *shard_group_start(shard_group *group, const char *what)
{
    if (!group || meet_only(group, &(shard_call){.name = what, .operation = START}) == SHARD_OK)
        return group;
    shard_group_destroy(group);
    return NULL;
}

/* Everything of a call that can be wrong on this rank alone. An error set here
 * is told to the others by meet. */
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
static shard_status reduce_told(const shard_group *group, size_t offset, void *data, int64_t count, const shard_call *call)
{
    const fingerprint *told = group->peers;
    const void *parts[group->size];
    unsigned char result[SMALL_BYTES];
    for (int member = 0; member < group->size; member++)
        parts[member] = told[member].data + offset;
    shard_reduce_elements(result, parts, group->size, count, call->dtype, (shard_reduce_op)call->root);
    return write_small(call, data, result, (size_t)count * shard_dtype_size(call->dtype));
}

/* ---- meeting for a call ---- */

static shard_status end_call(shard_group *group, shard_status status)
{
    group->call = NULL;
    return status;
}

/* Before the group's first collective on a device's memory: what will carry it. */
static shard_status choose_carrier(shard_group *group, const shard_call *call)
{
    shard_call choice = *call;
    choice.chooses = true;
    shard_carrier_offer offer = {0};
    if (shard_last_status() == SHARD_OK)
        offer = shard_carrier_offer_of(call->device);
    group->call = &choice;
    SHARD_TRY(meet(group, &choice, &offer, sizeof offer));
    const fingerprint *told = group->peers;
    shard_carrier_offer offers[group->size];
    const shard_carrier_offer *offered[group->size];
    for (int member = 0; member < group->size; member++) {
        memcpy(&offers[member], told[member].data, sizeof offer);
        offered[member] = &offers[member];
    }
    return shard_carrier_choose(group, call->device, offered);
}

_Static_assert(sizeof(shard_carrier_offer) <= SMALL_BYTES, "an offer travels with the fingerprint");

shard_status shard_group_choose_carrier(shard_group *group, shard_device *device)
{
    shard_call call = {.name = "group_split", .operation = START, .device = beyond_host(device)};
    return group->carrier ? SHARD_OK : end_call(group, choose_carrier(group, &call));
}

/* Meets for a call on data that may travel along: *done if it did. The group's call
 * is this one until end_call. */
static shard_status begin_call(shard_group *group, const shard_call *call, const void *data, int64_t count, int64_t largest,
                               bool *done)
{
    size_t size = shard_dtype_size(call->dtype);
    unsigned char room[SMALL_BYTES];
    *done = false;
    if (call->device && !group->carrier)
        SHARD_TRY(choose_carrier(group, call));
    if (shard_last_status() == SHARD_OK && largest <= (int64_t)(SMALL_BYTES / size))
        *done = !call->device || !group->carrier->takes_small;
    size_t bytes = *done ? (size_t)count * size : 0;
    if (*done)
        data = read_small(call, data, bytes, room);
    group->call = call;
    return meet(group, call, data, bytes);
}

/* ---- the collectives ---- */

static shard_call all_reduce_call(const shard_group *group, shard_device *device, const void *data, int64_t count,
                                  shard_dtype dtype, shard_reduce_op op)
{
    shard_call call = {.name = "all_reduce",
                       .operation = ALL_REDUCE,
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
    return status == SHARD_OK && *done ? reduce_told(group, 0, data, call->count, call) : status;
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
        status = call.device ? group->carrier->all_reduce(group, device, data, count, dtype, op)
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
        else if (group->carrier->all_reduce_start)
            request = group->carrier->all_reduce_start(group, device, data, count, dtype, op);
        else
            group->carrier->all_reduce(group, device, data, count, dtype, op);
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
        group->carrier->wait(group, device, request);
    else
        group->ops->wait(group, request);
    return end_call(group, shard_last_status());
}

/* Puts the pieces that came along one after the other. */
static shard_status gather_told(const shard_group *group, void *all, const shard_call *call)
{
    const fingerprint *told = group->peers;
    char *piece = all;
    shard_status status = SHARD_OK;
    for (int member = 0; member < group->size && status == SHARD_OK; member++) {
        size_t bytes = (size_t)call->counts[member] * shard_dtype_size(call->dtype);
        status = write_small(call, piece, told[member].data, bytes);
        piece += bytes;
    }
    return status;
}

/* *request is set if it was only started; request NULL: it is not to be. */
static shard_status all_gather(shard_group *group, shard_device *device, const void *mine, void *all, const int64_t *counts,
                               shard_dtype dtype, shard_request **request)
{
    int rank = shard_group_rank(group), size = shard_group_size(group);
    shard_call call = {
        .name = "all_gather", .operation = ALL_GATHER, .device = beyond_host(device), .dtype = dtype, .counts = counts};
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
        status = gather_told(group, all, &call);
    else if (status == SHARD_OK && request && call.device && group->carrier->all_gather_start)
        *request = group->carrier->all_gather_start(group, device, mine, all, counts, dtype);
    else if (status == SHARD_OK)
        status = call.device ? group->carrier->all_gather(group, device, mine, all, counts, dtype)
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
                       .operation = REDUCE_SCATTER,
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
        status = reduce_told(group, (size_t)count_before(counts, rank) * shard_dtype_size(dtype), mine, counts[rank], &call);
    else if (status == SHARD_OK && request && call.device && group->carrier->reduce_scatter_start)
        *request = group->carrier->reduce_scatter_start(group, device, all, mine, counts, dtype, op);
    else if (status == SHARD_OK && request && !call.device && group->ops->reduce_scatter_start)
        *request = group->ops->reduce_scatter_start(group, all, mine, counts, dtype, op);
    else if (status == SHARD_OK)
        status = call.device ? group->carrier->reduce_scatter(group, device, all, mine, counts, dtype, op)
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
    shard_call call = {
        .name = "broadcast", .operation = BROADCAST, .device = beyond_host(device), .dtype = dtype, .root = root, .count = count};
    check(group, &call, data, data, false);
    if (!group || group->size == 1)
        return shard_last_status();
    bool done;
    shard_status status = begin_call(group, &call, data, group->rank == root ? count : 0, count, &done);
    if (status == SHARD_OK && done)
        status =
            write_small(&call, data, ((const fingerprint *)group->peers)[root].data, (size_t)count * shard_dtype_size(dtype));
    else if (status == SHARD_OK)
        status = call.device ? group->carrier->broadcast(group, device, data, count, dtype, root)
                             : group->ops->broadcast(group, data, count, dtype, root);
    return end_call(group, status);
}

shard_status shard_group_exchange(shard_group *group, const void *mine, size_t bytes, void *all)
{
    shard_call call = {.name = "exchange", .operation = EXCHANGE, .dtype = SHARD_UINT8, .count = (int64_t)bytes};
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
    const fingerprint *told = group->peers;
    for (int member = 0; member < group->size && bytes; member++)
        memcpy((char *)all + (size_t)member * bytes, told[member].data, bytes);
    return SHARD_OK;
}
