/* projects/arcface: the measures of verification against NumPy's numbers (golden/make_verification.py), and search among split
 * galleries against loops. */
#include "support/job.h"

#include "search.h"
#include "verification.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- verification ---- */

enum { MOST_PAIRS = 1003 };
static double distance[MOST_PAIRS];
static uint8_t same[MOST_PAIRS];

/* As in golden/make_verification.py. */
static void make_up(int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++) {
        double spread = (double)(i * 7919 % 1009) / 1009;
        same[i] = (i * i + 3 * i) % 7 < 3;
        distance[i] = same[i] ? 0.3 + 1.5 * spread : 1.1 + 1.8 * spread;
    }
}

static const struct {
    int64_t pairs, same;
    double accuracy, deviation, tar[3];
} golden[] = {
    {1003, 287, 86.7405940594, 0.61867800532, {100, 64.8083623693, 58.2381881533}},
    {57, 17, 80.3333333333, 12.6007054476, {100, 64.7058823529, 62.8470588235}},
};

START_TEST(test_measures)
{
    static const double far[3] = {0.5, 0.1, 0.0421};
    verification result;
    make_up(golden[_i].pairs);
    ck_assert_int_eq(verification_of_pairs(distance, same, golden[_i].pairs, &result), SHARD_OK);
    ck_assert_int_eq(result.same, golden[_i].same);
    ck_assert_int_eq(result.different, golden[_i].pairs - golden[_i].same);
    ck_assert_double_eq_tol(result.accuracy, golden[_i].accuracy, 1e-9);
    ck_assert_double_eq_tol(result.deviation, golden[_i].deviation, 1e-9);
    for (int i = 0; i < VERIFICATION_FARS; i++) /* fewer pairs than 1 / FAR */
        ck_assert(isnan(result.tar[i]));
    double of_same[MOST_PAIRS], of_different[MOST_PAIRS];
    int64_t counts[2] = {0};
    for (int64_t i = 0; i < golden[_i].pairs; i++)
        (same[i] ? of_same : of_different)[counts[!same[i]]++] = distance[i];
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(verification_tar(of_same, counts[0], of_different, counts[1], far[i]), golden[_i].tar[i], 1e-9);
    ck_assert(isnan(verification_tar(of_same, 0, of_different, counts[1], 0.5)));
    ck_assert(isnan(verification_tar(of_same, counts[0], of_different, counts[1], 0.9 / (double)counts[1])));
    ck_assert_double_eq(verification_tar(of_same, counts[0], of_different, counts[1], 1), 100);
}
END_TEST

START_TEST(test_ends)
{
    double deviation;
    make_up(9);
    ck_assert(isnan(verification_accuracy(distance, same, 9, &deviation)) && isnan(deviation));
    ck_assert(isnan(verification_accuracy(distance, same, 0, NULL)));
    /* A distance on a threshold is not below it; the ends of the range are judged, too. */
    for (int i = 0; i < 20; i++) {
        same[i] = i % 2 == 0;
        distance[i] = same[i] ? 0 : 4;
    }
    ck_assert_double_eq(verification_accuracy(distance, same, 20, &deviation), 100);
    ck_assert_double_eq(deviation, 0);
    for (int i = 0; i < 20; i++)
        distance[i] = same[i] ? 0.29 : 0.29 + 1e-9; /* told apart by no threshold but one of 0.29 and above */
    ck_assert_double_eq(verification_accuracy(distance, same, 20, NULL), 50);
}
END_TEST

/* In turn, the pairs of two lists are those of one. */
START_TEST(test_lists)
{
    double of_same[40], of_different[60], in_turn[80];
    uint8_t is_same[80];
    verification result;
    for (int i = 0; i < 60; i++)
        of_different[i] = 1 + i * 7 % 60 / 40.0;
    for (int i = 0; i < 40; i++)
        of_same[i] = 0.5 + i * 11 % 40 / 40.0;
    for (int i = 0; i < 80; i++) {
        is_same[i] = i % 2 == 0;
        in_turn[i] = is_same[i] ? of_same[i / 2] : of_different[i / 2];
    }
    double deviation, accuracy = verification_accuracy(in_turn, is_same, 80, &deviation);
    ck_assert_int_eq(verification_of_lists(of_same, 40, of_different, 60, &result), SHARD_OK);
    ck_assert(result.accuracy == accuracy && result.deviation == deviation);
    ck_assert(result.same == 40 && result.different == 60 && accuracy > 55 && accuracy < 95);
}
END_TEST

/* ---- search ---- */

enum { IDENTITIES = 23, OF_EACH = 4, SIZE = 6, IMAGES = IDENTITIES * OF_EACH - 3 };

/* Vectors of norm 1 around one of each identity; the last identity has one image. */
static void make_features(float *features, int64_t *identity)
{
    for (int i = 0; i < IMAGES; i++) {
        double norm = 0, made[SIZE];
        identity[i] = i / OF_EACH;
        for (int k = 0; k < SIZE; k++) {
            made[k] = sin(1.0 + 13.7 * (double)identity[i] * (k + 1)) + 0.9 * cos(3.1 * i * i + k * 17.3);
            norm += made[k] * made[k];
        }
        for (int k = 0; k < SIZE; k++)
            features[i * SIZE + k] = (float)(made[k] / sqrt(norm));
    }
}

static double product(const float *a, const float *b)
{
    double sum = 0;
    for (int k = 0; k < SIZE; k++)
        sum += (double)a[k] * (double)b[k];
    return sum;
}

/* The probes before whose identity at most `places` others come. */
static double find_by_loops(const float *features, const int64_t *identity, int places)
{
    int hits = 0, probes = 0;
    for (int i = 0; i < IMAGES; i++) {
        if (i % OF_EACH == 0)
            continue;
        int before = 0;
        double own = product(features + i * SIZE, features + identity[i] * OF_EACH * SIZE);
        for (int other = 0; other < IDENTITIES; other++)
            before += other != identity[i] && product(features + i * SIZE, features + other * OF_EACH * SIZE) > own;
        hits += before < places;
        probes++;
    }
    return 100.0 * hits / probes;
}

static void searches(shard_group *world, void *context)
{
    float features[IMAGES * SIZE];
    int64_t identity[IMAGES];
    search_result result;
    (void)context;
    make_features(features, identity);
    check_ok(search_gallery(features, IMAGES, SIZE, identity, world, &result));
    ck_assert(result.gallery == IDENTITIES && result.probes == IMAGES - IDENTITIES);
    double rank1 = find_by_loops(features, identity, 1), rank5 = find_by_loops(features, identity, 5);
    ck_assert_double_eq_tol(result.rank1, rank1, 1e-9);
    ck_assert_double_eq_tol(result.rank5, rank5, 1e-9);
    ck_assert(rank1 > 10 && rank1 < rank5 && rank5 < 100);
    /* A gallery of fewer than five, and one without probes. */
    check_ok(search_gallery(features, 2 * OF_EACH, SIZE, identity, world, &result));
    ck_assert(result.gallery == 2 && result.rank5 == 100);
    check_ok(search_gallery(features, 1, SIZE, identity, world, &result));
    ck_assert(result.gallery == 1 && result.probes == 0 && isnan(result.rank1));
}

START_TEST(test_search)
{
    run_job(_i, searches, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("verification");
    TCase *tcase = test_case(suite, "verification");
    tcase_add_loop_test(tcase, test_measures, 0, sizeof golden / sizeof *golden);
    tcase_add_test(tcase, test_ends);
    tcase_add_test(tcase, test_lists);
    tcase_add_loop_test(tcase, test_search, 1, 4);
    return test_run(suite);
}
