/*
 * A model of images against PyTorch's, on made-up values: tests/golden/NAME_names.txt and NAME_values.txt, which make_resnet.py
 * and make_iresnet.py wrote. All functions fail the test if something differs.
 */
#ifndef TESTS_SUPPORT_GOLDEN_MODEL_H
#define TESTS_SUPPORT_GOLDEN_MODEL_H

#include <shard/nn.h>

typedef struct golden_model {
    const char *name; /* of the files, "resnet" */
    const char *arch; /* of their lines, "resnet18" */
    int64_t images, side;
    int64_t outputs; /* for each image; also classes of the loss */
    int64_t stride;  /* the label of image i is i * stride % outputs */
    /* The range of the values of a tensor that is none of the general kinds. False: it is one of these. */
    bool (*range)(const struct golden_model *of, const char *name, shard_shape shape, double *low, double *high);
} golden_model;

/* A number in [0, 1), as of the Python programs. */
double golden_number(uint32_t seed, uint32_t index);

/* Names, shapes and kinds of all tensors. */
void check_golden_names(const golden_model *of, shard_module *model);

/* Results in evaluation and in training, the loss, gradients and buffers, of made-up values. */
void check_golden_values(const golden_model *of, shard_module *model);

/* Whether |got - expected| is at most tolerance * scale. */
void check_golden_number(const char *what, double got, double expected, double tolerance, double scale);

#endif
