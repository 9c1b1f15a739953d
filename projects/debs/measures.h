/*
 * The measures of extreme classification: P@k, PSP@k and R@k for k of 1, 3 and 5
 * (manikvarma.org/downloads/XC/XMLRepository.html). Sums of several ranks are added number by number.
 */
#ifndef DEBS_MEASURES_H
#define DEBS_MEASURES_H

#include "xmc.h"

#define MEASURES_K 3   /* how many k there are */
#define MEASURES_TOP 5 /* the largest */
static const int measures_k[MEASURES_K] = {1, 3, MEASURES_TOP};

/* Sums over points; all are double, so that they are one array. */
typedef struct measures {
    double hits[MEASURES_K];   /* predicted labels among the first k that are the point's */
    double gain[MEASURES_K];   /* their inverse propensities */
    double ideal[MEASURES_K];  /* the largest gain that any prediction could have */
    double recall[MEASURES_K]; /* the part of the point's labels that is among the first k */
    double points, labelled;   /* points, and those with a label */
} measures;

#define MEASURES_NUMBERS ((int64_t)(sizeof(measures) / sizeof(double)))

/* Adds a point: the predicted labels [MEASURES_TOP], best first, and its labels. inverse: of each label, as below. */
void measures_add(measures *sum, const int64_t *predicted, const int32_t *ones, int64_t count, const double *inverse);

/* In percent; 0 of no points. R@k is the mean over the points with a label. */
double measures_precision(const measures *sum, int k_index);
double measures_propensity_scored(const measures *sum, int k_index);
double measures_recall(const measures *sum, int k_index);

/*
 * 1 / p of each label, [labels], where p = 1 / (1 + C * (n + b)^-a) with C = (log(N) - 1) * (b + 1)^a is the propensity of a
 * label of n of the N training points (Jain, Prabhu, Varma, "Extreme multi-label loss functions for recommendation, tagging,
 * ranking & other missing label applications", KDD 2016). The caller frees it. NULL with the error set: MEMORY, or
 * ARGUMENT where one is not finite, as with a b of 0 and a label without points.
 */
double *measures_inverse_propensities(const xmc_data *train, double a, double b);

#endif
