#include "base/crc64.h"

#include <pthread.h>
#include <stddef.h>

/* Bits of a polynomial are reflected: bit 63 is the coefficient of x^0. This is the CRC's without its x^64. */
#define POLYNOMIAL 0x9a6c9329ac4bc9b5u
#define ONE ((uint64_t)1 << 63)

/* Made when a checksum is first needed. */
static uint64_t tables[8][256]; /* [i][b]: the byte b times x^(64 + 8 * i) */
static uint64_t powers[63];     /* [i]: x^(8 * 2^i) */

static uint64_t times_x(uint64_t a)
{
    return a >> 1 ^ (a & 1 ? POLYNOMIAL : 0);
}

/* ---- any processor ---- */

static uint64_t multiply_bits(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (; b; b <<= 1, a = times_x(a))
        product ^= a & -(b >> 63);
    return product;
}

/* The product of the powers in the binary form of `bytes`. */
static uint64_t factor_for(int64_t bytes, uint64_t (*multiply)(uint64_t, uint64_t))
{
    uint64_t factor = ONE;
    for (int i = 0; bytes >> i; i++)
        if (bytes >> i & 1)
            factor = factor == ONE ? powers[i] : multiply(factor, powers[i]);
    return factor;
}

static uint64_t times_x64(uint64_t a)
{
    return tables[7][a & 0xff] ^ tables[6][a >> 8 & 0xff] ^ tables[5][a >> 16 & 0xff] ^ tables[4][a >> 24 & 0xff] ^
           tables[3][a >> 32 & 0xff] ^ tables[2][a >> 40 & 0xff] ^ tables[1][a >> 48 & 0xff] ^ tables[0][a >> 56];
}

/* Eight bytes, the first one lowest, in any byte order. */
static uint64_t read_word(const unsigned char *data)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word |= (uint64_t)data[i] << 8 * i;
    return word;
}

/* `state` is the remainder so far, which is the complement of the checksum. */
static uint64_t extend_state(uint64_t state, const unsigned char *data, int64_t bytes)
{
    for (; bytes >= 8; data += 8, bytes -= 8)
        state = times_x64(state ^ read_word(data));
    for (; bytes > 0; data++, bytes--)
        state = state >> 8 ^ tables[0][(state ^ *data) & 0xff];
    return state;
}

static uint64_t extend_by_tables(uint64_t crc, const unsigned char *data, int64_t bytes)
{
    return ~extend_state(~crc, data, bytes);
}

static bool runs_anywhere(void)
{
    return true;
}

/* ---- x86: products of polynomials by one instruction ---- */

#if defined(__x86_64__)

#include <immintrin.h>

#define PCLMUL __attribute__((target("pclmul,sse4.1")))
#define VPCLMUL __attribute__((target("vpclmulqdq,avx512f,pclmul,sse4.1")))

/* The 16 bytes of a register, which the instruction multiplies as two polynomials, are moved in front of data by so many
 * bytes: the first 8 times `low`, the others times `high`. As the product of reflected polynomials is one bit further
 * down than its register, the factors are x^(8 * bytes + 63) and x^(8 * bytes - 1). */
typedef struct fold_factors {
    uint64_t low, high;
} fold_factors;
static fold_factors by_16, by_64, by_256;

static uint64_t over_x(uint64_t a)
{
    return a & ONE ? (a ^ POLYNOMIAL) << 1 | 1 : a << 1;
}

static fold_factors make_factors(int64_t bytes)
{
    uint64_t high = over_x(factor_for(bytes, multiply_bits)), low = high;
    for (int i = 0; i < 64; i++)
        low = times_x(low);
    return (fold_factors){low, high};
}

PCLMUL static inline __m128i load_factors(fold_factors f)
{
    return _mm_set_epi64x((int64_t)f.high, (int64_t)f.low);
}

PCLMUL static inline __m128i load_16(const unsigned char *data)
{
    return _mm_loadu_si128((const __m128i *)(const void *)data);
}

/* `a` moved by the factors' bytes, and what is there added. */
PCLMUL static inline __m128i fold(__m128i a, __m128i factors, __m128i there)
{
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(a, factors, 0x00), _mm_clmulepi64_si128(a, factors, 0x11)), there);
}

/* The state after a register whose bytes follow nothing, and the rest of the data. */
PCLMUL static uint64_t finish(__m128i a, const unsigned char *data, int64_t bytes)
{
    for (__m128i factors = load_factors(by_16); bytes >= 16; data += 16, bytes -= 16)
        a = fold(a, factors, load_16(data));
    uint64_t state = times_x64(times_x64((uint64_t)_mm_cvtsi128_si64(a)) ^ (uint64_t)_mm_extract_epi64(a, 1));
    return extend_state(state, data, bytes);
}

PCLMUL static uint64_t extend_by_pclmul(uint64_t crc, const unsigned char *data, int64_t bytes)
{
    if (bytes < 16)
        return extend_by_tables(crc, data, bytes);
    __m128i a[4], factors = load_factors(by_64), state = _mm_cvtsi64_si128((int64_t)~crc);
    if (bytes < 128)
        return ~finish(_mm_xor_si128(load_16(data), state), data + 16, bytes - 16);
    for (int i = 0; i < 4; i++)
        a[i] = load_16(data + 16 * i);
    a[0] = _mm_xor_si128(a[0], state);
    for (data += 64, bytes -= 64; bytes >= 64; data += 64, bytes -= 64)
        for (int i = 0; i < 4; i++)
            a[i] = fold(a[i], factors, load_16(data + 16 * i));
    factors = load_factors(by_16);
    for (int i = 1; i < 4; i++)
        a[i] = fold(a[i - 1], factors, a[i]);
    return ~finish(a[3], data, bytes);
}

PCLMUL static uint64_t multiply_by_pclmul(uint64_t a, uint64_t b)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)a), _mm_cvtsi64_si128((int64_t)over_x(b)), 0x00);
    return times_x64((uint64_t)_mm_cvtsi128_si64(product)) ^ (uint64_t)_mm_extract_epi64(product, 1);
}

static bool runs_pclmul(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

VPCLMUL static inline __m512i load_64(const unsigned char *data)
{
    return _mm512_loadu_si512(data);
}

#define XOR_OF_THREE 0x96 /* the table of a ^ b ^ c, a constant for the compiler */
VPCLMUL static inline __m512i fold_64(__m512i a, __m512i factors, __m512i there)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, factors, 0x00), _mm512_clmulepi64_epi128(a, factors, 0x11),
                                     there, XOR_OF_THREE);
}

VPCLMUL static uint64_t extend_by_vpclmul(uint64_t crc, const unsigned char *data, int64_t bytes)
{
    if (bytes < 512)
        return extend_by_pclmul(crc, data, bytes);
    __m512i a[4], factors = _mm512_broadcast_i32x4(load_factors(by_256));
    for (int i = 0; i < 4; i++)
        a[i] = load_64(data + 64 * i);
    a[0] = _mm512_xor_si512(a[0], _mm512_zextsi128_si512(_mm_cvtsi64_si128((int64_t)~crc)));
    for (data += 256, bytes -= 256; bytes >= 256; data += 256, bytes -= 256)
        for (int i = 0; i < 4; i++)
            a[i] = fold_64(a[i], factors, load_64(data + 64 * i));
    factors = _mm512_broadcast_i32x4(load_factors(by_64));
    for (int i = 1; i < 4; i++)
        a[i] = fold_64(a[i - 1], factors, a[i]);
    __m128i part = _mm512_extracti32x4_epi32(a[3], 0), next = load_factors(by_16);
    part = fold(part, next, _mm512_extracti32x4_epi32(a[3], 1));
    part = fold(part, next, _mm512_extracti32x4_epi32(a[3], 2));
    part = fold(part, next, _mm512_extracti32x4_epi32(a[3], 3));
    return ~finish(part, data, bytes);
}

static bool runs_vpclmul(void)
{
    return runs_pclmul() && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f");
}

static void make_all_factors(void)
{
    by_16 = make_factors(16);
    by_64 = make_factors(64);
    by_256 = make_factors(256);
}

#else

static void make_all_factors(void)
{
}

#endif

/* ---- the choice ---- */

static const shard_crc64_form forms[] = {
    {"tables", runs_anywhere, extend_by_tables, multiply_bits},
#if defined(__x86_64__)
    {"pclmul", runs_pclmul, extend_by_pclmul, multiply_by_pclmul},
    {"vpclmul", runs_vpclmul, extend_by_vpclmul, multiply_by_pclmul},
#endif
};
#define FORMS ((int)(sizeof forms / sizeof *forms))

static const shard_crc64_form *chosen;

static void make_tables(void)
{
    for (int byte = 0; byte < 256; byte++) {
        uint64_t product = (uint64_t)byte;
        for (int i = 0; i < 8; i++)
            product = times_x(product);
        tables[0][byte] = product;
    }
    for (int i = 1; i < 8; i++)
        for (int byte = 0; byte < 256; byte++)
            tables[i][byte] = tables[i - 1][byte] >> 8 ^ tables[0][tables[i - 1][byte] & 0xff];
    powers[0] = ONE >> 8;
    for (int i = 1; i < 63; i++)
        powers[i] = multiply_bits(powers[i - 1], powers[i - 1]);
    make_all_factors();
    for (int i = 0; i < FORMS; i++)
        if (forms[i].runs())
            chosen = &forms[i];
}

static const shard_crc64_form *ready(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_tables);
    return chosen;
}

const shard_crc64_form *shard_crc64_form_at(int i)
{
    ready();
    return i < FORMS ? &forms[i] : NULL;
}

uint64_t shard_crc64(uint64_t crc, const void *data, int64_t bytes)
{
    return ready()->extend(crc, data, bytes);
}

uint64_t shard_crc64_factor(int64_t bytes)
{
    return factor_for(bytes, ready()->multiply);
}

uint64_t shard_crc64_multiply(uint64_t a, uint64_t b)
{
    return ready()->multiply(a, b);
}

uint64_t shard_crc64_shift(uint64_t crc, int64_t bytes)
{
    return ready()->multiply(crc, shard_crc64_factor(bytes));
}
