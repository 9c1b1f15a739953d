#include "support/shadow.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

typedef struct shadow {
    char *host, *array;
    char *known; /* what was last copied in or out */
    size_t bytes;
    bool holds; /* the array holds it */
    bool ahead; /* a call may have written to the array since */
    struct shadow *next;
} shadow;

static shadow *shadows;
static shard_device *real_device, device_of_shadows;

static void check_done(shard_status status)
{
    ck_assert_msg(status == SHARD_OK, "%s", shard_last_error());
}

shard_device *shadow_device(shard_device *real)
{
    real_device = real;
    device_of_shadows = *real;
    device_of_shadows.ops = &shadow_entries;
    return &device_of_shadows;
}

shard_device *shadow_real(const shard_device *device)
{
    real_device->allow_tf32 = device->allow_tf32;
    return real_device;
}

/* ---- arrays ---- */

void *shadow_new(size_t bytes)
{
    shadow *made = malloc(sizeof *made);
    ck_assert_ptr_nonnull(made);
    *made = (shadow){.host = malloc(bytes), .known = malloc(bytes), .bytes = bytes, .next = shadows};
    made->array = real_device->ops->allocate(real_device, bytes);
    ck_assert(made->host && made->known);
    ck_assert_msg(made->array != NULL, "%s", shard_last_error());
    memset(made->host, 0xff, bytes);
    shadows = made;
    return made->host;
}

void shadow_free(void *host)
{
    shadow **at = &shadows;
    while (host && *at && (*at)->host != host)
        at = &(*at)->next;
    if (!host)
        return;
    shadow *gone = *at;
    ck_assert_msg(gone != NULL, "an array is freed that is none");
    *at = gone->next;
    real_device->ops->release(real_device, gone->array, gone->bytes);
    free(gone->host);
    free(gone->known);
    free(gone);
}

/* ---- pointers ---- */

static void *pass_on(const void *pointer, bool written)
{
    for (shadow *s = shadows; s; s = s->next) {
        if ((const char *)pointer < s->host || (const char *)pointer > s->host + s->bytes)
            continue;
        if (!s->ahead && (!s->holds || memcmp(s->known, s->host, s->bytes) != 0)) {
            s->holds = true;
            memcpy(s->known, s->host, s->bytes);
            check_done(real_device->ops->copy_in(real_device, s->array, s->host, s->bytes));
        }
        s->ahead = s->ahead || written;
        return s->array + ((const char *)pointer - s->host);
    }
    return (void *)pointer;
}

void *shadow_in(const void *pointer)
{
    return pass_on(pointer, false);
}

void *shadow_inout(const void *pointer)
{
    return pass_on(pointer, true);
}

/* A copy of a list, in the place of the last one. */
static void *copy_list(const void *list, int64_t count, size_t item)
{
    static void *copy;
    free(copy);
    copy = malloc((size_t)count * item + 1);
    ck_assert_ptr_nonnull(copy);
    return list ? memcpy(copy, list, (size_t)count * item) : NULL;
}

const shard_update *shadow_of_shard_update(int64_t count, const shard_update *list)
{
    shard_update *copy = copy_list(list, count, sizeof *copy);
    for (int64_t i = 0; i < count; i++) {
        copy[i].factors = shadow_in(list[i].factors);
        copy[i].grad_scale = shadow_in(list[i].grad_scale);
        copy[i].trust_ratio = shadow_in(list[i].trust_ratio);
        copy[i].gradient = shadow_inout(list[i].gradient);
        copy[i].value = shadow_inout(list[i].value);
        for (int k = 0; k < SHARD_OPTIMIZER_STATES; k++)
            copy[i].state[k] = shadow_inout(list[i].state[k]);
        copy[i].compensation = shadow_inout(list[i].compensation);
        copy[i].rows = shadow_in(list[i].rows);
    }
    return copy;
}

const shard_square_sum *shadow_of_shard_square_sum(int64_t count, const shard_square_sum *list)
{
    shard_square_sum *copy = copy_list(list, count, sizeof *copy);
    for (int64_t i = 0; i < count; i++) {
        copy[i].x = shadow_in(list[i].x);
        copy[i].sum = shadow_inout(list[i].sum);
    }
    return copy;
}

const shard_trust_options *shadow_of_shard_trust_options(int64_t count, const shard_trust_options *list)
{
    shard_trust_options *copy = copy_list(list, count, sizeof *copy);
    copy->grad_scale = shadow_in(list->grad_scale);
    return copy;
}

const shard_loss_rows *shadow_of_shard_loss_rows(int64_t count, const shard_loss_rows *list)
{
    shard_loss_rows *copy = copy_list(list, count, sizeof *copy);
    copy->lse = shadow_in(list->lse);
    copy->lse_error = shadow_in(list->lse_error);
    copy->slope = shadow_in(list->slope);
    copy->scale = shadow_in(list->scale);
    return copy;
}

/* ---- waiting ---- */

shard_status shadow_synchronize(shard_device *device)
{
    shard_device *real = shadow_real(device);
    shard_status status = real->ops->synchronize(real);
    for (shadow *s = shadows; s; s = s->next)
        if (s->ahead) {
            s->ahead = false;
            check_done(real->ops->copy_out(real, s->host, s->array, s->bytes));
            memcpy(s->known, s->host, s->bytes);
        }
    return status;
}
