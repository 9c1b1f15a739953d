/* Options of the final layer: --margin's numbers, and which options fit together. */
#include "options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN_NUMBERS 3

typedef struct margin_kind {
    const char *name;
    int count;                 /* of numbers */
    int place[MARGIN_NUMBERS]; /* of each number: 0 is m1 */
} margin_kind;

static const margin_kind margin_kinds[] = {
    {"none", 0, {0}},    {"cosine", 0, {0}},     {"arcface", 1, {1}},
    {"cosface", 1, {2}}, {"sphereface", 1, {0}}, {"combined", 3, {0, 1, 2}},
};

static const margin_kind *find_kind(const char *text, size_t length)
{
    for (size_t i = 0; i < sizeof margin_kinds / sizeof *margin_kinds; i++)
        if (strlen(margin_kinds[i].name) == length && strncmp(margin_kinds[i].name, text, length) == 0)
            return &margin_kinds[i];
    return NULL;
}

/* Reads "0.5" or "1,0.3,0.2" up to the end of the text; the count, or -1. */
static int read_numbers(const char *text, double *number)
{
    int count = 0;
    for (char *end; count < MARGIN_NUMBERS; text = end + 1) {
        number[count] = strtod(text, &end);
        if (end == text || !isfinite(number[count]) || number[count] < 0)
            return -1;
        count++;
        if (*end == '\0')
            return count;
        if (*end != ',')
            return -1;
    }
    return -1;
}

static shard_status read_margin(options *parsed)
{
    const char *text = parsed->margin_text, *colon = strchr(text, ':');
    double number[MARGIN_NUMBERS], m[MARGIN_NUMBERS] = {1, 0, 0};
    const margin_kind *kind = find_kind(text, colon ? (size_t)(colon - text) : strlen(text));
    int count = colon ? read_numbers(colon + 1, number) : 0;
    if (!kind || count != kind->count)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--margin: \"%s\" is none of none, cosine, arcface:M, cosface:M, sphereface:M and combined:M1,M2,M3, "
                           "with numbers of at least 0, as arcface:0.5",
                           text);
    for (int i = 0; i < count; i++)
        m[kind->place[i]] = number[i];
    parsed->margin = (head_margin){.cosines = strcmp(kind->name, "none") != 0, .m1 = m[0], .m2 = m[1], .m3 = m[2]};
    return SHARD_OK;
}

shard_status options_check_head(options *parsed)
{
    bool by_row = parsed->enable_model_parallel && parsed->model_parallel_dim == SHARD_SPLIT_ROW;
    bool rowwise = parsed->head_optimizer >= HEAD_OPTIMIZER_ROWWISE_ADAGRAD, samples = parsed->sample_rate < 1;
    bool half = parsed->head_dtype == SHARD_BFLOAT16;
    shard_status status = read_margin(parsed);
    if (status != SHARD_OK)
        return status;
    if (parsed->head_rounding != SHARD_ROUNDING_STOCHASTIC && !half)
        return shard_error(SHARD_ERROR_ARGUMENT, "--head-rounding is for --head-dtype bfloat16: wider weights are not rounded");
    if (parsed->head_optimizer == HEAD_OPTIMIZER_MOMENTUM && parsed->momentum <= 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "--head-optimizer momentum needs a --momentum above 0, or take sgd");
    if (rowwise && by_row)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--head-optimizer %s needs whole rows on a rank: take --model-parallel-dim column, or adamw",
                           options_head_optimizer_name(parsed));
    if (samples && by_row)
        return shard_error(SHARD_ERROR_ARGUMENT, "--sample-rate is for a final layer that is whole or split by column: take "
                                                 "--model-parallel-dim column");
    if (samples && parsed->head == HEAD_PLAIN)
        return shard_error(SHARD_ERROR_ARGUMENT, "--sample-rate needs a classifier: take --head fused, or leave --head out");
    const char *own = parsed->head_dtype != HEAD_DTYPE_SAME           ? "--head-dtype"
                      : parsed->head_optimizer || parsed->head_lr > 0 ? "--head-optimizer and --head-lr"
                      : parsed->margin.cosines                        ? "--margin"
                      : samples                                       ? "--sample-rate"
                                                                      : NULL;
    if (own && parsed->cuda_graph)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--cuda-graph captures the step of a plain final layer with the run's optimizer: leave it out, or %s",
                           own);
    return SHARD_OK;
}
