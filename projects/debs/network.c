#include "network.h"

#include "random.h"
#include "training_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- making ---- */

static const shard_module_type network_type = {.name = "network"};

/* The log-odds of label n: (ones + 0.1) of (points + 1). */
static shard_status set_prior(shard_module *classifier, const xmc_data *train, shard_group *group)
{
    shard_range range = {0, train->labels};
    if (group)
        range = shard_split_range(train->labels, shard_group_size(group), shard_group_rank(group));
    float *bias = calloc((size_t)range.size + 1, sizeof *bias);
    if (!bias)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " labels", range.size);
    for (int64_t i = 0; i < train->label_begin[train->points]; i++)
        if (train->label[i] >= range.start && train->label[i] < range.start + range.size)
            bias[train->label[i] - range.start]++;
    for (int64_t i = 0; i < range.size; i++)
        bias[i] = logf((bias[i] + 0.1f) / ((float)train->points + 0.9f - bias[i]));
    shard_status status = training_set_values(shard_module_tensor(classifier, "bias"), bias);
    free(bias);
    return status;
}

shard_module *network_make(const options *wanted, const xmc_data *train, shard_group *group)
{
    shard_dtype dtype = head_dtype(&wanted->head, &wanted->training);
    shard_module *network = shard_module_create(&network_type, NULL), *hidden = shard_nn_sequential_of(0, NULL);
    shard_module *table = shard_nn_embedding(train->features, wanted->hidden, -1);
    if (table) /* rows of norm 1, so that a few steps move those of a rare feature */
        shard_nn_init_normal(shard_module_tensor(table, "weight"), 0, 1 / sqrt((double)wanted->hidden));
    shard_module_add_child(network, "table", table);
    SHARD_SCOPE
    {
        shard_module_add_parameter(network, "bias", shard_zeros(SHARD_SHAPE(wanted->hidden)));
    }
    for (int64_t i = 1; i < wanted->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "%" PRId64, i);
        shard_module_add_child(hidden, name, shard_nn_linear(wanted->hidden, wanted->hidden));
    }
    shard_module_add_child(network, "hidden", hidden);
    shard_module_add_child(network, "fc", shard_nn_parallel_classifier(wanted->hidden, train->labels, group, .dtype = dtype));
    if (shard_last_status() == SHARD_OK && set_prior(shard_module_child(network, "fc"), train, group) == SHARD_OK)
        return network;
    shard_module_destroy(network);
    return NULL;
}

/* ---- the bag ---- */

/* Points of the data, and the dropout of their features. */
typedef struct bag {
    const xmc_data *data;
    const int64_t *points; /* [count] */
    int64_t count;
    double dropout;
    uint64_t key; /* 0: no dropout */
} bag;

/* A value of the matrix, before its column is known. */
typedef struct entry {
    int32_t feature, row;
    float value;
} entry;

static int compare_entries(const void *a, const void *b)
{
    int32_t x = ((const entry *)a)->feature, y = ((const entry *)b)->feature;
    return (x > y) - (x < y);
}

/* Elements are kept with probability 1 - p, times 1 / (1 - p). */
static float draw_kept(random_stream *stream, double p)
{
    return p > 0 && random_uniform(stream) < p ? 0 : (float)(1 / (1 - p));
}

/* The points' features in ascending order, those that dropout leaves. */
static entry *list_entries(const bag *of, int64_t *entries)
{
    const xmc_data *data = of->data;
    int64_t total = 0;
    for (int64_t i = 0; i < of->count; i++)
        total += data->feature_begin[of->points[i] + 1] - data->feature_begin[of->points[i]];
    entry *list = calloc((size_t)total + 1, sizeof *list);
    *entries = 0;
    if (!list) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " features of a batch", total);
        return NULL;
    }
    for (int64_t i = 0; i < of->count; i++) {
        int64_t point = of->points[i];
        random_stream stream = random_start(of->key, 1, (uint64_t)point);
        for (int64_t k = data->feature_begin[point]; k < data->feature_begin[point + 1]; k++) {
            float kept = of->key ? draw_kept(&stream, of->dropout) : 1;
            if (kept > 0)
                list[(*entries)++] = (entry){data->feature[k].number, (int32_t)i, kept * data->feature[k].value};
        }
    }
    qsort(list, (size_t)*entries, sizeof *list, compare_entries);
    return list;
}

/* The distinct features, int64 [columns], at least one, and the points' values of them, [count, columns]. */
static shard_status make_bag(const bag *of, shard_tensor **features, shard_tensor **values)
{
    int64_t entries, columns = 0, count = of->count;
    entry *list = list_entries(of, &entries);
    if (!list)
        return shard_last_status();
    int64_t *feature = calloc((size_t)entries + 1, sizeof *feature);
    for (int64_t i = 0; i < entries && feature; i++)
        if (i == 0 || list[i].feature != list[i - 1].feature)
            feature[columns++] = list[i].feature;
    int64_t width = columns > 0 ? columns : 1;
    float *value = calloc((size_t)(count * width) + 1, sizeof *value);
    if (feature && value) {
        for (int64_t i = 0, column = -1; i < entries; i++) {
            column += i == 0 || list[i].feature != list[i - 1].feature;
            value[list[i].row * width + column] = list[i].value;
        }
        *features = shard_from_host(feature, SHARD_SHAPE(width), .dtype = SHARD_INT64);
        *values = shard_from_host(value, SHARD_SHAPE(count, width));
    } else {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " points of %" PRId64 " distinct features; take a smaller batch",
                    count, width);
    }
    free(list);
    free(feature);
    free(value);
    return shard_last_status();
}

/* ---- the hidden layers ---- */

/* As shard_dropout, whose choice depends on the rows of a batch: here it is by the point. */
static shard_tensor *drop(shard_tensor *x, double p, const int64_t *points, int64_t count, uint64_t key)
{
    if (!x || p == 0 || key == 0)
        return x;
    int64_t width = shard_tensor_size(x, 1);
    float *mask = calloc((size_t)(count * width) + 1, sizeof *mask);
    if (!mask) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the dropout of %" PRId64 " points", count);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) {
        random_stream stream = random_start(key, 0, (uint64_t)points[i]);
        for (int64_t k = 0; k < width; k++)
            mask[i * width + k] = draw_kept(&stream, p);
    }
    x = shard_mul(x, shard_from_host(mask, SHARD_SHAPE(count, width)));
    free(mask);
    return x;
}

shard_tensor *network_features(shard_module *network, const options *wanted, const xmc_data *data, const int64_t *points,
                               int64_t count, uint64_t dropout_key)
{
    shard_tensor *features = NULL, *values = NULL, *x;
    bag of = {.data = data, .points = points, .count = count, .dropout = wanted->feature_dropout, .key = dropout_key};
    if (make_bag(&of, &features, &values) != SHARD_OK)
        return NULL;
    x = shard_matmul(values, shard_forward(shard_module_child(network, "table"), features));
    x = shard_relu(shard_add(x, shard_module_tensor(network, "bias")));
    x = drop(x, wanted->dropout, points, count, dropout_key);
    shard_module *hidden = shard_module_child(network, "hidden");
    for (int i = 0; i < shard_module_child_count(hidden); i++) {
        x = shard_relu(shard_forward(shard_module_child_at(hidden, i), x));
        x = drop(x, wanted->dropout, points, count, dropout_key ? random_hash(dropout_key, (uint64_t)i + 1, 0) : 0);
    }
    return x;
}
