/* The loss of a step: the softmax over all classes or a sample of them, or while rows are tied over the words of the batch. */
#include "trainer.h"

#include "class_sample.h"

#include <inttypes.h>
#include <stdlib.h>

/* The classes of a step's pairs. */
typedef struct batch {
    int64_t *labels; /* [own]: of the model group's pairs, in the order of their gathered features */
    int64_t own;
    int64_t *classes; /* [distinct]: of the pairs of all ranks, each once, in ascending order */
    int64_t distinct;
} batch;

/* While rows are tied, neighbours in the dictionary meet in a batch, as there are no other classes. */
static int64_t run_length(const trainer *run)
{
    return trainer_is_tied(run) ? run->options->neighbours : 1;
}

static int compare_integers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t make_distinct(int64_t *classes, int64_t count)
{
    int64_t distinct = 0;
    qsort(classes, (size_t)count, sizeof *classes, compare_integers);
    for (int64_t i = 0; i < count; i++)
        if (distinct == 0 || classes[distinct - 1] != classes[i])
            classes[distinct++] = classes[i];
    return distinct;
}

static void free_batch(batch *made)
{
    free(made->labels);
    free(made->classes);
}

/* The step's pairs have consecutive indices, so that each rank knows the classes of all. */
static shard_status make_batch(trainer *run, int64_t count, batch *made)
{
    int64_t size = shard_group_sampler_last_batch_size(run->sampler),
            first = run->base.at.epoch_step * run->options->training.batch;
    *made = (batch){0};
    made->labels = training_gather_samples(run->samples, count, run->base.model_group, &made->own);
    made->classes = calloc((size_t)size + 1, sizeof *made->classes);
    if (made->labels && !made->classes)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for the classes of %" PRId64 " pairs", size);
    if (!made->labels)
        return shard_last_status();
    for (int64_t i = 0; i < made->own; i++)
        made->labels[i] = pairs_draw_class(run->pairs, run_length(run), run->base.at.epoch, made->labels[i]);
    for (int64_t i = 0; i < size; i++)
        made->classes[i] = pairs_draw_class(run->pairs, run_length(run), run->base.at.epoch, first + i);
    made->distinct = make_distinct(made->classes, size);
    return SHARD_OK;
}

/* The features of this rank's typed words, gathered. */
static shard_tensor *encode_typed(trainer *run, int64_t count)
{
    pair *drawn = calloc((size_t)count + 1, sizeof *drawn);
    const char **word = calloc((size_t)count + 1, sizeof *word);
    shard_tensor *x = NULL;
    if (drawn && word) {
        for (int64_t i = 0; i < count; i++) {
            pairs_draw(run->pairs, run_length(run), run->base.at.epoch, run->samples[i], &drawn[i]);
            word[i] = drawn[i].typed;
        }
        x = trainer_features(run, word, count, run->options->scale);
    } else {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " pairs", count);
    }
    free(drawn);
    free(word);
    return x;
}

/* The features of the batch's distinct words, [distinct, dim]: each rank of the model group encodes its range of them. */
static shard_tensor *encode_words(trainer *run, const batch *made)
{
    shard_range range =
        shard_split_range(made->distinct, shard_group_size(run->base.model_group), shard_group_rank(run->base.model_group));
    const char **word = calloc((size_t)range.size + 1, sizeof *word);
    if (!word) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " words", range.size);
        return NULL;
    }
    for (int64_t i = 0; i < range.size; i++)
        word[i] = words_at(run->dictionary, made->classes[range.start + i]);
    shard_tensor *rows = trainer_features(run, word, range.size, 1);
    free(word);
    return rows;
}

/* Of the pairs' words in place of all classes. */
static shard_tensor *tied_loss(trainer *run, shard_tensor *x, const batch *made)
{
    shard_tensor *rows = encode_words(run, made);
    for (int64_t i = 0; i < made->own; i++) {
        const int64_t *found =
            bsearch(&made->labels[i], made->classes, (size_t)made->distinct, sizeof *made->classes, compare_integers);
        made->labels[i] = found - made->classes;
    }
    shard_tensor *labels = shard_from_host(made->labels, SHARD_SHAPE(made->own), .dtype = SHARD_INT64), *loss = NULL;
    SHARD_AUTOCAST((shard_dtype)run->options->training.amp)
    {
        loss = shard_cross_entropy(shard_linear(x, rows, NULL), labels, .reduction = SHARD_REDUCTION_SUM);
    }
    return loss;
}

static shard_tensor *class_loss(trainer *run, shard_tensor *x, const batch *made)
{
    const options *wanted = run->options;
    shard_module *head = shard_module_child(run->base.model, "fc");
    shard_tensor *labels = shard_from_host(made->labels, SHARD_SHAPE(made->own), .dtype = SHARD_INT64), *logits = NULL,
                 *loss = NULL;
    class_sample sample; /* with the labels of all ranks, so that replicas have the same one */
    if (class_sample_draw(&sample, made->classes, made->distinct, shard_module_tensor(head, "weight"), wanted->sample_rate, false,
                          (uint64_t)wanted->training.seed, run->base.at.step) != SHARD_OK)
        return NULL;
    SHARD_AUTOCAST(head_autocast(&wanted->head, &wanted->training))
    {
        logits = shard_forward(head, shard_cast(x, head_dtype(&wanted->head, &wanted->training)));
        loss = shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM, .sample = sample.classes,
                                   .sample_correction = sample.correction, .stash_share = wanted->head.stash);
    }
    shard_release(logits);
    return loss;
}

shard_status loss_backward(void *of, training_batch *made)
{
    trainer *run = of;
    batch drawn;
    double groups = shard_group_size(shard_mesh_data_group(run->base.mesh));
    shard_group_sampler_next(run->sampler, run->samples, &made->local_samples);
    made->samples = shard_group_sampler_last_batch_size(run->sampler);
    shard_status status = make_batch(run, made->local_samples, &drawn);
    SHARD_SCOPE
    {
        shard_tensor *x = status == SHARD_OK ? encode_typed(run, made->local_samples) : NULL, *loss = NULL;
        if (x)
            loss = trainer_is_tied(run) ? tied_loss(run, x, &drawn) : class_loss(run, x, &drawn);
        if (loss)
            made->loss = shard_item(loss);
        /* Each model group has the sum over its pairs, and data parallel averages over the groups. */
        loss = shard_scale(loss, groups / (double)made->samples);
        shard_backward(shard_grad_scaler_scale(run->base.optimizers.scaler, loss));
    }
    free_batch(&drawn);
    return shard_last_status();
}
