/*
 * Before each collective the ranks exchange a fingerprint of what they are about
 * to do: all see the same fingerprints, so all decide equally whether the transport's
 * collective follows, or which text all fail with. The text of a failure needs more
 * room: only then there is a second exchange. A fault that this rank's device has
 * found by then counts as a failure.
 */
#include "comm/preflight.h"

#include "base/error.h"
#include "base/kept_error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/random.h"
#include "comm/function.h"
#include "comm/majority.h"
#include "comm/straggler.h"
#include "device/graph.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ON_DEVICE 0x100u
#define CHOOSES 0x200u

/* In place of the rank of an error that all ranks find at once; its serial number is a hash of the text. */
#define ALL_RANKS (-1)

_Static_assert(sizeof(shard_fingerprint) == 256 && sizeof(shard_fingerprint) <= SHARD_COMM_TEXT, "peers has room for either");
_Static_assert(SHARD_COMM_TEXT <= SHARD_EXCHANGE_BYTES, "a text travels in one exchange");

/* ---- which error it is ---- */

static _Thread_local shard_known_error known;

static atomic_uint joint_errors;

bool shard_error_is_joint(int size)
{
    return shard_last_status() != SHARD_OK && known.serial == shard_error_serial() && known.size >= size;
}

static shard_error_id id_of_error(const shard_group *group)
{
    return shard_error_is_joint(1) ? known.id : (shard_error_id){group->world_ranks[group->rank], shard_error_serial()};
}

/* Of this thread's error: which one it is, and that a group of that size has received it, of which a rank had taken that many
 * draws. */
static void remember_error(shard_error_id id, int size, uint64_t draws)
{
    known.serial = shard_error_serial();
    known.id = id;
    known.size = size;
    if (size < shard_process.world_size)
        return;
    atomic_fetch_add(&joint_errors, 1);
    shard_random_note_joint_error(draws);
}

void shard_note_named_ranks(const shard_group *group)
{
    if (!shard_error_is_joint(1))
        remember_error(id_of_error(group), 1, shard_random_draws());
}

unsigned shard_joint_errors(void)
{
    return atomic_load(&joint_errors);
}

bool shard_set_error_aside(const shard_group *group, shard_aside_error *aside)
{
    int size = shard_group_size(group);
    if (shard_last_status() == SHARD_OK || (size > 1 && (!shard_error_is_joint(size) || known.id.rank == ALL_RANKS)))
        return false;
    aside->known = known;
    shard_keep_error(&aside->kept);
    return true;
}

void shard_return_error(const shard_aside_error *aside)
{
    if (shard_last_status() == SHARD_OK || shard_error_is_joint(aside->known.size))
        known = aside->known;
    shard_put_back_error(&aside->kept);
    if (shard_error_is_joint(shard_process.world_size)) /* whose draws a success in between has passed over */
        shard_random_note_joint_error(shard_random_draws());
}

void shard_write_error(const shard_group *group, char *text, size_t bytes)
{
    size_t used = 0;
    if (!shard_error_is_joint(1)) /* else it names its rank already */
        used = (size_t)snprintf(text, bytes, "rank %d: ", group->world_ranks[group->rank]);
    shard_printable(text + used, bytes - used, shard_last_error());
}

/* ---- failing together ---- */

/* Unchecked, to peers. */
static shard_status exchange(shard_group *group, const void *mine, int64_t bytes)
{
    const shard_collective call = {.kind = SHARD_COLLECTIVE_EXCHANGE, .send = mine, .receive = group->peers, .count = bytes};
    shard_request *none = NULL;
    return group->transport->post(group, &call, &none);
}

/* Whether all ranks of the group have the same error, and need no exchange. */
static bool have_same_error(const shard_group *group, shard_error_id id)
{
    const shard_fingerprint *received = shard_received(group);
    for (int rank = 0; rank < group->size; rank++)
        if (received[rank].status == SHARD_OK || received[rank].error.rank != id.rank || received[rank].error.serial != id.serial)
            return false;
    return true;
}

/* Of the rank that has taken most. */
static uint64_t most_draws(const shard_group *group)
{
    uint64_t most = 0;
    for (int rank = 0; rank < group->size; rank++)
        most = shard_received(group)[rank].draws > most ? shard_received(group)[rank].draws : most;
    return most;
}

/* All ranks get the error of the first that has one; each that has one keeps its status. */
static shard_status fail_together(shard_group *group, int first)
{
    char mine[SHARD_COMM_TEXT] = "";
    uint64_t draws = most_draws(group);
    shard_status status = shard_last_status();
    shard_error_id id = shard_received(group)[first].error;
    if (!have_same_error(group, id)) {
        if (status != SHARD_OK)
            shard_write_error(group, mine, sizeof mine);
        if (exchange(group, mine, sizeof mine) != SHARD_OK)
            return shard_last_status();
        const char(*texts)[SHARD_COMM_TEXT] = group->peers;
        shard_replace_error(status == SHARD_OK ? SHARD_ERROR_PEER : status, texts[first]);
    }
    remember_error(id, group->size, draws);
    return shard_last_status();
}

/* The text of a rank's call, sent if calls differ. */
typedef struct call_text {
    uint64_t fingerprint; /* a hash of it */
    char call[SHARD_COMM_TEXT - SHARD_FUNCTION_ARGUMENTS - sizeof(uint64_t)];
    char arguments[SHARD_FUNCTION_ARGUMENTS];
} call_text;

_Static_assert(sizeof(call_text) == SHARD_COMM_TEXT, "it travels as a text");

/* The first identical argument in which two ranks differ: its text on this one. */
static void describe_argument(const char *mine, const char *other, char *text, size_t bytes)
{
    size_t start = 0, same = 0;
    for (; mine[same] && mine[same] == other[same]; same++)
        if (mine[same] == ';')
            start = same + 2;
    if (!mine[same] && other[same] == ';')
        start = same;
    if (mine[same] == ';' && !other[same])
        start = same + 2;
    const char *found = mine[start] ? mine + start : "nothing more";
    size_t from = start < same ? shard_show_from(found, other + start, 60) : 0; /* of a long path */
    int name = from ? (int)strcspn(found, " ") : 0;
    snprintf(text, bytes, " with %.*s%s%.*s", name, found, from ? " ..." : "", (int)strcspn(found + from, ";"), found + from);
}

/* "rank 1 calls A while ranks 0 and 2 call B": the first rank whose call is not that of most ranks, and those that make the
 * same call, come first. */
static void describe_difference(const shard_group *group, const call_text *texts, bool *marked, char *out, size_t bytes)
{
    shard_majority found;
    out[0] = '\0';
    if (!shard_find_majority(group, texts, sizeof *texts, sizeof *texts, &found))
        return; /* fingerprints differ, and so texts, which have a hash of them */
    const int examples[] = {found.odd, found.usual};
    bool same_calls = strcmp(texts[found.odd].call, texts[found.usual].call) == 0;
    for (int i = 0; i < 2; i++) {
        const call_text *example = &texts[examples[i]], *other = &texts[examples[1 - i]];
        char arguments[SHARD_FUNCTION_ARGUMENTS] = "";
        int number = 0;
        for (int rank = 0; rank < group->size; rank++)
            number += marked[rank] = memcmp(&texts[rank], example, sizeof *texts) == 0;
        if (same_calls && strcmp(example->arguments, other->arguments) == 0)
            snprintf(arguments, sizeof arguments, "%s", i == 0 ? "" : " with other arguments");
        else if (same_calls)
            describe_argument(example->arguments, other->arguments, arguments, sizeof arguments);
        shard_group_name_ranks(group, marked, out, bytes);
        size_t used = strlen(out);
        snprintf(out + used, bytes - used, " %s %.150s%.100s%s", number == 1 ? "calls" : "call", example->call, arguments,
                 i == 0 ? " while " : "");
    }
}

static shard_status fail_mismatched(shard_group *group)
{
    call_text mine = {0};
    char text[SHARD_COMM_TEXT];
    uint64_t draws = most_draws(group);
    shard_group_describe(group, mine.call, sizeof mine.call);
    snprintf(mine.arguments, sizeof mine.arguments, "%s", shard_current_function()->arguments);
    size_t used = strlen(mine.call);
    const shard_fingerprint *received = shard_received(group);
    mine.fingerprint = shard_hash_bytes(SHARD_HASH_START, &received[group->rank], offsetof(shard_fingerprint, status));
    for (int rank = 1; rank < group->size; rank++)
        if (received[rank].sequence != received[0].sequence) {
            snprintf(mine.call + used, sizeof mine.call - used, " as collective %" PRIu64 " of the group", group->sequence);
            break;
        }
    shard_status status = exchange(group, &mine, sizeof mine);
    bool *marked = shard_calloc((size_t)group->size, sizeof *marked);
    if (status == SHARD_OK && marked) {
        describe_difference(group, group->peers, marked, text, sizeof text);
        shard_error(SHARD_ERROR_MISMATCH, "%s", text);
        remember_error((shard_error_id){ALL_RANKS, shard_hash_text(SHARD_HASH_START, text)}, group->size, draws);
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
static void send_abort_notice(shard_group *group, bool waits)
{
    static _Thread_local bool is_sent;
    char text[SHARD_COMM_TEXT];
    if (!group->transport->abort || (waits ? shard_last_status() == SHARD_OK : !is_sent))
        return;
    is_sent = waits;
    if (waits)
        shard_write_error(group, text, sizeof text);
    group->transport->abort(group, waits ? SHARD_ABORT_WAITING : SHARD_ABORT_WITHDRAWN, shard_last_status(), waits ? text : NULL);
}

/* The others receive what a device has found by now, as a rank may never wait for its device. */
static void report_fault(const shard_collective *call)
{
    shard_device *device = call->device ? call->device : shard_opened_accelerator();
    if (device)
        device->ops->report(device);
}

shard_status shard_refuse_outsider(const shard_group *group)
{
    const char *function = shard_current_function()->name;
    if (shard_process.ended)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: called after shard_finalize: the job's groups can only be destroyed",
                           function ? function : "a collective");
    if (!shard_process.forked)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNAVAILABLE, "this process was forked by rank %d after shard_init: it can enter no collective",
                       group->world_ranks[group->rank]);
}

void shard_refuse_captured_collective(void)
{
    shard_graph_refuse("a collective of several ranks, whose preflight check is the hosts',");
}

static shard_fingerprint make_fingerprint(shard_group *group, const shard_collective *call, const void *small, size_t bytes)
{
    uint64_t function = shard_hash_word(SHARD_HASH_START ^ shard_current_function()->hash, call->identity);
    shard_fingerprint mine = {
        .sequence = ++group->sequence,
        .layout = shard_hash_words(function, call->counts, call->counts ? group->size : 0),
        .count = call->count,
        .kind = (uint32_t)call->kind | (call->device ? ON_DEVICE : 0) | (call->chooses ? CHOOSES : 0),
        .dtype = call->dtype,
        .root = call->kind == SHARD_COLLECTIVE_BROADCAST ? (uint32_t)call->root : (uint32_t)call->op,
        .status = (int32_t)shard_last_status(),
        .computed = shard_straggler_computed(),
        .draws = shard_random_draws(),
    };
    if (mine.status != SHARD_OK)
        mine.error = id_of_error(group);
    else if (bytes)
        memcpy(mine.data, small, bytes);
    return mine;
}

/* The first rank of the group writes a line to the log. */
static void report_straggler(const shard_group *group)
{
    shard_straggler found;
    char others[64] = "the other rank";
    double seconds = shard_process.straggler_seconds;
    if (group->rank != 0 || seconds <= 0 ||
        !shard_stragglers_find(group->stragglers, group->size, &shard_received(group)->computed, sizeof(shard_fingerprint),
                               seconds, &found))
        return;
    if (group->size > 2)
        snprintf(others, sizeof others, "the median of the %d others", group->size - 1);
    shard_log_message(
        SHARD_LOG_WARN,
        "rank %d is a straggler: in the last %.1f s it computed for %.1f s, %s for %.1f s (SHARD_STRAGGLER_SECONDS)",
        group->world_ranks[found.rank], found.period, found.computed, others, found.median);
}

/* The check's exchange. A rank whose device has waited in vain for SHARD_TIMEOUT waits a second more for the transport to find
 * which ranks are missing: these its error names then. */
static shard_status exchange_fingerprints(shard_group *group, const shard_fingerprint *mine)
{
    shard_kept_error late;
    group->waited = shard_process.waited && mine->status == SHARD_ERROR_TIMEOUT;
    if (!group->waited)
        return exchange(group, mine, sizeof *mine);
    shard_keep_error(&late);
    shard_status status = exchange(group, mine, sizeof *mine);
    group->waited = false;
    if (status == SHARD_OK)
        shard_put_back_error(&late);
    return status;
}

/* An error that the whole world has received is not sent again: some ranks received it early in
 * a step and some at its end, and they come to the same collective next, when they have cleared
 * it, only if none enters one before. */
shard_status shard_preflight(shard_group *group, const shard_collective *call, const void *small, size_t bytes)
{
    if (shard_error_is_joint(shard_process.world_size))
        return shard_last_status();
    SHARD_TRY(shard_refuse_outsider(group));
    shard_refuse_captured_collective();
    report_fault(call);
    shard_fingerprint mine = make_fingerprint(group, call, small, bytes);
    uint64_t before = shard_error_serial();
    send_abort_notice(group, true);
    shard_status status = exchange_fingerprints(group, &mine);
    send_abort_notice(group, false);
    if (status != SHARD_OK) {
        if (shard_error_serial() != before)
            shard_note_named_ranks(group);
        return shard_last_status();
    }
    const shard_fingerprint *received = shard_received(group);
    for (int rank = 0; rank < group->size; rank++)
        if (received[rank].status != SHARD_OK)
            return fail_together(group, rank);
    for (int rank = 1; rank < group->size; rank++)
        if (!same_call(&received[rank], &received[0]))
            return fail_mismatched(group);
    if (group->size == shard_process.world_size)
        shard_random_note_common_place();
    report_straggler(group);
    return SHARD_OK;
}

/* ---- collectives without data ---- */

shard_status shard_preflight_only(shard_group *group, shard_collective_kind kind)
{
    if (!group || group->size == 1)
        return shard_last_status();
    const shard_collective call = {.kind = kind}, *outer = group->call;
    shard_straggler_enter();
    group->call = &call;
    shard_status status = shard_preflight(group, &call, NULL, 0);
    group->call = outer;
    shard_straggler_leave();
    return status;
}

shard_status shard_barrier(shard_group *group)
{
    SHARD_FUNCTION("shard_barrier");
    return shard_preflight_only(group, SHARD_COLLECTIVE_BARRIER);
}

shard_status shard_agree(shard_group *group)
{
    SHARD_FUNCTION("shard_agree");
    return shard_preflight_only(group, SHARD_COLLECTIVE_AGREE);
}
