#include "network.h"

#include "ngrams.h"
#include "training_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BYTE_DIM 32 /* of a byte's embedding */
#define BYTES 32    /* of a word that the convolution reads: the same number for all, so that no other word counts */
#define WINDOW 5    /* bytes of a convolution's window */
#define ROWS_AT_ONCE 2048

/* ---- making ---- */

static const shard_module_type network_type = {.name = "network"};

/* The classes that this rank has. */
static shard_range local_classes(shard_tensor *weight)
{
    shard_placement placement = shard_tensor_placement(weight);
    int64_t rows = shard_tensor_size(weight, 0);
    return (shard_range){placement.kind == SHARD_SPLIT ? placement.start : 0, rows};
}

/* Writes the values, cast to dtype, to host memory. */
static shard_status take_values(shard_tensor *values, shard_dtype dtype, void *to)
{
    shard_tensor *cast = shard_cast(values, dtype);
    return cast ? shard_copy_to_host(cast, to, (size_t)shard_numel(cast) * shard_dtype_size(dtype)) : shard_last_status();
}

static shard_status set_bias(shard_module *classifier, const pairs *of)
{
    shard_tensor *bias = shard_module_tensor(classifier, "bias");
    if (!bias)
        return shard_last_status();
    shard_range range = local_classes(bias);
    float *value = calloc((size_t)range.size + 1, sizeof *value);
    double even = 1 / (double)of->dictionary->count;
    if (!value)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " classes", range.size);
    for (int64_t i = 0; i < range.size; i++) /* relative to an even chance, and finite for a word that is never drawn */
        value[i] = (float)log(fmax(pairs_chance(of, range.start + i) / even, 1e-3));
    shard_status status = training_set_values(bias, value);
    free(value);
    return status;
}

/* A table of `rows` rows whose first one is zeros. */
static shard_module *make_table(int64_t rows, int64_t dim)
{
    shard_module *table = shard_nn_embedding(rows, dim, 0);
    if (!table)
        return NULL;
    shard_tensor *weight = shard_module_tensor(table, "weight");
    shard_nn_init_normal(weight, 0, 1 / sqrt((double)dim));
    float *zeros = calloc((size_t)dim, sizeof *zeros);
    if (!zeros)
        shard_error(SHARD_ERROR_MEMORY, "no memory for a row of %" PRId64 " numbers", dim);
    SHARD_NO_GRAD
    SHARD_SCOPE
    {
        if (zeros && shard_materialize(weight) == SHARD_OK)
            shard_copy_from_host(shard_narrow(weight, 0, 0, 1), zeros, (size_t)dim * sizeof *zeros);
    }
    free(zeros);
    return table;
}

static void add_convolution(shard_module *network, int64_t channels, int64_t dim)
{
    shard_module *convolution = shard_module_create(&network_type, NULL);
    shard_module_add_child(network, "bytes", make_table(256, BYTE_DIM));
    SHARD_SCOPE
    {
        double std = sqrt(2.0 / (BYTE_DIM * WINDOW));
        shard_module_add_parameter(convolution, "weight", shard_normal(SHARD_SHAPE(channels, BYTE_DIM, 1, WINDOW), 0, std));
        shard_module_add_parameter(convolution, "bias", shard_zeros(SHARD_SHAPE(channels)));
    }
    shard_module_add_child(network, "conv", convolution);
    shard_module_add_child(network, "join", shard_nn_linear(channels, dim, .bias = false));
}

shard_module *network_make(const options *wanted, const pairs *of, shard_group *group)
{
    shard_dtype dtype = head_dtype(&wanted->head, &wanted->training);
    shard_module *network = shard_module_create(&network_type, NULL);
    shard_module_add_child(network, "table", make_table(wanted->features, wanted->dim));
    if (wanted->channels > 0)
        add_convolution(network, wanted->channels, wanted->dim);
    shard_module_add_child(network, "fc",
                           shard_nn_parallel_classifier(wanted->dim, of->dictionary->count, group, .dtype = dtype));
    if (shard_last_status() == SHARD_OK && set_bias(shard_module_child(network, "fc"), of) == SHARD_OK)
        return network;
    shard_module_destroy(network);
    return NULL;
}

/* ---- the encoder ---- */

/* The words' n-grams, int64 [count, the most of a word], padded with 0. */
static shard_tensor *make_index(const char *const *word, int64_t count, int64_t features)
{
    int64_t row[NGRAMS_MOST], width = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t ngrams = ngrams_list(word[i], features, row);
        width = ngrams > width ? ngrams : width;
    }
    int64_t *index = calloc((size_t)(count * width) + 1, sizeof *index);
    if (!index) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the n-grams of %" PRId64 " words; take a smaller batch", count);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) {
        int ngrams = ngrams_list(word[i], features, row);
        memcpy(index + i * width, row, (size_t)ngrams * sizeof *row);
    }
    shard_tensor *made = shard_from_host(index, SHARD_SHAPE(count, width), .dtype = SHARD_INT64);
    free(index);
    return made;
}

/* The words' bytes, int64 [count, BYTES], padded with 0. */
static shard_tensor *make_bytes(const char *const *word, int64_t count)
{
    int64_t *bytes = calloc((size_t)count * BYTES + 1, sizeof *bytes);
    if (!bytes) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the bytes of %" PRId64 " words; take a smaller batch", count);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < BYTES && word[i][k]; k++)
            bytes[i * BYTES + k] = (unsigned char)word[i][k];
    shard_tensor *made = shard_from_host(bytes, SHARD_SHAPE(count, BYTES), .dtype = SHARD_INT64);
    free(bytes);
    return made;
}

/* [count, dim]. The convolution is one of images of a row. */
static shard_tensor *convolve(shard_module *network, const char *const *word, int64_t count)
{
    shard_module *convolution = shard_module_child(network, "conv");
    shard_tensor *x = shard_forward(shard_module_child(network, "bytes"), make_bytes(word, count));
    x = shard_reshape(x, SHARD_SHAPE(count, 1, BYTES, BYTE_DIM));
    x = shard_conv2d(x, shard_module_tensor(convolution, "weight"), shard_module_tensor(convolution, "bias"), .padding_h = 0,
                     .padding_w = WINDOW / 2);
    x = shard_max_dim(shard_relu(x), 2, false, NULL);
    return shard_forward(shard_module_child(network, "join"), shard_flatten(x, 0, 1));
}

static bool has_convolution(shard_module *network)
{
    return shard_module_child_count(network) > 2; /* table and fc */
}

shard_tensor *network_encode(shard_module *network, const char *const *word, int64_t count)
{
    shard_tensor *table = shard_module_tensor(shard_module_child(network, "table"), "weight");
    if (!table)
        return NULL;
    shard_tensor *rows = shard_embedding(table, make_index(word, count, shard_tensor_size(table, 0)), 0);
    shard_tensor *x = shard_sum_dim(rows, 1, false);
    if (has_convolution(network))
        x = shard_add(x, convolve(network, word, count));
    return shard_normalize(x, 1, 1e-12);
}

/* The blocks of rows that each rank of the classifier encodes: the same number on all, as ZeRO 3 gathers the encoder for each. */
static int count_blocks(shard_tensor *weight, int64_t classes)
{
    shard_placement placement = shard_tensor_placement(weight);
    int64_t ranks = placement.kind == SHARD_SPLIT ? shard_group_size(placement.group) : 1, most = (classes + ranks - 1) / ranks;
    return (int)((most + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE);
}

shard_status network_set_rows(shard_module *network, const words *dictionary)
{
    const char *word[ROWS_AT_ONCE];
    shard_tensor *weight = shard_module_tensor(shard_module_child(network, "fc"), "weight");
    if (!weight)
        return shard_last_status();
    shard_range range = local_classes(weight);
    shard_dtype dtype = shard_tensor_dtype(weight);
    size_t row_bytes = (size_t)shard_tensor_size(weight, 1) * shard_dtype_size(dtype);
    char *rows = calloc((size_t)range.size + 1, row_bytes);
    shard_status status =
        rows ? SHARD_OK : shard_error(SHARD_ERROR_MEMORY, "no memory for the rows of %" PRId64 " classes", range.size);
    int blocks = count_blocks(weight, dictionary->count);
    for (int block = 0; block < blocks && status == SHARD_OK; block++) {
        shard_range part = shard_split_range(range.size, blocks, block);
        for (int64_t i = 0; i < part.size; i++)
            word[i] = words_at(dictionary, range.start + part.start + i);
        SHARD_NO_GRAD
        SHARD_SCOPE
        {
            status = take_values(network_encode(network, word, part.size), dtype, rows + (size_t)part.start * row_bytes);
        }
    }
    if (status == SHARD_OK)
        status = shard_copy_from_host(weight, rows, (size_t)range.size * row_bytes);
    free(rows);
    return status;
}
