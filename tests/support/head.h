/* Calls of a linear head with operands of every kind, by the record and by shard/head.h. Tensors are of the open scope. */
#ifndef TESTS_SUPPORT_HEAD_H
#define TESTS_SUPPORT_HEAD_H

#include "support/ranks.h"

#include <shard/head.h>

enum { HEAD_ROWS = 7, HEAD_IN = 19, HEAD_CLASSES = 301 };

typedef enum head_form {
    PLAIN,
    NO_BIAS,
    EACH_ROW,
    CAPPED,
    RANKED,
    MARGIN,
    SAMPLE,
    SAMPLE_MARGIN,
    BINARY,
    GRADIENT_ONLY,
    HEAD_FORMS
} head_form;

/* Of x, and of weight and bias. */
enum { HEAD_DTYPES = 4 };
extern const struct head_types {
    shard_dtype x, weight;
} head_dtypes[HEAD_DTYPES];

/* A call's operands, in the open scope. */
typedef struct head_call {
    head_form form;
    shard_tensor *x, *weight, *bias, *target;
    shard_cross_entropy_options softmax;
    shard_margin_logits_options margin;
    shard_binary_cross_entropy_options binary;
} head_call;

/* What a way of computing gives. */
typedef struct head_result {
    double loss[HEAD_ROWS], dx[HEAD_ROWS * HEAD_IN], dweight[HEAD_CLASSES * HEAD_IN], dbias[HEAD_CLASSES];
    int64_t rank[HEAD_ROWS];
} head_result;

void head_make(head_call *c, head_form form, int dtypes, shard_group *group);
/* Labels or pairs; labels differ between batches. */
shard_tensor *head_target(head_form form, int batch);
void head_set_requires(const head_call *c, bool on);
/* A gradient with respect to the loss. Fails the test for NULL. */
shard_tensor *head_dy(shard_tensor *loss);

/* By the record, with a backward for each of `batches`. */
void head_record(const head_call *c, int batches, head_result *r);
/* The forward of shard/head.h, whose loss is in the result. */
shard_tensor *head_forward(const head_call *c, shard_tensor *target, shard_head_saved **saved, head_result *r);
/* Both. */
void head_run(const head_call *c, shard_group *group, const shard_head_backward_options *options, head_result *r);

/* Sums dx over the ranks. */
void head_read_features(shard_tensor *dx, shard_group *group, head_result *r);
void head_read_parameters(const head_call *c, shard_tensor *dweight, shard_tensor *dbias, head_result *r);

/* Fail unless the bits are equal, where products are exact. */
void head_check_bits(const char *what, const double *found, const double *expected, int64_t count, head_form form, int dtypes);
/* dx of normalized features on several ranks within rounding: the derivative of the norms is taken of each rank's summand. */
void head_check_results(const head_result *found, const head_result *expected, const head_call *c, int dtypes, int ranks);

#endif
