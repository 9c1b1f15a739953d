/*
 * Before each collective the members exchange a fingerprint of what they are about
 * to do: all see the same fingerprints, so all decide alike whether the transport's
 * collective follows, or which text all fail with. The text of a failure needs more
 * room: only then there is a second exchange. A fault that this rank's device has
 * found by then counts as a failure.
 */
#include "comm/preflight.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/function.h"
#include "device/graph.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ON_DEVICE 0x100u
#define CHOOSES 0x200u

_Static_assert(sizeof(shard_fingerprint) == 256 && sizeof(shard_fingerprint) <= SHARD_COMM_TEXT, "peers has room for either");
_Static_assert(SHARD_COMM_TEXT <= SHARD_EXCHANGE_BYTES, "a text travels in one exchange");

/* The last failure that the members of a group exchanged, so that it is
 * not sent again as this rank's own. */
static _Thread_local struct {
    char text[2 * SHARD_COMM_TEXT]; /* an error's text is longer than the text told where it has escapes */
    int size;
} joint;

static bool failure_is_joint(int size)
{
    return joint.size >= size && shard_last_status() != SHARD_OK && strcmp(joint.text, shard_last_error()) == 0;
}

/* This thread's error as the others shall read it, cut between two characters where it is too long. */
static void tell_error(const shard_group *group, char *text, size_t bytes)
{
    if (failure_is_joint(1))
        shard_printable(text, bytes, shard_last_error());
    else {
        size_t used = (size_t)snprintf(text, bytes, "rank %d: ", group->world_ranks[group->rank]);
        shard_printable(text + used, bytes - used, shard_last_error());
    }
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

void shard_group_notify_abort(shard_group *group)
{
    char text[SHARD_COMM_TEXT];
    shard_status status = shard_last_status();
    if (!group->ops->notify_abort)
        return;
    bool names_ranks = status == SHARD_ERROR_PEER || status == SHARD_ERROR_TIMEOUT;
    if (names_ranks)
        shard_printable(text, sizeof text, shard_last_error());
    else
        tell_error(group, text, sizeof text);
    group->ops->notify_abort(group, names_ranks ? status : SHARD_ERROR_PEER, text);
}

/* Of this thread's error: that it is known to a group of that size. */
static void remember_joint(int size)
{
    snprintf(joint.text, sizeof joint.text, "%s", shard_last_error());
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

/* " of 10 float32": with what the call is made. */
static void describe_data(const shard_group *group, const shard_call *call, char *text, size_t bytes)
{
    static const char *const reductions[] = {[SHARD_SUM] = "", [SHARD_MAX] = " (max)", [SHARD_MIN] = " (min)"};
    size_t used = 0;
    text[0] = '\0';
    if (call->operation == SHARD_CALL_EXCHANGE)
        snprintf(text, bytes, " of %" PRId64 " bytes", call->count);
    if (call->operation <= SHARD_CALL_EXCHANGE)
        return;
    bool reduces = call->operation == SHARD_CALL_ALL_REDUCE || call->operation == SHARD_CALL_REDUCE_SCATTER;
    if (reduces && call->root >= 0 && call->root <= SHARD_MIN)
        used += (size_t)snprintf(text + used, bytes - used, "%s", reductions[call->root]);
    if (call->counts)
        used += describe_counts(group, call, text + used, bytes - used);
    else
        used += (size_t)snprintf(text + used, bytes - used, " of %" PRId64, call->count);
    if (used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, " %s", shard_dtype_name(call->dtype));
    if (call->operation == SHARD_CALL_BROADCAST && used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, " from rank %d", shard_group_world_rank(group, call->root));
    if (call->device && used < bytes)
        snprintf(text + used, bytes - used, " in a device's memory");
}

/* By the public function's name where it is known, with the collective that is made in it. */
void shard_group_describe(const shard_group *group, char *text, size_t bytes)
{
    const char *function = shard_current_function()->name;
    const shard_call *call = group->call;
    char data[SHARD_COMM_TEXT / 2] = "";
    if (call)
        describe_data(group, call, data, sizeof data);
    const char *name = call ? call->name : "group_create";
    if (!function)
        snprintf(text, bytes, "%s%s", name, data);
    else if (strncmp(function, "shard_", 6) == 0 && strcmp(function + 6, name) == 0)
        snprintf(text, bytes, "%s%s", function, data);
    else if (call && call->operation > SHARD_CALL_EXCHANGE)
        snprintf(text, bytes, "%s (%s%s)", function, name, data);
    else if (shard_function_hint())
        snprintf(text, bytes, "%s (%s)", function, shard_function_hint());
    else
        snprintf(text, bytes, "%s", function);
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
    shard_replace_error(status == SHARD_OK ? SHARD_ERROR_PEER : status, texts[first]);
    remember_joint(group->size);
    return shard_last_status();
}

/* What a member says of its call when calls differ. */
typedef struct call_text {
    uint64_t fingerprint; /* a hash of it */
    char call[SHARD_COMM_TEXT - SHARD_FUNCTION_AGREED - sizeof(uint64_t)];
    char agreed[SHARD_FUNCTION_AGREED];
} call_text;

_Static_assert(sizeof(call_text) == SHARD_COMM_TEXT, "it travels as a text");

/* The first of the things that two members were to have the same and have not: of this one's. */
static void describe_agreed(const char *mine, const char *other, char *text, size_t bytes)
{
    size_t start = 0, same = 0;
    for (; mine[same] && mine[same] == other[same]; same++)
        if (mine[same] == ';')
            start = same + 2;
    if (!mine[same] && other[same] == ';')
        start = same;
    if (mine[same] == ';' && !other[same])
        start = same + 2;
    snprintf(text, bytes, " with %.*s", (int)strcspn(mine + start, ";"), mine[start] ? mine + start : "nothing more");
}

/* "rank 1 calls A while ranks 0 and 2 call B": those that differ from member 0,
 * or, where all but it agree, from member 1, first. */
static void describe_difference(const shard_group *group, const call_text *texts, bool *marked, char *out, size_t bytes)
{
    int odd = 1;
    while (odd < group->size - 1 && memcmp(&texts[odd], &texts[0], sizeof *texts) == 0)
        odd++;
    const int examples[] = {odd, 0};
    bool same_calls = strcmp(texts[odd].call, texts[0].call) == 0;
    out[0] = '\0';
    for (int i = 0; i < 2; i++) {
        const call_text *example = &texts[examples[i]], *other = &texts[examples[1 - i]];
        char agreed[SHARD_FUNCTION_AGREED] = "";
        int number = 0;
        for (int member = 0; member < group->size; member++)
            number += marked[member] = memcmp(&texts[member], example, sizeof *texts) == 0;
        if (same_calls && strcmp(example->agreed, other->agreed) == 0)
            snprintf(agreed, sizeof agreed, "%s", i == 0 ? "" : " with other arguments");
        else if (same_calls)
            describe_agreed(example->agreed, other->agreed, agreed, sizeof agreed);
        shard_group_name_ranks(group, marked, out, bytes);
        size_t used = strlen(out);
        snprintf(out + used, bytes - used, " %s %.150s%.80s%s", number == 1 ? "calls" : "call", example->call, agreed,
                 i == 0 ? " while " : "");
    }
}

static shard_status fail_mismatched(shard_group *group)
{
    call_text mine = {0};
    char text[SHARD_COMM_TEXT];
    shard_group_describe(group, mine.call, sizeof mine.call);
    snprintf(mine.agreed, sizeof mine.agreed, "%s", shard_current_function()->agreed);
    size_t used = strlen(mine.call);
    const shard_fingerprint *received = group->peers;
    mine.fingerprint = shard_hash_bytes(SHARD_HASH_START, &received[group->rank], offsetof(shard_fingerprint, status));
    for (int member = 1; member < group->size; member++)
        if (received[member].sequence != received[0].sequence) {
            snprintf(mine.call + used, sizeof mine.call - used, " as collective %" PRIu64 " of the group", group->sequence);
            break;
        }
    const call_text *texts = (const call_text *)exchange_texts(group, (const char *)&mine);
    bool *marked = shard_calloc((size_t)group->size, sizeof *marked);
    if (texts && marked) {
        describe_difference(group, texts, marked, text, sizeof text);
        shard_error(SHARD_ERROR_MISMATCH, "%s", text);
        remember_joint(group->size);
    }
    free(marked);
    return shard_last_status();
}

static bool same_call(const shard_fingerprint *a, const shard_fingerprint *b)
{
    return memcmp(a, b, offsetof(shard_fingerprint, status)) == 0;
}

/* A rank that has failed may have skipped a collective of one group, and come to one
 * of another: those that wait in the first are not to wait for the deadline. */
static void send_abort_notice(shard_group *group, bool sends)
{
    static _Thread_local bool is_sent;
    if (!group->ops->abort_notice || (sends ? shard_last_status() == SHARD_OK : !is_sent))
        return;
    char text[SHARD_COMM_TEXT];
    if (sends)
        tell_error(group, text, sizeof text);
    is_sent = sends;
    group->ops->abort_notice(group, sends ? text : NULL);
}

/* What a device has found by now is told with this call, as a rank may never wait for its device. */
static void report_fault(const shard_call *call)
{
    shard_device *device = call->device ? call->device : shard_opened_accelerator();
    if (device)
        device->ops->report(device);
}

shard_status shard_refuse_fork(const shard_group *group)
{
    if (!shard_comm_forked())
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNAVAILABLE, "this process was forked by rank %d after shard_init: it can enter no collective",
                       group->world_ranks[group->rank]);
}

void shard_refuse_captured_collective(void)
{
    shard_graph_refuse("a collective of several ranks, whose preflight check is the hosts',");
}

/* What the whole world has told each other is not told again: some ranks learned of it early in
 * a step and some at its end, and they come to the same collective next, when they have cleared
 * it, only if none enters one before. */
shard_status shard_preflight(shard_group *group, const shard_call *call, const void *small, size_t bytes)
{
    if (failure_is_joint(shard_comm_world_size()))
        return shard_last_status();
    SHARD_TRY(shard_refuse_fork(group));
    shard_refuse_captured_collective();
    report_fault(call);
    shard_fingerprint mine = {
        .sequence = ++group->sequence,
        .layout =
            shard_hash_words(SHARD_HASH_START ^ shard_current_function()->hash, call->counts, call->counts ? group->size : 0),
        .count = call->count,
        .operation = (uint32_t)call->operation | (call->device ? ON_DEVICE : 0) | (call->chooses ? CHOOSES : 0),
        .dtype = call->dtype,
        .root = (uint32_t)call->root,
        .status = (int32_t)shard_last_status(),
    };
    if (bytes && mine.status == SHARD_OK)
        memcpy(mine.data, small, bytes);
    send_abort_notice(group, true);
    shard_status met = group->ops->exchange(group, &mine, sizeof mine, group->peers);
    send_abort_notice(group, false);
    if (met != SHARD_OK) {
        if (mine.status == SHARD_OK)
            remember_joint(1); /* it names its rank already */
        return shard_last_status();
    }
    const shard_fingerprint *received = group->peers;
    for (int member = 0; member < group->size; member++)
        if (received[member].status != SHARD_OK)
            return fail_together(group, member);
    for (int member = 1; member < group->size; member++)
        if (!same_call(&received[member], &received[0]))
            return fail_mismatched(group);
    return SHARD_OK;
}

/* One checked collective in one exchange, without data of its own. */
static shard_status preflight_only(shard_group *group, const shard_call *call)
{
    if (!group || group->size == 1)
        return shard_last_status();
    group->call = call;
    shard_status status = shard_preflight(group, call, NULL, 0);
    group->call = NULL;
    return status;
}

shard_status shard_barrier(shard_group *group)
{
    SHARD_FUNCTION("shard_barrier");
    return preflight_only(group, &(shard_call){.name = "barrier", .operation = SHARD_CALL_BARRIER});
}

shard_status shard_agree(shard_group *group)
{
    SHARD_FUNCTION("shard_agree");
    return preflight_only(group, &(shard_call){.name = "agree", .operation = SHARD_CALL_AGREE});
}

shard_status shard_group_fail(shard_group *group)
{
    if (shard_last_status() == SHARD_OK)
        shard_error(SHARD_ERROR_INTERNAL, "shard_group_fail: called without an error");
    return preflight_only(group, &(shard_call){.name = "fail", .operation = SHARD_CALL_FAIL});
}

shard_group *shard_group_start(shard_group *group, const char *what)
{
    if (!group || preflight_only(group, &(shard_call){.name = what, .operation = SHARD_CALL_START}) == SHARD_OK)
        return group;
    shard_group_destroy(group);
    return NULL;
}
