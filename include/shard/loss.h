/*
 * shard/loss.h: losses, and what belongs to them: the best classes, the label's rank, precision at k, margins. Logits may be
 * split along the classes. docs/losses.md, docs/classifier.md and docs/margins.md describe them with an example of each.
 *
 * The comment at the head of op.h holds for these functions too: NULL operands, errors, devices, placement rules.
 */
#ifndef SHARD_LOSS_H
#define SHARD_LOSS_H

#include <shard/op.h>

SHARD_BEGIN_C

/* ---- cross-entropy ---- */

typedef enum shard_reduction {
    SHARD_REDUCTION_MEAN = 0,
    SHARD_REDUCTION_SUM,
    SHARD_REDUCTION_NONE,
    SHARD_REDUCTION_BATCH_MEAN, /* the sum divided by the number of rows; of the binary cross-entropies alone */
} shard_reduction;

typedef struct shard_margin_logits_options shard_margin_logits_options;

typedef struct shard_cross_entropy_options {
    size_t size;
    shard_tensor *weight;      /* [classes], or split like the logits' classes; NULL: ones */
    int64_t ignore_index;      /* a label that does not count. Default: -100. */
    double label_smoothing;    /* in [0, 1] */
    shard_reduction reduction; /* the mean divides by the sum of the labels' weights, times row_weight */
    shard_tensor *row_weight;  /* like the labels: a factor of each row's loss, any floating dtype; NULL: ones */
    double z_loss;             /* z_loss * lse^2 is added to a row's loss, where lse = log(sum(exp(logits))) */
    double logit_scale;        /* logits are multiplied by it first; above 0. Default: 1. */
    double soft_cap;           /* then become soft_cap * tanh(logits / soft_cap); 0: they do not */
    shard_tensor *sample;      /* shard_sample_classes: the classes that count; NULL: all */
    bool normalized;           /* logits are cosines of x and the weight's rows: docs/classifier.md ("The loss by itself") */
    const shard_margin_logits_options *margin; /* SHARD_MARGIN(.m2 = 0.5): shard_margin_logits of the logits; NULL: none */
    double stash_share; /* of a loss without logits: the stash's part of the weight's bytes; of at least 0. Default: 0.05. */
    shard_tensor *sample_correction; /* shard_sample_correction: [n], added to the logits of the sample's classes; NULL: zeros */
} shard_cross_entropy_options;
#define SHARD_CROSS_ENTROPY_OPTIONS_VALUES                                                                                       \
    sizeof(shard_cross_entropy_options), NULL, -100, 0.0, SHARD_REDUCTION_MEAN, NULL, 0.0, 1.0, 0.0, NULL, false, NULL, 0.05, NULL
#define SHARD_CROSS_ENTROPY_OPTIONS_INIT {SHARD_CROSS_ENTROPY_OPTIONS_VALUES}
/* logits [..., classes] and labels int64 [...], or probabilities like the logits: a scalar, or of the labels' shape for NONE;
 * float64 of float64 logits, else float32. As torch.nn.functional.cross_entropy, whose classes are the second dimension.
 * docs/losses.md ("Softmax cross-entropy") has the formula, docs/losses.md ("Operands and placements") split logits: along
 * classes every rank has the same value, along another dimension the result is PARTIAL for SUM, split for NONE, refused for MEAN.
 * *label_rank (NULL: not wanted) becomes shard_label_rank(logits, labels, ignore_index), NULL after an error; its macro is
 * shard_cross_entropy_with_rank(logits, target, &label_rank, ...).
 * Errors: ARGUMENT, a label outside [0, classes), or options out of range or that do not go together; SHAPE, operands that do
 * not fit; MISMATCH, labels, row weights or options that differ between ranks; UNSUPPORTED, placements and options without a
 * rule: docs/losses.md ("Refused operands and options"). Collective over the logits' group if they are split along classes. */
#define shard_cross_entropy(logits, ...)  \
    SHARD_GIVEN(shard_cross_entropy_with( \
        logits, SHARD_OPTIONS(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__), NULL))
SHARD_API shard_tensor *shard_cross_entropy_with(shard_tensor *logits, shard_tensor *target,
                                                 const shard_cross_entropy_options *options, shard_tensor **label_rank);
/* The macro with *label_rank. */
#define shard_cross_entropy_with_rank(logits, target, ...) \
    SHARD_GIVEN(shard_cross_entropy_with(                  \
        logits, target, SHARD_OPTIONS_BEFORE(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))
/* The same function under TorchShard's name. */
#define shard_parallel_cross_entropy shard_cross_entropy

/* shard_cross_entropy(shard_linear(x, weight, bias), target, ...), from which it differs by rounding, without the logits: they
 * exist for a tile of classes at a time. x [..., in] and labels int64 [...]; weight [classes, in], whole or split along
 * classes; bias [classes] or NULL, split as the weight. All have one dtype, or x has 16 bits and weight and bias are float32.
 * All ranks of the weight's group have the same x and labels. *label_rank (NULL: not wanted) is as for shard_cross_entropy.
 * docs/classifier.md ("The loss by itself") has the options, the gradients and the peers' names. Errors: as shard_cross_entropy;
 * SHAPE, probabilities as target; ARGUMENT, .normalized or .margin with a bias or with .sample_correction; UNSUPPORTED, a soft
 * cap or a label rank with .sample, .normalized or .margin, rows that are split over a group with another reduction than NONE.
 * Collective over the weight's group if it is split. As torch.nn.functional.linear_cross_entropy. Forward and backward as calls
 * of their own: shard/head.h. */
#define shard_linear_cross_entropy(x, weight, bias, ...)                                                                         \
    SHARD_GIVEN(shard_linear_cross_entropy_with(                                                                                 \
        x, weight, bias, SHARD_OPTIONS(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__), NULL))
SHARD_API shard_tensor *shard_linear_cross_entropy_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                        shard_tensor *target, const shard_cross_entropy_options *options,
                                                        shard_tensor **label_rank);
/* The macro with *label_rank. */
#define shard_linear_cross_entropy_with_rank(x, weight, bias, target, ...)                                                       \
    SHARD_GIVEN(shard_linear_cross_entropy_with(                                                                                 \
        x, weight, bias, target, SHARD_OPTIONS_BEFORE(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))

/* The classes of a step's sample, for the option .sample of shard_linear_cross_entropy and, with labels, of
 * shard_cross_entropy: this rank's, int64 [n], in ascending order, in the host's memory. weight [classes, ...] is the last
 * layer's, whole or split along classes; of it the shape and the placement alone are read. A class is in the sample if it is
 * one of the labels (of any shape; all ranks have the same ones), or if a random number in [0, 1), which depends on seed, step
 * and class alone, is below rate. Waits for a GPU that has the labels. docs/margins.md ("Face recognition: margins and sampled
 * classes") has the loss, the step and other samples.
 * Errors: ARGUMENT, a rate outside [0, 1], a negative step; SHAPE, labels that are not int64; UNSUPPORTED, in a graph's
 * capture. Not collective. As Partial FC (An et al. 2022), which draws per rank. */
SHARD_API shard_tensor *shard_sample_classes(shard_tensor *labels, shard_tensor *weight, double rate, uint64_t seed,
                                             int64_t step);

/* The correction of a sample, for the option .sample_correction: float32 [n] in the host's memory, for each class minus the log
 * of the probability that it is in the sample: 0 of the labels and -log(rate) of the other classes. labels and rate are those
 * that the sample was drawn with, also the labels of other replicas. It has no gradient, and is refused with .normalized and
 * .margin. All ranks of a group that splits the classes give one, or none does. Waits for GPUs that have the sample or the
 * labels. docs/margins.md ("The loss and the step") says what it changes.
 * Errors: SHAPE, a sample or labels that are not int64; ARGUMENT, a rate outside (0, 1]; UNSUPPORTED, in a graph's capture. Not
 * collective. As subtract_log_q of TensorFlow's sampled_softmax_loss; Jean et al. 2015. */
SHARD_API shard_tensor *shard_sample_correction(shard_tensor *sample, shard_tensor *labels, double rate);

typedef struct shard_binary_cross_entropy_options {
    size_t size;
    shard_tensor *pos_weight;  /* [classes], or split like the logits' classes: a factor of the targets' ones; NULL: ones */
    shard_tensor *weight;      /* [classes], or split like them: a factor of a class's losses; NULL: ones */
    shard_tensor *row_weight;  /* [rows...], any floating dtype: a factor of a row's losses; NULL: ones */
    shard_reduction reduction; /* the mean is over rows times all classes; weights do not change the divisor */
    bool gradient_only;        /* of a reduction (else ARGUMENT): the loss is 0, it is not computed; its gradients are the same */
    double stash_share;        /* of a loss without logits, as shard_cross_entropy_options. Default: 0.05. */
} shard_binary_cross_entropy_options;
#define SHARD_BINARY_CROSS_ENTROPY_OPTIONS_VALUES                                                                                \
    sizeof(shard_binary_cross_entropy_options), NULL, NULL, NULL, SHARD_REDUCTION_MEAN, false, 0.05
#define SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT                                                                                  \
    {                                                                                                                            \
        SHARD_BINARY_CROSS_ENTROPY_OPTIONS_VALUES                                                                                \
    }
/* Logits [rows..., classes] and the target; a scalar, or of the logits' shape for NONE. The target is floating, with the shape
 * and dtype of the logits: each element is the probability of a one; or int64 pairs [2, n] of the ones, a row (counted over the
 * leading dimensions) and a class each, in ascending order, none twice, as torch.sparse_coo_tensor's indices after coalesce().
 * Target and weights get no gradient. docs/losses.md ("Binary cross-entropy") has the formula, the dtypes and split logits:
 * along classes every rank has the same value, along a leading dimension a reduction gives PARTIAL; NONE is split as the
 * logits.
 * Errors, except for NONE on all ranks where classes are split: ARGUMENT, a pair or an option out of range, pairs out of order;
 * SHAPE, operands that do not fit; MISMATCH, pairs, row weights or options that differ; UNSUPPORTED, a placement without a rule,
 * a target or weight that requires a gradient. Collective over the logits' group if they are split along classes, except for
 * NONE. As torch.nn.functional.binary_cross_entropy_with_logits. */
#define shard_binary_cross_entropy_with_logits(logits, ...)                                                                      \
    SHARD_GIVEN(shard_binary_cross_entropy_with_logits_with(                                                                     \
        logits, SHARD_OPTIONS(shard_binary_cross_entropy_options, SHARD_BINARY_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_binary_cross_entropy_with_logits_with(shard_tensor *logits, shard_tensor *target,
                                                                    const shard_binary_cross_entropy_options *options);

/* shard_binary_cross_entropy_with_logits(shard_linear(x, weight, bias), target, ...) without the logits, as
 * shard_linear_cross_entropy: the same operands, and pairs as the target. One sweep over the weight gives the loss and the
 * gradient of x, another one in the backward that of the weight. A floating target, which is as large as the logits, and
 * SHARD_REDUCTION_NONE give the two functions, with their logits. Rows that are split over a group are refused with pairs and a
 * reduction (UNSUPPORTED). Differs from the two functions by rounding. As the last layer of Renee (Jain et al. 2023) and ELMO
 * (Zhang et al. 2025). Collective over the weight's group if it is split. */
#define shard_linear_binary_cross_entropy(x, weight, bias, ...)                                                                  \
    SHARD_GIVEN(shard_linear_binary_cross_entropy_with(                                                                          \
        x, weight, bias, SHARD_OPTIONS(shard_binary_cross_entropy_options, SHARD_BINARY_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_linear_binary_cross_entropy_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                               shard_tensor *target,
                                                               const shard_binary_cross_entropy_options *options);

/* shard_top_k(shard_linear(x, weight, bias), k, indices) without the logits, with the operands of shard_linear_cross_entropy: the
 * k largest logits of each row, largest first, and their classes of the whole layer, [..., k], for evaluation and for the
 * nearest classes of a feature. Values are float64 for float64, else float32. No gradient. x may be split along a leading
 * dimension with a whole weight; results are placed as x's rows. With a split weight all its ranks have the same rows: other rows
 * on some rank are not noticed, and give wrong classes. Errors: ARGUMENT, k below 0 or above the number of classes;
 * SHAPE, UNSUPPORTED, operands and placements that shard_linear refuses. Collective over the weight's group if it is split. */
SHARD_API shard_tensor *shard_linear_top_k(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, int64_t k,
                                           shard_tensor **indices);

typedef struct shard_mse_loss_options {
    size_t size;
    shard_reduction reduction; /* the mean is over all elements */
} shard_mse_loss_options;
#define SHARD_MSE_LOSS_OPTIONS_VALUES sizeof(shard_mse_loss_options), SHARD_REDUCTION_MEAN
#define SHARD_MSE_LOSS_OPTIONS_INIT {SHARD_MSE_LOSS_OPTIONS_VALUES}
/* (input - target)^2, both of one shape: a scalar, or of their shape for NONE. As
 * torch.nn.functional.mse_loss; both get gradients. Both operands may be split, over the same
 * group and ranges: mean and sum are then PARTIAL, summands of the whole tensors' mean or sum
 * (shard_reduce_from_group makes them whole), and the result of NONE is split like the operands. */
#define shard_mse_loss(input, ...) \
    SHARD_GIVEN(shard_mse_loss_with(input, SHARD_OPTIONS(shard_mse_loss_options, SHARD_MSE_LOSS_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_mse_loss_with(shard_tensor *input, shard_tensor *target, const shard_mse_loss_options *options);

/* For each row, how many logits precede the label's (larger, or equal with a smaller column; NaN is larger than numbers):
 * int64, of the labels' shape. The label is in the top k if that is < k. A row whose label is ignore_index gives INT64_MAX.
 * Logits [..., classes] and labels [...] are as for the loss. The result has the placement of logits that are split along a
 * leading dimension. No gradient. Of logits that are split along classes a few numbers of each row are gathered. Collective
 * over the logits' group if they are split along classes. */
SHARD_API shard_tensor *shard_label_rank(shard_tensor *logits, shard_tensor *labels, int64_t ignore_index);
/* How many of the local rows of shard_label_rank's result are < k; -1 with the error set. Waits for the device. Not
 * collective. */
SHARD_API int64_t shard_count_top_k(shard_tensor *label_rank, int64_t k);

/* P@k of multi-label predictions: the fraction of each row's first k of `indices` that is in pairs, averaged over the rows.
 * indices are shard_top_k's, int64 [rows..., >= k]; those of logits that are split along classes are the same on all ranks,
 * and so is the result. Of rows that are split it is the mean over the local ones, and pairs count these. Pairs are int64
 * [2, n], in ascending order as for the binary cross-entropy. With inverse_propensity (floating [classes], local, finite and
 * not negative; NULL: without, and -1 if the thread has an error already) a class counts as much as its number there, and the sum
 * over the rows is divided by the largest that any prediction could have: PSP@k. Waits for the device; 0 for no rows; -1 with the
 * error set. Not collective. */
SHARD_API double shard_precision_at_k(shard_tensor *indices, shard_tensor *pairs, int64_t k, shard_tensor *inverse_propensity);

/* ---- the labels' columns, for margin losses ----
 * x is [..., classes]; labels are int64 of its leading dimensions' shape, placed as x's rows (for split rows: the labels of
 * the local rows). A label that is ignore_index has no column; another one outside [0, classes) is an error. If x
 * is split along classes, all ranks have the same labels (not checked), and each rank takes those in its
 * range. Not collective. */

/* x at the row's label, 0 for an ignored one: labels' shape. As torch.gather(x, -1,
 * labels.unsqueeze(-1)).squeeze(-1). PARTIAL if classes are split (shard_reduce_from_group takes the sum). */
SHARD_API shard_tensor *shard_pick_labels(shard_tensor *x, shard_tensor *labels, int64_t ignore_index);
/* A copy of x with factor * values added at the row's label. values has labels' shape and x's dtype, or is NULL for ones (if
 * the thread has an error already, NULL may be a failed operation's result and gives NULL). As torch.scatter_add along the last
 * dimension. The result has the placement of x. If classes are split, values are local, the same on all ranks, and their
 * gradient is PARTIAL. CosFace's margin is shard_add_at_labels(cosine, labels, NULL, -margin, -100). */
SHARD_API shard_tensor *shard_add_at_labels(shard_tensor *x, shard_tensor *labels, shard_tensor *values, double factor,
                                            int64_t ignore_index);

/* The label's logit where the angle m1 * acos(c) + m2 is outside [0, pi]; a plain cosine would reward a worse feature
 * there. */
typedef enum shard_margin_rule {
    SHARD_MARGIN_LINEAR = 0, /* c - d - m3 above pi, as ArcFace, and c + d - m3 below 0: docs/margins.md has d */
    SHARD_MARGIN_CLAMP,      /* the angle is clamped to [0.001, pi - 0.001], with a gradient of 0: AdaFace */
    SHARD_MARGIN_EASY,       /* as LINEAR, and c - m3 where c <= 0: insightface's easy_margin */
    SHARD_MARGIN_COSINE,     /* the cosine of any angle: insightface's CombinedMarginLoss */
} shard_margin_rule;

struct shard_margin_logits_options {
    size_t size;
    double scale;         /* s, above 0. Default: 64. */
    double m1, m2, m3;    /* SphereFace's factor, above 0, ArcFace's angle and CosFace's difference. Defaults: 1, 0, 0. */
    shard_tensor *row_m2; /* like the labels, any floating dtype: in place of m2; NULL: none */
    shard_tensor *row_m3; /* the same in place of m3 */
    int64_t ignore_index; /* Default: -100. */
    shard_margin_rule rule;
};
#define SHARD_MARGIN_LOGITS_OPTIONS_VALUES                                                                                       \
    sizeof(shard_margin_logits_options), 64.0, 1.0, 0.0, 0.0, NULL, NULL, -100, SHARD_MARGIN_LINEAR
#define SHARD_MARGIN_LOGITS_OPTIONS_INIT                                                                                         \
    {                                                                                                                            \
        SHARD_MARGIN_LOGITS_OPTIONS_VALUES                                                                                       \
    }
/* Such options with the fields that are given, for .margin of a loss. They exist until the end of the block around the macro. */
#define SHARD_MARGIN(...)                                                                                                        \
    ((const shard_margin_logits_options[]){SHARD_GIVEN(                                                                          \
        (shard_margin_logits_options)SHARD_FIELDS(shard_margin_logits_options, SHARD_MARGIN_LOGITS_OPTIONS, __VA_ARGS__))})
/* scale * cosines, where the label's cosine c first becomes cos(m1 * acos(c) + m2) - m3: ArcFace (m2 = 0.5), CosFace (m3 =
 * 0.4), and combined margins as insightface's CombinedMarginLoss. cosines are products of normalized features and normalized
 * rows of a weight; a c outside [-1, 1] has the angle of the nearer end. The derivative is exact, with two bounds: at an angle of
 * less than 0.001 to 0 or pi it is divided by 0.001 instead of the sine. (insightface takes the derivative of ArcFace's margin
 * for 1.) Row margins get no gradient; they are placed as the labels, and are the same on all ranks if classes are split (not
 * checked). The result has the placement of cosines. docs/margins.md has a whole ArcFace and AdaFace head. */
#define shard_margin_logits(cosines, ...)                                                                                        \
    SHARD_GIVEN(                                                                                                                 \
        shard_margin_logits_with(cosines, SHARD_OPTIONS(shard_margin_logits_options, SHARD_MARGIN_LOGITS_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_margin_logits_with(shard_tensor *cosines, shard_tensor *labels,
                                                 const shard_margin_logits_options *options);

typedef struct shard_adaface_margins_options {
    size_t size;
    double m, h;    /* the margin, and the factor of the normalized norm. Defaults: 0.4, 0.333. */
    double t_alpha; /* of the new batch in the running statistics, in [0, 1]; 0: they stay. Default: 0.01. */
} shard_adaface_margins_options;
#define SHARD_ADAFACE_MARGINS_OPTIONS_VALUES sizeof(shard_adaface_margins_options), 0.4, 0.333, 0.01
#define SHARD_ADAFACE_MARGINS_OPTIONS_INIT                                                                                       \
    {                                                                                                                            \
        SHARD_ADAFACE_MARGINS_OPTIONS_VALUES                                                                                     \
    }
/* AdaFace's margins for features of these norms [...], which is the labels' shape: the result is row_m2 of
 * shard_margin_logits, *row_m3 (NULL: not wanted) its row_m3, float64, with .rule = SHARD_MARGIN_CLAMP. mean and std are
 * tensors of one floating number, 20 and 100 at first: the running statistics of the norms, which are updated before they
 * are used. Norms are clamped to [0.001, 100], apart from NaN, which the statistics keep. A batch of one row leaves std as it is,
 * an empty one both. No gradient. All ranks with the same rows have the same margins; norms split along a dimension have the
 * statistics of all ranks' rows: collective over their group. As AdaFace's head.py. */
#define shard_adaface_margins(norms, mean, std, ...)                                                                             \
    SHARD_GIVEN(shard_adaface_margins_with(                                                                                      \
        norms, mean, std, SHARD_OPTIONS_BEFORE(shard_adaface_margins_options, SHARD_ADAFACE_MARGINS_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_adaface_margins_with(shard_tensor *norms, shard_tensor *mean, shard_tensor *std,
                                                   const shard_adaface_margins_options *options, shard_tensor **row_m3);

typedef struct shard_one_hot_options {
    size_t size;
    shard_dtype dtype;     /* an integer one is cast from float32 */
    shard_tensor *like;    /* the result has its dtype and placement; NULL: whole classes, placed as labels */
    int64_t ignore_index;  /* as shard_cross_entropy_options. Default: -100. */
} shard_one_hot_options;
#define SHARD_ONE_HOT_OPTIONS_VALUES sizeof(shard_one_hot_options), SHARD_FLOAT32, NULL, -100
#define SHARD_ONE_HOT_OPTIONS_INIT {SHARD_ONE_HOT_OPTIONS_VALUES}
/* 1 at the label, else 0: [..., classes] for labels int64 [...]; an ignored label gives zeros. As
 * torch.nn.functional.one_hot, which gives int64, and counts the classes where none are given. .like = logits of split classes
 * makes this rank's classes alone; classes is then the whole number. No gradient. */
#define shard_one_hot(labels, ...) \
    SHARD_GIVEN(shard_one_hot_with(labels, SHARD_OPTIONS(shard_one_hot_options, SHARD_ONE_HOT_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_one_hot_with(shard_tensor *labels, int64_t classes, const shard_one_hot_options *options);

SHARD_END_C

#endif
