/* Which device transport a group takes. What keeps it from the quickest is said in the log. */
#include "comm/device_transport.h"

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/nccl/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what a member offers ---- */

/* Of the machine's name, and of its boot: names may be the same. */
static uint64_t hash_machine(void)
{
    char text[256] = "";
    gethostname(text, sizeof text - 1);
    uint64_t hash = shard_hash_text(SHARD_HASH_START, text);
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (boot && fgets(text, sizeof text, boot))
        hash = shard_hash_text(hash, text);
    if (boot)
        fclose(boot);
    return hash;
}

/* Makes the thread's error the reason why the device is not reached. */
static void refuse_by_error(shard_device_offer *offer)
{
    snprintf(offer->refusal, sizeof offer->refusal, "%.*s", (int)sizeof offer->refusal - 1, shard_last_error());
    shard_clear_error();
}

shard_device_offer shard_device_offer_of(shard_device *device)
{
    shard_device_offer offer = {.host = hash_machine()};
    int64_t wanted, reduced;
    if (shard_env_integer("SHARD_NCCL", 1, 0, 1, &wanted) != SHARD_OK ||
        shard_env_integer("SHARD_NCCL_REDUCED_PRECISION", 0, 0, 1, &reduced) != SHARD_OK)
        return offer;
    offer.reduced_precision = (int32_t)reduced;
    if (!wanted) {
        snprintf(offer.refusal, sizeof offer.refusal, "SHARD_NCCL is 0");
        return offer;
    }
    const shard_nccl_plugin *nccl = shard_nccl_load();
    if (!nccl || nccl->find_place(device, offer.device, sizeof offer.device) != SHARD_OK)
        refuse_by_error(&offer);
    else
        offer.shares_gpu = nccl->shares_gpu && strtol(shard_env_string("NCCL_MULTI_RANK_GPU_ENABLE", "0"), NULL, 0) != 0;
    return offer;
}

/* ---- what all of them make of it ---- */

/* Why the members' devices cannot reach each other: "" if they can. */
static void find_refusal(const shard_group *group, const shard_device_offer *const *offers, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int member = 0; member < group->size && !text[0]; member++) {
        if (offers[member]->refusal[0])
            snprintf(text, bytes, "rank %d: %s", group->world_ranks[member], offers[member]->refusal);
        for (int other = 0; other < member && !text[0]; other++)
            if (offers[member]->host == offers[other]->host && strcmp(offers[member]->device, offers[other]->device) == 0 &&
                !(offers[member]->shares_gpu && offers[other]->shares_gpu))
                snprintf(text, bytes, "ranks %d and %d share a GPU", group->world_ranks[other], group->world_ranks[member]);
    }
}

/* Where settings differ NCCL's calls would too. */
static shard_status check_settings(const shard_group *group, const shard_device_offer *const *offers)
{
    for (int member = 1; member < group->size; member++)
        if (offers[member]->reduced_precision != offers[0]->reduced_precision)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "SHARD_NCCL_REDUCED_PRECISION is %d on rank %d and %d on rank %d; all ranks need the same",
                               (int)offers[0]->reduced_precision, group->world_ranks[0], (int)offers[member]->reduced_precision,
                               group->world_ranks[member]);
    return SHARD_OK;
}

/* The first member names the communicator, and all enter it. */
static shard_status connect(shard_group *group, shard_device *device, bool reduced_precision)
{
    const shard_nccl_plugin *nccl = shard_nccl_load();
    unsigned char id[SHARD_NCCL_ID_BYTES] = {0}, *ids = shard_calloc((size_t)group->size, sizeof id);
    if (group->rank == 0)
        nccl->make_id(id);
    shard_status status = shard_group_exchange(group, id, sizeof id, ids);
    if (status == SHARD_OK) {
        nccl->connect(group, device, ids, reduced_precision);
        status = shard_agree(group);
        if (status != SHARD_OK)
            nccl->device_transport.leave(group);
    }
    free(ids);
    return status;
}

static void log_members(const shard_group *group, const char *how)
{
    char text[SHARD_COMM_TEXT] = "";
    bool members[group->size];
    for (int member = 0; member < group->size; member++)
        members[member] = true;
    shard_group_name_ranks(group, members, text, sizeof text);
    if (group->rank == 0)
        shard_log_message(SHARD_LOG_INFO, "collectives of %s in GPU memory go through %s", text, how);
}

static void take_nccl(shard_group *group)
{
    const shard_nccl_plugin *nccl = shard_nccl_load();
    char text[64];
    snprintf(text, sizeof text, "NCCL %s", nccl->version);
    group->device_transport = &nccl->device_transport;
    log_members(group, text);
}

shard_status shard_device_transport_choose(shard_group *group, shard_device *device, const shard_device_offer *const *offers)
{
    char refusal[256], text[320];
    find_refusal(group, offers, refusal, sizeof refusal);
    if (refusal[0]) {
        snprintf(text, sizeof text, "host memory: %s", refusal);
        group->device_transport = &shard_staged_transport;
        log_members(group, text);
        return SHARD_OK;
    }
    SHARD_TRY(check_settings(group, offers));
    SHARD_TRY(connect(group, device, offers[0]->reduced_precision != 0));
    take_nccl(group);
    return SHARD_OK;
}

shard_status shard_device_transport_split(shard_group *parent, shard_group *group, int color)
{
    if (!parent->device_transport || parent->device_transport == &shard_staged_transport)
        return SHARD_OK;
    const shard_nccl_plugin *nccl = shard_nccl_load();
    nccl->split(parent, group, color);
    shard_status status = shard_agree(parent);
    if (status == SHARD_OK && group)
        take_nccl(group);
    else if (group)
        nccl->device_transport.leave(group);
    return status;
}
