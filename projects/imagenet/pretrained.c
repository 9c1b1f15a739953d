/*
 * --pretrained: the model's values from a file by another program or run. As
 * torch.nn.Module.load_state_dict with strict=True: a name that the file lacks and one that
 * the model lacks are errors, unless --pretrained-skip names their layer. Counters of batches and a margin's statistics may be
 * missing.
 */
#include "trainer.h"

#include "ends_with.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAMED 3 /* names in a message; the others are counted */
#define NAMES_BYTES 160
#define WRAPPED "module."
#define MARGIN_MEAN "fc.batch_mean" /* AdaFace's statistics */
#define MARGIN_STD "fc.batch_std"

/* The names of one kind: their number, and the first ones as text. */
typedef struct names {
    int64_t count;
    char text[NAMES_BYTES];
} names;

typedef struct pretrained {
    trainer *run;
    const char *path, *skip;         /* skip: "fc,head", or NULL */
    shard_tensors *file, *state;     /* of the file, without values; of the model */
    const char *prefix;              /* prefix of each name in the file */
    shard_metadata *metadata;        /* of the file */
    shard_tensors *wanted;           /* of the model: the tensors that are loaded */
    names missing, unexpected, left; /* left: tensors of the model that are skipped */
    names anew;                      /* the margin's statistics, where the file has none */
} pretrained;

static void note_name(names *list, const char *name)
{
    size_t used = strlen(list->text);
    if (list->count < NAMED)
        snprintf(list->text + used, NAMES_BYTES - used, "%s%s", list->count ? ", " : "", name);
    else if (list->count == NAMED)
        snprintf(list->text + used, NAMES_BYTES - used, ", ...");
    list->count++;
}

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* Whether the tensor is in the layer, or is the one, that the word of `length` bytes names. */
static bool is_of_layer(const char *name, const char *word, size_t length)
{
    return strncmp(name, word, length) == 0 && (name[length] == '.' || name[length] == '\0');
}

/* The length of the word at *next of a list "fc,head"; *next moves after it. 0 at the end. */
static size_t next_word(const char **next, const char **word)
{
    *next += strspn(*next, ",");
    *word = *next;
    size_t length = strcspn(*next, ",");
    *next += length;
    return length;
}

static bool is_skipped(const pretrained *loading, const char *name)
{
    const char *next = loading->skip ? loading->skip : "", *word;
    for (size_t length; (length = next_word(&next, &word)) > 0;)
        if (is_of_layer(name, word, length))
            return true;
    return false;
}

static bool has_layer(const shard_tensors *tensors, const char *word, size_t length)
{
    for (int64_t i = 0; i < shard_tensors_count(tensors); i++)
        if (is_of_layer(shard_tensors_name(tensors, i), word, length))
            return true;
    return false;
}

static shard_status check_skipped(const pretrained *loading)
{
    const char *next = loading->skip ? loading->skip : "", *word;
    for (size_t length; (length = next_word(&next, &word)) > 0;)
        if (!has_layer(loading->state, word, length) && !has_layer(loading->file, word, length))
            return shard_error(SHARD_ERROR_ARGUMENT, "--pretrained-skip: neither the model nor %s has \"%.*s\"", loading->path,
                               (int)length, word);
    return SHARD_OK;
}

/* A file may name its architecture; it must be this one then. */
static shard_status check_metadata(const pretrained *loading)
{
    const char *wanted[][2] = {{"arch", loading->run->options->arch}, {"stem", options_stem_name(loading->run->options)}};
    for (int i = 0; i < 2; i++) {
        const char *found = shard_metadata_get(loading->metadata, wanted[i][0]);
        if (found && strcmp(found, wanted[i][1]) != 0)
            return shard_error(SHARD_ERROR_ARGUMENT, "--pretrained %s: its %s is %s, not %s", loading->path, wanted[i][0], found,
                               wanted[i][1]);
    }
    return SHARD_OK;
}

static shard_status check_classes(const pretrained *loading)
{
    const shard_tensor *final = shard_tensors_find(loading->file, "fc.weight");
    int64_t classes = loading->run->data.num_classes;
    if (!final || is_skipped(loading, "fc.weight") || shard_tensor_shape(final).ndim != 2 ||
        shard_tensor_size(final, 0) == classes)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "--pretrained %s: its last layer has %" PRId64 " classes, not %" PRId64
                       "; to train a new last layer, add --pretrained-skip fc",
                       loading->path, shard_tensor_size(final, 0), classes);
}

/* Those of a model begin anew where the file has none; those of a file are left out where the model has none. */
static bool is_of_margin(const char *name)
{
    return strcmp(name, MARGIN_MEAN) == 0 || strcmp(name, MARGIN_STD) == 0;
}

/* A mean of the file with the first deviation of a new run, or the reverse, would be the statistics of no features. */
static shard_status check_margin(const pretrained *loading)
{
    if (loading->anew.count != 1 || is_skipped(loading, MARGIN_MEAN) || is_skipped(loading, MARGIN_STD))
        return SHARD_OK;
    bool lacks_mean = strcmp(loading->anew.text, MARGIN_MEAN) == 0;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "--pretrained %s: it has %s without %s; AdaFace's margins need both or none: take a file with both, or "
                       "begin both anew by --pretrained-skip " MARGIN_MEAN "," MARGIN_STD,
                       loading->path, lacks_mean ? MARGIN_STD : MARGIN_MEAN, lacks_mean ? MARGIN_MEAN : MARGIN_STD);
}

/* Files of older versions of torchvision do not count batches. */
static shard_status sort_names(pretrained *loading)
{
    bool checkpoint = shard_metadata_get(loading->metadata, "optimizer") != NULL; /* of this program */
    for (int64_t i = 0; i < shard_tensors_count(loading->state); i++) {
        const char *name = shard_tensors_name(loading->state, i);
        if (is_skipped(loading, name))
            note_name(&loading->left, name);
        else if (shard_tensors_find(loading->file, name))
            shard_tensors_add(loading->wanted, name, shard_tensors_at(loading->state, i));
        else if (is_of_margin(name))
            note_name(&loading->anew, name);
        else if (!ends_with(name, ".num_batches_tracked"))
            note_name(&loading->missing, name);
    }
    for (int64_t i = 0; i < shard_tensors_count(loading->file); i++) {
        const char *name = shard_tensors_name(loading->file, i);
        bool training = checkpoint && (begins_with(name, TRAINING_OPTIMIZER) || begins_with(name, TRAINING_SCALER));
        if (!training && !is_of_margin(name) && !is_skipped(loading, name) && !shard_tensors_find(loading->state, name))
            note_name(&loading->unexpected, name);
    }
    return shard_last_status();
}

static shard_status check_names(const pretrained *loading)
{
    const options *wanted = loading->run->options;
    const names *missing = &loading->missing, *unexpected = &loading->unexpected;
    if (missing->count || unexpected->count) {
        char lacks[NAMES_BYTES + 48] = "", has[NAMES_BYTES + 48] = "";
        if (missing->count)
            snprintf(lacks, sizeof lacks, " %" PRId64 " missing (%s)", missing->count, missing->text);
        if (unexpected->count)
            snprintf(has, sizeof has, "%s %" PRId64 " unexpected (%s)", missing->count ? "," : "", unexpected->count,
                     unexpected->text);
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--pretrained %s: its names are not those of a %s:%s%s; choose another --arch, or leave layers out by "
                           "--pretrained-skip LAYERS",
                           loading->path, wanted->arch, lacks, has);
    }
    if (wanted->training.evaluate && loading->left.count)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate needs every value of the model, and --pretrained-skip leaves out %s",
                           loading->left.text);
    return SHARD_OK;
}

static shard_status load(pretrained *loading)
{
    shard_status status = check_metadata(loading);
    if (loading->run->options->training.evaluate) /* another run of training may be of other images */
        training_checkpoint_report(&loading->run->base.checkpoint, loading->metadata, loading->path,
                                   &loading->run->base.progress);
    if (status == SHARD_OK)
        status = check_skipped(loading);
    if (status == SHARD_OK)
        status = check_classes(loading);
    if (status == SHARD_OK)
        status = sort_names(loading);
    if (status == SHARD_OK)
        status = check_names(loading);
    if (status == SHARD_OK)
        status = check_margin(loading);
    if (status == SHARD_OK) /* unexpected names were checked above */
        status = shard_load(loading->wanted, loading->path, .prefix = loading->prefix, .allow_unexpected = true, .convert = true);
    const names *lists[] = {&loading->left, &loading->anew};
    for (int i = 0; i < 2 && status == SHARD_OK; i++)
        if (lists[i]->count)
            progress_say(&loading->run->base.progress, "not from %s, with new initial values: %s", loading->path, lists[i]->text);
    return status;
}

/* Whether every name has the prefix of torch.nn.DataParallel and DistributedDataParallel, as in the files of
 * pytorch/examples. */
static bool is_wrapped(const shard_tensors *file)
{
    for (int64_t i = 0; i < shard_tensors_count(file); i++)
        if (!begins_with(shard_tensors_name(file, i), WRAPPED))
            return false;
    return shard_tensors_count(file) > 0;
}

static void unwrap(pretrained *loading)
{
    shard_tensors *file = loading->file;
    loading->prefix = WRAPPED;
    loading->file = shard_tensors_subset(file, WRAPPED);
    shard_tensors_destroy(file);
}

shard_status pretrained_load(trainer *run, const char *path)
{
    pretrained loading = {.run = run, .path = path, .skip = run->options->pretrained_skip};
    loading.file = shard_inspect(path, &loading.metadata);
    if (is_wrapped(loading.file))
        unwrap(&loading);
    loading.state = shard_state_dict(run->base.model);
    loading.wanted = shard_tensors_create();
    shard_status status = shard_last_status();
    if (status == SHARD_OK)
        status = load(&loading);
    shard_tensors_destroy(loading.file);
    shard_tensors_destroy(loading.state);
    shard_tensors_destroy(loading.wanted);
    shard_metadata_destroy(loading.metadata);
    return status;
}
