/* Philox4x32-10, written once for the host and (as plain C) for kernels. */
#ifndef SHARD_BASE_RANDOM_H
#define SHARD_BASE_RANDOM_H

#include <shard/base.h>

#include <math.h>

#ifndef SHARD_KERNEL
#define SHARD_KERNEL static inline
#endif

/* 64 bits from the system that other programs and files cannot know; not of any draw. */
uint64_t shard_random_secret(void);

/* A draw: selects one sequence of random numbers of a seed. */
typedef struct shard_draw {
    uint64_t seed;
    uint64_t number;
    /* In a captured graph: device memory with the seed and the first number of a replay, to which `number` is added
     * (as PyTorch's PhiloxCudaState). NULL: seed and number are constants. */
    const uint64_t *replayed;
} shard_draw;

/* Takes the thread's next draw. */
shard_draw shard_next_draw(void);

/* Between begin and end the thread's draws are those of each replay, and its state does not change; end returns the
 * number of draws. */
void shard_random_begin_capture(const uint64_t *replayed);
int64_t shard_random_end_capture(void);
/* Takes `count` of the thread's draws at once and sets the values that `replayed` has for them. */
void shard_random_take_draws(int64_t count, uint64_t values[2]);

/* All ranks have come to the same place of the program without an error. */
void shard_random_note_common_place(void);
/* The draws that this thread has taken since. */
uint64_t shard_random_draws(void);
/* All ranks have this thread's error, which one of them may have had for some draws. Once it is cleared, they go on `draws` after
 * the last common place: those of the rank that had taken most. */
void shard_random_note_joint_error(uint64_t draws);

/* The draw in this replay. */
SHARD_KERNEL shard_draw shard_draw_now(shard_draw draw)
{
    if (draw.replayed) {
        draw.seed = draw.replayed[0];
        draw.number += draw.replayed[1];
    }
    return draw;
}

typedef struct shard_philox {
    uint32_t word[4];
} shard_philox;

/* The four words of one block of a draw, by so many rounds. */
SHARD_KERNEL shard_philox shard_philox_rounds(shard_draw draw, uint64_t block, int rounds)
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)draw.number, c3 = (uint32_t)(draw.number >> 32);
    uint32_t k0 = (uint32_t)draw.seed, k1 = (uint32_t)(draw.seed >> 32);
    for (int round = 0; round < rounds; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    shard_philox words = {{c0, c1, c2, c3}};
    return words;
}

SHARD_KERNEL shard_philox shard_philox_block(shard_draw draw, uint64_t block)
{
    return shard_philox_rounds(draw, block, 10);
}

/* A uniform number in [0, 1), 24 bits, for element `index` of the whole tensor. It defines the values: tests compare
 * the kernels, which compute whole blocks, with it. */
SHARD_KERNEL float shard_uniform_at(shard_draw draw, uint64_t index)
{
    shard_philox words = shard_philox_block(draw, index >> 2);
    return (float)(words.word[index & 3] >> 8) * 0x1p-24f;
}

/* log(x) for positive normal x, within 1.2 units of the last place. Plain
 * operations in a fixed order, here and below: the same bits on every machine. */
SHARD_KERNEL float shard_random_log(float x)
{
    union {
        float value;
        uint32_t bits;
    } mantissa = {x};
    int32_t exponent = (int32_t)(mantissa.bits - 0x3f3504f3u) >> 23; /* mantissa in [sqrt(1/2), sqrt(2)) */
    mantissa.bits -= (uint32_t)exponent << 23;
    float f = mantissa.value - 1.0f, square = f * f, n = (float)exponent;
    float p = 0x1.1457a6p-4f;
    p = p * f - 0x1.de3c14p-4f;
    p = p * f + 0x1.e6f06ap-4f;
    p = p * f - 0x1.fc2208p-4f;
    p = p * f + 0x1.233768p-3f;
    p = p * f - 0x1.555c4ep-3f;
    p = p * f + 0x1.99a4b6p-3f;
    p = p * f - 0x1.000006p-2f;
    p = p * f + 0x1.555548p-2f;
    p = p * (f * square) - n * 0x1.bd0106p-13f; /* log(2) = 0x1.63p-1 less this */
    return n * 0x1.63p-1f + (f + (p - 0.5f * square));
}

/* Two standard normals from two words (Box and Muller): the first word gives the
 * radius, the second the angle in units of 2 pi / 2^24, whose quarter turns are
 * taken off exactly. */
SHARD_KERNEL void shard_normal_pair(uint32_t first, uint32_t second, float pair[2])
{
    float radius = sqrtf(-2.0f * shard_random_log(((float)(int32_t)(first >> 8) + 0.5f) * 0x1p-24f));
    int32_t turn = (int32_t)(second >> 8), quarter = (turn + (1 << 21)) >> 22;
    float t = (float)(turn - quarter * (1 << 22)) * 0x1.921fb6p-22f, square = t * t;
    float sine = 0x1.6cd87ap-19f * square - 0x1.a00f9ep-13f;
    sine = sine * square + 0x1.111108p-7f;
    sine = sine * square - 0x1.555556p-3f;
    sine = t + t * square * sine;
    float cosine = 0x1.9a025ap-16f * square - 0x1.6c0c8cp-10f;
    cosine = cosine * square + 0x1.55554ap-5f;
    cosine = cosine * square - 0.5f;
    cosine = cosine * square + 1.0f;
    float x = quarter & 1 ? sine : cosine, y = quarter & 1 ? cosine : sine;
    pair[0] = radius * ((quarter + 1) & 2 ? -x : x);
    pair[1] = radius * (quarter & 2 ? -y : y);
}

/* A standard normal number for element `index` of the whole tensor; tests compare the kernels with it. */
SHARD_KERNEL float shard_normal_at(shard_draw draw, uint64_t index)
{
    shard_philox words = shard_philox_block(draw, index >> 2);
    float pair[2];
    shard_normal_pair(words.word[index & 2], words.word[(index & 2) + 1], pair);
    return pair[index & 1];
}

/* The parameters of a truncated normal distribution: a uniform number's inverse error function. */
typedef struct shard_truncated_normal {
    double mean, std;
    double low, high; /* bounds of the values */
} shard_truncated_normal;

/* 2 P(X < bound) - 1 of a normal variable X for both bounds; the uniform numbers are between these. */
static inline double shard_truncated_normal_edge(const shard_truncated_normal *t, double bound)
{
    return erf((bound - t->mean) / (t->std * 1.4142135623730951));
}

/* The inverse error function of x in [-1, 1] (Giles 2010, "Approximating the erfinv function"); where x is
 * rounded to 1 or -1, about 3.8 and -3.8. */
SHARD_KERNEL float shard_random_erfinv(float x)
{
    float product = (1.0f - x) * (1.0f + x);
    float w = -shard_random_log(product > 0x1p-24f ? product : 0x1p-24f), p;
    if (w < 5.0f) {
        w = w - 2.5f;
        p = 2.81022636e-08f;
        p = p * w + 3.43273939e-07f;
        p = p * w - 3.5233877e-06f;
        p = p * w - 4.39150654e-06f;
        p = p * w + 0.00021858087f;
        p = p * w - 0.00125372503f;
        p = p * w - 0.00417768164f;
        p = p * w + 0.246640727f;
        p = p * w + 1.50140941f;
    } else {
        w = sqrtf(w) - 3.0f;
        p = -0.000200214257f;
        p = p * w + 0.000100950558f;
        p = p * w + 0.00134934322f;
        p = p * w - 0.00367342844f;
        p = p * w + 0.00573950773f;
        p = p * w - 0.0076224613f;
        p = p * w + 0.00943887047f;
        p = p * w + 1.00167406f;
        p = p * w + 2.83297682f;
    }
    return p * x;
}

/* A number from a word of a block, for edges of shard_truncated_normal_edge; the caller multiplies it by std, adds
 * mean and clamps it to the bounds. */
SHARD_KERNEL float shard_truncated_normal_of(uint32_t word, float edge, float range)
{
    float u = ((float)(int32_t)(word >> 8) + 0.5f) * 0x1p-24f;
    return 0x1.6a09e6p+0f * shard_random_erfinv(edge + range * u);
}

/* The number at `position` of a random permutation of 0 ... count - 1, which the draw selects; position < count.
 * Computed without a table. */
uint64_t shard_shuffled_at(shard_draw draw, uint64_t count, uint64_t position);

#endif
