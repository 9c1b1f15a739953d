#include "comm/transport.h"

#include "base/kept_error.h"
#include "comm/function.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

shard_comm_process shard_process = {.timeout = 600, .world_size = INT_MAX};

double shard_comm_timeout(void)
{
    return shard_process.timeout;
}

int shard_group_rank(const shard_group *group)
{
    return group ? group->rank : 0;
}

int shard_group_size(const shard_group *group)
{
    return group ? group->size : 1;
}

int shard_group_world_rank(const shard_group *group, int rank)
{
    return group && rank >= 0 && rank < group->size ? group->world_ranks[rank] : 0;
}

const char *shard_group_transport(const shard_group *group)
{
    return group ? group->transport->name : "self";
}

const char *shard_group_broken_prefix(uint64_t *since)
{
    uint64_t now = shard_errors_cleared() + 1;
    if (*since == 0)
        *since = now;
    return *since == now
               ? ""
               : "this group cannot be used any more, as a rank waited in it in vain: load the last checkpoint in a new "
                 "job; it was: ";
}

/* ---- ranks by name ---- */

void shard_name_ranks(const shard_group *group, bool (*has)(const void *context, int rank), const void *context, char *text,
                      size_t bytes)
{
    int number = 0, named = 0;
    for (int i = 0; i < group->size; i++)
        number += has(context, i);
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, bytes - used, number == 1 ? "rank" : "ranks");
    for (int i = 0; i < group->size && named < SHARD_NAMED_RANKS && used < bytes; i++) {
        if (!has(context, i))
            continue;
        const char *before = named == 0 ? " " : named == number - 1 ? " and " : ", ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%d", before, group->world_ranks ? group->world_ranks[i] : i);
        named++;
    }
    if (named < number && used < bytes)
        snprintf(text + used, bytes - used, " and %d more", number - named);
}

static bool is_marked(const void *context, int rank)
{
    const bool *marked = context;
    return !marked || marked[rank];
}

void shard_group_name_ranks(const shard_group *group, const bool *marked, char *text, size_t bytes)
{
    shard_name_ranks(group, is_marked, marked, text, bytes);
}

/* ---- collectives by name ---- */

static size_t describe_counts(const shard_group *group, const shard_collective *call, char *text, size_t bytes)
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
static void describe_data(const shard_group *group, const shard_collective *call, char *text, size_t bytes)
{
    static const char *const reductions[] = {[SHARD_SUM] = "", [SHARD_MAX] = " (max)", [SHARD_MIN] = " (min)"};
    size_t used = 0;
    text[0] = '\0';
    if (call->kind == SHARD_COLLECTIVE_EXCHANGE)
        snprintf(text, bytes, " of %" PRId64 " bytes", call->count);
    if (call->kind <= SHARD_COLLECTIVE_EXCHANGE)
        return;
    if (shard_collective_reduces(call) && call->op >= SHARD_SUM && call->op <= SHARD_MIN)
        used += (size_t)snprintf(text + used, bytes - used, "%s", reductions[call->op]);
    if (call->counts)
        used += describe_counts(group, call, text + used, bytes - used);
    else
        used += (size_t)snprintf(text + used, bytes - used, " of %" PRId64, call->count);
    if (used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, " %s", shard_dtype_name(call->dtype));
    if (call->kind == SHARD_COLLECTIVE_BROADCAST && used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, " from rank %d", shard_group_world_rank(group, call->root));
    if (call->name && used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, " of %s", call->name);
    if (call->device && used < bytes)
        snprintf(text + used, bytes - used, " in a device's memory");
}

const char *shard_collective_name(shard_collective_kind kind)
{
    static const char *const names[] = {
        [SHARD_COLLECTIVE_WAIT] = "wait for a collective",
        [SHARD_COLLECTIVE_WORLD_OPEN] = "world_open",
        [SHARD_COLLECTIVE_GROUP_CREATE] = "group_create",
        [SHARD_COLLECTIVE_GROUP_SPLIT] = "group_split",
        [SHARD_COLLECTIVE_BARRIER] = "barrier",
        [SHARD_COLLECTIVE_AGREE] = "agree",
        [SHARD_COLLECTIVE_FAIL] = "fail",
        [SHARD_COLLECTIVE_EXCHANGE] = "exchange",
        [SHARD_COLLECTIVE_ALL_REDUCE] = "all_reduce",
        [SHARD_COLLECTIVE_ALL_GATHER] = "all_gather",
        [SHARD_COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
        [SHARD_COLLECTIVE_BROADCAST] = "broadcast",
    };
    return names[kind];
}

/* By the public function's name where it is known, with the collective that is made in it. */
void shard_group_describe(const shard_group *group, char *text, size_t bytes)
{
    const char *function = shard_current_function()->name;
    const shard_collective *call = group->call;
    char data[SHARD_COMM_TEXT / 2] = "";
    if (call)
        describe_data(group, call, data, sizeof data);
    const char *name = shard_collective_name(call ? call->kind : SHARD_COLLECTIVE_GROUP_CREATE);
    if (!function)
        snprintf(text, bytes, "%s%s", name, data);
    else if (strncmp(function, "shard_", 6) == 0 && strcmp(function + 6, name) == 0)
        snprintf(text, bytes, "%s%s", function, data);
    else if (call && call->kind > SHARD_COLLECTIVE_EXCHANGE)
        snprintf(text, bytes, "%s (%s%s)", function, name, data);
    else if (shard_function_hint())
        snprintf(text, bytes, "%s (%s)", function, shard_function_hint());
    else
        snprintf(text, bytes, "%s", function);
}
