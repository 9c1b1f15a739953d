/* Which carrier a group takes, said in the log where it is not the quickest. */
#include "comm/carrier.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

shard_carrier_offer shard_carrier_offer_of(shard_device *device)
{
    shard_carrier_offer offer = {0};
    snprintf(offer.refusal, sizeof offer.refusal, "no transport of this build reaches the memory of %s", device->name);
    return offer;
}

/* Why the members' devices cannot reach each other: "" if they can. */
static void find_refusal(const shard_group *group, const shard_carrier_offer *const *offers, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int member = 0; member < group->size && !text[0]; member++) {
        if (offers[member]->refusal[0])
            snprintf(text, bytes, "rank %d: %s", group->world_ranks[member], offers[member]->refusal);
        for (int other = 0; other < member && !text[0]; other++)
            if (offers[member]->host == offers[other]->host && strcmp(offers[member]->device, offers[other]->device) == 0)
                snprintf(text, bytes, "ranks %d and %d share a GPU", group->world_ranks[other], group->world_ranks[member]);
    }
}

shard_status shard_carrier_choose(shard_group *group, shard_device *device, const shard_carrier_offer *const *offers)
{
    char refusal[SHARD_COMM_TEXT];
    find_refusal(group, offers, refusal, sizeof refusal);
    (void)device;
    group->carrier = &shard_staged_carrier;
    shard_log(SHARD_LOG_INFO, "collectives of %d ranks go through host memory: %s", group->size, refusal);
    return SHARD_OK;
}
