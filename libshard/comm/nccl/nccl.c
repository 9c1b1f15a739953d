/* In the library: which GPUs NCCL connects, by the plugin that is built where CUDA and NCCL were found. */
#include "comm/nccl/host.h"

#include "base/env.h"
#include "base/machine.h"
#include "comm/backends.h"
#include "comm/majority.h"
#include "comm/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* This rank has aborted its collectives of device memory with the thread's error: to all ranks. */
static void notify_abort(shard_group *group)
{
    char text[SHARD_COMM_TEXT];
    shard_status status = shard_last_status();
    bool names_ranks = status == SHARD_ERROR_PEER || status == SHARD_ERROR_TIMEOUT;
    shard_process.waited |= status == SHARD_ERROR_TIMEOUT;
    if (names_ranks)
        shard_note_named_ranks(group);
    if (!group->transport->abort)
        return;
    shard_write_error(group, text, sizeof text);
    group->transport->abort(group, SHARD_ABORT_DEVICE, names_ranks ? status : SHARD_ERROR_PEER, text);
}

static const shard_nccl_plugin *loaded;

const shard_nccl_plugin *shard_nccl_load(void)
{
    if (loaded)
        return loaded;
    const shard_nccl_host host = {
        .base = shard_plugin_own_base,
        .keep_error = shard_keep_error,
        .put_back_error = shard_put_back_error,
        .timeout = shard_comm_timeout,
        .group_describe = shard_group_describe,
        .notify_abort = notify_abort,
        .group_name_ranks = shard_group_name_ranks,
    };
    void *symbol = shard_plugin_load("nccl", SHARD_NCCL_PLUGIN_OPEN, "this libshard was built without NCCL",
                                     "it needs libnccl.so.2 where it was when libshard was built", false);
    if (!symbol)
        return NULL;
    shard_nccl_plugin_open_function *open;
    memcpy(&open, &symbol, sizeof open);
    return loaded = open(&host);
}

/* ---- the offer of each rank ---- */

typedef struct nccl_offer {
    uint64_t host;             /* hash of the machine */
    char device[32];           /* the device's place in the machine: "0000:1b:00.0" */
    char refusal[128];         /* why it cannot be reached but through the host; "" if it can */
    int32_t reduced_precision; /* SHARD_NCCL_REDUCED_PRECISION */
    int32_t shares_gpu;        /* it can be reached from ranks on the same one */
} nccl_offer;

_Static_assert(sizeof(nccl_offer) <= SHARD_OFFER_BYTES, "it is an offer");

/* Makes the thread's error the reason why the device is not reached. */
static void refuse_by_error(nccl_offer *offer)
{
    snprintf(offer->refusal, sizeof offer->refusal, "%.*s", (int)sizeof offer->refusal - 1, shard_last_error());
    shard_clear_error();
}

static void make_offer(shard_device *device, void *made)
{
    nccl_offer offer = {.host = shard_hash_machine()};
    int64_t wanted = 1, reduced = 0;
    bool valid = shard_env_integer("SHARD_NCCL", 1, 0, 1, &wanted) == SHARD_OK &&
                 shard_env_integer("SHARD_NCCL_REDUCED_PRECISION", 0, 0, 1, &reduced) == SHARD_OK;
    const shard_nccl_plugin *nccl = valid && wanted ? shard_nccl_load() : NULL;
    offer.reduced_precision = (int32_t)reduced;
    if (valid && !wanted)
        snprintf(offer.refusal, sizeof offer.refusal, "SHARD_NCCL is 0");
    else if (valid && (!nccl || nccl->find_place(device, offer.device, sizeof offer.device) != SHARD_OK))
        refuse_by_error(&offer);
    else if (nccl)
        offer.shares_gpu = nccl->shares_gpu && strtol(shard_env_string("NCCL_MULTI_RANK_GPU_ENABLE", "0"), NULL, 0) != 0;
    memcpy(made, &offer, sizeof offer);
}

static nccl_offer offer_of(const void *offers, int rank)
{
    nccl_offer offer;
    memcpy(&offer, (const char *)offers + (size_t)rank * SHARD_OFFER_BYTES, sizeof offer);
    return offer;
}

/* ---- the choice from all offers ---- */

/* Why the ranks' devices cannot reach each other: "" if they can. */
static void find_refusal(const shard_group *group, const void *offers, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int rank = 0; rank < group->size && !text[0]; rank++) {
        nccl_offer one = offer_of(offers, rank);
        if (one.refusal[0])
            snprintf(text, bytes, "rank %d: %s", group->world_ranks[rank], one.refusal);
        for (int i = 0; i < rank && !text[0]; i++) {
            const char *at = (const char *)offers + (size_t)i * SHARD_OFFER_BYTES;
            if (memcmp(at, &one.host, sizeof one.host) != 0) /* its first field */
                continue;
            nccl_offer other = offer_of(offers, i);
            if (strcmp(one.device, other.device) == 0 && !(one.shares_gpu && other.shares_gpu))
                snprintf(text, bytes, "ranks %d and %d share a GPU", group->world_ranks[i], group->world_ranks[rank]);
        }
    }
}

/* Where settings differ NCCL's calls would too. */
static shard_status check_settings(const shard_group *group, const void *offers)
{
    shard_majority found;
    const char *settings = (const char *)offers + offsetof(nccl_offer, reduced_precision);
    if (!shard_find_majority(group, settings, sizeof offer_of(offers, 0).reduced_precision, SHARD_OFFER_BYTES, &found))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_MISMATCH,
                       "SHARD_NCCL_REDUCED_PRECISION is %d on rank %d and %d on %s; all ranks need the same",
                       (int)offer_of(offers, found.odd).reduced_precision, group->world_ranks[found.odd],
                       (int)offer_of(offers, found.usual).reduced_precision, found.usual_ranks);
}

/* The first rank names the communicator, and all enter it. */
static shard_status connect(shard_group *group, shard_device *device, const void *offers, char *refusal, size_t bytes)
{
    const shard_collective naming = {.kind = SHARD_COLLECTIVE_EXCHANGE, .count = SHARD_NCCL_ID_BYTES, .dtype = SHARD_UINT8};
    unsigned char id[SHARD_NCCL_ID_BYTES] = {0};
    find_refusal(group, offers, refusal, bytes);
    if (refusal[0])
        return SHARD_OK;
    SHARD_TRY(check_settings(group, offers));
    const shard_nccl_plugin *nccl = shard_nccl_load();
    if (group->rank == 0)
        nccl->make_id(id);
    SHARD_TRY(shard_preflight(group, &naming, id, sizeof id));
    memcpy(id, shard_received(group)[0].data, sizeof id);
    nccl->connect(group, device, id, offer_of(offers, 0).reduced_precision != 0);
    shard_status status = shard_preflight_only(group, SHARD_COLLECTIVE_AGREE);
    if (status == SHARD_OK)
        group->device_transport = &nccl->transport;
    else
        nccl->transport.close(group);
    return status;
}

_Static_assert(SHARD_NCCL_ID_BYTES <= SHARD_SMALL_BYTES, "an id travels with the fingerprint");

static void end(void)
{
    if (loaded)
        loaded->transport.end();
}

const shard_transport shard_nccl_transport = {.name = "nccl", .offer = make_offer, .connect = connect, .end = end};
