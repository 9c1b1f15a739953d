/*
 * A unit's values are gathered when one of them is needed. All ranks of its group need it at the same
 * time, as they run the same program. The unit is evictable after its module's forward, and is evicted
 * when another unit is needed: so the next module finds the values if it is in the same unit. Backward
 * evicts a unit when its gradients are complete.
 *
 * If a gather can run while the device computes, the next unit is prefetched as soon as one is needed.
 * Evaluation, forward and backward have a sequence each. It is recorded as units are needed, and
 * recorded again from the place at which a pass takes another order.
 *
 * One thread at a time uses values. But any thread may destroy a model that no other thread uses, as a
 * language's finalizer does: an order has a lock, as it may outlive its engine with several models.
 */
#include "parallel/unshard.h"

#include "autograd/autograd.h"
#include "base/thread.h"
#include "comm/preflight.h"

#include <stdlib.h>

enum { MOST = 1 << 16 }; /* units of a sequence: a limit for forwards without a backward */

typedef struct unshard {
    shard_materializer materializer; /* first: a storage's materializer points to this struct */
    shard_storage *storage;
    shard_unit *unit;
    shard_unshard_order *order;
    bool arriving; /* was started, and no operation has needed it yet */
    shard_request *request;
    struct unshard *next; /* the next unit that has memory */
} unshard;

typedef enum mode { EVALUATION, FORWARD, BACKWARD } mode;

typedef struct sequence {
    unshard **all;
    int64_t count, capacity;
    int64_t at;     /* the unit that is expected next */
    bool recording; /* else a known sequence is followed */
} sequence;

struct shard_unshard_order {
    pthread_mutex_t lock;
    int refs;
    unsigned forgotten; /* the count of joint errors when the order was used last */
    unshard *present;   /* those that have memory */
    sequence of[BACKWARD + 1];
    mode mode; /* in which a unit was needed last */
};

/* ---- the sequences ---- */

/* Ends a pass, whose length is then known. */
static void end(sequence *s)
{
    if (s->at > 0)
        s->count = s->at;
    s->at = 0;
    s->recording = false;
}

static void change_mode(shard_unshard_order *order)
{
    mode now = shard_in_backward() ? BACKWARD : shard_grad_enabled() ? FORWARD : EVALUATION;
    if (now == BACKWARD && order->mode != BACKWARD)
        end(&order->of[FORWARD]);
    if (now != BACKWARD && order->mode == BACKWARD)
        end(&order->of[BACKWARD]);
    order->mode = now;
}

/* Records that u is needed now, and returns the unit that is expected next, or NULL. */
static unshard *note(unshard *u)
{
    shard_unshard_order *order = u->order;
    change_mode(order);
    sequence *s = &order->of[order->mode];
    bool expected = s->at < s->count && s->all[s->at] == u, first = s->count > 0 && s->all[0] == u;
    if (!expected && first && order->mode != BACKWARD && (!s->recording || order->mode == EVALUATION)) {
        end(s); /* and the next pass begins, without a backward between */
    } else if (!expected) {
        s->count = s->at = s->at < MOST ? s->at : 0;
        if (shard_grow(&s->all, &s->capacity, s->count + 1, sizeof *s->all) != SHARD_OK)
            return NULL;
        s->all[s->count++] = u;
        s->recording = true;
    }
    s->at++;
    if (s->at < s->count)
        return s->all[s->at];
    const sequence *backward = &order->of[BACKWARD];
    return order->mode == FORWARD && backward->count > 0 ? backward->all[0] : NULL;
}

static void forget_order(shard_unshard_order *order)
{
    for (mode m = EVALUATION; m <= BACKWARD; m++)
        order->of[m].count = order->of[m].at = 0;
    order->mode = EVALUATION;
}

void shard_unshard_end_pass(shard_unshard_order *order)
{
    SHARD_HOLD(&order->lock);
    end(&order->of[FORWARD]);
    if (order->mode == BACKWARD)
        end(&order->of[BACKWARD]);
    else
        order->of[BACKWARD].count = 0; /* it needed no unit that was not in memory */
    order->mode = EVALUATION;
}

/* ---- memory ---- */

static void evict_now(unshard *u)
{
    unshard **at = &u->order->present;
    while (*at && *at != u)
        at = &(*at)->next;
    if (*at)
        *at = (*at)->next;
    if (u->request)
        shard_unit_wait(u->unit, u->request);
    u->request = NULL;
    u->arriving = false;
    shard_storage_free_memory(u->storage);
}

static void evict_others(shard_unshard_order *order, const unshard *u, bool arriving)
{
    for (unshard *other = order->present, *next; other; other = next) {
        next = other->next;
        if (other != u && other->materializer.evictable && (arriving || !other->arriving))
            evict_now(other);
    }
}

void shard_unshard_evict_idle(shard_unshard_order *order)
{
    SHARD_HOLD(&order->lock);
    evict_others(order, NULL, false);
}

/* Whether all ranks have received an error after the last use of the order. They may have been at different places then: each
 * engine evicts its units and clears its order before its next gather, so that the ranks gather the same units again. While a
 * rank has the error its gathers fail, and the next one of it does the same. */
static bool forget_after_error(shard_unshard_order *order)
{
    unsigned now = shard_joint_errors();
    if (order->forgotten == now)
        return false;
    if (shard_last_status() == SHARD_OK)
        order->forgotten = now;
    while (order->present)
        evict_now(order->present);
    forget_order(order);
    return true;
}

static shard_status begin(unshard *u)
{
    evict_others(u->order, u, true);
    u->next = u->order->present;
    u->order->present = u;
    u->arriving = true;
    u->request = shard_unit_gather(u->unit, shard_unit_whole(u->unit), shard_storage_allocate(u->storage));
    return shard_last_status();
}

static shard_status start(shard_materializer *materializer)
{
    unshard *u = (unshard *)materializer;
    SHARD_HOLD(&u->order->lock);
    forget_after_error(u->order);
    return begin(u);
}

/* It is evictable until it is needed. */
static void prefetch(unshard *next)
{
    if (begin(next) == SHARD_OK)
        next->materializer.evictable = true;
    else
        evict_now(next);
}

static shard_status wait(shard_materializer *materializer)
{
    unshard *u = (unshard *)materializer;
    SHARD_HOLD(&u->order->lock);
    if (forget_after_error(u->order))
        SHARD_TRY(begin(u));
    if (!u->arriving)
        return SHARD_OK;
    shard_request *request = u->request;
    u->arriving = false;
    u->request = NULL;
    SHARD_TRY(shard_unit_wait(u->unit, request));
    evict_others(u->order, u, true);
    unshard *next = note(u);
    if (next && request && !next->storage->memory) /* else a prefetch would not overlap with computation */
        prefetch(next);
    return shard_last_status();
}

static void evict(shard_materializer *materializer)
{
    unshard *u = (unshard *)materializer;
    SHARD_HOLD(&u->order->lock);
    evict_now(u);
}

static void destroy(shard_materializer *materializer)
{
    unshard *u = (unshard *)materializer;
    pthread_mutex_lock(&u->order->lock); /* once: in between it might be prefetched */
    evict_now(u);
    forget_order(u->order);
    pthread_mutex_unlock(&u->order->lock);
    shard_unshard_order_unref(u->order);
    shard_unit_unref(u->unit);
    free(u);
}

/* ---- creation and destruction ---- */

shard_unshard_order *shard_unshard_order_create(void)
{
    shard_unshard_order *order = shard_calloc(1, sizeof *order);
    if (!order)
        return NULL;
    *order = (shard_unshard_order){.refs = 1, .forgotten = shard_joint_errors()};
    pthread_mutex_init(&order->lock, NULL);
    return order;
}

void shard_unshard_order_unref(shard_unshard_order *order)
{
    if (!order)
        return;
    pthread_mutex_lock(&order->lock);
    int left = --order->refs;
    pthread_mutex_unlock(&order->lock);
    if (left)
        return;
    pthread_mutex_destroy(&order->lock);
    for (mode m = EVALUATION; m <= BACKWARD; m++)
        free(order->of[m].all);
    free(order);
}

shard_status shard_unshard_attach(shard_unit *unit, shard_unshard_order *order)
{
    unshard *u = shard_calloc(1, sizeof *u);
    if (shard_agree(unit->group) != SHARD_OK) {
        free(u);
        return shard_last_status();
    }
    *u = (unshard){.materializer = {.start = start, .wait = wait, .evict = evict, .destroy = destroy},
                   .storage = unit->values,
                   .unit = unit,
                   .order = order};
    SHARD_HOLD(&order->lock);
    unit->refs++;
    order->refs++;
    shard_storage_release(unit->values);
    shard_storage_set_kind(unit->values, SHARD_MEMORY_BUCKETS);
    unit->values->materializer = &u->materializer;
    return SHARD_OK;
}
