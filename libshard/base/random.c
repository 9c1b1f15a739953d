#include "base/random.h"

static _Thread_local shard_random_state state;

void shard_manual_seed(uint64_t seed)
{
    state = (shard_random_state){.seed = seed};
}

shard_random_state shard_get_random_state(void)
{
    return state;
}

void shard_set_random_state(shard_random_state wanted)
{
    state = wanted;
}

shard_draw shard_next_draw(void)
{
    return (shard_draw){.seed = state.seed, .number = state.next_draw++};
}
