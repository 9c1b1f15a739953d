#include "base/random.h"

#include "base/kept_error.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

uint64_t shard_random_secret(void)
{
    uint64_t bits;
    struct timespec now;
    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) == sizeof bits)
        return bits;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 30 ^ (uint64_t)getpid() << 8;
}

static _Thread_local shard_random_state state;
static _Thread_local shard_random_state common; /* where all ranks were last known to be at the same place of the program */
static _Thread_local uint64_t joint_error;      /* the serial number of an error since then that all ranks have; 0: none */
static _Thread_local uint64_t failed_draws;     /* of the rank that took most from `common` to this error */

/* Once the error is cleared: a rank takes no draw for an operand that it has not, so some ranks have taken more than others.
 * Those after `common` may be initial values that live on, and are not taken again. */
static void pass_over_failed(void)
{
    if (joint_error == 0 || joint_error == shard_error_serial())
        return;
    joint_error = 0;
    state = common;
    state.next_draw = (int64_t)((uint64_t)state.next_draw + failed_draws);
    common = state;
}

uint64_t shard_random_draws(void)
{
    pass_over_failed();
    return (uint64_t)state.next_draw - (uint64_t)common.next_draw;
}

void shard_random_note_common_place(void)
{
    pass_over_failed();
    common = state;
}

void shard_random_note_joint_error(uint64_t draws)
{
    pass_over_failed();
    if (joint_error != 0) /* this error, which was noted before it was set aside */
        return;
    joint_error = shard_error_serial();
    failed_draws = draws;
}

void shard_manual_seed(uint64_t seed)
{
    shard_set_random_state((shard_random_state){.seed = (int64_t)seed});
}

shard_random_state shard_get_random_state(void)
{
    pass_over_failed();
    return state;
}

void shard_set_random_state(shard_random_state wanted)
{
    pass_over_failed();
    state = common = wanted;
}

static _Thread_local struct {
    const uint64_t *replayed;
    uint64_t draws;
} capture;

shard_draw shard_next_draw(void)
{
    if (capture.replayed)
        return (shard_draw){.number = capture.draws++, .replayed = capture.replayed};
    pass_over_failed();
    shard_draw draw = {.seed = (uint64_t)state.seed, .number = (uint64_t)state.next_draw};
    state.next_draw = (int64_t)(draw.number + 1); /* wraps around */
    return draw;
}

void shard_random_begin_capture(const uint64_t *replayed)
{
    capture.replayed = replayed;
    capture.draws = 0;
}

int64_t shard_random_end_capture(void)
{
    capture.replayed = NULL;
    return (int64_t)capture.draws;
}

void shard_random_take_draws(int64_t count, uint64_t values[2])
{
    pass_over_failed();
    values[0] = (uint64_t)state.seed;
    values[1] = (uint64_t)state.next_draw;
    state.next_draw = (int64_t)(values[1] + (uint64_t)count);
}

/*
 * A permutation without a table: a Feistel network on the least even number of bits that
 * holds all positions, walked until it comes back among them (Black, Rogaway, "Ciphers
 * with arbitrary finite domains", CT-RSA 2002): at most 4 walks on average.
 */

enum { ROUNDS = 8 };

static uint64_t permute_bits(shard_draw draw, int half_bits, uint64_t value)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, left = value >> half_bits, right = value & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (shard_philox_block(draw, round << 32 | right).word[0] & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

uint64_t shard_shuffled_at(shard_draw draw, uint64_t count, uint64_t position)
{
    int half_bits = 1;
    while (half_bits < 32 && (uint64_t)1 << (2 * half_bits) < count)
        half_bits++;
    uint64_t value = position;
    do
        value = permute_bits(draw, half_bits, value);
    while (value >= count);
    return value;
}
