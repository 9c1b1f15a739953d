/* The checksum's known values, in each form for the processors: any lengths and alignments, and of parts. */
#include "support/check.h"

#include "base/crc64.h"

#include <stdlib.h>
#include <string.h>

/* By the definition: a bit at a time. */
static uint64_t by_bits(const unsigned char *data, size_t bytes)
{
    uint64_t state = ~(uint64_t)0;
    for (size_t i = 0; i < bytes; i++) {
        state ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (state & 1 ? 0x9a6c9329ac4bc9b5u : 0);
    }
    return ~state;
}

/* The i-th form if this processor has it. */
static const shard_crc64_form *form_here(int i)
{
    const shard_crc64_form *form = shard_crc64_form_at(i);
    return form && form->runs() ? form : NULL;
}

static unsigned char *random_bytes(size_t bytes)
{
    unsigned char *data = malloc(bytes);
    ck_assert_ptr_nonnull(data);
    srand(7);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(rand() >> 7);
    return data;
}

/* The catalogue of CRC algorithms (reveng) for CRC-64/NVME; the NVM Command Set Specification, 5.2.1.3.5, for blocks of 4096
 * bytes, whose values stand there, too. */
START_TEST(test_known_values)
{
    unsigned char zeros[4096] = {0}, ones[4096], up[4096], down[4096];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 4096; i++) {
        up[i] = (unsigned char)i;
        down[i] = (unsigned char)~i;
    }
    int tried = 0;
    for (int i = 0; shard_crc64_form_at(i); i++) {
        const shard_crc64_form *form = form_here(i);
        if (!form)
            continue;
        tried++;
        ck_assert_uint_eq(form->extend(0, (const unsigned char *)"123456789", 9), 0xae8b14860a799888u);
        ck_assert_uint_eq(form->extend(0, NULL, 0), 0);
        ck_assert_uint_eq(form->extend(0, zeros, 4096), 0x6482d367eb22b64eu);
        ck_assert_uint_eq(form->extend(0, ones, 4096), 0xc0ddba7302eca3acu);
        ck_assert_uint_eq(form->extend(0, up, 4096), 0x3e729f5f6750449cu);
        ck_assert_uint_eq(form->extend(0, down, 4096), 0x9a2df64b8e9e517eu);
    }
    ck_assert_int_ge(tried, 1);
    ck_assert_uint_eq(shard_crc64(0, "123456789", 9), 0xae8b14860a799888u);
}
END_TEST

/* Every length from every place modulo the widest register. */
START_TEST(test_lengths_and_alignments)
{
    enum { LENGTHS = 1300, PLACES = 64 };
    unsigned char *data = random_bytes(LENGTHS + PLACES);
    for (int place = 0; place < PLACES; place++) {
        for (int bytes = 0; bytes < LENGTHS; bytes += 1 + (place % 7 && bytes > 600)) {
            uint64_t expected = by_bits(data + place, (size_t)bytes);
            for (int i = 0; shard_crc64_form_at(i); i++)
                if (form_here(i))
                    ck_assert_msg(form_here(i)->extend(0, data + place, bytes) == expected, "%s: %d bytes from %d on",
                                  form_here(i)->name, bytes, place);
        }
    }
    free(data);
}
END_TEST

/* Data that comes in two parts, at every point: one part after the other, and each by itself. */
START_TEST(test_parts)
{
    enum { BYTES = 2000 };
    unsigned char *data = random_bytes(BYTES);
    uint64_t expected = by_bits(data, BYTES);
    for (int i = 0; shard_crc64_form_at(i); i++) {
        const shard_crc64_form *form = form_here(i);
        for (int64_t at = 0; form && at <= BYTES; at++) {
            uint64_t first = form->extend(0, data, at), second = form->extend(0, data + at, BYTES - at);
            ck_assert_uint_eq(form->extend(first, data + at, BYTES - at), expected);
            ck_assert_uint_eq(form->multiply(first, shard_crc64_factor(BYTES - at)) ^ second, expected);
            ck_assert_uint_eq(shard_crc64_shift(first, BYTES - at) ^ second, expected);
        }
    }
    free(data);
}
END_TEST

/* Products: the factors of sums, the neutral element, and both forms. */
START_TEST(test_products)
{
    const int64_t large = (int64_t)1 << 62;
    ck_assert_uint_eq(shard_crc64_factor(0), (uint64_t)1 << 63);
    srand(11);
    for (int trial = 0; trial < 2000; trial++) {
        uint64_t a = (uint64_t)rand() << 33 ^ (uint64_t)rand() << 11 ^ (uint64_t)rand(), b = a * 0x9e3779b97f4a7c15u;
        int64_t m = (int64_t)(a >> 2), n = (int64_t)(b >> 2) % (large - 1);
        uint64_t product = shard_crc64_form_at(0)->multiply(a, b);
        for (int i = 1; shard_crc64_form_at(i); i++)
            if (form_here(i))
                ck_assert_uint_eq(form_here(i)->multiply(a, b), product);
        ck_assert_uint_eq(shard_crc64_multiply(b, a), product);
        ck_assert_uint_eq(shard_crc64_multiply(a, shard_crc64_factor(0)), a);
        ck_assert_uint_eq(shard_crc64_shift(shard_crc64_shift(a, m / 2), n / 2), shard_crc64_shift(a, m / 2 + n / 2));
    }
}
END_TEST

/* A change within 64 neighbouring bits is found wherever it is. */
START_TEST(test_bursts)
{
    enum { BYTES = 700 };
    unsigned char *data = random_bytes(BYTES), *changed = malloc(BYTES);
    ck_assert_ptr_nonnull(changed);
    uint64_t sound = shard_crc64(0, data, BYTES);
    for (int trial = 0; trial < 20000; trial++) {
        memcpy(changed, data, BYTES);
        int start = rand() % (BYTES * 8 - 64);
        bool any = false;
        for (int bit = start; bit < start + 64; bit++) {
            int flip = rand() & 1;
            changed[bit / 8] ^= (unsigned char)(flip << bit % 8);
            any |= flip;
        }
        ck_assert(!any || shard_crc64(0, changed, BYTES) != sound);
    }
    free(data);
    free(changed);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("crc64");
    TCase *tcase = test_case(suite, "crc64");
    tcase_add_test(tcase, test_known_values);
    tcase_add_test(tcase, test_lengths_and_alignments);
    tcase_add_test(tcase, test_parts);
    tcase_add_test(tcase, test_products);
    tcase_add_test(tcase, test_bursts);
    return test_run(suite);
}
