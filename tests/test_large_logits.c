/*
 * Losses and softmax of logits that are large numbers, as those of a row whose classes are all masked by -1e9 or -1e30: the
 * probabilities are those of the differences of the logits, though their logarithm of a sum has no digit for them.
 */
#include "support/job.h"
#include "support/sampled.h"

#include <math.h>
#include <string.h>

enum { CLASSES = 37, ROWS = 3, FEATURES = 5 };

/* Classes that are divisible by 3 have the logit `base`, the others one that is much smaller. */
typedef struct large {
    shard_dtype dtype;
    double base;
} large;

static const large cases[] = {
    {SHARD_FLOAT64, -1e9},  {SHARD_FLOAT64, 1e17},   {SHARD_FLOAT64, -1e30}, {SHARD_FLOAT64, 1e300},   {SHARD_FLOAT32, -1e4},
    {SHARD_FLOAT32, -1e9},  {SHARD_FLOAT32, 1e9},    {SHARD_FLOAT32, -1e30}, {SHARD_FLOAT32, 3e37},    {SHARD_BFLOAT16, -1e9},
    {SHARD_BFLOAT16, 1e30}, {SHARD_FLOAT16, -30000}, {SHARD_FLOAT16, 60000},
};
enum { CASES = sizeof cases / sizeof *cases };

static bool is_at_base(int64_t class)
{
    return class % 3 == 0;
}

static double logit_of(const large *c, int64_t class)
{
    return is_at_base(class) ? c->base : c->base < 0 ? 2 * c->base : -c->base;
}

static double probability_of(int64_t class)
{
    return is_at_base(class) ? 3.0 / (CLASSES + 2) : 0;
}

static double unit_of(shard_dtype dtype)
{
    static const double units[SHARD_DTYPES] = {
        [SHARD_FLOAT64] = 1e-13, [SHARD_FLOAT32] = 0x1p-20, [SHARD_FLOAT16] = 0x1p-10, [SHARD_BFLOAT16] = 0x1p-7};
    return units[dtype];
}

/* The rank's classes of `whole`, whose classes are dimension dim, as a leaf. */
static shard_tensor *leaf_of_part(shard_group *world, const double *whole, shard_shape shape, int dim, shard_dtype dtype)
{
    shard_range part = shard_split_range(CLASSES, shard_group_size(world), shard_group_rank(world));
    shard_tensor *all = shard_cast(shard_from_host(whole, shape, .dtype = SHARD_FLOAT64), dtype);
    shard_tensor *mine = shard_detach(shard_narrow(all, dim, part.start, part.size));
    if (shard_group_size(world) > 1)
        mine = shard_as_split(mine, dim, world, part.start, CLASSES);
    ck_assert_msg(mine, "%s", shard_last_error());
    shard_set_requires_grad(mine, true);
    return mine;
}

static shard_tensor *logits_of(shard_group *world, const large *c)
{
    double whole[ROWS * CLASSES];
    for (int64_t i = 0; i < ROWS * CLASSES; i++)
        whole[i] = logit_of(c, i % CLASSES);
    return leaf_of_part(world, whole, SHARD_SHAPE(ROWS, CLASSES), 1, c->dtype);
}

static const int64_t labels[ROWS] = {0, 12, 36};

static void check_loss(shard_group *world, void *context)
{
    const large *c = context;
    double want[ROWS * CLASSES];
    for (int64_t i = 0; i < ROWS * CLASSES; i++)
        want[i] = (probability_of(i % CLASSES) - (i % CLASSES == labels[i / CLASSES])) / ROWS;
    SHARD_SCOPE {
        shard_tensor *x = logits_of(world, c), *loss = shard_cross_entropy(x, labels_of(labels, ROWS));
        check_part(loss, &(double){log((CLASSES + 2) / 3.0)}, unit_of(c->dtype));
        check_ok(shard_backward(loss));
        check_part(shard_grad(x), want, unit_of(c->dtype));
    }
}

START_TEST(cross_entropy)
{
    for (int i = 0; i < CASES; i++)
        run_job(rank_counts[_i], check_loss, (void *)&cases[i]);
}
END_TEST

static void check_softmax(shard_group *world, void *context)
{
    const large *c = context;
    double probabilities[ROWS * CLASSES];
    for (int64_t i = 0; i < ROWS * CLASSES; i++)
        probabilities[i] = probability_of(i % CLASSES);
    SHARD_SCOPE {
        shard_tensor *x = logits_of(world, c);
        check_part(shard_softmax(x), probabilities, unit_of(c->dtype));
        check_part(shard_exp(shard_log_softmax(x)), probabilities, 4 * unit_of(c->dtype));
        check_ok(shard_backward(shard_sum(shard_logsumexp(x, -1, false))));
        check_part(shard_grad(x), probabilities, unit_of(c->dtype));
    }
}

START_TEST(softmax)
{
    for (int i = 0; i < CASES; i++)
        run_job(rank_counts[_i], check_softmax, (void *)&cases[i]);
}
END_TEST

/* The biases are so large that adding a product to one rounds to the bias: the logits are the biases. */
static void check_head(shard_group *world, const large *c, double stash_share)
{
    double bias[CLASSES], weight[CLASSES * FEATURES], x[ROWS * FEATURES], of_bias[CLASSES], of_weight[CLASSES * FEATURES],
        of_x[ROWS * FEATURES];
    for (int64_t i = 0; i < CLASSES; i++)
        bias[i] = logit_of(c, i);
    for (int64_t i = 0; i < CLASSES * FEATURES; i++)
        weight[i] = (double)(i % 7) / 8;
    for (int64_t i = 0; i < ROWS * FEATURES; i++)
        x[i] = (double)(i % 4) / 4;
    memset(of_bias, 0, sizeof of_bias);
    memset(of_weight, 0, sizeof of_weight);
    memset(of_x, 0, sizeof of_x);
    for (int64_t i = 0; i < ROWS * CLASSES; i++) {
        int64_t row = i / CLASSES, class = i % CLASSES;
        double dz = (probability_of(class) - (class == labels[row])) / ROWS;
        of_bias[class] += dz;
        for (int64_t k = 0; k < FEATURES; k++) {
            of_weight[class * FEATURES + k] += dz * x[row * FEATURES + k];
            of_x[row * FEATURES + k] += dz * weight[class * FEATURES + k];
        }
    }
    double unit = 4 * unit_of(c->dtype);
    SHARD_SCOPE {
        shard_tensor *b = leaf_of_part(world, bias, SHARD_SHAPE(CLASSES), 0, c->dtype);
        shard_tensor *w = leaf_of_part(world, weight, SHARD_SHAPE(CLASSES, FEATURES), 0, c->dtype);
        shard_tensor *features = shard_cast(shard_from_host(x, SHARD_SHAPE(ROWS, FEATURES), .dtype = SHARD_FLOAT64), c->dtype);
        features = shard_detach(features);
        shard_set_requires_grad(features, true);
        shard_tensor *loss =
            shard_linear_cross_entropy(features, w, b, labels_of(labels, ROWS), .stash_share = stash_share);
        check_part(loss, &(double){log((CLASSES + 2) / 3.0)}, unit);
        check_ok(shard_backward(loss));
        check_part(shard_grad(b), of_bias, unit);
        check_part(shard_grad(w), of_weight, unit);
        check_part(shard_grad(features), of_x, unit);
    }
}

static void check_heads(shard_group *world, void *context)
{
    const large *c = context;
    check_head(world, c, 0);
    check_head(world, c, 100);
}

/* Without the cases whose biases are too small to round the products away; all of float16 are. */
START_TEST(head)
{
    for (int i = 0; i < CASES; i++)
        if (fabs(cases[i].base) > (cases[i].dtype == SHARD_FLOAT64 ? 1e16 : 1e8))
            run_job(rank_counts[_i], check_heads, (void *)&cases[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("large_logits");
    TCase *tcase = test_case(suite, "large_logits");
    add_ranks_test(tcase, cross_entropy);
    add_ranks_test(tcase, softmax);
    add_ranks_test(tcase, head);
    return test_run(suite);
}
