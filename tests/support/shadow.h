/*
 * Arrays in a device's memory that the host cannot touch, for tests that write and read
 * their elements. Each has a shadow, an array of the host's of the same size: tests hold
 * pointers into shadows, and give them to the entries of the shadow device, which calls
 * the real one with the arrays in their place.
 *
 * A call takes the shadow's content along. An array that a call may write to is the device's
 * until synchronize, which brings its shadow up to date: the host writes no shadow in between.
 */
#ifndef TESTS_SUPPORT_SHADOW_H
#define TESTS_SUPPORT_SHADOW_H

#include "device/device.h"

/* The device whose entries take shadows, of the real one; one at a time. */
shard_device *shadow_device(shard_device *real);

/* A shadow of an array of the real device, all bytes 0xff. free: NULL is legal. */
void *shadow_new(size_t bytes);
void shadow_free(void *shadow);

/* ---- for the entries, which tests/shadow_entries.py writes ---- */

extern const shard_device_ops shadow_entries;

/* The real device, with what callers have set of the shadow one. */
shard_device *shadow_real(const shard_device *device);

/* A pointer into a shadow, its end included, becomes that into its array; others stay.
 * in: the array is read; inout: it may be written, too. */
void *shadow_in(const void *pointer);
void *shadow_inout(const void *pointer);

/* The same for the pointers of a list; valid until the next call. */
const shard_update *shadow_of_shard_update(int64_t count, const shard_update *list);
const shard_square_sum *shadow_of_shard_square_sum(int64_t count, const shard_square_sum *list);
const shard_trust_options *shadow_of_shard_trust_options(int64_t count, const shard_trust_options *list);
const shard_loss_rows *shadow_of_shard_loss_rows(int64_t count, const shard_loss_rows *list);

shard_status shadow_synchronize(shard_device *device);

#endif
