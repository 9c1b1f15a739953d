/*
 * Random numbers that depend on their purpose (seed, epoch, sample), never on the thread or the time: SplitMix64
 * (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
 */
#ifndef COMMON_RANDOM_H
#define COMMON_RANDOM_H

#include <stdint.h>

#define RANDOM_STEP 0x9E3779B97F4A7C15u

/* SplitMix64's finalizer: a bijection in which each bit of x changes half of the result's. */
static inline uint64_t random_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* One word of three: the key of a stream, or a value by itself. */
static inline uint64_t random_hash(uint64_t a, uint64_t b, uint64_t c)
{
    return random_mix(random_mix(random_mix(a + RANDOM_STEP) + b + RANDOM_STEP) + c + RANDOM_STEP);
}

typedef struct random_stream {
    uint64_t state;
} random_stream;

static inline random_stream random_start(uint64_t seed, uint64_t epoch, uint64_t sample)
{
    return (random_stream){random_hash(seed, epoch, sample)};
}

static inline uint64_t random_next(random_stream *stream)
{
    return random_mix(stream->state += RANDOM_STEP);
}

/* In [0, 1), 53 bits. */
static inline double random_uniform(random_stream *stream)
{
    return (double)(random_next(stream) >> 11) * 0x1p-53;
}

/* In [low, high). */
static inline double random_between(random_stream *stream, double low, double high)
{
    return low + (high - low) * random_uniform(stream);
}

#endif
