/*
 * Cross-entropy three times over: a case's data, its result and gradient by plain
 * loops in double, and by the library, whole or as one part of the classes.
 */
#ifndef TESTS_SUPPORT_LOSS_H
#define TESTS_SUPPORT_LOSS_H

#include "support/host.h"
#include "support/ranks.h"

#include <shard/loss.h>
#include <shard/op.h>

typedef struct loss_case {
    int64_t rows, classes;
    shard_dtype dtype;
    bool soft; /* probabilities instead of labels */
    bool weighted;
    bool ignoring; /* every fourth row, by ignore_index */
    double smoothing;
    shard_reduction reduction;
    int64_t ignore_index;
    double scale; /* of the logits; 0: 3 */
    bool row_weighted;
    double z_loss, logit_scale /* 0: 1 */, soft_cap;
} loss_case;

/* Values that the dtype has. Static memory would not do for a million classes: freed
 * by loss_data_free. */
typedef struct loss_data {
    double *logits, *probabilities; /* [rows, classes] */
    int64_t *labels;                /* [rows] */
    double *weight;                 /* [classes] */
    double *row_weight;             /* [rows] */
    double *dy;                     /* [rows], or one */
    int64_t results;                /* rows, or 1 */
} loss_data;

loss_data loss_data_make(const loss_case *c);
void loss_data_free(loss_data *data);

/* result [results], and gradient [rows, classes] of sum dy * result. */
void loss_reference(const loss_case *c, const loss_data *data, double *result, double *gradient);

/* The library's loss of the columns in range; group NULL and the whole range: plain.
 * *logits is a leaf that requires a gradient. Tensors of the open scope. */
shard_tensor *loss_of_part(const loss_case *c, const loss_data *data, shard_group *group, shard_range range,
                           shard_tensor **logits);

/* The same, then its backward by dy: result [results], gradient [rows, range.size]. */
void loss_and_gradient(const loss_case *c, const loss_data *data, shard_group *group, shard_range range, double *result,
                       double *gradient);

/* The member's even part of the case's classes. */
shard_range loss_range(const loss_case *c, const shard_group *group);

/* All combinations of options for one shape and dtype. */
#define LOSS_CASES 36
loss_case loss_case_at(int index, int64_t rows, int64_t classes, shard_dtype dtype);
/* The same with row weights, z-loss, a scale, a cap, and all of them: ways 1 to LOSS_WAYS - 1; way 0 is the case itself. */
#define LOSS_WAYS 6
loss_case loss_case_by(int way, loss_case c);
/* "soft, weighted, smoothing 0.1, mean" for messages; static. */
const char *loss_case_text(const loss_case *c);

/* A value rounded to the dtype; values as a tensor of any floating one. */
double round_to(shard_dtype dtype, double value);
shard_tensor *tensor_of(const double *values, shard_shape shape, shard_dtype dtype);

/* Fails unless |value - expected| <= tolerance * max(1, |expected|), or both are NaN
 * or the same infinity. */
void check_number(double value, double expected, double tolerance, const char *what, int64_t index);

#endif
