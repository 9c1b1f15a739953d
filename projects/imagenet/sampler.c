/*
 * The permutation is a Feistel network on the least even number of bits that
 * holds all positions, walked until it comes back among them (Black, Rogaway,
 * "Ciphers with arbitrary finite domains", CT-RSA 2002): at most 4 walks on
 * average, and no table.
 */
#include "sampler.h"

#include "random.h"

#define ROUNDS 8

int64_t sampler_steps(const sampler *sampling)
{
    return sampling->samples / sampling->batch + (sampling->samples % sampling->batch != 0);
}

shard_range sampler_part(const sampler *sampling, int64_t step, int ranks, int rank)
{
    int64_t start = step * sampling->batch, left = sampling->samples - start;
    shard_range part = shard_split_range(left < sampling->batch ? left : sampling->batch, ranks, rank);
    part.start += start;
    return part;
}

static uint64_t permute_bits(uint64_t key, int half_bits, uint64_t value)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, left = value >> half_bits, right = value & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (random_mix(key + (right + 1) * RANDOM_STEP + (round << 56)) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

int64_t sampler_sample(const sampler *sampling, int64_t epoch, int64_t position)
{
    if (!sampling->shuffle)
        return position;
    int half_bits = 1;
    while (half_bits < 31 && (uint64_t)1 << (2 * half_bits) < (uint64_t)sampling->samples)
        half_bits++;
    uint64_t key = random_hash(sampling->seed, (uint64_t)epoch, 0), value = (uint64_t)position;
    do
        value = permute_bits(key, half_bits, value);
    while (value >= (uint64_t)sampling->samples);
    return (int64_t)value;
}
